"""Errors of the pipeline and of bundles.

Interrupted            a signal ended the work (no PipelineError, nor anything else that a library catches)
PipelineError          one clear message: what, where, remedy; exit code 1
└── BadInput           the caller's file, field or flag is at fault; exit code 2
    ├── TooLarge       a file is larger than anything that belongs there
    ├── NoFeasibleCell no measured allocation of a plane meets the QoS target
    └── BundleError    a bundle is damaged, unsigned, or not the one that is wanted; `.file` names the culprit
"""

from __future__ import annotations


def printable(text: str) -> str:
    """Text from outside as part of a message: one line, and nothing that moves a terminal's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Interrupted(BaseException):
    """A signal asked this process to end.

    Attributes:
        by: the signal's name, or what else asked.
    """

    def __init__(self, by: str) -> None:
        super().__init__(by)
        self.by = by


class PipelineError(RuntimeError):
    """A stage failed; exit code 1."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class BadInput(PipelineError):
    """Input that cannot be used; exit code 2."""

    exit_code = 2


class TooLarge(BadInput):
    """A file of more bytes than may be read."""


class NoFeasibleCell(BadInput):
    """No measured allocation meets the QoS target."""


class BundleError(BadInput):
    """A bundle that must not be used.

    Attributes:
        kind: of refusal, one of those in bundle_rules.json.
        file: path inside the bundle of the file at fault.
    """

    def __init__(self, kind: str, file: str, message: str) -> None:
        super().__init__(f"{file}: {message}")
        self.kind = kind
        self.file = file
