"""Measures that mean something: whoever says one thing of everything must not look good, and must not pass the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from models import model_a
from models.features import PlatformLimits
from pipelines import measures, params, register, ways
from pipelines.fits import balance, by_service, comparators, fit_oaa, rowfile
from pipelines.fits.cliff import cliff_distance
from pipelines.fits.fitted import VAL_LOSS, Fitted
from pipelines.fits.holdout import Questions
from pipelines.fits.tensors import Table
from pipelines.pages import published
from pipelines.pages.metric_words import describe

ROOT = Path(__file__).parents[1]
P = params.load(ROOT / "params.yaml")
PLATFORM = PlatformLimits("toy", 8.0, 1.0, 4, 2.0)

# a line of six cells: three that miss, three that meet; steps from the cliff beside them
QOS = np.array([0.2, 0.5, 0.8, 1.0, 1.5, 2.0])
STEPS = np.array([-3, -2, -1, 0, 1, 2])


def planes(qos: list[list[list[float]]], services: list[str], splits: list[str], labels: list[tuple[float, float]]) -> Table:
    """Planes of cores (rows) and ways (columns), a row a cell: the memory size says which plane it is."""
    grids = [np.array(grid) for grid in qos]
    cores = np.concatenate([np.indices(g.shape)[0].ravel() + 1.0 for g in grids])
    ways = np.concatenate([np.indices(g.shape)[1].ravel() + 1.0 for g in grids])
    plane = np.concatenate([np.full(g.size, k) for k, g in enumerate(grids)])
    n = len(plane)
    return Table(
        columns={"res_mem_mb": plane.astype(float), "alloc_cores": cores},
        p99_ms=np.full(n, 1.0),
        achieved_rps=np.ones(n),
        cell=np.arange(n),
        plane=plane,
        cell_cores=cores,
        cell_ways=ways,
        cell_mba=np.full(n, 100.0),
        cell_qos=np.concatenate([g.ravel() for g in grids]),
        cell_plane=plane,
        plane_labels=pl.DataFrame(
            {
                "service": services,
                "split": splits,
                "oaa_cores": [c for c, _ in labels],
                "oaa_ways": [w for _, w in labels],
                "rcliff_cores": [c - 1 for c, _ in labels],
                "rcliff_ways": [w - 1 for _, w in labels],
            }
        ),
        plane_target_ms=np.ones(len(grids)),
        plane_platform=np.tile([4.0, 4.0, 2.0], (len(grids), 1)),
        about=rowfile.About(
            data_sha256="0" * 64,
            campaign="none",
            feature_set="no-pmu",
            platform=PLATFORM,
            features=["alloc_cores"],
            rows=n,
            rows_left_out=rowfile.Left(feature_missing=0, not_resolvable=0, overloaded=0, thinned_out=0),
        ),
    )


def test_balanced_measures_by_hand() -> None:
    """Said: 0.2, 1.1, 1.0 of cells that miss; 0.9, 1.2, 1.0 of cells that meet."""
    found = balance.qos_measures(np.array([0.2, 1.1, 1.0, 0.9, 1.2, 1.0]), QOS, STEPS)
    assert found["error_missed_pct"] == pytest.approx(100 * (0.0 + 0.5 + 0.2) / 3)
    assert found["error_met_pct"] == pytest.approx(100 * (0.1 + 0.0 + 0.0) / 3)
    assert found["error_macro_pct"] == pytest.approx(100 * 0.8 / 6)
    assert found["false_met"] == pytest.approx(2 / 3)
    assert found["harm_pct"] == pytest.approx(100 * (0.5 + 0.2) / 2)
    assert found["cliff_verdicts"] == 0.0  # within a step of the cliff both verdicts are wrong
    assert found["accuracy"] == pytest.approx(3 / 6)


def test_a_prediction_that_is_right_has_no_error() -> None:
    found = balance.qos_measures(QOS, QOS, STEPS)
    assert {found[n] for n in ("error_met_pct", "error_missed_pct", "error_macro_pct", "false_met")} == {0.0}
    assert "harm_pct" not in found  # nothing was falsely said, and a mean over services has no 0 of it
    assert found["cliff_verdicts"] == 1.0


@pytest.mark.parametrize("said", [0.0, 0.7, 1.0, 2.0])
def test_no_constant_looks_good(said: float) -> None:
    """Where nine cells of ten meet QoS a constant is right in nine of ten, and here it is not."""
    qos = np.concatenate([QOS, np.full(24, 2.0)])
    steps = np.concatenate([STEPS, np.full(24, 6)])
    found = balance.qos_measures(np.full(len(qos), said), qos, steps)
    assert found["cliff_verdicts"] == 0.5
    assert found["error_macro_pct"] >= 20
    if said >= 1:
        assert found["accuracy"] == pytest.approx(27 / 30)
        assert found["error_pct"] == pytest.approx(5.0)
        assert found["false_met"] == 1.0
        assert found["harm_pct"] == pytest.approx(50.0)


def test_what_has_nothing_to_be_measured_on_is_left_out() -> None:
    found = balance.qos_measures(np.ones(3), np.array([1.0, 1.2, 2.0]), np.array([6, 6, 6]))
    assert "error_macro_pct" not in found
    assert "false_met" not in found
    assert "cliff_verdicts" not in found


def test_constants_are_fitted_on_training_planes_alone() -> None:
    """Medians over training rows; the plane that is held out would move them."""
    one = [[0.5, 1.5], [1.2, 1.8]]
    table = planes([one, one, one], ["x", "x", "x"], ["train", "train", "test"], [(2, 2), (4, 2), (100, 4)])
    known = comparators.Material.of(table)
    taught = Questions(known.b, known.b, np.array([0.5, 1.2, 1.4]))
    said = comparators.constants(known, taught)
    assert said.area["oaa_cores"] == 3.0
    assert said.area["oaa_ways"] == 2.0
    assert said.qos == {"constant": 1.0, "median": 1.2}
    test = table.part("test")
    asked = Questions(test, test, table.cell_qos[test])
    found = comparators.measure(known, comparators.Asked(table, test, asked, cliff_distance(table)), P, P.train.a, P.train.b, 1)
    assert found["a_oaa_cores_mae_constant"] == 97.0
    assert found["a_oaa_ways_mae_constant"] == 2.0
    assert found["a_oaa_cores_mae_nearest"] == 96.0  # the last training plane says 4
    assert found["b_error_pct_constant"] == pytest.approx(100 * 0.5 / 4)
    assert found["b_false_met_constant"] == 1.0
    assert {f"{n}" for n in found} <= set(measures.NAMES)


def test_an_error_of_a_constant_that_is_next_to_nothing_counts_as_half_a_step() -> None:
    """Where the OAA is two ways nearly everywhere nobody can be better than "two" by a margin."""
    metrics = {"a_oaa_ways_mae": 0.05, "a_oaa_ways_mae_constant": 0.02, "a_oaa_cores_mae": 1.0, "a_oaa_cores_mae_constant": 4.0}
    found = balance.against_simple(metrics, PLATFORM)
    assert found == {"a_oaa_ways_vs_constant": pytest.approx(0.1), "a_oaa_cores_vs_constant": pytest.approx(0.25)}
    worse = balance.against_simple(metrics | {"a_oaa_ways_mae": 2.0}, PLATFORM)
    assert worse["a_oaa_ways_vs_constant"] == 4.0


def test_the_better_constant_is_what_a_model_must_beat() -> None:
    metrics = {"b_error_pct": 8.0, "b_error_pct_constant": 20.0, "b_error_pct_median": 10.0, "b_error_pct_nearest": 16.0}
    both = metrics | {"b_error_macro_pct": 9.0}
    found = balance.against_simple(both, PLATFORM)
    assert found == {"b_error_vs_constant": pytest.approx(0.8), "b_error_vs_nearest": pytest.approx(0.5)}
    # of cells that all meet QoS "always met" knows everything, and no model could beat it
    assert balance.against_simple(metrics, PLATFORM) == {}


def test_much_worse_than_a_good_neighbour_is_seen() -> None:
    metrics = {"a_oaa_cores_mae": 0.54, "a_oaa_cores_mae_nearest": 0.05, "a_oaa_cores_mae_constant": 4.0}
    assert balance.against_simple(metrics, PLATFORM)["a_oaa_cores_vs_nearest"] > 1.1
    # a difference below a tenth of a step is none
    assert balance.against_simple(metrics | {"a_oaa_cores_mae": 0.1}, PLATFORM)["a_oaa_cores_vs_nearest"] == pytest.approx(1.0)


# ---------------------------------------------------------------- the gate of the repository


def measured(predicted_a: float, predicted_b: Any) -> dict[str, float]:
    """What `evaluate` would measure of someone who says this; the nearest neighbour is off by 1 core and way, and 8 % of QoS."""
    qos = np.concatenate([QOS, np.full(24, 2.0)])
    steps = np.concatenate([STEPS, np.full(24, 6)])
    found = {f"b_{n}": v for n, v in balance.qos_measures(predicted_b(qos), qos, steps).items()}
    found |= {f"b_{n}_constant": v for n, v in balance.qos_measures(np.ones(len(qos)), qos, steps).items()}
    found |= {"b_error_pct_nearest": 8.0, "b_error_macro_pct_nearest": 12.0}
    for output in ("oaa_cores", "oaa_ways"):
        found |= {f"a_{output}_mae": predicted_a, f"a_{output}_mae_constant": 1.8, f"a_{output}_mae_nearest": 1.0}
    found |= {"a_safe_share": 1.0, "b_safe_but_violates": 0.1, "b_cliff_recall": 1.0}
    found |= {"c_grows_when_violating": 1.0, "c_never_shrinks_into_cliff": 1.0}
    return found | balance.against_simple(found, PLATFORM)


def why_not(metrics: dict[str, float]) -> list[str]:
    gate = P.gate
    return register.reasons(register.judge({m: getattr(gate, m) for m in "abc"}, metrics, {}))


def test_a_perfect_model_passes() -> None:
    assert why_not(measured(0.0, lambda qos: qos)) == []


def test_a_constant_does_not_become_champion() -> None:
    """Every line of the gate that was there before holds for it: 1.8 cores, and 5 % of QoS."""
    why = why_not(measured(1.8, lambda qos: np.ones(len(qos))))
    assert "a_oaa_cores_vs_constant is 1, wanted: at most 0.9, error over a constant's" in why
    assert "b_error_vs_constant is 1, wanted: at most 0.9, error over a constant's" in why
    assert "b_error_macro_vs_constant is 1, wanted: at most 0.9, error over a constant's" in why
    assert {line.split("_vs_")[1].split(" ")[0] for line in why} == {"constant", "nearest"}


def test_a_model_worse_than_the_nearest_neighbour_does_not_become_champion() -> None:
    """Better than the constant by more than a margin all the same; one line says what did not hold."""
    right = measured(1.05, lambda qos: qos)
    assert why_not(right) == []
    found = why_not(measured(1.2, lambda qos: qos))
    assert found == [
        "a_oaa_cores_vs_nearest is 1.2, wanted: at most 1.1, error over the nearest neighbour's",
        "a_oaa_ways_vs_nearest is 1.2, wanted: at most 1.1, error over the nearest neighbour's",
    ]


def test_a_gate_whose_comparators_are_missing_does_not_hold() -> None:
    metrics = {n: v for n, v in measured(0.0, lambda qos: qos).items() if "_vs_" not in n}
    assert "a_oaa_cores_vs_constant was not measured (wanted: at most 0.9, error over a constant's)" in why_not(metrics)


# ---------------------------------------------------------------- tables


def test_constant_and_nearest_neighbour_stand_beside_every_figure() -> None:
    rows = {e["metric"]: e for e in published.errors(measured(0.5, lambda qos: qos), [], "evaluate", "toy", 0.1)}
    assert (rows["a_oaa_cores_mae"]["constant"], rows["a_oaa_cores_mae"]["nearest"]) == (1.8, 1.0)
    assert rows["b_false_met"]["constant"] == 1.0
    assert rows["b_cliff_verdicts"]["no_worse"] is True
    assert "b_harm_pct" not in rows  # this model says nothing falsely
    for name in (n for n in measures.BALANCED if n != "harm_pct"):
        assert rows[f"b_{name}"]["constant"] is not None
        assert describe(f"b_{name}")[0] != f"b {name}".replace("_", " ")


def test_a_figure_of_one_side_is_not_judged() -> None:
    """ "Always met" has no error where QoS is met; that makes nobody worse than it."""
    found = measured(0.5, lambda qos: qos - 0.1)
    rows = {e["metric"]: e for e in published.errors(found, [], "evaluate", "toy", 0.1)}
    assert rows["b_error_met_pct"]["constant"] == 0.0
    assert rows["b_error_met_pct"]["no_worse"] is None
    assert rows["b_error_macro_pct"]["no_worse"] is True


# ---------------------------------------------------------------- ways


def cells_of(p99: list[list[float]], rps: float = 1.0) -> pl.DataFrame:
    """Cells of one plane; rows are 1, 2, ... cores, columns 1, 2, ... ways; NaN was not measured."""
    cells = [
        {"alloc_cores": c + 1.0, "alloc_ways": float(w + 1), "p99_ms": value}
        for c, row in enumerate(p99)
        for w, value in enumerate(row)
        if value == value
    ]
    key = {"service": "x", "rps": rps, "threads": 4, "mba_pct": 100, "nb_key": ""}
    return pl.DataFrame(cells).with_columns(*(pl.lit(v).alias(n) for n, v in key.items()))


def label_of(cores: float | None, ways_of: float | None, rps: float = 1.0) -> dict[str, Any]:
    key = {"service": "x", "rps": rps, "threads": 4, "mba_pct": 100, "neighbours": "", "qos_target_ms": 10.0}
    return {**key, "plane_id": f"p{rps:g}", "oaa_cores": cores, "oaa_ways": ways_of}


MISS, MET = 99.0, 5.0


def test_ways_at_fixed_cores_by_hand() -> None:
    """One core never does; two need four ways, three need two, four need one; the margin is one way."""
    grid = [
        [MISS, MISS, MISS, MISS, MISS],
        [MISS, MISS, MISS, MET, MET],
        [MISS, MET, MET, MET, MET],
        [MET, MET, MET, MET, MET],
    ]
    lines, planes = ways.make(cells_of(grid), pl.DataFrame([label_of(4.0, 2.0)]), margin=1)
    assert lines.select("alloc_cores", "at_oaa", "least_ways", "ways_at_cores").rows() == [
        (2.0, -2, 4.0, 5.0),
        (3.0, -1, 2.0, 3.0),
        (4.0, 0, 1.0, 2.0),
    ]
    assert planes.row(0, named=True) == {
        "plane_id": "p1",
        "oaa_cores": 4.0,
        "oaa_ways": 2.0,
        "oaa_ways_at_cores": 2.0,
        "ways_at_least_cores": 5.0,
        "ways_for_neighbours": 2.0,
    }


def test_a_cell_that_meets_between_two_that_miss_does_not_count() -> None:
    """Measurements need not be monotone; what was not measured says nothing either way."""
    least = ways.least_ways(
        np.array([[True, False, True, True], [False, False, True, False], [False, True, False, True]]),
        np.array([[True, True, True, True], [True, True, True, True], [True, True, False, True]]),
        np.array([1.0, 2.0, 3.0, 4.0]),
    )
    assert least[0] == 3.0
    assert np.isnan(least[1])
    assert least[2] == 2.0


def test_what_a_constant_knows_of_each_label_is_told(tmp_path: Path) -> None:
    """A plane without a feasible cell has no label; of the papers' ways a constant knows everything here, of the others not."""
    steep = [[MISS, MISS, MISS, MET], [MET, MET, MET, MET]]
    flat = [[MISS, MET, MET, MET], [MET, MET, MET, MET]]
    never = [[MISS, MISS, MISS, MISS], [MISS, MISS, MISS, MISS]]
    cells = pl.concat([cells_of(grid, rps) for rps, grid in ((1.0, steep), (2.0, flat), (3.0, never))])
    labels = pl.DataFrame([label_of(2.0, 2.0), label_of(2.0, 2.0, 2.0), label_of(None, None, 3.0)])
    cells.write_parquet(tmp_path / "cells.parquet")
    labels.write_parquet(tmp_path / "labels.parquet")
    found = ways.run(tmp_path, tmp_path / "ways", P.label)
    assert found["oaa_ways"] == {"planes": 2.0, "commonest": 2.0, "commonest_share": 1.0, "constant_mae": 0.0}
    assert found["ways_at_least_cores"]["constant_mae"] == 0.5
    assert found["ways_at_least_cores"]["commonest_share"] == 0.5
    planes = pl.read_parquet(tmp_path / "ways" / "labels.parquet")
    assert planes["plane_id"].to_list() == ["p1", "p2", "p3"]
    assert planes["ways_at_least_cores"].to_list() == [4.0, 3.0, None]
    assert planes["oaa_ways"].to_list() == [2.0, 2.0, None]


