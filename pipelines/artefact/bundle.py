"""Bundles: the signed artefact that a node runs. The format is docs/bundle-format.md.

    build    folder and one deterministic tar, signed with Ed25519
    verify   every byte accounted for: signature, digests, sizes, shapes, bounds, no file missing, none extra
    inspect  what is inside, as a dictionary

A changed byte anywhere is found, and the error names the file that it is in.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from models import export, intervals
from models.features import ACTIONS, FEATURE_SETS, Bound, Scale
from pipelines.artefact import bundle_rules
from pipelines.artefact.bundle_rules import Refused, limit, rules
from pipelines.artefact.keys import fingerprint, is_small, keys_folder, load_public_key, signing_key, trust, trusted_keys
from pipelines.errors import BadInput, BundleError, TooLarge
from pipelines.inputs import message
from pipelines.io import canonical_json, check_output, fsync_folder, make_folder, read_json, read_plain, sha256_bytes, write_bytes

if TYPE_CHECKING:
    from pipelines.fits.fitted import Fitted, Summary

__all__ = [  # keys are of pipelines/artefact/keys.py; who works with bundles finds them here
    "fingerprint",
    "keys_folder",
    "load_public_key",
    "signing_key",
    "trust",
    "trusted_keys",
]

FORMAT = "surefoot-bundle"
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
SIGNATURE_TAG = "surefoot-bundle-v1"
CARD = "card.md"
MAX_FILE_BYTES = int(rules()["objects"]["file"]["bytes"]["most"])
MAX_CARD_BYTES = int(limit("card_bytes"))

LETTERS = ("a", "b", "c")
OSML = ("a", "ap", "b", "bp", "c")  # keys of `models.osml`; file models/osml_KEY.safetensors
STRANGENESS = "strangeness"  # tensors of Model-A's score: strangeness.weight, strangeness.bias
OSML_REACH = 3  # models/osml_c.py, which needs PyTorch: cores and ways that one of its actions moves at most
OSML_ACTIONS = (2 * OSML_REACH + 1) ** 2

_MODELS = (*LETTERS, *(f"osml_{key}" for key in OSML))
_SIGNATURE_LINE = re.compile(rb"surefoot-bundle-v1 ([0-9a-f]{64}) ([0-9a-f]{128})\n")
_BLOCK = 512


# ---------------------------------------------------------------- manifest


class _Strict(BaseModel):
    """A typed view of what bundle_rules.json lets through; ranges are said there."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class InputSpec(_Strict):
    """One input; its value is scaled by (x - min) / (max - min) and clipped to [0, 1]."""

    name: str
    min: float
    max: float


class OutputSpec(_Strict):
    """One output; natural units = network output x scale + offset."""

    name: str
    scale: float
    offset: float


class _NetworkSpec(_Strict):
    """What every model's entry says; `layers` are the shapes of the network that decides."""

    file: str
    sha256: str
    activation: Literal["relu"]
    layers: list[tuple[int, int]]
    inputs: list[InputSpec]


class MlpSpec(_NetworkSpec):
    """Model-A or Model-B, or one of OSML's A, A', B, B'."""

    output_activation: Literal["linear"]
    outputs: list[OutputSpec]
    qos_cap: float | None


class ModelASpec(MlpSpec):
    """Model-A; `strangeness` is the shape of its score's layer, where it has one (version 4)."""

    strangeness: list[tuple[int, int]] | None = None


class DdpgSpec(_NetworkSpec):
    """Model-C: actor, critic and their targets."""

    output_activation: Literal["softmax"]
    critic_layers: list[tuple[int, int]]
    actions: list[str]
    available_actions: list[str]
    hyperparameters: dict[str, float]


class DqnSpec(_NetworkSpec):
    """OSML's Model-C: policy and target."""

    output_activation: Literal["linear"]
    reach: int
    latency_cap: float
    hyperparameters: dict[str, float]


class OsmlSpec(_Strict):
    """OSML's models: all five of them."""

    a: MlpSpec
    ap: MlpSpec
    b: MlpSpec
    bp: MlpSpec
    c: DqnSpec


AnySpec = MlpSpec | DdpgSpec | DqnSpec


class ModelsSpec(_Strict):
    a: ModelASpec
    b: MlpSpec
    c: DdpgSpec
    osml: OsmlSpec | None = None

    def each(self) -> Iterator[tuple[str, str, AnySpec]]:
        """Of each model its name, its field in the manifest, and what is said of it there."""
        for key in LETTERS:
            yield key, f"models.{key}", getattr(self, key)
        if self.osml is not None:
            for key in OSML:
                yield f"osml_{key}", f"models.osml.{key}", getattr(self.osml, key)


class PlatformSpec(_Strict):
    name: str
    cores: float
    core_step: float
    ways: int
    mb_per_way: float
    mba: bool


class ServiceSpec(_Strict):
    qos_target_ms: float
    max_load_rps: float | None


class FileSpec(_Strict):
    bytes: int
    sha256: str


class Provenance(_Strict):
    git_commit: str | None = None
    git_dirty: bool | None = None
    data_sha256: str | None = None
    mlflow_run_id: str | None = None
    campaigns: list[str] = []
    software: dict[str, str] = {}


