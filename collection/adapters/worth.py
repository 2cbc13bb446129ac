"""May a row be believed? The rules of surefoot-loadgen (workloads/loadgen/src/verdict.rs and quantile.rs), as far as these files
hold what the rules need; its constants are here by their names, and tests/test_adapters.py holds both against each other.

In the order in which they are tried:

1. (no row) the run failed: no request was answered, or more than half failed. Such latencies are of refusals.
2. `server-overloaded`: requests without a reply; more than 1 % errors; less than 99 % of the offered rate achieved; a backlog
that
   grew, where latency counts from the intended send: the mean wait times the rate, above 1 % of the requests plus what chance
   explains, while the longest wait is a twentieth of the run or more. Such a latency is the length of the run.
3. `not-resolvable`: too few requests for the p99's 95 % interval to have an upper end (368), no count at all, or a tool whose
   steps are above a tenth of the p99.
4. `valid`.

`client-limited` is not judged: the files hold nothing of the client's own delay. The text outputs hold no order of requests
either, so their interval takes requests as independent; TailBench's records are judged with their order, as our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from statistics import NormalDist

import numpy as np

from .measured import Found, Measured, Operation
from .words import Failed

CONFIDENCE = 0.95
ERRORS_SHARE = 0.01
SHORT_SHARE = 0.01
BACKLOG_SHARE = 0.01
BACKLOG_CHANCE = 4.0
BATCHES = 32
EXACT_COUNT = 10_000_000
"""Beyond it ranks come from the normal law: the exact terms would fill memory, and the difference is below one in a million."""
FAILED_SHARE = 0.5
"""Of requests that failed. The adapters' own: a row whose latencies are mostly of refusals is none."""
STEP_SHARE = 0.1
"""Coarsest step of a tool's latencies, of the p99. The adapters' own: our histograms have three digits."""
OVERLOAD_LENGTH_SHARE = 0.05
"""Longest wait of a run, of its length, from where a grown backlog is believed. The adapters' own: a mean wait alone may be
that of a service with slow and fast requests."""


def binomial_cdf(n: int, p: float) -> tuple[int, np.ndarray]:
    """P(Binomial(n, p) <= k) for k from the first one returned on; below it is 0, above its end 1."""
    mean, sd = n * p, math.sqrt(n * p * (1 - p))
    first, last = max(0, math.floor(mean - 12 * sd - 10)), min(n, math.ceil(mean + 12 * sd + 10))
    lg = math.lgamma
    whole = lg(n + 1)
    logs = [whole - lg(k + 1) - lg(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p) for k in range(first, last + 1)]
    return first, np.cumsum(np.exp(logs))


def order_ranks(n: int, q: float, confidence: float = CONFIDENCE) -> tuple[int | None, int | None]:
    """Ranks (from 1) of the order statistics that bound the q-quantile of n independent samples; None: there is no such bound."""
    if n <= 0:
        return None, None
    tail = (1 - confidence) / 2
    if n > EXACT_COUNT:
        half = NormalDist().inv_cdf(1 - tail) * math.sqrt(n * q * (1 - q))
        return math.floor(n * q - half), math.ceil(n * q + half) + 1
    first, cdf = binomial_cdf(n, q)
    lower = first + int(np.searchsorted(cdf, tail, side="right"))
    upper = first + int(np.searchsorted(cdf, 1 - tail, side="left")) + 1
    return (lower if lower >= 1 else None), (upper if upper <= n else None)


def resolvable(n: int, q: float) -> bool:
    """Do n independent samples bound the q-quantile from both sides? Not if they may well lie on one side of it, all of them."""
    tail = (1 - CONFIDENCE) / 2
    return n > 0 and q**n <= tail and (1 - q) ** n <= tail


def _bucket_end(ns: int) -> int:
    """Highest value in the same bucket of a histogram with three digits."""
    shift = max(0, ns.bit_length() - 11)
    return (((ns >> shift) + 1) << shift) - 1


def effective_count(batches: Sequence[np.ndarray], value_ns: int, confidence: float = CONFIDENCE) -> int:
    """Independent samples that consecutive batches of ns are worth for a quantile at a value: slow replies come in bursts."""
    cut = _bucket_end(value_ns)
    sizes = np.array([len(b) for b in batches if len(b)], dtype=float)
    above = np.array([np.count_nonzero(b > cut) for b in batches if len(b)], dtype=float)
    n, b = float(sizes.sum()), len(sizes)
    share = above.sum() / max(n, 1.0)
    if b < 8 or not 0 < share < 1:
        return int(n)
    variance = b / (b - 1) * float(((above - share * sizes) ** 2).sum()) / n**2
    z, dof = NormalDist().inv_cdf(0.5 + confidence / 2), b - 1
    student = z + (z**3 + z) / (4 * dof) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof**2)
    design = max(1.0, variance / (share * (1 - share) / n) * (student / z) ** 2)
    return max(1, math.floor(n / design))


