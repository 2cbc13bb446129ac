"""The features of every model, in one place: names, order, units, bounds and scaling.

The order is that of OSML+, Table 3. The node computes the same names (scheduler/server/src/features.rs); the list that a
model was trained with is written into its bundle, and the node follows that list by name.

Feature sets: `full`, and `no-pmu` for hosts without performance counters. A host without cache partitioning (0 ways) has
no cache features. A feature that no sample of a data set has is left out of the models and named in the bundle; it is
never filled in with 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import relative

FEATURE_SETS = ("full", "no-pmu")

# design.md 4.2: the columns of a sample, in Table 3's order (`alloc_ways` repeats `alloc_cache_mb` in ways).
SAMPLE_FEATURES = (
    "ipc",
    "llc_misses_per_s",
    "mbl_mbps",
    "cpu_usage_cores",
    "virt_mem_mb",
    "res_mem_mb",
    "alloc_cores",
    "alloc_ways",
    "alloc_cache_mb",
    "core_freq_mhz",
    "nb_cores",
    "nb_cache_mb",
    "nb_mbl_mbps",
)

# Table 3, IDs 1-9 and 12-14.
MODEL_A_INPUTS = (
    "ipc",
    "llc_misses_per_s",
    "mbl_mbps",
    "cpu_usage_cores",
    "virt_mem_mb",
    "res_mem_mb",
    "alloc_cores",
    "alloc_cache_mb",
    "core_freq_mhz",
    "nb_cores",
    "nb_cache_mb",
    "nb_mbl_mbps",
)
# IDs 1-14.
MODEL_B_INPUTS = (*MODEL_A_INPUTS[:9], "expected_cores", "expected_cache_mb", *MODEL_A_INPUTS[9:])
# IDs 1-4 and 7-9, and `qos` = min(1, QoS target / p99 latency). Table 3 lists no such input, but the reward and the decision
# to grow or shrink hinge on it: without it two services with equal counters, one inside and one outside its target, would be
# one state. The authors' published program feeds it too.
MODEL_C_INPUTS = (
    "ipc",
    "llc_misses_per_s",
    "mbl_mbps",
    "cpu_usage_cores",
    "alloc_cores",
    "alloc_cache_mb",
    "core_freq_mhz",
    "qos",
)

MODEL_A_OUTPUTS = ("oaa_cores", "oaa_ways", "oaa_mbl_mbps", "rcliff_cores", "rcliff_ways")
MODEL_B_OUTPUTS = ("qos",)

# OSML+, Table 5. The step is one allocation unit of cores, one way, 10 % of MBA.
ACTIONS = ("cores_up", "cores_down", "ways_up", "ways_down", "mba_up", "mba_down", "idle")

_PMU = frozenset({"ipc", "llc_misses_per_s", "mbl_mbps", "nb_mbl_mbps", "all_mbl_mbps"})
_CACHE = frozenset(
    {"alloc_ways", "alloc_cache_mb", "nb_cache_mb", "expected_cache_mb", "platform_cache_mb", "platform_mb_per_way"}
)


class FeatureError(ValueError):
    """A feature set, a name or a bound that cannot be used; the message names it and the remedy."""


@dataclass(frozen=True)
class PlatformLimits:
    """What the models must know of a platform.

    `cores` are managed logical CPUs, `core_step` cores per allocation unit (0.1 where quotas stand in for whole cores),
    `ways` LLC ways (0 where the cache cannot be partitioned).
    """

    name: str
    cores: float
    core_step: float
    ways: int
    mb_per_way: float
    mba: bool = False

    def __post_init__(self) -> None:
        if not self.name or self.cores <= 0 or self.core_step <= 0 or self.ways < 0 or self.mb_per_way < 0:
            raise FeatureError(
                f"platform {self.name!r}: cores {self.cores}, core_step {self.core_step}, ways {self.ways}, mb_per_way "
                f"{self.mb_per_way}: cores and core_step must be above 0, the others not negative"
            )

    @classmethod
    def from_manifest(cls, platform: dict[str, Any]) -> PlatformLimits:
        """From the `platform` object of a campaign's manifest."""
        try:
            return cls(
                name=str(platform["name"]),
                cores=float(platform["cores"]),
                core_step=float(platform.get("core_step", 1.0)),
                ways=int(platform["ways"] or 0),
                mb_per_way=float(platform.get("mb_per_way") or 0.0),
                mba=bool(platform.get("mba", False)),
            )
        except KeyError as missing:
            raise FeatureError(f"platform: field {missing} is missing; collect the campaign again") from None
        except (TypeError, ValueError, OverflowError) as wrong:
            if isinstance(wrong, FeatureError):
                raise
            raise FeatureError(f"platform: a field is no number ({wrong}); collect the campaign again") from None


def candidates(inputs: Sequence[str], feature_set: str, ways: int) -> list[str]:
    """The inputs of a model that a host of this kind can have at all, order kept."""
    if feature_set not in FEATURE_SETS:
        raise FeatureError(f"feature set {feature_set!r} is unknown; known: {', '.join(FEATURE_SETS)}")
    kept = []
    for name in inputs:
        known = relative.table().get(name)
        needs = {name} if known is None else set(known.quantities)
        if not (feature_set == "no-pmu" and needs & _PMU) and not (ways == 0 and needs & _CACHE):
            kept.append(name)
    return kept


def output_candidates(outputs: Sequence[str], feature_set: str, ways: int) -> list[str]:
    """The outputs of a model that have a meaning on such a host, order kept."""
    return [
        name
        for name in outputs
        if not (ways == 0 and name.endswith("_ways")) and not (feature_set == "no-pmu" and name.endswith("_mbps"))
    ]


