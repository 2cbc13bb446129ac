"""Bundles: signed, complete, and not one byte can change unnoticed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import re
import shutil
import stat
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from models import export, osml_c
from pipelines import vectors
from pipelines.artefact import bundle
from pipelines.artefact.keys import SMALL_ORDER, is_small, private_key, reach
from pipelines.errors import BadInput, BundleError
from pipelines.io import canonical_json, sha256_bytes

VECTORS = Path(__file__).parent / "vectors"
SMALL = VECTORS / "bundle-small"


@pytest.fixture(scope="module")
def trusted() -> list[Ed25519PublicKey]:
    return bundle.trusted_keys(VECTORS / "keys" / "trusted")


@pytest.fixture(scope="module")
def key() -> Ed25519PrivateKey:
    path = VECTORS / "keys" / "TEST-ONLY-signing.pem"
    return private_key(path.read_bytes(), str(path))


def copy(tmp_path: Path) -> Path:
    target = tmp_path / "b"
    shutil.copytree(SMALL, target)
    return target


def resign(folder: Path, key: Ed25519PrivateKey, change: object = None) -> None:
    """Sign the manifest again, as somebody who holds the key could."""
    manifest = (folder / "manifest.json").read_bytes()
    signed = f"surefoot-bundle-v1 {sha256_bytes(manifest)}"
    (folder / "manifest.sig").write_bytes(f"{signed} {key.sign(signed.encode()).hex()}\n".encode())


def test_the_fixture_verifies_as_folder_and_as_tar(trusted: list[Ed25519PublicKey]) -> None:
    """Folder and tar hold the same files, and both pass."""
    folder = bundle.verify(SMALL, trusted=trusted)
    tar = bundle.verify(SMALL.with_name("bundle-small.tar"), trusted=trusted)
    assert folder.files == tar.files
    assert folder.manifest.models.a.layers == [(32, 12), (64, 32), (32, 64), (5, 32)]


def test_other_tools_read_the_tar() -> None:
    """The tar is plain ustar."""
    with tarfile.open(SMALL.with_name("bundle-small.tar")) as tar:
        names = tar.getnames()
        assert names[:2] == ["manifest.json", "manifest.sig"]
        member = tar.extractfile("platform.toml")
        assert member is not None
        assert member.read() == (SMALL / "platform.toml").read_bytes()


def test_building_twice_gives_the_same_bytes(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    """Equal input, equal bundle: the committed fixture is what the code writes today."""
    bundle.build(vectors.small_bundle(), tmp_path / "b", key)
    for path in sorted(p for p in SMALL.rglob("*") if p.is_file()):
        assert (tmp_path / "b" / path.relative_to(SMALL)).read_bytes() == path.read_bytes(), path.name
    assert (tmp_path / "b.tar").read_bytes() == SMALL.with_name("bundle-small.tar").read_bytes()


def offsets(size: int, rng: random.Random, count: int) -> list[int]:
    """First and last bytes, and `count` random ones."""
    return sorted({0, size - 1, *(rng.randrange(size) for _ in range(count))})


def test_a_changed_byte_in_any_file_is_found_and_the_file_named(tmp_path: Path, trusted: list[Ed25519PublicKey]) -> None:
    """Every byte of the manifest and its signature, and 60 of each other file."""
    folder = copy(tmp_path)
    rng = random.Random(1)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        good = path.read_bytes()
        where = range(len(good)) if name == "manifest.sig" else offsets(len(good), rng, 400 if name == "manifest.json" else 60)
        for at in where:
            bad = bytearray(good)
            bad[at] ^= 1 << rng.randrange(8)
            path.write_bytes(bad)
            with pytest.raises(BundleError) as caught:
                bundle.verify(folder, trusted=trusted)
            assert caught.value.file == name, f"byte {at}"
            assert str(caught.value).startswith(name)
        path.write_bytes(good)
    bundle.verify(folder, trusted=trusted)


def test_a_changed_byte_anywhere_in_the_tar_is_found_and_its_member_named(
    tmp_path: Path, trusted: list[Ed25519PublicKey]
) -> None:
    """Headers, data, padding and the end of the archive: 500 random bytes, and every byte of two headers."""
    good = SMALL.with_name("bundle-small.tar").read_bytes()
    path = tmp_path / "b.tar"
    rng = random.Random(2)
    # Where each member's header and data lie, from the tar itself.
    owner: list[tuple[int, int, str]] = []
    with tarfile.open(SMALL.with_name("bundle-small.tar")) as tar:
        for member in tar.getmembers():
            end = member.offset_data + member.size + (-member.size % 512)
            owner.append((member.offset, end, member.name))
    places = [*range(512), *range(owner[2][0], owner[2][0] + 512), *range(len(good) - 1024, len(good), 64)]
    places += [rng.randrange(len(good)) for _ in range(500)]
    for at in places:
        bad = bytearray(good)
        bad[at] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        with pytest.raises(BundleError) as caught:
            bundle.verify(path, trusted=trusted)
        name = next((n for start, end, n in owner if start <= at < end), "b.tar")
        # A changed size field moves everything behind it: then the next member is the one that is not found.
        size_field = any(start + 124 <= at < start + 136 for start, _, _ in owner)
        assert caught.value.file == name or size_field, f"byte {at}: {caught.value}"


@pytest.mark.parametrize("cut", [1, 511, 1024, 5000])
def test_a_truncated_or_longer_tar_is_refused(tmp_path: Path, trusted: list[Ed25519PublicKey], cut: int) -> None:
    good = SMALL.with_name("bundle-small.tar").read_bytes()
    path = tmp_path / "b.tar"
    for data in (good[:-cut], good + b"\0" * cut):
        path.write_bytes(data)
        with pytest.raises(BundleError):
            bundle.verify(path, trusted=trusted)


def test_missing_extra_and_linked_files_are_refused_by_name(tmp_path: Path, trusted: list[Ed25519PublicKey]) -> None:
    folder = copy(tmp_path)
    (folder / "models" / "a.safetensors").rename(tmp_path / "kept")
    with pytest.raises(BundleError, match=r"^models/a.safetensors: is missing"):
        bundle.verify(folder, trusted=trusted)
    (folder / "models" / "a.safetensors").symlink_to(tmp_path / "kept")
    with pytest.raises(BundleError, match=r"^models/a.safetensors: is a symbolic link"):
        bundle.verify(folder, trusted=trusted)
    (folder / "models" / "a.safetensors").unlink()
    (tmp_path / "kept").rename(folder / "models" / "a.safetensors")
    (folder / "services" / "extra.toml").write_text("kind = 'lc'\n")
    with pytest.raises(BundleError, match=r"^services/extra.toml: is not in the manifest"):
        bundle.verify(folder, trusted=trusted)


@pytest.mark.parametrize(
    "form",
    ["{line} ", " {line}", "{line}\r\n", "{upper}", "{line}{line}", "{short}"],
)
def test_any_other_form_of_the_signature_is_refused(tmp_path: Path, trusted: list[Ed25519PublicKey], form: str) -> None:
    """Upper-case hex, spaces and further lines mean the same to a lenient reader; here they are changes."""
    folder = copy(tmp_path)
    line = (folder / "manifest.sig").read_text()
    tag, digest, signature = line.split()
    text = form.format(line=line, upper=f"{tag} {digest} {signature.upper()}\n", short=f"{tag} {digest} {signature[:-2]}\n")
    (folder / "manifest.sig").write_text(text)
    with pytest.raises(BundleError, match=r"^manifest.sig"):
        bundle.verify(folder, trusted=trusted)


def test_an_unknown_signer_is_refused_with_the_remedy(tmp_path: Path) -> None:
    stranger = Ed25519PrivateKey.generate().public_key()
    with pytest.raises(BundleError, match=r"manifest.sig: the signer [0-9a-f]{16} is not trusted here.*pub\.pem"):
        bundle.verify(SMALL, trusted=[stranger])
    with pytest.raises(BundleError, match="not trusted"):
        bundle.verify(SMALL, trusted=[])


def test_a_bundle_for_another_host_is_refused_by_name(trusted: list[Ed25519PublicKey]) -> None:
    with pytest.raises(BundleError, match=r"feature_set: the bundle is for 'full', this host measures 'no-pmu'"):
        bundle.verify(SMALL, trusted=trusted, expect_feature_set="no-pmu")
    with pytest.raises(BundleError, match=r"platform: the bundle is for 'fixture-36x20', wanted 'server-2'"):
        bundle.verify(SMALL, trusted=trusted, expect_platform="server-2")
    bundle.verify(SMALL, trusted=trusted, expect_feature_set="full", expect_platform="fixture-36x20")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=5), "field format_version: is 5: this version does not know it"),
        (lambda m: m.update(format_version=3), "field serial: is missing"),
        (lambda m: m.update(surprise=1), "field surprise: is unknown"),
        (lambda m: m["models"]["a"]["inputs"][0].update(max=-1.0), "models.a.inputs.ipc: bounds 0.0..-1.0 are empty"),
        (lambda m: m["models"]["a"]["layers"][0].__setitem__(1, 11), "models.a.layers: layer 0 is [32, 11]"),
        (lambda m: m["models"]["a"]["outputs"].pop(), "models.a.outputs.rcliff_ways: is missing"),
        (lambda m: m["models"]["b"]["outputs"][0].update(scale=0.0), "models.b.outputs[0].scale: is 0.0, want more than 0.0"),
        (lambda m: m["models"]["b"]["inputs"][6].update(max=37.0), "inputs.alloc_cores: bounds 0.0..37.0 leave the machine's"),
        (lambda m: m["models"]["a"]["outputs"][1].update(offset=20.5), "outputs.oaa_ways: its mean 20.5 leaves the machine's"),
        (lambda m: m["files"].update({"card.md": {"bytes": 0, "sha256": "0" * 64}}), "is of version 2"),
        (lambda m: m["models"]["c"]["actions"].reverse(), "models.c.actions"),
        (lambda m: m["models"]["c"].update(available_actions=[]), "models.c.available_actions: length: is 0"),
        (lambda m: m["models"]["c"]["hyperparameters"].pop("gamma"), "models.c.hyperparameters.gamma: is missing"),
        (
            lambda m: m["models"]["c"]["hyperparameters"].update(tau=-1.0),
            "models.c.hyperparameters.tau: is -1.0, want 0.0 or more",
        ),
        (lambda m: m["services"]["moses"].update(max_load_rps=-5.0), "services.moses.max_load_rps: is -5.0"),
        (lambda m: m["files"].update({"../evil": {"bytes": 0, "sha256": "0" * 64}}), "evil"),
        (lambda m: m["files"].update({"services/x/../y.toml": {"bytes": 0, "sha256": "0" * 64}}), "not a name"),
        (lambda m: m["services"].update({"ghost": {"qos_target_ms": 1.0, "max_load_rps": None}}), "services/ghost.toml"),
        (lambda m: m.update(signer="0" * 64), "field signer: is 0000000000000000, but"),
    ],
)
def test_a_signed_manifest_that_does_not_hold_together_is_refused(
    tmp_path: Path, key: Ed25519PrivateKey, trusted: list[Ed25519PublicKey], change: object, message: str
) -> None:
    """A signature says who made a bundle, not that it is sound."""
    folder = copy(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)  # type: ignore[operator]
    (folder / "manifest.json").write_bytes(canonical_json(manifest))
    resign(folder, key)
    with pytest.raises(BundleError, match=re.escape(message)):
        bundle.verify(folder, trusted=trusted)


def test_names_in_a_bundle_do_not_break_a_message(
    tmp_path: Path, trusted: list[Ed25519PublicKey], key: Ed25519PrivateKey
) -> None:
    """A field may be called anything: the message is one line, and what a terminal would obey is escaped."""
    folder = copy(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text()) | {"\x1b[2Jx\ny": 1}
    (folder / "manifest.json").write_bytes(canonical_json(manifest))
    resign(folder, key)
    with pytest.raises(BundleError, match=r"field \\x1b\[2Jx\\ny:"):
        bundle.verify(folder, trusted=trusted)


def test_names_of_files_do_not_break_a_message_either(tmp_path: Path) -> None:
    """Paths are the caller's or somebody else's: whatever they hold, a message is one line without a terminal's commands."""
    odd = tmp_path / "a\n\x1b[2J.pub.pem"
    odd.write_text("no key")
    for call in (
        lambda: bundle.load_public_key(odd),
        lambda: bundle.signing_key(odd.with_suffix(".\r")),
        lambda: bundle.verify(odd),
    ):
        with pytest.raises(BadInput) as caught:
            call()
        assert str(caught.value).isprintable()


