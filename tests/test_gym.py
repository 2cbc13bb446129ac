"""The virtual server as a Gymnasium environment (docs/gym.md): interface, seeds, failures, and what the page says."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gym.md"

if importlib.util.find_spec("surefoot_gym") is None:
    pytest.fail("surefoot_gym is not installed in this environment. Run: make gym", pytrace=False)

import surefoot_gym as sg  # noqa: E402

ROWS = 10
SHORT = "duration_s = 2\n"
JOB = '[[be]]\njob = "stream"\n'


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def scenario(tmp_path: Path, text: str) -> str:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    return str(file)


@pytest.fixture
def short(tmp_path: Path) -> str:
    """Twenty steps of a service that comes, one that is there, and a job."""
    moses, xapian = '[[lc]]\nservice = "moses"\nload = 0.5\n', '[[lc]]\nservice = "xapian"\nload = 0.4\narrive_s = 0.7\n'
    return scenario(tmp_path, f'platform = "server-2"\n{SHORT}{moses}{xapian}{JOB}')


def run(env: gymnasium.Env[Any, Any], seed: int | None, steps: int, seed_of_actions: int = 0) -> list[tuple[Any, ...]]:
    env.action_space.seed(seed_of_actions)
    seen: list[tuple[Any, ...]] = [env.reset(seed=seed)]
    for _ in range(steps):
        seen.append(env.step(env.action_space.sample()))
        if seen[-1][3]:
            break
    return seen


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)


# ---------------------------------------------------------------- the interface


def test_the_id_carries_the_edition_of_the_plant() -> None:
    """Figures of two plants are figures of two environments: the version of the id is the plant's."""
    edition = re.search(r"pub const EDITION: u32 = (\d+);", (ROOT / "scheduler/vserver/src/lib.rs").read_text("utf-8"))
    assert edition is not None
    assert f"surefoot/VirtualServer-v{edition[1]}" == sg.ENV_ID
    assert gymnasium.spec(sg.ENV_ID).vector_entry_point is not None


@pytest.mark.parametrize(
    "kwargs",
    [{}, {"action": "shares"}, {"scenario": "train:1..20", "reward": "model-c"}, {"step_ms": 1000, "reward": {"emu": 2}}],
)
def test_gymnasiums_own_check_finds_nothing(kwargs: dict[str, Any]) -> None:
    """check_env passes without a warning: spaces, determinism, and no array that is handed out twice."""
    check_env(gymnasium.make(sg.ENV_ID, **kwargs).unwrapped)


@pytest.mark.parametrize("action", ["steps", "shares"])
def test_an_episode_ends_with_its_workload(short: str, action: str) -> None:
    """A workload of 2 s is 20 steps of 100 ms, all of them in their spaces; it is truncated, and does not terminate."""
    env = gymnasium.make(sg.ENV_ID, scenario=short, action=action)
    first, *steps = run(env, 1, 100)
    assert len(steps) == 20
    assert [s[3] for s in steps] == [False] * 19 + [True]
    assert not any(s[2] for s in steps)
    assert all(s[0] in env.observation_space for s in (first, *steps))
    assert first[1]["service_ids"] == ["moses", "xapian", "stream"]
    assert [s[4]["t_ms"] for s in steps] == [100.0 * (i + 1) for i in range(20)]


def test_what_is_not_known_is_masked(short: str) -> None:
    """Nothing was measured at the start; an empty row is unknown; a job has no p99; a newcomer's row fills when it comes."""
    env = sg.VirtualServerEnv(short)
    first, *steps = run(env, 1, 20)
    at = {name: i for i, name in enumerate(sg.COLUMNS)}
    known = first[0]["known"]
    assert known[0, at["held_cores"]] == 1
    assert not known[0, [at["ipc"], at["p99_window"], at["load"]]].any()
    assert not known[1].any()
    assert not known[3:].any()
    assert not first[0]["services"][known == 0].any()
    later = steps[-1][0]
    assert later["known"][1, at["is_lc"]] == 1
    assert later["known"][0, at["p99_window"]] == 1
    assert later["known"][2, at["p99_window"]] == 0
    assert later["known"][2, at["throughput"]] == 1
    assert [int(s[0]["known"][1, at["is_lc"]]) for s in steps] == [0] * 6 + [1] * 14


