"""Test vectors with which the node's Rust code proves that it computes what PyTorch computes.

    python -m pipelines.vectors BUNDLE OUT.json [--count N]    inputs and outputs of a bundle's models
    python -m pipelines.vectors --fixtures tests/vectors       the committed bundles, vectors of the small one, DDPG and DQN steps
    python -m pipelines.vectors --dqn FILE                     the DQN steps alone

Inference vectors (JSON): for each model `cases` of `raw` inputs (natural units, some outside the bounds), `normalised` inputs
(f32), `network` (what the network gives, f32; probabilities for Model-C) and, for A and B, `outputs` (natural units). Agreement
is judged on `normalised` and `network`: difference <= 1e-5. `doubt.json` has the same, with `strangeness`, of a bundle with
intervals and a strangeness score.

DDPG vectors (safetensors): `initial.*` weights of the four networks, `batch.K.{state,action,reward,next_state}` for five
updates, `after.1.*` and `after.5.*` weights, `loss.critic` and `loss.actor` [5]. Hyperparameters are in the metadata, as JSON
text under the key `args`. The update is written out in models/ddpg.py.

DQN vectors (safetensors): `initial.{policy,target}.*`, `batch.K.{state,action,reward,next_state}` for five updates (action
numbers as f32), `after.1.*` (the policy has moved, the target not), `after.3.*` (the target was copied), `after.5.*`, and
`loss` [5], the loss before each update. Metadata as above; the update is written out in models/dqn.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray
from safetensors.numpy import save as save_safetensors
from torch import Tensor

from models import export, intervals, relative
from models.ddpg import Ddpg, DdpgArgs
from models.dqn import Dqn, DqnArgs
from models.features import (
    ACTIONS,
    MODEL_A_INPUTS,
    MODEL_A_OUTPUTS,
    MODEL_B_INPUTS,
    MODEL_C_INPUTS,
    Bound,
    PlatformLimits,
    Scale,
    make_bounds,
    natural,
    normalise,
)
from models.mlp import Mlp
from models.osml_a import ALONE_INPUTS, HIDDEN
from models.osml_b import OUTPUTS as OSML_B_OUTPUTS
from models.osml_c import ACTIONS as OSML_C_ACTIONS
from models.osml_c import INPUTS as OSML_C_INPUTS
from pipelines.artefact import bundle
from pipelines.artefact.keys import private_key
from pipelines.errors import PipelineError
from pipelines.fits import strange
from pipelines.io import canonical_json, write_bytes

DDPG_STEPS = 5
DDPG_BATCH = 32
DQN_STEPS = 5
DQN_BATCH = 32


def _as_torch(weights: export.Weights) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}


def load_mlp(weights: export.Weights) -> Mlp:
    shapes = export.layer_shapes(weights)
    net = Mlp(shapes[0][1], shapes[-1][0], hidden=[rows for rows, _ in shapes[:-1]])
    net.load_state_dict(_as_torch(weights))
    return net.eval()


def load_ddpg(weights: export.Weights, args: DdpgArgs | None = None) -> Ddpg:
    net = Ddpg(export.layer_shapes(weights, "actor.")[0][1], args)
    net.load_named(_as_torch(weights))
    return net


def random_inputs(rng: np.random.Generator, inputs: Sequence[bundle.InputSpec], count: int) -> NDArray[np.float64]:
    """Values in the bounds and up to a fifth of the range beyond them, so that clipping is exercised."""
    low = np.array([i.min for i in inputs])
    span = np.array([i.max - i.min for i in inputs])
    return low + span * rng.uniform(-0.2, 1.2, size=(count, len(inputs)))


@torch.no_grad()
def inference_vectors(checked: bundle.Verified, count: int, seed: int = 1) -> dict[str, Any]:
    """Inputs and outputs of Models A, B and of C's actor (OSML+)."""
    rng = np.random.default_rng(seed)
    result: dict[str, Any] = {"manifest_sha256": checked.manifest_sha256, "tolerance": 1e-5, "models": {}}
    for letter, spec in (("a", checked.manifest.models.a), ("b", checked.manifest.models.b), ("c", checked.manifest.models.c)):
        bounds = [Bound(i.name, i.min, i.max) for i in spec.inputs]
        raw = random_inputs(rng, spec.inputs, count)
        scaled = normalise(raw, bounds)
        weights = checked.weights(letter)
        if isinstance(spec, bundle.MlpSpec):
            network = load_mlp(weights)(torch.from_numpy(scaled)).numpy()
            outputs = natural(network, [Scale(o.name, o.scale, o.offset) for o in spec.outputs])
        else:
            network = load_ddpg(weights).actor(torch.from_numpy(scaled)).numpy()
            outputs = network.astype(np.float64)
        result["models"][letter] = {
            "inputs": [b.name for b in bounds],
            "outputs": [o.name for o in spec.outputs] if isinstance(spec, bundle.MlpSpec) else spec.actions,
            "cases": [
                {
                    "raw": raw[k].tolist(),
                    "normalised": scaled[k].astype(float).tolist(),
                    "network": network[k].astype(float).tolist(),
                    "outputs": outputs[k].tolist(),
                }
                for k in range(count)
            ],
        }
    return result


