"""Stage `compare`: what a practitioner would try instead of the networks, on the same training planes and test questions.

    python -m pipelines.compare --rows FOLDER --labels FOLDER --out FOLDER [--params params.yaml]

Writes `compare.json`, which the stage `evaluate` puts beside the networks' figures. pipelines/fits/comparators.py says what the
methods are. For each: a_<output>_mae_<method> (cores, ways or MB/s), and b_qos_mae_<method>, b_error_pct_<method> and so on;
pipelines/evaluate.py says what they mean.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from pipelines import params
from pipelines.fits import comparators, holdout, tensors
from pipelines.fits.cliff import cliff_distance
from pipelines.io import write_json


def run(rows: Path, labels: Path, out: Path, p: params.Params) -> dict[str, float]:
    """Fit and measure all methods; returns the metrics."""
    table = tensors.load(rows, labels)
    seed = p.evaluate.seed
    test = holdout.test_rows(table, p.evaluate.max_rows, seed)
    asked = holdout.questions(table, test, p.train.b.qos_cap, seed)
    rng = np.random.default_rng((p.compare.seed, 4))
    known = comparators.Material.of(table).thinned(p.compare.rows, rng)
    everything = comparators.Asked(table, test, asked, cliff_distance(table))
    metrics = comparators.measure(known, everything, p, p.train.a, p.train.b, seed, tuple(comparators.METHODS))
    write_json(out / "compare.json", metrics)
    return metrics


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.compare", description="Measure what could stand in for the models."
    )
    parser.add_argument("--rows", type=Path, required=True, help="output of the stage `rows`")
    parser.add_argument("--labels", type=Path, required=True, help="output of the stage `label`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)
    return params.run_stage(lambda: run(args.rows, args.labels, args.out, params.load(args.params)))


if __name__ == "__main__":
    raise SystemExit(main())
