"""Figures that compare policies: what each looks like, and the drawings of the demo's and the evaluation's reports.

A policy has one colour (Okabe and Ito's, which colour-blind readers tell apart), one mark and one dash wherever it is drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from pipelines.pages.drawing import INK, MUTED, SERIES, STYLE, TARGET, svg_element
from pipelines.pages.eval_stats import ecdf
from pipelines.pages.page import counted


@dataclass(frozen=True)
class Look:
    """How one policy is drawn."""

    colour: str
    mark: str
    dash: Any


# in the order of every legend and table: ours last
_LOOKS = {
    "unmanaged": Look("#8d95a3", "x", (0, (1, 1))),
    "equal-share": Look("#56b4e9", "v", (0, (4, 1.5, 1, 1.5))),
    "heracles": Look("#d55e00", "P", (0, (5, 1, 1, 1, 1, 1))),
    "be-suppress": Look("#a0522d", "X", (0, (2, 2, 1, 2))),
    "parties": Look("#e69f00", "s", (0, (5, 2))),
    "parties-keep": Look("#b36b00", "d", (0, (2, 1))),
    "parties-be": Look("#f2c14e", "H", (0, (7, 2, 1, 2))),
    "parties-stop": Look("#7f5539", "3", (0, (1, 3))),
    "clite": Look("#cc79a7", "D", (0, (2, 1.2))),
    "olpart": Look("#882255", "8", (0, (1, 2, 3, 2))),
    "smartharvest": Look("#8a6d3b", "<", (0, (3, 1, 1, 1))),
    "cosmos": Look("#b8a500", ">", (0, (3, 3))),
    "osml": Look("#009e73", "^", (0, (6, 2, 1.5, 2))),
    "osml-plus-literal": Look("#4aa3d8", "1", (0, (1, 1))),
    "osml-plus": Look("#0072b2", "o", "-"),
    "surefoot": Look("#111111", "*", "-"),
    "oracle": Look("#555f6f", "_", (0, (1, 2))),
}


def _base(policy: str) -> str | None:
    """The known policy that a variant is named after: clite-100ms is clite."""
    return max((k for k in _LOOKS if policy == k or policy.startswith(f"{k}-")), key=len, default=None)


def look(policy: str) -> Look:
    """A policy's look; a variant (NAME-...) has its own mark and dash in the colour of NAME."""
    base = _base(policy)
    if base == policy:
        return _LOOKS[policy]
    if base is not None:
        return Look(_LOOKS[base].colour, "h", (0, (1.2, 1.2)))
    return Look(SERIES[sum(policy.encode()) % len(SERIES)], "p", (0, (4, 1, 1, 1, 1, 1)))


def in_order(policies: Iterable[str]) -> list[str]:
    """Policies as every legend and table has them: known ones first, each followed by its variants, then others by name."""
    rank = {name: k for k, name in enumerate(_LOOKS)}
    return sorted(policies, key=lambda p: (rank.get(_base(p) or "", len(rank)), p))


@dataclass(frozen=True)
class Lane:
    """One service in a closed-loop time line; every list is as long as `t_s`, None where nothing is known."""

    name: str
    kind: str
    qos_target_ms: float | None
    t_s: Sequence[float]
    p99_ms: Sequence[float | None]
    cores: Sequence[float | None]
    ways: Sequence[float | None]


@dataclass(frozen=True)
class TimeLine:
    """What one policy did to one workload. `marks` are (second, text): arrivals and load changes."""

    workload: str
    policy: str
    lanes: Sequence[Lane]
    marks: Sequence[tuple[float, str]] = ()
    has_ways: bool = True


def floats(values: Sequence[float | None]) -> np.ndarray:
    """An array with NaN for what is not known."""
    return np.array([np.nan if v is None else v for v in values], float)


# as narrow as four stand side by side on a screen of 1,400
TIME_LINE_PX = 290


