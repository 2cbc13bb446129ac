"""MLflow: one run a data set (by its digest), one child run a model; SQLite store, files for artefacts, no telemetry.

`MLFLOW_TRACKING_URI` points elsewhere by configuration only; by default it is sqlite:///mlflow.db in the working folder.
"""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")

EXPERIMENT = "surefoot"


def tracking_uri() -> str:
    return os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")


def git_state(folder: Path | None = None) -> tuple[str | None, bool | None]:
    """Commit and whether tracked files differ from it; (None, None) outside a repository."""

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def git_tags() -> dict[str, str]:
    """`git_state` as tags of a run."""
    commit, dirty = git_state()
    return {"git_commit": str(commit), "git_dirty": str(dirty)}


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries to one level, with dots."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{name}.")
        else:
            result[f"{prefix}{name}"] = value
    return result


def quiet(*libraries: str) -> None:
    """Import these libraries and keep their start-up chatter off the stages' output; errors still show.

    None: Lightning and MLflow. A stage that trains nothing names MLflow alone: Lightning takes three times as long to import.
    """
    # Both set their own levels when they are imported, so they must be in first.
    for name in libraries or ("lightning.pytorch", "mlflow"):
        importlib.import_module(name)
    for name in (
        "lightning.pytorch",
        "lightning.fabric",
        "mlflow",
        "mlflow.store.db.utils",
        "alembic",
        "torch.utils.flop_counter",
    ):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"mlflow\..*")
    warnings.filterwarnings("ignore", module=r"lightning\..*")


def keep(run_id: str, file: Path, folder: str, tags: dict[str, str]) -> str | None:
    """Log a file and tags to a run, which may be on another machine: then nothing is logged, and no store is made.

    Returns:
        Why it was not logged; None if it was.
    """
    where = f"MLFLOW_TRACKING_URI is {tracking_uri()}; name the store that has the run, to log it"
    path = tracking_uri().removeprefix("sqlite:///")
    if path != tracking_uri() and not Path(path).exists():
        return f"there is no store ({where})"
    # a server that is away is asked twice, not for minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    try:
        runs = Runs(run_id)
        runs.client.get_run(run_id)
        runs.log_file(file, folder)
        for name, value in tags.items():
            runs.client.set_tag(run_id, name, value)
    except ImportError:
        return "mlflow is not installed here"
    except Exception as e:  # of the store, of its data base, of where its files are
        return f"{next(iter(str(e).splitlines()), type(e).__name__)} ({where})"
    return None


class Runs:
    """The runs of one pass of the pipeline over one data set."""

    def __init__(self, run_id: str | None = None, *, name: str = "", tags: dict[str, str] | None = None) -> None:
        """Open run `run_id`, or start one."""
        quiet("mlflow")
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri())
        if run_id is not None:
            self.run_id = run_id
            return
        found = self.client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else self.client.create_experiment(EXPERIMENT)
        given = {"mlflow.runName": name, **git_tags(), **(tags or {})}
        self.run_id = str(self.client.create_run(experiment, tags=given).info.run_id)

    @classmethod
    def of_dataset(cls, name: str, tags: dict[str, str]) -> Runs:
        """The run of a data set as it is now, which the runs of its models are children of; started if there is none."""
        quiet("mlflow")
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri())
        if experiment := client.get_experiment_by_name(EXPERIMENT):
            wanted = {**tags, "kind": "dataset"}
            rule = " and ".join(f"tags.`{key}` = '{value}'" for key, value in wanted.items())
            if found := client.search_runs([experiment.experiment_id], rule, max_results=1):
                return cls(found[0].info.run_id)
        return cls(name=name, tags={**tags, "kind": "dataset"})

    def log_params(self, values: dict[str, Any]) -> None:
        for name, value in flat(values).items():
            self.client.log_param(self.run_id, name, value)

    def log_metrics(self, values: dict[str, Any]) -> None:
        for name, value in flat(values).items():
            if isinstance(value, int | float) and value == value:
                self.client.log_metric(self.run_id, name, float(value))

    def log_file(self, path: Path, folder: str | None = None) -> None:
        self.client.log_artifact(self.run_id, str(path), folder)

    def finish(self, status: str = "FINISHED") -> None:
        self.client.set_terminated(self.run_id, status)

    def child_logger(self, name: str, tags: dict[str, str] | None = None) -> Any:
        """Lightning logger of a child run. Weights are logged by pipelines/signature.py, never as a pickled model."""
        quiet()
        from lightning.pytorch.loggers import MLFlowLogger

        return MLFlowLogger(
            experiment_name=EXPERIMENT,
            run_name=name,
            tracking_uri=tracking_uri(),
            tags={"mlflow.parentRunId": self.run_id, **(tags or {})},
            log_model=False,
        )
