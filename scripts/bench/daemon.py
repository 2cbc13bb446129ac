#!/usr/bin/env python3
"""What the daemon costs: `surefootd run` on this machine with six services and a decision every 100 ms, or as asked.

Three memcached containers under light load feed their latency back ten times a second; three memory-streaming BE jobs run
beside them. CPU share and memory are the daemon's own, scraped after a warm-up and at the end, so that starting containers is
left out. Needs root, a container engine and the images (make images).

    scripts/bench/daemon.py BIN_DIR OUT_DIR [SECONDS] [POLICY[:BUNDLE] ...] [--interval-ms N] [--services LC,BE] [--warm-up S]
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

PORT = 9470
RPS = 500
START_S = 90


@dataclass(frozen=True)
class Bed:
    """How often the daemon decides, of how many services and jobs, and after how long it is measured."""

    interval_ms: int
    lc: int
    be: int
    warm_up_s: float


def scrape() -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as reply:
        lines = reply.read().decode().splitlines()
    return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def config(path: Path, bed: Bed) -> None:
    text = f'metrics_port = {PORT}\nstate_dir = "state"\ninterval_ms = {bed.interval_ms}\n'
    for n in range(bed.lc):
        text += f'[[service]]\nservice = "memcached"\nid = "memcached-{n}"\nport = {21400 + n}\n'
    for n in range(bed.be):
        text += f'[[service]]\nservice = "stream"\nid = "stream-{n}"\n'
    path.write_text(text, encoding="utf-8")


def measure(binaries: Path, out: Path, seconds: float, policy: str, bundle: str, bed: Bed) -> dict[str, object]:
    out.mkdir(parents=True, exist_ok=True)
    config(out / "node.toml", bed)
    args = [str(binaries / "surefootd"), "run", "--server", "local", "--policy", policy, "--config", str(out / "node.toml")]
    if bundle:
        args += ["--bundle", bundle]
    loads: list[subprocess.Popen[bytes]] = []
    log = out / f"{policy}.log"
    with log.open("w", encoding="utf-8") as err:
        node = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=err, text=True)
        try:
            deadline = time.monotonic() + START_S
            while " on local:" not in log.read_text("utf-8"):
                if node.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"bench_daemon: the daemon did not start; see {log}")
                time.sleep(0.1)
            for n in range(bed.lc):
                load = [str(binaries / "surefoot-loadgen"), "--protocol", "memcached", "--target", f"127.0.0.1:{21400 + n}"]
                load += ["--rps", str(RPS), "--duration", f"{seconds + 2 * bed.warm_up_s:g}s", "--warmup", "1s"]
                load += ["--connections", "4"]
                load += ["--service", f"memcached-{n}", "--feed", str(out / "state" / "feed.sock"), "--json"]
                loads.append(subprocess.Popen(load, stdout=subprocess.DEVNULL, stderr=err))
            time.sleep(bed.warm_up_s)
            first, begin = scrape(), time.monotonic()
            time.sleep(seconds)
            last, span_s = scrape(), time.monotonic() - begin
        finally:
            node.send_signal(signal.SIGTERM)
            said, _ = node.communicate(timeout=60)
            for p in loads:
                p.kill()
                p.wait()
    used = last["process_cpu_seconds_total"] - first["process_cpu_seconds_total"]
    return {
        "policy": policy,
        "seconds": round(span_s, 1),
        "cpu_percent_of_a_core": round(100 * used / span_s, 3),
        "rss_mb": round(last["process_resident_memory_bytes"] / 1e6, 2),
        "latency_seen": sum(1 for k in last if k.startswith("surefoot_p99_seconds{")),
        **json.loads(said.splitlines()[-1])["phases"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    parser.add_argument("policies", nargs="*", default=["unmanaged", "parties-be"])
    parser.add_argument("--interval-ms", type=int, default=100)
    parser.add_argument("--services", default="3,3")
    parser.add_argument("--warm-up", type=float, default=30.0)
    args = parser.parse_args()
    lc, be = (int(n) for n in args.services.split(","))
    bed = Bed(args.interval_ms, lc, be, args.warm_up)
    for name in args.policies:
        policy, _, bundle = name.partition(":")
        print(json.dumps(measure(args.binaries.resolve(), args.out.resolve() / policy, args.seconds, policy, bundle, bed)))


if __name__ == "__main__":
    main()
