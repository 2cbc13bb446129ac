"""The data card's figure, DIR/data-card-TARGET.svg: two panels a service.

Left, the cliff: p99 over the cores x ways plane at one load, the one with most cells on both sides of the QoS target. Colour
turns from blue to red at the target; cells without a sample stay grey. Where one of the two was not swept, p99 over the other, a
line a load. Right, the latency-load curve with the largest allocation measured.

Only usable rows are drawn as latencies. Samples with neighbours are left out, and so are those that a limit on memory bound. A
cell whose samples are none usable (something disturbed them, or they have another verdict) is marked by a cross.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pipelines import samples, tables
from pipelines.pages.drawing import SERIES, STYLE, svg_file
from pipelines.pages.page import counted

from . import charts, dataset, shardfile

_ROW_IN = 3.5
_MOST_LOADS = 5
_LOAD = ("rps", "threads", "mba_pct")


def draw(shards: list[Path], targets_ms: Mapping[str, float], name: str, disturbed: Collection[str] = ()) -> str:
    """The figure as an SVG file's text; the same data give the same text.

    Args:
        shards: Parquet files of samples; read out of core.
        targets_ms: QoS target of each service.
        name: of the target, for the heading.
        disturbed: cases that something disturbed.
    Returns:
        The text, or "" if there is no sample with a latency.
    """
    if not shards:
        return ""
    with tables.reading(shards[0], dataset.SHARD_REMEDY):
        frame = shardfile.unbound(shardfile.scan(shards))
        cells = _cells(frame.filter(~shardfile.impossible(frame.collect_schema().names())), targets_ms, disturbed)
    services = cells["service"].unique().sort().to_list()
    if not services:
        return ""
    with rc_context(STYLE):
        size = (9.6, _ROW_IN * len(services) + 0.5)
        fig, axes = plt.subplots(len(services), 2, figsize=size, squeeze=False, layout="constrained", width_ratios=[1.25, 1])
        fig.set_layout_engine("constrained", h_pad=0.12, w_pad=0.08)
        for row, service in zip(axes, services, strict=True):
            of = cells.filter(pl.col("service") == service)
            at = _shown_load(of)
            _cliff(row[0], of, at, service, targets_ms[service])
            _load(row[1], of, at, targets_ms[service])
        fig.suptitle(f"{name}: {_counted(cells)}", x=0.01, ha="left", fontsize=11)
        return svg_file(fig, f"data-card-{name}")


def _counted(cells: pl.DataFrame) -> str:
    """How many samples are drawn, and of how many."""
    n, usable, over = (int(cells[c].sum()) for c in ("n", "usable", "over"))
    lost = f"{over:,} overloaded (dark, triangle), {n - usable - over:,} not usable (cross)"
    return f"{counted(n, 'sample')} without neighbours: {usable:,} usable, {lost}"


def _cells(samples_: pl.LazyFrame, targets_ms: Mapping[str, float], disturbed: Collection[str] = ()) -> pl.DataFrame:
    """One row for each service, load and allocation, of samples without neighbours.

    n: samples; usable: of them; over: those of an overloaded service, which nothing disturbed; p99_ms: median of the usable ones;
    overloaded: whether at least half of those that say something are of an overloaded service.
    """
    target_ms = pl.col("service").replace_strict(dict(targets_ms), default=None, return_dtype=pl.Float64)
    worth = samples.worth(disturbed)
    usable = (worth == "usable") & pl.col("latency_p99_ms").is_not_null()
    over = worth == "server-overloaded"
    return (
        samples_.filter((pl.col("neighbours").list.len() == 0) & target_ms.is_not_null())
        .group_by("service", *_LOAD, cores=pl.col("alloc_cores"), ways=pl.col("alloc_ways").fill_null(0))
        .agg(
            n=pl.len(),
            usable=usable.sum(),
            over=over.sum(),
            p99_ms=pl.col("latency_p99_ms").filter(usable).median(),
        )
        .with_columns(
            overloaded=charts.overloaded(pl.col("over"), pl.col("usable")),
            met=pl.col("p99_ms") <= target_ms,
        )
        .sort("service", *_LOAD, "cores", "ways")
        .collect(engine="streaming")
    )


def _shown_load(of: pl.DataFrame) -> tuple[float, ...]:
    """The load (RPS, threads, MBA) that shows most of the cliff: both sides of the target, then most cells, then most RPS."""
    met = pl.col("met").fill_null(False) & ~pl.col("overloaded")
    missed = pl.col("overloaded") | ~pl.col("met").fill_null(True)
    by = of.group_by(_LOAD).agg(
        both=met.any() & missed.any(),
        known=(met | missed).sum(),
        cells=pl.len(),
    )
    row = by.sort("both", "known", "cells", *_LOAD).row(-1, named=True)
    return tuple(row[c] for c in _LOAD)


def _rps(rps: float) -> str:
    return f"{rps:,.0f}" if rps >= 1000 else f"{rps:g}"


def _of_load(of: pl.DataFrame, at: tuple[float, ...], *columns: str) -> pl.DataFrame:
    for column, value in zip(_LOAD, at, strict=True):
        if column in columns:
            of = of.filter(pl.col(column).eq_missing(pl.lit(value)))
    return of


def _cliff(ax: Axes, of: pl.DataFrame, at: tuple[float, ...], service: str, target_ms: float) -> None:
    cores, ways = (of[c].unique().sort().to_numpy() for c in ("cores", "ways"))
    if len(cores) == 1 or len(ways) == 1:
        _line(ax, of, at, service, target_ms, "cores" if len(ways) == 1 else "ways")
        return
    mine = _of_load(of, at, *_LOAD)
    grids = charts.on_grid(mine, cores, ways)
    charts.plane(ax, charts.HeatMap(service, "", at[0], int(at[1]), cores, ways, qos_target_ms=target_ms, **grids))
    cells = f"{int((mine['usable'] > 0).sum()):,} of {counted(len(mine), 'cell')} with usable rows"
    ax.set_title(f"{service} at {_rps(at[0])} RPS: {cells}", pad=20)
    charts.plane_legend(ax)


def _line(ax: Axes, of: pl.DataFrame, at: tuple[float, ...], service: str, target_ms: float, over: str) -> None:
    mine = _of_load(of, at, "threads", "mba_pct")
    loads = mine["rps"].unique().sort().to_list()
    kept = (
        loads
        if len(loads) <= _MOST_LOADS
        else [loads[k] for k in np.linspace(0, len(loads) - 1, _MOST_LOADS).round().astype(int)]
    )
    drawn = mine.filter(pl.col("rps").is_in(kept))
    for k, rps in enumerate(kept):
        line = drawn.filter(pl.col("rps") == rps)
        good = line.filter(pl.col("usable") > 0)
        ax.plot(good[over], good["p99_ms"], color=SERIES[k], lw=1.5, marker="o", ms=4, label=f"{_rps(rps)} RPS")
        _without(ax, line, over, k)
    charts.target_line(ax, target_ms, f"QoS target {target_ms:g} ms")
    ax.set_yscale("log")
    charts.log_ms(ax)
    ax.set_xlabel("cores" if over == "cores" else "LLC ways")
    ax.set_ylabel("p99, ms (log)")
    cells = f"{int((drawn['usable'] > 0).sum()):,} of {counted(len(drawn), 'cell')} with usable rows"
    ax.set_title(f"{service}: {cells}", pad=8 + 14 * -(-len(kept) // 3))
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=3, handlelength=1.4, columnspacing=1.0, borderpad=0.2)


def _without(ax: Axes, line: pl.DataFrame, over: str, k: int) -> None:
    """Cells without a latency, so that they are seen to be there: overloaded ones along the top, unusable ones at the bottom."""
    for marker, edge, step, bad in (
        ("^", 0.97, -0.05, line.filter((pl.col("usable") == 0) & pl.col("overloaded"))),
        ("x", 0.03, 0.05, line.filter((pl.col("usable") == 0) & ~pl.col("overloaded"))),
    ):
        at = np.full(len(bad), edge + k * step)
        ax.plot(bad[over], at, ls="none", marker=marker, ms=4.5, color=SERIES[k], transform=ax.get_xaxis_transform())


def _load(ax: Axes, of: pl.DataFrame, at: tuple[float, ...], target_ms: float) -> None:
    of = _of_load(of, at, "threads", "mba_pct")
    most = of.filter(pl.col("cores") == pl.col("cores").max()).filter(pl.col("ways") == pl.col("ways").max())
    cores, ways = most["cores"][0], most["ways"][0]
    good = most.filter(pl.col("usable") > 0)
    ax.plot(good["rps"], good["p99_ms"], color=SERIES[0], lw=1.5, marker="o", ms=4)
    _without(ax, most, "rps", 0)
    charts.target_line(ax, target_ms, "QoS target")
    ax.set_yscale("log")
    charts.log_ms(ax)
    low, high = float(most["rps"].min() or 0.0), float(most["rps"].max() or 1.0)  # type: ignore[arg-type]
    ax.set_xlim(low - 0.05 * high, 1.05 * high)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.6g}" if v < 1e6 else f"{v:,.0f}"))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5))
    ax.set_ylabel("p99, ms (log)")
    ax.set_xlabel("offered load, RPS")
    where = f"with {counted(cores, 'core')}" + (f" and {counted(ways, 'way')}" if ways else "")
    ax.set_title(f"{where}: {len(good):,} of {counted(len(most), 'load')} usable")
