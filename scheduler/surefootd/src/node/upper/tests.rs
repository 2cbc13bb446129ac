use super::conditions::*;
use super::*;
use crate::node::follower::tests::{action, seen};
use surefoot_server::{ActionKind, FeedState, HoldsIf, Question, Report};

fn told(reports: Vec<Report>) -> Plan {
    Plan { reports, ..Plan::default() }
}

fn migrate(service: &str, why: &str) -> Report {
    Report::Migrate { service: service.into(), why: why.into() }
}

fn slowdown(qos: f64) -> Plan {
    let reports = vec![Report::ExpectedSlowdown { service: "a".into(), qos }];
    Plan { reports, ..action("a", ActionKind::Deprive, HoldsIf::NotJudged) }
}

/// What happened, in a word each.
fn words(events: &[Event]) -> Vec<(&'static str, &str, Option<What>)> {
    events.iter().map(|e| (e.event.as_str(), e.service.as_str(), e.of)).collect()
}

/// A tick at which `a` has this p99 (its target is 10 ms).
fn tick(c: &mut Conditions, t_ms: u64, p99_ms: f64, plan: &Plan) -> Vec<Event> {
    c.tick(t_ms, &seen(t_ms, &[("a", p99_ms)]), plan, false, || None)
}

/// However often it is reported, a condition is told when it begins and when it has ended: 3 s after the service is well.
#[test]
fn a_condition_is_told_at_its_beginning_and_at_its_end() {
    let mut c = Conditions::default();
    let mut all = vec![];
    // The reason's numbers move, its words do not.
    for t in (100..2000).step_by(100) {
        all.extend(tick(&mut c, t, 40.0, &told(vec![migrate("a", &format!("QoS 0.{t}: nothing is free"))])));
    }
    assert_eq!(words(&all), [("migrate", "a", None)]);
    assert_eq!((all[0].seq, all[0].t_ms, all[0].since_ms, all[0].why.as_str()), (1, 100, 100, "QoS 0.100: nothing is free"));
    assert_eq!(c.in_force(), [&all[0]]);
    // Well for 2.9 s, missed once, then well.
    for t in (2000..4900).step_by(100) {
        assert_eq!(tick(&mut c, t, 5.0, &told(vec![])), []);
    }
    assert_eq!(tick(&mut c, 4900, 11.0, &told(vec![])), []);
    let mut last = vec![];
    for t in (5000..9000).step_by(100) {
        last.extend(tick(&mut c, t, 5.0, &told(vec![])));
    }
    assert_eq!(words(&last), [("resolved", "a", Some(What::Migrate))]);
    assert_eq!((last[0].seq, last[0].t_ms, last[0].since_ms), (2, 8000, 100));
    assert!(last[0].why.contains("target for 3 s") && c.in_force().is_empty(), "{last:?}");
    // Whoever says it again begins anew.
    assert_eq!(tick(&mut c, 9000, 40.0, &told(vec![migrate("a", "again")]))[0].since_ms, 9000);
}

/// Other words are told, a second later at the earliest, and then the last of them.
#[test]
fn other_words_are_told_once_a_second() {
    let mut c = Conditions::default();
    let mut all = vec![];
    for (t, why) in [(100, "this"), (200, "that"), (300, "and that"), (400, "in the end this"), (1000, "")] {
        let reports = if why.is_empty() { vec![] } else { vec![migrate("a", why)] };
        all.extend(tick(&mut c, t, 40.0, &told(reports)));
    }
    assert_eq!(all.len(), 1);
    let changed = tick(&mut c, 1100, 40.0, &told(vec![]));
    assert_eq!((changed.len(), changed[0].why.as_str(), changed[0].seq), (1, "in the end this", 2));
    assert_eq!((changed[0].t_ms, changed[0].since_ms), (1100, 100));
    assert_eq!(c.in_force(), [&changed[0]]);
    assert_eq!(tick(&mut c, 3000, 40.0, &told(vec![])), []);
}

/// A predicted QoS is told with what was taken, told again where it moves by a tenth, and over where the service stays well; of a plan
/// that was not put in force nothing is expected.
#[test]
fn an_expected_slowdown_follows_its_prediction() {
    let mut c = Conditions::default();
    assert_eq!(c.tick(0, &seen(0, &[("a", 5.0)]), &slowdown(0.9), true, || None), []);
    let first = tick(&mut c, 100, 5.0, &slowdown(0.9));
    assert_eq!((words(&first), first[0].qos, first[0].why.as_str()), (vec![("expected-slowdown", "a", None)], Some(0.9), "w"));
    assert_eq!(tick(&mut c, 2000, 5.0, &slowdown(0.85)), []);
    let second = tick(&mut c, 2100, 5.0, &slowdown(0.75));
    assert_eq!((second[0].qos, second[0].since_ms), (Some(0.75), 100));
    let mut over = vec![];
    for t in (2200..6000).step_by(100) {
        over.extend(tick(&mut c, t, 9.0, &told(vec![])));
    }
    assert_eq!((words(&over), over[0].t_ms), (vec![("resolved", "a", Some(What::ExpectedSlowdown))], 5200));
}

