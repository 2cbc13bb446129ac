"""Playbooks and campaigns on hosts: three containers with a real sshd (make test-playbooks). Needs a container engine.

SUREFOOT_TRIAL_CUT_S: how long the connection to one host is cut (default 10).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import yaml
from configurations import CONFIGURATIONS
from trial_lab import REPO, SLOW, Host, Lab, until

from collection import campaign, tools, verify
from collection.lab import _archive

CUT_S = float(os.environ.get("SUREFOOT_TRIAL_CUT_S", "10"))
CAMPAIGN = """\
name = "trial"
seed = 7
[targets]
TARGETS
[sweep]
services = ["moses", "xapian"]
rps = "catalogue"
threads = [4, 8, 16]
cores = "1..36"
ways = "1..20"
neighbours = { count = [0, 1, 2], draws = 1 }
[sampling]
interval_ms = 1000
samples = 20
"""
ON_HOSTS = CAMPAIGN.replace("TARGETS", 'hosts = "lab"\nserver = "virtual:server-1"')
VIRTUAL = CAMPAIGN.replace("TARGETS", 'virtual = ["server-1"]')
STATE = "/var/lib/surefoot-lab"
FAKE = Path(__file__).parent / "targets" / "fakeroot.sh"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("lab"), ["node-1", "node-2", "node-3"])
    yield made
    made.close()


def recap(said: str) -> dict[str, int]:
    """Changes of each host."""
    return {name: int(n) for name, n in re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", said, re.M)}


def nothing_changed(said: str) -> bool:
    found = recap(said)
    return len(found) == 3 and not any(found.values())


def settings(host: Host) -> str:
    """Every file of the pretended host that prepare may touch, with its digest."""
    return host.sh("cd /srv/host && find . -type f ! -path './usr/*' -exec sha256sum {} + | sort")


def tar_of(path: Path) -> dict[str, int]:
    """Files of an archive, and their sizes."""
    with tarfile.open(path) as tar:
        return {member.name.removeprefix("./"): member.size for member in tar if member.isfile()}


def pretend(host: Host) -> str:
    """Make the pretended host anew; what `settings` says of it."""
    subprocess.run(["docker", "cp", str(FAKE), f"{host.container}:/tmp/fakeroot.sh"], check=True, capture_output=True)
    host.sh("rm -rf /srv/host && sh /tmp/fakeroot.sh /srv/host")
    return settings(host)


# Each role is brought up, brought up again without a change, looked at from outside, and taken back.
TRIED = {
    "programs": "test_programs_come_and_go",
    "prepare": "test_prepare_and_teardown",
    "teardown": "test_prepare_and_teardown",
    "collect": "test_collect_twice_changes_nothing",
    "fetch": "test_collect_twice_changes_nothing",
    "deploy": "test_with_ansible",  # trial_kit.py: it takes systemd
}


def test_prepare_and_teardown(lab: Lab) -> None:
    """Check mode changes nothing; prepare changes and keeps; twice it changes nothing; teardown puts back byte for byte."""
    before = {n: pretend(h) for n, h in lab.hosts.items()}
    node = lab.hosts["node-1"]
    new_files = f"find /etc {STATE} /usr/local -newer /tmp/fakeroot.sh 2>/dev/null | sort || true"
    others = node.sh(new_files)
    args = ["-e", "prepare_root=/srv/host"]
    lab.play("prepare.yml", "--check", "--diff", *args)
    assert {n: settings(h) for n, h in lab.hosts.items()} == before
    assert node.sh(new_files) == others
    said = lab.play("prepare.yml", *args)
    assert "scaling_governor: powersave -> performance" in said
    assert "swap: on -> off" in said
    assert node.sh("cat /srv/host/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor") == "performance"
    assert nothing_changed(lab.play("prepare.yml", *args))
    lab.play("teardown.yml")
    assert {n: settings(h) for n, h in lab.hosts.items()} == before
    assert node.sh("ls /usr/local/lib /etc/init.d /etc/rc2.d | grep -c surefoot || true") == "0"
    assert nothing_changed(lab.play("teardown.yml"))


def test_a_host_puts_itself_back_when_the_controller_stays_away(lab: Lab) -> None:
    """Nobody comes for the length of the lease: the host restores itself, without any connection."""
    node = lab.hosts["node-2"]
    before = pretend(node)
    lab.play("prepare.yml", "--limit", "node-2", "-e", '{"prepare_root": "/srv/host", "prepare_lease_s": 20}')
    assert settings(node) != before
    node.wire.cut = True
    until("the host puts itself back", lambda: not node.holds(f"test -e {STATE}/host-state.json"), 120)
    assert settings(node) == before
    node.wire.mend()
    lab.play("teardown.yml")


def test_programs_come_and_go(lab: Lab) -> None:
    """The role by itself: programs that run, nothing to do a second time, nothing left of them after teardown."""
    book = lab.folder / "programs.yml"
    role = {"role": str(REPO / "playbooks" / "roles" / "programs")}
    book.write_text(yaml.safe_dump([{"hosts": "all", "become": True, "roles": [role]}]), "utf-8")
    shipped = {"programs_surefootd": str(tools.find(tools.SUREFOOTD)), "programs_loadgen": str(tools.find(tools.LOADGEN))}
    there = "cd /usr/local/lib/surefoot-lab && ./surefootd --version && ./surefoot-loadgen --version && ./surefoot-sweep --help"
    assert not any(host.holds(there) for host in lab.hosts.values())
    assert all(recap(lab.play(str(book), "-e", json.dumps(shipped))).values())
    assert all(host.holds(there) for host in lab.hosts.values())
    assert nothing_changed(lab.play(str(book), "-e", json.dumps(shipped)))
    lab.play("teardown.yml")
    for host in lab.hosts.values():
        assert host.sh("find /usr/local /etc -name '*surefoot*'") == ""


def test_through_a_bastion_with_a_vaulted_secret(lab: Lab) -> None:
    """A host behind another one, its port from the vault: the inventory is all that says so."""
    bastion, node = lab.hosts["node-1"], lab.hosts["node-3"]
    config = lab.folder / "ssh_config"
    config.write_text(
        f"Host *\n  IdentityFile {lab.folder}/key\n  UserKnownHostsFile {lab.folder}/known\n  StrictHostKeyChecking accept-new\n"
        f"Host bastion\n  HostName 127.0.0.1\n  User root\n  Port {bastion.wire.port}\n",
        "utf-8",
    )
    password = lab.folder / "vault-password"
    password.write_text("trial\n", "utf-8")
    secrets = lab.folder / "group_vars" / "lab"
    secrets.mkdir(parents=True)
    (secrets / "vault.yml").write_text(yaml.safe_dump({"vault_port": node.port}), "utf-8")
    vault = [str(Path(sys.executable).parent / "ansible-vault"), "encrypt", "--vault-password-file", str(password)]
    subprocess.run([*vault, str(secrets / "vault.yml")], check=True, capture_output=True)
    assert str(node.port) not in (secrets / "vault.yml").read_text("utf-8")
    jump = f"-F {config} -o ProxyJump=bastion"
    inventory = lab.write_inventory("behind.yml", {"node-3": {"ansible_port": "{{ vault_port }}"}}, ansible_ssh_common_args=jump)
    try:
        bastion.wire.cut = True
        with pytest.raises(AssertionError, match="UNREACHABLE"):
            lab.play("teardown.yml", inventory=inventory, ANSIBLE_VAULT_PASSWORD_FILE=str(password))
        bastion.wire.mend()
        assert recap(lab.play("teardown.yml", inventory=inventory, ANSIBLE_VAULT_PASSWORD_FILE=str(password))) == {"node-3": 0}
    finally:
        bastion.wire.mend()
        (secrets / "vault.yml").unlink()


class Controller:
    """`surefoot campaign run`, as a process of its own."""

    def __init__(self, lab: Lab, file: Path, out: Path, surefootd: Path, **environment: str) -> None:
        self.log = lab.folder / "controller.log"
        command = [sys.executable, "-m", "collection.cli", "campaign", "run", str(file), "--inventory", str(lab.inventory)]
        with self.log.open("ab") as log:
            env = {**os.environ, "SUREFOOTD": str(surefootd), **environment}
            self.process = subprocess.Popen([*command, "--out", str(out)], stdout=log, stderr=log, cwd=REPO, env=env)

    def kill(self) -> None:
        assert self.process.poll() is None, f"it ended before it was killed: {self.log.read_text('utf-8')[-2000:]}"
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def done(self) -> int:
        return self.process.wait(timeout=900)


def shards(out: Path) -> int:
    return len(list((out / "lab" / "shards").glob("*.parquet")))


def rows(folder: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(p) for p in sorted((folder / "shards").glob("*.parquet"))]).sort("case_id", "t_ms")


def test_a_campaign_survives_everything(lab: Lab, tmp_path: Path) -> None:
    """A host killed and restarted, a connection cut, the controller killed twice: the rows are those of an undisturbed run."""
    file = tmp_path / "hosts.toml"
    file.write_text(ON_HOSTS, "utf-8")
    virtual = tmp_path / "virtual.toml"
    virtual.write_text(VIRTUAL, "utf-8")
    campaign.run(virtual, tmp_path / "undisturbed")
    out = tmp_path / "out"
    second, third = lab.hosts["node-2"], lab.hosts["node-3"]
    not_done = f"! test -e {STATE}/campaigns/*/ended.json"
    sweeps = f"/usr/local/lib/surefoot-lab/surefoot-sweep status --job {STATE}/campaigns/* | grep -q '\"running\": true'"

    real = tools.find(tools.SUREFOOTD)
    slow = tmp_path / "surefootd"
    slow.write_text(SLOW.replace("REAL_HERE", str(real)), "utf-8")
    slow.chmod(0o755)
    for host in lab.hosts.values():
        subprocess.run(["docker", "cp", str(real), f"{host.container}:/usr/local/bin/surefootd"], check=True, capture_output=True)
        host.sh("touch /srv/slow")
    controller = Controller(lab, file, out, slow)
    until("a first shard is fetched", lambda: shards(out) > 0)
    # from here no sweep ends before it is let go, however fast the machine
    for host in lab.hosts.values():
        host.sh("touch /srv/hold")
    controller.kill()

    # the sweeps never noticed; now the power of one host goes
    assert second.holds(not_done), "the campaign is too short for this test: its hosts were done already"
    subprocess.run(["docker", "kill", second.container], check=True, capture_output=True)
    controller = Controller(lab, file, out, slow)
    time.sleep(1)  # an instant in which it looks at the hosts, one of which is dead
    subprocess.run(["docker", "start", second.container], check=True, capture_output=True)
    until(
        "the sweep of the restarted host runs again", lambda: second.holds(f"{sweeps} || test -e {STATE}/campaigns/*/ended.json")
    )

    assert third.holds(not_done), "the campaign is too short for this test: its hosts were done already"
    third.wire.cut = True
    cut_until = time.monotonic() + CUT_S
    before = shards(out)
    for host in lab.hosts.values():
        host.sh("rm /srv/hold")
    until("shards of the other hosts come while one is cut off", lambda: shards(out) > before)
    controller.kill()
    controller = Controller(lab, file, out, slow)
    until("the cut is over", lambda: time.monotonic() > cut_until)
    third.wire.mend()
    for host in lab.hosts.values():
        host.sh("rm /srv/slow")

    assert controller.done() == 0, controller.log.read_text("utf-8")[-3000:]
    found = verify.verify(out)
    assert found.ok, found.as_json()
    state = campaign.status(out)
    assert state["state"] == "done"
    assert state["cases"]["pending"] == 0
    assert rows(out / "lab").equals(rows(tmp_path / "undisturbed" / "server-1"))

    # once more: nothing to do, nothing changes
    again = {p: p.stat().st_mtime_ns for p in (out / "lab" / "shards").iterdir()}
    assert Controller(lab, file, out, slow).done() == 0
    assert {p: p.stat().st_mtime_ns for p in (out / "lab" / "shards").iterdir()} == again
    lab.play("teardown.yml", "-e", "teardown_remove_data=true")
    assert not any(h.holds(f"test -e {STATE}") for h in lab.hosts.values())


def test_collect_twice_changes_nothing(lab: Lab, tmp_path: Path) -> None:
    """What is shipped and runs, or has run, is left alone."""
    file = tmp_path / "hosts.toml"
    file.write_text(ON_HOSTS.replace('"1..36"', "[8]"), "utf-8")
    variables = {
        "collect_job": "twice",
        "collect_campaign": str(file),
        "collect_server": "virtual:server-1",
        "collect_profiles": str(_archive(tools.profile_folders(), tmp_path)),
        "surefoot_parts": {name: f"{n}/3" for n, name in enumerate(lab.hosts, start=1)},
    }
    assert all(recap(lab.play("collect.yml", "-e", json.dumps(variables))).values())
    assert nothing_changed(lab.play("collect.yml", "-e", json.dumps(variables)))
    for host in lab.hosts.values():
        until(f"{host.name} has ended", lambda h=host: h.holds(f"grep -q '\"code\": 0' {STATE}/campaigns/twice/ended.json"))
    assert nothing_changed(lab.play("collect.yml", "-e", json.dumps(variables)))
    fetched = tmp_path / "fetched"
    fetched.mkdir()
    what = {"fetch_job": "twice", "fetch_to": str(fetched)}
    assert nothing_changed(lab.play("fetch.yml", "-e", json.dumps(what)))
    first = {p.name: tar_of(p) for p in fetched.iterdir()}
    assert set(first) == {f"{name}.tar" for name in lab.hosts}
    assert all({"manifest.json", "journal.rest"} < set(files) for files in first.values()), first
    assert all(any(name.startswith("shards/") for name in files) for files in first.values()), first
    lab.play("fetch.yml", "-e", json.dumps(what))
    assert {p.name: tar_of(p) for p in fetched.iterdir()} == first
    lab.play("teardown.yml", "-e", "teardown_remove_data=true")
    assert not any(host.holds(f"test -e {STATE}") for host in lab.hosts.values())


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_a_campaign_under_a_configuration_of_the_users_own(kind: str, lab: Lab, tmp_path: Path) -> None:
    """Whatever ansible.cfg says, a whole campaign over three hosts brings home the rows of an undisturbed run."""
    few = {'"1..36"': '"8..9"', '"1..20"': '"4..6"', "[4, 8, 16]": "8"}
    assert all(old in CAMPAIGN for old in few)
    on_hosts, virtual = (tmp_path / name for name in ("hosts.toml", "virtual.toml"))
    for file, text in ((on_hosts, ON_HOSTS), (virtual, VIRTUAL)):
        for old, new in few.items():
            text = text.replace(old, new)
        file.write_text(text, "utf-8")
    config = tmp_path / "ansible.cfg"
    config.write_text(CONFIGURATIONS[kind], "utf-8")
    real = tools.find(tools.SUREFOOTD)
    for host in lab.hosts.values():
        subprocess.run(["docker", "cp", str(real), f"{host.container}:/usr/local/bin/surefootd"], check=True, capture_output=True)
    campaign.run(virtual, tmp_path / "undisturbed")
    out = tmp_path / "out"
    controller = Controller(lab, on_hosts, out, real, ANSIBLE_CONFIG=str(config))
    assert controller.done() == 0, controller.log.read_text("utf-8")[-3000:]
    found = verify.verify(out)
    assert found.ok, found.as_json()
    assert rows(out / "lab").equals(rows(tmp_path / "undisturbed" / "server-1"))
    lab.play("teardown.yml", "-e", "teardown_remove_data=true")
