"""The rows of a shard, summed up case by case: what the other checks look at."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from pipelines import samples

# of a percentile that may be believed (docs/sweep-output.md)
REQUESTS = 100
# columns whose course within a case is looked at
COURSE = (
    "ipc",
    "llc_misses_per_s",
    "mbl_mbps",
    "cpu_usage_cores",
    "core_freq_mhz",
    "nb_mbl_mbps",
    "latency_p50_ms",
    "latency_p99_ms",
)
_VALID = pl.col("verdict") == "valid"


@dataclass(frozen=True)
class Sampling:
    """A campaign's [sampling], and whether a virtual server made it: that has neither settling nor late windows."""

    warmup_ms: int
    interval_ms: int
    samples: int
    virtual: bool = False


def _sampling_error() -> pl.Expr:
    """Standard error of ln p99 from its requests, with an exponential tail; the scatter of few samples may be small by chance."""
    tail = (pl.col("latency_p99_ms") - pl.col("latency_p95_ms")).median() / math.log(5) / pl.col("latency_p99_ms").median()
    return (tail * (99 / pl.col("count").sum().clip(1)).sqrt()).fill_null(0.0).fill_nan(0.0)


def table(frame: pl.DataFrame, sampling: Sampling | None) -> pl.DataFrame:
    """One row a case, in the order of the shard.

    Columns: case_id, service, rps, load (per cent of the max load that was measured there, else the RPS), threads, mba_pct,
    beside (the neighbours, as text), memory (limit and pool that were asked for, as text), cores, ways; the median of each
    column of `COURSE`, and its least and most as `low_*` and `high_*`; virt_mem_mb, res_mem_mb; p99_se (standard error of ln
    p99); ipc_se; requests (completed in all of the case); valid, overloaded (of all samples); samples.
    """
    share = pl.col("load_pct") if "load_pct" in frame.columns else pl.lit(None, pl.Float64)
    asked = pl.lit("")
    if samples.BINDS in frame.columns:
        asked = pl.format("{}:{}", *(pl.col(name).cast(pl.String).fill_null("none") for name in samples.MEMORY_KEY))
    seconds = sampling.interval_ms / 1000 if sampling else 1.0
    several = pl.len().cast(pl.Float64).sqrt()
    p99 = pl.col("latency_p99_ms").filter(_VALID & (pl.col("latency_p99_ms") > 0)).log()
    course = [
        e
        for name in COURSE
        for e in (pl.col(name).median(), pl.col(name).min().alias(f"low_{name}"), pl.col(name).max().alias(f"high_{name}"))
    ]
    found = frame.group_by("case_id", maintain_order=True).agg(
        pl.col("service", "rps", "threads", "mba_pct", "neighbours").first(),
        pl.coalesce(share, "rps").first().alias("load"),
        asked.first().alias("memory"),
        pl.col("alloc_cores").first().alias("cores"),
        pl.col("alloc_ways").first().alias("ways"),
        *course,
        pl.col("virt_mem_mb", "res_mem_mb", "latency_mean_ms").median(),
        pl.max_horizontal(p99.std().fill_null(0.0) / several, _sampling_error()).alias("p99_se"),
        pl.col("ipc").filter(pl.col("ipc") > 0).log().std().fill_null(0.0).truediv(several).alias("ipc_se"),
        (pl.col("achieved_rps").sum() * seconds).alias("requests"),
        pl.col("achieved_rps").mean(),
        _VALID.all().alias("valid"),
        (pl.col("verdict") == "server-overloaded").all().alias("overloaded"),
        pl.len().alias("samples"),
    )
    each = pl.element().struct
    beside = pl.format("{}:{}:{}:{}", each.field("service"), each.field("cores"), each.field("ways"), each.field("rps"))
    # a case's neighbours repeat over a plane, and so do its other keys
    return found.with_columns(
        pl.col("neighbours").list.eval(beside).list.join(",").cast(pl.Categorical).alias("beside"),
        pl.col("service", "memory").cast(pl.Categorical),
        pl.col(pl.Float64).cast(pl.Float32),
    ).drop("neighbours")
