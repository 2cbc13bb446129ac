"""A data set whose files DVC linked to its cache: nothing is written through the links."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from collection import campaign, verify
from collection.errors import CampaignError, DataSetError
from pipelines.errors import BadInput
from pipelines.io import linked, write_bytes

LINKED = """
name = "linked"
strategy = "exhaustive"
seed = 1
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses"]
rps = 1500
threads = 8
cores = "1..2"
ways = "1..2"
[sampling]
samples = 3
"""
WAYS: dict[str, Callable[[Path, Path], None]] = {
    "symbolic": lambda kept, at: at.symlink_to(kept),
    "hard": lambda kept, at: os.link(kept, at),
}


def campaign_of(folder: Path) -> Path:
    """The folder of a small campaign that was carried out."""
    folder.mkdir(exist_ok=True)
    (folder / "campaign.toml").write_text(LINKED, "utf-8")
    campaign.run(folder / "campaign.toml", folder / "out")
    return folder / "out"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("half", [False, True])
def test_a_campaign_writes_through_no_link(way: str, half: bool, tmp_path: Path) -> None:
    """Going on with a data set whose files DVC linked to its cache is refused in one line with the remedy; the cache stays."""
    file, out, cache = tmp_path / "campaign.toml", campaign_of(tmp_path), tmp_path / "cache" / "files" / "md5" / "ab"
    if half:
        (out / "server-1" / "journal.jsonl").write_text("")
    cache.mkdir(parents=True)
    before = {}
    for k, path in enumerate(sorted(p for p in out.rglob("*") if p.is_file() and p.name != ".lock")):
        kept = cache / f"{k:x}"
        path.rename(kept)
        kept.chmod(0o444)
        WAYS[way](kept, path)
        before[kept] = kept.read_bytes()
    assert set(linked(out)) == {p for p in out.rglob("*") if p.is_file() and p.name != ".lock"}
    for work in (lambda: campaign.run(file, out), lambda: campaign.plan(file, out=out)):
        with pytest.raises(CampaignError) as refused:
            work()
        assert f"dvc unprotect {out}" in str(refused.value)
        assert len(str(refused.value).splitlines()) == 1
    assert {path: path.read_bytes() for path in cache.iterdir()} == before
    # as `dvc unprotect` leaves it
    for path in list(linked(out)):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    campaign.run(file, out)
    assert {path: path.read_bytes() for path in cache.iterdir()} == before


def test_a_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    """Whatever writes a file of ours (a card, a manifest) leaves an object of DVC's cache alone, and says how to go on."""
    cache = tmp_path / "files" / "md5" / "ab"
    cache.mkdir(parents=True)
    (cache / "cd").write_bytes(b"kept")
    (tmp_path / "card.md").symlink_to(cache / "cd")
    os.link(cache / "cd", tmp_path / "hard.md")
    with pytest.raises(BadInput, match=r"is a link into DVC's cache, .* Run: dvc unprotect"):
        write_bytes(tmp_path / "card.md", b"new")
    write_bytes(tmp_path / "hard.md", b"new")
    assert (cache / "cd").read_bytes() == b"kept"


def test_remedies_can_be_pasted(tmp_path: Path) -> None:
    """Commands that messages tell have a folder with a blank, or with more than that, as one word."""
    folder = tmp_path / "my lab; touch HACKED"
    out = campaign_of(folder)
    shard = next((out / "server-1" / "shards").iterdir())
    shard.write_bytes(b"damaged")
    (finding,) = [f for f in verify.verify(out).findings if f.severity == "error"]
    command = finding.remedy.split(": ", 1)[1]
    words = shlex.split(command)
    assert words[:3] == ["rm", str(shard), "&&"]
    assert words[3:] == ["surefoot", "campaign", "run", str(out / "campaign.toml"), "--out", str(out)]
    with pytest.raises(DataSetError) as refused:
        verify.verify(folder / "none")
    assert shlex.split(str(refused.value).rsplit(": ", 1)[1])[-1] == str(folder / "none")
