//! What else the host did while a case was sampled. Counters of the kernel at two instants make a [`Disturbance`], and one rule says
//! whether it is too much; both are pure.

#![allow(unsafe_code, reason = "sysconf")]

use crate::psi::{Pressure, Resource};
use crate::root::Root;
use std::collections::BTreeMap;
use surefoot_server::CpuSet;

/// Above these a case is disturbed. Shares are of the samples' time; of CPUs: of the managed ones' time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// CPU time on managed CPUs of others than the services.
    pub others_frac: f64,
    /// CPU time that the hypervisor gave to other machines.
    pub steal_frac: f64,
    /// Time for which tasks of others than the services waited for memory or for disks.
    pub stall_frac: f64,
    /// Between the slowest and the fastest sample.
    pub frequency_frac: f64,
}

/// A twentieth of a service's CPU moves a p99 near its cliff; two per cent of steal are two quota periods a second. Ticks of /proc/stat
/// are 10 ms: one more or less is 1 % of a CPU in a second, below both.
pub const LIMITS: Limits = Limits { others_frac: 0.05, steal_frac: 0.02, stall_frac: 0.1, frequency_frac: 0.1 };

/// Counters at one instant. None where the host does not count it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub at_s: f64,
    /// Of the managed CPUs: user, nice and system time. Interrupts are the services' own traffic for the most part.
    pub busy_s: Option<f64>,
    pub steal_s: Option<f64>,
    /// CPU time of all services.
    pub services_s: Option<f64>,
    /// Time for which some task of the host, or of the services, waited.
    pub host_stalled_s: BTreeMap<Resource, f64>,
    pub services_stalled_s: BTreeMap<Resource, f64>,
    /// Text of each group's schemata.
    pub resctrl: BTreeMap<String, String>,
    /// Values of the services' cgroups that were changed, and put back: by somebody else, or by the kernel, which stretches quotas.
    pub foreign_writes: u64,
}

/// What happened between two snapshots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Disturbance {
    pub others_frac: Option<f64>,
    /// As `others_frac`, of what the services left over.
    pub others_of_rest_frac: Option<f64>,
    pub steal_frac: Option<f64>,
    pub memory_stall_frac: Option<f64>,
    pub io_stall_frac: Option<f64>,
    /// Frequency of the service's CPUs: (fastest - slowest) / fastest.
    pub frequency_frac: Option<f64>,
    pub resctrl_changed: bool,
    pub foreign_writes: u64,
}

impl Disturbance {
    /// `cpus`: how many are managed; `mhz`: frequency in each sample.
    pub fn between(before: &Snapshot, after: &Snapshot, cpus: u32, mhz: impl Iterator<Item = f64> + Clone) -> Self {
        let span_s = (after.at_s - before.at_s).max(1e-3);
        let grew = |of: fn(&Snapshot) -> Option<f64>| Some((of(after)? - of(before)?).max(0.0));
        let of_cpus = |s: f64| s / (span_s * f64::from(cpus.max(1)));
        let stall = |of: Resource| {
            let grew = |s: fn(&Snapshot) -> &BTreeMap<Resource, f64>| Some(s(after).get(&of)? - s(before).get(&of)?);
            let own = grew(|s| &s.services_stalled_s).unwrap_or(0.0);
            Some(((grew(|s| &s.host_stalled_s)? - own) / span_s).clamp(0.0, 1.0))
        };
        let (slow, fast) = mhz.fold((f64::INFINITY, 0.0f64), |(low, high), f| (low.min(f), high.max(f)));
        let busy = grew(|s| s.busy_s).zip(grew(|s| s.services_s));
        let rest_s = |own: f64| (span_s * f64::from(cpus.max(1)) - own).max(1e-3);
        Disturbance {
            others_of_rest_frac: busy.map(|(all, own)| ((all - own).max(0.0) / rest_s(own)).min(1.0)),
            others_frac: busy.map(|(all, own)| of_cpus((all - own).max(0.0))),
            steal_frac: grew(|s| s.steal_s).map(of_cpus),
            memory_stall_frac: stall(Resource::Memory),
            io_stall_frac: stall(Resource::Io),
            frequency_frac: (fast > 0.0).then(|| (fast - slow) / fast),
            resctrl_changed: before.resctrl != after.resctrl,
            foreign_writes: after.foreign_writes.saturating_sub(before.foreign_writes),
        }
    }