class Manifest(_Strict):
    """manifest.json of a bundle."""

    format: Literal["surefoot-bundle"]
    format_version: int
    feature_set: Literal["full", "no-pmu"]
    platform: PlatformSpec
    services: dict[str, ServiceSpec]
    models: ModelsSpec
    files: dict[str, FileSpec]
    metrics: dict[str, float]
    provenance: Provenance
    serial: int | None = None  # seconds since 1970 when it was built; versions 1 and 2 have none
    signer: str


@dataclass(frozen=True)
class Verified:
    """A bundle that passed every check."""

    manifest: Manifest
    manifest_sha256: str
    files: dict[str, bytes]

    def weights(self, model: str) -> export.Weights:
        """Of `a`, `b`, `c`, and where the bundle has OSML's models `osml_a` ... `osml_c`."""
        return export.from_safetensors(self.files[f"models/{model}.safetensors"])

    @property
    def card(self) -> str | None:
        """The model card; None where the bundle has none."""
        data = self.files.get(CARD)
        return None if data is None else data.decode()


# ---------------------------------------------------------------- tar


def tar_header(name: str, size: int) -> bytes:
    """The one ustar header that a member of this name and size may have: mode 0644, owner 0, time 0."""
    encoded = name.encode("ascii")
    if len(encoded) > 100:
        raise BundleError("files", name, "name is longer than 100 bytes; rename the service")
    head = bytearray(_BLOCK)
    head[0 : len(encoded)] = encoded
    head[100:108] = b"0000644\0"
    head[108:116] = b"0000000\0"
    head[116:124] = b"0000000\0"
    head[124:136] = b"%011o\0" % size
    head[136:148] = b"00000000000\0"
    head[148:156] = b" " * 8
    head[156:157] = b"0"
    head[257:265] = b"ustar\x0000"
    head[329:337] = b"0000000\0"
    head[337:345] = b"0000000\0"
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


def member_order(files: Sequence[str]) -> list[str]:
    """Manifest and signature first, so that a reader can check while it streams; then by name."""
    return [MANIFEST, SIGNATURE, *sorted(files)]


def to_tar(files: Mapping[str, bytes]) -> bytes:
    """The one byte form of these files as a tar."""
    parts = []
    for name in member_order([n for n in files if n not in (MANIFEST, SIGNATURE)]):
        data = files[name]
        parts += [tar_header(name, len(data)), data, b"\0" * (-len(data) % _BLOCK)]
    parts.append(b"\0" * (2 * _BLOCK))
    return b"".join(parts)


def _tar_member(tar: bytes, at: int, name: str, most: int) -> tuple[bytes, int]:
    """The member of at most `most` bytes that must stand at offset `at`, and the offset behind it."""
    head = tar[at : at + _BLOCK]
    size_field = head[124:136]
    if len(head) < _BLOCK or not re.fullmatch(rb"[0-7]{11}\0", size_field):
        raise BundleError("tar", name, f"tar header at byte {at} is damaged; fetch the bundle again")
    size = int(size_field[:-1], 8)
    if head != tar_header(name, size):
        raise BundleError("tar", name, f"tar header at byte {at} is not the one this member must have; fetch the bundle again")
    start, end = at + _BLOCK, at + _BLOCK + size
    padded = end + (-size % _BLOCK)
    if padded > len(tar):
        raise BundleError("tar", name, f"the tar ends inside this member ({size} bytes announced); fetch the bundle again")
    if any(tar[end:padded]):
        raise BundleError("tar", name, "padding behind this member is not zero; fetch the bundle again")
    if size > most:
        raise BundleError("size", name, f"is above the limit of {most} bytes; fetch the bundle again")
    return tar[start:end], padded


# ---------------------------------------------------------------- verify


