//! Memory bandwidth: action 4 of Model-C, and how BE jobs get back what they were deprived of.

use super::*;

/// Share of the peak memory bandwidth above which memory is contended.
const CONTENDED: f64 = 0.7;

/// What action 4, more memory bandwidth, would do.
#[derive(Clone, Copy, Debug)]
pub(super) struct MbaStep {
    /// Memory is contended, and BE jobs are to be throttled for it.
    pub(super) throttle_be: bool,
    /// The service's own next MBA, per cent.
    raise_own: Option<u8>,
    /// The BE jobs' next MBA, per cent.
    lower_be: Option<u8>,
}

impl MbaStep {
    pub(super) fn possible(&self) -> bool {
        self.raise_own.is_some() || self.lower_be.is_some()
    }
}

impl OsmlPlus {
    /// What more bandwidth for a service would take.
    pub(super) fn more_bandwidth(&self, s: &ServiceView, seen: &Observation) -> MbaStep {
        let mba = self.books.slot(&s.id).map_or(100, |x| x.mba_pct);
        let throttle_be = mba == 100 && self.books.has_be() && self.contended_by_be(seen);
        let raise_own = self.books.mba_step(mba, true);
        let lower_be = self.books.mba_step(self.books.be_mba_pct, false).filter(|_| throttle_be);
        MbaStep { throttle_be, raise_own, lower_be }
    }

    /// Raise the service's own MBA; where it is not throttled, lower that of the BE jobs.
    pub(super) fn raise_bandwidth(&mut self, now_ms: u64, s: &ServiceView, step: &MbaStep) {
        if let Some(pct) = step.raise_own {
            self.books.set_mba(&s.id, pct);
        } else if let Some(pct) = step.lower_be {
            self.books.be_mba_pct = pct;
            self.be_mba_wait.0 = now_ms + self.be_mba_wait.1;
        }
    }

    /// Give BE jobs their bandwidth back step by step; take it away again if somebody suffers.
    pub(super) fn be_bandwidth(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        if self.books.be_mba_pct >= 100 {
            return;
        }
        let name = seen.be().next().map_or("be".to_string(), |s| s.id.clone());
        let mut known = seen.lc().filter_map(ServiceView::qos).peekable();
        if known.peek().is_none() {
            return;
        }
        let worst = known.fold(f64::INFINITY, f64::min);
        if let Some(at) = self.be_mba_raised {
            if worst < 1.0 {
                if let Some(pct) = self.books.mba_step(self.books.be_mba_pct, false) {
                    self.books.be_mba_pct = pct;
                    let mut because = self.because_of(seen, &name, HoldsIf::NotJudged);
                    because.bind("a service misses its target since the BE jobs got more bandwidth");
                    act(plan, &name, ActionKind::Rollback, format!("QoS {worst:.2} after more bandwidth: back to {pct} %"), because);
                }
                self.be_mba_wait.1 = (self.be_mba_wait.1 * 2).min(60_000);
                self.be_mba_wait.0 = now_ms + self.be_mba_wait.1;
                self.be_mba_raised = None;
                return;
            }
            if now_ms > at + self.set.watch_ms {
                self.be_mba_raised = None;
            }
            return;
        }
        // Whoever is not heard could not say that it suffers.
        let all_heard = !seen.lc().any(ServiceView::latency_unknown);
        if worst >= 1.1 && all_heard && now_ms >= self.be_mba_wait.0 {
            if let Some(pct) = self.books.mba_step(self.books.be_mba_pct, true) {
                self.books.be_mba_pct = pct;
                self.be_mba_raised = Some(now_ms);
                let mut because = self.because_of(seen, &name, HoldsIf::NotJudged);
                because.reject("all of it back at once", "one step at a time, withdrawn if a service misses its target");
                because.bind(format!("the worst QoS is {worst:.2}"));
                act(plan, &name, ActionKind::Grow, format!("all targets met: memory bandwidth {pct} %"), because);
            }
        }
    }

    /// True where memory bandwidth is short and BE jobs take a good part of it.
    fn contended_by_be(&self, seen: &Observation) -> bool {
        let Some(peak) = self.books.platform.mem_bw_mbps else { return false };
        let sum = |be: bool| seen.services.iter().filter(|s| s.is_lc() != be).filter_map(|s| s.features.mbl_mbps).sum::<f64>();
        let be = sum(true);
        be + sum(false) > CONTENDED * peak && be > 0.25 * peak
    }
}
