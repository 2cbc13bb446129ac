//! What an evaluation runs, as JSON: equal for the same command on the same files with the same program.

use super::lines::differs;
use super::scene::{Place, Scene};
use crate::base::cli;
use crate::base::digest::sha256_hex;
use crate::base::error::{Error, Result};
use crate::base::utc;
use clap::ValueEnum;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::path::Path;
use surefoot_io::input::{self, PROGRAM_BYTES, SUMMARY_BYTES};
use surefoot_linux::own::plain_file;
use surefoot_policy::Settings;
use surefoot_vserver::world::{self, World};

/// What was run, beside its rows.
pub const FILE: &str = "eval.json";
const FINISHED: &str = "finished_utc";

/// A value of the command line by its name there.
pub fn name<T: ValueEnum>(x: T) -> Option<String> {
    x.to_possible_value().map(|v| v.get_name().into())
}

/// `scenes` are the workloads where they run.
pub fn of(args: &cli::Eval, places: &[Place], settings: &Settings, scenes: &[Scene]) -> Value {
    // Workload files name them alone: their numbers are another file's.
    let traces = scenes.iter().flat_map(|s| &s.workload.lc).filter_map(|l| l.shapes.day.as_ref()?.trace.as_ref());
    let traces: BTreeMap<&str, &str> = traces.map(|t| (t.name.as_str(), t.sha256.as_str())).collect();
    let one = |s: &Scene| {
        let w = &s.workload;
        json!({ "name": w.name, "sha256": s.sha256, "duration_s": w.duration_ms as f64 / 1000.0 })
    };
    let workloads: Vec<Value> = scenes.iter().map(one).collect();
    let debug = |x: &dyn std::fmt::Debug| sha256_hex(format!("{x:?}").as_bytes());
    let each = |digest: &dyn Fn(&Place) -> String| match places {
        [only] => digest(only),
        all => sha256_hex(all.iter().map(digest).collect::<String>().as_bytes()),
    };
    let bundles: Vec<&str> = places.iter().filter_map(|p| Some(p.bundle.as_ref()?.digest.as_str())).collect();
    let bundle = match bundles[..] {
        [] => None,
        _ if args.bundles.is_none() => Some(bundles[0].to_string()),
        _ => Some(sha256_hex(bundles.concat().as_bytes())),
    };
    let worlds: Vec<&World> = places.iter().filter_map(|p| p.world.as_ref()).collect();
    let mut what = json!({
        "format": 1,
        "surefootd": env!("CARGO_PKG_VERSION"),
        "plant": surefoot_vserver::EDITION,
        // A version has many builds, and half of one beside half of another would be no evaluation of either.
        "program_sha256": input::bytes(Path::new("/proc/self/exe"), PROGRAM_BYTES).ok().map(|b| sha256_hex(&b)),
        "platform": places.first().filter(|_| worlds.is_empty()).map(|p| &p.at.platform.name),
        "platform_sha256": each(&|p| debug(&p.at.profile)),
        "profiles_sha256": each(&|p| debug(&(&p.at.profiles.services, &p.at.profiles.bursts))),
        "workloads": workloads,
        "policies": args.policies,
        "seeds": args.seeds,
        "timelines": name(args.timelines),
        "harm": args.harm.and_then(name),
        "bundle": bundle,
    });
    if !traces.is_empty() {
        what["traces"] = json!(traces);
    }
    if args.exact {
        what["exact"] = true.into();
    }
    if args.experience.is_some() {
        what["experience"] = true.into();
    }
    if let Some(first) = worlds.first() {
        let numbers: Vec<u32> = worlds.iter().map(|w| w.id.number).collect();
        what["worlds"] = json!({ "edition": world::EDITION, "range": first.id.range.as_str(), "numbers": numbers });
    }
    // Only where something is set: what is not set is what this version has, and older results stay comparable.
    let set = settings.changed();
    if !set.is_empty() {
        what["settings"] = json!(set);
    }
    what
}

/// That a folder holds no results, so that none is replaced without a word.
///
/// # Errors
/// [`Error::BadInput`] names the first that is there, and what it is of, where that can be known.
pub fn nothing_to_replace(out: &Path, what: &Value, results: &[&str]) -> Result<()> {
    let Some(there) = results.iter().map(|name| out.join(name)).find(|path| path.symlink_metadata().is_ok()) else { return Ok(()) };
    let of = match to_be_replaced(out, what) {
        Some(other) => format!("--out {other}"),
        None => format!("--out {}: is there already", there.display()),
    };
    Err(Error::BadInput(format!("{of}. Give --overwrite to replace that, or another --out")))
}

/// What is to be said of a finished evaluation of something else than `what` in a folder.
pub fn to_be_replaced(out: &Path, what: &Value) -> Option<String> {
    let path = out.join(FILE);
    let bytes = input::all(plain_file(&path).ok()?, SUMMARY_BYTES).ok()?;
    let mut held: Value = surefoot_io::json::from_slice(&bytes).ok()?;
    held.as_object_mut()?.remove(FINISHED);
    let other = differs(&held, what)?;
    let names = |v: &Value| v.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
    let harm = held["harm"].as_str().map_or(String::new(), |h| format!("; --harm {h}"));
    let exact = if held["exact"] == true { "; --exact" } else { "" };
    let seeds = held["seeds"].as_u64().unwrap_or(0);
    let seeds = format!("{seeds} seed{}", if seeds == 1 { "" } else { "s" });
    Some(format!(
        "{}: there are results of another eval (policies {}; {seeds}{harm}{exact}; other: {other})",
        path.display(),
        names(&held["policies"])
    ))
}

/// The same of an evaluation that is done.
pub fn finished(mut what: Value, at_ms: u64) -> Value {
    what[FINISHED] = utc::text(at_ms).into();
    what
}
