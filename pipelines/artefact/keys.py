"""Keys that sign bundles, and keys that are trusted: PEM files, and who may read or write them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from pipelines.errors import BadInput
from pipelines.io import make_folder, read_plain, sha256_bytes, write_bytes

MOST_BYTES = 1 << 16  # a key has some hundred
_ONE_KEY = re.compile(rb"-----BEGIN PUBLIC KEY-----\r?\n[A-Za-z0-9+/=]{60}\r?\n-----END PUBLIC KEY-----(?:\r?\n)?")

# Points of small order (y, without the sign of x): signatures for such a key can be made without any private one, and a
# signature may have none of them as its first half. Two stand twice, once as a number beyond the field.
SMALL_ORDER = frozenset(
    bytes.fromhex(text)
    for text in (
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    )
)


def is_small(point: bytes) -> bool:
    """Whether these 32 bytes are a point of small order."""
    return bytes((*point[:31], point[31] & 0x7F)) in SMALL_ORDER


def keys_folder() -> Path:
    """`$SUREFOOT_KEYS`, or ~/.config/surefoot/keys."""
    given = os.environ.get("SUREFOOT_KEYS")
    return Path(given) if given else Path.home() / ".config" / "surefoot" / "keys"


def raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def fingerprint(key: Ed25519PublicKey) -> str:
    """SHA-256 of the raw public key, lower-case hex."""
    return sha256_bytes(raw(key))


def signing_key(path: Path | None = None) -> Ed25519PrivateKey:
    """The key that signs; without `path` the one in the keys folder, which the first call makes and trusts.

    Raises:
        BadInput: `path` is missing, not an Ed25519 key, or within reach of others.
    """
    explicit = path is not None
    path = path or keys_folder() / "signing.pem"
    if not os.path.lexists(path):
        if explicit:
            raise BadInput(f"--key {path}: no such file; leave --key out to use (and make) {keys_folder() / 'signing.pem'}")
        return _new_key(path)
    _private(path)
    return private_key(read_plain(path, MOST_BYTES), str(path))


def _new_key(path: Path) -> Ed25519PrivateKey:
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        make_folder(path.parent, mode=0o700)
        write_bytes(path, pem, mode=0o600)
        trust(key.public_key(), "own")
    except OSError as error:
        raise BadInput(f"{path}: cannot write a new signing key ({error.strerror}); set SUREFOOT_KEYS") from None
    _private(path)
    return key


def private_key(pem: bytes, shown: str) -> Ed25519PrivateKey:
    """From the bytes of a PEM file that is called `shown` in messages."""
    try:
        loaded = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{shown}: not an unencrypted PEM private key ({error})") from None
    if not isinstance(loaded, Ed25519PrivateKey):
        raise BadInput(f"{shown}: the key is {type(loaded).__name__}, want Ed25519")
    return loaded


def trust(key: Ed25519PublicKey, name: str, folder: Path | None = None) -> Path:
    """Put a public key among the trusted ones."""
    path = (folder or keys_folder() / "trusted") / f"{name}.pub.pem"
    make_folder(path.parent, mode=0o755)
    write_bytes(path, key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return path


def load_public_key(path: Path) -> Ed25519PublicKey:
    """A trusted key, by the rules of a node.

    Raises:
        BadInput: it is no Ed25519 public key, signs for everybody, or is within reach of others.
    """
    data = read_plain(path, MOST_BYTES)
    _out_of_reach(path, _BELIEVED, _OTHERS)
    try:
        key = serialization.load_pem_public_key(data) if _ONE_KEY.fullmatch(data) else None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        what = (
            "is a private key, which stays where it is" if b"PRIVATE KEY-----" in data else "is no Ed25519 public key in PEM form"
        )
        raise BadInput(f"{path}: {what}; give the signer's .pub.pem")
    if is_small(raw(key)):
        raise BadInput(f"{path}: is a key that signs for everybody (of small order); give the signer's .pub.pem")
    return key


def trusted_keys(folder: Path | None = None) -> list[Ed25519PublicKey]:
    folder = folder or keys_folder() / "trusted"
    if folder.is_dir():
        _out_of_reach(folder, _BELIEVED, _OTHERS)
    return [load_public_key(path) for path in sorted(folder.glob("*.pub.pem"))]


# ---------------------------------------------------------------- who can reach a file

_BELIEVED = "others could choose which bundles are believed"
# For root a group is others as well; a user's own group has nobody else in it on most systems, and checkouts are writable by it.
_OTHERS = 0o022 if os.geteuid() == 0 else 0o002


def _private(path: Path) -> None:
    """Nobody but its user and root reads or replaces a signing key."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise BadInput(f"{path}: others can read or write the signing key; run: chmod 600 {path}")
    _out_of_reach(path, "others could replace the signing key", 0o022)


def _out_of_reach(path: Path, danger: str, others: int) -> None:
    """The path, without links, and all folders above it belong to root or this user, and others (mode bits) cannot write them."""
    real = path.resolve(strict=True)
    for part in (real, *real.parents):
        meta = part.lstat()
        if found := reach(meta.st_uid, meta.st_mode, (0, os.geteuid()), others):
            why, mend = found
            raise BadInput(f"{path}: {part} {why}, so {danger}; run: {mend} {part}")


def reach(uid: int, mode: int, owners: Sequence[int], others: int = 0o022) -> tuple[str, str] | None:
    """How others than the owners can change a file or folder, and the command that ends it; None where they cannot.

    Args:
        mode: as in `st_mode`, kind included.
        others: bits of the mode that let others write.
    """
    # in a folder such as /tmp nobody can replace what is another's
    sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    if uid not in owners:
        return f"belongs to user {uid}", f"chown {owners[-1]}"
    return ("can be written by others", "chmod go-w") if mode & others and not sticky else None
