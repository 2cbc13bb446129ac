//! What a policy sees, what it answers and why, and what it has done so far.

use surefoot_server::Waits;

/// What is seen at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    pub now_us: u64,
    /// Cores on which a thread of the primaries runs.
    pub busy: u32,
    /// Cores that the primaries have at this instant; those on the way back are not among them.
    pub here: u32,
    /// For how long the thread has waited that has waited longest; None: not known or not asked for.
    pub waiting_us: Option<f64>,
}

/// What to do after a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Cores that the primaries keep from now on, and why; None: as before.
    pub keep: Option<(u32, Why)>,
    /// When the next reading is due.
    pub next_us: u64,
}

/// Why a number of cores was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A rule of the policy.
    Rule,
    /// The learner's choice for the next window.
    Predicted,
    /// What is left of the budget of long waits.
    Budget,
    /// The learner has not seen enough windows.
    Warm,
    /// Every core at hand was busy: the short-term safeguard.
    Exhausted,
    /// Virtual CPUs have waited too long: the long-term safeguard.
    Stopped,
}

impl Why {
    pub fn as_str(self) -> &'static str {
        match self {
            Why::Rule => "rule",
            Why::Predicted => "predicted",
            Why::Budget => "budget of waits",
            Why::Warm => "learning",
            Why::Exhausted => "cores were exhausted",
            Why::Stopped => "threads waited for cores",
        }
    }
}

/// What has happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub readings: u64,
    /// Times that another number of cores was asked for.
    pub moves: u64,
    /// Windows learnt from.
    pub trained: u64,
    /// Windows for which the learner chose.
    pub predicted: u64,
    /// Of those, in which it chose less than the peak.
    pub short: u64,
    /// Cores that it chose beyond the peaks, in sum.
    pub spare: u64,
    /// Times that all cores at hand became busy.
    pub exhausted: u64,
    /// Times that waits stopped lending: the long-term safeguard.
    pub stops: u64,
}

/// What was seen when the long-term safeguard stopped lending: the waits of its last look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stop {
    pub at_us: u64,
    pub waits: Waits,
    /// For how long nothing is lent.
    pub stop_s: f64,
}
