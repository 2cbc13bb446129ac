//! One case of a sweep on a virtual server.

use crate::stage::virtual_target::VirtualTarget;
use crate::sweep::expand::{Case, Neighbour};
use crate::sweep::rows::{MemoryRow, Row, State};
use surefoot_server::window::{overloaded, MIN_COUNT_P99_INTERVAL};
use surefoot_server::{Sending, Verdict};
use surefoot_vserver::server::memory_view;
use surefoot_vserver::{place, sample_series, stack_ways, Sample, Series, Steady, Tenant, HORIZON_S};

/// Bytes in the plant's unit.
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1u32 << 30)
}

/// Cases of a sweep on a virtual server. One per thread: it holds the solver's buffers.
pub struct VirtualBench<'a> {
    target: &'a VirtualTarget,
    steady: Steady,
    warmup_ms: u64,
    interval_ms: u64,
    samples: u32,
    readings: Vec<Sample>,
    tenants: Vec<Tenant>,
}

impl<'a> VirtualBench<'a> {
    pub fn new(target: &'a VirtualTarget, sampling: &crate::sweep::campaign::Sampling) -> Self {
        VirtualBench {
            target,
            steady: Steady::new(target.profile.clone()),
            warmup_ms: sampling.warmup_ms,
            interval_ms: sampling.interval_ms,
            samples: sampling.samples,
            readings: vec![],
            tenants: vec![],
        }
    }

    /// Steady state of the measured service in a feasible case, and whether it is overloaded.
    ///
    /// # Errors
    /// Why the case cannot be set up.
    pub fn steady(&mut self, case: &Case) -> std::result::Result<(Sample, bool), String> {
        let p = &self.target.profile;
        let held = |own: u32, of: fn(&Neighbour) -> u32| std::iter::once(own).chain(case.neighbours.iter().map(of)).collect::<Vec<_>>();
        let cpus = place(p, &held(case.cores as u32, |n| n.cores as u32));
        let masks = stack_ways(p, &held(case.ways, |n| n.ways));
        self.tenants.clear();
        for (i, (cpus, mask)) in cpus.into_iter().zip(masks).enumerate() {
            let (name, rps, threads) = match i.checked_sub(1).map(|j| &case.neighbours[j]) {
                None => (&case.service, case.rps, case.threads),
                Some(n) => (&n.service, n.rps, n.threads()),
            };
            let Some(profile) = self.target.profiles.services.get(name) else {
                return Err(format!("no profile of {name}"));
            };
            let mut t = Tenant::new(profile.clone(), rps, threads, cpus, mask);
            if i == 0 {
                t.mba = f64::from(case.mba_pct) / 100.0;
                t.mem_gb = case.memory.limit_bytes.map(gib);
                t.cms_gb = case.memory.pool_bytes.map_or(0.0, gib);
            }
            self.tenants.push(t);
        }
        surefoot_vserver::check_tenants(p, &self.tenants).map_err(|e| e.to_string())?;
        let steady = self.steady.case_for(&self.tenants, HORIZON_S, 1)[0];
        Ok((steady, overloaded(steady.achieved_rps, case.rps, steady.lost_frac)))
    }

    /// Steady state of a feasible case, then readings with measurement noise from the case's seed, appended to `rows`.
    pub fn measure(&mut self, case: &Case, rows: &mut Vec<Row>) -> (State, Option<String>) {
        let (steady, overloaded) = match self.steady(case) {
            Ok(s) => s,
            Err(why) => return (State::Failed, Some(why)),
        };
        let p = &self.target.profile;
        let series = Series { samples: self.samples, interval_s: self.interval_ms as f64 * 1e-3, seed: case.seed };
        self.readings.clear();
        sample_series(p, &steady, &case.service, &series, &mut self.readings);
        let memory = MemoryRow {
            limit_in_force_bytes: case.memory.limit_bytes,
            // Without a word of it the plant has no pool.
            pool_in_force_bytes: case.memory.limit_bytes.map(|_| case.memory.pool_bytes.unwrap_or(0)),
            seen: memory_view(&steady.memory),
            note: None,
        };
        let row = |(j, s): (usize, &Sample)| {
            let count = s.count.round().max(0.0) as i64;
            Row {
                t_ms: (self.warmup_ms + (j as u64 + 1) * self.interval_ms) as i64,
                features: surefoot_vserver::server::features(s).values(),
                mean_ms: s.latency.map(|l| l.mean),
                p50_ms: s.latency.map(|l| l.p50),
                p95_ms: s.latency.map(|l| l.p95),
                p99_ms: s.latency.map(|l| l.p99),
                p99_low_ms: None,
                p99_high_ms: None,
                achieved_rps: Some(s.achieved_rps),
                errors: (s.lost_frac * case.rps * self.interval_ms as f64 * 1e-3).round() as i64,
                count,
                verdict: if overloaded {
                    Verdict::ServerOverloaded
                } else if count < MIN_COUNT_P99_INTERVAL as i64 {
                    Verdict::NotResolvable
                } else {
                    Verdict::Valid
                },
                sending: Sending::OPEN,
                memory: memory.clone(),
            }
        };
        rows.extend(self.readings.iter().enumerate().map(row));
        if overloaded {
            let done = steady.achieved_rps * (1.0 - steady.lost_frac);
            let why = format!("the service completes less than 99 % of the offered load ({done:.1} of {} RPS)", case.rps);
            return (State::Overloaded, Some(why));
        }
        (State::Measured, None)
    }
}
