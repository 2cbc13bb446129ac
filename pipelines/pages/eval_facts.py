"""The numbers of the evaluation report: per set and policy, ratios between policies, and each published figure beside ours.

Convergence times are of runs that converged; what failed is counted beside them and, in `convergence_or_limit_s`, taken as 180 s.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.pages import eval_ranks
from pipelines.pages.eval_rows import LIMIT_S, OPTIONAL, SAID, WHAT
from pipelines.pages.eval_stats import Estimate, over_seeds, over_workloads, paired_ratio
from pipelines.pages.policy_charts import in_order

_FILE = Path(__file__).with_name("eval_published.csv")
# Ours, which the published figures are aims for; a rival's published figure is shown, and beating it is no failure of anybody.
OURS = ("osml-plus", "osml", "surefoot")
# Whose convergence the papers compare on the workloads that all of them converge on.
_COMPARED = {"emu": ("osml", "parties-stop", "clite")}
_COMPARED_ELSE = ("osml-plus", "parties-stop", "clite")
# Ours of which each is to have the least violation of all others, and whom these others are at least.
_LOWEST = ("osml-plus", "surefoot")
_OTHERS = ("parties-stop", "clite", "osml")
# By what it does workloads are told apart: those that equal shares serve need no scheduler.
_EQUAL = "equal-share"
_BY_EQUAL_SHARES = ("hard_speed_up", "hard_convergence_worst_s", "easy_over_equal_share_s")
# Whom a wrong model cannot mislead.
_MODELLESS = "parties-stop"
# The union of the sets of LC services beside a BE job, as the OSML+ paper's Fig. 8.
ALL_BE = "be-all"
NOT_MEASURED = "not measured"
NOT_RUN = "not run"
# Units from which an interval makes a verdict sure: resampling fewer, or equal values, says little of what else there could be.
ENOUGH = 5
# What stands for a figure that was measured and is no number in any run.
_NULL = {
    "convergence_s": "never converged",
    "convergence_worst_s": "never converged",
    "emu_of_oracle": "ORACLE's not proven",
    "be_throughput": "no BE job",
    "be_throughput_met": "no BE job",
    "window_requests": "no LC service",
    "actions_per_min_settled": "never settled",
    "self_violation_settled_s": "never settled",
    "worst_slowdown": "latency never known",
    "qos_violation_s": "latency never known",
}
_NULL_ELSE = "no value"
# The same of a ratio.
_NO_RUN, _OVER_0 = "no such run", "over 0"
# Of which a mean over runs says little.
_NO_MEAN = ("worst_slowdown", "refused_plans", "window_requests")
_CROSSINGS = ("reclaim_crossings", "deprive_crossings")


@dataclass(frozen=True)
class Published:
    """One published figure, or an aim of ours. low, high: its range where the paper gives one."""

    set: str
    platform: str
    policy: str
    baseline: str
    metric: str
    value: float
    low: float | None
    high: float | None
    unit: str
    better: str
    paper: str
    place: str
    what: str

    def met_by(self, ours: float, workloads: int) -> bool:
        """Whether ours is at least as good. workloads: of how many it is; 1 of 2 is more than the paper's 1 of 20."""
        value = self.value
        if self.unit.startswith("of "):
            value *= workloads / int(self.unit.removeprefix("of "))
        return ours <= value + 1e-9 if self.better == "lower" else ours >= value - 1e-9


def published() -> list[Published]:
    """All of them, in the file's order."""
    with _FILE.open(newline="", encoding="utf-8") as file:
        return [
            Published(
                **{k: v for k, v in row.items() if k not in ("value", "low", "high")},
                value=float(row["value"]),
                low=float(row["low"]) if row["low"] else None,
                high=float(row["high"]) if row["high"] else None,
            )
            for row in csv.DictReader(file)
        ]


