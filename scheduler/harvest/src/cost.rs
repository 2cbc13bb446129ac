//! What it costs to have kept `k` cores where the peak was another number (SmartHarvest, section 3.2, figure 3).

/// A cost function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The distance, and much more below the peak: too few cores harm, too many are a loss.
    Skewed,
    /// The distance alone.
    Symmetric,
    /// Nothing from the peak on, below it as skewed.
    Hinged,
}

impl Cost {
    /// The number of a setting; those that there are not count as skewed.
    pub fn of(number: u8) -> Self {
        match number {
            1 => Cost::Symmetric,
            2 => Cost::Hinged,
            _ => Cost::Skewed,
        }
    }

    /// Of keeping `k` cores where `peak` were busy. `under` is what a class below the peak costs beside its distance, in cores.
    pub fn at(self, k: u32, peak: u32, under: f32) -> f32 {
        let distance = k.abs_diff(peak) as f32;
        match (self, k < peak) {
            (Cost::Symmetric, _) => distance,
            (Cost::Hinged, false) => 0.0,
            (Cost::Skewed, false) => distance,
            (Cost::Skewed | Cost::Hinged, true) => distance + under,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 3: ten cores, a peak of 4.
    #[test]
    fn as_figure_3_has_them() {
        let of = |cost: Cost| [1, 3, 4, 6, 10].map(|k| cost.at(k, 4, 10.0));
        assert_eq!(of(Cost::Skewed), [13.0, 11.0, 0.0, 2.0, 6.0]);
        assert_eq!(of(Cost::Symmetric), [3.0, 1.0, 0.0, 2.0, 6.0]);
        assert_eq!(of(Cost::Hinged), [13.0, 11.0, 0.0, 0.0, 0.0]);
        assert_eq!([0, 1, 2].map(Cost::of), [Cost::Skewed, Cost::Symmetric, Cost::Hinged]);
    }
}
