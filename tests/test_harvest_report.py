"""The harvest report: rows that are read or refused, numbers that are those of the rows, a page that says what is there."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from collection import cli
from pipelines import harvest_report, site
from pipelines.errors import BadInput
from pipelines.pages import eval_stats, harvest_facts, harvest_page, harvest_rows
from pipelines.pages.harvest_published import PUBLISHED

ROOT = Path(__file__).resolve().parents[1]
RUN_RS = ROOT / "scheduler/surefootd/src/eval/harvest/run.rs"
COLUMNS = re.findall(r'"(\w+)"', RUN_RS.read_text("utf-8").partition("pub const COLUMNS")[2].partition("];")[0])
QPS = {"indexserve": 500.0, "memcached": 40000.0, "moses": 400.0, "img-dnn": 2000.0}
BASE_US = 100.0
Row = dict[str, Any]


def row(experiment: str, case: str, policy: str, seed: int, rise: float = 0.0, lent: float = 0.0, **more: Any) -> Row:
    """One VM in one stage; P99 without harvesting is 100 us times the seed."""
    workload = case.partition("+")[0].partition(" ")[0]
    said: Row = dict.fromkeys(COLUMNS, 0)
    said |= {"variant": "", "mover": "cpugroups", "workload": workload, "load_rps": QPS.get(workload, 1.0), "seconds": 30.0}
    said |= {"requests": 1000, "mean_us": 50.0, "cores_busy": 2.0 + 0.1 * seed, "peak_busy": 7.0, "long_waits": 0.0}
    said |= {"hdinsight": 1.0 + lent, "terasort": 1.0, "p99_us": BASE_US * seed * (1 + rise), "cores_lent": lent}
    return said | {"experiment": experiment, "case": case, "policy": policy, "seed": seed} | more


def write(out: Path, rows: Iterable[Row], **more: Any) -> Path:
    """A folder as harvest-eval leaves it."""
    out.mkdir(parents=True)
    rows = list(rows)
    with (out / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    named = list(dict.fromkeys(r["experiment"] for r in rows if r["experiment"] not in ("primaries", "worlds")))
    cases = list(dict.fromkeys(r["case"] for r in rows if r["experiment"] == "primaries"))
    what = {
        "harvest_eval": 1,
        "surefootd": "0.1.0",
        "plant": 2,
        "program_sha256": None,
        "bursts_sha256": "a" * 64,
        "experiments": named,
        "primaries": cases,
        "worlds": ["test:1..2"] if any(r["experiment"] == "worlds" for r in rows) else [],
        "policies": [],
        "mover": None,
        "duration_s": None,
        "seeds": max(r["seed"] for r in rows),
        "settings": [],
        "finished_utc": "2026-11-28 09:55:16",
    }
    (out / "harvest.json").write_text(json.dumps(what | more), "utf-8")
    return out


def small(seeds: int = 2) -> list[Row]:
    """T1 and F14 as surefootd has them, memcached alone."""
    rows = [row("t1", "memcached", "no-harvest", s) for s in range(1, seeds + 1)]
    for mover in ("cpugroups", "interrupts"):
        for way in ("to the job", "back"):
            times: Row = {"mover": mover, "workload": "none", "mean_us": 90.0, "p99_us": 5000.0, "cores_busy": 0.0}
            rows += [row("f14", mover, way, s, **times) for s in range(1, seeds + 1)]
    return rows


def everything() -> list[Row]:
    """Each experiment, in few policies, with two seeds."""
    rows = [r for r in small() if r["experiment"] == "t1"]
    for s in (1, 2):
        rows.append(row("f4", "memcached", "no-harvest", s))
        rows += [row("f4", "memcached", "smartharvest", s, 0.01, ms / 10, variant=f"window {ms} ms") for ms in (15, 25)]
        for case in QPS:
            rows.append(row("f5", case, "no-harvest", s))
            rows.append(row("f5", case, "smartharvest", s, 0.02 + 0.02 * s, 2.0))
            rows.append(row("f5", case, "prev-peak", s, 0.60 if case == "moses" else 0.05, 3.0))
            # buffers below the service's own break its P99; memcached needs 7
            need = 7 if case == "memcached" else 4
            rows += [row("f5", case, f"fixed-buffer-{b}", s, 0.05 if b >= need else 2.0, 9.0 - b) for b in (4, 6, 7)]
        for policy, lent in (("no-harvest", 0.0), ("smartharvest", 1.5)):
            rows.append(row("f6", "indexserve", policy, s, 0.0, lent))
            rows += [
                row("t2", "memcached", policy, s, 0.1 * lent, lent, stage=k, load_rps=load)
                for k, load in enumerate((80_000.0, 20_000.0, 160_000.0))
            ]
        rows += [row("t2", "memcached", "fixed-buffer-4", s, 0.0, 1.0, stage=k) for k in range(3)]
        for policy, lent in (("no-harvest", 0.0), ("smartharvest", 2.0), ("prev-peak-10", 1.0)):
            rows.append(row("f7", "memcached", policy, s, 0.05 - lent / 100 if lent else 0.0, lent))
        for name, case in (("f8", "memcached+memcached"), ("f9", "memcached+indexserve")):
            workloads = case.split("+")
            for policy, rise, lent in (
                ("no-harvest", 0.0, 0.0),
                ("smartharvest", 0.03, 4.0),
                ("fixed-buffer-16", 0.2, 3.0),
                ("fixed-buffer-17", 0.05, 2.0),
            ):
                rows += [row(name, case, policy, s, rise * vm, lent, vm=vm, workload=w) for vm, w in enumerate(workloads)]
        for name, variants in (
            ("f10", ("conservative", "aggressive")),
            ("f11", ("with long-term safeguard", "without long-term safeguard")),
            ("f13", ("skewed", "symmetric", "hinged")),
        ):
            case = "memcached+memcached" if name == "f11" else "memcached"
            rows.append(row(name, case, "no-harvest", s))
            rows += [row(name, case, "smartharvest", s, 0.6 * k, 3.0 - k, variant=v) for k, v in enumerate(variants)]
        for mover in ("cpugroups", "interrupts"):
            case = f"indexserve at 250, {mover}"
            lent = 3.0 if mover == "interrupts" else 2.0
            for policy, rise in (("no-harvest", 0.0), ("smartharvest", 0.02), ("fixed-buffer-2", 0.04)):
                much = 0.0 if policy == "no-harvest" else lent
                rows.append(row("f15", case, policy, s, rise / lent, much, mover=mover, load_rps=250.0))
    return rows + [r for r in small() if r["experiment"] == "f14"]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Page and numbers of all experiments: drawing takes longer than the tests."""
    folder = tmp_path_factory.mktemp("harvest")
    made = harvest_report.run([write(folder / "all", everything())], folder / "report")
    assert made["not_run"] == []
    return Path(made["page"]).read_text("utf-8"), json.loads(Path(made["json"]).read_bytes())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write(tmp_path / "h", small())


