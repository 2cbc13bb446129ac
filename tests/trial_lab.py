"""A lab on this machine: hosts that are containers with a real sshd, and wires to them that can be cut."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import yaml

REPO = Path(__file__).parent.parent
IMAGE = "surefoot/target"
# A node binary that works a thirtieth of the time while /srv/slow is there, so that disturbances hit a sweep in its midst
# whatever this machine's speed is. The real one is in the host's /usr/local/bin, and here where it was built.
SLOW = """\
#!/bin/sh
real=/usr/local/bin/surefootd
[ -x $real ] || real=REAL_HERE
[ -e /srv/slow ] || exec "$real" "$@"
"$real" "$@" &
sweep=$!
trap 'kill -CONT $sweep; kill $sweep' TERM
while kill -0 $sweep 2>/dev/null; do
  sleep 0.1
  [ -e /srv/slow ] || break
  kill -STOP $sweep 2>/dev/null || break
  sleep 2.9
  while [ -e /srv/hold ]; do sleep 0.1; done
  kill -CONT $sweep 2>/dev/null || break
done
wait $sweep
"""
# everything here either happens soon or never
DEADLINE_S = 420


def until(what: str, holds: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Wait for something; fail with its name."""
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {deadline_s} s"
        time.sleep(0.2)


def docker(*args: str) -> str:
    done = subprocess.run(["docker", *args], capture_output=True, text=True)
    assert done.returncode == 0, f"docker {' '.join(args)}: {done.stderr}"
    return done.stdout.strip()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Wire:
    """Forwards a port to another one. Cut, it swallows everything and says nothing, as a pulled cable does."""

    def __init__(self, to_port: int) -> None:
        self.to_port = to_port
        self.cut = False
        self.ends: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self.listener.accept()
            if self.cut:
                self.ends.append(near)  # answered by nobody
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.to_port))
            except OSError:
                near.close()
                continue
            self.ends += [near, far]
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        try:
            while True:
                for end in select.select([near, far], [], [], 0.2)[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    if not self.cut:
                        (far if end is near else near).sendall(data)
        except (OSError, ValueError):
            pass  # ValueError: the end of the test closed one meanwhile
        finally:
            near.close()
            far.close()

    def mend(self) -> None:
        """What was open when it was cut stays dead; new connections work."""
        for end in self.ends:
            end.close()
        self.ends = []
        self.cut = False


class Host:
    """One target."""

    def __init__(self, name: str, key: str) -> None:
        self.name = name
        self.port = free_port()
        self.container = f"surefoot-trial-{os.getpid()}-{name}"
        self.wire = Wire(self.port)
        args = ["--network", "host", "-e", f"PORT={self.port}", "-e", f"KEY={key}"]
        docker("run", "-d", "--name", self.container, *args, IMAGE)

    def sh(self, script: str) -> str:
        return docker("exec", self.container, "sh", "-c", script)

    def holds(self, script: str) -> bool:
        return subprocess.run(["docker", "exec", self.container, "sh", "-c", script], capture_output=True).returncode == 0


class Lab:
    """Hosts, an inventory for them, and Ansible."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder = folder
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
        key = (folder / "key.pub").read_text("utf-8").strip()
        self.hosts: dict[str, Host] = {}
        for name in names:
            self.hosts[name] = Host(name, key)
        for host in self.hosts.values():
            until(f"sshd of {host.name}", lambda port=host.port: _speaks(port))
        self.ssh = f"-o UserKnownHostsFile={folder}/known -o StrictHostKeyChecking=accept-new"
        self.inventory = self.write_inventory("inventory.yml", {n: {"ansible_port": h.wire.port} for n, h in self.hosts.items()})

    def write_inventory(self, name: str, hosts: dict[str, dict[str, object]], **variables: str) -> Path:
        common = {
            "ansible_host": "127.0.0.1",
            "ansible_user": "root",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_private_key_file": str(self.folder / "key"),
            "ansible_ssh_common_args": self.ssh,
        }
        path = self.folder / name
        value = {"all": {"vars": {**common, **variables}, "children": {"lab": {"hosts": hosts}}}}
        path.write_text(yaml.safe_dump(value), "utf-8")
        return path

    def play(self, playbook: str, *args: str, inventory: Path | None = None, **environment: str) -> str:
        """Run a playbook as a user would; its output."""
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(inventory or self.inventory), *args, playbook]
        env = {**os.environ, "ANSIBLE_CONFIG": str(REPO / "playbooks" / "ansible.cfg"), "NO_COLOR": "1", **environment}
        done = subprocess.run(command, cwd=REPO / "playbooks", capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def close(self) -> None:
        for host in self.hosts.values():
            subprocess.run(["docker", "rm", "-f", host.container], capture_output=True)


def _speaks(port: int) -> bool:
    """Whether an sshd answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as s:
            return s.recv(4) == b"SSH-"
    except OSError:
        return False
