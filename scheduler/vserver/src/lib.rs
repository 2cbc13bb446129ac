//! The virtual server: a mechanistic model of one processor socket on which LC services and BE jobs share CPUs, LLC and
//! memory bandwidth.
//!
//! No latency surface is stored: RCliff, OAA and QoS follow from service demand, miss-ratio curves, bandwidth, frequency,
//! SMT and queueing. Uses: [`Steady`] for sweeps, [`Plant`] (100 ms ticks) and its adapter to the port, [`VirtualServer`],
//! [`CoreUse`] for harvesting cores below a millisecond. [`requests`] simulates queues request by request.
//!
//! Units: seconds, requests/s, GHz, ns where a name says so, MB = 2^20 bytes, GB/s = 10^9 bytes/s.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]
#![forbid(unsafe_code)]

/// Which plant this is. Data sets, bundles and evaluation rows carry it: figures of two plants are figures of two servers.
///
/// The first is the prototype's, without a number in what it made. A change of what the plant says of the same seed makes another.
pub const EDITION: u32 = 2;

pub mod core_use;
mod departures;
mod exact;
pub mod faults;
mod host;
pub mod lender;
pub mod math;
pub mod memory;
mod moving;
mod path;
pub mod plant;
pub mod profile;
pub mod queue;
pub mod requests;
pub mod server;
pub mod speeds;
pub mod steady;
pub mod tenant;
pub mod world;

pub use core_use::{BatchSide, CoreSeconds, CoreUse, Cores, CoresError};
pub use lender::VirtualLender;
pub use memory::{MemoryUse, Paged};
pub use moving::set_gb;
pub use plant::{Change, Plant};
pub use profile::{
    BurstShape, BurstWorkload, Bursts, PlatformProfile, PrimaryVm, Profile, ProfileError, ProfileKind, Profiles, Reassignment, MAX_DOMAINS,
};
pub use server::{platform_of, LoadCourse, VirtualServer};
pub use speeds::{Shared, Solver, Speed};
pub use steady::{alone_instr_per_s, max_load_rps, rps_at_full_load, sample_series, LatencyMs, Sample, Series, Steady, HORIZON_S};
pub use tenant::{check_tenants, place, stack_ways, Tenant, TenantError, WayMasks};
