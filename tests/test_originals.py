"""Campaigns on the originals: load generators of others tell the feed, and a user's own copy is built or refused in one line."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from test_adapters import MEMTIER_JSON
from test_feed_header import values

from collection import campaign, verify

ROOT = Path(__file__).parent.parent
ORIGINALS = ROOT / "workloads" / "originals"
DRIVE = ORIGINALS / "drive.py"
SCRIPT = ROOT / "scripts" / "originals.sh"
RECORDED = Path(__file__).parent / "data" / "adapters"


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


drive = _module(DRIVE)
mend = _module(ORIGINALS / "build" / "mend.py")


# ---------------------------------------------------------------- drive.py


class Feed:
    """A feed's socket, and what came to it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "feed.sock"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.settimeout(30)

    def next(self) -> tuple[dict[str, Any], list[tuple[int, int]]]:
        said = json.loads(self.socket.recv(1 << 20))
        return said, values(base64.b64decode(said["histogram"]))


@pytest.fixture
def feed() -> Iterator[Feed]:
    # the path of a socket is short
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    yield Feed(folder)
    shutil.rmtree(folder)


def _program(folder: Path, text: str) -> Path:
    path = folder / "tool"
    path.write_text(f"#!{sys.executable}\nimport sys\n{text}", "utf-8")
    path.chmod(0o755)
    return path


def _command(tool: str, feed: Path, program: Path | None, *more: str, rps: str = "2000") -> list[str]:
    given = [] if program is None else ["--program", str(program)]
    told = ["--rps", rps, "--port", "22080", "--feed", str(feed), "--service", "web", "--connections", "8"]
    return [sys.executable, str(DRIVE), tool, *told, *given, *more]


def _windows(feed: Feed, command: list[str], count: int) -> list[tuple[dict[str, Any], list[tuple[int, int]]]]:
    """So many windows; then it is told to end, and ends as it was told."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        found = [feed.next() for _ in range(count)]
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=30)
    assert child.returncode == 0, said
    return found


def _refused(command: list[str], *words: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_a_run_of_wrk2_is_a_window(tmp_path: Path, feed: Feed) -> None:
    """One run is one window: as many latencies as it recorded, as long as it recorded, its percentiles those that it printed."""
    program = _program(tmp_path, f"sys.stdout.write(open({str(RECORDED / 'wrk2.txt')!r}).read())")
    for said, cells in _windows(feed, _command("wrk2", feed.path, program, "--window-s", "20"), 2):
        assert (said["service"], said["count"], said["errors"], said["offered"]) == ("web", 39854, 0, 39854)
        # as long as the rate takes for that many
        assert said["window_ms"] == round(39854 / 1999.61 * 1000)
        seen, p50, p99 = 0, 0, 0
        for lowest, n in cells:
            seen += n
            p50 = p50 or (lowest if seen >= 0.5 * 39854 else 0)
            p99 = p99 or (lowest if seen >= 0.99 * 39854 else 0)
        assert seen == 39854
        assert p50 == pytest.approx(1.163e6, rel=2e-3)
        assert p99 == pytest.approx(4.611e6, rel=2e-3)


def test_a_run_of_memtier_is_a_window(tmp_path: Path, feed: Feed) -> None:
    """The keys are stored first, each connection is given a whole rate, and the latencies are those of its JSON."""
    text = f"""
import json
with open({str(tmp_path / "calls")!r}, "a") as f: f.write(json.dumps(sys.argv[1:]) + "\\n")
out = [a.split("=", 1)[1] for a in sys.argv if a.startswith("--json-out-file=")]
if out:
    open(out[0], "w").write({json.dumps(MEMTIER_JSON)!r})
    for _ in range(3): print("server 127.0.0.1:1 handle error response: -ERR", file=sys.stderr)
