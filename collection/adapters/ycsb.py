"""YCSB: lines `[OPERATION], measure, value` or the same as JSON; and go-ycsb.

Source: brianfrankcooper/YCSB, `Client.exportMeasurements`, `measurements/OneMeasurement*.java`, `measurements/exporter/*.java`,
`DBWrapper.measure`; pingcap/go-ycsb, `pkg/measurement/*.go`, `pkg/util/output.go`.

- Each measure names its unit: us, ms (up to 0.1.4) or ns. `measurementtype=histogram` tells percentiles in whole milliseconds,
  rounded down; `raw` has `p99` and `Total Operations`, in us.
- `[READ]` is of operations that succeeded; the others are `[READ-FAILED]`, `[READ-ERROR]`, ..., and are counted in `[READ],
  Return=...` (before 0.2 with 0 for OK). go-ycsb has `READ_ERROR`.
- `[Intended-READ]` counts from the intended send (`measurement.interval=both`). Whether `[READ]` does (`=intended`) is not
  printed.
- go-ycsb prints summaries while it runs; those after `Run finished` are the run's.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from pipelines.inputs import parse_json

from .measured import Found, Known
from .words import NUMBER, Failed, Unclear, Unrecognised, counted, number, surely, whole

TOOL = "ycsb"
GO = "go-ycsb"
MARKS = (
    re.compile(r"^\[OVERALL\],", re.MULTILINE),
    re.compile(r'"metric"\s{0,9}:\s{0,9}"OVERALL"'),
    re.compile(r"^[A-Z_]+[ \t]+- Takes\(s\):", re.MULTILINE),
    re.compile(r'"Takes\(s\)"\s{0,9}:'),
    re.compile(r"\|[ \t]*TAKES\(S\)[ \t]*\|"),
)
LOOKS = (
    "`[OVERALL], Throughput(ops/sec), R` and `[OPERATION], Operations, N`, as JSON too, or go-ycsb's `OPERATION - Takes(s): ...`"
)
_LINE = re.compile(rf"^\[([^\]\n]{{1,200}})\],[ \t]*([^,\n]{{1,200}}),[ \t]*({NUMBER}|NaN)[ \t\r]*$", re.MULTILINE | re.ASCII)
_TARGET = re.compile(r"^Command line:[^\n]*? -target (\d{1,15})\b", re.MULTILINE | re.ASCII)
_OBJECT = re.compile(r"\{[^{}]*\}")
_LATENCY = re.compile(
    r"(Average|Min|Max|([\d.]{1,12})(?:st|nd|rd|th)?Percentile)Latency\((us|ms|ns)\)|(p[\d.]{1,12}|Average|Min|Max)", re.ASCII
)
_UNIT_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0}
_GOOD = ("OK", "0", "BATCHED_OK")
_INTENDED = "Intended-"
_BROKEN = re.compile(
    r"(-FAILED|-ERROR|-NOT_FOUND|-NOT_IMPLEMENTED|-UNEXPECTED_STATE|-BAD_REQUEST|-FORBIDDEN|-SERVICE_UNAVAILABLE)$"
)
_NO_REQUEST = ("OVERALL", "CLEANUP")
_GO_LINE = re.compile(r"^([A-Z_]{1,80})[ \t]+- (Takes\(s\): [^\n]{1,2000})$", re.MULTILINE)
_GO_END = "Run finished, takes"
_GO_BEGIN = "***** properties *****"
_GO_LEVELS = {0.5: "50th(us)", 0.95: "95th(us)", 0.99: "99th(us)", 0.999: "99.9th(us)"}
_GO_TABLE = "Takes(s)"

_Run = dict[str, dict[str, float | None]]


def parse(text: str, known: Known) -> list[Found]:
    if any(mark.search(text) for mark in MARKS[2:]):
        if any(mark.search(text) for mark in MARKS[:2]):
            raise Unclear("it holds outputs of YCSB and of go-ycsb. Give one run a file")
        return _go(text, known)
    lines, targets = _json(text) if MARKS[1].search(text) else _text(text)
    if not lines:
        raise Unrecognised("no line `[OVERALL], Throughput(ops/sec)`")
    found: list[Found] = []
    for i, run in enumerate(_runs(lines)):
        found += _of(run, str(i + 1), targets[i] if i < len(targets) else None, known)
    return found


def _text(text: str) -> tuple[list[tuple[str, str, float | None]], list[float | None]]:
    lines, targets = [], list[float | None]()
    target: float | None = None
    commands = [(m.start(), float(m[1])) for m in _TARGET.finditer(text)]
    at = 0
    for m in _LINE.finditer(text):
        lines.append((m[1], m[2].strip(), number(m[3])))
        if m[1] == "OVERALL" and m[2].startswith("Throughput"):
            while at < len(commands) and commands[at][0] < m.start():
                target, at = commands[at][1], at + 1
            targets.append(target)
            target = None
    return lines, targets


def _json(text: str) -> tuple[list[tuple[str, str, float | None]], list[float | None]]:
    objects = _OBJECT.findall(text)
    if len(objects) != text.count("{"):
        raise Unclear("its JSON is cut: an object has no end. Give the whole output")
    lines = []
    for piece in objects:
        entry = parse_json(piece)
        if "metric" not in entry:
            continue
        metric, measure, value = entry["metric"], entry.get("measurement"), entry.get("value")
        right = isinstance(metric, str) and isinstance(measure, str)
        if not right or isinstance(value, bool) or not isinstance(value, int | float | str | None):
            raise ValueError(f"an object of its JSON is no `metric`, `measurement`, `value`: {piece[:80]}")
        lines.append((metric, measure, number(value) if isinstance(value, str) else None if value is None else float(value)))
    return lines, []


def _runs(lines: list[tuple[str, str, float | None]]) -> list[_Run]:
    """Each begins with OVERALL; what stands there twice within one is of two.

    Raises:
        Unrecognised, Unclear: no run, or no telling which line is of which.
    """
    runs: list[_Run] = []
    for operation, measure, value in lines:
        if operation == "OVERALL" and (not runs or measure in runs[-1]["OVERALL"]):
            runs.append({"OVERALL": {}})
        elif not runs:
            if operation.startswith("TOTAL_GC"):
                continue
            raise Unclear(f"`[{operation}]` stands above the first `[OVERALL]`: parts of several runs. Give one run a file")
        row = runs[-1].setdefault(operation, {})
        # buckets may repeat their last name
        if measure in row and not re.fullmatch(r">?\d+", measure):
            raise Unclear(f"`[{operation}], {measure}` stands there twice in one run: parts of several runs. Give one run a file")
        row[measure] = value
    if any(run["OVERALL"].get("Throughput(ops/sec)") is None for run in runs):
        raise Unrecognised("no line `[OVERALL], Throughput(ops/sec)`")
    return runs


def _of(run: _Run, name: str, target: float | None, known: Known) -> list[Found]:
    total = run["OVERALL"]["Throughput(ops/sec)"] or 0.0
    runtime_ms = run["OVERALL"].get("RunTime(ms)")
    span_s = runtime_ms / 1000 if runtime_ms else None
    offered = target or known.offered_rps
    found, broken, ended = [], 0.0, 0.0
    apart = _apart(run)
    for operation, row in run.items():
        base = operation.removeprefix(_INTENDED)
        if operation in _NO_REQUEST or base in _NO_REQUEST or operation.startswith("TOTAL_GC") or _BROKEN.search(operation):
            continue
        count = row.get("Operations", row.get("Total Operations"))
        if count is None:
            continue
        errors = _errors(apart.get(base, 0.0), row if operation == base else run.get(base, row))
        good = sum(value or 0 for key, value in row.items() if key.removeprefix("Return=") in _GOOD and key.startswith("Return="))
        # up to 0.1.4 failed operations are among the others
        n = max(count, good + errors) if good + errors <= count else count + errors
        if operation == base:
            broken, ended = broken + errors, ended + n
        if not count and not errors:
            continue
        if not count:
            raise Failed(f"all {errors:.0f} of `{base}` failed or found nothing (run {name}): load the records first")
        usable = max(0.0, count - errors) if good + errors <= count and errors else count
        found.append(
            _row(operation, name, row, counted(count), counted(errors), (errors, n), usable / span_s if span_s else None, span_s)
        )
    # operations that failed each time have no row of their own
    for operation, row in run.items():
        base = _BROKEN.sub("", operation)
        if base != operation and not base.startswith(_INTENDED) and base not in run:
            failures = row.get("Operations", row.get("Total Operations")) or 0.0
            if failures:
                raise Failed(f"all {failures:.0f} of `{base}` failed or found nothing (run {name}): load the records first")
    if ended and broken > 0.5 * ended:
        raise Failed(f"{broken:.0f} of {ended:.0f} operations failed or found nothing (run {name}): load the records first")
    if not found:
        raise Failed(f"run {name} measured no operation")
    alone = [f for f in found if not f.operation.startswith(_INTENDED.lower())]
    if len(alone) == 1:
        return [_with_rate(f, offered) for f in found]
    every = Found(
        TOOL,
        "all",
        name,
        None if span_s is None else whole(total * span_s),
        whole(broken) or None,
        offered_rps=offered,
        achieved_rps=total,
        span_s=span_s,
        failed=(broken, ended) if broken else None,
        loop="closed",
    )
    return [*found, every]


def _with_rate(f: Found, offered: float | None) -> Found:
    return f if offered is None else replace(f, offered_rps=offered)


def _apart(run: _Run) -> dict[str, float]:
    """Failed operations that have rows of their own, by the operation."""
    found: dict[str, float] = {}
    for operation, row in run.items():
        if _BROKEN.search(operation):
            base = _BROKEN.sub("", operation)
            found[base] = found.get(base, 0.0) + (row.get("Operations", row.get("Total Operations")) or 0.0)
    return found


def _errors(apart: float, row: dict[str, float | None]) -> float:
    told = sum(v or 0 for k, v in row.items() if k.startswith("Return=") and k.removeprefix("Return=") not in _GOOD)
    return max(told, apart)


def _row(
    operation: str,
    run: str,
    row: dict[str, float | None],
    count: int | None,
    errors: int | None,
    failed: tuple[float, float],
    rate: float | None,
    span_s: float | None,
) -> Found:
    values: dict[str, float] = {}
    units: dict[str, str] = {}
    for measure, value in row.items():
        if value is None or (m := _LATENCY.fullmatch(measure)) is None:
            continue
        what = m[2] or (m[1] if m[1] and m[3] else (m[4] or "").removeprefix("p"))
        key = f"{float(what):g}" if re.fullmatch(r"\d+(\.\d+)?", what) else what
        unit = m[3] or "us"
        values[key], units[key] = value * _UNIT_MS[unit], unit
    if "Average" not in values:
        raise Unclear(f"`[{operation}]` has `Operations` and no average latency: lines are missing. Give the whole output")
    levels = {0.5: "50", 0.95: "95", 0.99: "99", 0.999: "99.9"}
    quantiles: dict[float, float | None] = {q: round(values[k], 9) for q, k in levels.items() if k in values}
    # whole milliseconds in all of them: buckets of 1 ms
    coarse = bool(quantiles) and (
        any(units[levels[q]] == "ms" for q in quantiles)
        or (len(quantiles) > 1 and all(v % 1 == 0 for v in quantiles.values() if v is not None))
    )
    return Found(
        TOOL,
        operation.lower(),
        run,
        count,
        errors or None,
        achieved_rps=rate,
        mean_ms=round(values["Average"], 9),
        min_ms=values.get("Min"),
        max_ms=values.get("Max"),
        quantiles=quantiles,
        step_ms=1.0 if coarse else 1e-3,
        span_s=span_s,
        failed=failed if errors else None,
        loop="open" if operation.startswith(_INTENDED) else "closed",
        latency_from="intended" if operation.startswith(_INTENDED) else "actual",
    )


def _go(text: str, known: Known) -> list[Found]:
    # what a further run prints before its end is none of this one's
    blocks = [block.split(_GO_BEGIN)[0] for block in text.split(_GO_END)[1:]] or [text]
    found: list[Found] = []
    for i, block in enumerate(blocks):
        rows: dict[str, dict[str, float]] = {}
        for operation, cells in _go_rows(block):
            if operation in rows:
                raise Unclear(
                    f"`{operation}` stands there twice and `{_GO_END}` not between: several runs, or one that did not end"
                )
            rows[operation] = cells
        if not rows:
            raise Failed(f"run {i + 1} has no measurements after `{_GO_END}`")
        found += _go_run(rows, str(i + 1), known)
    return found


def _go_rows(block: str) -> list[tuple[str, dict[str, float]]]:
    rows: list[tuple[str, dict[str, float]]] = []
    for m in _GO_LINE.finditer(block.replace("\r", "")):
        pairs = [cell.partition(": ") for cell in m[2].split(", ")]
        rows.append((m[1], {name: surely(value) for name, _, value in pairs}))
    header: list[str] = []
    for line in block.splitlines():
        line = line.strip()
        if line.startswith("|") and line.endswith("|") and len(line) > 1:
            cells = [cell.strip() for cell in line[1:-1].split("|")]
            if len(cells) > 1 and cells[1].lower() == _GO_TABLE.lower():
                header = [cell.lower() for cell in cells]
            elif header and len(cells) == len(header):
                named = {"count": "Count", "ops": "OPS", "takes(s)": _GO_TABLE, "avg(us)": "Avg(us)"}
                rows.append((cells[0], {named.get(n, n): surely(c) for n, c in zip(header[1:], cells[1:], strict=True)}))
        elif line.startswith("[{"):
            rows += [_go_object(entry) for entry in parse_json(line)]
    return rows


def _go_object(entry: Any) -> tuple[str, dict[str, float]]:
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()) or "Operation" not in entry:
        raise ValueError("an object of its JSON is no row of go-ycsb")
    return entry["Operation"], {name: surely(value) for name, value in entry.items() if name != "Operation"}


def _go_run(rows: dict[str, dict[str, float]], run: str, known: Known) -> list[Found]:
    found = []
    names = [name for name in rows if not name.endswith("_ERROR") and name != "TOTAL"]
    every = {name.removesuffix("_ERROR") for name in rows if name != "TOTAL"}
    broken = sum(row.get("Count", 0.0) for name, row in rows.items() if name.endswith("_ERROR") and name != "TOTAL_ERROR")
    ended = broken + sum(rows[name].get("Count", 0.0) for name in names)
    if not ended or broken > 0.5 * ended:
        raise Failed(f"{broken:.0f} of {ended:.0f} operations failed (run {run})")
    for name in [*names, *(["TOTAL"] if "TOTAL" in rows else [])]:
        row = rows[name]
        if "Count" not in row or "OPS" not in row:
            raise Unclear(f"`{name}` has no `Count` or no `OPS`: its line is cut. Give the whole output")
        errors = broken if name == "TOTAL" else rows.get(f"{name}_ERROR", {}).get("Count", 0.0)
        # some versions have failed operations in TOTAL
        n = max(row["Count"], ended) if name == "TOTAL" else row["Count"] + errors
        alone = name == "TOTAL" or ("TOTAL" not in rows and len(every) == 1)
        found.append(
            Found(
                GO,
                "all" if name == "TOTAL" else name.lower(),
                run,
                counted(row["Count"]),
                counted(errors) or None,
                offered_rps=known.offered_rps if alone else None,
                achieved_rps=row["OPS"],
                mean_ms=round(row["Avg(us)"] / 1000, 9) if "Avg(us)" in row else None,
                quantiles={q: round(row[k] / 1000, 9) for q, k in _GO_LEVELS.items() if k in row},
                step_ms=1e-3,
                span_s=row.get(_GO_TABLE) or None,
                failed=(errors, n) if errors else None,
                loop="closed",
                latency_from="actual",
            )
        )
    return found
