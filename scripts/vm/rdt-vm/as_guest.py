"""A data set of a virtual server as a guest of scripts/vm/rdt-vm.sh would have measured it: no counters, tenths of a core.

python scripts/vm/rdt-vm/as_guest.py DATA OUT     DATA: the folder of one target of a campaign
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl

from models.features import FEATURE_SETS, candidates
from pipelines.io import sha256_file

# Cores per allocation unit of a host with fewer than eight CPUs (scheduler/linux/src/discover.rs).
GUEST_CORE_STEP = 0.1


def main(data: Path, out: Path) -> None:
    manifest = json.loads((data / "manifest.json").read_text())
    full, without = FEATURE_SETS
    manifest["feature_set"] = without
    manifest["platform"]["core_step"] = GUEST_CORE_STEP
    for shard in manifest["shards"]:
        rows = pl.read_parquet(data / shard["file"])
        ways = manifest["platform"]["ways"]
        counted = set(candidates(rows.columns, full, ways)) - set(candidates(rows.columns, without, ways))
        path = out / shard["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        rows.with_columns(pl.lit(None, rows.schema[name]).alias(name) for name in sorted(counted)).write_parquet(path)
        shard["sha256"] = sha256_file(path)
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