"""
    command = _command(
        "memtier", feed.path, _program(tmp_path, text), "--protocol", "redis", "--window-s", "10", "--", "--data-size=7"
    )
    (said, cells), *_ = _windows(feed, command, 1)
    assert (said["count"], said["errors"], said["window_ms"]) == (40000, 3, 10000)
    # half up to 1.1 ms, 95 % up to 2, 99 % up to 3, the rest up to 5.5
    want = [(1.1e6, 20000), (2e6, 18000), (3e6, 1600), (5.5e6, 400)]
    assert [n for _, n in cells] == [n for _, n in want]
    assert [ns for ns, _ in cells] == pytest.approx([ns for ns, _ in want], rel=2e-3)
    load, first = map(json.loads, (tmp_path / "calls").read_text("utf-8").splitlines()[:2])
    assert {"--ratio=1:0", "--requests=allkeys", "--data-size=7"} <= set(load)
    assert "--ratio=0:1" not in load
    assert {"--ratio=0:1", "--rate-limiting=250", "--data-size=7", "redis"} <= set(first)
    assert first[first.index("-c") + 1] == "8"


def test_a_run_of_mutilate_is_a_window(tmp_path: Path, feed: Feed) -> None:
    """mutilate prints no median: every latency is taken, as --save has them. It stores its keys in the first run only."""
    table = (RECORDED / "kinds" / "mutilate-old-table.txt").read_text("utf-8")
    text = f"""
with open({str(tmp_path / "calls")!r}, "a") as f: f.write(" ".join(sys.argv[1:]) + "\\n")
out = [a.split("=", 1)[1] for a in sys.argv if a.startswith("--save=")]
with open(out[0], "w") as f:
    for i in range(77019): f.write("%f %f\\n" % (i * 1e-4, 50.0 + i % 10))
sys.stdout.write({table!r})
"""
    found = _windows(feed, _command("mutilate", feed.path, _program(tmp_path, text), "--window-s", "5"), 2)
    said, cells = found[0]
    assert (said["count"], said["window_ms"], sum(n for _, n in cells)) == (77019, 5000, 77019)
    assert len(cells) == 10
    assert cells[0][0] == pytest.approx(5e4, rel=2e-3)
    first, second = (tmp_path / "calls").read_text("utf-8").splitlines()[:2]
    assert "-q 2000" in first
    assert "--noload" not in first
    assert "--noload" in second


def test_a_run_that_measured_for_another_time_is_no_window(tmp_path: Path, feed: Feed) -> None:
    """The length of a window is what its rate rests on: a tool whose own word is far from the time it had is not believed."""
    text = f"""
out = [a.split("=", 1)[1] for a in sys.argv if a.startswith("--json-out-file=")]
if out: open(out[0], "w").write({json.dumps(MEMTIER_JSON)!r})
"""
    command = _command("memtier", feed.path, _program(tmp_path, text), "--window-s", "30")
    _refused(command, "says that it measured for 10 s of 30", "--window-s")


def test_mutilate_with_updates_is_no_window(tmp_path: Path, feed: Feed) -> None:
    """What --save leaves out is not made up: a run with updates is refused."""
    table = (RECORDED / "kinds" / "mutilate-old-table.txt").read_text("utf-8")
    text = f"""
out = [a.split("=", 1)[1] for a in sys.argv if a.startswith("--save=")]
open(out[0], "w").write("0.1 50.0\\n" * 50000)
sys.stdout.write({table!r})
"""
    _refused(_command("mutilate", feed.path, _program(tmp_path, text)), "saved 50000 latencies of 77019 reads")


def test_a_run_of_ycsb_is_a_window(tmp_path: Path, feed: Feed) -> None:
    """Every operation counts, as the raw measurements have it; those that failed are errors."""
    printed = (RECORDED / "ycsb.txt").read_text("utf-8")
    text = f"""
