"""What other load generators and suites write, read into one form.

For those who have the originals: TailBench's harness, mutilate, memtier_benchmark, wrk2, YCSB and PARSEC. Surefoot does not
start them; `workloads/originals` names their images. Each parser says where its format comes from. A value that a tool does not
print is None.

    python -m collection.adapters TOOL FILE [--json]
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from pipelines import stdio
from pipelines.inputs import SUMMARY_BYTES, Unreadable, json_text, message, read_bytes

from .errors import AdapterError, SurefootError, told


@dataclass(frozen=True)
class Measured:
    """One run of one tool.

    tool: its name here. operation: what the latencies are of, e.g. `read`; `all` for every request.
    count: requests measured. achieved_rps: requests per second. mean_ms to p999_ms: latency, ms; whether it counts from the
    intended or the actual send is the tool's affair (wrk2 and TailBench: intended; the others: actual).
    runtime_s: of a job without requests (PARSEC), seconds in its region of interest.
    """

    tool: str
    operation: str = "all"
    count: int | None = None
    achieved_rps: float | None = None
    mean_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    runtime_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def _wrong(path: Path, tool: str, missing: str) -> AdapterError:
    return AdapterError(f"{path}: not an output of {tool}: {missing}. Give the file that holds the tool's whole output")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # "---" and "-nan": the tool has no value


def _ms(us: float | None) -> float | None:
    # To the nanosecond: what a division of decimals leaves is no measurement.
    return None if us is None else round(us / 1000, 6)


def mutilate(path: Path, text: str) -> list[Measured]:
    """Latencies in us by operation, then the rate of all.

    Source: leverich/mutilate, `ConnectionStats.h` and `print_stats` in mutilate.cc.
    """
    header: list[str] = []
    rows: dict[str, dict[str, float | None]] = {}
    for line in text.splitlines():
        words = line.split()
        if words and words[0] == "#type":
            header = words[1:]
        elif header and words and words[0] in ("read", "update") and len(words) == len(header) + 1:
            rows[words[0]] = dict(zip(header, map(_number, words[1:]), strict=True))
    total = re.search(r"^Total QPS = ([\d.]+) \((\d+) / [\d.]+s\)", text, re.MULTILINE)
    if not rows or total is None:
        raise _wrong(path, "mutilate", "no line `Total QPS`" if rows else "no table that begins with `#type`")
    found = []
    for operation, row in rows.items():
        if not row.get("avg"):
            continue  # an operation that was not asked for is a row of zeros
        # mcperf, a fork, says p99 for 99th.
        q = {n: _ms(row.get(f"{n}th", row.get(f"p{n}"))) for n in (50, 95, 99, 999)}
        found.append(
            Measured("mutilate", operation, int(total[2]), float(total[1]), _ms(row["avg"]), q[50], q[95], q[99], q[999])
        )
    return found


def memtier_benchmark(path: Path, text: str) -> list[Measured]:
    """The table `ALL STATS`, ms. Source: redis/memtier_benchmark, README and `run_stats.cpp`."""
    lines = text.splitlines()
    # Columns stand apart by two spaces or more; their names hold single ones.
    starts = [i for i, line in enumerate(lines) if line.startswith("Type ") and "Ops/sec" in line]
    found = []
    for start in starts:
        names = re.split(r"\s{2,}", lines[start].strip())
        for line in lines[start + 1 :]:
            words = line.split()
            if words and len(words) == len(names) and words[0] in ("Sets", "Gets", "Totals"):
                row = dict(zip(names[1:], map(_number, words[1:]), strict=True))
                if row.get("Ops/sec"):
                    operation = {"Sets": "set", "Gets": "get", "Totals": "all"}[words[0]]
                    latency = [row.get(n) for n in ("Avg. Latency", "p50 Latency", "p95 Latency", "p99 Latency", "p99.9 Latency")]
                    found.append(Measured("memtier_benchmark", operation, None, row["Ops/sec"], *latency))
            elif not line.strip():
                break
    if not found:
        raise _wrong(path, "memtier_benchmark", "no table with `Type` and `Ops/sec`")
    return found


_TIME = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6}


def wrk2(path: Path, text: str) -> list[Measured]:
    """Recorded latencies of `wrk2 --latency`. Source: giltene/wrk2, README; p95 stands in its spectrum only."""
    at = text.find("Latency Distribution (HdrHistogram - Recorded Latency)")
    rate = re.search(r"^Requests/sec:[ \t]+([\d.]+)", text, re.MULTILINE)
    if at < 0 or rate is None:
        raise _wrong(path, "wrk2", "no `Requests/sec`" if at >= 0 else "no recorded latencies: run it with --latency")
    part = text[at:]
    other = part.find("Uncorrected Latency")
    part = part if other < 0 else part[:other]
    # blanks only: what matches ends of lines, too, takes quadratic time on a file of empty ones
    line = re.compile(r"^[ \t]*([\d.]+)%[ \t]+([\d.]+)(us|ms|s|m|h)[ \t\r]*$", re.MULTILINE)
    values = {float(p): float(v) * _TIME[u] for p, v, u in line.findall(part)}
    line = re.compile(r"^[ \t]+([\d.]+)[ \t]+([01]\.\d{6})[ \t]+\d+[ \t]+\S+[ \t\r]*$", re.MULTILINE)
    spectrum = [(float(p), float(v)) for v, p in line.findall(part)]
    p95 = next((v for p, v in spectrum if p >= 0.95), None)
    mean = re.search(r"#\[Mean\s+=\s+([\d.]+)", part)
    count = re.search(r"Total count\s+=\s+(\d+)", part)
    return [
        Measured(
            "wrk2",
            count=None if count is None else int(count[1]),
            achieved_rps=float(rate[1]),
            mean_ms=None if mean is None else float(mean[1]),
            p50_ms=values.get(50.0),
            p95_ms=p95,
            p99_ms=values.get(99.0),
            p999_ms=values.get(99.9),
        )
    ]


def ycsb(path: Path, text: str) -> list[Measured]:
    """Lines `[OPERATION], measure, value`, us. Source: brianfrankcooper/YCSB, wiki "Running a Workload"."""
    rows: dict[str, dict[str, float]] = {}
    for operation, measure, value in re.findall(r"^\[([^\]\n]+)\], ([^,\n]+), ([-+.\deE]+)[ \t\r]*$", text, re.MULTILINE):
        rows.setdefault(operation, {})[measure] = float(value)
    rate = rows.get("OVERALL", {}).get("Throughput(ops/sec)")
    if rate is None:
        raise _wrong(path, "ycsb", "no line `[OVERALL], Throughput(ops/sec)`")
    found = []
    for operation, row in rows.items():
        # CLEANUP is no request; what failed has rows of its own.
        if (
            operation == "CLEANUP"
            or operation.endswith("-FAILED")
            or not row.get("Operations")
            or "AverageLatency(us)" not in row
        ):
            continue
        q = [_ms(row.get(f"{n}PercentileLatency(us)")) for n in ("50th", "95th", "99th", "99.9")]
        found.append(Measured("ycsb", operation.lower(), int(row["Operations"]), rate, _ms(row["AverageLatency(us)"]), *q))
    return found


def parsec(path: Path, text: str) -> list[Measured]:
    """Region of interest of `parsecmgmt -c gcc-hooks`, else the time of the whole run.

    Source: PARSEC 3.0, `hooks.c` and parsecmgmt.
    """
    name = re.search(r"Running benchmark (\S+)", text)
    roi = re.search(r"^\[HOOKS\] Total time spent in ROI: ([\d.]+)s", text, re.MULTILINE)
    real = re.search(r"^real[ \t]+(\d+)m([\d.]+)s", text, re.MULTILINE)
    if name is None or (roi is None and real is None):
        raise _wrong(path, "parsec", "no line `Running benchmark`" if name is None else "no time: the run did not end")
    if roi is not None:
        seconds = float(roi[1])
    else:
        assert real is not None
        seconds = 60 * float(real[1]) + float(real[2])
    return [Measured("parsec", name[1], runtime_s=seconds)]


def tailbench(path: Path, raw: bytes) -> list[Measured]:
    """`lats.bin` of TailBench's harness 0.9: three 64-bit little-endian numbers a request, ns: queueing, service, both together.

    Source: its `harness/client.cpp` (dumpStats) and `utilities/parselats.py`. The file has no times of arrival, so no rate.
    """
    if not raw or len(raw) % 24:
        raise _wrong(path, "tailbench", f"{len(raw)} bytes are no whole number of 24-byte records")
    records = np.frombuffer(raw, dtype="<u8").reshape(-1, 3).astype(np.float64) / 1e6
    # Clocks are read one after another: allow them a microsecond.
    if np.any(np.abs(records[:, 0] + records[:, 1] - records[:, 2]) > 1e-3 + 0.01 * records[:, 2]):
        raise _wrong(path, "tailbench", "queueing and service time do not add up to the third number")
    found = []
    for operation, column in (("all", 2), ("service", 1)):
        times = records[:, column]
        # The smallest value that so many lie at or below, as in the reports of surefoot-loadgen.
        p50, p95, p99, p999 = (float(v) for v in np.quantile(times, (0.5, 0.95, 0.99, 0.999), method="inverted_cdf"))
        found.append(Measured("tailbench", operation, len(times), None, float(times.mean()), p50, p95, p99, p999))
    return found


_TEXT: dict[str, Callable[[Path, str], list[Measured]]] = {
    "memtier_benchmark": memtier_benchmark,
    "mutilate": mutilate,
    "parsec": parsec,
    "wrk2": wrk2,
    "ycsb": ycsb,
}
TOOLS = tuple(sorted([*_TEXT, "tailbench"]))


def read(tool: str, path: Path) -> list[Measured]:
    """Read one output file.

    Raises:
        AdapterError: unknown tool, no such file, or not what the tool writes.
    """
    if tool not in TOOLS:
        raise AdapterError(f"unknown tool {tool!r}. Give one of {', '.join(TOOLS)}")
    try:
        raw = read_bytes(path, SUMMARY_BYTES)
    except OSError as e:
        raise AdapterError(told(e)) from e
    except Unreadable as e:
        raise AdapterError(f"{path}: cannot be read: {e}. Give what {tool} wrote") from e
    try:
        found = tailbench(path, raw) if tool == "tailbench" else _TEXT[tool](path, raw.decode("utf-8", errors="replace"))
        for row in found:
            for name, value in row.as_json().items():
                if isinstance(value, int | float) and not (math.isfinite(value) and 0 <= value < 1e18):
                    raise ValueError(f"{name} is {value}")
        return found
    except (ArithmeticError, KeyError, TypeError, ValueError) as e:
        raise _wrong(path, tool, f"a number that is none ({message(e)})") from e


@click.command()
@click.argument("tool", type=click.Choice(TOOLS))
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def main(tool: str, file: Path, as_json: bool) -> None:
    """Read what another load generator or suite wrote: rate and latencies, in our units."""
    stdio.guard()
    try:
        rows = [row.as_json() for row in read(tool, file)]
    except SurefootError as e:
        click.echo(f"Error: {message(e)}", err=True)
        sys.exit(e.exit_code)
    if as_json:
        click.echo(json_text(rows))
    else:
        for row in rows:
            click.echo(" ".join(f"{name}={value}" for name, value in row.items() if value is not None))


if __name__ == "__main__":
    main()
