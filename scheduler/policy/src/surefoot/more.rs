//! More: for services that miss their target, or meet it by a hair.

use super::*;

impl Surefoot {
    /// Services that miss their target and will go on to, and those that meet it by a hair.
    pub(super) fn needy(&mut self, now_ms: u64, seen: &Observation) -> (BTreeSet<ServiceId>, BTreeSet<ServiceId>) {
        let (set, pace) = (self.set, self.pace);
        let burst = u32::try_from(set.readings.enough_intervals).unwrap_or(u32::MAX);
        let (mut missing, mut uneasy) = (BTreeSet::new(), BTreeSet::new());
        for s in seen.lc() {
            let held = self.books.usable(&s.id);
            if self.books.slot(&s.id).is_none() {
                continue;
            }
            let slow = set.is_slow(s);
            let saturated = self.is_saturated(s);
            let (patience_ms, settle_ms) =
                if slow && !saturated { (set.patience.slow_ms, WINDOW_MS) } else { (WINDOW_MS, set.patience.settle_ms) };
            let Some(life) = self.lives.get_mut(&s.id) else { continue };
            let (Some(qos), Some(target_ms)) = (s.qos(), s.qos_target_ms()) else { continue };
            if life.is_new() || life.futile.is_some() || now_ms < life.changed_ms + settle_ms {
                continue;
            }
            let vouched = life.ledger.vouches(now_ms, held, life.rps).is_some() && !life.ledger.forbids(now_ms, held, life.rps, 1.0);
            let saturated = saturated && !vouched;
            // What was well here at this load until now is a burst, if it soon ends: it is in the window for as long as the window is.
            let patient = if vouched { burst } else { 0 };
            let lasts = life.missed_since_ms.is_some_and(|t| !vouched || now_ms >= t + WINDOW_MS + pace.interval_ms() * u64::from(burst));
            if saturated
                || life.strikes > set.patience.strikes + patient
                || qos < 1.0 && (life.strikes > patient || lasts && life.strikes > 0)
            {
                let recent = life.missed_since_ms.is_none_or(|t| now_ms < t + patience_ms);
                if !saturated && recent && draining(life, target_ms, patience_ms, &set, pace) {
                    continue;
                }
                if now_ms >= self.try_ms {
                    life.climb.get_or_insert(Climb { since_ms: now_ms, from: held, qos });
                    life.more += 1;
                    life.ledger.note(now_ms, held, life.rps, qos.min(MISSED_QOS), set.memory.grudge_ms);
                }
                life.regret(&set);
                life.spared_until_ms = life.spared_until_ms.max(now_ms + set.patience.spare_ms);
                missing.insert(s.id.clone());
            } else if qos >= 1.0 && qos < set.comfort_qos() && now_ms >= life.changed_ms + WINDOW_MS {
                life.regret(&set);
                life.spared_until_ms = life.spared_until_ms.max(now_ms + set.patience.spare_ms);
                life.ledger.note(now_ms, held, life.rps, qos, set.memory.grudge_ms);
                uneasy.insert(s.id.clone());
            }
        }
        (missing, uneasy)
    }

    /// Which service to leave short is not decided while newcomers look bad with cold caches. But a queue grows while
    /// one waits, and a slow service's is with it for minutes.
    pub(super) fn is_cold(&self, now_ms: u64, seen: &Observation, missing: &BTreeSet<ServiceId>) -> bool {
        let any = |what: &dyn Fn(&ServiceView) -> bool| missing.iter().filter_map(|id| seen.get(id)).any(what);
        let cold = |l: &Life| l.new_since_ms.is_some_and(|t| now_ms <= t + WINDOW_MS);
        !any(&|s| self.set.is_slow(s)) && any(&|s| self.lives.get(&s.id).is_some_and(cold))
    }

