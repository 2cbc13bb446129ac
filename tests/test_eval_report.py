"""The evaluation report: its numbers from rows that are worked out by hand, and what it says about input it cannot use."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from collection import cli
from pipelines import eval_report
from pipelines.errors import BadInput
from pipelines.pages import drawing, eval_facts, eval_page, eval_rows, eval_stats, page, policy_charts

SERVICES = ("moses", "xapian", "img-dnn")


def row(workload: str, policy: str, seed: int, seconds: float | None, **more: Any) -> dict[str, Any]:
    by_lc = dict.fromkeys(SERVICES[: more.pop("lc", 3)], 0.0)
    return {
        "workload": workload,
        "policy": policy,
        "platform": "server-2",
        "seed": seed,
        "converged": seconds is not None,
        "convergence_s": seconds,
        "actions": 4,
        "emu": 1.5,
        "be_throughput": None,
        "qos_violation_s": 2.0,
        "qos_violation_by_lc_s": json.dumps(by_lc),
        "oracle_emu": 2.0,
        "offered_load": 2.0,
        "self_violation_s": 0.5,
        "reclaim_crossings": 1,
        "deprive_crossings": 2,
        "actions_per_min_settled": 1.0,
        "self_violation_settled_s": 0.25,
        "worst_slowdown": 3.0,
        "refused_plans": 0,
        "be_throughput_met": more.get("be_throughput"),
        "emu_cosmos": 1.0,
        "window_requests": 500,
    } | more


def write(folder: Path, rows: list[dict[str, Any]], *without: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    frame = pl.DataFrame(rows, infer_schema_length=None).with_columns(
        pl.col("be_throughput", "be_throughput_met", "convergence_s").cast(pl.Float64)
    )
    frame.drop(without).write_parquet(folder / "rows.parquet")
    (folder / "eval.json").unlink(missing_ok=True)
    return what(
        folder,
        platform=rows[0]["platform"],
        policies=list(dict.fromkeys(r["policy"] for r in rows)),
        seeds=max(r["seed"] for r in rows),
        workloads=[{"name": name, "sha256": f"of {name}"} for name in dict.fromkeys(r["workload"] for r in rows)],
    )


def time_lines(folder: Path, rows: list[dict[str, Any]], loads: dict[str, dict[str, float]]) -> None:
    """Ten ticks of every workload and policy; the first service's cores go from 4 to 6 at the fifth."""
    found = []
    for workload, policy in dict.fromkeys((r["workload"], r["policy"]) for r in rows):
        for k, (service, load) in enumerate(loads[workload].items()):
            for tick in range(10):
                found.append(
                    {
                        "workload": workload,
                        "policy": policy,
                        "seed": 1,
                        "t_ms": 100 * tick + 100,
                        "service": service,
                        "kind": "lc",
                        "p99_ms": 20.0 if tick < 5 else 5.0,
                        "qos_target_ms": 10.0,
                        "load": load,
                        "cores": 6.0 if k == 0 and tick >= 5 else 4.0,
                        "ways": 2.0,
                        "mba_pct": 100,
                        "instr_per_s": 1.0,
                    }
                )
    pl.DataFrame(found).write_parquet(folder / "timelines.parquet")


def with_time_lines(out: Path) -> Path:
    rows = pl.read_parquet(out / "rows.parquet").to_dicts()
    time_lines(out, rows, {r["workload"]: {"moses": 0.5, "xapian": 0.5} for r in rows})
    return out / "timelines.parquet"


def change_rows(out: Path, **columns: Any) -> None:
    pl.read_parquet(out / "rows.parquet").with_columns(**columns).write_parquet(out / "rows.parquet")


def change_lines(out: Path, **columns: Any) -> None:
    pl.read_parquet(with_time_lines(out)).with_columns(**columns).write_parquet(out / "timelines.parquet")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


@pytest.fixture
def lc3(tmp_path: Path) -> Path:
    """Two workloads, two seeds. osml-plus: 2 and 4 s, then 6 and failed; parties-stop: 10, 20, then 30, 40."""
    rows = [
        row("lc3-01", "osml-plus", 1, 2.0),
        row("lc3-01", "osml-plus", 2, 4.0),
        row("lc3-02", "osml-plus", 1, 6.0),
        row("lc3-02", "osml-plus", 2, None, emu=1.0),
        row("lc3-01", "parties-stop", 1, 10.0),
        row("lc3-01", "parties-stop", 2, 20.0),
        row("lc3-02", "parties-stop", 1, 30.0),
        row("lc3-02", "parties-stop", 2, 40.0, qos_violation_s=10.0),
    ]
    return write(tmp_path / "out" / "lc3", rows)


def facts_of(*outs: Path) -> dict[str, Any]:
    return eval_facts.gather(eval_rows.read(outs))[0]


def test_means_are_over_workloads_of_means_over_seeds(lc3: Path) -> None:
    """Workload 1: (2 + 4) / 2 = 3; workload 2: 6, the failed seed has no time; mean 4.5. With 180 s for it: (3 + 93) / 2."""
    (of,) = facts_of(lc3)["sets"]
    mine, its = of["policies"][1], of["policies"][0]
    assert (of["workloads"], of["seeds"], of["lc"], of["be"], of["drawn"]) == (2, 2, [3], False, True)
    assert (mine["policy"], its["policy"]) == ("osml-plus", "parties-stop")
    assert mine["convergence_s"]["value"] == pytest.approx(4.5)
    assert mine["convergence_or_limit_s"]["value"] == pytest.approx(48.0)
    assert (mine["runs"], mine["converged_runs"], mine["failed_with_any_seed"]) == (4, 3, 1)
    # no failure with seed 1, one with seed 2
    assert mine["failures"]["value"] == pytest.approx(0.5)
    # EMU 1.5 and 1.25 of 2.0
    assert mine["emu_of_oracle"]["value"] == pytest.approx(1.375 / 2)
    # a bootstrap over two workloads goes from one to the other
    assert (mine["convergence_s"]["low"], mine["convergence_s"]["high"]) == (3.0, 6.0)
    assert (mine["reclaim_crossings_total"], mine["deprive_crossings_total"]) == (4, 8)


def test_the_worst_slowdown_and_refused_plans_are_shown(tmp_path: Path) -> None:
    """Slowdowns 2, 3 and 40: median 3, worst 40. Refused plans have a column where there is one."""

    def shown(refused: int, *without: str) -> tuple[list[str], Sequence[Any], dict[str, Any]]:
        slowdowns = (2.0, 3.0, 40.0)
        rows = [
            row(f"lc3-{k:02}", "parties-stop", 1, 1.0, worst_slowdown=s, refused_plans=refused) for k, s in enumerate(slowdowns)
        ]
        facts = facts_of(write(tmp_path / "lc3", rows, *without))
        table = eval_page._sets(facts).blocks[3]
        assert isinstance(table, page.Table)
        assert {len(r) for r in table.rows} == {len(table.columns)}
        return [c.name for c in table.columns], table.rows[0], facts["sets"][0]["policies"][0]

    names, cells, facts = shown(0)
    assert (facts["worst_slowdown_median"], facts["worst_slowdown_most"], facts["refused_plans_total"]) == (3.0, 40.0, 0)
    at = names.index("worst slowdown, median")
    assert (names[at + 1], cells[at : at + 2]) == ("worst slowdown, worst", ["3", "40"])
    assert eval_page._REFUSED not in names
    names, cells, _ = shown(2)
    assert (names[-1], cells[-1]) == (eval_page._REFUSED, "6")
    _, cells, _ = shown(2, "worst_slowdown")
    assert cells[at : at + 2] == ["not measured"] * 2


def test_ratios_are_paired_by_workload_and_seed(lc3: Path) -> None:
    """Both converge in three runs: parties-stop 15 and 30, osml-plus 3 and 6. Ratio of means 22.5 / 4.5; in every resample 5."""
    (of,) = facts_of(lc3)["sets"]
    (ratio,) = of["ratios"]
    assert (ratio["policy"], ratio["baseline"]) == ("osml-plus", "parties-stop")
    assert ratio["speed_up"] == {"value": 5.0, "low": 5.0, "high": 5.0, "units": 2}
    # failures as 180 s: parties-stop 15 and 35, osml-plus 3 and 93
    assert ratio["speed_up_or_limit"]["value"] == pytest.approx(25 / 48)
    # violations: 2 and 2 against 2 and 6
    assert ratio["violation_ratio"]["value"] == pytest.approx(2 / 4)
    assert ratio["be_throughput_ratio"] is None


