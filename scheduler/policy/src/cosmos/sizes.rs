//! Sizes of services and jobs, as they are seen, and what limits follow from them: the source of w and gamma for `cosmos` and
//! `cosmos-per-service`.

use super::groups::{limit, pool};
use super::settings::{Ratio, Readapt, Settings, Touched};
use super::GB;
use std::collections::{BTreeMap, BTreeSet};
use surefoot_server::{Because, Change, Kind, Limit, Observation, Resource, ServiceId, ServiceView};

/// A higher ratio counts as this, as where a kernel's floor is computed: of a pool of a few pages it says nothing of all others.
const MOST_RATIO: f64 = 8.0;

/// Limits that a kernel does not take, or not in time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Withheld {
    /// Since when each has been asked for.
    since_ms: BTreeMap<(ServiceId, Resource), u64>,
    /// Not waited for any longer.
    passed: BTreeSet<(ServiceId, Resource)>,
    /// Some service or job was to have a limit on its memory, and has none after that long. One that is in force but another is no refusal: pages do not
    /// go below a floor.
    pub refused: bool,
}

impl Withheld {
    /// Services and jobs of which something that is wanted is still on its way. While a latency is unknown nothing is refused: the guard puts off what
    /// takes from a silent service.
    pub fn wait(
        &mut self,
        now_ms: u64,
        wanted: &BTreeMap<ServiceId, Change>,
        seen: &Observation,
        most_wait_ms: u64,
    ) -> BTreeSet<ServiceId> {
        let unknown = seen.lc().any(ServiceView::latency_unknown);
        if unknown {
            self.clear();
        }
        let mut waits = |s: &ServiceView| {
            let wanted = wanted.get(&s.id)?;
            Some(if unknown { wanted.alters(&s.allocation) } else { self.waits(now_ms, wanted, s, most_wait_ms) })
        };
        seen.services.iter().filter(|s| waits(s) == Some(true)).map(|s| s.id.clone()).collect()
    }

    /// Whether it is so of one. A limit is waited for so long; cores always.
    fn waits(&mut self, now_ms: u64, wanted: &Change, s: &ServiceView, most_wait_ms: u64) -> bool {
        let cpu = Change { mem_limit: None, zswap_max: None, ..wanted.clone() };
        let memory = Change { mem_limit: wanted.mem_limit, ..Change::default() };
        let pool = Change { zswap_max: wanted.zswap_max, ..Change::default() };
        let mut waits = cpu.alters(&s.allocation);
        for (resource, change) in [(Resource::Memory, memory), (Resource::Zswap, pool)] {
            let key = (s.id.clone(), resource);
            if !change.alters(&s.allocation) {
                self.since_ms.remove(&key);
                self.passed.remove(&key);
                continue;
            }
            let since_ms = *self.since_ms.entry(key.clone()).or_insert(now_ms);
            if now_ms - since_ms >= most_wait_ms.max(1) {
                self.passed.insert(key.clone());
                self.refused |= resource == Resource::Memory && s.allocation.mem_limit_bytes.is_none();
            }
            waits |= !self.passed.contains(&key);
        }
        waits
    }

    pub fn clear(&mut self) {
        *self = Withheld::default();
    }
}

/// Footprints and ratios, by which limits are computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sizes {
    /// Bytes; of a job those that it needs, where it is known what it touches.
    pub footprint: BTreeMap<ServiceId, f64>,
    pub ratio: BTreeMap<ServiceId, f64>,
    /// Until when, and up to which bytes, what a job touches is not believed.
    doubted: BTreeMap<ServiceId, (u64, f64)>,
    /// What a job touches as it was told last, and its footprint of then.
    told: BTreeMap<ServiceId, (f64, f64)>,
}

/// Seconds in which `Touched::back` may come back.
const BACK_S: f64 = 30.0;
const PAGE_BYTES: f64 = 4096.0;

impl Sizes {
    /// What is seen of sizes now. A ratio counts once the pool is worth measuring; until then it is the one before.
    pub fn measure(&mut self, seen: &Observation, set: &Settings) {
        let Ratio { start, least, trusted } = set.ratio;
        for s in &seen.services {
            let Some(w) = s.memory.footprint_bytes().map(|b| b as f64).filter(|w| *w > 0.0) else { continue };
            let needs = self.touched(seen.t_ms, s, w, &set.touched).unwrap_or(w);
            self.footprint.insert(s.id.clone(), needs);
            let worth = s.memory.pool_bytes.is_some_and(|p| p as f64 >= trusted * w);
            let measured = s.memory.compression_ratio().filter(|g| worth && g.is_finite());
            let ratio = self.ratio.entry(s.id.clone()).or_insert(start);
            *ratio = measured.unwrap_or(*ratio).clamp(least, MOST_RATIO.max(start));
        }
    }

