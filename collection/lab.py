"""A campaign on the hosts of an inventory: share it out, start it, fetch what is finished, until all of it is here.

The hosts work alone: their sweeps run under their own init, so this process may be killed, cut off or switched off at any
moment, and the same command goes on. Nothing that is decided here is needed by a host once its sweep has started.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import intake, playbooks, spec, tools
from .errors import CampaignError, HostFailed
from .mirror import HOSTS, Mirror, Share, Split, damaged, merge, shares, strangers, temporaries

if TYPE_CHECKING:
    from .watch import Report

PATIENCE_S = 3600.0
"""Without a word of a host for so long, the run ends; the host's sweep goes on."""
# between two looks at the hosts: short while shards come, longer while none does
_PAUSE_S, _MOST_PAUSE_S = 1.0, 20.0
# what a host has done so many times in a row it will do the next time: refuse a play, answer nonsense, have nothing more
_MOST_REFUSALS = 3
_STRANGER = (
    "its host key is not the one in known_hosts, so nothing was sent. Compare it with the host's own "
    "(ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub there), then put it into known_hosts"
)
_PLAN_TASK = "Plan the campaign"
_PACK_TASK = "Look how the sweep stands and pack what is finished"


@dataclass
class Standing:
    """How one host stands. heard_s: when it last answered (monotonic).

    refusals: of the collect play, one after the other. nonsense: answers that were none. idle: times that it said its sweep had
    ended, with nothing more to fetch and its part not whole.
    """

    share: Share
    mirror: Mirror
    heard_s: float
    collected: bool = False
    refusals: int = 0
    nonsense: int = 0
    idle: int = 0
    more: bool = False
    trouble: str | None = None
    failed: str | None = None

    def refuses(self, why: str, what: str) -> None:
        """A play failed there, which is no matter of the connection. The third time in a row is the last."""
        self.refusals += 1
        self.trouble = f"{what}: {why}"
        if self.refusals >= _MOST_REFUSALS:
            self.failed = self.trouble

    @property
    def pending(self) -> bool:
        return self.failed is None and not self.mirror.complete


def split_for(out: Path | None, campaign: spec.Campaign, target: spec.Target, inventory: Path) -> Split:
    """Who measures what: as before if there was a before in `out`, else the inventory's hosts in their order.

    Raises:
        CampaignError: the inventory's group has other hosts now.
    """
    hosts = playbooks.hosts(inventory, target.name)
    before = Split.read(out) if out is not None else None
    if before is None:
        return Split(f"{campaign.name}-{secrets.token_hex(4)}", target.name, shares(hosts))
    known = [s.host for s in before.shares]
    if sorted(known) != sorted(hosts):
        raise CampaignError(
            f"--inventory {inventory}: group {target.name} is {', '.join(hosts)}, {out} was started with {', '.join(known)}. "
            "The parts are shared out: give those hosts, or another --out"
        )
    return before


@dataclass(frozen=True)
class HostPlans:
    """What hosts that measure themselves plan. plan: the first host's, of all cases, with the time that they take together.

    refusals: of hosts that cannot run it, or not as the others. away: hosts that were not heard, which a run waits for.
    """

    plan: dict[str, Any] | None
    refusals: list[str]
    away: list[str]


def plans_of_hosts(campaign: spec.Campaign, target: spec.Target, split: Split, inventory: Path) -> HostPlans:
    """Ask the hosts of a target for the plan of a campaign. Nothing stays there.

    Raises:
        ToolFailed: Ansible itself failed.
    """
    with tempfile.TemporaryDirectory(prefix="surefoot-plan-") as scratch:
        variables = {
            "surefoot_group": split.group,
            "programs_surefootd": str(tools.find(tools.SUREFOOTD)),
            "programs_loadgen": str(tools.find(tools.LOADGEN)),
            "collect_campaign": str(campaign.path.resolve()),
            "collect_catalogue": str(_archive(_workloads(campaign), Path(scratch))),
        }
        heard = playbooks.play("plan.yml", inventory, [s.host for s in split.shares], variables)
    plans: dict[str, dict[str, Any]] = {}
    refusals, warnings, away = [], [], []
    for host in (s.host for s in split.shares):
        h = heard[host]
        found = tools.json_object(str(h.results.get(_PLAN_TASK, {}).get("stdout")))
        if found is not None:
            plans[host] = found
            refusals += [f"{host}: {_of_the_host(str(what), campaign)}" for what in _list(found, "refusals")]
            warnings += [f"{host}: {_of_the_host(str(what), campaign)}" for what in _list(found, "warnings")]
        elif h.unreachable:
            away.append(f"{host}: cannot be reached: {h.problem}")
        else:
            why = (h.problem or "the playbook did nothing there").removeprefix(f"{_PLAN_TASK}: ").removeprefix("surefootd: ")
            refusals.append(f"{host}: {_of_the_host(why, campaign)}")
    if not plans:
        return HostPlans(None, refusals, away)
    (first, one), *others = plans.items()
    differ = [
        host for host, other in others if any(other.get(key) != one.get(key) for key in ("cases", "by_service", "infeasible"))
    ]
    refusals += [f"{host}: plans other cases than {first}: hosts that share a campaign are of one platform" for host in differ]
    seconds = one.get("estimated_duration_s")
    if isinstance(seconds, int | float):
        one = {**one, "estimated_duration_s": seconds / len(split.shares)}
    return HostPlans({**one, "warnings": warnings}, refusals, away)


