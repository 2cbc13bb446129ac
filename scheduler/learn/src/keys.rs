//! Which signers a node trusts.

use crate::archive::read_file;
use crate::bundle::BundleError;
use ed25519_dalek::pkcs8::DecodePublicKey;
use ed25519_dalek::VerifyingKey;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Ed25519 public keys whose bundles this node runs.
#[derive(Clone, Debug, Default)]
pub struct TrustedKeys {
    /// Where they came from, for messages.
    folder: String,
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
        Self::load(&folder)
    }

    /// One PEM public key, or a folder's `*.pub.pem`.
    ///
    /// # Errors
    /// No such path, a folder without keys, or a file that is not an Ed25519 public key.
    pub fn load(path: &Path) -> Result<Self, BundleError> {
        let shown = path.display().to_string();
        let remedy = "Copy the signer's .pub.pem there (`surefoot bundle build` makes one in its keys folder)";
        if path.is_file() {
            return Ok(TrustedKeys { keys: vec![load_key(path)?], folder: shown });
        }
        let entries =
            std::fs::read_dir(path).map_err(|e| BundleError::new(&shown, "trusted keys", format!("cannot be read: {e}"), remedy))?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|e| Some(e.ok()?.path()))
            .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().ends_with(".pub.pem")))
            .collect();
        files.sort();
        if files.is_empty() {
            return Err(BundleError::new(&shown, "trusted keys", "there is no *.pub.pem in it", remedy));
        }
        Ok(TrustedKeys { keys: files.iter().map(|f| load_key(f)).collect::<Result<_, _>>()?, folder: shown })
    }

    /// From keys in memory.
    pub fn from_keys(keys: Vec<VerifyingKey>) -> Self {
        TrustedKeys { folder: "the trusted keys".into(), keys }
    }

    /// The key that made this signature, if it is trusted.
    pub(crate) fn signer(&self, message: &[u8], signature: &[u8; 64]) -> Option<&VerifyingKey> {
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        self.keys.iter().find(|k| k.verify_strict(message, &signature).is_ok())
    }

    pub(crate) fn trusts(&self, fingerprint_hex: &str) -> bool {
        self.keys.iter().any(|k| fingerprint(k) == fingerprint_hex)
    }

    pub(crate) fn folder(&self) -> &str {
        &self.folder
    }
}

fn load_key(path: &Path) -> Result<VerifyingKey, BundleError> {
    let shown = path.display().to_string();
    let bad = |problem: String| {
        BundleError::new(&shown, "public key", problem, "Want an Ed25519 public key in PEM form; replace or remove the file")
    };
    let text = String::from_utf8(read_file(path, &shown, 1 << 16)?).map_err(|_| bad("is not text".into()))?;
    VerifyingKey::from_public_key_pem(&text).map_err(|e| bad(e.to_string()))
}
