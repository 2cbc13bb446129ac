"""Cases that something else disturbed: a jump inside a case, or a cell that stands out of its plane.

These are warnings: the samples are what the machine did, and one cell measured again mends them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import polars as pl

from .cases import COURSE

Found = tuple[str, tuple[str, ...]]
# least number of samples whose course can be judged
_LEAST_SAMPLES = 6
# a jump: by this factor, and this many standard deviations of the samples on its two sides
_JUMP = 1.25
_LATENCY_JUMP = 2.0
_JUMP_DEVIATIONS = 12.0
# a cell that stands out: beyond every neighbour by this factor, and this many standard errors
_PEAK = {"latency_p99_ms": 1.6, "ipc": 1.2}
_PEAK_ERRORS = 8.0
_LEAST_NEIGHBOURS = 3
_NUMBERS = ("cores", "ways", "latency_p99_ms", "ipc", "p99_se", "ipc_se")


def shard(frame: pl.DataFrame, table: pl.DataFrame, known: set[str]) -> Iterator[Found]:
    """Cases with a jump inside, but for those in `known`."""
    wide = []
    for name in COURSE:
        jump = _jump(name)
        wide.append((pl.col(f"high_{name}") > jump * pl.col(name)) | (pl.col(f"low_{name}") * jump < pl.col(name)))
    latency = pl.any_horizontal(wide[-2:]) & pl.col("valid")
    suspects = table.filter(
        pl.col("samples") >= _LEAST_SAMPLES,
        (pl.any_horizontal(wide[:-2]) | latency).fill_null(False),
        ~pl.col("case_id").is_in(known),
    )
    if suspects.is_empty():
        return
    told: list[str] = []
    ids: list[str] = []
    rows = frame.join(suspects.select("case_id"), on="case_id", how="semi")
    for (case,), part in rows.partition_by("case_id", as_dict=True, maintain_order=True).items():
        jumps = [
            (strength, f"{name} is {factor:.2g} times the rest at t_ms {part['t_ms'][i]} to {part['t_ms'][j - 1]}")
            for name in COURSE
            if (found := _course(part, name)) is not None
            for strength, factor, i, j in [found]
        ]
        if jumps:
            ids.append(str(case))
            told.append(f"case {case} of {part['service'][0]} at {part['rps'][0]:g} RPS: {max(jumps)[1]}")
    if ids:
        more = f" (and {len(ids) - 1:,} more cases)" if len(ids) > 1 else ""
        yield f"disturbed: {told[0]}{more}; something else ran on the host", tuple(ids)


def _jump(name: str) -> float:
    return _LATENCY_JUMP if name.startswith("latency") else _JUMP


def _course(part: pl.DataFrame, name: str) -> tuple[float, float, int, int] | None:
    """The stretch of a case's samples that differs most: standard deviations, factor, first, one past the last. None: no jump."""
    if name.startswith("latency") and (part["verdict"] != "valid").any():
        return None
    values = part[name].to_numpy()
    if not (np.isfinite(values).all() and (values > 0).all()):
        return None
    x = np.log(values)
    n, limit = len(x), math.log(_jump(name))
    # one latency by itself is chance
    least = 2 if name.startswith("latency") else 1
    best = None
    total, squares = np.concatenate([[0.0], np.cumsum(x)]), np.concatenate([[0.0], np.cumsum(x * x)])
    for i in range(n):
        for j in range(i + least, n + 1):
            inside, outside = j - i, n - (j - i)
            # a stretch, not its complement; equal halves are looked at once
            if inside > outside or outside < 3:
                break
            a, b = total[j] - total[i], total[n] - (total[j] - total[i])
            step = a / inside - b / outside
            if abs(step) <= limit:
                continue
            rest = squares[n] - a * a / inside - b * b / outside
            deviation = math.sqrt(max(rest, 0.0) / max(n - 2, 1))
            strength = abs(step) / max(deviation, limit / (4 * _JUMP_DEVIATIONS))
            if strength > _JUMP_DEVIATIONS and (best is None or strength > best[0]):
                best = (strength, math.exp(step), i, j)
    return best


