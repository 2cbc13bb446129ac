"""wrk2 with `--latency`.

Source: giltene/wrk2, `src/wrk.c` (main, print_hdr_latency) and README; delimitrou/DeathStarBench, `wrk2/src/wrk.c`, whose
output has a part `Test Results @ URL` for each URL and `Overall Statistics`.

- Latencies are recorded after a calibration of ten seconds and 5 ms a connection, so they are of fewer requests than its total.
- Replies with an error status are in the latencies; a socket error is a request without a reply.
- p95 stands in the spectrum only. The rate that was asked for is not printed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .measured import Found, Known
from .words import NUMBER, Failed, Unclear, Unrecognised, once, surely, whole

TOOL = "wrk2"
_RECORDED = "Latency Distribution (HdrHistogram - Recorded Latency)"
_UNCORRECTED = "Latency Distribution (HdrHistogram - Uncorrected Latency"
_PLAIN = re.compile(r"^[ \t]*Latency Distribution[ \t]*$", re.MULTILINE)
MARKS = (re.compile(re.escape(_RECORDED)), re.compile(r"^Requests/sec:", re.MULTILINE))
LOOKS = f"`{_RECORDED}` (of --latency) and `Requests/sec:`"
_BEGIN = re.compile(
    r"^Running \S+ test @ (\S+)[ \t]*$|^Test Results @ (\S+)[ \t]*$|^-+(Overall) Statistics-+[ \t]*$", re.MULTILINE
)
_TIME_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6}
# blanks only: what matches ends of lines, too, takes quadratic time on a file of empty ones
_RATE = re.compile(rf"^Requests/sec:[ \t]+({NUMBER})[ \t\r]*$", re.MULTILINE | re.ASCII)
_LEVEL = re.compile(rf"^[ \t]*({NUMBER})%[ \t]+({NUMBER})(us|ms|s|m|h)[ \t\r]*$", re.MULTILINE | re.ASCII)
_POINT = re.compile(rf"^[ \t]+({NUMBER})[ \t]+([01][.,]\d+)[ \t]+(\d+)[ \t]+\S+[ \t\r]*$", re.MULTILINE | re.ASCII)
_MEAN = re.compile(rf"#\[Mean[ \t]*=[ \t]*({NUMBER})", re.ASCII)
_MAX = re.compile(rf"#\[Max[ \t]*=[ \t]*({NUMBER})", re.ASCII)
_COUNT = re.compile(r"Total count[ \t]*=[ \t]*(\d+)", re.ASCII)
_SUMMARY_MEAN = re.compile(rf"^[ \t]+Latency[ \t]+({NUMBER})(us|ms|s|m|h)", re.MULTILINE | re.ASCII)
_REQUESTS = re.compile(rf"^[ \t]+(?:Overall )?(\d+) requests in ({NUMBER})(us|ms|s|m|h),", re.MULTILINE | re.ASCII)
_SOCKET = re.compile(r"^[ \t]+Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", re.MULTILINE | re.ASCII)
_STATUS = re.compile(r"^[ \t]+Non-2xx or 3xx responses: (\d+)", re.MULTILINE | re.ASCII)
_LOAD = re.compile(r"^[ \t]+(\d+) threads and (\d+) connections", re.MULTILINE | re.ASCII)
_CALIBRATION_S, _CALIBRATION_CONNECTION_S = 10.0, 0.005


@dataclass(frozen=True)
class _Part:
    operation: str
    run: int
    text: str


def parse(text: str, known: Known) -> list[Found]:
    if _RECORDED not in text:
        if _PLAIN.search(text):
            raise Unrecognised(
                "no recorded latencies: `Latency Distribution` alone is of wrk, a closed loop without a rate; use wrk2 --latency"
            )
        raise Unrecognised("no recorded latencies: run it with --latency")
    return [_of(part, known) for part in _parts(text)]


def _parts(text: str) -> list[_Part]:
    begins = list(_BEGIN.finditer(text))
    if not begins:
        return [_Part("all", 1, text)]
    if _RATE.search(text, 0, begins[0].start()) or _RECORDED in text[: begins[0].start()]:
        raise Unclear("results stand above the first `Running ... test @`: parts of several runs. Give one run a file")
    ends = [b.start() for b in begins[1:]] + [len(text)]
    chunks = [(b, text[b.start() : end]) for b, end in zip(begins, ends, strict=True)]
    by_url = any(b[2] for b in begins)
    parts: list[_Part] = []
    run, named = 0, True
    for begin, chunk in chunks:
        if begin[1]:
            if not by_url:
                parts.append(_Part("all", len(parts) + 1, chunk))
            elif _RECORDED in chunk:
                raise Unclear("outputs with and without `Test Results @` in one file. Give one run a file")
            elif named:
                run, named = run + 1, False
        else:
            named = True
            parts.append(_Part("all" if begin[3] else begin[2], max(run, 1), chunk))
    urls = {p.operation for p in parts if p.operation != "all"}
    return [_Part("all" if len(urls) == 1 and p.operation in urls else p.operation, p.run, p.text) for p in parts]


def _of(part: _Part, known: Known) -> Found:
    text = part.text
    rates = _RATE.findall(text)
    once(len(rates), "`Requests/sec:`")
    once(text.count(_RECORDED), "the table of recorded latencies")
    if not rates or _RECORDED not in text:
        raise Unrecognised(
            f"run {part.run} has no `Requests/sec:`: it did not end" if not rates else f"run {part.run} has no recorded latencies"
        )
    rate = surely(rates[0])
    table = text[text.index(_RECORDED) :]
    other = table.find(_UNCORRECTED)
    table = table if other < 0 else table[:other]
    values = {round(surely(p) / 100, 9): surely(v) * _TIME_MS[u] for p, v, u in _LEVEL.findall(table)}
    points = _POINT.findall(table)
    cdf = sorted((surely(p), surely(v)) for v, p, _ in points)
    requests, span_s = _total(text)
    if requests is not None and span_s and abs(requests / span_s - rate) > 0.02 * rate + 1 / span_s:
        raise Unclear(f"{requests} requests in {span_s:g} s are no {rate:g} a second: parts of several runs. Give one run a file")
    socket = sum(map(int, found.groups())) if (found := _SOCKET.search(text)) else 0
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    failed = (float(socket + status), float(requests + socket)) if requests is not None and (socket or status) else None
    if failed is not None and failed[0] >= failed[1]:
        raise Failed(f"no request was answered well: {status} of {requests} replies were errors, {socket} socket errors")
    if not rate or not any(values.values()):
        raise Failed("no latency was recorded: wrk2 records after ten seconds of calibration, so run it for longer")
    count = whole(surely(found[1])) if (found := _COUNT.search(table)) else _recorded(requests, span_s, text)
    if count is not None and (
        (points and max(int(n) for _, _, n in points) > count) or (requests is not None and count > requests)
    ):
        raise Unclear(f"its latencies are of {count} requests, its other lines of another number: parts of several runs")
    mean = surely(found[1]) if (found := _MEAN.search(table)) else None
    if mean is None and (found := _SUMMARY_MEAN.search(text)):
        mean = surely(found[1]) * _TIME_MS[found[2]]
    usable = rate if failed is None or not requests else rate * max(0, requests - status) / requests
    quantiles = {level: values.get(level) for level in (0.5, 0.99, 0.999) if level in values}
    if (p95 := next((v for share, v in cdf if share >= 0.95 - 1e-9), None)) is not None and _near(cdf, 0.95):
        quantiles[0.95] = p95
    return Found(
        TOOL,
        part.operation,
        str(part.run),
        count,
        socket + status or None,
        offered_rps=known.offered_rps,
        achieved_rps=usable,
        mean_ms=mean,
        min_ms=cdf[0][1] if cdf else None,
        max_ms=surely(found[1]) if (found := _MAX.search(table)) else values.get(1.0),
        quantiles=quantiles,
        cdf=cdf,
        step_ms=1e-3,
        span_s=span_s,
        failed=failed,
        loop="open",
        latency_from="intended",
        why_no_count="the output has neither `Total count` nor `N requests in`: give all of it",
    )


def _near(cdf: list[tuple[float, float]], level: float) -> bool:
    """A part of the spectrum that stands for the level, not merely above it."""
    share = next(share for share, _ in cdf if share >= level - 1e-9)
    return share - level <= 0.1 * (1 - level)


def _total(text: str) -> tuple[int | None, float | None]:
    totals = _REQUESTS.findall(text)
    once(len(totals), "`N requests in`")
    if not totals:
        return None, None
    n, v, unit = totals[0]
    return whole(float(n)), surely(v) * _TIME_MS[unit] / 1000 or None


def _recorded(requests: int | None, span_s: float | None, text: str) -> int | None:
    """Of the spectrum's line `Total count`, where that is not printed: the requests after the calibration."""
    if requests is None or span_s is None:
        return None
    threads, connections = map(int, found.groups()) if (found := _LOAD.search(text)) else (1, 0)
    calibration_s = _CALIBRATION_S + _CALIBRATION_CONNECTION_S * connections / max(1, threads)
    return whole(requests * max(0.0, 1 - calibration_s / span_s))
