"""One target's data set as `surefootd sweep` writes it: manifest.json, journal.jsonl, shards/. Read only, here.

Format: docs/sweep-output.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from pipelines import manifest_fields
from pipelines.inputs import parse_json
from pipelines.manifest import MANIFEST, SCHEMA_VERSION, STATES
from pipelines.manifest_fields import Manifest, Shard

from .errors import of_a_data_set
from .layout import JOURNAL, SHARDS, Counts, blocks, failures, read_json, shard_file

__all__ = [
    "JOURNAL",
    "MANIFEST",
    "SCHEMA_VERSION",
    "SHARDS",
    "STATES",
    "Counts",
    "Journal",
    "Manifest",
    "Shard",
    "failures",
    "read_journal",
    "read_json",
    "read_manifest",
    "shard_file",
]


SHARD_REMEDY = "`surefoot campaign verify` says which shard, and what to do"


def tables(value: Any) -> list[dict[str, Any]]:
    """The tables of a list; what else is in it, or in its place, is told to nobody."""
    return [x for x in value if isinstance(x, dict)] if isinstance(value, list) else []


def reasons(manifest: Manifest) -> list[tuple[str, str, int]]:
    """State, reason and number of cases, told to people: what is written otherwise is left out."""
    told = tables((manifest.cases.model_extra or {}).get("reasons"))
    return [
        (str(r["state"]), str(r["reason"]), r["cases"])
        for r in told
        if {"state", "reason"} <= r.keys() and type(r.get("cases")) is int
    ]


# damaged lines that are named: a file with more of them is no journal
_MOST_DAMAGE = 1000
_LINE = {"case_id": pl.String(), "state": pl.Enum(STATES), "shard": pl.UInt32(), "rows": pl.UInt32(), "cases": pl.UInt64()}


@dataclass
class Journal:
    """What a journal says.

    lines: one row a line: case_id, state, shard (its number, see `shard_file`), rows (of the case in it), cases (that it stands
        for: one, or as many as a search did not need).
    damage: (line number, cause) of lines that cannot be read. torn: whether the last line is cut off.
    """

    lines: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_LINE))
    damage: list[tuple[int, str]] = field(default_factory=list)
    torn: bool = False

    def by_state(self) -> dict[str, int]:
        """Cases of each state."""
        found = dict(self.lines.group_by("state").agg(pl.col("cases").sum()).iter_rows())
        return {s: int(found.get(s, 0)) for s in STATES}

    @property
    def cases(self) -> int:
        return int(self.lines["cases"].sum())


def read_manifest(folder: Path) -> Manifest:
    """Read a target's manifest.

    Raises:
        DataSetError: it is missing, damaged or of another version; names the field.
    """
    with of_a_data_set():
        return manifest_fields.read(folder)


def read_journal(folder: Path) -> Journal:
    """Read a target's journal; damage is told, not raised."""
    journal = Journal()
    parts = [journal.lines]
    number = 0
    for block in blocks(folder):
        if not block.endswith(b"\n"):
            journal.torn = True
            break
        n = block.count(b"\n")
        if len(journal.damage) >= _MOST_DAMAGE:
            journal.damage.append((number + 1, f"{_MOST_DAMAGE} lines are damaged: the rest of the file was not looked at"))
            break
        frame = _fast(block, n)
        parts.append(frame if frame is not None else _careful(block, number, journal.damage))
        number += n
    journal.lines = pl.concat(parts)
    return journal


def _fast(block: bytes, n: int) -> pl.DataFrame | None:
    """The lines of a block; None if there is anything about them that needs a closer look."""
    try:
        text = {name: pl.String() if name == "state" else kind for name, kind in _LINE.items()}
        frame = pl.read_ndjson(block, schema=text).with_columns(pl.col("cases").fill_null(1)).cast(_LINE)  # type: ignore[arg-type]
    except pl.exceptions.PolarsError:
        return None
    return frame if frame.height == n and not any(frame.null_count().row(0)) else None


def _careful(block: bytes, before: int, damage: list[tuple[int, str]]) -> pl.DataFrame:
    """The lines of a block that can be read; the others go to `damage`, numbered from `before` + 1."""
    rows = []
    for number, text in enumerate(block.split(b"\n")[:-1], start=before + 1):
        if len(damage) >= _MOST_DAMAGE:
            break
        try:
            v = parse_json(text)
            row = (str(v["case_id"]), str(v["state"]), int(v["shard"]), int(v["rows"]), int(v.get("cases", 1)))
            if row[1] not in STATES:
                raise ValueError(f"state {row[1]!r} is unknown")
            if not all(0 <= x < 1 << 32 for x in row[2:]):
                raise ValueError("shard, rows or cases is out of range")
        except (ValueError, KeyError, TypeError) as e:
            damage.append((number, f"{type(e).__name__}: {e}" if isinstance(e, KeyError) else str(e)))
        else:
            rows.append(row)
    return pl.DataFrame(rows, schema=_LINE, orient="row")
