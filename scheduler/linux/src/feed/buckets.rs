//! Latency from scraped histograms: what came between two scrapes, and percentiles as far as buckets tell.
//!
//! * Between two scrapes each series grows by itself. One whose counts fell, whose buckets changed or that says that it began anew
//!   has restarted: all that it counts is new. One that was not there before is new as a whole, one that is gone adds nothing.
//! * Series are added up over the bounds that all of them have.
//! * A percentile lies in one bucket; where in it is interpolated. The bucket's bounds stand beside it, and where the QoS target
//!   lies between the two of p99, it is unknown whether it is met: the feed is [`FeedState::Coarse`]. A bucket that ends at the target
//!   always says.
//! * A histogram counts what was answered. It cannot tell a service that stands still from one without work: where requests were
//!   to be expected and none were answered for more than a second, latency is unknown.
//! * A page may be made anew only now and then. It is believed at its own pace: what is new on it came since it last changed, and it is silent
//!   when it has not changed for longer than it ever takes.
//! * Counts go back once where a process restarts, and then to almost nothing. Where they go back to more than can have been answered, or
//!   again and again, another process answers: that page is doubted.

use super::datagram::{MOST_MS, MOST_PER_S};
use super::doubt::Evidence;
use super::prometheus::{Sample, Series};
use super::reading::{exceedances, Reading};
use std::collections::{BTreeMap, VecDeque};
use surefoot_server::window::{span_ms, LONGEST_WINDOW_MS, MIN_COUNT_P99, SILENT_MS};
use surefoot_server::{Doubt, FeedState, Latency, Verdict};

/// Requests that the rate until now makes expect, of which none came: by chance once in 150 times (e^-5).
const MISSED: f64 = 5.0;
/// A process that began anew answers faster than before at most by this factor, and by so many requests that waited for it.
const BURST: f64 = 4.0;
const WAITED: f64 = 1000.0;
/// And so many a second where it is not known how many it answered before.
const FASTEST_PER_S: f64 = 100_000.0;
/// Until this long of a page's growth is known there is no rate to compare with, ms.
const LEAST_KNOWN_MS: u64 = 500;
/// Beginnings that are no further apart are the same, s: some programs reckon theirs anew for each page.
const SAME_BIRTH_S: f64 = 0.1;
/// Falls of counts are added up over so long; a service that is restarted every few seconds is none that answers by turns.
const FALLS_MS: u64 = 10_000;
/// So many falls of counts within [`FALLS_MS`] are no restarts.
const FALLS: usize = 3;
/// Changes of a page that are remembered.
const GAPS: usize = 4;
/// Sum and buckets contradict each other beyond this factor; less is a page that was read while it changed.
const SUM_OFF: f64 = 10.0;

/// Requests of some time, by response time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    /// Upper bounds, ms, rising; and how many requests are within each.
    pub upto: Vec<(f64, u64)>,
    pub count: u64,
    /// Sum of response times, ms; None where it is not known of all.
    pub sum_ms: Option<f64>,
}

/// Whether a series began anew between the two.
fn restarted(before: &Series, now: &Series) -> bool {
    before.count > now.count
        || before.created != now.created
        || before.buckets.len() != now.buckets.len()
        || before.buckets.iter().zip(&now.buckets).any(|(x, y)| x.0 != y.0 || x.1 > y.1)
}

/// Whether the process of a page began anew between the two.
fn began_anew(before: &Sample, now: &Sample) -> bool {
    before.started.zip(now.started).is_some_and(|(then, now)| now > then + SAME_BIRTH_S)
}

impl Buckets {
    /// What a series counts that it did not count before.
    fn between(before: Option<&Series>, now: &Series) -> Self {
        let Some(b) = before.filter(|b| !restarted(b, now)) else {
            return Buckets { upto: now.buckets.clone(), count: now.count, sum_ms: now.sum_ms };
        };
        let count = now.count - b.count;
        // Bounds whose counts were read at slightly different times: never more within less.
        let mut most = 0;
        let grown = |(x, y): (&(f64, u64), &(f64, u64))| {
            most = (y.1 - x.1).max(most).min(count);
            (y.0, most)
        };
        let upto = b.buckets.iter().zip(&now.buckets).map(grown).collect();
        let sum_ms = now.sum_ms.zip(b.sum_ms).map(|(y, x)| y - x).filter(|s| *s >= 0.0);
        Buckets { upto, count, sum_ms }
    }

    /// All that came from one scrape to the next.
    pub fn grown(before: &Sample, now: &Sample) -> Self {
        let anew = began_anew(before, now);
        let then = |k: &String| before.series.get(k).filter(|_| !anew);
        let parts: Vec<Buckets> = now.series.iter().map(|(k, s)| Buckets::between(then(k), s)).filter(|b| b.count > 0).collect();
        Buckets::sum(parts.iter())
    }

