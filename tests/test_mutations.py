"""Inputs that are nearly right: whatever a file holds, a command ends with 0, 1 or 2, in one line, and says nothing that acts on
a terminal. 60 of each format; SUREFOOT_MUTATIONS=10000 (make test-mutations) for more.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mutate
import numpy as np
import polars as pl
import pytest
import synthetic
import test_harvest_report as harvests
from campaigns import measured

from collection import adapters, cli, closed_loop, derive, mirror, playbooks, standing
from collection.errors import SurefootError
from pipelines import inputs, params, samples
from pipelines.errors import BadInput, PipelineError
from pipelines.fits import fitted
from pipelines.io import canonical_json
from pipelines.pages import eval_rows, harvest_facts, harvest_rows

ROOT = Path(__file__).parent.parent
EVERY_DAY = 60
VECTORS = ROOT / "tests" / "vectors"

CAMPAIGN = """\
name = "proof"
strategy = "exhaustive"
seed = 1
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses", "xapian"]
rps = [2200]
threads = [8]
cores = "1..3"
ways = "1..2"
neighbours = { count = [0, 1], draws = 1 }
[sampling]
interval_ms = 1000
samples = 3
"""


@pytest.fixture(scope="module")
def keep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where mutations that break a promise are kept."""
    return Path(os.environ.get("SUREFOOT_MUTATIONS_KEPT") or tmp_path_factory.mktemp("kept"))


def surefoot(*args: object) -> Callable[[], object]:
    return lambda: cli.main([str(a) for a in args])


def staged(work: Callable[[], object]) -> Callable[[], object]:
    """As a stage of the pipeline says what is wrong."""
    return lambda: params.run_stage(lambda: str(work())[:100] and {})


def told(work: Callable[[], object]) -> int:
    """As the command line says what is wrong, for what is deep below it."""
    try:
        work()
    except (SurefootError, PipelineError, OSError) as e:
        print(inputs.message(e), file=sys.stderr)
        return getattr(e, "exit_code", 1)
    return 0


def test_campaigns(tmp_path: Path, keep: Path) -> None:
    """A campaign file is planned or refused."""
    file = tmp_path / "m.toml"

    def call(mutation: bytes) -> object:
        file.write_bytes(mutation)
        return surefoot("campaign", "plan", file, "--json")()

    mutate.all_of("campaign.toml", "toml", CAMPAIGN.encode(), EVERY_DAY, keep, call)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured(tmp_path_factory.mktemp("whole"), CAMPAIGN)


@pytest.mark.parametrize(
    ("file", "form"),
    [
        ("manifest.json", "json"),
        ("progress.json", "json"),
        ("server-1/manifest.json", "json"),
        ("server-1/journal.jsonl", "jsonl"),
        ("server-1/shards/part-00000.parquet", "bytes"),
    ],
)
def test_data_sets(whole: Path, tmp_path: Path, keep: Path, file: str, form: str) -> None:
    """A data set is looked at and verified whatever one of its files holds: a finding is told, not raised."""
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    specimen = (data / file).read_bytes()
    turn = iter(range(1 << 60))

    def call(mutation: bytes) -> object:
        (data / file).write_bytes(mutation)
        match next(turn) % 100:
            case 2:
                # Its pictures take a second.
                return surefoot("campaign", "card", data)()
            case n if n % 4 == 0:
                return surefoot("campaign", "status", data)()
            case n if n % 4 == 1:
                return surefoot("campaign", "status", data, "--json")()
        return findings(surefoot("campaign", "verify", data, "--json"))

    mutate.all_of(f"data set {file}", form, specimen, EVERY_DAY, keep, call)


def findings(call: Callable[[], object]) -> object:
    """`verify` says what it finds on standard output: then its exit code 1 has no line of its own."""
    try:
        return call()
    except SystemExit as e:
        if e.code == 1 and sys.stderr.getvalue() == "" and sys.stdout.getvalue():  # type: ignore[attr-defined]
            return 0
        raise


