"""The page about a training: every number of its inputs is on it, in words what is good and what is not, and what is missing."""

from __future__ import annotations

import csv
import html
import io
import itertools
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure
from synthetic import Campaign, Service, write

from models import export, features
from models.features import Bound, Scale
from pipelines import drift, label, params, report, rows
from pipelines.errors import BadInput
from pipelines.fits import fitted, rowfile
from pipelines.pages import drawing, published, training_charts, training_facts, training_page
from pipelines.pages.page import number

ROOT = Path(__file__).resolve().parents[1]
CAMPAIGN = Campaign(loads=(800.0, 1600.0, 2400.0), core_values=tuple(map(float, range(1, 13, 2))), samples=2)
P = params.Params()

METRICS = {
    "a_oaa_cores_mae": 0.45,  # paper 0.58, LightGBM 0.5: within both
    "a_oaa_cores_mae_carried": 0.41,
    "a_oaa_cores_mae_overloaded": 0.83,
    "a_oaa_cores_mae_constant": 1.87,
    "a_oaa_cores_mae_nearest": 0.91,
    "a_oaa_cores_mae_linear": 0.71,
    "a_oaa_cores_mae_lightgbm": 0.5,
    "a_oaa_cores_vs_best": 0.9,
    "a_oaa_ways_mae": 0.523,  # paper 0.3595, nearest 0.5: outside, but no more than 10 % above
    "a_oaa_ways_mae_nearest": 0.5,
    "a_rcliff_ways_mae": 0.377,  # nearest 0.211: worse
    "a_rcliff_ways_mae_nearest": 0.211,
    "b_accuracy": 0.971,  # paper 0.964; nearest 0.95: lacks 0.029 against 0.05
    "b_accuracy_nearest": 0.95,
    "b_error_pct": 6.17,
    "b_cliff_recall": 0.613,
    "c_share_idle": 0.123,
    "test_planes": 7.0,
    "test_rows": 1234.0,
}
TABLES = {
    "by_service": "service,samples,a_oaa_cores_mae,a_oaa_ways_mae,questions,b_error_pct\n"
    "alpha,61,0.417,0.219,67,3.91\nbeta,71,0.523,,73,7.37\n",
    "by_cliff": "steps,samples,a_oaa_cores_mae,a_oaa_ways_mae,questions,b_error_pct\n"
    "-1,31,2.17,1.31,37,33.1\n0,41,1.97,1.13,43,6.11\n1,47,1.51,,53,2.23\n",
    "calibration": "from_qos,to_qos,questions,predicted_qos,qos,met_share\n0,0.1,281,0.0471,0.00163,0.00107\n0.1,0.2,0,,,\n",
    "importance": "model,input,error,whole,increase\na,ipc,oaa_cores_mae,0.45,0.311\na,ipc,oaa_ways_mae,0.523,0.0847\n"
    "a,res_mem_mb,oaa_cores_mae,0.45,0.727\na,res_mem_mb,oaa_ways_mae,0.523,0.113\nb,expected_cores,error_pct,6.17,21.7\n",
}
TRANSFER = {"a_mae_scratch": 1.31, "a_mae_transfer": 0.87, "a_reduction_pct": 33.6, "b_reduction_pct": 9.41}
CURVE = (
    "share,samples,scratch,scratch_least,scratch_most,transfer,transfer_least,transfer_most\n"
    "0.1,4711,2.11,2.03,2.19,1.43,1.37,1.49\n"
)


