"""Stage `generalise`: what the models say of services and of platforms that they never saw.

    python -m pipelines.generalise services --rows FOLDER --labels FOLDER --out FOLDER [--params FILE]
    python -m pipelines.generalise foreign --rows FOLDER --labels FOLDER --models FOLDER --on MANIFEST --out FOLDER

`services` leaves out one service of the data set at a time, fits Models A and B to the training planes of the others and asks
them about all planes of the one left out. `foreign` asks trained models about another data set, all of its planes: services that
are not in the training data, or another platform. `--on` is the manifest of the data that the models were trained on. Where the
platforms differ, the models are asked twice: `_as_is`, and `_rescaled` with each resource taken as a share of its machine, in
the inputs and in the answers.

Writes `generalise.json` and `generalise.csv` (a row a service):

    a_<output>_mae        mean absolute error of Model-A; a_mae: mean of OAA and RCliff, cores and ways (the paper's one figure)
    b_error_pct           mean absolute error of Model-B's QoS capped at 1, in per cent; b_qos_mae and b_accuracy as in `evaluate`
    a_mae_constant        of the best constant that the training planes know (their median): what the models must beat
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models import features, model_a, model_b
from models.features import Bound, PlatformLimits, Scale
from pipelines import params, samples
from pipelines.fits import fit_oaa, fit_qos, fitted, holdout, tensors
from pipelines.fits.fit_oaa import predict_a
from pipelines.fits.fitted import Fitted
from pipelines.fits.holdout import mean_where
from pipelines.fits.tensors import Table
from pipelines.io import csv_bytes, make_folder, write_bytes, write_headline, write_json

I64 = NDArray[np.int64]

A_POINTS = ("oaa_cores", "oaa_ways", "rcliff_cores", "rcliff_ways")
_OF_CORES = ("oaa_cores", "rcliff_cores")
_OF_WAYS = ("oaa_ways", "rcliff_ways")


def of_service(table: Table, service: str) -> NDArray[np.bool_]:
    """Rows of one service."""
    planes = (table.plane_labels["service"] == service).to_numpy()
    return planes[table.plane]


def split_service(table: Table, service: str, letter: str) -> tuple[tuple[I64, I64], I64]:
    """Rows of the other services to train and to validate on, and all rows of this one to measure on."""
    own = of_service(table, service)
    parts = ("train",) if letter == "a" else ("train", "none")
    train_rows, val_rows = table.part(*parts), table.part("val")
    return (train_rows[~own[train_rows]], val_rows[~own[val_rows]]), np.flatnonzero(own)


def errors_of_a(table: Table, a: Fitted, rows: I64) -> dict[str, float]:
    """Mean absolute error of each output, and `a_mae` over the points; nothing where no plane has a label."""
    names = [s.name for s in a.outputs]
    error = np.abs(predict_a(table, a, rows) - table.labels(names)[table.plane[rows]])
    everywhere = np.ones(len(rows), dtype=bool)
    found = {f"a_{name}_mae": mean_where(error[:, k], everywhere) for k, name in enumerate(names)}
    points = [found[f"a_{name}_mae"] for name in names if name in A_POINTS]
    found["a_mae"] = float(np.mean(points))
    return {name: value for name, value in found.items() if np.isfinite(value)}


def errors_of_b(table: Table, b: Fitted, rows: I64, cap: float, seed: int) -> dict[str, float]:
    """The errors of holdout.qos_errors on the paper's questions."""
    asked = holdout.questions(table, rows, cap, seed)
    if len(asked.rows) == 0:
        return {}
    predicted = fit_qos.predict_qos(b, table, asked.rows, asked.cells)
    return {f"b_{name}": value for name, value in holdout.qos_errors(predicted, asked.qos).items()}


def error_of_constant(table: Table, known: I64, rows: I64) -> dict[str, float]:
    """`a_mae_constant`: of the median label of the training rows."""
    names = [n for n in A_POINTS if n in table.plane_labels.columns]
    labels = table.labels(names)
    guess = np.nanmedian(labels[table.plane[known]], axis=0)
    error = np.abs(guess - labels[table.plane[rows]])
    found = mean_where(error.ravel(), np.ones(error.size, dtype=bool))
    return {"a_mae_constant": found} if np.isfinite(found) else {}


def rescaled(model: Fitted, source: PlatformLimits, target: PlatformLimits) -> Fitted:
    """The model for another platform: what was a share of the one machine is the same share of the other."""
    limits = features.platform_limits(target)
    ratio = dict.fromkeys(_OF_CORES, target.cores / source.cores)
    if source.ways and target.ways:
        ratio |= dict.fromkeys(_OF_WAYS, target.ways / source.ways)
    inputs = [Bound(b.name, b.min, limits[b.name]) if b.name in limits and limits[b.name] > b.min else b for b in model.inputs]
    outputs = [Scale(s.name, s.scale * ratio.get(s.name, 1.0), s.offset * ratio.get(s.name, 1.0)) for s in model.outputs]
    return Fitted(model.weights, inputs, outputs, model.missing_inputs, [], model.steps, model.settings)


