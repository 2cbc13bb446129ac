use super::datagram::tests::datagram;
use super::scrape::tests::{ok, serve, url};
use super::*;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

fn bind(path: &Path, mode: u32) -> Feed {
    Feed::bind(path, mode, &Mounts::read(&Root::default())).unwrap()
}

/// Until it holds.
fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// A datagram sent to the socket is in the window, others are counted by reason, and the socket is gone afterwards.
#[test]
fn the_socket_delivers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("feed.sock");
    // Left by a dead process.
    drop(UnixDatagram::bind(&path).unwrap());
    let mut feed = bind(&path, MODE);
    feed.expect(["m"].into_iter());
    let s = UnixDatagram::unbound().unwrap();
    for bytes in [&b"nonsense"[..], b"{}", &datagram("stranger", &[5], ""), &datagram("m", &[5; 200], "")] {
        s.send_to(bytes, &path).unwrap();
    }
    wait("nothing arrived", || feed.with(|w| w.interval("m", 0)).is_some());
    let now_ms = feed.now_ms();
    assert_eq!(feed.read("m", 0, now_ms, 10.0).feed, FeedState::Fresh);
    let refused: Vec<(&str, u64)> = feed.refused().into_iter().filter(|(_, n)| *n > 0).collect();
    assert_eq!(refused, [("format", 2), ("service", 1)]);
    feed.expect([].into_iter());
    assert!(feed.with(|w| w.interval("m", 0)).is_none());
    drop(feed);
    assert!(!path.exists());
}

/// Windows that their sender holds up are waited for, as long as one likes; those of a sender that speaks rarely, or never did, are not.
#[test]
fn late_windows_are_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("feed.sock");
    let mut feed = bind(&path, MODE);
    feed.expect(["m", "rare", "silent"].into_iter());
    let s = UnixDatagram::unbound().unwrap();
    let send = |service: &str, window_ms: u64| {
        let text = String::from_utf8(datagram(service, &[5; 20], "")).unwrap();
        s.send_to(text.replace("\"window_ms\":100", &format!("\"window_ms\":{window_ms}")).as_bytes(), &path).unwrap();
    };
    (0..4).for_each(|_| send("m", 100));
    send("rare", 1000);
    wait("nothing arrived", || feed.with(|w| w.newer("m", 0).len() == 4 && w.newer("rare", 0).len() == 1));
    let found =
        |service: &str, from_ms, time_ms, patience_ms| feed.newer_of(service, from_ms, time_ms, 100, patience_ms).map(|new| new.len());
    assert_eq!((found("m", 0, 400, 60_000), found("m", 0, 1000, 0)), (Some(4), Some(4)));
    // Also where nothing of it is new.
    let rare_ms = feed.with(|w| w.newer("rare", 0)[0].arrived_ms);
    assert_eq!((found("rare", 0, 2000, 60_000), found("rare", rare_ms, 2000, 60_000)), (Some(1), Some(0)));
    assert_eq!(found("silent", 0, 1000, 60_000), None);
    std::thread::scope(|scope| {
        let late = scope.spawn(|| found("m", 0, 1000, 60_000));
        (0..6).for_each(|_| send("m", 100));
        assert_eq!(late.join().unwrap(), Some(10));
    });
}

/// What is no socket is nobody's to take away: it is named, with the remedy, and stays.
#[test]
fn what_is_no_socket_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (victim, path) = (dir.path().join("victim"), dir.path().join("feed.sock"));
    std::fs::write(&victim, "precious").unwrap();
    for what in ["a plain file", "a link", "a folder"] {
        match what {
            "a link" => std::os::unix::fs::symlink(&victim, &path).unwrap(),
            "a folder" => std::fs::create_dir(&path).unwrap(),
            _ => std::fs::write(&path, "precious").unwrap(),
        }
        let said = Feed::bind(&path, MODE, &Mounts::read(&Root::default())).unwrap_err().to_string();
        assert!(said.contains("feed.sock") && said.contains(&format!("{what} is there and no socket. Remove it")), "{said}");
        let there = std::fs::symlink_metadata(&path).unwrap();
        if there.is_dir() { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) }.unwrap();
    }
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
}

