"""What was fetched of a campaign's hosts, and the one data set that it makes.

DIR/hosts/hosts.json            who measures which part, and the name of the job on the hosts
DIR/hosts/<host>/manifest.json  the host's own, as last fetched
DIR/hosts/<host>/journal.jsonl  the host's own, as last fetched
DIR/<group>/                    the data set: shards of all hosts, one journal, one manifest (docs/sweep-output.md)

A shard enters the data set once its SHA-256 is that of its host's manifest. Shard n of part i of N is shard n x N + i - 1 of
the data set, so numbers never move, whatever comes first. The data set's journal holds the lines of the shards that are
there and of those that have no rows; so it is whole at any moment, and a merge can be done again from what is here.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.inputs import SUMMARY_BYTES, Unreadable, message, parse_json, read_bytes, shown
from pipelines.io import fsync_folder, leftovers, make_folder, sha256_file, write_bytes, write_json

from . import dataset, standing
from .errors import CampaignError, DataSetError, HostFailed
from .standing import HOSTS, HOSTS_FILE, MARKS

_BLOCK_BYTES = 1 << 20
_TEMPORARY = ".tmp"
# of a host: a hundred times what 60 s of measuring come to, and a line for each of ten million cases
_MOST_SHARD_BYTES = 256 << 20
_MOST_JOURNAL_BYTES = 1 << 30


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
        return standing.common_number(own, self.number, self.of)

    def own(self, file: str) -> int:
        """The host's own number of one of its shards, by the data set's file: inverse of `shard`."""
        number = standing.shard_number(file)
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
        own = standing.shard_number(file)
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

    def take(self, tar: Path, journal_from: int) -> int:
        """Take in what `surefoot-sweep pack` made. Killed half-way, the same is fetched again.

        Args:
            tar: the tar.
            journal_from: where its rest of the journal begins.
        Returns:
            Shards that are new here.
        Raises:
            HostFailed: it is not what the host's manifest says, or is of another campaign or part.
        """
        host, placed = self.share.host, 0
        try:
            with tarfile.open(tar, "r:") as packed:
                manifest_bytes = _member(packed, dataset.MANIFEST)
                rest = _member(packed, "journal.rest")
                manifest = self._checked(manifest_bytes)
                digests = {s.file: s.sha256 for s in manifest.shards}
                for member in packed:
                    if member.name in (dataset.MANIFEST, "journal.rest"):
                        continue
                    if not member.isreg() or member.name not in digests:
                        raise HostFailed(f"{host}: sent {shown(member.name)!r}, which its manifest does not list")
                    if member.size > _MOST_SHARD_BYTES:
                        raise HostFailed(
                            f"{host}: {member.name} has {member.size} bytes, more than any shard ({_MOST_SHARD_BYTES})"
                        )
                    self._place(packed, member, digests[member.name])
                    placed += 1
        # a header that was changed makes tarfile raise more than its own
        except (tarfile.TarError, KeyError, EOFError, ValueError, OverflowError) as e:
            raise HostFailed(f"{host}: what was fetched is no whole tar ({message(e)}); it is fetched again") from e
        _checked_lines(host, rest)
        journal = _bytes(self.folder / dataset.JOURNAL)[:journal_from] + rest
        write_bytes(self.folder / dataset.JOURNAL, journal)
        write_bytes(self.folder / dataset.MANIFEST, manifest_bytes)
        return placed

    def _checked(self, data: bytes) -> dataset.Manifest:
        """The host's manifest, if it may be what we have fetched of the host so far."""
        host = self.share.host
        try:
            manifest = dataset.Manifest.model_validate_json(data)
        except ValueError as e:
            raise HostFailed(f"{host}: its manifest cannot be read: {message(e)}") from e
        if manifest.part != {"number": self.share.number, "of": self.share.of}:
            raise HostFailed(f"{host}: measured part {manifest.part}, was given {self.share.part}. Start with another --out")
        before = self.manifest()
        again = f"If it was set up anew, remove {self.folder}: then its part is fetched from the beginning"
        if before and before.campaign_hash != manifest.campaign_hash:
            raise HostFailed(f"{host}: its campaign is not the one that was fetched before. {again}")
        told = {s.file: s.sha256 for s in manifest.shards}
        for file, sha256 in self.held().items():
            if told.get(file) != sha256:
                raise HostFailed(f"{host}: no longer has {file} as it was fetched. {again}")
        return manifest

    def _place(self, packed: tarfile.TarFile, member: tarfile.TarInfo, sha256: str) -> None:
        path = self.place(member.name)
        make_folder(path.parent)
        temporary = path.with_name(f".{path.name}{_TEMPORARY}")
        source = packed.extractfile(member)
        assert source is not None  # a regular file has content
        digest = hashlib.sha256()
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            while block := source.read(_BLOCK_BYTES):
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != sha256:
            temporary.unlink()
            raise HostFailed(
                f"{self.share.host}: {member.name}: SHA-256 is {digest.hexdigest()[:16]}…, its manifest says {sha256[:16]}…. "
                "The shard is damaged there: remove it on the host, its cases are then measured again"
            )
        os.replace(temporary, path)
        fsync_folder(path.parent)


