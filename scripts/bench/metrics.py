"""What slow clients of the metrics port cost: time of an answer and of `surefootd top`, CPU of the daemon, with and without 50.

    metrics.py SUREFOOTD [CLIENTS]

A daemon in real time on a virtual server. A quarter of the clients each: says nothing; sends a byte in 0.2 s; asks and never
reads; sends rubbish without an end. Whoever is cut off comes again at once.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ASKED = 200
PAUSE_S = 0.1
WORKLOAD = """\
platform = "server-1"
duration_s = 3600
[[lc]]
service = "moses"
load = 0.4
[[lc]]
service = "xapian"
load = 0.3
[[be]]
job = "stream"
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def cpu_s(pid: int) -> float:
    after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after[11]) + int(after[12])) / os.sysconf("SC_CLK_TCK")


class Slow:
    """Clients that nobody should have, in a thread of their own."""

    def __init__(self, port: int, number: int) -> None:
        self.port, self.again, self.stop = port, 0, threading.Event()
        self.open: list[tuple[int, socket.socket]] = []
        self.kinds = [k % 4 for k in range(number)]
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _connect(self, kind: int) -> socket.socket:
        s = socket.create_connection(("127.0.0.1", self.port))
        s.setblocking(False)
        if kind == 2:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            s.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        return s

    def _run(self) -> None:
        clients = [(kind, self._connect(kind)) for kind in self.kinds]
        while not self.stop.wait(0.2):
            for n, (kind, s) in enumerate(clients):
                try:
                    if kind == 1:
                        s.send(b"G")
                    elif kind == 3:
                        s.send(b"\0garbage\r\n" * 1000)
                    gone = kind != 2 and s.recv(65536) == b""
                except BlockingIOError:
                    gone = False
                except OSError:
                    gone = True
                if gone:
                    s.close()
                    self.again += 1
                    clients[n] = (kind, self._connect(kind))
        for _, s in clients:
            s.close()


def asked(port: int, path: str) -> float:
    begin = time.perf_counter()
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    c.request("GET", path)
    answer = c.getresponse()
    body = answer.read()
    c.close()
    assert answer.status == 200, answer.status
    assert body
    return time.perf_counter() - begin


def words(of: list[float]) -> str:
    return f"{1e3 * statistics.median(of):.1f} / {1e3 * max(of):.1f} ms"


def measure(surefootd: str, clients: int) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        (folder / "w.toml").write_text(WORKLOAD)
        (folder / "node.toml").write_text(f'workload = "w.toml"\nmetrics_port = {port}\nrealtime = true\n')
        args = [surefootd, "run", "--policy", "parties-be", "--server", "virtual:server-1", "--config", str(folder / "node.toml")]
        daemon = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            while True:
                try:
                    asked(port, "/status")
                    break
                except OSError:
                    time.sleep(0.05)
            slow = Slow(port, clients)
            time.sleep(1)
            begin, used = time.monotonic(), cpu_s(daemon.pid)
            metrics, status, top = [], [], []
            for k in range(ASKED):
                metrics.append(asked(port, "/metrics"))
                status.append(asked(port, "/status"))
                if k % 10 == 0:
                    before = time.perf_counter()
                    url = f"http://127.0.0.1:{port}"
                    subprocess.run([surefootd, "top", "--once", "--url", url], check=True, stdout=subprocess.DEVNULL)
                    top.append(time.perf_counter() - before)
                time.sleep(PAUSE_S)
            share = 100 * (cpu_s(daemon.pid) - used) / (time.monotonic() - begin)
            slow.stop.set()
            slow.thread.join()
        finally:
            daemon.terminate()
            said = daemon.communicate(timeout=60)[0]
        decide = json.loads(said)["phases"]
        step = {k: v for k, v in decide.items() if k in ("decide", "observe")}
        return (
            f"{clients} slow clients ({slow.again} came again): /metrics {words(metrics)}, /status {words(status)}, "
            f"top --once {words(top)}, daemon {share:.2f} % of a core; {json.dumps(step)}"
        )


def main() -> None:
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    for clients in (0, number):
        print(measure(sys.argv[1], clients), flush=True)


if __name__ == "__main__":
    main()
