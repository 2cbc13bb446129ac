"""What the stages that measure have in common: the rows and the questions that everything is measured on.

One draw for all, so that a network and its comparators answer the same questions about the same held-out planes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipelines.errors import BadInput
from pipelines.fits.tensors import QosQuestions, Table

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def thin(rows: I64, count: int, rng: np.random.Generator) -> I64:
    """At most `count` of the rows, in order."""
    return rows if len(rows) <= count else np.sort(rng.choice(rows, count, replace=False))


def test_rows(table: Table, max_rows: int, seed: int) -> I64:
    """Rows of planes that no model was trained on.

    Raises:
        BadInput: no plane is held out.
    """
    rows = thin(table.part("test"), max_rows, np.random.default_rng((seed, 1)))
    if len(rows) == 0:
        raise BadInput(
            "no plane is held out, so there is nothing to measure on; collect at least two loads or services, "
            "or raise label.test_fraction in params.yaml"
        )
    return rows


@dataclass(frozen=True)
class Questions:
    """What Model-B is asked: rows, the cells that they would go to, and the QoS there (target / p99, capped)."""

    rows: I64
    cells: I64
    qos: F64


def questions(table: Table, rows: I64, cap: float, seed: int, near_share: float = 0.0) -> Questions:
    """One question a row; the paper's (evenly over the plane) unless `near_share` says otherwise. See `QosQuestions`."""
    asked = QosQuestions(table, rows, cap, near_share)
    cells, qos = asked.draw(np.random.default_rng((seed, 3)))
    return Questions(asked.rows, cells, qos)


def overloaded(table: Table, rows: I64) -> NDArray[np.bool_]:
    """Rows whose own window says that the allocation cannot carry the load: their counters no longer show what load it is."""
    return np.isnan(table.p99_ms[rows])


def mean_where(values: F64, where: NDArray[np.bool_]) -> float:
    """Mean of the finite values there; NaN where there are none."""
    chosen = values[where & np.isfinite(values)]
    return float(chosen.mean()) if len(chosen) else float("nan")


def qos_errors(predicted: F64, qos: F64) -> dict[str, float]:
    """`qos_mae` (capped QoS), `error_pct` (both sides capped at 1, in per cent), `accuracy` (of "QoS is met")."""
    return {
        "qos_mae": float(np.abs(predicted - qos).mean()),
        "error_pct": float(100 * np.abs(np.clip(predicted, 0, 1) - np.minimum(qos, 1)).mean()),
        "accuracy": float(((predicted >= 1.0) == (qos >= 1.0)).mean()),
    }