    /// What is above its limit, in words; None for a case that can be believed.
    pub fn judge(&self, limits: &Limits) -> Option<String> {
        let pct = |v: f64| format!("{:.1} %", 100.0 * v);
        let above = |v: Option<f64>, limit: f64, what: &str| {
            let v = v.filter(|v| *v > limit)?;
            Some(format!("{what} {} (limit {})", pct(v), pct(limit)))
        };
        let all = [
            above(self.steal_frac, limits.steal_frac, "steal time of the managed CPUs"),
            above(self.others_frac, limits.others_frac, "CPU time of others on the managed CPUs"),
            above(self.memory_stall_frac, limits.stall_frac, "others waited for memory"),
            above(self.io_stall_frac, limits.stall_frac, "others waited for disks"),
            above(self.frequency_frac, limits.frequency_frac, "CPU frequency moved by"),
            self.resctrl_changed.then(|| "somebody else changed resctrl".into()),
            (self.foreign_writes > 0).then(|| {
                format!("{} values of the services' cgroups were changed by another program, or by the kernel", self.foreign_writes)
            }),
        ];
        let said: Vec<String> = all.into_iter().flatten().collect();
        (!said.is_empty()).then(|| said.join("; "))
    }
}

/// Busy (user, nice, system) and steal time of some CPUs since boot, in ticks, from the text of /proc/stat; None for another format.
pub fn ticks(stat: &str, cpus: &CpuSet) -> Option<(u64, u64)> {
    let (mut busy, mut steal, mut found) = (0, 0, 0);
    for line in stat.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(cpu) = words.next().and_then(|w| w.strip_prefix("cpu")?.parse::<u32>().ok()) else { continue };
        if !cpus.contains(cpu) {
            continue;
        }
        let v: Vec<u64> = words.map_while(|w| w.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal; guests are part of user.
        busy += v.get(..3)?.iter().sum::<u64>();
        steal += v.get(7)?;
        found += 1;
    }
    (found > 0).then_some((busy, steal))
}

/// As [`ticks`], in seconds.
pub fn cpu_s(root: &Root, cpus: &CpuSet) -> Option<(f64, f64)> {
    // SAFETY: sysconf only reads a constant.
    let hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let (busy, steal) = ticks(&root.read("/proc/stat")?, cpus)?;
    Some((busy as f64 / hz, steal as f64 / hz))
}

