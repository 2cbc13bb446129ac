"""Model-C in closed loop: experience as it is written and read, rounds of acting and learning, and rows that teach "at least"."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from torch import nn

from collection import practice as closed_loop
from collection import servers, worlds
from collection.commands import surefoot
from collection.errors import InputError
from models import model_a
from models.ddpg import Ddpg
from models.features import ACTIONS, Bound
from models.regression import Regression
from pipelines import params, practice
from pipelines import worlds as mixtures
from pipelines.artefact import worlds_bundle
from pipelines.errors import BadInput
from pipelines.fits import fit_oaa, fitted, holdout
from pipelines.inputs import EXPERIENCE_BYTES

SHORT = {"inputs": "relative", "epochs": 1, "min_steps": 60, "batch": 256, "dropout": 0.0}
C = {"transitions": 2000, "updates": 60, "batch": 32}
GIVEN: dict[str, Any] = {
    "train": {"c": C},
    "worlds": {"rows": 800, "asked_rows": 100, "validate_share": 0.4, "a": SHORT, "b": SHORT, "rounds": 2},
    "compare": {"rows": 1000, "rounds": 5, "leaves": 7},
}
P = params.Params.model_validate(GIVEN)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of two drawn worlds, asked about a third."""
    out = tmp_path_factory.mktemp("practice")
    folders = worlds.collect(worlds.Worlds.parse("tune:7301..7303"), out / "data", lambda _: None)
    mixtures.run(folders[:2], folders[2:], out / "models", P, [1])
    (out / "params.yaml").write_text(json.dumps(GIVEN))
    return out / "models"


@pytest.fixture(scope="module")
def practised(models: Path) -> tuple[Path, dict[str, Any]]:
    """Two rounds on two worlds."""
    out = models.parent / "practised"
    argv = ["learn-c", "--models", str(models), "--worlds", "tune:7304..7305", "--out", str(out), "--json"]
    done = CliRunner().invoke(surefoot, [*argv, "--params", str(models.parent / "params.yaml")])
    assert done.exit_code == 0, done.output
    return out, json.loads((out / "practice.json").read_text())


def given(models: Path, out: Path, **more: Any) -> closed_loop.Options:
    return replace(closed_loop.Options(models, "tune:7304..7305", out, models.parent / "params.yaml"), **more)


def test_c_acts_and_learns_in_turn(models: Path, practised: tuple[Path, dict[str, Any]]) -> None:
    """Each round has runs by C's own actions and by random ones; C has changed, A and B have not; any server can have them."""
    out, found = practised
    one, two = found["rounds"]
    assert one["transitions"] == one["known"] > 0
    assert two["known"] == one["known"] + two["transitions"]
    for line in (one, two):
        assert line["violation_s_own"] >= 0.0
        assert line["violation_s_random"] >= 0.0
        assert np.isfinite([line["critic_loss"], line["val_loss"], line["reward_mean"]]).all()
    weights = [fitted.load(at / "c").weights["actor.layers.0.weight"] for at in (models, out / "round-1", out / "round-2", out)]
    assert not np.array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[1], weights[2])
    np.testing.assert_array_equal(weights[2], weights[3])
    assert fitted.load(out / "c").steps > fitted.load(models / "c").steps
    for letter in ("a", "b"):
        assert (out / letter / fitted.WEIGHTS).read_bytes() == (models / letter / fitted.WEIGHTS).read_bytes()
    (platform,) = servers.facts(["server-1"])
    (built,) = worlds_bundle.run(out, [platform], models.parent / "bundles", None, True)
    assert Path(built["path"]).is_file()


