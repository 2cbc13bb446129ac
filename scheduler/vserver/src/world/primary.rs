//! A drawn workload of a primary VM: what a harvester of idle cores below a millisecond meets.

use super::id::WorldId;
use super::quantities as q;
use super::quantity::{digits, Stream};
use super::EDITION;
use crate::profile::{Bursts, ProfileError};
use std::path::Path;

/// Longest waking of a thread, us: the shipped one's (memcached).
const MOST_WAKE_US: f64 = 45.0;
/// Longest task of a request that waits for its connection's thread, us.
const MOST_PINNED_US: f64 = 100.0;

/// The text of a bursts.toml with the primary workload of a world, by the world's name.
pub fn toml(id: WorldId) -> String {
    let s = Stream::new(&[u64::from(EDITION), id.seed()]).part("primary", 0);
    let task_us = s.draw(&q::TASK_US);
    let pinned = task_us < MOST_PINNED_US && s.is(&q::PINNED);
    let fanout = if pinned { 1 } else { s.count(&q::FANOUT) };
    let task_s = task_us * 1e-6 * f64::from(fanout);
    let qps = digits(s.draw(&q::BUSY) / task_s, 4);
    let lasts_ms = s.draw(&q::BURST_MS);
    // So many requests as keep the burst's cores busy from its first to the end of its last.
    let requests = digits((s.draw(&q::BURST_CORES) * (lasts_ms * 1e-3 + task_us * 1e-6) / task_s).max(2.0), 4);
    let per_s = digits(s.draw(&q::BURST_SHARE) * qps / requests, 4);
    format!(
        "# A drawn workload of a primary VM (docs/worlds.md).\n[workload.{name}]\nqps = {qps}\ntask_us = {task_us}\nfanout = {fanout}\n\
         scv_service = {}\nscv_arrival = {}\nwake_us = {}\nthreads = {}\npinned = {pinned}\n\n\
         [workload.{name}.bursts]\nper_s = {per_s}\nrequests = {requests}\nlasts_ms = {lasts_ms}\nsize_exponent = {}\n",
        s.draw(&q::PRIMARY_SERVICE),
        s.draw(&q::PRIMARY_ARRIVAL),
        digits((MOST_WAKE_US * s.draw(&q::WAKE_SHARE)).min(task_us), 4),
        s.count(&q::THREADS),
        s.draw(&q::BURST_GROWS),
        name = id.prefix(),
    )
}

/// The same, read.
///
/// # Errors
/// [`ProfileError`] where the loader of profiles refuses what was drawn: a fault of the ranges, not of the caller.
pub fn draw(id: WorldId) -> Result<Bursts, ProfileError> {
    Bursts::parse(Path::new(&format!("{}/bursts.toml", id.prefix())), &toml(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Range;

    /// Every draw is a workload that the loader takes, with requests in bursts and between them, and busy as it says.
    #[test]
    fn drawn_workloads_are_sound() {
        let all: Vec<_> = (1..=300)
            .map(|number| {
                let id = WorldId { range: Range::Tune, number };
                let w = draw(id).unwrap().workload(&id.prefix()).unwrap().clone();
                let b = w.bursts.unwrap();
                let in_bursts = b.per_s * b.requests / w.qps;
                assert!((0.04..0.46).contains(&in_bursts), "{w:?}");
                let busy = w.qps * w.task_us * 1e-6 * f64::from(w.fanout);
                assert!((0.79..2.41).contains(&busy), "{w:?}");
                w
            })
            .collect();
        assert!(all.iter().filter(|w| w.pinned).count() > 15);
        assert!(all.windows(2).all(|w| w[0].qps != w[1].qps));
    }
}
