"""Fit a Model-A (`a`, `osml-a`, `osml-ap`): counters of one sample to OAA and RCliff of its plane."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from models import export, features, intervals
from models.spec import Spec
from pipelines import params
from pipelines.fits import fit, tensors
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Batches, Table

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def predict_a(table: Table, a: Fitted, rows: I64) -> F64:
    """Model-A's outputs for these rows, natural units."""
    x = features.normalise(table.matrix([b.name for b in a.inputs], rows), a.inputs)
    return features.natural(export.forward(a.weights, x), a.outputs)


def label_ends(table: Table, outputs: list[str]) -> tuple[F64, F64]:
    """Least and most that each label can be, shape (planes, outputs): equal where it is exact, NaN where there is none."""
    have = table.plane_labels.columns
    known = table.labels(outputs)
    ends = []
    for end in ("low", "high"):
        values = known.copy()
        for k, name in enumerate(outputs):
            if f"{name}_{end}" in have:
                bound = table.labels([f"{name}_{end}"])[:, 0]
                values[:, k] = np.where(np.isfinite(bound), bound, known[:, k])
        ends.append(np.where(np.isfinite(known), values, np.nan))
    return ends[0], ends[1]


def fit_model(
    spec: Spec,
    table: Table,
    p: params.Regression,
    seed: int,
    out: Path,
    watch: fit.Watch | None = None,
    *,
    rows: tuple[I64, I64] | None = None,
    begin: fit.Start | None = None,
    keep: int | None = None,
    interval: float | None = None,
) -> Fitted:
    """Train on the planes of the training split; the weights are those of the epoch that is best on the validation split.

    Args:
        rows: to train and to validate on; None: all of those splits.
        begin: None: at random weights.
        keep: the epoch whose weights are kept; None: the best one on the rows to validate on.
        interval: the share of labels that the ends of intervals are taught to hold between them; None: there are no ends.
    """
    start = time.monotonic()
    inputs, missing = tensors.model_inputs(spec.inputs_of(p.inputs), table)
    train, val = rows if rows is not None else (fit.parts(table, s, alone=spec.alone) for s in ("train", "val"))
    outputs = features.output_candidates(spec.outputs, table.feature_set, table.platform.ways)
    labels = table.labels(outputs)
    chosen = np.unique(table.plane[train])
    outputs = [name for k, name in enumerate(outputs) if np.isfinite(labels[chosen, k]).any()]
    if not outputs or len(train) == 0:
        raise fit.no_labels("a label and no neighbours" if spec.alone else "a label")
    names = outputs if interval is None else intervals.with_ends(outputs)
    column = [outputs.index(intervals.central(name)) for name in names]
    labels = table.labels(outputs)[:, column]
    low, high = (end[:, column] for end in label_ends(table, outputs))
    bounds = features.make_bounds(inputs, tensors.observed(table, train), table.platform)
    scales = [fit.scale_of(name, labels[table.plane[train], k]) for k, name in enumerate(names)]

    def batches(rows: I64, shuffle: bool) -> Batches:
        x = torch.from_numpy(features.normalise(table.matrix(inputs, rows), bounds))
        ends = [torch.from_numpy(features.standardise(end[table.plane[rows]], scales)) for end in (low, high)]
        batch = tensors.batch_size(p.batch, len(rows))
        passes = fit.passes_for(p, len(rows), batch) if shuffle else 1
        exact = torch.equal(torch.nan_to_num(ends[0]), torch.nan_to_num(ends[1]))
        return Batches((x, ends[0]) if exact else (x, *ends), batch, seed, shuffle=shuffle, passes=passes)

    net = fit.network(spec, p, bounds, scales, seed, begin)
    val_batches = batches(val, False) if len(val) else None
    weights, course = fit.fit_regression(
        net,
        batches(train, True),
        val_batches,
        p,
        out,
        watch,
        begun=begin is not None,
        memory=fit.memory_columns(bounds),
        keep=keep,
        levels=None if interval is None else intervals.levels(names, interval),
    )
    return fit.finished(Fitted(weights, bounds, scales, missing), course, table, start, spec.alone)
