//! A platform file of this host (docs/virtual-server.md, "Add a SKU"): what the kernel shows, what is an estimate, and what is left blank.
//!
//! What must hold: a blank is a comment, so that the file is refused, with the field's name, until it is filled in; no number is made up
//! for what only the host could tell. Estimates are those of the shipped servers, and say so.

use crate::discover::{discover_with, l3};
use crate::procfs;
use crate::resctrl::Resctrl;
use crate::root::Root;
use serde::Serialize;
use std::fmt::Write as _;
use surefoot_server::{CpuSet, ServerError};

const CPU: &str = "/sys/devices/system/cpu";

/// What a file lacks: a field, why, and how to find its value out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blank {
    pub field: String,
    pub why: String,
    pub remedy: String,
}

/// A platform file of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlatformFile {
    pub text: String,
    /// Fields that this host told.
    pub found: Vec<String>,
    /// Fields whose values are those of the shipped servers.
    pub estimated: Vec<String>,
    pub blank: Vec<Blank>,
}

/// Lines of the file, by section.
struct Lines {
    file: PlatformFile,
    section: &'static str,
}

impl Lines {
    fn section(&mut self, name: &'static str) {
        self.section = name;
        let _ = writeln!(self.file.text, "\n[{name}]");
    }

    fn field(&self, key: &str) -> String {
        format!("{}.{key}", self.section)
    }

    fn found(&mut self, key: &str, value: impl std::fmt::Display, from: &str) {
        let _ = writeln!(self.file.text, "{key} = {value}   # {from}");
        self.file.found.push(self.field(key));
    }

    fn estimate(&mut self, key: &str, value: &str, how: &str) {
        let behind = if how.is_empty() { String::new() } else { format!("; {how}") };
        let _ = writeln!(self.file.text, "{key} = {value}   # estimate{behind}");
        self.file.estimated.push(self.field(key));
    }

    fn blank(&mut self, key: &str, why: &str, remedy: &str) {
        let _ = writeln!(self.file.text, "# {key} =   # FILL IN: {why}. {remedy}");
        let field = self.field(key);
        self.file.blank.push(Blank { field, why: why.into(), remedy: remedy.into() });
    }

    /// What was found, else a blank.
    fn either(&mut self, key: &str, value: Option<String>, from: &str, why: &str, remedy: &str) {
        match value {
            Some(v) => self.found(key, v, from),
            None => self.blank(key, why, remedy),
        }
    }
}

/// With three digits at most, and a point.
fn number(x: f64) -> String {
    let rounded = (x * 1000.0).round() / 1000.0;
    format!("{rounded:?}")
}