out = [a.split("=", 1)[1] for a in sys.argv if a.startswith("measurement.raw.output_file=")]
if out:
    with open(out[0], "w") as f:
        f.write("READ latency raw data: operation, timestamp(ms), latency(us)\\n")
        for i in range(5000): f.write("READ,%d,%d\\n" % (1700000000000 + i, 300 + i % 5))
        for i in range(20): f.write("READ-ERROR,%d,9\\n" % (1700000000000 + i))
    sys.stdout.write({printed!r})
"""
    (said, cells), *_ = _windows(
        feed, _command("ycsb", feed.path, _program(tmp_path, text), "--window-s", "30", "--", "redis"), 1
    )
    assert (said["count"], said["errors"], len(cells)) == (5000, 20, 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "sys.stdout.write(open({!r}).read())".format(str(RECORDED / "kinds" / "wrk2-errors.txt")),
            "60000 of 60000 replies were errors",
        ),
        ("sys.stdout.write(open({!r}).read())".format(str(RECORDED / "kinds" / "wrk1.txt")), "closed loop"),
        ("print('nothing')", "no recorded latencies"),
        ("print('unable to connect', file=sys.stderr); sys.exit(1)", "status 1: unable to connect"),
        ("sys.stdout.write(open({!r}).read() * 2)".format(str(RECORDED / "wrk2.txt")), "of 2 runs"),
    ],
)
def test_a_failed_run_is_no_window(text: str, words: str, tmp_path: Path, feed: Feed) -> None:
    """A run that failed, or of which nobody can tell what it measured, ends the program with one line; the feed hears nothing."""
    _refused(_command("wrk2", feed.path, _program(tmp_path, text)), words)
    feed.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        feed.next()


def test_a_program_with_the_header_speaks_for_itself(tmp_path: Path, feed: Feed) -> None:
    """A program that has surefoot_feed.h in it is given socket, service and a time that outlasts the case."""
    text = """
import json, os, socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
keys = ("SUREFOOT_SERVICE", "TBENCH_QPS", "TBENCH_SERVER_PORT", "TBENCH_RANDSEED", "X")
said = {"argv": sys.argv[1:], "env": {k: os.environ.get(k) for k in keys}, "histogram": ""}
s.sendto(json.dumps(said).encode(), os.environ["SUREFOOT_FEED"])
"""
    program = _program(tmp_path, text)
    run = ["--duration-ms", "8000", "--seed", "7", "--env", "X=1"]
    subprocess.run(_command("wrk2", feed.path, program, *run), check=True, timeout=60)
    said = json.loads(feed.socket.recv(1 << 20))
    assert said["env"]["SUREFOOT_SERVICE"] == "web"
    assert said["argv"][-1] == "http://127.0.0.1:22080/"
    assert said["argv"][said["argv"].index("-d") + 1] == "68s"
    subprocess.run(_command("tailbench", feed.path, program, *run, rps="12.5"), check=True, timeout=60)
    told = json.loads(feed.socket.recv(1 << 20))["env"]
    assert (float(told["TBENCH_QPS"]), told["TBENCH_SERVER_PORT"], told["TBENCH_RANDSEED"], told["X"]) == (
        12.5,
        "22080",
        "7",
        "1",
    )


def test_refusals_of_drive(tmp_path: Path, feed: Feed) -> None:
    """What cannot be run as it was asked is refused in one line, before any load."""
    silent = _program(tmp_path, "")
    _refused(_command("wrk2", feed.path, silent, rps="0.4"), "--rps 0.4", "whole requests a second")
    _refused(_command("memtier", feed.path, silent, rps="2030"), "--rps 2030", "Give a multiple of 50")
    _refused(_command("tailbench", feed.path, silent), "has no surefoot_feed.h in it", "scripts/originals.sh tailbench")
    _refused(_command("ycsb", feed.path, silent), "no binding")
    _refused(_command("wrk2", feed.path, tmp_path / "none"), "no such file", "scripts/originals.sh wrk2")
    done = subprocess.run(_command("wrk2", feed.path, silent, rps="-1"), capture_output=True, text=True)
    assert done.returncode == 2
    assert "--rps -1.0: out of range" in done.stderr


@pytest.mark.parametrize("rps", [1, 7, 50, 130, 1000, 2000, 2050, 4000, 7850, 12000, 64000])
def test_memtier_sends_what_it_is_asked_for(rps: int) -> None:
    """The connections' rates come to the rate that was asked for, also as memtier_benchmark rounds them (50 bursts a second)."""
    clients, each = drive.shared_out(float(rps), 40)
    assert 1 <= clients <= 40
    burst = (each + 49) // 50
    interval_us = 1_000_000 // (each // burst)
    assert clients * burst * 1e6 / interval_us == pytest.approx(rps, rel=drive.ROUNDING)