@dataclass(frozen=True)
class Group:
    """The rows of one set on one platform. drawn: its workloads are a random sample (numbered), not scripts."""

    platform: str
    set: str
    rows: pl.DataFrame
    drawn: bool

    def policies(self) -> list[str]:
        return in_order(self.rows["policy"].unique().to_list())

    def of(self, policy: str) -> pl.DataFrame:
        return self.rows.filter(pl.col("policy") == policy)

    def harm(self) -> str | None:
        """What its policies were told instead of the truth."""
        told: str | None = self.rows["harm"][0]
        return told

    def unjudged(self) -> str | None:
        """Why nothing of it is held against aims and published figures; None where it is."""
        if harm := self.harm():
            return f"told untruths: {harm}"
        if self.rows["requests"][0]:
            return "every request was simulated by itself (--exact)"
        mute = self.rows.filter(~pl.col("told"))["out"].unique().sort().to_list()
        return f"no {WHAT} in {', '.join(mute)}: whether policies were told the truth is not known" if mute else None

    def seeds(self) -> list[int]:
        return sorted(self.rows["seed"].unique().to_list())


def groups(rows: pl.DataFrame) -> list[Group]:
    """One group a platform and set; and, where there are several sets beside BE jobs, their union."""
    from pipelines.pages.eval_rows import DRAWN, set_of

    found = []
    for (platform, name), mine in rows.group_by(["platform", "set"], maintain_order=True):
        drawn = all(set_of(w) for w in mine["workload"].unique())
        found.append(Group(str(platform), str(name), mine, drawn))
    # ranges of worlds are never put together
    for platform in dict.fromkeys(g.platform for g in found if g.platform != DRAWN):
        honest = [g for g in found if g.platform == platform and not g.harm()]
        some = [g for g in honest if g.drawn and g.rows["be_throughput"].null_count() < len(g.rows)]
        if len(some) > 1:
            found.append(Group(platform, ALL_BE, pl.concat([g.rows for g in some]), True))
    return found


# ---------------------------------------------------------------- one policy


