"""What a campaign changes on a host is put back byte for byte: by teardown, by the host alone, after kills and reboots."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPO = Path(__file__).parent.parent
PROGRAM = REPO / "playbooks" / "plugins" / "module_utils" / "surefoot_hoststate.py"
CPU = "/sys/devices/system/cpu"
WANTED: list[dict[str, str]] = [
    {"path": f"{CPU}/cpu*/cpufreq/scaling_governor", "value": "performance"},
    {"path": f"{CPU}/intel_pstate/no_turbo", "value": "1"},
    {"path": f"{CPU}/cpufreq/boost", "value": "0"},
    {"path": f"{CPU}/cpu*/cpuidle/state[1-9]*/disable", "value": "1"},
    {"path": "/sys/kernel/mm/transparent_hugepage/enabled", "value": "never"},
    {"path": "/proc/sys/kernel/numa_balancing", "value": "0"},
    {"kind": "swap", "value": "off"},
    {"kind": "service", "name": "irqbalance", "value": "stopped"},
    {"kind": "mount", "fstype": "resctrl", "path": "/sys/fs/resctrl"},
    {"kind": "boot", "parameter": "rdt=l3cat"},
]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("surefoot_hoststate", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hoststate = load()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A pretended host: files, and the programs that change them."""
    path = tmp_path / "host"
    subprocess.run(["sh", str(REPO / "tests" / "targets" / "fakeroot.sh"), str(path)], check=True)
    return path


def keeper(tmp_path: Path, root: Path) -> Any:
    return hoststate.Keeper(str(tmp_path / "state"), str(root))


