//! When is the settling after a change of allocation over? A pure function of the windows since the load began.
//!
//! The newest windows are cut into an older and a newer half. The service has settled once the halves agree in p50, p95, CPU use and
//! backlog: their means differ by no more than a tolerance, or than their own scatter explains. A queue that builds up or drains, a
//! cache that fills and a quota that bites all move one of these. A service that is overloaded never settles; where the backlog grew in
//! each of the last windows there is nothing to wait for.
//!
//! The rule sees no drift that is slower than its tolerance over the halves, and takes a single window that stands out for scatter.
//! Services that have just been started (caches, JIT) are therefore not judged by it: they get the whole warm-up.

/// Fewest windows in a half. With 100 ms windows nothing is settled in less than 400 ms.
pub const LEAST_HALF: usize = 2;
/// Fewest requests in a half: of fewer the percentiles say little. A half grows until it has so many.
pub const LEAST_COUNT: u64 = 30;
/// A p50 or p95 (as a factor), and CPU use, may differ by this share between the halves.
pub const TOLERANCE: f64 = 0.1;
/// CPU use below this is not told apart, cores.
const LEAST_CORES: f64 = 0.02;
/// The halves agree where their means differ by less than this many standard errors. A steady drift over four windows is at 2.8.
const STANDARD_ERRORS: f64 = 2.5;
/// So many windows in a row in which the backlog grew: overloaded.
pub const GROWING: usize = 5;

/// One window of the feed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// Requests answered.
    pub count: u64,
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    /// Requests that were due.
    pub offered: u64,
    /// Requests that were not sent, as too many waited.
    pub dropped: u64,
    /// Requests unanswered at its end.
    pub outstanding: u64,
    /// CPU use of the service.
    pub cpu_cores: Option<f64>,
}

/// What the windows say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settling {
    /// Too few windows or requests to tell.
    Unknown,
    /// This differs between the halves.
    Moving(&'static str),
    Settled,
    /// The backlog grows without end.
    Overloaded,
}

/// Judge the windows since the load began, oldest first.
pub fn judge(windows: &[Window]) -> Settling {
    if overloaded(windows) {
        return Settling::Overloaded;
    }
    let Some((older, newer)) = halves(windows) else { return Settling::Unknown };
    let ln = |of: fn(&Window) -> Option<f64>| move |w: &Window| of(w).filter(|v| *v > 0.0).map(f64::ln);
    let latency = (1.0 + TOLERANCE).ln();
    let mean = |of: fn(&Window) -> f64| (older.iter().chain(newer).map(of).sum::<f64>() / (2 * older.len()) as f64).max(0.0);
    // A queue's length at one instant scatters as a count does.
    let backlog = 3.0 * mean(|w| w.outstanding as f64).max(1.0).sqrt();
    let cpu = (TOLERANCE * mean(|w| w.cpu_cores.unwrap_or(0.0))).max(LEAST_CORES);
    let agree = |of: &dyn Fn(&Window) -> Option<f64>, tolerance: f64| {
        let values = |half: &[Window]| half.iter().filter_map(of).collect::<Vec<_>>();
        same(&values(older), &values(newer), tolerance)
    };
    if !agree(&|w| Some(w.outstanding as f64), backlog) {
        return Settling::Moving("the backlog");
    }
    if !agree(&ln(|w| w.p50_ms), latency) {
        return Settling::Moving("the median latency");
    }
    if !agree(&ln(|w| w.p95_ms), latency) {
        return Settling::Moving("the p95");
    }
    if !agree(&|w| w.cpu_cores, cpu) {
        return Settling::Moving("the CPU use");
    }
    Settling::Settled
}

/// Windows in the newer half; 0 where there are too few.
pub fn half(windows: &[Window]) -> usize {
    halves(windows).map_or(0, |(_, newer)| newer.len())
}

/// The newest windows in two equal parts with enough requests each; None where there are too few.
fn halves(windows: &[Window]) -> Option<(&[Window], &[Window])> {
    let n = windows.len();
    let count = |w: &[Window]| w.iter().map(|w| w.count).sum::<u64>();
    (LEAST_HALF..=n / 2)
        .map(|half| (&windows[n - 2 * half..n - half], &windows[n - half..]))
        .find(|(older, newer)| count(older).min(count(newer)) >= LEAST_COUNT)
}

/// Whether two sets of readings are of the same thing: within a tolerance, or within what their scatter explains.
fn same(a: &[f64], b: &[f64], tolerance: f64) -> bool {
    if a.is_empty() || b.is_empty() {
        // What is not measured does not move; what comes or goes does.
        return a.is_empty() && b.is_empty();
    }
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let squares = |x: &[f64]| x.iter().map(|v| (v - mean(x)).powi(2)).sum::<f64>();
    let (m, n) = (a.len() as f64, b.len() as f64);
    let freedom = m + n - 2.0;
    let error = if freedom > 0.0 { ((squares(a) + squares(b)) / freedom * (1.0 / m + 1.0 / n)).sqrt() } else { 0.0 };
    (mean(a) - mean(b)).abs() <= tolerance.max(STANDARD_ERRORS * error)
}

