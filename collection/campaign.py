"""Campaigns: plan, run, follow. One target after another, each in its own folder, all summed up in one manifest.

DIR/campaign.toml   copy of what was asked for
DIR/manifest.json   what the targets hold together
DIR/progress.json   the last word of the run: rate and time left
DIR/data-card.md    what the data set holds, where from, what is missing; at the end of a run
DIR/data-card-TARGET.svg   its figures
DIR/.lock           held while a `campaign run` works here
DIR/<target>/       one data set: manifest.json, journal.jsonl, shards/ (written by `surefootd sweep`)
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipelines.inputs import read_bytes
from pipelines.io import leftovers, linked, make_folder, naming, write_bytes, write_json
from pipelines.manifest import SCHEMA_VERSION

from . import card, dataset, lab, spec, standing, tools, worth
from .errors import Busy, CampaignError, DataSetError, HostFailed, InputError, NotReady, ToolFailed, ToolMissing
from .layout import COPY, PROGRESS
from .mirror import Split
from .standing import counted, each, is_running, quoted, read_note, read_summary, status
from .watch import Report, Silent

__all__ = [
    "COPY",
    "PROGRESS",
    "each",
    "is_running",
    "locked",
    "plan",
    "prepare",
    "read_summary",
    "run",
    "status",
    "temporaries",
    "working_in",
]


# how often the progress file is written at most
_PROGRESS_EVERY_S = 0.5
# how often rows are counted at most while they come, and how many times as long as the count took
_COUNT_EVERY_S, _COUNT_SHARE = 2.0, 20.0
# the longest orderly end of a sweep: as `tools.follow_json` grants it
_LAST_SWEEP_S = 30.0


@dataclass(frozen=True)
class Prepared:
    """What `run` knows before it starts anything. plans: by target, None where only its hosts can tell.

    splits: of targets on hosts, where an inventory was given. refusals: by target, why a run cannot start there.
    """

    campaign: spec.Campaign
    plans: dict[str, dict[str, Any] | None]
    splits: dict[str, Split]
    refusals: dict[str, list[str]]


def prepare(
    file: Path, *, out: Path | None, inventory: Path | None, catalogue: Path | None, needs_inventory: bool = True
) -> Prepared:
    """Everything that `run` may refuse, looked at before anything is written or started: `plan` is this and no more.

    Raises:
        CampaignError: the file, an option, the inventory or the folder cannot be used.
        ToolFailed: `surefootd` refuses the sweep; its message names file, field and remedy.
    """
    campaign = spec.load(file, catalogue)
    on_hosts = [t for t in campaign.targets if t.on_hosts]
    if inventory is not None and not on_hosts:
        raise CampaignError(f"--inventory {inventory}: {file} has no targets.hosts that it could be for. Leave it out")
    if inventory is None and on_hosts and needs_inventory:
        raise CampaignError(f"{file}: targets.hosts: {on_hosts[0].name} is a group of an inventory. Name it: --inventory INV")
    if catalogue is not None:
        if all(t.server != "local" for t in campaign.targets):
            raise CampaignError(f"--catalogue {catalogue}: {file} has virtual targets only, which have profiles. Leave it out")
        _check_catalogue(catalogue)
    plans = {t.name: _plan(campaign, t) for t in campaign.targets}
    refusals = {t.name: list(_refusals(t, plans[t.name])) for t in campaign.targets}
    splits = {t.name: lab.split_for(out, campaign, t, inventory) for t in on_hosts} if inventory else {}
    if out is not None:
        _check_folder(campaign, out)
    return Prepared(campaign, plans, splits, refusals)


def _refusals(target: spec.Target, found: dict[str, Any] | None) -> Iterator[str]:
    """Why a run could not start on this machine; nothing if it can."""
    if target.on_hosts:
        for tool in (tools.SUREFOOTD, tools.LOADGEN):
            tools.find(tool)
    elif target.is_local and found is not None:
        if tools.is_named(tools.LOADGEN):
            try:
                tools.find(tools.LOADGEN)
            except ToolMissing as e:
                yield str(e)
        yield from found["refusals"]


def _check_catalogue(given: Path) -> None:
    """
    Raises:
        CampaignError: it is no catalogue.
    """
    if not given.is_dir() or not any(given.glob("*/workload.toml")):
        raise CampaignError(
            f"--catalogue {given}: has no NAME/workload.toml in it. Give a folder of workloads, as docs/catalogue.md has it"
        )


def plan(file: Path, *, out: Path | None = None, inventory: Path | None = None, catalogue: Path | None = None) -> dict[str, Any]:
    """Count and preview the cases of each target, and say what `run` would refuse. Changes nothing.

    Args:
        file: campaign file.
        out: folder that `run` will be given, to check it.
        inventory: as for `run`; without it the hosts of a group are not looked for. Hosts that measure themselves are asked.
        catalogue: as for `run`.
    Returns:
        Each target has `refusals`: why a run cannot start there as it stands. `cases` is None where only hosts can tell.
    Raises:
        CampaignError: the file or a target cannot be used.
        ToolFailed: `surefootd` refuses the sweep; its message names file, field and remedy.
    """
    found = prepare(file, out=out, inventory=inventory, catalogue=catalogue, needs_inventory=False)
    targets = []
    for t in found.campaign.targets:
        known = found.plans[t.name]
        split, refusals, away = found.splits.get(t.name), found.refusals[t.name], []
        if t.server == "local" and split is not None and inventory is not None and not refusals:
            told = lab.plans_of_hosts(found.campaign, t, split, inventory)
            known, refusals, away = told.plan, told.refusals, told.away
        entry: dict[str, Any] = {"target": t.name, "server": t.server, **(known or {"cases": None})}
        if t.on_hosts:
            entry["hosts"] = [s.host for s in split.shares] if split else None
            entry["warnings"] = [*entry.get("warnings", []), *away]
        targets.append({**entry, "refusals": refusals})
    return {
        "campaign": found.campaign.name,
        "file": str(file),
        "sha256": found.campaign.sha256,
        "cases": sum(int(t["cases"] or 0) for t in targets),
        "targets": targets,
    }


# of a campaign for hosts: what this machine cannot judge for them
_OF_THE_HOST = ("sweep.cores", "sweep.ways", "sweep.mba_pct", "loadgen.cpus", "max load")
# of limits on memory: what this machine cannot set, and how much it has; how they are written is the same everywhere
_MEMORY_OF_THE_HOST = re.compile(
    r"sweep\.(memory|pool): .*(this host has|no swap|zswap|pool for all of the host|cgroups are of version 1|"
    r" is more than the \S+ \S+ of )"
)


def _plan(campaign: spec.Campaign, target: spec.Target) -> dict[str, Any] | None:
    """The plan of a target; None where only its hosts can tell, and nothing is wrong that is wrong everywhere."""
    if target.server.startswith("virtual:"):
        tools.profile_folders()  # said in our words if one is not there
    args: list[str | Path] = ["sweep", campaign.path, "--server", target.server, "--plan", "--json"]
    if target.server == "local" and campaign.catalogue is not None:
        args += ["--catalogue", campaign.catalogue]
    try:
        found = tools.run_json(tools.SUREFOOTD, args)
    except ToolFailed as e:
        if target.on_hosts and target.server == "local":
            of_the_file = e.code == 2 and str(campaign.path) in str(e)
            if not of_the_file or any(f in str(e) for f in _OF_THE_HOST) or _MEMORY_OF_THE_HOST.search(str(e)):
                return None
        raise ToolFailed(e.tool, _in_our_words(str(e), campaign, target), e.code) from e
    if not isinstance(found, dict):
        raise CampaignError(f"{campaign.path}: the plan for {target.server} is not an object. Rebuild surefootd: make setup")
    return None if target.on_hosts and target.server == "local" else found


def _in_our_words(message: str, campaign: spec.Campaign, target: spec.Target) -> str:
    """A message of `surefootd sweep`, which speaks of its own options, in words of the campaign's file."""
    field = f"targets.server: {target.server}" if target.on_hosts else f"targets.virtual: {target.name}"
    message = message.replace(f"--server {target.server}: ", f"{campaign.path}: {field}: ")
    message = message.replace("Give a platform file, or --profiles", "Mend the name, or name its folder in SUREFOOT_PROFILES")
    message = message.replace("with --profiles", "in a folder named in SUREFOOT_PROFILES")
    # its remedies speak of its own flag
    return message.replace("--resume", "the same command")


