"""From a model of many platforms to one of a new platform, by few samples of it.

Tables have their labels in the units of the model (pipelines/worlds.py: per cent of a platform). A method returns a network of
the same shape, so that a bundle can hold it.

    copy      all weights are trained on, at a low rate (OSML+, Sec. 3.2)
    blend     weights between the model and its copy, nearer to the copy the more planes were measured; the copy is taught
              what the model says of overloaded rows (`held`)
    outputs   the last layer alone moves, in closed form: least absolute residuals, drawn back to where it was

Planes count, not rows: all rows of a plane share one label, so that a plane is one sample. The model as it is counts as `hold`
planes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from models import export, features, intervals
from models.features import Scale
from models.mlp import Mlp
from models.spec import Spec
from pipelines import params
from pipelines.fits import fit_oaa, holdout, strange
from pipelines.fits.fit import Standard, Start, checked, matrix, network, numpy_weights, scale_of
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Table

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

METHODS = ("copy", "blend", "outputs")
ROUNDS = 12
"""Of reweighting: by then the residuals change by less than a hundredth of their scale."""
MOST_PAIRS = 400_000
"""Questions of Model-B that are held: of a campaign over all cells there would be a thousand times as many."""
LEAST_RESIDUAL = 0.02
"""Of an output's scale: below it a residual weighs no more."""


def only(table: Table, cells: I64) -> Table:
    """The table as the measuring of these cells leaves it: the QoS of all others is unknown. Labels and rows stay."""
    qos = np.full(len(table.cell_qos), np.nan)
    qos[cells] = table.cell_qos[cells]
    return replace(table, cell_qos=qos, ready=None)


def plain(model: Fitted) -> Fitted:
    """The model without intervals and strangeness score: few samples of a new server calibrate neither."""
    middle = [k for k, s in enumerate(model.outputs) if not intervals.is_end(s.name)]
    weights = {name: w for name, w in model.weights.items() if not strange.is_strangeness(name)}
    last = f"layers.{len(export.layer_shapes(weights)) - 1}"
    weights |= {name: weights[name][middle] for name in (f"{last}.weight", f"{last}.bias")}
    settings = {name: value for name, value in model.settings.items() if name != "interval"}
    return replace(model, weights=weights, outputs=[model.outputs[k] for k in middle], settings=settings)


@dataclass(frozen=True)
class Lesson:
    """What a model is taught, as arrays.

    Attributes:
        x: scaled inputs, shape (rows, inputs).
        low, high: least and most that each label can be, natural units, shape (rows, outputs); NaN where there is none.
        plane: of each row.
        over: the service is overloaded in this row.
    """

    x: NDArray[np.float32]
    low: F64
    high: F64
    plane: I64
    over: NDArray[np.bool_]


def lesson_a(table: Table, rows: I64, a: Fitted) -> Lesson:
    """Rows and the labels of their planes."""
    low, high = fit_oaa.label_ends(table, [s.name for s in a.outputs])
    plane = table.plane[rows]
    x = features.normalise(table.matrix([b.name for b in a.inputs], rows), a.inputs)
    return Lesson(x, low[plane], high[plane], plane, holdout.overloaded(table, rows))


