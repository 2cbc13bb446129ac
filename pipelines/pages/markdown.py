"""Text and tables of the Markdown cards: of a data set (collection/card.py) and of a bundle (pipelines/pages/card.py)."""

from __future__ import annotations

from collections.abc import Sequence


def plain(value: object) -> str:
    """Text in a table or a heading: one line, no markup."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *(f"| {' | '.join(map(plain, row))} |" for row in rows)]
