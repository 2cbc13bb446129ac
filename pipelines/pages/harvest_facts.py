"""The numbers of the harvest report: each policy in each case, policies over all cases, and the published numbers beside ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipelines.pages.eval_stats import Estimate, over_seeds
from pipelines.pages.harvest_published import ALLOWED, PUBLISHED, Published
from pipelines.pages.harvest_rows import BASE, MOVER, OWN_MOVERS, PRIMARIES, WORLDS, Folder, Row

# of the paper, in its order
EXPERIMENTS = ("t1", "f4", "f5", "f6", "t2", "f7", "f8", "f9", "f10", "f11", "f13", "f14", "f15")
# why a published number has none of ours beside it
NOT_RUN, OTHER_MOVER = "not run", "run with another way to move cores alone"
NO_BASE = "no run without harvesting"
# rows have only the first of several loads
_MOVING_LOADS = ("f7",)
# a P99 below is that of no request
_LEAST_US = 1e-3
_BUFFER = re.compile(r"fixed-buffer-(\d+)")
_ORDER = (BASE, "fixed-buffer", "prev-peak", "prev-peak-10", "caladan", "smartharvest", "wait-budget")


def buffer_of(policy: str) -> int | None:
    """The cores that a fixed buffer keeps beside the busy ones; None of another policy."""
    found = _BUFFER.fullmatch(policy)
    return int(found[1]) if found else None


def in_order(policies: Iterable[str]) -> list[str]:
    """As every table and legend has them: buffers by size, the learner and our own last."""

    def rank(policy: str) -> tuple[int, int, str]:
        buffer = buffer_of(policy)
        name = policy if buffer is None else "fixed-buffer"
        return (_ORDER.index(name) if name in _ORDER else 4, buffer or 0, policy)

    return sorted(set(policies), key=rank)


@dataclass(frozen=True)
class Place:
    """One VM in one stage. rise: share by which P99 is above that of no harvesting with the same seed, rise_us the same in us."""

    stage: int
    vm: int
    workload: str
    load_rps: float
    mean_us: Estimate
    p99_us: Estimate
    rise: Estimate | None
    rise_us: Estimate | None


@dataclass(frozen=True)
class Cell:
    """One policy in one case. kept: whether the mean rise is within a tenth in every place; None where it is not known.

    sure: whether the intervals say the same. lent_by_seed: mean cores lent of each seed's run.
    world: VMs, loads, way to move cores, lengths and settings; experiments that have it in common have a case in common.
    """

    experiment: str
    case: str
    mover: str
    policy: str
    variant: str
    seeds: int
    places: Sequence[Place]
    kept: bool | None
    sure: bool
    worst: Estimate | None
    cores_lent: Estimate
    cores_busy: Estimate
    peak_busy: Estimate
    exhausted_per_s: Estimate
    stops: Estimate
    hdinsight: Estimate
    terasort: Estimate
    lent_by_seed: Mapping[int, float]
    world: tuple[Any, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.experiment, self.case, self.mover)

    @property
    def vms(self) -> int:
        return len({p.vm for p in self.places})

    @property
    def name(self) -> str:
        return f"{self.policy}, {self.variant}" if self.variant else self.policy

    def as_json(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if k not in ("lent_by_seed", "world")}


def cells_of(folders: Sequence[Folder]) -> list[Cell]:
    """In the order of the rows."""
    by: dict[tuple[str, ...], list[Row]] = {}
    settings: dict[tuple[str, ...], str] = {}
    for f in folders:
        for r in f.rows:
            by.setdefault(r.cell, []).append(r)
            settings[r.cell] = f.settings
    return [_cell(of, by.get((*key[:3], BASE, ""), []), settings[key]) for key, of in by.items()]


def _mean(values: Sequence[float], *, signed: bool = False) -> Estimate:
    found = over_seeds(values, signed=signed)
    if found is None:
        raise ValueError("a mean of nothing")
    return found


def _world(rows: Sequence[Row], settings: str) -> tuple[Any, ...]:
    """Loads that change within a stage are not in its rows: such an experiment is like no other."""
    first = rows[0]
    where = sorted({(r.stage, r.vm, r.workload, r.load_rps, r.seconds) for r in rows})
    return (first.mover, settings, first.experiment if first.experiment in _MOVING_LOADS else "", *where)


def _cell(rows: Sequence[Row], base: Sequence[Row], settings: str) -> Cell:
    first = rows[0]
    # a run of another length is of other requests
    of_base = {(b.stage, b.vm, b.seed, b.seconds): b.p99_us for b in base}
    seeds = sorted({r.seed for r in rows})
    places = []
    for stage, vm in sorted({(r.stage, r.vm) for r in rows}):
        at = sorted((r for r in rows if (r.stage, r.vm) == (stage, vm)), key=lambda r: r.seed)
        pairs = [(r.p99_us, of_base.get((r.stage, r.vm, r.seed, r.seconds), 0.0)) for r in at]
        known = all(b >= _LEAST_US for _, b in pairs)
        places.append(
            Place(
                stage,
                vm,
                at[0].workload,
                at[0].load_rps,
                _mean([r.mean_us for r in at]),
                _mean([r.p99_us for r in at]),
                _mean([p / b - 1 for p, b in pairs], signed=True) if known else None,
                _mean([p - b for p, b in pairs], signed=True) if known else None,
            )
        )
    rises = [p.rise for p in places if p.rise is not None]
    kept = None if len(rises) < len(places) else all(r.value <= ALLOWED + 1e-12 for r in rises)

    def per_run(of: str, *, rate: bool = False) -> Mapping[int, float]:
        """By seed, of the whole group: stages by their lengths; counts summed, or a second."""
        found = {}
        for seed in seeds:
            mine = [r for r in rows if r.seed == seed and r.vm == 0]
            length = sum(r.seconds for r in mine)
            weights = [1.0 if rate else r.seconds for r in mine]
            found[seed] = sum(w * getattr(r, of) for w, r in zip(weights, mine, strict=True)) / max(length, 1e-9)
        return found

    def over(of: str) -> Estimate:
        return _mean(list(per_run(of).values()))

    stops = [float(sum(r.stops for r in rows if r.seed == seed and r.vm == 0)) for seed in seeds]
    lent = per_run("cores_lent")
    return Cell(
        *first.cell[:3],
        first.policy,
        first.variant,
        len(seeds),
        places,
        kept,
        kept is not None and _sure(rises, kept=kept),
        max(rises, key=lambda r: r.value) if rises else None,
        _mean(list(lent.values())),
        over("cores_busy"),
        over("peak_busy"),
        _mean(list(per_run("exhausted", rate=True).values())),
        _mean(stops),
        over("hdinsight"),
        over("terasort"),
        lent,
        _world(rows, settings),
    )


def _sure(rises: Sequence[Estimate], *, kept: bool) -> bool:
    """The whole interval says so: of every place where P99 is kept, of one where it is not."""
    if any(r.low is None or r.high is None for r in rises):
        return False
    if kept:
        return all(r.high is not None and r.high <= ALLOWED for r in rises)
    return any(r.low is not None and r.low > ALLOWED for r in rises)


@dataclass(frozen=True)
class Sum:
    """A policy over several cases. lent: mean cores lent, summed over the cases; lent_kept: over those whose P99 it keeps."""

    policy: str
    cases: int
    kept: int
    sure: int
    worst: Estimate
    worst_case: str
    lent: Estimate
    lent_kept: Estimate


def sum_of(policy: str, cells: Sequence[Cell]) -> Sum:
    """Of one or more cells whose rise is known."""
    worst = max(cells, key=lambda c: c.worst.value if c.worst else -np.inf)
    kept = [c for c in cells if c.kept]
    if worst.worst is None:
        raise ValueError(f"{policy}: no rise is known")
    return Sum(
        policy,
        len(cells),
        len(kept),
        sum(c.sure for c in kept),
        worst.worst,
        case_name(worst),
        _summed(cells),
        _summed(kept),
    )


def _summed(cells: Sequence[Cell]) -> Estimate:
    """Over the seeds that all cases have."""
    if not cells:
        return Estimate(0.0, None, None, 0)
    common = sorted(set.intersection(*(set(c.lent_by_seed) for c in cells)))
    found = _mean([sum(c.lent_by_seed[seed] for c in cells) for seed in common])
    # seeds that some cases alone have count in the mean, which is that of the cases' own figures
    value = sum(c.cores_lent.value for c in cells)
    shift = value - found.value
    low, high = (None if e is None else e + shift for e in (found.low, found.high))
    return Estimate(value, None if low is None else max(0.0, low), high, found.units)


def case_name(c: Cell) -> str:
    """A case as tables have it: its experiment and its name, and how cores move where that is not by cpugroups."""
    mover = "" if c.mover == MOVER or c.mover in c.case else f", {c.mover}"
    return f"{c.experiment}: {c.case}{mover}"


def judged(cells: Iterable[Cell]) -> list[Cell]:
    """Those that count over all cases: settings as given, and a known rise."""
    return [c for c in cells if not c.variant and c.kept is not None]


def once(cells: Iterable[Cell]) -> list[Cell]:
    """Those that count in sums: a policy in a case that several experiments have counts as in the first of them."""
    found: dict[tuple[Any, ...], Cell] = {}
    for c in cells:
        found.setdefault((c.policy, c.world), c)
    return list(found.values())


@dataclass(frozen=True)
class Group:
    """Cases in which the same fixed buffers were run, so that one buffer can be asked for all of them."""

    name: str
    cases: Sequence[str]
    buffers: Sequence[int]
    best: Sum | None
    sums: Sequence[Sum]


def groups_of(cells: Sequence[Cell]) -> list[Group]:
    """Cases by what fixed buffers they have, their number of VMs, and how cores move; the same case once in each."""
    cases: dict[tuple[str, str, str], list[Cell]] = {}
    for c in judged(cells):
        cases.setdefault(c.key, []).append(c)
    by: dict[tuple[Any, ...], list[list[Cell]]] = {}
    for of in cases.values():
        buffers = tuple(sorted(b for c in of if (b := buffer_of(c.policy)) is not None))
        if buffers:
            kind = of[0].experiment if of[0].experiment in (PRIMARIES, WORLDS) else ""
            group = by.setdefault((buffers, of[0].vms, of[0].mover, kind), [])
            if not any({c.world for c in case} == {c.world for c in of} for case in group):
                group.append(of)
    return [_group(key, of) for key, of in by.items()]


def _group(key: tuple[Any, ...], cases: Sequence[Sequence[Cell]]) -> Group:
    buffers, vms, mover, _ = key
    of: dict[str, list[Cell]] = {}
    for case in cases:
        for c in case:
            of.setdefault(c.policy, []).append(c)
    sums = {p: sum_of(p, of[p]) for p in in_order(of) if len(of[p]) == len(cases)}
    fixed = [s for p, s in sums.items() if buffer_of(p) is not None and s.kept == s.cases]
    experiments = ", ".join(dict.fromkeys(case[0].experiment for case in cases))
    said = {1: "one VM", 2: "two VMs"}.get(vms, f"{vms} VMs")
    name = f"{said} ({experiments}{'' if mover == MOVER else f', {mover}'})"
    best = max(fixed, key=lambda s: s.lent.value, default=None)
    rest = [s for p, s in sums.items() if buffer_of(p) is None and p != BASE]
    return Group(name, [case_name(case[0]) for case in cases], buffers, best, rest)


def find(cells: Iterable[Cell], experiment: str, case: str | None = None, policy: str | None = None) -> list[Cell]:
    return [c for c in cells if c.experiment == experiment and case in (None, c.case) and policy in (None, c.policy)]


def as_paper(cells: Iterable[Cell]) -> list[Cell]:
    """Cells whose cores move as in the paper's experiment."""
    return [c for c in cells if c.mover == MOVER or c.experiment in OWN_MOVERS]


