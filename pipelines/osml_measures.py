"""How good OSML's models are on planes that they never saw: what the stage `evaluate` adds where they were trained.

    osml_a_<output>_mae, osml_ap_<output>_mae  mean absolute error of Model-A (services alone) and A', in cores, ways or MB/s;
                                  `_overloaded`: of samples whose allocation cannot carry the load, `_carried`: of the others
    osml_b_<angle>_<unit>_mae     of a B-point, in cores or ways: allocations near OAA from which something can be given, each
                                  asked about one of the slowdowns that were taught
    osml_bp_error_pct             of the QoS slowdown, in per cent of QoS: allocations near OAA, asked about losing cores and ways
    osml_c_cores_mae, osml_c_ways_mae  how far Model-C's action is from the one that leads to OAA, or as near as one goes
    osml_c_grows_when_violating   share of violating states where Model-C's action gives more cores or ways

The paper's errors are its Table 5. It does not say what Model-C's action is compared with; OAA is where its models are to lead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from models import export, features, osml_actions
from pipelines import params
from pipelines.fits import fit, fit_trade, holdout, tensors
from pipelines.fits.fitted import Fitted
from pipelines.fits.holdout import mean_where
from pipelines.fits.tensors import Table

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

MODELS = ("osml-a", "osml-ap", "osml-b", "osml-bp", "osml-c")


def ask(model: Fitted, x: NDArray[np.float32]) -> F64:
    """Outputs in natural units, shape (rows, outputs)."""
    return features.natural(export.forward(model.weights, x), model.outputs)


def of_area(name: str, table: Table, model: Fitted, rows: I64) -> dict[str, float]:
    """Errors of Model-A or A' on these rows."""
    outputs = [s.name for s in model.outputs]
    error = np.abs(ask(model, fit.matrix(table, rows, model.inputs)) - table.labels(outputs)[table.plane[rows]])
    over = holdout.overloaded(table, rows)
    found = {}
    for k, output in enumerate(outputs):
        for suffix, where in (("", over | ~over), ("_overloaded", over), ("_carried", ~over)):
            if np.isfinite(value := mean_where(error[:, k], where)):
                found[f"{name}_{output}_mae{suffix}"] = value
    return found


def of_b_points(table: Table, model: Fitted, rows: I64, p: params.OsmlB, seed: int) -> dict[str, float]:
    """Errors of Model-B's B-points."""
    slowdowns = model.setting("slowdowns")
    points = fit_trade.b_points(table, fit_trade.starts(table, p.reach_steps), tuple(slowdowns))
    rows = rows[points.index[table.cell[rows]] >= 0]
    if len(rows) == 0:
        return {}
    asked = np.random.default_rng((seed, 7)).integers(0, len(slowdowns), len(rows))
    x = fit.matrix(table, rows, model.inputs)
    at = [bound.name for bound in model.inputs].index("qos_slowdown")
    x[:, at] = features.normalise(np.array(slowdowns)[asked, None], [model.inputs[at]])[:, 0]
    columns = [fit_trade.OUTPUTS.index(s.name) for s in model.outputs]
    error = np.abs(ask(model, x) - points.given[points.index[table.cell[rows]], asked][:, columns])
    everywhere = np.ones(len(rows), dtype=bool)
    found = {}
    for k, output in enumerate(model.outputs):
        if np.isfinite(value := mean_where(error[:, k], everywhere)):
            found[f"osml_b_{output.name}_mae"] = value
    return found


def of_slowdown(table: Table, model: Fitted, rows: I64, p: params.OsmlBp, seed: int) -> dict[str, float]:
    """Error of Model-B'."""
    asked = fit_trade.SlowdownQuestions(table, rows, p)
    cells, lost = asked.draw(np.random.default_rng((seed, 8)))
    known = np.isfinite(lost)
    if not known.any():
        return {}
    said = ask(model, fit.matrix(table, asked.rows[known], model.inputs, cells[known]))[:, 0]
    return {"osml_bp_error_pct": float(100 * np.abs(said - lost[known]).mean())}


def of_actions(table: Table, model: Fitted, rows: I64) -> dict[str, float]:
    """Model-C's actions: the one with the largest expected return that the machine has room for."""
    platform, step = table.platform, table.platform.core_step
    move = np.array(osml_actions.ACTIONS, dtype=float) * (step, 1.0)  # (49, 2): cores, ways
    oaa = table.labels(["oaa_cores", "oaa_ways"])[table.plane[rows]]
    held = np.column_stack([table.cell_cores[table.cell[rows]], table.cell_ways[table.cell[rows]]])
    least, most = np.array([step, min(1, platform.ways)]), np.array([platform.cores, float(platform.ways)])
    if platform.ways == 0:
        oaa[:, 1] = held[:, 1] = 0.0
    returns = export.forward(model.weights, tensors.states(table, rows, model.inputs), "policy.")  # (rows, 49)
    for k, change in enumerate(move):
        after = held + change
        fits = ((after > least - 1e-9) & (after < most + 1e-9)).all(axis=1)
        returns[~fits, k] = -np.inf
    action = move[np.argmax(returns, axis=1)]
    reach = osml_actions.REACH * np.array([step, 1.0])
    error = np.abs(action - np.clip(oaa - held, -reach, reach))
    found = {}
    everywhere = np.ones(len(rows), dtype=bool)
    for k, unit in enumerate(("cores", "ways") if platform.ways else ("cores",)):
        if np.isfinite(value := mean_where(error[:, k], everywhere)):
            found[f"osml_c_{unit}_mae"] = value
    violating = (tensors.row_qos(table, rows) < 1.0) & (held < most - 1e-9).any(axis=1)
    if violating.any():
        found["osml_c_grows_when_violating"] = float((action[violating] > 0).any(axis=1).mean())
    return found


def measure(table: Table, models: Mapping[str, Fitted], test: I64, p: params.Params) -> dict[str, float]:
    """Metrics of those of OSML's models that there are.

    Args:
        models: by name.
        test: rows of planes that no model was trained on.
    """
    seed = p.evaluate.seed
    alone = test[table.alone[table.plane[test]]]
    of: dict[str, Callable[[Fitted], dict[str, float]]] = {
        "osml-a": lambda m: of_area("osml_a", table, m, alone) if len(alone) else {},
        "osml-ap": lambda m: of_area("osml_ap", table, m, test),
        "osml-b": lambda m: of_b_points(table, m, test, p.train.osml_b, seed),
        "osml-bp": lambda m: of_slowdown(table, m, test, p.train.osml_bp, seed),
        "osml-c": lambda m: of_actions(table, m, test),
    }
    found: dict[str, float] = {}
    for name in MODELS:
        if name in models:
            found |= of[name](models[name])
    return found
