"""Many virtual servers as one vector environment: a step of all of them is one call, without the interpreter's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from surefoot_gym import _native
from surefoot_gym.frame import MARKS, TOLD, Frame, names
from surefoot_gym.settings import ActionKind, Settings, numbers, whole

Observation = dict[str, NDArray[Any]]


class VirtualServerVectorEnv(VectorEnv[Observation, NDArray[Any], NDArray[Any]]):
    """`VirtualServerEnv`, so many times.

    Environment i, reset with seed s, goes the way of a `VirtualServerEnv` that is reset with seed s + i.

    Args:
        num_envs: how many.
        threads: on how many threads a step is computed. The results do not depend on it.
        autoreset_mode: what follows the end of an episode: `NEXT_STEP`, `SAME_STEP` or `DISABLED`, as Gymnasium has them.
        scenario, max_services, step_ms, action, reward, platform, profiles: see `VirtualServerEnv`.

    Raises:
        ValueError: an argument cannot be used.
    """

    def __init__(
        self,
        num_envs: int = 1,
        scenario: str = "demo",
        *,
        threads: int = 1,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_services: int = 10,
        step_ms: int = 100,
        action: ActionKind = "steps",
        reward: str | Mapping[str, float] = "emu",
        platform: str | None = None,
        profiles: str | Path | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.settings = Settings(scenario, max_services, step_ms, action, reward, platform, profiles)
        self._servers = self.settings.servers(num_envs, threads)
        self.num_envs = num_envs
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        self.render_mode = render_mode
        self.single_observation_space = self.settings.observation_space()
        self.single_action_space = self.settings.action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._length = num_envs * max_services * _native.PER_ROW
        self._seeded = False

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin a workload in each environment.

        Args:
            seed: environment i has seed + i; or one seed for each, of which None goes on with the seed before.
            options: `reset_mask`, shape (num_envs,), bool: only these begin anew. `scene`: the number of a workload for all.
        """
        super().reset(seed=seed if isinstance(seed, int) else None)
        options = options or {}
        mask = np.asarray(options.get("reset_mask", np.ones(self.num_envs, np.bool_)), dtype=np.bool_)
        if mask.shape != (self.num_envs,):
            raise ValueError(f"options: reset_mask has shape {mask.shape}. Give ({self.num_envs},)")
        if isinstance(seed, int):
            seeds: list[int | None] = [seed + i for i in range(self.num_envs)]
        elif seed is None:
            first = None if self._seeded else int(self.np_random.integers(2**32))
            seeds = [None if first is None else first + i for i in range(self.num_envs)]
        else:
            seeds = list(seed)
            if len(seeds) != self.num_envs:
                raise ValueError(f"seed: {len(seeds)} seeds for {self.num_envs} environments. Give one for each, or one number")
            if not self._seeded and None in seeds:
                seeds = [int(self.np_random.integers(2**32)) if s is None else s for s in seeds]
        self._seeded = True
        self._servers.reset([whole(s) for s in seeds], mask.tolist(), options.get("scene"))
        frame = self._frame()
        return frame.observation(), self._infos(frame, mask)

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Observation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Carry out an action in each environment, and let `step_ms` pass in all of them."""
        self._servers.step(numbers(actions, self._length), self.autoreset_mode == AutoresetMode.NEXT_STEP)
        frame = self._frame()
        rewards, over = frame.marks[:, 0].copy(), frame.over.astype(np.bool_)
        final: dict[str, Any] = {}
        if self.autoreset_mode == AutoresetMode.SAME_STEP and over.any():
            final = self._final(frame, over)
            self._servers.reset([None] * self.num_envs, over.tolist(), None)
            frame = self._frame()
        infos = self._infos(frame, frame.began.astype(np.bool_)) | final
        return frame.observation(), rewards, np.zeros(self.num_envs, np.bool_), over, infos

    @property
    def scenes(self) -> int:
        """Workloads that an episode may be of."""
        return self._servers.scenes

    def _frame(self) -> Frame:
        return Frame.of(self._servers, self.num_envs, self.settings.max_services)

    def _numbers(self, frame: Frame) -> dict[str, Any]:
        infos: dict[str, Any] = dict(zip(MARKS, frame.marks.T.copy(), strict=True))
        infos.update(zip(TOLD, np.moveaxis(frame.told, -1, 0), strict=True))
        infos["refused"] = frame.refused
        return infos

    def _infos(self, frame: Frame, began: NDArray[np.bool_]) -> dict[str, Any]:
        """As Gymnasium's vector environments have them: each entry with a mask of the environments that it is of."""
        infos: dict[str, Any] = {}
        for name, values in self._numbers(frame).items():
            infos[name], infos[f"_{name}"] = values, np.ones(self.num_envs, np.bool_)
        for i in np.flatnonzero(began).tolist():
            for name, value in names(self._servers, i).items():
                if name not in infos:
                    infos[name], infos[f"_{name}"] = np.full(self.num_envs, None, object), np.zeros(self.num_envs, np.bool_)
                infos[name][i], infos[f"_{name}"][i] = value, True
        return infos

    def _final(self, frame: Frame, over: NDArray[np.bool_]) -> dict[str, Any]:
        """The last observation and info of the environments that end with this step."""
        observations = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(over).tolist():
            observations[i] = {name: values[i] for name, values in frame.observation().items()}
        infos: dict[str, Any] = {}
        for name, values in self._numbers(frame).items():
            infos[name], infos[f"_{name}"] = values, over.copy()
        return {"final_obs": observations, "_final_obs": over.copy(), "final_info": infos, "_final_info": over.copy()}
