//! This machine as a target.

use crate::campaign::Campaign;
use crate::cli;
use crate::error::{Error, Result};

/// # Errors
/// Bad input or a failure, on one line.
pub fn sweep(_args: &cli::Sweep, _campaign: &Campaign) -> Result<()> {
    Err(Error::Failed("--server local: comes with surefoot-linux".into()))
}