def test_hosts_of_a_campaign(whole: Path, tmp_path: Path, keep: Path) -> None:
    """What says who measured what may be wrong, too."""
    data = tmp_path / "data"
    shutil.copytree(whole, data)
    split = {"schema_version": 1, "job": "x", "group": "server-1", "hosts": ["a", "b"]}
    (data / "hosts").mkdir()
    shutil.copytree(data / "server-1", data / "hosts" / "a")

    def call(mutation: bytes) -> object:
        (data / "hosts" / "hosts.json").write_bytes(mutation)
        return surefoot("campaign", "status", data)()

    mutate.all_of("hosts.json", "json", json.dumps(split).encode(), EVERY_DAY, keep, call)


def test_what_a_host_sends(whole: Path, tmp_path: Path, keep: Path) -> None:
    """What was packed on a host is taken in, or the host is named."""
    own = whole / "server-1"
    manifest = json.loads((own / "manifest.json").read_bytes()) | {"part": {"number": 1, "of": 1}}
    journal = (own / "journal.jsonl").read_bytes()
    files = {"manifest.json": json.dumps(manifest).encode(), "journal.rest": journal}
    shard = "shards/part-00000.parquet"
    files[shard] = (own / shard).read_bytes()

    def packed(content: dict[str, bytes]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name, data in content.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return out.getvalue()

    def take(tar: bytes) -> object:
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        (out / "hosts" / "a").mkdir(parents=True)
        (tmp_path / "a.tar").write_bytes(tar)
        share = mirror.Share("a", 1, 1)
        split = mirror.Split("job", "lab", [share])

        def work() -> None:
            mirror.Mirror(out, "lab", share).take(tmp_path / "a.tar", 0)
            mirror.merge(out, split, None)

        return told(work)

    mutate.all_of("host tar", "bytes", packed(files), EVERY_DAY, keep, take)
    for name, form in (("manifest.json", "json"), ("journal.rest", "jsonl")):
        mutate.all_of(f"host {name}", form, files[name], EVERY_DAY, keep, lambda m, n=name: take(packed(files | {n: m})))  # type: ignore[misc]


def test_answers_of_inventories(keep: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever an inventory answers, its hosts are named or it is."""
    (tmp_path / "inventory").write_text("")
    answer = {
        "_meta": {"hostvars": {}},
        "all": {"children": ["lab"]},
        "lab": {"hosts": ["a", "b"], "children": ["rack"]},
        "rack": {"hosts": ["c"]},
    }

    def call(mutation: bytes) -> object:
        try:
            found = json.loads(mutation)
        except (ValueError, RecursionError):
            found = mutation.decode("utf-8", "replace")

        class Runner:
            @staticmethod
            def get_inventory(**_: Any) -> tuple[Any, str]:
                return found, "said"

        monkeypatch.setattr(playbooks, "_runner", lambda: Runner)
        return told(lambda: playbooks.hosts(tmp_path / "inventory", "lab"))

    mutate.all_of("inventory", "json", json.dumps(answer).encode(), EVERY_DAY, keep, call)


def test_parameters(tmp_path: Path, keep: Path) -> None:
    """params.yaml is read or its field is named."""
    file = tmp_path / "params.yaml"

    def call(mutation: bytes) -> object:
        file.write_bytes(mutation)
        return staged(lambda: params.load(file))()

    mutate.all_of("params.yaml", "yaml", (ROOT / "params.yaml").read_bytes(), EVERY_DAY, keep, call)


def test_platforms(tmp_path: Path, keep: Path) -> None:
    """A platform file is onboarded with or refused."""
    file = tmp_path / "x.toml"
    specimen = (ROOT / "examples" / "onboard" / "x.toml").read_bytes()

    def call(mutation: bytes) -> object:
        file.write_bytes(mutation)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        return surefoot("onboard", file, "--from", "nothing", "--out", tmp_path / "out", "--plan", "--json")()

    mutate.all_of("platform.toml", "toml", specimen, EVERY_DAY // 2, keep, call)


def test_bundles(tmp_path: Path, keep: Path) -> None:
    """A bundle, and the key that it is checked with, are good or named."""
    trust = VECTORS / "keys" / "trusted" / "TEST-ONLY.pub.pem"
    tar, key, folder = tmp_path / "m.tar", tmp_path / "m.pub.pem", tmp_path / "b"

    def as_tar(mutation: bytes) -> object:
        tar.write_bytes(mutation)
        return surefoot("bundle", "verify", tar, "--trust", trust, "--json")()

    mutate.all_of("bundle tar", "bytes", (VECTORS / "bundle-small.tar").read_bytes(), EVERY_DAY, keep, as_tar)

    def with_key(mutation: bytes) -> object:
        key.write_bytes(mutation)
        return surefoot("bundle", "verify", VECTORS / "bundle-small", "--trust", key)()

    mutate.all_of("public key", "bytes", trust.read_bytes(), EVERY_DAY, keep, with_key)
    for name, form in (("manifest.json", "json"), ("manifest.sig", "bytes"), ("services/moses.toml", "toml")):

        def in_folder(mutation: bytes, name: str = name) -> object:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(VECTORS / "bundle-small", folder)
            (folder / name).write_bytes(mutation)
            return surefoot("bundle", "verify", folder, "--trust", trust)()

        mutate.all_of(f"bundle {name}", form, (VECTORS / "bundle-small" / name).read_bytes(), EVERY_DAY, keep, in_folder)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from collection import tools

    root = tmp_path_factory.mktemp("eval")
    (root / "w-01.toml").write_text(
        'platform = "server-1"\nduration_s = 3\n[[lc]]\nservice = "moses"\nload = 0.4\n[[be]]\njob = "stream"\n'
    )
    args = [
        "eval",
        "--workloads",
        root / "w-01.toml",
        "--policies",
        "unmanaged,parties",
        "--platform",
        "server-1",
        "--out",
        root / "out",
    ]
    subprocess.run([str(tools.find(tools.SUREFOOTD)), *map(str, args)], check=True, capture_output=True)
    return root / "out"


@pytest.mark.parametrize(("file", "form"), [("eval.json", "json"), ("rows.parquet", "bytes"), ("timelines.parquet", "bytes")])
def test_evaluations(evaluated: Path, tmp_path: Path, keep: Path, file: str, form: str) -> None:
    """Rows of an evaluation are read or named."""
    out = tmp_path / "out"
    shutil.copytree(evaluated, out)

    def call(mutation: bytes) -> object:
        (out / file).write_bytes(mutation)
        return staged(lambda: eval_rows.read([out]))()

    mutate.all_of(f"eval {file}", form, (evaluated / file).read_bytes(), EVERY_DAY, keep, call)


@pytest.mark.parametrize(("file", "form"), [("harvest.json", "json"), ("rows.csv", "bytes")])
def test_evaluations_of_lent_cores(tmp_path: Path, keep: Path, file: str, form: str) -> None:
    """Rows of harvest-eval are read or named, and their numbers are numbers."""
    out = harvests.write(tmp_path / "out", harvests.small())

    def call(mutation: bytes) -> object:
        (out / file).write_bytes(mutation)
        return staged(lambda: canonical_json(harvest_facts.gather(harvest_rows.read([out]))[0]))()

    mutate.all_of(f"harvest-eval {file}", form, (out / file).read_bytes(), EVERY_DAY, keep, call)


@pytest.mark.parametrize("tool", [t for t in adapters.TOOLS if t != "tailbench"])
def test_files_of_other_tools(tool: str, tmp_path: Path, keep: Path) -> None:
    """What another load generator wrote is read, or it is said what is wrong with it."""
    specimen = (ROOT / "tests" / "data" / "adapters" / f"{tool.removesuffix('_benchmark')}.txt").read_bytes()
    file = tmp_path / "m.txt"

    def call(mutation: bytes) -> object:
        file.write_bytes(mutation)
        return adapters.main([tool, str(file), "--json"])

    mutate.all_of(f"adapter {tool}", "bytes", specimen, EVERY_DAY, keep, call)


def test_files_of_tailbench(tmp_path: Path, keep: Path) -> None:
    """As above, of a file that is no text."""
    numbers = np.array([[k, 2 * k, 3 * k] for k in range(1, 200)], dtype="<u8")
    file = tmp_path / "lats.bin"

    def call(mutation: bytes) -> object:
        file.write_bytes(mutation)
        return adapters.main(["tailbench", str(file)])

    mutate.all_of("adapter tailbench", "bytes", numbers.tobytes(), EVERY_DAY, keep, call)


def test_counters_of_a_service(tmp_path: Path, keep: Path) -> None:
    """A profile is derived from counters and a platform, or what is wrong with them is named."""
    header = ",".join(derive.COLUMNS)
    rows = "\n".join(",".join(str(1.0 + k + 0.1 * c) for c in range(len(derive.COLUMNS))) for k in range(8))
    counters = f"{header}\n{rows}\n".encode()
    platform = (ROOT / "scheduler/vserver/profiles/platforms/server-1.toml").read_bytes()
    at, of = tmp_path / "m.csv", tmp_path / "p.toml"
    asked = ["--name", "x", "--qos-target-ms", "5", "--rps-levels", "100,200", "--scv-service", "1"]

    def call(csv: bytes, toml: bytes) -> object:
        at.write_bytes(csv)
        of.write_bytes(toml)
        return derive.main([str(at), "--platform", str(of), *asked, "--saturation-rps", "1000", "--saturation-mhz", "2000"])

    mutate.all_of("counters csv", "bytes", counters, EVERY_DAY // 2, keep, lambda m: call(m, platform))
    mutate.all_of("counters platform", "toml", platform, EVERY_DAY // 2, keep, lambda m: call(counters, m))


def test_data_sets_of_stages(tmp_path: Path, keep: Path) -> None:
    """The manifest of a data set that a stage reads is whole or named."""
    data = synthetic.write(tmp_path / "data")
    specimen = (data / "manifest.json").read_bytes()

    def call(mutation: bytes) -> object:
        (data / "manifest.json").write_bytes(mutation)
        return staged(lambda: samples.open_dataset(data))()

    mutate.all_of("stage manifest", "json", specimen, EVERY_DAY, keep, call)


def test_models_of_stages(tmp_path: Path, keep: Path) -> None:
    """A trained model is read back or named."""
    weights = (VECTORS / "bundle-small" / "models" / "a.safetensors").read_bytes()
    folder = tmp_path / "a"
    folder.mkdir()
    manifest = json.loads((VECTORS / "bundle-small" / "manifest.json").read_bytes())["models"]["a"]
    about = dict.fromkeys(("dataset", "campaign", "data_sha256", "mlflow_run_id", "mlflow_child_id"), "x")
    about |= {"model": "a", "inputs": manifest["inputs"], "outputs": manifest["outputs"], "missing_inputs": [], "steps": 1}
    summary = json.dumps(about | {"rows": {"train": 1}, "settings": {}}).encode()

    def call(about: bytes, mutation: bytes) -> object:
        (folder / fitted.SUMMARY).write_bytes(about)
        (folder / fitted.WEIGHTS).write_bytes(mutation)
        return staged(lambda: fitted.load(folder))()

    assert mutate.judged(lambda: call(summary, weights)) == (0, None)
    mutate.all_of("model weights", "bytes", weights, EVERY_DAY, keep, lambda m: call(summary, m))
    mutate.all_of("model summary", "json", summary, EVERY_DAY, keep, lambda m: call(m, weights))


def test_recorded_runs(tmp_path: Path, keep: Path) -> None:
    """What a node recorded is evaluated or named."""
    row = {"t_ms": 0, "service": "a", "p99_ms": 1.0, "qos_target_ms": 2.0, "features": {"cpu_usage_cores": 0.5}}
    lines = b"".join(json.dumps(row | {"t_ms": 100 * k}).encode() + b"\n" for k in range(5))
    events = tmp_path / "events.jsonl"

    def call(mutation: bytes) -> object:
        events.write_bytes(mutation)
        return told(lambda: (closed_loop.figures(events, "a"), closed_loop.be_cpu(events, "a")))

    mutate.all_of("events.jsonl", "jsonl", lines, EVERY_DAY, keep, call)


# ---------------------------------------------------------------- endless and strange


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))


@pytest.mark.parametrize("what", ["/dev/zero", "long", "fifo", "folder", "socket", "deep.toml", "keys.toml", "deep.json"])
def test_endless_inputs(tmp_path: Path, what: str) -> None:
    """A device, a line of 2 GB, a silent pipe, nesting without an end: each command ends soon, in one line, in bounded memory."""
    import socket

    path = Path(what) if what.startswith("/") else tmp_path / what
    match what:
        case "long":
            path.touch()
            os.truncate(path, 2 << 30)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "socket":
            socket.socket(socket.AF_UNIX).bind(str(path))
        case "deep.toml":
            path.write_text("x = " + "[" * 1_000_000)
        case "keys.toml":
            path.write_text("x" + ".a" * 400_000 + " = 1\n")
        case "deep.json":
            path.write_text('{"a":' * 1_000_000)
    commands = [
        ["-m", "collection.cli", "campaign", "plan", path],
        ["-m", "collection.cli", "bundle", "verify", path, "--trust", VECTORS / "keys/trusted/TEST-ONLY.pub.pem"],
        ["-m", "collection.cli", "bundle", "verify", VECTORS / "bundle-small", "--trust", path],
        ["-m", "collection.cli", "onboard", path, "--from", "nothing", "--plan", "--out", tmp_path / "o"],
        ["-m", "collection.adapters", "wrk2", path],
        ["-m", "pipelines.label", "--data", tmp_path, "--out", tmp_path / "l", "--params", path],
    ]
    # Each command waits for a silent pipe as long as for any: all at once. Of what they read, one at a time bounds the memory.
    for together in [commands] if what == "fifo" else [[c] for c in commands]:
        with contextlib.ExitStack() as running:
            begun = [running.enter_context(_begun(command)) for command in together]
            for command, process in zip(together, begun, strict=True):
                out, err = process.communicate(timeout=120)
                assert process.returncode in (1, 2), (command, out[-300:], err[-300:])
                assert len(err.splitlines()) == 1, (command, err[-2000:])
                assert mutate.acts(err) is None, command


@contextlib.contextmanager
def _begun(command: list[Any]) -> Iterator[subprocess.Popen[str]]:
    """A command of Python's at work, within bounds, and ended whatever becomes of the test."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=pipe, stderr=pipe, text=True, preexec_fn=_bounded, cwd=ROOT
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_keys_of_many_parts_take_no_time() -> None:
    """`tomllib` takes quadratic time for a key of many parts; such a file is refused before it is asked."""
    for text in ("x" + ".a" * 400_000 + " = 1\n", "[x" + '."a"' * 100_000 + "]\n", "x = {a" + " . b" * 100_000 + " = 1}\n"):
        with pytest.raises(inputs.Unreadable, match="more than 64 parts"):
            inputs.parse_toml(text)
    assert inputs.parse_toml("a.b.c = [" + "1.0, " * 1000 + "]\n") == {"a": {"b": {"c": [1.0] * 1000}}}
    assert tomllib.loads("a.b = 1") == inputs.parse_toml("a.b = 1")


@pytest.mark.parametrize("inner", ["[]", "{}", "7"])
def test_nesting_has_an_end(inner: str, tmp_path: Path) -> None:
    """What is read can be handled by whatever writes it again: 100 levels, in each format."""
    file = tmp_path / "x.yaml"

    def yaml(text: str) -> Any:
        file.write_text(text)
        return inputs.read_yaml(file)

    readers = ((0, inputs.parse_json), (1, lambda text: inputs.parse_toml(f"a = {text}")), (0, yaml))
    for outer, of in readers:
        most = inputs.NESTED - outer - (inner != "7")
        of("[" * most + inner + "]" * most)
        with pytest.raises(inputs.Unreadable, match="nested too deep"):
            of("[" * (most + 1) + inner + "]" * (most + 1))


def test_yaml_has_a_size_when_it_is_spelt_out(tmp_path: Path) -> None:
    """References may be used, and may not make a line a gigabyte; a value is not in itself."""
    file = tmp_path / "x.yaml"
    file.write_text("a: &a {b: 1}\nc: {<<: *a, d: 2}\n")
    assert inputs.read_yaml(file) == {"a": {"b": 1}, "c": {"b": 1, "d": 2}}
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 20)]
    for text, why in (
        ("\n".join(lines), "comes to more than"),
        ("&a [*a]", "is in itself"),
        ("a: 1\na: 2", "twice"),
        ("a: 2001-99-99", "month"),
    ):
        file.write_text(text)
        with pytest.raises(inputs.Unreadable, match=why):
            inputs.read_yaml(file)


