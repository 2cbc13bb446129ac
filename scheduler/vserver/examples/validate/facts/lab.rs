//! Profiles, and the questions that many facts ask of the steady model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use surefoot_vserver::math::mix64;
use surefoot_vserver::{place, stack_ways, PlatformProfile, Profile, ProfileError, Profiles, Sample, Steady, Tenant, HORIZON_S};

/// LC services of the papers.
pub const LC: [&str; 11] = ["img-dnn", "masstree", "memcached", "mongodb", "moses", "nginx", "specjbb", "sphinx", "xapian", "login", "ads"];
/// LC services that no policy was designed with.
pub const UNSEEN: [&str; 3] = ["mysql", "redis", "silo"];

/// One LC service alone on a platform.
#[derive(Clone, Copy, Debug)]
pub struct Alone {
    pub service: &'static str,
    pub rps: f64,
    pub cores: u32,
    pub ways: u32,
    pub threads: u32,
    pub platform: &'static str,
    pub horizon_s: f64,
}

impl Alone {
    /// All of Server 1 (36 CPUs, 20 ways), 36 threads.
    pub fn new(service: &'static str, rps: f64) -> Self {
        Alone { service, rps, cores: 36, ways: 20, threads: 36, platform: "server-1", horizon_s: HORIZON_S }
    }

    pub fn cores(self, cores: u32) -> Self {
        Alone { cores, ..self }
    }

    pub fn ways(self, ways: u32) -> Self {
        Alone { ways, ..self }
    }
}

/// Where one core less costs most.
#[derive(Clone, Copy, Debug)]
pub struct Cliff {
    pub cores: u32,
    /// p99 with one core less over p99.
    pub slowdown: f64,
}

/// Profiles and a solver for each platform.
pub struct Lab {
    pub profiles: Profiles,
    /// Of everything that is simulated at random.
    pub seed: u64,
    steady: BTreeMap<String, Steady>,
}

impl Lab {
    /// The shipped profiles, and those of `extra` on top.
    ///
    /// # Errors
    /// The first bad file, by name and key.
    pub fn open(extra: Option<&Path>, seed: u64) -> Result<Self, ProfileError> {
        let shipped = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("profiles");
        let folders: Vec<PathBuf> = std::iter::once(shipped).chain(extra.map(Into::into)).collect();
        let profiles = Profiles::load(&folders)?;
        let steady = profiles.platforms.iter().map(|(name, p)| (name.clone(), Steady::new(p.clone()))).collect();
        Ok(Lab { profiles, seed, steady })
    }

    /// Seed of one of several independent runs.
    pub fn run_seed(&self, run: u64) -> u64 {
        mix64(&[self.seed, run])
    }

    /// # Panics
    /// If there is no such platform: facts are about shipped ones.
    pub fn platform(&self, name: &str) -> Arc<PlatformProfile> {
        self.profiles.platform(name).expect("a shipped platform").clone()
    }

    /// An LC service or BE job.
    ///
    /// # Panics
    /// If there is none of that name: facts are about shipped ones.
    pub fn profile(&self, name: &str) -> Arc<Profile> {
        self.profiles.service(name).expect("a shipped service or job").clone()
    }

    pub fn qos_target_ms(&self, service: &str) -> f64 {
        self.profile(service).lc().expect("an LC service").qos_target_ms
    }

    pub fn rps_levels(&self, service: &str) -> Vec<f64> {
        self.profile(service).lc().expect("an LC service").rps_levels.clone()
    }

    /// Load 1 as the profile lists it.
    pub fn max_load_rps(&self, service: &str, platform: &str) -> f64 {
        self.profile(service).lc().expect("an LC service").max_load_rps[platform]
    }

    /// A steady case of 120 s.
    pub fn case(&mut self, platform: &str, tenants: &[Tenant]) -> &[Sample] {
        self.case_of(platform, tenants, HORIZON_S)
    }

    fn case_of(&mut self, platform: &str, tenants: &[Tenant], horizon_s: f64) -> &[Sample] {
        self.steady.get_mut(platform).expect("a shipped platform").case(tenants, horizon_s)
    }

    /// A BE job on the given CPUs and ways, alone.
    pub fn job(&self, name: &str, threads: u32, cpus: surefoot_server::CpuSet, way_mask: u32) -> Tenant {
        Tenant::new(self.profile(name), 0.0, threads, cpus, way_mask)
    }

    pub fn alone(&mut self, a: &Alone) -> Sample {
        let p = self.platform(a.platform);
        let tenant = Tenant::new(self.profile(a.service), a.rps, a.threads, place(&p, &[a.cores])[0], stack_ways(&p, &[a.ways])[0]);
        self.case_of(a.platform, &[tenant], a.horizon_s)[0]
    }

    pub fn p99_ms(&mut self, a: &Alone) -> f64 {
        self.alone(a).latency.expect("an LC service has a latency").p99
    }

    /// Fewest cores that meet the QoS target, with the ways and the rest of `a`.
    pub fn cores_needed(&mut self, a: &Alone) -> Option<u32> {
        let target = self.qos_target_ms(a.service);
        let all = self.platform(a.platform).logical_cpus();
        (1..=all).find(|c| self.p99_ms(&a.cores(*c)) <= target)
    }

    /// Cores from where taking one more costs the largest factor, among allocations that (nearly) meet the target.
    pub fn cliff(&mut self, a: &Alone) -> Cliff {
        let target = self.qos_target_ms(a.service);
        let p99: Vec<f64> = (1..=36).map(|c| self.p99_ms(&a.cores(c))).collect();
        let slowdown = |i: usize| p99[i - 1] / p99[i];
        let i = first_max((1..36).filter(|i| p99[*i] < 30.0 * target), slowdown).unwrap_or(35);
        Cliff { cores: i as u32 + 1, slowdown: slowdown(i) }
    }
}

/// The first item for which `key` is largest.
pub fn first_max<T: Copy>(of: impl IntoIterator<Item = T>, key: impl Fn(T) -> f64) -> Option<T> {
    of.into_iter().fold(None, |best, x| match best {
        Some(b) if key(b) >= key(x) => best,
        _ => Some(x),
    })
}

/// `f(0)`, `f(1)`, ... in that order, on all processors.
pub fn in_parallel<T: Send>(n: u64, f: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let (f, per) = (&f, n.div_ceil(threads));
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|t| scope.spawn(move || (t * per..n.min((t + 1) * per)).map(f).collect::<Vec<T>>())).collect();
        parts.into_iter().flat_map(|p| p.join().expect("a simulation thread")).collect()
    })
}
