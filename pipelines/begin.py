"""Where training may begin instead of at random weights: at another platform's models, from its bundle or its stage `train`.

Or at models of many worlds (pipelines/worlds.py), which have no Model-C and labels in per cent of a platform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from models import features, intervals, relative
from models.features import ACTIONS, Bound, Scale
from pipelines import worlds
from pipelines.artefact import bundle
from pipelines.errors import BadInput, BundleError
from pipelines.fits import fitted
from pipelines.fits.fit import Start
from pipelines.io import sha256_bytes, sha256_file
from pipelines.samples import PLANT

Letter = Literal["a", "b", "c"]
LETTERS: tuple[Letter, ...] = ("a", "b", "c")


@dataclass(frozen=True)
class Origin:
    """Models to begin from.

    Attributes:
        name: platform of the bundle, or name of the data set.
        sha256: stands for the weights and for what they take and give.
        plant: edition of the virtual server that they know; None where a machine made their data, or nothing is said.
        worlds: they are of many worlds.
    """

    path: Path
    name: str
    sha256: str
    starts: Mapping[str, Start]
    plant: str | None = None
    worlds: bool = False

    @property
    def variant(self) -> str:
        """Of the inputs of Models A and B, as `train.a.inputs` in params.yaml names it."""
        return "relative" if {b.name for b in self.starts["a"].inputs} & set(relative.MODEL_A_RELATIVE) else "paper"

    def check_variant(self, trained: str) -> None:
        """Refuse models whose inputs are not those that the training has.

        Args:
            trained: `transfer.a.inputs` of params.yaml.
        Raises:
            BadInput: names both and the remedy.
        """
        wanted = "relative" if self.worlds else trained
        if self.worlds and self.variant != wanted:
            raise BadInput(
                f"--from {self.path}: Models A and B have the papers' readings, which mean something else on another server; "
                "train with `python -m pipelines.worlds --inputs relative`"
            )
        if self.variant != wanted:
            raise BadInput(
                f"--from {self.path}: Models A and B have the inputs of the variant {self.variant!r}, and params.yaml says "
                f"transfer.a.inputs: {trained!r}. Give models of that variant, or set `inputs` of train.a, train.b, transfer.a "
                f"and transfer.b to {self.variant}"
            )

    def check(self, feature_set: str, ways: int, where: str) -> None:
        """Refuse a platform whose models take something else, before anything is collected there.

        For platforms on which everything of the feature set is measured, as on virtual ones; elsewhere the data must say, and
        `Start.check` does it then.

        Args:
            ways: LLC ways of that platform, 0 where the cache cannot be partitioned.
            where: what names that platform, for the message.
        Raises:
            BadInput: names the model, the input and the remedy.
        """
        wanted = (features.MODEL_A_INPUTS, features.MODEL_B_INPUTS, features.MODEL_C_INPUTS)
        carried = (relative.MODEL_A_RELATIVE, relative.MODEL_B_RELATIVE, ())
        for letter, papers, relatives in zip(LETTERS, wanted, carried, strict=True):
            if letter not in self.starts:
                continue
            theirs = [b.name for b in self.starts[letter].inputs]
            inputs = relatives if set(theirs) & set(relatives) else papers
            possible = features.candidates(inputs, feature_set, ways)
            odd = [name for name in (*theirs, *possible) if name not in theirs or name not in possible]
            if odd:
                has = "takes" if odd[0] in theirs else "does not take"
                raise BadInput(
                    f"--from {self.path}: Model-{letter.upper()} {has} {odd[0]}, unlike those of {where} (feature set "
                    f"{feature_set}, {ways} ways). Give a bundle of the same feature set and cache partitioning, or "
                    "train from nothing: --from nothing"
                )
        if self.worlds:
            return
        told = [s.name for s in self.starts["a"].outputs if not intervals.is_end(s.name)]
        if lacks := [
            name for name in features.output_candidates(features.MODEL_A_OUTPUTS, feature_set, ways) if name not in told
        ]:
            raise BadInput(
                f"--from {self.path}: Model-A has no output {lacks[0]}, which {where} calls for: it began from models of worlds. "
                "Give their folder, or train from nothing: --from nothing"
            )


def read(path: Path) -> Origin:
    """A bundle (folder or tar), which is verified, the folder with the outputs of the stage `train`, or models of many worlds.

    Raises:
        BadInput: none of them, or damaged; names the file at fault.
    """
    if of_worlds(path):
        try:
            worlds.check_models(path, {letter: fitted.summary(path / letter) for letter in ("a", "b")})
        except BadInput as error:
            raise BadInput(f"--from {error}") from None
        return _from_folder(path, ("a", "b"), of_worlds=True)
    if path.is_dir() and (path / "a" / fitted.SUMMARY).exists():
        return _from_folder(path, LETTERS)
    try:
        checked = bundle.verify(path)
    except BundleError as error:
        raise BadInput(f"--from {path}: {error}") from None
    except BadInput as error:
        raise BadInput(f"--from {error}") from None
    if checked.manifest.provenance.campaigns == [worlds.MIXTURE]:
        raise BadInput(f"--from {path}: is a bundle of models of worlds; give the folder that `python -m pipelines.worlds` wrote")
    starts: dict[str, Start] = {}
    for letter in LETTERS:
        spec: bundle.MlpSpec | bundle.DdpgSpec = getattr(checked.manifest.models, letter)
        starts[letter] = Start(checked.weights(letter), (), *scaling(spec))
    return Origin(
        path, checked.manifest.platform.name, checked.manifest_sha256, starts, checked.manifest.provenance.software.get(PLANT)
    )


def scaling(spec: bundle.MlpSpec | bundle.DdpgSpec) -> tuple[tuple[Bound, ...], tuple[Scale, ...]]:
    """Bounds and scales of a bundle's model."""
    inputs = tuple(Bound(i.name, i.min, i.max) for i in spec.inputs)
    if isinstance(spec, bundle.DdpgSpec):
        return inputs, _actions(spec.actions)
    return inputs, tuple(Scale(o.name, o.scale, o.offset) for o in spec.outputs)


def of_worlds(path: Path) -> bool:
    """Whether a folder is the output of pipelines/worlds.py."""
    summary = path / "a" / fitted.SUMMARY
    return summary.is_file() and fitted.summary(path / "a").campaign == worlds.MIXTURE


def _from_folder(folder: Path, letters: Sequence[Letter], *, of_worlds: bool = False) -> Origin:
    starts: dict[str, Start] = {}
    digests = []
    for letter in letters:
        try:
            model = fitted.load(folder / letter)
        except BadInput as error:
            raise BadInput(f"--from {error}") from None
        outputs = _actions(ACTIONS) if letter == "c" else tuple(model.outputs)
        starts[letter] = Start(model.weights, (), tuple(model.inputs), outputs)
        digests += [sha256_file(folder / letter / name) for name in (fitted.WEIGHTS, fitted.SUMMARY)]
    about = fitted.summary(folder / "a")
    return Origin(folder, about.dataset, sha256_bytes("".join(digests).encode()), starts, about.plant_version, of_worlds)


def _actions(names: Sequence[str]) -> tuple[Scale, ...]:
    """Probabilities have no unit."""
    return tuple(Scale(name, 1.0, 0.0) for name in names)