class Training:
    """What the stages of one data set leave behind; the models' weights are random."""

    def __init__(self, folder: Path, campaign: Campaign, compared: bool = True) -> None:
        self.rows, self.labels = folder / "rows", folder / "label"
        self.models, self.evaluate = folder / "train", folder / "evaluate"
        data = write(folder / "data", campaign)
        label.run(data, self.labels, P.label)
        rows.run(data, self.labels, self.rows, P.rows)
        digest = rowfile.about(self.rows).data_sha256
        rng = np.random.default_rng(1)
        for model in ("a", "b"):
            inputs = [Bound(n, 0.0, 1.0) for n in features.MODEL_A_INPUTS]
            outputs = [Scale(n, 1.0, 0.0) for n in (features.MODEL_A_OUTPUTS if model == "a" else ["qos"])]
            weights: export.Weights = {
                "layers.0.weight": rng.random((len(outputs), len(inputs))).astype(np.float32),
                "layers.0.bias": np.zeros(len(outputs), np.float32),
            }
            history = [{"epoch": float(e), "train_loss": 0.9 - e / 3, "val_loss": 0.8 - e / 4} for e in range(3)]
            settings = {"qos_cap": 2.0} if model == "b" else {}
            done = fitted.Fitted(weights, inputs, outputs, ["core_freq_mhz"], history, 4321, settings, {"train": 777})
            ids = {"mlflow_run_id": "run-7", "mlflow_child_id": f"child-{model}"}
            fitted.save(
                self.models / model, done, {"model": model, "dataset": "toy", "campaign": "c", "data_sha256": digest, **ids}
            )
        self.evaluate.mkdir()
        others = ("_constant", "_nearest", "_linear", "_lightgbm", "_best")
        metrics = {n: v for n, v in METRICS.items() if compared or not n.endswith(others)}
        (self.evaluate / "metrics.json").write_text(json.dumps(metrics))
        for name, text in TABLES.items():
            (self.evaluate / f"{name}.csv").write_text(text)

    def report(self, out: Path) -> dict[str, Any]:
        """Run the stage; returns report.json."""
        report.run("toy", self.rows, self.labels, self.models, self.evaluate, out, P)
        found: dict[str, Any] = json.loads((out / report.FACTS).read_text())
        return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return Training(tmp_path_factory.mktemp("training"), CAMPAIGN)


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take a third of a second each; most tests are about the words."""

    def blank(figure: Figure, label: str) -> str:
        plt.close(figure)
        return f'<svg aria-label="{label}"></svg>'

    monkeypatch.setattr(training_charts, "svg_element", blank)


@pytest.fixture
def training(made: Training, tmp_path: Path) -> Training:
    """A copy that a test may change."""
    folder = made.rows.parent
    shutil.copytree(folder, tmp_path / "training")
    copy = object.__new__(Training)
    for name in ("rows", "labels", "models", "evaluate"):
        setattr(copy, name, tmp_path / "training" / getattr(made, name).name)
    return copy


def words(out: Path) -> str:
    """The page's text without its figures."""
    text = re.sub(r"<svg.*?</svg>|<style.*?</style>", " ", (out / report.PAGE).read_text("utf-8"), flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def numbers(value: Any) -> list[float]:
    """All numbers in nested lists, dictionaries and CSV text."""
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers(v)]
    if isinstance(value, list):
        return [n for v in value for n in numbers(v)]
    if isinstance(value, str):
        return [
            float(v) for row in csv.DictReader(io.StringIO(value)) for v in row.values() if re.fullmatch(r"-?[\d.]+", v or "")
        ]
    return [float(value)]


# ---------------------------------------------------------------- the page


def test_every_number_of_the_inputs_is_on_the_page_and_in_the_json(training: Training, tmp_path: Path) -> None:
    (training.evaluate / "transfer").mkdir()
    (training.evaluate / "transfer" / "transfer.json").write_text(json.dumps(TRANSFER))
    for letter in "ab":
        (training.evaluate / "transfer" / f"curve_{letter}.csv").write_text(CURVE)
    facts = training.report(tmp_path / "out")
    text = f" {words(tmp_path / 'out')} "
    for value in [*numbers(list(TABLES.values())), *numbers(METRICS), *numbers(TRANSFER), *numbers(CURVE)]:
        assert re.search(rf"[\s(]{re.escape(number(value))}[\s)×%;,.]", text), value
    assert facts["metrics"] == METRICS
    assert facts["tables"]["by_cliff"][0] == {
        "steps": -1.0, "samples": 31.0, "a_oaa_cores_mae": 2.17, "a_oaa_ways_mae": 1.31, "questions": 37.0, "b_error_pct": 33.1,
    }  # fmt: skip
    assert facts["tables"]["by_cliff"][2]["a_oaa_ways_mae"] is None
    about = rowfile.about(training.rows)
    for fact in (about.data_sha256, f"{about.rows:,}", "toy-12x6", "run-7", "4,321", "777 train", "core_freq_mhz"):
        assert fact in text, fact
    for service in CAMPAIGN.services:
        assert f"{service.name} {number(service.qos_target_ms)}" in text
    assert facts["params"] == P.model_dump(include=set(facts["params"]))