    /// Several added up, over the bounds that all of them have.
    pub fn sum<'a>(of: impl Iterator<Item = &'a Buckets>) -> Self {
        let mut all: Option<Buckets> = None;
        for b in of.filter(|b| b.count > 0) {
            let Some(a) = &mut all else {
                all = Some(b.clone());
                continue;
            };
            let mut theirs = b.upto.iter().peekable();
            a.upto.retain_mut(|(bound, n)| {
                while theirs.peek().is_some_and(|t| t.0 < *bound) {
                    theirs.next();
                }
                let same = theirs.peek().filter(|t| t.0 == *bound);
                *n = n.saturating_add(same.map_or(0, |t| t.1));
                same.is_some()
            });
            a.count = a.count.saturating_add(b.count);
            a.sum_ms = a.sum_ms.zip(b.sum_ms).map(|(x, y)| x + y);
        }
        all.unwrap_or_default()
    }

    /// Whether so many requests, with so much time in all, can have been answered within `span_ms`.
    ///
    /// # Errors
    /// What cannot be, and its bound.
    fn check(&self, span_ms: u64) -> Result<(), String> {
        // Scrapes are read at slightly different times: a second's worth is believed of less than a second too.
        let most = MOST_PER_S / 1000 * span_ms.clamp(1000, LONGEST_WINDOW_MS);
        if self.count > most {
            return Err(format!("{} requests more in {span_ms} ms. At most {MOST_PER_S} a second are believed", self.count));
        }
        match self.sum_ms.filter(|s| !(0.0..=MOST_MS * self.count.max(1) as f64).contains(s)) {
            Some(s) => Err(format!("a sum of {s:e} ms for {} requests. At most a day each is believed", self.count)),
            None => Ok(()),
        }
    }

    /// Whether the sum can be that of the requests in these buckets.
    fn contradiction(&self) -> Option<Evidence> {
        let sum_ms = self.sum_ms.filter(|_| self.count >= MIN_COUNT_P99)?;
        let (mut low_ms, mut high_ms, mut before) = (0.0, 0.0, (0.0, 0));
        for b in &self.upto {
            let n = b.1.saturating_sub(before.1) as f64;
            (low_ms, high_ms, before) = (low_ms + n * before.0, high_ms + n * b.0, *b);
        }
        let beyond = self.count.saturating_sub(before.1) as f64;
        low_ms += beyond * before.0;
        let impossible = sum_ms * SUM_OFF < low_ms || beyond == 0.0 && sum_ms > high_ms * SUM_OFF;
        impossible.then(|| {
            let mean = |of: f64| of / self.count as f64;
            let said = format!(
                "the mean by its sum is {:e} ms, and by its buckets from {:e} to {:e} ms. Check the unit of each, or leave the sum out",
                mean(sum_ms),
                mean(low_ms),
                if beyond > 0.0 { f64::INFINITY } else { mean(high_ms) }
            );
            Evidence::new(Doubt::Sum, said)
        })
    }

    /// Bounds of the bucket that holds the request of this rank, ms, and where in it it would be if they were spread evenly.
    /// Above the last bound there is no upper one, and the rank is somewhere beyond.
    fn at(&self, rank: u64) -> (f64, f64, Option<f64>) {
        let i = self.upto.partition_point(|b| b.1 < rank);
        let (low, below) = if i > 0 { self.upto[i - 1] } else { (0.0, 0) };
        match self.upto.get(i) {
            Some((high, n)) => (low, low + (high - low) * (rank - below) as f64 / (n - below) as f64, Some(*high)),
            None => (low, low.next_up(), None),
        }
    }

    /// Latency at this rate, and whether p99 says how it stands to the target; None without requests.
    fn latency(&self, achieved_rps: f64, qos_target_ms: f64) -> Option<(Latency, bool)> {
        let n = self.count;
        if n == 0 {
            return None;
        }
        let rank = |q: f64| ((q * n as f64).ceil() as u64).max(1);
        let (low, p99_ms, high) = self.at(rank(0.99));
        let (few, most) = exceedances(n);
        let told = qos_target_ms <= low || high.is_some_and(|h| h <= qos_target_ms);
        let middle = || {
            let mut before = (0.0, 0);
            let inside: f64 = self
                .upto
                .iter()
                .map(|b| {
                    let x = 0.5 * (before.0 + b.0) * b.1.saturating_sub(before.1) as f64;
                    before = *b;
                    x
                })
                .sum();
            inside + before.0 * n.saturating_sub(before.1) as f64
        };
        let l = Latency {
            count: n,
            mean_ms: self.sum_ms.unwrap_or_else(middle) / n as f64,
            p50_ms: self.at(rank(0.5)).1,
            p95_ms: self.at(rank(0.95)).1,
            p99_ms,
            // The bucket, and as much further as so few requests leave open.
            p99_low_ms: most.map(|e| self.at((n - e).max(1)).0),
            p99_high_ms: few.and_then(|e| self.at(n - e).2),
            achieved_rps,
            errors: 0,
            verdict: if n >= MIN_COUNT_P99 && told { Verdict::Valid } else { Verdict::NotResolvable },
        };
        Some((l, told))
    }
}

