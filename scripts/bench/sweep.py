"""Figures of `surefootd sweep`: the demo's campaign, the OSML+ paper's, and whether cost is linear in cases and in services.

    python3 scripts/bench/sweep.py SUREFOOTD FOLDER [demo] [paper] [linear]

The data are removed again. CPU seconds are those of the process (user + system), RSS is its peak.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

SERVICES = ("moses", "xapian", "img-dnn", "specjbb", "masstree", "mongodb", "nginx", "memcached")
CAMPAIGN = """\
name = "linear"
[targets]
virtual = ["server-1"]
[sweep]
services = [{services}]
threads = [{threads}]
neighbours = {{ count = [{neighbours}], draws = {draws} }}
[sampling]
interval_ms = 1000
samples = {samples}
"""


@dataclass(frozen=True)
class Run:
    wall_s: float
    cpu_s: float
    rss_mib: float
    told: dict[str, Any]

    def __str__(self) -> str:
        return f"wall {self.wall_s:.2f} s, CPU {self.cpu_s:.2f} s, peak RSS {self.rss_mib:.0f} MiB"


@dataclass(frozen=True)
class Figures:
    run: Run
    rows: int
    cases: int  # without infeasible ones
    bytes: int

    def __str__(self) -> str:
        return (
            f"{self.cases:,} cases, {self.rows:,} rows, {self.bytes / 1e6:,.1f} MB; {self.run}; "
            f"{self.rows / self.run.wall_s:,.0f} rows/s, {self.run.cpu_s / self.rows * 1e6:.2f} us of CPU a row"
        )


def run(binary: str, campaign: Path, *extra: str) -> Run:
    command = [binary, "sweep", str(campaign), "--server", "virtual:server-1", "--json", "--progress", "none", *extra]
    start = monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    wall_s = monotonic() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"bench: {' '.join(command)}: exit code {child.returncode}")
    return Run(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, json.loads(told))


def sweep(binary: str, campaign: Path, folder: Path, *extra: str, resume: bool = False) -> Figures:
    """Run a campaign into a fresh folder inside `folder`; with `resume`, also look at it again once it is whole."""
    place = Path(tempfile.mkdtemp(dir=folder))
    out = place / "data"
    try:
        done = run(binary, campaign, "--out", str(out), *extra)
        if resume:
            print(
                f"{campaign}: resume of what is whole: {run(binary, campaign, '--out', str(out), '--resume', *extra)}", flush=True
            )
        cases = done.told["cases"]["planned"] - done.told["cases"]["infeasible"]
        size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
        return Figures(done, done.told["rows"], cases, size)
    finally:
        shutil.rmtree(place)


def written(folder: Path, services: int, threads: int, neighbours: int, draws: int, samples: int) -> Path:
    """A campaign over every allocation of server-1."""
    file = folder / "linear.toml"
    named = ", ".join(f'"{s}"' for s in SERVICES[:services])
    counts = ", ".join(str(36 - i) for i in range(threads))
    text = CAMPAIGN.format(services=named, threads=counts, neighbours=neighbours, draws=draws, samples=samples)
    file.write_text(text, encoding="utf-8")
    return file


def least(binary: str, campaign: Path, folder: Path, runs: int = 3) -> Figures:
    """The run with the least CPU time: what disturbs a run only adds to it. One thread, so that nothing waits for another."""
    return min((sweep(binary, campaign, folder, "--threads", "1") for _ in range(runs)), key=lambda f: f.run.cpu_s)


def series(title: str, figures: dict[str, Figures]) -> None:
    """CPU time a case, and relative to the first."""
    cost = {name: f.run.cpu_s / f.cases * 1e6 for name, f in figures.items()}
    first = next(iter(cost.values()))
    print(f"{title}: " + "; ".join(f"{name}: {us:.1f} us a case ({us / first:.2f})" for name, us in cost.items()), flush=True)


def main() -> int:
    binary, folder, *parts = sys.argv[1:]
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    if not parts or "demo" in parts:
        for _ in range(5):
            print(f"examples/demo-virtual.toml: {sweep(binary, Path('examples/demo-virtual.toml'), place)}", flush=True)
    if not parts or "linear" in parts:
        by_size = {f"{n}/8": least(binary, written(place, 8, n, 0, 1, 10), place, 2) for n in (2, 4, 8)}
        series("cost in cases (parts of a campaign, 10 samples a case)", by_size)
        print("peak RSS of these: " + ", ".join(f"{f.run.rss_mib:.0f} MiB" for f in by_size.values()))
        by_services = {f"{n}": least(binary, written(place, n, 16 // n, 0, 1, 10), place, 2) for n in (1, 2, 4, 8)}
        series("cost in services (as many cases of 1, 2, 4, 8 services, 10 samples a case)", by_services)
        together = {f"{n + 1}": least(binary, written(place, 8, 1, n, 4, 1), place) for n in (0, 1, 3, 7)}
        series("cost in services (1, 2, 4, 8 on one server, 1 sample a case)", together)
        (place / "linear.toml").unlink()
    if not parts or "paper" in parts:
        paper = Path("examples/paper-server-1.toml")
        print(f"{paper}: plan: {run(binary, paper, '--plan')}", flush=True)
        print(f"{paper}: {sweep(binary, paper, place, resume=True)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
