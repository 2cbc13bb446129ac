"""A trained network with its scaling, and the folder of a model: `model.safetensors`, `model.json`, `loss.csv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from models import export
from models.features import Bound, Scale
from pipelines.errors import BadInput
from pipelines.inputs import SUMMARY_BYTES, message, read_text
from pipelines.io import read_model, write_bytes, write_json

WEIGHTS, SUMMARY, LOSS = "model.safetensors", "model.json", "loss.csv"
VAL_LOSS = "val_loss"


class Stopped(BaseModel):
    """A training that was ended before its end.

    Attributes:
        by: what ended it, a signal's name.
        epochs: those that it had finished, of `of`.
    """

    by: str
    epochs: int
    of: int


@dataclass
class Fitted:
    """A trained model.

    Attributes:
        missing_inputs: inputs of the paper's list that the data have not.
        settings: what whoever runs the model must know besides: `qos_cap`, `hyperparameters`, `available_actions`, ...
        rows: rows of the training, validation and test split that the model could use.
        stopped_early: None: the training went to its end.
    """

    weights: export.Weights
    inputs: list[Bound]
    outputs: list[Scale]
    missing_inputs: list[str]
    history: list[dict[str, float]] = field(default_factory=list)
    steps: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    stopped_early: Stopped | None = None

    def setting(self, name: str) -> Any:
        """One of `settings`.

        Raises:
            BadInput: the model has none of that name.
        """
        if name not in self.settings:
            raise BadInput(f"{SUMMARY}: field settings.{name} is missing; make the model again with `dvc repro`")
        return self.settings[name]


class Settings(BaseModel):
    """`settings` of `model.json`; a model has those that it needs. `interval`: share of labels that its intervals cover."""

    model_config = ConfigDict(extra="forbid")

    qos_cap: float | None = None
    interval: float | None = None
    hyperparameters: dict[str, float] | None = None
    available_actions: list[str] | None = None
    slowdowns: list[float] | None = None
    latency_cap: float | None = None


class Summary(BaseModel):
    """What `model.json` says.

    Attributes:
        mlflow_run_id: the pipeline run, above the training's own run `mlflow_child_id`.
        plant_version: of the virtual server that made the data; None where a machine did.
        stopped_early: the training was ended before its end; such a model is neither bundled nor registered.
    """

    model: str
    dataset: str
    campaign: str
    data_sha256: str
    mlflow_run_id: str
    mlflow_child_id: str
    inputs: list[Bound]
    outputs: list[Scale]
    missing_inputs: list[str]
    steps: int
    rows: dict[str, int]
    settings: Settings
    plant_version: str | None = None
    stopped_early: Stopped | None = None

    def check_whole(self, folder: Path) -> None:
        """
        Raises:
            BadInput: the training was ended before its end.
        """
        if (s := self.stopped_early) is not None:
            raise BadInput(
                f"{folder / SUMMARY}: field stopped_early: {s.by} ended the training after {s.epochs} of {s.of} epochs; train it "
                "to its end (`dvc repro`), or give it fewer epochs or updates in params.yaml"
            )


def some_outputs(weights: export.Weights, places: Sequence[int]) -> export.Weights:
    """The network with these outputs alone."""
    last = f"layers.{len(export.layer_shapes(weights)) - 1}"
    return weights | {name: weights[name][list(places)] for name in (f"{last}.weight", f"{last}.bias")}


def save(folder: Path, fitted: Fitted, about: dict[str, Any]) -> dict[str, Any]:
    """Write the folder of a model; returns what `model.json` holds."""
    summary = about | {
        "inputs": [{"name": b.name, "min": b.min, "max": b.max} for b in fitted.inputs],
        "outputs": [{"name": s.name, "scale": s.scale, "offset": s.offset} for s in fitted.outputs],
        "missing_inputs": fitted.missing_inputs,
        "steps": fitted.steps,
        "rows": fitted.rows,
        "settings": fitted.settings,
    }
    if fitted.stopped_early is not None:
        summary["stopped_early"] = fitted.stopped_early.model_dump()
    Summary.model_validate(summary)
    write_bytes(folder / WEIGHTS, export.to_safetensors(fitted.weights))
    write_bytes(folder / LOSS, loss_csv(fitted.history))
    write_json(folder / SUMMARY, summary)
    return summary


def loss_csv(history: list[dict[str, float]]) -> bytes:
    """A row an epoch, for `dvc plots`. `val_loss` is there also where nothing was held out: empty."""
    text = io.StringIO()
    names = list(dict.fromkeys([*(name for row in history for name in row), VAL_LOSS]))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in history:
        writer.writerow({name: f"{value:.6g}" for name, value in row.items()})
    return text.getvalue().encode()


def losses(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """What `loss.csv` says, by epoch; nothing where there is none.

    Raises:
        BadInput: it cannot be read.
    """
    path = folder / LOSS
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path, SUMMARY_BYTES))))
        return [(int(row.pop("epoch")), {name: float(value) for name, value in row.items() if value}) for row in rows]
    except FileNotFoundError:
        return []
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise BadInput(f"{path}: cannot be read ({message(error)}); make it again with `dvc repro`") from None


def same_plant(named: str, models: str | None, data: str | None) -> None:
    """That what models know and what they are to learn is of one edition of the virtual server. A machine's data has none.

    Args:
        named: the models, as the message names them.
    Raises:
        BadInput: says both editions, and the remedy.
    """
    if models is not None and data is not None and models != data:
        raise BadInput(
            f"{named}: its models are of plant {models}, and the data of plant {data}, which is another server. Begin "
            f"from models of plant {data}, or from nothing"
        )


def summary(folder: Path) -> Summary:
    """Read `model.json`.

    Raises:
        BadInput: it is missing or damaged; names file and field.
    """
    return read_model(folder / SUMMARY, Summary, "the summary of a model", _again(folder))


def _again(folder: Path) -> str:
    """How the model of a folder is made again: by the name of its stage, where the folder is one of dvc.yaml's."""
    *_, pipeline, dataset, train, model = ("", "", "", *folder.parts)
    if (pipeline, train) != ("pipeline", "train"):
        return "train that model again, with `dvc repro` where a stage makes it"
    osml = model.startswith("osml-")
    stage = f"train-c@{dataset}" if model == "c" else f"train{'-osml' * osml}@{dataset}-{model.removeprefix('osml-')}"
    return f"make it again with `dvc repro --force --single-item {stage}`"


