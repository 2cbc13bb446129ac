"""From a model of many platforms to one of a new platform, by few samples of it.

All functions take a table whose labels are in the units of the model (pipelines/worlds.py: per cent of a platform), and say
nothing of rows that they are not given. A method returns a network of the same shape, so that a bundle can hold it.

    copy      all weights are trained on, at a low rate (OSML+, Sec. 3.2)
    blend     the weights half-way between the model and its copy: what the few samples do not say stays nearly as it was
    outputs   the last layer alone moves: least absolute residuals in closed form, drawn back to where it was

`outputs` weighs planes, not rows: all rows of a plane share one label, so that a plane is one sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models import export, features, model_a, model_b
from models.features import Scale
from pipelines import params
from pipelines.fits import fit_oaa, fit_qos
from pipelines.fits.fit import Start, matrix
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Table

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

METHODS = ("copy", "blend", "outputs")
ROUNDS = 12
"""Of reweighting: by then the residuals change by less than a hundredth of their scale."""
LEAST_RESIDUAL = 0.02
"""Of an output's scale: below it a residual weighs no more."""


def only(table: Table, cells: I64) -> Table:
    """The table as who measured these cells has it: the QoS of all others is unknown. Labels stay, and so do the rows."""
    qos = np.full(len(table.cell_qos), np.nan)
    qos[cells] = table.cell_qos[cells]
    return replace(table, cell_qos=qos)


def start_of(model: Fitted) -> Start:
    return Start(model.weights, (), tuple(model.inputs), tuple(model.outputs))


def trained_a(
    table: Table, rows: I64, p: params.Regression, seed: int, out: Path, begin: Fitted | None, val: I64 | None = None
) -> Fitted:
    """Model-A of these rows; from nothing where `begin` is None. Without rows to validate on the last epoch is kept."""
    start = None if begin is None else start_of(begin)
    nothing = np.empty(0, dtype=np.int64)
    return fit_oaa.fit_model(model_a.SPEC, table, p, seed, out, rows=(rows, nothing if val is None else val), begin=start)


def trained_b(
    table: Table, rows: I64, p: params.ModelB, seed: int, out: Path, begin: Fitted | None, val: I64 | None = None
) -> Fitted:
    """Model-B of these rows, as `trained_a`."""
    start = None if begin is None else start_of(begin)
    nothing = np.empty(0, dtype=np.int64)
    return fit_qos.fit_model(model_b.SPEC, table, p, seed, out, rows=(rows, nothing if val is None else val), begin=start)


def blend(model: Fitted, copied: Fitted, share: float) -> Fitted:
    """Weights between a model and its copy, which may have other scales of its outputs.

    Args:
        share: 0: the model, 1: its copy.
    """
    moved = start_of(copied).moved_to(model.inputs, model.outputs).weights
    weights = {n: ((1.0 - share) * w + share * moved[n]).astype(np.float32) for n, w in model.weights.items()}
    return replace(model, weights=weights)


def outputs_a(table: Table, rows: I64, a: Fitted, hold: float) -> Fitted:
    """Model-A with its last layer moved towards the labels of these rows.

    Args:
        hold: planes that the model as it is counts as.
    """
    names = [s.name for s in a.outputs]
    low, high = fit_oaa.label_ends(table, names)
    plane = table.plane[rows]
    x = features.normalise(table.matrix([b.name for b in a.inputs], rows), a.inputs)
    said = features.natural(export.forward(a.weights, x), a.outputs)
    wanted = np.where(np.isfinite(low[plane]), np.clip(said, low[plane], high[plane]), np.nan)
    return _moved(a, x, wanted, plane, hold)


def outputs_b(table: Table, rows: I64, b: Fitted, hold: float) -> Fitted:
    """Model-B with its last layer moved, as `outputs_a`: asked from each row about each measured cell of its plane."""
    cells = [np.flatnonzero((table.cell_plane == table.plane[r]) & np.isfinite(table.cell_qos)) for r in rows]
    before = np.repeat(rows, [len(c) for c in cells])
    after = np.concatenate([np.empty(0, dtype=np.int64), *cells])
    wanted = np.minimum(table.cell_qos[after], b.setting("qos_cap"))[:, None]
    return _moved(b, matrix(table, before, b.inputs, after), wanted, table.plane[before], hold)


def _hidden(weights: export.Weights, x: NDArray[np.float32]) -> tuple[F64, str]:
    """What the last layer sees, and that layer's name."""
    last = len(export.layer_shapes(weights)) - 1
    for n in range(last):
        x = np.maximum(x @ weights[f"layers.{n}.weight"].T + weights[f"layers.{n}.bias"], np.float32(0.0))
    return x.astype(np.float64), f"layers.{last}"


def _moved(model: Fitted, x: NDArray[np.float32], wanted: F64, plane: I64, hold: float) -> Fitted:
    """The least sum over planes of the mean absolute residual, and `hold` times the square of the move, in each output."""
    hidden, last = _hidden(model.weights, x)
    weight, bias = (model.weights[f"{last}.{n}"].astype(np.float64) for n in ("weight", "bias"))
    residual = _standard(wanted, model.outputs) - (hidden @ weight.T + bias)
    spread = np.sqrt((hidden**2).mean(axis=0)) if len(hidden) else np.ones(hidden.shape[1])
    used = spread > 1e-6
    design = np.column_stack([hidden[:, used] / spread[used], np.ones(len(hidden))])
    for k in range(len(model.outputs)):
        known = np.isfinite(residual[:, k])
        if not known.any():
            continue
        move = _least_absolute(design[known], residual[known, k], plane[known], hold)
        weight[k, used] += move[:-1] / spread[used]
        bias[k] += move[-1]
    moved = {f"{last}.weight": weight.astype(np.float32), f"{last}.bias": bias.astype(np.float32)}
    return replace(model, weights={**model.weights, **moved})


def _standard(values: F64, outputs: Sequence[Scale]) -> F64:
    return (values - np.array([s.offset for s in outputs])) / np.array([s.scale for s in outputs])


def _least_absolute(design: F64, residual: F64, plane: I64, hold: float) -> F64:
    _, which, count = np.unique(plane, return_inverse=True, return_counts=True)
    each = 1.0 / count[which]
    # the inputs of the last layer are many and alike: the penalty is shared among them
    penalty = hold / design.shape[1] * np.eye(design.shape[1])
    penalty[-1, -1] = hold / design.shape[1]
    move = np.zeros(design.shape[1])
    for _ in range(ROUNDS):
        weighed = each / np.maximum(np.abs(residual - design @ move), LEAST_RESIDUAL)
        move = np.linalg.solve(design.T @ (design * weighed[:, None]) + penalty, design.T @ (weighed * residual))
    return move
