"""A small synthetic campaign: an M/M/c-like latency surface over cores and ways, in the format of design.md 4.2.

Not a model of any machine: it only has a cliff in both directions, counters that tell services apart, and every verdict.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipelines.io import sha256_file


@dataclass(frozen=True)
class Service:
    """Demand of one service; `ways_half` ways halve the misses."""

    name: str
    work_ms: float
    miss_ms: float
    ways_half: float
    res_mb: float
    qos_target_ms: float


SERVICES = (
    Service("alpha", 1.0, 1.5, 2.0, 900.0, 20.0),
    Service("beta", 2.2, 0.8, 4.0, 2400.0, 40.0),
    Service("gamma", 0.6, 2.4, 3.0, 5200.0, 15.0),
)


def service_ms(s: Service, ways: float) -> float:
    """Mean service time with that many ways (0: the cache is not partitioned)."""
    return s.work_ms + s.miss_ms * 0.5 ** (ways / s.ways_half if ways else 2.0)


def p99_ms(s: Service, rps: float, cores: float, ways: float, mba_pct: int = 100) -> float:
    """p99 of an M/M/c queue, infinite at or beyond saturation; fractional cores slow the server down."""
    mean_ms = service_ms(s, ways) * (1.0 + 0.3 * (100 - mba_pct) / 100)
    servers = max(1, math.floor(cores))
    mean_ms *= servers / cores
    rate = rps / 1000.0
    rho = rate * mean_ms / servers
    if rho >= 1.0:
        return math.inf
    b = 1.0
    for k in range(1, servers + 1):
        b = rho * servers * b / (k + rho * servers * b)
    wait = b / (1 - rho + rho * b)
    # p99 of service plus p99 of waiting: an upper bound that is smooth in every argument.
    waiting = mean_ms / (servers * (1 - rho)) * math.log(max(wait / 0.01, 1.0))
    return mean_ms * math.log(100.0) + waiting


@dataclass
class Campaign:
    """What to make up; the defaults give 3 services x 4 loads x 12 cores x 6 ways x 4 samples."""

    name: str = "synthetic"
    platform: str = "toy-12x6"
    cores: float = 12.0
    core_step: float = 1.0
    core_values: tuple[float, ...] = tuple(float(c) for c in range(1, 13))
    ways: int = 6
    mb_per_way: float = 2.0
    mba: bool = False
    mba_values: tuple[int, ...] = (100,)
    feature_set: str = "full"
    loads: tuple[float, ...] = (800.0, 1600.0, 2400.0, 3200.0)
    samples: int = 4
    neighbours: tuple[tuple[tuple[str, float], ...], ...] = ((),)
    noise: float = 0.02
    seed: int = 1
    client_limited_every: int = 0
    unresolvable_every: int = 0
    services: tuple[Service, ...] = SERVICES


def rows(c: Campaign) -> pl.DataFrame:
    """All samples of the campaign."""
    rng = np.random.default_rng(c.seed)
    out: list[dict[str, Any]] = []
    case = 0
    way_values = range(1, c.ways + 1) if c.ways else [0]
    pmu = c.feature_set == "full"
    for s in c.services:
        for rps in c.loads:
            for neighbours in c.neighbours:
                for mba_pct in c.mba_values:
                    for cores in c.core_values:
                        for ways in way_values:
                            case += 1
                            truth = p99_ms(s, rps, cores, ways, mba_pct)
                            busy = min(cores, rps / 1000.0 * service_ms(s, ways))
                            overloaded = math.isinf(truth)
                            nb_cores = c.cores - cores if neighbours else 0.0
                            nb_ways = c.ways - ways if neighbours else 0
                            for k in range(c.samples):
                                wobble = float(np.exp(rng.normal(0.0, c.noise)))
                                verdict = "server-overloaded" if overloaded else "valid"
                                if c.client_limited_every and case % c.client_limited_every == 0:
                                    verdict = "client-limited"
                                elif c.unresolvable_every and case % c.unresolvable_every == 0:
                                    verdict = "not-resolvable"
                                p99 = truth * wobble if verdict == "valid" else None
                                misses = 1e5 * rps / 1000.0 * s.miss_ms * 0.5 ** (ways / s.ways_half) * wobble
                                noisy = lambda v: float(v * np.exp(rng.normal(0.0, c.noise)))  # noqa: E731
                                out.append(
                                    {
                                        "campaign": c.name,
                                        "platform": c.platform,
                                        "service": s.name,
                                        "case_id": f"{case:08d}",
                                        "threads": 12,
                                        "rps": rps,
                                        "mba_pct": mba_pct,
                                        "neighbours": [
                                            {"service": n, "cores": nb_cores, "ways": nb_ways, "rps": r} for n, r in neighbours
                                        ],
                                        "repeat": 0,
                                        "t_ms": 100 * k,
                                        "ipc": noisy(s.work_ms / service_ms(s, ways)) if pmu else None,
                                        "llc_misses_per_s": misses if pmu else None,
                                        "mbl_mbps": misses * 64e-6 * 1e3 if pmu else None,
                                        "cpu_usage_cores": noisy(busy),
                                        "virt_mem_mb": 2.0 * s.res_mb,
                                        "res_mem_mb": noisy(s.res_mb),
                                        "alloc_cores": cores,
                                        "alloc_ways": float(ways) if c.ways else None,
                                        "alloc_cache_mb": ways * c.mb_per_way if c.ways else None,
                                        "core_freq_mhz": noisy(3000.0 - 20.0 * busy),
                                        "nb_cores": nb_cores,
                                        "nb_cache_mb": nb_ways * c.mb_per_way if c.ways else None,
                                        "nb_mbl_mbps": (500.0 * len(neighbours)) if pmu else None,
                                        "latency_mean_ms": None if p99 is None else p99 / 4,
                                        "latency_p50_ms": None if p99 is None else p99 / 5,
                                        "latency_p95_ms": None if p99 is None else p99 / 1.5,
                                        "latency_p99_ms": p99,
                                        "achieved_rps": rps,
                                        "errors": 0,
                                        "count": int(rps),
                                        "latency_p99_low_ms": None,
                                        "latency_p99_high_ms": None,
                                        "verdict": verdict,
                                    }
                                )
    neighbour = pl.Struct({"service": pl.String, "cores": pl.Float64, "ways": pl.Int32, "rps": pl.Float64})
    floats = [name for name in out[0] if name.startswith(("latency_", "nb_", "alloc_"))]
    floats += ["ipc", "llc_misses_per_s", "mbl_mbps", "cpu_usage_cores", "core_freq_mhz", "rps"]
    types = {**dict.fromkeys(floats, pl.Float64), "neighbours": pl.List(neighbour), "threads": pl.Int32, "mba_pct": pl.Int32}
    return pl.DataFrame(out, schema_overrides=types)


def write(folder: Path, c: Campaign | None = None) -> Path:
    """Write the campaign as one target's folder; returns it."""
    c = c or Campaign()
    frame = rows(c)
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    shards = []
    half = frame.height // 2
    for k, part in enumerate((frame[:half], frame[half:])):
        path = folder / "shards" / f"{k:05d}.parquet"
        part.write_parquet(path, compression="zstd")
        shards.append({"file": f"shards/{path.name}", "rows": part.height, "sha256": sha256_file(path)})
    cases = frame["case_id"].n_unique()
    manifest = {
        "schema_version": 1,
        "campaign": c.name,
        "campaign_hash": "0" * 64,
        "platform": {
            "name": c.platform,
            "cores": c.cores,
            "core_step": c.core_step,
            "ways": c.ways,
            "mb_per_way": c.mb_per_way if c.ways else 0.0,
            "mba": c.mba,
        },
        "feature_set": c.feature_set,
        "services": {s.name: {"qos_target_ms": s.qos_target_ms, "max_load_rps": None} for s in c.services},
        "shards": shards,
        "cases": {"planned": cases, "measured": cases, "infeasible": 0, "client_limited": 0, "overloaded": 0, "failed": 0},
        "software": {},
        "host": {},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
