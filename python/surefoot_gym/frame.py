"""What environments show at one step, in arrays that are made anew each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot_gym import _native

COLUMNS: tuple[str, ...] = tuple(_native.COLUMNS)
"""Columns of the observation's table of services."""
SERVER_COLUMNS: tuple[str, ...] = tuple(_native.SERVER_COLUMNS)
"""Entries of the observation of the whole server."""
MARKS: tuple[str, ...] = tuple(_native.MARKS)
"""Entries of `info` that are of the whole server."""
PARTS: tuple[str, ...] = tuple(_native.PARTS)
"""Those of them that a reward can weigh."""
TOLD: tuple[str, ...] = tuple(_native.TOLD)
"""Entries of `info` with a number for each service."""
REFUSED: tuple[str, ...] = tuple(_native.REFUSED)
"""What the numbers of `info["refused"]` mean."""
UNKNOWN: float = _native.UNKNOWN
"""What stands in `info` for a number that is not known, or that there is not."""


@dataclass
class Frame:
    """Arrays of so many environments with so many rows each; the order of the fields is that of the extension."""

    services: NDArray[np.float32]  # (envs, rows, columns), 0 to 1
    known: NDArray[np.int8]  # (envs, rows, columns), 0 or 1
    server: NDArray[np.float32]  # (envs, server columns), 0 to 1
    marks: NDArray[np.float64]  # (envs, marks)
    told: NDArray[np.float64]  # (envs, rows, told)
    refused: NDArray[np.uint8]  # (envs, rows)
    over: NDArray[np.uint8]  # (envs,): the workload has ended
    began: NDArray[np.uint8]  # (envs,): the last step was a reset

    @classmethod
    def of(cls, servers: _native.Servers, count: int, rows: int) -> Frame:
        """What is shown now."""
        frame = cls(
            np.empty((count, rows, len(COLUMNS)), np.float32),
            np.empty((count, rows, len(COLUMNS)), np.int8),
            np.empty((count, len(SERVER_COLUMNS)), np.float32),
            np.empty((count, len(MARKS)), np.float64),
            np.empty((count, rows, len(TOLD)), np.float64),
            np.empty((count, rows), np.uint8),
            np.empty((count,), np.uint8),
            np.empty((count,), np.uint8),
        )
        servers.show(
            (
                frame.services,
                frame.known,
                frame.server,
                frame.marks,
                frame.told,
                frame.refused,
                frame.over,
                frame.began,
            )
        )
        return frame

    def observation(self) -> dict[str, NDArray[Any]]:
        """Of all environments."""
        return {"services": self.services, "known": self.known, "server": self.server}


def names(servers: _native.Servers, env: int) -> dict[str, Any]:
    """What `info` has at a reset: which scene, and what runs in each row. Or why there is none."""
    scene = servers.scene(env)
    if scene is None:
        return {"error": servers.error(env)}
    name, platform, services, seed = scene
    return {"scene": name, "platform": platform, "service_ids": services, "run_seed": seed}
