"""Write workloads of the COSMOS paper: ten mixes at three loads and over-commitments (Sec. VI-B), and a day (Sec. VI-D).

    python3 scripts/workloads/cosmos.py [workloads/sets]

Its first experiment (Sec. VI-A) is the ten files `*-medium-medium`. Loads and working sets: the paper's Tables 1 to 3.
The day's course is ours, a sinusoid in steps of an hour between low and high load: the paper says "diurnal" and no more.
Exit code: 0 all written.
"""

from __future__ import annotations

import sys
from math import cos, pi
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
# The paper's hour.
HOUR_S = 240


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
                    "# Made by scripts/workloads/cosmos.py.\n"
                    f'platform = "cosmos-server"\nduration_s = {DURATION_S}\n\n'
                    f'[[lc]]\nservice = "{service}"\nrps = {rps}\nws_gb = {lc_gb}\n\n'
                    f'[[be]]\njob = "{job}"\nws_gb = {be_gb}\n'
                )
    return out


def day() -> str:
    """Mix 5 (memcached beside STREAM) at medium over-commitment, through 24 hours."""
    (low, _, high), (_, lc_gb, _) = SERVICES["memcached-lancet"]
    be_gb = JOBS["stream"][1]
    rps = [round(low + (high - low) * (1 - cos(2 * pi * hour / 24)) / 2) for hour in range(24)]
    changes = "".join(f"[[lc.change]]\nat_s = {HOUR_S * hour}\nrps = {rps[hour]}\n" for hour in range(1, 24))
    return (
        "# A day of mix 5 of the COSMOS paper at medium over-commitment: an hour is four minutes.\n"
        "# Made by scripts/workloads/cosmos.py.\n"
        f'platform = "cosmos-server"\nduration_s = {24 * HOUR_S}\n\n'
        f'[[lc]]\nservice = "memcached-lancet"\nrps = {rps[0]}\nws_gb = {lc_gb}\n{changes}\n'
        f'[[be]]\njob = "stream"\nws_gb = {be_gb}\n'
    )


def main(folder: Path) -> None:
    for of, files in {"cosmos-e2": workloads(), "cosmos-e4": {"day.toml": day()}}.items():
        (folder / of).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / of / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "workloads/sets"))
