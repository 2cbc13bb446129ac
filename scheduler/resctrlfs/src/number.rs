//! Numbers as the kernel reads them from user space: one trailing newline passes, blanks do not.

use crate::errno::{Errno, Result};

/// Up to the first NUL: the kernel sees C strings.
pub fn c_str(text: &[u8]) -> &[u8] {
    text.iter().position(|b| *b == 0).map_or(text, |n| &text[..n])
}

fn is_blank(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Without blanks at both ends (the kernel's idea of blanks).
pub fn trim(mut text: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = text {
        if !is_blank(*first) {
            break;
        }
        text = rest;
    }
    while let [rest @ .., last] = text {
        if !is_blank(*last) {
            break;
        }
        text = rest;
    }
    text
}

/// An unsigned number; base 0 reads `0x` and a leading 0 as C does.
///
/// # Errors
/// EINVAL for anything else, ERANGE over 64 bits.
pub fn unsigned(text: &[u8], base: u32) -> Result<u64> {
    let s = c_str(text);
    let s = s.strip_prefix(b"+").unwrap_or(s);
    let hex = s.len() > 1 && s[0] == b'0' && s[1].eq_ignore_ascii_case(&b'x');
    let (base, s) = match base {
        0 if hex && s.get(2).is_some_and(u8::is_ascii_hexdigit) => (16, &s[2..]),
        0 if s.first() == Some(&b'0') => (8, s),
        0 => (10, s),
        16 if hex => (16, &s[2..]),
        b => (b, s),
    };
    let digits = s.iter().take_while(|b| (**b as char).is_digit(base)).count();
    let (number, rest) = s.split_at(digits);
    if number.is_empty() {
        return Err(Errno::EINVAL);
    }
    let mut value: u64 = 0;
    for b in number {
        let digit = u64::from((*b as char).to_digit(base).unwrap_or(0));
        value = value.checked_mul(u64::from(base)).and_then(|v| v.checked_add(digit)).ok_or(Errno::ERANGE)?;
    }
    match rest {
        [] | [b'\n'] => Ok(value),
        _ => Err(Errno::EINVAL),
    }
}

/// An unsigned number of 32 bits.
///
/// # Errors
/// As [`unsigned`]; ERANGE over 32 bits.
pub fn unsigned_32(text: &[u8], base: u32) -> Result<u32> {
    u32::try_from(unsigned(text, base)?).map_err(|_| Errno::ERANGE)
}

/// A signed number of 32 bits.
///
/// # Errors
/// As [`unsigned`]; ERANGE out of 32 bits.
pub fn signed_32(text: &[u8], base: u32) -> Result<i32> {
    let value = match text.strip_prefix(b"-") {
        Some(rest) if rest.first() == Some(&b'+') => return Err(Errno::EINVAL),
        Some(rest) => -i128::from(unsigned(rest, base)?),
        None => i128::from(unsigned(text, base)?),
    };
    i32::try_from(value).map_err(|_| Errno::ERANGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bases, prefixes and one newline as the kernel takes them; everything else is refused with its errno.
    #[test]
    fn numbers_read_as_the_kernel_reads_them() {
        assert_eq!(unsigned(b"0x3F", 16), Ok(0x3f));
        assert_eq!(unsigned(b"+0\n", 10), Ok(0));
        assert_eq!(unsigned(b"010", 0), Ok(8));
        assert_eq!(unsigned(b"0x10", 0), Ok(16));
        assert_eq!(unsigned(b"f\0junk", 16), Ok(15));
        for bad in [&b""[..], b" 1", b"1 ", b"1\n\n", b"-1", b"x"] {
            assert_eq!(unsigned(bad, 10), Err(Errno::EINVAL), "{bad:?}");
        }
        assert_eq!(unsigned(b"fffffffffffffffff", 16), Err(Errno::ERANGE));
        assert_eq!(signed_32(b"-7", 0), Ok(-7));
        assert_eq!(signed_32(b"2147483648", 0), Err(Errno::ERANGE));
        assert_eq!(unsigned_32(b"4294967296", 10), Err(Errno::ERANGE));
    }
}
