"""Usable rows (valid, undisturbed) are counted once and shown alike by status, verify, manifest, card and report."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from campaigns import measured
from click.testing import CliRunner

from collection import campaign, card, commands, console, dataset, report, standing, verify, worth
from pipelines import samples
from pipelines.io import sha256_file

CAMPAIGN = """\
name = "worth"
seed = 3
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses"]
rps = [600]
threads = [8]
cores = "6..12 step 2"
ways = [6, 12]
[sampling]
interval_ms = 1000
samples = 3
"""
MARK = "steal time of the managed CPUs 4.0 % (limit 2.0 %)"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight cases of three rows each, all of them usable."""
    return measured(tmp_path_factory.mktemp("worth"), CAMPAIGN)


def spoil(out: Path, disturbed: set[int], verdicts: dict[int, str]) -> None:
    """Mark some cases as disturbed and give others another verdict, as a busy machine does; by their place in the journal."""
    target = out / "server-1"
    manifest = json.loads((target / "manifest.json").read_text("utf-8"))
    lines = [json.loads(line) for line in (target / "journal.jsonl").read_text("utf-8").splitlines()]
    for place in disturbed:
        lines[place]["disturbed"] = MARK
    for place, line in enumerate(lines):
        if place in disturbed or verdicts.get(place, "valid") != "valid":
            line["usable"] = 0
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (target / "journal.jsonl").write_text(text, "utf-8")
    named = {lines[place]["case_id"]: verdict for place, verdict in verdicts.items()}
    for shard in manifest["shards"]:
        path = target / shard["file"]
        frame = pl.read_parquet(path)
        frame.with_columns(pl.col("case_id").replace_strict(named, default=pl.col("verdict")).alias("verdict")).write_parquet(
            path
        )
        shard["sha256"] = sha256_file(path)
    manifest["journal_bytes"] = len(text)
    manifest["cases"]["usable_rows"] = sum(line["usable"] for line in lines)
    manifest["cases"] |= {"disturbed": len(disturbed)} if disturbed else {}
    (target / "manifest.json").write_text(json.dumps(manifest), "utf-8")


def again(out: Path) -> dict[str, Any]:
    """What `campaign run` makes of what is there: it measures nothing."""
    return campaign.run(out / "campaign.toml", out)


@pytest.fixture
def mixed(clean: Path, tmp_path: Path) -> Path:
    """Of eight cases one overloaded, one not resolvable, one client-limited, two disturbed of which one is overloaded, too."""
    shutil.copytree(clean, tmp_path / "out")
    verdicts = {0: "server-overloaded", 1: "not-resolvable", 2: "client-limited", 3: "server-overloaded"}
    spoil(tmp_path / "out", {3, 4}, verdicts)
    again(tmp_path / "out")
    return tmp_path / "out"


# three rows a case: cases 5, 6 and 7 are usable, 3 and 4 are disturbed whatever their verdict
WANT = {"usable": 9, "disturbed": 6, "server-overloaded": 3, "not-resolvable": 3, "client-limited": 3}
SAID = "9 of 24 rows usable (37 %)"


def test_every_count_is_the_same(mixed: Path, tmp_path: Path) -> None:
    """Status, verify, manifest, card and report agree on one data set with valid, invalid and disturbed rows."""
    state = campaign.status(mixed)
    result = verify.verify(mixed)
    manifest = json.loads((mixed / "manifest.json").read_text("utf-8"))
    told = state["targets"][0]
    assert told["rows_by_worth"] == result.rows_by_worth == manifest["targets"][0]["worth"]["rows_by_worth"] == WANT
    assert told["usable_rows"] == state["usable_rows"] == result.as_json()["usable_rows"] == manifest["usable_rows"] == 9
    assert told["rows"] == state["rows"] == result.rows == manifest["rows"] == sum(WANT.values()) == 24
    runner = CliRunner()
    assert SAID in runner.invoke(commands.surefoot, ["campaign", "status", "--", str(mixed)]).output
    assert SAID in runner.invoke(commands.surefoot, ["campaign", "verify", str(mixed)]).output
    card.write(mixed)
    text = (mixed / card.CARD).read_text("utf-8")
    assert f"| usable rows | {SAID};" in text
    gap = next(line for line in text.splitlines() if line.startswith("- rows that teach no latency: "))
    assert {words.split()[1]: int(words.split()[0]) for words in gap.partition(": ")[2].split(", ")} == {
        name: n for name, n in WANT.items() if name not in ("usable", "server-overloaded")
    }
    rows = report._worth_table({"rows_by_worth": told["rows_by_worth"]}).rows
    assert {str(r[0]): int(r[1]) for r in rows} == {**WANT, "all": 24}


