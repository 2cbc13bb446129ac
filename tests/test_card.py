"""The data card says what a data set holds, the same each time, and `verify` knows it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from campaigns import measured
from click.testing import CliRunner

from collection import campaign, card, commands, errors, verify

CAMPAIGN = """\
name = "carded"
seed = 4
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses", "xapian"]
threads = [8]
cores = "1..36 step 7"
ways = "1..20 step 6"
neighbours = { count = [0, 2], draws = 1 }
[sampling]
interval_ms = 1000
samples = 5
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured(tmp_path_factory.mktemp("carded"), CAMPAIGN)


def test_card_of_a_campaign(whole: Path) -> None:
    """What, where, with what, counts, ranges and gaps."""
    text = (whole / card.CARD).read_text("utf-8")
    manifest = json.loads((whole / "server-1/manifest.json").read_text("utf-8"))
    assert text.startswith("# Data card: carded\n")
    assert f"| measured | {manifest['cases']['measured']:,} |" in text
    assert f"| infeasible | {manifest['cases']['infeasible']:,} |" in text
    assert manifest["campaign_hash"] in text
    assert manifest["sources"]["moses"] in text
    assert "server-1: 36 cores in steps of 1, 20 ways of 2.25 MB" in text
    assert "| alloc_cores | 1 | 36 | 0.0 % |" in text
    assert "null throughout, the target cannot measure it: " not in text
    assert "infeasible: " in text.split("### Known gaps")[1]
    assert "simulated: a virtual server" in text
    started = json.loads((whole / "manifest.json").read_text("utf-8"))["started_utc"]
    assert f"Measured: {started} to " in text


def test_the_same_text_each_time(whole: Path, tmp_path: Path) -> None:
    """The card is a function of the files: made again, or elsewhere, it is the same."""
    shutil.copytree(whole, tmp_path / "copy")
    card.write(tmp_path / "copy")
    for name in (card.CARD, card.figure("server-1")):
        assert (tmp_path / "copy" / name).read_bytes() == (whole / name).read_bytes()


def test_figure(whole: Path) -> None:
    """One row a service, of samples without neighbours; the card shows it, and verify knows it."""
    from xml.etree import ElementTree

    name = card.figure("server-1")
    svg = (whole / name).read_text("utf-8")
    ElementTree.fromstring(svg)
    for words in (
        "moses at ",
        "xapian at ",
        "cells with usable rows",
        "samples without neighbours: ",
        "QoS target",
        "offered load, RPS",
        "LLC ways",
    ):
        assert words in svg
    assert f"]({name})" in (whole / card.CARD).read_text("utf-8")
    assert verify.verify(whole).findings == []


def test_only_usable_samples_without_neighbours_are_drawn(tmp_path: Path) -> None:
    """Client-limited samples and those with neighbours are left out; of an overloaded one the latency is no number."""
    import polars as pl

    from collection import card_plots

    def row(p99_ms: float | None, verdict: str = "valid", neighbours: list[dict[str, object]] | None = None) -> dict[str, object]:
        cell = {"service": "a", "rps": 10.0, "threads": 1, "mba_pct": 100, "alloc_cores": 2.0, "alloc_ways": None, "case_id": "c"}
        return {**cell, "latency_p99_ms": p99_ms, "verdict": verdict, "neighbours": neighbours or []}

    beside = [{"service": "b", "cores": 1.0, "ways": 0, "rps": None}]
    rows = [
        row(1.0),
        row(100.0),
        row(1.0, "server-overloaded"),
        row(None),
        row(1.0, "client-limited"),
        row(1.0, neighbours=beside),
    ]
    shape = {"alloc_ways": pl.Float64, "neighbours": pl.List(pl.Struct({"service": pl.String, "cores": pl.Float64}))}
    pl.DataFrame(rows, schema_overrides=shape).write_parquet(tmp_path / "x.parquet")
    cells = card_plots._cells(pl.scan_parquet([tmp_path / "x.parquet"]), {"a": 5.0})
    # the median of 1 and 100; one of three that say something is overloaded
    assert cells.select("service", "cores", "ways", "n", "usable", "over", "p99_ms", "overloaded").rows() == [
        ("a", 2.0, 0.0, 5, 2, 1, 50.5, False)
    ]
    assert card_plots.draw([], {"a": 5.0}, "x") == ""


def test_going_on_with_a_whole_campaign_leaves_card_and_times(whole: Path) -> None:
    """Nothing is written anew where nothing is new."""
    before = {name: (whole / name).read_bytes() for name in (card.CARD, "manifest.json")}
    campaign.run(whole / "campaign.toml", whole)
    assert {name: (whole / name).read_bytes() for name in before} == before


def test_verify_knows_the_card(whole: Path, tmp_path: Path) -> None:
    """It is no stray file; one of other data is a warning with the way out."""
    shutil.copytree(whole, tmp_path / "data")
    assert verify.verify(tmp_path / "data").findings == []
    path = tmp_path / "data" / card.CARD
    path.write_text(path.read_text("utf-8").replace(card.stamp(tmp_path / "data"), "0" * 64), "utf-8")
    result = verify.verify(tmp_path / "data")
    (finding,) = result.findings
    assert (finding.file, finding.severity, result.ok) == (str(path), "warning", True)
    assert finding.remedy == f"write it anew: surefoot campaign card {tmp_path / 'data'}"
    card.write(tmp_path / "data")
    assert verify.verify(tmp_path / "data").findings == []


def test_the_command_waits_its_turn(whole: Path, tmp_path: Path) -> None:
    """A run that starts removes half-written files: the card is not written beside one. What is no campaign's stays as it is."""
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    (data / card.CARD).unlink()
    with campaign.locked(data):
        done = CliRunner().invoke(commands.surefoot, ["campaign", "card", str(data)])
    assert isinstance(done.exception, errors.Busy)
    assert not (data / card.CARD).exists()
    assert CliRunner().invoke(commands.surefoot, ["campaign", "card", str(data)]).exit_code == 0
    assert (data / card.CARD).read_bytes() == (whole / card.CARD).read_bytes()
    (tmp_path / "other").mkdir()
    done = CliRunner().invoke(commands.surefoot, ["campaign", "card", str(tmp_path / "other")])
    assert isinstance(done.exception, errors.DataSetError)
    assert list((tmp_path / "other").iterdir()) == []
