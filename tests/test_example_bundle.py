"""The bundle that comes with the repository works with today's programs, as examples/bundle/README.md says."""

import csv
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from collection import tools

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "bundle"


def _commands() -> list[list[str]]:
    page = (FOLDER / "README.md").read_text()
    block = re.sub(r" \\\n\s+", " ", "\n".join(re.findall(r"^ {4}\S.*(?:\n {8}\S.*)*", page, re.MULTILINE)))
    return [shlex.split(line) for line in block.splitlines()]


def _run(*words: str, to: Path) -> subprocess.CompletedProcess[str]:
    program = tools.find(tools.SUREFOOTD)
    return subprocess.run([program, *words, "--out", str(to)], cwd=ROOT, capture_output=True, text=True, check=False)


def test_it_is_small_and_in_every_command() -> None:
    assert (FOLDER / "server-1.tar").stat().st_size < 1 << 20
    commands = [c for c in _commands() if c[0] == "surefootd"]
    assert [c[1] for c in commands] == ["eval", "run"]
    assert all("examples/bundle/server-1.tar" in c and "examples/bundle/key.pub.pem" in c for c in commands)


def test_models_answer_and_policies_work(tmp_path: Path) -> None:
    (told,) = (c for c in _commands() if c[:2] == ["surefootd", "eval"])
    words = told[1:]
    at = words.index("workloads/sets/demo")
    words[at] = "workloads/sets/demo/three-lc-arrivals.toml"
    done = _run(*words[: words.index("--out")], "--seeds", "1", to=tmp_path / "out")
    assert done.returncode == 0, done.stderr
    rows = {r["policy"]: r for r in csv.DictReader((tmp_path / "out" / "rows.csv").open())}
    assert set(rows) == {"parties-be", "osml-plus", "surefoot"}
    assert all(r["converged"] == "true" for r in rows.values()), rows


def test_another_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFOOT_KEYS", str(tmp_path / "keys"))
    words = ["eval", "--workloads", "workloads/sets/demo", "--platform", "server-1", "--policies", "surefoot"]
    done = _run(*words, "--bundle", str(FOLDER / "server-1.tar"), to=tmp_path / "out")
    assert done.returncode == 2, done.stderr
    assert "trust" in done.stderr
