"""How every figure looks, and how it becomes SVG text: colours, style, rendering.

In a page text stays text (it is searchable and takes the page's font); identifiers are made unique per figure, since all figures
end up in one HTML document.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.figure import Figure

INK = "#1c2330"
MUTED = "#5d6675"
GRID = "#e4e7ec"
TARGET = "#c62839"
SERIES = ["#1d63c4", "#e08a1e", "#2a8c5a", "#7a5bc7", "#c2447d", "#1798a8", "#8a6d3b", "#555f6f"]

STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",
    "axes.edgecolor": "#b9c0cb",
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "text.color": INK,
}

_GROWS = 1.3
# dots an inch of an SVG: points
_SVG_DPI = 72
_serial = itertools.count(1)


def _drawn(fig: Figure, salt: str, pad_inches: float) -> str:
    """The figure as SVG without comments: the same for the same salt. Closes the figure."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        # what bbox_inches="tight" comes to, without its drawing everything once more to ask how large that is
        fig.set_dpi(_SVG_DPI)
        if (engine := fig.get_layout_engine()) is not None:
            # what is measured is what is drawn: a layout that ran while drawing would move things out of the box
            engine.execute(fig)
            fig.set_layout_engine("none")
        width, height = fig.get_size_inches() * _SVG_DPI
        box = fig.get_tightbbox(RendererSVG(width, height, io.StringIO())).padded(pad_inches)
        fig.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches=box)
    plt.close(fig)
    return re.sub(r"<!--.*?-->\s*", "", text.getvalue(), flags=re.S)


def svg_element(fig: Figure, label: str) -> str:
    """The figure as an `<svg>` element that can stand in an HTML body beside others."""
    salt = f"f{next(_serial)}"
    svg = _drawn(fig, salt, 0.04)
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    # element identifiers repeat from figure to figure ("axes_1"); references to them move along
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{salt}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{salt}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{salt}-\1)", svg)
    svg = re.sub(r"font: ([\d.]+px) '[^']*'[^;\"]*", r"font: \1 var(--sans)", svg)
    safe = label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{safe}" class="figure" ', 1)
    # pages are as wide as the window: larger than this, letters are larger than the text around
    return re.sub(r'width="([\d.]+)pt"', lambda m: f'{m[0]} style="max-width: {_GROWS * float(m[1]):.0f}pt"', svg, count=1)


def file_of(draw: Callable[[], Figure], salt: str) -> str:
    """What `draw` makes, in the style of all figures, as the text of an SVG file."""
    matplotlib.use("svg")
    with matplotlib.rc_context(STYLE):
        return svg_file(draw(), salt)


def svg_file(fig: Figure, salt: str) -> str:
    """The figure as the text of an SVG file: the same each time, no trailing blanks, no comments. Closes the figure."""
    return "\n".join(line.rstrip() for line in _drawn(fig, salt, 0.05).splitlines()) + "\n"
