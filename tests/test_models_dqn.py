"""The DQN of OSML's Model-C: its update, its actions, its reward and its pool."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load as load_safetensors

from models import osml_c
from models.dqn import Dqn, DqnArgs, Replay, choose
from pipelines import vectors

VECTORS = Path(__file__).parent / "vectors" / "dqn.safetensors"
N = len(osml_c.ACTIONS)


def test_committed_dqn_vectors_hold() -> None:
    """Five updates of today's code give the committed weights."""
    given, made = load_safetensors(VECTORS.read_bytes()), load_safetensors(vectors.dqn_vectors())
    assert set(given) == set(made)
    for name, value in given.items():
        np.testing.assert_allclose(made[name], value, atol=1e-5, err_msg=name)


def test_the_update_is_the_one_written_down() -> None:
    """Steps 1 to 4 of the module's text, in NumPy, give the committed weights: nothing hides in the optimiser."""
    given = {k: v.astype(np.float64) for k, v in load_safetensors(VECTORS.read_bytes()).items()}
    with safe_open(VECTORS, framework="numpy") as file:
        args = DqnArgs(**json.loads(file.metadata()["args"]))
    nets = {n: {k.split(".", 2)[2]: v for k, v in given.items() if k.startswith(f"initial.{n}.")} for n in ("policy", "target")}
    policy, target = nets["policy"], nets["target"]
    v = {k: np.zeros_like(w) for k, w in policy.items()}
    for k in range(5):
        s, a, r, s2 = (given[f"batch.{k}.{n}"] for n in ("state", "action", "reward", "next_state"))
        rows, actions = np.arange(len(a)), a.astype(int)
        wanted = r + args.gamma * _layers(target, s2)[-1].max(axis=1)
        acts = _layers(policy, s)
        error = acts[-1][rows, actions] - wanted
        assert np.mean(error**2) == pytest.approx(given["loss"][k], rel=1e-5)
        back = np.zeros_like(acts[-1])
        back[rows, actions] = 2.0 * error / len(a)
        for n in (3, 2, 1, 0):
            grads = {f"layers.{n}.weight": back.T @ acts[n], f"layers.{n}.bias": back.sum(axis=0)}
            back = (back @ policy[f"layers.{n}.weight"]) * (acts[n] > 0)
            for name, g in grads.items():
                v[name] = args.rms_alpha * v[name] + (1 - args.rms_alpha) * g**2
                policy[name] = policy[name] - args.lr * g / (np.sqrt(v[name]) + args.rms_eps)
        if (k + 1) % args.copy_every == 0:
            target = dict(policy)
        for net, weights in (("policy", policy), ("target", target)):
            for name, value in weights.items():
                if (want := given.get(f"after.{k + 1}.{net}.{name}")) is not None:
                    np.testing.assert_allclose(value, want, atol=2e-5, err_msg=f"step {k + 1}, {net}.{name}")


def _layers(weights: dict[str, np.ndarray], x: np.ndarray) -> list[np.ndarray]:
    acts = [x]
    for n in range(4):
        x = x @ weights[f"layers.{n}.weight"].T + weights[f"layers.{n}.bias"]
        x = np.maximum(x, 0.0) if n < 3 else x
        acts.append(x)
    return acts


def test_the_target_is_copied_whole_and_only_then() -> None:
    given = load_safetensors(VECTORS.read_bytes())
    for name in (n.removeprefix("initial.policy.") for n in given if n.startswith("initial.policy.")):
        assert np.array_equal(given[f"after.1.target.{name}"], given[f"initial.target.{name}"])
        assert np.array_equal(given[f"after.3.target.{name}"], given[f"after.3.policy.{name}"])
        assert np.array_equal(given[f"after.5.target.{name}"], given[f"after.3.target.{name}"])
        assert not np.array_equal(given[f"after.5.policy.{name}"], given[f"after.3.policy.{name}"])