def load(folder: Path) -> Fitted:
    """Read a model back.

    Raises:
        BadInput: a file is missing or damaged, or the weights are not of the network that `model.json` describes.
    """
    about = summary(folder)
    path = folder / WEIGHTS
    try:
        weights = export.read(path)
    except FileNotFoundError:
        raise BadInput(f"{path}: the weights are missing; make them again with `dvc repro`") from None
    except Exception as error:  # safetensors raises its own, without a common parent
        raise BadInput(f"{path}: is not a safetensors file ({message(error)}); make it again with `dvc repro`") from None
    for prefix, outputs in _networks(about, weights):
        shapes = export.layer_shapes(weights, prefix)
        if not shapes or shapes[0][1] != len(about.inputs) or (outputs and shapes[-1][0] != outputs):
            raise BadInput(
                f"{path}: layers {shapes} are not those of {len(about.inputs)} inputs and {outputs} outputs, which {SUMMARY} "
                "says; make it again with `dvc repro`"
            )
    return Fitted(
        weights=weights,
        inputs=about.inputs,
        outputs=about.outputs,
        missing_inputs=about.missing_inputs,
        history=[],
        steps=about.steps,
        settings=about.settings.model_dump(exclude_none=True),
        rows=about.rows,
    )


def _networks(about: Summary, weights: export.Weights) -> list[tuple[str, int]]:
    """Prefix and number of outputs (0: not told) of the networks that take the inputs."""
    if about.outputs:
        return [("", len(about.outputs))]
    return [("actor.", 0)] if any(name.startswith("actor.") for name in weights) else [("policy.", 0)]
