#!/usr/bin/env python3
"""Run a load generator of others at a campaign's rate, and tell Surefoot what it measures (docs/workloads.md, Originals).

    drive.py TOOL --rps R --port N --feed SOCKET --service ID [--duration-ms D] [--connections C] [...] [-- ARGUMENTS OF THE TOOL]

A program that has surefoot_feed.h in it (scripts/originals.sh builds such ones) tells the feed itself, every 100 ms: this one
works out its arguments and becomes it. Any other says what it measured when it ends, so it is run again and again. One run is
then one window, as long as the run measured. What must hold:
- A window has the response times of that run and of no other, read by the adapters of `python -m collection.adapters`.
- No count is made up. Offered is what was sent; the sweep compares it with the rate that it asked for.
- A run that failed, or that cannot be read in one way only, ends this program with that line. There is no window of it.

The standard library only, since it runs on the hosts of a campaign: Python 3.8, or 3.11 for programs without the header.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import json
import math
import os
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
BUILT = HERE / "built"
"""Where scripts/originals.sh puts what runs on the host."""
MARK = b"SUREFOOT_FEED"
"""In every program with surefoot_feed.h: the variable that it reads."""
LOADER = "ld-linux-x86-64.so.2"
HOST = "127.0.0.1"
SPARE_MS = 60_000
"""A program goes on for so much longer than it is needed: a campaign ends it."""
ROUNDING = 0.002
"""Tools take whole requests a second, of all or of each connection: what differs more from the rate asked for is another rate."""
LONGEST_WINDOW_MS = 60_000
_HIGHEST_NS = 3_600_000_000_000
_SUB_BUCKETS = 2048


class Refused(Exception):
    """What is wrong, and what to do, in one line."""


class Tool:
    """How a load generator is called. Latencies and loop are the tool's own: the catalogue entry says which."""

    name: str
    window_s = 1
    """Length of a run, where one run is one window."""
    aside_s = 0
    """What it runs before it measures."""
    sample = ""
    """Name of the adapter."""

    def __init__(self, o: argparse.Namespace, more: list[str]) -> None:
        self.o = o
        self.more = more

    def load(self, program: list[str], scratch: Path) -> list[str]:
        """Command that stores what requests ask for; empty: none is needed."""
        return []

    def command(self, program: list[str], seconds: int, scratch: Path, first: bool) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def output(self, stdout: str, scratch: Path) -> str:
        """What the adapter reads."""
        return stdout

    def cells(self, found: Sequence[Any], scratch: Path) -> tuple[dict[int, int], int]:
        """Response times, ns, of one run with their counts, and how many requests failed."""
        cells: dict[int, int] = {}
        errors = 0
        rows = [f for f in found if f.cdf]
        if not rows:
            raise Refused(f"{self.name} printed no distribution of its latencies. Leave out what keeps it from that")
        for f in rows:
            if f.count is None:
                raise Refused(f"{self.name} does not say of how many requests its latencies are: {f.why_no_count}")
            # the distribution is told more finely than the levels that are printed apart
            told = {round(share, 9) for share, _ in f.cdf}
            apart = [(q, v) for q, v in f.quantiles.items() if v is not None and round(q, 9) not in told]
            points = sorted([*f.cdf, *apart])
            for ns, n in of_distribution(points, f.count):
                cells[ns] = cells.get(ns, 0) + n
        errors = sum(f.errors or 0 for f in found if f.operation == "all" or len(found) == 1)
        return cells, errors

    def span_s(self, found: Sequence[Any]) -> float:
        """How long a run measured, by its own word, else as it was asked to."""
        return float(max((f.span_s for f in found if f.span_s), default=self.o.window_s))


def of_distribution(points: Sequence[tuple[float, float]], count: int) -> list[tuple[int, int]]:
    """(ns, count) from the points (share at or below, ms) of a distribution. What lies between two of them counts as the
    upper one, so no percentile comes out lower than the tool's."""
    cells, before, highest = [], 0, 0.0
    for share, ms in points:
        highest = max(highest, ms)
        upto = min(count, math.ceil(count * share - 1e-6))
        if upto > before:
            cells.append((round(highest * 1e6), upto - before))
            before = upto
    if count > before:
        cells.append((round(highest * 1e6), count - before))
    return cells


def whole_rate(rps: float, tool: str) -> int:
    n = round(rps)
    if n < 1 or abs(n - rps) > ROUNDING * rps:
        raise Refused(f"--rps {rps:g}: {tool} takes whole requests a second. Give such a rate")
    return n


