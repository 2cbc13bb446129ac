"""How far each cell lies from the edge between allocations that meet QoS and those that do not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipelines.fits.tensors import Table

I64 = NDArray[np.int64]

DISTANCES = 6  # steps from the cliff that are told apart


def cliff_distance(table: Table) -> I64:
    """Per cell: single steps to the cliff along the nearer axis, at most DISTANCES either way.

    0 and up where QoS is met (0: one step less of either violates it), below 0 where it is not (-1: one step more meets it).
    Cells from where no number of steps along one axis gets over count as the farthest; so do those whose QoS is unknown, which
    no error is counted for.
    """
    met = np.nan_to_num(table.cell_qos, nan=-1.0) >= 1.0
    result = np.where(met, DISTANCES, -DISTANCES)
    for along, across in ((table.cell_cores, table.cell_ways), (table.cell_ways, table.cell_cores)):
        order = np.lexsort((along, across, table.cell_plane))
        line = np.concatenate([[True], (np.diff(table.cell_plane[order]) != 0) | (np.diff(across[order]) != 0)])
        for part in np.split(order, np.flatnonzero(line)[1:]):
            over = np.flatnonzero(met[part])
            under = np.flatnonzero(~met[part])
            place = np.arange(len(part))
            if len(under):  # steps that can be taken away before the first that violates
                below = np.searchsorted(under, place) - 1
                steps = np.where(below >= 0, place - under[np.maximum(below, 0)] - 1, DISTANCES)
                result[part] = np.where(met[part], np.minimum(result[part], steps), result[part])
            if len(over):
                above = np.searchsorted(over, place)
                steps = np.where(above < len(over), over[np.minimum(above, len(over) - 1)] - place, DISTANCES)
                result[part] = np.where(met[part], result[part], np.maximum(result[part], -steps))
    return result
