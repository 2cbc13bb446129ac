"""p99 of surefoot-loadgen and of the originals' load generators, on the same server at the same rates, in turns.

    python3 scripts/workloads/originals_side_by_side.py [--rounds N] [--seconds S] [--server-cpu C] [--client-cpu C]

Needs the load generators of scripts/originals.sh and the images memcached and nginx. Prints a row for each tool and rate: medians
over the rounds, with the least and the greatest p99 (docs/workloads.md).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from collection import tools
from collection.adapters import Known, read

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "workloads" / "originals" / "built"
PORT = 24211
KEYS, VALUE = 10_000, 200
MEMCACHED = ["memcached", "-l", "127.0.0.1", "-p", str(PORT), "-U", "0", "-t", "1", "-m", "128"]
NGINX = ["serve", str(PORT), "1"]


def theirs(tool: str, rps: int, seconds: int, out: Path) -> tuple[list[str], str]:
    """Command of a tool, and the adapter's name for what it prints."""
    name, program = {"mutilate": ("mutilate", "mutilate"), "memtier": ("memtier_benchmark",) * 2, "wrk2": ("wrk2", "wrk")}[tool]
    lib = BUILT / tool / "lib"
    start = [str(lib / "ld-linux-x86-64.so.2"), "--library-path", str(lib), str(BUILT / tool / "bin" / program)]
    if tool == "mutilate":
        to = ["-s", f"127.0.0.1:{PORT}", "-q", str(rps), "-T", "1", "-c", "16", "-t", str(seconds)]
        return [*start, *to, f"--records={KEYS}", f"--valuesize={VALUE}"], name
    if tool == "memtier":
        to = ["-s", "127.0.0.1", "-p", str(PORT), "-P", "memcache_text", "-t", "1", "-c", "10", f"--rate-limiting={rps // 10}"]
        keys = [f"--key-maximum={KEYS}", f"--data-size={VALUE}", f"--json-out-file={out}"]
        return [*start, *to, *keys, "--ratio=0:1", f"--test-time={seconds}"], name
    # its first ten seconds are not measured
    url = f"http://127.0.0.1:{PORT}/"
    return [*start, "-t", "1", "-c", "16", "-R", str(rps), "-d", f"{seconds + 11}s", "--latency", url], name


def ours(protocol: str, rps: int, seconds: int, seed: int) -> list[str]:
    to = ["--target", f"127.0.0.1:{PORT}", "--protocol", protocol, "--connections", "16", "--rps", str(rps), "--seed", str(seed)]
    return [str(tools.find(tools.LOADGEN)), *to, "--warmup", "1s", "--duration", f"{seconds}s", "--json"]


def pinned(cpu: int, command: list[str], out: Path) -> None:
    with out.open("w") as file:
        done = subprocess.run(["taskset", "-c", str(cpu), *command], stdout=file, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]}: {done.stderr.strip()[-300:]}")


def middle(rows: list[tuple[float | None, float | None]], which: int) -> str:
    values = [r[which] for r in rows if r[which] is not None]
    return f"{statistics.median(values):.3g}" if values else "–"


def ends(rows: list[tuple[float | None, float | None]]) -> str:
    values = [p99 for _, p99 in rows if p99 is not None]
    return f"{min(values):.3g} to {max(values):.3g}" if values else "–"


def main() -> None:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=int, default=10)
    p.add_argument("--server-cpu", type=int, default=0)
    p.add_argument("--client-cpu", type=int, default=1)
    o = p.parse_args()
    engine = os.environ.get("SUREFOOT_ENGINE", "docker")
    print("| server | rate, rps | tool | its p50 / p99, ms | ours, ms | its p99 from to | ours from to | load average |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        for tool, image, serve, protocol, rates in (
            ("mutilate", "memcached", MEMCACHED, "memcached", (1000, 2000, 4000)),
            ("memtier", "memcached", MEMCACHED, "memcached", (1000, 2000, 4000)),
            ("wrk2", "nginx", NGINX, "http", (1000, 2000)),
        ):
            run = [
                engine,
                "run",
                "-d",
                "--rm",
                "--network",
                "host",
                "--cpuset-cpus",
                str(o.server_cpu),
                "--cpu-shares",
                "262144",
                f"surefoot/{image}",
            ]
            server = subprocess.run([*run, *serve], check=True, capture_output=True, text=True).stdout.strip()
            try:
                time.sleep(1)
                if tool == "memtier":
                    command, _ = theirs(tool, 1000, 1, out)
                    load = [a for a in command if not a.startswith(("--rate", "--test-time", "--ratio"))]
                    pinned(
                        o.client_cpu, [*load, "--ratio=1:0", "--key-pattern=P:P", "--requests=allkeys"], Path(scratch) / "load"
                    )
                for rps in rates:
                    its, own = [], []
                    for n in range(o.rounds):
                        command, name = theirs(tool, rps, o.seconds, out)
                        printed = Path(scratch) / "stdout"
                        pinned(o.client_cpu, command, printed)
                        rows = read(name, out if tool == "memtier" else printed, Known(o.seconds, float(rps)))
                        row = next(r for r in rows if r.p99_ms is not None)
                        its.append((row.p50_ms, row.p99_ms))
                        pinned(o.client_cpu, ours(protocol, rps, o.seconds, n), printed)
                        report = json.loads(printed.read_text("utf-8"))
                        found = report["response_time"]
                        own.append((found["p50"]["value_ms"], found["p99"]["value_ms"]))
                    both = " | ".join(f"{middle(rows, 0)} / {middle(rows, 1)}" for rows in (its, own))
                    spread = " | ".join(ends(rows) for rows in (its, own))
                    print(f"| {image} | {rps:,} | {tool} | {both} | {spread} | {os.getloadavg()[0]:.1f} |", flush=True)
            finally:
                subprocess.run([engine, "rm", "-f", server], capture_output=True)


if __name__ == "__main__":
    main()
