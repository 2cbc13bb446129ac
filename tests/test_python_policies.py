"""Policies in Python over a socket (docs/python-policies.md): figures, failures, ten minutes, and what the page says."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl
import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "python-policies.md"
EXAMPLES = ROOT / "examples" / "python-policy"
DEMO = ROOT / "workloads" / "sets" / "demo"
SUREFOOTD = Path(os.environ.get("SUREFOOTD", ROOT / "target" / "release" / "surefootd"))

if importlib.util.find_spec("surefoot") is None:
    pytest.fail("surefoot.policy is not installed in this environment. Run: make gym", pytrace=False)

from surefoot import policy as sp  # noqa: E402


def blocks(kind: str) -> list[str]:
    """Fenced blocks of the page, by what stands behind the fence."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


HELLO, WELCOME, QUESTION, ANSWER = (json.loads(block) for block in blocks("json"))


@contextmanager
def listening(make: Callable[[sp.Hello], sp.Policy], path: Path) -> Iterator[str]:
    """A policy that listens while the block runs; its name for surefootd."""
    stop = threading.Event()
    thread = threading.Thread(target=sp.serve, args=(make, path), kwargs={"stop": stop})
    thread.start()
    while not path.exists() and thread.is_alive():
        stop.wait(0.01)
    try:
        yield f"socket:{path}"
    finally:
        stop.set()
        thread.join()


def example(name: str) -> type[sp.Policy]:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (found,) = (c for c in vars(module).values() if isinstance(c, type) and issubclass(c, sp.Policy) and c is not sp.Policy)
    return found


