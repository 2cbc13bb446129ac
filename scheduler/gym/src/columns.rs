//! What an agent sees of each service: a row of numbers from 0 to 1, and which of them are known.
//!
//! The numbers are those of [`surefoot_server::Observation`], over what the server has: an agent carries over to other servers. No bound
//! is learnt, so no statistics can be lost or leak. A number that cannot be known is 0 and not known.

use surefoot_server::features::BYTES_PER_MB_S;
use surefoot_server::{Platform, ServiceView, FEATURE_NAMES};

/// Columns before the features.
const OWN: [&str; 5] = ["is_lc", "is_be", "held_cores", "held_ways", "held_mba"];
/// Columns after them.
const SEEN: [&str; 4] = ["p99_interval", "p99_window", "load", "throughput"];
pub const COLUMNS: usize = OWN.len() + FEATURE_NAMES.len() + SEEN.len();
/// Of the server as a whole: cores and ways that no service holds, or BE jobs beyond the least.
pub const SERVER_COLUMNS: [&str; 2] = ["free_cores", "free_ways"];

/// Instructions per cycle that are taken for 1.
const MOST_IPC: f64 = 4.0;
/// Bytes of a line of cache.
const LINE_BYTES: f64 = 64.0;
/// What a platform is taken for that does not say it: MB/s, MHz and MB of memory.
const OF_A_SERVER: (f64, f64, f64) = (100_000.0, 4_000.0, 1_048_576.0);

/// Names of all columns, in order.
pub fn names() -> Vec<&'static str> {
    OWN.into_iter().chain(FEATURE_NAMES).chain(SEEN).collect()
}

/// What the numbers of one server are divided by.
#[derive(Clone, Debug)]
pub struct Scale {
    cpus: f64,
    ways: f64,
    features: [f64; FEATURE_NAMES.len()],
    /// ln(1 + MB) of all memory.
    memory: f64,
}

impl Scale {
    pub fn of(p: &Platform) -> Self {
        let cpus = f64::from(p.managed.len().max(1));
        let ways = f64::from(p.ways().max(1));
        let cache_mb = (ways * p.mb_per_way() * f64::from(p.l3_domains())).max(1.0);
        let mbps = p.mem_bw_mbps.unwrap_or(OF_A_SERVER.0);
        let mhz = p.max_freq_mhz.unwrap_or(OF_A_SERVER.1);
        let memory_mb = p.memory.map_or(OF_A_SERVER.2, |m| m.capacity_bytes as f64 / f64::from(1 << 20));
        let lines = mbps * BYTES_PER_MB_S / LINE_BYTES;
        let features = FEATURE_NAMES.map(|name| match name {
            "ipc" => MOST_IPC,
            "llc_misses_per_s" => lines,
            "mbl_mbps" | "nb_mbl_mbps" => mbps,
            "core_freq_mhz" => mhz,
            "alloc_ways" => ways,
            "alloc_cache_mb" | "nb_cache_mb" => cache_mb,
            "cpu_usage_cores" | "alloc_cores" | "nb_cores" => cpus,
            // Logarithms, below.
            _ => 0.0,
        });
        Scale { cpus, ways, features, memory: memory_mb.ln_1p() }
    }

    /// A row of a service, and what of it is known. `max_load_rps`: of an LC service. `throughput`: of a BE job, relative to running alone.
    pub fn row(&self, s: &ServiceView, max_load_rps: Option<f64>, throughput: Option<f64>, row: &mut [f32], known: &mut [i8]) {
        let mut at = 0;
        let mut put = |x: Option<f64>| {
            let x = x.filter(|x| x.is_finite());
            row[at] = x.map_or(0.0, |x| x.clamp(0.0, 1.0) as f32);
            known[at] = i8::from(x.is_some());
            at += 1;
        };
        put(Some(f64::from(u8::from(s.is_lc()))));
        put(Some(f64::from(u8::from(!s.is_lc()))));
        put(Some(s.allocation.cores() / self.cpus));
        put(Some(s.allocation.n_ways() / self.ways));
        put(Some(f64::from(s.allocation.mba_pct) / 100.0));
        for (x, scale) in s.features.values().into_iter().zip(self.features) {
            put(x.map(|x| if scale > 0.0 { x / scale } else { x.max(0.0).ln_1p() / self.memory }));
        }
        let (window, interval) = if s.latency_unknown() { (None, None) } else { (s.window, s.interval) };
        let target = s.qos_target_ms();
        put(interval.zip(target).map(|(l, target)| half(l.p99_ms / target)));
        put(window.zip(target).map(|(l, target)| half(l.p99_ms / target)));
        put(window.zip(max_load_rps).map(|(l, most)| half(l.achieved_rps / most)));
        put(throughput);
    }
}

/// Of a ratio without a highest value: 0.5 at 1, and nearer to 1 the larger it is.
pub fn half(ratio: f64) -> f64 {
    // An infinite ratio is known: it is as large as can be.
    if ratio.is_infinite() {
        return 1.0;
    }
    ratio / (1.0 + ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every column has one name, and a p99 at its target is 0.5 whatever the target.
    #[test]
    fn columns_have_names() {
        let mut all = names();
        assert_eq!(all.len(), COLUMNS);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), COLUMNS);
        assert_eq!([half(0.0), half(1.0), half(3.0), half(f64::INFINITY)], [0.0, 0.5, 0.75, 1.0]);
    }
}