def run(
    file: Path, out: Path, *, inventory: Path | None = None, catalogue: Path | None = None, report: Report | None = None
) -> dict[str, Any]:
    """Run a campaign, or go on with the one that `out` holds.

    Args:
        file: campaign file.
        out: folder of the data set.
        inventory: Ansible inventory, for `targets.hosts`.
        catalogue: folder of workloads, for `targets.local` and hosts, in place of the default one.
        report: where progress goes.
    Returns:
        The state, as `status` gives it.
    Raises:
        CampaignError: the file, or `out` holds another campaign.
        NotReady: this machine cannot run it as it stands; nothing was started.
        Busy: another run works in `out`.
        ToolFailed: a sweep failed; the same call goes on where it was.
        HostFailed: hosts of an inventory failed; all else is here.
    """
    report = report or Silent()
    # a bad campaign must not leave a folder behind
    found = prepare(file, out=out, inventory=inventory, catalogue=catalogue)
    campaign, splits = found.campaign, found.splits
    plans = {name: known for name, known in found.plans.items() if known is not None}
    refused = [what for all_of_it in found.refusals.values() for what in all_of_it]
    if refused and not _goes_on(out):
        more = (
            f". And {counted(len(refused) - 1, 'more refusal')}: surefoot campaign plan {quoted(file)}"
            if len(refused) > 1
            else ""
        )
        raise NotReady(refused[0] + more)
    with working_in(out):
        # a killed run leaves them; nobody else writes here now (surefootd clears the targets' folders in the same way)
        for file_left in temporaries(out):
            file_left.unlink(missing_ok=True)
        copy = out / COPY
        if not copy.exists():
            write_bytes(copy, read_bytes(file))
        rows = _Rows(out)
        _write_summary(campaign, out, plans, rows)
        note = _Note(out / PROGRESS, rows)
        failed: list[str] = []
        try:
            for target in campaign.targets:
                if inventory is not None and target.name in splits:
                    planned = int(plans[target.name]["cases"]) if target.name in plans else None
                    try:
                        lab.run(
                            campaign,
                            target,
                            splits[target.name],
                            out,
                            inventory,
                            planned,
                            report,
                            lambda: _write_summary(campaign, out, plans, rows),
                        )
                    except HostFailed as e:
                        failed.append(str(e))  # the other targets have no part in it
                    continue
                report.start(target.name, int(plans[target.name]["cases"]))
                args: list[str | Path] = ["sweep", file, "--server", target.server, "--out", out / target.name]
                args += ["--resume", "--progress", "json", f"--die-with-parent={os.getpid()}"]
                if target.server == "local" and catalogue is not None:
                    args += ["--catalogue", catalogue]
                _wait_for_last_sweep(out / target.name)
                for line in tools.follow_json(tools.SUREFOOTD, args):
                    report.update(target.name, note.take(target.name, line))
                report.update(target.name, note.end(target.name))
        except ToolFailed as e:
            raise ToolFailed(e.tool, _in_our_words(str(e), campaign, target), e.code) from e
        finally:
            note.write()
            _write_summary(campaign, out, plans, rows)
        if failed:
            raise HostFailed("; ".join(failed))
        if not card.is_current(out):
            card.write(out)
    return status(out)


