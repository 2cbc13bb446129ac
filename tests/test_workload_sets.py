"""Workload sets: drawn with seeds, the same everywhere, and what is committed is what the generator makes."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from collection import cli, workload_sets
from collection.errors import InputError, StepFailed
from collection.tools import repo_root
from collection.workload_sets import Recipe, Set, Workload

SETS = repo_root() / "workloads" / "sets"
PROFILES = repo_root() / "scheduler" / "vserver" / "profiles"


def drawn_as(file: Path) -> int:
    found = re.match(r"# Draw (\d+) of surefoot workloads generate ", file.read_text("utf-8"))
    assert found, f"{file}: its first line does not name its draw"
    return int(found[1])


@pytest.mark.parametrize("of", workload_sets.SETS, ids=lambda s: s.folder)
def test_committed_sets_are_what_the_generator_draws(of: Set) -> None:
    """As many files as said, each the draw that it names, in the order of the draws, none twice."""
    files = sorted((SETS / of.folder).glob("*.toml"))
    digits = max(2, len(str(of.count)))
    assert [f.name for f in files] == [f"{of.name}-{k:0{digits}}.toml" for k in range(1, of.count + 1)]
    numbers = [drawn_as(f) for f in files]
    assert numbers == sorted(set(numbers))
    for file, number in zip(files, numbers, strict=True):
        workload = workload_sets.draw(of.recipe, number)
        assert workload is not None
        assert file.read_text("utf-8") == workload.text()
        assert (len(workload.lc), len(workload.be)) == (of.recipe.lc, of.recipe.be)
    texts = {f.read_text("utf-8").split("\n", 1)[1] for f in files}
    assert len(texts) == of.count


def test_the_cosmos_set_is_what_its_script_writes(tmp_path: Path) -> None:
    """Mixes at three loads and over-commitments, and a day, byte for byte. Mixes exceed 60 GB as the paper's do."""
    script = repo_root() / "scripts" / "workloads" / "cosmos.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=60)
    assert (tmp_path / "cosmos-e4" / "day.toml").read_text("utf-8") == (SETS / "cosmos-e4" / "day.toml").read_text("utf-8")
    made = {f.name: f.read_text("utf-8") for f in (tmp_path / "cosmos-e2").iterdir()}
    assert len(made) == 90
    assert made == {f.name: f.read_text("utf-8") for f in (SETS / "cosmos-e2").iterdir()}
    for name, text in made.items():
        workload = tomllib.loads(text)
        ratio = (workload["lc"][0]["ws_gb"] + workload["be"][0]["ws_gb"]) / 60
        wanted = {"low": 1.075, "medium": 1.15, "high": 1.3}[name.removesuffix(".toml").rsplit("-", 1)[1]]
        assert ratio == pytest.approx(wanted, abs=0.012), name


def test_every_committed_workload_names_what_exists() -> None:
    """Services with a max load on their platform, jobs with a profile, times within the workload."""
    found = sorted(SETS.glob("*/*.toml"))
    assert len(found) >= 7 + 2 * 40 + 5 * 20 + 302 + 12
    for file in found:
        workload = tomllib.loads(file.read_text("utf-8"))
        for lc in workload.get("lc", []):
            # A set may have profiles of its own.
            places = (folder / "services" / f"{lc['service']}.toml" for folder in (PROFILES, file.parent / "profiles"))
            profile = tomllib.loads(next(p for p in places if p.is_file()).read_text("utf-8"))
            assert profile["max_load_rps"][workload["platform"]] > 0, file
            times = [lc.get("arrive_s", 0), *(c["at_s"] for c in lc.get("change", []))]
            assert times == sorted(times), file
            assert times[-1] < workload["duration_s"], file
        for be in workload.get("be", []):
            assert (PROFILES / "batch" / f"{be['job']}.toml").is_file(), file


