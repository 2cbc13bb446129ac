"""`campaign verify` finds every kind of damage and names the file and the remedy."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from campaigns import measured

from collection import campaign, card, dataset, layout, shardfile, standing, verify
from collection.errors import DataSetError
from pipelines import label, params
from pipelines.io import sha256_file

CAMPAIGN = """\
name = "proof"
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses", "xapian", "img-dnn"]
threads = [8]
cores = "1..20"
ways = "1..20"
[sampling]
interval_ms = 1000
samples = 12
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured(tmp_path_factory.mktemp("whole"), CAMPAIGN)


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    """A data set of several shards, to be damaged."""
    shutil.copytree(whole, tmp_path / "data")
    assert len(list((tmp_path / "data/server-1/shards").iterdir())) >= 2
    return tmp_path / "data"


def shards(data: Path) -> list[Path]:
    return sorted((data / "server-1" / "shards").iterdir())


def only_finding(data: Path) -> verify.Finding:
    result = verify.verify(data)
    assert len(result.findings) == 1, result.findings
    return result.findings[0]


def change_manifest(data: Path, **fields: object) -> None:
    path = data / "server-1" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **fields}), "utf-8")


def seal(data: Path, shard: Path, frame: pl.DataFrame) -> None:
    """Replace a shard and make the manifest agree with it."""
    frame.write_parquet(shard, compression="zstd")
    manifest = json.loads((data / "server-1/manifest.json").read_text("utf-8"))
    for entry in manifest["shards"]:
        if entry["file"].endswith(shard.name):
            entry["sha256"], entry["rows"] = sha256_file(shard), frame.height
    change_manifest(data, shards=manifest["shards"])


def test_a_whole_data_set_passes(data: Path) -> None:
    """Nothing wrong: every shard, row and case is counted. The folder of a target can be given as well."""
    result = verify.verify(data)
    assert result.ok
    assert result.cases == 3 * 5 * 20 * 20
    assert result.rows == result.cases * 12
    assert verify.verify(data / "server-1").as_json() == {**result.as_json(), "folder": str(data / "server-1")}


def test_truncated_shard(data: Path) -> None:
    """A shard that lost its tail is named."""
    shard = shards(data)[1]
    shard.write_bytes(shard.read_bytes()[:-1000])
    finding = only_finding(data)
    assert finding.file == str(shard)
    assert "SHA-256" in finding.what
    assert "truncated or damaged" in finding.what
    assert f"rm {shard}" in finding.remedy


def test_flipped_byte(data: Path) -> None:
    """One changed byte in the middle of a shard is found."""
    shard = shards(data)[0]
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 2] ^= 1
    shard.write_bytes(raw)
    finding = only_finding(data)
    assert finding.file == str(shard)
    assert "SHA-256" in finding.what


def test_remedy_of_a_bad_shard_works(data: Path) -> None:
    """Doing as the remedy says gives back the data set as it was."""
    shard = shards(data)[0]
    good = shard.read_bytes()
    shard.write_bytes(good[:100])
    assert not verify.verify(data).ok
    shard.unlink()
    campaign.run(data / "campaign.toml", data)
    assert shard.read_bytes() == good
    assert verify.verify(data).ok


def test_missing_shard(data: Path) -> None:
    """A shard that is gone is named, with its rows."""
    shard = shards(data)[1]
    shard.unlink()
    finding = only_finding(data)
    assert finding.file == str(shard)
    assert "is missing" in finding.what
    assert "campaign run" in finding.remedy


def test_orphan_file(data: Path) -> None:
    """A shard that no manifest lists is named."""
    stray = data / "server-1/shards/part-99999.parquet"
    shutil.copy(shards(data)[0], stray)
    finding = only_finding(data)
    assert finding.file == str(stray)
    assert "is in no manifest" in finding.what


def test_duplicate_case_across_shards(data: Path) -> None:
    """Rows of one case in two shards are found even if hashes and row counts agree."""
    first, second = shards(data)[:2]
    a, b = pl.read_parquet(first), pl.read_parquet(second)
    case = a["case_id"][0]
    seal(data, second, pl.concat([b, a.filter(pl.col("case_id") == case)]))
    finding = only_finding(data)
    assert finding.file == str(second)
    assert f"case {case}: in shards/{first.name} too" in finding.what


