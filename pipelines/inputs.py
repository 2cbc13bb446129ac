"""Files of others, read up to a bound; and what they say, in words that a terminal may have.

A reader that takes what it is given takes all memory (`/dev/zero`, a line of gigabytes), all time (a pipe that nobody writes to,
a key of thousands of parts) or the interpreter's stack (nesting). Each kind of input has a size here that no honest one comes
near, and the bounds stand here alone. What cannot be read is `Unreadable`, a ValueError whose text is one line without the file's
name: whoever reads adds file and remedy.

The standard library's cheapest parts only: `surefoot campaign status` imports this.
"""

from __future__ import annotations

import json
import os
import re
import select
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import IO, Any

WRITTEN_BYTES = 1 << 20
"""What people write: campaigns, platforms, parameters, keys."""
SUMMARY_BYTES = 64 << 20
"""What a program wrote as one value: manifests, results."""
LINE_BYTES = 4 << 20
"""One line of what a program writes line by line."""
EXPERIENCE_BYTES = 64 << 20
"""What a run experienced; the node writes no larger one (scheduler/learn/src/experience.rs)."""
JOURNAL_BYTES = 16 << 30
"""A journal, which is never in memory as a whole: a line for each case."""
YAML_BYTES = 256 << 10
"""YAML is read a hundred times as slowly as the rest."""
NESTED = 100
"""Lists and tables within each other. Readers take a thousand, but not what writes such a value again."""
SILENCE_S = 10.0
"""Longest silence of a pipe."""
_YAML_VALUES = 100_000
_KEY_PARTS = 64
# a dotted key of more parts, wherever it stands: `tomllib` takes quadratic time for it. `++` does not go back, nor does a start
# within a word count
_LONG_KEY = re.compile(rf"""(?<![\w"'-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{_KEY_PARTS}}}""")
# besides control characters: soft hyphen, marks of writing direction, zero width, separators of lines, byte order mark, tags
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MOST_WORD = 160
_MOST_MESSAGE = 1600


class Unreadable(ValueError):
    """An input that is too long, silent, no text, or not of its format; the text says which, in one line."""


def shown(text: object) -> str:
    """Text of others in one line, with nothing in it that acts on a terminal or hides."""
    return _UNSEEN.sub(lambda m: _SHORT.get(m[0]) or f"\\u{{{ord(m[0]):x}}}", str(text))


def page(text: str) -> str:
    """The same, with its ends of lines."""
    return "\n".join(map(shown, text.split("\n")))


def message(text: object) -> str:
    """A message in one line of a length that can be read; of what is too long both ends stay, as the remedy stands last."""
    return _shortened(" ".join(_shortened(shown(word), _MOST_WORD) for word in str(text).split()), _MOST_MESSAGE)


def _shortened(text: str, most: int) -> str:
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…({len(text) - 2 * half} characters)…{text[-half:]}"


def choice(word: object, known: Iterable[object]) -> str:
    """The end of a message that refuses a name: the nearest of those that are known, where one is near, and all of them."""
    import difflib

    names = [str(name) for name in known]
    near = difflib.get_close_matches(str(word), names, 1)
    meant = f'Did you mean "{near[0]}"? ' if near and near[0] != word else ""
    return f"{meant}Known: {', '.join(names) or 'none'}"


def json_text(value: Any) -> str:
    """A value as JSON that a terminal may have: what is unseen is written by its number, which means the same."""
    # what the encoder leaves: it escapes all but ASCII, and of that all below a space
    return json.dumps(value, indent=2, allow_nan=False).replace("\x7f", "\\u007f")


def _size(most: int) -> str:
    return f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB" if most >= 1 << 10 else f"{most} bytes"


def open_bytes(path: Path, silence_s: float = SILENCE_S) -> IO[bytes]:
    """Open a file, or a pipe that somebody writes to, without waiting for that for long.

    Raises:
        OSError: as `open`; a folder is one.
        Unreadable: it is a socket, or a pipe that says nothing.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as e:
        if e.errno == 6:  # ENXIO
            raise Unreadable("it is a socket") from None
        raise
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(21, os.strerror(21), str(path))
        if stat.S_ISREG(mode):
            return os.fdopen(fd, "rb")
        return _Pipe(fd, silence_s).buffered()
    except BaseException:
        os.close(fd)
        raise


class _Pipe:
    """A pipe or a device, whose silence ends."""

    def __init__(self, fd: int, silence_s: float) -> None:
        self.fd, self.silence_s = fd, silence_s

    def buffered(self) -> IO[bytes]:
        import io

        pipe = self

        class Raw(io.RawIOBase):
            def readable(self) -> bool:
                return True

            def readinto(self, into: Any) -> int:
                data = pipe.read(len(into))
                into[: len(data)] = data
                return len(data)

            def close(self) -> None:
                if not self.closed:
                    os.close(pipe.fd)
                super().close()

        return io.BufferedReader(Raw())

    def read(self, n: int) -> bytes:
        poll, end = select.poll(), time.monotonic() + self.silence_s
        poll.register(self.fd, select.POLLIN)
        while True:
            if not poll.poll(max(0, 1000 * (end - time.monotonic()))):
                raise Unreadable(f"nothing came for {self.silence_s:g} s")
            try:
                return os.read(self.fd, n)
            except BlockingIOError:
                continue


def read_bytes(path: Path, most: int = WRITTEN_BYTES) -> bytes:
    """A whole file of at most `most` bytes.

    Raises:
        OSError: it cannot be opened.
        Unreadable: it is longer, or says nothing.
    """
    with open_bytes(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise Unreadable(f"it is longer than {_size(most)}")
    return data


def utf8(data: bytes) -> str:
    """
    Raises:
        Unreadable: it is no text; says where.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise Unreadable(f"line {line} is no UTF-8 (byte {e.start} of the file)") from None


