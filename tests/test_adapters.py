"""Outputs of other tools. The recordings in tests/data/adapters have the tools' documented formats; their figures are made up."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from collection import adapters
from collection.adapters import Measured, read
from collection.errors import AdapterError

DATA = Path(__file__).parent / "data" / "adapters"


def test_mutilate() -> None:
    """Microseconds become milliseconds; each operation that was asked for has its row; the table has no median and no p99.9."""
    rows = read("mutilate", DATA / "mutilate.txt")
    assert rows == [
        Measured("mutilate", "read", 2996224, 99874.1, 0.1042, None, 0.158, 0.2117, None),
        Measured("mutilate", "update", 2996224, 99874.1, 0.1088, None, 0.1664, 0.2239, None),
    ]


def test_mutilate_reads_its_fork_and_leaves_out_what_was_not_asked_for(tmp_path: Path) -> None:
    """mcperf names its columns p99; without updates their row is zeros."""
    file = tmp_path / "mcperf.txt"
    file.write_text(
        "#type       avg     std     min      p5     p10     p50     p90     p95     p99    p999\n"
        "read       62.2    24.1    54.7    59.1    59.4    61.5    63.5    63.8    68.8    80.2\n"
        "update      0.0     0.0     0.0     0.0     0.0     0.0     0.0     0.0     0.0     0.0\n"
        "\nTotal QPS = 16082.2 (80411 / 5.0s)\n"
    )
    (row,) = read("mutilate", file)
    assert (row.operation, row.p50_ms, row.p99_ms, row.p999_ms) == ("read", 0.0615, 0.0688, 0.0802)


def test_memtier() -> None:
    """Waits have no values and are left out; the totals are of all requests."""
    rows = read("memtier_benchmark", DATA / "memtier.txt")
    assert [r.operation for r in rows] == ["set", "get", "all"]
    assert rows[-1] == Measured("memtier_benchmark", "all", None, 78619.09, 2.53982, 2.335, None, 4.703, 15.487)


def test_wrk2() -> None:
    """p95 comes from the spectrum: the summary has none."""
    assert read("wrk2", DATA / "wrk2.txt") == [Measured("wrk2", "all", 39854, 1999.61, 1.313, 1.16, 2.617, 4.61, 11.23)]


@pytest.mark.parametrize(("text", "ms"), [("880.00us", 0.88), ("1.07s", 1070.0), ("1.10m", 66000.0)])
def test_wrk2_units(tmp_path: Path, text: str, ms: float) -> None:
    """wrk2 picks a unit for each line."""
    file = tmp_path / "wrk2.txt"
    file.write_text((DATA / "wrk2.txt").read_text().replace(" 4.61ms", f" {text}"))
    assert read("wrk2", file)[0].p99_ms == pytest.approx(ms)


def test_ycsb() -> None:
    """One row an operation; the rate is of all together."""
    assert read("ycsb", DATA / "ycsb.txt") == [
        Measured("ycsb", "read", 28500, 998.6352, 0.41277, None, 0.731, 1.39, None),
        Measured("ycsb", "update", 1500, 998.6352, 0.6102, None, 1.021, 2.199, None),
    ]


def test_parsec() -> None:
    """The region of interest counts, not the reading of the input; without hooks there is only the whole time."""
    path = DATA / "parsec.txt"
    assert read("parsec", path) == [Measured("parsec", "parsec.blackscholes", runtime_s=51.482)]
    plain = "\n".join(line for line in path.read_text().splitlines() if "HOOKS" not in line)
    # 1 m 12.604 s
    assert adapters.parsec(path, plain)[0].runtime_s == pytest.approx(72.604)


def _lats(count: int) -> bytes:
    """Requests 1 to `count` wait i us and are served in 1 ms."""
    return b"".join(struct.pack("<3Q", i * 1000, 1_000_000, i * 1000 + 1_000_000) for i in range(1, count + 1))


def test_tailbench(tmp_path: Path) -> None:
    """The third number is the response time; percentiles are values that occurred."""
    file = tmp_path / "lats.bin"
    file.write_bytes(_lats(1000))
    whole, service = read("tailbench", file)
    # Response times are 1.001 to 2.000 ms in steps of 0.001: the 990th is 1.990.
    assert (whole.count, whole.p50_ms, whole.p99_ms, whole.p999_ms) == (1000, 1.5, 1.99, 1.999)
    assert whole.mean_ms == pytest.approx(1.5005)
    assert (service.operation, service.p99_ms) == ("service", 1.0)


@pytest.mark.parametrize("raw", [b"", _lats(2)[:-1], struct.pack("<3Q", 5_000_000, 1_000_000, 1_000_000)])
def test_tailbench_refuses_other_files(tmp_path: Path, raw: bytes) -> None:
    """Cut short, or numbers that do not add up: not silently read as latencies."""
    file = tmp_path / "lats.bin"
    file.write_bytes(raw)
    with pytest.raises(AdapterError, match="not an output of tailbench"):
        read("tailbench", file)


@pytest.mark.parametrize("tool", [t for t in adapters.TOOLS if t != "tailbench"])
def test_a_file_of_another_tool_is_refused(tool: str) -> None:
    """Each tool's recording is read by its own parser only."""
    own = {"memtier_benchmark": "memtier"}.get(tool, tool)
    for file in DATA.glob("*.txt"):
        if file.stem == own:
            assert read(tool, file)
        else:
            with pytest.raises(AdapterError, match=f"not an output of {tool}"):
                read(tool, file)


def test_command_line() -> None:
    """What was read is printed; an unknown tool and a file of another tool are bad input, on one line."""
    done = CliRunner().invoke(adapters.main, ["ycsb", str(DATA / "ycsb.txt"), "--json"])
    assert done.exit_code == 0
    assert [r["operation"] for r in json.loads(done.output)] == ["read", "update"]
    text = CliRunner().invoke(adapters.main, ["wrk2", str(DATA / "wrk2.txt")])
    assert "p99_ms=4.61" in text.output
    assert CliRunner().invoke(adapters.main, ["nonsense", str(DATA / "ycsb.txt")]).exit_code == 2
    wrong = CliRunner().invoke(adapters.main, ["wrk2", str(DATA / "ycsb.txt")])
    assert wrong.exit_code == 2
    assert wrong.output.startswith("Error: ")
    assert wrong.output.count("\n") == 1
