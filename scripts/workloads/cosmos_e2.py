"""Write the workloads of the COSMOS paper's second experiment: ten mixes at three loads and three over-commitments (Sec. VI-B).

    python3 scripts/workloads/cosmos_e2.py [workloads/sets/cosmos-e2]

Its first experiment (Sec. VI-A) is the ten files `*-medium-medium`. Loads and working sets: the paper's Tables 1 to 3.
Exit code: 0 all written.
"""

from __future__ import annotations

import sys
from pathlib import Path

LEVELS = ("low", "medium", "high")
# Requests/s at each level of load; working set in GB at each level of over-commitment.
SERVICES = {
    "memcached-lancet": ((37_500, 75_000, 150_000), (42.1, 45.0, 51.1)),
    "silo-cosmos": ((1_000, 2_000, 4_000), (42.1, 45.2, 51.3)),
}
JOBS = {
    "bc": (22.5, 24.0, 27.0),
    "bfs": (22.6, 24.1, 27.3),
    "canneal": (22.5, 24.2, 27.1),
    "cc": (22.6, 24.1, 27.3),
    "stream": (22.5, 24.0, 27.0),
}
# The search takes one to three minutes; what is kept then should stay.
DURATION_S = 360


def workloads() -> dict[str, str]:
    """Text of each file, by its name: `mix-MM-LOAD-MOR.toml`, mixes as the paper numbers them."""
    out = {}
    mixes = [(service, job) for service in SERVICES for job in JOBS]
    for n, (service, job) in enumerate(mixes, start=1):
        loads, sets = SERVICES[service]
        for load, rps in zip(LEVELS, loads, strict=True):
            for mor, lc_gb, be_gb in zip(LEVELS, sets, JOBS[job], strict=True):
                out[f"mix-{n:02}-{load}-{mor}.toml"] = (
                    f"# Mix {n} of the COSMOS paper: {load} load, {mor} over-commitment of memory.\n"
                    "# Made by scripts/workloads/cosmos_e2.py.\n"
                    f'platform = "cosmos-server"\nduration_s = {DURATION_S}\n\n'
                    f'[[lc]]\nservice = "{service}"\nrps = {rps}\nws_gb = {lc_gb}\n\n'
                    f'[[be]]\njob = "{job}"\nws_gb = {be_gb}\n'
                )
    return out


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in workloads().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "workloads/sets/cosmos-e2"))
