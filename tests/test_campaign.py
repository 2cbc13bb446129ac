"""Campaigns on the virtual server: plan, run, status, and what bad input gets to hear."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from collection import campaign, console, dataset, spec, verify
from collection.errors import Busy, CampaignError, DataSetError, ToolFailed, ToolMissing

SMALL = """\
name = "small"
seed = 7
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses", "xapian"]
rps = "catalogue"
threads = [8]
cores = "1..8"
ways = "1..20 step 4"
neighbours = { count = [0, 1], draws = 1 }
[sampling]
interval_ms = 1000
samples = 2
"""

# enough work that a kill, or a signal at its first journal line, falls into the middle of it, on a busy machine too
LARGE = SMALL.replace('"1..8"', '"1..36"').replace("1..20 step 4", "1..20").replace("samples = 2", "samples = 160")


def write(folder: Path, text: str, name: str = "campaign.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(text, "utf-8")
    return file


def surefoot(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "collection.cli", *map(str, args)], capture_output=True, text=True)


def all_rows(folder: Path) -> pl.DataFrame:
    """Every row of a target, in an order that does not depend on the order of writing."""
    return pl.concat([pl.read_parquet(p) for p in sorted((folder / "shards").glob("*.parquet"))]).sort("case_id", "t_ms")


def shard_bytes(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder / "shards").iterdir()}


def journal_lines(folder: Path) -> list[str]:
    return sorted((folder / "journal.jsonl").read_text("utf-8").splitlines())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The large campaign, run without disturbance."""
    root = tmp_path_factory.mktemp("undisturbed")
    campaign.run(write(root, LARGE), root / "out")
    return root / "out"


def test_plan_counts_and_changes_nothing(tmp_path: Path) -> None:
    """A plan counts the cases of each target and leaves no trace."""
    file = write(tmp_path, SMALL)
    plan = campaign.plan(file)
    # 2 services x 5 RPS levels x (alone + 1 draw) x 8 cores x 5 ways
    assert plan["cases"] == 2 * 5 * 2 * 8 * 5
    target = plan["targets"][0]
    assert target["target"] == "server-1"
    assert target["to_measure"] + target["infeasible"]["cases"] == plan["cases"]
    assert target["estimated_duration_s"] > 0
    assert target["estimated_disk_bytes"] > 0
    assert [p.name for p in tmp_path.iterdir()] == ["campaign.toml"]


def test_a_plan_says_what_is_not_alike(tmp_path: Path) -> None:
    """A plan says of its target what a campaign takes for alike and is not; a virtual server has nothing of the kind."""
    plan = campaign.plan(write(tmp_path, SMALL))
    assert plan["targets"][0]["warnings"] == []
    plan["targets"][0]["warnings"] = ["cores are of several kinds (performance: 0-7; efficiency: 8-15)"]
    out = io.StringIO()
    console.plan(Console(file=out, width=200), plan)
    assert "warning: cores are of several kinds (performance: 0-7; efficiency: 8-15)" in out.getvalue()


def test_run_ends_with_every_case_in_one_state(tmp_path: Path) -> None:
    """After a run the states add up to the plan, in the state, in the journal and in the manifests."""
    state = campaign.run(write(tmp_path, SMALL), tmp_path / "out")
    cases = state["cases"]
    assert state["state"] == "done"
    assert cases["pending"] == 0
    assert sum(cases[s] for s in dataset.STATES) == cases["planned"] == 800
    assert cases["infeasible"] > 0, "the drawn neighbours must leave some allocations no room"
    manifest = dataset.read_manifest(tmp_path / "out" / "server-1")
    assert manifest.complete
    assert manifest.rows == 2 * (cases["measured"] + cases["overloaded"])
    summary = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))
    assert summary["targets"][0]["cases"] == cases
    assert verify.verify(tmp_path / "out").ok


def test_marks_are_shown_and_change_nothing_else(tmp_path: Path) -> None:
    """Cases that the host disturbed are counted by `status`; their lines and rows are as good as others to `verify`."""
    out = tmp_path / "out"
    before = campaign.run(write(tmp_path, SMALL), out)["cases"]
    journal, manifest = out / "server-1/journal.jsonl", out / "server-1/manifest.json"
    lines = [json.loads(line) for line in journal.read_text("utf-8").splitlines()]
    for line in lines[:3]:
        line["disturbed"] = "steal time of the managed CPUs 4.0 % (limit 2.0 %)"
    journal.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), "utf-8")
    value = json.loads(manifest.read_text("utf-8"))
    value["journal_bytes"] = journal.stat().st_size
    value["cases"]["disturbed"] = 3
    manifest.write_text(json.dumps(value), "utf-8")
    state = campaign.status(out)
    assert state["cases"] == before
    assert state["targets"][0]["marks"] == {"disturbed": 3, "unsettled": 0}
    assert "3 cases disturbed" in surefoot("campaign", "status", out).stdout
    assert verify.verify(out).ok


