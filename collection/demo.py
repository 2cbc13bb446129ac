"""`surefoot demo`: the whole story on this machine, unattended, resumable step by step.

    campaigns     a virtual server and, where a Docker engine answers, real containers   -> data/demo-virtual, data/demo-local
    dvc repro     labels, Models A, B and C, evaluation, bundles, versions in the registry; a second one does nothing -> bundles/
    bundles       verified; one changed byte in any file is found and the file named
    eval          workloads x policies on virtual servers                                 -> OUT/eval
    closed loop   a real LC service with a load step beside a memory-streaming BE job        -> OUT/closed-loop
    report        one HTML file                                                           -> OUT/report.html

Data sets lie in the repository, where `dvc.yaml` looks for them; everything else lies in OUT. A data set is measured beside the
one that is there, and takes its place once it is whole and verified.

What real containers do depends on what else the machine does. So a part of theirs that fails is left out with a warning, and can
be repeated alone; the rest goes on, and without models of this machine the closed loop runs under policies that need none.
"""

from __future__ import annotations

import os
import platform
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from pipelines.errors import PipelineError
from pipelines.inputs import SUMMARY_BYTES, read_bytes, read_text, said
from pipelines.io import fsync_folder, make_folder, open_anew, sha256_file, write_json

from . import campaign, closed_loop, console, dataset, report, standing, tools, verify, worth
from .errors import StepFailed, SurefootError
from .steps import STEPS, Story, holds_story, key_of, stage_code

VIRTUAL = "demo-virtual"
LOCAL = "demo-local"
POLICIES = ("unmanaged", "parties-be", "osml-plus", "surefoot")
LOOP_POLICIES = ("unmanaged", "osml-plus")
# where this machine's data taught no models
LOOP_WITHOUT_MODELS = ("unmanaged", "parties-be")
# parts that can be asked for again: their names, and those of their steps
PARTS = {"virtual": VIRTUAL, "local": LOCAL, "models": "dvc", "eval": "eval", "loop": "closed-loop"}
PLATFORM = "server-1"
SEEDS = 3
_STEPS = 9
# share of the CPU time left over from which on others are worth a word
_BUSY_FRAC = 0.05
# what the stages leave in out/pipeline/<data set>/ (dvc.yaml)
_PIPELINE = {"labels": "label", "models": "train", "metrics": "evaluate", "report": "report"}


