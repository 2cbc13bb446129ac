"""What DVC keeps of the pipeline: a history that its commands show, whole on another machine, whatever data sets are called."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic import Campaign, write
from test_pipelines_train import as_a_sweep_writes, code_and_params

from pipelines import params, stage
from pipelines.errors import BadInput
from pipelines.io import HEADLINE

ROOT = Path(__file__).parents[1]
WANTED = ("register@toy", "report@toy")


def environment(folder: Path) -> dict[str, str]:
    """Of a DVC that finds this interpreter and the workspace's own code, and nothing of the machine's."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "DVC_NO_ANALYTICS": "true",
        "SUREFOOT_KEYS": str(folder.parent / "keys"),
        "DVC_SITE_CACHE_DIR": str(folder.parent / f"{folder.name}.dvc-site"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "test",
        "GIT_AUTHOR_EMAIL": "test@example",
        "GIT_COMMITTER_NAME": "test",
        "GIT_COMMITTER_EMAIL": "test@example",
    }


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = environment(folder)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900)


def dvc(folder: Path, *args: str) -> str:
    """What a command of DVC says; it must end well."""
    done = run(folder, sys.executable, "-m", "dvc", *args)
    assert done.returncode == 0, f"dvc {' '.join(args)}: {done.stdout}{done.stderr}"
    return done.stdout


def git(folder: Path, *args: str) -> str:
    done = run(folder, "git", *args)
    assert done.returncode == 0, f"git {' '.join(args)}: {done.stderr}"
    return done.stdout


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


def set_param(folder: Path, section: str, model: str, name: str, value: Any) -> None:
    values = yaml.safe_load((folder / "params.yaml").read_text("utf-8"))
    values[section][model][name] = value
    (folder / "params.yaml").write_text(yaml.safe_dump(values), "utf-8")


def clone_of_the_code(folder: Path) -> None:
    """The pipeline of this repository in a folder of its own, committed, over one data set of the name `toy`."""
    code_and_params(folder)
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "the code")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with data under DVC and two commits of results: of the parameters as they are, and with another rate for A."""
    folder = tmp_path_factory.mktemp("history") / "repo"
    clone_of_the_code(folder)
    # before the first commit of results: DVC takes each commit's own configuration
    dvc(folder, "remote", "add", "-d", "store", str(folder.parent / "store"))
    box = write(folder / "data" / "toy" / "box", Campaign(loads=(800.0, 1600.0), samples=1))
    as_a_sweep_writes(box)
    (box / ".lock").write_text("1\n")
    dvc(folder, "add", "data/toy")
    dvc(folder, "repro", *WANTED)
    # nothing that the run left makes the tree another one than its commit, and nothing of it would be committed unawares
    assert git(folder, "status", "--porcelain", "--untracked-files=no").split() == ["M", ".dvc/config"]
    assert set(git(folder, "status", "--porcelain").split()) - {"??"} <= {
        "M",
        ".dvc/config",
        "dvc.lock",
        "data/",
        "data/toy.dvc",
        "data/.gitignore",
    }
    commit(folder, "results")
    set_param(folder, "train", "a", "lr", 0.0005)
    dvc(folder, "repro", *WANTED)
    commit(folder, "another rate")
    return folder


def numbers(text: str) -> list[str]:
    return re.findall(r"(?<![\w.])-?\d+\.\d+", text)


def test_metrics_are_a_few_numbers_a_stage(history: Path) -> None:
    """`dvc metrics show` is a table that fits a wide terminal: numbers alone, a few columns."""
    found = json.loads(dvc(history, "metrics", "show", "--json"))[""]["data"]
    assert {Path(path).parent.name for path in found} == {"label", "evaluate", "register"}
    for path, entry in found.items():
        assert Path(path).name == HEADLINE
        assert 0 < len(entry["data"]) <= 6, path
        assert all(type(value) in (int, float) for value in entry["data"].values()), path
    table = dvc(history, "metrics", "show").splitlines()
    # the longest name in params.yaml is 9 characters longer
    assert max(map(len, table)) + len("demo-virtual") - len("toy") <= 170


def test_metrics_of_the_commit_before_are_compared(history: Path) -> None:
    """`dvc metrics diff HEAD~1`: a table with both numbers and their difference."""
    table = dvc(history, "metrics", "diff", "HEAD~1")
    (line,) = [line for line in table.splitlines() if "a_oaa_cores_mae" in line]
    before, after, change = map(float, numbers(line))
    assert before != after
    assert change == pytest.approx(after - before, abs=2e-5)


def plot_points(page: Path) -> str:
    """Pages of DVC hold their plots' data as JSON."""
    (file,) = page.parent.glob("*.html")
    return file.read_text("utf-8")


