"""Measures of Model-B that no constant does well in, and errors over those of a constant and of the nearest neighbour.

Most cells of a plane meet QoS. Whoever says "met" of all of them is right most of the time, is off by little on the average,
and is of no use. So cells that miss and cells that meet are measured apart and weigh the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from models.features import PlatformLimits
from pipelines import measures
from pipelines.fits import holdout

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

LEAST_ERROR_PCT = 0.5
"""Of QoS: what is off by less is off by nothing."""


def qos_measures(predicted: F64, qos: F64, distance: I64) -> dict[str, float]:
    """The errors of holdout.qos_errors, and the balanced measures (pipelines/evaluate.py says what each is).

    What has nothing to be measured on is left out.

    Args:
        distance: of the cell that each question is about, in steps from the cliff (pipelines/fits/cliff.py).
    """
    found = holdout.qos_errors(predicted, qos)
    met, said_met = qos >= 1.0, predicted >= 1.0
    error = 100 * np.abs(np.clip(predicted, 0, 1) - np.minimum(qos, 1))
    for name, where in (("met", met), ("missed", ~met)):
        if where.any():
            found[f"error_{name}_pct"] = float(error[where].mean())
    if met.any() and not met.all():
        found["error_macro_pct"] = (found["error_met_pct"] + found["error_missed_pct"]) / 2
    if not met.all():
        falsely = said_met & ~met
        found["false_met"] = float(falsely.sum() / (~met).sum())
        if falsely.any():
            found["harm_pct"] = float(100 * (1.0 - qos[falsely]).mean())
    above, below = (distance == 0) & met, (distance == -1) & ~met
    if above.any() and below.any():
        found["cliff_verdicts"] = float((said_met[above].mean() + (~said_met[below]).mean()) / 2)
    return found


A_POINTS = ("oaa_cores", "oaa_ways", "rcliff_cores", "rcliff_ways")


def area_errors(predicted: F64, labels: F64, names: Sequence[str]) -> dict[str, float]:
    """Mean absolute error of each output of Model-A, of cores and of ways apart, and `a_mae` over all labels of the points.

    Cores and ways apart, because where ways hardly vary half of `a_mae` is nothing that a model has earned.

    Args:
        predicted, labels: shape (rows, names), NaN where a label is missing.
    """
    error = np.abs(predicted - labels)
    everywhere = np.ones(len(error), dtype=bool)
    by_output = {name: holdout.mean_where(error[:, k], everywhere) for k, name in enumerate(names)}
    found = {f"a_{name}_mae": value for name, value in by_output.items()}
    for of in ("cores", "ways"):
        if points := [v for n, v in by_output.items() if n in A_POINTS and n.endswith(of)]:
            found[f"a_{of}_mae"] = float(np.mean(points))
    of_points = error[:, [k for k, name in enumerate(names) if name in A_POINTS]]
    if np.isfinite(of_points).any():
        found["a_mae"] = float(np.nanmean(of_points))
    return {name: value for name, value in found.items() if np.isfinite(value)}


def against_simple(metrics: Mapping[str, float], platform: PlatformLimits) -> dict[str, float]:
    """Each error over the constant's and the nearest neighbour's: 1 and more is of no use.

    An error of a constant that is below half of what can be allocated counts as half of it. Where labels hardly vary a
    constant is off by next to nothing, and nobody can be better than it by a margin. Of the neighbour a tenth counts: a
    difference below that is none. Model-B has ratios only where some cells meet QoS and some miss: of one kind alone a constant
    knows everything.
    """
    least = {"oaa_cores": platform.core_step / 2, "rcliff_cores": platform.core_step / 2, "oaa_ways": 0.5, "rcliff_ways": 0.5}
    pairs = [(f"a_{o}_mae", f"a_{o}", least.get(o, 0.0)) for o in measures.AREA]
    if "b_error_macro_pct" in metrics:
        pairs += [("b_error_pct", "b_error", LEAST_ERROR_PCT), ("b_error_macro_pct", "b_error_macro", LEAST_ERROR_PCT)]
    ratios: dict[str, float] = {}
    for metric, name, floor in pairs:
        for word, methods, least_error in (("constant", measures.CONSTANTS, floor), ("nearest", ("nearest",), floor / 5)):
            theirs = [metrics[f"{metric}_{m}"] for m in methods if f"{metric}_{m}" in metrics]
            if metric in metrics and theirs and max(min(theirs), least_error) > 0:
                ratios[f"{name}_vs_{word}"] = metrics[metric] / max(min(theirs), least_error)
    return ratios
