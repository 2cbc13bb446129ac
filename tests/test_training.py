"""What the published code gets wrong when it trains, and that ours does not; OSML's models on a small campaign."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import Campaign, write

from models import export, features, model_a, model_b, osml_a, osml_ap, osml_b, osml_bp, osml_c
from models.features import Bound, Scale
from models.regression import Regression
from pipelines import label, params, rows, samples, train
from pipelines.errors import BadInput
from pipelines.fits import fit, fit_ddpg, fit_dqn, fit_oaa, fit_trade, tensors
from pipelines.fits.tensors import Batches, Table

SPECS = [model_a.SPEC, model_b.SPEC, osml_a.SPEC, osml_ap.SPEC, osml_b.SPEC, osml_bp.SPEC]
SHORT = {"epochs": 2, "min_steps": 100, "batch": 256}
QUICK = params.Train.model_validate(
    {name: SHORT for name in ("a", "b", "osml_a", "osml_ap", "osml_b", "osml_bp")}
    | {"osml_c": {"transitions": 4000, "updates": 60, "batch": 64}}
)


def table_in(base: Path, campaign: Campaign) -> Table:
    data = write(base / "data", campaign)
    label.run(data, base / "label", params.Label())
    rows.run(data, base / "label", base / "rows", params.Rows())
    return tensors.load(base / "rows", base / "label")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Three services alone and beside another."""
    return table_in(
        tmp_path_factory.mktemp("training"),
        Campaign(loads=(600.0, 1000.0, 1400.0, 1800.0, 2200.0), samples=2, neighbours=((), (("delta", 500.0),))),
    )


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


# ---------------------------------------------------------------- what each model is


def test_networks_and_inputs_are_the_papers() -> None:
    """Widths, dropout and the number of inputs of each model (the papers' tables without what no sample holds)."""
    shape = {s.name: (len(s.inputs), s.hidden, s.dropout, s.alone) for s in SPECS}
    assert shape == {
        "a": (12, (32, 64, 32), 0.3, False),
        "b": (14, (32, 64, 32), 0.3, False),
        "osml-a": (9, (40, 40, 40), 0.3, True),
        "osml-ap": (12, (40, 40, 40), 0.3, False),
        "osml-b": (13, (40, 40, 40), 0.3, False),
        "osml-bp": (14, (40, 40, 40), 0.3, False),
    }
    assert osml_b.SPEC.outputs == (
        "default_cores", "default_ways", "cores_dominated_cores", "cores_dominated_ways",
        "cache_dominated_cores", "cache_dominated_ways",
    )  # fmt: skip
    assert {s.name for s in SPECS} | {"c", "osml-c"} == set(train.LEARNERS)


# ---------------------------------------------------------------- dropout

