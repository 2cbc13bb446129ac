//! The batch VM's side: how much faster its job runs with the cores that were lent to it.

/// A batch VM that keeps some cores and uses those that are lent: `[batch.NAME]` of bursts.toml.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchSide {
    /// Cores that it has always.
    pub own_cores: u32,
    /// Share of its work that any number of cores can share (Amdahl); the rest runs on one.
    pub parallel: f64,
    /// Core-milliseconds lost each time that a core is lent and taken back: caches, threads that lose their core.
    pub move_ms: f64,
}

impl BatchSide {
    /// Progress of its job against one core, from the seconds with 0, 1, ... cores lent and the number of cores moved
    /// ([`crate::CoreUse::lent_s`], [`crate::CoreUse::taken`]). 1 is as fast as on one core; 0 if no time has passed.
    pub fn speed_up(&self, lent_s: &[f64], moved: u64) -> f64 {
        let all_s: f64 = lent_s.iter().sum();
        if all_s == 0.0 {
            return 0.0;
        }
        let speed = |cores: f64| 1.0 / (1.0 - self.parallel + self.parallel / cores);
        let mut work_s = 0.0;
        let mut core_s = 0.0;
        for (lent, s) in lent_s.iter().enumerate() {
            let cores = f64::from(self.own_cores) + lent as f64;
            work_s += s * speed(cores);
            core_s += s * cores;
        }
        // What a move loses, it loses at the mean worth of a core-second.
        let lost = moved as f64 * self.move_ms * 1e-3 / core_s;
        work_s * (1.0 - lost).max(0.0) / all_s
    }
}
