"""Networks, features and scaling; PyTorch, NumPy and the committed vectors agree."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load as load_safetensors

from models import export, features, model_a, model_b, osml_a, osml_actions, osml_ap, osml_b, osml_bp, osml_c
from models.ddpg import Ddpg, DdpgArgs
from models.mlp import Dropout, Mlp
from pipelines import params, vectors
from pipelines.artefact import bundle

ROOT = Path(__file__).resolve().parents[1]
VECTORS = Path(__file__).parent / "vectors"
PLATFORM = features.PlatformLimits("toy", 36.0, 1.0, 20, 2.25)
SEEN = {
    "ipc": (0.1, 2.0),
    "llc_misses_per_s": (0.0, 1e8),
    "mbl_mbps": (0.0, 3e4),
    "virt_mem_mb": (100.0, 9000.0),
    "res_mem_mb": (100.0, 6000.0),
    "core_freq_mhz": (2300.0, 3600.0),
    "nb_mbl_mbps": (0.0, 0.0),
}


def test_inputs_are_the_papers() -> None:
    """Table 3: 12 inputs for A, 14 for B; C has 7 of them and `qos`."""
    assert len(features.MODEL_A_INPUTS) == 12
    assert len(features.MODEL_B_INPUTS) == 14
    assert features.MODEL_B_INPUTS[9:11] == ("expected_cores", "expected_cache_mb")
    assert set(features.MODEL_C_INPUTS) - set(features.MODEL_A_INPUTS) == {"qos"}
    assert len(features.ACTIONS) == 7


@pytest.mark.parametrize("module", [model_a, model_b, osml_a, osml_ap, osml_b, osml_bp], ids=lambda m: str(m.SPEC.name))
def test_a_models_docstring_is_what_params_yaml_trains(module: ModuleType) -> None:
    """A regression's docstring gives the widths, the dropout (ours and the paper's) and the loss that it is trained with."""
    told = module.__doc__ or ""
    said = re.search(r"Network: ([\d-]+) ReLU, dropout ([\d.]+) % \(the paper: (\d+) %\)\. Loss: (\w+) error", told)
    assert said, told
    p = getattr(params.load(ROOT / "params.yaml").train, module.SPEC.name.replace("-", "_"))
    rate = module.SPEC.dropout if p.dropout is None else p.dropout
    assert said[1] == "-".join(map(str, module.SPEC.hidden))
    assert (float(said[2]), float(said[3])) == (100 * rate, 100 * module.SPEC.dropout)
    assert said[4] == p.loss


def test_the_docstring_of_the_dqn_has_its_reach() -> None:
    """What is said of OSML's Model-C is what its actions are: so many units of cores and ways at most, so many actions."""
    told = osml_c.__doc__ or ""
    assert f"up to {osml_actions.REACH} units of cores and {osml_actions.REACH} ways at a time" in told
    assert f"each of {len(osml_actions.ACTIONS)} actions" in told


@pytest.mark.parametrize(
    ("feature_set", "ways", "absent"),
    [
        ("full", 20, set()),
        ("full", 0, {"alloc_cache_mb", "nb_cache_mb"}),
        ("no-pmu", 20, {"ipc", "llc_misses_per_s", "mbl_mbps", "nb_mbl_mbps"}),
        ("no-pmu", 0, {"ipc", "llc_misses_per_s", "mbl_mbps", "nb_mbl_mbps", "alloc_cache_mb", "nb_cache_mb"}),
    ],
)
def test_a_host_is_only_asked_for_what_it_can_measure(feature_set: str, ways: int, absent: set[str]) -> None:
    assert set(features.MODEL_A_INPUTS) - set(features.candidates(features.MODEL_A_INPUTS, feature_set, ways)) == absent
    outputs = features.output_candidates(features.MODEL_A_OUTPUTS, feature_set, ways)
    assert ("oaa_ways" in outputs) == (ways > 0)
    assert ("oaa_mbl_mbps" in outputs) == (feature_set == "full")


def test_an_unknown_feature_set_is_refused() -> None:
    with pytest.raises(features.FeatureError, match="known: full, no-pmu"):
        features.candidates(features.MODEL_A_INPUTS, "fancy", 20)


def test_bounds_come_from_the_platform_where_it_has_limits() -> None:
    bounds = {b.name: (b.min, b.max) for b in features.make_bounds(features.MODEL_B_INPUTS, SEEN, PLATFORM)}
    assert bounds["alloc_cores"] == bounds["expected_cores"] == (0.0, 36.0)
    assert bounds["nb_cache_mb"] == (0.0, 45.0)  # 20 ways x 2.25 MB
    assert bounds["ipc"] == (0.0, pytest.approx(2.2))
    assert bounds["nb_mbl_mbps"] == (0.0, pytest.approx(3.3e4))  # no neighbour was seen: the service's own range


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e12, 1e12), min_size=12, max_size=12))
def test_scaled_inputs_stay_within_0_and_1(raw: list[float]) -> None:
    x = features.normalise(np.array([raw]), features.make_bounds(features.MODEL_A_INPUTS, SEEN, PLATFORM))
    assert x.dtype == np.float32
    assert np.all((x >= 0) & (x <= 1))


