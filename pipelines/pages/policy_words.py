"""What is said of policies beside each other, the same on the demo's page and on the evaluation's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Standing:
    """One policy on one set of workloads. be_throughput: mean, 1 = alone; None where there is no BE job."""

    policy: str
    ours: bool
    converged: int
    be_throughput: float | None


def be_words(standings: Iterable[Standing]) -> str:
    """What policies of ours leave to BE jobs, beside the best of those others that converge as often; "" without BE jobs."""
    known = [s for s in standings if s.be_throughput is not None]
    said = []
    for mine in (s for s in known if s.ours):
        others = [s for s in known if not s.ours and s.converged >= mine.converged]
        best = max(others, key=lambda s: s.be_throughput or 0.0, default=None)
        if best is None:
            said.append(f"No policy of others converges as often as {mine.policy}.")
            continue
        of = "as often" if best.converged == mine.converged else "more often"
        far = (mine.be_throughput or 0.0) / best.be_throughput - 1 if best.be_throughput else 0.0
        how = f"{100 * abs(far):.0f} % {'more' if far > 0 else 'less'} than" if round(100 * far) else "as much as"
        said.append(f"{mine.policy} leaves BE jobs {how} {best.policy}, which converges {of}.")
    return " ".join(said)