def test_no_percentile_of_a_distribution_comes_out_lower() -> None:
    """Requests between two printed points count as the upper one, whatever is left over as the last; none is lost or made up."""
    points = [(0.5, 1.0), (0.99, 4.0), (0.999, 9.0)]
    assert drive.of_distribution(points, 10_000) == [(1_000_000, 5000), (4_000_000, 4900), (9_000_000, 90), (9_000_000, 10)]
    assert drive.of_distribution(points, 3) == [(1_000_000, 2), (4_000_000, 1)]
    assert drive.of_distribution(points, 0) == []


def test_drive_wants_nothing_but_python(tmp_path: Path, feed: Feed) -> None:
    """On a host there is the standard library only, and the adapters as originals.sh copied them beside the catalogue."""
    catalogue = tmp_path / "workloads"
    catalogue.mkdir()
    shutil.copy(DRIVE, catalogue)
    adapters = catalogue / "built" / "adapters"
    shutil.copytree(ROOT / "collection" / "adapters", adapters / "collection" / "adapters")
    (adapters / "pipelines").mkdir()
    for name in ("__init__.py", "inputs.py"):
        shutil.copy(ROOT / "pipelines" / name, adapters / "pipelines")
    program = _program(tmp_path, f"sys.stdout.write(open({str(RECORDED / 'wrk2.txt')!r}).read())")
    # -I -S: neither packages nor this repository
    command = [
        sys.executable,
        "-I",
        "-S",
        str(catalogue / "drive.py"),
        *_command("wrk2", feed.path, program, "--window-s", "20")[2:],
    ]
    assert _windows(feed, command, 1)[0][0]["count"] == 39854
    shutil.rmtree(adapters)
    _refused(command, "nothing reads what it prints", "scripts/originals.sh adapters")


# ---------------------------------------------------------------- originals.sh, mends