class _Folder:
    """A bundle as a folder: its names are known before anything is read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names: set[str] = set()
        most = limit("folder_entries")
        for sub in ("", "models", "services"):
            folder = root / sub
            if not os.path.lexists(folder):
                continue
            try:
                for entry in os.scandir(folder):
                    name = f"{sub}/{entry.name}" if sub else entry.name
                    if entry.is_dir(follow_symlinks=False) and name in ("models", "services"):
                        continue
                    if not entry.is_file(follow_symlinks=False):
                        what = "a symbolic link" if entry.is_symlink() else "not a plain file"
                        raise BundleError("folder", name, f"is {what}; a bundle holds plain files only; remove it")
                    self.names.add(name)
                    if len(self.names) > most:
                        raise BundleError(
                            "folder", sub or root.name, f"holds more than {most} files; give the folder of a bundle"
                        )
            except OSError as error:
                shown = sub or str(root)
                raise BundleError("unreadable", shown, f"cannot be read ({error.strerror}); check its permissions") from None

    def read(self, name: str, most: int) -> bytes:
        """At most `most` bytes of one of the names."""
        if name not in self.names:
            raise BundleError("missing", name, "is missing; fetch the bundle again")
        return _read(self.root / name, name, most, links=False)


def _read(path: Path, shown: str, most: int, *, links: bool) -> bytes:
    try:
        return read_plain(path, most, links=links)
    except TooLarge:
        raise BundleError("size", shown, f"is above the limit of {most} bytes; fetch the bundle again") from None
    except BadInput as error:
        raise BundleError("unreadable", shown, str(error)) from None


def _check_signature(manifest: bytes, signature: bytes, trusted: Sequence[Ed25519PublicKey]) -> str:
    """Returns the fingerprint of the signer."""
    match = _SIGNATURE_LINE.fullmatch(signature)
    if match is None:
        raise BundleError(
            "signature", SIGNATURE, f"is not one line '{SIGNATURE_TAG} <digest> <signature>'; fetch or build the bundle again"
        )
    digest, made = match[1].decode(), bytes.fromhex(match[2].decode())
    signed = f"{SIGNATURE_TAG} {digest}".encode()
    for key in trusted:
        try:
            key.verify(made, signed)
        except InvalidSignature:
            continue
        if is_small(made[:32]):
            continue  # a node takes none of these
        actual = sha256_bytes(manifest)
        if actual != digest:
            raise BundleError("changed", MANIFEST, f"was changed after signing: SHA-256 is {actual}, signed {digest}")
        return fingerprint(key)
    before = b'"signer": "'
    at = manifest.find(before) + len(before)
    claimed = manifest[at : at + 64] if before in manifest else b""
    if re.fullmatch(rb"[0-9a-f]{64}", claimed) and claimed.decode() not in {fingerprint(key) for key in trusted}:
        raise BundleError(
            "signer",
            SIGNATURE,
            f"the signer {claimed.decode()[:16]} is not trusted here; if you trust that key, copy its .pub.pem to "
            f"{keys_folder() / 'trusted'}",
        )
    raise BundleError(
        "signature", SIGNATURE, "the signature does not verify: the file was changed; fetch or build the bundle again"
    )


def _parse_manifest(data: bytes, signer: str) -> Manifest:
    try:
        value = bundle_rules.parse(data)
        bundle_rules.check(value)
        _check_manifest(value)
        if value["signer"] != signer:
            raise Refused("signer", "signer", f"is {value['signer'][:16]}, but {signer[:16]} signed it")
        return Manifest.model_validate_json(data)
    except Refused as error:
        raise BundleError(error.kind, MANIFEST, f"{error}; build the bundle again") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise BundleError("field", MANIFEST, f"field {where}: {first['msg']}; build the bundle again") from None


def _model_entries(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Of each model its file's name, its field in `models`, and what is said of it there."""
    for key in LETTERS:
        yield key, key, manifest["models"][key]
    for key in OSML if "osml" in manifest["models"] else ():
        yield f"osml_{key}", f"osml.{key}", manifest["models"]["osml"][key]


def _check_manifest(manifest: Mapping[str, Any]) -> None:
    """What fields say of one another, in the node's order; what each says alone has been checked."""
    if manifest["format_version"] < 2 and CARD in manifest["files"]:
        raise Refused("files", "files", f"a bundle with {CARD} is of version 2")
    if manifest["platform"]["core_step"] > manifest["platform"]["cores"]:
        raise Refused("platform", "platform.core_step", "is more than all cores")
    _check_names(manifest)
    for _, model, spec in _model_entries(manifest):
        at, n = f"models.{model}", len(spec["inputs"])
        bundle_rules.check_inputs(manifest, at, model, spec["inputs"])
        if "outputs" in spec:
            bundle_rules.check_outputs(manifest, at, model, spec["outputs"])
            bundle_rules.check_layers(f"{at}.layers", spec["layers"], n, len(spec["outputs"]))
            if "strangeness" in spec:
                bundle_rules.check_strangeness(f"{at}.strangeness", spec["strangeness"], n)
            continue
        if "actions" in spec:
            bundle_rules.check_actions(manifest, at, spec)
        bundle_rules.check_pool(at, spec["hyperparameters"])
        bundle_rules.check_layers(f"{at}.layers", spec["layers"], n, len(ACTIONS) if "actions" in spec else OSML_ACTIONS)
        if "critic_layers" in spec:
            bundle_rules.check_layers(f"{at}.critic_layers", spec["critic_layers"], n + len(ACTIONS), 1)


def _check_names(manifest: Mapping[str, Any]) -> None:
    files, models = manifest["files"], list(_model_entries(manifest))
    wanted = {f"models/{stem}.safetensors" for stem, _, _ in models}
    wanted |= {"platform.toml", *(f"services/{name}.toml" for name in manifest["services"])}
    for name in sorted(files):
        if not bundle_rules.is_allowed_file(name, _MODELS):
            raise Refused("files", "files", f"{name!r} is not a name that a bundle may hold")
        if name not in wanted and name != CARD:
            raise Refused("files", "files", f"{name} is listed without need")
    if missing := sorted(wanted - set(files)):
        raise Refused("files", "files", f"{missing[0]} is needed and not listed")
    size = sum(_BLOCK + spec["bytes"] + -spec["bytes"] % _BLOCK for spec in files.values())
    if size > limit("bundle_bytes"):
        raise Refused("files", "files", f"come to {size} bytes, a bundle holds at most {limit('bundle_bytes')}")
    for stem, model, spec in models:
        own = f"models/{stem}.safetensors"
        if spec["file"] != own:
            raise Refused("files", f"models.{model}.file", f"{spec['file']!r}, want {own!r}")
        if spec["sha256"] != files[own]["sha256"]:
            raise Refused("files", f"models.{model}.sha256", f"differs from files.{own}.sha256")


