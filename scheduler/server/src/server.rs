//! The port: a machine, as policies see it.

use crate::observation::Observation;
use crate::plan::Plan;
use crate::platform::Platform;
use crate::ServiceId;
use thiserror::Error;

/// Length of one step, ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    pub ms: u64,
}

/// What `apply` did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Services whose allocation really changed.
    pub changed: Vec<ServiceId>,
}

/// Why a plan was not applied. After any of these but [`ServerError::Unsettled`] the last applied plan is in force.
#[derive(Debug, Error)]
pub enum ServerError {
    #[error("{0}. Nothing was changed.")]
    Invalid(String),
    #[error("{what}: {cause}. {remedy}. The last applied plan is back in force.")]
    Write { what: String, cause: String, remedy: String },
    /// A write failed, and so did taking back what was written before it.
    #[error("{what}: {cause}. {left} writes of the last plan are not undone yet: that is tried again before anything else is changed.")]
    Unsettled { what: String, cause: String, left: usize },
    #[error("{what}: {cause}. {remedy}.")]
    Unavailable { what: String, cause: String, remedy: String },
}

/// A machine with services on it. Adapters: the virtual server and Linux.
pub trait Server {
    fn platform(&self) -> &Platform;

    /// What every service did since the last step.
    fn observe(&mut self) -> Observation;

    /// All or nothing: validates the whole plan first; on a failed write the last applied plan is back in force.
    ///
    /// # Errors
    /// [`ServerError::Invalid`] for a plan that must not be applied, [`ServerError::Write`] for a failed write.
    fn apply(&mut self, plan: &Plan) -> Result<Applied, ServerError>;

    /// Let time pass: a virtual server computes it, a real one waits for it.
    fn advance(&mut self, tick: Tick);
}
