//! Algorithm 1 of the OSML paper: OAA by Model-A or A', from what is idle, or by the neighbours' B-points.

use super::*;
use crate::deprive::{best_fit, Donor, Offer};
use crate::osml_models::ANGLES;
use crate::osml_plus::between;
use surefoot_server::Text;

impl Osml {
    /// Map new services on what is idle, each on an equal part of it (lines 1 and 2). What others are only watched on is idle, too.
    pub(super) fn map_on_idle(&mut self, now_ms: u64, seen: &Observation, arrived: &[ServiceId], plan: &mut Plan) {
        if arrived.is_empty() {
            return;
        }
        let least = self.books.least();
        // Not from whom nobody has heard: it could not say that it suffers.
        let watched = |s: &&ServiceView| !s.latency_unknown() && self.lives.get(&s.id).is_some_and(Life::asleep);
        let watched: Vec<ServiceId> = seen.lc().filter(watched).map(|s| s.id.clone()).collect();
        let before: Vec<Amount> = watched.iter().map(|id| self.books.usable(id)).collect();
        for id in &watched {
            self.books.set(id, least);
        }
        for (i, id) in arrived.iter().enumerate() {
            let lack = least.minus(self.books.free());
            if !lack.is_zero() {
                self.take_from_best_off(now_ms, id, lack, seen, plan);
            }
            let (free, left) = (self.books.free(), (watched.len() + arrived.len() - i) as u32);
            // Those that are watched have their least already.
            let all = free.plus(Amount::new(least.cores * watched.len() as u32, least.ways * watched.len() as u32));
            let part = Amount::new(all.cores / left, all.ways / left).at_least(least).at_most(free);
            if self.books.admit(id, part) {
                let life = Life { sampling_since_ms: Some(now_ms), changed_ms: now_ms, ..Life::default() };
                self.lives.insert(id.clone(), life);
                let mut because = self.because_of(seen, id, HoldsIf::NotJudged);
                because.reject("its OAA at once", format!("Model-A is asked after {} ms on known resources", self.set.sample_ms));
                because.bind(format!("idle: {}, for {left} services that are new", self.words(all)));
                act(plan, id, ActionKind::Place, format!("new: watched on idle resources, {}", self.words(part)), because);
            } else if !self.books.is_crowded(id) {
                self.books.crowd_in(id);
                let why = "not even one core unit and the least ways are left".to_string();
                plan.reports.push(Report::CannotPlace { service: id.clone(), why });
            }
        }
        for (i, (id, held)) in watched.iter().zip(before).enumerate() {
            let left = (watched.len() - i) as u32;
            let free = self.books.free();
            let part = least.plus(Amount::new(free.cores / left, free.ways / left)).at_most(held);
            if part != held && self.books.set(id, part) {
                let mut because = self.because_of(seen, id, HoldsIf::NotJudged);
                because.bind(format!("{} services are new, and share what is idle", watched.len() + arrived.len()));
                self.changed(now_ms, id);
                act(plan, id, ActionKind::Place, format!("new: watched on idle resources, {}", self.words(part)), because);
            } else {
                self.books.set(id, held);
            }
        }
    }

    /// Units from the services with most QoS to spare, whatever models say; unknown latency gives nothing.
    pub(super) fn take_from_best_off(&mut self, now_ms: u64, whom: &str, mut lack: Amount, seen: &Observation, plan: &mut Plan) {
        for unit in [Amount::new(1, 0), Amount::new(0, 1)] {
            while !unit.at_most(lack).is_zero() {
                let spare = |s: &&ServiceView| s.id != whom && unit.fits_in(self.books.spare(&s.id)) && s.qos().is_some();
                let best = seen.lc().filter(spare).max_by(|a, b| a.qos().partial_cmp(&b.qos()).unwrap_or(std::cmp::Ordering::Equal));
                let Some(s) = best else { break };
                let mut because = self.because(s, HoldsIf::P99Stays);
                because.bind(format!("{whom} lacks {} of the least, and {} is the best off", self.words(lack), s.id));
                self.books.shrink(&s.id, unit);
                self.changed(now_ms, &s.id);
                act(plan, &s.id, ActionKind::Deprive, format!("best off: {} to {whom}", self.words(unit)), because);
                lack = lack.minus(unit);
            }
        }
    }

