"""How unlike an observation is to what a model was taught: the out-of-distribution score of a mixture's Model-A.

    z = weight x + bias         x: the model's inputs in [0, 1]
    score = sqrt(mean(z^2))

`weight` makes the inputs of the rows that were taught uncorrelated and equally wide (Mahalanobis distance from their mean), and
is divided so that the score is 1 where a given share of the rows of worlds that were not taught lies below. So a node needs no
threshold: beyond 1 an observation is strange. Both tensors go with the weights of the network.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

PREFIX = "strangeness."
WEIGHT, BIAS = PREFIX + "weight", PREFIX + "bias"
LEAST_DEVIATION = 0.02
"""Of an input's range, along any direction: what hardly varied in the data is not what makes an observation strange."""


def is_strangeness(name: str) -> bool:
    """Whether a tensor is of the score and not of the network."""
    return name.startswith(PREFIX)


def measure(x: F32) -> dict[str, F32]:
    """The score of inputs in [0, 1], shape (rows, inputs): in standard deviations of these rows."""
    rows = x.astype(np.float64)
    mean = rows.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(rows, rowvar=False).reshape(len(mean), len(mean)))
    weight = (vectors / np.sqrt(np.maximum(values, 0.0) + LEAST_DEVIATION**2)).T
    return {WEIGHT: weight.astype(np.float32), BIAS: (-weight @ mean).astype(np.float32)}


def scores(tensors: Mapping[str, F32], x: F32) -> F64:
    """The score of each row: z in f32 and its squares in f64, as the node has them."""
    z = (x @ tensors[WEIGHT].T + tensors[BIAS]).astype(np.float64)
    return np.asarray(np.sqrt((z * z).mean(axis=1)))


def one_at(tensors: Mapping[str, F32], threshold: float) -> dict[str, F32]:
    """The same score divided by a threshold."""
    return {name: (tensors[name] / np.float32(threshold)).astype(np.float32) for name in (WEIGHT, BIAS)}
