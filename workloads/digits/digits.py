"""Handwriting-like digits, a small CNN that reads them, and the model as an ONNX file. Runs once, when the image is built.

    digits.py OUT       writes OUT/digits.onnx and OUT/digits.bin (test images: 28 x 28 bytes and the digit, each)

No data set is downloaded: strokes of each digit are drawn with random slant, size, place, thickness and noise. The convolutions
have fixed random filters and only the last layer is fitted (ridge regression): quick, and a function of the seeds up to rounding.
The cost of a request is that of any CNN of this shape.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE, TRAIN, TEST = 28, 4000, 1000
CHANNELS = (16, 32)

# Strokes in a box of width 2 and height 4, as (x, y) from the top left corner.
STROKES = {
    0: [[(0, 0.6), (0.6, 0), (1.4, 0), (2, 0.6), (2, 3.4), (1.4, 4), (0.6, 4), (0, 3.4), (0, 0.6)]],
    1: [[(0.3, 0.8), (1.2, 0), (1.2, 4)]],
    2: [[(0, 0.8), (0.6, 0), (1.5, 0), (2, 0.8), (1.8, 1.8), (0, 4), (2, 4)]],
    3: [[(0, 0.4), (1, 0), (2, 0.8), (1, 1.9), (2, 2.9), (1.2, 4), (0, 3.6)]],
    4: [[(1.5, 4), (1.5, 0), (0, 2.7), (2, 2.7)]],
    5: [[(2, 0), (0.2, 0), (0.1, 1.7), (1.3, 1.6), (2, 2.6), (1.3, 4), (0, 3.7)]],
    6: [[(1.7, 0), (0.4, 1.7), (0, 3), (0.8, 4), (1.8, 3.5), (1.8, 2.5), (0.9, 2), (0.1, 2.8)]],
    7: [[(0, 0), (2, 0), (0.8, 4)]],
    8: [[(1, 1.9), (0.1, 1), (1, 0), (1.9, 1), (1, 1.9), (0, 3), (1, 4), (2, 3), (1, 1.9)]],
    9: [[(1.9, 1.2), (1, 2), (0.1, 1.2), (1, 0), (1.9, 1.2), (1.6, 4)]],
}


def draw(digit: int, rng: np.random.Generator) -> np.ndarray:
    """One image, (28, 28) float32 from 0 to 1."""
    yy, xx = np.mgrid[0:SIZE, 0:SIZE].astype(np.float64)
    scale = rng.uniform(3.6, 5.2, 2)
    slant = rng.uniform(-0.35, 0.35)
    centre = SIZE / 2 + rng.uniform(-2.0, 2.0, 2)
    width = rng.uniform(0.9, 1.7)
    ink = np.zeros((SIZE, SIZE))
    for stroke in STROKES[digit]:
        points = np.array(stroke) - (1, 2) + rng.normal(0, 0.09, (len(stroke), 2))
        x = centre[0] + scale[0] * (points[:, 0] - slant * points[:, 1])
        y = centre[1] + scale[1] * points[:, 1]
        for x0, y0, x1, y1 in zip(x, y, x[1:], y[1:], strict=False):
            length2 = max((x1 - x0) ** 2 + (y1 - y0) ** 2, 1e-9)
            t = np.clip(((xx - x0) * (x1 - x0) + (yy - y0) * (y1 - y0)) / length2, 0, 1)
            distance = np.hypot(xx - x0 - t * (x1 - x0), yy - y0 - t * (y1 - y0))
            ink = np.maximum(ink, np.clip(width + 0.5 - distance, 0, 1))
    return np.clip(ink + rng.normal(0, 0.08, ink.shape), 0, 1).astype(np.float32)


def sample(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 1, 28, 28), as bytes would give them, and their digits."""
    rng = np.random.default_rng(seed)
    digits = rng.integers(0, 10, count)
    images = np.stack([draw(int(d), rng) for d in digits])[:, None]
    return np.round(images * 255).astype(np.uint8), digits


def conv_relu_pool(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """What Conv (same size), Relu and MaxPool (2 x 2) of the ONNX graph do. x: (n, in, h, h); w: (out, in, k, k)."""
    k = w.shape[2]
    pad = k // 2
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))), (k, k), axis=(2, 3))
    y = np.maximum(np.einsum("nihwab,oiab->nohw", windows, w, optimize=True), 0)
    n, c, h, _ = y.shape
    return y.reshape(n, c, h // 2, 2, h // 2, 2).max(axis=(3, 5))


def features(images: np.ndarray, filters: list[np.ndarray]) -> np.ndarray:
    x = images.astype(np.float32) / np.float32(255)
    for w in filters:
        x = np.concatenate([conv_relu_pool(part, w) for part in np.array_split(x, max(1, len(x) // 250))])
    return x.reshape(len(x), -1)


def graph(filters: list[np.ndarray], readout: np.ndarray, bias: np.ndarray) -> onnx.ModelProto:
    weights = [
        *(numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(filters)),
        numpy_helper.from_array(readout, "readout"),
        numpy_helper.from_array(bias, "bias"),
    ]
    nodes, at = [], "image"
    for i, w in enumerate(filters):
        k = w.shape[2]
        nodes += [
            helper.make_node("Conv", [at, f"w{i}"], [f"c{i}"], kernel_shape=[k, k], pads=[k // 2] * 4),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"]),
            helper.make_node("MaxPool", [f"r{i}"], [f"p{i}"], kernel_shape=[2, 2], strides=[2, 2]),
        ]
        at = f"p{i}"
    nodes += [helper.make_node("Flatten", [at], ["flat"]), helper.make_node("Gemm", ["flat", "readout", "bias"], ["scores"])]
    made = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, SIZE, SIZE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 10])],
        weights,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], producer_name="surefoot")
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    filters = [
        rng.normal(0, 1 / 5, (CHANNELS[0], 1, 5, 5)).astype(np.float32),
        rng.normal(0, 1 / (5 * np.sqrt(CHANNELS[0])), (CHANNELS[1], CHANNELS[0], 5, 5)).astype(np.float32),
    ]
    images, digits = sample(TRAIN, 2)
    x = features(images, filters).astype(np.float64)
    mean = x.mean(axis=0)
    x -= mean
    want = np.eye(10)[digits] - 0.1
    readout = np.linalg.solve(x.T @ x + 10.0 * np.eye(x.shape[1]), x.T @ want)
    bias = 0.1 - mean @ readout
    test_images, test_digits = sample(TEST, 3)
    right = float(np.mean((features(test_images, filters) @ readout + bias).argmax(axis=1) == test_digits))
    print(f"digits: {right:.3f} of {TEST} new images read rightly")
    if right < 0.95:
        sys.exit("digits: the model is no good; nothing was written")
    onnx.save(graph(filters, readout.astype(np.float32), bias.astype(np.float32)), str(out / "digits.onnx"))
    with (out / "digits.bin").open("wb") as f:
        for image, digit in zip(test_images, test_digits, strict=True):
            f.write(image.tobytes() + bytes([int(digit)]))


if __name__ == "__main__":
    main()
