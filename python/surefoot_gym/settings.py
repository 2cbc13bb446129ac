"""What an environment is made with, and the spaces that follow from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from surefoot_gym import _native

ActionKind = Literal["steps", "shares"]
"""How an action is read: `steps` (MultiDiscrete) or `shares` (Box)."""

REWARDS: dict[str, dict[str, float]] = {name: dict(parts) for name, parts in _native.REWARDS}
"""Rewards that have a name: the weight of each part."""

STAY = (3, 3, 1)
"""The row of an action of kind `steps` that changes nothing."""


@dataclass(frozen=True)
class Settings:
    """Arguments of `VirtualServerEnv`, which has their meaning."""

    scenario: str
    max_services: int
    step_ms: int
    action: ActionKind
    reward: str | Mapping[str, float]
    platform: str | None
    profiles: str | Path | None

    def servers(self, count: int, threads: int) -> _native.Servers:
        """The environments themselves.

        Raises:
            ValueError: an argument cannot be used; the message is one line with the remedy.
        """
        if self.action not in ("steps", "shares"):
            raise ValueError(f'action: unknown kind "{self.action}". Give "steps" or "shares"')
        try:
            return _native.Servers(
                str(self.scenario),
                platform=self.platform,
                profiles=None if self.profiles is None else str(self.profiles),
                count=count,
                threads=threads,
                rows=self.max_services,
                step_ms=self.step_ms,
                shares=self.action == "shares",
                weights=list(self.weights().items()),
            )
        except OverflowError as e:
            raise ValueError(f"num_envs, threads, max_services or step_ms: {e}. Give a positive number") from e

    def weights(self) -> dict[str, float]:
        """The weight of each part of the reward.

        Raises:
            ValueError: there is no reward of this name.
        """
        if not isinstance(self.reward, str):
            return {str(name): float(weight) for name, weight in self.reward.items()}
        if self.reward not in REWARDS:
            known = ", ".join(REWARDS)
            raise ValueError(f'reward: unknown name "{self.reward}". Give one of {known}, or weights, e.g. {{"emu": 1.0}}')
        return REWARDS[self.reward]

    def observation_space(self) -> spaces.Space[dict[str, NDArray[Any]]]:
        table = (self.max_services, len(_native.COLUMNS))
        parts: dict[str, spaces.Space[Any]] = {
            "services": spaces.Box(0.0, 1.0, table, np.float32),
            "known": spaces.MultiBinary(table),
            "server": spaces.Box(0.0, 1.0, (len(_native.SERVER_COLUMNS),), np.float32),
        }
        return cast("spaces.Space[dict[str, NDArray[Any]]]", spaces.Dict(parts))

    def action_space(self) -> spaces.MultiDiscrete | spaces.Box:
        if self.action == "shares":
            return spaces.Box(0.0, 1.0, (self.max_services * _native.PER_ROW,), np.float32)
        choices = [int(highest) + 1 for highest in _native.HIGHEST_STEPS]
        return spaces.MultiDiscrete(np.array(choices * self.max_services, dtype=np.int64))


def whole(seed: int | None) -> int | None:
    """A seed of any size in 64 bits."""
    return None if seed is None else int(seed) % 2**64


def numbers(action: Any, length: int) -> NDArray[np.float64] | None:
    """An action as the environments read it; None for one that has not the shape of the space, or is not made of numbers."""
    try:
        flat = np.ascontiguousarray(action, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        return None
    return flat if flat.size == length else None


def action_row(cores: int = 0, ways: int = 0, bandwidth: int = 0) -> list[int]:
    """A row of an action of kind `steps`: so many cores and ways more (-3 to 3), bandwidth one step up or down (-1 to 1)."""
    return [cores + STAY[0], ways + STAY[1], bandwidth + STAY[2]]


def stay(max_services: int) -> NDArray[np.int64]:
    """The action of kind `steps` that changes nothing."""
    return np.array(STAY * max_services, dtype=np.int64)


def equal_shares(services: NDArray[np.float32]) -> NDArray[np.float32]:
    """The action of kind `shares` that gives each LC service, and the BE jobs together, an equal share.

    Args:
        services: the observation's table, shape (..., max_services, columns).
    """
    is_lc, is_be = services[..., 0], services[..., 1]
    holders = is_lc.sum(-1, keepdims=True) + (is_be.max(-1, keepdims=True) > 0)
    share = np.where(is_lc > 0, 1.0 / np.maximum(holders, 1), 0.0).astype(np.float32)
    rows = np.stack([share, share, np.ones_like(share)], -1)
    return rows.reshape(*services.shape[:-2], math.prod(rows.shape[-2:]))
