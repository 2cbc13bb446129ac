"""Make the index's PyTorch wheel import on a CPU without 1.9 GB of GPU libraries.

The wheel for Linux links against cuBLAS, cuDNN, NCCL and others. The loader wants those files to exist, although nothing
in them is ever called on a CPU. This module builds a stand-in for each missing one: a shared library of a few kB with the
same soname, symbol names and symbol versions, whose functions all return 1 ("not initialised" in each of those APIs), so
that a stray GPU call raises PyTorch's own error and does not crash. Libraries that are installed are left alone.

    python -m pipelines.cpu_torch            build what is missing, then import torch as a check
    python -m pipelines.cpu_torch --check    only say what is missing; exit code 1 if anything is

Needs `cc` and `readelf`, which a Rust tool chain needs too. With a CPU-only build of PyTorch there is nothing to do.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

# Symbols without a version do not say which library they are from; these prefixes do.
_UNVERSIONED_PREFIXES = {
    "cusparseLt": "libcusparseLt",
    "nccl": "libnccl",
    "nvshmem": "libnvshmem",
    "cufile": "libcufile",
    "cuFile": "libcufile",
}


class StandInError(RuntimeError):
    """A stand-in could not be built; the message says what to install."""


@dataclass
class StandIn:
    """One missing library: its soname, and its symbols as (name, version or None, is data)."""

    soname: str
    symbols: set[tuple[str, str | None, bool]] = field(default_factory=set)


def torch_folder() -> Path | None:
    """Folder of the installed torch package, found without importing it; None where torch is not installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def _readelf(*args: str) -> str:
    tool = shutil.which("readelf")
    if tool is None:
        raise StandInError("readelf not found: install binutils, or install a CPU-only build of PyTorch")
    return subprocess.run(
        [tool, "-W", *args], check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    ).stdout


def missing_libraries(torch_dir: Path) -> list[StandIn]:
    """Libraries that torch's shared objects need and that no folder on their search path has."""
    objects = sorted((torch_dir / "lib").glob("*.so*"))
    nvidia = torch_dir.parent / "nvidia"
    present = {path.name for path in objects} | {path.name for path in nvidia.glob("*/lib/*.so*")}
    present |= {path.name for path in (torch_dir.parent / "torch.libs").glob("*.so*")}
    missing: dict[str, StandIn] = {}
    # libcaffe2_nvrtc is opened by hand for GPU kernels only; it also needs the driver, which no package has.
    for path in (p for p in objects if p.name != "libcaffe2_nvrtc.so"):
        needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\]", _readelf("-d", str(path))))
        wanted = {n for n in needed - present if re.match(r"lib(cu|nccl|nv)", n)}
        if path.name == "libtorch_cuda_linalg.so":
            wanted -= {n for n in wanted if n.startswith("libcusolver")}  # opened at the first GPU solve
        if not wanted:
            continue
        for soname in wanted:
            missing.setdefault(soname, StandIn(soname))
        owner: dict[str, str] = {}
        current = ""
        for line in _readelf("-V", str(path)).splitlines():
            if m := re.search(r"Version: \d+\s+File: (\S+)", line):
                current = m[1]
            elif (m := re.search(r"Name: (\S+)\s+Flags", line)) and current:
                owner[m[1]] = current
        for line in _readelf("--dyn-syms", str(path)).splitlines():
            parts = line.split()
            if len(parts) < 8 or parts[6] != "UND" or parts[4] == "WEAK":
                continue
            name, _, version = parts[7].partition("@")
            version = version.lstrip("@")
            is_data = parts[3] == "OBJECT"
            if version:
                if owner.get(version) in wanted:
                    missing[owner[version]].symbols.add((name, version, is_data))
                continue
            for prefix, stem in _UNVERSIONED_PREFIXES.items():
                target = next((s for s in wanted if s.startswith(stem)), None)
                if name.startswith(prefix) and target:
                    missing[target].symbols.add((name, None, is_data))
    return sorted(missing.values(), key=lambda s: s.soname)


def build(stand_in: StandIn, folder: Path) -> Path:
    """Compile one stand-in into `folder`, in place only once it is complete."""
    cc = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if cc is None:
        raise StandInError("no C compiler found: install gcc, or install a CPU-only build of PyTorch")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source = Path(scratch, "stand_in.c")
        script = Path(scratch, "versions.map")
        target = Path(scratch, stand_in.soname)
        source.write_text(
            "/* Generated: stands in for a GPU library that a CPU never calls. */\n"
            + "".join(
                f"char {name}[64];\n" if is_data else f"int {name}(void) {{ return 1; }}\n"
                for name, _, is_data in sorted(stand_in.symbols, key=str)
            )
        )
        versions: dict[str, list[str]] = {}
        for name, version, _ in stand_in.symbols:
            if version:
                versions.setdefault(version, []).append(name)
        script.write_text("".join(f"{v} {{ global: {'; '.join(sorted(n))}; }};\n" for v, n in sorted(versions.items())))
        command = [cc, "-shared", "-fPIC", "-O1", "-nostdlib", "-w", f"-Wl,-soname,{stand_in.soname}", "-o", str(target)]
        if versions:
            command.append(f"-Wl,--version-script={script}")
        done = subprocess.run([*command, str(source)], capture_output=True, text=True)
        if done.returncode != 0:
            raise StandInError(f"{stand_in.soname}: the C compiler failed: {done.stderr.strip()[:500]}")
        os.replace(target, folder / stand_in.soname)
    return folder / stand_in.soname


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.cpu_torch", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a library is missing")
    args = parser.parse_args(argv)
    folder = torch_folder()
    if folder is None:
        print("PyTorch is not installed: pip install --require-hashes --no-deps -r requirements.lock", file=sys.stderr)
        return 2
    if not sys.platform.startswith("linux"):
        return 0
    try:
        missing = missing_libraries(folder)
        if args.check:
            for stand_in in missing:
                print(f"missing {stand_in.soname} ({len(stand_in.symbols)} symbols)")
            return 1 if missing else 0
        for stand_in in missing:
            build(stand_in, folder.parent / "nvidia" / "cu13" / "lib")
    except StandInError as error:
        print(error, file=sys.stderr)
        return 1
    # A fresh interpreter, because a failed import leaves half a torch behind.
    probe = "import torch; x = torch.ones(3, requires_grad=True); (x * x).sum().backward(); print(torch.__version__)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"PyTorch does not import: {done.stderr.strip()[-800:]}", file=sys.stderr)
        return 1
    print(f"PyTorch {done.stdout.strip()} runs on the CPU; stand-ins built: {len(missing)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
