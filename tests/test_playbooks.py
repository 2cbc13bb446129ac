"""The playbooks as files: syntax, and that every role says what it takes. What they do: tests/trial_playbooks.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PLAYBOOKS = Path(__file__).parent.parent / "playbooks"
ROLES = sorted(p.name for p in (PLAYBOOKS / "roles").iterdir())
KINDS = {"str": str, "path": str, "int": int, "bool": bool, "list": list, "dict": dict}


def test_syntax() -> None:
    """Ansible reads every playbook with its roles, and the example inventory."""
    files = sorted(p.name for p in PLAYBOOKS.glob("*.yml"))
    assert files == ["collect.yml", "deploy.yml", "fetch.yml", "onboard.yml", "prepare.yml", "teardown.yml"]
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "--syntax-check", "-i", "inventories/example", *files]
    env = {**os.environ, "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg")}
    done = subprocess.run(command, cwd=PLAYBOOKS, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("role", ROLES)
def test_arguments_are_described_and_defaults_agree(role: str) -> None:
    """Every variable of a role has a type and a description; its default is that of defaults/main.yml, of that type."""
    folder = PLAYBOOKS / "roles" / role
    options = yaml.safe_load((folder / "meta" / "argument_specs.yml").read_text("utf-8"))["argument_specs"]["main"]["options"]
    defaults = yaml.safe_load((folder / "defaults" / "main.yml").read_text("utf-8"))
    assert {n for n, o in options.items() if not o.get("required")} == set(defaults)
    for name, option in options.items():
        assert name.startswith(f"{role}_")
        assert option["description"].endswith(".")
        if name in defaults:
            assert option["default"] == defaults[name], name
            assert isinstance(defaults[name], KINDS[option["type"]]), name
    assert (folder / "README.md").read_text("utf-8").startswith(f"# {role}\n")


def test_programs_of_targets_are_standard_library_only() -> None:
    """A target has Python and nothing else."""
    for program in (PLAYBOOKS / "module_utils" / "surefoot_hoststate.py", PLAYBOOKS / "roles/programs/files/surefoot_sweep.py"):
        command = [sys.executable, "-I", "-S", str(program), "--help"]
        assert subprocess.run(command, capture_output=True).returncode == 0, program