@dataclass(frozen=True)
class Bound:
    """One input and the range that maps to [0, 1] (OSML+, Sec. 3.2); values outside are clipped."""

    name: str
    min: float
    max: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.min) and math.isfinite(self.max) and self.min < self.max):
            raise FeatureError(f"input {self.name}: bounds [{self.min}, {self.max}] are not a finite, non-empty range")


def platform_limits(platform: PlatformLimits) -> dict[str, float]:
    """The most that an input can be on a platform, where the platform says so."""
    cache_mb = platform.ways * platform.mb_per_way
    return {
        "cpu_usage_cores": platform.cores,
        "alloc_cores": platform.cores,
        "alloc_ways": float(platform.ways),
        "alloc_cache_mb": cache_mb,
        "nb_cores": platform.cores,
        "nb_cache_mb": cache_mb,
        "expected_cores": platform.cores,
        "expected_cache_mb": cache_mb,
        "qos": 1.0,
    }


# What no machine exceeds. A reading of an interval may pass a quota by what it saved up in the one before.
_MOST_IPC = 12.0
_MOST_MISSES_PER_S = 1e9  # of one core: a miss a nanosecond
MOST_MBPS_A_CORE = 60_000.0
_ADDRESS_SPACE_MB = 2.0**27  # 47 bits
_READING_OVER_QUOTA = 2.0


def sample_ranges(platform: PlatformLimits) -> dict[str, tuple[float, float]]:
    """Least and most that a sample's feature can be: physics, and what the platform has. For checks of data, not for scaling."""
    limits = platform_limits(platform)
    return {
        "ipc": (0.0, _MOST_IPC),
        "llc_misses_per_s": (0.0, _MOST_MISSES_PER_S * platform.cores),
        "mbl_mbps": (0.0, MOST_MBPS_A_CORE * platform.cores),
        "cpu_usage_cores": (0.0, _READING_OVER_QUOTA * limits["cpu_usage_cores"]),
        "virt_mem_mb": (0.0, _ADDRESS_SPACE_MB),
        "res_mem_mb": (0.0, _ADDRESS_SPACE_MB),
        "alloc_cores": (platform.core_step / 2, limits["alloc_cores"]),
        "alloc_ways": (0.0, limits["alloc_ways"]),
        "alloc_cache_mb": (0.0, limits["alloc_cache_mb"]),
        "core_freq_mhz": (100.0, 10_000.0),
        "nb_cores": (0.0, limits["nb_cores"]),
        "nb_cache_mb": (0.0, limits["nb_cache_mb"]),
        "nb_mbl_mbps": (0.0, MOST_MBPS_A_CORE * platform.cores),
    }


def make_bounds(names: Sequence[str], observed: dict[str, tuple[float, float]], platform: PlatformLimits) -> list[Bound]:
    """Bounds of a model's inputs: fixed ones of models/relative.py, the platform's limits, else from 0 to what the data show.

    Args:
        names: inputs of the model, in order.
        observed: smallest and largest value seen of each sample feature.
    """
    limits = platform_limits(platform)
    bounds = []
    for name in names:
        if known := relative.table().get(name):
            bounds.append(Bound(name, known.min, known.max))
            continue
        if name in limits:
            bounds.append(Bound(name, 0.0, limits[name]))
            continue
        if name not in observed:
            raise FeatureError(f"input {name}: no sample has it; leave it out or collect it")
        low, high = observed[name]
        if name == "nb_mbl_mbps" and high <= 0.0 and "mbl_mbps" in observed:
            high = observed["mbl_mbps"][1]  # no case had neighbours; at run time there will be some
        # A frequency never comes near 0: the range that is seen, with room on both sides, keeps its resolution.
        low, high = (0.9 * low, 1.1 * high) if name == "core_freq_mhz" else (0.0, 1.1 * high)
        bounds.append(Bound(name, low, high if high > low else low + 1.0))
    return bounds


def normalise(raw: NDArray[np.float64], bounds: Sequence[Bound]) -> NDArray[np.float32]:
    """(x - min) / (max - min), clipped to [0, 1]: computed in f64, then rounded to f32, as the node does.

    Args:
        raw: shape (rows, len(bounds)), natural units.
    """
    low = np.array([b.min for b in bounds])
    span = np.array([b.max - b.min for b in bounds])
    return np.clip((np.asarray(raw, dtype=np.float64) - low) / span, 0.0, 1.0).astype(np.float32)


@dataclass(frozen=True)
class Scale:
    """One output: natural units = network output x scale + offset."""

    name: str
    scale: float
    offset: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and math.isfinite(self.offset) and self.scale > 0):
            raise FeatureError(f"output {self.name}: scale {self.scale}, offset {self.offset}: want finite, scale above 0")


def make_scales(names: Sequence[str], values: NDArray[np.float64]) -> list[Scale]:
    """Mean and standard deviation of each output column; a constant column keeps scale 1."""
    scales = []
    for column, name in enumerate(names):
        deviation = float(np.std(values[:, column]))
        scales.append(Scale(name, deviation if deviation > 1e-9 else 1.0, float(np.mean(values[:, column]))))
    return scales


def standardise(values: NDArray[np.float64], scales: Sequence[Scale]) -> NDArray[np.float32]:
    """Natural units to network units; inverse of `natural`."""
    offset = np.array([s.offset for s in scales])
    scale = np.array([s.scale for s in scales])
    return ((values - offset) / scale).astype(np.float32)


def natural(raw: NDArray[np.float32], scales: Sequence[Scale]) -> NDArray[np.float64]:
    """Network units to natural units, in f64."""
    offset = np.array([s.offset for s in scales])
    scale = np.array([s.scale for s in scales])
    return raw.astype(np.float64) * scale + offset
