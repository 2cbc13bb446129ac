"""Models A and B that learn from many drawn platforms and services at once, and what they say of others.

    python -m pipelines.worlds --train FOLDER ... --ask FOLDER ... --out FOLDER [--inputs relative|paper] [--seeds 1,2,3]

Each FOLDER is the data set of one world (`surefoot campaign worlds`), or the list of a range's worlds, which that wrote beside
them (train.json). Labels and rows of a world are made once and kept beside its data. All planes are one table then: with each
platform's own cores, ways and MB a way behind the inputs, and with labels in per cent of the platform. A model of such a table is
one of a platform of 100 cores and 100 ways; `generalise.rescaled` makes it one of any other.

Validation is by world. Writes

    a, b, c         the models of the first seed (as the stage `train` writes them); `surefoot bundle worlds` bundles them for any
                    platform (pipelines/artefact/worlds_bundle.py)
    worlds.json     means over worlds and their range over seeds, of every method
    worlds.csv      a row a method, seed and world that was asked about
    headline.json   the network's first figures, for `dvc metrics`

Models have intervals and a strangeness score (models/intervals.py, pipelines/fits/strange.py) unless `worlds.interval` is null.
worlds.json then also says how far off the networks are where the least doubtful answers are kept (pipelines/fits/doubt.py).

Methods: the network, a constant, the nearest neighbour and LightGBM on the same inputs. Rows of an overloaded service are told
apart (`_valid`, `_over`): how much it would need, its counters cannot say.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from models import features, intervals, model_a, model_b
from models.features import PlatformLimits
from pipelines import inputs, label, params, rows
from pipelines.errors import BadInput
from pipelines.fits import (
    calibrate,
    comparators,
    doubt,
    fit_ddpg,
    fit_oaa,
    fit_qos,
    fitted,
    holdout,
    mapped,
    rowfile,
    strange,
    tensors,
)
from pipelines.fits.cliff import cliff_distance
from pipelines.fits.comparators import Asked, Material
from pipelines.fits.doubt import Told
from pipelines.fits.fitted import Fitted
from pipelines.fits.tensors import Table
from pipelines.generalise import rescaled
from pipelines.io import (
    HEADLINE,
    canonical_json,
    csv_bytes,
    make_folder,
    read_json,
    sha256_file,
    write_bytes,
    write_headline,
    write_json,
)
from pipelines.manifest import MANIFEST
from pipelines.samples import PLANT

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

DONE = "world-done"
"""File in a data set of a world that is whole."""
_LEARN = "make them with `python -m pipelines.worlds`"
_COLLECT = "collect it with `surefoot campaign worlds`"
LEARNT = 1
"""Edition of what is kept beside a world's data: to be raised where labels or rows are made otherwise."""
PERCENT = PlatformLimits(name="worlds", cores=100.0, core_step=1.0, ways=100, mb_per_way=1.0)
"""What the labels of a mixture are shares of."""
MIXTURE = "worlds"
"""Campaign that model.json names for models of a mixture."""
STRANGENESS_ROWS = 200_000
"""Rows that the strangeness score is made of; more tell nothing new of 25 means and their covariance."""
LEARNERS = ("nearest", "lightgbm")
_AS_THEY_ARE = (
    "p99_ms",
    "achieved_rps",
    "cell_cores",
    "cell_ways",
    "cell_mba",
    "cell_qos",
    "plane_target_ms",
    "plane_platform",
)
"""Arrays of a table that say the same in a mixture."""
C_WORLDS = 120
"""Worlds that Model-C's moves are of: 200,000 moves are few beside the cells of so many."""
_RESULTS = ("worlds.json", "worlds.csv", HEADLINE)
_HEADLINE = ("a_cores_mae", "a_ways_mae", "b_error_pct", "b_false_met")


def prepared(folder: Path, p: params.Params, max_rows: int) -> Table:
    """Rows and labels of one world, made where they are not there yet.

    Raises:
        BadInput: the folder is no data set of a whole world.
    """
    if not (folder / DONE).is_file():
        raise BadInput(f"{folder}: is no data set of a whole world; {_COLLECT}")
    made = folder / "learnt"
    of = {"label": p.label, "rows": p.rows, "samples": p.samples}
    settings = {name: section.model_dump(mode="json") for name, section in of.items()}
    key = canonical_json(settings | {"max_rows": max_rows, "data": sha256_file(folder / MANIFEST), "made_of": LEARNT})
    if not (made / DONE).is_file() or inputs.read_bytes(made / DONE) != key:
        (made / DONE).unlink(missing_ok=True)
        label.run(folder, made / "label", p.label, p.samples)
        rows.run(folder, made / "label", made / "rows", p.rows.model_copy(update={"max_rows": max_rows}), p.samples)
        write_bytes(made / DONE, key)
    return tensors.load(made / "rows", made / "label")


