//! For tests: mutations of a valid input ([`Mutator`]), a program that is watched while it reads one ([`watch`]), and an allocator that
//! counts ([`allocations`]).
//!
//! A mutation changes bytes (flips, cuts, copies, splices, hostile tokens) or, where the input is JSON or TOML, its tree: types,
//! extreme numbers, names, lengths, depth. The same seed gives the same mutations.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "for tests, whose input and output are their own")]

pub mod allocations;
mod bytes;
mod hostile;
mod tree;
pub mod watch;

use fastrand::Rng;

/// What an input is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Anything.
    Bytes,
    Json,
    /// One JSON value a line.
    JsonLines,
    Toml,
}

/// Draws mutations of one specimen.
pub struct Mutator {
    rng: Rng,
    form: Form,
    specimen: Vec<u8>,
}

impl Mutator {
    pub fn new(seed: u64, form: Form, specimen: impl Into<Vec<u8>>) -> Self {
        Mutator { rng: Rng::with_seed(seed), form, specimen: specimen.into() }
    }

    /// The next mutation: one change, more rarely two or three.
    pub fn draw(&mut self) -> Vec<u8> {
        let mut out = self.specimen.clone();
        for _ in 0..[1, 1, 1, 2, 3][self.rng.usize(0..5)] {
            out = self.change(&out);
        }
        out
    }

    fn change(&mut self, from: &[u8]) -> Vec<u8> {
        // Most keep the form, so that they come past the parser.
        let of_tree = (self.rng.u8(0..3) > 0).then(|| match self.form {
            Form::Bytes => None,
            Form::Json => tree::json(&mut self.rng, from),
            Form::Toml => tree::toml(&mut self.rng, from),
            Form::JsonLines => self.change_line(from),
        });
        of_tree.flatten().unwrap_or_else(|| bytes::change(&mut self.rng, from))
    }

    fn change_line(&mut self, from: &[u8]) -> Option<Vec<u8>> {
        let mut lines: Vec<Vec<u8>> = from.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
        // The first lines are heads, and there is one of them beside many others.
        let most = if self.rng.u8(0..3) == 0 { lines.len().min(2) } else { lines.len() };
        let i = self.rng.usize(0..most.max(1));
        let mut line = tree::json(&mut self.rng, lines.get(i)?)?;
        line.push(b'\n');
        lines[i] = line;
        Some(lines.concat())
    }
}

/// How many mutations of each format: a number for every day, many more where `SUREFOOT_MUTATIONS` says so.
pub fn how_many(every_day: usize) -> usize {
    std::env::var("SUREFOOT_MUTATIONS").ok().and_then(|v| v.parse().ok()).unwrap_or(every_day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same seed draws the same mutations, another seed others; most differ from the specimen.
    #[test]
    fn mutations_are_drawn_from_a_seed() {
        let specimen = "{\"a\": [1, 2, {\"b\": \"text\"}], \"c\": true}\n";
        let draw = |seed| {
            let mut m = Mutator::new(seed, Form::Json, specimen);
            (0..200).map(|_| m.draw()).collect::<Vec<_>>()
        };
        let (one, other) = (draw(1), draw(2));
        assert!(one == draw(1) && one != other);
        assert!(one.iter().filter(|m| m.as_slice() == specimen.as_bytes()).count() < 10);
    }

    /// Most mutations of a tree keep the form and come past the parser.
    #[test]
    fn many_mutations_keep_the_form() {
        let toml = "name = \"x\"\nlist = [1, 2]\n[table]\nkey = 1.5\n[[row]]\na = 1\n[[row]]\na = 2\n";
        let mut m = Mutator::new(3, Form::Toml, toml);
        let whole = (0..500).filter(|_| std::str::from_utf8(&m.draw()).is_ok_and(|t| t.parse::<::toml::Table>().is_ok())).count();
        assert!((200..480).contains(&whole), "{whole}");
        let mut m = Mutator::new(4, Form::JsonLines, "{\"a\":1}\n{\"b\":[2]}\n{\"c\":\"x\"}\n");
        let whole = (0..500)
            .filter(|_| m.draw().split(|b| *b == b'\n').all(|l| l.is_empty() || serde_json::from_slice::<serde_json::Value>(l).is_ok()));
        let whole = whole.count();
        assert!((200..490).contains(&whole), "{whole}");
    }
}
