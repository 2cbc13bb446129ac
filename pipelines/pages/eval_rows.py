"""What `surefootd eval` left (docs/eval-output.md), read and checked: rows, and the time lines of single runs."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import polars.selectors as cs

from pipelines.errors import BadInput
from pipelines.inputs import parse_json, read_json
from pipelines.pages.page import counted
from pipelines.pages.policy_charts import Lane, TimeLine
from pipelines.tables import reading

ROWS, TIMELINES = "rows.parquet", "timelines.parquet"
# what was run, and what an eval left that is not finished
WHAT, PARTIAL = "eval.json", "eval.partial.jsonl"
# docs/eval-output.md: a workload that takes longer has failed
LIMIT_S = 180.0
_NUMBER = pl.Float64
_NEEDED: dict[str, Any] = {
    "workload": pl.String,
    "policy": pl.String,
    "platform": pl.String,
    "seed": pl.Int64,
    "converged": pl.Boolean,
    "convergence_s": _NUMBER,
    "actions": pl.Int64,
    "emu": _NUMBER,
    "be_throughput": _NUMBER,
    "qos_violation_s": _NUMBER,
    "qos_violation_by_lc_s": pl.String,
    "oracle_emu": _NUMBER,
    "offered_load": _NUMBER,
}
# of newer versions of surefootd: where they are absent, the report says so
OPTIONAL: dict[str, Any] = {
    "self_violation_s": _NUMBER,
    "reclaim_crossings": _NUMBER,
    "deprive_crossings": _NUMBER,
    "actions_per_min_settled": _NUMBER,
    "self_violation_settled_s": _NUMBER,
    "worst_slowdown": _NUMBER,
    "refused_plans": _NUMBER,
    "be_throughput_met": _NUMBER,
    "emu_cosmos": _NUMBER,
    "window_requests": _NUMBER,
}
# the drawn world of a row's workload, null for workload files; an older surefootd has no such column
WORLD: dict[str, Any] = {"world": pl.String}
# what stands for the platform of rows of worlds, each of which has a server of its own
DRAWN = "drawn servers"
# of a time line, those that are used
_LINE: dict[str, Any] = {
    **dict.fromkeys(("workload", "policy", "service", "kind"), pl.String),
    **dict.fromkeys(("seed", "t_ms"), pl.Int64),
    **dict.fromkeys(("p99_ms", "qos_target_ms", "load", "cores", "ways"), _NUMBER),
}
# columns without empty cells; in a time line the others are null where unknown
_FILLED = ("workload", "policy", "platform", "seed", "converged")
SAID = ("harm", "bundle", "surefootd", "requests", "plant", "worlds_edition")
"""What eval.json says of a folder's rows."""
_LINE_FILLED = ("workload", "policy", "seed", "t_ms", "service", "kind")
_KEY = ["platform", "set", "workload", "policy", "seed", "harm"]
# what Parquet begins and ends with
# a sum of nothing was -0 in rows of an older surefootd, which reads as if it were below 0
_NO_MINUS_0 = cs.float().replace(0.0, 0.0)
# changes of load of one service that a time line marks one by one, at most: more are a load with shapes
_CHANGES = 20
# a time line's points, at most: more cannot be told apart in a figure
_POINTS = 400


def read(outs: Sequence[Path]) -> pl.DataFrame:
    """The rows of all folders, with eleven columns more.

    `set`; `lc`, LC services in the workload; `out`, the folder; `lacks`, the columns of OPTIONAL that the folder has not
    (in other folders a null was measured, and is no number); `told`, whether it has an eval.json; and of that (null where there
    is none) `harm` (untruths that policies were told), `bundle` (digest), `surefootd` (version), `sha256` (the workload file's),
    `requests` ("exact" where every request was simulated by itself), `plant` (the virtual server's edition; null: the first),
    `worlds_edition` (of their draws; null: no worlds).

    A set is the workloads whose names differ in their last number only (lc3-01, lc3-02 ...); of other names, those of one folder.
    All worlds of a range are one set ("test worlds") on one platform (DRAWN).

    Raises:
        BadInput: a folder is not eval's, not finished or given twice, a column is missing, of another type or has cells that it
            must not have, eval.json or time lines are not of the rows' run, a run stands in two folders, two workloads have one
            name, rows of a set are of several untruths, and none is of the truth, or of runs with and without --exact.
    """
    if not outs:
        raise BadInput("OUT: no folder given. Name the --out folder of a `surefootd eval`")
    each_once(outs)
    frame = pl.concat([_one(out) for out in outs], how="vertical")
    _one_plant(frame)
    _one_drawing(frame)
    _one_file_a_name(frame)
    _one_harm(frame)
    _one_simulation(frame)
    twice = frame.group_by(_KEY).agg(pl.len(), pl.col("out").sort(), pl.col("sha256").null_count().alias("unknown"))
    twice = twice.filter(pl.col("len") > 1).sort(_KEY)
    if len(twice):
        first = twice.row(0, named=True)
        other = f". If they are different workloads of one name, {_another_name(first['workload'])}" if first["unknown"] else ""
        raise BadInput(
            f"{' and '.join(first['out'])}: workload {first['workload']}, policy {first['policy']}, seed {first['seed']} stands "
            f"in each of them. Leave out the older{other}"
        )
    return frame.sort(_KEY)


