"""A node keeps to the newest bundle that it ran (docs/bundle-format.md, Serial), on this machine with bundles made here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from collection import tools
from models.features import Bound, Scale
from pipelines.artefact import bundle

OLD, NEW, NEWER = 1_700_000_000, 1_700_086_400, 1_700_172_800
HYPERPARAMETERS = {
    "gamma": 0.99, "tau": 0.001, "lr_actor": 5e-4, "lr_critic": 5e-3, "critic_l2": 0.01, "actor_entropy": 0.0, "batch": 256,
    "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_eps": 1e-8,
}  # fmt: skip

# Locks of CPUs are of the whole machine: in a mount namespace of its own a run disturbs no other suite, and is not disturbed.
ALONE = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run/lock && exec "$0" "$@"']
CAN = os.geteuid() == 0 and subprocess.run([*ALONE, "true"], capture_output=True).returncode == 0
pytestmark = pytest.mark.skipif(not CAN, reason="needs root and mount namespaces")


def network(shapes: dict[str, tuple[int, int]]) -> dict[str, Any]:
    weights = {}
    for prefix, (rows, cols) in shapes.items():
        weights[f"{prefix}layers.0.weight"] = np.full((rows, cols), 0.25, np.float32)
        weights[f"{prefix}layers.0.bias"] = np.zeros(rows, np.float32)
    return weights


def spec_for(host: dict[str, Any], serial: int | None, name: str = "here") -> bundle.BundleSpec:
    """A bundle for a host of these facts; what it predicts means nothing."""
    inputs = [Bound("cpu_usage_cores", 0.0, host["cores"]), Bound("alloc_cores", 0.0, host["cores"])]
    units = ("cores", "ways") if host["ways"] else ("cores",)
    area = [Scale(f"{point}_{unit}", 1.0, 0.0) for point in ("oaa", "rcliff") for unit in units]
    actions = ["cores_up", "cores_down", "idle"]
    nets = {f"{n}{t}.": shape for n, shape in (("actor", (7, 2)), ("critic", (1, 9))) for t in ("", "_target")}
    return bundle.BundleSpec(
        feature_set=host["feature_set"],
        platform={k: host[k] for k in ("cores", "core_step", "ways", "mb_per_way")} | {"name": name},
        services={},
        a=bundle.TrainedMlp(network({"": (len(area), 2)}), inputs, area),
        b=bundle.TrainedMlp(network({"": (1, 2)}), inputs, [Scale("qos", 1.0, 0.0)], qos_cap=2.0),
        c=bundle.TrainedDdpg(network(nets), inputs, HYPERPARAMETERS, actions),
        serial=serial,
    )


class Node:
    """`surefootd run` on this machine; the one service of its configuration never comes, so nothing is controlled."""

    def __init__(self, at: Path) -> None:
        self.at, self.state, self.trusted = at, at / "state", at / "keys" / "trusted"
        config = '[upper]\non = false\n[[service]]\nservice = "job"\nkind = "be"\ncgroup = "/surefoot-never-there"\n'
        (at / "node.toml").write_text(f'state_dir = "{self.state}"\nmetrics_port = 0\n{config}')
        self.key = Ed25519PrivateKey.generate()
        bundle.trust(self.key.public_key(), "lab", self.trusted)
        self.host = self.facts()

    def built(self, serial: int | None, **more: Any) -> Path:
        out = self.at / f"bundle-{serial}-{len(list(self.at.iterdir()))}"
        key = more.pop("key", self.key)
        bundle.build(spec_for(more.pop("host", None) or self.host, serial, **more), out, key)
        return out.with_name(out.name + ".tar")

    def run(self, path: Path, *more: str) -> tuple[int, str]:
        """Exit code and what it said at the end."""
        args = ["run", "--server", "local", "--policy", "unmanaged", "--duration-s", "1", "--config", self.at / "node.toml"]
        args += ["--bundle", path, "--trust", self.trusted, *more]
        command = [*ALONE, str(tools.find(tools.SUREFOOTD)), *map(str, args)]
        env = {**os.environ, "SUREFOOT_LOG": "warn"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
        return done.returncode, done.stderr

    def facts(self) -> dict[str, Any]:
        """What a bundle for this host is for, as the refusals of others say."""
        host: dict[str, Any] = {"feature_set": "full", "cores": 7.0, "core_step": 0.5, "ways": 0, "mb_per_way": 0.0}
        for n in range(8):
            code, said = self.run(self.built(n + 1, host=host))
            if code == 0:
                shutil.rmtree(self.state)
                return host
            if found := re.search(r"this host measures `(.*?)`", said):
                host["feature_set"] = found[1]
            elif found := re.search(r"platform\.(\w+): .*this host has (\d+(?:\.\d+)?)", said):
                host[found[1]] = int(float(found[2])) if found[1] == "ways" else float(found[2])
            else:
                pytest.fail(f"{code}: {said}")
        pytest.fail(f"no bundle fits: {host}")

    def remembered(self) -> list[Any]:
        return sorted((b["platform"], b["serial"]) for b in json.loads((self.state / "bundles.json").read_text())["bundles"])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(tmp_path_factory.mktemp("node"))


@pytest.fixture(autouse=True)
def forgetful(node: Node) -> None:
    shutil.rmtree(node.state, ignore_errors=True)


def test_an_older_bundle_is_refused_and_names_both(node: Node) -> None:
    """After a newer one an older one is bad input before anything is touched: both serials, the file, the option. Equals run."""
    old, new = node.built(OLD), node.built(NEW)
    assert node.run(new)[0] == 0
    before = (node.state / "bundles.json").read_bytes()
    code, said = node.run(old)
    assert (code, said.count("\n")) == (2, 1), said
    for part in (
        f"serial {OLD} (built 2023-11-14 22:13:20 UTC)",
        f"serial {NEW}",
        "`here`",
        "--allow-older",
        str(node.state / "bundles.json"),
    ):
        assert part in said, said
    assert (node.state / "bundles.json").read_bytes() == before
    assert node.run(new)[0] == 0
    assert node.run(node.built(NEW))[0] == 0
    assert node.run(node.built(NEWER))[0] == 0
    assert node.run(new)[0] == 2


def test_bundles_without_a_serial_are_the_oldest(node: Node) -> None:
    """Those of versions 1 and 2 run until one with a serial has; among themselves nobody can tell."""
    none = node.built(None)
    assert node.run(none)[0] == 0
    assert node.remembered() == [("here", None)]
    assert node.run(node.built(None))[0] == 0
    assert node.run(node.built(OLD))[0] == 0
    code, said = node.run(none)
    assert (code, "no serial (format version 1 or 2)" in said) == (2, True), said


def test_told_so_it_goes_back_and_counts_from_there(node: Node) -> None:
    """--allow-older is needed once: the older one is then the one that ran last."""
    old, new = node.built(OLD), node.built(NEW)
    assert node.run(new)[0] == 0
    code, said = node.run(old, "--allow-older")
    assert code == 0, said
    assert f"serial {OLD}" in said
    assert node.remembered() == [("here", OLD)]
    assert node.run(old)[0] == 0
    assert node.run(node.built(OLD - 1))[0] == 2


def test_each_platform_and_signer_has_a_line_of_its_own(node: Node) -> None:
    """Another platform's name, and another trusted key, are judged by what ran of them."""
    assert node.run(node.built(NEW))[0] == 0
    assert node.run(node.built(OLD, name="there"))[0] == 0
    other = Ed25519PrivateKey.generate()
    path = bundle.trust(other.public_key(), "other", node.trusted)
    assert node.run(node.built(OLD, key=other))[0] == 0
    assert node.run(node.built(OLD))[0] == 2
    assert node.remembered() == [("here", OLD), ("here", NEW), ("there", OLD)]
    path.unlink()


