"""Labels along the axis of memory, and what rows under a limit are to all other labels: nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from synthetic import Campaign, write

from collection import report, shardfile
from pipelines import label, params, reduce, samples
from pipelines import rows as rows_stage
from pipelines.errors import BadInput
from pipelines.io import sha256_file

INF, NAN = math.inf, math.nan
GIB = 1 << 30


def found(limits: list[float], p99_ms: list[float]) -> tuple[float | None, float | None, str | None]:
    of = label.memory_label(limits, p99_ms, 10.0)
    return of["memory_oaa_bytes"], of["memory_cliff_bytes"], of["memory_kind"]


def test_the_least_limit_that_meets_the_target_and_the_step_that_costs_the_most() -> None:
    assert found([1, 2, 3, 4, INF], [INF, 20.0, 5.0, 4.9, 4.8]) == (3, 3, "exact")
    # the jump is where p99 is multiplied, which need not be where the target is missed
    assert found([1, 2, 3, 4], [12.0, 9.0, 8.0, 1.0]) == (2, 4, "exact")
    # a larger limit that misses by itself: no smaller one is safe
    assert found([1, 2, 3, 4], [INF, 9.0, 12.0, 2.0])[0] == 4


def test_what_was_not_measured_bounds_a_label() -> None:
    # nothing below the least limit is known, though it meets the target
    assert found([1, 2, INF], [3.0, 2.0, 2.0]) == (1, 2, "bounded")
    # between 1, which misses, and 3, which meets the target
    assert found([1, 2, 3, 4], [INF, NAN, 5.0, 4.0]) == (3, 4, "bounded")


@pytest.mark.parametrize(
    ("limits", "p99_ms", "why"),
    [
        ([1, 2], [30.0, 20.0], "missed with the largest limit"),
        ([1, INF], [30.0, 12.0], "missed without a limit"),
        ([1, INF], [30.0, 2.0], "met without a limit alone"),
    ],
)
def test_no_label_without_its_reason(limits: list[float], p99_ms: list[float], why: str) -> None:
    of = label.memory_label(limits, p99_ms, 10.0)
    assert why in of["memory_reason"]
    assert (of["memory_oaa_bytes"], of["memory_cliff_bytes"], of["memory_kind"]) == (None, None, None)


def test_a_label_of_one_limit_has_no_cliff() -> None:
    of = label.memory_label([GIB], [3.0], 10.0)
    assert (of["memory_oaa_bytes"], of["memory_cliff_bytes"]) == (GIB, None)
    assert "smaller one" in of["memory_reason"]


def test_a_pool_is_a_curve_by_its_share_or_by_its_bytes(stages: dict[str, Path]) -> None:
    """A quarter of each limit is one pool, though no two have the same bytes; so is 1 GiB, though no two have the same share."""
    data = samples.open_dataset(stages["plain"])
    key = dict(zip(samples.CELL_KEY, ("alpha", 800.0, 12, 100, "", 12.0, 6.0), strict=True))

    def cells(pool: Callable[[int], int]) -> pl.DataFrame:
        rows = [
            {**key, "p99_ms": p99, "mem_limit_bytes": limit, "zswap_max_bytes": pool(limit)}
            | {"mem_limit_in_force_bytes": limit, "zswap_max_in_force_bytes": pool(limit)}
            for limit, p99 in ((2 * GIB, 900.0), (4 * GIB, 15.0), (8 * GIB, 14.0))
        ]
        return pl.DataFrame(rows)

    for pool in (lambda limit: limit // 4, lambda _: GIB):
        (row,) = label.label_memory(cells(pool), data).iter_rows(named=True)
        assert (row["memory_oaa_bytes"], row["memory_oaa_pool_bytes"], row["memory_cliff_bytes"]) == (4 * GIB, GIB, 4 * GIB)
        assert (row["memory_kind"], row["limits"], row["limits_measured"]) == ("exact", 3, 3)


# ---------------------------------------------------------------- the stage

PLAIN = Campaign(loads=(800.0, 1600.0), noise=0.0, samples=2)
# bytes, what the p99 of a case without a limit is multiplied by, and whether the limit binds
UNDER = ((1 * GIB, 50.0, True), (2 * GIB, 1.05, True), (4 * GIB, 1.0, False))
POOLS = (0, GIB // 2)


def with_limits(folder: Path, *, free: bool = True, raised: bool = False) -> Path:
    """The campaign's cases once more under each limit and pool. A pool makes a limit of 1 GiB do.

    Args:
        free: with the cases without a limit.
        raised: a limit of 1 GiB is in force as one of 1.5 GiB.
    """
    manifest = json.loads((folder / "manifest.json").read_text())
    for shard in manifest["shards"]:
        path = folder / shard["file"]
        plain = pl.read_parquet(path)
        none = {name: pl.lit(None, kind).alias(name) for name, kind in shardfile.MEMORY.items()}
        parts = [plain.with_columns(**(none | {samples.BINDS: pl.lit(value=False)}))] if free else []
        for bytes_, factor, binds in UNDER:
            for pool in POOLS:
                slow = 1.5 if bytes_ == GIB and pool else factor
                held = bytes_ * 3 // 2 if raised and bytes_ == GIB else bytes_
                of = {
                    "case_id": pl.format("{}-{}-{}", "case_id", pl.lit(bytes_), pl.lit(pool)),
                    **{f"latency_{q}_ms": pl.col(f"latency_{q}_ms") * slow for q in ("mean", "p50", "p95", "p99")},
                    "mem_limit_bytes": pl.lit(bytes_, pl.Int64),
                    "zswap_max_bytes": pl.lit(pool, pl.Int64),
                    "mem_limit_in_force_bytes": pl.lit(held, pl.Int64),
                    "zswap_max_in_force_bytes": pl.lit(pool, pl.Int64),
                    samples.BINDS: pl.lit(binds),
                }
                parts.append(plain.with_columns(**(none | of)))
        frame = pl.concat(parts)
        frame.write_parquet(path)
        shard |= {"rows": frame.height, "sha256": sha256_file(path)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Data sets, and what the stage makes of them: `plain` without the axis, `limited` with it."""
    at = tmp_path_factory.mktemp("memory")
    write(at / "plain", PLAIN)
    with_limits(write(at / "limited", PLAIN))
    for name in ("plain", "limited"):
        label.run(at / name, at / f"{name}-label", params.Label())
    return {path.name: path for path in at.iterdir()}


