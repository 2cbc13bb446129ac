"""Stage `label`: from samples to RCliff and OAA, one row a plane.

A plane is one service at one load, thread count, bandwidth throttle and set of neighbours, over all its allocations.

    python -m pipelines.label --data FOLDER --out FOLDER [--params params.yaml]

Writes `labels.parquet` (a row a plane), `cells.parquet` (a row an allocation), `memory.parquet` (a row an allocation of cores and
ways, along the axis of memory) and `label.json` (metrics); of these `headline.json` has the one that `dvc metrics` shows.
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

from pipelines import engine, params, reduce, samples
from pipelines.errors import BadInput, NoFeasibleCell
from pipelines.io import write_headline, write_json, write_parquet

FloatGrid = NDArray[np.float64]
BOUNDS = tuple(f"{point}_{axis}_{end}" for point in ("rcliff", "oaa") for axis in ("cores", "ways") for end in ("low", "high"))
"""Columns with the bounds of a label: equal to it where it is exact."""


@dataclass(frozen=True)
class Label:
    """RCliff and OAA of one plane, in cores and ways.

    Attributes:
        oaa_row, oaa_column: where OAA is in the grid.
        kind: `exact` if no cell that was not measured could move RCliff or OAA, else `bounded`: then the values are the cheapest
            that is known to meet QoS, and each lies somewhere in its bounds.
        rcliff_cores_bounds ... oaa_ways_bounds: least and most, inclusive; both are the value itself if `exact`.
    """

    rcliff_cores: float
    rcliff_ways: float
    oaa_cores: float
    oaa_ways: float
    oaa_row: int
    oaa_column: int
    kind: Literal["exact", "bounded"]
    rcliff_cores_bounds: tuple[float, float]
    rcliff_ways_bounds: tuple[float, float]
    oaa_cores_bounds: tuple[float, float]
    oaa_ways_bounds: tuple[float, float]


def bounds(p99_ms: FloatGrid) -> tuple[FloatGrid, FloatGrid]:
    """Least and most p99 of every cell, ms; both the measured value where there is one.

    Latency falls with cores and with ways, so an unmeasured cell (NaN) lies between the measured cells with no less and with no
    more of either. Between two that contradict each other nothing is certain: it could be either, or anything between.
    """
    known = ~np.isnan(p99_ms)
    most = np.minimum.accumulate(np.minimum.accumulate(np.where(known, p99_ms, np.inf), axis=0), axis=1)
    least = np.maximum.accumulate(np.maximum.accumulate(np.where(known, p99_ms, 0.0)[::-1, ::-1], axis=0), axis=1)[::-1, ::-1]
    low, high = np.minimum(least, most), np.maximum(least, most)
    return np.where(known, p99_ms, low), np.where(known, p99_ms, high)


def fill_by_monotony(p99_ms: FloatGrid, qos_target_ms: float) -> NDArray[np.int8]:
    """1 where QoS is met, 0 where it is not, -1 where that is unknown: the verdict of `bounds`, never a guess."""
    low, high = bounds(p99_ms)
    return np.where(high <= qos_target_ms, 1, np.where(low > qos_target_ms, 0, -1)).astype(np.int8)


def slowdown(p99_ms: FloatGrid, axis: int, *, first_is_least: bool = True) -> FloatGrid:
    """log(p99 with one step less / p99), per cell: what taking one core (axis 0) or one way (axis 1) costs.

    Taking the last step leaves nothing, which costs everything (infinite); NaN where a cell of the pair is not measured.

    Args:
        first_is_least: whether the first row or column is the least that the platform can give. Otherwise less could be given,
            but was not measured.
    """
    return _cost(p99_ms, p99_ms, axis, first_is_least)


def _cost(below_ms: FloatGrid, p99_ms: FloatGrid, axis: int, first_is_least: bool) -> FloatGrid:
    """log(what the cell with one step less has in `below_ms` / what the cell has in `p99_ms`)."""
    below = np.roll(below_ms, 1, axis=axis)
    edge: list[slice | int] = [slice(None), slice(None)]
    edge[axis] = 0
    below[tuple(edge)] = np.inf if first_is_least else np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.log(below) - np.log(p99_ms)


def _before(values: FloatGrid) -> FloatGrid:
    """Highest value of the cells before each, along axis 0; -inf for the first."""
    highest = np.maximum.accumulate(values, axis=0)
    return np.concatenate([np.full((1, values.shape[1]), -np.inf), highest[:-1]])


def cliff_cells(
    p99_ms: FloatGrid, qos_target_ms: float, first_is_least: tuple[bool, bool] = (True, True)
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The edge: in each row and each column, the cell meeting QoS from where one step less costs the most latency.

    Of equals, the one with the least of the resource. Where every cell was measured, the cells that are certainly an edge are
    those that possibly are one.

    Args:
        first_is_least: for cores and ways, see `slowdown`.
    Returns:
        Cells that are certainly on the edge, whatever the unmeasured ones are, and cells that possibly are.
    """
    low_ms, high_ms = bounds(p99_ms)
    certain, possible = np.zeros(p99_ms.shape, dtype=bool), np.zeros(p99_ms.shape, dtype=bool)
    for axis in (0, 1):
        if p99_ms.shape[axis] == 1:
            continue  # a resource that cannot be taken away has no cliff
        least = np.moveaxis(_cost(low_ms, high_ms, axis, first_is_least[axis]), axis, 0)
        most = np.moveaxis(_cost(high_ms, low_ms, axis, first_is_least[axis]), axis, 0)
        usable = ~np.isnan(most) & np.moveaxis(low_ms <= qos_target_ms, axis, 0)  # could meet QoS
        met = usable & np.moveaxis(high_ms <= qos_target_ms, axis, 0)
        least, most = np.where(met, least, -np.inf), np.where(usable, most, -np.inf)
        beaten = _before(least), _before(least[::-1])[::-1]
        rival = _before(most), _before(most[::-1])[::-1]
        first = _before(np.where(met, 1.0, -np.inf)) < 0  # nothing before it meets QoS for certain
        maybe = usable & (first | (beaten[0] < most)) & (beaten[1] <= most)
        surely = met & (rival[0] < least) & (rival[1] <= least)
        possible |= np.moveaxis(maybe, 0, axis)
        certain |= np.moveaxis(surely, 0, axis)
    if not possible.any():  # a single cell, or no pair to compare: every cell that meets QoS
        return high_ms <= qos_target_ms, low_ms <= qos_target_ms
    return certain, possible


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

    `scheduler/search` finds the same from few cells; `tests/vectors/labels.json` holds both to one definition.

    Args:
        p99_ms: shape (cores, ways), ms; row 0 is one core; NaN where the cell was not measured, infinite where the
            server was overloaded.
        qos_target_ms: the service's QoS target.
        core_values, way_values: cores of each row and ways of each column, ascending; None: 1, 2, 3, ...
        margin_steps: distance of OAA from the RCliff, in rows and columns.
        least: cores and ways that the platform gives at least. A grid that starts above them says nothing about what lies
            below it, so a label that this could move is `bounded`.
    Raises:
        NoFeasibleCell: no measured cell meets the target; the message says to lower the load or check the target.
    Source: OSML+, Sec. 3.1 (definitions) and 3.2 (the sweep).
    """
    if p99_ms.ndim != 2 or p99_ms.size == 0:
        raise ValueError(f"p99_ms has shape {p99_ms.shape}, want (cores, ways)")
    n_cores, n_ways = p99_ms.shape
    cores = np.asarray(core_values if core_values is not None else np.arange(1, n_cores + 1), dtype=float)
    ways = np.asarray(way_values if way_values is not None else np.arange(1, n_ways + 1), dtype=float)
    state = fill_by_monotony(p99_ms, qos_target_ms)
    if not (state == 1).any():
        measured = ~np.isnan(p99_ms)
        best = np.nanmin(p99_ms) if measured.any() else np.nan
        holds = "no allocation" if not (state == -1).any() else "no measured allocation"
        raise NoFeasibleCell(
            f"{holds} up to {cores[-1]:g} cores and {ways[-1]:g} ways meets {qos_target_ms:g} ms (best p99 "
            f"{'unknown' if np.isnan(best) else 'overloaded' if np.isinf(best) else f'{best:.3g} ms'}); lower the load or "
            "check the target"
        )
    row_share = np.arange(1, n_cores + 1) / n_cores if n_cores > 1 else np.zeros(1)
    column_share = np.arange(1, n_ways + 1) / n_ways if n_ways > 1 else np.zeros(1)
    usage = row_share[:, None] + column_share[None, :]
    first_is_least = (bool(cores[0] <= least[0] + 1e-9), bool(ways[0] <= least[1] + 1e-9))
    certain, possible = cliff_cells(p99_ms, qos_target_ms, first_is_least)
    order = np.argsort(usage, axis=None, kind="stable")  # of equals, the one with fewer cores
    order = order[possible.ravel()[order]]
    ends = np.flatnonzero(certain.ravel()[order])
    if ends.size:
        order = order[: ends[0] + 1]
    met = state.ravel() == 1
    known = order[met[order]]
    chosen = int(known[0]) if known.size else int(np.argmin(np.where(state == 1, usage, np.inf)))
    points = [divmod(int(i), n_ways) for i in dict.fromkeys([*order.tolist(), chosen])]
    found = [_optimum(state, usage, point, margin_steps) for point in points]
    row, column = divmod(chosen, n_ways)
    oaa_row, oaa_column = next(oaa for point, (oaa, _) in zip(points, found, strict=True) if point == (row, column))
    oaas = [cell for oaa, others in found for cell in (oaa, *others)]

    below_grid = False
    if not first_is_least[0]:
        below_grid |= bool(((state[0, :] != 0) & (column_share <= usage[row, column])).any())
    if not first_is_least[1]:
        below_grid |= bool(((state[:, 0] != 0) & (row_share <= usage[row, column])).any())
    exact = bool(ends.size) and len(order) == 1 and not any(others for _, others in found) and not below_grid

    def span(values: FloatGrid, places: list[int]) -> tuple[float, float]:
        return float(values[min(places)]), float(values[max(places)])

    return Label(
        rcliff_cores=float(cores[row]),
        rcliff_ways=float(ways[column]),
        oaa_cores=float(cores[oaa_row]),
        oaa_ways=float(ways[oaa_column]),
        oaa_row=oaa_row,
        oaa_column=oaa_column,
        kind="exact" if exact else "bounded",
        rcliff_cores_bounds=span(cores, [r for r, _ in points]),
        rcliff_ways_bounds=span(ways, [c for _, c in points]),
        oaa_cores_bounds=span(cores, [r for r, _ in oaas]),
        oaa_ways_bounds=span(ways, [c for _, c in oaas]),
    )


def _optimum(
    state: NDArray[np.int8], usage: FloatGrid, rcliff: tuple[int, int], margin_steps: tuple[int, int]
) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """OAA for an RCliff, and the unmeasured cells that could turn out to be it instead."""
    n_cores, n_ways = state.shape
    row = min(rcliff[0] + (margin_steps[0] if n_cores > 1 else 0), n_cores - 1)
    column = min(rcliff[1] + (margin_steps[1] if n_ways > 1 else 0), n_ways - 1)
    if state[row, column] == 1:
        return (row, column), []
    # Measurements need not be monotone. Look for the cheapest cell that meets QoS past the margin, else past the RCliff.
    others: list[tuple[int, int]] = [(row, column)] if state[row, column] == -1 else []
    for least_row, least_column in ((row, column), rcliff):
        beyond = usage.copy()
        beyond[:least_row, :] = np.inf
        beyond[:, :least_column] = np.inf
        met, unknown = (np.where(state == verdict, beyond, np.inf) for verdict in (1, -1))
        limit = float(np.min(met))
        cheaper = np.argwhere(np.isfinite(unknown) & (unknown <= limit)).tolist()
        others += [(int(r), int(c)) for r, c in cheaper]
        if np.isfinite(limit):
            best = divmod(int(np.argmin(met)), n_ways)
            return best, others
    return (row, column), others or [(row, column)]


def grid_of(
    plane: pl.DataFrame, axes: samples.Axes | None = None, room: tuple[float, float] = (np.inf, np.inf)
) -> tuple[FloatGrid, FloatGrid, FloatGrid, FloatGrid]:
    """p99 grid, bandwidth grid (both NaN where not measured), core values and way values of one plane's cells.

    Args:
        axes: cores and ways of the sweep where not every cell was measured; None: those that were measured.
        room: cores and ways that neighbours leave; cells beyond are no part of the plane.
    """
    cores, ways = (np.unique(plane[name].to_numpy()) for name in ("alloc_cores", "alloc_ways"))
    if axes is not None:
        # What was measured had room, whatever rounding says.
        cores = np.union1d(cores, [c for c in axes.cores if c <= room[0] + 1e-6])
        ways = np.union1d(ways, [w for w in axes.ways if w <= room[1] + 1e-6])
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
        axes = data.axes
        room = (np.inf, np.inf)
        if axes is not None:
            held = samples.held_by_neighbours(str(nb_key))
            room = (data.platform.cores - held[0], data.platform.ways - held[1])
        p99_ms, mbl_mbps, core_values, way_values = grid_of(plane, axes, room)
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
            "cells": p99_ms.size,
            "cells_measured": plane.height,
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
        } | dict.fromkeys(BOUNDS)
        try:
            label = label_plane(
                p99_ms,
                target,
                core_values=core_values.tolist(),
                way_values=way_values.tolist(),
                margin_steps=(p.margin_core_steps, p.margin_ways),
                # 1 way: manifests of full grids do not say how many a CBM needs at least; where that is more, labels are
                # `bounded` too often
                least=axes.least if axes is not None else (data.platform.core_step, 1.0),
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
            for name in ("rcliff_cores", "oaa_cores", *(("rcliff_ways", "oaa_ways") if data.platform.ways > 0 else ())):
                row[f"{name}_low"], row[f"{name}_high"] = getattr(label, f"{name}_bounds")
        rows.append(row)
    floats = ("oaa_cores", "oaa_ways", "oaa_mbl_mbps", "rcliff_cores", "rcliff_ways", *BOUNDS)
    texts = ("kind", "reason")
    frame = pl.DataFrame(rows, schema_overrides={**dict.fromkeys(floats, pl.Float64), **dict.fromkeys(texts, pl.String)})
    labelled = frame["reason"].is_null()
    parts = np.full(frame.height, "none", dtype=object)
    chosen = frame.filter(labelled)
    parts[labelled.to_numpy()] = split_planes(
        chosen["plane_id"].to_list(), chosen["service"].to_list(), p.test_fraction, p.val_fraction, p.seed
    )
    return frame.with_columns(pl.Series("split", parts.tolist(), dtype=pl.String))


NO_MEMORY_AXIS = "limits on memory are no axis of this data set"
_MEMORY_LABELS = ("memory_oaa_bytes", "memory_oaa_pool_bytes", "memory_cliff_bytes", "memory_kind", "memory_reason")
"""Of a plane's OAA, in `labels.parquet`; the columns of the same name in `memory.parquet`."""
_MEMORY_SCHEMA: dict[str, Any] = {
    **{name: pl.String for name in ("campaign", "platform", "service")},
    **dict.fromkeys(("rps", "threads", "mba_pct"), pl.Float64),
    "neighbours": pl.String,
    **dict.fromkeys(("alloc_cores", "alloc_ways", "qos_target_ms"), pl.Float64),
    **dict.fromkeys(("limits", "limits_measured", "memory_oaa_bytes", "memory_oaa_pool_bytes", "memory_cliff_bytes"), pl.Int64),
    **dict.fromkeys(("memory_kind", "memory_reason"), pl.String),
}