def test_standardising_and_back_is_the_identity() -> None:
    values = np.random.default_rng(1).normal(50.0, 7.0, (100, 2))
    scales = features.make_scales(["a", "b"], values)
    np.testing.assert_allclose(features.natural(features.standardise(values, scales), scales), values, rtol=1e-5)


def test_numpy_and_pytorch_compute_the_same_network() -> None:
    torch.manual_seed(1)
    net = Mlp(12, 5).eval()
    x = torch.rand(500, 12)
    with torch.no_grad():
        expected = net(x).numpy()
    actual = export.forward({k: v.numpy() for k, v in net.state_dict().items()}, x.numpy())
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_committed_inference_vectors_hold() -> None:
    """The vectors that the node is tested with follow from the committed bundle."""
    checked = bundle.verify(VECTORS / "bundle-small", trusted=bundle.trusted_keys(VECTORS / "keys" / "trusted"))
    given_vectors = json.loads((VECTORS / "inference.json").read_text())
    assert given_vectors["manifest_sha256"] == checked.manifest_sha256
    made = vectors.inference_vectors(checked, 24)
    for model, entry in given_vectors["models"].items():
        for ours, theirs in zip(made["models"][model]["cases"], entry["cases"], strict=True):
            assert ours["raw"] == theirs["raw"]
            for field in ("normalised", "network"):
                np.testing.assert_allclose(ours[field], theirs[field], atol=1e-5)


def test_committed_ddpg_vectors_hold() -> None:
    """Five updates of today's code give the committed weights."""
    data = (VECTORS / "ddpg.safetensors").read_bytes()
    given_tensors, made = load_safetensors(data), load_safetensors(vectors.ddpg_vectors())
    assert set(given_tensors) == set(made)
    for name, value in given_tensors.items():
        np.testing.assert_allclose(made[name], value, atol=1e-5, err_msg=name)


def test_critic_gradient_agrees_with_finite_differences() -> None:
    """The loss that is written down is the loss that is descended."""
    torch.manual_seed(3)
    net = Ddpg(8, DdpgArgs()).double()
    state, next_state = torch.rand(16, 8).double(), torch.rand(16, 8).double()
    action = torch.eye(7).double()[torch.arange(16) % 7]
    reward = torch.rand(16).double()
    loss = net.critic_loss(state, action, reward, next_state)
    loss.backward()
    weight = net.critic.net.layers[1].weight
    assert weight.grad is not None
    for i, j in ((0, 0), (10, 5), (63, 31)):
        keep = weight[i, j].item()
        values = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                weight[i, j] = keep + step
            values.append(net.critic_loss(state, action, reward, next_state).item())
        with torch.no_grad():
            weight[i, j] = keep
        assert weight.grad[i, j].item() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4, abs=1e-8)


def test_targets_follow_slowly() -> None:
    """target <- tau * online + (1 - tau) * target."""
    net = Ddpg(4, DdpgArgs(tau=0.25))
    with torch.no_grad():
        net.actor.net.layers[0].bias.fill_(8.0)
        net.actor_target.net.layers[0].bias.fill_(4.0)
    net.follow()
    assert net.actor_target.net.layers[0].bias[0].item() == 5.0  # 0.25 * 8 + 0.75 * 4


def test_the_actor_learns_which_action_pays() -> None:
    """With one action always rewarded, its probability becomes the largest in every state."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    net = Ddpg(3, DdpgArgs(gamma=0.0, critic_l2=0.0))
    optimisers = net.optimisers()
    generator = torch.Generator().manual_seed(1)
    for _ in range(400):
        state = torch.rand(64, 3, generator=generator)
        action = torch.randint(0, 7, (64,), generator=generator)
        net.update(optimisers, state, torch.eye(7)[action], (action == 4).float(), state)
    with torch.no_grad():
        assert (net.actor(torch.rand(100, 3, generator=generator)).argmax(dim=1) == 4).all()


def test_named_tensors_go_there_and_back() -> None:
    a, b = Ddpg(5), Ddpg(5)
    b.load_named(a.named_tensors())
    assert all(torch.equal(v, b.named_tensors()[k]) for k, v in a.named_tensors().items())
    with pytest.raises(ValueError, match="shape"):
        Ddpg(6).load_named(a.named_tensors())


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    """77 of 256 byte values are dropped; every position of the random words is as likely as the others."""
    torch.manual_seed(1)
    layer = Dropout(0.3).train()
    y = layer(torch.ones(1000, 1000))
    assert (y == 0).float().mean().item() == pytest.approx(77 / 256, abs=2e-3)
    assert y.mean().item() == pytest.approx(1.0, abs=4e-3)
    by_byte = (y.flatten().view(-1, 8) == 0).float().mean(dim=0)
    assert (by_byte - 77 / 256).abs().max().item() < 6e-3
    assert torch.equal(layer.eval()(torch.ones(3)), torch.ones(3))


def test_equal_weights_give_equal_bytes_and_survive() -> None:
    weights = {k: v.numpy() for k, v in Mlp(3, 2).state_dict().items()}
    data = export.to_safetensors(weights)
    assert data == export.to_safetensors(dict(reversed(list(weights.items()))))
    back = export.from_safetensors(data)
    assert all(np.array_equal(back[k], v) for k, v in weights.items())
