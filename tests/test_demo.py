"""The demo's story can be stopped anywhere and goes on; its checks of bundles and of recorded runs hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from collection import cli, closed_loop, commands, demo, tools
from collection.errors import StepFailed
from collection.steps import Story, key_of


class Counter:
    """Work that remembers how often, and how, it was called."""

    def __init__(self, fail: bool = False) -> None:
        self.calls: list[bool] = []
        self.fail = fail

    def __call__(self, cut_short: bool) -> dict[str, int]:
        self.calls.append(cut_short)
        if self.fail:
            raise StepFailed("out of luck")
        return {"calls": len(self.calls)}


def test_a_step_runs_once(tmp_path: Path) -> None:
    """A step that is done is not run again: its result comes from the marker, also in another process."""
    work = Counter()
    assert Story(tmp_path).step("one", "one", "key", work) == {"calls": 1}
    again = Story(tmp_path)
    assert again.step("one", "one", "key", work) == {"calls": 1}
    assert work.calls == [False]
    assert [r.state for r in again.records] == ["reused"]


def test_a_changed_input_runs_a_step_again(tmp_path: Path) -> None:
    """Another key means another result; leftovers of the old key are none of the new one's."""
    work = Counter()
    Story(tmp_path).step("one", "one", "key", work)
    Story(tmp_path).step("one", "one", "other key", work)
    assert work.calls == [False, False]


def test_a_step_is_done_again_when_asked(tmp_path: Path) -> None:
    """A step that is named runs once more, as new, whatever was done before; the others stay."""
    work, other = Counter(), Counter()
    for name, of in (("one", work), ("two", other)):
        Story(tmp_path).step(name, name, "key", of)
    story = Story(tmp_path, again=["one"])
    assert story.step("one", "one", "key", work) == {"calls": 2}
    assert story.step("two", "two", "key", other) == {"calls": 1}
    assert (work.calls, other.calls) == ([False, False], [False])
    assert Story(tmp_path).step("one", "one", "key", work) == {"calls": 2}


def test_a_step_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    """After a failure the step runs again and is told that leftovers of the same key may be there."""
    work = Counter(fail=True)
    with pytest.raises(StepFailed):
        Story(tmp_path).step("one", "one", "key", work)
    work.fail = False
    Story(tmp_path).step("one", "one", "key", work)
    assert work.calls == [False, True]


def test_a_lost_output_runs_a_step_again(tmp_path: Path) -> None:
    """A marker is not believed if what the step made is gone."""
    work, made = Counter(), tmp_path / "made"
    made.touch()
    Story(tmp_path / "s").step("one", "one", "key", work, [made])
    Story(tmp_path / "s").step("one", "one", "key", work, [made])
    assert len(work.calls) == 1
    made.unlink()
    Story(tmp_path / "s").step("one", "one", "key", work, [made])
    assert len(work.calls) == 2


def test_a_copied_folder_has_results_of_its_own_files(tmp_path: Path) -> None:
    """What a step says of its files holds where the folder lies now; a neighbour whose name begins alike is another."""
    old, new = tmp_path / "clone", tmp_path / "moved"
    said = {
        "folder": f"{old}/out/data",
        "why": f"see {old}/out/log; {old}2/log, /mnt{old}/log and {old}/out.",
        "files": [f"{old}/a", f"file://{old}/b", 1, None],
        "root": str(old),
    }

    def story(root: Path) -> Story:
        return Story(root / "steps", places={"repository": root, "out": root / "out"})

    assert story(old).step("one", "one", "key", lambda _: said) == said
    assert story(old).step("one", "one", "key", Counter()) == said
    shutil.copytree(old, new)
    assert story(new).step("one", "one", "key", Counter()) == {
        "folder": f"{new}/out/data",
        "why": f"see {new}/out/log; {old}2/log, /mnt{old}/log and {new}/out.",
        "files": [f"{new}/a", f"file://{new}/b", 1, None],
        "root": str(new),
    }


