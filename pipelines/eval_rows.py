"""What `surefootd eval` left (docs/eval-output.md), read and checked: rows, and the time lines of single runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.errors import BadInput
from pipelines.policy_charts import Lane, TimeLine

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
}
_KEY = ["platform", "set", "workload", "policy", "seed", "harm"]
# a time line's points, at most: more cannot be told apart in a figure
_POINTS = 400


def read(outs: Sequence[Path]) -> pl.DataFrame:
    """The rows of all folders, with eight columns more.

    `set`; `lc`, LC services in the workload; `out`, the folder; `lacks`, the columns of OPTIONAL that the folder has not
    (in other folders a null was measured, and is no number); `told`, whether it has an eval.json; and of that, null where there
    is none, `harm` (untruths that policies were told), `bundle` (digest) and `surefootd` (version).

    A set is the workloads whose names differ in their last number only (lc3-01, lc3-02 ...); of other names, those of one folder.

    Raises:
        BadInput: a folder is not eval's or not finished, a column is missing or of another type, a run stands in two folders, or
            rows of a set are of several untruths, and none is of the truth.
    """
    if not outs:
        raise BadInput("OUT: no folder given. Name the --out folder of a `surefootd eval`")
    frame = pl.concat([_one(out) for out in outs], how="vertical")
    _one_harm(frame)
    twice = frame.group_by(_KEY).agg(pl.len(), pl.col("out").unique()).filter(pl.col("len") > 1).sort(_KEY)
    if len(twice):
        first = twice.row(0, named=True)
        raise BadInput(
            f"{' and '.join(sorted(first['out']))}: workload {first['workload']}, policy {first['policy']}, seed "
            f"{first['seed']} stands there more than once. Name each folder once, and leave out the older of two runs"
        )
    return frame.sort(_KEY)


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


def _what(out: Path, again: str) -> dict[str, str | None] | None:
    """What eval.json says of the folder's rows; None without one, which only an older surefootd wrote rows without."""
    path = out / WHAT
    names = ("harm", "bundle", "surefootd")
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
        said = {name: found[name] for name in names}
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise BadInput(f"{path}: cannot be read as what was run ({type(e).__name__}: {e}). {again}") from None
    for name, value in said.items():
        if not (value is None or isinstance(value, str)):
            raise BadInput(f"{path}: {name}: {value!r} is no text. {again}")
    return said


def _one(out: Path) -> pl.DataFrame:
    path = out / ROWS
    again = f"Make it again: surefootd eval ... --out {out}"
    if (out / PARTIAL).exists():
        raise BadInput(
            f"{out / PARTIAL}: an eval was interrupted there, and {ROWS} is not its own. Finish it with the same command, or "
            "remove this file to report on what was there before"
        )
    what = _what(out, again)
    if not path.is_file():
        raise BadInput(f"{path}: is missing. Name a folder that `surefootd eval --out` wrote")
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as e:
        raise BadInput(f"{path}: cannot be read as Parquet ({str(e).splitlines()[0]}). {again}") from None
    columns = []
    for name, kind in _NEEDED.items():
        if name not in frame.columns:
            raise BadInput(f"{path}: column {name} is missing. {again}")
        columns.append(_cast(frame, path, name, kind, again))
    for name, kind in OPTIONAL.items():
        absent = name not in frame.columns
        columns.append(pl.Series(name, [None] * len(frame), dtype=kind) if absent else _cast(frame, path, name, kind, again))
    if frame.is_empty():
        raise BadInput(f"{path}: has no rows. {again}")
    lacks = [name for name in OPTIONAL if name not in frame.columns]
    frame = pl.DataFrame(columns)
    for name in ("workload", "policy", "platform", "seed", "converged", "qos_violation_s"):
        if frame[name].null_count():
            raise BadInput(f"{path}: column {name} has empty cells. {again}")
    try:
        lc = [len(json.loads(text)) for text in frame["qos_violation_by_lc_s"]]
    except (TypeError, ValueError):
        raise BadInput(f"{path}: column qos_violation_by_lc_s is not a JSON object in every row. {again}") from None
    sets = [set_of(name) or out.resolve().name for name in frame["workload"]]
    return frame.with_columns(
        pl.Series("lc", lc),
        pl.Series("set", sets, dtype=pl.String),
        pl.lit(str(out)).alias("out"),
        pl.Series("lacks", [lacks] * len(frame), dtype=pl.List(pl.String)),
        pl.lit(what is not None).alias("told"),
        *(pl.lit(what and what[name], pl.String).alias(name) for name in ("harm", "bundle", "surefootd")),
    )


