//! Algorithm 2 of the OSML+ paper for who is over-provisioned: Model-C chooses what it gives, Model-B and the RCliff mask what is harmful.
//!
//! Line 11, the withdrawal, is in [`super::rollback`].

use super::*;

/// What a shrinking step is decided on.
#[derive(Clone, Debug)]
struct Shrinking {
    qos: f64,
    has: Amount,
    target: Target,
    /// The load has changed since Model-A was asked before.
    dropped: bool,
    /// Little slack, but long met and above the OAA.
    on_trial: bool,
}

impl OsmlPlus {
    /// Reclaim from services that have more than they need: one service, one action.
    pub(super) fn over_provisioned(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        // What is reclaimed for BE jobs is felt by all: nobody may be near its target.
        let far = |s: &ServiceView| s.qos().is_none_or(|q| q >= self.set.grow_qos) && !self.is_saturated(s);
        let all_met = seen.lc().all(|s| !s.latency_unknown() && far(s));
        let sampling = self.lives.values().any(Life::asleep);
        if !all_met || sampling || now_ms < self.reclaimed_ms + 200 {
            return;
        }
        let calm = |l: &Life| {
            !l.asleep()
                && l.watch.is_none()
                && l.met_since_ms.is_some_and(|t| now_ms >= t + self.set.reclaim_after_ms)
                && now_ms >= l.changed_ms + 1000
                && l.features.len() >= 3
        };
        let mut order: Vec<&ServiceView> = seen
            .lc()
            .filter(|s| self.lives.get(&s.id).is_some_and(calm))
            .filter(|s| s.qos().is_some_and(|q| q >= self.set.slack_qos) || self.may_try(now_ms, s))
            .filter(|s| self.books.slot(&s.id).is_some())
            .collect();
        // Best first.
        order.sort_by(|a, b| b.qos().partial_cmp(&a.qos()).unwrap_or(std::cmp::Ordering::Equal));
        for s in order {
            if self.shrink_one(now_ms, s, plan) {
                self.reclaimed_ms = now_ms;
                return;
            }
        }
    }

    /// Long met, and holding more than its OAA: a unit may go on trial although there is little slack.
    fn may_try(&self, now_ms: u64, s: &ServiceView) -> bool {
        let Some(l) = self.lives.get(&s.id) else { return false };
        let above = l.target.as_ref().is_some_and(|t| !self.books.usable(&s.id).minus(t.oaa).is_zero());
        let since = l.met_since_ms.map_or(now_ms, |t| t.max(l.changed_ms));
        above && l.hurts < 3 && now_ms >= since + self.set.trial_after_ms && self.books.has_be()
    }

    /// One shrinking action for one service, or a jump down to a new OAA. False if it keeps what it has.
    fn shrink_one(&mut self, now_ms: u64, s: &ServiceView, plan: &mut Plan) -> bool {
        let Some(qos) = s.qos() else { return false };
        let stale = now_ms >= self.lives[&s.id].asked_ms + 3000;
        let dropped = self.changed_load(s);
        if self.lives[&s.id].target.is_none() || dropped || stale {
            let t = self.ask_a(s);
            self.remember_asked(now_ms, &s.id, t);
        }
        let Some(target) = self.lives[&s.id].target.clone() else { return false };
        let on_trial = qos < self.set.slack_qos && self.may_try(now_ms, s);
        let case = Shrinking { qos, has: self.books.usable(&s.id), target, dropped, on_trial };
        self.jump_down(now_ms, s, &case, plan) || self.step_down(now_ms, s, &case, plan)
    }

