//! Which signers a node trusts.

use crate::archive::{read_file, Links};
use crate::error::BundleError;
use crate::rules::Kind;
use ed25519_dalek::pkcs8::DecodePublicKey;
use ed25519_dalek::VerifyingKey;
use sha2::{Digest, Sha256};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Ed25519 public keys whose bundles this node runs.
#[derive(Clone, Debug, Default)]
pub struct TrustedKeys {
    /// Where another signer's key would go, for messages: a remedy that names a file would have it overwritten.
    place: String,
    keys: Vec<VerifyingKey>,
}

/// SHA-256 of the raw public key, lower hex: what a manifest's `signer` is compared with.
pub fn fingerprint(key: &VerifyingKey) -> String {
    hex(&Sha256::digest(key.as_bytes()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl TrustedKeys {
    /// Where trusted keys lie: `${SUREFOOT_KEYS:-$HOME/.config/surefoot/keys}/trusted`. None without either variable.
    pub fn default_folder() -> Option<PathBuf> {
        let given = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        Some(given("SUREFOOT_KEYS").or_else(|| Some(given("HOME")?.join(".config/surefoot/keys")))?.join("trusted"))
    }

    /// The keys of [`TrustedKeys::default_folder`], whoever can write there.
    ///
    /// # Errors
    /// As [`TrustedKeys::load`].
    pub fn load_default() -> Result<Self, BundleError> {
        Self::load_guarded(None, Guard::Off)
    }

    /// One PEM public key, or a folder's `*.pub.pem`, whoever can write them.
    ///
    /// # Errors
    /// No such path, a folder without keys, or a file that is not an Ed25519 public key.
    pub fn load(path: &Path) -> Result<Self, BundleError> {
        Self::load_guarded(Some(path), Guard::Off)
    }

    /// As [`TrustedKeys::load`], and without a path as [`TrustedKeys::load_default`].
    ///
    /// # Errors
    /// Besides theirs what others than the guard lets through can write.
    pub fn load_guarded(path: Option<&Path>, guard: Guard) -> Result<Self, BundleError> {
        if let Some(path) = path {
            return Self::read(path, GIVE, guard);
        }
        let remedy = "Set SUREFOOT_KEYS to the folder that holds trusted/*.pub.pem";
        let folder =
            Self::default_folder().ok_or_else(|| bad("trusted keys", "folder", "neither SUREFOOT_KEYS nor HOME is set", remedy))?;
        Self::read(&folder, MAKE, guard)
    }

    /// `absent` is the remedy where there is no such path.
    fn read(path: &Path, absent: &str, guard: Guard) -> Result<Self, BundleError> {
        let shown = path.display().to_string();
        if path.is_file() {
            let keys = vec![load_key(path, GIVE, guard)?];
            return Ok(TrustedKeys { keys, place: "give its .pub.pem in place of the one given now".into() });
        }
        let remedy = "Copy the signer's .pub.pem there (`surefoot bundle build` makes one in its keys folder)";
        let entries = std::fs::read_dir(path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => bad(&shown, "trusted keys", "there is no such file or folder", absent),
            _ => bad(&shown, "trusted keys", format!("cannot be read: {e}"), "Check the path, its owner and its mode"),
        })?;
        guard.check(path)?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|e| Some(e.ok()?.path()))
            .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().ends_with(".pub.pem")))
            .collect();
        files.sort();
        if files.is_empty() {
            return Err(bad(&shown, "trusted keys", "there is no *.pub.pem in it", remedy));
        }
        let keys = files.iter().map(|f| load_key(f, MOVE, guard)).collect::<Result<_, _>>()?;
        Ok(TrustedKeys { keys, place: format!("copy its .pub.pem to {shown}") })
    }

    /// From keys in memory.
    pub fn from_keys(keys: Vec<VerifyingKey>) -> Self {
        TrustedKeys { place: "add its .pub.pem to the trusted keys".into(), keys }
    }

    /// The key that made this signature, if it is trusted.
    pub(crate) fn signer(&self, message: &[u8], signature: &[u8; 64]) -> Option<&VerifyingKey> {
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        self.keys.iter().find(|k| k.verify_strict(message, &signature).is_ok())
    }

    pub(crate) fn trusts(&self, fingerprint_hex: &str) -> bool {
        self.keys.iter().any(|k| fingerprint(k) == fingerprint_hex)
    }

    /// What to do with the .pub.pem of one more signer.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }
}

const GIVE: &str = "Give the signer's .pub.pem, or a folder of such (`surefoot bundle build` makes one in its keys folder)";
/// Nobody named the default folder, so what is given is not at fault: at the first use it is not there yet.
const MAKE: &str =
    "Make it and copy the signer's .pub.pem there (`surefoot bundle build` makes one in its keys folder), or give that with \
    --trust. SUREFOOT_KEYS names another folder than ~/.config/surefoot/keys";
const MOVE: &str = "Move it out of this folder: every *.pub.pem here is a key that is trusted";
/// A key has some hundred bytes.
const MOST_BYTES: u64 = 1 << 16;

fn bad(file: &str, field: &str, problem: impl Into<String>, remedy: &str) -> BundleError {
    BundleError::new(Kind::Key, file, field, problem, remedy)
}

