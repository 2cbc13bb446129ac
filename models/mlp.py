"""The network of every model: ReLU, dropout behind each hidden layer where the model has any.

`HIDDEN` is what OSML+ gives Models A, B and C (Sec. 3.2); OSML's models bring their own widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

HIDDEN = (32, 64, 32)


class Dropout(nn.Module):
    """Dropout from one random byte an activation: PyTorch's own takes more than half of a training step of so small a network.

    The rate is rounded to 1/256; kept activations are scaled by the exact share that is kept.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.cut = round(rate * 256)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.cut == 0:
            return x
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
        keep = words.view(torch.uint8)[: x.numel()].view(x.shape) >= self.cut
        return x * keep * (256.0 / (256 - self.cut))


class Mlp(nn.Module):
    """Fully connected network; parameters are named `layers.N.weight` [out, in] and `layers.N.bias` [out]."""

    def __init__(self, n_inputs: int, n_outputs: int, hidden: Sequence[int] = HIDDEN, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [n_inputs, *hidden, n_outputs]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:  # (batch, n_inputs), scaled to 0..1
        for layer in self.layers[:-1]:
            x = self.dropout(torch.relu(layer(x)))  # (batch, width of the layer)
        return self.layers[-1](x)  # (batch, n_outputs), standardised
