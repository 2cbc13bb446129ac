//! Algorithm 1 of the OSML+ paper: a new service on idle resources, then on its OAA by Model-A; and when Model-A is asked again.

use super::*;
use crate::books::qos_by_thumb;

/// A service that is to be placed, with what it was watched on.
struct Ready {
    id: ServiceId,
    target: Target,
    held: Amount,
}

impl OsmlPlus {
    /// Map new services on what is free, each an equal part of it.
    pub(super) fn map_on_idle(&mut self, now_ms: u64, seen: &Observation, arrived: &[ServiceId], plan: &mut Plan) {
        for (i, id) in arrived.iter().enumerate() {
            let least = self.books.least();
            // A sample from a starved service says little: half an equal share is worth asking neighbours for.
            let holders = seen.services.len().max(1) as u32;
            let total = self.books.total();
            let share = Amount::new(total.cores / holders, total.ways / holders).at_least(least);
            self.watched_yield(now_ms, id, share, seen, plan);
            let asks = self.with.with.pre_deprivation > 0;
            for (cores, ways) in [(2, 2), (2, 4), (4, 4), (2, 32), (4, 32)].into_iter().filter(|_| asks) {
                let want = Amount::new(total.cores / holders / cores, total.ways / holders / ways).at_least(least);
                let lack = want.minus(self.books.free());
                if lack.is_zero() || self.deprive_for(now_ms, id, lack, seen, plan) {
                    break;
                }
            }
            let half = Amount::new(share.cores / 2, share.ways / 2).at_least(least);
            if asks && !half.fits_in(self.books.free()) && seen.lc().filter(|s| self.books.slot(&s.id).is_some()).all(|s| self.is_mute(s)) {
                self.take_beyond_share(now_ms, id, half.minus(self.books.free()), share, seen, plan);
            }
            if !least.fits_in(self.books.free()) {
                // Nobody can be asked by Model-B's leave: the best-off gives its last spare.
                self.take_from_best_off(now_ms, id, least.minus(self.books.free()), seen, plan);
            }
            let left = (arrived.len() - i) as u32;
            let free = self.books.free();
            let most = Amount::new((f64::from(total.cores) * self.set.sample_share) as u32, total.ways);
            // Who is still watched has given for this one, not for those that come with it.
            let part = Amount::new(free.cores / left, free.ways / left).at_least(share.at_most(free)).at_most(most).at_least(least);
            if self.books.admit(id, part) {
                let life = self.lives.entry(id.clone()).or_default();
                *life = Life { sampling_since_ms: Some(now_ms), changed_ms: now_ms, ..Life::default() };
                let mut because = self.because_of(seen, id, HoldsIf::NotJudged);
                because.reject("its OAA at once", format!("Model-A is asked after {} ms on known resources", self.set.sample_ms));
                because.bind(format!("{} are free, for {left} new services", words(free, &self.books.platform)));
                act(plan, id, ActionKind::Place, format!("new: watched on idle resources, {}", words(part, &self.books.platform)), because);
            } else if !self.books.is_crowded(id) {
                self.books.crowd_in(id);
                let why = "not even one core unit and the least ways are left".to_string();
                plan.reports.push(Report::CannotPlace { service: id.clone(), why });
            }
        }
    }

    /// Who is still watched holds what was idle: beyond an equal share it gives what a newcomer lacks of its own.
    fn watched_yield(&mut self, now_ms: u64, whom: &str, share: Amount, seen: &Observation, plan: &mut Plan) {
        if !self.books.unit_is_left_for(whom) {
            return;
        }
        for s in seen.lc().filter(|s| s.id != whom) {
            let lack = share.minus(self.books.free());
            let gives = lack.at_most(self.books.usable(&s.id).minus(share));
            let watched = self.lives.get(&s.id).is_some_and(Life::asleep);
            if !watched || gives.is_zero() || !self.books.shrink(&s.id, gives) {
                continue;
            }
            self.changed(now_ms, &s.id);
            let mut because = self.because_of(seen, &s.id, HoldsIf::NotJudged);
            because.reject("Model-B", "it is still watched on what was idle when it came");
            because.bind(format!("it keeps an equal share, {}", words(share, &self.books.platform)));
            let what = words(gives, &self.books.platform);
            act(plan, &s.id, ActionKind::Deprive, format!("still watched: {what} of what was idle to {whom}"), because);
        }
    }

    /// Model-B says nothing about a service. Asked by what is seen now: what is remembered of who was moved in this very step is nothing.
    pub(super) fn is_mute(&self, s: &ServiceView) -> bool {
        let held = self.books.usable(&s.id);
        !self.models.qos(&s.service, &State::of(s), self.cores(held), f64::from(held.ways)).is_ok_and(f64::is_finite)
    }

