"""A service profile for the virtual server from counters of a way sweep (docs/virtual-server.md, "Add a service").

    python -m collection.derive COUNTERS.csv --platform PLATFORM.toml --name NAME --qos-target-ms 10 \
        --rps-levels 1000,2000 --scv-service 0.4 --saturation-rps 9000 --saturation-mhz 3000 > services/NAME.toml

COUNTERS.csv has a row for each number of ways at one fixed, low load on idle cores, one thread per core:
ways, threads, rps, busy_cores, instructions_per_s, cycles_per_s, llc_refs_per_s, llc_misses_per_s, mem_mbps.
What counters cannot tell is an option with a default; the profile says which those are.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines import stdio
from pipelines.inputs import Unreadable, message, read_text, read_toml

COLUMNS = (
    "ways",
    "threads",
    "rps",
    "busy_cores",
    "instructions_per_s",
    "cycles_per_s",
    "llc_refs_per_s",
    "llc_misses_per_s",
    "mem_mbps",
)
# beyond what any counter of a second says: squares of it are still numbers
_BEYOND = 1e15
LINE_BYTES = 64
# Profiles state LLC accesses as with this much L2, MB.
L2_OF_PROFILES_MB = 0.25
L2_EXP = 0.35


class BadInput(Exception):
    """Counters or a platform that cannot be used; one line that names file, field and remedy."""


@dataclass(frozen=True)
class Derived:
    """What counters tell of a service; names and units as in its profile."""

    minstr_per_req: float
    cpi_core: float
    apki: float
    mrc_floor: float
    mrc: list[tuple[float, float, float]]
    mlp: float
    writeback: float
    threads: int
    miss_ratio_error: float


def read_counters(file: Path) -> dict[str, np.ndarray]:
    """Columns of the CSV as arrays.

    Raises:
        BadInput: a column is missing, a value is no positive number, or there are fewer than five rows.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(file), newline="")))
    except (Unreadable, csv.Error) as e:
        raise BadInput(f"{file}: cannot be read: {message(e)}. Give {', '.join(COLUMNS)}") from None
    missing = [c for c in COLUMNS if not rows or c not in rows[0]]
    if missing:
        raise BadInput(f"{file}: no column {missing[0]}. Give {', '.join(COLUMNS)}")
    if len(rows) < 5:
        raise BadInput(f"{file}: {len(rows)} rows. Measure at least five numbers of ways")
    out = {}
    for c in COLUMNS:
        try:
            out[c] = np.array([float(r[c]) for r in rows])
        except (TypeError, ValueError):
            raise BadInput(f"{file}: {c}: not a number in every row. Mend the file") from None
        if not (np.isfinite(out[c]) & (out[c] > 0)).all():
            raise BadInput(f"{file}: {c}: a value is 0 or less. Measure that row again")
    return out


def fit_miss_ratio(mb: np.ndarray, miss_ratio: np.ndarray) -> tuple[float, list[tuple[float, float, float]]]:
    """floor + sum of a / (1 + (mb/c)^p), one or two terms, by least squares over a grid of (c, p).

    Args:
        mb: usable cache, MB.
        miss_ratio: misses per access, same shape.
    """
    shapes = list(itertools.product(np.geomspace(0.5, max(4.0, 1.5 * mb.max()), 22), (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0)))
    hill = np.array([1 / (1 + (mb / c) ** p) for c, p in shapes])
    best: tuple[float, float, list[tuple[float, float, float]]] = (np.inf, 0.0, [])
    choices = [*((i,) for i in range(len(shapes))), *itertools.combinations(range(len(shapes)), 2)]
    for chosen in choices:
        a = np.column_stack([np.ones_like(mb), *hill[list(chosen)]])
        x, *_ = np.linalg.lstsq(a, miss_ratio, rcond=None)
        if (x < 0).any() or x.sum() > 1:
            continue
        # a second term must earn its place
        error = float(((a @ x - miss_ratio) ** 2).sum()) * (1.3 if len(chosen) > 1 else 1.0)
        if error < best[0]:
            terms = [(float(w), float(shapes[i][0]), float(shapes[i][1])) for w, i in zip(x[1:], chosen, strict=True)]
            best = (error, float(x[0]), [t for t in terms if t[0] > 1e-4])
    return best[1], best[2]


