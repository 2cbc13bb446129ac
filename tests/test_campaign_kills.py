"""Campaigns killed with -9 at random instants, again and again, end as one that was left alone.

Killed is what a user runs: `surefoot campaign run` with its sweep, on hosts (folders here) with theirs; `surefootd sweep` alone.
The instants are uniform over the time that an undisturbed run takes, so that start, planning, shards, journal, merge and card are
hit as often as they last. SUREFOOT_CAMPAIGN_KILLS is the number of kills (`make test-kills-campaign`: 200), else a slice.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from collection import campaign, dataset, tools, verify

KILLS = int(os.environ.get("SUREFOOT_CAMPAIGN_KILLS", "6"))
# everything here happens soon or never
DEADLINE_S = 120.0

CAMPAIGN = """\
name = "killed"
seed = 11
strategy = "STRATEGY"
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses", "xapian", "img-dnn"]
rps = "catalogue"
threads = [8, 16]
cores = "1..36"
ways = "1..20"
neighbours = { count = [0, 1], draws = 1 }
[sampling]
interval_ms = 1000
"""
FULL = KILLS >= 50
# kills of each trial, relative to each other
TRIALS = {
    "exhaustive": 3,
    "random": 2,
    "frontier": 2,
    "hosts": 3,
    "exhaustive, sweep alone": 6,
    "frontier, sweep alone": 4,
}
if not FULL:
    TRIALS = {"exhaustive": 2, "hosts": 1, "frontier, sweep alone": 3}
# a slice has fewer rows to write and to verify
_SAMPLES = 40 if FULL else 12
SPECS = {
    "exhaustive": CAMPAIGN.replace("[8, 16]", "[8]") + f"samples = {_SAMPLES}\n",
    "random": CAMPAIGN + f"samples = {_SAMPLES}\nrepeats = 3\n[random]\ncells = 7000\n",
    # each chain of planes is a shard: 3 services, alone and with four draws
    "frontier": CAMPAIGN.replace("[8, 16]", '"1..36 step 5"').replace("draws = 1", "draws = 4") + "samples = 20\nrepeats = 3\n",
    "hosts": CAMPAIGN.replace('virtual = ["server-1"]', 'hosts = "lab"\nserver = "virtual:server-1"').replace("[8, 16]", "[8]")
    + f"samples = {_SAMPLES}\n",
}
# the hosts of test_hosts_campaign in place of the playbooks, everything else as the command has it
ON_HOSTS = """\
import sys
from pathlib import Path
import pytest
from test_hosts_campaign import Hosts
from collection import cli
Hosts(Path(sys.argv[1])).stand_in(pytest.MonkeyPatch())
cli.main(sys.argv[2:])
"""


class Trial:
    """A campaign, its undisturbed run, and runs to be killed."""

    def __init__(self, root: Path, name: str, request: pytest.FixtureRequest) -> None:
        self.root, self.name = root, name
        self.newest: int | None = None
        request.addfinalizer(self.end)
        kind, _, alone = name.partition(", ")
        self.alone, self.on_hosts = alone != "", kind == "hosts"
        self.target = "lab" if self.on_hosts else "server-1"
        self.file = root / "campaign.toml"
        self.file.write_text(SPECS[kind].replace("STRATEGY", "exhaustive" if self.on_hosts else kind), "utf-8")
        self.plan = None if self.on_hosts else _plan(self.file)
        self.whole = root / "whole"
        self.whole_s = self._undisturbed_s(self.whole, alone=False)
        self.contents = contents(self.whole)
        if self.alone:
            out = root / "alone"
            self.prepare(out)
            self.whole_s = self._undisturbed_s(out, alone=True)
            check_same(self, out)

    def _undisturbed_s(self, out: Path, alone: bool) -> float:
        start = time.monotonic()
        assert self.start(out, alone).wait(DEADLINE_S) == 0, self.said(out)
        return time.monotonic() - start

    def prepare(self, out: Path) -> None:
        """For a sweep alone: the folder of a campaign in which nothing was measured yet."""
        if self.alone:
            shutil.copytree(self.whole, out, ignore=lambda folder, names: names if Path(folder).name == self.target else [])

    def start(self, out: Path, alone: bool, threads: int = 2) -> subprocess.Popen[bytes]:
        """A run, leader of a session of its own. threads: of its sweeps."""
        env = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
        command: list[str | Path] = [sys.executable, "-m", "collection.cli", "campaign", "run", self.file, "--out", out]
        if alone:
            command = [tools.find(tools.SUREFOOTD), "sweep", self.file, "--server", "virtual:server-1"]
            command += ["--out", out / self.target, "--resume"]
        elif self.on_hosts:
            command[1:3] = ["-c", ON_HOSTS, self.jobs(out)]
            command += ["--inventory", self.root]
            env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [env.get("PYTHONPATH")])])
        with self._log(out).open("wb") as log:
            run = subprocess.Popen(
                list(map(str, command)), stdout=subprocess.DEVNULL, stderr=log, env=env, start_new_session=True
            )
        self.newest = run.pid
        return run

    def end(self) -> None:
        """Leave nobody behind, however the test ends."""
        for pid in processes(self.newest) if self.newest else ():
            _kill(pid)

    def jobs(self, out: Path) -> Path:
        """The hosts' folders."""
        return self.root / f"jobs-{out.name}"

    def _log(self, out: Path) -> Path:
        return self.root / f"{out.name}.stderr"

    def said(self, out: Path) -> str:
        """What the newest run on `out` wrote to stderr."""
        return self._log(out).read_text("utf-8")

    def remove(self, out: Path) -> None:
        """What was made on `out` and of its hosts."""
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(self.jobs(out), ignore_errors=True)