# ---------------------------------------------------------------- OSML's models and the card


def whole(tmp_path: Path, key: Ed25519PrivateKey, **change: Any) -> Path:
    """The bundle with all that a bundle may hold, as a folder."""
    bundle.build(replace(vectors.whole_bundle(), **change), tmp_path / "b", key)
    return tmp_path / "b"


def edited(folder: Path, key: Ed25519PrivateKey, change: Any = lambda m: None) -> None:
    """Change the manifest, make its digests right and sign it, as somebody who holds the key could."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"bytes": len(data), "sha256": sha256_bytes(data)}
    for model, entry in manifest["models"]["osml"].items():
        entry["sha256"] = manifest["files"][f"models/osml_{model}.safetensors"]["sha256"]
    change(manifest)
    (folder / "manifest.json").write_bytes(canonical_json(manifest))
    resign(folder, key)


def test_a_whole_bundle_is_what_the_fixture_says(tmp_path: Path, key: Ed25519PrivateKey, trusted: list[Ed25519PublicKey]) -> None:
    """Equal input, equal bytes; what it holds can be had and is described. Without the new parts it would be of version 1."""
    folder = whole(tmp_path, key)
    assert (tmp_path / "b.tar").read_bytes() == (VECTORS / "bundle-whole.tar").read_bytes()
    checked, small = bundle.verify(folder, trusted=trusted), bundle.verify(SMALL, trusted=trusted)
    assert (checked.manifest.format_version, small.manifest.format_version) == (2, 1)
    assert (small.manifest.models.osml, small.card) == (None, None)
    assert checked.card is not None
    assert checked.card.startswith("# Test fixture")
    assert checked.manifest.models.osml is not None
    assert checked.manifest.models.osml.c.layers == [(30, 8), (30, 30), (30, 30), (49, 30)]
    assert set(checked.weights("osml_c")) == {
        f"{net}.layers.{n}.{kind}" for net in ("policy", "target") for n in range(4) for kind in ("weight", "bias")
    }
    found = bundle.inspect(folder, trusted)
    assert list(found["models"]) == ["a", "b", "c", "osml-a", "osml-ap", "osml-b", "osml-bp", "osml-c"]
    assert (len(found["models"]["osml-c"]["outputs"]), found["models"]["osml-c"]["outputs"][0]) == (49, "-3 cores -3 ways")
    assert found["card"] == checked.card


def test_osmls_actions_are_the_models() -> None:
    """The bundle's reader needs no PyTorch, so it has a number of its own."""
    assert (osml_c.REACH, len(osml_c.ACTIONS)) == (bundle.OSML_REACH, bundle.OSML_ACTIONS)


