"""The bench of lending on two CPUs (scripts/bench/lend_memcached.py): what of it needs neither root nor memcached."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts/bench/lend_memcached.py"


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lend_memcached", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


bench = _loaded()
REPORT = {
    "achieved_rps": 15_000.0,
    "response_time": {"p50": {"value_ms": 0.2}, "p99": {"value_ms": 1.5}},
    "verdict": {"kind": "valid", "reason": "the client kept its schedule"},
}


def _moment(at_s: float, used: float, looks: int) -> object:
    lender = bench.NO_LENDER | {
        "at_us": int(at_s * 1e6),
        "lent_us": int(at_s * 25e4),
        "looks": looks,
        "busy": [looks // 2, looks // 4, 0],
    }
    lender |= {"late": looks // 100, "moves": looks // 50, "moves_us": looks * 20}
    cpu = {"primary": used, "bully": used / 2, "client": used / 4, "lender": used / 10}
    return bench.Moment(at_s, cpu, 3 * used, 0.0, lender)


def _row(number: int, policy: str, p99_ms: float | None, verdict: str = "valid", cpu: float = 0.65) -> object:
    row = bench.as_row(REPORT, _moment(0, 0, 0), _moment(8, 8 * cpu, 40_000), (number, 1, policy))
    return replace(row, p99_ms=p99_ms, verdict=verdict)


def _run(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, args)], capture_output=True, text=True, timeout=60, check=False)


def test_each_round_has_every_policy_in_an_order_of_its_own() -> None:
    """A round has each policy once; two rounds that follow each other are mirrored; over all of them places are even."""
    policies = bench.POLICIES
    orders = [bench.order(policies, n) for n in range(1, 2 * len(policies) + 1)]
    assert all(sorted(o) == sorted(policies) for o in orders)
    assert all(a == b[::-1] for a, b in zip(orders[::2], orders[1::2], strict=True))
    at = Counter((policy, place) for o in orders for place, policy in enumerate(o))
    assert set(at.values()) == {2}


def test_a_row_is_what_went_on_between_two_moments() -> None:
    """Shares of a CPU, counts and means are of the measured time alone."""
    row = bench.as_row(REPORT, _moment(2, 1.0, 1000), _moment(10, 6.2, 41_000), (3, 2, "wait-budget"))
    assert (row.round, row.place, row.policy, row.verdict) == (3, 2, "wait-budget", "valid")
    assert (row.primary_cpu, row.harvested_cpu, row.lent_cores) == pytest.approx((0.65, 0.325, 0.25))
    assert (row.looks, row.idle_looks, row.late_looks, row.moves, row.in_band) == (40_000, 20_000, 400, 800, True)
    assert row.move_ms == pytest.approx(1.0)
    assert row.other_cpu == pytest.approx(3 * 0.65 - 0.65 * 1.85)
    assert bench.as_row(REPORT, _moment(0, 0, 0), _moment(8, 8 * 0.81, 1), (1, 1, "alone")).in_band is False


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Values come back, an unknown one as nothing; a line that a kill cut off is taken out."""
    path = tmp_path / "rows.csv"
    assert bench.read_rows(path) == []
    bench.append(path, _row(1, "no-harvest", 1.25))
    bench.append(path, _row(1, "idle", None))
    first, second = bench.read_rows(path)
    assert (first["p99_ms"], second["p99_ms"], first["in_band"], first["round"]) == ("1.2500", "", "yes", "1")
    whole = path.read_text("utf-8")
    path.write_text(whole + "2,1,no-har", "utf-8")
    assert len(bench.read_rows(path)) == 2
    assert path.read_text("utf-8") == whole
    path.write_text("round,pla", "utf-8")
    assert bench.read_rows(path) == []
    bench.append(path, _row(1, "no-harvest", 1.25))
    assert len(bench.read_rows(path)) == 1


