"""Mutations of a valid input, drawn from a seed, and the judge of what a command does with one.

As `scheduler/mutate`: bytes (flips, cuts, copies, hostile tokens, nesting, extreme numbers), and the trees of JSON, TOML and YAML
(types, names, lengths, depth).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import resource
import signal
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines import inputs

TEXTS = (
    "",
    "a" * 100_000,
    "\x1b[31m\x1b[2J\x07",
    "\u202etxt.exe\u2066",
    "\0",
    "a\nb\r\nc",
    "\x9b2J\x85\u2028",
    "\ufeff\u200b",
    "..",
    ".",
    "nan",
    "-1",
    "1..1000000",
    "99999999999999999999",
    "é" * 3000,
    "%s%n{}{0}$(id)`id`",
    "/dev/zero",
    "[red]x[/]",
    " " * 1000,
    "2001-99-99",
)
NUMBERS = (0, -0.0, 1, -1, 0.5, 255, 1e6, 1e9, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, 1e300, -1e300, 5e-324, 10**400)
# at most this much of a mutation, besides one that is long on purpose
_LONG = 2 << 20
# on a machine that others use, too
_LONGEST_S = 120
# what a command may add to this process, threads' stacks and arenas included
_MEMORY_BYTES = 3 << 30


class Mutator:
    """form: bytes, json, jsonl, toml or yaml."""

    def __init__(self, seed: int, form: str, specimen: bytes) -> None:
        self.rng, self.form, self.specimen = random.Random(seed), form, specimen

    def draw(self) -> bytes:
        """The next mutation: one change, more rarely two or three."""
        out = self.specimen
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            out = self._change(out)
        return out

    def _change(self, data: bytes) -> bytes:
        made = self._tree(data) if self.form != "bytes" and self.rng.randrange(3) else None
        return self._bytes(data) if made is None else made

    def _tree(self, data: bytes) -> bytes | None:
        try:
            match self.form:
                case "json":
                    return json.dumps(self._value(json.loads(data))).encode()
                case "jsonl":
                    lines = data.splitlines(keepends=True)
                    k = self.rng.randrange(len(lines))
                    lines[k] = json.dumps(self._value(json.loads(lines[k]))).encode() + b"\n"
                    return b"".join(lines)
                case "toml":
                    # not by tomllib alone: a mutation may be one that it takes all memory for
                    return _toml(self._value(inputs.parse_toml(data.decode()))).encode()
                case _:
                    import yaml

                    if len(data) > inputs.YAML_BYTES:
                        return None
                    try:
                        return yaml.safe_dump(self._value(yaml.safe_load(data))).encode()
                    except yaml.YAMLError:
                        return None
        except (ValueError, TypeError, RecursionError, IndexError, AttributeError, OverflowError):
            return None

    def _places(self, value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [path, *(p for k, v in below for p in self._places(v, (*path, k)))]

    def _value(self, value: Any) -> Any:
        place = self.rng.choice(self._places(value))
        if not place:
            return self._other(value)
        at = value
        for key in place[:-1]:
            at = at[key]
        if self.rng.randrange(6) == 0:
            at.pop(place[-1])
        else:
            at[place[-1]] = self._other(at[place[-1]])
        return value

    def _other(self, value: Any) -> Any:
        rng = self.rng
        what = rng.randrange(8)
        if what == 0:
            return rng.choice((None, True, [], {}, rng.choice(NUMBERS), rng.choice(TEXTS), list(range(20_000))))
        if what == 1:
            for _ in range(rng.choice((20, 100, 500))):
                value = [value] if rng.random() < 0.5 else {"a": value}
            return value
        match value:
            case bool():
                return not value
            case int() | float():
                return rng.choice((rng.choice(NUMBERS), value + 1, -value, value * 2, value / 2, str(value)))
            case str():
                return rng.choice((rng.choice(TEXTS), value + rng.choice(TEXTS), [value]))
            case list():
                return rng.choice((value[:-1], value + value[:1], value * 200, value[::-1], [*value, rng.choice(TEXTS)]))
            case dict():
                key = rng.choice(list(value)) if value else "a"
                return value | {rng.choice((rng.choice(TEXTS), key, "x")): rng.choice((value.get(key), rng.choice(NUMBERS), {}))}
        return rng.choice(TEXTS)

    def _bytes(self, data: bytes) -> bytes:
        rng = self.rng
        at = rng.randrange(len(data) + 1)
        piece = data[at : at + rng.randrange(1, 300)]
        match rng.randrange(18):
            case 0 | 1 if data:
                out = bytearray(data)
                for _ in range(rng.randrange(1, 9)):
                    out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
                return bytes(out)
            case 2 | 3:
                return data[:at]
            case 4:
                return data[at:]
            case 5:
                return data[:at] + piece + data[at:]
            case 6:
                return data[:at] + data[at + len(piece) :]
            case 7 | 8:
                return data[:at] + rng.choice(TEXTS).encode() + data[at:]
            case 9:
                return data[:at] + b"\xff\xfe\xc0\x80\xed\xa0\x80"[: rng.randrange(1, 8)] + data[at:]
            case 10:
                numbers = list(re.finditer(rb"\d[\d.eE_]*", data))
                if not numbers:
                    return data
                found = rng.choice(numbers)
                other = rng.choice(
                    ("9" * 5000, "1e999", "-9223372036854775809", "0." + "0" * 2000 + "1", "nan", str(rng.choice(NUMBERS)))
                )
                return data[: found.start()] + other.encode() + data[found.end() :]
            case 11:
                deep = rng.choice((b"[", b'{"a":', b"a.", b"- ", b"&a [*a, ", b'"""')) * rng.choice((100, 10_000, 200_000))
                return data[:at] + deep + data[at:]
            case 12:
                lines = data.splitlines(keepends=True)
                rng.shuffle(lines)
                return b"".join(lines[: rng.randrange(len(lines) + 1)] if rng.random() < 0.5 else lines)
            case 13:
                return "\ufeff".encode() + data
            case 14:
                return data.replace(b"\n", b"\r\n")
            case 15:
                return data + data
            case 16:
                return data[:at] + rng.choice((b"x", b"\n", b"0", b"\0")) * _LONG + data[at:]
        return data[:at] + bytes([rng.randrange(256)]) + data[at:]