def _goes_on(out: Path) -> bool:
    """Whether a local sweep has begun there: what it left, its next sweep takes over, and that says itself what is missing."""
    return (out / "local" / dataset.MANIFEST).exists()


def _wait_for_last_sweep(folder: Path) -> None:
    """The sweep of a killed run ends by itself, but not at once. One that goes on longer is somebody's: ours is refused then."""
    end = time.monotonic() + _LAST_SWEEP_S
    while is_running(folder) and time.monotonic() < end:
        time.sleep(0.05)


class _Rows:
    """Counts what the rows of a campaign's targets are worth, shard by shard as they come."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._tallies: dict[str, worth.Tally] = {}
        self._told: dict[str, standing.Worth] = {}
        try:
            kept = standing.summed_up(read_summary(out))
        except DataSetError:
            kept = {}
        self._told = {name: found for name, found in kept.items() if found is not None}

    def count(self, target: str) -> standing.Worth:
        """Of what the target's manifest lists now.

        Raises:
            DataSetError: the manifest is damaged.
        """
        folder = self._out / target
        now = standing.digest(folder)
        known = self._told.get(target)
        if known is None or known.of != now:
            tally = self._tallies.setdefault(target, worth.Tally(folder))
            found = tally.count(dataset.read_manifest(folder)) if now else {"usable": 0}
            known = self._told[target] = standing.Worth(found, now)
        return known


class _Note:
    """Keeps the newest progress line of each target in a file, for `status`, and adds to each how many rows are usable so far."""

    def __init__(self, path: Path, rows: _Rows) -> None:
        self._path = path
        self._rows = rows
        kept = read_note(path)
        self._told = {name: {**note, "worth": note["worth"].as_json() if note["worth"] else None} for name, note in kept.items()}
        self._written = 0.0
        self._count_at = 0.0
        self._last: dict[str, Any] = {}

    def take(self, target: str, line: dict[str, Any]) -> dict[str, Any]:
        """The line, with `usable_rows` and `rows` as they were counted last."""
        told = self._told.setdefault(target, {})
        told |= {"rate_per_s": line.get("rate_per_s"), "eta_s": line.get("eta_s")}
        self._last = line
        return self._counted(target, line, time.monotonic() >= self._count_at)

    def end(self, target: str) -> dict[str, Any]:
        """The last line again, now that the sweep has ended and all of its rows are there."""
        return self._counted(target, self._last, True)

    def _counted(self, target: str, line: dict[str, Any], anew: bool) -> dict[str, Any]:
        told = self._told.setdefault(target, {})
        if anew:
            begun = time.monotonic()
            with suppress(DataSetError):  # the manifest is damaged: `verify` says how
                told["worth"] = self._rows.count(target).as_json()
            took_s = time.monotonic() - begun
            self._count_at = begun + max(_COUNT_EVERY_S, _COUNT_SHARE * took_s)
        if time.monotonic() - self._written > _PROGRESS_EVERY_S:
            self.write()
        found = told.get("worth")
        return {**line, "usable_rows": found["usable_rows"], "rows": sum(found["rows_by_worth"].values())} if found else line

    def write(self) -> None:
        write_json(self._path, self._told)
        self._written = time.monotonic()


def _check_folder(campaign: spec.Campaign, out: Path) -> None:
    """Refuse a folder that holds something else."""
    if out.exists() and not out.is_dir():
        raise CampaignError(f"--out {out}: is a file. Give a folder")
    copy = out / COPY
    if copy.exists():
        held = spec.load(copy)
        if held.sha256 != campaign.sha256:
            raise CampaignError(
                f"--out {out}: holds campaign {held.name!r} as {copy} describes it, and {campaign.path} differs from that. "
                "Give another --out, or remove the folder"
            )
        _check_own(out)
    elif out.exists() and set(out.iterdir()) - {out / ".lock", *temporaries(out)}:
        raise CampaignError(f"--out {out}: is not empty and holds no campaign. Give another folder")


def _check_own(out: Path) -> None:
    """Refuse a data set whose files are links, as DVC makes them: what goes on there would change the versions in its cache, too.

    Raises:
        CampaignError: says of how many, and the remedy.
    """
    links = sorted(linked(out))
    if links:
        first, more = links[0], f" and {counted(len(links) - 1, 'more file')}" if len(links) > 1 else ""
        raise CampaignError(
            f"--out {out}: {first.relative_to(out)}{more}: a link, or a file of more names (hard links): going on would change "
            "what else they lead to, e.g. a version in DVC's cache. Give the folder files of its own: "
            f"dvc unprotect {quoted(out)}, as `dvc add` was given it; without DVC: cp -rL to a new folder"
        )


def temporaries(folder: Path) -> list[Path]:
    """Half-written files of a campaign's folder: of the run that works there, or left behind by a killed one."""
    written = (folder / name for name in (COPY, dataset.MANIFEST, PROGRESS, card.CARD, *map(card.figure, _target_names(folder))))
    return [path for file in written for path in leftovers(file)]


