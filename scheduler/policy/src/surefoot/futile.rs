//! A floor: more of this server does not lower a service's p99. What did not help is given back, and not asked for again for a while.

use super::*;

/// More did not help a service: at which load, and until when nothing more is asked for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Futile {
    rps: f64,
    until_ms: u64,
}

/// Where a service began to be enlarged: when, what it held, and its QoS.
#[derive(Clone, Copy, Debug)]
pub(super) struct Climb {
    pub since_ms: u64,
    pub from: Amount,
    pub qos: f64,
}

impl Surefoot {
    /// A service that was enlarged in vain gives it back. Its cores are idle, so no queue waits for them, and its QoS is what it was.
    pub(super) fn give_back(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        let set = self.set;
        // Without BE jobs what is given back would be idle.
        if !self.books.has_be() {
            self.lives.values_mut().for_each(|l| l.futile = None);
            return;
        }
        for s in seen.lc() {
            let held = self.books.usable(&s.id);
            let busier = |share: f64| self.is_busier(s, share);
            let (needs_cores, idle) = (busier(set.busy.most), !busier(set.idle_busy()));
            let busy = self.lives.get(&s.id).and_then(|l| mean(&l.features).cpu_usage_cores);
            let Some(life) = self.lives.get_mut(&s.id) else { continue };
            life.end_futility(now_ms, needs_cores, &set);
            let (Some(climb), Some(qos), Some(busy)) = (life.climb, s.qos(), busy) else { continue };
            let judged = now_ms >= life.changed_ms + WINDOW_MS
                && now_ms >= climb.since_ms + set.patience.again_ms
                && life.features.len() >= set.readings.enough_intervals
                && life.more >= set.grow.tries;
            // Tries that brought nothing say nothing.
            let judged = judged && !held.fits_in(climb.from);
            if !judged || !idle || set.is_slow(s) || doubtful(s) || life.futile.is_some() || qos >= 1.0 {
                continue;
            }
            if qos >= climb.qos * (1.0 + VAIN_GAIN) {
                // It did help: what comes next is judged from here.
                life.climb = Some(Climb { since_ms: now_ms, from: held, qos });
                continue;
            }
            let rps = life.rps;
            life.futile = Some(Futile { rps, until_ms: now_ms + (set.memory.grudge_ms << life.futiles.min(DOUBLINGS)) });
            life.futiles += 1;
            (life.climb, life.more) = (None, 0);
            let told = std::mem::replace(&mut life.reported, true);
            let cores = (busy / set.idle_busy() / self.books.platform.core_step).ceil() as u32;
            let to = Amount::new(climb.from.cores.min(cores), climb.from.ways).at_least(self.books.least()).at_most(held);
            let Some(life) = self.lives.get(&s.id) else { continue };
            let mut because = self.because(now_ms, s, life, None).expect(HoldsIf::P99Stays);
            because.reject("more", format!("on {} its QoS was no worse", words(climb.from, &self.books.platform)));
            because.bind("its cores are idle, so others can use them");
            if !told {
                plan.reports.push(Report::ExpectedSlowdown { service: s.id.clone(), qos: qos.max(0.0) });
            }
            if to == held || !self.books.set(&s.id, to) {
                continue;
            }
            let why = format!("more did not help: {} -> {}", words(held, &self.books.platform), words(to, &self.books.platform));
            plan.actions.push(Action { service: s.id.clone(), kind: ActionKind::Shrink, why, because });
            if let Some(life) = self.lives.get_mut(&s.id) {
                (life.changed_ms, life.strikes, life.predicted, life.watch, life.lost) = (now_ms, 0, None, None, false);
                life.features.clear();
            }
        }
    }
}

impl Life {
    /// More is asked again after a while, at another load, once the service is well, or once its cores are busy.
    fn end_futility(&mut self, now_ms: u64, needs_cores: bool, set: &Settings) {
        let Some(f) = self.futile else { return };
        let moved = (self.rps / f.rps - 1.0).abs() > set.readings.load_change;
        let well = self.met_since_ms.is_some_and(|t| now_ms >= t.max(self.changed_ms) + WINDOW_MS);
        if moved || well || needs_cores {
            (self.futile, self.futiles) = (None, 0);
        } else if now_ms >= f.until_ms {
            self.futile = None;
        }
    }
}
