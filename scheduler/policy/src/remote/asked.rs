//! What became of the questions to a policy in another process.

use serde::Serialize;

/// Why a decision is not the policy's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Held {
    /// Nobody is connected.
    Gone,
    /// No answer in time.
    Late,
    /// What came is no answer.
    Malformed,
    /// The answer asks for what there is not.
    Refused,
    /// It says that it could not decide.
    Failed,
}

impl Held {
    pub const ALL: [Held; 5] = [Held::Gone, Held::Late, Held::Malformed, Held::Refused, Held::Failed];

    pub fn as_str(self) -> &'static str {
        match self {
            Held::Gone => "gone",
            Held::Late => "late",
            Held::Malformed => "malformed",
            Held::Refused => "refused",
            Held::Failed => "failed",
        }
    }
}

/// What became of the questions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub decisions: u64,
    /// Decisions that are not the policy's own, by [`Held`].
    pub held: [u64; Held::ALL.len()],
    /// Answers that came after their time, and were thrown away.
    pub discarded: u64,
    pub connections: u64,
}

impl Asked {
    pub fn held_in_all(&self) -> u64 {
        self.held.iter().sum()
    }

    /// "late 3, gone 12": those that there are.
    pub fn words(&self) -> String {
        let some = Held::ALL.iter().zip(self.held).filter(|(_, n)| *n > 0);
        some.map(|(why, n)| format!("{} {n}", why.as_str())).collect::<Vec<_>>().join(", ")
    }
}
