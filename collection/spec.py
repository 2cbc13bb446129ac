"""What a campaign file says about where it runs.

Only `[targets]` and the name are read here. The sweep itself is parsed, checked and expanded by `surefootd sweep`, so that
there is one reading of it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.inputs import Unreadable, choice, parse_toml, read_bytes, utf8

from .errors import CampaignError

_WORKING = 'targets that work: virtual = ["server-1"] (any platform profile), local = true, hosts = "group"'
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Target:
    """One server that a campaign runs on.

    name: folder under the campaign's output, e.g. `server-1`, `local` or the group of hosts.
    server: what `surefootd --server` takes, e.g. `virtual:server-1` or `local`.
    on_hosts: the hosts of the inventory's group `name` share the cases; each measures `server`.
    """

    name: str
    server: str
    on_hosts: bool = False

    @property
    def is_local(self) -> bool:
        return self.server == "local" and not self.on_hosts


@dataclass(frozen=True)
class Campaign:
    """A campaign file as far as the lab side needs it. `sha256` is of the file's bytes.

    catalogue: folder of workloads that local targets and hosts take in place of the default one.
    """

    path: Path
    name: str
    targets: tuple[Target, ...]
    sha256: str
    catalogue: Path | None = None


def load(path: Path, catalogue: Path | None = None) -> Campaign:
    """Read a campaign file.

    Raises:
        CampaignError: no such file, not TOML, or targets that cannot be run.
    """
    try:
        raw = read_bytes(path)
    except FileNotFoundError as e:
        raise CampaignError(f"{path}: no such campaign file. Start from one in examples/") from e
    except OSError as e:
        raise CampaignError(f"{path}: cannot be read ({e.strerror}). Give the path of a campaign file") from e
    except Unreadable as e:
        raise CampaignError(f"{path}: cannot be read: {e}. Give the path of a campaign file") from e
    try:
        data = parse_toml(utf8(raw))
    except Unreadable as e:
        raise CampaignError(f"{path}: not valid TOML: {e}. docs/campaign-format.md lists every field") from e
    name = data.get("name")
    if not isinstance(name, str) or not name:
        raise CampaignError(f'{path}: name is missing. Give the campaign one, e.g. name = "server-1-common"')
    return Campaign(path, name, _targets(path, data.get("targets")), hashlib.sha256(raw).hexdigest(), catalogue)


def _targets(path: Path, table: Any) -> tuple[Target, ...]:
    if not isinstance(table, dict) or not table:
        raise CampaignError(f"{path}: [targets] is missing or empty; {_WORKING}")
    known = ("virtual", "hosts", "server", "local")
    if unknown := sorted(set(table) - set(known)):
        raise CampaignError(f"{path}: targets.{unknown[0]} is unknown. {choice(unknown[0], known)}; {_WORKING}")
    found: list[Target] = []
    virtual = table.get("virtual", [])
    if not isinstance(virtual, list) or not all(isinstance(v, str) and v for v in virtual):
        raise CampaignError(f'{path}: targets.virtual must be a list of platforms, e.g. ["server-1"]')
    for name in virtual:
        # the name becomes a folder, and is how `surefootd` finds the profile
        if not _NAME.fullmatch(name) or name in ("local", "hosts"):
            raise CampaignError(f"{path}: targets.virtual: {name!r} is no platform's name. Give one like server-1")
        if any(t.name == name for t in found):
            raise CampaignError(f"{path}: targets.virtual names {name} twice. Remove one")
        found.append(Target(name, f"virtual:{name}"))
    local = table.get("local", False)
    if not isinstance(local, bool):
        raise CampaignError(f"{path}: targets.local must be true or false, not {local!r}")
    if local:
        found.append(Target("local", "local"))
    found += _hosts(path, table, {t.name for t in found})
    if not found:
        raise CampaignError(f"{path}: [targets] names no server; {_WORKING}")
    return tuple(found)


def _hosts(path: Path, table: dict[str, Any], taken: set[str]) -> list[Target]:
    if "hosts" not in table:
        if "server" in table:
            raise CampaignError(f"{path}: targets.server is what the hosts measure, and there is no targets.hosts. Remove it")
        return []
    group, server = table["hosts"], table.get("server", "local")
    # the group becomes a folder beside the other targets' and `hosts`
    if not isinstance(group, str) or not _NAME.fullmatch(group) or group in taken | {"hosts", "local"}:
        raise CampaignError(
            f'{path}: targets.hosts: {group!r} cannot be used. Give one group of the inventory, e.g. "lab_rack_7"'
        )
    if server != "local" and not (isinstance(server, str) and _NAME.fullmatch(server.removeprefix("virtual:")) and ":" in server):
        raise CampaignError(f'{path}: targets.server: {server!r} is no server. Write "local" (the default) or "virtual:server-1"')
    return [Target(group, server, on_hosts=True)]
