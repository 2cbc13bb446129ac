"""What `surefootd harvest-eval` left (docs/smartharvest.md), read and checked."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pipelines.errors import BadInput
from pipelines.inputs import SUMMARY_BYTES, read_json, read_text
from pipelines.pages.eval_rows import each_once
from pipelines.pages.page import counted

ROWS, WHAT, PARTIAL = "rows.csv", "harvest.json", "harvest.partial.jsonl"
# form of harvest.json that is read
_FORM = 1
BASE = "no-harvest"
# way to move cores in all experiments of the paper but OWN_MOVERS
MOVER = "cpugroups"
# what the command line names beside experiments, as rows call it
PRIMARIES, WORLDS = "primaries", "worlds"
# experiments that bring policies, or movers, of their own, whatever the command line says
_OWN_POLICIES = ("f10", "f11", "f13", "f14")
OWN_MOVERS = ("f14", "f15")
_LARGEST = 2**53


@dataclass(frozen=True)
class Row:
    """One VM in one stage of one run: the columns that are used. What follows `p99_us` is of the whole group of VMs."""

    experiment: str
    case: str
    policy: str
    variant: str
    mover: str
    seed: int
    stage: int
    vm: int
    workload: str
    load_rps: float
    seconds: float
    requests: int
    mean_us: float
    p99_us: float
    cores_lent: float
    cores_busy: float
    peak_busy: float
    exhausted: int
    stops: int
    hdinsight: float
    terasort: float

    @property
    def cell(self) -> tuple[str, str, str, str, str]:
        return (self.experiment, self.case, self.mover, self.policy, self.variant)


@dataclass(frozen=True)
class Folder:
    """What harvest.json says of a folder, and its rows."""

    out: str
    surefootd: str
    plant: str
    bursts_sha256: str
    experiments: Sequence[str]
    primaries: Sequence[str]
    worlds: Sequence[str]
    policies: Sequence[str]
    mover: str | None
    duration_s: float | None
    seeds: int
    settings: str
    finished_utc: str
    rows: Sequence[Row]


def read(outs: Sequence[Path]) -> list[Folder]:
    """The rows of all folders.

    Raises:
        BadInput: a folder is not harvest-eval's, not finished or given twice; a column is missing or has cells that are wrong;
            harvest.json is not of the rows beside it; a run stands in two folders; folders are of several plants or profiles.
    """
    if not outs:
        raise BadInput("OUT: no folder given. Name the --out folder of a `surefootd harvest-eval`")
    each_once(outs)
    folders = [_one(out) for out in outs]
    _one_plant(folders)
    _one_place(folders)
    return folders


def _one_plant(folders: Sequence[Folder]) -> None:
    """Figures of two plants are figures of two servers. Worlds bring workloads of their own into the profiles' digest."""
    for name, key in (
        ("plants", lambda f: ("", f.plant)),
        ("profiles", lambda f: (",".join(f.worlds), f.bursts_sha256)),
    ):
        seen: dict[str, Folder] = {}
        for f in folders:
            group, value = key(f)
            first = seen.setdefault(group, f)
            if key(first)[1] != value:
                which = f" (plant {first.plant} and {f.plant})" if name == "plants" else ""
                raise BadInput(f"{first.out} and {f.out}: rows of several {name}{which}. Run the older evaluation again")


def _one_place(folders: Sequence[Folder]) -> None:
    seen: dict[tuple[Any, ...], Folder] = {}
    for f in folders:
        for cell in dict.fromkeys(r.cell for r in f.rows):
            first = seen.setdefault(cell, f)
            if first is not f:
                raise BadInput(f"{first.out} and {f.out}: {_named(cell)} stands in each of them. Leave out the older")


def _named(cell: tuple[str, ...]) -> str:
    experiment, case, mover, policy, variant = cell
    return f"experiment {experiment}, case {case}, {mover}, policy {policy}{f', {variant}' if variant else ''}"


def _one(out: Path) -> Folder:
    again = f"Make it again: surefootd harvest-eval ... --out {out} --overwrite"
    path = out / ROWS
    if (out / PARTIAL).exists():
        older = f". For the older results there, remove {PARTIAL}" if path.is_file() else ""
        raise BadInput(
            f"{out / PARTIAL}: this evaluation is not finished. Run the same `surefootd harvest-eval ... --out {out}` again: it "
            f"goes on where it was{older}"
        )
    for name in (ROWS, WHAT):
        if not (out / name).is_file():
            raise BadInput(f"{out / name}: is missing. Name a folder that `surefootd harvest-eval --out` wrote")
    what = _what(out, again)
    folder = Folder(**what, out=str(out), rows=_rows(path, again))
    _same_run(out, folder, again)
    return folder


def _what(out: Path, again: str) -> dict[str, Any]:
    path = out / WHAT
    try:
        found = read_json(path)
        if found["harvest_eval"] != _FORM:
            raise ValueError(f"harvest_eval {found['harvest_eval']!r}, not {_FORM}")
        said: dict[str, Any] = {name: _text(found, name) for name in ("surefootd", "bursts_sha256", "finished_utc")}
        said["plant"] = str(_whole(found, "plant"))
        said["seeds"] = _whole(found, "seeds")
        lists = ("experiments", "primaries", "worlds", "policies")
        said |= {name: _texts(found, name) for name in lists}
        said["mover"] = None if found["mover"] is None else _text(found, "mover")
        said["duration_s"] = None if found["duration_s"] is None else _number(found["duration_s"], "duration_s")
        said["settings"] = ", ".join(
            f"{name} = {' '.join(f'{_number(x, name):g}' for x in values)}" for name, values in found["settings"]
        )
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as e:
        raise BadInput(f"{path}: cannot be read as what was run ({type(e).__name__}: {e}). {again}") from None
    return said


