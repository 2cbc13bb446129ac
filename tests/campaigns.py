"""Campaigns that tests run."""

from __future__ import annotations

from pathlib import Path

from collection import campaign


def measured(root: Path, text: str) -> Path:
    """The folder of a campaign that was carried out; the campaign itself is beside it, as campaign.toml."""
    (root / "campaign.toml").write_text(text, "utf-8")
    campaign.run(root / "campaign.toml", root / "out")
    return root / "out"
