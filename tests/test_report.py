"""The report builds from small data sets, stands alone, and says what is missing."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from collection import charts, report
from collection.shardfile import SCHEMA
from pipelines.pages import eval_rows, page, policy_charts

TARGET_MS = 10.0


def samples(platform: str, points: list[dict[str, Any]]) -> pl.DataFrame:
    """Rows of a shard from what differs; the rest is null."""
    base: dict[str, Any] = {name: None for name in SCHEMA}
    base |= {"campaign": "test", "platform": platform, "threads": 8, "mba_pct": 100, "neighbours": [], "repeat": 0, "t_ms": 1000}
    base |= {"errors": 0, "count": 3000, "verdict": "valid"}
    rows = [{**base, "case_id": f"{k:016x}", **p} for k, p in enumerate(points)]
    return pl.DataFrame(rows, schema=SCHEMA)


def write_shard(folder: Path, frame: pl.DataFrame, services: dict[str, float]) -> Path:
    (folder / "shards").mkdir(parents=True)
    frame.write_parquet(folder / "shards" / "part-00000.parquet")
    facts = {name: {"qos_target_ms": target} for name, target in services.items()}
    (folder / "manifest.json").write_text(json.dumps({"services": facts}), "utf-8")
    return folder


def plane(service: str, rps: float) -> list[dict[str, Any]]:
    """A cliff at 3 cores and 2 ways: p99 is 2 ms above it, 200 ms below it; one core is overloaded."""
    return [
        {
            "service": service,
            "rps": rps,
            "alloc_cores": float(cores),
            "alloc_ways": float(ways),
            "latency_p99_ms": 2.0 if cores >= 3 and ways >= 2 else 200.0,
            "verdict": "valid" if cores > 1 else "server-overloaded",
        }
        for cores in range(1, 7)
        for ways in range(1, 6)
    ]


def quota_case(service: str, rps: float, cores: float, p99_ms: float, verdict: str = "valid") -> list[dict[str, Any]]:
    return [
        {
            "service": service,
            "rps": rps,
            "alloc_cores": cores,
            "latency_p99_ms": p99_ms * factor,
            "latency_p99_low_ms": p99_ms * factor * 0.9,
            "latency_p99_high_ms": p99_ms * factor * 1.2,
            "count": 500,
            "verdict": verdict,
            "case_id": f"{service}-{rps}-{cores}",
        }
        for factor in (0.5, 1.0, 4.0)
    ]


@pytest.fixture
def virtual(tmp_path: Path) -> Path:
    points = plane("moses", 2200) + plane("moses", 3000) + plane("xapian", 3600)
    return write_shard(tmp_path / "virtual", samples("server-1", points), {"moses": TARGET_MS, "xapian": TARGET_MS})


@pytest.fixture
def local(tmp_path: Path) -> Path:
    points = [
        row
        for q in (0.2, 0.4, 0.6)
        for row in quota_case("memcached", 2000, q, 40.0 / q**3, "valid" if q > 0.3 else "server-overloaded")
    ]
    return write_shard(tmp_path / "local", samples("local", points), {"memcached": TARGET_MS})


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    folder = tmp_path / "label"
    folder.mkdir()
    rows = []
    for service, rps, reason in (("moses", 2200.0, None), ("moses", 3000.0, None), ("xapian", 3600.0, "no allocation meets it")):
        feasible = reason is None
        rows.append(
            {
                "platform": "server-1",
                "service": service,
                "rps": rps,
                "threads": 8,
                "mba_pct": 100,
                "neighbours": "",
                "qos_target_ms": TARGET_MS,
                "rcliff_cores": 3.0 if feasible else None,
                "rcliff_ways": 2.0 if feasible else None,
                "oaa_cores": 4.0 if feasible else None,
                "oaa_ways": 3.0 if feasible else None,
                "reason": reason,
            }
        )
    pl.DataFrame(rows).write_parquet(folder / "labels.parquet")
    facts = {
        "rows": {"valid": 75, "client_limited": 5, "server_overloaded": 15, "not_resolvable": 5},
        "planes": {"all": 3, "exact": 2, "bounded": 0, "no_feasible_cell": 1, "train": 1, "val": 0, "test": 1},
    }
    (folder / "label.json").write_text(json.dumps(facts), "utf-8")
    return folder


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    folder = tmp_path / "evaluate"
    folder.mkdir()
    values = {"test_rows": 75.0, "test_planes": 1.0, "a_oaa_cores_mae": 0.5, "a_oaa_cores_mae_nearest": 1.5, "b_accuracy": 0.964}
    (folder / "metrics.json").write_text(json.dumps(values), "utf-8")
    (folder / "by_service.csv").write_text(
        "service,samples,a_oaa_cores_mae,questions,b_error_pct\nmoses,75,0.4242,70,3.5\n", "utf-8"
    )
    return folder


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    folder = tmp_path / "eval"
    folder.mkdir()
    rows, lines = [], []
    for policy, met in (("unmanaged", False), ("osml-plus", True)):
        for seed in (1, 2):
            row = {"workload": "pair", "policy": policy, "seed": seed, "converged": met, "convergence_s": 2.0 if met else None}
            rows.append({**row, "qos_violation_s": 1.5 if met else 30.0, "be_throughput": 0.4})
        for t_ms in range(0, 5000, 100):
            for service, kind in (("moses", "lc"), ("stream", "be")):
                lc = kind == "lc"
                lines.append(
                    {
                        "workload": "pair",
                        "policy": policy,
                        "seed": 1,
                        "t_ms": t_ms,
                        "service": service,
                        "kind": kind,
                        "p99_ms": (5.0 if met else 50.0) if lc and t_ms else None,
                        "qos_target_ms": TARGET_MS if lc else None,
                        "load": (0.3 if t_ms < 2000 else 0.6) if lc else None,
                        "cores": 8.0,
                        "ways": 10.0,
                    }
                )
    pl.DataFrame(rows).write_parquet(folder / "rows.parquet")
    pl.DataFrame(lines).write_parquet(folder / "timelines.parquet")
    return folder


def recorded(file: Path, p99_ms: float) -> Path:
    rows = [
        {
            "t_ms": t,
            "service": "memcached",
            "kind": "lc",
            "p99_ms": p99_ms if t > 300 else None,
            "qos_target_ms": TARGET_MS,
            "cores": 0.5,
            "ways": 0,
        }
        for t in range(0, 3000, 100)
    ]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    return file


WORTH = {"usable": 70, "disturbed": 5, "server-overloaded": 15}
CASES = {"planned": 90, "measured": 75, "infeasible": 5, "client-limited": 0, "overloaded": 10, "failed": 0, "pending": 0}


@pytest.fixture
def result(tmp_path: Path, virtual: Path, local: Path, labels: Path, metrics: Path, evaluated: Path) -> dict[str, Any]:
    """What a demo returns, made from the fixtures above."""
    outputs = {"labels": str(labels), "models": "", "metrics": str(metrics)}
    one = {"rows": 90, "shards": 1, "seconds": 2.0, "cases": CASES, "feature_set": "full", "rows_by_worth": WORTH}
    summary = {"runs": 2, "convergence_s_mean": 2.0, "convergence_s_worst": 2.5, "emu_mean": 1.2, "be_throughput_mean": 0.4}
    summary |= {"qos_violation_s_mean": 1.5, "actions_mean": 12.0, "decision_us_p50": 4.0, "decision_us_p99": 30.0}
    tampering = [{"file": "manifest.json", "offset": 7, "rejected": True, "message": "manifest.json: was <changed>"}]
    return {
        "out": str(tmp_path),
        "started": "2026-01-02T03:04:05+00:00",
        "git_commit": "0123456789abcdef",
        "machine": {"cpu_model": "Test CPU", "cpus": 2, "memory_bytes": 8 * 2**30, "kernel": "Linux 6.1"},
        "engine": {"answers": True, "why": "engine: docker 20.10 answers"},
        "campaigns": {
            "demo-virtual": {**one, "file": "examples/demo-virtual.toml", "folder": str(virtual), "target": "server-1"},
            "demo-local": {
                **one,
                "file": "examples/demo-local.toml",
                "folder": str(local),
                "target": "local",
                "feature_set": "no-pmu",
            },
        },
        "dvc": {"first_s": 60.0, "second_s": 2.0, "second_run_did_nothing": True, "outputs": {"demo-virtual": outputs}},
        "bundles": [
            {
                "name": "demo-virtual",
                "path": str(tmp_path / "bundle"),
                "verified": True,
                "platform": {"name": "server-1", "cores": 36.0, "ways": 20},
                "feature_set": "full",
                "services": {"moses": {"qos_target_ms": TARGET_MS}},
                "models": {"a": {"parameters": 5000}},
                "bytes": 100_000,
                "manifest_sha256": "ab" * 32,
                "signer": "cd" * 32,
                "tampering": tampering,
            }
        ],
        "eval": {
            "out": str(evaluated),
            "platform": "server-1",
            "policies": ["unmanaged", "osml-plus"],
            "summary": [{"policy": "unmanaged", "converged": 0, **summary}, {"policy": "osml-plus", "converged": 2, **summary}],
        },
        "closed_loop": {
            "service": "memcached",
            "job": "stream",
            "duration_s": 3.0,
            "marks": [[1.0, "9,000 RPS"]],
            "text": "a real service",
            "caption": "p99 of the last second",
            "runs": [
                {
                    "policy": p,
                    "timeline": str(recorded(tmp_path / f"{p}.jsonl", ms)),
                    "violation_s": v,
                    "observed_s": 2.6,
                    "requests": 12_345,
                }
                for p, ms, v in (("unmanaged", 50.0, 2.6), ("osml-plus", 5.0, 0.0))
            ],
        },
        "warnings": [],
        "failed": [],
        "left_out": {},
        "steps": [{"name": "eval", "title": "eval", "state": "done", "seconds": 3.0, "why": ""}],
    }


class Reader(HTMLParser):
    """Collects text, identifiers and everything that could fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name.endswith(("href", "src", "srcset", "action", "poster", "data")) or "url(" in (value or ""):
                self.references.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    return reader


