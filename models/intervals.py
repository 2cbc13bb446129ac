"""Prediction intervals: outputs that stand beside a central one, `qos_lower` and `qos_upper` beside `qos`.

An end is a quantile of the label, learnt by the pinball loss in the network of the central output (models/regression.py) and
then moved so that the interval covers what it says on worlds that were not taught (pipelines/fits/calibrate.py). The move is
in the output's offset: whoever runs the network needs nothing else.

The ends are not named `_low` and `_high`: those are the least and the most that a label of a frontier campaign can be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

LOWER, UPPER = "_lower", "_upper"
ENDS = (LOWER, UPPER)
WITH_ENDS = ("oaa_cores", "oaa_ways", "qos")
"""Outputs that have an interval. An RCliff has none: a policy keeps away from it by the OAA."""
LOSS_WEIGHT = 0.3
"""Of an end beside a central output. At 1 Model-B's error grew by 1.6 % for its ends, at 0.3 by 0.9 %; ends were as good."""


def is_end(name: str) -> bool:
    return name.endswith(ENDS)


def central(name: str) -> str:
    """The output that an end belongs to; of any other its own name."""
    return name.removesuffix(LOWER).removesuffix(UPPER)


def with_ends(names: Sequence[str]) -> list[str]:
    """The outputs, and behind them the ends of those that have an interval."""
    return [*names, *(name + end for name in names if name in WITH_ENDS for end in ENDS)]


def levels(names: Sequence[str], nominal: float) -> list[float]:
    """The quantile that each output is: the middle one, or what leaves out half of the rest on either side."""
    tail = (1.0 - nominal) / 2
    return [tail if name.endswith(LOWER) else 1.0 - tail if name.endswith(UPPER) else 0.5 for name in names]


def settled(middle: F64, lower: F64, upper: F64, least: float = -np.inf, most: float = np.inf) -> tuple[F64, F64]:
    """Both ends as a node says them: the central answer lies within, and so far as it can be known so do the bounds."""
    return np.clip(np.minimum(lower, middle), least, most), np.clip(np.maximum(upper, middle), least, most)
