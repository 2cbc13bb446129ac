"""The papers' figures, `published.csv`, beside ours.

A row: the stage that measures the like of it (`evaluate`; `unseen` for leave-one-out and foreign; `transfer`), the model, our
name of the metric, the platform it was measured on (empty: several), value, unit, which way is better, where it stands.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