def test_a_changed_byte_in_the_new_files_is_found(
    tmp_path: Path, key: Ed25519PrivateKey, trusted: list[Ed25519PublicKey]
) -> None:
    folder = whole(tmp_path, key)
    names = [f"models/osml_{m}.safetensors" for m in bundle.OSML] + ["card.md"]
    rng = random.Random(3)
    for name in names:
        good = (folder / name).read_bytes()
        for at in offsets(len(good), rng, 20):
            bad = bytearray(good)
            bad[at] ^= 1 << rng.randrange(8)
            (folder / name).write_bytes(bad)
            with pytest.raises(BundleError) as caught:
                bundle.verify(folder, trusted=trusted)
            assert caught.value.file == name, f"byte {at}"
        (folder / name).unlink()
        with pytest.raises(BundleError, match=rf"^{re.escape(name)}: is missing"):
            bundle.verify(folder, trusted=trusted)
        (folder / name).write_bytes(good)
    bundle.verify(folder, trusted=trusted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=1), "models.osml: is unknown in version 1"),
        (lambda m: m["models"]["osml"].pop("bp"), "models.osml.bp"),
        (lambda m: m["models"].pop("osml"), "models/osml_a.safetensors is listed without need"),
        (lambda m: m["files"].pop("models/osml_ap.safetensors"), "models/osml_ap.safetensors is needed and not listed"),
        (lambda m: m["models"]["osml"]["a"].update(file="models/a.safetensors"), "want 'models/osml_a.safetensors'"),
        (lambda m: m["models"]["osml"]["b"].update(sha256="0" * 64), "models.osml.b.sha256: differs"),
        (lambda m: m["models"]["osml"]["c"].update(reach=4), "models.osml.c.reach"),
        (lambda m: m["models"]["osml"]["c"].update(latency_cap=0.0), "models.osml.c.latency_cap"),
        (
            lambda m: m["models"]["osml"]["c"]["layers"][3].__setitem__(0, 7),
            "models.osml.c.layers: the last layer gives 7 values",
        ),
        (lambda m: m["models"]["osml"]["b"]["inputs"][-1].update(max=1.5), "inputs.qos_slowdown: bounds"),
        (lambda m: m["models"]["osml"]["b"]["outputs"][2].update(offset=-1.0), "outputs.cores_dominated_cores: its mean -1.0"),
        (lambda m: m["models"]["osml"]["bp"]["inputs"][9].update(max=99.0), "inputs.expected_cores: bounds 0.0..99.0"),
    ],
)
def test_mistakes_about_osmls_models_are_refused(
    tmp_path: Path, key: Ed25519PrivateKey, trusted: list[Ed25519PublicKey], change: object, message: str
) -> None:
    folder = whole(tmp_path, key)
    edited(folder, key)
    bundle.verify(folder, trusted=trusted)
    edited(folder, key, change)
    with pytest.raises(BundleError, match=re.escape(message)):
        bundle.verify(folder, trusted=trusted)


