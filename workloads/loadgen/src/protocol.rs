//! What goes over the wire: memcached text, RESP (redis) and HTTP/1.1, requests and pipelined replies.

use crate::schedule::{is_set, key_of};
use serde::{Deserialize, Serialize};

/// A protocol's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProtocolKind {
    Memcached,
    Resp,
    Http,
}

impl std::str::FromStr for ProtocolKind {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "memcached" => Ok(Self::Memcached),
            "resp" => Ok(Self::Resp),
            "http" => Ok(Self::Http),
            _ => Err(format!("unknown protocol `{s}`: use memcached, resp or http")),
        }
    }
}

/// What to ask for. Requests are a pure function of seed and request index.
#[derive(Debug, Clone)]
pub struct Protocol {
    pub kind: ProtocolKind,
    pub seed: u64,
    pub key_space: u64,
    pub set_ratio: f64,
    /// The value every SET stores.
    pub value: Vec<u8>,
    /// The HTTP request, cut where the request's key number goes.
    http_parts: Vec<Vec<u8>>,
}

/// Stands for the request's key number in an HTTP path.
pub const KEY_PLACEHOLDER: &str = "{key}";

const KEY_PREFIX: &[u8] = b"key:";

/// Append a number in decimal.
fn put_number(mut n: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// A reply's meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Ok,
    Miss,
    /// The server's own words, shortened.
    Error(String),
}

/// What the front of a receive buffer holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// No full reply before the buffer holds this many bytes (a lower bound).
    Need(usize),
    /// One reply of so many bytes; `close`: the server ends the connection after it.
    Done { bytes: usize, reply: Reply, close: bool },
    /// Not this protocol.
    Broken(String),
}

/// Replies larger than this are taken for a broken stream.
const MAX_HEADER_BYTES: usize = 64 * 1024;

fn excerpt(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).trim_end().to_string()
}

fn find_crlf(buf: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(i) = buf[from..].iter().position(|&b| b == b'\r') {
        match buf.get(from + i + 1) {
            Some(b'\n') => return Some(from + i),
            Some(_) => from += i + 1,
            None => return None,
        }
    }
    None
}

fn line_or_need(buf: &[u8]) -> Result<usize, Parsed> {
    match find_crlf(buf) {
        Some(n) => Ok(n),
        None if buf.len() > MAX_HEADER_BYTES => Err(Parsed::Broken(format!("no end of line within {MAX_HEADER_BYTES} bytes of reply"))),
        None => Err(Parsed::Need(buf.len() + 1)),
    }
}

fn number(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

impl Protocol {
    pub fn new(kind: ProtocolKind, seed: u64, key_space: u64, set_ratio: f64, value_bytes: usize, host: &str, path: &str) -> Self {
        let rest = format!(" HTTP/1.1\r\nHost: {host}\r\nUser-Agent: surefoot-loadgen\r\nAccept: */*\r\n\r\n");
        let mut http_parts: Vec<Vec<u8>> = path.split(KEY_PLACEHOLDER).map(|p| p.as_bytes().to_vec()).collect();
        http_parts[0].splice(..0, *b"GET ");
        // `split` gives at least one part.
        if let Some(last) = http_parts.last_mut() {
            last.extend_from_slice(rest.as_bytes());
        }
        // Bytes that a line-oriented parser on the other side could not mistake for its own.
        let value = (0..value_bytes).map(|i| b'a' + (i % 26) as u8).collect();
        Protocol { kind, seed, key_space, set_ratio, value, http_parts }
    }

    /// Key number `n`, "key:" and at least twelve hexadecimal digits.
    fn put_key(n: u64, out: &mut Vec<u8>) {
        let digits = Self::key_len(n) - KEY_PREFIX.len();
        out.extend_from_slice(KEY_PREFIX);
        out.extend((0..digits).rev().map(|i| b"0123456789abcdef"[(n >> (4 * i)) as usize & 15]));
    }

    fn key_len(n: u64) -> usize {
        let digits = (u64::BITS - n.leading_zeros()).div_ceil(4) as usize;
        KEY_PREFIX.len() + digits.max(12)
    }

    /// Append request `index`.
    pub fn encode(&self, index: u64, out: &mut Vec<u8>) {
        match self.kind {
            ProtocolKind::Http => {
                let key = key_of(self.seed, index, self.key_space);
                for (i, part) in self.http_parts.iter().enumerate() {
                    if i > 0 {
                        put_number(key, out);
                    }
                    out.extend_from_slice(part);
                }
            }
            _ => {
                let key = key_of(self.seed, index, self.key_space);
                if is_set(self.seed, index, self.set_ratio) {
                    self.encode_set(key, out);
                } else {
                    self.encode_get(key, out);
                }
            }
        }
    }

    fn encode_get(&self, key: u64, out: &mut Vec<u8>) {
        match self.kind {
            ProtocolKind::Memcached => out.extend_from_slice(b"get "),
            _ => {
                out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$");
                put_number(Self::key_len(key) as u64, out);
                out.extend_from_slice(b"\r\n");
            }
        }
        Self::put_key(key, out);
        out.extend_from_slice(b"\r\n");
    }

    /// Append a SET of key number `key` (also used by the preload).
    pub fn encode_set(&self, key: u64, out: &mut Vec<u8>) {
        match self.kind {
            ProtocolKind::Memcached => {
                out.extend_from_slice(b"set ");
                Self::put_key(key, out);
                out.extend_from_slice(b" 0 0 ");
            }
            _ => {
                out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$");
                put_number(Self::key_len(key) as u64, out);
                out.extend_from_slice(b"\r\n");
                Self::put_key(key, out);
                out.extend_from_slice(b"\r\n$");
            }
        }
        put_number(self.value.len() as u64, out);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.value);
        out.extend_from_slice(b"\r\n");
    }

    /// Look for one reply at the front of `buf`.
    pub fn parse(&self, buf: &[u8]) -> Parsed {
        if buf.is_empty() {
            return Parsed::Need(1);
        }
        match self.kind {
            ProtocolKind::Memcached => parse_memcached(buf),
            ProtocolKind::Resp => parse_resp(buf),
            ProtocolKind::Http => parse_http(buf),
        }
    }
}

