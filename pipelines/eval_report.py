"""The evaluation report: what `surefootd eval` left, as one page and the same numbers as JSON (docs/eval-report.md)."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines import site
from pipelines.errors import BadInput
from pipelines.io import canonical_json, check_output, write_bytes
from pipelines.pages import eval_facts, eval_page, eval_rows, page
from pipelines.pages.eval_page import Step, untold

PAGE, FACTS = "eval-report.html", "eval-report.json"
# what `run` tells of: the numbers, and each part of the page with figures
STEPS = 1 + len(eval_page.DRAWN)


def run(outs: Sequence[Path], out: Path, step: Step = untold, overwrite: bool = False) -> dict[str, Any]:
    """Write the page and the JSON into `out`; returns where they are, the verdicts, counted, and warnings.

    Args:
        overwrite: whether those of an earlier report give way.
        step: told each of STEPS steps, once it is known that the folders can be used.
    Raises:
        BadInput: a folder cannot be used, or `out` cannot be one; nothing was written.
    """
    _check_out(out)
    for file in (PAGE, FACTS):
        check_output("--out", out / file, [("OUT", path) for path in outs], overwrite)
    rows = eval_rows.read(outs)
    with step(f"numbers of {page.counted(len(rows), 'run')}"):
        facts, groups = eval_facts.gather(rows)
        # before anything is written: what is no JSON leaves no page without its numbers
        numbers = canonical_json(facts)
    html = page.render(eval_page.build(facts, groups, step)).encode()
    write_bytes(out / PAGE, html)
    write_bytes(out / FACTS, numbers)
    site.refresh(out / PAGE)
    verdicts: dict[str, int] = {}
    for row in facts["published"]:
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
    warnings = [f"{eval_page.name_of(s)}: {s['unjudged']}: no verdicts" for s in facts["sets"] if s["unjudged"]]
    return {
        "page": str(out / PAGE),
        "json": str(out / FACTS),
        "bytes": len(html),
        "verdicts": verdicts,
        "warnings": list(dict.fromkeys(warnings)),
    }


def _check_out(out: Path) -> None:
    """Before the work, not after it."""
    there = next(p for p in (out, *out.parents) if os.path.lexists(p))
    if not os.path.isdir(there):
        kind = _kind(there)
        what = f"is {kind}. Give a folder" if there == out else f"cannot be a folder, {there} is {kind}. Give another"
        raise BadInput(f"--out {out}: {what}")
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInput(f"--out {out}: nothing can be written to {there}. Check its owner and mode, or give another folder")
    for path in (*(there / name for name in out.relative_to(there).parts), out / PAGE, out / FACTS):
        _nameable(out, path)


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
