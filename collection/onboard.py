"""`surefoot onboard`: from a new platform's file to a verified bundle, unattended, resumable step by step.

    collect    the small transfer campaign, on a virtual server or on a group of hosts; verified   -> DIR/data
    label      RCliff and OAA of every plane                                                       -> DIR/label
    rows       the samples that models learn from                                                  -> DIR/rows
    train      Models A, B and C, beginning from another platform's weights                        -> DIR/train
    evaluate   errors on planes that were held out                                                 -> DIR/evaluate
    bundle     built, signed, verified as folder and as tar                                        -> DIR/bundles
    register   versions in MLflow's registry; `champion` if the gate of params.yaml holds          -> DIR/register

From models of many worlds (pipelines/worlds.py) Models A and B come by pipelines/worlds_transfer.py, and there is a step more:

    curve      errors on held-out planes after each ten minutes of the measuring           -> DIR/curve.json

With `compare`, models are trained from nothing on the same samples, too (DIR/train-from-nothing, DIR/evaluate-from-nothing).

DIR/campaign.toml       what is collected; made by the first run, read by all, so that it can be edited before
DIR/onboard.json        what the last finished run printed
DIR/steps/              what is finished, keyed on its inputs
DIR/profiles/           the platform's file where virtual servers look for it (SUREFOOT_PROFILES)

Source of the campaign's size: OSML+ transfers its models with 10 samples of every allocation of 11 services at 5 loads, with as
many threads as the platform has CPUs: 422,400 samples of 64 CPUs x 12 ways, 290,400 of 48 x 11.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from pipelines.inputs import Unreadable, read_bytes, read_toml
from pipelines.io import make_folder, write_bytes, write_json
from pipelines.pages.metric_words import NOTHING
from pipelines.variables import environment

from . import campaign, console, dataset, spec, tools, verify, worth
from .errors import CampaignError, InputError, StepFailed, ToolFailed
from .steps import STEPS, Story, holds_story, key_of, stage_code

if TYPE_CHECKING:
    from pipelines.begin import Origin
    from pipelines.params import Params

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SUFFIX = "-from-nothing"


@dataclass(frozen=True)
class PlatformFile:
    """What is needed of a platform's file here; `surefootd` reads and checks all of it."""

    path: Path
    name: str
    cpus: int


@dataclass(frozen=True)
class Options:
    """What the command was given; see `surefoot onboard --help`."""

    platform: Path
    begin: str
    out: Path | None = None
    inventory: Path | None = None
    group: str | None = None
    campaign: Path | None = None
    params: Path | None = None
    key: Path | None = None
    compare: bool = False


def read_platform(path: Path) -> PlatformFile:
    """Name and logical CPUs of the platform that a file describes.

    Raises:
        InputError: no such file, not TOML, or no platform's.
    """
    try:
        raw = read_toml(path)
    except FileNotFoundError as e:
        raise InputError(f"{path}: no such platform file. Start from one in scheduler/vserver/profiles/platforms") from e
    except IsADirectoryError as e:
        raise InputError(f"{path}: is a folder. Give a platform file, e.g. {path}/x.toml") from e
    except Unreadable as e:
        raise InputError(f"{path}: not valid TOML: {e}. Start from one in scheduler/vserver/profiles/platforms") from e
    if raw.get("kind") != "platform":
        raise InputError(f'{path}: kind is {raw.get("kind")!r}. A platform file says kind = "platform"')
    name = raw.get("name")
    # it becomes a folder, a target of the campaign and the name of the bundle
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in ("local", "hosts"):
        raise InputError(f"{path}: name is {name!r}. Give the platform one of letters, digits, '-', '_' and '.', like server-1")
    cpu = raw.get("cpu")
    counts = [cpu.get(n) if isinstance(cpu, dict) else None for n in ("physical_cores", "smt")]
    if not all(isinstance(n, int) and n > 0 for n in counts):
        raise InputError(
            f"{path}: cpu.physical_cores and cpu.smt are {counts[0]!r} and {counts[1]!r}. Give whole numbers above 0"
        )
    return PlatformFile(path.resolve(), name, math.prod(n for n in counts if n))


