"""Stage `generalise`: what the models say of services and of platforms that they never saw.

    python -m pipelines.generalise services --rows FOLDER --labels FOLDER --out FOLDER [--params FILE]
    python -m pipelines.generalise foreign --rows FOLDER --labels FOLDER --models FOLDER --on MANIFEST \
        --taught-rows FOLDER --taught-labels FOLDER --out FOLDER

`services` leaves out one service of the data set at a time, fits Models A and B to the training planes of the others and asks
them about all planes of the one left out. `foreign` asks trained models about another data set, all of its planes: services that
are not in the training data, or another platform. `--on` is the manifest of the data that the models were trained on, and
`--taught-rows` and `--taught-labels` what the stages made of them: constants and the nearest neighbour are fitted there. Where
the platforms differ, the models are asked twice: `_as_is`, and `_rescaled` with each resource taken as a share of its machine,
in the inputs and in the answers.

Writes `generalise.json` and `generalise.csv` (a row a service):

    a_<output>_mae        mean absolute error of Model-A; a_cores_mae and a_ways_mae: of OAA and RCliff; a_mae: of all four (the
                          paper's one figure)
    b_error_pct           mean absolute error of Model-B's QoS capped at 1, in per cent; the other measures of B as in `evaluate`
    ..._constant, ..._median, ..._nearest  of what the models must beat, taught with the same training planes
                          (pipelines/fits/comparators.py)
    ..._least, ..._most   least and most of the means of each training, where `generalise.trainings` is above 1 (generalise.json)
    trainings             how often the models were trained, each time with another seed

headline.json is what a reader asks first: how far off, and is it safe.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models import features, intervals, model_a, model_b
from models.features import Bound, PlatformLimits, Scale
from pipelines import params, samples
from pipelines.errors import BadInput
from pipelines.fits import by_service, comparators, fit_oaa, fit_qos, fitted, holdout, tensors
from pipelines.fits.cliff import cliff_distance
from pipelines.fits.comparators import Asked, Material
from pipelines.fits.fit_oaa import predict_a
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Table
from pipelines.io import csv_bytes, make_folder, write_bytes, write_headline, write_json

I64 = NDArray[np.int64]

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


def errors_of_a(asked: Asked, a: Fitted) -> dict[str, float]:
    """What Model-A is off by, as comparators.Asked has it."""
    return asked.errors_of_a(predict_a(asked.table, a, asked.rows), [s.name for s in a.outputs])


def errors_of_b(asked: Asked, b: Fitted) -> dict[str, float]:
    """The same of Model-B."""
    questions = asked.questions
    return asked.errors_of_b(fit_qos.predict_qos(b, asked.table, questions.rows, questions.cells)) if len(questions.rows) else {}


def asked_of(table: Table, rows: I64, distance: I64, cap: float, seed: int) -> Asked:
    """Rows with a label for Model-A, the paper's questions about all of them for Model-B."""
    labelled = rows[np.isfinite(table.labels(["oaa_cores"])[table.plane[rows], 0])]
    return Asked(table, labelled, holdout.questions(table, rows, cap, seed), distance)


def rescaled(model: Fitted, source: PlatformLimits, target: PlatformLimits, *, outputs_alone: bool = False) -> Fitted:
    """The model for another platform: what was a share of the one machine is the same share of the other.

    Args:
        outputs_alone: inputs were read on many platforms already, and mean the same on this one.
    """
    limits = features.platform_limits(target)
    ratio = dict.fromkeys(_OF_CORES, target.cores / source.cores)
    if source.ways and target.ways:
        ratio |= dict.fromkeys(_OF_WAYS, target.ways / source.ways)
    inputs = model.inputs
    if not outputs_alone:
        inputs = [Bound(b.name, b.min, limits[b.name]) if b.name in limits and limits[b.name] > b.min else b for b in inputs]
    shares = [ratio.get(intervals.central(s.name), 1.0) for s in model.outputs]
    outputs = [Scale(s.name, s.scale * share, s.offset * share) for s, share in zip(model.outputs, shares, strict=True)]
    return Fitted(model.weights, inputs, outputs, model.missing_inputs, [], model.steps, model.settings)


def services(rows_folder: Path, labels: Path, out: Path, p: params.Params, name: str = "") -> dict[str, float]:
    """Leave one service out at a time; returns the means over the services, and the errors of each in generalise.csv.

    Args:
        name: of the data set: which split it has (params.Split).
    """
    share = p.split.share(name)
    torch.set_num_threads(p.train.threads)
    s = p.generalise
    table = tensors.load(rows_folder, labels, max_rows=s.max_rows)
    distance = cliff_distance(table)
    make_folder(out)
    seeds = range(s.seed, s.seed + s.trainings)
    errors: dict[str, list[dict[str, float]]] = {}
    for service in sorted(set(table.plane_labels["service"])):
        (a_train, a_val), own = split_service(table, service, "a")
        (b_train, b_val), _ = split_service(table, service, "b")
        asked = asked_of(table, own, distance, s.b.qos_cap, s.seed)
        simple = comparators.measure(Material(table, a_train, b_train), asked, p, s.a, s.b, s.seed)
        errors[service] = []
        for seed in seeds:
            found: dict[str, float] = {}
            if len(asked.rows):
                a = by_service.fit(
                    partial(fit_oaa.fit_model, model_a.SPEC, table, s.a, seed, out), table, (a_train, a_val), share, seed
                )
                found |= errors_of_a(asked, a)
            b = by_service.fit(
                partial(fit_qos.fit_model, model_b.SPEC, table, s.b, seed, out), table, (b_train, b_val), share, seed
            )
            found |= errors_of_b(asked, b)
            errors[service].append(found | simple)
            print(f"generalise: without {service}: {', '.join(f'{k} {v:.3g}' for k, v in found.items())}", flush=True)
    return _write(out, "service", errors)


