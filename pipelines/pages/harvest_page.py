"""The harvest report as a page: the facts of pipelines/pages/harvest_facts.py in tables, figures and words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipelines.pages import harvest_charts as charts
from pipelines.pages.eval_page import Step, figure, untold
from pipelines.pages.eval_stats import Estimate
from pipelines.pages.harvest_facts import NOT_RUN, OTHER_MOVER, Cell, buffer_of, find, in_order, scaled
from pipelines.pages.harvest_published import PUBLISHED, Published
from pipelines.pages.harvest_rows import BASE, MOVER, OWN_MOVERS, PRIMARIES, WORLDS
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

Facts = Mapping[str, Any]
# parts of the page that are drawn: what takes the time
DRAWN = ("figures of one VM", "figures of two VMs", "figures of safeguards and costs", "figures of moves")
_SMART, _OWN = "smartharvest", "wait-budget"
_LIMIT_PCT = 10.0
_RISE = "rise of P99, %"
# of the table of published numbers
_METRICS = {
    "cores_busy": "busy cores, mean",
    "peak_busy": "their peaks, mean",
    "p99_us": "P99",
    "mean_us": "mean time",
    "rise_pct": "rise of P99",
    "rise_us": "rise of P99",
    "cores_lent": "cores lent",
    "least_buffer": "smallest run that keeps P99",
    "hdinsight": "HDInsight's speed-up",
    "terasort": "TeraSort's speed-up",
}
_TITLES = {
    "t1": "Table 1",
    "f4": "Fig. 4",
    "f5": "Fig. 5",
    "f6": "Fig. 6",
    "t2": "Table 2",
    "f7": "Fig. 7",
    "f8": "Fig. 8",
    "f9": "Fig. 9",
    "f10": "Fig. 10",
    "f11": "Fig. 11",
    "f13": "Fig. 13",
    "f14": "Fig. 14",
    "f15": "Fig. 15",
}


def build(facts: Facts, cells: Sequence[Cell], step: Step = untold) -> Page:
    """The page of one or several folders; `step` is told each of DRAWN."""
    seeds = sorted({f["seeds"] for f in facts["made_from"]})
    page = Page(
        title="Surefoot: cores lent for milliseconds",
        lede=(
            "Idle cores of latency-critical virtual machines (VMs), lent to a batch job and taken back within milliseconds: how "
            "many cores each policy lends, whether the VMs' P99 latency is kept, and what the SmartHarvest paper says of both."
        ),
        facts=[
            ("runs", f"{sum(len(c.lent_by_seed) for c in cells):,}"),
            ("cases", f"{len({c.key for c in cells}):,}"),
            ("policies", ", ".join(in_order(_folded(c.policy for c in cells if c.experiment != "f14"))) or "–"),
            ("seeds of each run", " or ".join(map(str, seeds))),
        ],
        footer="Made by `surefoot harvest-report`; harvest-report.json has the same numbers; docs/harvest-report.md says how.",
    )
    page.tiles = _tiles(facts)
    page.sections = [_short(facts), _published(facts)]
    parts: Sequence[Callable[[Sequence[Cell]], Section | None]] = (_one_vm, _two_vms, _safeguards, _moves)
    for name, drawn in zip(DRAWN, parts, strict=True):
        with step(name):
            section = drawn(cells)
            page.sections += [] if section is None else [section]
    page.sections += [*_others(cells), _every(cells), _reading(facts)]
    return page


def _folded(policies: Iterable[str]) -> list[str]:
    """Buffers are many: one name for all."""
    return list(dict.fromkeys("fixed buffers" if buffer_of(p) is not None else p for p in policies))


# ---------------------------------------------------------------- words


def est(e: Estimate | Mapping[str, Any] | None, unit: str = "", scale: float = 1.0) -> Any:
    """A table's cell: a figure and its interval; a dash for what is not known."""
    if e is None:
        return "–"
    return figure(e.as_json() if isinstance(e, Estimate) else e, unit, scale)


def rise(e: Estimate | Mapping[str, Any] | None) -> Any:
    """A share as a rise in per cent, with its sign."""
    if e is None:
        return "–"
    d: Mapping[str, Any] = e.as_json() if isinstance(e, Estimate) else e
    return estimate(_pct(d["value"]), "" if d["low"] is None else f"[{_pct(d['low'])}, {_pct(d['high'])}]")


def cores(e: Estimate | Mapping[str, Any]) -> Any:
    """Cores, to the same digit wherever they stand."""
    d: Mapping[str, Any] = e.as_json() if isinstance(e, Estimate) else e
    return estimate(f"{d['value']:.2f}", "" if d["low"] is None else f"[{d['low']:.2f}, {d['high']:.2f}]")


