#!/usr/bin/env python3
"""A policy that learns by the cross-entropy method, beside equal shares and PARTIES on the demo's workloads (docs/gym.md).

    python examples/gym_train.py [--generations 20] [--seed 0] [--seeds 3]

The policy is one small network that reads one row of the observation and moves cores and ways of that service, every second.
All rows share its weights, so it works for any number of services. It learns on worlds of the range `train`, and never sees the
demo's workloads.
"""

from __future__ import annotations

import argparse

import numpy as np
import surefoot_gym as sg

ROWS, STEP_MS, HIDDEN = 10, 1000, 6
SEEN = ("p99_window", "p99_interval", "load", "held_cores", "held_ways", "cpu_usage_cores", "llc_misses_per_s")
AT = [sg.COLUMNS.index(name) for name in SEEN]
LC, P99, USED, HELD = (sg.COLUMNS.index(name) for name in ("is_lc", "p99_window", "cpu_usage_cores", "held_cores"))
INPUTS = len(SEEN) + len(sg.SERVER_COLUMNS) + 2  # what is free, how busy the held cores are, and a constant
SHOWN = ("emu", "be_throughput_met", "violations")
SIZES = (INPUTS * HIDDEN, HIDDEN * 2)


def inputs(obs: dict[str, np.ndarray]) -> np.ndarray:
    """(envs, rows, INPUTS), about -1 to 1; p99 at its target is 0, and what is not known counts as that."""
    table, known = obs["services"], obs["known"]
    seen = np.where(known[..., AT] > 0, table[..., AT], 0.5)
    seen[..., :3] = 2 * seen[..., :3] - 1
    busy = table[..., USED] / np.maximum(table[..., HELD], 1e-3)
    free = np.repeat(obs["server"][:, None, :], ROWS, 1)
    return np.concatenate([seen, free, busy[..., None], np.ones((*busy.shape, 1))], -1)


def act(weights: np.ndarray, obs: dict[str, np.ndarray]) -> np.ndarray:
    """The action of kind `steps` of each environment, by the weights of each: (envs, sum of SIZES)."""
    first, second = np.split(weights, [SIZES[0]], -1)
    hidden = np.tanh(np.einsum("eri,eih->erh", inputs(obs), first.reshape(-1, INPUTS, HIDDEN)))
    out = np.tanh(np.einsum("erh,eho->ero", hidden, second.reshape(-1, HIDDEN, 2)))
    action = np.tile(sg.stay(1), (*out.shape[:2], 1))
    # A service whose latency is not known is left alone.
    told = (obs["services"][..., LC] > 0) & (obs["known"][..., P99] > 0)
    action[..., :2] += np.where(told[..., None], np.rint(3 * out), 0).astype(np.int64)
    return action.reshape(len(weights), -1)


def pays(envs: sg.VirtualServerVectorEnv, weights: np.ndarray, seed: int, steps: int) -> np.ndarray:
    """Mean reward of each candidate; all of them meet the same server, workload and noise."""
    obs, _ = envs.reset(seed=[seed] * len(weights))
    total = np.zeros(len(weights))
    for _ in range(steps):
        obs, rewards, *_ = envs.step(act(weights, obs))
        total += rewards
    return total / steps


def train(generations: int, seed: int, population: int = 48, elite: int = 10, steps: int = 40) -> np.ndarray:
    envs = sg.VirtualServerVectorEnv(population, "train:1..1000", step_ms=STEP_MS, reward="safe", threads=2)
    rng, mean, spread = np.random.default_rng(seed), np.zeros(sum(SIZES)), np.full(sum(SIZES), 0.7)
    for generation in range(1, generations + 1):
        weights = mean + spread * rng.standard_normal((population, sum(SIZES)))
        scores = sum(pays(envs, weights, int(rng.integers(2**32)), steps) for _ in range(2)) / 2
        best = weights[np.argsort(scores)[-elite:]]
        mean = 0.5 * mean + 0.5 * best.mean(0)
        spread = 0.7 * spread + 0.3 * best.std(0) + 0.01
        if generation % 5 == 0:
            print(f"generation {generation:3d}: mean reward of the best {np.sort(scores)[-elite:].mean():.3f}", flush=True)
    return mean


def evaluate(who: np.ndarray | str, seeds: int) -> tuple[float, float, float]:
    """EMU, BE throughput while targets are met, and seconds of violation a run, on every workload of the demo.

    Args:
        who: the weights of an agent, or the name of a policy of Surefoot.
    """
    env = sg.VirtualServerEnv("demo", step_ms=STEP_MS)
    runs = []
    for scene in range(env.scenes):
        for seed in range(1, seeds + 1):
            obs, _ = env.reset(seed=seed, options={"scene": scene})
            if isinstance(who, str):
                told = env.follow(who)
                runs.append(np.stack([told[name] for name in SHOWN], -1))
                continue
            seen, over = [], False
            while not over:
                obs, _, _, over, info = env.step(act(who[None], {name: values[None] for name, values in obs.items()})[0])
                seen.append([info[name] for name in SHOWN])
            runs.append(np.array(seen))
    # A server without jobs has no throughput of them.
    emu, be = (np.mean([r[:, i].mean() for r in runs if r[0, i] != sg.UNKNOWN]) for i in (0, 1))
    return float(emu), float(be), float(np.mean([r[:, 2].sum() * STEP_MS / 1000 for r in runs]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--generations", type=int, default=20, help="how long it learns; 48 candidates in each")
    parser.add_argument("--seed", type=int, default=0, help="of the learning")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each workload of the demo")
    given = parser.parse_args()
    weights = train(given.generations, given.seed)
    print(f"\n{'on the demo':<14}{'EMU':>7}{'BE':>7}{'violation s a run':>20}")
    whose: dict[str, np.ndarray | str] = {name: name for name in ("equal-share", "parties-be")}
    for name, who in {**whose, "learnt": weights}.items():
        emu, be, late = evaluate(who, given.seeds)
        print(f"{name:<14}{emu:>7.3f}{be:>7.3f}{late:>20.1f}")


if __name__ == "__main__":
    main()
