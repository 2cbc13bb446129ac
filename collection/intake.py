"""What a host of a campaign sends, checked before any of it is stored. A host may be broken, or not what it was.

The archive that `surefoot-sweep pack` makes is the plainest there is: manifest.json, journal.rest, then shards, each a regular
file with one header. What a tar may have besides (links, devices, folders, sparse files, long names, extended headers) is
refused by its kind before its content is looked at, so an archive never comes to more than its own bytes.

Manifest and journal are taken if later readers can do with them what they do: count cases, number shards, write one data set.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from pipelines.inputs import LINE_BYTES, SUMMARY_BYTES, Unreadable, message, parse_json, shown

from . import dataset, layout

REST = "journal.rest"
MOST_JOURNAL_BYTES = 1 << 30
"""Of a host: a line for each of ten million cases."""
MOST_SHARD_BYTES = 256 << 20
"""A hundred times what 60 s of measuring come to."""
MOST_TAR_BYTES = MOST_JOURNAL_BYTES + SUMMARY_BYTES + 2 * MOST_SHARD_BYTES
"""Journal, manifest, and as many shards as are packed together."""
# of a manifest without its list of shards, and of what it says of the host and its programs
_MOST_SAID_BYTES = 1 << 20
_MOST_FACTS_BYTES = 64 << 10
_MOST_ID, _MOST_REASON = 200, 4000
# numbers of shards in a data set have at most nine digits
_MOST_SHARD = 10**9
_MOST_CASES = 1 << 48
_BLOCK_BYTES = 1 << 20
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.DIRTYPE: "a folder",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    tarfile.GNUTYPE_LONGNAME: "a long name",
    tarfile.GNUTYPE_LONGLINK: "a long name",
    tarfile.XHDTYPE: "an extended header",
    tarfile.XGLTYPE: "an extended header",
    tarfile.SOLARIS_XHDTYPE: "an extended header",
}


class Refused(ValueError):
    """What was sent cannot be taken; the text says why, in one line without the host's name."""


@dataclass(frozen=True)
class Member:
    """A file in an archive. offset: of its content."""

    name: str
    offset: int
    size: int

    def read(self, file: IO[bytes]) -> bytes:
        file.seek(self.offset)
        return file.read(self.size)

    def copy(self, file: IO[bytes], to: Path) -> str:
        """Write the content to a new file; its SHA-256."""
        digest, left = hashlib.sha256(), self.size
        file.seek(self.offset)
        with to.open("xb") as out:
            while block := file.read(min(left, _BLOCK_BYTES)):
                digest.update(block)
                out.write(block)
                left -= len(block)
            out.flush()
            os.fsync(out.fileno())
        return digest.hexdigest()