def _pct(share: float) -> str:
    said = f"{100 * share:+,.1f}"
    return "0" if said in ("+0.0", "-0.0") else said


def _kept(c: Cell) -> Any:
    if c.kept is None:
        return "–"
    return badge(c.kept, "yes" if c.kept else "no", "sure" if c.sure else "")


def _n(cells: Sequence[Cell]) -> str:
    """Of how much a figure is."""
    seeds = sorted({c.seeds for c in cells})
    names = len({c.name for c in cells})
    what = counted(names, "setting") if any(c.variant for c in cells) else counted(names, "policy", "policies")
    return f"{what} × {' or '.join(map(str, seeds))} seed{'' if seeds == [1] else 's'}"


# ---------------------------------------------------------------- in short


def _tiles(facts: Facts) -> list[Tile]:
    tiles = []
    by = {p["policy"]: p for p in facts["policies"]}
    shown = [p for p in (_SMART, _OWN, "prev-peak-10", "prev-peak") if p in by]
    if shown:
        rows = [[p, f"{by[p]['kept']} of {by[p]['cases']}", _pct(by[p]["worst"]["value"]), _cores(by[p]["lent"])] for p in shown]
        fails = any(by[p]["kept"] < by[p]["cases"] for p in shown if p in (_SMART, _OWN))
        heads = ["policy", "P99 kept in", "worst, %", "cores"]
        more = "Cases whose P99 rises by a tenth at most, the worst rise, cores lent in sum."
        tiles.append(Tile("all cases", "", more, "missing" if fails else "", rows, heads))
    for g in facts["groups"][:2]:
        sums = {s["policy"]: s for s in g["sums"]}
        rows = [[p, f"{sums[p]['kept']} of {sums[p]['cases']}", _cores(sums[p]["lent"])] for p in (_SMART, _OWN) if p in sums]
        best = g["best"]
        rows += [[best["policy"], f"{best['kept']} of {best['cases']}", _cores(best["lent"])]] if best else []
        more = (
            "The buffer is the one that lends most of those that keep P99 in every case."
            if best
            else "No fixed buffer that was run keeps P99 in every case."
        )
        if rows:
            tiles.append(
                Tile(f"beside the best fixed buffer: {g['name']}", "", more, "", rows, ["policy", "P99 kept in", "cores"])
            )
    said = [*facts["published"], *facts["claims"]]
    judged = [p for p in said if p["holds"] is not None]
    if judged:
        holds = sum(p["holds"] for p in judged)
        more = "Bounds and comparisons that the paper states; measured figures stand beside ours in the table."
        tiles.append(
            Tile("the paper's statements", f"{holds} of {len(judged)} hold", more, "" if holds == len(judged) else "missing")
        )
    if not tiles:
        why = "They need runs of no-harvest in the same cases."
        tiles.append(Tile("rises of P99", "not known", why, "missing"))
    return tiles


def _cores(e: Mapping[str, Any]) -> str:
    return f"{e['value']:.1f}"


def _short(facts: Facts) -> Section:
    section = Section("short", "In short", "In short")
    if not facts["policies"]:
        said = "No case was run with and without harvesting, so no rise of P99 is known."
        section.blocks.append(Callout(f"{said} The experiments that are there stand below."))
    section.blocks += [Text(_verdict(p)) for p in facts["policies"] if p["policy"] in (_SMART, _OWN)]
    section.blocks += [Text(_beside_fixed(g)) for g in facts["groups"]]
    if facts["groups"]:
        section.blocks += [Heading("Against one fixed buffer for all cases"), _groups(facts["groups"])]
    if facts["policies"]:
        section.blocks += [Heading("All cases"), _sums(facts["policies"])]
        said = "A case is one setting of VMs and loads. Its P99 is kept where the mean rise of every VM and load is 10 % at most."
        more = "“Sure”: the 95 % intervals say the same. Policies with more cases have larger sums."
        same = "A case that several experiments have in common counts once, under the first of them."
        section.blocks.append(Text(f"{said} {same} {more}", "note"))
    if facts["not_run"]:
        section.blocks.append(Text(f"Not run, so not on this page: {', '.join(_TITLES[e] for e in facts['not_run'])}."))
    return section


def _verdict(p: Facts) -> str:
    kept = f"keeps P99 in {'all' if p['kept'] == p['cases'] else p['kept']} of {counted(p['cases'], 'case')}"
    worst = f"the worst rise is {_pct(p['worst']['value'])} % ({p['worst_case']})"
    less = "" if p["kept"] == p["cases"] else f", {_cores(p['lent_kept'])} of them where P99 is kept"
    return f"{p['policy']} {kept}; {worst}. It lends {_cores(p['lent'])} cores in sum{less}."


