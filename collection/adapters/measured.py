"""One row: one operation of one run of one tool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Known:
    """What the one who started the tool knows and the file may lack.

    duration_s: length of each run, seconds. offered_rps: rate asked for, requests per second. update_frac: share of updates (0 to
    1; mutilate's `--update`), as mutilate does not count its operations apart.
    """

    duration_s: float | None = None
    offered_rps: float | None = None
    update_frac: float | None = None


@dataclass(frozen=True)
class Operation:
    """What one operation came to in one run, by a file. None: it does not say.

    Attributes:
        operation: what the latencies are of, e.g. `read`; `all` for every request.
        run: which run of the file: its number, or the tool's own word for it (`best`, `worst`, `average of 3`).
        count: requests that mean and percentiles are of (without either, those of the operation). Where the tool prints a rate
            and a duration only, their product.
        errors: requests that failed, or the tool's count of failures. lost: requests without a reply, counted as slower than all.
        misses: replies that held no value.
        offered_rps, achieved_rps: rate asked for, and of usable replies to this operation; requests per second.
        mean_ms: latency, ms.
    """

    tool: str
    operation: str = "all"
    run: str = "1"
    count: int | None = None
    errors: int | None = None
    lost: int | None = None
    misses: int | None = None
    offered_rps: float | None = None
    achieved_rps: float | None = None
    mean_ms: float | None = None


@dataclass(frozen=True)
class Found(Operation):
    """What a parser took from a file, before it is judged. quantiles: by level, ms. cdf: (share at or below, ms), ascending.

    step_ms: how finely the tool tells latencies. span_s: how long they were recorded. failed: (failed, ended) requests, or
    rates of both. why_no_count: what would tell the count.
    """

    min_ms: float | None = None
    max_ms: float | None = None
    quantiles: dict[float, float | None] = field(default_factory=dict)
    cdf: Sequence[tuple[float, float]] = ()
    p99_interval_ms: tuple[float | None, float | None] | None = None
    effective_count: int | None = None
    step_ms: float = 0.0
    span_s: float | None = None
    failed: tuple[float, float] | None = None
    loop: str | None = None
    latency_from: str | None = None
    overloaded: str | None = None
    why_no_count: str = "the file does not say of how many requests"


@dataclass(frozen=True)
class Measured(Operation):
    """An operation, judged.

    Attributes:
        p50_ms to p999_ms: latency, ms. p99_low_ms, p99_high_ms: 95 % interval of the p99.
        runtime_s: of a job without requests (PARSEC), seconds in its region of interest.
        loop: `open` (requests are sent by a schedule), `closed` (after the reply to the one before) or None.
        latency_from: `intended` or `actual` send, or `service` (when a server took the request up).
        verdict: as in a sweep's samples: valid, not-resolvable or server-overloaded. `client-limited` cannot be told from these
            files: none holds the tool's own delay. None: a row without latencies. reason: why, in one sentence.
    """

    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    p99_low_ms: float | None = None
    p99_high_ms: float | None = None
    runtime_s: float | None = None
    loop: str | None = None
    latency_from: str | None = None
    verdict: str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, int | float) and not (math.isfinite(value) and 0 <= value < 1e18):
                raise ValueError(f"{name} is {value}")
        shown = [p for p in (self.p50_ms, self.p95_ms, self.p99_ms, self.p999_ms) if p is not None]
        if shown != sorted(shown):
            raise ValueError(f"percentiles that fall: {', '.join(f'{p:g}' for p in shown)} ms")
        if shown and (self.count is None or self.verdict is None):
            raise ValueError("percentiles without count or verdict")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
