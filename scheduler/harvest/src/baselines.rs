//! SmartHarvest's baselines that need no learner (section 5.1).

use crate::settings::Window;
use crate::window::Running;

/// Keeps the peak of the last windows.
#[derive(Clone, Debug)]
pub struct PrevPeak {
    window: Running,
    /// Peaks of the last windows, a ring.
    peaks: Vec<u32>,
    next: usize,
    cores: u32,
}

impl PrevPeak {
    /// Of the last `windows` windows, at least 1.
    pub fn new(cores: u32, windows: u32, s: &Window) -> Self {
        PrevPeak { window: Running::new(cores, s), peaks: vec![0; windows.max(1) as usize], next: 0, cores }
    }

    /// The cores to keep from now on; None: the window goes on. With one window an exhaustion brings all cores back for the next
    /// window, with more windows one core.
    pub fn poll(&mut self, now_us: u64, busy: u32, kept: u32, exhausted: bool) -> Option<u32> {
        let is_over = self.window.poll(now_us, busy);
        if !exhausted && !is_over {
            return None;
        }
        self.peaks[self.next] = self.window.readings.peak();
        self.next = (self.next + 1) % self.peaks.len();
        self.window.end();
        let peak = self.peaks.iter().copied().max().unwrap_or(0);
        Some(match (exhausted, self.peaks.len()) {
            (true, 1) => self.cores,
            (true, _) => peak.max(kept + 1),
            (false, _) => peak,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(p: &mut PrevPeak, from_us: u64, busy: u32) -> Option<u32> {
        let last = (0..25_000).step_by(1000).find_map(|t| p.poll(from_us + t, busy, 9, false));
        last.or_else(|| p.poll(from_us + 25_000, busy, 9, false))
    }

    #[test]
    fn the_peak_of_the_last_windows_is_kept() {
        let s = Window::default();
        let mut one = PrevPeak::new(10, 1, &s);
        assert_eq!([3, 7, 2].map(|b| window(&mut one, 0, b)), [Some(3), Some(7), Some(2)]);
        assert_eq!(one.poll(5, 4, 4, true), Some(10));
        let mut ten = PrevPeak::new(10, 10, &s);
        assert_eq!([3, 7, 2].map(|b| window(&mut ten, 0, b)), [Some(3), Some(7), Some(7)]);
        assert_eq!(ten.poll(5, 7, 7, true), Some(8));
        (0..9).for_each(|_| assert!(window(&mut ten, 0, 1).is_some()));
        assert_eq!(window(&mut ten, 0, 1), Some(1));
    }
}
