"""Stage `evaluate`: how good the models are on planes that they never saw.

    python -m pipelines.evaluate --rows FOLDER --labels FOLDER --models FOLDER [--compare FOLDER] --out FOLDER [--params FILE]

Writes the tables below. In MLflow all of it is added to the pipeline run of these data and parameters, and to the run of each
training what was measured of its model, also where DVC had no reason to train it again. A store that is away is said in one line.

metrics.json:

    a_<output>_mae            mean absolute error of Model-A, in cores, ways or MB/s
    a_cores_mae, a_ways_mae   of OAA and RCliff, cores and ways apart; a_mae: of all four, as the paper has it
    a_<output>_mae_overloaded of samples whose allocation cannot carry the load; `_carried`: of the others
    a_safe_share              share of test samples whose predicted OAA, rounded up to what can be allocated, meets QoS
    a_safe_but_violates       share of those allocations that were measured and violate QoS
    b_qos_mae                 mean absolute error of Model-B's QoS (target / p99, capped)
    b_error_pct               the same with both sides capped at 1, in per cent
    b_accuracy                share of questions where "QoS is met" is predicted rightly (the paper: 96.4 %)
    b_safe_but_violates       share of predicted "met" that are not
    b_cliff_recall            of all single steps over the cliff (from a cell that meets QoS to one that does not), the share
                              that Model-B sees coming
    b_error_met_pct, b_error_missed_pct  b_error_pct of questions about cells that meet QoS, and about those that miss it
    b_error_macro_pct         the mean of these two, so that neither kind drowns the other
    b_false_met               of questions about cells that miss QoS, the share said to be met
    b_harm_pct                how far QoS is below 1 where that was said, on the average, in per cent; null: it was never said
    b_cliff_verdicts          share of verdicts (met or missed) that are right within one step of the cliff: the mean of the last
                              cells that meet QoS and of the first that miss it, so that a constant has 0.5
    ..._constant/_median/_nearest  the same of a comparator (pipelines/fits/comparators.py)
    ..._linear/_lightgbm      of two more, with --compare
    a_<output>_vs_best, b_qos_vs_best  error of the network / least error of a comparator, with --compare: 1.1 is 10 % worse
    ..._vs_constant, ..._vs_nearest    error of the network / that of the better constant, of the nearest neighbour
                              (of a_<output>, b_error and b_error_macro); pipelines/fits/balance.py says how small ones count
    c_grows_when_violating    share of violating states where Model-C's action gives more of a resource
    c_never_shrinks_into_cliff  share of states just above the cliff where its action does not step over it

    osml_...                  of OSML's models, where they were trained (pipelines/osml_measures.py)

headline.json     those of them that `dvc metrics` shows
predictions.csv   a row a test plane: labels, and the mean prediction over its samples
by_service.csv    errors of A and B, a row a service
by_cliff.csv      errors of A by the distance of the sample's allocation from the cliff, of B by that of the one asked about: in
                  single steps along the nearer axis, 0 and up where QoS is met, below 0 where it is not
calibration.csv   Model-B's predictions in bins: how often QoS was met, and the mean QoS, beside what was predicted
importance.csv    permutation importance: how much an error grows when one input is drawn from another sample
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import export, features
from models.features import ACTIONS, PlatformLimits
from pipelines import measures, osml_measures, params, tracking
from pipelines.errors import BadInput
from pipelines.fits import balance, comparators, fit, fitted, holdout, signature, tensors
from pipelines.fits.cliff import DISTANCES, cliff_distance
from pipelines.fits.fit_oaa import predict_a
from pipelines.fits.fit_qos import predict_qos
from pipelines.fits.fitted import Fitted
from pipelines.fits.holdout import Questions, mean_where
from pipelines.fits.tensors import Table
from pipelines.inputs import message
from pipelines.io import csv_bytes, read_json, write_bytes, write_headline, write_json

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_BINS = 20
# one number for what each model is there for, and one for what it costs to believe it
_HEADLINE = ("a_oaa_cores_mae", "a_safe_share", "b_error_pct", "b_safe_but_violates", "c_grows_when_violating")


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


def evaluate_a(table: Table, a: Fitted, test: I64, predicted: F64) -> dict[str, float]:
    """Metrics of Model-A."""
    names = [s.name for s in a.outputs]
    labels = table.labels(names)[table.plane[test]]
    error = np.abs(predicted - labels)
    over = holdout.overloaded(table, test)
    metrics = balance.area_errors(predicted, labels, names)
    for k, name in enumerate(names):
        for suffix, where in (("_overloaded", over), ("_carried", ~over)):
            value = mean_where(error[:, k], where)
            if np.isfinite(value):
                metrics[f"a_{name}_mae{suffix}"] = value
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
    return metrics


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


def evaluate_b(table: Table, b: Fitted, asked: Questions, predicted: F64, test: I64, distance: I64) -> dict[str, float]:
    """Metrics of Model-B."""
    measured = balance.qos_measures(predicted, asked.qos, distance[asked.cells])
    metrics = {f"b_{name}": value for name, value in measured.items()}
    said_met = predicted >= 1.0
    if said_met.any():
        metrics["b_safe_but_violates"] = float((asked.qos[said_met] < 1.0).mean())
    rows, to = cliff_steps(table, test)
    if len(rows):
        metrics["b_cliff_recall"] = float((predict_qos(b, table, rows, to) < 1.0).mean())
        metrics["b_cliff_steps"] = float(len(rows))
    return metrics


def against_best(metrics: dict[str, float], compared: dict[str, float]) -> dict[str, float]:
    """Each error over the least of the comparators'."""
    ratios: dict[str, float] = {}
    of_points = {f"a_{point}" for point in measures.POINTS}
    for name in [n for n in metrics if n.endswith("_mae") and n not in of_points]:
        # the constants have lines of their own (balance.against_simple), with a floor where labels hardly vary
        others = [compared[f"{name}_{m}"] for m in measures.LEARNERS if f"{name}_{m}" in compared]
        if others and min(others) > 0:
            ratios[f"{name.removesuffix('_mae')}_vs_best"] = metrics[name] / min(others)
    return ratios


