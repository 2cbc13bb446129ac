"""The stages `label` and `rows` on a local Spark leave what they leave on DuckDB, to the last bit. Run by `make test-spark`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml
from synthetic import Campaign, write

from collection import campaign

CONF = Path(__file__).parent / "spark-local"
VIRTUAL = """\
name = "spark"
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses", "xapian"]
rps = [1500, 2500]
threads = [8]
cores = "1..12"
ways = "1..8"
neighbours = { count = [0, 2], draws = 1 }
[sampling]
interval_ms = 1000
samples = 6
"""
LIMITED = Campaign(
    loads=(1600.0, 3200.0),
    samples=5,
    client_limited_every=7,
    unresolvable_every=11,
    neighbours=((), (("gamma", 800.0), ("beta", 1600.0))),
)
NO_WAYS = Campaign(ways=0, cores=2.0, core_step=0.1, core_values=(0.1, 0.7, 1.1, 2.0), feature_set="no-pmu", loads=(200.0,))


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A virtual campaign with neighbours; rows of every verdict, in a folder named like a pattern; a host without PMU, ways."""
    root = tmp_path_factory.mktemp("data")
    (root / "campaign.toml").write_text(VIRTUAL, "utf-8")
    campaign.run(root / "campaign.toml", root / "virtual")
    return {
        "virtual": root / "virtual" / "server-1",
        "limited": write(root / "a[1]{b}", LIMITED),
        "no ways": write(root / "no-ways", NO_WAYS),
    }


def stages(engine: str, data: Path, out: Path, max_rows: int, env: dict[str, str]) -> None:
    """Both stages as `dvc repro` calls them; the configuration is the environment's and params.yaml's."""
    out.mkdir(parents=True)
    (out / "params.yaml").write_text(yaml.safe_dump({"samples": {"engine": engine}, "rows": {"max_rows": max_rows}}))
    for stage in (["label", "--out", out / "label"], ["rows", "--labels", out / "label", "--out", out / "rows"]):
        command = [sys.executable, "-m", f"pipelines.{stage[0]}", "--data", data, *stage[1:], "--params", out / "params.yaml"]
        done = subprocess.run(command, env=os.environ | env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]


def assert_same(one: Path, other: Path) -> None:
    for name in ("label/cells.parquet", "label/labels.parquet", "rows/rows.parquet"):
        a, b = pl.read_parquet(one / name), pl.read_parquet(other / name)
        assert a.height > 0
        assert a.schema == b.schema
        assert [c for c in a.columns if not a[c].equals(b[c], null_equal=True)] == [], name
    for name in ("label/label.json", "rows/rows.json"):
        assert json.loads((one / name).read_bytes()) == json.loads((other / name).read_bytes())


@pytest.mark.parametrize(
    ("name", "max_rows"), [("virtual", 2_000_000), ("virtual", 1000), ("limited", 500), ("no ways", 2_000_000)]
)
def test_spark_leaves_the_same_cells_and_rows(datasets: dict[str, Path], name: str, max_rows: int, tmp_path: Path) -> None:
    stages("duckdb", datasets[name], tmp_path / "duckdb", max_rows, {})
    stages("spark", datasets[name], tmp_path / "spark", max_rows, {"SPARK_CONF_DIR": str(CONF)})
    assert_same(tmp_path / "duckdb", tmp_path / "spark")


def test_spark_connect_is_a_matter_of_environment(datasets: dict[str, Path], tmp_path: Path) -> None:
    """SPARK_REMOTE alone: `local[2]` starts a Connect server here, `sc://HOST` would ask one that runs."""
    stages("duckdb", datasets["virtual"], tmp_path / "duckdb", 1000, {})
    stages("spark", datasets["virtual"], tmp_path / "connect", 1000, {"SPARK_CONF_DIR": str(CONF), "SPARK_REMOTE": "local[2]"})
    assert_same(tmp_path / "duckdb", tmp_path / "connect")


def test_no_java_is_one_line_with_the_remedy(datasets: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("samples: {engine: spark}\n")
    command = [sys.executable, "-m", "pipelines.label", "--data", datasets["virtual"], "--out", tmp_path / "out"]
    env = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run([*command, "--params", tmp_path / "params.yaml"], env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "there is no java in JAVA_HOME" in done.stderr
    assert "default-jre-headless" in done.stderr
