"""Runs a module as a stage of dvc.yaml, with what params.yaml says of the stage's data set.

    python -m pipelines.stage [--in SECTION] [--model MODEL] MODULE ARGUMENT...

DVC hands `cmd` to a shell. So no text of params.yaml stands in a `cmd`: its arguments have places, @name@ and the like, which are
filled in here, behind the shell, once all names and folders are known to be usable (pipelines/params.py).

@name@                       the data set's name
@model@                      --model, of stages that are one of several models; their names end with it
@folder@ @begin@ @models@ @on@   the fields that params.yaml has of it in SECTION (default: datasets)

DVC tells the stage's name in DVC_STAGE.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path

from pipelines import params
from pipelines.errors import BadInput
from pipelines.inputs import choice

_PLACE = re.compile(r"@([a-z]+)@")


def values(stage: str, section: str, model: str | None, p: params.Params) -> dict[str, str]:
    """What the places of a stage's arguments stand for.

    Args:
        stage: `label@NAME`; where DVC was called in another folder, behind the path of dvc.yaml and a colon.
        section: of params.yaml, which lists the data set.
    Raises:
        BadInput: params.yaml has no such data set.
    """
    name = stage.rpartition(":")[2].partition("@")[2]
    if model is not None:
        name = name.removesuffix(f"-{model}")
    listed = getattr(p, section)
    if name not in listed:
        raise BadInput(
            f"DVC_STAGE: {stage!r} is of no data set of `{section}` in params.yaml. {choice(name, listed)}. "
            "Run stages with `dvc repro`"
        )
    about = (p.datasets if isinstance(listed, list) else listed)[name]
    return {"name": name, **({} if model is None else {"model": model}), **about.model_dump()}


def filled(argument: str, known: Mapping[str, str]) -> str:
    """The argument with its places filled in, once: what is filled in has none.

    Raises:
        BadInput: nothing is known of a place.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise BadInput(f"dvc.yaml: cmd: {match[0]} stands for nothing here; known: {', '.join(sorted(known))}")
        return known[match[1]]

    return _PLACE.sub(value, argument)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.stage", description="Run a module as a stage of dvc.yaml.")
    parser.add_argument("--in", dest="section", default="datasets", choices=params.SECTIONS, help="section of params.yaml")
    parser.add_argument("--model", help="one of several models of the stage")
    parser.add_argument("module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    a = parser.parse_args(argv)

    def work() -> list[str]:
        p = params.load(Path("params.yaml"))
        stage = os.environ.get("DVC_STAGE")
        if not stage:
            raise BadInput(
                f"DVC_STAGE is not set. Run stages with `dvc repro`, or the module itself: python -m {a.module} --help"
            )
        known = values(stage, a.section, a.model, p)
        return [filled(argument, known) for argument in a.arguments]

    code, arguments = params.guarded(work)
    if arguments is None:
        return code
    sys.argv = [a.module, *arguments]
    runpy.run_module(a.module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
