//! The working set by `clear_refs`: the bits of all pages of a process are cleared, and a window later those that are set again are counted.
//!
//! The process cannot map or fault while the kernel walks its page tables: some 5 ms for each GiB. Reclaim loses what it knew of its pages, too. With
//! two lists it finds out soon enough; with generations it was seen to take just those in use (Linux 6.12), so there it is not done.

use super::{generations, Look, Watched};

/// Largest process of an LC service for which this is done.
const MOST_MB: f64 = 1024.0;

/// Bytes that the processes of a group touch within a window. Takes one window.
///
/// # Errors
/// Why not.
pub(super) fn measure(look: &Look, w: &Watched) -> Result<u64, String> {
    let said = |why: String| format!("clear_refs: {why}");
    if look.root.read(generations::SWITCH).is_some_and(|on| !generations::is_off(&on)) {
        return Err(said("with generations of the LRU reclaim would then take pages in use".into()));
    }
    let pids = w.group.pids();
    let size = |pid: u32| crate::procfs::memory_mb(look.root, &[pid]).map(|(_, resident)| resident);
    let largest = pids.iter().filter_map(|pid| size(*pid)).fold(0.0, f64::max);
    if w.is_lc && largest > MOST_MB {
        return Err(said(format!("a process of {largest:.0} MiB would stand still for milliseconds")));
    }
    let file = |pid: u32| format!("/proc/{pid}/clear_refs");
    if !pids.iter().any(|pid| look.writable(&file(*pid))) {
        return Err(said("only root and the service's own user may, without an actuator".into()));
    }
    // A process that ends meanwhile has no working set any more.
    let cleared: Vec<u32> = pids.into_iter().filter(|pid| look.write(&file(*pid), "1").is_ok()).collect();
    if cleared.is_empty() {
        return Err(said("the kernel refuses it".into()));
    }
    look.wait(look.window)?;
    let referenced = |pid: &u32| kb(&look.root.read(format!("/proc/{pid}/smaps_rollup"))?, "Referenced");
    let all: Vec<u64> = cleared.iter().filter_map(referenced).collect();
    if all.is_empty() {
        return Err(said("smaps_rollup cannot be read".into()));
    }
    Ok(all.iter().sum::<u64>() * 1024)
}

/// "KEY: N kB" of a file.
fn kb(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_by_its_whole_key() {
        let text = "55d0-7ffe ---p 00000000 00:00 0    [rollup]\nRss:  108000 kB\nReferenced:   25600 kB\nAnonymous: x kB\n";
        assert_eq!(
            [kb(text, "Referenced"), kb(text, "Rss"), kb(text, "Ref"), kb(text, "Anonymous")],
            [Some(25_600), Some(108_000), None, None]
        );
    }
}
