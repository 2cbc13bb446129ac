"""Stage `evaluate`: how good the models are on planes that they never saw.

    python -m pipelines.evaluate --data FOLDER --labels FOLDER --models FOLDER --out FOLDER [--params params.yaml]

Writes `metrics.json`, `predictions.csv` (a row a test plane) and adds the metrics to the MLflow run. What each metric means:

    a_<output>_mae            mean absolute error of Model-A, in cores, ways or MB/s
    a_<output>_mae_nearest    the same, of the label of the nearest training sample (scaled inputs, Euclidean)
    a_<output>_mae_linear     the same, of a linear fit
    a_safe_share              share of test samples whose predicted OAA, rounded up to what can be allocated, meets QoS
    a_safe_but_violates       share of those allocations that were measured and violate QoS
    b_qos_mae                 mean absolute error of Model-B's QoS (target / p99, capped)
    b_error_pct               the same with both sides capped at 1, in per cent
    b_qos_mae_nearest/_linear as above
    b_accuracy                share of questions where "QoS is met" is predicted rightly (the paper: 96.4 %)
    b_safe_but_violates       share of predicted "met" that are not
    b_cliff_recall            of all single steps over the cliff (from a cell that meets QoS to one that does not), the share
                              that Model-B sees coming
    c_grows_when_violating    share of violating states where Model-C's action gives more of a resource
    c_never_shrinks_into_cliff  share of states just above the cliff where its action does not step over it
"""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models import export, features
from models.features import ACTIONS, PlatformLimits
from pipelines import params, tensors, tracking, train
from pipelines.errors import BadInput
from pipelines.io import write_bytes, write_json
from pipelines.tensors import QosQuestions, Table
from pipelines.train import Fitted

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_NEAREST_ROWS = 8192


def nearest(train_x: F32, train_y: F64, test_x: F32) -> F64:
    """Label of the nearest training row, in chunks."""
    squares = (train_x**2).sum(axis=1)
    out = np.empty((len(test_x), train_y.shape[1]))
    for start in range(0, len(test_x), 1024):
        part = test_x[start : start + 1024]
        out[start : start + 1024] = train_y[np.argmin(squares[None, :] - 2.0 * part @ train_x.T, axis=1)]
    return out


def linear(train_x: F32, train_y: F64, test_x: F32) -> F64:
    """Least squares with a constant."""
    design = np.column_stack([train_x, np.ones(len(train_x))])
    weights, *_ = np.linalg.lstsq(design, train_y, rcond=None)
    return np.column_stack([test_x, np.ones(len(test_x))]) @ weights


def thin(rows: I64, count: int, rng: np.random.Generator) -> I64:
    return rows if len(rows) <= count else np.sort(rng.choice(rows, count, replace=False))


def allocate_up(cores: F64, ways: F64, platform: PlatformLimits) -> tuple[F64, F64]:
    """The smallest allocation of at least so much: whole steps, at least one, at most the machine."""
    steps = np.ceil(cores / platform.core_step - 1e-6)
    whole_cores = np.clip(steps * platform.core_step, platform.core_step, platform.cores)
    whole_ways = np.clip(np.ceil(ways - 1e-6), 1, platform.ways) if platform.ways else np.zeros(len(ways))
    return np.round(whole_cores, 6), whole_ways


def cell_index(table: Table) -> dict[tuple[int, float, float], int]:
    return {
        (int(p), round(float(c), 6), float(w)): k
        for k, (p, c, w) in enumerate(zip(table.cell_plane, table.cell_cores, table.cell_ways, strict=True))
    }


