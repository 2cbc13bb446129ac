"""The bundle of a platform that no campaign has seen: models of many drawn worlds, with their answers in its cores and ways.

`surefoot bundle worlds` calls it with what `surefootd check --json` says of the platform. Models A and B take inputs that carry
over (models/relative.py); A's answers are per cent of a platform and become cores and ways here. Model-C takes readings, as the
paper has it; its network is moved to the platform's bounds and stays the same function of cores and MB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from models import features, relative
from models.features import Bound, PlatformLimits, Scale
from pipelines import samples, tracking
from pipelines.artefact import bundle
from pipelines.artefact.bundle import BundleSpec, TrainedDdpg, TrainedMlp
from pipelines.errors import BadInput
from pipelines.fits import fit, fitted
from pipelines.fits.fitted import Fitted
from pipelines.generalise import rescaled
from pipelines.io import read_json
from pipelines.pages.card import DRAWN, model_card
from pipelines.worlds import MIXTURE, PERCENT, check_models

_REMEDY = "make it with `python -m pipelines.worlds`"
_TOLD = ("a_cores_mae", "a_ways_mae", "b_error_pct", "b_false_met", "b_accuracy")


class Platform(BaseModel):
    """What `surefootd check --json` says of the server that the bundle is for."""

    model_config = ConfigDict(extra="ignore")

    name: str
    cores: float
    core_step: float
    ways: int
    mb_per_way: float
    mba: bool

    def limits(self) -> PlatformLimits:
        return PlatformLimits(self.name, self.cores, self.core_step, self.ways, self.mb_per_way, self.mba)


def spec(models: Path, platform: Platform) -> BundleSpec:
    """What goes into the bundle of one platform.

    Args:
        models: what `python -m pipelines.worlds` wrote.
    Raises:
        BadInput: a model is missing, is of one platform alone, or has inputs that do not carry over.
    """
    held = {letter: fitted.summary(models / letter) for letter in bundle.LETTERS}
    check_models(models, held)
    for letter, known in (("a", relative.MODEL_A_RELATIVE), ("b", relative.MODEL_B_RELATIVE)):
        if odd := [b.name for b in held[letter].inputs if b.name not in known]:
            raise BadInput(
                f"{models / letter / fitted.SUMMARY}: field inputs: {odd[0]} means something else on another server; train with "
                "`--inputs relative`"
            )
    if platform.ways == 0:
        raise BadInput(
            f"platform {platform.name}: its cache cannot be partitioned, and models of worlds ask for ways; collect data of this "
            "platform (`surefoot onboard`)"
        )
    limits = platform.limits()
    a, b, c = (fitted.load(models / letter) for letter in bundle.LETTERS)
    a = rescaled(a, PERCENT, limits, outputs_alone=True)
    commit, dirty = tracking.git_state()
    plant = held["a"].plant_version
    made = BundleSpec(
        feature_set="full",
        platform=platform.model_dump(),
        services={},
        a=TrainedMlp(a.weights, a.inputs, a.outputs),
        b=TrainedMlp(b.weights, b.inputs, b.outputs, qos_cap=b.setting("qos_cap")),
        c=moved(c, limits),
        metrics=_metrics(models),
        provenance={
            "git_commit": commit,
            "git_dirty": dirty,
            "data_sha256": held["a"].data_sha256,
            "mlflow_run_id": None,
            "campaigns": [MIXTURE],
            "software": {name: version(name) for name in ("lightning", "numpy", "polars", "safetensors", "torch")}
            | ({} if plant is None else {samples.PLANT: plant}),
        },
    )
    made.card = model_card(bundle.facts(made))
    return made


def moved(c: Fitted, platform: PlatformLimits) -> TrainedDdpg:
    """Model-C within the bounds that the platform has: the same function of cores and MB."""
    limits = features.platform_limits(platform)
    bounds = [Bound(b.name, b.min, limits.get(b.name, b.max)) for b in c.inputs]
    actions = [Scale(name, 1.0, 0.0) for name in features.ACTIONS]
    start = fit.Start(c.weights, (), tuple(c.inputs), tuple(actions)).moved_to(bounds, actions)
    # Where a platform throttles bandwidth, no world has taught what that does.
    return TrainedDdpg(start.weights, bounds, c.setting("hyperparameters"), c.setting("available_actions"))


def _metrics(models: Path) -> dict[str, float]:
    """How far off they were on worlds that they never saw; the same for each platform."""
    found = read_json(models / "worlds.json", "what models of worlds are worth", _REMEDY)
    try:
        network = found["methods"]["network"]
        told = {f"{name}{DRAWN}": float(network[name]["mean"]) for name in _TOLD if name in network}
        return told | {f"{name}{DRAWN}": float(found[name]) for name in ("worlds_asked", "services_asked", "worlds_taught")}
    except (KeyError, TypeError, ValueError):
        raise BadInput(f"{models / 'worlds.json'}: has no methods.network with its means; {_REMEDY}") from None


def _platform(told: Mapping[str, Any]) -> Platform:
    try:
        found = Platform.model_validate(told)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise BadInput(
            f"--platform {told.get('name')}: field {where}: {error.errors()[0]['msg']}; look at `surefootd check --json`"
        ) from None
    if found.ways and found.mb_per_way <= 0.0:
        raise BadInput(
            f"--platform {found.name}: field mb_per_way: {found.mb_per_way}, with {found.ways} ways; mend the platform's file"
        )
    return found


def limits_of(told: Mapping[str, Any]) -> PlatformLimits:
    """What models need to know of a platform that `surefootd check --json` told of.

    Raises:
        BadInput: names the field.
    """
    return _platform(told).limits()


def run(
    models: Path, platforms: Sequence[Mapping[str, Any]], out: Path, key: Path | None, overwrite: bool
) -> list[dict[str, Any]]:
    """A bundle for each platform, OUT/NAME and OUT/NAME.tar; all are checked before the first is written.

    Raises:
        BadInput: a model or an output does not fit; names it.
    """
    wanted = [_platform(p) for p in platforms]
    specs = [spec(models, p) for p in wanted]
    if twice := next((p.name for k, p in enumerate(wanted) if p.name in {q.name for q in wanted[:k]}), None):
        raise BadInput(f"--platform: {twice} is named twice; name each platform once")
    for p in wanted:
        bundle.check_out(out / p.name, [("--models", models)], overwrite)
    signer = bundle.signing_key(key)
    serial = bundle.now()
    built = []
    for p, made in zip(wanted, specs, strict=True):
        made.serial = serial
        checked = bundle.build(made, out / p.name, signer, overwrite)
        built.append({"platform": p.name, "path": str(out / f"{p.name}.tar"), "manifest_sha256": checked.manifest_sha256})
    return built
