"""Means with intervals, as the evaluation report gives them; which interval is said beside each.

Two kinds of sets, two kinds of uncertainty:

- Workloads **drawn** at random: the workload is the unit. Its seeds are averaged first, then workloads are resampled with
  replacement (percentile bootstrap, 10,000 times, 95 %). Ratios resample numerator and denominator together: they are paired.
- **Scripts** (churn): there is nothing to resample but the noise, so the seed is the unit, with Student's t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_TIMES = 10_000
_SHARE = (2.5, 97.5)
# Student's t, two-sided 95 %, by degrees of freedom; past these the last is a little too wide
_T = [
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
]
_T += [2.093]


@dataclass(frozen=True)
class Estimate:
    """A figure, its 95 % interval (None where one value has none) and how many units it is of."""

    value: float
    low: float | None
    high: float | None
    units: int

    def as_json(self) -> dict[str, float | int | None]:
        return {"value": self.value, "low": self.low, "high": self.high, "units": self.units}


def _bootstrapped(figures: np.ndarray, value: float, units: int) -> Estimate:
    figures = figures[np.isfinite(figures)]
    if units < 2 or not figures.size:
        return Estimate(value, None, None, units)
    low, high = np.percentile(figures, _SHARE)
    return Estimate(value, float(low), float(high), units)


def _resampled(units: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, units, (_TIMES, units))


def over_workloads(values: Sequence[float]) -> Estimate | None:
    """Mean over workloads, bootstrapped; None of nothing.

    Args:
        values: one a workload, the mean over its seeds.
    """
    x = np.asarray(values, float)
    if not x.size:
        return None
    return _bootstrapped(x[_resampled(x.size)].mean(axis=1), float(x.mean()), x.size)


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """Ratio of two means over the same workloads, bootstrapped in pairs; None of nothing, or over a mean of 0."""
    a, b = np.asarray(above, float), np.asarray(below, float)
    if a.size != b.size:
        raise ValueError(f"{a.size} values above and {b.size} below")
    if not a.size or b.mean() <= 0:
        return None
    drawn = _resampled(a.size)
    with np.errstate(all="ignore"):
        figures = a[drawn].mean(axis=1) / b[drawn].mean(axis=1)
    return _bootstrapped(figures, float(a.mean() / b.mean()), a.size)


def over_seeds(values: Sequence[float], *, signed: bool = False) -> Estimate | None:
    """Mean over seeds with Student's t; None of nothing.

    Args:
        signed: differences, which may be below 0 though none is. Else the interval is cut at 0 where no value is below: times
            and counts are not negative.
    """
    x = np.asarray(values, float)
    if not x.size:
        return None
    mean = float(x.mean())
    if x.size < 2:
        return Estimate(mean, None, None, x.size)
    half = _T[min(x.size - 2, len(_T) - 1)] * float(x.std(ddof=1)) / np.sqrt(x.size)
    low = mean - float(half)
    return Estimate(mean, max(0.0, low) if x.min() >= 0 and not signed else low, mean + float(half), x.size)


def ecdf(values: Sequence[float], failed: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps of the distribution of convergence times: (s, share of all runs). Failures never come: the last share is below 1."""
    x = np.sort(np.asarray(values, float))
    total = x.size + failed
    return x, np.arange(1, x.size + 1) / max(1, total)
