"""Traces of load for workload files, from the published ones of Autothrottle.

    python scripts/data/load_shapes.py CHECKOUT [OUT]

CHECKOUT is a clone of github.com/microsoft/autothrottle, OUT the folder (default: the shipped profiles'). Each of the
four traces is an hour of requests a second. Ten seconds become one sample, their mean. Lowest and highest become 0 and 1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

TRACES = ("bursty", "diurnal", "diurnal-2", "noisy")
# Seconds a sample: the error is below 0.3 % of the peak (root mean square), and 5 % for `noisy`, which jumps each second.
SAMPLE_S = 10
OUT = Path(__file__).resolve().parents[2] / "scheduler/vserver/profiles/loads"
# Numbers a line.
_LINE = 18


def shape(per_second: Sequence[float]) -> tuple[float, list[float]]:
    """The lowest sample as a share of the highest, and all samples from 0 (lowest) to 1 (highest)."""
    samples = [sum(per_second[i : i + SAMPLE_S]) / SAMPLE_S for i in range(0, len(per_second) - SAMPLE_S + 1, SAMPLE_S)]
    low, high = min(samples), max(samples)
    return low / high, [(s - low) / (high - low) for s in samples]


def text(name: str, low: float, values: Sequence[float]) -> str:
    """The file of a trace (docs/workload-format.md)."""
    numbers = [f"{v:.3f}" for v in values]
    lines = [", ".join(numbers[i : i + _LINE]) for i in range(0, len(numbers), _LINE)]
    return "\n".join(
        (
            f"# traces/{name}.txt of Autothrottle (NSDI 2024), by scripts/data/load_shapes.py.",
            f'source = "github.com/microsoft/autothrottle, commit d237d7f, traces/{name}.txt"',
            'licence = "MIT, see LICENSE-autothrottle.txt"',
            f"sample_s = {SAMPLE_S}",
            f"low = {low:.3f}",
            "values = [",
            *(f"    {line}," for line in lines),
            "]",
            "",
        )
    )


def main(args: Sequence[str]) -> None:
    """Write one file a trace, and the licence beside them."""
    checkout, out = Path(args[0]), Path(args[1]) if len(args) > 1 else OUT
    out.mkdir(parents=True, exist_ok=True)
    for name in TRACES:
        found = [float(n) for n in (checkout / "traces" / f"{name}.txt").read_text("utf-8").split()]
        (out / f"autothrottle-{name}.toml").write_text(text(name, *shape(found)), "utf-8")
    (out / "LICENSE-autothrottle.txt").write_text((checkout / "LICENSE.txt").read_text("utf-8"), "utf-8")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(f"load_shapes: give a clone of github.com/microsoft/autothrottle, and a folder at most. {__doc__}")
    main(sys.argv[1:])
