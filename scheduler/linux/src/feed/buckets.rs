//! Latency from scraped histograms: what came between two scrapes, and percentiles as far as buckets tell.
//!
//! * Between two scrapes each series grows by itself. One whose counts fell, whose buckets changed or that says that it began anew
//!   has restarted: all that it counts is new. One that was not there before is new as a whole, one that is gone adds nothing.
//! * Series are added up over the bounds that all of them have.
//! * A percentile lies in one bucket; where in it is interpolated. The bucket's bounds stand beside it, and where the QoS target
//!   lies between the two of p99, nobody can say whether it is met: the feed is [`FeedState::Coarse`]. A bucket that ends at the target
//!   always says.
//! * A histogram counts what was answered. It cannot tell a service that stands still from one without work: where requests were
//!   to be expected and none were answered for more than a second, latency is unknown.

use super::datagram::{MOST_MS, MOST_PER_S};
use super::prometheus::{Sample, Series};
use super::window::{exceedances, Reading, LONGEST_WINDOW_MS};
use std::collections::VecDeque;
use surefoot_server::window::{MIN_COUNT_P99, SILENT_MS, WINDOW_MS};
use surefoot_server::{FeedState, Latency, Verdict};

/// Requests that the rate until now makes expect, of which none came: by chance once in 150 times (e^-5).
const MISSED: f64 = 5.0;

/// Requests of some time, by response time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    /// Upper bounds, ms, rising; and how many requests are within each.
    pub upto: Vec<(f64, u64)>,
    pub count: u64,
    /// Sum of response times, ms; None where it is not known of all.
    pub sum_ms: Option<f64>,
}

