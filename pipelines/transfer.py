"""Stage `transfer`: what it is worth to begin from another platform's models, over the number of samples collected.

    python -m pipelines.transfer --rows FOLDER --labels FOLDER --models FOLDER --out FOLDER [--params params.yaml]

Models A and B are fitted to the new platform (`--rows`, `--labels`) twice: from random weights, and from the weights of the
platform that `--models` was trained on (OSML+, Sec. 3.2: the parameters are copied, then trained on). Both see the same samples,
take the same number of steps, and are measured on the new platform's test planes. Inputs and outputs are scaled by the new
platform's own bounds; the copied network is moved to them, so that it begins as the same function of cores, MB and MB/s.

A share of the samples is a share of the allocations that were measured, each with all its samples, as a shorter campaign would
have them; the labels of the planes are taken as known (a frontier campaign finds them from few cells).

Writes `transfer.json` (metrics: means over the seeds), `transfer.csv` (a row a fit), `measures.csv` (a row a fit and measure),
`curve_a.csv`, `curve_b.csv` (a row a share), and `headline.json` for `dvc metrics` (the errors with transfer, those of what is
simpler, and the reductions):

    a_mae_scratch, a_mae_transfer   mean absolute error of OAA and RCliff, cores and ways, all four
    b_mae_scratch, b_mae_transfer   mean absolute error of QoS capped at 1, in per cent
    ..._reduction_pct               how much lower the error is with transfer (the paper: 19.5 % for A, 12.9 % for B)
    ..._at_N_pct                    the same with N % of the samples
    a_mae_frozen_K, b_mae_frozen_K  with the first K layers kept as they were
    a_cores_mae_..., a_ways_mae_...  of cores and of ways apart; b_macro_...: cells that meet and that miss QoS weigh the same
    ..._constant, ..._nearest       of a constant (of B the better one) and of the nearest neighbour, taught with the same samples
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models import model_a, model_b
from models.mlp import HIDDEN
from pipelines import measures, params
from pipelines.fits import comparators, fit_oaa, fit_qos, fitted, holdout, tensors
from pipelines.fits.cliff import cliff_distance
from pipelines.fits.comparators import Asked, Material
from pipelines.fits.fit import Start
from pipelines.fits.fit_oaa import predict_a
from pipelines.fits.tensors import Table
from pipelines.io import csv_bytes, make_folder, write_bytes, write_headline, write_json
from pipelines.samples import PLANT

I64 = NDArray[np.int64]

LAYERS = len(HIDDEN) + 1


def some_cells(table: Table, rows: I64, share: float, seed: int) -> I64:
    """The rows of a share of the cells that `rows` are of; at least one cell of every plane."""
    cells, first = np.unique(table.cell[rows], return_index=True)
    order = np.random.default_rng((seed, 6)).permutation(len(cells))
    planes = table.plane[rows[first]]
    # one of every plane, then whatever comes
    _, one = np.unique(planes[order], return_index=True)
    rest = np.setdiff1d(np.arange(len(order)), one, assume_unique=True)
    chosen = np.concatenate([order[one], order[rest]])[: max(len(one), round(share * len(cells)))]
    return rows[np.isin(table.cell[rows], cells[chosen])]


MEASURES = {"a": ("a_mae", "a_cores_mae", "a_ways_mae"), "b": ("b_error_pct", "b_error_macro_pct")}
"""Of each model: the first is the paper's."""
NAMES = {
    "a_mae": "a_mae",
    "a_cores_mae": "a_cores_mae",
    "a_ways_mae": "a_ways_mae",
    "b_error_pct": "b_mae",
    "b_error_macro_pct": "b_macro",
}
"""What they are called in transfer.json."""
BEGINNINGS = ("scratch", "transfer", "constant", "nearest")


def taught_rows(letter: str, table: Table, share: float, seed: int) -> tuple[I64, I64]:
    """Rows of a share of the new platform's samples, to train and to validate on."""
    planes = ("train",) if letter == "a" else ("train", "none")
    return some_cells(table, table.part(*planes), share, seed), some_cells(table, table.part("val"), share, seed)


