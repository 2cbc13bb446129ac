"""Commands that pages spell out: every one is a command that is there, with options that it has; those of ten minutes run."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from collection import tools
from collection.commands import surefoot

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "examples/bundle/README.md"]
TEN = ROOT / "docs/ten-minutes.md"
SHELL = ("sh", "console", "bash")
PROGRAMS = ("surefootd", "surefoot", "surefoot-loadgen", "make", "cargo", "python", "python3")

# Pages whose commands a test runs, and which. What is not here is only looked at: test_every_command_of_a_page_is_there.
RUN = {
    "ten-minutes.md": "tests/test_page_commands.py",
    "resctrlfs.md": "tests/test_page_commands.py",
    "check.md": "tests/test_page_commands.py",
    "explain.md": "tests/test_page_commands.py",
    "record-and-top.md": "tests/test_page_commands.py",
    "install-node.md": "tests/trial_kit.py",
    "team.md": "tests/test_team.py",
    "gym.md": "tests/test_gym.py",
    "python-policies.md": "tests/test_python_policies.py",
    "write-a-policy.md": "scheduler/surefootd/tests/write_a_policy.rs",
    "virtual-server.md": "tests/test_derive.py",
    "README.md": "tests/test_page_blocks.py",
    "examples/bundle/README.md": "tests/test_example_bundle.py",
    "campaigns.md": "tests/test_page_blocks.py",
    "cosmos.md": "tests/test_page_blocks.py",
    "eval-report.md": "tests/test_page_blocks.py",
    "give-a-recording.md": "tests/test_page_blocks.py",
    "harvest-report.md": "tests/test_page_blocks.py",
    "onboard.md": "tests/test_page_blocks.py",
    "oracle.md": "tests/test_page_blocks.py",
    "policy-parameters.md": "tests/test_page_blocks.py",
    "privileges.md": "tests/test_page_blocks.py",
    "rivals.md": "tests/test_page_blocks.py",
    "shadow.md": "tests/test_page_blocks.py",
    "smartharvest.md": "tests/test_page_blocks.py",
    "training.md": "tests/test_page_blocks.py",
    "watched-models.md": "tests/test_page_blocks.py",
    "workloads.md": "tests/test_page_blocks.py",
    "worlds.md": "tests/test_page_blocks.py",
}
# What of them is not run, and why.
NOT_ALL = {
    "README.md": "make demo: tests/test_demo.py; the rest stands on other pages, and is run from there",
    "campaigns.md": "campaign worlds: tests/test_worlds.py; dvc: tests/test_dvc_history.py",
    "cosmos.md": "make test-kernel: virtual machines; --example cosmos: an evaluation of minutes",
    "eval-report.md": "--harm: needs a bundle of server-2, hours",
    "onboard.md": "an onboarding to its end: tests/test_onboard.py",
    "privileges.md": "a daemon without rights beside its actuator: scheduler/surefootd/tests/actuator.rs, tests/trial_kit.py",
    "rivals.md": "make bench-policies: hours",
    "training.md": "dvc: tests/test_dvc_history.py; register: tests/test_register.py",
    "workloads.md": "benchmarks' own archives, and images: tests/test_originals.py, make workloads-smoke",
    "worlds.md": "memory-tune, learning from worlds, transfer: hours; tests/test_worlds.py, tests/test_worlds_transfer.py",
}
# Why the others' are not run.
NOT_RUN = {
    "CONTRIBUTING.md": "make test is what runs this",
    "demo.md": "twelve minutes; its parts in tests/test_demo.py",
    "playbooks.md": "hosts: make test-playbooks",
    "test-kernel.md": "virtual machines: make test-kernel, make test-rdt",
    "tune.md": "minutes of evaluation; tests/test_tune.py",
}


def blocks(text: str) -> Iterator[str]:
    """Commands of a page: blocks of a shell, and lines that are set in as code."""
    for language, body in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language in SHELL:
            yield body
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in re.findall(r"(?:^ {4}.*\n)+", plain, re.MULTILINE))


def commands(block: str) -> Iterator[list[str]]:
    """Words of each command in a block that calls one of our programs."""
    for line in re.sub(r" *\\\n\s*", " ", block).splitlines():
        reader = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        try:
            words = list(reader)
        except ValueError:
            continue  # a quotation that goes on: no command of ours is in one
        here: list[str] = []
        for word in [*words, ";"]:
            if not set(word) <= set("|&;()<>"):
                here.append(word)
                continue
            if word in ("<", ">", ">>"):
                continue
            while here and (here[0] in ("sudo", "exec", "then", "do", "until") or re.fullmatch(r"[A-Z_]+=.*", here[0])):
                here = here[3:] if here[:2] == ["sudo", "-u"] else here[1:]
            if here and Path(here[0]).name in PROGRAMS:
                yield [Path(here[0]).name, *here[1:]]
            here = []


@functools.cache
def node_help(*command: str) -> str:
    return subprocess.run(
        [str(tools.find(tools.SUREFOOTD)), *command, "--help"], capture_output=True, text=True, check=False
    ).stdout


@functools.cache
def makefile() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def options(words: list[str]) -> list[str]:
    """Long options that are spelled out; a word in brackets of a synopsis is one, too."""
    given = words[: words.index("--")] if "--" in words else words
    return [w.strip("[]").partition("=")[0] for w in given if re.match(r"\[?--[a-z]", w)]


def of_the_node(words: list[str]) -> str | None:
    if not words or words[0].startswith("-"):
        return None
    if not re.search(rf"^  {re.escape(words[0])}\s", node_help() + "  schema \n  manual \n", re.MULTILINE):
        return f"surefootd {words[0]} is no command"
    below = [w for w in words[1:2] if re.search(rf"^  {re.escape(w)}\s", node_help(words[0]), re.MULTILINE)]
    lacking = [o for o in options(words[1:]) if not re.search(rf"{o}\b(?!-)", node_help(words[0], *below))]
    return f"surefootd {words[0]} has no option {', '.join(lacking)}" if lacking else None


def of_the_lab(words: list[str]) -> str | None:
    command: click.Command = surefoot
    said = ["surefoot"]
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        below = command.commands.get(words[0])
        if below is None:
            return f"{' '.join(said)} {words[0]} is no command"
        said, command, words = [*said, words[0]], below, words[1:]
    known = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)} | {"--help"}
    lacking = [o for o in options(words) if o not in known]
    return f"{' '.join(said)} has no option {', '.join(lacking)}" if lacking else None


def wrong(words: list[str]) -> str | None:
    """What is not so about a command; None where all is."""
    program, *rest = words
    if program == "surefootd":
        return of_the_node(rest)
    if program == "surefoot":
        return of_the_lab(rest)
    if program == "make":
        targets = [w for w in rest if re.fullmatch(r"[a-z][a-z-]*", w)] if "-C" not in rest else []
        return next((f"make {t} is no target" for t in targets if t not in makefile()), None)
    if program == "cargo":
        name = rest[rest.index("-p") + 1] if "-p" in rest[:-1] else None
        return f"{name} is no crate" if name and f'name = "{name}"' not in (ROOT / "Cargo.lock").read_text("utf-8") else None
    # A file without a folder is the reader's own, which the page has just had written.
    files = [w for w in rest[:1] if w.endswith(".py") and "/" in w]
    return next((f"{f} is not there" for f in files if not (ROOT / f).is_file()), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_command_of_a_page_is_there(page: Path) -> None:
    """A program that a page calls has the command, and the command the options, that the page gives it."""
    found = [(" ".join(c), why) for block in blocks(page.read_text("utf-8")) for c in commands(block) if (why := wrong(c))]
    assert found == []


def test_what_is_not_there_is_found() -> None:
    """The check can fail: on a command, an option, a target and a file that are not there, also behind others."""
    block = (
        "sudo -u surefoot surefootd chek\nA=1 surefootd check --jsn | less\nmake tests\nsurefoot campaign plan --fast X\n"
        "python scripts/none.py\ncargo run -p surefoot-none\nsurefoot nothing && surefootd eval \\\n    --bundle B --polices X\n"
    )
    assert [wrong(c) for c in commands(block)] == [
        "surefootd chek is no command",
        "surefootd check has no option --jsn",
        "make tests is no target",
        "surefoot campaign plan has no option --fast",
        "scripts/none.py is not there",
        "surefoot-none is no crate",
        "surefoot nothing is no command",
        "surefootd eval has no option --polices",
    ]


def test_each_page_with_commands_is_run_or_says_why_not() -> None:
    """A page whose commands are said to be run is named by the test that runs them; of every other page it is said why not."""
    for page, test in RUN.items():
        assert page in (ROOT / test).read_text("utf-8"), (page, test)
    assert set(NOT_ALL) <= set(RUN)
    tests = {test for why in (*NOT_ALL.values(), *NOT_RUN.values()) for test in re.findall(r"[\w/]+\.(?:py|rs)", why)}
    assert [test for test in sorted(tests) if not (ROOT / test).is_file()] == []
    with_commands = {
        str(p.relative_to(ROOT)).removeprefix("docs/")
        for p in PAGES
        if any(True for block in blocks(p.read_text("utf-8")) for _ in commands(block))
    }
    assert with_commands == {*RUN, *NOT_RUN}


def checkout(at: Path) -> dict[str, str]:
    """A folder that has of a checkout what commands of pages read, and the environment for them."""
    for name in ("workloads", "scheduler"):
        (at / name).symlink_to(ROOT / name)
    (at / "examples").mkdir()
    (at / "examples/bundle").symlink_to(ROOT / "examples/bundle")
    node = (ROOT / "examples/node-virtual.toml").read_text("utf-8")
    assert "realtime = true" in node
    # sixty seconds are computed instead of waited for; the port may be another daemon's
    node = re.sub(r"^metrics_port = .*$", "", node.replace("realtime = true", "realtime = false"), flags=re.MULTILINE)
    (at / "examples/node-virtual.toml").write_text(node, "utf-8")
    (at / "bin").mkdir()
    (at / "bin/surefootd").symlink_to(tools.find(tools.SUREFOOTD))
    return {**os.environ, "PATH": f"{at / 'bin'}:{os.environ['PATH']}", "SUREFOOT_STATE": str(at / "state")}


def shell(script: str, at: Path, env: dict[str, str]) -> str:
    done = subprocess.run(["bash", "-euc", script], cwd=at, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, script + done.stderr
    return done.stdout


def test_ten_minutes_runs(tmp_path: Path) -> None:
    """Each block of docs/ten-minutes.md in order, in a checkout: each ends well and says what the page promises."""
    env = checkout(tmp_path)
    told = []
    for block in re.findall(r"^```sh\n(.*?)^```", TEN.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        if block.startswith("# not under test"):
            continue
        told.append(shell(block, tmp_path, env))
    check, compare, _, explain = told
    assert "resctrl" in check
    assert re.search(r"^surefoot +7 ", compare, re.MULTILINE), compare
    assert "moses" in explain or "img-dnn" in explain, explain[:2000]


def lines(page: str, program: str) -> list[str]:
    """Lines of a page that call a command of the node, without the remarks behind them."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return [re.sub(r"\s+# .*", "", line).strip() for line in re.findall(rf"^    {program}\b.*$", text, re.MULTILINE)]