class Mutilate(Tool):
    name = sample = "mutilate"

    def command(self, program: list[str], seconds: int, scratch: Path, first: bool) -> list[str]:
        rate = whole_rate(self.o.rps, self.name)
        args = ["-s", f"{HOST}:{self.o.port}", "-q", str(rate), "-T", "1", "-c", str(self.o.connections), "-t", str(seconds)]
        if not self.o.tells:
            args += [f"--save={scratch / 'samples'}"]
        return [*program, *args, *([] if first else ["--noload"]), *self.more]

    def cells(self, found: Sequence[Any], scratch: Path) -> tuple[dict[int, int], int]:
        """Of each request, as --save has it: the printed table has six percentiles, and no median."""
        cells: dict[int, int] = {}
        n = 0
        for line in (scratch / "samples").read_text("ascii").splitlines():
            _, us = line.split()
            ns = round(float(us) * 1e3)
            cells[ns] = cells.get(ns, 0) + 1
            n += 1
        told = sum(f.count or 0 for f in found if f.operation == "read")
        # the last replies of a run are in one of the two only
        if len(found) != 1 or abs(told - n) > 0.01 * n + 2 * self.o.connections:
            raise Refused(f"mutilate saved {n} latencies of {told} reads: it saves no updates. Leave --update out")
        return cells, 0


class Memtier(Tool):
    name = sample = "memtier_benchmark"
    # of a run of one second its own word is now and then of two, or of none
    window_s = 5

    def _to(self, clients: int) -> list[str]:
        to = ["-s", HOST, "-p", str(self.o.port), "-P", self.o.protocol, "-t", "1", "-c", str(clients)]
        return [*to, f"--key-maximum={self.o.keys}"]

    def load(self, program: list[str], scratch: Path) -> list[str]:
        return [*program, *self._to(1), "--ratio=1:0", "--key-pattern=P:P", "--requests=allkeys", *self.more]

    def command(self, program: list[str], seconds: int, scratch: Path, first: bool) -> list[str]:
        clients, each = shared_out(self.o.rps, self.o.connections)
        args = ["--ratio=0:1", f"--rate-limiting={each}", f"--test-time={seconds}"]
        if not self.o.tells:
            args += [f"--json-out-file={scratch / 'result.json'}"]
        return [*program, *self._to(clients), *args, *self.more]

    def output(self, stdout: str, scratch: Path) -> str:
        return (scratch / "result.json").read_text("utf-8")

    def cells(self, found: Sequence[Any], scratch: Path) -> tuple[dict[int, int], int]:
        """Error replies are in no count of its JSON: each is a line on stderr."""
        cells, errors = super().cells(found, scratch)
        said = (scratch / "stderr").read_text("utf-8", errors="replace")
        return cells, errors + said.count("handle error response")


