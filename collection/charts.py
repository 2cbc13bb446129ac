"""The demo report's figures: each function draws one and returns it as an inline SVG string (pipelines/pages/drawing.py)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, Normalize
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from pipelines.pages.drawing import MUTED, SERIES, STYLE, TARGET, svg_element
from pipelines.pages.policy_charts import Lane, floats, look

# blue = meets the QoS target, paper white = at it, red = misses it
_COLD = ["#0b3c7d", "#2f6fc0", "#8db9e4", "#e3eef9"]
_HOT = ["#fdeee6", "#f5ac84", "#d6553f", "#7f0d1f"]

_OVERLOADED = "#3d0710"
# of points with a latency, by verdict; only valid ones are filled
VERDICT_MARKS = {"valid": "o", "server-overloaded": "^", "not-resolvable": "s", "client-limited": "D"}


def _ms(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:g} s"
    return f"{value:g}"


@dataclass(frozen=True)
class HeatMap:
    """p99 of one LC service over cores and ways at one load.

    p99_ms: shape (len(cores), len(ways)), ms; NaN where the case was not measured.
    rcliff, oaa: (cores, ways), or None where the labels have none.
    requests_min, requests_max: requests behind the p99 of one window, None where unknown; `windows` of them make a cell.
    overloaded: same shape; where true, latency grows with the length of the case and is no number.
    unusable: same shape; where true, there are samples and none is usable: marked, and never coloured.
    rows, usable: samples of the plane, and how many of them are usable.
    """

    service: str
    platform: str
    rps: float
    threads: int
    cores: Sequence[float] | np.ndarray
    ways: Sequence[float] | np.ndarray
    p99_ms: np.ndarray
    qos_target_ms: float
    rcliff: tuple[float, float] | None = None
    oaa: tuple[float, float] | None = None
    requests_min: int | None = None
    requests_max: int | None = None
    windows: int = 1
    overloaded: np.ndarray | None = None
    unusable: np.ndarray | None = None
    rows: int = 0
    usable: int = 0


class _AroundTarget(Normalize):
    """Log scale in two halves that meet at the QoS target."""

    def __init__(self, low: float, target: float, high: float) -> None:
        super().__init__(low, high)
        self.low, self.target, self.high = low, target, high
        self._logs = [math.log10(x) for x in (low, target, high)]

    def __call__(self, value: Any, clip: bool | None = None) -> Any:
        with np.errstate(all="ignore"):
            logs = np.log10(np.ma.filled(np.ma.asarray(value, float), np.nan))
        return np.ma.masked_invalid(np.interp(logs, self._logs, [0.0, 0.5, 1.0]))

    def inverse(self, value: Any) -> Any:
        return 10 ** np.interp(value, [0.0, 0.5, 1.0], self._logs)


def heat_map(m: HeatMap) -> str:
    """Draw one cores x ways plane: colour is p99 on a log scale that turns from blue to red at the QoS target."""
    with matplotlib.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(4.1, 3.9))
        plane(ax, m)
        ax.set_title(f"{m.service} at {m.rps:,.0f} RPS, {m.threads} threads", pad=22)
        plane_legend(ax)
        return svg_element(fig, f"p99 of {m.service} over cores and LLC ways on {m.platform}")


def overloaded(over: pl.Expr, usable: pl.Expr) -> pl.Expr:
    """Of a cell's samples, counted: whether at least half of those that say something are of an overloaded service."""
    return (over > 0) & (over >= usable)


def on_grid(cells: pl.DataFrame, cores: np.ndarray, ways: np.ndarray) -> dict[str, Any]:
    """The fields of a HeatMap that are planes, of a row a cell: cores, ways, p99_ms, usable (rows), overloaded."""
    shape = (len(cores), len(ways))
    at = (np.searchsorted(cores, cells["cores"].to_numpy()), np.searchsorted(ways, cells["ways"].to_numpy()))
    grids = {"p99_ms": np.full(shape, np.nan), "overloaded": np.zeros(shape, bool), "unusable": np.zeros(shape, bool)}
    grids["p99_ms"][at] = cells["p99_ms"].fill_null(np.nan).to_numpy()
    grids["overloaded"][at] = cells["overloaded"].to_numpy()
    grids["unusable"][at] = ((cells["usable"] == 0) & ~cells["overloaded"]).to_numpy()
    return grids


