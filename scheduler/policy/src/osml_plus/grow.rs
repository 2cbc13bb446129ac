//! Algorithm 2 of the OSML+ paper for who is under-provisioned: Model-C chooses what it gets more of, Model-B masks what is useless.
//!
//! What is not free comes by Algorithm 3 ([`super::deprive`]).

use super::because::Tried;
use super::*;

/// QoS below which a service is far behind: its queue hides what a step brings.
const FAR_BEHIND_QOS: f64 = 0.5;

/// Whether and how a service needs more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Need {
    None,
    /// Missed, but the backlog is nearly gone, or the window still remembers it.
    Draining,
    /// Met with little to spare.
    Comfort,
    /// Missed, or sure to be: all cores of a slow service are busy.
    Missed,
}

/// What a growing step is decided on.
#[derive(Clone, Copy, Debug)]
struct Growing {
    need: Need,
    /// Missed for more than a second.
    misery: bool,
    has: Amount,
    /// Model-B on what it holds.
    now: Option<f64>,
    /// Busy share of its cores.
    busy: Option<f64>,
    overloaded: bool,
    /// Missed though its cores are not busy: too few ways, or others in the way (siblings, bandwidth, power).
    obstructed: bool,
    /// A backlog (p99 far above the target) on what suffices by all that is known: more only from what is free, to drain
    /// faster, and not beyond half as much again. Near the target there is no backlog, and Model-B is simply wrong.
    enough: bool,
    /// Nobody is deprived for it.
    only_free: bool,
}

impl OsmlPlus {
    pub(super) fn under_provisioned(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        let mut order: Vec<(&ServiceView, Need)> = seen
            .lc()
            .filter(|s| self.books.slot(&s.id).is_some() && self.lives.get(&s.id).is_some_and(|l| !l.asleep()))
            .map(|s| (s, self.need(now_ms, s)))
            .filter(|(_, n)| matches!(n, Need::Missed | Need::Comfort))
            .collect();
        // Worst first.
        order.sort_by(|a, b| a.0.qos().partial_cmp(&b.0.qos()).unwrap_or(std::cmp::Ordering::Equal));
        for (s, need) in order {
            self.grow_one(now_ms, s, need, seen, plan);
        }
    }

    fn need(&self, now_ms: u64, s: &ServiceView) -> Need {
        let (Some(qos), Some(life), Some(target)) = (s.qos(), self.lives.get(&s.id), s.qos_target_ms()) else { return Need::None };
        if self.is_saturated(s) {
            return Need::Missed;
        }
        if qos >= self.set.grow_qos {
            return Need::None;
        }
        let Some(last) = life.points.back() else {
            // Nothing seen since the last change: wait for a reading, but not for ever (slow services).
            return if now_ms < life.changed_ms + 1000 { Need::Draining } else { Need::Missed };
        };
        if qos >= 1.0 {
            return if last.p99_ms * self.set.grow_qos > target { Need::Comfort } else { Need::None };
        }
        let calm = life.points.iter().rev().take(2).all(|p| p.p99_ms <= target);
        if calm {
            // The window still remembers what is over; a second later it does not.
            return Need::Draining;
        }
        let Some(first) = life.points.front().filter(|f| f.t_ms < last.t_ms) else { return Need::Draining };
        let fall = (first.mean_ms - last.mean_ms) / (last.t_ms - first.t_ms) as f64;
        let left = (last.p99_ms - target) / fall.max(1e-9);
        if fall > 0.0 && left <= self.set.patience_ms as f64 {
            Need::Draining
        } else {
            Need::Missed
        }
    }