def test_a_result_with_a_part_missing_is_not_remembered(tmp_path: Path) -> None:
    """What is not whole is used once and tried again; what is whole is remembered."""
    work = Counter()
    for calls in (1, 2):
        assert Story(tmp_path).step("one", "one", "key", work, whole=lambda r: r["calls"] > 1) == {"calls": calls}
    assert work.calls == [False, True]
    assert Story(tmp_path).step("one", "one", "key", work) == {"calls": 2}


def test_a_part_that_is_done_anew_is_gone_on_with(tmp_path: Path) -> None:
    """`--again`, cut short, and the same command: what was done by then is used; a later `--again` begins anew."""
    work = Counter()

    def cut(_: bool) -> object:
        raise KeyboardInterrupt

    Story(tmp_path).step("one", "one", "key", work)
    with pytest.raises(KeyboardInterrupt):
        Story(tmp_path, again=["one"]).step("one", "one", "key", cut)
    Story(tmp_path, again=["one"]).step("one", "one", "key", work)
    Story(tmp_path, again=["one"]).step("one", "one", "key", work)
    assert work.calls == [False, True, False]


def test_data_that_cannot_teach_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that fail for their data are not offered on the same data again; a failed second repro costs that part alone."""
    monkeypatch.setattr(tools, "repo_root", lambda: tmp_path)
    monkeypatch.setattr(tools, "find", lambda name: tmp_path / name)
    for name in ("dvc.yaml", "params.yaml", "dvc.lock"):
        (tmp_path / name).touch()
    folders = {}
    for name in (demo.VIRTUAL, demo.LOCAL):
        for at in ("data", "bundles"):
            (tmp_path / at / name).mkdir(parents=True)
        (tmp_path / "data" / name / "manifest.json").touch()
        folders[name] = {"folder": str(tmp_path / "data" / name)}
    turn: list[str] = []

    def logged(command: list[str], log: Path, **_: object) -> tuple[int, str]:
        turn.append(log.name)
        again = log.name == "dvc-again.log" and f"register@{demo.LOCAL}" in command
        return (1, "ERROR: no plane can be labelled") if again else (0, "Everything is up to date.")

    monkeypatch.setattr(demo, "logged", logged)
    told = demo.Demo(tmp_path / "out", Console(quiet=True))
    found = told._dvc(folders)
    assert list(found["outputs"]) == [demo.VIRTUAL]
    assert "no models of demo-local" in told.left_out["local"]
    assert f"surefoot demo --again local --out {tmp_path / 'out'}" in told.warnings[-1]


def test_failed_models_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that a signal ended leaves no models of one data set: told with what to do, failed, and tried again."""
    monkeypatch.setattr(tools, "repo_root", lambda: tmp_path)
    monkeypatch.setattr(tools, "find", lambda name: tmp_path / name)
    for name in ("dvc.yaml", "params.yaml", "dvc.lock"):
        (tmp_path / name).touch()
    folders = {}
    for name in (demo.VIRTUAL, demo.LOCAL):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "manifest.json").touch()
        (tmp_path / "bundles" / name).mkdir(parents=True)
        folders[name] = {"folder": str(tmp_path / "data" / name)}
    asked: list[str] = []
    codes = {f"register@{demo.LOCAL}": -9}

    def logged(command: list[str], log: Path, **_: object) -> tuple[int, str]:
        asked.extend(command[2:])
        return codes.get(command[2], 0), "everything is up to date"

    monkeypatch.setattr(demo, "logged", logged)
    first = demo.Demo(tmp_path / "out", Console(quiet=True))
    found = first._dvc(folders)
    assert list(found["outputs"]) == [demo.VIRTUAL]
    assert first.failed == []
    assert "no models of demo-local: dvc repro: killed by signal 9" in first.left_out["models"]
    assert f"surefoot demo --again models --out {tmp_path / 'out'}" in first.warnings[0]
    codes.clear()
    second = demo.Demo(tmp_path / "out", Console(quiet=True))
    assert list(second._dvc(folders)["outputs"]) == [demo.VIRTUAL, demo.LOCAL]
    assert (second.failed, second.left_out) == ([], {})
    before = len(asked)
    assert set(demo.Demo(tmp_path / "out", Console(quiet=True))._dvc(folders)["outputs"]) == {demo.VIRTUAL, demo.LOCAL}
    assert len(asked) == before


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> demo.Demo:
    """A demo in a repository of its own, with no program in it."""
    monkeypatch.setattr(tools, "repo_root", lambda: tmp_path)
    monkeypatch.setattr(tools, "find", lambda name: tmp_path / name)
    (tmp_path / "examples").mkdir()
    for name in (f"examples/{demo.LOCAL}.toml", tools.SUREFOOTD, tools.LOADGEN):
        (tmp_path / name).touch()
    return demo.Demo(tmp_path / "out", Console(quiet=True))


