"""Fit OSML's Model-B and B' (`osml-b`, `osml-bp`): what a service near its OAA can give away, and what giving it away costs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import features
from models.osml_b import ANGLES, OUTPUTS
from models.spec import Spec
from pipelines import params
from pipelines.fits import fit, tensors, trade
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Table

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def starts(table: Table, reach_steps: int) -> I64:
    """Cells near their plane's OAA, at most so many steps of the sweep away in cores and in ways, that meet QoS."""
    grids, labels = table.grids, table.labels(["oaa_cores", "oaa_ways"])
    if table.platform.ways == 0:
        labels[:, 1] = 0.0
    places = []
    for k, values in enumerate((grids.cores, grids.ways)):
        same = np.isclose(values, labels[:, k : k + 1])
        # without a label, or where OAA is on a line that was not measured: far from everything
        places.append(np.where(same.any(axis=1), same.argmax(axis=1), -1_000_000))
    oaa_row, oaa_column = places
    near = (np.abs(grids.row - oaa_row[table.cell_plane]) <= reach_steps) & (
        np.abs(grids.column - oaa_column[table.cell_plane]) <= reach_steps
    )
    return np.flatnonzero(near & (np.nan_to_num(table.cell_qos, nan=0.0) >= 1.0))


@dataclass(frozen=True)
class BPoints:
    """Labels of Model-B.

    Attributes:
        index: shape (cells,), a cell's place in `given`, -1 where it is no start.
        given: shape (starts, slowdowns, outputs), in cores and ways; NaN where nothing can be given.
    """

    index: I64
    given: NDArray[np.float32]


def b_points(table: Table, cells: I64, slowdowns: tuple[float, ...]) -> BPoints:
    """B-points of these cells at each slowdown, from the measured grid of their plane.

    Only where measured: in a frontier campaign most cells are not, and then there is seldom more than one step to take.
    """
    grids = table.grids
    qos = grids.spread(table.cell_qos)
    plane, row, column = table.cell_plane[cells], grids.row[cells], grids.column[cells]
    given = np.empty((len(cells), len(slowdowns), len(OUTPUTS)), dtype=np.float32)
    for k, slowdown in enumerate(slowdowns):
        steps = trade.b_points(trade.keeps(qos, slowdown), plane, row, column)  # (starts, angles, 2)
        for angle in range(len(ANGLES)):
            rows, columns = steps[:, angle, 0], steps[:, angle, 1]
            given[:, k, 2 * angle] = grids.cores[plane, row] - grids.cores[plane, row - rows]
            given[:, k, 2 * angle + 1] = grids.ways[plane, column] - grids.ways[plane, column - columns]
        given[~steps.any(axis=(1, 2)), k] = np.nan
    index = np.full(len(table.cell_plane), -1, dtype=np.int64)
    index[cells] = np.arange(len(cells))
    return BPoints(index, given)


def fit_b(spec: Spec, table: Table, p: params.OsmlB, seed: int, out: Path, watch: fit.Watch | None = None) -> Fitted:
    """Model-B: every row of a start, asked at one of the slowdowns, another each pass."""
    start = time.monotonic()
    inputs, missing = tensors.model_inputs(spec.inputs, table)
    names = features.output_candidates(spec.outputs, table.feature_set, table.platform.ways)
    columns = [spec.outputs.index(name) for name in names]
    points = b_points(table, starts(table, p.reach_steps), tuple(p.slowdowns))
    slowdowns = np.array(p.slowdowns)

    def rows_of(split: str) -> I64:
        rows = table.part(split)
        index = points.index[table.cell[rows]]
        usable = (index >= 0) & np.isfinite(points.given[np.maximum(index, 0)]).any(axis=(1, 2))
        return rows[usable]

    train, val = rows_of("train"), rows_of("val")
    if len(train) == 0:
        raise fit.no_labels("an allocation near OAA from which anything can be given")
    seen = tensors.observed(table, train) | {"qos_slowdown": (0.0, float(slowdowns.max()))}
    bounds = features.make_bounds(inputs, seen, table.platform)
    at = [bound.name for bound in bounds].index("qos_slowdown")
    taught = points.given[points.index[table.cell[train]]].astype(np.float64)
    scales = [fit.scale_of(name, taught[..., k].ravel()) for name, k in zip(names, columns, strict=True)]

    def batches(rows: I64, fixed: bool) -> fit.Drawn:
        base, index = fit.matrix(table, rows, bounds), points.index[table.cell[rows]]

        def draw(rng: np.random.Generator) -> tuple[NDArray[np.float32], F64]:
            asked = rng.integers(0, len(slowdowns), len(rows))
            x = base.copy()
            x[:, at] = features.normalise(slowdowns[asked, None], [bounds[at]])[:, 0]
            return x, points.given[index, asked][:, columns].astype(np.float64)

        return fit.Drawn(draw, len(rows), scales, p, seed, fixed=fixed)

    net = fit.network(spec, p, bounds, scales, seed + 3)
    val_batches = batches(val, True) if len(val) else None
    weights, course = fit.fit_regression(net, batches(train, False), val_batches, p, out, watch)
    fitted = Fitted(weights, bounds, scales, missing, settings={"slowdowns": list(p.slowdowns)})
    return fit.finished(fitted, course, table, start)


