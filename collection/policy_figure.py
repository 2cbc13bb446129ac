"""The figure of docs/index.md, from the table of docs/benchmarks.md that it is of.

    python -m collection.policy_figure docs

Same table, same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from pipelines.pages.drawing import SERIES, file_of

POLICIES = ("parties-be", "osml-plus", "surefoot")
MARKERS = ("s", "^", "o")


class NoTable(ValueError):
    """The page has not the table that is looked for."""


def violations(page: str) -> dict[str, dict[str, float]]:
    """Seconds of violation a run, by policy and set.

    Args:
        page: docs/benchmarks.md; the first table below its heading "Schedulers" has a row for each policy, a column for each set.
    Raises:
        NoTable: it has no such table, or a policy of the figure has no row in it.
    """
    part = page.partition("\n## Schedulers\n")[2].partition("\n## ")[0]
    rows = []
    for line in part.splitlines():
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            break
    if len(rows) < 3:
        raise NoTable(
            "docs/benchmarks.md: no table below the heading Schedulers. Restore it, or change collection/policy_figure.py"
        )
    sets = rows[0][1:]
    found = {row[0]: dict(zip(sets, map(float, row[1:]), strict=True)) for row in rows[2:]}
    if missing := [p for p in POLICIES if p not in found]:
        raise NoTable(
            f"docs/benchmarks.md, Schedulers: no row of {', '.join(missing)}. Restore it, or change collection/policy_figure.py"
        )
    return found


def draw(found: dict[str, dict[str, float]]) -> Figure:
    """A row for each set, a mark for each policy."""
    sets = list(found[POLICIES[0]])
    fig, ax = plt.subplots(figsize=(6.4, 3.4))
    for y, name in enumerate(sets):
        of = [found[p][name] for p in POLICIES]
        ax.plot([min(of), max(of)], [y, y], color="#b8bfc9", lw=1.2, zorder=1)
    for policy, colour, marker in zip(POLICIES, SERIES, MARKERS, strict=False):
        ax.plot(
            list(found[policy].values()), range(len(sets)), ls="none", marker=marker, ms=6, color=colour, label=policy, zorder=2
        )
    ax.set_yticks(range(len(sets)), sets)
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel("QoS violation a run, s (less is better)")
    ax.set_title("Nine sets of workloads on virtual servers, five seeds")
    ax.legend(loc="lower right")
    return fig


def main(docs: Path) -> int:
    found = violations((docs / "benchmarks.md").read_text("utf-8"))
    (docs / "images/policies.svg").write_text(file_of(lambda: draw(found), "policies"), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
