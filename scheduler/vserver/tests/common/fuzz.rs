//! Arbitrary valid platforms, services and jobs, written as TOML and read by the reader.
//!
//! Which keys there are comes from the shipped profiles, which values a key takes from the reader's own error message: a new
//! key or range is covered without a change here.

use super::{here, profiles};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use surefoot_server::CpuSet;
use surefoot_vserver::{PlatformProfile, Profile, ProfileError, Solver, Tenant, MAX_DOMAINS};
use toml::{Table, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Platform,
    Service,
    Job,
}

pub const KINDS: [Kind; 3] = [Kind::Platform, Kind::Service, Kind::Job];

/// Read as that kind of profile; the file name is `p.toml`.
pub fn read(kind: Kind, t: &Table) -> Result<(), ProfileError> {
    let text = toml::to_string(t).unwrap();
    match kind {
        Kind::Platform => PlatformProfile::parse(Path::new("p.toml"), &text).map(drop),
        _ => Profile::parse(Path::new("p.toml"), &text).map(drop),
    }
}

/// The shipped profiles of a kind, by file name.
pub fn shipped(kind: Kind) -> &'static BTreeMap<String, Table> {
    static ALL: OnceLock<BTreeMap<Kind, BTreeMap<String, Table>>> = OnceLock::new();
    let folder = |kind| match kind {
        Kind::Platform => "platforms",
        Kind::Service => "services",
        Kind::Job => "batch",
    };
    let all = ALL.get_or_init(|| {
        let list = |kind| {
            let files = std::fs::read_dir(here("profiles").join(folder(kind))).unwrap().map(|e| e.unwrap().path());
            files.map(|f| (f.file_name().unwrap().to_string_lossy().into(), std::fs::read_to_string(f).unwrap().parse().unwrap())).collect()
        };
        KINDS.into_iter().map(|k| (k, list(k))).collect()
    });
    &all[&kind]
}

/// One profile with every key that any shipped one of its kind has.
pub fn template(kind: Kind) -> Table {
    fn add(to: &mut Table, from: &Table) {
        for (k, v) in from {
            match (to.get_mut(k), v) {
                (Some(Value::Table(old)), Value::Table(new)) => add(old, new),
                (Some(_), _) => {}
                (None, _) => drop(to.insert(k.clone(), v.clone())),
            }
        }
    }
    let mut all = Table::new();
    shipped(kind).values().for_each(|t| add(&mut all, t));
    all
}

/// Where a value stands: keys and list indices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Key(String),
    Index(usize),
}

/// As the reader's messages write it: `cache.mrc[0][2]`.
pub fn name_of(path: &[Step]) -> String {
    path.iter().fold(String::new(), |s, step| match step {
        Step::Key(k) if s.is_empty() => k.clone(),
        Step::Key(k) => format!("{s}.{k}"),
        Step::Index(i) => format!("{s}[{i}]"),
    })
}

/// Every value that is no table, lists and what is in them included.
pub fn leaves(t: &Table) -> Vec<Vec<Step>> {
    fn walk(at: &mut Vec<Step>, v: &Value, out: &mut Vec<Vec<Step>>) {
        let mut child = |step, x: &Value| {
            at.push(step);
            walk(at, x, out);
            at.pop();
        };
        match v {
            Value::Table(t) => t.iter().for_each(|(k, x)| child(Step::Key(k.clone()), x)),
            Value::Array(a) => {
                a.iter().enumerate().for_each(|(i, x)| child(Step::Index(i), x));
                out.push(at.clone());
            }
            _ => out.push(at.clone()),
        }
    }
    let mut out = vec![];
    walk(&mut vec![], &Value::Table(t.clone()), &mut out);
    out
}

pub fn at<'a>(t: &'a mut Table, path: &[Step]) -> &'a mut Value {
    let Step::Key(first) = &path[0] else { panic!("a path starts with a key") };
    path[1..].iter().fold(t.get_mut(first).unwrap(), |v, step| match step {
        Step::Key(k) => &mut v[k.as_str()],
        Step::Index(i) => &mut v[*i],
    })
}

