#!/usr/bin/env python3
"""What the daemon costs: `surefootd run` on this machine with six services, a decision every 100 ms.

Three memcached containers under light load feed their latency back ten times a second; three memory-streaming BE jobs run
beside them. CPU share and memory are the daemon's own, scraped after a warm-up and at the end, so that starting containers is
left out. Needs root, a container engine and the images (make images).

    scripts/bench/daemon.py BIN_DIR OUT_DIR [SECONDS] [POLICY[:BUNDLE] ...]
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

PORT = 9470
LC, BE = 3, 3
RPS = 500
WARMUP_S = 30
START_S = 90


def scrape() -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as reply:
        lines = reply.read().decode().splitlines()
    return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def config(path: Path) -> None:
    text = f'metrics_port = {PORT}\nstate_dir = "state"\n'
    for n in range(LC):
        text += f'[[service]]\nservice = "memcached"\nid = "memcached-{n}"\nport = {21400 + n}\n'
    for n in range(BE):
        text += f'[[service]]\nservice = "stream"\nid = "stream-{n}"\n'
    path.write_text(text, encoding="utf-8")


def measure(binaries: Path, out: Path, seconds: float, policy: str, bundle: str) -> dict[str, object]:
    out.mkdir(parents=True, exist_ok=True)
    config(out / "node.toml")
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
            for n in range(LC):
                load = [str(binaries / "surefoot-loadgen"), "--protocol", "memcached", "--target", f"127.0.0.1:{21400 + n}"]
                load += ["--rps", str(RPS), "--duration", f"{seconds + 2 * WARMUP_S:g}s", "--warmup", "1s", "--connections", "4"]
                load += ["--service", f"memcached-{n}", "--feed", str(out / "state" / "feed.sock"), "--json"]
                loads.append(subprocess.Popen(load, stdout=subprocess.DEVNULL, stderr=err))
            time.sleep(WARMUP_S)
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
        "latency_seen": sum(1 for k in last if k.startswith("surefoot_p99_ms{")),
        **json.loads(said.splitlines()[-1])["phases"],
    }


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    binaries, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 60.0
    for name in sys.argv[4:] or ["unmanaged", "parties"]:
        policy, _, bundle = name.partition(":")
        print(json.dumps(measure(binaries, out / policy, seconds, policy, bundle)))


if __name__ == "__main__":
    main()
