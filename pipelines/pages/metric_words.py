"""Metrics, methods and models in words, for pages and cards. What each metric is says pipelines/evaluate.py."""

from __future__ import annotations

_UNITS = {"cores": "cores", "ways": "ways", "mbps": "MB/s"}
METHODS = {
    "nearest": "nearest neighbour",
    "linear": "linear fit",
    "lightgbm": "LightGBM",
    "constant": "constant",
    "median": "constant, median of QoS",
}
BALANCED = {
    "error_met_pct": ("QoS capped at 1 where it is met, mean absolute error", "%"),
    "error_missed_pct": ("QoS capped at 1 where it is missed, mean absolute error", "%"),
    "error_macro_pct": ("mean of the errors where QoS is met and where it is missed", "%"),
    "false_met": ("“met” said where QoS is missed", "share of what misses"),
    "harm_pct": ("harm: how far QoS is below its target where “met” was said falsely", "% of QoS"),
    "cliff_verdicts": ("verdicts right within one step of the cliff", "share"),
}
"""Model-B's measures in which no constant does well: words and unit."""
MODELS = {
    "a": "Model-A (OSML+)",
    "b": "Model-B (OSML+)",
    "c": "Model-C (OSML+)",
    "osml-a": "Model-A (OSML)",
    "osml-ap": "Model-A' (OSML)",
    "osml-b": "Model-B (OSML)",
    "osml-bp": "Model-B' (OSML)",
    "osml-c": "Model-C (OSML)",
}
OTHERS = {
    "a_oaa_cells_measured": "Model-A: predicted OAA, rounded up, is a cell that was measured (share)",
    "a_safe_share": "Model-A: predicted OAA, rounded up, meets QoS (share)",
    "a_safe_but_violates": "Model-A: predicted OAA, rounded up, misses QoS (share)",
    "b_safe_but_violates": "Model-B: predicted “met” that are not (share)",
    "b_cliff_recall": "Model-B: single steps over the cliff that it sees coming (share)",
    "b_cliff_steps": "Model-B: single steps over the cliff that it was asked about (number)",
    "c_grows_when_violating": "Model-C: violating states in which it gives more (share)",
    "c_never_shrinks_into_cliff": "Model-C: states just above the cliff in which it does not step over it (share)",
    "osml_c_grows_when_violating": "Model-C (OSML): violating states in which it gives more (share)",
    "test_rows": "samples measured on (number)",
    "test_planes": "planes measured on (number)",
}


def describe(metric: str) -> tuple[str, str]:
    """A metric in words, and its unit."""
    model, rest = next(
        (
            (m, metric[len(m) + 1 :])
            for m in sorted(MODELS, key=len, reverse=True)
            if metric.startswith(f"{m.replace('-', '_')}_")
        ),
        ("", metric),
    )
    who = f"{MODELS[model]}: " if model else ""
    if rest in BALANCED:
        text, unit = BALANCED[rest]
        return f"{who}{text}", unit
    if rest in ("cores_mae", "ways_mae"):
        what = rest.removesuffix("_mae")
        return f"{who}{what} of OAA and RCliff, mean absolute error", what
    if rest == "mae":
        return f"{who}OAA and RCliff, cores and ways together, mean absolute error", "cores or ways"
    if rest == "qos_mae":
        return f"{who}QoS (target / p99, capped), mean absolute error", "of the target"
    if model == "osml-bp" and rest == "error_pct":
        return f"{who}QoS slowdown, mean absolute error", "% of QoS"
    if rest == "error_pct":
        return f"{who}QoS capped at 1, mean absolute error", "%"
    if rest == "accuracy":
        return f"{who}“QoS is met” predicted rightly", "share"
    if rest == "reduction_pct":
        return f"{who}error lower with transfer", "%"
    if rest.endswith("_mae"):
        output = rest.removesuffix("_mae")
        unit = _UNITS.get(output.rsplit("_", 1)[-1], "")
        shown = (
            output.removesuffix("_mbps")
            .replace("_", " ")
            .replace("oaa", "OAA")
            .replace("rcliff", "RCliff")
            .replace("mbl", "bandwidth")
        )
        return f"{who}{shown}, mean absolute error", unit
    return metric.replace("_", " "), ""


def other(metric: str) -> str:
    """A figure that is no error, in words."""
    action = f"Model-C: share of action {metric.removeprefix('c_share_')}" if metric.startswith("c_share_") else metric
    return OTHERS.get(metric, action)


NOTHING = "nothing"
"""What `--from` says for random weights."""

ERRORS = {
    "a_oaa_cores_mae": "A: OAA, cores off",
    "a_oaa_ways_mae": "A: OAA, ways off",
    "a_rcliff_cores_mae": "A: RCliff, cores off",
    "a_rcliff_ways_mae": "A: RCliff, ways off",
    "b_error_pct": "B: QoS, per cent off",
    "b_accuracy": "B: share of verdicts right",
    "c_grows_when_violating": "C: share of violations it answers with more",
}
"""Metrics of the stage `evaluate` that the table shows, and what they are called there."""
