"""What the stage `rows` says of its rows (rows.json): apart from how it makes them, which is no reason to train again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from models.features import PlatformLimits
from pipelines.io import read_model
from pipelines.samples import PLANT


def digest_of(digests: Sequence[str]) -> str:
    """Of several data sets: the digest of theirs, in order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


class Left(BaseModel):
    """Rows that were left out, by reason."""

    disturbed: int = 0  # files from before these were left out do not say
    memory_bound: int = 0  # nor do files from before limits on memory were an axis
    feature_missing: int
    not_resolvable: int
    overloaded: int
    thinned_out: int


class About(BaseModel):
    """What `rows.json` says.

    Attributes:
        features: sample features that every row has.
        made_by: versions of the programs that measured, and of the plant where the server was a virtual one, by name.
    """

    data_sha256: str
    campaign: str
    feature_set: str
    platform: PlatformLimits
    features: list[str]
    rows: int
    rows_left_out: Left
    made_by: dict[str, str] = {}

    def tags(self) -> dict[str, str]:
        """What is known of the data, as tags of a run."""
        made = {name if name == PLANT else f"data_{name}": version for name, version in self.made_by.items()}
        return {"platform": self.platform.name, "campaign": self.campaign, **made}


def about(folder: Path) -> About:
    """Read the stage's `rows.json`.

    Raises:
        BadInput: it is missing or damaged; names file and field.
    """
    return read_model(
        folder / "rows.json", About, "the summary of the stage `rows`", "make it again with `dvc repro --force rows`"
    )