def time_line(t: TimeLine, span: tuple[float, float] | None = None) -> str:
    """Draw latency over target, and what each service held, over time.

    Args:
        t: the run.
        span: limits of latency over target shared by several figures, so that they compare.
    """
    with matplotlib.rc_context(STYLE):
        rows = 3 if t.has_ways else 2
        heights = [1.5, 1, 1][:rows]
        fig, axes = plt.subplots(rows, 1, figsize=(3.5, 1.2 + 1.3 * rows), sharex=True, height_ratios=heights, squeeze=False)
        latency, *held = axes[:, 0]
        for k, lane in enumerate(t.lanes):
            colour = SERIES[k % len(SERIES)]
            x = np.asarray(lane.t_s, float)
            dash = "-" if lane.kind == "lc" else (0, (2, 1.4))
            if lane.qos_target_ms:
                latency.plot(x, floats(lane.p99_ms) / lane.qos_target_ms, color=colour, lw=1.2)
            for ax, values in zip(held, (lane.cores, lane.ways), strict=False):
                ax.step(x, floats(values), where="post", color=colour, lw=1.4, ls=dash)
            held[0].plot([], [], color=colour, ls=dash, label=lane.name + ("" if lane.kind == "lc" else " (BE)"))
        latency.axhline(1, color=TARGET, lw=1.1, ls=(0, (5, 3)))
        latency.set_yscale("log")
        latency.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}×"))
        latency.yaxis.set_minor_formatter(NullFormatter())
        if span is not None:
            latency.set_ylim(*span)
        latency.set_ylabel("p99 / target")
        for ax, name in zip(held, ("cores", "LLC ways"), strict=False):
            ax.set_ylabel(name)
            ax.set_ylim(bottom=0)
        for at, _text in t.marks:
            for ax in (latency, *held):
                ax.axvline(at, color="#c9ced8", lw=0.9, zorder=0)
        held[-1].set_xlabel("time, s")
        latency.set_title(f"{t.policy}")
        fig.align_ylabels()
        handles, labels = held[0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.005), ncols=min(3, max(1, len(labels))))
        fig.subplots_adjust(hspace=0.12)
        return svg_element(fig, f"{t.workload} under {t.policy}: latency over target and allocations over time")


# ---------------------------------------------------------------- many runs

LIMIT_S = 180.0
_SECONDS = [0.1, 0.3, 1, 3, 10, 30, 100]
_FAILED_AT = 260.0


def _seconds_axis(ax: Axes, *, failures: bool) -> None:
    """A log axis of convergence times; with `failures`, the place beyond 180 s where what never converged is drawn."""
    ax.set_xscale("log")
    ax.set_xlim(0.08, 340 if failures else LIMIT_S * 1.1)
    ticks = [*_SECONDS, _FAILED_AT] if failures else _SECONDS
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: "failed" if v == _FAILED_AT else f"{v:g}"))
    if failures:
        ax.axvline(LIMIT_S, color=TARGET, lw=1, ls=(0, (5, 3)), zorder=1)


def _shown(seconds: np.ndarray) -> np.ndarray:
    """Times as drawn on a log axis: 0 s, which a log axis has not, at its first tick."""
    return np.maximum(seconds, 0.1)


def _legend(fig: Any, ax: Axes, policies: Sequence[str]) -> None:
    handles, labels = ax.get_legend_handles_labels()
    # a policy can have several artists; the first carries its mark
    first = dict(zip(reversed(labels), reversed(handles), strict=True))
    names = [p for p in policies if p in first]
    fig.legend(
        [first[p] for p in names], names, loc="upper center", bbox_to_anchor=(0.52, 0.01), ncols=min(5, max(1, len(names)))
    )


@dataclass(frozen=True)
class Runs:
    """One policy's workloads: mean convergence over seeds (NaN where one failed) and mean EMU; all runs' times, and failures."""

    policy: str
    convergence_s: np.ndarray
    emu: np.ndarray
    times_s: np.ndarray
    failed: int


