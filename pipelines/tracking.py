"""MLflow: where runs are kept, how they are found again, and what happens when their store is away.

    pipeline run          one an execution of the pipeline: data, parameters, commit and beginning (`Execution`); all measures
    └── run of a training  one a training: its parameters, its losses, its measures, its model

What must hold:

- A store that is away, slow, damaged or of another version costs seconds, one line, and never a training. Whatever MLflow, its
  data base or the network raises is `Away`; a request is given up after `REQUEST_S`, and is made twice at most.
- The tables of a new store are made by one process, whoever else begins at the same time, and a store is there whole or not.
- A store of another version stays as it is: MLflow would migrate it without being asked.

`MLFLOW_TRACKING_URI` says where; by default it is sqlite:///mlflow.db in the working folder, with files beside it. No telemetry.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import subprocess
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from pipelines.errors import PipelineError
from pipelines.inputs import SUMMARY_BYTES, message, read_bytes, read_text
from pipelines.io import canonical_json, sha256_bytes
from pipelines.variables import environment

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")

EXPERIMENT = "surefoot"
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""What kind of experiment it is, for interfaces that go by it; that of MLflow 3.17 goes by a switch of the reader's browser
(docs/training.md, Runs)."""
REQUEST_S = 10
"""How long a server may take to answer one request."""
STORE_S = 60
"""How long a data base may be held by others: migrations of a new one take some seconds."""
PIPELINE = "pipeline"
"""Tag `kind` of a pipeline run."""
SECTIONS = ("label", "rows", "train", "split", "compare", "evaluate")
"""Of params.yaml, whose values decide what is trained and measured."""
BUNDLE = "bundle_manifest_sha256"
"""Tag of runs, and of versions of models: the bundle that they went into."""
PROCESS = "process"
"""Tag of runs: who is at it, so that a run whose process is gone can be closed."""
ENDED = "ended"
"""Tag of runs that were closed so: why."""
_MOST_AT_ONCE = 100  # of MLflow: parameters, and tags, of one request
_MOST_METRICS = 1000


class Away(PipelineError):
    """MLflow's store cannot be used now; exit code 1."""


def tracking_uri() -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"


def git_state(folder: Path | None = None) -> tuple[str | None, bool | None]:
    """Commit and whether tracked files differ from it; (None, None) outside a repository.

    Args:
        folder: root of the repository: one that only surrounds it counts for none. None: whatever the working folder is in.
    """

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()

    try:
        if folder is not None and Path(git("rev-parse", "--show-toplevel")).resolve() != folder.resolve():
            return None, None
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def git_tags() -> dict[str, str]:
    """`git_state` as tags of a run."""
    commit, dirty = git_state()
    return {"git_commit": str(commit), "git_dirty": str(dirty)}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries to one level, with dots."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{name}.")
        else:
            result[f"{prefix}{name}"] = value
    return result


def quiet() -> None:
    """Import MLflow and keep its start-up chatter off the stages' output; errors still show."""
    import mlflow  # noqa: F401 - it sets its own levels when it is imported

    for name in ("mlflow", "mlflow.store.db.utils", "alembic", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"mlflow\..*")


# ---------------------------------------------------------------- the store


