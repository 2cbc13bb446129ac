"""What few samples of a new platform add to models of many worlds, over the minutes of measuring.

    python -m pipelines.worlds_transfer --models FOLDER --ask FOLDER ... --out FOLDER [--minutes 0,10,30,60] [--seeds 1,2]

`--models` is the output of `pipelines.worlds`, and `--ask` are data sets of worlds that it was not taught.

What an operator has: a new server, and some services of which the clients are there to measure with. So of each world half of
the services are measured, and half are never. The measured ones have loads and neighbours enough for a day of measuring; half
of their planes can be chosen, and the others are asked about.

A plane is measured by a search for its cliff (`worlds.search_cells`, docs/studies/2026-11-22-frontier-labels.md) and by
`worlds.more_cells` cells. A cell takes `worlds.cell_s`. Model-A is taught the label that the search found, Model-B the QoS of
those cells alone. Planes and further cells are chosen in one of two ways:

    random   as they come
    gain     the services in turn, then those that the models were most wrong about; of a service the plane that is farthest
             from those measured, by load and neighbours; further cells far from those measured, too

Methods: `as-is`, `nothing` (trained on the samples alone), and those of pipelines/fits/adapt.py; with `gain` only what onboarding
uses, and `nothing`. Asked are services that were never measured (`others`), and planes that were not, of services that were
(`own`). Writes

    transfer.json   means over the worlds, and least and most over the seeds, by choice, minutes, method and part
    transfer.csv    a row a world, seed, choice, minutes, method, part and measure

A seed draws the services and planes, and begins the trainings. The gain is how much lower an error is than that of `nothing` on
the same samples, in per cent.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models import model_a, model_b
from pipelines import params, worlds
from pipelines.errors import BadInput
from pipelines.fits import adapt, fit_oaa, fit_qos, fitted, holdout
from pipelines.fits.cliff import cliff_distance
from pipelines.fits.comparators import Asked
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Table
from pipelines.generalise import rescaled
from pipelines.io import csv_bytes, make_folder, write_bytes, write_json
from pipelines.samples import PLANT

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Models = dict[str, Fitted]

CHOICES = ("random", "gain")
PARTS = ("others", "own")
MEASURES = ("a_cores_mae", "a_ways_mae", "a_mae", "b_error_pct", "b_false_met")
GAINS = {"a": "a_mae", "b": "b_error_pct"}
"""The papers' two figures."""


def planes_in(minutes: float, p: params.Worlds) -> int:
    """How many planes can be measured."""
    return int(minutes * 60.0 / (p.cell_s * (p.search_cells + p.more_cells)))


@dataclass(frozen=True)
class Measured:
    """What was measured: planes and cells in order, and the rows of those cells."""

    planes: I64
    cells: I64
    rows: I64


