"""What our stand-ins use: CPU time, resident memory, pages touched, service times; for the table of docs/workloads.md.

    python3 scripts/workloads/stand_ins.py [NAME...] [--out out/stand-ins] [--cpu N]
    python3 scripts/workloads/stand_ins.py --pid PID --seconds S

The first form needs a container engine and the images (scripts/images.sh NAME). Each program runs alone in its container, on one
CPU, with its entry's memory limit: a job with `--seconds --report`, a service with `--times`, which answers requests one after
another without a client. Programs that are not ours (memcached, nginx, redis, stream, middleware) have no such option and are
left out by name. Writes NAME.json for each and table.md over all NAME.json of the folder.

The second form watches any process of this machine, such as an original: user and system time of all its threads over S
seconds, resident memory, and the pages that it touched in them. It needs root, for /proc/PID/clear_refs.
Exit code: 0 all ran, 1 something failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from workloads_smoke import REPO, catalogue, engine

TIMEOUT_S = 600
JOB_SECONDS = 20
#: Requests of the slow services, so that each takes a minute or less.
TIMES = {"pocketsphinx": 30, "apertium": 1000, "mariadb": 3000, "login": 5000, "ads": 5000, "phrases": 20000}
DEFAULT_TIMES = 30000
#: Services whose work is done by other processes: their service times are by the wall clock.
ELSEWHERE = ("apertium", "mariadb")
NOT_OURS = ("memcached", "nginx", "redis", "stream", "middleware")


class Failed(Exception):
    """A program did not run, or did not say what it used."""


def command_of(entry: dict[str, Any]) -> list[str]:
    """The entry's command on one thread, ending by itself with a report."""
    command = [a.replace("{threads}", "1").replace("{port}", str(entry.get("port", ""))) for a in entry["command"]]
    if entry["kind"] == "be":
        return [*command, "--seconds", str(JOB_SECONDS), "--report"]
    return [*command, "--times", str(TIMES.get(entry["name"].removesuffix("-small"), DEFAULT_TIMES))]


def report_of(text: str, name: str) -> dict[str, Any]:
    """The last line of a program's output, which is its report."""
    last = (text.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "rss_mb" not in found:
        raise Failed(
            f'{name}: no report in its output, which ends with "{last}". Build its image again: scripts/images.sh {name}'
        )
    return found


def measure(entry: dict[str, Any], cpu: int) -> dict[str, Any]:
    name, memory = entry["name"], f"{entry.get('memory_mb', 1024)}m"
    start = [engine(), "run", "--rm", "--network", "host", "--cpuset-cpus", str(cpu), "--cap-drop", "ALL"]
    start += ["--security-opt", "no-new-privileges", "--pull", "never", "--memory", memory, "--memory-swap", memory]
    try:
        done = subprocess.run([*start, entry["image"], *command_of(entry)], capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise Failed(f"{name}: no end after {TIMEOUT_S} s. Give it fewer requests in TIMES") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [""])[-1]
        raise Failed(f"{name}: ended with code {done.returncode}: {said}")
    return {"name": name, "kind": entry["kind"], "load_average": os.getloadavg()[0]} | report_of(done.stdout, name)


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def row_of(found: dict[str, Any]) -> list[str]:
    """Cells of the table: CPU time is that of a request of a service, and of a job the two shares."""
    user, system = found["user_s"], found["sys_s"]
    each, unit = (found["requests"] / 1000, "ms") if found["kind"] == "lc" else ((user + system) / 100 or 1, "%")
    used = f"{figure(user / each)} / {figure(system / each)} {unit}"
    # Other programs of the machine do not lengthen CPU time; but the work of some is not the worker's.
    clock = "" if found["name"] in ELSEWHERE else "cpu_"
    times = [figure(found.get(clock + k)) for k in ("mean_ms", "cv", "p50_ms", "p95_ms", "p99_ms")]
    return [found["name"], used, figure(found["rss_mb"]), figure(found["touched_mb"]), *times]


def table(results: list[dict[str, Any]]) -> str:
    head = ["entry", "user / sys", "RSS, MB", "touched, MB", "service time: mean, ms", "cv", "p50, ms", "p95, ms", "p99, ms"]
    rows = [head, ["---"] * len(head), *(row_of(r) for r in results)]
    return "".join(f"| {' | '.join(r)} |\n" for r in rows)


def ticks_of(pid: int) -> tuple[int, int]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]), int(fields[12])


def watch(pid: int, seconds: float) -> dict[str, Any]:
    """As a program of ours says of itself, of any process."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        Path(f"/proc/{pid}/clear_refs").write_text("1")
        before, began = ticks_of(pid), time.monotonic()
        time.sleep(seconds)
        after, took = ticks_of(pid), time.monotonic() - began
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except FileNotFoundError:
        raise Failed(f"process {pid}: it has ended, or there is none") from None
    except PermissionError as e:
        raise Failed(f"process {pid}: {e.filename}: {e.strerror}. Run this as root") from None
    kib = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    user, system = ((b - a) / os.sysconf("SC_CLK_TCK") for a, b in zip(before, after, strict=True))
    used = {"user_s": user, "sys_s": system, "rss_mb": kib["Rss"] * 1024 / 1e6, "touched_mb": kib["Referenced"] * 1024 / 1e6}
    return {"name": name, "kind": "be", "seconds": took, "load_average": os.getloadavg()[0]} | used


def main() -> int:
    parser = argparse.ArgumentParser(description="what our stand-ins use")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=REPO / "out/stand-ins")
    parser.add_argument("--cpu", type=int, default=min(os.sched_getaffinity(0)))
    parser.add_argument("--pid", type=int, help="watch this process instead")
    parser.add_argument("--seconds", type=float, default=float(JOB_SECONDS))
    args = parser.parse_args()
    if args.pid is not None:
        if args.names or args.seconds <= 0:
            print("stand-ins: --pid takes --seconds above 0 and no names", file=sys.stderr)
            return 2
        try:
            print(json.dumps(watch(args.pid, args.seconds)))
        except Failed as e:
            print(f"stand-ins: FAILED: {e}", file=sys.stderr)
            return 1
        return 0
    entries = {n: e for n, e in catalogue().items() if n not in NOT_OURS}
    unknown = [n for n in args.names if n not in entries]
    if unknown:
        why = "is not ours and cannot time itself" if unknown[0] in NOT_OURS else "is no workload"
        print(f"stand-ins: {unknown[0]} {why}. Give some of {', '.join(entries)}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in args.names or entries:
        try:
            found = measure(entries[name], args.cpu)
        except Failed as e:
            print(f"stand-ins: FAILED: {e}", file=sys.stderr)
            failed = True
            continue
        print(f"{name}: {json.dumps(found)}", flush=True)
        part = args.out / f".{name}.part"
        part.write_text(json.dumps(found, indent=1) + "\n")
        part.replace(args.out / f"{name}.json")
    results = [json.loads(f.read_text()) for f in sorted(args.out.glob("*.json"))]
    (args.out / "table.md").write_text(table(results))
    print((args.out / "table.md").read_text())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
