"""Prove that a data set is whole and sound.

Every shard against the manifest, manifest, journal and plan against each other, and what the rows say (collection/checks).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from pipelines import stdio, tables
from pipelines.io import sha256_file

from . import campaign, card, checks, dataset, mirror, shardfile, spec, standing, worth
from .errors import CampaignError, DataSetError
from .findings import MOST_NAMED, Finding, some
from .standing import quoted

_RESTORE = "restore it from a copy, or remove that target's folder and measure again"


@dataclass
class Result:
    """What was looked at, and what is wrong with it."""

    folder: str
    shards: int = 0
    rows: int = 0
    cases: int = 0
    rows_by_worth: dict[str, int] = field(default_factory=lambda: {"usable": 0})
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the data set may be used: warnings name cases that may be measured again."""
        return not any(f.severity == "error" for f in self.findings)

    def as_json(self) -> dict[str, Any]:
        return {
            "folder": self.folder,
            "ok": self.ok,
            "shards": self.shards,
            "rows": self.rows,
            "usable_rows": self.rows_by_worth["usable"],
            "rows_by_worth": self.rows_by_worth,
            "cases": self.cases,
            "findings": [f.as_json() for f in self.findings],
        }


def verify(folder: Path) -> Result:
    """Check a campaign's folder, or the folder of one of its targets.

    Raises:
        DataSetError: the folder is no data set at all.
    """
    result = Result(str(folder))
    if not folder.is_dir():
        raise DataSetError(f"{folder}: no such folder. Start one: surefoot campaign run CAMPAIGN.toml --out {quoted(folder)}")
    if (folder / dataset.JOURNAL).exists() or (folder / dataset.SHARDS).exists():
        _target(folder, None, result)
        return result
    try:
        targets = list(campaign.each(folder))
    except DataSetError as e:
        if not (folder / campaign.COPY).exists():
            raise
        manifest = folder / dataset.MANIFEST
        remedy = f"rebuild it: surefoot campaign run {quoted(folder / campaign.COPY)} --out {quoted(folder)}"
        result.findings.append(Finding(str(manifest), _without(e, manifest), remedy))
        targets = [(p.name, p, -1) for p in sorted(folder.iterdir()) if (p / dataset.MANIFEST).exists()]
    servers = _servers(folder)
    running = campaign.is_running(folder)
    if running:
        result.findings.append(Finding(str(folder), "a campaign run works here now", "wait for its end, then verify again"))
    own = {campaign.COPY, dataset.MANIFEST, campaign.PROGRESS, mirror.HOSTS, card.CARD, ".lock"}
    known = {path.name for _, path, _ in targets} | {card.figure(name) for name, _, _ in targets} | own
    if running:  # it is writing them
        known |= {path.name for path in campaign.temporaries(folder)}
    for stray in sorted(p for p in folder.iterdir() if p.name not in known):
        result.findings.append(Finding(str(stray), "belongs to nothing in this data set", "remove it"))
    summed_up = _summed_up(folder)
    for name, path, planned in targets:
        before = len(result.findings)
        found = _target(path, planned if planned >= 0 else None, result)
        # a shard that is lost or another now is told already, and changes the count
        sound = not running and len(result.findings) == before
        result.findings.extend(_as_summed_up(folder, path, summed_up.get(name), found, sound))
        result.findings.extend(_another_platform(folder, path, servers.get(name, "")))
        if (path / dataset.MANIFEST).exists():
            again = f"surefoot campaign run {quoted(folder / campaign.COPY)} --inventory INV --out {quoted(folder)}"
            remedy = f"remove the file and fetch it again: {again}"
            result.findings.extend(Finding(str(file), what, remedy) for file, what in mirror.differences(folder, name))
    # what else is found changes the data, and the card with them
    if not result.findings and (folder / card.CARD).exists() and not card.is_current(folder):
        what, remedy = "is of other data than are here", f"write it anew: surefoot campaign card {quoted(folder)}"
        result.findings.append(Finding(str(folder / card.CARD), what, remedy, "warning"))
    return result


def _summed_up(folder: Path) -> dict[str, standing.Worth | None]:
    """What the campaign's manifest says of its targets' rows; nothing if that cannot be read, which is told already."""
    try:
        return standing.summed_up(standing.read_summary(folder))
    except DataSetError:
        return {}