@pytest.mark.parametrize("server", ["server-1", "server-2", "server-3"])
def test_churn_is_the_papers_script(server: str) -> None:
    """OSML+ paper, Sec. 4.4: five services at 60, 60, 60, 30 and 30 %, img-dnn's rise from 20 s on, sphinx with 40 % at 60 s."""
    for name, jobs in (("osml-plus-fig10", []), ("osml-plus-fig12", ["blackscholes"])):
        churn = tomllib.loads((SETS / f"churn-{server}" / f"{name}.toml").read_text("utf-8"))
        assert churn["platform"] == server
        first = {lc["service"]: lc["load"] for lc in churn["lc"] if "arrive_s" not in lc}
        assert first == {"img-dnn": 0.6, "login": 0.6, "ads": 0.6, "specjbb": 0.3, "xapian": 0.3}
        assert churn["lc"][0]["change"][0]["at_s"] == 20
        assert [c["at_s"] for c in churn["lc"][0]["change"] if c["load"] < 0.9 and c["at_s"] > 32] == [50, 54, 58]
        assert [(lc["load"], lc["arrive_s"]) for lc in churn["lc"] if lc["service"] == "sphinx"] == [(0.4, 60)]
        assert [be["job"] for be in churn.get("be", [])] == jobs


def test_a_seed_draws_the_same_and_another_does_not(tmp_path: Path) -> None:
    """Files depend on the recipe alone; numbers as drawn on any machine (SHA-256, no library's generator)."""
    recipe = Recipe("server-2", 3, be=1)
    for name in ("a", "b"):
        workload_sets.generate(recipe, 12, "w", tmp_path / name)
    texts = [[f.read_text("utf-8") for f in sorted((tmp_path / n).iterdir())] for n in ("a", "b")]
    assert texts[0] == texts[1]
    other = workload_sets.draw(Recipe("server-2", 3, be=1, seed=2), 1)
    first = workload_sets.draw(recipe, 1)
    assert first is not None
    assert other is not None
    assert (first.lc, first.be) != (other.lc, other.be)
    assert first.lc == (("memcached", 20, 0.0), ("img-dnn", 30, 1.0), ("ads", 60, 2.0))


def test_loads_and_services_are_within_the_recipe() -> None:
    """Every service and level comes, none from outside, no service twice; a grid has each combination once."""
    recipe = Recipe("server-2", 3, low_pct=60)
    found = [w for w in (workload_sets.draw(recipe, n) for n in range(1, 400)) if w is not None]
    assert {s for w in found for s, _, _ in w.lc} == set(workload_sets.SERVICES)
    assert {pct for w in found for _, pct, _ in w.lc} == {60, 70, 80, 90, 100}
    assert all(len({s for s, _, _ in w.lc}) == 3 for w in found)
    # two services at three levels: 9 combinations, then no more
    grid = Recipe("server-1", 2, services=("moses", "xapian"), low_pct=80, grid=True)
    cells = [workload_sets.draw(grid, n) for n in range(1, 11)]
    assert len({w.lc for w in cells if w is not None}) == 9
    assert cells[9] is None


def test_the_files_do_not_depend_on_how_many_are_judged_at_once(tmp_path: Path) -> None:
    """Kept are the first draws that the judge keeps, in order: here those whose first load is at least 50 %."""
    recipe = Recipe("server-2", 2)

    def judge(some: object) -> list[bool]:
        assert isinstance(some, list)
        return [w.lc[0][1] >= 50 for w in some]

    made = workload_sets.generate(recipe, 5, "w", tmp_path / "out", judge)
    assert made["files"] == [f"w-0{k}.toml" for k in range(1, 6)]
    kept: list[Workload] = []
    number = 0
    while len(kept) < 5:
        number += 1
        workload = workload_sets.draw(recipe, number)
        assert workload is not None
        kept += [workload] if workload.lc[0][1] >= 50 else []
    assert [f.read_text("utf-8") for f in sorted((tmp_path / "out").iterdir())] == [w.text() for w in kept]


def test_a_set_is_made_again_and_oracle_agrees(tmp_path: Path) -> None:
    """The first files of a committed set, asking ORACLE: the same bytes. An impossible one is told from them."""
    of = next(s for s in workload_sets.SETS if s.folder == "lc2-be-server-2")
    workload_sets.generate(of.recipe, 3, of.name, tmp_path / "again", workload_sets.schedulable)
    for file in sorted((tmp_path / "again").iterdir()):
        assert file.read_bytes() == (SETS / of.folder / file.name).read_bytes()
    # sphinx and memcached, both at max load: each needs most of the server
    full = Workload(Recipe("server-2", 2), 1, (("sphinx", 100, 0.0), ("memcached", 100, 1.0)), ())
    half = Workload(Recipe("server-2", 2), 2, (("login", 20, 0.0), ("memcached", 20, 1.0)), ())
    assert workload_sets.schedulable([full, half]) == [False, True]