    /// One growing action for one service, or a jump to a new OAA.
    fn grow_one(&mut self, now_ms: u64, s: &ServiceView, need: Need, seen: &Observation, plan: &mut Plan) {
        let misery = self.lives[&s.id].missed_since_ms.is_some_and(|t| now_ms >= t + 1000);
        if need == Need::Missed && self.jump_up(now_ms, s, misery, seen, plan) {
            return;
        }
        let case = self.growing(s, need, misery);
        if self.judge_steps(now_ms, s, case.overloaded, plan) {
            return;
        }
        let (proposal, from) = self.propose(s);
        let tried = self.try_steps(now_ms, s, &case, seen);
        let mba = self.more_bandwidth(s, seen);
        let mut options: Vec<(usize, f64, f64)> =
            tried.iter().filter(|t| t.within && t.can && t.worth && !t.banned).map(|t| (t.action, proposal[t.action], t.gain)).collect();
        if mba.possible() {
            options.push((MBA_UP, proposal[MBA_UP], 0.05));
        }
        let best_gain = options.iter().map(|o| o.2).fold(0.0, f64::max);
        // Under-provisioned services never idle: the most probable action that Model-B does not hold for useless.
        let Some(choice) =
            options.iter().filter(|o| o.2 >= 0.5 * best_gain).max_by(|a, b| (a.1, a.2).partial_cmp(&(b.1, b.2)).expect("finite"))
        else {
            self.last_resort(now_ms, s, need, seen, plan);
            return;
        };
        let (action, p, gain) = *choice;
        let by = if action == MBA_UP { "rule of thumb" } else { self.who_says_qos(s) };
        let why = format!("QoS {:.2}; {from}: p {p:.2}, {by}: gain {gain:.2}", s.qos().unwrap_or(0.0));
        let p99_ms = self.lives[&s.id].recent_p99_ms().or(s.window.map(|w| w.p99_ms)).unwrap_or(f64::INFINITY);
        let step = tried.iter().find(|t| t.action == action);
        let mut because = self.because(s, HoldsIf::P99Falls);
        self.say_c(&mut because, s, &proposal, options.iter().map(|o| o.0));
        self.say_b(&mut because, s, case.has, step.map_or(case.has, |t| t.to));
        self.reject_steps(&mut because, action, &tried, &proposal, best_gain);
        self.reject_mba_step(&mut because, &mba);
        self.bind_step(&mut because, &case);
        let done = if let Some(t) = step {
            self.expect(s, action, t.to);
            let done = self.obtain_keeping_readings(now_ms, &s.id, t.unit, seen, plan);
            if done {
                act(plan, &s.id, ActionKind::Grow, format!("{why}; {} more", words(t.unit, &self.books.platform)), because);
            }
            done
        } else {
            self.raise_bandwidth(now_ms, s, &mba);
            self.expect(s, action, case.has);
            act(plan, &s.id, ActionKind::Grow, format!("{why}; memory bandwidth (BE jobs {} %)", self.books.be_mba_pct), because);
            true
        };
        if let Some(l) = self.lives.get_mut(&s.id).filter(|_| done) {
            let units = step.map_or(0, |t| t.unit.cores + t.unit.ways);
            l.series = match l.series.filter(|x| x.action == action) {
                Some(x) => Some(Series { steps: x.steps + 1, units: x.units + units, last_ms: now_ms, ..x }),
                None => Some(Series { action, steps: 1, units, start_p99_ms: p99_ms, last_ms: now_ms }),
            };
            l.reported = false;
        }
    }

    /// Ask Model-A again after a change of load or a second of misery, and go to its new OAA. False if nothing comes of it.
    fn jump_up(&mut self, now_ms: u64, s: &ServiceView, misery: bool, seen: &Observation, plan: &mut Plan) -> bool {
        let life = &self.lives[&s.id];
        if self.with.with.jump_ups == 0 {
            return false;
        }
        if life.features.len() < 2 || now_ms < life.asked_ms + 1000 || !(misery || self.changed_load(s)) {
            return false;
        }
        let has = self.books.usable(&s.id);
        let target = self.ask_a(s);
        let more = target.oaa.minus(has);
        self.remember_asked(now_ms, &s.id, target.clone());
        if more.is_zero() {
            return false;
        }
        let mut because = self.because(s, HoldsIf::P99Falls);
        let qos_there = self.b_corrected(s, has.plus(more));
        if !self.obtain(now_ms, &s.id, more, seen, plan) {
            return false;
        }
        self.say_target(&mut because, &target);
        if let Ok(q) = qos_there {
            let there = words(has.plus(more), &self.books.platform);
            because.say("Model-B", format!("QoS on {there}, corrected by its error now"), q, "");
            because.predict(q, self.models.qos_cap());
        }
        because.reject("single steps", if misery { "missed for more than a second" } else { "the load has changed" });
        because.reject(because::ACTION_NAMES[IDLE], "who is under-provisioned never idles");
        act(plan, &s.id, ActionKind::Grow, format!("load changed; {}", target.why), because);
        true
    }

