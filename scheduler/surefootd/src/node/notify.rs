//! sd_notify: word to the service manager over NOTIFY_SOCKET (systemd's protocol, sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// Less than WatchdogSec of the packaged units.
const READY_PATIENCE: Duration = Duration::from_secs(2);

/// None of it matters where nobody asked to be told.
pub struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// Half of WATCHDOG_USEC.
    every: Option<Duration>,
    last: Instant,
}

impl Notifier {
    pub fn from_env() -> Self {
        let address = std::env::var_os("NOTIFY_SOCKET").and_then(|path| match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            [] => None,
            _ => SocketAddr::from_pathname(&path).ok(),
        });
        let open = || {
            let socket = UnixDatagram::unbound().ok()?;
            // A service manager that does not read is no reason to wait.
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        };
        let to = address.and_then(|a| Some((open()?, a)));
        let usec: Option<u64> = std::env::var("WATCHDOG_USEC").ok().and_then(|v| v.parse().ok());
        Notifier { to, every: usec.map(|u| Duration::from_micros(u / 2)), last: Instant::now() }
    }

    /// Whether there is no room for it now. A service manager that does not listen is no reason to stop.
    fn send(&self, text: &str) -> bool {
        let sent = self.to.as_ref().map(|(socket, to)| socket.send_to_addr(text.as_bytes(), to));
        sent.is_some_and(|s| s.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock))
    }

    /// The one word that is waited for, within bounds: a service manager that never hears it ends the service.
    pub fn ready(&self, status: &str) {
        let text = format!("READY=1\nSTATUS={status}");
        let until = Instant::now() + READY_PATIENCE;
        while self.send(&text) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Call every tick.
    pub fn alive(&mut self) {
        if self.every.is_some_and(|e| self.last.elapsed() >= e) {
            self.last = Instant::now();
            self.send("WATCHDOG=1");
        }
    }
}
