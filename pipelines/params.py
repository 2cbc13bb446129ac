"""params.yaml as types. Each stage has the section of its name; unknown keys are refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from pipelines import measures, stdio
from pipelines.errors import BadInput, Interrupted, PipelineError
from pipelines.inputs import Unreadable, choice, message, read_yaml

T = TypeVar("T")

# stages, folders and files bear it, `@` and `:` part it from others in DVC, and YAML reads what begins otherwise as a number
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}")
# letters and digits of any script, and these: what people's shells leave alone once it is quoted, and often when it is not
_FOLDER_MARKS = frozenset("/._-+=,:@% ")
_MOST_FOLDER = 1000
SECTIONS = ("datasets", "osml_datasets", "transfers", "foreign", "leave_one_out", "mixtures")
"""What lists data sets."""


def _kind(value: Any) -> str:
    kinds = {bool: "a truth value", int: "a number", float: "a number", type(None): "nothing"}
    return kinds.get(type(value), "no text")


def _told(kind: str, told: str) -> PydanticCustomError:
    # no template: braces of what is told are its own
    return PydanticCustomError(kind, "{told}", {"told": told})


def name_of(value: Any) -> Any:
    """A name of a data set.

    Raises:
        PydanticCustomError: it is none; says what one is.
    """
    if not isinstance(value, str):
        raise _told("name", f"{value!r} is {_kind(value)} to YAML. Give a name that begins with a letter")
    if not _NAME.fullmatch(value) or ".." in value or value.endswith((".", ".tar")):
        raise _told(
            "name",
            f"{value!r} is no name of a data set: a letter, then letters (a to z), digits, `-`, `_` and single `.`, at most 100, "
            "and `.tar` is no end. Rename it there and wherever params.yaml names it",
        )
    return value


def folder_of(value: Any) -> Any:
    """A folder of a data set.

    Raises:
        PydanticCustomError: it is none; says why.
    """
    if not isinstance(value, str):
        raise _told("folder", f"{value!r} is {_kind(value)} to YAML. Put the folder in quotes")
    odd = next((c for c in value if not c.isalnum() and c not in _FOLDER_MARKS), None)
    if odd is not None:
        raise _told("folder", f"{value!r} has {odd!r} in it. Rename the folder: letters, digits and {_marks()} are taken")
    wrong = {
        "is empty": not value,
        "begins with -": value.startswith("-"),
        "begins or ends with a blank": value != value.strip(),
        f"is longer than {_MOST_FOLDER} characters": len(value) > _MOST_FOLDER,
    }
    if why := next((why for why, holds in wrong.items() if holds), None):
        raise _told("folder", f"{value[:100]!r} {why}. Give the folder of one target of a campaign, e.g. data/NAME/server-1")
    return value


def _marks() -> str:
    return " ".join(sorted(_FOLDER_MARKS - {" "})) + " and blanks"


def _names(value: Any) -> Any:
    """A table whose keys, or a list whose entries, are names of data sets."""
    if isinstance(value, dict | list):
        for name in value:
            name_of(name)
    return value


Name = Annotated[str, BeforeValidator(name_of)]
Folder = Annotated[str, BeforeValidator(folder_of)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Label(_Section):
    """Stage `label`."""

    margin_core_steps: int = Field(default=1, ge=0, description="distance of OAA from the RCliff, in allocation units of cores")
    margin_ways: int = Field(default=1, ge=0)
    test_fraction: float = Field(default=0.2, ge=0, lt=1, description="share of each service's planes held out")
    val_fraction: float = Field(default=0.1, ge=0, lt=1)
    seed: int = 1


class Rows(_Section):
    """Stage `rows`."""

    max_rows: int = Field(default=2_000_000, ge=1, description="rows that models learn from; more are thinned out evenly")
    use_overloaded_inputs: bool = Field(
        default=True, description="counters of overloaded allocations are inputs; their latency never is"
    )


class Samples(_Section):
    """How the stages `label` and `rows` read samples; changes no result (pipelines/engine.py)."""

    engine: Literal["duckdb", "spark"] = "duckdb"
    threads: int | None = Field(default=None, ge=1, description="of DuckDB; None: one a CPU")
    memory_mb: int = Field(default=4096, ge=256, description="of DuckDB, in MiB; what does not fit goes to a temporary folder")


class Regression(_Section):
    """A regression in stage `train`."""

    epochs: int = Field(default=30, ge=1)
    min_steps: int = Field(default=2500, ge=1, description="small data sets run more epochs, up to so many batches")
    batch: int = Field(default=4096, ge=1)
    lr: float = Field(default=3e-3, gt=0)
    begun_lr: float | None = Field(
        default=None, gt=0, description="rate where the network begins from another platform's weights; None: as `lr`"
    )
    dropout: float | None = Field(default=None, ge=0, lt=1, description="None: as in the paper, see models/")
    weight_decay: float = Field(default=0.0, ge=0)
    hide_memory: float = Field(
        default=0.0, ge=0, lt=1, description="share of training inputs whose memory sizes are random: they name the service"
    )
    loss: Literal["absolute", "squared"] = Field(default="absolute", description="see models/regression.py")
    inputs: Literal["paper", "relative"] = Field(
        default="paper", description="of Models A and B: the papers' readings, or what carries over (models/relative.py)"
    )
    at_least: float | None = Field(
        default=None,
        gt=0,
        lt=0.5,
        description="of Model-A: what an overloaded service is said to need is more than enough so often; None: as of all others",
    )


class ModelB(Regression):
    """Model-B in stage `train`."""

    loss: Literal["absolute", "squared"] = "squared"
    near_share: float = Field(default=0.5, ge=0, le=1, description="share of questions about allocations a few steps away")
    qos_cap: float = Field(default=2.0, gt=1, description="largest QoS (target / p99) that is taught")


class ModelC(_Section):
    """Model-C in stage `train`."""

    transitions: int = Field(default=200_000, ge=1)
    updates: int = Field(default=4000, ge=1)
    batch: int = Field(default=256, ge=1)
    gamma: float = Field(default=0.99, ge=0, le=1)
    tau: float = Field(default=0.001, gt=0, le=1)
    lr_actor: float = Field(default=5e-4, gt=0)
    lr_critic: float = Field(default=5e-3, gt=0)
    critic_l2: float = Field(default=0.01, ge=0)
    actor_entropy: float = Field(default=0.1, ge=0, description="keeps the softmax open; see models/ddpg.py")


class OsmlA(Regression):
    """OSML's Model-A or A' in stage `train`."""

    loss: Literal["absolute", "squared"] = "squared"
    inputs: Literal["paper"] = "paper"


class OsmlB(OsmlA):
    """OSML's Model-B in stage `train`."""

    slowdowns: list[float] = Field(
        default=[0.05, 0.10, 0.15, 0.20], min_length=1, description="QoS that may be lost: B-points are labelled at each"
    )
    reach_steps: int = Field(default=10, ge=0, description="allocations so near to OAA are asked about, in steps of the sweep")

    @field_validator("slowdowns")
    @classmethod
    def _shares(cls, values: list[float]) -> list[float]:
        if any(not 0.0 < v < 1.0 for v in values):
            raise ValueError("slowdowns are shares of QoS, above 0 and below 1 (0.05 is 5 %)")
        return sorted(set(values))


