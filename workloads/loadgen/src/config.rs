//! What to run, checked before anything is sent.

#![allow(unsafe_code, reason = "sysconf, and the addresses of this machine's networks")]

use crate::error::{bad, LoadgenError};
use crate::load::{LoadProfile, Step, Wave};
use crate::mmpp::Mmpp;
use crate::output::Input;
use crate::protocol::{ProtocolKind, KEY_PLACEHOLDER};
use crate::schedule::Arrivals;
use crate::verdict::Rules;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use surefoot_io::input::{self, KERNEL_BYTES};

/// One run.
#[derive(Debug, Clone)]
pub struct Config {
    pub service: String,
    pub target: SocketAddr,
    /// The HTTP Host header.
    pub host: String,
    pub protocol: ProtocolKind,
    pub path: String,
    pub load: LoadProfile,
    pub arrivals: Arrivals,
    /// Length of the warm-up; with `warmup_auto` its limit.
    pub warmup_ns: u64,
    /// The warm-up ends when the response time is level (see [`crate::warmup`]).
    pub warmup_auto: bool,
    pub duration_ns: u64,
    pub grace_ns: u64,
    pub window_ns: u64,
    pub seed: u64,
    pub connections: usize,
    pub threads: usize,
    /// Requests in flight per connection, at most.
    pub pipeline: usize,
    /// Requests due and not ended, over all threads, at most; the rest is dropped and counted.
    pub max_outstanding: usize,
    pub key_space: u64,
    pub value_bytes: usize,
    pub set_ratio: f64,
    pub preload: bool,
    /// CPUs that the sending threads are pinned to, in turn; empty: wherever the kernel likes.
    pub cpus: Vec<usize>,
    /// Let the sending threads go first (SCHED_FIFO 1) where the process may: an instrument must not wait for what it measures.
    /// Only with fewer threads than CPUs. Niceness would not do: it counts only within one autogroup or control group.
    pub realtime: bool,
    pub spin_ns: u64,
    pub confidence: f64,
    /// Intervals as if samples were independent.
    pub independent: bool,
    pub rules: Rules,
    /// QoS target, ms: the report counts the requests above it.
    pub qos_target_ms: Option<f64>,
    pub feed: Option<PathBuf>,
    pub windows: Option<PathBuf>,
    /// Existing files give way.
    pub overwrite: bool,
    /// The file that the load was read from.
    pub load_file: Option<PathBuf>,
    /// Socket for commands; `-` is stdin.
    pub control: Option<PathBuf>,
    /// Keep every sample in memory (tests).
    pub keep_samples: bool,
}

impl Config {
    /// Sensible values for everything but the target and the load.
    pub fn new(target: SocketAddr, protocol: ProtocolKind, load: LoadProfile) -> Self {
        Config {
            service: "service".into(),
            target,
            host: target.to_string(),
            protocol,
            path: "/".into(),
            load,
            arrivals: Arrivals::Poisson,
            warmup_ns: 1_000_000_000,
            warmup_auto: false,
            duration_ns: 10_000_000_000,
            grace_ns: 1_000_000_000,
            window_ns: 100_000_000,
            seed: 1,
            connections: 16,
            threads: 1,
            pipeline: if protocol == ProtocolKind::Http { 1 } else { 64 },
            max_outstanding: 20_000,
            key_space: 10_000,
            value_bytes: 200,
            set_ratio: 0.0,
            preload: true,
            cpus: Vec::new(),
            realtime: true,
            spin_ns: 20_000,
            confidence: 0.95,
            independent: false,
            rules: Rules::default(),
            qos_target_ms: None,
            feed: None,
            windows: None,
            overwrite: false,
            load_file: None,
            control: None,
            keep_samples: false,
        }
    }

