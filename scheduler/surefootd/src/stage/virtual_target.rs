//! Virtual servers as targets: where profiles are found, and one case of a sweep on them.

use crate::base::error::{nearest, Error, Result};
use crate::base::files::Sources;
use crate::stage::target::{LcService, Target};
use crate::sweep::campaign::sha256_hex;
use crate::sweep::expand::{Case, Neighbour};
use crate::sweep::rows::{Row, State};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use surefoot_server::window::MIN_COUNT_P99_INTERVAL;
use surefoot_server::{Platform, Sending, Verdict};
use surefoot_vserver::{
    place, platform_of, rps_at_full_load, sample_series, stack_ways, PlatformProfile, Profiles, Sample, Series, Steady, Tenant, HORIZON_S,
};

/// Completions below this share of the offered load are overload.
const LEAST_COMPLETED: f64 = 0.99;

/// Where profiles come from; later folders override earlier ones by name.
///
/// The shipped ones (under the current folder, above the executable, or installed), those named in SUREFOOT_PROFILES,
/// those beside the platform file, those given by --profiles.
pub fn profile_folders(platform_file: Option<&Path>, given: Option<&Path>) -> Vec<PathBuf> {
    let holds = |d: &Path| ["platforms", "services", "batch"].iter().any(|part| d.join(part).is_dir());
    let shipped = Path::new("scheduler/vserver/profiles");
    let above = std::env::current_exe().ok().into_iter().flat_map(|exe| exe.ancestors().map(|a| a.join(shipped)).collect::<Vec<_>>());
    let bases = std::iter::once(shipped.to_path_buf()).chain(above).chain([PathBuf::from("/usr/share/surefoot/profiles")]);
    let mut folders: Vec<PathBuf> = bases.into_iter().find(|d| holds(d)).into_iter().collect();
    if let Some(list) = std::env::var_os("SUREFOOT_PROFILES") {
        folders.extend(std::env::split_paths(&list).filter(|d| !d.as_os_str().is_empty()));
    }
    let beside = platform_file.and_then(Path::parent).map(|d| d.join(".."));
    folders.extend(beside.filter(|d| d.join("services").is_dir() || d.join("batch").is_dir()));
    folders.extend(given.map(Path::to_path_buf));
    folders
}

/// A platform and all profiles at hand.
#[derive(Clone, Debug)]
pub struct VirtualTarget {
    pub profiles: Profiles,
    pub profile: Arc<PlatformProfile>,
    pub platform: Platform,
    /// Files and folders that it was made of.
    pub read: Sources,
}

impl VirtualTarget {
    /// `name` is a platform file, or the name of a platform in the profile folders.
    ///
    /// # Errors
    /// [`Error::BadInput`] names file or name, and remedy.
    pub fn open(name: &str, given: Option<&Path>) -> Result<Self> {
        Self::given_by(&format!("--server virtual:{name}"), name, given)
    }

    /// As [`VirtualTarget::open`], for a command that takes the name with --platform.
    ///
    /// # Errors
    /// [`Error::BadInput`] names file or name, and remedy.
    pub fn of_platform(name: &str, given: Option<&Path>) -> Result<Self> {
        Self::given_by(&format!("--platform {name}"), name, given)
    }

    fn given_by(option: &str, name: &str, given: Option<&Path>) -> Result<Self> {
        let file = Path::new(name);
        let is_file = file.is_file();
        let looks_like_file = name.ends_with(".toml") || name.contains('/');
        if looks_like_file && !is_file {
            return Err(Error::BadInput(format!("{option}: no such platform file. Give a path, or the bare name of a shipped platform")));
        }
        if let Some(dir) = given.filter(|d| !d.is_dir()) {
            return Err(Error::BadInput(format!(
                "--profiles {}: no such folder. Give one with platforms/, services/, batch/ or bursts.toml",
                dir.display()
            )));
        }
        let folders = profile_folders(is_file.then_some(file), given);
        let mut profiles = Profiles::load(&folders).map_err(bad)?;
        let profile = if is_file {
            let p = Arc::new(PlatformProfile::read(file).map_err(bad)?);
            profiles.platforms.insert(p.name.clone(), p.clone());
            p
        } else {
            let known = profiles.platforms.keys().map(String::as_str);
            profiles.platforms.get(name).cloned().ok_or_else(|| unknown_platform(option, name, known))?
        };
        if !profiles.services.values().any(|s| s.lc().is_some()) {
            return Err(Error::BadInput(
                "no service profile was found. Point --profiles or SUREFOOT_PROFILES at a folder with services/".into(),
            ));
        }
        let parts = |d: &PathBuf| ["platforms", "services", "batch", "bursts.toml"].map(|part| d.join(part));
        let read = Sources::default().and("platform", is_file.then_some(file));
        let read = folders.iter().flat_map(parts).fold(read, |read, part| read.and("profiles", Some(&part)));
        Ok(VirtualTarget { platform: platform_of(&profile), profiles, profile, read })
    }

    /// The target of a campaign; only the profiles of `wanted` services need a max load (None = all).
    pub fn target(&self) -> Target {
        let mut services = BTreeMap::new();
        let mut jobs = vec![];
        let mut sources = BTreeMap::new();
        let hash = |text: String| sha256_hex(text.as_bytes());
        sources.insert(format!("platform {}", self.profile.name), hash(format!("{:?}", self.profile)));
        for (name, s) in &self.profiles.services {
            let Some(lc) = s.lc() else {
                jobs.push(name.clone());
                continue;
            };
            sources.insert(name.clone(), hash(format!("{s:?}")));
            let max_load_rps = rps_at_full_load(&self.profile, s);
            services.insert(name.clone(), LcService { qos_target_ms: lc.qos_target_ms, max_load_rps, rps_levels: lc.rps_levels.clone() });
        }
        Target { is_virtual: true, platform: self.platform.clone(), services, jobs, feature_set: "full".into(), sources }
    }
}

