//! What is wrong with a TOML file, in one line.

use crate::error::Error;
use std::ops::Range;
use std::path::Path;
use surefoot_server::names::expected;

/// "file:line", for a span of the text.
pub fn place(file: &Path, text: &str, span: &Range<usize>) -> String {
    let line = 1 + text[..span.start.min(text.len())].matches('\n').count();
    format!("{}:{line}", file.display())
}

/// One line from a TOML error: file, line, field, cause, remedy.
pub fn toml_error(file: &Path, text: &str, e: &toml::de::Error, remedy: &str) -> Error {
    let message = e.message().trim().replace('\n', "; ");
    // A field that the file itself lacks stands on no line.
    let Some(span) = e.span().filter(|s| s.start > 0 || !message.starts_with("missing field")) else {
        return Error::BadInput(format!("{}: {message}. Mend it: {remedy}", file.display()));
    };
    let start = span.start.min(text.len());
    let line_start = text[..start].rfind('\n').map_or(0, |i| i + 1);
    let line = text[line_start..].lines().next().unwrap_or("");
    let key = line.split('=').next().map(str::trim).filter(|k| line.contains('=') && !k.is_empty() && !k.starts_with('['));
    let section = text[..line_start].lines().rev().find_map(|l| {
        let l = l.trim();
        l.starts_with('[').then(|| l.trim_start_matches('[').split(']').next().unwrap_or("").to_string())
    });
    let field = match (section, key) {
        (Some(s), Some(k)) => format!("{s}.{k}: "),
        (None, Some(k)) => format!("{k}: "),
        _ => String::new(),
    };
    // serde lists what it expected; a near name is more help, the list once more is none.
    let near = expected(&message).map_or(String::new(), |near| format!(". Did you mean \"{near}\"?"));
    // Numbers beyond 64 bits; i64's smallest is of no use to any field.
    let near = if message.contains("128, expected i64") { format!(". The largest is {}", i64::MAX) } else { near };
    let dot = if near.ends_with('?') { "" } else { "." };
    Error::BadInput(format!("{}: {field}{message}{near}{dot} Mend that line: {remedy}", place(file, text, &span)))
}