def _beside_fixed(g: Facts) -> str:
    """One sentence a group of cases."""
    sums = {s["policy"]: s for s in g["sums"]}
    ours = [f"{p} lends {_cores(sums[p]['lent'])}{_but(sums[p])}" for p in (_SMART, _OWN) if p in sums]
    more = f"; {', '.join(ours)}" if ours else ""
    head = f"{g['name'][0].upper()}{g['name'][1:]}: "
    cases = "its case" if len(g["cases"]) == 1 else f"all {len(g['cases'])} cases"
    best = g["best"]
    if best is None:
        return f"{head}no fixed buffer of {_sizes(g['buffers'])} keeps P99 in {cases}{more}."
    most = f"that of {buffer_of(best['policy'])} lends most, {_cores(best['lent'])} cores in sum"
    return f"{head}of the fixed buffers that keep P99 in {cases}, {most}{more}."


def _sizes(buffers: Sequence[int]) -> str:
    """Those that were run: a range only where none is left out."""
    low, high = min(buffers), max(buffers)
    if low < high == low + len(buffers) - 1:
        return f"{low} to {high} cores"
    return f"{', '.join(map(str, sorted(buffers)))} core{'' if high == 1 else 's'}"


def _but(s: Facts) -> str:
    return "" if s["kept"] == s["cases"] else f" and keeps P99 in {s['kept']}"


def _groups(groups: Sequence[Facts]) -> Table:
    heads = [Column("cases"), Column("policy"), Column("P99 kept in"), Column("worst rise, %", True)]
    heads += [Column("cores lent in sum", True), Column("share of the buffer's", True)]
    rows = []
    for g in groups:
        best = g["best"]
        if best is None:
            rows.append([g["name"], "fixed buffers", badge(False, "none that was run keeps all"), "–", "–", "–"])
        for s in [*([best] if best else []), *g["sums"]]:
            share = f"{100 * s['lent']['value'] / best['lent']['value']:.0f} %" if best and best["lent"]["value"] > 0 else "–"
            cells = [g["name"], s["policy"], _kept_in(s), rise(s["worst"]), cores(s["lent"]), share]
            rows.append(cells)
    return Table(heads, rows)


def _kept_in(s: Facts) -> Any:
    more = f"{s['sure']} sure" if s["kept"] else ""
    return badge(s["kept"] == s["cases"], f"{s['kept']} of {s['cases']}", more)


def _sums(policies: Sequence[Facts]) -> Table:
    heads = [Column("policy"), Column("P99 kept in"), Column("worst rise, %", True), Column("in")]
    heads += [Column("lent in sum, cores", True), Column("lent where P99 is kept, cores", True)]
    return Table(
        heads,
        [
            [p["policy"], _kept_in(p), rise(p["worst"]), p["worst_case"], cores(p["lent"]), cores(p["lent_kept"])]
            for p in policies
            if p["policy"] != BASE
        ],
    )


# ---------------------------------------------------------------- published numbers


def _published(facts: Facts) -> Section:
    section = Section("published", "Next to the published numbers", "Published")
    section.blocks.append(
        Text(
            "Every number that the paper prints in its text and tables. Its figures have no printed numbers: what its text says "
            "of them stands in the second table. The paper measured a server, and these VMs are virtual. “Fitted”: a "
            "parameter of theirs was set with this number in view (docs/virtual-server-validation.md), so ours is no prediction."
        )
    )
    there = [p for p in facts["published"] if p["why"] not in (NOT_RUN, OTHER_MOVER)]
    if there:
        heads = [Column("from"), Column("case"), Column("policy"), Column("figure")]
        heads += [Column("published", True), Column("ours", True), Column("ours / published"), Column("fitted")]
        section.blocks.append(Table(heads, [_beside(p) for p in there]))
    missing = [p for p in facts["published"] if p["why"] == NOT_RUN]
    if missing:
        by = ", ".join(dict.fromkeys(_TITLES[p["experiment"]] for p in missing))
        section.blocks.append(Text(f"{counted(len(missing), 'printed number')} without a run of ours ({by}).", "note"))
    other = {*facts["other_mover"], *(p["experiment"] for p in facts["published"] if p["why"] == OTHER_MOVER)}
    if other:
        by = ", ".join(title for e, title in _TITLES.items() if e in other)
        said = f"The paper's numbers are with {MOVER}: what was run in another way alone is not beside them ({by})."
        section.blocks.append(Text(said, "note"))
    if facts["claims"]:
        heads = [Column("figure"), Column("the paper says"), Column("ours"), Column("so it is here")]
        rows = [[_TITLES[c["experiment"]], c["says"], c["ours"], badge(c["holds"], _yes(c["holds"]))] for c in facts["claims"]]
        section.blocks.append(Table(heads, rows))
    return section