def test_practice_goes_on_where_it_was(models: Path, practised: tuple[Path, dict[str, Any]]) -> None:
    """A whole round is not run again; one that is gone comes out the same. Rounds of something else are not gone on with."""
    out, found = practised
    before = (out / "round-1" / "own" / "rows.csv").stat().st_mtime_ns
    c = (out / "round-2" / "c" / fitted.WEIGHTS).read_bytes()
    (out / "round-2" / "done").unlink()
    again = closed_loop.run(given(models, out), lambda _: None)
    assert again == found
    assert (out / "round-1" / "own" / "rows.csv").stat().st_mtime_ns == before
    assert (out / "round-2" / "c" / fitted.WEIGHTS).read_bytes() == c
    with pytest.raises(InputError, match="has rounds of other models, worlds, settings or programs"):
        closed_loop.run(given(models, out, seed=2), lambda _: None)
    with pytest.raises(InputError, match="is not empty"):
        closed_loop.run(given(models, models.parent), lambda _: None)
    with pytest.raises(InputError, match="could not be measured on them"):
        closed_loop.run(given(models, out, worlds="test:1..2"), lambda _: None)


def test_experience_of_something_else_is_refused(practised: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Another bundle's, damaged, or with a value that is no number: one error that names the file."""
    out, _ = practised
    file = next((out / "round-1" / "experience").iterdir())
    c = fitted.load(out / "c")
    bundle = json.loads((out / "round-1" / "bundles" / "tune-7304-p" / "manifest.json").read_text())
    assert [i["name"] for i in bundle["models"]["c"]["inputs"]] == [b.name for b in c.inputs]
    with pytest.raises(BadInput, match=r"field about\.bundle: is not 'other'"):
        practice.read(file, c.inputs, "other")
    (tmp_path / "half").write_bytes(file.read_bytes()[:1000])
    with pytest.raises(BadInput, match="half: is no experience"):
        practice.read(tmp_path / "half", c.inputs, "any")
    tensors = load_file(file)
    tensors["pool.rewards"][0] = np.nan
    about = {"format": "surefoot-experience", "version": 1, "kind": "ddpg", "bundle": "b", "inputs": [b.name for b in c.inputs]}
    save_file(tensors, tmp_path / "odd", {"about": json.dumps(about)})
    with pytest.raises(BadInput, match="odd: its tensors have other shapes"):
        practice.read(tmp_path / "odd", c.inputs, "b")


def test_states_mean_the_same_in_other_bounds() -> None:
    """4 of 8 cores are 4 of 16; what is beyond the other bounds is at their end."""
    own, to = [Bound("alloc_cores", 0.0, 8.0)], [Bound("alloc_cores", 2.0, 16.0)]
    states = np.array([[0.5], [1.0], [0.125]], dtype=np.float32)
    e = practice.Experience(states, np.eye(7, dtype=np.float32)[:3], np.zeros(3, np.float32), states[::-1].copy())
    np.testing.assert_allclose(practice.moved(e, own, to).before[:, 0], [2 / 14, 6 / 14, 0.0], rtol=1e-6)
    np.testing.assert_allclose(practice.moved(e, own, to).after[:, 0], [0.0, 6 / 14, 2 / 14], rtol=1e-6)


def test_a_file_that_no_node_writes_is_not_read(tmp_path: Path) -> None:
    large = tmp_path / "large.safetensors"
    with large.open("wb") as file:
        file.truncate(EXPERIENCE_BYTES + 1)  # takes no room
    with pytest.raises(BadInput, match="67108865 bytes, and the node writes 67108864 at most"):
        practice.read(large, [Bound("ipc", 0.0, 1.0)], "b")


def test_what_is_held_of_experience_has_a_bound() -> None:
    """However much there was; each transition has the same chance, and a seed gives the same ones."""

    def held(seed: int) -> np.ndarray[Any, Any]:
        known = practice.Known(seed, most=600)
        for part in range(30):
            x = np.full(100, part, dtype=np.float32)
            action = np.eye(len(ACTIONS), dtype=np.float32)[np.arange(100) % 2]
            known.add(practice.Experience(x[:, None], action, x, x[:, None]))
            assert len(known) <= 600
        assert known.seen == 3000
        return known.all().reward

    assert len(held(1)) == 600
    np.testing.assert_array_equal(held(1), held(1))
    assert not np.array_equal(held(1), held(2))
    assert 11.0 < held(1).mean() < 18.0  # 14.5, and 0.35 of scatter
    with pytest.raises(BadInput, match="no world has experience"):
        practice.Known(1).all()


def test_idleness_does_not_drown_what_was_done() -> None:
    """Of 95 times "idle" and 5 actions five of each are left, and all actions."""
    action = np.zeros((100, len(ACTIONS)), np.float32)
    action[:, ACTIONS.index("idle")] = 1.0
    action[::20] = np.eye(len(ACTIONS), dtype=np.float32)[ACTIONS.index("cores_up")]
    x = np.arange(100, dtype=np.float32)
    e = practice.balanced(practice.Experience(x[:, None], action, x, x[:, None]), np.random.default_rng(1))
    assert len(e) == 10
    assert set(range(0, 100, 20)) <= set(e.reward.astype(int))


def test_the_critic_begins_at_the_level_of_rewards() -> None:
    """Its mean over the transitions is what it is moved to, its order of actions stays."""
    torch.manual_seed(1)
    net = Ddpg(3)
    state, action = torch.rand(50, 3), torch.eye(7)[torch.arange(50) % 7]
    before = net.critic(state, action).detach()
    net.move_critic_to(200.0, state, action)
    after = net.critic(state, action).detach()
    assert after.mean().item() == pytest.approx(200.0, abs=1e-3)
    torch.testing.assert_close(after - after.mean(), before - before.mean(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(net.critic_target(state, action).detach().mean(), torch.tensor(200.0), atol=1e-3, rtol=0.0)


def says(value: float) -> nn.Module:
    net = nn.Linear(1, 1)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.fill_(value)
    return net


def test_rows_that_teach_at_least() -> None:
    """Labels 0.01 to 1.00: at the level 0.2 the answer 0.2 costs the least, at 0.5 the middle; with 0.5 all is as without."""
    y = torch.arange(1, 101)[:, None] / 100.0
    x = torch.zeros(100, 1)

    def best(level: torch.Tensor) -> float:
        cost = [Regression(says(k / 100), 1e-3, 10).loss((x, y, y, level)).item() for k in range(101)]
        return int(np.argmin(cost)) / 100

    assert best(torch.full((100,), 0.2)) == pytest.approx(0.2, abs=0.011)
    assert best(torch.full((100,), 0.5)) == pytest.approx(0.5, abs=0.011)
    same = [
        Regression(says(0.3), 1e-3, 10).loss(batch).item() for batch in ((x, y), (x, y, y), (x, y, y, torch.full((100,), 0.5)))
    ]
    assert same[0] == pytest.approx(same[1]) == pytest.approx(same[2])


def test_overloaded_rows_say_less_than_they_need(models: Path, tmp_path: Path) -> None:
    """At 0.2 more answers about overloaded services are at most the label; planes that nothing serves teach, too."""
    table = mixtures.mixture(
        [mixtures.prepared(models.parent / "data" / f"tune-{n}", P, P.worlds.rows) for n in (7301, 7302, 7303)]
    )
    every = np.arange(table.rows)
    labelled = np.isfinite(table.labels(["oaa_cores"])[table.plane, 0])
    over = holdout.overloaded(table, every)
    assert (over & labelled).any()
    assert (over & ~labelled).any()
    taught = fit_oaa.with_unserved(table, every[labelled], every[~labelled])
    assert len(taught) == (labelled | over).sum()
    low, high = fit_oaa.taught_ends(table, ["oaa_cores", "oaa_ways", "oaa_mbl_mbps"])
    none = (table.plane_labels["split"] == "none").to_numpy()
    assert none.any()
    assert (low[none, :2] == 100.0).all()
    assert (high[none, :2] == 100.0).all()
    assert np.isnan(low[:, 2]).all()
    rows = every[labelled & over]
    label = table.labels(["oaa_cores"])[table.plane[rows], 0]
    kept = {}
    for level in (None, 0.2):
        p = P.worlds.a.model_copy(update={"at_least": level, "min_steps": 300})
        use = every[labelled] if level is None else taught
        a = fit_oaa.fit_model(model_a.SPEC, table, p, 1, tmp_path, rows=(use, every[labelled]))
        kept[level] = float((fit_oaa.predict_a(table, a, rows)[:, 0] <= label).mean())
    assert kept[0.2] > kept[None] + 0.1
