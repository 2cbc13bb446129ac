//! A workload file, drawn: which services and jobs of a world run together, and what happens.

use super::quantities as q;
use super::quantity::{digits, Stream};
use super::service::Drawn;
use std::fmt::Write as _;

/// A drawn workload (docs/workload-format.md).
#[derive(Clone, Debug)]
pub struct Workload {
    pub name: String,
    pub text: String,
    /// A load past max load for some seconds.
    pub has_spike: bool,
    /// No allocation meets every target at the end.
    pub is_unserved: bool,
    pub leaves: bool,
    /// Names of its LC services and BE jobs.
    pub services: Vec<String>,
    pub jobs: Vec<String>,
}

/// What workloads are made of.
pub struct Cast<'a> {
    pub platform: &'a str,
    pub logical_cpus: u32,
    pub services: &'a [Drawn],
    pub jobs: &'a [String],
}

struct Lc {
    service: usize,
    load: f64,
    arrive_s: f64,
    leave_s: Option<f64>,
    changes: Vec<(f64, f64)>,
}

impl Cast<'_> {
    /// Draw a workload in which `member` runs (an index of the services), and the first job where that is asked.
    pub fn workload(&self, s: Stream, name: &str, member: Option<usize>, with_job: bool) -> Workload {
        let mut chosen = s.part("services", 0).order(self.services.len());
        if let Some(at) = member.and_then(|m| chosen.iter().position(|i| *i == m)) {
            chosen.swap(0, at);
        }
        chosen.truncate(s.count(&q::SERVICES) as usize);
        let is_unserved = s.is(&q::UNSERVED);
        let loads = if is_unserved { self.unserved(s, &chosen) } else { self.loads(s, &chosen, s.draw(&q::PRESSURE)) };
        let order = s.part("arrivals", 0).order(chosen.len());
        let arrival = s.count(&q::ARRIVAL);
        let mut lc: Vec<Lc> = order
            .into_iter()
            .enumerate()
            .map(|(n, i)| {
                let arrive_s = match (arrival, n) {
                    (0, _) | (_, 0) => 0.0,
                    (1, n) => n as f64,
                    (_, n) => tenths(s.part("arrival", n).draw(&q::SPREAD_S)),
                };
                Lc { service: chosen[i], load: loads[i], arrive_s, leave_s: None, changes: vec![] }
            })
            .collect();
        let (has_spike, leaves) = events(s, &mut lc, is_unserved);
        let mut jobs: Vec<usize> = s.part("jobs", 0).order(self.jobs.len());
        if let Some(at) = jobs.iter().position(|j| *j == 0).filter(|_| with_job) {
            jobs.swap(0, at);
        }
        jobs.truncate(s.count(&q::JOBS).max(u32::from(with_job)) as usize);
        let mut text = format!("# Drawn (docs/worlds.md).\nplatform = \"{}\"\nduration_s = {}\n", self.platform, q::DURATION_S);
        for l in &lc {
            let name = &self.services[l.service].profile.name;
            let _ = write!(text, "\n[[lc]]\nservice = \"{name}\"\nload = {}\narrive_s = {}\n", l.load, l.arrive_s);
            if let Some(at) = l.leave_s {
                let _ = writeln!(text, "leave_s = {at}");
            }
            for (at, load) in &l.changes {
                let _ = write!(text, "[[lc.change]]\nat_s = {at}\nload = {load}\n");
            }
        }
        for j in &jobs {
            let _ = write!(text, "\n[[be]]\njob = \"{}\"\n", self.jobs[*j]);
        }
        Workload {
            name: name.into(),
            text,
            has_spike,
            is_unserved,
            leaves,
            services: lc.iter().map(|l| self.services[l.service].profile.name.clone()).collect(),
            jobs: jobs.iter().map(|j| self.jobs[*j].clone()).collect(),
        }
    }

    /// CPU time that loads of the chosen services ask for, share of the server's.
    fn asked(&self, loads: &[f64], chosen: &[usize]) -> f64 {
        loads.iter().zip(chosen).map(|(l, i)| l * self.services[*i].busy_cores).sum::<f64>() / f64::from(self.logical_cpus)
    }

    /// Loads of the chosen services: they ask for a share of the server's CPU time.
    pub fn loads(&self, s: Stream, chosen: &[usize], wanted: f64) -> Vec<f64> {
        // The demand grows with the factor: the smallest of a fine ladder that asks for enough, or the highest loads.
        let ladder = (0..=80).map(|n| 0.05 * 1.08f64.powi(n));
        ladder.map(|by| scaled(s, chosen, by)).find(|l| self.asked(l, chosen) >= wanted).unwrap_or_else(|| scaled(s, chosen, 1e3))
    }

    /// Loads that ask for more than the server has.
    fn unserved(&self, s: Stream, chosen: &[usize]) -> Vec<f64> {
        let loads = self.loads(s, chosen, q::UNSERVED_PRESSURE);
        if self.asked(&loads, chosen) >= q::UNSERVED_PRESSURE {
            return loads;
        }
        let busy = |i: usize| self.services[chosen[i]].busy_cores;
        let heaviest = (0..chosen.len()).max_by(|a, b| busy(*a).total_cmp(&busy(*b))).unwrap_or(0);
        // Past its own max load it misses its target on the whole server, so it does on a part.
        let mut modest = scaled(s, chosen, 1.0);
        modest[heaviest] = digits(s.draw(&q::OVERLOAD), 2);
        modest
    }
}

/// Drawn loads of so many services, times a factor, within what is served.
fn scaled(s: Stream, chosen: &[usize], by: f64) -> Vec<f64> {
    let (low, high) = q::LOADS;
    (0..chosen.len()).map(|n| digits((s.part("load", n).draw(&q::LOAD) * by).clamp(low, high), 2)).collect()
}

/// At most one event a service: a spike, a leave, another load. Where nothing serves the demand, it stays for the whole run.
fn events(s: Stream, lc: &mut [Lc], is_unserved: bool) -> (bool, bool) {
    let mut order = s.part("events", 0).order(lc.len()).into_iter();
    let at = |name: &str, n: usize| tenths(s.part(name, n).draw(&q::EVENT_S));
    let has_spike = s.is(&q::SPIKE);
    if has_spike {
        if let Some(l) = order.next().map(|i| &mut lc[i]) {
            let from = at("spike", 0);
            let until = tenths(from + s.draw(&q::SPIKE_S));
            // Past what it has, where that is past its max load already.
            let load = digits(s.draw(&q::SPIKE_LOAD) * l.load.max(1.0), 3);
            l.changes = vec![(from, load), (until, l.load)];
        }
    }
    let leaves = !is_unserved && lc.len() >= 3 && s.is(&q::LEAVES);
    if leaves {
        if let Some(i) = order.next() {
            lc[i].leave_s = Some(at("leave", 0));
        }
    }
    for i in order {
        let own = s.part("change", i);
        if !is_unserved && own.is(&q::CHANGES) {
            let (low, high) = q::LOADS;
            let load = digits((lc[i].load * own.draw(&q::CHANGE)).clamp(low, high), 2);
            if load != lc[i].load {
                lc[i].changes = vec![(tenths(own.draw(&q::EVENT_S)), load)];
            }
        }
    }
    (has_spike, leaves)
}

/// Whole ticks.
pub fn tenths(s: f64) -> f64 {
    (s * 10.0).round() / 10.0
}