    /// Model-A's answer in units (A' beside neighbours), or the rule of thumb.
    pub(super) fn ask_a(&self, s: &ServiceView, seen: &Observation) -> Target {
        let p = &self.books.platform;
        let (least, total) = (self.books.least(), self.books.total());
        let state = self.state(s);
        let up = |cores: f64| (cores / p.core_step - 0.3).ceil().clamp(1.0, f64::from(total.cores)) as u32;
        let up_ways = |w: Option<f64>| w.map_or(0, |w| (w - 0.3).ceil().clamp(0.0, f64::from(total.ways)) as u32);
        let neighbours = seen.services.len() > 1;
        let name = if neighbours { "Model-A'" } else { "Model-A" };
        let sound =
            |a: &Area| [Some(a.oaa_cores), Some(a.rcliff_cores), a.oaa_ways, a.rcliff_ways].into_iter().flatten().all(f64::is_finite);
        match self.models.area(&s.service, &state, neighbours) {
            Ok(a) if sound(&a) => {
                let rcliff = Amount::new(up(a.rcliff_cores), up_ways(a.rcliff_ways)).at_least(least);
                let mut oaa = Amount::new(up(a.oaa_cores), up_ways(a.oaa_ways)).at_least(rcliff);
                let mut why = format!("{name}: OAA {}, RCliff {}", words(oaa, p), words(rcliff, p));
                // Fewer cores than are busy cannot do; while a backlog drains they are busy for another reason.
                if let Some(busy) = state.features.cpu_usage_cores.filter(|_| state.qos.is_some_and(|q| q >= 1.0)) {
                    let floor = up(busy / self.set.busy).min(self.books.usable(&s.id).cores.max(oaa.cores));
                    if floor > oaa.cores {
                        oaa.cores = floor;
                        why += &format!("; {busy:.1} cores are busy");
                    }
                }
                Target { by: name, oaa, rcliff, why, area: Some(a) }
            }
            other => {
                let e = other.err().unwrap_or_else(|| format!("{name}: not a number"));
                let services = self.books.slots().len().max(1) as u32;
                let cores = state.features.cpu_usage_cores.map_or(total.cores / (services + 1), |busy| up(busy / 0.6));
                let oaa = Amount::new(cores, total.ways / (services + 1)).at_least(least).at_most(total);
                Target { by: name, oaa, rcliff: oaa, why: format!("{e}; rule of thumb: {}", words(oaa, p)), area: None }
            }
        }
    }

    pub(super) fn say_target(&self, b: &mut Because, t: &Target) {
        let Some(a) = t.area else {
            b.reject(t.by, t.why.clone());
            return;
        };
        b.say(t.by, "OAA", a.oaa_cores, "cores");
        b.say(t.by, "OAA", a.oaa_ways.unwrap_or(f64::NAN), "ways");
        b.say(t.by, "bandwidth in the OAA", a.oaa_mbps.unwrap_or(f64::NAN), "MB/s");
        b.say(t.by, "RCliff", a.rcliff_cores, "cores");
        b.say(t.by, "RCliff", a.rcliff_ways.unwrap_or(f64::NAN), "ways");
    }

