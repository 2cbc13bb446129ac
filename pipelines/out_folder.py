"""Where a report of several folders is written: what may be in the way is found first, and page and numbers go there together."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines import site
from pipelines.errors import BadInput
from pipelines.io import check_output, write_bytes


def for_report(out: Path, names: Sequence[str], read: Sequence[Path], overwrite: bool) -> None:
    """Whether a report's files can be written; before the work, not after it.

    Args:
        out: their folder, which need not be there yet.
        read: folders that the report is made from.
        overwrite: whether those of an earlier report give way.
    Raises:
        BadInput: they cannot.
    """
    there = next(p for p in (out, *out.parents) if os.path.lexists(p))
    if not os.path.isdir(there):
        kind = _kind(there)
        what = f"is {kind}. Give a folder" if there == out else f"cannot be a folder, {there} is {kind}. Give another"
        raise BadInput(f"--out {out}: {what}")
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInput(f"--out {out}: nothing can be written to {there}. Check its owner and mode, or give another folder")
    for path in (*(there / name for name in out.relative_to(there).parts), *(out / name for name in names)):
        _nameable(out, path)
    for name in names:
        check_output("--out", out / name, [("OUT", path) for path in read], overwrite)


def put_report(out: Path, names: tuple[str, str], html: bytes, numbers: bytes) -> dict[str, Any]:
    """Write page and numbers under their names; returns where they are, and how long the page is."""
    page, facts = (out / name for name in names)
    write_bytes(page, html)
    write_bytes(facts, numbers)
    site.refresh(page)
    return {"page": str(page), "json": str(facts), "bytes": len(html)}


def _kind(path: Path) -> str:
    """What stands where a folder should."""
    try:
        path.stat()
    except OSError as e:
        return f"a link that leads nowhere ({e.strerror})"
    return "a file"


def _nameable(out: Path, path: Path) -> None:
    """A name that nothing can have shows here."""
    try:
        path.lstat()
    except OSError as e:
        if e.errno == errno.ENAMETOOLONG:
            raise BadInput(f"--out {out}: {e.strerror}. Give a shorter name") from None