def _target_names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


@contextmanager
def working_in(folder: Path, what: str = "a campaign run", watch: str = "surefoot campaign status") -> Iterator[None]:
    """Make a folder and hold its lock, as `locked`. If the file system takes nothing into it, it is gone again."""
    lock = folder / ".lock"
    new: list[Path] = []
    try:
        new = [p for p in (folder, *folder.parents) if not p.exists()]
        make_folder(folder)
        with locked(folder, what, watch):
            yield
    except OSError:
        with suppress(OSError):
            if folder in new and set(folder.iterdir()) <= {lock}:
                lock.unlink(missing_ok=True)
        for path in new:
            with suppress(OSError):
                path.rmdir()
        raise


@contextmanager
def locked(folder: Path, what: str = "a campaign run", watch: str = "surefoot campaign status") -> Iterator[None]:
    """Hold a folder's lock; it goes with the process, however that ends.

    Args:
        what, watch: for the message to whoever comes second.

    Raises:
        Busy: another process holds it.
    """
    with _lock_file(folder / ".lock") as file:
        if not _try_lock(file):
            file.seek(0)
            who = file.read().strip()
            by = f" (process {who})" if who else ""
            raise Busy(f"{folder}: {what} works here already{by}. Wait for it, stop it, or watch it: {watch} {folder}")
        with naming(folder / ".lock"):
            file.seek(0)
            file.truncate()
            os.write(file.fileno(), f"{os.getpid()}\n".encode())
        yield