class OsmlBp(OsmlA):
    """OSML's Model-B' in stage `train`."""

    reach_steps: int = Field(default=10, ge=0, description="see OsmlB")
    take_steps: int = Field(default=4, ge=1, description="most steps of cores and of ways that a question takes away")


class OsmlC(_Section):
    """OSML's Model-C in stage `train`."""

    transitions: int = Field(default=200_000, ge=1, description="pairs that are drawn; those that no action joins are dropped")
    updates: int = Field(default=4000, ge=1)
    batch: int = Field(default=200, ge=1)
    gamma: float = Field(default=0.9, ge=0, le=1)
    lr: float = Field(default=1e-3, gt=0)
    copy_every: int = Field(default=100, ge=1)
    epsilon: float = Field(default=0.05, ge=0, le=1, description="share of random actions on a node")
    latency_cap: float = Field(default=1000.0, gt=1, description="QoS targets; what an overloaded allocation counts as")


class Train(_Section):
    """Stages `train`, `train-c` and `train-osml`: a section a model."""

    seed: int = 1
    threads: int = Field(default=1, ge=1, description="more than one is slower: the networks are tiny")
    a: Regression = Regression()
    b: ModelB = ModelB()
    c: ModelC = ModelC()
    osml_a: OsmlA = OsmlA()
    osml_ap: OsmlA = OsmlA()
    osml_b: OsmlB = OsmlB()
    osml_bp: OsmlBp = OsmlBp()
    osml_c: OsmlC = OsmlC()


