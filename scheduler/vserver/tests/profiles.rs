//! Profiles: what is read, and what is refused with file and key.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::fuzz::{self, Kind, Step, KINDS};
use common::{here, platform, profiles};
use std::path::{Path, PathBuf};
use surefoot_server::CpuSet;
use surefoot_vserver::{max_load_rps, PlatformProfile, Profile, Profiles};
use toml::{Table, Value};

fn text(path: &str) -> String {
    std::fs::read_to_string(here("profiles").join(path)).unwrap()
}

/// Everything that ships is read.
#[test]
fn all_profiles_are_read() {
    let all = profiles();
    assert_eq!((all.platforms.len(), all.services.len()), (5, 25));
    assert_eq!(all.services.values().filter(|p| p.is_be()).count(), 9);
}

/// A value of another type.
fn other_type(v: &Value) -> Value {
    match v {
        Value::String(_) => Value::Integer(1),
        Value::Boolean(_) => Value::Integer(1),
        _ => Value::String("x".into()),
    }
}

fn remove(t: &mut Table, path: &[Step]) {
    let Some((Step::Key(last), head)) = path.split_last() else { panic!("{path:?} ends in a list") };
    if head.is_empty() {
        t.remove(last);
    } else {
        fuzz::at(t, head).as_table_mut().unwrap().remove(last);
    }
}

/// Refused in one line that begins with file and key, and says what to do.
fn assert_names(kind: Kind, bad: &Table, key: &str, why: &str) {
    let error = fuzz::read(kind, bad).expect_err(&format!("{key} {why}")).to_string();
    assert!(error.starts_with(&format!("p.toml: {key}: ")), "{key} {why}: {error}");
    assert!(error.ends_with('.') && !error.contains('\n') && error.matches(". ").count() >= 1, "{key} {why}: {error}");
}

/// Any value of any key of any shipped profile, of another type, out of range on either side, no number, or missing: the
/// error names file and key. The ends of the range that the error gives are themselves allowed.
#[test]
fn a_bad_value_of_any_key_is_refused_by_name() {
    let mut cases = 0;
    for kind in KINDS {
        for good in fuzz::shipped(kind).values() {
            for path in fuzz::leaves(good) {
                let key = fuzz::name_of(&path);
                let with = |v: Value| {
                    let mut t = good.clone();
                    *fuzz::at(&mut t, &path) = v;
                    t
                };
                let old = fuzz::at(&mut good.clone(), &path).clone();
                assert_names(kind, &with(other_type(&old)), &key, "of another type");
                assert_names(kind, &with(Value::Table(Table::new())), &key, "that is a section");
                cases += 2;
                if matches!(path.last(), Some(Step::Key(_))) && path[0] != Step::Key("max_load_rps".into()) {
                    let mut t = good.clone();
                    remove(&mut t, &path);
                    assert_names(kind, &t, &key, "missing");
                    cases += 1;
                }
                if let Value::Array(_) = old {
                    assert_names(kind, &with(Value::Array(vec![])), &key, "empty");
                    cases += 1;
                }
                if !matches!(old, Value::Float(_) | Value::Integer(_)) {
                    continue;
                }
                assert_names(kind, &with(Value::Boolean(true)), &key, "that is a boolean");
                for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                    assert_names(kind, &with(Value::Float(x)), &key, "that is no number");
                }
                let message = fuzz::read(kind, &with(Value::Float(-1e300))).unwrap_err().to_string();
                let b = fuzz::bounds_in(&message).unwrap_or_else(|| panic!("{message} gives no range"));
                let value = |x: f64| if b.whole { Value::Integer(x as i64) } else { Value::Float(x) };
                let (below, above) = if b.whole { (b.lo - 1.0, b.hi + 1.0) } else { (b.lo.next_down(), b.hi.next_up()) };
                assert_names(kind, &with(value(below)), &key, "just below its range");
                assert_names(kind, &with(value(above)), &key, "just above its range");
                for x in [b.lo, b.hi] {
                    // It may still not go with the other values; that is another message.
                    if let Err(e) = fuzz::read(kind, &with(value(x))) {
                        let e = e.to_string();
                        assert!(!e.starts_with(&format!("p.toml: {key}: ")) || !e.contains("out of range"), "{key} = {x}: {e}");
                    }
                }
                cases += 6;
            }
        }
    }
    assert!(cases > 5000, "only {cases} cases");
}