/// A service that leaves takes its conditions along; latency that is unknown ends nothing but, once known, what was withheld for it.
#[test]
fn leaving_and_hearing_end_conditions() {
    let mut c = Conditions::default();
    let withheld = Report::Withheld { service: "a".into(), why: "unknown".into() };
    let silent = |t: u64| {
        let mut o = seen(t, &[("a", 5.0)]);
        let s = &mut o.services[0];
        (s.feed, s.window, s.interval) = (FeedState::Unknown { since_ms: 0, heard: true }, None, None);
        o
    };
    let begun = c.tick(0, &silent(0), &told(vec![withheld, migrate("a", "x")]), false, || Some(7));
    assert_eq!(words(&begun), [("withheld", "a", None), ("migrate", "a", None)]);
    assert_eq!(begun[0].at_ms, Some(7));
    for t in (100..10_000).step_by(100) {
        assert_eq!(c.tick(t, &silent(t), &told(vec![]), false, || None), []);
    }
    assert_eq!(words(&tick(&mut c, 10_000, 5.0, &told(vec![]))), [("resolved", "a", Some(What::Withheld))]);
    let left = c.tick(10_100, &seen(10_100, &[]), &told(vec![]), false, || None);
    assert_eq!((words(&left), left[0].why.as_str()), (vec![("resolved", "a", Some(What::Migrate))], "it has left"));
    assert_eq!(c.in_force(), Vec::<&Event>::new());
}

/// What is said of no service in particular holds while it is said, and 3 s more.
#[test]
fn what_concerns_everybody_ends_when_it_is_not_said() {
    let mut c = Conditions::default();
    let all = || told(vec![Report::CannotPlace { service: Report::ALL.into(), why: "no layout".into() }]);
    assert_eq!(words(&tick(&mut c, 100, 5.0, &all())), [("cannot-place", "all", None)]);
    assert_eq!(tick(&mut c, 2000, 5.0, &all()), []);
    assert_eq!(tick(&mut c, 4900, 5.0, &told(vec![])), []);
    assert_eq!(words(&tick(&mut c, 5000, 5.0, &told(vec![]))), [("resolved", "all", Some(What::CannotPlace))]);
}

/// A line says what the page says: fields that do not apply are left out, and what is written is what is read.
#[test]
fn lines_are_as_documented() {
    let mut c = Conditions::default();
    let e = tick(&mut c, 100, 5.0, &slowdown(0.9)).remove(0);
    let text = serde_json::to_string(&e).unwrap();
    assert_eq!(text, r#"{"event":"expected-slowdown","seq":1,"t_ms":100,"at_ms":null,"service":"a","since_ms":100,"qos":0.9,"why":"w"}"#);
    assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), e);
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/upper-scheduler.md")).unwrap();
    let (mut hellos, mut events, mut asked) = (0, 0, 0);
    for line in page.lines().map(str::trim).filter(|l| l.starts_with("{\"event\":")) {
        match line.starts_with("{\"event\":\"hello\"") {
            true => hellos += usize::from(serde_json::from_str::<socket::HelloLine>(line).unwrap().schema == SCHEMA),
            false if line.starts_with("{\"event\":\"refused\"") => {}
            false if line.starts_with("{\"event\":\"question\"") => {
                asked += usize::from(serde_json::from_str::<questions::QuestionLine>(line).unwrap().id > 0);
            }
            false => events += usize::from(serde_json::from_str::<Event>(line).unwrap().seq > 0),
        }
    }
    assert!(hellos == 1 && events >= 4 && asked == 1, "{hellos} {events} {asked}");
    assert!(questions::ENDED.iter().all(|w| page.contains(&format!("`{w}`"))));
    assert!(What::ALL.iter().all(|w| page.contains(&format!("`{}`", w.as_str()))));
}