/// What to say of a platform that no profile folder has.
pub fn unknown_platform<'a>(option: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let known: Vec<&str> = known.collect();
    let hint = match known.is_empty() {
        // Not the name is wrong then, but where this runs.
        true => "No profiles are installed here, nor in scheduler/vserver/profiles below this folder.".into(),
        // Near names differ in a digit: all are listed.
        false => {
            let near = nearest(name, known.iter().copied()).map_or(String::new(), |n| format!("Did you mean \"{n}\"? "));
            format!("{near}Known: {}.", known.join(", "))
        }
    };
    Error::BadInput(format!("{option}: unknown platform. {hint} Give a platform file, or --profiles"))
}

/// A profile error is bad input, on one line.
pub fn bad(e: surefoot_vserver::ProfileError) -> Error {
    Error::BadInput(e.to_string())
}

/// Cases of a sweep on a virtual server. One per thread: it holds the solver's buffers.
pub struct VirtualBench<'a> {
    target: &'a VirtualTarget,
    steady: Steady,
    warmup_ms: u64,
    interval_ms: u64,
    samples: u32,
    readings: Vec<Sample>,
    tenants: Vec<Tenant>,
}

impl<'a> VirtualBench<'a> {
    pub fn new(target: &'a VirtualTarget, sampling: &crate::sweep::campaign::Sampling) -> Self {
        VirtualBench {
            target,
            steady: Steady::new(target.profile.clone()),
            warmup_ms: sampling.warmup_ms,
            interval_ms: sampling.interval_ms,
            samples: sampling.samples,
            readings: vec![],
            tenants: vec![],
        }
    }

    /// Steady state of the measured service in a feasible case, and whether it is overloaded.
    ///
    /// # Errors
    /// Why the case cannot be set up.
    pub fn steady(&mut self, case: &Case) -> std::result::Result<(Sample, bool), String> {
        let p = &self.target.profile;
        let held = |own: u32, of: fn(&Neighbour) -> u32| std::iter::once(own).chain(case.neighbours.iter().map(of)).collect::<Vec<_>>();
        let cpus = place(p, &held(case.cores as u32, |n| n.cores as u32));
        let masks = stack_ways(p, &held(case.ways, |n| n.ways));
        self.tenants.clear();
        for (i, (cpus, mask)) in cpus.into_iter().zip(masks).enumerate() {
            let (name, rps, threads) = match i.checked_sub(1).map(|j| &case.neighbours[j]) {
                None => (&case.service, case.rps, case.threads),
                Some(n) => (&n.service, n.rps, n.threads()),
            };
            let Some(profile) = self.target.profiles.services.get(name) else {
                return Err(format!("no profile of {name}"));
            };
            let mut t = Tenant::new(profile.clone(), rps, threads, cpus, mask);
            if i == 0 {
                t.mba = f64::from(case.mba_pct) / 100.0;
            }
            self.tenants.push(t);
        }
        surefoot_vserver::check_tenants(p, &self.tenants).map_err(|e| e.to_string())?;
        let steady = self.steady.case_for(&self.tenants, HORIZON_S, 1)[0];
        let overloaded = steady.achieved_rps < LEAST_COMPLETED * case.rps || steady.lost_frac > 1.0 - LEAST_COMPLETED;
        Ok((steady, overloaded))
    }

    /// Steady state of a feasible case, then readings with measurement noise from the case's seed, appended to `rows`.
    pub fn measure(&mut self, case: &Case, rows: &mut Vec<Row>) -> (State, Option<String>) {
        let (steady, overloaded) = match self.steady(case) {
            Ok(s) => s,
            Err(why) => return (State::Failed, Some(why)),
        };
        let p = &self.target.profile;
        let series = Series { samples: self.samples, interval_s: self.interval_ms as f64 * 1e-3, seed: case.seed };
        self.readings.clear();
        sample_series(p, &steady, &case.service, &series, &mut self.readings);
        let row = |(j, s): (usize, &Sample)| {
            let count = s.count.round().max(0.0) as i64;
            Row {
                t_ms: (self.warmup_ms + (j as u64 + 1) * self.interval_ms) as i64,
                features: surefoot_vserver::server::features(s).values(),
                mean_ms: s.latency.map(|l| l.mean),
                p50_ms: s.latency.map(|l| l.p50),
                p95_ms: s.latency.map(|l| l.p95),
                p99_ms: s.latency.map(|l| l.p99),
                p99_low_ms: None,
                p99_high_ms: None,
                achieved_rps: Some(s.achieved_rps),
                errors: (s.lost_frac * case.rps * self.interval_ms as f64 * 1e-3).round() as i64,
                count,
                verdict: if overloaded {
                    Verdict::ServerOverloaded
                } else if count < MIN_COUNT_P99_INTERVAL as i64 {
                    Verdict::NotResolvable
                } else {
                    Verdict::Valid
                },
                sending: Sending::OPEN,
            }
        };
        rows.extend(self.readings.iter().enumerate().map(row));
        if overloaded {
            let done = steady.achieved_rps * (1.0 - steady.lost_frac);
            let why = format!("the service completes less than 99 % of the offered load ({done:.1} of {} RPS)", case.rps);
            return (State::Overloaded, Some(why));
        }
        (State::Measured, None)
    }
}
