"""Every reader of what `surefootd` writes agrees with `surefootd schema --json`, the one source of columns and words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from collection import checks, report, shardfile, tools
from models import features, osml_actions
from pipelines import manifest, samples
from pipelines.pages import eval_rows

PAGE = Path(__file__).resolve().parents[1] / "docs/architecture.md"
TYPES: dict[str, Any] = {"Utf8": pl.String, "Int32": pl.Int32, "Int64": pl.Int64, "Float64": pl.Float64, "Boolean": pl.Boolean}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    told = subprocess.run([str(tools.find(tools.SUREFOOTD)), "schema", "--json"], check=True, capture_output=True)
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def columns(table: list[dict[str, Any]]) -> dict[str, Any]:
    return {c["name"]: TYPES.get(c["type"]) for c in table}


def test_words_are_the_same_on_both_sides(schema: dict[str, Any]) -> None:
    """Features, states, marks, verdicts, ways of sending and actions: each list in Python is the node's, in its order."""
    words = schema["words"]
    assert list(features.SAMPLE_FEATURES) == words["features"]
    assert list(manifest.STATES) == words["states"]
    assert list(manifest.MARKS) == words["marks"]
    assert list(samples.VERDICTS) == words["verdicts"]
    assert list(features.ACTIONS) == words["model_c_actions"]
    assert {k: list(v) for k, v in checks.rows.WORDS.items()} == {
        "verdict": words["verdicts"],
        "loop": words["loops"],
        "latency_from": words["latency_from"],
    }
    assert set(samples.WORTH) - {"usable", samples.DISTURBED, "unknown"} == set(words["verdicts"]) - {"valid"}
    assert set(report.VERDICTS) == set(words["verdicts"])
    assert set(report.STATES) <= set(words["states"])


def test_the_page_has_the_list_of_resources(schema: dict[str, Any]) -> None:
    """docs/architecture.md names every resource with key, unit, range and the kernel's files, in the order of the node's list."""
    section = PAGE.read_text("utf-8").partition("\n## Resources\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    said = [[cell.replace("`", "") for cell in row] for row in rows[2:]]
    assert said == [[r["name"], r["key"], r["unit"], r["range"], r["set_in"]] for r in schema["resources"]]


def test_every_resource_has_its_column(schema: dict[str, Any]) -> None:
    """A time line has a column for each resource, null for a limit that is not set; no reader needs the columns of limits."""
    limits = {r["key"]: r["limit"] for r in schema["resources"]}
    nullable = {c["name"]: c["nullable"] for c in schema["timelines"]}
    assert limits == {key: nullable[key] for key in limits}
    assert not set(eval_rows._LINE) & {key for key, limit in limits.items() if limit}


def test_numbers_are_the_same_on_both_sides(schema: dict[str, Any]) -> None:
    """The version of a manifest, and how far and in how many ways OSML's Model-C acts."""
    numbers = schema["numbers"]
    assert numbers["manifest_version"] == manifest.SCHEMA_VERSION
    assert (osml_actions.REACH, len(osml_actions.ACTIONS)) == (numbers["osml_reach"], numbers["osml_actions"])


def test_columns_of_samples(schema: dict[str, Any]) -> None:
    """`campaign verify` asks for the node's columns, and labels for no other."""
    told = columns(schema["samples"])
    assert list(shardfile.SCHEMA) == [n for n in told if n in shardfile.SCHEMA], (
        "shardfile.SCHEMA is in another order, or has more"
    )
    for name, kind in shardfile.SCHEMA.items():
        assert told[name] is None or kind == told[name], name
    assert set(samples.NEEDED) <= set(told)


def test_columns_of_evaluations(schema: dict[str, Any]) -> None:
    """The report reads rows and time lines that the node writes, in their types."""
    rows, lines = columns(schema["eval"]), columns(schema["timelines"])
    for name, kind in {**eval_rows._NEEDED, **eval_rows.OPTIONAL, **eval_rows.WORLD}.items():
        assert name in rows, f"no column {name} in an evaluation's rows"
        assert kind == rows[name] or (kind == pl.Float64 and rows[name] in (pl.Int32, pl.Int64)), name
    for name, kind in eval_rows._LINE.items():
        assert name in lines, f"no column {name} in a time line"
        assert kind == lines[name] or (kind == pl.Float64 and lines[name] in (pl.Int32, pl.Int64)), name
