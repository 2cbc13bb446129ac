"""Stage `rows`: from samples to the rows that the models learn from and are measured on.

    python -m pipelines.rows --data FOLDER --labels FOLDER --out FOLDER [--params params.yaml]

Writes `rows.parquet` (at most `max_rows`: the cell each belongs to, its p99, its features) and `rows.json` (what was left out and
of which platform and data the rows are). Samples are read once, out of core; every model's training starts from the rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import BaseModel

from models import features
from models.features import PlatformLimits
from pipelines import params, samples
from pipelines.errors import BadInput
from pipelines.io import read_model, write_json, write_parquet

_SHARDS = 64  # read at a time: about a million rows


class Left(BaseModel):
    """Rows that were left out, by reason."""

    feature_missing: int
    not_resolvable: int
    overloaded: int
    thinned_out: int


class About(BaseModel):
    """What `rows.json` says.

    Attributes:
        features: sample features that every row has.
    """

    data_sha256: str
    campaign: str
    feature_set: str
    platform: PlatformLimits
    features: list[str]
    rows: int
    rows_left_out: Left


def about(folder: Path) -> About:
    """Read the stage's `rows.json`.

    Raises:
        BadInput: it is missing or damaged; names file and field.
    """
    return read_model(folder / "rows.json", About, "the summary of the stage `rows`", "rows")


def run(data_folder: Path, labels: Path, out: Path, p: params.Rows) -> dict[str, Any]:
    """Choose and join the rows of one data set; returns what `rows.json` holds."""
    data = samples.open_dataset(data_folder, check_shards=False)
    cells = pl.read_parquet(labels / "cells.parquet", columns=list(samples.CELL_KEY)).with_row_index("cell")
    possible = features.candidates(features.SAMPLE_FEATURES, data.feature_set, data.platform.ways)
    needed, wanted, counts = _wanted(data, possible, p)
    n_wanted = counts["wanted"]
    if n_wanted == 0:
        raise BadInput(f"{data_folder}: no row has all of {', '.join(needed)}; collect the data set again")
    step = -(-n_wanted // p.max_rows)  # every step-th row, so that no part of the sweep is favoured
    p99 = pl.when(pl.col("verdict") == "valid").then(pl.col("latency_p99_ms")).otherwise(None).alias("p99_ms")
    wide = [name for name in samples.CELL_KEY if name != "nb_key"] + ["neighbours"]
    parts, seen = [], 0
    for k in range(0, len(data.shards), _SHARDS):
        rows = samples.raw(data, data.shards[k : k + _SHARDS]).filter(wanted)
        found = rows.select(*wide, p99, *[pl.col(n).cast(pl.Float64).alias(f"x_{n}") for n in needed]).collect()
        parts.append(found.gather_every(step, offset=-seen % step))
        seen += found.height
    table = (
        samples.with_keys(pl.concat(parts).lazy(), data)
        .join(cells.lazy(), on=list(samples.CELL_KEY), how="left", maintain_order="left")
        .select("cell", "p99_ms", *[pl.col(f"x_{name}").alias(name) for name in needed])
        .collect()
    )
    if table["cell"].null_count():
        raise BadInput(f"{labels}: cells.parquet is not of these samples; run the stage `label` again")
    about = About(
        data_sha256=data.sha256,
        campaign=data.campaign,
        feature_set=data.feature_set,
        platform=data.platform,
        features=needed,
        rows=table.height,
        rows_left_out=Left(
            feature_missing=counts["feature_missing"],
            not_resolvable=counts["not_resolvable"],
            overloaded=0 if p.use_overloaded_inputs else counts["overloaded"],
            thinned_out=n_wanted - table.height,
        ),
    ).model_dump()
    write_parquet(out / "rows.parquet", table)
    write_json(out / "rows.json", about)
    return about


def _wanted(data: samples.DataSet, possible: list[str], p: params.Rows) -> tuple[list[str], pl.Expr, dict[str, int]]:
    """Features that any row has, which rows are wanted, and how many there are of each kind."""
    frame = samples.raw(data)
    present = frame.select(pl.col(possible).is_not_null().any()).collect(engine="streaming").row(0)
    needed = [name for name, some in zip(possible, present, strict=True) if some]
    # A row that lacks a feature which others have is dropped and counted: it is never filled in.
    usable = pl.all_horizontal([pl.col(name).is_not_null() & pl.col(name).is_finite() for name in needed])
    wanted = usable & (pl.col("verdict") != "not-resolvable")
    if not p.use_overloaded_inputs:
        wanted &= pl.col("verdict") != "server-overloaded"
    counts = frame.select(
        (~usable).sum().alias("feature_missing"),
        (pl.col("verdict") == "not-resolvable").sum().alias("not_resolvable"),
        (pl.col("verdict") == "server-overloaded").sum().alias("overloaded"),
        wanted.sum().alias("wanted"),
    ).collect(engine="streaming")
    return needed, wanted, {name: int(counts[name][0]) for name in counts.columns}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.rows", description="Choose the rows that models learn from.")
    parser.add_argument("--data", type=Path, required=True, help="folder of one target of a campaign")
    parser.add_argument("--labels", type=Path, required=True, help="output of the stage `label`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)
    return params.run_stage(lambda: run(args.data, args.labels, args.out, params.load(args.params).rows))


if __name__ == "__main__":
    raise SystemExit(main())
