"""The figures of docs/virtual-server.md, from the JSON that the example `curves` of the vserver crate prints.

    cargo run --release -p surefoot-vserver --example curves | python -m collection.vserver_figures docs/images

Same input, same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from collection import charts
from pipelines.inputs import parse_json
from pipelines.pages.drawing import INK, MUTED, SERIES, STYLE, svg_file
from pipelines.pages.policy_charts import floats

PERCENTILES = ("p50", "p95", "p99")
COLOURS = (SERIES[2], SERIES[1], SERIES[0])


def _save(fig: Figure, file: Path) -> None:
    file.write_text(svg_file(fig, file.stem), "utf-8")


def _target(ax: Axes, at: float, text: str, x: float = 1.0) -> None:
    charts.target_line(ax, at, text, x, width=1.1)


def _log_y(ax: Axes) -> None:
    ax.set_yscale("log")
    charts.log_ms(ax)


def cliffs(data: Any) -> Figure:
    """p99 over the QoS target against cores, a line a service."""
    fig, ax = plt.subplots(figsize=(6.4, 3.5))
    for k, line in enumerate(data["cliffs"]):
        p99 = np.array(line["p99_ms"]) / line["qos_target_ms"]
        cores = np.arange(1, len(p99) + 1)
        ax.plot(cores, p99, color=SERIES[k], lw=1.5, marker="o", ms=2.6, label=f"{line['service']}, {line['rps']:,.0f} RPS")
    _target(ax, 1.0, "QoS target")
    _log_y(ax)
    ax.set_xlim(0.5, 36.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("cores (logical CPUs), all 20 ways")
    ax.set_ylabel("p99 / QoS target (log)")
    ax.set_title("Cliffs over cores on server-1")
    ax.legend(loc="upper right", ncols=2)
    return fig


def plane(data: Any) -> Figure:
    """p99 over cores and ways; outlined: where the target is met; dots: the RCliff."""
    m = data["plane"]
    p99, target = np.array(m["p99_ms"]), m["qos_target_ms"]
    cores, ways = np.arange(1, p99.shape[0] + 1), np.arange(1, p99.shape[1] + 1)
    norm = charts._AroundTarget(float(p99.min()), target, float(p99.max()))
    colours = LinearSegmentedColormap.from_list("qos", [*charts._COLD, *charts._HOT])
    fig, ax = plt.subplots(figsize=(4.6, 4.2))
    extent = (0.5, ways[-1] + 0.5, 0.5, cores[-1] + 0.5)
    mesh = ax.imshow(p99, origin="lower", aspect="auto", extent=extent, cmap=colours, norm=norm, interpolation="nearest")
    charts._staircase(ax, p99, cores, ways, target)
    ax.plot(ways, m["rcliff_cores"], ls="none", marker="o", ms=3.2, mfc="white", mec=INK, mew=0.8, label="RCliff (cores)")
    ax.set_xlabel("LLC ways")
    ax.set_ylabel("cores (logical CPUs)")
    ax.grid(visible=False)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    bar = fig.colorbar(mesh, ax=ax, pad=0.03, fraction=0.06)
    ticks = [t for t in (10.0**e for e in range(0, 8)) if norm.low <= t <= norm.high and t != target]
    bar.set_ticks([*ticks, target], labels=[*map(charts._ms, ticks), f"{target:g} target"])
    bar.ax.minorticks_off()
    bar.set_label("p99, ms (log)")
    bar.outline.set_visible(False)
    ax.set_title(f"{m['service']} at {m['rps']:,.0f} RPS on {m['platform']}", pad=20)
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.985), ncols=2, handletextpad=0.4, borderpad=0.2)
    return fig


def transient(data: Any) -> Figure:
    """Closed loop: cores taken and given back, and a load step."""
    fig, axes = plt.subplots(1, 2, figsize=(9.4, 3.2))
    marks: list[tuple[str, str, float, list[tuple[float, str]]]] = [
        ("backlog", "img-dnn, 5,000 RPS: cores", 0.57, [(0, "12 cores"), (5, "7 cores"), (35, "13 cores")]),
        ("load_step", "xapian on 6 cores: load", 1.0, [(0, "4,400 RPS"), (5, "6,000 RPS"), (15, "4,400 RPS")]),
    ]
    for ax, (key, title, label_x, changes) in zip(axes, marks, strict=True):
        line = data[key]
        ax.plot(line["t_s"], floats(line["one_run_p99_ms"]), color=SERIES[1], lw=0.8, label="one run (seeded)")
        ax.plot(line["t_s"], floats(line["ensemble_p99_ms"]), color=SERIES[0], lw=1.7, label="all runs (mean field)")
        _log_y(ax)
        low, high = ax.get_ylim()
        ax.set_ylim(low, high * 30)
        for at, text in changes:
            if at:
                ax.axvline(at, color=MUTED, lw=0.8, ls=":")
            at_top = {"xy": (at, 1), "xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            ax.annotate(text, **at_top, xytext=(3, -3), fontsize=7.5, rotation=90, va="top")
        _target(ax, line["qos_target_ms"], f"QoS target {line['qos_target_ms']:g} ms", label_x)
        ax.set_xlim(0, line["t_s"][-1])
        ax.set_xlabel("time, s")
        ax.set_ylabel("p99 of a 100 ms tick, ms (log)")
        ax.set_title(title)
    axes[1].legend(loc="upper right")
    fig.tight_layout()
    return fig


def simulation(data: Any) -> Figure:
    """Lines: the model; circles: request-by-request simulation."""
    fig, axes = plt.subplots(1, 3, figsize=(10.4, 3.2))
    e = data["equilibrium"]
    lanes = [("in equilibrium", "load (rho)", e["rho"], e["model_ms"], e["simulated_rho"], e["simulated_ms"])]
    for t in data["transients"]:
        lanes.append((t["name"], "time, s", t["t_s"], t["model_ms"], t["simulated_t_s"], t["simulated_ms"]))
    for ax, (title, x_label, x, model, sim_x, sim) in zip(axes, lanes, strict=True):
        for k, name in enumerate(PERCENTILES):
            ax.plot(x, [q[k] for q in model], color=COLOURS[k], lw=1.5, label=name)
            ax.plot(sim_x, [q[k] for q in sim], ls="none", marker="o", ms=4.2, mfc="white", mec=COLOURS[k])
        _log_y(ax)
        ax.set_xlabel(x_label)
        ax.set_title(title)
    axes[0].set_ylabel("response time, ms (log)")
    axes[0].plot([], [], ls="none", marker="o", ms=4.2, mfc="white", mec=INK, label="simulated")
    axes[0].legend(loc="upper left")
    fig.tight_layout()
    return fig


def memory(data: Any) -> Figure:
    """Loaded memory latency: the law, and where STREAM ends up."""
    fig, ax = plt.subplots(figsize=(6.0, 3.3))
    for k, p in enumerate(data["memory"]):
        curve = np.array(p["curve_gbs_ns"])
        curve = curve[curve[:, 1] <= 420]
        ax.plot(curve[:, 0], curve[:, 1], color=SERIES[k], lw=1.5, label=f"{p['platform']} (peak {p['peak_gbs']:g} GB/s)")
        cores, gbs, ns = zip(*p["stream_cores_gbs_ns"], strict=True)
        ax.plot(gbs, ns, ls="none", marker="o", ms=4.2, mfc="white", mec=SERIES[k])
        for n, x, y in zip(cores[-1:], gbs[-1:], ns[-1:], strict=True):
            ax.annotate(f"{n}", xy=(x, y), xytext=(-3, 5), textcoords="offset points", fontsize=7, color=MUTED, ha="right")
    ax.plot([], [], ls="none", marker="o", ms=4.2, mfc="white", mec=INK, label="STREAM on 1, 2, 4, 8 and all cores")
    ax.set_ylim(0, 430)
    ax.set_xlim(0, None)
    ax.set_xlabel("bandwidth, GB/s")
    ax.set_ylabel("memory latency, ns")
    ax.set_title("Loaded memory latency")
    ax.legend(loc="upper left")
    return fig


FIGURES: dict[str, Callable[[Any], Figure]] = {
    "cliffs": cliffs,
    "plane": plane,
    "transient": transient,
    "simulation": simulation,
    "memory": memory,
}


def main(out: Path, text: str) -> None:
    """Draw every figure into folder `out` as vserver-NAME.svg."""
    data = parse_json(text)
    with matplotlib.rc_context(STYLE):
        for name, draw in FIGURES.items():
            _save(draw(data), out / f"vserver-{name}.svg")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m collection.vserver_figures FOLDER < JSON")
    main(Path(sys.argv[1]), sys.stdin.read())
