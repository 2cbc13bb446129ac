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
    """A verdict at the top of the page. state: "" (good), "missing" or "failed".

    compared: in place of one figure, a row each thing that is compared, led by its name; `heads` are their columns.
    """

    what: str
    figure: str
    more: str
    state: str = ""
    compared: Sequence[Sequence[str]] = ()
    heads: Sequence[str] = ()


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
class Link:
    """href: relative, quoted; more: small print behind it."""

    href: str
    text: str
    more: str = ""


@dataclass(frozen=True)
class Links:
    """A list of links to other pages."""

    links: Sequence[Link]
    kind: str = field(default="links", init=False)


@dataclass(frozen=True)
class Drawing:
    """A figure: SVG text as pipelines/pages/drawing.py makes it, and its caption.

    n: of how many it is, and how many of them were usable. It leads the caption; no figure is without.
    """

    svg: str
    n: str
    caption: str = ""

    def __post_init__(self) -> None:
        if not any(c.isdigit() for c in self.n):
            raise ValueError(f"a figure says of how many it is, not {self.n!r}")


@dataclass(frozen=True)
class Figures:
    """least_px: how narrow one may get before fewer stand side by side."""

    figures: Sequence[Drawing]
    wide: bool = False
    least_px: int = 340
    kind: str = field(default="figures", init=False)

    @property
    def grid(self) -> Grid:
        return Grid(len(self.figures), 10_000 if self.wide else self.least_px, 22)


@dataclass(frozen=True)
class Grid:
    """How many things stand side by side: as many as have room, in rows that are all full and differ by one thing at most."""

    n: int
    least_px: int
    gap_px: int

    @property
    def name(self) -> str:
        return f"grid-{self.n}-{self.least_px}"

    def rows(self, columns: int) -> list[int]:
        """How many stand in each row, where `columns` have room."""
        rows = -(-self.n // columns)
        base, more = divmod(self.n, rows)
        return [base + 1] * more + [base] * (rows - more)

    def _width_px(self, columns: int) -> int:
        return columns * self.least_px + (columns - 1) * self.gap_px

    def css(self) -> str:
        """Rules for each width (of what is around the grid) at which the rows change."""
        rules = [f".{self.name} {{ display: grid; gap: {self.gap_px}px; grid-template-columns: minmax(0, 1fr); }}"]
        most_columns = min(self.n, _MOST_COLUMNS)
        for columns in range(2, most_columns + 1):
            rows = self.rows(columns)
            least, most = min(rows), max(rows)
            longer = sum(k for k in rows if k > least)
            tracks = least * most if longer else least
            inner = f".{self.name} {{ grid-template-columns: repeat({tracks}, minmax(0, 1fr)); }} "
            inner += f".{self.name} > * {{ grid-column: span {tracks // least}; }}"
            if longer:
                inner += f" .{self.name} > :nth-child(-n+{longer}) {{ grid-column: span {tracks // most}; }}"
            # of one width only: what a narrower one says of single things must not be left over
            widest = "" if columns == most_columns else f" and (max-width: {self._width_px(columns + 1) - 0.02:.2f}px)"
            rules.append(f"@container (min-width: {self._width_px(columns)}px){widest} {{ {inner} }}")
        return "\n".join(rules)


_MOST_COLUMNS = 8


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

    @property
    def tile_grid(self) -> Grid:
        return Grid(max(1, len(self.tiles)), 300, 14)

    @property
    def fact_grid(self) -> Grid:
        return Grid(max(1, len(self.facts)), 210, 14)


def grids(page: Page) -> dict[str, Grid]:
    """All grids of a page, by name."""
    figures = [b.grid for s in page.sections for b in s.blocks if isinstance(b, Figures)]
    return {g.name: g for g in (page.tile_grid, page.fact_grid, *figures)}


def render(page: Page) -> str:
    """HTML text of a page. Everything but the drawings is escaped."""
    folder = files("pipelines") / "templates"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((folder / "report.html.j2").read_text("utf-8"))
    css = "\n".join([(folder / "report.css").read_text("utf-8"), *(g.css() for g in grids(page).values())])
    return template.render(page=page, css=jinja2.utils.markupsafe.Markup(css))