def test_it_is_what_the_rows_and_the_journal_say(mixed: Path) -> None:
    """The count is that of the definition, worked out here without it: a valid verdict, and no mark of the case."""
    target = mixed / "server-1"
    lines = [json.loads(line) for line in (target / "journal.jsonl").read_text("utf-8").splitlines()]
    marked = {line["case_id"] for line in lines if "disturbed" in line}
    counted: Counter[str] = Counter()
    for path in sorted((target / "shards").iterdir()):
        for case, verdict in pl.read_parquet(path).select("case_id", "verdict").iter_rows():
            counted["disturbed" if case in marked else "usable" if verdict == "valid" else verdict] += 1
    assert dict(counted) == WANT
    assert set(WANT) <= set(samples.WORTH)


def test_a_disturbed_campaign_is_not_green(clean: Path, tmp_path: Path) -> None:
    """With every case marked nothing is usable: status is red, verify warns and fails with --strict, the report's tile fails."""
    out = tmp_path / "out"
    shutil.copytree(clean, out)
    spoil(out, set(range(8)), {})
    state = again(out)
    assert state["usable_rows"] == 0
    assert state["cases"]["measured"] == 8
    styles = {style for line in standing.lines(state) for text, style in line if "usable" in text or "measured" in text}
    assert "green" not in styles
    assert "red" in styles
    assert standing.usable_in_words(state["targets"][0]["rows_by_worth"]) == "0 of 24 rows usable (0 %); 24 disturbed"
    found = [f for f in verify.verify(out).findings if "nothing can be learnt" in f.what]
    assert [f.severity for f in found] == ["warning"]
    assert CliRunner().invoke(commands.surefoot, ["campaign", "verify", "--strict", str(out)]).exit_code == 1
    assert report._tone({"cases": {"failed": 0}, "rows_by_worth": state["targets"][0]["rows_by_worth"]}) == "failed"


@pytest.mark.parametrize(
    ("rows", "colour"),
    [
        ({"usable": 0}, ""),
        ({"usable": 0, "disturbed": 90}, "red"),
        ({"usable": 2, "disturbed": 88}, "yellow"),
        ({"usable": 79, "client-limited": 21}, "yellow"),
        ({"usable": 80, "not-resolvable": 20}, "green"),
        ({"usable": 10, "server-overloaded": 90}, "green"),
        ({"usable": 0, "server-overloaded": 90}, "red"),
    ],
)
def test_colours_say_what_was_lost(rows: dict[str, int], colour: str) -> None:
    """Four fifths of what is not overloaded must be usable for green; without a usable row it is red."""
    assert standing.usable_colour(rows) == colour


def test_a_count_that_is_not_true_is_found(mixed: Path) -> None:
    """A campaign's manifest whose count is not what the rows say is an error; one that the data overtook is a warning."""
    path = mixed / "manifest.json"
    value = json.loads(path.read_text("utf-8"))
    value["targets"][0]["worth"] |= {"usable_rows": 24, "rows_by_worth": {"usable": 24}}
    path.write_text(json.dumps(value), "utf-8")
    (found,) = [f for f in verify.verify(mixed).findings if f.file == str(path)]
    assert (found.severity, "24 of 24 rows usable" in found.what, SAID in found.what) == ("error", True, True)
    value["targets"][0]["worth"]["counted_of"] = "0" * 64
    path.write_text(json.dumps(value), "utf-8")
    assert [f.severity for f in verify.verify(mixed).findings if f.file == str(path)] == ["warning"]
    # `status` does not believe it, and the command of the remedy mends it
    assert campaign.status(mixed)["usable_rows"] == 9
    again(mixed)
    assert [f for f in verify.verify(mixed).findings if f.file == str(path)] == []


