"""Ranks of policies over workloads, against values by hand and against scipy's own."""

from __future__ import annotations

import polars as pl
import pytest

from pipelines.pages import eval_ranks


def rows(of: dict[str, list[float]], seeds: int = 2) -> pl.DataFrame:
    """One row a workload, policy and seed: the seeds lie around the given mean."""
    return pl.DataFrame(
        {
            "workload": f"w-{k:02}",
            "policy": policy,
            "seed": seed,
            "qos_violation_s": value + (0.5 if seed % 2 else -0.5),
        }
        for policy, values in of.items()
        for k, value in enumerate(values)
        for seed in range(1, seeds + 1)
    )


def test_holm_by_hand() -> None:
    """Holm (1979): 0.01 x 4, 0.03 x 3 and 0.04 x 2 raised to 0.09, then 0.5 alone; never above 1."""
    assert eval_ranks.holm([0.04, 0.01, 0.5, 0.03]) == pytest.approx([0.09, 0.04, 0.5, 0.09])
    assert eval_ranks.holm([0.9, 0.8]) == [1.0, 1.0]


def test_ranks_and_comparisons() -> None:
    """Ten workloads: surefoot is ahead on all but one, b and c are ahead of each other by turns; seeds are averaged first."""
    surefoot = [float(k) for k in range(10)]
    b = [x + 5 + k % 2 for k, x in enumerate(surefoot)]
    c = [x + 6 - k % 2 for k, x in enumerate(surefoot)]
    b[0] = -20.0
    found = eval_ranks.ranks(
        rows({"b": b, "c": c, "surefoot": surefoot}), ["b", "c", "surefoot"], ["surefoot"], "qos_violation_s", True
    )
    assert found is not None
    rank = {r["policy"]: r["rank"] for r in found["ranks"]}
    assert rank == pytest.approx({"surefoot": 1.1, "b": 2.4, "c": 2.5})
    by = {x["baseline"]: x for x in found["compared"]}
    assert (by["b"]["better_on"], by["b"]["worse_on"], by["c"]["better_on"]) == (9, 1, 10)
    # All ten of one sign, by the normal law; and a Holm-corrected p is never below the raw one.
    assert by["c"]["sure"]
    assert by["c"]["p"] < 0.01
    assert all(x["p_holm"] >= x["p"] for x in found["compared"])
    assert found["friedman_p"] is not None
    assert found["friedman_p"] < 0.01
    more = eval_ranks.ranks(
        rows({"b": b, "c": c, "surefoot": surefoot}), ["b", "c", "surefoot"], ["surefoot"], "qos_violation_s", False
    )
    assert more is not None
    assert {r["policy"]: r["rank"] for r in more["ranks"]}["surefoot"] == pytest.approx(2.9)


def test_equal_policies_are_no_difference() -> None:
    """Who does the same on all workloads shares the rank, and nothing is sure."""
    same = [float(k) for k in range(8)]
    found = eval_ranks.ranks(rows({"a": same, "b": same, "c": same}), ["a", "b", "c"], ["a"], "qos_violation_s", True)
    assert found is not None
    assert found["friedman_p"] == 1.0
    assert {r["rank"] for r in found["ranks"]} == {2.0}
    assert not any(x["sure"] for x in found["compared"])


def test_few_workloads_have_no_ranks() -> None:
    """Below six workloads no rank test can come to 5 %; a workload that one policy lacks does not count."""
    few = {"a": [1.0] * 5, "b": [2.0] * 5}
    assert eval_ranks.ranks(rows(few), ["a", "b"], ["a"], "qos_violation_s", True) is None
    one_lacks = {"a": [1.0] * 6, "b": [2.0] * 5}
    assert eval_ranks.ranks(rows(one_lacks), ["a", "b"], ["a"], "qos_violation_s", True) is None
