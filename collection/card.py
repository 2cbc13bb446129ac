"""The data card: DIR/data-card.md, what a data set holds, where it comes from, what is missing, and a figure for each target.

Written at the end of a campaign, and again by `surefoot campaign card DIR`. It is made from the data set's own files alone, so
the same data give the same text on any machine, at any time. `verify` tells whether it is of these data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from models.features import FEATURE_SETS, SAMPLE_FEATURES
from pipelines import site, tables
from pipelines.inputs import Unreadable, open_bytes, read_text
from pipelines.io import sha256_bytes, sha256_file, write_bytes
from pipelines.manifest import MANIFEST
from pipelines.pages.markdown import plain, table

from . import dataset, layout, shardfile, standing, worth
from .errors import DataSetError

CARD = "data-card.md"
_RANGES = (*SAMPLE_FEATURES, "latency_p50_ms", "latency_p99_ms", "achieved_rps", "count")
_REASONS = 12
_SOURCES = 40
_STATES = {
    "measured": "the service met or missed its target; how many of its rows are usable stands above",
    "overloaded": "completed less than 99 % of what was offered; samples are kept, their latency grows with the case",
    "client-limited": "the load generator could not keep its schedule; samples are kept and marked",
    "infeasible": "cannot be set up: neighbours leave no room",
    "failed": "something broke; no samples",
    "skipped": "the search did not need it; bounded by what was measured",
}


# how a card begins
_HEAD = b"# Data card: "


def write(folder: Path) -> Path:
    """Write a campaign's data card and its figures.

    Args:
        folder: the campaign's folder.
    Raises:
        DataSetError: it is not a campaign's, a manifest cannot be read, or something else has the card's name.
    """
    path = folder / CARD
    head = _head(path)
    if head not in (b"", _HEAD):
        raise DataSetError(f"{path}: is there and no data card of ours, so it stays as it is. Move it away")
    for name, path, _ in standing.each(folder):
        drawn = _draw(path, name) if _has(path) else ""
        if drawn:
            write_bytes(folder / figure(name), drawn.encode())
        else:
            (folder / figure(name)).unlink(missing_ok=True)
    # last: it is what says that all is there, of these data
    path = folder / CARD
    write_bytes(path, text(folder).encode())
    site.refresh(path)
    return path


def figure(target: str) -> str:
    """Name of a target's figure."""
    return f"data-card-{target}.svg"


def _head(path: Path) -> bytes:
    if not path.is_file():
        return b""
    with open_bytes(path) as file:
        return file.read(len(_HEAD))


def _draw(path: Path, name: str) -> str:
    from . import card_plots

    manifest = dataset.read_manifest(path)
    targets_ms = {n: s.qos_target_ms for n, s in manifest.services.items() if s.qos_target_ms}
    return card_plots.draw(_shards(path, manifest)[0], targets_ms, name, worth.disturbed_cases(path))


def _shards(path: Path, manifest: dataset.Manifest) -> tuple[list[Path], dict[str, str]]:
    """Shards that can be read, and those that are listed and cannot: file and why."""
    sound: list[Path] = []
    bad: dict[str, str] = {}
    for s in manifest.shards:
        own = layout.shard_number(s.file)
        why = "is no shard's name" if own is None else shardfile.unreadable(path / s.file) if s.rows else None
        if why:
            bad[s.file] = why
        elif s.rows:
            sound.append(path / s.file)
    return sound, bad


def stamp(folder: Path) -> str:
    """Digest of all that the card is made from: of every target's manifest, which names every shard's."""
    parts = [f"{name} {sha256_file(path / MANIFEST)}" for name, path, _ in standing.each(folder) if _has(path)]
    return sha256_bytes("\n".join([sha256_file(folder / layout.COPY), *parts]).encode())


def is_current(folder: Path) -> bool:
    """Whether the card is there, and of these data. (Its figures are written before it.)"""
    try:
        return f"\nDigest: {stamp(folder)}\n" in read_text(folder / CARD)
    except (OSError, Unreadable, DataSetError):
        return False


def text(folder: Path) -> str:
    """The card, as Markdown."""
    summary = standing.read_summary(folder)
    lines = [
        f"{_HEAD.decode()}{plain(summary['campaign'])}",
        "",
        "Made by `surefoot campaign card DIR` from the manifests and samples beside it.",
        "",
        f"Digest: {stamp(folder)}",
        f"Campaign file: {layout.COPY}, SHA-256 {summary.get('campaign_file_sha256')}",
        f"Measured: {summary.get('started_utc', 'unknown')} to {summary.get('ended_utc', 'unknown')} (UTC)",
    ]
    for name, path, planned in standing.each(folder):
        lines += ["", f"## {plain(name)}", ""]
        lines += _target(path, planned) if _has(path) else ["Nothing was measured yet."]
        if (folder / figure(name)).exists():
            lines += ["", f"![p99 of each service of {plain(name)} over cores and ways, and over load]({figure(name)})"]
    lines += ["", "## How to check", ""]
    lines += [
        "`surefoot campaign verify DIR` proves hashes, rows and counts, and looks for values out of range, clock jumps, wrong",
        "units, swapped hosts and disturbed cases (docs/campaigns.md, What verify checks).",
        "`surefoot campaign status DIR` shows failed cases.",
        "",
    ]
    return "\n".join(lines)


