//! Algorithm 3 of the OSML+ paper, line 13: what nobody can be deprived of is shared, as the last resort.

use super::grow::Need;
use super::*;
use surefoot_server::Text;

impl OsmlPlus {
    /// Nothing can be had: share (Algorithm 3, line 13), or tell the upper scheduler that it had better run elsewhere.
    pub(super) fn last_resort(&mut self, now_ms: u64, s: &ServiceView, need: Need, seen: &Observation, plan: &mut Plan) {
        let life = &self.lives[&s.id];
        let long = life.missed_since_ms.is_some_and(|t| now_ms >= t + 1500);
        if need != Need::Missed || !long || now_ms < life.changed_ms + 500 {
            return;
        }
        let has = self.books.usable(&s.id);
        let oaa = life.target.as_ref().map_or(has, |t| t.oaa);
        let lack = oaa.minus(has).at_least(Amount::new(1, u32::from(self.books.total().ways > 0)));
        let shared = self.books.common_of(&s.id).is_none()
            && now_ms >= life.alone_until_ms
            && [lack, Amount::new(lack.cores, 0), Amount::new(0, lack.ways)]
                .into_iter()
                .any(|l| self.share_for(now_ms, &s.id, l, seen, plan));
        if shared {
            self.changed(now_ms, &s.id);
        } else if let Some(l) = self.lives.get_mut(&s.id).filter(|l| !l.reported && !plan.waits_for_word(&s.id)) {
            l.reported = true;
            let why = format!("QoS {:.2}: nothing is free, and no neighbour can give or share more", s.qos().unwrap_or(0.0));
            plan.reports.push(Report::Migrate { service: s.id.clone(), why });
        }
    }

    /// Share what is lacking with the neighbour that has the least QoS slowdown (line 13) and stays allowable, and tell the upper scheduler.
    pub(super) fn share_for(&mut self, now_ms: u64, whom: &str, lack: Amount, seen: &Observation, plan: &mut Plan) -> bool {
        let cores = if self.books.platform.by_quota() { 0 } else { lack.cores };
        let lack = Amount::new(cores, lack.ways);
        let half = Amount::new(lack.cores.div_ceil(2), lack.ways.div_ceil(2));
        let able = |s: &&ServiceView| {
            s.id != whom
                && !seen.denied(whom, &s.id)
                && s.qos_met() == Some(true)
                && lack.fits_in(self.books.spare(&s.id))
                && self.books.common_of(&s.id).is_none()
                && self.lives.get(&s.id).is_some_and(|l| l.watch.is_none() && !l.asleep())
        };
        // Two users of one CPU or way have about half of it each.
        let now_after = |s: &ServiceView| self.qos_on_less(s, self.books.usable(&s.id).minus(half));
        // Whatever Model-B says of so much less: cores that are busy are not there for two.
        let roomy = |s: &&ServiceView| {
            let busy = self.lives.get(&s.id).and_then(|l| l.smooth().cpu_usage_cores);
            lack.cores == 0 || busy.is_none_or(|b| b / self.cores(self.books.usable(&s.id).minus(half)) <= self.set.busy)
        };
        let best = seen
            .lc()
            .filter(able)
            .filter(roomy)
            .filter_map(|s| Some((s.id.clone(), now_after(s)?)))
            .filter(|(_, (_, after))| *after >= self.set.shared_qos)
            .map(|(id, (now, after))| (id, after, (1.0 - after / now).clamp(0.0, 1.0)))
            // Least slowdown; of equals the one with the best QoS.
            .min_by(|a, b| a.2.total_cmp(&b.2).then(b.1.total_cmp(&a.1)));
        let Some((owner, qos, slowdown)) = best else { return false };
        let what = words(lack, &self.books.platform);
        let question =
            Question { service: whom.into(), with: owner.clone(), qos, why: format!("{what}: no service can allowably be deprived of it") };
        if !plan.may_share(seen, question) {
            return false;
        }
        let mut gives = self.because_of(seen, &owner, HoldsIf::Qos { at_least: self.set.shared_qos });
        let by = seen.get(&owner).map_or("Model-B", |s| self.says_qos(&mut gives, s));
        gives.say(by, "QoS while it is shared", qos, "");
        gives.say(by, "slowdown", 100.0 * slowdown, "%");
        gives.predict(qos, self.models.qos_cap());
        let mut gets = self.because_of(seen, whom, HoldsIf::P99Falls);
        for s in seen.lc().filter(|s| s.id != owner && s.id != whom) {
            let why: Text = match now_after(s) {
                _ if seen.denied(whom, &s.id) => "the upper scheduler does not allow it".into(),
                _ if s.qos_met() != Some(true) => "its target is missed, or its latency unknown".into(),
                _ if !able(&s) => "it holds too little, shares already, or is watched".into(),
                _ if !roomy(&s) => "the cores that it would be left with would be too busy".into(),
                Some((_, after)) if after < self.set.shared_qos => {
                    format!("{}: QoS {after:.2}, {:.2} is agreed for sharing", self.who_says_qos(s), self.set.shared_qos).into()
                }
                Some((_, after)) => format!("{}: QoS {after:.2}, the loss would be larger", self.who_says_qos(s)).into(),
                None => "Model-B has no answer".into(),
            };
            gives.reject(format!("with {}", s.id), why.clone());
            gets.reject(format!("with {}", s.id), why);
        }
        for s in seen.lc().filter(|s| s.id != whom) {
            gets.reject(format!("deprive {}", s.id), self.why_it_gives_nothing(s, lack));
        }
        if !self.books.share(&owner, whom, lack) {
            return false;
        }
        if let Some(l) = self.lives.get_mut(whom) {
            l.shares = Some((now_ms, l.recent_p99_ms().unwrap_or(f64::INFINITY)));
        }
        gives.bind(format!("nobody can allowably be deprived of {what}"));
        gets.bind(format!("nobody can allowably be deprived of {what}"));
        let why = format!("{what} shared with {whom}; {by}: QoS {qos:.2}, {:.0} % less", 100.0 * slowdown);
        act(plan, &owner, ActionKind::Share, why, gives);
        act(plan, whom, ActionKind::Share, format!("{what} shared by {owner}: nobody can be deprived of it"), gets);
        plan.reports.push(Report::ExpectedSlowdown { service: owner, qos });
        true
    }

