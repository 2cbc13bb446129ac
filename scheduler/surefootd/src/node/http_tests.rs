use super::*;
use std::net::Ipv4Addr;
use std::sync::atomic::AtomicUsize;

/// A server with one page, and how often that was made.
fn start(body: &'static str) -> (u16, Arc<AtomicUsize>, Arc<Dropped>) {
    let (made, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(Dropped::default()));
    let make = {
        let made = made.clone();
        move || {
            made.fetch_add(1, Ordering::Relaxed);
            (OK, body.to_string())
        }
    };
    let pages = vec![Page { path: "/page", kind: TEXT, make: Box::new(make) }];
    (serve((Ipv4Addr::LOCALHOST, 0).into(), pages, dropped.clone()).unwrap().port(), made, dropped)
}

fn connect(port: u16) -> TcpStream {
    let s = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    s.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    s
}

/// All that comes back for these bytes.
fn ask(port: u16, bytes: &[u8]) -> String {
    let mut s = connect(port);
    s.write_all(bytes).unwrap();
    let mut all = vec![];
    s.read_to_end(&mut all).unwrap();
    String::from_utf8(all).unwrap()
}

const GET: &[u8] = b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A request for a page is answered with it, whatever stands behind the request; anything else by a status that says what is wrong.
#[test]
fn requests_are_answered_by_what_they_are() {
    let (port, ..) = start("body\n");
    let says = |bytes: &[u8], status: &str, end: &str| {
        let got = ask(port, bytes);
        assert!(got.starts_with(&format!("HTTP/1.1 {status}\r\n")) && got.ends_with(end), "{got:?}");
    };
    says(GET, "200 OK", "\r\n\r\nbody\n");
    says(b"GET /page?x=1 HTTP/1.0\r\n\r\n", "200 OK", "\r\n\r\nbody\n");
    says(&[GET, b"garbage \xff\x00 behind it\r\n\r\n"].concat(), "200 OK", "body\n");
    says(&[GET, GET].concat(), "200 OK", "body\n");
    says(b"GET / HTTP/1.1\r\n\r\n", "404 Not Found", "see /page\n");
    says(b"POST /page HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "405 Method Not Allowed", "GET only\n");
    says(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400 Bad Request", "no HTTP request\n");
    says(b"GET /pa\x1bge HTTP/1.1\r\n\r\n", "400 Bad Request", "no HTTP request\n");
    says(
        &[b"GET /page HTTP/1.1\r\n".to_vec(), b"a: b\r\n".repeat(65), b"\r\n".to_vec()].concat(),
        "431 Request Header Fields Too Large",
        "64 headers\n",
    );
    says(
        &[b"GET /page HTTP/1.1\r\na: ".to_vec(), vec![b'x'; MOST_REQUEST_BYTES]].concat(),
        "431 Request Header Fields Too Large",
        "8 KiB\n",
    );
    // Half-closed within the request.
    let mut s = connect(port);
    s.write_all(b"GET /page HTTP/1.1\r\n").unwrap();
    s.shutdown(Shutdown::Write).unwrap();
    let mut got = String::new();
    s.read_to_string(&mut got).unwrap();
    assert!(got.starts_with("HTTP/1.1 400 "), "{got:?}");
}

/// A request byte by byte is one like any other, as long as it is whole in time.
#[test]
fn a_request_may_come_in_pieces() {
    let (port, ..) = start("body\n");
    let mut s = connect(port);
    s.set_nodelay(true).unwrap();
    for b in GET {
        s.write_all(&[*b]).unwrap();
    }
    let mut got = String::new();
    s.read_to_string(&mut got).unwrap();
    assert!(got.ends_with("body\n"), "{got:?}");
}

/// However many clients say nothing, never end what they say, never read, or send without an end: who asks is answered, each time.
#[test]
fn nobody_silences_the_pages() {
    // More than all buffers on the way hold, so that who never reads keeps its answer from being sent.
    let big: &'static str = "x".repeat(8 << 20).leak();
    let (port, _, dropped) = start(big);
    let mut held: Vec<TcpStream> = vec![];
    for i in 0..200 {
        let mut s = connect(port);
        match i % 4 {
            0 => {}
            1 => s.write_all(b"GET /page HTT").unwrap(),
            2 => s.write_all(GET).unwrap(),
            _ => {
                s.set_nonblocking(true).unwrap();
                let _ = s.write(&[b'x'; 100_000]);
            }
        }
        held.push(s);
        if i % 20 == 19 {
            assert!(ask(port, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        }
    }
    assert!(ask(port, GET).ends_with("xxxx"), "all of it");
    let [_, too_many] = dropped.counts();
    // 200 and 11 came, 64 have room.
    assert!(too_many > 80, "{too_many}");
}

/// Who has not asked within the time is cut off, byte by byte or not, and counted.
#[test]
fn a_request_has_an_end() {
    let (port, _, dropped) = start("body\n");
    let begin = Instant::now();
    let (mut idle, mut slow) = (connect(port), connect(port));
    idle.set_nonblocking(true).unwrap();
    slow.set_nonblocking(true).unwrap();
    let mut gone = [false; 2];
    // Each byte of the slow one comes in time for a timeout that counts from the last.
    while gone != [true, true] {
        assert!(begin.elapsed() < Duration::from_secs(60), "{gone:?}");
        let written = slow.write(b"G");
        gone[1] |= written.is_err_and(|e| e.kind() != ErrorKind::WouldBlock);
        gone[0] |= !matches!(idle.read(&mut [0; 10]), Err(e) if e.kind() == ErrorKind::WouldBlock);
        std::thread::park_timeout(Duration::from_millis(200));
    }
    assert!(begin.elapsed() >= WHOLE, "the whole of its time was given");
    assert_eq!(dropped.counts()[SLOW], 2);
}

/// A page is made once in a while, however often it is asked for.
#[test]
fn pages_are_made_once_in_a_while() {
    let (port, made, _) = start("body\n");
    let begin = Instant::now();
    (0..300).for_each(|_| assert!(ask(port, GET).ends_with("body\n")));
    let most = begin.elapsed().as_millis() / FRESH.as_millis() + 1;
    assert!(made.load(Ordering::Relaxed) as u128 <= most, "{made:?} of {most}");
}
