"""Stage `register`: versions of the trained models in MLflow's registry, and the gate before the alias `champion`.

    python -m pipelines.register --models FOLDER --out FOLDER [--model MODEL ...] [--metrics FILE] [--bundle FOLDER] [--strict]

Each model of a data set is a registered model `surefoot-MODEL-DATASET`. (The model's name comes first because then no two pairs
give one name, and hyphens because some registries take nothing else.) A version is made of what a model is
(signature.content_sha256): the same weights again are the version that there is. Its tags say all that a later run compares with:

    content_sha256, data_sha256, dataset, model, platform, plant_version, git_commit, git_dirty    as of the run that trained it
    metrics                  what `evaluate` measured (metrics.json), as JSON
    bundle_manifest_sha256   the bundle that it went into last
    gate                     "passed", or why not

Its description is the card of its bundle, which MLflow shows on the version's page beside the signature. A card that is
longer than a description may be is cut at a section, with a word on where the whole one is: an artefact of the training's run.

`candidate` is the version registered last. `champion` moves there if every line of `gate` in params.yaml holds, of all models
that are registered together or of none: they were measured together, and a node runs them as one bundle. A gate that does not
hold is no failure of the stage and takes nothing back: the bundle is made, and the champion is who it was. With --strict the
exit code is 1 then.

A killed run leaves nothing that the next one does not put right: a version appears with all its tags or not at all, and
everything else is set to what it must be.

Writes register.json: promoted, reasons (why not), lines (each of the gate: value, bound, champion's value, verdict), models;
and headline.json for `dvc metrics`: promoted (0 or 1).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines import measures, params, tracking
from pipelines.errors import BadInput, PipelineError
from pipelines.fits import fitted, signature
from pipelines.inputs import choice, parse_json, read_text
from pipelines.io import canonical_json, read_json, sha256_file, write_headline, write_json

CANDIDATE, CHAMPION = "candidate", "champion"
MODELS = ("a", "b", "c")
"""What a bundle holds."""
RESULT = "register.json"
CARD = "card.md"
"""Of a bundle."""
_FROM_RUN = ("data_sha256", "dataset", "model", "platform", "plant_version", "git_commit", "git_dirty")
_PASSED = "passed"

Metrics = Mapping[str, float]


# ---------------------------------------------------------------- the gate


@dataclass(frozen=True)
class Line:
    """What became of one rule.

    Attributes:
        champion: the metric of the version that it was compared with; None: nothing to compare with.
        holds: None: not judged (the metric is missing, and the rule is for where it was measured).
        said: value and bound in words.
    """

    model: str
    metric: str
    value: float | None
    at_most: float | None
    at_least: float | None
    champion: float | None
    holds: bool | None
    said: str


def finite(values: Any) -> dict[str, float]:
    """All finite numbers among nested objects, by path; what is null or no number is left out."""
    numbers = tracking.flat(values) if isinstance(values, dict) else {}
    return {
        name: float(value)
        for name, value in numbers.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def judge_rule(model: str, rule: params.Rule, metrics: Metrics, champion: Metrics | None) -> Line:
    """Compare one metric with its bound and with the champion's.

    Args:
        champion: what the champion had; None: there is none, or it is this very version.
    """
    value, best = metrics.get(rule.metric), (champion or {}).get(rule.metric)
    more_is_better = rule.at_least is not None
    bound = rule.at_least if rule.at_least is not None else rule.at_most
    assert bound is not None  # params.Rule
    wanted = f"{'at least' if more_is_better else 'at most'} {bound:.6g}"
    wanted += next((f", {words}" for end, words in measures.RATIOS.items() if rule.metric.endswith(end)), "")
    holds: bool | None
    if value is None:
        holds = None if rule.if_measured else False
        said = f"{rule.metric} was not measured (wanted: {wanted})"
    elif (value < bound) if more_is_better else (value > bound):
        holds, said = False, f"{rule.metric} is {value:.6g}, wanted: {wanted}"
    else:
        holds, said = True, f"{rule.metric} is {value:.6g} ({wanted})"
        if best is not None and rule.worse_by_pct is not None:
            slack = abs(best) * rule.worse_by_pct / 100
            if (value < best - slack) if more_is_better else (value > best + slack):
                holds, said = (
                    False,
                    f"{rule.metric} is {value:.6g}, the champion's {best:.6g}: over {rule.worse_by_pct:g} % worse",
                )
    return Line(model, rule.metric, value, rule.at_most, rule.at_least, best, holds, said)


def judge(rules: Mapping[str, Sequence[params.Rule]], metrics: Metrics, champions: Mapping[str, Metrics | None]) -> list[Line]:
    """Every line of the gate."""
    return [judge_rule(m, rule, metrics, champions.get(m)) for m in rules for rule in rules[m]]


def reasons(lines: Sequence[Line]) -> list[str]:
    """Why the gate does not hold; empty: it does. A gate that judges nothing lets nobody through."""
    if not any(line.holds for line in lines):
        return [line.said for line in lines if line.holds is False] or [
            "no line of `gate` in params.yaml was judged for these models"
        ]
    return [line.said for line in lines if line.holds is False]


# ---------------------------------------------------------------- the registry


def registered_name(model: str, dataset: str) -> str:
    """Name in the registry.

    Raises:
        BadInput: MLflow takes no such name.
    """
    if not dataset or set(dataset) & set("/:'\"`") or not dataset.isprintable():
        raise BadInput(
            f"data set {dataset!r}: a name in MLflow's registry has no slash, colon or quote; rename it in params.yaml"
        )
    return f"surefoot-{model}-{dataset}"


@dataclass(frozen=True)
class Trained:
    """One model as the stage `train` left it, on disk and in its MLflow run."""

    model: str
    name: str
    run_id: str
    content_sha256: str
    tags: dict[str, str]


class Registry:
    """MLflow's registry in our words."""

    def __init__(self) -> None:
        self.client = tracking.connect()
        from mlflow.exceptions import MlflowException

        self.error = MlflowException

    def trained(self, folder: Path) -> Trained:
        """A model's folder and the run that it came from.

        A run that lacks its end, because the store was away then, is completed.

        Raises:
            BadInput: the run is not in this store, it holds another model, or the training was ended before its end.
        """
        about = fitted.summary(folder)
        about.check_whole(folder)
        remedy = f"set MLFLOW_TRACKING_URI to the store of the training, or train again (remove {folder} and run `dvc repro`)"
        where = f"{folder / fitted.SUMMARY}: field mlflow_child_id: run {about.mlflow_child_id}"
        try:
            run = self.client.get_run(about.mlflow_child_id)
        except self.error as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise BadInput(f"{where} is not in this MLflow store; {remedy}") from None
        content = signature.content_sha256(folder)
        held = run.data.tags.get(signature.CONTENT)
        if held is None:
            signature.complete(tracking.Runs(about.mlflow_child_id, client=self.client), folder)
        elif held != content:
            raise BadInput(f"{where} holds another model; {remedy}")
        tags = {key: run.data.tags[key] for key in _FROM_RUN if key in run.data.tags}
        return Trained(about.model, registered_name(about.model, about.dataset), about.mlflow_child_id, content, tags)

    def version_of(self, made: Trained, tags: dict[str, str]) -> str:
        """The version of this content, made if there is none, with these tags."""
        try:
            self.client.create_registered_model(
                made.name, description=f"Model {made.model} of Surefoot; see docs/training.md, Registry"
            )
        except self.error as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        content = {signature.CONTENT: made.content_sha256}
        rule = f"name = '{made.name}' and tags.{signature.CONTENT} = '{made.content_sha256}'"
        if found := self.client.search_model_versions(rule, max_results=1):
            version = found[0]
            for key, value in tags.items():
                if version.tags.get(key) != value:
                    self.client.set_model_version_tag(made.name, version.version, key, value)
        else:
            # of the run, not of a path: the store may move
            source = f"runs:/{made.run_id}/{signature.FOLDER}"
            version = self.client.create_model_version(made.name, source, made.run_id, {**made.tags, **content, **tags})
        return str(version.version)

    def describe(self, made: Trained, version: str, card: Path) -> None:
        """Give a version the model card of its bundle."""
        text = read_text(card)
        said = description(text)
        if self.client.get_model_version(made.name, version).description != said:
            self.client.update_model_version(made.name, version, said)
        tracking.Runs(made.run_id, client=self.client).log_file(card, signature.FOLDER)

    def aliases(self, name: str) -> dict[str, str]:
        """Version by alias."""
        return {alias: str(version) for alias, version in self.client.get_registered_model(name).aliases.items()}

    def point(self, name: str, alias: str, version: str, held: str | None) -> None:
        """Move an alias that version `held` has."""
        if held != version:
            self.client.set_registered_model_alias(name, alias, version)

    def metrics(self, name: str, version: str) -> dict[str, float]:
        """What a version was measured with; nothing where it has no such tag, as versions made by hand."""
        text = self.client.get_model_version(name, version).tags.get("metrics", "{}")
        try:
            return finite(parse_json(text))
        except ValueError:
            raise PipelineError(f"{name} version {version}: tag metrics is not JSON; register that version again") from None