/// What came between two scrapes.
#[derive(Debug)]
struct Part {
    arrived_ms: u64,
    span_ms: u64,
    buckets: Buckets,
}

/// A change of a page.
#[derive(Clone, Copy, Debug)]
struct Gap {
    since_last_ms: u64,
    /// The scrape before found a change too.
    at_once: bool,
}

/// A page of another process than the page before.
struct Another {
    said: String,
    /// What it counts has not come since. Else it may be a process that begins anew again and again.
    for_certain: bool,
}

/// The last seconds of one page of a scraped service.
#[derive(Debug, Default)]
pub struct Scraped {
    /// When it was last read.
    last: Option<(u64, Sample)>,
    /// Since when it has said the same, whether it has ever changed, and its last changes.
    changed_ms: u64,
    has_changed: bool,
    gaps: VecDeque<Gap>,
    recent: VecDeque<Part>,
    /// When a scrape last found new requests.
    busy_ms: Option<u64>,
    /// The highest rate between two scrapes so far.
    most_rps: f64,
    /// When its counts fell, or came back.
    falls: VecDeque<u64>,
    /// Series that were on the page and are not, with when they were last.
    gone: BTreeMap<String, (u64, Series)>,
    evidence: Vec<Evidence>,
}

impl Scraped {
    /// Take what a scrape read. The first one is only the mark from which to count.
    ///
    /// # Errors
    /// A count that cannot have come since the scrape before. Nothing is taken from this page; the next one counts from it.
    pub fn push(&mut self, now_ms: u64, read: Sample) -> Result<(), String> {
        let kept_ms = LONGEST_WINDOW_MS + self.period_ms();
        while self.recent.front().is_some_and(|p| p.arrived_ms + kept_ms < now_ms) {
            self.recent.pop_front();
        }
        if let Some(said) = &read.contradicts {
            self.evidence.push(Evidence::new(Doubt::Unit, said.clone()));
        }
        let before = self.last.take().filter(|(t, _)| now_ms.saturating_sub(*t) <= LONGEST_WINDOW_MS);
        let Some((seen_ms, before)) = before else {
            (self.changed_ms, self.has_changed) = (now_ms, false);
            self.gaps.clear();
            self.last = Some((now_ms, read));
            return Ok(());
        };
        let same = before.series == read.series && before.started == read.started;
        if same && !self.is_live() {
            // Not made anew, or nothing was asked of the service: the next change counts from the last one.
            self.last = Some((now_ms, read));
            return Ok(());
        }
        let at_once = seen_ms == self.changed_ms;
        let span_ms = now_ms.saturating_sub(if self.is_live() { seen_ms } else { self.changed_ms });
        if !same {
            let gap = Gap { since_last_ms: now_ms.saturating_sub(self.changed_ms), at_once };
            if self.has_changed {
                self.gaps.push_back(gap);
            }
            if self.gaps.len() > GAPS {
                self.gaps.pop_front();
            }
            self.changed_ms = now_ms;
        }
        // It rested at first: what is new by now may have come since long before the first look. From here on its pace is known.
        let is_mark = !same && !self.has_changed && !at_once;
        self.has_changed |= !same;
        let kept = self.take(now_ms, span_ms, &before, &read, is_mark);
        self.last = Some((now_ms, read));
        kept
    }

    fn take(&mut self, now_ms: u64, span_ms: u64, before: &Sample, read: &Sample, is_mark: bool) -> Result<(), String> {
        let other = self.is_another(now_ms, span_ms, before, read);
        let buckets = Buckets::grown(before, read);
        let is_other = other.as_ref().is_some_and(|o| o.for_certain);
        self.evidence.extend(other.map(|o| Evidence::new(Doubt::Workers, o.said)));
        buckets.check(span_ms)?;
        if is_other {
            // What another process counts has not come since.
            return Ok(());
        }
        self.evidence.extend(buckets.contradiction());
        if is_mark {
            self.busy_ms = (buckets.count > 0).then_some(now_ms).or(self.busy_ms);
            return Ok(());
        }
        self.most_rps = self.most_rps.max(buckets.count as f64 / (span_ms.max(1) as f64 * 1e-3));
        if buckets.count > 0 {
            self.busy_ms = Some(now_ms);
        }
        self.recent.push_back(Part { arrived_ms: now_ms, span_ms, buckets });
        Ok(())
    }

