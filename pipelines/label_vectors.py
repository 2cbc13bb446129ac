"""Planes and their labels, for the search's tests (`scheduler/search`): one definition of RCliff and OAA, in two languages.

    python -m pipelines.label_vectors tests/vectors/labels.json

A plane is a list of rows of p99 in ms: null where a cell was not measured, "inf" where the server was overloaded.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines import label
from pipelines.errors import NoFeasibleCell

COUNT = 400
_TARGET_MS = 10.0


def plane(rng: np.random.Generator) -> NDArray[np.float64]:
    """A surface that falls with both resources, more or less: noise, overload and holes are drawn."""
    n_cores, n_ways = (int(n) for n in rng.integers(1, 9, size=2))
    falls = [np.cumsum(rng.exponential(rng.choice([0.05, 0.5, 1.5]), size=n)) for n in (n_cores, n_ways)]
    grid = np.exp(rng.uniform(1.0, 6.0) - falls[0][:, None] - falls[1][None, :])
    grid = grid * np.exp(rng.normal(0.0, rng.choice([0.0, 0.0, 0.1]), size=grid.shape))
    grid[grid > rng.choice([30.0, 200.0, 1e9])] = math.inf
    grid[rng.random(grid.shape) < rng.choice([0.0, 0.3, 0.7, 0.9])] = math.nan
    return np.maximum(np.round(grid, 3), 0.001)


def case(rng: np.random.Generator) -> dict[str, Any]:
    """One plane and what it is labelled."""
    grid = plane(rng)
    from_least = [bool(x) for x in rng.random(2) < 0.8]
    margin = [int(x) for x in rng.integers(0, 3, size=2)]
    out: dict[str, Any] = {
        "p99_ms": [[None if math.isnan(x) else "inf" if math.isinf(x) else x for x in row] for row in grid.tolist()],
        "target_ms": _TARGET_MS,
        "from_least": from_least,
        "margin": margin,
    }
    try:
        least = (1.0 if from_least[0] else 0.0, 1.0 if from_least[1] else 0.0)
        found = label.label_plane(grid, _TARGET_MS, margin_steps=(margin[0], margin[1]), least=least)
    except NoFeasibleCell:
        unknown = bool((label.fill_by_monotony(grid, _TARGET_MS) == -1).any())
        return out | {"label": None, "exact": not unknown}

    def index(values: tuple[float, float]) -> list[int]:
        return [int(v) - 1 for v in values]

    return out | {
        "exact": found.kind == "exact",
        "label": {
            "rcliff": index((found.rcliff_cores, found.rcliff_ways)),
            "oaa": index((found.oaa_cores, found.oaa_ways)),
            "rcliff_rows": index(found.rcliff_cores_bounds),
            "rcliff_columns": index(found.rcliff_ways_bounds),
            "oaa_rows": index(found.oaa_cores_bounds),
            "oaa_columns": index(found.oaa_ways_bounds),
        },
    }


def text() -> str:
    """The file, one case a line."""
    rng = np.random.default_rng(5)
    return "[\n" + ",\n".join(json.dumps(case(rng)) for _ in range(COUNT)) + "\n]\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), "utf-8")
