"""One target's data set as `surefootd sweep` writes it: manifest.json, journal.jsonl, shards/. Read only, here.

Format: docs/sweep-output.md.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import DataSetError

MANIFEST = "manifest.json"
JOURNAL = "journal.jsonl"
SHARDS = "shards"
SCHEMA_VERSION = 1
STATES = ("measured", "infeasible", "client-limited", "overloaded", "failed")
# how many failed cases a reason names
_EXAMPLES = 5


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
    sources: dict[str, str] = {}

    @property
    def rows(self) -> int:
        return sum(s.rows for s in self.shards)


@dataclass(frozen=True)
class Counts:
    """Cases by state; they add up: pending is what is planned and in no other state yet."""

    planned: int
    measured: int = 0
    infeasible: int = 0
    client_limited: int = 0
    overloaded: int = 0
    failed: int = 0

    @property
    def done(self) -> int:
        return self.measured + self.infeasible + self.client_limited + self.overloaded + self.failed

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


@dataclass(frozen=True)
class JournalLine:
    """One finished case. shard: its number, see `shard_file`; rows: rows of the case in it."""

    case_id: str
    state: str
    reason: str | None
    shard: int
    rows: int


@dataclass
class Journal:
    """What a journal says; `damage` is (line number, cause) of lines that cannot be read, `torn` a cut-off last line."""

    lines: list[JournalLine] = field(default_factory=list)
    damage: list[tuple[int, str]] = field(default_factory=list)
    torn: bool = False


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


def read_journal(folder: Path) -> Journal:
    """Read a target's journal line by line; damage is told, not raised."""
    journal = Journal()
    try:
        raw = (folder / JOURNAL).read_bytes()
    except FileNotFoundError:
        return journal
    *whole, tail = raw.split(b"\n")
    journal.torn = bool(tail)
    for number, text in enumerate(whole, start=1):
        try:
            v = json.loads(text)
            line = JournalLine(str(v["case_id"]), str(v["state"]), v.get("reason"), int(v["shard"]), int(v["rows"]))
            if line.state not in STATES:
                raise ValueError(f"state {line.state!r} is unknown")
        except (ValueError, KeyError, TypeError) as e:
            journal.damage.append((number, f"{type(e).__name__}: {e}" if isinstance(e, KeyError) else str(e)))
        else:
            journal.lines.append(line)
    return journal


def _journal_bytes(folder: Path) -> bytes:
    try:
        raw = (folder / JOURNAL).read_bytes()
    except FileNotFoundError:
        return b""
    return raw[: raw.rfind(b"\n") + 1]  # a torn last line counts for nothing


def count(folder: Path, planned: int) -> Counts:
    """Cases by state, from the journal. Scans bytes: a journal of a million lines takes a fraction of a second."""
    raw = _journal_bytes(folder)
    by_state = {s: raw.count(b'"state":"%s"' % s.encode()) for s in STATES}
    if sum(by_state.values()) != raw.count(b"\n"):
        # spelt otherwise than `surefootd` does, or damaged: read it properly
        by_state = dict.fromkeys(STATES, 0)
        for line in read_journal(folder).lines:
            by_state[line.state] += 1
    return Counts(planned, **{s.replace("-", "_"): n for s, n in by_state.items()})


def failures(folder: Path) -> list[dict[str, Any]]:
    """Reasons of failed cases, most frequent first, each with some of its cases."""
    cases: dict[str, list[str]] = defaultdict(list)
    for found in re.finditer(rb'^.*"state":\s*"failed".*$', _journal_bytes(folder), re.M):
        try:
            line = json.loads(found.group())
            cases[str(line.get("reason") or "no reason given")].append(str(line["case_id"]))
        except (ValueError, KeyError):
            continue  # `verify` names damaged lines
    ordered = sorted(cases.items(), key=lambda item: (-len(item[1]), item[0]))
    return [{"reason": reason, "cases": len(ids), "examples": ids[:_EXAMPLES]} for reason, ids in ordered]