def _plan(file: Path) -> dict[str, Any]:
    """What is to be measured, without guesses of time and disk."""
    plan = campaign.plan(file)
    guessed = {"estimated_duration_s", "estimated_disk_bytes"}
    return {
        **{k: v for k, v in plan.items() if k != "file"},
        "targets": [{k: v for k, v in t.items() if k not in guessed} for t in plan["targets"]],
    }


def processes(session: int) -> dict[int, list[str]]:
    """Living processes of a session, with their arguments."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, _, its = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its) == session and state != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_text().split("\0")[:-1]
        except OSError:
            pass  # it ended meanwhile
    return found


def _is_engine(args: list[str]) -> bool:
    return "sweep" in args[1:2]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it ended meanwhile
        os.kill(pid, signal.SIGKILL)


def kill(run: subprocess.Popen[bytes], what: str) -> tuple[str, dict[int, list[str]]]:
    """Kill the tree, the controller or the engine; what it was in the end, and what was alive."""
    alive = processes(run.pid)
    engines = [pid for pid, args in alive.items() if _is_engine(args)]
    if what == "engine" and not engines:
        what = "tree"
    victims = {"tree": list(alive), "controller": [run.pid], "engine": engines}[what]
    for pid in victims:
        _kill(pid)
    if what == "tree":
        # a child that was being started just then
        _until("the tree ends", lambda: not [_kill(pid) for pid in processes(run.pid)])
    return what, alive


def _until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {DEADLINE_S} s"
        time.sleep(0.001)


def journal(folder: Path) -> tuple[int, set[int], bool]:
    """Cases that the whole lines of a journal stand for, their shards with rows, and whether a line is torn."""
    try:
        *lines, rest = (folder / dataset.JOURNAL).read_bytes().split(b"\n")
    except FileNotFoundError:
        return 0, set(), False
    told = [json.loads(line) for line in lines]
    return sum(line.get("cases", 1) for line in told), {line["shard"] for line in told if line["rows"]}, rest != b""


def phase(trial: Trial, run: int, out: Path, alive: dict[int, list[str]], what: str, before: int) -> str:
    """What the run was doing when it was killed, from who was alive and what is on disk. before: cases done when it started."""
    target = out / trial.target
    engines = [args for args in alive.values() if _is_engine(args)]
    if any("--plan" in args for args in engines):
        return "planning"
    holder = out / ".lock"
    if not engines and not (holder.exists() and holder.read_text().strip() == str(run)):
        return "start of the interpreter"
    if trial.on_hosts:
        if engines:
            return "hosts at work"
        if list(out.glob("hosts/.fetch-*")):
            return "fetching"
        if list(out.glob("hosts/*/manifest.json")) and not _is_complete(target):
            return "merging"
    elif engines and what == "controller":
        return "sweep goes on to its stop"
    elif engines:
        done, known, torn = journal(target)
        shards = {int(p.stem[5:]) for p in target.glob("shards/part-*.parquet")}
        if list(target.glob("shards/*.tmp")):
            return "writing a shard"
        if shards - known:
            return "between shard and journal"
        if torn:
            return "writing the journal"
        if (target / "manifest.json.tmp").exists():
            return "writing the manifest"
        return "measuring" if done > before else "looking back"
    return "summing up, card" if _is_complete(target) else "before the sweep"


def _is_complete(target: Path) -> bool:
    try:
        return bool(json.loads((target / dataset.MANIFEST).read_bytes())["complete"])
    except FileNotFoundError:
        return False


def check_status(trial: Trial, out: Path, what: str, before: int | None) -> int | None:
    """`surefoot campaign status` right after a kill: adds up, agrees with the journal, has lost nothing.

    Returns: cases done; None if there is no campaign yet.
    """
    command = [sys.executable, "-m", "collection.cli", "campaign", "status", str(out), "--json"]
    at_least = journal(out / trial.target)[0]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode != 0:
        assert before is None, f"status worked before: {done.stderr}"
        assert not (out / dataset.MANIFEST).exists(), done.stderr
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        # what it says to do can be done
        advised = re.search(r"surefoot campaign run (\S+)", done.stderr)
        assert advised, done.stderr
        assert advised[1] == "CAMPAIGN.toml" or Path(advised[1]).exists(), done.stderr
        return None
    state = json.loads(done.stdout)
    cases = state["cases"]
    assert min(cases.values()) >= 0, cases
    assert sum(cases[s] for s in dataset.STATES) + cases["pending"] == cases["planned"], cases
    now = int(cases["planned"] - cases["pending"])
    assert now >= (before or 0), f"done was {before}, is {now}"
    # a sweep whose controller was killed may still have shards to write
    assert now == at_least or (what == "controller" and now > at_least), f"done {now}, journal {at_least}"
    assert state["state"] == ("stopped" if cases["pending"] else "done"), state
    return now


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a campaign's folder, without the clock and names drawn at random."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"):
        name, data = path.relative_to(folder).as_posix(), path.read_bytes()
        if name == "manifest.json":
            value = json.loads(data)
            assert value.pop("started_utc") <= value.pop("ended_utc")
            data = json.dumps(value).encode()
        elif name == "hosts/hosts.json":
            value = json.loads(data)
            assert value.pop("job")
            data = json.dumps(value).encode()
        elif name == "data-card.md":
            data = re.sub(rb"\nMeasured: .*\n", b"\n", data)
        elif name == "progress.json":
            data = b""
        found[name] = data
    return found


def check_same(trial: Trial, out: Path) -> None:
    """A data set that is the undisturbed one: files, rows, journal, manifests, plan."""
    got, want = contents(out), trial.contents
    assert sorted(got) == sorted(want)
    assert [name for name in want if got[name] != want[name]] == []
    assert verify.verify(out).findings == []
    if trial.plan is not None:
        assert _plan(out / "campaign.toml") == trial.plan


def shares() -> list[tuple[str, int]]:
    """Kills of each trial, KILLS together."""
    counts = {name: KILLS * weight // sum(TRIALS.values()) for name, weight in TRIALS.items()}
    counts[max(TRIALS, key=lambda name: TRIALS[name])] += KILLS - sum(counts.values())
    return list(counts.items())


@pytest.mark.parametrize(("name", "kills"), shares())
def test_killed_at_any_instant_it_goes_on(name: str, kills: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """No case is lost or doubled; rows, plan and seeds are the undisturbed ones to the last byte; no file is left over."""
    trial = Trial(tmp_path, name, request)
    want = trial.contents
    told = [json.loads(line) for line in want[f"{trial.target}/journal.jsonl"].splitlines()]
    manifest = dataset.read_manifest(trial.whole / trial.target)
    assert len({line["case_id"] for line in told}) == len(told)
    assert sum(line.get("cases", 1) for line in told) == manifest.cases.planned
    assert len(manifest.shards) >= 6

    rng = random.Random(f"kills of {name}")
    hits: Counter[str] = Counter()
    victims: Counter[str] = Counter()
    out, whole_runs = tmp_path / "out", 0
    while hits.total() < kills:
        before: int | None = None
        trial.prepare(out)
        while True:
            # after the last kill the run may end
            moment_s = rng.uniform(0.0, trial.whole_s) if hits.total() < kills else DEADLINE_S
            started, fresh = time.monotonic(), not (out / trial.target).exists()
            run = trial.start(out, trial.alone, threads=rng.choice([1, 2]))
            try:
                # the timed wait that this test is about: until the instant, or the end of the run
                code = run.wait(moment_s)
                if fresh:  # an undisturbed run, too, and of this hour: the machine may be quieter than it was
                    trial.whole_s = time.monotonic() - started
            except subprocess.TimeoutExpired:
                one = trial.alone or trial.on_hosts or hits.total() >= kills
                what, alive = kill(run, "tree" if one else rng.choice(["tree", "tree", "controller", "engine"]))
                assert hits.total() < kills, "the run does not end"
                code = run.wait(DEADLINE_S)
                if code != 0:
                    want_code, want_word = (1, "ended by SIGKILL") if what == "engine" else (-signal.SIGKILL, "")
                    assert code == want_code, trial.said(out)
                    assert want_word in trial.said(out), trial.said(out)
                    assert "Traceback" not in trial.said(out)
                    hits[phase(trial, run.pid, out, alive, what, before or 0)] += 1
                    victims[what] += 1
                    before = check_status(trial, out, what, before)
                    continue
            assert code == 0, trial.said(out)
            break
        whole_runs += 1
        check_same(trial, out)
        trial.remove(out)
        print(f"{name}: {hits.total()} of {kills} kills, {whole_runs} campaigns", flush=True)
    print(
        f"{name}: {hits.total()} kills of a campaign that takes {trial.whole_s:.1f} s ({manifest.cases.planned:,} cases, "
        f"{len(manifest.shards)} shards), over {whole_runs} campaigns, all ended as the undisturbed one"
    )
    print("  killed: " + ", ".join(f"{what} {n}" for what, n in victims.most_common()))
    print("  while: " + ", ".join(f"{where} {n}" for where, n in hits.most_common()))
