//! What was heard of each service in the last seconds. Holds no clock: every question says what time it is.
//!
//! Percentiles come from merged counts, never from averaged percentiles. What speaks against itself is doubted ([`super::doubt`]).

use super::buckets::{self, Scraped};
use super::datagram::{shown, Cell, Interval, Reason, Refused, MOST_PER_S, MOST_WINDOW_MS};
use super::doubt::{self, Custom, Doubts, Evidence};
use super::lanes::{self, Besides};
use super::reading::{exceedances, Heard};
pub use super::reading::{Reading, Speaker};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use surefoot_server::window::{self, LONGEST_WINDOW_MS, SILENT_MS, WINDOW_MS};
use surefoot_server::{Doubt, FeedState, Latency, Verdict};

/// Datagrams kept of a service; twenty seconds of one sender have 200.
const MOST_INTERVALS: usize = 2000;
/// Cells kept of a service (16 bytes each).
const MOST_CELLS: usize = 1 << 18;
/// Requests that the datagrams kept of a service may hold together: as many as are believed of the time that they can speak of.
const MOST_KEPT: u64 = MOST_PER_S * (LONGEST_WINDOW_MS + MOST_WINDOW_MS) / 1000;
/// Senders of a service whose time is counted.
const MOST_CLOCKS: usize = 1024;

/// How much time a sender's windows may still speak of: what has passed, and some more.
#[derive(Clone, Copy, Debug)]
struct Clock {
    left_ms: u64,
    at_ms: u64,
    /// Datagrams that were taken.
    times: u64,
}

impl Clock {
    /// Windows may come late and together: so much at once.
    const SLACK_MS: u64 = 2000;
    /// And add up to so much more than what passed, in per cent: windows have a length of whole milliseconds, and clocks drift.
    const TOLERANCE_PCT: u64 = 25;
    const MOST_MS: u64 = MOST_WINDOW_MS + Clock::SLACK_MS;

    /// The first window speaks of a time before the first look, so it may be of any length.
    fn new(now_ms: u64) -> Self {
        Clock { left_ms: Clock::MOST_MS, at_ms: now_ms, times: 0 }
    }

    fn fill(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.at_ms).min(Clock::MOST_MS);
        self.at_ms = self.at_ms.max(now_ms);
        self.left_ms = (self.left_ms + passed_ms * (100 + Clock::TOLERANCE_PCT) / 100).min(Clock::MOST_MS);
    }

    /// Whether a window of this length fits into the time that passed.
    fn holds(&mut self, window_ms: u64, now_ms: u64) -> bool {
        self.fill(now_ms);
        self.left_ms >= window_ms
    }

    fn take(&mut self, window_ms: u64, is_first: bool) {
        self.times += 1;
        self.left_ms = if is_first { Clock::SLACK_MS } else { self.left_ms.saturating_sub(window_ms) };
    }
}

/// What was sent of one service.
#[derive(Debug, Default)]
struct Sent {
    recent: VecDeque<Heard>,
    /// Cells in `recent`, and requests.
    cells: usize,
    total: u64,
    clocks: BTreeMap<Speaker, Clock>,
}

impl Sent {
    /// Take a datagram that arrived at `i.arrived_ms`.
    ///
    /// # Errors
    /// What its counts and times contradict.
    fn push(&mut self, i: Interval, from: Option<Speaker>) -> Result<(), (Reason, String)> {
        let now_ms = i.arrived_ms;
        let oldest = now_ms.saturating_sub(LONGEST_WINDOW_MS);
        self.drop_while(|_, first| first.arrived_ms < oldest);
        if i.counts.total > MOST_KEPT.saturating_sub(self.total) {
            let (n, before, s) = (i.counts.total, self.total, LONGEST_WINDOW_MS / 1000);
            let why = format!("count {n} after {before} in the last {s} s. At most {MOST_PER_S} a second are believed");
            return Err((Reason::Impossible, why));
        }
        if let Some(from) = from {
            self.take_time(from, i.window_ms, now_ms)?;
        }
        self.cells += i.counts.cells.len();
        self.total += i.counts.total;
        self.recent.push_back(Heard { i, from });
        self.drop_while(|sent, _| sent.recent.len() > MOST_INTERVALS || sent.cells > MOST_CELLS && sent.recent.len() > 1);
        Ok(())
    }

    fn drop_while(&mut self, too_much: impl Fn(&Self, &Interval) -> bool) {
        while self.recent.front().is_some_and(|first| too_much(self, &first.i)) {
            if let Some(Heard { i, .. }) = self.recent.pop_front() {
                self.cells -= i.counts.cells.len();
                self.total -= i.counts.total;
            }
        }
    }

    /// What arrived after `from_ms`, oldest first.
    fn since(&self, from_ms: u64) -> Vec<&Heard> {
        let newer = self.recent.iter().rev().take_while(|h| h.i.arrived_ms > from_ms).count();
        self.recent.range(self.recent.len() - newer..).collect()
    }

    /// The last second, longer at low rates; None without completions.
    ///
    /// A server that answers nothing while requests wait has a window too: overloaded, with the time that it has been
    /// silent as the least that its p99 can be.
    fn window(&self, scratch: &mut Scratch, now_ms: u64) -> Option<Latency> {
        let longest = self.since(now_ms.saturating_sub(LONGEST_WINDOW_MS));
        let newer = |span: u64| &longest[longest.partition_point(|h| h.i.arrived_ms <= now_ms.saturating_sub(span))..];
        let last = newer(WINDOW_MS);
        let stuck = stuck(now_ms, &longest, last);
        if !stuck.is_empty() && last.iter().all(|h| h.i.counts.total == 0) {
            return Some(stalled(&stuck, last));
        }
        let span = window::span_ms(|span| newer(span).iter().map(|h| h.i.counts.total).fold(0, u64::saturating_add));
        let mut of = self.longer(&longest, now_ms, span);
        of.extend(newer(span));
        self.summary(scratch, &of, now_ms.saturating_sub(span), &stuck)
    }

