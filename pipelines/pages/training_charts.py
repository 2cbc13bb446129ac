"""The training report's figures. Each has axis names with units; the page has every number in a table, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pipelines.pages.drawing import MUTED, SERIES, STYLE, TARGET, svg_element

Values = Sequence[float | None]

_DASHES: list[Any] = ["-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2))]
_MARKS = ["o", "s", "^", "D"]


def _floats(values: Values) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values], float)


def bars(names: Sequence[str], series: Mapping[str, Values], x_label: str, title: str, *, limit: float | None = None) -> str:
    """Lying bars, a group a name, the first on top; a missing value leaves a cross, so that it cannot be read as 0.

    Args:
        limit: a line across, e.g. where drift begins.
    """
    with rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(5.4, 0.9 + max(1, len(names)) * (0.12 + 0.16 * len(series))))
        height = 0.8 / max(1, len(series))
        for k, (name, values) in enumerate(series.items()):
            y = np.arange(len(names)) + (k - (len(series) - 1) / 2) * height
            numbers = _floats(values)
            ax.barh(y, np.nan_to_num(numbers), height * 0.9, color=SERIES[k], label=name)
            ax.plot(np.zeros(int(np.isnan(numbers).sum())), y[np.isnan(numbers)], "x", color=SERIES[k], ms=5, clip_on=False)
        if limit is not None:
            ax.axvline(limit, color=TARGET, lw=1.1, ls=(0, (5, 3)), label=f"limit {limit:g}")
        ax.set_yticks(np.arange(len(names)), names)
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.set_xlabel(x_label)
        _title(ax, title, len(series) + (limit is not None))
        return svg_element(fig, title)


def lines(
    x: Values, series: Mapping[str, Values], x_label: str, y_label: str, title: str, *, log_x: bool = False, whole: bool = False
) -> str:
    """Lines over one axis, told apart by colour, dash and mark; gaps where a value is missing.

    Args:
        whole: x counts something, so its ticks are whole numbers.
    """
    with rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(5.0, 3.1))
        for k, (name, values) in enumerate(series.items()):
            mark = _MARKS[k % len(_MARKS)] if len(x) <= 40 else ""
            ax.plot(
                _floats(x),
                _floats(values),
                color=SERIES[k],
                ls=_DASHES[k % len(_DASHES)],
                marker=mark,
                ms=3.5,
                lw=1.5,
                label=name,
            )
        if log_x:
            ax.set_xscale("log")
        elif whole:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        _title(ax, title, len(series))
        return svg_element(fig, title)


def calibration(predicted: Values, qos: Values, met_share: Values) -> tuple[str, str]:
    """Two figures over the QoS that Model-B predicted: the mean QoS that was measured, and how often it was met."""
    x = _floats(predicted)
    drawn = []
    for values, label, title in (
        (qos, "measured QoS (target / p99), mean of a bin", "What was measured where so much was predicted"),
        (met_share, "share of questions in which QoS was met", "How often QoS was met"),
    ):
        with rc_context(STYLE):
            fig, ax = plt.subplots(figsize=(4.4, 3.2))
            if values is qos:
                ends = [0.0, float(np.nanmax(np.concatenate([x, _floats(qos), [1.0]])))]
                ax.plot(ends, ends, color=MUTED, lw=1, ls=(0, (2, 2)), label="right")
            else:
                ax.axvline(1.0, color=TARGET, lw=1.1, ls=(0, (5, 3)), label="predicted: just met")
                ax.set_ylim(-0.03, 1.03)
            ax.plot(x, _floats(values), color=SERIES[0], marker="o", ms=3.5, lw=1.4, label="Model-B")
            ax.set_xlabel("predicted QoS (target / p99), mean of a bin")
            ax.set_ylabel(label)
            _title(ax, title, 2)
            drawn.append(svg_element(fig, title))
    return drawn[0], drawn[1]


def _title(ax: Axes, title: str, entries: int) -> None:
    """The title, and under it the legend where there is more than one thing to tell apart."""
    if entries < 2:
        ax.set_title(title)
        return
    columns = min(3, entries)
    ax.set_title(title, pad=8 + 14 * -(-entries // columns))
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=columns, handlelength=2.2, columnspacing=1.0, borderpad=0.2)
