"""Find and run the repository's binaries.

Order of the search: the environment (SUREFOOTD, SUREFOOT_LOADGEN), `target/release` under the repository, PATH.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.inputs import LINE_BYTES, Unreadable, parse_json

from .errors import ToolFailed, ToolMissing

SUREFOOTD = "surefootd"
LOADGEN = "surefoot-loadgen"
_VARIABLES = {SUREFOOTD: "SUREFOOTD", LOADGEN: "SUREFOOT_LOADGEN"}


def repo_root() -> Path:
    """The repository this package was installed from (an editable install, as `make setup` does)."""
    return Path(__file__).resolve().parent.parent


def find(tool: str) -> Path:
    """Path of one of the repository's binaries.

    Raises:
        ToolMissing: it is nowhere, or the environment names something that cannot be run.
    """
    variable = _VARIABLES[tool]
    given = os.environ.get(variable)
    if given:
        path = Path(given)
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise ToolMissing(f"{variable}={given} is not a program. Unset it, or build the binaries: make setup")
        return path.resolve()
    built = repo_root() / "target" / "release" / tool
    if built.is_file() and os.access(built, os.X_OK):
        return built
    found = shutil.which(tool)
    if found:
        return Path(found)
    raise ToolMissing(f"{tool} is not built (looked at ${variable}, target/release and PATH). Build it: make setup")


def is_named(tool: str) -> bool:
    """Whether the environment says which one to take."""
    return bool(os.environ.get(_VARIABLES[tool]))


def environment() -> dict[str, str]:
    """Environment for child processes: the binaries under the names they look each other up by."""
    env = dict(os.environ)
    for tool, variable in _VARIABLES.items():
        try:
            env[variable] = str(find(tool))
        except ToolMissing:
            env.pop(variable, None)
    return env


def _message(tool: str, code: int, stderr: str) -> str:
    # the error is the last line that the tool signs with its name; what stands before it is log
    signed = [line for line in stderr.splitlines() if line.startswith((f"{tool}: ", "error: "))]
    text = signed[-1].split(": ", 1)[1].strip() if signed else stderr.strip()
    if code < 0:
        name = signal.Signals(-code).name
        return f"{tool} was ended by {name}" + (f": {text}" if text else "")
    return text or f"{tool} failed with exit code {code} and said nothing"


def run(tool: str, args: Sequence[str | Path]) -> str:
    """Run a binary to its end; returns what it printed.

    Raises:
        ToolMissing: the binary is not built.
        ToolFailed: it failed.
    """
    done = subprocess.run([str(find(tool)), *map(str, args)], capture_output=True, text=True, env=environment())
    if done.returncode != 0:
        raise ToolFailed(tool, _message(tool, done.returncode, done.stderr), done.returncode)
    return done.stdout


def run_json(tool: str, args: Sequence[str | Path]) -> Any:
    """Run a binary that prints one JSON document.

    Raises:
        ToolMissing: the binary is not built.
        ToolFailed: it failed, or printed something else than JSON.
    """
    said = run(tool, args)
    try:
        return parse_json(said)
    except Unreadable as e:
        raise ToolFailed(tool, f"{tool} {args[0]} did not print JSON ({e}). Rebuild it: make setup", 1) from e


def follow_json(tool: str, args: Sequence[str | Path]) -> Iterator[dict[str, Any]]:
    """Run a binary that prints JSON lines among its messages on stderr, and yield each as it comes.

    The child leads its own process group: a Ctrl-C reaches it through us, once. On any way out of the loop it is
    asked to stop (SIGTERM) and waited for, so that it can finish what it is writing.

    Raises:
        ToolMissing: the binary is not built.
        ToolFailed: it failed.
    """
    child = subprocess.Popen(
        [str(find(tool)), *map(str, args)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment(),
        process_group=0,
    )
    assert child.stderr is not None
    said: deque[str] = deque(maxlen=40)
    try:
        # a line that is too long comes in pieces, and is no event
        while line := child.stderr.readline(LINE_BYTES):
            event = _event(line)
            if event is None:
                said.append(line)
            else:
                yield event
        code = child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        child.stderr.close()
    if code != 0:
        raise ToolFailed(tool, _message(tool, code, "".join(said)), code)


def _event(line: str) -> dict[str, Any] | None:
    value = json_object(line) if line.startswith("{") else None
    return value if value is not None and "event" in value else None


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is; None if it is none."""
    try:
        value = parse_json(text)
    except Unreadable:
        return None
    return value if isinstance(value, dict) else None


def profile_folders() -> list[Path]:
    """Folders of profiles that virtual servers are made from here, later ones override earlier ones by file name.

    Raises:
        ToolMissing: one is named in SUREFOOT_PROFILES and is not there.
    """
    given = [Path(p) for p in os.environ.get("SUREFOOT_PROFILES", "").split(os.pathsep) if p]
    for path in given:
        if not path.is_dir():
            raise ToolMissing(f"SUREFOOT_PROFILES: {path} is no folder. Mend it, or unset it")
    return [repo_root() / "scheduler" / "vserver" / "profiles", *given]


def merged(env: Mapping[str, str]) -> dict[str, str]:
    """The children's environment with some variables set."""
    return {**environment(), **env}
