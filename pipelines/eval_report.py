"""The evaluation report: what `surefootd eval` left, as one page and the same numbers as JSON (docs/eval-report.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.io import canonical_json
from pipelines.out_folder import for_report, put_report
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
    for_report(out, (PAGE, FACTS), outs, overwrite)
    rows = eval_rows.read(outs)
    with step(f"numbers of {page.counted(len(rows), 'run')}"):
        facts, groups = eval_facts.gather(rows)
        # before anything is written: what is no JSON leaves no page without its numbers
        numbers = canonical_json(facts)
    html = page.render(eval_page.build(facts, groups, step)).encode()
    put = put_report(out, (PAGE, FACTS), html, numbers)
    verdicts: dict[str, int] = {}
    for row in facts["published"]:
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
    warnings = [f"{eval_page.name_of(s)}: {s['unjudged']}: no verdicts" for s in facts["sets"] if s["unjudged"]]
    return {
        **put,
        "verdicts": verdicts,
        "warnings": list(dict.fromkeys(warnings)),
    }