def _as_summed_up(
    folder: Path, path: Path, kept: standing.Worth | None, found: dict[str, int] | None, sound: bool
) -> Iterator[Finding]:
    """Where the campaign's manifest counts a target's rows otherwise. What it counted before the data changed is only late."""
    if kept is None or found is None or kept.rows_by_worth == found:
        return
    late = kept.of != standing.digest(path)
    if not sound and (late or "unknown" in found):
        return
    told, now = (standing.usable_in_words(c) for c in (kept.rows_by_worth, found))
    what = f"counts {told} of {path.name}, {'before its data changed' if late else 'and its rows say otherwise'}: {now}"
    remedy = f"count them anew: surefoot campaign run {quoted(folder / campaign.COPY)} --out {quoted(folder)}"
    yield Finding(str(folder / dataset.MANIFEST), what, remedy, "warning" if late else "error")


def _servers(folder: Path) -> dict[str, str]:
    """What each target measures, by the campaign's file; nothing if that cannot be read."""
    try:
        return {t.name: t.server for t in spec.load(folder / campaign.COPY).targets}
    except CampaignError:
        return {}


def _another_platform(folder: Path, path: Path, server: str) -> Iterator[Finding]:
    """A virtual target's folder whose manifest is of another platform."""
    kind, _, want = server.partition(":")
    if kind != "virtual" or not (path / dataset.MANIFEST).exists():
        return
    try:
        found = dataset.read_manifest(path).platform.name
    except DataSetError:
        return  # told already
    if found != want:
        what = f"platform.name is {found}, {folder / campaign.COPY} says that {path.name} measures {want}: targets are swapped"
        yield Finding(str(path / dataset.MANIFEST), what, "put each target's folder where it belongs, or restore it from a copy")


def _without(e: Exception, path: Path) -> str:
    return str(e).removeprefix(f"{path}: ").split("; ")[0]


def _target(folder: Path, planned: int | None, result: Result) -> dict[str, int] | None:
    """Check one target; what its rows are worth, where its manifest can be read."""
    if (folder.parent / campaign.COPY).exists():
        again = f"surefoot campaign run {quoted(folder.parent / campaign.COPY)} --out {quoted(folder.parent)}"
    else:  # made by `surefootd sweep` alone
        again = f"surefootd sweep CAMPAIGN.toml --server SERVER --out {quoted(folder)} --resume"
    if not (folder / dataset.MANIFEST).exists():
        result.findings.append(
            Finding(str(folder / dataset.MANIFEST), "is missing", _RESTORE if any(folder.glob("*")) else f"go on: {again}")
        )
        return None
    try:
        manifest = dataset.read_manifest(folder)
    except DataSetError as e:
        # the journal and the shards cannot be judged without it
        result.findings.append(Finding(str(folder / dataset.MANIFEST), _without(e, folder / dataset.MANIFEST), _RESTORE))
        return None
    journal = dataset.read_journal(folder)
    before = len(result.findings)
    result.findings.extend(_journal(folder, journal, manifest, planned, again))
    result.findings.extend(_Rows(folder, manifest, journal, again).check())
    result.cases += journal.cases
    result.shards += len(manifest.shards)
    result.rows += manifest.rows
    found = worth.of(folder, manifest)
    for name, rows in found.items():
        result.rows_by_worth[name] = result.rows_by_worth.get(name, 0) + rows
    sound = all(f.severity != "error" for f in result.findings[before:])
    result.findings.extend(_worth(folder, manifest, found, again, sound))
    return found


