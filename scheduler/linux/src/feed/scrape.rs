//! Asks a service of this machine for its Prometheus page, again and again, on a thread of its own.
//!
//! The control loop never waits for it: what a scrape read goes to the windows of the feed, and one that fails leaves nothing, so
//! that the feed falls silent by the same rule as any other.

use super::prometheus::{parse, Sample, Wanted};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use surefoot_server::window::SILENT_MS;

/// Between two scrapes, ms, where nothing else is said.
pub const INTERVAL_MS: u64 = 500;
/// Least and most between two scrapes, ms: with the most a scrape may still take [`TIMEOUT`] before the feed is silent.
pub const INTERVALS_MS: std::ops::RangeInclusive<u64> = 100..=500;
/// The first scrapes come at once: whether several processes answer by turns is known before anything is made of what they say.
const FIRST: (u32, u64) = (4, 100);
/// Pages of one service.
pub const MOST_URLS: usize = 64;
/// A scrape takes so long at most.
pub const TIMEOUT: Duration = Duration::from_millis(400);
const _: () = assert!(*INTERVALS_MS.end() + TIMEOUT.as_millis() as u64 <= SILENT_MS);
/// Largest page that is read, bytes.
const MOST_BODY: usize = 4 << 20;
/// Longest status line and headers, bytes.
const MOST_HEAD: usize = 16 << 10;

/// What to scrape, and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct Scrape {
    /// Pages that count different requests of the service, as those of several processes do: they add up.
    pub urls: Vec<Url>,
    pub wanted: Wanted,
    pub interval_ms: u64,
}

/// A page of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    text: String,
    addresses: Vec<SocketAddr>,
    host: String,
    path: String,
}

impl Url {
    /// # Errors
    /// What is wrong with it, and what would be right. Only this machine's own addresses are taken: a service is scraped on its node.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{text:?} {why}. Write e.g. http://127.0.0.1:9121/metrics");
        if text.len() > 2048 || !text.chars().all(|c| c.is_ascii_graphic()) {
            return Err(wrong("is no URL"));
        }
        let rest = text.strip_prefix("http://").ok_or_else(|| wrong("does not begin with http://"))?;
        let (host, path) = rest.find('/').map_or((rest, "/"), |i| rest.split_at(i));
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => {
                (name, port.parse().ok().filter(|p| *p > 0).ok_or_else(|| wrong("has no port from 1 to 65535"))?)
            }
            _ => (host, 80u16),
        };
        let addresses = match name {
            "localhost" => vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()],
            _ => match name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
                Ok(ip) if ip.is_loopback() => vec![(ip, port).into()],
                _ => return Err(wrong("is not on this machine: a service is scraped on its own node, at 127.0.0.1, localhost or [::1]")),
            },
        };
        Ok(Url { text: text.into(), addresses, host: host.into(), path: path.into() })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// The page as it is now.
///
/// # Errors
/// One line: no answer within `timeout`, another answer than 200, or one that is too long.
pub fn get(url: &Url, timeout: Duration) -> Result<String, String> {
    let text = get_bounded(url, timeout, MOST_BODY).map_err(|e| match e {
        Refusal::Long => format!("more than {MOST_BODY} bytes, and so many are read at most. Scrape a page of this service alone"),
        Refusal::Other(e) => e,
    })?;
    // The format ends every line: what has no end was cut off.
    if text.is_empty() || text.ends_with('\n') {
        Ok(text)
    } else {
        Err("breaks off within a line".into())
    }
}

/// Why there is no page.
pub enum Refusal {
    /// It is longer than is allowed.
    Long,
    Other(String),
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Refusal::Other(why)
    }
}

/// The page as it is now, of at most `most_bytes` with its headers. What ends too early and has no length is for the reader to find.
///
/// # Errors
/// [`Refusal::Long`]; else one line.
pub fn get_bounded(url: &Url, timeout: Duration, most_bytes: usize) -> Result<String, Refusal> {
    let deadline = Instant::now() + timeout;
    let late = || format!("no whole answer within {} ms", timeout.as_millis());
    let left = || deadline.checked_duration_since(Instant::now()).filter(|d| !d.is_zero());
    let told = |e: io::Error| match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late(),
        _ => e.to_string(),
    };
    let mut stream = Err(late());
    for at in &url.addresses {
        stream = TcpStream::connect_timeout(at, left().ok_or_else(late)?).map_err(told);
        if stream.is_ok() {
            break;
        }
    }
    let mut stream = stream?;
    stream.set_write_timeout(Some(left().ok_or_else(late)?)).map_err(told)?;
    // 1.0: the page comes in one piece, up to the end of the connection.
    let ask = format!(
        "GET {} HTTP/1.0\r\nHost: {}\r\nAccept: text/plain; version=0.0.4\r\nUser-Agent: surefootd\r\nConnection: close\r\n\r\n",
        url.path, url.host
    );
    stream.write_all(ask.as_bytes()).map_err(told)?;
    let mut answer = Vec::new();
    let mut chunk = [0; 16 << 10];
    let mut whole = None;
    // Each read is bounded, and so is their sum: one byte a time does not hold a scrape up for ever.
    while whole.is_none_or(|n| answer.len() < n) {
        stream.set_read_timeout(Some(left().ok_or_else(late)?)).map_err(told)?;
        let n = stream.read(&mut chunk).map_err(told)?;
        if n == 0 {
            break;
        }
        answer.extend_from_slice(&chunk[..n]);
        if whole.is_none() {
            whole = length(&answer)?;
            if whole.is_some_and(|n| n > most_bytes) {
                return Err(Refusal::Long);
            }
        }
        if answer.len() > most_bytes {
            return Err(Refusal::Long);
        }
    }
    Ok(body(&answer)?)
}

