"""workloads/: stand-ins have the sizes of what they stand for, answer right, are listed, and tell what they use."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
WORKLOADS = ROOT / "workloads"
sys.path.insert(0, str(ROOT / "scripts" / "workloads"))
import stand_ins  # noqa: E402

MIB = 1 << 20


def entry(name: str) -> dict[str, Any]:
    return tomllib.loads((WORKLOADS / name / "workload.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `batch` and `phrases`, built as their Dockerfiles do."""
    folder = tmp_path_factory.mktemp("programs")
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.fail("needs a C++ compiler (scripts/deps.sh)")
    for name in ("batch", "phrases"):
        sources = sorted(str(f) for f in (WORKLOADS / name).glob("*.cpp"))
        flags = [
            "-std=c++20",
            "-O2",
            "-ffp-contract=off",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            f"-I{WORKLOADS / 'toolchain/include'}",
        ]
        subprocess.run([compiler, *flags, "-o", str(folder / name), *sources], check=True, timeout=600)
    return folder


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def command_of(programs: Path, name: str) -> list[str]:
    """The command that scripts/workloads/stand_ins.py gives the container, for the program here; one second, or few requests."""
    words = stand_ins.command_of(entry(name))
    return (
        [str(programs / words[0]), *words[1:-1], "200"]
        if "--times" in words
        else [str(programs / words[0]), *words[1:-2], "1", words[-1]]
    )


@pytest.mark.parametrize(
    ("name", "least_mb", "most_mb"),
    [
        # Points of a chunk of PARSEC's native input: 200,000 x 128 floats.
        ("streamcluster", 102.4, 128),
        # canneal's native netlist.
        ("annealing", 1700, 1900),
        # Ten million options, as PARSEC's in_10M.txt: 48 bytes each and a price.
        ("blackscholes", 560, 600),
        ("phrases", 400, 800),
        ("streamcluster-small", 1, 12),
        ("annealing-small", 11, 24),
        ("blackscholes-small", 3.6, 16),
        ("phrases-small", 20, 60),
    ],
)
def test_a_stand_in_has_the_size_of_its_original(programs: Path, name: str, least_mb: float, most_mb: float) -> None:
    """The default size is that of the original's native input, the small one is small, and both fit the entry's memory limit."""
    done = run(command_of(programs, name))
    assert done.returncode == 0, done.stderr
    found = stand_ins.report_of(done.stdout, name)
    assert least_mb <= found["rss_mb"] <= most_mb
    # A tenth is left for the program's own needs.
    assert found["rss_mb"] * 1e6 < 0.9 * entry(name)["memory_mb"] * MIB
    assert 0 < found["touched_mb"] <= found["rss_mb"] * 1.01


@pytest.mark.parametrize("command", [["batch", "verify"], ["phrases", "--verify"]])
def test_known_answers(programs: Path, command: list[str]) -> None:
    """Each program's check of itself, which its image is built with, passes."""
    done = run([str(programs / command[0]), *command[1:]])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["streamcluster", "--size", "huge"], '--size "huge": give native or small'),
        (["hog", "--size", "small"], "--size: hog has one size only. Leave --size out"),
        (["hog", "--report"], "--report comes at the end: give --seconds too"),
        (["verify", "--size", ""], '--size "": give native or small'),
        (["verify", "--threads", "2"], "unknown option --threads"),
    ],
)
def test_a_wrong_command_is_refused(programs: Path, arguments: list[str], said: str) -> None:
    """A size that is none, or that a job does not have, is one line and exit code 2."""
    done = run([str(programs / "batch"), *arguments])
    assert (done.returncode, done.stderr) == (2, said + "\n")


def test_jobs_say_when_their_data_are_made(programs: Path) -> None:
    """The line that the entries of sized jobs wait for is written, before the first line of progress can be."""
    for name in ("streamcluster-small", "annealing-small", "blackscholes-small"):
        awaited = entry(name)["ready"].removeprefix("log:")
        assert awaited == entry(name.removesuffix("-small"))["ready"].removeprefix("log:")
        assert awaited in run(command_of(programs, name)).stderr.splitlines()


