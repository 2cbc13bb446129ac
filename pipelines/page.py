"""A report's page as plain data, and its rendering into one HTML file without external references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import jinja2
import numpy as np


@dataclass(frozen=True)
class Tile:
    """A verdict at the top of the page. state: "" (good), "missing" or "failed"."""

    what: str
    figure: str
    more: str
    state: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph; style "note" for small print."""

    text: str
    style: str = ""
    kind: str = field(default="text", init=False)


@dataclass(frozen=True)
class Heading:
    text: str
    kind: str = field(default="heading", init=False)


@dataclass(frozen=True)
class Callout:
    """Something the reader must not miss, e.g. a part that could not be run."""

    text: str
    kind: str = field(default="callout", init=False)


@dataclass(frozen=True)
class Drawing:
    """A figure: SVG text as pipelines/drawing.py makes it, and its caption."""

    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Figures:
    figures: Sequence[Drawing]
    wide: bool = False
    kind: str = field(default="figures", init=False)


@dataclass(frozen=True)
class Column:
    """help: what it means, shown beside the pointer."""

    name: str
    numeric: bool = False
    help: str = ""


@dataclass(frozen=True)
class Table:
    """Cells: text, `badge(...)` or `estimate(...)`; a row's first is its header.

    dense: intervals stand below their figures. folded: what stands in place of the table until the reader opens it.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    dense: bool = False
    folded: str = ""
    kind: str = field(default="table", init=False)


def badge(good: bool | None, text: str, more: str = "") -> dict[str, str]:
    """A coloured word in a table: good, bad, or (None) a warning."""
    return {"badge": "warn" if good is None else "good" if good else "bad", "text": text, "more": more}


def estimate(figure: str, interval: str) -> dict[str, str]:
    """A figure in a table with its interval, which is small print."""
    return {"figure": figure, "interval": interval}


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, thousands grouped; a dash for unknown."""
    if value is None or not np.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def counted(n: float, one: str, many: str = "") -> str:
    """A number of things: 1 seed, 2 seeds. many: where it is not `one` with an s."""
    return f"{n:,g} {one if n == 1 else many or one + 's'}"


def per_cent(share: float | None) -> str:
    return "–" if share is None or not np.isfinite(share) else f"{100 * share:.1f} %"


@dataclass
class Section:
    """`short` is its name in the page's navigation."""

    id: str
    title: str
    short: str
    blocks: list[Any] = field(default_factory=list)


@dataclass
class Page:
    title: str
    lede: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    tiles: list[Tile] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    footer: str = ""


def render(page: Page) -> str:
    """HTML text of a page. Everything but the drawings is escaped."""
    folder = files("pipelines") / "templates"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((folder / "report.html.j2").read_text("utf-8"))
    css = jinja2.utils.markupsafe.Markup((folder / "report.css").read_text("utf-8"))
    return template.render(page=page, css=css)
