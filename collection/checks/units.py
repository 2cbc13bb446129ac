"""A column in the wrong unit: off by a constant factor in some shards, or in all.

Some quantities hardly depend on the allocation: instructions a request, bytes a cache miss, CPU time a request, frequency,
memory of a service. A shard is compared in each of them with what other shards have of the same service at the nearest loads
and thread counts. What is off in all shards alike is found by what no machine does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from models.features import MOST_MBPS_A_CORE

from .cases import REQUESTS

# how far a shard may be from the nearest others, as a factor. Undisturbed data: below 2 for the first four, 4 for the others.
_FAR = 5.0
_FAR_STEADY = 3.0
# loads near each other and yet far apart: which planes a reference is made of
_NEAREST = 5
_LEAST_OTHERS = 3
_LINE_BYTES = 64
# bytes that travel for each miss, in lines: prefetching and write-backs add, events that count more than lines take away
_LINES_A_MISS = (0.125, 12.0)
_MISSES_AN_INSTRUCTION = 0.2
# requests in the house for each busy core
_LEAST_IN_HOUSE = 0.02
_NOBODY = 1e-12  # in place of 0, for a factor that can be told
# neighbours' bandwidth against what they need when they are measured themselves: a neighbour that is squeezed needs less
_FAR_NEIGHBOURS = (1 / 300, 30.0)
# traffic by misses that no bandwidth counter can overlook, as the node has it (scheduler/linux/src/resctrl/monitor.rs)
_DEAD_MBPS = 10.0
_FACTORS = {
    8: "bits for bytes",
    60: "minutes for seconds",
    64: "cache lines for bytes",
    100: "per cent for a share",
    1000: "a thousand, or 1024: k for M",
    4096: "pages for bytes",
    1e6: "a million, or 2^20",
    1e9: "nano for none",
}
_NAMED_WITHIN = 1.35


@dataclass(frozen=True)
class _Entry:
    """Medians of one service at one load in one shard, as natural logarithms; NaN where unknown."""

    file: str
    rps: float
    threads: float
    values: dict[str, float]


_LN = ("ipc", "core_freq_mhz", "virt_mem_mb", "res_mem_mb")


def whole(table: pl.DataFrame, hosts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(file, what is wrong)."""
    entries = _entries(table)
    off: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for service, own in entries.items():
        for file, far in _against_others(own).items():
            for column, factor in far.items():
                off[column, "of the same service at the nearest loads in other shards"].setdefault(f"{file}\0{service}", factor)
    named = {key.split("\0")[0] for by in off.values() for key in by}
    for file, columns, said, factor in _impossible(table):
        if file not in named:
            off[columns, said].setdefault(f"{file}\0", factor)
    for file, factor in _neighbours(table, entries):
        off["nb_mbl_mbps", "that these neighbours need when they are measured themselves"].setdefault(f"{file}\0", factor)
    for (column, than), by in sorted(off.items()):
        yield from _told(column, than, by, hosts)
    yield from _dead(table, hosts)


