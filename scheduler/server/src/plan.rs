//! What a policy wants, and why.

use crate::allocation::Allocation;
use crate::because::Because;
use crate::change::Change;
use crate::observation::Observation;
use crate::question::Question;
use crate::resource::Resource;
use crate::ServiceId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What kind of step a policy took (one entry per service that it concerns).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActionKind {
    Place,
    Grow,
    Shrink,
    Deprive,
    Share,
    Rollback,
}

impl ActionKind {
    pub const ALL: [ActionKind; 6] =
        [ActionKind::Place, ActionKind::Grow, ActionKind::Shrink, ActionKind::Deprive, ActionKind::Share, ActionKind::Rollback];

    /// As it stands in files and on command lines.
    pub fn as_str(self) -> &'static str {
        match self {
            ActionKind::Place => "place",
            ActionKind::Grow => "grow",
            ActionKind::Shrink => "shrink",
            ActionKind::Deprive => "deprive",
            ActionKind::Share => "share",
            ActionKind::Rollback => "rollback",
        }
    }
}

/// One step of a policy, for the journal and for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    pub service: ServiceId,
    pub kind: ActionKind,
    /// Why, in one line: what was seen, what a model said.
    pub why: String,
    /// The same as data, and more: inputs, models' answers, what was rejected, what is expected.
    #[serde(default)]
    pub because: Because,
}

/// Word to the upper scheduler (OSML+ paper, Sec. 3.3; OSML paper, Algorithms 1 and 4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "kebab-case")]
pub enum Report {
    /// A newcomer does not fit. Service [`Report::ALL`]: no layout fits, and what is in force stays.
    CannotPlace { service: ServiceId, why: String },
    /// It was deprived of something or shares it, and is predicted this QoS.
    ExpectedSlowdown { service: ServiceId, qos: f64 },
    /// This service, which runs here already, would best leave: it cannot be held.
    Migrate { service: ServiceId, why: String },
    /// A part of the plan is not carried out: it would have taken from a service whose latency is unknown, or the kernel or the groups around
    /// the service bound what may be set of it.
    Withheld { service: ServiceId, why: String },
}

impl Report {
    /// In the place of a service: all services here.
    pub const ALL: &'static str = "all";
}

/// Changes to put in force. A service that is not named keeps what it has, and so does a resource of a service that is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Plan {
    pub changes: BTreeMap<ServiceId, Change>,
    pub actions: Vec<Action>,
    pub reports: Vec<Report>,
    /// What the upper scheduler is asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<Question>,
}

impl Plan {
    /// Cores, ways and bandwidth of these allocations; limits on memory stay as they are.
    pub fn cores_and_ways(allocations: BTreeMap<ServiceId, Allocation>) -> Self {
        let changes = allocations.iter().map(|(id, a)| (id.clone(), Change::cores_and_ways(a))).collect();
        Plan { changes, ..Plan::default() }
    }

    /// Every resource of these allocations.
    pub fn whole(allocations: BTreeMap<ServiceId, Allocation>) -> Self {
        let changes = allocations.iter().map(|(id, a)| (id.clone(), Change::all(a))).collect();
        Plan { changes, ..Plan::default() }
    }