    /// A plan for services that need more. False: nothing was decided yet.
    pub(super) fn enlarge(&mut self, now_ms: u64, seen: &Observation, missing: &BTreeSet<ServiceId>, plan: &mut Plan) -> bool {
        let role = |s: &ServiceView, l: &Life| self.role(now_ms, s, l, |s| missing.contains(&s.id).then_some(Role::Needs));
        let is_new = |id: &ServiceId| self.lives.get(id).is_some_and(Life::is_new);
        // Nothing is moved about that helps none of them.
        let helps = |all: &Vec<(ServiceId, Cell)>| {
            let gains =
                |(id, c): &(ServiceId, Cell)| missing.contains(id) && (is_new(id) || c.units > 0 || !c.held.fits_in(self.books.usable(id)));
            all.iter().any(gains)
        };
        let well = |all: &Vec<(ServiceId, Cell)>| all.iter().all(|(id, c)| c.qos >= 1.0 || !missing.contains(id));
        let asked = self.ask_all(now_ms, seen);
        let free = self.joint(&asked, role, Pass::Free, self.set.prices.stay);
        let mut chosen = free.clone().filter(well);
        let trade = if chosen.is_none() { self.joint(&asked, role, Pass::Trade, self.set.prices.stay) } else { None };
        chosen = chosen.or_else(|| trade.clone().filter(well));
        // What a rule of thumb says of less is no reason to wait, nor to take too little.
        let blind = self.is_blind(&asked);
        if chosen.is_none() && !blind && self.is_cold(now_ms, seen, missing) {
            drop(asked);
            // Nothing was tried: that a service is asked for again does not say that it got too little.
            self.try_ms = now_ms + self.set.patience.settle_ms;
            return false;
        }
        let mut poor = false;
        if chosen.is_none() && now_ms >= self.poor_ms {
            // Not all can have enough. Which service to leave short is decided seldom, and only where that is much better than now.
            let now: f64 = asked.iter().filter(|a| self.books.slot(&a.s.id).is_some()).map(|a| self.price(a.now())).sum();
            let better = |all: &Vec<(ServiceId, Cell)>| all.iter().map(|(_, c)| self.price(*c)).sum::<f64>() < now - self.set.prices.stay;
            chosen = self.joint(&asked, role, Pass::Poor, self.set.prices.stay).filter(better).filter(helps);
            poor = chosen.is_some();
            if let Some(chosen) = &mut chosen {
                self.divide_the_rest(seen, &asked, chosen, |id| missing.contains(id));
            }
        }
        if chosen.is_none() && !blind && !missing.iter().any(is_new) {
            // Too little for them, but more than they have.
            chosen = trade.filter(helps);
        }
        let mut chosen = chosen.or(free);
        if let Some(chosen) = chosen.as_mut().filter(|_| !poor && !blind) {
            self.return_the_rest(&asked, chosen, |id, c| self.loses_for_nobody(seen, id, c, |id| missing.contains(id)));
        }
        let chosen = chosen.filter(helps);
        drop(asked);
        // A service that is to make do with less than it needs: said where it comes about.
        let short: Vec<Report> = chosen
            .iter()
            .flatten()
            .filter(|(id, c)| poor && c.qos < 1.0 && !self.books.usable(id).fits_in(c.held))
            .map(|(id, c)| Report::ExpectedSlowdown { service: id.clone(), qos: c.qos.max(0.0) })
            .collect();
        if poor {
            let times = if short.is_empty() { 0 } else { (self.poor_plans + 1).saturating_sub(self.set.patience.refines).min(DOUBLINGS) };
            // A slow service's queue grows, and no service is left short: the next step need not wait as long.
            let lasts = |id: &ServiceId| seen.get(id).is_some_and(|s| self.set.is_slow(s) && self.is_saturated(s));
            let soon = short.is_empty() && missing.iter().any(lasts);
            self.poor_ms = now_ms + if soon { WINDOW_MS } else { self.set.patience.again_ms << times };
            self.poor_plans += u32::from(!short.is_empty());
        }
        let done = chosen.is_some_and(|c| self.carry_out(now_ms, seen, &c, "target missed", plan));
        if done {
            plan.reports.extend(short);
        }
        if !done {
            self.try_ms = now_ms + self.set.patience.settle_ms;
        }
        for id in missing {
            let Some(life) = self.lives.get_mut(id) else { continue };
            // What comes of an enlargement shows in the window only when that is past it.
            let open_ms = self.set.patience.again_ms + WINDOW_MS;
            let open = life.climb.is_some_and(|c| now_ms < c.since_ms + open_ms && !self.books.usable(id).fits_in(c.from));
            if !done && life.more > self.set.grow.tries && !life.reported && !open {
                life.reported = true;
                plan.reports.push(if life.was_well {
                    let why = "it misses its target, and no plan for all services gives it more".to_string();
                    Report::Migrate { service: id.clone(), why }
                } else {
                    let why = "it has missed its target since it came, and no plan for all services gives it more".to_string();
                    Report::CannotPlace { service: id.clone(), why }
                });
            }
        }
        true
    }

    /// No service loses to others what none gets. Of what a plan takes and does not use up, slow services that it is for have the first
    /// call, since their queues grow unheard; the rest stays where it was, newcomers that miss their target on it among them.
    pub(super) fn divide_the_rest(
        &self,
        seen: &Observation,
        asked: &[Asked],
        chosen: &mut [(ServiceId, Cell)],
        is_for: impl Fn(&ServiceId) -> bool,
    ) {
        self.pass_on_the_rest(asked, chosen, |id| is_for(id) && seen.get(id).is_some_and(|s| self.set.is_slow(s)));
        self.return_the_rest(asked, chosen, |id, c| self.loses_for_nobody(seen, id, c, &is_for));
    }