MOST_DESCRIPTION = 5000
"""Characters that the registry's tables have room for."""


def description(card: str) -> str:
    """A card as the description of a version: whole, or its first sections and where the rest is."""
    if len(card) <= MOST_DESCRIPTION:
        return card
    rest = f"\n\nThe whole card is `{signature.FOLDER}/{CARD}` among the artefacts of the run that trained the model.\n"
    kept = card[: MOST_DESCRIPTION - len(rest)]
    return (kept[: kept.rfind("\n## ")] if "\n## " in kept else kept[: kept.rfind("\n")]).rstrip() + rest


# ---------------------------------------------------------------- the stage


def bundle_digest(folder: Path, models: Path, names: Sequence[str]) -> str:
    """Digest of a bundle's manifest, once it is clear that it holds these models.

    Raises:
        BadInput: it is no bundle, or one of others.
    """
    path = folder / "manifest.json"
    held = read_json(path, "the manifest of the bundle")
    for name in names:
        file = f"models/{name.replace('-', '_')}.safetensors"
        digest = held.get("files", {}).get(file, {}).get("sha256") if isinstance(held, dict) else None
        if digest != sha256_file(models / name / fitted.WEIGHTS):
            raise BadInput(f"{path}: files.{file} is not the model in {models / name}; make the bundle again with `dvc repro`")
    return sha256_file(path)