def _check_file(name: str, data: bytes, spec: FileSpec) -> None:
    if len(data) != spec.bytes:
        raise BundleError("changed", name, f"has {len(data)} bytes, the manifest says {spec.bytes}; fetch the bundle again")
    if (actual := sha256_bytes(data)) != spec.sha256:
        raise BundleError(
            "changed", name, f"was changed: SHA-256 is {actual}, the manifest says {spec.sha256}; fetch the bundle again"
        )


def _check_network(
    file: str, weights: export.Weights, prefix: str, layers: Sequence[Sequence[int]], *, numbered: bool = True
) -> set[str]:
    """Names of the tensors that belong to the network, after checking shapes and values."""
    names: set[str] = set()
    most = 1.0  # that a value can come to, whatever the inputs, which lie within 0..1
    for n, (rows, cols) in enumerate(layers):
        pair = []
        layer = f"{prefix}layers.{n}" if numbered else prefix
        for name, shape in ((f"{layer}.weight", (rows, cols)), (f"{layer}.bias", (rows,))):
            tensor = weights.get(name)
            if tensor is None or tensor.dtype != np.float32 or tensor.shape != shape:
                found = "missing" if tensor is None else f"{tensor.dtype} {tensor.shape}"
                raise BundleError("weights", file, f"tensor {name} is {found}, the manifest says float32 {shape}")
            if not np.all(np.isfinite(tensor)):
                raise BundleError("weights", file, f"tensor {name} holds values that are not finite; train again")
            names.add(name)
            pair.append(np.abs(tensor.astype(np.float64)))
        most = float(np.max(pair[0].sum(axis=1) * most + pair[1]))
        if most > limit("activation"):
            at_most = f"at most {limit('activation'):.0e}; train again"
            raise BundleError("weights", file, f"{layer} lets a value grow to {most:.0e}, {at_most}")
    return names


def _check_weights(manifest: Manifest, files: Mapping[str, bytes]) -> None:
    for _, _, spec in manifest.models.each():
        try:
            weights = export.from_safetensors(files[spec.file])
        except Exception as error:  # the reader's own exception types are not part of its interface
            raise BundleError("weights", spec.file, f"is not a safetensors file ({error})") from None
        known: set[str] = set()
        for prefix, layers in _networks(spec):
            known |= _check_network(spec.file, weights, prefix, layers)
        if isinstance(spec, ModelASpec) and spec.strangeness is not None:
            known |= _check_network(spec.file, weights, STRANGENESS, spec.strangeness, numbered=False)
        if extra := sorted(set(weights) - known):
            raise BundleError("weights", spec.file, f"holds a tensor that the manifest does not name: {extra[0]}")


def _networks(spec: AnySpec) -> Iterator[tuple[str, Sequence[Sequence[int]]]]:
    """Prefix of the tensors, and layers, of each network of a model."""
    if isinstance(spec, MlpSpec):
        yield "", spec.layers
    elif isinstance(spec, DqnSpec):
        yield from ((prefix, spec.layers) for prefix in ("policy.", "target."))
    else:
        yield from ((prefix, spec.layers) for prefix in ("actor.", "actor_target."))
        yield from ((prefix, spec.critic_layers) for prefix in ("critic.", "critic_target."))


def _check_profile(name: str, data: bytes, want: bytes) -> None:
    """A profile says what the manifest says, in its one form: so there is nothing in it that could mean something else."""
    if data == want:
        return
    found, due = data.decode(errors="replace").split("\n"), want.decode().split("\n")
    n = next((n for n, (a, b) in enumerate(zip(found, due, strict=False)) if a != b), min(len(found), len(due)))
    line, wanted = (lines[n] if n < len(lines) else "the end" for lines in (found, due))
    raise BundleError("profile", name, f"line {n + 1} is {line[:80]!r}, the manifest says {wanted!r}; build the bundle again")


def profiles(platform: Mapping[str, Any], services: Mapping[str, Mapping[str, Any]]) -> dict[str, bytes]:
    """platform.toml and services/NAME.toml, as they follow from a manifest."""
    made = {"platform.toml": _toml({"kind": "platform-limits", **platform})}
    for name, service in services.items():
        made[f"services/{name}.toml"] = _toml({"kind": "lc", "name": name, **service})
    return made


def _bad_card(data: bytes) -> str | None:
    """Why this is no model card; None where it is one."""
    if len(data) > MAX_CARD_BYTES:
        return f"has {len(data)} bytes, a model card at most {MAX_CARD_BYTES}"
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return f"is not UTF-8 (byte {error.start})"
    # It is shown on terminals.
    odd = next((c for c in text if unicodedata.category(c) == "Cc" and c not in "\n\t"), None)
    return None if odd is None else f"holds the control character U+{ord(odd):04X}"


