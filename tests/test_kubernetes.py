"""Surefoot on a Kubernetes node (docs/kubernetes.md): the manifest, its companion's script, pods of a real containerd."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from collection import tools

ROOT = Path(__file__).resolve().parents[1]
MANIFEST = ROOT / "packaging/kubernetes/surefoot.yaml"
PAGE = (ROOT / "docs/kubernetes.md").read_text("utf-8")
CGROUPS = Path("/sys/fs/cgroup")


def objects() -> dict[str, Any]:
    return {o["kind"]: o for o in yaml.safe_load_all(MANIFEST.read_text("utf-8"))}


def pod_spec() -> dict[str, Any]:
    spec: dict[str, Any] = objects()["DaemonSet"]["spec"]["template"]["spec"]
    return spec


def containers() -> dict[str, Any]:
    return {c["name"]: c for c in pod_spec()["containers"]}


# ---------------------------------------------------------------- the manifest


def test_the_manifest_asks_for_no_more_than_the_page_says() -> None:
    """Pods are listed and a node's status is patched; the privileged container has no token, the one with it no rights."""
    rules = objects()["ClusterRole"]["rules"]
    assert [(r["resources"], r["verbs"]) for r in rules] == [(["pods"], ["list"]), (["nodes/status"], ["patch"])]
    assert pod_spec()["automountServiceAccountToken"] is False
    token = "/var/run/secrets/kubernetes.io/serviceaccount"
    with_token = [name for name, c in containers().items() if any(m["mountPath"] == token for m in c["volumeMounts"])]
    privileged = [name for name, c in containers().items() if c["securityContext"].get("privileged")]
    assert (with_token, privileged) == (["pods"], ["surefoot"])
    host = {v["name"]: v["hostPath"]["path"] for v in pod_spec()["volumes"] if "hostPath" in v}
    assert host == {"state": "/var/lib/surefoot", "cgroup": "/sys/fs/cgroup", "resctrl": "/sys/fs/resctrl"}


def test_every_volume_is_there_and_mounted() -> None:
    """Each mount has its volume, each volume is mounted; selector, labels, account and version agree."""
    mounted = {m["name"] for c in containers().values() for m in c["volumeMounts"]}
    assert mounted == {v["name"] for v in pod_spec()["volumes"]}
    set_ = objects()["DaemonSet"]["spec"]
    assert set_["selector"]["matchLabels"].items() <= set_["template"]["metadata"]["labels"].items()
    assert pod_spec()["serviceAccountName"] == objects()["ServiceAccount"]["metadata"]["name"]
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text("utf-8"), re.MULTILINE)
    assert version is not None
    assert containers()["surefoot"]["image"] == f"surefoot/node:{version[1]}"


