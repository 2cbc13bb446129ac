//! What was taken and hurt a service is given back, and remembered.

use super::*;

impl Surefoot {
    /// Something was taken, and a service suffers since: give it back.
    pub(super) fn withdraw(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) -> bool {
        let set = self.set;
        let hurt = |me: &Self, s: &ServiceView| {
            let Some(l) = me.lives.get(&s.id).filter(|l| !l.is_new() && l.futile.is_none()) else { return false };
            let window = now_ms >= l.watch.map_or(l.changed_ms + WINDOW_MS, |w| w.window_from_ms);
            l.strikes >= set.hurt_strikes() || window && s.qos_met() == Some(false)
        };
        let sufferer = seen.lc().find(|s| hurt(self, s)).map(|s| s.id.clone());
        let mut done = false;
        let be = self.books.has_be();
        if sufferer.is_some() && self.lives.values().any(|l| l.watch.is_some_and(|w| !w.given)) {
            self.refine_ms = now_ms + (set.patience.again_ms << self.setbacks.min(DOUBLINGS));
            self.setbacks += 1;
            // A service suffers from which nothing was taken: it is what BE jobs do with what they got.
            let taken_ms = self.lives.values().filter(|l| l.watch.is_some_and(|w| !w.given)).map(|l| l.changed_ms).min().unwrap_or(now_ms);
            let stood_by =
                |s: &ServiceView| hurt(self, s) && self.lives.get(&s.id).is_some_and(|l| l.watch.is_none() && l.changed_ms < taken_ms);
            if be && seen.lc().any(stood_by) {
                self.be_bad = Some((self.books.rest(), now_ms + (set.memory.grudge_ms << self.setbacks.min(DOUBLINGS))));
            }
        }
        for s in seen.lc() {
            let Some(watch) = self.lives.get(&s.id).and_then(|l| l.watch) else { continue };
            let own = hurt(self, s);
            let Some(whose) = (if own { Some(s.id.clone()) } else { sufferer.clone().filter(|_| !watch.given) }) else {
                if now_ms >= watch.until_ms {
                    let power = self.power_shown(s, &watch);
                    self.lives.entry(s.id.clone()).and_modify(|l| (l.watch, l.power) = (None, power.unwrap_or(l.power)));
                }
                continue;
            };
            let held = self.books.usable(&s.id);
            let back = watch.before.at_least(held).minus(held).at_most(self.books.free());
            let Some(life) = self.lives.get(&s.id) else { continue };
            let mut because = self.because(now_ms, s, life, None).expect(HoldsIf::P99Falls);
            because.reject("wait until the watch ends", format!("{whose} misses its target since"));
            because.bind(format!("it held {} before", words(watch.before, &self.books.platform)));
            let grown = !back.is_zero() && self.books.grow(&s.id, back);
            let grudge = set.memory.grudge_ms << life.hurts.min(DOUBLINGS);
            if let Some(life) = self.lives.get_mut(&s.id) {
                life.watch = None;
                let expected = life.predicted.take().unwrap_or(set.sure_qos()).clamp(1.0, set.prices.ample_qos);
                life.changed_ms = now_ms;
                life.features.clear();
                life.lost &= own || !grown;
                if own {
                    life.hurts += 1;
                    life.regret(&set);
                    let spared_ms = if be { set.patience.spare_ms } else { grudge };
                    life.spared_until_ms = life.spared_until_ms.max(now_ms + spared_ms);
                    // It was predicted to be well there, at the load of then.
                    let weight = set.trust.weight;
                    let error = weight * (expected - s.qos().unwrap_or(0.0)).max(0.0) / expected;
                    if life.load_change().abs() <= set.readings.load_change {
                        life.error = ((1.0 - weight) * life.error + error).min(MOST_ERROR);
                    }
                    let qos = s.qos().map_or(MISSED_QOS, |q| q.min(MISSED_QOS));
                    life.ledger.note(now_ms, held, life.rps, qos, grudge);
                }
            }
            if grown {
                done = true;
                let why = format!("{whose} misses its target since the loss: {} back", words(back, &self.books.platform));
                plan.actions.push(Action { service: s.id.clone(), kind: ActionKind::Rollback, why, because });
            }
        }
        done
    }

    /// A loss did not hurt: the power of the share that was left with which QoS fell, half of it what was believed before. A service whose p99 its
    /// cores do not move (its memory does, or the network) has a low one, and can give much; each further loss shows it anew.
    fn power_shown(&self, s: &ServiceView, watch: &Watch) -> Option<f64> {
        let left = share_left(watch.before, self.books.usable(&s.id));
        let (before, now) = (watch.qos?, s.qos()?);
        // A load that moved meanwhile says more of QoS than the loss.
        let is_steady = |l: &&Life| l.load_change().abs() <= self.set.readings.load_change / 4.0;
        let life = self.lives.get(&s.id).filter(|_| left > 0.0 && left < 1.0 && now > 0.0).filter(is_steady)?;
        let shown = (now / before).ln() / left.ln();
        Some(0.5 * (life.power + shown.clamp(LEAST_POWER, 2.0 * POWER)))
    }
}
