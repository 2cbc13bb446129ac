"""Files that a command writes for its caller: what is in the way stays, unless the caller says otherwise (docs/exit-codes.md)."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from collection import campaign, card, cli, steps, tools
from collection.errors import DataSetError, InputError
from pipelines import eval_report
from pipelines.artefact import bundle
from pipelines.errors import BadInput
from pipelines.io import check_output, fsync_folder, make_folder, open_anew, write_bytes

ROOT = tools.repo_root()
PRECIOUS = b"precious\n"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))


def _link(path: Path) -> None:
    target = path.with_name("target")
    target.write_bytes(PRECIOUS)
    path.symlink_to(target)


NO_FILES: dict[str, Callable[[Path], None]] = {
    "is a folder and no plain file": Path.mkdir,
    "is a FIFO and no plain file": lambda path: os.mkfifo(path),
    "is a socket and no plain file": _socket,
    "is a link": _link,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, by short names: a socket's path is bounded."""
    monkeypatch.chdir(tmp_path)
    return Path()


@pytest.mark.parametrize("words", NO_FILES)
def test_what_is_no_plain_file_stays(words: str, here: Path) -> None:
    """A FIFO, socket, folder or link is refused by its kind, by every writer, whether or not a file may be overwritten."""
    path = here / "out"
    NO_FILES[words](path)
    before = path.lstat()
    for write in (
        lambda: check_output("--out", path),
        lambda: check_output("--out", path, overwrite=True),
        lambda: write_bytes(path, b"x"),
        lambda: open_anew(path),
    ):
        with pytest.raises(BadInput, match=words):
            write()
    assert path.lstat().st_ino == before.st_ino
    assert path.lstat().st_mode == before.st_mode
    if path.is_symlink():
        assert path.read_bytes() == PRECIOUS


@pytest.mark.parametrize("name", ["folder", "fifo", "link", "old", "input"])
def test_words_are_surefootds(name: str, tmp_path: Path) -> None:
    """The lab says of an output what surefootd says of it."""
    path, workload = tmp_path / name, tmp_path / "w.toml"
    workload.write_text('platform = "server-1"\nduration_s = 1\n[[lc]]\nservice = "moses"\nload = 0.1\n')
    overwrite = name != "old"
    match name:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "link":
            _link(path)
        case "old":
            path.write_bytes(PRECIOUS)
        case "input":
            os.link(workload, path)
    args = ["oracle", "--workload", workload, "--platform", "server-1", "--out", path, *(["--overwrite"] if overwrite else [])]
    done = subprocess.run([tools.find(tools.SUREFOOTD), *map(str, args)], capture_output=True, text=True, cwd=ROOT)
    with pytest.raises(BadInput) as e:
        check_output("--out", path, [("--workload", workload)], overwrite)
    assert (done.returncode, done.stderr) == (2, f"surefootd: {e.value}\n")


NOBODY = 65534


@pytest.fixture
def led(tmp_path: Path) -> tuple[Path, Path]:
    """A link of nobody's to a folder of root's, and that folder."""
    if os.geteuid() != 0:
        pytest.skip("needs root: run the tests as root")
    theirs, prize = tmp_path / "nd", tmp_path / "prize"
    theirs.mkdir()
    prize.mkdir()
    (theirs / "lnk").symlink_to(prize)
    for path in (theirs, theirs / "lnk"):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return theirs / "lnk", prize


