"""A campaign over hosts: sharing out, taking in, merging, going on. Hosts are folders here; trial_playbooks.py has real ones."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest

from collection import campaign, dataset, lab, mirror, playbooks, spec, tools, verify
from collection.errors import CampaignError, HostFailed

REPO = Path(__file__).parent.parent
TEXT = """\
name = "shared"
seed = 7
[targets]
hosts = "lab"
server = "virtual:server-1"
[sweep]
services = ["moses", "xapian"]
rps = [300, 600]
threads = [8]
cores = "1..36 step 5"
ways = "1..20 step 4"
neighbours = { count = [0, 1], draws = 1 }
[sampling]
interval_ms = 1000
samples = 1000
"""
HOSTS = ["node-1", "node-2", "node-3"]


def load(path: Path) -> ModuleType:
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


surefoot_sweep = load(REPO / "playbooks" / "roles" / "programs" / "files" / "surefoot_sweep.py")


class Hosts:
    """Hosts as folders. `play` does what the playbooks do there, without ssh; `down` are unreachable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.down: set[str] = set()
        self.plays: list[tuple[str, list[str]]] = []
        self.most_bytes = 1  # a shard at a time

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> Hosts:
        """Be asked in place of the playbooks, without pauses."""
        monkeypatch.setattr(playbooks, "hosts", self.hosts)
        monkeypatch.setattr(playbooks, "play", self.play)
        monkeypatch.setattr(lab, "_PAUSE_S", 0.0)
        monkeypatch.setattr(lab, "_MOST_PAUSE_S", 0.0)
        return self

    def job(self, host: str) -> Path:
        return self.folder / host

    def hosts(self, inventory: Path, group: str) -> list[str]:
        return HOSTS

    def play(self, playbook: str, inventory: Path, only: list[str], variables: Mapping[str, Any]) -> dict[str, playbooks.Heard]:
        self.plays.append((playbook, only))
        return {host: self._heard(playbook, host, variables) for host in only}

    def _heard(self, playbook: str, host: str, variables: Mapping[str, Any]) -> playbooks.Heard:
        if host in self.down:
            return playbooks.Heard({}, "Failed to connect to the host via ssh", unreachable=True)
        job = self.job(host)
        if playbook == "collect.yml":
            if (job / "ended.json").exists():
                return playbooks.Heard({"Ensure the sweep runs": {}})
            job.mkdir(parents=True, exist_ok=True)
            sweep = ["sweep", variables["collect_campaign"], "--server", variables["collect_server"], "--resume"]
            sweep += ["--out", str(job / "out"), "--part", variables["surefoot_parts"][host]]
            subprocess.run([tools.find(tools.SUREFOOTD), *sweep], check=True, capture_output=True)
            (job / "ended.json").write_text('{"code": 0, "message": ""}', "utf-8")
            return playbooks.Heard({"Ensure the sweep runs": {}})
        if not job.exists():
            return playbooks.Heard({}, "surefoot-sweep: no such job")
        tar = Path(variables["fetch_to"]) / f"{host}.tar"
        packed = surefoot_sweep.pack(str(job), variables["surefoot_have"][host], self.most_bytes, str(tar))
        said = json.dumps({**packed, "status": surefoot_sweep.status(str(job))})
        return playbooks.Heard({"Look how the sweep stands and pack what is finished": {"stdout": said}})


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(tmp_path / "hosts").stand_in(monkeypatch)


def write(folder: Path, text: str, name: str = "campaign.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, "utf-8")
    return folder / name


def rows(folder: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(p) for p in sorted((folder / "shards").glob("*.parquet"))]).sort("case_id", "t_ms")


