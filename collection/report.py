"""The demo's report: one self-contained HTML file made from what the demo left on disk.

Each section is made from files and stands for itself; where a part could not be run, its section says why.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import polars as pl

from pipelines import samples, site, tables
from pipelines.inputs import read_json
from pipelines.io import write_bytes
from pipelines.manifest import MANIFEST, read_object
from pipelines.pages import eval_rows, policy_charts, policy_words, training_facts, training_page
from pipelines.pages.page import (
    Callout,
    Column,
    Drawing,
    Figures,
    Heading,
    Link,
    Links,
    Page,
    Section,
    Table,
    Text,
    Tile,
    badge,
    number,
    per_cent,
    render,
)
from pipelines.pages.policy_words import Standing

from . import charts, closed_loop, console, dataset, shardfile, standing, worth

VERDICTS = {
    "valid": "the percentiles can be believed",
    "not-resolvable": "worth fewer than 368 independent requests (virtual: an interval; real: a case): p99 not bounded",
    "server-overloaded": "the service completes less than 99 % of the offered load; used as “QoS not met”, never as a latency",
    "client-limited": "the load generator could not keep its schedule; dropped",
}
STATES = {
    "measured": "samples were taken; how many of their rows are usable stands below",
    "infeasible": "cannot be set up: the drawn neighbours leave too little",
    "client-limited": "the load generator could not keep its schedule",
    "overloaded": "the service completes less than 99 % of the offered load",
    "failed": "something broke",
}
POLICY_NOTES = {
    "unmanaged": "everybody may use everything",
    "equal-share": "cores and ways in equal shares, whatever the need",
    "parties": "one resource at a time, up or down, by trial (PARTIES, as its authors' program decides)",
    "parties-be": "one unit every 500 ms, back to BE jobs while there is slack (the rule of PARTIES, the details ours)",
    "parties-stop": "equal shares, then steps until all targets are met (PARTIES, as OSML+ and CLITE ran it)",
    "clite": "tries whole partitions, the next one where a Gaussian process hopes for most (CLITE)",
    "heracles": "BE jobs grow while the LC services, which share the rest, have slack (Heracles)",
    "osml-plus": "Model A finds OAA and RCliff, Model B trades, Model C corrects (OSML+, Algorithms 1-3)",
    "surefoot": "one plan for all services from Models A and B, in few steps, corrected by what was seen",
}


def write(result: Mapping[str, Any], root: Path, out: Path) -> int:
    """Make the report.

    Args:
        result: what the demo returns (`demo.json`).
        root: the repository, for paths in the text.
        out: the HTML file.
    Returns:
        Size in bytes.
    """
    data = render(build(result, root)).encode("utf-8")
    write_bytes(out, data)
    site.refresh(out)
    return len(data)


def build(result: Mapping[str, Any], root: Path) -> Page:
    """The page of a demo."""
    virtual, local = (result["campaigns"].get(n) for n in ("demo-virtual", "demo-local"))
    page = Page(
        title="Surefoot: sweep, learn, bundle, hold",
        lede=(
            "One run of the whole story on one machine: where the resource cliff of each service lies, what models learn from "
            "it, and how policies that know it hold QoS targets."
        ),
        facts=_facts(result),
        footer="Made by `surefoot demo`. Every figure is drawn from the data sets and tables that “How this was made” lists.",
    )
    page.tiles = _tiles(result)
    # in the order of a reader's questions: does it hold, here too, why, what was learnt, what is shipped, how was it made
    page.sections = [
        *_warnings(result["warnings"]),
        _eval(result["eval"]),
        _closed_loop(result["closed_loop"]),
        _virtual(virtual, result["dvc"]["outputs"].get("demo-virtual")),
        _local(local, result),
        _learning(result["dvc"], Path(result["out"])),
        _bundles(result["bundles"]),
        _how(result, root),
    ]
    return page


def _facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    machine = result["machine"]
    commit = result["git_commit"]
    engine = result["engine"]
    return [
        ("when", result["started"].replace("T", " ").replace("+00:00", " UTC")),
        ("machine", f"{machine['cpu_model']}, {machine['cpus']} CPUs, {machine['memory_bytes'] / 2**30:.0f} GiB"),
        ("kernel", machine["kernel"]),
        ("container engine", engine["why"].removeprefix("engine: ") if engine["answers"] else "none"),
        ("source", f"commit {commit[:12]}" if commit else "not a git checkout"),
        ("took", console.duration(sum(s["seconds"] for s in result["steps"]))),
    ]


def _warnings(warnings: Sequence[str]) -> list[Section]:
    """What a reader should know before the figures; nothing where there is nothing."""
    return [Section("warnings", "To be kept in mind", "Warnings", [Callout(w) for w in warnings])] if warnings else []


def _tone(found: Mapping[str, Any]) -> str:
    """Of a campaign's tile."""
    bad = found["cases"]["failed"] or standing.usable_colour(found["rows_by_worth"]) == "red"
    return "failed" if bad else "" if standing.usable_colour(found["rows_by_worth"]) == "green" else "missing"


