"""What every training shares: the Lightning trainer, how it ends, the weights of the best epoch, and the loop for regressions.

Checkpoints would be pickles, so there are none: the best weights are kept in memory.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models import export, features, intervals
from models.features import Bound, Scale
from models.mlp import Mlp
from models.spec import Spec
from pipelines import params
from pipelines.errors import BadInput, Interrupted, PipelineError
from pipelines.fits import mapped, tensors
from pipelines.fits.fitted import VAL_LOSS, Fitted, Stopped, some_outputs
from pipelines.fits.strange import is_strangeness
from pipelines.fits.tensors import Table

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

FIRST = "layers.0."
LEAST_DEVIATION = 0.01  # of an input's range


def numpy_weights(net: nn.Module) -> export.Weights:
    return {name: value.detach().numpy().copy() for name, value in net.state_dict().items()}


def checked(weights: export.Weights, what: str, remedy: str) -> export.Weights:
    if not all(np.all(np.isfinite(w)) for w in weights.values()):
        raise PipelineError(f"{what} diverged (weights are not finite); lower {remedy} in params.yaml")
    return weights


def quiet() -> None:
    """Import Lightning and keep its chatter off the stages' output; errors still show."""
    import lightning.pytorch  # noqa: F401 - it sets its own levels when it is imported

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")


def trainer(epochs: int, out: Path, callbacks: list[Any], batches_per_epoch: int | None = None) -> Any:
    quiet()
    import lightning.pytorch as pl

    return pl.Trainer(
        max_epochs=epochs,
        limit_train_batches=batches_per_epoch,
        accelerator="cpu",
        devices=1,
        deterministic=True,
        logger=False,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=out,
        num_sanity_val_steps=0,
    )


