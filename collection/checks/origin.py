"""Where rows come from: the platform, campaign and host that their manifest says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import polars as pl

from collection.dataset import Manifest


def shard(frame: pl.DataFrame, manifest: Manifest) -> Iterator[str]:
    """What is wrong."""
    for name, want in (("platform", manifest.platform.name), ("campaign", manifest.campaign)):
        other = sorted(set(frame[name].unique()) - {want})
        if other:
            yield f"column {name}: {', '.join(other)}, the manifest says {want}: hosts or targets are swapped"
    strange = sorted(set(frame["service"].unique()) - set(manifest.services))
    if strange:
        yield f"column service: {', '.join(strange)} is not among the manifest's services: hosts or targets are swapped"


def whole(table: pl.DataFrame, manifest: Manifest, hosts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Parts of a campaign are runs of planes in its order (`--part`), so what a host has tells which part it measured."""
    told = (manifest.model_extra or {}).get("hosts")
    strategy = (manifest.model_extra or {}).get("strategy")
    if not isinstance(told, list) or not hosts or strategy == "random":
        return
    spec = _Order(manifest)
    numbers = {str(h["name"]): int(h["part"]["number"]) for h in told}
    owner = {file: numbers[host] for file, host in hosts.items() if host in numbers}
    names = {number: host for host, number in numbers.items()}
    planes = (
        table.group_by("file", "service", "load", "beside", "threads" if spec.by_threads else pl.lit(0).alias("threads")).agg(
            pl.len()
        )
    ).with_columns(pl.col("file").cast(pl.String), pl.col("service").cast(pl.String))
    found = [(owner[f], spec.place(s, r, t), f) for f, s, r, _, t, _ in planes.iter_rows() if f in owner]
    found.sort()
    edges = {n: (min(p for m, p, _ in found if m == n), max(p for m, p, _ in found if m == n)) for n in {m for m, _, _ in found}}
    ordered = sorted(edges)
    apart = [(a, b) for a, b in pairwise(ordered) if edges[a][1] > edges[b][0]]
    if not apart:
        return
    beyond = {n: next(f for m, p, f in found if m == n and p in edges[n]) for pair in apart for n in pair}
    # swapped: to say whose planes they are, count planes as `--part` does
    places = sorted(p for _, p, _ in found)
    whose = {
        p: names[min(len(names), 1 + (places.index(p) + places.count(p) // 2) * len(names) // len(places))] for p in set(places)
    }
    for n in ordered:
        wrong = sorted((f, whose[p]) for m, p, f in found if m == n and whose[p] != names[n])
        if wrong and Counter(whose[p] for m, p, _ in found if m == n).most_common(1)[0][0] != names[n]:
            other = Counter(host for _, host in wrong).most_common(1)[0][0]
            files = sorted({f for f, _ in wrong})
            more = f" (and so do {len(files) - 1:,} other shards)" if len(files) > 1 else ""
            yield files[0], f"stands under {names[n]} and holds planes of the part of {other}{more}: hosts are swapped"
        elif n in beyond:
            yield beyond[n], f"stands under {names[n]} and holds planes of another host's part: hosts are swapped"


class _Order:
    """The order of a campaign's planes (docs/campaign-format.md, Cases)."""

    def __init__(self, manifest: Manifest) -> None:
        spec: Any = (manifest.model_extra or {}).get("spec")
        sweep = spec.get("sweep", {}) if isinstance(spec, dict) else {}
        listed = sweep.get("services")
        names = [str(s) for s in listed] if isinstance(listed, list) else sorted(manifest.services)
        self.services = {name: i for i, name in enumerate(names)}
        self.loads = _places(_loads(sweep.get("rps")))
        self.threads = _places(sweep.get("threads"))
        # with one thread a core the threads of a cell say nothing about its plane
        self.by_threads = sweep.get("threads") not in (None, "cores")

    def place(self, service: str, load: float, threads: int) -> tuple[float, float, float]:
        return (
            self.services.get(service, len(self.services)),
            self.loads.get(round(float(load), 3), float(load)) if self.loads else float(load),
            self.threads.get(float(threads), float(threads)) if self.threads else float(threads),
        )


def _loads(axis: object) -> object:
    """The list of a campaign that finds its loads ("saturation:20,40"); other axes as they are."""
    if not isinstance(axis, str) or not axis.startswith("saturation:"):
        return axis
    try:
        return [float(word) for word in axis.partition(":")[2].split(",")]
    except ValueError:
        return None


def _places(axis: object) -> dict[float, float]:
    """Position of each value of a list; empty for a range or a word, which ascend."""
    return {round(float(v), 3): float(i) for i, v in enumerate(axis)} if isinstance(axis, list) else {}
