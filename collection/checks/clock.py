"""Time: samples stand on the campaign's grid, and rates are counts over an interval.

Nothing in a row is a time of day: `t_ms` counts from the start of the case, by the host's monotonic clock. A clock that jumps all
the same shows in three ways: `t_ms` leaves its grid; `count` is not `achieved_rps` x interval any more; every rate of one sample
is off by one factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import polars as pl

from collection.findings import some

from .cases import REQUESTS, Sampling

# a length of time: the host's scheduler may be late by some milliseconds
_LENGTH = 1.25
_RATES = ("llc_misses_per_s", "mbl_mbps", "cpu_usage_cores")
# how far a sample's rates must be off their case's, all alike
_OFF = 1.3
_ALIKE = 1.15
# of RPS asked for; and standard deviations of a Poisson count, times what bursts add
_RATE = 1.15
_DEVIATIONS = 12.0
Found = tuple[str, tuple[str, ...]]


def shard(frame: pl.DataFrame, table: pl.DataFrame, sampling: Sampling | None) -> Iterator[Found]:
    """What is wrong, and the cases that it concerns."""
    if sampling is not None:
        yield from _grid(frame, sampling)
        yield from _counts(frame, sampling)
    yield from _rates(frame, table)
    yield from _offered(table)


def _grid(frame: pl.DataFrame, sampling: Sampling) -> Iterator[Found]:
    """Samples begin when a service has settled (on a real machine a late window may put that off), and then come step by step."""
    step = sampling.interval_ms
    number = pl.int_range(pl.len()).over("case_id")
    first = pl.col("t_ms").first().over("case_id").clip(step)
    off = frame.select("case_id", "t_ms", (first + number * step).alias("want")).filter(pl.col("t_ms") != pl.col("want"))
    if off.height:
        ids = off["case_id"].unique(maintain_order=True).to_list()
        _, t, want = off.row(0)
        yield (
            f"clock: column t_ms of {some(ids, 'case')}: {t} stands where {want} must (every {step} ms after the first): the "
            "clock jumped, or samples are lost",
            tuple(ids),
        )


def _counts(frame: pl.DataFrame, sampling: Sampling) -> Iterator[Found]:
    """A row's count is of its interval, or of the whole case (docs/sweep-output.md)."""
    # a client that fell behind counts as it can, and its rows teach nothing
    believed = pl.col("verdict") != "client-limited"
    rows = frame.lazy().filter(pl.col("count") >= REQUESTS, pl.col("achieved_rps") > 0, believed)
    length = pl.col("count") / pl.col("achieved_rps") * 1000
    one = length / sampling.interval_ms
    fits = one.is_between(1 / _LENGTH, _LENGTH) | (one / sampling.samples).is_between(1 / _LENGTH, _LENGTH)
    off = rows.select("case_id", length.alias("length"), fits.alias("fits")).filter(~pl.col("fits")).collect()
    if off.height:
        ids = off["case_id"].unique(maintain_order=True).to_list()
        yield (
            f"clock: columns count and achieved_rps of {some(ids, 'case')} are of {off['length'][0]:.0f} ms, an interval has "
            f"{sampling.interval_ms}: the clock jumped",
            tuple(ids),
        )


def _rates(frame: pl.DataFrame, table: pl.DataFrame) -> Iterator[Found]:
    """Samples whose rates are all off by one factor, while what is no rate (ipc) stays."""
    present = [name for name in _RATES if table[name].null_count() < table.height]
    if len(present) < 2:
        return
    screen = pl.any_horizontal(
        (pl.col(f"high_{present[0]}") > _OFF * pl.col(present[0])) | (pl.col(f"low_{present[0]}") * _OFF < pl.col(present[0]))
    )
    some_cases = table.filter(screen & (pl.col("samples") >= 3)).select(
        "case_id", *(pl.col(n).alias(f"mid_{n}") for n in [*present, "ipc"])
    )
    if some_cases.is_empty():
        return
    ratios = [pl.col(n) / pl.col(f"mid_{n}") for n in present]
    least, most = pl.min_horizontal(ratios), pl.max_horizontal(ratios)
    steady = (pl.col("ipc") / pl.col("mid_ipc")).is_between(1 / _ALIKE, _ALIKE).fill_null(True)
    off = (
        frame.lazy()
        .join(some_cases.lazy(), on="case_id")
        .filter(((least > _OFF) | (most < 1 / _OFF)) & (most < least * _ALIKE) & steady)
        .select("case_id", "t_ms", least.alias("factor"))
        .collect()
    )
    if off.height:
        ids = off["case_id"].unique(maintain_order=True).to_list()
        yield (
            f"clock: columns {', '.join(present)} of {some(ids, 'case')} are {off['factor'][0]:.2g} times those of the rest of "
            f"the case, all alike, at t_ms {off['t_ms'][0]}: the interval was not as long as it says",
            tuple(ids),
        )


def _offered(table: pl.DataFrame) -> Iterator[Found]:
    """A service that keeps up completes what is offered."""
    share = pl.col("achieved_rps") / pl.col("rps")
    slack = pl.lit(_DEVIATIONS) / pl.col("requests").clip(1.0).sqrt() + math.log(_RATE)
    off = table.filter(pl.col("valid") & (pl.col("requests") >= REQUESTS) & (share.log().abs() > slack)).select(
        "case_id", "rps", "achieved_rps"
    )
    if off.height:
        ids = off["case_id"].to_list()
        _, rps, achieved = off.row(0)
        yield (
            f"clock: column achieved_rps of {some(ids, 'case')} is {achieved:.6g}, {rps:.6g} were offered and the verdict is "
            "valid: clock or load generator ran at another speed",
            tuple(ids),
        )
