"""What the rows of a data set say about themselves, a shard at a time.

Hashes prove that nothing changed since it was written; these checks look for data that were bad when they were written:

rows.py       nulls where every row has a value, ranges, orders, and what manifest and row say twice
clock.py      samples off their grid, rates that do not fit their counts
units.py      a column that is off by a constant factor in some shards
disturbed.py  a jump inside a case, a cell that stands out of its plane
origin.py     rows of another platform, another campaign or another host

Thresholds are wide: on an undisturbed campaign nothing is found (tests/test_checks.py). Memory: one shard's rows, and about
200 bytes for each case of the data set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from collection.dataset import Manifest
from collection.findings import Severity
from pipelines import tables

from . import cases, clock, disturbed, origin, rows, units


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong. file: of the data set, as its manifest names it."""

    file: str
    what: str
    severity: Severity = "error"
    cases: tuple[str, ...] = ()


@dataclass
class Checks:
    """The checks of one target's data set: every shard once, in the manifest's order, then `end`.

    hosts: the host that measured a shard, by its file; empty unless the data set is of several hosts.
    """

    manifest: Manifest
    hosts: dict[str, str] = field(default_factory=dict)
    _table: list[pl.DataFrame] = field(default_factory=list)

    def shard(self, file: str, path: Path) -> Iterator[Fault]:
        """Check one shard, whose schema is known to be right."""
        frame = tables.read(path, "Measure it again, or restore it from a copy")
        if frame.is_empty():
            return
        missing = list(rows.nulls(frame))
        if missing:
            yield from (Fault(file, what, cases=ids) for what, ids in missing)
            return
        sampling = self._sampling()
        strange = list(origin.shard(frame, self.manifest))
        yield from (Fault(file, what) for what in strange)
        bad = list(rows.shard(frame, self.manifest))
        yield from (Fault(file, what, cases=ids) for what, ids in bad)
        table = cases.table(frame, sampling)
        late = list(clock.shard(frame, table, sampling))
        yield from (Fault(file, what, cases=ids) for what, ids in late)
        # a jump in time is no noise, and values out of range are no measure of anything
        known = {case for _, ids in [*bad, *late] for case in ids}
        yield from (Fault(file, what, "warning", ids) for what, ids in disturbed.shard(frame, table, known))
        if not strange:
            kept = table.select(pl.exclude("^(low|high)_.*$", "samples"), pl.lit(file, pl.Categorical).alias("file"))
            self._table.append(kept)

    def end(self) -> Iterator[Fault]:
        """Check the shards against each other."""
        if not self._table:
            return
        table = pl.concat(self._table)
        self._table.clear()
        yield from (Fault(file, what) for file, what in units.whole(table, self.hosts))
        yield from (Fault(file, what, "warning", ids) for file, what, ids in disturbed.whole(table))
        yield from (Fault(file, what) for file, what in origin.whole(table, self.manifest, self.hosts))

    def _sampling(self) -> cases.Sampling | None:
        spec = (self.manifest.model_extra or {}).get("spec")
        given: Any = spec.get("sampling") if isinstance(spec, dict) else None
        # the profile of a platform is a source of virtual targets alone (docs/sweep-output.md)
        virtual = any(name.startswith("platform ") for name in self.manifest.sources)
        try:
            return cases.Sampling(int(given["warmup_ms"]), int(given["interval_ms"]), int(given["samples"]), virtual)
        except (KeyError, TypeError, ValueError):
            return None  # written by hand: its grid is not known
