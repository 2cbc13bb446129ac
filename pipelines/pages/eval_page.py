"""The evaluation report as a page: the facts of pipelines/pages/eval_facts.py in tables, figures and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipelines.pages import eval_rows
from pipelines.pages import policy_charts as charts
from pipelines.pages.eval_facts import ALL_BE, NOT_RUN, OURS, Group
from pipelines.pages.page import (
    Callout,
    Column,
    Drawing,
    Figures,
    Heading,
    Page,
    Section,
    Table,
    Text,
    Tile,
    badge,
    counted,
    estimate,
    number,
)
from pipelines.pages.policy_words import Standing, be_words

Facts = Mapping[str, Any]
# told the name of each step, which lasts as long as the context
Step = Callable[[str], AbstractContextManager[None]]
_VERDICTS = {"met": True, "missed": False, "as published or better": True, "worse than published": None}
_SURE = {True: "sure", False: "not sure", None: ""}
# workloads of a set whose time lines are drawn, at most
_FEW = 12
# combinations of loads that make a map
_MAP_FROM = 30
# parts of the page that are drawn: what takes the time
DRAWN = ("figures of convergence", "figures of EMU", "figures of BE jobs", "figures of churn")


def untold(_name: str) -> AbstractContextManager[None]:
    """A step that nobody waits for."""
    return nullcontext()


def build(facts: Facts, groups: Sequence[Group], step: Step = untold) -> Page:
    """The page of one or several evaluations; `step` is told each of DRAWN."""
    sets = facts["sets"]
    real = [s for s in sets if s["set"] != ALL_BE]
    policies = charts.in_order({p["policy"] for s in sets for p in s["policies"]})
    runs = sum(o["rows"] for o in facts["made_from"])
    page = Page(
        title="Surefoot: policies side by side",
        lede=(
            "Closed-loop runs on virtual servers: how fast each policy brings every latency-critical (LC) service inside its QoS "
            "target (a bound on p99 latency), how much load and best-effort (BE) work it lets a server carry, what it breaks on "
            "the way, and how that compares with what the papers say."
        ),
        facts=[
            ("runs", f"{runs:,}"),
            *(
                (one if len(names) == 1 else many, ", ".join(names))
                for one, many, names in (
                    ("set", "sets", list(dict.fromkeys(s["set"] for s in real))),
                    ("platform", "platforms", sorted({s["platform"] for s in sets})),
                    ("policy", "policies", policies),
                )
            ),
            *[("told untruths", ", ".join(told)) for told in [_all_told(facts)] if told],
            ("seeds of each workload", " or ".join(map(str, sorted({s["seeds"] for s in sets})))),
        ],
        footer="Made by `surefoot eval-report`; eval-report.json has the same numbers; docs/eval-report.md says how.",
    )
    page.tiles = _tiles(facts)
    # in the order of a reader's questions: what comes of it, is it as published, in full, how it came about
    compared = any(p["ours"] for p in facts["published"])
    published = [_published(facts)]
    page.sections = [_short(facts), *(published if compared else []), _sets(facts), *_ranks(facts), *_untruths(facts)]
    parts: Sequence[Callable[[], list[Section]]] = (
        lambda: [_convergence(facts, groups)],
        lambda: [_emu(facts, groups)],
        lambda: _best_effort(facts),
        lambda: _churn(facts, groups),
    )
    for name, drawn in zip(DRAWN, parts, strict=True):
        with step(name):
            page.sections += drawn()
    page.sections += [*([] if compared else published), _reading(facts)]
    return page


# ---------------------------------------------------------------- words


def figure(e: Mapping[str, Any], unit: str = "", scale: float = 1.0) -> Any:
    """A table's cell: a figure and its interval, 5.81 [5.2, 6.4]."""
    said = f"{number(scale * e['value'])} {unit}".strip()
    if e["low"] is None:
        return estimate(said, "")
    return estimate(said, f"[{number(scale * e['low'])}, {number(scale * e['high'])}]")


def known(of: Facts, field: str, unit: str = "", scale: float = 1.0) -> Any:
    """A table's cell: the figure, or in words why there is none."""
    return of["no_value"][field] if of[field] is None else figure(of[field], unit, scale)


def _plain(of: Facts, field: str) -> str:
    """A table's cell for a figure that has no interval."""
    return of["no_value"].get(field) or number(of[field])


def name_of(s: Mapping[str, Any]) -> str:
    said = "all sets beside a BE job" if s["set"] == ALL_BE else s["set"]
    said = said if s["platform"] in said else f"{said} on {s['platform']}"
    return f"{said}, told untruths: {s['harm']}" if s["harm"] else said


def _what(s: Mapping[str, Any]) -> str:
    few, most = s["lc"][0], s["lc"][-1]
    lc = counted(most, "LC service") if few == most else f"{few} to {most} LC services"
    with_be = s["be_workloads"]
    be = "" if not with_be else ", BE jobs" if with_be == s["workloads"] else f", BE jobs in {with_be} of {s['workloads']}"
    kind = "drawn at random" if s["drawn"] else "scripted"
    return f"{counted(s['workloads'], 'workload')} ({kind}), {lc}{be}; {counted(s['seeds'], 'seed')}"


# sets whose comparison leads the page, where they are there
_HEADLINES = ("lc3", ALL_BE)
_MOST_HEADLINES = 3


