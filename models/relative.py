"""Inputs that carry over to services and servers that no campaign has seen: the variant `relative` of Models A and B.

The papers' inputs are readings: so many cores, MB and MB/s. What they mean depends on the server and on the service, and a
network that is asked about another one answers at random. The inputs here are shares of the platform, rates per request and the
distance to the QoS target now. No memory size is among them: it names a service and says little of its need.

Formulas and bounds are in relative.json, which the node reads too (scheduler/learn/src/relative.rs). An input is

    times * product(over) / product(under),

or the natural logarithm of that. Its bounds are fixed: a network that learnt from many platforms has one scale for all.
Quantities beside the sample's features (models/features.py):

    qos_target_ms, p99_ms      target, and the p99 of the last window; infinite where the server is overloaded. A queue that
                               has just begun to grow shows little of it, so what is far from the target looks all the same
    achieved_rps               completed requests a second; the offered load is not known on a node
    expected_cores, expected_cache_mb   the allocation that Model-B is asked about
    platform_cores, platform_cache_mb, platform_mb_per_way
    all_mbl_mbps               mbl_mbps + nb_mbl_mbps
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

EXPECTED = ("expected_cores", "expected_cache_mb")
"""Quantities of an allocation in question: only Model-B is asked about one."""


@dataclass(frozen=True)
class Relative:
    """One input: its name, formula and bounds."""

    name: str
    over: tuple[str, ...]
    under: tuple[str, ...]
    times: float
    log: bool
    min: float
    max: float

    @property
    def quantities(self) -> tuple[str, ...]:
        return (*self.over, *self.under)

    @property
    def expects(self) -> bool:
        """Whether it is about an allocation in question."""
        return any(name in EXPECTED for name in self.quantities)

    def of(self, quantity: Callable[[str], F64]) -> F64:
        """Its values, within its bounds.

        Args:
            quantity: values of a quantity by its name, shape (rows,).
        """
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            over, under = ([quantity(name) for name in names] for names in (self.over, self.under))
            value = np.asarray(over[0] * self.times, dtype=np.float64)
            for of in over[1:]:
                value = value * of
            for of in under:
                value = value / of
            # nothing over nothing: an idle service has no rates; what is not known stays unknown
            known = ~np.isnan([*over, *under]).any(axis=0)
            value = np.where(np.isnan(value) & known, 0.0, value)
            if self.log:
                value = np.log(np.maximum(value, _least()))
        return np.clip(value, self.min, self.max)


@cache
def _table() -> tuple[float, dict[str, Relative]]:
    loaded = json.loads((Path(__file__).parent / "relative.json").read_text("utf-8"))
    known = {
        i["name"]: Relative(
            name=i["name"],
            over=tuple(i["over"]),
            under=tuple(i.get("under", ())),
            times=float(i.get("times", 1.0)),
            log=bool(i.get("log", False)),
            min=float(i["min"]),
            max=float(i["max"]),
        )
        for i in loaded["inputs"]
    }
    return float(loaded["least"]), known


def _least() -> float:
    return _table()[0]


def table() -> Mapping[str, Relative]:
    """All of them by name, in order."""
    return _table()[1]


MODEL_A_RELATIVE = tuple(name for name, i in table().items() if not i.expects)
MODEL_B_RELATIVE = tuple(table())