    /// Why a page is none of the process that the page before was of.
    fn is_another(&mut self, now_ms: u64, span_ms: u64, before: &Sample, read: &Sample) -> Option<Another> {
        const REMEDY: &str = "Serve one registry for all of its processes (a multi-process registry), or give each a page of its own and \
                              list all of them: url = [\"...\", \"...\"]";
        // Nothing begins before it began.
        let older = |(k, now): (&String, &Series)| {
            before.series.get(k).and_then(|b| b.created.zip(now.created)).is_some_and(|(then, now)| now < then - SAME_BIRTH_S)
        };
        let earlier = before.started.zip(read.started).is_some_and(|(then, now)| now < then - SAME_BIRTH_S);
        if earlier || read.series.iter().any(older) {
            let said = format!("its page says that it began earlier than the page before: another process answers. {REMEDY}");
            return Some(Another { said, for_certain: true });
        }
        let born = |then: Option<f64>, now: Option<f64>| now.is_some_and(|n| then.is_none_or(|t| n > t));
        let reborn = began_anew(before, read);
        let (mut level, mut from, mut fell) = (0u64, 0u64, false);
        let known = self.expected(now_ms, span_ms);
        for (k, now) in &read.series {
            let anew = match before.series.get(k) {
                Some(b) if reborn || restarted(b, now) => {
                    from = from.saturating_add(b.count);
                    fell |= !reborn && !born(b.created, now.created);
                    true
                }
                Some(_) => false,
                None => {
                    // A series that went and goes on where it was is another process's.
                    let back = self.gone.remove(k).is_some_and(|(_, was)| was.count > 0 && !restarted(&was, now));
                    fell |= back;
                    back || known.is_some()
                }
            };
            level = level.saturating_add(if anew { now.count } else { 0 });
        }
        self.gone.retain(|_, (t, _)| *t + FALLS_MS >= now_ms);
        let gone = before.series.iter().filter(|(k, _)| !read.series.contains_key(*k));
        self.gone.extend(gone.map(|(k, s)| (k.clone(), (now_ms, s.clone()))));
        let span_s = span_ms as f64 * 1e-3;
        let most = known.map_or(FASTEST_PER_S * span_s, |n| BURST * n.max(self.most_rps * span_s)) + WAITED;
        if level as f64 > most {
            let since = if from > 0 { format!("fell from {from} to {level}") } else { format!("begin at {level}") };
            let said = format!("its counts {since}, which no process that began anew has answered in {span_ms} ms. {REMEDY}");
            return Some(Another { said, for_certain: true });
        }
        self.falls.retain(|t| *t + FALLS_MS > now_ms);
        if fell {
            self.falls.push_back(now_ms);
        }
        let n = self.falls.len();
        let said = || format!("its counts fell {n} times within {} s. {REMEDY}", FALLS_MS / 1000);
        (fell && n >= FALLS).then(|| Another { said: said(), for_certain: false })
    }

    /// Requests that are to be expected in such a time; None where too little is known for that.
    fn expected(&self, now_ms: u64, span_ms: u64) -> Option<f64> {
        let recent = self.recent.iter().filter(|p| p.arrived_ms + LONGEST_WINDOW_MS >= now_ms);
        let (count, known_ms) = recent.fold((0u64, 0), |(n, t), p| (n.saturating_add(p.buckets.count), t + p.span_ms));
        (known_ms >= LEAST_KNOWN_MS).then(|| count as f64 / known_ms as f64 * span_ms as f64)
    }

    /// What spoke against the last page.
    pub fn take_evidence(&mut self) -> Vec<Evidence> {
        std::mem::take(&mut self.evidence)
    }

    /// It changes from one scrape to the next, where it is asked for anything.
    fn is_live(&self) -> bool {
        self.gaps.iter().any(|g| g.at_once)
    }

    /// The longest that it took of late to change; 0 where it may change at any time, or takes longer than any window.
    fn period_ms(&self) -> u64 {
        let longest = self.gaps.iter().map(|g| g.since_last_ms).max().filter(|ms| *ms <= LONGEST_WINDOW_MS);
        longest.filter(|_| !self.is_live()).unwrap_or(0)
    }

    fn newer(&self, than_ms: u64) -> impl Iterator<Item = &Part> {
        self.recent.iter().filter(move |p| p.arrived_ms > than_ms)
    }

    /// What came since then; of a page that is not made anew so often, what was last on it.
    fn speaks(&self, than_ms: u64, now_ms: u64) -> impl Iterator<Item = &Part> {
        let still_ms = self.period_ms() + SILENT_MS;
        let last = self.recent.back().filter(|p| self.period_ms() > 0 && p.arrived_ms <= than_ms && p.arrived_ms + still_ms >= now_ms);
        last.into_iter().chain(self.newer(than_ms))
    }

    /// Since when no request was answered though some were to be expected.
    fn stands_still(&self, came_ms: u64, now_ms: u64) -> Option<u64> {
        let busy_ms = self.busy_ms.unwrap_or(came_ms);
        let quiet_ms = now_ms.saturating_sub(busy_ms);
        let known = self.recent.iter().filter(|p| p.arrived_ms <= busy_ms && p.arrived_ms + LONGEST_WINDOW_MS + self.period_ms() >= now_ms);
        let (count, span_ms) = known.fold((0, 0), |(n, t), p| (n + p.buckets.count, t + p.span_ms));
        let expected = count as f64 / span_ms.max(1) as f64 * quiet_ms as f64;
        (quiet_ms > SILENT_MS + self.period_ms() && (expected >= MISSED || count == 0)).then_some(busy_ms)
    }