class SlowdownQuestions:
    """Model-B's shadow is asked: what if a row near OAA went to a cell with fewer cores, fewer ways, or both?"""

    def __init__(self, table: Table, rows: I64, p: params.OsmlBp) -> None:
        near = np.zeros(len(table.cell_plane), dtype=bool)
        near[starts(table, p.reach_steps)] = True
        self.rows = rows[near[table.cell[rows]]]
        self._table, self._take = table, p.take_steps
        self._cell = table.cell[self.rows]

    def draw(self, rng: np.random.Generator) -> tuple[I64, F64]:
        """Cells asked about, and the slowdown there, NaN where the cell was not measured: that is no question."""
        table, grids, here = self._table, self._table.grids, self._cell
        rows, columns = (rng.integers(0, self._take + 1, len(here)) for _ in range(2))
        row, column = np.maximum(grids.row[here] - rows, 0), np.maximum(grids.column[here] - columns, 0)
        to = grids.at(table.cell_plane[here], row, column)
        lost = trade.slowdown(table.cell_qos[here], table.cell_qos[np.maximum(to, 0)])
        return np.where(to >= 0, to, here), np.where(to >= 0, lost, np.nan)


def fit_bp(spec: Spec, table: Table, p: params.OsmlBp, seed: int, out: Path, watch: fit.Watch | None = None) -> Fitted:
    """Model-B': every row near OAA, asked about another allocation each pass."""
    start = time.monotonic()
    inputs, missing = tensors.model_inputs(spec.inputs, table)
    questions = SlowdownQuestions(table, table.part("train"), p)
    if len(questions.rows) == 0:
        raise fit.no_labels("a measured allocation near OAA")
    bounds = features.make_bounds(inputs, tensors.observed(table, questions.rows), table.platform)
    scale = fit.scale_of("qos_slowdown", questions.draw(np.random.default_rng(seed))[1])

    def batches(asked: SlowdownQuestions, fixed: bool) -> fit.Drawn:
        def draw(rng: np.random.Generator) -> tuple[NDArray[np.float32], F64]:
            cells, lost = asked.draw(rng)
            return fit.matrix(table, asked.rows, bounds, cells), lost[:, None]

        return fit.Drawn(draw, len(asked.rows), [scale], p, seed, fixed=fixed)

    net = fit.network(spec, p, bounds, [scale], seed + 4)
    held = SlowdownQuestions(table, table.part("val"), p)
    val_batches = batches(held, True) if len(held.rows) else None
    weights, course = fit.fit_regression(net, batches(questions, False), val_batches, p, out, watch)
    return fit.finished(Fitted(weights, bounds, [scale], missing), course, table, start)


def fit_model(spec: Spec, table: Table, p: Any, seed: int, out: Path, watch: fit.Watch | None = None) -> Fitted:
    """Either, by its outputs."""
    return (fit_b if spec.outputs == OUTPUTS else fit_bp)(spec, table, p, seed, out, watch)