def foreign(
    rows_folder: Path,
    labels: Path,
    models: Path,
    on: Path,
    out: Path,
    p: params.Params,
    taught: tuple[Path, Path] | None = None,
) -> dict[str, float]:
    """Ask trained models about another data set; returns the means over its services.

    Args:
        taught: rows and labels of the data that the models were trained on; None: constants and the nearest neighbour are not
            there to compare with.
    """
    a, b = fitted.load(models / "a"), fitted.load(models / "b")
    table = tensors.load(rows_folder, labels, max_rows=p.generalise.max_rows)
    distance = cliff_distance(table)
    known = None
    if taught is not None:
        known = tensors.load(*taught)
        if known.about.data_sha256 != fitted.summary(models / "a").data_sha256:
            raise BadInput(f"{taught[0]}: is not what the models in {models} were trained on; run `dvc repro`")
    source = samples.open_dataset(on.parent if on.name == "manifest.json" else on, check_shards=False).platform
    versions: dict[str, tuple[Fitted, Fitted]] = {"": (a, b)}
    if (source.cores, source.ways, source.mb_per_way) != (table.platform.cores, table.platform.ways, table.platform.mb_per_way):
        moved = rescaled(a, source, table.platform), rescaled(b, source, table.platform)
        versions = {"_as_is": (a, b), "_rescaled": moved}
    by_name: dict[str, list[dict[str, float]]] = {}
    for service in sorted(set(table.plane_labels["service"])):
        asked = asked_of(table, np.flatnonzero(of_service(table, service)), distance, b.setting("qos_cap"), p.generalise.seed)
        found: dict[str, float] = {}
        simple: dict[str, float] = {}
        if known is not None:
            simple = comparators.measure(Material.of(known), asked, p, p.train.a, p.train.b, p.generalise.seed)
        for suffix, (asked_a, asked_b) in versions.items():
            errors = errors_of_a(asked, asked_a) if len(asked.rows) else {}
            # what was learnt there says cores and ways of there: beside rescaled models it would be no comparison
            errors |= errors_of_b(asked, asked_b) | ({} if suffix == "_rescaled" else simple)
            found |= {f"{name}{suffix}": value for name, value in errors.items()}
        by_name[service] = [found]
    return _write(out, "service", by_name)


HEADLINE = (
    "a_cores_mae",
    "a_ways_mae",
    "a_mae",
    "b_error_pct",
    "b_error_macro_pct",
    "b_false_met",
    "b_harm_pct",
    "b_cliff_verdicts",
)
"""How far off, and is it safe: of services or platforms never seen."""


_TOLD = ("a_cores_mae", "a_mae", "a_mae_constant", "b_error_pct", "b_error_pct_constant", "b_false_met")
"""Of them what `dvc metrics` shows."""


def _write(out: Path, what: str, errors: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Means over the trainings and the services.

    Args:
        errors: of each, the errors of every training.
    """
    names = list(dict.fromkeys(name for trainings in errors.values() for found in trainings for name in found))
    each = {who: {n: _mean([f[n] for f in trainings if n in f]) for n in names} for who, trainings in errors.items()}
    rows: list[Sequence[Any]] = [[who, *[found[n] for n in names]] for who, found in each.items()]
    metrics = {n: _mean([found[n] for found in each.values() if np.isfinite(found[n])]) for n in names}
    count = min(len(trainings) for trainings in errors.values())
    if count > 1:
        for n in (n for n in HEADLINE if n in metrics):
            means = [_mean([t[k][n] for t in errors.values() if n in t[k]]) for k in range(count)]
            metrics |= {f"{n}_least": min(means), f"{n}_most": max(means)}
    metrics["trainings"] = float(count)
    write_bytes(out / "generalise.csv", csv_bytes([what, *names], rows))
    write_json(out / "generalise.json", metrics)
    # of a platform that is another one, as its models are and rescaled
    versions = ("", "_as_is", "_rescaled")
    write_headline(out, {f"{n}{version}": metrics.get(f"{n}{version}") for version in versions for n in _TOLD})
    return metrics


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.generalise", description="Ask the models about what they never saw."
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("services", "foreign"):
        sub = kinds.add_parser(kind)
        sub.add_argument("--rows", type=Path, required=True, help="output of the stage `rows`")
        sub.add_argument("--labels", type=Path, required=True, help="output of the stage `label`")
        if kind == "services":
            sub.add_argument("--name", default="", help="name of the data set, for `split` in params.yaml")
        if kind == "foreign":
            sub.add_argument("--models", type=Path, required=True, help="folder of the models (stage `train`), of other data")
            sub.add_argument("--on", type=Path, required=True, help="manifest of those data")
            sub.add_argument("--taught-rows", type=Path, required=True, help="output of the stage `rows` on those data")
            sub.add_argument("--taught-labels", type=Path, required=True, help="output of the stage `label` on those data")
        sub.add_argument("--out", type=Path, required=True)
        sub.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)
    if args.kind == "services":
        return params.run_stage(lambda: services(args.rows, args.labels, args.out, params.load(args.params), args.name))
    taught = (args.taught_rows, args.taught_labels) if args.kind == "foreign" else None
    return params.run_stage(
        lambda: foreign(args.rows, args.labels, args.models, args.on, args.out, params.load(args.params), taught)
    )


if __name__ == "__main__":
    raise SystemExit(main())
