"""Which settings of the policy surefoot change anything: each one halved and doubled on committed workload sets, as a table.

    python3 scripts/bench/ablate.py SUREFOOTD --bundles BUNDLES --work DIR [--whole] [--page FILE]

SUREFOOTD is the program, BUNDLES a folder with one for each server (server-1.tar ...), as `make bench-schedulers` leaves it.
Settings, defaults and bounds are those of docs/policy-parameters.md.
A value is scaled within its bounds; a whole number changes by one at least. A list is scaled as a whole.
Each evaluation is one line in DIR/runs.jsonl; the same command goes on where it was cut off.

First every setting runs on a few workloads (FEW). With --whole those that change no row there run on all sets, one set after
another, until a row differs. A row differs when any column differs but those of measured time.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
SETS = REPO / "workloads" / "sets"
PAGE = REPO / "docs" / "policy-parameters.md"
COUNTED = {"ms", "intervals", "plans", "times", "tries", "units", "steps", "cells", "requests", "levels", "cores", "ways", "%"}
FACTORS = {"halved": 0.5, "doubled": 2.0}
TIMED = {"decision_us_p50", "decision_us_p99"}
TIMEOUT_S = 1800


@dataclass(frozen=True)
class Part:
    """One evaluation: workloads of one server."""

    name: str
    workloads: tuple[str, ...]
    platform: str = "server-1"
    options: tuple[str, ...] = ()


FEW = (Part("demo", ("demo",)),)
FAULTS = "surefoot-faults"
WHOLE = (
    Part("overload", (f"{FAULTS}/overload.toml",)),
    Part("floor", (f"{FAULTS}/floor.toml",), "server-1", ("--profiles", str(SETS / FAULTS / "profiles"))),
    Part("shapes-server-1", ("shapes-server-1",)),
    Part("demo-blind", ("demo",), "server-1", ("--harm", "no-counters")),
    Part("churn-server-1", ("churn-server-1",)),
    Part("churn-server-3", ("churn-server-3",), "server-3"),
    Part("lc3-server-1", ("lc3-server-1",)),
    Part("no-counters", ("lc3-server-1", "churn-server-1"), "server-1", ("--harm", "no-counters")),
    Part("churn-server-2", ("churn-server-2",), "server-2"),
    *(Part(f"lc{n}-be", (f"lc{n}-be-server-2",), "server-2") for n in (6, 5, 4, 3, 2)),
    Part("lc3-server-2", ("lc3-server-2",), "server-2"),
    Part("shuffled-a", ("lc3-server-1", "demo", "churn-server-1"), "server-1", ("--harm", "shuffled-a")),
    Part("dead-feed", ("demo", "churn-server-1"), "server-1", ("--harm", "dead-feed")),
    Part("emu-302", ("emu-302",)),
)


@dataclass(frozen=True)
class Setting:
    """A line of the table of settings."""

    name: str
    value: tuple[float, ...]
    low: float
    high: float
    whole: bool

    def scaled(self, factor: float) -> tuple[float, ...]:
        """Its value times `factor` within its bounds."""
        return tuple(self._one(x, factor) for x in self.value)

    def _one(self, x: float, factor: float) -> float:
        y = x * factor
        if self.whole:
            y = float(round(y))
            if y == x:
                y = x + (1 if factor > 1 else -1)
        return min(max(y, self.low), self.high)


def settings(page: str) -> list[Setting]:
    """Settings of surefoot, in the order of docs/policy-parameters.md."""
    out = []
    for line in page.split("\n## surefoot\n")[1].splitlines():
        if not line.startswith("| `"):
            continue
        name, value, bounds, unit, *_ = (cell.strip() for cell in line.strip("| ").split(" | "))
        numbers = tuple(float(x) for x in value.strip("[]").split(", "))
        low, high = (float(x) for x in bounds.split(" to "))
        whole = unit in COUNTED and all(x == int(x) for x in numbers) and "." not in value
        out.append(Setting(name.strip("`"), numbers, low, high, whole))
    return out


@dataclass
class Runs:
    """Evaluations, kept in a file of JSON lines."""

    program: Path
    bundles: Path
    file: Path
    done: dict[str, dict[str, Any]]

    @classmethod
    def open(cls, program: Path, bundles: Path, work: Path) -> Runs:
        """Go on with what `work` holds."""
        work.mkdir(parents=True, exist_ok=True)
        file = work / "runs.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        # The last line may be half of one.
        whole = [json.loads(line) for line in lines if line.endswith("}}")]
        return cls(program, bundles, file, {r["key"]: r["rows"] for r in whole})

    def rows(self, part: Part, setting: str, value: tuple[float, ...]) -> dict[str, Any]:
        """Rows of a part with one setting changed ("": none), by workload and without measured time."""
        said = f"surefoot.{setting}={','.join(repr(x) for x in value)}" if setting else ""
        key = f"{part.name} {said}"
        if key not in self.done:
            rows = self._evaluate(part, said)
            with self.file.open("a", encoding="utf-8") as f:
                f.write(json.dumps({"key": key, "rows": rows}) + "\n")
            self.done[key] = rows
        return self.done[key]

    def _evaluate(self, part: Part, said: str) -> dict[str, Any]:
        out = Path(tempfile.mkdtemp(prefix="ablate-"))
        try:
            command = [str(self.program), "eval", "--policies", "surefoot", "--platform", part.platform]
            command += [
                "--bundle",
                str(self.bundles / f"{part.platform}.tar"),
                "--out",
                str(out / "rows"),
                "--timelines",
                "none",
                "--progress",
                "none",
                *part.options,
            ]
            command += ["--workloads", *(str(SETS / w) for w in part.workloads), *(["--set", said] if said else [])]
            subprocess.run(command, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            with (out / "rows" / "rows.csv").open(encoding="utf-8") as f:
                return {r["workload"]: {k: v for k, v in r.items() if k not in TIMED} for r in csv.DictReader(f)}
        finally:
            shutil.rmtree(out)


def total(rows: dict[str, Any], column: str) -> float:
    """Sum of a column; unknown counts as 0."""
    return sum(float(r[column] or 0) for r in rows.values())


def compared(runs: Runs, parts: tuple[Part, ...], setting: str, value: tuple[float, ...]) -> tuple[int, float, float]:
    """Rows that differ from those of the defaults, and how violation in s and BE throughput change in sum."""
    differ, violation, be = 0, 0.0, 0.0
    for part in parts:
        before, after = runs.rows(part, "", ()), runs.rows(part, setting, value)
        differ += sum(before[w] != after[w] for w in before)
        violation += total(after, "qos_violation_s") - total(before, "qos_violation_s")
        be += total(after, "be_throughput") - total(before, "be_throughput")
    return differ, violation, be


def first_difference(runs: Runs, setting: str, value: tuple[float, ...]) -> str:
    """The first whole set with a row that differs; "" where there is none."""
    for part in WHOLE:
        if runs.rows(part, "", ()) != runs.rows(part, setting, value):
            return part.name
    return ""


def line(runs: Runs, setting: Setting, whole: bool) -> tuple[str, bool]:
    """The setting's line of the table, and whether it changed any row."""
    cells, changes = [], False
    for factor in FACTORS.values():
        value = setting.scaled(factor)
        if value == setting.value:
            cells.append("at its bound")
            continue
        differ, violation, be = compared(runs, FEW, setting.name, value)
        if differ:
            cells.append(f"{differ}: {violation:+.1f} s, {be:+.3f}")
        elif whole and not changes:
            where = first_difference(runs, setting.name, value)
            cells.append(f"0; first in {where}" if where else "**nothing, on all sets**")
            differ = bool(where)
        else:
            cells.append("0")
        changes |= bool(differ)
    shown = ", ".join(f"{x:g}" for x in setting.value)
    return f"| `{setting.name}` | {shown} | {' | '.join(cells)} |", changes


def main() -> int:
    """Run, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("surefootd", type=Path)
    parser.add_argument("--bundles", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--whole", action="store_true", help="those that change nothing there run on all sets")
    parser.add_argument("--page", type=Path, help="file to write the table to; default: standard output")
    args = parser.parse_args()
    os.nice(10)
    runs = Runs.open(args.surefootd, args.bundles, args.work)
    table = ["| setting | value | halved: rows that differ, violation, BE | doubled |", "| --- | --- | --- | --- |"]
    idle = []
    for setting in settings(PAGE.read_text(encoding="utf-8")):
        row, changes = line(runs, setting, args.whole)
        table.append(row)
        if not changes:
            idle.append(setting.name)
    table.append(f"\nWithout any change of a row: {', '.join(f'`{n}`' for n in idle) or 'none'}.")
    text = "\n".join(table) + "\n"
    if args.page:
        args.page.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
