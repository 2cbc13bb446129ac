"""Ranks of policies over the workloads of a set, and whether they could be chance.

On each workload the policies are ranked by the mean over its seeds (1 is the best; equals share a rank). Friedman's test asks
whether all policies could be as good as each other. Then each of ours is held against each other policy by Wilcoxon's
signed-rank test over workloads, the comparisons of a set and a metric corrected by Holm: whatever number of rivals there is,
the chance that one difference of that metric is called sure by mistake is 5 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

# A rank test over fewer workloads cannot come to 5 %.
LEAST = 6
ALPHA = 0.05
# What is ranked: the column, and whether less is better.
METRICS = (("qos_violation_s", True), ("be_throughput", False))


def holm(p: Sequence[float]) -> list[float]:
    """Values of p corrected for their number: the smallest counts n times, the next n - 1 times, none less than one before it."""
    order = np.argsort(p, kind="stable")
    corrected, highest = [0.0] * len(p), 0.0
    for k, at in enumerate(order):
        highest = max(highest, min(1.0, (len(p) - k) * p[int(at)]))
        corrected[int(at)] = highest
    return corrected


def _wilcoxon(mine: np.ndarray, other: np.ndarray) -> float:
    """Two-sided p; 1 where no workload differs. Workloads without a difference count by Pratt's rule."""
    if np.array_equal(mine, other):
        return 1.0
    return float(stats.wilcoxon(mine, other, zero_method="pratt", method="approx").pvalue)


def _friedman(values: np.ndarray) -> float | None:
    """p that all columns are as good as each other; None of fewer than three, 1 where none differs on any workload."""
    if values.shape[1] < 3:
        return None
    if (values == values[:, :1]).all():
        return 1.0
    return float(stats.friedmanchisquare(*values.T).pvalue)


def ranks(rows: pl.DataFrame, policies: Sequence[str], ours: Sequence[str], column: str, less: bool) -> dict[str, Any] | None:
    """Mean ranks, Friedman's p and the comparisons of ours; None where workloads or policies are too few.

    Args:
        rows: of one set, a row for each workload, policy and seed.
        policies: whom to rank, in the order of the tables.
        ours: those of them that are held against all others.
        less: whether less is better.
    """
    mean = rows.group_by("workload", "policy").agg(pl.col(column).mean().fill_nan(None)).drop_nulls()
    table = mean.pivot(on="policy", index="workload", values=column).sort("workload")
    ranked = [p for p in policies if p in table.columns]
    table = table.select("workload", *ranked).drop_nulls()
    if len(table) < LEAST or len(ranked) < 2:
        return None
    values = table.select(ranked).to_numpy()
    each = stats.rankdata(values if less else -values, axis=1)
    pairs = [(mine, other) for mine in ours if mine in ranked for other in ranked if other != mine]
    of = {p: values[:, k] for k, p in enumerate(ranked)}
    # Two of ours are one question, whoever of them is named first.
    asked = list(dict.fromkeys(tuple(sorted(pair)) for pair in pairs))
    raw = [_wilcoxon(of[mine], of[other]) for mine, other in asked]
    p_of = {pair: (p, p_holm) for pair, p, p_holm in zip(asked, raw, holm(raw), strict=True)}
    sign = 1.0 if less else -1.0
    compared = []
    for mine, other in pairs:
        p, holm_p = p_of[tuple(sorted((mine, other)))]
        ahead = sign * (of[other] - of[mine])
        compared.append(
            {
                "policy": mine,
                "baseline": other,
                "better_on": int((ahead > 0).sum()),
                "worse_on": int((ahead < 0).sum()),
                "p": p,
                "p_holm": holm_p,
                "sure": holm_p < ALPHA,
            }
        )
    return {
        "metric": column,
        "less_is_better": less,
        "workloads": len(table),
        "friedman_p": _friedman(values),
        "ranks": [{"policy": p, "rank": float(each[:, k].mean())} for k, p in enumerate(ranked)],
        "compared": compared,
    }