def _bytes(path: Path) -> bytes:
    try:
        return read_bytes(path, _MOST_JOURNAL_BYTES)
    except FileNotFoundError:
        return b""
    except Unreadable as e:
        raise DataSetError(f"{path}: cannot be read: {e}; remove its folder: it is then fetched again") from e


def _member(packed: tarfile.TarFile, name: str) -> bytes:
    member = packed.getmember(name)
    if member.size > (most := SUMMARY_BYTES if name == dataset.MANIFEST else _MOST_JOURNAL_BYTES):
        raise KeyError(f"{name} has {member.size} bytes, more than {most}")
    source = packed.extractfile(member)
    if source is None:
        raise KeyError(f"{name} is no file")
    return source.read()


def _line(text: bytes) -> dict[str, Any]:
    """A line of a host's journal, as far as it is looked at here.

    Raises:
        Unreadable: it is none.
    """
    line = parse_json(text)
    if not isinstance(line, dict) or line.get("state") not in dataset.STATES:
        raise Unreadable("is no line of a journal")
    numbers = {"shard": line.get("shard"), "rows": line.get("rows"), "cases": line.get("cases", 1)}
    for name, number in numbers.items():
        if type(number) is not int or not 0 <= number < 1 << 32:
            raise Unreadable(f"{name} is no number of a journal")
    return line


def _checked_lines(host: str, journal: bytes) -> None:
    """
    Raises:
        HostFailed: a line that is whole is none of a journal. What a host is in the middle of writing is.
    """
    for number, text in enumerate(journal.split(b"\n")[:-1], start=1):
        try:
            _line(text)
        except Unreadable as e:
            raise HostFailed(
                f"{host}: line {number} of what was fetched of its journal cannot be used: {e}. "
                "The journal is damaged there: restore it, or set the host up anew"
            ) from e


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
        return None
    _one_platform(split.group, manifests)
    lines: list[bytes] = []
    shards: list[dict[str, Any]] = []
    for mirror in mirrors:
        if mirror.share.host in manifests:
            held = mirror.held()
            by_file = {s.file: s for s in manifests[mirror.share.host].shards}
            for file, sha256 in held.items():
                name = mirror.place(file).relative_to(mirror.data).as_posix()
                shards.append({"file": name, "rows": by_file[file].rows, "sha256": sha256})
            lines += _lines(mirror, set(held))
    data = out / split.group
    first = next(iter(manifests.values()))
    counts = _counts(lines)
    whole = len(manifests) == len(mirrors) and all(m.complete for m in mirrors)
    total = sum(m.cases.planned for m in manifests.values()) if planned is None else planned
    value = first.model_dump(mode="json", exclude={"part"})
    value |= {
        "complete": whole,
        "host": _in_common([m.host for m in manifests.values()]),
        "journal_bytes": sum(len(line) + 1 for line in lines),
        "shards": sorted(shards, key=lambda s: str(s["file"])),
        "cases": {"planned": total, **counts, "reasons": _reasons(list(manifests.values()))},
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
    return value


def _lines(mirror: Mirror, held: set[str]) -> Iterator[bytes]:
    """The host's journal lines of shards that are here or have no rows, with the data set's numbers of shards."""
    path = mirror.folder / dataset.JOURNAL
    try:
        own = [_line(line) for line in _bytes(path).split(b"\n")[:-1]]
    except Unreadable as e:
        raise DataSetError(f"{path}: a line {e}; remove its folder: it is then fetched again") from e
    with_rows = {line["shard"] for line in own if line["rows"] > 0}
    for line in own:
        if line["shard"] not in with_rows or dataset.shard_file(line["shard"]) in held:
            line["shard"] = mirror.share.shard(line["shard"])
            yield json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode()


def _counts(lines: list[bytes]) -> dict[str, int]:
    by_state = dict.fromkeys(dataset.STATES, 0)
    marks = dict.fromkeys(MARKS, 0)
    for line in lines:
        found = _line(line)
        by_state[found["state"]] += found.get("cases", 1)
        for mark in MARKS:
            marks[mark] += mark in found
    return {s.replace("-", "_"): n for s, n in by_state.items()} | {mark: n for mark, n in marks.items() if n}


def _reasons(manifests: list[dataset.Manifest]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], int] = {}
    for manifest in manifests:
        for state, reason, cases in dataset.reasons(manifest):
            found[state, reason] = found.get((state, reason), 0) + cases
    return [{"state": state, "reason": reason, "cases": n} for (state, reason), n in found.items()]


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
    numbers = {file: number for file in files if (number := standing.shard_number(file)) is not None}
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
