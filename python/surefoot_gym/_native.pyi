"""The extension module, written in Rust (`python/src/lib.rs`)."""

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

PLANT: int
WORLDS: int
COLUMNS: list[str]
SERVER_COLUMNS: list[str]
MARKS: list[str]
PARTS: list[str]
TOLD: list[str]
REFUSED: list[str]
UNKNOWN: float
POLICIES: list[str]
PER_ROW: int
HIGHEST_STEPS: list[float]
SETS: list[str]
REWARDS: list[tuple[str, list[tuple[str, float]]]]

@final
class Servers:
    def __new__(
        cls,
        scenario: str,
        *,
        platform: str | None,
        profiles: str | None,
        count: int,
        threads: int,
        rows: int,
        step_ms: int,
        shares: bool,
        weights: Sequence[tuple[str, float]],
    ) -> Servers: ...
    @property
    def scenes(self) -> int: ...
    def reset(self, seeds: Sequence[int | None], which: Sequence[bool], scene: int | None) -> None: ...
    def step(self, numbers: NDArray[np.float64] | None, autoreset: bool) -> None: ...
    def show(
        self,
        to: tuple[
            NDArray[np.float32],
            NDArray[np.int8],
            NDArray[np.float32],
            NDArray[np.float64],
            NDArray[np.float64],
            NDArray[np.uint8],
            NDArray[np.uint8],
            NDArray[np.uint8],
        ],
    ) -> None: ...
    def scene(self, env: int) -> tuple[str, str, list[str], int] | None: ...
    def error(self, env: int) -> str | None: ...
    def follow(self, env: int, policy: str) -> list[float]: ...
    def fork(self) -> Servers: ...

@final
class Seat:
    def __new__(cls, platform: str, rows: int, shares: bool) -> Seat: ...
    def look(self, seen: str) -> bool: ...
    def show(self, to: tuple[NDArray[np.float32], NDArray[np.int8], NDArray[np.float32]]) -> None: ...
    def act(self, numbers: NDArray[np.float64] | None) -> list[int]: ...
    def holds(self) -> tuple[list[tuple[str, int, int, int]], list[str], int]: ...
