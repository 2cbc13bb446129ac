"""The registry: one version a content, aliases that move only when the gate holds, nothing in it that could run."""

from __future__ import annotations

import itertools
import json
import pickletools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from models.features import ACTIONS, Bound, Scale
from pipelines import params, register, tracking
from pipelines.errors import BadInput
from pipelines.fits import fitted, signature
from pipelines.fits.fitted import Fitted
from pipelines.io import sha256_file, write_json
from pipelines.register import CANDIDATE, CHAMPION

ROOT = Path(__file__).parents[1]
INPUTS = ("llc_misses_per_s", "ipc", "alloc_cores")  # no alphabetical order

GATE = params.Gate.model_validate(
    {
        "a": [
            {"metric": "a_oaa_cores_mae", "at_most": 2.0, "worse_by_pct": 10},
            {"metric": "a_oaa_ways_vs_best", "at_most": 1.1, "if_measured": True},
        ],
        "b": [{"metric": "b_error_pct", "at_most": 7.0, "worse_by_pct": 10}],
        "c": [{"metric": "c_grows_when_violating", "at_least": 0.9, "worse_by_pct": 5}],
    }
)
GOOD = {"a_oaa_cores_mae": 1.5, "b_error_pct": 5.0, "c_grows_when_violating": 0.99}


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One MLflow store for the module: making its tables takes longer than the tests."""
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # artefacts go to ./mlruns
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        import mlflow

        # its own functions keep to the store that this process named last
        mlflow.set_tracking_uri(uri)
        yield folder


def layers(prefix: str, *sizes: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found = {}
    for n, (before, after) in enumerate(itertools.pairwise(sizes)):
        found[f"{prefix}layers.{n}.weight"] = rng.normal(size=(after, before)).astype(np.float32)
        found[f"{prefix}layers.{n}.bias"] = rng.normal(size=after).astype(np.float32)
    return found


def network(model: str, seed: int) -> tuple[dict[str, Any], list[Scale]]:
    if model == "c":
        return layers("actor.", 3, 4, len(ACTIONS), seed=seed) | layers("critic.", 3 + len(ACTIONS), 4, 1, seed=seed), []
    if model == "osml-c":
        return layers("policy.", 3, 4, 49, seed=seed), []
    outputs = [Scale(name, 2.0, 1.0) for name in (("qos",) if model == "b" else ("oaa_ways", "oaa_cores"))]
    return layers("", 3, 4, len(outputs), seed=seed), outputs


def train(folder: Path, model: str, seed: int) -> None:
    """What the stage `train` leaves, with weights that nobody trained."""
    tags = {"dataset": "toy", "data_sha256": "d" * 64, "platform": "toy-12x6", "model": model, **tracking.git_tags()}
    run = tracking.Runs(name=f"toy-{model}", tags=tags)
    weights, outputs = network(model, seed)
    bounds = [Bound(name, 0.0, 10.0) for name in INPUTS]
    about = {"model": model, "dataset": "toy", "campaign": "toy", "data_sha256": "d" * 64}
    about |= {"mlflow_run_id": run.run_id, "mlflow_child_id": run.run_id}
    fitted.save(folder / model, Fitted(weights, bounds, outputs, [], [{"epoch": 0.0}], 1), about)
    signature.log(run, folder / model)
    run.finish()


@pytest.fixture(scope="module")
def trained(store: Path) -> dict[int, Path]:
    """The models of one data set, by seed."""
    found = {seed: store / "trained" / str(seed) for seed in (1, 2)}
    for seed, folder in found.items():
        for model in ("a", "b", "c", "osml-c") if seed == 1 else ("a", "b", "c"):
            train(folder, model, seed)
    return found


@pytest.fixture(autouse=True)
def empty(store: Path) -> None:
    """Nothing is registered when a test begins."""
    client = register.Registry().client
    for model in client.search_registered_models():
        client.delete_registered_model(model.name)


def registered(models: Path, metrics: dict[str, Any], out: Path, names: Sequence[str] = register.MODELS) -> dict[str, Any]:
    write_json(out / "metrics.json", metrics)
    return register.run(models, out, GATE, names, out / "metrics.json")


def state() -> dict[str, Any]:
    """All that the registry holds, by model."""
    client = register.Registry().client
    return {
        model.name.split("-")[1]: {
            "aliases": {key: int(value) for key, value in model.aliases.items()},
            "versions": {int(v.version): (v.tags, v.source) for v in client.search_model_versions(f"name = '{model.name}'")},
        }
        for model in client.search_registered_models()
    }


Trained = dict[int, Path]


def test_a_version_has_what_the_next_run_needs(trained: Trained, tmp_path: Path) -> None:
    result = registered(trained[1], GOOD | {"nested": {"deep": 2.0}}, tmp_path)
    assert result["promoted"]
    assert result == json.loads((tmp_path / "register.json").read_text())
    tags, source = state()["b"]["versions"][1]
    assert source == f"runs:/{fitted.summary(trained[1] / 'b').mlflow_child_id}/model"
    assert json.loads(tags.pop("metrics")) == GOOD | {"nested.deep": 2.0}
    assert tags.pop("content_sha256") == result["models"]["b"]["content_sha256"]
    about = {"data_sha256": "d" * 64, "dataset": "toy", "model": "b", "platform": "toy-12x6"}
    assert tags == {**about, "gate": "passed", **tracking.git_tags()}


def test_the_same_weights_are_the_same_version(trained: Trained, tmp_path: Path) -> None:
    """Also when they were trained again, in another run."""
    first = registered(trained[1], GOOD, tmp_path)
    before = state()
    assert registered(trained[1], GOOD, tmp_path) == first
    shutil.copytree(trained[1], tmp_path / "again")
    train(tmp_path / "again", "a", 1)
    assert fitted.summary(tmp_path / "again" / "a") != fitted.summary(trained[1] / "a")
    assert registered(tmp_path / "again", GOOD, tmp_path) == first
    assert state() == before
    other = registered(trained[2], GOOD, tmp_path)
    assert {m["version"] for m in other["models"].values()} == {2}
    assert state()["a"]["aliases"] == {CANDIDATE: 2, CHAMPION: 2}


def test_the_champion_stays_where_the_gate_does_not_hold(trained: Trained, tmp_path: Path) -> None:
    """One line of one model keeps all three back; the reason has metric, value and bound."""
    registered(trained[1], GOOD, tmp_path)
    result = registered(trained[2], GOOD | {"b_error_pct": 7.5}, tmp_path)
    assert not result["promoted"]
    assert result["reasons"] == ["b_error_pct is 7.5, wanted: at most 7"]
    assert {m["champion"] for m in result["models"].values()} == {1}
    for model in state().values():
        assert model["aliases"] == {CANDIDATE: 2, CHAMPION: 1}
        assert model["versions"][2][0]["gate"] == result["reasons"][0]


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({"b_error_pct": 5.4}, True),
        ({"b_error_pct": 5.6}, False),
        ({"c_grows_when_violating": 0.95}, True),
        ({"c_grows_when_violating": 0.93}, False),
        ({"a_oaa_cores_mae": 0.5, "b_error_pct": 1.0, "c_grows_when_violating": 1.0}, True),
    ],
)
def test_worse_than_the_champion_is_refused(change: dict[str, float], holds: bool) -> None:
    """Within the bounds, by more than the rule allows: 10 % of B's 5.0 per cent, 5 % of C's 0.99."""
    lines = register.judge({m: getattr(GATE, m) for m in "abc"}, GOOD | change, dict.fromkeys("abc", GOOD))
    why = register.reasons(lines)
    assert (not why) == holds
    if not holds:
        metric = next(iter(change))
        assert f"{metric} is {change[metric]:g}, the champion's {GOOD[metric]:g}" in why[0]


def test_the_champion_is_asked_what_it_had(trained: Trained, tmp_path: Path) -> None:
    """Its own tags say so: nothing of the first run is left but the registry."""
    registered(trained[1], GOOD, tmp_path / "1")
    shutil.rmtree(tmp_path / "1")
    result = registered(trained[2], GOOD | {"b_error_pct": 6.0}, tmp_path / "2")
    assert result["reasons"] == ["b_error_pct is 6, the champion's 5: over 10 % worse"]
    assert state()["a"]["aliases"] == {CANDIDATE: 2, CHAMPION: 1}


def test_a_missing_metric_fails_its_line(trained: Trained, tmp_path: Path) -> None:
    """Null, no number, or not there at all: said in its line, and no crash."""
    result = registered(trained[1], {**GOOD, "b_error_pct": None}, tmp_path)
    assert result["reasons"] == ["b_error_pct was not measured (wanted: at most 7)"]
    assert state()["b"]["aliases"] == {CANDIDATE: 1}
    for value in ("5.0", True, float("nan")):
        assert register.finite({"b_error_pct": value}) == {}
    assert register.judge_rule("b", GATE.b[0], {}, GOOD).holds is False


def test_a_line_may_be_for_where_it_was_measured() -> None:
    rules = {"a": [GATE.a[1]]}
    unmeasured = register.judge(rules, {}, {})
    assert [line.holds for line in unmeasured] == [None]
    assert register.reasons(register.judge(rules, {"a_oaa_ways_vs_best": 1.2}, {})) != []
    assert register.reasons(unmeasured) != []  # a gate that judged nothing lets nobody through
    assert register.reasons([]) != []


class Killed(BaseException):
    pass


WRITES = (
    "create_registered_model",
    "create_model_version",
    "set_model_version_tag",
    "set_registered_model_alias",
)


def test_a_run_killed_at_any_write_is_made_good_by_the_next(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second pass over a data set, with a champion to beat: the registry ends as if nobody had been killed."""
    client = register.Registry().client
    real = {name: getattr(type(client), name) for name in WRITES}
    left = 0

    def guarded(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return real[name](*args, **kwargs)

        return call

    for name in WRITES:
        monkeypatch.setattr(type(client), name, guarded(name))

    def passes(killed_at: int) -> bool:
        """Both passes from an empty registry, the second one killed at that write; whether it got so far."""
        nonlocal left
        for model in names:
            if f"surefoot-{model}-toy" in [m.name for m in client.search_registered_models()]:
                client.delete_registered_model(f"surefoot-{model}-toy")
        left = 0
        registered(trained[1], GOOD, tmp_path, names)
        left = killed_at
        try:
            registered(trained[2], better, tmp_path, names)
        except Killed:
            left = 0
            registered(trained[2], better, tmp_path, names)
            return True
        return False

    names, better = ("a", "b"), GOOD | {"b_error_pct": 5.2}
    assert not passes(0)
    wanted, kills = state(), 0
    while passes(kills + 1):
        kills += 1
        assert state() == wanted, kills
    assert wanted["a"]["aliases"] == {CANDIDATE: 2, CHAMPION: 2}
    assert kills == 5 * len(names)  # the model (there already), its version, the verdict, two aliases


def test_mlflow_reads_the_signature_back_in_order(trained: Trained, tmp_path: Path) -> None:
    """By the alias, from the registry alone; `model.json` says which order that is."""
    import mlflow

    models = ("a", "b", "c", "osml-c")
    registered(trained[1], GOOD, tmp_path)
    alone = register.run(trained[1], tmp_path, GATE, ("osml-c",))
    assert not alone["promoted"]
    assert "no line of `gate`" in alone["reasons"][0]
    for model in models:
        alias = CANDIDATE if model == "osml-c" else CHAMPION
        info = mlflow.models.get_model_info(f"models:/surefoot-{model}-toy@{alias}")
        summary = json.loads((trained[1] / model / "model.json").read_text())
        assert info.signature.inputs.input_names() == [i["name"] for i in summary["inputs"]] == list(INPUTS)
        assert set(info.flavors) == {"surefoot"}
        if model == "osml-c":
            assert info.signature.outputs.inputs[0].shape == (-1, 49)
        else:
            wanted = [o["name"] for o in summary["outputs"]] or list(ACTIONS)
            assert info.signature.outputs.input_names() == wanted


def test_the_champion_that_is_fetched_is_the_one_that_was_trained(trained: Trained, tmp_path: Path) -> None:
    """As docs/training.md has it."""
    import mlflow

    registered(trained[1], GOOD, tmp_path)
    mlflow.artifacts.download_artifacts("models:/surefoot-b-toy@champion", dst_path=str(tmp_path / "got"))
    weights = fitted.load(trained[1] / "b").weights
    assert all(np.array_equal(value, weights[name]) for name, value in fitted.load(tmp_path / "got").weights.items())


def test_nothing_in_the_store_can_run(trained: Trained, tmp_path: Path, store: Path) -> None:
    """Four kinds of files and no more; none is a pickle; MLflow finds nothing that it would execute."""
    import mlflow

    registered(trained[1], GOOD, tmp_path)
    files = [p for p in (store / "mlruns").rglob("*") if p.is_file()]
    assert len(files) >= 9
    for path in files:
        assert path.name in {"MLmodel", signature.EXAMPLE, fitted.WEIGHTS, fitted.SUMMARY}
        with pytest.raises((ValueError, IndexError)):
            list(pickletools.genops(path.read_bytes()))
    for path in (p for p in files if p.name == "MLmodel"):
        described = yaml.safe_load(path.read_text())
        assert described["flavors"] == {"surefoot": {"format_version": 1, "weights": fitted.WEIGHTS, "summary": fitted.SUMMARY}}
    with pytest.raises(mlflow.MlflowException, match="python_function"):
        mlflow.pyfunc.load_model("models:/surefoot-a-toy@champion")


def test_a_bundle_of_other_models_is_refused(trained: Trained, tmp_path: Path) -> None:
    write_json(tmp_path / "metrics.json", GOOD)
    held = {f"models/{m}.safetensors": {"sha256": sha256_file(trained[1] / m / fitted.WEIGHTS)} for m in "abc"}

    def run() -> dict[str, Any]:
        write_json(tmp_path / "bundle" / "manifest.json", {"files": held})
        return register.run(trained[1], tmp_path, GATE, metrics=tmp_path / "metrics.json", bundle=tmp_path / "bundle")

    run()
    digest = sha256_file(tmp_path / "bundle" / "manifest.json")
    assert state()["a"]["versions"][1][0]["bundle_manifest_sha256"] == digest
    held["models/c.safetensors"] = held["models/a.safetensors"]
    with pytest.raises(BadInput, match=r"manifest\.json: files\.models/c\.safetensors is not the model in .*dvc repro"):
        run()


def test_what_the_store_does_not_hold_is_named(trained: Trained, tmp_path: Path) -> None:
    """A run of another store, a run whose model was overwritten on disk, a name that MLflow does not take."""
    shutil.copytree(trained[1], tmp_path / "train")
    path = tmp_path / "train" / "a" / fitted.SUMMARY
    summary = json.loads(path.read_text())
    write_json(path, summary | {"steps": 2})
    with pytest.raises(
        BadInput, match=r"a/model\.json: field mlflow_child_id: run \w+ holds another model; .*MLFLOW_TRACKING_URI"
    ):
        registered(tmp_path / "train", GOOD, tmp_path)
    write_json(path, summary | {"mlflow_child_id": "0" * 32})
    with pytest.raises(BadInput, match="is not in this MLflow store"):
        registered(tmp_path / "train", GOOD, tmp_path)
    with pytest.raises(BadInput, match="data set 'a/b': a name in MLflow's registry"):
        register.registered_name("a", "a/b")
    assert state() == {}


def test_strict_says_it_with_the_exit_code(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it a gate that does not hold is no failed stage, and the reader is told what is there."""
    metrics, values = tmp_path / "metrics.json", tmp_path / "params.yaml"
    write_json(metrics, {**GOOD, "b_error_pct": 30.5})
    values.write_text(yaml.safe_dump({"gate": GATE.model_dump()}))
    options = {"--models": trained[1], "--metrics": metrics, "--out": tmp_path, "--params": values}
    given = [str(word) for option in options.items() for word in option]
    assert register.main(given) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["promoted"] is False
    assert "gate: b_error_pct is 30.5, wanted: at most 7" in err
    assert "models and bundle are made" in err
    assert register.main([*given, "--strict"]) == 1
    write_json(metrics, GOOD)
    assert register.main([*given, "--strict"]) == 0


def test_the_gate_of_the_repository_is_one(tmp_path: Path) -> None:
    """params.yaml judges every model of a bundle, and by metrics that stage `evaluate` documents."""
    gate = params.load(ROOT / "params.yaml").gate
    assert gate.a
    assert gate.b
    assert gate.c
    broken = tmp_path / "params.yaml"
    broken.write_text("gate: {a: [{metric: x, at_most: 1, at_least: 1}]}")
    with pytest.raises(BadInput, match=r"params\.yaml: gate\.a\.0: .*x: give one of at_most .* and at_least"):
        params.load(broken)


def test_a_misspelt_metric_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    """A line that is judged only where its metric was measured would hold for ever with a name that nothing is measured under."""
    broken = tmp_path / "params.yaml"
    broken.write_text("gate: {a: [{metric: a_safe_shre, at_least: 0.7, if_measured: true}]}")
    said = r'params\.yaml: gate\.a\.0: \'a_safe_shre\' is no metric .*Did you mean "a_safe_share"\? Known: a_cores_mae, '
    with pytest.raises(BadInput, match=said):
        params.load(broken)
    with pytest.raises(
        BadInput, match=r'--model osml_c: there is no such model\. Did you mean "osml-c"\? Known: a, b, c, osml-a'
    ):
        register.run(tmp_path, tmp_path, params.Gate(), ["osml_c"])
