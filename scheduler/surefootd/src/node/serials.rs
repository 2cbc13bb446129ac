//! Which bundle a node ran last, so that an older one is not put in its place (docs/privileges.md).
//!
//! Held true: what is remembered of a platform's name and a signer only grows, unless `--allow-older` was given; the file is written
//! whole before the first decision of a bundle, or the run does not begin; a file that cannot be understood lets no bundle through.

use crate::base::error::{Error, Result};
use crate::base::files::own_error;
use crate::base::utc;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use surefoot_learn::Bundle;
use surefoot_linux::own::Folder;

/// In a state folder.
pub const FILE: &str = "bundles.json";
const FORMAT: &str = "surefoot-bundles-run";
/// Room for some thousand signers and platforms.
const MOST_BYTES: u64 = 1 << 20;

/// The bundle that ran last of those for one platform by one signer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ran {
    platform: String,
    /// Fingerprint of the key that signed it.
    signer: String,
    /// None: of a format version without serials, and so older than any that has one.
    serial: Option<u64>,
    manifest_sha256: String,
}

impl Ran {
    fn of(b: &Bundle) -> Self {
        let m = &b.manifest;
        Ran { platform: m.platform.name.clone(), signer: b.signer.clone(), serial: m.serial, manifest_sha256: b.digest.clone() }
    }

    fn is_of(&self, other: &Ran) -> bool {
        (&self.platform, &self.signer) == (&other.platform, &other.signer)
    }

