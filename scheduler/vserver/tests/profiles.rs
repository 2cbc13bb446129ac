//! Profiles: what is read, and what is refused with file and key.

mod common;

use common::{here, platform, profiles};
use std::path::{Path, PathBuf};
use surefoot_vserver::{max_load_rps, PlatformProfile, Profile, Profiles};

fn text(path: &str) -> String {
    std::fs::read_to_string(here("profiles").join(path)).unwrap()
}

/// Everything that ships is read.
#[test]
fn all_profiles_are_read() {
    let all = profiles();
    assert_eq!((all.platforms.len(), all.services.len()), (5, 24));
    assert_eq!(all.services.values().filter(|p| p.is_be()).count(), 9);
}

/// Each defect of a service profile is refused with the file, the key and a remedy.
#[test]
fn bad_service_profiles_name_file_and_key() {
    let good = text("services/moses.toml");
    for (from, to, key, remedy) in [
        ("mlp = 2.0", "mlp = 2.0\nmpl = 1", "cache.mpl", "Remove it"),
        ("mlp = 2.0", "", "cache.mlp", "Add it"),
        ("cpi_core = 0.8", "cpi_core = -0.8", "cpu.cpi_core", "above 0"),
        ("cpi_core = 0.8", "cpi_core = nan", "cpu.cpi_core", "above 0"),
        ("cpi_core = 0.8", "cpi_core = \"fast\"", "cpu.cpi_core", "Give a number"),
        ("scv_arrival = 1.0", "scv_arrival = 0.5", "queue.scv_arrival", "1 or more"),
        ("llc_exposed = 0.35", "llc_exposed = 1.5", "cache.llc_exposed", "0 to 1"),
        ("mrc = [[", "mrc = [[0.1, 2.0], [", "cache.mrc[0]", "[a, c_mb, p]"),
        ("kind = \"lc\"", "kind = \"job\"", "kind", "\"lc\" or \"be\""),
        ("qos_target_ms = 10.0", "qos_target_ms = 0", "qos_target_ms", "above 0"),
        ("[memory]", "[memroy]", "memory", "Add [memory]"),
        ("server-1 = 3000.0", "server-1 = -3", "max_load_rps.server-1", "above 0"),
        ("name = \"moses\"", "name = \"moses\"\ncolour = \"red\"", "colour", "use one of"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from} is not in the profile");
        let error = Profile::parse(Path::new("dir/moses.toml"), &bad).unwrap_err().to_string();
        assert!(error.starts_with("dir/moses.toml: ") && error.contains(&format!(" {key}: ")), "{to}: {error}");
        assert!(error.contains(remedy) && !error.contains('\n'), "{to}: {error}");
    }
}

/// So is each defect of a platform profile.
#[test]
fn bad_platform_profiles_name_file_and_key() {
    let good = text("platforms/server-1.toml");
    for (from, to, key) in [
        ("smt = 2", "smt = 3", "cpu.smt"),
        ("physical_cores = 18", "physical_cores = 17", "cpu.turbo_ghz"),
        ("physical_cores = 18", "physical_cores = 0", "cpu.physical_cores"),
        ("domains = 1", "domains = 4", "llc.domains"),
        ("ways = 20", "ways = 33", "llc.ways"),
        ("usable = 0.88", "usable = 1.2", "mem.usable"),
        ("mba = false", "mba = 0", "mem.mba"),
        ("wake_preempt = 0.7", "wake_preempt = 7", "os.wake_preempt"),
        ("rate_ms = 0.0", "rate_ms = -1", "enforce.rate_ms"),
        ("ipc = 0.015", "icp = 0.015", "noise.ipc"),
        ("reserved_gb = 4", "reserved_gb = 400", "mem.reserved_gb"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from} is not in the profile");
        let error = PlatformProfile::parse(Path::new("p.toml"), &bad).unwrap_err().to_string();
        assert!(error.starts_with(&format!("p.toml: {key}: ")), "{to}: {error}");
    }
    let error = PlatformProfile::parse(Path::new("p.toml"), "kind = \"platform\"\nname = ").unwrap_err().to_string();
    assert!(error.contains("p.toml: not valid TOML: line 2"), "{error}");
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
    assert_eq!(all.services.len(), 25);
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