def services(rows_folder: Path, labels: Path, out: Path, p: params.Params) -> dict[str, float]:
    """Leave one service out at a time; returns the means over the services, and the errors of each in generalise.csv."""
    torch.set_num_threads(p.train.threads)
    s = p.generalise
    table = tensors.load(rows_folder, labels, max_rows=s.max_rows)
    make_folder(out)
    by_service: dict[str, dict[str, float]] = {}
    for service in sorted(set(table.plane_labels["service"])):
        rows, asked = split_service(table, service, "a")
        found: dict[str, float] = {}
        labelled = asked[np.isfinite(table.labels(["oaa_cores"])[table.plane[asked], 0])]
        if len(labelled):
            a = fit_oaa.fit_model(model_a.SPEC, table, s.a, s.seed, out, rows=rows)
            found |= errors_of_a(table, a, labelled) | error_of_constant(table, rows[0], labelled)
        rows, asked = split_service(table, service, "b")
        b = fit_qos.fit_model(model_b.SPEC, table, s.b, s.seed, out, rows=rows)
        found |= errors_of_b(table, b, asked, s.b.qos_cap, s.seed)
        by_service[service] = found
        print(f"generalise: without {service}: {', '.join(f'{k} {v:.3g}' for k, v in found.items())}", flush=True)
    return _write(out, "service", by_service)


def foreign(rows_folder: Path, labels: Path, models: Path, on: Path, out: Path, p: params.Params) -> dict[str, float]:
    """Ask trained models about another data set; returns the means over its services."""
    a, b = fitted.load(models / "a"), fitted.load(models / "b")
    table = tensors.load(rows_folder, labels, max_rows=p.generalise.max_rows)
    source = samples.open_dataset(on.parent if on.name == "manifest.json" else on, check_shards=False).platform
    versions: dict[str, tuple[Fitted, Fitted]] = {"": (a, b)}
    if (source.cores, source.ways, source.mb_per_way) != (table.platform.cores, table.platform.ways, table.platform.mb_per_way):
        moved = rescaled(a, source, table.platform), rescaled(b, source, table.platform)
        versions = {"_as_is": (a, b), "_rescaled": moved}
    by_service: dict[str, dict[str, float]] = {}
    for service in sorted(set(table.plane_labels["service"])):
        rows = np.flatnonzero(of_service(table, service))
        labelled = rows[np.isfinite(table.labels(["oaa_cores"])[table.plane[rows], 0])]
        found: dict[str, float] = {}
        for suffix, (asked_a, asked_b) in versions.items():
            errors = errors_of_a(table, asked_a, labelled) if len(labelled) else {}
            errors |= errors_of_b(table, asked_b, rows, b.setting("qos_cap"), p.generalise.seed)
            found |= {f"{name}{suffix}": value for name, value in errors.items()}
        by_service[service] = found
    return _write(out, "service", by_service)


def _write(out: Path, what: str, by_service: dict[str, dict[str, float]]) -> dict[str, float]:
    names = list(dict.fromkeys(name for found in by_service.values() for name in found))
    rows: list[Sequence[Any]] = [[who, *[found.get(n, float("nan")) for n in names]] for who, found in by_service.items()]
    metrics = {n: float(np.mean([found[n] for found in by_service.values() if n in found])) for n in names}
    write_bytes(out / "generalise.csv", csv_bytes([what, *names], rows))
    write_json(out / "generalise.json", metrics)
    # of a platform that is another one, as its models are and rescaled
    write_headline(out, {name: value for name, value in metrics.items() if name.startswith(("a_mae", "b_error_pct"))})
    return metrics


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.generalise", description="Ask the models about what they never saw."
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("services", "foreign"):
        sub = kinds.add_parser(kind)
        sub.add_argument("--rows", type=Path, required=True, help="output of the stage `rows`")
        sub.add_argument("--labels", type=Path, required=True, help="output of the stage `label`")
        if kind == "foreign":
            sub.add_argument("--models", type=Path, required=True, help="folder of the models (stage `train`), of other data")
            sub.add_argument("--on", type=Path, required=True, help="manifest of those data")
        sub.add_argument("--out", type=Path, required=True)
        sub.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)
    if args.kind == "services":
        return params.run_stage(lambda: services(args.rows, args.labels, args.out, params.load(args.params)))
    return params.run_stage(lambda: foreign(args.rows, args.labels, args.models, args.on, args.out, params.load(args.params)))


if __name__ == "__main__":
    raise SystemExit(main())