def derive(counters: dict[str, np.ndarray], platform: dict[str, Any], llc_exposed: float) -> Derived:
    """Invert the model's equation for the time of an instruction (docs/virtual-server.md, "What is modelled").

    Args:
        counters: see `read_counters`.
        platform: a platform profile as read from TOML.
        llc_exposed: share of an LLC hit that the core cannot hide.
    """
    cpu, llc, mem = platform["cpu"], platform["llc"], platform["mem"]
    instructions = counters["instructions_per_s"]
    per_instruction = counters["llc_refs_per_s"].sum() / instructions.sum()
    miss_ratio = np.minimum(1.0, counters["llc_misses_per_s"] / counters["llc_refs_per_s"])
    ways = counters["ways"]
    usable_mb = ways * llc["mb_per_way"] * ways / (ways + 0.35)

    # ns per instruction = core part + accesses x ((1 - m) hit x exposed + m (latency + hit) / mlp): a line over m
    freq_ghz = counters["cycles_per_s"] / counters["busy_cores"] * 1e-9
    ns = counters["cycles_per_s"] / instructions / freq_ghz
    used = counters["mem_mbps"] / (1e3 * mem["bw_gbs"] * mem["usable"])
    latency_ns = mem["idle_ns"] + mem["queue_ns"] * used**2 / (1 - used)
    rest = ns - per_instruction * (1 - miss_ratio) * llc["hit_ns"] * llc_exposed
    missing = per_instruction * miss_ratio * (latency_ns + llc["hit_ns"])
    # LAPACK prints what it thinks of other numbers
    if not all(np.isfinite(x).all() and (np.abs(x) < _BEYOND).all() for x in (usable_mb, miss_ratio, missing, rest)):
        raise BadInput("counters: with this platform they come to numbers that no machine has. Check units in both")
    if (usable_mb <= 0).any():
        raise BadInput("llc.mb_per_way: not above 0. Give the platform's profile")
    floor, terms = fit_miss_ratio(usable_mb, miss_ratio)
    slope, core_ns = np.polyfit(missing, rest, 1)
    if slope <= 0 or core_ns <= 0:
        raise BadInput("counters: time per instruction does not grow with misses. Measure fewer ways, or a higher load")
    fitted = floor + sum(a / (1 + (usable_mb / c) ** p) for a, c, p in terms)
    return Derived(
        minstr_per_req=float((instructions / counters["rps"]).mean() * 1e-6),
        cpi_core=float(core_ns * freq_ghz.mean() / cpu["cpi_scale"]),
        apki=float(1e3 * per_instruction / (L2_OF_PROFILES_MB / cpu["l2_mb"]) ** L2_EXP),
        mrc_floor=floor,
        mrc=terms,
        mlp=float(1 / slope),
        writeback=float(max(0.0, (counters["mem_mbps"].sum() * 1e6 / LINE_BYTES) / counters["llc_misses_per_s"].sum() - 1)),
        threads=int(counters["threads"].max()),
        miss_ratio_error=float(np.abs(fitted - miss_ratio).max()),
    )


def dispatch_us(saturation_rps: float, freq_mhz: float, cpi_scale: float) -> float:
    """Serial work of a request on a Broadwell core at 2.8 GHz, us, from the RPS at which it is all that limits."""
    return 1e6 / saturation_rps * freq_mhz / 2800 / cpi_scale