@dataclass(frozen=True)
class Errors:
    """Absolute errors of A (a row a test sample, a column an output) and of B (a row a question; QoS capped at 1, per cent)."""

    outputs: list[str]
    a: F64
    b: F64


def by_group(what: str, groups_a: NDArray[Any], groups_b: NDArray[Any], errors: Errors, values: Sequence[Any]) -> bytes:
    """A row a group: how many samples and questions, and the mean errors."""
    rows = []
    for value in values:
        in_a, in_b = groups_a == value, groups_b == value
        means = [mean_where(errors.a[:, k], in_a) for k in range(len(errors.outputs))]
        rows.append([value, int(in_a.sum()), *means, int(in_b.sum()), mean_where(errors.b, in_b)])
    return csv_bytes([what, "samples", *[f"a_{n}_mae" for n in errors.outputs], "questions", "b_error_pct"], rows)


def calibration_csv(predicted: F64, qos: F64, cap: float) -> bytes:
    """Bins of the predicted QoS."""
    edges = np.linspace(0.0, cap, _BINS + 1)
    place = np.clip(np.digitize(predicted, edges) - 1, 0, _BINS - 1)
    everywhere = np.ones(len(qos), dtype=bool)
    rows = []
    for k in range(_BINS):
        here = place == k
        rows.append(
            [float(edges[k]), float(edges[k + 1]), int(here.sum())]
            + [mean_where(v[here], everywhere[here]) for v in (predicted, qos, (qos >= 1.0).astype(float))]
        )
    return csv_bytes(["from_qos", "to_qos", "questions", "predicted_qos", "qos", "met_share"], rows)