def measuring(monkeypatch: pytest.MonkeyPatch, text: str, whole: bool = True, usable: int = 9) -> list[Path]:
    """Campaigns leave a file with this text; those that are not whole end with an error. The folders that were asked for."""
    asked: list[Path] = []
    manifest = {
        "schema_version": 1, "campaign": "c", "campaign_hash": "h", "complete": True, "feature_set": "no-pmu", "services": {},
        "software": {}, "host": {}, "shards": [],
        "platform": {"name": "p", "cores": 1, "ways": 0, "mb_per_way": 0, "core_step": 0.1, "mba": False},
        "cases": dict.fromkeys(("planned", "measured", "infeasible", "client_limited", "overloaded", "failed"), 0),
        "max_loads": [{"service": "memcached", "threads": 1, "max_load_rps": 5e3, "others_frac": 0.93}],
    }  # fmt: skip

    def run(_file: Path, out: Path, **_: object) -> dict[str, object]:
        asked.append(out)
        (out / "local").mkdir(parents=True, exist_ok=True)
        (out / "measured").write_text(text, "utf-8")
        (out / "local/manifest.json").write_text(json.dumps(manifest), "utf-8")
        if not whole:
            raise StepFailed("another sweep is writing here")
        target = {"folder": str(out / "local"), "target": "local", "feature_set": "no-pmu", "failed": []}
        target |= {"rows_by_worth": {"usable": usable, "disturbed": 10 - usable}}
        cases = {"planned": 5, "client-limited": 0, "failed": 0}
        return {"targets": [target], "cases": cases, "usable_rows": usable}

    monkeypatch.setattr(demo.campaign, "run", run)
    monkeypatch.setattr(demo.verify, "verify", lambda _folder: type("R", (), {"ok": True, "rows": 10, "shards": 1}))
    return asked