def test_duplicate_case_in_the_journal(data: Path) -> None:
    """A case that is written down twice is found."""
    journal = data / "server-1/journal.jsonl"
    first = journal.read_text("utf-8").splitlines()[0]
    with journal.open("a", encoding="utf-8") as file:
        file.write(first + "\n")
    what = " ".join(f.what for f in verify.verify(data).findings)
    assert f"case {json.loads(first)['case_id']}: more than once" in what
    assert "do not add up" in what


def test_lost_rows(data: Path) -> None:
    """Rows that are missing from a shard are found, although its hash agrees with the manifest."""
    shard = shards(data)[0]
    frame = pl.read_parquet(shard)
    case = frame["case_id"][-1]
    seal(data, shard, frame.head(frame.height - 1))
    finding = only_finding(data)
    assert finding.file == str(shard)
    assert f"case {case}: 11 rows, the journal says 12" in finding.what


def test_another_schema(data: Path) -> None:
    """A column that is missing, renamed or of another type is found."""
    shard = shards(data)[0]
    seal(data, shard, pl.read_parquet(shard).rename({"ipc": "IPC"}).with_columns(pl.col("threads").cast(pl.Int64)))
    what = only_finding(data).what
    assert "column ipc is missing" in what
    assert "column threads is Int64, want Int32" in what
    assert "column IPC is not part of the format" in what


def test_how_a_service_was_loaded(data: Path) -> None:
    """Every row says how it was loaded and what its latency counts from; another word than the format's is found."""
    shard = shards(data)[0]
    frame = pl.read_parquet(shard)
    assert frame.select("loop", "latency_from").unique().rows() == [("open", "intended")]
    seal(data, shard, frame.with_columns(loop=pl.lit("ajar"), latency_from=pl.lit(None, pl.String)))
    assert "column loop: not one of the format's in" in only_finding(data).what


@pytest.mark.parametrize("older", [slice(None), slice(0, 1), slice(1, None)])
def test_shards_of_an_earlier_version(older: slice, data: Path) -> None:
    """Shards without the columns that came later are sound, alone and beside newer ones, and are read together."""
    for shard in shards(data)[older]:
        seal(data, shard, pl.read_parquet(shard).drop(shardfile.ADDED, strict=False))
    result = verify.verify(data)
    # the card is of the shards as they were
    assert [Path(f.file).name for f in result.findings] == ["data-card.md"]
    assert shardfile.scan(shards(data)).select(pl.len()).collect().item() == result.rows
    assert card._scan(shards(data))["verdicts"]["valid"] > 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}', '{"schema_version": 99}'])
def test_corrupt_manifest_of_a_target(text: str, data: Path) -> None:
    """A manifest that cannot be understood is one finding with the way out, not a traceback."""
    (data / "server-1/manifest.json").write_text(text, "utf-8")
    finding = only_finding(data)
    assert finding.file == str(data / "server-1/manifest.json")
    assert "restore it from a copy" in finding.remedy
    with pytest.raises(DataSetError, match=r"manifest.json"):
        campaign.status(data)


def test_corrupt_summary(data: Path) -> None:
    """The campaign's own manifest can be rebuilt, and verify says how; doing so works."""
    (data / "manifest.json").write_text("nonsense", "utf-8")
    finding = only_finding(data)
    assert finding.file == str(data / "manifest.json")
    assert "rebuild it: surefoot campaign run" in finding.remedy
    campaign.run(data / "campaign.toml", data)
    assert verify.verify(data).ok


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda t: [{**t, "folder": "a\0b"}], "folder"),
        (lambda t: [{**t, "folder": "../elsewhere"}], "folder"),
        (lambda t: [{**t, "folder": "/"}], "folder"),
        (lambda t: [{**t, "folder": "."}], "folder"),
        (lambda t: [{**t, "name": "../../picture"}], "name"),
        (lambda t: [t, t], "twice"),
        (lambda t: [t, {**t, "name": "another"}], "twice"),
        (lambda t: [{**t, "cases": {"planned": "many"}}], "cases.planned"),
        (lambda _: ["text"], "no table"),
    ],
)
@pytest.mark.parametrize("command", [standing.status, card.write])
def test_a_target_is_a_folder_of_the_data_set(
    data: Path, command: Callable[[Path], object], change: Callable[[dict[str, Any]], object], wrong: str
) -> None:
    """Whatever a campaign's manifest names, nothing is read or written outside of the data set, and nothing twice."""
    file = data / "manifest.json"
    told = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**told, "targets": change(told["targets"][0])}), "utf-8")
    with pytest.raises(DataSetError, match=f"manifest.json: targets: .*{wrong}.*; rebuild it: "):
        command(data)
    assert any(wrong in f.what for f in verify.verify(data).findings)


