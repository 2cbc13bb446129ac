"""What was fetched of a campaign's hosts, and the one data set that it makes.

DIR/hosts/hosts.json            who measures which part, and the name of the job on the hosts
DIR/hosts/<host>/manifest.json  the host's own, as last fetched
DIR/hosts/<host>/journal.jsonl  the host's own, as last fetched
DIR/<group>/                    the data set: shards of all hosts, one journal, one manifest (docs/sweep-output.md)

DIR/hosts/.aside/<host>/        a part that could not be used, and why.txt; it is fetched anew

What a host sends is checked as a whole (collection/intake.py) before any of it enters. Shards enter once their SHA-256 is that of
their host's manifest. Shard n of part i of N is shard n x N + i - 1 of
the data set, so numbers never move, whatever comes first. The data set's journal holds the lines of the shards that are
there and of those that have no rows; so it is whole at any moment, and a merge can be done again from what is here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import polars as pl

from pipelines.inputs import Unreadable, message, read_bytes
from pipelines.io import fsync_folder, leftovers, make_folder, sha256_file, write_bytes, write_json
from pipelines.manifest import MARKS

from . import dataset, intake, layout, shardfile, standing
from .errors import CampaignError, DataSetError, HostFailed
from .layout import HOSTS, HOSTS_FILE

ASIDE = ".aside"
_TEMPORARY = ".tmp"
# of the reasons of a data set's cases, most frequent first; the rest are told as one
_MOST_REASONS = 1000


@dataclass(frozen=True)
class Share:
    """A host's part of a campaign's cases. number: from 1, in the inventory's order of the first run."""

    host: str
    number: int
    of: int

    @property
    def part(self) -> str:
        """As `surefootd sweep --part` takes it."""
        return f"{self.number}/{self.of}"

    def shard(self, own: int) -> int:
        """Number in the data set of the host's shard number `own`."""
        return layout.common_number(own, self.number, self.of)

    def own(self, file: str) -> int:
        """The host's own number of one of its shards, by the data set's file: inverse of `shard`."""
        number = layout.shard_number(file)
        assert number is not None  # verify has looked
        return number // self.of


def shares(hosts: list[str]) -> list[Share]:
    """Share a campaign out over hosts: part i of N goes to the i-th."""
    return [Share(host, number, len(hosts)) for number, host in enumerate(hosts, start=1)]


@dataclass(frozen=True)
class Split:
    """Who measures what, as DIR/hosts/hosts.json keeps it. job: the folder of the campaign on each host."""

    job: str
    group: str
    shares: list[Share]

    def write(self, out: Path) -> None:
        value = {
            "schema_version": dataset.SCHEMA_VERSION,
            "job": self.job,
            "group": self.group,
            "hosts": [s.host for s in self.shares],
        }
        write_json(out / HOSTS / HOSTS_FILE, value)

    @classmethod
    def read(cls, out: Path) -> Split | None:
        """None if there is none.

        Raises:
            DataSetError: it is damaged.
        """
        told = standing.read_split(out)
        return cls(told[0], told[1], shares(told[2])) if told else None


def temporaries(out: Path, group: str) -> list[Path]:
    """Half-written files of the hosts' common part and of the data set, which a killed run left behind."""
    files = [out / HOSTS / HOSTS_FILE, out / group / dataset.MANIFEST, out / group / dataset.JOURNAL]
    shards = (out / group / dataset.SHARDS).glob(f".part-*{_TEMPORARY}")
    return [*(left for path in files for left in leftovers(path)), *sorted(shards)]