    /// The last datagrams of senders whose windows are longer than this span: they speak until the next one is due.
    fn longer<'a>(&self, longest: &[&'a Heard], now_ms: u64, span: u64) -> Vec<&'a Heard> {
        let speaks = |h: &Heard| h.i.arrived_ms <= now_ms.saturating_sub(span) && h.i.arrived_ms + h.i.window_ms * 5 / 4 > now_ms;
        let is_last = |k: usize, h: &Heard| longest[k + 1..].iter().all(|later| later.from != h.from);
        longest.iter().enumerate().filter(|(k, h)| h.i.window_ms > span && speaks(h) && is_last(*k, h)).map(|(_, h)| *h).collect()
    }

    /// Latency of some datagrams taken together, oldest first, and of what is stuck besides; None without completions.
    fn summary(&self, scratch: &mut Scratch, of: &[&Heard], from_ms: u64, stuck: &[Stuck]) -> Option<Latency> {
        let unknown = of.iter().find(|h| h.from.is_none()).map(|h| h.i.arrived_ms);
        let before = |t: u64| self.recent.iter().rev().find(|h| h.from.is_none() && h.i.arrived_ms < t).map(|h| h.i.arrived_ms);
        let besides = Besides {
            from_ms,
            last_ms: self.recent.back().map_or(0, |h| h.i.arrived_ms),
            before_ms: unknown.and_then(before),
            once: |from: Speaker| self.clocks.get(&from).is_some_and(|c| c.times <= 1),
        };
        let waiting: Vec<Cell> = stuck.iter().map(|s| Cell { ns: (s.least_ms * 1e6) as u64, count: s.outstanding }).collect();
        let intervals: Vec<&Interval> = of.iter().map(|h| &h.i).collect();
        summarise(scratch, &intervals, lanes::rate(of, &besides), &waiting)
    }

    /// Windows of one sender follow one another: together they are no longer than the time that passed.
    fn take_time(&mut self, from: Speaker, window_ms: u64, now_ms: u64) -> Result<(), (Reason, String)> {
        if !self.clocks.contains_key(&from) && self.clocks.len() >= MOST_CLOCKS {
            // A sender that was silent for a minute may speak of any window: there is nothing to remember of it.
            self.clocks.retain(|_, c| !c.holds(Clock::MOST_MS, now_ms));
            if self.clocks.len() >= MOST_CLOCKS {
                return Err((Reason::Rate, format!("more than {MOST_CLOCKS} processes speak for it. Let fewer do")));
            }
        }
        let is_first = !self.clocks.contains_key(&from);
        let clock = self.clocks.entry(from).or_insert(Clock::new(now_ms));
        if !clock.holds(window_ms, now_ms) {
            let why = "but its sender's windows add up to more time than has passed. Give the time since its last datagram";
            return Err((Reason::Window, format!("window_ms {window_ms}, {why}")));
        }
        clock.take(window_ms, is_first);
        Ok(())
    }
}

#[derive(Debug)]
enum From {
    Datagrams(Sent),
    /// Each of its pages.
    Scrape(Vec<Scraped>),
}

/// One expected service.
#[derive(Debug)]
struct Source {
    came_ms: u64,
    heard_ms: Option<u64>,
    /// Until when it has not been silent for too long.
    until_ms: u64,
    from: From,
    custom: Custom,
    doubts: Doubts,
}

impl Source {
    fn new(came_ms: u64, from: From) -> Self {
        Source { came_ms, heard_ms: None, until_ms: 0, from, custom: Custom::default(), doubts: Doubts::default() }
    }

    /// A sign of life. A sender of longer windows than the time after which a feed is silent speaks as often as they end.
    fn hears(&mut self, now_ms: u64, window_ms: u64) {
        let due_ms = if (SILENT_MS..=LONGEST_WINDOW_MS).contains(&window_ms) { window_ms } else { 0 };
        self.heard_ms = Some(now_ms);
        self.until_ms = self.until_ms.max(now_ms.saturating_add(due_ms + SILENT_MS));
    }

    /// As it is said, without a doubt.
    fn read(&self, scratch: &mut Scratch, from_ms: u64, now_ms: u64, qos_target_ms: f64) -> Reading {
        let silent = self.heard_ms.is_none() || now_ms > self.until_ms;
        let unknown = FeedState::Unknown { since_ms: self.heard_ms.unwrap_or(self.came_ms), heard: self.heard_ms.is_some() };
        match &self.from {
            From::Datagrams(sent) => {
                let interval = sent.summary(scratch, &sent.since(from_ms), from_ms, &[]);
                if silent {
                    return Reading { feed: unknown, interval, window: None };
                }
                let window = sent.window(scratch, now_ms);
                Reading { feed: FeedState::heard(window.as_ref()), interval, window }
            }
            From::Scrape(_) if silent => Reading { feed: unknown, interval: None, window: None },
            From::Scrape(pages) => buckets::read(pages, self.came_ms, from_ms, now_ms, qos_target_ms),
        }
    }

    /// What speaks against a reading that is neither silent nor idle.
    fn doubt(&mut self, r: &Reading, now_ms: u64) {
        let mut found: Vec<Evidence> = r.window.iter().filter_map(doubt::of_times).collect();
        if !matches!(r.feed, FeedState::Unknown { .. }) {
            found.extend(self.custom.see(now_ms, r.window.as_ref()));
        }
        if let From::Scrape(pages) = &self.from {
            if self.heard_ms.is_some() && now_ms <= self.until_ms {
                found.extend(buckets::unread(pages, self.came_ms, now_ms));
            }
        }
        found.into_iter().for_each(|e| self.doubts.see(now_ms, e));
    }
}

/// Latency of all expected services. Of others nothing is kept, not even the name.
#[derive(Debug, Default)]
pub struct Windows {
    sources: BTreeMap<String, Source>,
    /// Services that may come, or come back.
    known: BTreeSet<String>,
    /// False until it was first said whom to expect: until then nobody is a stranger.
    begun: bool,
    scratch: Scratch,
    /// Datagrams that were taken of each service that was ever expected.
    taken: BTreeMap<String, u64>,
}

impl Windows {
    /// Services that may come, or come back: datagrams of one that is not expected now are no mistake of its sender.
    pub fn know(&mut self, services: impl Iterator<Item = String>) {
        self.known = services.collect();
    }

