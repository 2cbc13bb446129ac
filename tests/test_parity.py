"""The committed figures that the node is held to are what today's Python code gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from models import export
from pipelines import parity
from pipelines.artefact import bundle

VECTORS = Path(__file__).parent / "vectors"


def test_the_generator_is_splitmix64() -> None:
    """Published outputs for seed 1234567; scheduler/learn/src/rng.rs has the same test."""
    assert parity.numbers(1_234_567, 2).tolist() == [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
    exact = [int(z) * 1999 >> 64 for z in parity.numbers(5, 1000).tolist()]
    assert parity.below(5, 1999, 1000).tolist() == exact


def test_committed_inferences_hold() -> None:
    learnt = export.read(VECTORS / "learning-1000.safetensors")
    checked = bundle.verify(VECTORS / "bundle-small", trusted=bundle.trusted_keys(VECTORS / "keys" / "trusted"))
    given, made = export.read(VECTORS / "inference-10000.safetensors"), parity.inference(checked, learnt)
    assert set(given) == set(made) == {"a", "b", "c", "dqn"}
    for model, outputs in given.items():
        assert len(outputs) == parity.COUNT
        np.testing.assert_allclose(made[model], outputs, atol=1e-5, rtol=0, err_msg=model)


def test_committed_inferences_of_osml_hold() -> None:
    """All five of OSML's models of the bundle that has them."""
    checked = bundle.verify(VECTORS / "bundle-whole.tar", trusted=bundle.trusted_keys(VECTORS / "keys" / "trusted"))
    given, made = export.read(VECTORS / "inference-osml-10000.safetensors"), parity.osml_inference(checked)
    assert set(given) == set(made) == {"osml_a", "osml_ap", "osml_b", "osml_bp", "osml_c"}
    for model, outputs in given.items():
        assert outputs.shape == (parity.COUNT, 1 if model == "osml_bp" else 2)
        np.testing.assert_allclose(made[model], outputs, atol=1e-5, rtol=0, err_msg=model)


def test_committed_learning_holds() -> None:
    """Learning of both kinds leads to networks that give what the committed ones give."""
    torch.set_num_threads(1)
    given, made = export.read(VECTORS / "learning-1000.safetensors"), parity.learning()
    assert set(given) == set(made)
    state = parity.uniform(9, (1000, parity.STATE)).astype(np.float32)
    action = np.eye(7, dtype=np.float32)[np.arange(1000) % 7]
    both = np.hstack([state, action])
    cases = [("dqn.policy.", state), ("dqn.target.", state)]
    for kind in parity.DDPG:
        cases += [(f"{kind}.{net}{copy}.", x) for net, x in (("actor", state), ("critic", both)) for copy in ("", "_target")]
    for prefix, x in cases:
        ours, theirs = (export.forward(w, x, prefix) for w in (made, given))
        np.testing.assert_allclose(ours, theirs, atol=1e-3, rtol=1e-3, err_msg=prefix)
    for kind in (*parity.DDPG, "dqn"):
        np.testing.assert_allclose(made[f"{kind}.losses"], given[f"{kind}.losses"], rtol=1e-3, atol=1e-3, err_msg=kind)
