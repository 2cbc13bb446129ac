"""Model-C learns from what came of its own actions in closed loop on drawn worlds (docs/worlds.md; `surefoot learn-c` drives it).

`surefootd eval --experience` writes a file a run (scheduler/learn/src/experience.rs): states as the bundle of that server scales
them, the action, the reward of OSML+ (Sec. 3.2) as the node has it, and the next state. Here they are read, put into the bounds
of the models of worlds, and Model-C goes on from the weights that acted.

The paper trains C on line on one server. Here many virtual servers run side by side, and C learns between rounds of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from models import features
from models.ddpg import Ddpg, DdpgArgs
from models.features import ACTIONS, Bound
from pipelines import params
from pipelines.errors import BadInput
from pipelines.fits import fit, fit_ddpg, fitted, holdout
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Batches
from pipelines.inputs import EXPERIENCE_BYTES, Unreadable, parse_json

F32 = NDArray[np.float32]

FORMAT, VERSION, KIND = "surefoot-experience", 1, "ddpg"
_REMEDY = "write it again with `surefootd eval --experience`"
_HELD = 10
"""One in so many transitions is held out."""
MOST_KNOWN = 2_000_000
"""Transitions that are held: 200 MB. Of four rounds on forty worlds there are 30,000 but for those of leaving alone."""


@dataclass(frozen=True)
class Experience:
    """Transitions of Model-C.

    Attributes:
        before, after: states in [0, 1] within the bounds of its maker, shape (transitions, inputs).
        action: one-hot, shape (transitions, 7).
        reward: shape (transitions,).
    """

    before: F32
    action: F32
    reward: F32
    after: F32

    def __len__(self) -> int:
        return len(self.reward)


def read(path: Path, inputs: Sequence[Bound], bundle: str) -> Experience:
    """What one run experienced: the pool and what was held back from it.

    Args:
        inputs: of the Model-C that acted.
        bundle: digest of the manifest of the bundle that it was in.
    Raises:
        BadInput: the file is damaged, or of another bundle or model.
    """
    try:
        if (size := path.stat().st_size) > EXPERIENCE_BYTES:
            raise Unreadable(f"{size} bytes, and the node writes {EXPERIENCE_BYTES} at most")
        with safe_open(path, "numpy") as file:
            about = parse_json((file.metadata() or {}).get("about", "{}"))
            parts = [
                np.concatenate([file.get_tensor(f"{of}.{name}") for of in ("pool", "held")])
                for name in ("states", "actions", "rewards", "next_states")
            ]
    except (OSError, SafetensorError, Unreadable, ValueError) as error:
        raise BadInput(f"{path}: is no experience ({error}); {_REMEDY}") from None
    wanted = {"format": FORMAT, "version": VERSION, "kind": KIND, "bundle": bundle, "inputs": [b.name for b in inputs]}
    for name, value in wanted.items():
        if not isinstance(about, dict) or about.get(name) != value:
            raise BadInput(f"{path}: field about.{name}: is not {value!r}: it is of other models; {_REMEDY}")
    found = Experience(*(np.asarray(part, dtype=np.float32) for part in parts))
    n = len(found)
    shapes = [(n, len(inputs)), (n, len(ACTIONS)), (n,), (n, len(inputs))]
    if [part.shape for part in parts] != shapes or not all(np.isfinite(part).all() for part in parts):
        raise BadInput(f"{path}: its tensors have other shapes than {shapes}, or are not finite; {_REMEDY}")
    return found


def moved(e: Experience, own: Sequence[Bound], to: Sequence[Bound]) -> Experience:
    """The same within other bounds; what leaves them is at their end, as on a node."""

    def states(x: F32) -> F32:
        raw = x.astype(np.float64) * [b.max - b.min for b in own] + [b.min for b in own]
        return features.normalise(raw, to)

    return replace(e, before=states(e.before), after=states(e.after))


def joined(parts: Sequence[Experience]) -> Experience:
    """All of them, in order."""
    return Experience(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("before", "action", "reward", "after")))


def only(e: Experience, kept: NDArray[np.int64]) -> Experience:
    """Some of the transitions."""
    return Experience(e.before[kept], e.action[kept], e.reward[kept], e.after[kept])


def balanced(e: Experience, rng: np.random.Generator) -> Experience:
    """With at most as many transitions of leaving alone as of all actions: of a run's, 96 in 100 are "idle"."""
    is_idle = e.action[:, ACTIONS.index("idle")] > 0.5
    idle = holdout.thin(np.flatnonzero(is_idle), int((~is_idle).sum()), rng)
    return only(e, np.sort(np.concatenate([np.flatnonzero(~is_idle), idle])))