def _told(column: str, than: str, by: dict[str, float], hosts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """One finding for shards of one host that are off alike."""
    groups: dict[tuple[str, int], list[tuple[str, str, float]]] = defaultdict(list)
    for key, factor in by.items():
        file, service = key.split("\0")
        groups[hosts.get(file, ""), round(math.log(factor) / math.log(2))].append((file, service, factor))
    for (host, _), found in sorted(groups.items()):
        found.sort()
        file, factor = found[0][0], float(np.exp(np.median([math.log(f) for _, _, f in found])))
        services = sorted({s for _, s, _ in found if s})
        files = len({f for f, _, _ in found})
        many = f" (and in {files - 1:,} other shards)" if files > 1 else ""
        where = f" on host {host}" if host else ""
        of = f" of {', '.join(services)}" if services else ""
        yield file, f"column {column}{of}{where}{many} is {_factor(factor)} what is seen {than}: wrong unit"


def _factor(factor: float) -> str:
    size = max(factor, 1 / factor)
    near = [(abs(math.log(size / f)), f) for f in _FACTORS if max(size / f, f / size) < _NAMED_WITHIN]
    much = f"{factor:,.4g} times" if factor >= 1 else f"1/{1 / factor:,.4g} of"
    return f"{much} ({_FACTORS[min(near)[1]]})," if near else much


def _entries(table: pl.DataFrame) -> dict[str, list[_Entry]]:
    found = (
        table.lazy()
        # what is no number of threads or requests is told as such (rows.py)
        .filter(pl.col("requests") >= REQUESTS, pl.col("rps") > 0, pl.col("threads") > 0)
        .group_by("service", "file", "rps", "threads")
        .agg(
            *(pl.col(name).median() for name in _LN),
            # sums: single cases of few requests say little
            *(
                pl.col(name).sum().alias(f"sum_{name}")
                for name in ("cpu_usage_cores", "llc_misses_per_s", "mbl_mbps", "achieved_rps")
            ),
            (pl.col("cpu_usage_cores") * pl.col("ipc") * pl.col("core_freq_mhz")).sum().alias("sum_instructions"),
        )
        .sort("service", "file", "rps", "threads")
        .collect()
    )
    entries: dict[str, list[_Entry]] = defaultdict(list)
    for row in found.iter_rows(named=True):
        done = row["sum_achieved_rps"]
        values = {name: _ln(row[name]) for name in _LN}
        values["cpu"] = _ln(row["sum_cpu_usage_cores"]) - _ln(done)
        values["instructions"] = _ln(row["sum_instructions"]) - _ln(done)
        values["misses"] = _ln(row["sum_llc_misses_per_s"]) - _ln(done)
        values["mbl"] = _ln(row["sum_mbl_mbps"]) - _ln(done)
        entries[row["service"]].append(_Entry(row["file"], row["rps"], row["threads"], values))
    return entries


def _ln(value: float | None) -> float:
    return math.log(value) if value and value > 0 else math.nan


def _against_others(own: list[_Entry]) -> dict[str, dict[str, float]]:
    """Of each file: columns that are off, and by which factor."""
    place = np.array([(math.log(e.rps), math.log(e.threads)) for e in own])
    files = np.array([e.file for e in own])
    values = {name: np.array([e.values[name] for e in own]) for name in own[0].values}
    far: dict[str, dict[str, float]] = {}
    for file in dict.fromkeys(files):
        mine, others = np.flatnonzero(files == file), np.flatnonzero(files != file)
        if len(set(files[others])) < _LEAST_OTHERS:
            continue
        distance = np.abs(place[mine, None, :] - place[None, others, :]).sum(axis=2)
        nearest = others[np.argsort(distance, axis=1, kind="stable")[:, :_NEAREST]]
        away = {}
        for name, v in values.items():
            step = v[mine] - _median(v[nearest])
            known = step[np.isfinite(step)]
            away[name] = float(np.median(known)) if known.size else 0.0
        found = _columns(away)
        if found:
            far[file] = {column: math.exp(d) for column, d in found.items()}
    return far


def _median(v: np.ndarray) -> np.ndarray:
    out = np.full(len(v), math.nan)
    some = np.isfinite(v).sum(axis=1) >= _LEAST_OTHERS
    out[some] = np.nanmedian(v[some], axis=1)
    return out


def _columns(away: dict[str, float]) -> dict[str, float]:
    """Which columns explain the distances."""
    far, steady = math.log(_FAR), math.log(_FAR_STEADY)
    found = {name: away[name] for name in ("ipc", "core_freq_mhz") if abs(away[name]) > steady}
    found |= {name: away[name] for name in ("virt_mem_mb", "res_mem_mb") if abs(away[name]) > far}
    if abs(away["cpu"]) > far and (not away["instructions"] or abs(away["instructions"] - away["cpu"]) < steady):
        found["cpu_usage_cores"] = away["cpu"]
    # bytes a miss hardly move; the one of the two that moved by as much is the culprit
    line = away["mbl"] - away["misses"]
    if abs(line) > steady:
        column, by = ("mbl_mbps", away["mbl"]) if abs(away["mbl"]) > abs(away["misses"]) else ("llc_misses_per_s", away["misses"])
        found[column] = by
    return found


def _dead(table: pl.DataFrame, hosts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Shards whose bandwidth counter stood still: some processors count nothing for some groups, without an error."""
    by_misses = pl.col("llc_misses_per_s") * _LINE_BYTES / 1e6
    found = (
        table.lazy()
        .filter(by_misses >= _DEAD_MBPS)
        .group_by("file")
        .agg(pl.col("mbl_mbps").median(), by_misses.median().alias("by_misses"))
        .filter(pl.col("mbl_mbps") == 0)
        .select(pl.col("file").cast(pl.String), "by_misses")
        .sort("file")
        .collect()
    )
    groups: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for file, mbps in found.iter_rows():
        groups[hosts.get(file, "")].append((file, mbps))
    for host, shards in sorted(groups.items()):
        file, mbps = shards[0]
        many = f" (and in {len(shards) - 1:,} other shards)" if len(shards) > 1 else ""
        where = f" on host {host}" if host else ""
        yield (
            file,
            f"column mbl_mbps{where}{many} is 0 while the cache misses (llc_misses_per_s x {_LINE_BYTES} B make {mbps:,.4g} "
            "MB/s): the bandwidth counter stood still",
        )


def _impossible(table: pl.DataFrame) -> Iterator[tuple[str, str, str, float]]:
    """(file, column, what is said of it, factor) of whole shards that are like no machine."""
    mbl, misses, cpu = pl.col("mbl_mbps"), pl.col("llc_misses_per_s"), pl.col("cpu_usage_cores")
    busy = pl.col("requests") >= REQUESTS
    found = (
        table.lazy()
        .filter(misses > 0, cpu > 0)
        .group_by("file")
        .agg(
            (mbl * 1e6 / (misses * _LINE_BYTES)).median().alias("lines"),
            (mbl / cpu).median().alias("mbps"),
            (misses / (cpu * pl.col("ipc") * pl.col("core_freq_mhz") * 1e6)).median().alias("rate"),
        )
        .sort("file")
        .collect()
    )
    low, high = _LINES_A_MISS
    for file, lines, mbps, rate in found.iter_rows():
        # 0 is no unit: a counter that stood still (`_dead`), or less than it counts in
        if lines and not low <= lines <= high:
            said = f"that misses x {_LINE_BYTES} B make; one of the two columns"
            much = lines > high
            yield (
                file,
                "mbl_mbps (or llc_misses_per_s)" if much else "llc_misses_per_s (or mbl_mbps)",
                said,
                lines if much else 1 / lines,
            )
        elif mbps is not None and mbps > MOST_MBPS_A_CORE:
            yield (
                file,
                "cpu_usage_cores (or mbl_mbps)",
                f"with at most {MOST_MBPS_A_CORE:,.0f} MB/s a busy core",
                MOST_MBPS_A_CORE / mbps,
            )
        elif rate is not None and rate > _MISSES_AN_INSTRUCTION:
            said = f"with at most {_MISSES_AN_INSTRUCTION:g} misses an instruction"
            yield file, "cpu_usage_cores (or ipc, core_freq_mhz, llc_misses_per_s)", said, _MISSES_AN_INSTRUCTION / rate
    served = pl.col("latency_mean_ms") / 1000 * pl.col("achieved_rps") / cpu
    slow = (
        table.lazy()
        .filter(pl.col("valid"), busy, cpu > 0)
        .group_by("file")
        .agg(served.median().alias("x"))
        .sort("file")
        .collect()
    )
    for file, x in slow.iter_rows():
        # a request is in the house while a core works for it; few services use several for one
        if x is not None and x < _LEAST_IN_HOUSE:
            yield (
                file,
                "cpu_usage_cores (or the latencies)",
                "that requests in the house can use (latency_mean_ms x achieved_rps)",
                1 / max(x, _NOBODY),
            )


def _neighbours(table: pl.DataFrame, entries: dict[str, list[_Entry]]) -> Iterator[tuple[str, float]]:
    """Shards whose neighbours draw what they never draw when they are measured themselves."""
    need = {s: float(np.nanmedian(v)) for s, es in entries.items() if np.isfinite(v := [e.values["mbl"] for e in es]).any()}
    seen = (
        table.lazy()
        .filter(pl.col("beside").cast(pl.String) != "", pl.col("nb_mbl_mbps") > 0)
        .group_by("file", "beside")
        .agg(pl.col("nb_mbl_mbps").median())
        .sort("file", "beside")
        .collect()
    )
    away: dict[str, list[float]] = defaultdict(list)
    for file, beside, mbps in seen.iter_rows():
        parts = [p.rsplit(":", 3) for p in beside.split(",")]
        if all(p[0] in need for p in parts):
            want = sum(math.exp(need[p[0]]) * float(p[3]) for p in parts)
            if want > 0:
                away[file].append(math.log(mbps / want))
    low, high = _FAR_NEIGHBOURS
    for file, steps in away.items():
        factor = math.exp(float(np.median(steps)))
        if not low <= factor <= high:
            yield file, factor
