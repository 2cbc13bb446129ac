"""Fit Model-C of OSML+ (`c`) from logged transitions, with the paper's reward (OSML+, Sec. 3.2 (3)).

Differences from the paper: it trains C on line only; here C starts from transitions between neighbouring cells of the sweep.
A sample knows the latency of its own service only, so "any LC service's QoS" is that service's QoS, and N = 1. The QoS in the
reward is the one after the action, which a log has and a running node has not.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models import export, features
from models.ddpg import Ddpg, DdpgArgs
from models.features import ACTIONS, Scale
from pipelines import params
from pipelines.errors import BadInput
from pipelines.fits import fit, fitted, tensors
from pipelines.fits.fit_qos import predict_qos
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Batches, Table, Transitions

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
REPORTS = 20  # points of the loss curve
MOST_HELD = 4096  # transitions of validation planes, at each of these points


def reward(predicted_met: NDArray[np.bool_], qos: F64, usage: F64) -> F64:
    """The piecewise reward of OSML+, Sec. 3.2.

    Args:
        predicted_met: Model-B says that the new allocation meets QoS.
        qos: min(1, target / p99) after the action.
        usage: share of each resource in use by LC services, averaged over the resources under control.
    """
    return np.where(qos < 1.0, predicted_met.astype(float) + qos, 2.0 + (1.0 - usage))


def rewards_of(log: Transitions, table: Table, b: Fitted) -> F64:
    """Reward of each transition; Model-B is asked about the allocation that the action leads to."""
    platform = table.platform
    held = table.columns["alloc_cores"][log.after] + _column(table, "nb_cores", log.after)
    shares = [held / table.values("platform_cores", log.after)]
    if platform.ways > 0 and "alloc_cache_mb" in table.columns:
        held_mb = table.columns["alloc_cache_mb"][log.after] + _column(table, "nb_cache_mb", log.after)
        shares.append(held_mb / table.values("platform_cache_mb", log.after))
    if platform.mba:
        shares.append(table.cell_mba[table.cell[log.after]] / 100.0)
    usage = np.clip(np.mean(shares, axis=0), 0.0, 1.0)
    met = predict_qos(b, table, log.before, table.cell[log.after]) >= 1.0
    return reward(met, tensors.row_qos(table, log.after), usage)


def put_into(net: Ddpg, begin: fit.Start) -> None:
    """Copy the weights of all four networks.

    Raises:
        BadInput: the networks differ in shape.
    """
    try:
        net.load_named({name: torch.from_numpy(np.array(value)) for name, value in begin.weights.items()})
    except ValueError as error:
        raise BadInput(f"transfer: {error}; begin from a bundle of this version, or from nothing") from None


def available_actions(table: Table) -> list[str]:
    """Actions that the platform can carry out."""
    platform = table.platform
    have = {"cores": True, "ways": platform.ways > 0, "mba": platform.mba}
    return [name for name in ACTIONS if have.get(name.partition("_")[0], True)]


def fit_model(
    table: Table,
    b: Fitted,
    p: params.ModelC,
    seed: int,
    out: Path,
    watch: fit.Watch | None = None,
    *,
    rows: tuple[I64, I64] | None = None,
    begin: fit.Start | None = None,
) -> Fitted:
    """Model-C from logged transitions of the training split and of planes without a feasible cell.

    Args:
        rows: train and validate on these rows instead of on the splits of the data set.
        begin: weights of all four networks (layers cannot be frozen); None: random ones.
    """
    from models.model_c import ModelC

    start = time.monotonic()
    inputs, missing = tensors.model_inputs(features.MODEL_C_INPUTS, table)
    train, val = (table.part("train", "none"), table.part("val")) if rows is None else rows
    bounds = features.make_bounds(inputs, tensors.observed(table, train), table.largest)
    log = tensors.transitions(table, train, p.transitions, np.random.default_rng((seed, 2)))
    rewards = rewards_of(log, table, b)

    batch = min(p.batch, p.transitions)
    args = DdpgArgs(p.gamma, p.tau, p.lr_actor, p.lr_critic, p.critic_l2, p.actor_entropy, batch)
    torch.manual_seed(seed + 2)
    net = Ddpg(len(inputs), args)
    if begin is not None:
        put_into(net, begin.moved_to(bounds, [Scale(name, 1.0, 0.0) for name in ACTIONS]))
    elif p.gamma < 1.0:
        # Q-values start where they will end up on average; else thousands of updates go into finding that one number.
        net.start_critic_at(float(rewards.mean()) / (1.0 - p.gamma))

    def parts(log: Transitions, rewards: F64) -> list[torch.Tensor]:
        one_hot = np.eye(len(ACTIONS), dtype=np.float32)[log.action]
        before, after = (tensors.states(table, rows, bounds) for rows in (log.before, log.after))
        return [torch.from_numpy(part) for part in (before, one_hot, rewards.astype(np.float32), after)]

    batches = Batches(parts(log, rewards), batch, seed)
    val_batches = None
    if len(val):
        held = tensors.transitions(table, val, min(p.transitions, MOST_HELD), np.random.default_rng((seed, 7)))
        val_batches = Batches(parts(held, rewards_of(held, table, b)), MOST_HELD, seed, shuffle=False)
    course = taught(ModelC(net), batches, val_batches, p, out, watch)
    weights = checked_weights(net)
    settings = {"hyperparameters": args.as_dict(), "available_actions": available_actions(table)}
    return fit.finished(Fitted(weights, bounds, [], missing, settings=settings), course, table, start)


def taught(
    module: Any, batches: Batches, val_batches: Batches | None, p: params.ModelC, out: Path, watch: fit.Watch | None = None
) -> fit.Course:
    """`updates` updates, as some twenty epochs."""
    per_epoch = min(len(batches), max(1, p.updates // REPORTS))
    epochs = -(-p.updates // per_epoch)
    return fit.train(module, batches, val_batches, ("critic_loss", fitted.VAL_LOSS, "actor_loss"), epochs, out, watch, per_epoch)


def checked_weights(net: Ddpg) -> export.Weights:
    """All four networks, under a bundle's names.

    Raises:
        PipelineError: the training diverged.
    """
    return fit.checked({name: value.numpy() for name, value in net.named_tensors().items()}, "Model-C", "lr_actor and lr_critic")


def _column(table: Table, name: str, rows: I64) -> F64:
    """A sample feature, or nothing in use where the host cannot measure it."""
    return table.columns[name][rows] if name in table.columns else np.zeros(len(rows))
