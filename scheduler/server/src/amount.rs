//! Counts of what policies and searches hand out.

/// Core units and ways of one holder, or to move from one to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount {
    pub cores: u32,
    pub ways: u32,
}

impl Amount {
    pub fn new(cores: u32, ways: u32) -> Self {
        Amount { cores, ways }
    }

    pub fn is_zero(self) -> bool {
        self == Amount::default()
    }

    pub fn fits_in(self, o: Self) -> bool {
        self.cores <= o.cores && self.ways <= o.ways
    }

    pub fn plus(self, o: Self) -> Self {
        Amount { cores: self.cores + o.cores, ways: self.ways + o.ways }
    }

    /// Never below zero.
    pub fn minus(self, o: Self) -> Self {
        Amount { cores: self.cores.saturating_sub(o.cores), ways: self.ways.saturating_sub(o.ways) }
    }

    pub fn at_most(self, o: Self) -> Self {
        Amount { cores: self.cores.min(o.cores), ways: self.ways.min(o.ways) }
    }

    pub fn at_least(self, o: Self) -> Self {
        Amount { cores: self.cores.max(o.cores), ways: self.ways.max(o.ways) }
    }
}
