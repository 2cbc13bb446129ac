"""Onboarding: from a platform's file to a verified bundle, killed half-way; wrong input is told before it costs anything."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from collection import cli, console, onboard, spec
from collection import worlds as drawn
from collection.errors import CampaignError, InputError
from models import export, model_a
from pipelines import begin, params, tables, vectors, worlds
from pipelines.artefact import bundle
from pipelines.artefact.keys import private_key
from pipelines.errors import BadInput
from pipelines.variables import environment

ROOT = Path(__file__).parents[1]
PLATFORM = ROOT / "examples" / "onboard" / "x.toml"
KEYS = ROOT / "tests" / "vectors" / "keys"
SOURCE = ROOT / "tests" / "vectors" / "bundle-small"
PROFILES = ROOT / "scheduler" / "vserver" / "profiles"

TINY = """\
name = "tiny"
seed = 1
[targets]
virtual = ["x"]
[sweep]
services = ["moses", "xapian", "mine"]
rps = "catalogue"
threads = [32]
cores = "2..32 step 3"
[sampling]
interval_ms = 1000
samples = 2
"""
TRAIN = ("train-a", "train-b", "train-c")
# Adam moves a weight by about the learning rate a step, and tau moves the targets, so these end where they began
STILL = """\
train:
  c: {transitions: 500, updates: 20, batch: 64, lr_actor: 1.0e-9, lr_critic: 1.0e-9, tau: 1.0e-9}
transfer:
  a: {epochs: 2, min_steps: 4, batch: 512, lr: 1.0e-9, dropout: 0.0}
  b: {epochs: 2, min_steps: 4, batch: 512, lr: 1.0e-9, dropout: 0.0}
