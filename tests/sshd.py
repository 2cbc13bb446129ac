"""An SSH server on this machine, for tests: OpenSSH's client comes in, and its commands are carried out here.

The server is a process of its own, as asyncio's streams of a cut connection cannot be closed before they are collected:
    python tests/sshd.py FOLDER     listens on a free port of 127.0.0.1, says it, and ends with its stdin
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncssh


class Sshd:
    """Listens on a free port of 127.0.0.1 until it is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        client = asyncssh.generate_private_key("ssh-ed25519")
        folder.mkdir(parents=True, exist_ok=True)
        for key, name in ((self.host_key, "host"), (client, "key")):
            key.write_private_key(str(folder / name))
            (folder / name).chmod(0o600)
        client.write_public_key(str(folder / "authorized"))
        (folder / "heard").touch()
        # A session of its own: what a client left running ends with the server.
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._server.stdout is not None
        self.port = int(self._server.stdout.readline())

    def _heard(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in (self.folder / "heard").read_text("utf-8").splitlines()]

    @property
    def commands(self) -> list[str]:
        """What was asked for."""
        return [line["command"] for line in self._heard() if "command" in line]

    @property
    def logins(self) -> int:
        """How often somebody began to log in, which is after the host's key was accepted."""
        return sum("login" in line for line in self._heard())

    def known(self, key: Any = None) -> None:
        """Write known_hosts, with the server's own key or another; None: its own."""
        public = (key or self.host_key).export_public_key().decode()
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {public}", "utf-8")

    def inventory_host(self) -> dict[str, Any]:
        """Variables of a host that is this server; of ssh's files only those in the folder count."""
        files = f"-F /dev/null -o UserKnownHostsFile={self.folder}/known -o GlobalKnownHostsFile=/dev/null"
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_ssh_private_key_file": str(self.folder / "key"),
            "ansible_ssh_common_args": f"{files} -o ControlMaster=no -o ControlPath=none -o IdentitiesOnly=yes",
            "ansible_ssh_args": "",
        }

    def close(self) -> None:
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.communicate()


async def _serve(folder: Path) -> None:
    def heard(**what: str) -> None:
        with (folder / "heard").open("a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")

    class Server(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            heard(login=username)
            return True

    async def sent(came: Any, to: Any) -> None:
        while data := await came.read(1 << 16):
            to.write(data)
            await to.drain()

    async def carry_out(process: Any) -> None:
        heard(command=process.command or "")
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_shell(process.command or ":", stdin=pipe, stdout=pipe, stderr=pipe)
        await process.redirect(stdin=child.stdin)
        # An exit closes the channel: what the child wrote last has to be sent before it.
        await asyncio.gather(sent(child.stdout, process.stdout), sent(child.stderr, process.stderr))
        process.exit(await child.wait())
        await process.wait_closed()

    listener = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=Server,
        server_host_keys=[str(folder / "host")],
        authorized_client_keys=str(folder / "authorized"),
        process_factory=carry_out,
        sftp_factory=True,
        allow_scp=True,
        encoding=None,
    )
    print(listener.get_port(), flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
