"""What measures the models: held-out rows, comparators, tables of errors; transfer and generalisation."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from synthetic import Campaign, write

from models import export, features, model_a
from models.mlp import Mlp
from pipelines import evaluate, generalise, label, params, train, transfer
from pipelines import rows as rows_stage
from pipelines.errors import BadInput
from pipelines.fits import comparators, fit_oaa, fitted, holdout, rowfile, tensors
from pipelines.fits.cliff import DISTANCES, cliff_distance
from pipelines.fits.fit import Start
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Table

PLATFORM = features.PlatformLimits("toy", 4.0, 1.0, 4, 2.0)
SHORT = {"epochs": 2, "min_steps": 100, "batch": 256, "dropout": 0.0}
P = params.Params.model_validate(
    {
        "train": {"a": SHORT, "b": SHORT, "c": {"transitions": 500, "updates": 20, "batch": 64}},
        "compare": {"rounds": 20, "leaves": 7},
        "transfer": {"shares": [1.0, 0.1], "seeds": [1, 2], "frozen": [1], "a": SHORT, "b": SHORT},
        "generalise": {"a": SHORT, "b": SHORT},
    }
)


def plane_table(qos: list[list[float]]) -> Table:
    """One plane: QoS by cores (rows) and ways (columns), a row a cell."""
    grid = np.array(qos)
    cores, ways = (axis.ravel().astype(float) + 1 for axis in np.indices(grid.shape))
    n = grid.size
    zeros = np.zeros(n, dtype=np.int64)
    return Table(
        columns={"alloc_cores": cores},
        p99_ms=np.full(n, 1.0),
        achieved_rps=np.ones(n),
        cell=np.arange(n),
        plane=zeros,
        cell_cores=cores,
        cell_ways=ways,
        cell_mba=np.full(n, 100.0),
        cell_qos=grid.ravel(),
        cell_plane=zeros,
        plane_labels=pl.DataFrame({"service": ["a"], "split": ["test"], "oaa_cores": [3.0]}),
        plane_target_ms=np.array([1.0]),
        plane_platform=np.tile([4.0, 4.0, 2.0], (1, 1)),
        about=rowfile.About(
            data_sha256="0" * 64,
            campaign="none",
            feature_set="full",
            platform=PLATFORM,
            features=["alloc_cores"],
            rows=n,
            rows_left_out=rowfile.Left(feature_missing=0, not_resolvable=0, overloaded=0, thinned_out=0),
        ),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two platforms, `data`, `label`, `rows` and `big-data`, `big-label`, `big-rows`."""
    base = tmp_path_factory.mktemp("quality")
    loads = (600.0, 1000.0, 1400.0, 1800.0, 2200.0, 2600.0)
    big = Campaign(
        name="big", platform="big-16x4", cores=16.0, core_values=tuple(float(c) for c in range(1, 17)), ways=4, mb_per_way=4.0,
        loads=loads, samples=1, seed=2,
    )  # fmt: skip
    for name, campaign in (("", Campaign(loads=loads, samples=2)), ("big-", big)):
        data = write(base / f"{name}data", campaign)
        label.run(data, base / f"{name}label", params.Label())
        rows_stage.run(data, base / f"{name}label", base / f"{name}rows", params.Rows())
    return base


@pytest.fixture(scope="module")
def table(folder: Path) -> Table:
    return tensors.load(folder / "rows", folder / "label")


