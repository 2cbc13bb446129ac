"""A lab hour: cells per hour on real containers, by `surefootd sweep` and with a relaunch of the service for each cell.

    python3 scripts/bench/lab_hour.py SUREFOOTD [--services NAME...] [--rps RPS...] [--cores C...] [--blocks 2] [--json FILE]

A campaign of three services at every load of the catalogue: one that starts at once (memcached) and two with data to load
(MariaDB, Xapian). Both sides measure the same cells with the same samples, block by block in turn (engine first, then relaunch
first, ...), each cell once: on a busy host, second tries would fall to one side or the other by chance. Each block is a sweep of
its own, with the start of its containers. Both have the same `warmup_ms`; the relaunch side needs all of it, as a service that
was just started has not settled. Its 3 s are what the published collection waits for a cell: 1 s of warm-up and 1 s for the
monitors after the start, 1 s after setting the allocation.

Exit code 1 below 3 times the cells per hour. Needs a container engine, the services' images and root; wants a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import polars as pl

REPO = Path(__file__).resolve().parents[2]
BAR = 3.0
SIDES = {"engine": (), "relaunch": ("--relaunch",)}
CAMPAIGN = """\
name = "lab-hour-{block}"
seed = {block}
[targets]
local = true
[sweep]
services = {services}
rps = {rps}
threads = [1]
cores = {cores}
[sampling]
warmup_ms = 3000
interval_ms = 100
samples = 10
"""
SERVICES = ["memcached", "mariadb", "xapian"]
CORES = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
Cell = tuple[str, float, float]  # service, RPS, cores


@dataclass(frozen=True)
class Sweep:
    """One block of one side."""

    wall_s: float
    cases: int
    spoilt: int  # cases without a p99 that can be believed: client-limited, failed
    marked: int  # disturbed or unsettled
    warmup_ms: list[float]  # of each case: up to the first sample
    meets_qos: dict[Cell, bool]
    p99_ms: dict[Cell, float]


def sweep(surefootd: Path, campaign: str, more: tuple[str, ...], scratch: Path) -> Sweep:
    """Run it in a folder of its own."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    file, out = folder / "campaign.toml", folder / "out"
    file.write_text(campaign, "utf-8")
    command = [str(surefootd.resolve()), "sweep", str(file), "--server", "local", "--out", str(out), "--json"]
    command += ["--tries", "1", "--progress", "none", "--state", str(scratch / "state")]
    command += ["--catalogue", str(REPO / "workloads"), *more]
    start = monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    wall_s = monotonic() - start
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    cases = json.loads(done.stdout)["cases"]
    targets_ms = qos_targets_ms(out)
    rows = pl.read_parquet(sorted((out / "shards").glob("*.parquet"))).filter(pl.col("verdict") != "client-limited")
    per_case = rows.group_by("service", "rps", "alloc_cores").agg(
        (pl.col("t_ms").min() - 100).alias("warmup_ms"),
        pl.col("latency_p99_ms").median().alias("p99_ms"),
        (pl.col("verdict") == "server-overloaded").any().alias("overloaded"),
    )
    meets, p99 = {}, {}
    for found in per_case.iter_rows(named=True):
        cell = (found["service"], found["rps"], round(found["alloc_cores"], 3))
        slow = found["overloaded"] or found["p99_ms"] is None
        p99[cell] = float("inf") if slow else found["p99_ms"]
        meets[cell] = p99[cell] <= targets_ms[cell[0]]
    marked = cases.get("disturbed", 0) + cases.get("unsettled", 0)
    spoilt = cases["client_limited"] + cases["failed"]
    return Sweep(wall_s, cases["planned"], spoilt, marked, per_case["warmup_ms"].to_list(), meets, p99)


def qos_targets_ms(out: Path) -> dict[str, float]:
    """Of each service, from the manifest of a sweep."""
    services = json.loads((out / "manifest.json").read_text("utf-8"))["services"]
    return {name: float(service["qos_target_ms"]) for name, service in services.items()}


