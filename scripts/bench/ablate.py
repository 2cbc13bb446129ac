"""Which settings of the policy surefoot change anything: each one halved and doubled on committed workload sets, as a table.

    python3 scripts/bench/ablate.py SUREFOOTD --bundles BUNDLES --work DIR [--whole] [--page FILE]

SUREFOOTD is the program, BUNDLES a folder with one for each server (server-1.tar ...), as `make bench-schedulers` leaves it.
Settings, defaults and bounds are those of docs/policy-parameters.md.
A value is scaled within its bounds; a whole number changes by one at least. A list is scaled as a whole.
Each evaluation is one line in DIR/runs.jsonl; the same command goes on where it was cut off.

First every setting runs on a few workloads (FEW). With --whole those that change no row there run on all sets, one set after
another, until a row differs: many at once, by halves where rows differ.
A row differs when any column differs but those of measured time.
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

# The name of a setting, and its values.
Change = tuple[str, tuple[float, ...]]


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
    Part("shapes-server-1", ("shapes-server-1",)),
    Part("overload", (f"{FAULTS}/overload.toml",)),
    Part("floor", (f"{FAULTS}/floor.toml",), "server-1", ("--profiles", str(SETS / FAULTS / "profiles"))),
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

    def rows(self, part: Part, *changes: Change) -> dict[str, Any]:
        """Rows of a part with some settings changed, by workload and without measured time."""
        said = [f"surefoot.{setting}={','.join(repr(x) for x in value)}" for setting, value in changes]
        key = f"{part.name} {' '.join(said)}"
        if key not in self.done:
            rows = self._evaluate(part, said)
            with self.file.open("a", encoding="utf-8") as f:
                f.write(json.dumps({"key": key, "rows": rows}) + "\n")
            self.done[key] = rows
        return self.done[key]

    def _evaluate(self, part: Part, said: list[str]) -> dict[str, Any]:
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
            command += ["--workloads", *(str(SETS / w) for w in part.workloads), *(word for x in said for word in ("--set", x))]
            subprocess.run(command, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            with (out / "rows" / "rows.csv").open(encoding="utf-8") as f:
                return {r["workload"]: {k: v for k, v in r.items() if k not in TIMED} for r in csv.DictReader(f)}
        finally:
            shutil.rmtree(out)


def total(rows: dict[str, Any], column: str) -> float:
    """Sum of a column; unknown counts as 0."""
    return sum(float(r[column] or 0) for r in rows.values())


def compared(runs: Runs, parts: tuple[Part, ...], change: Change) -> tuple[int, float, float]:
    """Rows that differ from those of the defaults, and how violation in s and BE throughput change in sum."""
    differ, violation, be = 0, 0.0, 0.0
    for part in parts:
        before, after = runs.rows(part), runs.rows(part, change)
        differ += sum(before[w] != after[w] for w in before)
        violation += total(after, "qos_violation_s") - total(before, "qos_violation_s")
        be += total(after, "be_throughput") - total(before, "be_throughput")
    return differ, violation, be


def differing(runs: Runs, part: Part, changes: list[Change]) -> list[Change]:
    """Those of `changes` that alone change a row of the part. Many are tried at once: no difference, then none of them."""
    if not changes or runs.rows(part) == runs.rows(part, *changes):
        return []
    if len(changes) == 1:
        return changes
    half = len(changes) // 2
    return differing(runs, part, changes[:half]) + differing(runs, part, changes[half:])


def table_lines(runs: Runs, whole: bool) -> tuple[list[str], list[str]]:
    """Lines of the table, and the settings that change no row at all."""
    listed = settings(PAGE.read_text(encoding="utf-8"))
    few: dict[Change, str] = {}
    idle: dict[str, list[Change]] = {}
    for setting in listed:
        changes = [(setting.name, setting.scaled(f)) for f in FACTORS.values() if setting.scaled(f) != setting.value]
        for change in changes:
            differ, violation, be = compared(runs, FEW, change)
            few[change] = f"{differ}: {violation:+.1f} s, {be:+.3f}" if differ else "0"
        if all(few[c] == "0" for c in changes):
            idle[setting.name] = changes
    for part in WHOLE if whole else ():
        for place in range(len(FACTORS)):
            left = [changes[place] for changes in idle.values() if len(changes) > place]
            for change in differing(runs, part, left):
                few[change] = f"0; changes {part.name}"
                idle.pop(change[0], None)
    lines = []
    for setting in listed:
        cells = [few.get((setting.name, setting.scaled(f)), "at its bound") for f in FACTORS.values()]
        if whole and setting.name in idle:
            cells = ["**nothing, on all sets**" if c == "0" else c for c in cells]
        lines.append(f"| `{setting.name}` | {', '.join(f'{x:g}' for x in setting.value)} | {' | '.join(cells)} |")
    return lines, list(idle)


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
    lines, idle = table_lines(runs, args.whole)
    table += lines
    table.append(f"\nWithout any change of a row: {', '.join(f'`{n}`' for n in idle) or 'none'}.")
    text = "\n".join(table) + "\n"
    if args.page:
        args.page.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
