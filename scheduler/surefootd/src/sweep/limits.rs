//! Axes in bytes: the memory of the measured service, and the part of it that may hold compressed pages.
//!
//! A value is a size with its unit, per cent of something that the caller knows, or no limit at all. What must hold: a value that is written
//! the same has the same name in the keys of cases, and names do not depend on what the target makes of them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One value of such an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// No limit is set.
    None,
    Pct(f64),
    Bytes(u64),
}

impl fmt::Display for Amount {
    /// As case keys have it.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Amount::None => write!(f, "none"),
            Amount::Pct(pct) => write!(f, "{pct}%"),
            Amount::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// Such an axis, as written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "give an amount of memory such as \"400 MiB\" or \"80%\", a range of it, \"none\", or a list of these")]
pub enum Limits {
    Text(String),
    List(Vec<String>),
}

/// Units of a size.
const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
/// Kernels take limits in pages.
const PAGE_BYTES: u64 = 4096;
/// Most values of one axis: each is measured with every cell of a plane.
const MOST: usize = 1000;
/// Highest per cent, and the largest size.
const MOST_PCT: f64 = 1000.0;
const MOST_BYTES: u64 = 1 << 46;

/// Bytes as people read them: "36.2 GiB".
pub fn said(bytes: u64) -> String {
    match UNITS.iter().find(|(_, of)| bytes >= *of) {
        Some((unit, of)) => format!("{:.4} {unit}", bytes as f64 / *of as f64).replace(".0000 ", " "),
        None => format!("{bytes} B"),
    }
}

/// To six decimals: numbers that are written the same are the same.
pub fn round6(x: f64) -> f64 {
    (x * 1e6).round() / 1e6
}

/// Down to whole pages.
pub fn whole_pages(bytes: f64) -> u64 {
    bytes.clamp(0.0, MOST_BYTES as f64) as u64 / PAGE_BYTES * PAGE_BYTES
}

fn remedy() -> &'static str {
    "Write \"80%\", \"60%..120% step 10%\", \"400 MiB\", \"400 MiB..800 MiB step 100 MiB\", \"none\", or a list of these"
}

/// A number and what it is of: per cent, or bytes.
#[derive(Clone, Copy, PartialEq)]
struct Number {
    value: f64,
    /// None: per cent.
    unit: Option<u64>,
}

impl Number {
    fn read(text: &str) -> Option<Number> {
        let text = text.trim();
        let number = |t: &str| t.trim().parse::<f64>().ok().filter(|x| x.is_finite());
        if let Some(t) = text.strip_suffix('%') {
            return Some(Number { value: number(t)?, unit: None });
        }
        let (unit, of) = UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
        Some(Number { value: number(text.strip_suffix(unit)?)?, unit: Some(*of) })
    }

    fn amount(self) -> Result<Amount, String> {
        match self.unit {
            None if (0.0..=MOST_PCT).contains(&self.value) => Ok(Amount::Pct(round6(self.value))),
            None => Err(format!("{}% is out of range. Give 0% to {MOST_PCT}%", self.value)),
            Some(of) => {
                let bytes = self.value * of as f64;
                let fits = (0.0..=MOST_BYTES as f64).contains(&bytes);
                fits.then(|| Amount::Bytes(whole_pages(bytes)))
                    .ok_or_else(|| format!("{bytes} bytes are out of range. Give 0 KiB to 64 TiB"))
            }
        }
    }
}

impl Limits {
    /// The values, in the order in which they are written. Ranges are inclusive, and name their step.
    ///
    /// # Errors
    /// What is wrong, with the remedy; the caller names file and field.
    pub fn values(&self) -> Result<Vec<Amount>, String> {
        let texts = match self {
            Limits::Text(t) => std::slice::from_ref(t),
            Limits::List(l) => l.as_slice(),
        };
        if texts.is_empty() {
            return Err(format!("is empty. {}", remedy()));
        }
        let mut found: Vec<Amount> = vec![];
        for text in texts {
            for amount in values_of(text)? {
                if found.contains(&amount) {
                    let twice = "stands there twice. Name each value once; use sampling.repeats to measure again";
                    return Err(format!("{} {twice}", written(amount)));
                }
                found.push(amount);
            }
        }
        if found.len() > MOST {
            return Err(format!("{} values are too many. Give at most {MOST}", found.len()));
        }
        Ok(found)
    }
}

fn written(amount: Amount) -> String {
    match amount {
        Amount::Bytes(bytes) => said(bytes),
        other => other.to_string(),
    }
}