    fn said(&self) -> String {
        match self.serial {
            Some(s) => format!("serial {s} (built {} UTC)", utc::text(s.saturating_mul(1000))),
            None => "no serial (format version 1 or 2)".into(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    format: String,
    version: u32,
    bundles: Vec<Ran>,
}

/// What a state folder remembers.
#[derive(Debug)]
pub struct Serials {
    state: PathBuf,
    ran: Vec<Ran>,
    /// Why nothing of the file can be believed.
    damage: Option<String>,
}

impl Serials {
    /// Of a state folder, which may not be there yet.
    pub fn of(state: &Path) -> Self {
        match read(state) {
            Ok(ran) => Serials { state: state.into(), ran, damage: None },
            Err(damage) => Serials { state: state.into(), ran: vec![], damage: Some(damage) },
        }
    }

    /// Whether this bundle may run: it is not older than the one before, or that is wanted.
    ///
    /// # Errors
    /// [`Error::BadInput`] names both, and the option.
    pub fn check(&self, at: &Path, bundle: &Bundle, allow_older: bool) -> Result<()> {
        self.judge(at, &Ran::of(bundle), allow_older)
    }

    fn judge(&self, at: &Path, now: &Ran, allow_older: bool) -> Result<()> {
        let (at, file) = (at.display(), self.state.join(FILE));
        let file = file.display();
        if allow_older {
            return Ok(());
        }
        if let Some(why) = &self.damage {
            return Err(Error::BadInput(format!(
                "{file}: {why}, so nobody knows which bundle ran here last. Give --allow-older to run {at} all the same and begin the file anew"
            )));
        }
        match self.ran.iter().find(|r| r.is_of(now)) {
            Some(last) if now.serial < last.serial => Err(Error::BadInput(format!(
                "bundle {at}: manifest.json: serial: it is older than the one that this node ran last: {} after {}, both for platform `{}` by signer {:.16} \
                 ({file}). Give a newer bundle, or --allow-older to go back to this one",
                now.said(),
                last.said(),
                now.platform.escape_default(),
                now.signer
            ))),
            _ => Ok(()),
        }
    }

    /// From now on this is the one that ran last. The file is written only where that is news.
    ///
    /// # Errors
    /// As [`Serials::check`], and [`Error::Failed`] where the file cannot be written; it is what it was.
    pub fn keep(self, at: &Path, bundle: &Bundle, allow_older: bool) -> Result<()> {
        self.remember(at, Ran::of(bundle), allow_older)
    }

    fn remember(mut self, at: &Path, now: Ran, allow_older: bool) -> Result<()> {
        self.judge(at, &now, allow_older)?;
        let last = self.ran.iter().find(|r| r.is_of(&now));
        if last == Some(&now) {
            return Ok(());
        }
        if let Some(last) = last.filter(|l| now.serial < l.serial) {
            tracing::warn!("bundle {}: --allow-older: {} after {}", at.display(), now.said(), last.said());
        }
        self.ran.retain(|r| !r.is_of(&now));
        self.ran.push(now);
        let listed = Listed { format: FORMAT.into(), version: 1, bundles: self.ran };
        let file = self.state.join(FILE);
        let text = serde_json::to_vec_pretty(&listed).map_err(|e| Error::Failed(format!("{}: {e}", file.display())))?;
        // It belongs to the user whose folder it is, who has to be able to go on with it.
        let kept = Folder::create(&self.state).and_then(|f| f.replace(FILE, &text));
        kept.map_err(|e| own_error(&file, "cannot be written", &e))
    }
}

/// What was written there; nothing where there is no file.
fn read(state: &Path) -> std::result::Result<Vec<Ran>, String> {
    let data = match Folder::open(state).and_then(|f| f.read(FILE, MOST_BYTES)) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(vec![]),
        Err(e) => return Err(format!("cannot be read ({e})")),
        Ok(data) => data,
    };
    let Some(data) = data else { return Ok(vec![]) };
    let listed: Listed = serde_json::from_slice(&data).map_err(|_| "is damaged".to_string())?;
    if listed.format == FORMAT && listed.version == 1 {
        Ok(listed.bundles)
    } else {
        Err("is of another version".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(platform: &str, signer: &str, serial: Option<u64>) -> Ran {
        let manifest_sha256 = format!("{platform}-{signer}-{serial:?}");
        Ran { platform: platform.into(), signer: signer.into(), serial, manifest_sha256 }
    }

    fn keep(state: &Path, now: &Ran, allow: bool) -> Result<()> {
        Serials::of(state).remember(Path::new("b.tar"), now.clone(), allow)
    }

    /// An older bundle is refused with both serials and the remedy; an equal or newer one, another platform's and another signer's run.
    #[test]
    fn only_an_older_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let runs = |platform, signer, serial| keep(dir.path(), &ran(platform, signer, serial), false);
        runs("p", "k", None).unwrap();
        runs("p", "k", None).unwrap();
        runs("p", "k", Some(1_700_000_000)).unwrap();
        runs("p", "k", Some(1_700_000_000)).unwrap();
        for older in [None, Some(1), Some(1_699_999_999)] {
            let e = runs("p", "k", older).unwrap_err();
            let says = e.to_string();
            assert_eq!(e.exit_code(), 2);
            assert!(says.contains("1700000000 (built 2023-11-14 22:13:20 UTC)") && says.contains("--allow-older"), "{says}");
            assert!(says.contains(&ran("p", "k", older).said()), "{says}");
        }
        runs("q", "k", Some(5)).unwrap();
        runs("p", "l", None).unwrap();
        runs("p", "k", Some(1_700_000_001)).unwrap();
        assert!(runs("p", "k", Some(1_700_000_000)).is_err(), "the others have not taken its place");
    }

    /// Who allows an older one has it remembered: the guard then counts from there.
    #[test]
    fn allowed_once_it_is_the_last() {
        let dir = tempfile::tempdir().unwrap();
        keep(dir.path(), &ran("p", "k", Some(20)), false).unwrap();
        keep(dir.path(), &ran("p", "k", Some(10)), true).unwrap();
        keep(dir.path(), &ran("p", "k", Some(10)), false).unwrap();
        assert!(keep(dir.path(), &ran("p", "k", Some(9)), false).is_err());
    }

    /// A file that cannot be understood lets no bundle through, and is begun anew by who says so; links are not followed.
    #[test]
    fn a_damaged_file_is_not_forgetting() {
        let now = ran("p", "k", Some(3));
        let damages: [fn(&Path); 5] = [
            |f| std::fs::write(f, b"{").unwrap(),
            |f| std::fs::write(f, br#"{"format":"surefoot-bundles-run","version":2,"bundles":[]}"#).unwrap(),
            |f| std::fs::write(f, b"").unwrap(),
            |f| std::fs::File::create(f).unwrap().set_len(MOST_BYTES + 1).unwrap(),
            |f| std::os::unix::fs::symlink("/dev/null", f).unwrap(),
        ];
        for (n, damage) in damages.iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            damage(&dir.path().join(FILE));
            let says = keep(dir.path(), &now, false).unwrap_err().to_string();
            assert!(says.contains(FILE) && says.contains("--allow-older"), "{n}: {says}");
            keep(dir.path(), &now, true).unwrap();
            assert_eq!(Serials::of(dir.path()).ran, std::slice::from_ref(&now), "{n}");
        }
    }

    /// Whatever a node that died while it wrote left beside the file, what it knew before is there: never less.
    #[test]
    fn a_crash_lowers_nothing() {
        let (old, new) = (ran("p", "k", Some(1)), ran("p", "k", Some(2)));
        for torn in ["", "{", "{\"format\":\"surefoot-bundles-run\",\"version\":1,\"bundles\":[]}"] {
            let dir = tempfile::tempdir().unwrap();
            keep(dir.path(), &old, false).unwrap();
            std::fs::write(dir.path().join(format!("{FILE}.new")), torn).unwrap();
            let s = Serials::of(dir.path());
            assert!(s.damage.is_none() && s.ran == [old.clone()], "{torn}: {s:?}");
            keep(dir.path(), &new, false).unwrap();
            assert_eq!(Serials::of(dir.path()).ran, std::slice::from_ref(&new));
            assert!(keep(dir.path(), &old, false).is_err());
        }
    }

    /// In the folder of another user it is that user's, who goes on with it, and so does root.
    #[test]
    fn in_a_folder_of_another_user_it_is_that_users() {
        use std::os::unix::fs::{chown, MetadataExt};
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("NOT RUN: in_a_folder_of_another_user_it_is_that_users: needs root: run the tests as root");
        }
        let dir = tempfile::tempdir().unwrap();
        chown(dir.path(), Some(65_534), Some(65_534)).unwrap();
        for serial in 1..4 {
            keep(dir.path(), &ran("p", "k", Some(serial)), false).unwrap();
            assert_eq!(std::fs::metadata(dir.path().join(FILE)).unwrap().uid(), 65_534);
        }
    }
}