/// Where the headers end.
fn head_end(answer: &[u8]) -> Option<usize> {
    answer.windows(4).take(MOST_HEAD).position(|w| w == b"\r\n\r\n").map(|i| i + 4)
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).filter_map(|l| l.split_once(':')).find(|(k, _)| k.trim().eq_ignore_ascii_case(name)).map(|(_, v)| v.trim())
}

/// Bytes of the whole answer, once its headers say so.
fn length(answer: &[u8]) -> Result<Option<usize>, String> {
    let Some(end) = head_end(answer) else {
        return if answer.len() > MOST_HEAD { Err("is no HTTP: its headers do not end".into()) } else { Ok(None) };
    };
    let head = String::from_utf8_lossy(&answer[..end]);
    match header(&head, "content-length").map(str::parse::<usize>) {
        Some(Ok(n)) => Ok(Some(end.saturating_add(n))),
        Some(Err(_)) => Err("has a Content-Length that is no number".into()),
        None => Ok(None),
    }
}

/// The text of a whole answer.
fn body(answer: &[u8]) -> Result<String, String> {
    let end = head_end(answer).ok_or("is no HTTP")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let first: String = head.lines().next().unwrap_or("").chars().filter(|c| !c.is_control()).take(80).collect();
    if !first.starts_with("HTTP/1.") || first.split(' ').nth(1) != Some("200") {
        return Err(format!("answers {first:?}, not 200"));
    }
    if header(&head, "content-encoding").is_some_and(|e| !e.eq_ignore_ascii_case("identity")) {
        return Err("is compressed though nobody asked for that".into());
    }
    let bytes = if header(&head, "transfer-encoding").is_some_and(|t| t.eq_ignore_ascii_case("chunked")) {
        dechunk(&answer[end..]).ok_or("breaks off")?
    } else {
        let rest = &answer[end..];
        match length(answer)? {
            Some(n) if answer.len() < n => return Err("breaks off".into()),
            Some(n) => rest[..n - end].to_vec(),
            None => rest.to_vec(),
        }
    };
    String::from_utf8(bytes).map_err(|_| "is not UTF-8".into())
}

