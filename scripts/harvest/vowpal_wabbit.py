#!/usr/bin/env python3
"""Record what Vowpal Wabbit's `--csoaa` predicts of streams of windows: the vectors of scheduler/harvest/tests/vectors.

The wheel is no dependency: `pip install vowpalwabbit==9.11.9 numpy` in an environment of its own, then

    scripts/harvest/vowpal_wabbit.py >scheduler/harvest/tests/vectors/vowpal_wabbit.json
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

CORES = 10
WINDOWS = 300
READINGS = 500
# Costs of each class are kept of every so many windows.
KEPT = 10


def windows(numpy: Any, seed: int) -> list[tuple[list[float], int]]:
    """Features (least, most, mean, standard deviation, median as shares of all cores) and peak of busy cores of each window."""
    random = numpy.random.default_rng(seed)
    level, out = 2.0, []
    for n in range(WINDOWS):
        level = min(9.0, max(0.0, level + 0.8 * random.normal()))
        busy = numpy.clip(random.poisson(level if n % 7 else level / 3, size=READINGS), 0, CORES)
        x = [busy.min(), busy.max(), busy.mean(), busy.std(), numpy.median(busy)]
        out.append(([round(float(v) / CORES, 4) for v in x], int(busy.max())))
    return out


def costs(vw: Any, rate: float, rows: list[tuple[list[float], int]]) -> list[list[float]]:
    """What each class was predicted to cost before it learnt, for every window but the last."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.txt"
        model = vw.Workspace(f"--csoaa {CORES} --learning_rate {rate} --quiet -r {raw}")
        for (x, _), (_, peak) in itertools.pairwise(rows):
            label = " ".join(f"{k}:{abs(k - peak) + (CORES if k < peak else 0)}" for k in range(1, CORES + 1))
            model.learn(f"{label} | " + " ".join(f"f{i}:{v!r}" for i, v in enumerate(x)))
        model.finish()
        lines = [line for line in raw.read_text("utf-8").splitlines() if line.strip()]
    return [[float(part.split(":")[1]) for part in line.split()] for line in lines]


def main() -> int:
    """Print the vectors as JSON."""
    vw, numpy = importlib.import_module("vowpalwabbit"), importlib.import_module("numpy")
    streams = []
    for seed, rate in ((7, 0.1), (8, 0.5)):
        rows = windows(numpy, seed)
        kept = {str(n): c for n, c in enumerate(costs(vw, rate, rows)) if n % KEPT == 0}
        streams.append({"rate": rate, "windows": [[*x, peak] for x, peak in rows], "costs": kept})
    json.dump({"vowpal_wabbit": vw.__version__, "cores": CORES, "streams": streams}, sys.stdout)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
