//! Helpers of several test files; not every file uses every one.
#![allow(dead_code)]

pub mod punctual;
pub mod theory;

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The largest distance between the samples' distribution function and `cdf` (Kolmogorov-Smirnov), times sqrt(n).
/// Independent samples of that law stay below 1.63 with 99 %, below 1.95 with 99.9 %.
pub fn kolmogorov_smirnov(mut samples: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let n = samples.len() as f64;
    let far = samples.iter().enumerate().map(|(i, &x)| {
        let f = cdf(x);
        (f - i as f64 / n).abs().max(((i + 1) as f64 / n - f).abs())
    });
    far.fold(0.0, f64::max) * n.sqrt()
}

/// Differences of neighbours, in seconds.
pub fn gaps_s(mut times_ns: Vec<u64>) -> Vec<f64> {
    times_ns.sort_unstable();
    times_ns.windows(2).map(|w| (w[1] - w[0]) as f64 * 1e-9).collect()
}

/// Receive one datagram within 20 s; an interrupted call (the process was stopped for a moment) is no failure.
pub fn receive(reader: &UnixDatagram, buf: &mut [u8]) -> usize {
    reader.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    loop {
        match reader.recv(buf) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => return other.unwrap(),
        }
    }
}

/// Wait up to 20 s for something to become true.
pub fn until(mut what: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !what() {
        assert!(Instant::now() < deadline, "not within 20 s");
        std::thread::yield_now();
    }
}

/// Connect to a Unix socket that may not be there yet.
pub fn connect(path: &Path) -> UnixStream {
    let mut stream = None;
    until(|| {
        stream = UnixStream::connect(path).ok();
        stream.is_some()
    });
    stream.unwrap()
}

/// A process that ends with its test, however that ends.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server process that ends with its test.
pub struct Server {
    pub process: Running,
    pub address: SocketAddr,
}

impl Server {
    /// Start `program` with the arguments that `args` makes from a free port, and wait until it listens.
    pub fn start(program: &str, package: &str, args: impl Fn(u16) -> Vec<String>) -> Server {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(program)
            .args(args(port))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{program}: {e}; this test needs it: apt-get install {package}"));
        let mut server = Server { process: Running(child), address: SocketAddr::from(([127, 0, 0, 1], port)) };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(server.address).is_err() {
            if let Some(status) = server.process.0.try_wait().unwrap() {
                let mut text = String::new();
                let _ = server.process.0.stderr.take().unwrap().read_to_string(&mut text);
                panic!("{program} ended with {status}: {text}");
            }
            assert!(Instant::now() < deadline, "{program} does not listen on {}", server.address);
            std::thread::yield_now();
        }
        server
    }

    /// memcached with one thread.
    pub fn memcached() -> Server {
        Server::start("memcached", "memcached", |port| {
            let p = port.to_string();
            ["-u", "nobody", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-p", &p].map(String::from).to_vec()
        })
    }

    pub fn redis() -> Server {
        Server::start("redis-server", "redis-server", |port| {
            let p = port.to_string();
            ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &p].map(String::from).to_vec()
        })
    }
}