def test_observations_are_what_info_says_in_units(short: str) -> None:
    """A column over its scale is the number of the same name in info: p99 through r / (1 + r), cores over all CPUs."""
    env = sg.VirtualServerEnv(short)
    obs, _, _, _, info = run(env, 3, 20)[-1]
    at = {name: i for i, name in enumerate(sg.COLUMNS)}
    for row in (0, 1):
        r = info["p99_ms"][row] / info["qos_target_ms"][row]
        assert obs["services"][row, at["p99_window"]] == pytest.approx(r / (1 + r), rel=1e-6)
        assert info["violation"][row] == float(r > 1)
    cpus = info["cores"][0] / obs["services"][0, at["held_cores"]]
    assert cpus == pytest.approx(round(cpus), rel=1e-6)
    assert sum(info["cores"][:3]) == pytest.approx(round(cpus))  # the job holds what no service does
    assert info["violation"][2] == info["p99_ms"][2] == sg.UNKNOWN


# ---------------------------------------------------------------- actions


def act(env: sg.VirtualServerEnv, *rows: list[int]) -> dict[str, Any]:
    action = sg.stay(ROWS)
    for i, row in enumerate(rows):
        action[3 * i : 3 * i + 3] = row
    return env.step(action)[4]


def test_a_step_moves_cores_and_ways(short: str) -> None:
    """What is asked of one row is held after the step; the job gives, and has back what is given up."""
    env = sg.VirtualServerEnv(short)
    _, before = env.reset(seed=1)
    info = act(env, sg.action_row(cores=-2, ways=3))
    assert (info["cores"] - before["cores"])[:3].tolist() == [-2.0, 0.0, 2.0]
    assert (info["ways"] - before["ways"])[:3].tolist() == [3.0, 0.0, -3.0]
    assert info["refused"].tolist() == [0] * ROWS
    info = act(env)
    assert info["moved"] == 0.0


def test_bandwidth_is_set_where_a_platform_has_it(short: str) -> None:
    """A step of bandwidth of a job is a step of the hardware; the row of a service has its own."""
    env = sg.VirtualServerEnv(short)
    env.reset(seed=1)
    info = act(env, sg.action_row(), sg.action_row(), sg.action_row(bandwidth=-1))
    assert info["mba_pct"][:3].tolist() == [100.0, sg.UNKNOWN, 90.0]
    info = act(env, sg.action_row(bandwidth=-1))
    assert info["mba_pct"][:3].tolist() == [90.0, sg.UNKNOWN, 90.0]


def test_shares_are_what_was_asked_for(short: str) -> None:
    """A share is of the whole server, and holds whatever was held before."""
    env = sg.VirtualServerEnv(short, action="shares")
    _, before = env.reset(seed=1)
    cpus, ways = before["cores"][:3:2].sum(), before["ways"][:3:2].sum()
    action = np.zeros(3 * ROWS, np.float32)
    action[:3] = [0.5, 0.25, 1.0]
    info = env.step(action)[4]
    assert (info["cores"][0], info["ways"][0]) == (round(cpus * 0.5), round(ways * 0.25))
    assert env.step(action)[4]["moved"] == 0.0


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (np.full(3 * ROWS, np.nan), "no-number"),
        (np.full(3 * ROWS, np.inf), "no-number"),
        (np.full(3 * ROWS, -1), "out-of-range"),
        (np.full(3 * ROWS, 7), "out-of-range"),
        (np.full(3 * ROWS, 2.5), "out-of-range"),
        (np.zeros(3), "malformed"),
        (np.zeros((2, 3 * ROWS)), "malformed"),
        ("grow", "malformed"),
        (None, "malformed"),
        ({"cores": 1}, "malformed"),
    ],
)
def test_a_bad_action_is_refused_and_nothing_is_raised(short: str, action: Any, why: str) -> None:
    """Whatever comes as an action, the step is taken, the holdings stay, and info says why."""
    env = sg.VirtualServerEnv(short)
    _, before = env.reset(seed=1)
    obs, reward, _, _, info = env.step(action)
    assert sg.REFUSED[info["refused"][0]] == why
    assert np.array_equal(info["cores"], before["cores"])
    assert np.isfinite(reward)
    assert obs in env.observation_space