def _tiles(facts: Facts) -> list[Tile]:
    chosen = [s for s in facts["sets"] if s["set"] in _HEADLINES] or [s for s in facts["sets"] if not s["harm"]]
    # those with BE jobs show both sides of what a policy buys
    chosen.sort(key=lambda s: not s["be"])
    tiles = [_set_tile(s) for s in (chosen or facts["sets"])[:_MOST_HEADLINES]]
    ours = [p for p in facts["published"] if p["verdict"] in ("met", "missed")]
    met = [p for p in ours if p["verdict"] == "met"]
    missing = [p for p in facts["published"] if p["ours"] is None]
    better = [p for p in facts["published"] if p["verdict"] == "as published or better"]
    rivals = [*better, *(p for p in facts["published"] if p["verdict"] == "worse than published")]
    without = f"{len(missing)} of {len(facts['published'])} without a figure of ours: the folded table says why"
    if ours:
        more = without if missing else ""
        state = "" if len(met) == len(ours) else "failed"
        tiles.append(Tile("published figures and aims of ours", f"{len(met)} of {len(ours)} met", more, state))
    if rivals:
        more = "a rival that does better than its paper is no fault; the table says where"
        tiles.append(
            Tile("published figures of rivals", f"{len(better)} of {len(rivals)} as published or better", more),
        )
    if not ours and not rivals:
        why = "They are of other sets, or of policies that were not run"
        tiles.append(Tile("published figures", "none to compare", f"{why}: the section before the last says which.", "missing"))
    return tiles


def _set_tile(s: Facts) -> Tile:
    """All policies of a set: what one reaches says little as long as another may reach it, too."""
    heads = ["policy", "converged", "in, s", "violation, s", *(["BE"] if s["be"] else [])]
    rows = []
    for p in s["policies"]:
        fields = ("convergence_s", "qos_violation_s", *(["be_throughput"] if s["be"] else []))
        values = [number(p[f]["value"]) if p[f] else "–" for f in fields]
        rows.append([p["policy"], f"{p['converged_runs']} of {p['runs']}", *values])
    told = "Converged runs, how soon they converge, QoS violation a run" + (", BE throughput (1 = alone)." if s["be"] else ".")
    fails = any(p["converged_runs"] < p["runs"] for p in s["policies"] if p["policy"] in OURS)
    return Tile(name_of(s), "", told, "missing" if fails else "", rows, heads)


def _short(facts: Facts) -> Section:
    section = Section("short", "In short", "In short")
    section.blocks.append(
        Text(
            "Less QoS violation is better, and so is more BE throughput: a policy buys one with the other, so they stand beside "
            "each other. Intervals, all other figures and what they mean are in the tables of each set."
        )
    )
    with_be = any(s["be"] for s in facts["sets"])
    columns = [Column("set"), Column("policy"), Column("converged"), Column("QoS violation, s a run", True)]
    columns += [Column(_BE, True)] if with_be else []
    columns += [Column("convergence, s", True), Column("EMU, sum of loads", True)]
    rows, drawn, said = [], [], []
    for s in facts["sets"]:
        for p in s["policies"]:
            cells: list[Any] = [name_of(s), p["policy"]]
            cells += [
                badge(p["converged_runs"] == p["runs"], f"{p['converged_runs']} of {p['runs']}"),
                _value(p, "qos_violation_s"),
            ]
            cells += [_value(p, "be_throughput")] if with_be else []
            rows.append([*cells, _value(p, "convergence_s"), _value(p, "emu")])
        if s["be"]:
            both = [p for p in s["policies"] if p["qos_violation_s"] and p["be_throughput"]]
            points = [charts.Trade(p["policy"], _ends(p["qos_violation_s"]), _ends(p["be_throughput"])) for p in both]
            n = f"{counted(len(points), 'policy', 'policies')}; {_usable([s], 'be_throughput')} with a BE job"
            caption = "Up and to the left is better. Bars: 95 % intervals, where there are any."
            if points:
                drawn.append(Drawing(charts.trade(points, f"{name_of(s)}: what QoS costs BE jobs"), n, caption))
            words = be_words(
                Standing(
                    p["policy"], p["policy"] in OURS, p["converged_runs"], p["be_throughput"] and p["be_throughput"]["value"]
                )
                for p in s["policies"]
            )
            said += [Text(f"{name_of(s)}: {words}")] if words else []
    section.blocks += [Table(columns, rows), *said]
    if drawn:
        section.blocks.append(Figures(drawn))
    return section


def _value(p: Facts, field: str) -> str:
    """A figure without its interval, or in words why there is none."""
    return number(p[field]["value"]) if p[field] else str(p["no_value"][field])


def _ends(e: Mapping[str, Any]) -> tuple[float, float, float]:
    low, high = (e["value"] if e[k] is None else e[k] for k in ("low", "high"))
    return low, e["value"], high


def _usable(sets: Sequence[Facts], field: str) -> str:
    """Of how many runs a figure is: 38 of 40 runs."""
    every = [p for s in sets for p in s["policies"]]
    return f"{sum(p['usable_runs'][field] for p in every):,} of {counted(sum(p['runs'] for p in every), 'run')}"


def _runs(g: Group) -> str:
    """Of what a figure of a set is: 40 workloads × 5 seeds × 3 policies, 580 of 600 runs converged."""
    parts = [counted(g.rows["workload"].n_unique(), "workload"), counted(len(g.seeds()), "seed")]
    parts.append(counted(len(g.policies()), "policy", "policies"))
    return f"{' × '.join(parts)}, {int(g.rows['converged'].sum()):,} of {counted(len(g.rows), 'run')} converged"