def folders(given: Sequence[Path]) -> list[Path]:
    """Data sets of worlds: as they are given, and those of each list (RANGE.json).

    Raises:
        BadInput: a list is none, or a data set is not the one that it lists.
    """
    found: list[Path] = []
    for path in given:
        if path.suffix != ".json":
            found.append(path)
            continue
        listed = read_json(path, "a list of worlds", _COLLECT)
        worlds = listed.get("worlds") if isinstance(listed, dict) else None
        if not isinstance(worlds, dict) or not worlds:
            raise BadInput(f"{path}: field worlds: lists no world; {_COLLECT}")
        for name, sha256 in worlds.items():
            folder = path.parent / Path(name).name
            if not (folder / MANIFEST).is_file() or sha256_file(folder / MANIFEST) != sha256:
                raise BadInput(f"{path}: field worlds.{name}: {folder} is not there, or is not what was listed; {_COLLECT}")
            found.append(folder)
    if twice := next((f for k, f in enumerate(found) if f.resolve() in {g.resolve() for g in found[:k]}), None):
        raise BadInput(f"{twice}: is given twice; name each world once")
    return found


def check_models(folder: Path, held: Mapping[str, fitted.Summary]) -> None:
    """That these are the models of one mixture, whose training came to its end.

    Args:
        held: what model.json says of each.
    Raises:
        BadInput: names the file at fault and the remedy.
    """
    for letter, summary in held.items():
        summary.check_whole(folder / letter)
        if summary.campaign != MIXTURE:
            raise BadInput(
                f"{folder / letter / fitted.SUMMARY}: field campaign is {summary.campaign!r}: these models are of one "
                f"platform, and models of worlds are wanted; {_LEARN}"
            )
    first = next(iter(held.values()))
    for letter, summary in held.items():
        if (summary.data_sha256, summary.plant_version) != (first.data_sha256, first.plant_version):
            raise BadInput(f"{folder / letter / fitted.SUMMARY}: field data_sha256: the model is of other worlds; {_LEARN}")
    if not (folder / "worlds.json").is_file():
        raise BadInput(f"{folder / 'worlds.json'}: is missing: the training did not come to its end; {_LEARN}")


def mixture(tables: Iterable[Table], folder: Path | None = None) -> Table:
    """All of them as one table of the platform PERCENT; no more than one of them is held.

    Args:
        folder: where its arrays lie, in files without a name; None: in memory.
    Raises:
        BadInput: they do not have the same features.
    """
    first: Table | None = None
    arrays = mapped.Arrays(folder)
    labels: list[pl.DataFrame] = []
    digests: list[str] = []
    rows, cells, planes = 0, 0, 0
    for t in tables:
        first = first or t
        if (t.feature_set, sorted(t.columns)) != (first.feature_set, sorted(first.columns)):
            raise BadInput(f"{t.about.campaign}: has other features than {first.about.campaign}; mix data sets of one kind")
        fitted.same_plant(t.about.campaign, t.about.made_by.get(PLANT), first.about.made_by.get(PLANT))
        for name, values in t.columns.items():
            arrays.add(f"x_{name}", values)
        arrays.add("cell", t.cell + cells)
        arrays.add("plane", t.plane + planes)
        arrays.add("cell_plane", t.cell_plane + planes)
        for name in _AS_THEY_ARE:
            arrays.add(name, getattr(t, name))
        if folder is not None:  # they would be made of all cells at once else
            arrays.add("known", (t.known_cells + cells).astype(np.int32))
            arrays.add("steps", np.where(t.steps >= 0, t.steps + cells, -1).astype(np.int32))
        labels.append(_in_percent(t))
        digests.append(t.about.data_sha256)
        rows, cells, planes = rows + t.rows, cells + len(t.cell_cores), planes + t.plane_labels.height
    if first is None:
        raise BadInput(f"no world is given; {_COLLECT}")
    about = first.about.model_copy(
        update={"campaign": MIXTURE, "platform": PERCENT, "rows": rows, "data_sha256": rowfile.digest_of(digests)}
    )
    return Table(
        columns={name: arrays.whole(f"x_{name}") for name in first.columns},
        cell=arrays.whole("cell"),
        plane=arrays.whole("plane"),
        cell_plane=arrays.whole("cell_plane"),
        plane_labels=pl.concat(labels, how="vertical_relaxed"),
        about=about,
        ready=None if folder is None else (arrays.whole("known"), arrays.whole("steps")),
        release=arrays.release,
        **{name: arrays.whole(name) for name in _AS_THEY_ARE},
    )


