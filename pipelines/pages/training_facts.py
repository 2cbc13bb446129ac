"""What the training report says, as plain data: gathered from what the stages of one data set left behind.

The page (training_page.py) shows these facts and nothing else; they are written beside it as report.json. What was not
measured is None, never left out, so that the page can say so.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from pipelines import drift, params, tracking
from pipelines.errors import BadInput
from pipelines.fits import fitted, rowfile
from pipelines.inputs import SUMMARY_BYTES, Unreadable, message, read_text
from pipelines.io import read_json
from pipelines.measures import CONSTANTS
from pipelines.pages import published
from pipelines.pages.published import Published, errors
from pipelines.tables import of_stage

MODELS = ("a", "b", "c", "osml-a", "osml-ap", "osml-b", "osml-bp", "osml-c")
TABLES = ("by_service", "by_cliff", "calibration", "importance")
_VERSIONS = ("_as_is", "_rescaled")  # of models asked about another platform (pipelines/generalise.py)

Rows = list[dict[str, Any]]


def gather(
    name: str, row_folder: Path, labels: Path, models: Path, evaluate: Path, p: params.Params, known: drift.Versions
) -> tuple[dict[str, Any], drift.Versions]:
    """All facts of one training, and the versions of the data to keep for the next.

    Args:
        row_folder, labels, models, evaluate: outputs of the stages `rows`, `label`, `train` and `evaluate`. In `evaluate` may be
            `leave-one-out`, `foreign/NAME` and `transfer`, the outputs of the stages of those names.
        known: versions of the data that were kept before.
    Raises:
        BadInput: an output is missing or damaged, or they are of different data.
    """
    about = rowfile.about(row_folder)
    trained = {model: fitted.summary(models / model) for model in MODELS if (models / model / fitted.SUMMARY).exists()}
    for model, summary in trained.items():
        if summary.data_sha256 != about.data_sha256:
            raise BadInput(f"{models / model}: the model is from other data than {row_folder}; run `dvc repro`")
    metrics = read_json(evaluate / "metrics.json", "the metrics of the stage `evaluate`")
    table = of_stage(labels / "labels.parquet")
    cap = trained["b"].settings.qos_cap if "b" in trained else None
    now = drift.profile(
        about,
        of_stage(row_folder / "rows.parquet", columns=["cell", "p99_ms", *about.features]),
        of_stage(labels / "cells.parquet"),
        table,
        cap or p.train.b.qos_cap,
    )
    before = known.before(about.data_sha256)
    commit, dirty = tracking.git_state()
    figures = published.read()
    platform = about.platform.name
    values = p.model_dump(include={"label", "rows", "train", "split", "evaluate", "compare", "report"})
    training = drift.Trained(
        data_sha256=about.data_sha256,
        campaign=about.campaign,
        rows=about.rows,
        planes=table.height,
        git_commit=commit,
        # what the report itself is told changes no model
        params={n: f"{v}" for n, v in flat({k: v for k, v in values.items() if k != "report"})},
        metrics={n: float(v) for n, v in metrics.items() if isinstance(v, int | float) and math.isfinite(v)},
    )
    trained_before = known.trained_before(training)
    facts = {
        "dataset": name,
        "trained_on": {
            **about.model_dump(),
            "cases": read_json(labels / "label.json", "the summary of the stage `label`").get("cases"),
            "planes": {split: int((table["split"] == split).sum()) for split in ("train", "val", "test", "none")},
            "services": _services(table),
            "git_commit": commit,
            "git_dirty": dirty,
        },
        "models": {
            model: {
                **summary.model_dump(include={"steps", "rows", "missing_inputs", "mlflow_run_id", "mlflow_child_id"}),
                "inputs": [b.name for b in summary.inputs],
                "outputs": [s.name for s in summary.outputs],
            }
            for model, summary in trained.items()
        },
        "params": values,
        "metrics": metrics,
        "errors": errors(metrics, figures, "evaluate", platform, p.report.comparator_margin, list(trained)),
        "tables": {table: table_of(evaluate / f"{table}.csv") for table in TABLES},
        "loss": {model: table_of(models / model / fitted.LOSS) for model in trained},
        "unseen": {
            "leave_one_out": _generalised(evaluate / "leave-one-out", figures, platform, p.report.comparator_margin),
            "foreign": {
                folder.name: _generalised(folder, figures, platform, p.report.comparator_margin)
                for folder in sorted((evaluate / "foreign").glob("*"))
                if folder.is_dir()
            },
        },
        "transfer": _transfer(evaluate / "transfer", figures, platform),
        "drift": None if before is None else drift.compare(before, now, p.report),
        "changed": None if trained_before is None else drift.changed(trained_before, training),
    }
    facts["headline"] = headline(facts)
    return facts, known.with_newest(now, training)


HEADLINE = ("a_cores_mae", "a_ways_mae", "b_error_pct", "b_error_macro_pct", "b_false_met", "b_harm_pct", "b_cliff_verdicts")
"""How far off, and is it safe."""


def headline(facts: Mapping[str, Any]) -> dict[str, float | None]:
    """What a reader asks first: of services never seen, then of planes held out of services that were; None: not measured."""
    alone = facts["unseen"]["leave_one_out"]
    told: dict[str, float | None] = {}
    for of, metrics in (("never_seen", alone["metrics"] if alone else {}), ("seen", facts["metrics"])):
        for name in HEADLINE:
            told[f"{of}_{name}"] = metrics.get(name)
            constants = [metrics[f"{name}_{m}"] for m in CONSTANTS if f"{name}_{m}" in metrics]
            better = max if name.endswith(published.HIGHER) else min
            told[f"{of}_{name}_constant"] = better(constants) if constants else None
    return told


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested parameters as names with dots, in their order."""
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        found += flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(f"{prefix}{name}", value)]
    return found


