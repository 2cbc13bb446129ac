"""The model card of a bundle, `card.md`: what its models are for, what they were trained on, how good they are and where not.

Made from the facts of the manifest alone, so that card and manifest cannot disagree, and anyone can make it again from the
manifest. Figures of the papers stand beside ours as in the training report (pipelines/pages/published.csv).
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from models import relative
from models.features import MODEL_A_INPUTS, MODEL_B_INPUTS, MODEL_C_INPUTS
from pipelines.pages import published
from pipelines.pages.markdown import plain, table
from pipelines.pages.metric_words import METHODS, MODELS, describe, other
from pipelines.pages.page import number

Facts = Mapping[str, Any]

_PURPOSE = {
    "a": "counters of a service → its OAA and RCliff",
    "b": "counters and an allocation → QoS (target / p99) there",
    "c": "state → next action, learning on the node",
    "osml-a": "counters of a service alone → OAA and RCliff",
    "osml-ap": "counters of a service with neighbours → OAA and RCliff",
    "osml-b": "counters and a QoS slowdown → cores and ways that can be given away",
    "osml-bp": "counters and what is left → QoS slowdown",
    "osml-c": "state → expected return of 49 actions, learning on the node",
}
_PAPER_INPUTS = {"a": MODEL_A_INPUTS, "b": MODEL_B_INPUTS, "c": MODEL_C_INPUTS}
DRAWN = "_drawn"
"""End of the names of figures that are of drawn servers and services (pipelines/worlds.py)."""
_SAFETY = (
    "a_safe_but_violates",
    "b_safe_but_violates",
    "b_cliff_recall",
    "c_grows_when_violating",
    "c_never_shrinks_into_cliff",
)


def model_card(facts: Facts) -> str:
    """The card, as Markdown.

    Args:
        facts: of the manifest `feature_set`, `platform`, `services`, `models`, `metrics` and `provenance`; more is ignored.
    """
    platform = facts["platform"]
    lines = [
        plain(_text(f"# Model card: {platform['name']}, feature set {facts['feature_set']}")),
        "",
        "Made with the bundle from the facts of its manifest.json; no program reads anything out of it.",
        "",
        "## What the models are for",
        "",
        "A node's scheduler asks them how many cores and LLC ways latency-critical (LC) services need to stay within their QoS",
        "targets (bounds on p99), so that the rest can be given to others. They are for the platform, the feature set and the",
        "services below, and for a scheduler that measures what its actions do and corrects them. They are not for other",
        "platforms (train or transfer first), nor for deciding without such a check.",
        "",
        *_models(facts["models"]),
        "",
        "## What they were trained on",
        "",
        *_trained(facts),
        "",
        "## Services and QoS targets",
        "",
        *_services(facts["services"]),
        "",
        "## How good they are",
        "",
        *_metrics(facts["metrics"], str(platform["name"])),
        "",
        "## Limits",
        "",
        *(f"- {limit}" for limit in _limits(facts)),
        "",
        "## Licence",
        "",
        "Made with Surefoot (Apache License 2.0), which puts no terms of its own on models. Terms of the data apply.",
        "",
        "## How to check",
        "",
        "`surefoot bundle verify PATH` proves signature, digests, sizes, shapes and bounds of every file, this one too.",
        "Trust comes from the signer's public key on your machine, never from this text.",
        "",
    ]
    return "\n".join(lines)


def _services(services: Facts) -> list[str]:
    if not services:
        return ["None by name: the models are of drawn services, and are asked about any."]
    rows = [[_text(n), f"{s['qos_target_ms']:g}", _maybe(s.get("max_load_rps"))] for n, s in sorted(services.items())]
    return table(["service", "QoS target: p99, ms", "max load, requests/s"], rows)


def _text(value: object) -> str:
    """Text from data without control characters: cards are shown on terminals. Tables and `plain` do the rest."""
    return "".join(c if unicodedata.category(c) not in ("Cc", "Cf") or c in "\n\t" else "?" for c in str(value))


def _maybe(value: float | None) -> str:
    return "not known" if value is None else number(value)


def _each(models: Facts) -> Iterator[tuple[str, Facts]]:
    """Name and entry of every model, OSML's too."""
    for key in ("a", "b", "c"):
        yield key, models[key]
    for key, spec in (models.get("osml") or {}).items():
        yield f"osml-{key}", spec


def _models(models: Facts) -> list[str]:
    rows = []
    for name, spec in _each(models):
        shape = "-".join(str(layer[0]) for layer in spec["layers"][:-1])
        answers = len(spec["outputs"]) if "outputs" in spec else spec["layers"][-1][0]
        rows.append([MODELS[name], _PURPOSE[name], f"{len(spec['inputs'])}", shape, f"{answers}"])
    return table(["model", "asked → answers", "inputs", "hidden layers", "outputs"], rows)


