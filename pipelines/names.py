"""Stage `names`: the data sets that params.yaml lists have names and folders that all other stages can use.

    python -m pipelines.names --out FOLDER [--params FILE]

It comes before all others, and is what notices a name that DVC passes over (a number). Writes `names.json`, which is always the
same: another data set on the list runs no stage of those that were there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipelines import params
from pipelines.io import write_json


def run(out: Path, file: Path) -> dict[str, bool]:
    """Check the names; raises as `params.load`."""
    params.load(file)
    found = {"usable": True}
    write_json(out / "names.json", found)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.names", description="Check the data sets of params.yaml.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)
    return params.run_stage(lambda: run(args.out, args.params))


if __name__ == "__main__":
    raise SystemExit(main())