@pytest.mark.parametrize(
    "kept", [None, 7, {}, {"usable_rows": -1, "rows_by_worth": {"usable": -1}, "counted_of": ""}, {"rows_by_worth": []}]
)
def test_a_count_that_is_none_is_made_anew(kept: Any, mixed: Path) -> None:
    """What stands in the manifest in place of a count harms nothing."""
    path = mixed / "manifest.json"
    value = json.loads(path.read_text("utf-8"))
    value["targets"][0]["worth"] = kept
    path.write_text(json.dumps(value), "utf-8")
    assert campaign.status(mixed)["targets"][0]["rows_by_worth"] == WANT


@pytest.mark.parametrize("how", ["gone", "cut", "empty", "folder"])
def test_what_cannot_be_read_is_not_usable(how: str, mixed: Path) -> None:
    """Rows of a shard that is lost or damaged count as unknown; the counts add up to the manifest's all the same."""
    target = mixed / "server-1"
    path = target / dataset.read_manifest(target).shards[0].file
    data = path.read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how != "gone":
        path.write_bytes(data[: len(data) // 2] if how == "cut" else b"")
    found = worth.of(target, dataset.read_manifest(target))
    assert found["unknown"] > 0
    assert sum(found.values()) == 24
    assert verify.verify(mixed).as_json()["rows_by_worth"] == found


def test_marks_that_the_manifest_does_not_count_are_found(clean: Path, tmp_path: Path) -> None:
    """Journal and manifest say the same of disturbed cases, or `verify` names the journal."""
    out = tmp_path / "out"
    shutil.copytree(clean, out)
    spoil(out, {1}, {})
    path = out / "server-1/manifest.json"
    value = json.loads(path.read_text("utf-8"))
    value["cases"]["disturbed"] = 2
    path.write_text(json.dumps(value), "utf-8")
    assert [f.what for f in verify.verify(out).findings if "marked as disturbed" in f.what] == [
        f"1 case marked as disturbed, {path} counts 2"
    ]


def test_the_sweep_counts_by_the_same_definition(mixed: Path) -> None:
    """The sweep's own manifest counts usable rows as every other count does; one that its rows contradict is found."""
    target = mixed / "server-1"
    path = target / "manifest.json"
    assert dataset.read_manifest(target).cases.usable_rows == worth.of(target, dataset.read_manifest(target))["usable"] == 9
    assert [f for f in verify.verify(mixed).findings if "usable_rows" in f.what] == []
    value = json.loads(path.read_text("utf-8"))
    value["cases"]["usable_rows"] = 10
    path.write_text(json.dumps(value), "utf-8")
    said = [f.what for f in verify.verify(mixed).findings if f.file == str(path)]
    assert said == ["cases.usable_rows is 10, of its rows 9 are usable"]
    # a manifest from before there was such a count says nothing that could be wrong
    del value["cases"]["usable_rows"]
    path.write_text(json.dumps(value), "utf-8")
    assert [f for f in verify.verify(mixed).findings if f.file == str(path)] == []


def test_a_clean_sweep_counts_all_rows(clean: Path) -> None:
    """Without a mark or another verdict every row is usable, in each line of the journal and in the manifest."""
    target = clean / "server-1"
    lines = [json.loads(line) for line in (target / "journal.jsonl").read_text("utf-8").splitlines()]
    assert [line["usable"] for line in lines] == [line["rows"] for line in lines] == [3] * 8
    assert dataset.read_manifest(target).cases.usable_rows == 24


def test_nothing_is_learnt_of_disturbed_cases(mixed: Path) -> None:
    """Labels and rows take no row of a disturbed case, whatever its verdict, and count what they left out."""
    from pipelines import label, params, rows

    target, out = mixed / "server-1", mixed.parent / "stages"
    lines = [json.loads(line) for line in (target / "journal.jsonl").read_text("utf-8").splitlines()]
    samples_of = {line["case_id"]: line for line in lines}
    told = label.run(target, out / "label", params.Label())
    assert told["rows"] == {"valid": 9, "client_limited": 3, "server_overloaded": 3, "not_resolvable": 3}
    assert (told["rows_disturbed"], told["rows_dropped"]) == (6, 9)
    cells = pl.read_parquet(out / "label/cells.parquet")
    # cases 2, 3 and 4 say nothing of their cells
    assert cells.height == 5
    frame = pl.concat(pl.read_parquet(p) for p in sorted((target / "shards").iterdir()))
    dropped = {case for case, line in samples_of.items() if "disturbed" in line}
    placed = frame.filter(pl.col("case_id").is_in(dropped)).select("alloc_cores", "alloc_ways").unique()
    assert cells.join(placed, on=["alloc_cores", "alloc_ways"]).is_empty()
    found = rows.run(target, out / "label", out / "rows", params.Rows())
    assert found["rows_left_out"]["disturbed"] == 6
    assert found["rows"] == 12  # of valid and of overloaded cases


def test_a_data_set_of_disturbed_cases_alone_is_refused(clean: Path, tmp_path: Path) -> None:
    """Where no case is left there is nothing to label: one line says so, and what to do."""
    from pipelines import label, params
    from pipelines.errors import BadInput

    shutil.copytree(clean, tmp_path / "out")
    spoil(tmp_path / "out", set(range(8)), {})
    with pytest.raises(BadInput, match=r"no row says anything about the server \(0 client-limited, 24 disturbed\)"):
        label.run(tmp_path / "out/server-1", tmp_path / "label", params.Label())


def test_a_data_set_without_the_journal_of_its_marks_is_refused(mixed: Path) -> None:
    """Which cases were disturbed stands in the journal alone: without it nothing is learnt, and the message says what to do."""
    from pipelines.errors import BadInput

    journal = mixed / "server-1/journal.jsonl"
    journal.unlink()
    with pytest.raises(BadInput, match=f"^{journal}: is missing; it says which cases were disturbed"):
        samples.open_dataset(mixed / "server-1")


def test_status_of_a_counted_campaign_reads_no_rows(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` takes the count of the campaign's manifest while it is of these data; a changed shard is counted anew."""
    calls: list[Path] = []
    counted = worth.of

    def of(folder: Path, manifest: dataset.Manifest) -> dict[str, int]:
        calls.append(folder)
        return counted(folder, manifest)

    monkeypatch.setattr(worth, "of", of)
    assert campaign.status(mixed)["usable_rows"] == 9
    assert calls == []
    (mixed / "server-1/manifest.json").write_text((mixed / "server-1/manifest.json").read_text("utf-8") + "\n", "utf-8")
    assert campaign.status(mixed)["usable_rows"] == 9
    assert calls == [mixed / "server-1"]


def test_onboarding_says_usable(capsys: pytest.CaptureFixture[str]) -> None:
    """What an onboarding collected is told in usable rows, like every other count."""
    from rich.console import Console

    result: dict[str, Any] = {
        "warnings": [],
        "planes": {"all": 1, "no_feasible_cell": 0, "test": 1},
        "collected": {"cases": {"planned": 8, "overloaded": 1}, "rows": 24, "rows_by_worth": WANT},
        "begun_from": None,
        "steps": [],
        "metrics": {},
        "metrics_from_nothing": None,
        "bundle": {"folder": "b"},
        "gate": {"promoted": True},
        "deploy": "d",
    }
    console.onboarded(Console(width=200), result)
    assert SAID in capsys.readouterr().out