def profile(d: Derived, serial_us: float, a: argparse.Namespace) -> str:
    """The profile as TOML."""
    terms = ", ".join(f"[{w:.4f}, {c:.2f}, {p:g}]" for w, c, p in d.mrc)
    return f"""# From counters by collection/derive.py ({d.threads} threads; miss ratios fitted within {d.miss_ratio_error:.3f}).
# Not from counters: llc_exposed, l2_exp, oversub, contention, ws_thread, [queue] and [memory].
kind = "lc"
name = "{a.name}"
title = "{a.title or a.name}"
domain = "{a.domain}"
qos_target_ms = {a.qos_target_ms:g}
rps_levels = [{", ".join(f"{x:g}" for x in a.rps_levels)}]

[cpu]
minstr_per_req = {d.minstr_per_req:.5g}
cpi_core = {d.cpi_core:.4g}
contention = 0.0
oversub = 0.06
weight = 1.0

[cache]
apki = {d.apki:.4g}
l2_exp = {L2_EXP}
mrc_floor = {d.mrc_floor:.4f}
mrc = [{terms}]
ws_thread = {a.ws_thread:g}
mlp = {d.mlp:.4g}
llc_exposed = {a.llc_exposed:g}
writeback = {d.writeback:.4g}

[queue]
scv_arrival = {a.scv_arrival:g}
scv_service = {a.scv_service:g}
dispatch_us = {serial_us:.1f}
dispatch_scv = 0.1
net_us = {a.net_us:g}
max_outstanding = {a.max_outstanding:g}
io_prob = 0
io_ms = 0

[memory]
virt_mb = {a.virt_mb:g}
virt_mb_thread = 10
res_mb = {a.res_mb:g}
res_mb_thread = 2
res_mb_queued = 0.03
"""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m collection.derive", description=(__doc__ or "").splitlines()[0])
    levels = lambda text: [float(x) for x in text.split(",")]  # noqa: E731
    parser.add_argument("counters", type=Path, help="CSV of a way sweep")
    parser.add_argument("--platform", type=Path, required=True, help="profile of the platform that was measured")
    parser.add_argument("--name", required=True, help="name of the service")
    parser.add_argument("--title", help="one line")
    parser.add_argument("--domain", default="unknown", help="what it serves, e.g. key-value store")
    parser.add_argument("--qos-target-ms", type=float, required=True, help="QoS target: p99, ms")
    parser.add_argument("--rps-levels", type=levels, required=True, help="loads of interest, RPS, comma-separated, ascending")
    parser.add_argument("--scv-service", type=float, required=True, help="variance / mean^2 of single-request service times")
    parser.add_argument("--scv-arrival", type=float, default=1.0, help="of arrivals; 1 = Poisson")
    parser.add_argument("--saturation-rps", type=float, help="most completed RPS with all resources while CPUs idle")
    parser.add_argument("--saturation-mhz", type=float, help="core frequency there; needed with --saturation-rps")
    parser.add_argument("--net-us", type=float, default=30.0, help="fixed delay, us")
    parser.add_argument("--max-outstanding", type=float, default=1e8, help="most requests in the house (closed loop: clients)")
    parser.add_argument("--llc-exposed", type=float, default=0.35, help="share of an LLC hit that the core cannot hide")
    parser.add_argument("--ws-thread", type=float, default=0.0, help="growth of the working set per further thread")
    parser.add_argument("--virt-mb", type=float, default=1000.0, help="virtual memory, MB")
    parser.add_argument("--res-mb", type=float, default=500.0, help="resident memory, MB")
    args = parser.parse_args(argv)
    if args.saturation_rps and not args.saturation_mhz:
        parser.error("--saturation-rps needs --saturation-mhz: the serial part scales with the clock")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Print the profile; exit code 2 on bad input."""
    args = _arguments(argv)
    stdio.guard()
    try:
        platform = read_toml(args.platform)
        with np.errstate(all="ignore"):  # what comes of it is judged
            derived = derive(read_counters(args.counters), platform, args.llc_exposed)
        serial_us = 0.0
        if args.saturation_rps:
            serial_us = dispatch_us(args.saturation_rps, args.saturation_mhz, platform["cpu"]["cpi_scale"])
        print(profile(derived, serial_us, args), end="")
    except (BadInput, OSError, KeyError, TypeError, ArithmeticError, ValueError) as e:
        # a key that is not there, or is no table or number
        of_platform = isinstance(e, KeyError | TypeError | Unreadable)
        said = f"no key {e}" if isinstance(e, KeyError) else e
        print(message(f"{args.platform}: {said}" if of_platform else said), file=sys.stderr)
        return 2
    return 0 if stdio.failure() is None else 1


if __name__ == "__main__":
    sys.exit(main())