    /// QoS now and on less than it holds, by Model-B or, where that says nothing about the service, by the rule of thumb. None for who was
    /// moved in this very step: the model will answer in the next.
    pub(super) fn qos_on_less(&self, s: &ServiceView, less: Amount) -> Option<(f64, f64)> {
        match self.b_corrected(s, less) {
            Ok(then) => Some((self.recent_qos(s)?.min(self.models.qos_cap()), then)),
            Err(_) if self.is_mute(s) => s.qos().map(|q| (q, qos_by_thumb(q, self.books.usable(&s.id), less))),
            Err(_) => None,
        }
    }

    /// Place every service that has been watched long enough, together.
    pub(super) fn place_sampled(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        let ready = self.ready_to_place(now_ms, seen);
        if ready.is_empty() {
            return;
        }
        self.hand_out(now_ms, &ready, seen, plan);
        for Ready { id, target, .. } in &ready {
            let lack = target.oaa.minus(self.books.usable(id));
            if lack.is_zero() || self.obtain(now_ms, id, lack, seen, plan) {
                continue;
            }
            let lack = target.rcliff.minus(self.books.usable(id));
            if lack.is_zero() || self.obtain(now_ms, id, lack, seen, plan) || self.share_for(now_ms, id, lack, seen, plan) {
                continue;
            }
            let p = &self.books.platform;
            let (wanted, got) = (words(target.oaa, p), words(self.books.usable(id), p));
            let why = format!("{wanted} wanted, {got} got, and no neighbour can give or share more");
            plan.reports.push(Report::CannotPlace { service: id.clone(), why });
        }
    }

    /// Services that have been watched long enough, with what Models A and B say of them.
    fn ready_to_place(&self, now_ms: u64, seen: &Observation) -> Vec<Ready> {
        let mut ready = vec![];
        for s in seen.lc() {
            let Some(life) = self.lives.get(&s.id) else { continue };
            let Some(since) = life.sampling_since_ms else { continue };
            // Who gave some of it meanwhile must have been seen on what is left.
            if s.latency_unknown() || now_ms < life.changed_ms + self.set.sample_ms {
                continue;
            }
            let slow = is_slow(s);
            let wait = if slow { self.set.sample_slow_ms } else { self.set.sample_ms };
            // Without any latency the counters alone must do, after the longer time.
            if now_ms < since + wait || s.features.cpu_usage_cores.is_none() && slow && now_ms < since + 2 * wait {
                continue;
            }
            let held = self.books.usable(&s.id);
            let target = self.check_with_b(s, self.ask_a(s), held.plus(self.books.free()));
            ready.push(Ready { id: s.id.clone(), target, held });
        }
        ready
    }

    /// Give each as much of the way from RCliff to OAA as all can have of what is free.
    fn hand_out(&mut self, now_ms: u64, ready: &[Ready], seen: &Observation, plan: &mut Plan) {
        // All that is free, and what the ready ones hold for the time being.
        let pool = ready.iter().fold(self.books.free(), |a, r| a.plus(self.books.slot(&r.id).map_or(Amount::default(), |s| s.own)));
        let fit = |of: fn(Amount) -> u32| {
            // Share of the way from RCliff to OAA that all can have.
            let sum = |t: f64| ready.iter().map(|r| between(of(r.target.rcliff), of(r.target.oaa), t)).sum::<u32>();
            [1.0, 0.75, 0.5, 0.25, 0.0].into_iter().find(|t| sum(*t) <= of(pool))
        };
        let (tc, tw) = (fit(|a| a.cores), fit(|a| a.ways));
        let least = self.books.least();
        // First make room, then hand out: everybody down to the least, then up in order of arrival.
        for r in ready {
            self.books.set(&r.id, least);
        }
        for (i, Ready { id, target: t, held }) in ready.iter().enumerate() {
            let cores = tc.map_or(t.rcliff.cores, |x| between(t.rcliff.cores, t.oaa.cores, x));
            let ways = tw.map_or(t.rcliff.ways, |x| between(t.rcliff.ways, t.oaa.ways, x));
            let want = Amount::new(cores, ways).at_least(least);
            let left = (ready.len() - i) as u32;
            let free = self.books.free();
            // Where not even RCliffs fit, an equal part is the most that one can have.
            let most = |t: Option<f64>, free: u32| if t.is_some() { free } else { free / left };
            let limit = least.plus(Amount::new(most(tc, free.cores), most(tw, free.ways)));
            let got = want.at_most(limit);
            self.books.set(id, got);
            let mut because = self.because_of(seen, id, HoldsIf::Qos { at_least: 1.0 });
            self.say_target(&mut because, t);
            if let Some(s) = seen.get(id) {
                self.say_b(&mut because, s, *held, got);
            }
            if !t.oaa.fits_in(got) {
                let p = &self.books.platform;
                let whole = format!("its whole OAA, {}", words(t.oaa, p));
                because.reject(whole, format!("{} new services share {}", ready.len(), words(pool, p)));
                because.bind("what is free, until neighbours have been asked");
            }
            if let Some(life) = self.lives.get_mut(id) {
                life.sampling_since_ms = None;
            }
            self.remember_asked(now_ms, id, t.clone());
            self.changed(now_ms, id);
            act(plan, id, ActionKind::Place, format!("{}: {}", t.why, words(got, &self.books.platform)), because);
        }
    }

