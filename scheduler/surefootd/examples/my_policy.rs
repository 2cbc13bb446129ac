//! A policy of one's own on the same bench as all others (docs/write-a-policy.md): cores follow the load.

use surefoot_policy::books::{Amount, Books};
use surefoot_policy::{Guarded, Policy};
use surefoot_server::{Action, ActionKind, Because, HoldsIf, Observation, Plan};
use surefootd::stage::{virtual_target::VirtualTarget, workload::Workload};
use surefootd::{base::say, eval::run::run};

/// Every LC service gets its busy cores / 0.6 and an equal share of the ways; half as much again while it misses its target.
pub struct FollowsLoad {
    pub books: Books,
}

impl Policy for FollowsLoad {
    fn name(&self) -> &str {
        "follows-load"
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        let arrived = self.books.follow(seen).lc_arrived;
        let (total, holders) = (self.books.total(), seen.services.len().max(1) as u32);
        for s in seen.lc().filter(|s| now_ms.is_multiple_of(500) || arrived.contains(&s.id)) {
            let Some(busy) = s.features.cpu_usage_cores.filter(|_| s.qos().is_some()) else { continue };
            let spread = if s.qos_met() == Some(false) { 0.4 } else { 0.6 };
            let want = Amount::new((busy / spread).ceil() as u32, total.ways / holders).at_least(self.books.least());
            let has = self.books.usable(&s.id);
            let could = self.books.free().plus(has);
            let to = want.at_most(could);
            if to == has || !(self.books.admit(&s.id, to) || self.books.set(&s.id, to)) {
                continue;
            }
            let mut because = Because::seen(s).expect(HoldsIf::Qos { at_least: 1.0 });
            because.say("follows-load", "busy cores", busy, "cores");
            because.bind("what is free");
            let kind = match () {
                () if has.is_zero() => ActionKind::Place,
                () if has.fits_in(to) => ActionKind::Grow,
                () => ActionKind::Shrink,
            };
            plan.actions.push(Action { service: s.id.clone(), kind, why: format!("{busy:.1} cores are busy"), because });
        }
        plan.changes = self.books.plan(seen).map(|p| p.changes).unwrap_or_default();
        plan
    }
}

fn main() -> surefootd::base::error::Result<()> {
    let at = VirtualTarget::of_platform("server-1", None)?;
    for file in std::env::args().skip(1) {
        let workload = Workload::read(file.as_ref(), &at.target())?;
        let books = Books::new(&at.platform);
        let mut policy = Guarded::new(Box::new(FollowsLoad { books }), &at.platform);
        let (row, _) = run(&at, &workload, &mut policy, 1, false)?;
        let (emu, s) = (row.emu.unwrap_or(0.0), row.qos_violation_s.unwrap_or(f64::NAN));
        say::print(&format!("{}: {} EMU {emu:.2}, {s:.1} s of violation\n", row.workload, row.policy))?;
    }
    Ok(())
}
