"""PARSEC's region of interest, as its hooks print it (`parsecmgmt -c gcc-hooks`).

Source: PARSEC 3.0, `hooks.c` (`[HOOKS] Total time spent in ROI`), and parsecmgmt's log.

The whole time (`real`) is not taken in its place: it has the reading of the input in it, which for some programs is most of it.
"""

from __future__ import annotations

import re

from .measured import Measured
from .words import NUMBER, Failed, Unclear, Unrecognised, once, surely

TOOL = "parsec"
MARKS = (re.compile(r"^\[PARSEC\]", re.MULTILINE), re.compile(r"^\[HOOKS\]", re.MULTILINE))
LOOKS = "`Running benchmark NAME` (or `[HOOKS] PARSEC Hooks Version`), then `[HOOKS] Total time spent in ROI: Ss`"
_BEGIN = re.compile(r"^[^\n]{0,200}?\bRunning benchmark (\S+)", re.MULTILINE)
_DIRECT = re.compile(r"^\[HOOKS\] (PARSEC) Hooks Version", re.MULTILINE)
_ROI = re.compile(rf"^(?:\[HOOKS\] |end ROI hook, )?Total time spent in ROI:[ \t]*({NUMBER})s", re.MULTILINE | re.ASCII)
_DIED = re.compile(
    r"^(?:.{0,200}: line \d+: +\d+ )?(Segmentation fault|Aborted|Killed|Terminated|Bus error|Illegal instruction"
    r"|Floating point exception|Command terminated by signal \d+|Command exited with non-zero status \d+)\b",
    re.MULTILINE | re.ASCII,
)


def parse(text: str) -> list[Measured]:
    # a program that was started without parsecmgmt does not say its name
    begins = list(_BEGIN.finditer(text)) or list(_DIRECT.finditer(text))
    if not begins:
        raise Unrecognised("no line `Running benchmark` and no line `[HOOKS] PARSEC Hooks Version`")
    if _ROI.search(text, 0, begins[0].start()):
        raise Unclear(
            "a region of interest stands above the first beginning of a run: parts of several runs. Give one run a file"
        )
    ends = [b.start() for b in begins[1:]] + [len(text)]
    runs: dict[str, int] = {}
    rows = []
    for begin, end in zip(begins, ends, strict=True):
        part, name = text[begin.start() : end], "all" if begin.re is _DIRECT else begin[1]
        if died := _DIED.search(part):
            raise Failed(f"{name} ended with `{died[1]}`")
        times = _ROI.findall(part)
        once(len(times), f"the region of interest of {name}")
        if not times:
            entered = (
                "it entered its region of interest and did not leave it" if "Entering ROI" in part else "no region of interest"
            )
            raise Failed(
                f"{name}: {entered}; build and run it with `-c gcc-hooks`. The time of the whole run is no measure of it"
            )
        seconds = surely(times[0])
        if not seconds > 0:
            raise Failed(f"{name} spent {seconds:g} s in its region of interest")
        runs[name] = runs.get(name, 0) + 1
        rows.append(Measured(TOOL, name, str(runs[name]), runtime_s=seconds))
    return rows
