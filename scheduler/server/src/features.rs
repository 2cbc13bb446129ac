//! The 13 features of one service in one interval, in the papers' order (OSML+ paper, Table 3).
//!
//! Computed here for collection and for serving alike. A feature that the host cannot measure is None, never 0.

use serde::{Deserialize, Serialize};

/// Column names, in order, with units.
pub const FEATURE_NAMES: [&str; 13] = [
    "ipc",
    "llc_misses_per_s",
    "mbl_mbps",
    "cpu_usage_cores",
    "virt_mem_mb",
    "res_mem_mb",
    "alloc_cores",
    "alloc_ways",
    "alloc_cache_mb",
    "core_freq_mhz",
    "nb_cores",
    "nb_cache_mb",
    "nb_mbl_mbps",
];

/// Instructions per cycle, LLC misses per second, local memory bandwidth ([`BYTES_PER_MB_S`]), busy cores, virtual and resident memory
/// (MB = 2^20 bytes), what the service holds, core frequency, and the sums over its neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Features {
    pub ipc: Option<f64>,
    pub llc_misses_per_s: Option<f64>,
    pub mbl_mbps: Option<f64>,
    pub cpu_usage_cores: Option<f64>,
    pub virt_mem_mb: Option<f64>,
    pub res_mem_mb: Option<f64>,
    pub alloc_cores: Option<f64>,
    pub alloc_ways: Option<f64>,
    pub alloc_cache_mb: Option<f64>,
    pub core_freq_mhz: Option<f64>,
    pub nb_cores: Option<f64>,
    pub nb_cache_mb: Option<f64>,
    pub nb_mbl_mbps: Option<f64>,
}

impl Features {
    /// Values in the order of [`FEATURE_NAMES`].
    pub fn values(&self) -> [Option<f64>; 13] {
        [
            self.ipc,
            self.llc_misses_per_s,
            self.mbl_mbps,
            self.cpu_usage_cores,
            self.virt_mem_mb,
            self.res_mem_mb,
            self.alloc_cores,
            self.alloc_ways,
            self.alloc_cache_mb,
            self.core_freq_mhz,
            self.nb_cores,
            self.nb_cache_mb,
            self.nb_mbl_mbps,
        ]
    }

    /// Value by column name; None also for an unknown name.
    pub fn get(&self, name: &str) -> Option<f64> {
        FEATURE_NAMES.iter().position(|n| *n == name).and_then(|i| self.values()[i])
    }
}

/// Bytes of one MB/s of memory bandwidth: 10^6, as data sheets and `mem_bw_mbps` count. MB of memory and cache is 2^20 bytes.
pub const BYTES_PER_MB_S: f64 = 1e6;

/// A CPU's frequency as its host shows it, MHz.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Frequency {
    /// At which it runs, or ran last.
    Measured(f64),
    /// Of its data sheet: what a host shows that measures none, as most virtual machines do.
    Nominal(f64),
}

/// Feature `core_freq_mhz`: the mean of what is measured of the CPUs that a service holds; the nominal one where none of them is.
///
/// A nominal frequency is the same whatever the CPU does, so beside a measured one it counts for nothing. On a host that measures none it
/// is a constant, which models of such a host have learnt as one.
pub fn core_freq_mhz(held: impl IntoIterator<Item = Frequency>) -> Option<f64> {
    let (mut measured, mut nominal) = ((0.0, 0u32), (0.0, 0u32));
    for f in held {
        let ((sum, n), mhz) = match f {
            Frequency::Measured(mhz) => (&mut measured, mhz),
            Frequency::Nominal(mhz) => (&mut nominal, mhz),
        };
        (*sum, *n) = (*sum + mhz, *n + 1);
    }
    [measured, nominal].into_iter().find(|(_, n)| *n > 0).map(|(sum, n)| sum / f64::from(n))
}

/// Fill in the neighbours' features: sums over all others. A sum with an unknown term is unknown.
pub fn fill_neighbours(all: &mut [Features]) {
    let own: Vec<Features> = all.to_vec();
    let sum =
        |i: usize, f: fn(&Features) -> Option<f64>| own.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, x)| f(x)).sum::<Option<f64>>();
    for (i, x) in all.iter_mut().enumerate() {
        x.nb_cores = sum(i, |f| f.alloc_cores);
        x.nb_cache_mb = sum(i, |f| f.alloc_cache_mb);
        x.nb_mbl_mbps = sum(i, |f| f.mbl_mbps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neighbour features are sums over the others, and unknown if one of them is.
    #[test]
    fn neighbours_are_summed_and_unknown_stays_unknown() {
        let f = |c: f64, m: Option<f64>| Features { alloc_cores: Some(c), mbl_mbps: m, ..Default::default() };
        let mut all = [f(2.0, Some(10.0)), f(3.0, Some(20.0)), f(4.0, None)];
        fill_neighbours(&mut all);
        assert_eq!(all[0].nb_cores, Some(7.0));
        assert_eq!(all[2].nb_mbl_mbps, Some(30.0));
        assert_eq!(all[0].nb_mbl_mbps, None);
    }

    /// A nominal frequency counts for nothing beside a measured one, and where none is measured it is what there is.
    #[test]
    fn a_nominal_frequency_is_no_measurement() {
        use Frequency::{Measured, Nominal};
        assert_eq!(core_freq_mhz([Measured(3000.0), Nominal(2000.0), Measured(2600.0)]), Some(2800.0));
        assert_eq!((core_freq_mhz([Nominal(2000.0), Nominal(2200.0)]), core_freq_mhz([])), (Some(2100.0), None));
    }

    /// Names and values are in one order.
    #[test]
    fn names_match_values() {
        let f = Features { nb_mbl_mbps: Some(5.0), ipc: Some(1.0), ..Default::default() };
        assert_eq!((f.get("nb_mbl_mbps"), f.get("ipc"), f.get("nonsense")), (Some(5.0), Some(1.0), None));
        let json = serde_json_names(&f);
        assert_eq!(json, FEATURE_NAMES);
    }

    /// Field names as serde sees them, without a JSON dependency.
    fn serde_json_names(f: &Features) -> Vec<String> {
        format!("{f:?}")
            .trim_start_matches("Features { ")
            .trim_end_matches(" }")
            .split(", ")
            .map(|p| p.split(':').next().unwrap_or("").to_string())
            .collect()
    }
}
