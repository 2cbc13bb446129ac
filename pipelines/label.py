"""Stage `label`: from samples to RCliff and OAA, one row a plane.

A plane is one service at one load, thread count, bandwidth throttle and set of neighbours, over all its allocations.

    python -m pipelines.label --data FOLDER --out FOLDER [--params params.yaml]

Writes `labels.parquet` (a row a plane), `cells.parquet` (a row an allocation) and `label.json` (metrics).
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines import params, samples
from pipelines.errors import NoFeasibleCell
from pipelines.io import write_bytes, write_json

FloatGrid = NDArray[np.float64]


@dataclass(frozen=True)
class Label:
    """RCliff and OAA of one plane, in cores and ways.

    Attributes:
        oaa_row, oaa_column: where OAA is in the grid.
        kind: `exact` if every cell that the label rests on was measured, else `bounded`: neighbouring unmeasured cells
            could move it.
    """

    rcliff_cores: float
    rcliff_ways: float
    oaa_cores: float
    oaa_ways: float
    oaa_row: int
    oaa_column: int
    kind: Literal["exact", "bounded"]


def fill_by_monotony(p99_ms: FloatGrid, qos_target_ms: float) -> NDArray[np.int8]:
    """1 where QoS is met, 0 where it is not, -1 where that is unknown.

    An unmeasured cell (NaN) gets a bound, not a guess: it meets QoS if a measured cell with no more of either resource does, and
    misses it if a measured cell with no less of either does. Cells between both stay unknown.
    """
    known = ~np.isnan(p99_ms)
    met = np.where(known, p99_ms <= qos_target_ms, False)
    missed = known & ~met
    met_below = np.maximum.accumulate(np.maximum.accumulate(met, axis=0), axis=1)
    missed_above = np.maximum.accumulate(np.maximum.accumulate(missed[::-1, ::-1], axis=0), axis=1)[::-1, ::-1]
    result = np.full(p99_ms.shape, -1, dtype=np.int8)
    result[~known & met_below & ~missed_above] = 1
    result[~known & missed_above & ~met_below] = 0
    result[known & met] = 1
    result[missed] = 0
    return result


def slowdown(p99_ms: FloatGrid, axis: int, *, first_is_least: bool = True) -> FloatGrid:
    """log(p99 with one step less / p99), per cell: what taking one core (axis 0) or one way (axis 1) costs.

    Taking the last step leaves nothing, which costs everything (infinite); NaN where a cell of the pair is not measured.

    Args:
        first_is_least: whether the first row or column is the least that the platform can give. Otherwise less could be given,
            but was not measured.
    """
    below = np.roll(p99_ms, 1, axis=axis)
    edge: list[slice | int] = [slice(None), slice(None)]
    edge[axis] = 0
    below[tuple(edge)] = np.inf if first_is_least else np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.log(below) - np.log(p99_ms)


def cliff_cells(p99_ms: FloatGrid, met: NDArray[np.bool_], first_is_least: tuple[bool, bool] = (True, True)) -> NDArray[np.bool_]:
    """The edge: in each row and each column, the cell meeting QoS from where one step less costs the most latency.

    Args:
        first_is_least: for cores and ways, see `slowdown`.
    """
    edge = np.zeros(p99_ms.shape, dtype=bool)
    for axis in (0, 1):
        if p99_ms.shape[axis] == 1:
            continue  # a resource that cannot be taken away has no cliff
        cost = np.where(met, slowdown(p99_ms, axis, first_is_least=first_is_least[axis]), np.nan)
        cost = np.moveaxis(cost, axis, 0)
        usable = ~np.isnan(cost)
        # argmax takes the first of equals: the one with the least of the resource.
        best = np.argmax(np.where(usable, cost, -np.inf), axis=0)
        lines = np.flatnonzero(usable.any(axis=0))
        view = np.moveaxis(edge, axis, 0)
        view[best[lines], lines] = True
    return edge


def label_plane(
    p99_ms: FloatGrid,
    qos_target_ms: float,
    *,
    core_values: Sequence[float] | None = None,
    way_values: Sequence[float] | None = None,
    margin_steps: tuple[int, int] = (1, 1),
    least: tuple[float, float] = (1.0, 1.0),
) -> Label:
    """Find the RCliff and the OAA of one LC service at one load.

    The RCliff is the edge from where taking one core or one way costs the most latency, as a ratio; its point is the cheapest
    cell of that edge (cores and ways each as a share of the grid, summed: the knee). OAA is the smallest allocation that is
    `margin_steps` away from the RCliff in both directions, clamped to the grid, and meets QoS.

    Args:
        p99_ms: shape (cores, ways), ms; row 0 is one core; NaN where the cell was not measured, infinite where the
            server was overloaded.
        qos_target_ms: the service's QoS target.
        core_values, way_values: cores of each row and ways of each column, ascending; None: 1, 2, 3, ...
        margin_steps: distance of OAA from the RCliff, in rows and columns.
        least: cores and ways that the platform gives at least. A grid that starts above them says nothing about what lies
            below it, so a label that this could move is `bounded`.
    Raises:
        NoFeasibleCell: no cell meets the target; the message says to lower the load or check the target.
    Source: OSML+, Sec. 3.1 (definitions) and 3.2 (the sweep).
    """
    if p99_ms.ndim != 2 or p99_ms.size == 0:
        raise ValueError(f"p99_ms has shape {p99_ms.shape}, want (cores, ways)")
    n_cores, n_ways = p99_ms.shape
    cores = np.asarray(core_values if core_values is not None else np.arange(1, n_cores + 1), dtype=float)
    ways = np.asarray(way_values if way_values is not None else np.arange(1, n_ways + 1), dtype=float)
    state = fill_by_monotony(p99_ms, qos_target_ms)
    measured = ~np.isnan(p99_ms)
    met = (state == 1) & measured
    if not met.any():
        best = np.nanmin(p99_ms) if measured.any() else np.nan
        raise NoFeasibleCell(
            f"no allocation up to {cores[-1]:g} cores and {ways[-1]:g} ways meets {qos_target_ms:g} ms (best p99 "
            f"{'unknown' if np.isnan(best) else 'overloaded' if np.isinf(best) else f'{best:.3g} ms'}); lower the load or "
            "check the target"
        )
    row_share = np.arange(1, n_cores + 1) / n_cores if n_cores > 1 else np.zeros(1)
    column_share = np.arange(1, n_ways + 1) / n_ways if n_ways > 1 else np.zeros(1)
    usage = row_share[:, None] + column_share[None, :]
    first_is_least = (bool(cores[0] <= least[0] + 1e-9), bool(ways[0] <= least[1] + 1e-9))
    edge = cliff_cells(p99_ms, met, first_is_least)
    if not edge.any():  # a single cell, or no measured pair to compare: the cheapest cell that meets QoS
        edge = met
    cost = np.where(edge, usage, np.inf)
    row, column = (int(i) for i in np.unravel_index(np.argmin(cost), cost.shape))

    up, right = margin_steps
    oaa_row = min(row + (up if n_cores > 1 else 0), n_cores - 1)
    oaa_column = min(column + (right if n_ways > 1 else 0), n_ways - 1)
    if state[oaa_row, oaa_column] != 1:
        # Measurements need not be monotone. Look for the cheapest cell that meets QoS past the margin, else past the RCliff.
        for least_row, least_column in ((oaa_row, oaa_column), (row, column)):
            beyond = np.where((state == 1), usage, np.inf)
            beyond[:least_row, :] = np.inf
            beyond[:, :least_column] = np.inf
            if np.isfinite(beyond).any():
                oaa_row, oaa_column = (int(i) for i in np.unravel_index(np.argmin(beyond), beyond.shape))
                break

    # Exact: no cheaper cell could still turn out to meet QoS, in the grid or below where it starts, and what lies one step below
    # the RCliff was measured.
    around = [(row - 1, column), (row, column - 1), (oaa_row, oaa_column)]
    seen = all(measured[r, c] for r, c in around if r >= 0 and c >= 0)
    cheaper_unknown = bool(((state == -1) & (usage < usage[row, column])).any())
    if not first_is_least[0]:
        cheaper_unknown |= bool(((state[0, :] != 0) & (column_share <= usage[row, column])).any())
    if not first_is_least[1]:
        cheaper_unknown |= bool(((state[:, 0] != 0) & (row_share <= usage[row, column])).any())
    return Label(
        rcliff_cores=float(cores[row]),
        rcliff_ways=float(ways[column]),
        oaa_cores=float(cores[oaa_row]),
        oaa_ways=float(ways[oaa_column]),
        oaa_row=oaa_row,
        oaa_column=oaa_column,
        kind="exact" if seen and not cheaper_unknown else "bounded",
    )


def grid_of(plane: pl.DataFrame) -> tuple[FloatGrid, FloatGrid, FloatGrid, FloatGrid]:
    """p99 grid, bandwidth grid (both NaN where not measured), core values and way values of one plane's cells."""
    cores = np.unique(plane["alloc_cores"].to_numpy())
    ways = np.unique(plane["alloc_ways"].to_numpy())
    at = (np.searchsorted(cores, plane["alloc_cores"].to_numpy()), np.searchsorted(ways, plane["alloc_ways"].to_numpy()))
    p99_ms = np.full((len(cores), len(ways)), np.nan)
    mbl_mbps = np.full_like(p99_ms, np.nan)
    p99_ms[at] = plane["p99_ms"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    mbl_mbps[at] = plane["mbl_mbps"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    return p99_ms, mbl_mbps, cores, ways


def plane_id(key: Sequence[Any]) -> str:
    """Stable name of a plane, the same on every machine."""
    return hashlib.sha256("|".join(str(part) for part in key).encode()).hexdigest()[:16]


def split_planes(ids: Sequence[str], services: Sequence[str], test_fraction: float, val_fraction: float, seed: int) -> list[str]:
    """`train`, `val` or `test` for each plane: whole planes, a share of every service's, the same for the same seed.

    Rows of one plane never land on both sides: they share their label, so a model would be asked what it was told.
    """
    parts = ["train"] * len(ids)
    by_service: dict[str, list[int]] = {}
    for k, service in enumerate(services):
        by_service.setdefault(service, []).append(k)
    for members in by_service.values():
        members.sort(key=lambda k: hashlib.sha256(f"{seed}:{ids[k]}".encode()).digest())
        n_test = round(test_fraction * len(members))
        n_val = round(val_fraction * len(members))
        for k in members[:n_test]:
            parts[k] = "test"
        for k in members[n_test : n_test + n_val]:
            parts[k] = "val"
    if len(ids) >= 2 and "test" not in parts:
        # Few planes a service: take single planes from the whole, so that there is something to measure on.
        order = sorted(range(len(ids)), key=lambda k: hashlib.sha256(f"{seed}:{ids[k]}".encode()).digest())
        for k in order[: max(1, round(test_fraction * len(ids)))]:
            parts[k] = "test"
    return parts


def label_cells(cells: pl.DataFrame, data: samples.DataSet, p: params.Label) -> pl.DataFrame:
    """Labels of all planes; a plane without a feasible cell keeps its row, with the reason instead of numbers."""
    rows: list[dict[str, Any]] = []
    for key, plane in cells.group_by(samples.PLANE_KEY, maintain_order=True):
        service, rps, threads, mba_pct, nb_key = key
        target = data.qos_target_ms(str(service))
        p99_ms, mbl_mbps, core_values, way_values = grid_of(plane)
        state = plane["status"].value_counts()
        counts = dict(zip(state["status"].to_list(), state["count"].to_list(), strict=True))
        row: dict[str, Any] = {
            "plane_id": plane_id(key),
            "campaign": data.campaign,
            "platform": data.platform.name,
            "service": service,
            "rps": rps,
            "threads": threads,
            "mba_pct": mba_pct,
            "neighbours": nb_key,
            "qos_target_ms": target,
            "margin_core_steps": p.margin_core_steps,
            "margin_ways": p.margin_ways,
            "cells": plane.height,
            "cells_met": int(np.sum(np.nan_to_num(p99_ms, nan=np.inf) <= target)),
            "cells_overloaded": int(counts.get("overloaded", 0)),
            "cells_unknown": int(counts.get("unknown", 0)),
            "oaa_cores": None,
            "oaa_ways": None,
            "oaa_mbl_mbps": None,
            "rcliff_cores": None,
            "rcliff_ways": None,
            "kind": None,
            "reason": None,
        }
        try:
            label = label_plane(
                p99_ms,
                target,
                core_values=core_values.tolist(),
                way_values=way_values.tolist(),
                margin_steps=(p.margin_core_steps, p.margin_ways),
                # 1 way: manifests do not say how many a CBM needs at least, so where that is more, labels are `bounded` too often
                least=(data.platform.core_step, 1.0),
            )
        except NoFeasibleCell as error:
            row["reason"] = str(error)
        else:
            bandwidth = mbl_mbps[label.oaa_row, label.oaa_column]
            row |= {
                "oaa_cores": label.oaa_cores,
                "oaa_mbl_mbps": None if np.isnan(bandwidth) else float(bandwidth),
                "rcliff_cores": label.rcliff_cores,
                "kind": label.kind,
            }
            if data.platform.ways > 0:
                row |= {"oaa_ways": label.oaa_ways, "rcliff_ways": label.rcliff_ways}
        rows.append(row)
    floats = ("oaa_cores", "oaa_ways", "oaa_mbl_mbps", "rcliff_cores", "rcliff_ways")
    texts = ("kind", "reason")
    frame = pl.DataFrame(rows, schema_overrides={**dict.fromkeys(floats, pl.Float64), **dict.fromkeys(texts, pl.String)})
    labelled = frame["reason"].is_null()
    parts = np.full(frame.height, "none", dtype=object)
    chosen = frame.filter(labelled)
    parts[labelled.to_numpy()] = split_planes(
        chosen["plane_id"].to_list(), chosen["service"].to_list(), p.test_fraction, p.val_fraction, p.seed
    )
    return frame.with_columns(pl.Series("split", parts.tolist(), dtype=pl.String))


def run(folder: Path, out: Path, p: params.Label) -> dict[str, Any]:
    """Label one data set; returns the metrics."""
    data = samples.open_dataset(folder)
    rows = samples.verdict_counts(data)
    cells = samples.cells(data)
    labels = label_cells(cells, data, p)
    status = dict(cells["status"].value_counts().iter_rows())
    kinds = dict(labels["kind"].drop_nulls().value_counts().iter_rows())
    splits = dict(labels["split"].value_counts().iter_rows())
    metrics = {
        "data_sha256": data.sha256,
        "rows": {verdict.replace("-", "_"): n for verdict, n in rows.items()},
        "rows_dropped": rows["client-limited"],
        "cells": {name: int(status.get(name, 0)) for name in ("measured", "overloaded", "unknown")},
        "planes": {
            "all": labels.height,
            "exact": int(kinds.get("exact", 0)),
            "bounded": int(kinds.get("bounded", 0)),
            "no_feasible_cell": int(labels["reason"].is_not_null().sum()),
            "train": int(splits.get("train", 0)),
            "val": int(splits.get("val", 0)),
            "test": int(splits.get("test", 0)),
        },
        "cases": data.cases,
    }
    for name, frame in (("labels", labels), ("cells", cells)):
        write_parquet(out / f"{name}.parquet", frame)
    write_json(out / "label.json", metrics)
    return metrics


def write_parquet(path: Path, frame: pl.DataFrame) -> None:
    """Parquet, zstd, whole or not at all."""
    import io

    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    write_bytes(path, buffer.getvalue())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.label", description="Find RCliff and OAA of every plane.")
    parser.add_argument("--data", type=Path, required=True, help="folder of one target of a campaign")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)
    return params.run_stage(lambda: run(args.data, args.out, params.load(args.params).label))


if __name__ == "__main__":
    raise SystemExit(main())
