//! What can go wrong, by whose hand.

/// Every error is one line: what, which value, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadgenError {
    /// The request makes no sense or is not allowed; nothing was sent. Exit code 2.
    #[error("{0}")]
    BadInput(String),
    /// The request was fine, doing it failed. Exit code 1.
    #[error("{0}")]
    Failed(String),
}

impl LoadgenError {
    pub fn exit_code(&self) -> u8 {
        match self {
            LoadgenError::BadInput(_) => 2,
            LoadgenError::Failed(_) => 1,
        }
    }
}

pub(crate) fn bad(msg: impl Into<String>) -> LoadgenError {
    LoadgenError::BadInput(msg.into())
}

pub(crate) fn failed(msg: impl Into<String>) -> LoadgenError {
    LoadgenError::Failed(msg.into())
}