def each_once(outs: Sequence[Path]) -> None:
    seen: dict[str, Path] = {}
    for out in outs:
        first = seen.get(real := os.path.realpath(out))
        if first is not None:
            raise BadInput(f"{out}: is {'given twice' if first == out else f'the same folder as {first}'}. Give it once")
        seen[real] = out


def _another_name(workload: str) -> str:
    """How to tell apart what has the name of this workload's set (`set_of`)."""
    if set_of(workload):
        return "draw one of the sets again with `surefoot workloads generate ... --name NAME`, and evaluate that"
    return "rename one of the folders: scripts are a set by their folder"


def _one_file_a_name(frame: pl.DataFrame) -> None:
    """Drawn sets get the same name by default: a mean over workloads, or a ratio, would be of different ones."""
    of = ["platform", "set", "workload"]
    files = frame.drop_nulls("sha256").group_by(*of, "sha256").agg(pl.col("out").min())
    clashes = files.group_by(of).agg(pl.col("out").sort()).filter(pl.col("out").list.len() > 1).sort(of)
    for platform, _, workload, outs in clashes.iter_rows():
        raise BadInput(
            f"{' and '.join(outs)}: workload {workload} on {platform} is not the same file in each of them (sha256 in {WHAT}). "
            f"Report on one of them, or {_another_name(workload)}"
        )


def _one_harm(frame: pl.DataFrame) -> None:
    """Means of runs that were misled differently are means of nothing, and without honest ones they stand beside nothing."""
    told = frame.select("platform", "set", "harm", "out").unique().sort("out")
    for of in told.partition_by("platform", "set", maintain_order=True):
        if of["harm"].n_unique() > 1 and not of["harm"].null_count():
            said = [f"{out} (--harm {harm})" for out, harm in zip(of["out"], of["harm"], strict=True)]
            raise BadInput(
                f"{' and '.join(said)}: rows of set {of['set'][0]} on {of['platform'][0]}, whose policies were not told the "
                "same. Add the runs without --harm, or report on each of them by itself"
            )


def _one_plant(frame: pl.DataFrame) -> None:
    """Figures of two plants are figures of two servers."""
    _one_edition(frame, "plant", "plant", "the virtual server")


def _one_drawing(frame: pl.DataFrame) -> None:
    """A number is another world where worlds are drawn otherwise."""
    _one_edition(frame.filter(pl.col("worlds_edition").is_not_null()), "worlds_edition", "edition", "worlds")


def _one_edition(frame: pl.DataFrame, column: str, word: str, of_what: str) -> None:
    by = frame.select(column, "out").unique().sort("out").partition_by(column, maintain_order=True)
    if len(by) > 1:
        said = [f"{of['out'][0]} ({word} {of[column][0] or 1})" for of in by]
        raise BadInput(f"{' and '.join(said)}: rows of several editions of {of_what}. Run the older evaluation again")


def _one_simulation(frame: pl.DataFrame) -> None:
    """Requests by the laws of queues and requests by themselves are two virtual servers."""
    for of in (
        frame.select("platform", "set", "requests", "out")
        .unique()
        .sort("out")
        .partition_by("platform", "set", maintain_order=True)
    ):
        if of["requests"].n_unique() > 1:
            said = [f"{out} (--{how})" if how else out for out, how in zip(of["out"], of["requests"], strict=True)]
            raise BadInput(
                f"{' and '.join(said)}: rows of set {of['set'][0]} on {of['platform'][0]} with and without --exact. "
                "Report on each of them by itself"
            )


