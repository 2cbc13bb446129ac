//! JSON in one byte form: keys sorted, two spaces, ASCII, one final newline (docs/bundle-format.md).
//!
//! Two parsers that agree on well-formed text may still differ on a key that stands twice, a number beyond their range or half a
//! surrogate pair. Where a text must be what it would be written as, there is nothing left to differ about.

use serde_json::Value;
use std::fmt::Write;

/// Read `data`.
///
/// # Errors
/// Why it is not in its one form.
pub fn parse(data: &[u8], depth: usize) -> Result<Value, String> {
    if let Some(at) = too_deep(data, depth) {
        return Err(format!("is nested more than {depth} deep at byte {at}"));
    }
    let value: Value = serde_json::from_slice(data).map_err(|e| format!("is no JSON: {e}"))?;
    let form = to_bytes(&value);
    match data.iter().zip(&form).position(|(a, b)| a != b) {
        None if data.len() == form.len() => Ok(value),
        at => {
            let at = at.unwrap_or(data.len().min(form.len()));
            Err(format!("is not in its one form (keys sorted, none twice, two spaces, ASCII, a final newline) at byte {at}"))
        }
    }
}

/// Where brackets outside of strings are nested deeper than `most`.
fn too_deep(data: &[u8], most: usize) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    for (at, byte) in data.iter().enumerate() {
        match (quoted, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => quoted = !quoted,
            (false, b'[' | b'{') => depth += 1,
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > most {
            return Some(at);
        }
    }
    None
}

/// The one form of a value.
pub fn to_bytes(value: &Value) -> Vec<u8> {
    let mut out = String::new();
    write(value, 0, &mut out);
    out.push('\n');
    out.into_bytes()
}

fn write(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Null | Value::Bool(_) => out.push_str(&value.to_string()),
        Value::Number(n) => out.push_str(&n.as_f64().filter(|_| n.is_f64()).map_or_else(|| n.to_string(), number)),
        Value::String(s) => string(s, out),
        Value::Array(list) if list.is_empty() => out.push_str("[]"),
        Value::Object(map) if map.is_empty() => out.push_str("{}"),
        Value::Array(list) => {
            out.push('[');
            for (i, v) in list.iter().enumerate() {
                line(i, indent + 2, out);
                write(v, indent + 2, out);
            }
            close(indent, ']', out);
        }
        Value::Object(map) => {
            out.push('{');
            for (i, (k, v)) in map.iter().enumerate() {
                line(i, indent + 2, out);
                string(k, out);
                out.push_str(": ");
                write(v, indent + 2, out);
            }
            close(indent, '}', out);
        }
    }
}

fn line(nth: usize, indent: usize, out: &mut String) {
    out.push_str(if nth == 0 { "\n" } else { ",\n" });
    out.extend(std::iter::repeat_n(' ', indent));
}

fn close(indent: usize, bracket: char, out: &mut String) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', indent));
    out.push(bracket);
}

fn string(s: &str, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

/// A finite number as Python's `repr` and so the lab writes it: the fewest digits that are read back as the same number; an exponent of two
/// digits below 1e-4 and from 1e16.
pub fn number(v: f64) -> String {
    let scientific = format!("{v:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        let plain = v.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers are written as Python's repr writes them, at each edge of its forms.
    #[test]
    fn numbers_are_the_labs() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (36.0, "36.0"),
            (1e-8, "1e-08"),
            (0.0001, "0.0001"),
            (0.00001234, "1.234e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (220_000_000.000_000_03, "220000000.00000003"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (-2.5e-7, "-2.5e-07"),
        ];
        for (v, text) in cases {
            assert_eq!(number(v), text);
        }
    }

    /// Whatever has a second way to be written is refused: keys twice or out of order, other spaces, escapes, numbers, nesting.
    #[test]
    fn only_the_one_form_is_read() {
        let one = "{\n  \"a\": [\n    1,\n    2.5\n  ],\n  \"b\": \"\\u00e9\\n\\ud83d\\ude00\",\n  \"c\": {}\n}\n";
        assert!(parse(one.as_bytes(), 4).is_ok());
        let others = [
            "{}",
            "{}\n\n",
            "\u{feff}{}\n",
            "{\n  \"a\": 1,\n  \"a\": 1\n}\n",
            "{\n  \"b\": 1,\n  \"a\": 1\n}\n",
            "{\"a\": 1}\n",
            "{\n  \"a\": 1.50\n}\n",
            "{\n  \"a\": -0\n}\n",
            "{\n  \"a\": 1e5\n}\n",
            "{\n  \"a\": 1e999\n}\n",
            "{\n  \"a\": NaN\n}\n",
            "{\n  \"a\": 18446744073709551616\n}\n",
            "{\n  \"a\": \"\u{e9}\"\n}\n",
            "{\n  \"a\": \"\\u00E9\"\n}\n",
            "{\n  \"a\": \"\\ud800\"\n}\n",
            "{\n  \"a\": \"\\/\"\n}\n",
            "{\n  \"a\": \"\u{7f}\"\n}\n",
        ];
        for text in others {
            assert!(parse(text.as_bytes(), 4).is_err(), "{text:?}");
        }
        assert!(parse(b"[[[[1]]]]\n", 3).unwrap_err().contains("nested"));
        assert!(parse("[".repeat(1 << 20).as_bytes(), 3).unwrap_err().contains("nested"));
        assert!(parse(b"\"[[[[[[[[\"\n", 3).is_ok(), "brackets in text nest nothing");
        assert!(parse(&[0xff, b'\n'], 3).is_err());
    }
}
