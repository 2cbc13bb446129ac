//! Arrivals: the first BE job beside LC services, new services, and the least that BE jobs keep.

use super::*;

impl Surefoot {
    /// The first BE job beside LC services: room for what no counter has measured yet, and less bandwidth to begin with.
    pub(super) fn first_company(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        if self.books.platform.mba.is_some() {
            while let Some(pct) = self.books.mba_step(self.books.be_mba_pct, false).filter(|p| *p >= self.set.be.first_pct) {
                self.books.be_mba_pct = pct;
            }
            self.be_mba = Bandwidth { changed_ms: now_ms, wait_ms: WINDOW_MS, ..Bandwidth::default() };
        }
        for s in seen.lc() {
            let (Some(own), Some(life)) = (self.books.slot(&s.id).map(|s| s.own), self.lives.get(&s.id)) else { continue };
            if life.is_new() {
                continue;
            }
            let part = |n: u32| part_up(n, self.set.be.company);
            let more = Amount::new(part(own.cores), part(own.ways)).at_most(self.books.free());
            let mut because = self.because(now_ms, s, life, None).expect(HoldsIf::Qos { at_least: 1.0 });
            because.reject("wait and see", "siblings, frequency and memory are shared with a BE job from now on");
            because.bind(format!("{:.0} % of what it holds", 100.0 * self.set.be.company));
            if !more.is_zero() && self.books.grow(&s.id, more) {
                let why = format!("the first BE job comes: {} more until it is seen how they get along", words(more, &self.books.platform));
                plan.actions.push(Action { service: s.id.clone(), kind: ActionKind::Grow, why, because });
                self.lives.entry(s.id.clone()).and_modify(|l| {
                    l.changed_ms = now_ms;
                    l.features.clear();
                    l.predicted = None;
                    l.watch = None;
                    l.lost = false;
                });
            }
        }
    }

    /// New services: cells of which nothing is known, beside what the others need.
    pub(super) fn place_new(&mut self, now_ms: u64, seen: &Observation, arrived: &BTreeSet<ServiceId>, plan: &mut Plan) {
        if arrived.iter().any(|id| !self.books.is_crowded(id)) || self.books.least().fits_in(self.books.free()) {
            self.disturbed(now_ms);
        }
        self.again_ms = now_ms + self.set.patience.again_ms;
        let asked = self.ask_all(now_ms, seen);
        let blindly = self.is_blind(&asked);
        let with = |new: &[ServiceId]| {
            PASSES.into_iter().find_map(|pass| {
                let role = |s: &ServiceView, l: &Life| self.role(now_ms, s, l, |s| new.contains(&s.id).then_some(Role::Blind));
                // Half an equal share is enough to begin with. Less is not, if it is from what is free, or if no model knows which
                // service could give.
                let believed = match pass {
                    Pass::Free => false,
                    Pass::Trade => !blindly,
                    Pass::Poor => true,
                };
                let fine =
                    |all: &Vec<(ServiceId, Cell)>| believed || all.iter().all(|(_, c)| c.risk.is_none_or(|r| r <= self.set.enough_risk()));
                Some((pass, self.joint(&asked, role, pass, self.set.prices.stay).filter(fine)?))
            })
        };
        let mut new: Vec<ServiceId> = arrived.iter().filter(|id| self.books.unit_is_left_for(id)).cloned().collect();
        new.sort_by_key(|id| self.books.turn(id));
        let mut chosen = if new.is_empty() { None } else { with(&new) };
        // A service that was moved in this step gives nothing before the next. Else as many newcomers are placed as fit.
        let just_moved = asked.iter().any(|a| a.life.features.is_empty() && self.books.slot(&a.s.id).is_some());
        while chosen.is_none() && !just_moved && new.len() > 1 {
            new.pop();
            chosen = with(&new);
        }
        match &mut chosen {
            Some((Pass::Poor, chosen)) => self.divide_the_rest(seen, &asked, chosen, |id| new.contains(id)),
            // What newcomers need is not known yet: what is over stays free for them, but no service is moved far for it.
            Some((_, chosen)) => self.return_the_rest(&asked, chosen, |id, c| {
                let held = self.books.usable(id).cores;
                f64::from(held.saturating_sub(c.held.cores)) >= self.set.offers.loss * f64::from(held)
            }),
            None => {}
        }
        drop(asked);
        if let Some((_, chosen)) = chosen {
            self.carry_out(now_ms, seen, &chosen, "new services", plan);
        }
        let just_moved = self.lives.iter().any(|(id, l)| l.features.is_empty() && self.books.slot(id).is_some());
        for id in arrived.iter().filter(|_| !just_moved) {
            if self.books.slot(id).is_none() && !self.books.is_crowded(id) {
                self.books.crowd_in(id);
                let why = "not even one core unit and the least ways are left".to_string();
                plan.reports.push(Report::CannotPlace { service: id.clone(), why });
            }
        }
    }

    /// No model answers for any service here. A service whose readings this step has emptied (a rollback) does not count.
    pub(super) fn is_blind(&self, asked: &[Asked]) -> bool {
        let mut here = asked.iter().filter(|a| self.books.slot(&a.s.id).is_some() && !a.life.features.is_empty()).peekable();
        here.peek().is_some() && here.all(|a| a.no_answer.is_some())
    }

    /// New services that have been watched long enough.
    pub(super) fn ready(&self, now_ms: u64, seen: &Observation) -> BTreeSet<ServiceId> {
        let ripe = |s: &&ServiceView| {
            let Some(life) = self.lives.get(&s.id) else { return false };
            let Some(since) = life.new_since_ms.filter(|_| !s.latency_unknown() && !life.features.is_empty()) else { return false };
            let slow = s.window.is_none() || self.set.is_slow(s);
            now_ms >= since + if slow && !self.is_saturated(s) { WINDOW_MS } else { self.set.patience.sample_ms }
        };
        seen.lc().filter(ripe).map(|s| s.id.clone()).collect()
    }

    /// BE jobs came, and not even the least is left for them: those with most QoS to spare give.
    pub(super) fn make_room_for_be(&mut self, now_ms: u64, seen: &Observation, mut shortfall: Amount, plan: &mut Plan) {
        for unit in [Amount::new(1, 0), Amount::new(0, 1)] {
            while !unit.at_most(shortfall).is_zero() {
                let may = |s: &&ServiceView| s.qos().is_some() && unit.fits_in(self.books.spare(&s.id));
                let Some(s) = seen.lc().filter(may).max_by(|a, b| a.qos().unwrap_or(0.0).total_cmp(&b.qos().unwrap_or(0.0))) else { break };
                let Some(life) = self.lives.get(&s.id) else { break };
                let mut because = self.because(now_ms, s, life, None).expect(HoldsIf::P99Stays);
                because.bind("the BE jobs lack the least");
                let why = format!("best off: {} to the BE jobs", words(unit, &self.books.platform));
                plan.actions.push(Action { service: s.id.clone(), kind: ActionKind::Deprive, why, because });
                self.books.shrink(&s.id, unit);
                self.lives.entry(s.id.clone()).and_modify(|l| l.changed_ms = now_ms);
                shortfall = shortfall.minus(unit);
            }
        }
    }
}