def published(facts: dict[str, Any], **of: Any) -> dict[str, Any]:
    (found,) = [p for p in facts["published"] if all(p[k] == v for k, v in of.items())]
    return dict(found)


def test_the_columns_are_those_that_surefootd_writes() -> None:
    """In its own source; the report needs none that is not there."""
    assert len(COLUMNS) == 27
    assert set(harvest_rows._KINDS) <= set(COLUMNS)


def test_the_page_has_every_experiment(drawn: tuple[str, dict[str, Any]]) -> None:
    """Figures and tables under the paper's numbers, and nothing is fetched."""
    html, _ = drawn
    heads = re.findall(r"<h3>([^<:]+)", html)
    figures = ["Table 1", "Fig. 4", "Fig. 5", "Fig. 6", "Table 2", *(f"Fig. {n}" for n in (7, 8, 9, 10, 11, 13, 14, 15))]
    assert [h for h in heads if h.startswith(("Table", "Fig"))] == figures
    # windows, four services, jobs, square wave, two pairs of VMs, three sets of variants, moves, one load
    assert html.count("<svg") == 1 + 4 + 1 + 1 + 4 + 3 + 1 + 1
    assert not re.findall(r"<script|<link|<img|https?://", html)
    assert "Not run" not in html


def test_a_rise_is_over_the_same_seed(drawn: tuple[str, dict[str, Any]]) -> None:
    """P99 doubles from seed to seed, and its rise does not; the interval is Student's t, and not cut at 0."""
    _, facts = drawn
    (cell,) = [c for c in facts["cells"] if (c["experiment"], c["case"], c["policy"]) == ("f5", "moses", "smartharvest")]
    (place,) = cell["places"]
    assert place["rise"]["value"] == pytest.approx(0.05)
    half = 12.706 * 0.02 / math.sqrt(2) / math.sqrt(2)
    assert place["rise"]["low"] == pytest.approx(0.05 - half)
    assert place["rise_us"]["value"] == pytest.approx((4 + 12) / 2)
    # kept in the mean, which two seeds do not make sure
    assert (cell["kept"], cell["sure"]) == (True, False)