def test_a_data_set_without_the_axis_says_so(stages: dict[str, Path]) -> None:
    out = stages["plain-label"]
    labels, memory = pl.read_parquet(out / "labels.parquet"), pl.read_parquet(out / "memory.parquet")
    assert memory.height == 0
    assert (
        labels.select("memory_oaa_bytes", "memory_oaa_pool_bytes", "memory_cliff_bytes", "memory_kind")
        .null_count()
        .sum_horizontal()
        .item()
        == 4 * labels.height
    )
    assert set(labels["memory_reason"]) == {label.NO_MEMORY_AXIS}
    metrics = json.loads((out / "label.json").read_text())
    assert metrics["memory"] == {
        **dict.fromkeys(("allocations", "with_oaa", "with_cliff", "exact", "bounded")),
        "reason": label.NO_MEMORY_AXIS,
    }
    assert metrics["rows_memory_bound"] == 0


def test_rows_that_a_limit_binds_move_no_label_of_cores_and_ways(stages: dict[str, Path]) -> None:
    """A limit that does not bind is no limit: its cases are more cases of the same cells."""
    point = ["service", "rps", "rcliff_cores", "rcliff_ways", "oaa_cores", "oaa_ways", "kind", "split", "plane_id"]
    plain, limited = (pl.read_parquet(stages[f"{name}-label"] / "labels.parquet") for name in ("plain", "limited"))
    assert limited.select(point).equals(plain.select(point))
    cells = pl.read_parquet(stages["limited-label"] / "cells.parquet")
    assert set(cells.filter(pl.col("status") == "measured")["cases"]) == {1 + len(POOLS)}
    metrics = json.loads((stages["limited-label"] / "label.json").read_text())
    total = sum(metrics["rows"].values()) + metrics["rows_memory_bound"]
    assert metrics["rows_memory_bound"] == metrics["rows_dropped"] == total * 4 // 7


def test_models_learn_from_no_row_that_a_limit_binds(stages: dict[str, Path], tmp_path: Path) -> None:
    of = {
        name: rows_stage.run(stages[name], stages[f"{name}-label"], tmp_path / name, params.Rows())
        for name in ("plain", "limited")
    }
    assert of["plain"]["rows_left_out"]["memory_bound"] == 0
    assert of["limited"]["rows"] == 3 * of["plain"]["rows"]
    assert of["limited"]["rows_left_out"]["memory_bound"] == 4 * of["plain"]["rows"]
    # its p99 are those of the data set without limits
    p99 = {name: set(pl.read_parquet(tmp_path / name / "rows.parquet")["p99_ms"].drop_nulls().round(9)) for name in of}
    assert p99["plain"] == p99["limited"]