def _by_workload(rows: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Means over the seeds of each workload; workloads where a column is never known are left out."""
    return rows.group_by("workload").agg(pl.col(c).mean() for c in columns).drop_nulls().sort("workload")


def mean(group: Group, rows: pl.DataFrame, column: str) -> Estimate | None:
    """Mean of a column: over workloads where they are drawn; over seeds, each the mean of its workloads, of scripts."""
    if group.drawn:
        return over_workloads(_by_workload(rows, column)[column].to_list())
    by_seed = rows.group_by("seed").agg(pl.col(column).mean()).drop_nulls().sort("seed")
    return over_seeds(by_seed[column].to_list())


def _in_both(above: pl.DataFrame, below: pl.DataFrame, column: str) -> pl.DataFrame:
    both = above.select("workload", "seed", pl.col(column).alias("above")).join(
        below.select("workload", "seed", pl.col(column).alias("below")), on=["workload", "seed"]
    )
    return both.drop_nulls()


def ratio(group: Group, above: pl.DataFrame, below: pl.DataFrame, column: str) -> Estimate | None:
    """Mean of a column in `above` relative to that in `below`, over the runs (workload and seed) that both have it for."""
    both = _in_both(above, below, column)
    unit = "workload" if group.drawn else "seed"
    means = both.group_by(unit).agg(pl.col("above").mean(), pl.col("below").mean()).sort(unit)
    return paired_ratio(means["above"].to_list(), means["below"].to_list())


def failures(group: Group, rows: pl.DataFrame) -> Estimate | None:
    """Workloads that fail to converge: counted for each seed, averaged over seeds (Student's t)."""
    by_seed = rows.group_by("seed").agg((~pl.col("converged")).sum().alias("failed")).sort("seed")
    return over_seeds(by_seed["failed"].cast(pl.Float64).to_list())


def _or_limit(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.col("convergence_s").fill_null(LIMIT_S).alias("convergence_or_limit_s"))


def _converged(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("converged"))


def _known(rows: pl.DataFrame, column: str) -> bool:
    return rows[column].null_count() < len(rows)


def _lacks(rows: pl.DataFrame, column: str) -> bool:
    """Whether none of the folders that these rows are of has the column."""
    return not (~rows["lacks"].list.contains(column)).any()


def _told_apart(rows: pl.DataFrame) -> bool:
    """Whether every row has its reclaim_crossings apart: without deprive_crossings they are the sum of both kinds."""
    return not rows["lacks"].list.contains("deprive_crossings").any()


def _crossings_in_words(rows: pl.DataFrame) -> dict[str, str]:
    """What stands for crossings where not every run tells the two kinds apart."""
    some = rows.filter(~pl.col("lacks").list.contains("reclaim_crossings"))
    if some.is_empty():
        return dict.fromkeys(_CROSSINGS, NOT_MEASURED)
    both = some.filter(pl.col("lacks").list.contains("deprive_crossings"))
    if both.is_empty():
        return dict.fromkeys(_CROSSINGS, f"{NOT_MEASURED} in {len(rows) - len(some)} of {len(rows)} runs")
    share = "" if len(both) == len(rows) else f" in {len(both)} of {len(rows)} runs"
    reclaims = f"{both['reclaim_crossings'].sum():,.0f} of both kinds{share}"
    return {"reclaim_crossings": reclaims, "deprive_crossings": f"not told apart{share}"}


def _json(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate.as_json()


def policy_facts(group: Group, policy: str) -> dict[str, Any]:
    """Everything about one policy on one set."""
    rows = _or_limit(group.of(policy))
    good = _converged(rows)
    known_oracle = rows.filter(pl.col("oracle_emu").is_not_null() & pl.col("emu").is_not_null())
    of_oracle = known_oracle.with_columns(pl.col("oracle_emu").alias("emu"))
    facts: dict[str, Any] = {
        "policy": policy,
        "workloads": rows["workload"].n_unique(),
        "runs": len(rows),
        "converged_runs": len(good),
        "failures": _json(failures(group, rows)),
        "failed_with_any_seed": rows.filter(~pl.col("converged"))["workload"].n_unique(),
        "convergence_s": _json(mean(group, good, "convergence_s")),
        "convergence_median_s": good["convergence_s"].median(),
        "convergence_worst_s": good["convergence_s"].max(),
        "convergence_or_limit_s": _json(mean(group, rows, "convergence_or_limit_s")),
        "emu": _json(mean(group, rows, "emu")),
        "emu_of_oracle": _json(ratio(group, known_oracle, of_oracle, "emu")),
        "emu_of_oracle_runs": len(known_oracle),
        "be_throughput": _json(mean(group, rows, "be_throughput")),
        "qos_violation_s": _json(mean(group, rows, "qos_violation_s")),
        "actions": _json(mean(group, rows.with_columns(pl.col("actions").cast(pl.Float64)), "actions")),
    }
    # of how many runs a mean is: the others have no value
    usable = ("emu", "be_throughput", "qos_violation_s", "self_violation_s")
    facts["usable_runs"] = {column: len(rows) - rows[column].null_count() for column in usable}
    facts |= {
        "worst_slowdown_median": rows["worst_slowdown"].median(),
        "worst_slowdown_most": rows["worst_slowdown"].max(),
        "window_requests_least": rows["window_requests"].min(),
        "refused_plans_total": rows["refused_plans"].sum() if _known(rows, "refused_plans") else None,
    }
    for column in (c for c in OPTIONAL if c not in _NO_MEAN):
        facts[column] = _json(mean(group, rows, column)) if _known(rows, column) else None
    apart = _told_apart(rows)
    for column in _CROSSINGS:
        facts[column] = facts[column] if apart else None
        facts[f"{column}_total"] = rows[column].sum() if apart and _known(rows, column) else None
    none = {name: re.sub("_(total|median|most|least)$", "", name) for name, value in facts.items() if value is None}
    facts["no_value"] = {
        name: NOT_MEASURED if _lacks(rows, column) else _NULL.get(column, _NULL_ELSE) for name, column in none.items()
    }
    if not apart:
        for column, words in _crossings_in_words(rows).items():
            facts["no_value"] |= {column: words, f"{column}_total": words}
    return facts


def ratio_facts(group: Group, ours: str, other: str) -> dict[str, Any]:
    """Ours against another policy; every ratio is above 1 where ours is better, but that of violations."""
    mine, its = _or_limit(group.of(ours)), _or_limit(group.of(other))
    compared = {
        "speed_up": (_converged(its), _converged(mine), "convergence_s"),
        "speed_up_or_limit": (its, mine, "convergence_or_limit_s"),
        "be_throughput_ratio": (_converged(mine), _converged(its), "be_throughput"),
        "violation_ratio": (mine, its, "qos_violation_s"),
    }
    facts: dict[str, Any] = {"policy": ours, "baseline": other}
    facts |= {name: _json(ratio(group, *what)) for name, what in compared.items()}
    facts["no_value"] = {
        name: _OVER_0 if len(_in_both(*what)) else _NO_RUN for name, what in compared.items() if facts[name] is None
    }
    return facts


# ---------------------------------------------------------------- published


def _all_converge(group: Group, rows: pl.DataFrame, policies: Sequence[str]) -> pl.DataFrame:
    """The runs whose workload and seed all of these policies converge on."""
    kept = rows
    for policy in policies:
        good = _converged(group.of(policy)).select("workload", "seed")
        kept = kept.join(good, on=["workload", "seed"], how="semi")
    return kept


def _compared(p: Published) -> Sequence[str]:
    """Whose runs a published figure takes beside its own policy's."""
    if p.metric == "convergence_s":
        return _COMPARED.get(p.set, _COMPARED_ELSE)
    if p.metric == "violation_over_lowest":
        return _OTHERS
    if p.metric in _BY_EQUAL_SHARES:
        return [*([p.baseline] if p.baseline else []), _EQUAL]
    return [p.baseline] if p.baseline else []


def _convergence(group: Group, p: Published) -> Estimate | None:
    some = [*dict.fromkeys([*_compared(p), p.policy])]
    return mean(group, _all_converge(group, group.of(p.policy), some), "convergence_s")


def _exactly(value: Any) -> Estimate | None:
    return None if value is None else Estimate(float(value), None, None, 1)


def _share(estimate: Estimate | None) -> Estimate | None:
    if estimate is None:
        return None
    low, high = (None if x is None else 100 * x for x in (estimate.low, estimate.high))
    return Estimate(100 * estimate.value, low, high, estimate.units)


def hard(group: Group) -> pl.DataFrame:
    """Runs (workload and seed) in which equal shares do not serve every service, and some partition is proven to."""
    served = group.rows.filter(pl.col("oracle_emu") >= pl.col("offered_load") - 1e-6).select("workload").unique()
    failed = group.of(_EQUAL).filter(~pl.col("converged")).select("workload", "seed")
    return failed.join(served, on="workload", how="semi")


def _hard(group: Group, policy: str) -> pl.DataFrame:
    return group.of(policy).join(hard(group), on=["workload", "seed"], how="semi")


def _hard_speed_up(group: Group, p: Published) -> Estimate | None:
    return ratio(group, _converged(_hard(group, p.baseline)), _converged(_hard(group, p.policy)), "convergence_s")


def _over_equal_share(group: Group, p: Published) -> Estimate | None:
    """By how much it is slower where equal shares serve everybody; a run that never converges counts as the limit."""
    theirs = _converged(group.of(_EQUAL)).select("workload", "seed", pl.col("convergence_s").alias("theirs"))
    rows = _or_limit(group.of(p.policy)).join(theirs, on=["workload", "seed"])
    return mean(group, rows.with_columns(over=pl.col("convergence_or_limit_s") - pl.col("theirs")), "over")


def _optional(group: Group, p: Published, column: str) -> Estimate | None:
    rows = group.of(p.policy)
    return mean(group, rows, column) if _known(rows, column) else None


def _of_oracle(group: Group, p: Published) -> Estimate | None:
    rows = group.of(p.policy).filter(pl.col("oracle_emu").is_not_null())
    return _share(ratio(group, rows, rows.with_columns(pl.col("oracle_emu").alias("emu")), "emu"))


def _pair(group: Group, p: Published, field: str) -> Estimate | None:
    found = ratio_facts(group, p.policy, p.baseline)[field]
    return None if found is None else Estimate(**found)


def _lowest(group: Group, p: Published) -> tuple[str, Estimate] | None:
    """Whose violation is the lowest of all others', and the policy's own relative to that; None where that of one is 0."""
    found = []
    for other in (name for name in group.policies() if name not in _LOWEST):
        of = ratio_facts(group, p.policy, other)
        if of["violation_ratio"] is not None:
            found.append((other, Estimate(**of["violation_ratio"])))
        elif of["no_value"]["violation_ratio"] == _OVER_0:
            return None
    return max(found, key=lambda of: of[1].value, default=None)


def _crossings(group: Group, p: Published) -> Estimate | None:
    rows = group.of(p.policy)
    return _exactly(rows["reclaim_crossings"].sum()) if _told_apart(rows) and _known(rows, "reclaim_crossings") else None


_MEASURES: Mapping[str, Callable[[Group, Published], Estimate | None]] = {
    "convergence_s": _convergence,
    "convergence_worst_s": lambda g, p: _exactly(_converged(g.of(p.policy))["convergence_s"].max()),
    "speed_up": lambda g, p: _pair(g, p, "speed_up"),
    "hard_speed_up": _hard_speed_up,
    "hard_convergence_worst_s": lambda g, p: _exactly(_converged(_hard(g, p.policy))["convergence_s"].max()),
    "easy_over_equal_share_s": _over_equal_share,
    "be_throughput_ratio": lambda g, p: _pair(g, p, "be_throughput_ratio"),
    "violation_ratio": lambda g, p: _pair(g, p, "violation_ratio"),
    "failures": lambda g, p: failures(g, g.of(p.policy)),
    "converged_pct": lambda g, p: _share(mean(g, g.of(p.policy).with_columns(pl.col("converged").cast(pl.Float64)), "converged")),
    "actions": lambda g, p: mean(g, g.of(p.policy).with_columns(pl.col("actions").cast(pl.Float64)), "actions"),
    "emu_of_oracle_pct": _of_oracle,
    "actions_per_min_settled": lambda g, p: _optional(g, p, "actions_per_min_settled"),
    "self_violation_settled_s": lambda g, p: _optional(g, p, "self_violation_settled_s"),
    "violation_over_lowest": lambda g, p: found[1] if (found := _lowest(g, p)) else None,
    "reclaim_crossings": _crossings,
}
# Why rows of others are needed.
_OF_ALL = {
    "convergence_s": "it is of the runs that all compared policies converge on",
    **dict.fromkeys(_BY_EQUAL_SHARES, "equal shares tell which workloads need a scheduler"),
    "violation_over_lowest": f"the lowest is found among {', '.join(_OTHERS)} at least",
}


def compare(found: Sequence[Group]) -> list[dict[str, Any]]:
    """Every published figure with ours and a verdict; those that were not measured say why."""
    by_name = {(g.set, g.platform): g for g in found}
    rows = []
    for p in published():
        group = by_name.get((p.set, p.platform))
        ours, verdict, why, sure = None, NOT_MEASURED, "", None
        # of the policy's own runs: others may have run more
        workloads = 0 if group is None else group.of(p.policy)["workload"].n_unique()
        if group is None:
            why = f"no rows of {p.set} on {p.platform}"
        elif unjudged := group.unjudged():
            why = unjudged
        elif missing := [name for name in dict.fromkeys([p.policy, *_compared(p)]) if name not in group.policies()]:
            why = f"no rows of {' and '.join(missing)}"
            if p.policy not in missing and p.baseline not in missing:
                why += f": {_OF_ALL[p.metric]}"
        else:
            ours = _MEASURES[p.metric](group, p)
            if ours is None:
                verdict, why = _nothing(group, p)
            else:
                verdict, sure = _verdict(p, ours, workloads), _sure(ours, partial(p.met_by, workloads=workloads))
        row: dict[str, Any] = {name: getattr(p, name) for name in p.__dataclass_fields__}
        row |= {"workloads": workloads or None, "ours": _json(ours), "verdict": verdict, "why": why, "sure": sure}
        lowest = _lowest(group, p) if group and ours and p.metric == "violation_over_lowest" else None
        rows.append(row | {"lowest": lowest and lowest[0]})
    return rows


# Why a figure that was measured cannot be compared.
_WHY = {
    "convergence_s": "no run that all compared policies converge on",
    "convergence_worst_s": "never converged",
    "hard_speed_up": "no run that ORACLE serves, equal shares do not, and both converge on",
    "hard_convergence_worst_s": "no run that ORACLE serves, equal shares do not, and it converges on",
    "easy_over_equal_share_s": "no run that equal shares serve",
    "emu_of_oracle_pct": "ORACLE's EMU is not proven for any run",
    "actions_per_min_settled": "no run went on for 5 s after it converged",
    "self_violation_settled_s": "no run went on for 5 s after it converged",
    "violation_over_lowest": "the lowest of the others is 0, or they have no run in common",
}
# The same of ratios, whose reason ratio_facts finds.
_WHY_NO_RATIO = {
    _NO_RUN: "no run (workload and seed) in which both have what is compared",
    _OVER_0: "its denominator is 0 in all runs that both have",
}


def _nothing(group: Group, p: Published) -> tuple[str, str]:
    """Verdict and reason where rows are there, and our figure is not."""
    rows = group.of(p.policy)
    if p.metric == "reclaim_crossings" and not _told_apart(rows):
        old = rows["lacks"].list.contains("deprive_crossings").sum()
        which = "" if old == len(rows) else f"{old} of {len(rows)} runs "
        both = "" if _lacks(rows, "reclaim_crossings") else ": there reclaim_crossings are the sum of both kinds"
        return NOT_MEASURED, f"{which}by an older surefootd, without the column deprive_crossings{both}"
    if _lacks(rows, p.metric):
        return NOT_MEASURED, f"by an older surefootd, without the column {p.metric}"
    if p.baseline and p.metric not in _WHY:
        return "no value", _WHY_NO_RATIO[ratio_facts(group, p.policy, p.baseline)["no_value"][p.metric]]
    return "no value", _WHY.get(p.metric, "null in every run")


def _verdict(p: Published, ours: Estimate, workloads: int) -> str:
    good = p.met_by(ours.value, workloads)
    if p.policy in OURS:
        return "met" if good else "missed"
    return "as published or better" if good else "worse than published"


def _sure(ours: Estimate, good: Callable[[float], bool]) -> bool | None:
    """Whether the whole interval says the same, and is of enough units; None without one."""
    if ours.low is None or ours.high is None:
        return None
    said = {good(x) for x in (ours.low, ours.value, ours.high)}
    return ours.units >= ENOUGH and len(said) == 1


# ---------------------------------------------------------------- untruths


def apart(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """All rows but those that were told an untruth beside honest ones of the same set, and these."""
    honest = set(rows.filter(pl.col("harm").is_null()).select("platform", "set").unique().iter_rows())
    of = rows.select("platform", "set", "harm").iter_rows()
    beside = pl.Series([harm is not None and (platform, name) in honest for platform, name, harm in of], dtype=pl.Boolean)
    return rows.filter(~beside), rows.filter(beside)


def untruths(rows: pl.DataFrame, misled: pl.DataFrame) -> list[dict[str, Any]]:
    """What untruths cost, of each set that was also run without. rows, misled: as `apart` says."""
    found = []
    for honest in groups(rows):
        mine = misled.filter((pl.col("platform") == honest.platform) & (pl.col("set") == honest.set))
        told = (
            [Group(honest.platform, honest.set, of, honest.drawn) for of in mine.sort("harm").partition_by("harm")]
            if len(mine)
            else []
        )
        costs = [_untruth(of, honest, policy) for of in told for policy in of.policies()]
        if costs:
            found.append({"set": honest.set, "platform": honest.platform, "unjudged": honest.unjudged(), "costs": costs})
    return found


def _untruth(told: Group, honest: Group, policy: str) -> dict[str, Any]:
    """One policy under one untruth, against itself and against parties-stop, which has no models; on the runs that both have."""
    mine = told.of(policy)
    both = ["workload", "seed"]
    its = honest.of(policy)
    its_of_both = its.join(mine, on=both, how="semi")
    parties = told.of(_MODELLESS) if _MODELLESS in told.policies() else honest.of(_MODELLESS)
    over = None if policy == _MODELLESS else ratio(told, mine, parties, "qos_violation_s")
    judged = over if policy in OURS and not honest.unjudged() else None
    return {
        "policy": policy,
        "harm": told.harm(),
        "violation_s": _json(mean(told, mine, "qos_violation_s")),
        "honest_violation_s": _json(mean(honest, its_of_both, "qos_violation_s")),
        "over_honest": _json(ratio(told, mine, its, "qos_violation_s")),
        "over_parties": _json(over),
        "no_value": {
            "violation_s": _NULL["qos_violation_s"],
            "honest_violation_s": NOT_RUN if its_of_both.is_empty() else _NULL["qos_violation_s"],
        },
        "parties": None if parties.is_empty() else "told the same" if _MODELLESS in told.policies() else "told the truth",
        "verdict": None if judged is None else f"below {_MODELLESS}" if judged.value < 1 else f"not below {_MODELLESS}",
        "sure": judged and _sure(judged, lambda x: x < 1),
    }


def _interval(group: Group) -> str | None:
    """What the intervals of a set are over; None where one unit gives none."""
    if group.drawn:
        return "workloads, bootstrapped" if group.rows["workload"].n_unique() > 1 else None
    return "seeds, Student's t" if len(group.seeds()) > 1 else None


def _ranks(group: Group, ours: Sequence[str]) -> list[dict[str, Any]]:
    """Ranks by each metric that enough workloads have. The union of sets has those of its sets, and none of its own."""
    if not group.drawn or group.set == ALL_BE:
        return []
    known = [(column, less) for column, less in eval_ranks.METRICS if _known(group.rows, column)]
    found = [eval_ranks.ranks(group.rows, group.policies(), ours, column, less) for column, less in known]
    return [r for r in found if r]


def gather(rows: pl.DataFrame) -> tuple[dict[str, Any], list[Group]]:
    """All facts of the report as plain data, and the groups for its figures."""
    rows, misled = apart(rows)
    found = groups(rows)
    sets = []
    for g in found:
        policies = g.policies()
        ours = [p for p in policies if p in OURS]
        uneven = g.rows.group_by("policy").agg(pl.struct("workload", "seed").n_unique().alias("n"))["n"].n_unique() > 1
        sets.append(
            {
                "set": g.set,
                "platform": g.platform,
                "drawn": g.drawn,
                "harm": g.harm(),
                "unjudged": g.unjudged(),
                "interval": _interval(g),
                "bundles": g.rows["bundle"].drop_nulls().n_unique(),
                "workloads": g.rows["workload"].n_unique(),
                "seeds": len(g.seeds()),
                "lc": sorted(g.rows["lc"].unique().to_list()),
                "be": _known(g.rows, "be_throughput"),
                "be_workloads": g.rows.filter(pl.col("be_throughput").is_not_null())["workload"].n_unique(),
                "same_runs": not uneven,
                "policies": [policy_facts(g, p) for p in policies],
                "ratios": [ratio_facts(g, p, other) for p in ours for other in policies if other != p],
                "ranks": _ranks(g, ours),
            }
        )
    said = [pl.col(name).first() for name in SAID]
    outs = (
        pl.concat([rows, misled])
        .group_by("out")
        .agg(pl.len().alias("rows"), pl.col("platform").unique().sort(), *said)
        .sort("out")
    )
    facts = {"made_from": outs.to_dicts(), "sets": sets, "untruths": untruths(rows, misled), "published": compare(found)}
    return facts, found