def _in_percent(t: Table) -> pl.DataFrame:
    """Labels as per cent of the platform; bandwidth has no such share."""
    share = {"cores": PERCENT.cores / t.platform.cores, "ways": PERCENT.ways / max(t.platform.ways, 1)}
    columns = [c for c in t.plane_labels.columns if c.startswith(("oaa_", "rcliff_"))]
    scaled = [
        (pl.col(c).cast(pl.Float64) * share["cores" if "_cores" in c else "ways"]).alias(c) for c in columns if "_mbl_" not in c
    ]
    nothing = [pl.lit(None, pl.Float64).alias(c) for c in columns if "_mbl_" in c]
    return t.plane_labels.with_columns(*scaled, *nothing)


def fit(table: Table, validate: NDArray[np.bool_], p: params.Worlds, seed: int, out: Path) -> dict[str, Fitted]:
    """Models A and B; `validate` says of each plane whether it is of a world to validate on."""
    labelled = np.isfinite(table.labels(["oaa_cores"])[table.plane, 0])
    apart = validate[table.plane]
    every = np.arange(table.rows)
    a_rows = (every[labelled & ~apart], every[labelled & apart])
    taught = a_rows[0] if p.a.at_least is None else fit_oaa.with_unserved(table, a_rows[0], every[~labelled & ~apart])
    a = fit_oaa.fit_model(model_a.SPEC, table, p.a, seed, out, rows=(taught, a_rows[1]), interval=p.interval)
    b = fit_qos.fit_model(model_b.SPEC, table, p.b, seed, out, rows=(every[~apart], every[apart]), interval=p.interval)
    if p.interval is not None:
        a = calibrated_a(a, table, a_rows[1], p.interval)
        b = calibrated_b(b, table, every[apart], p.interval, seed)
        a = replace(a, weights=a.weights | strangeness_of(a, table, every[~apart], every[apart], p.usual_share, seed))
    return {"a": a, "b": b}


def fit_c(train: Sequence[Path], last: NDArray[np.bool_], b: Fitted, p: params.Params, each: int, seed: int, out: Path) -> Fitted:
    """Model-C of moves between neighbouring cells of at most C_WORLDS of the worlds; `last` says which are validated on."""
    chosen = np.unique(np.linspace(0, len(train) - 1, min(C_WORLDS, len(train))).round().astype(np.int64))
    parts = [prepared(train[k], p, each) for k in chosen]
    table = mixture(parts)
    is_last = np.repeat(last[chosen], [t.plane_labels.height for t in parts])[table.plane]
    every = np.arange(table.rows)
    return fit_ddpg.fit_model(table, b, p.train.c, seed, out, rows=(every[~is_last], every[is_last]))


def services_of(table: Table, rows: I64) -> I64:
    """A number for the service of each row. A service is of one world."""
    return table.plane_labels["service"].rank("dense").cast(pl.Int64).to_numpy()[table.plane[rows]]


def calibrated_a(a: Fitted, table: Table, rows: I64, nominal: float) -> Fitted:
    """With intervals that cover what they say of rows that were not taught; every service weighs the same."""
    outputs = [s.name for s in a.outputs if not intervals.is_end(s.name)]
    labels = table.labels(outputs)[table.plane[rows]]
    of = {name: labels[:, k] for k, name in enumerate(outputs)}
    # in per cent of the platform; a core is a step there
    size = table.plane_platform[table.plane[rows], :2]
    least = 100.0 / np.maximum(size, 1.0)
    bounds = {name: (least[:, 0 if name.endswith("cores") else 1], 100.0) for name in outputs}
    return calibrate.moved(a, fit_oaa.predict_a(table, a, rows), of, bounds, services_of(table, rows), nominal)


def calibrated_b(b: Fitted, table: Table, rows: I64, nominal: float, seed: int) -> Fitted:
    """The same of Model-B, about the questions that are asked in the end: all allocations of a plane alike."""
    asked = holdout.questions(table, rows, b.setting("qos_cap"), seed)
    answers = fit_qos.predict_all(b, table, asked.rows, asked.cells)
    bounds = {"qos": (0.0, b.setting("qos_cap"))}
    return calibrate.moved(b, answers, {"qos": asked.qos}, bounds, services_of(table, asked.rows), nominal)