class Mirror:
    """One host's side: its manifest and journal here, its shards in the data set."""

    def __init__(self, out: Path, group: str, share: Share) -> None:
        self.share = share
        self.folder = out / HOSTS / share.host
        self.data = out / group

    def manifest(self) -> dataset.Manifest | None:
        """The host's manifest as last fetched."""
        return dataset.read_manifest(self.folder) if (self.folder / dataset.MANIFEST).exists() else None

    def place(self, file: str) -> Path:
        """Where the data set has a shard of the host.

        Raises:
            HostFailed: the host names it otherwise than shards are named.
        """
        own = layout.shard_number(file)
        if own is None:
            raise HostFailed(
                f"{self.share.host}: {file!r} is no shard's name. Is another program writing into the job's folder there?"
            )
        return self.data / dataset.shard_file(self.share.shard(own))

    def held(self) -> dict[str, str]:
        """Shards of the host that are here: name on the host and SHA-256."""
        manifest = self.manifest()
        return {s.file: s.sha256 for s in manifest.shards if self.place(s.file).exists()} if manifest else {}

    def have(self) -> dict[str, Any]:
        """What the host is told that we hold (`surefoot-sweep pack`)."""
        journal = _bytes(self.folder / dataset.JOURNAL)
        return {
            "shards": self.held(),
            "journal_bytes": len(journal),
            "journal_sha256": hashlib.sha256(journal).hexdigest(),
            "manifest_sha256": hashlib.sha256(_bytes(self.folder / dataset.MANIFEST)).hexdigest(),
        }

    def repair(self) -> list[Path]:
        """Remove what a kill left half-done, and shards that are not what the manifest says; they are fetched again."""
        for path in [p for name in (dataset.MANIFEST, dataset.JOURNAL) for p in leftovers(self.folder / name)]:
            path.unlink(missing_ok=True)
        bad = [self.place(file) for file, sha256 in self.held().items() if sha256_file(self.place(file)) != sha256]
        for path in bad:
            path.unlink()
        return bad

    @property
    def complete(self) -> bool:
        """Whether the host is done and all of it is here."""
        manifest = self.manifest()
        return manifest is not None and manifest.complete and len(self.held()) == len(manifest.shards)

    def take(self, tar: Path, journal_from: int, planned: int | None = None) -> int:
        """Take in what `surefoot-sweep pack` made: all of it, or nothing. Killed half-way, the same is fetched again.

        Args:
            tar: the tar.
            journal_from: where its rest of the journal begins.
            planned: cases of the whole campaign, where that is known.
        Returns:
            Shards that are new here.
        Raises:
            HostFailed: it is not what a host of this campaign and part may send; nothing of it is kept.
        """
        # beside the data set, so that shards are renamed into it
        staging = self.data.parent / HOSTS / f".fetch-unpacked-{self.share.number}"
        shutil.rmtree(staging, ignore_errors=True)
        make_folder(staging)
        try:
            with tar.open("rb") as file:
                return self._take(file, journal_from, planned, staging)
        except FileNotFoundError as e:
            raise HostFailed(f"{self.share.host}: says that it has packed, and there is nothing to fetch") from e
        except intake.Refused as e:
            raise HostFailed(f"{self.share.host}: {e}") from e
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _take(self, file: IO[bytes], journal_from: int, planned: int | None, staging: Path) -> int:
        first, rest, *sent = intake.members(file)
        manifest_bytes, before = first.read(file), _bytes(self.folder / dataset.JOURNAL)
        manifest = intake.manifest(manifest_bytes, self.share.number, self.share.of)
        if planned is not None and manifest.cases.planned > planned:
            raise intake.Refused(f"plans {manifest.cases.planned} cases of a campaign of {planned}")
        self._check_goes_on(manifest)
        if journal_from not in (0, len(before)) or journal_from + rest.size > intake.MOST_JOURNAL_BYTES:
            raise intake.Refused(f"its journal's rest begins at byte {journal_from} of {len(before)} that are here")
        journal = before[:journal_from] + rest.read(file)
        told = intake.journal(journal, manifest)
        listed = {s.file: s for s in manifest.shards}
        places: list[tuple[Path, Path]] = []
        for member in sent:
            if member.name not in listed:
                raise intake.Refused(f"sent {message(member.name)[:100]!r}, which its manifest does not list")
            own = layout.shard_number(member.name) or 0
            unpacked = staging / str(own)
            self._check_shard(member.copy(file, unpacked), unpacked, listed[member.name], told.rows.get(own, {}))
            places.append((unpacked, self.place(member.name)))
        make_folder(self.data / dataset.SHARDS)
        for unpacked, place in places:
            os.replace(unpacked, place)
        fsync_folder(self.data / dataset.SHARDS)
        write_bytes(self.folder / dataset.JOURNAL, journal)
        write_bytes(self.folder / dataset.MANIFEST, manifest_bytes)
        return len(places)

    def _check_goes_on(self, manifest: dataset.Manifest) -> None:
        """
        Raises:
            Refused: what the host has now is not what was fetched of it, and more.
        """
        before = self.manifest()
        again = f"If it was set up anew, remove {self.folder}: then its part is fetched from the beginning"
        if before and before.campaign_hash != manifest.campaign_hash:
            raise intake.Refused(f"its campaign is not the one that was fetched before. {again}")
        told = {s.file: s.sha256 for s in manifest.shards}
        for file, sha256 in self.held().items():
            if told.get(file) != sha256:
                raise intake.Refused(f"no longer has {file} as it was fetched. {again}")

    @staticmethod
    def _check_shard(sha256: str, path: Path, listed: dataset.Shard, cases: dict[str, int]) -> None:
        """
        Raises:
            Refused: it is not the shard that manifest and journal speak of.
        """
        remedy = "The shard is damaged there: remove it on the host, its cases are then measured again"
        if sha256 != listed.sha256:
            raise intake.Refused(f"{listed.file}: SHA-256 is {sha256[:16]}…, its manifest says {listed.sha256[:16]}…. {remedy}")
        if why := shardfile.wrong(path, listed.rows, cases):
            raise intake.Refused(f"{listed.file}: {message(why)}. {remedy}")

    def damage(self) -> str | None:
        """Why what is here of the host cannot be used; None if it can, or if nothing is here."""
        try:
            journal = _bytes(self.folder / dataset.JOURNAL)
            if not (self.folder / dataset.MANIFEST).exists():
                return None  # a run was killed while it took the host's first part, which is fetched again
            intake.journal(journal, intake.manifest(_bytes(self.folder / dataset.MANIFEST), self.share.number, self.share.of))
        except (intake.Refused, DataSetError) as e:
            return str(e)
        return None

    def set_aside(self, why: str) -> str:
        """Take what is here of the host out of the data set, so that its part is fetched anew. One earlier part is kept so.

        Returns:
            Why, and where it is now, in one line.
        """
        aside = self.data.parent / HOSTS / ASIDE / self.share.host
        if (self.folder / dataset.MANIFEST).exists():  # else a run was killed here
            shutil.rmtree(aside, ignore_errors=True)
        make_folder(aside / dataset.SHARDS)
        write_bytes(aside / "why.txt", f"{why}\n".encode())
        # the manifest goes first: what is left of a host without one is replaced when its part comes again
        for path in (self.folder / dataset.MANIFEST, self.folder / dataset.JOURNAL, *self._shards_here()):
            if path.exists():
                os.replace(path, aside / (f"{dataset.SHARDS}/{path.name}" if path.parent.name == dataset.SHARDS else path.name))
        return f"{message(why)}. What was here of it is in {aside} now, and its part is fetched anew by the same command"

    def _shards_here(self) -> Iterator[Path]:
        """Shards of the host in the data set, by their numbers."""
        for path in sorted((self.data / dataset.SHARDS).glob("*.parquet")):
            number = layout.shard_number(f"{dataset.SHARDS}/{path.name}")
            if number is not None and number % self.share.of == self.share.number - 1:
                yield path


