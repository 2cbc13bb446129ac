//! Algorithm 4 of the OSML paper: across the RCliff, by sharing with a neighbour whose loss Model-B' finds acceptable.

use super::*;

/// One way to share: with whom, what, and QoS that the owner would lose if it lost all of it.
struct Sharing {
    owner: ServiceId,
    amount: Amount,
    slowdown: f64,
}

impl Osml {
    /// Give `more` to a service that finds too little idle. False (and nothing changed) if nobody can help.
    pub(super) fn deprive_or_share(&mut self, now_ms: u64, s: &ServiceView, more: Amount, seen: &Observation, plan: &mut Plan) -> bool {
        // Line 2: what does it need from its neighbours?
        let target = self.ask_a(s, seen);
        let by_a = target.oaa.minus(self.books.usable(&s.id));
        let mut wants = vec![];
        for want in [by_a, more] {
            wants.extend([want, Amount::new(want.cores, 0), Amount::new(0, want.ways)]);
        }
        wants.retain(|w| !w.is_zero());
        wants.dedup();
        for want in &wants {
            let lack = want.minus(self.books.free());
            if !self.deprive_for(now_ms, &s.id, lack, seen, plan) {
                continue;
            }
            let mut because = self.because(s, HoldsIf::P99Falls);
            self.say_target(&mut because, &target);
            because.reject("share it", "neighbours can give it within the acceptable slowdown");
            because.bind(format!("B-points at {:.0} % slowdown", 100.0 * self.set.slowdown));
            let reach = |x: u32| x.min(dqn::REACH as u32) as i32;
            self.expect(s, (reach(want.cores), reach(want.ways)));
            if self.books.grow(&s.id, *want) {
                self.changed(now_ms, &s.id);
                let why = format!("QoS {:.2}; {} more, from neighbours", s.qos().unwrap_or(0.0), self.words(*want));
                act(plan, &s.id, ActionKind::Grow, why, because);
                return true;
            }
        }
        let need = if by_a.is_zero() { more } else { by_a };
        self.share_for(now_ms, &s.id, need, seen, plan)
    }

    /// Model-B' on a smaller allocation, as QoS lost, 0..1.
    pub(super) fn slowdown(&self, s: &ServiceView, to: Amount) -> Result<f64, String> {
        let lost = self.models.slowdown(&s.service, &self.state(s), self.cores(to), f64::from(to.ways))?;
        if lost.is_finite() {
            Ok(lost.clamp(0.0, 1.0))
        } else {
            Err("Model-B': not a number".into())
        }
    }

    pub(super) fn say_bp(&self, b: &mut Because, s: &ServiceView, to: Amount) {
        match self.slowdown(s, to) {
            Ok(lost) => {
                b.say("Model-B'", format!("QoS lost on {}", self.words(to)), 100.0 * lost, "%");
                b.predict(1.0 - lost, 1.0);
            }
            Err(e) => b.reject("Model-B'", format!("has no answer: {e}")),
        }
    }