def test_check_explain_and_record_run(tmp_path: Path) -> None:
    """Lines of check.md, explain.md and record-and-top.md that need no daemon, with a node.toml of a virtual server."""
    env = checkout(tmp_path)
    (tmp_path / "NODE.toml").write_text(
        '[[service]]\nservice = "web"\nkind = "lc"\nqos_target_ms = 10.0\ncgroup = "/nowhere"\n', "utf-8"
    )
    for line in lines("check.md", "surefootd check"):
        if "--pack-tree" not in line:
            said = shell(line.replace("DIR", str(tmp_path / "state")), tmp_path, env)
            assert said, line
    (tmp_path / "node.toml").write_text(
        (tmp_path / "examples/node-virtual.toml")
        .read_text("utf-8")
        .replace("../workloads", "workloads")
        .replace("node-virtual.jsonl", "decisions.jsonl"),
        "utf-8",
    )
    record, *_ = lines("record-and-top.md", "surefootd record")
    shell(record, tmp_path, env)
    assert (tmp_path / "samples.parquet").stat().st_size > 1000
    shell("surefootd run --server virtual:server-1 --policy parties --config node.toml", tmp_path, env)
    asked = lines("explain.md", "surefootd explain")
    assert len(asked) == 5
    for line in asked:
        # without a file it is the journal of this machine's daemon
        said = shell(line if "--file" in line or "--config" in line else f"{line} --config node.toml", tmp_path, env)
        assert said.startswith(("    ID", "#12 ", "{")), (line, said[:80])


def test_the_stand_in_runs(tmp_path: Path) -> None:
    """The first block of resctrlfs.md: the mask with a gap is refused, in the kernel's words."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("a FUSE mount needs root and /dev/fuse: run as root, or with fusermount3")
    block = next(b for b in blocks((ROOT / "docs/resctrlfs.md").read_text("utf-8")) if "surefootd resctrlfs /tmp/resctrl" in b)
    mount = tmp_path / "resctrl"
    script = block.replace("/tmp/resctrl", str(mount)).replace("surefootd resctrlfs", "surefootd resctrlfs --die-with-parent")
    refused = next(line for line in script.splitlines() if "Invalid argument" in line)
    script = script.replace(refused, f"! {{ {refused.partition('#')[0]}; }}")
    said = shell(f"trap 'umount -l {mount}' EXIT\n{script}", tmp_path, checkout(tmp_path))
    assert "The mask 5 has non-consecutive 1-bits" in said
