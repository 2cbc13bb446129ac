"""`campaign plan` names everything that `campaign run` refuses, and `run` refuses it before anything is written or started."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from collection import campaign, commands, lab, playbooks
from collection.errors import SurefootError

VIRTUAL = """\
name = "plan"
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses"]
rps = [600]
threads = [8]
cores = [8]
ways = [6]
[sampling]
interval_ms = 1000
samples = 2
"""
LOCAL = """\
name = "plan"
[targets]
local = true
[sweep]
services = ["kv"]
threads = [1]
cores = [0.5]
[sampling]
samples = 2
"""
ENTRY = """\
name = "kv"
kind = "lc"
domain = "key-value cache"
image = "plan/kv"
command = ["kv", "{port}"]
port = PORT
qos_target_ms = 10.0
rps_levels = [100]
licence = "CC0-1.0"
[loadgen]
protocol = "memcached"
connections = 2
"""
HOSTS = VIRTUAL.replace('virtual = ["server-1"]', 'hosts = "lab"\nserver = "virtual:server-1"')
NAMED = """
[[service]]
service = "own"
kind = "lc"
qos_target_ms = 10.0
threads = 1
command = ["/bin/sh", "-c", "exit 1"]
port = PORT
rps_levels = [100]
loadgen = { protocol = "memcached", connections = 2 }
"""


@dataclass
class Case:
    """A campaign that `run` refuses. text: of the file; files: what else is in the folder; says: of the refusal."""

    text: str
    says: str
    files: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    images: str = "plan/kv"


def catalogue(change: tuple[str, str] = ("", "")) -> dict[str, str]:
    return {"cat/kv/workload.toml": ENTRY.replace(*change)}


CAT = {"catalogue": "cat"}
CASES = {
    "no file": Case("", "no such campaign file"),
    "no TOML": Case("[", "not valid TOML"),
    "unknown field": Case(VIRTUAL + "speed = 1\n", "speed"),
    "unknown platform": Case(VIRTUAL.replace("server-1", "sever-1"), "unknown platform"),
    "unknown service": Case(VIRTUAL.replace("moses", "mosses"), "sweep.services"),
    "CPUs of the load generators": Case(LOCAL + '[loadgen]\ncpus = "1000"\n', "loadgen.cpus", catalogue(), CAT),
    "threads of the load generators": Case(
        LOCAL + "[loadgen]\nthreads = 99\n", "loadgen.threads: 99, but kv has", catalogue(), CAT
    ),
    "cores of the platform": Case(VIRTUAL.replace("[8]\nways", "[99]\nways"), "sweep.cores"),
    "ways of the platform": Case(VIRTUAL.replace("ways = [6]", "ways = [99]"), "sweep.ways"),
    "threads of the format": Case(VIRTUAL.replace("threads = [8]", "threads = [5000]"), "sweep.threads"),
    "loads": Case(VIRTUAL.replace("rps = [600]", "rps = [-1]"), "sweep.rps"),
    "inventory of nobody": Case(VIRTUAL, "has no targets.hosts", options={"inventory": "inv"}),
    "no such inventory": Case(HOSTS, "no such file or folder", options={"inventory": "inv"}),
    "group without hosts": Case(HOSTS, "group lab has no hosts", {"inv": "[other]\nnode-1\n"}, {"inventory": "inv"}),
    "profiles": Case(
        HOSTS, "SUREFOOT_PROFILES", {"inv": "[lab]\nnode-1\n"}, {"inventory": "inv"}, {"SUREFOOT_PROFILES": "/none"}
    ),
    "folder of others": Case(VIRTUAL, "is not empty and holds no campaign", {"out/notes.txt": "mine"}),
    "folder is a file": Case(VIRTUAL, "is a file. Give a folder", {"out": "mine"}),
    "another campaign": Case(VIRTUAL, "holds campaign 'other'", {"out/campaign.toml": VIRTUAL.replace('"plan"', '"other"')}),
    "catalogue of nobody": Case(VIRTUAL, "--catalogue", catalogue(), CAT),
    "no catalogue": Case(LOCAL, "has no NAME/workload.toml", {"cat/readme": "x"}, CAT),
    "damaged entry": Case(LOCAL, "connections", catalogue(("connections = 2", "connections = 0")), CAT),
    "not in the catalogue": Case(LOCAL.replace('"kv"', '"kw"'), "sweep.services", catalogue(), CAT),
    "cores of this machine": Case(LOCAL.replace("[0.5]", "[5000]"), "sweep.cores", catalogue(), CAT),
    "adapter": Case(LOCAL, "loaded with wrk2", catalogue(('"memcached"', '"wrk2"')), CAT),
    "threads of a launch": Case(LOCAL.replace("[1]\ncores", '"1..2000 step 1999"\ncores'), "Give 1 to 1024", catalogue(), CAT),
    "load generator": Case(LOCAL, "SUREFOOT_LOADGEN=/none", catalogue(), CAT, {"SUREFOOT_LOADGEN": "/none"}),
    "engine is none": Case(LOCAL, "is not a program", catalogue(), CAT, {"SUREFOOT_ENGINE": "/none"}),
    "engine is silent": Case(LOCAL, "container engine", catalogue(), CAT, {"SUREFOOT_ENGINE": "/bin/false"}),
    "image": Case(LOCAL, "no image plan/kv", catalogue(), CAT, images="other"),
    "data": Case(LOCAL, "volume /none of kv", catalogue(("licence", 'volumes = ["/none:/data"]\nlicence')), CAT),
    "port": Case(LOCAL, "is in use on this machine", catalogue(("PORT", "BUSY")), CAT),
    "program of a command": Case(
        LOCAL.replace('["kv"]', '"all"') + NAMED.replace("/bin/sh", "/none"), "there is no such program"
    ),
    "port of a command": Case(LOCAL.replace('["kv"]', '"all"') + NAMED.replace("PORT", "BUSY"), "is in use on this machine"),
    "adapter of hosts": Case(
        LOCAL.replace("local = true", 'hosts = "lab"'),
        "loaded with wrk2",
        {"inv": "[lab]\nnode-1\n", **catalogue(('"memcached"', '"wrk2"'))},
        {"inventory": "inv", **CAT},
    ),
    "field of hosts": Case(
        LOCAL.replace("local = true", 'hosts = "lab"') + "speed = 1\n", "speed", {"inv": "[lab]\nnode-1\n"}, {"inventory": "inv"}
    ),
}


@pytest.fixture
def busy() -> Iterator[int]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        yield int(s.getsockname()[1])


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def set_up(case: Case, folder: Path, busy: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Lay the case out in a folder, with an engine that has its images; the options of `plan` and `run`."""
    engine = folder / "engine"
    engine.write_text(
        "#!/bin/sh\ncase $1 in version) echo 27; exit 0;; ps) exit 0;; esac\n"
        f'[ "$3" = {case.images} ] && exit 0\necho "No such image: $3" >&2\nexit 1\n'
    )
    engine.chmod(0o755)
    monkeypatch.setenv("SUREFOOT_ENGINE", str(engine))
    monkeypatch.setenv("SUREFOOT_STATE", str(folder / "state"))
    for name, value in case.env.items():
        monkeypatch.setenv(name, value)
    port = str(free_port())
    files = dict(case.files)
    if case.text:
        files["campaign.toml"] = case.text
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("BUSY", str(busy)).replace("PORT", port), "utf-8")
    return {name: folder / value for name, value in case.options.items()}