    /// Files that a run reads.
    pub fn inputs(&self) -> Vec<Input<'_>> {
        self.load_file.iter().map(|f| ("--load-file", f.as_path())).collect()
    }

    /// # Errors
    /// `BadInput` naming the first field that makes no sense.
    pub fn check(&self) -> Result<(), LoadgenError> {
        let at_least_one = |value: usize, name: &str| {
            if value == 0 {
                Err(bad(format!("--{name} 0: give at least 1")))
            } else {
                Ok(())
            }
        };
        at_least_one(self.threads, "threads")?;
        at_least_one(self.connections, "connections")?;
        at_least_one(self.pipeline, "pipeline")?;
        at_least_one(self.max_outstanding, "max-outstanding")?;
        if self.connections < self.threads {
            return Err(bad(format!("--connections {} is fewer than --threads {}: each thread needs one", self.connections, self.threads)));
        }
        if self.connections > 10_000 || self.threads > 256 {
            return Err(bad("at most --connections 10000 and --threads 256"));
        }
        if self.duration_ns < 1_000_000 {
            return Err(bad("--duration must be at least 1ms"));
        }
        if self.window_ns < 1_000_000 {
            return Err(bad("--window-ms must be at least 1"));
        }
        if !(0.0..=1.0).contains(&self.set_ratio) {
            return Err(bad(format!("--set-ratio {} is not between 0 and 1", self.set_ratio)));
        }
        if !(0.5..1.0).contains(&self.confidence) {
            return Err(bad(format!("--confidence {} is not between 0.5 and 1 (e.g. 0.95)", self.confidence)));
        }
        if self.qos_target_ms.is_some_and(|t| !(t.is_finite() && t > 0.0)) {
            return Err(bad("--qos-target-ms must be above 0, e.g. 10"));
        }
        if self.key_space == 0 {
            return Err(bad("--key-space 0: give at least 1"));
        }
        if self.value_bytes > 64 << 20 {
            return Err(bad("--value-bytes: at most 64 MiB"));
        }
        if self.protocol == ProtocolKind::Http
            && (!self.path.starts_with('/') || self.path.chars().any(|c| c.is_whitespace() || c.is_control()))
        {
            return Err(bad(format!("--path `{}` must start with / and hold no spaces", self.path.escape_default())));
        }
        if self.path.replace(KEY_PLACEHOLDER, "").contains(['{', '}']) {
            return Err(bad(format!("--path `{}`: the only placeholder is {KEY_PLACEHOLDER}, the number of the request's key", self.path)));
        }
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        // SAFETY: sysconf takes no pointers.
        let host_cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(cpus as i64) as usize;
        if let Some(cpu) = self.cpus.iter().find(|&&c| c >= host_cpus) {
            return Err(bad(format!("--cpu {cpu}: this machine has CPUs 0 to {}", host_cpus - 1)));
        }
        Ok(())
    }
}

/// A duration such as `10s`, `500ms`, `2m`; a bare number is seconds.
///
/// # Errors
/// `BadInput` naming the option and the forms that are understood.
pub fn parse_duration_ns(option: &str, text: &str) -> Result<u64, LoadgenError> {
    let text = text.trim();
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let scale = match &text[unit_at..] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "" | "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        _ => f64::NAN,
    };
    match text[..unit_at].parse::<f64>().map(|v| v * scale) {
        Ok(ns) if ns.is_finite() && (0.0..=86_400e9 * 7.0).contains(&ns) => Ok(ns as u64),
        _ => Err(bad(format!("{option} `{text}` is not a time: write 10s, 500ms or 2m"))),
    }
}

/// A profile such as `0s:2000,10s:6000`.
///
/// # Errors
/// `BadInput` naming the step that is wrong.
pub fn parse_load(text: &str) -> Result<LoadProfile, LoadgenError> {
    let mut steps = Vec::new();
    for part in text.split(',') {
        let Some((at, rps)) = part.split_once(':') else {
            return Err(bad(format!("--load step `{part}` is not TIME:RPS, e.g. 0s:2000,10s:6000")));
        };
        let at_ns = parse_duration_ns("--load time", at)?;
        let rps = rps.trim().parse().map_err(|_| bad(format!("--load rate `{rps}` is not a number of requests per second")))?;
        steps.push(Step { at_ns, rps });
    }
    LoadProfile::new(steps)
}

/// A day such as `0.6:10min` or `0.6:24h:0.25`: amplitude as a share of the mean, period, phase.
///
/// # Errors
/// `BadInput` naming the part that is wrong.
pub fn parse_wave(text: &str) -> Result<Wave, LoadgenError> {
    let wrong = || bad(format!("--diurnal `{text}` is not AMPLITUDE:PERIOD[:PHASE], e.g. 0.6:10min"));
    let parts: Vec<&str> = text.split(':').collect();
    let (amplitude, period, phase) = match parts[..] {
        [a, p] => (a, p, "0"),
        [a, p, phase] => (a, p, phase),
        _ => return Err(wrong()),
    };
    let number = |t: &str| t.trim().parse::<f64>().map_err(|_| wrong());
    Wave::new(number(amplitude)?, parse_duration_ns("--diurnal period", period)?, number(phase)?)
}