def relative_vectors(count: int = 120, seed: int = 13) -> list[dict[str, Any]]:
    """Quantities and the inputs that are computed of them (models/relative.py); null where a quantity is unknown."""
    rng = np.random.default_rng(seed)
    table = relative.table()
    names = sorted({q for i in table.values() for q in i.quantities})
    cases = []
    for k in range(count):
        drawn = {name: float(np.exp(rng.uniform(-7.0, 14.0))) for name in names}
        quantities: dict[str, float | None] = dict(drawn)
        for name in rng.choice(names, size=k % 4, replace=False):
            quantities[str(name)] = 0.0 if k % 2 else None

        def of(known: relative.Relative, quantities: dict[str, float | None] = quantities) -> float | None:
            if any(quantities[q] is None for q in known.quantities):
                return None
            return float(known.of(lambda q: np.array([quantities[q]], dtype=np.float64))[0])

        cases.append({"quantities": quantities, "inputs": {name: of(i) for name, i in table.items()}})
    return cases


def ddpg_vectors(seed: int = 7) -> bytes:
    """Five updates on fixed batches, as safetensors."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    args = DdpgArgs(batch=DDPG_BATCH, actor_entropy=0.05)
    n_state = len(MODEL_C_INPUTS)
    net = Ddpg(n_state, args)
    tensors: dict[str, NDArray[np.float32]] = {}

    def keep(prefix: str) -> None:
        for name, value in net.named_tensors().items():
            tensors[f"{prefix}.{name}"] = value.numpy()

    keep("initial")
    optimisers = net.optimisers()
    losses = []
    for k in range(DDPG_STEPS):
        batch = {
            "state": rng.random((DDPG_BATCH, n_state)),
            "action": np.eye(len(ACTIONS))[rng.integers(0, len(ACTIONS), DDPG_BATCH)],
            "reward": rng.uniform(0.0, 3.0, DDPG_BATCH),
            "next_state": rng.random((DDPG_BATCH, n_state)),
        }
        for name, value in batch.items():
            tensors[f"batch.{k}.{name}"] = value.astype(np.float32)
        state, action, reward, next_state = (torch.from_numpy(tensors[f"batch.{k}.{name}"]) for name in batch)
        losses.append(net.update(optimisers, state, action, reward, next_state))
        if k in (0, DDPG_STEPS - 1):
            keep(f"after.{k + 1}")
    tensors["loss.critic"] = np.array([c for c, _ in losses], dtype=np.float32)
    tensors["loss.actor"] = np.array([a for _, a in losses], dtype=np.float32)
    metadata = {"args": json.dumps(args.as_dict(), sort_keys=True), "steps": str(DDPG_STEPS)}
    return save_safetensors({k: np.ascontiguousarray(tensors[k]) for k in sorted(tensors)}, metadata)


def dqn_vectors(seed: int = 9) -> bytes:
    """Five updates on fixed batches, the target copied after the third, as safetensors."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    args = DqnArgs(batch=DQN_BATCH, copy_every=3)
    n_state = len(OSML_C_INPUTS)
    net = Dqn(n_state, len(OSML_C_ACTIONS), args)
    tensors: dict[str, NDArray[np.float32]] = {}

    def keep(prefix: str) -> None:
        for name, value in net.named_tensors().items():
            tensors[f"{prefix}.{name}"] = value.numpy()

    keep("initial")
    optimiser = net.optimiser()
    losses = []
    for k in range(DQN_STEPS):
        batch = {
            "state": rng.random((DQN_BATCH, n_state)),
            "action": rng.integers(0, len(OSML_C_ACTIONS), DQN_BATCH),
            "reward": rng.uniform(-8.0, 8.0, DQN_BATCH),
            "next_state": rng.random((DQN_BATCH, n_state)),
        }
        for name, value in batch.items():
            tensors[f"batch.{k}.{name}"] = value.astype(np.float32)
        state, action, reward, next_state = (torch.from_numpy(tensors[f"batch.{k}.{name}"]) for name in batch)
        losses.append(net.update(optimiser, state, action.long(), reward, next_state))
        if k + 1 in (1, args.copy_every, DQN_STEPS):
            keep(f"after.{k + 1}")
    tensors["loss"] = np.array(losses, dtype=np.float32)
    metadata = {"args": json.dumps(args.as_dict(), sort_keys=True), "steps": str(DQN_STEPS)}
    return save_safetensors({k: np.ascontiguousarray(tensors[k]) for k in sorted(tensors)}, metadata)


