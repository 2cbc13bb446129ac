"""Numbers and lines of text that other programs printed, and the three ways in which a file can be no measurement."""

from __future__ import annotations

import re

NUMBER = r"[-+]?\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?"
"""Of one number: none of the tools groups digits, so a comma is a locale's decimal separator."""
_NUMBER = re.compile(NUMBER, re.ASCII)
_NONE = re.compile(r"-+|[-+]?(?:nan|inf(?:inity)?|NaN|Infinity)|n/a|null", re.IGNORECASE)


class Unrecognised(ValueError):
    """The file is not what the tool writes; says what is not there."""


class Failed(ValueError):
    """The tool's run failed, so that the file measures nothing; says why."""


class Unclear(ValueError):
    """The file cannot be read in one way only; says why, and what to give instead."""


def number(text: str) -> float | None:
    """A number; None where the tool says that it has no value (`---`, `-nan`).

    Raises:
        ValueError: neither.
    """
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return float(text.replace(",", "."))
    if _NONE.fullmatch(text):
        return None
    raise ValueError(f"{text!r} is no number")


def surely(text: str) -> float:
    """
    Raises:
        ValueError: no number.
    """
    value = number(text)
    if value is None:
        raise ValueError(f"{text!r} is no number")
    return value


def whole(value: float | None) -> int | None:
    """A count that was computed of a rate and a duration; None if there is none.

    Raises:
        ValueError: it is beyond what a counter holds, which the caller's arithmetic would hide.
    """
    if value is None:
        return None
    if not abs(value) < 1e18:
        raise ValueError(f"{value:g} is no count")
    return round(value)


def counted(value: float | None) -> int | None:
    """A count as it was printed.

    Raises:
        ValueError: it is no whole number: a locale grouped its digits.
    """
    if value is not None and not float(value).is_integer():
        raise ValueError(f"{value:g} is no whole number of requests")
    return whole(value)


def ms(us: float | None) -> float | None:
    """Of microseconds. To the picosecond: what a division of decimals leaves is no measurement."""
    return None if us is None else round(us / 1000, 9)


def text_of(raw: bytes) -> str:
    """What a program printed, also as a shell with UTF-16 or a byte order mark wrote it down."""
    for mark, code in ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig")):
        if raw.startswith(mark):
            return raw.decode(code, errors="replace")
    return raw.decode("utf-8", errors="replace")


def once(runs: int, what: str) -> None:
    """
    Raises:
        Unclear: something that ends a run stands there twice.
    """
    if runs > 1:
        raise Unclear(f"{what} stands there {runs} times for one beginning of a run: parts of several runs. Give one run a file")