/// Only its owner and its group may write to the socket, whatever the umask; others where that was asked for.
#[test]
fn the_socket_is_not_for_everybody() {
    let dir = tempfile::tempdir().unwrap();
    for mode in [MODE, 0o600, 0o666] {
        let path = dir.path().join(format!("{mode:o}.sock"));
        let _feed = bind(&path, mode);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
    }
}

/// With the feed go the sockets of single services, and their folder.
#[test]
fn nothing_is_left_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut feed = bind(&dir.path().join("feed.sock"), MODE);
    let own = feed.bind_own("m", MODE, None).unwrap();
    feed.expect(["m"].into_iter());
    UnixDatagram::unbound().unwrap().send_to(&datagram("m", &[5; 10], ""), &own).unwrap();
    wait("nothing arrives", || feed.taken().get("m") == Some(&1));
    drop(feed);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A flood is held back, not kept: what its sender got rid of was taken or refused, and the feed goes on.
#[test]
fn a_flood_is_survived() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("feed.sock");
    let mut feed = bind(&path, MODE);
    feed.expect(["m"].into_iter());
    let s = UnixDatagram::unbound().unwrap();
    s.set_nonblocking(true).unwrap();
    let mut sent = 0;
    // What is beyond its share is not read, however long a busy machine takes to get there.
    wait("a flood is read whole", || {
        sent += (0..5000).filter(|_| s.send_to(b"x", &path).is_ok()).count() as u64;
        feed.refused()["rate"] > 0
    });
    wait("the flood was not taken", || feed.refused()["format"] + feed.refused()["rate"] == sent);
    s.set_nonblocking(false).unwrap();
    // The flood was this process: it has its share again after a second.
    wait("nothing arrives after a flood", || {
        s.send_to(&datagram("m", &[5; 200], ""), &path).unwrap();
        feed.with(|w| w.interval("m", 0)).is_some()
    });
}

/// In calm times datagrams wait for a decision, which takes them with the time at which they came; where more wait than it has time for,
/// the thread comes back.
#[test]
fn a_decision_takes_what_waits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("feed.sock");
    const HOUR_US: u64 = 3_600_000_000;
    let mut feed = Feed::bind_with(&path, MODE, &Mounts::read(&Root::default()), Calm::new(0, HOUR_US, HOUR_US)).unwrap();
    feed.leave_to_decisions();
    feed.expect(["m"].into_iter());
    let s = UnixDatagram::unbound().unwrap();
    let send = |n: u64| (0..n).for_each(|_| assert!(s.send_to(&datagram("m", &[5; 10], ""), &path).is_ok()));
    let heard = |feed: &Feed| feed.taken().values().sum::<u64>() + feed.refused().values().sum::<u64>();
    if locked(&feed.shared.lines)[0].socket.depth.is_none_or(|d| d < 4096) {
        // Never calm: the kernel would not hold the datagrams.
        feed.take_waiting(0);
        assert!(!feed.shared.calm.lasts(socket::now_us()));
        return;
    }
    let is_calm = |feed: &Feed| feed.shared.calm.lasts(socket::now_us());
    // The thread naps, and stays away until this is dropped.
    let napping = || loop {
        feed.take_waiting(0);
        // Taken one by one: a second that comes at once is no calm.
        let before = heard(&feed);
        send(1);
        while !is_calm(&feed) && heard(&feed) == before {}
        match feed.intake.as_ref().unwrap().try_lock() {
            Ok(intake) if is_calm(&feed) => return intake,
            _ => {}
        }
    };
    let mut intake = napping();
    // What waited from before. A slow machine takes less at once.
    while heard(&feed) > 0 && {
        let before = heard(&feed);
        intake.take_waiting(&*feed.shared, 0);
        heard(&feed) > before
    } {}
    let before = heard(&feed);
    send(2);
    assert_eq!(heard(&feed), before);
    let since_ms = feed.now_ms() + 5000;
    while heard(&feed) < before + 2 {
        intake.take_waiting(&*feed.shared, since_ms);
    }
    drop(intake);
    // Nothing is before the last decision, which has read all up to then.
    assert!(feed.with(|w| w.spoken_ms("m", since_ms)).is_some_and(|(longest_ms, spoken_ms)| spoken_ms == 2 * longest_ms));
    // More than a decision takes, in datagrams and in bytes, is for the thread.
    let hand_over = |long: &[u8], times: u64| {
        let mut intake = napping();
        (0..times).for_each(|_| assert!(s.send_to(long, &path).is_ok()));
        assert!(!intake.take_waiting(&*feed.shared, since_ms));
    };
    hand_over(&datagram("m", &[5; 10], ""), 100);
    let mut long = datagram("m", &[5; 10], "");
    long.resize(70_000, b' ');
    hand_over(&long, 1);
}