    /// Nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        self.changes.values().all(Change::is_empty)
    }

    /// Whether it is a step, and not a layout of earlier steps said again (no action) or an action that changes nothing.
    pub fn is_step(&self) -> bool {
        !self.actions.is_empty() && !self.is_empty()
    }

    /// What a service would hold that holds `now`; None where nothing is said about it.
    pub fn wants(&self, id: &str, now: &Allocation) -> Option<Allocation> {
        self.changes.get(id).filter(|c| !c.is_empty()).map(|c| c.on(now))
    }

    /// As [`Plan::wants`], for a server that is to put it in force.
    ///
    /// # Errors
    /// As [`Plan::places`], of a service that is not placed yet.
    pub fn asks(&self, id: &str, placed: bool, now: &Allocation) -> Result<Option<Allocation>, String> {
        if !placed {
            self.places(id)?;
        }
        Ok(self.wants(id, now))
    }

    /// What every service that is named would hold.
    pub fn allocations(&self, seen: &Observation) -> BTreeMap<ServiceId, Allocation> {
        seen.services.iter().filter_map(|s| Some((s.id.clone(), self.wants(&s.id, &s.allocation)?))).collect()
    }

    /// What all services would hold that were placed before it or would be by it.
    pub fn layout(&self, seen: &Observation) -> BTreeMap<ServiceId, Allocation> {
        let mut all: BTreeMap<ServiceId, Allocation> =
            seen.services.iter().filter(|s| s.placed).map(|s| (s.id.clone(), s.allocation.clone())).collect();
        all.extend(self.allocations(seen));
        all
    }

    /// Whether a service that nothing has placed yet would be placed: it runs everywhere until a plan gives it CPUs.
    ///
    /// # Errors
    /// One line where the plan names something else of it.
    pub fn places(&self, id: &str) -> Result<bool, String> {
        match self.changes.get(id).filter(|c| !c.is_empty()) {
            None => Ok(false),
            Some(c) if c.cpu.is_some() => Ok(true),
            Some(c) => {
                let what = Resource::list(&c.resources().collect::<Vec<_>>());
                Err(format!("{id}: {what}, but it is not placed yet. Give it CPUs first, or in the same plan"))
            }
        }
    }

    /// Alter an allocation of which every resource is named.
    pub fn adjust(&mut self, id: &str, alter: impl FnOnce(&mut Allocation)) {
        if let Some((c, mut a)) = self.changes.get_mut(id).and_then(|c| c.whole().map(|a| (c, a))) {
            alter(&mut a);
            *c = Change::all(&a);
        }
    }

    /// Whether a service may share with another one. Where there is no word on it yet, the question becomes a part of the plan, and the answer is no for now.
    pub fn may_share(&mut self, seen: &Observation, question: Question) -> bool {
        let Some(words) = &seen.words else { return true };
        let same = |service: &str, with: &str| service == question.service && with == question.with;
        if let Some(word) = words.iter().find(|w| same(&w.service, &w.with)) {
            return word.allowed;
        }
        if !self.questions.iter().any(|q| same(&q.service, &q.with)) {
            self.questions.push(question);
        }
        false
    }

    /// The upper scheduler has been asked on a service's behalf: whether it can be held is not known yet.
    pub fn waits_for_word(&self, id: &str) -> bool {
        self.questions.iter().any(|q| q.service == id)
    }

    /// Leave out what is said about some services: their changes and their actions.
    pub fn leave_out(&mut self, left_out: impl Fn(&str) -> bool) {
        self.changes.retain(|id, _| !left_out(id));
        self.actions.retain(|a| !left_out(&a.service));
        self.questions.retain(|q| !left_out(&q.service));
    }
}

/// A plan in a file. Older ones have whole allocations, of which cores, ways and bandwidth were meant: no policy of then set a limit
/// on memory.
#[derive(Deserialize)]
struct Written {
    changes: Option<BTreeMap<ServiceId, Change>>,
    allocations: Option<BTreeMap<ServiceId, Allocation>>,
    actions: Vec<Action>,
    reports: Vec<Report>,
    #[serde(default)]
    questions: Vec<Question>,
}

impl TryFrom<Written> for Plan {
    type Error = &'static str;