def test_events_change_loads_and_let_services_leave() -> None:
    """Evenly spread after the last arrival; nobody acts who has gone, somebody stays; a change is to another level."""
    recipe = Recipe("server-1", 3, high_pct=60, events=7)
    drawn = [w for w in (workload_sets.draw(recipe, n) for n in range(1, 200)) if w is not None]
    leaves = 0
    for workload in drawn:
        assert [t for t, _, _ in workload.events] == [16.8, 31.5, 46.2, 61.0, 75.8, 90.5, 105.2]
        here = {service: pct for service, pct, _ in workload.lc}
        for _, who, pct in workload.events:
            assert here[who] != pct
            here[who] = pct
            here = {s: p for s, p in here.items() if p}
            assert here
            leaves += pct == 0
        assert {pct for _, _, pct in workload.events} <= {0, 10, 20, 30, 40, 50, 60}
        # what the file says is what was drawn
        read = tomllib.loads(workload.text())["lc"]
        said = [(c["at_s"], lc["service"], round(100 * c["load"])) for lc in read for c in lc.get("change", [])]
        said += [(lc["leave_s"], lc["service"], 0) for lc in read if "leave_s" in lc]
        assert sorted(said) == sorted(workload.events)
        phases = workload.phases()
        assert {s: p for s, p, _ in phases[0].lc} == {s: p for s, p, _ in workload.lc}
        assert {s: p for s, p, _ in phases[-1].lc} == here
        assert len(phases) == 8
    # one in four, but for the last service
    assert 0.2 < leaves / sum(len(w.events) for w in drawn) < 0.27


