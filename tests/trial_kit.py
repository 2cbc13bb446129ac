"""docs/install-node.md followed on a fresh Debian, from nothing to a held memcached and back (make test-kit).

Commands are the page's own. What is looked at between them is this file's: control groups, metrics, what is left.
Needs root's Docker engine, the image of tests/targets/server, and the packages of `make dist` (or of SUREFOOT_PACKAGES).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trial_lab import REPO, until

IMAGE = "surefoot/server"
PAGE = REPO / "docs" / "install-node.md"
PACKAGES = Path(os.environ.get("SUREFOOT_PACKAGES", REPO / "dist")).resolve()
CONFIG = "/etc/surefoot/node.toml"
# What control may change, of version 1 and 2.
KNOBS = ("cpuset.cpus", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares", "cpu.max", "cpu.weight")
# What a server's root may and a container's may not, as far as systemd and the daemon need it.
RIGHTS = ["--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"]
# So often in a row a look must find the target met; a look takes most of a second.
LOOKS = 5
UNITS = {"memcached": "/system.slice/memcached.service", "batch": "/system.slice/batch.service"}
BY_HAND = {"memcached": "/memcached", "batch": "/batch"}


def package(pattern: str) -> Path:
    found = sorted(PACKAGES.glob(pattern))
    assert len(found) == 1, f"{PACKAGES}/{pattern}: {len(found)} files. Run: make dist (or name a folder in SUREFOOT_PACKAGES)"
    return found[0]


def blocks(heading: str) -> list[str]:
    """What the page has a shell do, between a heading and the next one."""
    found: list[str] = []
    section, language = "", None
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("```"):
            language = line[3:] if language is None else None
            if language == "sh" and section == heading:
                found.append("")
        elif language is None and line.startswith("#"):
            section = line.lstrip("#").strip()
        elif language == "sh" and section == heading:
            found[-1] += f"{line}\n"
    assert found, f"{PAGE.name} has no shell's block under {heading!r}"
    return found


class Server:
    """A container that was never anything else's: no network, the package in root's home."""

    def __init__(self, name: str, first: list[str], files: list[Path]) -> None:
        self.name = f"surefoot-trial-{os.getpid()}-{name}"
        # Somebody must ask for processes that have ended, as the first process of a server does.
        reaper = [] if first == ["/sbin/init"] else ["--init"]
        run = ["docker", "run", "--detach", "--name", self.name, "--network", "none", "--cgroupns", "private", *RIGHTS, *reaper]
        run += ["--tmpfs", "/run:exec", "--tmpfs", "/run/lock", IMAGE, *first]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (
            f"a container with a part of the control groups cannot be started: {done.stderr}"
            "It takes a Docker engine that runs as root, with --cgroupns private (20.10 or newer)."
        )
        for file in files:
            subprocess.run(["docker", "cp", str(file), f"{self.name}:/root/"], check=True, capture_output=True)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        command = ["docker", "exec", "--workdir", "/root", self.name, "bash", "-euo", "pipefail", "-c", script]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    def sh(self, script: str) -> str:
        done = self.run(script)
        assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def holds(self, script: str) -> bool:
        return self.run(script).returncode == 0

    def follow(self, *headings: str) -> list[str]:
        """Do what the page says there, in one shell for each section; what its blocks said."""
        return [self.sh("\n".join(blocks(heading))) for heading in headings]

    def version(self) -> int:
        return 2 if self.holds("test -e /sys/fs/cgroup/cgroup.controllers") else 1

    def has(self, cgroup: str) -> dict[str, str]:
        """What is in force for a control group, by file."""
        trees = ["/sys/fs/cgroup"] if self.version() == 2 else ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpuset"]
        files = " ".join(f"{tree}{cgroup}/{knob}" for tree in trees for knob in KNOBS)
        said = self.sh(f'for f in {files}; do [ ! -e "$f" ] || echo "$(basename "$f") $(cat "$f")"; done')
        return {name: value for name, _, value in (line.partition(" ") for line in said.splitlines())}

    def metric(self, name: str, service: str) -> float | None:
        done = self.run("curl -s 127.0.0.1:19464/metrics")
        found = re.search(rf'^surefoot_{name}\{{service="{service}"[^}}]*\}} (\S+)$', done.stdout, re.MULTILINE)
        return float(found[1]) if found else None

    def told(self) -> str:
        return self.run("surefootd top --once; journalctl --no-pager -n 40 || tail -n 20 /var/log/surefootd*.log").stdout

    def close(self) -> None:
        subprocess.run(["docker", "rm", "--force", self.name], capture_output=True, check=False)


@pytest.fixture
def server() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(name: str, first: list[str], *files: Path) -> Server:
        made.append(Server(name, first, list(files)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def booted(server: Callable[..., Server], name: str, *files: Path) -> Server:
    """A server whose systemd is up; nothing of Surefoot is on it but the files."""
    host = server(name, ["/sbin/init"], *files)
    until("systemd is up", lambda: host.run("systemctl is-system-running").stdout.strip() in ("running", "degraded"), 60)
    ours = host.sh("find / -xdev -name '*surefoot*' ! -path '/root/*'")
    assert ours == "", ours
    return host


def give_services(host: Server) -> None:
    host.follow("A service to hold")
    if host.version() == 1:
        host.follow("On cgroup v1")


def held(host: Server, cgroups: dict[str, str], before: dict[str, dict[str, str]]) -> None:
    """memcached meets its target beside the job, with what the daemon decided in force in the kernel's own files."""

    in_a_row = 0

    def met() -> bool:
        nonlocal in_a_row
        target, p99 = host.metric("qos_target_seconds", "memcached"), host.metric("p99_seconds", "memcached")
        good = p99 is not None and target is not None and p99 <= target and host.metric("qos_met", "memcached") == 1
        in_a_row = in_a_row + 1 if good else 0
        return in_a_row >= LOOKS

    def decided() -> bool:
        return all(in_force(host, service, cgroup) for service, cgroup in cgroups.items())

    try:
        until(f"memcached meets its target at {LOOKS} looks in a row", met, 180)
        until("what the daemon says is what is in force", decided, 60)
        for service, cgroup in cgroups.items():
            assert host.has(cgroup) != before[service], service
    except AssertionError as e:
        raise AssertionError(f"{e}\n{host.told()}") from e


