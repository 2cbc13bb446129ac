"""Audits what the project depends on (docs/decisions/dependencies.md): licences, sources, advisories, known vulnerabilities.

    make audit

Whatever could not be looked at is said, and is no success. Exit code: 0 all was looked at and nothing found; 1 something was
found; 3 nothing was found, but not all could be looked at.

The tools are those on PATH in these versions, or are installed below target/audit. AUDIT_TOOLS names a folder to take them from
instead. A copy of the RustSec database that git can clone may be named with AUDIT_ADVISORY_DB.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "target" / "audit"
CARGO_DENY, PIP_AUDIT = "0.20.2", "2.10.1"
WORKSPACES = {"workspace": ROOT, "fuzz": ROOT / "scheduler" / "fuzz"}
LOCKS = (
    "requirements.lock",
    "requirements-spark.lock",
    "requirements-pages.lock",
    "requirements-site.lock",
    "packaging/requirements-dist.txt",
    "packaging/requirements-lab.txt",
)
DATABASE = "https://github.com/RustSec/advisory-db"
OK, FOUND, NOT_DONE = 0, 1, 3

# Beside those of deny.toml: weak copyleft that ends at the file, and Python's own.
PYTHON_ALSO = {"CC0-1.0", "ISC", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "ZPL-2.1"}
# What packages without an SPDX expression call their licence.
NAMES = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "Zope Public License": "ZPL-2.1",
}


class NotDone(RuntimeError):
    """A check that could not be made; the message says why."""


@dataclass
class Check:
    """What became of one check."""

    name: str
    found: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)

    def state(self) -> int:
        return FOUND if self.found else NOT_DONE if self.undone else OK


# ---------------------------------------------------------------- licences, from what is on this machine


def allowed() -> set[str]:
    """SPDX names that deny.toml lets through."""
    names: list[str] = tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"]
    return set(names)


def permits(expression: str, names: set[str]) -> bool:
    """Whether an SPDX expression leaves a choice among these names; `/` is an old way to write OR."""
    words = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))
    at = 0

    def either() -> bool:
        nonlocal at
        good = both()
        while at < len(words) and words[at] == "OR":
            at += 1
            good = both() or good
        return good

    def both() -> bool:
        nonlocal at
        good = one()
        while at < len(words) and words[at] == "AND":
            at += 1
            good = one() and good
        return good

    def one() -> bool:
        nonlocal at
        if at >= len(words):
            return False
        word = words[at]
        at += 1
        if word == "(":
            good = either()
            at += 1
            return good
        while at + 1 < len(words) and words[at] == "WITH":
            word += f" WITH {words[at + 1]}"
            at += 2
        return word in names

    return bool(words) and either() and at == len(words)


def rust_licences() -> Iterator[tuple[str, str]]:
    """Crates that are built into what ships, and their licences: `cargo build` has fetched them all."""
    listed = [
        "cargo",
        "tree",
        "--workspace",
        "--locked",
        "--offline",
        "--edges",
        "no-dev",
        "--target",
        "x86_64-unknown-linux-gnu",
    ]
    done = subprocess.run(
        [*listed, "--prefix", "none", "--format", "{p}|{l}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotDone(f"cargo tree: {last_line(done.stderr)}")
    for line in sorted(set(done.stdout.replace(" (*)", "").splitlines())):
        name, _, licence = line.partition("|")
        if name:
            yield name, licence


def locked(lock: Path) -> set[str]:
    """Names in a lock file, normalised."""
    names = re.findall(r"^([A-Za-z0-9._-]+)==", lock.read_text(), re.MULTILINE)
    return {normal(name) for name in names}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def python_licences() -> Iterator[tuple[str, str]]:
    """Packages of requirements.lock that are installed here, and their licences as SPDX; what says nothing has ''."""
    wanted = locked(ROOT / LOCKS[0])
    for package in sorted(metadata.distributions(), key=lambda d: normal(d.name)):
        if normal(package.name) in wanted:
            yield normal(package.name), licence_of(package.metadata)


def licence_of(about: Any) -> str:
    """From an expression, else from classifiers, else from the first line of the text."""
    if expression := about.get("License-Expression"):
        return str(expression)
    last = [c.split(" :: ")[-1] for c in about.get_all("Classifier") or [] if c.startswith("License :: ")]
    if said := [NAMES.get(c, c) for c in last if c != "OSI Approved"]:
        return " AND ".join(said)
    first = (about.get("License") or "").strip().split("\n")[0]
    return NAMES.get(first, first)


def beyond(packages: Iterator[tuple[str, str]], names: set[str]) -> list[tuple[str, str]]:
    """Those whose licence is none of these."""
    return [(name, licence) for name, licence in packages if not permits(licence, names)]


def explained() -> dict[str, str]:
    """Packages whose licence the page explains, with the licence named there."""
    page = (ROOT / "docs" / "decisions" / "dependencies.md").read_text("utf-8")
    part = page.partition("## Licences beyond the list\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([a-z0-9-]+)` \| ([^|]+?) \|", part, re.MULTILINE))


def licences() -> Check:
    check = Check("licences of what is installed here")
    try:
        check.found += [f"{name}: {licence or 'says nothing'}" for name, licence in beyond(rust_licences(), allowed())]
    except NotDone as why:
        check.undone.append(f"crates: {why}")
    known = explained()
    for name, licence in beyond(python_licences(), allowed() | PYTHON_ALSO):
        if name not in known:
            check.found.append(f"{name}: {licence or 'says nothing'}; not in docs/decisions/dependencies.md")
    return check


# ---------------------------------------------------------------- tools


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no word"


def run(command: Sequence[str | Path], cwd: Path = ROOT, timeout_s: int = 1800, **env: str) -> subprocess.CompletedProcess[str]:
    shown = Path(str(command[0])).name
    try:
        return subprocess.run(
            list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=timeout_s, env=os.environ | env, check=False
        )
    except FileNotFoundError:
        raise NotDone(f"{shown} is not there") from None
    except subprocess.TimeoutExpired:
        raise NotDone(f"{shown} did not end within {timeout_s} s") from None


def tool(name: str, version: str, install: Callable[[], Path]) -> Path:
    """A tool in its version: given, on PATH, installed here before, or installed now."""
    if given := os.environ.get("AUDIT_TOOLS"):
        return Path(given) / name
    for place in (name, PLACE / "bin" / name, PLACE / "venv" / "bin" / name):
        try:
            if version in run([place, "--version"]).stdout:
                return Path(place)
        except NotDone:
            continue
    print(f"audit: installing {name} {version} below {PLACE.relative_to(ROOT)}", flush=True)
    return install()


def cargo_deny() -> Path:
    def install() -> Path:
        done = run(["cargo", "install", "--quiet", "--locked", "--version", f"={CARGO_DENY}", "--root", PLACE, "cargo-deny"])
        if done.returncode:
            raise NotDone(f"cargo-deny {CARGO_DENY} cannot be installed: {last_line(done.stderr)}")
        return PLACE / "bin" / "cargo-deny"

    return tool("cargo-deny", CARGO_DENY, install)


def pip_audit() -> Path:
    def install() -> Path:
        for command in (
            [sys.executable, "-m", "venv", PLACE / "venv"],
            [PLACE / "venv/bin/pip", "install", "--quiet", f"pip-audit=={PIP_AUDIT}"],
        ):
            done = run(command)
            if done.returncode:
                raise NotDone(f"pip-audit {PIP_AUDIT} cannot be installed: {last_line(done.stderr)}")
        return PLACE / "venv" / "bin" / "pip-audit"

    return tool("pip-audit", PIP_AUDIT, install)


# ---------------------------------------------------------------- cargo-deny, pip-audit

# The list is the product's: the fuzz targets need not use all of it.
_NOT_ALL = ("--allow", "license-not-encountered", "--allow", "advisory-not-detected")


def deny(check: Check, what: Sequence[str], *before: str, **env: str) -> None:
    """`cargo deny check` in each workspace."""
    program = cargo_deny()
    for name, folder in WORKSPACES.items():
        command = [program, "--locked", "--config", ROOT / "deny.toml", *before, "check", *what]
        done = run([*command, *(_NOT_ALL if name == "fuzz" else ())], folder, **env)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("error")] or [last_line(done.stderr)]
            check.found += [f"{name}: {line}" for line in said]


def bans() -> Check:
    check = Check("cargo-deny: licences, bans, sources")
    deny(check, ("licenses", "bans", "sources"))
    return check


def advisories() -> Check:
    check = Check("cargo-deny: advisories, unmaintained and yanked crates")
    env = {}
    if given := os.environ.get("AUDIT_ADVISORY_DB"):
        env = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{given}.insteadOf", "GIT_CONFIG_VALUE_0": DATABASE}
    env["GIT_TERMINAL_PROMPT"] = "0"
    fetched = run([cargo_deny(), "--locked", "--config", ROOT / "deny.toml", "fetch", "db"], timeout_s=300, **env)
    if fetched.returncode:
        raise NotDone(f"the RustSec database cannot be had: {last_line(fetched.stderr)}. Name a copy with AUDIT_ADVISORY_DB")
    deny(check, ("advisories",), **env)
    return check


def vulnerabilities() -> Check:
    """Packages that the service knows nothing of are not looked at, whatever pip-audit's exit code says."""
    check = Check("pip-audit: known vulnerabilities")
    program = pip_audit()
    for lock in LOCKS:
        listed = ["-r", ROOT / lock, "--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
        done = run([program, *listed])
        try:
            packages = json.loads(done.stdout)["dependencies"]
        except (ValueError, KeyError, TypeError):
            check.undone.append(f"{lock}: {last_line(done.stderr)}")
            continue
        skipped = [p["name"] for p in packages if "skip_reason" in p]
        for package in packages:
            ids = ", ".join(v["id"] for v in package.get("vulns", []))
            if ids:
                check.found.append(f"{lock}: {package['name']} {package['version']}: {ids}")
        if skipped or not packages:
            shown = ", ".join(skipped[:3]) + (", ..." if len(skipped) > 3 else "")
            check.undone.append(f"{lock}: {len(skipped)} of {len(packages)} packages: nothing is known of them here ({shown})")
    return check


CHECKS: tuple[Callable[[], Check], ...] = (licences, bans, advisories, vulnerabilities)


def main() -> int:
    states = []
    for make in CHECKS:
        try:
            check = make()
        except NotDone as why:
            name = {bans: "cargo-deny: licences, bans, sources", advisories: "cargo-deny: advisories"}.get(make, make.__name__)
            check = Check(name, undone=[str(why)])
        states.append(check.state())
        said = {OK: "ok", FOUND: "FOUND", NOT_DONE: "NOT DONE"}[states[-1]]
        print(f"audit: {check.name}: {said}", flush=True)
        for line in check.found:
            print(f"  found: {line}")
        for line in check.undone:
            print(f"  not looked at: {line}")
    worst = FOUND if FOUND in states else NOT_DONE if NOT_DONE in states else OK
    print(
        {
            OK: "audit: nothing was found",
            FOUND: "audit: see what was found",
            NOT_DONE: "audit: INCOMPLETE: not all could be looked at",
        }[worst]
    )
    return worst


if __name__ == "__main__":
    sys.exit(main())
