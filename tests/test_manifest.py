"""The one reader of a target's manifest.json: its fast look and its full one agree, and the fast one stays fast."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines import manifest, manifest_fields, samples
from pipelines.errors import BadInput

ROOT = Path(__file__).parents[1]


def told(**more: Any) -> dict[str, Any]:
    cases = {"planned": 7, "measured": 2, "infeasible": 1, "client_limited": 1, "overloaded": 1, "failed": 1, "skipped": 1}
    platform = {"name": "toy", "cores": 4.0, "ways": 11, "mb_per_way": 2.0, "core_step": 1.0, "mba": False}
    return {
        "schema_version": 1, "campaign": "c", "campaign_hash": "h", "complete": True, "platform": platform,
        "feature_set": "full", "services": {"a": {"qos_target_ms": 1.0}}, "software": {}, "host": {}, "journal_bytes": 9,
        "shards": [{"file": f"shards/part-0000{n}.parquet", "rows": 20 + n, "sha256": "0" * 64} for n in (0, 1)],
        "cases": cases | {"disturbed": 1},
    } | more  # fmt: skip


def written(folder: Path, value: dict[str, Any]) -> Path:
    (folder / "manifest.json").write_text(json.dumps(value), "utf-8")
    return folder


def test_the_fast_look_and_the_full_one_agree(tmp_path: Path) -> None:
    """What `status` counts is what every field says; a missing optional field has the same value for both."""
    for value in (told(), {k: v for k, v in told().items() if k != "journal_bytes"}):
        folder = written(tmp_path, value)
        assert manifest.facts(folder) == manifest_fields.facts(folder)
        shards = manifest_fields.read(folder).shards
        assert [tuple(s) for s in manifest.listed(value)] == [(s.file, s.rows, s.sha256) for s in shards]


def test_what_is_strange_is_read_with_care(tmp_path: Path) -> None:
    """The fast look gives no number that the full one refuses."""
    for value in (told(journal_bytes=-1), told(cases={}), told(schema_version=2), told(shards=[{"file": "x", "rows": 1 << 48}])):
        assert manifest.facts(written(tmp_path, value)) is None
        with pytest.raises(BadInput, match=r"manifest\.json: (corrupt|schema_version)"):
            manifest_fields.facts(tmp_path)
    assert manifest.facts(tmp_path / "nowhere") is None
    with pytest.raises(BadInput, match="missing"):
        manifest_fields.facts(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a\0b", 7, None])
def test_a_shard_stays_in_its_folder(tmp_path: Path, name: Any) -> None:
    with pytest.raises(BadInput, match="is no file in the folder; collect"):
        samples.open_dataset(written(tmp_path, told(shards=[{"file": name, "rows": 1, "sha256": ""}])))


def test_nobody_else_reads_it() -> None:
    """No other module says which version of it is read, or looks into its list of shards."""
    files = [p for package in ("pipelines", "collection", "models") for p in (ROOT / package).rglob("*.py")]
    looks = re.compile(r'(value|manifest)(\["shards"\]|\.get\("shards"\))|^SCHEMA_VERSION = |read_json\(.*"manifest\.json"', re.M)
    assert {p.name for p in files if looks.search(p.read_text("utf-8"))} == {"manifest.py"}


def test_the_fast_look_imports_little() -> None:
    code = (
        "import sys, pipelines.manifest; print([m for m in ('pydantic', 'polars', 'typing', 'dataclasses') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
