//! What is wrong with a bundle or a key, in one line.

use crate::rules::{rules, Kind};

/// A bundle or a key was refused: file at fault, field, problem, remedy. Bad input: exit code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {field}: {problem}. {remedy}.")]
pub struct BundleError {
    pub kind: Kind,
    pub file: String,
    pub field: String,
    pub problem: String,
    pub remedy: String,
}

impl BundleError {
    pub(crate) fn new(kind: Kind, file: &str, field: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        BundleError { kind, file: one_line(file), field: one_line(field), problem: one_line(problem), remedy: remedy.into() }
    }
}

/// Text from a file as part of a message: what a terminal obeys or hides is escaped, so that a message is one line and moves no cursor.
pub(crate) fn one_line(text: impl Into<String>) -> String {
    let text: String = text.into();
    let plain = |c: char| !c.is_control() && rules().is_plain(c);
    match text.chars().all(plain) {
        true => text,
        false => text.chars().map(|c| if plain(c) { c.to_string() } else { c.escape_default().to_string() }).collect(),
    }
}
