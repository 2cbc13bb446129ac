"""What a local campaign needs of this machine beside its file: looked at before anything is started.

`surefootd sweep --plan` reads the campaign and knows the platform. What only a launch finds out is looked for here: the load
generator, a container engine that answers, images, adapters, ports, numbers of threads. Each is told as the launch would tell
it. Nothing is started and nothing changed.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.inputs import Unreadable, parse_toml, read_bytes, read_toml, utf8

from . import tools
from .errors import CampaignError, SurefootError

ADAPTERS = ("mutilate", "memtier_benchmark", "wrk2", "ycsb", "tailbench")
"""Load generators that a catalogue entry may name and that no sweep starts (scheduler/linux/src/catalogue.rs)."""
ENTRY = "workload.toml"
_DRIVE = "drive.py"
INSTALLED = Path("/usr/share/surefoot/workloads")
# what a launch takes; the plan knows what the format takes
_MOST_THREADS = 1024
_PATIENCE_S = 30.0
_NAMES = ("cgroup", "unit", "pid", "container", "command")


@dataclass(frozen=True)
class Service:
    """A service that the campaign measures, as far as its launch goes. name: as the sweep knows it.

    image, protocol: of the catalogue's entry; None where it has none, or is not started from the catalogue.
    runs: it runs already, and is loaded where it is. launched: from the catalogue, in a container.
    source: where a user gets what cannot be shipped. generator: command of its `exec` load generator, not filled in.
    """

    name: str
    field: str
    launched: bool
    runs: bool
    port: int | None
    image: str | None
    protocol: str | None
    source: str | None = None
    generator: tuple[str, ...] = ()


def catalogue(given: Path | None) -> Path:
    """The folder that `surefootd sweep` takes entries from: given, `workloads` here or above the program, or the package's."""
    if given is not None:
        return given
    known = [Path("workloads"), *(folder / "workloads" for folder in tools.find(tools.SUREFOOTD).parents)]
    return next((folder for folder in known if any(folder.glob(f"*/{ENTRY}"))), INSTALLED)


def check_catalogue(given: Path) -> None:
    """
    Raises:
        CampaignError: it is no catalogue.
    """
    if not given.is_dir() or not any(given.glob(f"*/{ENTRY}")):
        raise CampaignError(
            f"--catalogue {given}: has no NAME/{ENTRY} in it. Give a folder of workloads, as docs/catalogue.md has it"
        )


def refusals(file: Path, by_service: Iterable[str], folder: Path) -> Iterator[str]:
    """Why a run would be refused on this machine, most basic first; nothing if it can start.

    Args:
        file: the campaign.
        by_service: services that the plan measures.
        folder: the catalogue.
    """
    campaign = _campaign(file)
    found = list(_services(campaign, list(by_service), folder))
    yield from foreign(file, found, folder)
    yield from _threads(file, campaign)
    yield from _loadgen()
    yield from _generators(found)
    launched = [s for s in found if s.launched]
    engine, why = _engine() if launched else (None, None)
    if why:
        yield why
    if engine:
        yield from _images(engine, launched, folder)
    yield from _ports(engine, found)


def warnings(file: Path, by_service: Iterable[str], folder: Path) -> Iterator[str]:
    """What may fail later: images of services that may be drawn as neighbours, and are not here."""
    campaign = _campaign(file)
    beside = campaign.get("sweep", {}).get("neighbours")
    counts = beside.get("count") if isinstance(beside, dict) else None
    if campaign.get("service") or not isinstance(counts, list) or not any(counts):
        return
    engine, _ = _engine()
    measured = set(by_service)
    names = [p.parent.name for p in sorted(folder.glob(f"*/{ENTRY}")) if p.parent.name not in measured]
    drawn = [s for s in _services({}, names, folder) if s.image and s.protocol and s.protocol not in ADAPTERS]
    missing = sorted({s.name for s in drawn if engine and s.image and not _has_image(engine, s.image)})
    if missing:
        yield (
            f"sweep.neighbours: no image of {', '.join(missing)}: cases that draw one of them as a neighbour fail. "
            f"Build them: scripts/images.sh {' '.join(missing)}"
        )


