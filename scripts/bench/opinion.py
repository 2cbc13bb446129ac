#!/usr/bin/env python3
"""Does the virtual server say of policies what every request by itself says?

The same runs twice, by the laws of queues and with `--exact`, and a table of both: means, their ratio, and in how many workloads
the order of the policies is the same. Worlds are taken some at a time, and an interrupted run is gone on with; `--so-far` prints
the table of what is there. Each case of 150 s takes some 20 s of a CPU.

    scripts/bench/opinion.py SUREFOOTD OUT [--worlds RANGE:FIRST..LAST] [--policies NAMES] [--bundle B] [--so-far]
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path

# Two policies whose violations of a workload differ by less than this are equally good there.
SAME_S = 1.0
SAME_SHARE = 0.1
# Worlds that are one evaluation.
AT_ONCE = 5


def rows_of(folders: list[Path]) -> dict[tuple[str, str, str], dict[str, str]]:
    rows = {}
    for folder in folders:
        with (folder / "rows.csv").open(encoding="utf-8", newline="") as file:
            rows |= {(r["workload"], r["policy"], r["seed"]): r for r in csv.DictReader(file)}
    return rows


def parts(worlds: str) -> list[str]:
    """A range of worlds, some at a time."""
    name, _, numbers = worlds.partition(":")
    first, _, last = numbers.partition("..")
    end = int(last or first)
    return [f"{name}:{n}..{min(n + AT_ONCE - 1, end)}" for n in range(int(first), end + 1, AT_ONCE)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def better(a: float, b: float) -> int:
    """-1: the first is better, 1: the second is, 0: neither."""
    if abs(a - b) < max(SAME_S, SAME_SHARE * max(a, b)):
        return 0
    return -1 if a < b else 1


def main() -> int:
    """Run both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("surefootd", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--worlds", default="test:1..200")
    parser.add_argument("--policies", default="parties-be,osml-plus")
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--so-far", action="store_true")
    args = parser.parse_args()
    policies = args.policies.split(",")
    command = [str(args.surefootd), "eval", "--policies", args.policies, "--timelines", "none"]
    if args.bundle:
        command += ["--bundle", str(args.bundle), "--harm", "foreign-bundle"]
    done: dict[str, list[Path]] = {"law": [], "exact": []}
    for worlds in parts(args.worlds):
        folders = {name: args.out / name / worlds.replace(":", "-").replace("..", "-") for name in done}
        for name, more in (("law", []), ("exact", ["--exact"])):
            if not args.so_far and not (folders[name] / "rows.csv").exists():
                subprocess.run([*command, *more, "--worlds", worlds, "--out", str(folders[name])], check=True)
        if all((folder / "rows.csv").exists() for folder in folders.values()):
            for name, folder in folders.items():
                done[name].append(folder)
    law, exact = rows_of(done["law"]), rows_of(done["exact"])
    if not law:
        sys.exit(f"{args.out}: no worlds are done. Run it without --so-far first")
    if law.keys() != exact.keys():
        sys.exit(f"{args.out}: the two runs have other rows. Remove the folder and run both again")

    print("| policy | value | by law | by request | ratio |\n| --- | --- | --- | --- | --- |")
    for policy in policies:
        keys = [k for k in law if k[1] == policy]
        both = [k for k in keys if law[k]["converged"] == exact[k]["converged"] == "true"]
        for name, among in (("qos_violation_s", keys), ("emu", keys), ("convergence_s", both), ("be_throughput_met", keys)):
            a, b = (mean([float(rows[k][name] or 0) for k in among]) for rows in (law, exact))
            print(f"| {policy} | {name} ({len(among)} runs) | {a:.3f} | {b:.3f} | {a / b if b else float('nan'):.3f} |")
        a, b = (sum(rows[k]["converged"] == "true" for k in keys) for rows in (law, exact))
        print(f"| {policy} | converged of {len(keys)} | {a} | {b} | {a / b if b else float('nan'):.3f} |")

    for first, second in combinations(policies, 2):
        verdicts: dict[str, list[str]] = defaultdict(list)
        for workload, _, seed in sorted(k for k in law if k[1] == first):
            violations = [[float(rows[workload, p, seed]["qos_violation_s"]) for p in (first, second)] for rows in (law, exact)]
            signs = [better(*pair) for pair in violations]
            kind = "the same" if signs[0] == signs[1] else "reversed" if signs[0] * signs[1] < 0 else "a tie in one of them"
            verdicts[kind].append(workload)
        total = sum(map(len, verdicts.values()))
        told = ", ".join(f"{kind} in {len(names)} ({100 * len(names) / total:.1f} %)" for kind, names in sorted(verdicts.items()))
        print(f"\norder of {first} and {second} by seconds of violation, {total} runs: {told}")
        if reversed_ := verdicts.get("reversed"):
            print("reversed: " + ", ".join(reversed_))
    return 0


if __name__ == "__main__":
    sys.exit(main())
