"""The playbooks as files: syntax, and that every role says what it takes. What they do: tests/trial_playbooks.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from collection import tools

PLAYBOOKS = Path(__file__).parent.parent / "playbooks"
BOOKS = sorted(p.name for p in PLAYBOOKS.glob("*.yml") if p.name != "galaxy.yml")
ROLES = sorted(p.name for p in (PLAYBOOKS / "roles").iterdir())
KINDS = {"str": str, "path": str, "int": int, "bool": bool, "list": list, "dict": dict}


def test_syntax() -> None:
    """Ansible reads every playbook with its roles, and the example inventory."""
    assert BOOKS == ["collect.yml", "deploy.yml", "fetch.yml", "onboard.yml", "plan.yml", "prepare.yml", "teardown.yml"]
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "--syntax-check", "-i", "inventories/example", *BOOKS]
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


def test_each_role_is_tried_on_a_host() -> None:
    """A role without a trial (make test-playbooks, make test-kit) fails here, and so does a trial that is gone."""
    text = "".join((Path(__file__).parent / name).read_text("utf-8") for name in ("trial_playbooks.py", "trial_kit.py"))
    tried = dict(re.findall(r'^    "(\w+)": "(test_\w+)",', text, re.MULTILINE))
    assert sorted(tried) == ROLES
    assert [test for test in tried.values() if f"\ndef {test}(" not in text] == []


def test_tables_of_arguments_are_current() -> None:
    """The README of each role has the table that its argument specs come to; a table that is not current is named."""
    sys.path.insert(0, str(PLAYBOOKS.parent / "scripts" / "lint"))
    import role_readmes

    for role in ROLES:
        readme = PLAYBOOKS / "roles" / role / "README.md"
        assert role_readmes.current(readme) == readme.read_text("utf-8"), f"{role}: run scripts/lint/role_readmes.py"
    one = role_readmes.row(
        "a_b", {"type": "list", "elements": "str", "default": ["x"], "description": "A | b.", "choices": ["x"]}
    )
    assert one == "| `a_b` | list of str | `[x]` | A \\| b. One of `x`. |\n"
    assert role_readmes.row("a_b", {"type": "str", "required": True, "description": "C."}) == "| `a_b` | str | required | C. |\n"


@pytest.mark.parametrize("role", ROLES)
def test_the_example_of_a_role_can_be_copied(role: str) -> None:
    """The README's example calls the role by the collection's name, gives all that is required, and nothing that there is not."""
    text = (PLAYBOOKS / "roles" / role / "README.md").read_text("utf-8")
    (example,) = re.findall(r"^## Example\n\n```yaml\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    (book,) = yaml.safe_load(example)
    called = {r["role"].removeprefix("surefoot.hosts."): r["vars"] for r in book["roles"]}
    assert role in called
    for name, given in called.items():
        specs = yaml.safe_load((PLAYBOOKS / "roles" / name / "meta" / "argument_specs.yml").read_text("utf-8"))
        options = specs["argument_specs"]["main"]["options"]
        assert set(given) <= set(options)
        assert {n for n, o in options.items() if o.get("required")} <= set(given)


def test_the_collection_works_from_where_it_is_installed(tmp_path: Path) -> None:
    """The collection is built and installed; playbooks are found by their names, and the module finds the code that it shares."""
    root = PLAYBOOKS.parent
    version = re.search(r'^version = "(.*)"$', (root / "Cargo.toml").read_text("utf-8"), flags=re.MULTILINE)
    assert version
    assert yaml.safe_load((PLAYBOOKS / "galaxy.yml").read_text("utf-8"))["version"] == version[1]
    at = Path(sys.executable).parent
    env = {
        **os.environ,
        "PATH": f"{at}:{os.environ['PATH']}",
        "ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "c"),
        "HOME": str(tmp_path),
    }
    env.pop("ANSIBLE_CONFIG", None)

    def do(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    do(str(root / "scripts/dist/collection.sh"), str(tmp_path))
    archive = tmp_path / f"surefoot-hosts-{version[1]}.tar.gz"
    do("ansible-galaxy", "collection", "install", "--offline", str(archive), "-p", str(tmp_path / "c"))
    books = [f"surefoot.hosts.{name.removesuffix('.yml')}" for name in BOOKS]
    assert do("ansible-playbook", "--syntax-check", "-i", "localhost,", *books).count("playbook: ") == len(books)
    installed = tmp_path / "c/ansible_collections/surefoot/hosts"
    assert (installed / "roles/programs/../../plugins/module_utils/surefoot_hoststate.py").is_file()
    task = f"state=restored dir={tmp_path}/none root={tmp_path}"
    said = do("ansible", "localhost", "--check", "-m", "surefoot.hosts.surefoot_host_state", "-a", task)
    assert said.startswith("localhost | SUCCESS"), said


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
    given = {"deploy_policy": "osml-plus", "deploy_bundle": "b.tar", "deploy_allow_older": allowed, "deploy_dir": "/etc/surefoot"}
    done = play(tmp_path, [{"ansible.builtin.template": template}], **given)
    assert done.returncode == 0, done.stdout + done.stderr
    option = " --allow-older" if allowed else ""
    assert (tmp_path / "env").read_text().splitlines() == [
        "SUREFOOT_POLICY=osml-plus",
        f"SUREFOOT_OPTIONS=--bundle /etc/surefoot/bundle.tar{option}",
    ]


VECTORS = Path(__file__).parent / "vectors"
NODE = """\
[[service]]
service = "web"
kind = "lc"
qos_target_ms = 10.0
cgroup = "/system.slice/web.service"
"""


def deploy(tmp_path: Path, tasks: list[str], *, bundle: bytes | None = None, key: Path | None = None, node: str = NODE) -> str:
    """Try to deploy into a folder that has a configuration already; what Ansible said, with "FAILED" if it failed."""
    folder = tmp_path / "node"
    (folder / "keys" / "trusted").mkdir(parents=True)
    for name in ("node.toml", "bundle.tar", "surefootd.env"):
        (folder / name).write_text("old", "utf-8")
    (tmp_path / "new.toml").write_text(node, "utf-8")
    (tmp_path / "new.tar").write_bytes((VECTORS / "bundle-small.tar").read_bytes() if bundle is None else bundle)
    steps: list[dict[str, object]] = [
        {"ansible.builtin.include_role": {"name": "deploy", "tasks_from": name, "rolespec_validate": False}} for name in tasks
    ]
    given = {
        "deploy_dir": str(folder),
        "deploy_surefootd": str(tools.find(tools.SUREFOOTD)),
        "deploy_key": str(key or VECTORS / "keys" / "trusted" / "TEST-ONLY.pub.pem"),
        "deploy_bundle": str(tmp_path / "new.tar"),
        "deploy_config": str(tmp_path / "new.toml"),
        "deploy_package": "none",
        "deploy_policy": "osml-plus",
        "deploy_started": False,
    }
    done = play(tmp_path, steps, **given)
    # long lines are folded there
    return " ".join((done.stdout + done.stderr).split()) + ("FAILED" if done.returncode else "")


def in_force(tmp_path: Path) -> set[str]:
    return {
        p.read_text("utf-8", errors="replace")[:3] for p in (tmp_path / "node").iterdir() if p.name in ("node.toml", "bundle.tar")
    }


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("damaged bundle", "Fetch the bundle again"),
        ("bundle cut off", "bundle"),
        ("another signer", "is not trusted here"),
        ("bad configuration", "unknown field"),
        ("no configuration", "incoming.node.toml"),
    ],
)
def test_what_the_daemon_would_refuse_replaces_nothing(what: str, says: str, tmp_path: Path) -> None:
    """Bundle, signer and configuration are tried on the node; where the daemon would not take one, the old ones stay."""
    good = (VECTORS / "bundle-small.tar").read_bytes()
    key = tmp_path / "other.pub.pem"
    public = Ed25519PrivateKey.generate().public_key()
    key.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    given: dict[str, Any] = {
        "damaged bundle": {"bundle": good[:3000] + b"x" + good[3001:]},
        "bundle cut off": {"bundle": good[:20_000]},
        "another signer": {"key": key},
        "bad configuration": {"node": NODE + "surprise = 1\n"},
        "no configuration": {"node": "[["},
    }[what]
    said = deploy(tmp_path, ["prove", "configure"], **given)
    assert said.endswith("FAILED"), said
    assert says in said
    assert in_force(tmp_path) == {"old"}


@pytest.mark.skipif(os.geteuid() != 0, reason="files of the daemon are root's: run as root")
def test_what_the_daemon_takes_replaces_the_old(tmp_path: Path) -> None:
    """What was tried is what is in force then, and nothing of the trial is left."""
    said = deploy(tmp_path, ["prove", "configure"])
    assert not said.endswith("FAILED"), said
    assert (tmp_path / "node" / "bundle.tar").read_bytes() == (VECTORS / "bundle-small.tar").read_bytes()
    assert (tmp_path / "node" / "node.toml").read_text("utf-8") == NODE
    assert (tmp_path / "node" / "keys" / "trusted" / "TEST-ONLY.pub.pem").exists()
    assert not list((tmp_path / "node").glob("incoming.trial*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="files of the daemon are root's: run as root")
def test_what_was_there_is_put_back(tmp_path: Path) -> None:
    """Where the daemon does not run afterwards, the old files are in force again, what was not there is gone, and it fails."""
    said = deploy(tmp_path, ["prove", "configure", "back"])
    assert said.endswith("FAILED"), said
    assert "What was there before is in force again" in said
    assert in_force(tmp_path) == {"old"}
    assert (tmp_path / "node" / "surefootd.env").read_text("utf-8") == "old"
    assert not (tmp_path / "node" / "keys" / "trusted" / "TEST-ONLY.pub.pem").exists()


@pytest.mark.parametrize("file", BOOKS)
def test_plays_say_what_a_configuration_may_say_otherwise(file: str) -> None:
    """Strategy, facts, user and errors stand in every play: ansible.cfg of a user's own changes none of them."""
    for one in yaml.safe_load((PLAYBOOKS / file).read_text("utf-8")):
        if "ansible.builtin.import_playbook" in one:
            continue
        assert (one["strategy"], one["become_user"], one["any_errors_fatal"]) == ("linear", "root", False)
        assert one["gather_facts"] is (file not in ("fetch.yml", "plan.yml"))
        assert one.get("gather_subset") == (["all"] if one["gather_facts"] else None)


def test_programs_of_targets_are_standard_library_only() -> None:
    """A target has Python and nothing else."""
    for program in (
        PLAYBOOKS / "plugins/module_utils" / "surefoot_hoststate.py",
        PLAYBOOKS / "roles/programs/files/surefoot_sweep.py",
    ):
        command = [sys.executable, "-I", "-S", str(program), "--help"]
        assert subprocess.run(command, capture_output=True).returncode == 0, program
