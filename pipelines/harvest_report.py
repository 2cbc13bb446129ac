"""The harvest report: what `surefootd harvest-eval` left, as one page and the same numbers as JSON (docs/harvest-report.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.io import canonical_json
from pipelines.out_folder import for_report, put_report
from pipelines.pages import harvest_facts, harvest_page, harvest_rows, page
from pipelines.pages.eval_page import Step, untold

PAGE, FACTS = "harvest-report.html", "harvest-report.json"
# what `run` tells of: the numbers, and each part of the page with figures
STEPS = 1 + len(harvest_page.DRAWN)


def run(outs: Sequence[Path], out: Path, step: Step = untold, overwrite: bool = False) -> dict[str, Any]:
    """Write the page and the JSON into `out`; returns where they are, and policies over all cases.

    Args:
        overwrite: whether those of an earlier report give way.
        step: told each of STEPS steps, once it is known that the folders can be used.
    Raises:
        BadInput: a folder cannot be used, or `out` cannot be one; nothing was written.
    """
    for_report(out, (PAGE, FACTS), outs, overwrite)
    folders = harvest_rows.read(outs)
    with step(f"numbers of {page.counted(sum(len(f.rows) for f in folders), 'row')}"):
        facts, cells = harvest_facts.gather(folders)
        # before anything is written: what is no JSON leaves no page without its numbers
        numbers = canonical_json(facts)
    html = page.render(harvest_page.build(facts, cells, step)).encode()
    put = put_report(out, (PAGE, FACTS), html, numbers)
    return {
        **put,
        "policies": {
            p["policy"]: {"cases": p["cases"], "kept": p["kept"], "lent": p["lent"]["value"]} for p in facts["policies"]
        },
        "not_run": facts["not_run"],
    }
