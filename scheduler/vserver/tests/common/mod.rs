//! Reading the golden vectors; arbitrary profiles.
#![allow(dead_code)]

pub mod fuzz;

use serde_json::Value;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use surefoot_server::CpuSet;
use surefoot_vserver::{PlatformProfile, Profiles, Tenant, MAX_DOMAINS};

pub fn here(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub fn profiles() -> &'static Profiles {
    static ALL: OnceLock<Profiles> = OnceLock::new();
    ALL.get_or_init(|| Profiles::load(&[here("profiles")]).unwrap())
}

/// A shipped platform, or one of tests/platforms.
pub fn platform(name: &str) -> Arc<PlatformProfile> {
    if name == "four-domains" {
        return Arc::new(PlatformProfile::read(&here("tests/platforms/four-domains.toml")).unwrap());
    }
    profiles().platform(name).unwrap().clone()
}

pub fn vectors(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(here("tests/vectors").join(file)).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

pub fn cpus(v: &Value) -> CpuSet {
    v.as_array().unwrap().iter().map(|c| c.as_u64().unwrap() as u32).collect()
}

pub fn ways(v: &Value) -> [u32; MAX_DOMAINS] {
    let mut out = [0; MAX_DOMAINS];
    for (o, w) in out.iter_mut().zip(v.as_array().unwrap()) {
        *o = w.as_u64().unwrap() as u32;
    }
    out
}

pub fn tenant(d: &Value) -> Tenant {
    Tenant {
        profile: profiles().service(d["profile"].as_str().unwrap()).unwrap().clone(),
        rate_rps: d["rps"].as_f64().unwrap_or(0.0),
        threads: d["threads"].as_u64().unwrap() as u32,
        cpus: cpus(&d["cpus"]),
        ways: ways(&d["ways"]),
        mba: d["mba_pct"].as_f64().unwrap_or(100.0) / 100.0,
        mem_gb: d["mem_gb"].as_f64(),
        cms_gb: d["cms_gb"].as_f64().unwrap_or(0.0),
    }
}

/// Relative difference beyond `tolerance`, with 1e-9 absolute always allowed.
pub fn off(got: f64, want: f64, tolerance: f64) -> bool {
    // The vectors carry 12 digits. A NaN is off.
    let close = (got - want).abs() <= 1e-9 + tolerance * want.abs();
    !close
}
