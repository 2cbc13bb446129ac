"""Call the playbooks through ansible-runner, and hear what they say of each host.

Ansible ships, starts and fetches; it is never in the loop of a case. Connections are the inventory's business: users, keys,
bastions (ProxyJump) and vaulted secrets work as they do with `ansible-playbook`.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.inputs import message, shown

from . import intake, layout
from .errors import CampaignError, ToolFailed, ToolMissing
from .tools import repo_root

FETCH = "fetch.yml"
# the last words of OpenSSH where it does not know a host's key
_NO_KEY = "host key verification failed"
_MISSING = "ansible-runner is not installed. Install it: pip install 'surefoot[ansible]', or make setup"


@dataclass
class Heard:
    """What a playbook said of a host. results: by the name of the task.

    problem: why the host fell out, in one line; unreachable: whether that was the connection; stranger: whether it showed another
    key than known_hosts has of it, or is not known there, so that nothing was sent to it.
    """

    results: dict[str, dict[str, Any]]
    problem: str | None = None
    unreachable: bool = False
    stranger: bool = False


def folder() -> Path:
    """Where the playbooks are."""
    return repo_root() / "playbooks"


# What a configuration of the user's own may say otherwise, and what is heard here would then be lost, or wait for a terminal.
# What a play needs of its own stands in the play.
_SETTINGS = {
    "ANSIBLE_STDOUT_CALLBACK": "default",
    "ANSIBLE_NO_LOG": "False",
    "ANSIBLE_DISPLAY_OK_HOSTS": "True",
    "ANSIBLE_DIFF_ALWAYS": "False",
    "ANSIBLE_RUN_TAGS": "all",
    "ANSIBLE_SKIP_TAGS": "surefoot-skips-nothing",
    "ANSIBLE_ENABLE_TASK_DEBUGGER": "False",
    "ANSIBLE_ASK_PASS": "False",
    "ANSIBLE_ASK_VAULT_PASS": "False",
    "ANSIBLE_BECOME_ASK_PASS": "False",
}


def _environment() -> dict[str, str]:
    """Ansible's settings: the user's configuration if there is one, and what has to be as it is here.

    Host keys are checked unless the environment says otherwise: ansible-runner turns that off where it is not told.
    """
    told = {
        "ANSIBLE_CONFIG": str(folder() / "ansible.cfg"),
        "ANSIBLE_HOST_KEY_CHECKING": "True",
    }
    return {**_SETTINGS, **{name: os.environ.get(name, value) for name, value in told.items()}}


def _runner() -> Any:
    try:
        import ansible_runner
    except ImportError as e:
        raise ToolMissing(_MISSING) from e
    return ansible_runner


def hosts(inventory: Path, group: str) -> list[str]:
    """Hosts of a group, in the inventory's order.

    Raises:
        CampaignError: no such inventory, or no host in the group.
    """
    runner = _runner()
    if not inventory.exists():
        raise CampaignError(
            f"--inventory {inventory}: no such file or folder. Give an Ansible inventory, e.g. playbooks/inventories/example"
        )
    with _scratch() as scratch:
        found, said = runner.get_inventory(
            action="list",
            inventories=[str(inventory.resolve())],
            response_format="json",
            quiet=True,
            envvars=_environment(),
            private_data_dir=scratch,
        )
    if not isinstance(found, dict):
        raise CampaignError(f"--inventory {inventory}: {_last_line(said)}")
    names = list(_members(found, group))
    if not names:
        known = ", ".join(sorted(k for k in found if k not in ("_meta", "all", "ungrouped"))) or "none"
        raise CampaignError(
            f"--inventory {inventory}: group {group} has no hosts; its groups: {known}. Mend targets.hosts, or the inventory"
        )
    if bad := [name for name in names if not layout.is_host_name(name)]:
        raise CampaignError(
            f"--inventory {inventory}: host {shown(bad[0])[:100]!r} of {group} cannot be a folder's name. "
            "Name it with letters, digits and .-_ alone, and give its address as ansible_host"
        )
    return names


def _members(inventory: Mapping[str, Any], group: str) -> Iterator[str]:
    """Hosts of a group and of its children, each once, in order."""
    seen: set[str] = set()
    looked: set[str] = set()
    todo = [group]
    while todo:
        # whatever an inventory's plugin answers: groups may be in each other, and an entry may be anything
        if (at := todo.pop(0)) in looked:
            continue
        looked.add(at)
        entry = inventory.get(at, {})
        entry = entry if isinstance(entry, Mapping) else {}
        for name in _strings(entry.get("hosts")):
            if name not in seen:
                seen.add(name)
                yield name
        todo += _strings(entry.get("children"))


def _strings(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def play(playbook: str, inventory: Path, only: list[str], variables: Mapping[str, Any]) -> dict[str, Heard]:
    """Run a playbook on some hosts.

    Args:
        playbook: file name in `playbooks/`.
        only: hosts; what fails on one does not stop the others.
        variables: handed over as extra variables.
    Returns:
        For each host what was heard of it.
    Raises:
        ToolFailed: Ansible itself failed (syntax, a wrong variable), before any host.
        KeyboardInterrupt: the run was stopped by a signal.
    """
    runner = _runner()
    heard = {name: Heard({}) for name in only}

    def listen(event: dict[str, Any]) -> bool:
        data = event.get("event_data", {})
        host, result = data.get("host"), data.get("res")
        if host in heard and isinstance(result, dict):
            match event.get("event"):
                case "runner_on_ok":
                    heard[host].results[str(data.get("task"))] = result
                case "runner_on_failed" if not data.get("ignore_errors"):
                    heard[host].problem = f"{data.get('task')}: {_reason(result)}"
                case "runner_on_unreachable":
                    heard[host].problem, heard[host].unreachable = _reason(result), True
                    heard[host].stranger = _NO_KEY in str(result.get("msg")).lower()
        return False  # nothing is kept on disk

    with _scratch() as scratch, _signals(), _files_of_at_most(intake.MOST_TAR_BYTES if playbook == FETCH else None):
        done = runner.run(
            private_data_dir=scratch,
            project_dir=str(folder()),
            playbook=playbook,
            inventory=str(inventory.resolve()),
            limit=",".join(only),
            extravars=dict(variables),
            envvars=_environment(),
            event_handler=listen,
            quiet=True,
        )
        if done.status == "canceled":
            raise KeyboardInterrupt
        if done.status != "successful" and not any(h.problem or h.results for h in heard.values()):
            said = done.stdout.read() if done.stdout else ""
            raise ToolFailed("ansible-playbook", f"{playbook}: {_last_line(said)}", 1)
    return heard


@contextmanager
def _scratch() -> Iterator[str]:
    """A folder for ansible-runner: variables and artifacts, gone afterwards. Only this user can read it.

    Meanwhile Ansible is the one of this Python environment, whatever PATH says.
    """
    path = tempfile.mkdtemp(prefix="surefoot-ansible-")
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), before])
    try:
        yield path
    finally:
        os.environ["PATH"] = before
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _files_of_at_most(size_bytes: int | None) -> Iterator[None]:
    """Files that this process and its children write have an end: what a host sends may have none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = soft if size_bytes is None else size_bytes if soft == resource.RLIM_INFINITY else min(size_bytes, soft)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def _signals() -> Iterator[None]:
    """ansible-runner takes the signals over and does not give them back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _reason(result: Mapping[str, Any]) -> str:
    for key in ("msg", "stderr", "module_stderr", "stdout"):
        text = str(result.get(key) or "").strip()
        # "non-zero return code" says less than what the program said
        if text and not (key == "msg" and text == "non-zero return code"):
            return message(text.splitlines()[-1])
    return "it gave no reason"


def _last_line(text: str) -> str:
    # ansible-runner asks for colours
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(text)).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "[ERROR]", "fatal"))]
    return (errors or lines or ["ansible said nothing"])[-1]