class Campaign:
    """The measuring of some services of one world.

    Args:
        table: of the world, in per cent of its platform (worlds.mixture).
        candidates: planes that can be measured.
        models: which of them the choice `gain` is led by.
        whole: a plane is measured with all cells that it has, as a campaign left it.
    """

    def __init__(
        self, table: Table, candidates: I64, models: Models, p: params.Worlds, seed: int, *, whole: bool = False
    ) -> None:
        self.table, self.p, self.models, self.whole = table, p, models, whole
        self.rng = np.random.default_rng((seed, 11))
        distance = cliff_distance(table)
        self._near = np.abs(distance + 0.5)
        self._service = table.plane_labels["service"].to_numpy()
        known = np.flatnonzero(np.isfinite(table.cell_qos))
        has_row = np.zeros(len(table.cell_qos), dtype=bool)
        has_row[table.cell] = True
        self._cells = {int(q): known[(table.cell_plane[known] == q) & has_row[known]] for q in candidates}
        self.candidates = np.array([q for q, cells in self._cells.items() if len(cells)], dtype=np.int64)
        self._at = self._places()

    def _places(self) -> F64:
        """Load and neighbours of each plane, shares of the most."""
        labels = self.table.plane_labels
        rps = labels["rps"].to_numpy().astype(float)
        most = {name: rps[self._service == name].max() for name in set(self._service)}
        load = np.array([r / most[n] for r, n in zip(rps, self._service, strict=True)])
        beside = np.array([len(n.split("+")) if n else 0 for n in labels["neighbours"]], dtype=float)
        return np.column_stack([load, beside / max(beside.max(), 1.0)])

    def measure(self, count: int, how: str) -> Measured:
        """So many planes, at most all; fewer of them are the first of more."""
        planes = self._by_gain(count) if how == "gain" else self.rng.permutation(self.candidates)[:count]
        cells = [self._cells_of(int(q), how) for q in planes]
        every = np.concatenate([np.empty(0, dtype=np.int64), *cells])
        return Measured(np.array(planes, dtype=np.int64), every, np.flatnonzero(np.isin(self.table.cell, every)))

    def _cells_of(self, plane: int, how: str) -> I64:
        cells = self._cells[plane]
        if self.whole:
            return cells
        # what a search for the cliff comes to look at lies on both sides of it
        order = cells[np.lexsort((self.rng.random(len(cells)), self._near[cells]))]
        found, rest = order[: self.p.search_cells], order[self.p.search_cells :]
        if how == "random":
            return np.concatenate([found, self.rng.permutation(rest)[: self.p.more_cells]])
        return np.concatenate([found, self._spread(found, rest)])

    def _spread(self, found: I64, rest: I64) -> I64:
        """Cells that are farthest from those measured and from each other, in shares of the platform's cores and ways."""
        size = np.array([self.table.cell_cores.max(), self.table.cell_ways.max()])
        at = np.column_stack([self.table.cell_cores, self.table.cell_ways]) / size
        chosen: list[int] = []
        far = np.abs(at[rest][:, None] - at[found][None]).sum(axis=2).min(axis=1)
        for _ in range(min(self.p.more_cells, len(rest))):
            chosen.append(int(rest[np.argmax(far)]))
            far = np.minimum(far, np.abs(at[rest] - at[chosen[-1]]).sum(axis=1))
        return np.array(chosen, dtype=np.int64)

    def _by_gain(self, count: int) -> list[int]:
        left = [int(q) for q in self.rng.permutation(self.candidates)]
        chosen: list[int] = []
        wrong: dict[str, list[float]] = {}
        while left and len(chosen) < count:
            services = sorted({self._service[q] for q in left})
            fewest = min(len(wrong.get(n, [])) for n in services)
            # each is looked at once; then errors count, and less so the more a service was measured
            new = [n for n in services if not wrong.get(n)]
            gain = {n: np.mean(wrong[n]) / np.sqrt(len(wrong[n])) for n in services if wrong.get(n)}
            name = new[0] if fewest == 0 else max(gain, key=gain.__getitem__)
            own = [q for q in left if self._service[q] == name]
            done = [q for q in chosen if self._service[q] == name]
            if done:
                far = [min(np.abs(self._at[q] - self._at[d]).sum() for d in done) for q in own]
                plane = own[int(np.argmax(far))]
            else:
                plane = own[0]
            left.remove(plane)
            chosen.append(plane)
            wrong.setdefault(name, []).append(self._wrong(plane))
        return chosen

    def _wrong(self, plane: int) -> float:
        """How far the models are off where this plane was measured, both in shares of what they are about."""
        cells = self._cells_of(plane, "gain")
        rows = np.flatnonzero(np.isin(self.table.cell, cells))
        b = self.models["b"]
        before, after = np.repeat(rows, len(cells)), np.tile(cells, len(rows))
        said = fit_qos.predict_qos(b, self.table, before, after)
        error = float(np.abs(np.clip(said, 0, 1) - np.minimum(self.table.cell_qos[after], 1)).mean())
        names = [s.name for s in self.models["a"].outputs]
        labels = self.table.labels(names)[plane]
        if np.isfinite(labels).any():
            error += float(np.nanmean(np.abs(fit_oaa.predict_a(self.table, self.models["a"], rows) - labels))) / 100.0
        return error


