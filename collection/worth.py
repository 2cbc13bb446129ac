"""What the rows of a target's data set are worth: the one count that status, verify, manifest, card and report show.

`pipelines.samples.worth` defines it. It needs the rows, for their verdicts, and the journal, for the cases that something
disturbed. Reading them takes a few milliseconds a shard, so DIR/manifest.json keeps the count, with the digest of what it is of.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl

from pipelines import samples, stdio, tables
from pipelines.inputs import Unreadable
from pipelines.samples import worth

from . import dataset, layout
from .errors import DataSetError


def disturbed_cases(folder: Path) -> frozenset[str]:
    """Cases that the journal of a target calls disturbed.

    Raises:
        DataSetError: the journal cannot be read.
    """
    journal = folder / dataset.JOURNAL
    try:
        return samples.disturbed_cases(journal)
    except FileNotFoundError:
        return frozenset()
    except (OSError, Unreadable) as e:
        raise DataSetError(f"{journal}: cannot be read: {e}") from e


class Tally:
    """Rows of one target by what they are worth; counts a shard once, as long as its digest stays the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[str, dict[str, int]]] = {}

    def count(self, manifest: dataset.Manifest) -> dict[str, int]:
        """Rows of the shards that the manifest lists, by what they are worth (`pipelines.samples.WORTH`).

        They add up to the manifest's rows. `usable` is always there, the others where they are not 0. Rows of a shard that is not
        there, is damaged, or has other rows than the manifest says, count as `unknown`.
        """
        new = [s for s in manifest.shards if self._known.get(s.file, ("", {}))[0] != s.sha256]
        disturbed = disturbed_cases(self.folder) if new else frozenset()
        found: Counter[str] = Counter(usable=0)
        for shard in new:
            counted = _of_shard(self.folder, shard, disturbed)
            if counted is None:
                found["unknown"] += shard.rows
                self._known.pop(shard.file, None)
            else:
                self._known[shard.file] = (shard.sha256, counted)
        for shard in manifest.shards:
            found.update(self._known[shard.file][1] if shard.file in self._known else {})
        return {name: rows for name, rows in found.items() if rows or name == "usable"}


def of(folder: Path, manifest: dataset.Manifest) -> dict[str, int]:
    """Rows of a target by what they are worth: see `Tally.count`."""
    return Tally(folder).count(manifest)


def _of_shard(folder: Path, shard: dataset.Shard, disturbed: frozenset[str]) -> dict[str, int] | None:
    """None: it cannot be counted."""
    path = folder / shard.file
    if layout.shard_number(shard.file) is None or not path.is_file():
        return None
    try:
        with stdio.Quiet():
            frame = pl.read_parquet(path, columns=["case_id", "verdict"])
            found = frame.select(worth(disturbed).alias("worth")).group_by("worth").len()
    except (Exception, *tables.DAMAGED):  # whatever its Parquet reader raises means: not readable
        return None
    return {str(name): int(rows) for name, rows in found.iter_rows()} if frame.height == shard.rows else None
