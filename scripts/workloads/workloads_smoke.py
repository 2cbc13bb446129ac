"""Every workload of the catalogue on this machine: a latency-load curve of each LC service on one core, the rate of each BE job.

    python3 scripts/workloads/workloads_smoke.py [NAME...] [--out out/workloads]

Needs a container engine, the images (scripts/images.sh --all), the load generator (make rust) and two CPUs: the service gets
the first one, the load generator the last. The search is `surefoot-loadgen saturate`: a rate holds if less than 1 % of the
requests are slower than the QoS target, in the better of two tries, because a shared machine spoils single runs; sure_rps in
NAME.json is the highest rate that does so with 95 % confidence. Rates are doubled from the first until one fails, then the
gap is halved. Writes NAME.json for each workload and table.md over all NAME.json of the folder. A search that was killed goes
on from NAME.journal when the script is run again.
Exit code: 0 all ran, 1 something failed, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
LOADGEN = REPO / "target/release/surefoot-loadgen"
TRIES = 2
RESOLUTION = 0.125  # three halvings of a gap between a rate and its double
SHORTEST_S, LONGEST_S = 3.0, 60.0
BE_SECONDS = 6


class Failed(Exception):
    """A workload did not build, start or answer."""


def engine() -> str:
    name = os.environ.get("SUREFOOT_ENGINE") or shutil.which("docker") or shutil.which("podman")
    if not name:
        sys.exit("workloads-smoke: no container engine. Run scripts/engine.sh")
    return name


def catalogue() -> dict[str, dict[str, Any]]:
    files = sorted((REPO / "workloads").glob("*/workload.toml"))
    return {f.parent.name: tomllib.loads(f.read_text()) for f in files}


class Container:
    """One workload on one CPU, as Surefoot starts it; gone when the block ends."""

    def __init__(self, entry: dict[str, Any], cpu: int) -> None:
        self.entry, self.name, self.engine = entry, f"surefoot-smoke-{entry['name']}", engine()
        threads = entry.get("default_threads", 1)
        fill = {"{threads}": str(threads), "{port}": str(entry.get("port", ""))}
        command = list(entry["command"])
        for placeholder, value in fill.items():
            command = [a.replace(placeholder, value) for a in command]
        memory = f"{entry.get('memory_mb', 1024)}m"
        self.start = [self.engine, "run", "--detach", "--name", self.name, "--network", "host", "--cpuset-cpus", str(cpu)]
        # Precedence over what else runs on a machine that is not idle; alone on its CPU it changes nothing.
        self.start += ["--cpu-shares", "262144"]
        self.start += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pull", "never"]
        self.start += ["--memory", memory, "--memory-swap", memory, entry["image"], *command]

    def __enter__(self) -> Container:
        subprocess.run([self.engine, "rm", "--force", self.name], capture_output=True, check=False)
        done = subprocess.run(self.start, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"{self.entry['name']} does not start: {done.stderr.strip().splitlines()[-1]}")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([self.engine, "rm", "--force", self.name], capture_output=True, check=False)

    def log(self) -> list[str]:
        done = subprocess.run([self.engine, "logs", self.name], capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).splitlines()

    def wait_for_port(self, deadline_s: float = 120.0) -> None:
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.entry["port"])) == 0:
                    return
            running = subprocess.run(
                [self.engine, "inspect", "-f", "{{.State.Running}}", self.name], capture_output=True, text=True
            )
            if running.stdout.strip() != "true":
                raise Failed(f"{self.entry['name']} has ended: {' / '.join(self.log()[-2:])}")
            time.sleep(0.1)
        raise Failed(f"{self.entry['name']}: nothing listens on port {self.entry['port']} after {deadline_s:.0f} s")


def judged_ms(row: dict[str, Any]) -> float | None:
    """The percentile that was judged: the p99, or for a service too slow to have one within a minute the p95."""
    return row["p99_ms"] if row.get("judged", "p99") == "p99" else row["p95_ms"]


def row_of(point: dict[str, Any]) -> dict[str, Any]:
    """A point of the load generator's curve as a row of NAME.json."""
    same = ("rps", "offered_rps", "achieved_rps", "completed", "p50_ms", "p95_ms", "p99_ms", "verdict")
    return {k: point[k] for k in same} | {
        "judged": "p99" if point["judged_q"] >= 0.99 else "p95",
        "finding": point["finding"],
        "holds": point["finding"] in ("holds", "undecided-within"),
    }