def plane(ax: Axes, m: HeatMap) -> None:
    """The plane with its colour bar, the edge of what meets the target, and what is known of RCliff and OAA."""
    over = np.zeros(m.p99_ms.shape, dtype=bool) if m.overloaded is None else m.overloaded
    p99_ms = np.where(over, np.nan, m.p99_ms)
    seen = p99_ms[np.isfinite(p99_ms)]
    low = min(float(seen.min()), m.qos_target_ms / 3) if seen.size else m.qos_target_ms / 3
    high = max(float(seen.max()), m.qos_target_ms * 3) if seen.size else m.qos_target_ms * 3
    norm = _AroundTarget(max(low, 1e-6), m.qos_target_ms, high)
    colours = LinearSegmentedColormap.from_list("qos", [*_COLD, *_HOT], bad="#eceef2")
    cores, ways = np.asarray(m.cores, float), np.asarray(m.ways, float)
    x, y = edges(ways), edges(cores)
    mesh = ax.pcolormesh(x, y, np.ma.masked_invalid(p99_ms), cmap=colours, norm=norm, rasterized=True)
    if over.any():
        shown = np.ma.masked_where(~over, np.ones(over.shape))
        ax.pcolormesh(x, y, shown, cmap=ListedColormap([_OVERLOADED]), rasterized=True)
        ax.plot([], [], marker="s", ms=8, color=_OVERLOADED, ls="none", label="overloaded")
    if m.unusable is not None and m.unusable.any():
        i, j = np.nonzero(m.unusable)
        ax.plot(ways[j], cores[i], marker="x", ms=4, mew=1, color=MUTED, ls="none", label="not usable")
    _staircase(ax, p99_ms, cores, ways, m.qos_target_ms)
    if m.rcliff is not None:
        ax.plot(m.rcliff[1], m.rcliff[0], marker="X", ms=11, mfc="#111", mec="white", mew=1.4, ls="none", label="RCliff")
    if m.oaa is not None:
        ax.plot(m.oaa[1], m.oaa[0], marker="*", ms=17, mfc="#ffd23f", mec="#111", mew=1.1, ls="none", label="OAA")
    ax.set_xlabel("LLC ways")
    ax.set_ylabel("cores (logical CPUs)")
    ax.grid(visible=False)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    bar = ax.figure.colorbar(mesh, ax=ax, pad=0.03, fraction=0.07)
    ticks = [t for t in (10.0**e for e in range(-3, 8)) if norm.low <= t <= norm.high]
    ticks = [t for t in ticks if abs(math.log10(t / m.qos_target_ms)) > 0.2]
    bar.set_ticks([*ticks, m.qos_target_ms], labels=[*map(_ms, ticks), f"{_ms(m.qos_target_ms)} target"])
    bar.ax.minorticks_off()
    bar.set_label("p99, ms (log)")
    bar.outline.set_visible(False)