def _originals(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    # neither engine nor network is asked for a refusal
    none = {"SUREFOOT_ENGINE": "/nonexistent/engine"}
    return subprocess.run(
        ["bash", str(SCRIPT), *args], capture_output=True, text=True, timeout=60, env={**os.environ, **none, **env}
    )


@pytest.mark.parametrize("args", [(), ("doom",), ("wrk2",), ("wrk2", "a", "b"), ("adapters", "x")])
def test_originals_says_how_it_is_used(args: tuple[str, ...]) -> None:
    """A tool that it does not know, and too few or too many arguments, are bad input."""
    done = _originals(*args)
    assert done.returncode == 2
    assert "usage: scripts/originals.sh tailbench|" in done.stderr


def test_what_is_no_copy_of_a_tool_is_refused(tmp_path: Path) -> None:
    """No such file, no archive, and an archive of something else: one line each that says where the sources come from."""
    other = tmp_path / "other"
    (other / "src").mkdir(parents=True)
    (other / "src" / "x.c").write_text("int main(void) { return 0; }\n", "utf-8")
    subprocess.run(["tar", "-czf", str(tmp_path / "other.tgz"), "-C", str(tmp_path), "other"], check=True)
    text = tmp_path / "text.tar.gz"
    text.write_text("<html>not found</html>\n", "utf-8")
    for tool, home in (("wrk2", "giltene/wrk2"), ("parsec", "parsec.cs.princeton.edu"), ("tailbench", "tailbench.csail.mit.edu")):
        for source, why in (
            (tmp_path / "none", "there is no such file or folder"),
            (other, f"so it is not {tool}"),
            (tmp_path / "other.tgz", f"so it is not {tool}"),
        ):
            done = _originals(tool, str(source))
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
            assert why in done.stderr
            assert home in done.stderr
            assert str(source) in done.stderr
        done = _originals(tool, str(text))
        assert done.returncode == 2
        assert "is no tar archive that can be read" in done.stderr


def test_another_version_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    """A copy that the mends do not fit is named, with the place that does not fit; the user's own copy stays as it is."""
    (tmp_path / "wrk2" / "src").mkdir(parents=True)
    for name in ("hdr_histogram.h", "wrk.c"):
        (tmp_path / "wrk2" / "src" / name).write_text("int other_version;\n", "utf-8")
    done = _originals("wrk2", str(tmp_path / "wrk2"))
    assert done.returncode == 1
    assert "nobody has tried this copy" in done.stdout
    assert 'mend: src/wrk.c: line `#include "main.h"` and what follows stand there 0 times, want once' in done.stderr
    assert "workloads/originals/build/wrk2/mends" in done.stderr
    assert (tmp_path / "wrk2" / "src" / "wrk.c").read_text("utf-8") == "int other_version;\n"


def test_without_an_engine_nothing_is_built(tmp_path: Path) -> None:
    """A good copy and no engine: the remedy is the command that starts one. A copy is known by its files, packed or not."""
    folder = tmp_path / "parsec-3.0"
    marker = folder / "pkgs/kernels/streamcluster/src/streamcluster.cpp"
    for name in ("libs/hooks", "apps/blackscholes", "kernels/canneal"):
        (folder / "pkgs" / name).mkdir(parents=True)
    marker.parent.mkdir(parents=True)
    marker.write_text("int main() {}\n", "utf-8")
    subprocess.run(["tar", "-cf", str(tmp_path / "p.tar"), "-C", str(tmp_path), "parsec-3.0"], check=True)
    told = [_originals("parsec", str(source)) for source in (folder, tmp_path / "p.tar")]
    assert all(d.returncode == 1 and "no container engine answers. Run: scripts/engine.sh start" in d.stderr for d in told)
    assert told[0].stdout == told[1].stdout
    assert "nobody has tried this copy (" in told[0].stdout


def test_mends_are_all_or_nothing(tmp_path: Path) -> None:
    """Lines are found as they stand, once, and go where the entry says; where one entry does not fit no file is changed."""
    file = tmp_path / "a.c"
    file.write_text("one\ntwo\t\nthree\n", "utf-8")
    good = "why\n\n@@ a.c\n@ after\none\n@ with\nnew 1\nnew 2\n@@ a.c\n@ before\ntwo\nthree\n@ with\nnew 3\n"
    good += "@@ a.c\n@ replace\nthree\n@ with\n"
    mend.mend(mend.parse(good, "mends"), tmp_path)
    assert file.read_text("utf-8") == "one\nnew 1\nnew 2\nnew 3\ntwo\t\n\n"
    before = file.read_bytes()
    for entry, why in (("four", "0 times"), ("new 1", "once")):
        bad = f"@@ a.c\n@ after\none\n@ with\nX\n@@ {'a.c' if why == '0 times' else 'none.c'}\n@ after\n{entry}\n@ with\nY\n"
        with pytest.raises(mend.Misfit):
            mend.mend(mend.parse(bad, "mends"), tmp_path)
        assert file.read_bytes() == before
    for text in (
        "",
        "no entry",
        "@@ a.c\n@ near\none\n@ with\nx\n",
        "@@ ../a.c\n@ after\none\n@ with\nx\n",
        "@@ a.c\n@ after\none\n",
    ):
        with pytest.raises(mend.Misfit, match=r"mend\.py"):
            mend.parse(text, "mends")


def test_every_tool_has_its_build() -> None:
    """Each tool of originals.sh has a Dockerfile; what stands in a file of mends is understood, and is little."""
    for tool in ("tailbench", "parsec", "mutilate", "memtier", "wrk2"):
        folder = ORIGINALS / "build" / tool
        assert (folder / "Dockerfile").read_text("utf-8").count("FROM debian:bookworm-slim") == 2
        if (folder / "mends").is_file():
            mends = mend.parse((folder / "mends").read_text("utf-8"), tool)
            assert all(len(m.lines) <= 10 for m in mends)
            assert any("surefoot_feed.h" in line for m in mends for line in m.new), tool
    for line in (ORIGINALS / "build" / "known").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            tool, digest, *what = line.split()
            assert (ORIGINALS / "build" / tool).is_dir()
            assert len(digest) == 64
            assert what


def test_a_stopped_run_leaves_nothing(tmp_path: Path, feed: Feed) -> None:
    """SIGTERM ends the tool's run that is on, at once, and nothing is told of it."""
    program = _program(tmp_path, f"import time; open({str(tmp_path / 'on')!r}, 'w').close(); time.sleep(600)")
    with subprocess.Popen(_command("wrk2", feed.path, program), stderr=subprocess.PIPE, text=True) as child:
        deadline = time.monotonic() + 30
        while not (tmp_path / "on").exists() and time.monotonic() < deadline:
            threading.Event().wait(0.02)
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=30)
    assert (child.returncode, said) == (0, "")
    feed.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        feed.next()