    /// What a job of footprint `w` touches, and a margin. Pages that it does not touch go to the device, and stay there. If many come back all the same,
    /// it touches more than was seen, less often. Of an LC service every page counts: once in a pool, it takes room there as long as the service lives.
    fn touched(&mut self, now_ms: u64, s: &ServiceView, w: f64, set: &Touched) -> Option<f64> {
        let working_set = s.memory.working_set_bytes.filter(|_| s.kind == Kind::Be)? as f64;
        if s.memory.refaults_per_s.is_some_and(|pages| pages * PAGE_BYTES * BACK_S > set.back * w) {
            let (_, before) = self.doubted.get(&s.id).copied().filter(|(until_ms, _)| now_ms < *until_ms).unwrap_or_default();
            self.doubted.insert(s.id.clone(), (now_ms + set.doubt_ms, working_set.max(before)));
        }
        let is_doubted = self.doubted.get(&s.id).is_some_and(|(until_ms, of)| now_ms < *until_ms && working_set <= of * (1.0 + set.margin));
        let told = self.told.entry(s.id.clone()).or_insert((working_set, w));
        if told.0 != working_set {
            *told = (working_set, w);
        }
        // What has come since is in use.
        let grown = (w - told.1).max(0.0);
        (!is_doubted).then(|| (working_set * (1.0 + set.margin) + grown).min(w))
    }

    /// Those of services and jobs that are gone are forgotten.
    pub fn keep(&mut self, seen: &Observation) {
        self.doubted.retain(|id, _| seen.get(id).is_some());
        self.told.retain(|id, _| seen.get(id).is_some());
        for of in [&mut self.footprint, &mut self.ratio] {
            of.retain(|id, _| seen.get(id).is_some());
        }
    }

    pub fn sum(&self, of: &[ServiceId]) -> Option<f64> {
        of.iter().map(|id| self.footprint.get(id).copied()).sum()
    }

    pub fn of(&self, ids: &[ServiceId]) -> Vec<f64> {
        ids.iter().map(|id| self.footprint.get(id).copied().unwrap_or(0.0)).collect()
    }

    /// Bytes that all pages of a service compress to (R1); None where its size is unknown.
    pub fn compressed(&self, id: &str) -> Option<f64> {
        Some(self.footprint.get(id)? / self.ratio.get(id)?)
    }

    /// Limit and pool of an LC service that has `own` bytes: the pool has room for what may be read wrong, or change, without a new search.
    pub fn limits(&self, id: &str, own: f64, set: &Settings) -> (Limit, Limit) {
        let w = self.footprint.get(id).copied().unwrap_or(0.0);
        let gamma = self.ratio.get(id).copied().unwrap_or(set.ratio.start);
        let Readapt { footprint, ratio, .. } = set.readapt;
        let (w, gamma) = (w / (1.0 - footprint).max(0.0), (gamma / (1.0 + ratio)).max(set.ratio.least));
        (limit(own), pool(largest_pool(w, own, gamma)))
    }

    /// What an action on memory rests on.
    pub fn say(&self, because: &mut Because, by: &'static str, id: &str, (limit, pool): (Limit, Limit)) {
        let gb = |bytes: Option<f64>| bytes.map_or(f64::NAN, |b| b / GB);
        let of_limit = |l: Limit| gb(l.bytes().map(|b| b as f64));
        because.say(by, "w, the footprint", gb(self.footprint.get(id).copied()), "GiB");
        because.say(by, "gamma, the compression ratio", self.ratio.get(id).copied().unwrap_or(f64::NAN), "");
        because.say(by, "M, its memory", of_limit(limit), "GiB");
        because.say(by, "the pool within it (Eq. 2)", of_limit(pool), "GiB");
    }

    /// The same of any service or job by itself.
    pub fn any_is_off(&self, kept: &Sizes, set: &Readapt) -> bool {
        self.footprint.keys().any(|id| self.are_off(kept, std::slice::from_ref(id), set))
    }

