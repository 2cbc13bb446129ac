"""The command line: help everywhere, exit codes, one line an error, tracebacks on request only."""

from __future__ import annotations

import errno
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

import collection
from collection import campaign, cli, console, errors, standing
from collection.commands import surefoot
from pipelines.io import write_bytes


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "collection.cli", *args], capture_output=True, text=True)


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


def test_the_commands_are_those_of_the_contract() -> None:
    """Commands that users rely on are there, and no other."""
    leaves = {" ".join(c) for c in commands(surefoot)} - {"campaign", "bundle", "workloads"}
    campaigns = {f"campaign {c}" for c in ("card", "plan", "run", "status", "verify", "worlds")}
    assert leaves == campaigns | {f"bundle {c}" for c in ("build", "inspect", "verify", "worlds")} | {
        "demo",
        "learn-c",
        "onboard",
        "tune",
        "eval-report",
        "harvest-report",
        "workloads generate",
    }


@pytest.mark.parametrize("command", [(), *commands(surefoot)])
def test_every_command_has_help(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """--help works everywhere and describes every option."""
    cli.main([*command, "--help"])
    text = capsys.readouterr().out
    assert text.startswith("Usage: surefoot")


def test_wrong_usage_ends_with_2() -> None:
    """An unknown command or a missing option is bad input."""
    for args in (["campain"], ["campaign", "run", "x.toml"], ["campaign", "status"], ["bundle", "build"]):
        done = run(*args)
        assert done.returncode == 2, args
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr


def test_errors_are_one_line_and_debug_shows_more(tmp_path: Path) -> None:
    """A user's error has no traceback, unless asked for."""
    missing = str(tmp_path / "none")
    done = run("campaign", "status", missing)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {missing}: no such folder")
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" in run("--debug", "campaign", "status", missing).stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["build", "--data", "none", "--models", "m", "--out", "b"], "none/manifest.json: the data set is missing"),
        (["verify", "none"], "none: no such bundle"),
        (["inspect", "none"], "none: no such bundle"),
        (["verify", "bundle", "--trust", "junk"], "junk: is no Ed25519 public key in PEM form"),
        (["verify", "data", "--trust", "key.pem"], "manifest.sig: not a bundle: no manifest.sig in data"),
        (["verify", "junk", "--trust", "key.pem"], "manifest.json: tar header at byte 0 is damaged"),
        (["verify", "bundle", "--trust", "key.pem"], "platform.toml: "),
        (["inspect", "bundle"], "manifest.sig: "),
    ],
)
def test_what_is_wrong_with_a_bundle_is_one_line(
    command: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors of the pipeline end like those of campaigns: one line, exit code 2, no traceback."""
    vectors = Path(__file__).parent / "vectors"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUREFOOT_KEYS", str(tmp_path / "keys"))
    shutil.copytree(vectors / "bundle-small", "bundle")
    Path("bundle/platform.toml").write_text("changed = true\n")
    Path("data/server-2/shards").mkdir(parents=True)
    Path("junk").write_text("no key, no tar\n")
    shutil.copy(next((vectors / "keys" / "trusted").glob("*.pub.pem")), "key.pem")
    with pytest.raises(SystemExit) as e:
        cli.main(["bundle", *command])
    said = capsys.readouterr().err
    assert e.value.code == 2
    assert said.startswith(f"error: {says}")
    assert len(said.splitlines()) == 1


def _shared_out(folder: Path) -> None:
    """A campaign over two hosts, one of which was fetched in part."""

    def shard(number: int, rows: int) -> dict[str, Any]:
        return {"file": f"shards/part-{number:05}.parquet", "rows": rows, "sha256": "0" * 64}

    def manifest(at: Path, **more: Any) -> None:
        at.mkdir(parents=True, exist_ok=True)
        (at / "manifest.json").write_text(json.dumps({"schema_version": 1, "campaign": "c", **more}), "utf-8")

    states = dict.fromkeys(("measured", "infeasible", "client_limited", "overloaded", "failed"), 0)
    of_lab = {**states, "planned": 5, "measured": 2}
    manifest(folder / "lab", complete=False, feature_set="full", shards=[shard(1, 2)], cases=of_lab)
    worth = standing.Worth({"usable": 2}, standing.digest(folder / "lab")).as_json()
    manifest(folder, targets=[{"name": "lab", "folder": "lab", "cases": {"planned": 5}, "worth": worth}])
    of_b = {**states, "planned": 3, "measured": 3}
    manifest(folder / "hosts" / "b", complete=True, feature_set="full", shards=[shard(0, 2), shard(1, 1)], cases=of_b)
    split = {"schema_version": 1, "job": "c-1", "group": "lab", "hosts": ["a", "b"]}
    (folder / "hosts" / "hosts.json").write_text(json.dumps(split), "utf-8")
    (folder / "lab" / "shards").mkdir()
    (folder / "lab" / "shards" / "part-00001.parquet").write_bytes(b"")
    lines = [{"case_id": str(n), "state": "measured", "shard": 1, "rows": 1} for n in range(2)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (folder / "lab" / "journal.jsonl").write_text(text, "utf-8")


def test_status_imports_nothing_heavy(tmp_path: Path) -> None:
    """The command takes the time that Python takes to start: no library beside the standard one, and little of that."""
    _shared_out(tmp_path)
    program = (
        "import sys; from collection import cli; "
        "cli.main(['campaign', 'status', sys.argv[1], '--json']); "
        "print(sorted({m.split('.')[0] for m in sys.modules} & set(sys.argv[2:])), file=sys.stderr)"
    )
    heavy = [
        "click",
        "rich",
        "polars",
        "numpy",
        "pydantic",
        "torch",
        "matplotlib",
        "typing",
        "dataclasses",
        "subprocess",
        "tempfile",
    ]
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path), *heavy], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "[]"
    state = json.loads(done.stdout)
    assert state["state"] == "stopped"
    assert (state["cases"]["measured"], state["cases"]["pending"], state["usable_rows"]) == (2, 3, 2)
    # b's second shard is not here yet; nothing was heard of a
    assert state["targets"][0]["hosts"] == [
        {"host": "a", "part": "1/2", "done": 0, "planned": None, "complete": False, "shards": 0, "shards_there": 0},
        {"host": "b", "part": "2/2", "done": 3, "planned": 3, "complete": False, "shards": 1, "shards_there": 2},
    ]


def test_status_says_the_same_both_ways(tmp_path: Path) -> None:
    """The quick answer, and that of the command line's own parser, with its options in another place."""
    manifest = {"schema_version": 1, "campaign": "c", "targets": []}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    for more in ([], ["--json"]):
        quick = run("campaign", "status", str(tmp_path), *more)
        parsed = run("campaign", "status", *more, "--", str(tmp_path))
        assert (quick.returncode, quick.stderr) == (0, "")
        assert quick.stdout == parsed.stdout != ""


def test_a_folder_without_permission_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the operating system refuses is told with the path, without a traceback."""

    def refuse(*_args: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "manifest.json"))

    monkeypatch.setattr("collection.standing.status", refuse)
    with pytest.raises(SystemExit) as e:
        cli.main(["campaign", "status", str(tmp_path)])
    assert e.value.code == 1
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'manifest.json'}: Permission denied. Check owner and mode of that path, or give another\n"
    )


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/a/b"), "/a/b: No space left on device. Free some space"),
        (OSError(errno.EROFS, "Read-only file system", Path("/a")), "/a: Read-only file system. Give a path elsewhere"),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "/proc/x"),
            "/proc/x: No such file or directory. Check the",
        ),
        (
            NotADirectoryError(errno.ENOTDIR, "Not a directory", b"/a/b"),
            "/a/b: Not a directory. Check the path: a part of it is a",
        ),
        (OSError("odd"), "odd"),
    ],
)
def test_what_the_system_refuses_has_path_and_remedy(error: OSError, says: str) -> None:
    """Each refusal that a user can do something about says what."""
    assert errors.told(error).startswith(says)


def test_an_estimate_reads_as_a_sentence() -> None:
    """What is below a second is not about anything, and what is unknown says so."""
    said = [standing.about(s) for s in (None, 0.2, 3.4, 130)]
    assert said == ["an unknown time", "under 1 s", "about 3 s", "about 2 min 10 s"]


def test_a_full_disk_is_told_with_the_file_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write names no file by itself; a folder that took nothing is gone again, one that was there stays."""

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "there").mkdir()
    with monkeypatch.context() as m:
        m.setattr("collection.campaign.os.write", full)
        for folder in (tmp_path / "new" / "deep", tmp_path / "there"):
            with pytest.raises(OSError, match="No space left") as e, campaign.working_in(folder):
                pass
            assert e.value.filename == str(folder / ".lock")
    assert [p.name for p in tmp_path.iterdir()] == ["there"]
    with monkeypatch.context() as m:
        m.setattr("pipelines.io.os.fsync", lambda _fd: full(0, b""))
        with pytest.raises(OSError, match="No space left") as e:
            write_bytes(tmp_path / "file", b"x")
    assert e.value.filename == str(tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_numbers_agree_with_their_nouns() -> None:
    """One shard, two shards."""
    assert [console.counted(n, "shard") for n in (0, 1, 2022)] == ["0 shards", "1 shard", "2,022 shards"]


def test_every_error_is_exported_and_has_an_exit_code() -> None:
    """The package's list of names is honest; input errors end with 2, the others with 1."""
    tree = {n: c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, errors.SurefootError)}
    assert set(collection.__all__) == set(tree)
    for error in tree.values():
        assert error.exit_code == (2 if issubclass(error, errors.InputError) else 1)
    assert errors.ToolFailed("surefootd", "bad", 2).exit_code == 2
    assert errors.ToolFailed("surefootd", "bad", -9).exit_code == 1


