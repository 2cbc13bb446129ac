"""A data set's folder: names, its journal's bytes and lines, what of it can be told without knowing more.

Of the standard library's cheapest parts, as `standing` is, which stands on it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, namedtuple
from pathlib import Path

from pipelines import inputs
from pipelines.inputs import Unreadable, shown
from pipelines.manifest import RESTORE, read_object

from .errors import DataSetError, of_a_data_set

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs as much as reading the manifests
    from collections.abc import Iterable, Iterator
    from typing import Any

JOURNAL = "journal.jsonl"
SHARDS = "shards"
COPY = "campaign.toml"
PROGRESS = "progress.json"
HOSTS = "hosts"
HOSTS_FILE = "hosts.json"
# how many failed cases a reason names
_EXAMPLES = 5
# of a journal in memory at a time
_BLOCK_BYTES = 16 << 20
_SHARD = re.compile(r"shards/part-([0-9]{5,9})\.parquet")
# of a folder, and of one host alone where Ansible takes patterns
_HOST = re.compile(r"\w[\w.:%+@-]*")
_MOST_HOST_BYTES = 200


class Counts(
    namedtuple(
        "Counts",
        ["planned", "measured", "infeasible", "client_limited", "overloaded", "failed", "skipped"],
        defaults=(0, 0, 0, 0, 0, 0),
    )
):
    """Cases by state; they add up: pending is what is planned and in no other state yet. skipped: what a search did not need."""

    __slots__ = ()

    @property
    def done(self) -> int:
        return sum(self[1:])

    @property
    def pending(self) -> int:
        return int(self.planned) - self.done

    def as_json(self) -> dict[str, int]:
        """With the states' names as the journal spells them."""
        return {**{name.replace("_", "-"): n for name, n in self._asdict().items()}, "pending": self.pending}

    @classmethod
    def total(cls, parts: list[Counts]) -> Counts:
        return cls(*(sum(column) for column in zip(cls(0), *parts, strict=True)))


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        DataSetError: names the file, the position and the remedy.
    """
    with of_a_data_set():
        return read_object(path, remedy)


def blocks(folder: Path, start: int = 0) -> Iterator[bytes]:
    """The journal's bytes, some megabytes at a time, each ending with the end of a line; at last a torn line, if there is one.

    Raises:
        DataSetError: a line is longer than any that is written.
    """
    try:
        file = inputs.open_bytes(folder / JOURNAL)
    except FileNotFoundError:
        return
    except Unreadable as e:
        raise DataSetError(f"{folder / JOURNAL}: cannot be read: {e}") from e
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
                if len(rest) > inputs.LINE_BYTES + _BLOCK_BYTES:
                    raise DataSetError(f"{folder / JOURNAL}: a line has no end within {len(rest) >> 20} MiB; {RESTORE}")
        if rest:
            yield rest


def whole_blocks(folder: Path, start: int = 0) -> Iterator[bytes]:
    """As `blocks`, without a torn last line: it counts for nothing."""
    return (block for block in blocks(folder, start) if block.endswith(b"\n"))


def failures(folder: Path) -> list[dict[str, Any]]:
    """Reasons of failed cases, most frequent first, each with some of its cases."""
    cases: Counter[str] = Counter()
    examples: dict[str, list[str]] = defaultdict(list)
    for block in whole_blocks(folder):
        for found in re.finditer(rb'^.*"state":\s*"failed".*$', block, re.M):
            try:
                line = inputs.parse_json(found.group())
                reason, case = str(line.get("reason") or "no reason given"), str(line["case_id"])
            except (ValueError, KeyError, AttributeError, TypeError):
                continue  # `verify` names damaged lines
            cases[reason] += 1
            if len(examples[reason]) < _EXAMPLES:
                examples[reason].append(case)
    ordered = sorted(cases.items(), key=lambda item: (-item[1], item[0]))
    return [{"reason": reason, "cases": n, "examples": examples[reason]} for reason, n in ordered]


def shard_file(shard: int) -> str:
    """File of a shard, by the number that the journal gives it."""
    return f"{SHARDS}/part-{shard:05}.parquet"


def shard_number(file: str) -> int | None:
    """Inverse of `shard_file`; None for what is no shard's name."""
    found = _SHARD.fullmatch(file)
    return int(found[1]) if found else None


def common_number(own: int, number: int, of: int) -> int:
    """Number in a merged data set of shard `own` of part `number` of `of`: shards of different parts never meet."""
    return own * of + number - 1


def a_folder(name: str, field: str) -> str:
    """The name of a folder of a data set, which lies in no other place.

    Raises:
        ValueError: it is none.
    """
    if not name.isprintable() or "/" in name or name in ("", ".", "..") or len(name.encode(errors="replace")) > _MOST_HOST_BYTES:
        raise ValueError(f'{field} is "{shown(name)[:100]}", which cannot be the name of a folder')
    return name


def first_again(names: Iterable[str]) -> str | None:
    """The first of these names that is there more than once."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


def is_host_name(name: str) -> bool:
    """Whether a host of an inventory can have a folder of its name, and be named alone."""
    return _HOST.fullmatch(name) is not None and len(name.encode()) <= _MOST_HOST_BYTES