def test_the_page_fetches_nothing_and_runs_nothing(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole page, with its figures, made as DVC makes it."""
    monkeypatch.undo()
    folders = {"rows": training.rows, "labels": training.labels, "models": training.models, "evaluate": training.evaluate}
    flags = [text for name, path in folders.items() for text in (f"--{name}", str(path))]
    assert report.main(["--name", "toy", "--out", str(tmp_path / "out"), "--params", str(ROOT / "params.yaml"), *flags]) == 0
    assert json.loads(capsys.readouterr().out)["drifted"] is None
    page = (tmp_path / "out" / report.PAGE).read_text("utf-8")
    assert not re.search(r"<script|<link|<img|@import|https?://|url\((?!#)|\bsrc=", page)
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', page))
    assert page.count("<svg ") == 2 + 2 + 2 + 2 + 2  # services, cliff, calibration, importance, losses; each for A and B
    assert "prefers-color-scheme: dark" in page


def test_a_verdict_is_a_word_and_not_only_a_colour(training: Training, tmp_path: Path) -> None:
    errors = {e["metric"]: e for e in training.report(tmp_path / "out")["errors"]}
    cores, ways, rcliff, accuracy = (errors[n] for n in ("a_oaa_cores_mae", "a_oaa_ways_mae", "a_rcliff_ways_mae", "b_accuracy"))
    assert (cores["best"], cores["no_worse"], cores["within_paper"]) == ("lightgbm", True, True)
    assert cores["over_best"] == pytest.approx(0.9)
    assert cores["paper"]["value"] == 0.58
    # 0.523 / 0.5 = 1.046, not above 1.1; the paper's is 0.3595
    assert (ways["no_worse"], ways["within_paper"]) == (True, False)
    assert (rcliff["no_worse"], rcliff["within_paper"]) == (False, False)
    # 0.971 lacks 0.029 of 1, the nearest neighbour 0.05
    assert accuracy["over_best"] == pytest.approx(0.58)
    assert (accuracy["no_worse"], accuracy["within_paper"]) == (True, True)
    assert errors["b_error_pct"]["no_worse"] is errors["b_error_pct"]["paper"] is None
    # published, and a model that was trained, but not measured here
    assert errors["a_rcliff_cores_mae"]["ours"] is None
    text = words(tmp_path / "out")
    assert "cores 0.45 1.87 0.91 0.5 (LightGBM) 0.58 (OSML (2021), Sec. 6.4, Table 5) better 0.9 × its error within" in text
    assert "no worse (within 10 %) 1.05 × its error outside the paper's 0.523 against 0.3595" in text
    assert "worse by more than 10 % 1.79 × its error" in text
    assert "not measured here" in text
    # the campaign's platform is not the papers'
    assert "these data of toy-12x6" in text


def test_what_was_not_run_is_said(tmp_path: Path) -> None:
    training = Training(tmp_path / "t", replace(CAMPAIGN, services=CAMPAIGN.services[:1]), compared=False)
    for name in TABLES:
        (training.evaluate / f"{name}.csv").unlink()
    (training.models / "a" / fitted.LOSS).unlink()
    facts = training.report(tmp_path / "out")
    assert all(e["no_worse"] is None for e in facts["errors"])
    assert facts["unseen"] == {"leave_one_out": None, "foreign": {}}
    assert facts["transfer"] is facts["drift"] is None
    text = words(tmp_path / "out")
    for said in (
        "No comparators: stage compare was not run",
        *(f"Not shown: {name}.csv of stage evaluate is missing" for name in TABLES),
        "Not run: name toy in leave_one_out",
        "Not run: name data of other services or of another platform in foreign",
        "Not run: name toy in transfers",
        "There is no previous version",
        "OSML's models were not trained on these data",
        "loss.csv is missing",
    ):
        assert said in text, said


def test_unseen_services_and_platforms_are_set_against_the_papers(training: Training, tmp_path: Path) -> None:
    alone = {"a_mae": 0.69, "a_mae_constant": 1.93, "b_error_pct": 15.1}
    alone |= {"a_cores_mae": 1.21, "a_cores_mae_constant": 2.31, "a_ways_mae": 0.17, "a_ways_mae_constant": 0.16}
    alone |= {"b_error_pct_constant": 28.4, "b_false_met": 0.23, "b_harm_pct": 41.0, "trainings": 1.0}
    far = {"a_mae_as_is": 3.17, "a_mae_rescaled": 2.71}
    for where, metrics in (("leave-one-out", alone), ("foreign/rack-2", far)):
        folder = training.evaluate / where
        folder.mkdir(parents=True)
        (folder / "generalise.json").write_text(json.dumps(metrics))
        (folder / "generalise.csv").write_text("service,a_mae\nalpha,0.617\ngamma,0.763\n")
    facts = training.report(tmp_path / "out")
    # what a reader asks first, before anything of the services that were seen
    said = words(tmp_path / "out")
    first = said.index("Services never seen (2, each left out once): Model-A is off by 1.21 (a constant 2.31) cores and 0.17")
    assert first < said.index("Held-out loads of the 3 services seen")
    assert "(a constant 0.16) ways; Model-B by 15.1 % (a constant 28.4 %) of QoS" in said
    assert "it calls 23.0 % of what misses QoS met, which then falls short by 41 %." in said
    assert "One training: scatter between trainings is not in these figures." in said
    told = json.loads((tmp_path / "out" / "headline.json").read_text())
    assert told == {"never_seen_a_cores_mae": 1.21, "never_seen_b_false_met": 0.23}
    unseen = facts["unseen"]
    errors = {e["metric"]: e for e in unseen["leave_one_out"]["errors"]}
    assert errors["a_mae"]["within_paper"] is True  # 0.7297 on Server 1
    assert errors["a_mae"]["over_best"] == pytest.approx(0.69 / 1.93)
    assert errors["b_error_pct"]["within_paper"] is False  # 13.53 %
    # models of another platform: the papers have no figure of the like
    assert [(e["version"], e["ours"], e["paper"]) for e in unseen["foreign"]["rack-2"]["errors"]] == [
        ("as_is", 3.17, None),
        ("rescaled", 2.71, None),
    ]
    text = words(tmp_path / "out")
    for said in ("rack-2", "0.617", "0.763", "3.17", "2.71", "15.1 against 13.53"):
        assert said in text, said


def test_a_figure_has_axes_with_units_and_a_missing_bar_is_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    drawn = training_charts.bars(["x", "y"], {"cores": [1.0, None]}, "error, cores", "By service", limit=0.5)
    assert "error, cores" in drawn
    assert "limit 0.5" in drawn
    assert drawn.count("<use ") > training_charts.bars(["x", "y"], {"cores": [1.0, 0.0]}, "error, cores", "t", limit=0.5).count(
        "<use "
    )
    drawn = training_charts.lines([1, 2, 3], {"a": [1.0, None, 2.0]}, "steps", "error, %", "Around the cliff")
    assert ">steps<" in drawn
    assert ">error, %<" in drawn
    for figure in training_charts.calibration([0.1, 1.2], [0.2, 1.1], [0.0, None]):
        assert "predicted QoS (target / p99)" in figure


def test_the_same_inputs_give_the_same_page(training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are numbered through a process, which is one page in DVC."""
    monkeypatch.undo()
    for name in ("by_cliff", "calibration", "importance"):
        (training.evaluate / f"{name}.csv").unlink()
    for model in "ab":
        (training.models / model / fitted.LOSS).unlink()
    pages = []
    for out in (tmp_path / "one", tmp_path / "two"):
        monkeypatch.setattr(drawing, "_serial", itertools.count(1))
        training.report(out)
        pages.append((out / report.PAGE).read_bytes())
    assert pages[0] == pages[1]
    assert pages[0].count(b"<svg ") == 2


def test_the_stage_starts_without_the_learning_libraries() -> None:
    code = "import sys, pipelines.report; print({'torch', 'lightning', 'mlflow', 'lightgbm', 'scipy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "set()\n"


# ---------------------------------------------------------------- published figures


def test_published_figures_are_of_our_metrics() -> None:
    figures = published.read()
    assert len({(f.stage, f.metric, f.platform) for f in figures}) == len(figures)
    for f in figures:
        assert f.better in ("lower", "higher")
        assert f.stage in ("evaluate", "unseen", "transfer")
        assert f.model in training_facts.MODELS
        assert f.metric.startswith(f.model.replace("-", "_") + "_")
        assert f.platform == "" or (ROOT / "scheduler/vserver/profiles/platforms" / f"{f.platform}.toml").exists()
        assert training_page.describe(f.metric)[1], f.metric
    of_a = {f.metric for f in figures if (f.stage, f.model) == ("evaluate", "a")}
    assert of_a < {f"a_{output}_mae" for output in features.MODEL_A_OUTPUTS}
    own = published.find(figures, "unseen", "a_mae", "server-2")
    assert own is not None
    assert own.value == 0.8713
    other = published.find(figures, "unseen", "a_mae", "elsewhere")
    assert other is not None
    assert other.platform == "server-1"


# ---------------------------------------------------------------- drift


def shifted(training: Training, column: str, by: float) -> None:
    """The rows of other data, in which one feature is larger."""
    table = pl.read_parquet(training.rows / "rows.parquet").with_columns(pl.col(column) + by)
    table.write_parquet(training.rows / "rows.parquet")
    renamed(training, "f" * 64)


def renamed(training: Training, digest: str) -> None:
    for path in (training.rows / "rows.json", *training.models.glob("*/model.json")):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"data_sha256": digest}))


