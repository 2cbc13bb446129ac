"""Weights to safetensors and back. Nothing is pickled, so nothing in a model file can run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_bytes
from safetensors.numpy import save as save_bytes

MOST_BYTES = 64 << 20
"""Of a file of weights; the largest of ours has a hundredth."""

Weights = dict[str, NDArray[np.float32]]


def to_safetensors(tensors: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Serialise f32 tensors, row-major, sorted by name: equal weights give equal bytes."""
    arrays = {name: np.ascontiguousarray(tensors[name], dtype=np.float32) for name in sorted(tensors)}
    for name, array in arrays.items():
        if not np.all(np.isfinite(array)):
            raise ValueError(f"{name}: weights are not finite; lower the learning rate or check the data")
    return save_bytes(arrays)


def from_safetensors(data: bytes) -> Weights:
    return {name: np.asarray(array) for name, array in load_bytes(data).items()}


def read(path: Path) -> Weights:
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"is longer than {MOST_BYTES >> 20} MiB, as no model of ours is")
    return from_safetensors(data)


def layer_shapes(weights: Mapping[str, NDArray[np.float32]], prefix: str = "") -> list[list[int]]:
    """Shapes [out, in] of `PREFIXlayers.N.weight`, in order."""
    shapes: list[list[int]] = []
    while (name := f"{prefix}layers.{len(shapes)}.weight") in weights:
        shapes.append([int(n) for n in weights[name].shape])
    return shapes


def forward(weights: Mapping[str, NDArray[np.float32]], x: NDArray[np.float32], prefix: str = "") -> NDArray[np.float32]:
    """The same network in NumPy, f32: (batch, inputs) to (batch, outputs), before any softmax. The check without PyTorch."""
    depth = len(layer_shapes(weights, prefix))
    for n in range(depth):
        x = x @ weights[f"{prefix}layers.{n}.weight"].T + weights[f"{prefix}layers.{n}.bias"]
        if n < depth - 1:
            x = np.maximum(x, np.float32(0.0))
    return x


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)
