"""What a check of a data set found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]
# one fault must not drown the others
MOST_NAMED = 3


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: the file, what, and what to do.

    severity: an `error` makes a data set unfit for use; a `warning` names cases that may be measured again.
    cases: ids of all cases concerned, where it is about cases. unfinished: what is there is whole, more is to come.
    """

    file: str
    what: str
    remedy: str
    severity: Severity = "error"
    cases: tuple[str, ...] = ()
    unfinished: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "what": self.what,
            "remedy": self.remedy,
            "severity": self.severity,
            "case_ids": list(self.cases),
        }


def some(items: list[str], what: str) -> str:
    """The first few of some things of a kind: "cases a, b, c and 4 more"."""
    named = ", ".join(items[:MOST_NAMED])
    more = len(items) - MOST_NAMED
    return f"{what}{'s' if len(items) > 1 else ''} {named}" + (f" and {more:,} more" if more > 0 else "")
