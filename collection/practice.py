"""`surefoot learn-c`: Model-C trained in closed loop on drawn worlds (docs/worlds.md).

A round: a bundle for each world, the policy `osml-plus` on all of them side by side (`surefootd eval --experience`), then
learning from the experience of all rounds so far (pipelines/practice.py). In a share of the worlds actions are drawn at random
among those that the policy may take, so that C learns what it would not do by itself.

    DIR/round-N/bundles, own, random, experience    what acted, what came of it, and what C was told of it
    DIR/round-N/c                                   Model-C after the round
    DIR/practice.json                               a line a round
    DIR/a, b, c, worlds.json                        the models with the C of the last round: `surefoot bundle worlds` takes them

A round that is whole is not run again, so a call that was killed goes on where it was.
"""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines import params, practice
from pipelines.artefact import bundle, worlds_bundle
from pipelines.fits import fitted
from pipelines.inputs import SUMMARY_BYTES, read_bytes, read_text
from pipelines.io import canonical_json, check_output, make_folder, read_json, sha256_file, write_bytes, write_json

from . import servers, tools
from .errors import InputError
from .worlds import Worlds

POLICY = "osml-plus"
TABLE = "practice.json"
_DONE = "done"
_KEY = "what"
_BUILT = "bundles.json"


@dataclass(frozen=True)
class Options:
    """What the command was given; see `surefoot learn-c --help`."""

    models: Path
    worlds: str
    out: Path
    params: Path | None = None
    key: Path | None = None
    seed: int = 1


def run(given: Options, said: Callable[[str], None]) -> dict[str, Any]:
    """Act and learn in turn; returns what practice.json holds.

    Args:
        said: takes a line of progress a round.
    Raises:
        InputError, BadInput: names the option or file at fault.
        ToolMissing, ToolFailed: surefootd is not built, or an evaluation failed.
    """
    wanted = Worlds.parse(given.worlds)
    if wanted.range == "test":
        raise InputError("--worlds: what is learnt from test worlds could not be measured on them; give train:1..40")
    p = params.load(given.params or Path("params.yaml"))
    c = fitted.load(given.models / "c")
    check_output("--out", given.out / TABLE, [("--models", given.models)], overwrite=True)
    key = canonical_json(
        {
            "models": {letter: sha256_file(given.models / letter / fitted.WEIGHTS) for letter in bundle.LETTERS},
            "worlds": given.worlds,
            "seed": given.seed,
            "c": p.train.c.model_dump(mode="json"),
            "random_share": p.worlds.random_share,
            "surefootd": sha256_file(tools.find(tools.SUREFOOTD)),
        }
    )
    make_folder(given.out)
    _same(given.out, key)
    numbers = range(wanted.first, wanted.last + 1)
    platforms = servers.facts([given.worlds])
    rounds: list[dict[str, Any]] = []
    known = practice.Known(given.seed)
    models = given.models
    for k in range(1, p.worlds.rounds + 1):
        at = given.out / f"round-{k}"
        make_folder(at)
        built = _bundles(at, models, platforms, given.key)
        rng = np.random.default_rng((given.seed, 11, k))
        drawn = rng.permutation(len(numbers)) < round(p.worlds.random_share * len(numbers))
        parts = {
            "own": [n for n, is_random in zip(numbers, drawn, strict=True) if not is_random],
            "random": [n for n, is_random in zip(numbers, drawn, strict=True) if is_random],
        }
        for name, those in parts.items():
            if those and not (at / _DONE).is_file():
                _act(wanted.range, those, at, name, [] if name == "own" else ["--harm", "uniform-c"])
        before, rewards = known.seen, 0.0
        for one, platform in zip(built, platforms, strict=True):
            own = worlds_bundle.moved(c, worlds_bundle.limits_of(platform)).inputs
            for told in _told(at / "experience", one, own, c):
                known.add(told)
                rewards += float(told.reward.sum(dtype=np.float64))
        if not (at / _DONE).is_file():
            c = practice.learn(c, known.all(), p.train.c, given.seed + k, at)
            practice.save(c, given.models / "c", at / "c")
            write_bytes(at / _DONE, b"")
        else:
            c = fitted.load(at / "c")
        new = known.seen - before
        line = {"round": k, "transitions": new, "known": known.seen, "held": len(known), "reward_mean": rewards / max(new, 1)}
        rounds.append(line | _figures(at, parts))
        said(f"round {k} of {p.worlds.rounds}: {_words(rounds[-1])}")
        models = _with(given.models, at / "c", at / "models")
    found = {"policy": POLICY, "worlds": given.worlds, "rounds": rounds}
    write_json(given.out / TABLE, found)
    _with(given.models, given.out / f"round-{p.worlds.rounds}" / "c", given.out)
    return found


