//! The words of Surefoot as types, and the port through which policies see a machine.
//!
//! No I/O and no dependency on a sibling crate. Adapters of [`Server`]: `surefoot-vserver` (virtual server) and
//! `surefoot-linux` (this machine). Policies (`surefoot-policy`) turn an [`Observation`] into a [`Plan`].

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]
#![forbid(unsafe_code)]

pub mod allocation;
pub mod amount;
pub mod because;
pub mod bounding;
pub mod bounds;
pub mod change;
pub mod cpuset;
pub mod features;
pub mod held;
pub mod layout;
pub mod lease;
pub mod limits;
pub mod memory;
pub mod names;
pub mod observation;
pub mod order;
pub mod plan;
pub mod platform;
pub mod question;
pub mod resource;
pub mod server;
pub mod settable;
pub mod sound;
pub mod validate;
pub mod window;

pub use allocation::Allocation;
pub use amount::Amount;
pub use because::{Because, Expected, HoldsIf, Rejected, Said, Seen, Text};
pub use bounds::Bounds;
pub use change::{Change, Cpu, Limit, LlcPart};
pub use cpuset::CpuSet;
pub use features::{Features, FEATURE_NAMES};
pub use held::{Given, Held, Number, Quantity, QUANTITIES};
pub use lease::{Lease, LendError, Lender, Lent, Waits};
pub use memory::{Memory, MemoryView};
pub use observation::{Doubt, FeedState, Kind, Latency, LatencyFrom, Observation, SendLoop, Sending, ServiceView, Verdict};
pub use plan::{Action, ActionKind, Plan, Report};
pub use platform::{Llc, Mba, Platform};
pub use question::{Question, Word};
pub use resource::Resource;
pub use server::{Applied, Server, ServerError, Tick};

/// Name of one running service or job, unique on its server (two copies of xapian: `xapian`, `xapian-2`).
pub type ServiceId = String;