def test_another_users_link_is_not_followed(led: tuple[Path, Path]) -> None:
    """Nothing is written through another user's link on the way, in surefootd's words; what lies behind it stays."""
    link, prize = led
    (prize / "old").write_bytes(PRECIOUS)
    words = f"{link}: the link belongs to user {NOBODY}. Give the path that it leads to"
    for path in (link / "x", link / "deep" / "x", link / ".." / "lnk" / "x", link / "old"):
        for write in (
            lambda path=path: check_output("--out", path, overwrite=True),
            lambda path=path: write_bytes(path, b"x"),
            lambda path=path: open_anew(path),
            lambda path=path: make_folder(path),
        ):
            with pytest.raises(BadInput) as e:
                write()
            assert str(e.value).endswith(words)
    workload = ROOT / "workloads/sets/demo/two-lc-steady.toml"
    args = ["oracle", "--workload", workload, "--platform", "server-1", "--out", link / "x"]
    done = subprocess.run([tools.find(tools.SUREFOOTD), *map(str, args)], capture_output=True, text=True, cwd=ROOT)
    with pytest.raises(BadInput) as e:
        check_output("--out", link / "x")
    assert (done.returncode, done.stderr) == (2, f"surefootd: {e.value}\n")
    loadgen = [tools.find(tools.LOADGEN), "--target", "127.0.0.1:1", "--rps", "1", "--duration", "1s", "--out", link / "x"]
    done = subprocess.run([*map(str, loadgen)], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, str(e.value) in done.stderr) == (2, True), done.stderr
    assert [p.name for p in prize.iterdir()] == ["old"]
    assert (prize / "old").read_bytes() == PRECIOUS


