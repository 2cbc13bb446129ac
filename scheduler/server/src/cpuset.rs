//! A set of logical CPU numbers, as the kernel writes them ("0-3,8").

use serde::{Deserialize, Serialize};
use std::fmt;

/// Words of 64 CPUs.
const WORDS: usize = 16;

/// Logical CPUs 0..=1023 as a bit set that is copied without an allocation. A kernel can have 8192 (NR_CPUS): sets of that size doubled
/// the time of `eval` and `oracle`, and the largest hosts with eight sockets have 960.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuSet([u64; WORDS]);

impl Default for CpuSet {
    fn default() -> Self {
        CpuSet::empty()
    }
}

impl CpuSet {
    /// Highest CPU number that fits, plus one.
    pub const CAPACITY: u32 = WORDS as u32 * 64;

    pub const fn empty() -> Self {
        CpuSet([0; WORDS])
    }

    /// CPUs `lo..hi`.
    pub fn range(lo: u32, hi: u32) -> Self {
        (lo..hi).collect()
    }

    /// # Panics
    /// If `cpu >= CAPACITY`: adapters refuse such machines when they discover them.
    pub fn insert(&mut self, cpu: u32) {
        assert!(cpu < Self::CAPACITY, "CPU {cpu} is beyond {}", Self::CAPACITY);
        self.0[(cpu / 64) as usize] |= 1 << (cpu % 64);
    }

    pub fn remove(&mut self, cpu: u32) {
        if cpu < Self::CAPACITY {
            self.0[(cpu / 64) as usize] &= !(1 << (cpu % 64));
        }
    }

    pub fn contains(&self, cpu: u32) -> bool {
        cpu < Self::CAPACITY && self.0[(cpu / 64) as usize] >> (cpu % 64) & 1 == 1
    }

    pub fn len(&self) -> u32 {
        self.0.iter().map(|w| w.count_ones()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|w| *w == 0)
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.0).filter(|(_, w)| **w != 0).flat_map(|(i, w)| {
            let mut w = *w;
            std::iter::from_fn(move || {
                (w != 0).then(|| {
                    let bit = w.trailing_zeros();
                    w &= w - 1;
                    i * 64 + bit
                })
            })
        })
    }

    /// Bits in the order of the kernel's masks, as sched_setaffinity(2) takes them.
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    fn zip(self, o: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        CpuSet(std::array::from_fn(|i| f(self.0[i], o.0[i])))
    }

    pub fn union(self, o: Self) -> Self {
        self.zip(o, |a, b| a | b)
    }

    pub fn intersection(self, o: Self) -> Self {
        self.zip(o, |a, b| a & b)
    }

    /// CPUs of `self` that are not in `o`.
    pub fn difference(self, o: Self) -> Self {
        self.zip(o, |a, b| a & !b)
    }

    pub fn is_subset(&self, o: &Self) -> bool {
        self.0.iter().zip(&o.0).all(|(a, b)| a & !b == 0)
    }

    /// Parse the kernel's list format, e.g. "0-3,8". Empty text is the empty set.
    ///
    /// # Errors
    /// One line that names the bad part.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::read(text, |hi| hi < Self::CAPACITY)
    }

    /// A list that the kernel wrote, which may have more CPUs than fit: those from [`CpuSet::CAPACITY`] on are left out.
    ///
    /// # Errors
    /// One line that names the bad part.
    pub fn of_kernel(text: &str) -> Result<Self, String> {
        Self::read(text, |_| true)
    }

    fn read(text: &str, fits: impl Fn(u32) -> bool) -> Result<Self, String> {
        let mut set = Self::empty();
        for part in text.trim().split(',').filter(|p| !p.trim().is_empty()) {
            let bad = || format!("{part:?} is not a CPU or a range of CPUs below {}", Self::CAPACITY);
            let (lo, hi) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
            let (lo, hi): (u32, u32) = (lo.parse().map_err(|_| bad())?, hi.parse().map_err(|_| bad())?);
            if lo > hi || !fits(hi) {
                return Err(bad());
            }
            (lo..=hi.min(Self::CAPACITY - 1)).for_each(|c| set.insert(c));
        }
        Ok(set)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(it: I) -> Self {
        let mut s = Self::empty();
        it.into_iter().for_each(|c| s.insert(c));
        s
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = self.iter().peekable();
        let mut first = true;
        while let Some(lo) = it.next() {
            let mut hi = lo;
            while it.peek() == Some(&(hi + 1)) {
                hi = it.next().unwrap_or(hi);
            }
            if !first {
                f.write_str(",")?;
            }
            first = false;
            if lo == hi {
                write!(f, "{lo}")?;
            } else {
                write!(f, "{lo}-{hi}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

impl Serialize for CpuSet {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        CpuSet::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's list format survives a round trip.
    #[test]
    fn list_format_round_trips() {
        for text in ["", "0", "0-3,8", "1,3,5-7,64,127-130", "0-256,512-700,1023"] {
            assert_eq!(CpuSet::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(CpuSet::parse("0-3,8\n").unwrap().len(), 5);
    }

    /// The last CPU of all is one like any other: in sets, their algebra and their bits.
    #[test]
    fn the_last_cpu_is_one_like_any_other() {
        let last = CpuSet::CAPACITY - 1;
        let all = CpuSet::range(0, CpuSet::CAPACITY);
        let mut most = all;
        most.remove(last);
        assert_eq!((all.len(), most.len(), most.contains(last), all.to_string().as_str()), (1024, 1023, false, "0-1023"));
        let difference = all.difference(most);
        assert_eq!((difference.to_string().as_str(), difference.iter().collect::<Vec<_>>()), ("1023", vec![last]));
        assert!(most.is_subset(&all) && !all.is_subset(&most) && !difference.contains(1024));
        assert_eq!((difference.words().len() * 64, difference.words()[15]), (1024, 1 << 63));
    }

    /// A list of the kernel's may go beyond what fits, in part or as a whole; what is no list is refused all the same.
    #[test]
    fn lists_of_the_kernel_may_go_beyond() {
        let of = |text| CpuSet::of_kernel(text).map(|s| s.to_string());
        assert_eq!(of("0-3,1000-1151,2000\n"), Ok("0-3,1000-1023".into()));
        assert_eq!((of("1024-1151"), of("0-4294967295")), (Ok(String::new()), Ok("0-1023".into())));
        assert!(["x", "3-1", "4294967296", "1-"].iter().all(|t| CpuSet::of_kernel(t).is_err()));
    }

    /// A malformed list is refused and the part is named.
    #[test]
    fn bad_lists_are_named() {
        for text in ["x", "3-1", "0-1024", "1024", "4294967296", "-1", "1-"] {
            assert!(CpuSet::parse(text).unwrap_err().contains('"'), "{text}");
        }
    }
}
