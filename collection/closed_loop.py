"""A real closed loop on this machine: memcached under a load step, a memory-streaming BE job beside it, one policy in charge.

`surefootd run --server local` starts both containers and controls them; surefoot-loadgen sends the load and feeds the latency
back, ten times a second.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pipelines.inputs import Unreadable, json_lines, parse_json, read_json, said
from pipelines.io import make_folder, open_anew, write_bytes

from . import tools
from .errors import StepFailed, ToolFailed

_START_S = 90.0
_END_S = 30.0
_FEED = "latency feed: "


@dataclass(frozen=True)
class Loop:
    """What runs. `steps` are (second, RPS), the first at 0; times count from the end of the warm-up.

    Four BE jobs: the kernel's fair share leaves the LC service a fifth of the CPU, which is enough before the step and not after.
    """

    service: str = "memcached"
    job: str = "stream"
    jobs: int = 4
    port: int = 21211
    protocol: str = "memcached"
    connections: int = 8
    steps: Sequence[tuple[float, float]] = ((0.0, 2000.0), (10.0, 15000.0))
    warmup_s: float = 2.0
    duration_s: float = 40.0

    def config(self) -> str:
        """node.toml of the run (docs/node-config.md)."""
        services = [f'[[service]]\nservice = "{self.service}"\nport = {self.port}\n']
        services += [f'[[service]]\nservice = "{self.job}"\nid = "{self.job}-{k + 1}"\n' for k in range(self.jobs)]
        return "\n".join(["metrics_port = 0\n", *services])

    def load(self) -> str:
        """The load generator's `--load`."""
        return ",".join(f"{at:g}s:{rps:g}" for at, rps in self.steps)