def _services(table: pl.DataFrame) -> Rows:
    """Planes of each service, how many have a label, and its QoS target."""
    found = table.group_by("service").agg(
        pl.len().alias("planes"),
        pl.col("reason").is_null().sum().alias("labelled"),
        (pl.col("split") == "test").sum().alias("held_out"),
        pl.col("qos_target_ms").first(),
    )
    return found.sort("service").to_dicts()


def _generalised(folder: Path, figures: list[Published], platform: str, margin: float) -> dict[str, Any] | None:
    """Outputs of a stage that asks about services or platforms never seen; None where it was not run."""
    if not (folder / "generalise.json").exists():
        return None
    metrics: dict[str, float] = read_json(
        folder / "generalise.json", "the metrics of the stage that asks about what was never seen"
    )
    found = []
    for version in ("", *_VERSIONS):
        mine = {n.removesuffix(version): v for n, v in metrics.items() if _version(n) == version}
        # the papers asked about unseen services on the models' own platform
        likes = [] if version else figures
        found += [row | {"version": version.strip("_")} for row in errors(mine, likes, "unseen", platform, margin)]
    return {"metrics": metrics, "errors": found, "by_service": table_of(folder / "generalise.csv")}


def _version(name: str) -> str:
    return next((v for v in _VERSIONS if name.endswith(v)), "")


def _transfer(folder: Path, figures: list[Published], platform: str) -> dict[str, Any] | None:
    """Outputs of the stage `transfer`; None where it was not run."""
    if not (folder / "transfer.json").exists():
        return None
    metrics = read_json(folder / "transfer.json", "the metrics of the stage `transfer`")
    return {
        "metrics": metrics,
        "errors": [e for e in errors(metrics, figures, "transfer", platform, 0.0) if e["paper"]],
        "curves": {letter: table_of(folder / f"curve_{letter}.csv") for letter in ("a", "b")},
    }


def table_of(path: Path) -> Rows | None:
    """A table of a stage: an empty field, nan and inf as None; None instead of a table where the file is missing.

    Raises:
        BadInput: a row is longer or shorter than the head.
    """
    if not path.exists():
        return None
    try:
        found = list(csv.DictReader(io.StringIO(read_text(path, SUMMARY_BYTES), newline="")))
    except (Unreadable, csv.Error) as error:
        raise BadInput(f"{path}: cannot be read ({message(error)}); make it again with `dvc repro`") from None
    for k, row in enumerate(found):
        if None in row or None in row.values():
            raise BadInput(f"{path}: line {k + 2} has not as many fields as the first; make it again with `dvc repro`")
    return [{name: _value(text) for name, text in row.items()} for row in found]


def _value(text: str) -> Any:
    try:
        number = float(text)
    except ValueError:
        return text or None
    return number if math.isfinite(number) else None
