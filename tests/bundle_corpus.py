"""Good and bad bundles for both readers: the lab's (pipelines/artefact/bundle.py) and the node's (scheduler/learn).

    python -m tests.bundle_corpus --write                  tests/vectors/bundles.jsonl, made anew
    python -m tests.bundle_corpus --compare 10000 --seed 1 fresh mutations, never stored: both readers must say the same

A line of bundles.jsonl is a base (`{"base": NAME, "files": {...}}`) or a variant of one:

    name, base, want   the kind of refusal (pipelines/artefact/bundle_rules.json), or `ok`; by form where folder and tar differ
    splices            file -> [[from, to, content]], from the last to the first: bytes [from, to) of the base's file are replaced
    add, remove        files with their content; names
    sign               `test` (default): the manifest is signed with the test key; `keep`: manifest.sig stays as it is
    tar                splices of the packed tar; then only the tar is read
    links, folders     name -> target, names; then only the folder is read

Content is text, or `{"hex": ...}`. What is wanted is written down with each kind of mutation, not asked of a reader; but for the
`random` ones, where the lab's verdict is recorded and the node's must be the same.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from models.features import ACTIONS, Bound, Scale
from pipelines.artefact import bundle, bundle_rules
from pipelines.artefact.keys import private_key
from pipelines.errors import BundleError
from pipelines.io import canonical_json, sha256_bytes, write_bytes

VECTORS = Path(__file__).parent / "vectors"
CORPUS = VECTORS / "bundles.jsonl"
MANIFEST, SIGNATURE, CARD = "manifest.json", "manifest.sig", "card.md"
Files = dict[str, bytes]
Json = Any


@lru_cache(maxsize=1)
def test_key() -> Ed25519PrivateKey:
    path = VECTORS / "keys" / "TEST-ONLY-signing.pem"
    return private_key(path.read_bytes(), str(path))


test_key.__test__ = False  # type: ignore[attr-defined]  # no test, though it has the name of one


@lru_cache(maxsize=1)
def trusted() -> tuple[Ed25519PublicKey, ...]:
    return (test_key().public_key(),)


def signature(manifest: bytes, key: Ed25519PrivateKey) -> bytes:
    signed = f"surefoot-bundle-v1 {sha256_bytes(manifest)}"
    return f"{signed} {key.sign(signed.encode()).hex()}\n".encode()


# ---------------------------------------------------------------- bases


def _mlp(rng: np.random.Generator, inputs: list[Bound], outputs: list[Scale], **more: Any) -> bundle.TrainedMlp:
    n, m = len(inputs), len(outputs)
    weights = {"layers.0.weight": rng.normal(size=(3, n)), "layers.0.bias": rng.normal(size=3)}
    weights |= {"layers.1.weight": rng.normal(size=(m, 3)), "layers.1.bias": rng.normal(size=m)}
    return bundle.TrainedMlp({k: v.astype(np.float32) for k, v in weights.items()}, inputs, outputs, **more)


def _networks(rng: np.random.Generator, shapes: dict[str, tuple[int, int]]) -> dict[str, Any]:
    weights = {}
    for prefix, (rows, cols) in shapes.items():
        weights[f"{prefix}.layers.0.weight"] = rng.normal(size=(rows, cols)).astype(np.float32)
        weights[f"{prefix}.layers.0.bias"] = rng.normal(size=rows).astype(np.float32)
    return weights


def specs() -> dict[str, bundle.BundleSpec]:
    """Small networks: `small` has what every bundle has (version 1), `whole` all of version 3, `doubt` intervals (4)."""
    rng = np.random.default_rng(5)
    ipc, cores, ways = Bound("ipc", 0.0, 3.0), Bound("alloc_cores", 0.0, 36.0), Bound("alloc_cache_mb", 0.0, 45.0)
    expected, slow, qos = Bound("expected_cores", 0.0, 36.0), Bound("qos_slowdown", 0.0, 1.0), Bound("qos", 0.0, 1.0)
    area = [Scale(n, 4.0, 8.0) for n in ("oaa_cores", "oaa_ways", "oaa_mbl_mbps", "rcliff_cores", "rcliff_ways")]
    angles = [Scale(f"{a}_{u}", 1.5, 2.0) for a in ("default", "cores_dominated", "cache_dominated") for u in ("cores", "ways")]
    ddpg = {
        "gamma": 0.99, "tau": 0.001, "lr_actor": 5e-4, "lr_critic": 5e-3, "critic_l2": 0.01, "actor_entropy": 0.0, "batch": 256,
        "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_eps": 1e-8,
    }  # fmt: skip
    dqn = {
        "gamma": 0.9,
        "lr": 1e-3,
        "rms_alpha": 0.9,
        "rms_eps": 1e-5,
        "copy_every": 100,
        "batch": 200,
        "replay": 76800,
        "epsilon": 0.05,
    }
    actor, critic = (len(ACTIONS), 3), (1, 3 + len(ACTIONS))
    small = bundle.BundleSpec(
        feature_set="full",
        platform={"name": "corpus-36x20", "cores": 36.0, "core_step": 1.0, "ways": 20, "mb_per_way": 2.25, "mba": False},
        services={
            "moses": {"qos_target_ms": 10.0, "max_load_rps": 3000.0},
            "img-dnn.v2": {"qos_target_ms": 1e-05, "max_load_rps": None},
        },
        a=_mlp(rng, [ipc, cores, ways], area),
        b=_mlp(rng, [ipc, cores, ways, expected], [Scale("qos", 0.7, 1.1)], qos_cap=2.0),
        c=bundle.TrainedDdpg(
            _networks(rng, {"actor": actor, "actor_target": actor, "critic": critic, "critic_target": critic}),
            [ipc, cores, qos],
            ddpg,
            [a for a in ACTIONS if not a.startswith("mba")],
        ),
        metrics={"a_mae_cores": 0.25, "c_share": 1e-08},
        provenance={"git_commit": "0" * 40, "git_dirty": False, "campaigns": ["corpus"], "software": {"numpy": "2"}},
    )
    osml = bundle.TrainedOsml(
        a=_mlp(rng, [ipc, cores, ways], area),
        ap=_mlp(rng, [ipc, cores, ways], area),
        b=_mlp(rng, [ipc, cores, slow], angles),
        bp=_mlp(rng, [ipc, cores, expected], [Scale("qos_slowdown", 0.06, 0.07)]),
        c=bundle.TrainedDqn(_networks(rng, {"policy": (49, 3), "target": (49, 3)}), [ipc, cores, qos], dqn, latency_cap=1000.0),
    )
    whole = copy.deepcopy(small)
    whole.osml, whole.card, whole.serial = osml, "# Corpus\n\nRandom weights – nothing to run.\n", 1_700_000_000
    doubt = copy.deepcopy(small)
    ends = [
        Scale(f"oaa_{of}_{end}", 4.0, offset) for of in ("cores", "ways") for end, offset in (("lower", -2.5), ("upper", 60.0))
    ]
    doubt.a = _mlp(rng, [ipc, cores, ways], [*area, *ends])
    score = {"strangeness.weight": rng.normal(size=(3, 3)), "strangeness.bias": rng.normal(size=3)}
    doubt.a.weights = {**doubt.a.weights, **{n: v.astype(np.float32) for n, v in score.items()}}
    qos_ends = [Scale("qos_lower", 0.7, 0.4), Scale("qos_upper", 0.7, 1.9)]
    doubt.b = _mlp(rng, [ipc, cores, ways, expected], [Scale("qos", 0.7, 1.1), *qos_ends], qos_cap=2.0)
    doubt.serial = 1_700_000_000
    return {"small": small, "whole": whole, "doubt": doubt}


# ---------------------------------------------------------------- variants


@dataclass
class Variant:
    """A mutation of a base and what both readers must say of it."""

    name: str
    base: str
    want: str | dict[str, str]
    files: Files
    sign: str = "test"
    tar: list[tuple[int, int, bytes]] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)

    def forms(self) -> list[str]:
        if self.tar:
            return ["tar"]
        if self.links or self.folders:
            return ["folder"]
        both = MANIFEST in self.files and SIGNATURE in self.files and all(len(n) <= 100 and n.isascii() for n in self.files)
        return ["folder", "tar"] if both else ["folder"]

    def wanted(self, form: str) -> str:
        return self.want if isinstance(self.want, str) else self.want[form]

    def write(self, at: Path, form: str) -> Path:
        """Put it on the disk; returns its path."""
        files = dict(self.files)
        if self.sign == "test" and MANIFEST in files:
            files[SIGNATURE] = signature(files[MANIFEST], test_key())
        if form == "tar":
            data = bundle.to_tar(files)
            for start, end, new in sorted(self.tar, reverse=True):
                data = data[:start] + new + data[end:]
            # No write that waits for the disk: thousands of these are gone at once.
            (at / "b.tar").write_bytes(data)
            return at / "b.tar"
        folder = at / "b"
        folder.mkdir()
        for name in self.folders:
            (folder / name).mkdir(parents=True)
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        for name, target in self.links.items():
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(target)
        return folder


def lab_says(path: Path) -> tuple[str, str]:
    """Kind and message."""
    try:
        bundle.verify(path, trusted=trusted())
    except BundleError as error:
        return error.kind, str(error)
    return "ok", ""


@lru_cache(maxsize=1)
def bases() -> dict[str, Files]:
    return {name: bundle.assemble(spec, test_key()) for name, spec in specs().items()}


def digests(files: Files, manifest: Json) -> None:
    """Sizes and digests made right again after a change: what a careless signer would ship."""
    for name in manifest["files"]:
        if name not in files:
            continue
        manifest["files"][name] = {"bytes": len(files[name]), "sha256": sha256_bytes(files[name])}
        if found := re.fullmatch(r"models/(?:(osml)_)?(\w+)\.safetensors", name):
            models = manifest["models"].get("osml", {}) if found[1] else manifest["models"]
            if isinstance(models.get(found[2]), dict):
                models[found[2]]["sha256"] = manifest["files"][name]["sha256"]


def changed(
    name: str,
    want: str | dict[str, str],
    manifest: Callable[[Json], Any] | None = None,
    *,
    base: str = "whole",
    files: Callable[[Files], Any] | None = None,
    raw: Callable[[bytes], bytes] | None = None,
    profiles: bool = False,
    **more: Any,
) -> Variant:
    """A variant by what happens to the manifest, to other files (digests are made right again) and to the manifest's bytes.

    Args:
        profiles: platform.toml and services/*.toml follow the manifest.
    """
    content = dict(bases()[base])
    said = json.loads(content[MANIFEST])
    if files:
        files(content)
    if manifest:
        manifest(said)
    if profiles:
        made = bundle.profiles(said["platform"], said["services"])
        content |= made
        said["files"] |= {n: {"bytes": 0, "sha256": ""} for n in made}
    if files or profiles:
        digests(content, said)
    if files or manifest or profiles:
        content[MANIFEST] = canonical_json(said)
    if raw:
        content[MANIFEST] = raw(content[MANIFEST])
    return Variant(name, base, want, content, **more)


def at(manifest: Json, path: tuple[Any, ...]) -> Json:
    for key in path:
        manifest = manifest[key]
    return manifest


def put(*path: Any, value: Json) -> Callable[[Json], None]:
    def change(manifest: Json) -> None:
        at(manifest, path[:-1])[path[-1]] = value

    return change


def walk(value: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Json]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key), item
            yield from walk(item, (*path, key))
    elif isinstance(value, list):
        for n, item in enumerate(value):
            yield (*path, n), item
            yield from walk(item, (*path, n))


def dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


# Keys that may be left out, and what is amiss then where something is.
OPTIONAL = {"models.osml": "files", "models.osml.c.hyperparameters.replay": "ok"} | {
    f"provenance.{n}": "ok" for n in ("git_commit", "git_dirty", "campaigns", "software")
}
# Entries of lists and maps: leaving one out is no missing field.
ENTRY = {
    "files": "files", "services": "files", "metrics": "ok", "provenance.software": "ok", "provenance.campaigns": "ok",
}  # fmt: skip
MAPS = {"files", "services", "metrics", "provenance.software"}


def missing_fields() -> Iterator[Variant]:
    """Each key of each object left out, the last of each list left out."""
    said = json.loads(bases()["whole"][MANIFEST])
    for path, _ in walk(said):
        name, above = dotted(path), dotted(path[:-1])
        want: str | dict[str, str]
        if isinstance(path[-1], int):
            continue
        if name in ("format", "format_version"):
            want = "version"
        elif above in MAPS:
            want = ENTRY[above]
        else:
            want = OPTIONAL.get(name, "field")
        if name == "files.card.md":
            want = {"folder": "extra", "tar": "tar"}
        yield changed(f"without {name}", want, lambda m, p=path: at(m, p[:-1]).pop(p[-1]))


def unknown_fields() -> Iterator[Variant]:
    """A key that nobody knows, in every object."""
    said = json.loads(bases()["whole"][MANIFEST])
    for path, value in [((), said), *walk(said)]:
        if isinstance(value, dict) and dotted(path) not in MAPS:
            yield changed(f"unknown in {dotted(path) or 'manifest'}", "field", put(*path, "surprise", value=1))


# null where a field may be null.
NULLABLE = {f"models.{m}.qos_cap" for m in ("a", "b", "osml.a", "osml.ap", "osml.b", "osml.bp")} | {
    "services.moses.max_load_rps", "services.img-dnn.v2.max_load_rps", "provenance.git_commit", "provenance.git_dirty",
}  # fmt: skip
NULL_DIFFERS = {"services.moses.max_load_rps": "profile", "services.img-dnn.v2.max_load_rps": "ok"}


def wrong_types(rng: random.Random) -> Iterator[Variant]:
    """Each value replaced by three of other types."""
    said = json.loads(bases()["whole"][MANIFEST])
    others: dict[str, Json] = {"null": None, "true": True, "text": "", "list": [], "object": {}, "integer": 7, "number": 7.5}
    of = {bool: "true", str: "text", list: "list", dict: "object", int: "integer", float: "number", type(None): "null"}
    for path, value in walk(said):
        name = dotted(path)
        same = of[type(value)]
        for kind in rng.sample([k for k in others if k != same], 3):
            want = "version" if name in ("format", "format_version") else "field"
            if kind == "null" and name in NULLABLE:
                want = NULL_DIFFERS.get(name, "ok")
            if kind == "true" and name == "provenance.git_dirty":
                want = "ok"
            if value is None and kind == "number" and name.endswith("max_load_rps"):
                want = "profile"
            if kind == "object" and name in MAPS:
                continue  # it is one
            yield changed(f"{name} is {kind}", want, put(*path, value=others[kind]))


MODELS_WITH_INPUTS = ("a", "b", "c", "osml.a", "osml.ap", "osml.b", "osml.bp", "osml.c")


def ranges() -> Iterator[Variant]:
    """Numbers at and beyond each edge. Profiles follow, so that nothing else is amiss."""
    hyper_c, hyper_q = "models.c.hyperparameters.", "models.osml.c.hyperparameters."
    table: list[tuple[str, list[tuple[Json, str]]]] = [
        ("platform.cores", [(36.5, "ok"), (4096.0, "ok"), (0.0, "field"), (-1.0, "field"), (4096.5, "field"),
                            (1e308, "field"), (35.0, "inputs"), (0.5, "platform")]),
        ("platform.core_step", [(0.1, "ok"), (36.0, "ok"), (1e-300, "ok"), (0.0, "field"), (-0.0, "field"), (-0.1, "field"),
                                (36.5, "platform")]),
        ("platform.ways", [(21, "ok"), (64, "ok"), (65, "field"), (-1, "field"), (2**63, "field"), (2**64 - 1, "field"),
                           (19, "inputs"), (0, "inputs"), (20.0, "field")]),
        ("platform.mb_per_way", [(2.5, "ok"), (1e6, "ok"), (1000000.5, "field"), (-1e-9, "field"), (0.0, "inputs"),
                                 (2.0, "inputs")]),
        ("platform.name", [("x", "ok"), ("a \"quoted\" \\ name", "ok"), ("größe 36×20", "ok"), ("x" * 200, "ok"),
                           ("x" * 201, "field"), ("", "field"),
                           ("a\nb", "field"), ("a\x7fb", "field"), ("a\u0085b", "field"), ("a\u202eb", "field"),
                           ("a\u200bb", "field"), ("a\u2028b", "field"), ("\U0001f600", "ok")]),
        ("services.moses.qos_target_ms", [(1e9, "ok"), (5e-324, "ok"), (0.0, "field"), (-1.0, "field"),
                                          (1000000000.5, "field"), (1e300, "field")]),
        ("services.moses.max_load_rps", [(1e12, "ok"), (None, "ok"), (0.0, "field"), (-3.0, "field"), (1e13, "field")]),
        ("models.b.qos_cap", [(None, "ok"), (1e6, "ok"), (0.0, "field"), (-1.0, "field"), (1e7, "field")]),
        ("models.a.qos_cap", [(2.0, "field")]),
        ("models.osml.bp.qos_cap", [(2.0, "field")]),
        ("models.osml.c.latency_cap", [(1e9, "ok"), (0.0, "field"), (-1.0, "field"), (1e10, "field")]),
        ("models.osml.c.reach", [(2, "field"), (4, "field"), (-3, "field"), (3.0, "field")]),
        ("serial", [(1, "ok"), (253402300799, "ok"), (0, "field"), (-1, "field"), (253402300800, "field"), (1.5, "field"),
                    (1700000000.0, "field")]),
        ("format_version", [(0, "version"), (4, "ok"), (5, "version"), (-1, "version"), (3.0, "version"), (True, "version"),
                            ("3", "version"), (1, "field"), (2, "field")]),
        ("format", [("surefoot-bundl", "version"), ("", "version")]),
        ("feature_set", [("no-pmu", "inputs"), ("FULL", "field"), ("full ", "field")]),
        ("files.card.md.bytes", [(-1, "field"), (64 << 20, "changed"), ((64 << 20) + 1, "field"), (2**63, "field")]),
        ("files.card.md.sha256", [("0" * 64, "changed"), ("0" * 63, "field"), ("A" * 64, "field"), ("g" * 64, "field")]),
        ("signer", [("0" * 64, "signer"), ("f" * 65, "field"), ("", "field")]),
        ("metrics.a_mae_cores", [(-1e308, "ok"), (0.0, "ok"), (1, "field")]),
        ("provenance.git_commit", [("x\x1b[31m", "field"), ("x" * 201, "field"), (None, "ok")]),
        ("provenance.git_dirty", [(None, "ok"), (0, "field")]),
    ]  # fmt: skip
    share = [(0.0, "ok"), (1.0, "ok"), (-0.1, "field"), (1.0000001, "field"), (1, "field"), (None, "field")]
    rate = [(0.0, "ok"), (1000.0, "ok"), (-1e-9, "field"), (1000.5, "field"), (1e300, "field")]
    beta = [(0.0, "ok"), (0.9999999999999999, "ok"), (1.0, "field"), (-0.1, "field")]
    tiny = [(5e-324, "ok"), (1.0, "ok"), (0.0, "field"), (-1e-8, "field"), (1.5, "field")]
    count = [
        (1.0, "ok"),
        (16384.0, "ok"),
        (0.0, "field"),
        (256.5, "field"),
        (16385.0, "field"),
        (-256.0, "field"),
        (256, "field"),
    ]
    table += [(hyper_c + n, rate) for n in ("lr_actor", "lr_critic", "critic_l2", "actor_entropy")]
    table += [(hyper_c + n, share) for n in ("gamma", "tau")] + [(hyper_q + n, share) for n in ("gamma", "rms_alpha", "epsilon")]
    table += [(hyper_c + n, beta) for n in ("adam_beta1", "adam_beta2")] + [
        (hyper_c + "adam_eps", tiny),
        (hyper_q + "rms_eps", tiny),
    ]
    table += [(hyper_c + "batch", count), (hyper_q + "batch", count), (hyper_q + "lr", rate)]
    table += [(hyper_q + "copy_every", [(1.0, "ok"), (1e9, "ok"), (0.0, "field"), (0.5, "field"), (2e9, "field")])]
    pool = [(2e6, "ok"), (2000001.0, "field"), (300.5, "field"), (0.0, "field")]
    table += [(hyper_c + "replay", [*pool, (255.0, "hyperparameters"), (256.0, "ok")])]
    table += [(hyper_q + "replay", [*pool, (199.0, "hyperparameters"), (200.0, "ok")])]
    for name, cases in table:
        path = split(name)
        for value, want in cases:
            profiles = want in ("ok", "profile") and name.startswith(("platform", "services"))
            if want == "changed":
                yield changed(f"{name} = {value!r}", want, put(*path, value=value))
            else:
                yield changed(f"{name} = {short(value)}", want, put(*path, value=value), profiles=profiles)


def short(value: Json) -> str:
    text = repr(value)
    return text if len(text) < 40 else f"{text[:36]}... ({len(text)})"


def split(name: str) -> tuple[Any, ...]:
    """A dotted path; a few keys have dots in them."""
    for key in ("img-dnn.v2", "card.md"):
        if key in name:
            before, after = (part.strip(".").split(".") for part in name.split(key))
            return (*filter(None, before), key, *filter(None, after))
    return tuple(name.split("."))


def model(manifest: Json, name: str) -> Json:
    return at(manifest, ("models", *name.split(".")))


def lists() -> Iterator[Variant]:
    """Inputs, outputs, actions and layers: unknown, twice, empty, swapped, out of the machine."""
    for name in MODELS_WITH_INPUTS:

        def inputs(change: Callable[[list[Json]], Any], name: str = name) -> Callable[[Json], None]:
            return lambda m: change(model(m, name)["inputs"])

        n = len(model(json.loads(bases()["whole"][MANIFEST]), name)["inputs"])
        cases: list[tuple[str, str, Callable[[list[Json]], Any]]] = [
            ("lo above hi", "inputs", lambda i: i[0].update(min=3.5)),
            ("zero width", "inputs", lambda i: i[0].update(min=3.0)),
            ("below the machine", "inputs", lambda i: i[1].update(min=-0.5)),
            ("beyond the machine", "inputs", lambda i: i[1].update(max=36.5)),
            ("beyond by rounding", "ok", lambda i: i[1].update(max=36.00001)),
            ("beyond by more than rounding", "inputs", lambda i: i[1].update(max=36.0001)),
            ("too large", "field", lambda i: i[0].update(max=2e30)),
            ("unknown name", "inputs", lambda i: i[0].update(name="ipcs")),
            ("name twice", "inputs", lambda i: i[1].update(name="ipc")),
            ("empty list", "field", lambda i: i.clear()),
            ("one less", "layers", lambda i: i.pop()),
            ("one more", "layers", lambda i: i.append({"name": "res_mem_mb", "min": 0.0, "max": 1.0})),
            ("another feature", "ok", lambda i: i[0].update(name="llc_misses_per_s")),
            ("65 of them", "field", lambda i: i.extend([i[0]] * (65 - len(i)))),
        ]
        for what, want, change in cases:
            yield changed(f"models.{name}.inputs: {what}", want, inputs(change))
        own = {"b": "expected_cores", "c": "qos", "osml.b": "qos_slowdown", "osml.bp": "expected_cores", "osml.c": "qos"}
        for foreign in sorted({"qos", "qos_slowdown", "expected_cores"} - {own.get(name)}):
            yield changed(
                f"models.{name}.inputs: {foreign} of another", "inputs", inputs(lambda i, f=foreign: i[0].update(name=f, max=1.0))
            )
        layer = [
            ("no layers", "field", []), ("zero rows", "field", [[0, n]]), ("three numbers", "field", [[7, n, 1]]),
            ("too wide", "field", [[1025, n], [7, 1025]]),
            ("do not join", "layers", [[7, n], [7, 8]]), ("ends elsewhere", "layers", [[11, n]]),
            ("begins elsewhere", "layers", [[7, n + 1]]),
            ("17 of them", "field", [[n, n]] * 17), ("negative", "field", [[-7, n]]),
            ("numbers with a point", "field", [[7.0, n]]),
        ]  # fmt: skip
        for what, want, layers in layer:
            yield changed(f"models.{name}.layers: {what}", want, lambda m, name=name, v=layers: model(m, name).update(layers=v))
    for what, want, layers in (
        ("without the actions", "layers", [[1, 3]]),
        ("two values", "layers", [[2, 10]]),
        ("none", "field", []),
    ):
        yield changed(f"models.c.critic_layers: {what}", want, put("models", "c", "critic_layers", value=layers))
    for name, n in (("a", 5), ("b", 1), ("osml.a", 5), ("osml.ap", 5), ("osml.b", 6), ("osml.bp", 1)):

        def outputs(change: Callable[[list[Json]], Any], name: str = name) -> Callable[[Json], None]:
            return lambda m: change(model(m, name)["outputs"])

        bounded = name not in ("b", "osml.bp")
        cases = [
            ("scale 0", "field", lambda o: o[0].update(scale=0.0)),
            ("scale below 0", "field", lambda o: o[0].update(scale=-1.0)),
            ("scale too large", "field", lambda o: o[0].update(scale=1e31)),
            ("unknown name", "outputs", lambda o: o[0].update(name="cores")),
            ("empty list", "field", lambda o: o.clear()),
            ("mean far away", "outputs" if bounded else "ok", lambda o: o[0].update(offset=99.0)),
            ("mean below 0", "outputs" if bounded else "ok", lambda o: o[0].update(offset=-0.001)),
            ("offset too large", "field", lambda o: o[0].update(offset=1e31)),
            ("the last left out", "field" if n == 1 else "outputs", lambda o: o.pop()),
        ]
        if n > 1:
            cases.append(("name twice", "outputs", lambda o: o[1].update(name=o[0]["name"])))
            cases.append(("two swapped", "ok", lambda o: o.reverse()))
        for what, want, change in cases:
            yield changed(f"models.{name}.outputs: {what}", want, outputs(change))
    yield changed("models.a.outputs: without bandwidth", "layers", lambda m: m["models"]["a"]["outputs"].pop(2))
    actions: list[tuple[str, str, Json]] = [
        ("one", "ok", ["idle"]), ("none", "field", []), ("unknown", "actions", ["idle", "reboot"]),
        ("twice", "actions", ["idle", "idle"]),
        ("without MBA", "actions", ["mba_up", "idle"]), ("another order", "ok", ["idle", "cores_up"]),
        ("65", "field", ["idle"] * 65),
    ]  # fmt: skip
    for what, want, value in actions:
        yield changed(f"available_actions: {what}", want, put("models", "c", "available_actions", value=value))
    yield changed("actions: another order", "actions", lambda m: m["models"]["c"]["actions"].reverse())
    yield changed("actions: six", "actions", lambda m: m["models"]["c"]["actions"].pop())
    yield changed("ways are gone, their actions not", "inputs", put("platform", "ways", value=0))
    yield changed(
        "mba with its actions",
        "ok",
        lambda m: (m["platform"].update(mba=True), m["models"]["c"].update(available_actions=list(ACTIONS))),
        profiles=True,
    )


def forms_of_json() -> Iterator[Variant]:
    """One value, another text: whatever has a second way to be written is refused."""
    text = bases()["small"][MANIFEST]
    sub: list[tuple[str, bytes, bytes]] = [
        ("key twice", b'"mba": false,', b'"mba": false,\n    "mba": false,'),
        ("key twice, another value", b'"mba": false,', b'"mba": true,\n    "mba": false,'),
        ("model twice", b'"format": "surefoot-bundle",', b'"format": "surefoot-bundle",\n  "format": "surefoot-bundle",'),
        ("number with an exponent", b'"cores": 36.0', b'"cores": 3.6e1'),
        ("number with more digits", b'"cores": 36.0', b'"cores": 36.00'),
        ("number beyond f64", b'"cores": 36.0', b'"cores": 1e999'),
        ("NaN", b'"cores": 36.0', b'"cores": NaN'),
        ("Infinity", b'"cores": 36.0', b'"cores": Infinity'),
        ("-Infinity", b'"cores": 36.0', b'"cores": -Infinity'),
        ("hexadecimal", b'"cores": 36.0', b'"cores": 0x24'),
        ("leading zero", b'"ways": 20', b'"ways": 020'),
        ("leading plus", b'"ways": 20', b'"ways": +20'),
        ("negative zero", b'"ways": 20', b'"ways": -0'),
        ("2^64", b'"ways": 20', b'"ways": 18446744073709551616'),
        ("-2^63 - 1", b'"ways": 20', b'"ways": -9223372036854775809'),
        ("400 digits", b'"ways": 20', b'"ways": 1' + b"0" * 400),
        ("5000 digits", b'"ways": 20', b'"ways": 1' + b"0" * 5000),
        ("escape of a letter", b'"corpus-36x20"', b'"corpus\\u002d36x20"'),
        ("escaped slash", b'"models/a.safetensors": {', b'"models\\/a.safetensors": {'),
        ("raw UTF-8", b'"corpus-36x20"', '"größe"'.encode()),
        ("upper-case escape", b'"corpus-36x20"', b'"gr\\u00F6\\u00DFe"'),
        ("half a surrogate pair", b'"corpus-36x20"', b'"\\ud800"'),
        ("surrogates the wrong way round", b'"corpus-36x20"', b'"\\udc00\\ud800"'),
        ("raw control character", b'"corpus-36x20"', b'"a\x01b"'),
        ("raw newline", b'"corpus-36x20"', b'"a\nb"'),
        ("invalid UTF-8", b'"corpus-36x20"', b'"a\xff"'),
        ("overlong UTF-8", b'"corpus-36x20"', b'"\xc0\xaf"'),
        ("a comma too many", b'"mba": false,', b'"mba": false,,'),
        ("single quotes", b'"mba"', b"'mba'"),
        ("a comment", b'"mba": false,', b'"mba": false, // no'),
        ("a NUL", b'"mba": false,', b'"mba": false,\0'),
        ("deeply nested", b'"mba": false,', b'"mba": ' + b"[" * 40 + b"]" * 40 + b","),
        ("very deeply nested", b'"mba": false,', b'"mba": ' + b"[" * 3000 + b"]" * 3000 + b","),
    ]
    for name, old, new in sub:
        assert text.count(old) >= 1, name
        yield changed(f"json: {name}", "json", base="small", raw=lambda b, o=old, n=new: b.replace(o, n, 1))
    whole: list[tuple[str, Callable[[bytes], bytes]]] = [
        ("byte order mark", lambda b: b"\xef\xbb\xbf" + b),
        ("UTF-16", lambda b: b.decode().encode("utf-16")),
        ("CR LF", lambda b: b.replace(b"\n", b"\r\n")),
        ("no final newline", lambda b: b[:-1]),
        ("two final newlines", lambda b: b + b"\n"),
        ("a space at the end", lambda b: b + b" "),
        ("compact", lambda b: json.dumps(json.loads(b), separators=(",", ":")).encode()),
        ("four spaces", lambda b: (json.dumps(json.loads(b), sort_keys=True, indent=4) + "\n").encode()),
        ("not sorted", lambda b: (json.dumps(dict(reversed(json.loads(b).items())), indent=2) + "\n").encode()),
        ("tabs", lambda b: b.replace(b"  ", b"\t")),
        ("empty", lambda b: b""),
        ("cut off", lambda b: b[: len(b) // 2]),
        ("twice", lambda b: b + b),
        ("brackets without end", lambda b: b"[" * 100_000),
    ]
    for name, change in whole:
        yield changed(f"json: {name}", "json", base="small", raw=change)
    for name, data, want in (
        ("a list", b"[]\n", "version"),
        ("null", b"null\n", "version"),
        ("a number", b"1.0\n", "version"),
        ("an empty object", b"{}\n", "version"),
    ):
        yield changed(f"json: {name}", want, base="small", raw=lambda _, d=data: d)
    yield changed("json: brackets in a name", "ok", put("platform", "name", value="[[[[[[[[[[[[[[[[[[[[{{{{"), profiles=True)
    yield changed("json: larger than 4 MiB", "size", base="small", raw=lambda b: b + b" " * (4 << 20))


def names_and_files() -> Iterator[Variant]:
    """What may be listed, what must be, and what lies there besides."""
    entry = {"bytes": 0, "sha256": "0" * 64}
    evil = [
        "../platform.toml", "/etc/passwd", "models/../platform.toml", "models/d.safetensors", "services/.toml",
        "services/..toml", "services/a..b.toml",
        "services/A.toml", "services/a b.toml", "services/a/b.toml", "services/-a.toml", "services/a.toml\n",
        "services/é.toml", "services/a.", "", ".",
        "manifest.json", "manifest.sig", "platform.toml ", "PLATFORM.TOML", "card.MD", "models\\a.safetensors",
        "services/a\u0000.toml", "run.sh",
        f"services/{'a' * 81}.toml", "models/osml_d.safetensors", "services/a..toml", "services/a.-b.toml",
    ]  # fmt: skip
    for name in evil:
        yield changed(f"files: {name[:40]!r}", "files", put("files", name, value=entry))
    for name in ("services/other.toml", "services/a.b-c_d.toml", f"services/{'a' * 80}.toml"):
        yield changed(f"files: {name[:40]!r} without need", "files", put("files", name, value=entry))
    service = {"qos_target_ms": 1.0, "max_load_rps": None}
    for name in ("ghost", "a" * 80):
        yield changed(f"services: {name[:9]} without file", "files", put("services", name, value=service))
    for name in ("Ghost", "a/b", "", "..", "a" * 81, "é"):
        yield changed(
            f"services: {name[:9]!r} with a file",
            "files",
            lambda m, n=name: (m["services"].update({n: service}), m["files"].update({f"services/{n}.toml": entry})),
        )
    long = "a" * 80
    yield changed("services: of the longest name", "ok", put("services", long, value=service), profiles=True)
    yield changed("services: none", "ok", lambda m: (m["services"].clear(),
    [m["files"].pop(f"services/{n}.toml") for n in ("moses", "img-dnn.v2")]),
                  files=lambda f: [f.pop(f"services/{n}.toml") for n in ("moses", "img-dnn.v2")])  # fmt: skip
    yield changed("files: more than a bundle holds", "files", lambda m: [e.update(bytes=64 << 20) for e in m["files"].values()])
    yield changed("files: none", "files", put("files", value={}))
    for name, other in (("a", "b"), ("osml.a", "a"), ("c", "osml_c")):
        yield changed(
            f"models.{name}.file: another's",
            "files",
            lambda m, n=name, o=other: model(m, n).update(file=f"models/{o}.safetensors"),
        )
        yield changed(f"models.{name}.sha256: another's", "files", lambda m, n=name: model(m, n).update(sha256="1" * 64))
    yield changed("card in version 1", "files", lambda m: m["files"].update({CARD: entry}), base="small")
    yield changed(
        "osml in version 1",
        "field",
        lambda m: m["models"].update(osml=json.loads(bases()["whole"][MANIFEST])["models"]["osml"]),
        base="small",
    )
    yield changed("serial in version 1", "field", put("serial", value=1700000000), base="small")
    yield changed("version 2 with a serial", "field", put("format_version", value=2))
    yield changed("version 2 without", "ok", lambda m: (m.update(format_version=2), m.pop("serial")))
    yield changed("version 3 without osml and card", "ok", lambda m: m.update(format_version=3, serial=5), base="small")
    yield changed("version 2 of a small one", "ok", lambda m: m.update(format_version=2), base="small")
    for name in sorted(bases()["whole"]):
        if name in (MANIFEST, SIGNATURE):
            continue
        content = dict(bases()["whole"])
        data = content.pop(name)
        yield Variant(f"{name} is missing", "whole", {"folder": "missing", "tar": "tar"}, content)
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 1
        yield Variant(f"{name}: a bit is other", "whole", "changed", {**content, name: bytes(flipped)})
        yield Variant(f"{name}: a byte more", "whole", "changed", {**content, name: data + b"\n"})
        yield Variant(f"{name}: emptied", "whole", "changed", {**content, name: b""})
    small = bases()["small"]
    for name in ("models/osml_a.safetensors", "services/evil.toml", CARD, "run.sh", "models/x", "platform.toml~", ".hidden"):
        yield Variant(f"extra {name}", "small", {"folder": "extra", "tar": "tar"}, {**small, name: b"x"})
    without = {n: d for n, d in small.items() if n != MANIFEST}
    yield Variant("without a manifest", "small", "missing", without, sign="keep")
    without = {n: d for n, d in small.items() if n != SIGNATURE}
    yield Variant("without a signature", "small", "missing", without, sign="keep")
    for name in ("platform.toml", "models/a.safetensors", MANIFEST):
        yield Variant(f"{name} is a link", "small", "folder", dict(small), links={name: "/dev/null"})
    yield Variant("an extra link", "small", "folder", dict(small), links={"x": "platform.toml"})
    for name in ("bin", "models/sub", "services/.git", "models/a.safetensors.d"):
        yield Variant(f"folder {name}", "small", "folder", dict(small), folders=[name])


def profiles_of_text() -> Iterator[Variant]:
    """platform.toml and services/*.toml say what the manifest says, in one form: other TOML of that meaning is refused, too."""
    sub: list[tuple[str, Callable[[bytes], bytes]]] = [
        ("another value", lambda b: b.replace(b"36.0", b"40.0").replace(b"10.0", b"20.0")),
        ("a whole number", lambda b: b.replace(b"36.0", b"36").replace(b"10.0", b"10")),
        ("NaN", lambda b: b.replace(b"36.0", b"nan").replace(b"10.0", b"nan")),
        ("inf", lambda b: b.replace(b"36.0", b"inf").replace(b"10.0", b"inf")),
        ("underscores", lambda b: b.replace(b"36.0", b"3_6.0").replace(b"10.0", b"1_0.0")),
        ("text for a number", lambda b: b.replace(b"36.0", b'"36.0"').replace(b"10.0", b'"10.0"')),
        ("an unknown key", lambda b: b + b"surprise = 1\n"),
        ("a table", lambda b: b + b"[mem]\nbw_gbs = 100.0\n"),
        ("a key twice", lambda b: b + b.split(b"\n")[0] + b"\n"),
        ("a key less", lambda b: b.split(b"\n", 1)[1]),
        ("another order", lambda b: b"\n".join(reversed(b.strip().split(b"\n"))) + b"\n"),
        ("a comment", lambda b: b"# mine\n" + b),
        ("CR LF", lambda b: b.replace(b"\n", b"\r\n")),
        ("no final newline", lambda b: b[:-1]),
        ("an empty line more", lambda b: b + b"\n"),
        ("other spaces", lambda b: b.replace(b" = ", b"=")),
        ("single quotes", lambda b: b.replace(b'"', b"'")),
        ("byte order mark", lambda b: b"\xef\xbb\xbf" + b),
        ("not UTF-8", lambda b: b + b"\xff\n"),
        ("a NUL", lambda b: b + b"\0"),
        ("empty", lambda b: b""),
        ("no TOML", lambda b: b"ways = "),
        ("another kind", lambda b: b.replace(b'kind = "', b'kind = "x')),
        ("another name", lambda b: b.replace(b"corpus", b"elsewhere").replace(b'"moses"', b'"xapian"')),
    ]
    for name in ("platform.toml", "services/moses.toml"):
        for what, change in sub:
            yield changed(f"{name}: {what}", "profile", files=lambda f, n=name, c=change: f.update({n: c(f[n])}))
    yield changed(
        "a service's profile for another",
        "profile",
        files=lambda f: f.update({"services/moses.toml": f["services/img-dnn.v2.toml"]}),
    )
    yield changed(
        "max load in the profile alone",
        "profile",
        files=lambda f: f.update(
            {
                "services/img-dnn.v2.toml": f["services/img-dnn.v2.toml"].replace(
                    b'kind = "lc"\n', b'kind = "lc"\nmax_load_rps = 1.0\n'
                )
            }
        ),
    )
    for what, want, text in (
        ("of the largest size", "ok", b"x" * (256 << 10)), ("a byte larger", "card", b"x" * ((256 << 10) + 1)),
        ("empty", "ok", b""), ("not UTF-8", "card", b"caf\xe9"),
        ("colours", "card", b"\x1b[31m"), ("next line", "card", "\u0085".encode()), ("a NUL", "card", b"a\0b"),
        ("carriage return", "card", b"a\r\n"), ("DEL", "card", b"a\x7f"), ("tab and newline", "ok", b"a\tb\n"),
        ("a surrogate in UTF-8", "card", b"\xed\xa0\x80"), ("byte order mark", "ok", b"\xef\xbb\xbfx"),
    ):  # fmt: skip
        yield changed(f"card: {what}", want, files=lambda f, t=text: f.update({CARD: t}))


def tensors(head: Json, data: bytes, *, announce: int | None = None, text: bytes | None = None) -> bytes:
    """Safetensors by hand."""
    header = json.dumps(head).encode() if text is None else text
    header += b" " * (-len(header) % 8)
    return (len(header) if announce is None else announce).to_bytes(8, "little") + header + data


def weights() -> Iterator[Variant]:
    """Tensors: missing, in excess, of other shapes and types, not finite, too large; and heads that lie."""
    file = "models/b.safetensors"  # 4 inputs, 3 hidden, 1 output

    def head(**change: Json) -> tuple[Json, bytes]:
        shapes: dict[str, Any] = {
            "layers.0.bias": [3],
            "layers.0.weight": [3, 4],
            "layers.1.bias": [1],
            "layers.1.weight": [1, 3],
        }
        out: dict[str, Any] = {}
        data = b""
        for name, shape in shapes.items():
            size = 4 * int(np.prod(shape))
            out[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + size]}
            data += np.full(size // 4, 0.25, np.float32).tobytes()
        return out | change, data

    good, data = head()

    def value(v: float, n: int = 0) -> bytes:
        return data[: 4 * n] + np.float32(v).tobytes() + data[4 * n + 4 :]

    def but(name: str, **change: Json) -> Json:
        return good | {name: good[name] | change}

    f64 = {n: {**e, "dtype": "F64", "data_offsets": [2 * o for o in e["data_offsets"]]} for n, e in good.items()}
    f16 = {n: {**e, "dtype": "F16", "data_offsets": [o // 2 for o in e["data_offsets"]]} for n, e in good.items()}
    more = {"extra": {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}}
    none = {"extra": {"dtype": "F32", "shape": [0], "data_offsets": [len(data), len(data)]}}
    cases: list[tuple[str, str, bytes]] = [
        ("as they should be", "ok", tensors(good, data)),
        ("with metadata", "ok", tensors({"__metadata__": {"a": "b"}} | good, data)),
        ("metadata that are no text", "weights", tensors({"__metadata__": {"a": 1}} | good, data)),
        ("NaN", "weights", tensors(good, value(float("nan")))),
        ("inf", "weights", tensors(good, value(float("inf"), 19))),
        ("-inf", "weights", tensors(good, value(float("-inf"), 5))),
        ("large and harmless", "ok", tensors(good, value(1e20, 5))),
        ("large and harmful", "weights", tensors(good, np.full(len(data) // 4, 1e20, np.float32).tobytes())),
        ("the largest", "weights", tensors(good, value(3.4e38, 5))),
        ("denormal", "ok", tensors(good, value(1e-40, 5))),
        ("negative zero", "ok", tensors(good, value(-0.0, 5))),
        ("F64", "weights", tensors(f64, data * 2)),
        ("F16", "weights", tensors(f16, data[: len(data) // 2])),
        ("I32", "weights", tensors({n: {**e, "dtype": "I32"} for n, e in good.items()}, data)),
        ("a type that is none", "weights", tensors({n: {**e, "dtype": "F33"} for n, e in good.items()}, data)),
        ("a tensor more", "weights", tensors(good | more, data + bytes(4))),
        ("an empty tensor more", "weights", tensors(good | none, data)),
        ("a tensor less", "weights", tensors({n: e for n, e in good.items() if n != "layers.1.weight"}, data[:-12])),
        ("none", "weights", tensors({}, b"")),
        ("another shape of as many", "weights", tensors(but("layers.0.weight", shape=[4, 3]), data)),
        ("a shape of one dimension", "weights", tensors(but("layers.0.weight", shape=[12]), data)),
        ("a shape of three", "weights", tensors(but("layers.0.weight", shape=[3, 4, 1]), data)),
        ("a shape beyond 64 bits", "weights", tensors(but("layers.0.weight", shape=[2**63, 4]), data)),
        ("a negative shape", "weights", tensors(but("layers.0.weight", shape=[-3, -4]), data)),
        ("data that overlap", "weights", tensors(but("layers.1.bias", data_offsets=[56, 60]), data)),
        ("offsets beyond the file", "weights", tensors(but("layers.1.weight", data_offsets=[64, 76 + 4096]), data)),
        ("offsets backwards", "weights", tensors(but("layers.1.weight", data_offsets=[76, 64]), data)),
        ("a byte behind", "weights", tensors(good, data + b"\0")),
        ("a byte less", "weights", tensors(good, data[:-1])),
        ("a head longer than the file", "weights", tensors(good, data, announce=1 << 40)),
        ("a head of 2^63 bytes", "weights", tensors(good, data, announce=2**63)),
        ("a head of no bytes", "weights", tensors(good, data, announce=0)),
        ("a head that is no JSON", "weights", tensors(None, data, text=b"{")),
        ("a head that is a list", "weights", tensors([], data)),
        ("an unknown field of a tensor", "ok", tensors(but("layers.1.bias", note=1), data)),
        ("no text in UTF-8", "weights", tensors(None, data, text=b'{"\xff": {}}')),
        ("nothing", "weights", b""),
        ("seven bytes", "weights", b"\0" * 7),
        ("pickled", "weights", b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00}\x94."),
    ]
    for name, want, content in cases:
        yield changed(f"weights: {name}", want, base="small", files=lambda f, c=content: f.update({file: c}))
    for target in ("models/c.safetensors", "models/osml_c.safetensors", "models/osml_bp.safetensors"):
        yield changed(f"weights: those of another model as {target}", "weights", files=lambda f, t=target: f.update({t: f[file]}))


def signatures() -> Iterator[Variant]:
    """One line in one form by a trusted key, which the manifest names."""
    small = bases()["small"]
    line = small[SIGNATURE].decode()
    tag, digest, made = line.split()
    order = 2**252 + 27742317777372353535851937790883648493
    s = int.from_bytes(bytes.fromhex(made[64:]), "little")
    later = (s + order).to_bytes(32, "little").hex()
    forms = {
        "nothing": ("", "signature"), "no newline": (line[:-1], "signature"), "CR LF": (line[:-1] + "\r\n", "signature"),
        "two lines": (line + line, "signature"),
        "an empty line": (line + "\n", "signature"), "a space before": (" " + line, "signature"),
        "two spaces": (line.replace(" ", "  ", 1), "signature"),
        "a tab": (line.replace(" ", "\t", 1), "signature"), "upper case": (f"{tag} {digest} {made.upper()}\n", "signature"),
        "another tag": (line.replace("-v1", "-v2"), "signature"),
        "no tag": (f"{digest} {made}\n", "signature"), "too short": (f"{tag} {digest} {made[:-2]}\n", "signature"),
        "too long": (f"{tag} {digest} {made}00\n", "signature"),
        "another digest": (f"{tag} {'0' * 64} {made}\n", "signature"), "zeros": (f"{tag} {digest} {'0' * 128}\n", "signature"),
        "S beyond the group": (f"{tag} {digest} {made[:64]}{later}\n", "signature"),
        "R and S swapped": (f"{tag} {digest} {made[64:]}{made[:64]}\n", "signature"),
        "of another text": (f"{tag} {digest} {test_key().sign(digest.encode()).hex()}\n", "signature"),
        "R of small order": (small_order_signature(tag, digest), "signature"),
        "of another manifest": (signature(b"{}\n", test_key()).decode(), "changed"), "not UTF-8": ("\udcff" + line, "signature"),
    }  # fmt: skip
    for name, (text, want) in forms.items():
        content = {**small, SIGNATURE: text.encode("utf-8", "surrogateescape")}
        yield Variant(f"signature: {name}", "small", want, content, sign="keep")
    stranger = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    said = json.loads(small[MANIFEST])
    yield Variant(
        "signature: by a stranger who names the test key",
        "small",
        "signature",
        {**small, SIGNATURE: signature(small[MANIFEST], stranger)},
        sign="keep",
    )
    said["signer"] = bundle.fingerprint(stranger.public_key())
    own = canonical_json(said)
    yield Variant(
        "signature: by a stranger", "small", "signer", {**small, MANIFEST: own, SIGNATURE: signature(own, stranger)}, sign="keep"
    )
    yield Variant("signature: by the test key for a stranger", "small", "signer", {**small, MANIFEST: own})
    yield Variant(
        "signature: the manifest was changed",
        "small",
        "changed",
        {**small, MANIFEST: small[MANIFEST].replace(b"36.0", b"37.0", 1)},
        sign="keep",
    )
    yield Variant(
        "signature: the manifest is another's", "small", "changed", {**small, MANIFEST: bases()["whole"][MANIFEST]}, sign="keep"
    )


def small_order_signature(tag: str, digest: str) -> str:
    """A signature with R of order 1, which only who holds the key can make: libraries differ on it."""
    import hashlib

    from cryptography.hazmat.primitives import serialization as s

    order = 2**252 + 27742317777372353535851937790883648493
    seed = test_key().private_bytes(s.Encoding.Raw, s.PrivateFormat.Raw, s.NoEncryption())
    a = bytearray(hashlib.sha512(seed).digest()[:32])
    a[0] &= 248
    a[31] = (a[31] & 127) | 64
    public = test_key().public_key().public_bytes(s.Encoding.Raw, s.PublicFormat.Raw)
    r = (1).to_bytes(32, "little")
    k = int.from_bytes(hashlib.sha512(r + public + f"{tag} {digest}".encode()).digest(), "little") % order
    made = r + (k * int.from_bytes(a, "little") % order).to_bytes(32, "little")
    return f"{tag} {digest} {made.hex()}\n"


def tars() -> Iterator[Variant]:
    """Each part of a tar's headers, padding and end."""
    small = bases()["small"]
    size = len(bundle.to_tar(small))
    second = 512 + len(small[MANIFEST]) + -len(small[MANIFEST]) % 512
    pad = 512 + len(small[MANIFEST])

    def header(at_: int, new: bytes, fix: bool, offset: int) -> list[tuple[int, int, bytes]]:
        data = bytearray(bundle.to_tar(small)[at_ : at_ + 512])
        data[offset : offset + len(new)] = new
        if fix:
            data[148:156] = b" " * 8
            data[148:156] = b"%06o\0 " % sum(data)
        return [(at_, at_ + 512, bytes(data))]

    parts = {
        "mode": (100, b"0000755\0"), "uid": (108, b"0001750\0"), "gid": (116, b"0001750\0"), "mtime": (136, b"00000000001\0"),
        "a link": (156, b"2"), "a hard link": (156, b"1"),
        "a folder": (156, b"5"), "a device": (156, b"3"), "an old type": (156, b"\0"),
        "a link's target": (157, b"/etc/passwd"), "GNU magic": (257, b"ustar  \0"), "no magic": (257, bytes(8)),
        "owner's name": (265, b"root"), "group's name": (297, b"root"), "device numbers": (329, b"0000001\0"),
        "a prefix": (345, b"a"), "a byte at the end": (511, b"x"),
        "size with a space": (124, b"%011o " % len(small[MANIFEST])),
        "size in base 256": (124, b"\x80" + len(small[MANIFEST]).to_bytes(11, "big")), "size 0": (124, b"00000000000\0"),
        "a huge size": (124, b"77777777777\0"), "another name": (0, b"manifest.jso\0"), "a long name": (0, b"x" * 100),
    }  # fmt: skip
    for name, (offset, new) in parts.items():
        for fix in (True, False):
            said = f"tar: {name}{'' if fix else ', checksum as it was'}"
            yield Variant(said, "small", "tar", dict(small), tar=header(0, new, fix, offset))
    yield Variant("tar: mode of the second", "small", "tar", dict(small), tar=header(second, b"0000600\0", True, 100))
    cuts: list[tuple[str, list[tuple[int, int, bytes]]]] = [
        ("empty", [(0, size, b"")]), ("half a header", [(256, size, b"")]), ("cut in the data", [(700, size, b"")]),
                   ("one end block", [(size - 512, size, b"")]),
        ("no end", [(size - 1024, size, b"")]), ("three end blocks", [(size, size, bytes(512))]),
                    ("a byte behind", [(size, size, b"\0")]), ("end not zero", [(size - 1, size, b"x")]),
        ("padding not zero", [(pad, pad + 1, b"x")]), ("a member twice", [(0, 0, bundle.to_tar(small)[:second])]),
                              ("compressed", [(0, 4, b"\x1f\x8b\x08\x00")]),
        ("zeros alone", [(0, size, bytes(1024))]),
    ]  # fmt: skip
    for name, splices in cuts:
        yield Variant(f"tar: {name}", "small", "tar", dict(small), tar=splices)


def combinations() -> Iterator[Variant]:
    """Good bundles besides the bases: of other hosts, and with what may be left out left out."""

    def no_ways(m: Json) -> None:
        m["platform"].update(ways=0, mb_per_way=0.0)
        for entry in (m["models"]["a"], m["models"]["b"]):
            entry["inputs"][2].update(name="core_freq_mhz", min=800.0, max=4000.0)
        m["models"]["a"]["outputs"] = [o for o in m["models"]["a"]["outputs"] if not o["name"].endswith("ways")]
        m["models"]["a"]["layers"][1][0] = 3
        m["models"]["c"]["available_actions"] = ["cores_up", "cores_down", "idle"]

    def three(f: Files) -> None:
        made = {
            n: w[:3] if n.startswith("layers.1") else w
            for n, w in bundle.export.from_safetensors(f["models/a.safetensors"]).items()
        }
        f["models/a.safetensors"] = bundle.export.to_safetensors(made)

    yield changed("a host without ways", "ok", no_ways, base="small", files=three, profiles=True)
    yield changed(
        "a host without ways, outputs in ways",
        "outputs",
        lambda m: (no_ways(m), m["models"]["a"]["outputs"][1].update(name="oaa_ways")),
        base="small",
        files=three,
        profiles=True,
    )
    yield changed(
        "a host without ways, their actions",
        "actions",
        lambda m: (no_ways(m), m["models"]["c"].update(available_actions=["ways_up"])),
        base="small",
        files=three,
        profiles=True,
    )

    def no_pmu(m: Json) -> None:
        m["feature_set"] = "no-pmu"
        for entry in (m["models"]["a"], m["models"]["b"], m["models"]["c"]):
            entry["inputs"][0].update(name="cpu_usage_cores")
        m["models"]["a"]["outputs"] = [o for o in m["models"]["a"]["outputs"] if not o["name"].endswith("mbps")]
        m["models"]["a"]["layers"][1][0] = 4

    def four(f: Files) -> None:
        made = {
            n: w[:4] if n.startswith("layers.1") else w
            for n, w in bundle.export.from_safetensors(f["models/a.safetensors"]).items()
        }
        f["models/a.safetensors"] = bundle.export.to_safetensors(made)

    yield changed("a host without counters", "ok", no_pmu, base="small", files=four)
    yield changed(
        "a host without counters, bandwidth",
        "outputs",
        lambda m: (no_pmu(m), m["models"]["a"]["outputs"][1].update(name="oaa_mbl_mbps")),
        base="small",
        files=four,
    )
    yield changed("provenance of nothing", "ok", put("provenance", value={}))
    yield changed("no metrics", "ok", put("metrics", value={}))
    yield changed("no OSML", "ok", lambda m: (m["models"].pop("osml"),
    [m["files"].pop(f"models/osml_{k}.safetensors") for k in ("a", "ap", "b", "bp", "c")]),
                  files=lambda f: [f.pop(f"models/osml_{k}.safetensors") for k in ("a", "ap", "b", "bp", "c")])  # fmt: skip
    yield changed("no card", "ok", lambda m: m["files"].pop(CARD), files=lambda f: f.pop(CARD))
    for name, files in bases().items():
        yield Variant(f"{name}: as it is", name, "ok", dict(files), sign="keep")


def doubts() -> Iterator[Variant]:
    """Intervals and the strangeness score: in older versions, by halves, of other models, of other shapes."""
    file = "models/a.safetensors"

    def tensors_of(change: Callable[[dict[str, Any]], Any]) -> Callable[[Files], None]:
        def put_back(files: Files) -> None:
            weights = dict(bundle.export.from_safetensors(files[file]))
            change(weights)
            files[file] = bundle.export.to_safetensors(weights)

        return put_back

    def output(m: Json, letter: str, place: int) -> Json:
        return m["models"][letter]["outputs"][place]

    def older(m: Json) -> None:
        m.update(format_version=3)

    def no_score(m: Json) -> None:
        m["models"]["a"].pop("strangeness")

    def no_tensors(weights: dict[str, Any]) -> None:
        weights.pop("strangeness.weight"), weights.pop("strangeness.bias")

    yield changed("doubt: in version 3", "field", older, base="doubt")
    yield changed("doubt: intervals in version 3", "outputs", lambda m: (older(m), no_score(m)), base="doubt")
    yield changed("doubt: no score", "ok", no_score, base="doubt", files=tensors_of(no_tensors))
    yield changed("doubt: the score's tensors without a word", "weights", no_score, base="doubt")
    yield changed("doubt: a score without tensors", "weights", base="doubt", files=tensors_of(no_tensors))
    for name in ("strangeness.weight", "strangeness.bias"):
        yield changed(f"doubt: no {name}", "weights", base="doubt", files=tensors_of(lambda w, n=name: w.pop(n)))
        yield changed(
            f"doubt: {name} not finite",
            "weights",
            base="doubt",
            files=lambda f, n=name: f.update({file: _with_nan(f[file], n)}),
        )
    large = np.full((3, 3), 9e29, np.float32)
    yield changed(
        "doubt: a score that overflows",
        "weights",
        base="doubt",
        files=tensors_of(lambda w: w.update({"strangeness.weight": large})),
    )
    shapes: list[tuple[Json, str]] = [
        ([[3, 2]], "layers"), ([[2, 3]], "layers"), ([[3, 3], [3, 3]], "layers"), ([], "field"), ([[3]], "field"),
        ([[0, 3]], "field"), (None, "field"), ({}, "field"),
    ]  # fmt: skip
    for said, want in shapes:
        yield changed(f"doubt: score of shape {said}", want, put("models", "a", "strangeness", value=said), base="doubt")
    yield changed("doubt: a score of Model-B", "field", put("models", "b", "strangeness", value=[[4, 4]]), base="doubt")
    for letter, place, other in (
        ("a", 5, "rcliff_cores_lower"),
        ("a", 5, "qos_lower"),
        ("b", 1, "oaa_cores_lower"),
        ("b", 1, "qos"),
    ):
        yield changed(
            f"doubt: {other} of {letter} in place {place}",
            "outputs",
            lambda m, a=letter, b=place, n=other: output(m, a, b).update(name=n),
            base="doubt",
        )
    yield changed("doubt: a mean beyond the machine", "ok", lambda m: output(m, "a", 6).update(offset=900.0), base="doubt")
    for letter, place in (("a", 5), ("a", 8), ("b", 1), ("b", 2)):
        yield changed(
            f"doubt: {letter} without the end in place {place}",
            "outputs",
            lambda m, a=letter, b=place: m["models"][a]["outputs"].pop(b),
            base="doubt",
        )
    yield changed("doubt: an interval of OSML's A", "outputs", lambda m: (
        m.update(format_version=4), m["models"]["osml"]["a"]["outputs"][2].update(name="oaa_cores_lower")))  # fmt: skip


def _with_nan(data: bytes, name: str) -> bytes:
    """The same file with a NaN as the first value of a tensor."""
    head = int.from_bytes(data[:8], "little")
    start = json.loads(data[8 : 8 + head])[name]["data_offsets"][0] + 8 + head
    return data[:start] + np.float32("nan").tobytes() + data[start + 4 :]


# ---------------------------------------------------------------- random ones


ODD: tuple[Json, ...] = (
    None, True, False, 0, 1, -1, 3, 20, 2**31, 2**53, 2**63, 0.0, -0.0, 1.0, 0.5, -1.5, 36.0, 1e-300, 1e30, 1.0000001e30,
    1e308, "", "x", "ipc", "qos", "alloc_cores", "oaa_cores",
    "idle", "full", "no-pmu", "relu", "linear", "0" * 64, "é", "a\u202e", [], {}, [1, 2], [[3, 4]],
    {"name": "ipc", "min": 0.0, "max": 1.0}, ["idle"],
)  # fmt: skip


def random_variant(rng: random.Random, n: int) -> Variant:
    """One to three changes of one bundle: values, keys, bytes of files, bytes of the tar. What is wanted is not known."""
    base = rng.choice(["small", "whole", "whole"])
    content = dict(bases()[base])
    how = rng.choice(["values", "values", "values", "values", "files", "raw", "tar", "text"])
    if how == "tar":
        size = len(bundle.to_tar(content))
        at_ = rng.choice([rng.randrange(1024), rng.randrange(size), size - 1 - rng.randrange(1024)])
        splice = (at_, min(size, at_ + rng.choice([0, 1, 1, 8, 512])), rng.randbytes(rng.choice([0, 1, 1, 8, 512])))
        return Variant(f"random {n}: tar", base, "", content, tar=[splice])
    if how == "raw":
        data = bytearray(content[MANIFEST])
        for _ in range(rng.randint(1, 3)):
            at_ = rng.randrange(len(data))
            data[at_ : at_ + rng.randint(0, 3)] = rng.choice(
                [b"", b"0", b"-", b"9", b".0", b"e", b'"', b"}", b"\\", b"\n", b"null", rng.randbytes(1)]
            )
        return Variant(f"random {n}: raw", base, "", {**content, MANIFEST: bytes(data)})
    said = json.loads(content[MANIFEST])
    if how in ("files", "text"):
        ends = (".safetensors",) if how == "files" else (".toml", ".md")
        name = rng.choice(sorted(f for f in content if f.endswith(ends)))
        data = bytearray(content[name])
        for _ in range(rng.randint(1, 3)):
            at_ = rng.choice([rng.randrange(len(data) + 1), min(len(data), rng.randrange(400))])
            data[at_ : at_ + rng.choice([0, 1, 1, 2, 4])] = rng.choice(
                [b"", b" ", b"0", b"9", b"\xff", b"\x7f\x80\x00\x00", b"]", b",", rng.randbytes(4)]
            )
        content[name] = bytes(data)
        digests(content, said)
        content[MANIFEST] = canonical_json(said)
        return Variant(f"random {n}: {name}", base, "", content)
    for _ in range(rng.randint(1, 3)):
        places = list(walk(said))
        path, value = rng.choice(places)
        above = at(said, path[:-1])
        match rng.choice(["odd", "odd", "other", "drop", "near", "more", "rename"]):
            case "odd":
                above[path[-1]] = copy.deepcopy(rng.choice(ODD))
            case "other":
                above[path[-1]] = copy.deepcopy(rng.choice(places)[1])
            case "drop":
                del above[path[-1]]
            case "near" if isinstance(value, int | float) and not isinstance(value, bool):
                above[path[-1]] = value + rng.choice([1, -1, 0.5]) if rng.random() < 0.5 else value * rng.choice([2, 10, -1, 0.1])
            case "more" if isinstance(value, list) and value:
                value.append(copy.deepcopy(rng.choice(value)))
            case "more" if isinstance(value, dict):
                value[rng.choice(["x", "name", "replay", "serial", "osml", CARD, "moses"])] = copy.deepcopy(rng.choice(ODD))
            case "rename" if isinstance(path[-1], str):
                above[rng.choice([path[-1] + "x", path[-1].upper(), "ipc", "models/b.safetensors"])] = above.pop(path[-1])
            case _:
                above[path[-1]] = copy.deepcopy(rng.choice(ODD))
    try:
        content[MANIFEST] = canonical_json(said)
    except ValueError:
        content[MANIFEST] = b"NaN\n"
    if rng.random() < 0.5:
        # profiles that follow, where that is possible
        try:
            content |= bundle.profiles(said["platform"], said["services"])
            digests(content, said)
            content[MANIFEST] = canonical_json(said)
        except Exception:  # whatever the mutation made of them
            pass
    content = {
        n: d for n, d in content.items() if n and not n.startswith("/") and ".." not in n and "\0" not in n and len(n) < 100
    }
    return Variant(f"random {n}: values", base, "", content)


@cache
def declared() -> list[Variant]:
    """Every variant that is drawn by its family, made once a process: none is changed afterwards."""
    rng = random.Random(29)
    families = [
        combinations(), missing_fields(), unknown_fields(), wrong_types(rng), ranges(), lists(), forms_of_json(),
        names_and_files(), profiles_of_text(), weights(), signatures(),
        tars(), doubts(),
    ]  # fmt: skip
    return [variant for family in families for variant in family]


# ---------------------------------------------------------------- bundles.jsonl


def _content(data: bytes) -> Json:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def _splices(old: bytes, new: bytes) -> list[Json]:
    """How the old becomes the new, by whole lines where both are text."""
    separator = b"\n"
    a, b = old.splitlines(keepends=True), new.splitlines(keepends=True)
    if separator not in old or max(map(len, a), default=0) > 4096:
        a, b = [old], [new]
    starts = [0]
    for line in a:
        starts.append(starts[-1] + len(line))
    found = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag != "equal":
            found.append([starts[i1], starts[i2], _content(b"".join(b[j1:j2]))])
    return found


def _line(variant: Variant) -> Json:
    base = bases()[variant.base]
    entry: dict[str, Any] = {"name": variant.name, "base": variant.base, "want": variant.want}
    splices = {n: _splices(base[n], d) for n, d in sorted(variant.files.items()) if n in base and d != base[n]}
    entry |= {"splices": splices} if splices else {}
    add = {n: _content(d) for n, d in sorted(variant.files.items()) if n not in base}
    entry |= {"add": add} if add else {}
    remove = sorted(set(base) - set(variant.files))
    entry |= {"remove": remove} if remove else {}
    entry |= {"sign": variant.sign} if variant.sign != "test" else {}
    entry |= {"tar": [[s, e, {"hex": new.hex()}] for s, e, new in variant.tar]} if variant.tar else {}
    entry |= {"links": variant.links} if variant.links else {}
    entry |= {"folders": variant.folders} if variant.folders else {}
    return entry


def _bytes(content: Json) -> bytes:
    return content.encode() if isinstance(content, str) else bytes.fromhex(content["hex"])


def read() -> Iterator[Variant]:
    """The variants of bundles.jsonl."""
    stored: dict[str, Files] = {}
    for line in CORPUS.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if "files" in entry:
            stored[entry["base"]] = {n: _bytes(c) for n, c in entry["files"].items()}
            continue
        files = dict(stored[entry["base"]])
        for name, splices in entry.get("splices", {}).items():
            for start, end, content in reversed(splices):
                files[name] = files[name][:start] + _bytes(content) + files[name][end:]
        files |= {n: _bytes(c) for n, c in entry.get("add", {}).items()}
        for name in entry.get("remove", []):
            del files[name]
        tar = [(s, e, _bytes(c)) for s, e, c in entry.get("tar", [])]
        about = (entry["name"], entry["base"], entry["want"], files, entry.get("sign", "test"))
        yield Variant(*about, tar, entry.get("links", {}), entry.get("folders", []))


# Megabytes that say little: written by the tests themselves.
TOO_LARGE_TO_STORE = 20_000
RANDOM = 250


def text() -> str:
    """bundles.jsonl, made anew."""
    lines = [{"base": n, "files": {f: _content(d) for f, d in sorted(files.items())}} for n, files in bases().items()]
    lines += [_line(v) for v in declared()]
    rng = random.Random(7)
    with tempfile.TemporaryDirectory(prefix="surefoot-corpus-") as scratch:
        for n in range(RANDOM):
            variant = random_variant(rng, n)
            said = {}
            for form in variant.forms():
                at_ = Path(scratch) / f"{n}-{form}"
                at_.mkdir()
                said[form] = lab_says(variant.write(at_, form))[0]
            variant.want = said if len(set(said.values())) > 1 else next(iter(said.values()))
            lines.append(_line(variant))
    stored = [json.dumps(line, sort_keys=True, ensure_ascii=True) for line in lines]
    return "".join(line + "\n" for line in stored if len(line) <= TOO_LARGE_TO_STORE or '"files"' in line[:60])


# ---------------------------------------------------------------- both readers on fresh mutations


def node_says(program: Path, paths: list[Path]) -> list[tuple[str, str]]:
    done = subprocess.run(
        [program, VECTORS / "keys" / "trusted"],
        input="".join(f"{p}\n" for p in paths),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [tuple(line.split("\t", 1)) if "\t" in line else (line, "") for line in done.stdout.removesuffix("\n").split("\n")]
    assert len(answers) == len(paths), f"{len(answers)} answers to {len(paths)} questions: {done.stderr}"
    return answers  # type: ignore[return-value]


def compare(program: Path, variants: Iterator[Variant], report: Callable[[str], None]) -> tuple[int, dict[str, int]]:
    """Both readers on each variant. Returns how many differ, and how often each kind was said."""
    differ, kinds = 0, dict.fromkeys(["ok", *bundle_rules.rules()["kinds"]], 0)
    batch: list[tuple[Variant, str, Path]] = []

    def judge() -> None:
        nonlocal differ
        for (variant, form, path), node in zip(batch, node_says(program, [p for _, _, p in batch]), strict=True):
            lab = lab_says(path)
            kinds[lab[0]] += 1
            problems = []
            if lab[0] != node[0]:
                problems.append("readers differ")
            if variant.want and variant.wanted(form) != lab[0]:
                problems.append(f"want {variant.wanted(form)}")
            if any(not m.isprintable() for m in (lab[1], node[1])):
                problems.append("a message with a control character")
            if problems:
                differ += 1
                report(
                    f"{variant.name} as {form}: {', '.join(problems)}\n  lab:  {lab[0]}: {lab[1]}\n  node: {node[0]}: {node[1]}"
                )

    with tempfile.TemporaryDirectory(prefix="surefoot-corpus-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch:
        for n, variant in enumerate(variants):
            for form in variant.forms():
                at_ = Path(scratch) / f"{n}-{form}"
                at_.mkdir()
                batch.append((variant, form, variant.write(at_, form)))
            if len(batch) >= 500:
                judge()
                batch.clear()
                subprocess.run(["find", scratch, "-mindepth", "1", "-delete"], check=True)
        judge()
    return differ, kinds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bundle_corpus", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--write", action="store_true", help="write tests/vectors/bundles.jsonl")
    parser.add_argument("--compare", type=int, metavar="N", help="so many fresh mutations for both readers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", type=Path, default=Path("target/release/examples/bundle_verdicts"), help="the node's reader")
    args = parser.parse_args()
    if args.write:
        write_bytes(CORPUS, text().encode())
    if args.compare is not None:
        rng = random.Random(args.seed)
        fresh = (random_variant(rng, n) for n in range(args.compare))
        differ, kinds = compare(args.program, (v for part in (iter(declared()), fresh) for v in part), print)
        print(json.dumps({"differ": differ, "kinds": {k: n for k, n in kinds.items() if n}}))
        return 1 if differ else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