def agreement(pairs: list[tuple[Sweep, Sweep]]) -> tuple[int, int, list[str]]:
    """Cells on the same side of the target, cells that both have, and those that differ."""
    same, common, other = 0, 0, []
    for a, b in pairs:
        for cell in sorted(a.meets_qos.keys() & b.meets_qos.keys()):
            common += 1
            if a.meets_qos[cell] == b.meets_qos[cell]:
                same += 1
            else:
                other.append(f"{cell[0]} at {cell[1]:g} RPS on {cell[2]} cores: {a.p99_ms[cell]:.1f} and {b.p99_ms[cell]:.1f} ms")
    return same, common, other


def summary(found: dict[str, list[Sweep]]) -> dict[str, Any]:
    """Figures of both sides; `ratio` is of cells per hour."""
    value: dict[str, Any] = {}
    for side, sweeps in found.items():
        cases, wall_s = sum(s.cases for s in sweeps), sum(s.wall_s for s in sweeps)
        warmups = [ms for s in sweeps for ms in s.warmup_ms]
        value[side] = {
            "cells": cases,
            "wall_s": round(wall_s, 1),
            "cells_per_hour": round(3600 * cases / wall_s),
            "s_per_cell": round(wall_s / cases, 2),
            "median_warmup_ms": median(warmups) if warmups else None,
            "marked": sum(s.marked for s in sweeps),
            "spoilt": sum(s.spoilt for s in sweeps),
        }
    value["ratio"] = round(value["relaunch"]["s_per_cell"] / value["engine"]["s_per_cell"], 2)
    same, common, other = agreement(list(zip(found["engine"], found["relaunch"], strict=True)))
    value["agree"] = {"same_side": same, "of": common, "differ": other}
    # what one side agrees with itself is all that can be asked of the other
    within = found["relaunch"]
    same, common, _ = agreement(list(pairwise(within)))
    value["relaunch_with_itself"] = {"same_side": same, "of": common}
    return value


def main() -> int:
    """Run the blocks and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("surefootd", type=Path)
    parser.add_argument("--services", nargs="+", default=SERVICES)
    parser.add_argument("--rps", type=float, nargs="+", help="of each service; else the catalogue's levels")
    parser.add_argument("--cores", type=float, nargs="+", default=CORES)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, list[Sweep]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as scratch:
        for block in range(args.blocks):
            # TOML's arrays of text and numbers are written as JSON's are
            rps, services, cores = (json.dumps(v) for v in (args.rps or "catalogue", args.services, args.cores))
            campaign = CAMPAIGN.format(block=block, services=services, rps=rps, cores=cores)
            for side in list(SIDES)[:: 1 if block % 2 == 0 else -1]:
                s = sweep(args.surefootd, campaign, SIDES[side], Path(scratch))
                found[side].append(s)
                print(f"block {block + 1} of {args.blocks}, {side}: {s.cases} cells in {s.wall_s:.1f} s", file=sys.stderr)
    value = summary(found)
    for side in SIDES:
        v = value[side]
        print(
            f"{side:<9} {v['cells_per_hour']:>6,} cells/h: {v['cells']} cells, {v['s_per_cell']} s each, of it "
            f"{v['median_warmup_ms']:.0f} ms before the samples (median); {v['marked']} marked, {v['spoilt']} without a p99"
        )
    agree, itself = value["agree"], value["relaunch_with_itself"]
    print(f"ratio {value['ratio']} (bar {BAR})")
    print(f"same side of the QoS target: {agree['same_side']} of {agree['of']} cells; relaunch, block with block:", end=" ")
    print(f"{itself['same_side']} of {itself['of']}")
    for cell in agree["differ"]:
        print(f"  differ (engine and relaunch): {cell}")
    if args.json:
        args.json.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
    return 0 if value["ratio"] >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