def worlds_campaign_text(platform: PlatformFile, group: str | None = None) -> str:
    """The campaign for models of many worlds: few cells of many planes, over the new server's own range of loads."""
    target = f'virtual = ["{platform.name}"]' if group is None else f'hosts = "{group}"'
    return f"""\
# The campaign that models of many worlds are fitted to {platform.name} with, made by `surefoot onboard`: the cliff of every
# plane, alone and beside neighbours. Edit it before the campaign starts; docs/campaign-format.md lists every field.
name = "onboard-{platform.name}"
strategy = "frontier"
seed = 1

[targets]
{target}

[sweep]
services = "all"              # those of the catalogue, and of SUREFOOT_PROFILES
rps = "saturation:20,40,60,80,100"    # per cent of the max load that is measured here first
threads = [{platform.cpus}]                # as many as the platform has CPUs, whatever part of them is held
cores = "all"
# ways: all where the LLC can be partitioned
neighbours = {{ count = [0, 1, 2], draws = 1 }}

[sampling]
warmup_ms = 2000
interval_ms = 1000
samples = 10
"""


def campaign_text(platform: PlatformFile, group: str | None = None) -> str:
    """The transfer campaign, on the virtual server `platform` or on the hosts of a group."""
    target = f'virtual = ["{platform.name}"]' if group is None else f'hosts = "{group}"'
    return f"""\
# The small campaign that models are transferred to {platform.name} with, made by `surefoot onboard`: ten samples of every
# allocation of every service at its catalogue loads, as OSML+ has it. Edit it before the campaign starts;
# docs/campaign-format.md lists every field. Fewer services, loads or samples take less time.
name = "onboard-{platform.name}"
strategy = "exhaustive"
seed = 1

[targets]
{target}

[sweep]
services = "all"              # those of the catalogue, and of SUREFOOT_PROFILES
rps = "catalogue"             # of each service, mostly five
threads = [{platform.cpus}]                # as many as the platform has CPUs, whatever part of them is held
cores = "all"
# ways: all where the LLC can be partitioned

[sampling]
interval_ms = 1000
samples = 10
"""


def profile_path(platform: PlatformFile, ours: Path) -> str:
    """SUREFOOT_PROFILES for a run: the user's folders, services that lie beside the platform's file, then ours, which decides."""
    folders = [p for p in os.environ.get("SUREFOOT_PROFILES", "").split(os.pathsep) if p]
    beside = platform.path.parent.parent
    # as `surefootd` takes them when it is given the file itself
    if any((beside / part).is_dir() for part in ("services", "batch")) and str(beside) not in folders:
        folders.append(str(beside))
    return os.pathsep.join([*folders, str(ours)])


