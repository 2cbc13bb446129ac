"""What a trained model is to MLflow: `model/` of its run, with weights, `model.json`, an example of inputs and an MLmodel file.

MLmodel has the signature (named inputs and outputs, in order) and one flavor, `surefoot`, which only says which file is what.
The example is one row of inputs in natural units, each in the middle of its range: what the model takes, not what is usual.
There is no `python_function` flavor: that one is a pickle or code, and MLflow would run it. What runs these weights is
`pipelines.fits.fitted.load` and the node.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models import export
from models.features import ACTIONS
from pipelines import tracking
from pipelines.fits import fitted
from pipelines.fits.fitted import Fitted
from pipelines.io import canonical_json, read_json, sha256_bytes, sha256_file, write_json

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

FOLDER = "model"
"""Of a run's artefacts."""
FLAVOR = "surefoot"
FLAVOR_VERSION = 1
EXAMPLE = "input_example.json"
"""As MLflow names it and reads it (`mlflow.models.Model.load_input_example`)."""
CONTENT = "content_sha256"
"""Tag of a run whose model is logged whole, and of the versions made from it: see `content_sha256`."""
_RUN_FIELDS = ("mlflow_run_id", "mlflow_child_id")


def of(model: Fitted) -> ModelSignature:
    """Inputs and outputs as whoever asks the model sees them: in natural units, by name, in the order of `model.json`.

    Outputs of OSML+'s Model-C are the probabilities of its actions; OSML's Model-C answers with one vector, the expected return
    of each of its actions by number (models/osml_c.py).
    """
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, DataType, Schema, TensorSpec

    def columns(names: list[str]) -> Schema:
        return Schema([ColSpec(DataType.double, name) for name in names])

    inputs = columns([bound.name for bound in model.inputs])
    if model.outputs:
        return ModelSignature(inputs, columns([scale.name for scale in model.outputs]))
    if export.layer_shapes(model.weights, "actor."):
        return ModelSignature(inputs, columns(list(ACTIONS)))
    layers = export.layer_shapes(model.weights, "policy.")
    return ModelSignature(inputs, Schema([TensorSpec(np.dtype(np.float32), (-1, layers[-1][0]), "expected_return")]))


def content_sha256(folder: Path) -> str:
    """Digest of what a model is: its weights and all of `model.json` but the runs that made it.

    The same data, code and parameters give the same digest, however often they are trained.
    """
    about = read_json(folder / fitted.SUMMARY, "the summary of a model")
    what = {key: value for key, value in about.items() if key not in _RUN_FIELDS}
    return sha256_bytes(canonical_json({"weights_sha256": sha256_file(folder / fitted.WEIGHTS), "summary": what}))


def example(model: Fitted) -> dict[str, Any]:
    """One row of inputs, as MLflow keeps a table."""
    return {"columns": [b.name for b in model.inputs], "data": [[(b.min + b.max) / 2 for b in model.inputs]]}


def mlmodel(model: Fitted, run_id: str) -> Any:
    """The MLmodel file, as MLflow's own class."""
    from mlflow.models import Model

    held = {"artifact_path": EXAMPLE, "type": "dataframe", "pandas_orient": "split"}
    described = Model(artifact_path=FOLDER, run_id=run_id, signature=of(model), saved_input_example_info=held)
    return described.add_flavor(FLAVOR, format_version=FLAVOR_VERSION, weights=fitted.WEIGHTS, summary=fitted.SUMMARY)


def log(run: tracking.Runs, folder: Path) -> None:
    """Log a model's folder to its run. The tag comes last: a run that has it has all of the model.

    Raises:
        Away: the store cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="surefoot-model-") as scratch:
        for name in (fitted.WEIGHTS, fitted.SUMMARY):
            shutil.copyfile(folder / name, Path(scratch) / name)
        model = fitted.load(folder)
        write_json(Path(scratch) / EXAMPLE, example(model))
        mlmodel(model, run.run_id).save(str(Path(scratch) / "MLmodel"))
        run.log_folder(Path(scratch), FOLDER)
    run.tag({CONTENT: content_sha256(folder)})


def complete(run: tracking.Runs, folder: Path) -> None:
    """Log what a run lacks of a training whose model is whole: the store was away when the training ended.

    Raises:
        Away: the store cannot be used.
    """
    if CONTENT in run.tags():
        return
    losses = fitted.losses(folder)
    for name in {name for _, values in losses for name in values}:
        known = run.steps(name)
        run.log_curve([(epoch, {name: values[name]}) for epoch, values in losses if name in values and epoch not in known])
    about = fitted.summary(folder)
    run.log_metrics({"rows": about.rows})
    log(run, folder)
    run.finish("KILLED" if about.stopped_early else "FINISHED")