def test_a_case_is_kept_where_all_its_vms_and_loads_are(drawn: tuple[str, dict[str, Any]]) -> None:
    """One load of T2, or one VM of two, above a tenth is enough."""
    _, facts = drawn
    kept = {(c["experiment"], c["policy"]): c["kept"] for c in facts["cells"] if c["experiment"] in ("t2", "f8")}
    assert (kept["t2", "smartharvest"], kept["f8", "fixed-buffer-16"], kept["f8", "fixed-buffer-17"]) == (False, False, True)
    by = {p["policy"]: p for p in facts["policies"]}
    # F5's four, T2 (not kept), F7, F8, F9 and F15's two; F6 is one of F5's; settings that an experiment compares stay out
    assert (by["smartharvest"]["cases"], by["smartharvest"]["kept"]) == (10, 9)
    assert by["smartharvest"]["worst_case"] == "t2: memcached"
    assert by["smartharvest"]["lent"]["value"] == pytest.approx(8 + 1.5 + 2 + 4 + 4 + 2 + 3)
    assert by["smartharvest"]["lent_kept"]["value"] == pytest.approx(by["smartharvest"]["lent"]["value"] - 1.5)


def test_a_case_of_several_experiments_counts_once(tmp_path: Path) -> None:
    """F5's IndexServe is that of F6 and of F15 at 500 QPS; another length, way, load or setting is another case."""
    rows: list[Row] = []
    for experiment, case, more in (
        ("f5", "indexserve", {}),
        ("f6", "indexserve", {}),
        ("f15", "indexserve at 500, cpugroups", {}),
        ("f15", "indexserve at 500, interrupts", {"mover": "interrupts"}),
        ("f15", "indexserve at 250, cpugroups", {"load_rps": 250.0}),
        ("f7", "memcached", {"load_rps": 20_000.0}),
        ("primaries", "memcached@20000", {"load_rps": 20_000.0, "workload": "memcached"}),
    ):
        rows += [
            row(experiment, case, p, 1) | {"cores_lent": 1.0} | more for p in ("no-harvest", "smartharvest", "fixed-buffer-7")
        ]
    facts, html = report(tmp_path, rows)
    sums = {p["policy"]: p for p in facts["policies"]}
    assert {p: (s["cases"], s["lent"]["value"]) for p, s in sums.items()} == dict.fromkeys(sums, (5, 5.0))
    assert len(facts["cells"]) == len(rows)
    groups = {g["name"]: g["cases"] for g in facts["groups"]}
    assert groups == {
        "one VM (f5, f15, f7)": ["f5: indexserve", "f15: indexserve at 250, cpugroups", "f7: memcached"],
        "one VM (f15, interrupts)": ["f15: indexserve at 500, interrupts"],
        "one VM (primaries)": ["primaries: memcached@20000"],
    }
    assert "in common counts once" in html
    first = [r for r in rows if r["experiment"] == "f5"]
    for k, more in enumerate(({"seconds": 9.0}, {})):
        again = [r | {"experiment": "f6"} | more for r in first]
        settings = [] if more else [["guard.waits", [0.0]]]
        outs = [write(tmp_path / f"a{k}", first), write(tmp_path / f"b{k}", again, settings=settings)]
        made = harvest_report.run(outs, tmp_path / f"report{k}")
        assert made["policies"]["smartharvest"] == {"cases": 2, "kept": 2, "lent": 2.0}


