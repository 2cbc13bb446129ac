"""Cells as grids: which cell of a plane is at which place among its cores and ways."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Grids:
    """All planes of a data set, padded to one shape.

    Attributes:
        row, column: place of each cell among the core and way counts that its plane visited, ascending.
        cell: shape (planes, rows, columns), -1 where there is none.
        cores, ways: shape (planes, rows) and (planes, columns), NaN beyond a plane's own.
    """

    row: I64
    column: I64
    cell: NDArray[np.int32]
    cores: F64
    ways: F64

    @classmethod
    def of(cls, plane: I64, cores: F64, ways: F64, planes: int) -> Grids:
        """From one entry a cell."""
        ranks = pl.DataFrame({"plane": plane, "cores": cores, "ways": ways}).select(
            pl.col("cores").rank("dense").over("plane").cast(pl.Int64) - 1,
            pl.col("ways").rank("dense").over("plane").cast(pl.Int64) - 1,
        )
        row, column = ranks["cores"].to_numpy(), ranks["ways"].to_numpy()
        n_rows, n_columns = (int(places.max(initial=0)) + 1 for places in (row, column))
        cell = np.full((planes, n_rows, n_columns), -1, dtype=np.int32)
        cell[plane, row, column] = np.arange(len(plane))
        core_values, way_values = np.full((planes, n_rows), np.nan), np.full((planes, n_columns), np.nan)
        core_values[plane, row], way_values[plane, column] = cores, ways
        return cls(row, column, cell, core_values, way_values)

    def at(self, plane: I64, row: I64, column: I64) -> I64:
        """Cells at these places; -1 where there is none, beyond the grid too."""
        inside = (row >= 0) & (row < self.cell.shape[1]) & (column >= 0) & (column < self.cell.shape[2])
        found = self.cell[plane, np.where(inside, row, 0), np.where(inside, column, 0)]
        return np.where(inside, found, -1).astype(np.int64)

    def spread(self, values: F64) -> F64:
        """Values of cells on the grids, NaN where there is no cell."""
        return np.where(self.cell >= 0, values[np.maximum(self.cell, 0)], np.nan)