def test_plots_of_the_commit_before_are_compared(history: Path) -> None:
    """`dvc plots diff`: a page with the points of both versions of each plot."""
    dvc(history, "plots", "diff", "HEAD~1", "workspace")
    page = plot_points(history / "dvc_plots" / "index.html")
    for name in ("train/a/loss.csv", "evaluate/predictions.csv", "evaluate/by_cliff.csv"):
        assert f"out/pipeline/toy/{name}" in page
    assert page.count('"rev": "HEAD~1"') > 10 < page.count('"rev": "workspace"')
    assert re.search(r'"train_loss": "?\d+\.\d+', page)
    assert git(history, "status", "--porcelain") == ""


def test_an_experiment_stands_beside_its_commit(history: Path) -> None:
    """`dvc exp run -S train.a.lr=0.001`, then `dvc exp show`: commit and experiment, each with its parameter and its numbers."""
    dvc(history, "exp", "run", "-S", "train.a.lr=0.001", *WANTED)
    shown = json.loads(dvc(history, "exp", "show", "--json"))
    baseline = next(entry for entry in shown if entry["rev"] != "workspace")
    versions = [baseline, *(rev for known in baseline["experiments"] for rev in known["revs"])]
    assert [v["data"]["params"]["params.yaml"]["data"]["train"]["a"]["lr"] for v in versions] == [0.0005, 0.001]
    errors = [v["data"]["metrics"][f"out/pipeline/toy/evaluate/{HEADLINE}"]["data"]["a_oaa_cores_mae"] for v in versions]
    assert errors[0] != errors[1]
    table = dvc(history, "exp", "show", "--only-changed", "--drop", r"^[^:]*/[^:]*$")
    assert "train.a.lr" in table
    assert max(map(len, table.splitlines())) < 120
    assert len(numbers(table)) > 4
    git(history, "checkout", "-q", ".")
    dvc(history, "checkout")


def test_a_clone_has_nothing_to_do(history: Path, tmp_path: Path) -> None:
    """After push, clone and pull, on another folder, `dvc status` and `dvc repro` have nothing to do; raw data are there too."""
    dvc(history, "push", "--all-commits")
    clone = tmp_path / "elsewhere" / "clone"
    clone.parent.mkdir()
    git(tmp_path, "clone", "-q", str(history), str(clone))
    assert not (clone / "data" / "toy").exists()
    dvc(clone, "pull")
    assert "up to date" in dvc(clone, "status")
    done = dvc(clone, "repro", *WANTED)
    assert "Running stage" not in done
    assert "up to date" in done
    assert (clone / "data/toy/box/shards").is_dir()
    assert not (clone / "data/toy/box/.lock").exists()
    assert (clone / "out/pipeline/toy/report/report.html").is_file()
    assert len(numbers(dvc(clone, "metrics", "show"))) > 3
    # what was pulled is this commit's; the other one's figures come from the remote
    (line,) = [line for line in dvc(clone, "metrics", "diff", "HEAD~1").splitlines() if "a_oaa_cores_mae" in line]
    assert len(numbers(line)) == 3
    assert git(clone, "status", "--porcelain") == ""


