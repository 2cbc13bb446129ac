"""Stage `rows`: from samples to the rows that the models learn from and are measured on.

    python -m pipelines.rows --data FOLDER --labels FOLDER --out FOLDER [--params params.yaml]

Writes `rows.parquet` (at most `max_rows`: cell, p99, throughput, features) and `rows.json` (what was left out and
of which platform and data the rows are). Samples are reduced out of core, by the engine that params.yaml names; every model's
training starts from the rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import polars as pl

from models import features
from pipelines import engine, params, reduce, samples
from pipelines.errors import BadInput, PipelineError
from pipelines.fits.rowfile import About, Left
from pipelines.io import write_json, write_parquet
from pipelines.tables import of_stage


def run(data_folder: Path, labels: Path, out: Path, p: params.Rows, reading: params.Samples | None = None) -> dict[str, Any]:
    """Choose and join the rows of one data set; returns what `rows.json` holds."""
    data = samples.open_dataset(data_folder, check_shards=False)
    cells = of_stage(labels / "cells.parquet", columns=list(samples.CELL_KEY)).with_row_index("cell")
    verdicts = ("valid", "server-overloaded") if p.use_overloaded_inputs else ("valid",)
    with engine.connect(reading or params.Samples()) as on:
        needed, tally = _tally(data, on)
        shards = (
            tally.group_by("place", "shard")
            .agg(pl.col("rows").sum(), pl.col("usable").filter(pl.col("verdict").is_in(verdicts)).sum().alias("wanted"))
            .sort("place")
            .with_columns((pl.col("wanted").cum_sum() - pl.col("wanted")).alias("before"))
        )
        n_wanted = int(shards["wanted"].sum())
        if n_wanted == 0:
            raise BadInput(f"{data_folder}: no row has all of {', '.join(needed)}; collect the data set again")
        step = -(-n_wanted // p.max_rows)  # every step-th row, so that no part of the sweep is favoured
        found = _chosen(data, on, needed, verdicts, step, shards)
    kept = tally.filter(~pl.col("verdict").is_in(samples.DROPPED))
    by_verdict = dict(tally.group_by("verdict").agg(pl.col("rows").sum()).iter_rows())
    table = (
        samples.with_keys(found.lazy(), data)
        .join(cells.lazy(), on=list(samples.CELL_KEY), how="left", maintain_order="left")
        .select("cell", "p99_ms", "achieved_rps", *[pl.col(f"x_{name}").alias(name) for name in needed])
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
            disturbed=by_verdict.get(samples.DISTURBED, 0),
            memory_bound=by_verdict.get(samples.MEMORY_BOUND, 0),
            feature_missing=int((kept["rows"] - kept["usable"]).sum()),
            not_resolvable=by_verdict.get("not-resolvable", 0),
            overloaded=0 if p.use_overloaded_inputs else by_verdict.get("server-overloaded", 0),
            thinned_out=n_wanted - table.height,
        ),
        made_by=data.made_by,
    ).model_dump()
    write_parquet(out / "rows.parquet", table)
    write_json(out / "rows.json", about)
    return about


def _tally(data: samples.DataSet, on: engine.Engine) -> tuple[list[str], pl.DataFrame]:
    """Features that any row has; and what `reduce.tally` counts, with each shard's `place`."""
    table = reduce.open_samples(data, on)
    needed = features.candidates(features.SAMPLE_FEATURES, data.feature_set, data.platform.ways)
    counts = on.collect(reduce.tally(table, needed))
    if counts["usable"].sum() < counts["rows"].sum():
        # A row that lacks a feature which others have is dropped and counted: it is never filled in.
        have = on.collect(reduce.present(table, needed)).row(0, named=True)
        present = [name for name in needed if have[name]]
        if present and present != needed:
            needed = present
            counts = on.collect(reduce.tally(table, needed))
    placed = counts.join(_places(data, on), on="shard", how="left")
    if lost := placed.filter(pl.col("place").is_null())["shard"].to_list():
        raise PipelineError(f"{lost[0]}: read as a shard of {data.folder}, but none has this name")
    return needed, placed.sort("place", "verdict")


def _places(data: samples.DataSet, on: engine.Engine) -> pl.DataFrame:
    return pl.DataFrame({"shard": [on.name(shard) for shard in data.shards]}).with_row_index("place")


def _chosen(
    data: samples.DataSet, on: engine.Engine, needed: list[str], verdicts: tuple[str, ...], step: int, shards: pl.DataFrame
) -> pl.DataFrame:
    """The rows, in the order of shards and of rows in them."""
    before = on.table(shards.select("shard", "before"))
    parts = []
    for whole in (True, False):
        # Shards without a wanted row are not read.
        places = shards.filter(pl.col("wanted") > 0, (pl.col("wanted") == pl.col("rows")) == whole)["place"].to_list()
        batch = max(1, len(places)) if whole or on.batch is None else on.batch
        for k in range(0, len(places), batch):
            table = reduce.open_samples(data, on, places[k : k + batch])
            parts.append(on.collect(reduce.chosen(table, needed, verdicts, step, before, whole=whole)))
    found = pl.concat(parts).join(shards.select("shard", "place"), on="shard")
    return found.sort("place", "row").drop("place", "shard", "row")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.rows", description="Choose the rows that models learn from.")
    parser.add_argument("--data", type=Path, required=True, help="folder of one target of a campaign")
    parser.add_argument("--labels", type=Path, required=True, help="output of the stage `label`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)

    def work() -> dict[str, Any]:
        p = params.load(args.params)
        return run(args.data, args.labels, args.out, p.rows, p.samples)

    return params.run_stage(work)


if __name__ == "__main__":
    raise SystemExit(main())
