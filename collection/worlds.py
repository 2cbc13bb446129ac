"""Campaigns over drawn worlds: the material of models for services and servers that no campaign has seen (docs/worlds.md).

Each world is a server and eight services that `surefootd` draws from a number. It is swept alone and beside one to three
neighbours, jobs among them, over all its cores and ways. A world takes about half a second. One that is whole is not measured
again, so a collection that was killed goes on where it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipelines import inputs
from pipelines.io import sha256_file, write_bytes, write_json
from pipelines.manifest import MANIFEST
from pipelines.worlds import DONE

from . import tools
from .errors import InputError

_WORLDS = re.compile(r"(train|tune|test):([1-9]\d{0,9})(?:\.\.([1-9]\d{0,9}))?")
NEIGHBOURS = (0, 1, 2, 3)
INTERVAL_MS = 80_000
"""Long enough for a p99 at five requests a second; a virtual server takes no longer for it."""


@dataclass(frozen=True)
class Worlds:
    """Worlds of one range, both ends included, as in `--worlds tune:1..50`."""

    range: str
    first: int
    last: int

    @classmethod
    def parse(cls, text: str, option: str = "--worlds") -> Worlds:
        """
        Args:
            option: named in the message.
        Raises:
            InputError: it is not RANGE:N or RANGE:FIRST..LAST.
        """
        found = _WORLDS.fullmatch(text)
        first = int(found[2]) if found else 0
        last = int(found[3] or found[2]) if found else 0
        if found is None or last < first or last >= 2**32:
            raise InputError(
                f"{option} {text}: want RANGE:N or RANGE:FIRST..LAST with RANGE one of train, tune, test, e.g. train:1..120"
            )
        return cls(found[1], first, last)

    def names(self) -> list[str]:
        return [f"{self.range}-{n}" for n in range(self.first, self.last + 1)]


def campaign(name: str, services: list[str], jobs: list[str], threads: int) -> str:
    """The campaign of one world: every cell, alone and beside neighbours."""

    def listed(names: list[str]) -> str:
        return ", ".join(f'"{n}"' for n in names)

    return f"""# A fine sweep of the services of a drawn world, alone and beside neighbours (docs/worlds.md).
name = "{name}"
strategy = "exhaustive"
seed = 1

[targets]
virtual = ["{name}-p"]

[sweep]
services = [{listed(services)}]
rps = "catalogue"
threads = [{threads}]
cores = "all"
ways = "all"
neighbours = {{ count = {list(NEIGHBOURS)}, draws = 1, jobs = [{listed(jobs)}] }}

[sampling]
interval_ms = {INTERVAL_MS}
samples = 1
"""


def draw(which: str, number: int, out: Path) -> Path:
    """One world as a folder; returns it.

    Raises:
        ToolMissing, ToolFailed: surefootd is not built, or the folder is there already.
    """
    tools.run(tools.SUREFOOTD, ["world", "draw", "--range", which, "--seed", str(number), "--out", out])
    return out


def collect(worlds: Worlds, out: Path, said: Callable[[str], None]) -> list[Path]:
    """Draw and sweep each world that is not whole yet; returns the folders of the data sets.

    Args:
        said: takes a line of progress a world.
    Raises:
        ToolMissing, ToolFailed: surefootd is not built, or a sweep failed.
    """
    folders = []
    names = worlds.names()
    for k, name in enumerate(names):
        folder = out / name
        folders.append(folder)
        if (folder / DONE).is_file():
            continue
        drawn = out / "worlds" / name
        if not (drawn / "campaign.toml").is_file():
            draw(worlds.range, worlds.first + k, drawn)
        given = sorted(path.stem for path in (drawn / "services").glob("*.toml"))
        jobs = sorted(path.stem for path in (drawn / "batch").glob("*.toml"))
        threads = _threads(drawn / "campaign.toml")
        file = drawn / "fine.toml"
        write_bytes(file, campaign(name, given, jobs, threads).encode())
        server = f"virtual:{name}-p"
        tools.run(tools.SUREFOOTD, ["sweep", file, "--profiles", drawn, "--server", server, "--out", folder, "--resume"])
        write_bytes(folder / DONE, b"")
        said(f"{name}: measured, {k + 1} of {len(names)}")
    write_list(worlds.range, out)
    return folders


def write_list(which: str, out: Path) -> Path:
    """OUT/RANGE.json: all whole worlds of a range that are there, with the digest of each manifest. One small file for DVC."""
    there = [f for f in out.glob(f"{which}-*") if f.name.removeprefix(f"{which}-").isdecimal() and (f / DONE).is_file()]
    there.sort(key=lambda folder: int(folder.name.rpartition("-")[2]))
    path = out / f"{which}.json"
    write_json(path, {"worlds": {folder.name: sha256_file(folder / MANIFEST) for folder in there}})
    return path


def _threads(file: Path) -> int:
    """Of a drawn world's own campaign: one a logical CPU."""
    try:
        return int(inputs.read_toml(file)["sweep"]["threads"][0])
    except (inputs.Unreadable, KeyError, IndexError, TypeError, ValueError):
        raise InputError(f"{file}: has no sweep.threads; remove {file.parent} and collect again") from None