def test_the_lowest_violation_is_that_of_all_others(tmp_path: Path) -> None:
    """osml-plus 6 s, surefoot 3 s, the lowest of the others is clite's 4 s: 1.5 is missed, 0.75 is met; without OSML neither."""
    violations = {"unmanaged": 90.0, "parties-stop": 8.0, "clite": 4.0, "osml": 5.0, "osml-plus": 6.0, "surefoot": 3.0}

    def aims(*without: str) -> dict[str, dict[str, Any]]:
        some = {p: v for p, v in violations.items() if p not in without}
        rows = [row("fig10", p, s, 1.0, qos_violation_s=v * s) for p, v in some.items() for s in (1, 2)]
        found = facts_of(write(tmp_path / "churn-server-2", rows))["published"]
        return {p["policy"]: p for p in found if (p["set"], p["metric"]) == ("churn-server-2", "violation_over_lowest")}

    found = aims()
    assert [(p, of["ours"]["value"], of["lowest"], of["verdict"]) for p, of in found.items()] == [
        ("osml-plus", 1.5, "clite", "missed"),
        ("surefoot", 0.75, "clite", "met"),
    ]
    assert eval_page._cells(found["osml-plus"])[1] == "osml-plus / clite"
    missing = aims("osml")["surefoot"]
    assert (missing["ours"], missing["verdict"]) == (None, "not measured")
    assert missing["why"] == "no rows of osml: the lowest is found among parties-stop, clite, osml at least"
    violations["clite"] = 0.0
    assert (aims()["surefoot"]["verdict"], aims()["surefoot"]["lowest"]) == ("no value", None)


def test_steadiness_is_asked_of_every_set(tmp_path: Path) -> None:
    """After convergence at most two changes a minute, and no violation of its own doing: half a second is missed."""
    rows = [row("fig10", "surefoot", s, 1.0, self_violation_settled_s=0.5, actions_per_min_settled=2.0) for s in (1, 2)]
    found = facts_of(write(tmp_path / "churn-server-3", [r | {"platform": "server-3"} for r in rows]))["published"]
    by = {p["metric"]: p["verdict"] for p in found if (p["set"], p["policy"]) == ("churn-server-3", "surefoot")}
    assert (by["actions_per_min_settled"], by["self_violation_settled_s"]) == ("met", "missed")
    asked = {(p.set, p.policy) for p in eval_facts.published() if p.metric == "self_violation_settled_s"}
    assert asked == {(p.set, p.policy) for p in eval_facts.published() if p.metric == "actions_per_min_settled"}
    assert {s for s, _ in asked} == {p.set for p in eval_facts.published()} - {eval_facts.ALL_BE}


@pytest.mark.parametrize(("workloads", "sure"), [(4, False), (5, True)])
def test_few_workloads_make_nothing_sure(tmp_path: Path, workloads: int, sure: bool) -> None:
    """The same ratio in every workload has an interval of no width, however few they are."""
    times = (("osml-plus", 2.0), ("parties-stop", 10.0))
    out = write(tmp_path / "lc3", [row(f"lc3-{k:02}", p, 1, k * s) for k in range(1, workloads + 1) for p, s in times])
    wanted = ("lc3", "osml-plus", "parties-stop", "speed_up")
    (ours,) = [p for p in facts_of(out)["published"] if (p["set"], p["policy"], p["baseline"], p["metric"]) == wanted]
    assert (ours["ours"]["low"], ours["verdict"], ours["sure"]) == (5.0, "met", sure)


@pytest.fixture
def clite(tmp_path: Path) -> Path:
    """CLITE on the same runs: it converges on all of them."""
    return write(tmp_path / "out" / "clite", [row(f"lc3-{k:02}", "clite", s, 50.0) for k in (1, 2) for s in (1, 2)])


def test_published_figures_have_a_verdict_each(lc3: Path, clite: Path) -> None:
    """Met, missed or not measured; a rival is not judged as ours is; nothing is left out."""
    rows = facts_of(lc3, clite)["published"]
    assert len(rows) == len(eval_facts.published())
    by = {(p["set"], p["policy"], p["baseline"], p["metric"]): p for p in rows}
    assert by["lc3", "osml-plus", "parties-stop", "speed_up"]["verdict"] == "met"  # 5 >= 2.6
    assert by["lc3", "osml-plus", "parties-stop", "speed_up"]["sure"] is False  # of two workloads
    assert by["lc3", "osml-plus", "", "emu_of_oracle_pct"]["verdict"] == "missed"  # 68.75 < 95
    assert by["lc3", "osml-plus", "", "emu_of_oracle_pct"]["ours"]["value"] == pytest.approx(68.75)
    # 4.5 s <= 5.8 s, but the interval reaches to 6
    mean = by["lc3", "osml-plus", "", "convergence_s"]
    assert (mean["verdict"], mean["sure"]) == ("met", False)
    # on the runs that both converge on: 15 and 30
    assert by["lc3", "parties-stop", "", "convergence_s"]["ours"]["value"] == pytest.approx(22.5)
    assert by["lc3", "parties-stop", "", "convergence_s"]["verdict"] == "worse than published"
    assert by["lc3", "clite", "", "convergence_s"]["ours"]["value"] == pytest.approx(50.0)
    assert by["lc3", "osml", "", "convergence_s"]["why"] == "no rows of osml"
    assert by["lc2-be", "osml-plus", "", "failures"]["why"] == "no rows of lc2-be on server-2"


def test_what_all_converge_on_needs_all_of_them(lc3: Path, clite: Path) -> None:
    """Convergence on the runs that all compared policies converge on is not judged before all of them were run."""
    convergence = ("lc3", "convergence_s")
    by = {p["policy"]: p for p in facts_of(lc3)["published"] if (p["set"], p["metric"]) == convergence}
    for policy in ("osml-plus", "parties-stop"):
        assert (by[policy]["verdict"], by[policy]["ours"]) == ("not measured", None)
        assert by[policy]["why"] == "no rows of clite: it is of the runs that all compared policies converge on"
    assert by["clite"]["why"] == "no rows of clite"
    # what is compared with PARTIES alone needs no CLITE
    faster = [
        p for p in facts_of(lc3)["published"] if (p["set"], p["metric"], p["baseline"]) == ("lc3", "speed_up", "parties-stop")
    ]
    assert [p["verdict"] for p in faster] == ["met"]
    # CLITE fails on the second workload: of osml-plus' 3 and 6 s (means of seeds) the 3 are left
    failing = [row(f"lc3-{k:02}", "clite", s, 50.0 if k == 1 else None) for k in (1, 2) for s in (1, 2)]
    found = facts_of(lc3, write(clite, failing))["published"]
    (mine,) = [p for p in found if (p["set"], p["metric"]) == convergence and p["policy"] == "osml-plus"]
    assert mine["ours"]["value"] == pytest.approx(3.0)