def surefootd(*args: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([SUREFOOTD, *args], capture_output=True, text=True, env={**os.environ, "SUREFOOT_LOG": "info"})
    assert done.returncode == code, done.stderr
    return done


def evaluated(out: Path, *policies: str) -> pl.DataFrame:
    surefootd("eval", "--workloads", DEMO, "--platform", "server-1", "--policies", ",".join(policies), "--out", out)
    return pl.read_parquet(out / "rows.parquet")


def test_the_examples_on_the_bench(tmp_path: Path) -> None:
    """Equal shares in Python have the figures of `equal-share` to the last bit; the policy by slack has better ones."""
    with (
        listening(example("equal_share"), tmp_path / "a" / "equal.sock") as equal,
        listening(example("by_slack"), tmp_path / "b" / "slack.sock") as slack,
    ):
        rows = evaluated(tmp_path / "out", "equal-share", equal, slack)
    # What is measured in real time, and what only a policy on a socket has.
    of = {
        name: rows.filter(pl.col("policy") == name).drop("policy", "held_decisions", "^decision_us.*$")
        for name in rows["policy"].unique()
    }
    assert of[equal].equals(of["equal-share"])
    assert rows.filter(pl.col("policy") != "equal-share")["held_decisions"].to_list() == [0] * 14
    assert of[slack]["qos_violation_s"].sum() < of["equal-share"]["qos_violation_s"].sum()
    assert of[slack]["emu"].sum() > of["equal-share"]["emu"].sum()


def node(tmp_path: Path, realtime: bool, more: str = "") -> Path:
    """Ten minutes of two services and a job."""
    workload = tmp_path / "ten-minutes.toml"
    services = "".join(f'[[lc]]\nservice = "{name}"\nload = 0.5\n' for name in ("moses", "img-dnn"))
    workload.write_text(f'platform = "server-1"\nduration_s = 600\n{services}[[be]]\njob = "blackscholes"\n')
    config = tmp_path / "node.toml"
    config.write_text(f'workload = "{workload}"\nrealtime = {str(realtime).lower()}\nmetrics_port = 0\n{more}')
    return config


def acts(name: str, tmp_path: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    """So many seconds of virtual time under the policy `name`."""
    config = node(tmp_path, realtime=False)
    return surefootd("run", "--policy", name, "--server", "virtual:server-1", "--config", config, "--duration-s", str(seconds))


def test_ten_minutes_as_actor(tmp_path: Path) -> None:
    """6000 ticks of a policy in Python on a virtual server: each decision is its own."""
    config = node(tmp_path, realtime=False)
    with listening(example("by_slack"), tmp_path / "s" / "slack.sock") as slack:
        done = surefootd("run", "--policy", slack, "--server", "virtual:server-1", "--config", config, "--shadow", "parties")
    said = json.loads(done.stdout)
    assert said["ticks"] >= 6000
    asked = said["asked"][slack]
    assert asked["decisions"] >= 6000
    assert set(asked["held"].values()) == {0}
    assert asked["connections"] == 1
    assert "WARN" not in done.stderr


def test_a_killed_policy(tmp_path: Path) -> None:
    """A program that is killed in real time: one line says why, and what it held is held; started anew, it decides again."""
    path = tmp_path / "s" / "equal.sock"
    config = node(tmp_path, realtime=True, more="[policy.settings]\nsocket.limit.interval_share = 0.5\n")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{os.environ.get('PYTHONPATH', '')}"}

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, EXAMPLES / "equal_share.py", "--socket", path]
        program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert program.stderr
        assert "listening at" in program.stderr.readline()
        return program

    events, program = tmp_path / "events.jsonl", start()
    command = [
        SUREFOOTD,
        "run",
        "--policy",
        f"socket:{path}",
        "--server",
        "virtual:server-1",
        "--config",
        config,
        "--events",
        events,
    ]
    run = subprocess.Popen([*command, "--duration-s", "40"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stderr
    log: list[str] = []

    def until(text: str) -> None:
        assert run.stderr
        while not log or text not in log[-1]:
            line = run.stderr.readline()
            assert line, "".join(log)
            log.append(line)

    until(" services")
    program.kill()
    program.wait()
    until("gone: ")
    assert "The last safe plan holds" in log[-1]
    again = start()
    until("it decides again")
    run.send_signal(signal.SIGTERM)
    out, rest = run.communicate()
    log.append(rest)
    again.send_signal(signal.SIGTERM)
    assert again.wait() == 0
    assert not path.exists()
    assert run.returncode == 0, "".join(log)
    asked = json.loads(out)["asked"][f"socket:{path}"]
    assert asked["held"]["gone"] >= 1
    assert asked["connections"] >= 2
    assert sum("gone: " in line for line in "".join(log).splitlines()) == 1
    held = [(e["t_ms"], e["service"], e["cores"], e["ways"]) for e in map(json.loads, events.read_text().splitlines())]
    settled = {(service, cores, ways) for t_ms, service, cores, ways in held if t_ms >= 1000}
    # A third of 36 cores and 20 ways each, the rest the job's, with the policy and without it.
    assert settled == {("moses", 12.0, 6), ("img-dnn", 12.0, 6), ("blackscholes", 12.0, 8)}


class Raises(sp.Policy):
    """It gives each service a quarter, and raises from the third question on."""

    def decide(self, seen: sp.Observation) -> sp.Plan | None:
        if seen.seq >= 3:
            raise KeyError("no such thing")
        return sp.Plan({s.id: sp.Hold(9, 5) for s in seen.lc})


def test_what_a_policy_raises_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An exception is in the log of both sides, and the plan of before holds."""
    with listening(Raises, tmp_path / "s" / "raises.sock") as name:
        done = acts(name, tmp_path, 5)
    (line,) = (line for line in done.stderr.splitlines() if "WARN" in line)
    assert "failed: it could not decide: KeyError: 'no such thing'. The last safe plan holds" in line
    assert json.loads(done.stdout)["asked"][name]["held"]["failed"] >= 48
    assert "no such thing" in caplog.text
    assert "Traceback" in caplog.text


def test_numbers_that_are_none() -> None:
    """What JSON has no word for and counts that are not whole are the policy's error; counts of numpy are counts."""

    class Says(sp.Policy):
        def __init__(self, said: Any) -> None:
            super().__init__(sp.Hello.parse(HELLO))
            self.said = said

        def decide(self, seen: sp.Observation) -> sp.Plan | None:
            return sp.Plan({"moses": sp.Hold(self.said, 5)})

    import numpy as np

    assert sp.answer(Says(np.int64(9)), QUESTION)["hold"]["moses"] == {"core_units": 9, "ways": 5}
    for wrong in (float("nan"), 9.5, "9", None, np.float64(9)):
        said = sp.answer(Says(wrong), QUESTION)
        assert set(said) == {"seq", "error"}
        assert said["error"].startswith("TypeError")


def test_books_refuse_what_does_not_fit() -> None:
    """Books of a policy keep counts as the node does: what jobs lack comes before what is free."""
    hello = sp.Hello.parse(HELLO)
    question = {
        **QUESTION,
        "held": {"moses": {"core_units": 36, "ways": 20, "mba_pct": 100}},
        "free": {"core_units": 0, "ways": 0},
    }
    question["be_lacks"] = {"core_units": 1, "ways": 1}
    books = sp.Books(hello, sp.Observation.parse(question))
    assert books.free == sp.Count(0, 0)
    assert not books.hold("moses", 37, 20)
    assert not books.hold("moses", 0, 20)
    assert not books.hold("nobody", 1, 1)
    assert books.hold("moses", 35, 19)
    assert books.free == sp.Count(0, 0)
    assert books.hold("moses", 30, 15)
    assert books.free == sp.Count(5, 4)
    assert books.plan().hold == {"moses": sp.Hold(30, 15)}


def test_who_may_answer(tmp_path: Path) -> None:
    """The folder of a socket is its user's alone; one that others can write to is refused, and what is in the way stays."""
    with listening(Raises, tmp_path / "made" / "p.sock"):
        assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "made" / "p.sock").stat().st_mode) == 0o600
        with pytest.raises(OSError, match="another process listens there"):
            sp.serve(Raises, tmp_path / "made" / "p.sock")
    assert not (tmp_path / "made" / "p.sock").exists()
    opened = tmp_path / "open"
    opened.mkdir()
    opened.chmod(0o777)
    with pytest.raises(PermissionError, match="chmod go-w"):
        sp.serve(Raises, opened / "p.sock")
    (tmp_path / "made" / "p.sock").write_text("mine")
    with pytest.raises(FileExistsError, match="no socket"):
        sp.serve(Raises, tmp_path / "made" / "p.sock")
    assert (tmp_path / "made" / "p.sock").read_text() == "mine"
    # What a dead process left.
    (tmp_path / "made" / "p.sock").unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "made" / "p.sock"))
    with listening(Raises, tmp_path / "made" / "p.sock") as name:
        surefootd(
            "eval",
            "--workloads",
            DEMO / "two-lc-steady.toml",
            "--platform",
            "server-1",
            "--policies",
            name,
            "--out",
            tmp_path / "out",
        )