/// In each of the last windows requests were dropped, or more came to wait than chance explains: 1 % of those that were due and three
/// times the square root of their number, as the load generator judges a window.
fn overloaded(windows: &[Window]) -> bool {
    let grew = |pair: &[Window]| {
        let (before, w) = (&pair[0], &pair[1]);
        let chance = 0.01 * w.offered as f64 + 3.0 * (w.offered.max(1) as f64).sqrt();
        w.dropped > 0 || w.outstanding as f64 - before.outstanding as f64 > chance
    };
    windows.len() > GROWING && windows[windows.len() - GROWING - 1..].windows(2).all(grew)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(p50_ms: f64, outstanding: u64) -> Window {
        Window { count: 400, p50_ms: Some(p50_ms), p95_ms: Some(3.0 * p50_ms), offered: 400, dropped: 0, outstanding, cpu_cores: Some(0.5) }
    }

    fn at_p50(values: &[f64]) -> Settling {
        judge(&values.iter().map(|v| window(*v, 4)).collect::<Vec<_>>())
    }

    /// Windows until it is settled; None if it never is.
    fn settles(windows: &[Window]) -> Option<usize> {
        (0..=windows.len()).find(|n| judge(&windows[..*n]) == Settling::Settled)
    }

    /// A steady service is settled as soon as there are two halves, and no sooner.
    #[test]
    fn steady_from_the_start() {
        assert_eq!(settles(&[window(1.0, 4); 10]), Some(2 * LEAST_HALF));
        assert_eq!((half(&[window(1.0, 4); 3]), half(&[window(1.0, 4); 10])), (0, LEAST_HALF));
        assert_eq!((judge(&[]), judge(&[window(1.0, 4); 3])), (Settling::Unknown, Settling::Unknown));
    }

    /// A latency that falls or rises by the same factor each window moves; one that scatters about a level does not.
    #[test]
    fn drift_is_told_from_scatter() {
        assert_eq!(at_p50(&[8.0, 4.0, 2.0, 1.0]), Settling::Moving("the median latency"));
        assert_eq!(at_p50(&[1.0, 1.2, 1.44, 1.73]), Settling::Moving("the median latency"));
        assert_eq!(at_p50(&[1.0, 1.5, 1.05, 1.4]), Settling::Settled);
        // Two per cent a window are four per cent between the halves: within the tolerance.
        assert_eq!(at_p50(&[1.0, 1.02, 1.04, 1.06]), Settling::Settled);
    }

    /// After a step there is nothing to wait for once it has left the newer half; two windows on either side of it are not alike. One window
    /// that stands out is scatter: the rule cannot know better.
    #[test]
    fn a_step_is_left_behind() {
        assert_eq!(at_p50(&[5.0, 5.0, 1.0, 1.0]), Settling::Moving("the median latency"));
        assert_eq!(at_p50(&[5.0, 5.0, 5.0, 1.0, 1.0]), Settling::Moving("the median latency"));
        assert_eq!(at_p50(&[5.0, 5.0, 1.0, 1.0, 1.0]), Settling::Settled);
        assert_eq!(at_p50(&[1.0, 1.0, 1.0, 5.0]), Settling::Settled);
    }

    /// A queue that drains is waited for although the latency of those answered is steady; one of a few requests to and fro is not.
    #[test]
    fn the_backlog_is_waited_for() {
        let queue = |of: &[u64]| judge(&of.iter().map(|n| window(1.0, *n)).collect::<Vec<_>>());
        assert_eq!(queue(&[400, 300, 200, 100]), Settling::Moving("the backlog"));
        assert_eq!(queue(&[3, 9, 5, 0]), Settling::Settled);
    }

    /// A backlog that grows in window after window is overload, also at the cap where requests are dropped.
    #[test]
    fn overload_is_no_settling() {
        let growing: Vec<Window> = (0..12).map(|i| window(10.0 * f64::from(i + 1), 200 * i as u64)).collect();
        assert_eq!((settles(&growing), judge(&growing)), (None, Settling::Overloaded));
        assert_ne!(judge(&growing[..GROWING]), Settling::Overloaded);
        let full = [Window { dropped: 90, ..window(500.0, 20_000) }; 8];
        assert_eq!(judge(&full), Settling::Overloaded);
    }

    /// CPU use that still falls is a change; a service whose CPU use is not counted is judged by the rest.
    #[test]
    fn cpu_use_counts() {
        let cpu = |of: &[Option<f64>]| judge(&of.iter().map(|c| Window { cpu_cores: *c, ..window(1.0, 4) }).collect::<Vec<_>>());
        assert_eq!(cpu(&[Some(0.9), Some(0.8), Some(0.6), Some(0.5)]), Settling::Moving("the CPU use"));
        assert_eq!(cpu(&[None; 4]), Settling::Settled);
    }

    /// At a low rate the halves grow until they say something: ten requests a window need three windows a half.
    #[test]
    fn few_requests_take_longer() {
        let few = [Window { count: 10, offered: 10, ..window(1.0, 0) }; 40];
        assert_eq!(settles(&few), Some(6));
        assert_eq!(settles(&[Window { count: 0, offered: 1, p50_ms: None, p95_ms: None, ..window(1.0, 0) }; 40]), None);
    }
}