def _tiles(result: Mapping[str, Any]) -> list[Tile]:
    virtual = result["campaigns"]["demo-virtual"]
    local = result["campaigns"].get("demo-local")
    dvc = result["dvc"]
    noop = dvc["second_run_did_nothing"]
    bundles = result["bundles"]
    found = sum(t["rejected"] for b in bundles for t in b["tampering"])
    tried = sum(len(b["tampering"]) for b in bundles)
    good = found == tried and all(b["verified"] for b in bundles)
    return [
        _local_tile(local, result),
        _policies_tile(result["eval"]["summary"]),
        _loop_tile(result["closed_loop"]),
        Tile(
            "cases on the virtual server",
            f"{virtual['cases']['planned']:,}",
            f"{standing.usable_in_words(virtual['rows_by_worth'])}; "
            f"{virtual['cases']['failed']:,} cases failed; every shard verified",
            _tone(virtual),
        ),
        Tile(
            "dvc repro, second time",
            "did nothing" if noop else "ran again",
            f"{dvc['second_s']:.1f} s; "
            + ("no stage ran, dvc.lock is unchanged" if noop else "logs/dvc-again.log says what it did"),
            "" if noop else "failed",
        ),
        Tile(
            "changed bytes found in bundles",
            f"{found} of {tried}",
            f"{len(bundles)} signed bundles verified, one byte changed in each file",
            "" if good else "failed",
        ),
    ]


_OURS = ("osml-plus", "surefoot")


def _policies_tile(summary: Sequence[Mapping[str, Any]]) -> Tile:
    """All policies side by side: what one reaches says little as long as another may reach it, too."""
    rows = [
        [s["policy"], f"{s['converged']} of {s['runs']}", number(s["qos_violation_s_mean"]), number(s["be_throughput_mean"])]
        for s in summary
    ]
    heads = ["policy", "converged", "violation, s", "BE"]
    told = "Runs converged, QoS violation a run, BE throughput (1 = alone)."
    all_of_ours = all(s["converged"] == s["runs"] for s in summary if s["policy"] in _OURS)
    return Tile(
        "policies on virtual workloads", "", f"{told} {be_words(summary)}".strip(), "" if all_of_ours else "missing", rows, heads
    )


def be_words(summary: Sequence[Mapping[str, Any]]) -> str:
    rows = (Standing(s["policy"], s["policy"] in _OURS, s["converged"], s["be_throughput_mean"]) for s in summary)
    return policy_words.be_words(rows)


def _loop_tile(loop: Mapping[str, Any]) -> Tile:
    if not loop.get("runs"):
        return Tile("real closed loop", "none", loop["why"], "missing")
    rows = [
        [r["policy"], f"{r['violation_s']:.1f} of {r['observed_s']:.1f} s", number(r.get("be_cpu_cores"))] for r in loop["runs"]
    ]
    more = f"A run of {loop['duration_s']:.0f} s under each policy; seconds above the QoS target of those observed."
    return Tile(
        f"a real {loop['service']} beside {loop['job']}", "", more, "", rows, ["policy", "QoS violation", "BE CPU, cores"]
    )


def _local_tile(local: Mapping[str, Any] | None, result: Mapping[str, Any]) -> Tile:
    """What this machine's own data are worth, and what was not usable of them."""
    if local is None:
        return Tile("usable rows of real containers", "none", _why_not_local(result), "missing")
    cases, rows = local["cases"], local["rows_by_worth"]
    more = f"{standing.usable_in_words(rows)}; of {cases['planned']:,} cases {cases['overloaded']:,} overloaded, "
    more += f"{cases['client-limited']:,} client-limited, {cases['failed']:,} failed"
    return Tile("usable rows of real containers", f"{rows['usable']:,}", more, _tone(local))


# ---------------------------------------------------------------- campaigns


def _campaign_table(found: Mapping[str, Any]) -> Table:
    cases = found["cases"]
    rows: list[list[Any]] = [
        [state, f"{cases[state]:,}", per_cent(cases[state] / cases["planned"]), why] for state, why in STATES.items()
    ]
    rows.append(["all", f"{cases['planned']:,}", per_cent(1.0), "planned; the states add up to it"])
    return Table([Column("state"), Column("cases", True), Column("share", True), Column("meaning")], rows)


WORTH = {
    "usable": "valid, and nothing disturbed the case",
    "disturbed": "something else ran on the host, or changed it, during the case",
    **{name: why for name, why in VERDICTS.items() if name != "valid"},
    "unknown": "a verdict that nobody knows, or a shard that cannot be read",
}


def _worth_table(found: Mapping[str, Any]) -> Table:
    """What the rows are worth; the counts add up to them."""
    counts, all_rows = found["rows_by_worth"], sum(found["rows_by_worth"].values())
    told = [name for name in WORTH if counts.get(name) or name == "usable"]
    rows = [[name, f"{counts[name]:,}", per_cent(counts[name] / (all_rows or 1)), WORTH[name]] for name in told]
    rows.append(["all", f"{all_rows:,}", per_cent(1.0), "a row for each sample"])
    return Table([Column("rows"), Column("number", True), Column("share", True), Column("meaning")], rows)


def shards(folder: Path) -> list[Path]:
    return sorted((folder / "shards").glob("*.parquet"))