def test_report_is_one_file_without_external_references(result: dict[str, Any], tmp_path: Path) -> None:
    """Nothing in the report is fetched from elsewhere: every reference stays inside the document, and resolves."""
    out = tmp_path / "report.html"
    size = report.write(result, tmp_path, out)
    html = out.read_text("utf-8")
    assert size == out.stat().st_size
    reader = read(html)
    assert not reader.tags & {"script", "link", "iframe", "object", "embed", "base"}
    assert reader.references, "the figures clip their content by reference"
    inside = re.compile(r"#[\w-]+|url\(#[\w-]+\)|data:image/png;base64,[\w+/=\s]+")
    assert [r for r in reader.references if not inside.fullmatch(r.strip())] == []
    assert not re.search(r"https?://|@import|//cdn", html)
    assert len(reader.ids) == len(set(reader.ids)), "an identifier stands twice"
    targets = {r.strip()[1:] for r in reader.references if r.strip().startswith("#")}
    targets |= set(re.findall(r"url\(#([\w-]+)\)", html))
    assert targets <= set(reader.ids)


def test_report_says_what_was_found(result: dict[str, Any], tmp_path: Path) -> None:
    """The key figures are there as text, with units, and what users' files say is escaped."""
    html = page.render(report.build(result, tmp_path))
    text = " ".join(" ".join(read(html).text).split())
    for words in (
        "planned; the states add up to it",
        "moses at 3,000 RPS, 8 threads",
        "RCliff 3 cores, 2 ways; OAA 4 cores, 3 ways",
        "each p99 of 3,000 requests a window.",
        "30 of 30 cells measured, 25 of 30 rows usable.",
        "3 cases, 2 of them valid. Each p99 of 500 to 500 requests",
        "QoS target 10 ms",
        "did nothing",
        "1 of 1",
        "unmanaged 2.6 of 2.6 s",
        "cores 0.5 – 1.5",
        "moses 75 0.424",
        "not over its planes",
        "% 96.4",
        "manifest.json: was <changed>",
        "2 s moses to 60 % load",
        "Test CPU, 2 CPUs, 8 GiB",
        "Runs converged, QoS violation a run, BE throughput (1 = alone).",
        "visible for 0 of 1 services. Not visible: memcached (no valid case meets its QoS target).",
    ):
        assert words in text, words
    assert "<changed>" not in html