def test_more_than_is_free_is_cut(tmp_path: Path) -> None:
    """Asked for more again and again, a row gets what is free, and from then on is told that nothing is."""
    moses = '[[lc]]\nservice = "moses"\nload = 0.4\n'
    env = sg.VirtualServerEnv(scenario(tmp_path, f'platform = "server-1"\n{SHORT}{moses}{JOB}'))
    _, first = env.reset(seed=1)
    cpus = first["cores"][:2].sum()
    for _ in range(15):
        info = act(env, sg.action_row(cores=3))
    assert info["cores"][:2].tolist() == [cpus - 1, 1.0]
    assert sg.REFUSED[info["refused"][0]] == "nothing-free"
    for _ in range(15):
        info = act(env, sg.action_row(cores=-3, ways=-3))
    assert info["cores"][0] == 1.0
    assert sg.REFUSED[info["refused"][0]] == "below-least"


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"scenario": "dmeo"}, 'Did you mean "demo"'),
        ({"scenario": "exam:1"}, "train, tune or test"),
        ({"max_services": 0}, "Give 1 to 64"),
        ({"step_ms": 150}, "in steps of 100"),
        ({"action": "wishes"}, '"steps" or "shares"'),
        ({"reward": "emuu"}, "Give one of emu"),
        ({"reward": {"emus": 1.0}}, "There are: emu"),
        ({"platform": "server-9"}, 'unknown platform "server-9"'),
    ],
)
def test_bad_arguments_say_what_to_do(kwargs: dict[str, Any], says: str) -> None:
    """What an environment cannot be made of is a ValueError of one line with the remedy."""
    with pytest.raises(ValueError, match=re.escape(says)) as e:
        sg.VirtualServerEnv(**kwargs)
    assert "\n" not in str(e.value)


def test_a_workload_that_does_not_fit_is_told_in_info(short: str) -> None:
    """More services than rows: no exception in the loop, an episode that is over at once and says why."""
    env = sg.VirtualServerEnv(short, max_services=2)
    _, info = env.reset(seed=1)
    assert "max_services is 2. Give 3" in info["error"]
    *_, truncated, _ = env.step(sg.stay(2))
    assert truncated


# ---------------------------------------------------------------- seeds


def test_a_seed_is_a_trajectory() -> None:
    """The same seed and actions give the same episodes to the last bit, the next ones too; another seed gives others."""
    one, two = sg.VirtualServerEnv("demo"), sg.VirtualServerEnv("demo")
    for seed in (7, None, None):
        a, b = run(one, seed, 30), run(two, seed, 30)
        assert same(a, b)
    assert not same(run(one, 7, 30)[1:], run(one, 8, 30)[1:])


@pytest.mark.parametrize("threads", [1, 3])
def test_a_vector_goes_the_way_of_single_environments(short: str, threads: int) -> None:
    """Environment i with seed s is the single one with seed s + i, over the end of an episode and on any number of threads."""
    n, seed = 5, 11
    kwargs: dict[str, Any] = {"scenario": short, "action": "steps"}
    many = gymnasium.make_vec(sg.ENV_ID, n, vectorization_mode="vector_entry_point", threads=threads, **kwargs)
    singles = [sg.VirtualServerEnv(**kwargs) for _ in range(n)]
    obs, infos = many.reset(seed=seed)
    over = [False] * n
    for i, env in enumerate(singles):
        first, info = env.reset(seed=seed + i)
        assert same({k: v[i] for k, v in obs.items()}, first)
        assert infos["run_seed"][i] == info["run_seed"] == seed + i
    many.action_space.seed(5)
    for _ in range(45):
        actions = many.action_space.sample()
        obs, rewards, _, truncations, infos = many.step(actions)
        assert obs in many.observation_space
        for i, env in enumerate(singles):
            if over[i]:
                seen, info = env.reset()
                reward, over[i] = 0.0, False
                assert infos["_run_seed"][i]
                assert infos["run_seed"][i] == info["run_seed"]
            else:
                seen, reward, _, over[i], info = env.step(actions[i])
            assert same({k: v[i] for k, v in obs.items()}, seen)
            assert (rewards[i], truncations[i]) == (reward, over[i])
            assert np.array_equal(infos["p99_ms"][i], info["p99_ms"])


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_autoreset_is_gymnasiums(short: str, mode: AutoresetMode) -> None:
    """The vector does at the end of an episode what Gymnasium's own vector of single environments does."""
    ours = sg.VirtualServerVectorEnv(3, short, autoreset_mode=mode)
    theirs = SyncVectorEnv([lambda: sg.VirtualServerEnv(short)] * 3, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] == mode
    assert same(ours.reset(seed=4)[0], theirs.reset(seed=4)[0])
    ours.action_space.seed(1)
    for _ in range(43):
        actions = ours.action_space.sample()
        a, b = ours.step(actions), theirs.step(actions)
        assert same(a[:4], tuple(b[:4]))
        assert ("final_obs" in a[4]) == ("final_obs" in b[4])
        if "final_obs" in a[4]:
            assert all(same(x, y) for x, y in zip(a[4]["final_obs"], b[4]["final_obs"], strict=True))
            assert np.array_equal(a[4]["_final_obs"], b[4]["_final_obs"])
            assert np.array_equal(a[4]["final_info"]["p99_ms"], b[4]["final_info"]["p99_ms"])