def adapted(
    methods: Sequence[str], models: Models, table: Table, got: Measured, p: params.Worlds, seed: int
) -> dict[str, Models]:
    """Models A and B after these samples, by each method; what the samples cannot teach stays as it is.

    Args:
        table: in per cent of its platform.
        methods: `as-is`, `nothing`, or of adapt.METHODS.
    """
    seen = adapt.only(table, got.cells)
    # a plane that no cell of carries says nothing of an area
    labelled = got.rows[np.isfinite(seen.labels(["oaa_cores"])[seen.plane[got.rows], 0])]
    found: dict[str, Models] = {method: {} for method in methods}
    rows = {"a": labelled, "b": got.rows}
    lessons = {"a": adapt.lesson_a, "b": adapt.lesson_b}
    settings = {"a": (model_a.SPEC, p.few_a), "b": (model_b.SPEC, p.few_b)}
    for letter, model in models.items():
        lesson = lessons[letter](seen, rows[letter], model)
        spec, few = settings[letter]
        planes = len(np.unique(lesson.plane))
        for method in methods:
            made = model
            if method == "as-is" or not planes:
                pass
            elif method == "nothing":
                made = adapt.nothing(spec, lesson, model, few, seed)
            elif method == "copy":
                made = adapt.copy(spec, lesson, model, few, seed)
            elif method == "blend":
                copied = adapt.copy(spec, adapt.held(lesson, model), model, few, seed)
                made = adapt.blend(model, copied, planes, p.hold)
            elif method == "outputs":
                made = adapt.outputs(adapt.held(lesson, model), model, p.hold)
            found[method][letter] = made
    return found


BEST = "blend"
"""What onboarding uses: docs/studies/2026-11-29-transfer-from-worlds.md."""


def of_platform(letter: str, models: Models, table: Table, p: params.Worlds, seed: int) -> Fitted:
    """Model A or B of the platform of a table: models of many worlds after its samples, but not after those held out."""
    candidates = _taught(table)
    whole = worlds.mixture([table])
    rows = np.flatnonzero(np.isin(table.plane, candidates))
    got = Measured(candidates, np.flatnonzero(np.isin(table.cell_plane, candidates)), rows)
    made = adapted([BEST], {letter: models[letter]}, whole, got, p, seed)[BEST][letter]
    own = rescaled(made, worlds.PERCENT, table.platform, outputs_alone=True)
    return replace(own, rows={split: len(table.part(split)) for split in ("train", "val", "test")})


def _taught(table: Table) -> I64:
    return np.flatnonzero((table.plane_labels["split"] != "test").to_numpy())


ROUND_MINUTES = 10.0
MOST_ROUNDS = 36
"""Six hours; what is measured later is one round more."""


def curve(models: Models, table: Table, p: params.Params, seed: int) -> list[dict[str, float]]:
    """Errors on the planes held out, after each ten minutes' worth of what was measured.

    Planes are taken by expected gain. A line has `minutes`, `planes`, `cells`, the measures, and `a_next_pct` and `b_next_pct`:
    how much lower the errors are expected to be after ten minutes more. An error is taken to fall with one over the minutes;
    that is fitted to the rounds until then, of which there must be two.
    """
    asked = held_out(table, p, seed)
    whole = worlds.mixture([table])
    order = Campaign(whole, _taught(table), models, p.worlds, seed, whole=True).measure(table.plane_labels.height, "gain")
    count = np.array([(whole.cell_plane[order.cells] == q).sum() for q in order.planes])
    minutes = np.cumsum(count) * p.worlds.cell_s / 60.0
    ends = [m for m in ROUND_MINUTES * np.arange(MOST_ROUNDS) if m < minutes[-1]]
    lines: list[dict[str, float]] = []
    for end in [*ends, float(minutes[-1])]:
        planes = order.planes[minutes <= end]
        cells = order.cells[np.isin(whole.cell_plane[order.cells], planes)]
        got = Measured(planes, cells, np.flatnonzero(np.isin(whole.cell, cells)))
        found = worlds.said_by(adapted([BEST], models, whole, got, p.worlds, seed)[BEST], asked)
        line = {"minutes": float(end), "planes": float(len(planes)), "cells": float(len(cells))}
        lines.append(line | {name: found[name] for name in MEASURES if name in found})
        lines[-1] |= {f"{letter}_next_pct": value for letter in GAINS if (value := next_ten(lines, GAINS[letter])) is not None}
    return lines


