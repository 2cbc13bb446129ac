#!/usr/bin/env python3
"""Equal shares of cores and ways: the policy `equal-share` of Surefoot, written in Python.

    python examples/python-policy/equal_share.py --socket DIR/equal.sock

A test holds it to the figures of the other one, to the last bit.
"""

from __future__ import annotations

from surefoot.policy import Books, Count, Observation, Plan, Policy, run


class EqualShare(Policy):
    """Equal shares of cores and ways."""

    name = "equal-share-in-python"

    def decide(self, seen: Observation) -> Plan:
        total, least, books = self.hello.total, self.hello.least, Books(self.hello, seen)
        holders = len(seen.lc) + bool(seen.be)

        def part(of: int, i: int) -> int:
            """What does not divide stays with the jobs; without any it goes one by one to the services."""
            return of // holders + (not seen.be and i < of % holders)

        shares = {
            s.id: Count(max(part(total.core_units, i), least.core_units), max(part(total.ways, i), least.ways))
            for i, s in enumerate(seen.lc)
        }
        for s in seen.lc:  # who holds too much gives, unless its latency is unknown
            now, share = books.held.get(s.id), shares[s.id]
            if now and not s.latency_unknown:
                books.hold(s.id, min(now.core_units, share.core_units), min(now.ways, share.ways))
        for sid in [sid for sid in shares if sid not in books.held]:  # newcomers
            if not books.hold(sid, shares[sid].core_units, shares[sid].ways) and sid not in seen.crowd:
                books.crowd(sid)
                books.report("cannot-place", sid, f"no room for one of {holders} equal shares")
        for sid, share in shares.items():  # who holds too little gets more
            if now := books.held.get(sid):
                books.hold(sid, max(now.core_units, share.core_units), max(now.ways, share.ways))
        return books.plan()


if __name__ == "__main__":
    run(EqualShare)