fn done(bytes: usize, reply: Reply) -> Parsed {
    Parsed::Done { bytes, reply, close: false }
}

fn parse_memcached(buf: &[u8]) -> Parsed {
    let end = match line_or_need(buf) {
        Ok(n) => n,
        Err(p) => return p,
    };
    let line = &buf[..end];
    if line.starts_with(b"VALUE ") {
        let Some(size) = line.split(|&b| b == b' ').nth(3).and_then(number) else {
            return Parsed::Broken(format!("memcached VALUE line without a size: {}", excerpt(line)));
        };
        // VALUE <key> <flags> <bytes>\r\n<data>\r\nEND\r\n
        let total = end + 2 + size + 2 + 5;
        if buf.len() < total {
            return Parsed::Need(total);
        }
        if &buf[total - 7..total] != b"\r\nEND\r\n" {
            return Parsed::Broken("memcached value does not end with END".into());
        }
        return done(total, Reply::Ok);
    }
    match line {
        b"END" => done(end + 2, Reply::Miss),
        b"STORED" => done(end + 2, Reply::Ok),
        b"NOT_STORED" => done(end + 2, Reply::Error("NOT_STORED".into())),
        _ if line == b"ERROR" || line.starts_with(b"SERVER_ERROR") || line.starts_with(b"CLIENT_ERROR") => {
            done(end + 2, Reply::Error(excerpt(line)))
        }
        _ => Parsed::Broken(format!("not a memcached reply: {}", excerpt(line))),
    }
}

fn parse_resp(buf: &[u8]) -> Parsed {
    let end = match line_or_need(buf) {
        Ok(n) => n,
        Err(p) => return p,
    };
    match buf[0] {
        b'+' | b':' => done(end + 2, Reply::Ok),
        b'-' => done(end + 2, Reply::Error(excerpt(&buf[1..end]))),
        b'$' if &buf[1..end] == b"-1" => done(end + 2, Reply::Miss),
        b'_' => done(end + 2, Reply::Miss),
        b'$' => match number(&buf[1..end]) {
            Some(size) => {
                let total = end + 2 + size + 2;
                if buf.len() < total {
                    Parsed::Need(total)
                } else {
                    done(total, Reply::Ok)
                }
            }
            None => Parsed::Broken(format!("RESP length is not a number: {}", excerpt(&buf[..end]))),
        },
        _ => Parsed::Broken(format!("not a RESP reply to GET or SET: {}", excerpt(&buf[..end]))),
    }
}