def scatter(runs: Sequence[Runs]) -> str:
    """One mark a workload: convergence time over EMU (the papers' Fig. 6-a and 8-a)."""
    with matplotlib.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(5.2, 3.5))
        _seconds_axis(ax, failures=True)
        for k, r in enumerate(runs):
            style = look(r.policy)
            good = np.isfinite(r.convergence_s)
            line = style.mark in "x_"
            ax.plot(
                _shown(r.convergence_s[good]),
                r.emu[good],
                ls="none",
                marker=style.mark,
                ms=5.5,
                mec=style.colour if line else "white",
                mfc=style.colour,
                mew=1.1 if line else 0.5,
                alpha=0.9,
                label=r.policy,
                zorder=3,
            )
            # side by side, so that failures of one policy do not hide those of another
            at = _FAILED_AT * (1 + 0.09 * (k - (len(runs) - 1) / 2) / max(1, len(runs) / 4))
            ax.plot(
                np.full((~good).sum(), at),
                r.emu[~good],
                ls="none",
                marker=style.mark,
                ms=4.5,
                mec=style.colour,
                mfc="none",
                mew=1,
            )
            if not good.any():
                ax.plot([], [], ls="none", marker=style.mark, ms=5.5, mec=style.colour, mfc="none", label=r.policy)
        ax.set_xlabel("convergence time, s (log)")
        ax.set_ylabel("EMU, sum of loads (1 = one max load)")
        ax.set_title("Each workload: time to converge, and what is served")
        _legend(fig, ax, [r.policy for r in runs])
        return svg_element(fig, "Convergence time against EMU, one mark a workload and policy")


def violins(runs: Sequence[Runs]) -> str:
    """Violins of the convergence times of converged runs, median and mean marked (the papers' Fig. 6-b and 8-b)."""
    with matplotlib.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(6.6, 0.9 + 0.4 * len(runs)))
        _seconds_axis(ax, failures=False)
        for k, r in enumerate(runs):
            style = look(r.policy)
            x = np.log10(_shown(r.times_s))
            if len(x) > 1 and np.ptp(x) > 1e-6:
                grid, density = _density(x)
                width = 0.4 * density / density.max()
                ax.fill_between(10**grid, k - width, k + width, color=style.colour, alpha=0.35, lw=0)
                ax.plot(10**grid, k + width, color=style.colour, lw=0.8)
                ax.plot(10**grid, k - width, color=style.colour, lw=0.8)
            if len(x):
                median, mean = float(np.median(r.times_s)), float(np.mean(r.times_s))
                ax.plot(max(median, 0.1), k, marker="|", ms=13, mew=2, color=INK)
                ax.plot(max(mean, 0.1), k, marker="o", ms=5, mec="white", color=INK)
            total = len(r.times_s) + r.failed
            said = "all converge" if not r.failed else f"{r.failed} of {total} fail{'s' if r.failed == 1 else ''}"
            ax.annotate(
                said,
                xy=(1.01, k),
                xycoords=("axes fraction", "data"),
                fontsize=7.5,
                va="center",
                color=TARGET if r.failed else MUTED,
            )
        ax.set_yticks(range(len(runs)), [r.policy for r in runs])
        ax.set_ylim(len(runs) - 0.45, -0.55)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("convergence time of the runs that converge, s (log)")
        ax.set_title("Convergence times", pad=18)
        ax.plot([], [], ls="none", marker="|", ms=10, mew=2, color=INK, label="median")
        ax.plot([], [], ls="none", marker="o", ms=5, mec="white", color=INK, label="mean")
        ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.98), ncols=2, handletextpad=0.2, borderpad=0.2)
        return svg_element(fig, "Violins of convergence times per policy")