FOUR, ONE = [Bound(f"x{k}", 0.0, 1.0) for k in range(4)], [Scale("y", 1.0, 0.0)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_dropout_is_on_in_training_and_off_in_inference(spec: Any, tmp_path: Path) -> None:
    """Inert in the published program. Seen from inside a training: each step another network, validation always the whole one."""
    seen: dict[bool, list[float]] = {True: [], False: []}
    x = torch.rand(64, 4, generator=torch.Generator().manual_seed(1))
    y = x.sum(dim=1, keepdim=True)
    net = fit.network(spec, params.Regression(), FOUR, ONE, seed=1)

    def watch(module: Any, inputs: Any, out: Any) -> None:
        with torch.no_grad():
            seen[module.training].append(float((out == 0).float().mean() - (inputs[0] == 0).float().mean()))

    net.dropout.register_forward_hook(watch)
    p = params.Regression(epochs=2, min_steps=1, batch=64)
    weights, _ = fit.fit_regression(net, Batches((x, y), 64, 1), Batches((x, y), 64, 1, shuffle=False), p, tmp_path, None)
    assert seen[True]
    assert min(seen[True]) > 0.02
    assert seen[False]
    assert max(seen[False]) == 0.0
    # what is shipped is the whole network: two passes agree, with NumPy as well
    with torch.no_grad():
        whole = fit.network(spec, params.Regression(), FOUR, ONE, seed=1).eval()
        whole.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
        np.testing.assert_allclose(whole(x).numpy(), export.forward(weights, x.numpy()), atol=1e-5)


def test_the_papers_dropout_holds_unless_params_say_otherwise() -> None:
    assert fit.network(model_a.SPEC, params.Regression(), FOUR, ONE, 1).dropout.cut == round(0.3 * 256)
    assert fit.network(model_a.SPEC, params.Regression(dropout=0.0), FOUR, ONE, 1).dropout.cut == 0


# ---------------------------------------------------------------- inputs of a training


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000))
def test_standardised_inputs_are_the_same_network(seed: int) -> None:
    """What is trained on standardised inputs is shipped for inputs in [0, 1], and transfer begins from the function given."""
    rng = np.random.default_rng(seed)
    spread = rng.uniform(0.1, 1.0, 4)
    x = (rng.random((300, 4)) * spread + rng.random(4) * (1 - spread)).astype(np.float32)
    x[:, 2] = 0.5  # hardly varies: is moved, not blown up
    standard = fit.Standard.of(Batches((torch.from_numpy(x),), 64, 1))
    assert standard.spread[2] == 1.0
    net = fit.network(model_a.SPEC, params.Regression(), FOUR, ONE, seed).eval()
    was = fit.numpy_weights(net)
    standard.unfold_into(net)
    scaled = standard.scaler()(torch.from_numpy(x))
    moving = [0, 1, 3]
    np.testing.assert_allclose(scaled[:, moving].mean(dim=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(scaled[:, moving].std(dim=0), np.sqrt(x[:, moving].std(axis=0)), rtol=1e-2)
    with torch.no_grad():
        np.testing.assert_allclose(net(scaled).numpy(), export.forward(was, x), atol=1e-5)
    np.testing.assert_allclose(export.forward(standard.folded(fit.numpy_weights(net)), x), export.forward(was, x), atol=1e-5)


# ---------------------------------------------------------------- batches


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 500), st.integers(1, 300), st.integers(1, 3))
def test_no_batch_is_empty_and_no_row_is_left_out(n: int, batch: int, passes: int) -> None:
    """The published batching wraps to an empty batch once a pass."""
    value = torch.arange(n)
    batches = Batches((value,), batch, 1, passes=passes)
    given_out = [part[0] for part in batches]
    assert len(given_out) == len(batches)
    assert min(len(part) for part in given_out) > 0
    assert torch.equal(torch.cat(given_out).sort().values, value.repeat_interleave(passes))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 100))
def test_drawn_batches_are_not_empty_either(n: int, batch: int) -> None:
    drawn = fit.Drawn(
        lambda rng: (np.arange(n, dtype=np.float32)[:, None], np.zeros((n, 1))),
        n,
        [features.Scale("y", 1.0, 0.0)],
        params.Regression(batch=batch, epochs=1, min_steps=1),
        seed=1,
    )
    parts = [x for x, _ in drawn]
    assert len(parts) == len(drawn)
    assert min(len(x) for x in parts) > 0
    assert sorted(torch.cat(parts)[:, 0].tolist()) == list(range(n))


# ---------------------------------------------------------------- loss


class Constant(torch.nn.Module):
    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor(values))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.values.expand(len(x), -1)


def test_a_bounded_label_costs_nothing_within_its_bounds() -> None:
    """Inside, on the edge, below by 1, above by 2, and without a label: 0, 0, 1, 4, not counted."""
    module = Regression(Constant([0.5, 1.0, -1.0, 3.0, 9.0]), 1e-3, 1, loss="squared")
    low, high = torch.tensor([[0.0, 0.0, 0.0, 0.0, torch.nan]]), torch.tensor([[1.0, 1.0, 1.0, 1.0, torch.nan]])
    loss = module.loss((torch.zeros(1, 1), low, high))
    loss.backward()
    assert loss.item() == pytest.approx((1 + 4) / 4)
    assert module.net.values.grad is not None
    assert module.net.values.grad.tolist() == [0.0, 0.0, -0.5, 1.0, 0.0]  # towards the nearer end: 2 x error / 4


def test_an_exact_label_is_a_bound_of_no_width() -> None:
    module = Regression(Constant([0.5, 1.0, -1.0]), 1e-3, 1, loss="squared")
    y = torch.tensor([[0.0, torch.nan, 1.0], [1.0, 2.0, torch.nan]])
    x = torch.zeros(2, 1)
    assert module.loss((x, y)).item() == module.loss((x, y, y)).item() == pytest.approx((0.25 + 4 + 0.25 + 1) / 4)


