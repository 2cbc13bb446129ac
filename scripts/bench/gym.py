#!/usr/bin/env python3
"""Steps a second of the environment (docs/gym.md#speed): six services that hold equal shares, one process, one core.

    python scripts/bench/gym.py [--seconds 3]

Time is that of the processor: what others take of it does not count. A vector on two threads counts the time that passes.
"""

from __future__ import annotations

import argparse
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import surefoot_gym as sg

ROWS = 7
SIX = ("moses", "xapian", "img-dnn", "masstree", "memcached", "nginx")


def workload(folder: str, jobs: int = 0) -> str:
    file = Path(folder) / f"six-{jobs}.toml"
    lc = "".join(f'[[lc]]\nservice = "{name}"\nload = 0.3\n' for name in SIX)
    file.write_text(f'platform = "server-1"\nduration_s = 600\n{lc}' + '[[be]]\njob = "stream"\n' * jobs)
    return str(file)


def rate(step: Callable[[], int], seconds: float, clock: Callable[[], float]) -> float:
    for _ in range(20):
        step()
    start, steps = clock(), 0
    while clock() - start < seconds:
        steps += step()
    return steps / (clock() - start)


def single(scenario: str, moving: bool) -> Callable[[], int]:
    env = sg.VirtualServerEnv(scenario, max_services=ROWS)
    env.reset(seed=1)
    env.action_space.seed(1)
    stay, actions = sg.stay(ROWS), [env.action_space.sample() for _ in range(64)]

    def step() -> int:
        for action in actions:
            if env.step(action if moving else stay)[3]:
                env.reset()
        return len(actions)

    return step


def vector(scenario: str, count: int, threads: int) -> Callable[[], int]:
    envs = sg.VirtualServerVectorEnv(count, scenario, max_services=ROWS, threads=threads)
    envs.reset(seed=1)
    stay = np.tile(sg.stay(ROWS), (count, 1))

    def step() -> int:
        envs.step(stay)
        return count

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row")
    seconds = parser.parse_args().seconds
    processor = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), "?").split(":")[
        -1
    ]
    print(f"{processor.strip()}, Python {platform.python_version()}, numpy {np.__version__}, {sg.ENV_ID}")
    with tempfile.TemporaryDirectory() as folder:
        six, with_job = workload(folder), workload(folder, 1)
        rows: list[tuple[str, Callable[[], int], Callable[[], float]]] = [
            ("one environment, six services", single(six, False), time.process_time),
            ("the same, random actions", single(six, True), time.process_time),
            ("six services and a job", single(with_job, False), time.process_time),
            ("32 environments, 1 thread", vector(six, 32, 1), time.process_time),
            ("32 environments, 2 threads, time that passes", vector(six, 32, 2), time.perf_counter),
        ]
        for name, step, clock in rows:
            print(f"{name:<46}{rate(step, seconds, clock):>10,.0f} steps/s")
    print(f"memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