def _campaign(file: Path) -> dict[str, Any]:
    # its form was checked by whoever planned it
    return parse_toml(utf8(read_bytes(file)))


def of_file(file: Path, folder: Path) -> list[Service]:
    """Services that a campaign names by themselves; none for "all"."""
    campaign = _campaign(file)
    services = campaign.get("sweep", {}).get("services")
    return list(_services(campaign, [s for s in services if isinstance(s, str)] if isinstance(services, list) else [], folder))


def _services(campaign: dict[str, Any], names: list[str], folder: Path) -> Iterator[Service]:
    own = {str(s.get("id", s.get("service"))): s for s in campaign.get("service", []) if isinstance(s, dict)}
    for name in names:
        said = own.get(name, {})
        entry = _entry(folder, str(said.get("service", name)))
        load = said.get("loadgen", entry.get("loadgen"))
        port = said.get("port", entry.get("port"))
        launched = not any(key in said for key in _NAMES)
        yield Service(
            name=name,
            field="service" if said else "sweep.services",
            launched=launched,
            runs=any(key in said for key in _NAMES[:-1]),
            port=port if isinstance(port, int) else None,
            image=str(entry["image"]) if launched and "image" in entry else None,
            protocol=str(load["protocol"]) if isinstance(load, dict) and "protocol" in load else None,
            source=str(entry["source"]) if "source" in entry else None,
            generator=_generator(load, folder / str(said.get("service", name))),
        )


def _generator(load: Any, at: Path) -> tuple[str, ...]:
    command = load.get("command") if isinstance(load, dict) and load.get("protocol") == "exec" else None
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        return ()
    # a program of the entry's own lies in its folder
    return tuple(str(at / word) if n == 0 and word.startswith("./") else word for n, word in enumerate(command))


def _generators(found: list[Service]) -> Iterator[str]:
    """`exec` load generators that cannot be started. Ours for the originals (workloads/originals) says itself what it lacks."""
    for s in found:
        program = shutil.which(s.generator[0]) if s.generator else None
        if s.generator and program is None:
            what = f"its load generator {s.generator[0]} is no program here"
            yield f"{s.field}: {s.name}: {what}. Install it, or mend loadgen.command"
        elif program is not None and Path(program).name == _DRIVE:
            code, said = _run(Path(program), "--check", *(re.sub(r"\{\w+\}", "1000", word) for word in s.generator[1:]))
            if code:
                yield f"{s.field}: {s.name}: {said.removeprefix('drive: ')}"


def _entry(folder: Path, name: str) -> dict[str, Any]:
    """A catalogue entry; empty where there is none that can be read, which the plan has told."""
    if "/" in name or name in ("", ".", ".."):
        return {}
    try:
        return read_toml(folder / name / ENTRY)
    except (OSError, Unreadable):
        return {}


def foreign(file: Path, found: list[Service], folder: Path) -> Iterator[str]:
    """Services that are loaded with what no sweep starts."""
    for s in found:
        if s.protocol in ADAPTERS:
            yield (
                f"{file}: {s.field}: {s.name} is loaded with {s.protocol}, which a sweep does not start. Leave it out, or give "
                f"its entry in {folder} a protocol of surefoot-loadgen; docs/workloads.md says how to run {s.protocol} yourself"
            )


def _threads(file: Path, campaign: dict[str, Any]) -> Iterator[str]:
    axis = campaign.get("sweep", {}).get("threads")
    # of a range its ends, not its step
    text = re.split(r"step", axis)[0] if isinstance(axis, str) else " ".join(map(str, axis if isinstance(axis, list) else [axis]))
    most = max((float(n) for n in re.findall(r"[0-9]+(?:\.[0-9]+)?", text)), default=0.0)
    if most > _MOST_THREADS:
        yield f"{file}: sweep.threads: {most:g} is more than a service is started with here. Give 1 to {_MOST_THREADS}"