/// Pieces with their lengths before them; None where they do not end.
fn dechunk(mut from: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let line = from.windows(2).position(|w| w == b"\r\n")?;
        let size = std::str::from_utf8(&from[..line]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        from = &from[line + 2..];
        if size == 0 {
            return Some(out);
        }
        out.extend_from_slice(from.get(..size)?);
        from = from.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

/// What a scraper has to say.
#[derive(Debug)]
pub enum Turn {
    Read(Sample),
    /// The page could not be had or read.
    Failed,
    /// It has waited for its next turn.
    Waited,
}

/// Scrape a page until `keep` says that it is enough; it hears of every answer. One log line whenever reading begins or ends to work.
pub fn run(service: &str, url: &Url, what: &Scrape, mut keep: impl FnMut(Turn) -> bool) {
    let mut first = FIRST.0;
    let mut worked: Option<bool> = None;
    let mut next = Instant::now();
    loop {
        let read = get(url, TIMEOUT).and_then(|page| parse(&page, &what.wanted));
        if worked != Some(read.is_ok()) {
            worked = Some(read.is_ok());
            match &read {
                Ok(s) => {
                    tracing::info!("{service}: {} of {} is read ({} series)", what.wanted.histogram, url.as_str(), s.series.len())
                }
                Err(e) => tracing::warn!("{service}: {}: {e}; its latency is unknown until it can be read", url.as_str()),
            }
        }
        if !keep(read.map_or(Turn::Failed, Turn::Read)) {
            return;
        }
        first = first.saturating_sub(1);
        next += Duration::from_millis(if first > 0 { what.interval_ms.min(FIRST.1) } else { what.interval_ms });
        let now = Instant::now();
        if next < now {
            next = now;
        }
        // Whoever ends it wakes it up.
        std::thread::park_timeout(next - now);
        if !keep(Turn::Waited) {
            return;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A service that answers every request with the next of these, then with the last one for ever; what it was asked comes back.
    pub(in crate::feed) fn serve(answers: Vec<Vec<u8>>) -> (u16, std::sync::mpsc::Receiver<String>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut answers = answers.into_iter().peekable();
            let mut answer = vec![];
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                if answers.peek().is_some() {
                    answer = answers.next().unwrap();
                }
                let mut asked = vec![0; 4096];
                let n = stream.read(&mut asked).unwrap_or(0);
                // Who asks may have had enough already.
                let _ = stream.write_all(&answer);
                if tell.send(String::from_utf8_lossy(&asked[..n]).into_owned()).is_err() {
                    return;
                }
            }
        });
        (port, told)
    }

    pub(in crate::feed) fn ok(body: &str) -> Vec<u8> {
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    pub(in crate::feed) fn url(port: u16) -> Url {
        Url::parse(&format!("http://127.0.0.1:{port}/metrics?x=1")).unwrap()
    }

    fn patient(url: &Url) -> Result<String, String> {
        get(url, Duration::from_secs(20))
    }

    /// Only this machine is asked, and what is no such URL is refused with an example.
    #[test]
    fn only_this_machine_is_scraped() {
        for good in ["http://127.0.0.1:9121/metrics", "http://localhost/", "http://[::1]:80", "http://127.0.0.7:1/x"] {
            assert_eq!(Url::parse(good).unwrap().as_str(), good);
        }
        assert_eq!(Url::parse("http://localhost").unwrap().addresses.len(), 2);
        for (bad, why) in [
            ("http://10.0.0.1:9121/metrics", "not on this machine"),
            ("http://example.org/metrics", "not on this machine"),
            ("http://localhost.example.org/", "not on this machine"),
            ("http://127.0.0.1@example.org/", "not on this machine"),
            ("http://0.0.0.0:1/", "not on this machine"),
            ("https://127.0.0.1/", "does not begin"),
            ("http://127.0.0.1:0/", "port"),
            ("http://127.0.0.1:x/", "port"),
            ("http://127.0.0.1/\r\nHost: x", "no URL"),
        ] {
            let e = Url::parse(bad).unwrap_err();
            assert!(e.contains(why) && e.contains("http://127.0.0.1:9121/metrics"), "{bad}: {e}");
        }
    }

    /// Pages come with a length, in pieces, or up to the end of the connection.
    #[test]
    fn pages_are_read_as_servers_send_them() {
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\na 1\n\r\n4\r\nb 2\n\r\n0\r\n\r\n".to_vec();
        let open = b"HTTP/1.0 200 OK\r\n\r\na 1\nb 2\n".to_vec();
        let (port, asked) = serve(vec![ok("a 1\nb 2\n"), chunked, open]);
        for _ in 0..3 {
            assert_eq!(patient(&url(port)).unwrap(), "a 1\nb 2\n");
        }
        let asked = asked.recv().unwrap();
        assert!(asked.starts_with("GET /metrics?x=1 HTTP/1.0\r\n") && asked.contains("\r\nHost: 127.0.0.1:"), "{asked}");
    }

    /// Answers that are none are one line each.
    #[test]
    fn bad_answers_are_refused() {
        let says = |answer: &[u8], why: &str| {
            let (port, _asked) = serve(vec![answer.to_vec()]);
            let e = patient(&url(port)).unwrap_err();
            assert!(e.contains(why) && !e.contains('\n'), "{e}");
        };
        says(b"HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\n\r\n\n", "404");
        says(b"HTTP/1.1 302 Found\r\nLocation: http://example.org/\r\nContent-Length: 0\r\n\r\n", "302");
        says(b"SSH-2.0-x\r\n", "no HTTP");
        says(b"", "no HTTP");
        says(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\na 1\n", "breaks off");
        says(b"HTTP/1.1 200 OK\r\n\r\na 1\nb", "within a line");
        says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n4\r\nb", "breaks off");
        says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\na", "breaks off");
        says(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "at most");
        says(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\n", "compressed");
        says(b"HTTP/1.1 200 OK\r\n\r\n\xff\n", "UTF-8");
        says(&[b"HTTP/1.1 200 OK\r\n".to_vec(), vec![b'x'; 20_000]].concat(), "headers do not end");
        says(&[b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), vec![b'\n'; MOST_BODY + 1]].concat(), "more than");
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        assert!(patient(&url(closed)).unwrap_err().contains("refused"));
    }

    /// A service that never ends its answer is given up on time.
    #[test]
    fn a_scrape_takes_no_longer_than_it_may() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = url(listener.local_addr().unwrap().port());
        // Connected by the kernel, answered by nobody.
        assert!(get(&at, Duration::from_millis(50)).unwrap_err().contains("within 50 ms"));
        // A byte now and then is no answer either.
        std::thread::spawn(move || {
            for mut s in listener.incoming().flatten() {
                while s.write_all(b"H").is_ok() {
                    std::thread::park_timeout(Duration::from_millis(1));
                }
            }
        });
        assert!(get(&at, Duration::from_millis(50)).unwrap_err().contains("within 50 ms"));
    }
}
