//! The working set by DAMON, which looks at one page of each region of an address space once in a window.
//!
//! A window is one sampling interval. Of n regions of equal size the share whose page was touched is the share of all memory that is touched, with a
//! standard error of less than 1 / (2 sqrt(n)): no page needs to be looked at twice, and regions need not be alike within. So a thousand regions
//! and two windows tell it to 1 % of the address space, for a thousand looks a window.
//!
//! The interface has one set of monitors for the whole host. It is left alone where another program uses it; a monitor that a killed process of
//! ours left is known by its interval.

use super::Look;
use crate::root::Root;
use std::time::Duration;

const DIR: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// How many monitors there are, under `DIR`.
const MONITORS: &str = "nr_kdamonds";
/// Regions of all processes together: about the first number of them, and at most the second. The least is of each process.
const REGIONS: (u64, u64) = (1000, 4000);
const LEAST_REGIONS: u64 = 10;
/// Address space for each byte in memory: of more the error of 1 % is too much of what is touched.
const MOST_SPARSE: f64 = 4.5;
const WINDOWS: u64 = 2;
/// Processes that are looked at, the largest first, and the share of what all have in memory that these must have.
const MOST_PROCESSES: usize = 32;
pub(super) const LEAST_FRAC: f64 = 0.9;
/// What our intervals end in, microseconds.
const MARK_US: u128 = 7;
const MARK_OF_US: u128 = 1000;
/// The interface is busy while a command of another thread is being carried out.
const TRIES: u32 = 200;
const BETWEEN: Duration = Duration::from_millis(5);

const ROOTS: &str = "DAMON: only root may, without an actuator";

fn at(file: &str) -> String {
    format!("{DIR}/{file}")
}

fn read(root: &Root, file: &str) -> Option<String> {
    root.read(at(file))
}

/// Whether the only monitor there is one of ours.
fn is_ours(root: &Root) -> bool {
    let interval = read(root, "0/contexts/0/monitoring_attrs/intervals/sample_us").and_then(|t| t.parse::<u128>().ok());
    monitors(root).as_deref() == Some("1") && interval.is_some_and(|us| us % MARK_OF_US == MARK_US)
}

/// Monitors on this host, whoever's; None where the kernel has no such interface.
pub fn monitors(root: &Root) -> Option<String> {
    read(root, MONITORS)
}

/// End what a killed process of ours left.
pub fn end_left(root: &Root) {
    if root.files.is_here() && is_ours(root) {
        end(root);
    }
}

/// Whoever waits for a monitor of ours does so no longer.
pub(super) fn switch_off(root: &Root) {
    // One that does not run refuses it, and so does one that another command is with; then the next try ends it.
    if root.files.is_here() && is_ours(root) {
        let _ = root.files.write(&root.path(at("0/state")), "off");
    }
}

fn end(root: &Root) {
    let mut gone = Ok(());
    for _ in 0..TRIES {
        switch_off(root);
        gone = root.files.write(&root.path(at(MONITORS)), "0");
        match &gone {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(BETWEEN),
            _ => break,
        }
    }
    if let Err(e) = gone {
        tracing::warn!("a monitor of DAMON stays: {e}");
    }
}

/// Ends our monitor, also where something failed; not what another program has made of it since.
struct Monitor<'a> {
    root: &'a Root,
    is_marked: bool,
}

impl Drop for Monitor<'_> {
    fn drop(&mut self) {
        if !self.is_marked || is_ours(self.root) {
            end(self.root);
        }
    }
}

