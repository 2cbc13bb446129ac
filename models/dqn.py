"""Deep Q-network with a target network and an experience pool (OSML, Sec. 4.3; Mnih et al., Nature 518, 2015).

Two networks of 30-30-30 ReLU neurons, `policy` and `target`; a state goes in, one expected return an action comes out.

One update on a batch (s, a, r, s'), in this order; the node's on-line learning does the same in f32
(tests/vectors/dqn.safetensors holds five steps to compare with):

    1. y = r + gamma * max over a' of target(s')[a']
    2. loss = mean((policy(s)[a] - y)^2), its gradient g with y held fixed
    3. policy: RMSProp, v <- alpha * v + (1 - alpha) * g^2, w <- w - lr * g / (sqrt(v) + eps), v = 0 at the start
    4. updates <- updates + 1; where `copy_every` divides it, target <- policy

`a` is the number of the action that was carried out, which a machine without room may have made smaller than the one chosen.

The paper gives the layers, the loss, RMSProp, 200 tuples a step, and 5 % random actions; gamma, the rate and the copies are
those of the authors' program. Differences: `eps` stands outside the root, as in PyTorch, where 1e-5 is what the program's 1e-10
is inside (far below it, rounding decides which way a weight without a gradient moves); on a node the pool keeps as many tuples as
Model-C of OSML+ does (the authors' program keeps 50, fewer than one batch of the paper). A training's pool keeps all that it
drew.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.mlp import Mlp

HIDDEN = (30, 30, 30)


@dataclass(frozen=True)
class DqnArgs:
    """Hyperparameters."""

    gamma: float = 0.9
    lr: float = 1e-3
    rms_alpha: float = 0.9
    rms_eps: float = 1e-5
    copy_every: int = 100
    batch: int = 200
    replay: int = 76_800
    epsilon: float = 0.05  # share of random actions, not of greedy ones

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class Dqn(nn.Module):
    """Both networks and one training step."""

    def __init__(self, n_state: int, n_actions: int, args: DqnArgs | None = None) -> None:
        super().__init__()
        self.args = args or DqnArgs()
        self.policy = Mlp(n_state, n_actions, HIDDEN)
        self.target = copy.deepcopy(self.policy).requires_grad_(False)
        self.updates = 0

    def optimiser(self) -> torch.optim.RMSprop:
        a = self.args
        return torch.optim.RMSprop(self.policy.parameters(), lr=a.lr, alpha=a.rms_alpha, eps=a.rms_eps)

    def loss(self, state: Tensor, action: Tensor, reward: Tensor, next_state: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = reward + self.args.gamma * self.target(next_state).amax(dim=1)  # (batch,)
        said = self.policy(state).gather(1, action[:, None]).squeeze(1)  # (batch,)
        return (said - wanted).pow(2).mean()

    def update(self, optimiser: torch.optim.RMSprop, state: Tensor, action: Tensor, reward: Tensor, next_state: Tensor) -> float:
        """One step on one batch; `action` holds numbers (int64). Returns the loss before it."""
        loss = self.loss(state, action, reward, next_state)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        self.updates += 1
        if self.updates % self.args.copy_every == 0:
            self.copy_to_target()
        return float(loss.detach())

    @torch.no_grad()
    def copy_to_target(self) -> None:
        for p, q in zip(self.policy.parameters(), self.target.parameters(), strict=True):
            q.copy_(p)

    @torch.no_grad()
    def start_at(self, q_value: float) -> None:
        """Set the last biases of both networks, so that Q-values start around there."""
        for net in (self.policy, self.target):
            bias = net.layers[-1].bias
            assert isinstance(bias, Tensor)
            bias.fill_(q_value)

    def named_tensors(self) -> dict[str, Tensor]:
        """Weights under the names of a bundle: `policy.layers.0.weight`, `target.layers.3.bias`, ..."""
        return {name: p.detach().clone() for name, p in self.named_parameters()}

    def load_named(self, tensors: dict[str, Tensor]) -> None:
        """Inverse of `named_tensors`; names and shapes must match."""
        own = dict(self.named_parameters())
        if set(own) != set(tensors):
            raise ValueError(f"DQN: tensors differ: {sorted(set(own) ^ set(tensors))}")
        for name, p in own.items():
            if p.shape != tensors[name].shape:
                raise ValueError(f"DQN: {name} has shape {tuple(tensors[name].shape)}, expected {tuple(p.shape)}")
        with torch.no_grad():
            for name, p in own.items():
                p.copy_(tensors[name])


def choose(q: NDArray[np.float32], possible: NDArray[np.bool_], epsilon: float, rng: np.random.Generator) -> int:
    """The possible action with the largest Q-value, or with probability `epsilon` any possible one."""
    numbers = np.flatnonzero(possible)
    if numbers.size == 0:
        raise ValueError("no action is possible; doing nothing always is, so the mask is wrong")
    if rng.random() < epsilon:
        return int(rng.choice(numbers))
    return int(numbers[np.argmax(q[numbers])])


class Replay:
    """The experience pool: the last `capacity` transitions; a batch is drawn with replacement."""

    def __init__(self, capacity: int, n_state: int) -> None:
        if capacity < 1:
            raise ValueError(f"experience pool of {capacity} transitions; want at least 1")
        self.capacity, self.held, self._next = capacity, 0, 0
        self._state = np.zeros((capacity, n_state), np.float32)
        self._next_state = np.zeros((capacity, n_state), np.float32)
        self._action = np.zeros(capacity, np.int64)
        self._reward = np.zeros(capacity, np.float32)

    def extend(
        self,
        state: NDArray[np.float32],
        action: NDArray[np.int64],
        reward: NDArray[np.float32],
        next_state: NDArray[np.float32],
    ) -> None:
        """Remember these transitions, one a row; beyond `capacity` the oldest go."""
        kept = slice(max(0, len(action) - self.capacity), None)
        at = (self._next + np.arange(len(action[kept]))) % self.capacity
        for pool, rows in (
            (self._state, state),
            (self._action, action),
            (self._reward, reward),
            (self._next_state, next_state),
        ):
            pool[at] = rows[kept]
        self._next = int(self._next + len(at)) % self.capacity
        self.held = min(self.capacity, self.held + len(at))

    def draw(self, batch: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """State, action, reward and next state of `batch` transitions."""
        if self.held == 0:
            raise ValueError("the experience pool is empty; remember transitions first")
        at = rng.integers(0, self.held, batch)
        parts = (self._state[at], self._action[at], self._reward[at], self._next_state[at])
        state, action, reward, next_state = (torch.from_numpy(part) for part in parts)
        return state, action, reward, next_state
