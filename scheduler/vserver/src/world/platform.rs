//! A server, drawn.

use super::quantities as q;
use super::quantity::{digits, Stream};
use std::fmt::Write as _;

/// The text of a platform profile. Where memory is over-committed the swap device is an NVMe SSD, and no more of it is there than moves in a run.
pub fn toml(s: Stream, name: &str, is_over_committed: bool) -> String {
    let domains = if s.is(&q::MANY_DOMAINS) { s.count(&q::DOMAINS) } else { 1 };
    // An even number, and the same in each domain.
    let step = domains.max(2);
    let cores = (s.count(&q::CORES) / step).max(1) * step;
    let smt = if s.is(&q::SMT) { 2 } else { 1 };
    let (peak, flat) = (s.draw(&q::PEAK_GHZ), s.count(&q::FLAT_CORES).min(cores));
    let all = peak * s.draw(&q::ALL_CORES_RATIO);
    let ghz = |active: u32| {
        let down = f64::from(active.saturating_sub(flat)) / f64::from((cores - flat).max(1));
        digits(peak + (all - peak) * down, 4)
    };
    let turbo: Vec<String> = (1..=cores).map(|n| ghz(n).to_string()).collect();
    let ways = s.count(&q::WAYS);
    let mb_per_way = digits(s.draw(&q::LLC_PER_CORE) * f64::from(cores) / f64::from(domains * ways), 3);
    let bw_gbs = digits(s.draw(&q::BW_PER_CORE) * f64::from(cores), 3).max(q::LEAST_BW_GBS);
    let mba = s.draw(&q::MBA_STEP);
    let capacity_gb = s.draw(if is_over_committed { &q::MEMORY_CAPACITY_GB } else { &q::CAPACITY_GB });
    let (disk_us, disk_iops, disk_scale) = if s.is(&q::SLOW_DISK) && !is_over_committed {
        (9000.0, 150.0, 20.0)
    } else {
        (s.draw(&q::DISK_US), s.draw(&q::DISK_IOPS).round(), 1.0)
    };
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    line(format!("# A drawn server (docs/worlds.md). Fields: docs/virtual-server.md.\nkind = \"platform\"\nname = \"{name}\""));
    line(format!("title = \"drawn server: {cores} cores, {domains} L3, {ways} ways\"\n\n[cpu]"));
    line(format!("physical_cores = {cores}\nsmt = {smt}\nbase_ghz = {}", digits(all * s.draw(&q::BASE_RATIO), 3)));
    line(format!("turbo_ghz = [{}]\nidle_awake = {}", turbo.join(", "), s.draw(&q::IDLE_AWAKE)));
    line(format!("smt_slowdown = {}\ncpi_scale = {}", s.draw(&q::SMT_SLOWDOWN), s.draw(&q::CPI_SCALE)));
    line(format!("l2_mb = {}\n\n[llc]\ndomains = {domains}\nways = {ways}", s.draw(&q::L2_MB)));
    let min_ways = if ways >= 16 && s.is(&q::TWO_WAYS) { 2 } else { 1 };
    line(format!("mb_per_way = {mb_per_way}\nmin_ways = {min_ways}\nhit_ns = {}\n\n[mem]", s.draw(&q::HIT_NS)));
    line(format!("bw_gbs = {bw_gbs}\nusable = {}\nidle_ns = {}", s.draw(&q::USABLE), s.draw(&q::IDLE_NS)));
    line(format!("queue_ns = {}\ncore_bw_gbs = {}", s.draw(&q::QUEUE_NS), s.draw(&q::CORE_BW)));
    line(format!("mba = {}\nmba_min_pct = {mba}\nmba_step_pct = {mba}", s.is(&q::MBA)));
    line(format!("capacity_gb = {capacity_gb}\nreserved_gb = 4\n\n[os]"));
    line(format!("timeslice_ms = {}\nwake_preempt = {}", s.draw(&q::TIMESLICE_MS), s.draw(&q::WAKE_PREEMPT)));
    line(format!("migrate_us = {}\ndecompress_us = {}", s.draw(&q::MIGRATE_US), s.draw(&q::DECOMPRESS_US)));
    line(format!("reclaim_us = {}\nreclaim_burst_us = {}", s.draw(&q::RECLAIM_US), s.draw(&q::RECLAIM_BURST_US)));
    line(format!("disk_us = {disk_us}\ndisk_iops = {disk_iops}\ndisk_scale = {disk_scale}\n\n[enforce]"));
    line(format!("cpus_ms = {}\nways_ms = {}\nmba_ms = {}", s.draw(&q::CPUS_MS), s.draw(&q::WAYS_MS), s.draw(&q::MBA_MS)));
    line("mem_gb_ms = 50.0\ncms_gb_ms = 50.0\nrate_ms = 0.0\n\n[noise]".into());
    line(format!("ipc = {}\nmisses = {}\nmbl = {}", s.draw(&q::NOISE_IPC), s.draw(&q::NOISE_MISSES), s.draw(&q::NOISE_MBL)));
    line(format!("cpu = {}\nfreq = {}", s.draw(&q::NOISE_CPU), s.draw(&q::NOISE_FREQ)));
    out
}