def test_every_phase_must_be_schedulable() -> None:
    """A load that rises to what does not fit beside the other, and one whose neighbour has left by then."""
    two = (("sphinx", 20, 0.0), ("memcached", 100, 1.0))
    rises = Workload(Recipe("server-2", 2), 1, two, (), ((40.0, "sphinx", 100), (80.0, "sphinx", 20)))
    leaves = Workload(Recipe("server-2", 2), 2, two, (), ((40.0, "memcached", 0), (80.0, "sphinx", 100)))
    assert workload_sets.schedulable([rises, leaves]) == [False, True]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--events=-1"], "--events -1: give 0 or more"),
        (["--events", "200"], "--events 200: less than a second apart. Give fewer"),
        (["--events", "2", "--low", "50", "--high", "50"], "--events 2: with one level no load can change"),
        (["--lc", "12"], "--lc 12: there are 11 services to draw from"),
        (["--be", "4"], "--be 4: there are 3 jobs"),
        (["--low", "15"], "loads are 10, 20 ... 100"),
        (["--low", "90", "--high", "50"], "low to high"),
        (
            ["--gap-s", "100"],
            "--gap-s 100: the last of 3 services would arrive after --duration-s 120. Give a lower --gap-s, a lower --lc or"
            " a longer --duration-s",
        ),
        (["--grid", "moses,xapian", "--gap-s", "200"], "Give a lower --gap-s, fewer services in --grid or a longer --duration-s"),
        (["--gap-s", "nan"], "--gap-s nan: is no time between arrivals"),
        (["--gap-s=-1"], "--gap-s -1: is no time between arrivals. Give a number of seconds, 0 or more"),
        (["--duration-s", "nan"], "--duration-s nan: is no duration"),
        (["--duration-s", "inf"], "--duration-s inf: is no duration"),
        (
            ["--services", "moses,xapain,login"],
            '--services moses,xapain,login: there is no xapain. Did you mean "xapian"? Known: ads, ',
        ),
        (["--services", "moses,xapian,moses"], "moses stands there twice"),
        (["--services", "moses,blackscholes,login"], "there is no blackscholes"),
        (["--jobs", "moses"], "--jobs moses: there is no moses. Known: "),
        (["--grid", "moses,,xapian"], '--grid "moses,,xapian": a name is empty'),
        (["--grid", ""], '--grid "": a name is empty'),
        (["--grid", "3x3"], "--grid 3x3: there is no 3x3"),
        (["--grid", "moses,xapian", "--lc", "2"], "says which services there are, so --lc cannot"),
        (["--name", "a/b"], "--name 'a/b': is to be the beginning of file names"),
        (["--name", ""], "--name '': is to be the beginning of file names"),
        (["--count", "0"], "--count 0: give 1 or more"),
        (["--grid", "moses,xapian", "--count", "101"], "--count 101: only 100 draws exist. Give 1 to 100, "),
        (["--grid", "moses", "--count", "50", "--schedulable"], "--count 50: only 10 draws exist. Give 1 to 10, "),
        (
            ["--platform", "sever-2"],
            '--platform sever-2: no such platform. Did you mean "server-2"? Known: cosmos-server, server-1, ',
        ),
        (["--set", "lc9"], "--set lc9: no such set. Generated sets: lc3-server-2"),
    ],
)
def test_bad_options_are_one_line(options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Option, value and remedy; nothing is written."""
    with pytest.raises(SystemExit) as end:
        cli.main(["workloads", "generate", "--platform", "server-2", "--out", str(tmp_path / "out"), *options])
    assert end.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert says in said[-1]
    assert said[-1].startswith("error: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [(["--count", "3"], "--count"), (["--seed", "1", "--name", "x"], "--seed, --name"), (["--platform", "x"], "--platform")],
)
def test_a_set_goes_with_no_recipe(options: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What would be ignored is refused, also where it is the default, and the set's own recipe is shown to begin from."""
    with pytest.raises(SystemExit) as end:
        cli.main(["workloads", "generate", "--set", "lc3-server-2", "--out", str(tmp_path / "out"), *options])
    assert end.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"--set lc3-server-2: is made again as it is, so {named} cannot change it" in said
    recipe = next(s.recipe for s in workload_sets.SETS if s.folder == "lc3-server-2")
    assert said.endswith(f"surefoot workloads generate {recipe.command()} --count 40 --schedulable")
    assert not (tmp_path / "out").exists()


def test_a_platform_of_ones_own_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile in a folder of SUREFOOT_PROFILES counts as the shipped ones do."""
    (tmp_path / "platforms").mkdir()
    (tmp_path / "platforms" / "mine.toml").write_text("")
    with pytest.raises(InputError, match="no such platform"):
        Recipe("mine", 2).check()
    monkeypatch.setenv("SUREFOOT_PROFILES", str(tmp_path))
    Recipe("mine", 2).check()


def test_a_long_generation_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ORACLE is asked about 16 draws at most at once, and after each time one hears of it, also where stderr is a file."""
    asked: list[int] = []

    def judge(some: Sequence[Workload]) -> list[bool]:
        asked.append(len(some))
        return [w.number % 2 == 0 for w in some]

    monkeypatch.setattr(workload_sets, "schedulable", judge)
    cli.main(["workloads", "generate", "--set", "lc3-server-2", "--out", str(tmp_path / "out")])
    # every second draw is kept: 40 files take 80 draws
    assert max(asked) == 16
    assert sum(asked) == 80
    said = [line for line in capsys.readouterr().err.splitlines() if " files from " in line]
    # soon for the first time, then after every 16
    assert said[0].startswith("2 of 40 files from 4 draws; of 2 ORACLE found no partition that meets every QoS target")
    assert said[1].startswith("10 of 40 files from 20 draws; of 10 ORACLE")
    assert said[-1].startswith("40 of 40 files from 80 draws; of 40 ORACLE")
    assert len(said) == len(asked)


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    """Files from before would be taken for part of the set."""
    (tmp_path / "mine.toml").write_text("x")
    with pytest.raises(InputError, match="is not empty"):
        workload_sets.generate(Recipe("server-2", 2), 1, "w", tmp_path)


def test_a_search_that_finds_nothing_says_so_and_ends(tmp_path: Path) -> None:
    """However many files are asked for: heard of after a few draws, given up after PATIENCE in a row, with why and what to do."""
    heard: list[tuple[int, int]] = []
    says = "only 0 of 60 draws were kept, 500 were asked for: of the last 60 ORACLE found no partition .* Lower --high"
    with pytest.raises(StepFailed, match=says):
        workload_sets.generate(
            Recipe("server-2", 2),
            500,
            "w",
            tmp_path / "new",
            lambda some: [False] * len(some),
            lambda files, draws: heard.append((files, draws)),
        )
    assert heard[:2] == [(0, 4), (0, 8)]
    assert not (tmp_path / "new").exists()