    /// Expect datagrams of these services, and forget all others. Returns who is forgotten.
    pub fn expect<'a>(&mut self, services: impl Iterator<Item = &'a str> + Clone, now_ms: u64) -> Vec<String> {
        self.begun = true;
        let gone: Vec<String> = self.sources.keys().filter(|k| !services.clone().any(|s| s == *k)).cloned().collect();
        gone.iter().for_each(|k| drop(self.sources.remove(k)));
        for s in services {
            if !self.sources.contains_key(s) {
                self.begin(s, now_ms);
            }
        }
        gone
    }

    /// From now on this service's latency comes from scrapes of so many pages.
    pub fn expect_scrapes(&mut self, service: &str, pages: usize, now_ms: u64) {
        let pages = (0..pages).map(|_| Scraped::default()).collect();
        self.sources.insert(service.into(), Source::new(now_ms, From::Scrape(pages)));
    }

    /// Whether datagrams of this service are taken now.
    ///
    /// # Errors
    /// [`Refused`] for a service that is not expected, or not to speak for itself.
    pub fn hears(&self, service: &str) -> Result<(), Refused> {
        let refuse = |reason, why: &str| Err(Refused { reason, why: format!("{}: {why}", shown(service)) });
        match self.sources.get(service).map(|s| &s.from) {
            Some(From::Datagrams(_)) => Ok(()),
            Some(From::Scrape(_)) => {
                refuse(Reason::Scraped, "its histogram is scraped. Send no datagrams, or remove `prometheus` from node.toml")
            }
            None if !self.begun || self.known.contains(service) => refuse(Reason::Absent, "the service is not here yet, or has gone"),
            None => refuse(Reason::Service, "no LC service of this name here. Send the id that it has in node.toml"),
        }
    }

    /// Take a datagram. `from`: its sender, where that can be told; its windows must fit into the time that passes.
    ///
    /// # Errors
    /// See [`Windows::hears`]; and for what contradicts itself.
    pub fn push(&mut self, mut i: Interval, from: Option<Speaker>) -> Result<(), Refused> {
        self.hears(&i.service)?;
        let Some(source) = self.sources.get_mut(&i.service) else { return Ok(()) };
        // A clock that went back would bring the order of arrival into disorder.
        i.arrived_ms = i.arrived_ms.max(source.heard_ms.unwrap_or(0));
        let (service, arrived_ms, window_ms) = (i.service.clone(), i.arrived_ms, i.window_ms);
        let From::Datagrams(sent) = &mut source.from else { return Ok(()) };
        sent.push(i, from).map_err(|(reason, why)| Refused { reason, why: format!("{}: {why}", shown(&service)) })?;
        source.hears(arrived_ms, window_ms);
        *self.taken.entry(service).or_default() += 1;
        Ok(())
    }

    /// Datagrams that were taken so far, by service.
    pub fn taken(&self) -> &BTreeMap<String, u64> {
        &self.taken
    }

    /// Take what a scrape of an expected service's page read. False where it is no longer expected.
    ///
    /// # Errors
    /// A count that cannot have come since the scrape before.
    pub fn push_scrape(&mut self, service: &str, page: usize, now_ms: u64, read: super::prometheus::Sample) -> Result<bool, Refused> {
        let Some(source) = self.sources.get_mut(service) else { return Ok(false) };
        let From::Scrape(pages) = &mut source.from else { return Ok(false) };
        let Some(s) = pages.get_mut(page) else { return Ok(false) };
        let kept = s.push(now_ms, read);
        let found = s.take_evidence();
        let believed = kept.is_ok();
        found.into_iter().for_each(|e| source.doubts.see(now_ms, e));
        if believed {
            source.hears(now_ms, 0);
        }
        kept.map(|()| true).map_err(|why| Refused { reason: Reason::Page, why: format!("{}: {why}", shown(service)) })
    }

    fn since(&self, service: &str, from_ms: u64) -> Vec<&Interval> {
        match self.sources.get(service).map(|s| &s.from) {
            Some(From::Datagrams(sent)) => sent.since(from_ms).into_iter().map(|h| &h.i).collect(),
            _ => vec![],
        }
    }

    /// Everything about a service, from when it was last looked at.
    pub fn read(&mut self, service: &str, from_ms: u64, now_ms: u64, qos_target_ms: f64) -> Reading {
        let Some(source) = self.sources.get_mut(service) else {
            return Reading { feed: FeedState::Unknown { since_ms: now_ms, heard: false }, interval: None, window: None };
        };
        let r = source.read(&mut self.scratch, from_ms, now_ms, qos_target_ms);
        source.doubt(&r, now_ms);
        source.doubts.state(now_ms).map_or(r, |feed| Reading { feed, interval: None, window: None })
    }

    /// What was found and is to be done where a service's latency is doubtful.
    pub fn doubt(&self, service: &str, why: Doubt) -> Option<&str> {
        self.sources.get(service)?.doubts.said(why)
    }

    /// Percentiles of one datagram; None without completions.
    pub fn summary(&mut self, of: &Interval) -> Option<Latency> {
        let rps = of.counts.total as f64 / (of.window_ms.max(1) as f64 * 1e-3);
        summarise(&mut self.scratch, &[of], rps, &[])
    }

    /// What arrived after `from_ms`; None without completions.
    pub fn interval(&mut self, service: &str, from_ms: u64) -> Option<Latency> {
        let From::Datagrams(sent) = &self.sources.get(service)?.from else { return None };
        sent.summary(&mut self.scratch, &sent.since(from_ms), from_ms, &[])
    }

    /// Datagrams of a service that arrived after `from_ms`, oldest first.
    pub fn newer(&self, service: &str, from_ms: u64) -> Vec<Interval> {
        self.since(service, from_ms).into_iter().cloned().collect()
    }

    /// Of the datagrams of a service that are held the longest window, and how much time those speak of that arrived after `from_ms`; None:
    /// none is held.
    pub fn spoken_ms(&self, service: &str, from_ms: u64) -> Option<(u64, u64)> {
        let longest_ms = self.since(service, 0).iter().map(|w| w.window_ms).max()?;
        let spoken_ms = self.since(service, from_ms).iter().map(|w| w.window_ms).fold(0, u64::saturating_add);
        Some((longest_ms, spoken_ms))
    }

    /// When the oldest interval still held arrived.
    pub fn first_arrival(&self, service: &str) -> Option<u64> {
        Some(self.since(service, 0).first()?.arrived_ms)
    }

    /// Expect datagrams of a service; what it has said so far counts no more.
    pub fn begin(&mut self, service: &str, now_ms: u64) {
        self.sources.insert(service.into(), Source::new(now_ms, From::Datagrams(Sent::default())));
    }

    /// Expect nothing more of a service.
    pub fn forget(&mut self, service: &str) {
        self.sources.remove(service);
    }
}

