"""Stage `compare`: what a practitioner would try instead of the networks, on the same training planes and test questions.

    python -m pipelines.compare --rows FOLDER --labels FOLDER --out FOLDER [--params params.yaml]

Writes `compare.json`, which the stage `evaluate` puts beside the networks' figures. The methods see the networks' inputs, scaled
alike. What is measured is the absolute error:

    nearest    the label of the nearest training sample (Euclidean)
    linear     least squares with a constant
    lightgbm   gradient boosted trees (LightGBM), fitted for the absolute error; one thread and a seed, so the same bits
    everywhere

For each method: a_<output>_mae_<method> (cores, ways or MB/s), b_qos_mae_<method>, b_error_pct_<method>, b_accuracy_<method>;
pipelines/evaluate.py says what they mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models import features
from pipelines import params
from pipelines.fits import holdout, tensors
from pipelines.fits.fit import matrix
from pipelines.fits.tensors import Table
from pipelines.io import write_json

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

Method = Callable[[F32, F64, F32, params.Compare], F64]
"""Training inputs (rows, inputs), training targets (rows,), test inputs: to predictions (test rows,)."""


def nearest(train_x: F32, train_y: F64, test_x: F32, p: params.Compare) -> F64:
    from scipy.spatial import KDTree

    step = -(-len(train_x) // p.nearest_rows)
    return train_y[::step][KDTree(train_x[::step]).query(test_x)[1]]


def linear(train_x: F32, train_y: F64, test_x: F32, p: params.Compare) -> F64:
    design = np.column_stack([train_x, np.ones(len(train_x))])
    weights, *_ = np.linalg.lstsq(design, train_y, rcond=None)
    return np.column_stack([test_x, np.ones(len(test_x))]) @ weights


def lightgbm(train_x: F32, train_y: F64, test_x: F32, p: params.Compare) -> F64:
    import lightgbm as lgb

    settings = {
        "objective": "regression_l1",
        "num_leaves": p.leaves,
        "learning_rate": p.learning_rate,
        "min_data_in_leaf": min(20, max(1, len(train_x) // 50)),
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "seed": p.seed,
        "verbosity": -1,
    }
    booster = lgb.train(settings, lgb.Dataset(train_x, train_y), num_boost_round=p.rounds)
    return np.asarray(booster.predict(test_x, num_threads=1))


METHODS: dict[str, Method] = {"nearest": nearest, "linear": linear, "lightgbm": lightgbm}


def compare_a(table: Table, known: I64, test: I64, p: params.Compare) -> dict[str, float]:
    """MAE of each method on each of Model-A's outputs."""
    inputs, _ = tensors.model_inputs(features.MODEL_A_INPUTS, table)
    bounds = features.make_bounds(inputs, tensors.observed(table, table.part("train")), table.platform)
    known_x = features.normalise(table.matrix(inputs, known), bounds)
    test_x = features.normalise(table.matrix(inputs, test), bounds)
    metrics: dict[str, float] = {}
    for name in features.output_candidates(features.MODEL_A_OUTPUTS, table.feature_set, table.platform.ways):
        label = table.labels([name])[:, 0]
        taught, asked = np.isfinite(label[table.plane[known]]), np.isfinite(label[table.plane[test]])
        if not taught.any() or not asked.any():
            continue
        truth = label[table.plane[test[asked]]]
        for method, fit in METHODS.items():
            guess = fit(known_x[taught], label[table.plane[known[taught]]], test_x[asked], p)
            metrics[f"a_{name}_mae_{method}"] = float(np.abs(guess - truth).mean())
    return metrics


def compare_b(table: Table, known: I64, test: I64, b: params.ModelB, p: params.Compare, seed: int) -> dict[str, float]:
    """Errors of each method on Model-B's questions; taught with the questions that Model-B is taught with."""
    inputs, _ = tensors.model_inputs(features.MODEL_B_INPUTS, table)
    bounds = features.make_bounds(inputs, tensors.observed(table, table.part("train", "none")), table.platform)
    asked = holdout.questions(table, test, b.qos_cap, seed)
    taught = holdout.questions(table, known, b.qos_cap, seed, b.near_share)
    if len(asked.rows) == 0 or len(taught.rows) == 0:
        return {}
    known_x = matrix(table, taught.rows, bounds, taught.cells)
    test_x = matrix(table, asked.rows, bounds, asked.cells)
    metrics: dict[str, float] = {}
    for method, fit in METHODS.items():
        for name, value in holdout.qos_errors(fit(known_x, taught.qos, test_x, p), asked.qos).items():
            metrics[f"b_{name}_{method}"] = value
    return metrics


def run(rows: Path, labels: Path, out: Path, p: params.Params) -> dict[str, float]:
    """Fit and measure all methods; returns the metrics."""
    table = tensors.load(rows, labels)
    test = holdout.test_rows(table, p.evaluate.max_rows, p.evaluate.seed)
    rng = np.random.default_rng((p.compare.seed, 4))
    metrics = compare_a(table, holdout.thin(table.part("train"), p.compare.rows, rng), test, p.compare)
    known = holdout.thin(table.part("train", "none"), p.compare.rows, rng)
    metrics |= compare_b(table, known, test, p.train.b, p.compare, p.evaluate.seed)
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
