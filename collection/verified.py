"""Stage `verify`: the checks of `surefoot campaign verify`, before anything is learnt from a data set.

    python -m collection.verified --data FOLDER --out FOLDER

Writes `verify.json`: what was looked at, and what verify warns of. A data set that is damaged ends the pipeline here, with the
first finding and how many there are. A campaign that is not finished is no damage: what is there is whole.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pipelines import params
from pipelines.errors import BadInput, PipelineError
from pipelines.io import write_json

from . import verify
from .errors import SurefootError
from .standing import counted, quoted

_NAME = "verify.json"


def run(data: Path, out: Path) -> dict[str, Any]:
    """Verify one target's data set; returns what `verify.json` holds.

    Raises:
        BadInput: the folder is no data set.
        PipelineError: it is damaged; says how.
    """
    try:
        found = verify.verify(data)
    except SurefootError as e:
        raise BadInput(str(e)) from None
    wrong = [f for f in found.findings if f.severity == "error" and not f.unfinished]
    if wrong:
        more = f" ({counted(len(wrong), 'finding')}: surefoot campaign verify {quoted(data)})"
        raise PipelineError(f"{wrong[0].file}: {wrong[0].what}. {wrong[0].remedy}{more}")
    told = {k: v for k, v in found.as_json().items() if k in ("shards", "rows", "cases")}
    about = told | {"warnings": [f"{f.file}: {f.what}" for f in found.findings]}
    write_json(out / _NAME, about)
    return about


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m collection.verified", description="Verify a data set before it is used.")
    parser.add_argument("--data", type=Path, required=True, help="folder of one target of a campaign")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    return params.run_stage(lambda: run(args.data, args.out))


if __name__ == "__main__":
    raise SystemExit(main())