def _published(facts: Facts) -> Section:
    section = Section("published", "Next to the published numbers", "Published")
    section.blocks += [_told(s) for s in facts["sets"] if s["unjudged"]]
    section.blocks.append(
        Text(
            "Every figure of the papers that these sets can be held against, and the aims this project set itself. “Sure”: the "
            "whole 95 % interval says the same. The papers measured real servers, these runs virtual ones: a ratio compares "
            "better than a second does."
        )
    )
    measured = [p for p in facts["published"] if p["ours"] is not None]
    rest = [p for p in facts["published"] if p["ours"] is None]
    columns = [Column("set"), Column("policy"), Column("what"), Column("published", True)]
    if measured:
        rows = [
            [
                *_cells(p),
                figure(p["ours"], _unit(p, p["workloads"])),
                badge(_VERDICTS[p["verdict"]], p["verdict"], _SURE[p["sure"]]),
                _source(p),
            ]
            for p in measured
        ]
        section.blocks.append(Table([*columns, Column("ours", True), Column("verdict"), Column("source")], rows))
    if rest:
        rows = [[*_cells(p), badge(None, p["verdict"], p["why"]), _source(p)] for p in rest]
        folded = f"{counted(len(rest), 'published figure')} without one of ours beside it, and why"
        section.blocks.append(Table([*columns, Column("verdict"), Column("source")], rows, folded=folded))
    return section


def _told(s: Facts) -> Callout:
    if s["harm"]:
        return Callout(f"{name_of(s)}. What comes of that has no verdict beside aims and published figures.")
    return Callout(f"{name_of(s)}: {s['unjudged']}. So there is no verdict beside aims and published figures.")


def _unit(p: Facts, workloads: int | None = None) -> str:
    """How a published figure's unit is written; failures are of our policy's `workloads`, where those are not the paper's."""
    if workloads is not None and p["unit"].startswith("of "):
        return f"of {workloads}"
    return "×" if p["unit"] == "x" else str(p["unit"])


def _cells(p: Mapping[str, Any]) -> list[str]:
    span = f" ({number(p['low'])} to {number(p['high'])})" if p["low"] is not None else ""
    other = p["baseline"] or p["lowest"]
    against = f"{p['policy']} / {other}" if other else p["policy"]
    name = "all with BE jobs" if p["set"] == ALL_BE else p["set"]
    return [name, against, p["what"], f"{number(p['value'])} {_unit(p)}{span}"]


def _source(p: Mapping[str, Any]) -> str:
    return f"{p['paper']} {p['place']}".strip()


# ---------------------------------------------------------------- tables


_MEANS = (
    "A mean is over workloads, each the mean of its seeds; of scripts over seeds, each the mean of its workloads. Where some "
    "runs have no value (failures, in convergence) it is not the mean over runs, which `surefootd eval` prints."
)
_BE = "BE throughput, 1 = alone"
_BE_MET = "BE throughput while targets are met"
_REFUSED = "refused plans"
_SPEED_UP = "mean convergence time of the other over its own: above 1 it is the faster"
_TAKES = "times that a plan took cores, ways or bandwidth from an LC service that would have kept its target, and now will not"
_CROSSINGS = (
    "RCliff (resource cliff) crossings, in all runs: plans that took so much from an LC service that it no longer meets its "
    "target; reclaims did so for BE jobs or for nobody, deprivations for other LC services."
)
_COLUMNS = (
    Column("policy"),
    Column("converged", False, "runs in which every LC service meets its QoS target within 180 s, and for 3 s on"),
    Column("workloads that fail", True, "workloads that do not converge, counted for each seed, averaged over seeds"),
    Column("convergence, s", True, "from the last arrival or load change, of the runs that converge"),
    Column("worst, s", True, "the slowest run that converges"),
    Column("with failures as 180 s, s", True, "convergence time of all runs: no policy gets better by failing"),
    Column(
        "EMU, sum of loads", True, "effective machine utilisation: loads of the LC services whose QoS is met, 1 = one max load"
    ),
    Column("EMU, % of ORACLE's", True, "ORACLE's is the most that exclusive partitions allow; of the runs where that is proven"),
    Column(_BE, True, "instructions per second of the BE jobs relative to having the whole server alone"),
    Column(_BE_MET, True, "the same, 0 in each tick in which an LC service misses its target that could be served"),
    Column(
        "EMU of COSMOS", True, "0 in each tick in which an LC service misses its target, else loads and BE throughputs added up"
    ),
    Column("least requests a window", True, "in the last window of any LC service of any run; below 100 there is no p99"),
    Column("QoS violation, s a run", True, "time with the p99 of the last second above its target, summed over LC services"),
    Column("by its own plans, s a run", True, "the part of it that began when a plan took a service across its RCliff"),
    Column("of these once settled, s a run", True, "at constant load, after the 3 s that prove convergence"),
    Column("worst slowdown, median", True, "the largest p99 / QoS target of any LC service in a run, median of the runs"),
    Column("worst slowdown, worst", True, "the same, of the worst run"),
    Column("RCliff crossings: reclaims", True, f"{_TAKES}, for BE jobs or for nobody; sum of all runs"),
    Column("RCliff crossings: deprivations", True, f"{_TAKES}, for other LC services; sum of all runs"),
    Column("actions a minute, settled", True, "at constant load, after the 3 s that prove convergence"),
    Column("actions a run", True, "one for each service that a plan concerns"),
    Column(_REFUSED, True, "plans that the server refused and that changed nothing, in all runs: a fault of the policy"),
)


