#!/usr/bin/env python3
"""What a flood of the latency socket costs the daemon, and what honest senders lose beside it.

`surefootd run` with three LC services, each a cgroup of its own, and two honest senders of ten datagrams a second. Beside them,
one scenario after another, processes of user nobody that send as much as is said. Of each scenario: honest datagrams that the
kernel or the daemon did not take, CPU of the daemon, how late its ticks were (against the tick before). Needs root.

    scripts/bench/feed.py BIN_DIR OUT_DIR [SECONDS]
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path

PORT = 9471
SERVICES = ["a", "b", "c"]
INTERVAL_MS = 100
NOBODY = 65534
START_S = 60
# Name, processes, datagrams a second each (0: as fast as it can), contents.
SCENARIOS = [
    ("none", 0, 0, ""),
    ("one sender, valid for its own service", 1, 50_000, "valid"),
    ("one sender, malformed", 1, 50_000, "malformed"),
    ("one sender, 200,000 bytes each", 1, 50_000, "long"),
    ("sixteen processes of one user", 16, 3125, "malformed"),
    ("one sender, as fast as it can", 1, 0, "valid"),
    ("four senders, as fast as they can", 4, 0, "malformed"),
]


def leb128(v: int) -> bytes:
    n = -2 * v - 1 if v < 0 else 2 * v
    out = b""
    while True:
        out += bytes([(n & 0x7F) | (0x80 if n > 0x7F else 0)])
        n >>= 7
        if not n:
            return out


def datagram(service: str, window_ms: int) -> bytes:
    """200 answers within 0.1 ms: HdrHistogram V2 of a single cell."""
    counts = leb128(-1000) + leb128(200)
    raw = struct.pack(">IIIIQQd", 0x1C849313, len(counts), 0, 3, 1, 3_600_000_000_000, 1.0) + counts
    text = base64.b64encode(raw).decode()
    return f'{{"service":"{service}","window_ms":{window_ms},"count":200,"unit":"ns","histogram":"{text}"}}'.encode()


def flood(path: str, rate: int, what: str, cgroups: list[Path]) -> None:
    """A process of nobody's, until it is killed: how many datagrams it got rid of is what it says then."""
    for d in cgroups:
        (d / "cgroup.procs").write_text("0")
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    text = {"valid": datagram("c", 1), "malformed": b'{"service":"a",' + b" " * 200, "long": b"x" * 200_000}[what]
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.setblocking(False)
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    begin, sent, tried = time.monotonic(), 0, 0
    while not ended:
        due = tried + 1000 if rate == 0 else int((time.monotonic() - begin) * rate)
        while tried < due and not ended:
            tried += 1
            try:
                s.sendto(text, path)
                sent += 1
            except OSError:
                pass
        if rate:
            time.sleep(0.0005)
    print(json.dumps({"sent": sent, "tried": tried, "seconds": time.monotonic() - begin}))


def honest(path: str, service: str) -> None:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.setblocking(False)
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    text, sent, lost, due = datagram(service, 100), 0, 0, time.monotonic()
    while not ended:
        due += 0.1
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            s.sendto(text, path)
            sent += 1
        except OSError:
            lost += 1
    # Its last word is heard while it is still there.
    time.sleep(0.2)
    print(json.dumps({"sent": sent, "lost": lost}))


def hierarchies() -> list[Path]:
    """Where cgroups with cpu and cpuset are made: cpu and cpuset of version 1, else version 2."""
    v1: dict[str, Path] = {}
    v2 = None
    for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines():
        left, right = line.split(" - ", 1)
        at, kind = Path(left.split(" ")[4]), right.split(" ")[0]
        if kind == "cgroup":
            v1.update((c, at) for c in right.split(" ")[2].split(",") if c in ("cpu", "cpuset"))
        elif kind == "cgroup2":
            v2 = v2 or at
    if len(v1) == 2:
        return [v1["cpu"], v1["cpuset"]]
    if v2 is None:
        raise SystemExit("bench_feed: no cgroups with cpu and cpuset here")
    (v2 / "cgroup.subtree_control").write_text("+cpu +cpuset")
    return [v2]


def make(name: str) -> list[Path]:
    dirs = [h / name for h in hierarchies()]
    for d in dirs:
        d.mkdir()
        for f in ("cpuset.cpus", "cpuset.mems"):
            if (d / f).exists() and (d.parent / f).exists():
                (d / f).write_text((d.parent / f).read_text("utf-8"))
    return dirs