@pytest.mark.parametrize("command", ["eval-report", "harvest-report"])
def test_a_report_is_not_led_elsewhere(command: str, led: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """No folder is made behind another user's link."""
    link, prize = led
    with pytest.raises(SystemExit) as e:
        cli.main([command, str(link.parent), "--out", str(link / "rep")])
    assert e.value.code == 2
    assert f"{link}: the link belongs to user {NOBODY}" in capsys.readouterr().err
    assert list(prize.iterdir()) == []


def test_own_links_are_followed(tmp_path: Path) -> None:
    """This user's links lead where they lead; one that leads to itself is an error of the system, and names the file."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "lnk").symlink_to("a/../a/b")
    write_bytes(tmp_path / "lnk" / "x", PRECIOUS)
    assert (tmp_path / "a" / "b" / "x").read_bytes() == PRECIOUS
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop"):
        write_bytes(tmp_path / "loop" / "x", b"")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(NotADirectoryError):
        fsync_folder(tmp_path / "fifo")


def test_an_input_is_no_output(tmp_path: Path) -> None:
    """What a command reads is not overwritten by it, by whatever name, and in whatever folder of its inputs."""
    data = tmp_path / "data" / "deep"
    data.mkdir(parents=True)
    (data / "rows").write_bytes(PRECIOUS)
    os.link(data / "rows", tmp_path / "another-name")
    for path in (data / "rows", tmp_path / "another-name"):
        with pytest.raises(BadInput, match=r"is what this command reads \(--data .*\)\. Give another path"):
            check_output("--out", path, [("--data", tmp_path / "data")], overwrite=True)
    check_output("--out", tmp_path / "another", [("--data", tmp_path / "data")])


def test_a_log_is_made_anew(tmp_path: Path) -> None:
    """An older log is taken away, not emptied: a second name of it keeps what it said."""
    log = tmp_path / "x.log"
    log.write_bytes(PRECIOUS)
    os.link(log, tmp_path / "kept")
    with open_anew(log) as file:
        file.write("new")
    assert (log.read_text(), (tmp_path / "kept").read_bytes()) == ("new", PRECIOUS)


@pytest.mark.parametrize("name", [eval_report.PAGE, eval_report.FACTS])
def test_a_report_gives_way_when_told(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`eval-report` replaces neither page nor numbers unasked, and a link to another file never."""
    out = tmp_path / "report"
    out.mkdir()
    (out / name).write_bytes(PRECIOUS)
    args = ["eval-report", str(tmp_path / "none"), "--out", str(out)]
    with pytest.raises(SystemExit) as e:
        cli.main(args)
    said = capsys.readouterr().err
    assert e.value.code == 2
    assert f"--out {out / name}: is there already. Give --overwrite" in said
    with pytest.raises(SystemExit):
        cli.main([*args, "--overwrite"])
    assert "none/rows.parquet: is missing" in capsys.readouterr().err
    assert (out / name).read_bytes() == PRECIOUS
    (out / name).unlink()
    _link(out / name)
    with pytest.raises(SystemExit) as e:
        cli.main([*args, "--overwrite"])
    assert e.value.code == 2
    assert "is a link" in capsys.readouterr().err


def test_a_bundle_gives_way_when_told(tmp_path: Path) -> None:
    """`bundle build` replaces an earlier bundle and its tar only when told, anything else never, and no input of its own."""
    out, tar = tmp_path / "b", tmp_path / "b.tar"
    bundle.check_out(out)
    tar.write_bytes(PRECIOUS)
    with pytest.raises(BadInput, match=r"b\.tar: is there already"):
        bundle.check_out(out)
    bundle.check_out(out, overwrite=True)
    with pytest.raises(BadInput, match=r"reads \(--key "):
        bundle.check_out(out, [("--key", tar)], overwrite=True)
    tar.unlink()
    out.mkdir()
    bundle.check_out(out)
    (out / bundle.MANIFEST).write_bytes(PRECIOUS)
    with pytest.raises(BadInput, match=r"--out .*b: is there already. Give --overwrite"):
        bundle.check_out(out)
    bundle.check_out(out, overwrite=True)
    with pytest.raises(BadInput, match=r"reads \(--models "):
        bundle.check_out(out, [("--models", out / "models")], overwrite=True)
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(BadInput, match="is a link"):
        bundle.check_out(tmp_path / "link", overwrite=True)


def test_a_story_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """A demo or an onboarding goes on in a folder of its own kind, and mixes with nothing else."""
    out = tmp_path / "out"
    steps.holds_story(out, "demo", ())
    out.mkdir()
    steps.holds_story(out, "demo", ())
    (out / "thesis.tex").write_bytes(PRECIOUS)
    with pytest.raises(InputError, match=r"is not empty and holds no demo\. Give another folder"):
        steps.holds_story(out, "demo", ("demo.json",))
    (out / "demo.json").write_bytes(b"{}")
    steps.holds_story(out, "demo", ("demo.json",))
    with pytest.raises(InputError, match="is no folder"):
        steps.holds_story(out / "thesis.tex", "demo", ())


@pytest.mark.parametrize("what", ["link", "fifo", "hard link", "text"])
def test_a_lock_is_no_trap(what: str, tmp_path: Path) -> None:
    """A lock that leads elsewhere, or is none, is refused without waiting, and what it leads to is as it was."""
    victim, lock, folder = tmp_path / "victim", tmp_path / "d" / ".lock", tmp_path / "d"
    folder.mkdir()
    victim.write_bytes(b"1234")
    match what:
        case "link":
            lock.symlink_to(victim)
        case "fifo":
            os.mkfifo(lock)
        case "hard link":
            os.link(victim, lock)
        case "text":
            lock.write_bytes(PRECIOUS)
    assert not campaign.is_running(folder)
    with pytest.raises(InputError, match="no lock of ours"), campaign.locked(folder):
        pass
    assert victim.read_bytes() == b"1234"
    assert what != "text" or lock.read_bytes() == PRECIOUS
    # and one that a killed run left is no obstacle
    lock.unlink()
    lock.write_text("999999\n")
    with campaign.locked(folder):
        assert campaign.is_running(folder)
    assert lock.read_text() == f"{os.getpid()}\n"


def test_a_card_replaces_cards_alone(tmp_path: Path) -> None:
    """A file of the user's that has the card's name stays."""
    path = tmp_path / card.CARD
    path.write_bytes(PRECIOUS)
    with pytest.raises(DataSetError, match="no data card of ours, so it stays as it is"):
        card.write(tmp_path)
    assert path.read_bytes() == PRECIOUS
