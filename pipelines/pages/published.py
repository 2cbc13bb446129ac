"""The papers' figures, `published.csv`, beside ours and the comparators'.

A row: the stage that measures the like of it (`evaluate`; `unseen` for leave-one-out and foreign; `transfer`), the model, our
name of the metric, the platform it was measured on (empty: several), value, unit, which way is better, where it stands.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.measures import BALANCED, CONSTANTS

_ERRORS = ("_mae", "_error_pct", "_accuracy", *(f"_{name}" for name in BALANCED))
HIGHER = ("_accuracy", "_cliff_verdicts")
"""Shares of what is right: the higher, the better."""
ONE_SIDED = ("_error_met_pct", "_error_missed_pct", "_false_met", "_harm_pct")
"""Whoever says one thing of all cells is right on one side: shown beside the comparators, and not judged by them."""
_SPLITS = ("carried", "overloaded", "least", "most")  # of one figure, not other methods
SIMPLE = ("constant", "nearest")
"""Comparators whose figure stands in every table, by what they are."""
_FILE = Path(__file__).with_name("published.csv")


@dataclass(frozen=True)
class Published:
    """One published figure."""

    stage: str
    model: str
    metric: str
    platform: str
    value: float
    unit: str
    better: str
    paper: str
    place: str
    what: str

    def met_by(self, ours: float) -> bool:
        """Whether ours is at least as good."""
        return ours <= self.value if self.better == "lower" else ours >= self.value


def read() -> list[Published]:
    """All of them, in the file's order."""
    with _FILE.open(newline="", encoding="utf-8") as file:
        return [Published(value=float(row.pop("value")), **row) for row in csv.DictReader(file)]


def find(figures: Iterable[Published], stage: str, metric: str, platform: str) -> Published | None:
    """The figure of a metric: the platform's own if there is one, else the first (the papers' Server 1)."""
    found = [f for f in figures if (f.stage, f.metric) == (stage, metric)]
    return next((f for f in found if f.platform == platform), found[0] if found else None)


def comparators(metrics: Mapping[str, float], name: str) -> dict[str, float]:
    """The same figure of each comparator, by its method's name."""
    others = {n.removeprefix(f"{name}_"): v for n, v in metrics.items() if n.startswith(f"{name}_")}
    return {method: value for method, value in others.items() if method not in _SPLITS}


def errors(
    metrics: Mapping[str, float],
    figures: Iterable[Published],
    stage: str,
    platform: str,
    margin: float,
    models: Iterable[str] = (),
) -> list[dict[str, Any]]:
    """Each error with the better constant's, the nearest neighbour's, the best comparator's and the paper's.

    Args:
        margin: an error up to this much above the comparator's is no worse.
        models: those whose published figures are listed even where ours are missing.
    """
    figures = list(figures)
    names = [n for n in metrics if n.endswith(_ERRORS) or find(figures, stage, n, platform)]
    missing = [f.metric for f in figures if f.stage == stage and f.model in models and f.metric not in metrics]
    found = []
    for name in dict.fromkeys([*sorted(names), *missing]):
        ours = metrics.get(name)
        others = comparators(metrics, name)
        theirs = find(figures, stage, name, platform)
        row: dict[str, Any] = {"metric": name, "ours": ours, "comparators": others, "best": None, "over_best": None}
        row |= {"no_worse": None, "paper": None, "within_paper": None} | dict.fromkeys(SIMPLE)
        higher = name.endswith(HIGHER)
        better = max if higher else min
        row["constant"] = better((others[m] for m in CONSTANTS if m in others), default=None)
        row["nearest"] = others.get("nearest")
        if others and ours is not None and not name.endswith(ONE_SIDED):
            best = better(others, key=lambda m: others[m])
            # by errors: of an accuracy, what it lacks of 1
            mine, its = (1 - ours, 1 - others[best]) if higher else (ours, others[best])
            row["best"] = best
            row["over_best"] = mine / its if its > 0 else None
            row["no_worse"] = mine <= its * (1 + margin)
        if theirs is not None:
            row["paper"] = {f: getattr(theirs, f) for f in ("value", "unit", "platform", "paper", "place", "what")}
            row["within_paper"] = None if ours is None else theirs.met_by(ours)
        found.append(row)
    return found