/// The end of a sender ends calm at once: its number may be another's a moment later.
#[test]
fn the_end_of_a_sender_ends_calm() {
    let shared = Shared { calm: Calm::new(0, u64::MAX, u64::MAX), ..Shared::new(Rules::default(), vec![]) };
    shared.calm.want();
    let now_us = socket::now_us();
    assert!(shared.calm.may_begin(calm::Seen { unsteady_us: 0, heard_us: now_us }, now_us) && shared.calm.lasts(now_us));
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let process = crate::procfs::Process::find(&Root::default(), child.id()).unwrap();
    child.kill().unwrap();
    let (_wake, woken) = UnixStream::pair().unwrap();
    // An older kernel has no file for it.
    if let Some(end) = process.end() {
        intake::nap(&shared, &woken, &[end]);
        assert!(!shared.calm.lasts(now_us));
    }
    child.wait().unwrap();
}

/// Open files that come along with a datagram are not taken over, and stop nobody: the datagrams behind it are heard.
#[test]
fn open_files_are_not_taken() {
    use nix::sys::socket::{sendmsg, ControlMessage, MsgFlags, UnixAddr};
    use std::io::{IoSlice, Read};
    use std::os::fd::AsRawFd;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("feed.sock");
    let mut feed = bind(&path, MODE);
    feed.expect(["m"].into_iter());
    let s = UnixDatagram::unbound().unwrap();
    let to = UnixAddr::new(&path).unwrap();
    let (mut kept, given) = std::os::unix::net::UnixStream::pair().unwrap();
    let text = datagram("m", &[5; 200], "");
    for files in [vec![given.as_raw_fd()], vec![given.as_raw_fd(); 200]] {
        let along = [ControlMessage::ScmRights(&files)];
        sendmsg(s.as_raw_fd(), &[IoSlice::new(&text)], &along, MsgFlags::empty(), Some(&to)).unwrap();
    }
    s.send_to(&text, &path).unwrap();
    wait("nothing arrives behind it", || feed.taken().get("m") == Some(&1));
    assert_eq!(feed.refused()["format"], 2);
    // All copies of the file are closed: its other side ends.
    drop(given);
    assert_eq!(kept.read(&mut [0]).unwrap(), 0);
}

/// A service that never says a word is warned of once, when it has had its time; one that came anew has its time again.
#[test]
fn one_that_was_never_heard_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut feed = bind(&dir.path().join("feed.sock"), MODE);
    let silent = FeedState::Unknown { since_ms: 1000, heard: false };
    let at = |feed: &mut Feed, now_ms| feed.overdue("m", silent, now_ms);
    assert_eq!([1000, 5999, 6000, 6100, 99_000].map(|t| at(&mut feed, t)), [None, None, Some(5000), None, None]);
    // One that has been heard is the other warning's; it may be begun anew.
    assert_eq!(feed.overdue("m", FeedState::Unknown { since_ms: 1000, heard: true }, 99_000), None);
    assert_eq!(at(&mut feed, 99_000), Some(98_000));
    feed.expect(["m"].into_iter());
    feed.expect([].into_iter());
    assert_eq!(at(&mut feed, 99_000), Some(98_000));
}

