//! What a policy asks the upper scheduler before it does it, and what that has said (OSML paper, Algorithm 4; OSML+ paper, Sec. 3.3: sharing is the
//! upper scheduler's to allow).

use crate::ServiceId;
use serde::{Deserialize, Serialize};

/// May one service use what is another's, since no service can be deprived of it?
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The service that lacks something.
    pub service: ServiceId,
    /// The service whose cores or ways it would share.
    pub with: ServiceId,
    /// Predicted for `with` while they are shared: target / p99, or what is left of 1 (as the policy reports it).
    pub qos: f64,
    pub why: String,
}

/// The word on a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Word {
    pub service: ServiceId,
    pub with: ServiceId,
    pub allowed: bool,
}
