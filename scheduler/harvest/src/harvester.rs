//! A policy below a tick: from readings of busy cores to the number of cores that the primaries keep.

use crate::baselines::PrevPeak;
use crate::budget::Budget;
use crate::caladan::Caladan;
use crate::guard::WaitGuard;
use crate::said::{Seen, Step, Stop, Tally, Why};
use crate::settings::{Settings, Window};
use crate::smart::Smart;
use surefoot_server::{names, Waits};

/// Names of policies, as a command line takes them; N stands for a number from 1 to 1024.
pub const NAMES: &[&str] = &["no-harvest", "fixed-buffer-N", "prev-peak", "prev-peak-N", "smartharvest", "wait-budget", "caladan"];

#[derive(Clone, Debug)]
enum Law {
    Nothing,
    Fixed(u32),
    PrevPeak(PrevPeak),
    Smart(Box<Smart>),
    Budget(Box<Budget>),
    Caladan(Caladan),
}

/// One policy and its state.
#[derive(Clone, Debug)]
pub struct Harvester {
    law: Law,
    window: Window,
    cores: u32,
    least: u32,
    kept: u32,
    poll_us: u64,
    next_us: u64,
    /// Until then nothing is decided.
    settled_us: u64,
    waits: Option<WaitGuard>,
    /// All cores are asked for at the next reading.
    all_back: bool,
    /// All cores at hand were busy at the last reading.
    was_exhausted: bool,
    /// Last reading at which fewer than two of the cores at hand idled.
    near_us: u64,
    tally: Tally,
}