def test_the_configuration_of_the_manifest_is_one(tmp_path: Path) -> None:
    """Its node.toml is read, with the files where the companion has them; a list that is not there yet stops nothing."""
    text = objects()["ConfigMap"]["data"]["node.toml"]
    assert 'source = "/run/surefoot/pods.json"' in text
    (tmp_path / "node.toml").write_text(text.replace("/run/surefoot", str(tmp_path)), "utf-8")
    done = check(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "pods.json: cannot be read" in done.stderr


def test_the_companion_writes_whole_lists_and_applies_the_condition(tmp_path: Path) -> None:
    """Its script, with a kubectl and a sleep of ours: a list that fails leaves the last one, a patch that fails ends nothing."""
    (script,) = containers()["pods"]["args"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "run").mkdir()
    kubectl = (
        '#!/bin/sh\necho "$*" >>"$CALLS"\n[ "$1" = patch ] && exit 1\n[ -e "$CALLS.down" ] && { echo half; exit 1; }\necho "{}"\n'
    )
    # The third sleep ends it; after the first the API server is gone.
    sleep = (
        '#!/bin/sh\necho sleep >>"$CALLS"; touch "$CALLS.down"; echo "{}" >condition.json\n'
        '[ "$(grep -c sleep "$CALLS")" -lt 3 ] || kill $PPID\n'
    )
    for name, text in (("kubectl", kubectl), ("sleep", sleep)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    calls = tmp_path / "calls"
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "CALLS": str(calls), "NODE": "n1"}
    subprocess.run(["sh", "-c", script.replace("/run/surefoot", str(tmp_path / "run"))], env=env, check=False, timeout=60)
    assert (tmp_path / "run/pods.json").read_text() == "{}\n"
    said = calls.read_text().splitlines()
    assert said[0] == "get pods --all-namespaces --field-selector spec.nodeName=n1 -o json"
    assert said.count("patch node n1 --subresource=status --type=strategic --patch-file condition.json") == 2
    assert said.count(said[0]) == 3


def test_the_page_names_every_annotation() -> None:
    """The annotations of the page are those that the code knows, and each key of [pods] stands on it."""
    code = (ROOT / "scheduler/linux/src/pods/mod.rs").read_text("utf-8")
    keys = re.search(r"KEYS: .*? = \[(.*?)\]", code)
    assert keys is not None
    assert set(re.findall(r"^\| `surefoot/([a-z-]+)` \|", PAGE, re.MULTILINE)) == set(re.findall(r'"([a-z-]+)"', keys[1]))
    for key in ("source", "every_s", "below", "condition"):
        assert re.search(rf"^    {key} = ", PAGE, re.MULTILINE), key


# ---------------------------------------------------------------- a real containerd


def check(at: Path) -> subprocess.CompletedProcess[str]:
    command = [str(tools.find(tools.SUREFOOTD)), "check", "--config", str(at / "node.toml"), "--json"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "SUREFOOT_STATE": str(at / "state")}
    )


UIDS = {"web": "2ac279fe-28fa-11e8-8904-74dbd1a06fe0", "batch": "10231429-28f6-11e8-8903-74dbd1a06fe0"}
IDS = {"web": "0eb2fce3f5e17f63", "batch": "32cc26191dad2120"}
CLASSES = {"web": "Burstable", "batch": "BestEffort"}


def pod(name: str, **annotations: str) -> dict[str, Any]:
    said = {f"surefoot/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {
        "metadata": {"name": name, "namespace": "shop", "uid": UIDS[name], "annotations": said},
        "status": {
            "phase": "Running",
            "qosClass": CLASSES[name],
            "containerStatuses": [{"name": "c", "containerID": f"containerd://{IDS[name]}"}],
        },
    }


class Node:
    """Containers in the cgroups that a kubelet with the driver cgroupfs names, made by a containerd of the test's own."""

    def __init__(self, at: Path) -> None:
        self.at = at
        (at / "rootfs").mkdir()
        (at / "spin.c").write_text("int main(void) { for (volatile long n = 0;; n++) { } }\n")
        subprocess.run(["cc", "-static", "-o", str(at / "rootfs/spin"), str(at / "spin.c")], check=True)
        self.socket = at / "c.sock"
        (at / "containerd.toml").write_text(
            f'version = 2\nroot = "{at}/root"\nstate = "{at}/run"\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{self.socket}"\n'
        )
        command = ["containerd", "--config", str(at / "containerd.toml")]
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self.server.stderr is not None
        while "successfully booted" not in (line := self.server.stderr.readline()):
            if not line:
                pytest.skip("containerd does not start here: look at what `containerd` says, as root")

    def ctr(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        # What the runtime keeps outside of its folder goes by the namespace.
        command = ["ctr", "--address", str(self.socket), "--namespace", f"surefoot-{os.getpid()}", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done

    def start(self, name: str) -> None:
        group = f"/kubepods/{CLASSES[name].lower()}/pod{UIDS[name]}/{IDS[name]}"
        self.ctr("run", "--detach", "--rootfs", "--cgroup", group, str(self.at / "rootfs"), IDS[name], "/spin")

    def group(self, name: str, file: str) -> str:
        (found,) = CGROUPS.glob(f"cp*/kubepods/{CLASSES[name].lower()}/pod{UIDS[name]}/{IDS[name]}/{file}")
        return found.read_text().strip()

    def state(self) -> dict[str, list[str]]:
        return {name: [self.group(name, f) for f in ("cpuset.cpus", "cpu.cfs_quota_us", "cpu.shares")] for name in UIDS}

    def end(self) -> None:
        for name in IDS.values():
            self.ctr("task", "delete", "--force", name, check=False)
            self.ctr("container", "delete", name, check=False)
        self.server.terminate()
        self.server.wait(30)
        for top in CGROUPS.glob("*/kubepods"):
            for folder in sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True):
                folder.rmdir()
            top.rmdir()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("containerd", "ctr", "runc", "cc"))):
        pytest.skip("a real containerd needs root, containerd, runc and cc (Debian: containerd, runc, gcc)")
    if not os.access(CGROUPS / "cpuset", os.W_OK) or any(CGROUPS.glob("*/kubepods*")):
        pytest.skip("this needs a cpuset of cgroup v1 that may be written, and no kubelet's cgroups (on v2: the unit tests)")
    made = Node(tmp_path)
    yield made
    made.end()