def strangeness_of(
    a: Fitted, table: Table, taught: I64, validating: I64, usual: float, seed: int
) -> dict[str, NDArray[np.float32]]:
    """The tensors of the strangeness score: 1 is what so much of the validation worlds does not exceed."""

    def x(rows: I64) -> NDArray[np.float32]:
        return features.normalise(table.matrix([b.name for b in a.inputs], rows), a.inputs)

    found = strange.measure(x(holdout.thin(taught, STRANGENESS_ROWS, np.random.default_rng((seed, 9)))))
    weights = calibrate.evenly(services_of(table, validating))
    return strange.one_at(found, calibrate.quantile(strange.scores(found, x(validating)), usual, weights))


def asked_of(table: Table, p: params.Params, seed: int) -> Asked:
    """Rows with a label for Model-A, the paper's questions for Model-B, of one world."""
    chosen = holdout.thin(np.arange(table.rows), p.worlds.asked_rows, np.random.default_rng((seed, 7)))
    labelled = chosen[np.isfinite(table.labels(["oaa_cores"])[table.plane[chosen], 0])]
    return Asked(table, labelled, holdout.questions(table, chosen, p.worlds.b.qos_cap, seed), cliff_distance(table))


def errors(asked: Asked, area: F64, names: Sequence[str], qos: F64) -> dict[str, float]:
    """All measures of what was said: of all rows, of services that are not overloaded (`_valid`), and of the others (`_over`)."""
    table, questions = asked.table, asked.questions
    found = asked.errors_of_a(area, names) | asked.errors_of_b(qos)
    for suffix, is_over in (("_valid", False), ("_over", True)):
        a = holdout.overloaded(table, asked.rows) == is_over
        b = holdout.overloaded(table, questions.rows) == is_over
        part = Asked(
            table, asked.rows[a], holdout.Questions(questions.rows[b], questions.cells[b], questions.qos[b]), asked.distance
        )
        some = part.errors_of_a(area[a], names) if a.any() else {}
        some |= part.errors_of_b(qos[b])
        found |= {f"{name}{suffix}": value for name, value in some.items()}
    return found


def said_by(models: dict[str, Fitted], asked: Asked) -> dict[str, float]:
    """Errors of models of a mixture on one world, and where they have intervals how right these are."""
    return answered_by(models, asked)[0]


def answered_by(models: dict[str, Fitted], asked: Asked) -> tuple[dict[str, float], dict[str, Told]]:
    """The same, and of each output that has an interval what was said of every row."""
    table, questions, platform = asked.table, asked.questions, asked.table.platform
    a, b = (rescaled(models[m], PERCENT, platform, outputs_alone=True) for m in ("a", "b"))
    names = [s.name for s in a.outputs]
    area = within(fit_oaa.predict_a(table, a, asked.rows), names, platform)
    qos = fit_qos.predict_all(b, table, questions.rows, questions.cells)
    found = errors(asked, area, names, qos[:, 0])
    if strange.WEIGHT not in a.weights:
        return found, {}

    def of(output: str, answer: F64, outputs: Sequence[str], rows: I64, label: F64, most: float) -> Told:
        x = features.normalise(table.matrix([i.name for i in a.inputs], rows), a.inputs)
        score = strange.scores(a.weights, x)
        return doubt.told(output, outputs, answer, label, services_of(table, rows), holdout.overloaded(table, rows), score, most)

    told = {"qos": of("qos", qos, [s.name for s in b.outputs], questions.rows, questions.qos, b.setting("qos_cap"))}
    for name in (n for n in names if n in intervals.WITH_ENDS):
        label = table.labels([name])[table.plane[asked.rows], 0]
        told[name] = of(name, area, names, asked.rows, label, platform.cores if name == "oaa_cores" else float(platform.ways))
    for answer in told.values():
        if len(answer.label):
            found |= doubt.measures(answer)
    return found, told


def within(area: F64, names: Sequence[str], platform: PlatformLimits) -> F64:
    """No allocation is below a step or a way, nor above what there is."""
    of_cores = [intervals.central(n).endswith("cores") for n in names]
    least = [platform.core_step if cores else 1.0 for cores in of_cores]
    most = [platform.cores if cores else float(platform.ways) for cores in of_cores]
    return np.clip(area, least, most)