def test_a_refused_bundle_is_not_remembered(node: Node) -> None:
    """What did not run does not count: a bundle for another host, a damaged one."""
    assert node.run(node.built(OLD))[0] == 0
    foreign = node.built(NEWER, host=node.host | {"cores": node.host["cores"] + 2.0})
    assert node.run(foreign)[0] == 2
    damaged = node.built(NEWER)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert node.run(damaged)[0] == 2
    assert node.remembered() == [("here", OLD)]
    assert node.run(node.built(NEW))[0] == 0


def test_what_is_remembered_cannot_be_lost_by_damage(node: Node) -> None:
    """A file that cannot be understood, or a link in its place, lets no bundle through until somebody says so."""
    new = node.built(NEW)
    assert node.run(new)[0] == 0
    file = node.state / "bundles.json"
    for damage in (lambda: file.write_text("{"), lambda: (file.unlink(), file.symlink_to("/dev/null"))):
        damage()
        code, said = node.run(new)
        assert (code, said.count("\n")) == (2, 1), said
        assert "nobody knows which bundle ran here last" in said
        assert node.run(new, "--allow-older")[0] == 0
        assert node.remembered() == [("here", NEW)]


def test_root_runs_no_bundle_of_a_key_that_others_can_write(node: Node) -> None:
    """The key, its folder and those above it: else whoever can write there chooses which bundles root runs."""
    path = node.built(NEW)
    key = node.trusted / "lab.pub.pem"
    for part in (key, node.trusted, node.trusted.parent):
        before = part.stat().st_mode
        part.chmod(before | 0o002)
        code, said = node.run(path)
        assert (code, said.count("\n")) == (2, 1), said
        assert f"{part} can be written by others, so others could choose which bundles run here. Run: chmod go-w {part}" in said
        part.chmod(before)
    os.chown(node.trusted, 65534, -1)
    code, said = node.run(path)
    assert (code, f"{node.trusted} belongs to user 65534" in said) == (2, True), said
    os.chown(node.trusted, 0, -1)
    assert not node.state.exists()
    assert node.run(path)[0] == 0
