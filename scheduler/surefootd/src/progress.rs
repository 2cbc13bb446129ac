//! Progress of a sweep on stderr: a bar with rate and ETA for people, JSON lines for programs.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// A bar where stderr is a terminal, else nothing.
    Auto,
    /// One JSON object a line.
    Json,
    None,
}

/// Least time between two JSON lines.
const EVERY: Duration = Duration::from_millis(200);

pub struct Progress {
    bar: Option<ProgressBar>,
    json: bool,
    planned: u64,
    /// Cases that an earlier run had finished.
    before: u64,
    done: AtomicU64,
    start: Instant,
    last: Mutex<Instant>,
}

impl Progress {
    pub fn new(mode: Mode, name: &str, planned: u64, before: u64) -> Self {
        let bar = (mode == Mode::Auto && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} cases  {per_sec}  ETA {eta}");
            let bar = ProgressBar::new(planned).with_message(name.to_string());
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_position(before);
            bar.reset_eta();
            bar
        });
        let now = Instant::now();
        let p =
            Progress { bar, json: mode == Mode::Json, planned, before, done: AtomicU64::new(before), start: now, last: Mutex::new(now) };
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
        if self.json {
            if let Ok(mut last) = self.last.try_lock() {
                if last.elapsed() >= EVERY {
                    *last = Instant::now();
                    drop(last);
                    self.line("progress");
                }
            }
        }
    }

    pub fn finish(&self) {
        if let Some(b) = &self.bar {
            b.finish_and_clear();
        }
        self.line("end");
    }

    fn line(&self, event: &str) {
        if !self.json {
            return;
        }
        let done = self.done.load(Ordering::Relaxed);
        let elapsed_s = self.start.elapsed().as_secs_f64();
        let rate = (done - self.before) as f64 / elapsed_s.max(1e-3);
        let eta_s = (rate > 0.0).then(|| (self.planned - done.min(self.planned)) as f64 / rate);
        let line = serde_json::json!({
            "event": event, "done": done, "planned": self.planned, "elapsed_s": elapsed_s, "rate_per_s": rate, "eta_s": eta_s,
        });
        // A reader that went away must not end the sweep.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }
}