def test_a_reports_links_go_with_its_folder(result: dict[str, Any], tmp_path: Path) -> None:
    """Links begin at the page, so that they hold wherever the folder is moved with what lies beside it."""
    result["dvc"]["outputs"]["demo-virtual"]["report"] = str(tmp_path / "out" / "pipeline" / "my set" / "report")
    result["out"] = str(tmp_path / "out" / "demo")
    reader = read(page.render(report.build(result, tmp_path)))
    assert "../pipeline/my%20set/report/report.html" in reader.references
    assert not [r for r in reader.references if r.startswith("/")]
    assert str(tmp_path) not in " ".join(reader.text)


def test_a_second_run_that_ran_is_not_said_to_have_changed_nothing(result: dict[str, Any], tmp_path: Path) -> None:
    """`dvc.lock` is told as unchanged only where it was."""
    result["dvc"]["second_run_did_nothing"] = False
    text = " ".join(read(page.render(report.build(result, tmp_path))).text)
    assert "ran again" in text
    assert "unchanged" not in text


def test_report_without_an_engine_says_so(result: dict[str, Any], tmp_path: Path) -> None:
    """Parts that could not be run leave a reason, not a hole."""
    why = "engine: no container engine. Install it: sudo apt-get install docker.io"
    result["engine"] = {"answers": False, "why": why}
    del result["campaigns"]["demo-local"]
    result["closed_loop"] = {"why": why, "runs": []}
    text = " ".join(read(page.render(report.build(result, tmp_path))).text)
    assert text.count(why) >= 4  # two tiles, two sections