def tree(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def at(root: Path, name: str) -> str:
    return (root / name.lstrip("/")).read_text("utf-8").strip()


def test_zswap_is_put_back(tmp_path: Path, root: Path) -> None:
    """What zswap was set to comes back; what this kernel does not have (a shrinker) is said, and is no error."""
    zswap = "/sys/module/zswap/parameters"
    values = {"max_pool_percent": "40", "shrinker_enabled": "Y", "enabled": "Y"}
    before = tree(root)
    k = keeper(tmp_path, root)
    said = k.set([{"path": f"{zswap}/{name}", "value": value} for name, value in values.items()], lease_s=10)
    assert (at(root, f"{zswap}/enabled"), at(root, f"{zswap}/max_pool_percent")) == ("Y", "40")
    assert [n["what"] for n in said["not_possible"]] == [f"{zswap}/shrinker_enabled"]
    assert k.restore()["different"] == []
    assert tree(root) == before


def test_set_and_restore_byte_for_byte(tmp_path: Path, root: Path) -> None:
    """Everything is changed, said, and put back; nothing is left in the folder but the lock."""
    before = tree(root)
    k = keeper(tmp_path, root)
    said = k.set(WANTED, lease_s=10)
    assert at(root, f"{CPU}/cpu2/cpufreq/scaling_governor") == "performance"
    assert at(root, "/sys/kernel/mm/transparent_hugepage/enabled") == "never"
    assert at(root, "/proc/swaps").count("\n") == 0
    assert "resctrl /sys/fs/resctrl resctrl" in at(root, "/proc/mounts")
    assert at(root, "/run/irqbalance") == "inactive"
    assert "ro quiet rdt=l3cat" in at(root, "/boot/grub/grub.cfg")
    assert said["reboot_due"] == ["rdt=l3cat"]
    assert [n["what"] for n in said["not_possible"]] == [f"{CPU}/cpufreq/boost"]
    # 3 governors, no_turbo, 3 sleep states, huge pages, NUMA, swap, irqbalance, resctrl, boot line
    assert len(said["changed"]) == 13
    done = k.restore()
    assert done["different"] == []
    assert len(done["restored"]) == 13
    assert tree(root) == before
    assert not (tmp_path / "state" / "host-state.json").exists()


def test_twice_changes_nothing_and_keeps_the_first_state(tmp_path: Path, root: Path) -> None:
    """What prepare set itself is never taken for the host's own."""
    before = tree(root)
    keeper(tmp_path, root).set(WANTED)
    assert keeper(tmp_path, root).set(WANTED)["changed"] == []
    # another value than before: recorded is still what was there at first
    keeper(tmp_path, root).set([{"path": f"{CPU}/cpu*/cpufreq/scaling_governor", "value": "userspace"}])
    assert at(root, f"{CPU}/cpu0/cpufreq/scaling_governor") == "userspace"
    keeper(tmp_path, root).restore()
    assert tree(root) == before
    assert keeper(tmp_path, root).restore() == {"restored": [], "different": []}


def test_check_mode_writes_nothing(tmp_path: Path, root: Path) -> None:
    """What would be changed is said; no file is touched, no state is kept."""
    before = tree(root)
    assert len(keeper(tmp_path, root).set(WANTED, check=True)["changed"]) == 13
    assert tree(root) == before
    assert not (tmp_path / "state").exists()
    keeper(tmp_path, root).set(WANTED)
    changed = tree(root)
    assert len(keeper(tmp_path, root).restore(check=True)["restored"]) == 13
    assert tree(root) == changed


@pytest.mark.parametrize("step", range(13))
def test_killed_at_any_step_it_is_put_back(tmp_path: Path, root: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is on disk before each change, so a kill in between loses nothing."""

    class Killed(BaseException):
        pass

    before = tree(root)
    puts = 0

    def dying(put: Callable[[Any], None]) -> Callable[[Any], None]:
        def wrapped(entry: Any) -> None:
            nonlocal puts
            if puts == step:
                raise Killed
            puts += 1
            put(entry)

        return wrapped

    for kind in hoststate.KINDS.values():
        monkeypatch.setattr(kind, "put", dying(kind.put))
    with pytest.raises(Killed):
        keeper(tmp_path, root).set(WANTED)
    monkeypatch.undo()
    assert keeper(tmp_path, root).restore()["different"] == []
    assert tree(root) == before


def test_a_reboot_is_made_up_for(tmp_path: Path, root: Path) -> None:
    """The kernel comes up with its defaults: `again` sets what was set, and the first state stays the one to go back to."""
    before = tree(root)
    keeper(tmp_path, root).set(WANTED)
    prepared = tree(root)
    for name, data in before.items():
        if name.startswith(("sys/", "proc/", "run/")):
            (root / name).write_bytes(data)
    (root / "proc" / "cmdline").write_text("BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet rdt=l3cat\n", "utf-8")
    keeper(tmp_path, root).again()
    (root / "proc" / "cmdline").write_bytes(before["proc/cmdline"])
    assert tree(root) == prepared
    keeper(tmp_path, root).restore()
    assert tree(root) == before


def test_the_lease(tmp_path: Path, root: Path) -> None:
    """Nothing is put back before its end, nor while a sweep runs; a word of the controller starts it anew."""
    before = tree(root)
    k = keeper(tmp_path, root)
    k.set(WANTED, lease_s=100, now_s=1000)
    assert k.expire(now_s=1099)["expired"] is False
    k.renew(now_s=1099)
    assert k.expire(now_s=1150)["expired"] is False
    out = tmp_path / "state" / "campaigns" / "job" / "out"
    out.mkdir(parents=True)
    with (out / ".lock").open("a") as lock:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX)
        assert k.expire(now_s=9000)["expired"] is False
    assert k.expire(now_s=9099)["expired"] is False  # counted from the sweep's end
    assert k.expire(now_s=9101)["expired"] is True
    assert tree(root) == before


def test_what_cannot_be_put_back_stays_recorded(tmp_path: Path, root: Path) -> None:
    """One program fails: all else is put back, that one is named, and tried again the next time."""
    before = tree(root)
    keeper(tmp_path, root).set(WANTED)
    swapon = root / "usr" / "sbin" / "swapon"
    swapon.chmod(0o644)
    done = keeper(tmp_path, root).restore()
    assert [d["what"] for d in done["different"]] == ["swap"]
    assert "swapon is not installed" in done["different"][0]["why"]
    swapon.chmod(0o755)
    keeper(tmp_path, root).restore()
    assert tree(root) == before


def test_programs_of_this_machine_are_never_run_for_another_root(tmp_path: Path, root: Path) -> None:
    """A trial on a folder cannot switch this machine's swap off."""
    (root / "usr" / "sbin" / "swapoff").unlink()
    said = keeper(tmp_path, root).set([{"kind": "swap", "value": "off"}])
    assert said["changed"] == []
    assert said["not_possible"] == [{"what": "swap", "why": "swapoff is not installed"}]


def test_as_a_program(tmp_path: Path, root: Path) -> None:
    """What the timer and a person call: JSON, exit code 0; a bad setting is one line and exit code 1."""
    before = tree(root)
    wanted = tmp_path / "wanted.json"

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(PROGRAM), "--dir", str(tmp_path / "state"), *args], capture_output=True, text=True
        )

    wanted.write_text(json.dumps(WANTED), "utf-8")
    assert len(json.loads(call("set", "--root", str(root), "--wanted", str(wanted)).stdout)["changed"]) == 13
    # the root is kept with the state
    assert json.loads(call("restore").stdout)["different"] == []
    assert tree(root) == before
    wanted.write_text('[{"kind": "fan"}]', "utf-8")
    done = call("set", "--root", str(root), "--wanted", str(wanted))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "kind 'fan' is unknown; known: boot, file, mount, service, swap" in done.stderr
