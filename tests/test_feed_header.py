"""workloads/originals/feed/surefoot_feed.h: what a C or C++ program counts is what its datagram says."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
HEADER = ROOT / "workloads" / "originals" / "feed"
HIGHEST_NS = 3_600_000_000_000

PROGRAM = """\
#include "surefoot_feed.h"
int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    surefoot_feed_offered();
    surefoot_feed_answered(strtoull(argv[i], NULL, 10));
  }
  surefoot_feed_offered();
  surefoot_feed_offered();
  surefoot_feed_failed();
  return 0;
}
"""


@pytest.fixture(scope="module", params=["c99", "c++11"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("header")
    c = request.param.startswith("c9")
    compiler = shutil.which("cc" if c else "c++")
    if compiler is None:
        pytest.fail("needs a C and a C++ compiler (scripts/deps.sh)")
    source = folder / ("x.c" if c else "x.cc")
    source.write_text(PROGRAM, "utf-8")
    args = [compiler, f"-std={request.param}", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", f"-I{HEADER}"]
    subprocess.run([*args, "-o", str(folder / "x"), str(source), "-pthread"], check=True)
    return folder / "x"


def values(histogram: bytes) -> list[tuple[int, int]]:
    """Lowest value and count of each cell that is not empty: HdrHistogram V2 of three digits."""
    cookie, length, _, digits, lowest, highest, ratio = struct.unpack(">IIIIQQd", histogram[:40])
    assert (cookie, length, digits, lowest, highest, ratio) == (0x1C849313, len(histogram) - 40, 3, 1, HIGHEST_NS, 1.0)
    found, cell, at = [], 0, 40
    while at < len(histogram):
        n = shift = 0
        while True:
            byte = histogram[at]
            at += 1
            n |= (byte & (0x7F if shift < 56 else 0xFF)) << shift
            if byte < 0x80 or shift == 56:
                break
            shift += 7
        count = (n >> 1) ^ -(n & 1)
        if count < 0:
            cell -= count
            continue
        if count:
            power = max(0, cell // 1024 - 1)
            found.append(((cell - 1024 * power) << power, count))
        cell += 1
    return found


def told(program: Path, tmp_path: Path, times_ns: list[int]) -> list[dict[str, Any]]:
    path = tmp_path / "feed.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(path))
        s.setblocking(False)
        env = {"SUREFOOT_FEED": str(path), "SUREFOOT_SERVICE": "web"}
        subprocess.run([str(program), *map(str, times_ns)], env=env, check=True, timeout=60)
        all_of_it = []
        while True:
            try:
                all_of_it.append(json.loads(s.recv(1 << 20)))
            except BlockingIOError:
                return all_of_it


def test_what_is_counted_is_sent(program: Path, tmp_path: Path) -> None:
    """Every time is in a cell within 0.1 % of it, from 1 ns to more than an hour; offered, errors and what waits are told."""
    times_ns = [1, 2, 2, 2047, 2048, 2049, 4096, 999_999, 1_000_000, 123_456_789, HIGHEST_NS, 10 * HIGHEST_NS]
    windows = told(program, tmp_path, times_ns)
    assert sum(w["count"] for w in windows) == len(times_ns)
    assert (sum(w["offered"] for w in windows), sum(w["errors"] for w in windows), windows[-1]["outstanding"]) == (14, 1, 1)
    cells = [v for w in windows for v, n in values(base64.b64decode(w["histogram"])) for _ in range(n)]
    for cell, ns in zip(sorted(cells), sorted(min(t, HIGHEST_NS) for t in times_ns), strict=True):
        assert cell <= ns <= cell * 1.001 + 1, (cell, ns)


def test_nobody_to_tell_is_no_failure(program: Path) -> None:
    """Without the variables, with a socket that is not there, and with a name that is none, the program runs as it did."""
    for env in (
        {},
        {"SUREFOOT_FEED": "/nonexistent/x", "SUREFOOT_SERVICE": "web"},
        {"SUREFOOT_FEED": "/x", "SUREFOOT_SERVICE": 'a"b'},
    ):
        subprocess.run([str(program), "5"], env=env, check=True, timeout=60)
