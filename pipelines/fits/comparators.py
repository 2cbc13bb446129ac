"""What stands beside the models in every table and gate: constants, and what a practitioner would try instead.

All are taught with the models' own material, training planes alone, and see the models' inputs, scaled alike:

    constant   of Model-A the median label of each output; of Model-B "always met", QoS 1
    median     of Model-B the median of QoS
    nearest    the label of the nearest training sample (Euclidean)
    linear     least squares with a constant
    lightgbm   gradient boosted trees (LightGBM), fitted for the absolute error; one thread and a seed, so the same bits
    everywhere
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from models import features, intervals, model_a, model_b
from pipelines import params
from pipelines.fits import balance, holdout, tensors
from pipelines.fits.fit import matrix
from pipelines.fits.holdout import Questions
from pipelines.fits.tensors import Table

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

Method = Callable[[F32, F64, F32, params.Compare], F64]
"""Training inputs (rows, inputs), training targets (rows,), test inputs: to predictions (test rows,)."""

Found = dict[str, float]
ALWAYS_MET = 1.0


def nearest(train_x: F32, train_y: F64, test_x: F32, p: params.Compare) -> F64:
    from scipy.spatial import KDTree

    step = -(-len(train_x) // p.nearest_rows)
    return train_y[::step][KDTree(train_x[::step]).query(test_x)[1]]


def linear(train_x: F32, train_y: F64, test_x: F32, p: params.Compare) -> F64:
    design = np.column_stack([train_x, np.ones(len(train_x))])
    weights, *_ = np.linalg.lstsq(design, train_y, rcond=None)
    return np.column_stack([test_x, np.ones(len(test_x))]) @ weights


def lightgbm(train_x: F32, train_y: F64, test_x: F32, p: params.Compare) -> F64:
    import lightgbm as lgb

    settings = {
        "objective": "regression_l1",
        "num_leaves": p.leaves,
        "learning_rate": p.learning_rate,
        "min_data_in_leaf": min(20, max(1, len(train_x) // 50)),
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "seed": p.seed,
        "verbosity": -1,
    }
    booster = lgb.train(settings, lgb.Dataset(train_x, train_y), num_boost_round=p.rounds)
    return np.asarray(booster.predict(test_x, num_threads=1))


METHODS: dict[str, Method] = {"nearest": nearest, "linear": linear, "lightgbm": lightgbm}
SIMPLE = ("nearest",)
"""Those that every stage compares with: they need no training."""


@dataclass(frozen=True)
class Material:
    """What a model was taught with: rows of a table, none of them measured on.

    Attributes:
        a, b: rows that Model-A and Model-B learn from.
        few_a, few_b: those of them that the learners here are taught with; None: all.
    """

    table: Table
    a: I64
    b: I64
    few_a: I64 | None = None
    few_b: I64 | None = None

    @classmethod
    def of(cls, table: Table) -> Material:
        """The training planes; Model-B also learns from planes without a feasible cell."""
        return cls(table, table.part("train"), table.part("train", "none"))

    def thinned(self, count: int, rng: np.random.Generator) -> Material:
        """The same with at most `count` rows for the learners here."""
        return replace(self, few_a=holdout.thin(self.a, count, rng), few_b=holdout.thin(self.b, count, rng))

    @property
    def taught_a(self) -> I64:
        return self.a if self.few_a is None else self.few_a

    @property
    def taught_b(self) -> I64:
        return self.b if self.few_b is None else self.few_b


@dataclass(frozen=True)
class Constants:
    """What is said of everything by whoever looks at no counter.

    Attributes:
        area: the median label of each of Model-A's outputs, over the training rows.
        qos: by method: "always met", and the median of QoS over the questions that Model-B is taught with.
    """

    area: dict[str, float]
    qos: dict[str, float]


def constants(known: Material, taught: Questions) -> Constants:
    """The constants of these training planes; the one place where they are fitted."""
    table = known.table
    area: dict[str, float] = {}
    for name in features.output_candidates(features.MODEL_A_OUTPUTS, table.feature_set, table.platform.ways):
        labels = table.labels([name])[table.plane[known.a], 0]
        if np.isfinite(labels).any():
            area[name] = float(np.nanmedian(labels))
    qos = {"constant": ALWAYS_MET}
    if len(taught.qos):
        qos["median"] = float(np.median(taught.qos))
    return Constants(area, qos)


def taught_questions(known: Material, b: params.ModelB, seed: int) -> Questions:
    """The questions that Model-B is taught with."""
    return holdout.questions(known.table, known.taught_b, b.qos_cap, seed, b.near_share)


def answers_a(
    known: Material,
    said: Constants,
    table: Table,
    rows: I64,
    names: Sequence[str],
    p: params.Compare,
    learners: Sequence[str],
    variant: str = "paper",
) -> dict[str, F64]:
    """What each method says of Model-A's outputs, shape (rows, names); NaN where it was taught nothing.

    Args:
        rows: of `table`, which need not be the one that was learnt from.
        learners: of METHODS; the constant is always there.
        variant: of the inputs, as the models have them.
    """
    found = {"constant": np.tile([said.area.get(name, np.nan) for name in names], (len(rows), 1))}
    if not len(rows):
        return found
    inputs = [n for n in tensors.model_inputs(model_a.SPEC.inputs_of(variant), known.table)[0] if table.has(n)]
    bounds = features.make_bounds(inputs, tensors.observed(known.table, known.a), known.table.platform)
    known_x = features.normalise(known.table.matrix(inputs, known.taught_a), bounds)
    test_x = features.normalise(table.matrix(inputs, rows), bounds)
    labels = known.table.labels(names)[known.table.plane[known.taught_a]]
    taught = np.isfinite(labels)
    for method in learners:
        found[method] = np.full((len(rows), len(names)), np.nan)
        # labels that the same rows have are asked for at once where the method can: the neighbour is the same one
        alike = [[k for k in range(len(names)) if np.array_equal(taught[:, k], mask)] for mask in np.unique(taught, axis=1).T]
        for columns in alike if method == "nearest" else [[k] for k in range(len(names))]:
            rows_of = taught[:, columns[0]]
            if rows_of.any():
                y = labels[rows_of][:, columns]
                answer = METHODS[method](known_x[rows_of], y if len(columns) > 1 else y[:, 0], test_x, p)
                found[method][:, columns] = answer.reshape(len(rows), len(columns))
    return found


def answers_b(
    known: Material,
    said: Constants,
    taught: Questions,
    table: Table,
    asked: Questions,
    p: params.Compare,
    learners: Sequence[str],
    variant: str = "paper",
) -> dict[str, F64]:
    """What each method says of Model-B's questions; `variant` as in `answers_a`."""
    found = {name: np.full(len(asked.rows), value) for name, value in said.qos.items()}
    if not len(asked.rows) or not len(taught.rows):
        return found
    inputs = [n for n in tensors.model_inputs(model_b.SPEC.inputs_of(variant), known.table)[0] if table.has(n)]
    bounds = features.make_bounds(inputs, tensors.observed(known.table, known.b), known.table.platform)
    known_x = matrix(known.table, taught.rows, bounds, taught.cells)
    test_x = matrix(table, asked.rows, bounds, asked.cells)
    return found | {method: METHODS[method](known_x, taught.qos, test_x, p) for method in learners}