class Onboarding:
    """One run.

    Args:
        given: what the command was given.
        voice: where progress goes.
    """

    def __init__(self, given: Options, voice: Console) -> None:
        self.given = given
        self.voice = voice
        self.platform = read_platform(given.platform)
        self.out = (given.out or Path("out") / "onboard" / self.platform.name).resolve()
        self.group = (given.group or self.platform.name) if given.inventory is not None else None
        if given.group is not None and given.inventory is None:
            raise InputError(f"--group {given.group}: is a group of an inventory. Name it: --inventory INV")
        self.data = self.out / "data"
        self.warnings: list[str] = []
        from pipelines import begin

        self.worlds = given.begin != NOTHING and begin.of_worlds(Path(given.begin))
        stages = 9 + 4 * given.compare + self.worlds
        self.story = Story(self.out / STEPS, console.Teller(voice, stages), places={"out": self.out})

    # -- campaign

    @property
    def campaign_file(self) -> Path:
        return self.given.campaign or self.out / spec_name()

    def make_campaign(self) -> spec.Campaign:
        """The campaign's file, made if there is none, with the one target that it must have.

        Raises:
            CampaignError: it has another target.
        """
        file = self.campaign_file
        if self.given.campaign is None and not file.exists():
            write_bytes(file, self.text().encode())
        return self.read_campaign(file)

    def text(self) -> str:
        """Of the campaign that is made where none is given."""
        return (worlds_campaign_text if self.worlds else campaign_text)(self.platform, self.group)

    def read_campaign(self, file: Path) -> spec.Campaign:
        found = spec.load(file)
        wanted = self.group or self.platform.name
        if [(t.name, t.on_hosts) for t in found.targets] != [(wanted, self.group is not None)]:
            line = f'hosts = "{wanted}"' if self.group else f'virtual = ["{wanted}"]'
            raise CampaignError(f"{file}: targets: this platform is onboarded on {wanted} alone. Write {line}")
        return found

    def check(self, origin: Origin | None) -> dict[str, Any]:
        """Look at everything that was given before anything is kept: platform, campaign, models to begin from.

        Returns:
            The plan of the campaign; on hosts that measure themselves, only they can make one, and it is empty.
        """
        made = self.out / spec_name()
        with tempfile.TemporaryDirectory(prefix="surefoot-onboard-") as scratch:
            file = self.given.campaign or made
            if not file.exists() and self.given.campaign is None:
                file = Path(scratch) / made.name
                write_bytes(file, self.text().encode())
            target = self.read_campaign(file).targets[0]
            if target.server == "local":
                return {}
            args: list[str | Path] = ["sweep", file, "--server", f"virtual:{self.platform.path}", "--plan", "--json"]
            try:
                plan: dict[str, Any] = tools.run_json(tools.SUREFOOTD, args)
            except ToolFailed as e:
                # the campaign is named as the user will find it
                raise ToolFailed(e.tool, str(e).replace(str(file), str(self.given.campaign or made)), e.code) from e
        if origin is not None:
            ways = int(read_toml(self.platform.path)["llc"]["ways"])
            origin.check("full", ways, str(self.given.platform))
        return plan

    def collect(self, file: Path) -> dict[str, Any]:
        """Run the campaign to its end and verify what it gave."""
        ours = self.out / "profiles"
        write_bytes(ours / "platforms" / f"{self.platform.name}.toml", read_bytes(self.platform.path))
        profiles = profile_path(self.platform, ours)

        def work(_cut_short: bool) -> dict[str, Any]:
            with environment({"SUREFOOT_PROFILES": profiles}), console.Progress(self.voice) as bar:
                state = campaign.run(file, self.data, inventory=self.given.inventory, report=bar)
            result = verify.verify(self.data)
            if not result.ok:
                first = result.findings[0]
                raise StepFailed(f"collect: {first.file}: {first.what}; {first.remedy}")
            target = state["targets"][0]
            return {
                "folder": str(self.data / target["target"]),
                "feature_set": target["feature_set"],
                "cases": state["cases"],
                "rows": result.rows,
                "rows_by_worth": target["rows_by_worth"],
                "failed": target["failed"],
            }

        title = f"collect: {self.group or 'virtual server'} {'' if self.group else self.platform.name}".rstrip()
        key = key_of(file, *[Path(p) for p in profiles.split(os.pathsep)], self.group)
        found: dict[str, Any] = self.story.step("collect", title, key, work, outputs=[self.data / dataset.MANIFEST])
        if "rows_by_worth" not in found:  # remembered by a version that did not count them
            found |= {"rows_by_worth": worth.of(Path(found["folder"]), dataset.read_manifest(Path(found["folder"])))}
        if found["cases"]["failed"]:
            reasons = "; ".join(f"{f['cases']} × {f['reason']}" for f in found["failed"])
            self.warnings.append(f"{found['cases']['failed']} cases failed: {reasons}")
        return found

    # -- what a data set becomes

    def learn(self, origin: Origin | None, p: Params, suffix: str = "") -> dict[str, Any]:
        """Train and evaluate; returns the metrics.

        Args:
            origin: where the models begin; None: at random weights.
            suffix: of the folders, for the models that are only compared with.
        """
        from pipelines import evaluate, train, worlds_transfer
        from pipelines.fits import fitted, rowfile
        from pipelines.samples import PLANT

        rows, labels = self.out / "rows", self.out / "label"
        models, errors = self.out / f"train{suffix}", self.out / f"evaluate{suffix}"
        begun = NOTHING if origin is None else origin.name
        if origin is not None:
            fitted.same_plant(f"--from {origin.path}", origin.plant, rowfile.about(rows).made_by.get(PLANT))
        settings = p.train
        if self.given.begin != NOTHING:
            # those of the stage `transfer`; also for what is compared, so that the beginning is the only difference
            section = {letter: getattr(p.transfer, letter) for letter in "ab"}
            if self.worlds:
                section = {letter: s.model_copy(update={"inputs": "relative"}) for letter, s in section.items()}
            settings = settings.model_copy(update=section)
        whole = p.model_copy(update={"train": settings})
        inputs = [
            code(),
            rows,
            labels,
            settings.model_dump(include={"seed", "threads"}),
            p.split.model_dump(),
            begun,
            origin.sha256 if origin else "",
            p.worlds.model_dump() if origin and origin.worlds else "",
        ]

        def fit(letter: str, b: Path | None) -> None:
            files = [models / letter / name for name in (fitted.WEIGHTS, fitted.SUMMARY)]

            def work(_cut_short: bool) -> dict[str, Any]:
                # of worlds there is no Model-C: it begins at random weights
                begin = None if origin is None else origin.starts.get(letter)
                make = None
                if origin is not None and origin.worlds and letter in origin.starts:
                    make = partial(worlds_transfer.of_platform, letter, of_worlds(origin), p=p.worlds, seed=settings.seed)
                name = f"onboard-{self.platform.name}{suffix}"
                done = train.run(
                    letter,
                    name,
                    rows,
                    labels,
                    models / letter,
                    settings,
                    b,
                    begin=begin,
                    begun_from=begun,
                    whole=whole,
                    make=make,
                )
                return {"rows": done["rows"], "begun_from": begun}

            key = key_of(*inputs, train.section(settings, letter).model_dump(), *([b / fitted.WEIGHTS] if b else []))
            self.story.step(f"train-{letter}{suffix}", f"train Model-{letter.upper()} from {begun}", key, work, outputs=files)

        fit("a", None)
        fit("b", None)
        fit("c", models / "b")

        def measure(_cut_short: bool) -> dict[str, Any]:
            metrics = evaluate.run(rows, labels, models, errors, whole, begun_from=begun)
            return {name: value for name, value in metrics.items() if math.isfinite(value)}

        key = key_of(code(), rows, labels, *(models / x for x in "abc"), p.evaluate.model_dump(), p.compare.model_dump())
        title = "evaluate on planes held out" + (f", from {NOTHING}" if suffix else "")
        metrics: dict[str, Any] = self.story.step(f"evaluate{suffix}", title, key, measure, outputs=[errors / "metrics.json"])
        return metrics

    def curve(self, origin: Origin, p: Params) -> list[dict[str, float]]:
        """What ten minutes after ten minutes of the measuring brought, and what ten more would."""
        from pipelines import worlds_transfer
        from pipelines.fits import tensors

        rows, labels = self.out / "rows", self.out / "label"

        def work(_cut_short: bool) -> list[dict[str, float]]:
            lines = worlds_transfer.curve(of_worlds(origin), tensors.load(rows, labels), p, p.train.seed)
            write_json(self.out / "curve.json", lines)
            return lines

        key = key_of(code(), rows, labels, origin.sha256, p.worlds.model_dump(), p.evaluate.model_dump(), p.train.seed)
        title = "curve: what each ten minutes of measuring brought"
        found: list[dict[str, float]] = self.story.step("curve", title, key, work, outputs=[self.out / "curve.json"])
        return found

    def rows(self, data: Path, p: Params) -> dict[str, Any]:
        from pipelines import rows

        labels, folder = self.out / "label", self.out / "rows"
        key = key_of(code(), data / dataset.MANIFEST, labels, p.rows.model_dump())
        title = "rows: the samples that models learn from"
        found: dict[str, Any] = self.story.step(
            "rows", title, key, lambda _: rows.run(data, labels, folder, p.rows, p.samples), outputs=[folder / "rows.json"]
        )
        return found

    def label(self, data: Path, p: Params) -> dict[str, Any]:
        from pipelines import label

        folder = self.out / "label"
        key = key_of(code(), data / dataset.MANIFEST, p.label.model_dump())
        outputs = [folder / name for name in ("labels.parquet", "cells.parquet")]
        title = "label: RCliff and OAA of every plane"
        found: dict[str, Any] = self.story.step(
            "label", title, key, lambda _: label.run(data, folder, p.label, p.samples), outputs=outputs
        )
        return found

    def bundle(self, data: Path) -> dict[str, Any]:
        """Build, sign and verify, as folder and as tar."""
        from pipelines.artefact import bundle

        out = self.out / "bundles" / self.platform.name
        tar = out.with_name(out.name + ".tar")
        metrics, models = self.out / "evaluate" / "metrics.json", self.out / "train"
        signer = bundle.signing_key(self.given.key).public_key()

        def work(_cut_short: bool) -> dict[str, Any]:
            facts = bundle.run(data, models, metrics, out, self.given.key, overwrite=True)
            for path in (out, tar):
                bundle.verify(path, trusted=[signer], expect_feature_set=facts["feature_set"])
            return {"folder": str(out), "tar": str(tar), "manifest_sha256": facts["manifest_sha256"]}

        key = key_of(code(), data / dataset.MANIFEST, *(models / x for x in "abc"), metrics, bundle.fingerprint(signer))
        found: dict[str, Any] = self.story.step("bundle", "bundle: build, sign, verify", key, work, outputs=[out, tar])
        # whatever happened to it since: what is named in the end is whole
        for path in (out, tar):
            bundle.verify(path, trusted=[signer])
        return found

    def register(self, p: Params) -> dict[str, Any]:
        """Make versions of the models, and ask the gate; that it does not hold takes nothing back."""
        from pipelines import register

        models, metrics, folder = self.out / "train", self.out / "evaluate" / "metrics.json", self.out / "register"
        bundle = self.out / "bundles" / self.platform.name

        def work(_cut_short: bool) -> dict[str, Any]:
            found = register.run(models, folder, p.gate, metrics=metrics, bundle=bundle)
            versions = {m["name"]: m["version"] for m in found["models"].values()}
            return {"promoted": found["promoted"], "reasons": found["reasons"], "versions": versions}

        key = key_of(code(), *(models / x for x in "abc"), metrics, bundle / "manifest.json", p.gate.model_dump())
        found: dict[str, Any] = self.story.step("register", "register: versions and gate", key, work, [folder / register.RESULT])
        return found

    # -- all of it

    def plan(self) -> dict[str, Any]:
        """Write the campaign's file and say what it comes to; nothing is collected."""
        from pipelines import params

        p = params.load(self.given.params or tools.repo_root() / "params.yaml")
        found = self.check(self.origin(p))
        self.own_folder()
        make_folder(self.out)
        self.make_campaign()
        return {"platform": self.platform.name, "campaign_file": str(self.campaign_file), "plan": found}

    def own_folder(self) -> None:
        """That nothing else lies where this works."""
        holds_story(self.out, "onboarding", ("onboard.json", spec_name()))

    def origin(self, p: Params) -> Origin | None:
        if self.given.begin == NOTHING:
            return None
        from pipelines import begin

        found = begin.read(Path(self.given.begin))
        found.check_variant(p.transfer.a.inputs)
        return found

    def run(self) -> dict[str, Any]:
        """All steps; returns what `--json` prints."""
        from pipelines import params, tracking
        from pipelines.artefact import bundle

        tracking.quiet()
        start = time.monotonic()
        started = datetime.now(UTC).isoformat(timespec="seconds")
        # what is wrong with what was given is said before the first minute is spent
        p = params.load(self.given.params or tools.repo_root() / "params.yaml")
        bundle.signing_key(self.given.key)
        origin = self.origin(p)
        self.check(origin)
        self.own_folder()
        with campaign.working_in(self.out, "an onboarding", "ls -l"), environment(store()):
            # an onboarding's from here on, whenever this one is stopped
            (self.out / STEPS).mkdir(exist_ok=True)
            collected = self.collect(self.make_campaign().path)
            data = Path(collected["folder"])
            labels = self.label(data, p)
            self.rows(data, p)
            if origin is not None and origin.worlds:
                # a host says only by its data what it can measure
                from pipelines.fits import rowfile

                about = rowfile.about(self.out / "rows")
                origin.check(about.feature_set, about.platform.ways, str(self.given.platform))
            curve = self.curve(origin, p) if origin is not None and origin.worlds else None
            metrics = self.learn(origin, p)
            bundled = self.bundle(data)
            gate = self.register(p)
            nothing = self.learn(None, p, _SUFFIX) if self.given.compare else None
            result: dict[str, Any] = {
                "schema_version": 1,
                "platform": self.platform.name,
                "platform_file": str(self.given.platform),
                "started": started,
                "out": str(self.out),
                "begun_from": None
                if origin is None
                else {"path": str(origin.path), "name": origin.name, "sha256": origin.sha256},
                "collected": {**collected, "campaign_file": str(self.campaign_file)},
                "planes": labels["planes"],
                "metrics": metrics,
                "metrics_from_nothing": nothing,
                "curve": curve,
                "bundle": bundled,
                "gate": gate,
                "deploy": deploy_command(self.given.inventory, self.group, Path(bundled["tar"])),
                "warnings": self.warnings,
                "steps": [asdict(r) for r in self.story.records],
                "seconds": time.monotonic() - start,
            }
            write_json(self.out / "onboard.json", result)
        return result