def fit(
    letter: str, asked: Asked, p: params.Transfer, share: float, seed: int, begin: Start | None, out: Path
) -> tuple[dict[str, float], int]:
    """Fit one model to a share of the new platform's samples; returns its errors and the number of samples."""
    table = asked.table
    rows = taught_rows(letter, table, share, seed)
    samples = len(rows[0]) + len(rows[1])
    if letter == "a":
        a = fit_oaa.fit_model(model_a.SPEC, table, p.a, seed, out, rows=rows, begin=begin)
        return asked.errors_of_a(predict_a(table, a, asked.rows), [s.name for s in a.outputs]), samples
    b = fit_qos.fit_model(model_b.SPEC, table, p.b, seed, out, rows=rows, begin=begin)
    return asked.errors_of_b(fit_qos.predict_qos(b, table, asked.questions.rows, asked.questions.cells)), samples


def simple(asked: Asked, p: params.Params, share: float, seed: int) -> dict[str, dict[str, float]]:
    """Errors of a constant, of B the better one by each measure, and of the nearest neighbour: taught with the same samples."""
    table = asked.table
    known = Material(table, *(taught_rows(letter, table, share, seed)[0] for letter in MEASURES))
    found = comparators.measure(known, asked, p, p.transfer.a, p.transfer.b, seed)
    errors: dict[str, dict[str, float]] = {"constant": {}, "nearest": {}}
    for measure in NAMES:
        for name, methods in (("constant", measures.CONSTANTS), ("nearest", ("nearest",))):
            if values := [found[f"{measure}_{m}"] for m in methods if f"{measure}_{m}" in found]:
                errors[name][measure] = min(values)
    return errors


def run(rows_folder: Path, labels: Path, models: Path, out: Path, p: params.Params) -> dict[str, float]:
    """Fit and measure; returns the metrics."""
    torch.set_num_threads(p.train.threads)
    table = tensors.load(rows_folder, labels)
    for letter in ("a", "b"):
        known = fitted.summary(models / letter).plant_version
        fitted.same_plant(str(models / letter), known, table.about.made_by.get(PLANT))
    settings = p.transfer
    test = holdout.test_rows(table, p.evaluate.max_rows, p.evaluate.seed)
    distance = cliff_distance(table)
    make_folder(out)
    rows: list[list[Any]] = []
    simpler: dict[tuple[float, int], dict[str, dict[str, float]]] = {}
    for letter in ("a", "b"):
        source = fitted.load(models / letter)
        beginning = Start(source.weights, (), tuple(source.inputs), tuple(source.outputs))
        plans: list[tuple[float, int | None]] = [(share, frozen) for share in settings.shares for frozen in (None, 0)]
        plans += [(max(settings.shares), frozen) for frozen in settings.frozen if 0 < frozen < LAYERS]
        for share, frozen in plans:
            for seed in settings.seeds:
                begin = None if frozen is None else replace(beginning, frozen=tuple(range(frozen)))
                asked = Asked(table, test, holdout.questions(table, test, settings.b.qos_cap, seed), distance)
                errors, samples = fit(letter, asked, settings, share, seed, begin, out)
                word = "scratch" if frozen is None else "transfer"
                row = _row(letter, word, frozen or 0, share, samples, seed, errors)
                rows.append(row)
                if frozen is None:
                    if (share, seed) not in simpler:
                        simpler[share, seed] = simple(asked, p, share, seed)
                    rows += [_row(letter, name, 0, share, samples, seed, of) for name, of in simpler[share, seed].items()]
                told = f"{share:.0%} of the samples, seed {seed}: {row[6]:.4g}"
                print(f"transfer: model {letter}: {word}, {told}", flush=True)
    metrics = summarise(rows, settings.shares)
    write_bytes(out / "transfer.csv", csv_bytes([*_COLUMNS, "error"], [r[:7] for r in rows]))
    apart = [[*r[:6], name, value] for r in rows for name, value in r[7].items()]
    write_bytes(out / "measures.csv", csv_bytes([*_COLUMNS, "measure", "error"], apart))
    for letter in ("a", "b"):
        write_bytes(out / f"curve_{letter}.csv", curve_csv(rows, letter, settings.shares))
    write_json(out / "transfer.json", metrics)
    shown = [f"{letter}_{name}" for letter in "ab" for name in ("mae_transfer", "mae_constant", "reduction_pct")]
    write_headline(out, {name: metrics[name] for name in shown if name in metrics})
    return metrics


