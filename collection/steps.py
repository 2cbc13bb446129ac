"""Run a story step by step, so that it can be stopped anywhere and goes on where it was.

A step that is done leaves a marker with its result, keyed on its inputs. A later run takes the marker's word as long as
the key is the same; a changed input runs the step, and by their keys all that build on it, again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipelines.inputs import Unreadable, read_json
from pipelines.io import sha256_file, write_json

from .errors import InputError


def stage_code(root: Path) -> list[Path]:
    """Every file of the pipelines and models that another version may have otherwise: what is computed depends on each."""
    patterns = ("pipelines/**/*.py", "pipelines/**/*.csv", "pipelines/**/*.json", "pipelines/templates/*", "models/**/*.py")
    return [p for pattern in patterns for p in sorted(root.glob(pattern))]


def key_of(*parts: Any) -> str:
    """Key of a step's inputs: paths count with their contents, everything else as JSON.

    A folder counts with the names and contents of all files under it.
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            for file in sorted(p for p in part.rglob("*") if p.is_file()) if part.is_dir() else [part]:
                digest.update(f"{file.name}:{sha256_file(file)}\n".encode())
        else:
            digest.update(json.dumps(part, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


@dataclass(frozen=True)
class StepRecord:
    """What became of a step. state: done, reused (marker found) or skipped (with the reason)."""

    name: str
    title: str
    state: str
    seconds: float
    why: str = ""


class Voice(Protocol):
    """Hears what a story does. The shipped ones: `console.Teller` and `Mute`."""

    def step(self, title: str) -> AbstractContextManager[None]:
        """A step runs, as long as the context lasts."""

    def reused(self, title: str) -> None:
        """A step was done before."""

    def skipped(self, title: str, why: str) -> None:
        """A step cannot be run here."""


class Mute:
    """Hears and says nothing."""

    def step(self, title: str) -> AbstractContextManager[None]:
        return nullcontext()

    def reused(self, title: str) -> None:
        pass

    def skipped(self, title: str, why: str) -> None:
        pass


STEPS = "steps"


def holds_story(out: Path, what: str, files: Iterable[str]) -> None:
    """That `out` is free, or a folder in which an earlier call of the same command worked.

    Args:
        what: the command.
        files: what else the command leaves there by itself.
    Raises:
        InputError: it holds something else, which is not to be mixed with ours.
    """
    if os.path.lexists(out) and not out.is_dir():
        raise InputError(f"--out {out}: is no folder. Give another")
    held = {p.name for p in out.iterdir()} - {".lock"} if out.is_dir() else set()
    if held and not held & {STEPS, *files}:
        raise InputError(f"--out {out}: is not empty and holds no {what}. Give another folder")


class Story:
    """The steps of one run.

    Args:
        folder: where the markers are kept.
        voice: hears what happens; None for silence.
        again: names of steps that run anew, whatever their markers say.
        places: by a word, folders that may be moved or copied as a whole. A marker has the word for the folder, so that its
            result is of the copy that it lies in, and never of the one that it was copied from.
    """

    def __init__(
        self,
        folder: Path,
        voice: Voice | None = None,
        again: Iterable[str] = (),
        places: Mapping[str, Path] | None = None,
    ) -> None:
        self.folder = folder
        self.places = dict(places or {})
        self.again = set(again)
        self.records: list[StepRecord] = []
        self._voice: Voice = voice or Mute()

    def step(
        self,
        name: str,
        title: str,
        key: str,
        work: Callable[[bool], Any],
        outputs: Iterable[Path] = (),
        whole: Callable[[Any], bool] = lambda _: True,
    ) -> Any:
        """Run `work`, or return what it returned before with the same key.

        Args:
            name: marker's name.
            key: of the inputs, see `key_of`.
            work: called with True if an earlier run with this key was cut short, so that its leftovers may be used.
            outputs: what the step leaves behind; if one is gone, the step runs again.
            whole: whether a result may be remembered; one with a part missing is used now, and the next run tries again.
        Returns:
            What `work` returned: a JSON value.
        """
        marker = self.folder / f"{name}.json"
        # once: what is left of it after that is its own
        old = _read(marker)
        anew = name in self.again
        self.again.discard(name)
        # what an earlier call with `again` began is gone on with
        if anew and not (old.get("state") == "started" and old.get("again")):
            old = {}
        of_again = {"again": True} if anew else {}
        if old.get("key") == key and old.get("state") == "done" and all(p.exists() for p in outputs):
            self.records.append(StepRecord(name, title, "reused", float(old.get("seconds", 0.0))))
            self._voice.reused(title)
            return _replaced(old["result"], {_word(name): str(at) for name, at in self.places.items()})
        cut_short = old.get("key") == key
        before = float(old.get("seconds", 0.0)) if cut_short and old.get("state") == "started" else 0.0
        write_json(marker, {"key": key, "state": "started", "seconds": before, **of_again})
        start = time.monotonic()
        try:
            with self._voice.step(title):
                result = work(cut_short)
        except BaseException:
            write_json(marker, {"key": key, "state": "started", "seconds": before + time.monotonic() - start, **of_again})
            raise
        seconds = before + time.monotonic() - start
        if whole(result):
            write_json(marker, {"key": key, "state": "done", "seconds": seconds, "result": self._kept(result)})
        else:
            write_json(marker, {"key": key, "state": "started", "seconds": seconds})
        self.records.append(StepRecord(name, title, "done", seconds))
        return result

    def _kept(self, result: Any) -> Any:
        """A result as a marker has it."""
        # the longest first: a folder may lie in another one
        by_length = sorted(self.places.items(), key=lambda p: len(str(p[1])), reverse=True)
        return _replaced(result, {str(at): _word(name) for name, at in by_length})

    def check(self, name: str, title: str, work: Callable[[], Any]) -> Any:
        """Run `work` whenever the story is told: what it looks at may have changed since."""
        start = time.monotonic()
        with self._voice.step(title):
            result = work()
        self.records.append(StepRecord(name, title, "done", time.monotonic() - start))
        return result

    def skip(self, name: str, title: str, why: str) -> None:
        """Note a step that cannot be run here."""
        self.records.append(StepRecord(name, title, "skipped", 0.0, why))
        self._voice.skipped(title, why)


def _word(name: str) -> str:
    return f"<{name}>"


def _replaced(value: Any, texts: Mapping[str, str]) -> Any:
    """A JSON value with these parts of its texts replaced, where the name of a file or folder begins and ends with them."""
    if isinstance(value, str):
        for old, new in texts.items():
            value = new.join(re.split(rf"(?<![\w.-]){re.escape(old)}(?![\w-]|\.\w)", value))
        return value
    if isinstance(value, Mapping):
        return {name: _replaced(inner, texts) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(inner, texts) for inner in value]
    return value


def _read(marker: Path) -> dict[str, Any]:
    try:
        value = read_json(marker)
    except (OSError, Unreadable):
        return {}  # no marker, or one cut short: the step simply runs
    return value if isinstance(value, dict) else {}