    /// Place every service that has been watched long enough, together (lines 3 to 28). True if there was any.
    pub(super) fn place_sampled(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) -> bool {
        let due = |s: &&ServiceView| {
            // Watched for long enough, and for half a second on what it holds now.
            let long = |l: &Life| {
                l.sampling_since_ms.is_some_and(|t| now_ms >= t + self.set.sample_ms) && l.features.len() >= self.pace.steps(SMOOTH_MS) / 2
            };
            !s.latency_unknown() && self.lives.get(&s.id).is_some_and(long)
        };
        let ready: Vec<(ServiceId, Target)> = seen.lc().filter(due).map(|s| (s.id.clone(), self.ask_a(s, seen))).collect();
        if ready.is_empty() {
            return false;
        }
        // All that is idle, and what the ready ones hold for the time being.
        let held = |id: &str| self.books.slot(id).map_or(Amount::default(), |s| s.own);
        let pool = ready.iter().fold(self.books.free(), |a, (id, _)| a.plus(held(id)));
        let fit = |of: fn(Amount) -> u32| {
            let sum = |t: f64| ready.iter().map(|(_, x)| between(of(x.rcliff), of(x.oaa), t)).sum::<u32>();
            [1.0, 0.75, 0.5, 0.25, 0.0].into_iter().find(|t| sum(*t) <= of(pool))
        };
        let (tc, tw) = (fit(|a| a.cores), fit(|a| a.ways));
        let least = self.books.least();
        let states: Vec<State> = ready.iter().map(|(id, _)| seen.get(id).map(|s| self.state(s)).unwrap_or_else(empty)).collect();
        // First make room, then hand out.
        for (id, _) in &ready {
            self.books.set(id, least);
        }
        for (i, (id, t)) in ready.iter().enumerate() {
            let cores = tc.map_or(t.rcliff.cores, |x| between(t.rcliff.cores, t.oaa.cores, x));
            let ways = tw.map_or(t.rcliff.ways, |x| between(t.rcliff.ways, t.oaa.ways, x));
            let (left, free) = ((ready.len() - i) as u32, self.books.free());
            // Where not even RCliffs fit, an equal part is the most that one can have.
            let most = |t: Option<f64>, free: u32| if t.is_some() { free } else { free / left };
            let got = Amount::new(cores, ways).at_least(least).at_most(least.plus(Amount::new(most(tc, free.cores), most(tw, free.ways))));
            self.books.set(id, got);
            let mut because = self.because_of(seen, id, HoldsIf::Qos { at_least: 1.0 });
            if let Some(seen) = &mut because.seen {
                seen.features = states[i].features;
            }
            self.say_target(&mut because, t);
            if !t.oaa.fits_in(got) {
                let why = format!("{} new services share {}", ready.len(), self.words(pool));
                because.reject(format!("its whole OAA, {}", self.words(t.oaa)), why);
                because.bind("what is idle, until neighbours have been asked");
            }
            if let Some(life) = self.lives.get_mut(id) {
                life.sampling_since_ms = None;
                life.oaa_mbps = t.mbps();
            }
            self.changed(now_ms, id);
            act(plan, id, ActionKind::Place, format!("{}: {}", t.why, self.words(got)), because);
        }
        for (id, t) in &ready {
            // OAA; RCliff is the alternative; then sharing.
            let done = [t.oaa, t.rcliff].into_iter().any(|area| {
                let lack = area.minus(self.books.usable(id));
                let idle = lack.at_most(self.books.free());
                lack.is_zero() || self.deprive_for(now_ms, id, lack.minus(idle), seen, plan) && self.books.grow(id, lack)
            });
            let lack = t.rcliff.minus(self.books.usable(id));
            if done || self.share_for(now_ms, id, lack, seen, plan) {
                continue;
            }
            let has = self.words(self.books.usable(id));
            let why = format!("{} wanted, {has} got, and no neighbour can give or share more", self.words(t.oaa));
            plan.reports.push(Report::CannotPlace { service: id.clone(), why });
        }
        true
    }