def _bytes(path: Path) -> bytes:
    try:
        return read_bytes(path, intake.MOST_JOURNAL_BYTES)
    except FileNotFoundError:
        return b""
    except Unreadable as e:
        raise DataSetError(f"{path}: cannot be read: {e}; remove its folder: it is then fetched again") from e


def damaged(out: Path, split: Split) -> dict[str, str]:
    """Set aside what is here of hosts and cannot be used: by host, why."""
    found = {}
    for share in split.shares:
        mirror = Mirror(out, split.group, share)
        if why := mirror.damage():
            found[share.host] = mirror.set_aside(why)
    return found


def strangers(out: Path, split: Split) -> dict[str, str]:
    """Set aside the parts of hosts that cannot be of one data set with the others: by host, why.

    Most hosts are believed about what the campaign is, and about who measured a case; of as many, those with the lower parts.
    """
    mirrors = {s.host: Mirror(out, split.group, s) for s in split.shares}
    manifests = {host: manifest for host, m in mirrors.items() if (manifest := m.manifest()) is not None}
    why = _other_campaigns(manifests)
    journals = {host: dataset.read_journal(mirrors[host].folder) for host in manifests if host not in why}
    why |= _cases_of_others({host: journal.lines["case_id"] for host, journal in journals.items()})
    return {host: mirrors[host].set_aside(text) for host, text in why.items()}


_IN_COMMON = ("platform", "feature_set", "sources", "services", "spec", "axes", "strategy", "campaign", "campaign_hash")


def _other_campaigns(manifests: Mapping[str, dataset.Manifest]) -> dict[str, str]:
    """Hosts whose manifest is of another campaign or platform than that of most."""
    said = {host: m.model_dump(mode="json") for host, m in manifests.items()}
    kinds: dict[str, list[str]] = {}
    for host, value in said.items():
        kinds.setdefault(json.dumps({n: value.get(n) for n in _IN_COMMON}, sort_keys=True), []).append(host)
    if len(kinds) < 2:
        return {}
    believed = max(kinds.values(), key=len)  # the first of equals
    found = {}
    for host in (h for h in said if h not in believed):
        what = next(n for n in _IN_COMMON if said[host].get(n) != said[believed[0]].get(n))
        a, b = (_short(said[h].get(what)) for h in (believed[0], host))
        found[host] = (
            f"differs from {believed[0]} in {what} ({a}; {b}). Hosts that share a campaign are of one platform: "
            "give each kind a group and a campaign of its own"
        )
    return found