def evaluate_a(table: Table, a: Fitted, test: I64, known: I64) -> tuple[dict[str, float], F64]:
    """Metrics of Model-A, and its predictions for `test`."""
    names = [s.name for s in a.outputs]
    inputs = [b.name for b in a.inputs]
    labels = table.labels(names)
    test_x = features.normalise(table.matrix(inputs, test), a.inputs)
    known_x = features.normalise(table.matrix(inputs, known), a.inputs)
    predicted = features.natural(export.forward(a.weights, test_x), a.outputs)
    truth, known_y = labels[table.plane[test]], labels[table.plane[known]]
    metrics: dict[str, float] = {}
    for k, name in enumerate(names):
        has, taught = np.isfinite(truth[:, k]), np.isfinite(known_y[:, k])
        if not has.any():
            continue
        metrics[f"a_{name}_mae"] = float(np.abs(predicted[has, k] - truth[has, k]).mean())
        for method in (nearest, linear):
            other = method(known_x[taught], known_y[taught, k : k + 1], test_x[has])[:, 0]
            metrics[f"a_{name}_mae_{method.__name__}"] = float(np.abs(other - truth[has, k]).mean())
    ways = predicted[:, names.index("oaa_ways")] if "oaa_ways" in names else np.zeros(len(test))
    cores, ways = allocate_up(predicted[:, names.index("oaa_cores")], ways, table.platform)
    cells = cell_index(table)
    at = [cells.get((int(p), float(c), float(w)), -1) for p, c, w in zip(table.plane[test], cores, ways, strict=True)]
    qos = np.array([table.cell_qos[k] if k >= 0 else np.nan for k in at])
    measured = np.isfinite(qos)
    metrics["a_oaa_cells_measured"] = float(measured.mean())
    if measured.any():
        metrics["a_safe_share"] = float((qos[measured] >= 1.0).mean())
        metrics["a_safe_but_violates"] = 1.0 - metrics["a_safe_share"]
    return metrics, predicted


def cliff_steps(table: Table, rows: I64) -> tuple[I64, I64]:
    """Rows at cells that meet QoS, each with the cell one step less that does not."""
    leads = tensors.neighbour_cells(table)
    down = [k for k, name in enumerate(ACTIONS) if name in ("cores_down", "ways_down")]
    from_rows, to_cells = [], []
    qos = np.nan_to_num(table.cell_qos, nan=-1.0)
    here = table.cell[rows]
    for k in down:
        to = leads[here, k]
        over = (qos[here] >= 1.0) & (to >= 0) & (qos[np.maximum(to, 0)] < 1.0) & np.isfinite(table.cell_qos[np.maximum(to, 0)])
        from_rows.append(rows[over])
        to_cells.append(to[over])
    return np.concatenate(from_rows), np.concatenate(to_cells)


def evaluate_b(table: Table, b: Fitted, cap: float, test: I64, known: I64, seed: int) -> dict[str, float]:
    """Metrics of Model-B."""
    rng = np.random.default_rng((seed, 3))
    questions, taught = QosQuestions(table, test, cap), QosQuestions(table, known, cap)
    if len(questions.rows) == 0:
        return {}
    cells, qos = questions.draw(rng)
    known_cells, known_qos = taught.draw(rng)
    predicted = train.predict_qos(b, table, questions.rows, cells)
    test_x = train.b_matrix(table, questions.rows, b.inputs, cells)
    known_x = train.b_matrix(table, taught.rows, b.inputs, known_cells)
    met, said_met = qos >= 1.0, predicted >= 1.0
    metrics = {
        "b_qos_mae": float(np.abs(predicted - qos).mean()),
        "b_error_pct": float(100 * np.abs(np.clip(predicted, 0, 1) - np.minimum(qos, 1)).mean()),
        "b_accuracy": float((met == said_met).mean()),
    }
    if said_met.any():
        metrics["b_safe_but_violates"] = float((~met[said_met]).mean())
    for method in (nearest, linear):
        other = method(known_x, known_qos[:, None], test_x)[:, 0]
        metrics[f"b_qos_mae_{method.__name__}"] = float(np.abs(other - qos).mean())
        metrics[f"b_accuracy_{method.__name__}"] = float(((other >= 1.0) == met).mean())
    rows, to = cliff_steps(table, test)
    if len(rows):
        metrics["b_cliff_recall"] = float((train.predict_qos(b, table, rows, to) < 1.0).mean())
        metrics["b_cliff_steps"] = float(len(rows))
    return metrics