/// How long some task of the host has waited for each resource.
pub fn stalled_s(root: &Root) -> BTreeMap<Resource, f64> {
    let of = |r: Resource| Some((r, Pressure::of_host(root, r)?.some.total_us as f64 * 1e-6));
    Resource::ALL.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  30 3 6 0 0 0 0 9 0 0\ncpu0 10 1 2 500 9 9 9 4 8 0\ncpu1 20 2 4 500 9 9 9 5 8 0\nintr 7\nctxt 3\n";

    /// Busy and steal time of the CPUs that were asked for; interrupts, idle time and the line of all CPUs are left out.
    #[test]
    fn time_of_some_cpus() {
        assert_eq!(ticks(STAT, &CpuSet::range(1, 2)), Some((26, 5)));
        assert_eq!(ticks(STAT, &CpuSet::range(0, 2)), Some((39, 9)));
        assert_eq!((ticks(STAT, &CpuSet::range(4, 5)), ticks("cpu0 x", &CpuSet::range(0, 1))), (None, None));
    }

    fn at(at_s: f64, busy_s: f64, services_s: f64, steal_s: f64) -> Snapshot {
        Snapshot { at_s, busy_s: Some(busy_s), services_s: Some(services_s), steal_s: Some(steal_s), ..Snapshot::default() }
    }

    fn verdict(before: &Snapshot, after: &Snapshot) -> Option<String> {
        Disturbance::between(before, after, 2, [2000.0, 2000.0].into_iter()).judge(&LIMITS)
    }

    /// Two CPUs for two seconds: 0.3 s of somebody else's are 7.5 %, 0.1 s are 2.5 % and pass; 0.1 s of steal does not.
    #[test]
    fn others_and_steal_are_shares_of_the_managed_cpus() {
        let before = at(10.0, 100.0, 50.0, 1.0);
        let says = verdict(&before, &at(12.0, 102.3, 52.0, 1.0)).unwrap();
        assert!(says.contains("others on the managed CPUs 7.5 % (limit 5.0 %)"), "{says}");
        assert_eq!(verdict(&before, &at(12.0, 102.1, 52.0, 1.0)), None);
        let says = verdict(&before, &at(12.0, 102.0, 52.0, 1.1)).unwrap();
        assert!(says.contains("steal time of the managed CPUs 2.5 %"), "{says}");
        // A tick that the services' own counter is ahead is no disturbance, and what is not counted is not judged.
        assert_eq!(verdict(&before, &at(12.0, 102.0, 52.01, 1.0)), None);
        assert_eq!(verdict(&Snapshot::default(), &Snapshot { at_s: 1.0, ..Snapshot::default() }), None);
    }

    /// Of four seconds of CPU the services took two: others that took 0.3 s had 15 % of the rest, those that took 2 s all of it. Where that is
    /// this host's way, they disturb nothing.
    #[test]
    fn others_take_what_is_left() {
        let rest = |busy_s: f64| {
            let d = Disturbance::between(&at(10.0, 100.0, 50.0, 1.0), &at(12.0, 100.0 + busy_s, 52.0, 1.0), 2, std::iter::empty());
            (d.others_of_rest_frac.unwrap(), d.judge(&Limits { others_frac: LIMITS.others_frac + 0.5, ..LIMITS }))
        };
        assert!((rest(2.3).0 - 0.15).abs() < 1e-9 && (rest(4.0).0 - 1.0).abs() < 1e-9);
        assert_eq!((rest(4.0).1, rest(9.0).0), (None, 1.0));
        assert!(rest(4.5).1.unwrap().contains("others on the managed CPUs 62.5 %"));
        assert_eq!(Disturbance::between(&Snapshot::default(), &Snapshot::default(), 2, std::iter::empty()).others_of_rest_frac, None);
    }

    /// Waiting of the services themselves (a small memory limit) is theirs; that of others is a disturbance.
    #[test]
    fn stalls_of_others_count() {
        let stalled = |host: f64, own: f64| Snapshot {
            at_s: host,
            host_stalled_s: BTreeMap::from([(Resource::Memory, host)]),
            services_stalled_s: BTreeMap::from([(Resource::Memory, own)]),
            ..Snapshot::default()
        };
        let zero = Snapshot { at_s: 0.0, ..stalled(0.0, 0.0) };
        assert_eq!(verdict(&zero, &Snapshot { at_s: 2.0, ..stalled(1.0, 0.9) }), None);
        assert!(verdict(&zero, &Snapshot { at_s: 2.0, ..stalled(1.0, 0.1) }).unwrap().contains("memory 45.0 %"));
    }

    /// A clock that throttles, another writer of resctrl, and one of the cgroups are named.
    #[test]
    fn other_writers_and_the_clock() {
        let zero = Snapshot::default();
        let changed = Snapshot { resctrl: BTreeMap::from([("other".into(), "L3:0=1".into())]), foreign_writes: 2, ..zero.clone() };
        let says = Disturbance::between(&zero, &changed, 1, [3000.0, 2400.0].into_iter()).judge(&LIMITS).unwrap();
        assert!(says.contains("moved by 20.0 %") && says.contains("resctrl") && says.contains("2 values"), "{says}");
        assert_eq!(Disturbance::between(&zero, &zero, 1, std::iter::empty()).judge(&LIMITS), None);
    }
}