    /// Everything about a service of this one page, as [`super::window::Windows::read`].
    pub fn read(&self, came_ms: u64, from_ms: u64, now_ms: u64, qos_target_ms: f64) -> Reading {
        read(std::slice::from_ref(self), came_ms, from_ms, now_ms, qos_target_ms)
    }
}

/// Pages that are not read while others of the same service are.
pub(super) fn unread(pages: &[Scraped], came_ms: u64, now_ms: u64) -> Option<Evidence> {
    let silent = |p: &&Scraped| now_ms.saturating_sub(p.last.as_ref().map_or(came_ms, |(t, _)| *t)) > SILENT_MS;
    let n = pages.iter().filter(silent).count();
    let said = || {
        format!("{n} of its {} pages are not read: what they count is not heard. See that all answer, or take them off url", pages.len())
    };
    (n > 0 && n < pages.len()).then(|| Evidence::new(Doubt::Pages, said()))
}

/// Latency of what came on some pages, over the bounds that all have; each adds its own rate.
fn latency<'a, P: Iterator<Item = &'a Part>>(pages: impl Iterator<Item = P>, qos_target_ms: f64) -> Option<(Latency, bool)> {
    let (mut all, mut rps) = (vec![], 0.0);
    for page in pages {
        let (mut count, mut span_ms) = (0u64, 0);
        for p in page {
            (count, span_ms) = (count.saturating_add(p.buckets.count), span_ms + p.span_ms);
            all.push(&p.buckets);
        }
        rps += count as f64 / (span_ms.max(1) as f64 * 1e-3);
    }
    Buckets::sum(all.into_iter()).latency(rps, qos_target_ms)
}

