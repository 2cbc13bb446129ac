"""What the stages `label` and `rows` compute of samples, against a reckoning sample by sample in plain Python (on DuckDB here;
`make test-spark` holds Spark against it)."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from synthetic import Campaign, write

from pipelines import engine, label, params, reduce, rows, samples
from pipelines.errors import BadInput, PipelineError
from pipelines.io import sha256_file

MIXED = Campaign(
    loads=(1600.0, 3200.0),
    samples=5,
    client_limited_every=7,
    unresolvable_every=11,
    neighbours=((), (("gamma", 800.0), ("beta", 1600.0))),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every verdict in most shards, in a folder whose name reads like a pattern; a shard of valid rows alone; rows shuffled."""
    root = write(tmp_path_factory.mktemp("data") / "a[1]*{b}", MIXED)
    frame = pl.concat([pl.read_parquet(path, glob=False) for path in sorted((root / "shards").iterdir())])
    # windows of one case that tell different stories
    verdict = pl.when(pl.int_range(pl.len()) % 17 == 0).then(pl.lit("not-resolvable")).otherwise("verdict")
    frame = frame.with_columns(verdict.alias("verdict")).sample(fraction=1.0, shuffle=True, seed=3)
    frame = frame.with_columns(pl.when(pl.int_range(pl.len()) % 97 == 5).then(None).otherwise("ipc").alias("ipc"))
    frame = frame.with_columns(
        pl.when(pl.int_range(pl.len()) % 89 == 7).then(math.nan).otherwise("res_mem_mb").alias("res_mem_mb")
    )
    whole = frame.filter(pl.col("verdict") == "valid", pl.col("ipc").is_not_null(), pl.col("res_mem_mb").is_finite())[:400]
    rest = frame.join(whole.select("case_id", "t_ms"), on=["case_id", "t_ms"], how="anti", maintain_order="left")
    for path in (root / "shards").iterdir():
        path.unlink()
    shards = []
    for k, part in enumerate((rest[:1500], whole, rest[1500:1501], rest[1501:])):
        path = root / "shards" / f"{k:05d}.parquet"
        part.write_parquet(path, row_group_size=300)
        shards.append({"file": f"shards/{path.name}", "rows": part.height, "sha256": sha256_file(path)})
    manifest = json.loads((root / "manifest.json").read_text())
    (root / "manifest.json").write_text(json.dumps(manifest | {"shards": shards}))
    return root


@pytest.fixture(scope="module")
def labels(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("labels")
    label.run(folder, out, params.Label())
    return out


def plain(folder: Path) -> list[dict[str, Any]]:
    """All samples in the order of the manifest."""
    data = samples.open_dataset(folder)
    return [row for shard in data.shards for row in pl.read_parquet(shard, glob=False).iter_rows(named=True)]


def told(row: dict[str, Any]) -> str:
    return "+".join(sorted(f"{n['service']}@{n['rps']}" for n in row["neighbours"]))


def cell_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["service"], row["rps"], row["threads"], row["mba_pct"], told(row), row["alloc_cores"], row["alloc_ways"])


def test_cells_are_what_their_samples_say(folder: Path) -> None:
    """A case by the majority of its rows and the median of its valid windows, to the last bit; a cell by its cases."""
    with engine.connect(params.Samples()) as on:
        found = reduce.cells(samples.open_dataset(folder), on)
    by_case: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in plain(folder):
        if row["verdict"] != "client-limited":
            by_case[(*cell_of(row), row["case_id"])].append(row)
    assert found.height == len({key[:-1] for key in by_case}) == len(by_case)  # one case a cell here
    got = {tuple(row[name] for name in samples.CELL_KEY): row for row in found.iter_rows(named=True)}
    seen = Counter()
    for key, windows in by_case.items():
        count = Counter(row["verdict"] for row in windows)
        valid = [row for row in windows if row["verdict"] == "valid"]
        unknown = len(windows) - count["valid"] - count["server-overloaded"]
        if count["server-overloaded"] and count["server-overloaded"] >= max(count["valid"], unknown):
            status, p99 = "overloaded", math.inf
        elif count["valid"] > unknown:
            status, p99 = "measured", statistics.median([row["latency_p99_ms"] for row in valid])
        else:
            status, p99 = "unknown", None
        # the key of a plane is not in the order of CELL_KEY
        cell = got[tuple(dict(zip(KEY, key, strict=True))[name] for name in samples.CELL_KEY)]
        assert (cell["status"], cell["p99_ms"], cell["rows"], cell["cases"]) == (status, p99, len(windows), 1)
        if valid:
            # parts of 2^-20 MB/s, each rounded to the nearest
            assert cell["mbl_mbps"] == pytest.approx(statistics.fmean([r["mbl_mbps"] for r in valid]), rel=0, abs=2**-21)
        else:
            assert cell["mbl_mbps"] is None
        seen[status] += 1
    assert min(seen["measured"], seen["overloaded"], seen["unknown"]) > 10


KEY = ("service", "rps", "threads", "mba_pct", "nb_key", "alloc_cores", "alloc_ways", "case_id")
WANTED = {True: ("valid", "server-overloaded"), False: ("valid",)}


