#!/usr/bin/env python3
"""Lays out what the site is made of: the pages of docs/, and each file of the repository that one of them links to.

    scripts/site/stage.py FOLDER    writes FOLDER/zensical.toml and FOLDER/docs

A site has no repository beside it. So a linked file outside of docs/ becomes a page of the site, `repository/PATH`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs/"
# Pages of the site that no page of docs/ has to link to.
ALWAYS = ("CONTRIBUTING.md",)
LANGUAGES = {".py": "python", ".rs": "rust", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".cff": "yaml", ".sh": "bash"}
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


class Nowhere(Exception):
    """A link that leads to no file of the repository."""


def resolved(page: str, link: str) -> str:
    """The file of the repository that a relative link of a page names."""
    return os.path.normpath((PurePosixPath(page).parent / link).as_posix())


def place(file: str) -> str:
    """Where a file of the repository stands in the site's source."""
    if file.startswith(DOCS):
        return file.removeprefix(DOCS)
    return f"repository/{file}" if file.endswith(".md") else f"repository/{file}.md"


def links(text: str) -> Iterator[re.Match[str]]:
    """Links to files, outside of code."""
    code = [m.span() for m in CODE.finditer(text)]
    for found in LINK.finditer(text):
        at = found.start()
        if not re.match(r"[a-z]+:|#", found[0]) and not any(a <= at < b for a, b in code):
            yield found


def rewritten(page: str, text: str, files: frozenset[str]) -> tuple[str, set[str]]:
    """The text of a page with its links as the site has them, and the files that they lead to.

    Raises:
        Nowhere: a link names no file.
    """
    out, end, seen = "", 0, set()
    for found in links(text):
        name, mark, anchor = found[0].partition("#")
        file = resolved(page, name)
        if file not in files:
            raise Nowhere(
                f"{page}: the link {found[0]} leads to no file. Name a file of the repository, or give its path as `code`"
            )
        seen.add(file)
        to = os.path.relpath(place(file), PurePosixPath(place(page)).parent)
        out += text[end : found.start()] + to + mark + anchor
        end = found.end()
    return out + text[end:], seen


def as_page(file: str, text: str) -> str:
    """A file that is no page, as one: its path, and what is in it."""
    fence = "`" * max(4, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    name, language = PurePosixPath(file).name, LANGUAGES.get(PurePosixPath(file).suffix, "text")
    return f"# {name}\n\n`{file}`\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"


def staged(root: Path, files: frozenset[str]) -> dict[str, str | Path]:
    """What stands at each path of the site's source: a text, or the file to copy."""
    out: dict[str, str | Path] = {}
    wanted = sorted(f for f in files if f.startswith(DOCS)) + [f for f in ALWAYS if f in files]
    while wanted:
        file = wanted.pop()
        if place(file) in out:
            continue
        if file.startswith(DOCS) and not file.endswith(".md"):
            out[place(file)] = root / file
            continue
        text = (root / file).read_text("utf-8")
        if file.endswith(".md"):
            text, more = rewritten(file, text, files)
            wanted += sorted(more)
            out[place(file)] = text
        else:
            out[place(file)] = as_page(file, text)
    return out


def tracked(root: Path) -> frozenset[str]:
    """Files of the repository: what a checkout has, and nothing that was made in it."""
    skip = {"target", "out", "data", "mlruns", "bundles", "dist"}
    found = set()
    for folder, folders, names in os.walk(root):
        here = Path(folder).relative_to(root)
        folders[:] = [f for f in folders if not (f.startswith(".") and f != ".github") and not (here == Path(".") and f in skip)]
        found |= {(here / name).as_posix() for name in names}
    return frozenset(found)


def main(folder: Path) -> int:
    try:
        pages = staged(ROOT, tracked(ROOT))
    except Nowhere as e:
        print(f"surefoot: {e}", file=sys.stderr)
        return 2
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in pages.items():
        path = folder / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, path)
        else:
            path.write_text(content, "utf-8")
    for name in ("zensical.toml", "docs"):
        source = ROOT / "scripts/site" / name
        if source.is_dir():
            shutil.copytree(source, folder / name, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