def _virtual(found: Mapping[str, Any], outputs: Mapping[str, str] | None) -> Section:
    section = Section("virtual", "The cliff on a virtual server", "Virtual cliff")
    section.blocks.append(
        Text(
            f"Campaign {found['file'].rsplit('/', 1)[-1]}: {found['cases']['planned']:,} cases on {found['target']} "
            f"({found['rows']:,} rows in {found['shards']} shards), swept in {console.duration(found['seconds'])}. Each case is "
            "one service at one load with one allocation of cores and LLC ways, alone or beside neighbours."
        )
    )
    section.blocks.append(_campaign_table(found))
    section.blocks.append(_worth_table(found))
    if outputs is None:
        return section
    maps = heat_maps(Path(found["folder"]), Path(outputs["labels"]))
    section.blocks.append(
        Text(
            "Below: each service alone at its highest load that has a feasible allocation. One core or one way less at the edge "
            "costs orders of magnitude of p99. RCliff is the point of that edge from where taking a step costs most, at the "
            "least allocation; OAA stands a margin away from it."
        )
    )
    section.blocks.append(Figures([Drawing(charts.heat_map(m), heat_n(m), heat_caption(m)) for m in maps]))
    return section


def heat_n(m: charts.HeatMap) -> str:
    cells = int((np.isfinite(m.p99_ms) | (m.overloaded if m.overloaded is not None else False)).sum())
    marked = "" if m.unusable is None or not m.unusable.any() else f"; × = {int(m.unusable.sum()):,} cells without a usable row"
    return f"{cells:,} of {m.p99_ms.size:,} cells measured, {m.usable:,} of {m.rows:,} rows usable{marked}"


def heat_caption(m: charts.HeatMap) -> str:
    parts = []
    if m.rcliff is not None:
        parts.append(f"RCliff {m.rcliff[0]:g} cores, {m.rcliff[1]:g} ways")
    if m.oaa is not None:
        parts.append(f"OAA {m.oaa[0]:g} cores, {m.oaa[1]:g} ways")
    if m.requests_min is not None and m.requests_max is not None:
        many = f"{m.requests_min:,}" if m.requests_min == m.requests_max else f"{m.requests_min:,} to {m.requests_max:,}"
        windows = f", median of {m.windows} windows" if m.windows > 1 else ""
        parts.append(f"each p99 of {many} requests a window{windows}")
    return "; ".join(parts) + "."


def heat_maps(folder: Path, labels: Path) -> list[charts.HeatMap]:
    """One cores x ways plane a service: alone, at the highest load that has a label.

    Args:
        folder: a target's data set.
        labels: output folder of the stage `label`.
    """
    frame = tables.of_stage(labels / "labels.parquet").filter(
        (pl.col("neighbours") == "") & pl.col("reason").is_null() & pl.col("rcliff_ways").is_not_null()
    )
    rows = shardfile.unbound(shardfile.scan(shards(folder))).filter(pl.col("neighbours").list.len() == 0)
    rows = rows.with_columns(worth=samples.worth(worth.disturbed_cases(folder)))
    found = []
    for service in sorted(frame["service"].unique()):
        label = frame.filter(pl.col("service") == service).sort("rps").row(-1, named=True)
        usable, exceeded = (pl.col("worth") == name for name in ("usable", "server-overloaded"))
        mine = (
            rows.filter(
                (pl.col("service") == service)
                & (pl.col("rps") == label["rps"])
                & (pl.col("threads") == label["threads"])
                & (pl.col("mba_pct") == label["mba_pct"])
            )
            .group_by(cores=pl.col("alloc_cores"), ways=pl.col("alloc_ways"))
            .agg(
                pl.col("latency_p99_ms").filter(usable).median().alias("p99_ms"),
                charts.overloaded(exceeded.sum(), usable.sum()).alias("overloaded"),
                usable.sum().alias("usable"),
                pl.col("count").filter(usable).min().alias("least"),
                pl.col("count").filter(usable).max().alias("most"),
                pl.len().alias("windows"),
            )
        )
        with tables.reading(folder / "shards", dataset.SHARD_REMEDY):
            cells = mine.collect()
        cores, ways = np.unique(cells["cores"].to_numpy()), np.unique(cells["ways"].to_numpy())
        found.append(
            charts.HeatMap(
                service=service,
                platform=label["platform"],
                rps=label["rps"],
                threads=label["threads"],
                cores=cores.tolist(),
                ways=ways.tolist(),
                qos_target_ms=label["qos_target_ms"],
                rcliff=(label["rcliff_cores"], label["rcliff_ways"]),
                oaa=(label["oaa_cores"], label["oaa_ways"]),
                requests_min=cells["least"].min(),  # type: ignore[arg-type]
                requests_max=cells["most"].max(),  # type: ignore[arg-type]
                windows=int(cells["windows"].max() or 0),  # type: ignore[arg-type]
                rows=int(cells["windows"].sum()),
                usable=int(cells["usable"].sum()),
                **charts.on_grid(cells, cores, ways),
            )
        )
    return found