def curve(entry: dict[str, Any], cpu: int, journal: Path) -> dict[str, Any]:
    """The max load at the target and the rates on the way to it."""
    target = entry["qos_target_ms"]
    known = entry.get("max_load_rps", {}).get("local")
    first = known / 4 if known else 0.25 if target >= 1000 else 5.0 if target >= 100 else 50.0
    generator = entry["loadgen"]
    command = [str(LOADGEN), "saturate", "--target", f"127.0.0.1:{entry['port']}", "--protocol", generator["protocol"]]
    command += ["--connections", str(generator["connections"]), "--qos-target-ms", str(target), "--from", str(first)]
    command += ["--resolution", str(RESOLUTION), "--tries", str(TRIES), "--points", "0"]
    command += ["--shortest", f"{SHORTEST_S}s", "--longest", f"{LONGEST_S}s", "--warmup", f"{entry['warmup_ms']}ms"]
    command += ["--grace", f"{max(1000.0, 2 * target)}ms", "--cpu", str(cpu), "--service", entry["name"]]
    command += ["--journal", str(journal), "--json", *generator.get("args", [])]
    # Its progress goes to our stderr; the last line there is what went wrong.
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{entry['name']}: the search ended with code {done.returncode}, see the line above")
    found = json.loads(done.stdout)
    print(f"{entry['name']}: {found['summary']}", flush=True)
    return {
        "rows": [row_of(p) for p in found["curve"]],
        "max_load_rps": found["observed_max_rps"],
        "sure_rps": found["max_load_rps"],
        "limited_by": found["limited_by"],
        "knee": found["knee"],
    }


def rate_of(entry: dict[str, Any], container: Container) -> dict[str, Any]:
    """Units of work a second of a BE job: the median of its lines, without the first."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        rates = [float(line.split()[1]) for line in container.log() if len(line.split()) == 2]
        if len(rates) > BE_SECONDS:
            rates = sorted(rates[1:])
            return {"rate": rates[len(rates) // 2]}
        time.sleep(0.5)
    raise Failed(f"{entry['name']}: no {BE_SECONDS} lines of progress within a minute")


def measure(entry: dict[str, Any], out: Path) -> dict[str, Any]:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        sys.exit("workloads-smoke: one CPU is too few: the load generator must not take the service's time")
    with Container(entry, cpus[0]) as container:
        if entry["kind"] == "be":
            found = rate_of(entry, container)
        else:
            container.wait_for_port()
            journal = out / f"{entry['name']}.journal"
            found = curve(entry, cpus[-1], journal)
            journal.unlink(missing_ok=True)
    return {"name": entry["name"], "kind": entry["kind"], "threads": entry.get("default_threads", 1)} | found


def table(out: Path, entries: dict[str, dict[str, Any]]) -> str:
    results = {f.stem: json.loads(f.read_text()) for f in sorted(out.glob("*.json"))}
    lines = [
        "| service | threads | QoS target, ms | p50 / p99 at low load, ms | max load on one core, rps | p99 there, ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, r in results.items():
        if r["kind"] != "lc" or name not in entries:
            continue
        first = r["rows"][0]
        best = [row for row in r["rows"] if row["holds"] and row["rps"] == r["max_load_rps"]]
        at = "-" if not best else f"{judged_ms(best[-1]):.3g}" + ("" if best[-1].get("judged", "p99") == "p99" else " (p95)")
        low = " / ".join("-" if first[p] is None else f"{first[p]:.3g}" for p in ("p50_ms", "p99_ms"))
        top = "none" if r["max_load_rps"] is None else f"{r['max_load_rps']:,g}"
        top += " (client-limited)" if r.get("limited_by") == "client" else ""
        lines.append(f"| {name} | {r['threads']} | {entries[name]['qos_target_ms']:g} | {low} | {top} | {at} |")
    lines += ["", "| job | units a second on one core |", "| --- | --- |"]
    lines += [f"| {n} | {r['rate']:.3g} |" for n, r in results.items() if r["kind"] == "be" and n in entries]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="a latency-load curve of every workload")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=REPO / "out/workloads")
    args = parser.parse_args()
    entries = catalogue()
    unknown = [n for n in args.names if n not in entries]
    if unknown:
        print(f"workloads-smoke: no workload {unknown[0]}. The catalogue has {', '.join(entries)}", file=sys.stderr)
        return 2
    if not LOADGEN.is_file():
        print("workloads-smoke: no load generator. Run: make rust", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in args.names or entries:
        try:
            found = measure(entries[name], args.out)
        except Failed as e:
            print(f"workloads-smoke: FAILED: {e}", file=sys.stderr)
            failed.append(name)
            continue
        part = args.out / f".{name}.part"
        part.write_text(json.dumps(found, indent=1) + "\n")
        part.replace(args.out / f"{name}.json")
        if found.get("max_load_rps", 0) is None:
            print(f"workloads-smoke: FAILED: {name} misses its target at the lowest rate", file=sys.stderr)
            failed.append(name)
    (args.out / "table.md").write_text(table(args.out, entries))
    print((args.out / "table.md").read_text())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