def _yes(holds: bool | None) -> str:
    return "–" if holds is None else "yes" if holds else "no"


def _beside(p: Facts) -> list[Any]:
    policy = f"{p['policy']}, {p['variant']}" if p["variant"] else p["policy"]
    case = p["case"] if p["stage"] is None else f"{p['case']}, {_T2_LOADS[p['stage']]} QPS"
    ours = p["why"] if p["ours"] is None else _ours(p["ours"], p["metric"], p["unit"])
    relation = {"is": "", "from": ""}.get(p["relation"], f"{p['relation']} ")
    value = f"{relation}{p['value']:,g}" + (f" to {p['high']:g}" if p["high"] is not None else "")
    verdict: Any = "–" if p["ratio"] is None else f"{p['ratio']:.2f}"
    if p["holds"] is not None:
        verdict = badge(p["holds"], "holds" if p["holds"] else "does not hold", "sure" if p["sure"] else "")
    place = f"{_TITLES[p['experiment']]}, {p['place']}" if not p["place"].startswith("Table") else p["place"]
    return [place, case, policy, _METRICS[p["metric"]], f"{value} {p['unit']}", ours, verdict, "yes" if p["fitted"] else ""]


def _ours(e: Mapping[str, Any], metric: str, unit: str) -> Any:
    """To as many digits as mean something."""
    digits = {"rise_pct": 1, "rise_us": 1, "p99_us": 0, "mean_us": 0, "least_buffer": 0}.get(metric, 2)
    value, *ends = (None if x is None else f"{round(x, digits) + 0.0:,.{digits}f}" for x in (e["value"], e["low"], e["high"]))
    return estimate(f"{value} {unit}", "" if None in ends else f"[{', '.join(map(str, ends))}]")


_T2_LOADS = ("80,000", "20,000", "160,000")


# ---------------------------------------------------------------- figures


def _plane(cells: Sequence[Cell], title: str, vm: int | None = None) -> Drawing:
    """Rise of P99 over cores lent, a mark a policy, buffers as a curve. vm: of one VM; None: the most of all."""
    drawn = [c for c in cells if _rise_of(c, vm) is not None and c.policy != BASE]
    return Drawing(charts.plane(_lines(drawn, vm), title, _RISE, _LIMIT_PCT), _n(drawn), _PLANE)


_PLANE = (
    "Down and to the right is better. Red: 10 %, which is allowed. Numbers: cores of a fixed buffer. Bars: 95 % "
    "intervals over seeds."
)


def _lines(cells: Sequence[Cell], vm: int | None = None, mover: str = "", *, hollow: bool = False) -> list[charts.Line]:
    more = f", {mover}" if mover else ""

    def point(c: Cell) -> charts.Point:
        found = _rise_of(c, vm) or Estimate(0.0, None, None, 0)
        size = buffer_of(c.policy)
        return charts.Point(c.cores_lent, scaled(found, 100), "" if size is None else str(size))

    fixed = sorted((c for c in cells if buffer_of(c.policy) is not None), key=lambda c: -(buffer_of(c.policy) or 0))
    lines = []
    if fixed:
        name = "fixed buffers"
        lines.append(charts.Line(f"{name}{more}", charts.look_of(name), [point(c) for c in fixed], joined=True, hollow=hollow))
    rest = {c.policy: c for c in cells if buffer_of(c.policy) is None}
    return lines + [charts.Line(f"{p}{more}", charts.look_of(p), [point(rest[p])], hollow=hollow) for p in in_order(rest)]


def _rise_of(c: Cell, vm: int | None) -> Estimate | None:
    if vm is None:
        return c.worst if c.kept is not None else None
    rises = [p.rise for p in c.places if p.vm == vm]
    return max((r for r in rises if r is not None), key=lambda r: r.value, default=None)


def _cells(cells: Sequence[Cell], folded: str = "") -> Table:
    """Every policy of some cases."""
    heads = [Column("case"), Column("policy"), Column("P99, us", True), Column("rise, %", True), Column("kept")]
    heads += [Column("lent, cores", True), Column("exhausted, 1/s", True), Column("stops a run", True)]
    rows = []
    for c in cells:
        for k, p in enumerate(c.places):
            where = _where(c, p.stage, p.vm)
            group = [_kept(c), cores(c.cores_lent), est(c.exhausted_per_s), est(c.stops)] if k == 0 else ["", "", "", ""]
            rows.append([where, c.name, est(p.p99_us), rise(p.rise), *group])
    return Table(heads, rows, dense=True, folded=folded)


