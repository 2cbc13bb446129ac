"""What measures the models: held-out rows, comparators, tables of errors; transfer and generalisation."""

from __future__ import annotations

import csv

import numpy as np
import polars as pl
import pytest
from synthetic import Campaign, write

from models import features
from pipelines import compare, evaluate, holdout, label, params, tensors
from pipelines.errors import BadInput
from pipelines.tensors import Table

PLATFORM = features.PlatformLimits("toy", 4.0, 1.0, 4, 2.0)
P = params.Params.model_validate({"compare": {"rounds": 20, "leaves": 7}})


def plane_table(qos: list[list[float]]) -> Table:
    """One plane: QoS by cores (rows) and ways (columns), a row a cell."""
    grid = np.array(qos)
    cores, ways = (axis.ravel().astype(float) + 1 for axis in np.indices(grid.shape))
    n = grid.size
    zeros = np.zeros(n, dtype=np.int64)
    return Table(
        columns={"alloc_cores": cores},
        p99_ms=np.full(n, 1.0),
        cell=np.arange(n),
        plane=zeros,
        cell_cores=cores,
        cell_ways=ways,
        cell_mba=np.full(n, 100.0),
        cell_qos=grid.ravel(),
        cell_plane=zeros,
        plane_labels=pl.DataFrame({"service": ["a"], "split": ["test"], "oaa_cores": [3.0]}),
        plane_target_ms=np.array([1.0]),
        dropped={},
        platform=PLATFORM,
        feature_set="full",
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A labelled campaign, loaded."""
    base = tmp_path_factory.mktemp("quality")
    campaign = Campaign(loads=(600.0, 1000.0, 1400.0, 1800.0, 2200.0, 2600.0), samples=2)
    data = write(base / "data", campaign)
    label.run(data, base / "label", params.Label())
    return tensors.load(data, base / "label", max_rows=10**6, use_overloaded=True)


def test_steps_to_the_cliff_are_counted_along_the_nearer_axis() -> None:
    distance = evaluate.cliff_distance(
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
    assert set(evaluate.cliff_distance(plane_table([[1.5, 2.0], [2.0, 2.0]]))) == {evaluate.DISTANCES}
    assert set(evaluate.cliff_distance(plane_table([[0.5, 0.2], [float("nan"), 0.0]]))) == {-evaluate.DISTANCES}


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
    without = Table(**{**vars(table), "plane_labels": table.plane_labels.with_columns(pl.lit("train").alias("split"))})
    with pytest.raises(BadInput, match=r"label\.test_fraction"):
        holdout.test_rows(without, 10, 1)


@pytest.mark.parametrize("method", list(compare.METHODS))
def test_a_comparator_finds_what_can_be_found_and_finds_it_again(method: str) -> None:
    """A linear target, little noise: each method does better than the mean by far, with the same bits every time."""
    rng = np.random.default_rng(1)
    x = rng.random((2000, 3)).astype(np.float32)
    y = 4.0 * x[:, 0].astype(np.float64) + rng.normal(0.0, 0.01, 2000)
    fit = compare.METHODS[method]
    found = fit(x[:1500], y[:1500], x[1500:], P.compare)
    assert np.abs(found - y[1500:]).mean() < 0.25 * np.abs(y[1500:] - y[:1500].mean()).mean()
    assert np.array_equal(found, fit(x[:1500], y[:1500], x[1500:], P.compare))


def test_the_nearest_neighbour_is_the_label_of_a_training_sample(table: Table) -> None:
    test, known = table.part("test"), table.part("train")
    names = ["alloc_cores", "ipc"]
    x, y = table.matrix(names, known).astype(np.float32), np.arange(len(known), dtype=np.float64)
    assert np.array_equal(compare.nearest(x, y, x[::7], P.compare), y[::7])
    assert set(compare.nearest(x, y, table.matrix(names, test).astype(np.float32), P.compare)) <= set(y)


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
