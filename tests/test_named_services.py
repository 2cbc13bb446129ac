"""Campaigns of services without containers: the lab side takes the same file as `surefootd sweep`, from plan to labels."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from collection import campaign, dataset, verify, worth
from collection.errors import ToolFailed
from pipelines import label, params
from pipelines.errors import BadInput

SERVICE = """
[[service]]
service = "kv"
kind = "lc"
qos_target_ms = 50.0
command = ["memcached", "-u", "root", "-l", "127.0.0.1", "-t", "{threads}", "-p", "{port}"]
port = PORT
rps_levels = [200]
loadgen = { protocol = "memcached", connections = 2, args = ["--key-space", "100"] }
"""
CAMPAIGN = """\
name = "named"
[targets]
local = true
[sweep]
services = "all"
threads = 1
cores = [0.4, 0.8]
[sampling]
warmup_ms = 300
interval_ms = 100
samples = 4
"""


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _file(folder: Path, change: tuple[str, str] = ("", "")) -> Path:
    file = folder / "named.toml"
    file.write_text((CAMPAIGN + SERVICE.replace("PORT", str(_free_port()))).replace(*change), "utf-8")
    return file


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An engine that is asked anything fails, and what is changed is remembered in the test's own folder."""
    monkeypatch.setenv("SUREFOOT_ENGINE", "/bin/false")
    monkeypatch.setenv("SUREFOOT_STATE", str(tmp_path / "state"))


def test_a_plan_counts_named_services(tmp_path: Path) -> None:
    """The plan of a campaign of named services counts their cases, and starts nothing."""
    if shutil.which("memcached") is None:
        pytest.skip("needs memcached (scripts/deps.sh)")
    plan = campaign.plan(_file(tmp_path))
    assert plan["cases"] == 2
    assert plan["targets"][0]["by_service"] == {"kv": 2}
    assert not (tmp_path / "state").exists()


def test_a_plan_refuses_what_cannot_be(tmp_path: Path) -> None:
    """What `surefootd sweep` refuses of a named service the lab side says in the same words, with the field and the remedy."""
    with pytest.raises(ToolFailed, match=r"service\.command: .* has an unknown placeholder"):
        campaign.plan(_file(tmp_path, ("{threads}", "{thread}")))


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("memcached") is None, reason="needs root, for a cgroup, and memcached")
def test_named_services_become_labels(tmp_path: Path) -> None:
    """A campaign of a command runs to its end, verifies, and its data set is labelled as any other."""
    out = tmp_path / "data"
    state = campaign.run(_file(tmp_path), out)
    done = state["targets"][0]["cases"]
    assert done["planned"] == 2
    assert done["pending"] == done["failed"] == 0
    # a machine that stalls under other load is told by the check of clocks, and rightly
    wrong = [f for f in verify.verify(out).findings if f.severity == "error" and "the clock jumped" not in str(f)]
    assert not wrong
    rows = dataset.read_manifest(out / "local").rows
    assert rows == 8
    settings = params.load(Path(__file__).parents[1] / "params.yaml").label
    if len(worth.disturbed_cases(out / "local")) == 2:  # on a busy machine nothing is left to label, and that is said
        with pytest.raises(BadInput, match="8 disturbed"):
            label.run(out / "local", tmp_path / "labels", settings)
    else:
        assert label.run(out / "local", tmp_path / "labels", settings)["planes"]["all"] == 1
    left = [group for group in Path("/sys/fs/cgroup").glob("*/surefoot-*-kv") if "surefoot-test" not in group.name]
    assert not left, "a cgroup of the command is left"
