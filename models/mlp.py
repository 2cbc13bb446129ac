"""The network of Model-A and Model-B: 32-64-32 neurons, ReLU, dropout behind each hidden layer (OSML+, Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

HIDDEN = (32, 64, 32)


class Mlp(nn.Module):
    """Fully connected network; parameters are named `layers.N.weight` [out, in] and `layers.N.bias` [out]."""

    def __init__(self, n_inputs: int, n_outputs: int, hidden: Sequence[int] = HIDDEN, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [n_inputs, *hidden, n_outputs]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:  # (batch, n_inputs), scaled to 0..1
        for layer in self.layers[:-1]:
            x = self.dropout(torch.relu(layer(x)))  # (batch, 32), (batch, 64), (batch, 32)
        return self.layers[-1](x)  # (batch, n_outputs), standardised