fn quoted(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
    format!("\"{}\"", plain.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A name that files of platforms may have, after that of the file.
fn named(stem: &str) -> String {
    let name: String = stem.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    if name.is_empty() {
        "host".into()
    } else {
        name
    }
}

/// The processor's name, and its frequency where the name has one ("... @ 2.30GHz").
fn processor(root: &Root) -> (Option<String>, Option<f64>) {
    let info = root.read("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':')).map(|(_, v)| v.trim().to_string());
    let ghz = name.as_deref().and_then(|n| n.rsplit_once('@')?.1.trim().strip_suffix("GHz")?.trim().parse().ok());
    (name, ghz)
}

/// Size of a CPU's L2, MB.
fn l2_mb(root: &Root, cpu: u32) -> Option<f64> {
    (0..8).find_map(|i| {
        let read = |name: &str| root.read(format!("{CPU}/cpu{cpu}/cache/index{i}/{name}"));
        (read("level")? == "2").then_some(())?;
        Some(read("size")?.trim_end_matches('K').parse::<f64>().ok()? / 1024.0)
    })
}

/// The file for this host. `peak_mbps` is the machine's memory bandwidth, where the configuration says it.
///
/// # Errors
/// As [`discover_with`].
pub fn platform_file(
    root: &Root,
    name: &str,
    managed: Option<CpuSet>,
    resctrl: Option<&Resctrl>,
    peak_mbps: Option<f64>,
) -> Result<PlatformFile, ServerError> {
    let p = discover_with(root, managed, resctrl)?.platform;
    let first = p.managed.iter().next().unwrap_or(0);
    let (processor, named_ghz) = processor(root);
    let title = processor.unwrap_or_else(|| "unknown processor".into());
    let name = named(name);
    let mut l = Lines { file: PlatformFile { text: String::new(), found: vec![], estimated: vec![], blank: vec![] }, section: "" };
    let _ = writeln!(
        l.file.text,
        "# Made by `surefootd check --write-platform`. Lines with FILL IN are what this host does not tell: the file is refused until they have\n\
         # values. Estimates are those of the shipped servers. How to measure each: docs/virtual-server.md, \"Add a SKU\".\n\
         kind = \"platform\"\nname = {}\ntitle = {}",
        quoted(&name),
        quoted(&title)
    );

    l.section("cpu");
    l.found("physical_cores", p.physical_cores, "on line, of all sockets (sysfs: topology)");
    let smt = (p.smt <= 2).then(|| p.smt.to_string());
    l.either(
        "smt",
        smt,
        "threads a core (sysfs: topology)",
        "cores have more than 2 threads",
        "A virtual server has 1 or 2: switch SMT down",
    );
    let khz = |file: &str| root.read(format!("{CPU}/cpu{first}/cpufreq/{file}")).and_then(|t| t.parse::<f64>().ok());
    let base = khz("base_frequency").map(|k| k / 1e6).or(named_ghz);
    let sheet = "See the processor's data sheet";
    l.either("base_ghz", base.map(number), "cpufreq, or the processor's name", "no cpufreq, and none in the processor's name", sheet);
    match (p.max_freq_mhz.map(|m| m / 1000.0), base) {
        (Some(max), Some(base)) if max >= base => {
            let n = p.physical_cores;
            let at = |i: u32| number(max - (max - base) * f64::from(i) / f64::from((n - 1).max(1)));
            let bins = (0..n).map(at).collect::<Vec<_>>().join(", ");
            let how = "one core: cpuinfo_max_freq, all: base_ghz, between: a straight line. Measure with turbostat under load";
            l.estimate("turbo_ghz", &format!("[{bins}]"), how);
        }
        _ => {
            let how = "Give the frequency with 1, 2, ... all cores active: turbostat under load";
            l.blank("turbo_ghz", "no cpufreq, or no base frequency", how);
        }
    }
    l.estimate("idle_awake", "0.03", "");
    l.estimate("smt_slowdown", "1.5", "a compute-bound job on one sibling and on both");
    l.estimate("cpi_scale", "1.0", "CPI of a compute-bound job over that on a Broadwell");
    l.either("l2_mb", l2_mb(root, first).map(number), "sysfs: cache", "sysfs shows no L2", sheet);

    l.section("llc");
    let domains = Some(p.l3_domains()).filter(|d| p.physical_cores % d == 0);
    let unlike = "the L3 domains have not the same number of cores";
    l.either(
        "domains",
        domains.map(|d| d.to_string()),
        "L3 domains (sysfs, resctrl)",
        unlike,
        "Describe one of them, with its cores alone",
    );
    // Of the hardware: what others hold today is no property of the machine.
    let bits = resctrl.and_then(Resctrl::cbm_bits);
    let no_ways = match resctrl {
        None => "resctrl is not mounted, or this host has no RDT",
        Some(_) => "resctrl hands out no ways here",
    };
    let mount = "Mount it (surefootd check says how) and write the file anew, or take the number of ways from the data sheet";
    l.either("ways", bits.map(|b| b.to_string()), "resctrl: info/L3/cbm_mask", no_ways, mount);
    let l3_bytes = l3(root, first).and_then(|c| c.bytes);
    let of_resctrl = resctrl.and_then(|r| r.domain_bytes().into_values().min());
    let per_way = bits.zip(of_resctrl.or(l3_bytes)).map(|(b, bytes)| number(bytes as f64 / f64::from(1 << 20) / f64::from(b)));
    let size = l3_bytes
        .map_or("sysfs shows no L3".into(), |b| format!("the L3 has {} MB, its ways are unknown", number(b as f64 / f64::from(1 << 20))));
    l.either("mb_per_way", per_way, "size / ways", &size, "Divide the size of one L3 by its ways");
    let least = resctrl.filter(|_| bits.is_some()).map(|r| r.min_cbm_bits().to_string());
    l.either("min_ways", least, "resctrl: info/L3/min_cbm_bits", no_ways, "1 on Intel since Haswell and on AMD; 2 on some older");
    l.estimate("hit_ns", "20.0", "L3 load-to-use latency");

    l.section("mem");
    let peak = peak_mbps.map(|m| number(m / 1000.0));
    let channels = "Channels x 8 bytes x MT/s / 1000 (dmidecode -t memory), or mem_bw_mbps in node.toml and --config";
    l.either("bw_gbs", peak, "mem_bw_mbps of the configuration", "no file of the kernel tells it", channels);
    l.estimate("usable", "0.86", "STREAM over bw_gbs");
    l.estimate("idle_ns", "92.0", "pointer chase on an idle socket");
    l.estimate("queue_ns", "22.0", "fit of the loaded-latency curve");
    l.estimate("core_bw_gbs", "13.0", "STREAM on one core");
    match resctrl.map(|r| (r.mba_steps(), r.info().mba.is_some())) {
        Some((Some(m), _)) => {
            l.found("mba", true, "resctrl: info/MB");
            l.found("mba_min_pct", m.min_pct, "per cent; resctrl: info/MB");
            l.found("mba_step_pct", m.step_pct, "per cent; resctrl: info/MB");
        }
        Some((None, true)) => {
            let peak = "Give mem_bw_mbps in node.toml, and --config: then the steps are known";
            l.blank("mba", "its unit is absolute, and the peak of the memory bandwidth is unknown", peak);
            l.blank("mba_min_pct", "the same", peak);
            l.blank("mba_step_pct", "the same", peak);
        }
        Some((None, false)) => {
            l.found("mba", false, "resctrl has no info/MB");
            l.estimate("mba_min_pct", "10", "without effect");
            l.estimate("mba_step_pct", "10", "without effect");
        }
        None => {
            l.blank("mba", "resctrl is not mounted, or this host has no RDT", "true where /proc/cpuinfo has the flag mba, else false");
            l.estimate("mba_min_pct", "10", "info/MB/min_bandwidth");
            l.estimate("mba_step_pct", "10", "info/MB/bandwidth_gran");
        }
    }
    let gb = |bytes: u64| number(bytes as f64 / f64::from(1 << 30));
    let all = procfs::memory_bytes(root);
    l.either("capacity_gb", all.map(gb), "/proc/meminfo", "/proc/meminfo cannot be read", "Give the memory in GB");
    let reserved = all.zip(p.memory).map(|(all, m)| gb(all.saturating_sub(m.capacity_bytes)));
    l.either("reserved_gb", reserved, "what the node leaves to the system", "/proc/meminfo cannot be read", "4.0 on a server");

    for (section, fields) in ESTIMATES {
        l.section(section);
        for (key, value) in fields {
            l.estimate(key, value, "");
        }
    }
    Ok(l.file)
}

/// What Linux and the shipped servers have; a disk is taken for an NVMe SSD.
const ESTIMATES: [(&str, &[(&str, &str)]); 3] = [
    (
        "os",
        &[
            ("timeslice_ms", "3.0"),
            ("wake_preempt", "0.7"),
            ("migrate_us", "80.0"),
            ("decompress_us", "5.6"),
            ("reclaim_us", "3.5"),
            ("reclaim_burst_us", "177.0"),
            ("disk_us", "110.0"),
            ("disk_iops", "90000"),
            ("disk_scale", "1.0"),
        ],
    ),
    (
        "enforce",
        &[("cpus_ms", "8.0"), ("ways_ms", "1.0"), ("mba_ms", "2.0"), ("mem_gb_ms", "50.0"), ("cms_gb_ms", "50.0"), ("rate_ms", "0.0")],
    ),
    ("noise", &[("ipc", "0.015"), ("misses", "0.03"), ("mbl", "0.02"), ("cpu", "0.01"), ("freq", "0.005")]),
];