/// Adds cells up by value with three digits, as HdrHistogram does: one dense array for all services, of which a look touches little.
/// Sorting the cells of a second took five times as long.
#[derive(Debug, Default)]
struct Scratch {
    /// Empty, or [`Scratch::VALUES`]; all zero between two uses.
    counts: Vec<u64>,
    /// A bit for each of `counts` that is not zero.
    used: Vec<u64>,
}

impl Scratch {
    /// Values of 64 bits that three digits tell apart.
    const VALUES: usize = 55 << 10;

    /// Eleven bits of a value, and where they stand.
    fn index(ns: u64) -> usize {
        let shift = ns.max(1).ilog2().saturating_sub(10);
        ((shift as usize) << 10) + (ns >> shift) as usize
    }

    /// The highest value of an index.
    fn highest(index: usize) -> u64 {
        let shift = (index >> 10).saturating_sub(1);
        ((index - (shift << 10)) as u64) << shift | ((1 << shift) - 1)
    }

    fn add(&mut self, c: &Cell) {
        let i = Scratch::index(c.ns);
        self.counts[i] = self.counts[i].saturating_add(c.count);
        self.used[i / 64] |= 1 << (i % 64);
    }

    /// Values at these ranks (in rising order) of all cells together.
    fn at<'a>(&mut self, cells: impl Iterator<Item = &'a Cell>, ranks: [u64; 5]) -> [u64; 5] {
        if self.counts.is_empty() {
            // Zeroed pages of the kernel: those that no value needs are never there.
            (self.counts, self.used) = (vec![0; Scratch::VALUES], vec![0; Scratch::VALUES.div_ceil(64)]);
        }
        cells.for_each(|c| self.add(c));
        let (mut below, mut next, mut found) = (0u64, 0, [0; 5]);
        for (w, word) in self.used.iter_mut().enumerate() {
            while *word != 0 {
                let i = w * 64 + word.trailing_zeros() as usize;
                *word &= *word - 1;
                below = below.saturating_add(std::mem::take(&mut self.counts[i]));
                while next < ranks.len() && below >= ranks[next] {
                    found[next] = Scratch::highest(i);
                    next += 1;
                }
            }
        }
        found
    }
}

/// Latency of some intervals taken together, and of requests that wait besides; None without completions.
fn summarise(scratch: &mut Scratch, of: &[&Interval], achieved_rps: f64, waiting: &[Cell]) -> Option<Latency> {
    let count = of.iter().map(|i| i.counts.total).fold(0, u64::saturating_add);
    if count == 0 {
        return None;
    }
    let n = waiting.iter().map(|c| c.count).fold(count, u64::saturating_add);
    let (few, most) = exceedances(n);
    let rank = |q: f64| ((q * n as f64).ceil() as u64).clamp(1, n);
    let (p50, p95, p99) = (rank(0.5), rank(0.95), rank(0.99));
    let (low, high) = (most.map_or(p99, |e| n - e), few.map_or(p99, |e| n - e));
    let mut ranks = [p50, p95, low, p99, high];
    ranks.sort_unstable();
    let found = scratch.at(of.iter().flat_map(|i| i.counts.cells.iter()).chain(waiting), ranks);
    let ms = |r: u64| ranks.iter().position(|x| *x == r).map_or(0.0, |i| found[i] as f64 * 1e-6);
    let sum_ns = of.iter().map(|i| i.counts.sum_ns).sum::<f64>() + waiting.iter().map(|c| c.ns as f64 * c.count as f64).sum::<f64>();
    Some(Latency {
        count,
        mean_ms: sum_ns / n as f64 * 1e-6,
        p50_ms: ms(p50),
        p95_ms: ms(p95),
        p99_ms: ms(p99),
        // The fewer samples lie above the p99, the higher it lies.
        p99_low_ms: most.map(|_| ms(low)),
        p99_high_ms: few.map(|_| ms(high)),
        achieved_rps,
        errors: of.iter().map(|i| i.errors).fold(0, u64::saturating_add),
        verdict: window::verdict(of.iter().map(|i| i.verdict), count),
    })
}

/// Requests of one sender that has answered none in the last second.
#[derive(Clone, Copy, Debug)]
struct Stuck {
    outstanding: u64,
    /// They have waited for so long at least.
    least_ms: f64,
}

/// Senders whose requests wait while they answer none: one of several says nothing of the others'.
fn stuck(now_ms: u64, longest: &[&Heard], last: &[&Heard]) -> Vec<Stuck> {
    let mut found = vec![];
    for (k, h) in last.iter().enumerate().filter(|(_, h)| h.i.outstanding > 0) {
        let its = |of: &&&Heard| of.from == h.from;
        if last[k + 1..].iter().any(|later| later.from == h.from) || last.iter().filter(its).any(|h| h.i.counts.total > 0) {
            continue;
        }
        let answered = longest.iter().rev().filter(its).find(|h| h.i.counts.total > 0);
        let since_ms = answered.or(longest.iter().find(its)).map_or(now_ms, |h| h.i.arrived_ms);
        let oldest_ms = last.iter().filter(its).filter_map(|h| h.i.oldest_ms);
        let least_ms = oldest_ms.fold(now_ms.saturating_sub(since_ms) as f64, f64::max);
        found.push(Stuck { outstanding: h.i.outstanding, least_ms });
    }
    found
}

/// A window in which nothing was answered though requests wait.
fn stalled(stuck: &[Stuck], last: &[&Heard]) -> Latency {
    let least = stuck.iter().map(|s| s.least_ms).fold(0.0, f64::max);
    Latency {
        count: 0,
        mean_ms: least,
        p50_ms: least,
        p95_ms: least,
        p99_ms: least,
        p99_low_ms: Some(least),
        p99_high_ms: None,
        achieved_rps: 0.0,
        errors: last.iter().map(|h| h.i.errors).fold(0, u64::saturating_add),
        verdict: Verdict::ServerOverloaded,
    }
}

