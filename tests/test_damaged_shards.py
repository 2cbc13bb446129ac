"""Damaged shards, of which the manifest tells the truth: the card, `label` and `rows` say so in a line, or count them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import yaml
from campaigns import measured

from collection import card, cli, verified
from pipelines import label, rows

PARAMS = str(Path(__file__).parent.parent / "params.yaml")
CAMPAIGN = """\
name = "damaged"
seed = 1
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses"]
rps = [600, 1200]
threads = [8]
cores = "4..12 step 4"
ways = "2..10 step 4"
[sampling]
interval_ms = 1000
samples = 4
"""
SHARD = "shards/part-00000.parquet"
# rows of the shard that are changed
SOME = pl.int_range(pl.len()) < 8
MISSING, NO_ALLOCATION = "rows have no service, case_id", "rows have alloc_cores that is not above 0 and at most 36"


def some(column: str, value: pl.Expr | float | str | None) -> Callable[[pl.DataFrame], pl.DataFrame]:
    other = value if isinstance(value, pl.Expr) else pl.lit(value)
    return lambda frame: frame.with_columns(pl.when(SOME).then(other).otherwise(pl.col(column)).alias(column))


# kind: (what becomes of the rows, what the card says, what `label` says; None: it counts them)
DAMAGE: dict[str, tuple[Callable[[pl.DataFrame], pl.DataFrame], str, str | None]] = {
    "NaN": (some("latency_p99_ms", float("nan")), "8 rows without a name, or with a number that none measures", None),
    "infinite": (some("latency_p99_ms", float("inf")), "8 rows without a name", None),
    "negative": (some("latency_p99_ms", -pl.col("latency_p99_ms")), "8 rows without a name", None),
    "zero": (some("latency_p99_ms", 0.0), "", None),
    "a load of NaN": (some("rps", float("nan")), "8 rows without a name", "8 rows have an rps below 0, or none"),
    "no load": (some("rps", None), "8 rows without a name", f"8 {MISSING}"),
    "negative cores": (some("alloc_cores", -1.0), "8 rows without a name", f"8 {NO_ALLOCATION}"),
    "cores of NaN": (some("alloc_cores", float("nan")), "8 rows without a name", f"8 {NO_ALLOCATION}"),
    "more cores than there are": (some("alloc_cores", 37.0), "", f"8 {NO_ALLOCATION}"),
    "cores of no number": (some("alloc_cores", 1e300), "8 rows without a name", f"8 {NO_ALLOCATION}"),
    "more ways than there are": (some("alloc_ways", 21.0), "", "8 rows have alloc_ways that is not from 0 to 20"),
    "bandwidth of no server": (some("mbl_mbps", 1e300), "8 rows without a name", "8 rows have an mbl_mbps below 0"),
    "negative bandwidth": (some("mbl_mbps", -1.0), "8 rows without a name", "8 rows have an mbl_mbps below 0"),
    "nobody's": (some("service", None), "8 rows without a name", f"8 {MISSING}"),
    "another's": (some("service", "zzz"), "", "services.zzz: no QoS target"),
    "no case": (some("case_id", None), "8 rows without a name", f"8 {MISSING}"),
    "no verdict": (some("verdict", None), "8 rows without a name", f"8 {MISSING}"),
    "a verdict of its own": (some("verdict", "great"), "", "verdict 'great' is unknown"),
    "doubled": (lambda f: pl.concat([f, f[:8]]), "8 rows with case and time of another row", "8 rows have the case_id and t_ms"),
    "a column less": (lambda f: f.drop("ipc"), f"{SHARD}: column ipc is missing", "column ipc is missing"),
    "text for numbers": (lambda f: f.cast({"latency_p99_ms": pl.String}), "column latency_p99_ms is String", "want numbers"),
    "text for cores": (lambda f: f.cast({"alloc_cores": pl.String}), "column alloc_cores is String", "want numbers"),
    "numbers for text": (lambda f: f.with_columns(service=pl.lit(7)), "column service is Int32", "want text"),
    "text for neighbours": (lambda f: f.with_columns(neighbours=pl.lit("x")), "column neighbours is String", "want a list"),
    "no rows": (lambda f: f[:0], "", "the data set has no samples"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured(tmp_path_factory.mktemp("whole"), CAMPAIGN)


def damaged(whole: Path, folder: Path, change: Callable[[pl.DataFrame], pl.DataFrame] | bytes) -> Path:
    """A copy of the campaign with another shard, which its manifest lists as it is."""
    shutil.copytree(whole, folder)
    path, own = folder / "server-1" / SHARD, folder / "server-1" / "manifest.json"
    manifest = json.loads(own.read_bytes())
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        frame = change(pl.read_parquet(path))
        frame.write_parquet(path)
        manifest["shards"][0]["rows"] = frame.height
    manifest["shards"][0]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    own.write_text(json.dumps(manifest), "utf-8")
    return folder


def stage(work: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str], **folders: Path) -> tuple[int, str]:
    capsys.readouterr()
    code = work([*(x for name, path in folders.items() for x in (f"--{name}", str(path))), "--params", PARAMS])
    return code, capsys.readouterr().err


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage(kind: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The card is written and counts what it leaves out; `label` names shard and rows, or counts what is no latency."""
    change, card_says, label_says = DAMAGE[kind]
    data = damaged(whole, tmp_path / "data", change)
    cli.main(["campaign", "card", str(data)])
    gaps = [line for line in (data / card.CARD).read_text("utf-8").splitlines() if "verify` says more" in line]
    assert len(gaps) >= bool(card_says)
    assert any(card_says in line for line in gaps) or not card_says
    code, err = stage(label.main, capsys, data=data / "server-1", out=tmp_path / "label")
    if label_says is not None:
        assert code == 2
        assert label_says in err
        assert len(err.splitlines()) == 1
        return
    assert code == 0, err
    assert json.loads((tmp_path / "label" / "label.json").read_bytes())["rows_without_latency"] == 8
    out = {"data": data / "server-1", "labels": tmp_path / "label", "out": tmp_path / "rows"}
    assert stage(rows.main, capsys, **out) == (0, "")
    p99_ms = pl.read_parquet(tmp_path / "rows" / "rows.parquet")["p99_ms"].drop_nulls()
    assert p99_ms.is_finite().all()
    assert (p99_ms > 0).all()


