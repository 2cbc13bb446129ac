"""docs/virtual-server.md links to what exists, and its table is whole."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "virtual-server.md").read_text()


def test_links_and_figures_are_there() -> None:
    """Every relative link and anchor resolves; figures stay small enough for a page."""
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert len([x for x in links if x.endswith(".svg")]) == 5
    for link in links:
        assert (DOCS / link).exists(), link
    for figure in DOCS.glob("images/vserver-*.svg"):
        assert figure.stat().st_size < 150_000, figure.name
        assert f"images/{figure.name}" in PAGE
    headings = {h.lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", PAGE, flags=re.M)}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings


def test_the_table_has_every_fact_and_the_page_counts_them_right() -> None:
    """Every row of the prototype and those of harvesting, none worse than in the prototype, and the same totals on both pages."""
    rows = re.findall(
        r"^\| (\d+) \| (fit|pred|check) \|.*\| ([^|]*) \|$", (DOCS / "virtual-server-validation.md").read_text(), flags=re.M
    )
    numbers = [int(r[0]) for r in rows]
    assert numbers == sorted(set(numbers))
    assert {*range(1, 139), *range(201, 236)} <= set(numbers)
    assert f"prints {len(numbers)} facts" in PAGE
    assert not [r for r in rows if r[2] == "FAIL (prototype: pass)"]
    for kind in ("fit", "pred", "check"):
        verdicts = [r[2] for r in rows if r[1] == kind]
        hold = sum(v.startswith("pass") for v in verdicts)
        assert re.search(rf"^\| {kind} \|.*\| {hold} of {len(verdicts)} \|$", PAGE, flags=re.M), kind