#[cfg(test)]
mod tests {
    use super::super::datagram::{decode, tests::datagram, Counts};
    use super::*;

    fn expecting(service: &str) -> Windows {
        let mut w = Windows::default();
        w.expect([service].into_iter(), 1);
        w
    }

    fn push(w: &mut Windows, at: u64, values_ms: &[u64], extra: &str) {
        w.push(decode(&datagram("m", values_ms, extra), at).unwrap(), None).unwrap();
    }

    fn window(w: &mut Windows, now_ms: u64) -> Option<Latency> {
        w.read("m", now_ms, now_ms, 10.0).window
    }

    /// One slow interval of ten owns the merged p99; the mean of ten percentiles would be ten times too small.
    #[test]
    fn percentiles_come_from_merged_histograms() {
        let mut w = expecting("m");
        for i in 0..9 {
            push(&mut w, 100 * (i + 1), &[1; 100], "");
        }
        push(&mut w, 1000, &[100; 100], "");
        let l = window(&mut w, 1000).unwrap();
        assert_eq!((l.count, l.achieved_rps, l.verdict), (1000, 1000.0, Verdict::Valid));
        assert!((l.p99_ms - 100.0).abs() < 0.2 && (l.p50_ms - 1.0).abs() < 0.01 && (l.mean_ms - 10.9).abs() < 0.02, "{l:?}");
        assert_eq!(w.interval("m", 900).unwrap().count, 100);
        assert!(w.interval("m", 1000).is_none());
    }

