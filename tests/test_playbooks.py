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
    assert files == ["collect.yml", "deploy.yml", "fetch.yml", "onboard.yml", "plan.yml", "prepare.yml", "teardown.yml"]
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


def play(tmp_path: Path, tasks: list[dict[str, object]], **variables: object) -> subprocess.CompletedProcess[str]:
    """Carry out tasks here, as Ansible would on a host."""
    book = [
        {
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "vars": {**variables, "ansible_python_interpreter": sys.executable},
            "tasks": tasks,
        }
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(book))
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", str(tmp_path / "play.yml")]
    env = {**os.environ, "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"), "ANSIBLE_ROLES_PATH": str(PLAYBOOKS / "roles")}
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)


@pytest.mark.parametrize(
    ("name", "text", "good"),
    [
        ("lab.pub.pem", "-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n", True),
        ("signing.pem", "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n", False),
        ("signing.pub.pem", "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n", False),
        ("lab.pem", "-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n", False),
    ],
)
def test_only_a_public_key_is_deployed(tmp_path: Path, name: str, text: str, good: bool) -> None:
    """A signing key never leaves the lab, and a key that the daemon would not read is refused before anything is installed."""
    (tmp_path / name).write_text(text)
    check = {"ansible.builtin.include_role": {"name": "deploy", "tasks_from": "check"}}
    done = play(tmp_path, [check], deploy_key=str(tmp_path / name), deploy_package="x", deploy_config="x")
    assert (done.returncode == 0) == good, done.stdout + done.stderr
    assert good or "is no public key named *.pub.pem" in done.stdout


@pytest.mark.parametrize("allowed", [False, True])
def test_the_way_back_is_an_option_of_the_daemon(tmp_path: Path, allowed: bool) -> None:
    """`deploy_allow_older` becomes --allow-older, and is off unless given."""
    template = {"src": str(PLAYBOOKS / "roles/deploy/templates/surefootd.env.j2"), "dest": str(tmp_path / "env"), "mode": "0644"}
    given = {"deploy_policy": "osml-plus", "deploy_bundle": "b.tar", "deploy_allow_older": allowed}
    done = play(tmp_path, [{"ansible.builtin.template": template}], **given)
    assert done.returncode == 0, done.stdout + done.stderr
    option = " --allow-older" if allowed else ""
    assert (tmp_path / "env").read_text().splitlines() == [
        "SUREFOOT_POLICY=osml-plus",
        f"SUREFOOT_OPTIONS=--bundle /etc/surefoot/bundle.tar{option}",
    ]


def test_programs_of_targets_are_standard_library_only() -> None:
    """A target has Python and nothing else."""
    for program in (PLAYBOOKS / "module_utils" / "surefoot_hoststate.py", PLAYBOOKS / "roles/programs/files/surefoot_sweep.py"):
        command = [sys.executable, "-I", "-S", str(program), "--help"]
        assert subprocess.run(command, capture_output=True).returncode == 0, program
