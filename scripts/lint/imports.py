#!/usr/bin/env python3
"""Import circles, and arrows from a lower floor to a higher one, in the Rust crates and the Python packages.

    scripts/lint/imports.py [--draw]    with --draw: every arrow between rooms

A circle is one between files. Tests (`#[cfg(test)] mod ... { }`, `*tests.rs`) may look anywhere.
What `mod.rs` and `lib.rs` only pass on (`pub use`) counts for the file that defines it; files may look up to the `mod.rs` of
their own folder, which is the door of their room.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("models", "pipelines", "collection")
# Rooms of surefootd, the lowest floor first; rooms of one floor know nothing of each other.
SUREFOOTD = (("base",), ("stage",), ("eval", "sweep"), ("node",), ("commands",))
Graph = dict[str, set[str]]


def main(draw: bool) -> int:
    wrong: list[str] = []
    at = {path.rpartition("/")[2]: floor for path, (floor, _) in floors_of_page().items()}
    graph = {path.rpartition("/")[2]: below for path, below in crates().items()}
    for member in crates():
        files = Crate(ROOT / member / "src").graph()
        wrong += [f"{member}: circle: {c}" for c in circles(files)]
        if member.endswith("/surefootd"):
            of = rooms(files, lambda f: f.split("/")[0] if "/" in f else "")
            inside = {r: g - {""} for r, g in of.items() if r}
            wrong += floors("room of surefootd", inside, {name: n for n, floor in enumerate(SUREFOOTD) for name in floor})
            graph |= {f"surefootd/{r}": g for r, g in inside.items()} if draw else {}
    files = python()
    wrong += [f"circle: {c}" for c in circles(files)]
    graph |= rooms(files, lambda f: f.split(".")[0])
    wrong += floors("crate or package", {n: g for n, g in graph.items() if "/" not in n}, at)
    if draw:
        for room, below in sorted(graph.items()):
            print(f"{room}: {', '.join(sorted(below)) or '-'}")
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{len(files)} Python modules, {len(crates())} crates: {len(wrong)} circles or arrows up")
    return 1 if wrong else 0


def floors_of_page() -> dict[str, tuple[int, set[str]]]:
    """Of each row of the page's tables: the floor, and what the crate or package may import, by last part of its path."""
    rows = re.findall(r"^\| `([\w/]+)` \| (\d) \|\s*([^|]*?)\s*\|", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return {path: (int(floor), set(re.findall(r"`(\w+)`", imports))) for path, floor, imports in rows}


def crates() -> Graph:
    """Of each member of the workspace the crates of ours that it depends on, by last part of their path."""
    members = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["members"]
    return {m: _dependencies(ROOT / m / "Cargo.toml") for m in members}


def _dependencies(manifest: Path) -> set[str]:
    found = tomllib.loads(manifest.read_text("utf-8")).get("dependencies", {})
    return {name.removeprefix("surefoot-") for name in found if name.startswith("surefoot-")}


def rooms(graph: Graph, room: Callable[[str], str]) -> Graph:
    out: Graph = defaultdict(set)
    for file, below in graph.items():
        out[room(file)] |= {room(b) for b in below} - {room(file)}
    return out


def floors(what: str, graph: Graph, at: dict[str, int]) -> list[str]:
    unknown = [
        f"{what} {n}: on no floor. Give it one ({PAGE.relative_to(ROOT)}, scripts/lint/imports.py)" for n in graph if n not in at
    ]
    up = [(n, b) for n, below in graph.items() for b in below if n in at and b in at and at[b] >= at[n]]
    return unknown + [f"{what} {n} uses {b}, which is not below it" for n, b in sorted(up)]


def circles(graph: Graph) -> list[str]:
    """Groups of files that reach each other."""
    reach = {n: _reach(graph, n) for n in graph}
    groups = {frozenset(m for m in graph if m in reach[n] and n in reach[m]) for n in graph if n in reach[n]}
    return sorted(", ".join(sorted(g)) for g in groups)


def _reach(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    todo = [*graph[start]]
    while todo:
        if (n := todo.pop()) not in seen:
            seen.add(n)
            todo += graph.get(n, ())
    return seen


class Crate:
    """Files of a crate by their module, and what each of them names."""

    def __init__(self, src: Path) -> None:
        self.files: dict[tuple[str, ...], Path] = {}
        for p in sorted(src.rglob("*.rs")):
            parts = p.relative_to(src).with_suffix("").parts
            # a binary is a crate of its own
            if parts != ("main",) and not parts[-1].endswith("tests") and parts[0] != "bin":
                self.files[parts[:-1] if parts[-1] in ("mod", "lib") else parts] = p
        self.src = src
        self.text = {m: _code(p.read_text("utf-8")) for m, p in self.files.items()}
        self.passed_on = {m: dict(self._passed_on(m)) for m in self.files}

    def graph(self) -> Graph:
        name = {m: str(p.relative_to(self.src)) for m, p in self.files.items()}
        # What a folder's mod.rs defines, its files carry out: they may look up to it.
        door = {m for m, p in self.files.items() if p.name == "mod.rs"}
        named = {m: {t for t in self._named(m) if not (t in door and t == m[: len(t)])} for m in self.files}
        return {name[m]: {name[t] for t in named[m]} - {name[m]} for m in self.files}

    def _passed_on(self, m: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
        for tree in re.findall(r"\bpub(?:\([^)]*\))? use ([^;]+);", self.text[m]):
            for path in _tree(tree):
                if (full := self._absolute(m, path)) and full[-1] != "*":
                    yield full[-1], full

    def _named(self, m: tuple[str, ...]) -> set[tuple[str, ...]]:
        text = re.sub(r"\bpub(?:\([^)]*\))? use [^;]+;", "", self.text[m])
        paths = [p for t in re.findall(r"\buse ([^;]+);", text) for p in _tree(t)]
        text = re.sub(r"\buse [^;]+;", "", text)
        paths += [p.split("::") for p in re.findall(r"(?<![\w:])[a-z_]\w*(?:::\w+)+", text)]
        return {t for p in paths if (full := self._absolute(m, p)) is not None and (t := self._file(full)) is not None}

    def _absolute(self, m: tuple[str, ...], path: list[str]) -> tuple[str, ...] | None:
        if path[0] == "crate":
            return tuple(path[1:])
        if path[0] in ("self", "super"):
            at = m
            while path and path[0] in ("self", "super"):
                at, path = (at[:-1] if path[0] == "super" else at), path[1:]
            return (*at, *path)
        return (*m, *path) if (*m, path[0]) in self.files else None

    def _file(self, path: tuple[str, ...], depth: int = 0) -> tuple[str, ...] | None:
        at: tuple[str, ...] = ()
        for n, part in enumerate(path):
            if (*at, part) in self.files:
                at = (*at, part)
            elif (to := self.passed_on.get(at, {}).get(part)) and depth < 8:
                return self._file((*to, *path[n + 1 :]), depth + 1)
            else:
                break
        return at if at in self.files else None


def _code(text: str) -> str:
    """Without comments, texts and test modules."""
    text = re.sub(r'//[^\n]*|"(?:\\.|[^"\\])*"', "", text)
    while found := re.search(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))? )?mod \w+\s*\{", text):
        end, depth = found.end(), 1
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + text[end:]
    return re.sub(r"#\[cfg\(test\)\]\s*use [^;]+;", "", text)


def _tree(text: str) -> Iterable[list[str]]:
    """The paths of a use tree."""
    text = re.sub(r"\s+as\s+\w+", "", text)
    text = re.sub(r"\s", "", text)
    head, brace, rest = text.partition("{")
    start = [p for p in head.split("::") if p]
    if not brace:
        yield start
        return
    depth, item = 0, ""
    for c in rest[: rest.rindex("}")] + ",":
        depth += {"{": 1, "}": -1}.get(c, 0)
        if c == "," and depth == 0:
            if item:
                yield from ([*start, *p] if p != ["self"] else start for p in _tree(item))
            item = ""
        else:
            item += c


def python() -> Graph:
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for d in PACKAGES for p in sorted((ROOT / d).rglob("*.py"))}
    modules = {n.removesuffix(".__init__"): p for n, p in modules.items()}
    return {name: set(_imports(name, p, modules)) - {name} for name, p in modules.items()}


def _imports(name: str, file: Path, modules: dict[str, Path]) -> Iterator[str]:
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in modules)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for a in node.names:
                found = f"{base}.{a.name}" if f"{base}.{a.name}" in modules else base
                if found in modules:
                    yield found


if __name__ == "__main__":
    sys.exit(main("--draw" in sys.argv[1:]))