def test_brackets_in_reasons_are_printed() -> None:
    """What a campaign's data say is no markup: a reason in brackets stands there whole."""
    out = Console(record=True, width=200)
    why = "memcached [red]: too few answers [a: 1 x 2022 samples]"
    target = {
        "target": "local",
        "cases": {
            "planned": 1,
            "measured": 0,
            "infeasible": 0,
            "client-limited": 0,
            "overloaded": 0,
            "failed": 1,
            "skipped": 0,
            "pending": 0,
        },
        "rows": 0,
        "rows_by_worth": {"usable": 0},
        "shards": 0,
        "rate_per_s": None,
        "eta_s": None,
        "failed": [{"cases": 1, "reason": why, "examples": ["c[x]"]}],
        "hosts": [],
        "marks": {"disturbed": 1, "unsettled": 0},
    }
    console.status(out, {"campaign": "c", "folder": "data[a]", "state": "complete", "targets": [target]})
    text = out.export_text()
    for said in (why, "cases c[x]", "in data[a]", "1 case disturbed"):
        assert said in text


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def log_of(progress: Callable[[console.Progress, Clock], None]) -> list[str]:
    """What a progress wrote where there is no terminal."""
    out, clock = io.StringIO(), Clock()
    with console.Progress(Console(file=out, width=200), clock) as bar:
        progress(bar, clock)
    return out.getvalue().splitlines()


