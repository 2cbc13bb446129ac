#!/usr/bin/env python3
"""What a control step costs with models: `surefootd run` on a virtual server with six LC services and a BE job.

For each policy: time from the start of the process to READY=1 (sd_notify, median and worst of so many starts), then runs over
workloads as fast as they go: the quantiles of a decision (all services, learning included where the policy learns) and the
daemon's memory at the end of a run in real time. The virtual server lives in the same process and counts.

    scripts/bench/control.py SUREFOOTD OUT_DIR BUNDLE PUBLIC_KEY [POLICY ...]
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SET = Path(__file__).resolve().parents[2] / "workloads" / "sets" / "lc6-be-server-2"
STARTS = 15
WORKLOADS = 6
REAL_S = 20
QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def config(path: Path, workload: Path, real: bool) -> Path:
    path.write_text(f'workload = "{workload}"\nrealtime = {str(real).lower()}\n', encoding="utf-8")
    return path


def command(args: list[str], policy: str, config_file: Path, seconds: int) -> list[str]:
    surefootd, _, bundle, key = args
    models = (
        [] if policy in ("parties-be", "unmanaged", "heracles", "clite", "equal-share") else ["--bundle", bundle, "--trust", key]
    )
    run = [surefootd, "run", "--server", "virtual:server-2", "--policy", policy, "--config", str(config_file)]
    return [*run, *models, "--duration-s", str(seconds)]


def ready_ms(args: list[str], policy: str, config_file: Path, out: Path) -> float:
    """From the start of the process to READY=1."""
    at = out / "notify.sock"
    at.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as said:
        said.bind(str(at))
        said.settimeout(30)
        env = os.environ | {"NOTIFY_SOCKET": str(at)}
        begin = time.monotonic()
        with subprocess.Popen(command(args, policy, config_file, REAL_S), env=env, **QUIET) as node:
            try:
                while b"READY=1" not in said.recv(4096):
                    pass
                return (time.monotonic() - begin) * 1e3
            finally:
                node.terminate()


def resident_mb(args: list[str], policy: str, config_file: Path) -> float:
    """The most that a daemon had resident over `REAL_S` s in real time."""
    with subprocess.Popen(command(args, policy, config_file, 2 * REAL_S), **QUIET) as node:
        try:
            time.sleep(REAL_S)
            status = Path(f"/proc/{node.pid}/status").read_text("utf-8")
        finally:
            node.terminate()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def main() -> None:
    if len(sys.argv) < 5:
        raise SystemExit(__doc__)
    args = sys.argv[1:5]
    out = Path(args[1])
    out.mkdir(parents=True, exist_ok=True)
    workloads = sorted(SET.glob("*.toml"))[:WORKLOADS]
    for policy in sys.argv[5:] or ["parties-be", "osml-plus", "surefoot"]:
        slow = config(out / "real.toml", workloads[0], real=True)
        starts = [ready_ms(args, policy, slow, out) for _ in range(STARTS)]
        phases = []
        for w in workloads:
            fast = config(out / "fast.toml", w, real=False)
            said = subprocess.run(command(args, policy, fast, 120), capture_output=True, text=True, check=True).stdout
            phases.append(json.loads(said.splitlines()[-1])["phases"])
        print(
            json.dumps(
                {
                    "policy": policy,
                    "ready_ms_median": round(statistics.median(starts), 1),
                    "ready_ms_worst": round(max(starts), 1),
                    "resident_mb": round(resident_mb(args, policy, slow), 1),
                    "phases_by_workload": phases,
                }
            )
        )


if __name__ == "__main__":
    main()
