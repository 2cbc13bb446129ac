//! One write of a plan.

use crate::cgroup::Knob;
use crate::resctrl::steps::Op;
use surefoot_server::ServiceId;

/// One write of a plan, and how to undo it.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Knob {
        id: ServiceId,
        knob: Knob,
        from: String,
        to: String,
    },
    /// A change of classes: ways and bandwidth.
    Class(Op),
}

impl Step {
    /// Whose it is; None for what several may share.
    pub(super) fn service(&self) -> Option<&ServiceId> {
        match self {
            Step::Knob { id, .. } | Step::Class(Op::Move { id, .. }) => Some(id),
            Step::Class(_) => None,
        }
    }
}
