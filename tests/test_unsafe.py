"""`unsafe` in the Rust code: where it is, how often, and that nothing else may have it. Clippy asks for the SAFETY comments."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Blocks, functions and implementations of each file. A new one changes its number here, in sight of the reviewer; a safe wrapper
# (nix) is better, and so is a place that has unsafe code already.
PRODUCT = {
    "scheduler/bpf/src/object.rs": 4,
    "scheduler/bpf/src/policy.rs": 2,
    "scheduler/bpf/src/words.rs": 5,
    "scheduler/io/src/out.rs": 2,
    "scheduler/learn/src/wide.rs": 1,
    "scheduler/linux/src/actuator/client.rs": 1,
    "scheduler/linux/src/actuator/harden.rs": 11,
    "scheduler/linux/src/actuator/serve.rs": 2,
    "scheduler/linux/src/check/counters.rs": 3,
    "scheduler/linux/src/child.rs": 2,
    "scheduler/linux/src/local/command.rs": 2,
    "scheduler/linux/src/perf.rs": 4,
    "scheduler/linux/src/procfs.rs": 4,
    "scheduler/resctrlfs/src/fuse.rs": 1,
    "scheduler/resctrlfs/src/host.rs": 1,
    "scheduler/surefootd/src/node/phases.rs": 1,
    "scheduler/surefootd/src/node/upper/socket.rs": 1,
    "scheduler/surefootd/src/main.rs": 1,
    "scheduler/surefootd/src/base/stop.rs": 1,
    "workloads/loadgen/src/config.rs": 3,
    "workloads/loadgen/src/control.rs": 3,
    "workloads/loadgen/src/inproc.rs": 1,
    "workloads/loadgen/src/main.rs": 1,
    "workloads/loadgen/src/net.rs": 11,
    "workloads/loadgen/src/realtime.rs": 4,
    "workloads/loadgen/src/run.rs": 4,
}
TESTS = {
    "scheduler/bpf/tests/no_call.rs": 2,
    "scheduler/linux/src/actuator/tests.rs": 2,
    "scheduler/linux/src/bench/client.rs": 1,
    "scheduler/linux/src/bench/disturbed.rs": 1,
    "scheduler/linux/src/claim.rs": 1,
    "scheduler/linux/src/local/tests.rs": 2,
    "scheduler/mutate/src/allocations.rs": 7,
    "scheduler/mutate/src/watch.rs": 5,
    "scheduler/resctrlfs/tests/mounted.rs": 11,
    "scheduler/surefootd/tests/record_top.rs": 6,
    "scheduler/surefootd/tests/stdio.rs": 4,
    "workloads/loadgen/src/output.rs": 2,
    "workloads/loadgen/tests/cli.rs": 3,
    "workloads/loadgen/tests/memcached.rs": 2,
}
CODE = re.compile(r"\bunsafe\s*(?:\{|fn\b|impl\b|trait\b|extern\b)")


def sources() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return listed.split()


def count(file: str) -> int:
    lines = (ROOT / file).read_text("utf-8").splitlines()
    return len(CODE.findall("\n".join(line.partition("//")[0] for line in lines)))


def crates() -> list[Path]:
    members = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    return [ROOT / member for member in members]


def test_unsafe_code_does_not_grow_unnoticed() -> None:
    """Every file has as much as is written down here, and no other file has any."""
    found = {file: n for file in sources() if (n := count(file))}
    assert found == PRODUCT | TESTS


def test_where_it_is_allowed_there_is_some() -> None:
    """A file that needs no unsafe code any more loses its permission, too."""
    allowed = {file for file in sources() if re.search(r"#!?\[allow\(unsafe_code", (ROOT / file).read_text("utf-8"))}
    assert allowed == set(PRODUCT | TESTS)


def test_each_crate_is_under_the_workspaces_lints() -> None:
    """Unsafe code is denied but where it is allowed by name; a library without any forbids it, which nothing below can allow."""
    lints = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["lints"]
    assert lints["rust"] == {"unsafe_code": "deny", "unsafe_op_in_unsafe_fn": "deny"}
    assert lints["clippy"]["undocumented_unsafe_blocks"] == "deny"
    with_some = {Path(file) for file in PRODUCT | TESTS}
    for crate in crates():
        assert tomllib.loads((crate / "Cargo.toml").read_text())["lints"] == {"workspace": True}, crate
        library = crate / "src" / "lib.rs"
        has = any((ROOT / file).is_relative_to(crate / "src") for file in with_some)
        if library.exists() and not has:
            assert "#![forbid(unsafe_code)]" in library.read_text(), crate
