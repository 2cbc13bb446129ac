//! Bandwidth: each service's share of the server's is BW_j / sum BW_i, BW its OAA bandwidth by Model-A (OSML paper, Sec. 5.2).
//!
//! MBA cannot partition bandwidth. It is a throttle on each core, in per cent of what that core could draw: a service on twice the
//! cores draws twice as much at the same setting. Counting that a core at 100 % draws its equal part of the server's peak, a
//! service's share is that of MBA which is its share of bandwidth over its share of cores, rounded up to the hardware's step:
//!
//! ```text
//! MBA_j = (BW_j / sum BW_i) / (cores_j / all cores), at most 100 %
//! ```
//!
//! A core alone draws more than its equal part, so that no service is throttled below the paper's share, and several together may
//! draw more than theirs: what is left of the paper's partition is an upper bound, in proportion. BE jobs, which the paper does
//! not know, get what the OAA bandwidths leave of the peak, by the same rule; all where no peak is known.

use super::*;

impl Osml {
    fn pct(&self, share: f64, cores: u32) -> u8 {
        let Some(mba) = self.books.platform.mba else { return 100 };
        let part = f64::from(cores.max(1)) / f64::from(self.books.total().cores.max(1));
        let step = f64::from(mba.step_pct.max(1));
        ((100.0 * share / part / step - 1e-9).ceil() * step).clamp(f64::from(mba.min_pct), 100.0) as u8
    }

    /// Set everybody's share, where there is MBA.
    pub(super) fn partition_bandwidth(&mut self, seen: &Observation, plan: &mut Plan) {
        if self.books.platform.mba.is_none() {
            return;
        }
        let known = |s: &&ServiceView| self.lives.get(&s.id).is_some_and(|l| !l.asleep() && l.oaa_mbps.is_some());
        // Nobody's share can be told while somebody's need is unknown.
        let all_known = seen.lc().all(|s| known(&s));
        let sum: f64 = seen.lc().filter_map(|s| self.lives.get(&s.id)?.oaa_mbps).sum();
        for s in seen.lc() {
            let (Some(slot), Some(life)) = (self.books.slot(&s.id), self.lives.get(&s.id)) else { continue };
            let before = slot.mba_pct;
            let share = life.oaa_mbps.map_or(1.0, |m| if sum > 0.0 { m / sum } else { 1.0 });
            let mut pct = if all_known { self.pct(share, self.books.usable(&s.id).cores) } else { 100 };
            if s.latency_unknown() || s.qos_met() == Some(false) {
                // Not lowered for who is not heard, nor for who is short of something.
                pct = pct.max(before);
            }
            if pct == before {
                continue;
            }
            let mut because = self.because(s, if pct > before { HoldsIf::P99Stays } else { HoldsIf::Qos { at_least: 1.0 } });
            because.say("Model-A", "bandwidth in the OAA", life.oaa_mbps.unwrap_or(f64::NAN), "MB/s");
            because.say("share", "of all services' OAA bandwidth", share, "");
            because.bind("MBA throttles each core: its share of bandwidth over its share of cores, rounded up");
            self.books.set_mba(&s.id, pct);
            let kind = if pct > before { ActionKind::Grow } else { ActionKind::Shrink };
            act(plan, &s.id, kind, format!("memory bandwidth {pct} %: {:.0} % of all OAA bandwidth", 100.0 * share), because);
        }
        let Some((id, peak)) = seen.be().next().map(|s| s.id.clone()).zip(self.books.platform.mem_bw_mbps) else { return };
        let left = if all_known { (1.0 - sum / peak).max(0.0) } else { 1.0 };
        let (pct, before) = (self.pct(left, self.books.rest().cores), self.books.be_mba_pct);
        if pct != before {
            self.books.be_mba_pct = pct;
            let mut because = self.because_of(seen, &id, HoldsIf::NotJudged);
            because.say("Model-A", "bandwidth in the OAA, all services", sum, "MB/s");
            because.bind(format!("{:.0} % of the peak is left", 100.0 * left));
            let kind = if pct > before { ActionKind::Grow } else { ActionKind::Shrink };
            act(plan, &id, kind, format!("BE: memory bandwidth {pct} %"), because);
        }
    }
}