def _list(found: dict[str, Any], key: str) -> list[Any]:
    value = found.get(key)
    return value if isinstance(value, list) else []


def _of_the_host(what: str, campaign: spec.Campaign) -> str:
    """What a host says of its copies of campaign and catalogue, in the words of their author."""
    what = re.sub(r"\S*/surefoot-plan\.[^/ ]*/campaign\.toml", str(campaign.path), what)
    return re.sub(r"\S*/surefoot-plan\.[^/ ]*/workloads", str(_workloads(campaign)[0]), what)


def _workloads(campaign: spec.Campaign) -> list[Path]:
    return [campaign.catalogue or tools.repo_root() / "workloads"]


def run(
    campaign: spec.Campaign,
    target: spec.Target,
    split: Split,
    out: Path,
    inventory: Path,
    planned: int | None,
    report: Report,
    merged: Callable[[], None],
    patience_s: float = PATIENCE_S,
) -> None:
    """Run a campaign's target that is a group of hosts, to its end.

    Args:
        split: who measures what, from `split_for`.
        planned: cases of the whole campaign, where that is known here (virtual servers).
        report: where progress goes, a line a host.
        merged: called after each merge.
        patience_s: see PATIENCE_S.
    Raises:
        CampaignError: the hosts cannot share this campaign.
        HostFailed: a host gave up, was not heard of, or sent what cannot be taken; what the others measured is here.
    """
    # what a kill left
    for path in temporaries(out, split.group):
        path.unlink(missing_ok=True)
    for left in (out / HOSTS).glob(".fetch-*"):
        shutil.rmtree(left, ignore_errors=True)
    split.write(out)
    now = time.monotonic()
    standings = [Standing(s, Mirror(out, split.group, s), now) for s in split.shares]
    aside = damaged(out, split)
    aside |= strangers(out, split)
    for standing in standings:
        standing.trouble = aside.get(standing.share.host)
        for path in standing.mirror.repair():
            standing.trouble = f"{path.name} was damaged here and is fetched again"
    if merge(out, split, planned):
        merged()
    _tell(standings, report, {})
    pause_s = _PAUSE_S
    while any(s.pending for s in standings):
        _collect(out, campaign, target, split, inventory, [s for s in standings if s.pending and not s.collected])
        _tell_troubles(standings, report)
        news = _fetch(out, split, inventory, [s for s in standings if s.pending and s.collected], report, planned)
        if news:
            aside = strangers(out, split)
            for s in standings:
                s.failed = aside.get(s.share.host, s.failed)
            merge(out, split, planned)
            merged()
        for s in standings:
            silent_s = time.monotonic() - s.heard_s
            if s.pending and silent_s > patience_s:
                s.failed = f"was not heard of for {silent_s:.0f} s ({s.trouble or 'no reason known'}); its sweep goes on"
        _tell_troubles(standings, report)
        if any(s.more for s in standings):
            continue
        pause_s = _PAUSE_S if news else min(2 * pause_s, _MOST_PAUSE_S)
        if any(s.pending for s in standings):
            time.sleep(pause_s)
    failed = [f"{s.share.host}: {s.failed}" for s in standings if s.failed]
    if failed:
        raise HostFailed("; ".join(failed) + ". Mend that, then call the same command")


