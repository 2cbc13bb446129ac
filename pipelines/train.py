"""Stage `train`: Models A, B and C of one data set.

    python -m pipelines.train --name NAME --data FOLDER --labels FOLDER --out FOLDER [--params params.yaml]

Writes `a.safetensors`, `b.safetensors`, `c.safetensors`, `train.json` (inputs, bounds, scales, rows, losses) and `loss.csv`
(a row an epoch and model). Checkpoints would be pickles, so there are none: the weights of the best epoch are kept in memory.

Differences from OSML+, Sec. 3.2, for Model-C's material: the paper trains C on line only; here it starts from transitions
between neighbouring cells of the sweep, with the paper's reward. A sample knows the latency of its own service only, so
"any LC service's QoS" is that service's QoS, and N = 1. The QoS in the reward is the one after the action, which a log has and a
running node has not.
"""

from __future__ import annotations

import argparse
import csv
import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

from models import export, features
from models.ddpg import Ddpg, DdpgArgs
from models.features import ACTIONS, Bound, Scale
from models.mlp import Mlp
from pipelines import params, tensors, tracking
from pipelines.errors import BadInput, PipelineError
from pipelines.io import read_json, write_bytes, write_json
from pipelines.tensors import Batches, QosQuestions, Table

I64 = NDArray[np.int64]
C_REPORTS = 20  # points of Model-C's loss curve


@dataclass
class Fitted:
    """A trained network with its scaling."""

    weights: export.Weights
    inputs: list[Bound]
    outputs: list[Scale]
    missing_inputs: list[str]
    history: list[dict[str, float]]
    seconds: float
    steps: int

    def as_json(self) -> dict[str, Any]:
        return {
            "inputs": [{"name": b.name, "min": b.min, "max": b.max} for b in self.inputs],
            "outputs": [{"name": s.name, "scale": s.scale, "offset": s.offset} for s in self.outputs],
            "missing_inputs": self.missing_inputs,
            "steps": self.steps,
        }


def _numpy(net: nn.Module) -> export.Weights:
    return {name: value.detach().numpy().copy() for name, value in net.state_dict().items()}


def _trainer(epochs: int, out: Path, logger: Any, callbacks: list[Any], batches_per_epoch: int | None = None) -> Any:
    import lightning.pytorch as pl

    return pl.Trainer(
        max_epochs=epochs,
        limit_train_batches=batches_per_epoch,
        accelerator="cpu",
        devices=1,
        deterministic=True,
        logger=logger or False,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=out,
        log_every_n_steps=1_000_000_000,  # per epoch is enough; a step takes less time than its log entry
        num_sanity_val_steps=0,
    )