def test_hard_runs_are_those_that_equal_shares_do_not_serve(tmp_path: Path) -> None:
    """Of four workloads equal shares serve one, and ORACLE is proven to serve two of the others: these two are hard."""
    offered = {"offered_load": 1.5}
    oracle = {1: 1.5, 2: 1.5, 3: 1.5, 4: 1.4}
    times: dict[str, dict[int, float | None]] = {
        "equal-share": {1: 1.0, 2: None, 3: None, 4: None},
        "parties-stop": {1: 1.0, 2: 30.0, 3: 50.0, 4: 90.0},
        "osml-plus": {1: 1.7, 2: 4.0, 3: 6.0, 4: 60.0},
        "surefoot": {1: 1.2, 2: 5.0, 3: None, 4: 3.0},
    }
    rows = [
        row(f"lc3-{k:02}", policy, 1, seconds, oracle_emu=oracle[k], **offered)
        for policy, of in times.items()
        for k, seconds in of.items()
    ]

    def figures(name: str, rows: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
        found = facts_of(write(tmp_path / name / "lc3", rows))["published"]
        return {(p["policy"], p["metric"]): p for p in found if p["set"] == "lc3"}

    by = figures("all", rows)
    faster = by["osml-plus", "hard_speed_up"]
    assert (faster["ours"]["value"], faster["verdict"]) == (8.0, "met")  # (30 + 50) / (4 + 6)
    # of the runs that both converge on
    assert by["surefoot", "hard_speed_up"]["ours"]["value"] == pytest.approx(6.0)
    assert by["osml-plus", "hard_convergence_worst_s"]["ours"]["value"] == pytest.approx(6.0)
    assert by["osml-plus", "easy_over_equal_share_s"]["ours"]["value"] == pytest.approx(0.7)
    assert by["osml-plus", "easy_over_equal_share_s"]["verdict"] == "missed"
    assert by["surefoot", "easy_over_equal_share_s"]["verdict"] == "met"
    # without rows of equal shares nothing is told apart
    rest = [r for r in rows if r["policy"] != "equal-share"]
    by = figures("rest", rest)
    assert by["osml-plus", "hard_speed_up"]["why"] == "no rows of equal-share: equal shares tell which workloads need a scheduler"
    # where equal shares serve everything there is nothing hard
    easy = [r | {"converged": True, "convergence_s": 2.0} if r["policy"] == "equal-share" else r for r in rows]
    by = figures("easy", easy)
    assert by["osml-plus", "hard_speed_up"]["why"] == "no run that ORACLE serves, equal shares do not, and both converge on"


def test_be_sets_have_ratios_and_a_union(tmp_path: Path) -> None:
    """BE throughput 0.6 against 0.3 is 2; both sets beside a BE job together are Fig. 8's."""
    for lc in (2, 3):
        rows = [
            row(f"lc{lc}-be-{k:02}", policy, 1, seconds, lc=lc, be_throughput=be)
            for k in (1, 2)
            for policy, seconds, be in (("osml-plus", 3.0, 0.6), ("parties-stop", 9.0, 0.3), ("clite", 20.0, 0.3))
        ]
        write(tmp_path / f"lc{lc}-be", rows)
    facts = facts_of(tmp_path / "lc2-be", tmp_path / "lc3-be")
    by = {s["set"]: s for s in facts["sets"]}
    assert by["be-all"]["workloads"] == 4
    assert by["lc2-be"]["ratios"][0]["be_throughput_ratio"]["value"] == pytest.approx(2.0)

    def paper(name: str, *of: str) -> Any:
        found = eval_page._published_of(facts, by[name], *of)
        return found and found["value"]

    assert paper("lc2-be", "osml-plus", "be_throughput_ratio", "parties-stop") == 1.1
    assert paper("lc3-be", "parties-stop", "failures") == 1
    assert paper("be-all", "parties-stop", "failures") is None
    published = {(p["set"], p["policy"], p["metric"], p["baseline"]): p for p in facts["published"]}
    assert published["lc2-be", "osml-plus", "be_throughput_ratio", "parties-stop"]["verdict"] == "met"
    assert published["be-all", "osml-plus", "convergence_s", ""]["ours"]["value"] == pytest.approx(3.0)
    assert published["lc3-be", "osml-plus", "failures", ""]["verdict"] == "met"


def test_only_sets_of_a_paper_have_a_published_column(tmp_path: Path) -> None:
    """Failures of lc3-be are published, of 20; those of a set that no paper has are not."""

    def out(name: str, *policies: str) -> Path:
        return write(tmp_path / name, [row(f"{name}-{k:02}", p, 1, 1.0, be_throughput=0.5) for p in policies for k in (1, 2)])

    def tile(of: dict[str, Any]) -> page.Tile:
        return next(t for t in eval_page.build(of, groups).tiles if t.what == "published figures and aims of ours")

    facts, groups = eval_facts.gather(eval_rows.read([out("lc3-be", "parties-stop", "surefoot"), out("mine", "parties-stop")]))
    (section,) = eval_page._best_effort(facts)
    table = section.blocks[1]
    assert [c.name for c in table.columns] == ["policy", "lc3-be on server-2", "published, of 20", "mine on server-2"]
    assert table.rows == [
        ["parties-stop", eval_page.estimate("0 of 2", ""), "1", eval_page.estimate("0 of 2", "")],
        ["surefoot", eval_page.estimate("0 of 2", ""), "–", "not run"],
    ]
    assert "the folded table says why" in tile(facts).more
    measured = [p for p in facts["published"] if p["ours"]]
    assert tile({**facts, "published": measured}).more == ""


def test_failures_are_compared_as_shares(tmp_path: Path) -> None:
    """Published: parties-stop fails 4 of 20 with four LC services, a fifth. One of two is more, one of five the same."""

    def judged(n: int, others: int = 0) -> dict[str, Any]:
        rows = [row(f"lc4-be-{k:02}", "parties-stop", 1, None if k == 0 else 1.0, be_throughput=0.5) for k in range(n)]
        more = [row(f"lc4-be-{k:02}", "osml-plus", 1, 1.0, be_throughput=0.5) for k in range(others)]
        facts = facts_of(write(tmp_path / "lc4-be", rows), *([write(tmp_path / "more", more)] if more else []))
        wanted = ("lc4-be", "parties-stop", "failures")
        return next(p for p in facts["published"] if (p["set"], p["policy"], p["metric"]) == wanted)

    assert judged(2)["ours"]["value"] == 1
    assert judged(2)["verdict"] == "worse than published"
    assert judged(5)["verdict"] == "as published or better"
    # of the policy's own workloads, not of all in the set
    assert (judged(2, others=5)["workloads"], judged(2, others=5)["verdict"]) == (2, "worse than published")
    by = {(p.set, p.policy, p.metric): p for p in eval_facts.published()}
    of_20 = by["lc4-be", "parties-stop", "failures"]
    assert [of_20.met_by(4.0, 20), of_20.met_by(5.0, 20), of_20.met_by(5.0, 40)] == [True, False, True]
    assert by["lc3", "parties-stop", "convergence_s"].met_by(15.0, 2)


def test_scripts_have_seeds_as_their_unit(tmp_path: Path) -> None:
    """Violations 1, 2, 3 s with three seeds: 2 +- 4.303 / sqrt(3) (Student's t, 2 degrees of freedom)."""
    rows = [row("fig10", "osml-plus", seed, 1.0, qos_violation_s=float(seed)) for seed in (1, 2, 3)]
    (of,) = facts_of(write(tmp_path / "churn-server-2", rows))["sets"]
    assert (of["set"], of["drawn"]) == ("churn-server-2", False)
    violation = of["policies"][0]["qos_violation_s"]
    assert violation["value"] == pytest.approx(2.0)
    assert violation["high"] - violation["value"] == pytest.approx(4.303 / math.sqrt(3))


def test_columns_of_newer_versions_may_be_absent(tmp_path: Path) -> None:
    """What was not measured is said, and is no zero."""
    rows = [row(f"lc3-{k:02}", p, 1, 1.0 + k) for k in range(1, 7) for p in ("osml-plus", "surefoot")]
    out = write(tmp_path / "lc3", rows, *eval_rows.OPTIONAL)
    facts = facts_of(out)
    assert facts["sets"][0]["policies"][0]["self_violation_s"] is None
    assert facts["sets"][0]["policies"][0]["reclaim_crossings_total"] is None
    assert facts["sets"][0]["policies"][0]["deprive_crossings_total"] is None
    made = eval_report.run([out], tmp_path / "report")
    assert "not measured" in Path(made["page"]).read_text("utf-8")


def test_one_seed_gives_no_interval(tmp_path: Path) -> None:
    """A script with one seed has no interval at all; a drawn set only none of its failures."""
    (script,) = facts_of(write(tmp_path / "churn", [row("fig10", "osml-plus", 1, 1.0)]))["sets"]
    assert script["interval"] is None
    assert eval_page._intervals(script) == "No intervals: one seed gives none. Run several: surefootd eval --seeds 5."
    (drawn,) = facts_of(write(tmp_path / "lc3", [row(f"lc3-{k:02}", "osml-plus", 1, 1.0) for k in (1, 2)]))["sets"]
    assert eval_page._intervals(drawn).startswith(
        "In brackets: 95 % intervals over workloads, bootstrapped. How many workloads fail"
    )
    more = [row("fig10", "osml-plus", s, 1.0) for s in (1, 2)]
    (more_seeds,) = facts_of(write(tmp_path / "churn", more))["sets"]
    assert "over seeds, Student's t" in eval_page._intervals(more_seeds)


def test_intervals_say_that_they_know_of_one_training(tmp_path: Path) -> None:
    """Over workloads and seeds of one bundle: how far another training would be off is in none of them."""
    out = write(tmp_path / "lc3", [row(f"lc3-{k:02}", "osml-plus", 1, 1.0) for k in (1, 2)])
    (found,) = facts_of(out)["sets"]
    said = "One training of the models: scatter between trainings is not in the intervals of policies that ask models."
    for bundles, wanted in (
        (1, said),
        (2, said.replace("One training of the models", "2 bundles, one training each")),
        (0, None),
    ):
        text = eval_page._intervals({**found, "bundles": bundles})
        assert (wanted in text) if wanted else ("training" not in text)


def test_no_time_is_below_zero() -> None:
    """0, 0 and 3 s: 1 +- 4.3 s would begin at -3.3 s."""
    found = eval_stats.over_seeds([0.0, 0.0, 3.0])
    assert found is not None
    assert (found.low, found.value) == (0.0, 1.0)


def test_null_is_not_the_same_as_not_measured(tmp_path: Path) -> None:
    """What never converged has no time; what an older surefootd did not count was not measured."""
    rows = [
        row(f"lc3-{k:02}", p, 1, s, actions_per_min_settled=None, self_violation_settled_s=None)
        for k in (1, 2)
        for p, s in (("osml-plus", None), ("parties-stop", 1.0))
    ]
    facts = facts_of(write(tmp_path / "lc3", rows, "self_violation_s", "deprive_crossings"))
    its, mine = facts["sets"][0]["policies"]
    assert mine["no_value"]["convergence_s"] == "never converged"
    assert mine["no_value"]["actions_per_min_settled"] == mine["no_value"]["self_violation_settled_s"] == "never settled"
    assert mine["no_value"]["self_violation_s"] == "not measured"
    # without deprive_crossings, reclaim_crossings is the sum of both
    assert mine["no_value"]["reclaim_crossings_total"] == "2 of both kinds"
    assert mine["no_value"]["deprive_crossings_total"] == "not told apart"
    assert "convergence_s" not in its["no_value"]
    assert facts["sets"][0]["ratios"][0]["no_value"] == {"speed_up": "no such run", "be_throughput_ratio": "no such run"}
    by = {(p["set"], p["policy"], p["baseline"], p["metric"]): p for p in facts["published"]}
    faster = by["lc3", "osml-plus", "parties-stop", "speed_up"]
    assert (faster["verdict"], faster["why"]) == ("no value", "no run (workload and seed) in which both have what is compared")
    assert by["lc3", "osml-plus", "clite", "speed_up"]["verdict"] == "not measured"
    # one run of both, and PARTIES misses no target in it
    calm = [row("fig10", p, 1, 1.0, qos_violation_s=s) for p, s in (("surefoot", 1.0), ("parties-stop", 0.0))]
    calm_facts = facts_of(write(tmp_path / "churn-server-2", calm))
    assert calm_facts["sets"][0]["ratios"][0]["no_value"]["violation_ratio"] == "over 0"
    by_calm = {(p["set"], p["policy"], p["metric"]): p for p in calm_facts["published"]}
    aim = by_calm["churn-server-2", "surefoot", "violation_ratio"]
    assert (aim["verdict"], aim["why"]) == ("no value", "its denominator is 0 in all runs that both have")
    html = Path(eval_report.run([tmp_path / "lc3"], tmp_path / "report")["page"]).read_text("utf-8")
    for said in ("never converged", "never settled", "not measured", "2 of both kinds", "no such run"):
        assert said in html, said


def test_a_violation_that_was_never_known_is_not_zero(tmp_path: Path) -> None:
    """A run in which some latency was never known has no seconds of violation: no mean counts it, and a table says so."""

    def rows(first: float | None) -> list[dict[str, Any]]:
        own = {"qos_violation_by_lc_s": json.dumps({"moses": first, "xapian": 1.0})}
        known = [row("lc3-02", p, 1, 1.0, qos_violation_s=4.0) for p in ("osml-plus", "parties-stop")]
        return [row("lc3-01", p, 1, 1.0, qos_violation_s=first, **own) for p in ("osml-plus", "parties-stop")] + known

    some = facts_of(write(tmp_path / "lc3", rows(None)))["sets"][0]["policies"]
    assert [p["qos_violation_s"]["value"] for p in some] == [4.0, 4.0]
    write(tmp_path / "lc3", rows(None)[:2])
    none = facts_of(tmp_path / "lc3")["sets"][0]
    assert [p["qos_violation_s"] for p in none["policies"]] == [None, None]
    assert {p["no_value"]["qos_violation_s"] for p in none["policies"]} == {"latency never known"}
    assert none["ratios"][0]["violation_ratio"] is None
    html = Path(eval_report.run([tmp_path / "lc3"], tmp_path / "report")["page"]).read_text("utf-8")
    assert "latency never known" in html


def test_crossings_of_both_kinds_are_not_added_to_reclaims(tmp_path: Path) -> None:
    """An older surefootd's reclaim_crossings are the sum of both kinds: beside newer rows no total is given, no aim judged."""
    old = [row(f"lc3-{k:02}", "surefoot", 1, 1.0, reclaim_crossings=3) for k in (1, 2)]
    new = [row(f"lc3-{k:02}", "surefoot", 1, 1.0, reclaim_crossings=0) for k in (3, 4, 5)]
    outs = (write(tmp_path / "old", old, "deprive_crossings"), write(tmp_path / "new", new))
    (mine,) = facts_of(*outs)["sets"][0]["policies"]
    for name in ("reclaim_crossings", "reclaim_crossings_total", "deprive_crossings", "deprive_crossings_total"):
        assert mine[name] is None, name
    # two old runs with three each, of five runs
    assert mine["no_value"]["reclaim_crossings_total"] == "6 of both kinds in 2 of 5 runs"
    assert mine["no_value"]["deprive_crossings_total"] == "not told apart in 2 of 5 runs"
    html = Path(eval_report.run(list(outs), tmp_path / "report")["page"]).read_text("utf-8")
    assert "6 of both kinds in 2 of 5 runs" in html
    older = write(tmp_path / "older", [row("lc3-06", "surefoot", 1, 1.0)], "reclaim_crossings", "deprive_crossings")
    (mine,) = facts_of(outs[1], older)["sets"][0]["policies"]
    assert mine["no_value"]["reclaim_crossings_total"] == "not measured in 1 of 4 runs"

    def aim(*rows: Path) -> dict[str, Any]:
        of = (p for p in facts_of(*rows)["published"] if p["set"] == "churn-server-2" and p["metric"] == "reclaim_crossings")
        return next(of)

    # scripts are a set by their folder's name
    older = write(tmp_path / "a" / "churn-server-2", [row("fig10", "surefoot", 1, 1.0)], "deprive_crossings")
    newer = write(tmp_path / "b" / "churn-server-2", [row("fig12", "surefoot", 1, 1.0, reclaim_crossings=0)])
    assert (aim(newer)["verdict"], aim(newer)["ours"]["value"]) == ("met", 0)
    assert aim(older)["why"].startswith("by an older surefootd, without the column deprive_crossings")
    mixed = aim(older, newer)
    assert (mixed["verdict"], mixed["ours"]) == ("not measured", None)
    assert mixed["why"].startswith("1 of 2 runs by an older surefootd, without the column deprive_crossings")


def test_the_page_has_every_figure_and_fetches_nothing(tmp_path: Path) -> None:
    """Scatter, violins, distribution, EMU, load maps, time lines and traces, from 36 loads of two services and a script."""
    names = {f"emu-{k:03}": {"moses": 0.1 * (k % 6 + 1), "xapian": 0.1 * (k // 6 + 1)} for k in range(36)}
    rows = [
        row(n, p, 1, 2.0 if p == "osml" else None, lc=2, offered_load=sum(names[n].values()))
        for n in names
        for p in ("osml", "clite")
    ]
    time_lines(write(tmp_path / "emu", rows), rows, names)
    script = [row("fig10", p, 1, 2.0, lc=2) for p in ("osml", "clite")]
    time_lines(write(tmp_path / "churn", script), script, {"fig10": {"moses": 0.5, "xapian": 0.5}})
    made = eval_report.run([tmp_path / "emu", tmp_path / "churn"], tmp_path / "report")
    html = Path(made["page"]).read_text("utf-8")
    for said in (
        "Convergence time against EMU",
        "Violins of convergence times",
        "Share of runs converged over time",
        "Workloads that converge, by offered load",
        "Loads of moses and xapian under osml",
        "fig10 under clite: latency over target",
        "fig10: what moses held",
        "QoS violation by policy and platform",
    ):
        assert said in html, said
    assert "http" not in html.replace("http://www.w3.org", "")
    assert json.loads((tmp_path / "report" / "eval-report.json").read_text("utf-8"))["sets"][0]["policies"]


def test_wide_tables_keep_their_row_headers(tmp_path: Path, lc3: Path) -> None:
    """Every row is led by a header that stays where it is, and in the widest table intervals stand below their figures."""
    html = Path(eval_report.run([lc3], tmp_path / "report")["page"]).read_text("utf-8")
    widest = html[html.index('<table class="dense">') :]
    widest = widest[: widest.index("</table>")]
    assert '<th scope="row" class="short">osml-plus</th>' in widest
    assert '4.5 <span class="interval">[3, 6]</span>' in widest
    assert '<th scope="row" class="short">osml-plus / parties-stop</th>' in html


def test_one_is_singular(tmp_path: Path) -> None:
    """One workload, LC service, seed, change and failure are not "1 workloads"."""
    facts = facts_of(write(tmp_path / "lc1", [row("lc1-01", "osml-plus", 1, 1.0, lc=1)]))
    assert eval_page._what(facts["sets"][0]) == "1 workload (drawn at random), 1 LC service; 1 seed"
    rows = [row(name, "osml-plus", s, 1.0, be_throughput=be) for name, be in (("a", 0.5), ("b", None)) for s in (1, 2)]
    facts = facts_of(write(tmp_path / "churn", rows))
    assert eval_page._what(facts["sets"][0]) == "2 workloads (scripted), 3 LC services, BE jobs in 1 of 2; 2 seeds"
    trace = policy_charts.Trace("parties-stop", "moses", [(0.0, 1.0, 1.0), (1.0, 2.0, 1.0)], [True, True])
    assert "parties-stop: 1 change<" in policy_charts.traces([trace], "moses")
    runs = policy_charts.Runs("parties-stop", np.ones(3), np.ones(3), np.array([1.0, 2.0]), 1)
    assert "1 of 3 fails" in policy_charts.violins([runs])


def test_columns_are_explained_where_they_stand(tmp_path: Path, lc3: Path) -> None:
    """Every column of a set has a meaning; crossings have theirs below the table; figures stand in the paper's unit."""
    html = Path(eval_report.run([lc3], tmp_path / "report")["page"]).read_text("utf-8")
    assert [c.name for c in eval_page._COLUMNS if not c.help] == ["policy"]
    for column in eval_page._COLUMNS[1:]:
        # two columns are only in tables of sets that have them, their meaning is in the list of all
        rare = column.name in (eval_page._BE, eval_page._BE_MET, eval_page._REFUSED)
        assert html.count(column.help.replace("'", "&#39;")) >= (1 if rare else 2), column.name
    assert "reclaims did so for BE jobs or for nobody, deprivations for other LC services" in html
    assert '5 × <span class="interval">[5, 5]</span>' in html
    by = {(p["metric"], p["policy"]): p for p in facts_of(lc3)["published"] if p["set"] == "lc2-be"}
    failures = by["failures", "parties-stop"]
    assert (eval_page._unit(failures), eval_page._unit(failures, 4)) == ("of 20", "of 4")
    folded = html[html.index("without one of ours beside it, and why</summary>") :]
    assert "no rows of lc2-be on server-2" in folded[: folded.index("</details>")]


def test_load_maps_count_what_converges(tmp_path: Path) -> None:
    """Six by six loads; parties-stop fails where both are at 60 %."""
    names = {f"emu-{k:03}": {"moses": 0.1 * (k % 6 + 1), "xapian": 0.1 * (k // 6 + 1)} for k in range(36)}
    rows = [row(n, "parties-stop", 1, None if n == "emu-035" else 1.0, lc=2) for n in names]
    time_lines(write(tmp_path / "emu", rows), rows, names)
    (group,) = eval_facts.groups(eval_rows.read([tmp_path / "emu"]))
    (found,) = eval_page.load_maps(group)
    assert (found.x, found.y, list(found.x_pct)) == ("moses", "xapian", [10, 20, 30, 40, 50, 60])
    assert found.share.sum() == 35
    assert found.share[5, 5] == 0


def test_a_trace_has_each_allocation_once() -> None:
    """Four cores for five ticks above the target, then six below it: two steps, the second met."""
    ticks = range(10)
    frame = pl.DataFrame(
        {
            "t_ms": [100 * t for t in ticks],
            "service": ["moses"] * 10,
            "kind": ["lc"] * 10,
            "load": [0.5] * 10,
            "p99_ms": [20.0] * 5 + [5.0] * 5,
            "qos_target_ms": [10.0] * 10,
            "cores": [4.0] * 5 + [6.0] * 5,
            "ways": [2.0] * 10,
        }
    )
    found = eval_page.trace_of(frame, "parties-stop", "moses")
    assert list(found.steps) == [(0.0, 4.0, 2.0), (0.5, 6.0, 2.0)]
    assert list(found.met) == [False, True]


def test_a_trace_of_many_changes_stays_readable() -> None:
    """A cell is drawn once whatever its visits, about six of 60 steps are numbered, and far values do not press the near ones."""
    steps = [(float(k), 4.0 + (k % 2), 2.0) for k in range(60)]
    trace = policy_charts.Trace("parties-stop", "moses", [*steps, (60.0, 30.0, 2.0)], [True] * 61)
    assert {at: len(held) for at, held in policy_charts.visits(trace).items()} == {(2.0, 4.0): 30, (2.0, 5.0): 30, (2.0, 30.0): 1}
    assert policy_charts.numbered(60) == [10, 20, 30, 40, 50]
    assert policy_charts.numbered(4) == [1, 2]
    assert policy_charts.spread([4.0, 5.0, 30.0]) == {4.0: 0.0, 5.0: 1.0, 30.0: 3.0}
    drawn = policy_charts.traces([trace], "moses")
    assert drawn.count(">30<") >= 3  # two counts of visits, and the axis' 30 cores


def test_what_never_changed_is_said_and_not_drawn() -> None:
    """One allocation is a sentence, not a figure."""
    trace = policy_charts.Trace("unmanaged", "moses", [(5.0, 36.0, 20.0)], [False])
    (said,) = eval_page._way("fig10", "moses", [trace])
    assert said.text == "No change of what moses held after the last arrival: unmanaged (36 cores, 20 ways)."


def test_failures_stay_in_the_distribution() -> None:
    """Two of four converge: the curve ends at one half."""
    x, y = eval_stats.ecdf([3.0, 1.0], failed=2)
    assert x.tolist() == [1.0, 3.0]
    assert y.tolist() == [0.25, 0.5]


def test_bootstrap_agrees_with_theory() -> None:
    """The mean of 400 draws of a unit normal: the interval is close to +- 1.96 / 20."""
    x = np.random.default_rng(3).normal(size=400)
    found = eval_stats.over_workloads(x.tolist())
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * x.std() / 20, rel=0.05)
    assert eval_stats.over_workloads([]) is None
    assert eval_stats.paired_ratio([1.0], [0.0]) is None
    assert eval_stats.over_workloads([2.0]) == eval_stats.Estimate(2.0, None, None, 1)


def test_policies_are_told_apart_without_colour() -> None:
    """No two known policies share a mark or a dash; variants stand behind what they vary, in its colour."""
    looks = [policy_charts.look(p) for p in policy_charts._LOOKS]
    assert len({k.mark for k in looks}) == len(looks)
    assert len({k.colour for k in looks}) == len(looks)
    order = policy_charts.in_order(["surefoot", "zeta", "parties-be-100ms", "osml-plus", "parties-be", "osml"])
    assert order == ["parties-be", "parties-be-100ms", "osml", "osml-plus", "surefoot", "zeta"]
    assert policy_charts.look("parties-be-100ms").colour == policy_charts.look("parties-be").colour
    assert policy_charts.look("osml-plus").colour != policy_charts.look("osml").colour


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda out: (out / "rows.parquet").unlink(),
            "rows.parquet: is missing. Name a folder that `surefootd eval --out` wrote",
        ),
        (lambda out: (out / "rows.parquet").write_text("no"), "rows.parquet: is not Parquet. Make it again"),
        (lambda out: cut(out / "rows.parquet"), "rows.parquet: is cut off. Make it again"),
        (lambda out: (out / "timelines.parquet").write_text("no"), "timelines.parquet: is not Parquet. Make it again"),
        (
            lambda out: cut(with_time_lines(out)),
            "timelines.parquet: is cut off. Make it again: surefootd eval ... --out {out} --overwrite, or remove it: the page is",
        ),
        (
            lambda out: pl.read_parquet(with_time_lines(out)).drop("t_ms").write_parquet(out / "timelines.parquet"),
            "timelines.parquet: column t_ms is missing. Make it again",
        ),
        (lambda out: write(out, [row("a-01", "p", 1, 1.0)], "emu"), "rows.parquet: column emu is missing. Make it again"),
        (lambda out: write(out, [row("a-01", "p", 1, 1.0, emu="x")]), "rows.parquet: column emu holds String, not Float64"),
        (lambda out: write(out, [row("a-01", "p", 1, 1.0)] * 2), "workload a-01, policy p, seed 1 stands there more than once"),
        (lambda out: write(out, [row("a-01", None, 1, 1.0), row("a-01", "p", 1, 1.0)]), "column policy has empty cells"),
        (
            lambda out: write(out, [row("a-01", "p", 1, 1.0, qos_violation_by_lc_s="{")]),
            "column qos_violation_by_lc_s is not a JSON",
        ),
        (
            lambda out: write(out, [row("a-01", "p", 1, 1.0, qos_violation_by_lc_s="[1, 2]")]),
            "rows.parquet: column qos_violation_by_lc_s is not a JSON object in every row. Make it again",
        ),
        (
            lambda out: write(out, [row("a-01", "p", 1, 1.0, qos_violation_by_lc_s='"ab"')]),
            "rows.parquet: column qos_violation_by_lc_s is not a JSON object in every row. Make it again",
        ),
        (
            lambda out: write(out, [row("a-01", "p", 1, 1.0, qos_violation_by_lc_s="[" * 100_000)]),
            "rows.parquet: column qos_violation_by_lc_s is not a JSON object in every row. Make it again",
        ),
        (
            lambda out: change_rows(out, emu=math.nan),
            "rows.parquet: column emu holds NaN or infinity. Make it again: surefootd eval ... --out {out} --overwrite\n",
        ),
        (lambda out: change_rows(out, worst_slowdown=math.inf), "rows.parquet: column worst_slowdown holds NaN or infinity"),
        (
            lambda out: change_rows(out, seed=pl.col("seed").cast(pl.UInt64) + 2**63),
            "rows.parquet: column seed holds numbers that are too large for Int64. Make it again",
        ),
        (
            lambda out: change_lines(out, p99_ms=math.inf),
            "timelines.parquet: column p99_ms holds NaN or infinity. "
            "Make it again: surefootd eval ... --out {out} --overwrite, or remove it",
        ),
        (lambda out: change_lines(out, qos_target_ms=math.nan), "timelines.parquet: column qos_target_ms holds NaN or infinity"),
        (lambda out: change_lines(out, t_ms=None), "timelines.parquet: column t_ms has empty cells. Make it again"),
        (
            lambda out: change_lines(out, policy=pl.lit("clite")),
            "timelines.parquet: is not of the rows beside it: workload lc3-01, policy clite, seed 1 is in timelines.parquet "
            "alone. Make it again: surefootd eval ... --out {out} --overwrite, or remove it",
        ),
        (
            lambda out: change_lines(out, seed=pl.lit(3)),
            "timelines.parquet: is not of the rows beside it: workload lc3-01, policy osml-plus, seed 3",
        ),
        (
            lambda out: change_lines(out, workload=pl.col("workload").replace("lc3-02", "lc3-03")),
            "timelines.parquet: is not of the rows beside it: workload lc3-03, policy osml-plus, seed 1",
        ),
        (
            lambda out: (out / "eval.partial.jsonl").touch(),
            "eval.partial.jsonl: this evaluation is not finished. Run the same `surefootd eval ... --out {out}` again: it goes "
            "on where it was. For the older results there, remove eval.partial.jsonl",
        ),
        (
            lambda out: (out / "rows.parquet").rename(out / "eval.partial.jsonl"),
            "eval.partial.jsonl: this evaluation is not finished. Run the same `surefootd eval ... --out {out}` again: it goes "
            "on where it was\n",
        ),
        (
            lambda out: what(out, platform="server-1"),
            "eval.json: platform: server-2 is in rows.parquet alone, so the two are not of",
        ),
        (lambda out: what(out, policies=["osml-plus"]), "eval.json: policies: parties-stop is in rows.parquet alone"),
        (
            lambda out: what(out, policies=["osml-plus", "parties-stop", "clite"]),
            "eval.json: policies: clite is in eval.json alone",
        ),
        (
            lambda out: what(out, seeds=1),
            "eval.json: seeds: 2 is in rows.parquet alone, so the two are not of one run. Make it again",
        ),
        (
            lambda out: what(out, workloads=[{"name": "lc3-01", "sha256": "a"}]),
            "eval.json: workloads: lc3-02 is in rows.parquet alone",
        ),
        (
            # 2 workloads, 2 policies and 2 seeds; the last row goes
            lambda out: pl.read_parquet(out / "rows.parquet").head(7).write_parquet(out / "rows.parquet"),
            "rows.parquet: has 7 rows, and eval.json beside it says 8. Make it again",
        ),
    ],
)
def test_bad_input_is_one_line(change: Any, says: str, tmp_path: Path, lc3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File, field and remedy; exit code 2; no output."""
    change(lc3)
    with pytest.raises(SystemExit) as e:
        cli.main(["eval-report", str(lc3), "--out", str(tmp_path / "report")])
    said = capsys.readouterr().err
    assert e.value.code == 2
    assert says.format(out=lc3) in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "report").exists()


def test_time_lines_that_are_damaged_within_are_bad_input(tmp_path: Path) -> None:
    """Beginning and end are those of Parquet; nothing is written then either."""
    out = write(tmp_path / "churn", [row("fig10", "parties-stop", 1, 1.0)])
    held = bytearray(with_time_lines(out).read_bytes())
    held[4:60] = bytes(56)
    (out / "timelines.parquet").write_bytes(held)
    with pytest.raises(BadInput, match=r"timelines\.parquet: is damaged \(.+\)\. Make it again: .+, or remove it"):
        eval_report.run([out], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_time_lines_may_have_nulls(tmp_path: Path) -> None:
    """Null is unknown, and no NaN."""
    out = write(tmp_path / "churn", [row("fig10", "parties-stop", 1, 1.0)])
    first = pl.col("t_ms") == 100
    unknown = {n: pl.when(~first).then(pl.col(n)) for n in ("p99_ms", "qos_target_ms", "load", "cores", "ways")}
    change_lines(out, **unknown)
    assert "fig10 under parties-stop" in Path(eval_report.run([out], tmp_path / "report")["page"]).read_text("utf-8")


def test_time_lines_of_another_platform_are_not_drawn(tmp_path: Path) -> None:
    """Without eval.json rows may be of several platforms: parties-stop was on one alone, and its time line is all there is."""
    rows = [row("fig10", "parties-stop", 1, 1.0), row("fig10", "osml", 1, 1.0, platform="server-3")]
    out = write(tmp_path / "churn", rows)
    (out / "eval.json").unlink()
    time_lines(out, rows[:1], {"fig10": {"moses": 0.5, "xapian": 0.5}})
    html = Path(eval_report.run([out], tmp_path / "report")["page"]).read_text("utf-8")
    assert "fig10 under parties-stop" in html
    assert "fig10 under osml" not in html


@pytest.mark.parametrize("held", [b"PAR1 cut off", b"no"])
def test_of_a_damaged_file_both_ends_are_read(held: bytes, lc3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be larger than memory."""
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    (lc3 / "rows.parquet").write_bytes(held)
    with pytest.raises(BadInput, match=r"rows\.parquet: is (cut off|not Parquet)\. Make it again"):
        eval_rows.read([lc3])


def test_a_file_that_goes_while_it_is_read_is_bad_input(lc3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with it cannot be looked up then."""

    def gone(path: Path) -> pl.DataFrame:
        path.unlink()
        raise pl.exceptions.ComputeError("no bytes")

    monkeypatch.setattr(pl, "read_parquet", gone)
    with pytest.raises(BadInput, match=r"rows\.parquet: cannot be read \(No such file or directory\)\. Make it again"):
        eval_rows.read([lc3])


def test_numbers_that_are_no_json_leave_nothing_behind(lc3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page without its numbers."""
    gather = eval_facts.gather

    def wrong(rows: pl.DataFrame) -> tuple[dict[str, Any], Any]:
        facts, groups = gather(rows)
        return facts | {"wrong": math.nan}, groups

    monkeypatch.setattr(eval_facts, "gather", wrong)
    with pytest.raises(ValueError, match="JSON"):
        eval_report.run([lc3], tmp_path / "report")
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("below", ["", "a/b"])
@pytest.mark.parametrize(
    ("to", "why"), [("not there", "No such file or directory"), ("link", "Too many levels of symbolic links")]
)
def test_a_link_that_leads_nowhere_is_no_file(to: str, why: str, below: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / to)
    with pytest.raises(BadInput) as e:
        eval_report.run([tmp_path / "out"], link / below)
    kind = f"a link that leads nowhere ({why})"
    says = f"cannot be a folder, {link} is {kind}. Give another" if below else f"is {kind}. Give a folder"
    assert str(e.value) == f"--out {link / below}: {says}"


@pytest.mark.parametrize("name", [eval_report.PAGE, eval_report.FACTS])
def test_a_folder_in_place_of_a_file_is_found_first(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(BadInput) as e:
        eval_report.run([tmp_path / "out"], tmp_path)
    assert str(e.value) == f"--out {tmp_path / name}: is a folder and no plain file. Give a path where nothing is"


@pytest.mark.parametrize("name", ["a" * 300, "a/" + "b" * 300, "a/" * 2100 + "a"])
def test_a_name_that_is_too_long_is_found_first(name: str, tmp_path: Path) -> None:
    """One part of it, also below what is not there yet, or the whole."""
    with pytest.raises(BadInput, match=r"^--out .+: File name too long\. Give a shorter name$"):
        eval_report.run([tmp_path / "out"], tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("below", "says"), [("", "is a file. Give a folder\n"), ("a/b", "cannot be a folder, {file} is a file. Give another\n")]
)
def test_where_to_write_is_checked_first(
    below: str, says: str, lc3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line before anything is read: the evaluation named here is not there at all."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit) as e:
        cli.main(["eval-report", str(lc3 / "not there"), "--out", str(file / below)])
    assert e.value.code == 2
    assert capsys.readouterr().err == f"error: --out {file / below}: {says.format(file=file)}"


def test_a_folder_that_takes_no_files_is_found_first(lc3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest folder that is there decides; root may write anywhere, so the answer of the system is ours here."""
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != tmp_path)
    with pytest.raises(BadInput, match=r"nothing can be written to .+ Check its owner and mode"):
        eval_report.run([lc3 / "not there"], tmp_path / "a" / "b")


def test_a_folder_is_given_once(lc3: Path, tmp_path: Path) -> None:
    """Plainly, whatever name it has."""
    with pytest.raises(BadInput, match=f"^{re.escape(str(lc3))}: is given twice. Give it once$"):
        eval_rows.read([lc3, lc3])
    (tmp_path / "link").symlink_to(lc3)
    with pytest.raises(BadInput, match=f"/link: is the same folder as {re.escape(str(lc3))}. Give it once$"):
        eval_rows.read([lc3, tmp_path / "link"])


def test_different_workloads_of_one_name_are_refused(lc3: Path, tmp_path: Path) -> None:
    """Two drawn sets have the same name by default; with other policies no run stands in both. Scripts go by their folder."""
    other = what(write(tmp_path / "other", [row("lc3-01", "osml", 1, 1.0)]), workloads=[{"name": "lc3-01", "sha256": "another"}])
    with pytest.raises(BadInput) as e:
        eval_rows.read([lc3, other])
    assert str(e.value) == (
        f"{other} and {lc3}: workload lc3-01 on server-2 is not the same file in each of them (sha256 in eval.json). Report on "
        "one of them, or draw one of the sets again with `surefoot workloads generate ... --name NAME`, and evaluate that"
    )
    scripts = [write(tmp_path / k / "churn", [row("fig10", p, 1, 1.0)]) for k, p in (("a", "osml"), ("b", "parties-stop"))]
    assert len(eval_rows.read(scripts)) == 2
    what(scripts[1], workloads=[{"name": "fig10", "sha256": "another"}])
    with pytest.raises(BadInput, match=r"workload fig10 .+, or rename one of the folders: scripts are a set by their folder"):
        eval_rows.read(scripts)


def test_a_run_stands_in_one_folder(lc3: Path, tmp_path: Path) -> None:
    """Of the same file it is an older run; without eval.json nobody knows whether the file is the same."""
    again = write(tmp_path / "again", [row("lc3-01", "parties-stop", 1, 1.0)])
    with pytest.raises(BadInput) as e:
        eval_rows.read([lc3, again])
    said = f"{again} and {lc3}: workload lc3-01, policy parties-stop, seed 1 stands in each of them. Leave out the older"
    assert str(e.value) == said
    (again / "eval.json").unlink()
    with pytest.raises(BadInput) as e:
        eval_rows.read([lc3, again])
    assert str(e.value).startswith(f"{said}. If they are different workloads of one name, draw one of the sets again with")


def test_no_zero_has_a_sign(tmp_path: Path) -> None:
    """A sum of nothing is -0 in surefootd: neither rows nor what a service held show it."""
    zeros = {"self_violation_s": -0.0, "emu": -0.0, "qos_violation_s": -0.0, "worst_slowdown": -0.0}
    out = write(tmp_path / "churn", [row("fig10", p, 1, -0.0, **zeros) for p in ("parties-stop", "osml")])
    lines = pl.read_parquet(with_time_lines(out)).with_columns(ways=pl.lit(-0.0), cores=pl.lit(4.0))
    lines.write_parquet(out / "timelines.parquet")
    eval_report.run([out], tmp_path / "report")
    for name in (eval_report.PAGE, eval_report.FACTS):
        shown = re.sub(r"<style.*?</style>|<[^>]+>", " ", (tmp_path / "report" / name).read_text("utf-8"), flags=re.S)
        assert not re.findall(r".*(?<!\w)[-\u2212]0(?:\.0+)?(?![\d.]).*", shown), name
    assert "4 cores, 0 ways" in (tmp_path / "report" / eval_report.PAGE).read_text("utf-8")


def test_the_command_says_what_it_is_at(lc3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each step is said on stderr as it begins and when it is done, all that were announced; stdout has the outcome alone."""
    cli.main(["eval-report", str(lc3), "--out", str(tmp_path / "report")])
    told = capsys.readouterr()
    names = ["numbers of 8 runs", *eval_page.DRAWN]
    begun = [f"{k}/{len(names)} {name}" for k, name in enumerate(names, 1)]
    assert len(names) == eval_report.STEPS
    assert [line.split(" done ")[0].strip() for line in told.err.splitlines()] == [b for b in begun for _ in range(2)]
    assert len(told.out.splitlines()) == 1


def test_a_figure_is_cut_as_matplotlib_cuts_it() -> None:
    """Its size is asked for without drawing it once more: the same to a thousandth of a point, with all that stands outside."""

    def figure() -> Figure:
        with matplotlib.rc_context(drawing.STYLE):
            fig, axes = plt.subplots(2, 1, figsize=(4, 3), sharex=True)
            for ax in axes:
                ax.plot([1, 10, 100], [3, 1, 2], label="a label")
                ax.set_xscale("log")
                ax.set_ylabel("on the left")
            axes[0].set_title("a title that is a good deal wider than the axes below it are, and so decides how wide it all is")
            fig.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0))
        return fig

    def numbers(svg: str) -> list[float]:
        # identifiers are made from what is cut, too
        return [float(x) for x in re.findall(r"-?\d+\.?\d*", re.sub(r'"[^"]*#[^"]*"|id="[^"]*"', "", svg[svg.index("<svg") :]))]

    tight = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        whole = figure()
        whole.savefig(tight, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight", pad_inches=0.05)
        plt.close(whole)
    wanted = re.sub(r"<!--.*?-->\s*", "", tight.getvalue(), flags=re.S)
    assert numbers(drawing.svg_file(figure(), "salt")) == pytest.approx(numbers(wanted), abs=1e-3)


@pytest.mark.filterwarnings("error")
def test_a_workload_without_a_time_line_is_none(tmp_path: Path) -> None:
    """A folder's time lines may be of other workloads (an older surefootd left them there with --timelines none): no warning."""
    rows = [row("colocation", "parties-stop", 1, 2.0)]
    out = write(tmp_path / "churn", rows)
    assert eval_rows.one_line(out, "colocation") is None
    time_lines(out, [row("another", "parties-stop", 1, 2.0)], {"another": {"moses": 0.4}})
    assert eval_rows.one_line(out, "colocation") is None
    assert len(eval_rows.read([out])) == 1
    pl.read_parquet(out / "timelines.parquet").clear().write_parquet(out / "timelines.parquet")
    html = Path(eval_report.run([out], tmp_path / "report")["page"]).read_text("utf-8")
    assert "No time lines among these folders" in html


def what(folder: Path, **more: Any) -> Path:
    """Say in eval.json what was run; all that it says already and is not given stays."""
    path = folder / "eval.json"
    said = json.loads(path.read_text("utf-8")) if path.exists() else {"surefootd": "0.1.0", "bundle": "ab12cd", "harm": None}
    path.write_text(json.dumps(said | more), "utf-8")
    return folder


def worlds(folder: Path, name: str, numbers: tuple[int, ...] = (1, 2), **more: Any) -> Path:
    """Two workloads on each of some worlds of a range, as `surefootd eval --worlds` leaves them."""
    rows = [
        row(f"{name}-{n}-{w:02}", "parties-stop", 1, 4.0, platform=f"{name}-{n}-p", world=f"{name}:{n}", be_throughput=0.5)
        for n in numbers
        for w in (1, 2)
    ]
    return what(write(folder, rows), platform=None, worlds={"edition": 1, "range": name, "numbers": list(numbers)}, **more)


def test_worlds_of_a_range_are_one_set(tmp_path: Path) -> None:
    """Each world has a server of its own; the page has one set a range, names the range, and never puts two ranges together."""
    test, tune = worlds(tmp_path / "a", "test"), worlds(tmp_path / "b", "tune")
    sets = facts_of(test, tune)["sets"]
    assert [(s["set"], s["platform"], s["workloads"], s["drawn"]) for s in sets] == [
        ("test worlds", "drawn servers", 4, True),
        ("tune worlds", "drawn servers", 4, True),
    ]
    html = Path(eval_report.run([test], tmp_path / "report")["page"]).read_text("utf-8")
    assert "test worlds" in html
    assert "tune worlds" not in html


def test_worlds_of_two_editions_are_refused(tmp_path: Path) -> None:
    """Under another edition the same number is another world."""
    now, then = worlds(tmp_path / "a", "test"), worlds(tmp_path / "b", "test", (3, 4))
    assert len(eval_rows.read([now, then])) == 8
    what(then, worlds={"edition": 2, "range": "test", "numbers": [3, 4]})
    with pytest.raises(BadInput) as e:
        eval_rows.read([now, then])
    assert f"{now} (edition 1) and {then} (edition 2): rows of several editions of worlds. Run the" in str(e.value)


def test_rows_of_two_ranges_are_refused(tmp_path: Path) -> None:
    """An evaluation is of one range, or of workload files; an eval.json of files does not vouch for rows of worlds."""
    out = worlds(tmp_path / "a", "test")
    first = pl.col("workload") == "test-1-01"
    change_rows(out, world=pl.when(first).then(pl.lit("tune:1")).otherwise(pl.col("world")))
    with pytest.raises(BadInput, match="column world has rows of test, tune"):
        facts_of(out)
    change_rows(out, world=pl.when(first).then(None).otherwise(pl.lit("test:1")))
    with pytest.raises(BadInput, match="rows of test, workload files"):
        facts_of(out)
    with pytest.raises(BadInput, match=r"drawn servers is in rows\.parquet alone"):
        facts_of(what(worlds(tmp_path / "b", "test"), worlds=None, platform="server-1"))


def test_what_was_run_is_said(lc3: Path, tmp_path: Path) -> None:
    """Version and bundle stand beside the folder."""
    made = facts_of(lc3)["made_from"][0]
    assert (made["surefootd"], made["bundle"], made["harm"]) == ("0.1.0", "ab12cd", None)
    html = Path(eval_report.run([lc3], tmp_path / "report")["page"]).read_text("utf-8")
    assert "ab12cd" in html
    assert "told untruths:" not in html


def test_misled_runs_have_no_verdict(lc3: Path, tmp_path: Path) -> None:
    """The page says what the policies were told, and holds nothing of it against an aim or a published number."""
    assert any(p["ours"] for p in facts_of(lc3)["published"])
    what(lc3, harm="no-counters")
    facts = facts_of(lc3)
    assert {p["verdict"] for p in facts["published"]} == {"not measured"}
    assert "told untruths: no-counters" in {p["why"] for p in facts["published"]}
    assert (facts["sets"][0]["harm"], facts["made_from"][0]["harm"]) == ("no-counters", "no-counters")
    html = Path(eval_report.run([lc3], tmp_path / "report")["page"]).read_text("utf-8")
    assert "lc3 on server-2, told untruths: no-counters. What comes of that has no verdict" in html


def test_exact_runs_stand_alone(lc3: Path, tmp_path: Path) -> None:
    """Requests by themselves are another virtual server than the laws of queues: no verdict, and no mean has both."""
    exact = what(write(tmp_path / "exact", [row("lc3-01", "parties-stop", 1, 2.0)]), exact=True)
    with pytest.raises(BadInput) as e:
        eval_rows.read([lc3, exact])
    assert f"{exact} (--exact) and {lc3}: rows of set lc3 on server-2 with and without --exact. Report on each" in str(e.value)
    facts = facts_of(exact)
    assert {p["verdict"] for p in facts["published"]} == {"not measured"}
    assert (facts["made_from"][0]["requests"], facts_of(lc3)["made_from"][0]["requests"]) == ("exact", None)
    html = Path(eval_report.run([exact], tmp_path / "report")["page"]).read_text("utf-8")
    assert "every request was simulated by itself (--exact)" in html


def test_rows_that_nobody_vouches_for_have_no_verdict(lc3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without eval.json nobody knows whether policies were told the truth; one such folder leaves its set without verdicts."""
    assert {p["verdict"] for p in facts_of(lc3)["published"] if p["ours"]} == {"met", "missed"}
    more = write(tmp_path / "more", [row("lc3-03", "osml-plus", 1, 2.0)])
    (more / "eval.json").unlink()
    facts = facts_of(lc3, more)
    assert {p["verdict"] for p in facts["published"]} == {"not measured"}
    why = f"no eval.json in {more}: whether policies were told the truth is not known"
    assert why in {p["why"] for p in facts["published"]}
    assert [m["surefootd"] for m in facts["made_from"]] == [None, "0.1.0"]
    cli.main(["eval-report", str(lc3), str(more), "--out", str(tmp_path / "report")])
    assert f"warning: lc3 on server-2: {why}: no verdicts\n" in capsys.readouterr().err
    assert f"lc3 on server-2: {why}. So there is no verdict" in (tmp_path / "report" / "eval-report.html").read_text("utf-8")


def test_misled_and_honest_runs_are_not_one_set(lc3: Path, tmp_path: Path) -> None:
    """No mean has both: what was misled stands apart; and sets of which all were misled are not united beside BE jobs."""
    before = facts_of(lc3)
    misled = what(write(tmp_path / "misled", [row("lc3-01", "osml-plus", 1, 2.0, qos_violation_s=3.0)]), harm="no-counters")
    facts = facts_of(lc3, misled)
    assert (facts["sets"], facts["published"]) == (before["sets"], before["published"])
    assert [m["harm"] for m in facts["made_from"]] == ["no-counters", None]
    other = what(write(tmp_path / "other", [row("lc3-01", "osml-plus", 1, 2.0)]), harm="dead-feed")
    with pytest.raises(BadInput) as e:
        eval_rows.read([misled, other])
    said = str(e.value)
    assert f"{misled} (--harm no-counters)" in said
    assert f"{other} (--harm dead-feed)" in said
    assert "Add the runs without --harm, or report on each of them by itself" in said
    be = [
        write(tmp_path / n, [row(f"{n}-{k:02}", "osml-plus", 1, 2.0, be_throughput=0.5) for k in (1, 2)])
        for n in ("lc2-be", "lc3-be")
    ]
    assert eval_facts.ALL_BE in {s["set"] for s in facts_of(*be)["sets"]}
    what(be[1], harm="shuffled-a")
    assert {s["set"]: s["harm"] for s in facts_of(*be)["sets"]} == {"lc2-be": None, "lc3-be": "shuffled-a"}


def test_the_price_of_an_untruth(lc3: Path, tmp_path: Path) -> None:
    """On the runs that both have. osml-plus has 2 s in each run, parties-stop 2 s and once 10.

    Misled to 3 and 5 s with seed 1: twice its own, and twice that of parties-stop, which was not told the same;
    to 1 s on lc3-02 a sixth of its 6; where parties-stop was told the same and has 0.5 s there, twice that.
    """
    wrong = [row(f"lc3-0{k}", "osml-plus", 1, 2.0, qos_violation_s=v) for k, v in ((1, 3.0), (2, 5.0))]
    shuffled = what(write(tmp_path / "shuffled", wrong), harm="shuffled-a")
    same = [row("lc3-02", p, s, 2.0, qos_violation_s=v) for p, v in (("osml-plus", 1.0), ("parties-stop", 0.5)) for s in (1, 2)]
    dead = what(write(tmp_path / "dead", same[:2]), harm="dead-feed")
    blind = what(write(tmp_path / "blind", same), harm="no-counters")
    (of,) = facts_of(lc3, shuffled, dead, blind)["untruths"]
    assert (of["set"], of["platform"], of["unjudged"]) == ("lc3", "server-2", None)
    by = {(c["harm"], c["policy"]): c for c in of["costs"]}
    mine = [(harm, "osml-plus") for harm in ("dead-feed", "no-counters", "shuffled-a")]
    assert list(by) == [mine[0], ("no-counters", "parties-stop"), *mine[1:]]

    def said(harm: str, policy: str = "osml-plus") -> tuple[Any, ...]:
        c = by[harm, policy]
        figures = (
            c[n] and pytest.approx(c[n]["value"]) for n in ("honest_violation_s", "violation_s", "over_honest", "over_parties")
        )
        return (*figures, c["parties"], c["verdict"])

    assert said("shuffled-a") == (2.0, 4.0, 2.0, 2.0, "told the truth", "not below parties-stop")
    assert said("dead-feed") == (2.0, 1.0, 0.5, 1 / 6, "told the truth", "below parties-stop")
    assert said("no-counters") == (2.0, 1.0, 0.5, 2.0, "told the same", "not below parties-stop")
    assert said("no-counters", "parties-stop") == (6.0, 0.5, 0.5 / 6, None, "told the same", None)
    html = Path(eval_report.run([lc3, shuffled, dead, blind], tmp_path / "report")["page"]).read_text("utf-8")
    assert "The price of a wrong model" in html
    assert "dead-feed, no-counters, shuffled-a" in html
    assert "not below parties-stop" in html
    assert "The price of a wrong model" not in Path(eval_report.run([lc3], tmp_path / "alone")["page"]).read_text("utf-8")
    (lc3 / "eval.json").unlink()
    (of,) = facts_of(lc3, dead)["untruths"]
    assert of["unjudged"]
    assert of["costs"][0]["verdict"] is None


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        (
            "eval.partial.jsonl",
            "{}",
            "eval.partial.jsonl: this evaluation is not finished",
        ),
        ("eval.json", "[]", "eval.json: cannot be read as what was run"),
        ("eval.json", "[" * 100_000, "eval.json: cannot be read as what was run (Unreadable: it is nested too deep"),
        ("eval.json", '{"harm": null}', "eval.json: cannot be read as what was run (KeyError: 'bundle')"),
        (
            "eval.json",
            '{"harm": 3, "bundle": null, "surefootd": null, "platform": "a", "policies": [], "seeds": 1, "workloads": []}',
            "eval.json: harm: 3 is no text",
        ),
    ],
)
def test_unfinished_and_damaged_folders_are_refused(file: str, text: str, says: str, lc3: Path) -> None:
    """What is not known to be of one finished run is not reported on."""
    (lc3 / file).write_text(text, "utf-8")
    with pytest.raises(BadInput) as e:
        eval_rows.read([lc3])
    assert says in str(e.value)


def test_no_folder_is_bad_input() -> None:
    with pytest.raises(BadInput, match="no folder given"):
        eval_rows.read([])


def test_ranks_stand_on_the_page(tmp_path: Path) -> None:
    """A drawn set of six workloads has ranks, on the page and in its facts; scripts have none."""
    lc3 = write(
        tmp_path / "lc3",
        [
            row(f"lc3-{k:02}", p, 1, 2.0, qos_violation_s=v + k)
            for k in range(1, 7)
            for p, v in (("parties-stop", 9.0), ("clite", 5.0), ("surefoot", 0.0))
        ],
    )
    churn = write(tmp_path / "churn", [row("fig10", p, 1, 2.0) for p in ("parties-stop", "surefoot")])
    facts, groups = eval_facts.gather(eval_rows.read([lc3, churn]))
    of = {s["set"]: s["ranks"] for s in facts["sets"]}
    assert [r["metric"] for r in of["lc3"]] == ["qos_violation_s"]
    assert of["churn"] == []
    assert {r["policy"]: r["rank"] for r in of["lc3"][0]["ranks"]} == {"surefoot": 1.0, "clite": 2.0, "parties-stop": 3.0}
    shown = page.render(eval_page.build(facts, groups))
    assert "Ranks over workloads" in shown
    assert "surefoot / clite" in shown