class Split(_Section):
    """What Models A and B are stopped by: a service that they were not taught, or planes of those that they were."""

    by: Literal["service", "plane"] = Field(default="plane", description="see pipelines/fits/by_service.py")
    services: float = Field(default=0.2, gt=0, lt=1, description="share of the services that the epoch is chosen on")
    by_plane: list[str] = Field(default=[], description="data sets that are split by plane all the same")

    def share(self, name: str) -> float | None:
        """Of a data set's services, what validates; None: planes do."""
        return self.services if self.by == "service" and name not in self.by_plane else None


class Evaluate(_Section):
    """Stage `evaluate`."""

    max_rows: int = Field(default=100_000, ge=1)
    seed: int = 1


class Compare(_Section):
    """Stage `compare`: the comparators (pipelines/compare.py)."""

    rows: int = Field(default=300_000, ge=1, description="training samples of the linear fit and of LightGBM")
    nearest_rows: int = Field(default=100_000, ge=1, description="training samples of the nearest neighbour")
    rounds: int = Field(default=300, ge=1, description="trees of LightGBM")
    leaves: int = Field(default=127, ge=2)
    learning_rate: float = Field(default=0.1, gt=0)
    seed: int = 1


class Transfer(_Section):
    """Stage `transfer`: fits on the new platform, with and without another's weights."""

    shares: list[Annotated[float, Field(gt=0, le=1)]] = Field(
        default=[1.0, 0.3, 0.1, 0.03, 0.01], min_length=1, description="shares of the new platform's samples"
    )
    seeds: list[int] = Field(default=[1, 2, 3], min_length=1)
    frozen: list[int] = Field(default=[1, 3], description="also with so many first layers kept as they were")
    a: Regression = Regression()
    b: ModelB = ModelB()


class Generalise(_Section):
    """Stage `generalise`: one fit of A and of B a service that is left out."""

    max_rows: int = Field(default=300_000, ge=1)
    seed: int = 1
    trainings: int = Field(
        default=1, ge=1, description="fits of each, with seeds `seed`, `seed` + 1 and so on: how far they scatter"
    )
    a: Regression = Regression()
    b: ModelB = ModelB()


