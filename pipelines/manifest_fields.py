"""manifest.json in full, every field checked (docs/sweep-output.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.errors import BadInput
from pipelines.manifest import MANIFEST, MARKS, MOST_ROWS, RESTORE, SCHEMA_VERSION, STATES, Facts, read_object


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class PlatformFacts(_Part):
    """cores: logical CPUs that services may use. ways: 0 where the LLC cannot be partitioned."""

    name: str = Field(min_length=1)
    cores: float = Field(gt=0, lt=1e6)
    ways: int = Field(ge=0, le=64)
    mb_per_way: float = Field(ge=0, lt=1e6)
    core_step: float = Field(gt=0, le=1)
    mba: bool


class ServiceFacts(_Part):
    qos_target_ms: float
    max_load_rps: float | None = None


class MaxLoad(_Part):
    """Highest rate that met a service's QoS target here, alone on all that the campaign gives it; None: none did.

    others_frac: of the CPU time that it left over, what other programs took meanwhile.
    """

    service: str = Field(min_length=1, max_length=200)
    threads: int = Field(ge=1, le=4096)
    max_load_rps: float | None = Field(gt=0, lt=1e9)
    reason: str | None = Field(default=None, max_length=4000)
    others_frac: float = Field(default=0.0, ge=0, le=1)


class Shard(_Part):
    """file: relative to the manifest's folder."""

    file: str
    rows: int = Field(ge=0, lt=MOST_ROWS)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Cases(_Part):
    planned: int = Field(ge=0, lt=MOST_ROWS)
    measured: int = Field(ge=0, lt=MOST_ROWS)
    infeasible: int = Field(ge=0, lt=MOST_ROWS)
    client_limited: int = Field(ge=0, lt=MOST_ROWS)
    overloaded: int = Field(ge=0, lt=MOST_ROWS)
    failed: int = Field(ge=0, lt=MOST_ROWS)
    skipped: int = Field(default=0, ge=0, lt=MOST_ROWS)
    # of all of these, those with such a mark in the journal (docs/sweep-output.md)
    disturbed: int = Field(default=0, ge=0, lt=MOST_ROWS)
    unsettled: int = Field(default=0, ge=0, lt=MOST_ROWS)
    # usable rows, and rows that nobody counted; None: from before they were
    usable_rows: int | None = Field(default=None, ge=0, lt=MOST_ROWS)
    uncounted_rows: int = Field(default=0, ge=0, lt=MOST_ROWS)

    def by_state(self) -> dict[str, int]:
        """With the states' names as the journal spells them."""
        return {s: getattr(self, s.replace("-", "_")) for s in STATES}


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
    journal_bytes: int = Field(default=0, ge=0, lt=MOST_ROWS)
    sources: dict[str, str] = {}
    part: dict[str, int] | None = None
    max_loads: list[MaxLoad] = Field(default=[], max_length=10_000)

    @property
    def rows(self) -> int:
        return sum(s.rows for s in self.shards)


def read(folder: Path) -> Manifest:
    """Read a target's manifest.

    Raises:
        BadInput: it is missing, damaged or of another version; names the field.
    """
    path = folder / MANIFEST
    value = read_object(path, RESTORE)
    if value.get("schema_version") != SCHEMA_VERSION:
        raise BadInput(
            f"{path}: schema_version is {value.get('schema_version')!r}, this version reads {SCHEMA_VERSION}; "
            "use the version that wrote it"
        )
    try:
        return Manifest.model_validate(value)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"{path}: corrupt: {where}: {first['msg']}; {RESTORE}") from e


def facts(folder: Path) -> Facts:
    """As `manifest.facts`, of any manifest that can be used.

    Raises:
        BadInput: it cannot.
    """
    found = read(folder)
    marks = {m: getattr(found.cases, m) for m in MARKS}
    files, by_state = [s.file for s in found.shards], found.cases.by_state()
    return Facts(found.rows, files, found.feature_set, found.journal_bytes, found.cases.planned, by_state, marks, found.complete)
