//! What a platform and an observation must be for policies to work on them: adapters make them so, a file that was changed may not.
//!
//! Policies index by CPU, by L3 domain and by way, and divide by steps; they do not ask again.

use crate::allocation::{full_mask, Allocation};
use crate::cpuset::CpuSet;
use crate::memory::{Memory, MemoryView};
use crate::observation::{Kind, Observation, ServiceView};
use crate::platform::Platform;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Services and jobs that policies are asked about at once.
pub const MOST_SERVICES: usize = 1024;
/// Least share of a core that is handed out.
const CORE_STEPS: RangeInclusive<f64> = 0.01..=1.0;

/// Field, and what is wrong with it.
pub type Unsound = (&'static str, String);

pub(crate) fn ensure(holds: bool, field: &'static str, what: impl FnOnce() -> String) -> Result<(), Unsound> {
    if holds {
        return Ok(());
    }
    Err((field, what()))
}

/// More than any server has, bytes (2^50).
const MOST_BYTES: u64 = 1 << 50;

impl MemoryView {
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        let MemoryView {
            in_use_bytes,
            pool_bytes,
            stored_bytes,
            swapped_bytes,
            working_set_bytes,
            pool_swap_ins_per_s,
            disk_swap_ins_per_s,
            refaults_per_s,
            stall_frac,
        } = self;
        for bytes in [in_use_bytes, pool_bytes, stored_bytes, swapped_bytes, working_set_bytes].into_iter().flatten() {
            ensure(*bytes <= MOST_BYTES, "services.memory", || format!("{bytes} bytes"))?;
        }
        for rate in [pool_swap_ins_per_s, disk_swap_ins_per_s, refaults_per_s].into_iter().flatten() {
            ensure(rate.is_finite() && *rate >= 0.0, "services.memory", || format!("{rate} pages a second"))?;
        }
        let share = stall_frac.unwrap_or(0.0);
        ensure((0.0..=1.0).contains(&share), "services.memory.stall_frac", || format!("is {share}"))
    }
}

impl Memory {
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        let bytes = self.capacity_bytes;
        ensure((1..=MOST_BYTES).contains(&bytes), "memory.capacity_bytes", || format!("is {bytes}, 1 to {MOST_BYTES} can be"))
    }
}

impl Platform {
    /// # Errors
    /// The first field that does not fit the others.
    pub fn check(&self) -> Result<(), Unsound> {
        let n = self.l3_domain_of_cpu.len();
        let most = CpuSet::CAPACITY;
        ensure((1..=most as usize).contains(&n), "l3_domain_of_cpu", || format!("{n} CPUs, 1 to {most} can be"))?;
        let lists = [("l3_domain_of_cpu", &self.l3_domain_of_cpu), ("core_of_cpu", &self.core_of_cpu), ("numa_of_cpu", &self.numa_of_cpu)];
        for (field, list) in lists {
            // Nodes may be unknown.
            let fits = list.len() == n || (field == "numa_of_cpu" && list.is_empty());
            ensure(fits, field, || format!("{} entries for {n} CPUs", list.len()))?;
            let beyond = list.iter().find(|x| **x >= most);
            ensure(beyond.is_none(), field, || format!("{} is beyond {}", beyond.unwrap_or(&0), most - 1))?;
        }
        let all = CpuSet::range(0, n as u32);
        ensure(!self.managed.is_empty() && self.managed.is_subset(&all), "managed", || format!("{} are no CPUs of {all}", self.managed))?;
        let count = |x: u32| (1..=most).contains(&x);
        ensure(count(self.physical_cores), "physical_cores", || format!("is {}", self.physical_cores))?;
        ensure(count(self.smt), "smt", || format!("is {}", self.smt))?;
        ensure(CORE_STEPS.contains(&self.core_step), "core_step", || format!("is {}", self.core_step))?;
        if let Some(l) = self.llc {
            ensure((1..=32).contains(&l.ways), "llc.ways", || format!("is {}, 1 to 32 can be", l.ways))?;
            ensure((1..=l.ways).contains(&l.min_ways), "llc.min_ways", || format!("is {} of {} ways", l.min_ways, l.ways))?;
            ensure(l.mb_per_way > 0.0 && l.mb_per_way <= 1e6, "llc.mb_per_way", || format!("is {}", l.mb_per_way))?;
        }
        if let Some(m) = self.mba {
            let pct = 1..=100;
            ensure(pct.contains(&m.min_pct) && pct.contains(&m.step_pct), "mba", || {
                format!("is {} % in steps of {}", m.min_pct, m.step_pct)
            })?;
        }
        let positive = |x: Option<f64>| x.is_none_or(|x| x.is_finite() && x > 0.0);
        ensure(positive(self.mem_bw_mbps), "mem_bw_mbps", || format!("is {}", self.mem_bw_mbps.unwrap_or(0.0)))?;
        ensure(positive(self.max_freq_mhz), "max_freq_mhz", || format!("is {}", self.max_freq_mhz.unwrap_or(0.0)))?;
        self.memory.map_or(Ok(()), |m| m.check())
    }
}

