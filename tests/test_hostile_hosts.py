"""A hostile or broken host harms nobody but itself: what it sends is refused in one line that names it, and nothing is stored."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from test_hosts_campaign import HOSTS, TEXT, Hosts, rows, surefoot_sweep, undisturbed, write

from collection import campaign, dataset, intake, lab, layout, mirror, playbooks, shardfile, standing, verify
from collection.errors import CampaignError, DataSetError, HostFailed

__all__ = ["undisturbed"]
SHARD = "shards/part-00000.parquet"
SHARE = mirror.Share("node-2", 2, 3)
Files = dict[str, bytes]


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def tar_of(files: Files, more: list[tuple[tarfile.TarInfo, bytes]] | None = None, form: int = tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as packed:
        for info, data in [*(member(name, data) for name, data in files.items()), *(more or [])]:
            packed.addfile(info, io.BytesIO(data))
    return out.getvalue()


def shard_of(frame: pl.DataFrame) -> bytes:
    out = io.BytesIO()
    frame.write_parquet(out)
    return out.getvalue()


@pytest.fixture(scope="module")
def part() -> Files:
    """What node-2 sends, rightly: two cases in a shard, one that failed."""
    row: dict[str, Any] = dict.fromkeys(shardfile.SCHEMA) | {"neighbours": [], "verdict": "valid", "latency_p99_ms": 1.0}
    frame = pl.DataFrame([row | {"case_id": c, "t_ms": t} for c in "ab" for t in (0, 1000)], schema=shardfile.SCHEMA)
    lines = [
        {"case_id": "a", "state": "measured", "shard": 0, "rows": 2},
        {"case_id": "b", "state": "measured", "shard": 0, "rows": 2},
        {"case_id": "c", "state": "failed", "shard": 1, "rows": 0, "reason": "it broke"},
    ]
    shard = shard_of(frame)
    listed = {"file": SHARD, "rows": 4, "sha256": mirror.hashlib.sha256(shard).hexdigest()}
    cases = dict.fromkeys(dataset.Counts._fields[1:], 0) | {"planned": 3, "measured": 2, "failed": 1}
    manifest = {
        "schema_version": 1,
        "campaign": "shared",
        "campaign_hash": "1" * 64,
        "complete": True,
        "platform": {"name": "p", "cores": 4, "ways": 4, "mb_per_way": 1.0, "core_step": 1.0, "mba": False},
        "feature_set": "full",
        "services": {"moses": {"qos_target_ms": 10.0}},
        "software": {"surefootd": "1"},
        "host": {"kernel": "6"},
        "shards": [listed],
        "cases": {**cases, "reasons": [{"state": "failed", "reason": "it broke", "cases": 1}]},
        "part": {"number": 2, "of": 3},
    }
    return {
        "manifest.json": json.dumps(manifest).encode(),
        "journal.rest": "".join(json.dumps(x) + "\n" for x in lines).encode(),
        SHARD: shard,
    }


def said(change: Callable[[dict[str, Any]], object]) -> Callable[[Files], bytes]:
    """The archive with another manifest."""

    def made(part: Files) -> bytes:
        manifest = json.loads(part["manifest.json"])
        change(manifest)
        return tar_of(part | {"manifest.json": json.dumps(manifest).encode()})

    return made


def told(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Files], bytes]:
    """The archive with another journal."""

    def made(part: Files) -> bytes:
        lines = [json.loads(x) for x in part["journal.rest"].splitlines()]
        change(lines)
        return tar_of(part | {"journal.rest": "".join(json.dumps(x) + "\n" for x in lines).encode()})

    return made


def with_shard(data: Callable[[Files], bytes]) -> Callable[[Files], bytes]:
    """The archive with another shard, of which the manifest tells the truth."""

    def made(part: Files) -> bytes:
        shard, manifest = data(part), json.loads(part["manifest.json"])
        manifest["shards"][0]["sha256"] = mirror.hashlib.sha256(shard).hexdigest()
        return tar_of(part | {"manifest.json": json.dumps(manifest).encode(), SHARD: shard})

    return made


def frame(part: Files) -> pl.DataFrame:
    return pl.read_parquet(part[SHARD])


def listing(file: str, rows: int = 4) -> Callable[[dict[str, Any]], object]:
    return lambda m: m["shards"].append(m["shards"][0] | {"file": file, "rows": rows})


def max_load(**other: Any) -> Callable[[dict[str, Any]], object]:
    """A max load that was found, but for what differs."""
    found = {"service": "moses", "threads": 8, "max_load_rps": 2e3, "others_frac": 0.0} | other
    return lambda m: m.update(max_loads=[found])


def sparse(part: Files) -> bytes:
    """An old GNU sparse member: 512 bytes that say they are 3 GiB."""
    header = bytearray(member(SHARD, b"x" * 512, tarfile.GNUTYPE_SPARSE)[0].tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (0, 512)
    header[483:495] = b"%011o\0" % (3 << 30)
    return resealed(header) + b"x" * 512 + bytes(1024)


def resealed(header: bytearray) -> bytes:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def begin(part: Files) -> bytes:
    """The archive up to its shards, without its end."""
    whole = {n: d for n, d in part.items() if n != SHARD}
    return tar_of(whole)[: sum(512 + -(-len(d) // 512) * 512 for d in whole.values())]


def sized(size: int) -> Callable[[Files], bytes]:
    """A header that claims a size which the archive does not have."""

    def made(part: Files) -> bytes:
        info = member(SHARD)[0]
        info.size = size
        return begin(part) + info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)

    return made


def also(*more: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT) -> Callable[[Files], bytes]:
    return lambda part: tar_of(part, list(more), form)


HOSTILE: dict[str, tuple[Callable[[Files], bytes], str]] = {
    # archives
    "empty": (lambda p: b"", "no whole tar"),
    "no tar": (lambda p: b"<html>" * 1000, "no whole tar"),
    "compressed": (lambda p: gzip.compress(tar_of(p)), "no whole tar"),
    "cut in a header": (lambda p: tar_of(p)[:700], "no whole tar"),
    "cut in a shard": (lambda p: tar_of(p)[: len(begin(p)) + 512 + 100], "is cut off"),
    "no end": (lambda p: begin(p), "no whole tar"),
    "only an end": (lambda p: bytes(1024), "sent no manifest.json"),
    "no journal": (lambda p: tar_of({"manifest.json": p["manifest.json"]}), "sent no journal.rest"),
    "a shard before the manifest": (lambda p: tar_of({SHARD: p[SHARD]} | p), "where manifest.json stands"),
    "sparse": (lambda p: begin(p) + sparse(p), "as a sparse file"),
    "sparse by an extended header": (
        also(member(SHARD, b"x", pax_headers={"GNU.sparse.realsize": str(3 << 30)}), form=tarfile.PAX_FORMAT),
        "as an extended header",
    ),
    "global header": (
        lambda p: tarfile.TarInfo.create_pax_global_header({"path": "../../evil"}) + tar_of(p),
        "as an extended header",
    ),
    "long name": (also(member("shards/" + "a" * 4000)), "as a long name"),
    "long link": (also(member("a", kind=tarfile.SYMTYPE, linkname="b" * 4000)), "as a long name"),
    "link": (also(member(SHARD + "x", kind=tarfile.SYMTYPE, linkname="/etc/shadow")), "as a symbolic link"),
    "hard link": (also(member(SHARD + "x", kind=tarfile.LNKTYPE, linkname="manifest.json")), "as a hard link"),
    "device": (also(member("zero", kind=tarfile.CHRTYPE, devmajor=1, devminor=5)), "as a device"),
    "block device": (also(member("disk", kind=tarfile.BLKTYPE, devmajor=8)), "as a device"),
    "FIFO": (also(member("pipe", kind=tarfile.FIFOTYPE)), "as a FIFO"),
    "folder": (also(member("shards", kind=tarfile.DIRTYPE)), "as a folder"),
    "unknown kind": (also(member("x", kind=b"Z")), "as something"),
    "absolute name": (also(member("/etc/cron.d/evil", b"x")), "which its manifest does not list"),
    "name that leads up": (also(member("../../evil", b"x")), "which its manifest does not list"),
    "name that acts on a terminal": (also(member("\x1b[2Jx", b"x")), r"\\u\{1b\}\[2Jx"),
    "a shard that is not listed": (also(member("shards/part-00001.parquet", b"x")), "which its manifest does not list"),
    "a shard twice": (lambda p: tar_of(p, [member(SHARD, p[SHARD])]), "twice"),
    "a manifest twice": (lambda p: tar_of(p, [member("manifest.json", b"{}")]), "twice"),
    "larger than it is": (sized(100 << 20), "is cut off"),
    "a size of 8 EiB": (sized(1 << 63), "more than it may"),
    "a negative size": (sized(-1), "more than it may"),
    # manifests
    "manifest: nothing": (lambda p: tar_of(p | {"manifest.json": b""}), "manifest cannot be read"),
    "manifest: no object": (lambda p: tar_of(p | {"manifest.json": b"[1]"}), "no JSON object"),
    "manifest: nested": (lambda p: tar_of(p | {"manifest.json": b"[" * 100_000}), "nested too deep"),
    "manifest: no number": (said(lambda m: m["platform"].update(cores=float("nan"))), "NaN is no number"),
    "manifest: a key twice": (
        lambda p: tar_of(p | {"manifest.json": p["manifest.json"][:-1] + b', "part": {}}'}),
        "stands there twice",
    ),
    "manifest: half a character": (said(lambda m: m.update(strategy="\ud800")), "manifest cannot be read"),
    "manifest: another version": (said(lambda m: m.update(schema_version=2)), "schema_version 2"),
    "manifest: another part": (said(lambda m: m.update(part={"number": 1, "of": 3})), "was given 2/3"),
    "manifest: no part": (said(lambda m: m.pop("part")), "was given 2/3"),
    "manifest: much of the host": (said(lambda m: m.update(host={"x": "y" * 100_000})), "too many"),
    "manifest: much else": (said(lambda m: m.update(spec=["x"] * 300_000)), "too many"),
    "manifest: a shard that leads up": (said(listing("../../evil")), "is no shard's name"),
    "manifest: a shard with an absolute name": (said(listing("/etc/passwd")), "is no shard's name"),
    "manifest: a shard of two names": (said(listing("shards/part-000000.parquet")), "is no shard's name"),
    "manifest: a shard twice": (said(listing(SHARD)), "twice"),
    "manifest: a number too large for the data set": (said(listing("shards/part-999999999.parquet")), "no sweep writes that"),
    "manifest: a shard of no rows": (said(listing("shards/part-00002.parquet", 0)), "no sweep writes that"),
    "manifest: negative rows": (said(lambda m: m["shards"][0].update(rows=-4)), "shards.0.rows"),
    "manifest: other rows": (said(lambda m: m["shards"][0].update(rows=5)), "its journal has 4 rows in it"),
    "manifest: other counts": (said(lambda m: m["cases"].update(measured=1, failed=2)), "they do not add up"),
    "manifest: complete and not": (said(lambda m: m["cases"].update(planned=4)), "they do not add up"),
    "manifest: more cases than the campaign": (said(lambda m: m["cases"].update(planned=1 << 40)), "of a campaign of 9"),
    "manifest: a reason of no cases": (said(lambda m: m["cases"]["reasons"][0].update(cases=10**19)), "reasons that are none"),
    "manifest: reasons are none": (said(lambda m: m["cases"].update(reasons="x")), "reasons that are none"),
    "manifest: a max load of no measure": (said(max_load(max_load_rps=1e300)), "max_loads.0.max_load_rps"),
    "manifest: a max load below 0": (said(max_load(max_load_rps=-1.0)), "max_loads.0.max_load_rps"),
    "manifest: a max load of nobody": (said(max_load(service="")), "max_loads.0.service"),
    "manifest: others beyond all": (said(max_load(others_frac=1.5)), "max_loads.0.others_frac"),
    "manifest: a long reason of a max load": (said(max_load(reason="x" * 5000)), "max_loads.0.reason"),
    "manifest: max loads are none": (said(lambda m: m.update(max_loads={"moses": 1})), "max_loads"),
    # journals
    "journal: no line": (lambda p: tar_of(p | {"journal.rest": b"\x00\xff\n"}), "line 1 of its journal"),
    "journal: an empty line": (lambda p: tar_of(p | {"journal.rest": p["journal.rest"] + b"\n"}), "line 4 of its journal"),
    "journal: no object": (lambda p: tar_of(p | {"journal.rest": b"7\n"}), "no line of a journal"),
    "journal: unknown state": (told(lambda x: x[0].update(state="fine")), "no line of a journal"),
    "journal: no shard": (told(lambda x: x[0].pop("shard")), "shard is no number"),
    "journal: a shard of text": (told(lambda x: x[0].update(shard="0")), "shard is no number"),
    "journal: a shard of too high a number": (told(lambda x: x[2].update(shard=1 << 31)), "shard is no number"),
    "journal: a shard that is a truth": (told(lambda x: x[0].update(shard=False)), "shard is no number"),
    "journal: negative rows": (told(lambda x: x[0].update(rows=-1)), "rows is no number"),
    "journal: rows of no measure": (told(lambda x: x[0].update(rows=1e300)), "rows is no number"),
    "journal: more usable rows than rows": (told(lambda x: x[0].update(usable=3)), "usable is no number"),
    "journal: usable rows that are a truth": (told(lambda x: x[0].update(usable=True)), "usable is no number"),
    "journal: no name": (told(lambda x: x[0].pop("case_id")), "case_id is no name"),
    "journal: a long name": (told(lambda x: x[0].update(case_id="a" * 300)), "case_id is no name"),
    "journal: a case twice": (told(lambda x: x[1].update(case_id="a")), "case a stands there twice"),
    "journal: half a character": (told(lambda x: x[2].update(reason="\udcff")), "half a character"),
    "journal: a state in a state": (told(lambda x: x[0].update(heard={"state": "failed"})), "heard has a state"),
    "journal: rows of many cases": (told(lambda x: x[0].update(cases=5)), "rows of several cases"),
    "journal: a long reason": (told(lambda x: x[2].update(reason="x" * 100_000)), "reason has 100000 characters"),
    "journal: a line of megabytes": (lambda p: tar_of(p | {"journal.rest": b'{"x":"' + b"a" * (5 << 20) + b'"}\n'}), "bytes"),
    "journal: no end of a line": (lambda p: tar_of(p | {"journal.rest": p["journal.rest"] + b"a" * (5 << 20)}), "has no end"),
    "journal: more cases than planned": (told(lambda x: x[2].update(cases=1000)), "its manifest plans 3"),
    "journal: shorter than the manifest": (told(lambda x: x.pop(1)), "its journal has 2 rows in it"),
    "journal: torn though complete": (lambda p: tar_of(p | {"journal.rest": p["journal.rest"] + b'{"ca'}), "do not add up"),
    # shards
    "shard: another": (lambda p: tar_of(p | {SHARD: p[SHARD] + b"x"}), "SHA-256 is"),
    "shard: no Parquet": (with_shard(lambda p: b"x" * 1000), "not readable as Parquet"),
    "shard: cut": (with_shard(lambda p: p[SHARD][:-300]), "not readable as Parquet"),
    "shard: damaged inside": (with_shard(lambda p: p[SHARD][:40] + b"\xff" * 400 + p[SHARD][440:]), "damaged there"),
    "shard: another column": (with_shard(lambda p: shard_of(frame(p).rename({"ipc": "ipd"}))), "column ipc is missing"),
    "shard: another type": (with_shard(lambda p: shard_of(frame(p).cast({"t_ms": pl.Float64}))), "column t_ms is Float64"),
    "shard: other rows": (with_shard(lambda p: shard_of(frame(p)[:3])), "has 3 rows, the manifest says 4"),
    "shard: rows doubled": (with_shard(lambda p: shard_of(pl.concat([frame(p)[:2]] * 2))), "case b: has 0 rows|case a: has 4"),
    "shard: cases of nobody": (
        with_shard(lambda p: shard_of(frame(p).with_columns(case_id=pl.lit(None, pl.String)))),
        "has 0 rows, the journal says 2",
    ),
}


def everything(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_sent_amiss_is_refused_as_a_whole(kind: str, part: Files, tmp_path: Path) -> None:
    """One line names the host and what is wrong; no file of it stays; what it sends rightly afterwards is taken."""
    make, says = HOSTILE[kind]
    sent, out = tmp_path / "node-2.tar", tmp_path / "out"
    host = mirror.Mirror(out, "lab", SHARE)
    sent.write_bytes(make(part))
    before = everything(tmp_path)
    with pytest.raises(HostFailed, match=f"^node-2: .*({says})") as e:
        host.take(sent, 0, 9)
    assert len(str(e.value).splitlines()) == 1
    assert len(str(e.value)) < 1000
    assert str(e.value).isprintable()
    assert everything(tmp_path) == before
    sent.write_bytes(tar_of(part))
    assert host.take(sent, 0, 9) == 1
    assert host.complete


def test_a_sparse_archive_is_not_written_out(part: Files, tmp_path: Path) -> None:
    """A file of a few kB that says it is gigabytes is refused by its length, before a byte is copied."""
    sent = tmp_path / "node-2.tar"
    sent.write_bytes(tar_of(part))
    os.truncate(sent, intake.MOST_TAR_BYTES + 1)
    with pytest.raises(HostFailed, match="more than any archive of a host"):
        mirror.Mirror(tmp_path / "out", "lab", SHARE).take(sent, 0)


@pytest.mark.parametrize("start", [-1, 1, 10**12])
def test_where_the_rest_of_a_journal_begins(start: int, part: Files, tmp_path: Path) -> None:
    """The rest goes on where what is here ends, or is all of it."""
    sent = tmp_path / "node-2.tar"
    sent.write_bytes(tar_of(part))
    with pytest.raises(HostFailed, match="its journal's rest begins at byte"):
        mirror.Mirror(tmp_path / "out", "lab", SHARE).take(sent, start)


def test_nothing_to_fetch(tmp_path: Path) -> None:
    """A host that says it has packed, and has not, is named."""
    with pytest.raises(HostFailed, match=r"^node-2: says that it has packed"):
        mirror.Mirror(tmp_path / "out", "lab", SHARE).take(tmp_path / "none.tar", 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"packed": true, "more": false}',
        '{"packed": 1, "more": false, "status": {}}',
        '{"packed": true, "more": false, "journal_from": "0", "status": {}}',
        '{"packed": false, "more": false, "status": {"ended": {"code": "x"}}}',
        '{"packed": false, "more": false, "status": {"ended": 7}}',
        '{"packed": false, "more": false, "status": []}',
        '{"packed": false, "more": false, "status": {}, "journal_from": 1e999}',
    ],
)
def test_answers_that_are_none(text: str) -> None:
    """What a host answers instead of how it stands is refused in a line."""
    with pytest.raises(intake.Refused, match="answers nonsense") as e:
        intake.answer(text)
    assert str(e.value).isprintable()


def test_numbers_of_progress_are_numbers() -> None:
    """What is no number of cases, rate or time is not shown; a message is one line that a terminal may have."""
    progress = {"done": "9", "rate_per_s": -1.0, "eta_s": 1e300, "trouble": "x"}
    text = json.dumps({"packed": False, "more": False, "status": {"progress": progress, "message": "a\n\x1b[2Jb"}})
    found = intake.answer(text)
    assert found.progress == {}
    assert found.message == "a \\u{1b}[2Jb"
    good = {"done": 3, "rate_per_s": 0.5, "eta_s": 7}
    text = json.dumps({"packed": False, "more": False, "status": {"progress": good, "ended": {"code": 2, "message": "no"}}})
    assert intake.answer(text).progress == good
    assert intake.answer(text).ended == (2, "no")


class Twisted(Hosts):
    """As Hosts, but node-2 is not itself: `twist` changes the archive that it sends, `answer` what it says."""

    twist: Callable[[bytes], bytes] | None = None
    answer: Callable[[str], str] | None = None

    def _heard(self, playbook: str, host: str, variables: Any) -> playbooks.Heard:
        heard = super()._heard(playbook, host, variables)
        if host == "node-2" and playbook == "fetch.yml":
            sent = Path(variables["fetch_to"]) / f"{host}.tar"
            if self.twist and sent.exists():
                sent.write_bytes(self.twist(sent.read_bytes()))
            if self.answer:
                result = heard.results[lab._PACK_TASK]
                result["stdout"] = self.answer(result["stdout"])
        return heard


@pytest.fixture
def twisted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Twisted:
    hosts = Twisted(tmp_path / "hosts")
    hosts.stand_in(monkeypatch)
    hosts.most_bytes = 1 << 30
    return hosts


def run(tmp_path: Path) -> dict[str, Any]:
    return campaign.run(write(tmp_path, TEXT), tmp_path / "out", inventory=tmp_path)


def of_hosts(out: Path) -> set[str]:
    """Hosts whose cases are in the data set."""
    here = set(dataset.read_journal(out / "lab").lines["case_id"])
    return {h for h in HOSTS if here & set(dataset.read_journal(out / "hosts" / h).lines["case_id"])}


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)
    return lambda data: data.replace(old, new)


@pytest.mark.parametrize(
    ("twist", "answer", "says"),
    [
        (lambda d: d[: len(d) // 2], None, "no whole tar"),
        (replaced(b'"shard":0', b'"shard":-'), None, "line 1 of its journal cannot be used"),
        (replaced(b'"part"', b'"patt"'), None, "measured part None"),
        (replaced(b"PAR1", b"PAR2"), None, "SHA-256"),
        (None, lambda s: s[:-9], "answers nonsense"),
        (None, lambda s: s.replace('"packed": true', '"packed": false'), "has not all of its part"),
    ],
)
def test_the_campaign_goes_on_without_a_host(
    twist: Any, answer: Any, says: str, twisted: Twisted, tmp_path: Path, undisturbed: Path
) -> None:
    """The parts of the others are taken in, a line says which host and why; mended, the same call takes its part and ends."""
    twisted.twist, twisted.answer = twist, answer
    with pytest.raises(HostFailed, match=f"node-2: .*{says}.* Mend that, then call the same command") as e:
        run(tmp_path)
    assert "node-1" not in str(e.value).replace("node-1/", "")
    out = tmp_path / "out"
    assert of_hosts(out) == {"node-1", "node-3"}
    assert not list((out / "hosts").glob(".fetch*"))
    assert {f.what.split(":")[0] for f in verify.verify(out).findings} == {"incomplete"}
    twisted.twist = twisted.answer = None
    assert run(tmp_path)["state"] == "done"
    assert rows(out / "lab").equals(rows(undisturbed))
    assert verify.verify(out).findings == []


@pytest.mark.parametrize("file", ["journal.jsonl", "manifest.json"])
def test_a_stored_part_that_cannot_be_used_is_fetched_anew(
    file: str, twisted: Twisted, tmp_path: Path, undisturbed: Path
) -> None:
    """A bad line of a host (an earlier version stored it, or a disk fails) does not wedge the campaign: it is set aside."""
    run(tmp_path)
    out = tmp_path / "out"
    path = out / "hosts" / "node-2" / file
    bad = path.read_bytes()[:-9] + b"\x00\n{}\n"
    path.write_bytes(bad)
    assert run(tmp_path)["state"] == "done"
    aside = out / "hosts" / mirror.ASIDE / "node-2"
    assert (aside / file).read_bytes() == bad
    assert list((aside / "shards").iterdir())
    assert len((aside / "why.txt").read_text("utf-8").splitlines()) == 1
    assert rows(out / "lab").equals(rows(undisturbed))
    assert verify.verify(out).findings == []


def test_a_host_of_another_campaign_is_set_aside(twisted: Twisted, tmp_path: Path) -> None:
    """Most hosts say what the campaign is: one that was measured otherwise leaves the data set, and the others stay."""
    twisted.twist = lambda d: re.sub(rb'"campaign_hash": ?"[0-9a-f]{9}', lambda m: m[0][:-9] + b"000000000", d)
    with pytest.raises(HostFailed, match=r"^node-2: differs from node-1 in campaign_hash .* its part is fetched anew"):
        run(tmp_path)
    assert of_hosts(tmp_path / "out") == {"node-1", "node-3"}
    twisted.twist = None
    assert run(tmp_path)["state"] == "done"


def test_the_first_host_does_not_decide_alone(tmp_path: Path) -> None:
    """Two of three are believed, whoever is first; of two the first is."""
    said: dict[str, Any] = {
        h: dataset.Manifest.model_construct(campaign_hash=hash_) for h, hash_ in (("a", "x"), ("b", "y"), ("c", "y"))
    }
    assert list(mirror._other_campaigns(said)) == ["a"]
    assert list(mirror._other_campaigns({h: said[h] for h in "ab"})) == ["b"]
    assert mirror._other_campaigns({"b": said["b"]}) == {}


def test_cases_of_others_are_refused() -> None:
    """A host that claims every case leaves; those that it took them from stay."""
    own = {"a": ["1", "2"], "b": ["1", "2", "3", "4", "5"], "c": ["3", "4"]}
    found = mirror._cases_of_others({h: pl.Series(ids) for h, ids in own.items()})
    assert list(found) == ["b"]
    assert found["b"].startswith("has 4 cases that a has")
    assert mirror._cases_of_others({h: pl.Series(own[h]) for h in "ac"}) == {}
    assert mirror._cases_of_others({}) == {}


def test_the_archive_of_a_host_is_taken(tmp_path: Path) -> None:
    """`surefoot-sweep pack` makes headers that are taken, whatever the times and owners of the files there."""
    job = tmp_path / "job" / "out"
    (job / "shards").mkdir(parents=True)
    (job / "shards" / "part-00000.parquet").write_bytes(b"x" * 700)
    os.utime(job / "shards" / "part-00000.parquet", (1.5, 1e10 + 0.5))
    manifest = {"shards": [{"file": SHARD, "sha256": "0"}], "cases": {"planned": 1}}
    (job / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    surefoot_sweep.pack(str(tmp_path / "job"), surefoot_sweep.NOTHING, 1, str(tmp_path / "x.tar"))
    with (tmp_path / "x.tar").open("rb") as file:
        found = intake.members(file)
        assert [(m.name, m.size) for m in found[1:]] == [("journal.rest", 0), (SHARD, 700)]
        assert found[2].read(file) == b"x" * 700


@pytest.mark.parametrize(
    "name",
    [
        "rack7/node1",
        "../../evil",
        "/etc/x",
        "..",
        ".",
        ".aside",
        "~all",
        "!x",
        "a,b",
        "*",
        "a[1]",
        "{{x}}",
        "a\nb",
        "a b",
        "",
        "x" * 300,
    ],
)
def test_hosts_whose_names_are_no_folders(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is a path, or a pattern of hosts, is refused before anything is written; also where a folder holds it."""

    class Runner:
        @staticmethod
        def get_inventory(**_: Any) -> tuple[Any, str]:
            return {"lab": {"hosts": ["node-1", name]}}, ""

    monkeypatch.setattr(playbooks, "_runner", lambda: Runner)
    (tmp_path / "inventory").write_text("")
    with pytest.raises(CampaignError, match=r"cannot be a folder's name.*ansible_host") as e:
        playbooks.hosts(tmp_path / "inventory", "lab")
    assert len(str(e.value).splitlines()) == 1
    value = {"schema_version": 1, "job": "x", "group": "lab", "hosts": [name]}
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / "hosts.json").write_text(json.dumps(value), "utf-8")
    with pytest.raises(DataSetError, match=r"hosts\.json: corrupt"):
        standing.read_split(tmp_path)


@pytest.mark.parametrize("name", ["localhost", "node-1.lab.example", "10.0.0.1", "fe80::1%eth0", "Rack7_n01", "nœud-1"])
def test_hosts_whose_names_are(name: str) -> None:
    """Names and addresses as inventories have them are taken."""
    assert layout.is_host_name(name)