def test_bounds_of_labels_reach_the_loss(table: Table) -> None:
    """From labels.parquet: the bounds where there are any, else the label itself at both ends."""
    some = pl.int_range(pl.len()) % 2 == 0
    at = pl.col("oaa_cores")
    changed = table.plane_labels.with_columns(
        oaa_cores_low=pl.when(some).then(at - 1).otherwise(at), oaa_cores_high=pl.when(some).then(at + 2).otherwise(at)
    )
    other = replace(table, plane_labels=changed)
    low, high = fit_oaa.label_ends(other, ["oaa_cores", "oaa_mbl_mbps"])
    known = other.labels(["oaa_cores", "oaa_mbl_mbps"])
    even = np.arange(len(known)) % 2 == 0
    np.testing.assert_array_equal(high[:, 0] - low[:, 0], np.where(np.isnan(known[:, 0]), np.nan, np.where(even, 3.0, 0.0)))
    np.testing.assert_array_equal(low[:, 1], known[:, 1])
    np.testing.assert_array_equal(high[:, 1], known[:, 1])


# ---------------------------------------------------------------- labels


def test_labels_lie_in_the_machine_and_meet_qos(table: Table) -> None:
    """The published labels are up to two cores and two ways beyond it."""
    labels = table.plane_labels.filter(pl.col("reason").is_null())
    assert labels.height > 10
    for point in ("oaa", "rcliff"):
        assert labels[f"{point}_cores"].is_between(1, table.platform.cores).all()
        assert labels[f"{point}_ways"].is_between(1, table.platform.ways).all()


def test_bandwidth_is_labelled_wherever_it_was_measured(table: Table) -> None:
    """The published program's OAA bandwidth is a cell off, or left out with its whole directory. Here: the OAA cell's own."""
    labels = table.plane_labels.filter(pl.col("oaa_cores").is_not_null())
    at = table.grids
    for row in labels.iter_rows(named=True):
        plane = int(row["plane"])
        place = np.flatnonzero(at.cores[plane] == row["oaa_cores"]), np.flatnonzero(at.ways[plane] == row["oaa_ways"])
        cell = int(at.cell[plane, place[0][0], place[1][0]])
        here = table.columns["mbl_mbps"][table.cell == cell]
        assert row["oaa_mbl_mbps"] == pytest.approx(here.mean(), rel=1e-9)


def test_a_row_is_in_one_split_only_with_all_of_its_plane(table: Table) -> None:
    """By plane, never by row: the published cut leaves rows of a cell on both sides, and one row in both files."""
    splits = ("train", "val", "test", "none")
    parts_of = [table.part(split) for split in splits]
    assert sum(len(p) for p in parts_of) == table.rows
    assert len(np.unique(np.concatenate(parts_of))) == table.rows
    planes = [set(table.plane[p].tolist()) for p in parts_of]
    cells = [set(table.cell[p].tolist()) for p in parts_of]
    for k in range(len(splits)):
        for other in range(k):
            assert not planes[k] & planes[other]
            assert not cells[k] & cells[other]


# ---------------------------------------------------------------- Model-C of OSML+