class Worlds(_Section):
    """Models that learn from many drawn platforms (pipelines/worlds.py)."""

    seed: int = 1
    rows: int = Field(default=12_000, ge=1, description="samples of each world")
    most_rows: int = Field(default=2_400_000, ge=1, description="samples of all worlds together: of many worlds each has fewer")
    asked_rows: int = Field(default=1500, ge=1, description="samples of each world that is asked about")
    validate_share: float = Field(
        default=0.2, gt=0, lt=1, description="share of the worlds that the epoch is chosen on and intervals are calibrated on"
    )
    interval: float | None = Field(
        default=0.9, ge=0.5, lt=1, description="share of OAA and QoS that an interval covers; None: models have no intervals"
    )
    usual_share: float = Field(
        default=0.9, gt=0, lt=1, description="share of observations in worlds not taught whose strangeness is at most 1"
    )
    trainings: list[int] = Field(default=[1], min_length=1, description="seeds; the models of the first are kept")
    a: Regression = Regression(inputs="relative")
    b: ModelB = ModelB(inputs="relative")
    measured_share: float = Field(default=0.5, gt=0, lt=1, description="share of a new server's services that are measured")
    cell_s: float = Field(default=12.0, gt=0, description="seconds that a cell takes on a machine: settling and samples")
    search_cells: int = Field(default=5, ge=1, description="cells that the search for the cliff of a plane looks at")
    more_cells: int = Field(default=5, ge=0, description="further cells of a plane that is measured")
    few_a: Regression = Regression(inputs="relative")
    few_b: ModelB = ModelB(inputs="relative")
    hold: float = Field(default=30.0, gt=0, description="planes that the models as they are count as, in transfer by few samples")
    rounds: int = Field(default=4, ge=1, description="of acting and learning, of Model-C in closed loop")
    random_share: float = Field(
        default=0.5, ge=0, lt=1, description="share of the worlds of a round in which Model-C's actions are drawn at random"
    )


class Report(_Section):
    """Stage `report`: what the page calls drift, and what it calls worse than a comparator."""

    drift_distance: float = Field(default=0.1, gt=0, description="Wasserstein distance of a column, in standard deviations")
    drift_psi: float = Field(default=0.1, gt=0, description="population stability index of shares of rows, e.g. by service")
    drift_missing: float = Field(default=0.05, gt=0, lt=1, description="change of the share of missing values")
    comparator_margin: float = Field(default=0.1, ge=0, description="error above the best comparator's that is still no worse")


class Rule(_Section):
    """One line of the gate: a metric of the stage `evaluate`, its bound, and how much worse than the champion's it may be."""

    metric: str = Field(min_length=1, description="its name in metrics.json (pipelines/measures.py)")
    at_most: float | None = Field(default=None, description="for metrics where less is better")
    at_least: float | None = Field(default=None, description="for metrics where more is better")
    worse_by_pct: float | None = Field(default=None, ge=0, description="of the champion's value; None: not compared")
    if_measured: bool = Field(default=False, description="where the metric is missing the line is not judged, and does not fail")

    @model_validator(mode="after")
    def _one_bound(self) -> Rule:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError(f"{self.metric}: give one of at_most (less is better) and at_least (more is better)")
        if self.metric not in measures.NAMES:
            listed = choice(self.metric, measures.alike(self.metric))
            raise _told("metric", f"{self.metric!r} is no metric of the stage `evaluate`. {listed}")
        return self


class Gate(_Section):
    """Stages `register` and `register-osml`: what must hold before `champion` moves, by whose champion is compared with."""

    a: list[Rule] = []
    b: list[Rule] = []
    c: list[Rule] = []
    osml_a: list[Rule] = []
    osml_ap: list[Rule] = []
    osml_b: list[Rule] = []
    osml_bp: list[Rule] = []
    osml_c: list[Rule] = []


class Source(_Section):
    """One data set: the folder of one target of a campaign."""

    folder: Folder


class Begin(Source):
    """A data set of a new platform, and the data set whose models it begins from."""

    begin: Name


class Foreign(Source):
    """A data set that the models of another one are asked about; `on` is the folder of that one's data."""

    models: Name
    on: Folder


class Mixture(_Section):
    """Lists of drawn worlds (`surefoot campaign worlds` writes them): models learn from `train` and are asked about `ask`."""

    train: Folder
    ask: Folder