def test_a_shifted_feature_is_drift_and_the_page_names_it(training: Training, tmp_path: Path) -> None:
    """By half a standard deviation: distance 0.5, above 0.1; nothing else moved."""
    out = tmp_path / "out"
    assert training.report(out)["drift"] is None
    assert "There is no previous version" in words(out)
    deviation = float(pl.read_parquet(training.rows / "rows.parquet")["ipc"].std(ddof=0))  # type: ignore[arg-type]
    shifted(training, "ipc", 0.5 * deviation)
    found = training.report(out)["drift"]
    assert found["drifted"] == ["ipc"]
    assert next(c["distance"] for c in found["columns"] if c["name"] == "ipc") == pytest.approx(0.5, rel=1e-4)
    text = words(out)
    assert "Drifted: ipc." in text
    assert "moved by 0.5 standard deviations" in text
    # made again: compared with the same version, not with itself
    first = (out / report.FACTS).read_bytes()
    training.report(out)
    assert (out / report.FACTS).read_bytes() == first
    assert len(json.loads((out / report.VERSIONS).read_text())["versions"]) == 2


def test_the_same_data_again_are_no_version(training: Training, tmp_path: Path) -> None:
    training.report(tmp_path / "out")
    assert training.report(tmp_path / "out")["drift"] is None


