"""What the project depends on: listed with a reason, under licences that go with Apache-2.0, from one registry."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "decisions" / "dependencies.md"
# Crates outside of scheduler/.
ELSEWHERE = (ROOT / "workloads/loadgen/Cargo.toml", ROOT / "python/Cargo.toml")


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "lint" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = module  # dataclasses look for their module there
    spec.loader.exec_module(module)
    return module


audit = script()


def section(title: str) -> str:
    return PAGE.read_text("utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """Rows of the tables of a section, without heads."""
    found = [line.strip("| ").split(" | ") for line in section(title).splitlines() if line.startswith("| ")]
    return [row for row in found if row[0].startswith("`")]


def manifests() -> list[dict[str, Any]]:
    files = [ROOT / "Cargo.toml", *sorted(ROOT.glob("scheduler/*/Cargo.toml")), *ELSEWHERE]
    return [tomllib.loads(file.read_text()) for file in files]


def crates() -> dict[str, Any]:
    """Direct dependencies on other people's crates, with what is asked of them."""
    found: dict[str, Any] = {}
    for manifest in manifests():
        tables = [manifest, manifest.get("workspace", {}), *manifest.get("target", {}).values()]
        for table in tables:
            for kind in ("dependencies", "dev-dependencies", "build-dependencies"):
                for name, wanted in table.get(kind, {}).items():
                    if not name.startswith("surefoot-") and wanted != {"workspace": True}:
                        found.setdefault(name, []).append(wanted)
    return found


def test_every_crate_has_its_reason() -> None:
    """The page lists exactly the direct dependencies of the workspace and of the fuzz targets, in order, each with a reason."""
    listed = rows("Rust")
    names = [name.strip("`") for name, *_ in listed]
    assert names == sorted(crates())
    assert all(len(why) == 1 and len(why[0]) > 10 for _, *why in listed)


def test_crates_are_used() -> None:
    """What a crate asks for it names in its code: a dependency that nobody calls is removed."""
    for manifest in [*sorted(ROOT.glob("scheduler/*/Cargo.toml")), *ELSEWHERE]:
        code = "".join(file.read_text("utf-8") for file in manifest.parent.rglob("*.rs"))
        table = tomllib.loads(manifest.read_text())
        for kind in ("dependencies", "dev-dependencies"):
            for name in table.get(kind, {}):
                word = name.replace("-", "_")
                used = re.search(rf"\b{word}\b(?:::|!)|\buse {word}\b", code)
                assert used, f"{manifest.relative_to(ROOT)}: {name}"


def test_every_python_package_has_its_reason() -> None:
    """The page lists exactly the direct dependencies of pyproject.toml, with the groups that they are of."""
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, alone = whole["project"], whole["dependency-groups"]
    groups: dict[str, set[str]] = {}
    for group, wanted in {"always": project["dependencies"], **project["optional-dependencies"], **alone}.items():
        for requirement in wanted:
            name = re.match(r"[A-Za-z0-9._-]+", requirement)
            assert name
            groups.setdefault(audit.normal(name[0]), set()).add(group)
    listed = rows("Python")
    assert [row[0].strip("`") for row in listed] == sorted(groups)
    assert {row[0].strip("`"): set(row[1].split(", ")) for row in listed} == groups
    assert all(len(row[2]) > 3 for row in listed)


def test_crates_are_locked_to_one_registry() -> None:
    """Every crate that is not ours comes from the same registry, with a checksum, and none is asked for in any version."""
    sources = set()
    for lock in (ROOT / "Cargo.lock", ROOT / "scheduler/fuzz/Cargo.lock"):
        for package in tomllib.loads(lock.read_text())["package"]:
            if "source" in package:
                sources.add(package["source"])
                assert re.fullmatch(r"[0-9a-f]{64}", package["checksum"]), package["name"]
            else:
                assert package["name"].startswith("surefoot"), package["name"]
    assert len(sources) == 1
    assert next(iter(sources)).startswith("registry+")
    for name, wanted in crates().items():
        for spec in (w for w in wanted if isinstance(w, str) or "workspace" not in w):
            version = spec if isinstance(spec, str) else spec.get("version", "")
            assert re.match(r"=?\d", version), name


def test_python_packages_are_locked_with_hashes() -> None:
    """Every line of a lock file names one version, and every version its hashes; none names an index."""
    for lock in (ROOT / name for name in audit.LOCKS):
        entries = re.split(r"\n(?=[A-Za-z0-9])", lock.read_text())
        pinned = [e for e in entries if re.match(r"[A-Za-z0-9._-]+==", e)]
        assert len(pinned) > (10 if lock.suffix == ".lock" and lock.stem != "requirements-pages" else 0), lock
        assert all("--hash=sha256:" in e for e in pinned)
        assert "--index-url" not in "".join(e for e in entries if not e.startswith("#"))


