"""Stages `train`, `train-c` and `train-osml`: one model of one data set.

    python -m pipelines.train --model MODEL --name NAME --rows FOLDER --labels FOLDER --out FOLDER [--b FOLDER]

MODEL: a, b, c (OSML+), osml-a, osml-ap, osml-b, osml-bp, osml-c (OSML); models/ says what each is. `c` needs `--b`, the folder of
Model-B: its prediction is part of the reward. Writes `model.safetensors`, `model.json` (inputs, scales, rows), `loss.csv`.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import torch

from pipelines import fitted, params, signature, tensors, tracking
from pipelines.errors import BadInput
from pipelines.fit import Start
from pipelines.fitted import Fitted
from pipelines.io import make_folder
from pipelines.tensors import Table

LEARNERS = {
    "a": ("models.model_a", "pipelines.fit_oaa"),
    "b": ("models.model_b", "pipelines.fit_qos"),
    "c": (None, "pipelines.fit_ddpg"),
    "osml-a": ("models.osml_a", "pipelines.fit_oaa"),
    "osml-ap": ("models.osml_ap", "pipelines.fit_oaa"),
    "osml-b": ("models.osml_b", "pipelines.fit_trade"),
    "osml-bp": ("models.osml_bp", "pipelines.fit_trade"),
    "osml-c": (None, "pipelines.fit_dqn"),
}
"""Where a model is described (a regression: its SPEC) and what fits it. Imported by name, so that a model's stage depends on its
own code and not on that of all (dvc.yaml)."""


def fit(
    model: str,
    table: Table,
    p: params.Train,
    out: Path,
    logger: Any = None,
    *,
    b: Fitted | None = None,
    begin: Start | None = None,
) -> Fitted:
    """Train one model.

    Args:
        begin: weights to begin at, of `a`, `b` or `c`; None: random ones.

    Raises:
        BadInput: there is nothing to learn from, or Model-B is missing.
    """
    if model not in LEARNERS:
        raise BadInput(f"model {model!r} is unknown; known: {', '.join(LEARNERS)}")
    described, learner = LEARNERS[model]
    fit_model = importlib.import_module(learner).fit_model
    settings = section(p, model)
    more = {} if begin is None else {"begin": begin}
    if described is not None:
        done = fit_model(importlib.import_module(described).SPEC, table, settings, p.seed, out, logger, **more)
    elif model == "c":
        if b is None:
            raise BadInput("model c: Model-B's prediction is part of the reward; give --b FOLDER, the output of --model b")
        done = fit_model(table, b, settings, p.seed, out, logger, **more)
    else:
        done = fit_model(table, settings, p.seed, out, logger)
    assert isinstance(done, Fitted)
    return done


def section(p: params.Train, model: str) -> Any:
    """The model's part of `train` in params.yaml."""
    return getattr(p, model.replace("-", "_"))


def run(
    model: str,
    name: str,
    rows: Path,
    labels: Path,
    out: Path,
    p: params.Train,
    b: Path | None = None,
    *,
    begin: Start | None = None,
    begun_from: str = "",
) -> dict[str, Any]:
    """Train one model of one data set; returns what `model.json` holds.

    Args:
        begin: see `fit`.
        begun_from: whose weights those are, for the record in MLflow.
    """
    torch.set_num_threads(p.threads)
    table = tensors.load(rows, labels)
    model_b = None
    if b is not None:
        if fitted.summary(b).data_sha256 != table.about.data_sha256:
            raise BadInput(f"{b / fitted.SUMMARY}: Model-B is from other data than {rows}; run `dvc repro`")
        model_b = fitted.load(b)
    make_folder(out)
    data = {"dataset": name, "data_sha256": table.about.data_sha256, "platform": table.platform.name}
    parent = tracking.Runs.of_dataset(name, data)
    logger = parent.child_logger(f"{name}-{model}", {**data, "model": model, **tracking.git_tags()})
    child = tracking.Runs(logger.run_id)
    try:
        child.log_params({"model": model, "seed": p.seed, **section(p, model).model_dump()})
        if begun_from:
            child.client.set_tag(child.run_id, "begun_from", begun_from)
        done = fit(model, table, p, out, logger, b=model_b, begin=begin)
        about = {
            "model": model,
            "dataset": name,
            "campaign": table.about.campaign,
            "data_sha256": table.about.data_sha256,
            "mlflow_run_id": parent.run_id,
            "mlflow_child_id": child.run_id,
        }
        summary = fitted.save(out, done, about)
        child.log_metrics({"seconds": done.seconds, "rows": done.rows})
        signature.log(child, out)
    except BaseException:
        child.finish("FAILED")
        raise
    child.finish()
    parent.finish()
    return summary


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.train", description="Train one model on one data set.")
    parser.add_argument("--model", required=True, help=", ".join(LEARNERS))
    parser.add_argument("--name", required=True, help="name of the data set")
    parser.add_argument("--rows", type=Path, required=True, help="output of the stage `rows`")
    parser.add_argument("--labels", type=Path, required=True, help="output of the stage `label`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--b", type=Path, help="Model-B of the same data set, for --model c")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    a = parser.parse_args(argv)
    return params.run_stage(lambda: run(a.model, a.name, a.rows, a.labels, a.out, params.load(a.params).train, a.b))


if __name__ == "__main__":
    raise SystemExit(main())