/// Everything about a service of these pages, as [`super::window::Windows::read`].
pub(super) fn read(pages: &[Scraped], came_ms: u64, from_ms: u64, now_ms: u64, qos_target_ms: f64) -> Reading {
    let busy_ms = pages.iter().filter_map(|p| p.busy_ms).max();
    let unknown = |since_ms| FeedState::Unknown { since_ms, heard: busy_ms.is_some() };
    if pages.iter().any(|p| p.last.is_none()) {
        // The first look at some of them is still to come, or failed.
        return Reading { feed: unknown(busy_ms.unwrap_or(came_ms)), interval: None, window: None };
    }
    let interval = latency(pages.iter().map(|p| p.newer(from_ms)), qos_target_ms).map(|l| l.0);
    let still: Vec<u64> = pages.iter().filter_map(|p| p.stands_still(came_ms, now_ms)).collect();
    if still.len() == pages.len() {
        return Reading { feed: unknown(still.into_iter().max().unwrap_or(came_ms)), interval, window: None };
    }
    let at = |span: u64| latency(pages.iter().map(|p| p.speaks(now_ms.saturating_sub(span), now_ms)), qos_target_ms);
    // What the last span that was asked about gives is not worked out again.
    let mut asked = (0, None);
    let span = span_ms(|span| {
        asked = (span, at(span));
        asked.1.map_or(0, |(l, _)| l.count)
    });
    let l = if asked.0 == span { asked.1 } else { at(span) };
    let feed = match l {
        Some((_, true)) => FeedState::Fresh,
        Some((_, false)) => FeedState::Coarse,
        // Never idle: see above.
        None => unknown(busy_ms.unwrap_or(came_ms)),
    };
    Reading { feed, interval, window: l.map(|l| l.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn series(buckets: &[(f64, u64)], count: u64) -> Series {
        Series { buckets: buckets.to_vec(), count, sum_ms: None, created: None }
    }

    fn page(series: &[(&str, Series)]) -> Sample {
        Sample { series: series.iter().map(|(k, s)| (k.to_string(), s.clone())).collect(), ..Sample::default() }
    }

    fn lot(x: &mut u64) -> u64 {
        *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *x >> 33
    }

    /// Whatever several series count, and whichever of them restart, vanish and come: scrapes added up have the buckets of the true
    /// histogram of what was counted between them, and every percentile lies in the bucket of the true one.
    #[test]
    fn merged_scrapes_are_the_true_histogram() {
        const BOUNDS: [f64; 6] = [1.0, 2.5, 5.0, 10.0, 25.0, 100.0];
        let mut x = 11;
        for _ in 0..300 {
            let mut now: BTreeMap<String, Series> = BTreeMap::new();
            let mut scraped = Scraped::default();
            scraped.push(0, Sample { series: now.clone(), ..Sample::default() }).unwrap();
            let mut truth: Vec<f64> = vec![];
            for t in 1..=8u64 {
                for id in 0..3 {
                    let id = format!("code={id}");
                    if lot(&mut x).is_multiple_of(12) {
                        now.remove(&id);
                        continue;
                    }
                    let fresh = || series(&BOUNDS.map(|b| (b, 0)), 0);
                    let s = now.entry(id).or_insert_with(fresh);
                    let n = lot(&mut x) % 200;
                    // A restart that counts more than before at once cannot be seen, except by its birthday.
                    if lot(&mut x).is_multiple_of(12) {
                        *s = Series { created: Some(t as f64), ..fresh() };
                    }
                    for _ in 0..n {
                        let v = 0.2 * (lot(&mut x) % 1000) as f64 * (lot(&mut x) % 4) as f64 / 3.0;
                        s.buckets.iter_mut().filter(|b| v <= b.0).for_each(|b| b.1 += 1);
                        s.count += 1;
                        truth.push(v);
                    }
                }
                scraped.push(t * 500, Sample { series: now.clone(), ..Sample::default() }).unwrap();
            }
            let all = Buckets::sum(scraped.recent.iter().map(|p| &p.buckets));
            truth.sort_by(f64::total_cmp);
            assert_eq!(all.count, truth.len() as u64);
            for (bound, n) in &all.upto {
                assert_eq!(*n, truth.iter().filter(|v| *v <= bound).count() as u64, "{bound}");
            }
            assert_eq!(all.upto.len(), BOUNDS.len());
            let (l, _) = all.latency(1.0, 5.0).unwrap();
            for (q, got) in [(0.5, l.p50_ms), (0.95, l.p95_ms), (0.99, l.p99_ms)] {
                let v = truth[((q * truth.len() as f64).ceil() as usize).max(1) - 1];
                let bucket = |v: f64| BOUNDS.iter().position(|b| v <= *b);
                assert_eq!(bucket(got), bucket(v), "p{q}: {got} for {v}");
            }
        }
    }

    /// Percentiles are interpolated within their bucket, whose bounds stand beside p99; the mean is that of the sums.
    #[test]
    fn a_percentile_knows_its_bucket() {
        let b = Buckets { upto: vec![(10.0, 900), (20.0, 1000), (40.0, 1000)], count: 1000, sum_ms: Some(6000.0) };
        let (l, told) = b.latency(1000.0, 20.0).unwrap();
        // Rank 990 is the 90th of 100 between 10 and 20; rank 500 the 500th of 900 from 0 to 10.
        assert_eq!((l.p99_ms, l.p50_ms), (19.0, 10.0 * 500.0 / 900.0));
        assert_eq!((l.p99_low_ms, l.p99_high_ms), (Some(10.0), Some(20.0)));
        assert_eq!((l.count, l.mean_ms, l.achieved_rps, l.verdict, told), (1000, 6.0, 1000.0, Verdict::Valid, true));
        // No sums: the middles of the buckets, (900 x 5 + 100 x 15) / 1000.
        assert_eq!(Buckets { sum_ms: None, ..b }.latency(1000.0, 20.0).unwrap().0.mean_ms, 6.0);
    }

    /// Bounds on both sides of the target leave the question open; a bound at the target, or beyond it, does not.
    #[test]
    fn a_target_within_the_bucket_is_not_decided() {
        let scraped = |upto: &[(f64, u64)], count: u64| {
            let mut s = Scraped::default();
            s.push(0, page(&[("", series(&upto.iter().map(|b| (b.0, 0)).collect::<Vec<_>>(), 0))])).unwrap();
            s.push(500, page(&[("", series(upto, count))])).unwrap();
            s
        };
        let state = |s: &Scraped, target| {
            let r = s.read(0, 0, 600, target);
            (r.feed, r.window.unwrap().verdict, target / r.window.unwrap().p99_ms >= 1.0)
        };
        // p99 of 1000 lies in (10, 25].
        let s = scraped(&[(10.0, 950), (25.0, 1000)], 1000);
        assert_eq!(state(&s, 20.0).0, FeedState::Coarse);
        assert_eq!(state(&s, 20.0).1, Verdict::NotResolvable);
        assert_eq!(state(&s, 25.0), (FeedState::Fresh, Verdict::Valid, true));
        assert_eq!(state(&s, 10.0), (FeedState::Fresh, Verdict::Valid, false));
        // Beyond the last bound: missed for certain where the target is not beyond it too.
        let s = scraped(&[(10.0, 100), (25.0, 980)], 1000);
        assert_eq!(state(&s, 25.0), (FeedState::Fresh, Verdict::Valid, false));
        assert_eq!(state(&s, 30.0).0, FeedState::Coarse);
        assert_eq!(s.read(0, 0, 600, 25.0).window.unwrap().p99_high_ms, None);
    }

    /// Series with other buckets are added up over the common ones, and a page that was read while it grew does no harm.
    #[test]
    fn common_bounds_are_what_can_be_added_up() {
        let a = Buckets { upto: vec![(1.0, 1), (2.0, 2), (4.0, 4)], count: 5, sum_ms: Some(9.0) };
        let b = Buckets { upto: vec![(2.0, 10), (3.0, 20), (4.0, 30)], count: 30, sum_ms: None };
        assert_eq!(Buckets::sum([&a, &b].into_iter()), Buckets { upto: vec![(2.0, 12), (4.0, 34)], count: 35, sum_ms: None });
        let before = series(&[(1.0, 5), (2.0, 10)], 10);
        let torn = series(&[(1.0, 15), (2.0, 18)], 19);
        assert_eq!(Buckets::between(Some(&before), &torn).upto, [(1.0, 9), (2.0, 9)]);
    }

    /// No answers where there were many just before: unknown after a second, not "met" as long as the window remembers; a slow service
    /// is given the time that its rate asks for.
    #[test]
    fn silence_of_a_busy_service_is_unknown() {
        let run = |per_scrape: u64, until: u64| {
            let mut s = Scraped::default();
            let mut n = 0;
            for t in 0..=16u64 {
                s.push(t * 500, page(&[("", series(&[(5.0, n), (10.0, n)], n))])).unwrap();
                n += if t < until { per_scrape } else { 0 };
            }
            // Now is 8000; the last answers were seen at 500 x until.
            s.read(0, 7900, 8000, 10.0)
        };
        assert_eq!(run(100, 16).feed, FeedState::Fresh);
        assert_eq!(run(100, 13).feed, FeedState::Unknown { since_ms: 6500, heard: true });
        // One in 500 ms: in 1.5 s three are missing, which happens.
        assert_eq!(run(1, 13).feed, FeedState::Fresh);
        assert_eq!(run(1, 13).window.unwrap().verdict, Verdict::NotResolvable);
        assert_eq!(run(1, 10).feed, FeedState::Unknown { since_ms: 5000, heard: true });
        // Nothing at all since it came.
        assert_eq!(run(0, 16), Reading { feed: FeedState::Unknown { since_ms: 0, heard: false }, interval: None, window: None });
    }

    /// More requests between two scrapes than a second can hold, and sums that they cannot add up to, are refused with what was counted; the next
    /// scrape counts from there.
    #[test]
    fn an_impossible_jump_is_refused() {
        let mut s = Scraped::default();
        let sums = |n: u64, sum_ms: f64| page(&[("", Series { sum_ms: Some(sum_ms), ..series(&[(5.0, n)], n) })]);
        s.push(0, sums(1000, 1e3)).unwrap();
        s.push(500, sums(1100, 1.1e3)).unwrap();
        // 2^53 is the highest that a page can say.
        let e = s.push(1000, sums(1 << 53, 1.2e3)).unwrap_err();
        assert!(e.contains("9007199254739892 requests more in 500 ms"), "{e}");
        assert_eq!(s.read(0, 0, 1000, 10.0).window.unwrap().count, 100);
        s.push(1500, sums((1 << 53) - 50, 1.2e3)).unwrap_err();
        s.push(2000, sums((1 << 53) - 10, 1.3e3)).unwrap();
        assert_eq!(s.read(0, 0, 2000, 10.0).interval.unwrap().count, 140);
        // 10^8 a second are believed; a series that appears counts as a whole.
        let mut s = Scraped::default();
        s.push(0, page(&[])).unwrap();
        s.push(500, sums(100_000_000, 1.0)).unwrap();
        s.push(3000, sums(350_000_000, 2.0)).unwrap();
        assert!(s.push(4000, sums(450_000_001, 3.0)).is_err());
        // A day each.
        s.push(4500, sums(450_000_002, 86_400_003.0)).unwrap();
        assert!(s.push(5000, sums(450_000_003, 172_800_004.0)).unwrap_err().contains("a sum of"));
    }

    fn sample(counts: &[(&str, u64)]) -> Sample {
        page(&counts.iter().map(|(k, n)| (*k, series(&[(5.0, *n), (10.0, *n)], *n))).collect::<Vec<_>>())
    }

    /// When pages of these counts, half a second apart, first speak against themselves; None where they never do.
    fn doubted(pages: impl IntoIterator<Item = Sample>) -> Option<usize> {
        let mut s = Scraped::default();
        pages.into_iter().enumerate().position(|(k, read)| {
            s.push(500 * k as u64, read).unwrap();
            s.take_evidence().iter().any(|e| e.doubt == Doubt::Workers && e.said.contains("multi-process registry"))
        })
    }

    /// Processes that answer a page by turns are found, however many there are and however old; one that restarts, once or again, is not taken for
    /// several, nor is what it counts lost.
    #[test]
    fn processes_that_answer_by_turns_are_found() {
        let turns = |ages: &'static [u64]| {
            let n = ages.len();
            doubted((0..40usize).map(move |k| sample(&[("", ages[(k * 7 + k / 5) % n] + 13 * k as u64)])))
        };
        for (ages, within) in [(&[1_000_000, 900_000][..], 3), (&[900_000, 1_000_000], 4), (&[5000, 5400], 12), (&[900, 40, 7000], 12)] {
            let at = turns(ages);
            assert!(at.is_some_and(|k| k <= within), "{ages:?}: {at:?}");
        }
        // Each has its own series, which come and go.
        let own = (0..20u64).map(|k| sample(&[(if k % 2 == 0 { "path=/a" } else { "path=/b" }, 700 + 10 * k)]));
        assert!(doubted(own).is_some_and(|k| k <= 8));
        // Only their birthdays tell, of the page or of its series.
        let page_of = |k: u64| Sample { started: Some(if k.is_multiple_of(2) { 1000.0 } else { 1002.5 }), ..sample(&[("", 30 * k)]) };
        assert_eq!(doubted((0..20).map(page_of)), Some(2));
        let born = |k: u64| {
            page(&[("", Series { created: Some(if k.is_multiple_of(2) { 1.0 } else { 2.0 }), ..series(&[(5.0, 30 * k)], 30 * k) })])
        };
        assert_eq!(doubted((0..20).map(born)), Some(2));
        // A restart: 100 a page, then from 0 again; one every ten pages; one that has a burst to answer.
        let restarts = |every: u64, burst: u64| {
            doubted((0..60u64).map(move |k| sample(&[("", k % every * 100 + if k >= every { burst } else { 0 })])))
        };
        assert_eq!([restarts(30, 0), restarts(10, 0), restarts(30, 300)], [None; 3]);
        // One that says that it began anew, and has counted more than before at once: all of it is new.
        let mut s = Scraped::default();
        s.push(0, Sample { started: Some(1.0), ..sample(&[("", 100)]) }).unwrap();
        s.push(500, Sample { started: Some(9.0), ..sample(&[("", 150)]) }).unwrap();
        assert_eq!((s.take_evidence(), s.read(0, 0, 500, 10.0).interval.unwrap().count), (vec![], 150));
    }

    /// A page that is made anew only every few seconds is believed at that pace: no second without answers, no silence in between; when it stops
    /// for longer than its pace it is silent.
    #[test]
    fn a_page_has_its_own_pace() {
        for period in [2u64, 5, 10] {
            let mut s = Scraped::default();
            let read = |s: &mut Scraped, t: u64, upto: u64| {
                s.push(t, sample(&[("", t.min(upto) / (1000 * period) * 200 * period)])).unwrap();
                s.read(0, t - 100, t, 10.0)
            };
            for t in (500..=60_000).step_by(500) {
                let r = read(&mut s, t, u64::MAX);
                // Known from its second change on.
                if t > 2000 * period {
                    let rps = r.window.map_or(0.0, |w| w.achieved_rps);
                    assert!(r.feed == FeedState::Fresh && (rps - 200.0).abs() < 1.0, "{period} s, {t}: {:?} {rps}", r.feed);
                }
            }
            let state = |s: &mut Scraped, t: u64| read(s, t, 60_000).feed;
            assert_eq!(state(&mut s, 60_000 + 1000 * period), FeedState::Fresh);
            assert!(matches!(state(&mut s, 62_500 + 1000 * period), FeedState::Unknown { .. }));
            assert!(s.take_evidence().is_empty());
        }
    }

    /// A sum that the buckets contradict is doubted, such as one in another unit; one that was read a little later is not.
    #[test]
    fn a_sum_in_another_unit_is_doubted() {
        let found = |sum_ms: f64, upto: &[(f64, u64)]| {
            let of = |n: u64| Series {
                sum_ms: Some(sum_ms * n as f64),
                ..series(&upto.iter().map(|b| (b.0, b.1 * n)).collect::<Vec<_>>(), 500 * n)
            };
            let mut s = Scraped::default();
            s.push(0, page(&[("", of(0))])).unwrap();
            s.push(500, page(&[("", of(1))])).unwrap();
            s.take_evidence().first().map(|e| e.doubt)
        };
        // 500 of some 7 ms.
        let b = [(5.0, 0), (10.0, 500)];
        assert_eq!([found(3500.0, &b), found(2000.0, &b), found(20_000.0, &b)], [None; 3]);
        assert_eq!([found(3.5e6, &b), found(3.5, &b)], [Some(Doubt::Sum); 2]);
        // Beyond the last bound anything may be.
        assert_eq!(found(3.5e6, &[(5.0, 0), (10.0, 499)]), None);
    }

    /// After a gap longer than any window nothing is made of what came in between.
    #[test]
    fn a_long_gap_starts_anew() {
        let mut s = Scraped::default();
        s.push(0, page(&[("", series(&[(5.0, 0)], 0))])).unwrap();
        let late_ms = 2 * LONGEST_WINDOW_MS;
        s.push(late_ms, page(&[("", series(&[(5.0, 5000)], 5000))])).unwrap();
        assert_eq!(s.read(0, 0, late_ms, 10.0).window, None);
        s.push(late_ms + 500, page(&[("", series(&[(5.0, 5100)], 5100))])).unwrap();
        assert_eq!(s.read(0, 0, late_ms + 500, 10.0).window.unwrap().count, 100);
    }
}