/// The metrics count events by kind, what is in force, and clients; without a socket there are no clients to count.
#[test]
fn the_metrics_count_events_and_clients() {
    let dir = tempfile::tempdir().unwrap();
    for on in [true, false] {
        let mut config = NodeConfig::none();
        config.upper.on = on;
        let mut upper = Upper::open(&config, Some(dir.path()), Hello::default()).unwrap();
        assert_eq!(dir.path().join(SOCKET).exists(), on);
        let _client = on.then(|| std::os::unix::net::UnixStream::connect(dir.path().join(SOCKET)).unwrap());
        upper.tick(100, &seen(100, &[("a", 40.0)]), &told(vec![migrate("a", "x")]), false, || None);
        upper.tick(200, &seen(200, &[]), &slowdown(0.9), false, || None);
        let mut metrics = crate::node::metrics::Metrics::default();
        metrics.upper(upper.counts());
        let text = metrics.text();
        let has = |line: &str| text.lines().any(|l| l == line);
        for (event, n) in [("cannot-place", 0), ("migrate", 1), ("resolved", 1), ("expected-slowdown", 1)] {
            assert!(has(&format!("surefoot_upper_events_total{{event=\"{event}\"}} {n}")), "{text}");
        }
        assert!(
            has("surefoot_upper_in_force{event=\"migrate\"} 0") && has("surefoot_upper_in_force{event=\"expected-slowdown\"} 1"),
            "{text}"
        );
        assert_eq!(has("surefoot_upper_clients 1"), on, "{text}");
        assert_eq!(has("surefoot_upper_clients_dropped_total{reason=\"slow\"} 0"), on, "{text}");
    }
}

/// A client's word reaches the policy at its next decision; what is no answer is passed over, and lines may come in pieces.
#[test]
fn a_client_answers_questions() {
    use std::io::{BufRead, BufReader, Write};
    let dir = tempfile::tempdir().unwrap();
    let mut config = NodeConfig::none();
    config.upper.ask = Some(crate::stage::config::AskConfig { answer_ms: 300, unanswered: false });
    let mut upper = Upper::open(&config, Some(dir.path()), Hello::default()).unwrap();
    let mut client = std::os::unix::net::UnixStream::connect(dir.path().join(SOCKET)).unwrap();
    let mut hears = BufReader::new(client.try_clone().unwrap());
    let ask = |with: &str| {
        let question = Question { service: "a".into(), with: with.into(), qos: 1.3, why: "w".into() };
        Plan { questions: vec![question], ..Plan::default() }
    };
    let word = |with: &str, allowed: bool| Word { service: "a".into(), with: with.into(), allowed };
    let now = |upper: &mut Upper, t_ms: u64, plan: &Plan| {
        let words = upper.words(t_ms).unwrap();
        upper.tick(t_ms, &seen(t_ms, &[]), plan, false, || None);
        words
    };
    assert_eq!(now(&mut upper, 100, &Plan::default()), []);
    assert_eq!(now(&mut upper, 200, &ask("b")), []);
    let mut lines = String::new();
    hears.read_line(&mut lines).unwrap();
    lines.clear();
    hears.read_line(&mut lines).unwrap();
    let line: questions::QuestionLine = serde_json::from_str(&lines).unwrap();
    assert_eq!((line.seq, line.id, line.with.as_str(), line.answer_ms, line.unanswered), (1, 1, "b", 300, false));
    client.write_all(b"hello?\n{\"answer\":1,").unwrap();
    assert_eq!(now(&mut upper, 300, &ask("b")), []);
    client.write_all(b"\"allow\":true}\n").unwrap();
    assert_eq!(now(&mut upper, 400, &ask("c")), [word("b", true)]);
    // Nobody answers the second one. An endless line is none, and the one after it counts.
    client.write_all(&[b'x'; 9000]).unwrap();
    for t_ms in [500, 600] {
        assert_eq!(now(&mut upper, t_ms, &ask("c")), [word("b", true)]);
    }
    assert_eq!(now(&mut upper, 700, &ask("d")), [word("b", true), word("c", false)]);
    client.write_all(b"\n{\"answer\":3,\"allow\":true}\n").unwrap();
    assert_eq!(now(&mut upper, 800, &Plan::default())[2], word("d", true));
    assert_eq!(upper.counts().questions, Some([2, 0, 1]));
    let mut metrics = crate::node::metrics::Metrics::default();
    metrics.upper(upper.counts());
    assert!(metrics.text().contains("surefoot_upper_questions_total{word=\"allowed\"} 2"));

    // Where nothing is asked nothing is heard, and a policy is told so.
    let mut silent = Upper::open(&NodeConfig::none(), None, Hello::default()).unwrap();
    assert_eq!((silent.words(100), silent.counts().questions), (None, None));
    let without = Upper::open(&config, None, Hello::default()).map(|_| ()).unwrap_err().to_string();
    assert!(without.contains("upper.ask: this server has no socket to ask on"), "{without}");
}