/// Bytes that these processes touch within a window. Takes two windows and some.
///
/// # Errors
/// Why not.
pub(super) fn measure(look: &Look, pids: &[u32]) -> Result<u64, String> {
    let root = look.root;
    if !root.files.is_here() {
        // Its files are no business of the actuator's, which would say so.
        return Err(ROOTS.into());
    }
    match monitors(root).as_deref() {
        None => return Err("DAMON: this kernel has none (CONFIG_DAMON_SYSFS, Linux 6.2)".into()),
        Some(_) if !look.writable(&at(MONITORS)) => return Err(ROOTS.into()),
        Some("0") => {}
        Some(_) => return Err("DAMON: another program uses it".into()),
    }
    let targets = targets(root, pids)?;
    let set = |file: &str, value: &str| look.write(&at(file), value).map_err(|e| format!("DAMON: {}: {e}", at(file)));
    set(MONITORS, "1")?;
    let mut monitor = Monitor { root, is_marked: false };
    set("0/contexts/nr_contexts", "1")?;
    // First of all, so that it is known as ours.
    let window_us = look.window.as_micros() / MARK_OF_US * MARK_OF_US + MARK_US;
    let attrs = "0/contexts/0/monitoring_attrs";
    set(&format!("{attrs}/intervals/sample_us"), &window_us.to_string())?;
    monitor.is_marked = true;
    set(&format!("{attrs}/intervals/aggr_us"), &(window_us * u128::from(WINDOWS)).to_string())?;
    set(&format!("{attrs}/intervals/update_us"), &(window_us * u128::from(WINDOWS)).to_string())?;
    // The larger one first: at no time is the least above the most.
    set(&format!("{attrs}/nr_regions/max"), &REGIONS.1.to_string())?;
    set(&format!("{attrs}/nr_regions/min"), &(REGIONS.0 / targets.len() as u64).max(LEAST_REGIONS).to_string())?;
    set("0/contexts/0/operations", "vaddr")?;
    set("0/contexts/0/targets/nr_targets", &targets.len().to_string())?;
    for (n, pid) in targets.iter().enumerate() {
        set(&format!("0/contexts/0/targets/{n}/pid_target"), &pid.to_string())?;
    }
    set("0/contexts/0/schemes/nr_schemes", "1")?;
    let scheme = "0/contexts/0/schemes/0";
    set(&format!("{scheme}/action"), "stat")?;
    for (range, (least, most)) in [("sz", (0, u64::MAX)), ("nr_accesses", (1, u64::from(u32::MAX))), ("age", (0, u64::from(u32::MAX)))] {
        set(&format!("{scheme}/access_pattern/{range}/min"), &least.to_string())?;
        set(&format!("{scheme}/access_pattern/{range}/max"), &most.to_string())?;
    }
    if !root.files.is_dir(&root.path(at(&format!("{scheme}/tried_regions")))) {
        return Err("DAMON: this kernel's does not list its regions (Linux 6.2)".into());
    }
    set("0/state", "on")?;
    // The command waits for the end of the last window, and whoever ends us meanwhile waits for the command: it is given shortly before.
    look.wait(look.window * (WINDOWS - 1) as u32 + look.window * 9 / 10)?;
    if !is_ours(root) {
        return Err("DAMON: another program has taken it meanwhile".into());
    }
    set("0/state", "update_schemes_tried_regions")?;
    touched(root, &at(&format!("{scheme}/tried_regions"))).and_then(|bytes| match bytes {
        0 => Err("DAMON: no access was seen".into()),
        bytes => Ok(bytes),
    })
}

/// Bytes of all regions, each as much as its page was touched in.
fn touched(root: &Root, dir: &str) -> Result<u64, String> {
    let number = |region: &str, file: &str| root.read(format!("{dir}/{region}/{file}")).and_then(|t| t.parse::<u64>().ok());
    let of = |region: &String| {
        let (start, end, windows) = (number(region, "start")?, number(region, "end")?, number(region, "nr_accesses")?);
        Some(end.checked_sub(start)? as f64 * windows.min(WINDOWS) as f64 / WINDOWS as f64)
    };
    let regions = root.files.folders(&root.path(dir));
    let bytes: Option<f64> = regions.iter().map(of).sum();
    bytes.map(|b| b as u64).ok_or_else(|| format!("DAMON: {dir}: a region without start, end or nr_accesses"))
}