def test_every_entry_is_in_the_tables() -> None:
    """docs/workloads.md lists every entry of the catalogue, as service or as job, and nothing else."""
    page = (ROOT / "docs/workloads.md").read_text("utf-8")
    for kind, title in (("lc", "## LC services"), ("be", "## BE jobs")):
        section = page.split(title)[1].split("\n## ")[0]
        names = {n.strip() for row in re.findall(r"^\| ([a-z][a-z, -]*) \|", section, flags=re.M) for n in row.split(",")} - {
            "entry"
        }
        assert names == {e.parent.name for e in WORKLOADS.glob("*/workload.toml") if entry(e.parent.name)["kind"] == kind}


def test_every_service_of_ours_is_measured() -> None:
    """What scripts/workloads/stand_ins.py leaves out is of the catalogue, and is not built on our C++ frame."""
    for name in stand_ins.NOT_OURS:
        assert entry(name)
        assert not any("surefoot/service.hpp" in f.read_text("utf-8") for f in (WORKLOADS / name).glob("*.cpp"))


def test_a_report_is_read_or_refused() -> None:
    """The last line counts; a program without one, as an image of before has, is one clear error."""
    line = '{"seconds": 2, "user_s": 1, "sys_s": 0.5, "rss_mb": 100, "touched_mb": null}'
    assert stand_ins.report_of(f"1.0 55\n{line}\n", "x")["user_s"] == 1
    for text in ("", "1.0 55\n", "[1]\n", "{}\n"):
        with pytest.raises(stand_ins.Failed, match=r"x: no report in its output.*scripts/images\.sh x"):
            stand_ins.report_of(text, "x")


def test_the_table_is_per_request_and_per_second() -> None:
    """CPU time is ms a request of a service, and two shares of a job's; service times are the worker's; unknown is a dash."""
    used = {"user_s": 3.0, "sys_s": 1.0, "rss_mb": 1234.0, "touched_mb": None}
    times = {
        "requests": 2000,
        "cpu_mean_ms": 2.0,
        "cpu_cv": 2.4,
        "cpu_p50_ms": 1.0,
        "cpu_p95_ms": 5.0,
        "cpu_p99_ms": 38.0,
        "mean_ms": 9.0,
    }
    rows = stand_ins.table(
        [{"name": "a", "kind": "lc", **used, **times}, {"name": "b", "kind": "be", "seconds": 4.0, **used}]
    ).splitlines()
    assert rows[2] == "| a | 1.5 / 0.5 ms | 1,234 | - | 2 | 2.4 | 1 | 5 | 38 |"
    assert rows[3] == "| b | 75 / 25 % | 1,234 | - | - | - | - | - | - |"
    assert stand_ins.row_of({"name": "apertium", "kind": "lc", **used, **times})[4:6] == ["9", "-"]


def test_any_process_can_be_watched() -> None:
    """Of a process that works, its CPU time and the pages that it touches are seen; one that has gone is one clear error."""
    touch = "import time\nb = bytearray(64 << 20)\nprint(1, flush=True)\nwhile True:\n b[::4096] = bytes(len(b) // 4096)"
    with subprocess.Popen([sys.executable, "-c", touch], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline()
            # A busy machine may give it no time at once.
            for _ in range(60):
                found = stand_ins.watch(other.pid, 0.5)
                if found["user_s"] + found["sys_s"] > 0 and found["touched_mb"] > 60:
                    break
        finally:
            other.kill()
    assert found["user_s"] + found["sys_s"] > 0
    assert 60 < found["touched_mb"] <= found["rss_mb"] * 1.01
    with pytest.raises(stand_ins.Failed, match=f"process {other.pid}: it has ended"):
        stand_ins.watch(other.pid, 0.1)


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not of the catalogue, and one that cannot be measured so, are bad input and say which."""
    for name, why in (("nonsense", "is no workload"), ("redis", "is not ours and cannot time itself")):
        monkeypatch.setattr(sys, "argv", ["stand_ins.py", name])
        assert stand_ins.main() == 2
        assert f"{name} {why}" in capsys.readouterr().err