    /// Why a neighbour does not share, before Model-B' is asked; None: it may.
    fn why_not(&self, s: &ServiceView, whom: &str) -> Option<&'static str> {
        let Some(life) = self.lives.get(&s.id) else { return Some("it is not known yet") };
        match () {
            () if s.id == whom => Some("it is the one in need"),
            () if s.qos_met() != Some(true) => Some("its target is missed, or its latency unknown"),
            () if life.asleep() || life.features.is_empty() => Some("it is new, or has just changed"),
            () if life.trial.is_some() => Some("it has just given"),
            () if self.books.common_of(&s.id).is_some() => Some("it shares already"),
            () => None,
        }
    }

    /// Lines 3 to 7: all ways to share `need` or a part of it, judged by Model-B'; as much as is acceptable, of equals the least loss.
    pub(super) fn share_for(&mut self, now_ms: u64, whom: &str, need: Amount, seen: &Observation, plan: &mut Plan) -> bool {
        if self.books.common_of(whom).is_some() {
            return false;
        }
        // Quota is a sum, not a place: cores cannot be shared.
        let need = if self.books.platform.by_quota() { Amount::new(0, need.ways) } else { need };
        let mut best: Option<(f64, Sharing)> = None;
        let mut others = vec![];
        for s in seen.lc().filter(|s| s.id != whom) {
            let denied = seen.denied(whom, &s.id).then_some("the upper scheduler does not allow it");
            if let Some(why) = denied.or_else(|| self.why_not(s, whom)) {
                others.push((s.id.clone(), why.to_string()));
                continue;
            }
            let (has, most) = (self.books.usable(&s.id), need.at_most(self.books.spare(&s.id)));
            let mut least: Option<f64> = None;
            for cores in 0..=most.cores {
                for ways in 0..=most.ways {
                    let amount = Amount::new(cores, ways);
                    let Some(slowdown) = (!amount.is_zero()).then(|| self.slowdown(s, has.minus(amount)).ok()).flatten() else { continue };
                    least = Some(least.map_or(slowdown, |l| l.min(slowdown)));
                    if slowdown > self.set.shared_slowdown {
                        continue;
                    }
                    let part = |x: u32, of: u32| f64::from(x) / f64::from(of.max(1));
                    let worth = part(cores, need.cores) + part(ways, need.ways) - slowdown;
                    if best.as_ref().is_none_or(|(w, _)| worth > *w) {
                        best = Some((worth, Sharing { owner: s.id.clone(), amount, slowdown }));
                    }
                }
            }
            others.push((
                s.id.clone(),
                match least {
                    Some(l) => {
                        format!("Model-B': {:.0} % QoS lost at least, {:.0} % is agreed", 100.0 * l, 100.0 * self.set.shared_slowdown)
                    }
                    None => "it holds the least already, or Model-B' has no answer".into(),
                },
            ));
        }
        let Some((_, Sharing { owner, amount, slowdown })) = best else { return false };
        let why = format!("{}: no service can acceptably be deprived of it", self.words(amount));
        let question = Question { service: whom.into(), with: owner.clone(), qos: 1.0 - slowdown, why };
        if !plan.may_share(seen, question) || !self.books.share(&owner, whom, amount) {
            return false;
        }
        let mut gives = self.because_of(seen, &owner, HoldsIf::Qos { at_least: 1.0 - self.set.shared_slowdown });
        gives.say("Model-B'", "QoS lost at most, while it is shared", 100.0 * slowdown, "%");
        gives.predict(1.0 - slowdown, 1.0);
        let mut gets = self.because_of(seen, whom, HoldsIf::P99Falls);
        gets.say("Model-B'", format!("QoS that {owner} loses at most"), 100.0 * slowdown, "%");
        for (id, why) in others.iter().filter(|o| o.0 != owner) {
            gives.reject(format!("with {id}"), why.clone());
            gets.reject(format!("with {id}"), why.clone());
        }
        let what = self.words(amount);
        gives.bind(format!("nobody can acceptably be deprived of {}", self.words(need)));
        gets.bind(format!("nobody can acceptably be deprived of {}", self.words(need)));
        act(plan, &owner, ActionKind::Share, format!("{what} shared with {whom}; Model-B': {:.0} % QoS lost", 100.0 * slowdown), gives);
        act(plan, whom, ActionKind::Share, format!("{what} shared by {owner}: nobody can be deprived of it"), gets);
        plan.reports.push(Report::ExpectedSlowdown { service: owner.clone(), qos: 1.0 - slowdown });
        self.changed(now_ms, &owner);
        self.changed(now_ms, whom);
        true
    }

    /// End sharings as soon as what is shared can be had by both.
    pub(super) fn end_sharing(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        for c in self.books.commons().to_vec() {
            if c.amount.fits_in(self.books.free()) && self.books.unshare(&c.owner, true) {
                for id in [&c.owner, &c.guest] {
                    let mut because = self.because_of(seen, id, HoldsIf::P99Stays);
                    because.bind(format!("{} are idle", self.words(c.amount)));
                    self.changed(now_ms, id);
                    act(plan, id, ActionKind::Grow, "sharing ends: enough is idle for both".into(), because);
                }
            }
        }
    }
}