def _sets(facts: Facts) -> Section:
    section = Section("sets", "Every set, every policy", "Sets")
    section.blocks.append(
        Text(
            f"Of every set each policy's means, and below them ratios of two policies' means: a speed-up above 1, BE throughput "
            f"above 1 and QoS violation below 1 speak for the first of the two. {_MEANS}"
        )
    )
    meanings = [[c.name, c.help] for c in _COLUMNS if c.help]
    section.blocks.append(Table([Column("column"), Column("meaning")], meanings, folded="What the columns mean"))
    for s in facts["sets"]:
        section.blocks.append(Heading(f"{name_of(s)}: {_what(s)}"))
        section.blocks += [_told(s)] if s["unjudged"] else []
        if not s["same_runs"]:
            section.blocks.append(
                Callout("The policies ran different workloads or seeds: compare the ratios below, which are paired.")
            )
        refused = any(p["refused_plans_total"] for p in s["policies"])
        shown = {_BE: s["be"], _BE_MET: s["be"], _REFUSED: refused}
        columns = [c for c in _COLUMNS if shown.get(c.name, True)]
        rows = []
        for p in s["policies"]:
            row = [
                p["policy"],
                badge(p["converged_runs"] == p["runs"], f"{p['converged_runs']} of {p['runs']}"),
                known(p, "failures"),
                known(p, "convergence_s"),
                _plain(p, "convergence_worst_s"),
                known(p, "convergence_or_limit_s"),
                known(p, "emu"),
                known(p, "emu_of_oracle", scale=100),
            ]
            row += [known(p, "be_throughput"), known(p, "be_throughput_met")] if s["be"] else []
            row += [known(p, "emu_cosmos"), _plain(p, "window_requests_least")]
            row += [known(p, "qos_violation_s"), known(p, "self_violation_s"), known(p, "self_violation_settled_s")]
            row += [_plain(p, "worst_slowdown_median"), _plain(p, "worst_slowdown_most")]
            for crossings in ("reclaim_crossings_total", "deprive_crossings_total"):
                row += [p["no_value"].get(crossings) or f"{p[crossings]:,.0f}"]
            row += [known(p, "actions_per_min_settled"), known(p, "actions")]
            row += [_plain(p, "refused_plans_total")] if refused else []
            rows.append(row)
        section.blocks.append(Table(columns, rows, dense=True))
        section.blocks.append(Text(_CROSSINGS, "note"))
        if s["ratios"]:
            columns = [Column("policy / other"), Column("speed-up, both converge", True, _SPEED_UP)]
            columns += [Column("speed-up, failures as 180 s", True, _SPEED_UP)]
            columns += (
                [Column("BE throughput, both converge", True, "its mean over the other's: above 1 is more")] if s["be"] else []
            )
            columns += [Column("QoS violation", True, "its mean over the other's: below 1 is less")]
            rows = []
            for r in s["ratios"]:
                names = ["speed_up", "speed_up_or_limit", *(["be_throughput_ratio"] if s["be"] else []), "violation_ratio"]
                rows.append([f"{r['policy']} / {r['baseline']}", *(known(r, name, "×") for name in names)])
            section.blocks.append(Table(columns, rows))
        section.blocks.append(Text(_intervals(s), "note"))
    return section


_RANKED = {"qos_violation_s": "QoS violation", "be_throughput": "BE throughput"}


def _ranks(facts: Facts) -> list[Section]:
    """Who is ahead of whom, workload by workload, and whether that could be chance."""
    if not any(s["ranks"] for s in facts["sets"]):
        return []
    section = Section("ranks", "Ranks over workloads", "Ranks")
    section.blocks.append(
        Text(
            "On each workload the policies are ranked, 1 is the best; below are the means. Friedman's p: the chance of that "
            "if all policies were as good as each other. Ours are then held against each other policy by Wilcoxon's signed-rank "
            "test over workloads, corrected by Holm for their number: below 0.05 is sure. Means say by how much; ranks say how "
            "often."
        )
    )
    for s in facts["sets"]:
        for r in s["ranks"]:
            name = _RANKED[r["metric"]]
            p = r["friedman_p"]
            said = "of two policies Friedman's test says nothing" if p is None else f"Friedman's p {_chance(p)}"
            section.blocks.append(Heading(f"{name_of(s)}: {name}, {counted(r['workloads'], 'workload')}; {said}"))
            order = sorted(r["ranks"], key=lambda of: of["rank"])
            section.blocks.append(
                Table([Column("policy"), Column("mean rank", True)], [[o["policy"], f"{o['rank']:.2f}"] for o in order])
            )
            if not r["compared"]:
                continue
            columns = [
                Column("policy / other"),
                Column("better on", True),
                Column("worse on", True),
                Column("p, Holm", True),
                Column("verdict"),
            ]
            rows: list[list[Any]] = []
            for c in r["compared"]:
                better = c["better_on"] > c["worse_on"]
                verdict = badge(better, "better" if better else "worse", "sure") if c["sure"] else "–"
                rows.append(
                    [f"{c['policy']} / {c['baseline']}", str(c["better_on"]), str(c["worse_on"]), _chance(c["p_holm"]), verdict]
                )
            section.blocks.append(Table(columns, rows, folded=f"{name}: ours against each other policy"))
    return [section]


