"""Training, evaluation and bundling on a small synthetic campaign, and the DVC pipeline around them."""

from __future__ import annotations

import ast
import json
import os
import pickletools
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from synthetic import Campaign, write

from collection import dataset, shardfile
from models import export, features, osml_b
from pipelines import compare, evaluate, label, measures, params, rows, train
from pipelines.artefact import bundle
from pipelines.errors import BadInput
from pipelines.fits import comparators, fit_ddpg, fitted, tensors
from pipelines.io import sha256_file
from pipelines.pages.card import model_card

ROOT = Path(__file__).parents[1]

QUICK = params.Params.model_validate(
    {
        "train": {
            "a": {"epochs": 4, "min_steps": 400, "batch": 256, "dropout": 0.0},
            "b": {"epochs": 4, "min_steps": 600, "batch": 256, "dropout": 0.0},
            "c": {"transitions": 4000, "updates": 60, "batch": 64},
            **{f"osml_{m}": {"epochs": 2, "min_steps": 20, "batch": 256} for m in ("a", "ap", "b", "bp")},
            "osml_c": {"transitions": 2000, "updates": 20},
        },
        "compare": {"rounds": 40, "leaves": 15},
    }
)


@pytest.fixture(scope="module", autouse=True)
def tracking_store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One MLflow store for the module: making its tables takes longer than the tests."""
    folder = tmp_path_factory.mktemp("mlflow")
    before = Path.cwd()
    os.chdir(folder)  # artefacts go to ./mlruns
    yield folder
    os.chdir(before)


def make(base: Path, name: str, campaign: Campaign, models: Sequence[str] = ("a", "b", "c")) -> dict[str, Any]:
    """A campaign through the stages label, rows and train, as dvc.yaml chains them."""
    data = write(base / "data", campaign)
    label.run(data, base / "label", QUICK.label)
    rows.run(data, base / "label", base / "rows", QUICK.rows)
    summaries = {
        m: train.run(
            m,
            name,
            base / "rows",
            base / "label",
            base / "train" / m,
            QUICK.train,
            base / "train" / "b" if m == "c" else None,
            whole=QUICK,
        )
        for m in models
    }
    return {"base": base, "data": data, **summaries}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A full campaign through label, rows and train."""
    campaign = Campaign(loads=(600.0, 1000.0, 1400.0, 1800.0, 2200.0, 2600.0), samples=3, unresolvable_every=50)
    return make(tmp_path_factory.mktemp("pipeline"), "toy", campaign)


@pytest.fixture(scope="module")
def metrics(trained: dict[str, Any]) -> dict[str, float]:
    base = trained["base"]
    compare.run(base / "rows", base / "label", base / "compare", QUICK)
    return evaluate.run(base / "rows", base / "label", base / "train", base / "evaluate", QUICK, base / "compare")


def table_of(trained: dict[str, Any]) -> tensors.Table:
    return tensors.load(trained["base"] / "rows", trained["base"] / "label")


def test_every_measure_has_a_name_that_the_gate_may_name(metrics: dict[str, float]) -> None:
    """The names that params.yaml may have are those of the models, their outputs, actions and comparators."""
    assert set(metrics) <= set(measures.NAMES)
    assert tuple(train.LEARNERS) == measures.MODELS
    assert measures.AREA == features.MODEL_A_OUTPUTS
    assert measures.ACTIONS == features.ACTIONS
    assert measures.B_POINTS == osml_b.OUTPUTS
    assert tuple(comparators.METHODS) == measures.LEARNERS


def test_models_beat_the_simple_baselines_on_unseen_planes(metrics: dict[str, float]) -> None:
    """A network that is no better than a linear fit is not worth shipping."""
    assert metrics["test_planes"] == 3
    assert metrics["a_oaa_cores_mae"] < metrics["a_oaa_cores_mae_linear"]
    assert metrics["b_qos_mae"] < metrics["b_qos_mae_linear"]
    assert metrics["b_accuracy"] > 0.85
    assert 0.0 <= metrics["b_safe_but_violates"] <= 0.15