def test_several_virtual_targets_each_get_a_folder(tmp_path: Path) -> None:
    """Targets run one after another, each into its own folder, and are summed up."""
    text = SMALL.replace('["server-1"]', '["server-1", "server-3"]').replace("1..20 step 4", "2..11 step 3")
    state = campaign.run(write(tmp_path, text), tmp_path / "out")
    assert [t["target"] for t in state["targets"]] == ["server-1", "server-3"]
    assert state["cases"]["planned"] == sum(t["cases"]["planned"] for t in state["targets"])
    for name in ("server-1", "server-3"):
        assert dataset.read_manifest(tmp_path / "out" / name).platform.name == name


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    """A second run on a finished folder leaves shards and journal as they were."""
    file = write(tmp_path, SMALL)
    campaign.run(file, tmp_path / "out")
    target = tmp_path / "out" / "server-1"
    before, lines = shard_bytes(target), journal_lines(target)
    times = {p: p.stat().st_mtime_ns for p in (target / "shards").iterdir()}
    campaign.run(file, tmp_path / "out")
    assert shard_bytes(target) == before
    assert journal_lines(target) == lines
    assert {p: p.stat().st_mtime_ns for p in (target / "shards").iterdir()} == times


@pytest.mark.parametrize("after", ["before the first case", "in the middle"])
def test_what_a_killed_run_left_half_written_is_cleared_away(after: str, tmp_path: Path) -> None:
    """Temporary files of ours go when the run goes on; while one works here they are no finding. Others' files stay."""
    file, out = write(tmp_path, SMALL), tmp_path / "out"
    ours = [out / f".{name}.ab_c12x9.tmp" for name in ("campaign.toml", "manifest.json", "progress.json")]
    out.mkdir()
    if after == "in the middle":
        campaign.run(file, out)
        ours += [out / "server-1/manifest.json.tmp", out / "server-1/shards/part-00000.parquet.tmp"]
    for path in ours:
        path.write_bytes(b"half")
    if after == "in the middle":
        assert {f.file for f in verify.verify(out).findings} >= {str(path) for path in ours[:3]}
        with campaign.locked(out):
            assert not {f.file for f in verify.verify(out).findings} & {str(path) for path in ours[:3]}
    assert campaign.run(file, out)["state"] == "done"
    assert [path for path in ours if path.exists()] == []
    assert verify.verify(out).findings == []
    foreign = out / ".notes.txt.ab_c12x9.tmp"
    foreign.write_bytes(b"mine")
    campaign.run(file, out)
    assert [f.file for f in verify.verify(out).findings] == [str(foreign)]