def evaluate_c(table: Table, c: Fitted, actions: list[str], test: I64) -> dict[str, float]:
    """What Model-C's actor does in states of unseen planes, masked to what is possible there."""
    qos = tensors.row_qos(table, test)
    raw = np.column_stack([qos if b.name == "qos" else table.columns[b.name][test] for b in c.inputs])
    probability = export.softmax(export.forward(c.weights, features.normalise(raw, c.inputs), "actor."))
    leads = tensors.neighbour_cells(table)[table.cell[test]]
    possible = (leads >= 0) & np.array([name in actions for name in ACTIONS])
    action = np.argmax(np.where(possible, probability, -1.0), axis=1)
    up = np.array([name.endswith("_up") for name in ACTIONS])
    metrics: dict[str, float] = {}
    for k, name in enumerate(ACTIONS):
        metrics[f"c_share_{name}"] = float((action == k).mean())
    violating = (qos < 1.0) & (possible & up).any(axis=1)
    if violating.any():
        metrics["c_grows_when_violating"] = float(up[action[violating]].mean())
    to = leads[np.arange(len(test)), action]
    down = [k for k, name in enumerate(ACTIONS) if name in ("cores_down", "ways_down")]
    below = np.stack([np.where(leads[:, k] >= 0, table.cell_qos[np.maximum(leads[:, k], 0)], np.nan) for k in down])
    with np.errstate(invalid="ignore"):
        above_cliff = (table.cell_qos[table.cell[test]] >= 1.0) & (below < 1.0).any(axis=0)
        if above_cliff.any():
            metrics["c_never_shrinks_into_cliff"] = float(1.0 - (table.cell_qos[to[above_cliff]] < 1.0).mean())
    return metrics


def predictions_csv(table: Table, a: Fitted, test: I64, predicted: F64) -> bytes:
    """Per test plane: the label, and the mean prediction over its samples."""
    names = [s.name for s in a.outputs]
    labels = table.labels(names)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["service", "rps", "threads", "neighbours", *names, *[f"predicted_{n}" for n in names]])
    for plane in np.unique(table.plane[test]):
        at = table.plane[test] == plane
        info = table.plane_labels.row(int(plane), named=True)
        writer.writerow(
            [info["service"], info["rps"], info["threads"], info["neighbours"]]
            + [f"{v:.6g}" for v in labels[plane]]
            + [f"{v:.6g}" for v in predicted[at].mean(axis=0)]
        )
    return text.getvalue().encode()


def run(data: Path, labels: Path, models: Path, out: Path, p: params.Params) -> dict[str, float]:
    """Evaluate; returns the metrics."""
    summary = train.load_summary(models)
    a, b, c = (
        train.load_fitted(models, "a", summary),
        train.load_fitted(models, "b", summary),
        train.load_fitted(models, "c", summary),
    )
    table = tensors.load(data, labels, max_rows=p.train.max_rows, use_overloaded=p.train.use_overloaded_inputs)
    rng = np.random.default_rng(p.evaluate.seed)
    test = thin(table.part("test"), p.evaluate.max_rows, rng)
    if len(test) == 0:
        raise BadInput(
            f"{labels}: no plane is held out, so there is nothing to measure on; collect at least two loads or services, "
            "or raise label.test_fraction in params.yaml"
        )
    known = thin(table.part("train"), _NEAREST_ROWS, rng)
    metrics: dict[str, float] = {"test_rows": float(len(test)), "test_planes": float(len(np.unique(table.plane[test])))}
    a_metrics, predicted = evaluate_a(table, a, test, known)
    metrics |= a_metrics
    metrics |= evaluate_b(table, b, summary.b.qos_cap, test, known, p.evaluate.seed)
    metrics |= evaluate_c(table, c, summary.c.available_actions, test)
    write_bytes(out / "predictions.csv", predictions_csv(table, a, test, predicted))
    write_json(out / "metrics.json", metrics)
    runs = tracking.Runs(summary.mlflow_run_id)
    runs.log_metrics(metrics)
    runs.log_file(out / "metrics.json")
    runs.log_file(out / "predictions.csv")
    return metrics


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.evaluate", description="Measure the models on held-out planes.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--labels", type=Path, required=True, help="output of the stage `label`")
    parser.add_argument("--models", type=Path, required=True, help="output of the stage `train`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)
    return params.run_stage(lambda: run(args.data, args.labels, args.models, args.out, params.load(args.params)))


if __name__ == "__main__":
    raise SystemExit(main())
