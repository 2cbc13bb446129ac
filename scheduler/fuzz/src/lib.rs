//! Properties of everything that a node reads from outside, one function an input.
//!
//! Each takes bytes and panics where a promise is broken; `fuzz_targets/` hands them to libfuzzer (`make fuzz`), and
//! `tests/seeds.rs` replays `seeds/` through them with the ordinary compiler. Not only "does not crash": what was read, printed
//! and read again is the same; a cut journal is a journal; a datagram costs bounded memory and time; a changed bundle is refused.

#![forbid(unsafe_code)]

pub mod bundle;
pub mod host;
pub mod journal;
pub mod latency;
pub mod lists;
pub mod requests;
pub mod resctrlfs;
pub mod schemata;
pub mod scrape;

/// Panics where these bytes break a promise.
pub type Property = fn(&[u8]);

/// Name and property of every target.
pub const TARGETS: &[(&str, Property)] = &[
    ("bundle", bundle::run),
    ("host", host::run),
    ("journal", journal::run),
    ("latency", latency::run),
    ("lists", lists::run),
    ("requests", requests::run),
    ("resctrlfs", resctrlfs::run),
    ("schemata", schemata::run),
    ("scrape", scrape::run),
];

/// A target: libfuzzer's entry point; without libfuzzer a program that runs the files that it is given.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$name::run(data));

        #[cfg(not(fuzzing))]
        fn main() {
            for path in std::env::args_os().skip(1) {
                $crate::$name::run(&std::fs::read(&path).expect("a file to run"));
            }
        }
    };
}

/// A message for an operator: one line, and not an empty one.
pub fn one_line(message: &str) {
    assert!(!message.trim().is_empty() && !message.contains('\n'), "{message:?}");
}