def test_measured_data_stay_until_their_successor_is_whole(story: demo.Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data are measured beside those that are there: what fails leaves the old ones as they were, and goes on later."""
    folder = story.root / "data" / demo.LOCAL
    folder.mkdir(parents=True)
    (folder / "measured").write_text("before", "utf-8")
    asked = measuring(monkeypatch, "half", whole=False)
    for _ in range(2):
        with pytest.raises(StepFailed):
            story._campaign(demo.LOCAL, "local", "image one")
        assert (folder / "measured").read_text("utf-8") == "before"
    assert asked == [demo.successor(folder)] * 2
    (demo.successor(folder) / "kept").touch()  # of the same inputs: it goes on there
    measuring(monkeypatch, "now")
    found = story._campaign(demo.LOCAL, "local", "image one")
    assert found["folder"] == str(folder / "local")
    assert ((folder / "measured").read_text("utf-8"), (folder / "kept").exists()) == ("now", True)
    assert sorted(p.name for p in folder.parent.iterdir()) == [demo.LOCAL]
    # with other inputs nothing of before is taken over
    measuring(monkeypatch, "other")
    story._campaign(demo.LOCAL, "local", "image two")
    assert not (folder / "kept").exists()


def test_a_kill_while_data_are_replaced_loses_none(story: demo.Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two renames the old data are back at the next start."""
    folder = story.root / "data" / demo.LOCAL
    old = folder.with_name(f"{demo.LOCAL}.old")
    old.mkdir(parents=True)
    (old / "measured").write_text("before", "utf-8")
    measuring(monkeypatch, "half", whole=False)
    with pytest.raises(StepFailed):
        story._campaign(demo.LOCAL, "local")
    assert (folder / "measured").read_text("utf-8") == "before"


def test_a_busy_machine_is_told(story: demo.Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were not usable, and programs that took CPU time throughout, are warnings with the command that repeats."""
    measuring(monkeypatch, "now", usable=2)
    story._campaign(demo.LOCAL, "local")
    assert story.failed == []
    assert (
        "demo-local: 2 of 10 rows usable (20 %); 8 disturbed. Once this machine is quiet: surefoot demo --again local"
        in story.warnings[0]
    )
    assert "took up to 93% of the CPU time that the services left over" in story.warnings[1]


def test_a_failed_part_is_left_out(story: demo.Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of real containers that fails does not make the demo fail: the warning says how it alone is tried again."""
    measuring(monkeypatch, "half", whole=False)
    found = story._or_go_on("local", "local campaign", lambda: story._campaign(demo.LOCAL, "local"))
    assert (found, story.failed) == (None, [])
    assert story.left_out == {"local": "local campaign: another sweep is writing here"}

    def fail() -> dict[str, object]:
        raise StepFailed("closed loop: the node did not start")

    story._or_go_on("loop", "closed loop", fail)
    assert story.left_out["loop"] == "closed loop: the node did not start"
    assert story.warnings[0].endswith(f"To try that part again, and it alone: surefoot demo --again local --out {story.out}")


@pytest.mark.parametrize("models", [True, False])
def test_the_loop_is_closed_without_models(models: bool, story: demo.Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this machine's data taught nothing the closed loop runs under policies that need no models."""
    ran: list[tuple[str, bool]] = []

    def run(_loop: closed_loop.Loop, policy: str, bundle: Path | None, out: Path) -> dict[str, object]:
        ran.append((policy, bundle is not None))
        out.mkdir(parents=True, exist_ok=True)
        (out / "timeline.jsonl").touch()
        return {"policy": policy}

    monkeypatch.setattr(demo.closed_loop, "run", run)
    (story.root / "bundles" / demo.LOCAL).mkdir(parents=True)
    found = story._closed_loop({"answers": True, "images": []}, models)
    assert [r["policy"] for r in found["runs"]] == [policy for policy, _ in ran]
    assert ran == ([("unmanaged", False), ("osml-plus", True)] if models else [("unmanaged", False), ("parties-be", False)])
    assert found["models"] == models


def test_an_eval_goes_on_with_its_own_leftovers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What eval kept before it was cut off stays for the same inputs; with a new bundle it would be refused, and goes."""
    monkeypatch.setattr(tools, "repo_root", lambda: tmp_path)
    monkeypatch.setattr(tools, "find", lambda name: tmp_path / name)
    (tmp_path / "workloads/sets/demo").mkdir(parents=True)
    (tmp_path / tools.SUREFOOTD).touch()
    bundle, partial = tmp_path / "bundles" / demo.VIRTUAL, tmp_path / "out" / "eval" / "eval.partial.jsonl"
    bundle.mkdir(parents=True)
    partial.parent.mkdir(parents=True)
    found: list[bool] = []

    def cut_short(*_: object) -> dict[str, object]:
        found.append(partial.exists())
        partial.touch()
        raise StepFailed("out of luck")

    monkeypatch.setattr(tools, "run_json", cut_short)
    for manifest in ("one", "one", "another"):
        (bundle / "manifest.json").write_text(manifest, "utf-8")
        with pytest.raises(StepFailed):
            demo.Demo(tmp_path / "out", Console(quiet=True))._eval()
    assert found == [False, True, False]


def test_an_incomplete_demo_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong whatever the machine does is named at the end, and the exit code is 1."""
    result = {"failed": ["a changed byte was accepted"], "warnings": [], "report": "r.html"}
    monkeypatch.setattr(demo, "run", lambda out, voice, again: result)
    with pytest.raises(SystemExit) as e:
        cli.main(["demo"])
    assert e.value.code == 1
    assert capsys.readouterr().err == "incomplete: a changed byte was accepted\n"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": "key"}'])
def test_a_damaged_marker_counts_for_nothing(text: str, tmp_path: Path) -> None:
    """Whatever a crash leaves of a marker, the step simply runs."""
    (tmp_path / "one.json").write_text(text, "utf-8")
    work = Counter()
    assert Story(tmp_path).step("one", "one", "key", work) == {"calls": 1}


def test_keys_follow_contents(tmp_path: Path) -> None:
    """A key depends on what files hold, on folders with all in them, and on values; not on where files lie."""
    for name in ("a", "b"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "file").write_text("same", "utf-8")
    assert key_of(tmp_path / "a", 1) == key_of(tmp_path / "b", 1)
    assert key_of(tmp_path / "a", 1) != key_of(tmp_path / "a", 2)
    (tmp_path / "b" / "sub" / "file").write_text("other", "utf-8")
    assert key_of(tmp_path / "a") != key_of(tmp_path / "b")
    (tmp_path / "a" / "more").touch()
    assert key_of(tmp_path / "a", 1) != key_of(tmp_path / "b", 1)


def events(file: Path, p99_ms: list[float | None]) -> Path:
    rows = []
    for k, p99 in enumerate(p99_ms):
        rows.append({"t_ms": 100 * k, "service": "memcached", "p99_ms": p99, "qos_target_ms": 10.0})
        rows.append({"t_ms": 100 * k, "service": "stream", "p99_ms": None, "qos_target_ms": None})
    file.write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    return file


def test_violation_counts_ticks_above_the_target(tmp_path: Path) -> None:
    """Ticks of 100 ms: 3 of 6 are above 10 ms, the one at the target is met, two without a p99 are not observed."""
    file = events(tmp_path / "e.jsonl", [None, 5.0, 10.0, 10.1, 30.0, None, 11.0, 9.0])
    found = closed_loop.figures(file, "memcached")
    assert found == {"violation_s": 0.3, "observed_s": 0.6, "qos_target_ms": 10.0}


def test_be_jobs_are_added_up(tmp_path: Path) -> None:
    """CPU of the BE jobs: two of 0.2 cores in one tick, 0.1 and unknown in the next, (0.4 + 0.1) / 2."""
    used = [("stream-1", 0, 0.2), ("stream-2", 0, 0.2), ("memcached", 0, 0.9), ("stream-1", 100, 0.1), ("stream-2", 100, None)]
    rows = [{"service": s, "t_ms": t, "features": {"cpu_usage_cores": c}} for s, t, c in used]
    file = tmp_path / "e.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    assert closed_loop.be_cpu(file, "stream") == pytest.approx(0.25)


def test_a_silent_feed_is_an_error(tmp_path: Path) -> None:
    """A run in which no latency was ever seen proves nothing, and says so."""
    with pytest.raises(StepFailed, match="latency feed did not arrive"):
        closed_loop.figures(events(tmp_path / "e.jsonl", [None, None]), "memcached")


def test_node_config_of_the_closed_loop() -> None:
    """The node gets both services, and the load generator the steps in its own words."""
    loop = closed_loop.Loop()
    import tomllib

    config = tomllib.loads(loop.config())
    assert [s["service"] for s in config["service"]] == ["memcached", *["stream"] * loop.jobs]
    assert len({s.get("id", s["service"]) for s in config["service"]}) == 1 + loop.jobs
    assert closed_loop.Loop(steps=((0, 2000), (10.5, 9000))).load() == "0s:2000,10.5s:9000"


def test_changed_bytes_are_found_in_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's check changes one byte in each file of a copy; the bundle itself stays as it is."""
    bundle = _bundle(tmp_path, monkeypatch)
    before = {p: p.read_bytes() for p in bundle.rglob("*") if p.is_file()}
    found = demo.check_bundle("small", bundle, tmp_path / "scratch")
    assert {p: p.read_bytes() for p in bundle.rglob("*") if p.is_file()} == before
    assert [t["file"] for t in found["tampering"]] == sorted(p.relative_to(bundle).as_posix() for p in before)
    assert all(t["rejected"] for t in found["tampering"]), found["tampering"]
    assert all(t["message"].startswith(t["file"]) for t in found["tampering"])
    assert not (tmp_path / "scratch").exists()


def _bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small signed bundle with random weights."""
    import numpy as np

    from models.features import Bound, Scale
    from pipelines.artefact import bundle

    monkeypatch.setenv("SUREFOOT_KEYS", str(tmp_path / "keys"))
    rng = np.random.default_rng(1)

    def net(prefix: str, n_in: int, n_out: int) -> dict[str, np.ndarray]:
        shapes = [(4, n_in), (n_out, 4)]
        weights = {f"{prefix}layers.{k}.weight": rng.normal(size=s).astype(np.float32) for k, s in enumerate(shapes)}
        return weights | {f"{prefix}layers.{k}.bias": np.zeros(s[0], np.float32) for k, s in enumerate(shapes)}

    inputs = [Bound("alloc_cores", 0.0, 36.0), Bound("cpu_usage_cores", 0.0, 36.0)]
    area = [Scale(name, 1.0, 0.0) for name in ("oaa_cores", "oaa_ways", "rcliff_cores", "rcliff_ways")]
    hyperparameters = {
        "gamma": 0.99, "tau": 0.001, "lr_actor": 5e-4, "lr_critic": 5e-3, "critic_l2": 0.01, "actor_entropy": 0.0, "batch": 256,
        "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_eps": 1e-8,
    }  # fmt: skip
    actions = ["cores_up", "cores_down", "ways_up", "ways_down", "idle"]
    c: dict[str, np.ndarray] = {}
    for name, n_in, n_out in (("actor", 2, 7), ("critic", 9, 1)):
        c |= net(f"{name}.", n_in, n_out) | net(f"{name}_target.", n_in, n_out)
    spec = bundle.BundleSpec(
        feature_set="full",
        platform={"name": "server-1", "cores": 36.0, "ways": 20, "mb_per_way": 2.25},
        services={"moses": {"qos_target_ms": 10.0}},
        a=bundle.TrainedMlp(net("", 2, 4), inputs, area),
        b=bundle.TrainedMlp(net("", 2, 1), inputs, [Scale("qos", 1.0, 0.0)], qos_cap=2.0),
        c=bundle.TrainedDdpg(c, inputs, hyperparameters, actions),
    )
    bundle.build(spec, tmp_path / "small")
    return tmp_path / "small"


def test_bundle_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`bundle verify` accepts a bundle and its tar, rejects a changed byte by the file's name with exit code 2."""
    path = _bundle(tmp_path, monkeypatch)
    for given in (path, path.with_name("small.tar")):
        cli.main(["bundle", "verify", str(given)])
        assert capsys.readouterr().out.startswith("ok ")
    cli.main(["bundle", "inspect", str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["platform"]["cores"] == 36.0
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    (copy / "services" / "moses.toml").write_text("qos_target_ms = 99.0\n", "utf-8")
    with pytest.raises(SystemExit) as e:
        cli.main(["bundle", "verify", str(copy)])
    assert e.value.code == 2
    assert "error: services/moses.toml: " in capsys.readouterr().err


def test_parts_can_be_asked_for() -> None:
    """`surefoot demo --again` takes the demo's parts, all of them and no others."""
    (again,) = [p for p in commands.demo_command.params if p.name == "again"]
    assert list(again.type.to_info_dict()["choices"]) == list(demo.PARTS)


def test_facts_of_this_machine() -> None:
    """The report names the machine that its figures were measured on."""
    facts = demo.machine()
    assert facts["cpus"] >= 1
    assert facts["memory_bytes"] > 2**28
    assert facts["cpu_model"]


def test_the_demo_has_what_it_names() -> None:
    """Campaign files, workloads and scripts that the demo uses are in the repository."""
    root = tools.repo_root()
    for name in ("examples/demo-virtual.toml", "examples/demo-local.toml", "scripts/engine.sh", "scripts/images.sh", "dvc.yaml"):
        assert (root / name).is_file(), name
    assert len(list((root / "workloads/sets/demo").glob("*.toml"))) >= 6
