"""The index of all pages: `index.html` in the folder `out`, written anew by whatever writes a page.

It leads to the demo's report, the trainings', the evaluations', and to data and model cards: to those that are there, by relative
links, so that the folder can be moved. `out` is the nearest folder of that name above a page; data sets and bundles, whose cards
are pages, too, lie beside it in `data` and `bundles`. A page elsewhere has no index.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from urllib.parse import quote

from pipelines.io import write_bytes
from pipelines.pages.page import Callout, Link, Links, Page, Section, render

INDEX = "index.html"
_FOLDER = "out"
# what is beside `out`, and what the cards in it are called
_BESIDE = {"data": "data-card.md", "bundles": "card.md"}
_NAMES = ("report.html", "eval-report.html", "harvest-report.html", "data-card.md")
_DEPTH = 6
_HEAD_BYTES = 4096
_TITLE = "Surefoot: all pages"
_DEMO, _TRAININGS, _EVALS, _DATA, _MODELS, _OTHERS = "demo", "trainings", "evaluations", "data", "models", "others"
_SECTIONS = {
    _DEMO: "The demo",
    _TRAININGS: "Trainings",
    _EVALS: "Policies side by side",
    _DATA: "Data cards",
    _MODELS: "Model cards",
    _OTHERS: "Other reports",
}


@dataclass(frozen=True)
class Found:
    """One page: where it is, its title, and which section of the index it stands in."""

    path: Path
    title: str
    kind: str
    written: datetime


def refresh(page: Path) -> Path | None:
    """Write the index that leads to `page`; None where there is none to write.

    Args:
        page: a page that was written just now.
    """
    out = folder_of(page)
    if out is None or not out.is_dir():
        return None
    index = out / INDEX
    if not _is_ours(index):
        return None
    write_bytes(index, render(build(out)).encode())
    return index


def folder_of(page: Path) -> Path | None:
    """The folder whose index leads to a page: the nearest `out` above it, or that beside the folder of data sets."""
    page = Path(os.path.abspath(page))
    # a data set holds nothing but its own, whatever its folder is called
    above = page.parents[1:] if page.name == _BESIDE["data"] else page.parents
    for folder in above:
        if folder.name == _FOLDER:
            return folder
        if folder.name in _BESIDE and page.name == _BESIDE[folder.name]:
            return folder.parent / _FOLDER
    return None


def build(out: Path) -> Page:
    """The index of what is in and beside a folder now."""
    found = sorted(pages(out), key=lambda f: (f.title, str(f.path)))
    page = Page(
        title=_TITLE,
        lede="Reports and cards that were made here. The demo's report is the one to begin with.",
        footer="Made anew whenever a page is. Links are relative: the folder can be moved with data and bundles beside it.",
    )
    for kind, title in _SECTIONS.items():
        links = [
            Link(quote(os.path.relpath(f.path, out)), f.title, f"{os.path.relpath(f.path, out)}, {f.written:%Y-%m-%d %H:%M} UTC")
            for f in found
            if f.kind == kind
        ]
        if links:
            page.sections.append(Section(kind, title, title, [Links(links)]))
    if not page.sections:
        page.sections.append(Section("none", "No page yet", "None", [Callout("No page is there. `make demo` makes the first.")]))
    return page


def pages(out: Path) -> Iterator[Found]:
    """All pages of a folder `out`, and the cards beside it."""
    for at, folders, files in os.walk(out):
        if len(Path(at).relative_to(out).parts) >= _DEPTH:
            folders.clear()
        folders.sort()
        for name in _NAMES:
            if name in files and (one := _found(Path(at) / name)):
                yield one
    for folder, name in _BESIDE.items():
        for path in sorted((out.parent / folder).glob(f"*/{name}")):
            if one := _found(path):
                yield one


def _found(path: Path) -> Found | None:
    """None: it went, or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return None
    mark = re.search(
        r"<title>(.*?)</title>" if path.suffix == ".html" else r"\A# (.*)", head, re.S if path.suffix == ".html" else 0
    )
    title = " ".join(unescape(mark[1]).split()) if mark else path.name
    return Found(path, title, _kind(path, title), written)


def _kind(path: Path, title: str) -> str:
    if path.name in ("eval-report.html", "harvest-report.html"):
        return _EVALS
    if path.name == "data-card.md":
        return _DATA
    if path.name == "card.md":
        return _MODELS
    return _TRAININGS if title.startswith("Training report") else _DEMO if title.startswith("Surefoot: ") else _OTHERS


def _is_ours(index: Path) -> bool:
    """Whether the index may be written: it is not there, or was written here. What others put there stays."""
    if not os.path.lexists(index):
        return True
    one = _found(index) if index.is_file() else None
    return one is not None and one.title == _TITLE