def _same(out: Path, key: bytes) -> None:
    """That what is in the folder is of the same call."""
    path = out / _KEY
    if path.is_file():
        if read_bytes(path) != key:
            raise InputError(f"--out {out}: has rounds of other models, worlds, settings or programs; give another folder")
    elif any(out.iterdir()):
        raise InputError(f"--out {out}: is not empty, and nothing in it says that it is of this command; give another folder")
    else:
        write_bytes(path, key)


def _bundles(at: Path, models: Path, platforms: Sequence[dict[str, Any]], key: Path | None) -> list[dict[str, Any]]:
    """A bundle for each world. Those that acted are not built again: experience names the bundle that it is of."""
    listed = at / _BUILT
    if not listed.is_file():
        write_json(listed, worlds_bundle.run(models, platforms, at / "bundles", key, overwrite=True))
    built: list[dict[str, Any]] = read_json(listed, "the bundles of a round", f"remove {at}, and its round is run again")
    return built


def _act(which: str, numbers: Sequence[int], at: Path, name: str, more: Sequence[str]) -> None:
    """The policy on these worlds; an evaluation that was interrupted goes on."""
    worlds = [f"{which}:{n}" for n in numbers]
    args: list[str | Path] = ["eval", "--worlds", *worlds, "--policies", POLICY, "--bundles", at / "bundles", "--out", at / name]
    args += ["--experience", at / "experience", "--timelines", "none", "--progress", "none", "--overwrite", *more]
    tools.run(tools.SUREFOOTD, args)


def _told(folder: Path, one: dict[str, Any], own: Sequence[Any], c: fitted.Fitted) -> Iterator[practice.Experience]:
    """What the runs of one world experienced, one at a time."""
    world = str(one["platform"]).removesuffix("-p")
    files = sorted(folder.glob(f"{world}-[0-9]*--{POLICY}--*.safetensors"))
    if not files:
        raise InputError(f"{folder}: has no experience of {world}; remove the folder above it, and its round is run again")
    for file in files:
        yield practice.moved(practice.read(file, own, one["manifest_sha256"]), own, c.inputs)


def _figures(at: Path, parts: dict[str, list[int]]) -> dict[str, Any]:
    """Violation of a round's runs, and the losses of its training."""
    line: dict[str, Any] = {}
    for name, those in parts.items():
        if those:
            rows = list(csv.DictReader(io.StringIO(read_text(at / name / "rows.csv", SUMMARY_BYTES))))
            late = [float(r["qos_violation_s"]) for r in rows if r["qos_violation_s"]]
            line[f"violation_s_{name}"] = float(np.mean(late)) if late else None
    losses = fitted.losses(at / "c")
    if losses:
        line |= {name: value for name, value in losses[-1][1].items()}
    return line


def _words(line: dict[str, Any]) -> str:
    own, drawn = line.get("violation_s_own"), line.get("violation_s_random")
    told = [f"{line['transitions']} transitions, mean reward {line['reward_mean']:.3f}"]
    told += [] if own is None else [f"violation {own:.1f} s a run by its own actions"]
    told += [] if drawn is None else [f"{drawn:.1f} s by random ones"]
    return ", ".join(told)


def _with(models: Path, c: Path, out: Path) -> Path:
    """The models of worlds with another Model-C."""
    make_folder(out)
    for letter in ("a", "b"):
        shutil.copytree(models / letter, out / letter, dirs_exist_ok=True)
    shutil.copytree(c, out / "c", dirs_exist_ok=True)
    shutil.copyfile(models / "worlds.json", out / "worlds.json")
    return out