def test_one_buffer_is_asked_for_all_cases(drawn: tuple[str, dict[str, Any]]) -> None:
    """The best of those that keep P99 in every case of the same sizes, of one and of two VMs."""
    html, facts = drawn
    groups = {g["name"]: g for g in facts["groups"]}
    best = {name: g["best"] and g["best"]["policy"] for name, g in groups.items()}
    assert best["one VM (f5)"] == "fixed-buffer-7"
    assert best["two VMs (f8, f9)"] == "fixed-buffer-17"
    assert best["one VM (f15, interrupts)"] == "fixed-buffer-2"
    assert groups["one VM (f5)"]["best"]["lent"]["value"] == pytest.approx(8.0)
    said = "of the fixed buffers that keep P99 in all 4 cases, that of 7 lends most, 8.0 cores in sum; smartharvest lends 8.0."
    assert f"One VM (f5): {said}" in html
    said = (
        "of the fixed buffers that keep P99 in its case, that of 4 lends most, 1.0 cores in sum; smartharvest lends 1.5 and keeps"
    )
    assert f"One VM (t2): {said} P99 in 0." in html


def test_every_published_number_stands_beside_ours(drawn: tuple[str, dict[str, Any]]) -> None:
    """Measured ones with a ratio, bounds with whether they hold; what was not run says so."""
    html, facts = drawn
    assert len(facts["published"]) == len(PUBLISHED)
    assert sum(p["experiment"] == "t2" for p in facts["published"]) == 3 + 5 * 4
    assert published(facts, experiment="t2", policy="no-harvest", stage=1)["ratio"] == pytest.approx(150 / 300)
    assert published(facts, experiment="t2", policy="smartharvest", stage=0)["ours"]["value"] == pytest.approx(22.5)
    assert published(facts, experiment="f5", metric="least_buffer")["ours"]["value"] == 7
    assert published(facts, experiment="f8", metric="least_buffer")["ours"]["value"] == 17
    assert published(facts, experiment="f5", case="moses", policy="prev-peak")["holds"] is True
    assert published(facts, experiment="f5", case="img-dnn", policy="prev-peak")["holds"] is False
    assert published(facts, experiment="f6", metric="hdinsight")["holds"] is True
    assert published(facts, experiment="f6", metric="terasort")["holds"] is False
    assert published(facts, experiment="f14", case="cpugroups", policy="back")["holds"] is True
    assert published(facts, experiment="f14", case="interrupts", policy="back", metric="p99_us")["holds"] is False
    assert published(facts, experiment="t1", case="moses", metric="peak_busy")["why"] == "not run"
    assert "22.5 us" in html
    assert "does not hold" in html


def test_what_was_fitted_is_marked(drawn: tuple[str, dict[str, Any]]) -> None:
    """As the record of the model's validation has it, fact by fact."""
    html, facts = drawn
    record = (ROOT / "docs/virtual-server-validation.md").read_text("utf-8")
    of = [
        f"| {kind} | SmartHarvest {where}" for where in ("Table 1", "Table 2", "Fig. 4", "Sec. 5.4") for kind in ("fit", "pred")
    ]
    # Table 2 has 23 numbers: the record has all but the learner's four
    assert [record.count(x) for x in of] == [8, 0, 19, 0, 1, 0, 0, 2]
    by = {e: [p["fitted"] for p in facts["published"] if p["experiment"] == e] for e in ("t1", "t2", "f4", "f8", "f11", "f14")}
    assert [(sum(x), len(x)) for x in by.values()] == [(8, 8), (19, 23), (1, 1), (0, 2), (0, 2), (6, 6)]
    fitted = [(p["case"], p["policy"], p["metric"]) for p in facts["published"] if p["experiment"] == "f5" and p["fitted"]]
    assert fitted == [
        ("moses", "prev-peak", "rise_pct"),
        ("img-dnn", "prev-peak", "rise_pct"),
        ("indexserve", "fixed-buffer-4", "rise_pct"),
        ("memcached", "fixed buffers", "least_buffer"),
    ]
    for metric, name in (
        ("a fixed buffer of 7", "fit"),
        ("a fixed buffer of 4", "fit"),
        ("mean cores harvested with it", "pred"),
    ):
        assert re.search(rf"\| {name} \| SmartHarvest Sec. 5.3, Fig. 5 \| \w+: {metric}", record)
    assert "fitted</th>" in html


def test_what_the_paper_says_in_words_is_looked_up(drawn: tuple[str, dict[str, Any]]) -> None:
    """Claims on figures without printed numbers."""
    _, facts = drawn
    said = [(c["experiment"], c["holds"]) for c in facts["claims"]]
    # F10's two differ by more than is similar; F15's buffers and learner both gain by interrupts
    assert said == [("f7", True), ("f9", True), ("f10", True), ("f13", True), ("f13", True), ("f15", True), ("f15", True)]


