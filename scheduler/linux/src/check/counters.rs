//! Hardware counters and frequency.

#![allow(unsafe_code, reason = "the CPUID instruction")]

use super::{chosen, cpu_flag, Area};
use crate::discover::online;
use crate::perf::{self, Misses, NoCounters};
use crate::procfs::Frequencies;
use crate::root::Root;
use std::collections::BTreeSet;

const FEATURES: &str = "features ipc and llc_misses_per_s (feature set full); without them models of the set no-pmu serve";

/// What the PMU says of itself.
#[derive(Clone, Debug)]
pub struct Pmu {
    /// Counting works, or why not.
    pub works: Result<(), NoCounters>,
    /// Counters that programs can choose the event of; None where the processor does not say.
    pub counters: Option<u32>,
    /// How misses of the last-level cache are counted.
    pub misses: Misses,
}

impl Pmu {
    pub fn ask() -> Self {
        Pmu { works: perf::probe(), counters: counters(), misses: Misses::of(perf::processor()) }
    }
}

/// Programmable counters of a logical CPU: CPUID leaf 0xA (Intel SDM, architectural monitoring) or the core extension of AMD's.
#[cfg(target_arch = "x86_64")]
fn counters() -> Option<u32> {
    use std::arch::x86_64::__cpuid;
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 processor has CPUID, and leaves beyond those that it names are not asked.
    let (basic, extended) = unsafe { (__cpuid(0), __cpuid(0x8000_0000)) };
    let intel = [basic.ebx, basic.edx, basic.ecx] == [0x756e_6547, 0x4965_6e69, 0x6c65_746e];
    if intel && basic.eax >= 0xa {
        #[allow(unused_unsafe)]
        // SAFETY: as above.
        let leaf = unsafe { __cpuid(0xa) };
        return (leaf.eax & 0xff > 0).then_some(leaf.eax >> 8 & 0xff);
    }
    if !intel && extended.eax >= 0x8000_0001 {
        #[allow(unused_unsafe)]
        // SAFETY: as above.
        let leaf = unsafe { __cpuid(0x8000_0001) };
        return Some(if leaf.ecx >> 23 & 1 == 1 { 6 } else { 4 });
    }
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn counters() -> Option<u32> {
    None
}

pub(super) fn look(root: &Root, pmu: &Pmu) -> Area {
    let mut a = Area::new("counters");
    let is_virtual = cpu_flag(root, "hypervisor");
    match &pmu.works {
        Ok(()) => {
            let n = pmu.counters.map_or(String::new(), |n| format!(" on {n} counters"));
            let whose = if is_virtual { ", a virtual PMU" } else { "" };
            a.have("pmu", FEATURES, format!("cycles, instructions and LLC misses can be counted{n}{whose}"));
        }
        Err(why) => a.lack(
            "pmu",
            FEATURES,
            format!("{why}: features ipc and llc_misses_per_s are null (feature set no-pmu)"),
            match why {
                NoCounters::Absent if is_virtual => {
                    "Ask the virtual machine's host for a virtual PMU (QEMU: -cpu host,pmu=on), or use a physical host"
                }
                NoCounters::Absent => "Switch them on in the firmware, and use a kernel with CONFIG_PERF_EVENTS",
                NoCounters::Refused(_) => {
                    "sysctl kernel.perf_event_paranoid=2 and CAP_PERFMON (the unit has it), or run as root; in a container allow perf_event_open (seccomp)"
                }
            },
        ),
    }
    const MISSES: &str = "feature llc_misses_per_s";
    match (&pmu.works, pmu.misses.events.len()) {
        (Err(_), _) => a.lack("llc-misses", MISSES, "nothing can be counted", "See pmu"),
        (Ok(()), 0) => a.lack("llc-misses", MISSES, pmu.misses.what, "None: the feature is null here, and models fall back on others"),
        (Ok(()), _) => a.have("llc-misses", MISSES, pmu.misses.what),
    }
    const SHARE: &str = "counting without multiplexing: three or four events a service";
    const TURNS: &str = "None is needed: where there are too few, events take turns, which is corrected for";
    match (&pmu.works, pmu.counters) {
        // What the processor says of itself also holds where a virtual machine hides it.
        (Err(_), Some(n)) => a.lack("pmu-counters", SHARE, format!("{n} by the processor's word, of which none can be used"), "See pmu"),
        (Err(_), None) => a.lack("pmu-counters", SHARE, "none can be used", "See pmu"),
        (Ok(()), Some(n)) if n as usize >= 2 + pmu.misses.events.len() => a.have("pmu-counters", SHARE, format!("{n} programmable")),
        (Ok(()), Some(n)) => a.lack("pmu-counters", SHARE, format!("{n} programmable: events take turns"), TURNS),
        (Ok(()), None) => a.lack("pmu-counters", SHARE, "the processor does not say how many there are", TURNS),
    }
    paranoid(root, pmu, &mut a);
    frequency(root, &mut a);
    a
}

fn paranoid(root: &Root, pmu: &Pmu, a: &mut Area) {
    const WHY: &str = "counting for a user without rights";
    let absent = pmu.works == Err(NoCounters::Absent);
    match root.read("/proc/sys/kernel/perf_event_paranoid").and_then(|t| t.parse::<i32>().ok()) {
        None => a.lack("perf-paranoid", WHY, "this kernel has no perf events", "Use a kernel with CONFIG_PERF_EVENTS"),
        Some(level) if level <= 0 => a.have("perf-paranoid", WHY, format!("{level}: anybody may count a CPU")),
        Some(level) if absent => a.lack("perf-paranoid", WHY, format!("{level}, but there is nothing to count"), "See pmu first"),
        // Debian's and Ubuntu's own levels, and their default: CAP_PERFMON is not asked for.
        Some(level) if level > 2 => a.lack(
            "perf-paranoid",
            WHY,
            format!("{level}: root (CAP_SYS_ADMIN) only, CAP_PERFMON is not enough"),
            "sysctl kernel.perf_event_paranoid=2 (to stay: a file in /etc/sysctl.d), then CAP_PERFMON is, which the unit has",
        ),
        Some(level) => a.lack(
            "perf-paranoid",
            WHY,
            format!("{level}: root and CAP_PERFMON only"),
            "None is needed for root; else sysctl kernel.perf_event_paranoid=0, or AmbientCapabilities=CAP_PERFMON in the unit",
        ),
    }
}

fn frequency(root: &Root, a: &mut Area) {
    let cpus = online(root).unwrap_or_default();
    let shown = Frequencies::read(root, &cpus);
    const FREQUENCY: &str = "feature core_freq_mhz";
    match (shown.mean_mhz(&cpus), shown.measures(&cpus)) {
        (Some(mhz), true) => a.have("frequency", FREQUENCY, format!("{mhz:.0} MHz now")),
        (shown, _) => a.lack(
            "frequency",
            FREQUENCY,
            match shown {
                Some(mhz) => format!("none is measured: the feature is the nominal {mhz:.0} MHz, whatever the cores do"),
                None => "not shown: the feature is null".into(),
            },
            "Load a cpufreq driver; a virtual machine has none",
        ),
    }
    const STEADY: &str = "latency that does not depend on how busy a core was just now";
    let cpus = online(root).unwrap_or_default();
    let governors: BTreeSet<String> =
        cpus.iter().filter_map(|c| root.read(format!("/sys/devices/system/cpu/cpu{c}/cpufreq/scaling_governor"))).collect();
    let names: Vec<&str> = governors.iter().map(|g| chosen(g)).collect();
    match names.as_slice() {
        [] => a.lack(
            "governor",
            STEADY,
            "no cpufreq: the firmware or the virtual machine's host decides",
            "Choose performance there: in the firmware's power settings, or on the virtual machine's host",
        ),
        ["performance"] => a.have("governor", STEADY, "performance"),
        other => a.lack("governor", STEADY, other.join(", "), "cpupower frequency-set -g performance"),
    }
}
