//! Lines of `schemata` and `size`: "L3:0=7ff;1=7ff", padded and indented as the kernel likes, read by name and by domain id.

use std::collections::BTreeMap;

/// Values by domain id.
pub type Line = BTreeMap<u32, String>;

/// Lines by resource, those that nobody here knows included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schemata(BTreeMap<String, Line>);

impl Schemata {
    /// What is not a line of that form is left out.
    pub fn parse(text: &str) -> Self {
        let line = |l: &str| {
            let (name, rest) = l.trim().split_once(':')?;
            let values = rest.split(';').filter_map(|p| {
                let (id, v) = p.split_once('=')?;
                Some((id.trim().parse().ok()?, v.trim().to_string()))
            });
            Some((name.trim().to_string(), values.collect()))
        };
        Schemata(text.lines().filter_map(line).collect())
    }

    pub fn line(&self, resource: &str) -> Option<&Line> {
        self.0.get(resource)
    }

    pub fn value(&self, resource: &str, domain: u32) -> Option<&str> {
        self.0.get(resource)?.get(&domain).map(String::as_str)
    }

    /// A CBM; None for what is no mask.
    pub fn mask(&self, resource: &str, domain: u32) -> Option<u32> {
        u32::from_str_radix(self.value(resource, domain)?, 16).ok()
    }

    pub fn number(&self, resource: &str, domain: u32) -> Option<u32> {
        self.value(resource, domain)?.parse().ok()
    }

    /// What `now` has other than this, as it is here. What only one of them has counts for nothing: a domain without a CPU on line is not shown.
    pub fn lost_in(&self, now: &Self) -> Self {
        let differs = |name: &String, id: u32, v: &String| now.value(name, id).is_some_and(|n| n != v);
        let line = |(name, line): (&String, &Line)| {
            let lost: Line = line.iter().filter(|(id, v)| differs(name, **id, v)).map(|(id, v)| (*id, v.clone())).collect();
            (!lost.is_empty()).then(|| (name.clone(), lost))
        };
        Schemata(self.0.iter().filter_map(line).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text of one write of all of it. Bandwidth comes last: under `mba_MBps` it is in force while the rest is still being parsed.
    pub fn to_write(&self) -> String {
        let line = |(name, line): (&String, &Line)| {
            let values: Vec<String> = line.iter().map(|(id, v)| format!("{id}={v}")).collect();
            format!("{name}:{}\n", values.join(";"))
        };
        let (mb, others): (Vec<_>, Vec<_>) = self.0.iter().partition(|(name, _)| *name == "MB");
        others.into_iter().chain(mb).map(line).collect()
    }
}

/// One value to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub resource: &'static str,
    pub domain: u32,
    pub value: String,
}

/// The text of one write: a line a resource, in the order given, each ended as the kernel requires.
pub fn text(entries: &[Entry]) -> String {
    let mut out = String::new();
    let mut last = "";
    for e in entries {
        if e.resource == last {
            out.push(';');
        } else {
            if !last.is_empty() {
                out.push('\n');
            }
            out += e.resource;
            out.push(':');
            last = e.resource;
        }
        out += &format!("{}={}", e.domain, e.value);
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Padding, indentation, unknown resources, ids with gaps and broken lines.
    #[test]
    fn lines_are_read_by_key() {
        let s = Schemata::parse("    MB:0=  100;16=   50\nL3DATA:0=7ff;16=600\nnonsense\nSMBA:0=8;x=1\n   L2:0=f\n");
        assert_eq!((s.number("MB", 16), s.mask("L3DATA", 16), s.mask("L2", 0)), (Some(50), Some(0x600), Some(0xf)));
        assert_eq!((s.value("SMBA", 0), s.line("L3").is_none(), s.value("MB", 1)), (Some("8"), true, None));
        assert_eq!(s.line("SMBA").unwrap().len(), 1);
    }

    /// One write for everything, with a newline at the end.
    #[test]
    fn a_write_has_a_line_for_each_resource() {
        let e = |resource, domain, value: &str| Entry { resource, domain, value: value.into() };
        assert_eq!(text(&[e("L3", 0, "3"), e("L3", 16, "c"), e("MB", 0, "50")]), "L3:0=3;16=c\nMB:0=50\n");
        assert_eq!(text(&[]), "");
    }
}