def read_text(path: Path, most: int = WRITTEN_BYTES) -> str:
    """As `read_bytes`, as text."""
    return utf8(read_bytes(path, most))


def said(log: Path, most: int = SUMMARY_BYTES) -> str:
    """What a program said in its log: the end of it, where it said more than is shown to anybody."""
    with open_bytes(log) as file:
        if file.seekable() and (size := os.fstat(file.fileno()).st_size) > most:
            file.seek(size - most)
        return file.read(most).decode("utf-8", errors="replace")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise Unreadable(f"key {shown(key)!r} stands there twice")
            seen.add(key)
    return found


def _no_number(text: str) -> Any:
    raise Unreadable(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise Unreadable(f"{_shortened(text, 40)} is too large for a number")
    return value


def _whole(text: str) -> int:
    # what 64 bits hold, and what every other reader of JSON takes for a whole number
    if len(text) > 20:
        raise Unreadable(f"{_shortened(text, 40)} is too large for a whole number")
    return int(text)


def _shallow(value: Any) -> Any:
    """The value itself, if its nesting has an end that everything that handles it later can reach.

    Raises:
        Unreadable: it is nested deeper than NESTED.
    """
    level = [value]
    for _ in range(NESTED + 1):
        level = [v for v in level if isinstance(v, dict | list)]
        if not level:
            return value
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    raise Unreadable("it is nested too deep")


def parse_json(data: bytes | str) -> Any:
    """JSON in which a key stands once, numbers are finite and nesting has an end.

    Raises:
        Unreadable: it is none.
    """
    text = utf8(data) if isinstance(data, bytes) else data
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number, parse_float=_finite, parse_int=_whole)
        # a line of a journal has a few
        return _shallow(value) if text.count("[") + text.count("{") > NESTED else value
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable("it is nested too deep") from None
    except ValueError as e:
        raise Unreadable(message(e)) from None


def read_json(path: Path, most: int = SUMMARY_BYTES) -> Any:
    """A JSON file; raises as `read_bytes` and `parse_json`."""
    return parse_json(read_bytes(path, most))


def parse_toml(text: str) -> dict[str, Any]:
    """
    Raises:
        Unreadable: it is no TOML, nested too deep, or has a key of hundreds of parts.
    """
    import tomllib

    if _LONG_KEY.search(text):
        raise Unreadable(f"a key has more than {_KEY_PARTS} parts")
    try:
        value: dict[str, Any] = _shallow(tomllib.loads(text))
        return value
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable("it is nested too deep") from None
    except ValueError as e:
        raise Unreadable(message(e)) from None


def read_toml(path: Path, most: int = WRITTEN_BYTES) -> dict[str, Any]:
    """A TOML file; raises as `read_text` and `parse_toml`."""
    return parse_toml(read_text(path, most))


def read_yaml(path: Path, most: int = YAML_BYTES) -> Any:
    """A YAML file of plain values, in which a key stands once, and references (`*`) do not make a line a gigabyte.

    Raises:
        OSError, Unreadable: as `read_text`, and for what is no such YAML.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if len(set(keys)) < len(keys):
                twice = next(key for key in keys if keys.count(key) > 1)
                raise Unreadable(f"line {node.start_mark.line + 1}: key {shown(twice)!r} stands there twice")
            return super().construct_mapping(node, deep)

    # truth values as DVC reads them in the same file (YAML 1.2): `on`, `yes` and `n` are words, and a key may be one
    truth = "tag:yaml.org,2002:bool"
    others = {first: [r for r in known if r[0] != truth] for first, known in Loader.yaml_implicit_resolvers.items()}
    Loader.yaml_implicit_resolvers = others
    Loader.add_implicit_resolver(truth, re.compile("(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))

    text = read_text(path, most)
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _spelt_out(node, {}, yaml)
        return _shallow(loader.construct_document(node))
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable("it is nested too deep") from None
    # dates that are none and numbers of thousands of digits are ValueErrors of their own, keys of lists TypeErrors
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as e:
        raise Unreadable(message(e)) from None


def _spelt_out(node: Any, known: dict[int, int], yaml: Any) -> int:
    """Values in a node with all that it refers to spelt out. `known`: of nodes that were looked at; 0 for those that are.

    Raises:
        Unreadable: they are too many, or a node is in itself.
    """
    if id(node) not in known:
        known[id(node)] = 0
        below = [x for pair in node.value for x in pair] if isinstance(node, yaml.MappingNode) else node.value
        inner = () if isinstance(node, yaml.ScalarNode) else below
        known[id(node)] = 1 + sum(_spelt_out(x, known, yaml) for x in inner)
    size = known[id(node)]
    if size == 0 or size > _YAML_VALUES:
        why = "is in itself" if size == 0 else f"comes to more than {_YAML_VALUES} values"
        raise Unreadable(f"line {node.start_mark.line + 1}: with what it refers to, this {why}")
    return size


def json_lines(path: Path, most_line: int = LINE_BYTES) -> Iterator[Any]:
    """The values of a file of JSON lines, one by one; empty lines are passed over.

    Raises:
        OSError: it cannot be opened.
        Unreadable: a line is too long, or no JSON; names it.
    """
    with open_bytes(path) as file:
        number = 0
        while line := file.readline(most_line + 1):
            number += 1
            if len(line) > most_line:
                raise Unreadable(f"line {number} is longer than {_size(most_line)}")
            if line.strip():
                try:
                    yield parse_json(line)
                except Unreadable as e:
                    raise Unreadable(f"line {number}: {e}") from None
