//! Progress of a sweep or an eval on stderr: a bar with rate and ETA for people, now and then a line for logs, JSON lines for programs.

use indicatif::{ProgressBar, ProgressStyle};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use surefoot_io::out::{self, note};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// A bar where stderr is a terminal, else a line every ten seconds.
    Auto,
    /// One JSON object a line.
    Json,
    None,
}

/// Least time between two JSON lines.
const EVERY_JSON: Duration = Duration::from_millis(200);
/// Least time between two lines for people who read them in a log.
const EVERY_LINE: Duration = Duration::from_secs(10);

pub struct Progress {
    name: String,
    bar: Option<ProgressBar>,
    json: bool,
    /// Least time between two lines; None: there are none.
    every: Option<Duration>,
    planned: u64,
    /// Cases that an earlier run had finished.
    before: u64,
    done: AtomicU64,
    start: Instant,
    last: Mutex<Instant>,
}

impl Progress {
    pub fn new(mode: Mode, name: &str, planned: u64, before: u64) -> Self {
        let bar = (mode == Mode::Auto && out::stderr_is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} cases  {per_sec}  ETA {eta}");
            let bar = ProgressBar::new(planned).with_message(name.to_string());
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_position(before);
            bar.reset_eta();
            bar
        });
        let every = every(mode, bar.is_some());
        let now = Instant::now();
        let p = Progress {
            name: name.into(),
            bar,
            json: mode == Mode::Json,
            every,
            planned,
            before,
            done: AtomicU64::new(before),
            start: now,
            last: Mutex::new(now),
        };
        p.line("start");
        p
    }

    /// One more case is computed (not yet durable).
    pub fn case(&self) {
        self.cases(1);
    }

    /// So many more cases are computed, or not needed.
    pub fn cases(&self, n: u64) {
        self.done.fetch_add(n, Ordering::Relaxed);
        if let Some(b) = &self.bar {
            b.inc(n);
        }
        if let (Some(every), Ok(mut last)) = (self.every, self.last.try_lock()) {
            if last.elapsed() >= every {
                *last = Instant::now();
                drop(last);
                if self.json {
                    self.line("progress");
                } else {
                    let done = self.done.load(Ordering::Relaxed);
                    let said = in_words(&self.name, done, self.planned, done - self.before, self.start.elapsed());
                    note(&format!("surefootd: {said}"));
                }
            }
        }
    }

    /// A word about what is done before there are cases; as often as there are lines.
    pub fn say(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}: {what}", self.name));
        }
        let (Some(every), Ok(mut last)) = (self.every, self.last.try_lock()) else { return };
        if last.elapsed() < every {
            return;
        }
        *last = Instant::now();
        drop(last);
        if self.json {
            self.line_with("progress", Some(what));
        } else {
            note(&format!("surefootd: {}: {what}", self.name));
        }
    }

    /// Nothing more to be said of what came before the cases.
    pub fn said(&self) {
        if let Some(bar) = &self.bar {
            bar.set_message(self.name.clone());
            bar.reset_eta();
        }
    }

    pub fn finish(&self) {
        if let Some(b) = &self.bar {
            b.finish_and_clear();
        }
        self.line("end");
    }

    fn line(&self, event: &str) {
        self.line_with(event, None);
    }

    fn line_with(&self, event: &str, what: Option<&str>) {
        if !self.json {
            return;
        }
        let done = self.done.load(Ordering::Relaxed);
        let elapsed_s = self.start.elapsed().as_secs_f64();
        let rate = (done - self.before) as f64 / elapsed_s.max(1e-3);
        let eta_s = (rate > 0.0).then(|| (self.planned - done.min(self.planned)) as f64 / rate);
        let mut line = serde_json::json!({
            "event": event, "done": done, "planned": self.planned, "elapsed_s": elapsed_s, "rate_per_s": rate, "eta_s": eta_s,
        });
        if let (Some(line), Some(what)) = (line.as_object_mut(), what) {
            line.insert("what".into(), what.into());
        }
        note(&line.to_string());
    }
}

/// Least time between two lines; None: there are none.
fn every(mode: Mode, has_bar: bool) -> Option<Duration> {
    match mode {
        Mode::Json => Some(EVERY_JSON),
        Mode::Auto if !has_bar => Some(EVERY_LINE),
        Mode::Auto | Mode::None => None,
    }
}

/// How far it is, and how long the rest takes at the pace of the `ours` cases that took `elapsed`.
fn in_words(name: &str, done: u64, planned: u64, ours: u64, elapsed: Duration) -> String {
    let left = planned.saturating_sub(done);
    let rest =
        if ours == 0 { String::new() } else { format!(", about {} left", people_time(elapsed.as_secs_f64() * left as f64 / ours as f64)) };
    format!("{name}: {done} of {planned} cases{rest}")
}

/// Seconds as people say them.
pub fn people_time(s: f64) -> String {
    match s {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 30 of 100 were there; 20 more took 60 s, so the other 50 take 150 s.
    #[test]
    fn the_rest_is_reckoned_from_what_this_run_did() {
        assert_eq!(in_words("eval", 50, 100, 20, Duration::from_secs(60)), "eval: 50 of 100 cases, about 2.5 min left");
        assert_eq!(in_words("eval", 30, 100, 0, Duration::from_secs(60)), "eval: 30 of 100 cases");
    }

    /// Without a terminal a line comes once the time is up, and never with `none`.
    #[test]
    fn lines_come_where_there_is_no_bar() {
        assert_eq!((every(Mode::Json, false), every(Mode::None, false)), (Some(EVERY_JSON), None));
        assert_eq!((every(Mode::Auto, false), every(Mode::Auto, true)), (Some(EVERY_LINE), None));
    }
}
