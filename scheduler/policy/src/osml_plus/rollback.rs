//! Algorithm 2 of the OSML+ paper, line 11: what was taken is watched, and withdrawn if the QoS is violated.

use super::*;

impl OsmlPlus {
    /// Watch a service that has lost something, to `to` (None: to the BE jobs, or to nobody).
    pub(super) fn watch(&mut self, now_ms: u64, id: &str, lost: Amount, mba_pct: Option<u8>, to: Option<ServiceId>) {
        self.changed(now_ms, id);
        if let Some(l) = self.lives.get_mut(id) {
            l.watch = Some(Watch { until_ms: now_ms + self.set.watch_ms, lost, mba_pct, to });
        }
    }

    /// Withdraw what was taken from a service that misses its target since.
    pub(super) fn withdraw(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        // What BE jobs got may hurt another service than the one that gave it.
        let strikes = self.pace.steps(super::STRIKES_MS) as u32;
        let hurt = |l: &Life, s: &ServiceView| !l.asleep() && (l.strikes >= strikes || s.qos_met() == Some(false));
        let anybody = seen.lc().find(|s| self.lives.get(&s.id).is_some_and(|l| hurt(l, s))).map(|s| s.id.clone());
        for s in seen.lc() {
            let Some(life) = self.lives.get_mut(&s.id) else { continue };
            let Some(watch) = &life.watch else { continue };
            if now_ms >= watch.until_ms {
                life.watch = None;
                continue;
            }
            if !hurt(life, s) && (anybody.is_none() || watch.to.is_some()) {
                continue;
            }
            let whose = if hurt(life, s) { s.id.clone() } else { anybody.clone().unwrap_or_default() };
            let Some(watch) = life.watch.take() else { continue };
            let strikes = life.strikes;
            let peace = self.set.peace_ms << life.hurts.min(4);
            life.hurts += 1;
            let held = self.books.usable(&s.id);
            for (i, lost) in [watch.lost.cores, watch.lost.ways].into_iter().enumerate() {
                if lost > 0 {
                    life.floor_until_ms[i] = now_ms + peace;
                    let keep = held.plus(watch.lost);
                    if i == 0 {
                        life.floor.cores = keep.cores;
                    } else {
                        life.floor.ways = keep.ways;
                    }
                }
            }
            if let Some(pct) = watch.mba_pct {
                self.books.set_mba(&s.id, pct);
            }
            let mut back = watch.lost.at_most(self.books.free());
            if back != watch.lost {
                // Unknown latency gives nothing back either.
                let known = |to: &&str| !seen.get(to).is_some_and(ServiceView::latency_unknown);
                if let Some(to) = watch.to.as_deref().filter(known) {
                    let take = watch.lost.minus(back).at_most(self.books.spare(to));
                    let mut because = self.because_of(seen, to, HoldsIf::P99Stays);
                    if self.books.shrink(to, take) {
                        self.changed(now_ms, to);
                        because.bind(format!("{} has its resources back first", s.id));
                        act(plan, to, ActionKind::Rollback, format!("{} suffers from having given it", s.id), because);
                        back = watch.lost.at_most(self.books.free());
                    }
                }
            }
            let mut because = self.because(s, HoldsIf::P99Falls);
            because.reject("wait until the watch ends", format!("{strikes} intervals in a row were above the target, or QoS is missed"));
            if back != watch.lost {
                because.bind(format!("{} had been given, no more of it can be had", words(watch.lost, &self.books.platform)));
            }
            because.bind(format!("what was lost is not taken again for {} s", peace / 1000));
            self.books.grow(&s.id, back);
            self.changed(now_ms, &s.id);
            let what = words(back, &self.books.platform);
            act(plan, &s.id, ActionKind::Rollback, format!("QoS of {whose} violated after the loss: {what} back"), because);
        }
    }
}
