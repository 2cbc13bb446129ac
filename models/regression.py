"""Lightning module of every regression (models A, A', B, B'): masked absolute or squared error on standardised outputs, Adam. The
rate rises over the first tenth of the steps and then falls along a cosine.

A label is one number, or the least and the most that it can be (a frontier campaign): then a prediction within costs nothing,
and one outside its distance to the nearer end. An output without a label (NaN) does not count.

Logged: `train_loss` and `val_loss`, in units of each output's standard deviation (of its variance, where squared). Which of
the two it is params.yaml says. Differences from the papers, which name none of them: Model-A and OSML's four are fitted for the
absolute error, which is what the papers measure (the authors' program takes the square); Model-B of OSML+ keeps the square,
because where a sample does not tell whether an allocation will carry the load, its absolute error is least at the more frequent
answer, "met", and the rarer one is the one to fear. The outputs are standardised (the authors' program trains on natural units),
the rate is not constant, and the weights of the best validation epoch are kept.

A batch may say of each row which quantile of its labels central outputs are to be there: then the row teaches "at least" (a
level below 0.5), by the pinball loss at that level. A label that is only known to be more is one of these rows, too.

An output may be a quantile of its label (models/intervals.py). Then its loss is the pinball loss, doubled, so that the middle
quantile's is the absolute error, and it counts less than a central output's (`intervals.LOSS_WEIGHT`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from models import intervals


class Regression(pl.LightningModule):
    """Fit a network to batches (inputs, labels), (inputs, least, most) or (inputs, least, most, level of the row), labels
    standardised."""

    def __init__(
        self,
        net: nn.Module,
        lr: float,
        total_steps: int,
        weight_decay: float = 0.0,
        loss: str = "absolute",
        levels: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.net = net
        self.lr = lr
        self.total_steps = total_steps
        self.weight_decay = weight_decay
        self.power = {"absolute": 1, "squared": 2}[loss]
        self.levels = None if levels is None else torch.tensor(levels, dtype=torch.float32)  # (n_outputs,)

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        x, low, high = batch[0], batch[1], batch[min(2, len(batch) - 1)]  # (batch, n_inputs), then (batch, n_outputs) each
        known = torch.isfinite(low) & torch.isfinite(high)
        said = self.net(x)
        inside = torch.minimum(torch.maximum(said.detach(), torch.nan_to_num(low)), torch.nan_to_num(high))
        error = torch.where(known, said - inside, 0.0)
        cost = error.abs().pow(self.power)
        if len(batch) > 3:
            level = batch[3][:, None]  # (batch, 1)
            cost = torch.where(level == 0.5, cost, 2.0 * torch.where(error < 0, level, 1.0 - level) * error.abs())
        if self.levels is not None:
            share = torch.where(error < 0, self.levels, 1.0 - self.levels)  # said too little costs the level, too much the rest
            cost = torch.where(self.levels == 0.5, cost, intervals.LOSS_WEIGHT * 2.0 * share * error.abs())
        return cost.sum() / known.sum().clamp(min=1)

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), on_epoch=True, batch_size=len(batch[0]))

    def configure_optimizers(self) -> Any:
        optimiser = torch.optim.Adam(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, self.lr, total_steps=self.total_steps, pct_start=0.1)
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
