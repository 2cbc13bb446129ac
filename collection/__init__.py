"""The lab side of Surefoot: campaigns, their state and proof, the demo and its report. Entry point: `surefoot`."""

from .errors import (
    AdapterError,
    Busy,
    CampaignError,
    DataSetError,
    HostFailed,
    InputError,
    NotReady,
    StepFailed,
    SurefootError,
    ToolFailed,
    ToolMissing,
    VerifyFailed,
)

__all__ = [
    "AdapterError",
    "Busy",
    "CampaignError",
    "DataSetError",
    "HostFailed",
    "InputError",
    "NotReady",
    "StepFailed",
    "SurefootError",
    "ToolFailed",
    "ToolMissing",
    "VerifyFailed",
]
