"""Loads that are found on the target (`rps = "saturation:..."`) reach rows, plans, checks and labels."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from campaigns import measured
from click.testing import CliRunner

from collection import campaign, card, commands, dataset, mirror, shardfile, tools, verify
from pipelines import label, params, rows

CAMPAIGN = """\
name = "found"
seed = 3
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses", "xapian"]
rps = "saturation:80,20,50"
threads = [8]
cores = [2, 4, 6, 8]
ways = [4, 10, 16]
neighbours = { count = [0, 1], draws = 1 }
[sampling]
interval_ms = 1000
samples = 2
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The campaign, carried out on a virtual server."""
    return measured(tmp_path_factory.mktemp("found"), CAMPAIGN)


def samples(target: Path) -> pl.DataFrame:
    return pl.concat(pl.read_parquet(p) for p in sorted((target / "shards").iterdir()))


def test_rows_say_their_share(out: Path) -> None:
    """Each row carries the per cent that the campaign asked for, and the rate that this is of the max load in the manifest."""
    manifest = dataset.read_manifest(out / "server-1")
    found = {(m.service, m.threads): m.max_load_rps for m in manifest.max_loads}
    frame = samples(out / "server-1").select("service", "threads", "rps", "load_pct").unique()
    assert {(s, p) for s, _, _, p in frame.iter_rows()} == {(s, p) for s in ("moses", "xapian") for p in (20.0, 50.0, 80.0)}
    for service, threads, rps, pct in frame.iter_rows():
        most = found[service, threads]
        assert most is not None
        assert rps == pytest.approx(most * pct / 100, abs=1e-6)
    assert list(shardfile.differences(pl.read_parquet_schema(next(iter((out / "server-1/shards").iterdir()))))) == []


def test_the_data_set_is_sound(out: Path) -> None:
    """`verify` finds nothing, the card is written, and a rerun measures nothing."""
    assert [f"{f.file}: {f.what}" for f in verify.verify(out).findings] == []
    before = {p: p.read_bytes() for p in (out / "server-1").rglob("*.parquet")}
    campaign.run(out / "campaign.toml", out)
    assert {p: p.read_bytes() for p in (out / "server-1").rglob("*.parquet")} == before
    assert (out / card.CARD).exists()


def test_labels_and_rows_are_made_of_it(out: Path, tmp_path: Path) -> None:
    """A plane is one service at one share: two services, three loads, with and without a neighbour."""
    told = label.run(out / "server-1", tmp_path / "label", params.Label())
    assert told["planes"]["all"] == 12
    assert rows.run(out / "server-1", tmp_path / "label", tmp_path / "rows", params.Rows())["rows"] > 0


def test_a_plan_lists_what_it_will_look_for(tmp_path: Path) -> None:
    """Before anything is measured a plan names cases, their shares, and the max loads that come first."""
    (tmp_path / "c.toml").write_text(CAMPAIGN, "utf-8")
    (target,) = campaign.plan(tmp_path / "c.toml")["targets"]
    assert {(load["service"], load["threads"]) for load in target["loads_to_find"]} >= {("moses", 8), ("xapian", 8)}
    assert target["preview"][0]["rps"] is None
    assert target["preview"][0]["load_pct"] == 80.0
    said = CliRunner().invoke(commands.surefoot, ["campaign", "plan", str(tmp_path / "c.toml")]).output
    assert "max loads to be measured first: moses (8 threads)" in " ".join(said.split())
    assert "80 % of max" in said


def test_hosts_with_loads_of_their_own_are_one_data_set(out: Path, tmp_path: Path) -> None:
    """Two hosts share the planes and differ in their max loads: neither is taken for another, and each keeps what it found."""
    file, data = tmp_path / "campaign.toml", tmp_path / "out"
    # one service, so that both hosts have planes of it, whose rates go up and down
    file.write_text(CAMPAIGN.replace('["moses", "xapian"]', '["moses"]'), "utf-8")
    split = mirror.Split("job", "lab", mirror.shares(["fast", "slow"]))
    split.write(data)
    for share in split.shares:
        target = tmp_path / share.host
        args = ["sweep", file, "--server", "virtual:server-1", "--out", target, "--part", share.part]
        subprocess.run([str(tools.find(tools.SUREFOOTD)), *map(str, args)], check=True, capture_output=True, timeout=120)
        if share.host == "slow":
            slowed(target)
        mirror.Mirror(data, "lab", share).take(packed(target, tmp_path / f"{share.host}.tar"), 0)
    assert mirror.strangers(data, split) == {}
    merged = mirror.merge(data, split, None)
    assert merged is not None
    assert merged.complete
    told = {h["name"]: h["max_loads"] for h in (merged.model_extra or {})["hosts"]}
    for host, found in told.items():
        own = dataset.read_manifest(tmp_path / host).max_loads
        assert found == [m.model_dump(mode="json") for m in own] != []
    assert merged.max_loads == []
    assert merged.cases.usable_rows == sum(dataset.read_manifest(tmp_path / s.host).cases.usable_rows or 0 for s in split.shares)
    assert [f.what for f in verify.verify(data / "lab").findings if "swapped" in f.what] == []
    owners = mirror.owners(data, "lab")
    assert {s.host for s in owners.values()} == {"fast", "slow"}


def slowed(target: Path) -> None:
    """What the host would have sent were it half as fast."""
    manifest: dict[str, Any] = json.loads((target / "manifest.json").read_text("utf-8"))
    for found in manifest["max_loads"]:
        found["max_load_rps"] /= 2
    for shard in manifest["shards"]:
        path = target / shard["file"]
        pl.read_parquet(path).with_columns(pl.col("rps") / 2).write_parquet(path)
        shard["sha256"] = mirror.sha256_file(path)
    (target / "manifest.json").write_text(json.dumps(manifest), "utf-8")


def packed(target: Path, tar: Path) -> Path:
    """As `surefoot-sweep pack` does it."""
    names = {"manifest.json": "manifest.json", "journal.rest": "journal.jsonl"}
    names |= {f"shards/{p.name}": f"shards/{p.name}" for p in sorted((target / "shards").iterdir())}
    with tarfile.open(tar, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, file in names.items():
            data = (target / file).read_bytes()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return tar