def _has(path: Path) -> bool:
    return (path / MANIFEST).exists()


def _target(path: Path, planned: int) -> list[str]:
    manifest = dataset.read_manifest(path)
    more: dict[str, Any] = manifest.model_extra or {}
    counts = manifest.cases.by_state()
    sound, bad = _shards(path, manifest)
    found = _scan(sound)
    rows = worth.of(path, manifest)
    return [
        *_what(manifest, more, found, rows),
        "",
        "### Where and with what",
        "",
        *_where(manifest, more, path),
        "",
        "### Cases",
        "",
        *table(["state", "cases", "meaning"], [[s, f"{n:,}", _STATES[s]] for s, n in counts.items() if n]),
        "",
        f"Planned: {planned:,}. " + ("Complete." if manifest.complete else "Incomplete: the campaign was not finished."),
        "",
        "### Ranges",
        "",
        *_ranges(found),
        f"Rows by worth: {standing.usable_in_words(rows)}. Usable rows are valid, and nothing disturbed their cases.",
        "",
        "### Known gaps",
        "",
        *(f"- {gap}" for gap in _damage(bad, found)),
        *(f"- {gap}" for gap in _gaps(manifest, more, counts, found, rows)),
    ]


def _what(manifest: dataset.Manifest, more: dict[str, Any], found: dict[str, Any], rows: dict[str, int]) -> Iterator[str]:
    spec = more.get("spec") if isinstance(more.get("spec"), dict) else {}
    sweep = json.dumps(spec.get("sweep"), sort_keys=True)  # type: ignore[union-attr]
    sampling = json.dumps(spec.get("sampling"), sort_keys=True)  # type: ignore[union-attr]
    part = f", part {manifest.part.get('number')} of {manifest.part.get('of')}" if manifest.part else ""
    yield from table(
        ["what", ""],
        [
            ["campaign", f"{manifest.campaign}{part}, hash {manifest.campaign_hash}"],
            ["strategy", str(more.get("strategy", "unknown"))],
            ["seed", str(spec.get("seed", "unknown"))],  # type: ignore[union-attr]
            ["size", f"{standing.counted(manifest.rows, 'row')} in {standing.counted(len(manifest.shards), 'shard')}"],
            ["usable rows", standing.usable_in_words(rows)],
            ["services", ", ".join(f"{n} (p99 <= {s.qos_target_ms:g} ms)" for n, s in sorted(manifest.services.items()))],
            ["services with samples", ", ".join(found["services"]) or "none"],
            ["sweep", sweep],
            ["sampling", sampling],
        ],
    )


def _where(manifest: dataset.Manifest, more: dict[str, Any], path: Path) -> Iterator[str]:
    p = manifest.platform
    mba = "MBA" if p.mba else "no MBA"
    rows = [
        ["platform", f"{p.name}: {p.cores:g} cores in steps of {p.core_step:g}, {p.ways} ways of {p.mb_per_way:g} MB, {mba}"],
        ["feature set", manifest.feature_set],
        *([f"software: {k}", v] for k, v in sorted(manifest.software.items())),
        *([f"machine: {k}", json.dumps(v) if not isinstance(v, str) else v] for k, v in sorted(manifest.host.items())),
    ]
    for host in dataset.tables(more.get("hosts")):
        facts, part = (dict(t) for name in ("host", "part") for t in [*dataset.tables([host.get(name)]), {}][:1])
        own = {k: v for k, v in facts.items() if manifest.host.get(k) != v}
        rows.append(
            [f"host {host.get('name')}", f"part {part.get('number')} of {part.get('of')}; {json.dumps(own, sort_keys=True)}"]
        )
    sources = sorted(manifest.sources.items())
    rows += [[f"source: {name}", digest] for name, digest in sources[:_SOURCES]]
    if len(sources) > _SOURCES:
        rows.append(["source", f"{len(sources) - _SOURCES} more in manifest.json"])
    yield from table(["where", ""], rows)