def _loadgen() -> Iterator[str]:
    try:
        tools.find(tools.LOADGEN)
    except SurefootError as e:
        # the sweep looks beside itself, too; a program that was named is to be that one
        if tools.is_named(tools.LOADGEN) or not tools.find(tools.SUREFOOTD).with_name(tools.LOADGEN).is_file():
            yield str(e)


def _engine() -> tuple[Path | None, str | None]:
    """The container engine's program, if it answers; else why not."""
    given = os.environ.get("SUREFOOT_ENGINE", "")
    program = shutil.which(given) if given else shutil.which("docker") or shutil.which("podman")
    if program is None:
        what = f"SUREFOOT_ENGINE={given} is not a program" if given else "neither docker nor podman is installed"
        return None, f"container engine: {what}. Install and start Docker or Podman, or name it in SUREFOOT_ENGINE"
    code, said = _run(Path(program), "ps", "--quiet")
    if code != 0:
        return None, f"container engine: {program}: {said}. Start it: systemctl start docker"
    return Path(program), None


def _run(program: Path, *args: str) -> tuple[int, str]:
    """Exit code of an engine's command, and the last line that it said."""
    try:
        done = subprocess.run([str(program), *args], capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        return 1, f"did not answer within {_PATIENCE_S:.0f} s"
    except OSError as e:
        return 1, str(e.strerror)
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip() and not line.startswith("See '")]
    # the cause stands before the engine's question
    return done.returncode, lines[-1].removesuffix(". Is the docker daemon running?").rstrip(".?") if lines else "no message"


def _has_image(engine: Path, image: str) -> bool:
    # a name is no option
    return not image.startswith("-") and _run(engine, "image", "inspect", image)[0] == 0


def _images(engine: Path, launched: list[Service], folder: Path) -> Iterator[str]:
    wanted = {s.image: s.name for s in reversed(launched) if s.image}
    missing = {image: name for image, name in wanted.items() if not _has_image(engine, image)}
    if missing:
        names = sorted(missing.values())
        # what cannot be shipped says where it is to be had
        source = {s.name: s.source for s in launched if s.source}
        ours = [name for name in names if name not in source]
        ways = [f"scripts/images.sh {' '.join(ours)}"] if ours else []
        ways += [f"{name}: {source[name]}" for name in names if name in source]
        yield (
            f"no image {', '.join(sorted(missing))}, which {', '.join(names)} "
            f"{'is' if len(names) == 1 else 'are'} started from. Build or pull it: {'; '.join(ways)}; or mend "
            f"image in {folder}/NAME/{ENTRY}"
        )


def _ports(engine: Path | None, found: list[Service]) -> Iterator[str]:
    """Ports that are taken where a service is to be started, or silent where one runs already."""
    taken: dict[int, str] = {}
    for s in found:
        if s.port is None:
            continue
        if s.runs:
            if not _answers(s.port):
                yield f"{s.field}: {s.name}: nothing answers on 127.0.0.1:{s.port}. Start the service, or mend its port"
        elif not _free(s.port) and not _left_by_us(engine, s):
            yield f"{s.field}: {s.name}: port {s.port} is in use on this machine. Stop what listens there, or give another port"
        if s.runs and s.port in taken:
            yield f"{s.field}: {s.name}: has port {s.port}, and so has {taken[s.port]}. Give each its own"
        if s.runs:
            taken[s.port] = s.name


def _free(port: int) -> bool:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except (OSError, OverflowError):
        return False


def _left_by_us(engine: Path | None, s: Service) -> bool:
    """Whether a sweep that was killed left the service running: the next one takes it over, or ends it."""
    if s.launched and engine:
        code, said = _run(engine, "ps", "--quiet", "--filter", f"label=surefoot.id={s.name}")
        return code == 0 and said != "no message"
    groups = Path("/sys/fs/cgroup")
    return any(True for at in (groups, *groups.glob("*")) for _ in at.glob(f"surefoot-*-{s.name}"))