def plane_legend(ax: Axes) -> None:
    """What the marks of a plane mean, between its title and itself; nothing where it has none."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=4, handletextpad=0.3, columnspacing=0.9, borderpad=0.2)


def edges(values: np.ndarray) -> np.ndarray:
    """Borders of cells around values: half-way between neighbours, so that steps of 5 are drawn as wide as that."""
    if len(values) == 1:
        return np.array([values[0] - 0.5, values[0] + 0.5])
    middle = (values[:-1] + values[1:]) / 2
    return np.concatenate([[2 * values[0] - middle[0]], middle, [2 * values[-1] - middle[-1]]])


def _staircase(ax: Axes, p99_ms: np.ndarray, cores: np.ndarray, ways: np.ndarray, target: float) -> None:
    """Outline the cells that meet the QoS target."""
    met = np.nan_to_num(p99_ms, nan=np.inf) <= target
    x, y = edges(np.asarray(ways, float)), edges(np.asarray(cores, float))
    lines: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for i, j in itertools.product(range(len(cores)), range(len(ways))):
        if i + 1 < len(cores) and met[i, j] != met[i + 1, j]:
            lines.append(((x[j], x[j + 1]), (y[i + 1], y[i + 1])))
        if j + 1 < len(ways) and met[i, j] != met[i, j + 1]:
            lines.append(((x[j + 1], x[j + 1]), (y[i], y[i + 1])))
    for k, (xs, ys) in enumerate(lines):
        ax.plot(xs, ys, color="#111", lw=1.3, solid_capstyle="projecting", label="QoS edge" if k == 0 else None)


@dataclass(frozen=True)
class QuotaPoint:
    """One local case: p99 at a CPU quota, with its interval, requests and verdict."""

    quota_cores: float
    p99_ms: float
    low_ms: float | None
    high_ms: float | None
    requests: int
    verdict: str


@dataclass(frozen=True)
class QuotaCurve:
    """p99 of a container over its CPU quota, one line a load level. disturbed: cases that are left out."""

    service: str
    qos_target_ms: float | None
    levels: dict[float, list[QuotaPoint]] = field(default_factory=dict)
    disturbed: int = 0


def quota_curve(c: QuotaCurve) -> str:
    """Draw the cliff over CPU: filled marks are valid percentiles, hollow ones have another verdict, a shape for each."""
    with matplotlib.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(4.4, 3.3))
        for k, (rps, points) in enumerate(sorted(c.levels.items())):
            points = sorted(points, key=lambda p: p.quota_cores)
            colour = SERIES[k % len(SERIES)]
            x = [p.quota_cores for p in points]
            y = [p.p99_ms for p in points]
            ax.plot(x, y, color=colour, lw=1.6, label=f"{rps:,.0f} RPS", zorder=2)
            bars = [p for p in points if p.low_ms is not None and p.high_ms is not None]
            ax.errorbar(
                [p.quota_cores for p in bars],
                [p.p99_ms for p in bars],
                yerr=[
                    [max(0.0, p.p99_ms - (p.low_ms or 0.0)) for p in bars],
                    [max(0.0, (p.high_ms or 0.0) - p.p99_ms) for p in bars],
                ],
                fmt="none",
                ecolor=colour,
                elinewidth=1.1,
                capsize=2.5,
                zorder=3,
            )
            for verdict, marker in VERDICT_MARKS.items():
                some = [p for p in points if p.verdict == verdict]
                ax.plot(
                    [p.quota_cores for p in some],
                    [p.p99_ms for p in some],
                    ls="none",
                    marker=marker,
                    ms=5,
                    mec=colour,
                    mfc=colour if verdict == "valid" else "white",
                    zorder=4,
                )
        if c.qos_target_ms is not None:
            target_line(ax, c.qos_target_ms, f"QoS target {c.qos_target_ms:g} ms")
        ax.set_yscale("log")
        low, high = ax.get_ylim()
        ax.set_ylim(low, max(high, 3 * (c.qos_target_ms or 0)))
        log_ms(ax)
        ax.set_xlabel("CPU quota, cores")
        ax.set_ylabel("p99, ms (log)")
        # under the title, however many levels there are
        columns = min(3, max(1, len(c.levels)))
        rows = -(-max(1, len(c.levels)) // columns)
        ax.set_title(c.service, pad=8 + 14 * rows)
        ax.legend(
            loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=columns, handlelength=1.4, columnspacing=1.0, borderpad=0.2
        )
        return svg_element(fig, f"p99 of {c.service} over CPU quota")


def target_line(ax: Axes, at: float, text: str, x: float = 1.0, width: float = 1.2) -> None:
    """A QoS target across the axes at `at` (data), named at `x` (share of the width)."""
    ax.axhline(at, color=TARGET, lw=width, ls=(0, (5, 3)), zorder=1)
    ax.annotate(
        text,
        xy=(x, at),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        color=TARGET,
        fontsize=8,
        ha="right",
    )


def log_ms(ax: Axes) -> None:
    """Labels of a log axis in plain numbers, more of them where it has few decades."""
    low, high = ax.get_ylim()
    # less than two decades: one label a decade would be one label in all
    ax.yaxis.set_major_locator(LogLocator(10, subs=(1.0,) if high / low > 100 else (1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def grouped_bars(groups: Sequence[str], series: Mapping[str, Sequence[float | None]], x_label: str, title: str) -> str:
    """Lying bars, one per group and series; a None leaves a cross, so that it cannot be read as zero."""
    with matplotlib.rc_context(STYLE):
        rows = len(groups) * (0.14 * len(series) + 0.12)
        fig, ax = plt.subplots(figsize=(4.3, 0.9 + rows))
        height = 0.8 / max(1, len(series))
        top = max((v for vs in series.values() for v in vs if v is not None), default=1.0) or 1.0
        for k, (name, values) in enumerate(series.items()):
            y = np.arange(len(groups)) + (k - (len(series) - 1) / 2) * height
            colour = look(name).colour
            ax.barh(y, [0.0 if v is None else v for v in values], height * 0.92, color=colour, label=name)
            for at, v in zip(y, values, strict=True):
                if v is None:
                    ax.plot(top * 0.02, at, marker="x", color=colour, ms=5, mew=1.4)
                elif v == 0:
                    ax.plot([0, 0], [at - height * 0.4, at + height * 0.4], color=colour, lw=2.5, clip_on=False)
        ax.set_yticks(np.arange(len(groups)), groups)
        ax.set_ylim(len(groups) - 0.5, -0.5)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel(x_label)
        columns = min(3, max(1, len(series)))
        ax.set_title(title, pad=8 + 14 * -(-len(series) // columns))
        ax.legend(
            loc="lower left", bbox_to_anchor=(-0.02, 0.995), ncols=columns, handlelength=1.2, columnspacing=1.0, borderpad=0.2
        )
        return svg_element(fig, title)


def real_loop(runs: Mapping[str, Lane], title: str, marks: Sequence[tuple[float, str]]) -> str:
    """Draw p99 of one real service over time under several policies, and the CPU each gave it."""
    with matplotlib.rc_context(STYLE):
        fig, (top, low) = plt.subplots(2, 1, figsize=(6.6, 4.3), sharex=True, height_ratios=[1.7, 1])
        target = next((r.qos_target_ms for r in runs.values() if r.qos_target_ms), None)
        for policy, lane in runs.items():
            colour = look(policy).colour
            x = np.asarray(lane.t_s, float)
            top.plot(x, floats(lane.p99_ms), color=colour, lw=1.3, label=policy)
            low.step(x, floats(lane.cores), where="post", color=colour, lw=1.5)
        if target:
            top.axhline(target, color=TARGET, lw=1.2, ls=(0, (5, 3)))
            top.annotate(
                f"QoS target {target:g} ms",
                xy=(0, target),
                xycoords=("axes fraction", "data"),
                xytext=(4, 3),
                textcoords="offset points",
                color=TARGET,
                fontsize=8,
            )
        top.set_yscale("log")
        log_ms(top)
        top.set_ylabel("p99, ms (log)")
        low.set_ylabel("cores held")
        low.set_ylim(bottom=0)
        low.set_xlabel("time, s")
        for at, text in marks:
            for ax in (top, low):
                ax.axvline(at, color="#b9c0cb", lw=0.9, zorder=0)
            top.annotate(
                text,
                xy=(at, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -9),
                textcoords="offset points",
                fontsize=7.5,
                color=MUTED,
            )
        top.set_title(title)
        top.legend(loc="upper right", ncols=len(runs), bbox_to_anchor=(1.0, 1.13))
        fig.subplots_adjust(hspace=0.1)
        return svg_element(fig, title)