def reason(error: BaseException) -> str:
    """Why, in one line: of what libraries say over many, the first that says something."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return message(first)


@contextmanager
def asking(remedy: str = "start the server, or name another store") -> Iterator[None]:
    """Whatever is raised while MLflow is asked becomes `Away`.

    Raises:
        Away: with store, cause and remedy.
    """
    try:
        yield
    except PipelineError:
        raise
    except ModuleNotFoundError as error:
        remedy = "requirements.lock" if error.name == "mlflow" else f"it, or name another store than {tracking_uri()}"
        raise Away(f"{error.name} is not installed here; install {remedy}") from None
    except Exception as error:  # of the store, of its data base, of the way there
        raise Away(f"{reason(error)} (MLFLOW_TRACKING_URI is {tracking_uri()}: {remedy})") from None


def _data_base() -> Path | None:
    """The file of an SQLite store; None: the store is something else."""
    prefix, uri = "sqlite:///", tracking_uri()
    path = uri.removeprefix(prefix).partition("?")[0]
    return Path(path) if uri.startswith(prefix) and path not in ("", ":memory:") else None


def _schema(path: Path) -> str | None:
    """Version of the tables in a data base that can be written to; None: there is no file, or it is empty.

    Raises:
        Away: it is no data base, holds something else, or cannot be written to.
    """
    if not path.exists():
        return None
    remedy = "restore it from a copy, make it writable, or name another store in MLFLOW_TRACKING_URI"
    if not all(os.access(at, os.W_OK) for at in (path, path.parent)):  # SQLite opens it all the same, to read
        raise Away(f"{path}: cannot be written to; {remedy}")
    try:
        with sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=STORE_S) as base:
            tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            base.execute("BEGIN IMMEDIATE")  # changes nothing, and fails where others write for too long
            base.rollback()
            if not tables:
                return None
            if "alembic_version" not in tables:
                raise Away(f"{path} is a data base of something else than MLflow; name another file in MLFLOW_TRACKING_URI")
            found = base.execute("SELECT version_num FROM alembic_version").fetchone()
            return str(found[0]) if found else ""
    except sqlite3.Error as error:
        raise Away(f"{path}: {reason(error)}; {remedy}") from None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While this is entered no other process of ours makes that store, or a pipeline run in it."""
    name = path.with_name(path.name + ".lock")
    with name.open("a") as file:
        until = time.monotonic() + STORE_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise Away(f"{name}: another process holds it since {STORE_S} s; try again when that has ended") from None
                time.sleep(0.05)
        yield


def _make_ready(path: Path) -> None:
    """Make the store where there is none, under another name first: it is there whole or not.

    Raises:
        Away: what is there cannot be used.
    """
    from mlflow.store.db import utils

    wanted = utils._get_latest_schema_revision()
    if path.exists() and _schema(path) == wanted:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        held = _schema(path)
        if held is None:
            made = path.with_name(f"{path.name}.{os.getpid()}.new")
            made.unlink(missing_ok=True)
            engine = utils.create_sqlalchemy_engine(f"sqlite:///{made}")
            try:
                utils._initialize_tables(engine)
                engine.dispose()
                made.replace(path)
            finally:
                engine.dispose()
                made.unlink(missing_ok=True)
        elif held != wanted:
            raise Away(
                f"{path}: its tables are of another version of MLflow ({held or 'none'}, here it is {wanted}). Copy it and "
                f"run `mlflow db upgrade {tracking_uri()}`, or name another store in MLFLOW_TRACKING_URI"
            )
        # the first to open it makes its default experiment
        from mlflow import MlflowClient

        MlflowClient(tracking_uri()).search_experiments(max_results=1)


def connect(*, made: bool = True) -> Any:
    """MLflow's client, once it is clear that its store answers.

    Args:
        made: make an SQLite store where there is none.
    Raises:
        Away: it does not; within a minute, whatever is wrong.
    """
    for name, value in (("MAX_RETRIES", 1), ("TIMEOUT", REQUEST_S), ("BACKOFF_FACTOR", 1)):
        os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", str(value))
    with asking():
        quiet()
        from mlflow import MlflowClient
        from mlflow.store.db import utils

        utils.MAX_RETRY_COUNT = 3  # a data base that is away is asked for two minutes with MLflow's own 10
        if (path := _data_base()) is not None:
            if not made and not path.exists():
                raise Away(f"there is no store (MLFLOW_TRACKING_URI is {tracking_uri()}; name the store that has the run)")
            _make_ready(path)
        elif not urlsplit(tracking_uri()).scheme and not Path(tracking_uri()).is_dir():
            raise Away(f"MLFLOW_TRACKING_URI is {tracking_uri()}: no store is there; give sqlite:///FILE or http://HOST:PORT")
        found = MlflowClient(tracking_uri())
        found.search_experiments(max_results=1)
        return found