/// What the reader says a number may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    pub lo: f64,
    pub hi: f64,
    pub whole: bool,
}

/// The end of a message: "... from 0.1 to 20."
pub fn bounds_in(message: &str) -> Option<Bounds> {
    let (head, range) = message.trim_end_matches('.').rsplit_once(" from ")?;
    let (lo, hi) = range.split_once(" to ")?;
    Some(Bounds { lo: lo.parse().ok()?, hi: hi.parse().ok()?, whole: head.ends_with("whole number") })
}

/// The bounds of each number of [`template`].
pub fn bounds(kind: Kind) -> &'static BTreeMap<Vec<Step>, Bounds> {
    static ALL: OnceLock<BTreeMap<Kind, BTreeMap<Vec<Step>, Bounds>>> = OnceLock::new();
    let of = |kind| {
        let good = template(kind);
        read(kind, &good).unwrap();
        let numbers = leaves(&good).into_iter().filter(|p| matches!(at(&mut good.clone(), p), Value::Integer(_) | Value::Float(_)));
        let ask = |path: Vec<Step>| {
            let mut bad = good.clone();
            *at(&mut bad, &path) = Value::Float(-1e300);
            let message = read(kind, &bad).unwrap_err().to_string();
            (path, bounds_in(&message).unwrap_or_else(|| panic!("{message} gives no range")))
        };
        numbers.map(ask).collect()
    };
    &ALL.get_or_init(|| KINDS.into_iter().map(|k| (k, of(k))).collect())[&kind]
}

/// How one number departs from its usual value. Shrinks to the usual value.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// Below the profile's wildness: anywhere in its range.
    luck: u8,
    how: u8,
    /// 0 to 1: where in the range; -1 to 1: usual value times 4 to this power.
    x: f64,
    y: f64,
}

fn draw() -> impl Strategy<Value = Draw> {
    // luck 255 is never wild.
    ((0..=255u8).prop_map(|x| 255 - x), 0..4u8, 0.0..1.0f64, -1.0..1.0f64).prop_map(|(luck, how, x, y)| Draw { luck, how, x, y })
}

/// 0: usual values; 3: every number anywhere.
fn wildness() -> impl Strategy<Value = u8> {
    prop_oneof![Just(0), Just(20), Just(80), Just(255)]
}

impl Draw {
    fn number(&self, wild: u8, usual: f64, b: Bounds) -> f64 {
        let near = (usual * 4f64.powf(self.y)).clamp(b.lo, b.hi);
        if self.luck >= wild {
            return near;
        }
        let (lo, hi) = (b.lo.max(b.hi.min(1.0) * 1e-9), b.hi);
        match self.how {
            0 => b.lo,
            1 => b.hi,
            // Every order of magnitude alike.
            2 => (lo.ln() + self.x * (hi.ln() - lo.ln())).exp().clamp(b.lo, b.hi),
            _ => b.lo + self.x * (b.hi - b.lo),
        }
    }

    fn value(&self, wild: u8, usual: &Value, b: Bounds) -> Value {
        let usual = usual.as_float().unwrap_or_else(|| usual.as_integer().unwrap() as f64);
        let x = self.number(wild, usual, b);
        if b.whole {
            Value::Integer(x.round() as i64)
        } else {
            Value::Float(x)
        }
    }
}

/// The template with each number drawn anew; lists keep their length.
fn redraw(kind: Kind, wild: u8, draws: &[Draw]) -> Table {
    let mut t = template(kind);
    for ((path, b), d) in bounds(kind).iter().zip(draws.iter().cycle()) {
        let v = at(&mut t, path);
        *v = d.value(wild, v, *b);
    }
    t
}

fn section<'a>(t: &'a mut Table, name: &str) -> &'a mut Table {
    t.get_mut(name).unwrap().as_table_mut().unwrap()
}

