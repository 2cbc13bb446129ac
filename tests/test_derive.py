"""Counters of a way sweep turn into the profile that they came from."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from collection import derive

ROOT = Path(__file__).parents[1]
COUNTERS = ROOT / "examples/new-rack/counters.csv"
PLATFORM = ROOT / "scheduler/vserver/profiles/platforms/server-1.toml"
TRUTH = tomllib.loads((ROOT / "scheduler/vserver/profiles/services/silo.toml").read_text())
OPTIONS = [
    *("--platform", str(PLATFORM), "--name", "orders", "--title", "in-memory database, TPC-C"),
    *("--domain", "in-memory database", "--qos-target-ms", "10", "--rps-levels", "500,1000,1500,2000,2400"),
    *("--scv-service", "0.8", "--saturation-rps", "2890", "--saturation-mhz", "3250", "--virt-mb", "11500", "--res-mb", "8200"),
]


def miss_ratio(cache: dict, mb: np.ndarray, threads: int) -> np.ndarray:
    scale = 1 + cache["ws_thread"] * (threads - 1)
    return cache["mrc_floor"] + sum(a / (1 + (mb / (c * scale)) ** p) for a, c, p in cache["mrc"])


def test_the_example_is_what_the_documented_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """examples/new-rack/services/orders.toml is the output of the command in docs/virtual-server.md."""
    assert derive.main([str(COUNTERS), *OPTIONS]) == 0
    assert capsys.readouterr().out == (ROOT / "examples/new-rack/services/orders.toml").read_text()


def test_a_profile_comes_back_from_its_counters() -> None:
    """From counters with errors of about 1 %, what matters comes back within a few per cent."""
    got = tomllib.loads((ROOT / "examples/new-rack/services/orders.toml").read_text())
    for section, key, within in [
        ("cpu", "minstr_per_req", 0.02),
        ("cpu", "cpi_core", 0.03),
        ("cache", "apki", 0.03),
        ("cache", "mlp", 0.08),
        ("cache", "writeback", 0.05),
        ("queue", "dispatch_us", 0.01),
    ]:
        assert got[section][key] == pytest.approx(TRUTH[section][key], rel=within), key
    ways = np.arange(1, 21)
    mb = 2.25 * ways * ways / (ways + 0.35)
    error = np.abs(miss_ratio(got["cache"], mb, 12) - miss_ratio(TRUTH["cache"], mb, 12))
    assert error.max() < 0.02


def test_no_term_is_invented_for_a_service_without_reuse() -> None:
    """A flat miss ratio is a floor."""
    mb = np.linspace(2, 40, 12)
    floor, terms = derive.fit_miss_ratio(mb, np.full(12, 0.9))
    assert floor + sum(a for a, _, _ in terms) == pytest.approx(0.9, abs=0.01)
    assert sum(a / (1 + (2 / c) ** p) for a, c, p in terms) < 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace("llc_refs_per_s", "refs", 1), "no column llc_refs_per_s"),
        (lambda t: "\n".join(t.splitlines()[:4]) + "\n", "3 rows"),
        (lambda t: t.replace("3.2202e7", "many", 1), "llc_misses_per_s: not a number"),
        (lambda t: t.replace("3.2202e7", "0", 1), "llc_misses_per_s: a value is 0"),
    ],
)
def test_bad_counters_name_file_and_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: object, message: str
) -> None:
    """One line, exit code 2."""
    bad = tmp_path / "counters.csv"
    bad.write_text(change(COUNTERS.read_text()))  # type: ignore[operator]
    assert derive.main([str(bad), *OPTIONS]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert str(bad) in error
    assert error.count("\n") == 1