def verify(
    path: Path,
    *,
    trusted: Sequence[Ed25519PublicKey] | None = None,
    expect_feature_set: str | None = None,
    expect_platform: str | None = None,
) -> Verified:
    """Check a bundle, folder or tar, and return its content.

    Args:
        trusted: public keys that may have signed; None: those in the keys folder.
        expect_feature_set, expect_platform: refuse a bundle for another one.
    Raises:
        BundleError: names the file at fault.
    """
    if not path.exists():
        raise BundleError("unreadable", str(path), "no such bundle; build one with `surefoot bundle build`")
    trusted = trusted_keys() if trusted is None else trusted
    files: dict[str, bytes] = {}
    manifest_bytes = limit("manifest_bytes")
    if path.is_dir():
        if not os.path.lexists(path / SIGNATURE):
            # first of all: it may be somebody's data, and whatever is said next would be about what to remove
            raise BundleError(
                "missing",
                SIGNATURE,
                f"not a bundle: no manifest.sig in {path}; give the folder or the tar that `surefoot bundle build` wrote",
            )
        folder = _Folder(path)
        files[MANIFEST] = folder.read(MANIFEST, manifest_bytes)
        files[SIGNATURE] = folder.read(SIGNATURE, manifest_bytes)
        signer = _check_signature(files[MANIFEST], files[SIGNATURE], trusted)
        manifest = _parse_manifest(files[MANIFEST], signer)
        for name in sorted(folder.names - set(manifest.files) - {MANIFEST, SIGNATURE}):
            raise BundleError("extra", name, "is not in the manifest; remove it")
        for name in sorted(manifest.files):
            files[name] = folder.read(name, MAX_FILE_BYTES)
            _check_file(name, files[name], manifest.files[name])
    else:
        tar = _read(path, path.name, limit("tar_bytes"), links=True)
        files[MANIFEST], at = _tar_member(tar, 0, MANIFEST, manifest_bytes)
        files[SIGNATURE], at = _tar_member(tar, at, SIGNATURE, manifest_bytes)
        signer = _check_signature(files[MANIFEST], files[SIGNATURE], trusted)
        manifest = _parse_manifest(files[MANIFEST], signer)
        for name in sorted(manifest.files):
            files[name], at = _tar_member(tar, at, name, MAX_FILE_BYTES)
            _check_file(name, files[name], manifest.files[name])
        if tar[at:] != b"\0" * (2 * _BLOCK):
            raise BundleError(
                "tar", path.name, f"the end of the archive (byte {at}) is not two zero blocks; fetch the bundle again"
            )
    _check_weights(manifest, files)
    services = {name: service.model_dump() for name, service in manifest.services.items()}
    for name, want in profiles(manifest.platform.model_dump(), services).items():
        _check_profile(name, files[name], want)
    if CARD in manifest.files and (problem := _bad_card(files[CARD])):
        raise BundleError("card", CARD, f"{problem}; build the bundle again")
    if expect_feature_set is not None and manifest.feature_set != expect_feature_set:
        raise BundleError(
            "host",
            MANIFEST,
            f"feature_set: the bundle is for '{manifest.feature_set}', this host measures '{expect_feature_set}'; build one "
            f"from a campaign of feature set '{expect_feature_set}'",
        )
    if expect_platform is not None and manifest.platform.name != expect_platform:
        raise BundleError(
            "host",
            MANIFEST,
            f"platform: the bundle is for '{manifest.platform.name}', wanted '{expect_platform}'; build one "
            f"from data of '{expect_platform}' (surefoot bundle build)",
        )
    return Verified(manifest, sha256_bytes(files[MANIFEST]), files)


# ---------------------------------------------------------------- build


@dataclass
class TrainedMlp:
    """Model-A or Model-B, or one of OSML's A, A', B, B', ready to be bundled."""

    weights: Mapping[str, NDArray[np.float32]]
    inputs: Sequence[Bound]
    outputs: Sequence[Scale]
    qos_cap: float | None = None


@dataclass
class TrainedDdpg:
    """Model-C, ready to be bundled."""

    weights: Mapping[str, NDArray[np.float32]]
    inputs: Sequence[Bound]
    hyperparameters: Mapping[str, float]
    available_actions: Sequence[str] = ACTIONS


@dataclass
class TrainedDqn:
    """OSML's Model-C, ready to be bundled.

    Attributes:
        latency_cap: what an overloaded service's p99 counts as in its reward, QoS targets.
    """

    weights: Mapping[str, NDArray[np.float32]]
    inputs: Sequence[Bound]
    hyperparameters: Mapping[str, float]
    latency_cap: float


@dataclass
class TrainedOsml:
    """OSML's models: all five, or a bundle has none."""

    a: TrainedMlp
    ap: TrainedMlp
    b: TrainedMlp
    bp: TrainedMlp
    c: TrainedDqn


@dataclass
class BundleSpec:
    """All that goes into a bundle.

    Attributes:
        card: the model card, for people to read.
        serial: seconds since 1970 when it is built; None: the bundle is of an older version, and older than any that has one.
    """

    feature_set: str
    platform: Mapping[str, Any]
    services: Mapping[str, Mapping[str, Any]]
    a: TrainedMlp
    b: TrainedMlp
    c: TrainedDdpg
    metrics: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    osml: TrainedOsml | None = None
    card: str | None = None
    serial: int | None = None

    def each(self) -> Iterator[tuple[str, TrainedMlp | TrainedDdpg | TrainedDqn]]:
        """Each model under its name."""
        for key in LETTERS:
            yield key, getattr(self, key)
        if self.osml is not None:
            for key in OSML:
                yield f"osml_{key}", getattr(self.osml, key)