def test_another_protocol(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A program that greets otherwise is told apart from surefootd, and is left without an answer."""
    with pytest.raises(sp.WrongProtocol, match="speaks protocol 2, and this package 1"):
        sp.Hello.parse({**HELLO, "protocol": 2})
    with listening(Raises, tmp_path / "s" / "p.sock"), socket.socket(socket.AF_UNIX) as other:
        other.connect(str(tmp_path / "s" / "p.sock"))
        other.sendall(b'{"surefoot":"upper"}\n')
        assert other.recv(100) == b""
    assert "does not greet as surefootd does" in caplog.text


class Keeps(sp.Policy):
    """It keeps the questions that it is asked."""

    asked: list[sp.Observation]

    def __init__(self, hello: sp.Hello) -> None:
        super().__init__(hello)
        type(self).hello_seen = hello  # type: ignore[attr-defined]

    def decide(self, seen: sp.Observation) -> sp.Plan | None:
        type(self).asked.append(seen)
        return None if seen.seq > 1 else sp.Plan({s.id: sp.Hold(9, 5) for s in seen.lc})


def test_what_is_asked(tmp_path: Path) -> None:
    """A question has every field that the classes and the page have, and numbers that agree with each other."""
    Keeps.asked = []
    with listening(Keeps, tmp_path / "s" / "keeps.sock") as name:
        acts(name, tmp_path, 3)
    last, hello = Keeps.asked[-1], Keeps.hello_seen  # type: ignore[attr-defined]
    assert [s.id for s in last.lc] == ["moses", "img-dnn"]
    assert {sid: (h.core_units, h.ways) for sid, h in last.held.items()} == {"moses": (9, 5), "img-dnn": (9, 5)}
    assert last.free == sp.Count(36 - 18 - 1, 20 - 10 - 1)
    moses = last.services[0]
    assert (moses.allocation.cores, moses.allocation.n_ways, moses.features.alloc_cores) == (9.0, 5.0, 9.0)
    assert moses.window
    assert moses.qos == moses.qos_target_ms / moses.window.p99_ms  # type: ignore[operator]
    assert set(QUESTION) == set(last.raw)
    assert set(QUESTION["seen"]["services"][0]) <= set(last.raw["seen"]["services"][0])
    raw = last.raw["seen"]["services"][0]
    for cls, of in (
        (sp.Service, raw),
        (sp.Features, raw["features"]),
        (sp.Latency, raw["window"]),
        (sp.Allocation, raw["allocation"]),
    ):
        assert {f.name for f in fields(cls)} - {"qos_target_ms", "memory"} <= set(of), cls
    assert set(of_page := HELLO) - {"surefoot", "most_answer_bytes"} == {f.name for f in fields(sp.Hello)}, of_page
    assert hello.role == "actor"
    assert hello.units["free.core_units"] == HELLO["units"]["free.core_units"]
    assert (hello.total, hello.least, hello.limit_ms) == (sp.Count(36, 20), sp.Count(1, 1), 5000)


def test_the_page(tmp_path: Path) -> None:
    """Its first policy answers its question with its answer; its agent runs; its tables name what there is."""
    first, agent = blocks("python")
    scope: dict[str, Any] = {"__name__": "page"}
    exec(first, scope)
    mine = scope["HalfForTheFirst"](sp.Hello.parse(HELLO))
    said = sp.answer(mine, QUESTION)
    assert {key: value for key, value in said.items() if value} == ANSWER
    assert WELCOME["name"] == mine.name
    exec(agent, scope)
    with listening(scope["seat"], tmp_path / "s" / "agent.sock") as name:
        acts(name, tmp_path, 5)
    text = PAGE.read_text()
    documented = set(re.findall(r"`([A-Za-z_]+)`", re.search(r"\| class \|.*?\n\n", text, re.DOTALL)[0]))  # type: ignore[index]
    assert documented >= {"Policy", "Hello", "Observation", "Service", "Books", "Plan", "run", "serve", "answer"}
    assert all(name in sp.__all__ for name in documented if name[0].isupper() and name != "None")
    reasons = re.findall(r"^\| `([a-z]+)` \| .+ \|$", re.search(r"\| reason \|.*?\n\n", text, re.DOTALL)[0], re.MULTILINE)  # type: ignore[index]
    rust = (ROOT / "scheduler" / "policy" / "src" / "remote" / "asked.rs").read_text()
    assert sorted(reasons) == sorted(re.findall(r'Held::\w+ => "([a-z]+)"', rust))


def test_the_module_stands_alone() -> None:
    """`surefoot.policy` imports the standard library alone, says all of its names, and each public name has a docstring."""
    tree = ast.parse(inspect.getsource(sp))
    imported = {
        n.module or "" if isinstance(n, ast.ImportFrom) else a.name
        for n in ast.walk(tree)
        if isinstance(n, ast.Import | ast.ImportFrom)
        for a in n.names
    }
    assert {name.split(".")[0] for name in imported} <= set(sys.stdlib_module_names)
    public = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and not n.name.startswith("_")}
    assert public | {"PROTOCOL"} == set(sp.__all__)
    assert all(getattr(sp, name).__doc__ for name in public)
    assert (Path(inspect.getfile(sp)).parent / "py.typed").exists()
