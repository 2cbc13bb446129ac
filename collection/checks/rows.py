"""Rows by themselves: every value in its range, percentiles in order, and what is said twice said alike."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from collection import shardfile
from collection.dataset import Manifest
from models.features import PlatformLimits, sample_ranges
from pipelines.samples import VERDICTS

# what every row has; features and latencies may be null (docs/sweep-output.md)
KEYS = (
    *("campaign", "platform", "service", "case_id", "threads", "rps", "mba_pct", "neighbours", "repeat", "t_ms"),
    *("alloc_cores", "errors", "count", "verdict"),
)
# what else than a number has a known set of values; null is none of them, and says "not told" where it may stand
WORDS = {"verdict": VERDICTS, "loop": ("open", "closed"), "latency_from": ("intended", "actual", "service")}
_MOST_MS = 1e9  # eleven days
_MOST_PER_S = 1e9
# a share of one, for sums and products that were worked out in another order
_ROUNDING = 1e-6
# a case's mean over its quota: the kernel settles accounts every 100 ms
_OVER_QUOTA = 1.2
_OVER_QUOTA_CORES = 0.1


def ranges(manifest: Manifest) -> dict[str, tuple[float, float]]:
    """Least and most of each numeric column of a sample, in its unit. A null is in range: it says "not measured"."""
    latency = {f"latency_{q}_ms": (0.0, _MOST_MS) for q in ("mean", "p50", "p95", "p99", "p99_low", "p99_high")}
    slack = 1 + _ROUNDING
    features = sample_ranges(PlatformLimits.from_manifest(manifest.platform.model_dump()))
    return {
        "threads": (1, 4096),
        "rps": (_ROUNDING, _MOST_PER_S),
        "load_pct": (_ROUNDING, 200),
        "mba_pct": (1, 100),
        "repeat": (0, 2**31),
        "t_ms": (0, 2**53),
        **{name: (low / slack, high * slack) for name, (low, high) in features.items()},
        **latency,
        "achieved_rps": (0.0, _MOST_PER_S),
        "errors": (0, 2**53),
        "count": (0, 2**53),
        # what is asked for is at least a page; the rest may be nothing
        **dict.fromkeys(shardfile.MEMORY_NUMBERS, (0, 2**53)),
        "mem_limit_bytes": (1, 2**53),
        "memory_stall_frac": (0, 1 + _ROUNDING),
    }


def nulls(frame: pl.DataFrame) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Columns that say nothing where they must, and the cases that it concerns. Nothing else can be asked of such rows."""
    each = pl.element()
    within = pl.any_horizontal(
        each.is_null(), *(each.struct.field(name).is_null() for name in ("service", "cores", "ways", "rps"))
    )
    for name in KEYS:
        missing = pl.col(name).is_null()
        if name == "neighbours":
            missing |= pl.col(name).list.eval(within).list.any()
        bad = frame.filter(missing)
        if bad.height:
            ids = bad["case_id"].drop_nulls().unique(maintain_order=True).to_list()
            where = f", e.g. in case {ids[0]}" if ids else ""
            yield null(name, bad.height, frame.height, where), tuple(ids)


def null(column: str, bad: int, of: int, where: str = "") -> str:
    """What to say of a column without values in so many rows of a shard."""
    return f"column {column}: null in {bad:,} of {of:,} rows{where}; every row must have it"


def shard(frame: pl.DataFrame, manifest: Manifest) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What is wrong, and the cases that it concerns."""
    wrong = {
        name: (_outside(name, low, high), f"outside {low:.6g} to {high:.6g}")
        for name, (low, high) in ranges(manifest).items()
        if name in frame.columns
    }
    faults = [(f"column {name}: {said}", e, name) for name, (e, said) in wrong.items()]
    faults += [(said, e, name) for name, said, e in _relations(manifest)]
    for name, words in WORDS.items():
        if name in frame.columns:
            faults.append((f"column {name}: not one of the format's", ~pl.col(name).is_in(words), name))
    counted = frame.select(e.fill_null(False).sum().alias(str(i)) for i, (_, e, _) in enumerate(faults)).row(0)
    for (said, e, name), n in zip(faults, counted, strict=True):
        if n:
            bad = frame.filter(e.fill_null(False))
            ids = bad["case_id"].unique(maintain_order=True).to_list()
            yield f"{said} in {n:,} of {frame.height:,} rows, e.g. {bad[name][0]} in case {ids[0]}", tuple(ids)


def _outside(name: str, low: float, high: float) -> pl.Expr:
    # NaN compares as greater than everything, so it is outside
    inside = pl.col(name).is_between(low, high)
    return ~inside


def _differs(a: pl.Expr, b: pl.Expr) -> pl.Expr:
    return (a - b).abs() > _ROUNDING * (1 + b.abs())


def _relations(manifest: Manifest) -> Iterator[tuple[str, str, pl.Expr]]:
    """(column to show, what it says, where it is so)."""
    slack = 1 + _ROUNDING
    for low, high in (("p50", "p95"), ("p95", "p99"), ("p99_low", "p99"), ("p99", "p99_high")):
        a, b = f"latency_{low}_ms", f"latency_{high}_ms"
        yield a, f"columns {a} and {b}: the first is greater", pl.col(a) > pl.col(b) * slack
    yield (
        "res_mem_mb",
        "columns res_mem_mb and virt_mem_mb: the first is greater",
        pl.col("res_mem_mb") > pl.col("virt_mem_mb") * slack,
    )
    mb = manifest.platform.mb_per_way
    if manifest.platform.ways > 0:
        said = f"column alloc_cache_mb: is not alloc_ways x {mb:g} MB"
        yield "alloc_cache_mb", said, _differs(pl.col("alloc_cache_mb"), pl.col("alloc_ways") * mb)
    beside = pl.col("neighbours").list
    cores = beside.eval(pl.element().struct.field("cores")).list.sum()
    yield "nb_cores", "column nb_cores: is not the sum of the neighbours' cores", _differs(pl.col("nb_cores"), cores)
    if manifest.platform.ways > 0:
        ways = beside.eval(pl.element().struct.field("ways")).list.sum()
        said = f"column nb_cache_mb: is not the sum of the neighbours' ways x {mb:g} MB"
        yield "nb_cache_mb", said, _differs(pl.col("nb_cache_mb"), ways * mb)
    # the mean of a case: a single reading may use what the one before left over
    most = pl.col("alloc_cores") * _OVER_QUOTA + _OVER_QUOTA_CORES
    yield (
        "cpu_usage_cores",
        "column cpu_usage_cores: more than alloc_cores, on the mean of a case,",
        pl.col("cpu_usage_cores").mean().over("case_id") > most,
    )