def test_worker_processes_know_the_id(short: str) -> None:
    """Processes that begin with nothing find the environment by module and id, and do what servers of this process do."""
    theirs = gymnasium.make_vec(
        f"surefoot_gym:{sg.ENV_ID}", 2, vectorization_mode="async", vector_kwargs={"context": "spawn"}, scenario=short
    )
    ours = sg.VirtualServerVectorEnv(2, short)
    assert same(theirs.reset(seed=3)[0], ours.reset(seed=3)[0])
    actions = np.tile(np.concatenate([sg.action_row(cores=1), sg.stay(ROWS - 1)]), (2, 1))
    assert same(tuple(theirs.step(actions)[:4]), ours.step(actions)[:4])
    theirs.close()


def test_a_vector_can_be_reset_in_part(short: str) -> None:
    """With autoreset disabled only the masked environments begin anew, and the others stay where they are."""
    many = sg.VirtualServerVectorEnv(3, short, autoreset_mode="Disabled")
    many.reset(seed=1)
    for _ in range(3):
        many.step(np.tile(sg.stay(ROWS), (3, 1)))
    _, infos = many.reset(options={"reset_mask": np.array([False, True, False])})
    assert infos["t_ms"].tolist() == [300.0, 0.0, 300.0]


def test_arrays_are_not_used_again(short: str) -> None:
    """What a step returned is never written to by a later one."""
    many = sg.VirtualServerVectorEnv(2, short)
    kept = [many.reset(seed=1)[0]]
    copies = [{k: v.copy() for k, v in kept[0].items()}]
    for _ in range(5):
        kept.append(many.step(np.tile(sg.stay(ROWS), (2, 1)))[0])
        copies.append({k: v.copy() for k, v in kept[-1].items()})
    assert same(kept, copies)
    assert not any(np.shares_memory(a["services"], b["services"]) for a, b in pairwise(kept))


def test_a_fork_goes_its_own_way(short: str) -> None:
    """A fork and its origin do the same for the same actions, and neither moves the other."""
    env = sg.VirtualServerEnv(short)
    env.reset(seed=1)
    env.step(sg.stay(ROWS))
    fork = env.fork()
    fork.step(sg.stay(ROWS))
    a = fork.step(sg.stay(ROWS))
    env.step(sg.stay(ROWS))
    assert same(a, env.step(sg.stay(ROWS)))


def test_an_episode_is_a_run_of_eval(tmp_path: Path) -> None:
    """Equal shares in the first episode of seed 1 are the run that `surefootd eval` makes of seed 1: p99 by p99."""
    import polars

    text = 'platform = "server-1"\nduration_s = 12\n'
    text += "".join(f'[[lc]]\nservice = "{name}"\nload = 0.4\n' for name in ("moses", "masstree")) + JOB
    mine = scenario(tmp_path, text)
    program = ROOT / "target/release/surefootd"
    what = ["--workloads", mine, "--policies", "equal-share", "--platform", "server-1"]
    subprocess.run(
        [program, "eval", *what, "--out", tmp_path / "eval", "--progress", "none"], check=True, capture_output=True, cwd=ROOT
    )
    env = sg.VirtualServerEnv(mine)
    env.reset(seed=1)
    p99 = [env.step(sg.stay(ROWS))[4]["p99_ms"][:2] for _ in range(120)]
    lines = polars.read_parquet(tmp_path / "eval/timelines.parquet").filter(polars.col("kind") == "lc", polars.col("t_ms") > 0)
    for i, name in enumerate(("moses", "masstree")):
        of_eval = lines.filter(polars.col("service") == name).sort("t_ms")["p99_ms"].to_list()
        assert of_eval == [float(x[i]) for x in p99][: len(of_eval)]