def memory_label(limits: Sequence[float], p99_ms: Sequence[float], qos_target_ms: float) -> dict[str, Any]:
    """Memory OAA and memory cliff of one service with everything else given.

    The memory OAA is the least limit that meets the target, where every larger one that was measured meets it too. The memory
    cliff is the limit meeting the target from where one step less costs the most latency, as a ratio: the RCliff's definition
    (`cliff_cells`) on one axis.

    Args:
        limits: bytes, ascending; infinite: no limit.
        p99_ms: of each; NaN where it was not measured, infinite where the server was overloaded.
    Returns:
        Of `_MEMORY_LABELS` all but the pool. `bounded`: a limit that was not measured, or one below the least, could move one of
        them.
    """
    grid = np.asarray(p99_ms, dtype=float)
    state = fill_by_monotony(grid[:, None], qos_target_ms)[:, 0]
    none = {"memory_oaa_bytes": None, "memory_cliff_bytes": None, "memory_kind": None}
    measured = np.isfinite(grid) | np.isinf(grid)
    missed = np.flatnonzero(measured & ~(grid <= qos_target_ms))
    first = int(missed[-1]) + 1 if missed.size else 0
    met = [k for k in range(first, len(grid)) if measured[k]]
    if not met:
        most = "without a limit" if np.isinf(limits[-1]) and measured[-1] else "with the largest limit that was measured"
        return none | {"memory_reason": f"the target is missed {most}; lower the load, or give more cores or ways"}
    least = met[0]
    if np.isinf(limits[least]):
        return none | {"memory_reason": "the target is met without a limit alone; measure larger limits"}
    # what is not measured between a limit that misses and one that meets it
    bounded = bool((state[first:least] != 0).any()) or first == 0
    found: dict[str, Any] = none | {"memory_oaa_bytes": round(limits[least]), "memory_reason": None}
    # a step is one between limits that were both measured
    steps = ~np.isnan(slowdown(grid[:, None], 0, first_is_least=False)[:, 0]) & (grid <= qos_target_ms)
    certain, possible = (edge[:, 0] for edge in cliff_cells(grid[:, None], qos_target_ms, (False, True)))
    edges = np.flatnonzero(possible & steps)
    if edges.size and np.isfinite(limits[edges[0]]):
        found["memory_cliff_bytes"] = round(limits[edges[0]])
    elif edges.size and not np.isnan(grid).any():
        found["memory_reason"] = "p99 jumps between the largest limit and none; measure larger limits"
    else:
        found["memory_reason"] = (
            "no limit that meets the target has a smaller one beside it that was measured, or p99 jumps elsewhere"
        )
    bounded |= not (certain.any() and int(possible.sum()) == 1)
    return found | {"memory_kind": "bounded" if bounded else "exact"}


