"""manifest.json of one target, as `surefootd sweep` writes it (docs/sweep-output.md): its one reader.

`manifest_fields` checks every field. What stands here reads a few of them, and imports the cheapest parts of the standard
library alone: `surefoot campaign status` answers in the time that Python takes to start.
"""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

from pipelines import inputs
from pipelines.errors import BadInput
from pipelines.inputs import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs as much as reading a manifest
    from typing import Any

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
STATES = ("measured", "infeasible", "client-limited", "overloaded", "failed", "skipped")
MARKS = ("disturbed", "unsettled")
"""What the journal may say against a case that was measured."""
MOST_ROWS = 1 << 48
"""Of cases and rows: beyond it sums in a table are no longer exact."""
RESTORE = "restore it from a copy, or remove the folder and measure again"
"""Remedy for a file of a data set that is damaged."""


class Listed(namedtuple("Listed", ["file", "rows", "sha256"])):
    """A shard. file: relative to the manifest's folder, or to `shards`. sha256: None where it is left out."""

    __slots__ = ()


class Facts(namedtuple("Facts", ["rows", "files", "feature_set", "journal_bytes", "planned", "cases", "marks", "complete"])):
    """What is counted of a target or a host. files: of its shards. cases: by state. marks: cases by mark."""

    __slots__ = ()


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        BadInput: names the file, the position and the remedy.
    """
    try:
        value = inputs.read_json(path)
    except FileNotFoundError as e:
        raise BadInput(f"{path}: is missing. It is no data set, or it is damaged; {remedy}") from e
    except Unreadable as e:
        raise BadInput(f"{path}: corrupt: {e}; {remedy}") from e
    except OSError as e:
        raise BadInput(f"{path}: cannot be read ({e.strerror})") from e
    if not isinstance(value, dict):
        raise BadInput(f"{path}: corrupt: not a JSON object; {remedy}")
    return value


def is_count(value: object) -> bool:
    """Whether it is a number of cases, rows or bytes."""
    return type(value) is int and 0 <= value < MOST_ROWS


def field(value: dict[str, Any], name: str, kind: type) -> Any:
    """A field of a manifest.

    Raises:
        BadInput: it is missing, or another kind of value.
    """
    found = value.get(name)
    if not isinstance(found, kind):
        raise BadInput(f"field {name} is {'missing' if found is None else type(found).__name__}, want {kind.__name__}")
    return found


def listed(value: dict[str, Any]) -> list[Listed]:
    """The shards of a manifest.

    Raises:
        BadInput: one of them is no file in the folder, or has no number of rows.
    """
    shards = []
    for entry in field(value, "shards", list):
        name, rows, digest = map(entry.get, ("file", "rows", "sha256")) if isinstance(entry, dict) else (None, None, None)
        if not isinstance(name, str) or name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise BadInput(f"field shards: {name!r} is no file in the folder")
        if not is_count(0 if rows is None else rows):
            raise BadInput(f"field shards: rows of {name} is {rows!r}")
        shards.append(Listed(name, rows or 0, digest))
    return shards


def facts(folder: Path) -> Facts | None:
    """Of a manifest, at a glance; None where something about it is strange, which `manifest_fields.facts` finds or says."""
    try:
        value = inputs.read_json(folder / MANIFEST)
        rows, files, cases = [s["rows"] for s in value["shards"]], [str(s["file"]) for s in value["shards"]], value["cases"]
        by_state = {s: cases[s.replace("-", "_")] if s != "skipped" else cases.get(s, 0) for s in STATES}
        marks = {m: cases.get(m, 0) for m in MARKS}
        numbers = [*rows, *by_state.values(), *marks.values(), cases["planned"], value.get("journal_bytes", 0)]
        if value["schema_version"] != SCHEMA_VERSION or not all(map(is_count, numbers)):
            return None
        done = value["complete"] is True
        return Facts(sum(rows), files, str(value["feature_set"]), numbers[-1], numbers[-2], by_state, marks, done)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