def test_policies_are_rivals_in_the_same_episode(tmp_path: Path) -> None:
    """What `follow` says of a policy is eval's row of it, and equal shares are those of an agent's action."""
    import polars

    mine = scenario(tmp_path, 'platform = "server-1"\nduration_s = 12\n[[lc]]\nservice = "moses"\nload = 0.9\n' + JOB)
    program = ROOT / "target/release/surefootd"
    what = ["--workloads", mine, "--policies", "parties,equal-share", "--platform", "server-1", "--progress", "none"]
    subprocess.run([program, "eval", *what, "--out", tmp_path / "eval"], check=True, capture_output=True, cwd=ROOT)
    env = sg.VirtualServerEnv(mine, action="shares")
    obs, _ = env.reset(seed=1)
    rows = polars.read_parquet(tmp_path / "eval/rows.parquet")
    for name in ("parties", "equal-share"):
        late_s = rows.filter(polars.col("policy") == name)["qos_violation_s"][0]
        told = env.follow(name)
        assert told["t_ms"].tolist() == [100.0 * (i + 1) for i in range(120)]
        assert 0.1 * told["violations"].sum() == pytest.approx(late_s)
    told, seen = env.follow("equal-share"), []
    for _ in range(120):
        obs, *_, info = env.step(sg.equal_shares(obs["services"]))
        seen.append(info["emu"])
    assert told["emu"].tolist() == seen
    with pytest.raises(ValueError, match="osml-plus"):
        env.follow("osml-plus")
    assert "parties" in sg.POLICIES
    assert "osml-plus" not in sg.POLICIES


# ---------------------------------------------------------------- the package


def test_the_stub_is_of_the_extension() -> None:
    """`_native.pyi` names what the extension has, and no more: a type checker is told no untruth."""
    from surefoot_gym import _native

    tree = ast.parse((ROOT / "python/surefoot_gym/_native.pyi").read_text("utf-8"))
    said = {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef)]
    assert said | {c.name for c in classes} == {n for n in dir(_native) if not n.startswith("_")}
    for of in classes:
        methods = {n.name for n in of.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")}
        assert methods == {n for n in dir(getattr(_native, of.name)) if not n.startswith("_")}, of.name


def test_the_public_names_are_there() -> None:
    """`__all__` lists what the package has for others, once each and in order."""
    assert sg.__all__ == sorted(set(sg.__all__))
    assert all(hasattr(sg, name) for name in sg.__all__)


def test_the_wheel_stands_alone(tmp_path: Path) -> None:
    """One wheel for all Python from 3.11 on, below 10 MB, with types and profiles: an episode runs far from the checkout."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    env = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(ROOT / "python")]
    done = subprocess.run(wheel, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("surefoot_gym-*-cp311-abi3-*.whl")
    assert file.stat().st_size < 10_000_000
    with zipfile.ZipFile(file) as z:
        held = {name.rpartition("/")[2] for name in z.namelist() if name.startswith("surefoot_gym/")}
        assert {"surefoot/__init__.py", "surefoot/policy.py", "surefoot/py.typed", "surefoot_gym/node.py"} <= set(z.namelist())
    assert {"_native.abi3.so", "_native.pyi", "py.typed", "env.py", "vector.py"} <= held
    subprocess.run([*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(file)], check=True)
    code = (
        "import surefoot_gym as sg, surefoot_gym.node; e = sg.VirtualServerEnv('shapes-server-1'); e.reset(seed=1); "
        "print(sg.__file__, e.step(sg.stay(10))[4]['t_ms'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        check=True,
    )
    assert done.stdout.split() == [str(tmp_path / "site/surefoot_gym/__init__.py"), "100.0"]


def test_the_example_learns(tmp_path: Path) -> None:
    """The example runs to its table; in two generations it learns nothing that a test could ask for."""
    command = [sys.executable, ROOT / "examples/gym_train.py", "--generations", "2", "--seeds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"equal-share +0\.\d+ +0\.\d+ +\d+\.\d\nparties-be .*\nlearnt ", done.stdout), done.stdout


def test_the_benchmark_prints_its_rows() -> None:
    """`scripts/bench/gym.py` prints machine, edition, steps a second and memory."""
    command = [sys.executable, ROOT / "scripts/bench/gym.py", "--seconds", "0.05"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert sg.ENV_ID in done.stdout
    assert len(re.findall(r"[\d,]+ steps/s", done.stdout)) == 5
    assert "MiB" in done.stdout


# ---------------------------------------------------------------- the page


def test_the_page_has_every_name() -> None:
    """docs/gym.md lists every column, part of a reward, entry of info, reason and named reward."""
    text = PAGE.read_text("utf-8")
    for name in (*sg.COLUMNS, *sg.SERVER_COLUMNS, *sg.MARKS, *sg.TOLD, *sg.REFUSED[1:], *sg.REWARDS, *sg.SETS):
        assert f"`{name}`" in text, name
    assert sg.ENV_ID in text


def test_the_pages_first_episode_runs() -> None:
    """The ten lines of the page run as they stand."""
    code = re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert code is not None
    done = subprocess.run([sys.executable, "-c", code[1]], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "violation" in done.stdout