    /// In a plan that is for others, or for itself: but a newcomer that is well is placed as planned, and the rest is free.
    fn loses_for_nobody(&self, seen: &Observation, id: &ServiceId, cell: &Cell, is_for: impl Fn(&ServiceId) -> bool) -> bool {
        let placed = self.lives.get(id).is_some_and(|l| !l.is_new());
        placed || cell.qos < 1.0 || !is_for(id) || seen.get(id).is_some_and(|s| s.qos_met() == Some(false))
    }

    /// Services get what is lost and none gains, in equal parts.
    pub(super) fn pass_on_the_rest(&self, asked: &[Asked], chosen: &mut [(ServiceId, Cell)], to: impl Fn(&ServiceId) -> bool) {
        let (lost, given) = chosen.iter().fold((Amount::default(), Amount::default()), |(lost, given), (id, c)| {
            (lost.plus(self.books.usable(id).minus(c.held)), given.plus(c.held))
        });
        let mut rest = self.pool().minus(given).at_most(lost);
        let heirs: Vec<&mut (ServiceId, Cell)> = chosen.iter_mut().filter(|(id, _)| to(id)).collect();
        let mut left = heirs.len() as u32;
        for (id, cell) in heirs {
            let more = Amount::new(rest.cores.div_ceil(left), rest.ways.div_ceil(left));
            (rest, left) = (rest.minus(more), left - 1);
            let Some(of) = asked_of(asked, id).filter(|_| !more.is_zero()) else { continue };
            *cell = self.enlarged(of, cell, more);
        }
    }

    /// A cell with so much more, and what is expected there.
    pub(super) fn enlarged(&self, of: &Asked, cell: &Cell, more: Amount) -> Cell {
        let (own, held) = (self.books.usable(&of.s.id), cell.held.plus(more));
        let seen = of.qos.unwrap_or(0.0);
        let there = if of.no_answer.is_some() { qos_by_thumb(seen, own, held) } else { of.on(held) };
        // A service that misses its target on more does not meet it here; and more is never worse.
        let there = if seen < 1.0 && held.fits_in(own) { there.min(seen) } else { there };
        Cell { units: cell.units, memory: cell.memory, ..Cell::new(held, there.max(cell.qos)) }
    }

    /// Services keep what no other takes of what they held, first those that are expected to be worst off.
    pub(super) fn return_the_rest(&self, asked: &[Asked], chosen: &mut [(ServiceId, Cell)], whom: impl Fn(&ServiceId, &Cell) -> bool) {
        let given = chosen.iter().fold(Amount::default(), |sum, (_, c)| sum.plus(c.held));
        let mut rest = self.pool().minus(given);
        let mut losers: Vec<&mut (ServiceId, Cell)> = chosen.iter_mut().filter(|(id, c)| whom(id, c)).collect();
        losers.sort_by(|a, b| a.1.qos.total_cmp(&b.1.qos));
        for (id, cell) in losers {
            let back = self.books.usable(id).minus(cell.held).at_most(rest);
            let Some(of) = asked_of(asked, id).filter(|_| !back.is_zero()) else { continue };
            *cell = self.enlarged(of, cell, back);
            rest = rest.minus(back);
        }
    }

    /// A target met by a hair: more from what is free, from no other service.
    pub(super) fn comfort(&mut self, now_ms: u64, seen: &Observation, uneasy: &BTreeSet<ServiceId>, plan: &mut Plan) {
        let role = |s: &ServiceView, _: &Life| if uneasy.contains(&s.id) { Role::Needs } else { Role::Keeps };
        if let Some(chosen) = self.joint(&self.ask_all(now_ms, seen), role, Pass::Free, self.set.prices.stay) {
            self.carry_out(now_ms, seen, &chosen, "met by a hair", plan);
        }
    }
}

/// The backlog shrinks, and will be gone in time; or only the window remembers it.
fn draining(life: &Life, target_ms: f64, patience_ms: u64, set: &Settings, pace: Pace) -> bool {
    let mut latest = life.points.iter().rev();
    let steps = set.readings.enough_intervals.saturating_sub(1).max(1);
    let (Some(last), Some(first)) = (latest.next(), latest.nth(steps - 1)) else { return false };
    if last.p99_ms <= target_ms {
        return true;
    }
    // In a usual interval, however long these are.
    let usual_ms = Pace::USUAL_MS as f64;
    let fall_ms = (first.mean_ms - last.mean_ms) / steps as f64 * (usual_ms / pace.interval_ms() as f64);
    let left = last.p99_ms - target_ms;
    // Within the time that is given it must be seen to fall.
    fall_ms > usual_ms / patience_ms as f64 * first.mean_ms && left / fall_ms * usual_ms <= patience_ms as f64
}
