"""Labels: RCliff and OAA of a plane, and what becomes of rows that are no measurement."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from synthetic import SERVICES, Campaign, p99_ms, write

from pipelines import label, label_vectors, params, samples
from pipelines.errors import BadInput, NoFeasibleCell

INF, NAN = math.inf, math.nan


def test_the_cheapest_edge_cell_is_the_rcliff_and_oaa_is_one_step_off() -> None:
    """Moses in small: from (2 cores, 2 ways) one core or one way less costs a hundredfold."""
    grid = np.array(
        [
            [900.0, 800.0, 700.0, 600.0],
            [500.0, 4.0, 3.9, 3.8],
            [450.0, 3.8, 3.7, 3.6],
            [400.0, 3.7, 3.6, 3.5],
        ]
    )
    found = label.label_plane(grid, 10.0)
    assert (found.rcliff_cores, found.rcliff_ways) == (2.0, 2.0)
    assert (found.oaa_cores, found.oaa_ways) == (3.0, 3.0)
    assert found.kind == "exact"


def test_oaa_is_clamped_to_the_machine() -> None:
    grid = np.array([[50.0, 40.0], [30.0, 5.0]])
    found = label.label_plane(grid, 10.0, margin_steps=(2, 2))
    assert (found.oaa_cores, found.oaa_ways) == (found.rcliff_cores, found.rcliff_ways) == (2.0, 2.0)


def test_oaa_meets_qos_even_where_measurements_are_not_monotone() -> None:
    """One step off the RCliff lies a cell that misses the target: OAA goes on to the next that meets it."""
    grid = np.array([[90.0, 80.0, 80.0], [70.0, 5.0, 5.0], [70.0, 5.0, 60.0], [70.0, 5.0, 5.0]])
    found = label.label_plane(grid, 10.0)
    assert (found.rcliff_cores, found.rcliff_ways) == (2.0, 2.0)
    assert grid[found.oaa_row, found.oaa_column] <= 10.0
    assert found.oaa_cores >= 3.0
    assert found.oaa_ways >= 3.0


def test_no_feasible_cell_is_an_error_with_the_remedy() -> None:
    with pytest.raises(NoFeasibleCell, match=r"best p99 12 ms.*lower the load or check the target"):
        label.label_plane(np.array([[30.0, 20.0], [15.0, 12.0]]), 10.0)
    with pytest.raises(NoFeasibleCell, match="overloaded"):
        label.label_plane(np.array([[INF, INF]]), 10.0)


def test_one_dimension_has_a_cliff_over_cores_alone() -> None:
    """A host without cache partitioning: cores in steps of 0.1."""
    cores = [0.1, 0.2, 0.3, 0.4, 0.5]
    found = label.label_plane(np.array([[INF], [80.0], [4.0], [3.5], [3.4]]), 10.0, core_values=cores, way_values=[0.0])
    assert found.rcliff_cores == 0.3
    assert found.oaa_cores == 0.4
    assert found.oaa_ways == 0.0


def test_unmeasured_cells_get_bounds_not_guesses() -> None:
    """Met above what is met, missed below what is missed, unknown between."""
    grid = np.array([[NAN, NAN, NAN], [90.0, NAN, 5.0], [NAN, NAN, NAN]])
    state = label.fill_by_monotony(grid, 10.0)
    assert state.tolist() == [[0, -1, -1], [0, -1, 1], [-1, -1, 1]]


def test_a_label_that_an_unmeasured_cell_could_move_is_bounded() -> None:
    full = np.array([[90.0, 80.0, 70.0], [60.0, 5.0, 4.9], [50.0, 4.8, 4.7]])
    assert label.label_plane(full, 10.0).kind == "exact"
    holed = full.copy()
    holed[0, 1] = NAN  # one core less at the RCliff: at least 70 ms, so still the cliff
    assert label.label_plane(holed, 10.0).kind == "exact"
    holed[0, 1:] = NAN  # now it could meet QoS, and be cheaper
    found = label.label_plane(holed, 10.0)
    assert (found.kind, found.rcliff_cores, found.rcliff_ways) == ("bounded", 2.0, 2.0)
    assert (found.rcliff_cores_bounds, found.rcliff_ways_bounds) == ((1.0, 2.0), (2.0, 3.0))


@pytest.mark.parametrize("axis", [0, 1])
def test_only_the_last_step_costs_everything(axis: int) -> None:
    """Below the platform's least there is nothing; below the first swept value there is what nobody measured."""
    grid = np.array([[9.0, 8.0], [3.0, 2.0]])
    first = np.take(label.slowdown(grid, axis), 0, axis=axis)
    assert np.isposinf(first).all()
    first = np.take(label.slowdown(grid, axis, first_is_least=False), 0, axis=axis)
    assert np.isnan(first).all()
    second = [np.take(label.slowdown(grid, axis, first_is_least=least), 1, axis=axis) for least in (True, False)]
    assert np.array_equal(*second)
    assert np.isfinite(second).all()