def test_the_same_sweep_measured_again_has_not_drifted(training: Training, tmp_path: Path) -> None:
    """Other noise, same services, loads and allocations."""
    training.report(tmp_path / "out")
    found = Training(tmp_path / "again", replace(CAMPAIGN, seed=2)).report(tmp_path / "out")["drift"]
    assert found["drifted"] == []
    assert "Nothing drifted." in words(tmp_path / "out")
    assert len(found["columns"]) == len(features.SAMPLE_FEATURES) + 6


def test_another_service_is_drift_of_the_shares(training: Training, tmp_path: Path) -> None:
    training.report(tmp_path / "out")
    services = (*CAMPAIGN.services, Service("delta", 3.0, 2.0, 2.0, 700.0, 60.0))
    found = Training(tmp_path / "more", replace(CAMPAIGN, services=services)).report(tmp_path / "out")["drift"]
    assert "service" in found["drifted"]
    assert "new: delta" in words(tmp_path / "out")


def test_values_that_are_missing_or_were_constant_are_drift() -> None:
    limits = params.Report()

    def compared(before: list[float | None], now: list[float | None]) -> str:
        one, two = (drift.spread("feature", pl.Series(v, dtype=pl.Float64)) for v in (before, now))
        return str(drift._column("x", one, two, limits)["why"])

    base = [float(k) for k in range(1000)]
    assert compared(base, base) == ""  # type: ignore[arg-type]
    # every tenth is missing: the others are spread as before
    assert compared(base, [None if k % 10 == 0 else v for k, v in enumerate(base)]) == "missing in 10.0 %, before in 0.0 %"  # type: ignore[arg-type]
    assert compared([3.0] * 9, [4.0] * 9) == "was 3 everywhere"
    assert compared([3.0] * 9, [3.0] * 9) == ""
    assert compared([None] * 9, [3.0] * 9) == "has values now"
    assert compared([3.0] * 9, [None] * 9) == "has no values any more"
    assert drift._column("x", None, drift.spread("feature", pl.Series([1.0])), limits)["why"] == "new"