def test_a_busy_machine_is_told_first(result: dict[str, Any], tmp_path: Path) -> None:
    """Warnings stand before all figures, the first tile says what of its data was not usable, a table what else ran."""
    loads = [{"service": "memcached", "threads": 1, "max_load_rps": 5400.0, "others_frac": 0.93}]
    loads.append({"service": "nginx", "threads": 1, "max_load_rps": None, "others_frac": 0.0})
    result["campaigns"]["demo-local"]["max_loads"] = loads
    result["closed_loop"]["models"] = False
    result["warnings"] = ["demo-local: 70 of 90 rows usable"]
    built = report.build(result, tmp_path)
    assert (built.tiles[0].what, built.tiles[0].figure) == ("usable rows of real containers", "70")
    assert "5 disturbed, 15 server-overloaded" in built.tiles[0].more
    assert [b.text for b in built.sections[0].blocks] == result["warnings"]
    text = " ".join(" ".join(read(page.render(built)).text).split())
    for said in (
        "memcached 1 5,400 93.0 %",
        "nginx 1 none meets the target 0.0 %",
        "taught no models, so the policies here need none",
    ):
        assert said in text
    result["warnings"] = []
    assert report.build(result, tmp_path).sections[0].id == "eval"


def test_failed_checks_are_red(result: dict[str, Any], tmp_path: Path) -> None:
    """A changed byte that was not found, or a second dvc repro that ran, is shown as failed."""
    result["bundles"][0]["tampering"][0]["rejected"] = False
    result["dvc"]["second_run_did_nothing"] = False
    built = report.build(result, tmp_path)
    assert {t.what: t.state for t in built.tiles}["changed bytes found in bundles"] == "failed"
    assert {t.what: t.state for t in built.tiles}["dvc repro, second time"] == "failed"
    assert "NOT every copy was rejected" in page.render(built)


def test_heat_map_takes_the_highest_load_with_a_label(virtual: Path, labels: Path) -> None:
    """One plane a service: alone, at its highest load that has a label; overloaded cells carry no latency."""
    (found,) = report.heat_maps(virtual, labels)  # xapian has no feasible cell
    assert (found.service, found.rps) == ("moses", 3000.0)
    assert found.p99_ms.shape == (6, 5)
    assert found.p99_ms[2, 1] == 2.0
    assert found.p99_ms[1, 1] == 200.0
    assert found.overloaded is not None
    assert found.overloaded.any(axis=1).tolist() == [True, False, False, False, False, False]
    assert (found.rcliff, found.oaa) == ((3.0, 2.0), (4.0, 3.0))


def test_quota_point_is_the_median_window(local: Path) -> None:
    """Percentiles are never averaged: a case counts with its median window, interval and verdict included."""
    (curve,) = report.quota_curves(local)
    assert curve.qos_target_ms == TARGET_MS
    points = {p.quota_cores: p for p in curve.levels[2000.0]}
    assert points[0.4].p99_ms == pytest.approx(40.0 / 0.4**3)
    assert points[0.4].low_ms == pytest.approx(0.9 * points[0.4].p99_ms)
    assert points[0.4].requests == 500
    assert [points[q].verdict for q in (0.2, 0.4, 0.6)] == ["server-overloaded", "valid", "valid"]


