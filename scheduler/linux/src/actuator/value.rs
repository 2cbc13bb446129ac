//! What may be written into which kernel file: the grammar of each value, checked before the kernel sees it.
//!
//! Pure. The kernel checks again, and better; this bounds what a client that has been taken over can send it at all.

use crate::memory::MOST_STEP_BYTES;

/// Longest value: the kernel takes no more of a schemata.
pub const MAX_VALUE: usize = 4096;

/// Form of a value. One newline may end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grammar {
    /// "0-3,8" or nothing.
    List,
    /// "member", "root" or "isolated".
    Partition,
    /// "max" or a number, then a period or nothing.
    Quota,
    /// A number.
    Number,
    /// "max" or a number.
    Limit,
    /// -1 or a number.
    Signed,
    /// A number of bytes, no more than one step takes.
    Reclaim,
    /// "L3:0=7f;1=3" lines.
    Schemata,
    /// One thread id.
    Thread,
    /// The one mode of a group of ours: ways of an exclusive one can be given to nobody else.
    Shareable,
    /// No CPU at all: whoever runs on one of a group's CPUs is in the group.
    NoCpu,
}

/// A decimal number in its one form: the kernel reads one that begins with 0 as octal in some files, and not in others.
fn digits(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'))
}

/// Unsigned 64-bit numbers have up to 20 digits.
fn number(text: &str) -> bool {
    digits(text, 20)
}

fn limit(text: &str) -> bool {
    text == "max" || number(text)
}

fn list(text: &str) -> bool {
    let item = |i: &str| i.split_once('-').map_or(digits(i, 5), |(a, b)| digits(a, 5) && digits(b, 5));
    text.is_empty() || text.split(',').all(item)
}

fn hex(text: &str) -> bool {
    (1..=8).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn schemata_line(line: &str) -> bool {
    let Some((resource, rest)) = line.split_once(':') else { return false };
    let name = (1..=16).contains(&resource.len()) && resource.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
    // Masks are hexadecimal, bandwidth is decimal: both are short runs of hexadecimal digits.
    let domain = |d: &str| d.split_once('=').is_some_and(|(id, v)| digits(id, 5) && hex(v));
    name && rest.split(';').all(domain)
}

impl Grammar {
    /// In a message: what a value should have been.
    pub fn wants(self) -> &'static str {
        match self {
            Grammar::List => "a list such as 0-3,8",
            Grammar::Partition => "member, root or isolated",
            Grammar::Quota => "max or a number, and a period",
            Grammar::Number => "a number",
            Grammar::Limit => "max or a number",
            Grammar::Signed => "-1 or a number",
            Grammar::Reclaim => "a number of bytes up to 67108864",
            Grammar::Schemata => "lines such as L3:0=7f;1=3",
            Grammar::Thread => "one thread id",
            Grammar::Shareable => "shareable",
            Grammar::NoCpu => "an empty list",
        }
    }

    pub fn takes(self, text: &str) -> bool {
        if text.len() > MAX_VALUE {
            return false;
        }
        let one = text.strip_suffix('\n').unwrap_or(text);
        match self {
            Grammar::List => list(one),
            Grammar::Partition => ["member", "root", "isolated"].contains(&one),
            Grammar::Quota => one.split_once(' ').map_or(limit(one), |(q, p)| limit(q) && number(p)),
            Grammar::Number => number(one),
            Grammar::Limit => limit(one),
            Grammar::Signed => one == "-1" || number(one),
            Grammar::Reclaim => number(one) && one.parse::<u64>().is_ok_and(|bytes| bytes <= MOST_STEP_BYTES),
            Grammar::Schemata => one.split('\n').all(schemata_line),
            Grammar::Thread => digits(one, 10),
            Grammar::Shareable => one == "shareable",
            Grammar::NoCpu => text == "\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Surefoot writes is taken; what a hostile client could try is not.
    #[test]
    fn each_file_has_its_grammar() {
        use Grammar as G;
        let taken: [(Grammar, &[&str]); 11] = [
            (G::List, &["", "\n", "0", "0-3,8", "0-3,8\n", "65535"]),
            (G::Partition, &["member", "root\n", "isolated"]),
            (G::Quota, &["max", "max 10000", "1000 10000\n"]),
            (G::Number, &["0", "18446744073709551615"]),
            (G::Limit, &["max", "4096\n"]),
            (G::Signed, &["-1", "3000"]),
            (G::Reclaim, &["4096", "67108864\n"]),
            (G::Schemata, &["L3:0=7ff;1=3\nMB:0=40\n", "L3CODE:16=ff", "MB:0=4294967"]),
            (G::Thread, &["42\n", "4194304"]),
            (G::Shareable, &["shareable", "shareable\n"]),
            (G::NoCpu, &["\n"]),
        ];
        let long = format!("L3:{}0=1", "0=1;".repeat(2000));
        let hostile = [
            " 0",
            "0 ",
            "014",
            "00",
            "010000 100000",
            "0\n\n",
            "0-",
            "-",
            ",",
            "0,",
            "0-3-5",
            "0:1/2",
            "--1",
            "0x1",
            "pseudo-locksetup",
            "MAX",
            "max max",
            "1 2 3",
            "l3:0=1",
            "L3:0",
            "L3:=1",
            "L3:0=1;",
            "L3:0=1\n\nMB:0=1",
            "L3:0=g",
            "4\n5",
            "+cpu",
            "../x",
            "0\0",
            "٣",
            "184467440737095516150",
            &long,
        ];
        for (grammar, texts) in taken {
            texts.iter().for_each(|t| assert!(grammar.takes(t), "{grammar:?} {t:?}"));
            // Not one of the hostile texts fits anywhere.
            hostile.iter().for_each(|t| assert!(!grammar.takes(t), "{grammar:?} {t:?}"));
        }
        assert!([G::List, G::Number, G::Limit, G::Signed, G::Thread].iter().all(|g| !g.takes("1e3") && !g.takes("a")));
        assert!(["67108865", "64M", "18446744073709551616"].iter().all(|t| !G::Reclaim.takes(t)));
        assert!(!G::Thread.takes("") && !G::Thread.takes("1,2") && !G::Quota.takes("") && !G::Schemata.takes(""));
    }
}