def at_rank(total: int, effective: int, q: float, value: Callable[[int], float | None]) -> tuple[float | None, float | None]:
    """The 95 % interval of a quantile; `value` gives the sample at a rank (from 1) of `total`."""
    lower, upper = order_ranks(effective, q)
    scale = total / max(1, effective)
    low = None if lower is None else value(min(total, max(1, math.floor(lower * scale))))
    high = None if upper is None else value(min(total, math.ceil(upper * scale)))
    return low, high


def backlog(rate: float, wait_ms: float, longest_ms: float, span_s: float) -> str | None:
    """Does a wait that counts from the intended send mean that the backlog grew? Says so, or None."""
    waiting, requests = rate * wait_ms / 1000, rate * span_s
    if waiting <= BACKLOG_SHARE * requests + BACKLOG_CHANCE * math.sqrt(max(1.0, waiting)):
        return None
    if longest_ms / 1000 < OVERLOAD_LENGTH_SHARE * span_s:
        return None
    return (
        f"the backlog grew: on average {waiting:.0f} requests waited while {requests:.0f} came; such latencies grow with the run"
    )


def _of_cdf(cdf: Sequence[tuple[float, float]], n: int) -> tuple[float | None, float | None]:
    """The interval as far as the printed points tell it: from the last one below the lower rank to the first one at the upper."""
    lower, upper = order_ranks(n, 0.99)
    low = None if lower is None else max((v for share, v in cdf if share <= lower / n + 1e-9), default=None)
    high = None if upper is None else min((v for share, v in cdf if share >= upper / n - 1e-9), default=None)
    return low or None, high


def _overloaded(f: Found) -> str | None:
    if f.lost:
        return f"{f.lost} of {(f.count or 0) + f.lost} requests had no reply"
    if f.failed is not None and f.failed[0] > ERRORS_SHARE * f.failed[1]:
        return f"{100 * f.failed[0] / f.failed[1]:.3g} % of the requests failed (limit 1 %)"
    if f.offered_rps and f.achieved_rps is not None:
        chance = BACKLOG_CHANCE * math.sqrt(f.offered_rps / f.span_s) if f.span_s else 0.0
        if f.offered_rps - f.achieved_rps > SHORT_SHARE * f.offered_rps + chance:
            return f"{f.achieved_rps:g} of {f.offered_rps:g} requests a second were answered: server or client did not keep up"
    if f.overloaded is not None:
        return f.overloaded
    if f.latency_from == "intended" and f.achieved_rps and f.span_s and f.mean_ms is not None and f.max_ms is not None:
        return backlog(f.achieved_rps, f.mean_ms - (f.min_ms or 0.0), f.max_ms, f.span_s)
    return None


def judged(f: Found) -> Measured:
    """The row.

    Raises:
        Failed: it measures nothing.
        ValueError: its numbers contradict themselves.
    """
    if f.failed is not None and f.failed[0] > FAILED_SHARE * f.failed[1]:
        raise Failed(f"{100 * f.failed[0] / f.failed[1]:.4g} % of the requests failed, so its latencies are of refusals")
    if f.count == 0 and not f.lost:
        raise Failed("no request was answered")
    q = {level: value or None for level, value in f.quantiles.items()}  # 0: below the tool's step
    p99 = q.get(0.99)
    low, high = f.p99_interval_ms or (None, None)
    n = None if f.count is None else f.count + (f.lost or 0)
    if n is not None and f.cdf and f.p99_interval_ms is None:
        low, high = _of_cdf(f.cdf, n)
    why = _overloaded(f)
    verdict = "server-overloaded" if why else "valid"
    coarse = f.step_ms > 0 and (p99 is None or f.step_ms > STEP_SHARE * p99)
    worth = f.effective_count if f.effective_count is not None else n
    if why is None:
        if n is None:
            why = f.why_no_count
        elif worth is not None and not resolvable(worth, 0.99):
            burst = f" (worth {worth} independent ones: slow replies come in bursts)" if worth < n else ""
            why = f"{n} samples{burst} do not bound the p99 from above; measure longer"
        elif coarse and 0.99 in f.quantiles:
            why = f"the tool tells latencies in steps of {f.step_ms:g} ms, which is too coarse for this p99"
        elif p99 is None:
            why = f"{f.tool} prints no p99 of it"
        if why is not None:
            verdict = "not-resolvable"
    if n is not None and coarse and (known := f.quantiles.get(0.99)) is not None:
        low, high = known or None, known + f.step_ms
    kept = {
        level: value
        for level, value in q.items()
        if n is not None and value is not None and f.step_ms <= STEP_SHARE * value and (level == 0.99 or resolvable(n, level))
    }
    told = {of.name: getattr(f, of.name) for of in fields(Operation)}
    return Measured(
        **(told | {"mean_ms": f.mean_ms or None}),
        p50_ms=kept.get(0.5),
        p95_ms=kept.get(0.95),
        p99_ms=kept.get(0.99),
        p999_ms=kept.get(0.999),
        p99_low_ms=low if n is not None else None,
        p99_high_ms=high if n is not None else None,
        loop=f.loop,
        latency_from=f.latency_from,
        verdict=verdict,
        reason=why or f"{n} samples bound the p99; {f.tool} does not say whether it was late itself",
    )