    /// What a neighbour can give within the acceptable slowdown: all that lies within one of its B-points (lines 15 to 22).
    fn donor(&self, now_ms: u64, s: &ServiceView, need: Amount) -> Result<Donor, Text> {
        let mut donor = Donor { id: s.id.clone(), offers: vec![] };
        let Some(life) = self.lives.get(&s.id) else { return Err("it is not known yet".into()) };
        let Some(qos) = s.qos() else { return Err("its latency is unknown".into()) };
        let why: &str = match () {
            () if qos < 1.0 => "it misses its target itself",
            () if life.asleep() || life.features.is_empty() => "it is new, or has just changed",
            () if life.trial.is_some() => "it has just given",
            () if now_ms < life.peace_until_ms => "it missed its target the last time",
            () => "",
        };
        if !why.is_empty() {
            return Err(why.into());
        }
        let p = &self.books.platform;
        let (has, limit) = (self.books.usable(&s.id), need.at_most(self.books.spare(&s.id)));
        let points = match self.models.b_points(&s.service, &self.state(s), self.set.slowdown) {
            Ok(points) => points.map(|b| b.amount(p)),
            // Rule of thumb: one unit from a service with QoS 1.5 or more.
            Err(_) if qos >= 1.5 => [Amount::default(), Amount::new(1, 0), Amount::new(0, 1)],
            Err(e) => return Err(format!("QoS {qos:.2}, and {e}").into()),
        };
        let mut least = f64::INFINITY;
        for cores in 0..=limit.cores {
            for ways in 0..=limit.ways {
                let amount = Amount::new(cores, ways);
                if amount.is_zero() || !points.iter().any(|b| amount.fits_in(*b)) {
                    continue;
                }
                let slowdown = self.slowdown(s, has.minus(amount)).unwrap_or(self.set.slowdown);
                least = least.min(slowdown);
                if slowdown <= self.set.slowdown {
                    donor.offers.push(Offer { amount, qos: 1.0 - slowdown, slowdown });
                }
            }
        }
        match donor.offers.is_empty() {
            false => Ok(donor),
            true if least.is_finite() => Err(format!("Model-B' against its B-points: {:.0} % QoS lost", 100.0 * least).into()),
            true => {
                let all: Vec<String> = points.iter().zip(ANGLES).map(|(b, angle)| format!("{angle} {}", words(*b, p))).collect();
                Err(format!("Model-B, at {:.0} %: {}", 100.0 * self.set.slowdown, all.join("; ")).into())
            }
        }
    }

    /// Deprive at most three LC services of exactly `lack` (lines 23 to 25). False (and nothing changed) if B-points do not allow it.
    pub(super) fn deprive_for(&mut self, now_ms: u64, whom: &str, lack: Amount, seen: &Observation, plan: &mut Plan) -> bool {
        if lack.is_zero() {
            return true;
        }
        let asked: Vec<(ServiceId, Result<Donor, Text>)> =
            seen.lc().filter(|s| s.id != whom).map(|s| (s.id.clone(), self.donor(now_ms, s, lack))).collect();
        let donors: Vec<Donor> = asked.iter().filter_map(|(_, d)| d.clone().ok()).collect();
        let Some(solution) = best_fit(&donors, lack) else { return false };
        for (id, offer) in &solution {
            let mut because = self.because_of(seen, id, HoldsIf::Qos { at_least: 1.0 - self.set.slowdown });
            if let Some(s) = seen.get(id) {
                if let Ok(points) = self.models.b_points(&s.service, &self.state(s), self.set.slowdown) {
                    for (b, angle) in points.iter().zip(ANGLES) {
                        because.say("Model-B", format!("B-point, {angle}"), b.cores, "cores");
                        because.say("Model-B", format!("B-point, {angle}"), b.ways, "ways");
                    }
                }
                self.say_bp(&mut because, s, self.books.usable(id).minus(offer.amount));
            }
            for (other, answer) in asked.iter().filter(|a| a.0 != *id) {
                let why: Text = match (answer, solution.iter().find(|g| g.0 == *other)) {
                    (_, Some((_, o))) => format!("it gives {} too", self.words(o.amount)).into(),
                    (Err(why), _) => why.clone(),
                    (Ok(_), _) => "it would lose more, or one service more would be disturbed".into(),
                };
                because.reject(format!("from {other}"), why);
            }
            because.bind(format!("{whom} lacks {}; {:.0} % slowdown is acceptable", self.words(lack), 100.0 * self.set.slowdown));
            self.books.shrink(id, offer.amount);
            self.changed(now_ms, id);
            if let Some(l) = self.lives.get_mut(id) {
                (l.gave, l.settled) = (Some((now_ms, offer.amount)), None);
            }
            let why = format!("{} to {whom}; Model-B': {:.0} % QoS lost", self.words(offer.amount), 100.0 * offer.slowdown);
            act(plan, id, ActionKind::Deprive, why, because);
            plan.reports.push(Report::ExpectedSlowdown { service: id.clone(), qos: offer.qos });
        }
        true
    }
}

fn empty() -> State {
    State { features: Features::default(), qos: None, qos_target_ms: None, p99_ms: None, achieved_rps: None }
}