def test_the_smallest_buffer_is_one_above_which_all_keep() -> None:
    """A size that keeps P99 by chance below one that does not is none."""
    folder_rows = [row("f5", "memcached", "no-harvest", 1)]
    folder_rows += [row("f5", "memcached", f"fixed-buffer-{b}", 1, 0.5 if b == 5 else 0.0) for b in (4, 5, 6, 7)]
    rows = [harvest_rows.Row(**{name: r[name] for name in harvest_rows._KINDS}) for r in folder_rows]
    folder = harvest_rows.Folder("h", "0", "2", "a", ["f5"], [], [], [], None, None, 1, "", "", rows)
    assert harvest_facts.least_buffer(harvest_facts.cells_of([folder])) == 6


def report(out: Path, rows: Iterable[Row]) -> tuple[dict[str, Any], str]:
    """Numbers and page of rows."""
    made = harvest_report.run([write(out / "h", rows)], out / "report")
    return json.loads(Path(made["json"]).read_bytes()), Path(made["page"]).read_text("utf-8")


def with_interrupts(rows: Iterable[Row]) -> list[Row]:
    """The same cases in another way, with figures of their own."""
    return [r | {"mover": "interrupts", "cores_lent": 9.0, "p99_us": 2 * r["p99_us"]} for r in rows]


def test_the_papers_numbers_are_of_cpugroups(tmp_path: Path, drawn: tuple[str, dict[str, Any]]) -> None:
    """Rows with interrupts come first and change nothing beside them; their figures have headings of their own."""
    rows = [r for r in everything() if r["experiment"] not in ("f14", "f15")]
    facts, html = report(tmp_path, [*with_interrupts(rows), *rows])
    own = ("f14", "f15")
    for key in ("published", "claims"):
        assert [p for p in facts[key] if p["experiment"] not in own] == [p for p in drawn[1][key] if p["experiment"] not in own]
    assert facts["other_mover"] == []
    heads = [h for h in re.findall(r"<h3>([^<]+)", html) if h.startswith(("Table", "Fig"))]
    assert len(heads) == 2 * 11
    assert sum(h.endswith(", interrupts") for h in heads) == 11
    assert html.count("in another way alone") == 0


def test_interrupts_alone_stand_beside_no_number(tmp_path: Path) -> None:
    """One line says so, also of figures without printed numbers, and of one policy; figures there are."""
    smart = [r for r in everything() if (r["experiment"], r["policy"]) == ("f5", "no-harvest")]
    rows = [r for r in everything() if r["experiment"] in ("f5", "f6", "t2", "f7", "f9")]
    facts, html = report(tmp_path, [*with_interrupts(rows), *smart])
    assert (facts["claims"], facts["other_mover"]) == ([], ["f6", "t2", "f7", "f9"])
    assert {p["why"] for p in facts["published"] if p["experiment"] in ("f6", "t2")} == {
        "run with another way to move cores alone",
        "not run",
    }
    assert [p for p in facts["published"] if p["ours"]] == []
    said = "what was run in another way alone is not beside them (Fig. 5, Fig. 6, Table 2, Fig. 7, Fig. 9)."
    assert html.count(said) == 1
    assert "printed in the paper" not in html
    assert "behind the stroke" not in html
    assert "Fig. 7: a square wave, interrupts" in html


def test_without_a_base_no_buffer_is_judged(tmp_path: Path) -> None:
    """A rise that is not known is no rise above a tenth; nor is a size that was not run."""
    alone = [row("f5", "memcached", "fixed-buffer-7", 1)]
    base = row("f5", "memcached", "no-harvest", 1)
    for name, rows, why in (
        ("a", alone, "no run without harvesting"),
        ("b", [base], "not run"),
        ("c", [*alone, base], "at most 7: no smaller one was run"),
        ("d", [row("f5", "memcached", "fixed-buffer-7", 1, 0.5), base], "none that was run keeps P99"),
    ):
        facts, html = report(tmp_path / name, rows)
        found = published(facts, experiment="f5", metric="least_buffer")
        assert (found["why"], found["ours"], found["ratio"]) == (why, None, None)
        assert (why in html) == (name != "b")