def run(
    models: Path,
    out: Path,
    gate: params.Gate,
    names: Sequence[str] = MODELS,
    metrics: Path | None = None,
    bundle: Path | None = None,
) -> dict[str, Any]:
    """Register the models of one data set; returns what register.json holds.

    Args:
        models: folder of the models' folders.
        names: which of them go together.
        metrics: metrics.json of the stage `evaluate`; None: nothing was measured, and nothing is promoted.
        bundle: folder of the bundle that they went into.
    """
    if unknown := next((name for name in names if name not in measures.MODELS), None):
        raise BadInput(f"--model {unknown}: there is no such model. {choice(unknown, measures.MODELS)}")
    registry = Registry()
    with tracking.asking("MLflow's registry must be there and writable"):
        measured = finite(read_json(metrics, "the metrics of the stage `evaluate`")) if metrics else {}
        tags = {"metrics": canonical_json(measured).decode()} if metrics else {}
        if bundle is not None:
            tags["bundle_manifest_sha256"] = bundle_digest(bundle, models, names)
        made = {name: registry.trained(models / name) for name in names}
        if len({(m.tags.get("dataset"), m.tags.get("data_sha256")) for m in made.values()}) > 1:
            raise BadInput(f"{models}: the models are of different data; run `dvc repro`")
        versions = {name: registry.version_of(m, tags) for name, m in made.items()}
        aliases = {name: registry.aliases(m.name) for name, m in made.items()}
        for name, version in versions.items():
            registry.point(made[name].name, CANDIDATE, version, aliases[name].get(CANDIDATE))
        before = {name: held.get(CHAMPION) for name, held in aliases.items()}
        # a version is not compared with itself: it may have been measured again
        champions = {n: registry.metrics(made[n].name, v) for n, v in before.items() if v is not None and v != versions[n]}
        lines = judge({name: getattr(gate, name.replace("-", "_"), []) for name in names}, measured, champions)
        why = reasons(lines)
        for name, version in versions.items():
            if bundle is not None and (bundle / CARD).is_file():
                registry.describe(made[name], version, bundle / CARD)
            registry.client.set_model_version_tag(made[name].name, version, "gate", "; ".join(why) or _PASSED)
        if not why:
            for name, version in versions.items():
                registry.point(made[name].name, CHAMPION, version, before[name])
    result = {
        "promoted": not why,
        "reasons": why,
        "lines": [asdict(line) for line in lines],
        "models": {
            name: {
                "name": m.name,
                "version": int(versions[name]),
                "content_sha256": m.content_sha256,
                "champion": int(held) if (held := versions[name] if not why else before[name]) else None,
            }
            for name, m in made.items()
        },
    }
    write_json(out / RESULT, result)
    write_headline(out, {"promoted": int(not why)})
    return result


def verdict(result: Mapping[str, Any]) -> str:
    """The outcome in lines for a reader."""
    versions = ", ".join(f"{m['name']} version {m['version']}" for m in result["models"].values())
    if result["promoted"]:
        return f"promoted to {CHAMPION}: {versions}"
    lines = [f"not promoted: {versions}", *(f"  gate: {reason}" for reason in result["reasons"])]
    return "\n".join([*lines, f"  models and bundle are made and hold the alias {CANDIDATE}; {CHAMPION} stays where it was"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.register", description="Register the models of one data set.")
    parser.add_argument("--models", type=Path, required=True, help="folder of the models, outputs of the stage `train`")
    parser.add_argument(
        "--model", action="append", help=f"one of them; may be given more than once (default: {' '.join(MODELS)})"
    )
    parser.add_argument("--metrics", type=Path, help="metrics.json of the stage `evaluate`")
    parser.add_argument("--bundle", type=Path, help="folder of the bundle")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--strict", action="store_true", help="exit code 1 if the gate does not hold")
    a = parser.parse_args(argv)
    done: dict[str, Any] = {}

    def work() -> dict[str, Any]:
        done.update(run(a.models, a.out, params.load(a.params).gate, a.model or MODELS, a.metrics, a.bundle))
        return done

    code = params.run_stage(work)
    if code == 0:
        print(verdict(done), file=sys.stderr)
        return int(a.strict and not done["promoted"])
    return code


if __name__ == "__main__":
    raise SystemExit(main())
