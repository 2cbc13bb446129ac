"""Trading QoS for resources: B-points and QoS slowdowns (OSML, Sec. 4.2), on grids of cells. Pure functions.

QoS is target / p99, at most 1: a latency below the target is what was promised, so taking resources that leave it below is no
slowdown. The slowdown of a move is the QoS before minus the QoS after.

Taking away goes one step of the grid at a time, in cores or in ways, and every allocation on the way must keep the QoS: what
lies beyond a gap is never reached, nor is what was not measured.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from models.osml_b import ANGLES

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]
Words = NDArray[np.uint64]

MOST_WAYS = 52  # columns of a grid: a row is one word, and a word must be exact as a double
_CHUNK = 1 << 18  # starts at a time: the words of one stay in the cache


def keeps(qos: F64, slowdown: float) -> Mask:
    """Cells that a service which meets its QoS may go to at this slowdown; a cell whose QoS is unknown (NaN) is none.

    Args:
        qos: target / p99; 0 where overloaded.
    """
    with np.errstate(invalid="ignore"):
        return np.minimum(qos, 1.0) >= 1.0 - slowdown - 1e-9


def _pack(kept: Mask) -> Words:
    """A row of a grid as one word; fewer ways are higher bits."""
    columns = kept.shape[-1]
    if columns > MOST_WAYS:
        raise ValueError(f"a grid of {columns} way counts; at most {MOST_WAYS} are handled")
    bits = np.left_shift(np.uint64(1), np.arange(columns - 1, -1, -1, dtype=np.uint64))
    return np.where(kept, bits, np.uint64(0)).sum(axis=-1, dtype=np.uint64)


def _spread(seed: Words, room: Words, columns: int) -> Words:
    """The seeds and all that follow towards fewer ways without a gap in `room` (a Kogge-Stone fill)."""
    found, room = seed.copy(), room.copy()
    shift = 1
    while shift < columns:
        found |= room & (found << np.uint64(shift))
        room &= room << np.uint64(shift)
        shift *= 2
    return found


def b_points(kept: Mask, grid: I64, row: I64, column: I64) -> I64:
    """What can be taken from each start, in steps of its grid.

    Args:
        kept: shape (grids, rows, columns), see `keeps`; row 0 has the fewest cores, column 0 the fewest ways.
        grid, row, column: where each start is.
    Returns:
        shape (starts, 3, 2): rows and columns to take, for each of ANGLES; all 0 where nothing can be given.
    """
    n_rows, n_columns = kept.shape[1:]
    words = _pack(kept)
    parts = [
        _b_points(words, n_rows, n_columns, grid[k : k + _CHUNK], row[k : k + _CHUNK], column[k : k + _CHUNK])
        for k in range(0, len(grid), _CHUNK)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, len(ANGLES), 2), dtype=np.int64)


def _b_points(words: Words, n_rows: int, n_columns: int, grid: I64, row: I64, column: I64) -> I64:
    out = np.zeros((len(grid), len(ANGLES), 2), dtype=np.int64)
    best = np.zeros((len(grid), 2))  # of the default angle: share of the machine, then the lesser share
    at = np.arange(len(grid))
    reached: Words = np.left_shift(np.uint64(1), (n_columns - 1 - column).astype(np.uint64))
    for taken in range(n_rows):
        room: Words = np.where(row[at] >= taken, words[grid[at], np.maximum(row[at] - taken, 0)], np.uint64(0))
        reached = _spread(np.bitwise_and(reached, room), room, n_columns)
        alive = reached != 0
        at, reached = at[alive], reached[alive]
        if at.size == 0:
            break
        top = np.frexp(reached.astype(np.float64))[1] - 1  # the highest bit, so the fewest ways
        ways = column[at] - (n_columns - 1 - top)
        out[at, 1] = np.column_stack([np.full(len(at), taken), ways])  # later rows take more cores
        most = ways >= out[at, 2, 1]
        out[at[most], 2] = np.column_stack([np.full(most.sum(), taken), ways[most]])
        shares = np.column_stack([np.full(len(at), taken / n_rows), ways / n_columns])
        total, lesser = shares.sum(axis=1), shares.min(axis=1)
        better = (total > best[at, 0] + 1e-9) | ((total > best[at, 0] - 1e-9) & (lesser > best[at, 1]))
        best[at[better]] = np.column_stack([total, lesser])[better]
        out[at[better], 0] = np.column_stack([np.full(better.sum(), taken), ways[better]])
    return out


def slowdown(qos_before: F64, qos_after: F64) -> F64:
    """QoS lost by a move, in -1..1; below 0 where the service gets faster, NaN where either QoS is unknown."""
    return np.minimum(qos_before, 1.0) - np.minimum(qos_after, 1.0)
