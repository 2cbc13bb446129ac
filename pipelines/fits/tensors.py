"""From samples, cells and labels to the arrays that the models are trained and tested on.

All is in memory, f32 where it counts. A mixture of many worlds lies in files (pipelines/fits/mapped.py), so what reads a table
goes through it in blocks and gives back what it read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from models import features, relative
from models.features import ACTIONS, PlatformLimits
from pipelines import samples
from pipelines.errors import BadInput
from pipelines.fits import mapped, rowfile
from pipelines.fits.grids import Grids
from pipelines.tables import of_stage

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

ALLOCATION_STEPS = ("cores_up", "cores_down", "ways_up", "ways_down")
NEAR_STEPS = 3  # Algorithm 3 takes a few cores and ways from a neighbour, Model-C one at a time


def nothing_to_release() -> None:
    pass


@dataclass
class Table:
    """Samples of one data set, joined with the cells and planes that they belong to.

    Attributes:
        columns: sample feature -> values, one a row.
        p99_ms: p99 of each row's own window, NaN where it is not a number (overloaded, not resolvable).
        achieved_rps: completed requests a second of each row.
        cell, plane: index of each row's cell and plane.
        cell_*: per cell. `cell_qos` is target / p99, 0 where overloaded, NaN where unknown.
        plane_*: per plane. `plane_platform`: cores, ways and MB a way of its platform, shape (planes, 3).
        about: platform, feature set and data that the rows are of.
        ready: `known_cells` and `steps`, where they were made with the table.
        release: gives back the memory of what was read, where arrays lie in files.
    """

    columns: dict[str, F64]
    p99_ms: F64
    achieved_rps: F64
    cell: I64
    plane: I64
    cell_cores: F64
    cell_ways: F64
    cell_mba: F64
    cell_qos: F64
    cell_plane: I64
    plane_labels: pl.DataFrame
    plane_target_ms: F64
    plane_platform: F64
    about: rowfile.About
    ready: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None
    release: Callable[[], None] = nothing_to_release

    @property
    def platform(self) -> PlatformLimits:
        return self.about.platform

    @property
    def largest(self) -> PlatformLimits:
        """What no plane's platform exceeds: of data of one platform that one."""
        sizes = np.unique(self.plane_platform, axis=0)
        if len(sizes) == 1:
            return self.platform
        cores, ways, _ = sizes.max(axis=0)
        cache_mb = float((sizes[:, 1] * sizes[:, 2]).max())
        return replace(self.platform, cores=float(cores), ways=int(ways), mb_per_way=cache_mb / max(ways, 1.0))

    @property
    def feature_set(self) -> str:
        return self.about.feature_set

    @property
    def rows(self) -> int:
        return len(self.cell)

    @cached_property
    def grids(self) -> Grids:
        return Grids.of(self.cell_plane, self.cell_cores, self.cell_ways, self.plane_labels.height)

    @cached_property
    def known_cells(self) -> NDArray[np.int32]:
        """Cells whose QoS is known, by plane."""
        if self.ready is not None:
            return self.ready[0]
        known = np.flatnonzero(np.isfinite(self.cell_qos))
        return known[np.argsort(self.cell_plane[known], kind="stable")].astype(np.int32)

    @cached_property
    def known_count(self) -> I64:
        """How many cells of each plane those are."""
        planes = self.plane_labels.height
        count = np.zeros(planes, dtype=np.int64)
        for part in mapped.blocks(len(self.known_cells)):
            count += np.bincount(self.cell_plane[self.known_cells[part]], minlength=planes)
            self.release()
        return count

    @cached_property
    def steps(self) -> NDArray[np.int32]:
        """shape (cells, 4): the cell that each step of an allocation leads to, -1 where it was not measured."""
        return neighbour_cells(self, ALLOCATION_STEPS) if self.ready is None else self.ready[1]

    @cached_property
    def alone(self) -> NDArray[np.bool_]:
        """Planes without neighbours."""
        return (self.plane_labels["neighbours"] == "").to_numpy()

    def part(self, *splits: str) -> I64:
        """Indices of the rows whose plane is in one of the splits."""
        wanted = self.plane_labels["split"].is_in(list(splits)).to_numpy()
        return np.flatnonzero(wanted[self.plane])

    def has(self, name: str) -> bool:
        """Whether every row has this input; one of an allocation in question counts as had."""
        known = relative.table().get(name)
        return all(self._knows(q) for q in (known.quantities if known else (name,)))

    def _knows(self, quantity: str) -> bool:
        if quantity == "achieved_rps":
            return self._heard
        if quantity == "all_mbl_mbps":
            return "mbl_mbps" in self.columns and "nb_mbl_mbps" in self.columns
        made = quantity in relative.EXPECTED or quantity.startswith("platform_") or quantity in ("p99_ms", "qos_target_ms")
        return made or quantity in self.columns

    @cached_property
    def _heard(self) -> bool:
        return bool(np.isfinite(self.achieved_rps).all())

    def values(self, name: str, rows: I64, cells: I64 | None = None) -> F64:
        """One input of these rows, natural units.

        Args:
            cells: the allocation that each row is asked about, for inputs `expected_*`.
        """
        known = relative.table().get(name)
        return self._quantity(name, rows, cells) if known is None else known.of(lambda q: self._quantity(q, rows, cells))

    def _quantity(self, name: str, rows: I64, cells: I64 | None) -> F64:
        if name in relative.EXPECTED:
            if cells is None:
                raise ValueError(f"{name}: no allocation is in question")
            cores, ways = self.cell_cores[cells], self.cell_ways[cells]
            return cores if name == "expected_cores" else ways * self.plane_platform[self.cell_plane[cells], 2]

        def of(column: int) -> F64:
            return self.plane_platform[self.plane[rows], column]

        made: dict[str, Callable[[], F64]] = {
            "qos_target_ms": lambda: self.plane_target_ms[self.plane[rows]],
            "p99_ms": lambda: np.nan_to_num(self.p99_ms[rows], nan=np.inf),
            "achieved_rps": lambda: self.achieved_rps[rows],
            "platform_cores": lambda: of(0),
            "platform_cache_mb": lambda: of(1) * of(2),
            "platform_mb_per_way": lambda: of(2),
            "all_mbl_mbps": lambda: self.columns["mbl_mbps"][rows] + self.columns["nb_mbl_mbps"][rows],
        }
        return made[name]() if name in made else self.columns[name][rows]

    def matrix(self, names: Sequence[str], rows: I64) -> F64:
        """shape (len(rows), len(names)), natural units."""
        return np.column_stack([self.values(name, rows) for name in names]) if len(names) else np.empty((len(rows), 0))

    def labels(self, names: Sequence[str]) -> F64:
        """shape (planes, len(names)), NaN where a label is missing."""
        return np.column_stack([self.plane_labels[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in names])


def load(rows: Path, label_folder: Path, max_rows: int | None = None) -> Table:
    """Join the rows, cells and planes of a data set: outputs of the stages `rows` and `label`.

    Args:
        max_rows: of more, every so manieth.

    Raises:
        BadInput: one is missing or damaged, or they do not belong together.
    """
    about = rowfile.about(rows)
    labels = of_stage(label_folder / "labels.parquet").with_row_index("plane")
    cells = of_stage(label_folder / "cells.parquet")
    key = [name for name in samples.PLANE_KEY if name != "nb_key"]
    cells = cells.join(
        labels.select("plane", *key, pl.col("neighbours").alias("nb_key"), "qos_target_ms"),
        on=list(samples.PLANE_KEY),
        how="left",
        maintain_order="left",
    )
    table = of_stage(rows / "rows.parquet")
    if "achieved_rps" not in table.columns:
        raise BadInput(f"{rows}: rows.parquet has no achieved_rps: an earlier version made it; run `dvc repro`")
    if cells["plane"].null_count() or table.height != about.rows or int(table["cell"].max()) >= cells.height:  # type: ignore[arg-type]
        raise BadInput(f"{label_folder}: labels, cells and rows do not belong together; run `dvc repro`")
    if max_rows is not None:
        table = table.gather_every(-(-table.height // max_rows))
    target = cells["qos_target_ms"].to_numpy()
    platform = about.platform
    cell_plane = cells["plane"].cast(pl.Int64).to_numpy()
    cell = table["cell"].cast(pl.Int64).to_numpy()
    return Table(
        columns={name: table[name].to_numpy() for name in about.features},
        p99_ms=table["p99_ms"].cast(pl.Float64).fill_null(np.nan).to_numpy(),
        achieved_rps=table["achieved_rps"].cast(pl.Float64).fill_null(np.nan).to_numpy(),
        cell=cell,
        plane=cell_plane[cell],
        cell_cores=cells["alloc_cores"].to_numpy(),
        cell_ways=cells["alloc_ways"].to_numpy(),
        cell_mba=cells["mba_pct"].cast(pl.Float64).to_numpy(),
        cell_qos=target / cells["p99_ms"].cast(pl.Float64).fill_null(np.nan).to_numpy(),
        cell_plane=cell_plane,
        plane_labels=labels,
        plane_target_ms=labels["qos_target_ms"].to_numpy(),
        plane_platform=np.tile([platform.cores, platform.ways, platform.mb_per_way], (labels.height, 1)),
        about=about,
    )


def observed(table: Table, rows: I64) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of each sample feature in these rows."""
    return {name: (float(values[rows].min()), float(values[rows].max())) for name, values in table.columns.items()}


def model_inputs(names: Sequence[str], table: Table) -> tuple[list[str], list[str]]:
    """Inputs that the data have, and those of the paper's list that they have not."""
    possible = features.candidates(names, table.feature_set, table.platform.ways)
    made = {"expected_cores", "expected_cache_mb", "qos", "qos_slowdown"}
    kept = [name for name in possible if name in made or table.has(name)]
    return kept, [name for name in names if name not in kept]


def batch_size(wanted: int, rows: int) -> int:
    """Smaller batches for small data sets, so that an epoch is more than one step."""
    return max(1, min(wanted, max(64, rows // 16), rows))


class Batches:
    """Shuffled mini-batches of tensors that are in memory already; a new order every pass, `passes` passes an epoch."""

    def __init__(self, tensors: Sequence[Tensor], batch: int, seed: int, *, shuffle: bool = True, passes: int = 1) -> None:
        self.tensors = tuple(tensors)
        self.batch = batch
        self.passes = passes
        self.shuffle = shuffle
        self._generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return self.passes * -(-len(self.tensors[0]) // self.batch)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        n = len(self.tensors[0])
        for _ in range(self.passes):
            order = torch.randperm(n, generator=self._generator) if self.shuffle else torch.arange(n)
            for start in range(0, n, self.batch):
                rows = order[start : start + self.batch]
                yield tuple(t[rows] for t in self.tensors)


class QosQuestions:
    """Model-B's material: each row is asked about a random other allocation of its plane (OSML+, Sec. 3.2, Model-B training).

    A new allocation is drawn every pass. Cells whose QoS is unknown are never asked about. `near_share` of the questions (the
    paper: 0) are about allocations a few steps from the row's own: those are what a scheduler asks about, and there the
    cliff is; even draws over the whole plane seldom hit it.
    """

    def __init__(self, table: Table, rows: I64, cap: float, near_share: float = 0.0) -> None:
        self._cells = table.known_cells
        self._count = table.known_count
        self._start = np.concatenate([[0], np.cumsum(self._count)[:-1]])
        self.rows = rows[self._count[table.plane[rows]] > 0]
        self._plane = table.plane[self.rows]
        self.table = table
        self._cap = cap
        self._near_share = near_share
        self._leads = table.steps if near_share > 0 else None

    def draw(self, rng: np.random.Generator) -> tuple[I64, F64]:
        """Cells asked about, and the QoS there, capped: one for each of `rows`."""
        count = len(self.rows)
        even = rng.random(count)
        wanted, steps, chance = np.zeros(count, dtype=np.int64), np.zeros((0, count), dtype=np.int8), np.zeros(count)
        if self._leads is not None:
            wanted = rng.integers(1, NEAR_STEPS + 1, count)
            ways = self._leads.shape[1]
            steps = np.stack([rng.integers(0, ways, count).astype(np.int8) for _ in range(NEAR_STEPS)])
            chance = rng.random(count)
        cells, qos = np.empty(count, dtype=np.int64), np.empty(count)
        for part in mapped.blocks(count):
            plane = self._plane[part]
            pick = self._start[plane] + (even[part] * self._count[plane]).astype(np.int64)
            found = self._cells[pick].astype(np.int64)
            if self._leads is not None:
                near = self.table.cell[self.rows[part]]
                for step in range(NEAR_STEPS):
                    to = self._leads[near, steps[step, part]]
                    near = np.where((to >= 0) & (step < wanted[part]), to, near)
                usable = (chance[part] < self._near_share) & np.isfinite(self.table.cell_qos[near])
                found = np.where(usable, near, found)
            cells[part], qos[part] = found, np.minimum(self.table.cell_qos[found], self._cap)
            self.table.release()
        return cells, qos


def neighbour_cells(table: Table, actions: Sequence[str] = ACTIONS) -> NDArray[np.int32]:
    """shape (cells, actions): the cell that each action leads to, -1 where it was not measured.

    One step is the next value that the sweep visited, so a sparse sweep has longer steps than a node takes.
    """
    grids, plane = table.grids, table.cell_plane
    # A mixture has fifty million cells: numbers of four bytes, and no action that nobody asks for.
    result = np.full((len(plane), len(actions)), -1, dtype=np.int32)
    for action, (rows, columns) in {"cores_up": (1, 0), "cores_down": (-1, 0), "ways_up": (0, 1), "ways_down": (0, -1)}.items():
        if action in actions:
            result[:, actions.index(action)] = grids.at(plane, grids.row + rows, grids.column + columns)
    if "idle" in actions:
        result[:, actions.index("idle")] = np.arange(len(plane))
    # Planes that differ in bandwidth only are one group: the two `mba` actions lead from one to the other.
    if len(np.unique(table.cell_mba)) > 1 and ("mba_up" in actions or "mba_down" in actions):
        key = ["service", "rps", "threads", "neighbours"]
        groups = table.plane_labels.select("plane", pl.struct(key).rank("dense").alias("group"), "mba_pct")
        cells = pl.DataFrame(
            {"plane": plane, "cores": table.cell_cores, "ways": table.cell_ways, "cell": np.arange(len(plane))}
        ).join(groups.cast({"plane": pl.Int64}), on="plane", maintain_order="left")
        levels = groups.select("group", "mba_pct").unique().sort("group", "mba_pct")
        for action, step in (("mba_up", -1), ("mba_down", 1)):
            to = levels.with_columns(pl.col("mba_pct").shift(step).over("group").alias("to_pct"))
            found = cells.join(to, on=["group", "mba_pct"], maintain_order="left").join(
                cells.select("group", "cores", "ways", pl.col("mba_pct").alias("to_pct"), pl.col("cell").alias("to")),
                on=["group", "cores", "ways", "to_pct"],
                how="left",
                maintain_order="left",
            )
            if action in actions:
                result[:, actions.index(action)] = found["to"].fill_null(-1).to_numpy()
    return result


def row_qos(table: Table, rows: I64) -> F64:
    """min(1, QoS target / p99) of each row's own window; 0 where overloaded."""
    qos = np.minimum(1.0, table.plane_target_ms[table.plane[rows]] / table.p99_ms[rows])
    return np.nan_to_num(qos, nan=0.0)


def states(table: Table, rows: I64, bounds: Sequence[features.Bound]) -> NDArray[np.float32]:
    """Scaled inputs of a Model-C: sample features and `qos`."""
    qos = row_qos(table, rows)
    raw = np.column_stack([qos if bound.name == "qos" else table.columns[bound.name][rows] for bound in bounds])
    return features.normalise(raw, bounds)


@dataclass
class Transitions:
    """What an action led to, by row numbers of the table.

    Attributes:
        before, after: rows of the samples before and after the action.
        action: index into ACTIONS.
    """

    before: I64
    action: I64
    after: I64


def transitions(table: Table, rows: I64, count: int, rng: np.random.Generator) -> Transitions:
    """Draw (state, action, next state) from neighbouring cells of the sweep; actions evenly among those that lead somewhere."""
    order = rows[np.argsort(table.cell[rows], kind="stable")]
    n_cells = len(table.cell_cores)
    held = np.bincount(table.cell[order], minlength=n_cells)
    start = np.concatenate([[0], np.cumsum(held)[:-1]])
    before = rng.choice(rows, size=count)
    options = neighbour_cells(table)[table.cell[before]].astype(np.int64)  # (count, 7)
    options = np.where((options >= 0) & (held[np.maximum(options, 0)] > 0), options, -1)
    score = np.where(options >= 0, rng.random(options.shape), -1.0)
    action = np.argmax(score, axis=1)  # idle always leads somewhere
    to = options[np.arange(count), action]
    after = order[start[to] + (rng.random(count) * held[to]).astype(np.int64)]
    return Transitions(before, action, after)
