"""mutilate, and mcperf (memcache-perf), its fork: latencies in us by operation, then the rate of all.

Source: leverich/mutilate, `ConnectionStats.h` and the end of `main` in mutilate.cc; shaygalon/memcache-perf, the same files.

- `--scan` and mcperf's `--search` print a row a rate, with QPS at its end and no count.
- The total is a 32-bit number: beyond 2^31 requests it is negative and rate and count are lost.
- One total is printed of reads and updates together. Where both were sent the count of each is unknown, unless the share is told.
- With `--skip` requests are left out while those before them are late: what the server would have done with them is unknown.
- With agents (`-a`) the rate and the total are of all of them, the latencies of the first alone: the file does not show it.
"""

from __future__ import annotations

import re

from .measured import Found, Known
from .words import NUMBER, Failed, Unclear, Unrecognised, ms, number, once, surely, whole

TOOL = "mutilate"
MARKS = (re.compile(r"^#type[ \t]+avg\b", re.MULTILINE), re.compile(r"^Total QPS =", re.MULTILINE))
LOOKS = (
    "a table that begins with `#type avg`, with rows `read` or `update`, and `Total QPS = R (N / Ss)` (or columns `QPS target`)"
)
_OPERATIONS = ("read", "update")
_TOTAL = re.compile(rf"^Total QPS = ({NUMBER}) \((-?\d{{1,18}}) / ({NUMBER})s\)", re.ASCII)
_MISSES = re.compile(r"^Misses = (\d{1,18}) \((\S{1,40})%\)", re.ASCII)
_VALUE = re.compile(rf"{NUMBER}|-?nan", re.ASCII)
_LEVELS = {0.5: ("50th", "p50"), 0.95: ("95th", "p95"), 0.99: ("99th", "p99"), 0.999: ("99.9th", "p999", "p99.9")}
_SKIPPED = re.compile(r"^Skipped TXs = (\d{1,18}) \(", re.ASCII)
_ALL_MISSED = 99.0


class _Table:
    """A header and what belongs to it."""

    def __init__(self, header: list[str]) -> None:
        self.header = header
        self.rows: dict[str, dict[str, float | None]] = {}
        self.points: list[dict[str, float | None]] = []
        self.totals: list[tuple[float, float, float]] = []
        self.misses: tuple[int | None, float | None] = (None, None)
        self.skipped = 0

    def add(self, words: list[str]) -> None:
        if len(words) != len(self.header) + 1:
            raise Unclear(
                f"row `{words[0]}` has {len(words) - 1} values, its header {len(self.header)}: it is cut. Give all of it"
            )
        row = dict(zip(self.header, map(number, words[1:]), strict=True))
        if "QPS" in self.header:
            self.points.append(row)
        elif words[0] in self.rows:
            raise Unclear(f"row `{words[0]}` stands there twice below one header: parts of several runs. Give one run a file")
        else:
            self.rows[words[0]] = row


def parse(text: str, known: Known) -> list[Found]:
    tables: list[_Table] = []
    for line in text.splitlines():
        words = line.split()
        if words and words[0] == "#type":
            tables.append(_Table(words[1:]))
        elif words and words[0] in _OPERATIONS and len(words) > 3:
            if not tables:
                if not _VALUE.fullmatch(words[1]):
                    continue  # a message
                raise Unclear(f"row `{words[0]}` has no header `#type` above it. Give the whole output")
            tables[-1].add(words)
        elif line.startswith("Total QPS"):
            if (total := _TOTAL.match(line)) is None:
                raise Unclear(f"line `{line[:60]}` is cut. Give the whole output")
            if not tables:
                raise Unclear("`Total QPS` has no table above it. Give the whole output")
            tables[-1].totals.append((surely(total[1]), surely(total[2]), surely(total[3])))
        elif tables and (missed := _MISSES.match(line)):
            tables[-1].misses = (int(missed[1]), number(missed[2]))
        elif tables and (skipped := _SKIPPED.match(line)):
            tables[-1].skipped = int(skipped[1])
    if not tables:
        raise Unrecognised("no table that begins with `#type`")
    found: list[Found] = []
    runs = 0
    for table in tables:
        more = _points(table, known, runs) if "QPS" in table.header else _run(table, known, str(runs + 1))
        found += more
        runs += len({f.run for f in more})
    return found