def small_bundle(seed: int = 11) -> bundle.BundleSpec:
    """A bundle of the real shapes with random weights; what it predicts means nothing."""
    torch.manual_seed(seed)
    platform = {"name": "fixture-36x20", "cores": 36.0, "core_step": 1.0, "ways": 20, "mb_per_way": 2.25, "mba": False}
    seen = {
        "ipc": (0.1, 2.5),
        "llc_misses_per_s": (0.0, 2.0e8),
        "mbl_mbps": (0.0, 4.0e4),
        "virt_mem_mb": (300.0, 9000.0),
        "res_mem_mb": (100.0, 6000.0),
        "core_freq_mhz": (2300.0, 3600.0),
        "nb_mbl_mbps": (0.0, 3.0e4),
    }
    limits = PlatformLimits.from_manifest(platform)
    ddpg = Ddpg(len(MODEL_C_INPUTS))
    # The last layers start near 0 in PyTorch; wider ones make the vectors sensitive to every layer.
    with torch.no_grad():
        for parameter in ddpg.actor.net.layers[-1].parameters():
            parameter.mul_(8.0)
    scales = {
        "oaa_cores": (6.0, 11.0),
        "oaa_ways": (4.0, 8.0),
        "oaa_mbl_mbps": (5200.0, 9100.0),
        "rcliff_cores": (6.0, 9.0),
        "rcliff_ways": (4.0, 6.0),
    }
    return bundle.BundleSpec(
        feature_set="full",
        platform=platform,
        services={
            "moses": {"qos_target_ms": 10.0, "max_load_rps": 3000.0},
            "xapian": {"qos_target_ms": 8.0, "max_load_rps": 6800.0},
        },
        a=bundle.TrainedMlp(
            {k: v.numpy() for k, v in Mlp(len(MODEL_A_INPUTS), len(MODEL_A_OUTPUTS)).state_dict().items()},
            make_bounds(MODEL_A_INPUTS, seen, limits),
            [Scale(name, *scales[name]) for name in MODEL_A_OUTPUTS],
        ),
        b=bundle.TrainedMlp(
            {k: v.numpy() for k, v in Mlp(len(MODEL_B_INPUTS), 1).state_dict().items()},
            make_bounds(MODEL_B_INPUTS, seen, limits),
            [Scale("qos", 0.7, 1.1)],
            qos_cap=2.0,
        ),
        c=bundle.TrainedDdpg(
            {k: v.numpy() for k, v in ddpg.named_tensors().items()},
            make_bounds(MODEL_C_INPUTS, seen, limits),
            DdpgArgs().as_dict(),
            [a for a in ACTIONS if not a.startswith("mba")],
        ),
        provenance={"software": {"note": "test fixture, random weights"}},
    )


def whole_bundle(seed: int = 12) -> bundle.BundleSpec:
    """The small bundle with all that a bundle may hold besides: OSML's models and a card."""
    small = small_bundle()
    torch.manual_seed(seed)
    bounds = {b.name: b for b in (*small.b.inputs, *small.c.inputs, Bound("qos_slowdown", 0.0, 1.0))}
    scales = {s.name: s for s in small.a.outputs} | {"qos_slowdown": Scale("qos_slowdown", 0.06, 0.07)}
    scales |= {name: Scale(name, 1.5, 2.0) for name in OSML_B_OUTPUTS}

    def mlp(inputs: Sequence[str], outputs: Sequence[str]) -> bundle.TrainedMlp:
        net = Mlp(len(inputs), len(outputs), HIDDEN)
        weights = {k: v.numpy() for k, v in net.state_dict().items()}
        return bundle.TrainedMlp(weights, [bounds[name] for name in inputs], [scales[name] for name in outputs])

    dqn = Dqn(len(OSML_C_INPUTS), len(OSML_C_ACTIONS))
    osml = bundle.TrainedOsml(
        a=mlp(ALONE_INPUTS, MODEL_A_OUTPUTS),
        ap=mlp(MODEL_A_INPUTS, MODEL_A_OUTPUTS),
        b=mlp((*MODEL_A_INPUTS, "qos_slowdown"), OSML_B_OUTPUTS),
        bp=mlp(MODEL_B_INPUTS, ("qos_slowdown",)),
        c=bundle.TrainedDqn(
            {k: v.numpy() for k, v in dqn.named_tensors().items()},
            [bounds[name] for name in OSML_C_INPUTS],
            dqn.args.as_dict(),
            latency_cap=1000.0,
        ),
    )
    return replace(small, osml=osml, card="# Test fixture\n\nRandom weights – what they predict means nothing.\n")