def _worth(folder: Path, manifest: dataset.Manifest, found: dict[str, int], again: str, sound: bool) -> Iterator[Finding]:
    """A data set that teaches nothing; marks, and usable rows, that the manifest counts otherwise.

    Args:
        sound: nothing else is wrong with it. Rows that are lost or damaged are named as that, not as a wrong count.
    """
    if manifest.rows and not found["usable"]:
        what = f"{standing.usable_in_words(found)}: nothing can be learnt from it"
        remedy = f"measure it again on a quiet host, or where the loads can be met: remove {folder}, then {again}"
        yield Finding(str(folder), what, remedy, "warning")
    marked = len(worth.disturbed_cases(folder))
    if manifest.complete and marked != manifest.cases.disturbed:
        counts = f"{folder / dataset.MANIFEST} counts {manifest.cases.disturbed:,}"
        what = f"{standing.counted(marked, 'case')} marked as disturbed, {counts}"
        yield Finding(str(folder / dataset.JOURNAL), what, f"go on, which counts again: {again}")
    told = manifest.cases.usable_rows
    counted = sound and manifest.complete and not manifest.cases.uncounted_rows and "unknown" not in found
    if told is not None and counted and told != found["usable"]:
        what = f"cases.usable_rows is {told:,}, of its rows {found['usable']:,} are usable"
        yield Finding(str(folder / dataset.MANIFEST), what, _RESTORE)


def _journal(
    folder: Path, journal: dataset.Journal, manifest: dataset.Manifest, planned: int | None, again: str
) -> Iterator[Finding]:
    file = str(folder / dataset.JOURNAL)
    for number, cause in journal.damage[:MOST_NAMED]:
        yield Finding(f"{file}:{number}", f"is no journal line: {cause}", _RESTORE)
    if journal.torn:
        yield Finding(file, "the last line is cut off (a crash while writing)", f"go on, which trims it: {again}")
    twice = journal.lines["case_id"].filter(journal.lines["case_id"].is_duplicated()).unique(maintain_order=True)
    if twice.len():
        yield Finding(file, f"{some(twice.to_list(), 'case')}: more than once", _RESTORE)
    cases = manifest.cases
    if planned is not None and planned != cases.planned:
        what = f"cases.planned is {cases.planned:,}, {folder.parent / dataset.MANIFEST} says {planned:,}"
        yield Finding(str(folder / dataset.MANIFEST), what, f"bring them together: {again}")
    if not manifest.complete:
        # a stopped run's journal may be ahead of its manifest: that is not wrong, only unfinished
        what = f"incomplete: {journal.cases:,} of {cases.planned:,} cases are done"
        yield Finding(str(folder / dataset.MANIFEST), what, f"go on: {again}", unfinished=True)
        return
    found = journal.by_state()
    told = {s: getattr(cases, s.replace("-", "_")) for s in dataset.STATES}
    wrong = [f"{s} {found[s]:,} in the journal, {told[s]:,} in the manifest" for s in dataset.STATES if found[s] != told[s]]
    if wrong:
        yield Finding(file, f"journal and manifest do not add up: {'; '.join(wrong)}", f"go on, which counts again: {again}")
    if sum(told.values()) != cases.planned:
        what = f"complete is true, yet {sum(told.values()):,} of {cases.planned:,} planned cases are done"
        yield Finding(str(folder / dataset.MANIFEST), what, f"measure what is missing: {again}")