def _with_curves(cells: pl.DataFrame) -> pl.DataFrame:
    """Cells by pool: `curve` is the pool as a share of the limit, or in bytes, whichever of them the service has fewer of."""
    limit, pool = samples.MEMORY_KEY
    share = (pl.col(pool) / pl.col(limit)).round(4)
    by_share = share.drop_nulls().n_unique().over("service") <= pl.col(pool).drop_nulls().n_unique().over("service")
    curve = pl.when(by_share).then(share).otherwise(pl.col(pool).cast(pl.Float64))
    return cells.with_columns(curve.alias("curve")).sort(*samples.CELL_KEY, "curve", limit, nulls_last=True)


def label_memory(cells: pl.DataFrame | None, data: samples.DataSet) -> pl.DataFrame:
    """Labels along the axis of memory, a row for each allocation of cores and ways under one load.

    Each pool is a curve of its own over the limits on memory: so many bytes, or the same share of each limit. The label is that
    of the curve with the least memory OAA; of equals the one with the smaller pool. A data set without such an axis has no row.
    """
    rows: list[dict[str, Any]] = []
    if cells is not None:
        limit = samples.MEMORY_KEY[0]
        limit_held, pool_held = samples.IN_FORCE
        cells = _with_curves(cells)
        # what the sweep has of each service: where cells were chosen, some limits were not measured with each allocation
        asked = cells.filter(pl.col(limit).is_not_null()).group_by("service").agg(pl.col(limit).unique().sort())
        axes = {str(service): np.array(limits, dtype=float) for service, limits in asked.iter_rows()}
        free_of = set(cells.filter(pl.col(limit).is_null())["service"])
        for key, plane in cells.group_by(samples.CELL_KEY, maintain_order=True):
            told = dict(zip(samples.CELL_KEY, key, strict=True))
            service, target = str(told["service"]), data.qos_target_ms(str(told["service"]))
            limits = axes.get(service, np.empty(0))
            free = plane.filter(pl.col(limit).is_null())
            without = free["p99_ms"].cast(pl.Float64).fill_null(np.nan).to_list()[:1] or [np.nan]
            under = plane.filter(pl.col(limit).is_not_null())
            best: dict[str, Any] | None = None
            for _, curve in under.group_by("curve", maintain_order=True):
                at = np.searchsorted(limits, curve[limit].to_numpy().astype(float))
                p99_ms, held, pools = np.full(len(limits), np.nan), limits.copy(), np.full(len(limits), np.nan)
                p99_ms[at] = curve["p99_ms"].cast(pl.Float64).fill_null(np.nan).to_numpy()
                held[at] = curve[limit_held].cast(pl.Float64).to_numpy()
                pools[at] = curve[pool_held].cast(pl.Float64).fill_null(np.nan).to_numpy()
                order = np.argsort(held, kind="stable")
                each = [*held[order].tolist(), *([np.inf] if service in free_of else [])]
                found = memory_label(each, [*p99_ms[order].tolist(), *(without if service in free_of else [])], target)
                least = found["memory_oaa_bytes"]
                if best is None or (least is not None and (best["memory_oaa_bytes"] is None or least < best["memory_oaa_bytes"])):
                    of_it = [] if least is None else [x for x, y in zip(pools, held, strict=True) if round(y) == least]
                    known = [round(x) for x in of_it if not np.isnan(x)]
                    best = found | {"memory_oaa_pool_bytes": known[0] if known else None}
            if best is None:
                best = dict.fromkeys(_MEMORY_LABELS) | {"memory_reason": "no limit was measured with this allocation"}
            rows.append(
                {
                    "campaign": data.campaign,
                    "platform": data.platform.name,
                    **{name: told[name] for name in ("service", "rps", "threads", "mba_pct")},
                    "neighbours": told["nb_key"],
                    **{name: told[name] for name in ("alloc_cores", "alloc_ways")},
                    "qos_target_ms": target,
                    "limits": len(limits),
                    "limits_measured": under[limit].n_unique(),
                    **best,
                }
            )
    return pl.DataFrame(rows, schema=_MEMORY_SCHEMA)