def _what(out: Path, again: str) -> dict[str, Any] | None:
    """What eval.json says of the folder's rows (workloads: digest by name); None without one, as an older surefootd left it."""
    path = out / WHAT
    names = ("harm", "bundle", "surefootd")
    if not path.is_file():
        return None
    try:
        found = read_json(path)
        said = {name: found[name] for name in names} | {"requests": "exact" if found.get("exact") is True else None}
        said["plant"] = str(found["plant"]) if "plant" in found else None
        worlds = found.get("worlds")
        said["worlds_edition"] = None if worlds is None else str(worlds["edition"])
        ran: dict[str, Any] = {
            "platform": [found["platform"] if worlds is None else DRAWN],
            "policies": list(found["policies"]),
            "seeds": range(1, found["seeds"] + 1),
        }
        ran["workloads"] = {w["name"]: str(w["sha256"]) for w in found["workloads"]}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as e:
        raise BadInput(f"{path}: cannot be read as what was run ({type(e).__name__}: {e}). {again}") from None
    for name, value in said.items():
        if not (value is None or isinstance(value, str)):
            raise BadInput(f"{path}: {name}: {value!r} is no text. {again}")
    return said | ran


def _check_same_run(out: Path, what: Mapping[str, Any], frame: pl.DataFrame, again: str) -> None:
    """eval.json beside the rows of another run would vouch for what it knows nothing of. eval runs every combination."""
    runs = 1
    for field, column in (("platform", "platform"), ("policies", "policy"), ("seeds", "seed"), ("workloads", "workload")):
        here, there = frame[column].unique().sort().to_list(), what[field]
        alone = itertools.chain(((x, ROWS) for x in here if x not in there), ((x, WHAT) for x in there if x not in here))
        for x, file in alone:
            raise BadInput(f"{out / WHAT}: {field}: {x} is in {file} alone, so the two are not of one run. {again}")
        runs *= len(there)
    if len(frame) != runs:
        raise BadInput(f"{out / ROWS}: has {counted(len(frame), 'row')}, and {WHAT} beside it says {runs:,}. {again}")


def _one(out: Path) -> pl.DataFrame:
    path = out / ROWS
    again = f"Make it again: surefootd eval ... --out {out} --overwrite"
    if (out / PARTIAL).exists():
        older = f". For the older results there, remove {PARTIAL}" if path.is_file() else ""
        raise BadInput(
            f"{out / PARTIAL}: this evaluation is not finished. Run the same `surefootd eval ... --out {out}` again: it goes on "
            f"where it was{older}"
        )
    what = _what(out, again)
    if not path.is_file():
        raise BadInput(f"{path}: is missing. Name a folder that `surefootd eval --out` wrote")
    with reading(path, again):
        frame = pl.read_parquet(path)
    _check_columns(path, frame.schema, _NEEDED, again)
    lacks = [name for name in OPTIONAL if name not in frame.columns]
    kinds: Any = _NEEDED | OPTIONAL
    _check_columns(path, frame.schema, {name: kind for name, kind in OPTIONAL.items() if name not in lacks}, again)
    if frame.is_empty():
        raise BadInput(f"{path}: has no rows. {again}")
    worlds = frame["world"] if "world" in frame.columns else pl.Series("world", [None] * len(frame), dtype=pl.String)
    _check_columns(path, {"world": worlds.dtype}, WORLD, again)
    frame = _cast(path, frame.with_columns(pl.lit(None).alias(name) for name in lacks).select(*kinds), kinds, again)
    range_of = _range(path, worlds, again)
    if range_of is not None:
        frame = frame.with_columns(pl.lit(DRAWN).alias("platform"))
    _check_cells(path, frame.select(**_wrong_cells(_FILLED, kinds)), again)
    frame = frame.with_columns(_NO_MINUS_0)
    run = ["platform", "workload", "policy", "seed"]
    for _, workload, policy, seed in frame.filter(frame.select(run).is_duplicated()).select(run).iter_rows():
        raise BadInput(f"{path}: workload {workload}, policy {policy}, seed {seed} stands there more than once. {again}")
    if what is not None:
        _check_same_run(out, what, frame, again)
    try:
        lc = [_services(text) for text in frame["qos_violation_by_lc_s"]]
    except (TypeError, ValueError, RecursionError):
        raise BadInput(f"{path}: column qos_violation_by_lc_s is not a JSON object in every row. {again}") from None
    _check_lines(out, frame)
    sets = [f"{range_of} worlds" if range_of else set_of(name) or out.resolve().name for name in frame["workload"]]
    files = what["workloads"] if what else {}
    return frame.with_columns(
        pl.Series("lc", lc),
        pl.Series("set", sets, dtype=pl.String),
        pl.lit(str(out)).alias("out"),
        pl.Series("lacks", [lacks] * len(frame), dtype=pl.List(pl.String)),
        pl.lit(what is not None).alias("told"),
        *(pl.lit(what and what[name], pl.String).alias(name) for name in SAID),
        pl.Series("sha256", [files.get(name) for name in frame["workload"]], dtype=pl.String),
    )


