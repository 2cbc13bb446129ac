//! The folder of a drawn world (docs/worlds.md), as far as those read it that take profiles from it.

use crate::base::error::{Error, Result};
use serde_json::Value;
use std::path::Path;
use surefoot_io::input::{self, SUMMARY_BYTES};
use surefoot_io::json;
use surefoot_vserver::world::EDITION;

/// Name of the manifest.
pub const MANIFEST: &str = "world.json";

/// That a folder of profiles, where it is a drawn world, is one of today's draws, made for today's virtual server.
///
/// # Errors
/// [`Error::BadInput`] names the file, the field and the remedy.
pub fn check_folder(dir: &Path) -> Result<()> {
    let path = dir.join(MANIFEST);
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    let wrong =
        |what: String| Error::BadInput(format!("{}: {what}. Draw the world again: surefootd world draw (docs/worlds.md)", path.display()));
    let bytes = input::bytes(&path, SUMMARY_BYTES).map_err(|e| wrong(e.to_string()))?;
    let said: Value = json::from_slice(&bytes).map_err(|e| wrong(format!("is no JSON ({e})")))?;
    for (field, now) in [("edition", EDITION), ("plant", surefoot_vserver::EDITION)] {
        if said[field] != now {
            return Err(wrong(format!("{field}: is {}, and this surefootd has {now}", said[field])));
        }
    }
    Ok(())
}