def test_what_mlflow_keeps(trained: dict[str, Any], metrics: dict[str, float]) -> None:
    """One run an execution with its metrics and data hash; one child run a training with parameters, commit and weights."""
    from mlflow import MlflowClient

    from pipelines.tracking import tracking_uri

    client = MlflowClient(tracking_uri())
    run = client.get_run(trained["a"]["mlflow_run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.tags["data_sha256"] == trained["a"]["data_sha256"]
    assert run.data.metrics["b_accuracy"] == pytest.approx(metrics["b_accuracy"])
    children = client.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
    names = {child.info.run_name: child for child in children}
    assert set(names) == {"toy-a", "toy-b", "toy-c"}
    child = names["toy-a"]
    assert child.info.run_id == trained["a"]["mlflow_child_id"]
    assert child.info.status == "FINISHED"
    assert "git_commit" in child.data.tags
    assert child.data.params["dropout"] == "0.0"
    history = client.get_metric_history(child.info.run_id, "train_loss")
    assert len(history) == QUICK.train.a.epochs
    assert [f.path for f in client.list_artifacts(names["toy-c"].info.run_id)] == ["model"]
    assert [f.path for f in client.list_artifacts(names["toy-c"].info.run_id, "model")] == [
        "model/MLmodel", "model/input_example.json", "model/model.json", "model/model.safetensors"
    ]  # fmt: skip


def test_nothing_is_pickled(trained: dict[str, Any]) -> None:
    """No file of the stage or of the MLflow store starts like a pickle or a PyTorch archive."""
    files = [p for folder in (trained["base"], Path("mlruns")) for p in folder.rglob("*") if p.is_file()]
    assert len(files) > 10
    for path in files:
        head = path.read_bytes()[:4]
        assert head[:1] != b"\x80", path
        assert head != b"PK\x03\x04", path
        assert path.suffix not in {".pt", ".pth", ".ckpt", ".pkl"}, path
    assert pickletools  # the marker byte above is pickle's PROTO opcode


def test_training_again_gives_the_same_weights(trained: dict[str, Any], tmp_path: Path) -> None:
    """Same data, same seed, same bytes."""
    table = table_of(trained)
    torch.set_num_threads(1)
    first, second = (train.fit("a", table, QUICK.train, tmp_path) for _ in range(2))
    assert export.to_safetensors(first.weights) == export.to_safetensors(second.weights)


def test_rows_of_one_plane_are_never_on_both_sides(trained: dict[str, Any]) -> None:
    table = table_of(trained)
    planes = [set(table.plane[table.part(split)]) for split in ("train", "val", "test")]
    assert all(planes)
    assert not (planes[0] & planes[1]) | (planes[0] & planes[2]) | (planes[1] & planes[2])


def test_bounds_come_from_training_rows_alone(trained: dict[str, Any]) -> None:
    """What the test planes look like must not leak into the scaling."""
    table = table_of(trained)
    seen = tensors.observed(table, table.part("train"))
    for entry in trained["a"]["inputs"]:
        if entry["name"] == "llc_misses_per_s":
            assert entry["max"] == pytest.approx(1.1 * seen["llc_misses_per_s"][1])


def test_overloaded_rows_are_never_a_latency(trained: dict[str, Any]) -> None:
    """Their QoS is 0, not a number made from a queue's momentary length."""
    table = table_of(trained)
    assert np.isnan(table.p99_ms).sum() > 0
    qos = tensors.row_qos(table, np.arange(table.rows))
    assert (qos[np.isnan(table.p99_ms)] == 0).all()
    assert (qos <= 1).all()


def test_actions_lead_one_step_away(trained: dict[str, Any]) -> None:
    """cores_up adds the sweep's next core count and changes nothing else; the edge of the sweep leads nowhere."""
    table = table_of(trained)
    leads = tensors.neighbour_cells(table)
    up, down, idle = (features.ACTIONS.index(n) for n in ("cores_up", "ways_down", "idle"))
    cells = np.arange(len(leads))
    assert (leads[:, idle] == cells).all()
    has = leads[:, up] >= 0
    assert (table.cell_cores[leads[has, up]] == table.cell_cores[has] + 1).all()
    assert (table.cell_ways[leads[has, up]] == table.cell_ways[has]).all()
    assert (table.cell_cores[~has] == 12).all()
    has = leads[:, down] >= 0
    assert (table.cell_ways[leads[has, down]] == table.cell_ways[has] - 1).all()
    assert (table.cell_plane[leads[has, down]] == table.cell_plane[has]).all()
    assert (leads[:, features.ACTIONS.index("mba_up")] == -1).all()


def test_the_reward_is_the_papers() -> None:
    """Violated: I(predicted QoS) + min(1, target/latency); met: 2 + mean free share."""
    met, qos, usage = np.array([True, False, True]), np.array([0.5, 0.25, 1.0]), np.array([0.9, 0.9, 0.4])
    assert fit_ddpg.reward(met, qos, usage).tolist() == pytest.approx([1.5, 0.25, 2.6])


def test_the_bundle_of_the_pipeline_verifies(
    trained: dict[str, Any], metrics: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models, scaling, metrics and provenance arrive in the bundle; NumPy on its weights gives the stage's predictions."""
    monkeypatch.setenv("SUREFOOT_KEYS", str(tmp_path / "keys"))
    base = trained["base"]
    described = bundle.run(trained["data"], base / "train", base / "evaluate" / "metrics.json", tmp_path / "bundles" / "toy")
    checked = bundle.verify(tmp_path / "bundles" / "toy.tar", expect_feature_set="full", expect_platform="toy-12x6")
    assert described["metrics"]["b_accuracy"] == metrics["b_accuracy"]
    assert checked.manifest.provenance.mlflow_run_id == trained["a"]["mlflow_run_id"]
    assert checked.manifest.provenance.data_sha256 == trained["a"]["data_sha256"]
    assert checked.manifest.models.c.available_actions == ["cores_up", "cores_down", "ways_up", "ways_down", "idle"]
    assert set(checked.manifest.services) == {"alpha", "beta", "gamma"}
    weights = fitted.load(base / "train" / "a").weights
    assert all(np.array_equal(checked.weights("a")[k], v) for k, v in weights.items())


@pytest.mark.parametrize("store", ["sqlite:///none.db", "sqlite:///other.db", "http://127.0.0.1:9"])
def test_a_bundle_is_built_where_the_run_is_not(
    store: str, trained: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """MLflow's store may be on the machine that trained: the bundle is whole, one line says what was not logged, none is made."""
    monkeypatch.setenv("SUREFOOT_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.replace("///", f"///{tmp_path}/"))
    (tmp_path / "other.db").write_bytes(b"no data base" * 100)
    before = set(tmp_path.iterdir())
    bundle.run(trained["data"], trained["base"] / "train", None, tmp_path / "bundles" / "toy")
    bundle.verify(tmp_path / "bundles" / "toy.tar", expect_platform="toy-12x6")
    told = [line for line in capsys.readouterr().err.splitlines() if "MLflow" in line]
    assert len(told) == 1
    assert told[0].startswith("note: the bundle is whole, and is not logged to MLflow's run ")
    assert "MLFLOW_TRACKING_URI" in told[0]
    assert set(tmp_path.iterdir()) - before == {tmp_path / "bundles", tmp_path / "keys"}


def test_a_damaged_summary_is_named_with_its_field(trained: dict[str, Any], tmp_path: Path) -> None:
    summary = json.loads((trained["base"] / "train" / "b" / "model.json").read_text())
    del summary["inputs"][3]["max"]
    (tmp_path / "model.json").write_text(json.dumps(summary))
    with pytest.raises(BadInput, match=r"model\.json: field inputs\.3\.max: .*dvc repro"):
        fitted.summary(tmp_path)


def test_weights_that_do_not_fit_are_an_error(trained: dict[str, Any], tmp_path: Path) -> None:
    """Missing, damaged, or another network's: a message with the file, and no model with other weights."""
    for name in ("a", "b"):
        shutil.copytree(trained["base"] / "train" / name, tmp_path / name)
    weights = tmp_path / "a" / "model.safetensors"
    shutil.copy(tmp_path / "b" / "model.safetensors", weights)
    with pytest.raises(BadInput, match=r"a/model\.safetensors: layers .* are not those of 12 inputs and 5 outputs"):
        fitted.load(tmp_path / "a")
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(BadInput, match=r"a/model\.safetensors: is not a safetensors file"):
        fitted.load(tmp_path / "a")
    weights.unlink()
    with pytest.raises(BadInput, match=r"a/model\.safetensors: the weights are missing"):
        fitted.load(tmp_path / "a")


def test_model_c_needs_model_b_of_the_same_data(trained: dict[str, Any], tmp_path: Path) -> None:
    base = trained["base"]
    with pytest.raises(BadInput, match="give --b FOLDER"):
        train.fit("c", table_of(trained), QUICK.train, tmp_path)
    shutil.copytree(base / "train" / "b", tmp_path / "b")
    summary = json.loads((tmp_path / "b" / "model.json").read_text())
    (tmp_path / "b" / "model.json").write_text(json.dumps({**summary, "data_sha256": "0" * 64}))
    with pytest.raises(BadInput, match="Model-B is from other data"):
        train.run("c", "toy", base / "rows", base / "label", tmp_path / "c", QUICK.train, tmp_path / "b")


def test_a_small_host_without_ways_and_counters_goes_all_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """no-pmu, 0 ways, tenths of a core, 60 cases: fewer inputs and outputs, the same stages."""
    monkeypatch.setenv("SUREFOOT_KEYS", str(tmp_path / "keys"))
    steps = tuple(round(0.1 * k, 1) for k in range(1, 11))
    c = Campaign(
        platform="small",
        cores=2.0,
        core_step=0.1,
        core_values=steps,
        ways=0,
        feature_set="no-pmu",
        loads=(100.0, 300.0),
        samples=3,
    )
    made = make(tmp_path, "small", c)
    assert [i["name"] for i in made["a"]["inputs"]] == [
        "cpu_usage_cores", "virt_mem_mb", "res_mem_mb", "alloc_cores", "core_freq_mhz", "nb_cores"
    ]  # fmt: skip
    assert [o["name"] for o in made["a"]["outputs"]] == ["oaa_cores", "rcliff_cores"]
    assert "expected_cache_mb" not in [i["name"] for i in made["b"]["inputs"]]
    assert made["c"]["settings"]["available_actions"] == ["cores_up", "cores_down", "idle"]
    found = evaluate.run(tmp_path / "rows", tmp_path / "label", tmp_path / "train", tmp_path / "evaluate", QUICK)
    assert found["a_oaa_cores_mae"] < 1.0
    bundle.run(made["data"], tmp_path / "train", tmp_path / "evaluate" / "metrics.json", tmp_path / "b")
    checked = bundle.verify(tmp_path / "b", expect_feature_set="no-pmu", expect_platform="small")
    # card and manifest are of the same facts
    assert checked.card == model_card(json.loads(checked.files[bundle.MANIFEST]))
    assert "say nothing about ways" in checked.card


def test_osmls_models_are_bundled_together(trained: dict[str, Any], tmp_path: Path) -> None:
    """One of five is a mistake, and so are five of other data; the message names a way out."""
    models = tmp_path / "train"
    shutil.copytree(trained["base"] / "train", models)
    shutil.copytree(models / "a", models / "osml-ap")
    with pytest.raises(BadInput, match=r"train/osml-a: OSML's models are bundled together: train it, too, or remove"):
        bundle.from_pipeline(trained["data"], models, None)
    for name in ("osml-a", "osml-b", "osml-bp", "osml-c"):
        shutil.copytree(models / "osml-ap", models / name)
    summary = json.loads((models / "osml-b" / "model.json").read_text())
    (models / "osml-b" / "model.json").write_text(json.dumps({**summary, "data_sha256": "0" * 64}))
    with pytest.raises(BadInput, match=r"osml-b: the model is from other data.*remove .*osml-\* if `osml_datasets`"):
        bundle.from_pipeline(trained["data"], models, None)


def test_osmls_models_as_trained_are_in_the_bundle(
    trained: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_KEYS", str(tmp_path / "keys"))
    base, models = trained["base"], tmp_path / "train"
    shutil.copytree(base / "train", models)
    for name in [f"osml-{m}" for m in bundle.OSML]:
        train.run(name, "toy", base / "rows", base / "label", models / name, QUICK.train)
    measured = evaluate.run(base / "rows", base / "label", models, tmp_path / "evaluate", QUICK)
    assert set(measured) <= set(measures.NAMES)
    assert {name.split("_")[1] for name in measured if name.startswith("osml_")} == set(bundle.OSML)
    described = bundle.run(trained["data"], models, tmp_path / "evaluate" / "metrics.json", tmp_path / "b")
    assert list(described["models"]) == ["a", "b", "c", "osml-a", "osml-ap", "osml-b", "osml-bp", "osml-c"]
    checked = bundle.verify(tmp_path / "b")
    assert checked.manifest.models.osml is not None
    trained_c = fitted.load(models / "osml-c")
    assert all(np.array_equal(checked.weights("osml_c")[k], v) for k, v in trained_c.weights.items())
    assert checked.manifest.models.osml.c.hyperparameters["copy_every"] == 100
    assert "replay" not in checked.manifest.models.osml.c.hyperparameters
    assert "Model-B' (OSML): QoS slowdown, mean absolute error | % of QoS |" in checked.card  # beside the paper's 7.87 %
    assert "7.87 on server-1" in checked.card


def test_models_of_other_data_are_not_bundled(trained: dict[str, Any], tmp_path: Path) -> None:
    other = write(tmp_path / "data", Campaign(loads=(1600.0,), samples=1, seed=9))
    with pytest.raises(BadInput, match=r"from other data.*dvc repro"):
        bundle.from_pipeline(other, trained["base"] / "train", None)


# ---------------------------------------------------------------- DVC


def dvc(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "DVC_NO_ANALYTICS": "true",
        "SUREFOOT_KEYS": str(folder / "keys"),
        "DVC_SITE_CACHE_DIR": str(folder / ".dvc-site"),
    }
    return subprocess.run([sys.executable, "-m", "dvc", *args], cwd=folder, env=env, capture_output=True, text=True, timeout=600)


def code_and_params(folder: Path) -> None:
    """The pipeline of this repository in a folder of its own, over one data set of the name `toy`, with trainings of seconds."""
    folder.mkdir()
    for name in ("pipelines", "models", "collection"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".dvc/plots").mkdir(parents=True)
    for name in ("dvc.yaml", ".dvcignore", ".dvc/config", ".dvc/.gitignore", ".dvc/plots/loss.json", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    values = yaml.safe_load((ROOT / "params.yaml").read_text("utf-8"))
    values["datasets"], values["osml_datasets"] = {"toy": {"folder": "data/toy/box"}}, []
    values["train"] = QUICK.train.model_dump() | {"a": {**QUICK.train.a.model_dump(), "min_steps": 20}}
    values["train"]["b"] |= {"epochs": 2, "min_steps": 20, "batch": 256}
    values["compare"] = QUICK.compare.model_dump() | {"rounds": 5}
    (folder / "params.yaml").write_text(yaml.safe_dump(values), "utf-8")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """The repository's pipeline over one small data set, in a folder of its own."""
    folder = tmp_path / "repo"
    code_and_params(folder)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def as_a_sweep_writes(folder: Path) -> None:
    """Make the data set one that `surefoot campaign verify` takes: names and types of shards, a journal, counts that add up."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"], lines = [], []
    for k, old in enumerate(sorted((folder / "shards").iterdir())):
        known = pl.read_parquet(old)
        frame = known.select(pl.col(name).cast(kind) for name, kind in shardfile.SCHEMA.items() if name in known.columns)
        # 64 bytes a miss: `synthetic` has a thousand times as many
        frame = frame.with_columns(pl.col("mbl_mbps") / 1000)
        old.unlink()
        path = folder / dataset.shard_file(k)
        frame.write_parquet(path)
        manifest["shards"].append({"file": dataset.shard_file(k), "rows": frame.height, "sha256": sha256_file(path)})
        for case in frame["case_id"]:
            lines.append(json.dumps({"case_id": case, "state": "measured", "shard": k, "rows": 1}) + "\n")
    (folder / "journal.jsonl").write_text("".join(lines))
    (folder / "manifest.json").write_text(json.dumps(manifest | {"complete": True}))


def test_dvc_repro_makes_a_bundle_and_a_second_one_does_nothing(workspace: Path) -> None:
    as_a_sweep_writes(write(workspace / "data" / "toy" / "box", Campaign(loads=(800.0, 1600.0), samples=1)))
    wanted = ("repro", "register@toy", "report@toy")
    first = dvc(workspace, *wanted)
    assert first.returncode == 0, first.stdout + first.stderr
    trusted = bundle.trusted_keys(workspace / "keys" / "trusted")
    described = bundle.inspect(workspace / "bundles" / "toy.tar", trusted)
    assert described["platform"]["name"] == "toy-12x6"
    assert json.loads((workspace / "out/pipeline/toy/evaluate/metrics.json").read_text())["test_planes"] > 0
    page = workspace / "out/pipeline/toy/report/report.html"
    assert "Training report: toy" in page.read_text("utf-8")
    # the gate is for better models than these: the stage goes through, and says what kept them back
    registered = json.loads((workspace / "out/pipeline/toy/register/register.json").read_text())
    assert {m["name"]: m["version"] for m in registered["models"].values()} == {f"surefoot-{m}-toy": 1 for m in "abc"}
    assert registered["promoted"] == (not registered["reasons"])
    second = dvc(workspace, *wanted)
    assert second.returncode == 0
    assert "Data and pipelines are up to date." in second.stdout
    assert "Running stage" not in second.stdout
    status = dvc(workspace, "metrics", "show", "--json")
    assert status.returncode == 0, status.stderr
    # the bundle's stage names none of OSML's models, but where a data set has them they come first; one of them is made
    values = yaml.safe_load((workspace / "params.yaml").read_text())
    (workspace / "params.yaml").write_text(yaml.safe_dump({**values, "osml_datasets": ["toy"]}))
    plan = dvc(workspace, "repro", "--dry", "bundle@toy")
    assert plan.returncode == 0, plan.stderr
    assert set(re.findall(r"Running stage '([^']+)'", plan.stdout)) == {"names", *(f"train-osml@toy-{m}" for m in bundle.OSML)}
    one = dvc(workspace, "repro", "train-osml@toy-bp")
    assert one.returncode == 0, one.stdout + one.stderr
    assert (workspace / "out/pipeline/toy/train/osml-bp/model.safetensors").exists()


def imported(module: str) -> set[str]:
    """Files of this repository that a module imports, directly or not, at its head or inside a function; itself included."""
    found, todo = set(), [module]
    while todo:
        file = f"{todo.pop().replace('.', '/')}.py"
        if file in found or not (ROOT / file).is_file():
            continue
        found.add(file)
        for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))):
            if isinstance(node, ast.Import):
                todo += [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                todo += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return found


STAGES = {
    "names": ["pipelines.names"],
    "label": ["pipelines.label"],
    "rows": ["pipelines.rows"],
    "train": ["pipelines.train", *(m for name in ("a", "b") for m in train.LEARNERS[name])],
    "train-c": ["pipelines.train", *(m for m in train.LEARNERS["c"] if m)],
    "train-osml": ["pipelines.train", *(m for name in train.LEARNERS if "-" in name for m in train.LEARNERS[name] if m)],
    "compare": ["pipelines.compare"],
    "evaluate": ["pipelines.evaluate"],
    "bundle": ["pipelines.artefact.bundle"],
    "register": ["pipelines.register"],
    "register-osml": ["pipelines.register"],
    "transfer": ["pipelines.transfer"],
    "foreign": ["pipelines.generalise"],
    "leave-one-out": ["pipelines.generalise"],
    "worlds": ["pipelines.worlds"],
    "report": ["pipelines.report"],
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_the_code_that_it_runs(stage: str) -> None:
    """dvc.yaml lists what each stage imports, no more and no less: a changed file runs what it changes."""
    entry = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][stage]
    deps: list[str] = []
    for model in entry.get("matrix", {}).get("model", [""]):
        deps += [dep.replace("${item.model}", model) for dep in entry.get("do", entry)["deps"]]
    code = {dep for dep in deps if dep.split("/")[0] in ("models", "pipelines") and dep.endswith(".py")}
    modules = [*re.findall(r"(?:^|&& )python -m (pipelines\.stage) ", entry.get("do", entry)["cmd"]), *STAGES[stage]]
    assert code == set().union(*(imported(module) for module in modules))


def test_a_stage_is_run_again_by_its_own_parameters_alone() -> None:
    """Model-C's parameters do not train A and B again, nor OSML's models those of OSML+."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    known = {f"train.{name}" for name in params.Train.model_fields}
    seen = set()
    for name in ("train", "train-c", "train-osml"):
        for model in stages[name].get("matrix", {}).get("model", [""]):
            used = {p.replace("${item.model}", model) for p in stages[name].get("do", stages[name])["params"]}
            # what A and B are stopped by, and no other model
            assert ("split" in used) == (name == "train")
            used -= {"split"}
            assert used <= known
            assert len(used - {"train.seed", "train.threads"}) == 1
            seen |= used
    assert seen == known


def test_dvc_repro_names_a_missing_data_set(workspace: Path) -> None:
    done = dvc(workspace, "repro")
    assert done.returncode != 0
    assert "data/toy/box/manifest.json" in done.stderr
    assert not (workspace / "bundles").exists()


@pytest.mark.parametrize(
    ("folder", "stage"),
    [
        ("out/pipeline/toy/train/a", "train@toy-a"),
        ("out/pipeline/toy/train/c", "train-c@toy"),
        ("out/pipeline/toy/train/osml-bp", "train-osml@toy-bp"),
    ],
)
def test_a_missing_model_is_made_again_by_its_own_stage(folder: str, stage: str) -> None:
    """The remedy is a stage of dvc.yaml: Model-C and OSML's models have others than A and B."""
    with pytest.raises(BadInput, match=rf"dvc repro --force --single-item {stage}`"):
        fitted.summary(Path(folder))