def _chance(p: float) -> str:
    return "below 0.001" if p < 0.001 else f"{p:.3f}"


def _intervals(s: Facts) -> str:
    """What stands in brackets, and what has none."""
    return " ".join([_over(s), *_trainings(s)])


def _trainings(s: Facts) -> list[str]:
    """Of how many trainings figures of policies with models are: no interval over workloads or seeds knows how these scatter."""
    if not s["bundles"] or s["interval"] is None:
        return []
    of = "One training of the models" if s["bundles"] == 1 else f"{s['bundles']} bundles, one training each"
    return [f"{of}: scatter between trainings is not in the intervals of policies that ask models."]


def _over(s: Facts) -> str:
    several = "Run several: surefootd eval --seeds 5."
    if s["interval"] is None:
        return "No intervals: one workload gives none." if s["drawn"] else f"No intervals: one seed gives none. {several}"
    said = f"In brackets: 95 % intervals over {s['interval']}"
    if not s["drawn"]:
        return f"{said}; those of ratios are bootstrapped over seeds."
    if s["seeds"] > 1:
        return f"{said}; those of failures are over seeds, Student's t."
    return f"{said}. How many workloads fail has no interval: one seed gives none. {several}"


def _all_told(facts: Facts) -> list[str]:
    """All untruths that runs of the page were told."""
    return sorted({s["harm"] for s in facts["sets"] if s["harm"]} | {c["harm"] for u in facts["untruths"] for c in u["costs"]})


def _untruths(facts: Facts) -> list[Section]:
    if not facts["untruths"]:
        return []
    section = Section("untruths", "The price of a wrong model", "Wrong models")
    section.blocks.append(
        Text(
            "The same policies on the same workloads and seeds, told untruths (surefootd eval --harm): seconds of QoS violation "
            "a run. The aim: a policy of ours that is misled breaks less than parties-stop, which has no models. Ratios are of "
            "the runs that both have; below 1 is less."
        )
    )
    columns = [Column("policy"), Column("told"), Column("told the truth, s", True), Column("misled, s", True)]
    columns += [
        Column("over its own", True),
        Column("over parties-stop's", True, "told the same where it was run so, else the truth"),
    ]
    columns.append(Column("verdict"))
    for u in facts["untruths"]:
        section.blocks.append(Heading(name_of(u | {"harm": None})))
        rows = []
        for c in u["costs"]:
            names = ("honest_violation_s", "violation_s")
            cells: list[Any] = [c["policy"], c["harm"], *(figure(c[n]) if c[n] else c["no_value"][n] for n in names)]
            cells.append(figure(c["over_honest"], "×") if c["over_honest"] else "–")
            cells.append(figure(c["over_parties"], "×") if c["over_parties"] else "–" if c["parties"] else NOT_RUN)
            cells.append(badge(c["verdict"] == "below parties-stop", c["verdict"], _SURE[c["sure"]]) if c["verdict"] else "–")
            rows.append(cells)
        section.blocks.append(Table(columns, rows))
        if u["unjudged"]:
            section.blocks.append(Text(f"No verdict: {u['unjudged']}.", "note"))
    return [section]


# ---------------------------------------------------------------- figures over many workloads


def runs_of(group: Group) -> list[charts.Runs]:
    """What the convergence figures show of each policy."""
    found = []
    for policy in group.policies():
        rows = group.of(policy)
        by = (
            rows.group_by("workload")
            .agg(pl.col("convergence_s").mean(), pl.col("converged").all(), pl.col("emu").mean())
            .sort("workload")
        )
        good = by["converged"].to_numpy()
        seconds = np.where(good, by["convergence_s"].fill_null(np.nan).to_numpy(), np.nan)
        times = rows.filter(pl.col("converged"))["convergence_s"].to_numpy()
        emu = by["emu"].fill_null(np.nan).to_numpy()
        found.append(charts.Runs(policy, seconds, emu, times, int((~rows["converged"]).sum())))
    return found


def _convergence(facts: Facts, groups: Sequence[Group]) -> Section:
    section = Section("convergence", "How fast, and whether at all", "Convergence")
    section.blocks.append(
        Text(
            "Converged: every LC service meets its QoS target and goes on for 3 s; counted from the last arrival or load "
            "change. What takes more than 180 s has failed: it lies beyond the dashed line, hollow, and is what a curve lacks "
            "to 1."
        )
    )
    for g in groups:
        if g.rows["workload"].n_unique() < 5:
            continue
        runs = runs_of(g)
        section.blocks.append(Heading(_title(facts, g)))
        hollow = "One mark a workload; hollow: failed."
        if len(g.seeds()) > 1:
            hollow = "One mark a workload, mean over seeds; hollow: failed with one seed or more."
        hollow += " 0 s is drawn at 0.1 s (log axis)."
        beyond = "All runs. Beyond 180 s: the share that converged, where some failed."
        cut = "All runs that converged; kernel density of log time, cut at the fastest and the slowest."
        drawings = [Drawing(charts.scatter(runs), _runs(g), hollow), Drawing(charts.distribution(runs), _runs(g), beyond)]
        section.blocks.append(Figures(drawings))
        section.blocks.append(Figures([Drawing(charts.violins(runs), _runs(g), cut)], wide=True))
    if len(section.blocks) == 1:
        section.blocks.append(Callout("No set here has five workloads or more; see the time lines."))
    return section