def test_the_table_compares_within_rounds() -> None:
    """Ratios are to the same round; what is unknown is above all; runs with a late client count, and are left out beside."""
    rows = [_row(n, "no-harvest", float(n)) for n in range(1, 6)]
    rows += [_row(n, "shares", 2.0 * n, "client-limited" if n == 5 else "valid") for n in range(1, 6)]
    rows += [_row(n, "idle", None if n > 2 else 3.0 * n, cpu=0.9) for n in range(1, 6)]
    text = bench.table([{k: bench.cell(v) for k, v in vars(r).items()} for r in rows], bench.POLICIES)
    lines = {
        cells[1].strip(" `"): [c.strip() for c in cells[1:-1]] for cells in (line.split("|") for line in text.splitlines()[2:])
    }
    assert list(lines) == ["no-harvest", "shares", "idle"]
    assert all(len(cells) == len(bench.HEAD) for cells in lines.values())
    assert lines["no-harvest"][2:4] == ["3.000 (2.000 to 4.000)", "1.00 (1.00 to 1.00)"]
    assert lines["shares"][2:4] == ["6.000 (4.000 to 8.000)", "2.00 (2.00 to 2.00)"]
    assert lines["shares"][-4:] == ["1", "5.000", "2.00", "0"]
    assert lines["idle"][2] == "unknown, above all (6.000 to unknown, above all)"
    assert lines["idle"][-1] == "5"


def test_the_interval_has_the_median_in_it() -> None:
    """Of 20 values the interval is around their median, and the same each time; of one value it is that value."""
    values = [1 + 0.01 * n for n in range(20)]
    low, high = bench.interval(values)
    assert values[0] < low < bench.median(values) < high < values[-1]
    assert bench.interval(values) == (low, high)
    assert bench.interval([2.0]) == (2.0, 2.0)
    assert math.isnan(bench.interval([])[0])
    assert bench.median([1.0, math.inf]) == math.inf


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--policies", "no-harvest,smart"], r"policy 'smart' is unknown. Choose from: alone, no-harvest"),
        (["--policies", "no-harvest,no-harvest"], "a policy is named twice"),
        (["--policies", "wait-budget"], "--policies without no-harvest"),
        (["--rounds", "0"], "--rounds is 0. Give 1 or more"),
        (["--seconds", "nan"], "--seconds is nan"),
        (["--rps", "0"], "--rps is 0. Give 1 to"),
        (["--poll-us", "1"], "--poll-us is 1. Give 50 or more"),
        (["--table"], "rows.csv has no rows yet"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, options: list[str], says: str) -> None:
    """What is wrong is said in one line, before anything is started or made."""
    done = _run(tmp_path, tmp_path / "out", *options)
    assert done.returncode == 1
    assert re.fullmatch(rf"lend_memcached: .*{says}.*\n", done.stderr), done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()


def test_a_folder_of_other_runs_is_refused(tmp_path: Path) -> None:
    """An earlier setup is gone on with where it is the same, with the rate that it found; another one is refused by name."""
    wanted = bench.Setup(("no-harvest", "idle"), 2, 8.0, 3.0, 200, 1, 8, 200, 0, 16_000.0)
    assert bench.agreed(tmp_path, wanted, False) is None
    (tmp_path / "setup.json").write_text(json.dumps(vars(replace(wanted, rps=21_000.0, calibrated_cpu=0.66))), "utf-8")
    assert bench.agreed(tmp_path, wanted, False).rps == 21_000.0
    for other, has_rps, says in [
        (replace(wanted, seconds=5.0), False, "runs of seconds 8.0, not 5.0"),
        (replace(wanted, policies=("no-harvest",)), False, "runs of policies"),
        (wanted, True, "runs of rps 21000.0, not 16000.0"),
    ]:
        with pytest.raises(SystemExit, match=says):
            bench.agreed(tmp_path, other, has_rps)
    (tmp_path / "setup.json").write_text("{", "utf-8")
    with pytest.raises(SystemExit, match="is no setup of this script"):
        bench.agreed(tmp_path, wanted, False)
    (tmp_path / "setup.json").unlink()
    bench.append(tmp_path / "rows.csv", _row(1, "idle", 1.0))
    with pytest.raises(SystemExit, match="missing"):
        bench.agreed(tmp_path, wanted, False)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n", "utf-8")
    with pytest.raises(SystemExit, match="other columns"):
        bench.read_rows(tmp_path / "rows.csv")