def test_counts_that_do_not_add_up(data: Path) -> None:
    """A manifest whose counts differ from the journal is found."""
    cases = json.loads((data / "server-1/manifest.json").read_text("utf-8"))["cases"]
    change_manifest(data, cases={**cases, "measured": cases["measured"] - 1, "failed": cases["failed"] + 1})
    finding = only_finding(data)
    assert finding.file.endswith("journal.jsonl")
    assert "do not add up: measured" in finding.what


def test_damaged_journal(data: Path) -> None:
    """A line that is no journal line is named with its number; a cut-off last line is told apart from damage."""
    journal = data / "server-1/journal.jsonl"
    good = journal.read_text("utf-8").splitlines(keepends=True)
    journal.write_text("".join([good[0], "garbage\n", *good[2:]]), "utf-8")
    findings = verify.verify(data).findings
    assert any(f.file == f"{journal}:2" and "no journal line" in f.what for f in findings)
    journal.write_text("".join(good) + good[0][:20], "utf-8")
    finding = only_finding(data)
    assert "cut off" in finding.what


def test_journal_in_blocks(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the blocks are that a journal is read in: the same lines, counts and damage, under the same numbers."""
    good = (whole / "server-1/journal.jsonl").read_text("utf-8").splitlines(keepends=True)[:200]
    bad = '{"case_id":"00","state":"lost","shard":0,"rows":1}\n'
    failed = '{"case_id":"01","state":"failed","reason":"no \\"state\\":\\"measured\\" here","shard":0,"rows":0}\n'
    (tmp_path / "journal.jsonl").write_text("".join([*good[:150], bad, failed, *good[150:], good[0][:30]]), "utf-8")
    at_once = dataset.read_journal(tmp_path)
    counts = standing.count(tmp_path, 300)
    assert (at_once.lines.height, at_once.torn) == (201, True)
    assert [number for number, _ in at_once.damage] == [151]
    assert (counts.measured + counts.overloaded, counts.failed) == (200, 1)
    assert dataset.failures(tmp_path) == [{"reason": 'no "state":"measured" here', "cases": 1, "examples": ["01"]}]
    for size in (1, 37, 1000, 100_000):
        monkeypatch.setattr(layout, "_BLOCK_BYTES", size)
        found = dataset.read_journal(tmp_path)
        assert found.lines.equals(at_once.lines)
        assert (found.damage, found.torn) == (at_once.damage, True)
        assert standing.count(tmp_path, 300) == counts


def test_command_line(data: Path) -> None:
    """The command prints one finding a file and ends with exit code 1; with --json, the same as a document."""
    command = [sys.executable, "-m", "collection.cli", "campaign", "verify", str(data)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok ")
    shards(data)[0].unlink()
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["ok"] is False
    assert found["findings"][0]["file"] == str(shards(data)[0].with_name("part-00000.parquet"))


def test_not_a_data_set(tmp_path: Path) -> None:
    """A folder that never was a data set is bad input."""
    with pytest.raises(DataSetError, match=r"no data set"):
        verify.verify(tmp_path)
    assert dataset.read_journal(tmp_path).lines.is_empty()


def test_a_sweep_without_a_campaign_gets_its_own_remedies(data: Path, tmp_path: Path) -> None:
    """What `surefootd sweep` made alone goes on with that command; `campaign status` says what the folder is."""
    alone = tmp_path / "alone"
    shutil.copytree(data / "server-1", alone)
    change_manifest(data, complete=False)
    shutil.copy(data / "server-1" / "manifest.json", alone)
    assert only_finding(alone).remedy == f"go on: surefootd sweep CAMPAIGN.toml --server SERVER --out {alone} --resume"
    assert only_finding(data).remedy == f"go on: surefoot campaign run {data}/campaign.toml --out {data}"
    with pytest.raises(DataSetError, match="is the data set of one target, not a campaign's folder") as e:
        campaign.status(alone)
    assert "schema_version" not in str(e.value)


FRONTIER = (
    CAMPAIGN.replace('name = "proof"', 'name = "few"\nstrategy = "frontier"')
    .replace('cores = "1..20"\nways = "1..20"\n', "neighbours = { count = [0, 2], draws = 1 }\n")
    .replace("samples = 12", "samples = 3")
)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured(tmp_path_factory.mktemp("few"), FRONTIER)


def test_a_frontier_campaign_adds_up(few: Path) -> None:
    """What the search did not need is `skipped`: states add up to the grid, with and without the manifest's word for it."""
    state = campaign.status(few)
    cases = state["cases"]
    # 3 services x 5 loads x 2 draws x 36 x 20 cells
    assert (state["state"], cases["planned"], cases["pending"]) == ("done", 3 * 5 * 2 * 720, 0)
    assert sum(cases[s] for s in dataset.STATES) == cases["planned"]
    assert 0 < cases["measured"] + cases["overloaded"] < cases["planned"] / 20
    assert standing.count(few / "server-1", cases["planned"]).as_json() == cases
    journal = dataset.read_journal(few / "server-1")
    assert {s: cases[s] for s in dataset.STATES} == journal.by_state()
    result = verify.verify(few)
    assert (result.findings, result.cases) == ([], cases["planned"])


def test_status_reads_only_what_the_manifest_has_not_counted(few: Path, tmp_path: Path) -> None:
    """A journal that grew since the last checkpoint, and one that was cut before it."""
    folder = tmp_path / "server-1"
    shutil.copytree(few / "server-1", folder)
    journal = folder / dataset.JOURNAL
    manifest = dataset.read_manifest(folder)
    whole = standing.count(folder, 10**6)
    with journal.open("a") as file:
        file.write('{"case_id":"x","state":"failed","reason":"r","shard":99,"rows":0}\n')
        file.write('{"case_id":"y","state":"skipped","shard":99,"rows":0,"cases":700}\n')
    grown = standing.count(folder, 10**6, (manifest.journal_bytes, manifest.cases.by_state()))
    assert (grown.failed, grown.skipped, grown.done) == (whole.failed + 1, whole.skipped + 700, whole.done + 701)
    assert grown == standing.count(folder, 10**6)
    journal.write_bytes(journal.read_bytes()[: manifest.journal_bytes // 2])
    assert (
        standing.count(folder, 10**6, (manifest.journal_bytes, manifest.cases.by_state()))
        == standing.count(folder, 10**6)
        != whole
    )


def test_labels_of_a_frontier_campaign_are_those_of_every_cell(few: Path, tmp_path: Path) -> None:
    """The label stage gives the whole grid's RCliff and OAA, exact where nothing unmeasured could move them."""
    (tmp_path / "campaign.toml").write_text(FRONTIER.replace("frontier", "exhaustive"), "utf-8")
    campaign.run(tmp_path / "campaign.toml", tmp_path / "out")
    found = []
    for folder in (few, tmp_path / "out"):
        label.run(folder / "server-1", tmp_path / "labels", params.Label())
        found.append(pl.read_parquet(tmp_path / "labels" / "labels.parquet"))
    labels, want = (frame.with_columns(pl.col("neighbours").str.replace_all(r":[0-9.]+c\d+w", "")) for frame in found)
    point = ["rcliff_cores", "rcliff_ways", "oaa_cores", "oaa_ways"]
    both = labels.join(want, on=["service", "rps", "neighbours"], suffix="_all")
    assert both.height == labels.height == want.height == 30
    assert (both["cells"] == both["cells_all"]).all()
    assert both["cells_measured"].sum() * 20 <= both["cells"].sum()
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_all")) for name in point)
    # The virtual server's readings are noisy, and both labels rest on them.
    assert both.select(same.sum()).item() >= 28, both.filter(~same)
    assert (both["kind"].drop_nulls() == "exact").all()
    assert both["oaa_mbl_mbps"].null_count() == both["oaa_mbl_mbps_all"].null_count()
