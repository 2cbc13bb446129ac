#!/usr/bin/env python3
"""A policy by slack, after the idea of PARTIES: every half second one unit of one resource moves.

python examples/python-policy/by_slack.py --socket DIR/slack.sock
"""

from __future__ import annotations

from surefoot.policy import Books, Count, Hello, Observation, Plan, Policy, run

EVERY_MS, NEEDS_QOS, SLACK_QOS, PEACE_MS = 500, 1.1, 1.4, 15_000


class BySlack(Policy):
    """One unit of one resource at a time goes to the service that is worst off, or back to the jobs."""

    name = "by-slack"

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.next_ms = 0
        self.turn: dict[str, int] = {}  # which resource of a service moves next: cores if even, else ways
        self.peace_ms: dict[str, int] = {}  # until when nothing goes back from a service that needed more

    def decide(self, seen: Observation) -> Plan | None:
        books = Books(self.hello, seen)
        for s in seen.lc:
            if s.id not in books.held:
                self._let_in(books, s.id, len(seen.lc) + bool(seen.be))
        known = sorted((qos, s.id) for s in seen.lc if (qos := s.qos) is not None and s.id in books.held)
        if known and seen.t_ms >= self.next_ms:
            self.next_ms = seen.t_ms + EVERY_MS
            (worst_qos, worst), (best_qos, best) = known[0], known[-1]
            if worst_qos < NEEDS_QOS:
                self.peace_ms[worst] = seen.t_ms + PEACE_MS
                self._grow(books, worst, best if best_qos > SLACK_QOS else None, f"QoS {worst_qos:.2f}: it needs more")
            elif best_qos > SLACK_QOS and seen.t_ms >= self.peace_ms.get(best, 0):
                self._move(books, best, -1, f"QoS {best_qos:.2f}: more than it needs")
        return books.plan()

    def _let_in(self, books: Books, sid: str, holders: int) -> None:
        """An equal share for a newcomer: of what is free, and of what others hold beyond such a share."""
        least, total = self.hello.least, self.hello.total
        share = Count(max(total.core_units // holders, least.core_units), max(total.ways // holders, least.ways))
        for other, now in books.held.items():
            cores = min(max(share.core_units - books.free.core_units, 0), max(now.core_units - share.core_units, 0))
            ways = min(max(share.ways - books.free.ways, 0), max(now.ways - share.ways, 0))
            if cores or ways:
                books.hold(other, now.core_units - cores, now.ways - ways, why=f"{sid} has come")
        wanted = min(share.core_units, books.free.core_units), min(share.ways, books.free.ways)
        if not books.hold(sid, *wanted, why="it has come"):
            books.crowd(sid)

    def _grow(self, books: Books, sid: str, giver: str | None, why: str) -> None:
        """A core or a way, by turns: from what is free, else from the service with the most slack."""
        for _ in range(2):
            if self._move(books, sid, 1, why):
                return
            if giver:
                self.turn[giver] = self.turn.get(sid, 0)
                if self._move(books, giver, -1, f"{sid} needs it") and self._move(books, sid, 1, why):
                    return
            self.turn[sid] = self.turn.get(sid, 0) + 1

    def _move(self, books: Books, sid: str, by: int, why: str) -> bool:
        now, ways = books.held[sid], self.turn.get(sid, 0) % 2
        moved = books.hold(sid, now.core_units + by * (1 - ways), now.ways + by * ways, why=why)
        self.turn[sid] = self.turn.get(sid, 0) + (moved or by < 0)
        return moved


if __name__ == "__main__":
    run(BySlack)
