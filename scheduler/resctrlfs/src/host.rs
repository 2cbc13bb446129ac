//! The tasks of this machine, for a mounted stand-in: who was born, who is gone, who ran.

#![allow(unsafe_code, reason = "sysconf")]

use crate::machine::{Machine, Tid};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;
use surefoot_io::input::{self, KERNEL_BYTES};

/// Brings a machine's tasks and clock up to date.
pub trait Host: Send {
    /// Called before every operation; `tasks` where its outcome depends on them.
    fn sync(&mut self, machine: &mut Machine, tasks: bool);
}

/// `/proc` of this machine. A task that is new since the last look joins the groups that its parent has now: the kernel's own
/// resctrl does so at fork, so a child whose parent was moved in between differs.
pub struct Proc {
    last: Instant,
    seen: BTreeMap<Tid, Seen>,
    tick_ms: u64,
}

struct Seen {
    start: u64,
    cpu_ticks: u64,
}

impl Default for Proc {
    fn default() -> Self {
        // SAFETY: sysconf has no preconditions.
        let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Self { last: Instant::now(), seen: BTreeMap::new(), tick_ms: 1000 / u64::try_from(hertz).unwrap_or(100).clamp(1, 1000) }
    }
}

/// What a `stat` file of a task says.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    ppid: Tid,
    cpu_ticks: u64,
    start: u64,
    cpu: u32,
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name in parentheses may hold anything. Fields count from 3 (state) after it: proc(5).
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat { ppid: number(4)? as Tid, cpu_ticks: number(14)? + number(15)?, start: number(22)?, cpu: number(39)? as u32 })
}

/// Entries of a directory that are numbers.
fn numbers(dir: &str) -> Vec<Tid> {
    fs::read_dir(dir).map_or(vec![], |d| d.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
}

impl Host for Proc {
    fn sync(&mut self, machine: &mut Machine, tasks: bool) {
        let ms = self.last.elapsed().as_millis() as u64;
        self.last += std::time::Duration::from_millis(ms);
        machine.advance(ms);
        if !tasks {
            return;
        }
        let mut now: Vec<(u64, Tid, Tid, Stat)> = vec![];
        for tgid in numbers("/proc") {
            for tid in numbers(&format!("/proc/{tgid}/task")) {
                let stat = input::text(Path::new(&format!("/proc/{tgid}/task/{tid}/stat")), KERNEL_BYTES).ok().and_then(|t| parse_stat(&t));
                now.extend(stat.map(|s| (s.start, tid, tgid, s)));
            }
        }
        // Parents before children.
        now.sort_unstable_by_key(|t| (t.0, t.1));
        let cpus = machine.hardware().n_cpus();
        let old = std::mem::take(&mut self.seen);
        for (start, tid, tgid, stat) in now {
            let before = old.get(&tid).filter(|s| s.start == start);
            if before.is_none() {
                let parent = if tid == tgid { stat.ppid } else { tgid };
                let uid = fs::metadata(format!("/proc/{tgid}/task/{tid}")).map_or(0, |m| m.uid());
                machine.exit(tid);
                machine.spawn(tid, tgid, parent, uid);
            }
            let ran = stat.cpu_ticks.saturating_sub(before.map_or(stat.cpu_ticks, |s| s.cpu_ticks));
            if ran > 0 {
                machine.ran(tid, stat.cpu % cpus, ran * self.tick_ms);
            }
            self.seen.insert(tid, Seen { start, cpu_ticks: stat.cpu_ticks });
        }
        old.keys().filter(|t| !self.seen.contains_key(t)).for_each(|t| machine.exit(*t));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name with blanks and parentheses does not move the fields.
    #[test]
    fn names_do_not_move_the_fields() {
        let tail: String = (5..=45).map(|n| format!(" {n}")).collect();
        let stat = parse_stat(&format!("7 (a) b (c)) S 1{tail}")).unwrap();
        assert_eq!(stat, Stat { ppid: 1, cpu_ticks: 14 + 15, start: 22, cpu: 39 });
    }
}