def test_a_silent_pipe_is_given_up(tmp_path: Path) -> None:
    """A pipe that nobody writes to is no input; one whose writer comes late is."""
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(inputs.Unreadable, match="nothing came for 0"), inputs.open_bytes(pipe, 0.05) as file:
        file.read()
    late = threading.Thread(target=lambda: pipe.write_bytes(b'{"a": 1}'))
    late.start()
    assert inputs.read_json(pipe) == {"a": 1}
    late.join()


def test_words_of_others_are_safe() -> None:
    """Messages are one line of a bounded length, and nothing in them acts on a terminal."""
    said = inputs.message(f"x\n{'a' * 100_000} \x1b[31m\u202e\udcff. Mend it")
    assert said.startswith("x aaa")
    assert said.endswith("Mend it")
    assert len(said) < 400
    assert mutate.acts(said) is None
    assert json.loads(inputs.json_text({"a\x7f": "\x9b\u202e\x1b"})) == {"a\x7f": "\x9b\u202e\x1b"}
    assert mutate.acts(inputs.json_text({"a\x7f": "\x9b\u202e\x1b"})) is None


# ---------------------------------------------------------------- output


@pytest.mark.parametrize("command", ["status", "status --json", "verify --json", "plan", "plan --json"])
def test_a_reader_that_goes_away_is_no_failure(whole: Path, tmp_path: Path, command: str) -> None:
    """`surefoot ... | head`, a closed descriptor, a full disk: no traceback; a full disk is a failure in one line."""
    name, *more = command.split()
    target = tmp_path / "c.toml" if name == "plan" else whole
    (tmp_path / "c.toml").write_text(CAMPAIGN)
    args = [sys.executable, "-m", "collection.cli", "campaign", name, str(target), *more]
    read, write = os.pipe()
    os.close(read)
    gone = subprocess.run(args, stdout=write, stderr=write, cwd=ROOT)
    os.close(write)
    assert gone.returncode == 0
    with open("/dev/full", "w") as full:
        none = subprocess.run(args, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert none.returncode == 1
    assert none.stderr.startswith("error: standard output: No space")
    assert none.stderr.count("\n") == 1
    closed = subprocess.run(["/bin/sh", "-c", 'exec "$@" >&- 2>&-', "sh", *args], cwd=ROOT)
    assert closed.returncode == 0


def test_a_campaign_is_whole_whoever_reads_of_it(tmp_path: Path) -> None:
    """A run whose standard output and standard error have gone ends with whole files."""
    (tmp_path / "c.toml").write_text(CAMPAIGN)
    args = [sys.executable, "-m", "collection.cli", "campaign", "run", str(tmp_path / "c.toml"), "--out", str(tmp_path / "out")]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(args, stdout=write, stderr=write, cwd=ROOT)
    os.close(write)
    assert done.returncode == 0
    assert standing.status(tmp_path / "out")["state"] == "done"
    assert pl.read_parquet(sorted((tmp_path / "out/server-1/shards").glob("*.parquet"))).height > 0


def test_readers_go_by_the_one_helper(request: pytest.FixtureRequest) -> None:
    """No module reads a file or a text of others past `pipelines.inputs`, but those that read what is shipped with them."""
    shipped = {
        "pipelines/pages/page.py",
        "pipelines/pages/published.py",
        "pipelines/pages/eval_facts.py",
        "pipelines/vectors.py",
        "collection/policy_figure.py",
        "models/export.py",
        "models/relative.py",
    }
    # what was read up to a bound is JSON of one form there, judged with its depth
    own = {"pipelines/inputs.py", "pipelines/artefact/bundle_rules.py"} | shipped
    names = {"read_text", "read_bytes"}
    found = []
    # A warning of what another test left, told while a tree is made, is an error of the interpreter.
    gc.collect()
    gc.disable()
    request.addfinalizer(gc.enable)
    for path in sorted(p for folder in ("collection", "pipelines", "models") for p in (ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))) if name not in own else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
                method = node.func.attr in names and of != "inputs"
                parser = (of, node.func.attr) in {("json", "loads"), ("json", "load"), ("tomllib", "loads"), ("tomllib", "load")}
                if method or parser or of == "yaml":
                    found.append(f"{name}:{node.lineno}: {of}.{node.func.attr}")
    assert not found, found


def test_bad_input_is_bad_input() -> None:
    """What is told here as bad input has exit code 2, wherever it is raised."""
    assert BadInput("x").exit_code == 2