def _density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian kernel density of log10 seconds, Scott's bandwidth; cut at the data's ends."""
    width = max(0.05, float(x.std(ddof=1)) * len(x) ** -0.2)
    grid = np.linspace(x.min(), x.max(), 120)
    return grid, np.exp(-0.5 * ((grid[:, None] - x[None, :]) / width) ** 2).sum(axis=1)


def distribution(runs: Sequence[Runs]) -> str:
    """Share of all runs that have converged by a time; what is missing to 1 at 180 s has failed."""
    with matplotlib.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(5.2, 3.5))
        _seconds_axis(ax, failures=True)
        for r in runs:
            style = look(r.policy)
            x, y = ecdf(r.times_s.tolist(), r.failed)
            end = float(y[-1]) if y.size else 0.0
            ax.step(
                [0.08, *_shown(x), LIMIT_S],
                [0.0, *y, end],
                where="post",
                color=style.colour,
                ls=style.dash,
                lw=1.8,
                label=r.policy,
            )
            if r.failed:
                ax.plot([LIMIT_S, LIMIT_S], [end, 1.0], color=style.colour, lw=0.8, ls=(0, (1, 2)))
                ax.plot(_FAILED_AT, end, marker=style.mark, ms=5, color=style.colour)
        ax.set_ylim(-0.02, 1.03)
        ax.set_xlabel("convergence time, s (log)")
        ax.set_ylabel("share of all runs converged by then")
        ax.set_title("Convergence as a distribution")
        _legend(fig, ax, [r.policy for r in runs])
        return svg_element(fig, "Share of runs converged over time, per policy")


def emu_distribution(offered: np.ndarray, converged: Mapping[str, np.ndarray], oracle: np.ndarray | None) -> str:
    """Workloads by offered load: how many there are, how many each policy converges on (the slides' "EMU Distribution").

    Args:
        offered: load offered by each workload, sum of loads.
        converged: per policy, the share of seeds that converge, one a workload.
        oracle: whether ORACLE meets every QoS target, one a workload, where known.
    """
    low, high = np.floor(offered.min() * 5) / 5, np.ceil((offered.max() + 1e-9) * 5) / 5
    edges = np.arange(low, high + 0.1, 0.2)
    if len(edges) < 2:
        edges = np.array([low, low + 0.2])
    middles = (edges[:-1] + edges[1:]) / 2

    def counted(weights: np.ndarray) -> np.ndarray:
        return np.histogram(offered, edges, weights=weights)[0]

    with matplotlib.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(5.6, 3.5))
        ax.bar(middles, counted(np.ones_like(offered)), 0.19, color="#eceef2", edgecolor="#b9c0cb", lw=0.7)
        ax.bar([0], [0], color="#eceef2", edgecolor="#b9c0cb", label="all workloads")
        if oracle is not None:
            ax.step([*edges, edges[-1]], [0, *counted(oracle), 0], where="pre", color=MUTED, lw=1.2, ls=(0, (1, 1)))
        for policy, share in converged.items():
            style = look(policy)
            line = style.mark in "x_"
            ax.plot(
                middles,
                counted(share),
                color=style.colour,
                ls=style.dash,
                marker=style.mark,
                ms=5,
                mec=style.colour if line else "white",
                mew=1.1 if line else 0.5,
                lw=1.5,
                label=policy,
            )
        ax.set_xlim(edges[0] - 0.1, edges[-1] + 0.1)
        ax.set_xlabel("offered load, sum of loads (1 = one max load); EMU where it converges")
        ax.set_ylabel("workloads that converge")
        ax.set_title("At which loads each policy still converges")
        _legend(fig, ax, ["all workloads", *converged])
        return svg_element(fig, "Workloads that converge, by offered load and policy")


@dataclass(frozen=True)
class LoadMap:
    """Loads of two services against each other under one policy.

    share: shape (len(y_pct), len(x_pct)), share of a cell's workloads that converge with every seed; NaN where there is none.
    third_pct: same shape, the highest load of the other services, in per cent, of those; NaN where none converges.
    """

    policy: str
    x: str
    y: str
    third: str
    x_pct: Sequence[int]
    y_pct: Sequence[int]
    share: np.ndarray
    third_pct: np.ndarray


# sequential, readable in grey: dark = converges
_SHARES = LinearSegmentedColormap.from_list("shares", ["#fbe9dd", "#f0b98d", "#9db7d5", "#2f6fc0", "#0b3c7d"], bad="#f1f2f5")


def load_map(m: LoadMap) -> str:
    """Draw one policy's map: colour is the share of workloads that converge, the number the highest load of the third service."""
    with matplotlib.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(4.2, 3.7))
        mesh = ax.imshow(np.ma.masked_invalid(m.share), origin="lower", aspect="auto", cmap=_SHARES, vmin=0, vmax=1)
        for i in range(len(m.y_pct)):
            for j in range(len(m.x_pct)):
                if np.isfinite(m.share[i, j]):
                    best = m.third_pct[i, j]
                    text = "×" if not np.isfinite(best) else f"{best:.0f}"
                    ax.text(j, i, text, ha="center", va="center", fontsize=6.5, color="white" if m.share[i, j] > 0.6 else INK)
        ax.set_xticks(range(len(m.x_pct)), [str(x) for x in m.x_pct])
        ax.set_yticks(range(len(m.y_pct)), [str(y) for y in m.y_pct])
        ax.grid(visible=False)
        ax.set_xlabel(f"{m.x}, % of max load")
        ax.set_ylabel(f"{m.y}, % of max load")
        bar = fig.colorbar(mesh, ax=ax, pad=0.03, fraction=0.06)
        bar.set_label("share of these workloads that converge")
        bar.outline.set_visible(False)
        ax.set_title(f"{m.policy}   (number: highest {m.third}, %)")
        return svg_element(fig, f"Loads of {m.x} and {m.y} under {m.policy}: share that converges")