def test_features_that_are_none(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row with a counter below 0 or without a number is no row to learn from; it is counted."""
    data = damaged(whole, tmp_path / "data", lambda f: some("res_mem_mb", float("nan"))(some("ipc", -1.0)(f)))
    assert stage(label.main, capsys, data=data / "server-1", out=tmp_path / "label") == (0, "")
    out = {"data": data / "server-1", "labels": tmp_path / "label", "out": tmp_path / "rows"}
    assert stage(rows.main, capsys, **out) == (0, "")
    assert json.loads((tmp_path / "rows" / "rows.json").read_bytes())["rows_left_out"]["feature_missing"] == 8
    assert (pl.read_parquet(tmp_path / "rows" / "rows.parquet")["ipc"] >= 0).all()


def test_the_pipeline_verifies_first(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`dvc repro` ends before `label` where `surefoot campaign verify` finds damage, and goes on where it finds none."""
    stages = yaml.safe_load((Path(PARAMS).parent / "dvc.yaml").read_text("utf-8"))["stages"]
    (made,) = stages["verify"]["do"]["outs"]
    assert made in stages["label"]["do"]["deps"]
    assert verified.main(["--data", str(whole / "server-1"), "--out", str(tmp_path / "good")]) == 0
    assert json.loads((tmp_path / "good" / "verify.json").read_bytes())["warnings"] == []
    data = damaged(whole, tmp_path / "data", DAMAGE["negative"][0])
    capsys.readouterr()
    assert verified.main(["--data", str(data / "server-1"), "--out", str(tmp_path / "bad")]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {data}/server-1/{SHARD}: ")
    assert err.count("\n") == 1
    assert "surefoot campaign verify" in err
    assert not (tmp_path / "bad").exists()
    assert verified.main(["--data", str(tmp_path / "none"), "--out", str(tmp_path / "bad")]) == 2


@pytest.mark.parametrize("kind", ["cut", "no Parquet", "damaged inside"])
def test_files_that_are_no_parquet(kind: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The card is written without the shard and names it; `label` ends in one line that names it."""
    good = (whole / "server-1" / SHARD).read_bytes()
    inside = good[:40] + b"\xff" * 2000 + good[2040:]
    data = damaged(whole, tmp_path / "data", {"cut": good[:-300], "no Parquet": b"x" * 1000, "damaged inside": inside}[kind])
    cli.main(["campaign", "card", str(data)])
    assert f"- {SHARD}: is not readable as Parquet" in (data / card.CARD).read_text("utf-8")
    code, err = stage(label.main, capsys, data=data / "server-1", out=tmp_path / "label")
    assert code in (1, 2)
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "label").exists()