/// The largest processes, which have nearly all of the memory.
fn targets(root: &Root, pids: &[u32]) -> Result<Vec<u32>, String> {
    let size = |pid: u32| crate::procfs::memory_mb(root, &[pid]);
    let mut sizes: Vec<(u32, f64)> = pids.iter().filter_map(|pid| Some((*pid, size(*pid)?.1))).collect();
    sizes.sort_by(|a, b| b.1.total_cmp(&a.1));
    let sum = |of: &[(u32, f64)]| of.iter().map(|(_, mb)| mb).sum::<f64>();
    let all = sum(&sizes);
    sizes.truncate(MOST_PROCESSES);
    if all <= 0.0 {
        return Err("DAMON: no process has anything in memory".into());
    }
    if sum(&sizes) < LEAST_FRAC * all {
        return Err(format!("DAMON: the {MOST_PROCESSES} largest of {} processes have less than {LEAST_FRAC} of the memory", pids.len()));
    }
    let space: f64 = sizes.iter().filter_map(|(pid, _)| Some(size(*pid)?.0)).sum();
    if space > MOST_SPARSE * all {
        return Err(format!("DAMON: {all:.0} MiB in an address space of {space:.0}: regions would be too large"));
    }
    Ok(sizes.into_iter().map(|(pid, _)| pid).collect())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::root::tests::put;
    use std::collections::BTreeMap;

    /// The interface with one monitor's files, as the kernel makes them, and regions that a window has told of.
    pub fn interface(root: &Root, regions: &[(u64, u64, u64)]) {
        let context = "0/contexts/0";
        let files: BTreeMap<String, &str> = [
            ("nr_kdamonds".into(), "0"),
            ("0/state".into(), "off"),
            ("0/contexts/nr_contexts".into(), "0"),
            (format!("{context}/operations"), "vaddr"),
            (format!("{context}/targets/nr_targets"), "0"),
            (format!("{context}/schemes/nr_schemes"), "0"),
            (format!("{context}/schemes/0/action"), "stat"),
        ]
        .into();
        files.iter().for_each(|(file, text)| put(root, &at(file), text));
        let zero = ["intervals/sample_us", "intervals/aggr_us", "intervals/update_us", "nr_regions/min", "nr_regions/max"];
        zero.iter().for_each(|f| put(root, &at(&format!("{context}/monitoring_attrs/{f}")), "0"));
        (0..2).for_each(|n| put(root, &at(&format!("{context}/targets/{n}/pid_target")), "0"));
        for range in ["sz", "nr_accesses", "age"] {
            ["min", "max"].iter().for_each(|f| put(root, &at(&format!("{context}/schemes/0/access_pattern/{range}/{f}")), "0"));
        }
        put(root, &at(&format!("{context}/schemes/0/tried_regions/total_bytes")), "0");
        for (n, (start, end, windows)) in regions.iter().enumerate() {
            for (file, value) in [("start", start), ("end", end), ("nr_accesses", windows)] {
                put(root, &at(&format!("{context}/schemes/0/tried_regions/{n}/{file}")), &value.to_string());
            }
        }
    }

    pub fn set(root: &Root, file: &str) -> String {
        read(root, file).unwrap()
    }

    #[test]
    fn a_monitor_of_ours_is_known_by_its_interval() {
        let (_dir, root) = crate::root::tests::tree(&[]);
        interface(&root, &[]);
        let sample = at("0/contexts/0/monitoring_attrs/intervals/sample_us");
        for (kdamonds, interval, ours) in [("1", "30000007", true), ("1", "5000", false), ("2", "30000007", false)] {
            put(&root, &at("nr_kdamonds"), kdamonds);
            put(&root, &sample, interval);
            put(&root, &at("0/state"), "on");
            end_left(&root);
            let left = if ours { ("0", "off") } else { (kdamonds, "on") };
            assert_eq!((&*set(&root, "nr_kdamonds"), &*set(&root, "0/state")), left, "{kdamonds} {interval}");
        }
    }

    /// A region that was touched in one of two windows counts half.
    #[test]
    fn regions_count_by_the_windows_in_which_they_were_touched() {
        let (_dir, root) = crate::root::tests::tree(&[]);
        interface(&root, &[(4096, 12288, 2), (12288, 28672, 1), (28672, 32768, 9)]);
        let dir = at("0/contexts/0/schemes/0/tried_regions");
        assert_eq!(touched(&root, &dir), Ok(8192 + 8192 + 4096));
        put(&root, &format!("{dir}/1/start"), "lots");
        assert!(touched(&root, &dir).unwrap_err().contains("a region without"));
    }
}