/// Any section of any shipped profile: missing, no section, or with an unknown key.
#[test]
fn a_bad_section_is_refused_by_name() {
    for kind in KINDS {
        for good in fuzz::shipped(kind).values() {
            let mut t = good.clone();
            t.insert("colour".into(), "red".into());
            assert_names(kind, &t, "colour", "unknown");
            for section in good.iter().filter_map(|(k, v)| v.is_table().then_some(k)) {
                let mut t = good.clone();
                t[section].as_table_mut().unwrap().insert("colour".into(), "red".into());
                assert_names(kind, &t, &format!("{section}.colour"), "unknown");
                t[section] = Value::Integer(1);
                assert_names(kind, &t, section, "that is a number");
                t.remove(section);
                match section.as_str() {
                    "paging" | "max_load_rps" => fuzz::read(kind, &t).unwrap(),
                    _ => assert_names(kind, &t, section, "missing"),
                }
            }
        }
    }
}

/// A misspelt key is answered with the keys that there are, a value out of range with the range.
#[test]
fn errors_say_what_would_be_right() {
    for (kind, from, to, remedy) in [
        (
            Kind::Service,
            "mlp = 2.0",
            "mlp = 2.0\nmpl = 1",
            "p.toml: cache.mpl: is not a known key. Did you mean \"mlp\"? Remove it or use one of: apki, ",
        ),
        (Kind::Service, "mlp = 2.0", "", "p.toml: cache.mlp: is missing. Add it: a number from 0.1 to 1000."),
        (
            Kind::Service,
            "cpi_core = 0.8",
            "cpi_core = -0.8",
            "p.toml: cpu.cpi_core: -0.8 is out of range. Give a number from 0.01 to 1000.",
        ),
        (Kind::Service, "qos_target_ms = 10.0", "qos_target_ms = 1e10", "Give a number from 1e-6 to 1e9."),
        (Kind::Service, "cpi_core = 0.8", "cpi_core = \"fast\"", "is string, not a number. Give a number"),
        (Kind::Service, "kind = \"lc\"", "kind = \"job\"", "p.toml: kind: is \"job\". Write \"lc\" or \"be\" here."),
        (Kind::Service, "[memory]", "[memroy]", "p.toml: memory: section is missing. Add [memory] with its keys."),
        (Kind::Platform, "smt = 2", "smt = 3", "p.toml: cpu.smt: 3 is out of range. Give a whole number from 1 to 2."),
        (Kind::Platform, "smt = 2", "smt = 2.0", "p.toml: cpu.smt: is float, not a whole number. Give a whole number from 1 to 2."),
        (Kind::Platform, "mba = false", "mba = 0", "p.toml: mem.mba: is integer, not true or false. Write true or false."),
    ] {
        let good = text(if kind == Kind::Platform { "platforms/server-1.toml" } else { "services/moses.toml" });
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from} is not in the profile");
        let error = match kind {
            Kind::Platform => PlatformProfile::parse(Path::new("p.toml"), &bad).unwrap_err().to_string(),
            _ => Profile::parse(Path::new("p.toml"), &bad).unwrap_err().to_string(),
        };
        assert!(error.contains(remedy), "{error}");
    }
    let error = PlatformProfile::parse(Path::new("p.toml"), "kind = \"platform\"\nname = ").unwrap_err().to_string();
    assert!(error.contains("p.toml: not valid TOML: line 2"), "{error}");
}