    /// Model-A's answer in units, or the rule of thumb.
    pub(super) fn ask_a(&self, s: &ServiceView) -> Target {
        let p = &self.books.platform;
        let (least, total) = (self.books.least(), self.books.total());
        let state = self.state(s);
        let up = |cores: f64| (cores / p.core_step - 0.3).ceil().clamp(1.0, f64::from(total.cores)) as u32;
        let up_ways = |w: Option<f64>| w.map_or(0, |w| (w - 0.3).ceil().clamp(0.0, f64::from(total.ways)) as u32);
        let holds = self.books.usable(&s.id);
        let answer = self.models.area(&s.service, &state).and_then(|a| {
            let sound = [Some(a.oaa_cores), Some(a.rcliff_cores), a.oaa_ways, a.rcliff_ways].into_iter().flatten().all(f64::is_finite);
            if sound {
                Ok(a)
            } else {
                Err("Model-A: not a number".to_string())
            }
        });
        match answer {
            Ok(a) => {
                let rcliff = Amount::new(up(a.rcliff_cores), up_ways(a.rcliff_ways)).at_least(least);
                let mut oaa = Amount::new(up(a.oaa_cores), up_ways(a.oaa_ways)).at_least(rcliff);
                let mut why = format!("Model-A: OAA {}, RCliff {}", words(oaa, p), words(rcliff, p));
                if let Some(mbps) = a.oaa_mbps.filter(|m| m.is_finite() && p.mba.is_some()) {
                    why += &format!(", {:.0} MB/s there", mbps.max(0.0));
                }
                // Fewer cores than are busy cannot do; while a backlog drains they are busy for another reason.
                if let Some(busy) = state.features.cpu_usage_cores.filter(|_| state.qos.is_some_and(|q| q >= 1.0)) {
                    let floor = up(busy / self.set.busy).min(holds.cores.max(oaa.cores));
                    if floor > oaa.cores {
                        oaa.cores = floor;
                        why += &format!("; {busy:.1} cores are busy");
                    }
                }
                Target { oaa, rcliff, why, area: Some(a) }
            }
            Err(e) => {
                let services = self.books.slots().len().max(1) as u32;
                let cores = state.features.cpu_usage_cores.map_or(total.cores / (services + 1), |busy| up(busy / 0.6));
                let oaa = Amount::new(cores, total.ways / (services + 1)).at_least(least).at_most(total);
                Target { oaa, rcliff: oaa, why: format!("{e}; rule of thumb: {}", words(oaa, p)), area: None }
            }
        }
    }

    /// Enlarge an OAA that Model-B does not believe in, by at most four steps and within `limit`.
    fn check_with_b(&self, s: &ServiceView, mut t: Target, limit: Amount) -> Target {
        for _ in 0..4 {
            let Ok(q) = self.b_corrected(s, t.oaa).or_else(|_| self.b(s, t.oaa)) else { return t };
            if q >= self.set.own_qos {
                return t;
            }
            let steps = [Amount::new(1, 0), Amount::new(0, 1)];
            let best = steps
                .iter()
                .map(|u| t.oaa.plus(*u))
                .filter(|a| a.fits_in(limit))
                .filter_map(|a| Some((a, self.b_corrected(s, a).or_else(|_| self.b(s, a)).ok()?)))
                .max_by(|a, b| a.1.total_cmp(&b.1));
            let Some((a, better)) = best.filter(|b| b.1 > q + 0.01) else { return t };
            t.why += &format!("; Model-B: QoS {q:.2} there, {better:.2} on {}", words(a, &self.books.platform));
            t.oaa = a;
        }
        t
    }

    pub(super) fn changed_load(&self, s: &ServiceView) -> bool {
        let Some(l) = self.lives.get(&s.id) else { return false };
        let moved = |now: Option<f64>, then: Option<f64>| match (now, then) {
            (Some(n), Some(t)) if t > 0.0 => (n / t - 1.0).abs() > self.set.load_change,
            _ => false,
        };
        // CPU use also follows the allocation: it stands in where throughput is unknown.
        if l.rps.is_some() && l.asked_at.0.is_some() {
            return moved(l.rps, l.asked_at.0);
        }
        moved(l.smooth().cpu_usage_cores, l.asked_at.1)
    }

    pub(super) fn remember_asked(&mut self, now_ms: u64, id: &str, target: Target) {
        if let Some(l) = self.lives.get_mut(id) {
            l.target = Some(target);
            l.asked_ms = now_ms;
            l.asked_at = (l.rps, l.smooth().cpu_usage_cores);
        }
    }
}