impl Harvester {
    /// A policy for primaries of `cores` cores that may lend `most_lent` of them; they keep one at least.
    ///
    /// # Errors
    /// One line with the names that there are.
    pub fn named(name: &str, cores: u32, most_lent: u32, s: &Settings) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| (1..=1024).contains(n) && text.bytes().all(|b| b.is_ascii_digit()));
        let peaks = |windows| Law::PrevPeak(PrevPeak::new(cores, windows, &s.window));
        let law = match name {
            "no-harvest" => Some(Law::Nothing),
            "fixed-buffer" => Some(Law::Fixed(s.baseline.buffer)),
            "prev-peak" => Some(peaks(1)),
            "smartharvest" => Some(Law::Smart(Box::new(Smart::new(cores, s)))),
            "wait-budget" => Some(Law::Budget(Box::new(Budget::new(cores, s)))),
            "caladan" => Some(Law::Caladan(Caladan::new(s.caladan))),
            _ => match (name.strip_prefix("fixed-buffer-"), name.strip_prefix("prev-peak-")) {
                (Some(n), _) => number(n).map(Law::Fixed),
                (_, Some(n)) => number(n).map(peaks),
                _ => None,
            },
        };
        let law = law.ok_or_else(|| {
            let near = names::nearest(name, NAMES.iter().copied()).map_or(String::new(), |n| format!(" Did you mean \"{n}\"?"));
            format!("policy \"{name}\" is unknown below a tick.{near} Choose one of: {} (N from 1 to 1024)", NAMES.join(", "))
        })?;
        Ok(Harvester {
            waits: matches!(law, Law::Smart(_)).then(|| WaitGuard::new(s.guard)),
            poll_us: if matches!(law, Law::Caladan(_)) { s.caladan.poll_us } else { s.window.poll_us },
            law,
            window: s.window,
            cores,
            least: cores.saturating_sub(most_lent).max(1),
            kept: cores,
            next_us: 0,
            settled_us: 0,
            all_back: false,
            was_exhausted: false,
            near_us: 0,
            tally: Tally::default(),
        })
    }

    /// Cores of the primaries, those that are lent too.
    pub fn cores(&self) -> u32 {
        self.cores
    }

    /// Cores that were asked for last.
    pub fn kept(&self) -> u32 {
        self.kept
    }

    /// When the next reading is due.
    pub fn next_us(&self) -> u64 {
        self.next_us
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether it takes more than one thread more to exhaust the cores at hand, and has for long: fewer readings will do.
    fn is_quiet(&self, now_us: u64) -> bool {
        self.window.quiet_ms > 0.0 && now_us.saturating_sub(self.near_us) as f64 >= self.window.quiet_ms * 1e3
    }

    /// The last time that the long-term safeguard stopped lending.
    pub fn last_stop(&self) -> Option<Stop> {
        self.waits.as_ref().and_then(WaitGuard::last)
    }

    /// Whether [`Harvester::poll`] needs [`Seen::waiting_us`].
    pub fn wants_waiting(&self) -> bool {
        matches!(self.law, Law::Caladan(_))
    }

    /// Whether waits are to be read now, and told to [`Harvester::waited`].
    pub fn wants_waits(&mut self, now_us: u64) -> bool {
        match &mut self.law {
            Law::Budget(b) => b.is_due(now_us),
            _ => self.waits.as_mut().is_some_and(|w| w.is_due(now_us)),
        }
    }

    /// How long threads have waited since the last time. The next reading acts on it.
    pub fn waited(&mut self, now_us: u64, waits: &Waits) {
        if let Law::Budget(b) = &mut self.law {
            b.look(now_us, waits);
        } else if self.waits.as_mut().is_some_and(|w| w.look(now_us, waits)) {
            self.tally.stops += 1;
            self.all_back = true;
        }
    }

    /// One reading.
    pub fn poll(&mut self, seen: &Seen) -> Step {
        let Seen { now_us, busy, here, waiting_us } = *seen;
        self.tally.readings += 1;
        let stopped = self.waits.as_ref().is_some_and(|w| w.stops(now_us));
        let exhausted = busy >= here && here < self.cores;
        self.tally.exhausted += u64::from(exhausted && !self.was_exhausted);
        self.was_exhausted = exhausted;
        let keep = if self.all_back {
            self.all_back = false;
            Some((self.cores, Why::Stopped))
        } else if now_us < self.settled_us {
            match &mut self.law {
                Law::Smart(smart) => smart.read(now_us, busy),
                Law::Budget(b) => b.read(now_us, busy),
                _ => {}
            }
            // More cores can be asked for before the last move is over.
            match &mut self.law {
                Law::Budget(b) if exhausted && b.enough() > self.kept => Some((b.enough(), Why::Exhausted)),
                _ => None,
            }
        } else {
            match &mut self.law {
                Law::Nothing => None,
                Law::Fixed(buffer) => Some((busy + *buffer, Why::Rule)),
                Law::PrevPeak(p) => {
                    let why = if exhausted { Why::Exhausted } else { Why::Rule };
                    p.poll(now_us, busy, self.kept, exhausted).map(|keep| (keep, why))
                }
                Law::Smart(smart) => smart.poll(now_us, busy, exhausted, stopped, &mut self.tally),
                Law::Budget(b) => b.poll(now_us, busy, exhausted, &mut self.tally),
                Law::Caladan(law) => waiting_us.map(|w| (law.keep(self.kept, busy, w), Why::Rule)),
            }
        };
        // Caladan takes every idle core; the others keep one beside the busy ones, so that no running task is stopped.
        let spare = u32::from(!matches!(self.law, Law::Caladan(_)));
        let keep = keep.map(|(k, why)| (k.max(busy + spare).clamp(self.least, self.cores), why)).filter(|(k, _)| *k != self.kept);
        if busy + 2 > here {
            self.near_us = now_us;
        }
        self.next_us = now_us + if self.is_quiet(now_us) { self.window.quiet_poll_us.max(self.poll_us) } else { self.poll_us };
        if let Some((k, _)) = keep {
            self.kept = k;
            self.tally.moves += 1;
            if !matches!(self.law, Law::Caladan(_)) {
                self.settled_us = now_us + (self.window.settle_ms * 1e3) as u64;
                if self.window.settle_polls == 0 && !matches!(self.law, Law::Budget(_)) {
                    self.next_us = self.next_us.max(self.settled_us);
                }
            }
        }
        Step { keep, next_us: self.next_us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use surefoot_server::lease::WAIT_BOUNDS;

    fn seen(now_us: u64, busy: u32, here: u32) -> Seen {
        Seen { now_us, busy, here, waiting_us: None }
    }

    fn named(name: &str) -> Harvester {
        Harvester::named(name, 10, 9, &Settings::default()).unwrap()
    }

    #[test]
    fn names() {
        for name in ["no-harvest", "fixed-buffer", "fixed-buffer-1", "prev-peak", "prev-peak-10", "smartharvest", "wait-budget", "caladan"]
        {
            assert!(Harvester::named(name, 10, 9, &Settings::default()).is_ok(), "{name}");
        }
        for name in ["fixed-buffer-0", "fixed-buffer-+1", "prev-peak-", "smart", "", "fixed-buffer-2000"] {
            let e = Harvester::named(name, 10, 9, &Settings::default()).unwrap_err();
            assert!(e.contains("wait-budget, caladan"), "{e}");
        }
    }

    /// PerfIso: the busy cores and the buffer, and peace for the time that cores move.
    #[test]
    fn a_fixed_buffer_follows_the_busy_cores() {
        let mut h = named("fixed-buffer-4");
        assert_eq!(h.poll(&seen(0, 2, 10)), Step { keep: Some((6, Why::Rule)), next_us: 50 });
        assert_eq!(h.poll(&seen(50, 5, 6)), Step { keep: None, next_us: 100 });
        assert_eq!(h.poll(&seen(10_000, 2, 6)), Step { keep: None, next_us: 10_050 });
        assert_eq!(h.poll(&seen(10_050, 5, 6)), Step { keep: Some((9, Why::Rule)), next_us: 10_100 });
        assert_eq!(h.poll(&seen(20_050, 9, 9)).keep, Some((10, Why::Rule)));
        assert_eq!((h.tally().moves, h.kept()), (3, 10));
    }

    /// Readings of a steady load until `until_us`; the last number of cores.
    fn steady(h: &mut Harvester, busy: impl Fn(u64) -> u32, until_us: u64) -> u32 {
        while h.next_us() < until_us {
            let t = h.next_us();
            let here = h.kept();
            h.poll(&seen(t, busy(t), here));
        }
        h.kept()
    }

    /// All cores until enough was learnt, then the peak of a steady load and the core beside it.
    #[test]
    fn a_steady_load_is_learnt() {
        let mut h = named("smartharvest");
        assert_eq!(steady(&mut h, |_| 3, 1_000_000), 10);
        assert_eq!(h.tally().moves, 0);
        assert_eq!(steady(&mut h, |_| 3, 10_000_000), 4);
        assert!(h.tally().short == 0 && h.tally().predicted > 100, "{:?}", h.tally());
    }

    /// Where two cores idle for long readings are fewer; the first one at which they do not brings the others back.
    #[test]
    fn quiet_cores_are_read_less_often() {
        let mut s = Settings::default();
        s.window.quiet_ms = 1.0;
        let mut h = Harvester::named("no-harvest", 10, 9, &s).unwrap();
        let mut next = |now_us, busy| h.poll(&seen(now_us, busy, 10)).next_us - now_us;
        assert_eq!(
            [(0, 9), (950, 8), (1000, 8), (1500, 8), (2000, 9), (2050, 0), (3000, 0)].map(|(t, b)| next(t, b)),
            [50, 50, 500, 500, 50, 50, 500]
        );
        // A clock that runs backwards is no quiet.
        assert_eq!([(1000, 9), (500, 0)].map(|(t, b)| next(t, b)), [50, 50]);
        let mut never = Harvester::named("no-harvest", 10, 9, &Settings::default()).unwrap();
        assert_eq!(never.poll(&seen(10_000_000, 0, 10)).next_us, 10_000_050);
    }

    /// Exhausted cores bring back one more than the latest peak at once, or all; nothing is learnt from that window.
    #[test]
    fn exhausted_cores_come_back_at_once() {
        for (aggressive, want) in [(0, 5), (1, 10)] {
            let mut s = Settings::default();
            s.guard.aggressive = aggressive;
            let mut h = Harvester::named("smartharvest", 10, 9, &s).unwrap();
            steady(&mut h, |_| 3, 10_000_000);
            let trained = h.tally().trained;
            let t = h.next_us();
            assert_eq!(h.poll(&seen(t, 4, 4)).keep, Some((want, Why::Exhausted)));
            assert_eq!((h.tally().exhausted, h.tally().trained), (1, trained));
            // The cores that move are waited for, and read meanwhile unless a setting says otherwise.
            assert_eq!(h.poll(&seen(t + 9_950, 5, 5)), Step { keep: None, next_us: t + 10_000 });
            s.window.settle_polls = 0;
            let mut blind = Harvester::named("fixed-buffer-4", 10, 9, &s).unwrap();
            assert_eq!(blind.poll(&seen(0, 2, 10)).next_us, 10_000);
        }
    }

    /// Waits above the bound in two looks: all cores at the next reading, none lent for ten seconds, and learning goes on.
    #[test]
    fn waiting_threads_stop_lending() {
        let mut h = named("smartharvest");
        steady(&mut h, |_| 3, 10_000_000);
        let long = Waits { dispatches: 1000, over: Some([500; WAIT_BOUNDS]), total_us: 0.0 };
        assert!(h.wants_waits(20_000_000) || h.wants_waits(30_000_000));
        h.waited(10_000_000, &long);
        h.waited(10_500_000, &long);
        let t = h.next_us();
        assert_eq!(h.poll(&seen(t, 3, 4)).keep, Some((10, Why::Stopped)));
        let trained = h.tally().trained;
        assert_eq!(steady(&mut h, |_| 3, 20_400_000), 10);
        assert!(h.tally().trained > trained + 300, "{:?}", h.tally());
        assert_eq!(steady(&mut h, |_| 3, 20_700_000), 4);
        assert_eq!((h.tally().stops, h.last_stop().map(|s| (s.at_us, s.waits.long()))), (1, Some((10_500_000, Some(500)))));
    }

    proptest! {
        /// Whatever is read: never fewer cores than are busy and one more, nor fewer than the lease leaves, nor more than all.
        #[test]
        fn running_work_is_never_stopped(
            which in 0usize..7,
            readings in prop::collection::vec((0u32..=10, 0u32..=10, 0.0f64..100.0), 1..2000),
            most_lent in 0u32..=9,
        ) {
            let name = ["fixed-buffer-2", "prev-peak", "prev-peak-10", "smartharvest", "caladan", "no-harvest", "wait-budget"][which];
            let mut s = Settings::default();
            s.learn.warm_windows = 2;
            s.window.length_ms = 1.0;
            s.window.settle_ms = 0.2;
            s.window.quiet_ms = 0.5;
            let mut h = Harvester::named(name, 10, most_lent, &s).unwrap();
            for (i, (busy, here, waiting)) in readings.into_iter().enumerate() {
                let now_us = h.next_us();
                if h.wants_waits(now_us) || i % 97 == 96 {
                    h.waited(now_us, &Waits { dispatches: 1000, over: Some([u64::from(busy) * 5; WAIT_BOUNDS]), total_us: 0.0 });
                }
                let step = h.poll(&Seen { now_us, busy, here: here.max(1), waiting_us: Some(waiting) });
                prop_assert!(step.next_us > now_us);
                if let Some((keep, _)) = step.keep {
                    let spare = u32::from(name != "caladan");
                    prop_assert!(keep <= 10 && keep >= (10 - most_lent).max(1) && keep >= (busy + spare).min(10), "{keep} of {busy}");
                }
            }
        }
    }
}