class _Rows:
    """The shards of one target: each against the manifest, all against the journal."""

    def __init__(self, folder: Path, manifest: dataset.Manifest, journal: dataset.Journal, again: str) -> None:
        self.folder = folder
        self.manifest = manifest
        self.again = again
        self.lines = journal.lines.filter(pl.col("rows") > 0)
        parts = self.lines.partition_by("shard", as_dict=True)
        self.expected = {dataset.shard_file(int(shard)): part.select("case_id", "rows") for (shard,), part in parts.items()}
        self.nothing = self.lines.select("case_id", "rows").clear()
        self.hosts = mirror.owners(folder.parent, folder.name)
        self.checks = checks.Checks(manifest, {file: share.host for file, share in self.hosts.items()})

    def check(self) -> Iterator[Finding]:
        manifest = str(self.folder / dataset.MANIFEST)
        names = {s.file for s in self.manifest.shards}
        if len(names) != len(self.manifest.shards):
            yield Finding(manifest, "shards: a file is listed twice", _RESTORE)
        folder = self.folder / dataset.SHARDS
        for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
            name = path.relative_to(self.folder).as_posix()
            # without `complete`, the journal may vouch for a shard that the manifest does not list yet
            if path.is_file() and name not in names and (self.manifest.complete or name not in self.expected):
                yield Finding(str(path), "is in no manifest", "remove it")
        for name in sorted(set(self.expected) - names) if self.manifest.complete else []:
            yield Finding(
                manifest, f"shards: {name} is missing; the journal has {self.expected[name].height} cases in it", _RESTORE
            )
        for shard in self.manifest.shards:
            yield from self._shard(shard)
        yield from (self._finding(fault) for fault in self.checks.end())

    def _finding(self, fault: checks.Fault) -> Finding:
        path = self.folder / fault.file
        share = self.hosts.get(fault.file)
        if share is None:
            measure = f"rm {quoted(path)} && {self.again}"
        else:
            own = self.folder.parent / mirror.HOSTS / share.host
            measure = (
                f"on {share.host}, in the job's folder: rm ended.json out/{dataset.shard_file(share.own(fault.file))}; "
                f"here: rm -r {quoted(own)} && {self.again}"
            )
        if fault.severity == "warning":
            remedy = f"measure the shard's cases again on a quiet host, or leave these cases out (--json lists them): {measure}"
        else:
            remedy = f"mend what made it so, then measure the shard's cases again: {measure}"
        return Finding(str(path), fault.what, remedy, fault.severity, fault.cases)

    def _shard(self, shard: dataset.Shard) -> Iterator[Finding]:
        path = self.folder / shard.file
        if Path(shard.file).is_absolute() or ".." in Path(shard.file).parts:
            yield Finding(str(self.folder / dataset.MANIFEST), f"shards: {shard.file!r} leads out of the folder", _RESTORE)
            return
        if not path.is_file():
            yield Finding(str(path), f"is missing ({shard.rows:,} rows)", f"measure it again: {self.again}")
            return
        # a shard that is gone is measured again, a bad one is not overwritten
        remedy = f"restore it from a copy, or measure it again: rm {quoted(path)} && {self.again}"
        digest = sha256_file(path)
        wrong = [] if digest == shard.sha256 else [f"SHA-256 is {digest[:16]}…, the manifest says {shard.sha256[:16]}…"]
        try:
            with stdio.Quiet():
                schema = pl.read_parquet_schema(path)
                frame = pl.read_parquet(path, columns=["case_id"]) if "case_id" in schema else None
        except (Exception, *tables.DAMAGED) as e:  # whatever its Parquet reader raises means: not readable
            reason = str(e).splitlines()[0] if str(e) else type(e).__name__
            yield Finding(str(path), "; ".join([*wrong, f"truncated or damaged, not readable as Parquet: {reason}"]), remedy)
            return
        wrong += shardfile.differences(schema)
        if frame is not None:
            if frame.height != shard.rows:
                wrong.append(f"has {frame.height:,} rows, the manifest says {shard.rows:,}")
            nameless = frame["case_id"].null_count()
            if nameless:
                wrong.append(checks.rows.null("case_id", nameless, frame.height))
            wrong += self._cases(shard.file, frame.drop_nulls().group_by("case_id").agg(pl.len().alias("here")))
        if wrong:
            yield Finding(str(path), "; ".join(wrong), remedy)
        else:
            yield from (self._finding(fault) for fault in self.checks.shard(shard.file, path))

    def _cases(self, file: str, rows: pl.DataFrame) -> Iterator[str]:
        """Differences between the rows of each case `here` and what the journal says of this file."""
        both = rows.join(self.expected.get(file, self.nothing), on="case_id", how="full", coalesce=True)
        different = both.filter(pl.col("here").ne_missing(pl.col("rows"))).sort("case_id")
        if different.is_empty():
            return
        stray = different.filter(pl.col("rows").is_null()).select("case_id")
        homes = dict(stray.join(self.lines, on="case_id").select("case_id", "shard").iter_rows())
        elsewhere = [c for c in stray["case_id"] if c in homes]
        if elsewhere:
            yield f"{some(elsewhere, 'case')}: in {dataset.shard_file(homes[elsewhere[0]])} too"
        unknown = [c for c in stray["case_id"] if c not in homes]
        if unknown:
            yield f"{some(unknown, 'case')}: not in the journal for this shard"
        lost = different.filter(pl.col("here").is_null())["case_id"].to_list()
        if lost:
            yield f"{some(lost, 'case')}: in the journal and not here"
        unequal = different.drop_nulls()
        if unequal.height:
            here, told = unequal.select("here", "rows").row(0)
            yield f"{some(unequal['case_id'].to_list(), 'case')}: {here} rows, the journal says {told}"
