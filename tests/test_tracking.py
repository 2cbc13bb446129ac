"""MLflow: runs that can be compared, a store that is away costs no training, and a training that is told to end ends in order."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic import Campaign, write

from pipelines import evaluate, label, params, register, rows, tracking, train
from pipelines.artefact import bundle
from pipelines.errors import BadInput, PipelineError
from pipelines.fits import fit, fitted, signature

ROOT = Path(__file__).parents[1]
QUICK: dict[str, Any] = {
    "train": {
        "a": {"epochs": 3, "min_steps": 3, "batch": 4096},
        "b": {"epochs": 2, "min_steps": 2, "batch": 4096},
        "c": {"transitions": 500, "updates": 20, "batch": 32},
        **{f"osml_{m}": {"epochs": 2, "min_steps": 2, "batch": 4096} for m in ("a", "ap", "b", "bp")},
        "osml_c": {"transitions": 500, "updates": 20},
    },
    "evaluate": {"max_rows": 200},
}
P = params.Params.model_validate(QUICK)
DEADLINE_S = 300


def quick(**a: Any) -> params.Params:
    """The parameters with other ones of Model-A."""
    return params.Params.model_validate({**QUICK, "train": {**QUICK["train"], "a": QUICK["train"]["a"] | a}})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data`, `label` and `rows` of a campaign on a virtual server."""
    base = tmp_path_factory.mktemp("data")
    folder = write(base / "data", Campaign(loads=(600.0, 1000.0, 1400.0, 1800.0, 2200.0, 2600.0), samples=1))
    manifest = json.loads((folder / "manifest.json").read_text())
    made = {"software": {"surefootd": "0.1.0", "commit": "abc"}, "sources": {"platform toy-12x6": "0" * 64}}
    (folder / "manifest.json").write_text(json.dumps(manifest | made))
    label.run(folder, base / "label", P.label)
    rows.run(folder, base / "label", base / "rows", P.rows)
    return base


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow store as our first opening leaves it: making one takes longer than the tests."""
    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        tracking.connect()
    return folder / "mlflow.db"


@pytest.fixture
def store(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the test's own, and its folder the working folder."""
    shutil.copy(template, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("SUREFOOT_KEYS", str(tmp_path / "keys"))
    return tmp_path / "mlflow.db"


def learn(data: Path, out: Path, p: params.Params, models: str = "abc") -> dict[str, dict[str, Any]]:
    """Train these models as the stages do."""
    found = {}
    for m in models:
        b = out / "b" if m == "c" else None
        found[m] = train.run(m, "toy", data / "rows", data / "label", out / m, p.train, b, whole=p)
    return found


def measure(data: Path, models: Path, out: Path, p: params.Params) -> dict[str, float]:
    return evaluate.run(data / "rows", data / "label", models, out, p)


def runs(rule: str, order: str = "attributes.start_time ASC") -> list[Any]:
    """What MLflow's own search finds."""
    client = tracking.connect()
    found: list[Any] = client.search_runs([tracking.experiment(client)], rule, order_by=[order])
    return found


# ---------------------------------------------------------------- runs that can be compared


def test_experiments_are_found_by_parameter_and_by_error(data: Path, store: Path, tmp_path: Path) -> None:
    """Four learning rates are four pipeline runs; MLflow's search finds them, and their trainings, by rate and by test error."""
    rates = (0.03, 0.01, 0.003, 0.0001)
    learn(data, tmp_path / "m", P, "bc")
    errors = {}
    for rate in rates:
        p = quick(lr=rate)
        learn(data, tmp_path / "m", p, "a")
        errors[rate] = measure(data, tmp_path / "m", tmp_path / "e", p)["a_oaa_cores_mae"]
    whole = {float(r.data.params["train.a.lr"]): r for r in runs("tags.kind = 'pipeline' and metrics.a_oaa_cores_mae > 0")}
    assert set(whole) == set(rates)
    for rate, run in whole.items():
        assert run.data.metrics["a_oaa_cores_mae"] == pytest.approx(errors[rate])
        # the trainings of B and C were not repeated: the pipeline run names them
        child = tracking.connect().get_run(run.data.tags["run.a"])
        assert child.data.tags["mlflow.parentRunId"] == run.info.run_id
        assert float(child.data.params["lr"]) == rate
        assert child.data.metrics["a_oaa_cores_mae"] == pytest.approx(errors[rate])
    assert len({run.data.tags["run.b"] for run in whole.values()}) == 1
    (one,) = runs("params.`train.a.lr` = '0.003' and tags.kind = 'pipeline' and metrics.b_error_pct > 0")
    assert one.info.run_id == whole[0.003].info.run_id
    (training,) = runs("params.lr = '0.003' and tags.model = 'a'")
    assert training.data.tags["mlflow.parentRunId"] == one.info.run_id
    best = runs("tags.kind = 'training' and tags.model = 'a' and metrics.a_oaa_cores_mae > 0", "metrics.a_oaa_cores_mae ASC")
    assert [float(r.data.params["lr"]) for r in best] == sorted(rates, key=lambda rate: errors[rate])
    middle = sorted(errors.values())[1]
    assert len(runs(f"tags.kind = 'pipeline' and metrics.a_oaa_cores_mae <= {middle * 1.000001}")) == 2


def test_a_training_is_one_run_with_all_that_is_known_of_it(data: Path, store: Path, tmp_path: Path) -> None:
    """Parameters, losses of both splits, its own measures and not the others', and tags that lead to data, code and bundle."""
    learn(data, tmp_path / "m", P)
    measure(data, tmp_path / "m", tmp_path / "e", P)
    bundle.run(data / "data", tmp_path / "m", tmp_path / "e" / "metrics.json", tmp_path / "bundles" / "toy")
    digest = bundle.inspect(tmp_path / "bundles" / "toy.tar")["manifest_sha256"]
    (whole,) = runs("tags.kind = 'pipeline'")
    found = {r.data.tags["model"]: r for r in runs(f"tags.`mlflow.parentRunId` = '{whole.info.run_id}'")}
    assert set(found) == set("abc")
    client = tracking.connect()
    for model, run in found.items():
        tags = run.data.tags
        assert run.info.status == "FINISHED"
        assert tags["data_sha256"] == fitted.summary(tmp_path / "m" / model).data_sha256
        assert (tags["plant_version"], tags["data_commit"], tags["platform"]) == ("0.1.0", "abc", "toy-12x6")
        assert tags[tracking.BUNDLE] == digest
        assert tags["git_commit"] == str(tracking.git_state()[0])
        measured = {name for name in run.data.metrics if name[:2] in ("a_", "b_", "c_")}
        assert measured == {name for name in whole.data.metrics if name.startswith(f"{model}_")}
        assert measured
        losses = [point.step for point in client.get_metric_history(run.info.run_id, "val_loss")]
        assert losses == [epoch for epoch, _ in fitted.losses(tmp_path / "m" / model)]
    assert whole.data.tags[tracking.BUNDLE] == digest
    assert whole.info.status == "FINISHED"
    assert whole.data.params["train.b.epochs"] == "2"
    assert whole.data.params["label.margin_ways"] == "1"
    assert {f.path for f in client.list_artifacts(whole.info.run_id)} >= {"metrics.json", "by_service.csv", "bundle"}


def test_the_same_again_is_the_same_pipeline_run(data: Path, store: Path, tmp_path: Path) -> None:
    """Data, parameters, commit and beginning make it: each of these changed makes another, nothing else does."""
    first = learn(data, tmp_path / "m", P, "a")["a"]
    again = learn(data, tmp_path / "n", P, "a")["a"]
    assert again["mlflow_run_id"] == first["mlflow_run_id"]
    assert again["mlflow_child_id"] != first["mlflow_child_id"]
    known = {"dataset": "toy", "data_sha256": "0" * 64, "params": P.model_dump()}
    one = tracking.Execution(**known)
    assert one.digest() == tracking.Execution(**known, tags={"platform": "x"}).digest()
    gate = params.Params.model_validate({**QUICK, "gate": {"a": [{"metric": "test_rows", "at_most": 1}]}}).model_dump()
    assert one.digest() == tracking.Execution(**known | {"params": gate}).digest()
    other = [
        known | {"dataset": "other"},
        known | {"data_sha256": "1" * 64},
        known | {"params": quick(lr=0.5).model_dump()},
        known | {"begun_from": "server-1"},
    ]
    assert len({one.digest(), *(tracking.Execution(**o).digest() for o in other)}) == 5


def test_an_evaluation_alone_has_its_own_pipeline_run(data: Path, store: Path, tmp_path: Path) -> None:
    """DVC skips trainings that did not change: what is measured otherwise stands beside, and names them."""
    trained = learn(data, tmp_path / "m", P)
    measure(data, tmp_path / "m", tmp_path / "e", P)
    p = params.Params.model_validate({**QUICK, "evaluate": {"max_rows": 100}})
    measure(data, tmp_path / "m", tmp_path / "e", p)
    first, second = runs("tags.kind = 'pipeline'")
    assert first.info.run_id == trained["a"]["mlflow_run_id"]
    assert second.data.params["evaluate.max_rows"] == "100"
    for m in "abc":
        assert first.data.tags[f"run.{m}"] == second.data.tags[f"run.{m}"] == trained[m]["mlflow_child_id"]
        held = tracking.connect().get_run(trained[m]["mlflow_child_id"])
        assert held.data.tags["evaluated_in"] == second.info.run_id
        assert held.data.metrics["test_rows"] == second.data.metrics["test_rows"] == 100


def test_the_experiment_says_that_it_trains_models(store: Path) -> None:
    """Interfaces go by this tag; an experiment of an earlier version gets it, what somebody chose stays."""
    client = tracking.connect()
    made = client.create_experiment(tracking.EXPERIMENT)
    assert tracking.experiment(client) == made
    assert client.get_experiment(made).tags["mlflow.experimentKind"] == "custom_model_development"
    client.set_experiment_tag(made, "mlflow.experimentKind", "regression")
    tracking.experiment(client)
    assert client.get_experiment(made).tags["mlflow.experimentKind"] == "regression"


def test_a_version_has_signature_example_and_card(data: Path, store: Path, tmp_path: Path) -> None:
    """Whoever opens a version in the registry sees what it takes, one row of it, and what it is for and not for."""
    import mlflow

    mlflow.set_tracking_uri(tracking.tracking_uri())
    learn(data, tmp_path / "m", P)
    measure(data, tmp_path / "m", tmp_path / "e", P)
    bundle.run(data / "data", tmp_path / "m", tmp_path / "e" / "metrics.json", tmp_path / "b")
    gate = params.Gate.model_validate({"a": [{"metric": "test_rows", "at_least": 1}]})
    out = register.run(tmp_path / "m", tmp_path / "r", gate, metrics=tmp_path / "e" / "metrics.json", bundle=tmp_path / "b")
    assert out["promoted"]
    card = (tmp_path / "b" / "card.md").read_text("utf-8")
    for model in "abc":
        uri = f"models:/surefoot-{model}-toy@champion"
        held = tracking.connect().get_model_version_by_alias(f"surefoot-{model}-toy", "champion")
        assert held.description == register.description(card)
        assert held.description.startswith("# Model card: toy-12x6")
        folder = Path(mlflow.artifacts.download_artifacts(uri, dst_path=str(tmp_path / "got" / model)))
        assert (folder / "card.md").read_text("utf-8") == card
        described = mlflow.models.Model.load(str(folder))
        example = described.load_input_example(str(folder))
        bounds = fitted.summary(folder).inputs
        assert list(example.columns) == [b.name for b in bounds] == described.signature.inputs.input_names()
        assert all(b.min <= example[b.name][0] <= b.max for b in bounds)
        assert set(described.flavors) == {signature.FLAVOR}


def test_a_long_card_is_cut_at_a_section() -> None:
    """The registry's tables have room for 5,000 characters; the reader is told where the rest is."""
    short = "# Card\n\n## One\n\ntext\n"
    assert register.description(short) == short
    said = register.description("# Card\n\n## One\n\n" + "a " * 1500 + "\n\n## Two\n\n" + "b " * 1500)
    assert len(said) <= register.MOST_DESCRIPTION
    assert "## One" in said
    assert "## Two" not in said
    assert said.endswith("The whole card is `model/card.md` among the artefacts of the run that trained the model.\n")


# ---------------------------------------------------------------- a store that cannot be used


def test_a_request_has_a_bound(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's own would be four minutes for a server that is away; who sets another keeps it."""
    for name in ("TIMEOUT", "MAX_RETRIES", "BACKOFF_FACTOR"):
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", "x")
        monkeypatch.delenv(f"MLFLOW_HTTP_REQUEST_{name}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "4")
    tracking.connect()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == str(tracking.REQUEST_S)
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "4"


class Silent:
    """A server that accepts and never answers."""

    def __enter__(self) -> str:
        self.socket = socket.create_server(("127.0.0.1", 0))
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self.socket.close()


class Failing:
    """A server that answers each request alike."""

    def __init__(self, status: int, body: bytes = b"no") -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def newer(path: Path) -> None:
    with sqlite3.connect(path) as base:
        base.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")


def without_tables(path: Path) -> None:
    """As an older MLflow has it: a table is missing, and the version says so."""
    with sqlite3.connect(path) as base:
        base.execute("DROP TABLE webhooks")
        base.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")


def foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE books (title TEXT)")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10_000])


def garbage(path: Path) -> None:
    path.write_bytes(b"no data base" * 1000)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "newer": (newer, r"mlflow\.db: its tables are of another version of MLflow \(ffffffffffff, .*mlflow db upgrade"),
    "older": (without_tables, r"mlflow\.db: its tables are of another version of MLflow \(451aebb31d03, .*mlflow db upgrade"),
    "foreign": (foreign, r"mlflow\.db is a data base of something else than MLflow; name another file"),
    "cut": (cut, r"mlflow\.db: .*malformed.*; restore it from a copy"),
    "garbage": (garbage, r"mlflow\.db: file is not a database; restore it from a copy"),
    "folder": (folder, r"mlflow\.db: unable to open database file; restore it"),
}


@contextmanager
def broken(kind: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store that cannot be used; gives what a message about it must say."""
    if kind in BROKEN:
        damage, said = BROKEN[kind]
        damage(store)
        yield said
        return
    with {
        "silent": Silent(),
        "500": Failing(500),
        "html": Failing(200, b"<html>"),
        "404": Failing(404),
    }.get(kind, Failing(500)) as url:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9" if kind == "away" else url)
        yield r"\(MLFLOW_TRACKING_URI is http://127\.0\.0\.1:\d+: start the server, or name another store\)"


KINDS = (*BROKEN, "away", "silent", "500", "html", "404")


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tracking.REQUEST_S, shorter: what is tested is that it bounds."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")


@pytest.fixture(scope="module")
def made(data: Path, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of a store that is not there any more."""
    base = tmp_path_factory.mktemp("made")
    shutil.copy(template, base / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{base / 'mlflow.db'}")
        learn(data, base / "m", P)
        measure(data, base / "m", base / "e", P)
    return base


@pytest.mark.parametrize("kind", KINDS)
def test_every_stage_says_in_one_line_that_the_store_cannot_be_used(
    kind: str,
    data: Path,
    made: Path,
    store: Path,
    hurry: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A training is refused before it begins; measures and bundle are whole; the registry's stage fails. None takes minutes."""
    monkeypatch.setattr(fit, "train", lambda *_, **__: pytest.fail("a training began"))
    values = tmp_path / "params.yaml"
    values.write_text(yaml.safe_dump(QUICK))
    given = ["--rows", str(data / "rows"), "--labels", str(data / "label"), "--params", str(values)]
    with broken(kind, store, monkeypatch) as said:
        held = store.read_bytes() if store.is_file() else b""
        begun = time.monotonic()
        calls: dict[str, Callable[[], int]] = {
            "train": lambda: train.main(["--model", "a", "--name", "toy", "--out", str(tmp_path / "t"), *given]),
            "evaluate": lambda: evaluate.main(["--models", str(made / "m"), "--out", str(tmp_path / "e"), *given]),
            "bundle": lambda: bundle.main(
                ["--data", str(data / "data"), "--models", str(made / "m"), "--out", str(tmp_path / "b" / "toy")]
            ),
            "register": lambda: register.main(
                ["--models", str(made / "m"), "--out", str(tmp_path / "r"), "--params", str(values)]
            ),
        }
        capsys.readouterr()
        for stage, call in calls.items():
            code = call()
            lines = capsys.readouterr().err.splitlines()
            assert len(lines) == 1, (stage, lines)
            assert re.search(said, lines[0]), (stage, lines)
            assert code == (1 if stage in ("train", "register") else 0), (stage, lines)
            assert lines[0].startswith("error: " if code else "note: "), (stage, lines)
        assert time.monotonic() - begun < DEADLINE_S
        assert (store.read_bytes() if store.is_file() else b"") == held
    assert not (tmp_path / "t" / fitted.SUMMARY).exists()
    assert not (tmp_path / "r" / register.RESULT).exists()
    assert json.loads((tmp_path / "e" / "metrics.json").read_text()) == json.loads((made / "e" / "metrics.json").read_text())
    bundle.verify(tmp_path / "b" / "toy.tar", expect_platform="toy-12x6")


def test_a_store_that_nobody_can_write_to_is_named(store: Path, tmp_path: Path) -> None:
    """Found before the training, by root too: the file system takes no writes."""
    (tmp_path / "ro").mkdir()
    code = (
        f"mount --bind {tmp_path} {tmp_path / 'ro'} && mount -o remount,ro,bind {tmp_path / 'ro'} && "
        f"MLFLOW_TRACKING_URI=sqlite:///{tmp_path / 'ro' / 'mlflow.db'} {sys.executable} -c "
        "'from pipelines import tracking; tracking.connect()'"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["unshare", "--mount", "sh", "-c", code], capture_output=True, text=True, env=env, timeout=DEADLINE_S)
    if "Operation not permitted" in done.stderr or "permission denied" in done.stderr:
        pytest.skip("this user may not mount")
    assert re.search(r"Away: .*ro/mlflow\.db: cannot be written to; .*make it writable", done.stderr), done.stderr


def test_a_run_whose_files_cannot_be_kept_is_said(
    data: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The artefacts' place may be gone, as a share that is not mounted: the model is whole, one line says what is missing, and
    the next stage adds it once the place is back."""
    client = tracking.connect()
    place = tmp_path / "share"
    place.write_text("no folder")
    client.create_experiment(tracking.EXPERIMENT, artifact_location=str(place / "of"))
    learn(data, tmp_path / "m", P, "a")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert re.search(r"^note: the model is whole; MLflow's run \w+ lacks its end.*its artefacts' place must be there", lines[0])
    run_id = fitted.summary(tmp_path / "m" / "a").mlflow_child_id
    assert signature.CONTENT not in tracking.Runs(run_id).tags()
    place.unlink()
    learn(data, tmp_path / "m", P, "bc")
    measure(data, tmp_path / "m", tmp_path / "e", P)
    assert capsys.readouterr().err == ""
    run = client.get_run(run_id)
    assert run.data.tags[signature.CONTENT] == signature.content_sha256(tmp_path / "m" / "a")
    assert run.info.status == "FINISHED"


def test_a_store_that_goes_away_meanwhile_costs_no_training(
    data: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends with its model and one line; the stage `register` completes the run from the model's folder."""

    learn(data, tmp_path / "m", P, "bc")
    capsys.readouterr()

    def go_away(self: tracking.Runs, **_: Any) -> None:
        with tracking.asking():
            raise ConnectionError("gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking.Losses, "EVERY_S", 0.0)
        patch.setattr(fit, "trainer", _spoiling(fit.trainer, lambda: patch.setattr(tracking.Runs, "_log", go_away)))
        done = learn(data, tmp_path / "m", P, "a")["a"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"note: the model is whole; MLflow's run {done['mlflow_child_id']} lacks its end")
    fitted.load(tmp_path / "m" / "a")
    gate = params.Gate()
    register.run(tmp_path / "m", tmp_path / "r", gate)
    run = tracking.connect().get_run(done["mlflow_child_id"])
    assert run.info.status == "FINISHED"
    history = tracking.connect().get_metric_history(done["mlflow_child_id"], "train_loss")
    assert [(p.step, round(p.value, 5)) for p in history] == [
        (epoch, round(values["train_loss"], 5)) for epoch, values in fitted.losses(tmp_path / "m" / "a")
    ]


def _spoiling(real: Callable[..., Any], spoil: Callable[[], None]) -> Callable[..., Any]:
    def trainer(*args: Any, **kwargs: Any) -> Any:
        spoil()
        return real(*args, **kwargs)

    return trainer


# ---------------------------------------------------------------- a new store


def stage(data: Path, out: Path, model: str, values: Path, **env: str) -> subprocess.Popen[str]:
    """The stage `train` as a process of its own."""
    words = ["--model", model, "--name", "toy", "--rows", data / "rows", "--labels", data / "label", "--out", out]
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines.train", *map(str, words), "--params", str(values)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_trainings_at_once_make_one_store(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has none: both end well, under one pipeline run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}")
    values = tmp_path / "params.yaml"
    values.write_text(yaml.safe_dump(QUICK))
    begun = [stage(data, tmp_path / m, m, values) for m in ("a", "b", "osml-a")]
    for process in begun:
        _, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, err) == (0, "")
    (whole,) = runs("tags.kind = 'pipeline'")
    assert len(runs(f"tags.`mlflow.parentRunId` = '{whole.info.run_id}'")) == 3
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["mlflow.db", "mlflow.db.lock"]


def test_a_store_whose_maker_was_killed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tables are made under another name: whoever comes next finds none, or a whole one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    code = """
import os
from pipelines import tracking
tracking.quiet()
from mlflow.store.db import utils
utils._upgrade_db = lambda engine: os._exit(9)
tracking.connect()
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=DEADLINE_S)
    assert done.returncode == 9
    assert not (tmp_path / "mlflow.db").exists()
    tracking.connect()
    assert (tmp_path / "mlflow.db").exists()


# ---------------------------------------------------------------- the end


def long(tmp_path: Path) -> Path:
    """Parameters of a training that takes longer than any test waits."""
    values = tmp_path / "params.yaml"
    endless = {"epochs": 100_000, "min_steps": 1, "batch": 4096}
    fast = {"transitions": 500, "updates": 100_000_000, "batch": 32}
    values.write_text(yaml.safe_dump({"train": {"a": endless, "b": endless, "osml_b": endless, "c": fast}}))
    return values


def until(what: Callable[[], Any]) -> Any:
    """Wait for this to be true."""
    end = time.monotonic() + DEADLINE_S
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def in_training(model: str) -> Any:
    """Its run, once two epochs are logged."""
    found = runs(f"tags.model = '{model}' and metrics.train_loss > 0")
    return found[0] if found and len(tracking.Runs(found[0].info.run_id).steps("train_loss")) > 1 else None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_training_with_what_it_has(
    number: signal.Signals, data: Path, store: Path, made: Path, tmp_path: Path
) -> None:
    """The best weights so far, marked; exit code 1; the run is KILLED; and nobody bundles or registers them."""
    shutil.copytree(made / "m", tmp_path / "m")
    shutil.rmtree(tmp_path / "m" / "a")
    process = stage(data, tmp_path / "m" / "a", "a", long(tmp_path))
    run = until(lambda: in_training("a"))
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert out == ""
    said = rf"error: toy-a: the training was ended by {number.name} after \d+ of 100000 epochs; .* marked stopped_early"
    assert len(err.splitlines()) == 1, err
    assert re.match(said, err)
    held = fitted.summary(tmp_path / "m" / "a")
    fitted.load(tmp_path / "m" / "a")
    assert held.stopped_early is not None
    assert held.stopped_early.epochs == len(fitted.losses(tmp_path / "m" / "a")) >= 2
    run = tracking.connect().get_run(run.info.run_id)
    assert run.info.status == "KILLED"
    assert run.data.tags["stopped_early"].startswith(f"{number.name} after ")
    assert run.data.tags[signature.CONTENT] == signature.content_sha256(tmp_path / "m" / "a")
    assert not runs("attributes.status = 'RUNNING'")
    for refused in (
        lambda: bundle.from_pipeline(data / "data", tmp_path / "m", None),
        lambda: register.run(tmp_path / "m", tmp_path / "r", params.Gate()),
    ):
        with pytest.raises(BadInput, match=r"a/model\.json: field stopped_early: SIG\w+ ended the training after .*train it to"):
            refused()
    # a whole model is no worse for a training of its successor that was ended
    shutil.rmtree(tmp_path / "m" / "a")
    shutil.copytree(made / "m" / "a", tmp_path / "m" / "a")
    before = {p.name: p.read_bytes() for p in (tmp_path / "m" / "a").iterdir()}
    again = tracking.Runs(run.info.run_id)
    course = fitted.Stopped(by="SIGTERM", epochs=1, of=3)
    done = fitted.load(made / "m" / "a")
    done.stopped_early = course
    ended = train._stopped(tmp_path / "m" / "a", done, {"dataset": "toy", "model": "a"}, tracking.Losses(again))
    assert "holds the model of an earlier one, as it was" in str(ended)
    assert {p.name: p.read_bytes() for p in (tmp_path / "m" / "a").iterdir()} == before


def test_a_run_whose_process_was_killed_is_closed_by_the_next_training(data: Path, store: Path, tmp_path: Path) -> None:
    """SIGKILL leaves no time to say anything: the next start does it, and leaves alone who still works or works elsewhere."""
    killed = stage(data, tmp_path / "m" / "a", "a", long(tmp_path))
    run = until(lambda: in_training("a"))
    killed.kill()
    killed.communicate(timeout=DEADLINE_S)
    left = {r.info.run_id for r in runs("attributes.status = 'RUNNING'")}
    assert run.info.run_id in left
    ours = tracking.Runs(name="of this process")
    # as from a machine of another name: nobody here can know
    far = tracking.Runs(name="elsewhere", tags={tracking.PROCESS: "another " + tracking.process().split(" ", 1)[1]})
    learn(data, tmp_path / "n", P, "a")
    for run_id in left:
        closed = tracking.connect().get_run(run_id)
        assert closed.info.status == "KILLED"
        assert closed.data.tags["ended"].startswith("its process was killed")
    assert {r.info.run_id for r in runs("attributes.status = 'RUNNING'")} == {ours.run_id, far.run_id}
    ours.finish()
    far.finish()


def test_a_process_is_known_by_its_start_and_its_boot() -> None:
    """An id that was given again is another process; a machine that was started anew runs none of the earlier ones."""
    machine, boot, space, pid, start = tracking.process().split()
    assert not tracking.gone(tracking.process())
    assert tracking.gone(f"{machine} {boot} {space} {pid} {int(start) + 1}")
    assert tracking.gone(f"{machine} 0-0 {space} {pid} {start}")
    assert not tracking.gone(f"{machine} {boot} pid:[1] {pid} 1")  # another container's ids
    assert not tracking.gone(f"{machine.split('/')[0]}/ 0-0 {space} {pid} {start}")  # a name alone is that of many machines
    assert not tracking.gone(f"{machine} {boot} {space} {pid} ?")


def test_a_process_that_proc_hides_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under hidepid the files of others' processes are not there, or not to be read: they live all the same."""
    machine, boot, space, _, start = tracking.process().split()
    tag = f"{machine} {boot} {space} 1 {start}"
    for error in (FileNotFoundError(), PermissionError()):

        def hidden(_: Path, most: int, error: OSError = error) -> bytes:
            raise error

        monkeypatch.setattr(tracking, "read_bytes", hidden)
        assert not tracking.gone(tag)
    monkeypatch.undo()
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert tracking.gone(f"{machine} {boot} {space} {ended.pid} {start}")


def test_a_pipeline_run_in_use_stays_open(store: Path) -> None:
    """Another process trains under the pipeline run of a killed one: it stays open, and is closed with the last of them."""
    machine, boot, space, pid, start = tracking.process().split()
    dead = {tracking.PROCESS: f"{machine} {boot} {space} {pid} {int(start) + 1}"}
    made = tracking.Execution("toy", "0" * 64, {}).run()
    made.tag(dead)
    inner = made.child("b", {})
    assert tracking.close_left_open(made.client) == []
    inner.tag(dead)
    assert set(tracking.close_left_open(made.client)) == {made.run_id, inner.run_id}
    again = tracking.Execution("toy", "0" * 64, {}).run()
    assert again.run_id == made.run_id
    assert tracking.ENDED not in again.tags()
    assert [r.info.run_id for r in runs("attributes.status = 'RUNNING'")] == [made.run_id]
    again.finish()
    assert not tracking.gone("")


def test_a_training_ends_with_dvc(data: Path, store: Path, tmp_path: Path) -> None:
    """`kill PID` of `dvc repro` leaves its stage behind, which must not go on for hours: it ends as by a signal."""
    values = long(tmp_path)
    words = [sys.executable, "-m", "pipelines.train", "--model", "a", "--name", "toy", "--rows", str(data / "rows")]
    words += ["--labels", str(data / "label"), "--out", str(tmp_path / "a"), "--params", str(values)]
    # as DVC: a parent that waits for its child, and ends without a word to it
    code = f"import subprocess; p = subprocess.Popen({words!r}); print(p.pid, flush=True); p.wait()"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "DVC_STAGE": "train@toy-a"}
    parent = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        run = until(lambda: in_training("a"))
        parent.kill()
        parent.wait()
        until(lambda: tracking.connect().get_run(run.info.run_id).info.status == "KILLED")
        until(lambda: (tmp_path / "a" / fitted.SUMMARY).exists())
        held = fitted.summary(tmp_path / "a").stopped_early
        assert held is not None
        assert held.by == "the end of DVC"
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_a_training_that_has_nothing_yet_keeps_nothing(
    data: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal while data are read or before the first epoch is over: no model, no run that goes on for ever."""

    def trainer(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*_, **__)

    real = fit.trainer
    monkeypatch.setattr(fit, "trainer", trainer)
    with pytest.raises(PipelineError, match=r"toy-a: SIGTERM ended the training before its first epoch was over; nothing"):
        learn(data, tmp_path / "m", P, "a")
    assert not (tmp_path / "m" / "a" / fitted.SUMMARY).exists()
    assert [r.info.status for r in runs("tags.model = 'a'")] == ["KILLED"]
    assert not runs("attributes.status = 'RUNNING'")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_training_that_fails_is_not_running_for_ever(
    data: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its run nor the pipeline run above it."""
    monkeypatch.setattr(fit, "checked", lambda *_: (_ for _ in ()).throw(PipelineError("diverged")))
    with pytest.raises(PipelineError, match="diverged"):
        learn(data, tmp_path / "m", P, "a")
    assert [r.info.status for r in runs("")] == ["FAILED", "FAILED"]


@pytest.mark.parametrize(("module", "number"), [("generalise", "SIGTERM"), ("transfer", "SIGTERM"), ("transfer", "SIGINT")])
def test_a_signal_is_no_success(module: str, number: str, data: Path, made: Path, tmp_path: Path) -> None:
    """Stages that fit models to measure them have nothing to keep: a line, and exit code 1 (Lightning's own is 0)."""
    code = f"""
import os, signal, sys
from pipelines import {module}
from pipelines.fits import fit
real = fit.trainer
def trainer(*a, **k):
    made = real(*a, **k)
    class Send(__import__("lightning.pytorch").pytorch.Callback):
        def on_train_batch_start(self, *_):
            os.kill(os.getpid(), signal.{number})
    made.callbacks.append(Send())
    return made
fit.trainer = trainer
sys.exit({module}.main(sys.argv[1:]))
"""
    words = ["services"] if module == "generalise" else ["--models", str(made / "m")]
    words += ["--rows", str(data / "rows"), "--labels", str(data / "label"), "--out", str(tmp_path / "o")]
    values = tmp_path / "params.yaml"
    values.write_text(yaml.safe_dump({}))
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--params", str(values)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == f"error: ended by {number} before its end; `dvc repro` does it again\n"


# ---------------------------------------------------------------- losses


def test_every_model_has_its_loss_on_planes_held_out(data: Path, store: Path, tmp_path: Path) -> None:
    """Beside that of the training: in loss.csv, and so in `dvc plots`, in MLflow and in the report."""
    learn(data, tmp_path / "m", P)
    for model in ("osml-a", "osml-ap", "osml-b", "osml-bp", "osml-c"):
        train.run(model, "toy", data / "rows", data / "label", tmp_path / "m" / model, P.train)
    for model in train.LEARNERS:
        losses = fitted.losses(tmp_path / "m" / model)
        own = "critic_loss" if model == "c" else "train_loss"
        assert len(losses) > 1, model
        assert all({own, "val_loss"} <= set(values) for _, values in losses), model
        assert len({values["val_loss"] for _, values in losses}) > 1, model


def test_a_data_set_too_small_to_hold_planes_out_has_the_column_all_the_same() -> None:
    """`dvc plots` draws both columns of every loss.csv; an empty one is no line."""
    assert fitted.loss_csv([{"epoch": 0.0, "train_loss": 0.5}]) == b"epoch,train_loss,val_loss\n0,0.5,\n"


def test_dvc_plots_both_losses() -> None:
    """Each loss.csv of dvc.yaml is drawn by the template that folds the two columns, whichever revisions are compared."""
    from dvc_render import VegaRenderer

    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    drawn = 0
    for name in ("train", "train-c", "train-osml"):
        for entry in stages[name].get("do", stages[name])["plots"]:
            ((path, given),) = entry.items()
            if path.endswith(fitted.LOSS):
                points = [{"epoch": 0, given["y"]: 0.5, "val_loss": 0.7, "rev": rev} for rev in ("HEAD", "workspace")]
                spec = VegaRenderer(points, path, **given, template_dir=str(ROOT / ".dvc" / "plots")).get_filled_template()
                assert spec["transform"][0]["fold"] == [given["y"], "val_loss"]
                assert spec["data"]["values"] == points
                assert "<DVC_METRIC" not in json.dumps(spec)
                drawn += 1
    assert drawn == 3


# ---------------------------------------------------------------- nothing but what a command says


HELPED = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("pipelines", "collection")
    for path in (ROOT / folder).rglob("*.py")
    if "argparse.ArgumentParser(" in path.read_text("utf-8") and "__main__" in path.read_text("utf-8")
)


def test_help_is_all_that_help_says() -> None:
    """No stage's `--help` comes with a warning of a library, and importing them all brings none."""
    code = """
import contextlib, io, runpy, sys
for module in sys.argv[1:]:
    sys.argv[1:] = ["--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        runpy.run_module(module, run_name="__main__")
    assert said.getvalue().startswith("usage: "), (module, said.getvalue())
"""
    assert len(HELPED) >= 15
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-W", "ignore::RuntimeWarning:runpy", "-c", code, *HELPED]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=DEADLINE_S, cwd="/")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_stages_say_their_result_and_nothing_else(data: Path, tmp_path: Path) -> None:
    """From rows to the registry, each as a process of its own, on a store that is made meanwhile."""
    values = tmp_path / "params.yaml"
    values.write_text(yaml.safe_dump(QUICK | {"transfer": {"shares": [1.0], "seeds": [1], "frozen": []}}))
    ends = {"--rows": data / "rows", "--labels": data / "label"}
    metrics = tmp_path / "e" / "metrics.json"
    stages: list[tuple[str, list[Any]]] = [
        ("label", ["--data", data / "data", "--out", tmp_path / "label"]),
        ("rows", ["--data", data / "data", "--labels", tmp_path / "label", "--out", tmp_path / "rows"]),
        *[
            ("train", ["--model", m, "--name", "toy", "--out", tmp_path / "m" / m, *(x for e in ends.items() for x in e), *more])
            for m, more in (("a", []), ("b", []), ("c", ["--b", tmp_path / "m" / "b"]))
        ],
        ("compare", [*(x for e in ends.items() for x in e), "--out", tmp_path / "c"]),
        (
            "evaluate",
            [
                *(x for e in ends.items() for x in e),
                "--models",
                tmp_path / "m",
                "--compare",
                tmp_path / "c",
                "--out",
                metrics.parent,
            ],
        ),
        ("bundle", ["--data", data / "data", "--models", tmp_path / "m", "--metrics", metrics, "--out", tmp_path / "b" / "toy"]),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SUREFOOT_KEYS": str(tmp_path / "keys")}
    env.pop("MLFLOW_TRACKING_URI", None)
    for name, words in stages:
        more = [] if name == "bundle" else ["--params", values]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                {"bundle": "pipelines.artefact.bundle"}.get(name, f"pipelines.{name}"),
                *map(str, [*words, *more]),
            ],
            env=env,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            cwd=tmp_path,
        )
        assert (name, done.returncode, done.stderr) == (name, 0, "")
        json.loads(done.stdout)
