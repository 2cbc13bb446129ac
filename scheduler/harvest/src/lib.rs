//! Harvesting idle cores of latency-critical services below a tick: how many cores they need in the next milliseconds.
//!
//! Pure: no clock, no I/O, and no allocation once a [`Harvester`] is made. [`drive`] runs one on a
//! [`Lender`](surefoot_server::Lender), which is a virtual server's primary VMs or this machine's services.
//!
//! | name | what it does | source |
//! | --- | --- | --- |
//! | `no-harvest` | lends nothing | |
//! | `fixed-buffer-N` | keeps N cores beside the busy ones, judged at each reading | PerfIso, as SmartHarvest's baseline |
//! | `prev-peak`, `prev-peak-N` | keeps the peak of the last window, or of the last N | SmartHarvest's baselines |
//! | `smartharvest` | learns on line how many cores the next window needs; two safeguards | SmartHarvest (EuroSys 2021), Algorithm 1 |
//! | `wait-budget` | lends as much as a budget of long waits allows | our own |
//! | `caladan` | gives a core when a thread has waited, takes every idle one | Caladan (OSDI 2020), its control law |

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]
#![forbid(unsafe_code)]

pub mod baselines;
pub mod budget;
pub mod caladan;
pub mod cost;
pub mod drive;
pub mod guard;
pub mod harvester;
pub mod learner;
pub mod said;
pub mod settings;
pub mod smart;
pub mod window;

pub use drive::drive;
pub use harvester::{Harvester, NAMES};
pub use said::{Seen, Step, Stop, Tally, Why};
pub use settings::Settings;
