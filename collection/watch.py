"""Where the progress of a run goes."""

from __future__ import annotations

from typing import Any, Protocol


class Report(Protocol):
    """Where the progress of a run goes. The shipped ones: `console.Progress` and `Silent`."""

    def start(self, target: str, planned: int) -> None:
        """A target starts, or goes on."""

    def update(self, target: str, line: dict[str, Any]) -> None:
        """A progress line of `surefootd sweep`, with `usable_rows` of `rows` so far where they were counted."""

    def trouble(self, target: str, what: str) -> None:
        """What is wrong with a target, as soon as it is known: a host that cannot be reached, or gave up."""


class Silent:
    """Progress that nobody watches."""

    def start(self, target: str, planned: int) -> None:
        pass

    def update(self, target: str, line: dict[str, Any]) -> None:
        pass

    def trouble(self, target: str, what: str) -> None:
        pass
