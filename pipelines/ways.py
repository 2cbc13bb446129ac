"""Stage `ways`: a label in which ways are worth something, beside the papers' OAA.

    python -m pipelines.ways --labels FOLDER --out FOLDER [--params FILE]

The papers' OAA is the cheapest cell past the cliff's knee, cores and ways as shares of the grid. Where a core is a larger share
than a way is worth, that is few ways and many cores on nearly every plane: a constant knows it, and a model learns nothing of
cache. Cores and ways stand in for each other, so the label here is a line, not a point: with so many cores, how few ways do?

From the cells of the stage `label`, no sample is read. For each plane and each count of cores that was measured there:

    least_ways      the least ways from which on every measured cell with so many cores meets QoS
    ways_at_cores   the same with the margin of `label.margin_ways`, at most the most that was measured

A count of cores with which no number of ways does has no row. Writes

    lines.parquet   plane_id, alloc_cores, at_oaa (steps of cores from the OAA's, below 0: fewer), least_ways, ways_at_cores
    labels.parquet  a row a plane: plane_id, oaa_cores and oaa_ways as they are, and
                    oaa_ways_at_cores        ways_at_cores with the cores of the OAA
                    ways_at_least_cores      ways_at_cores with the fewest cores that do: what cache buys
                    ways_for_neighbours      ways that one step of cores more than the fewest would free for neighbours
    ways.json       planes; of each label the commonest value, its share, and how far off the median is: what a constant has
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines import params, samples
from pipelines.errors import BadInput
from pipelines.io import write_json, write_parquet
from pipelines.tables import of_stage

F64 = NDArray[np.float64]

LABELS = ("oaa_ways", "oaa_ways_at_cores", "ways_at_least_cores", "ways_for_neighbours")


def least_ways(met: NDArray[np.bool_], measured: NDArray[np.bool_], ways: F64) -> F64:
    """Of each row (a count of cores) the least ways from which on every measured cell meets QoS; NaN where none does.

    Args:
        met, measured: shape (cores, ways).
        ways: of each column, ascending.
    """
    misses = measured & ~met
    # columns beyond the last that misses
    beyond = np.cumsum(misses[:, ::-1], axis=1)[:, ::-1] == 0
    good = met & beyond
    return np.where(good.any(axis=1), ways[np.argmax(good, axis=1)], np.nan)


def line_of(cells: pl.DataFrame, target_ms: float, margin: int) -> tuple[F64, F64, F64]:
    """Cores, least ways and ways with the margin of one plane, ascending by cores; without those that no way helps."""
    if cells["alloc_ways"].n_unique() < 2:
        # one count of ways, as on a host that has none: nothing can be said of fewer
        return np.empty(0), np.empty(0), np.empty(0)
    cores, row = np.unique(cells["alloc_cores"].to_numpy(), return_inverse=True)
    ways, column = np.unique(cells["alloc_ways"].to_numpy(), return_inverse=True)
    p99 = np.full((len(cores), len(ways)), np.nan)
    p99[row, column] = cells["p99_ms"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    least = least_ways(np.nan_to_num(p99, nan=np.inf) <= target_ms, ~np.isnan(p99), ways)
    found = np.isfinite(least)
    with_margin = ways[np.minimum(np.searchsorted(ways, least[found]) + margin, len(ways) - 1)]
    return cores[found], least[found], with_margin


def make(cells: pl.DataFrame, labels: pl.DataFrame, margin: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The lines and the labels of all planes; `margin` in columns of the sweep."""
    lines: list[pl.DataFrame] = []
    rows: list[dict[str, Any]] = []
    key = list(samples.PLANE_KEY)
    of_plane = {tuple(k): part for k, part in cells.group_by(key, maintain_order=True)}
    for plane in labels.iter_rows(named=True):
        who = tuple(plane["neighbours" if name == "nb_key" else name] for name in key)
        if who not in of_plane:
            raise BadInput(f"cells.parquet has no plane {who}; run `dvc repro` for the stage label")
        part = of_plane[who]
        cores, least, with_margin = line_of(part, plane["qos_target_ms"], margin)
        known = plane["oaa_cores"] is not None
        grid = np.unique(part["alloc_cores"].to_numpy())
        at = np.searchsorted(grid, cores) - np.searchsorted(grid, plane["oaa_cores"]) if known else np.zeros(len(cores), int)
        line = {"alloc_cores": cores, "least_ways": least, "ways_at_cores": with_margin}
        frame = pl.DataFrame(line).with_columns(
            pl.lit(plane["plane_id"]).alias("plane_id"),
            pl.Series("at_oaa", at if known else [None] * len(cores), dtype=pl.Int64),
        )
        lines.append(frame.select("plane_id", "alloc_cores", "at_oaa", "least_ways", "ways_at_cores"))
        there = np.flatnonzero(cores == plane["oaa_cores"]).tolist() if known else []
        rows.append(
            {
                "plane_id": plane["plane_id"],
                "oaa_cores": plane["oaa_cores"],
                "oaa_ways": plane["oaa_ways"],
                "oaa_ways_at_cores": float(with_margin[there[0]]) if len(there) else None,
                "ways_at_least_cores": float(with_margin[0]) if len(cores) else None,
                "ways_for_neighbours": float(with_margin[0] - with_margin[1]) if len(cores) > 1 else None,
            }
        )
    schema = {name: pl.Float64 for name in ("oaa_cores", *LABELS)} | {"plane_id": pl.String}
    return pl.concat(lines), pl.DataFrame(rows, schema_overrides=schema)


def of_constants(labels: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Of each label how much of it a constant knows."""
    found = {}
    for name in LABELS:
        values = labels[name].drop_nulls().to_numpy()
        if len(values):
            value, count = np.unique(values, return_counts=True)
            off = float(np.abs(values - np.median(values)).mean())
            commonest = int(np.argmax(count))
            found[name] = {
                "planes": float(len(values)),
                "commonest": float(value[commonest]),
                "commonest_share": float(count[commonest] / len(values)),
                "constant_mae": off,
            }
    return found


def run(labels_folder: Path, out: Path, p: params.Label) -> dict[str, Any]:
    """Label one data set; returns how much of each label a constant knows."""
    cells, labels = (of_stage(labels_folder / f"{name}.parquet") for name in ("cells", "labels"))
    lines, planes = make(cells, labels, p.margin_ways)
    found = of_constants(planes)
    write_parquet(out / "lines.parquet", lines)
    write_parquet(out / "labels.parquet", planes)
    write_json(out / "ways.json", found)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.ways", description="How few ways do, with so many cores?")
    parser.add_argument("--labels", type=Path, required=True, help="output of the stage `label`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)
    return params.run_stage(lambda: run(args.labels, args.out, params.load(args.params).label))


if __name__ == "__main__":
    raise SystemExit(main())