fn number(t: &mut Table, path: (&str, &str)) -> f64 {
    let v = &section(t, path.0)[path.1];
    v.as_float().unwrap_or_else(|| v.as_integer().unwrap() as f64)
}

/// 1 to 64 cores, one or two threads each, L3 domains, ways, MBA or not, every other value in its range.
pub fn platform() -> impl Strategy<Value = Arc<PlatformProfile>> {
    let shape = (prop_oneof![1..=64u32, Just(64)], 1..=2u32, 0..8usize, prop_oneof![1..=32u32, Just(32)], 0.0..1.0f64, any::<bool>());
    let numbers = (wildness(), proptest::collection::vec(draw(), 40), proptest::collection::vec(draw(), 64), 0.0..1.0f64);
    (shape, numbers).prop_map(|((cores, smt, domains, ways, min_ways, mba), (wild, draws, turbo, reserved))| {
        let mut t = redraw(Kind::Platform, wild, &draws);
        t.insert("name".into(), "fuzzed".into());
        let b = bounds(Kind::Platform)[&vec![Step::Key("cpu".into()), Step::Key("turbo_ghz".into()), Step::Index(0)]];
        let mut turbo: Vec<f64> = turbo[..cores as usize].iter().map(|d| d.number(wild, 3.0, b)).collect();
        turbo.sort_by(|a, b| b.total_cmp(a));
        let cpu = section(&mut t, "cpu");
        cpu.insert("physical_cores".into(), i64::from(cores).into());
        cpu.insert("smt".into(), i64::from(smt).into());
        cpu.insert("turbo_ghz".into(), turbo.into());
        let divisors: Vec<u32> = (1..=cores.min(MAX_DOMAINS as u32)).filter(|d| cores % d == 0).collect();
        let llc = section(&mut t, "llc");
        llc.insert("domains".into(), i64::from(divisors[domains % divisors.len()]).into());
        llc.insert("ways".into(), i64::from(ways).into());
        llc.insert("min_ways".into(), (1 + (min_ways * f64::from(ways)) as i64).min(i64::from(ways)).into());
        let capacity = number(&mut t, ("mem", "capacity_gb"));
        let mem = section(&mut t, "mem");
        mem.insert("mba".into(), mba.into());
        mem.insert("reserved_gb".into(), (reserved * capacity).into());
        let text = toml::to_string(&t).unwrap();
        Arc::new(PlatformProfile::parse(Path::new("fuzzed.toml"), &text).unwrap_or_else(|e| panic!("{e}\n{text}")))
    })
}

/// An LC service or a BE job, with 1 to 4 terms of the miss-ratio curve, paging or not, every value in its range.
pub fn profile() -> impl Strategy<Value = Arc<Profile>> {
    let kind = prop_oneof![2 => Just(Kind::Service), 1 => Just(Kind::Job)];
    let terms = proptest::collection::vec((draw(), draw(), draw()), 1..=4);
    (kind, wildness(), proptest::collection::vec(draw(), 60), terms, any::<bool>()).prop_map(|(kind, wild, draws, terms, paging)| {
        let mut t = redraw(kind, wild, &draws);
        t.insert("name".into(), "fuzzed".into());
        let b = |i| bounds(kind)[&vec![Step::Key("cache".into()), Step::Key("mrc".into()), Step::Index(0), Step::Index(i)]];
        let term = |(a, c, p): &(Draw, Draw, Draw)| {
            Value::from(vec![a.number(wild, 0.3, b(0)), c.number(wild, 8.0, b(1)), p.number(wild, 2.0, b(2))])
        };
        section(&mut t, "cache").insert("mrc".into(), terms.iter().map(term).collect::<Vec<_>>().into());
        if !paging {
            t.remove("paging");
        }
        if kind == Kind::Service {
            let mut levels: Vec<f64> = t["rps_levels"].as_array().unwrap().iter().map(|v| v.as_float().unwrap()).collect();
            levels.sort_by(f64::total_cmp);
            levels.dedup();
            t.insert("rps_levels".into(), levels.into());
        }
        let text = toml::to_string(&t).unwrap();
        Arc::new(Profile::parse(Path::new("fuzzed.toml"), &text).unwrap_or_else(|e| panic!("{e}\n{text}")))
    })
}