/// Values that are each in range but do not go together.
#[test]
fn relations_between_values_are_checked() {
    let server = fuzz::template(Kind::Platform);
    let service = fuzz::template(Kind::Service);
    let cores = server["cpu"]["physical_cores"].as_integer().unwrap();
    let ghz = |n: i64| Value::Array(vec![Value::Float(2.0); n as usize]);
    let rising = |at: usize| {
        let mut t = ghz(cores);
        t[at] = Value::Float(2.1);
        t
    };
    let whole = |x: i64| Value::Integer(x);
    // With two threads each, more CPUs than a set holds.
    let many = i64::from(CpuSet::CAPACITY / 2 + 1);
    let list = |x: &[f64]| Value::Array(x.iter().map(|x| Value::Float(*x)).collect());
    type Changes<'a> = Vec<(&'a str, Value)>;
    let cases: Vec<(Kind, &str, Changes, &str)> = vec![
        (Kind::Platform, "cpu", vec![("turbo_ghz", ghz(cores - 1))], "cpu.turbo_ghz"),
        (Kind::Platform, "cpu", vec![("turbo_ghz", ghz(cores + 1))], "cpu.turbo_ghz"),
        (Kind::Platform, "cpu", vec![("turbo_ghz", rising(1))], "cpu.turbo_ghz"),
        (Kind::Platform, "cpu", vec![("turbo_ghz", rising(cores as usize - 1))], "cpu.turbo_ghz"),
        (Kind::Platform, "cpu", vec![("physical_cores", whole(many)), ("turbo_ghz", ghz(many)), ("smt", whole(2))], "cpu.physical_cores"),
        (Kind::Platform, "llc", vec![("domains", whole(7))], "llc.domains"),
        (Kind::Platform, "llc", vec![("ways", whole(12)), ("min_ways", whole(13))], "llc.min_ways"),
        (Kind::Platform, "mem", vec![("capacity_gb", Value::Float(64.0)), ("reserved_gb", Value::Float(64.5))], "mem.reserved_gb"),
        (Kind::Service, "", vec![("rps_levels", list(&[100.0, 300.0, 200.0]))], "rps_levels"),
        (Kind::Service, "", vec![("rps_levels", list(&[100.0, 100.0]))], "rps_levels"),
        (Kind::Service, "", vec![("name", "two words".into())], "name"),
        (Kind::Service, "", vec![("name", "../up".into())], "name"),
        (Kind::Service, "", vec![("name", "".into())], "name"),
        (Kind::Service, "cache", vec![("mrc", Value::Array(vec![list(&[0.1, 2.0])]))], "cache.mrc[0]"),
        (Kind::Service, "cache", vec![("mrc", Value::Array(vec![list(&[0.1, 2.0, 1.0, 1.0])]))], "cache.mrc[0]"),
    ];
    for (kind, section, changes, key) in cases {
        let mut t = if kind == Kind::Platform { server.clone() } else { service.clone() };
        let to = if section.is_empty() { &mut t } else { t[section].as_table_mut().unwrap() };
        changes.iter().for_each(|(k, v)| drop(to.insert((*k).into(), v.clone())));
        assert_names(kind, &t, key, "that does not go with the rest");
    }
    // Equal frequencies, one core with one thread, as many domains as cores: all right.
    let mut t = server.clone();
    t["cpu"].as_table_mut().unwrap().extend([("physical_cores".into(), whole(1)), ("smt".into(), whole(1)), ("turbo_ghz".into(), ghz(1))]);
    t["llc"].as_table_mut().unwrap().insert("domains".into(), whole(1));
    fuzz::read(Kind::Platform, &t).unwrap();
}

/// A later folder overrides an earlier one by name and adds to it; a folder without profiles is refused.
#[test]
fn folders_merge_and_later_ones_win() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("services")).unwrap();
    let put = |file: &str, text: String| std::fs::write(dir.path().join("services").join(file), text).unwrap();
    put("moses.toml", text("services/moses.toml").replace("qos_target_ms = 10.0", "qos_target_ms = 12.5"));
    put("new.toml", text("services/moses.toml").replace("name = \"moses\"", "name = \"new\""));
    let all = Profiles::load(&[here("profiles"), dir.path().into()]).unwrap();
    assert_eq!(all.services.len(), 26);
    assert_eq!(all.service("moses").unwrap().lc().unwrap().qos_target_ms, 12.5);
    let unknown = all.service("sphynx").unwrap_err().to_string();
    assert!(unknown.contains("sphynx") && unknown.contains("sphinx") && unknown.contains("--profiles"), "{unknown}");
    let empty = tempfile::tempdir().unwrap();
    assert!(Profiles::load(&[PathBuf::from(empty.path())]).unwrap_err().to_string().contains("platforms/"));
    put("twin.toml", text("services/moses.toml"));
    assert!(Profiles::load(&[dir.path().into()]).unwrap_err().to_string().contains("already taken"));
    std::fs::remove_file(dir.path().join("services/twin.toml")).unwrap();
    put("job.toml", text("batch/stream.toml"));
    assert!(Profiles::load(&[dir.path().into()]).unwrap_err().to_string().contains("batch/"));
}

/// For a platform that a profile does not list, the maximum load is computed; on listed ones it comes out close to (and,
/// where the published maximum leaves room, above) the list.
#[test]
fn computed_maximum_load_agrees_with_the_list() {
    for name in ["moses", "img-dnn", "xapian", "memcached"] {
        let profile = profiles().service(name).unwrap();
        for p in ["server-1", "server-2", "server-3"] {
            let (got, listed) = (max_load_rps(&platform(p), profile).unwrap(), profile.lc().unwrap().max_load_rps[p]);
            assert!((0.99..=1.2).contains(&(got / listed)), "{name} on {p}: {got}, listed {listed}");
        }
    }
}