def importance_csv(table: Table, a: Fitted, b: Fitted, test: I64, asked: Questions, seed: int) -> bytes:
    """Error with one input shuffled over the rows, less the error without: in units of each error."""
    outputs = [s.name for s in a.outputs]
    labels = table.labels(outputs)[table.plane[test]]
    a_x = features.normalise(table.matrix([bound.name for bound in a.inputs], test), a.inputs)
    b_x = fit.matrix(table, asked.rows, b.inputs, asked.cells)
    everywhere = np.ones(len(test), dtype=bool)

    def a_error(x: F32) -> list[float]:
        error = np.abs(features.natural(export.forward(a.weights, x), a.outputs) - labels)
        return [mean_where(error[:, k], everywhere) for k in range(len(outputs))]

    def b_error(x: F32) -> list[float]:
        return [holdout.qos_errors(features.natural(export.forward(b.weights, x), b.outputs)[:, 0], asked.qos)["error_pct"]]

    rng = np.random.default_rng((seed, 5))
    rows: list[list[object]] = []
    for model, inputs, x, error, names in (
        ("a", a.inputs, a_x, a_error, [f"{n}_mae" for n in outputs]),
        ("b", b.inputs, b_x, b_error, ["error_pct"]),
    ):
        whole = error(x)
        for k, bound in enumerate(inputs):
            shuffled = x.copy()
            shuffled[:, k] = rng.permutation(shuffled[:, k])
            for name, with_input, without in zip(names, whole, error(shuffled), strict=True):
                rows.append([model, bound.name, name, with_input, without - with_input])
    return csv_bytes(["model", "input", "error", "whole", "increase"], rows)


def evaluate_c(table: Table, c: Fitted, actions: list[str], test: I64) -> dict[str, float]:
    """What Model-C's actor does in states of unseen planes, masked to what is possible there."""
    qos = tensors.row_qos(table, test)
    probability = export.softmax(export.forward(c.weights, tensors.states(table, test, c.inputs), "actor."))
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
    names = [s.name for s in a.outputs]
    labels = table.labels(names)
    planes, place = np.unique(table.plane[test], return_inverse=True)
    count = np.bincount(place)
    means = np.column_stack([np.bincount(place, predicted[:, k]) / count for k in range(len(names))])
    info = table.plane_labels.select("service", "rps", "threads", "neighbours")[planes].rows()
    return csv_bytes(
        ["service", "rps", "threads", "neighbours", *names, *[f"predicted_{n}" for n in names]],
        [[*who, *labels[plane].tolist(), *mean.tolist()] for who, plane, mean in zip(info, planes, means, strict=True)],
    )