def test_a_sweep_that_starts_above_the_least_has_no_cliff_at_its_start() -> None:
    """QoS is met from the first of 4, 5, 6 cores on: the RCliff may lie below, so the label is bounded."""
    grid, cores = np.array([[9.0], [3.0], [2.9]]), [4.0, 5.0, 6.0]
    found = label.label_plane(grid, 10.0, core_values=cores, way_values=[0.0])
    assert (found.rcliff_cores, found.kind) == (5.0, "bounded")  # where the measured step costs the most
    found = label.label_plane(grid, 10.0, core_values=cores, way_values=[0.0], least=(4.0, 1.0))
    assert (found.rcliff_cores, found.kind) == (4.0, "exact")
    # the same over ways
    found = label.label_plane(grid.T, 10.0, core_values=[1.0], way_values=cores)
    assert (found.rcliff_ways, found.kind) == (5.0, "bounded")
    # a single value says nothing about less
    found = label.label_plane(grid[:1], 10.0, core_values=cores[:1], way_values=[0.0])
    assert (found.rcliff_cores, found.kind) == (4.0, "bounded")


def test_a_sweep_that_starts_where_qos_is_missed_stays_exact() -> None:
    """4 cores miss the target, so fewer do as well."""
    grid = np.array([[900.0, 800.0, 700.0], [500.0, 4.0, 3.9], [450.0, 3.8, 3.7]])
    found = label.label_plane(grid, 10.0, core_values=[4.0, 5.0, 6.0])
    assert (found.rcliff_cores, found.rcliff_ways, found.kind) == (5.0, 2.0, "exact")


surfaces = st.tuples(
    st.sampled_from(SERVICES), st.floats(200.0, 4000.0), st.integers(1, 16), st.integers(1, 10), st.floats(5.0, 60.0)
)


def surface(case: tuple) -> tuple[np.ndarray, float]:
    service, rps, n_cores, n_ways, target = case
    grid = np.array([[p99_ms(service, rps, c, w) for w in range(1, n_ways + 1)] for c in range(1, n_cores + 1)])
    return grid, target


@settings(max_examples=150, deadline=None)
@given(surfaces)
def test_labels_of_queueing_surfaces_hold_together(case: tuple) -> None:
    """RCliff meets QoS; OAA meets QoS, is no smaller than the RCliff and at most the margin away."""
    grid, target = surface(case)
    assume((grid <= target).any())
    found = label.label_plane(grid, target)
    row, column = int(found.rcliff_cores) - 1, int(found.rcliff_ways) - 1
    assert grid[row, column] <= target
    assert grid[found.oaa_row, found.oaa_column] <= target
    assert found.oaa_row >= row
    assert found.oaa_column >= column
    assert found.oaa_row <= min(row + 1, grid.shape[0] - 1)  # the surface is monotone: no detour
    assert found.kind == "exact"


@settings(max_examples=80, deadline=None)
@given(surfaces, st.floats(0.01, 100.0))
def test_labels_do_not_depend_on_the_unit_of_latency(case: tuple, factor: float) -> None:
    grid, target = surface(case)
    # Cells at the very target may round either way.
    assume((grid <= target).any() and not np.isclose(grid, target, rtol=1e-9).any())
    assert label.label_plane(grid, target) == label.label_plane(grid * factor, target * factor)


@settings(max_examples=80, deadline=None)
@given(surfaces, st.integers(0, 2**32 - 1), st.floats(0.0, 0.6))
def test_bounds_never_contradict_the_truth(case: tuple, seed: int, hidden: float) -> None:
    """On monotone surfaces whatever the bounds say of a hidden cell is true of it."""
    grid, target = surface(case)
    holed = np.where(np.random.default_rng(seed).random(grid.shape) < hidden, NAN, grid)
    state = label.fill_by_monotony(holed, target)
    monotone = np.minimum.accumulate(np.minimum.accumulate(grid, axis=0), axis=1)
    assume(np.array_equal(monotone, grid))
    assert np.all((grid <= target)[state == 1])
    assert np.all((grid > target)[state == 0])


# ---------------------------------------------------------------- the stage