# ---------------------------------------------------------------- validation by service


def of_services(*names: str) -> Table:
    """Two planes a service: one to train, one to validate."""
    one = [[0.5, 1.5], [1.2, 1.8]]
    twice = [name for name in names for _ in range(2)]
    return planes([one] * len(twice), twice, ["train", "val"] * len(names), [(2, 2)] * len(twice))


def test_no_service_is_on_both_sides() -> None:
    table = of_services("a", "b", "c", "d", "e")
    rows = (table.part("train"), table.part("val"))
    found = by_service.split(table, rows, 0.2, 1)
    assert found is not None
    names = [set(table.plane_labels["service"].to_numpy()[table.plane[part]]) for part in found]
    assert len(names[0]) == 4
    assert len(names[1]) == 1
    assert not names[0] & names[1]
    assert sorted(np.concatenate(found)) == sorted(np.concatenate(rows))  # nothing is lost
    few = of_services("a", "b")
    assert by_service.split(few, (few.part("train"), few.part("val")), 0.2, 1) is None


def test_the_epoch_is_chosen_on_services_left_out_and_trained_again_with_all() -> None:
    table = of_services("a", "b", "c")
    rows = (table.part("train"), table.part("val"))
    asked: list[tuple[int, int, int | None]] = []

    def once(rows: Any, keep: int | None = None) -> Fitted:
        asked.append((len(rows[0]), len(rows[1]), keep))
        losses = [] if keep is not None else [{VAL_LOSS: loss} for loss in (3.0, 1.0, 2.0)]
        return Fitted({}, [], [], [], losses, steps=10, seconds=1.0)

    done = by_service.fit(once, table, rows, 0.2, 1)
    assert asked == [(16, 8, None), (24, 0, 1)]
    assert (done.steps, [e[VAL_LOSS] for e in done.history]) == (20, [3.0, 1.0, 2.0])
    asked.clear()
    by_service.fit(once, table, rows, None, 1)
    assert asked == [(12, 12, None)]


def test_the_weights_of_the_epoch_asked_for_are_kept(tmp_path: Path) -> None:
    """Trained for two epochs and kept after the first, the network is not the one of the second."""
    table = of_services("a", "b", "c")
    settings = params.Regression(epochs=2, min_steps=1, batch=8, dropout=0.0)
    rows = (table.part("train", "val"), np.empty(0, dtype=np.int64))
    first, second, last = (
        fit_oaa.fit_model(model_a.SPEC, table, settings, 1, tmp_path, rows=rows, keep=keep).weights for keep in (0, 1, None)
    )
    assert any(not np.array_equal(first[n], last[n]) for n in first)
    assert all(np.array_equal(second[n], last[n]) for n in last)


def test_data_sets_whose_figures_are_published_stay_as_they_were() -> None:
    assert P.split.share("demo-virtual") is None
    assert P.split.share("another") == 0.2
    assert params.Split().share("another") is None