_COLUMNS = ("model", "begin", "frozen", "share", "samples", "seed")


def _row(letter: str, begin: str, frozen: int, share: float, samples: int, seed: int, errors: dict[str, float]) -> list[Any]:
    kept = {name: errors[name] for name in MEASURES[letter] if name in errors}
    return [letter, begin, frozen, share, samples, seed, errors.get(MEASURES[letter][0], float("nan")), kept]


def _errors(
    rows: Sequence[Sequence[Any]], letter: str, begin: str, frozen: int, share: float, measure: str | None = None
) -> list[float]:
    found = [r for r in rows if (r[0], r[1], r[2], r[3]) == (letter, begin, frozen, share)]
    return [r[6] if measure is None else r[7].get(measure, float("nan")) for r in found]


def summarise(rows: Sequence[Sequence[Any]], shares: Sequence[float]) -> dict[str, float]:
    """Means over the seeds; a reduction is that of the means."""
    metrics: dict[str, float] = {}
    for letter in ("a", "b"):
        for share in shares:
            suffix = "" if share == max(shares) else f"_at_{100 * share:g}_pct"
            scratch, moved = (float(np.mean(_errors(rows, letter, begin, 0, share))) for begin in ("scratch", "transfer"))
            metrics[f"{letter}_mae_scratch{suffix}"] = scratch
            metrics[f"{letter}_mae_transfer{suffix}"] = moved
            metrics[f"{letter}_reduction_pct{suffix}"] = 100.0 * (1.0 - moved / scratch)
            for measure in MEASURES[letter]:
                for begin in BEGINNINGS:
                    value = float(np.mean(_errors(rows, letter, begin, 0, share, measure)))
                    if np.isfinite(value):
                        metrics[f"{NAMES[measure]}_{begin}{suffix}"] = value
        for frozen in sorted({r[2] for r in rows if r[2]}):
            metrics[f"{letter}_mae_frozen_{frozen}"] = float(np.mean(_errors(rows, letter, "transfer", frozen, max(shares))))
    return metrics


def curve_csv(rows: Sequence[Sequence[Any]], letter: str, shares: Sequence[float]) -> bytes:
    """A row a share: samples, and of either beginning the mean, least and most error over the seeds."""
    lines: list[list[float]] = []
    for share in sorted(shares):
        samples = float(np.mean([r[4] for r in rows if r[0] == letter and r[3] == share]))
        line = [share, samples]
        for begin in BEGINNINGS:
            errors = _errors(rows, letter, begin, 0, share)
            line += [float(np.mean(errors)), min(errors), max(errors)]
        lines.append(line)
    names = [f"{begin}{end}" for begin in BEGINNINGS for end in ("", "_least", "_most")]
    return csv_bytes(["share", "samples", *names], lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.transfer", description="What are another platform's models worth?")
    parser.add_argument("--rows", type=Path, required=True, help="output of the stage `rows` on the new platform")
    parser.add_argument("--labels", type=Path, required=True, help="its output of the stage `label`")
    parser.add_argument(
        "--models", type=Path, required=True, help="folder of the models (stage `train`) of the platform to start from"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)
    return params.run_stage(lambda: run(args.rows, args.labels, args.models, args.out, params.load(args.params)))


if __name__ == "__main__":
    raise SystemExit(main())
