//! Where systemd keeps the cgroup of a unit.
//!
//! `redis.service` is in `/system.slice/redis.service` unless its unit file names another slice; slices nest by the dashes of
//! their names; instances of `a@.service` share `system-a.slice`. Units of users (`systemctl --user`) are out of scope: they live
//! below `/user.slice`, one manager a user, and are given by cgroup path.

use crate::root::Root;

/// How deep units may lie below slices.
const DEPTH: u32 = 8;

/// Names that cgroup files have or may get: systemd writes an underscore before a unit that would collide.
const CONTROLLERS: [&str; 13] =
    ["cgroup", "cpu", "cpuacct", "cpuset", "io", "blkio", "memory", "devices", "pids", "hugetlb", "rdma", "misc", "freezer"];

/// That this is the name of a unit which has a cgroup of its own.
///
/// # Errors
/// One line with the remedy.
pub fn check_name(unit: &str) -> Result<(), String> {
    let kind = ["service", "scope", "slice"].iter().any(|k| unit.strip_suffix(k).is_some_and(|n| n.len() > 1 && n.ends_with('.')));
    let plain = unit.chars().all(|c| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c)) && unit.len() < 256;
    match (kind && plain, unit) {
        (true, "-.slice") => Err(format!("unit \"{unit}\": the root is no service. Give a unit below it")),
        (true, _) => Ok(()),
        (false, _) => Err(format!("unit \"{unit}\": no name of a service, scope or slice. Write it in full, e.g. \"redis.service\"")),
    }
}

/// Name of a unit's folder.
fn folder(unit: &str) -> String {
    let collides = unit.starts_with(['_', '.']) || unit.split_once('.').is_some_and(|(first, _)| CONTROLLERS.contains(&first));
    if collides {
        format!("_{unit}")
    } else {
        unit.into()
    }
}

/// Cgroup of a slice, by its name: `a-b.slice` is in `a.slice`.
fn slice(name: &str) -> String {
    let stem = name.strip_suffix(".slice").unwrap_or(name);
    let ends = stem.match_indices('-').map(|(i, _)| i).chain([stem.len()]);
    ends.filter(|i| *i > 0).map(|i| format!("/{}", folder(&format!("{}.slice", &stem[..i])))).collect()
}

/// Where a unit is unless its file says otherwise ("/system.slice/redis.service").
pub fn usual_cgroup(unit: &str) -> String {
    if unit.ends_with(".slice") {
        return slice(unit);
    }
    let above = match unit.split_once('@') {
        // A dash in a template's name is no level.
        Some((template, _)) if !template.is_empty() => slice(&format!("system-{}.slice", template.replace('-', "\\x2d"))),
        _ => "/system.slice".into(),
    };
    format!("{above}/{}", folder(unit))
}

/// Cgroup of a unit of the system's manager below the mount point `mount`; None where it does not run.
pub fn find(root: &Root, mount: &std::path::Path, unit: &str) -> Option<String> {
    let there = |cgroup: &str| root.files.is_dir(&mount.join(cgroup.trim_start_matches('/')));
    let usual = usual_cgroup(unit);
    if there(&usual) {
        return Some(usual);
    }
    if unit.ends_with(".slice") {
        return None;
    }
    below(root, mount, "", &folder(unit), DEPTH)
}

/// The first folder of that name below slices, users' apart.
fn below(root: &Root, mount: &std::path::Path, at: &str, name: &str, depth: u32) -> Option<String> {
    let names = root.files.list(&mount.join(at.trim_start_matches('/'))).ok()?;
    if names.iter().any(|n| n == name) {
        return Some(format!("{at}/{name}"));
    }
    let slices = names.iter().filter(|n| depth > 0 && n.ends_with(".slice") && *n != "user.slice");
    slices.into_iter().find_map(|s| below(root, mount, &format!("{at}/{s}"), name, depth - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices nest by dashes, instances share a slice, and names that collide with cgroup files are escaped, as systemd does it.
    #[test]
    fn usual_places_are_systemds() {
        for (unit, cgroup) in [
            ("redis.service", "/system.slice/redis.service"),
            ("session-2.scope", "/system.slice/session-2.scope"),
            ("machine.slice", "/machine.slice"),
            ("a-b-c.slice", "/a.slice/a-b.slice/a-b-c.slice"),
            ("getty@tty1.service", "/system.slice/system-getty.slice/getty@tty1.service"),
            ("my-web@1.service", "/system.slice/system-my\\x2dweb.slice/my-web@1.service"),
            ("memory.service", "/system.slice/_memory.service"),
            ("_x.service", "/system.slice/__x.service"),
        ] {
            assert_eq!(usual_cgroup(unit), cgroup, "{unit}");
            assert_eq!(check_name(unit), Ok(()));
        }
        for unit in ["redis", "", ".service", "a/b.service", "../x.service", "a b.service", "-.slice", "data.mount"] {
            assert!(check_name(unit).unwrap_err().contains(&format!("\"{unit}\"")), "{unit}");
        }
    }

    /// A unit in a slice of its own is found; one of a user is not, nor one that does not run.
    #[test]
    fn units_are_found_in_any_slice() {
        let dir = tempfile::tempdir().unwrap();
        let make = |p: &str| std::fs::create_dir_all(dir.path().join(p)).unwrap();
        ["system.slice/redis.service", "lc.slice/lc-web.slice/nginx.service", "user.slice/user-1.slice/mine.service"]
            .iter()
            .for_each(|p| make(p));
        let found = |unit: &str| find(&Root::default(), dir.path(), unit);
        assert_eq!(found("redis.service").as_deref(), Some("/system.slice/redis.service"));
        assert_eq!(found("nginx.service").as_deref(), Some("/lc.slice/lc-web.slice/nginx.service"));
        assert_eq!(found("lc-web.slice").as_deref(), Some("/lc.slice/lc-web.slice"));
        assert_eq!((found("mine.service"), found("none.service"), found("none.slice")), (None, None, None));
    }
}