def with_memory(labels: pl.DataFrame, memory: pl.DataFrame, *, has_axis: bool) -> pl.DataFrame:
    """Labels of planes with what each plane's OAA needs of memory; null where there is no such label, with the reason."""
    key = ["service", "rps", "threads", "mba_pct", "neighbours"]
    at = {"oaa_cores": "alloc_cores", "oaa_ways": "alloc_ways"}
    # a host without partitioning has ways in no label
    ways = pl.col("oaa_ways").fill_null(0.0) if labels["oaa_ways"].is_null().all() else pl.col("oaa_ways")
    keyed = labels.with_columns(
        *(pl.col(name).cast(_MEMORY_SCHEMA[name]).alias(f"k_{name}") for name in key),
        pl.col("oaa_cores").round(6).alias("k_alloc_cores"),
        ways.alias("k_alloc_ways"),
    )
    names = [*key, *at.values()]
    found = keyed.join(
        memory.select(*(pl.col(name).alias(f"k_{name}") for name in names), *_MEMORY_LABELS),
        on=[f"k_{name}" for name in names],
        how="left",
        maintain_order="left",
    ).drop(f"k_{name}" for name in names)
    none = pl.col("memory_oaa_bytes").is_null() & pl.col("memory_reason").is_null()
    why = pl.lit(NO_MEMORY_AXIS)
    if has_axis:
        why = (
            pl.when(pl.col("oaa_cores").is_null())
            .then(pl.lit("no allocation meets the target without a limit"))
            .otherwise(pl.lit("no limit was measured with the cores and ways of OAA"))
        )
    return found.with_columns(memory_reason=pl.when(none).then(why).otherwise("memory_reason"))