class Stop:
    """What ends a training before its end: SIGTERM, SIGINT (Ctrl-C) and, in a stage of DVC, the end of DVC.

    Until `hold` a signal interrupts whatever goes on, as there is nothing to keep. From then on it is noted, and `asked` tells
    whoever trains.
    """

    def __init__(self) -> None:
        self._by: str | None = None
        self._holds = False
        # DVC told to end leaves its stage behind, which would go on for nobody
        self._parent = os.getppid() if "DVC_STAGE" in os.environ else None

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """While this is entered signals come here; only a process's main thread can have them."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._take) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, _: Any) -> None:
        self._by = self._by or signal.Signals(number).name
        if not self._holds:
            raise Interrupted(self._by)

    def hold(self) -> None:
        """From here on there is something to keep."""
        self._holds = True

    def asked(self) -> str | None:
        """Who asked to end; None: nobody."""
        if self._by is None and self._parent not in (None, os.getppid()):
            self._by = "the end of DVC"
        return self._by


@dataclass
class Watch:
    """Who looks on while a model is trained.

    Attributes:
        losses: takes the number and the losses of each epoch.
        stop: ends the training; what it has by then is kept.
    """

    losses: Callable[[int, Mapping[str, float]], None] | None = None
    stop: Stop = field(default_factory=Stop)


@dataclass
class Course:
    """How a training went.

    Attributes:
        history: losses, a row an epoch.
        weights: of the epoch with the least `val_loss`; None: nothing was held out.
        steps: batches that were learnt from.
        stopped_early: None: it went to its end.
    """

    history: list[dict[str, float]] = field(default_factory=list)
    weights: export.Weights | None = None
    steps: int = 0
    stopped_early: Stopped | None = None


def train(
    module: Any,
    batches: Any,
    val_batches: Any | None,
    names: Sequence[str],
    epochs: int,
    out: Path,
    watch: Watch | None = None,
    per_epoch: int | None = None,
    keep: int | None = None,
) -> Course:
    """Train a Lightning module.

    Args:
        keep: the epoch whose weights are kept, counted from 0; None: the one with the least `val_loss`.
        names: of the losses to keep.
        watch: None: a signal ends the process.
        per_epoch: batches of an epoch; None: all.
    Raises:
        Interrupted: the training was to end, and no epoch was over.
    """
    from lightning.pytorch import Callback
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    course = Course()
    least = np.inf

    class Keep(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            nonlocal least
            seen = {n: float(trainer.callback_metrics[n]) for n in names if n in trainer.callback_metrics}
            course.history.append({"epoch": float(trainer.current_epoch), **seen})
            if watch is not None and watch.losses is not None:
                watch.losses(trainer.current_epoch, seen)
            if keep is not None:
                if trainer.current_epoch == keep:
                    course.weights = numpy_weights(pl_module.net)
            elif seen.get(VAL_LOSS, np.inf) < least:
                least, course.weights = seen[VAL_LOSS], numpy_weights(pl_module.net)

        def on_train_batch_end(self, *_: Any) -> None:
            course.steps += 1
            end_if_asked()

        def on_validation_batch_end(self, *_: Any) -> None:
            end_if_asked()

    def end_if_asked() -> None:
        if watch is not None and (by := watch.stop.asked()) is not None:
            raise Interrupted(by)

    if watch is not None:
        watch.stop.hold()
    try:
        trainer(epochs, out, [Keep()], per_epoch).fit(module, batches, val_batches)
    except (Interrupted, SystemExit) as end:  # Lightning makes its own of signals that nobody else takes
        by = signal.SIGTERM.name if isinstance(end, SIGTERMException) else getattr(end, "by", signal.SIGINT.name)
        if watch is None or not course.history:
            raise Interrupted(by) from None
        course.stopped_early = Stopped(by=by, epochs=len(course.history), of=epochs)
    return course


@dataclass(frozen=True)
class Start:
    """Where a network starts instead of at random: at another one's weights (transfer).

    Attributes:
        frozen: layers, counted from 0, that stay as they are.
        inputs, outputs: the other one's bounds and scales, in order; empty: not known.
    """

    weights: export.Weights
    frozen: tuple[int, ...] = ()
    inputs: tuple[Bound, ...] = ()
    outputs: tuple[Scale, ...] = ()

    def moved_to(self, inputs: Sequence[Bound], outputs: Sequence[Scale]) -> Start:
        """The same function of cores, MB and MB/s, for a network with these bounds and scales.

        A service needs about as many cores on either machine, not the same share of it. Where bounds are not known, the same
        function of scaled values. Inputs that follow the named ones (a critic's action) have no bounds. Ends of intervals are
        left out where this network has none: on another platform they would not cover what they say.

        Raises:
            BadInput: the networks take or give something else, so that the weights mean nothing.
        """
        wanted = {s.name for s in outputs}
        places = [k for k, s in enumerate(self.outputs) if s.name in wanted or not intervals.is_end(s.name)]
        if outputs and len(places) < len(self.outputs):
            fewer = replace(self, weights=some_outputs(self.weights, places), outputs=tuple(self.outputs[k] for k in places))
            return fewer.moved_to(inputs, outputs)
        for what, theirs, ours in (("inputs", self.inputs, inputs), ("outputs", self.outputs, outputs)):
            names, own = [x.name for x in theirs], [x.name for x in ours]
            if names and names != own:
                odd = sorted(set(names) ^ set(own))
                raise BadInput(
                    f"transfer: {what}: the model to begin from has {', '.join(names)}; the data here call for {', '.join(own)}"
                    f"{' (' + ', '.join(odd) + ')' if odd else ''}. Begin from a platform with the same feature set and cache "
                    "partitioning, or from nothing"
                )
        if not self.inputs:
            return self
        weights = {name: value.astype(np.float64) for name, value in self.weights.items() if not is_strangeness(name)}
        n = len(self.inputs)
        span = np.array([b.max - b.min for b in self.inputs])
        shift = np.array([new.min - old.min for old, new in zip(self.inputs, inputs, strict=True)]) / span
        for first in [name.removesuffix(".weight") for name in weights if name.endswith("layers.0.weight")]:
            weights[f"{first}.bias"] += weights[f"{first}.weight"][:, :n] @ shift
            weights[f"{first}.weight"][:, :n] *= np.array([b.max - b.min for b in inputs]) / span
        if self.outputs and list(self.outputs) != list(outputs):
            last = f"layers.{len(weights) // 2 - 1}"
            old_scale, scale = (np.array([s.scale for s in side]) for side in (self.outputs, outputs))
            moved = np.array([old.offset - new.offset for old, new in zip(self.outputs, outputs, strict=True)])
            weights[f"{last}.weight"] *= (old_scale / scale)[:, None]
            weights[f"{last}.bias"] = (weights[f"{last}.bias"] * old_scale + moved) / scale
        return Start({name: value.astype(np.float32) for name, value in weights.items()}, self.frozen)

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


def passes_for(p: params.Regression, rows: int, batch: int) -> int:
    """Passes over the data an epoch: more than one where the data set is small (`min_steps`)."""
    return max(1, -(-p.min_steps // (p.epochs * -(-rows // batch))))


@dataclass(frozen=True)
class Standard:
    """Inputs as a network is trained on them: mean 0, and divided by the root of their deviation.

    A counter that seldom comes near its bound uses a small part of [0, 1], and the optimiser would learn late what it says.
    Divided by the whole deviation, a counter that says little is fitted, too, where planes are few
    (docs/studies/2026-11-22-models.md).
    Models take [0, 1] all the same: the move is affine, so the first layer takes it in when the training is over.
    """

    mean: F64
    spread: F64

    @classmethod
    def of(cls, batches: Any) -> Standard:
        """Of the first batches' inputs. What hardly varied is not blown up: a node may see more of it."""
        x = np.concatenate([batch[0].numpy() for batch in islice(iter(batches), 16)]).astype(np.float64)
        deviation = x.std(axis=0)
        return cls(x.mean(axis=0), np.where(deviation > LEAST_DEVIATION, np.sqrt(deviation), 1.0))

    @classmethod
    def as_they_are(cls, inputs: int) -> Standard:
        """For a first layer that stays as it is."""
        return cls(np.zeros(inputs), np.ones(inputs))

    def scaler(self) -> Callable[[Tensor], Tensor]:
        """Inputs in [0, 1] to those that the network is trained on."""
        mean, spread = (torch.from_numpy(values.astype(np.float32)) for values in (self.mean, self.spread))
        return lambda x: (x - mean) / spread

    def unfold_into(self, net: Mlp) -> None:
        """Make the network the same function of inputs as `scaler` gives them."""
        weights = numpy_weights(net)
        weight = weights[FIRST + "weight"].astype(np.float64)
        bias = weights[FIRST + "bias"] + weight @ self.mean
        net.load_state_dict(_tensors(weights | _first_layer(weight * self.spread, bias)))

    def folded(self, weights: export.Weights) -> export.Weights:
        """The same function of inputs in [0, 1]."""
        weight = weights[FIRST + "weight"].astype(np.float64) / self.spread
        return weights | _first_layer(weight, weights[FIRST + "bias"] - weight @ self.mean)


def _first_layer(weight: F64, bias: F64) -> export.Weights:
    return {FIRST + "weight": weight.astype(np.float32), FIRST + "bias": bias.astype(np.float32)}


def _tensors(weights: export.Weights) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in weights.items()}


