"""How right intervals and the strangeness score are: coverage, width, false "met", and the error of what is kept.

Coverage weighs all services of a world alike. Measures end with `_valid` where the service was not overloaded when it was asked
about, and with `_over` where it was.

    b_coverage, a_oaa_cores_coverage, a_oaa_ways_coverage   share of labels within the interval
    b_width, ...            mean of upper less lower end: QoS, cores, ways
    b_false_met_lower, b_accuracy_lower   as `b_false_met` and `b_accuracy`, "met" said only where the lower end is 1 or more
    b_missed_met_lower      of the cells that meet, the share of which that is not said
    strange_share           of observations, with a score above 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models import intervals
from pipelines.fits import calibrate

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

NAMES = {"qos": "b", "oaa_cores": "a_oaa_cores", "oaa_ways": "a_oaa_ways"}


@dataclass(frozen=True)
class Told:
    """What a model said of rows whose answer is known.

    Attributes:
        output: the central output, e.g. `qos`.
        service: of each row, a number.
        over: whether the service was overloaded when it was asked about.
        strangeness: of the row's observation.
    """

    output: str
    middle: F64
    lower: F64
    upper: F64
    label: F64
    service: I64
    over: Mask
    strangeness: F64

    def part(self, rows: Mask) -> Told:
        return Told(
            self.output,
            self.middle[rows],
            self.lower[rows],
            self.upper[rows],
            self.label[rows],
            self.service[rows],
            self.over[rows],
            self.strangeness[rows],
        )

    @property
    def width(self) -> F64:
        return self.upper - self.lower


def told(
    output: str, names: Sequence[str], answer: F64, label: F64, service: I64, over: Mask, strangeness: F64, most: float
) -> Told:
    """Of a model's answer, shape (rows, names), the part on one output; rows without a label are left out."""
    middle, *ends = (answer[:, names.index(n)] for n in (output, output + intervals.LOWER, output + intervals.UPPER))
    lower, upper = intervals.settled(middle, ends[0], ends[1], 0.0, most)
    return Told(output, middle, lower, upper, label, service, over, strangeness).part(np.isfinite(label))


def measures(of: Told) -> dict[str, float]:
    """All measures of one world; what has nothing to be measured on is left out."""
    found: dict[str, float] = {}
    for suffix, rows in (("", np.ones(len(of.label), dtype=bool)), ("_valid", ~of.over), ("_over", of.over)):
        if rows.any():
            found |= {f"{name}{suffix}": value for name, value in _measured(of.part(rows)).items()}
    return found


def _measured(of: Told) -> dict[str, float]:
    name, weights = NAMES[of.output], calibrate.evenly(of.service)
    found = {
        f"{name}_coverage": float(weights @ calibrate.covered(of.label, of.lower, of.upper)),
        f"{name}_width": float(weights @ of.width),
    }
    if of.output == "qos":
        met, said = of.label >= 1.0, of.lower >= 1.0
        found[f"{name}_accuracy_lower"] = float((met == said).mean())
        if not met.all():
            found[f"{name}_false_met_lower"] = float(said[~met].mean())
        if met.any():
            found[f"{name}_missed_met_lower"] = float((~said[met]).mean())
    else:
        found["strange_share"] = float((of.strangeness > 1.0).mean())
    return found


def error(of: Told) -> F64:
    """Of each row: of QoS as `b_error_pct` has it, else in cores or ways."""
    if of.output == "qos":
        return np.asarray(100 * np.abs(np.clip(of.middle, 0, 1) - np.minimum(of.label, 1)))
    return np.abs(of.middle - of.label)


def abstention(worlds: Sequence[Told], share: float) -> dict[str, float]:
    """Mean error of all rows of all worlds, and of the share that is kept by strangeness, by width, and by an oracle.

    With the widest intervals left out the error says what a policy gains that does not act on them.
    """
    joined = [np.concatenate(parts) for parts in zip(*((error(w), w.strangeness, w.width) for w in worlds), strict=True)]
    errors, strangeness, width = joined
    found = {"all": float(errors.mean())}
    for name, by in (("least_strange", strangeness), ("least_wide", width), ("least_wrong", errors)):
        found[name] = float(errors[calibrate.kept(by, share)].mean())
    return found