def _title(facts: Facts, group: Group) -> str:
    return name_of(_facts_of(facts, group))


def _facts_of(facts: Facts, group: Group) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(s for s in facts["sets"] if (s["set"], s["platform"]) == (group.set, group.platform))
    return found


def load_maps(group: Group) -> list[charts.LoadMap]:
    """One map a policy, where all workloads of a set are of the same two or more services and there are enough of them."""
    at: dict[str, dict[str, float]] = {}
    for out in group.rows["out"].unique().sort():
        at |= eval_rows.loads(Path(out)) or {}
    names = group.rows["workload"].unique().sort().to_list()
    known = [at[n] for n in names if n in at]
    if len(known) < max(_MAP_FROM, len(names)) or len({tuple(sorted(k)) for k in known}) != 1 or len(known[0]) < 2:
        return []
    services = list(known[0])
    x, y, rest = services[0], services[1], services[2:]
    pct = {n: {s: round(100 * v) for s, v in at[n].items()} for n in names}
    xs, ys = sorted({p[x] for p in pct.values()}), sorted({p[y] for p in pct.values()})
    found = []
    for policy in group.policies():
        good = dict(group.of(policy).group_by("workload").agg(pl.col("converged").all()).iter_rows())
        share, best = np.full((2, len(ys), len(xs)), np.nan)
        for i, b in enumerate(ys):
            for j, a in enumerate(xs):
                cell = [n for n in names if (pct[n][x], pct[n][y]) == (a, b) and n in good]
                if cell:
                    met = [n for n in cell if good[n]]
                    share[i, j] = len(met) / len(cell)
                    best[i, j] = max((sum(pct[n][r] for r in rest) for n in met), default=np.nan)
        third = " + ".join(rest) or "load"
        found.append(charts.LoadMap(policy, x, y, third, xs, ys, share, best))
    return found


def _emu(facts: Facts, groups: Sequence[Group]) -> Section:
    section = Section("emu", "How much load", "EMU")
    section.blocks.append(
        Text(
            "EMU (effective machine utilisation): sum of the loads of the LC services whose QoS is met, over the last 10 s. "
            "ORACLE's is the largest that exclusive partitions allow. The left figures count the workloads at each offered load, "
            "and those that a policy converges on."
        )
    )
    for g in groups:
        if not g.drawn or g.rows["workload"].n_unique() < 5 or _known_share(g.rows, "offered_load") < 1:
            continue
        names = g.rows.group_by("workload").agg(pl.col("offered_load").mean(), pl.col("oracle_emu").mean()).sort("workload")
        offered = names["offered_load"].to_numpy()
        known = names["oracle_emu"].fill_null(np.nan).to_numpy()
        oracle = (known >= offered - 1e-6).astype(float) if np.isfinite(known).all() else None
        share = {}
        for policy in g.policies():
            mine = g.of(policy).group_by("workload").agg(pl.col("converged").mean())
            share[policy] = names.join(mine, on="workload", how="left").sort("workload")["converged"].fill_null(0.0).to_numpy()
        bars = {"EMU": _bars(_facts_of(facts, g), "emu")}
        section.blocks.append(Heading(_title(facts, g)))
        drawings = [
            Drawing(
                charts.emu_distribution(offered, share, oracle),
                _runs(g),
                ("Half of the seeds count as half a workload. " if len(g.seeds()) > 1 else "")
                + ("Dotted: those on which ORACLE meets every QoS target." if oracle is not None else ""),
            )
        ]
        mean_oracle = float(np.nanmean(known)) if np.isfinite(known).any() else None
        drawings.append(
            Drawing(
                charts.intervals(bars, "EMU, mean over workloads, sum of loads", "EMU", at=mean_oracle),
                f"{_usable([_facts_of(facts, g)], 'emu')} with an EMU",
                "Dashed: ORACLE's mean, of the workloads where it is proven." if mean_oracle else "",
            )
        )
        section.blocks.append(Figures(drawings))
        maps = load_maps(g)
        if maps:
            m = maps[0]
            section.blocks.append(Heading(f"{g.set}: load of {m.x} against load of {m.y}"))
            section.blocks.append(Figures([Drawing(charts.load_map(m), _map_n(m)) for m in maps]))
            section.blocks.append(
                Text(
                    f"A workload counts where every seed converges. The number is the highest load of {m.third} among those; "
                    "× none; a cell without a number: no workload was drawn there.",
                    "note",
                )
            )
    if len(section.blocks) == 1:
        section.blocks.append(Callout("No drawn set with five workloads or more is among these."))
    return section


def _map_n(m: charts.LoadMap) -> str:
    cells = int(np.isfinite(m.share).sum())
    return f"{m.policy}: {int((m.share == 1).sum())} of {cells} combinations in which all workloads converge"


def _known_share(rows: pl.DataFrame, column: str) -> float:
    return 1 - rows[column].null_count() / len(rows)


def _bars(s: Mapping[str, Any], field: str) -> list[charts.Bar]:
    return [_bar(p, field) for p in s["policies"]]


def _bar(of: Facts, field: str, paper: Facts | None = None) -> charts.Bar:
    e, published = of[field], None if paper is None else paper["value"]
    if e is None:
        return charts.Bar(of["policy"], None, None, None, of["no_value"][field], published)
    return charts.Bar(of["policy"], e["value"], e["low"], e["high"], published=published)


