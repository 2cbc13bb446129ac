"""OSML's Model-C: a DQN that corrects an allocation, up to 3 units of cores and 3 ways at a time (OSML, Sec. 4.3).

Asked: by how many units of cores and ways should this service's allocation change now?
Inputs: MODEL_C_INPUTS, the counters of one sample and its `qos`.
Outputs: the expected return of each of 49 actions <m, n>, m, n in -3..3: action (m + 3) * 7 + (n + 3) gives m units of cores and
n ways (negative: takes them away). A unit is the platform's `core_step`.
Network, update and exploration: models/dqn.py.
Reward, of the state before (t-1) and after (t): with d = latency(t-1) - latency(t) in ms,

    sign(d) * log(1 + |d|) - (m + n)

m and n are what was carried out. Transitions: pairs of samples of one plane whose allocations are at most 3 units of cores and 3
ways apart, and at most 3 steps of the sweep in each.

Differences from the paper: `qos` (target / latency, at most 1) stands for the latency among the inputs, which spans seven
orders of magnitude and has no upper bound to scale by; memory utilisation and LLC occupancy are no inputs (OSML+ dropped them);
log(1 + |d|) for the printed log |d|, which is negative for improvements below 1 ms (the authors' program does the same);
latency is the p99 that QoS is judged by, not the mean; and it is capped, because an overloaded service has no latency.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import numpy as np
from torch import Tensor

from models.dqn import Dqn, Replay
from models.features import MODEL_C_INPUTS
from models.osml_actions import ACTIONS, IDLE, REACH, action_number, reward

__all__ = ["ACTIONS", "IDLE", "INPUTS", "REACH", "Held", "OsmlC", "PoolBatches", "action_number", "reward"]

INPUTS = MODEL_C_INPUTS


class PoolBatches:
    """`count` batches a pass, drawn from an experience pool."""

    def __init__(self, pool: Replay, batch: int, count: int, seed: int) -> None:
        self._pool, self._batch, self._count = pool, batch, count
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        for _ in range(self._count):
            yield self._pool.draw(self._batch, self._rng)


class Held:
    """The same batch in every pass: what is held out is asked the same each time."""

    def __init__(self, pool: Replay, batch: int, seed: int) -> None:
        self._drawn = pool.draw(batch, np.random.default_rng(seed))

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        yield self._drawn


class OsmlC(pl.LightningModule):
    """One `Dqn.update` a batch. Logged: `train_loss` and, of planes held out, `val_loss`: the mean squared error of the Q-values,
    reward units squared."""

    def __init__(self, net: Dqn) -> None:
        super().__init__()
        self.net = net
        self.automatic_optimization = False
        self._rmsprop = net.optimiser()

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor, Tensor], batch_idx: int) -> None:
        loss = self.net.update(self._rmsprop, *batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch[0]))

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.net.loss(*batch), on_epoch=True, batch_size=len(batch[0]))

    def configure_optimizers(self) -> Any:
        return self._rmsprop
