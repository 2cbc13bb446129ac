//! Less: while all services are well, what none needs goes to BE jobs, or to newcomers.

use super::*;

impl Surefoot {
    /// All services are well: a plan that takes what none needs, for BE jobs or for newcomers.
    pub(super) fn refine(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        // What was averaged says nothing about a load that has just begun to rise.
        let rises =
            |s: &ServiceView, l: &Life| s.interval.is_some_and(|i| i.count > 0 && self.set.is_rise(i.achieved_rps / l.rps - 1.0, i.count));
        let calm = |s: &ServiceView| {
            self.lives.get(&s.id).is_some_and(|l| {
                !l.is_new()
                    && !rises(s, l)
                    && l.watch.is_none()
                    && l.strikes == 0
                    && l.features.len() >= self.set.readings.enough_intervals
                    && l.met_since_ms.is_some_and(|t| now_ms >= t.max(l.changed_ms) + WINDOW_MS)
            })
        };
        let futile = |s: &ServiceView| self.lives.get(&s.id).is_some_and(|l| l.futile.is_some());
        if now_ms < self.refine_ms
            || seen.lc().any(|s| s.latency_unknown() || self.books.slot(&s.id).is_none() || !calm(s) && s.qos().is_some() && !futile(s))
        {
            return;
        }
        let spared = |s: &ServiceView| s.qos().is_none() || self.lives.get(&s.id).is_some_and(|l| now_ms < l.spared_until_ms);
        // A bystander feels what becomes of the cores that others lose: BE jobs make clocks fall and siblings busy, and without
        // them the same work goes on, on fewer siblings.
        let tight = |s: &ServiceView| self.is_busier(s, self.busy_in_peace());
        let role = |s: &ServiceView| {
            if tight(s) {
                Some(Role::Firm)
            } else {
                spared(s).then_some(Role::Keeps)
            }
        };
        let mut asked = self.ask_all(now_ms, seen);
        asked.iter_mut().for_each(|a| a.in_peace = true);
        let stay = self.set.prices.r#move;
        let mut chosen = self.joint(&asked, |s, l| self.role(now_ms, s, l, role), Pass::Trade, stay).unwrap_or_default();
        self.leave_be_less(now_ms, &asked, stay, &mut chosen);
        let moved = |(id, c): &&(ServiceId, Cell)| c.held != self.books.usable(id);
        let gain: f64 = chosen.iter().filter(moved).filter_map(|(id, c)| self.gain(asked_of(&asked, id)?, c)).sum();
        let takes = chosen.iter().any(|(id, c)| !self.books.usable(id).fits_in(c.held));
        drop(asked);
        // While nothing is gained it is looked at ever more seldom.
        self.vain_looks += 1;
        self.refine_ms = now_ms + (self.set.patience.settle_ms << self.vain_looks.min(DOUBLINGS));
        if gain <= 0.0 || !takes {
            return;
        }
        if self.carry_out(now_ms, seen, &chosen, "all targets met", plan) {
            (self.refines, self.vain_looks) = (self.refines.saturating_sub(1), 0);
            self.refine_ms = now_ms + if self.refines > 0 { WINDOW_MS } else { self.set.again_ms() };
        }
    }

    /// Cores that are left may be as busy as this where no service needs what is taken.
    pub(super) fn busy_in_peace(&self) -> f64 {
        self.set.most_busy(self.books.has_be())
    }

    /// What a service's cell would save in price over what it holds; None while its latency is unknown.
    pub(super) fn gain(&self, asked: &Asked, to: &Cell) -> Option<f64> {
        Some(self.price(Cell::new(asked.held, asked.qos?.min(self.set.prices.ample_qos))) - self.price(*to))
    }

    /// BE jobs had so much once that a bystander suffered: they get no more than half way there. The service that gives most
    /// gives less, or nothing where that is not worth a move.
    pub(super) fn leave_be_less(&self, now_ms: u64, asked: &[Asked], stay: f64, chosen: &mut [(ServiceId, Cell)]) {
        let Some((bad, _)) = self.be_bad.filter(|(_, until_ms)| now_ms < *until_ms) else { return };
        let rest = self.books.rest().cores;
        let most = rest + bad.cores.saturating_sub(rest) / 2;
        let held = |id: &ServiceId| self.books.usable(id).cores;
        let gift = |(id, c): &(ServiceId, Cell)| held(id).saturating_sub(c.held.cores);
        loop {
            let given: u32 = chosen.iter().map(gift).sum();
            let taken: u32 = chosen.iter().map(|(id, c)| c.held.cores.saturating_sub(held(id))).sum();
            let over = (rest + given).saturating_sub(taken + most);
            let Some(largest) = chosen.iter_mut().max_by_key(|x| gift(x)) else { return };
            let back = gift(largest).min(over);
            let Some(asked) = asked_of(asked, &largest.0).filter(|_| back > 0) else { return };
            largest.1 = self.enlarged(asked, &largest.1, Amount::new(back, 0));
            if self.gain(asked, &largest.1).is_none_or(|gain| gain <= stay) {
                largest.1 = asked.now();
            }
        }
    }
}