def test_few_draws_of_one_distribution_are_not_drift() -> None:
    """60 values differ by chance; so much is allowed for."""
    limits = params.Report()
    rng = np.random.default_rng(1)
    drawn = [drift.spread("label", pl.Series(rng.normal(size=60))) for _ in range(40)]
    found = [drift._column("x", a, b, limits) for a, b in zip(drawn[::2], drawn[1::2], strict=True)]
    assert max(f["distance"] for f in found) > limits.drift_distance
    assert not any(f["why"] for f in found)
    moved = drift.spread("label", pl.Series(rng.normal(1.0, size=60)))
    assert drift._column("x", drawn[0], moved, limits)["why"]


def test_psi_is_the_textbooks() -> None:
    """(0.6 - 0.5) ln(0.6 / 0.5) + (0.4 - 0.5) ln(0.4 / 0.5) = 0.04055."""
    assert drift.psi({"a": 0.5, "b": 0.5}, {"a": 0.6, "b": 0.4}) == pytest.approx(0.040547, rel=1e-4)
    assert drift.psi({"a": 1.0}, {"a": 1.0}) == 0.0


# ---------------------------------------------------------------- what cannot be used


def test_damaged_inputs_are_named_with_the_remedy(training: Training, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / report.VERSIONS).write_text('{"versions": [{"rows": 1}]}')
    with pytest.raises(BadInput, match=r"versions\.json: field versions\.0\.data_sha256: .*dvc checkout"):
        training.report(out)
    (out / report.VERSIONS).unlink()
    (training.evaluate / "by_cliff.csv").write_text("steps,samples\n1,2,3\n")
    with pytest.raises(BadInput, match=r"by_cliff\.csv: line 2 has not as many fields"):
        training.report(out)
    (training.evaluate / "metrics.json").unlink()
    with pytest.raises(BadInput, match=r"metrics\.json: .* is missing"):
        training.report(out)


def test_a_loss_that_grew_without_bound_is_no_number(training: Training, tmp_path: Path) -> None:
    (training.models / "a" / fitted.LOSS).write_text("epoch,train_loss\n0,1.5\n1,inf\n2,nan\n")
    facts = training.report(tmp_path / "out")
    assert [row["train_loss"] for row in facts["loss"]["a"]] == [1.5, None, None]
    assert "train loss 1.5 → –" in words(tmp_path / "out")


def test_models_of_other_data_are_refused(training: Training, tmp_path: Path) -> None:
    path = training.rows / "rows.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data_sha256": "e" * 64}))
    with pytest.raises(BadInput, match="the model is from other data"):
        training.report(tmp_path / "out")