def _where(c: Cell, stage: int, vm: int) -> str:
    place = next(p for p in c.places if (p.stage, p.vm) == (stage, vm))
    more = []
    if len({p.stage for p in c.places}) > 1:
        more.append(f"{place.load_rps:,g} QPS")
    if c.vms > 1:
        more.append(f"VM {vm + 1} ({place.workload})")
    if c.mover != MOVER and c.mover not in c.case:
        more.append(c.mover)
    return ", ".join([c.case, *more])


def _where_all(key: tuple[str, str, str]) -> str:
    _, case, mover = key
    return case if mover == MOVER else f"{case}, {mover}"


def _cases(cells: Sequence[Cell]) -> dict[tuple[str, str, str], list[Cell]]:
    by: dict[tuple[str, str, str], list[Cell]] = {}
    for c in cells:
        by.setdefault(c.key, []).append(c)
    return by


def _known(cells: Sequence[Cell]) -> list[Cell]:
    """Those whose rise is known, of cases in which there is something beside no harvesting to draw."""
    known = [c for c in cells if c.kept is not None]
    there = {c.key for c in known if c.policy != BASE}
    return [c for c in known if c.key in there]


def _each_mover(cells: Sequence[Cell], blocks: Callable[[Sequence[Cell]], Sequence[Any]]) -> list[Any]:
    """Figures of one way to move cores each; headings name a way that is not the paper's."""
    found: list[Any] = []
    for mover in sorted({c.mover for c in cells}, key=lambda m: (m != MOVER, m)):
        of = blocks([c for c in cells if c.mover == mover and c.experiment not in OWN_MOVERS])
        named = mover != MOVER
        found += [Heading(f"{b.text}, {mover}") if named and isinstance(b, Heading) else b for b in of]
    return found


def _one_vm(cells: Sequence[Cell]) -> Section | None:
    section = Section("one-vm", "One VM", "One VM")
    for blocks in (_t1, _f4, _f5, _f6, _t2, _f7):
        section.blocks += _each_mover(cells, blocks)
    return section if section.blocks else None


def _t1(cells: Sequence[Cell]) -> list[Any]:
    of = find(cells, "t1", policy=BASE)
    if not of:
        return []
    heads = [Column("service"), Column("requests, 1/s", True), Column("busy cores, mean", True)]
    heads += [Column("mean of their peaks per 25 ms", True), Column("P99, us", True)]
    rows = [[c.case, f"{c.places[0].load_rps:,g}", cores(c.cores_busy), cores(c.peak_busy), est(c.places[0].p99_us)] for c in of]
    return [
        Heading("Table 1: how busy the VMs are"),
        Text("Few cores are busy in the mean, and many at the peak of each 25 ms: what is lent must come back at once."),
        Table(heads, rows),
    ]


_WINDOW = re.compile(r"window \d+(\.\d+)? ms")


def _f4(cells: Sequence[Cell]) -> list[Any]:
    of = find(cells, "f4")
    if not of:
        return []
    base = [c for c in of if c.policy == BASE]
    windows = sorted((c for c in of if _WINDOW.fullmatch(c.variant)), key=lambda c: float(c.variant.split()[1]))
    points = [charts.Point(c.cores_lent, c.places[0].p99_us, c.variant.removeprefix("window ")) for c in windows]
    if not points or not base:
        return []
    alone = base[0].places[0].p99_us.value
    lines = [charts.Line(_SMART, charts.look_of(_SMART), points, joined=True)]
    drawn = charts.plane(lines, "memcached: length of the learning window", "P99, us", 1.1 * alone, level=alone)
    said = "The paper chooses windows of 25 ms on memcached at 40,000 requests a second, and uses them for all services."
    caption = "Red: 10 % above no harvesting. Bars: 95 % intervals over seeds."
    return [Heading("Fig. 4: the learning window"), Text(said), Figures([Drawing(drawn, _n(of), caption)])]


def _f5(cells: Sequence[Cell]) -> list[Any]:
    by = _cases(_known(find(cells, "f5")))
    if not by:
        return []
    said = (
        "SmartHarvest is to keep every P99 within 10 % with one setting. In the paper each fixed buffer keeps some services' P99 "
        "and not others', or lends little."
    )
    rows = []
    for of in by.values():
        best = _best_buffer(of)
        names = [p for p in (_SMART, _OWN, "prev-peak", "prev-peak-10") if any(c.policy == p for c in of)]
        for c in ([best] if best else []) + [c for p in names for c in of if c.policy == p and not c.variant]:
            hint = f"{c.policy} (best buffer here)" if c is best else c.policy
            rows.append([c.case, hint, rise(c.worst), _kept(c), cores(c.cores_lent)])
    heads = [Column("service"), Column("policy"), Column("rise of P99, %", True), Column("kept"), Column("lent, cores", True)]
    figures = [_plane(of, key[1]) for key, of in by.items()]
    return [Heading("Fig. 5: one VM beside a job that uses every core"), Text(said), Figures(figures), Table(heads, rows)]


