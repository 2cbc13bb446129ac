//! Worlds whose memory is over-committed: how services and jobs page, and their working sets in each workload.
//!
//! The COSMOS paper's over-commitment (its Eq. 1): all working sets together over the memory that the server has for them. A profile's own
//! working set is a weight; a workload scales those of its services and of its jobs.

use super::quantities as q;
use super::quantity::{digits, Stream};
use super::workload::{tenths, Cast, Workload};
use std::fmt::Write as _;

/// What is resident, MB, and the section on paging of an LC service.
pub fn of_service(s: Stream) -> (f64, String) {
    let ws_gb = s.draw(&q::MEMORY_WS_GB);
    let (skew, pages) = (s.draw(&q::MEMORY_SKEW), s.draw(&q::MEMORY_PAGES));
    (resident_mb(ws_gb), section(ws_gb, skew, pages, s.draw(&q::MEMORY_COMPRESS), s.draw(&q::MEMORY_LRU)))
}

/// The same of a BE job with so many accesses beyond L2 in a thousand instructions.
pub fn of_job(s: Stream, index: usize, apki: f64) -> (f64, String) {
    let ws_gb = s.draw(&q::MEMORY_JOB_WS_GB);
    let skew = s.draw(if index == 0 { &q::MEMORY_STREAM_SKEW } else { &q::MEMORY_JOB_SKEW });
    let pages = digits(apki * s.draw(&q::MEMORY_JOB_PAGES), 3);
    (resident_mb(ws_gb), section(ws_gb, skew, pages, s.draw(&q::MEMORY_COMPRESS), s.draw(&q::MEMORY_LRU)))
}

fn resident_mb(ws_gb: f64) -> f64 {
    (ws_gb * 1024.0).round()
}

fn section(ws_gb: f64, skew: f64, pages: f64, compress: f64, lru: f64) -> String {
    format!("\n[paging]\nws_gb = {ws_gb}\npage_skew = {skew}\npages = {pages}\ncompress_ratio = {compress}\nlru_error = {lru}\n")
}

impl Cast<'_> {
    /// Draw a workload whose working sets exceed `memory_gb` together: all begin at once, and one load may change.
    pub fn over_committed(&self, s: Stream, name: &str, memory_gb: f64, ws_gb: impl Fn(&str) -> f64) -> Workload {
        let mut chosen = s.part("services", 0).order(self.services.len());
        chosen.truncate(s.count(&q::MEMORY_SERVICES) as usize);
        let loads = self.loads(s, &chosen, s.draw(&q::MEMORY_PRESSURE));
        let mut jobs = s.part("jobs", 0).order(self.jobs.len());
        jobs.truncate(q::JOBS_OF_AN_OVER_COMMITTED_WORKLOAD);
        let services: Vec<String> = chosen.iter().map(|i| self.services[*i].profile.name.clone()).collect();
        let jobs: Vec<String> = jobs.into_iter().map(|j| self.jobs[j].clone()).collect();
        let (all_gb, lc_share) = (s.draw(&q::MOR) * memory_gb, s.draw(&q::LC_SHARE));
        let sets = |of: &[String], share: f64| -> Vec<f64> {
            let sum: f64 = of.iter().map(|n| ws_gb(n)).sum();
            of.iter().map(|n| digits(ws_gb(n) / sum * share * all_gb, 3)).collect()
        };
        let changes = s.is(&q::MEMORY_CHANGES).then(|| {
            let own = s.part("change", 0);
            let (low, high) = q::LOADS;
            (tenths(own.draw(&q::MEMORY_EVENT_S)), digits((loads[0] * own.draw(&q::CHANGE)).clamp(low, high), 2))
        });
        let duration_s = q::OVER_COMMITTED_DURATION_S;
        let mut text = format!("# Drawn (docs/worlds.md).\nplatform = \"{}\"\nduration_s = {duration_s}\n", self.platform);
        for (n, (service, gb)) in services.iter().zip(sets(&services, lc_share)).enumerate() {
            let _ = write!(text, "\n[[lc]]\nservice = \"{service}\"\nload = {}\nws_gb = {gb}\n", loads[n]);
            if let Some((at, load)) = changes.filter(|(_, load)| n == 0 && *load != loads[0]) {
                let _ = write!(text, "[[lc.change]]\nat_s = {at}\nload = {load}\n");
            }
        }
        for (job, gb) in jobs.iter().zip(sets(&jobs, 1.0 - lc_share)) {
            let _ = write!(text, "\n[[be]]\njob = \"{job}\"\nws_gb = {gb}\n");
        }
        Workload { name: name.into(), text, has_spike: false, is_unserved: false, leaves: false, services, jobs }
    }
}