def shared_out(rps: float, connections: int) -> tuple[int, int]:
    """Connections, at most so many, and requests a second of each, sent in at most 50 bursts a second by memtier_benchmark."""
    for clients in range(connections, 0, -1):
        each = round(rps / clients)
        if each < 1:
            continue
        burst = -(-each // 50)
        sent = burst * 1e6 / (1_000_000 // (each // burst))
        if abs(clients * sent - rps) <= ROUNDING * rps:
            return clients, each
    raise Refused(
        f"--rps {rps:g}: memtier_benchmark limits each connection to whole requests a second, in at most 50 bursts. No number "
        f"of connections up to {connections} comes to that rate. Give a multiple of 50"
    )


class Wrk2(Tool):
    name = sample = "wrk2"
    window_s = 5
    aside_s = 11

    def command(self, program: list[str], seconds: int, scratch: Path, first: bool) -> list[str]:
        rate = whole_rate(self.o.rps, self.name)
        url = f"http://{HOST}:{self.o.port}{self.o.path}"
        args = ["-t", "1", "-c", str(self.o.connections), "-R", str(rate), "-d", f"{seconds}s", "--latency"]
        return [*program, *args, *self.more, url]

    def span_s(self, found: Sequence[Any]) -> float:
        """Its own word has the calibration, whose latencies it forgets."""
        return float(sum(f.count for f in found) / sum(f.achieved_rps for f in found))


class Ycsb(Tool):
    name = sample = "ycsb"
    window_s = 5

    def _with(self, what: str) -> list[str]:
        if not self.more or self.more[0].startswith("-"):
            raise Refused("ycsb: no binding. Write it after --, e.g. `-- redis -P workloads/workloadc -p redis.host=127.0.0.1`")
        return [what, *self.more]

    def load(self, program: list[str], scratch: Path) -> list[str]:
        return [*program, *self._with("load")]

    def command(self, program: list[str], seconds: int, scratch: Path, first: bool) -> list[str]:
        rate = whole_rate(self.o.rps, self.name)
        properties = [
            f"maxexecutiontime={seconds}",
            f"operationcount={10 * rate * seconds}",
            "measurementtype=raw",
            f"measurement.raw.output_file={scratch / 'samples'}",
        ]
        told = [word for p in properties for word in ("-p", p)]
        return [*program, *self._with("run"), "-target", str(rate), "-threads", str(self.o.connections), *told]

    def cells(self, found: Sequence[Any], scratch: Path) -> tuple[dict[int, int], int]:
        """Of each operation: `READ,time of day in ms,latency in us`."""
        cells: dict[int, int] = {}
        errors = 0
        for line in (scratch / "samples").read_text("ascii").splitlines():
            words = [word.strip() for word in line.split(",")]
            if len(words) < 3 or not words[2].isdigit() or words[0] == "CLEANUP":
                continue
            if words[0].endswith(("-FAILED", "-ERROR", "-NOT_FOUND", "-UNEXPECTED_STATE", "-SERVICE_UNAVAILABLE")):
                errors += 1
                continue
            ns = int(words[2]) * 1000
            cells[ns] = cells.get(ns, 0) + 1
        return cells, errors


class TailBench(Tool):
    name = "tailbench"

    def command(self, program: list[str], seconds: int, scratch: Path, first: bool) -> list[str]:
        return [*program, *self.more]

    def environment(self) -> dict[str, str]:
        return {
            "TBENCH_QPS": f"{self.o.rps:.6f}",
            "TBENCH_RANDSEED": str(self.o.seed % (1 << 31)),
            "TBENCH_MINSLEEPNS": "10000",
            "TBENCH_SERVER_PORT": str(self.o.port),
        }


TOOLS: dict[str, type[Tool]] = {
    "mutilate": Mutilate,
    "memtier": Memtier,
    "wrk2": Wrk2,
    "ycsb": Ycsb,
    "tailbench": TailBench,
}
_PROGRAMS = {"memtier": "memtier_benchmark", "wrk2": "wrk", "ycsb": "ycsb.sh"}


def find(tool: str, given: str | None) -> Path:
    """The program: given, else what originals.sh built, else of that name in PATH."""
    name = _PROGRAMS.get(tool, tool)
    if given is not None:
        # what originals.sh built is named by its place there
        at = BUILT / given if not given.startswith("/") and (BUILT / given).is_file() else Path(given)
        if not at.is_file():
            raise Refused(f"--program {given}: no such file here or in {BUILT}. Build it: scripts/originals.sh {tool} SOURCE")
        return at
    for folder in (BUILT / tool / "bin", *map(Path, os.get_exec_path())):
        if os.access(folder / name, os.X_OK) and (folder / name).is_file():
            return folder / name
    raise Refused(f"{name} is neither in {BUILT} nor in PATH. Build it: scripts/originals.sh {tool} SOURCE, or give --program")


def called(program: Path) -> list[str]:
    """How it is started: with the libraries that were built with it, where there are any."""
    lib = program.parent.parent / "lib"
    loader = lib / LOADER
    return [str(loader), "--library-path", str(lib), str(program)] if loader.is_file() else [str(program)]


def tells_itself(program: Path) -> bool:
    with program.open("rb") as file:
        before = b""
        while block := file.read(1 << 20):
            if MARK in before + block:
                return True
            before = block[-len(MARK) :]
    return False


def histogram(cells: dict[int, int]) -> bytes:
    """HdrHistogram V2 of three digits, 1 ns to an hour, as surefoot_feed.h has it."""
    by_index: dict[int, int] = {}
    for ns, count in cells.items():
        value = min(max(ns, 0), _HIGHEST_NS)
        shift = (value | (_SUB_BUCKETS - 1)).bit_length() - 11
        index = shift * (_SUB_BUCKETS // 2) + (value >> shift)
        by_index[index] = by_index.get(index, 0) + count
    body, at = bytearray(), 0
    for index in sorted(by_index):
        if index > at:
            body += _zigzag(0 if index == at + 1 else at - index)
        body += _zigzag(by_index[index])
        at = index + 1
    return struct.pack(">IIIIQQd", 0x1C849313, len(body), 0, 3, 1, _HIGHEST_NS, 1.0) + bytes(body)


def _zigzag(value: int) -> bytes:
    n, out = (value << 1) ^ (value >> 63), bytearray()
    while n > 0x7F and len(out) < 8:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def datagram(service: str, window_ms: int, cells: dict[int, int], errors: int) -> bytes:
    count = sum(cells.values())
    said = {
        "service": service,
        "window_ms": window_ms,
        "count": count,
        "offered": count + errors,
        "errors": errors,
        "unit": "ns",
        "histogram": base64.b64encode(histogram(cells)).decode("ascii"),
    }
    return json.dumps(said).encode("ascii")


def adapter(name: str) -> tuple[types.ModuleType, types.ModuleType]:
    """What reads a tool's output, and its rows: of the source tree, or as originals.sh copied them."""
    if sys.version_info < (3, 11):
        raise Refused(
            f"{name} does not tell the feed itself, and to read what it prints takes Python 3.11. See scripts/originals.sh"
        )
    root = next((r for r in (HERE.parent.parent, BUILT / "adapters") if (r / "collection/adapters/words.py").is_file()), None)
    if root is None:
        raise Refused(f"{name}: nothing reads what it prints: {BUILT / 'adapters'} is missing. Run scripts/originals.sh adapters")
    sys.path.insert(0, str(root))
    # the package's own __init__ wants what no host has
    package = types.ModuleType("adapters")
    package.__path__ = [str(root / "collection/adapters")]
    sys.modules["adapters"] = package
    module = {"memtier_benchmark": "memtier"}.get(name, name)
    return importlib.import_module(f"adapters.{module}"), importlib.import_module("adapters.measured")


class Runs:
    """A program that speaks when it ends: one run after the other."""

    def __init__(self, tool: Tool, program: list[str], o: argparse.Namespace) -> None:
        self.tool, self.program, self.o = tool, program, o
        self.child: subprocess.Popen[str] | None = None
        self.over = False

    def end(self, *_: object) -> None:
        """By SIGTERM: the run that is on is given up, and nothing is told of it."""
        self.over = True
        if self.child is not None and self.child.poll() is None:
            self.child.kill()

    def go_on(self, until: float) -> None:
        module, measured = adapter(self.tool.sample)
        to = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        signal.signal(signal.SIGTERM, self.end)
        with tempfile.TemporaryDirectory(prefix="surefoot-drive-") as name:
            scratch = Path(name)
            if load := self.tool.load(self.program, scratch):
                self._run(load, scratch)
            first = True
            while not self.over and time.monotonic() < until:
                command = self.tool.command(self.program, self.tool.aside_s + self.o.window_s, scratch, first)
                first = False
                text = self._run(command, scratch)
                if text is None:
                    break
                try:
                    known = measured.Known(duration_s=self.o.window_s, offered_rps=self.o.rps)
                    found = module.parse(self.tool.output(text, scratch), known)
                    if (runs := len({f.run for f in found})) != 1:
                        raise Refused(
                            f"{self.tool.name}: what it printed is of {runs} runs, so nobody can tell what is of this one"
                        )
                    cells, errors = self.tool.cells(found, scratch)
                except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as e:
                    raise Refused(f"{self.tool.name}: what it printed is no measurement: {e}") from e
                if not cells:
                    raise Refused(f"{self.tool.name} measured no request in {self.o.window_s} s")
                span_s = self.tool.span_s(found)
                if not 0.5 <= span_s / self.o.window_s <= 1.5:
                    raise Refused(
                        f"{self.tool.name} says that it measured for {span_s:g} s of {self.o.window_s}. Give a longer --window-s"
                    )
                window_ms = min(round(span_s * 1000), LONGEST_WINDOW_MS)
                try:
                    to.sendto(datagram(self.o.service, window_ms, cells, errors), self.o.feed)
                except OSError as e:
                    raise Refused(f"--feed {self.o.feed}: {e.strerror}. Is the sweep, or surefootd, still there?") from e

    def _run(self, command: list[str], scratch: Path) -> str | None:
        """What it printed; None where it was ended.

        Raises:
            Refused: it failed, with its last words.
        """
        with (scratch / "stdout").open("w+", encoding="utf-8") as out, (scratch / "stderr").open("w+", encoding="utf-8") as err:
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True)
            if self.over:
                self.end()
            status = self.child.wait()
        if self.over:
            return None
        text = (scratch / "stdout").read_text("utf-8", errors="replace")
        if status != 0:
            said = (scratch / "stderr").read_text("utf-8", errors="replace") + "\n" + text
            last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
            raise Refused(f"{shlex.quote(command[0])} ended with status {status}: {last[:300]}")
        return text


def options(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    own, more = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        own, more = arguments[:at], arguments[at + 1 :]
    about = (__doc__ or "").splitlines()[0]
    p = argparse.ArgumentParser(prog="drive.py", description=about, epilog="what follows -- are the tool's own arguments")
    p.add_argument("tool", choices=sorted(TOOLS))
    p.add_argument("--rps", type=float, required=True, help="requests a second, of all connections")
    p.add_argument("--port", type=int, required=True, help="of the service, on 127.0.0.1")
    p.add_argument("--feed", required=True, help="socket of the latency feed")
    p.add_argument("--service", required=True, help="id of the service there")
    p.add_argument("--duration-ms", type=int, default=3_600_000, help="longest time that it can be needed")
    p.add_argument("--seed", type=int, default=0, help="of the arrivals, where the tool takes one")
    p.add_argument("--connections", type=int, default=1, help="connections (memtier: at most so many; ycsb: threads)")
    p.add_argument("--program", help="the tool, where it is neither built by originals.sh nor in PATH")
    p.add_argument("--window-s", type=int, help="length of a run of a tool that tells the feed nothing, 1 to 60")
    p.add_argument(
        "--protocol", default="memcache_text", choices=("memcache_text", "redis"), help="memtier: what the service speaks"
    )
    p.add_argument("--keys", type=int, default=10_000, help="memtier: keys that are stored first and read then")
    p.add_argument("--check", action="store_true", help="say whether it could be run so; no load is put on anything")
    p.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="of the tool, as often as wanted")
    p.add_argument("--path", default="/", help="wrk2: of the page")
    o = p.parse_args(own)
    for name, ok in (
        ("rps", 0 < o.rps <= 1e8),
        ("port", 0 < o.port < 65536),
        ("duration_ms", o.duration_ms > 0),
        ("connections", 0 < o.connections <= 10_000),
        ("keys", 0 < o.keys <= 100_000_000),
        ("window_s", o.window_s is None or 1 <= o.window_s <= LONGEST_WINDOW_MS // 1000),
    ):
        if not ok:
            p.error(f"--{name.replace('_', '-')} {getattr(o, name)}: out of range")
    for pair in o.env:
        if not pair.partition("=")[0].isidentifier() or "=" not in pair:
            p.error(f"--env {pair}: give NAME=VALUE")
    return o, more


def run(o: argparse.Namespace, more: list[str]) -> None:
    tool = TOOLS[o.tool](o, more)
    o.window_s = o.window_s or tool.window_s
    path = find(o.tool, o.program)
    o.tells = tells_itself(path)
    program = called(path)
    if o.check:
        tool.load(program, HERE)
        tool.command(program, 1, HERE, True)
        if not o.tells and tool.sample:
            adapter(tool.sample)
    if not o.tells:
        if not tool.sample:
            raise Refused(
                f"{path}: has no surefoot_feed.h in it, so nobody hears of its latencies. Build it: scripts/originals.sh {o.tool}"
            )
        if not o.check:
            Runs(tool, program, o).go_on(time.monotonic() + o.duration_ms / 1000)
        return
    if o.check:
        return
    with tempfile.TemporaryDirectory(prefix="surefoot-drive-") as name:
        if load := tool.load(program, Path(name)):
            Runs(tool, program, o)._run(load, Path(name))
    command = tool.command(program, -(-(o.duration_ms + SPARE_MS) // 1000), HERE, True)
    # what it prints is of no case: the feed has it
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    told = {**tool.environment(), "SUREFOOT_FEED": o.feed, "SUREFOOT_SERVICE": o.service}
    os.execve(command[0], command, {**os.environ, **told, **dict(pair.split("=", 1) for pair in o.env)})


def main() -> NoReturn:
    o, more = options(sys.argv[1:])
    try:
        run(o, more)
    except Refused as e:
        print(f"drive: {e}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