def _cases_of_others(cases: Mapping[str, pl.Series]) -> dict[str, str]:
    """Hosts that say they measured cases which others have."""
    found: dict[str, str] = {}
    order = list(cases)
    while True:
        left = [pl.DataFrame({"case": ids, "host": [h] * len(ids)}) for h, ids in cases.items() if h not in found]
        frame = pl.concat(left) if left else None
        if frame is None or not (twice := frame.filter(pl.col("case").is_duplicated())).height:
            return found
        by_case = twice.join(twice, on="case", suffix="_other").filter(pl.col("host") != pl.col("host_other"))
        if by_case.is_empty():
            return found
        others = by_case.group_by("host").agg(pl.col("host_other").n_unique().alias("hosts"), pl.col("host_other").min())
        worst = max(others.iter_rows(), key=lambda row: (row[1], order.index(row[0])))
        of = by_case.filter(pl.col("host") == worst[0])
        found[worst[0]] = (
            f"has {standing.counted(of['case'].n_unique(), 'case')} that {of['host_other'][0]} has, e.g. {of['case'][0]}: "
            "they were shared out, each to one host"
        )


def merge(out: Path, split: Split, planned: int | None) -> dataset.Manifest | None:
    """Write the data set's journal and manifest from what is here of the hosts.

    Args:
        planned: cases of the whole campaign; None: the sum of what the hosts plan, known once each has said so.
    Returns:
        The data set's manifest; None while no host has one.
    Raises:
        CampaignError: the hosts are not of one platform.
    """
    mirrors = [Mirror(out, split.group, s) for s in split.shares]
    manifests = {m.share.host: manifest for m in mirrors if (manifest := m.manifest()) is not None}
    if not manifests:
        # what there was is set aside
        for name in (dataset.MANIFEST, dataset.JOURNAL):
            (out / split.group / name).unlink(missing_ok=True)
        return None
    _one_platform(split.group, manifests)
    lines: list[bytes] = []
    counts = _Counts()
    shards: list[dict[str, Any]] = []
    for mirror in mirrors:
        if mirror.share.host in manifests:
            held = mirror.held()
            by_file = {s.file: s for s in manifests[mirror.share.host].shards}
            for file, sha256 in held.items():
                name = mirror.place(file).relative_to(mirror.data).as_posix()
                shards.append({"file": name, "rows": by_file[file].rows, "sha256": sha256})
            for line, text in _lines(mirror, set(held)):
                counts.add(line)
                lines.append(text)
    data = out / split.group
    first = next(iter(manifests.values()))
    whole = len(manifests) == len(mirrors) and all(m.complete for m in mirrors)
    total = sum(m.cases.planned for m in manifests.values()) if planned is None else planned
    value = first.model_dump(mode="json", exclude={"part", "max_loads"})
    value |= {
        "complete": whole,
        "host": _in_common([m.host for m in manifests.values()]),
        "journal_bytes": sum(len(line) + 1 for line in lines),
        "shards": sorted(shards, key=lambda s: str(s["file"])),
        "cases": {"planned": total, **counts.as_json(), "reasons": _reasons(list(manifests.values()))},
        "hosts": [_told(m.share, manifests.get(m.share.host)) for m in mirrors],
    }
    make_folder(data / dataset.SHARDS)
    write_bytes(data / dataset.JOURNAL, b"".join(line + b"\n" for line in lines))
    write_bytes(data / dataset.MANIFEST, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())
    return dataset.read_manifest(data)


def _told(share: Share, manifest: dataset.Manifest | None) -> dict[str, Any]:
    """One host in the data set's manifest."""
    value: dict[str, Any] = {"name": share.host, "part": {"number": share.number, "of": share.of}}
    if manifest:
        value |= {"host": manifest.host, "software": manifest.software, "cases_planned": manifest.cases.planned}
        if manifest.max_loads:
            value["max_loads"] = [m.model_dump(mode="json") for m in manifest.max_loads]
    return value


