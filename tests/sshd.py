"""An SSH server on this machine, for tests: OpenSSH's client comes in, and its commands are carried out here."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from pathlib import Path
from typing import Any

import asyncssh


class Sshd:
    """Listens on a free port of 127.0.0.1 until it is closed.

    commands: what was asked for. logins: how often somebody began to log in, which is after the host's key was accepted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[str] = []
        self.logins = 0
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        client = asyncssh.generate_private_key("ssh-ed25519")
        folder.mkdir(parents=True, exist_ok=True)
        client.write_private_key(str(folder / "key"))
        (folder / "key").chmod(0o600)
        client.write_public_key(str(folder / "authorized"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener = self._call(self._listen())
        self.port: int = self._listener.get_port()

    async def _listen(self) -> Any:
        outer = self

        class Server(asyncssh.SSHServer):
            def begin_auth(self, username: str) -> bool:
                outer.logins += 1
                return True

        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=Server,
            server_host_keys=[self.host_key],
            authorized_client_keys=str(self.folder / "authorized"),
            process_factory=self._process,
            sftp_factory=True,
            allow_scp=True,
            encoding=None,
        )

    async def _process(self, process: Any) -> None:
        self.commands.append(process.command or "")
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_shell(process.command or ":", stdin=pipe, stdout=pipe, stderr=pipe)
        await process.redirect(child.stdin, child.stdout, child.stderr)
        process.exit(await child.wait())
        await process.wait_closed()

    def _call(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

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
        async def end() -> None:
            self._listener.close()
            await self._listener.wait_closed()
            # What still runs is of connections that the client has left.
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        del self._listener
        # asyncssh makes coroutines for connections that were cut, and never waits for them. Their warnings are told here, not in
        # whatever runs when they are collected.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            gc.collect()
