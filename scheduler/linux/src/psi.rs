//! Pressure stall information: how long tasks waited for a resource, of a cgroup or of the host.

use crate::root::Root;

/// What tasks may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    Cpu,
    Memory,
    Io,
}

impl Resource {
    pub const ALL: [Resource; 3] = [Resource::Cpu, Resource::Memory, Resource::Io];

    /// As in the kernel's file names.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Cpu => "cpu",
            Resource::Memory => "memory",
            Resource::Io => "io",
        }
    }
}

/// One line of a pressure file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    /// Share of the last 10 s, per cent; the kernel refreshes it every 2 s.
    pub avg10_pct: f64,
    /// Since boot or since the group was made, microseconds: a counter, exact at every read.
    pub total_us: u64,
}

/// One pressure file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Stall,
    /// All tasks waited at once. Older kernels have no such line for the CPU.
    pub full: Option<Stall>,
}

impl Pressure {
    /// None for anything but the kernel's format.
    pub fn parse(text: &str) -> Option<Self> {
        let line = |name: &str| {
            let words = text.lines().find_map(|l| l.trim().strip_prefix(name))?;
            let value = |key: &str| words.split_whitespace().find_map(|w| w.strip_prefix(key)?.strip_prefix('='));
            Some(Stall { avg10_pct: value("avg10")?.parse().ok()?, total_us: value("total")?.parse().ok()? })
        };
        Some(Pressure { some: line("some ")?, full: line("full ") })
    }

    /// Of the whole host; None where the kernel does not count it (boot line `psi=0`).
    pub fn of_host(root: &Root, of: Resource) -> Option<Self> {
        Pressure::parse(&root.read(format!("/proc/pressure/{}", of.name()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both lines of a file are read; a file with one line has no `full`; another format is no pressure.
    #[test]
    fn lines_are_read_by_key() {
        let text = "some avg10=3.86 avg60=0.92 avg300=0.20 total=866995\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=12\n";
        let p = Pressure::parse(text).unwrap();
        assert_eq!(p.some, Stall { avg10_pct: 3.86, total_us: 866_995 });
        assert_eq!(p.full, Some(Stall { avg10_pct: 0.5, total_us: 12 }));
        assert_eq!(Pressure::parse(text.lines().next().unwrap()).unwrap().full, None);
        assert_eq!((Pressure::parse(""), Pressure::parse("some avg10=x total=1")), (None, None));
    }
}
