"""How much the data of one version differ from those of the version before: profiles of both, and what is said of them.

A profile is a few kB: of each feature (over the rows), label (over the planes) and of the QoS (over the cells) how many values
there are, how many are missing, mean, standard deviation and 100 quantiles; and how rows are spread over services. Two profiles
are compared without either data set.

    distance   Wasserstein distance of the two distributions in standard deviations of the older one: the mean distance between
               quantiles of the same rank. 0.1: as if every value had moved by a tenth of a standard deviation
    PSI        population stability index of shares, sum of (now - before) x ln(now / before)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pipelines import params, samples
from pipelines.fits.rowfile import About

F64 = NDArray[np.float64]

LABELS = ("oaa_cores", "oaa_ways", "oaa_mbl_mbps", "rcliff_cores", "rcliff_ways")
_RANKS = (np.arange(100) + 0.5) / 100
_MOST_ROWS = 200_000  # a profile's; more are thinned out evenly
# Two draws of n and m values of one normal distribution are 1.3 x sqrt(1/n + 1/m) standard deviations apart on average, and 99 of
# 100 less than 2.8 x (simulated, 60 to 5,000 values).
_CHANCE = 3.0
_LEAST_SHARE = 1e-4  # of PSI, which has no value where a share is 0


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Spread(_Strict):
    """How the values of one column are spread.

    Attributes:
        kind: feature (a value a row), label (a value a plane) or qos (a value a cell).
        values: how many there are; `missing` is the share that is not.
        quantiles: at ranks 0.5 %, 1.5 % ... 99.5 %; empty without values.
    """

    kind: str
    values: int
    missing: float
    mean: float | None
    deviation: float | None
    quantiles: list[float]


class Profile(_Strict):
    """What is kept of one version of a data set; `shares`: of rows, by kind and value."""

    data_sha256: str
    campaign: str
    platform: str
    rows: int
    planes: int
    columns: dict[str, Spread]
    shares: dict[str, dict[str, float]]


class Trained(_Strict):
    """What is kept of one training, so that the next can be set against it. metrics: numbers of stage `evaluate`."""

    data_sha256: str
    campaign: str
    rows: int
    planes: int
    git_commit: str | None
    params: dict[str, str]
    metrics: dict[str, float]

    def is_same(self, other: Trained) -> bool:
        """A page made again is of the same training, whatever was committed meanwhile."""
        return (self.data_sha256, self.params, self.metrics) == (other.data_sha256, other.params, other.metrics)


class Versions(_Strict):
    """The file `versions.json`: the version before this one, if there is one, and this one; the same of trainings."""

    versions: list[Profile]
    trainings: list[Trained] = []

    def trained_before(self, now: Trained) -> Trained | None:
        """The newest training that is another one: of other data, with other parameters, or with other errors."""
        return next((t for t in reversed(self.trainings) if not t.is_same(now)), None)

    def before(self, data_sha256: str) -> Profile | None:
        """The newest version that is of other data."""
        return next((p for p in reversed(self.versions) if p.data_sha256 != data_sha256), None)

    def with_newest(self, profile: Profile, trained: Trained) -> Versions:
        """Two of each are kept. A page made again is compared with the same ones as before."""
        before, other = self.before(profile.data_sha256), self.trained_before(trained)
        return Versions(
            versions=[profile] if before is None else [before, profile],
            trainings=[trained] if other is None else [other, trained],
        )


def changed(before: Trained, now: Trained) -> dict[str, Any]:
    """What differs between two trainings, for report.json."""
    params_ = [
        {"name": name, "before": before.params.get(name), "now": now.params.get(name)}
        for name in sorted({*before.params, *now.params})
        if before.params.get(name) != now.params.get(name)
    ]
    metrics = [
        {"metric": name, "before": before.metrics.get(name), "now": now.metrics.get(name)}
        for name in sorted({*before.metrics, *now.metrics})
    ]
    return {
        "previous": before.model_dump(include={"data_sha256", "campaign", "rows", "planes", "git_commit"}),
        "same_data": before.data_sha256 == now.data_sha256,
        "params": params_,
        "metrics": metrics,
    }


def spread(kind: str, values: pl.Series) -> Spread:
    """Of one column; null, NaN and infinite values count as missing."""
    numbers = values.cast(pl.Float64).fill_null(np.nan).to_numpy()
    known = numbers[np.isfinite(numbers)]
    missing = 1.0 - len(known) / len(numbers) if len(numbers) else 1.0
    if len(known) == 0:
        return Spread(kind=kind, values=0, missing=missing, mean=None, deviation=None, quantiles=[])
    return Spread(
        kind=kind,
        values=len(known),
        missing=missing,
        mean=float(known.mean()),
        deviation=float(known.std()),
        # single precision is plenty, and halves the file
        quantiles=[float(f"{q:.7g}") for q in np.quantile(known, _RANKS)],
    )


def profile(about: About, rows: pl.DataFrame, cells: pl.DataFrame, labels: pl.DataFrame, qos_cap: float) -> Profile:
    """Of a data set as the stages `rows` and `label` left it.

    Args:
        qos_cap: largest QoS that counts, as Model-B is taught it.
    """
    key = [name for name in samples.PLANE_KEY if name != "nb_key"]
    joined = cells.join(
        labels.select(*key, pl.col("neighbours").alias("nb_key"), "qos_target_ms"),
        on=list(samples.PLANE_KEY),
        how="left",
        maintain_order="left",
    )
    qos = joined.select((pl.col("qos_target_ms") / pl.col("p99_ms")).clip(upper_bound=qos_cap))
    thin = rows.gather_every(max(1, -(-rows.height // _MOST_ROWS)))
    columns = {name: spread("feature", thin[name]) for name in about.features}
    columns |= {name: spread("label", labels[name]) for name in LABELS if name in labels.columns}
    columns["qos"] = spread("qos", qos.to_series())
    services = cells["service"].gather(rows["cell"])
    carried = rows["p99_ms"].is_not_null()
    return Profile(
        data_sha256=about.data_sha256,
        campaign=about.campaign,
        platform=about.platform.name,
        rows=rows.height,
        planes=labels.height,
        columns=columns,
        shares={
            "service": _shares(services),
            "allocation carries the load": _shares(carried.replace_strict({True: "yes", False: "no"}, return_dtype=pl.String)),
        },
    )


def _shares(values: pl.Series) -> dict[str, float]:
    counts = values.alias("value").value_counts()
    total = max(1, int(counts["count"].sum()))
    return {str(value): int(n) / total for value, n in sorted(counts.iter_rows())}


def distance(before: Spread, now: Spread) -> float | None:
    """Wasserstein distance in standard deviations of `before`; None where it has none, or no values."""
    if not before.quantiles or not now.quantiles:
        return None
    apart = float(np.abs(np.array(before.quantiles) - np.array(now.quantiles)).mean())
    if apart == 0.0:
        return 0.0
    return apart / before.deviation if before.deviation else None


def psi(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """Population stability index of two sets of shares."""
    total = 0.0
    for name in sorted({*before, *now}):
        p, q = (max(shares.get(name, 0.0), _LEAST_SHARE) for shares in (before, now))
        total += (q - p) * math.log(q / p)
    return total


def compare(before: Profile, now: Profile, limits: params.Report) -> dict[str, Any]:
    """What differs, for report.json; `drifted` names the columns and shares that are beyond the limits."""
    columns = [
        _column(name, before.columns.get(name), now.columns.get(name), limits) for name in sorted({*before.columns, *now.columns})
    ]
    shares = [_share(name, before.shares.get(name, {}), now.shares.get(name, {}), limits) for name in sorted(now.shares)]
    return {
        "previous": before.model_dump(include={"data_sha256", "campaign", "platform", "rows", "planes"}),
        "columns": columns,
        "shares": shares,
        "drifted": [c["name"] for c in (*columns, *shares) if c["why"]],
    }


def _column(name: str, before: Spread | None, now: Spread | None, limits: params.Report) -> dict[str, Any]:
    either = now or before
    assert either is not None
    found: dict[str, Any] = {"name": name, "kind": either.kind, "distance": None, "limit": None, "why": ""}
    for when, one in (("before", before), ("now", now)):
        found |= {f"mean_{when}": one and one.mean, f"missing_{when}": one and one.missing}
    if before is None or now is None:
        return found | {"why": "new" if before is None else "gone"}
    if before.values == 0 or now.values == 0:
        return found | {
            "why": "" if before.values == now.values else "has values now" if now.values else "has no values any more"
        }
    limit = max(limits.drift_distance, _CHANCE * math.sqrt(1 / before.values + 1 / now.values))
    far = distance(before, now)
    why = ""
    if far is None:
        why = f"was {before.mean:g} everywhere"
    elif far > limit:
        why = f"moved by {far:.2g} standard deviations"
    elif abs(now.missing - before.missing) > limits.drift_missing:
        why = f"missing in {100 * now.missing:.1f} %, before in {100 * before.missing:.1f} %"
    return found | {"distance": far, "limit": limit, "why": why}


def _share(name: str, before: Mapping[str, float], now: Mapping[str, float], limits: params.Report) -> dict[str, Any]:
    index = psi(before, now)
    new, gone = sorted(set(now) - set(before)), sorted(set(before) - set(now))
    parts = [f"PSI {index:.2g}"] if index > limits.drift_psi else []
    parts += [f"{word} {', '.join(names)}" for word, names in (("new:", new), ("gone:", gone)) if names]
    return {
        "name": name,
        "before": dict(before),
        "now": dict(now),
        "psi": index,
        "limit": limits.drift_psi,
        "why": "; ".join(parts),
    }
