//! Memory bandwidth: plans speak of per cent, kernels of per cent, of MB/s or of eighths of a GB/s.

use surefoot_server::Mba;

/// MB/s under `mba_MBps` that mean no limit.
pub const NO_LIMIT_MBPS: u32 = u32::MAX;
/// AMD's value for no limit, where no greater one is seen.
pub const NO_LIMIT_EIGHTHS: u32 = 2048;
/// What no processor's field for it reaches: 8 TB/s of one L3 cache.
pub const MOST_EIGHTHS: u32 = 1 << 16;
/// Steps of plans where the hardware's are finer than per cent: those of Intel's MBA.
const PLAN_STEP_PCT: u8 = 10;

/// What a number on an `MB` line means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Percent,
    /// Mount option `mba_MBps`: the kernel throttles by its own measurement, MB = 2^20 bytes a second.
    MbPerS,
    /// AMD: a limit for each L3 domain in steps of 1/8 GB/s.
    EighthGbPerS,
}

/// MBA as `info/MB` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MbaInfo {
    pub unit: Unit,
    /// In the hardware's own unit: under `mba_MBps` still per cent.
    pub min: u32,
    pub step: u32,
    /// Delays grow linearly with the value.
    pub linear: bool,
    /// "max": a throttled thread slows its sibling down.
    pub throttle_mode: Option<String>,
    /// Domains on the `MB` line: absolute limits are for each.
    pub domains: u32,
    /// [`NO_LIMIT_EIGHTHS`] of this processor.
    pub no_limit_eighths: u32,
}

impl MbaInfo {
    /// Steps that plans may use; None where per cent of the peak bandwidth cannot be computed. Peaks are those of one domain.
    pub fn steps(&self, peak_mbps: Option<f64>) -> Option<Mba> {
        let known = peak_mbps.is_some_and(|p| p > 0.0);
        match self.unit {
            Unit::Percent => {
                let step = u8::try_from(self.step).ok().filter(|s| (1..=100).contains(s))?;
                Some(Mba { min_pct: u8::try_from(self.min.max(1)).ok()?.next_multiple_of(step), step_pct: step })
            }
            _ => known.then_some(Mba { min_pct: PLAN_STEP_PCT, step_pct: PLAN_STEP_PCT }),
        }
    }

    /// The number to write for `pct` of a domain's peak bandwidth (MB/s, MB = 10^6), rounded up as the kernel does; 100 is no limit.
    pub fn value(&self, pct: u8, peak_mbps: Option<f64>) -> Option<u32> {
        let bytes_per_s = || peak_mbps.filter(|p| *p > 0.0).map(|p| p * 1e4 * f64::from(pct));
        match self.unit {
            Unit::Percent => Some(self.rounded(u32::from(pct))),
            Unit::MbPerS if pct >= 100 => Some(NO_LIMIT_MBPS),
            Unit::EighthGbPerS if pct >= 100 => Some(self.no_limit_eighths),
            Unit::MbPerS => Some(up(bytes_per_s()? / f64::from(1 << 20)).max(1)),
            Unit::EighthGbPerS => Some(self.rounded(up(bytes_per_s()? / 125e6).clamp(1, self.no_limit_eighths))),
        }
    }

    /// The greatest per cent that asks for no more than `value`; None where that cannot be said.
    pub fn percent(&self, value: u32, peak_mbps: Option<f64>) -> Option<u8> {
        match self.unit {
            Unit::Percent => u8::try_from(value).ok().filter(|v| *v <= 100),
            _ => (1..=100).rev().find(|p| self.value(*p, peak_mbps).is_some_and(|v| v <= value)),
        }
    }

    /// What the kernel keeps of a number: the next step up.
    pub fn rounded(&self, value: u32) -> u32 {
        match self.unit {
            Unit::MbPerS => value,
            _ => value.max(self.min).next_multiple_of(self.step.max(1)),
        }
    }
}

/// Rounded up, but for the error of the arithmetic itself.
fn up(x: f64) -> u32 {
    (x - 1e-9 * x).ceil().clamp(0.0, f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(unit: Unit, min: u32, step: u32) -> MbaInfo {
        MbaInfo { unit, min, step, linear: true, throttle_mode: None, domains: 1, no_limit_eighths: NO_LIMIT_EIGHTHS }
    }

    /// Per cent pass as they are and need no peak; between two steps the kernel takes the upper one.
    #[test]
    fn per_cent_are_rounded_up_to_the_next_step() {
        let i = info(Unit::Percent, 10, 10);
        assert_eq!((i.value(40, None), i.value(45, None), i.value(3, None)), (Some(40), Some(50), Some(10)));
        assert_eq!((i.percent(40, None), i.percent(2048, None)), (Some(40), None));
        assert_eq!(i.steps(None), Some(Mba { min_pct: 10, step_pct: 10 }));
        assert_eq!(info(Unit::Percent, 5, 10).steps(None), Some(Mba { min_pct: 10, step_pct: 10 }));
    }

    /// 30 % of 100 GB/s: 30e9 / 2^20 = 28610.2 MB/s, or 30 / 0.125 = 240 eighths of a GB/s.
    #[test]
    fn absolute_units_need_the_peak() {
        let (mb, amd) = (info(Unit::MbPerS, 10, 10), info(Unit::EighthGbPerS, 0, 1));
        assert_eq!((mb.value(30, Some(1e5)), amd.value(30, Some(1e5))), (Some(28_611), Some(240)));
        assert_eq!((mb.value(100, None), amd.value(100, None)), (Some(u32::MAX), Some(2048)));
        for i in [&mb, &amd] {
            assert_eq!((i.value(30, None), i.steps(None)), (None, None));
            assert_eq!(i.steps(Some(1e5)), Some(Mba { min_pct: 10, step_pct: 10 }));
            // What was written is found again.
            for pct in (10..=100).step_by(10) {
                assert_eq!(i.percent(i.value(pct, Some(1e5)).unwrap(), Some(1e5)), Some(pct));
            }
        }
        // A slow peak: never 0, which would stop a service.
        assert_eq!(amd.value(10, Some(100.0)), Some(1));
    }
}