def test_licences_go_with_apache_2() -> None:
    """Each crate that ships and each Python package that is installed has a licence of the list, or is explained."""
    check = audit.licences()
    assert check.found == []
    assert check.undone == []
    assert set(audit.explained()) <= audit.locked(ROOT / "requirements.lock")


def test_what_is_ignored_is_explained() -> None:
    """An advisory that deny.toml passes over is in the page with a reason, and the other way round."""
    ignored = {entry["id"] for entry in tomllib.loads((ROOT / "deny.toml").read_text())["advisories"]["ignore"]}
    told = set(re.findall(r"^\| (RUSTSEC-\d{4}-\d{4}) \|", section("What is known"), re.MULTILINE))
    assert ignored == told
    locked = (ROOT / "Cargo.lock").read_text()
    for name, version in re.findall(r"^\| RUSTSEC\S+ \| `([a-z0-9-]+)` ([0-9.]+) ", section("What is known"), re.MULTILINE):
        assert f'name = "{name}"\nversion = "{version}"' in locked


@pytest.mark.parametrize(
    ("expression", "good"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT AND Apache-2.0", True),
        ("(GPL-3.0-only OR MIT) AND (Apache-2.0 OR LGPL-2.1)", True),
        ("(GPL-3.0-only OR MIT) AND LGPL-2.1", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-2.0 WITH Classpath-exception-2.0", False),
        ("MIT/Apache-2.0", True),
        ("GPL-2.0/LGPL-2.1", False),
        ("", False),
        ("MIT OR", True),
        ("MIT MIT", False),
    ],
)
def test_expressions_are_read_as_spdx(expression: str, good: bool) -> None:
    """OR leaves a choice, AND does not, WITH belongs to its licence; what says nothing permits nothing."""
    assert audit.permits(expression, audit.allowed()) == good


# ---------------------------------------------------------------- make audit


def tools(at: Path, deny: str, pip: str) -> dict[str, str]:
    """Stand-ins for both tools: shell text that says and does what they would."""
    for name, text in (("cargo-deny", deny), ("pip-audit", pip)):
        (at / name).write_text(f"#!/bin/sh\n{text}\n")
        (at / name).chmod(0o755)
    return {**os.environ, "AUDIT_TOOLS": str(at)}


def known(*packages: dict[str, Any]) -> str:
    return f"echo '{json.dumps({'dependencies': list(packages)})}'"


SAFE = {"name": "numpy", "version": "2.4.0", "vulns": []}
BAD = {"name": "jinja2", "version": "3.1.6", "vulns": [{"id": "PYSEC-1"}]}
UNKNOWN = {"name": "torch", "skip_reason": "Dependency not found and could not be audited"}
NO_DATABASE = 'case "$*" in *fetch*) echo "error: failed to fetch" >&2; exit 1;; esac'
UNMAINTAINED = 'case "$*" in *advisories*) echo "error[unmaintained]: paste" >&2; exit 1;; esac'


@pytest.mark.parametrize(
    ("deny", "pip", "code", "says"),
    [
        ("exit 0", known(SAFE), 0, "nothing was found"),
        # pip-audit calls this success
        ("exit 0", known(SAFE, UNKNOWN), 3, "1 of 2 packages: nothing is known of them here (torch)"),
        ("exit 0", known(), 3, "0 of 0 packages"),
        ("exit 0", "echo 'connection refused' >&2; exit 1", 3, "connection refused"),
        ("exit 0", f"{known(SAFE, BAD)}; exit 1", 1, "jinja2 3.1.6: PYSEC-1"),
        (NO_DATABASE, known(SAFE), 3, "the RustSec database cannot be had: error: failed to fetch"),
        (UNMAINTAINED, known(UNKNOWN), 1, "workspace: error[unmaintained]: paste"),
    ],
)
def test_an_audit_that_could_not_look_is_no_success(tmp_path: Path, deny: str, pip: str, code: int, says: str) -> None:
    """0 only where all was looked at and nothing found; what was found, and what was not looked at, is said."""
    command = [sys.executable, str(ROOT / "scripts" / "lint" / "audit.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=tools(tmp_path, deny, pip), check=False)
    assert (done.returncode, says in done.stdout) == (code, True), done.stdout + done.stderr
    assert ("INCOMPLETE" in done.stdout) == (code == 3)


def test_an_audit_without_tools_is_no_success(tmp_path: Path) -> None:
    env = {**os.environ, "AUDIT_TOOLS": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "lint" / "audit.py")], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 3
    assert "cargo-deny is not there" in done.stdout
    assert "pip-audit is not there" in done.stdout