def _scan(shards: list[Path]) -> dict[str, Any]:
    """Least, greatest and nulls of each column: out of core, whatever the number of rows."""
    if not shards:
        return {"columns": {}, "services": [], "verdicts": {}, "impossible": 0, "doubled": 0}
    with tables.reading(shards[0], dataset.SHARD_REMEDY):
        return _extents(shardfile.scan(shards))


def _extents(frame: pl.LazyFrame) -> dict[str, Any]:
    known = frame.collect_schema().names()
    names = [n for n in _RANGES if n in known]
    each = [e.alias(f"{n}{mark}") for n in names for e, mark in _extent(n)]
    impossible = shardfile.impossible(known)
    asked = frame.select(impossible.sum()).collect(engine="streaming").item()
    twice = frame.group_by("case_id").agg(n=pl.len() - pl.col("t_ms").n_unique()).select(pl.col("n").sum())
    doubled = twice.collect(engine="streaming").item()
    frame = frame.filter(~impossible)
    seen = frame.select(*each, pl.len().alias("rows")).collect(engine="streaming").row(0, named=True)
    verdicts = (
        frame.group_by("service", "verdict").agg(pl.len().alias("n")).collect(engine="streaming").sort("service", "verdict")
    )
    return {
        "columns": {n: (seen[f"{n}<"], seen[f"{n}>"], seen[f"{n}?"] / max(1, seen["rows"])) for n in names},
        "services": verdicts["service"].unique(maintain_order=True).to_list(),
        "verdicts": dict(verdicts.group_by("verdict").agg(pl.col("n").sum()).sort("verdict").iter_rows()),
        "impossible": int(asked or 0),
        "doubled": int(doubled or 0),
    }


def _extent(name: str) -> list[tuple[pl.Expr, str]]:
    column = pl.col(name)
    return [(column.min(), "<"), (column.max(), ">"), (column.null_count(), "?")]


def _ranges(found: dict[str, Any]) -> Iterator[str]:
    rows = [
        [name, "" if low is None else f"{low:.6g}", "" if high is None else f"{high:.6g}", f"{100 * gap:.1f} %"]
        for name, (low, high, gap) in found["columns"].items()
    ]
    yield from table(["column", "least", "greatest", "null"], rows)
    yield ""
    verdicts = ", ".join(f"{n:,} {verdict}" for verdict, n in found["verdicts"].items())
    yield f"Rows by verdict: {verdicts or 'none'}."


def _damage(bad: dict[str, str], found: dict[str, Any]) -> Iterator[str]:
    """What the rest of the card leaves out, a line each."""
    named = "`surefoot campaign verify` says more"
    for file, why in [*bad.items()][:_REASONS]:
        yield f"{plain(file)}: {plain(why)}; left out here, {named}"
    if len(bad) > _REASONS:
        yield f"{len(bad) - _REASONS:,} more shards that cannot be read"
    if n := found["impossible"]:
        yield f"{standing.counted(n, 'row')} without a name, or with a number that none measures; left out here, {named}"
    if n := found["doubled"]:
        yield f"{standing.counted(n, 'row')} with case and time of another row; {named}"


def _gaps(
    manifest: dataset.Manifest, more: dict[str, Any], counts: dict[str, int], found: dict[str, Any], rows: dict[str, int]
) -> Iterator[str]:
    if lost := {name: n for name, n in rows.items() if name not in ("usable", "server-overloaded") and n}:
        yield f"rows that teach no latency: {', '.join(f'{n:,} {name}' for name, n in lost.items())}"
    ranked = sorted(dataset.reasons(manifest), key=lambda r: (-r[2], *r[:2]))
    for state, reason, cases in [r for r in ranked if r[0] != "measured"][:_REASONS]:
        yield f"{plain(state)}: {cases:,} x {plain(reason)}"
    empty = [name for name, (low, _, _) in found["columns"].items() if low is None]
    if empty:
        yield f"null throughout, the target cannot measure it: {', '.join(empty)}"
    if manifest.feature_set == FEATURE_SETS[1]:
        yield "no performance counters (feature set no-pmu)"
    if manifest.platform.ways == 0:
        yield "the LLC was not partitioned: no ways"
    silent = sorted(set(manifest.services) - set(found["services"]))
    if silent:
        yield f"no samples of {', '.join(silent)} (known as neighbours, or not measured)"
    if more.get("strategy") == "frontier":
        yield "only the cells that decide RCliff and OAA were measured; labels say which bounds hold elsewhere"
    if more.get("strategy") == "random":
        yield "cells were drawn at random; labels are bounds"
    if any(name.startswith("platform ") for name in manifest.sources):
        yield "simulated: a virtual server, not a machine (docs/virtual-server.md); `machine` above is what ran the simulation"
    if not sum(counts.values()) - counts["measured"] and not empty and not lost:
        yield "every planned case was measured, and all rows are usable"
