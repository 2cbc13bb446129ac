"""One virtual server as an environment."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from surefoot_gym import _native
from surefoot_gym.frame import MARKS, TOLD, Frame, names
from surefoot_gym.settings import ActionKind, Settings, numbers, whole

Observation = dict[str, NDArray[Any]]


class VirtualServerEnv(gymnasium.Env[Observation, NDArray[Any]]):
    """An agent hands out cores, LLC ways and memory bandwidth of a server to its latency-critical (LC) services.

    Best-effort (BE) jobs hold whatever no LC service holds. An episode is a workload: services come, change their load and leave
    at times that the workload names. It is truncated when the workload ends, and never terminates before.

    Observation: a dict.
        services: (max_services, columns), float32, 0 to 1. A row is a service or job, in the order of the workload: LC, then BE.
        known: the same shape, int8. 0: the number is not known (and 0). A row without a service has 0 everywhere.
        server: (2,), float32: cores and ways that no LC service holds, beyond the least of BE jobs, as shares of all.

    Columns of `services` (`surefoot_gym.COLUMNS`):
        is_lc, is_be: 1 for a service, for a job
        held_cores, held_ways, held_mba: in force now, share of the server
        ipc: instructions per cycle / 4
        llc_misses_per_s: x 64 bytes / peak memory bandwidth
        mbl_mbps, nb_mbl_mbps: memory bandwidth of the service, of its neighbours / peak memory bandwidth
        cpu_usage_cores, alloc_cores, nb_cores: cores / all CPUs
        virt_mem_mb, res_mem_mb: ln(1 + MB) / ln(1 + MB of all memory)
        alloc_ways: ways / all ways
        alloc_cache_mb, nb_cache_mb: MB / all of the LLC
        core_freq_mhz: / highest clock
        p99_interval, p99_window: of the last interval, the last second: r / (1 + r) for r = p99 / QoS target; 0.5 is the target
        load: l / (1 + l) for l = requests completed in the last second / max load
        throughput: of a BE job, instructions/s / those alone on the server

    What exceeds 1 is 1. The numbers are what a policy sees of a node (`scheduler/server/src/features.rs`), with its noise, its
    delays and its missing readings.

    Action: three numbers a row (cores, ways, bandwidth). Empty rows are ignored. Of a BE job's row bandwidth alone counts.
        steps: MultiDiscrete. Cores and ways 0 to 6 (3 leaves as it is, 6 takes three more), bandwidth 0 to 2 (1 leaves as it is).
        shares: Box, 0 to 1, of the whole server.

    Args:
        scenario: a shipped set ("demo"), a workload of it ("demo/spike"), worlds ("train:1..100"), a workload file or a folder.
        max_services: rows; a workload with more services and jobs cannot be run.
        step_ms: time between two decisions, 100 to 10,000 in steps of 100.
        action: "steps" or "shares".
        reward: a name of `surefoot_gym.REWARDS`, or a weight for each part (`surefoot_gym.PARTS`).
        platform: a shipped server ("server-2") or a platform file, in place of the one that the workload names.
        profiles: a folder of profiles beside the shipped ones.

    Raises:
        ValueError: an argument cannot be used. Nothing else raises: `info["refused"]` says what became of an action.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own class has it so)

    def __init__(
        self,
        scenario: str = "demo",
        *,
        max_services: int = 10,
        step_ms: int = 100,
        action: ActionKind = "steps",
        reward: str | Mapping[str, float] = "emu",
        platform: str | None = None,
        profiles: str | Path | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.settings = Settings(scenario, max_services, step_ms, action, reward, platform, profiles)
        self._servers = self.settings.servers(1, 1)
        self.observation_space = self.settings.observation_space()
        self.action_space = self.settings.action_space()
        self.render_mode = render_mode
        self._length = max_services * _native.PER_ROW
        self._seeded = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin a workload.

        Args:
            seed: begins the first episode of that seed, which is the run that `surefootd eval` makes of it. Without a seed the
                next episode of the seed before begins.
            options: `scene`, the number of a workload (0 to below `scenes`), in place of a drawn one.
        """
        super().reset(seed=seed)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**32))
        self._seeded = True
        self._servers.reset([whole(seed)], [True], (options or {}).get("scene"))
        frame = Frame.of(self._servers, 1, self.settings.max_services)
        return self._observation(frame), self._info(frame) | names(self._servers, 0)

    def step(self, action: NDArray[Any]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Carry out an action, and let `step_ms` pass."""
        self._servers.step(numbers(action, self._length), False)
        frame = Frame.of(self._servers, 1, self.settings.max_services)
        info = self._info(frame)
        return self._observation(frame), info["reward"], False, bool(frame.over[0]), info

    @property
    def scenes(self) -> int:
        """Workloads that an episode may be of."""
        return self._servers.scenes

    def follow(self, policy: str) -> dict[str, NDArray[np.float64]]:
        """What a policy of Surefoot makes of the episode that `reset` began, whatever was done in it since.

        Args:
            policy: one of `surefoot_gym.POLICIES`. It decides as often as it would on a node.

        Returns:
            For each of `surefoot_gym.MARKS` its value at the end of each step: what an agent finds in `info`. Parts that are of
            an agent's action are `UNKNOWN`, and pay nothing.

        Raises:
            ValueError: the policy is unknown or needs models, or no episode was begun.
        """
        table = np.array(self._servers.follow(0, policy)).reshape(-1, len(MARKS))
        return dict(zip(MARKS, table.T, strict=True))

    def fork(self) -> VirtualServerEnv:
        """The same server once more: what is done to one is not done to the other, and equal actions have equal results."""
        other = copy.copy(self)
        other._servers = self._servers.fork()
        if self._np_random is not None:
            other._np_random = copy.deepcopy(self._np_random)
        return other

    @staticmethod
    def _observation(frame: Frame) -> Observation:
        return {"services": frame.services[0], "known": frame.known[0], "server": frame.server[0]}

    @staticmethod
    def _info(frame: Frame) -> dict[str, Any]:
        info: dict[str, Any] = dict(zip(MARKS, frame.marks[0].tolist(), strict=True))
        info.update(zip(TOLD, frame.told[0].T, strict=True))
        info["refused"] = frame.refused[0]
        return info
