"""What the node must compute: 10,000 inferences of each model and 1,000 steps of on-line learning of both kinds of Model-C.

    python -m pipelines.parity DIR [--vectors DIR]     writes inference-10000, inference-osml-10000 and learning-1000.safetensors

Inputs, first weights, experience and draws are not stored: both sides make them from one generator, SplitMix64, which gives
its n-th number (from 0) of a seed without the ones before: mix(seed + (n + 1) * 0x9e3779b97f4a7c15). Rust: `surefoot_learn::rng`.

inference-10000.safetensors: for `a`, `b`, `c` of tests/vectors/bundle-small and `dqn` (the policy after its 1,000 steps) what the
network gives for vector i, f32; of n outputs two, (i mod n) and (i + 1 mod n), where there are more than two. Inputs are raw,
seeded with the model's place in that list: low + span * (1.4 u - 0.2), or u itself for `dqn`.

inference-osml-10000.safetensors: the same for OSML's models (`osml_a` ... `osml_c`) of tests/vectors/bundle-whole.tar, with
seeds from 10.

learning-1000.safetensors: weights after learning, and losses before each hundredth step: `dqn` and `ddpg-slow` (critic's rate
1e-3, entropy term) after 1,000 steps, `ddpg` (the paper's loss, the published rates) after 200. Agreement is judged on what the
networks give: 1e-5 for inference, 1e-3 after learning.

Why only 200: at the critic's published rate of 5e-3 rounding decides where a longer run ends. PyTorch itself, given the rows of
each batch in reverse order, is 6e-6 away from its own Q-values after 200 steps, 5e-4 after 300 and 1e-2 after 1,000, and as far
from the same run in f64; at 1e-3 it is 1e-7 away after 1,000.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models import export
from models.ddpg import Ddpg, DdpgArgs
from models.dqn import Dqn, DqnArgs
from models.features import ACTIONS, Bound, normalise
from models.osml_c import ACTIONS as OSML_C_ACTIONS
from pipelines.artefact import bundle
from pipelines.io import write_bytes

COUNT = 10_000
STEPS = 1_000
STATE = 8
TRANSITIONS = 2_000
SEEDS = {"weights": 100, "experience": 200, "draws": 300}
DDPG = {"ddpg": (DdpgArgs(), 200), "ddpg-slow": (DdpgArgs(actor_entropy=0.1, lr_critic=1e-3), STEPS)}
DQN = DqnArgs()

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def numbers(seed: int, count: int) -> NDArray[np.uint64]:
    """The first `count` numbers of a seed."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(seed: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Uniform in [0, 1), row by row."""
    values = (numbers(seed, int(np.prod(shape))) >> np.uint64(11)).astype(np.float64) / 2.0**53
    return values.reshape(shape)


def below(seed: int, n: int, count: int) -> NDArray[np.int64]:
    """Uniform in 0..n, n < 2**32: the upper half of number * n."""
    z, low, size = numbers(seed, count), np.uint64(0xFFFFFFFF), np.uint64(n)
    carry = ((z & low) * size) >> np.uint64(32)
    return (((z >> np.uint64(32)) * size + carry) >> np.uint64(32)).astype(np.int64)


@torch.no_grad()
def set_weights(net: nn.Module, seed: int) -> None:
    """Uniform in +-1/sqrt(inputs of the layer): layer by layer the weights, inputs outermost, then the biases."""
    layers = [m for m in net.modules() if isinstance(m, nn.Linear)]
    drawn = uniform(seed, (sum(p.numel() for layer in layers for p in layer.parameters()),)).astype(np.float32)
    at = 0
    for layer in layers:
        bound = np.float32(1.0) / np.sqrt(np.float32(layer.in_features))
        size = layer.in_features * layer.out_features
        values = (np.float32(2.0) * drawn[at : at + size + layer.out_features] - np.float32(1.0)) * bound
        layer.weight.copy_(torch.from_numpy(values[:size].reshape(layer.in_features, layer.out_features).T.copy()))
        layer.bias.copy_(torch.from_numpy(values[size:].copy()))
        at += size + layer.out_features


def experience(actions: int) -> tuple[Tensor, NDArray[np.int64], Tensor, Tensor]:
    """State, action number, reward and next state of 2,000 transitions; the reward depends on state and action."""
    u = uniform(SEEDS["experience"], (TRANSITIONS, 2 * STATE + 1))
    action = (u[:, -1] * actions).astype(np.int64)
    state, next_state = u[:, :STATE].astype(np.float32), u[:, STATE:-1].astype(np.float32)
    reward = state[:, 0] + state[np.arange(TRANSITIONS), action % STATE]
    return torch.from_numpy(state), action, torch.from_numpy(reward), torch.from_numpy(next_state)