/// A service's own histogram feeds the same windows; datagrams in its name are refused; a scrape that fails leaves silence.
#[test]
fn a_service_is_scraped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("feed.sock");
    let mut feed = bind(&path, MODE);
    let page = |n: u64| ok(&format!("h_bucket{{le=\"0.01\"}} {n}\nh_bucket{{le=\"0.02\"}} {n}\nh_count {n}\nh_sum {}\n", n as f64 * 0.005));
    let (port, asked) = serve(vec![page(1000), page(1500), b"HTTP/1.1 500 x\r\n\r\n".to_vec()]);
    let wanted = Wanted { histogram: "h".into(), labels: BTreeMap::new(), unit: None };
    feed.scrape("web", Some(Scrape { urls: vec![url(port)], wanted, interval_ms: 1 }));
    feed.expect(["web"].into_iter());
    wait("no scrape", || {
        let now_ms = feed.now_ms();
        feed.read("web", 0, now_ms, 10.0).interval.is_some()
    });
    let now_ms = feed.now_ms();
    let r = feed.read("web", 0, now_ms, 10.0);
    let w = r.window.unwrap();
    // 500 requests within 10 ms, of 5 ms each; the target is where the bucket ends.
    assert_eq!((r.feed, w.count, w.verdict, w.p99_high_ms), (FeedState::Fresh, 500, surefoot_server::Verdict::Valid, Some(10.0)));
    assert!((w.mean_ms - 5.0).abs() < 1e-9 && (w.p99_ms - 9.9).abs() < 1e-9, "{w:?}");
    let later = |feed: &mut Feed, ms| feed.read("web", 0, now_ms + ms, 10.0);
    assert!(matches!(later(&mut feed, 5000).feed, FeedState::Unknown { .. }));
    assert!(later(&mut feed, 5000).window.is_none());

    let s = UnixDatagram::unbound().unwrap();
    s.send_to(&datagram("web", &[5], ""), &path).unwrap();
    wait("not refused", || feed.refused()["scraped"] == 1);

    // Nobody asks any more once it is no longer expected.
    feed.expect([].into_iter());
    drop(feed);
    while asked.recv_timeout(Duration::from_secs(1)).is_ok() {}
}

/// CPU time of this thread: other work on the machine does not count.
fn cpu_us() -> f64 {
    let t = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    t.tv_sec() as f64 * 1e6 + t.tv_nsec() as f64 * 1e-3
}

/// What one datagram and one look at six services cost: `cargo test --release -p surefoot-linux feed_cost -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement, not a check"]
fn feed_cost() {
    for rps in [1000usize, 10_000] {
        let values: Vec<u64> = (0..rps / 10).map(|i| 1 + (i as u64 * 7919) % 400).collect();
        let bytes = datagram("s0", &values, "");
        let n = 2000;
        let begin = cpu_us();
        let decoded: Vec<Interval> = (0..n).map(|_| decode(&bytes, 1).unwrap()).collect();
        let decode_us = (cpu_us() - begin) / f64::from(n);
        let names: Vec<String> = (0..6).map(|i| format!("s{i}")).collect();
        let mut windows = Windows::default();
        windows.expect(names.iter().map(String::as_str), 0);
        for t in 1..=100 {
            for s in &names {
                windows.push(Interval { service: s.clone(), arrived_ms: 100 * t, ..decoded[0].clone() }, None).unwrap();
            }
        }
        let begin = cpu_us();
        for _ in 0..n {
            for s in &names {
                assert!(windows.read(s, 9900, 10_000, 10.0).window.is_some());
            }
        }
        let read_us = (cpu_us() - begin) / f64::from(n);
        let cells = decoded[0].counts.cells.len();
        println!("{rps} requests/s: {} bytes, {cells} cells: decode {decode_us:.1} us; read of six services {read_us:.1} us", bytes.len());
    }
    // The most that one service can make a look cost: as many cells as are kept of it, all of the last second, no two alike.
    let cells: Box<[Cell]> = (0..1u64 << 18).map(|n| Cell { ns: n * 1_000_003, count: 1 }).collect();
    let counts = Counts { total: cells.len() as u64, cells, sum_ns: 1.0 };
    let mut windows = Windows::default();
    windows.expect(["s"].into_iter(), 0);
    windows.push(Interval { service: "s".into(), window_ms: 100, arrived_ms: 9950, counts, ..Interval::default() }, None).unwrap();
    let begin = cpu_us();
    (0..100).for_each(|_| assert!(windows.read("s", 9900, 10_000, 10.0).window.is_some()));
    println!("the most that is kept of one: read {:.1} us", (cpu_us() - begin) / 100.0);
}