/// States of bursty arrivals such as `0.5:900ms,5:100ms`: relative rate and mean dwell time of each.
///
/// # Errors
/// `BadInput` naming the state that is wrong.
pub fn parse_states(text: &str) -> Result<Mmpp, LoadgenError> {
    let state = |part: &str| {
        let wrong = || bad(format!("--states `{part}` is not RATE:DWELL, e.g. 0.5:900ms,5:100ms"));
        let (rate, dwell) = part.split_once(':').ok_or_else(wrong)?;
        Ok((rate.trim().parse::<f64>().map_err(|_| wrong())?, parse_duration_ns("--states dwell", dwell)?))
    };
    Mmpp::new(&text.split(',').map(state).collect::<Result<Vec<_>, LoadgenError>>()?)
}

/// CPU list such as `0,2-3`.
///
/// # Errors
/// `BadInput` with the form that is understood.
pub fn parse_cpus(text: &str) -> Result<Vec<usize>, LoadgenError> {
    let wrong = || bad(format!("--cpu `{text}` is not a CPU list such as 0,2-3"));
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (a, b) = part.split_once('-').unwrap_or((part, part));
        let a: usize = a.trim().parse().map_err(|_| wrong())?;
        let b: usize = b.trim().parse().map_err(|_| wrong())?;
        if a > b || b > 4095 {
            return Err(wrong());
        }
        cpus.extend(a..=b);
    }
    Ok(cpus)
}

/// Resolve HOST:PORT and refuse what is not ours to load: allowed are loopback, this machine's own addresses, and private addresses
/// on a container network of this machine (reached through a bridge or a veth interface).
///
/// # Errors
/// `BadInput` if it does not resolve or is not allowed (unless `allow_remote`).
pub fn parse_target(text: &str, allow_remote: bool) -> Result<SocketAddr, LoadgenError> {
    if text.rsplit_once(':').is_none_or(|(_, p)| p.parse::<u16>().map_or(true, |p| p == 0)) {
        return Err(bad(format!("--target `{text}` is not HOST:PORT, e.g. 127.0.0.1:11211")));
    }
    let mut found = text.to_socket_addrs().map_err(|e| bad(format!("--target `{text}` does not resolve: {e}")))?;
    let target = found.next().ok_or_else(|| bad(format!("--target `{text}` resolves to no address")))?;
    if allow_remote || target.ip().is_loopback() || on_own_container_network(target.ip()) {
        return Ok(target);
    }
    Err(bad(format!(
        "--target {target} is neither loopback nor a container of this machine: load only hosts that are yours, then add --allow-remote"
    )))
}

fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(a) => a.is_private(),
        IpAddr::V6(a) => (a.segments()[0] & 0xfe00) == 0xfc00,
    }
}

/// Does `a` share its first bits with `b`, as many as `mask` has?
fn same_net(a: IpAddr, b: IpAddr, mask: IpAddr) -> bool {
    match (a, b, mask) {
        (IpAddr::V4(a), IpAddr::V4(b), IpAddr::V4(m)) => {
            let m = u32::from(m);
            m != 0 && u32::from(a) & m == u32::from(b) & m
        }
        (IpAddr::V6(a), IpAddr::V6(b), IpAddr::V6(m)) => {
            let m = u128::from(m);
            m != 0 && u128::from(a) & m == u128::from(b) & m
        }
        _ => false,
    }
}

fn to_ip(sa: *const libc::sockaddr) -> Option<IpAddr> {
    if sa.is_null() {
        return None;
    }
    // SAFETY: getifaddrs gives addresses of the size that their family says; unaligned reads are avoided by copying.
    unsafe {
        match i32::from((*sa).sa_family) {
            libc::AF_INET => {
                let a: libc::sockaddr_in = std::ptr::read_unaligned(sa.cast());
                Some(IpAddr::from(a.sin_addr.s_addr.to_ne_bytes()))
            }
            libc::AF_INET6 => {
                let a: libc::sockaddr_in6 = std::ptr::read_unaligned(sa.cast());
                Some(IpAddr::from(a.sin6_addr.s6_addr))
            }
            _ => None,
        }
    }
}