def spec_name() -> str:
    return campaign.COPY


def of_worlds(origin: Origin) -> dict[str, Any]:
    """Models A and B of many worlds."""
    from pipelines.fits import adapt, fitted

    return {letter: adapt.plain(fitted.load(origin.path / letter)) for letter in origin.starts}


def code() -> list[str]:
    """Digests of the stages' code, for keys: another version may give other figures."""
    return [key_of(p) for p in stage_code(tools.repo_root())]


def store() -> dict[str, str]:
    """Where MLflow keeps the runs: as the user says, else beside those of `dvc repro`, wherever the command is called from."""
    return {"MLFLOW_TRACKING_URI": os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{tools.repo_root() / 'mlflow.db'}"}


def deploy_command(inventory: Path | None, group: str | None, tar: Path) -> str:
    """How the bundle gets to the nodes (docs/install-node.md)."""
    words = ["ansible-playbook", "-i", str(inventory or "INVENTORY"), "playbooks/deploy.yml"]
    values = [f"surefoot_group={group or 'GROUP'}", "deploy_policy=osml-plus", f"deploy_bundle={tar}"]
    values += ["deploy_package=PACKAGE.deb", "deploy_config=NODE.toml"]
    return shlex.join([*words, *(word for value in values for word in ("-e", value))])


def run(given: Options, voice: Console) -> dict[str, Any]:
    """Onboard a platform; see the module."""
    return Onboarding(given, voice).run()


def plan(given: Options, voice: Console) -> dict[str, Any]:
    """Write the campaign's file, to be read and edited; see the module."""
    return Onboarding(given, voice).plan()