def test_nobodys_results_are_in_the_repository() -> None:
    """dvc.lock is of somebody's data: the repository has none, and git lets everybody commit their own."""
    if not (ROOT / ".git").exists():
        pytest.skip("the sources are no clone")
    listed = subprocess.run(["git", "ls-files", "dvc.lock"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert listed.stdout == ""
    ignored = subprocess.run(["git", "check-ignore", "dvc.lock", "data/x.dvc", "data/x/server-1.dvc"], cwd=ROOT, check=False)
    assert ignored.returncode == 1


def test_every_output_is_where_dvc_finds_it_again() -> None:
    """No output, metric or plot of a stage is kept from the cache: a clone would have to make it again."""
    for name, entry in yaml.safe_load((ROOT / "dvc.yaml").read_text("utf-8"))["stages"].items():
        for kind in ("outs", "metrics", "plots"):
            for out in entry.get("do", entry).get(kind, []):
                about = next(iter(out.values())) if isinstance(out, dict) else {}
                assert about.get("cache", True), f"{name}: {out}"


# ---------------------------------------------------------------- names and folders

HARMFUL = [
    "x;touch HACKED #",
    "x$(touch HACKED)",
    "x`touch HACKED`",
    "x && touch HACKED",
    "x | touch HACKED",
    "x\ntouch HACKED",
    "x' ; touch HACKED ; '",
    'x" ; touch HACKED ; "',
    "x > HACKED",
    "$HOME",
    "${label}",
    "*",
    "~root",
    "a\\b",
    "a\tb",
    "a\x1b[31mb",
    "a\u202eb",
    "",
    " ",
    " x",
    "-rf",
    "--data",
]
BAD_NAMES = [
    *HARMFUL,
    "my lab",
    "a@b",
    "a:b",
    "a/b",
    "..",
    "../x",
    ".x",
    "a..b",
    "x.tar",
    "2024",
    "näme",
    "x" * 101,
    2024,
    1.5,
    True,
    None,
]
BAD_FOLDERS = [*HARMFUL, 12, True, None, "x" * 1001]
GOOD_FOLDERS = [
    "data/demo/server-1",
    "data/my lab/server-1",
    "/data/x/local",
    "../elsewhere/box",
    "data/größe/b",
    "data/a@b,c=d:e+f%/g",
]
SECTION = {
    "datasets": {},
    "transfers": {"begin": "toy"},
    "foreign": {"models": "toy", "on": "data/toy"},
    "leave_one_out": {},
}


def loaded(tmp_path: Path, values: dict[str, Any]) -> params.Params:
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(values), "utf-8")
    return params.load(file)


@pytest.mark.parametrize("section", [*SECTION, "osml_datasets", "begin", "models"])
@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_name_that_is_none_is_refused(section: str, name: Any, tmp_path: Path) -> None:
    """A name of a data set that stages, folders and bundles cannot bear is told in one line, wherever params.yaml has it."""
    values: dict[str, Any] = {"datasets": {"toy": {"folder": "data/toy"}}}
    if section == "osml_datasets":
        values[section] = [name]
    elif section in ("begin", "models"):
        of = {"begin": "transfers", "models": "foreign"}[section]
        values[of] = {"toy": {"folder": "data/toy", **SECTION[of], section: name}}
    else:
        values[section] = {name: {"folder": "data/toy", **SECTION[section]}}
    with pytest.raises(BadInput) as refused:
        loaded(tmp_path, values)
    said = str(refused.value)
    assert len(said.splitlines()) == 1
    assert said.startswith(f"{tmp_path}/params.yaml: ")
    assert section in said
    assert "Value error" not in said
    assert "Rename it" in said or "Give a name that begins with a letter" in said


@pytest.mark.parametrize("field", [*SECTION, "on"])
@pytest.mark.parametrize("folder", BAD_FOLDERS, ids=repr)
def test_a_folder_that_is_none_is_refused(field: str, folder: Any, tmp_path: Path) -> None:
    """A folder that a shell or a terminal would act on is told in one line that names the field."""
    section = "foreign" if field == "on" else field
    entry = {"folder": "data/toy", **SECTION[section], ("on" if field == "on" else "folder"): folder}
    with pytest.raises(BadInput) as refused:
        loaded(tmp_path, {section: {"toy": entry}})
    said = str(refused.value)
    assert len(said.splitlines()) == 1
    assert f"params.yaml: {section}.toy.{'on' if field == 'on' else 'folder'}: " in said
    assert re.search("Rename the folder|Give the folder|Put the folder in quotes", said)


@pytest.mark.parametrize("folder", GOOD_FOLDERS)
def test_a_folder_reaches_its_stage_as_it_is(folder: str, tmp_path: Path) -> None:
    """Blanks and letters of any script are no reason to move a data set: its folder is one argument of the stage's module."""
    p = loaded(tmp_path, {"datasets": {"toy": {"folder": folder}, "a-b": {"folder": "x"}}, "osml_datasets": ["toy"]})
    known = stage.values("label@toy", "datasets", None, p)
    assert stage.filled("@folder@", known) == folder
    assert stage.filled("out/@name@/label", known) == "out/toy/label"
    assert stage.values("../dvc.yaml:train@a-b-a", "datasets", "a", p) == {"name": "a-b", "model": "a", "folder": "x"}
    assert stage.values("train-osml@toy-bp", "osml_datasets", "bp", p)["name"] == "toy"
    with pytest.raises(BadInput, match=r"'label@none' is of no data set of `datasets`"):
        stage.values("label@none", "datasets", None, p)
    with pytest.raises(BadInput, match="@begin@ stands for nothing here; known: folder, name"):
        stage.filled("@begin@", known)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "train: {a: {epoch: 3}}",
            'train.a.epoch: is not a known key. Did you mean "epochs"? Known: at_least, batch, begun_lr, ',
        ),
        ("tran: {}", 'tran: is not a known key. Did you mean "train"? Known: compare, '),
        ("gate: {a: [{metrc: x, at_least: 1}]}", 'gate.a.0.metrc: is not a known key. Did you mean "metric"? Known: at_least, '),
        ("datasets: {toy: {foldr: d}}", 'datasets.toy.foldr: is not a known key. Did you mean "folder"? Known: folder'),
        ("samples: {engine: sprk}", "samples.engine: is 'sprk'. Did you mean \"spark\"? Known: duckdb, spark"),
        ("label: {quite_other: 1}", "label.quite_other: is not a known key. Known: margin_core_steps, "),
        ("osml_datasets: [tyo]", "osml_datasets: 'tyo' is none of `datasets`. Did you mean \"toy\"? Known: toy"),
        ("transfers: {tyo: {folder: d, begin: toy}}", "transfers: 'tyo' is none of `datasets`. Did you mean \"toy\"? Known: toy"),
        ("transfers: {toy: {folder: d, begin: tyo}}", "transfers.toy.begin: 'tyo' is none of `datasets`. Did you mean \"toy\"?"),
        ("foreign: {toy: {folder: d, models: tyo, on: d}}", "foreign.toy.models: 'tyo' is none of `datasets`. Did you mean"),
        ("leave_one_out: {other: {folder: d}}", "leave_one_out: 'other' is none of `datasets`. Known: toy"),
    ],
)
def test_a_word_that_there_is_not_is_refused_with_the_nearest(text: str, said: str, tmp_path: Path) -> None:
    """A misspelt key, value or data set is told with the nearest one and with all that there are."""
    file = tmp_path / "params.yaml"
    file.write_text(text if text.startswith("datasets") else f"datasets: {{toy: {{folder: d}}}}\n{text}", "utf-8")
    with pytest.raises(BadInput) as refused:
        params.load(file)
    assert str(refused.value).startswith(f"{tmp_path}/params.yaml: {said}")