def _cast(frame: pl.DataFrame, path: Path, name: str, kind: Any, again: str) -> pl.Series:
    series = frame[name]
    if kind == _NUMBER and series.dtype.is_numeric():
        return series.cast(_NUMBER)
    if series.dtype == kind or series.dtype == pl.Null or (kind == pl.Int64 and series.dtype.is_integer()):
        return series.cast(kind)
    raise BadInput(f"{path}: column {name} holds {series.dtype}, not {kind}. {again}")


def set_of(workload: str) -> str | None:
    """The set that a numbered workload belongs to: lc2-be-07 to lc2-be. None without a number."""
    found = re.fullmatch(r"(.+)-\d{2,}", workload)
    return found[1] if found else None


def lines(out: Path) -> pl.LazyFrame | None:
    """The time lines that a folder has; None where eval kept none."""
    path = out / TIMELINES
    return pl.scan_parquet(path) if path.is_file() else None


def one_line(out: Path, workload: str) -> pl.DataFrame | None:
    """The time lines of one workload, of all policies, with the first seed that was kept; None where none was."""
    found = lines(out)
    if found is None:
        return None
    frame = found.filter(pl.col("workload") == workload).collect()
    if frame.is_empty():
        return None
    return frame.filter(pl.col("seed") == frame["seed"].min())


def loads(out: Path) -> dict[str, dict[str, float]] | None:
    """The load of every LC service at the end of each workload, in order of arrival; None without time lines."""
    found = lines(out)
    if found is None:
        return None
    frame = (
        found.filter((pl.col("kind") == "lc") & pl.col("load").is_not_null())
        .group_by("workload", "service")
        .agg(pl.col("t_ms").min().alias("from_ms"), pl.col("load").sort_by("t_ms").last())
        .sort("workload", "from_ms", "service")
        .collect()
    )
    all_of: dict[str, dict[str, float]] = {}
    for row in frame.iter_rows(named=True):
        all_of.setdefault(row["workload"], {})[row["service"]] = row["load"]
    return all_of


def _thinned(mine: pl.DataFrame) -> pl.DataFrame:
    """Fewer points that look the same: the worst p99 of each stretch, and every change of what is held."""
    step = -(-len(mine) // _POINTS)
    if step <= 1:
        return mine
    mine = mine.with_row_index("row").with_columns((pl.col("row") // step).alias("stretch"))
    held = pl.struct("cores", "ways", "load")
    worst = pl.col("p99_ms") == pl.col("p99_ms").max().over("stretch")
    changes = (held != held.shift()).fill_null(True)
    last = pl.col("row") == pl.col("row").max()
    return mine.filter(worst | changes | changes.shift(-1).fill_null(False) | last)


def time_line(frame: pl.DataFrame, workload: str, policy: str) -> TimeLine:
    """One run's time line, from its rows of `timelines.parquet`."""
    lanes = []
    marks: dict[float, list[str]] = {}
    start = frame["t_ms"].min()
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
        for before, after, at in zip(at_load, at_load[1:], t_s[1:], strict=False):
            if before and after and abs(after - before) > 1e-9:
                marks.setdefault(at, []).append(f"{service} to {100 * after:.0f} % load")
    shown = [(at, ", ".join(texts)) for at, texts in sorted(marks.items())]
    return TimeLine(workload, policy, lanes, shown, any(w for lane in lanes for w in lane.ways if w))


def caption(run: TimeLine) -> str:
    return "Vertical lines: " + "; ".join(f"{at:.0f} s {text}" for at, text in run.marks) + "." if run.marks else ""


def latency_span(runs: Iterable[TimeLine]) -> tuple[float, float]:
    """Limits of latency over target that fit all runs of a workload."""
    ratios = [p / lane.qos_target_ms for r in runs for lane in r.lanes if lane.qos_target_ms for p in lane.p99_ms if p]
    if not ratios:
        return 0.1, 10.0
    return max(min(ratios) * 0.8, 1e-3), max(max(ratios) * 1.25, 2.0)