def _toml(table: Mapping[str, Any]) -> bytes:
    """A flat table as TOML, keys sorted."""
    lines = []
    for key in sorted(table):
        value = table[key]
        if value is None:
            continue
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, int | float):
            text = repr(value)
        elif isinstance(value, str):
            text = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        else:
            raise BadInput(f"{key}: {type(value).__name__} does not fit a profile of a bundle")
        lines.append(f"{key} = {text}\n")
    return "".join(lines).encode()


def _inputs(bounds: Sequence[Bound]) -> list[dict[str, Any]]:
    return [{"name": b.name, "min": float(b.min), "max": float(b.max)} for b in bounds]


def _strangeness(trained: TrainedMlp) -> dict[str, Any]:
    layer = trained.weights.get(f"{STRANGENESS}.weight")
    return {} if layer is None else {"strangeness": [list(layer.shape)]}


def _has_doubt(trained: TrainedMlp) -> bool:
    """Whether it has intervals or a strangeness score."""
    return bool(_strangeness(trained)) or any(intervals.is_end(o.name) for o in trained.outputs)


def _described(model: str, trained: TrainedMlp | TrainedDdpg | TrainedDqn, sha256: str) -> dict[str, Any]:
    """A model's entry in the manifest."""
    common = {"file": f"models/{model}.safetensors", "sha256": sha256, "activation": "relu", "inputs": _inputs(trained.inputs)}
    if isinstance(trained, TrainedMlp):
        return common | {
            "output_activation": "linear",
            "layers": export.layer_shapes(trained.weights),
            "outputs": [{"name": o.name, "scale": float(o.scale), "offset": float(o.offset)} for o in trained.outputs],
            "qos_cap": trained.qos_cap,
            **_strangeness(trained),
        }
    hyperparameters = {k: float(v) for k, v in trained.hyperparameters.items()}
    if isinstance(trained, TrainedDqn):
        return common | {
            "output_activation": "linear",
            "layers": export.layer_shapes(trained.weights, "policy."),
            "reach": OSML_REACH,
            "latency_cap": float(trained.latency_cap),
            "hyperparameters": hyperparameters,
        }
    return common | {
        "output_activation": "softmax",
        "layers": export.layer_shapes(trained.weights, "actor."),
        "critic_layers": export.layer_shapes(trained.weights, "critic."),
        "actions": list(ACTIONS),
        "available_actions": list(trained.available_actions),
        "hyperparameters": hyperparameters,
    }


def facts(spec: BundleSpec) -> dict[str, Any]:
    """What the manifest says of a bundle besides its files and its signer."""
    if spec.feature_set not in FEATURE_SETS:
        raise BadInput(f"feature_set {spec.feature_set!r} is unknown; known: {', '.join(FEATURE_SETS)}")
    platform = {
        "name": str(spec.platform["name"]),
        "cores": float(spec.platform["cores"]),
        "core_step": float(spec.platform.get("core_step", 1.0)),
        "ways": int(spec.platform.get("ways") or 0),
        "mb_per_way": float(spec.platform.get("mb_per_way") or 0.0),
        "mba": bool(spec.platform.get("mba", False)),
    }
    services: dict[str, dict[str, Any]] = {}
    for name, service in sorted(spec.services.items()):
        if not bundle_rules.is_service_name(name):
            raise BadInput(f"service {name!r}: a name is made of a-z, 0-9, '.', '_' and '-', and starts with a letter or digit")
        max_load = service.get("max_load_rps")
        services[name] = {
            "qos_target_ms": float(service["qos_target_ms"]),
            "max_load_rps": None if max_load is None else float(max_load),
        }
    described = {m: _described(m, trained, sha256_bytes(export.to_safetensors(trained.weights))) for m, trained in spec.each()}
    models: dict[str, Any] = {letter: described[letter] for letter in LETTERS}
    if spec.osml is not None:
        models["osml"] = {key: described[f"osml_{key}"] for key in OSML}
    return {
        "feature_set": spec.feature_set,
        "platform": platform,
        "services": services,
        "models": models,
        "metrics": {k: float(v) for k, v in spec.metrics.items()},
        "provenance": dict(spec.provenance),
    }


def _lowest_version(spec: BundleSpec) -> int:
    """The lowest format version that can hold it: the oldest node that can, reads it."""
    if _has_doubt(spec.a) or _has_doubt(spec.b):
        return 4
    if spec.serial is not None:
        return 3
    return 2 if spec.osml is not None or spec.card is not None else 1


def assemble(spec: BundleSpec, key: Ed25519PrivateKey) -> dict[str, bytes]:
    """The files of a bundle, signature included; equal input gives equal bytes."""
    if spec.serial is None and _lowest_version(spec) >= rules()["objects"]["manifest"]["serial"]["since"]:
        raise BadInput("serial: a bundle with intervals or a strangeness score needs one; give the second of its build")
    said = facts(spec)
    files = profiles(said["platform"], said["services"])
    files |= {f"models/{model}.safetensors": export.to_safetensors(trained.weights) for model, trained in spec.each()}
    if spec.card is not None:
        files[CARD] = spec.card.encode()
        if problem := _bad_card(files[CARD]):
            raise BadInput(f"{CARD}: {problem}; shorten or correct the model card")
    serial = {} if spec.serial is None else {"serial": spec.serial}
    manifest = canonical_json(
        {
            "format": FORMAT,
            "format_version": _lowest_version(spec),
            **said,
            **serial,
            "files": {name: {"bytes": len(data), "sha256": sha256_bytes(data)} for name, data in files.items()},
            "signer": fingerprint(key.public_key()),
        }
    )
    signed = f"{SIGNATURE_TAG} {sha256_bytes(manifest)}"
    files[MANIFEST] = manifest
    files[SIGNATURE] = f"{signed} {key.sign(signed.encode()).hex()}\n".encode()
    return files