def lesson_b(table: Table, rows: I64, b: Fitted) -> Lesson:
    """Each row asked about each cell of its plane whose QoS is known; the table is one of `only`."""
    known = np.flatnonzero(np.isfinite(table.cell_qos))
    known = known[np.argsort(table.cell_plane[known], kind="stable")]
    start, end = (np.searchsorted(table.cell_plane[known], table.plane[rows], side=s) for s in ("left", "right"))
    rng = np.random.default_rng(len(rows))
    if (pairs := int((end - start).sum())) > MOST_PAIRS:
        kept = np.sort(rng.permutation(len(rows))[:MOST_PAIRS])
        rows, start, end = rows[kept], start[kept], end[kept]
    each = max(1, MOST_PAIRS // max(len(rows), 1)) if pairs > MOST_PAIRS else pairs
    cells = [
        known[a:b] if b - a <= each else rng.choice(known[a:b], each, replace=False) for a, b in zip(start, end, strict=True)
    ]
    before = np.repeat(rows, [len(c) for c in cells])
    after = np.concatenate([np.empty(0, dtype=np.int64), *cells])
    qos = np.minimum(table.cell_qos[after], b.setting("qos_cap"))[:, None]
    return Lesson(matrix(table, before, b.inputs, after), qos, qos, table.plane[before], holdout.overloaded(table, before))


def held(lesson: Lesson, model: Fitted) -> Lesson:
    """The same, where overloaded rows are taught what the model says of them.

    Counters of an overloaded service show what it has, not what it needs. All such rows look alike, so few planes
    would teach their own need as that of all.
    """
    said = features.natural(export.forward(model.weights, lesson.x), model.outputs)
    over = lesson.over[:, None] & np.isfinite(lesson.low)
    return replace(lesson, low=np.where(over, said, lesson.low), high=np.where(over, said, lesson.high))


def nothing(spec: Spec, lesson: Lesson, like: Fitted, p: params.Regression, seed: int) -> Fitted:
    """A model of the samples alone, with the inputs and outputs of another; outputs have the samples' own scale."""
    outputs = [scale_of(s.name, lesson.low[:, k]) for k, s in enumerate(like.outputs)]
    net = network(spec, p, like.inputs, outputs, seed)
    return replace(like, outputs=outputs, weights=_trained(net, lesson, outputs, p, seed, begun=False))


def copy(spec: Spec, lesson: Lesson, model: Fitted, p: params.Regression, seed: int) -> Fitted:
    """The model, trained on with the samples."""
    net = network(spec, p, model.inputs, model.outputs, seed, Start(model.weights))
    return replace(model, weights=_trained(net, lesson, model.outputs, p, seed, begun=True))


def _trained(
    net: Mlp, lesson: Lesson, outputs: Sequence[Scale], p: params.Regression, seed: int, *, begun: bool
) -> export.Weights:
    """Weights after `min_steps` batches; a loop of its own, since Lightning takes longer to begin than this takes."""
    standard = Standard.of([(torch.from_numpy(lesson.x),)])
    if begun:
        standard.unfold_into(net)
    x = standard.scaler()(torch.from_numpy(lesson.x))
    low, high = (torch.from_numpy(features.standardise(end, outputs)) for end in (lesson.low, lesson.high))
    known = torch.isfinite(low)
    low, high = torch.nan_to_num(low), torch.nan_to_num(high)
    rate = p.begun_lr if begun and p.begun_lr is not None else p.lr
    optimiser = torch.optim.Adam(net.parameters(), lr=rate, weight_decay=p.weight_decay, fused=True)
    drawn = torch.Generator().manual_seed(seed)
    for step in range(p.min_steps):
        # as models/regression.py: up in the first tenth, then down along a cosine
        share = step / p.min_steps
        for group in optimiser.param_groups:
            group["lr"] = rate * min(10 * share + 0.01, 0.5 * (1 + math.cos(math.pi * share)))
        rows = torch.randint(len(x), (min(p.batch, len(x)),), generator=drawn)
        said = net(x[rows])
        error = torch.relu(low[rows] - said) + torch.relu(said - high[rows])
        loss = (error * known[rows]).sum() / known[rows].sum().clamp(min=1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return checked(standard.folded(numpy_weights(net)), "training", "lr")


def blend(model: Fitted, copied: Fitted, planes: int, hold: float) -> Fitted:
    """Weights between a model and its copy.

    Args:
        planes: that the copy was taught.
        hold: planes that the model as it is counts as.
    """
    share = planes / (planes + hold)
    weights = {n: ((1.0 - share) * w + share * copied.weights[n]).astype(np.float32) for n, w in model.weights.items()}
    return replace(model, weights=weights)


def outputs(lesson: Lesson, model: Fitted, hold: float) -> Fitted:
    """The model with its last layer moved towards the labels.

    Args:
        hold: planes that the model as it is counts as.
    """
    said = features.natural(export.forward(model.weights, lesson.x), model.outputs)
    wanted = np.where(np.isfinite(lesson.low), np.clip(said, lesson.low, lesson.high), np.nan)
    return _moved(model, lesson.x, wanted, lesson.plane, hold)


def _hidden(weights: export.Weights, x: NDArray[np.float32]) -> tuple[F64, str]:
    """What the last layer sees, and that layer's name."""
    last = len(export.layer_shapes(weights)) - 1
    for n in range(last):
        x = np.maximum(x @ weights[f"layers.{n}.weight"].T + weights[f"layers.{n}.bias"], np.float32(0.0))
    return x.astype(np.float64), f"layers.{last}"


def _moved(model: Fitted, x: NDArray[np.float32], wanted: F64, plane: I64, hold: float) -> Fitted:
    """The least sum over planes of the mean absolute residual, and `hold` times the square of the move, in each output."""
    hidden, last = _hidden(model.weights, x)
    weight, bias = (model.weights[f"{last}.{n}"].astype(np.float64) for n in ("weight", "bias"))
    residual = _standard(wanted, model.outputs) - (hidden @ weight.T + bias)
    spread = np.sqrt((hidden**2).mean(axis=0)) if len(hidden) else np.ones(hidden.shape[1])
    used = spread > 1e-6
    design = np.column_stack([hidden[:, used] / spread[used], np.ones(len(hidden))])
    for k in range(len(model.outputs)):
        known = np.isfinite(residual[:, k])
        if not known.any():
            continue
        move = _least_absolute(design[known], residual[known, k], plane[known], hold)
        weight[k, used] += move[:-1] / spread[used]
        bias[k] += move[-1]
    moved = {f"{last}.weight": weight.astype(np.float32), f"{last}.bias": bias.astype(np.float32)}
    return replace(model, weights={**model.weights, **moved})


def _standard(values: F64, outputs: Sequence[Scale]) -> F64:
    return (values - np.array([s.offset for s in outputs])) / np.array([s.scale for s in outputs])


def _least_absolute(design: F64, residual: F64, plane: I64, hold: float) -> F64:
    _, which, count = np.unique(plane, return_inverse=True, return_counts=True)
    each = 1.0 / count[which]
    # the inputs of the last layer are many and alike: the penalty is shared among them
    penalty = hold / design.shape[1] * np.eye(design.shape[1])
    penalty[-1, -1] = hold / design.shape[1]
    move = np.zeros(design.shape[1])
    for _ in range(ROUNDS):
        weighed = each / np.maximum(np.abs(residual - design @ move), LEAST_RESIDUAL)
        move = np.linalg.solve(design.T @ (design * weighed[:, None]) + penalty, design.T @ (weighed * residual))
    return move