def experiment(of: Any) -> str:
    """Id of our experiment, made if there is none."""
    from mlflow.exceptions import MlflowException

    with asking():
        found = of.get_experiment_by_name(EXPERIMENT)
        if found is None:
            try:
                return str(of.create_experiment(EXPERIMENT, tags=EXPERIMENT_TAGS))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = of.get_experiment_by_name(EXPERIMENT)
        # one from an earlier version; what somebody chose since stays
        for name, value in EXPERIMENT_TAGS.items():
            if name not in found.tags:
                of.set_experiment_tag(found.experiment_id, name, value)
        return str(found.experiment_id)


# ---------------------------------------------------------------- processes


def process() -> str:
    """This process as a tag of the runs that it makes: machine, boot, name space of process ids, id, start.

    An id is given again; with its start, in clock ticks since boot, it is one process alone.
    """
    return " ".join([*_here(), str(os.getpid()), _started("self") or _UNKNOWN])


def _here() -> list[str]:
    boot = read_text(Path("/proc/sys/kernel/random/boot_id")).strip()
    # a name alone is that of many machines (localhost)
    machine = Path("/etc/machine-id")
    number = read_text(machine).strip() if machine.is_file() else ""
    return [f"{os.uname().nodename}/{number}", boot, os.readlink("/proc/self/ns/pid")]


_UNKNOWN = "?"
"""Start of a process of which the kernel says nothing to this user."""


def _started(pid: str) -> str | None:
    """When a process began; None: there is none, or it has ended and nobody has asked how."""
    try:
        # the program's name, in brackets, may have blanks and brackets, and be cut within a letter
        state, *rest = (
            read_bytes(Path("/proc", pid, "stat"), SUMMARY_BYTES).rpartition(b")")[2].decode("ascii", "replace").split()
        )
    except (FileNotFoundError, ProcessLookupError):
        # where /proc hides what others run (hidepid) the kernel still tells whether there is one
        return _UNKNOWN if Path("/proc/self/stat").exists() and pid.isdecimal() and _lives(int(pid)) else None
    except OSError:
        return _UNKNOWN
    return None if state in "ZX" else rest[18]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def gone(told: str) -> bool:
    """Whether the process of a tag has ended; False also where that cannot be known from here."""
    try:
        machine, boot, space, pid, start = told.split()
    except ValueError:
        return False
    here = _here()
    if machine != here[0] or machine.endswith("/"):
        return False
    if boot != here[1]:
        return True
    if space != here[2] or not pid.isdecimal() or start == _UNKNOWN:
        return False
    return _started(pid) not in (start, _UNKNOWN)


def close_left_open(of: Any) -> list[str]:
    """Close runs whose process ended without a word (SIGKILL, no memory, no power): they would go on for ever.

    Returns:
        Ids of the runs. Those of other machines are left to them, and so is a pipeline run under which another process trains.
    """
    at, token = experiment(of), None
    running: list[Any] = []
    with asking():
        while True:
            found = of.search_runs([at], "attributes.status = 'RUNNING'", max_results=1000, page_token=token)
            running += found
            if not (token := found.token):
                break
        left = {run.info.run_id for run in running if gone(run.data.tags.get(PROCESS, ""))}
        in_use = {run.data.tags.get("mlflow.parentRunId") for run in running if run.info.run_id not in left}
        closed = [str(run_id) for run_id in left - in_use]
        for run_id in closed:
            of.set_tag(run_id, ENDED, "its process was killed, or its machine went down, before it could say so")
            of.set_terminated(run_id, "KILLED")
    return closed


# ---------------------------------------------------------------- runs


def rule(tags: Mapping[str, str]) -> str:
    """Filter of `search_runs`: runs with these tags."""
    return " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())


