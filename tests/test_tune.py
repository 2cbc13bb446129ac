"""`surefoot tune`: settings chosen on drawn worlds, the same trials after a kill, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from collection import tools, tune
from collection.commands import surefoot
from collection.errors import InputError

WORLDS = "tune:8101..8102"
NAMES = ("trust.margin", "patience.refines")


@pytest.fixture
def ranges(tmp_path: Path) -> Path:
    """Two settings, a whole one among them."""
    file = tmp_path / "ranges.toml"
    file.write_text("trust.margin = [0.06, 0.24]\n[patience]\nrefines = [1, 6]\n")
    return file


def call(ranges: Path, out: Path, *more: str) -> Any:
    argv = ["tune", "--worlds", WORLDS, "--settings", str(ranges), "--threads", "1", "--out", str(out), *more]
    return CliRunner().invoke(surefoot, argv)


def test_a_tuning_that_was_killed_has_the_same_trials(ranges: Path, tmp_path: Path) -> None:
    """Killed after its first trial, and with half a line in its journal, it ends as one that was not."""
    whole = call(ranges, tmp_path / "whole", "--trials", "3")
    assert whole.exit_code == 0, whole.output
    found = json.loads((tmp_path / "whole" / "tune.json").read_text())
    assert [set(t["settings"]) for t in found["trials"]] == [{f"surefoot.{n}" for n in NAMES}] * 3
    assert len({json.dumps(t["settings"]) for t in found["trials"]}) == 3
    assert all(0.06 <= t["settings"]["surefoot.trust.margin"] <= 0.24 for t in found["trials"])
    assert found["best"] == 1 + min(range(3), key=lambda k: found["trials"][k]["cost"])
    argv = [
        "tune",
        "--worlds",
        WORLDS,
        "--settings",
        str(ranges),
        "--threads",
        "1",
        "--out",
        str(tmp_path / "cut"),
        "--trials",
        "3",
    ]
    child = subprocess.Popen([sys.executable, "-m", "collection.cli", *argv], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline().startswith("trial 1 of 3")
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with (tmp_path / "cut" / "study.jsonl").open("a") as journal:
        journal.write('{"op_code": 4, "wor')
    again = call(ranges, tmp_path / "cut", "--trials", "3")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "cut" / "tune.json").read_bytes() == (tmp_path / "whole" / "tune.json").read_bytes()
    assert (tmp_path / "cut" / "tune.md").read_bytes() == (tmp_path / "whole" / "tune.md").read_bytes()
    # Another command finds the folder taken.
    other = call(ranges, tmp_path / "cut", "--trials", "3", "--seed", "2")
    assert isinstance(other.exception, InputError)
    assert "is of other worlds" in str(other.exception)


def test_each_setting_halved_and_doubled(ranges: Path, tmp_path: Path) -> None:
    """The table has both settings, with what the program was told and how it compares."""
    done = call(ranges, tmp_path / "out", "--sensitivity", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out" / "sensitivity.json").read_text())
    known = {s.name: s for s in tune.settings_of()}
    assert [line["name"] for line in found["settings"]] == [f"surefoot.{n}" for n in NAMES]
    for line in found["settings"]:
        assert line["halved"]["value"] == known[line["name"]].scaled(0.5) < line["default"] < line["doubled"]["value"]
    assert found["worst"] == max(line[w]["violation"] for line in found["settings"] for w in tune.FACTORS)
    assert found["within"] == (found["worst"] <= 1.2)
    assert "| `surefoot.trust.margin` | " in (tmp_path / "out" / "sensitivity.md").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trust.margn = [0.1, 0.2]", "trust.margn: there is no such setting"),
        ("trust.margin = 0.1", "trust.margin: write [LOW, HIGH]"),
        ("trust.margin = [0.2, 0.1]", "trust.margin: write [LOW, HIGH]"),
        ("trust.margin = [0.1, 99]", "trust.margin: the range is out of its bounds"),
        ("patience.refines = [0.5, 2]", "patience.refines: the range is out of its bounds: whole numbers"),
        ("", "has no setting"),
        ("trust.margin = [0.06, 0.", "not valid TOML: "),
    ],
)
def test_ranges_that_are_none_are_refused(text: str, said: str, tmp_path: Path) -> None:
    """One line names the file, the setting and what to write."""
    file = tmp_path / "ranges.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"ranges\.toml") as e:
        tune.ranges(file, tune.settings_of())
    assert said in str(e.value)


def test_nothing_is_chosen_on_worlds_that_are_reported_on(ranges: Path, tmp_path: Path) -> None:
    """Test worlds, and a single world, are refused before anything is run."""
    for worlds, said in (("test:1..2", "are chosen on tune worlds alone"), ("tune:1", "give two worlds or more")):
        done = CliRunner().invoke(surefoot, ["tune", "--worlds", worlds, "--out", str(tmp_path / "out")])
        assert isinstance(done.exception, InputError)
        assert said in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_a_comparison_is_paired_and_puts_violation_first() -> None:
    """Less violation wins over a little more BE throughput, and failures are counted."""
    default = {("a", "1"): tune.Outcome(9.0, 0.5, True), ("b", "1"): tune.Outcome(19.0, None, False)}
    less = {("a", "1"): tune.Outcome(9.0, 0.45, True), ("b", "1"): tune.Outcome(13.0, None, True)}
    more = {("a", "1"): tune.Outcome(9.0, 0.6, False), ("b", "1"): tune.Outcome(19.0, None, False)}
    first, second = tune.compared(default, less), tune.compared(default, more)
    assert (first.violation, first.failures, second.failures) == (pytest.approx(0.8), -1, 1)
    assert second.be == pytest.approx(1.2)
    assert second.cost == pytest.approx(0.98)
    assert first.cost < second.cost < 1
    same = tune.compared(default, default)
    assert (same.violation, same.be, same.cost, same.cost_ci) == (1.0, 1.0, 1.0, (1.0, 1.0))


def test_the_program_lists_what_can_be_tuned() -> None:
    """Bounds come from the program, and every default lies within its own."""
    listed = tools.run_json(tools.SUREFOOTD, ["schema", "--json"])["settings"]
    assert {s["name"].split(".")[0] for s in listed} >= {"surefoot", "cosmos", "socket"}
    for s in tune.settings_of():
        assert s.low <= s.default <= s.high, s.name
        assert s.low <= s.scaled(0.5) <= s.scaled(2.0) <= s.high, s.name
