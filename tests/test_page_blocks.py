"""Commands of pages that are too long as they stand: the page's own blocks, with sizes and placeholders of this file's table.

A run names blocks by words in them. `less` is all that is replaced, and each entry must be used: a page that changes fails here.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import yaml
from campaigns import measured
from quick import FEW, make_quick
from test_page_commands import ROOT, blocks, checkout, commands, shell, wrong

SETS = "workloads/sets"
BUNDLE = "examples/bundle/server-1.tar --trust examples/bundle/key.pub.pem"
TINY = """\
name = "tiny"
seed = 3
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses", "xapian"]
rps = "catalogue"
threads = [36]
cores = "1..36 step 5"
ways = "1..20 step 4"
[sampling]
interval_ms = 1000
samples = 2
"""


@dataclass(frozen=True)
class Run:
    """Blocks of one page, in order.

    Attributes:
        having: words that a block has, for each block.
        less: what is replaced in them.
        without: beginnings of lines that are left out.
        given: makes what the reader has already.
        leaves: files that are there afterwards, and not empty.
        says: what is printed, as a regular expression.
    """

    page: str
    having: tuple[str, ...]
    less: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    given: Callable[[Path], object] = lambda at: None
    leaves: tuple[str, ...] = ()
    says: str = ""


def one_of(*sets: str) -> Callable[[Path], object]:
    """Folders `one`, `two`, ... with the first workload of each set."""

    def make(at: Path) -> None:
        for folder, name in zip(("one", "two", "three", "four"), sets, strict=False):
            first = min((ROOT / SETS / name).glob("*.toml"))
            (at / folder).mkdir()
            (at / folder / first.name).write_bytes(first.read_bytes())

    return make


def campaign_file(at: Path) -> None:
    (at / "CAMPAIGN.toml").write_text(TINY, "utf-8")


def campaign_of_seconds(at: Path) -> None:
    """The data set X, and parameters that train for seconds."""
    (at / "data").mkdir()
    (at / "data/X").symlink_to(measured(at, TINY))
    params = at / "params.yaml"
    text = params.read_text("utf-8")
    params.unlink()
    params.write_text(text, "utf-8")
    make_quick(params)
    values = yaml.safe_load(params.read_text("utf-8"))
    values["train"]["osml_b"] |= FEW
    params.write_text(yaml.safe_dump(values), "utf-8")


def outputs_of_tools(at: Path) -> None:
    """What the page's tools have written: recordings, and a thousand requests of 1 ms that waited for up to 0.1 ms."""
    data = ROOT / "tests/data/adapters"
    (at / "mutilate.txt").write_bytes((data / "mutilate.txt").read_bytes())
    (at / "result.txt").write_bytes((data / "wrk2.txt").read_bytes())
    waits_ns = [wait_us * 1000 for wait_us in np.random.default_rng(7).integers(0, 100, 1000).tolist()]
    (at / "lats.bin").write_bytes(b"".join(struct.pack("<3Q", wait, 1_000_000, wait + 1_000_000) for wait in waits_ns))


def virtual_node(at: Path) -> None:
    text = (at / "examples/node-virtual.toml").read_text("utf-8")
    (at / "node.toml").write_text(
        text.replace("../workloads", "workloads").replace("node-virtual.jsonl", "decisions.jsonl"), "utf-8"
    )