def test_osmls_weights_are_checked_tensor_by_tensor(
    tmp_path: Path, key: Ed25519PrivateKey, trusted: list[Ed25519PublicKey]
) -> None:
    folder = whole(tmp_path, key)
    path = folder / "models" / "osml_c.safetensors"
    good = dict(export.from_safetensors(path.read_bytes()))
    cases: list[tuple[Any, str]] = [
        (
            good | {"policy.layers.1.bias": np.full(30, np.nan, np.float32)},
            "policy.layers.1.bias holds values that are not finite",
        ),
        ({k: v for k, v in good.items() if k != "target.layers.0.bias"}, "target.layers.0.bias is missing"),
        (good | {"actor.layers.0.bias": np.zeros(1, np.float32)}, "does not name: actor.layers.0.bias"),
    ]
    for tensors, message in cases:
        path.write_bytes(save(tensors))
        edited(folder, key)
        with pytest.raises(BundleError, match=message) as caught:
            bundle.verify(folder, trusted=trusted)
        assert caught.value.file == "models/osml_c.safetensors"


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (b"x" * (bundle.MAX_CARD_BYTES + 1), "has 262145 bytes, a model card at most 262144"),
        (b"caf\xe9", "is not UTF-8"),
        (b"colour: \x1b[31m", "control character U+001B"),
        ("next line: \u0085".encode(), "control character U+0085"),
    ],
)
def test_a_card_is_short_plain_text(
    tmp_path: Path, key: Ed25519PrivateKey, trusted: list[Ed25519PublicKey], card: bytes, message: str
) -> None:
    """By whoever reads, and where text can say it by whoever builds."""
    folder = whole(tmp_path, key)
    (folder / "card.md").write_bytes(card)
    edited(folder, key)
    with pytest.raises(BundleError, match=re.escape(message)) as caught:
        bundle.verify(folder, trusted=trusted)
    assert caught.value.file == "card.md"
    with contextlib.suppress(UnicodeDecodeError):
        text = card.decode()
        with pytest.raises(BadInput, match=re.escape(message)):
            bundle.assemble(replace(vectors.small_bundle(), card=text), key)


