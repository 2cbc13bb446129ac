//! How a command fails: bad input (exit code 2) or a failure on good input (exit code 1).

use std::fmt;
use surefoot_io::shown::message;
use surefoot_server::ServerError;

/// Each message is one line: file, field or step, what is wrong, what to do.
#[derive(Debug)]
pub enum Error {
    /// What the caller gave cannot be used. Exit code 2.
    BadInput(String),
    /// The input was fine, the work did not succeed. Exit code 1.
    Failed(String),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::BadInput(_) => 2,
            Error::Failed(_) => 1,
        }
    }

    /// The same, which also says of what.
    pub fn of(self, what: &str) -> Self {
        match self {
            Error::BadInput(m) => Error::BadInput(format!("{what}: {m}")),
            Error::Failed(m) => Error::Failed(format!("{what}: {m}")),
        }
    }

    /// An input file that cannot be read; `what` it should be ("a node.toml").
    pub fn unreadable(path: &std::path::Path, what: &str, e: &std::io::Error) -> Self {
        let remedy = match e.kind() {
            std::io::ErrorKind::PermissionDenied => "Check its owner and mode, and those of the folders above it".into(),
            std::io::ErrorKind::IsADirectory => format!("Name {what} in it"),
            std::io::ErrorKind::InvalidData => format!("It is no text: give the path of {what}"),
            _ => format!("Give the path of {what}"),
        };
        Error::BadInput(format!("{}: cannot be read: {e}. {remedy}", path.display()))
    }

    /// A failed file operation; says so when the disk is full.
    pub fn io(path: &std::path::Path, doing: &str, e: &std::io::Error) -> Self {
        Error::Failed(match e.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                format!("{}: {doing}: the disk is full. Free some space and run it again", path.display())
            }
            std::io::ErrorKind::PermissionDenied => {
                format!("{}: {doing}: {e}. Check the owner and the mode of that path", path.display())
            }
            _ => format!("{}: {doing}: {e}. Check the path and the file system", path.display()),
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Error::BadInput(m) | Error::Failed(m)) = self;
        // One line that can be read, whatever the cause brought along.
        f.write_str(&message(m))
    }
}

impl std::error::Error for Error {}

pub use surefoot_server::names::{nearest, suggest};

/// Invalid input is the caller's, everything else a failure.
pub fn server_error(e: ServerError) -> Error {
    let text = e.to_string().trim_end_matches('.').to_string();
    match e {
        ServerError::Invalid(_) => Error::BadInput(text),
        ServerError::Write { .. } | ServerError::Unsettled { .. } | ServerError::Unavailable { .. } => Error::Failed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each cause has its own remedy: a file that is there but shut is not to be looked for elsewhere.
    #[test]
    fn a_remedy_fits_its_cause() {
        use std::io::ErrorKind::{InvalidData, IsADirectory, NotFound, PermissionDenied};
        let says = |kind| Error::unreadable(std::path::Path::new("n.toml"), "a node.toml", &std::io::Error::from(kind)).to_string();
        for (kind, remedy) in [
            (NotFound, "Give the path of a node.toml"),
            (PermissionDenied, "owner and mode"),
            (IsADirectory, "Name a node.toml in it"),
            (InvalidData, "It is no text"),
        ] {
            assert!(says(kind).starts_with("n.toml: cannot be read: ") && says(kind).contains(remedy), "{}", says(kind));
        }
    }

    /// Whatever a cause brings along, an error prints as one line.
    #[test]
    fn one_line() {
        assert_eq!(Error::Failed("a\n  b\u{1b}[2J".into()).to_string(), "a b\\u{1b}[2J");
    }
}