    /// Percentiles, bounds and mean are those that the HdrHistogram crate has of the merged histograms.
    #[test]
    fn it_agrees_with_the_crates_merge() {
        use hdrhistogram::{serialization::V2Serializer, Histogram};
        let mut x = 9u64;
        let mut lot = move |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 20) % n
        };
        let mut scratch = Scratch::default();
        for _ in 0..100 {
            let mut all: Histogram<u64> = Histogram::new_with_bounds(1, 1_000_000_000_000, 3).unwrap();
            let intervals: Vec<Interval> = (0..1 + lot(12))
                .map(|_| {
                    let mut h = Histogram::<u64>::new_with_bounds(1, 1_000_000_000_000, 3).unwrap();
                    for _ in 0..1 + lot(300) {
                        let most = 1 << (4 + lot(28));
                        h.record(1 + lot(most)).unwrap();
                    }
                    all.add(&h).unwrap();
                    let mut raw = vec![];
                    hdrhistogram::serialization::Serializer::serialize(&mut V2Serializer::new(), &h, &mut raw).unwrap();
                    let mut i = decode(&datagram("m", &[], ""), 1).unwrap();
                    i.counts = super::super::datagram::counts_of_v2(&raw).unwrap();
                    i
                })
                .collect();
            let l = summarise(&mut scratch, &intervals.iter().collect::<Vec<_>>(), 1.0, &[]).unwrap();
            let n = all.len();
            let at = |q: f64| all.value_at_quantile(q) as f64 * 1e-6;
            assert_eq!((l.count, l.p50_ms, l.p95_ms, l.p99_ms), (n, at(0.5), at(0.95), at(0.99)));
            let (few, most) = exceedances(n);
            // The middle of a rank's share, so that no rounding moves it to the next rank.
            let rank = |r: u64| at((r as f64 - 0.5) / n as f64);
            assert_eq!((l.p99_low_ms, l.p99_high_ms), (most.map(|e| rank(n - e)), few.map(|e| rank(n - e))));
            assert!((l.mean_ms - all.mean() * 1e-6).abs() < 1e-9 * l.mean_ms);
        }
    }

    /// Every value has an index whose highest value is no less and at most a thousandth more; indices rise with values.
    #[test]
    fn three_digits_tell_values_apart() {
        let mut last = 0;
        for bits in 0..64 {
            for v in [1u64 << bits, (1 << bits) + (1 << bits) / 3, (1u64 << bits) + ((1u64 << bits) - 1)] {
                let i = Scratch::index(v);
                let h = Scratch::highest(i);
                assert!(i < Scratch::VALUES && i >= last && h >= v && (h - v) as f64 <= v as f64 / 1000.0, "{v}: {i} {h}");
                assert_eq!(Scratch::index(h), i);
                last = i;
            }
        }
        assert_eq!(Scratch::highest(Scratch::index(0)), 0);
    }

    /// Who speaks before it is known who is here, and a service of this node that is away, are no strangers; others are.
    #[test]
    fn early_and_absent_services_are_no_strangers() {
        let reason = |w: &mut Windows, id: &str| w.push(decode(&datagram(id, &[1], ""), 1).unwrap(), None).err().map(|e| e.reason);
        let mut w = Windows::default();
        assert_eq!(reason(&mut w, "m"), Some(Reason::Absent));
        w.know(["m", "away"].map(String::from).into_iter());
        w.expect(["m"].into_iter(), 1);
        let got = ["m", "away", "stranger"].map(|id| reason(&mut w, id));
        assert_eq!(got, [None, Some(Reason::Absent), Some(Reason::Service)]);
        w.expect([].into_iter(), 2);
        assert_eq!(reason(&mut w, "m"), Some(Reason::Absent));
    }

    /// A feed that has been silent for more than a second is unknown, one that says "nothing answered" is overloaded, one that says
    /// "nothing to answer" is idle.
    #[test]
    fn silence_is_unknown_and_a_stall_is_overload() {
        let mut w = expecting("m");
        let state = |w: &mut Windows, now_ms| w.read("m", now_ms, now_ms, 10.0).feed;
        assert_eq!(state(&mut w, 500), FeedState::Unknown { since_ms: 1, heard: false });
        push(&mut w, 600, &[1; 100], "");
        assert_eq!((state(&mut w, 1600), window(&mut w, 1600).is_some()), (FeedState::Fresh, true));
        assert_eq!((state(&mut w, 1601), window(&mut w, 1601)), (FeedState::Unknown { since_ms: 600, heard: true }, None));
        assert_eq!(w.read("other", 0, 700, 10.0).feed, FeedState::Unknown { since_ms: 700, heard: false });
        for t in 7..=21 {
            push(&mut w, 100 * t, &[], r#","outstanding":40,"oldest_ms":null"#);
        }
        // Last answer at 600 ms.
        let l = window(&mut w, 2100).unwrap();
        assert_eq!((l.count, l.p99_ms, l.verdict), (0, 1500.0, Verdict::ServerOverloaded));
        for t in 22..=230 {
            push(&mut w, 100 * t, &[], "");
        }
        assert_eq!((state(&mut w, 23_000), window(&mut w, 23_000)), (FeedState::Idle, None));
        w.begin("m", 23_000);
        assert_eq!(state(&mut w, 23_100), FeedState::Unknown { since_ms: 23_000, heard: false });
    }

    /// At 20 requests a second the window grows until it holds the 100 that a p99 needs.
    #[test]
    fn low_rates_get_longer_windows() {
        let mut w = expecting("m");
        for t in 1..=90 {
            push(&mut w, 100 * t, &[1, 2], "");
        }
        assert_eq!(window(&mut w, 9000).unwrap().count, 100 * 2 / 10 * 5);
        let mut w = expecting("m");
        push(&mut w, 100, &[1], "");
        assert_eq!(window(&mut w, 200).unwrap().verdict, Verdict::NotResolvable);
    }

    /// The interval of the p99 covers it for 95 % of uniform samples, and has no upper end below 368 of them.
    #[test]
    fn confidence_intervals_cover() {
        // 0.99^368 < 0.025 < 0.99^367.
        assert_eq!((exceedances(367).0, exceedances(368).0), (None, Some(0)));
        // Binomial(1000, 0.01): P(X <= 3) = 0.0101, P(X <= 4) = 0.0287; P(X > 16) = 0.0264, P(X > 17) = 0.0136.
        assert_eq!(exceedances(1000), (Some(3), Some(17)));
        // Where summing up ends, the normal law goes on: 500 -+ 1.96 x 22.2.
        let (summed, normal) = (exceedances(50_000), exceedances(50_001));
        let near = |a: Option<u64>, b: Option<u64>| a.unwrap().abs_diff(b.unwrap()) <= 2;
        assert!(near(summed.0, normal.0) && near(summed.1, normal.1), "{summed:?} {normal:?}");
        let (mut x, mut hits) = (1u64, 0);
        for _ in 0..400 {
            let mut v: Vec<u64> = (0..1000)
                .map(|_| {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    1 + (x >> 33) % 100_000
                })
                .collect();
            v.sort_unstable();
            let (few, most) = exceedances(1000);
            hits += u32::from((v[1000 - most.unwrap() as usize - 1]..=v[1000 - few.unwrap() as usize - 1]).contains(&99_000));
        }
        assert!((365..=400).contains(&hits), "{hits} of 400");
    }

    /// Whatever is sent, what is kept is bounded: by time, by number, by size, and to the services that are expected.
    #[test]
    fn memory_is_bounded() {
        let mut w = expecting("m");
        let one = decode(&datagram("m", &[1], ""), 0).unwrap();
        for i in 0..3 * MOST_INTERVALS as u64 {
            w.push(Interval { arrived_ms: 1000 + i / 100, ..one.clone() }, None).unwrap();
        }
        assert_eq!(w.since("m", 0).len(), MOST_INTERVALS);
        // One of many cells takes the place of the others.
        let cells: Box<[Cell]> = (0..MOST_CELLS as u64).map(|ns| Cell { ns, count: 1 }).collect();
        let mut big = one.clone();
        big.arrived_ms = 2000;
        big.counts.cells = cells;
        w.push(big, None).unwrap();
        assert_eq!(w.since("m", 0).len(), 1);
        w.push(Interval { arrived_ms: 2100, ..one.clone() }, None).unwrap();
        assert_eq!(w.since("m", 0).len(), 1);
        // Twenty seconds later it is gone.
        w.push(Interval { arrived_ms: 23_000, ..one.clone() }, None).unwrap();
        assert_eq!(w.since("m", 0).len(), 1);

        for i in 0..100 {
            let stranger = Interval { service: format!("stranger {i}"), ..one.clone() };
            assert_eq!(w.push(stranger, None).unwrap_err().reason, Reason::Service);
        }
        w.expect_scrapes("s", 1, 0);
        assert_eq!(w.push(Interval { service: "s".into(), ..one.clone() }, None).unwrap_err().reason, Reason::Scraped);
        assert_eq!(w.sources.len(), 2);
        assert_eq!(w.expect(["m"].into_iter(), 0), ["s"]);
        assert!(!w.push_scrape("s", 0, 0, Default::default()).unwrap() && w.sources.len() == 1);
    }

    /// Windows of one sender add up to no more time than passes: claims of a minute every 100 ms are refused. Honest windows are not, whether
    /// short, long, late and together, or a little off; several processes of a service have their time each.
    #[test]
    fn windows_add_up_to_the_time_that_passes() {
        let one = decode(&datagram("m", &[1], ""), 0).unwrap();
        let speaker = |pid| Some(Speaker { socket: 0, pid, started_us: 7 });
        // What is refused of datagrams at these times, with windows of this length, of so many processes that each send all of them.
        let refused = |arrivals: &mut dyn Iterator<Item = u64>, window_ms: u64, processes: u32| {
            let mut w = expecting("m");
            let mut n = 0;
            for arrived_ms in arrivals {
                for pid in 1..=processes {
                    let got = w.push(Interval { arrived_ms, window_ms, ..one.clone() }, speaker(pid));
                    n += u32::from(got.is_err_and(|e| e.reason == Reason::Window && e.why.contains("more time than has passed")));
                }
            }
            n
        };
        let every = |ms: u64, n: u64| (0..n).map(move |i| 1000 + i * ms);
        assert_eq!(refused(&mut every(100, 6000), 100, 1), 0);
        assert_eq!(refused(&mut every(100, 6000), 100, 8), 0);
        assert_eq!(refused(&mut every(60_000, 20), 60_000, 1), 0);
        assert_eq!(refused(&mut every(1, 6000), 1, 1), 0);
        // Timers that are a tenth early.
        assert_eq!(refused(&mut every(90, 6000), 100, 1), 0);
        // 20 at once every two seconds: the reader stood still, or the sender.
        assert_eq!(refused(&mut every(2000, 100).flat_map(|t| [t; 20]), 100, 1), 0);
        // The first minute is believed, then 1.25 s of each: one of 600 in 48 s.
        assert_eq!(refused(&mut every(100, 600), 60_000, 1), 598);
        // Twice the time: 2 s are there to begin with, a quarter more than what passes is borne.
        let twice = refused(&mut every(100, 600), 200, 1);
        assert!((200..=230).contains(&twice), "{twice}");
        // Senders that cannot be told apart are not judged by their windows.
        let mut w = expecting("m");
        assert!((0..100).all(|t| w.push(Interval { arrived_ms: t, window_ms: 60_000, ..one.clone() }, None).is_ok()));
        // However many processes speak, what is kept of them is bounded.
        let mut w = expecting("m");
        let got: Vec<_> =
            (0..2000).map(|pid| w.push(Interval { arrived_ms: 9, ..one.clone() }, speaker(pid)).map_err(|e| e.reason)).collect();
        assert_eq!((got[1023], got[1024]), (Ok(()), Err(Reason::Rate)));
        // Those that were silent for a minute make room.
        assert!(w.push(Interval { arrived_ms: 70_000, ..one.clone() }, speaker(5000)).is_ok());
    }

    /// No sum overflows: of what several senders count together no more is kept than is believed of the time.
    #[test]
    fn sums_are_believed_as_counts_are() {
        let mut w = expecting("m");
        let most = Interval {
            window_ms: 60_000,
            errors: 6_000_000_000,
            counts: Counts { cells: [Cell { ns: 2000, count: 6_000_000_000 }].into(), total: 6_000_000_000, sum_ns: 1.2e13 },
            ..decode(&datagram("m", &[1], ""), 0).unwrap()
        };
        let got: Vec<_> = (0..10).map(|t| w.push(Interval { arrived_ms: 1000 + t, ..most.clone() }, None).map_err(|e| e.reason)).collect();
        assert_eq!((got[0], &got[1..]), (Ok(()), &[Err(Reason::Impossible); 9][..]));
        let l = window(&mut w, 1100).unwrap();
        assert_eq!((l.count, l.errors, l.achieved_rps), (6_000_000_000, 6_000_000_000, 1e8));
        // Refused ones are no sign of life; twenty seconds later there is room again.
        assert_eq!(w.read("m", 0, 2100, 10.0).feed, FeedState::Unknown { since_ms: 1000, heard: true });
        assert!(w.push(Interval { arrived_ms: 21_001, ..most }, None).is_ok());
        assert_eq!(w.taken()["m"], 2);
    }

    /// What a sender of these windows counts: 1 answer a ms of its window, of 2 ms each.
    fn say(w: &mut Windows, at: u64, pid: u32, window_ms: u64) {
        let counts = Counts { cells: [Cell { ns: 2_000_000, count: window_ms }].into(), total: window_ms, sum_ns: 2e6 * window_ms as f64 };
        let i = Interval { arrived_ms: at, window_ms, counts, ..decode(&datagram("m", &[1], ""), 0).unwrap() };
        w.push(i, Some(Speaker { socket: 0, pid, started_us: 7 })).unwrap();
    }

    /// Senders of one service add up in rate and histogram, whether in phase or not and however long their windows are; a restart, a sender for
    /// each window and one that goes are not counted twice.
    #[test]
    fn senders_add_up() {
        // Rates over the second and over the interval at each tick from 3 s on, of datagrams (when, of whom, how long).
        let rates = |said: &mut Vec<(u64, u32, u64)>| {
            said.sort_unstable();
            let (mut w, mut next, mut got) = (expecting("m"), said.iter().peekable(), vec![]);
            for now in (100..=8000).step_by(100) {
                while let Some((at, pid, window_ms)) = next.next_if(|s| s.0 <= now) {
                    say(&mut w, *at, *pid, *window_ms);
                }
                let r = w.read("m", now - 100, now, 10.0);
                if now > 3000 {
                    let of = |l: Option<Latency>| l.map_or(0.0, |l| l.achieved_rps);
                    assert_eq!(r.feed, FeedState::Fresh, "{now}");
                    got.push((now, of(r.window), of(r.interval)));
                }
            }
            got
        };
        let every = |pid: u32, from: u64, to: u64, ms: u64| (1..).map(move |n| (from + n * ms, pid, ms)).take_while(move |s| s.0 <= to);
        let all = |got: &[(u64, f64, f64)], want: f64, off: f64| {
            got.iter().for_each(|(now, rps, _)| assert!((rps / want - 1.0).abs() <= off, "{now}: {rps}, not {want}"));
        };
        // In phase: exactly, also in each interval.
        let got = rates(&mut (0..3).flat_map(|pid| every(pid, 0, 8000, 100)).collect());
        assert!(got.iter().all(|(_, w, i)| (*w, *i) == (3000.0, 3000.0)), "{got:?}");
        // Out of phase, each by another part of a window.
        let got = rates(&mut (0..7).flat_map(|pid| every(pid, 13 * u64::from(pid), 8000, 100)).collect());
        all(&got, 7000.0, 1e-9);
        got.iter().for_each(|(now, _, i)| assert!((i / 7000.0 - 1.0).abs() < 1e-9, "{now}: {i}"));
        // Windows of other lengths, also longer than the second.
        let lengths = [(1, 0, 100), (2, 30, 250), (3, 10, 1000), (4, 70, 2500)];
        let got = rates(&mut lengths.iter().flat_map(|(pid, from, ms)| every(*pid, *from, 8000, *ms)).collect());
        all(&got, 4000.0, 0.01);
        // A restart: the new process takes the old one's place.
        let got = rates(&mut every(1, 0, 5000, 100).chain(every(2, 5000, 8000, 100)).chain(every(3, 50, 8000, 100)).collect());
        all(&got, 2000.0, 0.11);
        // Another process for each window.
        let got = rates(&mut (1..=80).map(|n| (100 * n, n as u32, 100)).collect());
        all(&got, 1000.0, 1e-9);
        // One goes at 5 s: two until then, one a second later, and never more than two.
        let got = rates(&mut every(1, 0, 5000, 100).chain(every(2, 40, 8000, 100)).collect());
        for (now, rps, _) in got {
            let (least, most) = if now <= 5000 {
                (1999.0, 2001.0)
            } else if now > 6000 {
                (999.0, 1001.0)
            } else {
                (999.0, 2001.0)
            };
            assert!((least..=most).contains(&rps), "{now}: {rps}");
        }
    }

    /// Senders that cannot be told apart add up too; one of them alone is what its windows say, also where they come late and together.
    #[test]
    fn senders_without_a_number_add_up() {
        let rps = |arrivals: &[u64]| {
            let mut w = expecting("m");
            arrivals.iter().for_each(|at| push(&mut w, *at, &[1; 100], ""));
            let now = *arrivals.last().unwrap();
            window(&mut w, now).unwrap().achieved_rps
        };
        let steady: Vec<u64> = (1..=50).map(|n| 100 * n).collect();
        assert_eq!(rps(&steady), 1000.0);
        assert_eq!(rps(&steady.iter().flat_map(|t| [*t; 5]).collect::<Vec<_>>()), 5000.0);
        // Twenty at once after two seconds.
        let late: Vec<u64> = (1..=2).flat_map(|n| [2000 * n; 20]).collect();
        assert_eq!(rps(&late), 1000.0);
    }

    /// Of several senders one that answers nothing while its requests wait is not drowned out: they count with the time that they have waited.
    #[test]
    fn a_stuck_sender_of_several_is_seen() {
        let mut w = expecting("m");
        let stuck = |at| Interval { arrived_ms: at, outstanding: 50, ..decode(&datagram("m", &[], ""), 0).unwrap() };
        for t in 1..=30 {
            say(&mut w, 100 * t, 1, 100);
            w.push(stuck(100 * t), Some(Speaker { socket: 0, pid: 2, started_us: 7 })).unwrap();
        }
        let l = window(&mut w, 3000).unwrap();
        // 50 of 1050 wait since the first datagram.
        assert_eq!((l.count, l.achieved_rps), (1000, 1000.0));
        assert!((l.p99_ms / 2900.0 - 1.0).abs() < 1e-3 && l.p50_ms < 2.1, "{l:?}");
    }

    /// A sender of windows longer than a second is silent when the next one is overdue, not in between.
    #[test]
    fn long_windows_have_their_own_pace() {
        let mut w = expecting("m");
        let state = |w: &mut Windows, now| w.read("m", now, now, 10.0).feed.as_str();
        say(&mut w, 5000, 1, 5000);
        say(&mut w, 10_000, 1, 5000);
        assert_eq!([10_100, 12_500, 15_900, 16_001].map(|t| state(&mut w, t)), ["fresh", "fresh", "fresh", "unknown"]);
        assert_eq!(window(&mut w, 14_000).unwrap().achieved_rps, 1000.0);
    }

    /// The pages of a service's processes add up, whatever they count and however often they are made anew; one that is not read any more is a doubt,
    /// none that is read is silence.
    #[test]
    fn pages_add_up() {
        use super::super::prometheus::{Sample, Series};
        let page = |n: u64| {
            let s = Series { buckets: vec![(5.0, n), (10.0, n)], count: n, sum_ms: None, created: None };
            Sample { series: [(String::new(), s)].into(), ..Sample::default() }
        };
        let mut w = expecting("m");
        w.expect_scrapes("m", 2, 0);
        let mut at = |t: u64, second: bool| {
            // 200 a second, and 100 of a page that is made anew every two seconds.
            w.push_scrape("m", 0, t, page(1_000_000 + t / 5)).unwrap();
            if second {
                w.push_scrape("m", 1, t + 20, page(700 + t / 2000 * 200)).unwrap();
            }
            w.read("m", t - 100, t + 40, 10.0)
        };
        assert_eq!(at(500, false).feed.as_str(), "unknown");
        for t in (1000..=12_000).step_by(500) {
            let r = at(t, true);
            if t > 6000 {
                let rps = r.window.unwrap().achieved_rps;
                assert!(r.feed == FeedState::Fresh && (rps - 300.0).abs() < 5.0, "{t}: {:?} {rps}", r.feed);
            }
        }
        let states = [12_500, 13_000].map(|t| at(t, false).feed.as_str());
        assert_eq!(states, ["fresh", "doubtful"]);
        assert!(w.doubt("m", Doubt::Pages).unwrap().contains("1 of its 2 pages"));
        assert_eq!(w.read("m", 0, 40_000, 10.0).feed.as_str(), "unknown");
    }

    /// What no server has is doubted, nothing of it is shown, and it is believed again by itself.
    #[test]
    fn a_doubt_hides_what_is_said() {
        let mut w = expecting("m");
        let ns = |w: &mut Windows, at: u64, ns: u64| {
            let counts = Counts { cells: [Cell { ns, count: 100 }].into(), total: 100, sum_ns: ns as f64 * 100.0 };
            w.push(Interval { arrived_ms: at, counts, ..decode(&datagram("m", &[1], ""), 0).unwrap() }, None).unwrap();
        };
        for t in 1..=250 {
            // 2 ms sent in the place of ns.
            ns(&mut w, 100 * t, if t <= 20 { 2 } else { 2_000_000 });
            let r = w.read("m", 100 * t - 100, 100 * t, 10.0);
            // The window held some of them until 3 s.
            let doubted = t < 230;
            let want = if doubted { FeedState::Doubtful { since_ms: 100, why: Doubt::Fast } } else { FeedState::Fresh };
            if !(220..230).contains(&t) {
                assert_eq!((r.feed, r.window.is_some(), r.interval.is_some()), (want, !doubted, !doubted), "{t}");
            }
        }
        assert!(w.doubt("m", Doubt::Fast).is_none());
    }

    /// A clock that goes back leaves the order of arrival as it is.
    #[test]
    fn time_does_not_go_back() {
        let mut w = expecting("m");
        push(&mut w, 5000, &[1; 100], "");
        push(&mut w, 3000, &[2; 100], "");
        assert_eq!(w.since("m", 4999).len(), 2);
        assert_eq!(window(&mut w, 5000).unwrap().count, 200);
        // Asked about a time before what it has heard.
        assert_eq!(w.read("m", 0, 10, 10.0).feed, FeedState::Fresh);
    }
}