def _trained(facts: Facts) -> list[str]:
    platform, provenance = facts["platform"], facts["provenance"]
    commit = provenance.get("git_commit")
    dirty = ", with changes that were not committed" if provenance.get("git_dirty") else ""
    mba = "MBA" if platform["mba"] else "no MBA"
    rows = [
        ["campaigns", ", ".join(map(_text, provenance.get("campaigns") or [])) or "not told"],
        ["data, SHA-256 of the manifest", _text(provenance.get("data_sha256") or "not told")],
        [
            "platform",
            f"{_text(platform['name'])}: {platform['cores']:g} cores in steps of {platform['core_step']:g}, "
            f"{platform['ways']} ways of {platform['mb_per_way']:g} MB, {mba}",
        ],
        ["feature set", _text(facts["feature_set"])],
        ["source", f"commit {_text(commit)}{dirty}" if commit else "not a git checkout"],
        ["MLflow run", _text(provenance.get("mlflow_run_id") or "none")],
        [
            "software",
            ", ".join(f"{_text(n)} {_text(v)}" for n, v in sorted((provenance.get("software") or {}).items())) or "not told",
        ],
    ]
    lines = table(["what", "value"], rows)
    for name, spec in _each(facts["models"]):
        bounds = ", ".join(f"{_text(i['name'])} {number(i['min'])} to {number(i['max'])}" for i in spec["inputs"])
        lines += ["", plain(f"{MODELS[name]} takes, each clipped to its range: {bounds}.")]
    return lines


def _metrics(metrics: Mapping[str, float], platform: str) -> list[str]:
    if not metrics:
        return ["Not told: the bundle was built without metrics."]
    if drawn := {name.removesuffix(DRAWN): value for name, value in metrics.items() if name.endswith(DRAWN)}:
        return _of_drawn(drawn)
    errors = published.errors(metrics, published.read(), "evaluate", platform, 0.0)
    rows = []
    for e in errors:
        text, unit = describe(e["metric"])
        best, theirs = "–", "–"
        if e["best"] is not None:
            best = f"{number(e['comparators'][e['best']])} ({METHODS.get(e['best'], e['best'])})"
        if e["paper"] is not None:
            within = "within" if e["within_paper"] else "ours is outside"
            theirs = (
                f"{e['paper']['value']:g} on {e['paper']['platform']} ({e['paper']['paper']}, {e['paper']['place']}): {within}"
            )
        rows.append([_text(text), unit, number(e["ours"]), number(e["constant"]), number(e["nearest"]), best, theirs])
    lines = [
        f"On {number(metrics.get('test_rows'))} samples of {number(metrics.get('test_planes'))} planes (a service at one load) "
        "that training never saw; of the services above. The constant is fitted on training planes: the median label; of QoS "
        "“always met” or the median, whichever is better.",
        "",
        *table(["figure", "unit", "ours", "constant", "nearest neighbour", "best comparator", "paper"], rows),
    ]
    safety = [[other(m), number(metrics[m])] for m in _SAFETY if m in metrics]
    return lines + (["", *table(["safety", "share"], safety)] if safety else [])


def _of_drawn(metrics: Mapping[str, float]) -> list[str]:
    """Figures of models of many drawn worlds."""
    worlds, services = (number(metrics.get(f"{what}_asked")) for what in ("worlds", "services"))
    named = {name: describe(name) for name in metrics if not name.startswith(("worlds_", "services_"))}
    rows = [[_text(text), unit, number(metrics[name])] for name, (text, unit) in sorted(named.items())]
    return [
        f"On {services} drawn services of {worlds} drawn servers, which training never saw (docs/worlds.md); it had "
        f"{number(metrics.get('worlds_taught'))} others. Not measured on this platform.",
        "",
        *table(["figure", "unit", "ours"], rows),
    ]


def _unseen(metric: str) -> str:
    figure = published.find(published.read(), "unseen", metric, "server-1")
    return "–" if figure is None else f"{figure.value:g}"


def _limits(facts: Facts) -> Iterator[str]:
    metrics, platform = facts["metrics"], facts["platform"]
    yield (
        "Services that are not listed were never seen: expect larger errors (OSML+ reports a mean absolute error of "
        f"{_unseen('a_mae')} cores or ways for Model-A and {_unseen('b_error_pct')} % for Model-B); measure yours with the "
        "stages leave-one-out and foreign."
    )
    if (missed := metrics.get("a_safe_but_violates")) is not None and math.isfinite(missed):
        yield (
            f"{100 * missed:.1f} % of the predicted OAA, rounded up, would miss QoS: a prediction is where the scheduler begins, "
            "not where it ends."
        )
    overloaded = sorted(m for m in metrics if m.startswith("a_") and m.endswith("_mae_overloaded"))
    if overloaded:
        worst = ", ".join(
            f"{describe(m.removesuffix('_overloaded'))[0].split(': ', 1)[-1].split(',')[0]} {number(metrics[m])}"
            for m in overloaded
        )
        yield f"Where the allocation at hand cannot carry the load, counters say little of what lacks. Errors there: {worst}."
    for name, spec in _each(facts["models"]):
        has = {i["name"] for i in spec["inputs"]}
        if has & set(relative.table()):
            yield f"{MODELS[name]} has inputs that carry over to other services and servers, in place of the paper's readings."
        elif gone := [n for n in _PAPER_INPUTS.get(name, ()) if n not in has]:
            yield f"{MODELS[name]} lacks inputs of the paper that the data have not: {', '.join(gone)}."
    if platform["ways"] == 0:
        yield "The LLC could not be partitioned: the models say nothing about ways."
    if not platform["mba"]:
        yield "Memory bandwidth could not be throttled: no action changes it."
    yield "Inputs outside the ranges above are clipped: memory sizes and bandwidths beyond the data look like the largest seen."
    yield "The figures are of one data set and one seed; its data card (data-card.md of the campaign) says what it lacks."