def _text(found: Mapping[str, Any], name: str) -> str:
    if not isinstance(found[name], str):
        raise TypeError(f"{name} is no text")
    return str(found[name])


def _texts(found: Mapping[str, Any], name: str) -> list[str]:
    if not isinstance(found[name], list) or not all(isinstance(x, str) for x in found[name]):
        raise TypeError(f"{name} is no list of texts")
    return list(found[name])


def _number(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _LARGEST:
        raise ValueError(f"{name} is no number")
    return float(value)


def _whole(found: Mapping[str, Any], name: str) -> int:
    if not isinstance(found[name], int) or isinstance(found[name], bool) or not 0 < found[name] < _LARGEST:
        raise ValueError(f"{name} is no number above 0")
    return int(found[name])


def _rows(path: Path, again: str) -> list[Row]:
    try:
        lines = csv.reader(io.StringIO(read_text(path, SUMMARY_BYTES), newline=""), strict=True)
        head = next(lines, [])
        for name in (f.name for f in fields(Row)):
            if head.count(name) != 1:
                raise BadInput(f"{path}: column {name} is missing or there twice. {again}")
        rows = []
        for line in lines:
            if len(line) != len(head):
                raise BadInput(f"{path}:{lines.line_num}: has {counted(len(line), 'cell')} of {len(head)}. {again}")
            rows.append(_row(f"{path}:{lines.line_num}", dict(zip(head, line, strict=True)), again))
    except OSError as e:
        raise BadInput(f"{path}: cannot be read ({e.strerror or e}). {again}") from None
    except (csv.Error, ValueError) as e:
        raise BadInput(f"{path}: cannot be read as rows ({e}). {again}") from None
    if not rows:
        raise BadInput(f"{path}: has no rows. {again}")
    return rows


_KINDS: Mapping[str, Any] = {f.name: {"str": str, "int": int, "float": float}[str(f.type)] for f in fields(Row)}
_DIGITS = re.compile(r"\d{1,15}")


def _row(at: str, cells: Mapping[str, str], again: str) -> Row:
    said: dict[str, Any] = {}
    for name, kind in _KINDS.items():
        text = cells[name]
        value: Any
        try:
            value = text if kind is str else kind(text)
        except ValueError:
            value = None
        if value is None or (kind is int and not _DIGITS.fullmatch(text)):
            raise BadInput(f"{at}: column {name}: {text[:40]!r} is no {'number' if kind is float else 'whole number'}. {again}")
        if kind is float and not math.isfinite(value):
            raise BadInput(f"{at}: column {name} holds NaN or infinity. {again}")
        if kind is float and not 0 <= value < _LARGEST:
            raise BadInput(f"{at}: column {name}: {value:g} is {'below 0' if value < 0 else 'too large'}. {again}")
        # a sum of nothing may be -0, which reads as if it were below 0
        said[name] = value + 0.0 if kind is float else value
    if not all(said[name] for name in ("experiment", "case", "policy", "mover", "workload")):
        raise BadInput(f"{at}: experiment, case, policy, mover or workload is empty. {again}")
    return Row(**said)


def _same_run(out: Path, f: Folder, again: str) -> None:
    """harvest.json beside the rows of another run would vouch for what it knows nothing of."""
    named = [*f.experiments, *([PRIMARIES] if f.primaries else []), *([WORLDS] if f.worlds else [])]
    _same(out, "experiment", (r.experiment for r in f.rows), named, again)
    _same(out, "case of --primaries", (r.case for r in f.rows if r.experiment == PRIMARIES), f.primaries, again)
    own = [r for r in f.rows if r.experiment not in _OWN_POLICIES]
    if f.policies and own:
        # what has a variant, an experiment adds by itself
        _same(out, "policy", (r.policy for r in own if not r.variant), f.policies, again)
    if f.mover is not None:
        movers = [r.mover for r in f.rows if r.experiment not in OWN_MOVERS]
        _same(out, "mover", movers, [f.mover] if movers else [], again)
    by: dict[tuple[str, ...], dict[int, list[tuple[int, int]]]] = {}
    for r in f.rows:
        by.setdefault(r.cell, {}).setdefault(r.seed, []).append((r.stage, r.vm))
    for cell, seeds in by.items():
        places = [sorted(at) for at in seeds.values()]
        if (len(seeds), min(seeds), max(seeds)) != (f.seeds, 1, f.seeds):
            said = f"has {counted(len(seeds), 'seed')}, and {WHAT} beside it says 1 to {f.seeds:,}"
        elif any(len(set(at)) < len(at) for at in places):
            said = "has a stage and VM of one seed more than once"
        elif any(at != places[0] for at in places):
            said = "has not the same stages and VMs with every seed"
        else:
            continue
        raise BadInput(f"{out / ROWS}: {_named(cell)} {said}. {again}")


def _same(out: Path, what: str, here: Iterable[str], there: Sequence[str], again: str) -> None:
    found = list(dict.fromkeys(here))
    alone = [(x, ROWS) for x in found if x not in there] + [(x, WHAT) for x in there if x not in found]
    for x, file in alone:
        raise BadInput(f"{out / WHAT}: {what} {x} is in {file} alone, so the two are not of one run. {again}")