def beside(known: Material, tables: Sequence[Asked], p: params.Params, names: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Errors of the constants and the other learners, a dict a world: method -> measures. All worlds are asked at once."""
    whole = mixture([a.table for a in tables])
    first_row = np.cumsum([0, *(a.table.rows for a in tables)])
    first_cell = np.cumsum([0, *(len(a.table.cell_cores) for a in tables)])
    asked_a = np.concatenate([a.rows + n for a, n in zip(tables, first_row, strict=False)])
    asked_b = holdout.Questions(
        np.concatenate([a.questions.rows + n for a, n in zip(tables, first_row, strict=False)]),
        np.concatenate([a.questions.cells + n for a, n in zip(tables, first_cell, strict=False)]),
        np.concatenate([a.questions.qos for a in tables]),
    )
    taught = comparators.taught_questions(known, p.worlds.b, seed)
    said = comparators.constants(known, taught)
    area = comparators.answers_a(known, said, whole, asked_a, names, p.compare, LEARNERS, p.worlds.a.inputs)
    qos = comparators.answers_b(known, said, taught, whole, asked_b, p.compare, LEARNERS, p.worlds.b.inputs)
    area["median"] = area["constant"]
    ends_a = np.cumsum([0, *(len(a.rows) for a in tables)])
    ends_b = np.cumsum([0, *(len(a.questions.rows) for a in tables)])
    found = []
    for k, a in enumerate(tables):
        platform = a.table.platform
        ratio = [platform.cores / PERCENT.cores if n.endswith("cores") else platform.ways / PERCENT.ways for n in names]
        of: dict[str, Any] = {}
        for method, answer in qos.items():
            own = within(area[method][ends_a[k] : ends_a[k + 1]] * ratio, names, platform)
            of[method] = errors(a, own, names, answer[ends_b[k] : ends_b[k + 1]])
        found.append(of)
    return found


def run(train: Sequence[Path], ask: Sequence[Path], out: Path, p: params.Params, seeds: Sequence[int]) -> dict[str, Any]:
    """Fit on some worlds, measure on others; returns what worlds.json holds."""
    torch.set_num_threads(p.train.threads)
    s = p.worlds
    make_folder(out)
    if twice := {f.resolve() for f in train} & {f.resolve() for f in ask}:
        raise BadInput(f"--ask {min(twice)}: is in --train, too; ask about worlds that were not taught")
    validating = max(1, round(s.validate_share * len(train)))
    if validating >= len(train):
        raise BadInput(f"--train: {len(train)} worlds; give two or more, since some of them are validated on")
    each = max(1, min(s.rows, s.most_rows // len(train)))
    sizes: list[int] = []  # planes of each world

    def taught() -> Iterator[Table]:
        for k, folder in enumerate(train):
            t = prepared(folder, p, each)
            sizes.append(t.plane_labels.height)
            yield _told(t, "read", k, len(train))

    table = mixture(taught(), out)
    last = np.arange(len(train)) >= len(train) - validating
    is_last = np.repeat(last, sizes)
    asked = [asked_of(prepared(folder, p, s.rows), p, s.seed) for folder in ask]
    for a in asked:
        fitted.same_plant(a.table.about.campaign, a.table.about.made_by.get(PLANT), table.about.made_by.get(PLANT))
    every = np.arange(table.rows)
    labelled = np.isfinite(table.labels(["oaa_cores"])[table.plane, 0])
    lines: list[list[Any]] = []
    by: dict[str, list[dict[str, float]]] = {}
    by_kept: list[dict[str, dict[str, float]]] = []
    # what is there of an earlier run would be taken for this one's, if this one were killed
    for name in _RESULTS:
        (out / name).unlink(missing_ok=True)
    for seed in seeds:
        models = fit(table, is_last, s, seed, out)
        if seed == seeds[0]:
            for letter, model in models.items():
                fitted.save(out / letter, model, _about(letter, table))
            c = fit_c(train, last, models["b"], p, each, seed, out)
            fitted.save(out / "c", c, _about("c", table))
        names = [o.name for o in models["a"].outputs if not intervals.is_end(o.name)]
        said = [answered_by(models, a) for a in asked]
        answers: list[dict[str, Any]] = [{"network": found} for found, _ in said]
        if said[0][1]:
            by_kept.append({name: doubt.abstention([told[name] for _, told in said], s.usual_share) for name in said[0][1]})
        if seed == seeds[0]:
            rng = np.random.default_rng((seed, 8))
            known = Material(table, every[labelled & ~is_last[table.plane]], every[~is_last[table.plane]]).thinned(
                p.compare.rows, rng
            )
            few = Material(table, known.taught_a, known.taught_b)
            answers = [own | others for own, others in zip(answers, beside(few, asked, p, names, seed), strict=True)]
        for method in answers[0]:
            of = [a[method] for a in answers]
            by.setdefault(method, []).append(_means(of))
            for folder, found in zip(ask, of, strict=True):
                lines += [[method, seed, folder.name, measure, value] for measure, value in found.items()]
        print(f"worlds: seed {seed}: {_line(by['network'][-1])}", flush=True)
    result: dict[str, Any] = {
        "worlds_taught": len(train) - validating,
        "worlds_validated": validating,
        "worlds_asked": len(asked),
        "services_asked": len({(k, n) for k, a in enumerate(asked) for n in set(a.table.plane_labels["service"])}),
        "rows_taught": int((~is_last[table.plane]).sum()),
        "inputs": s.a.inputs,
        "seeds": list(seeds),
        "methods": {method: _over_seeds(found) for method, found in by.items()},
    }
    if by_kept:
        kept = {name: _over_seeds([of[name] for of in by_kept]) for name in by_kept[0]}
        result |= {"interval": s.interval, "kept_share": s.usual_share, "kept": kept}
    write_bytes(out / "worlds.csv", csv_bytes(["method", "seed", "world", "measure", "value"], lines))
    write_json(out / "worlds.json", result)
    own = result["methods"]["network"]
    write_headline(out, {name: own[name]["mean"] for name in _HEADLINE if name in own})
    return result


def _about(letter: str, table: Table) -> dict[str, Any]:
    """What model.json says of it; there is no run of MLflow."""
    return {
        "model": letter,
        "dataset": "worlds",
        "campaign": table.about.campaign,
        "data_sha256": table.about.data_sha256,
        "plant_version": table.about.made_by.get(PLANT),
        "mlflow_run_id": "",
        "mlflow_child_id": "",
    }


def _told(table: Table, what: str, k: int, count: int) -> Table:
    if (k + 1) % 20 == 0 or k + 1 == count:
        print(f"worlds: {what} {k + 1} of {count}", flush=True)
    return table


def _means(found: Sequence[dict[str, float]]) -> dict[str, float]:
    # harm is measured only where something was said wrongly: its mean would be over other worlds for each method
    names = sorted({name for f in found for name in f if "harm" not in name})
    return {name: float(np.mean([f[name] for f in found if name in f])) for name in names}


def _over_seeds(found: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {"mean": float(np.mean(v)), "least": float(min(v)), "most": float(max(v))}
        for name in found[0]
        if (v := [f[name] for f in found if name in f])
    }


def _line(found: dict[str, float]) -> str:
    told = ("a_cores_mae", "a_cores_mae_valid", "a_ways_mae", "a_ways_mae_valid", "b_error_pct", "b_error_pct_valid")
    return ", ".join(f"{name} {found[name]:.3g}" for name in told if name in found)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.worlds", description="Learn from drawn worlds, ask about others.")
    parser.add_argument("--train", type=Path, nargs="+", required=True, metavar="FOLDER")
    parser.add_argument("--ask", type=Path, nargs="+", required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--inputs", choices=("relative", "paper"), help="instead of `worlds.a.inputs`, of both models")
    parser.add_argument("--seeds", help="of the trainings, e.g. 1,2,3; default: `worlds.trainings`")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    args = parser.parse_args(argv)

    def work() -> dict[str, Any]:
        p = params.load(args.params)
        seeds = p.worlds.trainings
        if args.seeds is not None:
            try:
                seeds = [int(seed) for seed in args.seeds.split(",")]
            except ValueError:
                raise BadInput(f"--seeds {args.seeds}: want whole numbers with commas between, e.g. 1,2,3") from None
            if min(seeds) < 0 or len(set(seeds)) < len(seeds):
                raise BadInput(f"--seeds {args.seeds}: want whole numbers of 0 or more, each once")
        if args.inputs:
            a, b = (getattr(p.worlds, m).model_copy(update={"inputs": args.inputs}) for m in ("a", "b"))
            p = p.model_copy(update={"worlds": p.worlds.model_copy(update={"a": a, "b": b})})
        return run(folders(args.train), folders(args.ask), args.out, p, seeds)

    return params.run_stage(work)


if __name__ == "__main__":
    raise SystemExit(main())
