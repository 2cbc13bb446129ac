"""Intervals that cover what they say: split conformal shifts of quantile outputs (CQR, Romano et al. 2019).

Rows of a world are alike, so that a world is one draw and its rows are not: each world weighs the same, however many rows it
has. Each end is moved for itself, so that half of what an interval leaves out lies on either side. The central answer belongs
to the interval (`intervals.settled`), so a label beyond it on the other side is never left out by an end, nor is one that
lies on a bound where the answer is clipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from models import intervals
from models.features import Scale
from pipelines.fits.fitted import Fitted

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def evenly(groups: I64) -> F64:
    """A weight a row: all groups weigh the same, and all together 1."""
    _, place, count = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / (count[place] * len(count)), dtype=np.float64)


def quantile(values: F64, level: float, weights: F64) -> float:
    """The least of the values that so much of the weight is not above."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return float(values[order][min(int(np.searchsorted(below, level * below[-1])), len(values) - 1)])


def moved(
    model: Fitted,
    answers: F64,
    labels: Mapping[str, F64],
    bounds: Mapping[str, tuple[F64 | float, F64 | float]],
    groups: I64,
    nominal: float,
) -> Fitted:
    """The model with the ends of its intervals moved.

    Args:
        answers: what it says now of rows that it was not taught, natural units, shape (rows, outputs).
        labels: of these rows, by the central output; NaN where there is none.
        bounds: by the same, the least and the most that a label can be, of all rows or of each; answers are clipped there.
        groups: of each row, e.g. its service.
        nominal: share of the labels that an interval is to cover.
    """
    names = [s.name for s in model.outputs]
    outputs: list[Scale] = []
    for name, scale, level in zip(names, model.outputs, intervals.levels(names, nominal), strict=True):
        shift = 0.0
        if intervals.is_end(name):
            label = labels[intervals.central(name)]
            known = np.isfinite(label)
            middle, end = (answers[:, names.index(n)] for n in (intervals.central(name), name))
            middle, end = np.clip(middle, *bounds[intervals.central(name)])[known], end[known]
            weights, sign = evenly(groups[known]), 1.0 if name.endswith(intervals.UPPER) else -1.0
            outside = np.where(sign * (label[known] - middle) > 0, sign * (label[known] - end), -np.inf)
            shift = sign * quantile(outside, level if sign > 0 else 1.0 - level, weights)
            shift = shift if np.isfinite(shift) else 0.0  # so few lie on that side that the central answer alone would do
        outputs.append(replace(scale, offset=scale.offset + shift))
    return replace(model, outputs=outputs, settings=model.settings | {"interval": nominal})


def covered(label: F64, lower: F64, upper: F64) -> NDArray[np.bool_]:
    return (lower <= label) & (label <= upper)


def kept(doubt: F64, share: float) -> NDArray[np.bool_]:
    """The rows with the least doubt: this share of them."""
    count = round(share * len(doubt))
    chosen = np.zeros(len(doubt), dtype=bool)
    chosen[np.argsort(doubt, kind="stable")[:count]] = True
    return chosen