def test_disturbed_cases_are_not_drawn(local: Path) -> None:
    """What the journal marks as disturbed is no point of a curve, whatever its verdict."""
    (whole,) = report.quota_curves(local)
    case = pl.read_parquet(local / "shards" / "part-00000.parquet").filter(pl.col("alloc_cores") == 0.4)["case_id"][0]
    line = {"case_id": case, "state": "measured", "shard": 0, "rows": 3, "disturbed": "steal time of the managed CPUs 4.0 %"}
    (local / "journal.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    (curve,) = report.quota_curves(local)
    at = [p.quota_cores for p in curve.levels[2000.0]]
    assert sorted(at) == sorted({p.quota_cores for p in whole.levels[2000.0]} - {0.4})


def quota_curve(service: str, points: list[tuple[float, float, str]]) -> charts.QuotaCurve:
    """At 2,000 RPS, with a QoS target of 10 ms, from (cores, p99 in ms, verdict)."""
    level = [charts.QuotaPoint(q, p99, None, None, 500, verdict) for q, p99, verdict in points]
    return charts.QuotaCurve(service, TARGET_MS, {2000.0: level})


def test_words_about_the_cliff_come_from_the_curves() -> None:
    """A cliff is a step over the QoS target by 5 times or more; where there is none, the reason is told."""
    curves = [
        # 8 to 80 ms is the step over the target; 80 to 4,000 ms lies below it, and the square proves nothing
        quota_curve(
            "memcached",
            [(0.6, 8.0, "valid"), (0.5, 9000.0, "not-resolvable"), (0.4, 80.0, "valid"), (0.2, 4000.0, "server-overloaded")],
        ),
        quota_curve("nginx", [(0.4, 2.0, "valid"), (0.2, 300.0, "server-overloaded")]),
        quota_curve("redis", [(0.4, 8.0, "valid"), (0.2, 16.0, "valid")]),
        quota_curve("flat", [(0.4, 2.0, "valid"), (0.2, 3.0, "valid")]),
    ]
    assert report.cliff_words(curves) == (
        "The cliff is visible for 2 of 4 services: p99 of memcached at 2,000 RPS rises from 8 to 80 ms between 0.6 and 0.4 cores"
        "; of nginx at 2,000 RPS rises from 2 to at least 300 ms between 0.4 and 0.2 cores"
        ". Not visible: redis (its steepest step over the QoS target is by a factor of 2 only)"
        "; flat (no case that meets its QoS target stands beside one that misses it)."
    )


def test_each_verdict_has_a_mark_of_its_own() -> None:
    """Hollow points differ by what is wrong with them, so the caption can be true."""
    assert set(charts.VERDICT_MARKS) == set(report.VERDICTS)
    assert len(set(charts.VERDICT_MARKS.values())) == len(report.VERDICTS)
    marks = [
        len(re.findall("<use ", charts.quota_curve(quota_curve("s", [(0.2, 5.0, "valid"), (0.4, 5.0, verdict)]))))
        for verdict in report.VERDICTS
    ]
    assert len(set(marks)) == 1  # no verdict is left out of the figure


def test_a_cached_repro_is_no_training_time(result: dict[str, Any], tmp_path: Path) -> None:
    """Where DVC had everything already, the report does not give its no-op's seconds as those of training."""
    result["dvc"]["stages_run"] = 0
    text = " ".join(read(page.render(report.build(result, tmp_path))).text)
    assert "all of it made by an earlier dvc repro" in text


def test_unknown_is_a_dash_and_never_zero() -> None:
    """A figure that nobody knows prints as a dash."""
    assert page.number(None) == "–"
    assert page.number(float("nan")) == "–"
    assert page.number(0.0) == "0"
    assert page.number(12345.6) == "12,346"
    assert page.number(0.01234) == "0.0123"
    assert page.per_cent(None) == "–"


def test_lines_with_gaps_are_drawn() -> None:
    """Intervals without a latency leave a gap; a run without any latency still draws its allocations."""
    lane = policy_charts.Lane("moses", "lc", TARGET_MS, [0, 1, 2], [None, None, None], [1, 2, 3], [None, None, None])
    svg = policy_charts.time_line(policy_charts.TimeLine("w", "parties", [lane], has_ways=False), eval_rows.latency_span([]))
    assert svg.startswith("<svg ")
    assert "nan" not in svg.lower()


def test_heat_map_of_an_overloaded_plane() -> None:
    """A plane without a single valid latency is drawn all the same."""
    grid = np.full((3, 2), np.nan)
    m = charts.HeatMap("moses", "server-1", 1.0, 1, [1, 2, 3], [1, 2], grid, TARGET_MS, overloaded=np.ones((3, 2), dtype=bool))
    assert "overloaded" in charts.heat_map(m)