def run(folder: Path, out: Path) -> tuple[dict, pl.DataFrame, pl.DataFrame]:
    metrics = label.run(folder, out, params.Label())
    return metrics, pl.read_parquet(out / "labels.parquet"), pl.read_parquet(out / "cells.parquet")


def test_verdicts_other_than_valid_are_counted_and_never_measured(tmp_path: Path) -> None:
    """Client-limited rows vanish, overloaded cells miss QoS, unresolvable cells are unknown: all of them counted."""
    c = Campaign(client_limited_every=7, unresolvable_every=11, loads=(1600.0, 3200.0))
    folder = write(tmp_path / "data", c)
    rows = pl.concat([pl.read_parquet(p) for p in (folder / "shards").glob("*.parquet")])
    metrics, labels, cells = run(folder, tmp_path / "out")
    by_verdict = dict(rows["verdict"].value_counts().iter_rows())
    assert metrics["rows"] == {v.replace("-", "_"): by_verdict.get(v, 0) for v in samples.VERDICTS}
    assert metrics["rows_dropped"] == by_verdict["client-limited"] > 0
    assert sum(metrics["cells"].values()) == cells.height
    limited = rows.filter(pl.col("verdict") == "client-limited").select("service", "rps", "alloc_cores", "alloc_ways").unique()
    assert cells.join(limited, on=limited.columns, how="inner").height == 0
    assert cells.filter(pl.col("status") == "overloaded")["p99_ms"].is_infinite().all()
    assert cells.filter(pl.col("status") == "unknown")["p99_ms"].null_count() == metrics["cells"]["unknown"] > 0
    assert labels["cells_overloaded"].sum() == metrics["cells"]["overloaded"] > 0


def test_a_plane_without_a_feasible_cell_is_recorded_not_invented(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", Campaign(loads=(1600.0, 20000.0)))
    metrics, labels, _ = run(folder, tmp_path / "out")
    lost = labels.filter(pl.col("rps") == 20000.0)
    assert metrics["planes"]["no_feasible_cell"] == lost.height == 3
    assert lost["oaa_cores"].null_count() == 3
    assert lost["reason"].str.contains("lower the load").all()
    assert (lost["split"] == "none").all()


def test_labels_of_the_stage_are_those_of_the_true_surface(tmp_path: Path) -> None:
    """Without noise the stage's labels equal label_plane on the exact surface."""
    folder = write(tmp_path / "data", Campaign(noise=0.0))
    _, labels, _ = run(folder, tmp_path / "out")
    assert labels.height == 12
    by_name = {s.name: s for s in SERVICES}
    for row in labels.iter_rows(named=True):
        s = by_name[row["service"]]
        grid = np.array([[p99_ms(s, row["rps"], c, w) for w in range(1, 7)] for c in range(1, 13)])
        truth = label.label_plane(grid, s.qos_target_ms)
        assert (row["oaa_cores"], row["oaa_ways"]) == (truth.oaa_cores, truth.oaa_ways)
        assert (row["rcliff_cores"], row["rcliff_ways"]) == (truth.rcliff_cores, truth.rcliff_ways)


def test_neighbours_make_planes_by_name_and_load_not_by_what_they_hold(tmp_path: Path) -> None:
    c = Campaign(neighbours=((), (("beta", 800.0),), (("gamma", 800.0), ("beta", 1600.0))), loads=(1600.0,), noise=0.0)
    _, labels, _ = run(write(tmp_path / "data", c), tmp_path / "out")
    assert labels.height == 9
    assert set(labels["neighbours"]) == {"", "beta@800.0", "beta@1600.0+gamma@800.0"}
    assert (labels["cells"] == 72).all()


def test_a_host_without_ways_has_no_way_labels(tmp_path: Path) -> None:
    steps = tuple(round(0.1 * k, 1) for k in range(1, 21))
    c = Campaign(ways=0, cores=2.0, core_step=0.1, core_values=steps, feature_set="no-pmu", loads=(200.0, 300.0))
    _, labels, _ = run(write(tmp_path / "data", c), tmp_path / "out")
    assert labels["oaa_ways"].null_count() == labels.height
    assert labels["rcliff_ways"].null_count() == labels.height
    found = labels.drop_nulls("oaa_cores")
    assert found.height > 0
    assert (found["oaa_cores"] > found["rcliff_cores"]).all()


def test_the_stage_knows_the_least_of_the_platform(tmp_path: Path) -> None:
    """A light load meets QoS on the fewest swept cores: exact if the platform has no fewer, else bounded."""
    light = Campaign(loads=(100.0,), samples=1, noise=0.0)
    _, whole, _ = run(write(tmp_path / "whole", light), tmp_path / "whole-out")
    assert set(whole["kind"]) == {"exact"}
    light.core_values = tuple(float(c) for c in range(4, 13))
    _, partial, _ = run(write(tmp_path / "partial", light), tmp_path / "partial-out")
    assert set(partial["kind"]) == {"bounded"}
    light.core_step = 4.0
    light.core_values = (4.0, 8.0, 12.0)
    _, coarse, _ = run(write(tmp_path / "coarse", light), tmp_path / "coarse-out")
    assert set(coarse["kind"]) == {"exact"}


def test_planes_are_split_whole_and_by_service() -> None:
    ids = [f"plane-{k}" for k in range(40)]
    services = ["a", "b"] * 20
    parts = label.split_planes(ids, services, 0.2, 0.1, 1)
    assert parts == label.split_planes(ids, services, 0.2, 0.1, 1)
    for service in "ab":
        own = [p for p, s in zip(parts, services, strict=True) if s == service]
        assert own.count("test") == 4
        assert own.count("val") == 2
    assert label.split_planes(["x", "y"], ["a", "b"], 0.2, 0.1, 1).count("test") == 1


def spoil(folder: Path, change) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(schema_version=9), "schema_version is 9"),
        (lambda m: m.update(feature_set="half"), "feature_set is 'half'"),
        (lambda m: m.pop("shards"), "field shards is missing"),
        (lambda m: m["platform"].pop("cores"), "platform: field 'cores' is missing"),
        (lambda m: m["services"].pop("beta"), r"services\.beta: no QoS target"),
        (lambda m: m["shards"][0].update(file="shards/none.parquet"), "none.parquet: shard is missing"),
        (lambda m: m.update(shards=[]), "no samples"),
    ],
)
def test_a_damaged_manifest_is_refused_with_file_and_field(tmp_path: Path, change, message: str) -> None:
    folder = write(tmp_path / "data", Campaign(loads=(1600.0,), samples=1))
    spoil(folder, change)
    with pytest.raises(BadInput, match=message):
        label.run(folder, tmp_path / "out", params.Label())
    assert not (tmp_path / "out").exists()