def test_interrupt_is_clean_and_resumable(tmp_path: Path, undisturbed: Path) -> None:
    """Ctrl-C ends with exit code 130 and one line; status says `stopped`, adds up, and the next run finishes."""
    file, out = write(tmp_path, LARGE), tmp_path / "out"
    command = [sys.executable, "-m", "collection.cli", "campaign", "run", str(file), "--out", str(out)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    journal = out / "server-1" / "journal.jsonl"
    end = time.monotonic() + 60
    while not (journal.exists() and journal.stat().st_size) and time.monotonic() < end:
        time.sleep(0.002)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate()
    assert child.returncode == 130
    assert "Traceback" not in said
    state = campaign.status(out)
    assert state["state"] == "stopped"
    cases = state["cases"]
    assert sum(cases[s] for s in dataset.STATES) + cases["pending"] == cases["planned"]
    assert 0 < cases["pending"] < cases["planned"]
    result = verify.verify(out)
    assert [f.what.split(":")[0] for f in result.findings] == ["incomplete"]
    campaign.run(file, out)
    assert all_rows(out / "server-1").equals(all_rows(undisturbed / "server-1"))


def test_second_run_on_one_folder_is_refused(tmp_path: Path) -> None:
    """Two runs never work in one folder; the second is told who does."""
    file, out = write(tmp_path, SMALL), tmp_path / "out"
    out.mkdir()
    with campaign.locked(out):
        assert campaign.is_running(out)
        with pytest.raises(Busy, match=rf"works here already \(process {os.getpid()}\)"):
            campaign.run(file, out)
    assert not campaign.is_running(out)


@pytest.mark.parametrize("left", [[".lock"], [".lock", "campaign.toml"]])
def test_status_of_a_run_killed_in_its_first_instants(tmp_path: Path, left: list[str]) -> None:
    """There is nothing to show yet; the command that `status` names works."""
    file, out = write(tmp_path, SMALL), tmp_path / "out"
    out.mkdir()
    for name in left:
        (out / name).write_text(SMALL if name == "campaign.toml" else "", "utf-8")
    with pytest.raises(DataSetError) as e:
        campaign.status(out)
    told = str(e.value).rpartition("surefoot campaign run ")[2].split()
    assert told[1:] == ["--out", str(out)]
    assert campaign.run(file if told[0] == "CAMPAIGN.toml" else Path(told[0]), out)["state"] == "done"


def test_the_sweep_of_a_killed_run_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep whose controller was killed may take seconds to end; the same command, called at once, goes on all the same."""
    import fcntl

    file, target = write(tmp_path, SMALL), tmp_path / "out" / "server-1"
    campaign.run(file, tmp_path / "out")
    with (target / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                fcntl.flock(lock, fcntl.LOCK_UN)

        monkeypatch.setattr(campaign.time, "sleep", sleep)
        assert campaign.run(file, tmp_path / "out")["state"] == "done"
    assert len(waits) == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('"moses"', '"mosses"'), ["sweep.services", "mosses", 'Did you mean "moses"']),
        (('rps = "catalogue"', "rps = [-5]"), ["sweep.rps", "-5", "above 0"]),
        (('"1..8"', '"30..40"'), ["sweep.cores", "36"]),
        (("seed = 7", "seed = 7\nspeed = 9"), ["speed"]),
        (("[sampling]", "[sampling"), ["not valid TOML"]),
    ],
)
def test_bad_sweeps_name_file_field_and_remedy(change: tuple[str, str], says: list[str], tmp_path: Path) -> None:
    """A bad campaign file ends with exit code 2 and one line; no folder is made."""
    file = write(tmp_path, SMALL.replace(*change))
    done = surefoot("campaign", "run", file, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("error: ")
    for word in ["campaign.toml", *says]:
        assert word in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ('hosts = "lab rack 7"', "targets.hosts: 'lab rack 7' cannot be used. Give one group of the inventory"),
        ("", "[targets] is missing or empty"),
        ("virtual = []", "[targets] names no server"),
        ('virtual = "server-1"', "targets.virtual must be a list"),
        ('virtual = ["server-1", "server-1"]', "targets.virtual names server-1 twice"),
        ('virtual = ["../server-1"]', "is no platform's name"),
        ("local = 1", "targets.local must be true or false"),
        ("loacl = true", "targets.loacl is unknown"),
    ],
)
def test_bad_targets_are_refused(targets: str, says: str, tmp_path: Path) -> None:
    """Targets that do not work are refused with the field's name and those that do."""
    file = write(tmp_path, SMALL.replace('virtual = ["server-1"]', targets))
    with pytest.raises(CampaignError) as e:
        spec.load(file)
    assert says in str(e.value)
    assert str(file) in str(e.value)


def test_unknown_platform_is_refused_with_a_hint(tmp_path: Path) -> None:
    """The name of a platform that nobody knows gets the nearest one."""
    file = write(tmp_path, SMALL.replace("server-1", "sever-1"))
    with pytest.raises(ToolFailed, match=r'unknown platform.*"server-1"') as e:
        campaign.plan(file)
    assert e.value.exit_code == 2
    # in words of the file: `surefoot campaign` has no --server and no --profiles
    assert str(e.value).startswith(f"{file}: targets.virtual: sever-1: unknown platform")
    assert "SUREFOOT_PROFILES" in str(e.value)
    assert "--" not in str(e.value)


def test_a_folder_of_another_campaign_is_left_alone(tmp_path: Path) -> None:
    """Neither a folder with another campaign nor one with foreign files is written to."""
    file, out = write(tmp_path, SMALL), tmp_path / "out"
    campaign.run(file, out)
    other = write(tmp_path, SMALL.replace("seed = 7", "seed = 8"), "other.toml")
    with pytest.raises(CampaignError, match=r"holds campaign 'small'.*another --out"):
        campaign.run(other, out)
    foreign = tmp_path / "foreign"
    write(foreign, "mine", "notes.txt")
    with pytest.raises(CampaignError, match=r"is not empty and holds no campaign"):
        campaign.run(file, foreign)
    assert [p.name for p in foreign.iterdir()] == ["notes.txt"]


def test_no_such_file_or_folder(tmp_path: Path) -> None:
    """What is not there is named, with the way to get it."""
    with pytest.raises(CampaignError, match=r"no such campaign file"):
        campaign.plan(tmp_path / "none.toml")
    with pytest.raises(DataSetError, match=r"no such folder. Start one"):
        campaign.status(tmp_path / "none")


def test_missing_binary_says_make_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the node binary there is one clear error."""
    monkeypatch.setenv("SUREFOOTD", str(tmp_path / "none"))
    with pytest.raises(ToolMissing, match=r"make setup"):
        campaign.plan(write(tmp_path, SMALL))


@pytest.mark.skipif(os.geteuid() != 0, reason="fills a small disk of its own, which only root may mount")
def test_disk_full_is_told_and_can_be_resumed(tmp_path: Path) -> None:
    """A full disk ends the run with one line; with room again, the same command finishes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], capture_output=True, text=True)
    assert mounted.returncode == 0, mounted.stderr
    try:
        file = write(tmp_path, LARGE)
        done = surefoot("campaign", "run", file, "--out", disk / "out")
        assert done.returncode == 1
        assert "disk is full" in done.stderr or "No space left" in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()[-1:]) == 1
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        assert campaign.run(file, disk / "out")["state"] == "done"
        assert verify.verify(disk / "out").ok
    finally:
        subprocess.run(["umount", str(disk)], check=True)
