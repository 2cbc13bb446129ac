"""Arrays that grow at their end and lie in files: what is read of them takes memory that can be given back.

The files have no name, so they are gone with the process, however it ends.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BLOCK = 1 << 18
"""Rows that are worked on at once."""


def blocks(count: int, size: int = BLOCK) -> Iterator[slice]:
    """So many rows in parts that are small beside memory."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


@dataclass
class Growing:
    """One array; parts of it are added in order.

    Attributes:
        folder: where its file is; None: in memory.
    """

    folder: Path | None = None
    _parts: list[Array] = field(default_factory=list)
    _file: Any = None
    _dtype: Any = None
    _shape: tuple[int, ...] = ()
    _rows: int = 0
    _map: mmap.mmap | None = None

    def add(self, part: Array) -> None:
        if self.folder is None:
            self._parts.append(part)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - it lives as long as the array
            self._dtype, self._shape = part.dtype, part.shape[1:]
        self._file.write(np.ascontiguousarray(part, dtype=self._dtype).data)
        self._rows += len(part)

    def whole(self) -> Array:
        """All parts as one array, not to be written to."""
        if self.folder is None:
            return np.concatenate(self._parts)
        if self._rows == 0:
            return np.empty((0, *self._shape), dtype=self._dtype)
        self._file.flush()
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._file.close()
        return np.frombuffer(self._map, dtype=self._dtype).reshape(self._rows, *self._shape)

    def release(self) -> None:
        """Give back the memory of what was read."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)


@dataclass
class Arrays:
    """Several of them, by name."""

    folder: Path | None = None
    _of: dict[str, Growing] = field(default_factory=dict)

    def add(self, name: str, part: Array) -> None:
        self._of.setdefault(name, Growing(self.folder)).add(part)

    def whole(self, name: str) -> Array:
        return self._of[name].whole()

    def release(self) -> None:
        for grown in self._of.values():
            grown.release()