def in_force(host: Server, service: str, cgroup: str) -> bool:
    """The cores that the metrics tell are those of the kernel: the quota over its period, or CPUs where there is none."""
    said, kernel = host.metric("cores", service), host.has(cgroup)
    limit = kernel.get("cpu.max") or f"{kernel['cpu.cfs_quota_us']} {kernel['cpu.cfs_period_us']}"
    quota, period = limit.split()
    if quota in ("max", "-1"):
        ends = [part.split("-") for part in kernel["cpuset.cpus"].split(",")]
        return said == sum(int(e[-1]) - int(e[0]) + 1 for e in ends)
    return said is not None and abs(int(quota) / int(period) - said) < 0.01


def test_with_systemd(server: Callable[..., Server]) -> None:
    """Every section in order on a server with systemd: memcached is held, everything is given back, nothing is left."""
    host = booted(server, "systemd", package("surefoot-node_*_amd64.deb"))
    host.follow("Install")
    check, *_ = host.follow("Check")
    assert "resctrl" in check
    assert "mem.bw_gbs" in check  # the blank that no kernel fills in, named
    assert "[cpu]" in host.sh("cat /root/platform.toml")
    assert host.run("systemctl is-active surefootd").stdout.strip() == "inactive"
    give_services(host)
    configured, *_ = host.follow("Configure")
    for service in UNITS:
        assert re.search(rf"^ *yes service-{service} ", configured, re.MULTILINE), configured[-3000:]
    assert '"case_id":"memcached"' in host.sh("cat /tmp/seen.jsonl")
    host.follow("Policy")
    before = {s: host.has(c) for s, c in UNITS.items()}
    host.follow("Start")
    held(host, UNITS, before)
    watched, *_ = host.follow("Watch")
    assert re.search(r"^memcached +lc ", watched, re.MULTILINE), watched
    assert re.search(r"^ +1 +\S+ \S+ +memcached +place ", watched, re.MULTILINE), watched[-3000:]
    # what the daemon asks its actuator for is what that may do
    assert not re.search(r"WARN (actuator \S+: )?refused", watched), watched[-3000:]
    host.follow("Stop")
    assert {s: host.has(c) for s, c in UNITS.items()} == before
    # once more: what was given back can be held again, and removing gives it back as well
    host.sh("systemctl start surefootd")
    held(host, UNITS, before)
    host.follow("Remove")
    assert {s: host.has(c) for s, c in UNITS.items()} == before
    assert host.sh("find / -xdev -name '*surefoot*' ! -path '/root/*'") == ""
    assert not host.holds("getent passwd surefoot")