@dataclass
class Known:
    """What was experienced so far: balanced as it comes, and no more than `most` of it at any time.

    Beyond that every transition has the same chance to be among those that are held.

    Attributes:
        seen: transitions that were given.
    """

    seed: int
    most: int = MOST_KNOWN
    seen: int = 0
    _parts: int = 0
    _held: Experience | None = None
    _keys: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    def add(self, e: Experience) -> None:
        rng = np.random.default_rng((self.seed, 12, self._parts))
        self._parts += 1
        self.seen += len(e)
        e = balanced(e, rng)
        keys = np.concatenate([self._keys, rng.random(len(e))])
        whole = e if self._held is None else joined([self._held, e])
        if len(whole) > self.most:
            # the least of random keys: a sample without replacement, however many parts it came in
            kept = np.sort(np.argpartition(keys, self.most)[: self.most])
            whole, keys = only(whole, kept), keys[kept]
        self._held, self._keys = whole, keys

    def __len__(self) -> int:
        return 0 if self._held is None else len(self._held)

    def all(self) -> Experience:
        if self._held is None:
            raise BadInput(f"no world has experience; {_REMEDY}")
        return self._held


def learn(c: Fitted, known: Experience, p: params.ModelC, seed: int, out: Path) -> Fitted:
    """Model-C after `updates` more steps.

    Args:
        c: the model to go on from; its hyperparameters stay, but for what `p` says.
        known: within the bounds of its inputs, and balanced.
    Raises:
        BadInput: there is less experience than a batch.
    """
    if len(known) < 2 * p.batch:
        raise BadInput(f"{len(known)} transitions, and a step takes {p.batch}; give more worlds, or lower train.c.batch")
    args = DdpgArgs(p.gamma, p.tau, p.lr_actor, p.lr_critic, p.critic_l2, p.actor_entropy, p.batch)
    torch.manual_seed(seed)
    net = Ddpg(len(c.inputs), args)
    fit_ddpg.put_into(net, fit.Start(c.weights))
    if p.gamma < 1.0:
        # As when C begins: else its updates go into finding the level of rewards, which is not that of logged transitions.
        level = float(known.reward.mean()) / (1.0 - p.gamma)
        net.move_critic_to(level, torch.from_numpy(known.before), torch.from_numpy(known.action))
    held = np.random.default_rng((seed, 10)).permutation(len(known)) % _HELD == 0

    def batches(which: NDArray[np.bool_], size: int, shuffle: bool) -> Batches:
        parts = [torch.from_numpy(part[which]) for part in (known.before, known.action, known.reward, known.after)]
        return Batches(parts, size, seed, shuffle=shuffle)

    from models.model_c import ModelC

    course = fit_ddpg.taught(ModelC(net), batches(~held, p.batch, True), batches(held, fit_ddpg.MOST_HELD, False), p, out)
    weights = fit_ddpg.checked_weights(net)
    settings = c.settings | {"hyperparameters": args.as_dict()}
    return replace(c, weights=weights, settings=settings, history=course.history, steps=c.steps + course.steps)


def save(c: Fitted, like: Path, out: Path) -> None:
    """Write Model-C with what model.json says of the one that it came from."""
    about = fitted.summary(like).model_dump(include={"model", "dataset", "campaign", "data_sha256", "plant_version"})
    fitted.save(out, c, about | {"mlflow_run_id": "", "mlflow_child_id": ""})
