//! The rate of a service that several processes speak for.
//!
//! * The windows of one process follow one another, so its rate is what it counted by the time that its windows speak of.
//! * Processes that speak at the same time add up.
//! * A process that takes the place of one that has ended (a restart, a sender that ends after each datagram) goes on in that one's lane: two that
//!   follow one another are not twice the rate.
//! * Of a process that came or went meanwhile as much counts as it was there.
//! * Processes that cannot be told apart may be one or many. Where their windows add up to more time than has passed, they are many.

use super::reading::{Heard, Speaker};
use std::collections::BTreeMap;

/// Lengths of its windows by which one may be late before its sender has fallen silent, in per cent.
const LATE_PCT: u64 = 150;
/// Windows of senders that cannot be told apart may add up to so much more time than passed and still be one sender's, in per cent.
const TOLERANCE_PCT: u64 = 125;

/// What one speaker said in the time that is looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Spoken {
    count: u64,
    covered_ms: u64,
    /// Where its first window begins, and where its last one ends; of signed time, since a window may begin before the clock.
    from_ms: i64,
    to_ms: i64,
    longest_ms: u64,
}

impl Spoken {
    fn of(h: &Heard) -> Self {
        let (to_ms, window_ms) = (h.i.arrived_ms as i64, h.i.window_ms);
        Spoken { count: h.i.counts.total, covered_ms: window_ms, from_ms: to_ms - window_ms as i64, to_ms, longest_ms: window_ms }
    }

    fn add(&mut self, o: &Spoken) {
        self.count = self.count.saturating_add(o.count);
        self.covered_ms += o.covered_ms;
        self.from_ms = self.from_ms.min(o.from_ms);
        self.to_ms = self.to_ms.max(o.to_ms);
        self.longest_ms = self.longest_ms.max(o.longest_ms);
    }
}

/// What is known of the senders besides what they said in the time that is looked at.
pub(super) struct Besides<F> {
    /// Where that time begins, and when any of them was last heard.
    pub from_ms: u64,
    pub last_ms: u64,
    /// When those that cannot be told apart were last heard before it.
    pub before_ms: Option<u64>,
    /// Whether a sender has been heard once only.
    pub once: F,
}

/// Answers a second of these datagrams, oldest first.
pub(super) fn rate(of: &[&Heard], besides: &Besides<impl Fn(Speaker) -> bool>) -> f64 {
    let per_s = |count: u64, ms: u64| count as f64 / (ms.max(1) as f64 * 1e-3);
    let Some(first) = of.first() else { return 0.0 };
    if first.from.is_some() && of.iter().all(|h| h.from == first.from) {
        return per_s(of.iter().map(|h| h.i.counts.total).fold(0, u64::saturating_add), of.iter().map(|h| h.i.window_ms).sum());
    }
    let mut by: BTreeMap<Option<Speaker>, Spoken> = BTreeMap::new();
    for h in of {
        let one = Spoken::of(h);
        by.entry(h.from).and_modify(|s| s.add(&one)).or_insert(one);
    }
    if let Some(s) = by.get_mut(&None) {
        let passed_ms = (s.to_ms - besides.before_ms.map_or(s.from_ms, |t| t as i64)).max(s.longest_ms as i64).unsigned_abs();
        if s.covered_ms * 100 > passed_ms * TOLERANCE_PCT {
            s.covered_ms = passed_ms;
        }
    }
    let mut spoken: Vec<(Spoken, bool)> = by.iter().map(|(from, s)| (*s, from.is_some_and(&besides.once))).collect();
    spoken.sort_by_key(|(s, _)| (s.from_ms, s.to_ms));
    // Of each its last speaker, for whether the next one takes its place.
    let mut lanes: Vec<(Spoken, bool)> = vec![];
    for (s, once) in spoken {
        let follows = |(l, l_once): &&mut (Spoken, bool)| {
            let slack_ms = (l.longest_ms.min(s.longest_ms) / 2) as i64;
            let has_ended = (besides.last_ms as i64 - l.to_ms) * 100 > (l.longest_ms * LATE_PCT) as i64;
            l.to_ms <= s.from_ms + slack_ms && (has_ended || *l_once && once)
        };
        match lanes.iter_mut().filter(follows).max_by_key(|(l, _)| l.to_ms) {
            Some(lane) => {
                lane.0.add(&s);
                lane.1 = once;
            }
            None => lanes.push((s, once)),
        }
    }
    let from_ms = lanes.iter().map(|(l, _)| l.from_ms).min().unwrap_or(0).max(besides.from_ms as i64);
    let to_ms = lanes.iter().map(|(l, _)| l.to_ms).max().unwrap_or(0);
    let of_lane = |(l, _): &(Spoken, bool)| {
        let slack_ms = 2 * l.longest_ms as i64;
        let was_there = lanes.len() == 1 || l.from_ms <= from_ms + slack_ms && l.to_ms >= to_ms - slack_ms;
        per_s(l.count, if was_there { l.covered_ms } else { l.covered_ms.max((to_ms - from_ms).max(0).unsigned_abs()) })
    };
    lanes.iter().map(of_lane).sum()
}
