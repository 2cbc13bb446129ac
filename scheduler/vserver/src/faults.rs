//! What makes a server less kind than a model of it: `[faults]` of a platform, on unless a file says otherwise.
//!
//! Readings err in a way that lasts, come late or not at all; data of two runs differ in size; a moved service pays for what it leaves;
//! no two cores and no two slices of the cache are quite alike. Magnitudes are of published measurements (docs/virtual-server.md).

use crate::math::Draws;

/// Stream of draws of a run, beyond those of its ticks.
const BIAS: u64 = 0xB1A5;

/// `[faults]`: relative standard deviations, shares, seconds. Every key may be left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// Lasting error of a service's counters in one run, relative standard deviation.
    pub ipc_bias: f64,
    pub misses_bias: f64,
    pub mbl_bias: f64,
    pub freq_bias: f64,
    /// More scatter of instructions and misses where counters take turns, relative standard deviation.
    pub multiplex: f64,
    /// Share of readings that are still those of the interval before.
    pub late: f64,
    /// Share of readings of counters that are not there.
    pub missed: f64,
    /// Sizes of a service's memory between runs, relative standard deviation: data sets, allocators, age.
    pub data: f64,
    /// Time constant with which freed memory goes back to the system, s.
    pub res_decay_s: f64,
    /// Time constant with which moved threads have their L2, TLB and predictors warm again, s.
    pub cold_s: f64,
    /// How many more accesses get to the LLC while all threads of a service are cold, relative.
    pub cold_refs: f64,
    /// Speed of cores between each other, relative standard deviation.
    pub core_spread: f64,
    /// Distance of a core from the slices of its LLC, relative standard deviation of the hit time.
    pub slice_spread: f64,
    /// Ways, from the highest down, that devices write to as well; and the share of them that devices hold.
    pub dma_ways: u32,
    pub dma_share: f64,
}

impl Default for Faults {
    fn default() -> Self {
        Faults {
            ipc_bias: 0.02,
            misses_bias: 0.06,
            mbl_bias: 0.04,
            freq_bias: 0.005,
            multiplex: 0.02,
            late: 0.02,
            missed: 0.005,
            data: 0.15,
            res_decay_s: 30.0,
            cold_s: 0.5,
            cold_refs: 0.25,
            core_spread: 0.01,
            slice_spread: 0.05,
            dma_ways: 2,
            dma_share: 0.15,
        }
    }
}

impl Faults {
    /// A server as kind as its model.
    pub fn none() -> Self {
        Faults {
            ipc_bias: 0.0,
            misses_bias: 0.0,
            mbl_bias: 0.0,
            freq_bias: 0.0,
            multiplex: 0.0,
            late: 0.0,
            missed: 0.0,
            data: 0.0,
            res_decay_s: 0.0,
            cold_s: 0.0,
            cold_refs: 0.0,
            core_spread: 0.0,
            slice_spread: 0.0,
            dma_ways: 0,
            dma_share: 0.0,
        }
    }
}

impl Faults {
    /// Scatter of a counter that takes turns with others, where one that counts all the time has `noise`.
    pub(crate) fn of_turns(&self, noise: f64) -> f64 {
        noise.hypot(self.multiplex)
    }
}

/// Lognormal factor of mean 1.
pub(crate) fn lognormal(cv: f64, z: f64) -> f64 {
    (cv * z - 0.5 * cv * cv).exp()
}

/// What lasts as long as a run of one service: factors of its readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Lasting {
    pub ipc: f64,
    pub misses: f64,
    pub mbl: f64,
    pub freq: f64,
    /// Of its memory's sizes.
    pub data: f64,
}

impl Lasting {
    /// Of the service whose key is `key` (a run's or a case's) under a seed.
    pub fn new(f: &Faults, seed: u64, key: u64) -> Self {
        let draws = Draws::new(&[seed, key, BIAS]);
        Lasting {
            ipc: lognormal(f.ipc_bias, draws.gauss(0)),
            misses: lognormal(f.misses_bias, draws.gauss(1)),
            mbl: lognormal(f.mbl_bias, draws.gauss(2)),
            freq: lognormal(f.freq_bias, draws.gauss(3)),
            data: lognormal(f.data, draws.gauss(4)),
        }
    }
}

impl Default for Lasting {
    fn default() -> Self {
        Lasting { ipc: 1.0, misses: 1.0, mbl: 1.0, freq: 1.0, data: 1.0 }
    }
}
