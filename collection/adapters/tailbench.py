"""`lats.bin` of TailBench's harness, and the table that its `parselats.py` makes of it.

Source: TailBench 0.9, `harness/client.cpp` (dumpStats), `utilities/parselats.py`; forks: zliUPV/Tailbenchplusplus (40-byte
records), and some that print the three numbers as text.

A record is of one request, in the order in which they ended: queueing, service and both together (64-bit little-endian, ns).
The file has no times of arrival, so no rate.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from .measured import Found, Known
from .words import Failed, Unclear, Unrecognised, surely, text_of
from .worth import BACKLOG_CHANCE, BACKLOG_SHARE, BATCHES, at_rank, effective_count

TOOL = "tailbench"
LOOKS = "records of 24 bytes (queueing, service, both together; ns), or a table `QueueTimes ServiceTimes SojournTimes` (ms)"
_HEADER = re.compile(r"^\s{0,99}QueueTimes\s{1,99}ServiceTimes\s{1,99}SojournTimes\s*?$", re.MULTILINE)
_SUMMARY = re.compile(r"percentile latency [\d.]+ ms \| max latency")
_WIDTHS = (3, 5)
_CLOCK_NS = 1000
"""Clocks are read one after another: queueing and service may miss their sum by this, and 1 % of it."""
_TREND = 0.8
"""Kendall's tau of the batches' mean queueing time, from where it is taken as growing throughout: by chance below one in 10^9."""

_WAITING_SHARE = 0.05
"""Requests that wait at once, of all: beyond it the queue was there before the run, or grew in its first moments."""
_SIDE = 4
"""Batches on either side of a change: fewer are a burst, which the interval allows for."""


def parse(raw: bytes, known: Known) -> list[Found]:
    records = _records(raw)
    never = np.all(records == 0, axis=1)
    lost = int(never.sum())
    records = records[~never]
    if not len(records):
        raise Failed(f"none of {lost} requests was answered")
    queue, service, both = records.T
    if np.any(both <= 0) or np.any(service < 0):
        at = int(np.argmax((both <= 0) | (service < 0)))
        raise Unclear(f"record {at + 1} of the answered ones has a time of 0 or below it. Run it again: the clock went back")
    overloaded = _growing(queue, service)
    if overloaded is None and (changed := _changes(both)):
        raise Unclear(
            f"its latencies change for good at record {changed}: several runs, or a load that was changed. Give one run a file"
        )
    return [
        replace(_of("all", both, lost, overloaded), offered_rps=known.offered_rps),
        replace(_of("service", service, lost, overloaded), latency_from="service"),
    ]


def _records(raw: bytes) -> np.ndarray:
    if not raw:
        raise Unrecognised("it is empty")
    printed = raw[:4096].translate(None, b"\t\n\r") if raw[:2] not in (b"\xff\xfe", b"\xfe\xff") else b""
    if all(32 <= c < 127 for c in printed):
        return _table(text_of(raw))
    for width in _WIDTHS:
        if len(raw) % (8 * width) == 0:
            records = np.frombuffer(raw, dtype="<i8").reshape(-1, width)[:, :3]
            if _adds_up(records):
                return records
    if len(raw) % 24:
        raise Unrecognised(f"{len(raw)} bytes are no whole number of 24-byte records: it is cut, or of another program")
    records = np.frombuffer(raw, dtype="<i8").reshape(-1, 3)
    wrong = ~_right(records)
    at = int(np.argmax(wrong))
    if np.any(records[at] < 0):
        raise Unrecognised(f"record {at + 1} has a negative time ({', '.join(map(str, records[at]))} ns): the clock went back")
    raise Unrecognised(f"queueing and service time do not add up to the third number (record {at + 1})")


def _right(records: np.ndarray) -> np.ndarray:
    # as floats: sums of hostile numbers stay sums
    r = records.astype(np.float64)
    close: np.ndarray = np.abs(r[:, 0] + r[:, 1] - r[:, 2]) <= _CLOCK_NS + 0.01 * np.abs(r[:, 2])
    return close & (r[:, 0] >= -_CLOCK_NS) & (r[:, 1] >= 0) & (r[:, 2] >= 0)


def _adds_up(records: np.ndarray) -> bool:
    return bool(_right(records).all())


def _table(text: str) -> np.ndarray:
    header = _HEADER.search(text)
    if header is None and _SUMMARY.search(text):
        raise Unclear("it is the summary that parselats.py prints, which has no number of requests. Give lats.bin itself")
    once_more = header is not None and _HEADER.search(text, header.end())
    if once_more:
        raise Unclear("it has two tables: several runs. Give one run a file")
    scale = 1.0 if header is None else 1e6
    rows: list[list[float]] = []
    for number, line in enumerate((text if header is None else text[header.end() :]).splitlines(), 1):
        cells = line.split()
        if not cells:
            continue
        try:
            row = [surely(cell) * scale for cell in cells]
        except ValueError:
            row = []
        if header is None and not all(cell.isdigit() for cell in cells):
            raise Unrecognised(f"line {number} of its text has no header `QueueTimes ...` above it that says its unit")
        if len(row) != 3 or not all(abs(v) < 2**62 for v in row):
            raise Unrecognised(f"line {number} of its text is no row of three times")
        rows.append(row)
    if not rows:
        raise Unrecognised("its text has no row of three times")
    records = np.rint(np.array(rows)).astype(np.int64)
    if not _adds_up(records):
        at = int(np.argmax(~_right(records)))
        raise Unrecognised(f"queueing and service time do not add up to the third number (row {at + 1})")
    return records


def _growing(queue: np.ndarray, service: np.ndarray) -> str | None:
    """Did requests wait ever longer? Then the latency is the length of the run.

    At least `queue / service` requests wait before one that waited for `queue`: more, if several threads serve. A wait that
    grows from
    batch to batch throughout the run, and by more than a request takes, is a growing backlog whatever the number of threads.
    """
    n, mean = len(queue), float(service.mean())
    if n < 2 * BATCHES or mean <= 0:
        return None
    means = np.array([float(b.mean()) for b in np.array_split(queue.astype(np.float64), BATCHES)])
    rise = float(means[-1] - means[0])
    limit = BACKLOG_SHARE * n + BACKLOG_CHANCE * float(np.sqrt(max(1.0, float(means.mean()) / mean)))
    pairs = np.sign(means[None, :] - means[:, None])
    tau = float(np.triu(pairs, 1).sum()) / (BATCHES * (BATCHES - 1) / 2)
    if rise > limit * mean or (tau >= _TREND and rise > mean):
        waits = f"{max(0.0, means[0]) / 1e6:.3g} ms at the beginning, {means[-1] / 1e6:.3g} ms at the end"
        return f"requests waited ever longer: {waits}; such latencies grow with the run"
    waiting = float(means.mean()) / mean
    if waiting > _WAITING_SHARE * n + BACKLOG_CHANCE * float(np.sqrt(max(1.0, waiting))):
        return f"on average {waiting:.0f} of {n} requests waited at once; such latencies are of the run's length"
    return None


def _changes(times: np.ndarray) -> int | None:
    """The record from which all is at least twice as slow, or as fast, as all before; by the medians of batches."""
    if len(times) < 20 * BATCHES:
        return None
    batches = np.array_split(times, BATCHES)
    medians = np.array([float(np.median(b)) for b in batches])
    for k in range(_SIDE, BATCHES - _SIDE + 1):
        before, after = medians[:k], medians[k:]
        if after.min() >= 2 * before.max() or before.min() >= 2 * after.max():
            return sum(len(b) for b in batches[:k]) + 1
    return None


def _of(operation: str, times: np.ndarray, lost: int, overloaded: str | None) -> Found:
    ordered = np.sort(times)
    total = len(ordered) + lost
    batches = np.array_split(times, BATCHES)

    def at(rank: int) -> float | None:
        return float(ordered[rank - 1]) / 1e6 if rank <= len(ordered) else None  # a lost request is slower than all

    quantiles = {q: at(max(1, int(np.ceil(q * total - 1e-9)))) for q in (0.5, 0.95, 0.99, 0.999)}
    p99 = quantiles[0.99]
    worth = total if p99 is None else effective_count(batches, round(p99 * 1e6))
    return Found(
        TOOL,
        operation,
        count=len(ordered),
        lost=lost or None,
        mean_ms=float(times.mean()) / 1e6,
        quantiles=quantiles,
        p99_interval_ms=at_rank(total, worth, 0.99, at),
        effective_count=worth,
        loop="open",
        latency_from="intended",
        overloaded=overloaded,
    )
