//! What a policy wants, and why.

use crate::allocation::Allocation;
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

/// One step of a policy, for the journal and for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    pub service: ServiceId,
    pub kind: ActionKind,
    /// Why, in one line: what was seen, what a model said.
    pub why: String,
}

/// Word to the upper scheduler (OSML+ paper, Sec. 3.3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "kebab-case")]
pub enum Report {
    CannotPlace {
        service: ServiceId,
        why: String,
    },
    ExpectedSlowdown {
        service: ServiceId,
        qos: f64,
    },
    /// The plan would have taken from a service whose latency is unknown: that part of it is not carried out.
    Withheld {
        service: ServiceId,
        why: String,
    },
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
}