class Params(_Section):
    """The whole file."""

    datasets: dict[str, Source] = {}
    osml_datasets: list[str] = []
    transfers: dict[str, Begin] = {}
    foreign: dict[str, Foreign] = {}
    leave_one_out: dict[str, Source] = {}
    mixtures: dict[str, Mixture] = {}
    samples: Samples = Samples()
    label: Label = Label()
    rows: Rows = Rows()
    train: Train = Train()
    split: Split = Split()
    evaluate: Evaluate = Evaluate()
    compare: Compare = Compare()
    transfer: Transfer = Transfer()
    generalise: Generalise = Generalise()
    worlds: Worlds = Worlds()
    report: Report = Report()
    gate: Gate = Gate()

    @field_validator(*SECTIONS, mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return _names(value)

    @model_validator(mode="after")
    def _known(self) -> Params:
        """Whatever names a data set names one of `datasets`: the stages label, rows and train are run for those alone."""
        named = [("osml_datasets", name) for name in self.osml_datasets]
        for section in ("transfers", "foreign", "leave_one_out"):
            named += [(section, name) for name in getattr(self, section)]
        named += [(f"transfers.{name}.begin", of.begin) for name, of in self.transfers.items()]
        named += [(f"foreign.{name}.models", of.models) for name, of in self.foreign.items()]
        for where, name in named:
            if name not in self.datasets:
                raise _told("unknown", f"{where}: {name!r} is none of `datasets`. {choice(name, self.datasets)}")
        for section in ("transfer", "generalise"):
            for model in ("a", "b"):
                theirs, trained = (getattr(s, model).inputs for s in (getattr(self, section), self.train))
                if theirs != trained:
                    raise _told(
                        "variant", f"{section}.{model}.inputs is {theirs!r} and train.{model}.inputs {trained!r}: give both one"
                    )
        return self


def load(path: Path) -> Params:
    """Read params.yaml; errors name the file and the field."""
    try:
        values: Any = read_yaml(path)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file; run from the repository's root, or give --params") from None
    except Unreadable as error:
        raise BadInput(f"{path}: is not YAML: {error}. Compare it with the repository's params.yaml") from None
    try:
        return Params.model_validate(values or {})
    except ValidationError as error:
        # a misspelt key may also be missing under its right name: the typing error is what is to be mended
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        where = ".".join(str(p) for p in first["loc"])
        raise BadInput(": ".join(filter(None, (str(path), where, _in_words(first))))) from None


def _in_words(error: ErrorDetails) -> str:
    """What is wrong; for a key or a word that there is not, the nearest and the list."""
    if error["type"] == "extra_forbidden":
        key = error["loc"][-1]
        return f"is not a known key. {choice(key, sorted(_keys(error['loc'][:-1])))}"
    if error["type"] == "literal_error":
        known = re.findall("'([^']*)'", error["ctx"]["expected"])
        return f"is {error['input']!r}. {choice(error['input'], known)}"
    return error["msg"]


def _keys(at: tuple[int | str, ...]) -> Iterable[str]:
    """Keys that the table at this place of params.yaml may have."""
    kind: Any = Params
    for step in at:
        # what is no section is a table or a list of them
        kind = kind.model_fields[step].annotation if hasattr(kind, "model_fields") else get_args(kind)[-1]
    return kind.model_fields


def guarded(work: Callable[[], T]) -> tuple[int, T | None]:
    """Exit code and result of a piece of work; an error is one line on stderr, and the result None."""
    stdio.guard()
    try:
        return 0, work()
    except (Interrupted, KeyboardInterrupt) as error:
        by = error.by if isinstance(error, Interrupted) else "Ctrl-C"
        print(f"error: ended by {by} before its end; `dvc repro` does it again", file=sys.stderr)
        return 1, None
    except PipelineError as error:
        print(message(f"error: {error}"), file=sys.stderr)
        return error.exit_code, None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(message(f"error: {where}{error.strerror or error}"), file=sys.stderr)
        return 1, None


def run_stage(work: Callable[[], Any]) -> int:
    """Run a stage: its metrics on stdout as JSON; errors in one line on stderr; exit code 0, 1 or 2."""

    def shown() -> None:
        print(json.dumps(work(), indent=2, sort_keys=True, default=str))

    code, _ = guarded(shown)
    if code:
        return code
    if why := stdio.failure():
        print(f"error: {why}", file=sys.stderr)
        return 1
    return 0