def test_the_reward_asks_model_b_about_the_allocation_that_results(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published program asks about the change (0 or 1 core) instead."""
    asked: list[tuple[np.ndarray, np.ndarray]] = []

    def spy(b: Any, of: Table, before: np.ndarray, cells: np.ndarray) -> np.ndarray:
        asked.append((before, cells))
        return np.ones(len(before))

    monkeypatch.setattr(fit_ddpg, "predict_qos", spy)
    log = tensors.transitions(table, table.part("train"), 500, np.random.default_rng(1))
    fit_ddpg.rewards_of(log, table, None)  # type: ignore[arg-type]
    (before, cells) = asked[0]
    np.testing.assert_array_equal(before, log.before)
    inputs, _ = tensors.model_inputs(features.MODEL_B_INPUTS, table)
    bounds = features.make_bounds(inputs, tensors.observed(table, table.part("train")), table.platform)
    x = fit.matrix(table, before, bounds, cells)
    at = inputs.index("expected_cores")
    np.testing.assert_allclose(x[:, at] * bounds[at].max, table.columns["alloc_cores"][log.after], rtol=1e-6)
    at = inputs.index("expected_cache_mb")
    np.testing.assert_allclose(x[:, at] * bounds[at].max, table.columns["alloc_cache_mb"][log.after], rtol=1e-6)


def test_the_reward_knows_a_met_target_from_a_missed_one(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missed: below 2; met: between 2 and 3, the more the less is held."""
    monkeypatch.setattr(fit_ddpg, "predict_qos", lambda b, of, before, cells: np.ones(len(before)))
    log = tensors.transitions(table, table.part("train", "none"), 2000, np.random.default_rng(1))
    got = fit_ddpg.rewards_of(log, table, None)  # type: ignore[arg-type]
    met = tensors.row_qos(table, log.after) >= 1.0
    assert met.any()
    assert (~met).any()
    assert ((got >= 2) & (got <= 3))[met].all()
    assert (got < 2)[~met].all()


# ---------------------------------------------------------------- OSML's models


@pytest.fixture(scope="module")
def osml(table: Table, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("osml")
    torch.set_num_threads(1)
    return {name: train.fit(name, table, QUICK, out) for name in train.LEARNERS if name.startswith("osml-")}


def test_each_of_osmls_models_trains(osml: dict[str, Any]) -> None:
    """Finite weights of the paper's shape, inputs and outputs by name."""
    for name, done in osml.items():
        assert done.steps > 0, name
        prefix = "policy." if name == "osml-c" else ""
        shapes = export.layer_shapes(done.weights, prefix)
        assert [s[0] for s in shapes[:-1]] == ([30] * 3 if name == "osml-c" else [40] * 3)
        assert shapes[0][1] == len(done.inputs)
        assert shapes[-1][0] == (49 if name == "osml-c" else len(done.outputs))
    assert [o.name for o in osml["osml-a"].outputs] == list(features.MODEL_A_OUTPUTS)
    assert osml["osml-b"].settings["slowdowns"] == [0.05, 0.1, 0.15, 0.2]
    last = osml["osml-b"].inputs[-1]
    assert (last.name, last.min, last.max) == ("qos_slowdown", 0.0, pytest.approx(0.22))


def test_model_a_learns_from_services_alone_and_its_shadow_from_all(table: Table, osml: dict[str, Any]) -> None:
    assert table.alone.any()
    assert not table.alone.all()
    alone, every = osml["osml-a"].rows["train"], osml["osml-ap"].rows["train"]
    assert alone == int(table.alone[table.plane[table.part("train")]].sum())
    assert 0 < alone < every == len(table.part("train"))
    assert not [b.name for b in osml["osml-a"].inputs if b.name.startswith("nb_")]


def test_without_a_service_alone_model_a_says_so(tmp_path: Path) -> None:
    crowded = table_in(tmp_path, Campaign(loads=(600.0, 1000.0), samples=1, neighbours=((("delta", 500.0),),)))
    with pytest.raises(BadInput, match="a label and no neighbours"):
        train.fit("osml-a", crowded, QUICK, tmp_path)


def test_b_points_leave_something_and_keep_the_qos(table: Table) -> None:
    """From the measured grid of a plane: the allocation that is left is in the machine, measured, and not slower than allowed."""
    cells = fit_trade.starts(table, 10)
    assert len(cells) > 100
    found = fit_trade.b_points(table, cells, (0.05, 0.2))
    known = np.isfinite(found.given).all(axis=2)
    assert known.any()
    assert (~known).any()  # somewhere nothing can be given: no label there, not 0
    assert (np.isfinite(found.given).any(axis=2) == known).all()
    lookup = {
        (int(p), float(c), float(w)): float(q)
        for p, c, w, q in zip(table.cell_plane, table.cell_cores, table.cell_ways, table.cell_qos, strict=True)
    }
    for start, slow in np.argwhere(known)[::7]:
        for cores, ways in found.given[start, slow].reshape(3, 2):
            assert cores + ways > 0
            here = cells[start]
            left = (int(table.cell_plane[here]), table.cell_cores[here] - float(cores), table.cell_ways[here] - float(ways))
            assert lookup[left] >= 1 - (0.05, 0.2)[slow] - 1e-9
    wider = np.nan_to_num(found.given[:, 1]) - np.nan_to_num(found.given[:, 0])
    assert (wider[:, 2] >= 0).all()  # the most cores
    assert (wider[:, 5] >= 0).all()  # the most ways


def test_questions_about_slowdown_are_answered_from_measured_cells(table: Table) -> None:
    asked = fit_trade.SlowdownQuestions(table, table.part("train"), params.OsmlBp())
    cells, lost = asked.draw(np.random.default_rng(1))
    here = table.cell[asked.rows]
    known = np.isfinite(lost)
    assert known.any()
    assert (table.cell_plane[cells] == table.cell_plane[here]).all()
    assert (table.cell_cores[cells] <= table.cell_cores[here]).all()
    assert (table.cell_ways[cells] <= table.cell_ways[here]).all()
    assert (table.cell_cores[here] - table.cell_cores[cells]).max() == params.OsmlBp().take_steps
    qos = np.minimum(table.cell_qos, 1.0)
    np.testing.assert_allclose(lost[known], (qos[here] - qos[cells])[known])
    assert (np.abs(lost[known]) <= 1).all()


def test_moves_are_what_their_action_says(table: Table) -> None:
    """Both ends in one plane and of the rows that were given; the action's number is the change between them."""
    train_rows = table.part("train")
    log = fit_dqn.moves(table, train_rows, 3000, np.random.default_rng(1))
    assert len(log.action) > 1000
    assert set(log.after.tolist()) | set(log.before.tolist()) <= set(train_rows.tolist())
    assert (table.plane[log.before] == table.plane[log.after]).all()
    change = np.array(osml_c.ACTIONS)[log.action]
    for name, column in (("alloc_cores", 0), ("alloc_ways", 1)):
        moved = table.columns[name][log.after] - table.columns[name][log.before]
        np.testing.assert_allclose(moved, change[:, column], atol=1e-9)
    assert len(np.unique(log.action)) == 49


def test_an_overloaded_service_has_the_worst_latency_and_no_number_of_its_own(table: Table) -> None:
    """Its queue grows for as long as one looks: what a window happened to show is no latency."""
    every = np.arange(table.rows)
    latency = fit_dqn.latency_ms(table, every, 1000.0)
    over = np.isnan(table.p99_ms)
    assert over.any()
    np.testing.assert_array_equal(latency[over], 1000.0 * table.plane_target_ms[table.plane[over]])
    np.testing.assert_array_equal(latency[~over], table.p99_ms[~over])


def test_samples_of_a_plane_are_read_once_and_thinned_evenly(tmp_path: Path) -> None:
    """Fewer rows than there are: every k-th, of every plane; what was left out is counted."""
    data = write(tmp_path / "data", Campaign(loads=(800.0, 1600.0), samples=4))
    label.run(data, tmp_path / "label", params.Label())
    all_rows = samples.open_dataset(data).rows
    about = rows.run(data, tmp_path / "label", tmp_path / "rows", params.Rows(max_rows=all_rows // 3))
    assert about["rows"] + sum(about["rows_left_out"].values()) == all_rows
    table = tensors.load(tmp_path / "rows", tmp_path / "label")
    assert table.rows <= all_rows // 3
    counts = np.bincount(table.plane)
    assert counts.min() > 0.9 * counts.max()
    np.testing.assert_array_equal(table.columns["alloc_cores"], table.cell_cores[table.cell])
    np.testing.assert_array_equal(table.columns["alloc_ways"], table.cell_ways[table.cell])


def test_rows_of_other_labels_are_refused(tmp_path: Path) -> None:
    for name, loads in (("one", (800.0, 1600.0)), ("two", (800.0,))):
        data = write(tmp_path / name, Campaign(loads=loads, samples=1))
        label.run(data, tmp_path / name / "label", params.Label())
        rows.run(data, tmp_path / name / "label", tmp_path / name / "rows", params.Rows())
    with pytest.raises(BadInput, match="do not belong together"):
        tensors.load(tmp_path / "one" / "rows", tmp_path / "two" / "label")


# ---------------------------------------------------------------- what names a service


def test_memory_sizes_are_hidden_in_training_alone() -> None:
    """A share of the rows has random sizes in both columns, the others and all other columns stay; inference is untouched."""
    torch.manual_seed(1)
    x = torch.full((20_000, 4), 2.0)  # no scaled input is above 1
    seen = fit.hidden(x, [1, 3], 0.3)
    assert torch.equal(x, torch.full((20_000, 4), 2.0))
    changed = seen != 2.0
    assert not changed[:, [0, 2]].any()
    assert torch.equal(changed[:, 1], changed[:, 3])
    assert abs(float(changed[:, 1].float().mean()) - 0.3) < 0.02
    assert float(seen[changed].min()) >= 0.0
    assert float(seen[changed].max()) <= 1.0
    assert fit.memory_columns([Bound(n, 0.0, 1.0) for n in ("ipc", "virt_mem_mb", "res_mem_mb")]) == [1, 2]


def test_an_unknown_model_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """A name that is nearly a model's gets that name; no folder and no run is left."""
    with pytest.raises(BadInput, match='Did you mean "osml-b"'):
        train.run("osml-pb", "toy", tmp_path, tmp_path, tmp_path / "out", params.Train())
    assert not (tmp_path / "out").exists()