class Runs:
    """One run. What is logged together is one request."""

    def __init__(
        self, run_id: str | None = None, *, name: str = "", tags: Mapping[str, str] | None = None, client: Any = None
    ) -> None:
        """Open run `run_id`, or start one.

        Raises:
            Away: the store cannot be used.
        """
        self.client = client or connect()
        if run_id is not None:
            self.run_id = run_id
            return
        at = experiment(self.client)
        with asking():
            given = {"mlflow.runName": name, PROCESS: process(), **git_tags(), **(tags or {})}
            self.run_id = str(self.client.create_run(at, tags=given).info.run_id)

    def child(self, name: str, tags: Mapping[str, str]) -> Runs:
        """Start a run that is nested under this one."""
        return Runs(name=name, tags={"mlflow.parentRunId": self.run_id, **tags}, client=self.client)

    def take_up(self) -> None:
        """This process is at it now; one that was closed for its process is open again."""
        closed = ENDED in self.tags()
        self.tag({PROCESS: process()})
        if closed:
            with asking():
                self.client.delete_tag(self.run_id, ENDED)
                self.client.update_run(self.run_id, status="RUNNING")

    def tags(self) -> dict[str, str]:
        with asking():
            return dict(self.client.get_run(self.run_id).data.tags)

    def tag(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import RunTag

        self._log(tags=[RunTag(name, str(value)) for name, value in values.items()])

    def log_params(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        self._log(params=[Param(name, str(value)) for name, value in flat(values).items()])

    def log_metrics(self, values: Mapping[str, Any], step: int = 0) -> None:
        """Log what is a number; the rest is left out."""
        self.log_curve([(step, values)])

    def log_curve(self, points: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Log the metrics of many steps."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._log(
            metrics=[
                Metric(name, float(value), now, step)
                for step, values in points
                for name, value in flat(values).items()
                if isinstance(value, int | float) and value == value
            ]
        )

    def _log(self, **given: list[Any]) -> None:
        with asking():
            for what, values in given.items():
                most = _MOST_METRICS if what == "metrics" else _MOST_AT_ONCE
                for k in range(0, len(values), most):
                    self.client.log_batch(self.run_id, **{what: values[k : k + most]})

    def steps(self, metric: str) -> set[int]:
        """Steps at which a metric was logged."""
        with asking():
            return {point.step for point in self.client.get_metric_history(self.run_id, metric)}

    def log_file(self, path: Path, folder: str | None = None) -> None:
        with asking("its artefacts' place must be there and writable"):
            self.client.log_artifact(self.run_id, str(path), folder)

    def log_folder(self, path: Path, folder: str) -> None:
        with asking("its artefacts' place must be there and writable"):
            self.client.log_artifacts(self.run_id, str(path), folder)

    def finish(self, status: str = "FINISHED") -> None:
        with asking():
            self.client.set_terminated(self.run_id, status)


@dataclass(frozen=True)
class Execution:
    """What makes one execution of the pipeline: the same again is the same pipeline run, anything else another.

    Attributes:
        params: parameters of the stages, by section; those of `SECTIONS` count.
        begun_from: whose weights the models began at; empty: random ones.
        tags: what else is known of the data; no part of what makes it another.
    """

    dataset: str
    data_sha256: str
    params: Mapping[str, Any]
    begun_from: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def digest(self) -> str:
        what = [self.dataset, self.data_sha256, self.known_params(), self.begun_from, git_state()[0]]
        return sha256_bytes(canonical_json(what))

    def known_params(self) -> dict[str, Any]:
        return flat({section: self.params[section] for section in SECTIONS if section in self.params})

    def about(self) -> dict[str, str]:
        """Tags of the pipeline run and of every run under it."""
        tags = {"dataset": self.dataset, "data_sha256": self.data_sha256, **self.tags}
        return tags | ({"begun_from": self.begun_from} if self.begun_from else {})

    def run(self, client: Any = None) -> Runs:
        """The pipeline run of this execution, started if there is none.

        Raises:
            Away: the store cannot be used.
        """
        of = client or connect()
        at = experiment(of)
        path = _data_base()
        # two trainings that begin at once have one pipeline run
        with nullcontext() if path is None else _alone(path):
            found = self._oldest(of, at)
            if found is None:
                return self._made(of, at)
            found.take_up()
            return found

    def _oldest(self, of: Any, at: str) -> Runs | None:
        order = ["attributes.start_time ASC", "attributes.run_id ASC"]
        with asking():
            found = of.search_runs([at], rule(self._key()), order_by=order, max_results=1)
        return Runs(str(found[0].info.run_id), client=of) if found else None

    def _made(self, of: Any, at: str) -> Runs:
        trial = os.environ.get("DVC_EXP_NAME")
        made = Runs(
            name=f"{self.dataset} ({trial})" if trial else self.dataset,
            tags=self._key() | self.about() | ({"dvc_experiment": trial} if trial else {}),
            client=of,
        )
        try:
            made.log_params(self.known_params())
        except BaseException:
            # a run without its parameters would be gone on with, and found by no search
            with suppress(Away), asking():
                of.delete_run(made.run_id)
            raise
        # nothing locks a server: of two that are made at once both processes go on with the older
        first = self._oldest(of, at)
        if first is None or first.run_id == made.run_id:
            return made
        with asking():
            of.delete_run(made.run_id)
        return first

    def _key(self) -> dict[str, str]:
        return {"kind": PIPELINE, "execution": self.digest()}


class Losses:
    """The losses of a training on their way to its run. What cannot be logged is said at the end, and ends nothing.

    Attributes:
        why: why the run lacks something; None: it does not.
    """

    EVERY_S = 5.0

    def __init__(self, run: Runs) -> None:
        self.run = run
        self.why: str | None = None
        self._waiting: list[tuple[int, dict[str, float]]] = []
        self._sent_s = time.monotonic()

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """Take the losses of one epoch; some are sent together."""
        self._waiting.append((epoch, dict(values)))
        if time.monotonic() - self._sent_s >= self.EVERY_S:
            self.send()

    def send(self) -> None:
        if self.why is None and self._waiting:
            self.try_to(lambda: self.run.log_curve(self._waiting))
        self._waiting = []
        self._sent_s = time.monotonic()

    def try_to(self, work: Any) -> None:
        """Do this unless something could not be done before: a server that is away is asked once."""
        if self.why is None:
            try:
                work()
            except Away as error:
                self.why = str(error)


def hurried() -> AbstractContextManager[None]:
    """While this is entered a server is asked once and shortly: somebody waits for this process to end."""
    return environment({"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "3"})


def keep_bundle(models: Mapping[str, tuple[str, str]], file: Path, digest: str) -> str | None:
    """Log a bundle to the pipeline run that it is of, and its digest to the runs of its models.

    The runs may be on another machine: then nothing is logged, and no store is made.

    Args:
        models: by name the run that a model was trained in, and the pipeline run above it.
    Returns:
        Why it was not logged; None if it was.
    """
    try:
        of = connect(made=False)
        with asking("name the store that has the run"):
            at = of.get_run(next(iter(models.values()))[0]).info.experiment_id
            key = {"kind": PIPELINE, **{f"run.{name}": own for name, (own, _) in models.items()}}
            found = of.search_runs([at], rule(key), order_by=["attributes.start_time DESC"], max_results=1)
        above = {str(found[0].info.run_id)} if found else {parent for _, parent in models.values()}
        for run_id in above:
            Runs(run_id, client=of).log_file(file, "bundle")
        for run_id in (*above, *(own for own, _ in models.values())):
            Runs(run_id, client=of).tag({BUNDLE: digest})
    except Away as error:
        return str(error)
    return None