def test_by_hand(server: Callable[..., Server]) -> None:
    """The archive on a server whose first process is no systemd: held, given back, nothing left."""
    host = server("hand", ["sleep", "infinity"], package("surefootd-*-x86_64.tar.gz"))
    install, services, start, stop = blocks("By hand")
    script, *_ = blocks("On cgroup v1")
    # a script's own part of that block: units are for systemd
    own = script.partition("for s in")[0]
    assert "own-cgroup" in own
    where = "cd /root/surefootd-*-x86_64\n"
    host.sh(install)
    host.sh(own)
    host.sh(where + services)
    before = {s: host.has(c) for s, c in BY_HAND.items()}
    host.sh(where + start)
    held(host, BY_HAND, before)
    (watch,) = blocks("Watch")
    watched = host.sh("\n".join(line for line in watch.splitlines() if not line.startswith("journalctl")))
    assert re.search(r"^ +1 +\S+ \S+ +memcached +place ", watched, re.MULTILINE), watched[-3000:]
    host.sh(where + stop)
    assert {s: host.has(c) for s, c in BY_HAND.items()} == before
    assert host.sh("find / -xdev -name '*surefoot*' ! -path '/root/*'") == ""


def test_with_ansible(server: Callable[..., Server], tmp_path: Path) -> None:
    """The role deploys, does nothing a second time, and memcached is held; a broken configuration leaves the old one at work."""
    host = booted(server, "ansible")
    give_services(host)
    before = {s: host.has(c) for s, c in UNITS.items()}
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    public = shlex.quote(key.with_suffix(".pub").read_text("utf-8"))
    host.sh(f"mkdir -p /run/sshd; install -d -m 700 /root/.ssh; echo {public} > /root/.ssh/authorized_keys")
    # sshd at the other end of a pipe: neither a port nor a network is needed
    pipe = f"-o ProxyCommand='docker exec -i {host.name} /usr/sbin/sshd -i'"
    options = f"{pipe} -o UserKnownHostsFile={tmp_path}/known -o StrictHostKeyChecking=accept-new"
    inventory = tmp_path / "inventory.ini"
    who = f"ansible_user=root ansible_ssh_private_key_file={key} ansible_python_interpreter=/usr/bin/python3"
    inventory.write_text(f'server {who} ansible_ssh_common_args="{options}"\n', "utf-8")
    services = re.search(r"^cat >> .*?<<'EOF'\n(.*?)^EOF", "\n".join(blocks("Configure")), re.MULTILINE | re.DOTALL)
    assert services
    node = tmp_path / "node.toml"
    node.write_text((REPO / "packaging" / "node.toml").read_text("utf-8") + services[1], "utf-8")
    env = {
        **os.environ,
        "INVENTORY": str(inventory),
        "PACKAGE": str(package("surefoot-node_*_amd64.deb")),
        "NODE_TOML": str(node),
    }
    env |= {"ANSIBLE_CONFIG": str(REPO / "playbooks" / "ansible.cfg"), "NO_COLOR": "1"}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    (block,) = blocks("With Ansible")

    def deploy(*more: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-euc", " ".join([block.rstrip(), *more])]
        return subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, timeout=600, check=False)

    def done() -> int:
        said = deploy()
        assert said.returncode == 0, said.stdout[-4000:] + said.stderr[-2000:]
        return int(re.findall(r"^server +: ok=\d+ +changed=(\d+)", said.stdout, re.MULTILINE)[-1])

    assert done() > 0
    assert host.run("systemctl is-active surefootd surefootd-actuator").stdout.split() == ["active", "active"]
    assert host.run("systemctl is-enabled surefootd").stdout.strip() == "enabled"
    assert done() == 0
    _, load = blocks("Start")
    host.sh(load)
    held(host, UNITS, before)
    # one that is well until the daemon runs: a policy that asks models, and no bundle
    failed = deploy("-e deploy_policy=osml-plus")
    assert failed.returncode != 0
    assert "What was there before is in force again" in failed.stdout, failed.stdout[-3000:]
    assert "osml-plus" not in host.sh("cat /etc/surefoot/surefootd.env")
    held(host, UNITS, before)
    pid = host.sh("systemctl show -P MainPID surefootd")
    node.write_text(node.read_text("utf-8") + "\nnonsense = 1\n", "utf-8")
    refused = deploy()
    assert refused.returncode != 0
    assert "nonsense" in refused.stdout
    assert "nonsense" not in host.sh(f"cat {CONFIG}")
    assert host.sh("systemctl show -P MainPID surefootd") == pid
    host.follow("Remove")
    assert {s: host.has(c) for s, c in UNITS.items()} == before
