"""Models of many drawn platforms: inputs that carry over, the mixture, and the campaigns that they come from."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from collection import servers, tools
from collection.commands import surefoot
from collection.errors import InputError, ToolFailed
from collection.worlds import Worlds
from models import features, intervals, model_a, model_b, osml_a, relative
from pipelines import begin, params, worlds, worlds_transfer
from pipelines.artefact import bundle, worlds_bundle
from pipelines.errors import BadInput
from pipelines.fits import comparators, fit, fit_oaa, fitted, holdout, mapped, strange, tensors
from pipelines.fits.cliff import cliff_distance

SHORT = {"inputs": "relative", "epochs": 2, "min_steps": 200, "batch": 256, "dropout": 0.0}
P = params.Params.model_validate(
    {
        "worlds": {"rows": 1500, "asked_rows": 300, "validate_share": 0.4, "a": SHORT, "b": SHORT},
        "compare": {"rows": 2000, "rounds": 20, "leaves": 7},
    }
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three drawn worlds, measured."""
    out = tmp_path_factory.mktemp("worlds")
    done = CliRunner().invoke(surefoot, ["campaign", "worlds", "--worlds", "tune:7001..7003", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "tune-7003: measured, 3 of 3" in done.output
    return out


@pytest.fixture(scope="module")
def tables(data: Path) -> list[tensors.Table]:
    return [worlds.prepared(data / f"tune-{n}", P, P.worlds.rows) for n in (7001, 7002, 7003)]


def test_a_world_that_is_whole_is_not_measured_again(data: Path) -> None:
    before = (data / "tune-7001" / "manifest.json").stat().st_mtime_ns
    (data / "tune-7002" / worlds.DONE).unlink()  # as if it had been killed before its end
    done = CliRunner().invoke(surefoot, ["campaign", "worlds", "--worlds", "tune:7001..7003", "--out", str(data)])
    assert done.exit_code == 0, done.output
    assert "tune-7002: measured" in done.output
    assert "tune-7001" not in done.output
    assert (data / "tune-7001" / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("text", ["", "train", "train:0", "train:5..2", "memory-tune:1", "train:1..4294967296", "test:1,2"])
def test_worlds_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="RANGE:FIRST"):
        Worlds.parse(text)


def test_relative_inputs_mean_the_same_everywhere() -> None:
    """Twice the server, twice of all that is held, used and asked: shares and rates per request stay as they are."""
    drawn = np.random.default_rng(3)
    names = {q for i in relative.table().values() for q in i.quantities}
    small = {name: np.array([drawn.uniform(1.0, 9.0)]) for name in sorted(names)}
    same = {"qos_target_ms", "p99_ms", "ipc", "core_freq_mhz", "platform_mb_per_way"}
    large = {name: value * (1.0 if name in same else 2.0) for name, value in small.items()}
    carried = {
        n for n, i in relative.table().items() if np.isclose(i.of(small.__getitem__), i.of(large.__getitem__), atol=1e-12)[0]
    }
    sizes = {
        "busy_cores_log",
        "alloc_cores_log",
        "alloc_cache_log",
        "achieved_rps_log",
        "expected_cores_log",
        "expected_cache_log",
    }
    clipped = {n for n, i in relative.table().items() if i.of(small.__getitem__)[0] in (i.min, i.max)}
    assert carried | sizes == set(relative.table())
    assert not (sizes - clipped) & carried


def test_relative_inputs_need_what_they_are_made_of() -> None:
    def lacks(feature_set: str, ways: int) -> set[str]:
        return set(model_b.SPEC.relative) - set(features.candidates(model_b.SPEC.relative, feature_set, ways))

    assert {"ipc_log", "request_misses_log", "all_mbps_per_core_log"} < lacks("no-pmu", 11)
    assert {"alloc_cache_share", "way_mb_log", "expected_cache_log"} < lacks("full", 0)
    assert not {"headroom_log", "busy_share", "expected_cores_ratio_log"} & (lacks("no-pmu", 11) | lacks("full", 0))
    with pytest.raises(ValueError, match="has no inputs 'relative'"):
        osml_a.SPEC.inputs_of("relative")


def test_overload_and_idleness_have_a_value(tables: list[tensors.Table]) -> None:
    """An overloaded row is as far from its target as can be told; no row is lost for it."""
    table = tables[0]
    over = np.flatnonzero(np.isnan(table.p99_ms))
    assert len(over)
    assert set(table.values("headroom_log", over)) == {relative.table()["headroom_log"].min}
    every = table.matrix(model_a.SPEC.relative, np.arange(table.rows))
    assert np.isfinite(every).all()
    idle = relative.table()["request_misses_log"].of(lambda q: np.zeros(1))
    assert idle[0] == relative.table()["request_misses_log"].min


def test_a_mixture_has_each_platforms_own_size(tables: list[tensors.Table]) -> None:
    """Inputs are those of each world alone, labels are shares of its platform."""
    whole = worlds.mixture(tables)
    start = tables[0].rows + tables[1].rows
    own, there = np.arange(tables[2].rows), np.arange(start, start + tables[2].rows)
    for name in model_a.SPEC.relative:
        np.testing.assert_array_equal(whole.values(name, there), tables[2].values(name, own))
    cells = tables[2].cell[own]
    moved = cells + len(tables[0].cell_cores) + len(tables[1].cell_cores)
    for name in (n for n in model_b.SPEC.relative if n not in model_a.SPEC.relative):
        np.testing.assert_array_equal(whole.values(name, there, moved), tables[2].values(name, own, cells))
    names = ["oaa_cores", "oaa_ways", "oaa_cores_low", "rcliff_ways_high"]
    platform = tables[2].platform
    share = np.array([100 / (platform.cores if "cores" in n else platform.ways) for n in names])
    np.testing.assert_allclose(whole.labels(names)[whole.plane[there]], tables[2].labels(names)[tables[2].plane[own]] * share)
    assert not np.isfinite(whole.labels(["oaa_mbl_mbps"])).any()


def test_a_mixture_in_files_is_the_same(tables: list[tensors.Table], tmp_path: Path) -> None:
    """Values, questions and what they are about, to the last bit; and nothing is left in the folder."""
    held, filed = worlds.mixture(tables), worlds.mixture(iter(tables), tmp_path)
    assert list(tmp_path.iterdir()) == []
    rows = np.arange(held.rows)
    for near_share in (0.0, 0.5):
        asked = [holdout.questions(t, rows, 2.0, 5, near_share) for t in (held, filed)]
        for name in ("rows", "cells", "qos"):
            np.testing.assert_array_equal(getattr(asked[0], name), getattr(asked[1], name))
    np.testing.assert_array_equal(held.steps, filed.steps)
    for name in model_b.SPEC.relative:
        np.testing.assert_array_equal(*(t.values(name, asked[0].rows, asked[0].cells) for t in (held, filed)))
    assert held.about == filed.about


def test_memory_does_not_grow_with_the_cells_of_a_mixture(tables: list[tensors.Table], tmp_path: Path) -> None:
    """Of four times the worlds, each with as few rows, the peak is as high: labels alone grow."""
    few = np.arange(0, tables[0].rows, 30)
    columns = {name: values[few] for name, values in tables[0].columns.items()}
    of_rows = {name: getattr(tables[0], name)[few] for name in ("p99_ms", "achieved_rps", "cell", "plane")}
    one = replace(tables[0], columns=columns, **of_rows)
    spec = [features.Bound(name, -10.0, 10.0) for name in model_b.SPEC.relative]

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            whole = worlds.mixture((replace(one) for _ in range(count)), tmp_path)
            asked = holdout.questions(whole, np.arange(whole.rows), 2.0, 5, 0.5)
            fit.matrix(whole, asked.rows, spec, asked.cells)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    worlds_of = -(-2 * mapped.BLOCK // len(one.cell_cores))
    cells = 3 * worlds_of * len(one.cell_cores)
    assert peak(4 * worlds_of) - peak(worlds_of) < cells  # a byte a cell; there are 60 in the files


@pytest.fixture(scope="module")
def learnt(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Models of two worlds, trained twice and asked about the third; and what was measured."""
    out = tmp_path_factory.mktemp("learnt")
    two = [data / "tune-7001", data / "tune-7002"]
    return out, worlds.run(two, [data / "tune-7003"], out, P, [1, 2])


def test_learnt_on_some_worlds_asked_about_another(data: Path, learnt: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Every method answers for a platform that none was taught, in its cores and ways; the models are as a stage writes them."""
    out, found = learnt
    assert json.loads((out / "worlds.json").read_text()) == found
    assert set(json.loads((out / "headline.json").read_text())) == {"a_cores_mae", "a_ways_mae", "b_error_pct", "b_false_met"}
    assert set(found["methods"]) == {"network", "constant", "median", "nearest", "lightgbm"}
    for method, measured in found["methods"].items():
        for name in ("a_cores_mae", "a_ways_mae", "b_error_pct", "b_error_pct_valid", "a_cores_mae_over"):
            assert np.isfinite(measured[name]["mean"]), (method, name)
    network = found["methods"]["network"]["a_cores_mae"]
    assert network["least"] <= network["mean"] <= network["most"]
    assert network["least"] < network["most"]
    a = fitted.load(out / "a")
    assert [b.name for b in a.inputs] == list(model_a.SPEC.relative)
    assert not any(o.name == "oaa_mbl_mbps" for o in a.outputs)
    ends = {o.name for o in a.outputs if intervals.is_end(o.name)}
    assert a.setting("interval") == 0.9
    assert ends == {"oaa_cores_lower", "oaa_cores_upper", "oaa_ways_lower", "oaa_ways_upper"}
    assert a.weights[strange.WEIGHT].shape == (len(a.inputs), len(a.inputs))
    told = found["methods"]["network"]
    for name in ("b", "a_oaa_cores", "a_oaa_ways"):
        assert 0.0 < told[f"{name}_coverage"]["mean"] <= 1.0
        assert told[f"{name}_width"]["mean"] > 0.0
    assert "b_coverage" not in found["methods"]["lightgbm"]
    assert found["interval"] == found["kept_share"] == 0.9
    for of in found["kept"].values():
        assert of["least_wrong"]["mean"] <= min(of[by]["mean"] for by in ("all", "least_strange", "least_wide"))
    again = worlds.run([data / "tune-7001", data / "tune-7002"], [data / "tune-7003"], tmp_path, P, [1])
    assert again["methods"]["lightgbm"] == found["methods"]["lightgbm"]


def test_intervals_cover_the_worlds_that_they_were_calibrated_on(tables: list[tensors.Table], tmp_path: Path) -> None:
    """Of services that no network learnt from: within 2 % of what they say, however badly it was trained. So is the score."""
    whole = worlds.mixture(tables)
    last = np.arange(whole.plane_labels.height) >= sum(t.plane_labels.height for t in tables[:2])
    models = worlds.fit(whole, last, P.worlds, 3, tmp_path)
    rows = np.arange(tables[2].rows)
    labelled = rows[np.isfinite(tables[2].labels(["oaa_cores"])[tables[2].plane, 0])]
    questions = holdout.questions(tables[2], rows, P.worlds.b.qos_cap, 3)
    asked = comparators.Asked(tables[2], labelled, questions, cliff_distance(tables[2]))
    said = worlds.answered_by(models, asked)[0]
    assert said["b_coverage"] == pytest.approx(0.9, abs=0.02)
    assert said["a_oaa_cores_coverage"] == pytest.approx(0.9, abs=0.02)
    assert said["a_oaa_ways_coverage"] >= 0.88  # a label of whole ways may lie on the end itself
    assert said["strange_share"] == pytest.approx(0.1, abs=0.05)  # asked of labelled rows, placed on all
    plain = worlds.fit(whole, last, P.worlds.model_copy(update={"interval": None}), 3, tmp_path)
    assert [o.name for o in plain["b"].outputs] == ["qos"]
    assert worlds.answered_by(plain, asked)[1] == {}
    assert not any(strange.is_strangeness(name) for name in plain["a"].weights)


def test_a_bundle_of_a_server_that_no_campaign_has_seen(
    learnt: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made from a drawn server's size alone; its own policies run by it, and another server's do not."""
    monkeypatch.setenv("SUREFOOT_KEYS", str(tmp_path / "keys"))
    out = tmp_path / "bundles"
    command = ["bundle", "worlds", "--models", str(learnt[0]), "--out", str(out)]
    done = CliRunner().invoke(surefoot, [*command, "--platform", "tune:7003..7004", "--platform", "server-2"])
    assert done.exit_code == 0, done.output
    assert [line.split(":")[0] for line in done.output.splitlines()] == [
        f"ok {out / name}.tar" for name in ("tune-7003-p", "tune-7004-p", "server-2")
    ]
    told = bundle.inspect(out / "server-2.tar")
    assert (told["platform"]["cores"], told["platform"]["ways"], told["services"]) == (64.0, 12, {})
    assert "b_error_pct_drawn" in told["metrics"]
    assert "drawn services of 1 drawn servers" in told["card"]
    # what was a share of the machine is the same share of this one
    of_all, of_this = fitted.load(learnt[0] / "a"), bundle.verify(out / "server-2.tar").manifest.models.a
    share = {"oaa_cores": 0.64, "rcliff_cores": 0.64, "oaa_ways": 0.12, "rcliff_ways": 0.12}
    for own, now in zip(of_all.outputs, of_this.outputs, strict=True):
        of = share[intervals.central(own.name)]
        assert (now.scale, now.offset) == pytest.approx((own.scale * of, own.offset * of))

    def evaluated(which: str, *more: str) -> str:
        given = ["eval", "--worlds", which, "--policies", "osml-plus", "--bundles", out, "--out", tmp_path / "eval", *more]
        return tools.run(tools.SUREFOOTD, given)

    assert "4 workloads on 2 drawn servers" in evaluated("tune:7003..7004")
    with pytest.raises(ToolFailed, match=r"has no tune-7005-p\.tar\. Make it with `surefoot bundle worlds`"):
        evaluated("tune:7004..7005")
    again = CliRunner().invoke(surefoot, [*command, "--platform", "server-1", "--platform", "server-2"])
    assert isinstance(again.exception, BadInput)
    assert "is there already" in str(again.exception)
    assert not (out / "server-1").exists()


def test_only_models_of_worlds_are_bundled_for_any_server(learnt: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    server = worlds_bundle.Platform(name="x", cores=8.0, core_step=1.0, ways=11, mb_per_way=1.0, mba=False)
    worlds_bundle.spec(learnt[0], server)
    with pytest.raises(BadInput, match="platform x: its cache cannot be partitioned"):
        worlds_bundle.spec(learnt[0], server.model_copy(update={"ways": 0}))
    one = tmp_path / "one"
    shutil.copytree(learnt[0], one)
    summary = json.loads((one / "b" / "model.json").read_text())
    (one / "b" / "model.json").write_text(json.dumps(summary | {"campaign": "server-1"}))
    with pytest.raises(BadInput, match=r"b/model\.json: field campaign is 'server-1'"):
        worlds_bundle.spec(one, server)
    summary["inputs"][0]["name"] = "ipc"
    (one / "b" / "model.json").write_text(json.dumps(summary))
    with pytest.raises(BadInput, match=r"b/model\.json: field inputs: ipc means something else"):
        worlds_bundle.spec(one, server)


def test_models_of_a_training_that_did_not_end_are_refused(learnt: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """A folder with half of an older run is no models of one mixture, whatever reads it."""
    server = worlds_bundle.Platform(name="x", cores=8.0, core_step=1.0, ways=11, mb_per_way=1.0, mba=False)
    half = tmp_path / "half"
    shutil.copytree(learnt[0], half)
    summary = json.loads((half / "c" / "model.json").read_text())
    (half / "c" / "model.json").write_text(json.dumps(summary | {"data_sha256": "0" * 64}))
    with pytest.raises(BadInput, match=r"c/model\.json: field data_sha256: the model is of other worlds"):
        worlds_bundle.spec(half, server)
    (half / "worlds.json").unlink()
    for reads in (lambda: begin.read(half), lambda: worlds_transfer.run(half, [], tmp_path / "out", P, [0], [1])):
        with pytest.raises(BadInput, match=r"worlds\.json: is missing: the training did not come to its end"):
            reads()


def test_a_bundle_of_worlds_is_no_beginning(
    learnt: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks outputs that data of the platform call for: said before anything is collected."""
    monkeypatch.setenv("SUREFOOT_KEYS", str(tmp_path / "keys"))
    server = {"name": "x", "cores": 8.0, "core_step": 1.0, "ways": 11, "mb_per_way": 1.0, "mba": False}
    worlds_bundle.run(learnt[0], [server], tmp_path, None, False)
    with pytest.raises(BadInput, match="is a bundle of models of worlds; give the folder"):
        begin.read(tmp_path / "x.tar")
    for field, value in (("mb_per_way", 0.0), ("cores", "many")):
        with pytest.raises(BadInput, match=f"--platform x: field {field}"):
            worlds_bundle.run(learnt[0], [server | {field: value}], tmp_path / "none", None, False)
    assert not (tmp_path / "none").exists()


def test_a_host_says_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without counters, or where sysfs says nothing, there is no bundle that its node would take."""
    facts = {"name": "local", "cores": 8}

    def says(platform: Any, found: bool) -> None:
        told = {"platform": platform, "capabilities": [{"name": "pmu", "found": found}]}
        monkeypatch.setattr(tools, "run_json", lambda tool, args: told)

    says(facts, True)
    assert servers.facts(["local"]) == [facts]
    says(facts, False)
    with pytest.raises(InputError, match="--platform local: this host has no hardware counters"):
        servers.facts(["local"])
    says(None, True)
    with pytest.raises(InputError, match="does not say how many CPUs"):
        servers.facts(["local"])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--minutes", "nan"], "--minutes nan: want numbers of 0 or more"),
        (["--minutes", "0,-10"], "--minutes 0,-10: want numbers of 0 or more"),
        (["--seeds", "-1"], "--seeds -1: want whole numbers of 0 or more"),
        (["--seeds", "one"], "--seeds one: want numbers with commas between"),
    ],
)
def test_what_cannot_be_measured_is_refused(given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--models", "nowhere", "--ask", "nowhere", "--out", "nowhere"]
    assert worlds_transfer.main([*argv, *(f"{given[0]}={given[1]}",)]) == 2
    assert says in capsys.readouterr().err


def test_the_critic_of_a_mixture_is_the_same_function_on_a_smaller_server(learnt: tuple[Path, dict[str, Any]]) -> None:
    """Model-C's bounds are the platform's; what it says of the same cores and MB stays."""
    c = fitted.load(learnt[0] / "c")
    small = features.PlatformLimits("small", cores=4.0, core_step=1.0, ways=4, mb_per_way=1.0)
    now = worlds_bundle.moved(c, small)
    raw = np.array([[1.0, 1e6, 500.0, 2.0, 3.0, 3.0, 2500.0, 0.9][: len(c.inputs)]])

    def first_layer(weights: dict[str, Any], bounds: list[features.Bound]) -> Any:
        x = (raw - [b.min for b in bounds]) / [b.max - b.min for b in bounds]
        return x @ weights["actor.layers.0.weight"].T.astype(float) + weights["actor.layers.0.bias"]

    assert now.inputs != c.inputs
    np.testing.assert_allclose(first_layer(now.weights, now.inputs), first_layer(c.weights, c.inputs), rtol=1e-4, atol=1e-4)


def test_a_list_of_worlds_names_data_that_are_there(data: Path, tmp_path: Path) -> None:
    listed = data / "tune.json"
    assert worlds.folders([listed]) == [data / f"tune-{n}" for n in (7001, 7002, 7003)]
    with pytest.raises(BadInput, match="is given twice"):
        worlds.folders([listed, data / "tune-7002"])
    other = tmp_path / "tune.json"
    other.write_text(listed.read_text())
    with pytest.raises(BadInput, match=r"field worlds\.tune-7001: .* is not there"):
        worlds.folders([other])
    other.write_text("[]")
    with pytest.raises(BadInput, match="field worlds: lists no world"):
        worlds.folders([other])


def test_answers_stay_on_the_machine(tables: list[tensors.Table]) -> None:
    names, platform = ["oaa_cores", "oaa_ways"], tables[0].platform
    said = worlds.within(np.array([[-3.0, 99.0], [1e9, 0.0]]), names, platform)
    assert said.tolist() == [[platform.core_step, float(platform.ways)], [platform.cores, 1.0]]


def test_folders_that_are_no_worlds_are_refused(tmp_path: Path, data: Path) -> None:
    with pytest.raises(BadInput, match="campaign worlds"):
        worlds.prepared(tmp_path, P, 100)
    with pytest.raises(BadInput, match="two or more"):
        worlds.run([data / "tune-7001"], [data / "tune-7002"], tmp_path, P, [1])
    with pytest.raises(BadInput, match="in --train, too"):
        worlds.run([data / "tune-7001", data / "tune-7002"], [data / "tune-7002"], tmp_path, P, [1])


def test_what_is_kept_of_a_world_goes_with_its_settings(data: Path) -> None:
    """Other settings, other rows: nothing is answered from what was made before."""
    folder = data / "tune-7003"
    many = worlds.prepared(folder, P, 1200).rows
    few = worlds.prepared(folder, P, 300).rows
    assert few <= 300 < many <= 1200
    assert worlds.prepared(folder, P, P.worlds.rows).rows > many


def test_variants_go_together() -> None:
    with pytest.raises(ValueError, match="give both one"):
        params.Params.model_validate({"train": {"a": SHORT}})
    with pytest.raises(ValueError, match=r"osml_a\.inputs|'paper'"):
        params.Params.model_validate({"train": {"osml_a": SHORT}})


def test_one_data_set_can_have_relative_inputs(tables: list[tensors.Table], tmp_path: Path) -> None:
    """The variant goes with the stage `train` as well: the bounds are the fixed ones."""
    p = params.Regression.model_validate({"inputs": "relative", **{k: v for k, v in SHORT.items() if k != "inputs"}})
    a = fit_oaa.fit_model(model_a.SPEC, tables[0], p, 1, tmp_path)
    assert [(b.name, b.min, b.max) for b in a.inputs] == [
        (n, relative.table()[n].min, relative.table()[n].max) for n in model_a.SPEC.relative
    ]