impl Buckets {
    /// What a series counts that it did not count before.
    fn between(before: Option<&Series>, now: &Series) -> Self {
        let restarted = |b: &Series| {
            b.count > now.count
                || b.created != now.created
                || b.buckets.len() != now.buckets.len()
                || b.buckets.iter().zip(&now.buckets).any(|(x, y)| x.0 != y.0 || x.1 > y.1)
        };
        let Some(b) = before.filter(|b| !restarted(b)) else {
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
        let parts: Vec<Buckets> =
            now.series.iter().map(|(k, s)| Buckets::between(before.series.get(k), s)).filter(|b| b.count > 0).collect();
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

    /// Latency over `span_ms`, and whether p99 says how it stands to the target; None without requests.
    fn latency(&self, span_ms: u64, qos_target_ms: f64) -> Option<(Latency, bool)> {
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
            achieved_rps: n as f64 / (span_ms.max(1) as f64 * 1e-3),
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

/// The last seconds of one scraped service.
#[derive(Debug, Default)]
pub struct Scraped {
    last: Option<(u64, Sample)>,
    recent: VecDeque<Part>,
    /// When a scrape last found new requests.
    busy_ms: Option<u64>,
}

impl Scraped {
    /// Take what a scrape read. The first one is only the mark from which to count.
    ///
    /// # Errors
    /// A count that cannot have come since the scrape before. Nothing is taken from this page; the next one counts from it.
    pub fn push(&mut self, now_ms: u64, read: Sample) -> Result<(), String> {
        while self.recent.front().is_some_and(|p| p.arrived_ms + LONGEST_WINDOW_MS < now_ms) {
            self.recent.pop_front();
        }
        let before = self.last.take().filter(|(t, _)| now_ms.saturating_sub(*t) <= LONGEST_WINDOW_MS);
        let grown = before.map(|(then_ms, before)| (now_ms.saturating_sub(then_ms), Buckets::grown(&before, &read)));
        self.last = Some((now_ms, read));
        let Some((span_ms, buckets)) = grown else { return Ok(()) };
        buckets.check(span_ms)?;
        if buckets.count > 0 {
            self.busy_ms = Some(now_ms);
        }
        self.recent.push_back(Part { arrived_ms: now_ms, span_ms, buckets });
        Ok(())
    }

    fn newer(&self, than_ms: u64) -> impl Iterator<Item = &Part> {
        self.recent.iter().filter(move |p| p.arrived_ms > than_ms)
    }

    fn latency(&self, than_ms: u64, qos_target_ms: f64) -> Option<(Latency, bool)> {
        let span_ms = self.newer(than_ms).map(|p| p.span_ms).sum();
        Buckets::sum(self.newer(than_ms).map(|p| &p.buckets)).latency(span_ms, qos_target_ms)
    }

    /// Since when no request was answered though some were to be expected.
    fn stands_still(&self, came_ms: u64, now_ms: u64) -> Option<u64> {
        let busy_ms = self.busy_ms.unwrap_or(came_ms);
        let quiet_ms = now_ms.saturating_sub(busy_ms);
        let (count, span_ms) =
            self.recent.iter().filter(|p| p.arrived_ms <= busy_ms).fold((0, 0), |(n, t), p| (n + p.buckets.count, t + p.span_ms));
        let expected = count as f64 / span_ms.max(1) as f64 * quiet_ms as f64;
        (quiet_ms > SILENT_MS && (expected >= MISSED || count == 0)).then_some(busy_ms)
    }

    /// Everything about this service, as [`super::window::Windows::read`].
    pub fn read(&self, came_ms: u64, from_ms: u64, now_ms: u64, qos_target_ms: f64) -> Reading {
        let interval = self.latency(from_ms, qos_target_ms).map(|l| l.0);
        if let Some(since_ms) = self.stands_still(came_ms, now_ms) {
            return Reading { feed: FeedState::Unknown { since_ms, heard: self.busy_ms.is_some() }, interval, window: None };
        }
        let mut span = WINDOW_MS;
        loop {
            let l = self.latency(now_ms.saturating_sub(span), qos_target_ms);
            if span >= LONGEST_WINDOW_MS || l.is_some_and(|(l, _)| l.count >= MIN_COUNT_P99) {
                let window = l.map(|l| l.0);
                let feed = match l {
                    Some((_, true)) => FeedState::Fresh,
                    Some((_, false)) => FeedState::Coarse,
                    // Never idle: see above.
                    None => FeedState::Unknown { since_ms: self.busy_ms.unwrap_or(came_ms), heard: self.busy_ms.is_some() },
                };
                return Reading { feed, interval, window };
            }
            span += WINDOW_MS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn series(buckets: &[(f64, u64)], count: u64) -> Series {
        Series { buckets: buckets.to_vec(), count, sum_ms: None, created: None }
    }

    fn page(series: &[(&str, Series)]) -> Sample {
        Sample { series: series.iter().map(|(k, s)| (k.to_string(), s.clone())).collect() }
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
            scraped.push(0, Sample { series: now.clone() }).unwrap();
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
                scraped.push(t * 500, Sample { series: now.clone() }).unwrap();
            }
            let all = Buckets::sum(scraped.recent.iter().map(|p| &p.buckets));
            truth.sort_by(f64::total_cmp);
            assert_eq!(all.count, truth.len() as u64);
            for (bound, n) in &all.upto {
                assert_eq!(*n, truth.iter().filter(|v| *v <= bound).count() as u64, "{bound}");
            }
            assert_eq!(all.upto.len(), BOUNDS.len());
            let (l, _) = all.latency(4000, 5.0).unwrap();
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
        let (l, told) = b.latency(1000, 20.0).unwrap();
        // Rank 990 is the 90th of 100 between 10 and 20; rank 500 the 500th of 900 from 0 to 10.
        assert_eq!((l.p99_ms, l.p50_ms), (19.0, 10.0 * 500.0 / 900.0));
        assert_eq!((l.p99_low_ms, l.p99_high_ms), (Some(10.0), Some(20.0)));
        assert_eq!((l.count, l.mean_ms, l.achieved_rps, l.verdict, told), (1000, 6.0, 1000.0, Verdict::Valid, true));
        // No sums: the middles of the buckets, (900 x 5 + 100 x 15) / 1000.
        assert_eq!(Buckets { sum_ms: None, ..b }.latency(1000, 20.0).unwrap().0.mean_ms, 6.0);
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

    /// After a gap longer than any window nothing is made of what came in between.
    #[test]
    fn a_long_gap_starts_anew() {
        let mut s = Scraped::default();
        s.push(0, page(&[("", series(&[(5.0, 0)], 0))])).unwrap();
        s.push(20_000, page(&[("", series(&[(5.0, 5000)], 5000))])).unwrap();
        assert_eq!(s.read(0, 0, 20_000, 10.0).window, None);
        s.push(20_500, page(&[("", series(&[(5.0, 5100)], 5100))])).unwrap();
        assert_eq!(s.read(0, 0, 20_500, 10.0).window.unwrap().count, 100);
    }
}