def _best_buffer(cells: Sequence[Cell]) -> Cell | None:
    """The one that lends most of those that keep P99 in this case: known only afterwards."""
    kept = [c for c in cells if buffer_of(c.policy) is not None and c.kept]
    return max(kept, key=lambda c: c.cores_lent.value, default=None)


def _f6(cells: Sequence[Cell]) -> list[Any]:
    of = [c for c in find(cells, "f6") if c.policy != BASE]
    if not of:
        return []
    printed = {_SMART: (2.0, 3.0)} if of[0].mover == MOVER else {}
    groups = {
        job: [
            charts.Bar(c.policy, charts.look_of(c.policy).colour, [getattr(c, of_job), _as_pct(c)], [printed.get(c.policy), None])
            for c in of
        ]
        for job, of_job in (("HDInsight", "hdinsight"), ("TeraSort", "terasort"))
    }
    axes = [charts.Axis("speed-up over one core"), charts.Axis(_RISE, _LIMIT_PCT, form=_signed)]
    drawn = charts.bars(groups, axes, "IndexServe beside batch jobs")
    said = "Jobs beside IndexServe are to run 2 to 3 times as fast as on their own core, with P99 kept."
    red = "Red: printed in the paper, and the 10 % that are allowed." if printed else "Red: the 10 % that are allowed."
    caption = f"{red} Lines: 95 % intervals over seeds."
    return [Heading("Fig. 6: what jobs gain"), Text(said), Figures([Drawing(drawn, _n(of), caption)])]


def _as_pct(c: Cell) -> Estimate | None:
    return None if c.kept is None or c.worst is None else scaled(c.worst, 100)


def _signed(x: float) -> str:
    return f"{x:+.1f}" if abs(x) >= 0.05 else "0"


def _t2(cells: Sequence[Cell]) -> list[Any]:
    of = find(cells, "t2")
    if not of:
        return []
    printed = {(p.policy, p.metric, p.stage): p.value for p in _printed("t2") if of[0].mover == MOVER}
    stages = of[0].places
    heads = [Column("policy")]
    heads += [Column(f"{p.load_rps:,g} QPS, us", True) for p in stages] + [Column("lent, cores", True), Column("kept")]
    rows = []
    for c in sorted(of, key=lambda c: in_order(x.policy for x in of).index(c.policy)):
        metric = "p99_us" if c.policy == BASE else "rise_us"
        values: list[Any] = [c.policy]
        at = {p.stage: p for p in c.places}
        for stage in (p.stage for p in stages):
            e = getattr(at[stage], metric) if stage in at else None
            values.append(_with_printed(e, printed.get((c.policy, metric, stage)), sign=metric == "rise_us"))
        rows.append([*values, _with_printed(c.cores_lent, printed.get((c.policy, "cores_lent", None))), _kept(c)])
    stroke = "; behind the stroke: the paper's number, where it prints one" if printed else ""
    said = (
        "One VM of memcached, a minute at each load. The first row is P99, the others how far P99 is above it. In brackets: the "
        f"interval{stroke}."
    )
    return [Heading("Table 2: a load that changes"), Text(said), Table(heads, rows)]


def _printed(experiment: str) -> list[Published]:
    return [p for p in PUBLISHED if p.experiment == experiment]


def _with_printed(e: Estimate | None, printed: float | None, *, sign: bool = False) -> Any:
    if e is None:
        return "–"
    plus = "+" if sign else ""

    def said(x: float) -> str:
        return "0" if sign and abs(x) < 0.5 else f"{x:+,.0f}" if sign else f"{x:.2f}" if x < 10 else number(x)

    interval = "" if e.low is None or e.high is None else f"[{said(e.low)}, {said(e.high)}]"
    return estimate(said(e.value) + ("" if printed is None else f" / {plus}{printed:,g}"), interval)


def _f7(cells: Sequence[Cell]) -> list[Any]:
    of = _known(find(cells, "f7"))
    if not of:
        return []
    said = (
        "A load that jumps between two levels. The peak of the last 250 ms comes late at every jump; a learner is to lend more "
        "at less P99. The paper prints no period: here a jump comes every half second."
    )
    return [Heading("Fig. 7: a square wave"), Text(said), Figures([_plane(of, "memcached, 20,000 and 120,000 QPS in turn")])]


def _two_vms(cells: Sequence[Cell]) -> Section | None:
    blocks = _each_mover(cells, _pairs)
    return Section("two-vms", "Two VMs in one group", "Two VMs", blocks) if blocks else None


