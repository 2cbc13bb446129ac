"""One data set: a folder with `manifest.json` and `shards/*.parquet` (docs/sweep-output.md). What is computed of its samples
is in pipelines/reduce.py.

A row whose verdict is not `valid` never counts as a measured latency:

    client-limited      dropped; the load generator was too slow, so the row says nothing about the server
    server-overloaded   the allocation cannot carry the load: QoS not met. Its counters are real and may be model inputs,
                        its latency is not a number (the queue grows for as long as one looks)
    not-resolvable      too few requests for a percentile: the cell is unknown

A row of a case that something disturbed counts as `disturbed`, whatever its verdict, and is dropped: it says what the disturbance
did. A row of a case that a limit on memory bound (`memory_binds`) counts as `memory-bound` in the same way: its latency says
nothing of cores and ways alone. How many rows each rule touched is part of the metrics of the label stage.

A *usable* row is valid, and nothing disturbed its case (`worth`). What a campaign is worth is its usable rows: every count that
people see is of these, wherever it is shown, and no model learns a latency from any other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from models.features import FEATURE_SETS, SAMPLE_FEATURES, FeatureError, PlatformLimits
from pipelines import manifest
from pipelines.errors import BadInput
from pipelines.inputs import LINE_BYTES, Unreadable, open_bytes, parse_json
from pipelines.io import read_json, sha256_file

# Edition of the virtual server that made data, and of what was learnt from it: its name in tags, summaries and bundles.
PLANT = "plant_version"
DISTURBED = "disturbed"
# of a case whose limit on memory may have changed what the service did: no cell of a plane of cores and ways
MEMORY_BOUND = "memory-bound"
VERDICTS = ("valid", "client-limited", "server-overloaded", "not-resolvable")
_MARK = b'"disturbed"'
# what a row is worth, one of these: the verdict stands for rows that nothing disturbed
WORTH = ("usable", DISTURBED, "server-overloaded", "client-limited", "not-resolvable", "unknown")
DROPPED = ("client-limited", DISTURBED, MEMORY_BOUND)
"""Rows that say nothing about what a service does with its cores and ways alone."""
BINDS = "memory_binds"
"""Column of data sets with limits on memory; others lack it, and nothing in them is bound."""
MEMORY_KEY = ("mem_limit_bytes", "zswap_max_bytes")
"""What was asked for of memory, and in the same order what was in force."""
IN_FORCE = ("mem_limit_in_force_bytes", "zswap_max_in_force_bytes")
PLANE_KEY = ("service", "rps", "threads", "mba_pct", "nb_key")
CELL_KEY = (*PLANE_KEY, "alloc_cores", "alloc_ways")
NEEDED = (
    "campaign",
    "service",
    "case_id",
    "threads",
    "rps",
    "mba_pct",
    "neighbours",
    *SAMPLE_FEATURES,
    "latency_p99_ms",
    "verdict",
)


def is_disturbed(line: Mapping[str, Any]) -> bool:
    """Whether a line of a journal says that something disturbed the host during its case (docs/sweep-output.md)."""
    return line.get("disturbed") is not None


def disturbed_cases(journal: Path) -> frozenset[str]:
    """Cases that a journal calls disturbed; lines that cannot be read are those of `surefoot campaign verify` to name.

    Raises:
        FileNotFoundError: there is no journal.
    """
    found = set()
    with open_bytes(journal) as file:
        # a line that a crash cut off counts for nothing, and neither does one that is longer than any
        while text := file.readline(LINE_BYTES):
            if _MARK in text and text.endswith(b"\n") and (case := _disturbed(text)) is not None:
                found.add(case)
    return frozenset(found)


def _disturbed(text: bytes) -> str | None:
    try:
        line = parse_json(text)
    except Unreadable:
        return None
    return str(line["case_id"]) if isinstance(line, dict) and is_disturbed(line) and "case_id" in line else None


def worth(disturbed: Collection[str]) -> pl.Expr:
    """What each row is worth, as one of WORTH; `unknown`: a verdict that nobody knows.

    Args:
        disturbed: case ids whose line in the journal `is_disturbed`.
    """
    verdict = pl.col("verdict")
    return (
        pl.when(~verdict.is_in(list(VERDICTS)).fill_null(False))
        .then(pl.lit("unknown"))
        .when(pl.col("case_id").is_in(list(disturbed)).fill_null(False))
        .then(pl.lit(DISTURBED))
        .when(verdict == "valid")
        .then(pl.lit("usable"))
        .otherwise(verdict)
    )


@dataclass(frozen=True)
class Axes:
    """Cores and ways that a campaign swept, ascending; `least`: what the platform gives at least, or (where the sweep starts
    above) anything below its first."""

    cores: tuple[float, ...]
    ways: tuple[float, ...]
    least: tuple[float, float]

    @classmethod
    def from_manifest(cls, value: Any, path: Path) -> Axes:
        try:
            cores, ways = tuple(map(float, value["cores"])), tuple(map(float, value["ways"]))
            from_least = [bool(x) for x in value["from_least"]]
            return cls(cores, ways, (cores[0] if from_least[0] else 0.0, ways[0] if from_least[1] else 0.0))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BadInput(f"{path}: field axes is damaged ({error!r}); collect the data set again") from None


@dataclass(frozen=True)
class DataSet:
    """One target's part of a campaign.

    Attributes:
        sha256: digest of `manifest.json`, which holds the digest of every shard: it stands for the whole data set.
        services: QoS target (ms) and max load (RPS, or None) of each service.
        disturbed: cases whose line in the journal is marked so.
        axes: where not every cell was measured; None: the measured cells are the grid.
        made_by: see `made_by`.
    """

    folder: Path
    campaign: str
    feature_set: str
    platform: PlatformLimits
    services: dict[str, dict[str, float | None]]
    shards: tuple[Path, ...]
    rows: int
    cases: dict[str, int]
    sha256: str
    axes: Axes | None = None
    disturbed: frozenset[str] = frozenset()
    made_by: dict[str, str] = field(default_factory=dict)

    def qos_target_ms(self, service: str) -> float:
        target = self.services.get(service, {}).get("qos_target_ms")
        if target is None:
            raise BadInput(f"{self.folder / 'manifest.json'}: services.{service}: no QoS target for a service that has samples")
        return float(target)


def open_dataset(folder: Path, *, check_shards: bool = True) -> DataSet:
    """Read the manifest of a data set and check the shards against it.

    Raises:
        BadInput: folder, manifest or a shard is missing, damaged or of another schema.
    """
    path = folder / manifest.MANIFEST
    if not path.exists():
        raise BadInput(
            f"{path}: the data set is missing; collect it with `surefoot campaign run CAMPAIGN.toml --out DIR`, or take it "
            "out of `datasets` in params.yaml"
        )
    value = read_json(path, "the manifest of the data set")
    if not isinstance(value, dict):
        raise BadInput(f"{path}: is not a JSON object; collect the data set again")
    if "targets" in value and "shards" not in value:
        folders = ", ".join(str(t.get("folder")) for t in value["targets"] if isinstance(t, dict))
        raise BadInput(f"{path}: is a whole campaign; name the folder of one of its targets in params.yaml: {folders}")
    if (version := value.get("schema_version")) != manifest.SCHEMA_VERSION:
        raise BadInput(f"{path}: field schema_version is {version!r}, this version reads {manifest.SCHEMA_VERSION}")
    feature_set = value.get("feature_set")
    if feature_set not in FEATURE_SETS:
        raise BadInput(f"{path}: field feature_set is {feature_set!r}, known: {', '.join(FEATURE_SETS)}")
    try:
        facts, services = (manifest.field(value, name, dict) for name in ("platform", "services"))
        listed = manifest.listed(value)
    except BadInput as error:
        raise BadInput(f"{path}: {error}; collect the data set again") from None
    try:
        platform = PlatformLimits.from_manifest(facts)
    except FeatureError as error:
        raise BadInput(f"{path}: {error}") from None
    shards: list[Path] = []
    rows = 0
    for name, count, digest in listed:
        shard = folder / name
        if not shard.is_file():
            shard = folder / "shards" / name
        if not shard.is_file():
            raise BadInput(f"{folder / name}: shard is missing; resume the campaign or fetch the data set again")
        if check_shards and sha256_file(shard) != digest:
            raise BadInput(f"{shard}: shard differs from its SHA-256 in {path}; fetch it again or measure its cases again")
        rows += count
        shards.append(shard)
    if not shards or rows == 0:
        raise BadInput(f"{path}: the data set has no samples; run the campaign to its end")
    cases = cases if isinstance(cases := value.get("cases"), dict) else {}
    # the manifest counts the marks; without any, a journal of millions of lines need not be read
    disturbed = _disturbed_of(folder) if cases.get("disturbed") else frozenset()
    return DataSet(
        folder=folder,
        campaign=str(value.get("campaign", "")),
        feature_set=str(feature_set),
        platform=platform,
        services=dict(services),
        shards=tuple(shards),
        rows=rows,
        cases={str(k): v for k, v in cases.items() if type(v) is int},
        sha256=sha256_file(path),
        axes=Axes.from_manifest(axes, path) if (axes := value.get("axes")) is not None else None,
        disturbed=disturbed,
        made_by=made_by(value),
    )


def made_by(value: Mapping[str, Any]) -> dict[str, str]:
    """Versions of what made the samples, as the manifest names them: `surefootd`, its `commit`; `plant_version` where the server
    was a virtual one (a profile of its platform is among the sources). A plant without a version has that of its program.
    """
    told, sources = value.get("software"), value.get("sources")
    found = {str(name): str(value) for name, value in told.items()} if isinstance(told, dict) else {}
    plant = found.pop("plant", found.get("surefootd"))
    if plant and isinstance(sources, dict) and any(str(name).startswith("platform ") for name in sources):
        found[PLANT] = plant
    return found


def _disturbed_of(folder: Path) -> frozenset[str]:
    """
    Raises:
        BadInput: the journal is missing or cannot be read.
    """
    journal = folder / "journal.jsonl"
    remedy = "it says which cases were disturbed; restore it, or fetch the data set again"
    try:
        return disturbed_cases(journal)
    except FileNotFoundError:
        raise BadInput(f"{journal}: is missing; {remedy}") from None
    except (OSError, Unreadable) as error:
        raise BadInput(f"{journal}: cannot be read ({error}); {remedy}") from None


def neighbour_key(column: str = "neighbours", *, holdings: bool = False) -> pl.Expr:
    """Who the neighbours are and at what load, e.g. "moses@2200+xapian@3600"; empty without neighbours.

    Args:
        holdings: with what they hold, e.g. "moses@2200:4.0c3w". In a full grid it may be left out; where cells were chosen, the
            cells of two draws must not be taken for those of one plane.
    """
    part = pl.element().struct.field
    name = part("service") + "@" + part("rps").round(3).cast(pl.String)
    if holdings:
        name = name + ":" + part("cores").round(6).cast(pl.String) + "c" + part("ways").cast(pl.String) + "w"
    return pl.col(column).list.eval(name).list.sort().list.join("+").fill_null("").alias("nb_key")


def held_by_neighbours(nb_key: str) -> tuple[float, float]:
    """Cores and ways that the neighbours of a plane hold together, from its `neighbour_key` with holdings."""
    held = [part.rsplit(":", 1)[1].removesuffix("w").split("c") for part in nb_key.split("+")] if nb_key else []
    return sum(float(cores) for cores, _ in held), sum(float(ways) for _, ways in held)


def with_keys(frame: pl.LazyFrame, data: DataSet) -> pl.LazyFrame:
    """Samples or cases with the key of their cell; `alloc_ways` is 0 where the host has no cache partitioning."""
    return frame.with_columns(
        neighbour_key(holdings=data.axes is not None),
        pl.col("alloc_ways").fill_null(0.0) if data.platform.ways == 0 else pl.col("alloc_ways"),
        pl.col("alloc_cores").round(6),
    )