def test_pods_of_a_real_containerd_are_held_and_given_back(node: Node, tmp_path: Path) -> None:
    """Two pods are found and held; one whose annotation goes is given back, and taken again; in the end each has what it had.

    A pod that comes later and cannot be had is explained once, and so is a list that nobody writes any more.
    """
    for name in UIDS:
        node.start(name)
    before = node.state()

    def write(*pods: dict[str, Any]) -> None:
        (tmp_path / "pods.new").write_text(json.dumps({"kind": "PodList", "items": pods}))
        (tmp_path / "pods.new").rename(tmp_path / "pods.json")

    lc, be = pod("web", kind="lc", qos_target_ms="10"), pod("batch", kind="be")
    write(lc, be)
    (tmp_path / "node.toml").write_text(
        f'state_dir = "{tmp_path}/state"\nmetrics_port = 0\n'
        '[pods]\nsource = "pods.json"\nevery_s = 1\ncondition = "condition.json"\n'
    )
    found = {
        c["name"]: c["found"] for c in json.loads(check(tmp_path).stdout)["capabilities"] if c["name"].startswith("service-")
    }
    assert found == {"service-web": True, "service-batch": True}

    command = [
        str(tools.find(tools.SUREFOOTD)),
        "run",
        "--server",
        "local",
        "--policy",
        "parties",
        "--config",
        str(tmp_path / "node.toml"),
    ]
    daemon = subprocess.Popen([*command, "--duration-s", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert daemon.stderr is not None

    heard: list[str] = []

    def until(words: str) -> None:
        for line in daemon.stderr or ():
            heard.append(line)
            if words in line:
                return
        raise AssertionError(f"it ended before {words!r}")

    try:
        until("2 services")
        write(lc, pod("batch"))
        until("batch: its pod is gone, or asks for something else: it has what it had before")
        assert node.state()["batch"] == before["batch"]
        write(pod("web", kind="lc", qos_target_ms="fast"), be)
        until('pod shop/web: surefoot/qos-target-ms: is "fast"')
        until("batch is there")
        write(lc, be)
        until("web is there")
        twin = pod("web", kind="be")
        twin["metadata"]["name"] = "twin"
        write(lc, be, twin)
        until("twin is waited for: ")
        os.utime(tmp_path / "pods.json", (0, 0))
        until("pods.json: has not been written for 60 s: pods that came since are not seen")
        write(lc, be, pod("batch", kind="late"))
        until('surefoot/kind: is "late"')
    finally:
        daemon.terminate()
        said, _ = daemon.communicate(timeout=60)
    assert daemon.returncode == 0
    assert [sum(words in line for line in heard) for words in ("twin is waited for", "has not been written")] == [1, 1]
    assert set(json.loads(said)["qos_violation_s"]) == {"web"}
    assert node.state() == before
    (condition,) = json.loads((tmp_path / "condition.json").read_text())["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("SurefootPressure", "False")