def least_buffer(cells: Iterable[Cell]) -> int | None:
    """The smallest fixed buffer that keeps P99, as all larger ones do; None where the largest does not.

    Buffers whose rise is not known count as not run.
    """
    least = None
    for buffer, kept in sorted(
        ((b, c.kept) for c in cells if (b := buffer_of(c.policy)) is not None and c.kept is not None), reverse=True
    ):
        if not kept:
            break
        least = buffer
    return least


def beside(p: Published, cells: Sequence[Cell]) -> dict[str, Any]:
    """A published number with ours: `holds` is None of a measured figure, or where ours is not known; why, in words."""
    row: dict[str, Any] = {**asdict(p), "fitted": p.fitted, "ours": None, "ratio": None, "holds": None, "sure": False, "why": ""}
    ran = [c for c in find(cells, p.experiment, p.case) if _is_of(p, c)]
    of = as_paper(ran)
    if not of:
        return row | {"why": OTHER_MOVER if ran else NOT_RUN}
    if p.metric == "least_buffer":
        return row | _least(p, [c for c in of if c.kept is not None])
    e = _figure(p, of[0])
    if e is None:
        return row | {"why": NO_BASE}
    row["ours"] = e.as_json()
    if p.relation == "is":
        return row | {"ratio": e.value / p.value if p.value else None}
    holds = _holds(p, e.value)
    ends = [x for x in (e.low, e.high) if x is not None]
    return row | {"holds": holds, "sure": len(ends) == 2 and _all_say(p, e, holds=holds)}


