//! Digests, as manifests and rows have them.

use sha2::{Digest, Sha256};

/// SHA-256 as hex, with the name of the function in front.
pub fn sha256_hex(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|b| format!("{b:02x}")).collect()
}
