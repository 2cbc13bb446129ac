//! Machines of one kind differ: cores, their distance from slices of the cache, what devices take of it ([`crate::faults`]).

use crate::faults::lognormal;
use crate::math::{ident_hash, Draws};
use crate::profile::PlatformProfile;

/// Stream of draws of a host.
const HOST: u64 = 0x4057;

/// One machine of its kind, drawn from a seed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Host {
    /// Of each CPU: time of core-bound work, and of a hit in the LLC, relative to the kind's.
    pub core: Vec<f64>,
    pub hit: Vec<f64>,
    /// MB of each way that services can have.
    pub way_mb: Vec<f64>,
}

impl Host {
    /// The machine of that seed; None: the kind itself, without any difference.
    pub fn new(p: &PlatformProfile, seed: Option<u64>) -> Self {
        let (cpus, ways) = (p.logical_cpus(), p.llc.ways);
        let mut host =
            Host { core: vec![1.0; cpus as usize], hit: vec![1.0; cpus as usize], way_mb: vec![p.llc.mb_per_way; ways as usize] };
        let Some(seed) = seed else { return host };
        let f = &p.faults;
        let draws = Draws::new(&[seed, ident_hash(&p.name), HOST]);
        for c in 0..cpus {
            let core = u64::from(c % p.cpu.physical_cores);
            host.core[c as usize] = lognormal(f.core_spread, draws.gauss(2 * core));
            host.hit[c as usize] = lognormal(f.slice_spread, draws.gauss(2 * core + 1));
        }
        // How much traffic the devices of a machine have differs, too.
        let held = f.dma_share * draws.uniform(u64::MAX) * 2.0;
        for mb in host.way_mb.iter_mut().rev().take(f.dma_ways.min(ways) as usize) {
            *mb *= 1.0 - held.min(1.0);
        }
        host
    }
}
