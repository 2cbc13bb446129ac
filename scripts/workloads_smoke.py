"""Every workload of the catalogue on this machine: a latency-load curve of each LC service on one core, the rate of each BE job.

    python3 scripts/workloads_smoke.py [NAME...] [--out out/workloads]

Needs a container engine, the images (scripts/images.sh --all), the load generator (make rust) and two CPUs: the service gets
the first one, the load generator the last. A rate holds if the p99 of response times stays within the QoS target and the server
keeps up, in the better of two tries, because a shared machine spoils single runs. Rates are doubled from the first until one
fails, then the gap is halved. Writes NAME.json for each workload and table.md over all NAME.json of the folder.
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

REPO = Path(__file__).resolve().parent.parent
LOADGEN = REPO / "target/release/surefoot-loadgen"
HALVINGS = 3
SAMPLES = 500  # as many as bound a p99 from above in most runs
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


def load(entry: dict[str, Any], rps: float, cpu: int, seed: int) -> dict[str, Any]:
    """One run of the load generator; the row of the curve."""
    duration_s = min(max(SAMPLES / rps, SHORTEST_S), LONGEST_S)
    generator = entry["loadgen"]
    command = [str(LOADGEN), "--target", f"127.0.0.1:{entry['port']}", "--protocol", generator["protocol"]]
    command += ["--connections", str(generator["connections"]), "--rps", str(rps), "--duration", f"{duration_s:.1f}s"]
    command += ["--warmup", f"{entry['warmup_ms']}ms", "--grace", f"{max(1000.0, 2 * entry['qos_target_ms'])}ms"]
    command += ["--cpu", str(cpu), "--seed", str(seed), "--json", *generator.get("args", [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{entry['name']} at {rps:g} rps: {done.stderr.strip().splitlines()[-1]}")
    report = json.loads(done.stdout)
    if report["errors"]:
        raise Failed(f"{entry['name']} at {rps:g} rps: {report['errors']} errors, first: {report['first_error']}")
    times = report["response_time"]
    row = {
        "rps": rps,
        "offered_rps": report["offered_rps"],
        "achieved_rps": report["achieved_rps"],
        "completed": report["completed"],
    }
    row |= {f"{p}_ms": times[p]["value_ms"] for p in ("p50", "p95", "p99")}
    row["verdict"] = report["verdict"]["kind"]
    return row


def judged_ms(row: dict[str, Any]) -> float | None:
    """The p99, or for a service too slow to have one within a minute the p95."""
    return row["p99_ms"] if row["p99_ms"] is not None else row["p95_ms"]


def holds(row: dict[str, Any], target_ms: float) -> bool:
    judged = judged_ms(row)
    return row["verdict"] != "server-overloaded" and judged is not None and judged <= target_ms


def curve(entry: dict[str, Any], cpu: int) -> dict[str, Any]:
    """Double the rate until it fails, then halve the gap."""
    target = entry["qos_target_ms"]
    rows: list[dict[str, Any]] = []

    def tried(rps: float) -> bool:
        for seed in (1, 2):
            row = load(entry, rps, cpu, seed)
            rows.append(row | {"holds": holds(row, target)})
            judged = judged_ms(row)
            shown = "-" if judged is None else f"{judged:.2f}"
            print(f"{entry['name']:<14} {rps:>9.1f} rps  p99 {shown:>9} ms  {row['verdict']}", flush=True)
            if rows[-1]["holds"]:
                return True
        return False

    known = entry.get("max_load_rps", {}).get("local")
    rate = known / 4 if known else 0.25 if target >= 1000 else 5.0 if target >= 100 else 50.0
    if not tried(rate):
        return {"rows": rows, "max_load_rps": None}
    low, high = rate, rate * 2
    while tried(high):
        low, high = high, high * 2
    for _ in range(HALVINGS):
        middle = round((low + high) / 2, 2)
        low, high = (middle, high) if tried(middle) else (low, middle)
    return {"rows": rows, "max_load_rps": low}


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


def measure(entry: dict[str, Any]) -> dict[str, Any]:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        sys.exit("workloads-smoke: one CPU is too few: the load generator must not take the service's time")
    with Container(entry, cpus[0]) as container:
        if entry["kind"] == "be":
            found = rate_of(entry, container)
        else:
            container.wait_for_port()
            found = curve(entry, cpus[-1])
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
        at = "-" if not best else f"{judged_ms(best[-1]):.3g}" + ("" if best[-1]["p99_ms"] is not None else " (p95)")
        low = " / ".join("-" if first[p] is None else f"{first[p]:.3g}" for p in ("p50_ms", "p99_ms"))
        top = "none" if r["max_load_rps"] is None else f"{r['max_load_rps']:,g}"
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
            found = measure(entries[name])
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