    /// What is known before a step is chosen.
    fn growing(&self, s: &ServiceView, need: Need, misery: bool) -> Growing {
        let has = self.books.usable(&s.id);
        let now = self.b(s, has).ok();
        let busy = self.busy_share(s);
        let overloaded = busy.is_some_and(|b| b > OVERLOAD) && s.qos().is_some_and(|q| q < 0.7) || self.is_saturated(s);
        let enough = now.is_some_and(|q| q >= self.set.own_qos)
            && busy.is_none_or(|b| b < self.set.busy)
            && s.qos().is_some_and(|q| q < FAR_BEHIND_QOS);
        let only_free = need == Need::Comfort || enough && !misery;
        let obstructed = need == Need::Missed && busy.is_none_or(|b| b < 0.8);
        Growing { need, misery, has, now, busy, overloaded, obstructed, enough, only_free }
    }

    /// One step of cores, and one of ways.
    fn step_sizes(&self, s: &ServiceView, case: &Growing, seen: &Observation) -> [Amount; 2] {
        let Growing { has, overloaded, obstructed, .. } = *case;
        let (free, total) = (self.books.free(), self.books.total());
        // Deep in overload single cores are too slow: a quarter more at once. Against an obstacle a quarter of what is free
        // goes, and comes back in small steps later.
        let steps = |has: u32, free: u32| match () {
            () if overloaded => has.div_ceil(4),
            () if obstructed => free.div_ceil(4),
            () => 1,
        };
        let cores = steps(has.cores, free.cores).clamp(1, total.cores.saturating_sub(has.cores).max(1));
        let cores = if cores <= free.cores {
            cores
        } else {
            (1..=cores).rev().find(|c| self.could_deprive(&s.id, Amount::new(*c, 0).minus(free), seen)).unwrap_or(1)
        };
        let ways = if obstructed && !overloaded { steps(has.ways, free.ways).max(1) } else { 1 };
        [Amount::new(cores, 0), Amount::new(0, ways)]
    }

    /// More cores and more ways: which of them can be had, and what they would bring.
    fn try_steps(&self, now_ms: u64, s: &ServiceView, case: &Growing, seen: &Observation) -> [Tried; 2] {
        let Growing { has, enough, .. } = *case;
        let (free, total) = (self.books.free(), self.books.total());
        let life = &self.lives[&s.id];
        let oaa = life.target.as_ref().map_or(has, |t| t.oaa);
        let most = Amount::new(oaa.cores + oaa.cores.div_ceil(2), oaa.ways + oaa.ways.div_ceil(2));
        // Plain signs: idle cores do not lack cores, busy ones do.
        let lacks_cores = case.busy.map(|b| ((b - 0.4) / 0.4).clamp(0.0, 1.0));
        let [cores, ways] = self.step_sizes(s, case, seen);
        [(CORES_UP, cores), (WAYS_UP, ways)].map(|(action, unit)| {
            let to = has.plus(unit);
            let within = to.fits_in(total) && (!enough || to.fits_in(most) || case.misery);
            let can = unit.fits_in(free) || !case.only_free && self.could_deprive(&s.id, unit.minus(free), seen);
            let mut tried =
                Tried { action, unit, to, within, can, gain: 0.0, worth: true, banned: now_ms < life.banned_until_ms[action / 2] };
            if !within || !can {
                return tried;
            }
            let gain = self.b(s, to).ok().zip(case.now).map(|(b, a)| (b - a).max(0.0));
            let plain = match (lacks_cores, action) {
                // Cores help against BE jobs on their siblings, too; but ways are tried first.
                (Some(x), CORES_UP) => 0.1 * if case.obstructed { x.max(0.4) } else { x },
                (Some(x), _) => 0.1 * (1.0 - x),
                (None, _) => 0.0,
            };
            tried.gain = gain.unwrap_or(0.0) + plain;
            // For what is known to bring next to nothing no neighbour is asked.
            tried.worth = unit.fits_in(free) || gain.is_none() || tried.gain >= self.set.worth_qos;
            tried
        })
    }