fn load_key(path: &Path, remedy: &str, guard: Guard) -> Result<VerifyingKey, BundleError> {
    let shown = path.display().to_string();
    let wrong = |problem: &str| bad(&shown, "public key", problem, remedy);
    if path.metadata().is_ok_and(|m| m.len() > MOST_BYTES) {
        return Err(wrong("is no key, but a larger file"));
    }
    let real = guard.check(path)?;
    let text =
        String::from_utf8(read_file(&real, &shown, MOST_BYTES, Links::Follow)?).map_err(|_| wrong("is no text, so no key in PEM form"))?;
    let read = if is_one_key(&text) { VerifyingKey::from_public_key_pem(&text).ok() } else { None };
    match read {
        // Whoever makes signatures for such a key needs no private one.
        Some(key) if key.is_weak() => Err(wrong("is a key that signs for everybody (of small order)")),
        Some(key) => Ok(key),
        // What a parser says of them helps nobody.
        None => Err(wrong(match (text.contains("PRIVATE KEY-----"), text.contains("-----BEGIN ")) {
            (true, _) => "is a private key, which is for signing and stays where it is. Its public key is wanted",
            (_, true) => "is no Ed25519 public key",
            _ => "is no key: nothing in it is in PEM form",
        })),
    }
}

/// The form of a PEM file with one Ed25519 public key: three lines, the middle one 44 bytes in base64. The lab reads no other either.
fn is_one_key(text: &str) -> bool {
    let mut lines = text.lines();
    let ends = ["-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"];
    let key = |l: &str| l.len() == 60 && l.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/' | b'='));
    lines.next() == Some(ends[0]) && lines.next().is_some_and(key) && lines.next() == Some(ends[1]) && lines.next().is_none()
}

/// Who may have written the keys that are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Anybody.
    Off,
    /// Only root and this user: what others can write may be theirs. Where it is root itself, a group is others as well; a user's own
    /// group has nobody else in it on most systems, and checkouts are writable by it.
    Owner(u32),
}

impl Guard {
    /// The path without links, and whether all of it is out of others' reach.
    ///
    /// # Errors
    /// The part that others can write or that is another user's, with the command that mends it.
    fn check(self, path: &Path) -> Result<PathBuf, BundleError> {
        let Guard::Owner(own) = self else { return Ok(path.into()) };
        let shown = path.display().to_string();
        let failed = |e: std::io::Error| bad(&shown, "public key", format!("cannot be looked at: {e}"), "Check the path");
        let real = path.canonicalize().map_err(failed)?;
        for part in real.ancestors() {
            let meta = part.symlink_metadata().map_err(failed)?;
            if let Some((why, mend)) = reach(meta.uid(), meta.mode(), meta.is_dir(), own) {
                let part = part.display();
                let problem = format!("{part} {why}, so others could choose which bundles run here");
                return Err(bad(&shown, "trusted keys", problem, &format!("Run: {mend} {part}")));
            }
        }
        Ok(real)
    }
}

/// How others than root and `own` can change a file or folder, and the command that ends it; None where they cannot.
fn reach(uid: u32, mode: u32, is_dir: bool, own: u32) -> Option<(String, &'static str)> {
    // In a folder such as /tmp nobody can replace what is another's.
    let sticky = is_dir && mode & 0o1000 != 0;
    let others = if own == 0 { 0o022 } else { 0o002 };
    if uid != 0 && uid != own {
        return Some((format!("belongs to user {uid}"), "chown root"));
    }
    (mode & others != 0 && !sticky).then(|| ("can be written by others".into(), "chmod go-w"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Root's and one's own are believed unless others can write them; a sticky folder keeps others from replacing what is in it.
    #[test]
    fn who_can_change_a_key() {
        let others = |uid, mode, is_dir| reach(uid, mode, is_dir, 7).map(|(_, mend)| mend);
        let root = |uid, mode, is_dir| reach(uid, mode, is_dir, 0).map(|(_, mend)| mend);
        assert_eq!(others(0, 0o644, false), None);
        assert_eq!(others(7, 0o755, true), None);
        assert_eq!(others(0, 0o1777, true), None);
        assert_eq!(others(0, 0o777, true), Some("chmod go-w"));
        assert_eq!((others(7, 0o664, false), root(0, 0o664, false)), (None, Some("chmod go-w")));
        assert_eq!((others(0, 0o775, true), root(0, 0o775, true)), (None, Some("chmod go-w")));
        assert_eq!(others(0, 0o1666, false), Some("chmod go-w"));
        assert_eq!((root(0, 0o755, true), root(7, 0o755, true)), (None, Some("chown root")));
        assert_eq!(others(8, 0o644, false), Some("chown root"));
    }

    /// One key in three lines and nothing else: readers differ on what may stand around it.
    #[test]
    fn a_key_file_has_one_form() {
        let key = "A".repeat(60);
        let one = format!("-----BEGIN PUBLIC KEY-----\n{key}\n-----END PUBLIC KEY-----\n");
        assert!(is_one_key(&one) && is_one_key(one.trim_end()));
        for other in
            [format!("# mine\n{one}"), format!("{one}{one}"), one.replace(&key, &format!("{}\n{}", &key[..30], &key[30..])), String::new()]
        {
            assert!(!is_one_key(&other), "{other}");
        }
    }
}