def fit_regression(
    net: Mlp,
    train_batches: Any,
    val_batches: Any | None,
    p: params.Regression,
    out: Path,
    watch: Watch | None,
    *,
    begun: bool = False,
    memory: Sequence[int] = (),
    keep: int | None = None,
    levels: Sequence[float] | None = None,
) -> tuple[export.Weights, Course]:
    """Train; returns weights of the best validation epoch, where there are validation planes, else of the last.

    Args:
        levels: the quantile that each output is; None: all are central ones.
        keep: the epoch whose weights are returned instead.
        begun: the network is not random: training begins from the function that it is.
        memory: columns of the memory sizes, for `hide_memory`.
    """
    from models.regression import Regression

    steps = p.epochs * len(train_batches)
    rate = p.begun_lr if begun and p.begun_lr is not None else p.lr
    module = Regression(net, rate, steps, p.weight_decay, p.loss, levels)
    first = next(net.parameters())
    standard = Standard.of(train_batches) if first.requires_grad else Standard.as_they_are(first.shape[1])
    if begun:
        standard.unfold_into(net)
    scaled = standard.scaler()

    def look(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        x = hidden(given[0], memory, p.hide_memory) if net.training and p.hide_memory > 0 else given[0]
        return (scaled(x),)

    hook = net.register_forward_pre_hook(look)
    course = train(module, train_batches, val_batches, ("train_loss", VAL_LOSS), p.epochs, out, watch, keep=keep)
    hook.remove()
    weights = course.weights if course.weights is not None else numpy_weights(net)
    return checked(standard.folded(weights), "training", "lr"), course


MEMORY = ("virt_mem_mb", "res_mem_mb")


def memory_columns(inputs: Sequence[Bound]) -> list[int]:
    return [k for k, bound in enumerate(inputs) if bound.name in MEMORY]


def hidden(x: Tensor, columns: Sequence[int], share: float) -> Tensor:
    """Inputs with random values in these columns of a share of the rows.

    Memory sizes name a service almost without error, so that a network learns what each service of its data does by heart; of a
    service that it never saw it then says what these sizes happen to be near to
    (docs/studies/2026-11-22-services-never-seen.md).
    """
    x, rows = x.clone(), torch.rand(len(x)) < share
    for column in columns:
        x[rows, column] = torch.rand(int(rows.sum()))
    return x


def network(
    spec: Spec, p: params.Regression, inputs: Sequence[Bound], outputs: Sequence[Scale], seed: int, begin: Start | None = None
) -> Mlp:
    """The model's network, at random weights or as the function that `begin` is.

    Raises:
        BadInput: `begin` is of another network.
    """
    torch.manual_seed(seed)
    net = Mlp(len(inputs), len(outputs), spec.hidden, spec.dropout if p.dropout is None else p.dropout)
    if begin is not None:
        begin.moved_to(inputs, outputs).put_into(net)
    return net


def scale_of(name: str, values: F64) -> Scale:
    """Scale of an output from its labels; those that are missing do not count."""
    return features.make_scales([name], values[np.isfinite(values)][:, None])[0]


def parts(table: Table, *splits: str, alone: bool = False) -> I64:
    """Rows of these splits; of planes without neighbours only, if `alone`."""
    rows = table.part(*splits)
    return rows[table.alone[table.plane[rows]]] if alone else rows


class Drawn:
    """Mini-batches of questions that are drawn anew in every pass; the same ones each time if `fixed`, for validation.

    Args:
        draw: scaled inputs (rows, inputs) and labels in natural units (rows, outputs), NaN where there is none.
        rows: rows that `draw` gives.
    """

    def __init__(
        self,
        draw: Callable[[np.random.Generator], tuple[NDArray[np.float32], F64]],
        rows: int,
        scales: Sequence[Scale],
        p: params.Regression,
        seed: int,
        *,
        fixed: bool = False,
    ) -> None:
        self._draw, self._rows, self._scales = draw, rows, list(scales)
        self._batch = tensors.batch_size(p.batch, rows)
        self._passes = 1 if fixed else passes_for(p, rows, self._batch)
        self._seed, self._fixed, self._pass = seed, fixed, 0

    def __len__(self) -> int:
        return self._passes * -(-self._rows // self._batch)

    def __iter__(self) -> Any:
        for _ in range(self._passes):
            rng = np.random.default_rng((self._seed, self._pass))
            self._pass += 0 if self._fixed else 1
            x, y = self._draw(rng)
            order = np.arange(len(x)) if self._fixed else rng.permutation(len(x))
            xs: Tensor = torch.from_numpy(x[order])
            ys: Tensor = torch.from_numpy(features.standardise(y[order], self._scales))
            for k in range(0, len(x), self._batch):
                yield xs[k : k + self._batch], ys[k : k + self._batch]


def matrix(table: Table, rows: I64, inputs: Sequence[Bound], cells: I64 | None = None) -> NDArray[np.float32]:
    """Scaled inputs of rows; `expected_*` are those of `cells`. Inputs that no sample has are 0 until they are filled in."""

    def raw(name: str, part: slice) -> F64:
        filled_in_later = cells is None and name.startswith("expected_")
        of = rows[part]
        if filled_in_later or not table.has(name):
            return np.zeros(len(of))
        return table.values(name, of, None if cells is None else cells[part])

    found = np.empty((len(rows), len(inputs)), dtype=np.float32)
    for part in mapped.blocks(len(rows)):
        found[part] = features.normalise(np.column_stack([raw(b.name, part) for b in inputs]), inputs)
        table.release()
    return found


def finished(fitted: Fitted, course: Course, table: Table, start: float, alone: bool = False) -> Fitted:
    """With how its training went, its rows and how long it took."""
    rows = {split: len(parts(table, split, alone=alone)) for split in ("train", "val", "test")}
    return replace(
        fitted,
        history=course.history,
        steps=course.steps,
        stopped_early=course.stopped_early,
        rows=rows,
        seconds=time.monotonic() - start,
    )


def no_labels(what: str) -> BadInput:
    return BadInput(
        f"no plane of the training split has {what}; see `reason` in labels.parquet, and lower the loads of the campaign"
    )