@dataclass(frozen=True)
class Bar:
    """One policy's figure with its interval; None where there is none: `why`, in words. published: its figure in the paper."""

    policy: str
    value: float | None
    low: float | None
    high: float | None
    why: str = ""
    published: float | None = None


def intervals(
    groups: Mapping[str, Sequence[Bar]], x_label: str, title: str, *, at: float | None = None, log: bool = False
) -> str:
    """Marks with whiskers, a block a group, a line a policy: figures that are compared. `at` draws a reference line."""
    rows = [(name, bar) for name, bars in groups.items() for bar in bars]
    with matplotlib.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(5.4, 0.9 + 0.21 * len(rows) + 0.16 * len(groups)))
        y, ticks, labels = 0.0, [], []
        for name, bars in groups.items():
            if len(groups) > 1:
                ax.annotate(
                    name,
                    xy=(0.0, y - 0.1),
                    xycoords=("axes fraction", "data"),
                    xytext=(3, 0),
                    textcoords="offset points",
                    fontsize=8,
                    fontweight="bold",
                    va="center",
                    zorder=5,
                )
                y += 0.85
            for bar in bars:
                style = look(bar.policy)
                if bar.value is None:
                    ax.annotate(
                        bar.why,
                        xy=(0.0, y),
                        xycoords=("axes fraction", "data"),
                        xytext=(6, 0),
                        textcoords="offset points",
                        fontsize=7.5,
                        color=MUTED,
                        va="center",
                    )
                else:
                    if bar.low is not None and bar.high is not None:
                        ax.plot([bar.low, bar.high], [y, y], color=style.colour, lw=2.2, solid_capstyle="butt", zorder=2)
                    ends: Any = {"mec": style.colour, "mfc": style.colour, "mew": 1.2, "clip_on": False}
                    ax.plot(bar.value, y, marker=style.mark, ms=6, zorder=3, **ends)
                if bar.published is not None:
                    ax.plot(bar.published, y, marker="|", ms=11, mew=2, color=TARGET, zorder=4, clip_on=False)
                ticks.append(y)
                labels.append(bar.policy)
                y += 1
            y += 0.35
        if log and any(b.value and b.value > 0 for _, b in rows):
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
            ax.xaxis.set_minor_formatter(NullFormatter())
        else:
            ax.set_xlim(left=min(0.0, *(b.low for _, b in rows if b.low is not None), 0.0))
        if at is not None:
            ax.axvline(at, color=TARGET, lw=1.1, ls=(0, (5, 3)), zorder=1)
            ax.set_xlim(right=max(ax.get_xlim()[1], 1.03 * at))
        ax.set_yticks(ticks, labels)
        ax.set_ylim(y - 0.5, -0.8)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel(x_label)
        ax.set_title(title)
        return svg_element(fig, title)


