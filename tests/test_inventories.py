"""Inventories and configurations of Ansible as users have them, against a real SSH server on this machine (tests/sshd.py)."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import yaml
from configurations import CONFIGURATIONS
from sshd import Sshd

from collection import campaign, intake, lab, playbooks
from collection.errors import HostFailed

pytestmark = pytest.mark.skipif(
    shutil.which("ssh") is None, reason="OpenSSH's client is not installed: apt-get install openssh-client"
)
REPO = Path(__file__).parent.parent
CAMPAIGN = """\
name = "inv"
seed = 1
[targets]
hosts = "lab"
server = "virtual:server-1"
[sweep]
services = ["moses"]
rps = 1500
threads = 8
cores = "4..5"
ways = "4..5"
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    found = Sshd(tmp_path / "ssh")
    yield found
    found.close()


def inventory(server: Sshd, folder: Path, **variables: Any) -> Path:
    host = server.inventory_host() | {"ansible_python_interpreter": shutil.which("python3"), "ansible_become": False}
    path = folder / "inventory.yml"
    path.write_text(yaml.safe_dump({"lab": {"hosts": {"node-1": host | variables}}}), "utf-8")
    return path


def fetched(server: Sshd, folder: Path, sweep: str | None = None, **variables: Any) -> playbooks.Heard:
    """What is heard of a host whose sweep has finished one shard. sweep: another program in the place of surefoot-sweep."""
    programs, out = folder / "programs", folder / "state" / "campaigns" / "job" / "out"
    programs.mkdir()
    shutil.copy(REPO / "playbooks/roles/programs/files/surefoot_sweep.py", programs / "surefoot-sweep")
    if sweep is not None:
        (programs / "surefoot-sweep").write_text(sweep, "utf-8")
    (programs / "surefoot-hoststate").write_text("#!/bin/sh\n", "utf-8")
    for program in programs.iterdir():
        program.chmod(0o755)
    (out / "shards").mkdir(parents=True)
    (out / "shards" / "part-00000.parquet").write_bytes(b"shard")
    listed = {"file": "shards/part-00000.parquet", "sha256": hashlib.sha256(b"shard").hexdigest()}
    (out / "manifest.json").write_text(json.dumps({"shards": [listed], "cases": {"planned": 1}, "complete": True}), "utf-8")
    (folder / "here").mkdir()
    told = {"surefoot_group": "lab", "fetch_job": "job", "fetch_to": str(folder / "here"), "fetch_dir": str(folder / "state")}
    told |= {"fetch_programs_dir": str(programs), "surefoot_have": {"node-1": {"shards": {}}}}
    return playbooks.play("fetch.yml", inventory(server, folder, **variables), ["node-1"], told)["node-1"]


@pytest.mark.parametrize("known", ["another key", "no key"])
def test_a_host_of_another_key_is_sent_nothing(known: str, server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where known_hosts has another key of a host, or none, nobody logs in there, and the campaign says so at once."""
    monkeypatch.delenv("ANSIBLE_HOST_KEY_CHECKING", raising=False)
    monkeypatch.setattr(lab.run, "__defaults__", (3600.0,))
    if known == "another key":
        server.known(asyncssh.generate_private_key("ssh-ed25519"))
    else:
        (tmp_path / "ssh" / "known").write_text("", "utf-8")
    file = tmp_path / "campaign.toml"
    file.write_text(CAMPAIGN, "utf-8")
    with pytest.raises(HostFailed, match=r"^node-1: its host key is not the one in known_hosts, so nothing was sent"):
        campaign.run(file, tmp_path / "out", inventory=inventory(server, tmp_path))
    assert server.logins == 0
    assert server.commands == []


def test_a_host_of_the_right_key_is_asked(server: Sshd, tmp_path: Path) -> None:
    """The same host with its own key in known_hosts is logged in to."""
    server.known()
    heard = fetched(server, tmp_path)
    assert (heard.problem, heard.stranger) == (None, False)
    assert server.logins > 0


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_a_configuration_of_the_users_own(kind: str, server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ansible.cfg says, what a host answers is heard and what it has is fetched."""
    (tmp_path / "ansible.cfg").write_text(CONFIGURATIONS[kind], "utf-8")
    monkeypatch.setenv("ANSIBLE_CONFIG", str(tmp_path / "ansible.cfg"))
    server.known()
    assert playbooks.hosts(inventory(server, tmp_path), "lab") == ["node-1"]
    heard = fetched(server, tmp_path)
    assert heard.problem is None
    assert json.loads(heard.results[lab._PACK_TASK]["stdout"])["packed"] is True
    with tarfile.open(tmp_path / "here" / "node-1.tar") as packed:
        assert packed.getnames() == ["manifest.json", "journal.rest", "shards/part-00000.parquet"]


def test_a_configuration_does_not_switch_keys_off(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """host_key_checking = False in a configuration file is not enough to send a campaign to a host of another key."""
    (tmp_path / "ansible.cfg").write_text("[defaults]\nhost_key_checking = False\n", "utf-8")
    monkeypatch.setenv("ANSIBLE_CONFIG", str(tmp_path / "ansible.cfg"))
    monkeypatch.delenv("ANSIBLE_HOST_KEY_CHECKING", raising=False)
    server.known(asyncssh.generate_private_key("ssh-ed25519"))
    heard = fetched(server, tmp_path)
    assert (heard.unreachable, heard.stranger, server.logins) == (True, True, 0)


def test_a_host_that_hangs_is_given_up(server: Sshd, tmp_path: Path) -> None:
    """A host that never answers a task falls out after a time, and does not hold the others up."""
    server.known()
    heard = fetched(server, tmp_path, "#!/bin/sh\nexec sleep 60\n", surefoot_timeout_s=2)
    assert "imed out" in str(heard.problem) or "imeout" in str(heard.problem), heard.problem


def test_what_is_fetched_has_an_end(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose archive is longer than any is not written to the end; the host is named, and no limit stays behind."""
    server.known()
    monkeypatch.setattr(intake, "MOST_TAR_BYTES", 1 << 20)
    # the server is this process, whose limit the host would not have
    sweep = """#!/bin/sh
ulimit -S -f unlimited
truncate -s 8M "$7"
echo '{"packed": true}'
"""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = fetched(server, tmp_path, sweep)
    assert heard.problem is not None
    assert sum(p.stat().st_size for p in (tmp_path / "here").rglob("*") if p.is_file()) <= 1 << 20
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before