def held_out(table: Table, p: params.Params, seed: int) -> Asked:
    """Questions about the planes held out."""
    rows = holdout.test_rows(table, p.evaluate.max_rows, seed)
    labelled = rows[np.isfinite(table.labels(["oaa_cores"])[table.plane[rows], 0])]
    return Asked(table, labelled, holdout.questions(table, rows, p.worlds.few_b.qos_cap, seed), cliff_distance(table))


def next_ten(lines: Sequence[dict[str, float]], measure: str) -> float | None:
    """How much lower an error is expected to be after ten minutes more, in per cent of what it is; None: not to be told yet."""
    known = [(line["minutes"], line[measure]) for line in lines if line["minutes"] > 0 and measure in line]
    if len(known) < 2 or known[-1][1] <= 0:
        return None
    minutes, errors = np.array(known).T
    falls = np.polyfit(1.0 / minutes, errors, 1)[0]
    return float(100.0 * max(0.0, falls * (1.0 / minutes[-1] - 1.0 / (minutes[-1] + ROUND_MINUTES))) / errors[-1])


def asked_parts(asked: Asked, others: Sequence[str], candidates: I64) -> dict[str, Asked]:
    """The questions about services that are never measured, and about planes that are not, of the others."""
    table = asked.table
    is_other = table.plane_labels["service"].is_in(list(others)).to_numpy()
    is_own = ~is_other
    is_own[candidates] = False
    found = {}
    for part, planes in (("others", is_other), ("own", is_own)):
        q = asked.questions
        b = planes[table.plane[q.rows]]
        rows = asked.rows[planes[table.plane[asked.rows]]]
        found[part] = Asked(table, rows, holdout.Questions(q.rows[b], q.cells[b], q.qos[b]), asked.distance)
    return found


