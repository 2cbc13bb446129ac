"""Lightning module of Model-C: DDPG off line, from logged transitions (models/ddpg.py has the update).

Logged: `critic_loss` (squared error of the Q-value, plus the weight penalty), `val_loss` (the same, of planes that are held out)
and `actor_loss` (minus the mean Q-value of the actor's own actions, plus the entropy term; lower is better). The weights after
the last update are kept.
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from models.ddpg import Ddpg


class ModelC(pl.LightningModule):
    """One `Ddpg.update` a batch of (state, action, reward, next_state)."""

    def __init__(self, net: Ddpg) -> None:
        super().__init__()
        self.net = net
        self.automatic_optimization = False
        self._adam = net.optimisers()

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor, Tensor], batch_idx: int) -> None:
        critic_loss, actor_loss = self.net.update(self._adam, *batch)
        n = len(batch[0])
        self.log("critic_loss", critic_loss, on_step=False, on_epoch=True, batch_size=n)
        self.log("actor_loss", actor_loss, on_step=False, on_epoch=True, batch_size=n)

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.net.critic_loss(*batch), on_epoch=True, batch_size=len(batch[0]))

    def configure_optimizers(self) -> Any:
        return list(self._adam)