fn values_of(text: &str) -> Result<Vec<Amount>, String> {
    let bad = || {
        let no_unit = text.trim().parse::<f64>().is_ok();
        format!("\"{text}\" {}. {}", if no_unit { "has no unit" } else { "is no amount of memory" }, remedy())
    };
    if text.trim() == "none" {
        return Ok(vec![Amount::None]);
    }
    let Some((from, rest)) = text.split_once("..") else {
        return Ok(vec![Number::read(text).ok_or_else(bad)?.amount()?]);
    };
    let Some((to, step)) = rest.split_once("step") else { return Err(format!("\"{text}\" names no step. {}", remedy())) };
    let [from, to, step] = [from, to, step].map(Number::read);
    let (Some(from), Some(to), Some(step)) = (from, to, step) else { return Err(bad()) };
    let per_cent = |n: Number| n.unit.is_none();
    if per_cent(from) != per_cent(to) || per_cent(from) != per_cent(step) {
        return Err(format!("\"{text}\" is partly in per cent. Give all of it in per cent, or all of it as sizes"));
    }
    // All in the unit of the first: a range of sizes may name several.
    let unit = from.unit.unwrap_or(1) as f64;
    let of = |n: Number| n.value * n.unit.unwrap_or(1) as f64 / unit;
    let (a, b, by) = (from.value, of(to), of(step));
    if a > b || by <= 0.0 {
        return Err(format!("\"{text}\" holds no value. Write the smaller bound first and a step above 0"));
    }
    let n = ((b - a) / by + 1e-9).floor();
    if n >= MOST as f64 {
        return Err(format!("\"{text}\" holds more than {MOST} values. Use a wider step"));
    }
    (0..=n as u64).map(|i| Number { value: round6(a + i as f64 * by), unit: from.unit }.amount()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of(text: &str) -> Result<Vec<Amount>, String> {
        Limits::Text(text.into()).values()
    }

    /// Per cent, sizes in any unit, ranges with their ends, and no limit; sizes are whole pages.
    #[test]
    fn amounts_are_read() {
        assert_eq!(of("60%..90% step 10%").unwrap(), [60.0, 70.0, 80.0, 90.0].map(Amount::Pct));
        assert_eq!(of("400 MiB..0.5GiB step 56 MiB").unwrap(), [400, 456, 512].map(|m| Amount::Bytes(m * MIB)));
        assert_eq!((of("none").unwrap(), of("12.5 %").unwrap()), (vec![Amount::None], vec![Amount::Pct(12.5)]));
        assert_eq!(of("5 KiB").unwrap(), [Amount::Bytes(4096)]);
        let list = Limits::List(vec!["none".into(), "2 GiB".into(), "10%..20% step 10%".into()]);
        assert_eq!(list.values().unwrap(), [Amount::None, Amount::Bytes(2048 * MIB), Amount::Pct(10.0), Amount::Pct(20.0)]);
        // One amount has one name, however it is written.
        assert_eq!(
            (of("1 GiB").unwrap()[0].to_string(), of("1024MiB").unwrap()[0].to_string()),
            ("1073741824".into(), "1073741824".into())
        );
        assert_eq!((said(3 << 30), said(1536 * MIB), said(100)), ("3 GiB".into(), "1.5000 GiB".into(), "100 B".into()));
    }

    /// Each way to be wrong says what to write.
    #[test]
    fn what_is_no_amount_is_refused() {
        for (text, says) in [
            ("400", "has no unit"),
            ("lots", "is no amount of memory"),
            ("", "is no amount of memory"),
            ("-5%", "out of range"),
            ("1001%", "out of range"),
            ("nan%", "is no amount"),
            ("1e30 GiB", "out of range"),
            ("60%..90%", "names no step"),
            ("90%..60% step 10%", "smaller bound first"),
            ("60%..90% step 0%", "a step above 0"),
            ("60%..2 GiB step 10%", "partly in per cent"),
            ("0%..100% step 0.01%", "more than 1000 values"),
        ] {
            let e = of(text).unwrap_err();
            assert!(e.contains(says), "{text}: {e}");
        }
        let list = |l: &[&str]| Limits::List(l.iter().map(|s| (*s).into()).collect()).values().unwrap_err();
        assert!(list(&[]).contains("is empty"));
        assert!(list(&["1 GiB", "1024 MiB"]).contains("1 GiB stands there twice"));
    }
}