    /// Whether footprint or ratio of a side, the services or the jobs, is off what was kept: a small service beside a large one moves neither.
    pub fn are_off(&self, kept: &Sizes, side: &[ServiceId], set: &Readapt) -> bool {
        let ratio = |of: &Sizes| Some(of.sum(side)? / side.iter().map(|id| of.compressed(id)).sum::<Option<f64>>()?);
        let off = |now: Option<f64>, was: Option<f64>, share: f64| now.zip(was).is_some_and(|(now, was)| (now - was).abs() > share * was);
        // What one gains and another loses counts twice, though their sum stays.
        let moved = |id: &ServiceId| Some((self.footprint.get(id)? - kept.footprint.get(id)?).abs());
        let moved = side.iter().filter_map(moved).sum::<f64>();
        kept.sum(side).is_some_and(|was| moved > set.footprint * was) || off(ratio(self), ratio(kept), set.ratio)
    }
}

/// Pool of a service of footprint `w` under `m` bytes (Eq. 2); 0 where all of it is resident.
pub fn largest_pool(w: f64, m: f64, gamma: f64) -> f64 {
    ((w - m).max(0.0) / (gamma - 1.0)).min(m)
}

/// Resident bytes of each service and job at the last look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resident(pub BTreeMap<ServiceId, f64>);

impl Resident {
    /// Whether memory has come to rest since the last look: less than `share` of each footprint has moved.
    pub fn rests(&mut self, seen: &Observation, sizes: &Sizes, share: f64) -> bool {
        let mut rests = true;
        for s in &seen.services {
            let Some(in_use) = s.memory.in_use_bytes else { continue };
            let now = in_use as f64 - s.memory.pool_bytes.unwrap_or(0) as f64;
            let before = self.0.insert(s.id.clone(), now);
            let w = sizes.footprint.get(&s.id).copied().unwrap_or(now);
            rests &= before.is_some_and(|b| (now - b).abs() <= share * w);
        }
        rests
    }

    pub fn keep(&mut self, seen: &Observation) {
        self.0.retain(|id, _| seen.get(id).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{be, observation};
    use surefoot_server::MemoryView;

    const MIB: u64 = 1 << 20;

    /// One job, or LC service, of 1000 MiB.
    fn seen(t_ms: u64, kind: Kind, touches: Option<u64>, back_per_s: f64) -> Observation {
        let memory = MemoryView {
            in_use_bytes: Some(700 * MIB),
            swapped_bytes: Some(300 * MIB),
            working_set_bytes: touches.map(|m| m * MIB),
            refaults_per_s: Some(back_per_s),
            ..MemoryView::default()
        };
        Observation { t_ms, ..observation(vec![ServiceView { kind, memory, ..be("x") }]) }
    }

    /// A job needs what it touches and 5 %, an LC service all of it. While pages come back, and half an hour on, no such measurement counts, but for a larger
    /// one.
    #[test]
    fn a_job_needs_what_it_touches_unless_that_comes_back() {
        let (mut sizes, set) = (Sizes::default(), Settings::default());
        let mut of = |t_ms, kind, touches, back| {
            sizes.measure(&seen(t_ms, kind, touches, back), &set);
            (sizes.footprint["x"] / MIB as f64).round()
        };
        assert_eq!(of(0, Kind::Be, None, 0.0), 1000.0);
        assert_eq!(of(0, Kind::Lc { qos_target_ms: 1.0 }, Some(400), 0.0), 1000.0);
        assert_eq!(of(0, Kind::Be, Some(400), 0.0), 420.0);
        assert_eq!(of(0, Kind::Be, Some(990), 0.0), 1000.0);
        // 5 % of 1000 MiB in 30 s are 427 pages a second.
        assert_eq!(of(1000, Kind::Be, Some(400), 420.0), 420.0);
        assert_eq!(of(2000, Kind::Be, Some(400), 430.0), 1000.0);
        assert_eq!(of(3000, Kind::Be, Some(410), 0.0), 1000.0);
        assert_eq!(of(4000, Kind::Be, Some(500), 0.0), 525.0);
        assert_eq!(of(4000, Kind::Be, Some(400), 0.0), 1000.0);
        let later = 2000 + set.touched.doubt_ms;
        assert_eq!(of(later, Kind::Be, Some(400), 0.0), 420.0);
        // 200 MiB came since that was told: they are in use until it is told anew.
        let mut grown = seen(later, Kind::Be, Some(400), 0.0);
        grown.services[0].memory.in_use_bytes = Some(900 * MIB);
        sizes.measure(&grown, &set);
        assert_eq!((sizes.footprint["x"] / MIB as f64).round(), 620.0);
        grown.services[0].memory.working_set_bytes = Some(410 * MIB);
        sizes.measure(&grown, &set);
        assert_eq!((sizes.footprint["x"] / MIB as f64).round(), 431.0);
    }
}
