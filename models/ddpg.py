"""Model-C: deep deterministic policy gradient over seven scheduling actions (OSML+, Sec. 3.2 (3)).

Four networks of 32-64-32 ReLU neurons: actor, critic and a slowly following copy of each. The actor ends in a softmax: one
probability an action; the largest is carried out.

One update on a batch (s, a, r, s'), in this order; the node's on-line learning does the same in f32
(tests/vectors/ddpg.safetensors holds five steps to compare with):

    1. y = r + gamma * critic_target(s', actor_target(s'))
    2. critic: Adam on mean((critic(s, a) - y)^2) + critic_l2 * sum of squares of the critic's weights (biases left out)
    3. actor: Adam on mean(-critic(s, p) + actor_entropy * sum(p * log(max(p, 1e-8)))), p = actor(s), with the critic from
       step 2 held fixed
    4. both targets: target <- tau * online + (1 - tau) * target

`a` is the one-hot vector of the action that was carried out, not the actor's output: what happened is one action.
The critic reads state and action side by side at its first layer.

Differences from the paper: `actor_entropy`. With the paper's loss alone the softmax saturates within some hundred updates on
whichever action is best on average, its gradient vanishes, and the actor says the same in every state ("cores_up" in 97 % of
them, on the demo's campaign); the entropy term keeps it open. 0 gives the paper's loss. The authors' program joins the action
at the critic's second layer, has no activation between the actor's layers and has five actions; the paper says ReLU and
seven, so that is what this is.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from models.features import ACTIONS
from models.mlp import Mlp


@dataclass(frozen=True)
class DdpgArgs:
    """Hyperparameters; gamma and tau are the paper's, `actor_entropy` is ours (params.yaml trains with more than 0), the others
    those of the authors' program."""

    gamma: float = 0.99
    tau: float = 0.001
    lr_actor: float = 5e-4
    lr_critic: float = 5e-3
    critic_l2: float = 0.01
    actor_entropy: float = 0.0
    batch: int = 256
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_eps: float = 1e-8

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class Actor(nn.Module):
    """State to action probabilities."""

    def __init__(self, n_state: int, n_actions: int = len(ACTIONS)) -> None:
        super().__init__()
        self.net = Mlp(n_state, n_actions)

    def forward(self, state: Tensor) -> Tensor:  # (batch, n_state), scaled to 0..1
        return torch.softmax(self.net(state), dim=-1)  # (batch, 7), rows sum to 1


class Critic(nn.Module):
    """State and action to the expected cumulative reward."""

    def __init__(self, n_state: int, n_actions: int = len(ACTIONS)) -> None:
        super().__init__()
        self.net = Mlp(n_state + n_actions, 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:  # (batch, n_state), (batch, 7)
        return self.net(torch.cat([state, action], dim=-1)).squeeze(-1)  # (batch,)

    def last_bias(self) -> nn.Parameter:
        """What every Q-value has in it."""
        return dict(self.named_parameters())["net.layers.3.bias"]


class Ddpg(nn.Module):
    """The four networks and one training step."""

    def __init__(self, n_state: int, args: DdpgArgs | None = None, n_actions: int = len(ACTIONS)) -> None:
        super().__init__()
        self.args = args or DdpgArgs()
        self.actor = Actor(n_state, n_actions)
        self.critic = Critic(n_state, n_actions)
        self.actor_target = copy.deepcopy(self.actor).requires_grad_(False)
        self.critic_target = copy.deepcopy(self.critic).requires_grad_(False)
        # walking modules for them at every step would take a sixth of its time
        self._decayed = [p for name, p in self.critic.named_parameters() if name.endswith("weight")]
        self._online = [*self.actor.parameters(), *self.critic.parameters()]
        self._targets = [*self.actor_target.parameters(), *self.critic_target.parameters()]

    def optimisers(self) -> tuple[torch.optim.Adam, torch.optim.Adam]:
        """Adam for the actor and for the critic."""
        a = self.args
        betas = (a.adam_beta1, a.adam_beta2)
        return (
            torch.optim.Adam(self.actor.parameters(), lr=a.lr_actor, betas=betas, eps=a.adam_eps, fused=True),
            torch.optim.Adam(self.critic.parameters(), lr=a.lr_critic, betas=betas, eps=a.adam_eps, fused=True),
        )

    def critic_loss(self, state: Tensor, action: Tensor, reward: Tensor, next_state: Tensor) -> Tensor:
        with torch.no_grad():
            future = self.critic_target(next_state, self.actor_target(next_state))
            wanted = reward + self.args.gamma * future  # (batch,)
        error = self.critic(state, action) - wanted
        return error.pow(2).mean() + self.args.critic_l2 * sum(w.pow(2).sum() for w in self._decayed)

    def actor_loss(self, state: Tensor) -> Tensor:
        p = self.actor(state)  # (batch, 7)
        negative_entropy = (p * p.clamp(min=1e-8).log()).sum(dim=-1)
        return (self.args.actor_entropy * negative_entropy - self.critic(state, p)).mean()

    @torch.no_grad()
    def start_critic_at(self, q_value: float) -> None:
        """Set the last bias of the critic and its target, so that Q-values start around there."""
        for critic in (self.critic, self.critic_target):
            critic.last_bias().fill_(q_value)

    @torch.no_grad()
    def move_critic_to(self, q_value: float, state: Tensor, action: Tensor) -> None:
        """Shift the critic and its target, so that their mean Q-values of these states and actions are this."""
        for critic in (self.critic, self.critic_target):
            critic.last_bias().add_(q_value - critic(state, action).mean())

    @torch.no_grad()
    def follow(self) -> None:
        """Move both targets a little towards the online networks."""
        for p, q in zip(self._online, self._targets, strict=True):
            q.copy_(self.args.tau * p + (1.0 - self.args.tau) * q)

    def update(
        self,
        optimisers: tuple[torch.optim.Adam, torch.optim.Adam],
        state: Tensor,
        action: Tensor,
        reward: Tensor,
        next_state: Tensor,
    ) -> tuple[float, float]:
        """One step on one batch; returns the losses of critic and actor before it."""
        adam_actor, adam_critic = optimisers
        critic_loss = self.critic_loss(state, action, reward, next_state)
        adam_critic.zero_grad()
        critic_loss.backward()
        adam_critic.step()
        actor_loss = self.actor_loss(state)
        adam_actor.zero_grad()
        actor_loss.backward()
        adam_actor.step()
        self.follow()
        return float(critic_loss.detach()), float(actor_loss.detach())

    def named_tensors(self) -> dict[str, Tensor]:
        """Weights under the names of a bundle: `actor.layers.0.weight`, `critic_target.layers.3.bias`, ..."""
        return {name.replace(".net.", "."): p.detach().clone() for name, p in self.named_parameters()}

    def load_named(self, tensors: dict[str, Tensor]) -> None:
        """Inverse of `named_tensors`; names and shapes must match."""
        own = {name.replace(".net.", "."): p for name, p in self.named_parameters()}
        if set(own) != set(tensors):
            raise ValueError(f"Model-C: tensors differ: {sorted(set(own) ^ set(tensors))}")
        with torch.no_grad():
            for name, p in own.items():
                if p.shape != tensors[name].shape:
                    raise ValueError(f"Model-C: {name} has shape {tuple(tensors[name].shape)}, expected {tuple(p.shape)}")
                p.copy_(tensors[name])