def members(file: IO[bytes]) -> list[Member]:
    """The files of an archive: manifest, journal, then shards, each name once.

    Raises:
        Refused: it is no such archive, or not a whole one.
    """
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_TAR_BYTES:
        raise Refused(f"what was fetched has {about.st_size} bytes, more than any archive of a host ({MOST_TAR_BYTES})")
    found: dict[str, Member] = {}
    at = 0
    while True:
        file.seek(at)
        try:
            header = tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the blocks of zeros at the end
            break
        # a header that was changed makes tarfile raise more than its own
        except (tarfile.TarError, ValueError, OverflowError, IndexError) as e:
            raise Refused(f"what was fetched is no whole tar ({message(e)})") from e
        name, at = header.name, at + tarfile.BLOCKSIZE
        if header.type not in _PLAIN:
            raise Refused(f"sent {shown(name)[:100]!r} as {_KINDS.get(header.type, 'something')}; only plain files are taken")
        if name in found:
            raise Refused(f"sent {shown(name)[:100]!r} twice")
        if len(found) < 2 and name != (want := (dataset.MANIFEST, REST)[len(found)]):
            raise Refused(f"sent {shown(name)[:100]!r} where {want} stands in an archive")
        most = {dataset.MANIFEST: SUMMARY_BYTES, REST: MOST_JOURNAL_BYTES}.get(name, MOST_SHARD_BYTES)
        if not 0 <= header.size <= most:
            raise Refused(f"{shown(name)[:100]} has {header.size} bytes, more than it may ({most})")
        if at + header.size > about.st_size:
            raise Refused(f"what was fetched is no whole tar ({shown(name)[:100]} is cut off)")
        found[name] = Member(name, at, header.size)
        at += -(-header.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    if len(found) < 2:
        raise Refused(f"sent no {(dataset.MANIFEST, REST)[len(found)]}")
    return list(found.values())


def _one_line(e: ValidationError) -> str:
    first = e.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def manifest(data: bytes, number: int, of: int) -> dataset.Manifest:
    """A host's manifest.

    Args:
        number, of: the part that the host was given.
    Raises:
        Refused: it cannot be used, or is of another part.
    """
    try:
        value = parse_json(data)
        if not isinstance(value, dict):
            raise Unreadable("it is no JSON object")
        found = dataset.Manifest.model_validate(value)
        said = {k: v for k, v in value.items() if k != "shards"}
        # what cannot be written down is no text either
        size, facts = (len(json.dumps(v, ensure_ascii=False).encode()) for v in (said, [found.host, found.software]))
    except ValidationError as e:
        raise Refused(f"its manifest cannot be used: {message(_one_line(e))}") from e
    except (ValueError, RecursionError) as e:
        raise Refused(f"its manifest cannot be read: {message(e)}") from e
    if found.schema_version != dataset.SCHEMA_VERSION:
        raise Refused(f"its manifest has schema_version {found.schema_version}, this version reads {dataset.SCHEMA_VERSION}")
    if found.part != {"number": number, "of": of}:
        raise Refused(f"measured part {message(found.part)}, was given {number}/{of}. Start with another --out")
    if size > _MOST_SAID_BYTES or facts > _MOST_FACTS_BYTES:
        raise Refused(f"its manifest says {size} bytes besides its shards, {facts} of them of host and software: too many")
    seen: set[int] = set()
    for shard in found.shards:
        own = layout.shard_number(shard.file)
        if own is None or dataset.shard_file(own) != shard.file:
            raise Refused(
                f"{shown(shard.file)[:100]!r} is no shard's name. Is another program writing into the job's folder there?"
            )
        if own in seen:
            raise Refused(f"its manifest lists {shard.file} twice")
        if layout.common_number(own, number, of) >= _MOST_SHARD or shard.rows == 0:
            raise Refused(f"its manifest lists {shard.file} with {shard.rows} rows: no sweep writes that")
        seen.add(own)
    told = (found.cases.model_extra or {}).get("reasons", [])
    for reason in told if isinstance(told, list) else [told]:
        if not isinstance(reason, dict) or not _is_reason(reason):
            raise Refused(f"its manifest has reasons that are none: {message(reason)[:200]}")
    return found


def _is_reason(value: dict[str, Any]) -> bool:
    state, text, cases = value.get("state"), value.get("reason"), value.get("cases")
    known = state in dataset.STATES and isinstance(text, str) and len(text) <= _MOST_REASON
    return known and type(cases) is int and 0 <= cases < _MOST_CASES


def line(text: bytes) -> dict[str, Any]:
    """A line of a host's journal.

    Raises:
        Unreadable: it is none, or says what would be counted wrongly in a data set's journal.
    """
    if len(text) > LINE_BYTES:
        raise Unreadable(f"it has {len(text)} bytes")
    value = parse_json(text)
    if not isinstance(value, dict) or value.get("state") not in dataset.STATES:
        raise Unreadable("it is no line of a journal")
    numbers = {"shard": value.get("shard"), "rows": value.get("rows"), "cases": value.get("cases", 1)}
    for name, number in numbers.items():
        if type(number) is not int or not 0 <= number < (_MOST_SHARD if name == "shard" else 1 << 32):
            raise Unreadable(f"{name} is no number of a journal")
    usable = value.get("usable")
    if usable is not None and (type(usable) is not int or not 0 <= usable <= value["rows"]):
        raise Unreadable("usable is no number of its rows")
    case = value.get("case_id")
    if not isinstance(case, str) or not 0 < len(case) <= _MOST_ID:
        raise Unreadable("case_id is no name of a case")
    if value["rows"] and value.get("cases", 1) != 1:
        raise Unreadable("it has rows of several cases")
    for name, inner in value.items():
        # journals are counted by their bytes: a state, or a number of cases, stands once in a line (collection/standing.py)
        if isinstance(inner, dict | list) and {"state", "cases"} & set(_keys(inner)):
            raise Unreadable(f"{shown(name)[:40]} has a state, or cases, of its own")
        if isinstance(inner, str) and len(inner) > _MOST_REASON:
            raise Unreadable(f"{shown(name)[:40]} has {len(inner)} characters")
    if b"\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise Unreadable("it has half a character") from None
    return value


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys(inner)


@dataclass
class Told:
    """What a host's journal says. cases: by state. rows: of each case, by shard."""

    cases: Counter[str] = field(default_factory=Counter)
    rows: dict[int, dict[str, int]] = field(default_factory=dict)


def journal(data: bytes, manifest: dataset.Manifest) -> Told:
    """A host's journal beside its manifest, which may be older: a sweep writes it now and then.

    Raises:
        Refused: a whole line is none, a case stands there twice, or it does not say what the manifest does.
    """
    *whole, torn = data.split(b"\n")
    told, seen = Told(), set()
    for number, text in enumerate(whole, start=1):
        try:
            found = line(text)
            if found["case_id"] in seen:
                raise Unreadable(f"case {shown(found['case_id'])} stands there twice")
        except Unreadable as e:
            raise Refused(
                f"line {number} of its journal cannot be used: {e}. The journal is damaged there: restore it, or set the host "
                "up anew"
            ) from e
        seen.add(found["case_id"])
        told.cases[found["state"]] += found.get("cases", 1)
        if found["rows"]:
            told.rows.setdefault(found["shard"], {})[found["case_id"]] = found["rows"]
    if len(torn) > LINE_BYTES:
        raise Refused(f"line {len(whole) + 1} of its journal has no end within {LINE_BYTES} bytes")
    for shard in manifest.shards:
        rows = sum(told.rows.get(layout.shard_number(shard.file) or 0, {}).values())
        if rows != shard.rows:
            raise Refused(f"{shard.file}: its journal has {rows} rows in it, its manifest {shard.rows}")
    counted, done = manifest.cases.by_state(), sum(told.cases.values())
    if done > manifest.cases.planned:
        raise Refused(f"its journal has {done} cases, its manifest plans {manifest.cases.planned}")
    if manifest.complete and (torn or done != manifest.cases.planned or {s: told.cases[s] for s in counted} != counted):
        raise Refused(f"its manifest is complete with {sum(counted.values())} cases, its journal has {done}: they do not add up")
    return told


@dataclass(frozen=True)
class Answer:
    """What `surefoot-sweep pack` said.

    journal_from: where the rest of the journal that was packed begins. ended: exit code and message of a sweep that has ended.
    progress: `done`, `rate_per_s` and `eta_s`, as far as they are numbers.
    """

    packed: bool
    more: bool
    journal_from: int
    ended: tuple[int, str] | None
    progress: dict[str, Any]
    message: str | None


def answer(text: str) -> Answer:
    """
    Raises:
        Refused: it is not what `surefoot-sweep pack` says.
    """
    try:
        value = parse_json(text[: 2 * LINE_BYTES])
        status = value["status"]
        ended, progress = status.get("ended"), status.get("progress")
        packed, more, start = value["packed"], value["more"], value.get("journal_from", 0)
        code = ended.get("code") if ended else 0
        if not isinstance(packed, bool) or not isinstance(more, bool) or type(start) is not int or type(code) is not int:
            raise Unreadable("a field is of another type")
        numbers = progress if isinstance(progress, dict) else {}
        said = status.get("message")
        return Answer(
            packed,
            more,
            start,
            (code, message(ended.get("message"))) if ended else None,
            {n: v for n in ("done", "rate_per_s", "eta_s") if _is_count(v := numbers.get(n), whole=n == "done")},
            message(said) if said else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise Refused(f"`surefoot-sweep pack` there answers nonsense ({message(e)})") from e


def _is_count(value: Any, *, whole: bool) -> bool:
    return type(value) in ((int,) if whole else (int, float)) and 0 <= value < _MOST_CASES
