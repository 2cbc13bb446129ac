"""Time: samples stand on the campaign's grid, and rates are counts over an interval.

Nothing in a row is a time of day: `t_ms` counts from the start of the case, by the host's monotonic clock. A clock that jumps all
the same shows in three ways: `t_ms` leaves its grid; `count` is not `achieved_rps` x interval any more; every rate of one sample
is off by one factor, `achieved_rps` among them, and its count is not. (Rates that follow the requests of their interval all move
alike, too, and with them the count: that is chance, or a burst.)
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
# what a load generator's datagram stands for on a real machine; one that arrives late counts in a later interval
_WINDOW_MS = 100
# how far a sample's rates must be off their case's, all alike
_OFF = 1.3
_ALIKE = 1.15
# of RPS asked for; and standard deviations of a Poisson count, times what bursts add
_RATE = 1.15
_DEVIATIONS = 12.0
# of a Poisson count, for a rate that follows the requests of an interval
_CHANCE = 8.0
Found = tuple[str, tuple[str, ...]]


def shard(frame: pl.DataFrame, table: pl.DataFrame, sampling: Sampling | None) -> Iterator[Found]:
    """What is wrong, and the cases that it concerns."""
    if sampling is not None:
        yield from _grid(frame, sampling)
        yield from _counts(frame, sampling)
    yield from _rates(frame, table, sampling)
    yield from _offered(table)


def _grid(frame: pl.DataFrame, sampling: Sampling) -> Iterator[Found]:
    """Samples begin after the warm-up (on a real machine once settled, or a late window is in), then come step by step."""
    step = sampling.interval_ms
    number = pl.int_range(pl.len()).over("case_id")
    settled = pl.col("t_ms").first().over("case_id").clip(step)
    first = pl.lit(sampling.warmup_ms + step, pl.Int64) if sampling.virtual else settled
    off = frame.select("case_id", "t_ms", (first + number * step).alias("want")).filter(pl.col("t_ms") != pl.col("want"))
    if off.height:
        ids = off["case_id"].unique(maintain_order=True).to_list()
        _, t, want = off.row(0)
        yield (
            f"clock: column t_ms of {some(ids, 'case')}: {t} stands where {want} must (every {step} ms after the "
            f"{'warm-up' if sampling.virtual else 'first'}): the clock jumped, or samples are lost",
            tuple(ids),
        )


def _counts(frame: pl.DataFrame, sampling: Sampling) -> Iterator[Found]:
    """A row's count is of its interval, or of its case as far as windows go (docs/sweep-output.md); a late one is in a later row.

    So whole windows may be missing from a row and be in another; together they are of no more time than the case took.
    """
    # a client that fell behind counts as it can, and its rows teach nothing
    believed = pl.col("verdict") != "client-limited"
    length = pl.col("count") / pl.col("achieved_rps") * 1000
    fits = pl.any_horizontal(
        (length / ms).is_between(1 / _LENGTH, _LENGTH) for ms in (sampling.interval_ms, sampling.interval_ms * sampling.samples)
    )
    if not sampling.virtual:
        windows = length / _WINDOW_MS
        whole = ((windows - windows.round()).abs() < 0.01) & (windows > 0.99)
        fits |= whole & (length.sum().over("case_id") < sampling.interval_ms * sampling.samples * _LENGTH + _WINDOW_MS)
        # a load generator that tells the feed more rarely than once an interval: a part of the case, the same in all its rows
        one = pl.all_horizontal(pl.col(n).n_unique().over("case_id") == 1 for n in ("count", "achieved_rps"))
        most = sampling.interval_ms * sampling.samples * _LENGTH
        fits |= one & length.is_between(sampling.interval_ms / _LENGTH, most)
    taken = ((pl.col("count") >= REQUESTS) & (pl.col("achieved_rps") > 0) & believed).alias("taken")
    rows = frame.lazy().select("case_id", length.alias("length"), fits.alias("fits"), taken)
    off = rows.filter("taken", ~pl.col("fits")).collect()
    if off.height:
        ids = off["case_id"].unique(maintain_order=True).to_list()
        yield (
            f"clock: columns count and achieved_rps of {some(ids, 'case')} are of {off['length'][0]:.0f} ms, an interval has "
            f"{sampling.interval_ms}: the clock jumped",
            tuple(ids),
        )


def _rates(frame: pl.DataFrame, table: pl.DataFrame, sampling: Sampling | None) -> Iterator[Found]:
    """Samples whose rates are all off by one factor, while what is no rate (ipc, count) stays.

    A clock that jumps by three seconds in an interval of one quarters every rate of that sample, also `achieved_rps`: what was
    counted is divided by four. Where only the counters moved, the service did more or less than usual.
    """
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
    mid = {n: pl.col(n).median().over("case_id") for n in ("achieved_rps", "count")}
    ratios = [*(pl.col(n) / pl.col(f"mid_{n}") for n in present), pl.col("achieved_rps") / mid["achieved_rps"]]
    least, most = pl.min_horizontal(ratios), pl.max_horizontal(ratios)
    steady = (pl.col("ipc") / pl.col("mid_ipc")).is_between(1 / _ALIKE, _ALIKE).fill_null(True)
    counted = ratios[-1].is_not_null() & (pl.col("count") / mid["count"]).is_between(1 / _ALIKE, _ALIKE)
    requests = pl.col("rps") * (sampling.interval_ms / 1000 if sampling else 1.0)
    by_chance = least.log().abs() <= _CHANCE / requests.sqrt()
    off = (
        frame.lazy()
        .join(some_cases.lazy(), on="case_id")
        .filter(((least > _OFF) | (most < 1 / _OFF)) & (most < least * _ALIKE) & steady & counted & ~by_chance)
        .select("case_id", "t_ms", least.alias("factor"))
        .collect()
    )
    if off.height:
        ids = off["case_id"].unique(maintain_order=True).to_list()
        yield (
            f"clock: columns {', '.join(present)} and achieved_rps of {some(ids, 'case')} are {off['factor'][0]:.2g} times those "
            f"of the rest of the case, all alike, at t_ms {off['t_ms'][0]}, and count is not: the interval was not as long as "
            "it says",
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
