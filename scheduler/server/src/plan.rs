//! What a policy wants, and why.

use crate::allocation::Allocation;
use crate::because::Because;
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

/// Allocations to put in force. A service that is not named keeps what it has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub allocations: BTreeMap<ServiceId, Allocation>,
    pub actions: Vec<Action>,
    pub reports: Vec<Report>,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.allocations.is_empty()
    }

    /// Whether it is a step, and not a layout of earlier steps said again (no action) or an action that changes nothing.
    pub fn is_step(&self) -> bool {
        !self.actions.is_empty() && !self.is_empty()
    }
}