def refusals(folder: Path, names: list[str], catalogue: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `campaign plan` refuses, with an engine that has no image."""
    engine = folder / "engine"
    engine.write_text("#!/bin/sh\n[ $1 = version ]\n", "utf-8")
    engine.chmod(0o755)
    monkeypatch.setenv("SUREFOOT_ENGINE", str(engine))
    file = folder / "c.toml"
    sweep = f"[sweep]\nservices = {json.dumps(names)}\nrps = [100]\nthreads = [1]\ncores = [0.5]\n"
    file.write_text(f'name = "o"\n[targets]\nlocal = true\n{sweep}[sampling]\nsamples = 2\n', "utf-8")
    (target,) = campaign.plan(file, catalogue=catalogue)["targets"]
    return [str(what) for what in target["refusals"]]


def test_a_campaign_that_lacks_its_generator_is_refused_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`campaign plan` names each load generator of an original that is not built here; an image, with where it is to be had."""
    catalogue = tmp_path / "originals"
    shutil.copytree(ORIGINALS, catalogue, ignore=shutil.ignore_patterns("built"))
    generators = [
        what
        for what in refusals(tmp_path, ["tailbench-masstree", "memcached-memtier"], catalogue, monkeypatch)
        if "load generator" in what
    ]
    assert len(generators) == 2
    assert (
        "tailbench-masstree: its load generator: drive: --program tailbench/bin/mttest_client_networked: no such file"
        in generators[0]
    )
    assert "scripts/originals.sh tailbench" in generators[0]
    assert "scripts/originals.sh memtier" in generators[1]
    (image,) = (what for what in refusals(tmp_path, ["tailbench-masstree"], catalogue, monkeypatch) if "no image" in what)
    assert "scripts/originals.sh tailbench" in image
    assert "images.sh" not in image


def test_a_generator_that_is_no_program_is_refused_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry's own program, or a name, that is not there is named with the field to mend."""
    own = tmp_path / "cat" / "own"
    own.mkdir(parents=True)
    (own / "workload.toml").write_text(
        'name = "own"\nkind = "lc"\ndomain = "x"\nimage = "x"\ncommand = ["x"]\nport = 22000\nqos_target_ms = 10.0\n'
        'licence = "CC0-1.0"\n[loadgen]\nprotocol = "exec"\ncommand = ["./drive", "{rps}", "{feed}"]\n',
        "utf-8",
    )
    told = refusals(tmp_path, ["own"], tmp_path / "cat", monkeypatch)[0]
    assert "own: its load generator" in told
    assert "mend loadgen.command" in told
    (own / "drive").write_text("#!/bin/sh\n", "utf-8")
    (own / "drive").chmod(0o755)
    assert not any("load generator" in what for what in refusals(tmp_path, ["own"], tmp_path / "cat", monkeypatch))


# ---------------------------------------------------------------- a campaign

# Tells the feed once a second of as many requests as RATE: so rarely that no interval of the campaign has a window of its own.
RARE = """\
import socket, sys, time
sys.path.insert(0, FOLDER)
import drive
feed, service, rate = sys.argv[1], sys.argv[2], RATE
to = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
due = time.monotonic()
while True:
    due += 1.0
    time.sleep(max(0.0, due - time.monotonic()))
    cells = {1_000_000 + 1000 * i: 1 for i in range(rate)}
    to.sendto(drive.datagram(service, 1000, cells, 0), feed)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a cgroup")
@pytest.mark.parametrize(("rate", "verdict"), [(600, "valid"), (500, "server-overloaded")])
def test_windows_longer_than_intervals(rate: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a load generator that tells the feed once a second, in intervals of half a second: every row has the case's latency, of
    whole windows within the samples, and says how it was loaded. Less than was asked for is found out, though nothing waits."""
    monkeypatch.setenv("SUREFOOT_ENGINE", "/bin/false")
    monkeypatch.setenv("SUREFOOT_STATE", str(tmp_path / "state"))
    generator = tmp_path / "rare.py"
    generator.write_text(RARE.replace("FOLDER", repr(str(ORIGINALS))).replace("RATE", str(rate)), "utf-8")
    command = [sys.executable, str(generator), "{feed}", "{service}", "{rps}"]
    (tmp_path / "rare.toml").write_text(
        f"""name = "rare"
[targets]
local = true
[sweep]
services = "all"
rps = [600]
threads = 1
cores = [0.5]
[sampling]
warmup_ms = 1000
interval_ms = 500
samples = 9
[[service]]
service = "idle"
kind = "lc"
qos_target_ms = 50.0
command = ["sleep", "600"]
loadgen = {{ protocol = "exec", loop = "closed", latency_from = "actual", command = {json.dumps(command)} }}
""",
        "utf-8",
    )
    campaign.run(tmp_path / "rare.toml", tmp_path / "data")
    rows = pl.concat([pl.read_parquet(p) for p in (tmp_path / "data" / "local" / "shards").iterdir()])
    assert rows.select("loop", "latency_from", "verdict").unique().rows() == [("closed", "actual", verdict)]
    # 4.5 s have three or four whole seconds in them; fewer where the host stalls
    assert rows["count"].n_unique() == 1
    assert rows["count"][0] in (2 * rate, 3 * rate, 4 * rate)
    assert rows["achieved_rps"].to_list() == pytest.approx([rate] * 9)
    assert rows["latency_p99_ms"][0] == pytest.approx(1 + 0.99 * rate / 1000, rel=0.01)
    assert not [f for f in verify.verify(tmp_path / "data").findings if f.severity == "error"]


@pytest.mark.parametrize(("example", "cells"), [("originals", [12] * 5), ("originals-beside", [12, 12])])
def test_the_examples_plan(example: str, cells: list[int]) -> None:
    """The campaigns on originals that are shipped have the cells that they say, of services that the catalogue has."""
    file = ROOT / "examples" / f"{example}.toml"
    plan = campaign.plan(file, catalogue=ORIGINALS)
    (target,) = plan["targets"]
    assert f": {sum(cells)} cells" in file.read_text("utf-8").splitlines()[0]
    assert plan["cases"] == sum(cells)
    assert sorted(target["by_service"].values()) == cells