def run(
    rows: Path, labels: Path, models: Path, out: Path, p: params.Params, compare: Path | None = None, begun_from: str = ""
) -> dict[str, float]:
    """Evaluate; returns the metrics.

    Args:
        compare: output of the stage `compare`; None: the constants and the nearest neighbour alone are compared with.
        begun_from: as it was given to the training.
    """
    a, b, c = (fitted.load(models / name) for name in ("a", "b", "c"))
    osml = {n: fitted.load(models / n) for n in osml_measures.MODELS if (models / n / fitted.SUMMARY).exists()}
    table = tensors.load(rows, labels)
    for about in (fitted.summary(models / name) for name in ("a", "b", "c", *osml)):
        if about.data_sha256 != table.about.data_sha256:
            raise BadInput(f"{models / about.model}: the model is from other data than {rows}; run `dvc repro`")
    seed = p.evaluate.seed
    test = holdout.test_rows(table, p.evaluate.max_rows, seed)
    asked = holdout.questions(table, test, b.setting("qos_cap"), seed)
    distance = cliff_distance(table)
    metrics: dict[str, float] = {"test_rows": float(len(test)), "test_planes": float(len(np.unique(table.plane[test])))}
    predicted = predict_a(table, a, test)
    metrics |= evaluate_a(table, a, test, predicted)
    qos = predict_qos(b, table, asked.rows, asked.cells)
    if len(asked.rows):
        metrics |= evaluate_b(table, b, asked, qos, test, distance)
    metrics |= evaluate_c(table, c, c.setting("available_actions"), test)
    metrics |= osml_measures.measure(table, osml, test, p)
    if compare is not None:
        compared = read_json(compare / "compare.json", "the figures of the stage `compare`")
        metrics |= compared | against_best(metrics, compared)
    else:
        everything = comparators.Asked(table, test, asked, distance)
        metrics |= comparators.measure(comparators.Material.of(table), everything, p, p.train.a, p.train.b, seed)
    metrics |= balance.against_simple(metrics, table.platform)

    outputs = [s.name for s in a.outputs]
    errors = Errors(
        outputs,
        np.abs(predicted - table.labels(outputs)[table.plane[test]]),
        100 * np.abs(np.clip(qos, 0, 1) - np.minimum(asked.qos, 1)),
    )
    service = table.plane_labels["service"].to_numpy()
    of_a, of_b = service[table.plane[test]], service[table.plane[asked.rows]]
    steps = list(range(-DISTANCES, DISTANCES + 1))
    tables = {
        "predictions": predictions_csv(table, a, test, predicted),
        "by_service": by_group("service", of_a, of_b, errors, sorted(set(of_a))),
        "by_cliff": by_group("steps", distance[table.cell[test]], distance[asked.cells], errors, steps),
        "calibration": calibration_csv(qos, asked.qos, b.setting("qos_cap")),
        "importance": importance_csv(table, a, b, test, asked, seed),
    }
    for name, content in tables.items():
        write_bytes(out / f"{name}.csv", content)
    write_json(out / "metrics.json", metrics)
    write_headline(out, {name: metrics.get(name) for name in _HEADLINE})
    files = [out / "metrics.json", *(out / f"{name}.csv" for name in tables)]
    of = tracking.Execution(about.dataset, table.about.data_sha256, p.model_dump(), begun_from, table.about.tags())
    if why := track(of, {name: models / name for name in ("a", "b", "c", *osml)}, metrics, files):
        print(message(f"note: the measures are whole, and are not all in MLflow: {why}"), file=sys.stderr)
    return metrics


def measures_of(model: str, metrics: dict[str, float]) -> dict[str, float]:
    """What was measured of one model, and on how much."""
    prefix = model.replace("-", "_") + "_"
    return {name: value for name, value in metrics.items() if name.startswith((prefix, "test_"))}


def track(of: tracking.Execution, models: Mapping[str, Path], metrics: dict[str, float], files: Sequence[Path]) -> str | None:
    """Log an evaluation; returns why not all of it is logged, None if it is.

    The pipeline run names the run of each of its models (tag `run.MODEL`): one that was not trained again is nested under an
    earlier pipeline run.
    """
    try:
        client = tracking.connect()
        trained = {name: fitted.summary(folder).mlflow_child_id for name, folder in models.items()}
        known = {name: tracking.Runs(run_id, client=client) for name, run_id in trained.items()}
        whole = of.run(client)
        try:
            whole.log_metrics(metrics)
            whole.tag({f"run.{name}": run_id for name, run_id in trained.items()})
            for path in files:
                whole.log_file(path)
        finally:
            # a place for files that is away leaves no run that seems to go on
            whole.finish()
        for name, run in known.items():
            signature.complete(run, models[name])
            run.log_metrics(measures_of(name, metrics))
            run.tag({"evaluated_in": whole.run_id})
    except tracking.Away as error:
        return str(error)
    return None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.evaluate", description="Measure the models on held-out planes.")
    parser.add_argument("--rows", type=Path, required=True, help="output of the stage `rows`")
    parser.add_argument("--labels", type=Path, required=True, help="output of the stage `label`")
    parser.add_argument("--models", type=Path, required=True, help="folder of the models, outputs of the stage `train`")
    parser.add_argument("--compare", type=Path, help="output of the stage `compare`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)
    return params.run_stage(lambda: run(args.rows, args.labels, args.models, args.out, params.load(args.params), args.compare))


if __name__ == "__main__":
    raise SystemExit(main())