RUNS = [
    Run(
        "README.md",
        ("surefootd check --server local", "surefoot workloads generate"),
        {"--count 10": "--count 1", "--seeds 5": "--seeds 1", "--bundle bundles/demo-virtual": f"--bundle {BUNDLE}"},
        leaves=("out/eval-four/eval.json",),
        says=r"^surefoot +1 ",
    ),
    Run(
        "cosmos.md",
        ("--workloads workloads/sets/cosmos-e2 --policies",),
        {f"{SETS}/cosmos-e2": "one"},
        given=one_of("cosmos-e2"),
        leaves=("out/cosmos/eval.json",),
        says=r"^cosmos +1 ",
    ),
    Run(
        "cosmos.md",
        ("examples/memory-cosmos.toml",),
        given=lambda at: (at / "examples/memory-cosmos.toml").symlink_to(ROOT / "examples/memory-cosmos.toml"),
        leaves=("out/memory/label/labels.parquet",),
    ),
    Run(
        "eval-report.md",
        ("for lc in 2 3 4 5 6",),
        # one workload, policies without models, and of the sets one each
        {
            "2 3 4 5 6": "2",
            "1 2 3": "2",
            f"{SETS}/lc$lc-be-server-2": "one",
            f"{SETS}/lc3-server-2": "two",
            f"{SETS}/emu-302": "three",
            f"{SETS}/churn-server-$n": "four",
            " --bundle BUNDLE-1": "",
            " --bundle BUNDLE-$n": "",
            " --bundle BUNDLE": "",
            "--seeds 5": "--seeds 1",
            "parties-stop,clite,osml,osml-plus,surefoot": "parties-stop",
        },
        given=one_of("lc2-be-server-2", "lc3-server-2", "emu-302", "churn-server-2"),
        leaves=("out/eval-report/eval-report.html",),
        says=r"published figures and aims",
    ),
    Run(
        "harvest-report.md",
        ("harvest-eval --experiments all",),
        {"--experiments all --seeds 5": "--experiments t1 --seeds 1 --duration-s 1", "[--overwrite] [--json]": ""},
        leaves=("out/harvest-report/harvest-report.html",),
    ),
    Run(
        "smartharvest.md",
        ("--primaries memcached@80000",),
        {
            "--experiments all --seeds 5": "--experiments f4 --seeds 1 --duration-s 1",
            "memcached@80000,indexserve": "memcached@80000,indexserve --seeds 1 --duration-s 1",
            "test:1..40": "test:1..1 --seeds 1 --duration-s 1",
            "test:41..80": "test:41..41 --seeds 1 --duration-s 1",
        },
        leaves=("out/harvest/harvest.json", "out/pair/harvest.json", "out/worlds/harvest.json", "out/light/harvest.json"),
    ),
    Run(
        "rivals.md",
        ("--workloads workloads/sets/lc3-server-2",),
        {f"{SETS}/lc3-server-2": "one", "--policies ...": "--policies parties,clite"},
        given=one_of("lc3-server-2"),
        leaves=("DIR/eval.json",),
        says=r"^clite +1 ",
    ),
    Run(
        "policy-parameters.md",
        ("surefootd eval --set surefoot.prices.move",),
        {" ...": f" --workloads one --policies surefoot --platform server-1 --bundle {BUNDLE} --out out/set"},
        given=one_of("demo"),
        leaves=("out/set/eval.json",),
    ),
    Run(
        "shadow.md",
        ("--shadow osml-plus,parties", "surefootd replay"),
        {
            "--bundle B --server local": f"--bundle {BUNDLE} --server virtual:server-1",
            "run ... --stream": f"run --policy surefoot --bundle {BUNDLE} --server virtual:server-1 --config node.toml --stream",
            "--bundle B [--policies parties,clite] [--json]": f"--bundle {BUNDLE} --policies parties,clite --json",
        },
        given=virtual_node,
        leaves=("run.jsonl",),
        says=r'"disagreement_frac"',
    ),
    Run("oracle.md", ("cosmos-e2/mix-01-medium-medium",), says=r"cosmos|mix|[0-9]"),
    Run(
        "worlds.md",
        ("--worlds tune:1..50",),
        {"tune:1..50": "tune:1..1"},
        leaves=("out/tune/eval.json", "out/tune-report/eval-report.html"),
    ),
    Run(
        "worlds.md",
        ("world draw --range memory-test", "world draw --range train"),
        # two minutes a world of memory, of which this host has none to spare
        without=("surefootd eval --worlds memory-tune",),
        leaves=("out/memory-test-7/world.json", "data/train-7/manifest.json", "out/eval-train-7/eval.json"),
    ),
    Run(
        "onboard.md",
        ("--from nothing --plan",),
        without=("$EDITOR",),
        given=lambda at: (at / "examples/onboard").symlink_to(ROOT / "examples/onboard"),
        leaves=("out/onboard/x/campaign.toml",),
    ),
    Run(
        "campaigns.md",
        ("surefoot campaign plan   CAMPAIGN.toml",),
        {" [--out DIR]": "", " [--strict]": " --strict"},
        without=("surefoot campaign worlds",),
        given=campaign_file,
        leaves=("DIR/data-card.md",),
    ),
    Run(
        "training.md",
        ("python -m pipelines.label --data",),
        given=campaign_of_seconds,
        leaves=("out/x/train/osml-b/model.safetensors",),
    ),
    Run(
        "workloads.md",
        ("collection.adapters tailbench",),
        given=outputs_of_tools,
        says=r"p99",
    ),
]