def ddpg_run(args: DdpgArgs, steps: int) -> tuple[Ddpg, list[tuple[float, float]]]:
    net = Ddpg(STATE, args)
    for k, part in enumerate((net.actor, net.critic)):
        set_weights(part, SEEDS["weights"] + k)
    net.actor_target.load_state_dict(net.actor.state_dict())
    net.critic_target.load_state_dict(net.critic.state_dict())
    state, number, reward, next_state = experience(len(ACTIONS))
    action = torch.eye(len(ACTIONS))[torch.from_numpy(number)]
    rows = torch.from_numpy(below(SEEDS["draws"], TRANSITIONS, steps * args.batch).reshape(steps, args.batch))
    optimisers = net.optimisers()
    losses = [net.update(optimisers, state[at], action[at], reward[at], next_state[at]) for at in rows]
    return net, losses


def dqn_run(steps: int = STEPS) -> tuple[Dqn, list[float]]:
    net = Dqn(STATE, len(OSML_C_ACTIONS), DQN)
    set_weights(net.policy, SEEDS["weights"] + 2)
    net.copy_to_target()
    state, number, reward, next_state = experience(len(OSML_C_ACTIONS))
    action = torch.from_numpy(number)
    rows = torch.from_numpy(below(SEEDS["draws"], TRANSITIONS, steps * DQN.batch).reshape(steps, DQN.batch))
    optimiser = net.optimiser()
    losses = [net.update(optimiser, state[at], action[at], reward[at], next_state[at]) for at in rows]
    return net, losses


def learning() -> export.Weights:
    """Weights of both kinds after their steps, and losses before each hundredth."""
    tensors: export.Weights = {}

    def keep(name: str, net: Ddpg | Dqn, losses: Sequence[object]) -> None:
        tensors.update({f"{name}.{k}": v.numpy() for k, v in net.named_tensors().items()})
        tensors[f"{name}.losses"] = np.array(losses[99::100], dtype=np.float32)

    for name, (args, steps) in DDPG.items():
        keep(name, *ddpg_run(args, steps))
    keep("dqn", *dqn_run())
    return tensors


def _two_each(outputs: NDArray[np.float32]) -> NDArray[np.float32]:
    count, n = outputs.shape
    if n <= 2:
        return outputs
    i = np.arange(count)
    return np.stack([outputs[i, i % n], outputs[i, (i + 1) % n]], axis=1)


@torch.no_grad()
def _of_bundle(checked: bundle.Verified, model: str, spec: bundle.AnySpec, seed: int) -> NDArray[np.float32]:
    """What a bundle's model gives for its 10,000 vectors."""
    from pipelines.vectors import load_ddpg, load_mlp

    low = np.array([i.min for i in spec.inputs])
    span = np.array([i.max - i.min for i in spec.inputs])
    raw = low + span * (1.4 * uniform(seed, (COUNT, len(spec.inputs))) - 0.2)
    scaled = torch.from_numpy(normalise(raw, [Bound(i.name, i.min, i.max) for i in spec.inputs]))
    weights = checked.weights(model)
    if isinstance(spec, bundle.DdpgSpec):
        return _two_each(load_ddpg(weights).actor(scaled).numpy())
    prefix = "policy." if isinstance(spec, bundle.DqnSpec) else ""
    net = load_mlp({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
    return _two_each(net(scaled).numpy())


def osml_inference(checked: bundle.Verified) -> export.Weights:
    """What each of OSML's models in a bundle gives for its 10,000 vectors."""
    each = [(model, spec) for model, _, spec in checked.manifest.models.each() if model.startswith("osml_")]
    return {model: _of_bundle(checked, model, spec, 10 + place) for place, (model, spec) in enumerate(each)}


@torch.no_grad()
def inference(checked: bundle.Verified, learnt: export.Weights) -> export.Weights:
    """What each model gives for its 10,000 vectors."""
    from pipelines.vectors import load_mlp

    models = checked.manifest.models
    specs: list[tuple[str, bundle.AnySpec]] = [("a", models.a), ("b", models.b), ("c", models.c)]
    result = {letter: _of_bundle(checked, letter, spec, seed) for seed, (letter, spec) in enumerate(specs)}
    policy = load_mlp({k.removeprefix("dqn.policy."): v for k, v in learnt.items() if k.startswith("dqn.policy.")})
    result["dqn"] = _two_each(policy(torch.from_numpy(uniform(len(specs), (COUNT, STATE)).astype(np.float32))).numpy())
    return result


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.parity", description="What the node must compute.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--vectors", type=Path, default=Path("tests/vectors"), help="folder of bundle-small")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    trusted = bundle.trusted_keys(args.vectors / "keys" / "trusted")
    checked = bundle.verify(args.vectors / "bundle-small", trusted=trusted)
    whole = bundle.verify(args.vectors / "bundle-whole.tar", trusted=trusted)
    learnt = learning()
    write_bytes(args.out / "learning-1000.safetensors", export.to_safetensors(learnt))
    write_bytes(args.out / "inference-10000.safetensors", export.to_safetensors(inference(checked, learnt)))
    write_bytes(args.out / "inference-osml-10000.safetensors", export.to_safetensors(osml_inference(whole)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