def whole(table: pl.DataFrame) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(file, what, cases) of cells that stand out of their planes, where nothing is a peak."""
    found: dict[str, list[tuple[str, str]]] = {}
    planes = ["service", "rps", "threads", "mba_pct", "beside", "memory"]
    if table.select((pl.col("threads") == pl.col("cores").clip(1.0)).all()).item():
        planes.remove("threads")  # one thread a core: a plane has all numbers of them
    # one sort and plain arrays: a data set has thousands of planes, each of a few hundred cells
    number = table.select(pl.struct(planes).rank("dense").alias("n"))["n"].to_numpy()
    order = np.argsort(number, kind="stable")
    columns = {name: table[name].cast(pl.Float64).fill_null(np.nan).to_numpy()[order] for name in _NUMBERS}
    columns |= {name: table[name].to_numpy()[order] for name in ("valid", "overloaded")}
    starts = np.flatnonzero(np.diff(number[order], prepend=0))
    for start, end in zip(starts, [*starts[1:], table.height], strict=True):
        if end - start <= _LEAST_NEIGHBOURS:
            continue
        for i, said in _stand_out({name: v[start:end] for name, v in columns.items()}):
            at = int(order[start + i])
            file, case, service, rps, cores, ways = table.select("file", "case_id", "service", "rps", "cores", "ways").row(at)
            cell = f"case {case} of {service} at {rps:g} RPS on {cores:g} cores" + (f" and {ways:g} ways" if ways else "")
            found.setdefault(file, []).append((case, f"{cell}: {said}"))
    for file, cells in sorted(found.items()):
        more = f" (and {len(cells) - 1:,} more cases)" if len(cells) > 1 else ""
        yield file, f"stands out: {cells[0][1]}{more}", tuple(case for case, _ in cells)


def _stand_out(plane: dict[str, np.ndarray]) -> Iterator[tuple[int, str]]:
    """(cell, what) of a plane's cells that stand out."""
    cores = np.unique(plane["cores"], return_inverse=True)[1]
    ways = np.unique(np.nan_to_num(plane["ways"]), return_inverse=True)[1]
    at = (cores + 1, ways + 1)
    shape = (int(cores.max()) + 3, int(ways.max()) + 3)
    cell = np.full(shape, -1)
    cell[at] = np.arange(len(cores))  # of repeats the last
    for name, error in (("latency_p99_ms", "p99_se"), ("ipc", "ipc_se")):
        # what disturbs makes slower: a peak of p99, or of one over IPC. Beside overloaded cells both are real
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.log(plane[name]) * (1 if name == "latency_p99_ms" else -1)
        if name == "latency_p99_ms":
            value = np.where(plane["valid"], value, np.nan)
        value = np.where(plane["overloaded"], np.inf, value)
        x, se = np.full(shape, np.nan), np.zeros(shape)
        x[at], se[at] = value, np.nan_to_num(plane[error])
        yield from _peaks(x, se, cell, math.log(_PEAK[name]), name)


def _peaks(x: np.ndarray, se: np.ndarray, cell: np.ndarray, least: float, name: str) -> Iterator[tuple[int, str]]:
    around = [
        (slice(0, -2), slice(1, -1)),
        (slice(2, None), slice(1, -1)),
        (slice(1, -1), slice(0, -2)),
        (slice(1, -1), slice(2, None)),
    ]
    near = np.stack([x[a] for a in around])
    centre, inner = x[1:-1, 1:-1], cell[1:-1, 1:-1]
    error = np.stack([se[a] for a in around]).max(axis=0)
    margin = np.maximum(least, _PEAK_ERRORS * np.hypot(error, se[1:-1, 1:-1]))
    known = np.isfinite(near)
    enough = (known.sum(axis=0) >= _LEAST_NEIGHBOURS) & np.isfinite(centre) & ~np.isinf(near).any(axis=0)
    top = np.where(known, near, -np.inf).max(axis=0)
    bottom = np.where(known, near, np.inf).min(axis=0)
    with np.errstate(invalid="ignore"):
        # where the cells around differ that much themselves, a cliff is near, and with it real peaks
        margin = np.maximum(margin, np.where(enough, top - bottom, 0.0))
        high = enough & (centre - top > margin)
    for i, j in np.argwhere(high):
        by = math.exp(centre[i, j] - top[i, j])
        said = f"{by:.2g} times the highest" if name == "latency_p99_ms" else f"{1 / by:.2g} times the lowest"
        yield int(inner[i, j]), f"{name} is {said} of the cells around it"