gate:
  b: [{metric: b_qos_mae_lightgbm, at_most: 1.0}]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A user's folder: keys that trust the source, an MLflow store, a service of their own, a small campaign."""
    folder = tmp_path_factory.mktemp("onboard")
    shutil.copytree(KEYS / "trusted", folder / "keys" / "trusted")
    (folder / "mine" / "services").mkdir(parents=True)
    moses = (PROFILES / "services" / "moses.toml").read_text("utf-8")
    (folder / "mine" / "services" / "mine.toml").write_text(moses.replace('name = "moses"', 'name = "mine"'), "utf-8")
    (folder / "tiny.toml").write_text(TINY, "utf-8")
    (folder / "params.yaml").write_text(STILL, "utf-8")
    before = Path.cwd()
    os.chdir(folder)  # MLflow's artefacts go to ./mlruns
    values = {
        "SUREFOOT_KEYS": str(folder / "keys"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "SUREFOOT_PROFILES": str(folder / "mine"),
    }
    with environment(values):
        yield folder
    os.chdir(before)


def given(place: Path, **changes: Any) -> onboard.Options:
    """The whole command, or parts of it in another way."""
    plain = onboard.Options(PLATFORM, str(SOURCE), place / "out", campaign=place / "tiny.toml", params=place / "params.yaml")
    return replace(plain, **changes)


def run(options: onboard.Options) -> dict[str, Any]:
    with Path(os.devnull).open("w") as nowhere:
        return onboard.run(options, Console(file=nowhere))


def states(result: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["state"] for step in result["steps"]}


def state_of(out: Path, step: str) -> str | None:
    try:
        state: str = json.loads((out / "steps" / f"{step}.json").read_text("utf-8"))["state"]
    except (OSError, ValueError):
        return None
    return state


@pytest.fixture(scope="module")
def killed(place: Path) -> str | None:
    """The command, killed when its third step begins; what that step's marker says then."""
    args = ["onboard", PLATFORM, "--from", SOURCE, "--out", place / "out"]
    args += ["--campaign", place / "tiny.toml", "--params", place / "params.yaml"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen([sys.executable, "-m", "collection.cli", *map(str, args)], env=env, stderr=subprocess.PIPE)
    end = time.monotonic() + 600
    while state_of(place / "out", "train-a") is None and child.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    said = child.communicate()[1].decode()
    assert child.returncode == -signal.SIGKILL, said
    return state_of(place / "out", "train-a")


@pytest.fixture(scope="module")
def onboarded(place: Path, killed: str | None) -> dict[str, Any]:
    return run(given(place))


def test_what_was_finished_before_a_kill_is_kept(killed: str | None, onboarded: dict[str, Any]) -> None:
    """The same command goes on with the step that was cut short."""
    assert killed == "started"
    assert states(onboarded) == {
        "collect": "reused",
        "label": "reused",
        "rows": "reused",
        "train-a": "done",
        "train-b": "done",
        "train-c": "done",
        "evaluate": "done",
        "bundle": "done",
        "register": "done",
    }


def test_the_bundle_is_the_platform_s_and_verifies(place: Path, onboarded: dict[str, Any]) -> None:
    """Folder and tar, for the platform's 32 CPUs and 8 ways, with the services that were measured."""
    for path in (onboarded["bundle"]["folder"], onboarded["bundle"]["tar"]):
        checked = bundle.verify(Path(path), expect_platform="x", expect_feature_set="full")
        assert (checked.manifest.platform.cores, checked.manifest.platform.ways) == (32.0, 8)
        assert set(checked.manifest.services) == {"moses", "xapian", "mine"}
    assert checked.manifest.metrics["b_error_pct"] == onboarded["metrics"]["b_error_pct"]
    assert onboarded["bundle"]["tar"] in onboarded["deploy"]
    # 3 services x 5 loads x 11 core counts x 8 ways, two samples each
    assert onboarded["collected"]["rows"] == 2 * 3 * 5 * 11 * 8
    assert os.environ["SUREFOOT_PROFILES"] == str(place / "mine")


def test_the_models_are_candidates_and_the_gate_was_asked(place: Path, onboarded: dict[str, Any]) -> None:
    """An onboarded platform has models of its own in the registry; that a gate does not hold is told and is no failure."""
    gate = onboarded["gate"]
    assert gate["versions"] == {f"surefoot-{letter}-onboard-x": 1 for letter in "abc"}
    assert not gate["promoted"]
    assert gate["reasons"] == ["b_qos_mae_lightgbm was not measured (wanted: at most 1)"]
    out = io.StringIO()
    console.onboarded(Console(file=out, width=500), onboarded)
    assert f"gate (params.yaml): does not hold: {gate['reasons'][0]}" in out.getvalue()


def test_training_begins_from_the_source_s_weights(onboarded: dict[str, Any]) -> None:
    """With next to no learning rate, A, B and C's four networks are the source's still, moved to the new platform's bounds."""
    source, made = begin.read(SOURCE), bundle.verify(Path(onboarded["bundle"]["folder"]))
    for letter in begin.LETTERS:
        spec = getattr(made.manifest.models, letter)
        before, after = source.starts[letter].moved_to(*begin.scaling(spec)).weights, made.weights(letter)
        assert set(before) == set(after)
        for name, weights in before.items():
            np.testing.assert_allclose(after[name], weights, rtol=1e-4, atol=1e-4, err_msg=f"{letter}: {name}")
    assert onboarded["begun_from"]["sha256"] == source.sha256


def test_nothing_is_done_twice_and_a_comparison_adds_to_it(place: Path, onboarded: dict[str, Any]) -> None:
    """The same inputs: every step is kept. --compare only adds models from nothing, on the same rows, from other weights."""
    again = run(given(place, compare=True))
    assert states(again) == {
        **dict.fromkeys(("collect", "label", "rows", *TRAIN, "evaluate", "bundle", "register"), "reused"),
        **{f"{name}-from-nothing": "done" for name in TRAIN},
        "evaluate-from-nothing": "done",
    }
    assert again["bundle"] == onboarded["bundle"]
    assert again["metrics"] == onboarded["metrics"] != again["metrics_from_nothing"]
    assert again["metrics"]["test_rows"] == again["metrics_from_nothing"]["test_rows"]
    weights = export.read(place / "out" / "train-from-nothing" / "c" / "model.safetensors")
    assert not np.allclose(weights["actor.layers.0.weight"], bundle.verify(SOURCE).weights("c")["actor.layers.0.weight"])


def test_a_folder_of_the_stage_train_is_a_source_too(place: Path, onboarded: dict[str, Any]) -> None:
    """What was trained can be begun from before it is bundled; damage is named."""
    origin = begin.read(place / "out" / "train")
    assert [len(origin.starts[letter].inputs or ()) for letter in begin.LETTERS] == [12, 14, 8]
    copy = place / "damaged-train"
    shutil.copytree(place / "out" / "train", copy)
    (copy / "b" / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(BadInput, match=r"b/model\.safetensors: is not a safetensors file"):
        begin.read(copy)


def refused(capsys: pytest.CaptureFixture[str], out: Path, *args: str | Path) -> str:
    """The command ends with 2, in one line, and leaves nothing behind; returns the line."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["onboard", *map(str, args), "--out", str(out)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert not out.exists()
    return said


def test_a_source_of_another_feature_set_is_refused(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Models without counters cannot be continued where there are counters; it is said before anything is collected."""
    small = vectors.small_bundle()
    pmu = {"ipc", "llc_misses_per_s", "mbl_mbps", "nb_mbl_mbps"}

    def without(weights: Any, inputs: Any, nets: tuple[str, ...]) -> tuple[Any, Any]:
        keep = [k for k, b in enumerate(inputs) if b.name not in pmu]
        rest = dict(weights)
        for net in nets:
            first = rest[f"{net}layers.0.weight"]
            beyond = list(range(len(inputs), first.shape[1]))  # the critic reads the action behind the state
            rest[f"{net}layers.0.weight"] = first[:, keep + beyond]
        return rest, [inputs[k] for k in keep]

    a, b = (
        replace(m, **dict(zip(("weights", "inputs"), without(m.weights, m.inputs, ("",)), strict=True)))
        for m in (small.a, small.b)
    )
    nets = tuple(f"{n}{t}." for n in ("actor", "critic") for t in ("", "_target"))
    c = replace(small.c, **dict(zip(("weights", "inputs"), without(small.c.weights, small.c.inputs, nets), strict=True)))
    kept = [k for k, o in enumerate(a.outputs) if not o.name.endswith("_mbps")]
    last = {name: w[kept] for name, w in a.weights.items() if name.startswith("layers.3.")}
    a = replace(a, weights={**a.weights, **last}, outputs=[a.outputs[k] for k in kept])
    made = replace(small, feature_set="no-pmu", a=a, b=b, c=c)
    bundle.build(made, tmp_path / "no-pmu", private_key((KEYS / "TEST-ONLY-signing.pem").read_bytes(), "test key"))
    said = refused(capsys, tmp_path / "out", PLATFORM, "--from", tmp_path / "no-pmu")
    assert "Model-A does not take ipc" in said
    assert "--from nothing" in said


def test_a_source_of_other_inputs_is_refused(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bundle of the papers' readings cannot be trained on with inputs that carry over: file, field and remedy, at once."""
    file = tmp_path / "relative.yaml"
    both = "a: {inputs: relative}, b: {inputs: relative}"
    file.write_text(f"train: {{{both}}}\ntransfer: {{{both}}}\ngeneralise: {{{both}}}\n", "utf-8")
    said = refused(capsys, tmp_path / "out", PLATFORM, "--from", SOURCE, "--params", file)
    assert f"--from {SOURCE}: Models A and B have the inputs of the variant 'paper'" in said
    assert "transfer.a.inputs: 'relative'" in said
    assert "or set `inputs` of train.a, train.b, transfer.a and transfer.b to paper" in said


@pytest.fixture(scope="module")
def worlds_models(place: Path) -> Path:
    """Models of two drawn worlds, hardly trained."""
    short = {"inputs": "relative", "epochs": 1, "min_steps": 20, "batch": 256, "dropout": 0.0}
    p = params.Params.model_validate(
        {
            "worlds": {"rows": 600, "asked_rows": 50, "validate_share": 0.5, "a": short, "b": short},
            "compare": {"rows": 200, "rounds": 2, "leaves": 3},
        }
    )
    folders = drawn.collect(drawn.Worlds.parse("tune:7201..7203"), place / "worlds", lambda _: None)
    worlds.run(folders[:2], folders[2:], place / "of-worlds", p, [1])
    return place / "of-worlds"


FEW = """\
worlds:
  few_a: {inputs: relative, min_steps: 20, batch: 64, loss: absolute}
  few_b: {inputs: relative, min_steps: 20, batch: 64, loss: absolute}
train:
  c: {transitions: 500, updates: 20, batch: 64}
"""


def test_models_of_worlds_become_a_bundle_with_a_curve(place: Path, worlds_models: Path) -> None:
    """A and B are the worlds' models moved to the platform, C learns by itself; each ten minutes of measuring are told apart."""
    (place / "few.yaml").write_text(FEW, "utf-8")
    platform = onboard.read_platform(PLATFORM)
    text = onboard.worlds_campaign_text(platform).replace('"all"              #', '["moses", "xapian", "mine"]  #')
    (place / "few.toml").write_text(text.replace("samples = 10", "samples = 1"), "utf-8")
    made = run(
        given(
            place,
            begin=str(worlds_models),
            out=place / "out-worlds",
            campaign=place / "few.toml",
            params=place / "few.yaml",
        )
    )
    assert states(made)["curve"] == "done"
    assert [line["minutes"] for line in made["curve"][:2]] == [0.0, 10.0]
    # a cell costs 12 s, so that a round of ten minutes has at most 50
    assert 0 < made["curve"][1]["cells"] <= 50
    assert made["curve"][-1]["cells"] > 50
    assert made["begun_from"]["name"] == "worlds"
    checked = bundle.verify(Path(made["bundle"]["folder"]), expect_platform="x")
    assert checked.manifest.models.a.inputs[0].name in model_a.SPEC.relative
    assert checked.manifest.models.c.inputs[0].name not in model_a.SPEC.relative
    # planes to validate on, with and without neighbours
    labels = tables.of_stage(place / "out-worlds" / "label" / "labels.parquet")
    assert labels.filter(split="val").height > 0
    assert set(labels["neighbours"].str.len_bytes() > 0) == {True, False}
    out = io.StringIO()
    console.onboarded(Console(file=out, width=500), made)
    assert "ten more are expected to take off A" in out.getvalue()


def test_a_campaign_for_models_of_worlds_goes_by_what_the_server_carries(
    place: Path, worlds_models: Path, tmp_path: Path
) -> None:
    """Loads are shares of a max load that is measured there, alone and beside neighbours; a search measures few cells."""
    options = given(place, campaign=None, begin=str(worlds_models), out=tmp_path / "out")
    with Path(os.devnull).open("w") as nowhere:
        planned = onboard.plan(options, Console(file=nowhere))
    text = Path(planned["campaign_file"]).read_text("utf-8")
    assert 'rps = "saturation:20,40,60,80,100"' in text
    assert "neighbours = { count = [0, 1, 2]" in text
    assert 'strategy = "frontier"' in text


def test_a_damaged_source_is_refused(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One changed byte in a bundle, folder or tar: the file is named."""
    shutil.copytree(SOURCE, tmp_path / "b")
    file = tmp_path / "b" / "models" / "b.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    said = refused(capsys, tmp_path / "out", PLATFORM, "--from", tmp_path / "b")
    assert f"--from {tmp_path / 'b'}: models/b.safetensors: was changed" in said
    tar = bytearray(SOURCE.with_name("bundle-small.tar").read_bytes())
    tar[len(tar) // 2] ^= 1
    (tmp_path / "b.tar").write_bytes(tar)
    assert "models/" in refused(capsys, tmp_path / "out", PLATFORM, "--from", tmp_path / "b.tar")
    assert "no such bundle" in refused(capsys, tmp_path / "out", PLATFORM, "--from", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (('kind = "platform"', 'kind = "lc"'), "kind"),
        (('name = "x"', 'name = "../x"'), "name"),
        (("physical_cores = 16", "physical_cores = 1.5"), "cpu.physical_cores"),
        (("ways = 8 ", "ways = 99 "), "ways"),
        (("domains = 2 ", "domains = 3 "), "domains"),
        (("[mem]", "[mem"), "not valid TOML"),
        (("bw_gbs = 102.4", "bw_gbps = 102.4"), "bw_gbs"),
    ],
)
def test_a_wrong_platform_file_is_named_with_its_field(
    change: tuple[str, str], named: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File and field, exit code 2, nothing left behind."""
    text = PLATFORM.read_text("utf-8")
    assert text.count(change[0]) >= 1
    file = tmp_path / "wrong.toml"
    file.write_text(text.replace(*change), "utf-8")
    said = refused(capsys, tmp_path / "out", file, "--from", "nothing")
    assert str(file) in said
    assert named in said


def test_a_campaign_has_the_platform_as_its_one_target(place: Path, tmp_path: Path) -> None:
    """Another target would onboard something else; a group's name is asked for with its inventory."""
    file = tmp_path / "c.toml"
    file.write_text(TINY.replace('["x"]', '["x", "server-1"]'), "utf-8")
    with pytest.raises(CampaignError, match="this platform is onboarded on x alone"):
        run(given(place, campaign=file, begin="nothing", out=tmp_path / "out"))
    with pytest.raises(InputError, match="--inventory"):
        run(given(place, group="rack", out=tmp_path / "out"))
    with pytest.raises(InputError, match="no such platform file"):
        run(given(place, platform=tmp_path / "none.toml", out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_plan_writes_the_paper_s_campaign_and_stops(place: Path, tmp_path: Path) -> None:
    """Every service and allocation at the catalogue's loads with as many threads as CPUs, 10 samples; kept as it was edited."""
    options = given(place, campaign=None, begin="nothing", out=tmp_path / "out")
    with Path(os.devnull).open("w") as nowhere:
        planned = onboard.plan(options, Console(file=nowhere))
        file = tmp_path / "out" / "campaign.toml"
        assert planned["campaign_file"] == str(file)
        # one service of the user's own beside the shipped ones
        loads = 5 + sum(len(_levels(p)) for p in (PROFILES / "services").glob("*.toml"))
        assert planned["plan"]["cases"] == loads * 32 * 8
        assert planned["plan"]["rows"] == 10 * planned["plan"]["cases"]
        assert "threads = [32]" in file.read_text("utf-8")
        assert not (tmp_path / "out" / "data").exists()
        file.write_text(file.read_text("utf-8").replace("samples = 10", "samples = 4"), "utf-8")
        assert onboard.plan(options, Console(file=nowhere))["plan"]["rows"] == 4 * planned["plan"]["cases"]


def _levels(profile: Path) -> list[float]:
    import tomllib

    found: list[float] = tomllib.loads(profile.read_text("utf-8"))["rps_levels"]
    return found


def test_hosts_of_a_group_named_like_the_platform_are_the_target_with_an_inventory(tmp_path: Path) -> None:
    """The campaign that is made for hosts can be read, and names the group."""
    file = tmp_path / "c.toml"
    platform = onboard.read_platform(PLATFORM)
    for group in ("x", "rack_7"):
        file.write_text(onboard.campaign_text(platform, group), "utf-8")
        assert spec.load(file).targets == (spec.Target(group, "local", on_hosts=True),)


def test_profiles_of_the_user_stay_and_the_platform_given_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Later folders override: the user's, what lies beside the platform's file, then the file itself."""
    monkeypatch.setenv("SUREFOOT_PROFILES", "/a:/b")
    rack = ROOT / "examples" / "new-rack"
    found = onboard.profile_path(onboard.read_platform(rack / "platforms" / "silver-4314.toml"), tmp_path)
    assert found.split(os.pathsep) == ["/a", "/b", str(rack), str(tmp_path)]