@dataclass(frozen=True)
class Trade:
    """What one policy buys with what: (low, mean, high) of QoS violation in s a run, and of BE throughput, 1 = alone."""

    policy: str
    violation_s: tuple[float, float, float]
    be_throughput: tuple[float, float, float]


def trade(points: Sequence[Trade], title: str) -> str:
    """BE throughput over QoS violation, a mark a policy with whiskers."""
    with matplotlib.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(4.6, 3.2))
        for p in points:
            style = look(p.policy)
            (x0, x, x1), (y0, y, y1) = p.violation_s, p.be_throughput
            ax.plot([x0, x1], [y, y], color=style.colour, lw=1.6, solid_capstyle="butt", zorder=2)
            ax.plot([x, x], [y0, y1], color=style.colour, lw=1.6, solid_capstyle="butt", zorder=2)
            ax.plot(x, y, ls="none", marker=style.mark, ms=8, mec=style.colour, mfc=style.colour, zorder=3, label=p.policy)
        if max(p.violation_s[2] for p in points) > 30:
            # equal shares of the axis for a second and for minutes; 0 has its place
            ax.set_xscale("symlog", linthresh=1.0)
            ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("QoS violation, s a run")
        ax.set_ylabel("BE throughput, 1 = alone")
        ax.set_title(title)
        _legend(fig, ax, [p.policy for p in points])
        return svg_element(fig, title)


# ---------------------------------------------------------------- traces


@dataclass(frozen=True)
class Trace:
    """What one service held under one policy, step by step: (s, cores, ways), and whether its QoS was met while it held it."""

    policy: str
    service: str
    steps: Sequence[tuple[float, float, float]]
    met: Sequence[bool]


def visits(t: Trace) -> dict[tuple[float, float], list[int]]:
    """The steps at which each (ways, cores) was held, in order of first visit; 0 is where the service began."""
    seen: dict[tuple[float, float], list[int]] = {}
    for k, (_, cores, ways) in enumerate(t.steps):
        seen.setdefault((ways, cores), []).append(k)
    return seen