def test_the_examples_in_the_comments_of_params_can_be_used(tmp_path: Path) -> None:
    """The key `on` is a word, as it is to DVC, and no truth value; the examples are those of the repository's file."""
    text = (ROOT / "params.yaml").read_text("utf-8")
    lines = re.findall(r"^#   ([\w-]+: \{.*\})$", text, flags=re.MULTILINE)
    assert len(lines) == 4
    named = "datasets: {server-1: {folder: a}, server-2: {folder: b}, unseen-server-1: {folder: c}}"
    names = ("transfers", "foreign", "leave_one_out", "mixtures")
    sections = [f"{name}: {{{line}}}" for name, line in zip(names, lines, strict=True)]
    file = tmp_path / "params.yaml"
    file.write_text("\n".join([named, *sections]), "utf-8")
    found = params.load(file)
    assert found.foreign["unseen-server-1"].on == "data/paper-server-1/server-1"
    assert found.mixtures["worlds"].ask == "data/worlds/tune.json"


def test_no_text_of_params_stands_in_a_command() -> None:
    """What DVC hands to a shell is text of dvc.yaml alone; what it fills in there is a list of dvc.yaml's own."""
    for name, entry in yaml.safe_load((ROOT / "dvc.yaml").read_text("utf-8"))["stages"].items():
        command = entry.get("do", entry)["cmd"]
        assert command.startswith(("python -m pipelines.stage ", "python -m pipelines.names ")), name
        for place in re.findall(r"\$\{([^}]*)\}", command):
            assert place == "item.model", f"{name}: {command}"
            assert all(re.fullmatch("[a-z]+", model) for model in entry["matrix"]["model"]), name


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pipeline's code in a folder of its own, without data."""
    folder = tmp_path_factory.mktemp("names") / "bare"
    clone_of_the_code(folder)
    return folder


