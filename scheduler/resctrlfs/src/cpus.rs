//! Sets of CPUs, and the two forms in which `cpus` and `cpus_list` read and show them.

use crate::errno::{Errno, Result};
use crate::number::c_str;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// A set of CPU numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(BTreeSet<u32>);

impl FromIterator<u32> for Cpus {
    fn from_iter<T: IntoIterator<Item = u32>>(iter: T) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl Cpus {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    pub fn insert(&mut self, cpu: u32) {
        self.0.insert(cpu);
    }

    /// True where the CPU was there.
    pub fn remove(&mut self, cpu: u32) -> bool {
        self.0.remove(&cpu)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn and(&self, other: &Self) -> Self {
        self.0.intersection(&other.0).copied().collect()
    }

    pub fn minus(&self, other: &Self) -> Self {
        self.0.difference(&other.0).copied().collect()
    }

    pub fn add(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    /// As `cpus` shows it: hexadecimal, words of 32 bits between commas, as wide as the number of CPUs asks.
    pub fn mask(&self, n_cpus: u32) -> String {
        let words = n_cpus.div_ceil(32).max(1);
        let mut text = String::new();
        for w in (0..words).rev() {
            let bits = (0..32).filter(|b| self.has(w * 32 + b)).fold(0u32, |m, b| m | 1 << b);
            let width = if w + 1 == words { (n_cpus - w * 32).div_ceil(4) as usize } else { 8 };
            let _ = write!(text, "{bits:0width$x}");
            if w > 0 {
                text.push(',');
            }
        }
        text
    }

    /// As `cpus_list` shows it: "0-3,7".
    pub fn list(&self) -> String {
        let mut text = String::new();
        let mut next = self.iter().peekable();
        while let Some(first) = next.next() {
            let mut last = first;
            while next.peek() == Some(&(last + 1)) {
                last += 1;
                next.next();
            }
            if !text.is_empty() {
                text.push(',');
            }
            let _ = if first == last { write!(text, "{first}") } else { write!(text, "{first}-{last}") };
        }
        text
    }

    /// What a write to `cpus` means.
    ///
    /// # Errors
    /// EINVAL for what is no mask, EOVERFLOW for CPUs past `n_cpus`.
    pub fn parse_mask(text: &[u8], n_cpus: u32) -> Result<Self> {
        let text = c_str(text);
        let line = text.split(|b| *b == b'\n').next().unwrap_or_default();
        let mut words = n_cpus.div_ceil(32);
        let mut set = Self::default();
        let mut base = 0;
        let mut rest = line;
        // From the right, as the kernel reads: a word is up to 8 digits, words end at commas and blanks.
        loop {
            while let [left @ .., b] = rest {
                if !ends_region(*b) {
                    break;
                }
                rest = left;
            }
            if rest.is_empty() {
                break;
            }
            if words == 0 {
                return Err(Errno::EOVERFLOW);
            }
            words -= 1;
            let start = rest.iter().rposition(|b| ends_region(*b)).map_or(0, |n| n + 1);
            let word = &rest[start..];
            for (i, b) in word.iter().rev().enumerate() {
                let digit = (*b as char).to_digit(16);
                match digit {
                    None if i < 8 => return Err(Errno::EINVAL),
                    Some(_) if i >= 8 => return Err(Errno::EOVERFLOW),
                    None => break,
                    Some(d) => (0..4).filter(|k| d >> k & 1 == 1).for_each(|k| set.insert(base + 4 * i as u32 + k)),
                }
            }
            base += 32;
            rest = &rest[..start];
        }
        if set.iter().any(|c| c >= n_cpus) {
            return Err(Errno::EOVERFLOW);
        }
        Ok(set)
    }

    /// What a write to `cpus_list` means: "0-3,7", strides "0-15:2/4", "N" (the last CPU) and "all" included.
    ///
    /// # Errors
    /// EINVAL for what is no list, ERANGE for CPUs past `n_cpus`, EOVERFLOW for numbers over 32 bits.
    pub fn parse_list(text: &[u8], n_cpus: u32) -> Result<Self> {
        let mut set = Self::default();
        let mut at = Reader { text: c_str(text), last: n_cpus.saturating_sub(1) };
        loop {
            while at.peek().is_some_and(|b| ends_region(b) && b != b'\n') {
                at.step();
            }
            if at.ends() {
                return Ok(set);
            }
            let (start, end);
            if at.text.len() >= 3 && at.text[..3].eq_ignore_ascii_case(b"all") {
                at.text = &at.text[3..];
                (start, end) = (0, at.last);
            } else {
                start = at.number()?;
                end = match at.peek() {
                    b if b.is_none_or(ends_region) => start,
                    Some(b'-') => {
                        at.step();
                        at.number()?
                    }
                    _ => return Err(Errno::EINVAL),
                };
            }
            let (mut used, mut group) = (end.saturating_add(1), end.saturating_add(1));
            match at.peek() {
                b if b.is_none_or(ends_region) => {}
                Some(b':') => {
                    at.step();
                    used = at.number()?;
                    if at.peek() != Some(b'/') {
                        return Err(Errno::EINVAL);
                    }
                    at.step();
                    group = at.number()?;
                }
                _ => return Err(Errno::EINVAL),
            }
            if start > end || group == 0 || used > group {
                return Err(Errno::EINVAL);
            }
            if end >= n_cpus {
                return Err(Errno::ERANGE);
            }
            (start..=end).filter(|c| (c - start) % group < used).for_each(|c| set.insert(c));
        }
    }
}

fn ends_region(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c | b',')
}

struct Reader<'a> {
    text: &'a [u8],
    last: u32,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.first().copied()
    }

    fn step(&mut self) {
        self.text = &self.text[1..];
    }

    fn ends(&self) -> bool {
        matches!(self.peek(), None | Some(b'\n'))
    }

    fn number(&mut self) -> Result<u32> {
        if self.peek() == Some(b'N') {
            self.step();
            return Ok(self.last);
        }
        let digits = self.text.iter().take_while(|b| b.is_ascii_digit()).count();
        let (number, rest) = self.text.split_at(digits);
        self.text = rest;
        match std::str::from_utf8(number) {
            Ok("") | Err(_) => Err(Errno::EINVAL),
            Ok(n) => n.parse().map_err(|_| Errno::EOVERFLOW),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &[u32]) -> Cpus {
        cpus.iter().copied().collect()
    }

    /// Both forms show what they read, at widths over one word too.
    #[test]
    fn masks_and_lists_round_trip() {
        let s = set(&[0, 1, 2, 5, 33, 39]);
        assert_eq!(s.mask(40), "82,00000027");
        assert_eq!(s.list(), "0-2,5,33,39");
        assert_eq!(Cpus::parse_mask(b"82,00000027\n", 40), Ok(s.clone()));
        assert_eq!(Cpus::parse_list(b"0-2,5,33,N\n", 40), Ok(s));
        assert_eq!(Cpus::parse_list(b"0-7:1/4", 8), Ok(set(&[0, 4])));
    }

    /// What the kernel refuses, with its errno.
    #[test]
    fn bad_cpus_are_refused() {
        assert_eq!(Cpus::parse_mask(b"100\n", 8), Err(Errno::EOVERFLOW));
        assert_eq!(Cpus::parse_mask(b"0x1\n", 8), Err(Errno::EINVAL));
        assert_eq!(Cpus::parse_list(b"0-8\n", 8), Err(Errno::ERANGE));
        assert_eq!(Cpus::parse_list(b"1-0\n", 8), Err(Errno::EINVAL));
    }
}
