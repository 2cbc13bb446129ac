"""Workload files for `surefootd eval`, drawn with seeds: those under workloads/sets, and any number more.

A draw is a function of its recipe and its number alone. Which draws become files is decided by ORACLE where they must be
schedulable, so every file names its number: it can be made again, and checked, without asking about the ones before it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.inputs import choice
from pipelines.io import write_bytes

from . import tools
from .errors import InputError, StepFailed

# OSML+ paper, Table 2.
SERVICES = ("img-dnn", "masstree", "memcached", "mongodb", "moses", "nginx", "specjbb", "sphinx", "xapian", "login", "ads")
# OSML+ paper, Sec. 4.1.
JOBS = ("blackscholes", "streamcluster", "bodytrack")
# Draws in a row that are refused before the search is given up: the committed sets have 12 at most.
PATIENCE = 60
# Draws that are judged at once, at most: how often one hears how far it has come.
BATCH = 16
# The same until the first is kept: an impossible draw takes ORACLE ten seconds or more.
FIRST_BATCH = 4
REFUSED = "ORACLE found no partition that meets every QoS target"
_STEP_PCT = 10
# Of so many events one is a service that leaves.
_LEAVES_ONE_IN = 4


@dataclass(frozen=True)
class Recipe:
    """What is drawn. Loads are whole tens of per cent of max load, as in the papers' cases.

    low_pct, high_pct: the loads, both included.
    services, jobs: drawn from these, each at most once in a workload.
    gap_s: services arrive one after another, this far apart, in the order drawn; the jobs are there from the start (OSML+ paper,
        Fig. 12).
    grid: every workload has all `services` in their order, and no combination of loads comes twice.
    events: changes of load (another level, of a service that is there) and leaves (never of the last), evenly spread after the
        last arrival.
    """

    platform: str
    lc: int
    be: int = 0
    seed: int = 1
    low_pct: int = 10
    high_pct: int = 100
    services: tuple[str, ...] = SERVICES
    jobs: tuple[str, ...] = JOBS
    gap_s: float = 1.0
    duration_s: float = 120.0
    grid: bool = False
    events: int = 0

    def check(self) -> None:
        """Raises InputError where nothing can be drawn."""
        known = profiles("platforms")
        if self.platform not in known:
            raise InputError(
                f"--platform {self.platform}: no such platform. {choice(self.platform, known)}. For one of your own name the"
                " folder above its platforms/ in SUREFOOT_PROFILES"
            )
        option = "--grid" if self.grid else "--services"
        _check_names(option, self.services, profiles("services"))
        _check_names("--jobs", self.jobs, profiles("batch"))
        most = len(self.services)
        if not 1 <= self.lc <= most:
            raise InputError(f"--lc {self.lc}: there are {most} services to draw from. Give 1 to {most}, or more --services")
        if not 0 <= self.be <= len(self.jobs):
            raise InputError(f"--be {self.be}: there are {len(self.jobs)} jobs to draw from. Give 0 to {len(self.jobs)}")
        if self.low_pct % _STEP_PCT or self.high_pct % _STEP_PCT or not 0 < self.low_pct <= self.high_pct <= 100:
            raise InputError(f"--low {self.low_pct} --high {self.high_pct}: loads are 10, 20 ... 100 per cent, low to high")
        if not (math.isfinite(self.duration_s) and self.duration_s > 0):
            raise InputError(f"--duration-s {self.duration_s:g}: is no duration. Give a number of seconds above 0")
        if not (math.isfinite(self.gap_s) and self.gap_s >= 0):
            raise InputError(f"--gap-s {self.gap_s:g}: is no time between arrivals. Give a number of seconds, 0 or more")
        if self.gap_s * (self.lc - 1) >= self.duration_s:
            fewer = "fewer services in --grid" if self.grid else "a lower --lc"
            raise InputError(
                f"--gap-s {self.gap_s:g}: the last of {self.lc} services would arrive after --duration-s {self.duration_s:g}."
                f" Give a lower --gap-s, {fewer} or a longer --duration-s"
            )
        if self.events < 0:
            raise InputError(f"--events {self.events}: give 0 or more")
        if self.events and self._events_apart_s() < 1:
            raise InputError(f"--events {self.events}: less than a second apart. Give fewer, or a longer --duration-s")
        if self.events and self.low_pct == self.high_pct:
            raise InputError(f"--events {self.events}: with one level no load can change. Give --high above --low")

    def _events_apart_s(self) -> float:
        return (self.duration_s - self.gap_s * (self.lc - 1)) / (self.events + 1)

    def event_s(self, k: int) -> float:
        """When the k-th event is, from 0 on, in tenths of a second."""
        return round(self.gap_s * (self.lc - 1) + self._events_apart_s() * (k + 1), 1)

    def loads_pct(self) -> range:
        return range(self.low_pct, self.high_pct + 1, _STEP_PCT)

    def draws(self) -> float:
        """How many there are: of a grid its combinations."""
        return len(self.loads_pct()) ** len(self.services) if self.grid else math.inf

    def command(self) -> str:
        """The options of `surefoot workloads generate` that give this recipe."""
        said = [f"--platform {self.platform}"]
        if self.grid:
            said.append(f"--grid {','.join(self.services)}")
        else:
            said.append(f"--lc {self.lc} --be {self.be}")
            if self.services != SERVICES:
                said.append(f"--services {','.join(self.services)}")
        if self.jobs != JOBS:
            said.append(f"--jobs {','.join(self.jobs)}")
        said.append(f"--low {self.low_pct} --high {self.high_pct} --gap-s {self.gap_s:g} --duration-s {self.duration_s:g}")
        if self.events:
            said.append(f"--events {self.events}")
        return " ".join([*said, f"--seed {self.seed}"])


@dataclass(frozen=True)
class Workload:
    """One draw.

    lc: (service, load in per cent, arrival in s). be: jobs. events: (time in s, service, load in per cent from then on; 0: it
    leaves), in time order.
    """

    recipe: Recipe
    number: int
    lc: tuple[tuple[str, int, float], ...]
    be: tuple[str, ...]
    events: tuple[tuple[float, str, int], ...] = ()

    def text(self) -> str:
        """The workload file (docs/workload-format.md)."""
        lines = [
            f"# Draw {self.number} of surefoot workloads generate {self.recipe.command()}",
            f'platform = "{self.recipe.platform}"',
            f"duration_s = {self.recipe.duration_s:g}",
        ]
        for service, pct, at_s in self.lc:
            lines += ["", "[[lc]]", f'service = "{service}"', f"load = {pct / 100:g}"]
            lines += [f"arrive_s = {at_s:g}"] if at_s else []
            mine = [(t_s, to_pct) for t_s, who, to_pct in self.events if who == service]
            lines += [f"leave_s = {t_s:g}" for t_s, to_pct in mine if not to_pct]
            for t_s, to_pct in mine:
                lines += ["[[lc.change]]", f"at_s = {t_s:g}", f"load = {to_pct / 100:g}"] if to_pct else []
        for job in self.be:
            lines += ["", "[[be]]", f'job = "{job}"']
        return "\n".join(lines) + "\n"

    def phases(self) -> list[Workload]:
        """The workload once all have arrived and after each event, every phase as a workload in which nothing happens."""
        here = {service: pct for service, pct, _ in self.lc}
        found = [dict(here)]
        for _, service, pct in self.events:
            here[service] = pct
            found.append({s: p for s, p in here.items() if p})
        return [Workload(self.recipe, self.number, tuple((s, p, 0.0) for s, p in f.items()), self.be) for f in found]


@dataclass(frozen=True)
class Set:
    """A committed set: files NAME-01.toml ... under workloads/sets/FOLDER."""

    folder: str
    name: str
    recipe: Recipe
    count: int
    source: str


def _server_2(lc: int, seed: int) -> Set:
    return Set(
        f"lc{lc}-be-server-2",
        f"lc{lc}-be",
        Recipe("server-2", lc, be=1, seed=seed),
        20,
        "OSML+ paper, Sec. 4.3 (2), Fig. 8 and 9",
    )


_THREE = ("moses", "img-dnn", "xapian")
SETS = (
    Set("lc3-server-2", "lc3", Recipe("server-2", 3, low_pct=60), 40, "OSML+ paper, Sec. 4.3 (1), Fig. 6; loads: Sec. 4.1"),
    Set("lc3-server-1", "lc3-s1", Recipe("server-1", 3, low_pct=30), 40, "the same where equal shares do for half of them"),
    *(_server_2(lc, seed=lc) for lc in (2, 3, 4, 5, 6)),
    Set("emu-302", "emu", Recipe("server-1", 3, services=_THREE, grid=True), 302, "OSML slides, “EMU Distribution”"),
)


def profiles(kind: str) -> list[str]:
    """Names of the profiles that there are of a kind: "platforms", "services" or "batch"."""
    files = (file for folder in tools.profile_folders() for file in (folder / kind).glob("*.toml"))
    return sorted({file.stem for file in files})


def _check_names(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    given = ",".join(names)
    if not all(names):
        raise InputError(f'{option} "{given}": a name is empty. Give names with one comma between two')
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"{option} {given}: there is no {unknown[0]}. {choice(unknown[0], known)}")
    if twice := [name for k, name in enumerate(names) if name in names[:k]]:
        raise InputError(f"{option} {given}: {twice[0]} stands there twice, and a workload has it once. Remove one")


def _random(*words: object) -> int:
    """A whole number that depends on the words alone, on every machine and in every version."""
    digest = hashlib.sha256(" ".join(map(str, words)).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def _shuffled(items: Sequence[Any], *words: object) -> list[Any]:
    return [item for _, item in sorted((_random(*words, k), item) for k, item in enumerate(items))]


def draw(recipe: Recipe, number: int) -> Workload | None:
    """The number-th draw, from 1 on; None after the last combination of a grid."""
    seed = recipe.seed
    if recipe.grid:
        cells = _shuffled(list(itertools.product(recipe.loads_pct(), repeat=len(recipe.services))), "grid", seed)
        if number > len(cells):
            return None
        services, pcts = list(recipe.services), list(cells[number - 1])
    else:
        services = _shuffled(recipe.services, "services", seed, number)[: recipe.lc]
        levels = recipe.loads_pct()
        pcts = [levels[_random("load", seed, number, k) % len(levels)] for k in range(recipe.lc)]
    jobs = _shuffled(recipe.jobs, "jobs", seed, number)[: recipe.be]
    at_s = [k * recipe.gap_s for k in range(len(services))]
    events = _events(recipe, number, dict(zip(services, pcts, strict=True)))
    return Workload(recipe, number, tuple(zip(services, pcts, at_s, strict=True)), tuple(jobs), events)


def _events(recipe: Recipe, number: int, here: dict[str, int]) -> tuple[tuple[float, str, int], ...]:
    """Events from the loads in per cent of the services that are there on."""
    found = []
    for k in range(recipe.events):
        words = ("event", recipe.seed, number, k)
        who = list(here)[_random(*words, "who") % len(here)]
        if len(here) > 1 and _random(*words, "what") % _LEAVES_ONE_IN == 0:
            del here[who]
            pct = 0
        else:
            others = [pct for pct in recipe.loads_pct() if pct != here[who]]
            pct = here[who] = others[_random(*words, "load") % len(others)]
        found.append((recipe.event_s(k), who, pct))
    return tuple(found)


def schedulable(workloads: Sequence[Workload]) -> list[bool]:
    """For each, whether ORACLE proves that a partition meets every QoS target once all have arrived, and after each event.

    It is asked by way of `surefootd eval`, whose column `oracle_emu` is null where nothing was proven (docs/eval-output.md): that
    counts as a no.
    """
    from pipelines import tables  # here: only this needs polars

    recipe = workloads[0].recipe
    with tempfile.TemporaryDirectory(prefix="surefoot-workloads-") as name:
        folder = Path(name)
        # Of each phase one: a load that changes back is asked about once.
        phases = [list(dict.fromkeys(phase.text() for phase in workload.phases())) for workload in workloads]
        for k, texts in enumerate(phases):
            for j, text in enumerate(texts):
                (folder / f"{k:06}-{j:06}.toml").write_text(text, "utf-8")
        args: list[str | Path] = ["eval", "--workloads", folder, "--policies", "unmanaged", "--platform", recipe.platform]
        tools.run_json(tools.SUREFOOTD, [*args, "--timelines", "none", "--out", folder / "out", "--json"])
        rows = tables.read(folder / "out" / "rows.parquet", "Generate the set again").sort("workload")
    proven = iter(((rows["oracle_emu"] - rows["offered_load"]).abs() < 1e-6).fill_null(False).to_list())
    return [all([next(proven) for _ in texts]) for texts in phases]


def generate(
    recipe: Recipe,
    count: int,
    name: str,
    out: Path,
    judge: Callable[[Sequence[Workload]], list[bool]] | None = None,
    told: Callable[[int, int], None] = lambda _files, _draws: None,
) -> dict[str, Any]:
    """Write `count` workload files NAME-01.toml ... into a folder that is new or empty.

    Args:
        judge: which draws become files; None: all.
        told: called with files and draws so far: after the first FIRST_BATCH draws, then after every BATCH at the latest.
    Returns:
        folder, files, draws, and the recipe's options.
    Raises:
        InputError: the recipe cannot be drawn from, or not so often, or the folder is not empty.
        StepFailed: the draws ran out before there were enough files, or PATIENCE of them in a row were refused.
    """
    recipe.check()
    if not name or name in (".", "..") or any(c in "/\\" or not c.isprintable() for c in name):
        raise InputError(f"--name {name!r}: is to be the beginning of file names in --out. Give one without / and \\")
    if count < 1:
        raise InputError(f"--count {count}: give 1 or more")
    if count > (there_are := recipe.draws()):
        raise InputError(
            f"--count {count}: only {there_are} draws exist. Give 1 to {there_are}, a wider --low to --high, or more services in"
            " --grid"
        )
    if os.path.lexists(out) and not out.is_dir():
        raise InputError(f"--out {out}: is no folder. Give a new one")
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out}: is not empty, and its files would be taken for part of the set. Give a new folder")
    found: list[Workload] = []
    number = 0
    while len(found) < count:
        # never more than are still wanted, so that which files come out does not depend on how many are asked about at once
        most = BATCH if found else FIRST_BATCH
        wanted = min(count - len(found), most) if judge else count - len(found)
        drawn = [w for w in (draw(recipe, n) for n in range(number + 1, number + wanted + 1)) if w is not None]
        in_a_row = number - (found[-1].number if found else 0)
        if not drawn or in_a_row >= PATIENCE:
            why = f": of the last {in_a_row} {REFUSED}" if in_a_row else ""
            raise StepFailed(
                f"only {len(found)} of {number} draws were kept, {count} were asked for{why}. Lower --high, --lc or --be, or ask"
                " for fewer"
            )
        keep = judge(drawn) if judge else [True] * len(drawn)
        found += [w for w, kept in zip(drawn, keep, strict=True) if kept]
        number += len(drawn)
        told(len(found), number)
    digits = max(2, len(str(count)))
    files = [out / f"{name}-{k:0{digits}}.toml" for k in range(1, count + 1)]
    for file, workload in zip(files, found, strict=True):
        write_bytes(file, workload.text().encode())
    return {"out": str(out), "files": [f.name for f in files], "draws": number, "recipe": recipe.command()}
