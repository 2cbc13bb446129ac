"""Fit OSML's Model-C (`osml-c`) from pairs of samples, at most 3 units of cores and 3 ways apart (OSML, Sec. 4.3)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from models import osml_c
from models.dqn import Dqn, DqnArgs, Replay
from models.features import make_bounds
from pipelines import params
from pipelines.errors import BadInput
from pipelines.fits import fit, fitted, tensors
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Table

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
REPORTS = 20  # points of the loss curve
MOST_HELD = 4096  # moves of validation planes, at each of these points


@dataclass(frozen=True)
class Moves:
    """Pairs of rows of one plane, and the number of the action that leads from one's allocation to the other's."""

    before: I64
    action: I64
    after: I64


def moves(table: Table, rows: I64, count: int, rng: np.random.Generator) -> Moves:
    """Draw pairs; every pair is of rows that were given, and of an action that stays within what was measured.

    A step of an action is an allocation unit of cores or one way; on a sweep with wider steps, those that fit are used.
    """
    grids, step = table.grids, table.platform.core_step
    order = rows[np.argsort(table.cell[rows], kind="stable")]
    held = np.bincount(table.cell[order], minlength=len(table.cell_plane))
    first = np.concatenate([[0], np.cumsum(held)[:-1]])
    before = rng.choice(rows, size=count)
    here = table.cell[before]
    plane = table.cell_plane[here]
    reach = osml_c.REACH
    row, column = (place[here] + rng.integers(-reach, reach + 1, count) for place in (grids.row, grids.column))
    to = grids.at(plane, row, column)
    cores = np.rint((table.cell_cores[to] - table.cell_cores[here]) / step).astype(np.int64)
    ways = np.rint(table.cell_ways[to] - table.cell_ways[here]).astype(np.int64)
    fits = (to >= 0) & (held[np.maximum(to, 0)] > 0) & (np.abs(cores) <= reach) & (np.abs(ways) <= reach)
    before, to, cores, ways = before[fits], to[fits], cores[fits], ways[fits]
    after = order[first[to] + (rng.random(len(to)) * held[to]).astype(np.int64)]
    return Moves(before, osml_c.action_number(cores, ways), after)


def latency_ms(table: Table, rows: I64, cap: float) -> F64:
    """p99 of each row's own window, at most `cap` QoS targets; an overloaded service has the most."""
    most = cap * table.plane_target_ms[table.plane[rows]]
    return np.fmin(table.p99_ms[rows], most)


def fit_model(table: Table, p: params.OsmlC, seed: int, out: Path, watch: fit.Watch | None = None) -> Fitted:
    """The DQN from logged moves of the training split and of planes without a feasible cell."""
    start = time.monotonic()
    inputs, missing = tensors.model_inputs(osml_c.INPUTS, table)
    train = table.part("train", "none")
    bounds = make_bounds(inputs, tensors.observed(table, train), table.platform)
    log = moves(table, train, p.transitions, np.random.default_rng((seed, 5)))
    if len(log.action) == 0:
        raise BadInput("no two rows of a plane are at most 3 cores and 3 ways apart; sweep neighbouring allocations")
    args = DqnArgs(
        gamma=p.gamma, lr=p.lr, copy_every=p.copy_every, batch=p.batch, replay=max(p.transitions, 1), epsilon=p.epsilon
    )

    def remembered(log: Moves, capacity: int) -> Replay:
        was, became = (latency_ms(table, rows, p.latency_cap) for rows in (log.before, log.after))
        rewards = osml_c.reward(was, became, log.action).astype(np.float32)
        before, after = (tensors.states(table, rows, bounds) for rows in (log.before, log.after))
        pool = Replay(capacity, len(inputs))
        pool.extend(before, log.action, rewards, after)
        return pool

    pool = remembered(log, args.replay)
    val_batches = None
    if len(val := table.part("val")):
        held = moves(table, val, min(p.transitions, MOST_HELD), np.random.default_rng((seed, 7)))
        val_batches = osml_c.Held(remembered(held, len(held.action)), MOST_HELD, seed) if len(held.action) else None
    torch.manual_seed(seed + 5)
    net = Dqn(len(inputs), len(osml_c.ACTIONS), args)
    per_epoch = max(1, p.updates // REPORTS)
    epochs = -(-p.updates // per_epoch)
    batches = osml_c.PoolBatches(pool, args.batch, per_epoch, seed)
    course = fit.train(osml_c.OsmlC(net), batches, val_batches, ("train_loss", fitted.VAL_LOSS), epochs, out, watch)
    weights = fit.checked({name: value.numpy() for name, value in net.named_tensors().items()}, "OSML's Model-C", "lr")
    settings = {"hyperparameters": {k: float(v) for k, v in args.as_dict().items()}, "latency_cap": p.latency_cap}
    return fit.finished(Fitted(weights, bounds, [], missing, settings=settings), course, table, start)
