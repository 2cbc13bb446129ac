"""Example notebooks (examples/notebooks): every cell runs, and the policy that one of them trains beats equal shares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
TRAINS = ROOT / "examples" / "notebooks" / "train.ipynb"


def read(notebook: Path) -> dict[str, Any]:
    return dict(json.loads(notebook.read_text()))


def cells(notebook: Path, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in read(notebook)["cells"] if cell["cell_type"] == kind]


def run(notebook: Path, tmp_path: Path, more: str = "") -> str:
    """What the cells print, one after the other in one process, and `more` behind them. Plots go nowhere."""
    program = tmp_path / f"{notebook.stem}.py"
    # A cell that fails is named by its number.
    parts = [compile_check(notebook, i, text) for i, text in enumerate(cells(notebook, "code"))]
    program.write_text("\n".join([*parts, more]))
    environment = {**os.environ, "MPLBACKEND": "Agg", "TMPDIR": str(tmp_path), "PYTHONPATH": f"{ROOT / 'python'}:{ROOT}"}
    done = subprocess.run([sys.executable, program], cwd=notebook.parent, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{notebook.name}: {done.stderr[-3000:]}"
    return done.stdout


def compile_check(notebook: Path, number: int, text: str) -> str:
    compile(text, f"{notebook.name}, code cell {number}", "exec")
    return f"# code cell {number}\n{text}\n"


def test_the_notebooks_are_listed() -> None:
    """The page lists each of them."""
    page = (ROOT / "docs" / "python-policies.md").read_text()
    assert [n.name for n in NOTEBOOKS] == ["cliff.ipynb", "dataset.ipynb", "train.ipynb"]
    assert all(f"| `{n.name}` |" in page for n in NOTEBOOKS)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_a_notebook_is_clean(notebook: Path) -> None:
    """It is of format 4.5, begins with a title, and holds neither outputs nor counts nor anything of somebody's machine."""
    said = read(notebook)
    assert (said["nbformat"], said["nbformat_minor"]) == (4, 5)
    assert cells(notebook, "markdown")[0].startswith("# ")
    ids = [cell["id"] for cell in said["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in said["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert "/home/" not in notebook.read_text()


@pytest.mark.parametrize("notebook", [n for n in NOTEBOOKS if n != TRAINS], ids=lambda n: n.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    """Every cell runs; what is printed at the end is of what was measured."""
    said = run(notebook, tmp_path)
    assert {"dataset": "4320 samples of 1440 cases", "cliff": "the steepest step that is still measured"}[notebook.stem] in said
    if notebook.stem == "cliff":
        (drawn,) = tmp_path.glob("surefoot-*/cliff.png")
        assert drawn.stat().st_size > 10_000


def test_a_policy_that_learns_beats_equal_shares(tmp_path: Path) -> None:
    """Trained from nothing, and asked over a socket on the demo's workloads: more load within targets, less time beyond them."""
    run(TRAINS, tmp_path)
    (file,) = tmp_path.glob("surefoot-*/means.json")
    means = {row["policy"]: row for row in json.loads(file.read_text())}
    learnt, equal = means["learnt"], means["equal-share"]
    assert learnt["held_decisions"] == 0
    assert learnt["emu"] > equal["emu"]
    assert learnt["qos_violation_s"] < equal["qos_violation_s"]