@pytest.mark.parametrize("overloaded", [True, False])
@pytest.mark.parametrize(("max_rows", "batch"), [(10_000_000, 256), (1500, 256), (1500, 1), (100, 2)])
def test_rows_are_every_kth_of_those_wanted(
    folder: Path, labels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overloaded: bool, max_rows: int, batch: int
) -> None:
    """Counted over all shards in the manifest's order, however many are read at a time; what is left out is counted."""
    monkeypatch.setattr(engine, "BATCH", batch)
    p = params.Rows(max_rows=max_rows, use_overloaded_inputs=overloaded)
    about = rows.run(folder, labels, tmp_path / "rows", p)
    found = pl.read_parquet(tmp_path / "rows" / "rows.parquet")
    cells = pl.read_parquet(labels / "cells.parquet")

    every = plain(folder)
    kept = [row for row in every if row["verdict"] != "client-limited"]
    usable = [row for row in kept if all(row[n] is not None and math.isfinite(row[n]) for n in about["features"])]
    wanted = [row for row in usable if row["verdict"] in WANTED[overloaded]]
    step = math.ceil(len(wanted) / max_rows)
    want = wanted[::step]
    assert found.height == len(want) == about["rows"] <= max_rows
    assert about["rows_left_out"] == {
        "disturbed": 0,
        "memory_bound": 0,
        "feature_missing": len(kept) - len(usable),
        "not_resolvable": sum(row["verdict"] == "not-resolvable" for row in kept),
        "overloaded": 0 if overloaded else sum(row["verdict"] == "server-overloaded" for row in kept),
        "thinned_out": len(wanted) - len(want),
    }
    assert about["rows_left_out"]["feature_missing"] > 0
    for name in about["features"]:
        assert found[name].to_list() == [row[name] for row in want]
    assert found["p99_ms"].to_list() == [row["latency_p99_ms"] if row["verdict"] == "valid" else None for row in want]
    place = {cell: k for k, cell in enumerate(cells.select(samples.CELL_KEY).iter_rows())}
    key = [dict(zip(KEY, (*cell_of(row), None), strict=True)) for row in want]
    assert found["cell"].to_list() == [place[tuple(k[name] for name in samples.CELL_KEY)] for k in key]


@pytest.mark.parametrize("way", [".", "../{name}"])
def test_a_relative_folder_gives_the_same_rows(
    folder: Path, labels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """dvc.yaml names folders from the repository's root."""
    rows.run(folder, labels, tmp_path / "absolute", params.Rows())
    monkeypatch.chdir(folder)
    rows.run(Path(way.format(name=folder.name)), labels, tmp_path / "relative", params.Rows())
    found = [(tmp_path / name / "rows.parquet").read_bytes() for name in ("absolute", "relative")]
    assert found[0] == found[1]


def test_threads_and_memory_change_no_bit(folder: Path, tmp_path: Path) -> None:
    """One thread or four, and with so little memory that it may spill: files of the same bytes."""
    digests = set()
    for threads, memory_mb in ((1, 4096), (4, 4096), (2, 256)):
        out, reading = tmp_path / f"{threads}-{memory_mb}", params.Samples(threads=threads, memory_mb=memory_mb)
        label.run(folder, out, params.Label(), reading)
        rows.run(folder, out, out, params.Rows(max_rows=700), reading)
        files = ("cells.parquet", "labels.parquet", "label.json", "rows.parquet", "rows.json")
        digests.add(tuple(hashlib.sha256((out / name).read_bytes()).hexdigest() for name in files))
    assert len(digests) == 1


def test_another_engine_runs_no_stage_again() -> None:
    """Results do not depend on it, so DVC does not watch it."""
    stages = yaml.safe_load((Path(__file__).parents[1] / "dvc.yaml").read_text("utf-8"))["stages"]
    watched = {str(p).split(".")[0] for stage in stages.values() for p in stage.get("do", stage).get("params", [])}
    assert {"label", "rows"} <= watched
    assert "samples" not in watched


def test_a_feature_that_no_row_has_is_no_feature(tmp_path: Path) -> None:
    """A host without cache partitioning: rows have the other features, and none is dropped for it."""
    data = write(tmp_path / "data", Campaign(ways=0, cores=2.0, core_values=(1.0, 2.0), feature_set="full", loads=(200.0,)))
    label.run(data, tmp_path / "label", params.Label())
    about = rows.run(data, tmp_path / "label", tmp_path / "rows", params.Rows())
    assert "alloc_cores" in about["features"]
    assert not {"alloc_ways", "alloc_cache_mb"} & set(about["features"])
    assert about["rows_left_out"]["feature_missing"] == 0


def test_a_damaged_shard_is_named_in_one_line(tmp_path: Path) -> None:
    """The stage `rows` does not hash shards again; one that was cut since is DuckDB's error, not a traceback."""
    data = write(tmp_path / "data", Campaign(loads=(800.0,), samples=1))
    label.run(data, tmp_path / "label", params.Label())
    shard = data / "shards" / "00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(PipelineError, match=r"00001\.parquet") as caught:
        rows.run(data, tmp_path / "label", tmp_path / "rows", params.Rows())
    assert "\n" not in str(caught.value)
    assert "campaign verify" in str(caught.value)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    data = write(tmp_path / "data", Campaign(loads=(800.0,), samples=1))
    for shard in (data / "shards").iterdir():
        pl.read_parquet(shard).drop("latency_p99_ms").write_parquet(shard)
    with (
        engine.connect(params.Samples()) as on,
        pytest.raises(BadInput, match=r"00000\.parquet: column latency_p99_ms is missing"),
    ):
        reduce.cells(samples.open_dataset(data, check_shards=False), on)


def test_an_engine_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(BadInput, match=r"requirements-spark\.lock") as caught, engine.connect(params.Samples(engine="spark")):
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "field"), [("samples: {engine: pandas}", "samples.engine"), ("samples: {memory_mb: 1}", "samples.memory_mb")]
)
def test_the_engine_is_checked_in_params(tmp_path: Path, text: str, field: str) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(BadInput, match=field):
        params.load(tmp_path / "params.yaml")