def _why_not_local(result: Mapping[str, Any]) -> str:
    """Why there is no local campaign: no engine, or it failed."""
    return str(result["left_out"].get("local") or result["engine"]["why"])


def _local(found: Mapping[str, Any] | None, result: Mapping[str, Any]) -> Section:
    section = Section("local", "The cliff on real containers", "Real cliff")
    if found is None:
        section.blocks.append(Callout(f"Not run. {_why_not_local(result)}"))
        return section
    cases = found["cases"]
    section.blocks.append(
        Text(
            f"{cases['planned']:,} cases of real containers on this machine, each under open-loop Poisson load "
            f"with a CPU quota in steps of 0.1 core; {console.duration(found['seconds'])}. Latency counts from the intended send "
            "time. "
            f"Feature set: {found['feature_set']}"
            + (" (this machine has no usable hardware counters)." if found["feature_set"] == "no-pmu" else ".")
        )
    )
    if found.get("max_loads"):
        section.blocks.append(_max_loads(found["max_loads"]))
    section.blocks.append(_campaign_table(found))
    section.blocks.append(_worth_table(found))
    curves = quota_curves(Path(found["folder"]))
    section.blocks.append(Figures([Drawing(charts.quota_curve(c), quota_n(c), quota_caption(c)) for c in curves]))
    section.blocks.append(
        Text(
            "Filled circle: valid. Hollow triangle: overloaded, the service completes less than it is offered, so its latency is "
            "a lower bound that grows with the length of the case. Hollow square: too few requests in the window for a p99. "
            "Bars: 95 % confidence interval of p99 from order statistics. Cases that something disturbed are not drawn.",
            "note",
        )
    )
    section.blocks.append(Text(cliff_words(curves)))
    return section


def _max_loads(found: Sequence[Mapping[str, Any]]) -> Table:
    """What the loads are per cent of, and what else ran while it was found."""
    rows = [
        [
            m["service"],
            f"{m['threads']}",
            number(m["max_load_rps"]) if m["max_load_rps"] is not None else "none meets the target",
            per_cent(m["others_frac"]),
        ]
        for m in found
    ]
    columns = [Column("service alone on all cores"), Column("threads", True), Column("max load found here, RPS", True)]
    return Table([*columns, Column("CPU time left over that others took", True)], rows)


@dataclass(frozen=True)
class Cliff:
    """The steepest step of p99 between neighbouring CPU quotas of a service, towards less CPU.

    overloaded: at `low_cores` the service completes less than it is offered; p99 there is a lower bound, in ms.
    """

    service: str
    rps: float
    high_cores: float
    low_cores: float
    from_ms: float
    to_ms: float
    overloaded: bool


# a step of p99 by this factor or more is a cliff
_CLIFF_FACTOR = 5.0
_EVAL_AGAIN = "Run `surefoot demo --again eval`: it measures them anew"


def cliff_of(c: charts.QuotaCurve) -> Cliff | None:
    """The step with the largest ratio of p99 that starts at a valid point within the QoS target and ends outside of it.

    A step ends in a valid point or in an overloaded one; points with too few requests prove nothing.
    """
    best: Cliff | None = None
    for rps, points in c.levels.items():
        known = sorted((p for p in points if p.verdict in ("valid", "server-overloaded")), key=lambda p: p.quota_cores)
        for low, high in pairwise(known):
            if c.qos_target_ms is None or high.verdict != "valid" or not high.p99_ms <= c.qos_target_ms < low.p99_ms:
                continue
            step = Cliff(
                c.service, rps, high.quota_cores, low.quota_cores, high.p99_ms, low.p99_ms, low.verdict == "server-overloaded"
            )
            if best is None or step.to_ms / step.from_ms > best.to_ms / best.from_ms:
                best = step
    return best


def cliff_words(curves: Sequence[charts.QuotaCurve]) -> str:
    """What the curves say about the cliff, in a sentence or two."""
    steps = {c.service: cliff_of(c) for c in curves}
    seen = [s for s in steps.values() if s is not None and s.to_ms / s.from_ms >= _CLIFF_FACTOR]
    text = f"The cliff is visible for {len(seen)} of {len(curves)} services"
    if seen:
        told = (
            f"{s.service} at {number(s.rps)} RPS rises from {number(s.from_ms)} to {'at least ' if s.overloaded else ''}"
            f"{number(s.to_ms)} ms between {s.high_cores:g} and {s.low_cores:g} cores"
            for s in seen
        )
        text += f": p99 of {'; of '.join(told)}"
    flat = []
    for c in curves:
        step = steps[c.service]
        if step in seen and step is not None:
            continue
        points = [p for level in c.levels.values() for p in level if p.verdict == "valid"]
        if step is not None:
            why = f"its steepest step over the QoS target is by a factor of {number(step.to_ms / step.from_ms)} only"
        elif c.qos_target_ms is None:
            why = "it has no QoS target"
        elif not points:
            why = "no case has a p99 that can be believed"
        elif all(p.p99_ms > c.qos_target_ms for p in points):
            why = "no valid case meets its QoS target"
        else:
            why = "no case that meets its QoS target stands beside one that misses it"
        flat.append(f"{c.service} ({why})")
    return text + (f". Not visible: {'; '.join(flat)}." if flat else ".")