fn on_own_container_network(ip: IpAddr) -> bool {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs fills `list`, which freeifaddrs releases below; the walk follows its own links.
    unsafe {
        if libc::getifaddrs(&mut list) != 0 {
            return false;
        }
        let mut ours = false;
        let mut at = list;
        while !at.is_null() {
            let entry = &*at;
            at = entry.ifa_next;
            let (Some(own), Some(mask)) = (to_ip(entry.ifa_addr), to_ip(entry.ifa_netmask)) else {
                continue;
            };
            if own == ip {
                ours = true;
                break;
            }
            let name = std::ffi::CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            if is_private(ip) && same_net(ip, own, mask) && is_container_link(&name) {
                ours = true;
                break;
            }
        }
        libc::freeifaddrs(list);
        ours
    }
}

/// A bridge (seen from the host) or a veth (seen from inside a container).
fn is_container_link(name: &str) -> bool {
    let base = PathBuf::from("/sys/class/net").join(name);
    let read = |file: &str| input::text(&base.join(file), KERNEL_BYTES).ok();
    base.join("bridge").exists() || matches!((read("ifindex"), read("iflink")), (Some(a), Some(b)) if a != b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(parse_duration_ns("x", "10s").unwrap(), 10_000_000_000);
        assert_eq!(parse_duration_ns("x", "500ms").unwrap(), 500_000_000);
        assert_eq!(parse_duration_ns("x", "1.5").unwrap(), 1_500_000_000);
        for wrong in ["", "s", "-1s", "10 parsecs", "nan", "1e99s"] {
            assert!(parse_duration_ns("x", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn load_profiles() {
        assert_eq!(parse_load("0s:2000,10s:6000").unwrap().steps().len(), 2);
        for wrong in ["", "2000", "0s:-5", "0s:0", "1s:5", "0s:5,0s:6", "0s:x"] {
            assert!(parse_load(wrong).is_err(), "{wrong}");
        }
    }

    /// Days and bursts are read, or the part that is wrong is named.
    #[test]
    fn waves_and_states() {
        assert_eq!(parse_wave("0.6:10min").unwrap(), Wave { amplitude: 0.6, period_ns: 600_000_000_000, phase: 0.0 });
        assert_eq!(parse_wave("1:24h:0.25").unwrap().phase, 0.25);
        for wrong in ["", "0.5", "x:1s", "0.5:soon", "0.5:1s:x", "0.5:1s:0:0", "2:10s"] {
            assert!(parse_wave(wrong).unwrap_err().to_string().contains("--diurnal"), "{wrong}");
        }
        assert_eq!(parse_states("0.5:900ms,5:100ms").unwrap().states.len(), 2);
        for wrong in ["", "0.5", "1:1s", "1:1s,x:1s", "1:1s,2:never", "1:1s,-2:1s"] {
            assert!(parse_states(wrong).unwrap_err().to_string().contains("--states"), "{wrong}");
        }
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpus("0,2-3").unwrap(), [0, 2, 3]);
        assert!(parse_cpus("a").is_err() && parse_cpus("3-1").is_err());
    }

    /// A misspelt placeholder would send the same request again and again.
    #[test]
    fn unknown_placeholders_are_refused() {
        let mut c = Config::new("127.0.0.1:1".parse().unwrap(), ProtocolKind::Http, parse_load("0s:1").unwrap());
        for (path, good) in [("/", true), ("/a?q={key}", true), ("/a?q={kye}", false), ("/a?q={key", false)] {
            c.path = path.into();
            assert_eq!(c.check().is_ok(), good, "{path}");
        }
    }

    /// Other people's hosts are refused, ours are not.
    #[test]
    fn only_own_targets() {
        assert!(parse_target("127.0.0.1:1", false).is_ok());
        assert!(parse_target("[::1]:1", false).is_ok());
        // Documentation range (RFC 5737): never one of ours.
        let e = parse_target("192.0.2.1:80", false).unwrap_err();
        assert!(e.to_string().contains("--allow-remote"), "{e}");
        assert!(parse_target("192.0.2.1:80", true).is_ok());
        for wrong in ["127.0.0.1", "127.0.0.1:0", "127.0.0.1:x", ":"] {
            assert_eq!(parse_target(wrong, false).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }
}