def _toml(value: Any, path: tuple[str, ...] = ()) -> str:
    """Enough of TOML to write what was read. Raises where it has no form for a value."""
    if not isinstance(value, dict):
        raise TypeError(type(value))
    plain = {k: v for k, v in value.items() if not isinstance(v, dict)}
    text = "".join(f"{json.dumps(k)} = {_inline(v)}\n" for k, v in plain.items())
    for k, v in value.items():
        if isinstance(v, dict):
            text += f"[{'.'.join(json.dumps(p) for p in (*path, k))}]\n" + _toml(v, (*path, k))
    return text


def _inline(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "{" + ", ".join(f"{json.dumps(k)} = {_inline(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_inline, value)) + "]"
        case None:
            raise TypeError("TOML has no null")
        case int() | float():
            return repr(value)
    return json.dumps(str(value))


def how_many(every_day: int) -> int:
    """Of each format: a number for every day, or what SUREFOOT_MUTATIONS says."""
    return int(os.environ.get("SUREFOOT_MUTATIONS", every_day))


def acts(text: str) -> str | None:
    """The first character that a terminal would act on, or that hides; ends of lines do not count."""
    bad = (
        c
        for c in text
        if c != "\n" and (unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in "\u061c\u200b\u200e\u200f\ufeff")
    )
    turned = (c for c in text if "\u202a" <= c <= "\u202e" or "\u2066" <= c <= "\u2069")
    return next(bad, None) or next(turned, None)


def judged(call: Callable[[], object]) -> tuple[int, str | None]:
    """Run a command's entry point; its exit code, and what promise it broke."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    # what native code says goes round Python
    native = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    kept = [os.dup(fd) for fd in (1, 2)]
    for fd in (1, 2):
        os.dup2(native.fileno(), fd)
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_LONGEST_S)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + _MEMORY_BYTES, limits[1]))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            done = call()
        code = done if isinstance(done, int) else 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    except BaseException as e:
        return -1, f"{type(e).__name__}: {str(e)[:300]!r}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        for fd, own in zip((1, 2), kept, strict=True):
            os.dup2(own, fd)
            os.close(own)
        native.seek(0)
        past = native.read(2000)
        native.close()
    if past:
        return code, f"past Python: {past[:300]!r}"
    said = err.getvalue()
    if code not in (0, 1, 2):
        return code, f"exit code {code}: {said[:300]!r}"
    if code and (len(said.splitlines()) != 1 or len(said) > 8192):
        return code, f"exit code {code}, {len(said.splitlines())} lines of {len(said)} characters: {said[:400]!r}"
    if "a fault of surefoot" in said:
        return code, said[:400]
    for name, text in (("standard output", out.getvalue()), ("standard error", said)):
        if c := acts(text):
            return code, f"{name} holds {c!r}"
    return code, None


class TooLong(BaseException):
    """A command takes longer than it may."""


def _too_long(*_: object) -> None:
    raise TooLong(f"more than {_LONGEST_S} s")


def all_of(name: str, form: str, specimen: bytes, every_day: int, place: Path, call: Callable[[bytes], object]) -> None:
    """Draw mutations of a specimen and judge what comes of each; `call` gets one and runs a command on it."""
    mutator = Mutator(sum(name.encode()), form, specimen)
    codes: Counter[int] = Counter()
    faults = []
    for k in range(how_many(every_day)):
        mutation = mutator.draw()
        code, fault = judged(lambda m=mutation: call(m))  # type: ignore[misc]
        codes[code] += 1
        if fault:
            kept = place / f"{re.sub('[^a-z0-9]+', '-', name)}-{k}"
            kept.write_bytes(mutation)
            faults.append(f"mutation {k} ({kept}): {fault}")
            if len(faults) == 20:
                break
    print(f"mutations {name:<24} " + "  ".join(f"{c}: {codes[c]:>6}" for c in (0, 1, 2)))
    assert not faults, f"{name}: {len(faults)}\n" + "\n".join(faults)