@dataclass(frozen=True)
class Asked:
    """What everyone is asked about: rows for Model-A, questions for Model-B.

    Attributes:
        distance: of each cell of `table` from the cliff.
    """

    table: Table
    rows: I64
    questions: Questions
    distance: I64

    def errors_of_a(self, answer: F64, names: Sequence[str]) -> Found:
        """The errors of balance.area_errors of what is said of the rows, shape (rows, names); nothing without labels.

        Ends of intervals have no labels, and no part in it.
        """
        middle = [k for k, name in enumerate(names) if not intervals.is_end(name)]
        answer, names = answer[:, middle], [names[k] for k in middle]
        labels = self.table.labels(names)[self.table.plane[self.rows]]
        return balance.area_errors(answer, labels, names) if np.isfinite(labels).any() else {}

    def errors_of_b(self, answer: F64) -> Found:
        """The errors of balance.qos_measures of what is said of the questions; nothing without questions."""
        if not len(self.questions.rows):
            return {}
        errors = balance.qos_measures(answer, self.questions.qos, self.distance[self.questions.cells])
        return {f"b_{name}": value for name, value in errors.items()}


def measure(
    known: Material,
    asked: Asked,
    p: params.Params,
    a: params.Regression,
    b: params.ModelB,
    seed: int,
    learners: Sequence[str] = SIMPLE,
) -> Found:
    """The errors of all methods, by their names with `_<method>` behind: those of balance.area_errors and balance.qos_measures.

    Args:
        a, b: as the models are taught; the methods have the inputs that they have.
        seed: of the questions that are taught.
    """
    table = asked.table
    taught = taught_questions(known, b, seed)
    said = constants(known, taught)
    names = features.output_candidates(features.MODEL_A_OUTPUTS, table.feature_set, table.platform.ways)
    found: Found = {}
    for method, answer in answers_a(known, said, table, asked.rows, names, p.compare, learners, a.inputs).items():
        found |= {f"{name}_{method}": value for name, value in asked.errors_of_a(answer, names).items()}
    for method, answer in answers_b(known, said, taught, table, asked.questions, p.compare, learners, b.inputs).items():
        found |= {f"{name}_{method}": value for name, value in asked.errors_of_b(answer).items()}
    return found
