"""What servers are like that models are to be made for, as `surefootd` says it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from . import tools
from .errors import InputError
from .worlds import Worlds, draw


def facts(named: Iterable[str]) -> list[dict[str, Any]]:
    """Name, cores, step, ways, MB a way and MBA of each server.

    Args:
        named: platform files, names of shipped platforms, drawn worlds (`test:1..20`), or `local` for this host.
    Raises:
        InputError: this host does not say what it is like.
        ToolMissing, ToolFailed: surefootd is not built, or knows no such platform.
    """
    return [platform for name in named for platform in _each(name)]


def _each(name: str) -> Iterator[dict[str, Any]]:
    if name == "local":
        yield _asked(name, [])
    elif ":" in name and not Path(name).exists():
        worlds = Worlds.parse(name, "--platform")
        with tempfile.TemporaryDirectory() as scratch:
            for number, world in zip(range(worlds.first, worlds.last + 1), worlds.names(), strict=True):
                drawn = draw(worlds.range, number, Path(scratch) / world)
                yield _asked(f"virtual:{world}-p", ["--profiles", str(drawn)])
    else:
        yield _asked(f"virtual:{name}", [])


def _asked(server: str, more: list[str]) -> dict[str, Any]:
    said = tools.run_json(tools.SUREFOOTD, ["check", "--server", server, *more, "--json"])
    platform: dict[str, Any] | None = said.get("platform")
    if platform is None:
        raise InputError(f"--platform {server}: this host does not say how many CPUs it has. Look at `surefootd check`")
    if server == "local" and not any(c["name"] == "pmu" and c["found"] for c in said.get("capabilities", ())):
        raise InputError(
            "--platform local: this host has no hardware counters, which models of worlds ask for. Collect data here: "
            "`surefoot onboard`"
        )
    return platform