def environment(at: Path) -> dict[str, str]:
    """The lab's commands beside the node's."""
    env = checkout(at)
    (at / "params.yaml").symlink_to(ROOT / "params.yaml")
    (at / "bin/surefoot").write_text(f'#!/bin/sh\nexec {sys.executable} -m collection.cli "$@"\n', "utf-8")
    (at / "bin/surefoot").chmod(0o755)
    env["PATH"] = f"{at / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return env | {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{at}/mlflow.db"}


def chosen(run: Run) -> list[str]:
    """The blocks of a run, as they are to be run. A block that is gone is an error, as is a replacement without a use."""
    page = ROOT / run.page if run.page == "README.md" else ROOT / "docs" / run.page
    found = list(blocks(page.read_text("utf-8")))
    texts = []
    for having in run.having:
        with_it = [block for block in found if having in block]
        assert with_it, f"{run.page} has no block with {having!r}"
        texts.append(re.sub(r"^\$ ", "", with_it[0], flags=re.MULTILINE))
    for old, new in run.less.items():
        assert any(old in text for text in texts), f"{run.page}: {old!r} stands in none of its blocks any more"
        texts = [text.replace(old, new) for text in texts]
    for start in run.without:
        assert any(line.startswith(start) for text in texts for line in text.splitlines()), (run.page, start)
    return ["\n".join(line for line in text.splitlines() if not line.startswith(run.without or "\0")) for text in texts]


@pytest.mark.parametrize("run", RUNS, ids=lambda r: f"{r.page.removesuffix('.md')}: {r.having[0]}")
def test_blocks_run(run: Run, tmp_path: Path) -> None:
    """Each command of the blocks ends well, prints what it should and leaves what the page says."""
    env = environment(tmp_path)
    run.given(tmp_path)
    said = ""
    for text in chosen(run):
        assert [w for c in commands(text) if (w := wrong(c))] == []
        said += shell(text, tmp_path, env)
    assert re.search(run.says, said, re.MULTILINE), said[-2000:]
    for name in run.leaves:
        assert (tmp_path / name).stat().st_size > 0, sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("out/*/*"))


def test_a_changed_page_is_found(tmp_path: Path) -> None:
    """A block that is gone, and a replacement that nothing needs, are errors."""
    with pytest.raises(AssertionError, match="has no block with 'surefootd nothing'"):
        chosen(Run("oracle.md", ("surefootd nothing",)))
    with pytest.raises(AssertionError, match="stands in none"):
        chosen(Run("oracle.md", ("cosmos-e2/mix-01-medium-medium",), {"--seeds 5": "--seeds 1"}))