def run(loop: Loop, policy: str, bundle: Path | None, out: Path) -> dict[str, Any]:
    """Run one policy; returns key figures and where the recorded run is.

    Args:
        bundle: for policies that need models.
        out: folder of the recording, the load generator's report and the logs.
    Raises:
        StepFailed: the node or the load generator failed; names the log.
    """
    make_folder(out)
    config, events, report = out / "node.toml", out / "timeline.jsonl", out / "load.json"
    write_bytes(config, loop.config().encode())
    # the node ends by itself even if nobody tells it to
    longest = int(loop.warmup_s + loop.duration_s + _START_S)
    args: list[str | Path] = ["run", "--server", "local", "--policy", policy, "--config", config, "--events", events]
    args += ["--overwrite", "--duration-s", str(longest), f"--die-with-parent={os.getpid()}"]
    if bundle is not None:
        # a demonstration may be older than another on this machine
        args += ["--bundle", bundle, "--allow-older"]
    log = out / "surefootd.log"
    with open_anew(log) as file:
        node = subprocess.Popen(
            [str(tools.find(tools.SUREFOOTD)), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=tools.merged({"SUREFOOT_LOG": "info"}),
        )
        try:
            feed = _wait_for_feed(node, log)
            _load(loop, feed, report, out / "loadgen.log")
        finally:
            said = _stop(node)
    if node.returncode not in (0, -15):
        raise StepFailed(f"closed loop under {policy}: {_last(log)}; see {log}")
    return {
        "policy": policy,
        "timeline": str(events),
        "load_report": str(report),
        **figures(events, loop.service),
        "be_cpu_cores": be_cpu(events, loop.job),
        **_load_figures(read_json(report)),
        "node": said,
    }


def words(loop: Loop) -> dict[str, Any]:
    """What the report says about the runs."""
    first, *rest = loop.steps
    steps = ", ".join(f"after {at:g} s {rps:,.0f} RPS" for at, rps in rest)
    return {
        "service": loop.service,
        "job": loop.job,
        "duration_s": loop.warmup_s + loop.duration_s,
        "marks": [[loop.warmup_s + at, f"{rps:,.0f} RPS"] for at, rps in rest],
        "text": (
            f"A real {loop.service} container under open-loop load ({first[1]:,.0f} RPS, {steps}) and {loop.jobs} "
            f"memory-streaming BE containers on the same CPU; {loop.duration_s:g} s for each policy, after a warm-up of "
            f"{loop.warmup_s:g} s. The node decides every 100 ms on the latencies that the load generator feeds back."
        ),
        "caption": "p99 of the last second, every 100 ms; each of at least 100 requests. Vertical line: the load changes.",
    }


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e15


def rows(events: Path) -> Iterator[dict[str, Any]]:
    """What a node recorded, one row a service and tick.

    Raises:
        StepFailed: a line is none of a recording; names it.
    """
    numbers = ("t_ms", "p99_ms", "qos_target_ms", "cores", "ways")
    try:
        for k, row in enumerate(json_lines(events), start=1):
            whole = isinstance(row, dict) and isinstance(row.get("service"), str) and _is_number(row.get("t_ms"))
            if not whole or not all(row.get(n) is None or _is_number(row[n]) for n in numbers):
                raise Unreadable(f"line {k} is no row of a recording")
            yield row
    except Unreadable as e:
        raise StepFailed(f"{events}: {e}; record it again: surefootd run --events") from e


def figures(events: Path, service: str) -> dict[str, Any]:
    """Seconds observed and seconds of QoS violation of one service in a recorded run.

    Each tick is judged by the p99 of the last second. A tick without a p99 is neither met nor missed: it is not observed.
    """
    ticks: list[tuple[int, float, float]] = []
    for row in rows(events):
        if row["service"] == service and row.get("p99_ms") is not None and row.get("qos_target_ms") is not None:
            ticks.append((row["t_ms"], row["p99_ms"], row["qos_target_ms"]))
    if not ticks:
        raise StepFailed(
            f"{events}: no p99 of {service} was ever seen: the latency feed did not arrive. Is the load generator built?"
        )
    times = [t for t, _, _ in ticks]
    tick_s = round(median(b - a for a, b in pairwise(times)), -1) / 1000 if len(times) > 1 else 0.1
    violated = sum(p99 > target for _, p99, target in ticks)
    return {"violation_s": round(violated * tick_s, 3), "observed_s": round(len(ticks) * tick_s, 3), "qos_target_ms": ticks[0][2]}


def be_cpu(events: Path, job: str) -> float | None:
    """CPU that the BE jobs got together, in cores, averaged over the run: what holding the LC service cost them."""
    used: dict[int, float] = {}
    for row in rows(events):
        features = row.get("features")
        cores = features.get("cpu_usage_cores") if isinstance(features, dict) else None
        if row["service"].startswith(job) and isinstance(cores, int | float) and _is_number(cores):
            used[row["t_ms"]] = used.get(row["t_ms"], 0.0) + cores
    return sum(used.values()) / len(used) if used else None


def _load_figures(report: dict[str, Any]) -> dict[str, Any]:
    """From the load generator's report: requests in all, their p99 with its interval, and the verdict."""
    p99 = report["response_time"]["p99"]
    return {
        "requests": p99["count"],
        "whole_p99_ms": p99["value_ms"],
        "whole_p99_low_ms": p99["lower_ms"],
        "whole_p99_high_ms": p99["upper_ms"],
        "verdict": report["verdict"]["kind"],
        "offered_rps": report["offered_rps"],
        "achieved_rps": report["achieved_rps"],
    }


def _wait_for_feed(node: subprocess.Popen[str], log: Path) -> str:
    """Path of the latency socket, once the services run."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        for line in said(log).splitlines():
            if _FEED in line:
                return line.split(_FEED, 1)[1].split("\x1b")[0].strip()
        if node.poll() is not None:
            raise StepFailed(f"closed loop: {_last(log)}; see {log}")
        time.sleep(0.05)
    raise StepFailed(f"closed loop: the node did not start its services within {_START_S:.0f} s; see {log}")


def _load(loop: Loop, feed: str, report: Path, log: Path) -> None:
    # the last CPU is the client's: the node leaves it out by default
    cpus = sorted(os.sched_getaffinity(0))
    args = ["--target", f"127.0.0.1:{loop.port}", "--protocol", loop.protocol, "--connections", str(loop.connections)]
    args += [
        "--load",
        loop.load(),
        "--warmup",
        f"{loop.warmup_s:g}s",
        "--duration",
        f"{loop.duration_s:g}s",
        "--cpu",
        str(cpus[-1]),
    ]
    args += ["--service", loop.service, "--feed", feed, "--out", str(report), "--overwrite"]
    with open_anew(log) as file:
        try:
            done = subprocess.run(
                [str(tools.find(tools.LOADGEN)), *args],
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=loop.warmup_s + loop.duration_s + 60,
            )
        except subprocess.TimeoutExpired as e:
            raise ToolFailed(tools.LOADGEN, f"the load generator did not end in time; see {log}", 1) from e
    if done.returncode != 0:
        raise ToolFailed(tools.LOADGEN, f"{_last(log)}; see {log}", done.returncode)


def _stop(node: subprocess.Popen[str]) -> dict[str, Any] | None:
    """End the node, which gives everything back; what it printed."""
    if node.poll() is None:
        node.terminate()
    try:
        text, _ = node.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired:
        node.kill()
        text, _ = node.communicate()
    try:
        value = parse_json(text.strip().splitlines()[-1])
    except (Unreadable, IndexError):
        return None
    return value if isinstance(value, dict) else None


def _last(log: Path) -> str:
    lines = [line for line in said(log).splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