def doubt_bundle(seed: int = 14) -> bundle.BundleSpec:
    """The small bundle with intervals and a strangeness score."""
    small = small_bundle()
    torch.manual_seed(seed)

    def with_ends(model: bundle.TrainedMlp) -> bundle.TrainedMlp:
        scales = {s.name: s for s in model.outputs}
        names = intervals.with_ends(list(scales))
        net = Mlp(len(model.inputs), len(names))
        outputs = [replace(scales[intervals.central(name)], name=name) for name in names]
        return replace(model, weights={k: v.numpy() for k, v in net.state_dict().items()}, outputs=outputs)

    a, b = with_ends(small.a), with_ends(small.b)
    rows = np.random.default_rng(seed).random((400, len(a.inputs))).astype(np.float32)
    return replace(small, a=replace(a, weights={**a.weights, **strange.measure(rows)}), b=b, serial=1_700_000_000)


@torch.no_grad()
def doubt_vectors(count: int = 24, seed: int = 15) -> dict[str, Any]:
    """Raw inputs of a bundle with intervals and a score, `outputs` of Models A and B, and the `strangeness` of A's inputs."""
    rng = np.random.default_rng(seed)
    spec = doubt_bundle()
    result: dict[str, Any] = {}
    for letter, model in (("a", spec.a), ("b", spec.b)):
        raw = random_inputs(rng, [bundle.InputSpec(name=i.name, min=i.min, max=i.max) for i in model.inputs], count)
        x = normalise(raw, list(model.inputs))
        network = load_mlp({k: v for k, v in model.weights.items() if not strange.is_strangeness(k)})(torch.from_numpy(x)).numpy()
        scores = strange.scores(model.weights, x).tolist() if letter == "a" else [None] * count
        result[letter] = {
            "inputs": [i.name for i in model.inputs],
            "outputs": [o.name for o in model.outputs],
            "cases": [
                {"raw": r.tolist(), "outputs": y.tolist(), "strangeness": score}
                for r, y, score in zip(raw, natural(network, list(model.outputs)), scores, strict=True)
            ],
        }
    return result


def write_fixtures(folder: Path) -> None:
    """The committed fixtures; the test key there is known to everyone and must never be trusted on a node."""
    key_file = folder / "keys" / "TEST-ONLY-signing.pem"
    if not key_file.exists():
        key = Ed25519PrivateKey.generate()
        from cryptography.hazmat.primitives import serialization as s

        write_bytes(key_file, key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    key = private_key(key_file.read_bytes(), str(key_file))  # everyone may read it
    bundle.trust(key.public_key(), "TEST-ONLY", folder / "keys" / "trusted")
    checked = bundle.build(small_bundle(), folder / "bundle-small", key)
    write_bytes(folder / "bundle-whole.tar", bundle.to_tar(bundle.assemble(whole_bundle(), key)))
    write_bytes(folder / "bundle-doubt.tar", bundle.to_tar(bundle.assemble(doubt_bundle(), key)))
    write_bytes(folder / "doubt.json", canonical_json(doubt_vectors()))
    write_bytes(folder / "inference.json", canonical_json(inference_vectors(checked, 24)))
    write_bytes(folder / "relative.json", canonical_json(relative_vectors()))
    write_bytes(folder / "ddpg.safetensors", ddpg_vectors())
    write_bytes(folder / "dqn.safetensors", dqn_vectors())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.vectors", description="Test vectors for the node's models.")
    parser.add_argument("bundle", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--fixtures", type=Path, metavar="DIR")
    parser.add_argument("--dqn", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    try:
        if args.fixtures:
            write_fixtures(args.fixtures)
            return 0
        if args.dqn:
            write_bytes(args.dqn, dqn_vectors())
            return 0
        if args.bundle is None or args.out is None:
            parser.error("BUNDLE and OUT.json, or --fixtures DIR, or --dqn FILE")
        write_bytes(args.out, canonical_json(inference_vectors(bundle.verify(args.bundle), args.count)))
    except PipelineError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
