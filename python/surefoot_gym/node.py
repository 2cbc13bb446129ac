"""An agent of the environment as a policy of a node (docs/python-policies.md#an-agent-of-the-environment)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from surefoot.policy import Hello, Hold, Observation, Plan, Policy

from surefoot_gym import _native
from surefoot_gym.frame import COLUMNS, SERVER_COLUMNS
from surefoot_gym.settings import ActionKind, numbers

Agent = Callable[[dict[str, NDArray[Any]]], Any]
"""From an observation of `VirtualServerEnv` to its action."""


class AgentPolicy(Policy):
    """Shows an agent what its environment would, and does what it says there.

    The columns `load` and `throughput` are not known on a node, so they are 0 and `known` says so.

    Args:
        hello: the greeting.
        agent: from an observation to an action, as of `VirtualServerEnv`.
        name: for logs.
        step_ms: time between two decisions of the agent, ms; newcomers are let in at once.
        max_services: rows.
        action: how actions are read, "steps" or "shares".
    """

    def __init__(
        self,
        hello: Hello,
        agent: Agent,
        *,
        name: str = "agent",
        step_ms: int = 100,
        max_services: int = 10,
        action: ActionKind = "steps",
    ) -> None:
        super().__init__(hello)
        self.name, self._agent, self._rows, self._step_ms = name, agent, max_services, step_ms
        self._seat = _native.Seat(json.dumps(dict(hello.platform)), max_services, action == "shares")
        self._next_ms = 0

    def decide(self, seen: Observation) -> Plan | None:
        news = self._seat.look(json.dumps(seen.raw["seen"]))
        due = seen.t_ms >= self._next_ms
        if due:
            self._next_ms = seen.t_ms + self._step_ms
            self._seat.act(numbers(self._agent(self._shown()), self._rows * _native.PER_ROW))
        if not due and not news:
            return None
        held, crowd, be_mba_pct = self._seat.holds()
        has_mba = self.hello.mba is not None
        hold = {sid: Hold(core_units, ways, mba_pct if has_mba else None) for sid, core_units, ways, mba_pct in held}
        return Plan(hold, crowd, be_mba_pct if has_mba else None)

    def _shown(self) -> dict[str, NDArray[Any]]:
        table = (self._rows, len(COLUMNS))
        services, known = np.empty(table, np.float32), np.empty(table, np.int8)
        server = np.empty((len(SERVER_COLUMNS),), np.float32)
        self._seat.show((services, known, server))
        return {"services": services, "known": known, "server": server}