def drawn(table: Table, p: params.Worlds, seed: int) -> tuple[list[str], I64]:
    """Services that are never measured, and planes of the others that can be."""
    rng = np.random.default_rng((seed, 12))
    names = sorted(set(table.plane_labels["service"]))
    measured = set(rng.permutation(names)[: max(1, round(p.measured_share * len(names)))])
    planes = np.flatnonzero(table.plane_labels["service"].is_in(sorted(measured)).to_numpy())
    candidates = np.sort(rng.permutation(planes)[: max(1, len(planes) // 2)])
    return [n for n in names if n not in measured], candidates


def one_world(
    folder: Path,
    models: Models,
    p: params.Params,
    minutes: Sequence[float],
    seeds: Sequence[int],
    methods: Sequence[str],
) -> list[list[Any]]:
    """Lines of transfer.csv of one world."""
    s = p.worlds
    table = worlds.prepared(folder, p, s.rows)
    whole = worlds.mixture([table])
    every = worlds.asked_of(table, p, s.seed)
    lines: list[list[Any]] = []
    for seed in seeds:
        others, candidates = drawn(table, s, seed)
        parts = asked_parts(every, others, candidates)
        for how in CHOICES:
            campaign = Campaign(whole, candidates, models, s, seed)
            order = campaign.measure(max(planes_in(m, s) for m in minutes), how)
            for m in minutes:
                planes = order.planes[: planes_in(m, s)]
                cells = order.cells[np.isin(whole.cell_plane[order.cells], planes)]
                got = Measured(planes, cells, np.flatnonzero(np.isin(whole.cell, cells)))
                if not len(planes) and how != CHOICES[0]:
                    continue
                # without a sample there is one method
                some = [method for method in methods if (method == "as-is") != bool(len(planes))]
                some = [method for method in some if how == CHOICES[0] or method in ("nothing", BEST)]
                for method, made in adapted(some, models, whole, got, s, seed).items():
                    for part, asked in parts.items():
                        found = worlds.said_by(made, asked)
                        at = [folder.name, seed, how if len(planes) else "", m, len(planes), len(cells), method, part]
                        lines += [[*at, name, value] for name, value in found.items()]
    return lines


_COLUMNS = ("world", "seed", "choice", "minutes", "planes", "cells", "method", "part", "measure", "value")


def summary(lines: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Means over the worlds; least and most over the seeds; gains over `nothing`."""
    by: dict[tuple[Any, ...], dict[int, list[float]]] = {}
    for _, seed, how, minutes, _, _, method, part, measure, value in lines:
        if np.isfinite(value):
            by.setdefault((how, minutes, method, part, measure), {}).setdefault(seed, []).append(value)
    found: list[dict[str, Any]] = []
    for how, minutes, method, part in dict.fromkeys(key[:4] for key in by):
        line: dict[str, Any] = {"choice": how, "minutes": minutes, "method": method, "part": part}
        for key, seeds in by.items():
            if key[:4] == (how, minutes, method, part):
                means = [float(np.mean(v)) for v in seeds.values()]
                line[key[4]] = {"mean": float(np.mean(means)), "least": min(means), "most": max(means)}
        for letter, measure in GAINS.items():
            base = by.get((how, minutes, "nothing", part, measure))
            if base is not None and method != "nothing" and measure in line:
                nothing = float(np.mean([np.mean(v) for v in base.values()]))
                line[f"{letter}_gain_pct"] = 100.0 * (1.0 - line[measure]["mean"] / nothing)
                line[f"{letter}_gain_as_is_pct"] = 100.0 * (1.0 - _as_is(by, part, measure) / nothing)
        found.append(line)
    return {"lines": found}


def _as_is(by: dict[tuple[Any, ...], dict[int, list[float]]], part: str, measure: str) -> float:
    return float(np.mean([np.mean(v) for v in by[("", 0.0, "as-is", part, measure)].values()]))


def run(
    models_folder: Path,
    ask: Sequence[Path],
    out: Path,
    p: params.Params,
    minutes: Sequence[float],
    seeds: Sequence[int],
    methods: Sequence[str] = ("as-is", "nothing", *adapt.METHODS),
    told: Callable[[str], None] = lambda line: print(line, flush=True),
) -> dict[str, Any]:
    """Measure all methods on some worlds; returns what transfer.json holds."""
    torch.set_num_threads(p.train.threads)
    held = {letter: fitted.summary(models_folder / letter) for letter in ("a", "b")}
    worlds.check_models(models_folder, held)
    models = {letter: adapt.plain(fitted.load(models_folder / letter)) for letter in held}
    about = held["a"]
    minutes = sorted({0.0, *minutes})  # the models as they are, which all else is measured by
    make_folder(out)
    s = p.worlds
    lines: list[list[Any]] = []
    result: dict[str, Any] = {}
    for done, folder in enumerate(ask, 1):
        plant = worlds.prepared(folder, p, s.rows).about.made_by.get(PLANT)
        fitted.same_plant(str(models_folder), about.plant_version, plant)
        lines += one_world(folder, models, p, minutes, seeds, methods)
        result = {
            "worlds": done,
            "seeds": list(seeds),
            "cell_s": s.cell_s,
            "cells_a_plane": s.search_cells + s.more_cells,
            "planes": {f"{m:g}": planes_in(m, s) for m in minutes},
            **summary(lines),
        }
        # a run that is ended has what it measured
        write_bytes(out / "transfer.csv", csv_bytes(_COLUMNS, lines))
        write_json(out / "transfer.json", result)
        told(f"transfer: {folder.name}, {done} of {len(ask)}")
    return result


def numbers(text: str, what: str, kind: Callable[[str], Any]) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{what} {text}: want numbers with commas between, e.g. 0,10,30") from None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.worlds_transfer", description="What do few samples add?")
    parser.add_argument("--models", type=Path, required=True, help="output of pipelines.worlds")
    parser.add_argument("--ask", type=Path, nargs="+", required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", default="0,10,30,60", help="of measuring; 0: the models as they are")
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)

    def work() -> dict[str, Any]:
        minutes = numbers(args.minutes, "--minutes", float)
        seeds = numbers(args.seeds, "--seeds", int)
        if not all(0 <= m < math.inf for m in minutes):
            raise BadInput(f"--minutes {args.minutes}: want numbers of 0 or more")
        if min(seeds) < 0:
            raise BadInput(f"--seeds {args.seeds}: want whole numbers of 0 or more")
        return run(args.models, worlds.folders(args.ask), args.out, params.load(args.params), minutes, seeds)

    return params.run_stage(work)


if __name__ == "__main__":
    raise SystemExit(main())