def test_a_changed_or_truncated_shard_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "data", Campaign(loads=(1600.0,), samples=1))
    shard = folder / "shards" / "00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-20])
    (tmp_path / "params.yaml").write_text("label: {seed: 1}\n")
    code = label.main(["--data", str(folder), "--out", str(tmp_path / "out"), "--params", str(tmp_path / "params.yaml")])
    assert code == 2
    assert "00001.parquet: shard differs from its SHA-256" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_data_set_says_how_to_collect_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"data set is missing; collect it with `surefoot campaign run"):
        label.run(tmp_path / "nothing", tmp_path / "out", params.Label())


def test_params_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("label: {margin_wayz: 2}\n")
    with pytest.raises(BadInput, match=r"label\.margin_wayz"):
        params.load(path)
    path.write_text("train: {a: {dropout: 1.5}}\n")
    with pytest.raises(BadInput, match=r"train\.a\.dropout"):
        params.load(path)
    shipped = params.load(Path(__file__).parents[1] / "params.yaml")
    assert (shipped.train.osml_b.dropout, shipped.train.osml_bp.loss) == (0.0, "absolute")  # an alias of osml_a's


@settings(max_examples=150, deadline=None)
@given(surfaces, st.integers(0, 2**32 - 1), st.floats(0.0, 0.97))
def test_a_label_from_few_cells_is_the_whole_planes_or_says_so(case: tuple, seed: int, hidden: float) -> None:
    """On monotone surfaces an exact label is the one of all cells, and a bounded one has it within its bounds."""
    grid, target = surface(case)
    grid = np.minimum.accumulate(np.minimum.accumulate(grid, axis=0), axis=1)
    assume((grid <= target).any())
    whole = label.label_plane(grid, target)
    try:
        part = label.label_plane(np.where(np.random.default_rng(seed).random(grid.shape) < hidden, NAN, grid), target)
    except NoFeasibleCell:
        return
    for name in ("rcliff_cores", "rcliff_ways", "oaa_cores", "oaa_ways"):
        low, high = getattr(part, f"{name}_bounds")
        assert low <= getattr(whole, name) <= high
        assert low <= getattr(part, name) <= high
        assert part.kind == "bounded" or getattr(part, name) == getattr(whole, name)


def test_the_vectors_of_the_search_are_of_this_definition() -> None:
    """`cargo test -p surefoot-search` proves that its labels are these; anew: python -m pipelines.label_vectors FILE."""
    assert (Path(__file__).parent / "vectors" / "labels.json").read_text("utf-8") == label_vectors.text()