def _collect(
    out: Path, campaign: spec.Campaign, target: spec.Target, split: Split, inventory: Path, todo: list[Standing]
) -> None:
    """Ship the campaign to hosts and start their sweeps."""
    if not todo:
        return
    # one archive each: Ansible copies folders file by file
    folder = Path(tempfile.mkdtemp(prefix=".fetch-", dir=out / HOSTS))
    is_local = target.server == "local"
    sources = _workloads(campaign) if is_local else tools.profile_folders()
    archive = _archive(sources, folder)
    variables = {
        "surefoot_group": split.group,
        "programs_surefootd": str(tools.find(tools.SUREFOOTD)),
        "programs_loadgen": str(tools.find(tools.LOADGEN)),
        "collect_job": split.job,
        "collect_campaign": str(campaign.path.resolve()),
        "collect_server": target.server,
        "collect_catalogue" if is_local else "collect_profiles": str(archive),
        "surefoot_parts": {s.host: s.part for s in split.shares},
    }
    try:
        heard = playbooks.play("collect.yml", inventory, [s.share.host for s in todo], variables)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for s in todo:
        h = heard[s.share.host]
        s.trouble = h.problem
        if h.stranger:
            s.failed = _STRANGER
        elif h.problem is None and h.results:
            s.collected, s.heard_s = True, time.monotonic()
        elif h.unreachable:
            s.trouble = f"cannot be reached, and is tried again: {h.problem}"
        else:
            s.refuses(h.problem or "the playbook did nothing there", "cannot be set up")


def _archive(sources: list[Path], folder: Path) -> Path:
    """One tar of some folders' contents, later ones over earlier ones; the same contents give the same bytes."""
    files = {path.relative_to(source).as_posix(): path for source in sources for path in source.rglob("*") if path.is_file()}
    made = folder / "files.tar"
    with tarfile.open(made, "w") as tar:
        for name, path in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = path.stat().st_size
            info.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as content:
                tar.addfile(info, content)
    return made.resolve()


def _fetch(out: Path, split: Split, inventory: Path, todo: list[Standing], report: Report, planned: int | None) -> bool:
    """Fetch what is finished. True if anything new came. What a host sends amiss is that host's failure alone."""
    if not todo:
        return False
    news = False
    folder = Path(tempfile.mkdtemp(prefix=".fetch-", dir=out / HOSTS))
    try:
        variables = {
            "surefoot_group": split.group,
            "fetch_job": split.job,
            "fetch_to": str(folder.resolve()),
            "surefoot_have": {s.share.host: s.mirror.have() for s in todo},
        }
        heard = playbooks.play(playbooks.FETCH, inventory, [s.share.host for s in todo], variables)
        told: dict[str, dict[str, Any]] = {}
        for s in todo:
            h = heard[s.share.host]
            s.trouble, s.more = h.problem, False
            if h.stranger:
                s.failed = _STRANGER
                continue
            if h.problem or _PACK_TASK not in h.results:
                # a target that was set up anew has no job: then it is shipped again, which does no harm elsewhere
                s.collected = h.unreachable
                if h.unreachable:
                    s.trouble = f"cannot be reached, and is tried again; its sweep goes on: {h.problem}"
                else:
                    s.refuses(h.problem or "the playbook did nothing there", "takes the campaign, and gives nothing back")
                continue
            s.heard_s, s.refusals = time.monotonic(), 0
            try:
                answer = intake.answer(str(h.results[_PACK_TASK].get("stdout")))
            except intake.Refused as e:
                s.nonsense, s.trouble = s.nonsense + 1, str(e)
                s.failed = s.trouble if s.nonsense >= _MOST_REFUSALS else None
                continue
            told[s.share.host] = answer.progress
            if answer.packed:
                try:
                    before = s.mirror.manifest()
                    new = s.mirror.take(folder / f"{s.share.host}.tar", answer.journal_from, planned)
                    # what brings nothing new brings no more either, whatever the host says
                    s.more = answer.more and new > 0
                    news |= new > 0 or s.mirror.manifest() != before
                except HostFailed as e:
                    s.failed = str(e).removeprefix(f"{s.share.host}: ")
            if answer.ended and not s.failed and not s.more and not s.mirror.complete:
                code, why = answer.ended
                s.idle += 1
                if code != 0:
                    s.failed = f"its sweep ended: {why}"
                elif s.idle >= _MOST_REFUSALS:
                    s.failed = "says that its sweep has ended, and has not all of its part"
            elif answer.message:
                s.trouble = answer.message
        _tell(todo, report, told)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return news


def _tell_troubles(standings: list[Standing], report: Report) -> None:
    """What is wrong with hosts, at once: also with those of which nothing was fetched yet."""
    for s in standings:
        if what := s.failed or s.trouble:
            report.trouble(s.share.host, what)


def _tell(standings: list[Standing], report: Report, told: dict[str, dict[str, Any]]) -> None:
    """A line for each host: what it has done, which may be ahead of what is here."""
    for s in standings:
        manifest = s.mirror.manifest()
        if manifest is None:
            continue
        report.start(s.share.host, manifest.cases.planned)
        line: dict[str, Any] = dict(told.get(s.share.host) or {})
        here = sum(manifest.cases.by_state().values())
        line["done"] = here if manifest.complete else max(here, int(line.get("done") or 0))
        if s.trouble or s.failed:
            line["trouble"] = s.failed or s.trouble
        report.update(s.share.host, line)
