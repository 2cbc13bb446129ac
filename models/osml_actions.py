"""The 49 actions of OSML's Model-C and their reward (OSML, Sec. 4.3; models/osml_c.py says what differs). No PyTorch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

REACH = 3  # allocation units of cores, and ways, that one action moves at most
_STEPS = range(-REACH, REACH + 1)
ACTIONS = tuple((cores, ways) for cores in _STEPS for ways in _STEPS)  # by number
IDLE = ACTIONS.index((0, 0))


def action_number(core_steps: NDArray[np.int64], ways: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of the actions that change an allocation by this; each change within -3..3."""
    if (np.abs(core_steps) > REACH).any() or (np.abs(ways) > REACH).any():
        raise ValueError(f"an action moves at most {REACH} cores and {REACH} ways")
    return (core_steps + REACH) * len(_STEPS) + (ways + REACH)


def reward(before_ms: NDArray[np.float64], after_ms: NDArray[np.float64], action: NDArray[np.int64]) -> NDArray[np.float64]:
    """The paper's reward of actions that were carried out; latencies in ms, finite."""
    better_ms = before_ms - after_ms
    taken = np.array(ACTIONS, dtype=float).sum(axis=1)[action]
    return np.sign(better_ms) * np.log1p(np.abs(better_ms)) - taken