    /// End sharings as soon as what is shared can be had by both, or when they hurt.
    ///
    /// The paper leaves open when a sharing ends. Here it is on trial, as a reclaim is: it goes back to its owner once that has missed
    /// its target for a second, or where after a second of it the guest misses its target and p99 has not fallen by a tenth.
    /// The guest then shares with nobody for [`Settings::alone_ms`].
    pub(super) fn end_sharing(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        for c in self.books.commons().to_vec() {
            if c.amount.fits_in(self.books.free()) && self.books.unshare(&c.owner, true) {
                for id in [&c.owner, &c.guest] {
                    let because = self.because_of(seen, id, HoldsIf::P99Stays);
                    self.changed(now_ms, id);
                    act(plan, id, ActionKind::Grow, "sharing ends: enough is free for both".into(), because);
                }
                continue;
            }
            let Some(whose) = self.hurt_by_sharing(now_ms, &c).map(str::to_string) else { continue };
            if !self.books.unshare(&c.owner, false) {
                continue;
            }
            let what = words(c.amount, &self.books.platform);
            let of_owner = if whose == c.owner { HoldsIf::P99Falls } else { HoldsIf::P99Stays };
            for (id, holds_if) in [(&c.owner, of_owner), (&c.guest, HoldsIf::NotJudged)] {
                let mut because = self.because_of(seen, id, holds_if);
                because.reject("go on sharing", format!("{whose} misses its target with it"));
                because.bind(format!("{} uses nobody else's for {} s", c.guest, self.set.alone_ms / 1000));
                self.changed(now_ms, id);
                let why = format!("sharing ends, for {whose} misses its target with it: {what} back to {}", c.owner);
                act(plan, id, ActionKind::Rollback, why, because);
            }
            if let Some(l) = self.lives.get_mut(&c.guest) {
                l.alone_until_ms = now_ms + self.set.alone_ms;
            }
        }
    }

    /// Who misses its target with a sharing that has lasted for a second, if anybody.
    fn hurt_by_sharing<'c>(&self, now_ms: u64, c: &'c Common) -> Option<&'c str> {
        let guest = self.lives.get(&c.guest)?;
        let (since_ms, start_p99_ms) = guest.shares?;
        if now_ms < since_ms + self.set.share_trial_ms {
            return None;
        }
        let missed = |l: &Life| l.missed_since_ms.is_some_and(|t| now_ms >= t + self.set.share_trial_ms);
        let helped = guest.recent_p99_ms().is_none_or(|p| p < 0.9 * start_p99_ms);
        match () {
            () if self.lives.get(&c.owner).is_some_and(missed) => Some(&c.owner),
            () if missed(guest) && !helped => Some(&c.guest),
            () => None,
        }
    }
}
