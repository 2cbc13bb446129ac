"""Programs and data sets name the commit that they were built from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAIN = 'include!("built.rs");\nfn main() { stamp(&std::env::args().nth(1).unwrap()); }\n'


@pytest.fixture(scope="module")
def stamp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the build scripts of the programs run, as a program of its own."""
    if shutil.which("rustc") is None:
        pytest.skip("rustc is missing; make installs a tool chain")
    folder = tmp_path_factory.mktemp("stamp")
    shutil.copy(ROOT / "scheduler" / "built.rs", folder)
    (folder / "main.rs").write_text(MAIN)
    subprocess.run(["rustc", "--edition=2021", "-o", "stamp", "main.rs"], cwd=folder, check=True, timeout=300)
    return folder / "stamp"


def told(stamp: Path, folder: Path, **env: str) -> dict[str, str]:
    """What the build of a tree in this folder is told."""
    given = {k: v for k, v in os.environ.items() if k != "SUREFOOT_COMMIT"} | {"CARGO_PKG_VERSION": "0.1.0", **env}
    done = subprocess.run([stamp, str(folder)], env=given, check=True, capture_output=True, text=True, timeout=60)
    return dict(line.removeprefix("cargo:rustc-env=").split("=", 1) for line in done.stdout.splitlines() if "rustc-env=" in line)


def git(folder: Path, *words: str) -> str:
    named = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def tree(folder: Path) -> Path:
    (folder / "scheduler").mkdir(parents=True)
    (folder / "scheduler" / "lib.rs").write_text("// one\n")
    (folder / "README.md").write_text("one\n")
    return folder


def test_a_program_is_told_its_commit(stamp: Path, tmp_path: Path) -> None:
    """Its own, with a mark where what it is made of was changed since; a change elsewhere is none of the program's."""
    folder = tree(tmp_path / "repo")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "x")
    commit = git(folder, "rev-parse", "HEAD")
    assert told(stamp, folder) == {"SUREFOOT_COMMIT": commit, "SUREFOOT_VERSION": f"0.1.0 (commit {commit})"}
    (folder / "README.md").write_text("two\n")
    assert told(stamp, folder)["SUREFOOT_COMMIT"] == commit
    (folder / "scheduler" / "lib.rs").write_text("// two\n")
    assert told(stamp, folder)["SUREFOOT_VERSION"] == f"0.1.0 (commit {commit}+changes)"


def test_an_archive_builds_without_a_repository(stamp: Path, tmp_path: Path) -> None:
    """It has no commit unless it is told one; that of a repository around it is another program's."""
    git(tmp_path, "init", "-q")
    folder = tree(tmp_path / "archive")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")
    assert told(stamp, folder) == {"SUREFOOT_COMMIT": "", "SUREFOOT_VERSION": "0.1.0"}
    assert told(stamp, folder, SUREFOOT_COMMIT="ab12") == {"SUREFOOT_COMMIT": "ab12", "SUREFOOT_VERSION": "0.1.0 (commit ab12)"}
    # what is no commit goes into no program
    assert told(stamp, folder, SUREFOOT_COMMIT="a\ncargo:rustc-link-arg=x")["SUREFOOT_COMMIT"] == ""
    assert told(stamp, folder, PATH="/nowhere") == {"SUREFOOT_COMMIT": "", "SUREFOOT_VERSION": "0.1.0"}


@pytest.mark.parametrize("program", ["surefoot", "surefootd", "surefoot-loadgen"])
def test_every_program_says_its_version_and_commit(program: str) -> None:
    """In the same words."""
    words = [sys.executable, "-m", "collection.cli"] if program == "surefoot" else [program]
    if shutil.which(words[0]) is None:
        pytest.skip(f"{program} is not built")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*words, "--version"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"{program} \d+\.\d+\.\d+( \(commit [0-9a-f]{{40}}(\+changes)?\))?\n", done.stdout)
    if program == "surefoot":
        found = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
        assert found.returncode or found.stdout.strip() in done.stdout