def test_a_pair_without_fixed_buffers_claims_none(tmp_path: Path) -> None:
    """Whether one buffer suits both is not known where none was run, or none with a base."""
    rows = [r for r in everything() if r["experiment"] == "f9"]
    few = [r for r in rows if r["policy"] in ("no-harvest", "smartharvest")]
    for name, more in (("a", []), ("b", [r | {"seconds": 9.0} for r in rows if r["policy"] == "fixed-buffer-16"])):
        facts, html = report(tmp_path / name, [*few, *more])
        (claim,) = facts["claims"]
        assert (claim["holds"], claim["ours"]) == (None, "+3.0 % and 4.00 cores; no fixed buffer was run")
        assert "keeps both" not in html
    facts, _ = report(tmp_path / "c", [r for r in rows if r["policy"] != "fixed-buffer-17"])
    assert facts["claims"][0]["ours"].endswith("no fixed buffer that was run keeps both")
    facts, html = report(tmp_path / "d", [r for r in rows if r["policy"] in ("no-harvest", "fixed-buffer-16")])
    assert facts["claims"] == []
    assert "no fixed buffer of 16 cores keeps P99 in its case" in html


def test_missing_experiments_are_one_line(out: Path, tmp_path: Path) -> None:
    """Two experiments make a page; the others are named."""
    made = harvest_report.run([out], tmp_path / "report")
    html = Path(made["page"]).read_text("utf-8")
    missing = [e for e in harvest_facts.EXPERIMENTS if e not in ("t1", "f14")]
    assert made["not_run"] == missing
    assert html.count("Not run, so not on this page: Fig. 4, Fig. 5, Fig. 6, Table 2, Fig. 7") == 1
    assert "Two VMs" not in html


def test_one_seed_makes_nothing_sure(tmp_path: Path) -> None:
    """No interval, and no word of one."""
    rows = [row("f7", "memcached", p, 1, 0.0, 1.0) for p in ("no-harvest", "smartharvest", "prev-peak-10")]
    made = harvest_report.run([write(tmp_path / "h", rows)], tmp_path / "report")
    facts = json.loads(Path(made["json"]).read_bytes())
    assert {c["sure"] for c in facts["cells"]} == {False}
    assert {c["cores_lent"]["low"] for c in facts["cells"]} == {None}


def test_without_a_base_no_rise_is_known(tmp_path: Path) -> None:
    """Runs of another length are no base either: their requests are others."""
    rows = [row("f7", "memcached", "smartharvest", 1), row("f7", "memcached", "no-harvest", 1, seconds=60.0)]
    made = harvest_report.run([write(tmp_path / "h", rows)], tmp_path / "report")
    facts = json.loads(Path(made["json"]).read_bytes())
    assert {c["policy"]: c["kept"] for c in facts["cells"]} == {"smartharvest": None, "no-harvest": True}
    html = Path(made["page"]).read_text("utf-8")
    assert ("<svg" in html, "Fig. 7: 2 rows" in html) == (False, True)


def test_cases_of_the_command_line_have_their_place(tmp_path: Path) -> None:
    """Groups of VMs and drawn workloads stand in sections of their own, and folders of both go on one page."""
    case = "memcached@80000,indexserve"
    group = [
        row("primaries", case, p, s, 0.02 * (p != "no-harvest"), 1.0, vm=vm)
        for p in ("no-harvest", "smartharvest")
        for s in (1, 2)
        for vm in (0, 1)
    ]
    world = [row("worlds", f"test-{n}-", p, 1, 0.0, 1.0) for n in (1, 2) for p in ("no-harvest", "wait-budget", "fixed-buffer-7")]
    outs = [write(tmp_path / "a", group), write(tmp_path / "b", world, bursts_sha256="b" * 64, settings=[["guard.waits", [0.0]]])]
    made = harvest_report.run(outs, tmp_path / "report")
    html = Path(made["page"]).read_text("utf-8")
    assert made["policies"]["wait-budget"] == {"cases": 2, "kept": 2, "lent": 2.0}
    assert "Groups of VMs" in html
    assert "Drawn workloads" in html
    assert "guard.waits = 0" in html


# ---------------------------------------------------------------- refusals


def change_what(**more: Any) -> Callable[[Path], None]:
    def change(out: Path) -> None:
        path = out / "harvest.json"
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | more), "utf-8")

    return change