def _range(path: Path, worlds: pl.Series, again: str) -> str | None:
    """The range of all rows' worlds; None where all are of workload files. One evaluation is of one range."""
    ranges = worlds.str.split(":").list.first().unique().to_list() if worlds.dtype == pl.String else [None]
    if len(ranges) != 1:
        named = ", ".join(sorted(str(r) if r else "workload files" for r in ranges))
        raise BadInput(f"{path}: column world has rows of {named}, and an evaluation is of one of them. {again}")
    return str(ranges[0]) if ranges[0] else None


def _check_columns(path: Path, found: Mapping[str, Any], kinds: Mapping[str, Any], again: str) -> None:
    for name, kind in kinds.items():
        held = found.get(name)
        if held is None:
            raise BadInput(f"{path}: column {name} is missing. {again}")
        near = held.is_numeric() if kind == _NUMBER else held.is_integer() if kind == pl.Int64 else False
        if not (near or held in (kind, pl.Null)):
            raise BadInput(f"{path}: column {name} holds {held}, not {kind}. {again}")


def _cast(path: Path, frame: pl.DataFrame, kinds: Mapping[str, Any], again: str) -> pl.DataFrame:
    for name, kind in kinds.items():
        try:
            frame = frame.with_columns(pl.col(name).cast(kind))
        except pl.exceptions.InvalidOperationError:
            raise BadInput(f"{path}: column {name} holds numbers that are too large for {kind}. {again}") from None
    return frame


def _wrong_cells(filled: Iterable[str], kinds: Mapping[str, Any]) -> dict[str, pl.Expr]:
    """What may be wrong with cells, and whether it is."""
    numbers = [name for name, kind in kinds.items() if kind == _NUMBER]
    empty = {f"column {name} has empty cells": pl.col(name).is_null().any() for name in filled}
    return empty | {f"column {name} holds NaN or infinity": (~pl.col(name).cast(_NUMBER).is_finite()).any() for name in numbers}


def _check_cells(path: Path, wrong: pl.DataFrame, again: str) -> None:
    for said, so in wrong.row(0, named=True).items():
        if so:
            raise BadInput(f"{path}: {said}. {again}")


def _services(by_lc: str) -> int:
    """How many services an object of JSON has."""
    found = parse_json(by_lc)
    if not isinstance(found, dict):
        raise TypeError(type(found))
    return len(found)


def set_of(workload: str) -> str | None:
    """The set that a numbered workload belongs to: lc2-be-07 to lc2-be. None without a number."""
    found = re.fullmatch(r"(.+)-\d{2,}", workload)
    return found[1] if found else None


def lines(out: Path) -> pl.LazyFrame | None:
    """The time lines that a folder has; None where eval kept none.

    Raises:
        BadInput: the file is cut off or not Parquet, or a column is missing or of another type.
    """
    path = out / TIMELINES
    if not path.is_file():
        return None
    with reading(path, _without(out)):
        found = pl.scan_parquet(path)
        _check_columns(path, found.collect_schema(), _LINE, _without(out))
    return found.with_columns(_NO_MINUS_0)


def _check_lines(out: Path, rows: pl.DataFrame) -> None:
    """Now, not when the figures are drawn. Of other workloads alone nothing is drawn: an older surefootd left such lines."""
    found = lines(out)
    if found is None:
        return
    path, again = out / TIMELINES, _without(out)
    _check_cells(path, _collected(out, found.select(**_wrong_cells(_LINE_FILLED, _LINE))), again)
    run = ["workload", "policy", "seed"]
    told = _collected(out, found.select(run).unique())
    alone = sorted(set(told.iter_rows()) - set(rows.select(run).iter_rows()))
    if alone and set(told["workload"]) & set(rows["workload"]):
        workload, policy, seed = alone[0]
        raise BadInput(
            f"{path}: is not of the rows beside it: workload {workload}, policy {policy}, seed {seed} is in {TIMELINES} alone. "
            f"{again}"
        )


def _without(out: Path) -> str:
    return f"Make it again: surefootd eval ... --out {out} --overwrite, or remove it: the page is then without time lines"


def _collected(out: Path, frame: pl.LazyFrame) -> pl.DataFrame:
    """What is damaged beyond the file's end shows only now."""
    with reading(out / TIMELINES, _without(out)):
        return frame.collect()