impl Observation {
    /// # Errors
    /// The first field that policies could not work with on this platform.
    pub fn check(&self, p: &Platform) -> Result<(), Unsound> {
        let n = self.services.len();
        ensure(n <= MOST_SERVICES, "services", || format!("{n} are too many, {MOST_SERVICES} can be"))?;
        let mut ids = BTreeSet::new();
        for s in &self.services {
            ensure(ids.insert(s.id.as_str()), "services.id", || format!("{:?} stands there twice", s.id))?;
            s.check(p)?;
        }
        Ok(())
    }
}

impl ServiceView {
    fn check(&self, p: &Platform) -> Result<(), Unsound> {
        if let Kind::Lc { qos_target_ms } = self.kind {
            let is_time = qos_target_ms.is_finite() && qos_target_ms > 0.0;
            ensure(is_time, "services.qos_target_ms", || format!("is {qos_target_ms} for {:?}", self.id))?;
        }
        self.memory.check()?;
        self.allocation.check(p)
    }
}

impl Allocation {
    /// That it speaks of the CPUs, domains and ways of a platform; not whether it may be put in force ([`crate::validate`]).
    fn check(&self, p: &Platform) -> Result<(), Unsound> {
        let all = CpuSet::range(0, p.logical_cpus());
        for (field, cpus) in [("services.allocation.cpus", self.cpus), ("services.allocation.shared_cpus", self.shared_cpus)] {
            ensure(cpus.is_subset(&all), field, || format!("{cpus} are no CPUs of {all}"))?;
        }
        let (domains, mask) = (if p.llc.is_some() { p.l3_domains() as usize } else { 0 }, full_mask(p.ways()));
        for (field, ways) in [("services.allocation.ways", &self.ways), ("services.allocation.shared_ways", &self.shared_ways)] {
            let n = ways.len();
            ensure(n == 0 || n == domains, field, || format!("{n} way masks for {domains} L3 domains"))?;
            let beyond = ways.iter().find(|m| **m & !mask != 0);
            ensure(beyond.is_none(), field, || format!("{:#x} is beyond the {} ways", beyond.unwrap_or(&0), p.ways()))?;
        }
        let most = f64::from(CpuSet::CAPACITY);
        let quota = self.quota_cores.unwrap_or(0.0);
        ensure((0.0..=most).contains(&quota), "services.allocation.quota_cores", || format!("is {quota}"))?;
        ensure(self.mba_pct <= 100, "services.allocation.mba_pct", || format!("is {}", self.mba_pct))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Features;
    use crate::observation::FeedState;
    use crate::platform::Mba;

    fn platform() -> Platform {
        Platform::regular("p", 4, 2, 11, 2.0)
    }

    /// A platform whose lists do not fit each other, or whose numbers no hardware has, is named by its field.
    #[test]
    fn unsound_platforms_are_named() {
        assert_eq!(platform().check(), Ok(()));
        type Change = fn(&mut Platform);
        let cases: [(&str, Change); 13] = [
            ("core_of_cpu", |p| p.core_of_cpu.truncate(7)),
            ("numa_of_cpu", |p| p.numa_of_cpu = vec![0]),
            ("numa_of_cpu", |p| p.numa_of_cpu = vec![1024; 8]),
            ("l3_domain_of_cpu", |p| p.l3_domain_of_cpu.clear()),
            ("l3_domain_of_cpu", |p| p.l3_domain_of_cpu[3] = u32::MAX),
            ("managed", |p| p.managed.insert(8)),
            ("managed", |p| p.managed = CpuSet::empty()),
            ("core_step", |p| p.core_step = 0.0),
            ("llc.ways", |p| p.llc.iter_mut().for_each(|l| l.ways = 33)),
            ("llc.min_ways", |p| p.llc.iter_mut().for_each(|l| l.min_ways = 0)),
            ("mba", |p| p.mba = Some(Mba { min_pct: 10, step_pct: 0 })),
            ("smt", |p| p.smt = 0),
            ("memory.capacity_bytes", |p| p.memory = Some(Memory { capacity_bytes: 0 })),
        ];
        for (field, change) in cases {
            let mut p = platform();
            change(&mut p);
            assert_eq!(p.check().unwrap_err().0, field);
        }
    }

    /// An observation speaks of the CPUs and ways that its platform has, and names each service once.
    #[test]
    fn unsound_observations_are_named() {
        let p = platform();
        let service = || ServiceView {
            id: "a".into(),
            service: "a".into(),
            kind: Kind::Lc { qos_target_ms: 5.0 },
            threads: 1,
            allocation: Allocation::everything(&p),
            placed: false,
            features: Features::default(),
            feed: FeedState::Idle,
            interval: None,
            window: None,
            instr_per_s: None,
            memory: MemoryView::default(),
        };
        let says = |services: Vec<ServiceView>| {
            Observation { t_ms: 0, services, ..Observation::default() }.check(&p).err().map(|(field, _)| field)
        };
        assert_eq!(says(vec![service()]), None);
        assert_eq!(says(vec![service(), service()]), Some("services.id"));
        let with = |a: Allocation| says(vec![ServiceView { allocation: a, ..service() }]);
        let all = Allocation::everything(&p);
        assert_eq!(with(Allocation { cpus: CpuSet::range(0, 9), ..all.clone() }), Some("services.allocation.cpus"));
        assert_eq!(with(Allocation { ways: vec![1, 1], ..all.clone() }), Some("services.allocation.ways"));
        assert_eq!(with(Allocation { shared_ways: vec![1 << 11], ..all.clone() }), Some("services.allocation.shared_ways"));
        assert_eq!(with(Allocation { quota_cores: Some(-1.0), ..all.clone() }), Some("services.allocation.quota_cores"));
        assert_eq!(with(Allocation { mba_pct: 101, ..all }), Some("services.allocation.mba_pct"));
        assert_eq!(says(vec![ServiceView { kind: Kind::Lc { qos_target_ms: 0.0 }, ..service() }]), Some("services.qos_target_ms"));
        let memory = MemoryView { stall_frac: Some(-0.1), ..MemoryView::default() };
        assert_eq!(says(vec![ServiceView { memory, ..service() }]), Some("services.memory.stall_frac"));
    }

    /// Readings that nothing can show are named.
    #[test]
    fn unsound_readings_are_named() {
        let says = |m: MemoryView| m.check().err().map(|(field, _)| field);
        let none = MemoryView::default();
        assert_eq!(says(MemoryView { in_use_bytes: Some(1 << 30), stall_frac: Some(1.0), ..none }), None);
        assert_eq!(says(MemoryView { stall_frac: Some(1.1), ..none }), Some("services.memory.stall_frac"));
        assert_eq!(says(MemoryView { refaults_per_s: Some(-1.0), ..none }), Some("services.memory"));
        assert_eq!(says(MemoryView { pool_swap_ins_per_s: Some(f64::NAN), ..none }), Some("services.memory"));
        assert_eq!(says(MemoryView { in_use_bytes: Some(u64::MAX), ..none }), Some("services.memory"));
        assert_eq!(says(MemoryView { swapped_bytes: Some(u64::MAX), ..none }), Some("services.memory"));
        assert_eq!(says(MemoryView { working_set_bytes: Some(u64::MAX), ..none }), Some("services.memory"));
    }
}
