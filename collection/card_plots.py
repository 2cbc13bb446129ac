"""The data card's figure, DIR/data-card-TARGET.svg: two panels a service.

Left, where it was measured and where it meets its QoS target: over the cores x ways plane, the share of samples at or below the
target, all loads and thread counts together; cells without a sample stay grey. Where one of the two was not swept, a line over
the other. Right, the latency-load curve with the largest allocation measured. Samples with neighbours, and those of a client that
could not keep its schedule, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

from pipelines import tables
from pipelines.drawing import SERIES, STYLE, svg_file

from . import charts, dataset, shardfile

_ROW_IN = 2.5
_NEVER_TO_ALWAYS = LinearSegmentedColormap.from_list("share", ["#7f0d1f", "#f5ac84", "#e3eef9", "#0b3c7d"], bad="#eceef2")


def draw(shards: list[Path], targets_ms: Mapping[str, float], name: str) -> str:
    """The figure as an SVG file's text; the same data give the same text.

    Args:
        shards: Parquet files of samples; read out of core.
        targets_ms: QoS target of each service.
        name: of the target, for the heading.
    Returns:
        The text, or "" if there is no sample with a latency.
    """
    if not shards:
        return ""
    with tables.reading(shards[0], dataset.SHARD_REMEDY):
        frame = shardfile.scan(shards)
        cells = _cells(frame.filter(~shardfile.impossible(frame.collect_schema().names())), targets_ms)
    services = cells["service"].unique().sort().to_list()
    if not services:
        return ""
    with rc_context(STYLE):
        fig, axes = plt.subplots(
            len(services), 2, figsize=(8.2, _ROW_IN * len(services) + 0.4), squeeze=False, layout="constrained"
        )
        for row, service in zip(axes, services, strict=True):
            of = cells.filter(pl.col("service") == service)
            _plane(row[0], of, service)
            _load(row[1], of, targets_ms[service])
        fig.suptitle(f"{name}: samples without neighbours", x=0.01, ha="left", fontsize=11)
        return svg_file(fig, f"data-card-{name}")


def _cells(samples: pl.LazyFrame, targets_ms: Mapping[str, float]) -> pl.DataFrame:
    """One row for each service, load and allocation: samples, those that met the target, geometric mean of their p99 (ms)."""
    target_ms = pl.col("service").replace_strict(dict(targets_ms), default=None, return_dtype=pl.Float64)
    alone = (pl.col("neighbours").list.len() == 0) & (pl.col("verdict") != "client-limited")
    return (
        samples.filter(alone & pl.col("latency_p99_ms").is_not_null() & target_ms.is_not_null())
        .group_by("service", "rps", cores=pl.col("alloc_cores"), ways=pl.col("alloc_ways").fill_null(0))
        .agg(
            n=pl.len(),
            met=((pl.col("latency_p99_ms") <= target_ms) & (pl.col("verdict") != "server-overloaded")).sum(),
            log_p99=pl.col("latency_p99_ms").log().mean(),
        )
        .sort("service", "rps", "cores", "ways")
        .collect(engine="streaming")
    )


def _plane(ax: Axes, of: pl.DataFrame, service: str) -> None:
    share = of.group_by("cores", "ways").agg(share=pl.col("met").sum() / pl.col("n").sum()).sort("cores", "ways")
    cores, ways = (share[c].unique().sort().to_numpy() for c in ("cores", "ways"))
    ax.set_title(f"{service}: share of samples within target")
    if len(cores) == 1 or len(ways) == 1:
        over = "cores" if len(ways) == 1 else "ways"
        ax.plot(share[over], share["share"], color=SERIES[0], lw=1.5, marker="o", ms=3)
        ax.set_ylim(-0.05, 1.05)
        ax.set_xlabel("cores" if over == "cores" else "LLC ways")
        return
    grid = np.full((len(cores), len(ways)), np.nan)
    grid[np.searchsorted(cores, share["cores"]), np.searchsorted(ways, share["ways"])] = share["share"]
    # An edge half-way between neighbours: what was swept in steps of 5 is drawn as wide as that.
    mesh = ax.pcolormesh(
        _edges(ways), _edges(cores), np.ma.masked_invalid(grid), cmap=_NEVER_TO_ALWAYS, vmin=0, vmax=1, rasterized=True
    )
    bar = ax.figure.colorbar(mesh, ax=ax, pad=0.02, fraction=0.06)
    bar.outline.set_visible(False)
    ax.grid(visible=False)
    ax.set_xlabel("LLC ways")
    ax.set_ylabel("cores")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def _edges(values: np.ndarray) -> np.ndarray:
    middle = (values[:-1] + values[1:]) / 2
    return np.concatenate([[2 * values[0] - middle[0]], middle, [2 * values[-1] - middle[-1]]])


def _load(ax: Axes, of: pl.DataFrame, target_ms: float) -> None:
    most = of.filter(pl.col("cores") == pl.col("cores").max()).filter(pl.col("ways") == pl.col("ways").max())
    cores, ways = most["cores"][0], most["ways"][0]
    ax.plot(most["rps"], most["log_p99"].exp(), color=SERIES[0], lw=1.5, marker="o", ms=3)
    charts.target_line(ax, target_ms, "QoS target")
    ax.set_yscale("log")
    charts.log_ms(ax)
    ax.set_ylabel("p99, ms (log)")
    ax.set_xlabel("offered load, RPS")
    ax.set_title(f"with {cores:g} cores" + (f" and {ways:g} ways" if ways else ""))
