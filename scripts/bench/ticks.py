#!/usr/bin/env python3
"""How late the daemon's ticks are while something stands in its way.

`surefootd run` with three LC services, each a cgroup of its own, classes in a stand-in for resctrl, and honest senders of ten
datagrams a second. One scenario after another: the lock of resctrl is held by somebody else, the disk of the state folder is
full, a feed and a metrics page fall silent, all of it at once. A tick's lateness is how much later it came than an interval
after the one before. Needs root, /dev/fuse.

    scripts/bench/ticks.py BIN_DIR OUT_DIR [SECONDS]
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from feed import INTERVAL_MS, SERVICES, end, lateness_ms, make, start

BINS_MS = [1, 2, 5, 10, 20]
START_S = 60
STATE_MB = 8


@contextmanager
def lock_held(resctrl: Path) -> Iterator[None]:
    """As another client of resctrl holds it."""
    fd = os.open(resctrl, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


@contextmanager
def disk_full(state: Path) -> Iterator[None]:
    rest = state / "rest"
    fd = os.open(rest, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while True:
            os.write(fd, bytes(4096))
    except OSError:
        os.close(fd)
    try:
        yield
    finally:
        rest.unlink()


class Page:
    """A metrics page that answers, or takes the question and says nothing."""

    def __init__(self) -> None:
        self.silent = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.kept: list[socket.socket] = []
        self.begin = time.monotonic()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            c, _ = self.listener.accept()
            if self.silent:
                self.kept.append(c)
                continue
            n = int(1000 * (time.monotonic() - self.begin))
            text = f'd_bucket{{le="0.001"}} {n}\nd_bucket{{le="+Inf"}} {n}\nd_sum {n * 5e-4}\nd_count {n}\n'
            body = "# TYPE d histogram\n" + text
            c.recv(4096)
            c.sendall(f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            c.close()


@contextmanager
def silence(page: Page, senders: list[subprocess.Popen[str]]) -> Iterator[None]:
    """Senders stop where they are, and the page answers no more."""
    page.silent = True
    for p in senders:
        p.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        page.silent = False
        for p in senders:
            p.send_signal(signal.SIGCONT)


def row(name: str, late: list[float]) -> dict[str, object]:
    edges = [(float("-inf"), BINS_MS[0]), *pairwise(BINS_MS), (BINS_MS[-1], float("inf"))]
    names = [f"<= {b} ms" for b in BINS_MS] + [f"> {BINS_MS[-1]} ms"]
    counts = {n: sum(lo < x <= hi for x in late) for n, (lo, hi) in zip(names, edges, strict=True)}
    return {"scenario": name, "ticks": len(late), **counts, "longest_ms": late[-1]}


def wait_for(what: str, it_is: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while not it_is():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"bench_ticks: {what} did not start")
        time.sleep(0.1)


def measure(binaries: Path, out: Path, seconds: float) -> None:
    out.mkdir(parents=True, exist_ok=True)
    resctrl, state = out / "resctrl", out / "state"
    for d in (resctrl, state):
        d.mkdir(exist_ok=True)
    daemon = str(binaries / "surefootd")
    page = Page()
    with ExitStack() as undo:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={STATE_MB}m,mode=0700", "none", str(state)], check=True)
        undo.callback(subprocess.run, ["umount", str(state)], check=False)
        log = undo.enter_context((out / "node.log").open("w", encoding="utf-8"))
        fs = subprocess.Popen([daemon, "resctrlfs", str(resctrl), "--platform", "server-1"], stdout=log, stderr=log)
        undo.callback(fs.wait)
        undo.callback(fs.terminate)
        wait_for("resctrlfs", lambda: (resctrl / "info").exists(), fs)
        groups = {s: make(f"surefoot-bench-{os.getpid()}-{s}") for s in SERVICES}
        for dirs in groups.values():
            for d in dirs:
                undo.callback(d.rmdir)
        for s in SERVICES:
            work = subprocess.Popen(["sleep", "infinity"])
            undo.callback(work.wait)
            undo.callback(work.kill)
            for d in groups[s]:
                (d / "cgroup.procs").write_text(str(work.pid))
        text = f'metrics_port = 0\nstate_dir = "state"\nresctrl = "resctrl"\ninterval_ms = {INTERVAL_MS}\nfeed_mode = "0666"\n'
        for s in SERVICES:
            text += f'[[service]]\nservice = "{s}"\nkind = "lc"\nqos_target_ms = 10.0\ncgroup = "/{groups[s][0].name}"\n'
        text += f'prometheus = {{ url = "http://127.0.0.1:{page.port}/metrics", histogram = "d", unit = "s" }}\n'
        (out / "node.toml").write_text(text, "utf-8")
        events = out / "events.jsonl"
        events.unlink(missing_ok=True)
        args = [daemon, "run", "--server", "local", "--policy", "parties-be", "--config", str(out / "node.toml")]
        node = subprocess.Popen([*args, "--events", str(events)], stdout=subprocess.DEVNULL, stderr=log)
        undo.callback(node.wait)
        undo.callback(node.terminate)
        wait_for("the daemon", lambda: " on local:" in (out / "node.log").read_text("utf-8"), node)
        senders = [start("honest", str(state / "feed.sock"), s) for s in SERVICES[:2]]
        for p in senders:
            undo.callback(end, p)
        scenarios: list[tuple[str, list[Callable[[], object]]]] = [
            ("nothing", []),
            ("the lock of resctrl is held", [lambda: lock_held(resctrl)]),
            ("the disk of the state folder is full", [lambda: disk_full(state)]),
            ("senders and a metrics page fall silent", [lambda: silence(page, senders)]),
            ("all of these", [lambda: lock_held(resctrl), lambda: disk_full(state), lambda: silence(page, senders)]),
        ]
        seen = 0
        for name, ways in scenarios:
            time.sleep(2.0)
            _, seen = lateness_ms(events, seen)
            with ExitStack() as now:
                for way in ways:
                    now.enter_context(way())
                time.sleep(seconds)
            late, seen = lateness_ms(events, seen)
            print(json.dumps(row(name, late)), flush=True)


def main() -> None:
    match sys.argv[1:]:
        case [binaries, out, *seconds]:
            measure(Path(binaries).resolve(), Path(out).resolve(), float(seconds[0]) if seconds else 60.0)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