    /// What bounds the step that is taken.
    fn bind_step(&self, because: &mut Because, case: &Growing) {
        if case.only_free {
            let why = if case.need == Need::Comfort { "the target is met" } else { "Model-B holds what it has for sufficient" };
            because.bind(format!("only what is free ({}): {why}", words(self.books.free(), &self.books.platform)));
        }
        because.bind(match () {
            () if case.overloaded => "a step is a quarter of what it holds: it is overloaded",
            () if case.obstructed => "a step is a quarter of what is free: its cores are not busy",
            () => "a step is one unit",
        });
    }

    /// Give the last growing step time to work, and judge the series that it belongs to. True while nothing is to be done.
    ///
    /// Three steps of one resource that together did not lower p99 by a tenth are withdrawn, and that resource is left alone
    /// for five seconds. In overload p99 grows whatever is done, so there nothing can be judged. Nor is anything withdrawn
    /// below [`FAR_BEHIND_QOS`], where a queue that still grows, or is full, hides what the steps bring, or from a slow service,
    /// whose p99 is that of seconds ago: that resource is only left alone for a second, so that the other gets its turn.
    pub(super) fn judge_steps(&mut self, now_ms: u64, s: &ServiceView, overloaded: bool, plan: &mut Plan) -> bool {
        let (qos, slow) = (s.qos().unwrap_or(1.0), is_slow(s));
        let wait = match () {
            () if overloaded => 100,
            () if qos < 0.7 => 200,
            () => 400,
        };
        let busy = self.lives[&s.id].smooth().cpu_usage_cores;
        let Some(l) = self.lives.get_mut(&s.id) else { return true };
        let Some(series) = l.series else { return false };
        if now_ms < series.last_ms + wait {
            return true;
        }
        let helped = l.recent_p99_ms().is_none_or(|p| p < 0.9 * series.start_p99_ms);
        if helped || overloaded || now_ms > series.last_ms + 3000 {
            l.series = None;
            return false;
        }
        if series.steps < 3 {
            return false;
        }
        let now_p99_ms = l.recent_p99_ms();
        l.series = None;
        if qos < FAR_BEHIND_QOS || slow {
            l.banned_until_ms[series.action / 2] = now_ms + 1000;
            return false;
        }
        l.banned_until_ms[series.action / 2] = now_ms + 5000;
        let back = match series.action {
            CORES_UP => Amount::new(series.units, 0),
            WAYS_UP => Amount::new(0, series.units),
            _ => return false,
        };
        let left = self.cores(self.books.usable(&s.id).minus(back));
        let mut because = self.because(s, HoldsIf::P99Stays);
        because.say("steps", "p99 before the first of them", series.start_p99_ms, "ms");
        because.say("steps", "p99 over the last intervals", now_p99_ms.unwrap_or(f64::NAN), "ms");
        because.reject("one step more of it", "three did not lower p99 by a tenth");
        because.bind(format!("{} is left alone for 5 s", because::ACTION_NAMES[series.action]));
        if (back.cores == 0 || busy.is_some_and(|b| b / left < 0.6)) && self.books.shrink(&s.id, back) {
            let what = words(back, &self.books.platform);
            act(plan, &s.id, ActionKind::Rollback, format!("p99 has not fallen for it: {what} back"), because);
        }
        false
    }

    /// As [`Self::obtain`], but a single step leaves the readings nearly valid: the slope of a backlog is worth keeping.
    fn obtain_keeping_readings(&mut self, now_ms: u64, id: &str, unit: Amount, seen: &Observation, plan: &mut Plan) -> bool {
        let kept = self.lives.get(id).map(|l| (l.features.clone(), l.points.back().copied()));
        let done = self.obtain(now_ms, id, unit, seen, plan);
        if let (true, Some(l), Some((features, last))) = (done, self.lives.get_mut(id), kept) {
            l.features = features;
            l.points.extend(last);
        }
        done
    }
}