/// What a tenant holds, before there is a platform.
#[derive(Clone, Debug)]
pub struct Wish {
    pub profile: Arc<Profile>,
    /// Offered over what the service completes at most, alone on the whole platform.
    load: f64,
    threads: u32,
    cpus: (u32, u32),
    scattered: bool,
    ways: (u32, u32),
    turn_per_domain: u32,
    mba: f64,
    mem: Option<(f64, f64)>,
}

pub fn load() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), 0.0..1.2f64, 0.9..1.1f64, 0.0..10.0f64, Just(10.0)]
}

/// Holdings for a profile.
pub fn wish_of(profile: impl Strategy<Value = Arc<Profile>>) -> impl Strategy<Value = Wish> {
    let mem = proptest::option::weighted(0.4, (-3.0..6.0f64, prop_oneof![Just(0.0), 0.0..1.2f64]));
    let threads = prop_oneof![8 => 1..200u32, 1 => 1..100_000u32];
    let cpus = ((0..256u32, 1..130u32), any::<bool>());
    // No way at all is legal for the model (the port's rules are narrower).
    let ways = ((0..32u32, 0..=32u32), 0..3u32);
    (profile, load(), threads, cpus, ways, prop_oneof![Just(1.0), 0.01..=1.0f64], mem).prop_map(
        |(profile, load, threads, (cpus, scattered), (ways, turn_per_domain), mba, mem)| Wish {
            profile,
            load,
            threads,
            cpus,
            scattered,
            ways,
            turn_per_domain,
            mba,
            mem: mem.map(|(digits, pool)| (10f64.powf(digits), pool)),
        },
    )
}

pub fn wish() -> impl Strategy<Value = Wish> {
    wish_of(profile())
}

impl Wish {
    pub fn on(&self, p: &Arc<PlatformProfile>) -> Tenant {
        let total = p.logical_cpus();
        let n = self.cpus.1.min(total);
        let step = if self.scattered { 7 } else { 1 };
        let cpus: CpuSet = (0..n).map(|i| (self.cpus.0 + i * step) % total).collect();
        let mut t = Tenant::new(self.profile.clone(), 0.0, self.threads, cpus, 0);
        for (d, mask) in t.ways.iter_mut().enumerate().take(p.llc.domains as usize) {
            let low = (self.ways.0 + d as u32 * self.turn_per_domain) % p.llc.ways;
            let n = self.ways.1.min(p.llc.ways - low);
            *mask = (((1u64 << n) - 1) << low) as u32;
        }
        if p.mem.mba {
            t.mba = self.mba;
        }
        if let Some((gb, pool)) = self.mem {
            t.mem_gb = Some(gb);
            t.cms_gb = gb * pool;
        }
        t.rate_rps = self.load * most_rps(p, &self.profile);
        t
    }
}

/// What an LC service completes at most, alone on everything with a thread for every CPU; 0 for a job.
pub fn most_rps(p: &Arc<PlatformProfile>, profile: &Arc<Profile>) -> f64 {
    if profile.is_be() {
        return 0.0;
    }
    let full = surefoot_server::allocation::full_mask(p.llc.ways);
    let mut solver = Solver::new(p.clone());
    solver.solve(&[Tenant::new(profile.clone(), 1e9, p.logical_cpus(), p.all_cpus(), full)], None);
    solver.speeds()[0].x
}

/// A shipped service or job.
pub fn shipped_profile() -> impl Strategy<Value = Arc<Profile>> {
    (0..profiles().services.len()).prop_map(|i| profiles().services.values().nth(i).unwrap().clone())
}

/// A shipped platform.
pub fn shipped_platform() -> impl Strategy<Value = Arc<PlatformProfile>> {
    (0..profiles().platforms.len()).prop_map(|i| profiles().platforms.values().nth(i).unwrap().clone())
}
