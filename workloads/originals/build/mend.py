#!/usr/bin/env python3
"""Change a user's own copy of a program as a file of mends says.

    mend.py MENDS FOLDER

MENDS has entries of three parts, each begun by a line of its own; what stands above the first is a comment:

    @@ FILE                 relative to FOLDER
    @ after | before | replace
    LINES                   found once in FILE, as they stand here but for blanks at the ends of lines
    @ with
    LINES                   what comes after or before them, or in their place

All or nothing: where one entry does not fit, the copy is of another version than the mends were made for, and nothing is changed.
The standard library only.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


class Misfit(ValueError):
    """What does not fit, in one line."""


@dataclass(frozen=True)
class Mend:
    file: str
    how: str
    lines: tuple[str, ...]
    new: tuple[str, ...]


def parse(text: str, name: str) -> list[Mend]:
    """
    Raises:
        Misfit: the file of mends is none.
    """
    mends = []
    for number, entry in enumerate(("\n" + text).split("\n@@ ")[1:], 1):
        head, _, rest = entry.partition("\n@ ")
        how, _, body = rest.partition("\n")
        old, found, new = (body + "\n").partition("\n@ with\n")
        file = head.strip()
        if how not in ("after", "before", "replace") or not found or not file or ".." in Path(file).parts or file.startswith("/"):
            raise Misfit(f"{name}: entry {number} is no mend. See workloads/originals/build/mend.py")
        mends.append(Mend(file, how, tuple(old.split("\n")), tuple(new.rstrip("\n").split("\n"))))
    if not mends:
        raise Misfit(f"{name}: has no entry. See workloads/originals/build/mend.py")
    return mends


def mended(lines: list[str], m: Mend) -> list[str]:
    """
    Raises:
        Misfit: the lines of the mend are not there, or more than once.
    """
    want = [line.rstrip() for line in m.lines]
    have = [line.rstrip() for line in lines]
    at = [i for i in range(len(have) - len(want) + 1) if have[i : i + len(want)] == want]
    if len(at) != 1:
        raise Misfit(f"{m.file}: line `{m.lines[0].strip()}` and what follows stand there {len(at)} times, want once")
    first, last = at[0], at[0] + len(want)
    if m.how == "after":
        return [*lines[:last], *m.new, *lines[last:]]
    if m.how == "before":
        return [*lines[:first], *m.new, *lines[first:]]
    return [*lines[:first], *m.new, *lines[last:]]


def mend(mends: list[Mend], folder: Path) -> None:
    """
    Raises:
        Misfit: an entry does not fit; nothing was changed.
    """
    texts: dict[str, list[str]] = {}
    for m in mends:
        path = folder / m.file
        if m.file not in texts:
            try:
                texts[m.file] = path.read_text("utf-8", errors="surrogateescape").split("\n")
            except OSError as e:
                raise Misfit(f"{path}: {e.strerror}") from None
        texts[m.file] = mended(texts[m.file], m)
    for file, lines in texts.items():
        (folder / file).write_text("\n".join(lines), "utf-8", errors="surrogateescape")


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("mend: give a file of mends and a folder")
    path = Path(sys.argv[1])
    try:
        mend(parse(path.read_text("utf-8"), path.name), Path(sys.argv[2]))
    except (OSError, Misfit) as e:
        print(f"mend: {e}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