def _published_of(facts: Facts, s: Facts, policy: str, metric: str, baseline: str = "") -> Facts | None:
    if s["unjudged"]:
        return None
    wanted = (s["set"], s["platform"], policy, baseline, metric)
    of = ("set", "platform", "policy", "baseline", "metric")
    return next((p for p in facts["published"] if tuple(p[k] for k in of) == wanted), None)


def _best_effort(facts: Facts) -> list[Section]:
    sets = [s for s in facts["sets"] if s["be"] and s["drawn"]]
    if not sets:
        return []
    section = Section("be", "Beside a best-effort job", "BE jobs")
    single = [s for s in sets if s["set"] != ALL_BE]
    policies = charts.in_order({p["policy"] for s in single for p in s["policies"]})
    columns, rows = [Column("policy")], [[policy] for policy in policies]
    for s in single:
        papers = {policy: paper for policy in policies if (paper := _published_of(facts, s, policy, "failures"))}
        by = {p["policy"]: p for p in s["policies"]}
        columns.append(Column(name_of(s), True))
        if papers:
            columns.append(Column(f"published, {' or '.join(sorted({_unit(p) for p in papers.values()}))}", True))
        for policy, row in zip(policies, rows, strict=True):
            row.append(figure(by[policy]["failures"], f"of {by[policy]['workloads']}") if policy in by else NOT_RUN)
            if papers:
                row.append(number(papers[policy]["value"]) if policy in papers else "–")
    section.blocks.append(Heading("Workloads that fail to converge, mean over seeds"))
    section.blocks.append(Table(columns, rows))
    over = {
        f"{name_of(s)}, against {other}": [
            _bar(r, "be_throughput_ratio", _published_of(facts, s, r["policy"], "be_throughput_ratio", other))
            for r in s["ratios"]
            if r["baseline"] == other and r["policy"] != "osml"
        ]
        for s in single
        for other in ("parties-stop", "clite")
    }
    over = {name: bars for name, bars in over.items() if bars}
    drawings = [
        Drawing(
            charts.intervals(
                {name_of(s): _bars(s, "be_throughput") for s in single},
                "BE throughput relative to running alone on the whole server",
                "BE throughput, all runs",
            ),
            f"{_usable(single, 'be_throughput')} with a BE job",
            "Over the last 10 s, whether the LC services are met or not: read it beside the failures.",
        )
    ]
    if over:
        drawings.append(
            Drawing(
                charts.intervals(
                    over,
                    "ratio of mean BE throughputs, workloads and seeds where both converge",
                    "BE throughput of ours over the papers' rivals",
                    at=1.0,
                ),
                f"{len(over)} comparisons of {counted(len(single), 'set')}",
                "Right of the dashed line: more than the rival. Red tick: published (OSML+ paper, Fig. 9).",
            )
        )
    section.blocks.append(Figures(drawings))
    return [section]


# ---------------------------------------------------------------- churn


def _churn(facts: Facts, groups: Sequence[Group]) -> list[Section]:
    sets = [s for s in facts["sets"] if not s["drawn"]]
    if not sets:
        return []
    section = Section("churn", "When services come, leave and change", "Churn")
    section.blocks.append(
        Text(
            "Mean over the workloads of a set, sum over their LC services. "
            + (
                "Bars: 95 % intervals over seeds, Student's t."
                if any(s["seeds"] > 1 for s in sets)
                else "No intervals: one seed gives none."
            )
        )
    )
    drawings = [
        Drawing(
            charts.intervals(
                {name_of(s): _bars(s, "qos_violation_s") for s in sets},
                "QoS violation, s a run",
                "QoS violation by policy and platform",
            ),
            f"{_usable(sets, 'qos_violation_s')} with a known latency",
            "Seconds in which the p99 of the last second is above its target.",
        )
    ]
    if any(p["self_violation_s"] for s in sets for p in s["policies"]):
        drawings.append(
            Drawing(
                charts.intervals(
                    {name_of(s): _bars(s, "self_violation_s") for s in sets},
                    "QoS violation of its own doing, s a run",
                    "What the policy's own actions broke",
                ),
                f"{_usable(sets, 'self_violation_s')} that were measured so",
                "From where a plan took a service across its cliff until it meets its target again.",
            )
        )
    else:
        section.blocks.append(
            Text("Violations caused by a policy's own actions: not measured (no column self_violation_s).", "note")
        )
    section.blocks.append(Figures(drawings))
    drawn = 0
    for g in groups:
        if g.drawn or g.rows["workload"].n_unique() > _FEW:
            continue
        for workload in g.rows["workload"].unique().sort():
            out = Path(g.rows.filter(pl.col("workload") == workload)["out"][0])
            drawn += _one_workload(section, g, workload, out)
    if not drawn:
        section.blocks.append(
            Callout(
                "No time lines among these folders: they are drawn from timelines.parquet (surefootd eval --timelines first)."
            )
        )
    return [section]


def _one_workload(section: Section, group: Group, workload: str, out: Path) -> int:
    frame = eval_rows.one_line(out, workload)
    if frame is None:
        return 0
    lines = {p: frame.filter(pl.col("policy") == p) for p in group.policies()}
    lines = {p: mine for p, mine in lines.items() if len(mine)}
    # rows of a folder may be of several platforms, and its time lines of another than this one
    if not lines:
        return 0
    runs = [eval_rows.time_line(mine, workload, p) for p, mine in lines.items()]
    span = eval_rows.latency_span(runs)
    section.blocks.append(Heading(f"{workload} on {group.platform}"))
    seeds = len(group.seeds())
    drawn = [
        Drawing(charts.time_line(r, span), f"{r.policy}: one run of {seeds}, {eval_rows.readings(lines[r.policy])}") for r in runs
    ]
    section.blocks.append(Figures(drawn, least_px=charts.TIME_LINE_PX))
    section.blocks.append(Text(eval_rows.caption(runs[0]), "note"))
    service = shown_service(frame)
    if service is not None:
        found = [trace_of(mine, p, service) for p, mine in lines.items()]
        section.blocks += _way(workload, service, [t for t in found if t.steps])
    return 1