def run(folder: Path, out: Path, p: params.Label, reading: params.Samples | None = None) -> dict[str, Any]:
    """Label one data set; returns the metrics."""
    data = samples.open_dataset(folder)
    with engine.connect(reading or params.Samples()) as on:
        rows = reduce.verdict_counts(data, on)
        cells = reduce.cells(data, on)
        memory_cells = reduce.memory_cells(data, on)
    if cells.is_empty():
        left_out = ", ".join(f"{rows[v]} {v}" for v in samples.DROPPED if rows[v] or v != samples.MEMORY_BOUND)
        remedy = "measure it again on a quiet host"
        if rows[samples.MEMORY_BOUND]:
            remedy = 'add "none" to sweep.memory, so that cores and ways are measured without a limit too'
        raise BadInput(f"{folder}: no row says anything about the server ({left_out}); {remedy}")
    memory = label_memory(memory_cells, data)
    labels = with_memory(label_cells(cells, data, p), memory, has_axis=memory_cells is not None)
    status = dict(cells["status"].value_counts().iter_rows())
    kinds = dict(labels["kind"].drop_nulls().value_counts().iter_rows())
    splits = dict(labels["split"].value_counts().iter_rows())
    metrics = {
        "data_sha256": data.sha256,
        "rows": {verdict.replace("-", "_"): rows[verdict] for verdict in samples.VERDICTS},
        "rows_without_latency": rows[reduce.NO_LATENCY],
        "rows_disturbed": rows[samples.DISTURBED],
        "rows_memory_bound": rows[samples.MEMORY_BOUND],
        "rows_dropped": sum(rows[verdict] for verdict in samples.DROPPED),
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
        "memory": _memory_metrics(memory, has_axis=memory_cells is not None),
        "cases": data.cases,
    }
    for name, frame in (("labels", labels), ("cells", cells), ("memory", memory)):
        write_parquet(out / f"{name}.parquet", frame)
    write_json(out / "label.json", metrics)
    write_headline(out, {"labels": kinds.get("exact", 0) + kinds.get("bounded", 0)})
    return metrics


def _memory_metrics(memory: pl.DataFrame, *, has_axis: bool) -> dict[str, Any]:
    """Of the labels along the axis of memory; all null without one, with the reason."""
    if not has_axis:
        return {**dict.fromkeys(("allocations", "with_oaa", "with_cliff", "exact", "bounded")), "reason": NO_MEMORY_AXIS}
    kinds = memory["memory_kind"].drop_nulls()
    return {
        "allocations": memory.height,
        "with_oaa": memory["memory_oaa_bytes"].is_not_null().sum(),
        "with_cliff": memory["memory_cliff_bytes"].is_not_null().sum(),
        "exact": int((kinds == "exact").sum()),
        "bounded": int((kinds == "bounded").sum()),
        "reason": None,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.label", description="Find RCliff and OAA of every plane.")
    parser.add_argument("--data", type=Path, required=True, help="folder of one target of a campaign")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)

    def work() -> dict[str, Any]:
        p = params.load(args.params)
        return run(args.data, args.out, p.label, p.samples)

    return params.run_stage(work)


if __name__ == "__main__":
    raise SystemExit(main())
