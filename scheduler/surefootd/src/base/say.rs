//! Results of commands on standard output. By then everything is given back and every file is whole: what happens here changes
//! nothing but what a reader sees.

use crate::base::error::{Error, Result};
use serde::Serialize;
use std::io::ErrorKind;
use surefoot_io::out;

/// A result for people; lines end with `\n`.
///
/// # Errors
/// [`Error::Failed`] where it cannot be written. A reader that has gone, or that takes nothing when the process is to end, is no error.
pub fn print(text: &str) -> Result<()> {
    done(out::print(text))
}

/// A result for programs, one line.
///
/// # Errors
/// As [`print`].
pub fn json(value: &impl Serialize) -> Result<()> {
    done(out::json(value))
}

/// JSON that was laid out already.
///
/// # Errors
/// As [`print`].
pub fn json_text(text: &str) -> Result<()> {
    done(out::json_text(text))
}

fn done(written: std::io::Result<()>) -> Result<()> {
    match written {
        Err(e) if e.kind() == ErrorKind::TimedOut => {
            tracing::warn!("standard output: {e}: the result is not said in full");
            Ok(())
        }
        other => {
            other.map_err(|e| Error::Failed(format!("standard output: cannot be written: {e}. Make room there, or send it elsewhere")))
        }
    }
}

/// A line more on a page that is printed whole.
#[macro_export]
macro_rules! line {
    ($page:expr, $($arg:tt)*) => {{
        use std::fmt::Write as _;
        // Into memory: it cannot fail.
        let _ = writeln!($page, $($arg)*);
    }};
}
