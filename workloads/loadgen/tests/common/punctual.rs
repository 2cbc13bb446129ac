//! Tests against real time on a machine that may not give us any. A measurement that the client spoilt is repeated; where none
//! succeeds, only a control may excuse it: a thread that sends nothing, beside nothing of ours, and is woken late all the same.
//! What could not be shown is said on standard error, which the test harness does not hold back.

use std::io::Write;
use std::time::{Duration, Instant};

/// Measurements before giving up.
pub const TRIES: u32 = 12;
/// A host that wakes a sleeping thread later than this, once in a hundred times, cannot pace requests: the strictest limit of the load
/// generator's verdict (`Rules::bias_floor_ms`), by which measurements are called spoilt.
const LATE: Duration = Duration::from_micros(200);
/// Controls that must find the host late before spoilt measurements are put down to it and given up.
const LATE_CONTROLS: u32 = 5;

/// How late a thread wakes that asks to be woken every millisecond for a second: the 99th percentile.
fn control() -> Duration {
    let start = Instant::now();
    let mut late: Vec<Duration> = (1..=1000)
        .map(|i| {
            let due = start + Duration::from_millis(i);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            Instant::now().saturating_duration_since(due)
        })
        .collect();
    late.sort_unstable();
    late[989]
}

/// The first result of `measure` that is not spoilt (`Ok`); `what` names it in the notes. None if the host cannot keep time, which
/// standard error says.
///
/// # Panics
/// If [`TRIES`] results in a row are spoilt and the controls between them found less than [`LATE_CONTROLS`] times that the host is late.
pub fn first_punctual<T>(what: &str, measure: impl FnMut() -> Result<T, String>) -> Option<T> {
    let (result, note) = decide(measure, control);
    if let Some(note) = note {
        // Not eprintln: the test harness would hold it back.
        let _ = writeln!(std::io::stderr(), "NOT SHOWN on this machine: {what}. {note}");
    }
    result
}

fn decide<T>(mut measure: impl FnMut() -> Result<T, String>, mut control: impl FnMut() -> Duration) -> (Option<T>, Option<String>) {
    let (mut late, mut worst, mut why) = (0, Duration::ZERO, String::new());
    for attempt in 1..=TRIES {
        match measure() {
            Ok(result) => return (Some(result), None),
            Err(e) => why = e,
        }
        let lag = control();
        println!("attempt {attempt} of {TRIES}: {why}; control: p99 {lag:?} late");
        worst = worst.max(lag);
        late += u32::from(lag > LATE);
        if late == LATE_CONTROLS {
            let host = format!(
                "The host wakes a sleeping thread up to {worst:?} late (p99 of a second; {late} of {attempt} times above {LATE:?})"
            );
            return (None, Some(format!("{host}. The last measurement: {why}")));
        }
    }
    panic!("{TRIES} measurements in a row were spoilt, and the host is not to blame: {late} controls were late, by {worst:?} at worst. The last: {why}");
}

#[test]
fn only_a_late_host_excuses() {
    let ms = Duration::from_millis;
    let mut spoilt = 2;
    let mut measure = || {
        spoilt -= 1;
        if spoilt < 0 {
            Ok(7)
        } else {
            Err("late".to_string())
        }
    };
    assert_eq!(decide(&mut measure, || ms(9)), (Some(7), None));
    let never = || Err::<(), _>("late".to_string());
    let (result, note) = decide(never, || ms(9));
    assert!(result.is_none() && note.unwrap().contains("9ms late (p99 of a second; 5 of 5"));
    assert!(std::panic::catch_unwind(|| decide(never, || Duration::from_micros(90))).is_err());
}
