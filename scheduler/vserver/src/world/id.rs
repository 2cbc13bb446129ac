//! Names of worlds: a range and a number.

use std::fmt;
use std::str::FromStr;

/// What worlds are for. The ranges share no world: the range is part of the key of every draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Range {
    /// Models learn from these.
    Train,
    /// Constants of policies are chosen on these.
    Tune,
    /// Published tables come from these. No figure of theirs is looked at while a constant is chosen.
    Test,
    /// As tune, of worlds whose memory is over-committed.
    MemoryTune,
    /// As test, of the same.
    MemoryTest,
}

/// Highest number of a world: each range has 2^32 - 1 of them.
pub const LAST: u32 = u32::MAX;
/// Most worlds that one name of several may hold: a day of evaluation on a small machine.
pub const MOST_AT_ONCE: u32 = 100_000;

impl Range {
    pub const ALL: [Range; 5] = [Range::Train, Range::Tune, Range::Test, Range::MemoryTune, Range::MemoryTest];
    /// Those whose worlds have memory enough.
    pub const PLAIN: [Range; 3] = [Range::Train, Range::Tune, Range::Test];

    pub fn as_str(self) -> &'static str {
        match self {
            Range::Train => "train",
            Range::Tune => "tune",
            Range::Test => "test",
            Range::MemoryTune => "memory-tune",
            Range::MemoryTest => "memory-test",
        }
    }

    /// Whether the working sets of its workloads exceed the server's memory together.
    pub fn is_over_committed(self) -> bool {
        !Range::PLAIN.contains(&self)
    }

    /// What the seeds of this range have in their upper 32 bits.
    fn upper(self) -> u64 {
        match self {
            Range::Train => 1,
            Range::Tune => 2,
            Range::Test => 3,
            Range::MemoryTune => 4,
            Range::MemoryTest => 5,
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Range::ALL.into_iter().find(|r| r.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is no range of worlds. Write train, tune or test, or memory-tune or memory-test"))
    }
}

/// One world, e.g. `tune:7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorldId {
    pub range: Range,
    /// From 1.
    pub number: u32,
}

impl WorldId {
    /// The seed that every draw of the world begins with.
    ///
    /// Train has 2^32 + 1 and up, tune 2 * 2^32 + 1 and up, and so on in the order of [`Range::ALL`]: no number is in two ranges.
    pub fn seed(self) -> u64 {
        (self.range.upper() << 32) | u64::from(self.number)
    }

    /// What names of the world's profiles and workloads begin with, e.g. `tune-7`.
    pub fn prefix(self) -> String {
        format!("{}-{}", self.range, self.number)
    }
}

impl fmt::Display for WorldId {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{}:{}", self.range, self.number)
    }
}

/// Some worlds of one range: `test:1..50` (both ends included) or `tune:7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worlds {
    pub range: Range,
    pub first: u32,
    pub last: u32,
}

impl Worlds {
    pub fn ids(self) -> impl Iterator<Item = WorldId> {
        (self.first..=self.last).map(move |number| WorldId { range: self.range, number })
    }
}

impl fmt::Display for Worlds {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{}:{}", self.range, self.first)?;
        if self.last == self.first {
            return Ok(());
        }
        write!(out, "..{}", self.last)
    }
}

impl FromStr for Worlds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const HOW: &str = "Write e.g. test:1..50 or tune:7";
        let (range, numbers) = text.split_once(':').ok_or_else(|| format!("{text:?} names no worlds. {HOW}"))?;
        let range: Range = range.parse()?;
        let number = |t: &str| match t.parse::<u32>() {
            Ok(n) if n >= 1 && t.bytes().all(|b| b.is_ascii_digit()) => Ok(n),
            _ => Err(format!("{t:?} is no number of a world. Worlds are numbered from 1 to {LAST}. {HOW}")),
        };
        let (first, last) = match numbers.split_once("..") {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(numbers)?, number(numbers)?),
        };
        if last < first {
            return Err(format!("{text:?} ends before it begins. {HOW}"));
        }
        if last - first >= MOST_AT_ONCE {
            return Err(format!("{text:?} are more than {MOST_AT_ONCE} worlds. Name fewer at a time"));
        }
        Ok(Worlds { range, first, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written is read again, and what is no name of worlds says what is.
    #[test]
    fn names_of_worlds() {
        for text in ["test:1..50", "tune:7", "train:1..3", "train:4294967295", "memory-tune:1..20", "memory-test:3"] {
            assert_eq!(text.parse::<Worlds>().unwrap().to_string(), text);
        }
        assert_eq!("test:5..5".parse::<Worlds>().unwrap().to_string(), "test:5");
        for (text, says) in [
            ("test", "names no worlds"),
            ("exam:1", "train, tune or test"),
            ("test:0", "numbered from 1"),
            ("test:1..x", "\"x\" is no number"),
            ("test:+1", "is no number"),
            ("test:", "is no number"),
            ("test:1...3", "is no number"),
            ("test:4294967296", "is no number"),
            ("test:9..2", "ends before it begins"),
            ("test:1..100001", "more than 100000"),
        ] {
            let e = text.parse::<Worlds>().unwrap_err();
            assert!(e.contains(says), "{text}: {e}");
        }
    }

    /// No number of one range is a seed of another.
    #[test]
    fn ranges_have_seeds_of_their_own() {
        let ends = Range::ALL.map(|range| [1, LAST].map(|number| WorldId { range, number }.seed()));
        assert!(ends.windows(2).all(|w| w[0][1] < w[1][0]), "{ends:?}");
        assert_eq!(ends[0][0], (1 << 32) + 1);
    }
}