class Demo:
    """One run of the story.

    Args:
        out: folder of the report and of what it is made from.
        voice: where progress goes.
        again: parts that are done anew (PARTS), whatever was done before.
    """

    def __init__(self, out: Path, voice: Console, again: Sequence[str] = ()) -> None:
        self.root = tools.repo_root()
        self.out = out.resolve()
        self.console = voice
        self.teller = console.Teller(voice, _STEPS)
        places = {"repository": self.root, "out": self.out}
        self.story = Story(self.out / STEPS, self.teller, [PARTS[part] for part in again], places)
        self.warnings: list[str] = []
        self.failed: list[str] = []
        # by part, why it is missing: what this machine was busy with decides
        self.left_out: dict[str, str] = {}
        self.surefootd = tools.find(tools.SUREFOOTD)

    def run(self) -> dict[str, Any]:
        """All steps; returns what `--json` prints."""
        result: dict[str, Any] = {
            "schema_version": 1,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "out": str(self.out),
        }
        holds_story(self.out, "demo", ("demo.json",))
        with campaign.working_in(self.out, "a demo", "ls -l"):
            # a demo's from here on, whenever this one is stopped
            (self.out / STEPS).mkdir(exist_ok=True)
            result["machine"] = machine()
            result["git_commit"] = self._git("rev-parse", "HEAD")
            engine = self._engine()
            result["engine"] = engine
            campaigns = {VIRTUAL: self._campaign(VIRTUAL, "virtual campaign on server-1")}
            if engine["answers"]:
                title = "local campaign: real containers under real load"
                found = self._or_go_on("local", title, lambda: self._campaign(LOCAL, title, engine["images"]))
                if found is not None:
                    campaigns[LOCAL] = found
            else:
                self.story.skip(LOCAL, "local campaign", engine["why"])
            result["campaigns"] = campaigns
            result["dvc"] = self._dvc(campaigns)
            result["bundles"] = self._bundles(list(result["dvc"]["outputs"]))
            result["eval"] = self._eval()
            models = LOCAL in result["dvc"]["outputs"]
            loop = self._or_go_on("loop", "closed loop", lambda: self._closed_loop(engine, models))
            result["closed_loop"] = loop or {"why": self.left_out["loop"], "runs": []}
            result["failed"] = self.failed
            result["left_out"] = self.left_out
            result["warnings"] = self.warnings
            result["steps"] = [asdict(r) for r in self.story.records]
            result["report"] = str(self.out / "report.html")
            with self.teller.step("report"):
                start = time.monotonic()
                result["report_bytes"] = report.write(result, self.root, self.out / "report.html")
                result["steps"].append(
                    {"name": "report", "title": "report", "state": "done", "seconds": time.monotonic() - start, "why": ""}
                )
            result["seconds"] = sum(s["seconds"] for s in result["steps"])
            write_json(self.out / "demo.json", result)
        return result

    def _or_go_on(self, part: str, title: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Parts on real containers depend on what else this machine does: the story ends without them, and says so."""
        try:
            return work()
        except (SurefootError, PipelineError, OSError) as e:
            # a step that failed says which one it is
            self._leave_out(part, f"{title}: {str(e).removeprefix(f'{title}: ')}")
            return None

    def _leave_out(self, part: str, why: str) -> None:
        self.left_out[part] = why
        self.warnings.append(f"{why}. To try that part again, and it alone: {self._again(part)}")
        self.console.print(f"[yellow]left out:[/] {console.escape(why)}", highlight=False)

    def _again(self, part: str) -> str:
        """The command that repeats a part."""
        own = "" if self.out == self.root / "out" / "demo" else f" --out {shlex.quote(str(self.out))}"
        return f"surefoot demo --again {part}{own}"

    def _git(self, *args: str) -> str | None:
        done = subprocess.run(["git", "-C", str(self.root), *args], capture_output=True, text=True)
        return done.stdout.strip() or None if done.returncode == 0 else None

    def _script(self, *command: str, timeout_s: float) -> tuple[bool, str]:
        """Run a script of the repository; whether it worked, and its last line."""
        log = self.out / "logs" / f"{Path(command[0]).stem}.log"
        code, text = logged([str(self.root / command[0]), *command[1:]], log, cwd=self.root, timeout_s=timeout_s)
        lines = [line for line in text.splitlines() if line.strip()]
        return code == 0, lines[-1] if lines else f"{command[0]} said nothing; see {log}"

    def _engine(self) -> dict[str, Any]:
        """Make a container engine answer and build the images; where that cannot be, say why."""

        def work() -> dict[str, Any]:
            answers, said = self._script("scripts/engine.sh", timeout_s=300)
            if not answers:
                return {"answers": False, "why": said, "images": None}
            built, last = self._script("scripts/images.sh", timeout_s=900)
            if not built:
                return {"answers": False, "why": last, "images": None}
            return {"answers": True, "why": said, "images": _image_ids()}

        found: dict[str, Any] = self.story.check("engine", "container engine and images", work)
        if not found["answers"]:
            self.warnings.append(f"no real containers: {found['why']}")
        return found

    def _campaign(self, name: str, title: str, *inputs: Any) -> dict[str, Any]:
        """Run and verify one of the demo's campaigns."""
        file, folder = self.root / "examples" / f"{name}.toml", self.root / "data" / name

        restore(folder)

        def work(cut_short: bool) -> dict[str, Any]:
            new = successor(folder)
            for theirs in (new, folder):
                if campaign.is_running(theirs):
                    raise StepFailed(f"{title}: {theirs}: a campaign works here already. Wait for it, then call this again")
            if new.exists() and not cut_short:
                # of another campaign, or measured with another program
                shutil.rmtree(new)
            start = time.monotonic()
            with console.Progress(self.console) as bar:
                state = campaign.run(file, new, report=bar)
            result = verify.verify(new)
            if not result.ok:
                first = result.findings[0]
                raise StepFailed(f"{title}: {first.file}: {first.what}; {first.remedy}")
            target = state["targets"][0]
            if campaign.is_running(folder):
                raise StepFailed(f"{title}: {folder}: a campaign works here; {new} keeps what was measured. Call this again")
            replace(folder, new)
            return {
                "file": str(file),
                "folder": str(folder / Path(target["folder"]).relative_to(new)),
                "target": target["target"],
                "feature_set": target["feature_set"],
                "cases": state["cases"],
                "rows": result.rows,
                "usable_rows": state["usable_rows"],
                "rows_by_worth": target["rows_by_worth"],
                "shards": result.shards,
                "failed": target["failed"],
                "verified": True,
                "seconds": time.monotonic() - start,
            }

        key = key_of(file, self.surefootd, *inputs)
        found: dict[str, Any] = self.story.step(name, title, key, work, outputs=[folder / dataset.MANIFEST])
        if "rows_by_worth" not in found:  # remembered by a version that did not count them
            found |= {"rows_by_worth": worth.of(Path(found["folder"]), dataset.read_manifest(Path(found["folder"])))}
        found["max_loads"] = max_loads(Path(found["folder"]))
        if standing.usable_colour(found["rows_by_worth"]) != "green":
            remedy = f". Once this machine is quiet: {self._again('local')}" if name == LOCAL else ""
            self.warnings.append(f"{name}: {standing.usable_in_words(found['rows_by_worth'])}{remedy}")
        most = max((m["others_frac"] for m in found["max_loads"]), default=0.0)
        if most > _BUSY_FRAC:
            self.warnings.append(
                f"{name}: other programs took up to {most:.0%} of the CPU time that the services left over: loads and cliffs are "
                "those of this machine beside them"
            )
        if found["cases"]["failed"]:
            reasons = "; ".join(f"{f['cases']} × {f['reason']}" for f in found["failed"])
            self.warnings.append(f"{name}: {found['cases']['failed']} cases failed: {reasons}")
        return found

    def _dvc(self, campaigns: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """dvc repro of every data set there is, twice: the second one must do nothing.

        The virtual data set must go through. Whether the local one can teach anything depends on how busy this machine was.
        """
        lock = self.root / "dvc.lock"
        code = [self.root / "dvc.yaml", self.root / "params.yaml", *stage_code(self.root)]
        # the stage `verify` runs the campaign's own checks
        code += sorted(self.root.glob("collection/**/*.py"))
        manifests = [Path(c["folder"]) / dataset.MANIFEST for c in campaigns.values()]

        def work(_cut_short: bool) -> dict[str, Any]:
            seconds, ran, failed = 0.0, 0, {}
            for name in campaigns:
                took_s, said, error = self._repro([f"register@{name}", f"report@{name}"], f"dvc-{name}.log")
                seconds += took_s
                ran += said.count("Running stage")
                if error and name == VIRTUAL:
                    raise StepFailed(error)
                if error:
                    failed[name] = error
            good = [n for n in campaigns if n not in failed]
            before = sha256_file(lock)
            second = [f"{s}@{n}" for n in good for s in ("register", "report")]
            second_s, said, error = self._repro(second, "dvc-again.log")
            if error and LOCAL in good:
                # whose error it is: without the local one the rest must go through
                good.remove(LOCAL)
                failed[LOCAL] = error
                second_s, said, error = self._repro([s for s in second if not s.endswith(f"@{LOCAL}")], "dvc-again.log")
            if error:
                raise StepFailed(error)
            return {
                "first_s": seconds,
                "stages_run": ran,
                "second_s": second_s,
                "second_run_did_nothing": sha256_file(lock) == before and "Running stage" not in said and "up to date" in said,
                "outputs": {n: {k: str(self.root / "out/pipeline" / n / d) for k, d in _PIPELINE.items()} for n in good},
                "failed": failed,
            }

        key = key_of(sorted(campaigns), *code, *manifests)
        outputs = [lock, self.root / "bundles" / VIRTUAL]
        # a failure may be this hour's (no memory, a killed child): it is not remembered
        found: dict[str, Any] = self.story.step("dvc", "dvc repro, twice", key, work, outputs, lambda r: not r["failed"])
        if not found["second_run_did_nothing"]:
            self.warnings.append(f"the second dvc repro was not a no-op; see {self.out / 'logs/dvc-again.log'}")
        for name, error in found["failed"].items():
            # the same command tries it again by itself: a step with a part missing is not remembered
            # the same data teach the same: only a child that was ended from outside is worth another try
            part = "local" if name == LOCAL and "killed by signal" not in error else "models"
            self._leave_out(part, f"no models of {name}: {error}")
        return found

    def _repro(self, stages: Sequence[str], log: str) -> tuple[float, str, str | None]:
        """One dvc repro: seconds, what it said, and the error if there was one."""
        scripts = Path(sys.executable).parent
        env = {"PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"}
        env |= {"DVC_NO_ANALYTICS": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
        start = time.monotonic()
        path = self.out / "logs" / log
        code, said = logged([str(scripts / "dvc"), "repro", *stages, "--no-run-cache"], path, cwd=self.root, env=env)
        error = None
        if code != 0:
            # the stage's own line says more than dvc's
            lines = [line.strip() for line in said.splitlines() if line.lower().startswith("error: ")]
            ended = f"killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
            error = f"dvc repro: {lines[0][len('error: ') :] if lines else ended}; see {path}"
        return time.monotonic() - start, said, error

    def _bundles(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Check each bundle, and a copy of it with one byte changed in each file."""
        found = []
        for name in names:
            folder = self.root / "bundles" / name

            def work(_cut_short: bool, name: str = name, folder: Path = folder) -> dict[str, Any]:
                return check_bundle(name, folder, self.out / "tampered")

            found.append(
                self.story.step(f"bundle-{name}", f"bundle {name}: verify, and find changed bytes", key_of(folder), work)
            )
            missed = [t["file"] for t in found[-1]["tampering"] if not t["rejected"]]
            if missed:
                self.failed.append(f"bundle {name}: a changed byte was accepted in {', '.join(missed)}")
        return found

    def _eval(self) -> dict[str, Any]:
        """Policies on virtual workloads."""
        workloads, bundle, out = self.root / "workloads/sets/demo", self.root / "bundles" / VIRTUAL, self.out / "eval"

        def work(cut_short: bool) -> dict[str, Any]:
            if not cut_short:
                # of another bundle or surefootd: eval would not go on with it
                (out / "eval.partial.jsonl").unlink(missing_ok=True)
            args: list[str | Path] = ["eval", "--workloads", workloads, "--policies", ",".join(POLICIES), "--platform", PLATFORM]
            args += ["--bundle", bundle, "--seeds", str(SEEDS), "--out", out, "--overwrite", "--json"]
            said = tools.run_json(tools.SUREFOOTD, args)
            return {
                "out": str(out),
                "platform": said["platform"],
                "workloads": said["workloads"],
                "policies": list(POLICIES),
                "seeds": SEEDS,
                "runs": said["runs"],
                "summary": said["policies"],
            }

        key = key_of(workloads, bundle, self.surefootd, POLICIES, SEEDS)
        title = "eval: policies on virtual workloads"
        result: dict[str, Any] = self.story.step("eval", title, key, work, [out / "rows.parquet", out / "timelines.parquet"])
        return result

    def _closed_loop(self, engine: Mapping[str, Any], models: bool) -> dict[str, Any]:
        """A real service under a load step beside a real BE job."""
        title = "closed loop on this machine"
        if not engine["answers"]:
            self.story.skip("closed-loop", title, engine["why"])
            return {"why": engine["why"], "runs": []}
        loop, out = closed_loop.Loop(), self.out / "closed-loop"
        bundle = self.root / "bundles" / LOCAL if models else None
        policies = LOOP_POLICIES if models else LOOP_WITHOUT_MODELS

        def work(_cut_short: bool) -> dict[str, Any]:
            runs = [closed_loop.run(loop, p, bundle if p == "osml-plus" else None, out / p) for p in policies]
            return {"runs": runs, "models": models, **closed_loop.words(loop)}

        key = key_of(loop, policies, bundle or "no models", self.surefootd, tools.find(tools.LOADGEN), engine["images"])
        timelines = [out / p / "timeline.jsonl" for p in policies]
        result: dict[str, Any] = self.story.step("closed-loop", title, key, work, timelines)
        return result


def successor(folder: Path) -> Path:
    """Where the data set is measured that takes the place of `folder` once it is whole."""
    return folder.with_name(f"{folder.name}.new")


def _former(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.old")


def replace(folder: Path, new: Path) -> None:
    """Put a whole data set in the place of another; killed half-way, `restore` brings one of the two back."""
    old = _former(folder)
    _remove(old)
    if os.path.lexists(folder):
        folder.rename(old)
    new.rename(folder)
    fsync_folder(folder.parent)
    _remove(old)


def restore(folder: Path) -> None:
    """Bring back a data set that was put aside for a successor which never came."""
    if not os.path.lexists(folder) and os.path.lexists(_former(folder)):
        _former(folder).rename(folder)


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def max_loads(folder: Path) -> list[dict[str, Any]]:
    """Max loads that a target's sweep found, as its manifest tells them."""
    return [
        m.model_dump(include={"service", "threads", "max_load_rps", "others_frac"})
        for m in dataset.read_manifest(folder).max_loads
    ]


def check_bundle(name: str, folder: Path, scratch: Path) -> dict[str, Any]:
    """Verify a bundle and its tar; change one byte in each file of a copy and see that verification names that file."""
    from pipelines.artefact import bundle
    from pipelines.errors import BundleError

    facts = bundle.inspect(folder)
    tar = folder.with_name(f"{name}.tar")
    bundle.verify(tar)
    rng = random.Random(name)
    tampering = []
    for file in sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()):
        copy = scratch / name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        raw = bytearray(read_bytes(copy / file, SUMMARY_BYTES))
        offset = rng.randrange(len(raw))
        raw[offset] ^= 1 << rng.randrange(8)
        (copy / file).chmod(0o644)
        (copy / file).write_bytes(raw)
        try:
            bundle.verify(copy)
        except BundleError as e:
            tampering.append({"file": file, "offset": offset, "rejected": e.file == file, "message": str(e)})
        else:
            tampering.append({"file": file, "offset": offset, "rejected": False, "message": "was accepted"})
    shutil.rmtree(scratch, ignore_errors=True)
    keep = ("manifest_sha256", "feature_set", "platform", "services", "models", "metrics", "provenance", "signer")
    return {
        "name": name,
        "path": str(folder),
        "tar": str(tar),
        "bytes": tar.stat().st_size,
        "verified": True,
        **{k: facts[k] for k in keep},
        "tampering": tampering,
    }


def logged(
    command: Sequence[str], log: Path, *, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float | None = None
) -> tuple[int, str]:
    """Run a command with all it says in a log file; its exit code (124: took too long) and what it said."""
    make_folder(log.parent)
    with open_anew(log) as file:
        try:
            done = subprocess.run(
                command, cwd=cwd, env=tools.merged(env or {}), stdout=file, stderr=subprocess.STDOUT, timeout=timeout_s
            )
            code = done.returncode
        except subprocess.TimeoutExpired:
            file.write(f"\nended: took longer than {timeout_s:.0f} s\n")
            code = 124
    return code, said(log)


def _image_ids() -> list[str]:
    """What the workloads' images are made of now."""
    engine = os.environ.get("SUREFOOT_ENGINE") or ("docker" if shutil.which("docker") else "podman")
    command = [engine, "image", "ls", "--no-trunc", "--format", "{{.Repository}} {{.ID}}", "surefoot/*"]
    return sorted(subprocess.run(command, capture_output=True, text=True).stdout.split("\n"))


def machine() -> dict[str, Any]:
    """Facts of this machine that the figures depend on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in read_text(Path("/proc/cpuinfo"), SUMMARY_BYTES).splitlines()
            if line.startswith("model name")
        ),
        platform.processor() or platform.machine(),
    )
    return {
        "cpu_model": model,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def run(out: Path | None, voice: Console, again: Sequence[str] = ()) -> dict[str, Any]:
    """Tell the whole story; see the module. `out` defaults to out/demo in the repository; `again`: parts that are done anew."""
    root = tools.repo_root()
    if not (root / "dvc.yaml").exists():
        raise StepFailed(f"{root}: no dvc.yaml: the demo runs from a clone of the repository. Run: make setup")
    return Demo(out or root / "out" / "demo", voice, again).run()
