"""From models of many worlds to one of a new server, by few samples: what is learnt from, what is kept, what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from collection.commands import surefoot
from models import export, intervals, model_a
from pipelines import params, worlds, worlds_transfer
from pipelines.errors import BadInput
from pipelines.fits import adapt, fitted, holdout, strange
from pipelines.fits.tensors import Table

SHORT = {"inputs": "relative", "epochs": 2, "min_steps": 200, "batch": 256, "dropout": 0.0}
FEW = {**SHORT, "min_steps": 40, "batch": 64, "begun_lr": 2e-4, "loss": "absolute"}
P = params.Params.model_validate(
    {
        "worlds": {"rows": 5000, "asked_rows": 200, "validate_share": 0.4, "a": SHORT, "b": SHORT, "few_a": FEW, "few_b": FEW},
        "compare": {"rows": 500, "rounds": 2, "leaves": 3},
    }
)
S = P.worlds


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three drawn worlds, measured."""
    out = tmp_path_factory.mktemp("transfer")
    done = CliRunner().invoke(surefoot, ["campaign", "worlds", "--worlds", "tune:7101..7103", "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out


@pytest.fixture(scope="module")
def taught(data: Path) -> Path:
    """Models of two of them."""
    out = data / "models"
    worlds.run([data / "tune-7101", data / "tune-7102"], [data / "tune-7103"], out, P, [1])
    return out


@pytest.fixture(scope="module")
def models(taught: Path) -> dict[str, fitted.Fitted]:
    return {letter: adapt.plain(fitted.load(taught / letter)) for letter in "ab"}


def test_what_few_samples_move_has_no_interval(taught: Path, models: dict[str, fitted.Fitted]) -> None:
    """Nor a score; what it says otherwise is what it said."""
    whole = fitted.load(taught / "a")
    names = [s.name for s in whole.outputs]
    assert any(intervals.is_end(name) for name in names)
    plain = models["a"]
    assert not any(intervals.is_end(s.name) for s in plain.outputs)
    assert set(plain.weights) == {n for n in whole.weights if not strange.is_strangeness(n)}
    x = np.random.default_rng(2).random((5, len(whole.inputs)), dtype=np.float32)
    middle = [names.index(s.name) for s in plain.outputs]
    network = {n: w for n, w in whole.weights.items() if not strange.is_strangeness(n)}
    # another shape of a product may round otherwise
    np.testing.assert_allclose(export.forward(plain.weights, x), export.forward(network, x)[:, middle], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def table(data: Path) -> Table:
    return worlds.mixture([worlds.prepared(data / "tune-7103", P, S.rows)])


def campaign(table: Table, models: dict[str, fitted.Fitted]) -> worlds_transfer.Campaign:
    return worlds_transfer.Campaign(table, worlds_transfer.drawn(table, S, 1)[1], models, S, 1)


def test_all_methods_are_measured_on_the_same_samples(data: Path, taught: Path, tmp_path: Path) -> None:
    """As they are without a sample, the others with as many cells as the minutes hold; gains are those over `nothing`."""
    found = worlds_transfer.run(taught, [data / "tune-7103"], tmp_path, P, [0, 10], [1, 2], told=lambda _: None)
    assert json.loads((tmp_path / "transfer.json").read_text()) == found
    # ten minutes are 50 cells of 12 s, five planes of ten
    assert found["planes"] == {"0": 0, "10": 5}
    lines = pl.read_csv(tmp_path / "transfer.csv")
    spent = lines.filter(pl.col("minutes") == 10)
    assert set(spent["planes"]) == {5}
    assert 25 <= spent["cells"].min() <= spent["cells"].max() <= 50  # type: ignore[operator]
    told = {(line["choice"], line["method"], line["part"]) for line in found["lines"]}
    some = {("", "as-is"), *(("random", m) for m in ("nothing", *adapt.METHODS)), ("gain", "nothing"), ("gain", "blend")}
    assert told == {(*way, part) for way in some for part in worlds_transfer.PARTS}
    by = {(line["choice"], line["method"], line["part"]): line for line in found["lines"]}
    copied, nothing = (by["random", method, "others"]["a_mae"] for method in ("copy", "nothing"))
    assert by["random", "copy", "others"]["a_gain_pct"] == pytest.approx(100 * (1 - copied["mean"] / nothing["mean"]))
    assert nothing["least"] < nothing["mean"] < nothing["most"]


@pytest.mark.parametrize("method", ["nothing", *adapt.METHODS])
def test_what_was_not_measured_teaches_nothing(method: str, table: Table, models: dict[str, fitted.Fitted]) -> None:
    """Other QoS and other labels where nothing was measured: the same weights, bit for bit."""
    got = campaign(table, models).measure(4, "random")
    rng = np.random.default_rng(1)
    qos = np.where(np.isin(np.arange(len(table.cell_qos)), got.cells), table.cell_qos, rng.uniform(0, 2, len(table.cell_qos)))
    labels = table.plane_labels.with_columns(
        pl.when(pl.int_range(pl.len()).is_in(got.planes.tolist())).then(pl.col(name)).otherwise(1.0).alias(name)
        for name in table.plane_labels.columns
        if name.startswith(("oaa_c", "oaa_w", "rcliff_"))
    )
    other = replace(table, cell_qos=qos, plane_labels=labels)
    here, there = (worlds_transfer.adapted([method], models, t, got, S, 1)[method] for t in (table, other))
    for letter in "ab":
        for name, weights in here[letter].weights.items():
            np.testing.assert_array_equal(weights, there[letter].weights[name], err_msg=f"{letter}: {name}")
        assert not all(np.array_equal(w, models[letter].weights[n]) for n, w in here[letter].weights.items())


def test_services_and_planes_that_are_asked_about_are_never_measured(
    data: Path, table: Table, models: dict[str, fitted.Fitted]
) -> None:
    others, candidates = worlds_transfer.drawn(table, S, 1)
    asked = worlds_transfer.asked_parts(worlds.asked_of(worlds.prepared(data / "tune-7103", P, S.rows), P, 1), others, candidates)
    for part in asked.values():
        assert len(part.rows)
        assert not set(table.plane[part.rows]) & set(candidates)
        assert not set(table.plane[part.questions.rows]) & set(candidates)
    service = table.plane_labels["service"].to_numpy()
    assert set(service[table.plane[asked["others"].rows]]) <= set(others)
    assert not set(service[candidates]) & set(others)
    for how in worlds_transfer.CHOICES:
        assert set(campaign(table, models).measure(99, how).planes) <= set(candidates)


def test_by_gain_each_service_comes_once_before_any_comes_twice(table: Table, models: dict[str, fitted.Fitted]) -> None:
    """What a short campaign measures is the beginning of what a longer one does."""
    service = table.plane_labels["service"].to_numpy()
    some, more = (campaign(table, models).measure(n, "gain") for n in (4, 9))
    assert more.planes[:4].tolist() == some.planes.tolist()
    assert len(set(service[some.planes])) == 4
    assert len(set(more.planes)) == 9
    # a search of 5 cells, and 5 more, of each
    assert len(more.cells) == 90 == len(set(more.cells))


def test_overloaded_rows_are_held_to_what_the_model_says(table: Table, models: dict[str, fitted.Fitted]) -> None:
    rows = np.arange(table.rows)[::5]
    lesson = adapt.lesson_a(table, rows, models["a"])
    held = adapt.held(lesson, models["a"])
    over = holdout.overloaded(table, rows)
    assert over.any()
    assert not over.all()
    np.testing.assert_array_equal(held.low[~over], lesson.low[~over])
    known = np.isfinite(lesson.low[over]).all(axis=1)
    assert (held.low[over][known] == held.high[over][known]).all()
    assert not np.array_equal(held.low[over][known], lesson.low[over][known])


def test_the_more_planes_the_nearer_to_the_copy(table: Table, models: dict[str, fitted.Fitted]) -> None:
    """No plane: the model. As many as it counts as: half-way. Very many: the copy."""
    lesson = adapt.lesson_a(table, np.arange(300), models["a"])
    copied = adapt.copy(model_a.SPEC, lesson, models["a"], S.few_a, 1)
    name = "layers.0.weight"
    before, after = models["a"].weights[name], copied.weights[name]
    assert not np.array_equal(before, after)
    for planes, share in ((0, 0.0), (30, 0.5), (10**9, 1.0)):
        mixed = adapt.blend(models["a"], copied, planes, 30.0).weights[name]
        np.testing.assert_allclose(mixed, before + share * (after - before), atol=1e-6)


def test_a_copy_begins_as_the_model_that_it_is_of(table: Table, models: dict[str, fitted.Fitted]) -> None:
    """With next to no rate nothing moves: the inputs' scaling in training is taken back."""
    lesson = adapt.lesson_a(table, np.arange(300), models["a"])
    still = S.few_a.model_copy(update={"begun_lr": 1e-9})
    copied = adapt.copy(model_a.SPEC, lesson, models["a"], still, 1)
    for name, weights in models["a"].weights.items():
        np.testing.assert_allclose(copied.weights[name], weights, rtol=1e-4, atol=1e-5, err_msg=name)


def test_outputs_move_as_far_as_they_are_let(table: Table, models: dict[str, fitted.Fitted]) -> None:
    """The last layer alone; hardly held it answers the samples better, held for good it stays."""
    a = models["a"]
    lesson = adapt.lesson_a(table, np.arange(0, table.rows, 7), a)
    lesson = replace(lesson, low=lesson.low + 30.0, high=lesson.high + 30.0)
    free, fast = (adapt.outputs(lesson, a, hold) for hold in (0.01, 1e9))
    for name, weights in a.weights.items():
        assert np.array_equal(free.weights[name], weights) == (not name.startswith("layers.3."))
    before, moved, kept = (export.forward(m.weights, lesson.x) for m in (a, free, fast))
    np.testing.assert_allclose(kept, before, atol=1e-3)
    assert (moved - before).mean() > 0.1


def test_what_ten_minutes_more_bring_follows_from_the_rounds_before() -> None:
    """Errors of 1 + 10 / minutes: 1.5 after 20 minutes, and 1 + 1/3 after 30, 11.1 % lower. One round tells nothing."""
    lines = [{"minutes": m, "e": 1.0 + 10.0 / m if m else 9.0} for m in (0.0, 10.0, 20.0)]
    assert worlds_transfer.next_ten(lines, "e") == pytest.approx(100 * (10 / 20 - 10 / 30) / 1.5)
    assert worlds_transfer.next_ten(lines[:2], "e") is None
    rising = [{"minutes": m, "e": m} for m in (10.0, 20.0)]
    assert worlds_transfer.next_ten(rising, "e") == 0.0


def test_a_curve_goes_by_what_cells_cost(data: Path, models: dict[str, fitted.Fitted]) -> None:
    """A round is ten minutes; the last has all cells that were measured; held-out planes are in none."""
    own = worlds.prepared(data / "tune-7103", P, S.rows)
    held_out = own.plane_labels.filter(pl.col("split") == "test").height
    in_rows = np.unique(own.cell)
    is_test = (own.plane_labels["split"] == "test").to_numpy()
    count = int((np.isfinite(own.cell_qos[in_rows]) & ~is_test[own.cell_plane[in_rows]]).sum())
    cheap = P.model_copy(update={"worlds": S.model_copy(update={"cell_s": 60.0 * 25.0 / count})})
    lines = worlds_transfer.curve(models, own, cheap, 1)
    assert [line["minutes"] for line in lines] == pytest.approx([0.0, 10.0, 20.0, 25.0])
    assert [lines[0]["cells"], lines[-1]["cells"]] == [0, count]
    assert lines[-1]["planes"] <= own.plane_labels.height - held_out
    assert lines[-1]["b_next_pct"] >= 0.0
    made = worlds_transfer.of_platform("a", models, own, S, 1)
    assert {s.name for s in made.outputs} == {s.name for s in models["a"].outputs}
    # of the platform's own cores and ways now
    ratio = made.outputs[0].scale / models["a"].outputs[0].scale
    assert ratio == pytest.approx(own.platform.cores / 100.0)


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(BadInput, match=r"--minutes 0,x: want numbers"):
        worlds_transfer.numbers("0,x", "--minutes", float)
