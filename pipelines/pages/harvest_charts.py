"""Drawings of the harvest report. A policy has one colour, one mark and one dash wherever it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from pipelines.pages.drawing import INK, STYLE, TARGET, svg_element
from pipelines.pages.eval_stats import Estimate
from pipelines.pages.policy_charts import Look, look

# Okabe and Ito's colours, which colour-blind readers tell apart
_LOOKS = {
    "no-harvest": Look("#6b7280", "x", (0, (1, 1))),
    "fixed buffers": Look("#009e73", "o", "-"),
    "prev-peak": Look("#d55e00", "s", (0, (5, 2))),
    "prev-peak-10": Look("#b06a94", "D", (0, (2, 1.2))),
    "caladan": Look("#0072b2", "P", (0, (5, 1, 1, 1))),
    "smartharvest": look("smartharvest"),
    "wait-budget": Look("#111111", "*", "-"),
}
# marks that lie on one another are of several sizes
_SIZES = {"*": 8.5, "<": 9.5, "D": 10.0}
_OPEN = "xD"
# an axis of rises: straight to here, in per cent, then by powers of ten
_STRAIGHT_PCT = 20.0
# rises that no figure needs to tell apart from 0
_LEAST_PCT = 15.0


def look_of(policy: str) -> Look:
    return _LOOKS.get(policy) or look(policy)


@dataclass(frozen=True)
class Point:
    """Cores lent against another figure, each with its interval; `label` stands beside the mark."""

    x: Estimate
    y: Estimate
    label: str = ""


@dataclass(frozen=True)
class Line:
    """Marks of one look; joined: they are settings of one thing, in order; hollow: the same policy in another way."""

    name: str
    look: Look
    points: Sequence[Point]
    joined: bool = False
    hollow: bool = False


def ends(e: Estimate) -> tuple[float, float]:
    return (e.value if e.low is None else e.low, e.value if e.high is None else e.high)


def plane(lines: Sequence[Line], title: str, y_label: str, limit: float | None = None, *, level: float | None = None) -> str:
    """One figure over cores lent: down and to the right is better.

    Args:
        limit: what is allowed, drawn as a line.
        level: y is no rise in per cent but a figure, which is this without harvesting; both axes then show where marks are.
    """
    with matplotlib.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(4.6, 3.3))
        for line in lines:
            _line(ax, line)
        everything = [p for line in lines for p in line.points]
        if limit is not None:
            ax.axhline(limit, color=TARGET, lw=1.1, ls=(0, (5, 3)), zorder=1)
        if level is None:
            _rise_axis(ax, [p.y for p in everything])
            ax.set_xlim(left=0, right=1.1 * max([ends(p.x)[1] for p in everything] + [1.0]))
        else:
            base = look_of("no-harvest")
            ax.axhline(level, color=base.colour, lw=1.2, ls=base.dash, zorder=1, label="no-harvest")
            ax.margins(0.14, 0.18)
        ax.set_xlabel("cores lent, mean")
        ax.set_ylabel(y_label)
        ax.set_title(title)
        handles, labels = ax.get_legend_handles_labels()
        fig.legend(
            handles,
            labels,
            loc="upper center",
            bbox_to_anchor=(0.52, 0.01),
            ncols=min(2 if max(map(len, labels)) > 20 else 3, len(labels)),
        )
        return svg_element(fig, f"{title}: {y_label}, over cores lent")


def _line(ax: Axes, line: Line) -> None:
    style = line.look
    for p in line.points:
        (x0, x1), (y0, y1) = ends(p.x), ends(p.y)
        ax.plot([x0, x1], [p.y.value] * 2, color=style.colour, lw=1.4, alpha=0.7, solid_capstyle="butt", zorder=2)
        ax.plot([p.x.value] * 2, [y0, y1], color=style.colour, lw=1.4, alpha=0.7, solid_capstyle="butt", zorder=2)
        if p.label:
            near: Any = {"textcoords": "offset points", "fontsize": 7, "color": INK, "zorder": 5}
            ax.annotate(p.label, (p.x.value, p.y.value), (4, 5), **near)
    hollow = line.hollow or style.mark in _OPEN
    x, y = ([getattr(p, axis).value for p in line.points] for axis in "xy")
    ax.plot(
        x,
        y,
        ls="none" if not line.joined else (0, (2, 1.5)) if line.hollow else style.dash,
        color=style.colour,
        lw=1.3,
        marker=style.mark,
        ms=_SIZES.get(style.mark, 5.5),
        mec=style.colour if hollow else "white",
        mew=1.4 if hollow else 0.5,
        mfc="none" if hollow else style.colour,
        label=line.name,
        zorder=3,
    )


def _rise_axis(ax: Axes, rises: Sequence[Estimate]) -> None:
    """Straight where policies are judged; what is far above comes by powers of ten."""
    least = min([ends(r)[0] for r in rises] + [0.0])
    most = max([ends(r)[1] for r in rises] + [_LEAST_PCT])
    if most > 5 * _STRAIGHT_PCT:
        ax.set_yscale("symlog", linthresh=_STRAIGHT_PCT, linscale=1.2)
        ax.set_yticks([t for t in (0, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 20000) if t <= 1.3 * most])
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_ylim(1.4 * least - 2, 1.5 * most)
    else:
        ax.set_ylim(1.2 * least - 0.04 * most, 1.15 * most)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:+g}" if v else "0"))


@dataclass(frozen=True)
class Bar:
    """One row of a figure of bars: a figure a column."""

    label: str
    colour: str
    values: Sequence[Estimate | None]
    # printed in the paper, a column each: a mark, or from and to
    published: Sequence[tuple[float, float] | None] = ()


@dataclass(frozen=True)
class Axis:
    """A column of a figure of bars. limit: a line; log: of times that differ by powers of ten."""

    label: str
    limit: float | None = None
    log: bool = False
    form: Callable[[float], str] = "{:.2f}".format


def bars(groups: Mapping[str, Sequence[Bar]], axes: Sequence[Axis], title: str) -> str:
    """Bars with whiskers and their figures, a block a group, red: what the paper prints. `title` is not shown."""
    rows = sum(map(len, groups.values()))
    with matplotlib.rc_context(STYLE):
        height = 1.0 + 0.25 * rows + 0.27 * len(groups)
        fig, columns = plt.subplots(1, len(axes), figsize=(2.5 + 2.0 * len(axes), height), sharey=True, squeeze=False)
        for k, (ax, axis) in enumerate(zip(columns[0], axes, strict=True)):
            _column(ax, axis, k, groups, names=k == 0)
        fig.subplots_adjust(wspace=0.12)
        return svg_element(fig, title)


def _column(ax: Axes, axis: Axis, k: int, groups: Mapping[str, Sequence[Bar]], *, names: bool) -> None:
    y, ticks, labels = 0.0, [], []
    every = [b.values[k] for of in groups.values() for b in of]
    known = [e for e in every if e is not None]
    printed = [x for of in groups.values() for b in of for x in (b.published[k] if b.published else None) or ()]
    most = max([ends(e)[1] for e in known] + printed + [axis.limit or 0.0, 1e-9])
    least = min([ends(e)[0] for e in known] + [0.0])
    if axis.log:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        low = 0.4 * min([e.value for e in known if e.value > 0] or [1.0])
        ax.set_xlim(low, 6 * most)
    else:
        low = 0.0
        ax.set_xlim(1.25 * least, 1.35 * most)
    for name, of in groups.items():
        if len(groups) > 1:
            if names:
                at: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
                ax.annotate(name, (0.0, y), (-4, 0), ha="right", fontsize=8, fontweight="bold", **at)
            y += 1
        for bar in of:
            e = bar.values[k]
            if e is not None:
                ax.barh(y, e.value - low, 0.72, left=low, color=bar.colour, alpha=0.85, zorder=2)
                ax.plot(ends(e), [y, y], color=INK, lw=1.3, solid_capstyle="butt", zorder=3)
                far = max(e.value, ends(e)[1], low)
                ax.annotate(axis.form(e.value), (far, y), (4, 0), textcoords="offset points", va="center", fontsize=7.5, zorder=5)
            if bar.published and (span := bar.published[k]) is not None:
                ax.plot(span, [y + 0.36] * 2, color=TARGET, lw=2, marker="|", ms=7, mew=1.6, zorder=4)
            ticks.append(y)
            labels.append(bar.label)
            y += 1
        y += 0.3
    if axis.limit is not None:
        ax.axvline(axis.limit, color=TARGET, lw=1.1, ls=(0, (5, 3)), zorder=4)
    ax.set_yticks(ticks, labels)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(y - 0.4, -0.7)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(axis.label)