def test_a_card_alone_makes_a_bundle_of_version_2(
    tmp_path: Path, key: Ed25519PrivateKey, trusted: list[Ed25519PublicKey]
) -> None:
    text = "x" * bundle.MAX_CARD_BYTES
    folder = whole(tmp_path, key, osml=None, card=text)
    checked = bundle.verify(folder, trusted=trusted)
    assert (checked.card, checked.manifest.models.osml, checked.manifest.format_version) == (text, None, 2)


def test_weights_that_are_not_finite_are_never_bundled(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    spec = vectors.small_bundle()
    spec.a.weights["layers.0.bias"] = np.full(32, np.nan, dtype=np.float32)
    with pytest.raises(ValueError, match=r"layers\.0\.bias"):
        bundle.build(spec, tmp_path / "b", key)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_bundle_is_not_replaced(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("years of work")
    with pytest.raises(BadInput, match="not a bundle"):
        bundle.build(vectors.small_bundle(), tmp_path / "b", key)
    assert (tmp_path / "b" / "thesis.txt").exists()


def test_the_first_build_makes_a_private_key_and_trusts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFOOT_KEYS", str(tmp_path / "keys"))
    key = bundle.signing_key()
    path = tmp_path / "keys" / "signing.pem"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [bundle.fingerprint(k) for k in bundle.trusted_keys()] == [bundle.fingerprint(key.public_key())]
    assert bundle.fingerprint(bundle.signing_key().public_key()) == bundle.fingerprint(key.public_key())
    path.chmod(0o644)
    with pytest.raises(BadInput, match="chmod 600"):
        bundle.signing_key()
    with pytest.raises(BadInput, match="--key"):
        bundle.signing_key(tmp_path / "nothing.pem")


def test_a_signing_key_that_others_can_reach_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given or not: the mode of the file, and of every folder above it, with the command that mends it."""
    monkeypatch.setenv("SUREFOOT_KEYS", str(tmp_path / "keys"))
    bundle.signing_key()
    path = tmp_path / "keys" / "signing.pem"
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    for chosen in (None, path):
        for mode in (0o640, 0o604, 0o620, 0o602, 0o644):
            path.chmod(mode)
            with pytest.raises(BadInput, match=rf"chmod 600 {path}"):
                bundle.signing_key(chosen)
        path.chmod(0o600)
        for folder in (path.parent, tmp_path):
            before = folder.stat().st_mode
            folder.chmod(0o777)
            with pytest.raises(
                BadInput, match=rf"{folder} can be written by others, so others could replace .*chmod go-w {folder}$"
            ):
                bundle.signing_key(chosen)
            folder.chmod(0o1777)
            bundle.signing_key(chosen)
            folder.chmod(before)
    link = tmp_path / "link.pem"
    link.symlink_to(path)
    bundle.signing_key(link)
    path.chmod(0o644)
    with pytest.raises(BadInput, match="chmod 600"):
        bundle.signing_key(link)


def test_who_reaches_a_key() -> None:
    """Root's and one's own files are nobody else's; a sticky folder keeps others from replacing what is in it."""
    folder, file = stat.S_IFDIR, stat.S_IFREG
    assert reach(0, file | 0o644, (0, 7)) is None
    assert reach(7, folder | 0o755, (0, 7)) is None
    assert reach(0, folder | 0o1777, (0, 7)) is None
    assert reach(8, file | 0o600, (0, 7)) == ("belongs to user 8", "chown 7")
    for kind, mode in ((folder, 0o777), (folder, 0o775), (file, 0o660), (file, 0o1666)):
        assert reach(0, kind | mode, (0, 7)) == ("can be written by others", "chmod go-w")


def test_no_key_is_believed_that_others_can_write(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    """As on a node: the file, its folder and those above it."""
    path = bundle.trust(key.public_key(), "x", tmp_path / "keys" / "trusted")
    assert len(bundle.trusted_keys(path.parent)) == 1
    for part in (path, path.parent, path.parent.parent):
        before = part.stat().st_mode
        part.chmod(before | 0o002)
        with pytest.raises(BadInput, match=rf"{part} can be written by others, so others could choose which bundles"):
            bundle.trusted_keys(path.parent)
        with pytest.raises(BadInput, match=f"chmod go-w {part}"):
            bundle.load_public_key(path)
        part.chmod(before)
    if os.geteuid() == 0:
        path.chmod(0o664)
        with pytest.raises(BadInput, match="can be written by others"):
            bundle.trusted_keys(path.parent)
        path.chmod(0o644)
        os.chown(path, 65534, -1)
        with pytest.raises(BadInput, match="belongs to user 65534"):
            bundle.trusted_keys(path.parent)


def test_a_public_key_has_one_form(tmp_path: Path, key: Ed25519PrivateKey) -> None:
    """Three lines, no key of small order, no private key: what the node takes, and no more."""
    path = bundle.trust(key.public_key(), "x", tmp_path)
    good = path.read_text()
    weak = base64.b64encode(bytes.fromhex("302a300506032b6570032100") + bytes(32)).decode()
    bad = [
        "", "x", f"# mine\n{good}", good + good, f"-----BEGIN PUBLIC KEY-----\n{weak}\n-----END PUBLIC KEY-----\n",
        good.replace("PUBLIC", "PRIVATE"), good.replace("\n", "", 1), "\n" + good, "x" * (1 << 17),
    ]  # fmt: skip
    for text in bad:
        path.write_text(text)
        with pytest.raises(BadInput, match=r"x\.pub\.pem: "):
            bundle.load_public_key(path)
    for text in (good, good.rstrip("\n"), good.replace("\n", "\r\n")):
        path.write_bytes(text.encode())
        assert bundle.fingerprint(bundle.load_public_key(path)) == bundle.fingerprint(key.public_key())


def test_points_of_small_order_are_all_there() -> None:
    """On the curve -x^2 + y^2 = 1 + d x^2 y^2 eight points come to nothing after three doublings; their y are the listed ones."""
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p) % p
    found = set()
    for text in SMALL_ORDER:
        y = int.from_bytes(text, "little") % p
        square = (y * y - 1) * pow(d * y * y + 1, -1, p) % p
        x = pow(square, (p + 3) // 8, p)
        if (x * x - square) % p:
            x = x * pow(2, (p - 1) // 4, p) % p
        assert (x * x - square) % p == 0
        found |= {(x, y), (-x % p, y)}
        for _ in range(3):
            k = d * x * x * y * y % p
            x, y = 2 * x * y * pow(1 + k, -1, p) % p, (y * y + x * x) * pow(1 - k, -1, p) % p
        assert (x, y) == (0, 1)
        assert is_small(text)
        assert is_small(bytes((*text[:31], text[31] | 0x80)))
    assert len(found) == 8


def test_a_pipe_is_not_waited_for(tmp_path: Path, trusted: list[Ed25519PublicKey]) -> None:
    """What is no plain file is refused, as a bundle, as a key; what is endless is not read."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(BundleError, match="is not a plain file") as caught:
            bundle.verify(path, trusted=trusted)
        assert caught.value.kind == "unreadable"
        with pytest.raises(BadInput, match="is not a plain file"):
            bundle.load_public_key(path)
    folder = copy(tmp_path)
    with (folder / "services" / "huge.toml").open("wb") as file:
        file.truncate(1 << 40)  # sparse; as a file of a bundle it would not fit, and it is not opened
    with pytest.raises(BundleError) as caught:
        bundle.verify(folder, trusted=trusted)
    assert caught.value.kind == "extra"


def test_a_bundle_says_when_it_was_built(
    tmp_path: Path, key: Ed25519PrivateKey, trusted: list[Ed25519PublicKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The serial makes it version 3 and is shown; it is the clock's or SOURCE_DATE_EPOCH. An older version has none."""
    bundle.build(replace(vectors.small_bundle(), serial=1_700_000_000), tmp_path / "b", key)
    facts = bundle.inspect(tmp_path / "b", trusted)
    assert (facts["format_version"], facts["serial"], facts["built"]) == (3, 1_700_000_000, "2023-11-14T22:13:20Z")
    old = bundle.inspect(SMALL, trusted)
    assert (old["format_version"], old["serial"], old["built"]) == (1, None, None)
    assert bundle.now() >= 1_700_000_000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1234")
    assert bundle.now() == 1234
    for text in ("", "0", "-1", "1.5", "١", "9" * 30):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", text)
        with pytest.raises(BadInput, match="SOURCE_DATE_EPOCH"):
            bundle.now()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.dictionaries(st.from_regex(r"services/[a-z]{1,8}\.toml", fullmatch=True), st.binary(max_size=1500), max_size=5))
def test_a_tar_is_a_function_of_its_files(files: dict[str, bytes], tmp_path: Path) -> None:
    """What tarfile reads back is what went in, and each size is a whole number of blocks."""
    full = {"manifest.json": b"{}", "manifest.sig": b"x\n", **files}
    data = bundle.to_tar(full)
    path = tmp_path / "t.tar"
    path.write_bytes(data)
    with tarfile.open(path) as tar:
        back = {m.name: tar.extractfile(m).read() for m in tar.getmembers()}  # type: ignore[union-attr]
    assert back == full
    assert len(data) % 512 == 0


def test_a_bundle_that_is_not_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: Any) -> None:
    """Whatever comes between the two renames of a replacement, the bundle that was there is there."""
    out = tmp_path / "b"
    bundle.build(vectors.small_bundle(), out, key)
    before = {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()}
    real = os.replace

    def cut(source: Any, target: Any) -> None:
        if Path(target) == out and Path(source).name == "bundle":
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", cut)
    with pytest.raises(KeyboardInterrupt):
        bundle.build(vectors.small_bundle(), out, key, overwrite=True)
    assert {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()} == before
    assert not list(tmp_path.glob(".b.*"))