def refusal(work: Callable[[], Any]) -> str:
    """What a plan or a run refuses first; "" if it refuses nothing."""
    try:
        found = work()
    except SurefootError as e:
        return str(e)
    refused = [what for target in found.get("targets", []) for what in target.get("refusals", [])]
    return str(refused[0]) if refused else ""


@pytest.mark.parametrize("name", CASES)
def test_what_run_refuses_plan_names_first(name: str, tmp_path: Path, busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan and run say the same of what cannot be run, and neither leaves a trace."""
    case = CASES[name]
    options = set_up(case, tmp_path, busy, monkeypatch)

    def started(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was started")

    monkeypatch.setattr(campaign.tools, "follow_json", started)
    monkeypatch.setattr(playbooks, "play", started)
    file, out = tmp_path / "campaign.toml", tmp_path / "out"
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    planned = refusal(lambda: campaign.plan(file, out=out, **options))
    refused = refusal(lambda: campaign.run(file, out, **options))
    assert case.says in planned
    assert refused == planned
    assert "\n" not in planned
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before


def test_a_plan_with_a_refusal_still_counts(tmp_path: Path, busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command shows the cases and each refusal, and ends with exit code 1; without a refusal with 0."""
    options = set_up(Case(LOCAL, "", catalogue(), CAT, images="other"), tmp_path, busy, monkeypatch)
    args = ["campaign", "plan", str(tmp_path / "campaign.toml"), "--catalogue", str(options["catalogue"])]
    done = CliRunner().invoke(commands.surefoot, args)
    assert done.exit_code == 1
    assert "plan: 1 cases" in done.output
    assert "run will refuse: no image plan/kv, which kv is started from" in done.output
    set_up(Case(LOCAL, "", catalogue(), CAT), tmp_path, busy, monkeypatch)
    done = CliRunner().invoke(commands.surefoot, args)
    assert (done.exit_code, "refuse" in done.output) == (0, False)


def test_a_plan_tells_how_the_load_generators_run(tmp_path: Path, busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a campaign says of its load generators is in the plan; where it says nothing, nothing is."""
    for table, says in ("", False), ("[loadgen]\nthreads = 1\n", True):
        options = set_up(Case(LOCAL + table, "", catalogue(), CAT), tmp_path, busy, monkeypatch)
        args = ["campaign", "plan", str(tmp_path / "campaign.toml"), "--catalogue", str(options["catalogue"])]
        done = CliRunner().invoke(commands.surefoot, args)
        assert done.exit_code == 0, done.output
        assert ("load generators with 1 sending threads each" in done.output) is says


def test_all_refusals_are_told_together(tmp_path: Path, busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan names every refusal, so that one look is enough; a run names the first and says how many more there are."""
    case = Case(LOCAL, "", catalogue(("PORT", "BUSY")), CAT, {"SUREFOOT_LOADGEN": "/none"}, images="other")
    options = set_up(case, tmp_path, busy, monkeypatch)
    file = tmp_path / "campaign.toml"
    told = campaign.plan(file, **options)["targets"][0]["refusals"]
    assert [re.search("SUREFOOT_LOADGEN|no image|in use", what).group() for what in told] == [  # type: ignore[union-attr]
        "SUREFOOT_LOADGEN",
        "no image",
        "in use",
    ]
    with pytest.raises(SurefootError, match=r"And 2 more refusals: surefoot campaign plan"):
        campaign.run(file, tmp_path / "out", **options)


def test_neighbours_without_an_image_are_a_warning(tmp_path: Path, busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which neighbours are drawn is not known here: a missing image of one of them is said, and refuses nothing."""
    other = ENTRY.replace('"kv"', '"kx"').replace("plan/kv", "plan/kx").replace("PORT", str(free_port()))
    text = LOCAL.replace("[sampling]", "neighbours = { count = [0, 1], draws = 1 }\n[sampling]")
    case = Case(text, "", {**catalogue(), "cat/kx/workload.toml": other}, CAT)
    options = set_up(case, tmp_path, busy, monkeypatch)
    target = campaign.plan(tmp_path / "campaign.toml", **options)["targets"][0]
    assert target["refusals"] == []
    assert any("no image of kx" in what for what in target["warnings"])


def test_a_campaign_that_goes_on_is_its_sweeps_to_judge(tmp_path: Path, busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed sweep left running holds its port: going on is not refused for that."""
    options = set_up(Case(LOCAL, "", catalogue(("PORT", "BUSY")), CAT), tmp_path, busy, monkeypatch)
    file, out = tmp_path / "campaign.toml", tmp_path / "out"
    (out / "local").mkdir(parents=True)
    shutil.copy(file, out / "campaign.toml")
    (out / "local/manifest.json").write_text("{}", "utf-8")

    class Started(Exception):
        pass

    def started(*_: Any, **__: Any) -> Any:
        raise Started

    monkeypatch.setattr(campaign, "_write_summary", started)
    with pytest.raises(Started):
        campaign.run(file, out, **options)


def test_hosts_that_measure_themselves_can_be_planned(tmp_path: Path, busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many cases such hosts have only they know; without an inventory what can be checked here is checked."""
    text = LOCAL.replace("local = true", 'hosts = "lab"').replace("[0.5]", "[5000]") + '[loadgen]\ncpus = "1000"\n'
    options = set_up(Case(text, "", catalogue(), CAT), tmp_path, busy, monkeypatch)
    (target,) = campaign.plan(tmp_path / "campaign.toml", **options)["targets"]
    assert (target["cases"], target["hosts"], target["refusals"]) == (None, None, [])
    args = ["campaign", "plan", str(tmp_path / "campaign.toml"), "--catalogue", str(options["catalogue"])]
    done = CliRunner().invoke(commands.surefoot, args)
    assert done.exit_code == 0
    assert "its hosts are looked for with --inventory INV" in done.output


def hosts_said(monkeypatch: pytest.MonkeyPatch, **said: playbooks.Heard) -> None:
    """Hosts answer the plan's playbook with these words."""

    def play(playbook: str, _inventory: Path, only: list[str], _variables: Any) -> dict[str, playbooks.Heard]:
        assert playbook == "plan.yml"
        return {host: said[host.replace("-", "_")] for host in only}

    monkeypatch.setattr(playbooks, "play", play)


def test_what_hosts_refuse_is_named_by_host(tmp_path: Path, busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges that a host does not have, a host that plans other cases, and one that cannot be reached are each named."""
    case = Case(
        LOCAL.replace("local = true", 'hosts = "lab"'),
        "",
        {"inv": "[lab]\nnode-1\nnode-2\nnode-3\nnode-4\n", **catalogue()},
        {"inventory": "inv", **CAT},
    )
    options = set_up(case, tmp_path, busy, monkeypatch)
    file = tmp_path / "campaign.toml"
    one = {
        "cases": 4,
        "by_service": {"kv": 4},
        "infeasible": {"cases": 0, "rules": []},
        "estimated_duration_s": 40.0,
        "warnings": [],
    }
    no_image = "no image plan/kv, which kv is started from. Build it, or mend image in /var/tmp/surefoot-plan.x1/workloads/NAME"
    wrong = "surefootd: /var/tmp/surefoot-plan.x1/campaign.toml:8: sweep.cores: 16 is more than the 8 cores"
    hosts_said(
        monkeypatch,
        node_1=playbooks.Heard({"Plan the campaign": {"stdout": json.dumps({**one, "refusals": [no_image]})}}),
        node_2=playbooks.Heard({}, f"Plan the campaign: {wrong}"),
        node_3=playbooks.Heard({"Plan the campaign": {"stdout": json.dumps({**one, "cases": 5})}}),
        node_4=playbooks.Heard({}, "no route to host", unreachable=True),
    )
    (target,) = campaign.plan(file, **options)["targets"]
    at = options["catalogue"]
    assert target["refusals"] == [
        f"node-1: no image plan/kv, which kv is started from. Build it, or mend image in {at}/NAME",
        f"node-2: {file}:8: sweep.cores: 16 is more than the 8 cores",
        "node-3: plans other cases than node-1: hosts that share a campaign are of one platform",
    ]
    assert target["warnings"] == ["node-4: cannot be reached: no route to host"]
    # four hosts share 40 s
    assert (target["cases"], target["estimated_duration_s"]) == (4, 10.0)


@pytest.mark.parametrize(("cores", "says"), [("[0.5]", ""), ("[5000]", "sweep.cores")])
def test_a_host_is_asked_and_keeps_nothing(
    cores: str, says: str, tmp_path: Path, busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansible asks a real host, this machine: it plans, or names the range that it does not have, and nothing stays there."""
    inventory = f"[lab]\nnode-1 ansible_connection=local ansible_become=false ansible_python_interpreter={sys.executable}\n"
    text = LOCAL.replace("local = true", 'hosts = "lab"').replace("[0.5]", cores)
    case = Case(text, "", {"inv": inventory, **catalogue()}, {"inventory": "inv", **CAT})
    options = set_up(case, tmp_path, busy, monkeypatch)
    before = set(Path("/var/tmp").glob("surefoot-plan.*"))
    (target,) = campaign.plan(tmp_path / "campaign.toml", **options)["targets"]
    assert target["warnings"] == [] or not says
    if says:
        (refusal_of_host,) = target["refusals"]
        assert refusal_of_host.startswith(f"node-1: {tmp_path / 'campaign.toml'}:")
        assert says in refusal_of_host
    else:
        assert (target["refusals"], target["cases"]) == ([], 1)
    assert set(Path("/var/tmp").glob("surefoot-plan.*")) == before


def test_the_catalogue_goes_to_the_sweep_and_to_the_hosts(tmp_path: Path, busy: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """--catalogue is what a local sweep and the hosts measure with, as `surefootd sweep` takes it."""
    options = set_up(Case(LOCAL, "", catalogue(), CAT), tmp_path, busy, monkeypatch)
    seen: list[list[str]] = []

    def follow(_tool: str, args: list[str | Path]) -> Iterator[dict[str, Any]]:
        seen.append([str(a) for a in args])
        return iter(())

    monkeypatch.setattr(campaign.tools, "follow_json", follow)
    monkeypatch.setattr(campaign.card, "write", lambda _: None)
    campaign.run(tmp_path / "campaign.toml", tmp_path / "out", **options)
    assert seen[0][seen[0].index("--catalogue") + 1] == str(options["catalogue"])

    sources: list[list[Path]] = []

    class Shipped(Exception):
        pass

    def archive(folders: list[Path], _into: Path) -> Path:
        sources.append(folders)
        raise Shipped

    monkeypatch.setattr(lab, "_archive", archive)
    (tmp_path / "inv").write_text("[lab]\nnode-1\n", "utf-8")
    file = tmp_path / "hosts.toml"
    file.write_text(LOCAL.replace("local = true", 'hosts = "lab"'), "utf-8")
    with pytest.raises(Shipped):
        campaign.run(file, tmp_path / "shared", inventory=tmp_path / "inv", **options)
    assert sources == [[options["catalogue"]]]