def _is_of(p: Published, c: Cell) -> bool:
    if p.metric == "least_buffer":
        return buffer_of(c.policy) is not None
    return (c.policy, c.variant) == (p.policy, p.variant)


def _least(p: Published, cells: Sequence[Cell]) -> dict[str, Any]:
    """Of fixed buffers whose rise is known."""
    if not cells:
        return {"why": NO_BASE}
    found = least_buffer(cells)
    if found is None:
        return {"why": "none that was run keeps P99"}
    if found > 1 and found == min(buffer_of(c.policy) or 0 for c in cells):
        return {"why": f"at most {found}: no smaller one was run"}
    return {"ours": Estimate(found, None, None, 0).as_json(), "ratio": found / p.value}


def _all_say(p: Published, e: Estimate, *, holds: bool) -> bool:
    ends = [x for x in (e.low, e.high) if x is not None]
    if p.relation == "from" and not holds and p.high is not None:
        return max(ends) < p.value or min(ends) > p.high
    return all(_holds(p, x) == holds for x in ends)


def _holds(p: Published, x: float) -> bool:
    match p.relation:
        case "at most":
            return x <= p.value + 1e-9
        case "less than":
            return x < p.value
        case "more than":
            return x > p.value
        case _:
            return p.high is not None and p.value <= x <= p.high