def _points(table: _Table, known: Known, runs: int) -> list[Found]:
    if not table.points:
        raise Failed("a table with `QPS` has no row: the run was ended before its first rate")
    found = []
    for i, row in enumerate(table.points):
        qps = row.get("QPS")
        if not row.get("avg") or not qps:
            raise Failed(f"rate {i + 1} of its scan measured no request")
        share = 1.0 if known.update_frac is None else 1 - known.update_frac
        count = None if known.duration_s is None else whole(qps * share * known.duration_s)
        found.append(
            Found(
                TOOL,
                "read",
                str(runs + i + 1),
                count,
                offered_rps=row.get("target"),
                achieved_rps=qps,
                mean_ms=ms(row["avg"]),
                quantiles=_quantiles(row),
                step_ms=1e-4,
                span_s=known.duration_s,
                loop="open" if row.get("target") else None,
                latency_from="actual",
                why_no_count="a scan prints no count: give what `--time` was (5 unless told) as --duration-s",
            )
        )
    return found


def _run(table: _Table, known: Known, run: str) -> list[Found]:
    once(len(table.totals), "`Total QPS`")
    if not table.totals:
        raise Unrecognised(f"no line `Total QPS` below table {run}")
    if not table.rows:
        raise Unrecognised(f"no row `read` or `update` in table {run}")
    qps, requests, seconds = table.totals[0]
    if qps < 0 or requests < 0:
        raise Failed(f"`Total QPS = {qps:g}`: its 32-bit count of requests ran over 2^31; make the run shorter")
    if seconds > 0 and abs(requests / seconds - qps) > (0.01 + 0.1 / seconds) * max(qps, 1.0):
        raise Failed(
            f"{requests:.0f} requests in {seconds:g} s are no {qps:g} a second: its 32-bit count ran over; make the run shorter"
        )
    if not requests:
        raise Failed("no request was answered (`Total QPS` has 0 requests)")
    misses, missed_pct = table.misses
    skipped = f"{table.skipped} requests were not sent, as those before them were late (--skip)" if table.skipped else None
    asked = {operation: row for operation, row in table.rows.items() if row.get("avg")}
    if not asked:
        raise Failed("all latencies are 0: nothing was measured")
    if "read" in asked and missed_pct is not None and missed_pct >= _ALL_MISSED:
        raise Failed(f"{missed_pct:g} % of the reads missed: the keys were not stored; load them first (without --noload)")
    found = []
    for operation, row in asked.items():
        share: float | None = 1.0
        if len(asked) > 1:
            frac = known.update_frac
            share = None if frac is None else frac if operation == "update" else 1 - frac
        found.append(
            Found(
                TOOL,
                operation,
                run,
                None if share is None else whole(requests * share),
                misses=misses if operation == "read" else None,
                offered_rps=known.offered_rps if len(asked) == 1 else None,
                achieved_rps=None if share is None else qps * share,
                mean_ms=ms(row["avg"]),
                quantiles=_quantiles(row),
                step_ms=1e-4,
                span_s=seconds or None,
                latency_from="actual",
                overloaded=skipped,
                why_no_count="reads and updates are counted as one: give the share of updates as --update-frac",
            )
        )
    if len(asked) > 1:
        found.append(
            Found(
                TOOL,
                "all",
                run,
                whole(requests),
                misses=misses,
                offered_rps=known.offered_rps,
                achieved_rps=qps,
                span_s=seconds or None,
                overloaded=skipped,
            )
        )
    return found


def _quantiles(row: dict[str, float | None]) -> dict[float, float | None]:
    found: dict[float, float | None] = {}
    for level, names in _LEVELS.items():
        name = next((n for n in names if n in row), None)
        if name is not None:
            found[level] = ms(row[name])
    return found
