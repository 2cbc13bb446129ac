//! Memory, frequency and process facts from procfs and cpufreq.

use crate::root::Root;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use surefoot_server::CpuSet;

/// Virtual and resident memory of some processes, MB (2^20 bytes); None where none of them is left.
pub fn memory_mb(root: &Root, pids: &[u32]) -> Option<(f64, f64)> {
    // SAFETY: sysconf only reads a constant.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as f64 / f64::from(1 << 20);
    let mut sum: Option<(f64, f64)> = None;
    for pid in pids {
        let Some(text) = root.read(format!("/proc/{pid}/statm")) else { continue };
        let mut pages = text.split_whitespace().map(|t| t.parse::<f64>().ok());
        let (Some(Some(virt)), Some(Some(res))) = (pages.next(), pages.next()) else { continue };
        let (v, r) = sum.unwrap_or((0.0, 0.0));
        sum = Some((v + virt * page, r + res * page));
    }
    sum
}

/// Frequencies at one instant: cpufreq's, else what `/proc/cpuinfo` shows, which is one read for all CPUs.
pub struct Frequencies<'a> {
    root: &'a Root,
    cpuinfo: OnceCell<BTreeMap<u32, f64>>,
}

impl<'a> Frequencies<'a> {
    pub fn now(root: &'a Root) -> Self {
        Frequencies { root, cpuinfo: OnceCell::new() }
    }

    /// Mean over some CPUs, MHz; None where the host shows neither.
    pub fn mean_mhz(&self, cpus: &CpuSet) -> Option<f64> {
        let khz = |c: u32| self.root.read(format!("/sys/devices/system/cpu/cpu{c}/cpufreq/scaling_cur_freq"))?.parse::<f64>().ok();
        let by_cpufreq: Vec<f64> = cpus.iter().filter_map(khz).map(|k| k / 1000.0).collect();
        mean(&by_cpufreq).or_else(|| {
            let shown = self.cpuinfo.get_or_init(|| cpuinfo_mhz(self.root));
            mean(&cpus.iter().filter_map(|c| shown.get(&c).copied()).collect::<Vec<_>>())
        })
    }
}

/// "cpu MHz" of each CPU in `/proc/cpuinfo`.
fn cpuinfo_mhz(root: &Root) -> BTreeMap<u32, f64> {
    let mut cpu = None;
    let mut seen = BTreeMap::new();
    for line in root.read("/proc/cpuinfo").unwrap_or_default().lines() {
        let Some((k, v)) = line.split_once(':') else { continue };
        match k.trim() {
            "processor" => cpu = v.trim().parse::<u32>().ok(),
            "cpu MHz" => seen.extend(cpu.zip(v.trim().parse::<f64>().ok())),
            _ => {}
        }
    }
    seen
}

/// [`Frequencies::mean_mhz`] of this instant.
pub fn frequency_mhz(root: &Root, cpus: &CpuSet) -> Option<f64> {
    Frequencies::now(root).mean_mhz(cpus)
}

fn mean(v: &[f64]) -> Option<f64> {
    (!v.is_empty()).then(|| v.iter().sum::<f64>() / v.len() as f64)
}

/// Start time of a process in clock ticks since boot: with the pid it names a process for good.
pub fn start_time(root: &Root, pid: u32) -> Option<u64> {
    // The command's name, in brackets, may hold blanks.
    let stat = root.read(format!("/proc/{pid}/stat"))?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::tests::tree;

    /// Pages become MB and processes add up; a process that has gone is left out; nobody left is unknown.
    #[test]
    fn memory_adds_up() {
        // 256 pages of 4 KiB are 1 MB.
        let (_dir, root) = tree(&[("/proc/7/statm".into(), "512 256 9 0 0 0 0\n".into()), ("/proc/8/statm".into(), "256 256 9\n".into())]);
        let scale = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as f64 / 4096.0;
        assert_eq!(memory_mb(&root, &[7, 8, 9]), Some((3.0 * scale, 2.0 * scale)));
        assert_eq!(memory_mb(&root, &[9]), None);
    }

    /// cpufreq comes first, /proc/cpuinfo second, and a host without either has no frequency.
    #[test]
    fn frequency_from_either_source() {
        let info = "processor\t: 0\ncpu MHz\t\t: 2000.0\n\nprocessor\t: 1\ncpu MHz\t\t: 3000.0\n";
        let (_dir, root) = tree(&[("/proc/cpuinfo".into(), info.into())]);
        assert_eq!(frequency_mhz(&root, &CpuSet::range(0, 2)), Some(2500.0));
        assert_eq!(frequency_mhz(&root, &CpuSet::range(1, 2)), Some(3000.0));
        let (_dir, root) = tree(&[("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq".into(), "1200000\n".into())]);
        assert_eq!(frequency_mhz(&root, &CpuSet::range(0, 1)), Some(1200.0));
        assert_eq!(frequency_mhz(&root, &CpuSet::range(1, 2)), None);
    }

    /// The start time is found behind any command name.
    #[test]
    fn start_time_behind_odd_names() {
        let stat = format!("5 (a ) b) S {} 4711 0", (1..=18).map(|n| n.to_string()).collect::<Vec<_>>().join(" "));
        let (_dir, root) = tree(&[("/proc/5/stat".into(), stat)]);
        assert_eq!(start_time(&root, 5), Some(4711));
    }
}