def check_out(out: Path, inputs: Sequence[tuple[str, Path]] = (), overwrite: bool = False) -> None:
    """That folder `out` and `out`.tar may be written.

    Args:
        inputs: what the command reads: by which option, and where.
        overwrite: whether an earlier bundle of that name gives way; anything else never does.
    Raises:
        BadInput: what is in the way.
    """
    check_output("--out", out.with_name(out.name + ".tar"), inputs, overwrite)
    if out.is_symlink():
        raise BadInput(f"--out {out}: is a link. Give the path that it leads to")
    if out.exists() and not (out.is_dir() and ((out / MANIFEST).exists() or not any(out.iterdir()))):
        raise BadInput(f"{out}: exists and is not a bundle; choose another --out")
    for option, source in inputs:
        if out.exists() and source.resolve().is_relative_to(out.resolve()):
            raise BadInput(f"--out {out}: is what this command reads ({option} {source}). Give another path")
    if (out / MANIFEST).exists() and not overwrite:
        raise BadInput(f"--out {out}: is there already. Give --overwrite to replace it, or another path")


def build(spec: BundleSpec, out: Path, key: Ed25519PrivateKey | None = None, overwrite: bool = False) -> Verified:
    """Write folder `out` and `out`.tar; both are checked before they take their names.

    An existing bundle of that name is replaced where the caller says so; anything else there is left alone and refused.
    Without `key` this user's signs.
    """
    key = key or signing_key()
    files = assemble(spec, key)
    tar_path = out.with_name(out.name + ".tar")
    check_out(out, overwrite=overwrite)
    make_folder(out.parent)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent))
    try:
        folder = scratch / "bundle"
        for name, data in files.items():
            write_bytes(folder / name, data)
        for sub in (folder / "models", folder / "services", folder):
            if sub.exists():
                os.chmod(sub, 0o755)
                fsync_folder(sub)
        write_bytes(scratch / "bundle.tar", to_tar(files))
        verified = verify(folder, trusted=[key.public_key()])
        verify(scratch / "bundle.tar", trusted=[key.public_key()])
        had = out.exists()
        if had:
            os.replace(out, scratch / "old")
        try:
            os.replace(folder, out)
        except BaseException:
            if had and not out.exists():
                os.replace(scratch / "old", out)
            raise
        os.replace(scratch / "bundle.tar", tar_path)
        fsync_folder(out.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return verified


# ---------------------------------------------------------------- inspect


def _output_names(spec: AnySpec) -> list[str]:
    if isinstance(spec, MlpSpec):
        return [o.name for o in spec.outputs]
    if isinstance(spec, DdpgSpec):
        return spec.actions
    steps = range(-spec.reach, spec.reach + 1)
    return [f"{cores:+d} cores {ways:+d} ways" for cores in steps for ways in steps]


def built(serial: int) -> str:
    """A serial as time of day, UTC."""
    return datetime.fromtimestamp(serial, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def inspect(path: Path, trusted: Sequence[Ed25519PublicKey] | None = None) -> dict[str, Any]:
    """What a bundle holds. The bundle is verified first."""
    checked = verify(path, trusted=trusted)
    m = checked.manifest
    return {
        "path": str(path),
        "manifest_sha256": checked.manifest_sha256,
        "format_version": m.format_version,
        "serial": m.serial,
        "built": None if m.serial is None else built(m.serial),
        "feature_set": m.feature_set,
        "platform": m.platform.model_dump(),
        "services": {name: s.model_dump() for name, s in m.services.items()},
        "models": {
            model.replace("_", "-"): {
                "inputs": [i.name for i in spec.inputs],
                "outputs": _output_names(spec),
                "layers": [list(shape) for shape in spec.layers],
                "parameters": sum(int(w.size) for w in checked.weights(model).values()),
                "bytes": m.files[spec.file].bytes,
            }
            for model, _, spec in m.models.each()
        },
        "metrics": m.metrics,
        "provenance": m.provenance.model_dump(),
        "signer": m.signer,
        "card": checked.card,
        "files": {name: spec.bytes for name, spec in m.files.items()},
    }


# ---------------------------------------------------------------- stage `bundle`


def _osml(trained: Mapping[str, Fitted]) -> TrainedOsml:
    a, ap, b, bp = (TrainedMlp(f.weights, f.inputs, f.outputs) for f in (trained[key] for key in OSML[:-1]))
    c = trained["c"]
    # The lab's pool held all that was logged; a node has one of its own size.
    hyperparameters = {k: v for k, v in c.setting("hyperparameters").items() if k != "replay"}
    return TrainedOsml(a, ap, b, bp, TrainedDqn(c.weights, c.inputs, hyperparameters, c.setting("latency_cap")))


def summaries(models: Path) -> dict[str, Summary]:
    """What `model.json` says of each model that goes into a bundle: A, B, C, and OSML's where they were trained.

    Raises:
        BadInput: one is missing, damaged, or was ended before its end.
    """
    from pipelines.fits import fitted

    osml = [f"osml-{key}" for key in OSML]
    found = [name for name in osml if (models / name).exists()]
    if found and found != osml:
        missing = next(name for name in osml if name not in found)
        raise BadInput(f"{models / missing}: OSML's models are bundled together: train it, too, or remove {models}/osml-*")
    held = {name: fitted.summary(models / name) for name in (*LETTERS, *found)}
    for name, summary in held.items():
        summary.check_whole(models / name)
    return held


def from_pipeline(data: Path, models: Path, metrics: Path | None) -> BundleSpec:
    """Collect what the stages before left behind."""
    # Imported here: checking a bundle must not need Polars or PyTorch.
    from pipelines import samples, tracking
    from pipelines.fits import fitted
    from pipelines.pages.card import model_card

    source = samples.open_dataset(data, check_shards=False)
    held = summaries(models)
    found = [name for name in held if name not in LETTERS]
    for name, summary in held.items():
        if summary.data_sha256 != source.sha256:
            old = f", or remove {models}/osml-* if `osml_datasets` no longer names the data set" if name in found else ""
            raise BadInput(f"{models / name}: the model is from other data than {data} holds now; run `dvc repro`{old}")
    trained = {name: fitted.load(models / name) for name in held}
    a, b, c = (trained[name] for name in LETTERS)
    commit, dirty = tracking.git_state()
    spec = BundleSpec(
        feature_set=source.feature_set,
        platform={
            "name": source.platform.name,
            "cores": source.platform.cores,
            "core_step": source.platform.core_step,
            "ways": source.platform.ways,
            "mb_per_way": source.platform.mb_per_way,
            "mba": source.platform.mba,
        },
        services=source.services,
        a=TrainedMlp(a.weights, a.inputs, a.outputs),
        b=TrainedMlp(b.weights, b.inputs, b.outputs, qos_cap=b.setting("qos_cap")),
        c=TrainedDdpg(c.weights, c.inputs, c.setting("hyperparameters"), c.setting("available_actions")),
        osml=_osml({key: trained[name] for key, name in zip(OSML, found, strict=True)}) if found else None,
        metrics=read_json(metrics, "the metrics of the stage `evaluate`") if metrics else {},
        provenance={
            "git_commit": commit,
            "git_dirty": dirty,
            "data_sha256": source.sha256,
            "mlflow_run_id": held["c"].mlflow_run_id,
            "campaigns": [source.campaign],
            "software": {name: version(name) for name in ("lightning", "numpy", "polars", "safetensors", "torch")}
            | {name: told for name, told in source.made_by.items() if name == samples.PLANT},
        },
    )
    spec.card = model_card(facts(spec))
    return spec


def now() -> int:
    """The serial of a bundle that is built now: SOURCE_DATE_EPOCH where a build is to be repeated, else the clock.

    Raises:
        BadInput: SOURCE_DATE_EPOCH is no number of seconds that a manifest may hold.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        return int(time.time())
    rule = rules()["objects"]["manifest"]["serial"]
    if not (given.isascii() and given.isdigit() and rule["least"] <= int(given) <= rule["most"]):
        raise BadInput(
            f"SOURCE_DATE_EPOCH: {given[:40]!r} is no number of seconds from {rule['least']} to {rule['most']}; unset it"
        )
    return int(given)


def run(
    data: Path, models: Path, metrics: Path | None, out: Path, key: Path | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Build the bundle of one data set and log it to the MLflow run it came from, where that is to be found."""
    from pipelines import tracking

    given = (("--data", data), ("--models", models), ("--metrics", metrics), ("--key", key))
    check_out(out, [(option, path) for option, path in given if path is not None], overwrite)
    signer = signing_key(key)
    spec = from_pipeline(data, models, metrics)
    spec.serial = now()
    checked = build(spec, out, signer, overwrite)
    run_id = str(spec.provenance["mlflow_run_id"])
    runs = {name: (held.mlflow_child_id, held.mlflow_run_id) for name, held in summaries(models).items()}
    if why := tracking.keep_bundle(runs, out.with_name(out.name + ".tar"), checked.manifest_sha256):
        print(message(f"note: the bundle is whole, and is not logged to MLflow's run {run_id}: {why}"), file=sys.stderr)
    return inspect(out, trusted=[signer.public_key()])


def main(argv: list[str] | None = None) -> int:
    from pipelines import params

    parser = argparse.ArgumentParser(
        prog="python -m pipelines.artefact.bundle", description="Build the signed bundle of one data set."
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True, help="folder of the models, outputs of the stage `train`")
    parser.add_argument("--metrics", type=Path, help="metrics.json of the stage `evaluate`")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; the tar gets the same name with .tar")
    parser.add_argument("--key", type=Path, help="PEM file of the signing key")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier bundle of that name")
    args = parser.parse_args(argv)
    return params.run_stage(lambda: run(args.data, args.models, args.metrics, args.out, args.key, args.overwrite))


if __name__ == "__main__":
    raise SystemExit(main())
