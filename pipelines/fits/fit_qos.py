"""Fit Model-B of OSML+ (`b`): counters and an expected allocation to the QoS there.

Planes without a feasible cell have no place in Model-A's material, but they teach B what a missed target looks like.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models import export, features, intervals
from models.spec import Spec
from pipelines import params
from pipelines.errors import BadInput
from pipelines.fits import fit, tensors
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import QosQuestions, Table

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def fit_model(
    spec: Spec,
    table: Table,
    p: params.ModelB,
    seed: int,
    out: Path,
    watch: fit.Watch | None = None,
    *,
    rows: tuple[I64, I64] | None = None,
    begin: fit.Start | None = None,
    keep: int | None = None,
    interval: float | None = None,
) -> Fitted:
    """Train on the planes of the training split and on those without a feasible cell.

    Args:
        rows: to train and to validate on; None: all of those splits.
        begin: None: at random weights.
        keep: the epoch whose weights are kept; None: the best one on the rows to validate on.
        interval: as in fit_oaa.fit_model.
    """
    start = time.monotonic()
    inputs, missing = tensors.model_inputs(spec.inputs_of(p.inputs), table)
    train, val = rows if rows is not None else (table.part("train", "none"), table.part("val"))
    bounds = features.make_bounds(inputs, tensors.observed(table, train), table.platform)
    questions = QosQuestions(table, train, p.qos_cap, p.near_share)
    if len(questions.rows) == 0:
        raise BadInput("no plane of the training split has a cell with a known QoS; see cells.parquet")
    names = ["qos"] if interval is None else intervals.with_ends(["qos"])
    taught = questions.draw(np.random.default_rng(seed))[1]
    scales = [features.make_scales([name], taught[:, None])[0] for name in names]

    def batches(asked: QosQuestions, fixed: bool) -> fit.Drawn:
        base = fit.matrix(table, asked.rows, bounds)
        places = [k for k, bound in enumerate(bounds) if bound.name.startswith("expected_")]
        of = [bounds[k] for k in places]

        def draw(rng: np.random.Generator) -> tuple[NDArray[np.float32], F64]:
            cells, qos = asked.draw(rng)
            x = base.copy()
            x[:, places] = fit.matrix(table, asked.rows, of, cells)
            return x, np.tile(qos[:, None], len(names))

        return fit.Drawn(draw, len(asked.rows), scales, p, seed, fixed=fixed)

    net = fit.network(spec, p, bounds, scales, seed + 1, begin)
    val_questions = QosQuestions(table, val, p.qos_cap, p.near_share) if len(val) else None
    val_batches = batches(val_questions, True) if val_questions is not None and len(val_questions.rows) else None
    weights, course = fit.fit_regression(
        net,
        batches(questions, False),
        val_batches,
        p,
        out,
        watch,
        begun=begin is not None,
        memory=fit.memory_columns(bounds),
        keep=keep,
        levels=None if interval is None else intervals.levels(names, interval),
    )
    return fit.finished(Fitted(weights, bounds, scales, missing, settings={"qos_cap": p.qos_cap}), course, table, start)


def predict_qos(b: Fitted, table: Table, rows: I64, cells: I64) -> F64:
    """Model-B's QoS of rows if they went to cells."""
    return predict_all(b, table, rows, cells)[:, 0]


def predict_all(b: Fitted, table: Table, rows: I64, cells: I64) -> F64:
    """All of Model-B's outputs, `qos` first."""
    return features.natural(export.forward(b.weights, fit.matrix(table, rows, b.inputs, cells)), b.outputs)
