//! Several policies on the same services, each with resources of its own: cores by one, memory by another.
//!
//! What must hold: no resource has two owners; a plan that names what its policy does not own changes nothing; what no plan names
//! stays as it is.
//!
//! Who owns what is settled at construction. At each step every member sees the same observation, and the plans are put together.
//! A member whose plan trespasses is left out with the whole of it: a part of a plan is no plan. Its reports are passed on, with one
//! more that names policy, service, resource and owner. The other members' plans go on. [`Guarded`](crate::Guarded) belongs around
//! the whole.

use crate::Policy;
use surefoot_server::{Observation, Plan, Report, Resource};

/// Policies with disjoint resources.
pub struct Together {
    name: String,
    owns: Vec<Resource>,
    members: Vec<(Box<dyn Policy>, Told)>,
}

impl Together {
    /// # Errors
    /// One line: no policy, one that owns nothing, or two that own the same.
    pub fn new(members: Vec<Box<dyn Policy>>) -> Result<Self, String> {
        let mut owns: Vec<Resource> = vec![];
        for (i, member) in members.iter().enumerate() {
            if member.owns().is_empty() {
                return Err(format!("policy {} owns nothing. Leave it out", member.name()));
            }
            for resource in member.owns() {
                if let Some(other) = members[..i].iter().find(|o| o.owns().contains(resource)) {
                    return Err(format!("policies {} and {} both own {resource}. Give it to one", other.name(), member.name()));
                }
                owns.push(*resource);
            }
        }
        if members.is_empty() {
            return Err("no policy. Give at least one".into());
        }
        let name = members.iter().map(|m| m.name()).collect::<Vec<_>>().join("+");
        Ok(Together { name, owns, members: members.into_iter().map(|m| (m, Told::default())).collect() })
    }

    /// Under another name than that of all members.
    ///
    /// # Errors
    /// As [`Together::new`].
    pub fn named(name: &str, members: Vec<Box<dyn Policy>>) -> Result<Self, String> {
        Ok(Together { name: name.into(), ..Together::new(members)? })
    }
}

impl Policy for Together {
    fn name(&self) -> &str {
        &self.name
    }

    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        self.members.iter_mut().try_for_each(|(m, _)| m.called_every(interval_ms).map_err(|e| format!("{}: {e}", m.name())))
    }

    fn owns(&self) -> &[Resource] {
        &self.owns
    }

    fn between(&mut self) -> bool {
        self.members.iter_mut().fold(false, |worked, (m, _)| m.between() || worked)
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut all = Plan::default();
        let mut plans: Vec<Plan> = self.members.iter_mut().map(|(m, _)| m.step(now_ms, seen)).collect();
        for (i, plan) in plans.iter_mut().enumerate() {
            let owner = |r: Resource| self.members.iter().find(|(m, _)| m.owns().contains(&r)).map(|(m, _)| m.name());
            let report = trespass(self.members[i].0.name(), self.members[i].0.owns(), plan, owner);
            self.members[i].1.answer(plan, report);
        }
        for plan in plans {
            for (id, change) in plan.changes {
                let others = all.changes.remove(&id).unwrap_or_default();
                all.changes.insert(id, others.and(change));
            }
            all.actions.extend(plan.actions);
            all.reports.extend(plan.reports);
            all.questions.extend(plan.questions);
        }
        all
    }
}

/// Word of a plan that names what its policy does not own; None: it does not. `owner` knows the other policies.
pub fn trespass<'a>(policy: &str, owns: &[Resource], plan: &Plan, owner: impl Fn(Resource) -> Option<&'a str>) -> Option<Report> {
    let (id, resource) = plan.changes.iter().find_map(|(id, c)| Some((id, c.resources().find(|r| !owns.contains(r))?)))?;
    let whose = owner(resource).map_or_else(|| "no policy here owns".to_string(), |other| format!("policy {other} owns"));
    let own = Resource::list(owns);
    let why = format!("policy {policy} names {resource} of {id}, which {whose}; it owns {own}: its plan is left out");
    Some(Report::Withheld { service: id.clone(), why })
}

/// What was said last of a policy's trespasses: the same word is not said again until a plan was sound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told(Option<Report>);

impl Told {
    /// Leave a plan out that trespasses, and say so once.
    pub fn answer(&mut self, plan: &mut Plan, trespass: Option<Report>) {
        if let Some(report) = &trespass {
            plan.leave_out(|_| true);
            if self.0 != trespass {
                plan.reports.push(report.clone());
            }
        }
        self.0 = trespass;
    }
}

#[cfg(test)]
#[path = "together_tests.rs"]
mod tests;