def _lines(mirror: Mirror, held: set[str]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The host's journal lines of shards that are here or have no rows, with the data set's numbers of shards."""
    path = mirror.folder / dataset.JOURNAL
    try:
        own = [intake.line(line) for line in _bytes(path).split(b"\n")[:-1]]
    except Unreadable as e:
        raise DataSetError(f"{path}: a line cannot be used: {e}; remove its folder: it is then fetched again") from e
    with_rows = {line["shard"] for line in own if line["rows"] > 0}
    for line in own:
        if line["shard"] not in with_rows or dataset.shard_file(line["shard"]) in held:
            line["shard"] = mirror.share.shard(line["shard"])
            yield line, json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode()


class _Counts:
    """Cases of a data set's journal by state, lines by mark, and usable rows."""

    def __init__(self) -> None:
        self.by_state = dict.fromkeys(dataset.STATES, 0)
        self.marks = dict.fromkeys(MARKS, 0)
        self.usable_rows = self.uncounted_rows = 0

    def add(self, line: dict[str, Any]) -> None:
        self.by_state[line["state"]] += line.get("cases", 1)
        for mark in MARKS:
            self.marks[mark] += mark in line
        if line.get("usable") is None:
            self.uncounted_rows += line["rows"]
        else:
            self.usable_rows += line["usable"]

    def as_json(self) -> dict[str, int]:
        more = {**self.marks, "uncounted_rows": self.uncounted_rows}
        states = {s.replace("-", "_"): n for s, n in self.by_state.items()}
        return {**states, "usable_rows": self.usable_rows, **{name: n for name, n in more.items() if n}}


def _reasons(manifests: list[dataset.Manifest]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], int] = {}
    for manifest in manifests:
        for state, reason, cases in dataset.reasons(manifest):
            found[state, reason] = found.get((state, reason), 0) + cases
    ranked = sorted(found.items(), key=lambda item: -item[1])  # of equals the first stays first
    rest: dict[tuple[str, str], int] = {}
    for (state, _), n in ranked[_MOST_REASONS:]:
        rest[state, "reasons that are rarer"] = rest.get((state, "reasons that are rarer"), 0) + n
    frequent = {key for key, _ in ranked[:_MOST_REASONS]}
    kept = [*(item for item in found.items() if item[0] in frequent), *rest.items()]
    return [{"state": state, "reason": reason, "cases": n} for (state, reason), n in kept]


def _in_common(facts: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {k: v for k, v in facts[0].items() if all(f.get(k) == v for f in facts)}


def _one_platform(group: str, manifests: Mapping[str, dataset.Manifest]) -> None:
    (first, one), *others = manifests.items()
    for host, other in others:
        if other.campaign_hash == one.campaign_hash:
            continue
        for what in ("platform", "feature_set", "sources"):
            a, b = getattr(one, what), getattr(other, what)
            if a != b:
                break
        else:
            what, a, b = "campaign", one.campaign_hash[:16], other.campaign_hash[:16]
        raise CampaignError(
            f"targets.hosts: {group}: {first} and {host} differ in {what} ({_short(a)}; {_short(b)}). "
            "Hosts that share a campaign are of one platform: give each kind a group and a campaign of its own"
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 200 else text[:200] + "…"


def owners(out: Path, group: str) -> dict[str, Share]:
    """Who measured each shard that the data set's manifest lists; nothing if it is not of several hosts."""
    split = Split.read(out)
    if split is None or split.group != group:
        return {}
    files = [s.file for s in dataset.read_manifest(out / group).shards]
    numbers = {file: number for file in files if (number := layout.shard_number(file)) is not None}
    return {file: split.shares[number % len(split.shares)] for file, number in numbers.items()}


def differences(out: Path, group: str) -> Iterator[tuple[Path, str]]:
    """Files of the data set that are not what their host's manifest says: a shard of another host, a host's folder swapped."""
    split = Split.read(out)
    if split is None or split.group != group:
        return
    manifest = dataset.read_manifest(out / group)
    told = {s.file: s.sha256 for s in manifest.shards}
    for share in split.shares:
        mirror = Mirror(out, group, share)
        own = mirror.manifest()
        if own is None:
            continue
        where = mirror.folder / dataset.MANIFEST
        if own.part != {"number": share.number, "of": share.of}:
            yield where, f"is of part {own.part}, {share.host} measured part {share.part}: hosts are swapped"
            continue
        for shard in own.shards:
            name = mirror.place(shard.file).relative_to(out / group).as_posix()
            if name in told and told[name] != shard.sha256:
                yield out / group / name, f"is not the shard that {share.host} measured ({where} says {shard.sha256[:16]}…)"
