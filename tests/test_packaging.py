"""What the packages of the node put on a host: manual pages, completions, the kit for Prometheus; after removal nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from collection import tools

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The archive, laid out as `make dist` does, and a root that its install.sh has filled: the Debian package is that."""
    folder = tmp_path_factory.mktemp("dist")
    stage, root = folder / "stage", folder / "root"
    binaries = tools.find(tools.SUREFOOTD).parent
    subprocess.run([str(ROOT / "scripts/dist/stage.sh"), str(stage), str(binaries)], cwd=ROOT, check=True)
    subprocess.run([str(stage / "install.sh"), "--root", str(root)], check=True, capture_output=True)
    return stage, root


def commands() -> list[str]:
    """Commands that --help shows."""
    told = subprocess.run([str(tools.find(tools.SUREFOOTD)), "--help"], check=True, capture_output=True, text=True).stdout
    lines = told.partition("\nCommands:\n")[2].partition("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]


def test_every_command_has_its_manual_page(host: tuple[Path, Path]) -> None:
    """`man surefootd` and `man surefootd-COMMAND` are there for each command that --help shows."""
    pages = {p.name for p in (host[1] / "usr/share/man/man1").iterdir()}
    assert len(commands()) > 10
    assert {f"surefootd-{c}.1" for c in commands() if c != "help"} | {"surefootd.1"} <= pages
    assert all(p.startswith("surefootd") for p in pages)


def test_bash_completes_commands_and_options(host: tuple[Path, Path]) -> None:
    """The installed file makes bash complete a command, and an option of a command."""
    file = host[1] / "usr/share/bash-completion/completions/surefootd"

    def completed(*words: str) -> set[str]:
        script = f'source "{file}"; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; '
        script += f'_surefootd surefootd "{words[-1]}" "{words[-2]}"; printf "%s\\n" "${{COMPREPLY[@]}}"'
        return set(subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout.split())

    assert completed("surefootd", "rep") == {"replay"}
    assert completed("surefootd", "check", "--write") == {"--write-platform"}


def test_the_kit_is_in_the_package(host: tuple[Path, Path]) -> None:
    """Zsh and fish have their files, and the documents come with the files of Prometheus and Grafana."""
    share = host[1] / "usr/share"
    assert (share / "zsh/vendor-completions/_surefootd").read_text().startswith("#compdef surefootd")
    assert "complete -c surefootd" in (share / "fish/vendor_completions.d/surefootd.fish").read_text()
    kit = share / "doc/surefoot/monitoring"
    assert {p.name for p in kit.iterdir()} == {p.name for p in (ROOT / "examples/monitoring").iterdir()}


def test_nothing_is_left(host: tuple[Path, Path]) -> None:
    """install.sh --purge takes all of it away."""
    stage, root = host
    assert any(root.rglob("*surefoot*"))
    subprocess.run([str(stage / "install.sh"), "--purge", "--root", str(root)], check=True, capture_output=True)
    assert [p for p in root.rglob("*") if p.is_file()] == []