def scrape() -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as reply:
        lines = reply.read().decode().splitlines()
    return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def taken(page: dict[str, float]) -> float:
    return sum(page.get(f'surefoot_feed_taken_total{{service="{s}"}}', 0.0) for s in SERVICES[:2])


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, *args], stdout=subprocess.PIPE, text=True)


def end(p: subprocess.Popen[str]) -> dict[str, float]:
    p.send_signal(signal.SIGTERM)
    said, _ = p.communicate(timeout=30)
    return json.loads(said)


def lateness_ms(events: Path, from_line: int) -> tuple[list[float], int]:
    lines = events.read_text("utf-8").splitlines()
    t = [e["t_ms"] for e in map(json.loads, lines[from_line:]) if e["service"] == SERVICES[0]]
    return sorted(max(0.0, b - a - INTERVAL_MS) for a, b in pairwise(t)), len(lines)


def measure(binaries: Path, out: Path, seconds: float) -> None:
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o711)
    groups = {s: make(f"surefoot-bench-{os.getpid()}-{s}") for s in SERVICES}
    work = [subprocess.Popen(["sleep", "infinity"]) for _ in SERVICES]
    for p, s in zip(work, SERVICES, strict=True):
        for d in groups[s]:
            (d / "cgroup.procs").write_text(str(p.pid))
    text = f'metrics_port = {PORT}\nstate_dir = "state"\nfeed_mode = "0666"\ninterval_ms = {INTERVAL_MS}\n'
    for s in SERVICES:
        text += f'[[service]]\nservice = "{s}"\nkind = "lc"\nqos_target_ms = 10.0\ncgroup = "/{groups[s][0].name}"\n'
    (out / "node.toml").write_text(text, "utf-8")
    events, log = out / "events.jsonl", out / "node.log"
    args = [str(binaries / "surefootd"), "run", "--server", "local", "--policy", "parties-be", "--config", str(out / "node.toml")]
    node = None
    try:
        with log.open("w", encoding="utf-8") as err:
            node = subprocess.Popen([*args, "--events", str(events)], stdout=subprocess.DEVNULL, stderr=err)
        deadline = time.monotonic() + START_S
        while " on local:" not in log.read_text("utf-8"):
            if node.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"bench_feed: the daemon did not start; see {log}")
            time.sleep(0.1)
        path, seen = str(out / "state" / "feed.sock"), 0
        for name, processes, rate, what in SCENARIOS:
            groups_of_c = [str(d) for d in groups["c"]] if what == "valid" else []
            floods = [start("flood", path, str(rate), what, *groups_of_c) for _ in range(processes)]
            time.sleep(1.0)
            first, begin = scrape(), time.monotonic()
            _, seen = lateness_ms(events, seen)
            senders = [start("honest", path, s) for s in SERVICES[:2]]
            time.sleep(seconds)
            last, span_s = scrape(), time.monotonic() - begin
            late, seen = lateness_ms(events, seen)
            said = [end(p) for p in senders]
            # Counters of the feed are a second old at most.
            time.sleep(2.0)
            whole = taken(scrape()) - taken(first)
            flooded = [end(p) for p in floods]
            sent, lost = sum(s["sent"] for s in said), sum(s["lost"] for s in said)
            row = {
                "flood": name,
                "flood_datagrams_per_s": round(sum(f["sent"] / f["seconds"] for f in flooded)),
                "honest": sent + lost,
                "honest_lost": round(sent + lost - whole),
                "cpu_percent_of_a_core": round(
                    100 * (last["process_cpu_seconds_total"] - first["process_cpu_seconds_total"]) / span_s, 1
                ),
                "rss_mb": round(last["process_resident_memory_bytes"] / 1e6, 1),
                "tick_late_ms_p50": late[len(late) // 2],
                "tick_late_ms_p99": late[int(0.99 * (len(late) - 1))],
                "tick_late_ms_max": late[-1],
            }
            print(json.dumps(row), flush=True)
    finally:
        if node is not None:
            node.send_signal(signal.SIGTERM)
            node.wait(timeout=60)
        for p in work:
            p.kill()
            p.wait()
        for dirs in groups.values():
            for d in dirs:
                d.rmdir()


def main() -> None:
    match sys.argv[1:]:
        case ["flood", path, rate, what, *cgroups]:
            flood(path, int(rate), what, [Path(c) for c in cgroups])
        case ["honest", path, service]:
            honest(path, service)
        case [binaries, out, *seconds]:
            measure(Path(binaries).resolve(), Path(out).resolve(), float(seconds[0]) if seconds else 20.0)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
