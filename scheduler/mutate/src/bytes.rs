//! Changes of bytes.

use crate::hostile;
use fastrand::Rng;
use std::ops::Range;

/// Longest text that a copy may make of a mutation.
const MOST_BYTES: usize = 4 << 20;

/// A piece of `from`, at most `most` bytes; empty where there is nothing.
fn piece(rng: &mut Rng, from: &[u8], most: usize) -> Range<usize> {
    if from.is_empty() {
        return 0..0;
    }
    let start = rng.usize(0..from.len());
    start..(start + rng.usize(1..=most)).min(from.len())
}

fn insert(from: &[u8], at: usize, what: &[u8]) -> Vec<u8> {
    [&from[..at], what, &from[at..]].concat()
}

/// One change.
pub fn change(rng: &mut Rng, from: &[u8]) -> Vec<u8> {
    let at = rng.usize(0..=from.len());
    match rng.u8(0..20) {
        0 | 1 if !from.is_empty() => {
            let mut out = from.to_vec();
            for _ in 0..rng.usize(1..=8) {
                out[rng.usize(0..from.len())] ^= 1 << rng.u8(0..8);
            }
            out
        }
        2 | 3 => from[..at].to_vec(),
        4 => from[at..].to_vec(),
        5 => {
            let copy = piece(rng, from, 400);
            insert(from, at, &from[copy])
        }
        6 => {
            // Written over what is there.
            let (copy, mut out) = (piece(rng, from, 100), from.to_vec());
            let n = copy.len().min(from.len() - at);
            out[at..at + n].copy_from_slice(&from[copy.start..copy.start + n]);
            out
        }
        7 => {
            let gone = piece(rng, from, 200);
            [&from[..gone.start], &from[gone.end..]].concat()
        }
        8 | 9 => insert(from, at, hostile::text(rng).as_bytes()),
        10 => insert(from, at, &[0xff, 0xfe, 0xc0, 0x80, 0xed, 0xa0, 0x80][..rng.usize(1..8)]),
        11 => numbers(rng, from),
        12 => {
            let deep = ["[", "{\"a\":", "[[", "{a=", "a.", "- ", "(", "\"\"\""][rng.usize(0..8)];
            insert(from, at, deep.repeat([100, 10_000, 300_000][rng.usize(0..3)]).as_bytes())
        }
        13 => lines(rng, from),
        14 => insert(from, 0, "\u{feff}".as_bytes()),
        15 => String::from_utf8_lossy(from).replace('\n', "\r\n").into_bytes(),
        16 => [from, from].concat(),
        17 => {
            // One line that is very long, or very many.
            let what = [b'x', b'\n', b'0', 0][rng.usize(0..4)];
            insert(from, at, &vec![what; MOST_BYTES / 4 + 1])
        }
        18 => {
            let mut all = from.to_vec();
            while all.len() < MOST_BYTES && all.len() < 64 * from.len() {
                all.extend_from_slice(from);
            }
            all
        }
        _ => insert(from, at, &[rng.u8(..)]),
    }
}

/// Another number in the place of one.
fn numbers(rng: &mut Rng, from: &[u8]) -> Vec<u8> {
    let starts: Vec<usize> = (0..from.len()).filter(|i| from[*i].is_ascii_digit() && (*i == 0 || !from[*i - 1].is_ascii_digit())).collect();
    if starts.is_empty() {
        return from.to_vec();
    }
    let start = starts[rng.usize(0..starts.len())];
    let end = from[start..].iter().position(|b| !(b.is_ascii_digit() || b".eE_".contains(b))).map_or(from.len(), |n| start + n);
    let other = match rng.u8(0..6) {
        0 => "9".repeat(5_000),
        1 => "1e999".into(),
        2 => "-9223372036854775809".into(),
        3 => "0.".to_string() + &"0".repeat(2_000) + "1",
        _ => hostile::number(rng).to_string(),
    };
    [&from[..start], other.as_bytes(), &from[end..]].concat()
}

/// Lines in another order, twice, or not at all.
fn lines(rng: &mut Rng, from: &[u8]) -> Vec<u8> {
    let mut all: Vec<&[u8]> = from.split_inclusive(|b| *b == b'\n').collect();
    if all.is_empty() {
        return vec![];
    }
    let (i, j) = (rng.usize(0..all.len()), rng.usize(0..all.len()));
    match rng.u8(0..4) {
        0 => all.swap(i, j),
        1 => drop(all.remove(i)),
        2 => all.insert(j, all[i]),
        _ => all.reverse(),
    }
    all.concat()
}
