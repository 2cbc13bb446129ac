"""What a shard of samples is: its columns, and whether a file is one (docs/sweep-output.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from models.features import SAMPLE_FEATURES
from pipelines import samples, stdio, tables

# of a campaign with limits on memory: what was asked for and in force, what was seen, whether it bound, and what to say of it
MEMORY: dict[str, pl.DataType] = {
    **{
        name: pl.Int64()
        for name in ("mem_limit_bytes", "zswap_max_bytes", "mem_limit_in_force_bytes", "zswap_max_in_force_bytes")
    },
    **{
        f"memory_{name}": pl.Float64()
        for name in (
            *("in_use_bytes", "pool_bytes", "stored_bytes", "swapped_bytes", "working_set_bytes"),
            *("pool_swap_ins_per_s", "disk_swap_ins_per_s", "refaults_per_s", "stall_frac"),
            *("footprint_bytes", "compression_ratio"),
        )
    },
    samples.BINDS: pl.Boolean(),
    "memory_note": pl.String(),
}
MEMORY_NUMBERS = tuple(name for name, kind in MEMORY.items() if kind.is_numeric())
_LATENCY = ("mean", "p50", "p95", "p99", "p99_low", "p99_high")
SCHEMA: dict[str, pl.DataType] = {
    "campaign": pl.String(),
    "platform": pl.String(),
    "service": pl.String(),
    "case_id": pl.String(),
    "threads": pl.Int32(),
    "rps": pl.Float64(),
    "mba_pct": pl.Int32(),
    "neighbours": pl.List(pl.Struct({"service": pl.String(), "cores": pl.Float64(), "ways": pl.Int32(), "rps": pl.Float64()})),
    "repeat": pl.Int32(),
    "t_ms": pl.Int64(),
    **{name: pl.Float64() for name in SAMPLE_FEATURES},
    **{f"latency_{name}_ms": pl.Float64() for name in _LATENCY},
    "achieved_rps": pl.Float64(),
    "errors": pl.Int64(),
    "count": pl.Int64(),
    "verdict": pl.String(),
    "loop": pl.String(),
    "latency_from": pl.String(),
    "load_pct": pl.Float64(),
    **MEMORY,
}
"""Columns of a shard, in order."""
ADDED = ("loop", "latency_from", "load_pct", *MEMORY)
"""Of these, what a shard may lack: one of an earlier version, or of a campaign that does not find its loads (load_pct) or has no
limits on memory (MEMORY).

A data set that was gone on with may have shards of either kind."""
_LARGEST = 1e15  # of what is measured: bytes a second, and all else
# of a shard when it is read: a hundred times what 60 s of measuring come to
_MOST_DECODED_BYTES = 1 << 30


def differences(schema: Mapping[str, Any]) -> Iterator[str]:
    """Where the columns of a file are not those of a shard."""
    for name, kind in SCHEMA.items():
        if name not in schema:
            if name not in ADDED:
                yield f"column {name} is missing"
        elif schema[name] != kind:
            yield f"column {name} is {schema[name]}, want {kind}"
    for name in schema:
        if name not in SCHEMA:
            yield f"column {name} is not part of the format"


def scan(shards: Sequence[Path]) -> pl.LazyFrame:
    """Rows of several shards: what some of them do not have is null there, or left out of all."""
    return pl.scan_parquet(list(shards), missing_columns="insert", extra_columns="ignore")


def unbound(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Without the rows that a limit on memory bound: what they say is not of cores and ways alone."""
    if samples.BINDS not in frame.collect_schema().names():
        return frame
    return frame.filter(~pl.col(samples.BINDS).fill_null(False))


def unreadable(path: Path) -> str | None:
    """Why a file cannot be read as a shard, whatever its rows say; None if it can. All of it is read."""
    try:
        with stdio.Quiet():
            if other := next(differences(pl.read_parquet_schema(path)), None):
                return other
            pl.read_parquet(path)
    except (Exception, *tables.DAMAGED) as e:  # whatever its Parquet reader raises
        return _unreadable(e)
    return None


def _unreadable(e: BaseException) -> str:
    return f"is not readable as Parquet: {next(iter(str(e).splitlines()), type(e).__name__)}"


def impossible(columns: Collection[str] = tuple(SCHEMA)) -> pl.Expr:
    """Rows that no sweep writes: without what says whose they are, or with a number that is none or below 0."""
    known = ("service", "case_id", "verdict", "threads", "rps", "mba_pct", "neighbours")
    numbers = [name for name, kind in SCHEMA.items() if kind.is_float() and name in columns]
    nameless = [pl.col(name).is_null() for name in known]
    # what is missing is no wrong number
    wrong_numbers = [~pl.col(name).is_between(0, _LARGEST).fill_null(True) for name in numbers]
    return pl.any_horizontal(*nameless, *wrong_numbers)


def wrong(path: Path, rows: int, cases: Mapping[str, int]) -> str | None:
    """Why a file is not the shard that it should be; None if it is. What its footer says is looked at before it is decoded.

    Args:
        rows: how many it should have.
        cases: rows of each case in it, by the journal.
    """
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    try:
        with stdio.Quiet():
            footer = pq.read_metadata(path)
            decoded = sum(footer.row_group(k).total_byte_size for k in range(footer.num_row_groups))
            if footer.num_rows != rows:
                return f"has {footer.num_rows} rows, the manifest says {rows}"
            if not 0 <= decoded <= _MOST_DECODED_BYTES:
                return f"comes to {decoded} bytes when it is read, more than any shard ({_MOST_DECODED_BYTES})"
            if other := next(differences(pl.read_parquet_schema(path)), None):
                return other
            here = pl.read_parquet(path).group_by("case_id").len()
    except (Exception, *tables.DAMAGED, ArrowException) as e:  # whatever a reader of Parquet raises: it cannot be read
        return _unreadable(e)
    found: dict[str | None, int] = dict(here.iter_rows())
    told: Mapping[Any, int] = cases
    case = next((c for c in {**told, **found} if found.get(c) != told.get(c)), "")
    if found == told:
        return None
    return f"case {case}: has {found.get(case, 0)} rows, the journal says {told.get(case, 0)}"