def _figure(p: Published, c: Cell) -> Estimate | None:
    if p.metric == "rise_pct":
        return None if c.kept is None or c.worst is None else scaled(c.worst, 100)
    if p.metric in ("p99_us", "mean_us", "rise_us"):
        place = next((x for x in c.places if x.stage == (p.stage or 0)), None)
        found = None if place is None else getattr(place, p.metric)
    else:
        found = getattr(c, p.metric)
    return found if isinstance(found, Estimate) else None


def scaled(e: Estimate, by: float) -> Estimate:
    low, high = (None if x is None else by * x for x in (e.low, e.high))
    return Estimate(by * e.value, low, high, e.units)


@dataclass(frozen=True)
class Claim:
    """Something that the paper says without a number. holds: None where ours is not known."""

    experiment: str
    says: str
    ours: str
    holds: bool | None


def gather(folders: Sequence[Folder]) -> tuple[dict[str, Any], list[Cell]]:
    """All numbers as JSON has them, and the cells that figures are drawn from."""
    cells = cells_of(folders)
    of: dict[str, list[Cell]] = {}
    for c in once(judged(cells)):
        of.setdefault(c.policy, []).append(c)
    there = {c.experiment for c in cells}
    made_from = [
        {k: v for k, v in f.__dict__.items() if k != "rows"} | {"rows": len(f.rows), "cells": len({r.cell for r in f.rows})}
        for f in folders
    ]
    facts = {
        "made_from": made_from,
        "allowed_rise": ALLOWED,
        "not_run": [e for e in EXPERIMENTS if e not in there],
        "cells": [c.as_json() for c in cells],
        "policies": [asdict(sum_of(p, of[p])) for p in in_order(of)],
        "groups": [asdict(g) for g in groups_of(cells)],
        "published": [beside(p, cells) for p in PUBLISHED],
        "claims": [asdict(c) for c in claims(cells)],
        "other_mover": [e for e in EXPERIMENTS if e in there and not find(as_paper(cells), e)],
    }
    return facts, cells


def claims(cells: Sequence[Cell]) -> list[Claim]:
    """What the paper says in words of figures without printed numbers; of experiments that were run as there."""
    of = as_paper(cells)
    return [*_square_wave(of), *_two_kinds(of), *_safeguards(of), *_costs(of), *_movers(of)]


def _of(cells: Sequence[Cell], experiment: str, policy: str, variant: str = "") -> dict[str, Cell]:
    """By case: the cell of a policy whose rise is known."""
    return {c.case: c for c in find(cells, experiment, policy=policy) if c.variant == variant and c.kept is not None}


def _rise_pct(c: Cell) -> str:
    if c.worst is None:
        return "–"
    return "0 %" if abs(c.worst.value) < 0.0005 else f"{100 * c.worst.value:+.1f} %"


