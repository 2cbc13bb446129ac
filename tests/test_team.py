"""docs/team.md, block by block: two people, one store, one tracking server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from quick import make_quick

from collection import tools

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/team.md").read_text("utf-8")
BLOCKS = re.findall(r"^```sh\n# ([^\n]*)\n(.*?)^```$", PAGE, flags=re.M | re.S)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str], str]]:
    """A lab's share, the repository as it is here with quick trainings, and a port for the tracking server."""
    source = tmp_path / "source"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    make_quick(source / "params.yaml")
    env = {
        **os.environ,
        "LAB": str(tmp_path / "lab"),
        "SUREFOOT": str(source),
        "SUREFOOTD": str(tools.find(tools.SUREFOOTD)),
        "SUREFOOT_LOADGEN": str(tools.find(tools.LOADGEN)),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "DVC_SITE_CACHE_DIR": str(tmp_path / "dvc-site"),
        "GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DVC_NO_ANALYTICS": "true",
        "PYTHONPATH": ".",
    }
    env.pop("MLFLOW_TRACKING_URI", None)
    env.pop("SUREFOOT_KEYS", None)
    (tmp_path / "gitconfig").write_text("[user]\nname = T\nemail = t@example.org\n[init]\ndefaultBranch = main\n", "utf-8")
    for args in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message", "source")):
        subprocess.run(["git", *args], cwd=source, env=env, check=True)
    for person in ("Ada", "Ben", "server"):
        (tmp_path / person).mkdir()
    yield tmp_path, env, str(free_port())
    # what a block left running is in the session of its shell
    for file in tmp_path.glob("*.session"):
        with_group = int(file.read_text("utf-8"))
        try:
            os.killpg(with_group, signal.SIGKILL)
        except ProcessLookupError:
            continue


def test_the_page_has_blocks_of_all_three() -> None:
    """A block without a name would not be run by anybody."""
    assert PAGE.count("```sh\n") == len(BLOCKS) >= 9
    assert {who.split(",")[0] for who, _ in BLOCKS} == {"server", "Ada", "Ben"}


def test_every_block_of_the_page_works(lab: tuple[Path, dict[str, str], str]) -> None:
    """In order, each in its person's home; Ben's clone has nothing to do, and the end has both data sets and all models."""
    place, env, port = lab
    said: list[str] = []
    for number, (who, text) in enumerate(BLOCKS):
        person, _, where = who.partition(", in ")
        home = place / person
        # the environment is there: it is what runs these tests
        script = re.sub(r"^make setup$|make -C toolkit setup", "true", text, flags=re.M).replace("5000", port)
        log = place / f"{number}.log"
        with log.open("w") as out:
            # a session of its own, so that what it leaves running can be ended
            shell = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=home / where,
                env=env | {"HOME": str(home)},
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            (place / f"{number}.session").write_text(str(shell.pid), "utf-8")
            code = shell.wait(timeout=900)
        said.append(log.read_text("utf-8"))
        assert code == 0, f"block {number} of {who}:\n{script}\n{said[-1]}"
    of = {title: text for title, text in zip((b[1] for b in BLOCKS), said, strict=True)}
    pulled = next(text for script, text in of.items() if "dvc status" in script)
    assert "Data and pipelines are up to date." in pulled, pulled
    compared = next(text for script, text in of.items() if "dvc metrics diff" in script)
    assert "a_oaa_cores_mae" in compared, compared
    for name in ("surefoot-a-ada", "surefoot-a-onboard-x"):
        assert name in said[-1], said[-1]
