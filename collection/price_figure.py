"""The figure of the study on the price frontier, from the table of that page.

    python -m collection.price_figure docs

Same table, same bytes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from pipelines.inputs import SUMMARY_BYTES, read_text
from pipelines.pages.drawing import SERIES, file_of

STUDY = "studies/2026-11-29-price-frontier.md"
FIGURE = "images/price-frontier.svg"
_ROW = re.compile(r"^\| `([a-z-]+)` ?([\d.]*) \| ([\d.]+) \| ([\d.]+) \|", re.MULTILINE)

Point = tuple[str, str, float, float]


class NoTable(ValueError):
    """The page has not the table that is looked for."""


def points(page: str) -> list[Point]:
    """Policy, price, seconds of violation and BE throughput of each row.

    Raises:
        NoTable: there are fewer than two rows of `surefoot`, or none of another policy.
    """
    found = [(policy, price, float(late), float(be)) for policy, price, late, be in _ROW.findall(page)]
    ours = [p for p in found if p[0] == "surefoot"]
    if len(ours) < 2 or len(ours) == len(found):
        raise NoTable(f"docs/{STUDY}: no table of prices and rivals. Restore it, or change collection/price_figure.py")
    return found


def draw(found: list[Point]) -> Figure:
    """Violation against BE throughput: a line through the prices, a mark for each rival."""
    ours = sorted((p for p in found if p[0] == "surefoot"), key=lambda p: float(p[1]))
    fig, ax = plt.subplots(figsize=(6.4, 3.4))
    ax.plot([p[3] for p in ours], [p[2] for p in ours], color=SERIES[0], marker="o", ms=5, label="surefoot, price of cores")
    for _, price, late, be in ours:
        ax.annotate(price, (be, late), textcoords="offset points", xytext=(0, -12), ha="center", fontsize=7)
    rivals = [p for p in found if p[0] != "surefoot"]
    for (policy, _, late, be), colour, marker in zip(rivals, SERIES[1:], "^sDv", strict=False):
        ax.plot([be], [late], ls="none", marker=marker, ms=7, color=colour, label=policy)
    ax.set_yscale("log")
    ticks = [50, 75, 100, 150, 200]
    ax.set_yticks(ticks, [str(t) for t in ticks])
    ax.minorticks_off()
    ax.set_ylim(45, 210)
    ax.set_xlabel("BE throughput (more is better)")
    ax.set_ylabel("QoS violation a run, s (less is better)")
    ax.set_title("27 workloads of tune worlds, three to six LC services beside BE jobs")
    ax.legend(loc="upper left")
    return fig


def main(docs: Path) -> int:
    found = points(read_text(docs / STUDY, SUMMARY_BYTES))
    (docs / FIGURE).write_text(file_of(lambda: draw(found), "price-frontier"), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