def _history(names: Sequence[str]) -> tuple[Any, list[dict[str, float]], dict[str, Any]]:
    """A callback that keeps the metrics of every epoch and the weights of the one with the least `val_loss`."""
    from lightning.pytorch import Callback

    history: list[dict[str, float]] = []
    best: dict[str, Any] = {"loss": np.inf, "weights": None}

    class Keep(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            seen = {n: float(trainer.callback_metrics[n]) for n in names if n in trainer.callback_metrics}
            history.append({"epoch": float(trainer.current_epoch), **seen})
            if "val_loss" in seen and seen["val_loss"] < best["loss"]:
                best["loss"], best["weights"] = seen["val_loss"], _numpy(pl_module.net)

    return Keep(), history, best


def passes_for(p: params.Regression, rows: int, batch: int) -> int:
    """Passes over the data an epoch: more than one where the data set is small (`min_steps`)."""
    return max(1, -(-p.min_steps // (p.epochs * -(-rows // batch))))


def fit_regression(
    net: Mlp,
    train_batches: Any,
    val_batches: Any | None,
    p: params.Regression,
    out: Path,
    logger: Any,
) -> tuple[export.Weights, list[dict[str, float]], int]:
    """Train; returns weights (of the best validation epoch, where there are validation planes), history, steps."""
    from models.regression import Regression

    steps = p.epochs * len(train_batches)
    module = Regression(net, p.lr, steps, p.weight_decay, p.loss)
    keep, history, best = _history(("train_loss", "val_loss"))
    _trainer(p.epochs, out, logger, [keep]).fit(module, train_batches, val_batches)
    weights = best["weights"] if best["weights"] is not None else _numpy(net)
    if not all(np.all(np.isfinite(w)) for w in weights.values()):
        raise PipelineError("training diverged (weights are not finite); lower lr in params.yaml")
    return weights, history, steps


@dataclass(frozen=True)
class Start:
    """Where a network starts instead of at random: at another one's weights (transfer).

    Attributes:
        frozen: layers, counted from 0, that stay as they are.
    """

    weights: export.Weights
    frozen: tuple[int, ...] = ()

    def put_into(self, net: Mlp) -> None:
        """Copy the weights; the optimiser leaves what is frozen alone.

        Raises:
            BadInput: the networks differ in shape.
        """
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                given = self.weights.get(name)
                if given is None or given.shape != tuple(parameter.shape):
                    shape = "no such weights" if given is None else f"shape {given.shape}"
                    raise BadInput(
                        f"transfer: {name}: want shape {tuple(parameter.shape)}, the model to start from has {shape}; both "
                        "platforms must have the same inputs and outputs (feature set, cache partitioning)"
                    )
                parameter.copy_(torch.from_numpy(given))
                parameter.requires_grad_(int(name.split(".")[1]) not in self.frozen)


def fit_a(
    table: Table,
    p: params.Regression,
    seed: int,
    out: Path,
    logger: Any = None,
    *,
    rows: tuple[I64, I64] | None = None,
    begin: Start | None = None,
) -> Fitted:
    """Model-A: counters of one sample to OAA and RCliff of its plane.

    Args:
        rows: to train and to validate on; None: all of those splits.
        begin: None: at random weights.
    """
    start = time.monotonic()
    inputs, missing = tensors.model_inputs(features.MODEL_A_INPUTS, table)
    train, val = rows if rows is not None else (table.part("train"), table.part("val"))
    outputs = features.output_candidates(features.MODEL_A_OUTPUTS, table.feature_set, table.platform.ways)
    labels = table.labels(outputs)
    chosen = np.unique(table.plane[train])
    outputs = [n for k, n in enumerate(outputs) if np.isfinite(labels[chosen, k]).any()]
    if not outputs or len(train) == 0:
        raise BadInput(
            "no plane of the training split has a label; see `reason` in labels.parquet, and lower the loads of the campaign"
        )
    labels = table.labels(outputs)
    bounds = features.make_bounds(inputs, tensors.observed(table, train), table.platform)
    scales = [_scale(name, labels[table.plane[train], k]) for k, name in enumerate(outputs)]

    def batches(rows: I64, shuffle: bool) -> Batches:
        x = torch.from_numpy(features.normalise(table.matrix(inputs, rows), bounds))
        y = torch.from_numpy(features.standardise(labels[table.plane[rows]], scales))
        batch = tensors.batch_size(p.batch, len(rows))
        return Batches((x, y), batch, seed, shuffle=shuffle, passes=passes_for(p, len(rows), batch) if shuffle else 1)

    torch.manual_seed(seed)
    net = Mlp(len(inputs), len(outputs), dropout=p.dropout)
    if begin is not None:
        begin.put_into(net)
    val_batches = batches(val, False) if len(val) else None
    weights, history, steps = fit_regression(net, batches(train, True), val_batches, p, out, logger)
    return Fitted(weights, bounds, scales, missing, history, time.monotonic() - start, steps)


def _scale(name: str, values: NDArray[np.float64]) -> Scale:
    known = values[np.isfinite(values)]
    return features.make_scales([name], known[:, None])[0]


class QosBatches:
    """Mini-batches for Model-B: a new question for every row in every pass, or the same ones (`fixed`, for validation)."""

    def __init__(
        self, questions: QosQuestions, inputs: list[Bound], scale: Scale, p: params.ModelB, seed: int, *, fixed: bool = False
    ) -> None:
        table = questions.table
        self._questions, self._inputs, self._scale = questions, inputs, scale
        self._x = b_matrix(table, questions.rows, inputs)
        self._at = [k for k, bound in enumerate(inputs) if bound.name.startswith("expected_")]
        self._batch = tensors.batch_size(p.batch, len(self._x))
        self._passes = 1 if fixed else passes_for(p, len(self._x), self._batch)
        self._seed, self._fixed, self._pass = seed, fixed, 0

    def __len__(self) -> int:
        return self._passes * -(-len(self._x) // self._batch)

    def pair(self, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Scaled inputs, and the QoS asked for in natural units."""
        cells, qos = self._questions.draw(rng)
        asked_of = [self._inputs[k] for k in self._at]
        expected = expected_inputs(self._questions.table, cells)
        x = self._x.copy()
        x[:, self._at] = features.normalise(np.column_stack([expected[bound.name] for bound in asked_of]), asked_of)
        return x, qos

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self._passes):
            rng = np.random.default_rng((self._seed, self._pass))
            self._pass += 0 if self._fixed else 1
            x, qos = self.pair(rng)
            order = np.arange(len(x)) if self._fixed else rng.permutation(len(x))
            xs = torch.from_numpy(x[order])
            ys = torch.from_numpy(features.standardise(qos[order, None], [self._scale]))
            for k in range(0, len(x), self._batch):
                yield xs[k : k + self._batch], ys[k : k + self._batch]


def expected_inputs(table: Table, cells: I64) -> dict[str, NDArray[np.float64]]:
    """The inputs `expected_*` of Model-B for these cells."""
    return {
        "expected_cores": table.cell_cores[cells],
        "expected_cache_mb": table.cell_ways[cells] * table.platform.mb_per_way,
    }


def b_matrix(table: Table, rows: I64, inputs: Sequence[Bound], cells: I64 | None = None) -> NDArray[np.float32]:
    """Scaled inputs of Model-B; without cells the `expected_*` columns are 0."""
    expected = expected_inputs(table, cells) if cells is not None else {}
    raw = [
        expected.get(bound.name, np.zeros(len(rows))) if bound.name.startswith("expected_") else table.columns[bound.name][rows]
        for bound in inputs
    ]
    return features.normalise(np.column_stack(raw), inputs)


def fit_b(
    table: Table,
    p: params.ModelB,
    seed: int,
    out: Path,
    logger: Any = None,
    *,
    rows: tuple[I64, I64] | None = None,
    begin: Start | None = None,
) -> Fitted:
    """Model-B: counters and an expected allocation to the QoS there; arguments as for `fit_a`.

    Planes without a feasible cell have no place in Model-A's material, but they teach B what a missed target looks like.
    """
    start = time.monotonic()
    inputs, missing = tensors.model_inputs(features.MODEL_B_INPUTS, table)
    train, val = rows if rows is not None else (table.part("train", "none"), table.part("val"))
    bounds = features.make_bounds(inputs, tensors.observed(table, train), table.platform)
    questions = QosQuestions(table, train, p.qos_cap, p.near_share)
    if len(questions.rows) == 0:
        raise BadInput("no plane of the training split has a cell with a known QoS; see cells.parquet")
    scale = features.make_scales(["qos"], questions.draw(np.random.default_rng(seed))[1][:, None])[0]

    torch.manual_seed(seed + 1)
    net = Mlp(len(inputs), 1, dropout=p.dropout)
    if begin is not None:
        begin.put_into(net)
    val_questions = QosQuestions(table, val, p.qos_cap, p.near_share) if len(val) else None
    val_batches = None
    if val_questions is not None and len(val_questions.rows):
        val_batches = QosBatches(val_questions, bounds, scale, p, seed, fixed=True)
    weights, history, steps = fit_regression(net, QosBatches(questions, bounds, scale, p, seed), val_batches, p, out, logger)
    return Fitted(weights, bounds, [scale], missing, history, time.monotonic() - start, steps)


def predict_qos(b: Fitted, table: Table, rows: I64, cells: I64) -> NDArray[np.float64]:
    """Model-B's QoS of rows if they went to cells."""
    x = b_matrix(table, rows, b.inputs, cells)
    return features.natural(export.forward(b.weights, x), b.outputs)[:, 0]


def reward(predicted_met: NDArray[np.bool_], qos: NDArray[np.float64], usage: NDArray[np.float64]) -> NDArray[np.float64]:
    """The piecewise reward of OSML+, Sec. 3.2.

    Args:
        predicted_met: Model-B says that the new allocation meets QoS.
        qos: min(1, target / p99) after the action.
        usage: share of each resource in use by LC services, averaged over the resources under control.
    """
    return np.where(qos < 1.0, predicted_met.astype(float) + qos, 2.0 + (1.0 - usage))


def available_actions(table: Table) -> list[str]:
    """Actions that the platform can carry out."""
    platform = table.platform
    have = {"cores": True, "ways": platform.ways > 0, "mba": platform.mba}
    return [name for name in ACTIONS if have.get(name.partition("_")[0], True)]


def fit_c(
    table: Table, b: Fitted, p: params.ModelC, seed: int, out: Path, logger: Any = None
) -> tuple[Fitted, dict[str, float], list[str]]:
    """Model-C from logged transitions; returns it with its hyperparameters and the actions that are possible."""
    from models.model_c import ModelC

    start = time.monotonic()
    inputs, missing = tensors.model_inputs(features.MODEL_C_INPUTS, table)
    train = table.part("train", "none")
    bounds = features.make_bounds(inputs, tensors.observed(table, train), table.platform)
    rng = np.random.default_rng((seed, 2))
    log = tensors.transitions(table, train, p.transitions, rng)

    def state(rows: I64) -> NDArray[np.float32]:
        qos = tensors.row_qos(table, rows)
        raw = np.column_stack([qos if n == "qos" else table.columns[n][rows] for n in inputs])
        return features.normalise(raw, bounds)

    platform = table.platform
    shares = [(table.columns["alloc_cores"][log.after] + _column(table, "nb_cores", log.after)) / platform.cores]
    if platform.ways > 0 and "alloc_cache_mb" in table.columns:
        held_mb = table.columns["alloc_cache_mb"][log.after] + _column(table, "nb_cache_mb", log.after)
        shares.append(held_mb / (platform.ways * platform.mb_per_way))
    if platform.mba:
        shares.append(table.cell_mba[table.cell[log.after]] / 100.0)
    usage = np.clip(np.mean(shares, axis=0), 0.0, 1.0)
    met = predict_qos(b, table, log.before, table.cell[log.after]) >= 1.0
    rewards = reward(met, tensors.row_qos(table, log.after), usage)

    batch = min(p.batch, p.transitions)
    args = DdpgArgs(p.gamma, p.tau, p.lr_actor, p.lr_critic, p.critic_l2, p.actor_entropy, batch)
    torch.manual_seed(seed + 2)
    net = Ddpg(len(inputs), args)
    if p.gamma < 1.0:
        # Q-values start where they will end up on average; else thousands of updates go into finding that one number.
        net.start_critic_at(float(rewards.mean()) / (1.0 - p.gamma))
    one_hot = np.eye(len(ACTIONS), dtype=np.float32)[log.action]
    parts = (state(log.before), one_hot, rewards.astype(np.float32), state(log.after))
    batches = Batches([torch.from_numpy(part) for part in parts], batch, seed)
    per_epoch = min(len(batches), max(1, p.updates // C_REPORTS))
    epochs = -(-p.updates // per_epoch)
    keep, history, _ = _history(("critic_loss", "actor_loss"))
    _trainer(epochs, out, logger, [keep], per_epoch).fit(ModelC(net), batches)
    weights = {name: value.numpy() for name, value in net.named_tensors().items()}
    if not all(np.all(np.isfinite(w)) for w in weights.values()):
        raise PipelineError("Model-C diverged (weights are not finite); lower lr_actor and lr_critic in params.yaml")
    fitted = Fitted(weights, bounds, [], missing, history, time.monotonic() - start, epochs * per_epoch)
    return fitted, args.as_dict(), available_actions(table)


def _column(table: Table, name: str, rows: I64) -> NDArray[np.float64]:
    """A sample feature, or nothing in use where the host cannot measure it."""
    return table.columns[name][rows] if name in table.columns else np.zeros(len(rows))


def loss_csv(histories: dict[str, list[dict[str, float]]]) -> bytes:
    """A row an epoch and model, for `dvc plots`."""
    text = io.StringIO()
    names = ("model", "epoch", "train_loss", "val_loss", "critic_loss", "actor_loss")
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for model, history in histories.items():
        for row in history:
            writer.writerow({"model": model, **{k: f"{v:.6g}" for k, v in row.items()}})
    return text.getvalue().encode()


def run(name: str, data: Path, labels: Path, out: Path, p: params.Train) -> dict[str, Any]:
    """Train all three; returns what `train.json` holds."""
    torch.set_num_threads(p.threads)
    table = tensors.load(data, labels, max_rows=p.max_rows, use_overloaded=p.use_overloaded_inputs)
    from pipelines import samples

    source = samples.open_dataset(data, check_shards=False)
    out.mkdir(parents=True, exist_ok=True)
    runs = tracking.Runs(name=name, tags={"dataset": name, "data_sha256": source.sha256, "platform": source.platform.name})
    try:
        return _train(name, table, source.sha256, source.campaign, out, p, runs)
    except BaseException:
        runs.finish("FAILED")
        raise


def _train(
    name: str, table: Table, data_sha256: str, campaign: str, out: Path, p: params.Train, runs: tracking.Runs
) -> dict[str, Any]:
    runs.log_params(p.model_dump())
    tags = {"data_sha256": data_sha256}

    def tracked(letter: str, fit: Callable[[Any], Any], settings: dict[str, Any]) -> Any:
        logger = runs.child_logger(f"{name}-{letter}", tags)
        logger.log_hyperparams({"model": letter, **settings})
        result = fit(logger)
        fitted = result[0] if isinstance(result, tuple) else result
        path = out / f"{letter}.safetensors"
        write_bytes(path, export.to_safetensors(fitted.weights))
        runs.client.log_artifact(logger.run_id, str(path))
        return result

    a = tracked("a", lambda log: fit_a(table, p.a, p.seed, out, log), p.a.model_dump())
    b = tracked("b", lambda log: fit_b(table, p.b, p.seed, out, log), p.b.model_dump())
    c, hyperparameters, actions = tracked("c", lambda log: fit_c(table, b, p.c, p.seed, out, log), p.c.model_dump())
    summary = {
        "name": name,
        "campaign": campaign,
        "data_sha256": data_sha256,
        "mlflow_run_id": runs.run_id,
        "rows": {"train": len(table.part("train")), "val": len(table.part("val")), "test": len(table.part("test"))},
        "rows_left_out": table.dropped,
        "a": a.as_json(),
        "b": {**b.as_json(), "qos_cap": p.b.qos_cap},
        "c": {**c.as_json(), "hyperparameters": hyperparameters, "available_actions": actions},
    }
    runs.log_metrics({"seconds": {"a": a.seconds, "b": b.seconds, "c": c.seconds}, "rows": summary["rows"]})
    write_bytes(out / "loss.csv", loss_csv({"a": a.history, "b": b.history, "c": c.history}))
    write_json(out / "train.json", summary)
    runs.log_file(out / "train.json")
    runs.finish()
    return summary


class FittedSummary(BaseModel):
    """What `train.json` says of one model."""

    inputs: list[Bound]
    outputs: list[Scale]
    missing_inputs: list[str]
    steps: int


class FittedBSummary(FittedSummary):
    qos_cap: float


class FittedCSummary(FittedSummary):
    hyperparameters: dict[str, float]
    available_actions: list[str]


class Summary(BaseModel):
    """The part of `train.json` that later stages read."""

    data_sha256: str
    mlflow_run_id: str
    a: FittedSummary
    b: FittedBSummary
    c: FittedCSummary


def load_summary(folder: Path) -> Summary:
    """Read the stage's `train.json`.

    Raises:
        BadInput: it is missing or damaged; names file and field.
    """
    path = folder / "train.json"
    try:
        return Summary.model_validate(read_json(path, "the summary of the stage `train`"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise BadInput(f"{path}: field {where}: {first['msg']}; make it again with `dvc repro --force train`") from None


def load_fitted(folder: Path, letter: Literal["a", "b", "c"], summary: Summary) -> Fitted:
    """Read a model back from the stage's output."""
    entry: FittedSummary = getattr(summary, letter)
    return Fitted(
        weights=export.read(folder / f"{letter}.safetensors"),
        inputs=entry.inputs,
        outputs=entry.outputs,
        missing_inputs=entry.missing_inputs,
        history=[],
        seconds=0.0,
        steps=entry.steps,
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.train", description="Train Models A, B and C on one data set.")
    parser.add_argument("--name", required=True, help="name of the data set")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--labels", type=Path, required=True, help="output of the stage `label`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)
    return params.run_stage(lambda: run(args.name, args.data, args.labels, args.out, params.load(args.params).train))


if __name__ == "__main__":
    raise SystemExit(main())
