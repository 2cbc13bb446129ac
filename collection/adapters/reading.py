"""From a file to rows: which tool, what it says, and one line where it says nothing."""

from __future__ import annotations

from pathlib import Path

from pipelines.inputs import SUMMARY_BYTES, Unreadable, choice, message, read_bytes, shown

from ..errors import AdapterError, told
from . import memtier, mutilate, parsec, tailbench, words, wrk2, ycsb
from .measured import Known, Measured
from .words import Failed, Unclear, Unrecognised
from .worth import judged

_TEXT = {m.TOOL: m for m in (memtier, mutilate, parsec, wrk2, ycsb)}
TOOLS = tuple(sorted([*_TEXT, tailbench.TOOL]))
ANY = "any"
"""In a tool's place: whichever's the file is."""
MOST_ROWS = 10_000
"""Of one file: no honest log comes near it."""
_LOOKS = {tool: m.LOOKS for tool, m in _TEXT.items()} | {tailbench.TOOL: tailbench.LOOKS}


def read(tool: str, path: Path, known: Known | None = None) -> list[Measured]:
    """Read one output file.

    Args:
        tool: one of TOOLS, or ANY.
        known: what the file lacks.
    Raises:
        AdapterError: unknown tool, no such file, not what the tool writes, a failed run, or no telling which number is of which
        run.
    """
    if tool not in (*TOOLS, ANY):
        raise AdapterError(f"tool {tool!r} is unknown. {choice(tool, (*TOOLS, ANY))}")
    try:
        raw = read_bytes(path, SUMMARY_BYTES)
    except OSError as e:
        raise AdapterError(told(e)) from e
    except Unreadable as e:
        raise AdapterError(f"{path}: cannot be read: {e}. Give what {tool} wrote") from e
    if tool == ANY:
        tool = _recognised(path, raw)
    known = known or Known()
    try:
        rows = _rows(tool, raw, known)
        if raw[-1:] not in (b"\n", b"\r", b"\0") and tool != tailbench.TOOL and _is_cut(tool, raw, known, rows):
            raise Unclear("its last line has no end, and a number of it would be taken as whole. Give the whole output")
        return rows
    except Unrecognised as e:
        raise AdapterError(f"{path}: not an output of {tool}: {e}. Looked for {_LOOKS[tool]}.{_hint(tool, raw)}") from e
    except Failed as e:
        raise AdapterError(f"{path}: a failed run of {tool}, not a measurement: {e}") from e
    except Unclear as e:
        raise AdapterError(f"{path}: cannot tell what {tool} measured: {e}") from e
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
        raise AdapterError(
            f"{path}: not an output of {tool}: a number that is none ({message(e)}). Give the tool's whole output"
        ) from e


def _rows(tool: str, raw: bytes, known: Known) -> list[Measured]:
    if tool == tailbench.TOOL:
        return [judged(found) for found in tailbench.parse(raw, known)]
    text = words.text_of(raw)
    if tool == parsec.TOOL:
        return parsec.parse(text)
    parser = {memtier.TOOL: memtier.parse, mutilate.TOOL: mutilate.parse, wrk2.TOOL: wrk2.parse, ycsb.TOOL: ycsb.parse}[tool]
    found = parser(text, known)
    if len(found) > MOST_ROWS:
        raise Unclear(f"it holds more than {MOST_ROWS} rows. Give fewer runs a file")
    return [judged(row) for row in found]


def _is_cut(tool: str, raw: bytes, known: Known, rows: list[Measured]) -> bool:
    """A last line without an end may be the first half of one: does what was read depend on how its last word goes on?"""
    if not raw[-1:].isdigit():
        return False
    try:
        return _rows(tool, raw + b"7", known) != rows
    except ValueError:
        return True


def _marked(raw: bytes) -> list[str]:
    text = words.text_of(raw)
    return [tool for tool, m in _TEXT.items() if any(mark.search(text) for mark in m.MARKS)]


def _recognised(path: Path, raw: bytes) -> str:
    """
    Raises:
        AdapterError: no tool's marks, or those of several.
    """
    marked = _marked(raw)
    if len(marked) > 1:
        raise AdapterError(f"{path}: has marks of {' and '.join(marked)}: give the output of one run of one tool")
    if marked:
        return marked[0]
    try:
        tailbench.parse(raw, Known())
        return tailbench.TOOL
    except Failed:
        return tailbench.TOOL
    except ValueError as e:
        every = "; ".join(f"{tool}: {_LOOKS[tool]}" for tool in TOOLS)
        why = f" (as one of {tailbench.TOOL}: {e})"
        raise AdapterError(f"{path}: not an output of any known tool{why}. Looked for {every}") from None


def _hint(tool: str, raw: bytes) -> str:
    others = [other for other in _marked(raw) if other != tool]
    if others:
        return f" It looks like an output of {shown(' and '.join(others))}"
    return " Give the file that holds the tool's whole output"