def test_labels_along_the_axis(stages: dict[str, Path]) -> None:
    """1 GiB costs fiftyfold without a pool and half as much again with one: the pool's curve has the least limit."""
    out = stages["limited-label"]
    memory = pl.read_parquet(out / "memory.parquet")
    assert memory.height == 3 * 2 * 12 * 6
    assert (memory["limits"] == 3).all()
    easy = memory.filter(pl.col("rps") == 800.0, pl.col("alloc_cores") == 12.0, pl.col("alloc_ways") == 6.0)
    assert set(easy["memory_oaa_bytes"]) == {GIB}
    assert set(easy["memory_oaa_pool_bytes"]) == {GIB // 2}
    lost = memory.filter(pl.col("alloc_cores") == 1.0, pl.col("rps") == 1600.0)
    assert lost["memory_oaa_bytes"].null_count() == lost.height
    assert lost["memory_reason"].str.contains("missed without a limit").all()
    labels = pl.read_parquet(out / "labels.parquet")
    at = labels.join(
        memory, left_on=["service", "rps", "oaa_cores", "oaa_ways"], right_on=["service", "rps", "alloc_cores", "alloc_ways"]
    )
    assert at.height == labels.height
    assert (at["memory_oaa_bytes"] == at["memory_oaa_bytes_right"]).all()
    metrics = json.loads((out / "label.json").read_text())["memory"]
    assert metrics["allocations"] == memory.height
    assert metrics["with_oaa"] == memory["memory_oaa_bytes"].is_not_null().sum() > 0
    assert metrics["exact"] + metrics["bounded"] == metrics["with_oaa"]
    assert metrics["reason"] is None


def test_a_label_is_the_limit_that_was_in_force(tmp_path: Path) -> None:
    folder = with_limits(write(tmp_path / "data", PLAIN), raised=True)
    label.run(folder, tmp_path / "out", params.Label())
    memory = pl.read_parquet(tmp_path / "out" / "memory.parquet")
    assert memory["memory_oaa_bytes"].drop_nulls().min() == 3 * GIB // 2


def test_a_limit_that_was_not_in_force_labels_nothing(tmp_path: Path) -> None:
    folder = with_limits(write(tmp_path / "data", PLAIN))
    manifest = json.loads((folder / "manifest.json").read_text())
    for shard in manifest["shards"]:
        path = folder / shard["file"]
        refused = pl.when(pl.col("mem_limit_bytes") != GIB).then("mem_limit_in_force_bytes")
        pl.read_parquet(path).with_columns(refused.alias("mem_limit_in_force_bytes")).write_parquet(path)
        shard["sha256"] = sha256_file(path)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    label.run(folder, tmp_path / "out", params.Label())
    assert pl.read_parquet(tmp_path / "out" / "memory.parquet")["memory_oaa_bytes"].drop_nulls().min() == 2 * GIB


def test_a_data_set_of_limits_alone_says_what_is_missing(tmp_path: Path) -> None:
    folder = with_limits(write(tmp_path / "data", PLAIN), free=False)
    for path in (folder / "shards").glob("*.parquet"):
        pl.read_parquet(path).with_columns(pl.lit(value=True).alias(samples.BINDS)).write_parquet(path)
    manifest = json.loads((folder / "manifest.json").read_text())
    for shard in manifest["shards"]:
        shard["sha256"] = sha256_file(folder / shard["file"])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match=r'memory-bound\); add "none" to sweep.memory'):
        label.run(folder, tmp_path / "out", params.Label())


def test_pages_show_the_labels_and_draw_no_bound_row(stages: dict[str, Path]) -> None:
    for name, says in (("plain", label.NO_MEMORY_AXIS), ("limited", "allocations of cores and ways")):
        blocks = report.label_blocks(json.loads((stages[f"{name}-label"] / "label.json").read_text()))
        assert says in "".join(map(str, blocks)), name
    (at_most,) = {m.rows for m in report.heat_maps(stages["plain"], stages["plain-label"])}
    assert {m.rows for m in report.heat_maps(stages["limited"], stages["limited-label"])} == {3 * at_most}


def test_the_reduction_without_the_axis_is_none(stages: dict[str, Path]) -> None:
    from pipelines import engine

    with engine.connect(params.Samples()) as on:
        assert reduce.memory_cells(samples.open_dataset(stages["plain"]), on) is None