def _way(workload: str, service: str, found: Sequence[charts.Trace]) -> list[Any]:
    """The figure of what one service held, and in words what stayed as it was."""
    moved, still = [t for t in found if len(t.steps) > 1], [t for t in found if len(t.steps) == 1]
    blocks: list[Any] = []
    if moved:
        held = f"what {service} held from {moved[0].steps[0][0]:.0f} s on"
        caption = (
            f"{held[0].upper()}{held[1:]}: a mark each allocation, filled where its QoS was met on half of the visits or more, "
            "with the number of visits where there were several. Arrows and marks get darker with time; beside some stands how "
            "many changes had been made. Scales are each policy's own, and gaps without a visit are shortened."
        )
        # a figure each: side by side where there is room, below each other on a phone
        drawn = []
        for trace in moved:
            good = sum(trace.met)
            n = f"{trace.policy}: one run, {counted(len(trace.steps) - 1, 'change')}, QoS met at {good} of {len(trace.steps)}"
            drawn.append(Drawing(charts.traces([trace], f"{workload}: {held}, {trace.policy}"), n))
        blocks += [Figures(drawn, least_px=charts.TIME_LINE_PX), Text(caption, "note")]
    if still:
        held = ", ".join(f"{t.policy} ({counted(t.steps[0][1], 'core')}, {counted(t.steps[0][2], 'way')})" for t in still)
        blocks.append(Text(f"No change of what {service} held after the last arrival: {held}.", "note"))
    return blocks


def shown_service(frame: pl.DataFrame) -> str | None:
    """The service whose way is drawn: one whose load changes, else one there at the start; of several, the most above target."""
    lc = frame.filter((pl.col("kind") == "lc") & pl.col("load").is_not_null())
    if lc.is_empty():
        return None
    first = lc["t_ms"].min()
    by = lc.group_by("service").agg(
        pl.col("t_ms").min().alias("from_ms"),
        pl.col("load").n_unique().alias("levels"),
        (pl.col("p99_ms") > pl.col("qos_target_ms")).sum().alias("above"),
    )
    by = by.with_columns((pl.col("from_ms") == first).alias("there"), (pl.col("levels") > 1).alias("changes"))
    return str(by.sort(["changes", "there", "above", "service"], descending=[True, True, True, False])["service"][0])


def trace_of(frame: pl.DataFrame, policy: str, service: str) -> charts.Trace:
    """The allocations of one service from the last arrival of an LC service on (from the start where all came together)."""
    lc = frame.filter((pl.col("kind") == "lc") & pl.col("load").is_not_null())
    from_ms = lc.group_by("service").agg(pl.col("t_ms").min())["t_ms"].max()
    mine = frame.filter((pl.col("service") == service) & (pl.col("t_ms") >= from_ms)).sort("t_ms")
    held = pl.struct("cores", "ways")
    mine = mine.with_columns((held != held.shift()).fill_null(False).cum_sum().alias("step"))
    steps = (
        mine.group_by("step", maintain_order=True)
        .agg(
            pl.col("t_ms").first(),
            pl.col("cores").first(),
            pl.col("ways").first(),
            (pl.col("p99_ms") <= pl.col("qos_target_ms")).mean().alias("met"),
        )
        .filter(pl.col("cores").is_not_null() & pl.col("ways").is_not_null())
    )
    at = [(row["t_ms"] / 1000, row["cores"], row["ways"]) for row in steps.iter_rows(named=True)]
    return charts.Trace(policy, service, at, [(m or 0.0) >= 0.5 for m in steps["met"]])


def _reading(facts: Facts) -> Section:
    section = Section("reading", "How to read this, and what it is made from", "Method")
    for text in (
        "Drawn sets: the workload is the unit. Its seeds are averaged, then workloads are resampled with replacement 10,000 "
        "times; the interval is the middle 95 % (percentile bootstrap, fixed seed). Ratios are of means, resampled in pairs. "
        "Scripts (churn): the seed is the unit, Student's t.",
        "Published convergence times are of workloads that all compared schedulers converge on; so are ours in the first "
        "table, run by run (workload and seed). The tables by set have all runs that converge, and beside that the mean with "
        "failures as 180 s, which no policy improves by failing.",
        "ORACLE partitions exclusively; a policy that shares can get beyond it (docs/oracle.md).",
    ):
        section.blocks.append(Text(text))
    said = (
        ("surefootd", "surefootd"),
        ("bundle", "bundle"),
        ("harm", "told untruths"),
        ("requests", "requests"),
        ("plant", "plant"),
    )
    rows = [
        [o["out"], f"{o['rows']:,}", ", ".join(o["platform"]), *(o[name] or "–" for name, _ in said)] for o in facts["made_from"]
    ]
    columns = [Column("folder"), Column("runs", True), Column("platform"), *(Column(title) for _, title in said)]
    section.blocks.append(Table(columns, rows))
    return section