def numbered(steps: int) -> list[int]:
    """Which steps carry their number: all where they are few, else every n-th; the first and the last say so in words."""
    every = 1 if steps <= 9 else -(-steps // 6)
    return [k for k in range(every, steps - 1, every) if every == 1 or steps - 1 - k > every / 2]


def _label(held: Sequence[int], steps: int) -> str:
    """What stands beside a cell: where the way begins and ends, and the numbers of its steps that carry one."""
    words = (["start"] if held[0] == 0 else []) + [str(k) for k in held if k in numbered(steps)]
    return ", ".join([*words, *(["end"] if held[-1] == steps - 1 else [])])


def spread(values: Iterable[float]) -> dict[float, float]:
    """Where each value stands on an axis: 2 from the one before where it is farther, so that all can be told apart."""
    order = sorted(set(values))
    gaps = (min(b - a, 2.0) for a, b in itertools.pairwise(order))
    return dict(zip(order, itertools.accumulate(gaps, initial=0.0), strict=True))


_PANEL_IN = (3.0, 2.5)


def _axis(at: Mapping[float, float]) -> tuple[list[float], list[str], tuple[float, float]]:
    """Ticks, their labels (some left out where they are many) and limits of an axis that `spread` made."""
    shown = list(at)[:: -(-len(at) // 12)]
    wide = max(at.values())
    more = max(0.0, 4 - wide) / 2
    return [at[v] for v in shown], [f"{v:g}" for v in shown], (-more - 0.6, wide + more + 1.0)


def _one_trace(ax: Axes, t: Trace) -> None:
    base = np.array(to_rgb(look(t.policy).colour))
    last = len(t.steps) - 1
    x, y = spread(s[2] for s in t.steps), spread(s[1] for s in t.steps)
    for axis, places, limits in ((ax.xaxis, x, ax.set_xlim), (ax.yaxis, y, ax.set_ylim)):
        ticks, names, ends = _axis(places)
        axis.set_ticks(ticks, names)
        limits(*ends)
    pitch = 72 * min(inches / (ends[1] - ends[0]) for inches, ends in zip(_PANEL_IN, (ax.get_xlim(), ax.get_ylim()), strict=True))

    def shade(k: int) -> np.ndarray:
        """Early steps are pale."""
        return 1 - (1 - base) * (0.4 + 0.6 * k / max(1, last))

    held_at = {(x[ways], y[cores]): held for (ways, cores), held in visits(t).items()}
    # a count of two digits wants 10 points
    size = {at: 6.0 if len(held) == 1 else max(9.0, min(9.5 + len(held) ** 0.5, 0.8 * pitch)) for at, held in held_at.items()}
    moves: dict[Any, list[int]] = {}
    for k, move in enumerate(itertools.pairwise((x[ways], y[cores]) for _, cores, ways in t.steps), start=1):
        moves.setdefault(move, []).append(k)
    for (a, b), when in sorted(moves.items(), key=lambda m: m[1][-1]):
        # bent to one side: there and back are two arrows
        arrow = FancyArrowPatch(
            a,
            b,
            arrowstyle="-|>",
            mutation_scale=7,
            connectionstyle=f"arc3,rad={0.2 if np.hypot(a[0] - b[0], a[1] - b[1]) < 3 else 0.1}",
            shrinkA=size[a] / 2,
            shrinkB=size[b] / 2,
            lw=min(0.7 + 0.35 * len(when), 2.4),
            color=shade(when[-1]),
            zorder=2 + when[-1] / (last + 1),
        )
        ax.add_patch(arrow)
    for at, held in held_at.items():
        met = 2 * sum(t.met[k] for k in held) >= len(held)
        colour = shade(held[-1])
        ax.plot(*at, marker="o", ms=size[at], mfc=colour if met else "white", mec=colour, mew=1.2, zorder=4)
        if len(held) > 1:
            ink = "white" if met and colour @ [0.3, 0.59, 0.11] < 0.62 else INK
            more: Any = {"ha": "center", "va": "center_baseline", "fontweight": "bold"}
            ax.annotate(str(len(held)), at, fontsize=6.5, color=ink, zorder=5, **more)
        shift = (size[at] / 2, size[at] / 2 + 1)
        ax.annotate(_label(held, last + 1), at, shift, textcoords="offset points", fontsize=7, color=INK, zorder=6)


def traces(found: Sequence[Trace], title: str) -> str:
    """Each policy's way over the cores x ways plane (OSML+ paper, Fig. 11; OSML paper, Fig. 13).

    A cell is drawn once, with a count of its visits inside; arrows and marks get darker with time.
    """
    columns = min(3, max(1, len(found)))
    lines = -(-len(found) // columns)
    with matplotlib.rc_context(STYLE):
        size = (_PANEL_IN[0] * 1.18 * columns, _PANEL_IN[1] * 1.3 * lines)
        fig, axes = plt.subplots(lines, columns, figsize=size, squeeze=False)
        for ax, t in zip(axes.flat, found, strict=False):
            _one_trace(ax, t)
            ax.set_title(f"{t.policy}: {counted(len(t.steps) - 1, 'change')}", fontsize=8.5)
            ax.set_xlabel("LLC ways", fontsize=8)
            ax.set_ylabel("cores (logical CPUs)", fontsize=8)
        for ax in axes.flat[len(found) :]:
            ax.set_visible(False)
        fig.tight_layout()
        return svg_element(fig, title)