def run(tmp_path: Path, text: str = TEXT) -> dict[str, Any]:
    return campaign.run(write(tmp_path, text), tmp_path / "out", inventory=tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed")
    text = TEXT.replace('hosts = "lab"\nserver = "virtual:server-1"', 'virtual = ["server-1"]')
    campaign.run(write(root, text), root / "out")
    return root / "out" / "server-1"


def test_three_hosts_measure_what_one_server_does(hosts: Hosts, tmp_path: Path, undisturbed: Path) -> None:
    """Same rows, same states, one manifest that adds up; each host its own part."""
    state = run(tmp_path)
    out = tmp_path / "out"
    assert state["state"] == "done"
    assert rows(out / "lab").equals(rows(undisturbed))
    one, all_ = dataset.read_manifest(undisturbed), dataset.read_manifest(out / "lab")
    assert all_.cases.model_dump(exclude={"reasons"}) == one.cases.model_dump(exclude={"reasons"})
    assert all_.campaign_hash == one.campaign_hash
    assert [h["part"] for h in all_.model_dump()["hosts"]] == [{"number": n, "of": 3} for n in (1, 2, 3)]
    ids = [set(dataset.read_journal(out / "hosts" / h).lines["case_id"]) for h in HOSTS]
    assert sum(map(len, ids)) == len(set.union(*ids)) == one.cases.planned
    found = verify.verify(out)
    assert found.ok, found.as_json()


def test_a_host_that_is_away_is_waited_for(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Path
) -> None:
    """The others are fetched meanwhile; when it is back, the same run ends."""
    hosts.down = {"node-2"}
    before = playbooks.play
    away = 0

    def play(playbook: str, *args: Any) -> dict[str, playbooks.Heard]:
        nonlocal away
        away += playbook == "collect.yml"
        if away == 4:
            assert set(verify.verify(tmp_path / "out").as_json()) >= {"findings"}
            hosts.down = set()
        return before(playbook, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(playbooks, "play", play)
    run(tmp_path)
    assert rows(tmp_path / "out" / "lab").equals(rows(undisturbed))


def test_patience_ends(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that nobody hears of ends the run, named; what the others measured is whole."""
    hosts.down = {"node-3"}
    monkeypatch.setattr(lab.run, "__defaults__", (0.5,))
    with pytest.raises(HostFailed, match=r"node-3: was not heard of .*its sweep goes on"):
        run(tmp_path)
    assert {f.what.split(":")[0] for f in verify.verify(tmp_path / "out").findings} == {"incomplete"}
    assert campaign.status(tmp_path / "out")["cases"]["pending"] > 0


class Heard(campaign.Silent):
    """Troubles as they are told."""

    def __init__(self) -> None:
        self.troubles: list[tuple[str, str]] = []

    def trouble(self, target: str, what: str) -> None:
        self.troubles.append((target, what))


def test_a_host_that_cannot_be_reached_is_named_at_once(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first play, before anything is fetched of the others, the run says which host is away, and why."""
    hosts.down = {"node-3"}
    heard = Heard()
    before = playbooks.play
    first: list[tuple[str, str]] = []

    class Stopped(Exception):
        pass

    def play(playbook: str, *args: Any) -> dict[str, playbooks.Heard]:
        if playbook == "fetch.yml":
            first.extend(heard.troubles)
            raise Stopped
        return before(playbook, *args)

    monkeypatch.setattr(playbooks, "play", play)
    with pytest.raises(Stopped):
        campaign.run(write(tmp_path, TEXT), tmp_path / "out", inventory=tmp_path, report=heard)
    assert first == [("node-3", "cannot be reached, and is tried again: Failed to connect to the host via ssh")]


def test_a_host_that_gives_nothing_back_ends_with_the_reason(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that takes the campaign and whose every fetch fails is given up after three, with what the fetch said."""
    before = playbooks.play

    def play(playbook: str, inventory: Path, only: list[str], variables: Any) -> dict[str, playbooks.Heard]:
        found = before(playbook, inventory, only, variables)
        if playbook == "fetch.yml" and "node-2" in found:
            found["node-2"] = playbooks.Heard({}, "Pack: No space left on device")
        return found

    monkeypatch.setattr(playbooks, "play", play)
    heard = Heard()
    with pytest.raises(HostFailed, match=r"^node-2: takes the campaign, and gives nothing back: Pack: No space left on device"):
        campaign.run(write(tmp_path, TEXT), tmp_path / "out", inventory=tmp_path, report=heard)
    assert ("node-2", "takes the campaign, and gives nothing back: Pack: No space left on device") in heard.troubles


def test_the_first_cause_is_told(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a host sent cannot be used, and its sweep ended, too: the run names what came first."""
    take = mirror.Mirror.take

    def refused(self: mirror.Mirror, tar: Path, *more: Any) -> int:
        if self.share.host == "node-1":
            raise HostFailed("node-1: shards/part-00000.parquet: SHA-256 is not that of its manifest")
        return take(self, tar, *more)

    monkeypatch.setattr(mirror.Mirror, "take", refused)
    monkeypatch.setattr(surefoot_sweep, "status", lambda _: {"ended": {"code": 1, "message": "stopped"}})
    with pytest.raises(HostFailed, match=r"node-1: shards/part-00000.parquet: SHA-256"):
        campaign.run(write(tmp_path, TEXT), tmp_path / "out", inventory=tmp_path)


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_killed_between_any_two_plays(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Path, stop: int
) -> None:
    """The same call goes on; at no moment the data set holds anything that does not add up."""

    class Killed(BaseException):
        pass

    before = playbooks.play
    plays = 0

    def play(*args: Any) -> dict[str, playbooks.Heard]:
        nonlocal plays
        plays += 1
        if plays == stop:
            raise Killed
        return before(*args)

    monkeypatch.setattr(playbooks, "play", play)
    try:
        run(tmp_path)
    except Killed:
        whole = [f for f in verify.verify(tmp_path / "out").findings if not f.what.startswith(("incomplete", "is missing"))]
        assert whole == []
        run(tmp_path)
    assert rows(tmp_path / "out" / "lab").equals(rows(undisturbed))


def test_killed_while_taking_in(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Path) -> None:
    """A kill after a shard was placed and before journal and manifest: it is fetched again."""

    class Killed(BaseException):
        pass

    def dying(path: Path, data: bytes) -> None:
        raise Killed

    with monkeypatch.context() as m:
        m.setattr(mirror, "write_bytes", dying)
        with pytest.raises(Killed):
            run(tmp_path)
    assert list((tmp_path / "out" / "lab" / "shards").glob("*.parquet"))
    run(tmp_path)
    assert rows(tmp_path / "out" / "lab").equals(rows(undisturbed))
    assert verify.verify(tmp_path / "out").ok


def test_killed_while_merging(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Path) -> None:
    """A kill after any journal of the data set and before its manifest: `status` counts that journal, and the run goes on."""

    class Killed(BaseException):
        pass

    write_bytes = mirror.write_bytes
    data = tmp_path / "out" / "lab"
    merges = 0

    def dying(path: Path, content: bytes) -> None:
        nonlocal merges
        if path == data / "manifest.json":
            merges += 1
            if merges % 2 == 0:
                raise Killed
        write_bytes(path, content)

    monkeypatch.setattr(mirror, "write_bytes", dying)
    for _ in range(40):
        try:
            run(tmp_path)
            break
        except Killed:
            lines = (data / "journal.jsonl").read_bytes().splitlines()
            cases = campaign.status(tmp_path / "out")["cases"]
            assert cases["planned"] - cases["pending"] == len(lines)
    assert merges > 6
    assert rows(data).equals(rows(undisturbed))
    assert verify.verify(tmp_path / "out").findings == []


def test_what_is_damaged_here_is_fetched_again(hosts: Hosts, tmp_path: Path, undisturbed: Path) -> None:
    """A flipped bit, a lost shard: found at the next start."""
    run(tmp_path)
    first, second, *_ = sorted((tmp_path / "out" / "lab" / "shards").glob("*.parquet"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(bytes(data))
    second.unlink()
    assert not verify.verify(tmp_path / "out").ok
    run(tmp_path)
    assert verify.verify(tmp_path / "out").ok
    assert rows(tmp_path / "out" / "lab").equals(rows(undisturbed))


def test_a_shard_that_is_not_what_the_host_says_is_refused(hosts: Hosts, tmp_path: Path) -> None:
    """Damaged on the host or on the way: named, and not in the data set."""
    run(tmp_path)
    shard = sorted((hosts.job("node-2") / "out" / "shards").iterdir())[0]
    share = mirror.Share("node-2", 2, 3)
    fresh = mirror.Mirror(tmp_path / "new", "lab", share)
    shard.write_bytes(shard.read_bytes() + b"x")
    tar = tmp_path / "node-2.tar"
    packed = surefoot_sweep.pack(str(hosts.job("node-2")), surefoot_sweep.NOTHING, 1 << 30, str(tar))
    with pytest.raises(HostFailed, match=r"node-2: shards/part-00000.parquet: SHA-256 is .* its manifest says"):
        fresh.take(tar, packed["journal_from"])
    assert not fresh.place("shards/part-00000.parquet").exists()


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "shards/../../evil", "shards/part-0.parquet"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str, hosts: Hosts) -> None:
    """A host cannot write outside of its place."""
    run(tmp_path)
    manifest = json.loads((hosts.job("node-1") / "out" / "manifest.json").read_text("utf-8"))
    data = b"evil"
    manifest["shards"] = [{"file": name, "rows": 1, "sha256": hashlib.sha256(data).hexdigest()}]
    tar = tmp_path / "evil.tar"
    import io

    with tarfile.open(tar, "w") as packed:
        for member, content in (("manifest.json", json.dumps(manifest).encode()), ("journal.rest", b""), (name, data)):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    with pytest.raises(HostFailed, match="is no shard's name"):
        mirror.Mirror(tmp_path / "new", "lab", mirror.Share("node-1", 1, 3)).take(tar, 0)
    assert not (tmp_path / "evil").exists()


def test_a_host_set_up_anew_is_named(hosts: Hosts, tmp_path: Path) -> None:
    """Its shards differ from those that were fetched: the run says which folder to remove, and then goes on."""
    run(tmp_path)
    out = tmp_path / "out"
    path = hosts.job("node-1") / "out" / "manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    manifest["shards"][0]["sha256"] = "0" * 64
    path.write_text(json.dumps(manifest), "utf-8")
    # something is missing here, so that the host is asked at all
    (out / "lab" / "shards" / "part-00003.parquet").unlink()
    with pytest.raises(HostFailed, match=r"node-1: no longer has shards/part-00000.parquet as it was fetched.*remove"):
        run(tmp_path)


def test_swapped_hosts_are_found(hosts: Hosts, tmp_path: Path) -> None:
    """Two hosts' folders in each other's place: verify names them."""
    run(tmp_path)
    a, b = tmp_path / "out" / "hosts" / "node-1", tmp_path / "out" / "hosts" / "node-2"
    a.rename(tmp_path / "swap")
    b.rename(a)
    (tmp_path / "swap").rename(b)
    what = [f.what for f in verify.verify(tmp_path / "out").findings]
    assert any("hosts are swapped" in w for w in what), what


def test_other_hosts_need_another_folder(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts are shared out once."""
    run(tmp_path)
    monkeypatch.setattr(playbooks, "hosts", lambda *_: [*HOSTS, "node-4"])
    with pytest.raises(CampaignError, match="was started with node-1, node-2, node-3"):
        run(tmp_path)


def test_hosts_of_two_platforms_are_refused(tmp_path: Path, hosts: Hosts) -> None:
    """Cases of one data set come from one kind of server."""
    run(tmp_path)
    out = tmp_path / "out"
    path = out / "hosts" / "node-2" / "manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    manifest["platform"]["ways"] = 11
    manifest["campaign_hash"] = "0" * 64
    path.write_text(json.dumps(manifest), "utf-8")
    split = mirror.Split.read(out)
    assert split is not None
    with pytest.raises(CampaignError, match="node-1 and node-2 differ in platform"):
        mirror.merge(out, split, None)


def test_numbers_of_shards_never_collide() -> None:
    """Shard n of part i of N is n x N + i - 1: 0, 3, 6; 1, 4, 7; 2, 5, 8."""
    taken = [[s.shard(n) for n in range(3)] for s in mirror.shares(HOSTS)]
    assert taken == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert [s.part for s in mirror.shares(HOSTS)] == ["1/3", "2/3", "3/3"]


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ("hosts = 7", "targets.hosts: 7 cannot be used"),
        ('hosts = "../x"', "cannot be used"),
        ('hosts = "hosts"', "cannot be used"),
        ('hosts = "server-1"\nvirtual = ["server-1"]', "cannot be used"),
        ('hosts = "lab"\nserver = "server-1"', "targets.server: 'server-1' is no server"),
        ('virtual = ["server-1"]\nserver = "local"', "there is no targets.hosts"),
    ],
)
def test_targets_that_cannot_be(tmp_path: Path, targets: str, says: str) -> None:
    """Each is named with file, field and remedy."""
    file = write(tmp_path, f'name = "x"\n[targets]\n{targets}\n[sweep]\nservices = "all"\n')
    with pytest.raises(CampaignError) as e:
        spec.load(file)
    assert says in str(e.value)
    assert str(file) in str(e.value)


def test_the_inventory_is_asked_for(tmp_path: Path) -> None:
    """hosts without --inventory, and --inventory without hosts, are bad input; nothing is left behind."""
    with pytest.raises(CampaignError, match="Name it: --inventory"):
        campaign.run(write(tmp_path, TEXT), tmp_path / "out")
    with pytest.raises(CampaignError, match="no such file or folder"):
        campaign.run(write(tmp_path, TEXT), tmp_path / "out", inventory=tmp_path / "none")
    assert not (tmp_path / "out").exists()


def test_members_of_groups() -> None:
    """Hosts of child groups count, each once, in the inventory's order."""
    inventory = {
        "lab": {"children": ["old", "new"]},
        "old": {"hosts": ["b", "a"]},
        "new": {"hosts": ["c", "a"], "children": ["x"]},
    }
    assert list(playbooks._members(inventory, "lab")) == ["b", "a", "c"]
