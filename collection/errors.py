"""Every error this package raises on purpose.

SurefootError              exit code 1: something failed; the message says what and what to do
├── InputError             exit code 2: the user's file, field or option is wrong; nothing was changed
│   ├── AdapterError       a file is not what the named tool writes
│   ├── CampaignError      a campaign file, or a target in it, cannot be used
│   └── DataSetError       a folder is not a campaign's, or its manifest or journal cannot be read
├── ToolMissing            a binary of this repository is not built
├── ToolFailed             a binary ran and failed; carries its own message and exit code
├── HostFailed         a host of a campaign gave up, is silent, or sent what it should not have
├── NotReady               a machine or a host cannot run a campaign as it stands; nothing was started
├── Busy                   another process works in the same folder
├── VerifyFailed           a data set does not add up; carries the findings
└── StepFailed             a step of the demo failed; carries the step's name
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager

from pipelines.errors import BadInput

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing it costs `campaign status` time
    from collections.abc import Iterator

_REMEDIES = {
    errno.ENOSPC: "Free some space, or give a folder on another disk",
    errno.EDQUOT: "Free some space, or give a folder on another disk",
    errno.EACCES: "Check owner and mode of that path, or give another",
    errno.EPERM: "Check owner and mode of that path, or give another",
    errno.EROFS: "Give a path elsewhere",
    errno.ENOENT: "Check the path: something in it is missing, or takes no new files",
    errno.ENOTDIR: "Check the path: a part of it is a file, not a folder",
}


def told(error: OSError) -> str:
    """What the operating system refused, in one line: path, cause, remedy."""
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes | os.PathLike) else ""
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{where}{error.strerror or error}" + (f". {remedy}" if remedy else "")


class SurefootError(Exception):
    """Something failed. The message is one line a user can act on."""

    exit_code = 1


class InputError(SurefootError):
    """What the user gave is wrong: file, field and remedy are in the message."""

    exit_code = 2


class CampaignError(InputError):
    """A campaign file, or one of its targets, cannot be used."""


class AdapterError(InputError):
    """A file is not what the named tool writes."""


class DataSetError(InputError):
    """A folder is not a campaign's data set, or its manifest or journal cannot be read."""


@contextmanager
def of_a_data_set() -> Iterator[None]:
    """While this is entered what the pipelines' readers refuse is a fault of a data set."""
    try:
        yield
    except BadInput as e:
        raise DataSetError(str(e)) from e


class ToolMissing(SurefootError):
    """A binary of this repository is not built."""


class ToolFailed(SurefootError):
    """A binary ran and failed.

    Args:
        tool: its name.
        message: its own message, in one or a few lines.
        code: its exit code, negative for a signal; 2 (bad input) is handed on.
    """

    def __init__(self, tool: str, message: str, code: int) -> None:
        super().__init__(message)
        self.tool = tool
        self.code = code
        self.exit_code = 2 if code == 2 else 1


class HostFailed(SurefootError):
    """A host of a campaign gave up, was not heard of, or sent something else than its manifest says."""


class NotReady(SurefootError):
    """A target cannot run the campaign as it stands: no image, no engine, a port in use. Nothing was started."""


class Busy(SurefootError):
    """Another process works in the same folder."""


class VerifyFailed(SurefootError):
    """A data set does not add up; the findings were printed."""


class StepFailed(SurefootError):
    """A step of the demo failed; the message names it, its log and the remedy."""
