"""One target's data set as `surefootd sweep` writes it: manifest.json, journal.jsonl, shards/. Read only, here.

Format: docs/sweep-output.md.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import DataSetError

MANIFEST = "manifest.json"
JOURNAL = "journal.jsonl"
SHARDS = "shards"
SCHEMA_VERSION = 1
STATES = ("measured", "infeasible", "client-limited", "overloaded", "failed", "skipped")
# how many failed cases a reason names
_EXAMPLES = 5
# of a journal in memory at a time
_BLOCK_BYTES = 16 << 20


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class PlatformFacts(_Part):
    """cores: logical CPUs that services may use. ways: 0 where the LLC cannot be partitioned."""

    name: str
    cores: float
    ways: int
    mb_per_way: float
    core_step: float
    mba: bool


class ServiceFacts(_Part):
    qos_target_ms: float
    max_load_rps: float | None = None


class Shard(_Part):
    """file: relative to the manifest's folder."""

    file: str
    rows: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Cases(_Part):
    planned: int = Field(ge=0)
    measured: int = Field(ge=0)
    infeasible: int = Field(ge=0)
    client_limited: int = Field(ge=0)
    overloaded: int = Field(ge=0)
    failed: int = Field(ge=0)
    skipped: int = Field(default=0, ge=0)


class Manifest(_Part):
    """manifest.json of one target."""

    schema_version: int
    campaign: str
    campaign_hash: str
    complete: bool
    platform: PlatformFacts
    feature_set: str
    services: dict[str, ServiceFacts]
    software: dict[str, str]
    host: dict[str, Any]
    shards: list[Shard]
    cases: Cases
    journal_bytes: int = 0
    sources: dict[str, str] = {}
    part: dict[str, int] | None = None

    @property
    def rows(self) -> int:
        return sum(s.rows for s in self.shards)


@dataclass(frozen=True)
class Counts:
    """Cases by state; they add up: pending is what is planned and in no other state yet. skipped: what a search did not need."""

    planned: int
    measured: int = 0
    infeasible: int = 0
    client_limited: int = 0
    overloaded: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def done(self) -> int:
        return self.measured + self.infeasible + self.client_limited + self.overloaded + self.failed + self.skipped

    @property
    def pending(self) -> int:
        return self.planned - self.done

    def as_json(self) -> dict[str, int]:
        """With the states' names as the journal spells them."""
        named = {f.name.replace("_", "-"): getattr(self, f.name) for f in fields(self)}
        return {**named, "pending": self.pending}

    @classmethod
    def total(cls, parts: list[Counts]) -> Counts:
        return cls(*(sum(getattr(p, f.name) for p in parts) for f in fields(cls)))


_LINE = {"case_id": pl.String(), "state": pl.Enum(STATES), "shard": pl.UInt32(), "rows": pl.UInt32(), "cases": pl.UInt64()}
# a line that stands for several cases, which were not measured (docs/sweep-output.md)
_TALLY = re.compile(rb'"state":"([a-z-]+)"[^\n]*"cases":(\d+)')


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


def shard_file(shard: int) -> str:
    """File of a shard, by the number that the journal gives it."""
    return f"{SHARDS}/part-{shard:05}.parquet"


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        DataSetError: names the file, the position and the remedy.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as e:
        raise DataSetError(f"{path}: is missing. It is no data set, or it is damaged; {remedy}") from e
    except (ValueError, UnicodeDecodeError) as e:
        raise DataSetError(f"{path}: corrupt: {e}; {remedy}") from e
    except OSError as e:
        raise DataSetError(f"{path}: cannot be read ({e.strerror})") from e
    if not isinstance(value, dict):
        raise DataSetError(f"{path}: corrupt: not a JSON object; {remedy}")
    return value


def read_manifest(folder: Path) -> Manifest:
    """Read a target's manifest.

    Raises:
        DataSetError: it is missing, damaged or of another version; names the field.
    """
    path = folder / MANIFEST
    remedy = "restore it from a copy, or remove the folder and measure again"
    value = read_json(path, remedy)
    if value.get("schema_version") != SCHEMA_VERSION:
        raise DataSetError(
            f"{path}: schema_version is {value.get('schema_version')!r}, this version reads {SCHEMA_VERSION}; "
            "use the version that wrote it"
        )
    try:
        return Manifest.model_validate(value)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataSetError(f"{path}: corrupt: {where}: {first['msg']}; {remedy}") from e


def _blocks(folder: Path, start: int = 0) -> Iterator[bytes]:
    """The journal's bytes, some megabytes at a time, each ending with the end of a line; at last a torn line, if there is one."""
    try:
        file = (folder / JOURNAL).open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(start)
        rest = b""
        while block := file.read(_BLOCK_BYTES):
            end = block.rfind(b"\n") + 1
            if end:
                yield rest + block[:end]
                rest = block[end:]
            else:
                rest += block
        if rest:
            yield rest


def _whole_blocks(folder: Path, start: int = 0) -> Iterator[bytes]:
    """As `_blocks`, without a torn last line: it counts for nothing."""
    return (block for block in _blocks(folder, start) if block.endswith(b"\n"))


def read_journal(folder: Path) -> Journal:
    """Read a target's journal; damage is told, not raised."""
    journal = Journal()
    parts = [journal.lines]
    number = 0
    for block in _blocks(folder):
        if not block.endswith(b"\n"):
            journal.torn = True
            break
        n = block.count(b"\n")
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
        try:
            v = json.loads(text)
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


def count(folder: Path, planned: int, manifest: Manifest | None = None) -> Counts:
    """Cases by state, from the journal.

    Args:
        manifest: of the same folder: what it has counted is believed, so that only what came since is read. Without it
            everything is (bytes are scanned: a fraction of a second for a million lines).
    """
    by_state, lines = dict.fromkeys(STATES, 0), 0
    more: Counter[str] = Counter()
    start = 0
    if manifest is not None and 0 < manifest.journal_bytes <= _size(folder / JOURNAL):
        start = manifest.journal_bytes
        more.update({s: getattr(manifest.cases, s.replace("-", "_")) for s in STATES})
    for block in _whole_blocks(folder, start):
        lines += block.count(b"\n")
        for s in STATES:
            by_state[s] += block.count(b'"state":"%s"' % s.encode())
        for state, cases in _TALLY.findall(block) if b'"cases":' in block else ():
            more[state.decode()] += int(cases) - 1
    if sum(by_state.values()) != lines:
        # spelt otherwise than `surefootd` does, or damaged: read it properly
        by_state, more = read_journal(folder).by_state(), Counter()
    by_state = {s: n + more[s] for s, n in by_state.items()}
    return Counts(planned, **{s.replace("-", "_"): n for s, n in by_state.items()})


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def failures(folder: Path) -> list[dict[str, Any]]:
    """Reasons of failed cases, most frequent first, each with some of its cases."""
    cases: Counter[str] = Counter()
    examples: dict[str, list[str]] = defaultdict(list)
    for block in _whole_blocks(folder):
        for found in re.finditer(rb'^.*"state":\s*"failed".*$', block, re.M):
            try:
                line = json.loads(found.group())
                reason, case = str(line.get("reason") or "no reason given"), str(line["case_id"])
            except (ValueError, KeyError):
                continue  # `verify` names damaged lines
            cases[reason] += 1
            if len(examples[reason]) < _EXAMPLES:
                examples[reason].append(case)
    ordered = sorted(cases.items(), key=lambda item: (-item[1], item[0]))
    return [{"reason": reason, "cases": n, "examples": examples[reason]} for reason, n in ordered]
