//! Which signers a node trusts.

use crate::archive::read_file;
use crate::bundle::BundleError;
use ed25519_dalek::pkcs8::DecodePublicKey;
use ed25519_dalek::VerifyingKey;
use sha2::{Digest, Sha256};
use std::io::ErrorKind;
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

    /// The keys of [`TrustedKeys::default_folder`].
    pub fn load_default() -> Result<Self, BundleError> {
        let remedy = "Set SUREFOOT_KEYS to the folder that holds trusted/*.pub.pem";
        let folder = Self::default_folder()
            .ok_or_else(|| BundleError::new("trusted keys", "folder", "neither SUREFOOT_KEYS nor HOME is set", remedy))?;
        Self::read(&folder, MAKE)
    }

    /// One PEM public key, or a folder's `*.pub.pem`.
    ///
    /// # Errors
    /// No such path, a folder without keys, or a file that is not an Ed25519 public key.
    pub fn load(path: &Path) -> Result<Self, BundleError> {
        Self::read(path, GIVE)
    }

    /// `absent` is the remedy where there is no such path.
    fn read(path: &Path, absent: &str) -> Result<Self, BundleError> {
        let shown = path.display().to_string();
        if path.is_file() {
            return Ok(TrustedKeys { keys: vec![load_key(path, GIVE)?], place: "give its .pub.pem in place of the one given now".into() });
        }
        let remedy = "Copy the signer's .pub.pem there (`surefoot bundle build` makes one in its keys folder)";
        let entries = std::fs::read_dir(path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => BundleError::new(&shown, "trusted keys", "there is no such file or folder", absent),
            _ => BundleError::new(&shown, "trusted keys", format!("cannot be read: {e}"), "Check the path, its owner and its mode"),
        })?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|e| Some(e.ok()?.path()))
            .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().ends_with(".pub.pem")))
            .collect();
        files.sort();
        if files.is_empty() {
            return Err(BundleError::new(&shown, "trusted keys", "there is no *.pub.pem in it", remedy));
        }
        let keys = files.iter().map(|f| load_key(f, MOVE)).collect::<Result<_, _>>()?;
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

fn load_key(path: &Path, remedy: &str) -> Result<VerifyingKey, BundleError> {
    let shown = path.display().to_string();
    let bad = |problem: &str| BundleError::new(&shown, "public key", problem, remedy);
    if path.metadata().is_ok_and(|m| m.len() > MOST_BYTES) {
        return Err(bad("is no key, but a larger file"));
    }
    let text = String::from_utf8(read_file(path, &shown, MOST_BYTES)?).map_err(|_| bad("is no text, so no key in PEM form"))?;
    VerifyingKey::from_public_key_pem(&text).map_err(|_| {
        // What a parser says of them helps nobody.
        bad(match (text.contains("PRIVATE KEY-----"), text.contains("-----BEGIN ")) {
            (true, _) => "is a private key, which is for signing and stays where it is. Its public key is wanted",
            (_, true) => "is no Ed25519 public key",
            _ => "is no key: nothing in it is in PEM form",
        })
    })
}
