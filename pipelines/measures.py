"""Names of what the stage `evaluate` measures, for whoever names one, as the gate in params.yaml does.

pipelines/evaluate.py says what each is.

A data set has those of the models and outputs that it has; the names here are all that there can be.
"""

from __future__ import annotations

MODELS = ("a", "b", "c", "osml-a", "osml-ap", "osml-b", "osml-bp", "osml-c")
AREA = ("oaa_cores", "oaa_ways", "oaa_mbl_mbps", "rcliff_cores", "rcliff_ways")
"""Outputs of Model-A and A'."""
POINTS = ("mae", "cores_mae", "ways_mae")
"""Of OAA and RCliff of Model-A: all four, cores, ways."""
BALANCED = ("error_met_pct", "error_missed_pct", "error_macro_pct", "false_met", "harm_pct", "cliff_verdicts")
"""Of a prediction of QoS, cells that meet it and cells that miss it apart."""
QOS = ("qos_mae", "error_pct", "accuracy", *BALANCED)
"""Of a prediction of QoS."""
CONSTANTS = ("constant", "median")
"""What looks at no counter; of Model-A there is one."""
LEARNERS = ("nearest", "linear", "lightgbm")
METHODS = (*CONSTANTS, *LEARNERS)
"""The comparators."""
RATIOS = {
    "_vs_best": "error over the best comparator's",
    "_vs_constant": "error over a constant's",
    "_vs_nearest": "error over the nearest neighbour's",
}
"""Ends of metrics that set an error against another's."""
ACTIONS = ("cores_up", "cores_down", "ways_up", "ways_down", "mba_up", "mba_down", "idle")
B_POINTS = tuple(f"{angle}_{unit}" for angle in ("default", "cores_dominated", "cache_dominated") for unit in ("cores", "ways"))
"""Outputs of OSML's Model-B."""


def _names() -> tuple[str, ...]:
    of_area = [f"{m}_{o}_mae{s}" for m in ("a", "osml_a", "osml_ap") for o in AREA for s in ("", "_overloaded", "_carried")]
    of_area += [f"a_{point}" for point in POINTS]
    in_area = [*(f"{o}_mae" for o in AREA), *POINTS]
    compared = [f"a_{name}_{method}" for name in in_area for method in METHODS if method != "median"]
    compared += [f"b_{q}_{method}" for q in QOS for method in METHODS]
    best = [*(f"a_{o}_vs_best" for o in AREA), "b_qos_vs_best"]
    simple = [f"{of}_vs_{m}" for of in (*(f"a_{o}" for o in AREA), "b_error", "b_error_macro") for m in ("constant", "nearest")]
    return (
        *of_area,
        *compared,
        *best,
        *simple,
        *(f"b_{q}" for q in QOS),
        *("a_safe_share", "a_safe_but_violates", "a_oaa_cells_measured"),
        *("b_safe_but_violates", "b_cliff_recall", "b_cliff_steps"),
        *(f"c_share_{action}" for action in ACTIONS),
        *("c_grows_when_violating", "c_never_shrinks_into_cliff"),
        *(f"osml_b_{point}_mae" for point in B_POINTS),
        *("osml_bp_error_pct", "osml_c_cores_mae", "osml_c_ways_mae", "osml_c_grows_when_violating"),
        *("test_rows", "test_planes"),
    )


NAMES = _names()


def alike(name: str) -> list[str]:
    """The names of the same model, which are few enough to be listed; all of them where the model is unknown."""
    prefixes = sorted((f"{m.replace('-', '_')}_" for m in MODELS), key=len, reverse=True)
    of = next((p for p in prefixes if name.startswith(p)), "")
    return sorted(n for n in NAMES if n.startswith(of))