def _square_wave(cells: Sequence[Cell]) -> list[Claim]:
    smart, prev = (_of(cells, "f7", p) for p in ("smartharvest", "prev-peak-10"))
    return [
        Claim(
            "f7",
            "SmartHarvest lends more than PrevPeak10 and raises P99 less",
            f"{s.cores_lent.value:.2f} and {p.cores_lent.value:.2f} cores; {_rise_pct(s)} and {_rise_pct(p)}",
            s.cores_lent.value > p.cores_lent.value and _value(s) < _value(p),
        )
        for s, p in zip(smart.values(), prev.values(), strict=False)
    ]


def _value(c: Cell) -> float:
    return c.worst.value if c.worst else np.nan


def _two_kinds(cells: Sequence[Cell]) -> list[Claim]:
    found = []
    for c in _of(cells, "f9", "smartharvest").values():
        fixed = [b for b in find(cells, "f9", c.case) if buffer_of(b.policy) is not None and b.kept is not None]
        best = max((b for b in fixed if b.kept), key=lambda b: b.cores_lent.value, default=None)
        if best is not None:
            most = f"{best.policy} keeps both with {best.cores_lent.value:.2f} cores"
        else:
            most = "no fixed buffer that was run keeps both" if fixed else "no fixed buffer was run"
        ours = f"{_rise_pct(c)} and {c.cores_lent.value:.2f} cores; {most}"
        beats = best is None or best.cores_lent.value <= c.cores_lent.value
        holds = bool(c.kept) and beats if fixed else None
        found.append(Claim("f9", "SmartHarvest keeps P99 of both VMs; no one buffer suits both", ours, holds))
    return found


# of two figures of P99, when the paper calls them similar: the tenth that is allowed
_SIMILAR = ALLOWED


def _safeguards(cells: Sequence[Cell]) -> list[Claim]:
    calm, bold = (_of(cells, "f10", "smartharvest", v) for v in ("conservative", "aggressive"))
    # the paper studies memcached alone
    return [
        Claim(
            "f10",
            f"{case}: the conservative safeguard has a similar P99 and lends more",
            f"{a.cores_lent.value:.2f} and {b.cores_lent.value:.2f} cores; {_rise_pct(a)} and {_rise_pct(b)}",
            a.cores_lent.value > b.cores_lent.value and _value(a) - _value(b) <= _SIMILAR,
        )
        for case, a in calm.items()
        if case == "memcached" and (b := bold.get(case))
    ]


def _costs(cells: Sequence[Cell]) -> list[Claim]:
    skewed, symmetric, hinged = (_of(cells, "f13", "smartharvest", v) for v in ("skewed", "symmetric", "hinged"))
    case = "memcached"
    found = []
    if case in skewed and case in symmetric:
        a, b = skewed[case], symmetric[case]
        ours = f"{_rise_pct(b)} and {_rise_pct(a)}"
        found.append(Claim("f13", f"{case}: symmetric costs raise P99 more than skewed ones", ours, _value(b) > _value(a)))
    if case in skewed and case in hinged:
        a, b = skewed[case], hinged[case]
        ours = f"{b.cores_lent.value:.2f} and {a.cores_lent.value:.2f} cores"
        less = b.cores_lent.value < a.cores_lent.value
        found.append(Claim("f13", f"{case}: hinged costs lend less than skewed ones", ours, less))
    return found


def _movers(cells: Sequence[Cell]) -> list[Claim]:
    """Each policy at each load, once with cpugroups and once with interrupts."""
    by: dict[tuple[float, str], dict[str, Cell]] = {}
    for c in find(cells, "f15"):
        if c.worst is not None and not c.variant:
            by.setdefault((c.places[0].load_rps, c.policy), {})[c.mover] = c
    pairs = {k: (m["cpugroups"], m["interrupts"]) for k, m in by.items() if {"cpugroups", "interrupts"} <= m.keys()}
    found = []
    for what, chosen in (
        ("each fixed buffer and load", {k: v for k, v in pairs.items() if buffer_of(k[1]) is not None}),
        ("SmartHarvest at each load", {k: v for k, v in pairs.items() if k[1] == "smartharvest"}),
    ):
        if chosen:
            more = [b.cores_lent.value > a.cores_lent.value for a, b in chosen.values()]
            less = [_value(b) <= _value(a) for a, b in chosen.values()]
            ours = f"more cores in {sum(more)} of {len(more)}, no higher P99 in {sum(less)} of {len(less)}"
            says = f"{what}: interrupts lend more and raise P99 less than cpugroups"
            found.append(Claim("f15", says, ours, all(more) and all(less)))
    return found
