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
from pipelines.fits import fit, holdout, tensors
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


def taught_ends(table: Table, outputs: list[str]) -> tuple[F64, F64]:
    """The same, where a plane without an allocation that meets the target needs at least all that there is."""
    none = (table.plane_labels["split"] == "none").to_numpy()
    most = [float(table.platform.cores if "_cores" in name else table.platform.ways or np.nan) for name in outputs]
    most = [np.nan if "_mbl_" in name else all_there_is for name, all_there_is in zip(outputs, most, strict=True)]
    low, high = (np.where(none[:, None] & np.isnan(end), most, end) for end in label_ends(table, outputs))
    return low, high


def with_unserved(table: Table, rows: I64, unserved: I64) -> I64:
    """Rows, and those of planes that nothing serves in which the service is overloaded.

    In the others more cores do not help: the target is below what the idle machine does. There "all that there is" is wrong.
    """
    return np.sort(np.concatenate([rows, unserved[holdout.overloaded(table, unserved)]]))


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
    if rows is None:
        train, val = (fit.parts(table, s, alone=spec.alone) for s in ("train", "val"))
        if p.at_least is not None:
            train = with_unserved(table, train, fit.parts(table, "none", alone=spec.alone))
    else:
        train, val = rows
    outputs = features.output_candidates(spec.outputs, table.feature_set, table.platform.ways)
    labels = table.labels(outputs)
    chosen = np.unique(table.plane[train])
    outputs = [name for k, name in enumerate(outputs) if np.isfinite(labels[chosen, k]).any()]
    if not outputs or len(train) == 0:
        raise fit.no_labels("a label and no neighbours" if spec.alone else "a label")
    names = outputs if interval is None else intervals.with_ends(outputs)
    column = [outputs.index(intervals.central(name)) for name in names]
    ends_of = label_ends if p.at_least is None else taught_ends
    low, high = (end[:, column] for end in ends_of(table, outputs))
    bounds = features.make_bounds(inputs, tensors.observed(table, train), table.platform)
    labels = table.labels(outputs)[:, column]
    scales = [fit.scale_of(name, labels[table.plane[train], k]) for k, name in enumerate(names)]

    def batches(rows: I64, shuffle: bool) -> Batches:
        x = torch.from_numpy(fit.matrix(table, rows, bounds))
        ends = [torch.from_numpy(features.standardise(end[table.plane[rows]], scales)) for end in (low, high)]
        batch = tensors.batch_size(p.batch, len(rows))
        passes = fit.passes_for(p, len(rows), batch) if shuffle else 1
        if p.at_least is not None:
            level = torch.where(torch.from_numpy(holdout.overloaded(table, rows)), p.at_least, 0.5)
            return Batches((x, *ends, level), batch, seed, shuffle=shuffle, passes=passes)
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