def _pairs(cells: Sequence[Cell]) -> list[Any]:
    blocks: list[Any] = []
    for name, said in (
        ("f8", "Two services of one kind. In the paper a fixed buffer keeps P99 only from 17 of the 20 cores on."),
        ("f9", "Two kinds of services. In the paper no fixed buffer suits both, and SmartHarvest keeps P99 of both."),
    ):
        for key, of in _cases(_known(find(cells, name))).items():
            vms = sorted({(p.vm, p.workload) for c in of for p in c.places})
            figures = [_plane(of, f"VM {vm + 1} ({workload})", vm) for vm, workload in vms]
            blocks += [Heading(f"{_TITLES[name]}: {key[1]}"), Text(said), Figures(figures)]
            blocks.append(_cells(of, f"All {counted(len(of), 'policy', 'policies')} of {_TITLES[name]}"))
    return blocks


_VARIANTS = ("#0072b2", "#e69f00", "#009e73")


def _variants(cells: Sequence[Cell], title: str) -> Drawing | None:
    """Bars of the settings that an experiment compares: rise and cores."""
    of = [c for c in _known(cells) if c.variant]
    if not of:
        return None
    names = list(dict.fromkeys(c.variant for c in of))
    groups: dict[str, list[charts.Bar]] = {}
    for c in of:
        colour = _VARIANTS[names.index(c.variant) % len(_VARIANTS)]
        groups.setdefault(c.case, []).append(charts.Bar(c.variant, colour, [_as_pct(c), c.cores_lent]))
    axes = [charts.Axis(_RISE, _LIMIT_PCT, form=_signed), charts.Axis("cores lent, mean")]
    caption = "Red: the 10 % that are allowed. Lines: 95 % intervals over seeds. Of several VMs, the one that rises most."
    return Drawing(charts.bars(groups, axes, title), f"{counted(len(groups), 'case')}, {_n(of)}", caption)


def _safeguards(cells: Sequence[Cell]) -> Section | None:
    blocks = _each_mover(cells, _settings)
    return Section("safeguards", "Safeguards and cost functions", "Safeguards", blocks) if blocks else None


def _settings(cells: Sequence[Cell]) -> list[Any]:
    blocks: list[Any] = []
    for name, title, said in (
        (
            "f10",
            "the short-term safeguard",
            "When all cores at hand are busy, the conservative safeguard gives one core more than the latest peak back, the "
            "aggressive one all. In the paper P99 is similar, and conservative lends more.",
        ),
        (
            "f11",
            "the long-term safeguard",
            "Long waits for a core stop all lending for ten seconds. In the paper P99 of two memcached "
            "rises by more than 50 % without it.",
        ),
        (
            "f13",
            "cost functions of the learner",
            "What a wrong prediction costs the learner. In the paper symmetric costs have a worse P99, and hinged ones lend less "
            "than skewed ones.",
        ),
    ):
        drawn = _variants(find(cells, name), f"{_TITLES[name]}: {title}")
        if drawn is not None:
            blocks += [Heading(f"{_TITLES[name]}: {title}"), Text(said), Figures([drawn], least_px=460)]
    return blocks


def _moves(cells: Sequence[Cell]) -> Section | None:
    section = Section("moves", "How fast cores move", "Moves")
    section.blocks += _f14(cells) + _f15(cells)
    return section if section.blocks else None


def _f14(cells: Sequence[Cell]) -> list[Any]:
    of = find(cells, "f14")
    if not of:
        return []
    printed = {(p.case, p.policy, p.metric): (p.value, p.value) for p in _printed("f14")}
    groups: dict[str, list[charts.Bar]] = {}
    for c in of:
        place = c.places[0]
        marks = [printed.get((c.case, c.policy, metric)) for metric in ("mean_us", "p99_us")]
        groups.setdefault(c.case, []).append(charts.Bar(c.policy, "#0072b2", [place.mean_us, place.p99_us], marks))
    axes = [charts.Axis("mean, us (log)", log=True, form=_us), charts.Axis("P99, us (log)", log=True, form=_us)]
    drawn = charts.bars(groups, axes, "Time to move a core")
    said = (
        "Time from the call until a core works for the other side, to the job and back. The virtual VMs are given these times, "
        "so this is a check and no result."
    )
    caption = "Red: bounds that the paper prints. Lines: 95 % intervals over seeds."
    n = f"{counted(len(of), 'kind of move', 'kinds of moves')} × {counted(of[0].seeds, 'seed')}, 500 moves a run"
    return [Heading("Fig. 14: time to move a core"), Text(said), Figures([Drawing(drawn, n, caption)], least_px=460)]