def test_a_log_gets_a_line_now_and_then() -> None:
    """Without a terminal a target's first and last line come, and one in ten seconds between, with the usable rows so far."""

    def run(bar: console.Progress, clock: Clock) -> None:
        bar.start("server-1", 1000)
        for done in range(0, 1001, 10):
            clock.now_s = done / 40
            bar.update(
                "server-1",
                {"done": done, "rate_per_s": 40.0, "eta_s": (1000 - done) / 40, "usable_rows": 2 * done, "rows": 3 * done},
            )

    # 1,000 cases at 40 a second: the plan, lines at 10 and 20 s, the end
    assert log_of(run) == [
        "server-1: 1,000 cases planned",
        "server-1: 400 of 1,000 cases, 800 of 1,200 rows usable, 40 cases/s, 15 s left",
        "server-1: 800 of 1,000 cases, 1,600 of 2,400 rows usable, 40 cases/s, 5 s left",
        "server-1: 1,000 of 1,000 cases, 2,000 of 3,000 rows usable, 40 cases/s",
    ]


def test_what_is_wrong_with_a_host_is_said_at_once_and_once() -> None:
    """Trouble needs no progress line of the host; the same is not said again until the host was well in between."""

    def run(bar: console.Progress, _clock: Clock) -> None:
        for _ in range(3):
            bar.trouble("node-2", "cannot be reached: no route to host")
        bar.start("node-2", 5)
        bar.update("node-2", {"done": 0})
        bar.trouble("node-2", "cannot be reached: no route to host")
        bar.update("node-2", {"done": 0, "trouble": "its sweep ended: no [bold]image[/]\x1b[2J"})

    said = log_of(run)
    assert [line for line in said if "route" in line] == 2 * ["node-2: cannot be reached: no route to host"]
    assert [line for line in said if "image" in line] == ["node-2: its sweep ended: no [bold]image[/]\\u{1b}[2J"]


def test_many_hosts_do_not_fill_a_log() -> None:
    """Three hundred hosts write three hundred lines in five minutes, not in ten seconds."""

    def run(bar: console.Progress, clock: Clock) -> None:
        for host in range(300):
            bar.start(f"node-{host}", 1000)
        for second in range(100):
            clock.now_s = float(second)
            for host in range(300):
                bar.update(f"node-{host}", {"done": second})

    # the plans, and the last lines
    assert len(log_of(run)) == 300 + 300


def test_run_writes_lines_into_a_pipe(tmp_path: Path) -> None:
    """`campaign run` whose stderr is no terminal says what is planned and how it ended, and stdout is the state alone."""
    file = tmp_path / "c.toml"
    sweep = '[sweep]\nservices = ["moses"]\nrps = [600]\nthreads = [8]\ncores = [8]\nways = [6]\n[sampling]\nsamples = 2\n'
    file.write_text(f'name = "c"\n[targets]\nvirtual = ["server-1"]\n{sweep}', "utf-8")
    done = run("campaign", "run", str(file), "--out", str(tmp_path / "out"))
    assert done.returncode == 0
    first, *_, last = done.stderr.splitlines()
    assert first == "server-1: 1 case planned"
    assert last.startswith("server-1: 1 of 1 cases, ")
    assert "of 2 rows usable" in last
    assert done.stdout.startswith(f"c in {tmp_path / 'out'}: done")