def change_rows(old: str, new: str, count: int = 1) -> Callable[[Path], None]:
    def change(out: Path) -> None:
        path = out / "rows.csv"
        text = path.read_text("utf-8")
        assert old in text
        path.write_text(text.replace(old, new, count), "utf-8")

    return change


def without_line(k: int) -> Callable[[Path], None]:
    def change(out: Path) -> None:
        path = out / "rows.csv"
        lines = path.read_text("utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:k] + lines[k + 1 :]), "utf-8")

    return change


AGAIN = "Make it again: surefootd harvest-eval ... --out {out} --overwrite"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda out: (out / "harvest.partial.jsonl").touch(),
            "{out}/harvest.partial.jsonl: this evaluation is not finished. Run the same `surefootd harvest-eval ... --out {out}` "
            "again: it goes on where it was. For the older results there, remove harvest.partial.jsonl",
        ),
        (
            lambda out: (out / "rows.csv").unlink(),
            "{out}/rows.csv: is missing. Name a folder that `surefootd harvest-eval --out`",
        ),
        (lambda out: (out / "harvest.json").unlink(), "{out}/harvest.json: is missing. Name a folder"),
        (change_rows("p99_us", "p98_us"), "rows.csv: column p99_us is missing or there twice. " + AGAIN),
        (change_rows(",7.0,", ",nan,"), "rows.csv:2: column peak_busy holds NaN or infinity. " + AGAIN),
        (change_rows(",7.0,", ",1e999,"), "rows.csv:2: column peak_busy holds NaN or infinity. " + AGAIN),
        (change_rows(",7.0,", ",-7,"), "rows.csv:2: column peak_busy: -7 is below 0. " + AGAIN),
        (change_rows(",7.0,", ",1e99,"), "rows.csv:2: column peak_busy: 1e+99 is too large. " + AGAIN),
        (change_rows(",7.0,", ",seven,"), "rows.csv:2: column peak_busy: 'seven' is no number. " + AGAIN),
        (change_rows(",1000,", ",1e3,"), "rows.csv:2: column requests: '1e3' is no whole number. " + AGAIN),
        (change_rows(",7.0,", ","), "rows.csv:2: has 26 cells of 27. " + AGAIN),
        (change_rows(",7.0,", ',"7'), "rows.csv: cannot be read as rows (unexpected end of data). " + AGAIN),
        (lambda out: (out / "rows.csv").write_bytes(b"\xff"), "rows.csv: cannot be read as rows (line 1 is no UTF-8"),
        (lambda out: (out / "rows.csv").write_text(",".join(COLUMNS)), "rows.csv: has no rows. " + AGAIN),
        (without_line(2), "rows.csv: experiment t1, case memcached, cpugroups, policy no-harvest has 1 seed, and harvest.json"),
        (change_rows("no-harvest,,cpugroups,2", "no-harvest,,cpugroups,1"), "policy no-harvest has 1 seed, and harvest.json"),
        (change_what(seeds=3), "has 2 seeds, and harvest.json beside it says 1 to 3. " + AGAIN),
        (change_what(experiments=["t1"]), "harvest.json: experiment f14 is in rows.csv alone, so the two are not of one run."),
        (change_what(experiments=["t1", "f14", "f5"]), "harvest.json: experiment f5 is in harvest.json alone, so the two"),
        (change_what(policies=["smartharvest"]), "harvest.json: policy no-harvest is in rows.csv alone, so the two"),
        (change_what(mover="interrupts"), "harvest.json: mover cpugroups is in rows.csv alone, so the two"),
        (change_what(primaries=["moses"]), "harvest.json: experiment primaries is in harvest.json alone"),
        (
            change_what(harvest_eval=2),
            "harvest.json: cannot be read as what was run (ValueError: harvest_eval 2, not 1). " + AGAIN,
        ),
        (change_what(duration_s="nan"), "harvest.json: cannot be read as what was run (ValueError: duration_s is no number). "),
        (change_what(seeds=2**50), "has 2 seeds, and harvest.json beside it says 1 to 1,125,899,906,842,624. " + AGAIN),
        (change_what(seeds=True), "harvest.json: cannot be read as what was run (ValueError: seeds is no number above 0). "),
        (change_what(worlds="test"), "harvest.json: cannot be read as what was run (TypeError: worlds is no list of texts). "),
        (lambda out: (out / "harvest.json").write_text("{"), "harvest.json: cannot be read as what was run (Unreadable: "),
    ],
)
def test_bad_input_is_one_line(change: Any, says: str, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File, field and remedy; exit code 2; no output."""
    change(out)
    with pytest.raises(SystemExit) as e:
        cli.main(["harvest-report", str(out), "--out", str(tmp_path / "report")])
    said = capsys.readouterr().err
    assert e.value.code == 2
    assert says.format(out=out) in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "report").exists()


def test_a_stage_stands_once_with_every_seed(tmp_path: Path) -> None:
    """A line twice, and a VM that one seed has alone."""
    rows = small()
    with pytest.raises(BadInput, match="policy no-harvest has a stage and VM of one seed more than once"):
        harvest_rows.read([write(tmp_path / "a", [*rows, rows[0]])])
    with pytest.raises(BadInput, match="policy no-harvest has not the same stages and VMs with every seed"):
        harvest_rows.read([write(tmp_path / "b", [*rows, rows[0] | {"vm": 1}])])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"plant": 3}, "{a} and {b}: rows of several plants (plant 2 and 3). Run the older evaluation again"),
        ({"bursts_sha256": "c" * 64}, "{a} and {b}: rows of several profiles. Run the older evaluation again"),
        (
            {},
            "{a} and {b}: experiment t1, case memcached, cpugroups, policy no-harvest stands in each of them. "
            "Leave out the older",
        ),
    ],
)
def test_folders_that_do_not_go_together(more: dict[str, Any], says: str, out: Path, tmp_path: Path) -> None:
    """Another plant, other profiles, the same run."""
    other = write(tmp_path / "other", small(), **more)
    with pytest.raises(BadInput) as e:
        harvest_rows.read([out, other])
    assert str(e.value) == says.format(a=out, b=other)
    with pytest.raises(BadInput, match="is given twice"):
        harvest_rows.read([out, out])


def test_where_to_write_is_checked_first(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An earlier report stays without --overwrite, a file is no folder, and neither is read for it."""
    (tmp_path / harvest_report.FACTS).write_text("mine")
    for args in (["--out", str(tmp_path)], ["--out", str(tmp_path / harvest_report.FACTS)]):
        with pytest.raises(SystemExit) as e:
            cli.main(["harvest-report", str(out / "none"), *args])
        assert e.value.code == 2
        assert "--out" in capsys.readouterr().err
    assert (tmp_path / harvest_report.FACTS).read_text() == "mine"


def test_the_command_says_what_it_is_at(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each step on stderr, the outcome on stdout; the index leads to the page; told so, it replaces an earlier one."""
    to = tmp_path / "out" / "harvest"
    cli.main(["harvest-report", str(out), "--out", str(to)])
    told = capsys.readouterr()
    names = ["numbers of 10 rows", *harvest_page.DRAWN]
    assert len(names) == harvest_report.STEPS
    assert [line.split(" done ")[0].strip() for line in told.err.splitlines()] == [
        f"{k}/{len(names)} {name}" for k, name in enumerate(names, 1) for _ in range(2)
    ]
    assert told.out == f"{to / harvest_report.PAGE}\n"
    assert 'href="harvest/harvest-report.html"' in (tmp_path / "out" / site.INDEX).read_text("utf-8")
    cli.main(["harvest-report", str(out), "--out", str(to), "--overwrite", "--json"])
    assert json.loads(capsys.readouterr().out)["policies"] == {"no-harvest": {"cases": 1, "kept": 1, "lent": 0.0}}


def test_numbers_that_are_no_json_leave_nothing_behind(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page without its numbers."""
    gather = harvest_facts.gather

    def wrong(folders: Any) -> Any:
        facts, cells = gather(folders)
        return facts | {"wrong": math.nan}, cells

    monkeypatch.setattr(harvest_facts, "gather", wrong)
    with pytest.raises(ValueError, match="JSON"):
        harvest_report.run([out], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_differences_are_not_cut_at_0() -> None:
    """Small rises may be none at all; times are never below 0."""
    low = [eval_stats.over_seeds([0.0, 1.0], signed=signed) for signed in (False, True)]
    assert [e is not None and e.low is not None and e.low < 0 for e in low] == [False, True]