    /// Whether `to` is enough for a service; if not, why.
    fn suffices(&self, s: &ServiceView, case: &Shrinking, to: Amount) -> Result<(), &'static str> {
        let Shrinking { qos, has, ref target, on_trial, .. } = *case;
        let (oaa, rcliff) = (target.oaa, target.rcliff);
        let life = &self.lives[&s.id];
        let busy = life.smooth().cpu_usage_cores;
        let lost = has.minus(to);
        // Off the RCliff by Model-A; beyond it only where there is much to spare and every other sign agrees.
        let off = (lost.cores == 0 || to.cores > rcliff.cores) && (lost.ways == 0 || to.ways > rcliff.ways);
        let (busy_limit, least_qos) = if off { (self.set.busy, self.set.own_qos) } else { (0.7, 1.4) };
        let roomy = lost.cores == 0 || busy.map_or(off, |b| b / self.cores(to) <= busy_limit);
        let above_oaa = (lost.cores == 0 || to.cores >= oaa.cores) && (lost.ways == 0 || to.ways >= oaa.ways);
        let known = match self.b_corrected(s, to) {
            Ok(_) if on_trial => above_oaa && lost.cores + lost.ways == 1,
            Ok(q) => q >= least_qos,
            Err(_) => qos >= 1.5 && lost.cores + lost.ways == 1,
        };
        match () {
            () if !lost.fits_in(self.books.spare(&s.id)) => Err("it holds the least already"),
            () if !life.floor.fits_in(to) => Err("losing it hurt before"),
            () if !roomy => Err("its cores would be too busy"),
            () if !known && on_trial => Err("below its OAA, or more than a unit, with little slack"),
            () if !known && !off => Err("on Model-A's RCliff, and Model-B does not predict QoS 1.4"),
            () if !known => Err("Model-B predicts too little QoS, or has no answer"),
            () => Ok(()),
        }
    }

    /// Far above the OAA: go there at once after a drop of load, else (something beyond the models has raised it) by quarters.
    fn jump_down(&mut self, now_ms: u64, s: &ServiceView, case: &Shrinking, plan: &mut Plan) -> bool {
        let Shrinking { qos, has, ref target, dropped, .. } = *case;
        let above = has.minus(target.oaa).at_most(self.books.spare(&s.id));
        let careful = Amount::new(above.cores.div_ceil(4), above.ways.div_ceil(4));
        let jump = match self.lives[&s.id].hurts {
            0 if dropped => above,
            0 => careful,
            _ => Amount::default(),
        };
        let to = has.minus(jump);
        if jump.cores + jump.ways < 2 || self.suffices(s, case, to).is_err() {
            return false;
        }
        let mut because = self.because(s, HoldsIf::Qos { at_least: 1.0 });
        self.say_target(&mut because, target);
        self.say_b(&mut because, s, has, to);
        because.reject("single steps", if dropped { "the load has changed" } else { "far above its OAA" });
        if jump != above {
            let all = words(above, &self.books.platform);
            because.reject(format!("all of {all} above its OAA"), "something beyond the models has raised it: a quarter at a time");
        }
        because.bind("Model-A's OAA; under watch, and withdrawn if a target is missed");
        self.books.shrink(&s.id, jump);
        self.watch(now_ms, &s.id, jump, None, None);
        let what = words(jump, &self.books.platform);
        act(plan, &s.id, ActionKind::Shrink, format!("QoS {qos:.2}; {}: {what} less", target.why), because);
        true
    }

    /// One unit less of what Model-C proposes, unless it proposes to leave the service alone.
    fn step_down(&mut self, now_ms: u64, s: &ServiceView, case: &Shrinking, plan: &mut Plan) -> bool {
        let Shrinking { qos, has, ref target, .. } = *case;
        let (proposal, from) = self.propose(s);
        let mut options: Vec<(usize, f64, Amount)> = vec![];
        let mut masked = None;
        for (action, unit) in [(CORES_DOWN, Amount::new(1, 0)), (WAYS_DOWN, Amount::new(0, 1))] {
            if !unit.fits_in(has) {
                continue;
            }
            match self.suffices(s, case, has.minus(unit)) {
                Ok(()) => options.push((action, proposal[action], unit)),
                Err(why) => masked = Some((action, why)),
            }
        }
        let Some((action, p, unit)) = options.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)) else { return false };
        let idles = self.lives[&s.id].idles;
        let idle = proposal[IDLE];
        if idle > p && idles < self.set.idle_patience {
            self.expect(s, IDLE, has);
            if let Some(l) = self.lives.get_mut(&s.id) {
                l.idles += 1;
            }
            return false;
        }
        let to = has.minus(unit);
        let mut because = self.because(s, HoldsIf::Qos { at_least: 1.0 });
        self.say_target(&mut because, target);
        self.say_c(&mut because, s, &proposal, options.iter().map(|o| o.0).chain([IDLE]));
        self.say_b(&mut because, s, has, to);
        if let Some((action, why)) = masked {
            because.reject(because::ACTION_NAMES[action], why);
        }
        for (other, q, _) in options.iter().filter(|o| o.0 != action) {
            because.reject(because::ACTION_NAMES[*other], format!("Model-C: p {q:.2}, less than {p:.2}"));
        }
        let answered = if idle > p { format!("answered {idles} times in a row") } else { format!("Model-C: p {idle:.2}") };
        because.reject(because::ACTION_NAMES[IDLE], answered);
        because.bind("one unit of one service; under watch, and withdrawn if a target is missed");
        self.expect(s, action, to);
        self.books.shrink(&s.id, unit);
        self.watch(now_ms, &s.id, unit, None, None);
        if let Some(l) = self.lives.get_mut(&s.id) {
            l.idles = 0;
        }
        let what = words(unit, &self.books.platform);
        act(plan, &s.id, ActionKind::Shrink, format!("QoS {qos:.2}; {from}: p {p:.2}; {what} less"), because);
        true
    }
}