@pytest.mark.parametrize("harm", ["x;touch HACKED #", "x' ; touch HACKED ; '", "x\ntouch HACKED"])
@pytest.mark.parametrize("where", ["name", "folder"])
def test_a_shell_runs_nothing_of_params(where: str, harm: str, bare: Path) -> None:
    """`dvc repro` with a name or folder that a shell would act on runs none of it, and ends."""
    values = yaml.safe_load((bare / "params.yaml").read_text("utf-8"))
    name, folder = ("toy", f"data/{harm}") if where == "folder" else (harm, "data/toy")
    values["datasets"] = {name: {"folder": folder}}
    (bare / "params.yaml").write_text(yaml.safe_dump(values), "utf-8")
    (bare / folder).mkdir(parents=True, exist_ok=True)
    (bare / folder / "manifest.json").write_text("{}")
    done = run(bare, sys.executable, "-m", "dvc", "repro")
    assert done.returncode != 0
    assert not list(bare.rglob("HACKED"))
    assert len(re.findall("^error: params.yaml: datasets.*", done.stderr, re.MULTILINE)) == 1
    # a stage that is asked for alone runs none of it either
    done = run(bare, sys.executable, "-m", "dvc", "repro", "-s", f"label@{name}")
    assert done.returncode != 0
    assert not list(bare.rglob("HACKED"))


@pytest.mark.parametrize("name", [2024, None, "a@b", "..", "my lab"])
def test_no_data_set_is_passed_over(name: Any, bare: Path) -> None:
    """`dvc repro` fails where a data set has a name that it can make no stages of: it never says that all is done."""
    values = yaml.safe_load((bare / "params.yaml").read_text("utf-8"))
    values["datasets"] = {name: {"folder": "data/toy"}}
    (bare / "params.yaml").write_text(yaml.safe_dump(values), "utf-8")
    done = run(bare, sys.executable, "-m", "dvc", "repro")
    assert done.returncode != 0
    assert "up to date" not in done.stdout


def test_a_folder_with_a_blank_is_used(bare: Path) -> None:
    """A data set in a folder with a blank goes through its stages."""
    values = yaml.safe_load((bare / "params.yaml").read_text("utf-8"))
    values["datasets"] = {"toy": {"folder": "data/my lab/box"}}
    (bare / "params.yaml").write_text(yaml.safe_dump(values), "utf-8")
    as_a_sweep_writes(write(bare / "data" / "my lab" / "box", Campaign(loads=(800.0,), samples=1)))
    dvc(bare, "repro", "label@toy")
    assert (bare / "out/pipeline/toy/label/labels.parquet").is_file()
    # from another folder DVC names stages otherwise
    done = run(bare / "models", sys.executable, "-m", "dvc", "repro", "--force", "-s", "../dvc.yaml:label@toy")
    assert done.returncode == 0, done.stderr
