"""Stage `transfer`: what it is worth to begin from another platform's models, over the number of samples collected.

    python -m pipelines.transfer --rows FOLDER --labels FOLDER --models FOLDER --out FOLDER [--params params.yaml]

Models A and B are fitted to the new platform (`--rows`, `--labels`) twice: from random weights, and from the weights of the
platform that `--models` was trained on (OSML+, Sec. 3.2: the parameters are copied, then trained on). Both see the same samples,
take the same number of steps, and are measured on the new platform's test planes. Inputs and outputs are scaled by the new
platform's own bounds; the copied network is moved to them, so that it begins as the same function of cores, MB and MB/s.

A share of the samples is a share of the allocations that were measured, each with all its samples, as a shorter campaign would
have them; the labels of the planes are taken as known (a frontier campaign finds them from few cells).

Writes `transfer.json` (metrics: means over the seeds), `transfer.csv` (a row a fit), `curve_a.csv`, `curve_b.csv` (a row a
share), and `headline.json` for `dvc metrics` (the errors with transfer and the reductions):

    a_mae_scratch, a_mae_transfer   mean absolute error of OAA and RCliff, cores and ways, all four
    b_mae_scratch, b_mae_transfer   mean absolute error of QoS capped at 1, in per cent
    ..._reduction_pct               how much lower the error is with transfer (the paper: 19.5 % for A, 12.9 % for B)
    ..._at_N_pct                    the same with N % of the samples
    a_mae_frozen_K, b_mae_frozen_K  with the first K layers kept as they were
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
from pipelines import params
from pipelines.fits import fit_oaa, fit_qos, fitted, holdout, tensors
from pipelines.fits.fit import Start
from pipelines.fits.fit_oaa import predict_a
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Table
from pipelines.io import csv_bytes, make_folder, write_bytes, write_headline, write_json
from pipelines.samples import PLANT

I64 = NDArray[np.int64]

A_POINTS = ("oaa_cores", "oaa_ways", "rcliff_cores", "rcliff_ways")
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


def error_of_a(table: Table, a: Fitted, test: I64) -> float:
    """Mean absolute error over the points that the model has, cores and ways alike."""
    names = [s.name for s in a.outputs]
    points = [k for k, name in enumerate(names) if name in A_POINTS]
    error = np.abs(predict_a(table, a, test) - table.labels(names)[table.plane[test]])
    return float(np.nanmean(error[:, points]))


def error_of_b(table: Table, b: Fitted, test: I64, cap: float, seed: int) -> float:
    """`error_pct` of holdout.qos_errors."""
    asked = holdout.questions(table, test, cap, seed)
    return holdout.qos_errors(fit_qos.predict_qos(b, table, asked.rows, asked.cells), asked.qos)["error_pct"]


def fit(
    letter: str, table: Table, p: params.Transfer, share: float, seed: int, begin: Start | None, test: I64, out: Path
) -> tuple[float, int]:
    """Fit one model to a share of the new platform's samples; returns its error and the number of samples."""
    planes = ("train",) if letter == "a" else ("train", "none")
    rows = (some_cells(table, table.part(*planes), share, seed), some_cells(table, table.part("val"), share, seed))
    samples = len(rows[0]) + len(rows[1])
    if letter == "a":
        return error_of_a(table, fit_oaa.fit_model(model_a.SPEC, table, p.a, seed, out, rows=rows, begin=begin), test), samples
    return error_of_b(
        table, fit_qos.fit_model(model_b.SPEC, table, p.b, seed, out, rows=rows, begin=begin), test, p.b.qos_cap, seed
    ), samples


def run(rows_folder: Path, labels: Path, models: Path, out: Path, p: params.Params) -> dict[str, float]:
    """Fit and measure; returns the metrics."""
    torch.set_num_threads(p.train.threads)
    table = tensors.load(rows_folder, labels)
    for letter in ("a", "b"):
        known = fitted.summary(models / letter).plant_version
        fitted.same_plant(str(models / letter), known, table.about.made_by.get(PLANT))
    test = holdout.test_rows(table, p.evaluate.max_rows, p.evaluate.seed)
    make_folder(out)
    settings = p.transfer
    rows: list[list[Any]] = []
    for letter in ("a", "b"):
        source = fitted.load(models / letter)
        beginning = Start(source.weights, (), tuple(source.inputs), tuple(source.outputs))
        plans: list[tuple[float, int | None]] = [(share, frozen) for share in settings.shares for frozen in (None, 0)]
        plans += [(max(settings.shares), frozen) for frozen in settings.frozen if 0 < frozen < LAYERS]
        for share, frozen in plans:
            for seed in settings.seeds:
                begin = None if frozen is None else replace(beginning, frozen=tuple(range(frozen)))
                error, samples = fit(letter, table, settings, share, seed, begin, test, out)
                rows.append([letter, "scratch" if frozen is None else "transfer", frozen or 0, share, samples, seed, error])
                print(
                    f"transfer: model {letter}: {rows[-1][1]}, {share:.0%} of the samples, seed {seed}: {error:.4g}", flush=True
                )
    metrics = summarise(rows, settings.shares)
    write_bytes(out / "transfer.csv", csv_bytes(["model", "begin", "frozen", "share", "samples", "seed", "error"], rows))
    for letter in ("a", "b"):
        write_bytes(out / f"curve_{letter}.csv", curve_csv(rows, letter, settings.shares))
    write_json(out / "transfer.json", metrics)
    told = [f"{letter}_{name}" for letter in "ab" for name in ("mae_transfer", "reduction_pct")]
    write_headline(out, {name: metrics[name] for name in told})
    return metrics


def _errors(rows: Sequence[Sequence[Any]], letter: str, begin: str, frozen: int, share: float) -> list[float]:
    return [r[6] for r in rows if (r[0], r[1], r[2], r[3]) == (letter, begin, frozen, share)]


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
        for frozen in sorted({r[2] for r in rows if r[2]}):
            metrics[f"{letter}_mae_frozen_{frozen}"] = float(np.mean(_errors(rows, letter, "transfer", frozen, max(shares))))
    return metrics


def curve_csv(rows: Sequence[Sequence[Any]], letter: str, shares: Sequence[float]) -> bytes:
    """A row a share: samples, and of either beginning the mean, least and most error over the seeds."""
    lines: list[list[float]] = []
    for share in sorted(shares):
        samples = float(np.mean([r[4] for r in rows if r[0] == letter and r[3] == share]))
        line = [share, samples]
        for begin in ("scratch", "transfer"):
            errors = _errors(rows, letter, begin, 0, share)
            line += [float(np.mean(errors)), min(errors), max(errors)]
        lines.append(line)
    names = [f"{begin}{end}" for begin in ("scratch", "transfer") for end in ("", "_least", "_most")]
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