@pytest.fixture(scope="module")
def models(folder: Path) -> Path:
    """Models of the first platform."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        patch.chdir(folder)  # artefacts
        for name in ("a", "b"):
            train.run(name, "toy", folder / "rows", folder / "label", folder / "train" / name, P.train)
    return folder / "train"


def test_steps_to_the_cliff_are_counted_along_the_nearer_axis() -> None:
    distance = cliff_distance(
        plane_table(
            [
                [0.1, 0.1, 0.1, 0.1],
                [0.1, 0.2, 1.1, 1.2],
                [0.1, 0.9, 1.3, 1.4],
                [0.1, 1.2, 1.5, 1.6],
            ]
        )
    )
    assert distance.reshape(4, 4).tolist() == [
        [-6, -3, -1, -1],  # (1 core, 1 way): no number of cores alone, nor of ways, meets QoS
        [-2, -1, 0, 0],
        [-2, -1, 0, 1],
        [-1, 0, 1, 2],
    ]


def test_a_plane_without_a_cliff_is_far_from_it() -> None:
    assert set(cliff_distance(plane_table([[1.5, 2.0], [2.0, 2.0]]))) == {DISTANCES}
    assert set(cliff_distance(plane_table([[0.5, 0.2], [float("nan"), 0.0]]))) == {-DISTANCES}


def test_all_methods_are_asked_about_planes_that_none_was_taught(table: Table) -> None:
    test = holdout.test_rows(table, 10**6, 1)
    taught = table.part("train", "none")
    assert len(test)
    assert not set(table.plane[test]) & set(table.plane[taught])
    asked = holdout.questions(table, test, 2.0, 1)
    assert (table.cell_plane[asked.cells] == table.plane[asked.rows]).all()
    again = holdout.questions(table, test, 2.0, 1)
    assert np.array_equal(asked.cells, again.cells)
    assert asked.qos.max() <= 2.0


def test_nothing_held_out_is_an_error_with_the_remedy(table: Table) -> None:
    without = replace(table, plane_labels=table.plane_labels.with_columns(pl.lit("train").alias("split")))
    with pytest.raises(BadInput, match=r"label\.test_fraction"):
        holdout.test_rows(without, 10, 1)


@pytest.mark.parametrize("method", list(comparators.METHODS))
def test_a_comparator_finds_what_can_be_found_and_finds_it_again(method: str) -> None:
    """A linear target, little noise: each method does better than the mean by far, with the same bits every time."""
    rng = np.random.default_rng(1)
    x = rng.random((2000, 3)).astype(np.float32)
    y = 4.0 * x[:, 0].astype(np.float64) + rng.normal(0.0, 0.01, 2000)
    fit = comparators.METHODS[method]
    found = fit(x[:1500], y[:1500], x[1500:], P.compare)
    assert np.abs(found - y[1500:]).mean() < 0.25 * np.abs(y[1500:] - y[:1500].mean()).mean()
    assert np.array_equal(found, fit(x[:1500], y[:1500], x[1500:], P.compare))


def test_the_nearest_neighbour_is_the_label_of_a_training_sample(table: Table) -> None:
    test, known = table.part("test"), table.part("train")
    names = ["alloc_cores", "ipc"]
    x, y = table.matrix(names, known).astype(np.float32), np.arange(len(known), dtype=np.float64)
    assert np.array_equal(comparators.nearest(x, y, x[::7], P.compare), y[::7])
    assert set(comparators.nearest(x, y, table.matrix(names, test).astype(np.float32), P.compare)) <= set(y)


def test_an_error_is_held_against_the_best_comparator() -> None:
    mine = {"a_oaa_cores_mae": 0.6, "b_qos_mae": 0.1, "b_accuracy": 0.9}
    others = {"a_oaa_cores_mae_nearest": 0.8, "a_oaa_cores_mae_lightgbm": 0.5, "b_qos_mae_linear": 0.4, "b_accuracy_linear": 1.0}
    assert evaluate.against_best(mine, others) == {
        "a_oaa_cores_vs_best": pytest.approx(1.2),
        "b_qos_vs_best": pytest.approx(0.25),
    }


def rows_of(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(content.decode().splitlines()))


def test_calibration_shows_what_happened_at_each_prediction() -> None:
    predicted, qos = np.array([0.05, 0.06, 1.95, 3.0, -1.0]), np.array([0.0, 1.0, 2.0, 2.0, 0.5])
    rows = rows_of(evaluate.calibration_csv(predicted, qos, 2.0))
    assert len(rows) == 20
    assert [int(r["questions"]) for r in rows] == [3] + [0] * 18 + [2]
    assert float(rows[0]["qos"]) == pytest.approx(0.5)
    assert float(rows[0]["met_share"]) == pytest.approx(1 / 3, rel=1e-5)
    assert rows[1]["qos"] == ""


def test_errors_by_group_are_means_of_the_groups_own_rows() -> None:
    errors = evaluate.Errors(["oaa_cores"], np.array([[1.0], [3.0], [np.nan]]), np.array([10.0, 20.0]))
    groups = np.array(["x", "x", "y"])
    rows = rows_of(evaluate.by_group("service", groups, np.array(["x", "y"]), errors, ["x", "y"]))
    assert [(r["service"], r["samples"], r["a_oaa_cores_mae"], r["questions"], r["b_error_pct"]) for r in rows] == [
        ("x", "2", "2", "1", "10"),
        ("y", "1", "", "1", "20"),
    ]


# ---------------------------------------------------------------- transfer


def test_a_transferred_network_starts_at_the_other_ones_weights_and_keeps_what_is_frozen() -> None:
    given = {name: value.numpy().copy() for name, value in Mlp(3, 2).state_dict().items()}
    net = Mlp(3, 2)
    Start(given, frozen=(0, 1)).put_into(net)
    for name, parameter in net.named_parameters():
        assert np.array_equal(parameter.detach().numpy(), given[name])
        assert parameter.requires_grad == (name.split(".")[1] not in {"0", "1"})


def test_a_transferred_network_begins_as_the_same_function_of_natural_units() -> None:
    """Whatever the bounds of the new platform are; of a critic, whose action has no bounds, too."""
    torch.manual_seed(1)
    given = {name: value.numpy().copy() for name, value in Mlp(2, 1).state_dict().items()}
    old_in, new_in = (
        (features.Bound("alloc_cores", 0.0, c), features.Bound("core_freq_mhz", f, 4e3)) for c, f in ((36.0, 2e3), (64.0, 1e3))
    )
    old_out, new_out = ((features.Scale("oaa_cores", s, o),) for s, o in ((3.0, 5.0), (2.0, 9.0)))
    raw = np.array([[1.0, 2100.0], [30.0, 3500.0]])
    begin = Start(given, (), old_in, old_out).moved_to(new_in, new_out)
    asked = [
        features.natural(export.forward(weights, features.normalise(raw, inputs)), outputs)
        for weights, inputs, outputs in ((given, old_in, old_out), (begin.weights, new_in, new_out))
    ]
    np.testing.assert_allclose(asked[1], asked[0], rtol=1e-5)
    with pytest.raises(BadInput, match="inputs: the model to begin from has alloc_cores, core_freq_mhz"):
        Start(given, (), old_in, old_out).moved_to(new_in[::-1], new_out)

    critic = {f"critic.{name}": value.numpy().copy() for name, value in Mlp(3, 1).state_dict().items()}
    moved = Start(critic, (), old_in).moved_to(new_in, ()).weights
    action = np.array([[1.0], [0.0]], dtype=np.float32)
    q = [
        export.forward(weights, np.hstack([features.normalise(raw, inputs), action]), "critic.")
        for weights, inputs in ((critic, old_in), (moved, new_in))
    ]
    np.testing.assert_allclose(q[1], q[0], rtol=1e-4)


def test_frozen_layers_come_out_as_they_went_in(table: Table, tmp_path: Path) -> None:
    inputs, _ = tensors.model_inputs(features.MODEL_A_INPUTS, table)
    given = {name: value.numpy().copy() for name, value in Mlp(len(inputs), 5).state_dict().items()}
    fitted = fit_oaa.fit_model(model_a.SPEC, table, P.train.a, 1, tmp_path, begin=Start(given, frozen=(0, 2)))
    same = {name for name, value in fitted.weights.items() if np.array_equal(value, given[name])}
    assert same == {"layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"}


def test_a_network_of_another_shape_is_refused_by_name() -> None:
    """The published code loads weights that do not fit in silence."""
    given = {name: value.numpy() for name, value in Mlp(4, 2).state_dict().items()}
    with pytest.raises(BadInput, match=r"layers\.0\.weight: want shape \(32, 3\).*same inputs and outputs"):
        Start(given).put_into(Mlp(3, 2))
    with pytest.raises(BadInput, match="no such weights"):
        Start({}).put_into(Mlp(3, 2))


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_a_share_of_the_samples_is_whole_cells_of_every_plane(table: Table, share: float) -> None:
    rows = table.part("train")
    part = transfer.some_cells(table, rows, share, 1)
    assert np.array_equal(part, transfer.some_cells(table, rows, share, 1))
    assert set(table.plane[part]) == set(table.plane[rows])
    assert np.array_equal(part, rows[np.isin(table.cell[rows], table.cell[part])])
    cells, planes = len(np.unique(table.cell[rows])), len(np.unique(table.plane[rows]))
    assert len(np.unique(table.cell[part])) == max(planes, round(share * cells))


def test_what_two_plants_made_is_not_mixed(folder: Path, models: Path, tmp_path: Path) -> None:
    """Models of one edition of the virtual server do not begin on data of another; those of a machine do."""
    for known, data in ((None, None), ("1", None), (None, "2"), ("2", "2")):
        fitted.same_plant("bundle.tar", known, data)
    rows, copy = tmp_path / "rows", tmp_path / "models"
    shutil.copytree(folder / "big-rows", rows)
    shutil.copytree(models, copy)
    for file, field in (
        (rows / "rows.json", {"made_by": {"plant_version": "2"}}),
        (copy / "a" / "model.json", {"plant_version": "1"}),
    ):
        file.write_text(json.dumps(json.loads(file.read_text()) | field))
    with pytest.raises(BadInput, match=r"models/a: its models are of plant 1, and the data of plant 2, .* or from nothing"):
        transfer.run(rows, folder / "big-label", copy, tmp_path / "out", P)
    assert not (tmp_path / "out").exists()


def test_transfer_measures_both_beginnings_on_the_same_planes(folder: Path, models: Path) -> None:
    """Every fit is in transfer.csv, and the metrics are its means."""
    out = folder / "transfer"
    found = transfer.run(folder / "big-rows", folder / "big-label", models, out, P)
    fits = rows_of((out / "transfer.csv").read_bytes())
    assert len(fits) == 2 * 2 * (2 * 4 + 1)  # models, seeds, shares x beginnings and comparators + one frozen
    assert found == json.loads((out / "transfer.json").read_text())

    def mean(**wanted: str) -> float:
        return float(np.mean([float(f["error"]) for f in fits if all(f[k] == v for k, v in wanted.items())]))

    assert found["a_mae_transfer"] == pytest.approx(mean(model="a", begin="transfer", frozen="0", share="1"), rel=1e-4)
    assert found["b_mae_scratch_at_10_pct"] == pytest.approx(mean(model="b", begin="scratch", share="0.1"), rel=1e-4)
    assert found["a_mae_frozen_1"] == pytest.approx(mean(model="a", begin="transfer", frozen="1"), rel=1e-4)
    assert found["a_reduction_pct"] == pytest.approx(100 * (1 - found["a_mae_transfer"] / found["a_mae_scratch"]))
    assert found["a_mae_constant"] == pytest.approx((found["a_cores_mae_constant"] + found["a_ways_mae_constant"]) / 2, rel=1e-4)
    assert {"b_mae_constant", "b_mae_nearest_at_10_pct", "b_macro_transfer", "a_ways_mae_transfer"} <= set(found)
    curve = rows_of((out / "curve_b.csv").read_bytes())
    assert [float(r["share"]) for r in curve] == [0.1, 1.0]
    assert float(curve[0]["samples"]) < 0.2 * float(curve[1]["samples"])


# ---------------------------------------------------------------- generalisation


def test_a_service_left_out_is_in_no_training_row(table: Table) -> None:
    service = table.plane_labels["service"].to_numpy()
    for letter in ("a", "b"):
        (fit_on, check_on), asked = generalise.split_service(table, "beta", letter)
        taught = service[table.plane[np.concatenate([fit_on, check_on])]]
        assert set(taught) == {"alpha", "gamma"}
        assert set(service[table.plane[asked]]) == {"beta"}
        assert not set(table.plane[asked]) & set(table.plane[fit_on])


def test_a_model_for_another_platform_thinks_in_shares_of_the_machine() -> None:
    """Half of the one machine is half of the other, in inputs and in answers; what no platform bounds stays."""
    small, big = PLATFORM, features.PlatformLimits("big", 16.0, 1.0, 8, 2.0)
    bounds = [features.Bound("alloc_cores", 0.0, 4.0), features.Bound("ipc", 0.0, 3.0)]
    weights = {name: value.numpy() for name, value in Mlp(2, 3).state_dict().items()}
    scales = [
        features.Scale("oaa_cores", 2.0, 1.0),
        features.Scale("rcliff_ways", 1.0, 2.0),
        features.Scale("oaa_mbl_mbps", 5.0, 7.0),
    ]
    model = Fitted(weights, bounds, scales, [], [], 1)
    moved = generalise.rescaled(model, small, big)

    def ask(m: Fitted, cores: float) -> np.ndarray:
        x = features.normalise(np.array([[cores, 1.5]]), m.inputs)
        return features.natural(export.forward(m.weights, x), m.outputs)[0]

    np.testing.assert_allclose(ask(moved, 8.0), ask(model, 2.0) * [4.0, 2.0, 1.0], rtol=1e-6)


def test_models_are_asked_about_another_platform_as_they_are_and_rescaled(folder: Path, models: Path) -> None:
    out = folder / "foreign"
    on = folder / "data" / "manifest.json"
    found = generalise.foreign(folder / "big-rows", folder / "big-label", models, on, out, P)
    assert {"a_mae_as_is", "a_mae_rescaled", "b_error_pct_as_is", "b_error_pct_rescaled"} <= set(found)
    assert [r["service"] for r in rows_of((out / "generalise.csv").read_bytes())] == ["alpha", "beta", "gamma"]
    taught = (folder / "rows", folder / "label")
    own = generalise.foreign(folder / "rows", folder / "label", models, on, out, P, taught)
    assert {"a_mae", "a_mae_constant", "a_ways_mae_nearest", "b_error_pct_constant", "b_false_met_constant"} <= set(own)
    with pytest.raises(BadInput, match="is not what the models in"):
        generalise.foreign(folder / "rows", folder / "label", models, on, out, P, (folder / "big-rows", folder / "big-label"))
    assert "a_mae_rescaled" not in own


def test_leaving_each_service_out_gives_a_row_a_service(folder: Path, table: Table) -> None:
    out = folder / "generalise"
    twice = P.model_copy(update={"generalise": P.generalise.model_copy(update={"trainings": 2})})
    found = generalise.services(folder / "rows", folder / "label", out, twice)
    rows = rows_of((out / "generalise.csv").read_bytes())
    assert [r["service"] for r in rows] == ["alpha", "beta", "gamma"]
    assert found["a_mae"] == pytest.approx(np.mean([float(r["a_mae"]) for r in rows]), rel=1e-4)
    labels = table.labels(["oaa_cores"])[:, 0]
    assert np.isfinite(labels).all()
    assert found["a_mae_constant"] > 0
    assert {"b_error_macro_pct_constant", "a_cores_mae_nearest", "b_cliff_verdicts"} <= set(found)
    assert found["trainings"] == 2
    assert found["a_mae_least"] < found["a_mae"] < found["a_mae_most"]
    told = json.loads((out / "headline.json").read_text())
    assert next(iter(told)) == "a_cores_mae"
    assert told["b_error_pct_constant"] == pytest.approx(found["b_error_pct_constant"])


def test_a_begun_network_learns_at_its_own_rate(table: Table, tmp_path: Path) -> None:
    """`begun_lr` is for networks that begin from another's weights: at next to nothing they stay what they were."""
    p = P.transfer.a.model_copy(update={"begun_lr": 1e-9})
    first = fit_oaa.fit_model(model_a.SPEC, table, p, 1, tmp_path)  # at `lr`: it begins from nothing
    begin = Start(first.weights, (), tuple(first.inputs), tuple(first.outputs))
    again = fit_oaa.fit_model(model_a.SPEC, table, p, 2, tmp_path, begin=begin)
    faster = fit_oaa.fit_model(model_a.SPEC, table, P.transfer.a, 2, tmp_path, begin=begin)
    rows = table.part("test")
    was = fit_oaa.predict_a(table, first, rows)
    np.testing.assert_allclose(fit_oaa.predict_a(table, again, rows), was, rtol=1e-4, atol=1e-3)
    assert np.abs(fit_oaa.predict_a(table, faster, rows) - was).max() > 0.05
