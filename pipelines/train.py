"""Stages `train`, `train-c` and `train-osml`: one model of one data set.

    python -m pipelines.train --model MODEL --name NAME --rows FOLDER --labels FOLDER --out FOLDER [--b FOLDER]

MODEL: a, b, c (OSML+), osml-a, osml-ap, osml-b, osml-bp, osml-c (OSML); models/ says what each is. `c` needs `--b`, the folder of
Model-B: its prediction is part of the reward. Writes `model.safetensors`, `model.json` (inputs, scales, rows), `loss.csv`.

The run in MLflow begins before the training: a store that cannot be used refuses it before an hour is spent. A store that goes
away meanwhile ends nothing; the stages `evaluate` and `register` complete the run (pipelines/fits/signature.py).

SIGTERM, Ctrl-C and the end of DVC end a training after the batch at hand. What it has is written, marked `stopped_early`, unless
a whole model is there already; the exit code is 1, so DVC keeps nothing of it and trains again, and the run ends as KILLED.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipelines import params, tracking
from pipelines.errors import BadInput, Interrupted, PipelineError
from pipelines.fits import by_service, fitted, signature, tensors
from pipelines.fits.fit import Start, Stop, Watch
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Table
from pipelines.inputs import choice, message
from pipelines.io import make_folder
from pipelines.samples import PLANT

LEARNERS = {
    "a": ("models.model_a", "pipelines.fits.fit_oaa"),
    "b": ("models.model_b", "pipelines.fits.fit_qos"),
    "c": (None, "pipelines.fits.fit_ddpg"),
    "osml-a": ("models.osml_a", "pipelines.fits.fit_oaa"),
    "osml-ap": ("models.osml_ap", "pipelines.fits.fit_oaa"),
    "osml-b": ("models.osml_b", "pipelines.fits.fit_trade"),
    "osml-bp": ("models.osml_bp", "pipelines.fits.fit_trade"),
    "osml-c": (None, "pipelines.fits.fit_dqn"),
}
"""Where a model is described (a regression: its SPEC) and what fits it. Imported by name, so that a model's stage depends on its
own code and not on that of all (dvc.yaml)."""

SPLIT = ("a", "b")
"""Models that the section `split` of params.yaml is about."""


def fit(
    model: str,
    table: Table,
    p: params.Train,
    out: Path,
    watch: Watch | None = None,
    *,
    b: Fitted | None = None,
    begin: Start | None = None,
    services: float | None = None,
) -> Fitted:
    """Train one model.

    Args:
        begin: weights to begin at, of `a`, `b` or `c`; None: random ones.
        services: share of the services that the epoch of `a` and `b` is chosen on; None: planes of all of them.

    Raises:
        BadInput: there is nothing to learn from, or Model-B is missing.
    """
    _known(model)
    described, learner = LEARNERS[model]
    fit_model = importlib.import_module(learner).fit_model
    settings = section(p, model)
    more = {} if begin is None else {"begin": begin}
    if model in SPLIT:
        spec = importlib.import_module(str(described)).SPEC
        parts = ("train",) if model == "a" else ("train", "none")
        once = partial(fit_model, spec, table, settings, p.seed, out, watch, **more)
        done = by_service.fit(once, table, (table.part(*parts), table.part("val")), services, p.seed)
    elif described is not None:
        done = fit_model(importlib.import_module(described).SPEC, table, settings, p.seed, out, watch, **more)
    elif model == "c":
        if b is None:
            raise BadInput("model c: Model-B's prediction is part of the reward; give --b FOLDER, the output of --model b")
        done = fit_model(table, b, settings, p.seed, out, watch, **more)
    else:
        done = fit_model(table, settings, p.seed, out, watch)
    assert isinstance(done, Fitted)
    return done


def _known(model: str) -> None:
    if model not in LEARNERS:
        raise BadInput(f"model {model!r} is unknown. {choice(model, LEARNERS)}")


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
    whole: params.Params | None = None,
    make: Callable[[Table], Fitted] | None = None,
) -> dict[str, Any]:
    """Train one model of one data set; returns what `model.json` holds.

    Args:
        begin: see `fit`.
        begun_from: whose weights those are, for the record in MLflow.
        whole: parameters of all stages, for the record in MLflow; None: those of the training alone are known.
        make: makes the model of the data instead of `fit`.
    Raises:
        Away: MLflow's store cannot be used; nothing was trained.
        PipelineError: the training was ended before its end.
    """
    _known(model)
    with _stoppable(f"{name}-{model}") as stop:
        torch.set_num_threads(p.threads)
        table = tensors.load(rows, labels)
        model_b = None
        if b is not None:
            if fitted.summary(b).data_sha256 != table.about.data_sha256:
                raise BadInput(f"{b / fitted.SUMMARY}: Model-B is from other data than {rows}; run `dvc repro`")
            model_b = fitted.load(b)
        make_folder(out)
        given = (whole or params.Params(train=p)).model_dump() | {"train": p.model_dump()}
        of = tracking.Execution(name, table.about.data_sha256, given, begun_from, table.about.tags())
        runs: list[tracking.Runs] = []
        try:
            client = tracking.connect()
            tracking.close_left_open(client)
            runs.append(of.run(client))
            runs.append(runs[0].child(f"{name}-{model}", {"kind": "training", "model": model, **of.about()}))
            parent, child = runs
            child.log_params({"model": model, "seed": p.seed, **section(p, model).model_dump()})
            losses = tracking.Losses(child)
            services = None if whole is None else whole.split.share(name)
            if make is not None:
                done = make(table)
            else:
                done = fit(model, table, p, out, Watch(losses.log, stop), b=model_b, begin=begin, services=services)
            stop.hold()
            about = {
                "model": model,
                "dataset": name,
                "campaign": table.about.campaign,
                "data_sha256": table.about.data_sha256,
                "plant_version": table.about.made_by.get(PLANT),
                "mlflow_run_id": parent.run_id,
                "mlflow_child_id": child.run_id,
            }
            if done.stopped_early is not None:
                raise _stopped(out, done, about, losses)
            summary = fitted.save(out, done, about)
        except BaseException as error:
            killed = isinstance(error, Interrupted | KeyboardInterrupt | Ended)
            _close(runs, "KILLED" if killed else "FAILED")
            raise
        losses.send()
        losses.try_to(lambda: child.log_metrics({"seconds": done.seconds, "rows": done.rows}))
        losses.try_to(lambda: signature.log(child, out))
        losses.try_to(child.finish)
        losses.try_to(parent.finish)
        if losses.why is not None:
            said = f"note: the model is whole; MLflow's run {child.run_id} lacks its end, which the next stage adds: {losses.why}"
            print(message(said), file=sys.stderr)
        return summary


@contextmanager
def _stoppable(what: str) -> Iterator[Stop]:
    """While this is entered a signal ends the training: before there is anything to keep as `Ended`.

    Raises:
        Ended: see above.
    """
    try:
        with Stop().listening() as stop:
            yield stop
    except Interrupted as end:
        raise Ended(f"{what}: {end.by} ended the training before its first epoch was over; nothing of it is kept") from None


class Ended(PipelineError):
    """A training was ended before its end; exit code 1."""


def _stopped(out: Path, done: Fitted, about: Mapping[str, Any], losses: tracking.Losses) -> Ended:
    """Keep what a training has that was ended; returns what to say of it."""
    s = done.stopped_early
    assert s is not None
    how = f"{s.by} after {s.epochs} of {s.of} epochs"
    said = f"{about['dataset']}-{about['model']}: the training was ended by {how}"
    try:
        if fitted.summary(out).stopped_early is None:
            return Ended(f"{said}; {out} holds the model of an earlier one, as it was")
    except BadInput:  # there is none, or none that can be used
        pass
    fitted.save(out, done, dict(about))
    with tracking.hurried():
        losses.send()
        losses.try_to(lambda: losses.run.tag({"stopped_early": how}))
        losses.try_to(lambda: signature.log(losses.run, out))
    return Ended(f"{said}; {out} holds the best of these, marked stopped_early. The same command trains it again")


def _close(runs: Sequence[tracking.Runs], status: str) -> None:
    """Mark the runs of a training that did not go to its end; a store that is away keeps nobody waiting."""
    with tracking.hurried(), suppress(tracking.Away):
        for run in reversed(runs):
            run.finish(status)


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

    def work() -> dict[str, Any]:
        whole = params.load(a.params)
        return run(a.model, a.name, a.rows, a.labels, a.out, whole.train, a.b, whole=whole)

    return params.run_stage(work)


if __name__ == "__main__":
    raise SystemExit(main())