fn parse_http(buf: &[u8]) -> Parsed {
    let Some(head_end) = buf.windows(4).position(|w| w == b"\r\n\r\n") else {
        if buf.len() > MAX_HEADER_BYTES {
            return Parsed::Broken(format!("HTTP header longer than {MAX_HEADER_BYTES} bytes"));
        }
        if buf.len() >= 5 && !buf.starts_with(b"HTTP/") {
            return Parsed::Broken(format!("not an HTTP reply: {}", excerpt(buf)));
        }
        return Parsed::Need(buf.len() + 1);
    };
    let head = &buf[..head_end];
    let status_line = &head[..find_crlf(head).unwrap_or(head.len())];
    let status = status_line.split(|&b| b == b' ').nth(1).and_then(number);
    let Some(status) = status.filter(|_| buf.starts_with(b"HTTP/1.")) else {
        return Parsed::Broken(format!("not an HTTP/1.x reply: {}", excerpt(status_line)));
    };
    let mut length = None;
    let mut chunked = false;
    let mut close = buf.starts_with(b"HTTP/1.0");
    for line in head.split(|&b| b == b'\n').skip(1) {
        let Some(colon) = line.iter().position(|&b| b == b':') else { continue };
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.eq_ignore_ascii_case(b"content-length") {
            length = number(value);
            if length.is_none() {
                return Parsed::Broken(format!("HTTP Content-Length: {}", excerpt(value)));
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            chunked = excerpt(value).to_ascii_lowercase().contains("chunked");
        } else if name.eq_ignore_ascii_case(b"connection") {
            let value = excerpt(value).to_ascii_lowercase();
            close = value.contains("close") || close && !value.contains("keep-alive");
        }
    }
    let body = head_end + 4;
    let total = if (100..200).contains(&status) {
        // Interim reply: skip it and look at the final one behind it.
        return match parse_http(&buf[body..]) {
            Parsed::Need(n) => Parsed::Need(body + n),
            Parsed::Done { bytes, reply, close } => Parsed::Done { bytes: body + bytes, reply, close },
            broken => broken,
        };
    } else if status == 204 || status == 304 {
        body
    } else if chunked {
        match chunks_end(buf, body) {
            Ok(total) => total,
            Err(p) => return p,
        }
    } else if let Some(length) = length {
        body + length
    } else {
        return Parsed::Broken("HTTP reply has neither Content-Length nor chunked encoding (keep-alive needs one)".into());
    };
    if buf.len() < total {
        return Parsed::Need(total);
    }
    let reply = match status {
        200..=399 => Reply::Ok,
        _ => Reply::Error(excerpt(status_line)),
    };
    Parsed::Done { bytes: total, reply, close }
}

fn chunks_end(buf: &[u8], mut at: usize) -> Result<usize, Parsed> {
    loop {
        let Some(line) = find_crlf(&buf[at..]) else { return Err(Parsed::Need(buf.len() + 1)) };
        let size_text = buf[at..at + line].split(|&b| b == b';').next().unwrap_or_default();
        let size = std::str::from_utf8(size_text)
            .ok()
            .and_then(|t| usize::from_str_radix(t.trim(), 16).ok())
            .ok_or_else(|| Parsed::Broken(format!("HTTP chunk size: {}", excerpt(&buf[at..at + line]))))?;
        at += line + 2;
        if size == 0 {
            // Trailers, then an empty line.
            loop {
                let Some(line) = find_crlf(&buf[at..]) else {
                    return Err(Parsed::Need(buf.len() + 1));
                };
                at += line + 2;
                if line == 0 {
                    return Ok(at);
                }
            }
        }
        at = at.saturating_add(size).saturating_add(2);
        if at > buf.len() {
            return Err(Parsed::Need(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol(kind: ProtocolKind) -> Protocol {
        Protocol::new(kind, 1, 10, 0.5, 3, "127.0.0.1:1", "/")
    }

    /// Fed byte by byte, a stream of pipelined replies comes out whole: nothing early, nothing lost.
    fn replies(kind: ProtocolKind, stream: &[u8]) -> Vec<Reply> {
        let p = protocol(kind);
        let mut buf = Vec::new();
        let mut out = Vec::new();
        for &b in stream {
            buf.push(b);
            loop {
                match p.parse(&buf) {
                    Parsed::Need(n) => {
                        assert!(n > buf.len(), "Need({n}) of {}", buf.len());
                        break;
                    }
                    Parsed::Done { bytes, reply, .. } => {
                        buf.drain(..bytes);
                        out.push(reply);
                    }
                    Parsed::Broken(why) => panic!("{why}"),
                }
            }
        }
        assert!(buf.is_empty());
        out
    }

    #[test]
    fn memcached_replies() {
        let stream = b"VALUE key:1 0 5\r\nEND\r\n\r\nEND\r\nEND\r\nSTORED\r\nSERVER_ERROR out of memory\r\n";
        let got = replies(ProtocolKind::Memcached, stream);
        // The first value holds "END\r\n" itself: lengths count, not line ends.
        assert_eq!(got[..3], [Reply::Ok, Reply::Miss, Reply::Ok]);
        assert_eq!(got[3], Reply::Error("SERVER_ERROR out of memory".into()));
        assert!(matches!(protocol(ProtocolKind::Memcached).parse(b"+OK\r\n"), Parsed::Broken(_)));
    }

    #[test]
    fn resp_replies() {
        let got = replies(ProtocolKind::Resp, b"$3\r\n\r\n+\r\n$-1\r\n+OK\r\n-ERR no\r\n$0\r\n\r\n");
        let want = [Reply::Ok, Reply::Miss, Reply::Ok, Reply::Error("ERR no".into()), Reply::Ok];
        assert_eq!(got, want);
        assert!(matches!(protocol(ProtocolKind::Resp).parse(b"STORED\r\n"), Parsed::Broken(_)));
    }

    #[test]
    fn http_replies() {
        let stream = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\r\n\r\nxHTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n\
            HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nTrailer: x\r\n\r\n\
            HTTP/1.1 204 No Content\r\n\r\n";
        let got = replies(ProtocolKind::Http, stream);
        let missing = Reply::Error("HTTP/1.1 404 Not Found".into());
        assert_eq!(got, [Reply::Ok, missing, Reply::Ok, Reply::Ok]);
        let p = protocol(ProtocolKind::Http);
        let closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        assert!(matches!(p.parse(closing), Parsed::Done { close: true, .. }));
        assert!(matches!(p.parse(b"HTTP/1.1 200 OK\r\n\r\n"), Parsed::Broken(_)));
        assert!(matches!(p.parse(b"SSH-2.0-x"), Parsed::Broken(_)));
    }

    /// What goes over the wire, byte by byte, also for numbers of more digits than most.
    #[test]
    fn requests_are_written_out() {
        let text = |p: &Protocol, set: bool, key: u64| {
            let mut out = Vec::new();
            if set {
                p.encode_set(key, &mut out);
            } else {
                p.encode_get(key, &mut out);
            }
            String::from_utf8(out).unwrap()
        };
        let (m, r) = (protocol(ProtocolKind::Memcached), protocol(ProtocolKind::Resp));
        for key in [0, 7, 0xdead_beef, 0xffff_ffff_ffff, 0x1_0000_0000_0000, u64::MAX] {
            let name = format!("key:{key:012x}");
            let n = name.len();
            assert_eq!(text(&m, false, key), format!("get {name}\r\n"));
            assert_eq!(text(&m, true, key), format!("set {name} 0 0 3\r\nabc\r\n"));
            assert_eq!(text(&r, false, key), format!("*2\r\n$3\r\nGET\r\n${n}\r\n{name}\r\n"));
            assert_eq!(text(&r, true, key), format!("*3\r\n$3\r\nSET\r\n${n}\r\n{name}\r\n$3\r\nabc\r\n"));
            let mut number = Vec::new();
            put_number(key, &mut number);
            assert_eq!(String::from_utf8(number).unwrap(), key.to_string());
        }
    }

    /// Requests are a function of the index, and the SET share is as asked.
    #[test]
    fn requests_follow_the_seed() {
        let p = protocol(ProtocolKind::Memcached);
        let mut sets = 0;
        for i in 0..2000 {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            p.encode(i, &mut a);
            p.encode(i, &mut b);
            assert_eq!(a, b);
            sets += u32::from(a.starts_with(b"set "));
        }
        assert!((900..1100).contains(&sets), "{sets}");
    }

    /// Each `{key}` of a path is the number of the request's key, below the key space; a path without one stays as it is.
    #[test]
    fn http_paths_carry_the_key() {
        let request = |p: &Protocol, i| {
            let mut out = Vec::new();
            p.encode(i, &mut out);
            String::from_utf8(out).unwrap()
        };
        let p = Protocol::new(ProtocolKind::Http, 7, 50, 0.0, 0, "h:1", "/search?q={key}&again={key}");
        let mut seen = std::collections::BTreeSet::new();
        for i in 0..1000 {
            let key = key_of(7, i, 50);
            assert!(request(&p, i).starts_with(&format!("GET /search?q={key}&again={key} HTTP/1.1\r\nHost: h:1\r\n")));
            seen.insert(key);
        }
        // 1000 draws of 50: a missing one has probability 50 x 0.98^1000 < 1e-7, and the seed is fixed.
        assert_eq!(seen.len(), 50);
        let plain = Protocol::new(ProtocolKind::Http, 7, 50, 0.0, 0, "h:1", "/");
        assert!(request(&plain, 1).starts_with("GET / HTTP/1.1\r\n") && request(&plain, 1).ends_with("\r\n\r\n"));
    }
}