def _lock_file(path: Path) -> IO[str]:
    """The file of a lock: ours, or made. It holds a process id; what holds anything else stays as it is.

    Raises:
        InputError: something else has that name.
    """
    refusal = InputError(f"{path}: is there and no lock of ours. Remove it, or give another folder")
    try:
        # a link is not followed, a FIFO not waited for
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENXIO):
            raise refusal from None
        raise
    about = os.fstat(fd)
    # the longest process id, and a line's end
    ours = stat.S_ISREG(about.st_mode) and about.st_nlink == 1 and about.st_size < 16
    if not ours or (about.st_size and not os.pread(fd, 16, 0).strip().isdigit()):
        os.close(fd)
        raise refusal
    return os.fdopen(fd, "r+", encoding="ascii", errors="replace")


def _try_lock(file: IO[str]) -> bool:
    """Take the lock. `status` looks at it for an instant, so one refusal is not the answer."""
    end = time.monotonic() + 0.5
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        else:
            return True


def _times(out: Path, done: bool) -> dict[str, str]:
    """When the campaign began, and when its last case was done; both are kept once they are known."""
    try:
        before = read_summary(out)
    except DataSetError:
        before = {}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kept = {name: str(before[name]) for name in ("started_utc", "ended_utc") if name in before}
    times = {"started_utc": now, "ended_utc": now} | kept
    return times if done or "ended_utc" in kept else {"started_utc": times["started_utc"]}


def _write_summary(campaign: spec.Campaign, out: Path, plans: dict[str, dict[str, Any]], known: _Rows) -> None:
    """DIR/manifest.json."""
    targets: list[dict[str, Any]] = []
    for t in campaign.targets:
        manifest = dataset.read_manifest(out / t.name) if (out / t.name / dataset.MANIFEST).exists() else None
        # what hosts plan for themselves is known once they have said so
        planned = int(plans[t.name]["cases"]) if t.name in plans else manifest.cases.planned if manifest else 0
        counts, rows, shards = dataset.Counts(planned), 0, 0
        if manifest:
            counts = standing.count(out / t.name, planned)
            rows, shards = manifest.rows, len(manifest.shards)
        entry = {"name": t.name, "server": t.server, "folder": t.name, "cases": counts.as_json(), "rows": rows, "shards": shards}
        entry["worth"] = known.count(t.name).as_json()
        targets.append(entry)
    summary = {
        "schema_version": SCHEMA_VERSION,
        "campaign": campaign.name,
        "campaign_file_sha256": campaign.sha256,
        "targets": targets,
        **_times(out, all(entry["cases"]["pending"] == 0 for entry in targets)),
    }
    summary["rows"] = sum(entry["rows"] for entry in targets)
    summary["usable_rows"] = sum(entry["worth"]["usable_rows"] for entry in targets)
    write_json(out / dataset.MANIFEST, summary)