def test_the_49_actions_are_the_papers() -> None:
    """<m, n> with m, n in -3..3, each once; number and change lead to each other."""
    assert N == 49
    assert set(osml_c.ACTIONS) == {(m, n) for m in range(-3, 4) for n in range(-3, 4)}
    m, n = np.array(osml_c.ACTIONS).T
    assert np.array_equal(osml_c.action_number(m, n), np.arange(49))
    assert osml_c.ACTIONS[osml_c.IDLE] == (0, 0)
    with pytest.raises(ValueError, match="at most 3"):
        osml_c.action_number(np.array([4]), np.array([0]))


def test_the_reward_is_the_papers() -> None:
    """Faster pays, slower costs, and so does every unit taken; what is given back pays."""
    action = osml_c.action_number(np.array([2, -1, 0, 3]), np.array([1, 0, 0, 3]))
    got = osml_c.reward(np.array([10.0, 4.0, 5.0, 5.0]), np.array([4.0, 10.0, 5.0, 5.0]), action)
    # 6 ms faster for 3 units; 6 ms slower, 1 unit given back; nothing; 6 units for nothing
    np.testing.assert_allclose(got, [np.log(7) - 3, -np.log(7) + 1, 0.0, -6.0])


def test_epsilon_is_the_share_of_random_actions() -> None:
    """5 % explore, 95 % take the best: not the other way round, and never what the machine has no room for."""
    rng = np.random.default_rng(1)
    q = np.zeros(N, np.float32)
    q[7], q[9] = 1.0, 2.0
    possible = np.ones(N, bool)
    possible[9] = False
    taken = np.array([choose(q, possible, 0.05, rng) for _ in range(4000)])
    assert (taken == 7).mean() == pytest.approx(0.95, abs=0.02)
    assert 9 not in taken
    assert len(np.unique(taken)) > 40
    assert {choose(q, possible, 0.0, rng) for _ in range(200)} == {7}
    with pytest.raises(ValueError, match="no action is possible"):
        choose(q, np.zeros(N, bool), 0.05, rng)


def test_the_network_learns_which_action_pays() -> None:
    """Drawn from the pool, a rule that depends on the state is found: action 0 pays below 0.5, action 2 above."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    state = rng.random((4000, 2)).astype(np.float32)
    action = rng.integers(0, 3, 4000)
    reward = (action == np.where(state[:, 0] < 0.5, 0, 2)).astype(np.float32)
    pool = Replay(4000, 2)
    pool.extend(state, action, reward, state)
    net = Dqn(2, 3, DqnArgs(gamma=0.0, batch=64))
    optimiser = net.optimiser()
    for _ in range(600):
        net.update(optimiser, *pool.draw(64, rng))
    with torch.no_grad():
        best = net.policy(torch.from_numpy(state)).argmax(dim=1).numpy()
    far = np.abs(state[:, 0] - 0.5) > 0.1
    assert (best[far] == np.where(state[far, 0] < 0.5, 0, 2)).all()


def test_the_pool_forgets_the_oldest() -> None:
    pool = Replay(5, 1)
    with pytest.raises(ValueError, match="empty"):
        pool.draw(1, np.random.default_rng(1))
    for first, count in ((0, 3), (3, 4), (7, 1), (8, 12)):
        x = np.arange(first, first + count, dtype=np.float32)
        pool.extend(x[:, None], x.astype(np.int64), x, x[:, None] + 1)
        state, action, reward, next_state = pool.draw(400, np.random.default_rng(1))
        last = first + count
        assert set(action.tolist()) == set(range(max(0, last - 5), last))
        assert torch.equal(state[:, 0], reward)
        assert torch.equal(next_state[:, 0], reward + 1)


def test_weights_that_do_not_fit_are_an_error() -> None:
    """A file of another network is refused and leaves the weights as they were; nothing runs on with random ones."""
    a, b = Dqn(5, N), Dqn(5, N)
    b.load_named(a.named_tensors())
    assert all(torch.equal(v, b.named_tensors()[k]) for k, v in a.named_tensors().items())
    other = Dqn(6, N)
    before = other.named_tensors()
    with pytest.raises(ValueError, match="shape"):
        other.load_named(a.named_tensors())
    assert all(torch.equal(v, before[k]) for k, v in other.named_tensors().items())
    with pytest.raises(ValueError, match="tensors differ"):
        b.load_named({k: v for k, v in a.named_tensors().items() if k != "policy.layers.0.bias"})
