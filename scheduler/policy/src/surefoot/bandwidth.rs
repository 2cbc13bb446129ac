//! The BE jobs' memory bandwidth: less while memory is contended, and back again in peace.

use super::*;

impl Surefoot {
    /// Contended memory: less bandwidth for BE jobs, and back again in peace.
    pub(super) fn bandwidth(&mut self, now_ms: u64, seen: &Observation, missing: &mut BTreeSet<ServiceId>, plan: &mut Plan) {
        if !self.books.has_be() {
            return;
        }
        let Some(be) = seen.be().next() else { return };
        let set = self.set;
        let peak = self.books.platform.mem_bw_mbps;
        // None: not counted, or a counter that says nothing.
        let sum = |all: &mut dyn Iterator<Item = &ServiceView>| all.map(|s| s.features.mbl_mbps).sum::<Option<f64>>().filter(|x| *x > 0.0);
        let used = sum(&mut seen.services.iter());
        let contended = used.zip(peak).is_some_and(|(used, peak)| used >= set.be.contended * peak);
        let carries = used.map_or("memory is not counted".to_string(), |x| format!("memory carries {x:.0} MB/s"));
        let waits = |id: &ServiceId| {
            let (Some(s), Some(life)) = (seen.get(id), self.lives.get(id)) else { return false };
            let asked = self.ask(now_ms, s, life);
            let idle = asked.busy().is_some_and(|b| b / self.books.platform.cores(asked.held.cores) < set.busy.most);
            idle && self.b(s, &asked.state, asked.held).is_ok_and(|q| q >= self.required(life))
        };
        let now_pct = self.books.be_mba_pct;
        if let Some(id) = missing.first().filter(|_| contended && now_ms >= self.be_mba.changed_ms + set.patience.settle_ms).cloned() {
            let down = |pct: u8| self.books.mba_step(pct, false);
            let less = std::iter::successors(down(now_pct), |p| down(*p)).take(set.be.steps).last();
            if let Some(pct) = less.filter(|pct| self.is_cheaper_than_cores(now_pct - pct, missing)) {
                let mut because = Because::seen(be);
                // Whether that was the cause shows before anything else is tried for services that wait for memory.
                let waiting: Vec<ServiceId> = missing.iter().filter(|id| waits(id)).cloned().collect();
                self.books.be_mba_pct = pct;
                let wait_ms = self.longer();
                self.be_mba = Bandwidth { changed_ms: now_ms, wait_ms, raised: None, bad_pct: Some(now_pct) };
                for id in waiting {
                    because.reject(format!("more for {id}"), "Model-B holds what it has for sufficient, and its cores are not busy");
                    missing.remove(&id);
                }
                because.bind(carries);
                let why = format!("{id} misses its target while memory is contended: bandwidth {pct} %");
                plan.actions.push(Action { service: be.id.clone(), kind: ActionKind::Shrink, why, because });
                return;
            }
        }
        if seen.lc().any(ServiceView::latency_unknown) {
            return;
        }
        // What a raise may have done: a service that was moved since has another reason.
        let still = |s: &ServiceView, since_ms: u64| {
            self.lives.get(&s.id).is_some_and(|l| !l.is_new() && l.futile.is_none() && l.changed_ms <= since_ms)
        };
        let worst_of = |since_ms: u64| seen.lc().filter(|s| still(s, since_ms)).filter_map(ServiceView::qos).fold(f64::INFINITY, f64::min);
        let suffers = self.be_mba.raised.filter(|(t, _)| worst_of(*t) < 1.0 && (contended || peak.is_none() || used.is_none()));
        if self.be_mba.raised.is_some_and(|(t, _)| now_ms >= t + WINDOW_MS) {
            self.be_mba.raised = None;
        }
        let worst = worst_of(now_ms);
        let (pct, kind) = if let Some((_, before)) = suffers {
            (before.min(now_pct), ActionKind::Rollback)
        } else if now_pct < 100
            && self.be_mba.raised.is_none()
            && worst >= 1.0 + set.offers.step_qos
            && !seen.lc().any(|s| self.lives.get(&s.id).is_none_or(Life::is_new))
            && now_ms >= self.be_mba.changed_ms + self.be_mba.wait_ms
        {
            let by_be = sum(&mut seen.be());
            (
                self.raise(now_ms, used.zip(by_be).zip(peak).map(|((all, be), peak)| (set.be.contended * peak - (all - be)) / be)),
                ActionKind::Grow,
            )
        } else {
            return;
        };
        if pct == now_pct {
            return;
        }
        self.books.be_mba_pct = pct;
        let grown = kind == ActionKind::Grow;
        self.be_mba.changed_ms = now_ms;
        self.be_mba.raised = grown.then_some((now_ms, now_pct));
        if !grown {
            self.be_mba.wait_ms = self.longer();
            self.be_mba.bad_pct = Some(now_pct);
        }
        let mut because = Because::seen(be);
        because.bind(format!("the worst QoS is {worst:.2}; {carries}"));
        plan.actions.push(Action { service: be.id.clone(), kind, why: format!("QoS {worst:.2}: memory bandwidth {pct} %"), because });
    }

    /// By the price list of `surefoot-memory`: so much less bandwidth costs no more than the next step of cores. Without it bandwidth comes first.
    fn is_cheaper_than_cores(&self, pct: u8, missing: &BTreeSet<ServiceId>) -> bool {
        let (p, total) = (&self.set.prices, self.books.total().cores.max(1));
        let free = self.books.free().cores;
        let steps: u32 = missing.iter().map(|id| part_up(self.books.usable(id).cores, self.set.grow.step)).sum();
        let cores = if steps > free { p.miss } else { p.cores_beside_be * f64::from(steps) / f64::from(total) };
        self.pages.is_none() || p.bandwidth * f64::from(pct) / 100.0 <= cores
    }

    /// The next wait before bandwidth is raised: twice the last one.
    fn longer(&self) -> u64 {
        let (least, most) = (self.set.patience.again_ms, self.set.memory.grudge_ms << DOUBLINGS);
        (self.be_mba.wait_ms * 2).clamp(least, most.max(least))
    }

    /// The BE jobs' next bandwidth: what memory has room for (so many times what they use), where that is not known a large step, and
    /// half way to what a service suffered from.
    pub(super) fn raise(&mut self, now_ms: u64, room: Option<f64>) -> u8 {
        let now = self.books.be_mba_pct;
        let steps: Vec<u8> = std::iter::successors(Some(now), |p| self.books.mba_step(*p, true)).collect();
        let step = |n: usize| steps.get(n).or(steps.last()).copied().unwrap_or(now);
        let up_to = |most: f64| steps.iter().copied().filter(|p| f64::from(*p) <= most).max().unwrap_or(now);
        if let Some(bad) = self.be_mba.bad_pct.filter(|bad| *bad > now) {
            let half = up_to(f64::from(now) + f64::from(bad - now) / 2.0);
            if half > now || now_ms < self.be_mba.changed_ms + self.set.again_ms() {
                return half;
            }
            self.be_mba.bad_pct = None;
            return up_to(f64::from(bad));
        }
        room.map_or(step(self.set.be.steps), |room| up_to(f64::from(now) * room).max(step(1)))
    }
}