def quota_n(c: charts.QuotaCurve) -> str:
    points = [p for level in c.levels.values() for p in level]
    disturbed = f"; {c.disturbed} more were disturbed" if c.disturbed else ""
    return f"{len(points)} cases, {sum(p.verdict == 'valid' for p in points)} of them valid{disturbed}"


def quota_caption(c: charts.QuotaCurve) -> str:
    valid = [p.requests for level in c.levels.values() for p in level if p.verdict == "valid"]
    return f"Each p99 of {min(valid):,} to {max(valid):,} requests (median window of the case)." if valid else ""


def quota_curves(folder: Path) -> list[charts.QuotaCurve]:
    """p99 over CPU quota of each service and load, of cases that nothing disturbed.

    A case counts with its median window, never with an average of percentiles.
    """
    manifest = read_object(folder / MANIFEST, "collect the data set again")
    with tables.reading(folder / "shards", dataset.SHARD_REMEDY):
        every = shardfile.scan(shards(folder)).collect()
    told = pl.col("latency_p99_ms").is_not_null() & (pl.col("verdict") != "client-limited")
    disturbed = pl.col("case_id").is_in(list(worth.disturbed_cases(folder)))
    lost = dict(every.filter(told & disturbed).group_by("service").agg(pl.col("case_id").n_unique()).iter_rows())
    rows = every.filter(told & ~disturbed)
    curves = []
    for (service,), mine in rows.group_by(["service"], maintain_order=True):
        levels: dict[float, list[charts.QuotaPoint]] = {}
        for (rps, _case), windows in mine.group_by(["rps", "case_id"], maintain_order=True):
            ordered = windows.sort("latency_p99_ms")
            row = ordered.row((ordered.height - 1) // 2, named=True)
            worst = (
                "server-overloaded" if (windows["verdict"] == "server-overloaded").sum() * 2 >= windows.height else row["verdict"]
            )
            levels.setdefault(float(str(rps)), []).append(
                charts.QuotaPoint(
                    quota_cores=row["alloc_cores"],
                    p99_ms=row["latency_p99_ms"],
                    low_ms=row["latency_p99_low_ms"],
                    high_ms=row["latency_p99_high_ms"],
                    requests=row["count"],
                    verdict=worst,
                )
            )
        target = manifest["services"].get(service, {}).get("qos_target_ms")
        curves.append(charts.QuotaCurve(str(service), target, levels, lost.get(service, 0)))
    return sorted(curves, key=lambda c: c.service)


# ---------------------------------------------------------------- learning


def _learning(dvc: Mapping[str, Any], out: Path) -> Section:
    """out: folder of the page, which links begin at."""
    section = Section("learning", "What the models learn", "Models")
    # DVC keeps what it made before: then this is no training time
    took = console.duration(dvc["first_s"]) if dvc.get("stages_run", 1) else "all of it made by an earlier dvc repro"
    section.blocks.append(
        Text(
            f"dvc repro: label, train (Model A: OAA and RCliff; Model B: QoS of another allocation; Model C: the next action), "
            f"evaluate, bundle, for {' and '.join(dvc['outputs'])}; {took}. A second dvc repro took "
            f"{dvc['second_s']:.1f} s and " + ("did nothing." if dvc["second_run_did_nothing"] else "ran stages again.")
        )
    )
    for name, outputs in dvc["outputs"].items():
        section.blocks.append(Heading(f"Labels of {name}"))
        section.blocks += label_blocks(read_json(Path(outputs["labels"]) / "label.json"))
        section.blocks.append(Heading(f"Errors on held-out planes of {name}"))
        metrics = read_json(Path(outputs["metrics"]) / "metrics.json")
        section.blocks += metric_blocks(metrics)
        if rows := training_facts.table_of(Path(outputs["metrics"]) / "by_service.csv"):
            section.blocks += training_page.errors_by_service(rows)
        if "report" in outputs:
            page = os.path.relpath(Path(outputs["report"]) / "report.html", out)
            more = f"{page}: beside the papers' figures, by distance from the cliff, calibration, importance, drift"
            section.blocks.append(Links([Link(quote(page), f"Training report of {name}", more)]))
    return section


def label_blocks(label: Mapping[str, Any]) -> list[Any]:
    """What the label stage kept and dropped, and why."""
    # files from before disturbed cases were left out do not say
    rows = {**label["rows"], "disturbed": label.get("rows_disturbed", 0), "memory_bound": label.get("rows_memory_bound", 0)}
    total = sum(rows.values()) or 1
    told = VERDICTS | {"disturbed": f"{WORTH['disturbed']}; dropped"}
    if rows["memory_bound"]:
        told |= {"memory-bound": "a limit on memory changed what the service did: for labels of memory alone"}
    verdicts = Table(
        [Column("verdict of a row"), Column("rows", True), Column("share", True), Column("what becomes of it")],
        [[v, f"{rows[v.replace('-', '_')]:,}", per_cent(rows[v.replace("-", "_")] / total), why] for v, why in told.items()],
    )
    planes = label["planes"]
    names = {
        "exact": "every cell that the label rests on was measured",
        "bounded": "unmeasured cells could move it",
        "no_feasible_cell": "no allocation meets the QoS target: no label",
    }
    kinds = Table(
        [Column("label of a plane"), Column("planes", True), Column("meaning")],
        [[n.replace("_", " "), f"{planes[n]:,}", why] for n, why in names.items()],
    )
    split = f"Split by plane: {planes['train']:,} train, {planes['val']:,} validation, {planes['test']:,} test."
    return [verdicts, kinds, Text(split, "note"), Text(memory_note(label.get("memory")), "note")]


def memory_note(memory: Mapping[str, Any] | None) -> str:
    """The labels along the axis of memory, or why there are none."""
    if memory is None or memory["reason"] is not None:
        why = memory["reason"] if memory else "files from before there were such labels do not say"
        return f"Labels of memory: none ({why})."
    return (
        f"Labels of memory: {memory['with_oaa']:,} of {memory['allocations']:,} allocations of cores and ways have a least limit "
        f"that meets the target, and {memory['with_cliff']:,} a cliff ({memory['exact']:,} exact, {memory['bounded']:,} bounded)."
    )


_UNITS = {"cores": "cores", "ways": "ways", "mbps": "MB/s"}


def metric_blocks(metrics: Mapping[str, float]) -> list[Any]:
    """Model errors beside those of two simple baselines."""
    rows: list[list[str]] = []
    for key, value in metrics.items():
        if key.startswith("a_") and key.endswith("_mae"):
            output = key[2:-4]
            unit = _UNITS.get(output.rsplit("_", 1)[-1], "")
            others = [number(metrics.get(f"{key}_{m}")) for m in ("constant", "nearest", "linear")]
            rows.append([f"Model A: {output.replace('_', ' ')}, mean absolute error", unit, number(value), *others])
    for key, text, unit in (
        ("b_qos_mae", "Model B: QoS (target / p99), mean absolute error", "of the target"),
        ("b_accuracy", "Model B: “QoS met” predicted rightly", "%"),
    ):
        if key in metrics:
            scale = 100 if unit == "%" else 1
            others = [
                number(scale * metrics[f"{key}_{m}"]) if f"{key}_{m}" in metrics else "–"
                for m in ("constant", "nearest", "linear")
            ]
            rows.append([text, unit, number(scale * metrics[key]), *others])
    methods = [Column(training_page.METHODS[m], True) for m in ("constant", "nearest", "linear")]
    table = Table([Column("figure"), Column("unit"), Column("model", True), *methods], rows)
    more = [
        ("a_safe_share", "predicted OAA, rounded up, meets QoS"),
        ("b_cliff_recall", "steps over the cliff that Model B sees coming"),
        ("b_safe_but_violates", "predicted “met” that are not"),
        ("c_grows_when_violating", "violating states in which Model C gives more"),
        ("c_never_shrinks_into_cliff", "states above the cliff in which Model C does not step over it"),
    ]
    shares = Table([Column("safety"), Column("share", True)], [[text, per_cent(metrics[k])] for k, text in more if k in metrics])
    note = (
        f"On {metrics.get('test_rows', 0):,.0f} samples of {metrics.get('test_planes', 0):,.0f} planes that training never saw."
    )
    safe = metrics.get("a_safe_share")
    if safe is not None and np.isfinite(safe):
        note += (
            " On a node a predicted OAA is only the start: Model B's check of it and the corrections that follow (Model C) "
            f"cover the {per_cent(1 - safe)} that would miss QoS."
        )
    return [table, shares, Text(note, "note")]


def _short(message: str) -> str:
    """A message with its digests cut to what tells them apart."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1…", message)


def _bundles(bundles: Sequence[Mapping[str, Any]]) -> Section:
    section = Section("bundles", "Bundles", "Bundles")
    section.blocks.append(
        Text(
            "What a node runs: models, bounds, platform limits and service targets, signed with Ed25519. Nothing in it is "
            "executable."
        )
    )
    for b in bundles:
        section.blocks.append(Heading(b["name"]))
        models = ", ".join(f"{m.upper()} {f['parameters']:,} parameters" for m, f in b["models"].items())
        rows: list[list[Any]] = [
            [
                "verified",
                badge(b["verified"], "accepted" if b["verified"] else "rejected", "signature, digests, sizes, shapes, bounds"),
            ],
            [
                "platform",
                f"{b['platform']['name']}: {b['platform']['cores']:g} cores, {b['platform']['ways']} ways, {b['feature_set']}",
            ],
            ["services", ", ".join(f"{n} ({s['qos_target_ms']:g} ms)" for n, s in b["services"].items())],
            ["models", models],
            ["size", f"{b['bytes']:,} bytes as one tar"],
            ["manifest SHA-256", b["manifest_sha256"]],
            ["signer", b["signer"]],
        ]
        section.blocks.append(Table([Column("fact"), Column("value")], rows))
        caught = all(t["rejected"] for t in b["tampering"])
        section.blocks.append(
            Text(
                f"One byte was changed in a copy, once in each of its {len(b['tampering'])} files: "
                + ("every copy was rejected, and the file named." if caught else "NOT every copy was rejected.")
            )
        )
        section.blocks.append(
            Table(
                [Column("changed file"), Column("byte", True), Column("answer")],
                [
                    [
                        t["file"],
                        f"{t['offset']:,}",
                        badge(t["rejected"], "rejected" if t["rejected"] else "accepted", _short(t["message"])),
                    ]
                    for t in b["tampering"]
                ],
            )
        )
    return section


# ---------------------------------------------------------------- closed loop


def _eval(found: Mapping[str, Any]) -> Section:
    section = Section("eval", "Policies on virtual workloads", "Policies")
    rows = tables.read(Path(found["out"]) / "rows.parquet", _EVAL_AGAIN)
    policies = list(found["policies"])
    workloads = rows["workload"].unique().sort().to_list()
    seeds = rows["seed"].n_unique()
    section.blocks.append(
        Text(
            f"{len(workloads)} workloads × {len(policies)} policies × {seeds} seeds on virtual {found['platform']}. "
            "Converged: every LC service meets its QoS target and goes on meeting it for 3 s, within 180 s of the last change. "
            "BE throughput: relative to running alone on the whole server; what a policy does not leave to BE jobs is the price "
            "of its QoS. EMU: sum of the loads of the LC services whose QoS is met, over the last 10 s."
        )
    )
    table = [
        [
            s["policy"],
            badge(s["converged"] == s["runs"], f"{s['converged']} of {s['runs']}"),
            number(s["qos_violation_s_mean"]),
            number(s["be_throughput_mean"]),
            f"{number(s['convergence_s_mean'])} / {number(s['convergence_s_worst'])}",
            number(s["emu_mean"]),
            number(s["actions_mean"]),
            f"{number(s['decision_us_p50'])} / {number(s['decision_us_p99'])}",
        ]
        for s in found["summary"]
    ]
    columns = [
        Column("policy"),
        Column("converged"),
        Column("QoS violation, s a run", True),
        Column("BE throughput", True),
        Column("convergence, mean / worst, s", True),
        Column("EMU", True),
        Column("actions a run", True),
        Column("decision p50 / p99, µs", True),
    ]
    section.blocks.append(Table(columns, table))
    if words := be_words(found["summary"]):
        section.blocks.append(Text(words))
    section.blocks.append(Text("; ".join(f"{p}: {POLICY_NOTES[p]}" for p in policies if p in POLICY_NOTES) + ".", "note"))
    section.blocks.append(
        Text(
            "Convergence times are of the runs that converged. "
            "Decision times: p50 is the mean over runs of each run's median, p99 the worst run's; one decision every 100 ms.",
            "note",
        )
    )
    section.blocks.append(_by_workload(rows, policies, workloads, seeds))
    lines = tables.read(Path(found["out"]) / "timelines.parquet", _EVAL_AGAIN)
    first = lines["seed"].min()
    for workload in workloads:
        section.blocks.append(Heading(f"{workload}: latency against target, and what each service holds"))
        mine = {
            p: lines.filter((pl.col("workload") == workload) & (pl.col("policy") == p) & (pl.col("seed") == first))
            for p in policies
        }
        mine = {p: frame for p, frame in mine.items() if len(frame)}
        if not mine:
            section.blocks.append(Callout("No time lines of this workload."))
            continue
        runs = {p: eval_rows.time_line(frame, workload, p) for p, frame in mine.items()}
        span = eval_rows.latency_span(runs.values())
        drawn = [
            Drawing(policy_charts.time_line(r, span), f"{r.policy}: run 1 of {seeds}, {eval_rows.readings(mine[p])}")
            for p, r in runs.items()
        ]
        section.blocks.append(Figures(drawn, least_px=policy_charts.TIME_LINE_PX))
        if said := eval_rows.caption(next(iter(runs.values()))):
            section.blocks.append(Text(said, "note"))
    return section


def _by_workload(rows: pl.DataFrame, policies: Sequence[str], workloads: Sequence[str], seeds: int) -> Figures:
    """QoS violation, BE throughput and convergence beside each other: one is bought with the other."""
    violation: dict[str, list[float | None]] = {}
    be: dict[str, list[float | None]] = {}
    convergence: dict[str, list[float | None]] = {}
    for policy in policies:
        of = [rows.filter((pl.col("policy") == policy) & (pl.col("workload") == w)) for w in workloads]
        violation[policy] = [_mean(part["qos_violation_s"]) for part in of]
        be[policy] = [_mean(part["be_throughput"]) for part in of]
        # a policy counts as converged on a workload only if it converges with every seed
        convergence[policy] = [_mean(part["convergence_s"]) if part["converged"].all() else None for part in of]
    names = [w.replace("_", "-") for w in workloads]

    def n(column: str, what: str) -> str:
        known = len(rows) - rows[column].null_count()
        return f"{len(workloads)} workloads × {seeds} seeds, {known} of {len(rows)} runs {what}"

    return Figures(
        [
            Drawing(
                charts.grouped_bars(names, violation, "seconds a run, sum over LC services", "QoS violation by workload"),
                n("qos_violation_s", "with a known latency"),
                "Mean over the seeds. Less is better.",
            ),
            Drawing(
                charts.grouped_bars(names, be, "1 = alone on the whole server", "BE throughput by workload"),
                n("be_throughput", "with a BE job"),
                "Mean over the seeds; × = no BE job in the workload. More is better, where QoS holds.",
            ),
            Drawing(
                charts.grouped_bars(names, convergence, "seconds", "Convergence time by workload"),
                f"{len(workloads)} workloads × {seeds} seeds, {int(rows['converged'].sum())} of {len(rows)} runs converged",
                "Mean over the seeds; × = not converged with every seed.",
            ),
        ]
    )


def _mean(series: pl.Series) -> float | None:
    value = series.drop_nulls().mean()
    return None if value is None else float(value)  # type: ignore[arg-type]


def _closed_loop(found: Mapping[str, Any]) -> Section:
    section = Section("loop", "A real service, held", "Real service")
    if not found.get("runs"):
        section.blocks.append(Callout(f"Not run: {found['why']}"))
        return section
    section.blocks.append(Text(found["text"]))
    if found.get("models") is False:
        why = "This machine's data taught no models, so the policies here need none."
        section.blocks.append(Callout(why))
    lanes = {}
    for run in found["runs"]:
        lanes[run["policy"]] = lane_of(Path(run["timeline"]), found["service"])
    marks = [(float(at), str(text)) for at, text in found["marks"]]
    drawn = charts.real_loop(lanes, f"{found['service']} beside {found['job']}", marks)
    section.blocks.append(Figures([Drawing(drawn, _loop_n(found["runs"], lanes), found["caption"])], wide=True))
    rows = []
    for run in found["runs"]:
        lane = lanes[run["policy"]]
        known = [p for p in lane.p99_ms if p is not None]
        rows.append(
            [
                run["policy"],
                f"{run['violation_s']:.1f}",
                f"{run['observed_s']:.1f}",
                number(float(np.median(known)) if known else None),
                number(max(known) if known else None),
                f"{run['requests']:,}" if run.get("requests") is not None else "–",
                number(run.get("whole_p99_ms")),
                run.get("verdict", "–"),
                number(run.get("be_cpu_cores")),
            ]
        )
    columns = [
        Column("policy"),
        Column("QoS violation, s", True),
        Column("observed, s", True),
        Column("p99 by second: median, ms", True),
        Column("worst, ms", True),
        Column("requests", True),
        Column("p99 of all, ms", True),
        Column("load generator says"),
        Column("BE jobs' CPU, cores", True),
    ]
    section.blocks.append(Table(columns, rows))
    return section


def _loop_n(runs: Sequence[Mapping[str, Any]], lanes: Mapping[str, policy_charts.Lane]) -> str:
    said = []
    for run in runs:
        p99 = lanes[run["policy"]].p99_ms
        requests = "" if run.get("requests") is None else f"{run['requests']:,} requests, "
        said.append(f"{run['policy']}: {requests}p99 known in {sum(p is not None for p in p99):,} of {len(p99):,} readings")
    return f"{len(runs)} runs; " + "; ".join(said)


def lane_of(events: Path, service: str) -> policy_charts.Lane:
    """One service of a recorded run (`surefootd run --events`); time counts from its first p99, when the load begins."""
    t_s: list[float] = []
    p99: list[float | None] = []
    cores: list[float | None] = []
    ways: list[float | None] = []
    target = None
    kind = "lc"
    for row in closed_loop.rows(events):
        if row.get("service") != service:
            continue
        t_s.append(row["t_ms"] / 1000)
        p99.append(row.get("p99_ms"))
        cores.append(row.get("cores"))
        ways.append(row.get("ways"))
        target = row.get("qos_target_ms", target)
        kind = row.get("kind", kind)
    start = next((t for t, p in zip(t_s, p99, strict=True) if p is not None), t_s[0] if t_s else 0.0)
    return policy_charts.Lane(service, kind, target, [t - start for t in t_s], p99, cores, ways)


# ---------------------------------------------------------------- how


def _how(result: Mapping[str, Any], root: Path) -> Section:
    section = Section("how", "How this was made", "How it was made")
    rows = [
        [s["title"], badge({"done": True, "reused": True}.get(s["state"]), s["state"], s["why"]), f"{s['seconds']:.1f}"]
        for s in result["steps"]
    ]
    section.blocks.append(Table([Column("step"), Column("state"), Column("time, s", True)], rows))
    section.blocks.append(Heading("Where things are"))
    places = [["data sets", c["folder"]] for c in result["campaigns"].values() if c]
    places += [["bundle", b["path"]] for b in result["bundles"]]
    places += [["eval rows and time lines", result["eval"]["out"]], ["all figures as JSON", f"{result['out']}/demo.json"]]
    section.blocks.append(
        Table([Column("what"), Column("where")], [[a, _relative(b, root, Path(result["out"]))] for a, b in places])
    )
    return section


def _relative(path: str, root: Path, out: Path) -> str:
    """A path from the repository's root on; of what lies elsewhere from the page's folder on, which may be moved with it."""
    return os.path.relpath(path, root if Path(path).is_relative_to(root) else out)
