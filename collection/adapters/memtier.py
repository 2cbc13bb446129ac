"""memtier_benchmark: its tables, and its JSON (`--json-out-file`).

Source: redis/memtier_benchmark, `run_stats.cpp` (print, print_json, print_histogram), `memtier_benchmark.cpp` (header and
titles).

- A table stands below a title: `ALL STATS`, or with `-x` `RUN #n RESULTS`, `BEST RUN RESULTS`, `WORST RUN RESULTS` and
  `AGGREGATED
  AVERAGE RESULTS (n runs)`. Up to 1.2 it had one column `Latency` (mean, ms) and the percentiles in the distribution below.
- The tables hold rates, no counts. Counts come from the JSON, from the last progress line, from the lines `N Seconds` or `N
  Requests per client` above the table, or from the caller.
- Replies that are errors count as operations; they are told as lines `handle error response` (stderr).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from pipelines.inputs import parse_json

from .measured import Found, Known
from .words import NUMBER, Failed, Unclear, Unrecognised, number, surely, whole

TOOL = "memtier_benchmark"
MARKS = (
    re.compile(r"^Type[ \t]+Ops/sec\b", re.MULTILINE),
    re.compile(r'^[ \t]*"(?:ALL STATS|[A-Z #\d]+ RESULTS[^"]*)"\s*:', re.MULTILINE),
)
LOOKS = "a table `Type Ops/sec ...` below `ALL STATS` or `... RESULTS`, or JSON with such a key"
_TITLE = re.compile(
    r"ALL STATS|(BEST|WORST) RUN RESULTS|RUN #(\d+) RESULTS|AGGREGATED AVERAGE RESULTS \((\d+) runs\)|UNKNOWN STATS"
)
_COLUMN = re.compile(r"Avg\. Latency|p[\d.]+ Latency|\S+", re.ASCII)
_HEADER = re.compile(r"^(\d{1,18})\s+(Threads|Connections per thread|Requests per client|Seconds)\s*$", re.ASCII)
_PROGRESS = re.compile(r"^\[RUN #\d+ +100%, +\d+ secs\].*?: +(\d{1,18}) ops,", re.ASCII)
_CDF = re.compile(rf"^([A-Z][A-Z0-9_.]*)\s+({NUMBER})\s+({NUMBER})\s*$", re.ASCII)
_PERCENTILE = re.compile(r"p([\d.]+)", re.ASCII)
_LEVELS = (0.5, 0.95, 0.99, 0.999)
_ALL_MISSED = 0.99
_CDF_SLACK = 0.1
"""A line of a distribution stands for a level if it is beyond it by less than this share of what is above the level."""
_ERROR_REPLY = "handle error response"


@dataclass
class _Section:
    """One table of one run: its rows by operation, the distributions, and what was told of its requests."""

    title: str
    rows: dict[str, dict[str, float | None]] = field(default_factory=dict)
    cdf: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    closed: bool = False

    def run(self) -> str | None:
        """What the tool calls it; None: it is the only one of its start."""
        found = _TITLE.match(self.title)
        if found is None or found[0] in ("ALL STATS", "UNKNOWN STATS"):
            return None
        return found[1].lower() if found[1] else found[2] or f"average of {found[3]}"


def parse(text: str, known: Known) -> list[Found]:
    sections = _json(text) if text.lstrip().startswith("{") else _text(text)
    found: list[Found] = []
    start = 0
    seen: set[str] = set()
    many = sum(section.run() is None for section in sections)
    for section in sections:
        run = section.run()
        if run is None or run in seen or not found:
            start, seen = start + 1, set()
        if run is not None:
            seen.add(run)
        name = str(start) if run is None else run if many == 0 and start == 1 else f"{start}: {run}"
        found += _of(section, name, known)
    return found


def _text(text: str) -> list[_Section]:
    sections: list[_Section] = []
    told: dict[str, int] = {}
    title, section, columns = "", None, list[str]()
    names: dict[str, int] = {}
    in_table = in_cdf = False
    for raw in text.splitlines():
        line = raw.rstrip()
        if header := _HEADER.match(line):
            told[header[2]] = int(header[1])
        elif progress := _PROGRESS.match(line):
            told["ops"] = int(progress[1])
        elif _ERROR_REPLY in line:
            told["errors"] = told.get("errors", 0) + 1
        elif _TITLE.fullmatch(line.strip()):
            title, section, in_table, in_cdf = line.strip(), None, False, False
        elif line.startswith("Type") and "Ops/sec" in line:
            if section is not None and title != "":
                raise Unclear(f"`{title}` has two tables: parts of several runs. Give one run a file")
            section = _Section(title or "ALL STATS", told=dict(told))
            sections.append(section)
            if section.run() is None:
                told = {}
            columns, names, in_table, in_cdf = _COLUMN.findall(line), {}, True, False
        elif line.startswith("Type") and "<= msec" in line:
            in_table, in_cdf = False, section is not None
        elif line.startswith(("---", "===")):
            continue
        elif in_table and section is not None:
            words = line.split()
            if not words:
                in_table = False
            elif len(words) != len(columns):
                raise Unclear(
                    f"row `{words[0][:30]}` has {len(words)} cells, its header {len(columns)}: it is cut. Give all of it"
                )
            else:
                # two commands of one name have a row each
                names[words[0]] = names.get(words[0], 0) + 1
                name = words[0] if names[words[0]] == 1 else f"{words[0]} #{names[words[0]]}"
                section.rows[name] = dict(zip(columns[1:], map(number, words[1:]), strict=True))
                if words[0] == "Totals":
                    section.closed, in_table = True, False
        elif in_cdf and section is not None and (point := _CDF.match(line)):
            section.cdf.setdefault(point[1], []).append((surely(point[3]) / 100, surely(point[2])))
    if not sections:
        raise Unrecognised("no table with `Type` and `Ops/sec`")
    if open_one := next((s for s in sections if not s.closed), None):
        raise Unclear(f"table `{open_one.title}` has no row `Totals`: it is cut. Give the whole output")
    return sections


def _json(text: str) -> list[_Section]:
    # versions before 2.1 print what C's printf makes of no number
    document = parse_json(re.sub(r"(?<=: )-?(?:nan|inf)(?=[,\s}])", "null", text))
    if not isinstance(document, dict):
        raise Unrecognised("its JSON is no object")
    about = document.get("run information")
    told: dict[str, int] = {}
    for key, value in about.items() if isinstance(about, dict) else ():
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**18:
            told[key] = value
    sections = []
    for key, part in document.items():
        if not _TITLE.fullmatch(key) or not isinstance(part, dict):
            continue
        section = _Section(key, told=dict(told), closed=True)
        runtime = part.get("Runtime")
        if isinstance(runtime, dict) and runtime.get("Time unit", "MILLISECONDS") == "MILLISECONDS":
            span = runtime.get("Total duration")
            if isinstance(span, int | float) and 0 < span < 1e15:
                section.told["ms"] = int(span)
        for name, row in part.items():
            if isinstance(row, dict) and "Ops/sec" in row:
                section.rows[name] = _json_row(row, f"{key}: {name}")
            elif isinstance(row, list):
                section.cdf[name] = [_json_point(p, f"{key}: {name}") for p in row]
        sections.append(section)
    if not sections:
        raise Unrecognised("its JSON has no `ALL STATS` and no `... RESULTS`")
    return sections


def _json_row(row: dict[str, Any], where: str) -> dict[str, float | None]:
    flat = {**row, **(below if isinstance(below := row.get("Percentile Latencies"), dict) else {})}
    found: dict[str, float | None] = {}
    for name, value in flat.items():
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            if name in ("Ops/sec", "Count", "Latency", "Average Latency"):
                raise ValueError(f"{where}: {name} is {str(value)[:40]!r}")
            continue
        level = _PERCENTILE.fullmatch(name)
        found[f"p{surely(level[1]):g} Latency" if level else name] = None if value is None else float(value)
    return found


def _json_point(point: Any, where: str) -> tuple[float, float]:
    if not isinstance(point, dict):
        raise ValueError(f"{where}: a point of the distribution is no object")
    at, share = point.get("<=msec"), point.get("percent")
    if isinstance(at, bool) or isinstance(share, bool) or not isinstance(at, int | float) or not isinstance(share, int | float):
        raise ValueError(f"{where}: a point of the distribution has no `<=msec` or `percent`")
    return float(share) / 100, float(at)


def _of(section: _Section, run: str, known: Known) -> list[Found]:
    rows = section.rows
    # the last progress line is the last run's
    told = section.told if section.run() is None else {k: v for k, v in section.told.items() if k != "ops"}
    whole_row = rows.get("Totals")
    if whole_row is None:
        raise Unclear(f"`{section.title}` has no row `Totals`: it is cut. Give the whole output")
    rate = whole_row.get("Ops/sec")
    if not rate:
        raise Failed("no request was answered (Totals: 0 Ops/sec)")
    for name, row in rows.items():
        hits, missed = row.get("Hits/sec") or 0.0, row.get("Misses/sec") or 0.0
        if name == "Gets" and missed > 0 and missed >= _ALL_MISSED * (hits + missed):
            raise Failed(f"{100 * missed / (hits + missed):.4g} % of the gets missed: the keys were not stored; load them first")
    parts = sum(row.get("Ops/sec") or 0.0 for name, row in rows.items() if name != "Totals")
    if abs(parts - rate) > 0.01 * rate + 0.01 * len(rows):
        raise Unclear(
            f"its operations come to {parts:g} a second, its totals to {rate:g}: parts of several runs. Give one run a file"
        )
    if "ops" in told and told.get("Seconds") and abs(told["ops"] / told["Seconds"] - rate) > 0.1 * rate:
        raise Unclear(f"{told['ops']} operations in {told['Seconds']} s are no {rate:g} a second: parts of several runs")
    span = _span_s(told, rate, known)
    answered = [name for name, row in rows.items() if row.get("Ops/sec")]
    only = len([n for n in answered if n != "Totals"]) == 1
    found = []
    for name in answered:
        row = rows[name]
        ops = row["Ops/sec"] or 0.0
        count = row.get("Count")
        if count is None and span is not None:
            count = ops * span
        misses = row.get("Misses/sec") if name in ("Gets", "Totals") else None
        moved = (row.get("MOVED/sec") or 0.0) + (row.get("ASK/sec") or 0.0)
        errors = float(told.get("errors", 0)) if name == "Totals" or only else 0.0
        errors = errors + (row.get("Connection Errors") or 0.0)
        operation = _operation(name)
        cdf = sorted(section.cdf.get(operation.upper(), []))
        quantiles = {level: _quantile(row, cdf, level) for level in _LEVELS}
        mean = row.get("Avg. Latency", row.get("Average Latency", row.get("Latency")))
        found.append(
            Found(
                TOOL,
                operation,
                run,
                whole(count),
                whole(errors + moved * (span or 0.0)) if errors or moved else None,
                misses=None if misses is None or span is None else whole(misses * span),
                offered_rps=known.offered_rps if name == "Totals" or only else None,
                achieved_rps=max(0.0, ops - moved),
                mean_ms=mean,
                quantiles={level: value for level, value in quantiles.items() if value is not None},
                cdf=cdf,
                step_ms=1e-3,
                span_s=span,
                failed=_failed(count, errors, ops, moved),
                loop="closed",
                latency_from="actual",
                why_no_count="the table has no counts: give the whole output (line `N Seconds`), the JSON, or --duration-s",
            )
        )
    return found


def _failed(count: float | None, errors: float, ops: float, moved: float) -> tuple[float, float] | None:
    """(failed, ended), of requests if they are known, else of rates."""
    if count:
        share = errors / count + moved / ops
        return (min(share, 1.0), 1.0) if share else None
    return (moved, ops) if moved else None


def _operation(name: str) -> str:
    base, _, number_of = name.partition(" #")
    word = {"Sets": "set", "Gets": "get", "Waits": "wait", "Totals": "all"}.get(base) or base.lower().removesuffix("s")
    return f"{word} #{number_of}" if number_of else word


def _span_s(told: dict[str, int], rate: float, known: Known) -> float | None:
    if "ms" in told:
        return told["ms"] / 1000
    if "ops" in told:
        return told["ops"] / rate
    if "Seconds" in told:
        return float(told["Seconds"])
    if {"Requests per client", "Threads", "Connections per thread"} <= told.keys():
        return told["Requests per client"] * told["Threads"] * told["Connections per thread"] / rate
    return known.duration_s


def _quantile(row: dict[str, float | None], cdf: list[tuple[float, float]], level: float) -> float | None:
    column = f"p{100 * level:g} Latency"
    if column in row:
        return row[column]
    at = next((point for point in cdf if point[0] >= level - 1e-9), None)
    return None if at is None or at[0] - level > _CDF_SLACK * (1 - level) else at[1]