def one_line(out: Path, workload: str) -> pl.DataFrame | None:
    """The time lines of one workload, of all policies, with the first seed that was kept; None where none was."""
    found = lines(out)
    if found is None:
        return None
    frame = _collected(out, found.filter(pl.col("workload") == workload))
    if frame.is_empty():
        return None
    return frame.filter(pl.col("seed") == frame["seed"].min())


def loads(out: Path) -> dict[str, dict[str, float]] | None:
    """The load of every LC service at the end of each workload, in order of arrival; None without time lines."""
    found = lines(out)
    if found is None:
        return None
    ends = (
        found.filter((pl.col("kind") == "lc") & pl.col("load").is_not_null())
        .group_by("workload", "service")
        .agg(pl.col("t_ms").min().alias("from_ms"), pl.col("load").sort_by("t_ms").last())
        .sort("workload", "from_ms", "service")
    )
    all_of: dict[str, dict[str, float]] = {}
    for row in _collected(out, ends).iter_rows(named=True):
        all_of.setdefault(row["workload"], {})[row["service"]] = row["load"]
    return all_of


def _thinned(mine: pl.DataFrame) -> pl.DataFrame:
    """Fewer points that look the same: the worst p99 of each stretch, and every change of what is held."""
    step = -(-len(mine) // _POINTS)
    if step <= 1:
        return mine
    mine = mine.with_row_index("row").with_columns((pl.col("row") // step).alias("stretch"))
    held = pl.struct("cores", "ways")
    worst = pl.col("p99_ms") == pl.col("p99_ms").max().over("stretch")
    changes = (held != held.shift()).fill_null(True)
    last = pl.col("row") == pl.col("row").max()
    return mine.filter(worst | changes | changes.shift(-1).fill_null(False) | last)


def time_line(frame: pl.DataFrame, workload: str, policy: str) -> TimeLine:
    """One run's time line, from its rows of `timelines.parquet`."""
    lanes = []
    marks: dict[float, list[str]] = {}
    start, end = frame["t_ms"].min(), frame["t_ms"].max()
    for (service,), whole in frame.sort("t_ms").group_by(["service"], maintain_order=True):
        mine = _thinned(whole)
        target = whole["qos_target_ms"].drop_nulls()
        lanes.append(
            Lane(
                name=str(service),
                kind=whole["kind"][0],
                qos_target_ms=target[0] if len(target) else None,
                t_s=(mine["t_ms"] / 1000).to_list(),
                p99_ms=mine["p99_ms"].to_list(),
                cores=mine["cores"].to_list(),
                ways=mine["ways"].to_list(),
            )
        )
        t_s = (whole["t_ms"] / 1000).to_list()
        if whole["t_ms"][0] != start:
            marks.setdefault(t_s[0], []).append(f"{service} arrives")
        at_load = whole["load"].to_list()
        changes = [
            (at, f"{service} to {100 * after:.0f} % load")
            for before, after, at in zip(at_load, at_load[1:], t_s[1:], strict=False)
            if before and after and abs(after - before) > 1e-9
        ]
        if len(changes) > _CHANGES:
            known = [x for x in at_load if x is not None]
            changes = [(t_s[0], f"{service} at {100 * min(known):.0f} to {100 * max(known):.0f} % load from then on")]
        for at, said in changes:
            marks.setdefault(at, []).append(said)
        if whole["t_ms"][-1] != end:
            # it is there in its last reading: it leaves after that
            marks.setdefault(t_s[-1], []).append(f"{service} leaves")
    shown = [(at, ", ".join(texts)) for at, texts in sorted(marks.items())]
    return TimeLine(workload, policy, lanes, shown, any(w for lane in lanes for w in lane.ways if w))


def readings(frame: pl.DataFrame) -> str:
    """Of how many readings of LC services in a time line the p99 is known."""
    lc = frame.filter(pl.col("kind") == "lc")
    return f"p99 known in {len(lc) - lc['p99_ms'].null_count():,} of {counted(len(lc), 'reading')}"


def caption(run: TimeLine) -> str:
    return "Vertical lines: " + "; ".join(f"{at:.0f} s {text}" for at, text in run.marks) + "." if run.marks else ""


def latency_span(runs: Iterable[TimeLine]) -> tuple[float, float]:
    """Limits of latency over target that fit all runs of a workload."""
    ratios = [p / lane.qos_target_ms for r in runs for lane in r.lanes if lane.qos_target_ms for p in lane.p99_ms if p]
    if not ratios:
        return 0.1, 10.0
    return max(min(ratios) * 0.8, 1e-3), max(max(ratios) * 1.25, 2.0)