def _us(x: float) -> str:
    return f"{x:,.0f}"


def _f15(cells: Sequence[Cell]) -> list[Any]:
    of = _known(find(cells, "f15"))
    if not of:
        return []
    loads = sorted({c.places[0].load_rps for c in of})
    figures = []
    for load in loads:
        mine = [c for c in of if c.places[0].load_rps == load and c.policy != BASE]
        lines = []
        for mover in dict.fromkeys(c.mover for c in mine):
            lines += _lines([c for c in mine if c.mover == mover], mover=mover, hollow=mover != "cpugroups")
        if lines:
            drawn = charts.plane(lines, f"IndexServe, {load:,g} QPS", _RISE, _LIMIT_PCT)
            figures.append(
                Drawing(
                    drawn,
                    f"{counted(len({c.mover for c in mine}), 'way')} to move cores, {_n(mine)}",
                    f"{_PLANE} Hollow, dashed: interrupts.",
                )
            )
    said = (
        "IndexServe at several loads. Cpugroups move a core within 5 to 10 ms, interrupts within about 100 us. In the paper "
        "interrupts lend more at less P99, and learning is still needed at medium and high load."
    )
    return [Heading("Fig. 15: cpugroups and interrupts"), Text(said), Figures(figures), _movers(of)]


def _movers(cells: Sequence[Cell]) -> Table:
    """Both ways to move cores, side by side."""
    heads = [Column("QPS", True), Column("policy")]
    movers = list(dict.fromkeys(c.mover for c in cells))
    heads += [Column(f"{what}, {m}", True) for m in movers for what in ("rise, %", "cores")]
    by = {(c.places[0].load_rps, c.policy, c.mover): c for c in cells}
    rows = []
    for load in sorted({k[0] for k in by}):
        for policy in in_order(k[1] for k in by if k[0] == load):
            if policy == BASE:
                continue
            found = [by.get((load, policy, m)) for m in movers]
            rows.append(
                [f"{load:,g}", policy, *(x for c in found for x in ((rise(c.worst), cores(c.cores_lent)) if c else ("–", "–")))]
            )
    return Table(heads, rows, dense=True)


# ---------------------------------------------------------------- the rest


def _others(cells: Sequence[Cell]) -> list[Section]:
    """Cases that the command line named: groups of VMs, and drawn workloads."""
    sections = []
    for name, title, short in ((PRIMARIES, "Groups of VMs", "Groups"), (WORLDS, "Drawn workloads", "Drawn")):
        of = find(cells, name)
        if not of:
            continue
        section = Section(name, title, short)
        by = _cases(_known(of))
        if name == PRIMARIES and by:
            section.blocks.append(Figures([_plane(case, _where_all(key)) for key, case in by.items()]))
        said = f"{counted(len(_cases(of)), 'case')}, {counted(len({c.policy for c in of}), 'policy', 'policies')}"
        section.blocks += [Text("Sums over these cases stand under “In short”."), _cells(of, f"Every case: {said}")]
        sections.append(section)
    return sections


def _every(cells: Sequence[Cell]) -> Section:
    section = Section("every", "Every case and policy", "Every case")
    for name in dict.fromkeys(c.experiment for c in cells):
        if name not in (PRIMARIES, WORLDS, "f14"):
            of = find(cells, name)
            section.blocks.append(_cells(of, f"{_TITLES.get(name, name)}: {counted(len(of), 'row of case and policy', 'rows')}"))
    if not section.blocks:
        section.blocks.append(Text("No case with a service was run."))
    return section


def _reading(facts: Facts) -> Section:
    section = Section("reading", "How to read this, and what it is made from", "Method")
    for text in (
        "A rise compares the P99 of each VM and load with that of no harvesting with the same seed; then seeds are averaged. "
        "Intervals are 95 % over seeds (Student's t). One seed has none.",
        "Cores lent are what the batch job used beside its own core, in the mean over a run. Sums add the means of the cases.",
        "The best fixed buffer is known only after all sizes were run: an operator would have to guess it.",
    ):
        section.blocks.append(Text(text))
    heads = [Column("folder"), Column("rows", True), Column("seeds", True), Column("experiments"), Column("surefootd")]
    heads += [Column("plant"), Column("settings"), Column("finished")]
    rows = []
    for f in facts["made_from"]:
        named = [*f["experiments"], *f["primaries"], *f["worlds"]]
        said = [f["surefootd"], f["plant"], f["settings"] or "as given", f"{f['finished_utc']} UTC"]
        rows.append([f["out"], f"{f['rows']:,}", str(f["seeds"]), ", ".join(named), *said])
    section.blocks.append(Table(heads, rows))
    return section