    fn try_from(w: Written) -> Result<Self, Self::Error> {
        let changes = match (w.changes, w.allocations) {
            (Some(changes), None) => changes,
            (None, Some(allocations)) => Plan::cores_and_ways(allocations).changes,
            (Some(_), Some(_)) => return Err("a plan with both `changes` and `allocations`"),
            (None, None) => return Err("missing field `changes`"),
        };
        Ok(Plan { changes, actions: w.actions, reports: w.reports, questions: w.questions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Limit;
    use crate::platform::Platform;
    use crate::question::Word;

    /// A plan is written as changes and read back; one of an older version says nothing about memory.
    #[test]
    fn plans_of_older_versions_are_read() {
        let p = Platform::regular("t", 4, 1, 11, 2.0);
        let a = Allocation::everything(&p);
        let of = |key: &str, value: String| format!(r#"{{"{key}":{{"web":{value}}},"actions":[],"reports":[]}}"#);
        let old = of("allocations", serde_json::to_string(&a).unwrap());
        let read: Plan = serde_json::from_str(&old).unwrap();
        assert_eq!(read, Plan::cores_and_ways(BTreeMap::from([("web".into(), a.clone())])));
        let limited = Allocation { mem_limit_bytes: Some(1 << 30), ..a.clone() };
        assert_eq!(read.wants("web", &limited), Some(limited));
        let whole = Plan::whole(BTreeMap::from([("web".into(), a)]));
        let text = serde_json::to_string(&whole).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), whole);
        let limit = of("changes", r#"{"mem_limit":{"bytes":5}}"#.into());
        assert_eq!(serde_json::from_str::<Plan>(&limit).unwrap().changes["web"].mem_limit, Some(Limit::Bytes(5)));
        for wrong in [
            r#"{"actions":[],"reports":[]}"#,
            r#"{"changes":{},"allocations":{},"actions":[],"reports":[]}"#,
            &of("changes", r#"{"memory":5}"#.into()),
        ] {
            assert!(serde_json::from_str::<Plan>(wrong).is_err(), "{wrong}");
        }
    }

    /// A service that runs everywhere is given CPUs first.
    #[test]
    fn an_unplaced_service_is_given_cpus_first() {
        let everything = Allocation::everything(&Platform::regular("t", 4, 1, 11, 2.0));
        let mut plan = Plan::whole(BTreeMap::from([("web".into(), everything)]));
        assert_eq!((plan.places("web"), plan.places("db")), (Ok(true), Ok(false)));
        plan.changes.get_mut("web").unwrap().forget(Resource::Cpu);
        assert!(plan.places("web").unwrap_err().starts_with("web: ways, memory bandwidth, memory, zswap, but it is not placed yet"));
        plan.changes.insert("web".into(), Change::default());
        assert_eq!((plan.places("web"), plan.is_empty()), (Ok(false), true));
    }

    fn question() -> Question {
        Question { service: "web".into(), with: "db".into(), qos: 1.2, why: "1 core".into() }
    }

    /// Where nothing is asked it is done. Else it is asked once a plan, and the word counts, for these two services alone.
    #[test]
    fn a_word_is_waited_for_where_somebody_is_asked() {
        let mut plan = Plan::default();
        let mut seen = Observation::default();
        assert!(plan.may_share(&seen, question()) && plan.questions.is_empty());
        seen.words = Some(vec![]);
        for _ in 0..2 {
            assert!(!plan.may_share(&seen, question()));
        }
        assert_eq!(plan.questions, [question()]);
        assert!(plan.waits_for_word("web") && !plan.waits_for_word("db"));
        for allowed in [true, false] {
            let mut plan = Plan::default();
            seen.words = Some(vec![Word { service: "web".into(), with: "db".into(), allowed }]);
            assert_eq!((plan.may_share(&seen, question()), seen.denied("web", "db")), (allowed, !allowed));
            assert!(!seen.denied("db", "web"));
            assert!(!plan.may_share(&seen, Question { service: "db".into(), with: "web".into(), ..question() }));
            assert_eq!(plan.questions.len(), 1);
        }
    }

    /// Files of before have neither questions nor words, and nothing is written where there are none.
    #[test]
    fn what_nobody_asks_is_not_written() {
        let plan = serde_json::to_string(&Plan::default()).unwrap();
        assert!(!plan.contains("questions") && !serde_json::to_string(&Observation::default()).unwrap().contains("words"));
        let asked = Plan { questions: vec![question()], ..Plan::default() };
        assert_eq!(serde_json::from_str::<Plan>(&serde_json::to_string(&asked).unwrap()).unwrap(), asked);
    }
}
