"""Standard output and standard error whose reader may go away at any time (`surefoot ... | head`).

A reader that has gone ends nothing: what is being written is written to its end, and nothing is said of it. Standard output on a
full disk is a failure, which `failure` names once the work is done; standard error has nobody left to tell.
"""

from __future__ import annotations

import errno
import io
import os
import sys

from .inputs import page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

_failed: OSError | None = None


class _Kept(io.RawIOBase):
    """A descriptor whose writes always seem to succeed."""

    def __init__(self, fd: int, told: bool) -> None:
        self._fd, self._told = fd, told

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def write(self, data: Any) -> int:
        global _failed
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except InterruptedError:
                continue
            except OSError as e:
                if self._told and e.errno != errno.EPIPE and _failed is None:
                    _failed = e
                break
        return len(memoryview(data))


class _Text(io.TextIOWrapper):
    """Text of which nothing acts on whoever looks at it later; a terminal gets the colours that a table has."""

    def write(self, text: str) -> int:
        return super().write(text if self.isatty() else page(text))


def guard() -> None:
    """Make this process's own standard output and standard error such; others (of tests) stay as they are."""
    for name, fd, told in (("stdout", 1, True), ("stderr", 2, False)):
        stream: TextIO | None = getattr(sys, name)
        if stream is None:  # it was closed when the process began
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        elif stream is getattr(sys, f"__{name}__"):
            try:  # noqa: SIM105 - importing contextlib takes as long as all of this
                stream.flush()
            except OSError:
                pass
            raw = _Kept(fd, told)
            kept = _Text(
                io.BufferedWriter(raw), encoding=stream.encoding or "utf-8", errors="backslashreplace", line_buffering=True
            )
            setattr(sys, name, kept)


class Quiet:
    """While this is entered, standard output and standard error take nothing of what native code says there of an input (a panic
    of polars is pages): what is wrong is raised, too. It is so for all threads, so only round what reads an input.
    """

    def __enter__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        self._kept: list[tuple[int, int]] = []
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        for fd in (1, 2):
            try:
                self._kept.append((fd, os.dup(fd)))
            except OSError:  # it is closed
                continue
            os.dup2(nowhere, fd)
        os.close(nowhere)

    def __exit__(self, *_: object) -> None:
        for fd, own in self._kept:
            os.dup2(own, fd)
            os.close(own)


def failure() -> str | None:
    """Why standard output could not be written; None where it could, or where its reader has gone."""
    if sys.stdout is not None:
        sys.stdout.flush()
    return None if _failed is None else f"standard output: {_failed.strerror}. Make room there, or send it elsewhere"