def test_models_are_watched(tmp_path: Path) -> None:
    """The block of watched-models.md: runs with a bundle, and what metrics, top and explain say of one that goes on."""
    (block,) = (b for b in blocks((ROOT / "docs/watched-models.md").read_text("utf-8")) if "grep surefoot_model_" in b)
    asks, watches, metrics, top, explain = (re.sub(r"\s+# .*", "", line) for line in block.splitlines())
    env = environment(tmp_path)
    virtual_node(tmp_path)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    given = f"--bundle {BUNDLE} --server virtual:server-1 --config"
    assert "--bundle B ..." in asks
    shell(asks.replace("--bundle B ...", f"{given} node.toml"), tmp_path, env)
    node = (tmp_path / "node.toml").read_text("utf-8")
    (tmp_path / "live.toml").write_text(f"metrics_port = {port}\n{node.replace('realtime = false', 'realtime = true')}", "utf-8")
    assert "127.0.0.1:19464" in metrics
    live = metrics.replace("19464", str(port))
    page = live.partition("|")[0]
    script = (
        f"{watches.replace('--bundle B ...', f'{given} live.toml')} & daemon=$!\ntrap 'kill $daemon; wait $daemon || true' EXIT\n"
        f"until {page} >/dev/null; do kill -0 $daemon; read -rt 0.1 <> wait || true; done\n"
        f"{live}\n{top} --once --config live.toml\n{explain.replace('web', 'moses')} --config live.toml\n"
    )
    os.mkfifo(tmp_path / "wait")
    said = shell(script, tmp_path, env)
    assert 'surefoot_model_standing{service="moses",standing="too-few"} 1' in said
    assert re.search(r"^moses +lc ", said, re.MULTILINE), said
    assert re.search(r"^ +1 .* place ", said, re.MULTILINE), said


def test_a_tree_is_packed(tmp_path: Path) -> None:
    """The block of give-a-recording.md, on a stand-in that node.toml names."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("a FUSE mount needs root and /dev/fuse: run as root, or with fusermount3")
    (block,) = (b for b in blocks((ROOT / "docs/give-a-recording.md").read_text("utf-8")) if "--pack-tree" in b)
    cpus = os.cpu_count()
    (tmp_path / "platform.toml").write_text(
        f'name = "here"\n[cpu]\nphysical_cores = {cpus}\n[llc]\nways = 11\nmb_per_way = 2.0\n[mem]\nmba = true\n', "utf-8"
    )
    mount = tmp_path / "resctrl"
    # a stand-in counts only where a configuration names it, as the page says
    (tmp_path / "node.toml").write_text(f'resctrl = "{mount}"\n', "utf-8")
    os.mkfifo(tmp_path / "wait")
    script = (
        f"mkdir resctrl\ntrap 'umount -l {mount}' EXIT\n"
        f"surefootd resctrlfs {mount} --platform platform.toml --die-with-parent &\n"
        f"until [ -e {mount}/schemata ]; do kill -0 $!; read -rt 0.1 <> wait || true; done\n{block.rstrip()} --config node.toml\n"
    )
    shell(script, tmp_path, environment(tmp_path))
    assert "cbm_mask" in (tmp_path / "tree.txt").read_text("utf-8")


def test_the_actuator_lists_what_it_may_write(tmp_path: Path) -> None:
    """privileges.md: its node.toml, and the command that prints the list; root's own, as it must be."""
    if os.geteuid() != 0:
        pytest.skip("the actuator takes a configuration of root's alone: run as root")
    page = (ROOT / "docs/privileges.md").read_text("utf-8")
    (listed,) = (b for b in blocks(page) if "--list" in b)
    toml = re.search(r"<<'EOF'\n(.*?)^EOF", re.sub("^    ", "", page, flags=re.MULTILINE), re.MULTILINE | re.DOTALL)
    assert toml
    assert 'user = "surefoot"' in toml[1]
    # a user that every host has, in the place of the one that the page has made
    (tmp_path / "node.toml").write_text(toml[1].replace('user = "surefoot"', 'user = "nobody"'), "utf-8")
    said = shell(listed.replace("/etc/surefoot/node.toml", str(tmp_path / "node.toml")), tmp_path, environment(tmp_path))
    assert "/system.slice/web.service" in said
    assert "cpuset.cpus" in said
