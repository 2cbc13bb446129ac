#!/usr/bin/env python3
"""What lending does to a real memcached on this machine's two CPUs: p99 and harvested CPU under each policy, round by round.

memcached has both CPUs, a bully of two spinning threads none. A policy of `scheduler/harvest` lends the second CPU: memcached
keeps the first, and the bully runs on the second. It is frozen at all other times. The client has real-time priority, so that
neither makes it late. Beside these policies stand `alone` (no bully, no looks) and what an operator does without us: `shares`
(the bully on both CPUs at the least cpu.shares) and `idle` (the same with SCHED_IDLE).
In each round every policy runs once, in another order.

    cargo build --release --locked -p surefoot-loadgen && cargo build --release --locked -p surefootd --example lend_two_cpus
    scripts/bench/lend_memcached.py target/release OUT [--rounds 20] [--threads 2] [--seconds 8] [--warm-up 3] [--table]

OUT gets setup.json, rows.csv (a row as soon as it is measured) and table.md. A run that was stopped goes on with the same
command. Needs root, cgroups of version 1, memcached, g++, util-linux and a quiet machine of two CPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

REPO = Path(__file__).resolve().parents[2]
GROUP = "surefoot-two-cpus"
CGROUPS = Path("/sys/fs/cgroup")
TREES = ("cpuset", "cpu", "cpuacct", "freezer")
LOCK = Path("/run/surefoot-two-cpus.lock")
PORT = 21_987

LENDING = ("no-harvest", "fixed-buffer-1", "prev-peak", "prev-peak-10", "smartharvest", "wait-budget")
WITHOUT_US = ("alone", "shares", "idle")
POLICIES = ("alone", *LENDING, "shares", "idle")
BASE = "no-harvest"
LENDS = re.compile(r"no-harvest|fixed-buffer-\d+|prev-peak(-\d+)?|smartharvest|wait-budget|caladan")

# The kernel's least, and what a group has unless it is told otherwise.
LEAST_SHARES = 2
SHARES = 1024
# All that is measured, against other work on the machine: it should have none, and this bounds what little there is.
GROUP_SHARES = 64 * SHARES

WANTED_CPU = 0.65
BAND = (0.50, 0.80)
NEAR = 0.02
CALIBRATE_S = 4.0
PAUSE_S = 0.01
DRAWS = 4000


def fail(message: str) -> NoReturn:
    sys.exit(f"lend_memcached: {message}")


# ---------------------------------------------------------------- rounds, rows and the table: nothing of the machine


@dataclass
class Row:
    """One run of one policy."""

    round: int
    place: int
    policy: str
    rps: float
    primary_cpu: float
    in_band: bool
    client_cpu: float
    lender_cpu: float
    harvested_cpu: float
    other_cpu: float
    stolen_cpu: float
    p50_ms: float | None
    p99_ms: float | None
    verdict: str
    lent_cores: float
    looks: int
    idle_looks: int
    one_busy_looks: int
    late_looks: int
    latest_ms: float
    moves: int
    move_ms: float
    longest_move_ms: float
    exhausted: int
    stops: int
    by_files: bool


COLUMNS = list(Row.__dataclass_fields__)


def order(policies: Sequence[str], number: int) -> list[str]:
    """Of round `number` from 1 on: each pair of rounds is mirrored, and the next pair begins with another policy."""
    pair, mirrored = divmod(number - 1, 2)
    start = pair % len(policies)
    turned = [*policies[start:], *policies[:start]]
    return turned[::-1] if mirrored else turned


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def append(path: Path, row: Row) -> None:
    """One row, on the disk when this returns."""
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        writer.writerow([cell(v) for v in asdict(row).values()])
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows that are there whole. A line that a kill cut off is removed from the file."""
    if not path.exists():
        return []
    text = path.read_text("utf-8")
    whole = text[: text.rfind("\n") + 1]
    if not whole:
        path.unlink()
        return []
    if whole != text:
        path.write_text(whole, "utf-8")
    head, *lines = list(csv.reader(whole.splitlines()))
    if head != COLUMNS or any(len(line) != len(head) for line in lines):
        fail(f"{path} has other columns than this script writes. Give another folder")
    return [dict(zip(head, line, strict=True)) for line in lines]


def quantile(values: Sequence[float], q: float) -> float:
    """Between neighbours in proportion. Infinite values are in order, and nothing lies between them and others."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    at = q * (len(ordered) - 1)
    low, high = ordered[int(at)], ordered[min(int(at) + 1, len(ordered) - 1)]
    share = at - int(at)
    return low if share == 0 or low == high else low + share * (high - low)


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % of medians of bootstrap draws."""
    draw = random.Random(1)
    medians = [median(draw.choices(values, k=len(values))) for _ in range(DRAWS)] if values else []
    return quantile(medians, 0.025), quantile(medians, 0.975)


def shown(value: float, digits: int = 3) -> str:
    return "" if value != value else "unknown, above all" if value == float("inf") else f"{value:.{digits}f}"


def p99(row: dict[str, str]) -> float:
    """An unknown one is that of a server which did not answer: worse than all others."""
    return float(row["p99_ms"]) if row["p99_ms"] else float("inf")


def ratios(of: list[dict[str, str]], base: list[dict[str, str]]) -> list[float]:
    by_round = {r["round"]: p99(r) for r in base if p99(r) < float("inf")}
    return [p99(r) / by_round[r["round"]] for r in of if r["round"] in by_round]


HEAD = (
    "policy",
    "runs",
    "p99, ms: median (25 to 75 %)",
    f"p99 / {BASE}: median (95 %)",
    "harvested CPU",
    "lent",
    "memcached's CPU",
    "client's CPU",
    "looks' CPU",
    "late looks, %",
    "idle looks, %",
    "move, ms",
    "stops",
    "client-limited",
    "p99 without these",
    "ratio without these",
    "not in 50..80 %",
)


def table(rows: list[dict[str, str]], policies: Sequence[str]) -> str:
    """One line a policy. Runs whose client was late count, and are left out once more at the end."""
    lines = ["| " + " | ".join(HEAD) + " |", "| " + " | ".join("---" for _ in HEAD) + " |"]
    fair = [r for r in rows if r["verdict"] != "client-limited"]
    for policy in policies:
        of, good = ([r for r in among if r["policy"] == policy] for among in (rows, fair))
        if not of:
            continue
        base, good_base = ([r for r in among if r["policy"] == BASE] for among in (rows, fair))
        times, good_times = ratios(of, base), ratios(good, good_base)
        low, high = interval(times)

        def mid(name: str, of: list[dict[str, str]] = of) -> float:
            return median([float(r[name]) for r in of])

        def share(name: str, of: list[dict[str, str]] = of) -> str:
            looks = sum(int(r["looks"]) for r in of)
            return shown(100 * sum(int(r[name]) for r in of) / looks, 1) if looks else ""

        values = [p99(r) for r in of]
        lines.append(
            "| "
            + " | ".join(
                [
                    f"`{policy}`",
                    str(len(of)),
                    f"{shown(median(values))} ({shown(quantile(values, 0.25))} to {shown(quantile(values, 0.75))})",
                    f"{shown(median(times), 2)} ({shown(low, 2)} to {shown(high, 2)})" if times else "",
                    shown(mid("harvested_cpu")),
                    shown(mid("lent_cores")),
                    shown(mid("primary_cpu")),
                    shown(mid("client_cpu")),
                    shown(mid("lender_cpu")),
                    share("late_looks"),
                    share("idle_looks"),
                    shown(mid("move_ms")),
                    str(sum(int(r["stops"]) for r in of)),
                    str(len(of) - len(good)),
                    shown(median([p99(r) for r in good])),
                    shown(median(good_times), 2),
                    str(sum(r["in_band"] != "yes" for r in of)),
                ]
            )
            + " |"
        )
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- groups and processes


def folder(tree: str, name: str = "") -> Path:
    return CGROUPS / tree / GROUP / name


def put(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="ascii")
    except OSError as e:
        fail(f"{path}: {text.strip()!r} is refused: {e.strerror}")


def groups() -> list[Path]:
    """All that are there, those below first."""
    return sorted((d for t in TREES for d in (folder(t), *folder(t).glob("*/")) if d.is_dir()), key=lambda d: -len(d.parts))


def sweep() -> None:
    """Nothing is left: what was frozen is thawed, each process of the groups ended, each group removed."""
    end = time.monotonic() + 10
    while left := groups():
        for group in left:
            with contextlib.suppress(OSError):
                for pid in group.joinpath("cgroup.procs").read_text("ascii").split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            # A frozen process does not end.
            if (state := group / "freezer.state").exists():
                with contextlib.suppress(OSError):
                    state.write_text("THAWED", encoding="ascii")
        for group in left:
            with contextlib.suppress(OSError):
                group.rmdir()
        if time.monotonic() > end:
            fail(f"{left[0]} cannot be removed: look for what is in it")
        # Children that were killed are zombies until they are asked for.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(PAUSE_S)


def make(bully_cpus: str, cpus: str) -> None:
    sweep()
    members = {"cpuset": ("primary", "bully"), "cpu": ("primary", "bully"), "freezer": ("bully",)}
    members["cpuacct"] = ("primary", "bully", "client", "lender")
    for tree, names in members.items():
        for group in (folder(tree), *(folder(tree, name) for name in names)):
            group.mkdir()
    mems = (CGROUPS / "cpuset/cpuset.mems").read_text("ascii")
    for name, own in (("", cpus), ("primary", cpus), ("bully", bully_cpus)):
        put(folder("cpuset", name) / "cpuset.mems", mems)
        put(folder("cpuset", name) / "cpuset.cpus", own)
    put(folder("cpu") / "cpu.shares", str(GROUP_SHARES))


class Processes:
    """What a run started."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.all: list[subprocess.Popen[str]] = []
        self.libc = ctypes.CDLL(None)

    def start(self, name: str, command: Sequence[str], trees: Sequence[str], *, talks: bool = False) -> subprocess.Popen[str]:
        """In the group `name` of these trees; its end is that of this process."""
        doors = [folder(tree, name) / "cgroup.procs" for tree in trees]

        def enter() -> None:
            for door in doors:
                door.write_text("0", encoding="ascii")
            self.libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

        pipe = subprocess.PIPE if talks else subprocess.DEVNULL
        with (self.out / f"{name}.log").open("w", encoding="utf-8") as log:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=pipe,
                    stdout=pipe,
                    stderr=log,
                    text=True,
                    preexec_fn=enter,
                    cwd=self.out,
                    start_new_session=True,
                )
            except OSError as e:
                fail(f"{command[0]} does not start: {e.strerror}")
        self.all.append(process)
        return process

    def last_words(self, name: str) -> str:
        lines = (self.out / f"{name}.log").read_text("utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    def end(self) -> None:
        for process in self.all:
            if process.stdin:
                # What ended by itself cannot be told.
                with contextlib.suppress(OSError):
                    process.stdin.close()
        sweep()
        for process in self.all:
            process.kill()
            process.wait()


def until(true: Any, what: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            fail(f"{what} after {seconds:g} s")
        time.sleep(PAUSE_S)


def serves() -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT), timeout=1):
        return True
    return False


# ---------------------------------------------------------------- one run


@dataclass(frozen=True)
class Setup:
    """What all runs of a folder have in common."""

    policies: tuple[str, ...]
    threads: int
    seconds: float
    warm_up: float
    poll_us: int
    client_cpu: int
    connections: int
    value_bytes: int
    spin_us: int
    rps: float
    # That of memcached alone at this rate, when it was chosen; None: the rate was given.
    calibrated_cpu: float | None = None


@dataclass(frozen=True)
class Bed:
    binaries: Path
    out: Path
    bully: Path
    cpus: str


def machine_ticks() -> tuple[int, int]:
    """Busy and stolen time of all CPUs, in ticks."""
    user, nice, system, _, _, irq, soft, steal = map(int, Path("/proc/stat").read_text("ascii").split("\n")[0].split()[1:9])
    return user + nice + system + irq + soft, steal


@dataclass(frozen=True)
class Moment:
    at_s: float
    cpu_s: dict[str, float]
    busy_s: float
    stolen_s: float
    lender: dict[str, Any]


NO_LENDER: dict[str, Any] = dict.fromkeys(
    ("at_us", "lent_us", "looks", "late", "latest_us", "moves", "moves_us", "longest_move_us", "exhausted", "stops"), 0
) | {"busy": [0, 0, 0], "by_files": False}


def moment(processes: Processes, lender: subprocess.Popen[str] | None) -> Moment:
    said = NO_LENDER
    if lender and lender.stdin and lender.stdout:
        with contextlib.suppress(BrokenPipeError):
            lender.stdin.write("\n")
            lender.stdin.flush()
        line = lender.stdout.readline()
        if not line:
            fail(f"the policy ended: {processes.last_words('lender')}")
        said = json.loads(line)
    used = {
        n: int((folder("cpuacct", n) / "cpuacct.usage").read_text("ascii")) * 1e-9
        for n in ("primary", "bully", "client", "lender")
    }
    tick = os.sysconf("SC_CLK_TCK")
    busy, stolen = machine_ticks()
    return Moment(time.monotonic(), used, busy / tick, stolen / tick, said)


def measured_from(processes: Processes, client: subprocess.Popen[str]) -> float:
    """When the client's warm-up ends, on the monotonic clock. Its control socket knows."""
    path = processes.out / "load.sock"
    until(lambda: path.exists() or client.poll() is not None, "the client has no control socket")
    if client.poll() is not None:
        fail(f"the client ended: {processes.last_words('client')}")
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        here = Path.cwd()
        os.chdir(processes.out)  # a socket's path is short
        try:
            # A file that is there may not be listened at yet.
            until(lambda: s.connect_ex("load.sock") == 0, "the client does not answer")
        finally:
            os.chdir(here)
        s.sendall(b"status\n")
        answer = s.recv(200).decode()
    match = re.match(r"ok (-?[\d.]+) s", answer)
    if not match:
        fail(f"the client answers {answer.strip()!r}")
    return time.monotonic() - float(match[1])


def run(bed: Bed, setup: Setup, policy: str, rps: float, seconds: float, number: int = 0, place: int = 0) -> Row:
    """A fresh memcached, bully and client under one policy. Nothing of them is left afterwards."""
    processes = Processes(bed.out)
    lends = policy not in WITHOUT_US
    second = bed.cpus.split(",")[1]
    (bed.out / "load.sock").unlink(missing_ok=True)
    try:
        make(second if lends else bed.cpus, bed.cpus)
        if policy == "shares":
            put(folder("cpu", "bully") / "cpu.shares", str(LEAST_SHARES))
        if policy == "idle":
            put(folder("cpu", "bully") / "cpu.idle", "1")
        memory = ["-u", "nobody", "-l", "127.0.0.1", "-p", str(PORT), "-U", "0", "-m", "128", "-c", "4096"]
        server = processes.start("primary", ["memcached", "-t", str(setup.threads), *memory], ("cpuset", "cpu", "cpuacct"))
        until(lambda: serves() or server.poll() is not None, "memcached does not answer")
        if server.poll() is not None:
            fail(f"memcached ended: {processes.last_words('primary')}")
        if policy != "alone":
            before = ["chrt", "--idle", "0"] if policy == "idle" else []
            spin = [*before, str(bed.bully), "hog", "--threads", "2"]
            processes.start("bully", spin, TREES)
            until(lambda: "ready" in (bed.out / "bully.log").read_text("utf-8"), "the bully does not spin")
        lender = None
        if lends:
            state = folder("freezer", "bully") / "freezer.state"
            put(state, "FROZEN")
            until(lambda: state.read_text("ascii").strip() == "FROZEN", "the bully cannot be frozen")
            # Before memcached and the client: a look that comes late sees nothing.
            names = [f"/{GROUP}/primary", f"/{GROUP}/bully", str(setup.poll_us)]
            # Pinned to the CPU that may be lent: where a look is taken no thread of memcached is seen to run.
            lookout = ["taskset", "--cpu-list", second, "chrt", "--fifo", "2", str(bed.binaries / "examples/lend_two_cpus")]
            look = [*lookout, policy, *names]
            lender = processes.start("lender", look, ("cpuacct",), talks=True)
        load = [
            "--target",
            f"127.0.0.1:{PORT}",
            "--rps",
            f"{rps:.0f}",
            "--duration",
            f"{seconds:g}s",
            "--warmup",
            f"{setup.warm_up:g}s",
        ]
        load += ["--connections", str(setup.connections), "--value-bytes", str(setup.value_bytes), "--cpu", str(setup.client_cpu)]
        load += ["--spin-us", str(setup.spin_us)]
        load += ["--seed", str(max(number, 1)), "--control", "load.sock", "--out", "load.json", "--overwrite", "--json"]
        client = processes.start("client", [str(bed.binaries / "surefoot-loadgen"), *load], ("cpuacct",))
        begin = measured_from(processes, client)
        time.sleep(max(0.0, begin - time.monotonic()))
        first = moment(processes, lender)
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        last = moment(processes, lender)
        until(lambda: client.poll() is not None, "the client does not end", 30)
        if client.returncode != 0:
            fail(f"the client failed: {processes.last_words('client')}")
        report = json.loads((bed.out / "load.json").read_text("utf-8"))
    finally:
        processes.end()
    return as_row(report, first, last, (number, place, policy))


def as_row(report: dict[str, Any], first: Moment, last: Moment, which: tuple[int, int, str]) -> Row:
    span = last.at_s - first.at_s
    cpu = {name: (last.cpu_s[name] - first.cpu_s[name]) / span for name in last.cpu_s}
    busy = (last.busy_s - first.busy_s) / span

    def more(name: str) -> int:
        return int(last.lender[name] - first.lender[name])

    seen = [b - a for a, b in zip(first.lender["busy"], last.lender["busy"], strict=True)]
    number, place, policy = which
    return Row(
        round=number,
        place=place,
        policy=policy,
        rps=report["achieved_rps"],
        primary_cpu=cpu["primary"],
        in_band=BAND[0] <= cpu["primary"] <= BAND[1],
        client_cpu=cpu["client"],
        lender_cpu=cpu["lender"],
        harvested_cpu=cpu["bully"],
        other_cpu=max(0.0, busy - sum(cpu.values())),
        stolen_cpu=(last.stolen_s - first.stolen_s) / span,
        p50_ms=report["response_time"]["p50"]["value_ms"],
        p99_ms=report["response_time"]["p99"]["value_ms"],
        verdict=report["verdict"]["kind"],
        lent_cores=more("lent_us") / max(more("at_us"), 1),
        looks=more("looks"),
        idle_looks=seen[0],
        one_busy_looks=seen[1],
        late_looks=more("late"),
        latest_ms=last.lender["latest_us"] * 1e-3,
        moves=more("moves"),
        move_ms=more("moves_us") * 1e-3 / max(more("moves"), 1),
        longest_move_ms=last.lender["longest_move_us"] * 1e-3,
        exhausted=more("exhausted"),
        stops=more("stops"),
        by_files=last.lender["by_files"],
    )


def calibrate(bed: Bed, setup: Setup, start: float) -> tuple[float, float]:
    """The rate at which memcached alone uses about 65 % of a CPU, and what it used."""
    rps = start
    for attempt in range(1, 9):
        row = run(bed, setup, "alone", rps, CALIBRATE_S)
        used = f"memcached {row.primary_cpu:.3f} of a CPU, client {row.client_cpu:.3f}, others {row.other_cpu:.3f}"
        say(f"calibration {attempt}: {rps:.0f} rps, {used}, {row.verdict}")
        if abs(row.primary_cpu - WANTED_CPU) <= NEAR:
            return round(rps), row.primary_cpu
        # A server that is far behind uses as much at any rate.
        rps *= min(max(WANTED_CPU / max(row.primary_cpu, 0.01), 0.3), 3.0)
    if BAND[0] <= row.primary_cpu <= BAND[1]:
        return round(rps), row.primary_cpu
    last = f"the last gave {row.primary_cpu:.0%}"
    fail(f"no rate gives memcached {WANTED_CPU:.0%} of a CPU: {last}. Quiet the machine, or give --rps")


# ---------------------------------------------------------------- all runs


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def agreed(out: Path, wanted: Setup, has_rps: bool) -> Setup | None:
    """The setup of an earlier start in this folder, if it is the same."""
    path = out / "setup.json"
    if not path.exists():
        if (out / "rows.csv").exists():
            fail(f"{path} is missing, so what {out}/rows.csv is of is not known. Give another folder")
        return None
    try:
        had = json.loads(path.read_text("utf-8"))
        then = Setup(**(had | {"policies": tuple(had["policies"])}))
    except (ValueError, TypeError, KeyError) as e:
        fail(f"{path} is no setup of this script: {e}. Give another folder")
    for name, value in asdict(wanted).items():
        if name == "calibrated_cpu" or (name == "rps" and not has_rps):
            continue
        if (was := getattr(then, name)) != value:
            fail(f"{out} has runs of {name.replace('_', '-')} {was}, not {value}. Give another folder")
    return then


def prepared(bed: Bed) -> None:
    """The repository's own CPU bully, compiled here once."""
    if bed.bully.exists():
        return
    say("compiling the bully (workloads/batch)")
    sources = sorted(str(p) for p in (REPO / "workloads/batch").glob("*.cpp"))
    made = bed.bully.with_suffix(".new")
    command = ["g++", "-std=c++20", "-O3", "-pthread", f"-I{REPO}/workloads/toolchain/include", "-o", str(made), *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"the bully is not compiled: {(done.stderr.strip() or 'g++ said nothing').splitlines()[0]}")
    made.rename(bed.bully)


def checked(args: argparse.Namespace) -> None:
    """What must be right before anything is started."""
    known = [p for p in args.policies if p in WITHOUT_US or LENDS.fullmatch(p)]
    if wrong := [p for p in args.policies if p not in known]:
        fail(f"policy {wrong[0]!r} is unknown. Choose from: {', '.join(POLICIES)}")
    if len(set(args.policies)) < len(args.policies):
        fail("a policy is named twice")
    if BASE not in args.policies:
        fail(f"--policies without {BASE}: ratios are to it. Name it, too")
    least = {
        "rounds": 1,
        "threads": 1,
        "seconds": 1,
        "warm_up": 0.1,
        "poll_us": 50,
        "connections": 1,
        "value_bytes": 1,
        "spin_us": 0,
    }
    for name, low in least.items():
        if not getattr(args, name) >= low:
            fail(f"--{name.replace('_', '-')} is {getattr(args, name):g}. Give {low} or more")
    if args.rps is not None and not 1 <= args.rps <= 1e6:
        fail(f"--rps is {args.rps:g}. Give 1 to 1000000")


def host(args: argparse.Namespace) -> str:
    """Its two CPUs, as a list."""
    if os.geteuid() != 0:
        fail("groups and real-time priority need root. Run it as root")
    for tree in TREES:
        if not (CGROUPS / tree / "cgroup.procs").exists():
            fail(f"{CGROUPS}/{tree} is not mounted: cgroups of version 1 with {', '.join(TREES)} are needed")
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) != 2:
        fail(f"this process may use {len(cpus)} CPUs. Run it on two (taskset)")
    if args.client_cpu not in cpus:
        fail(f"--client-cpu is {args.client_cpu}. Choose from {cpus[0]} and {cpus[1]}")
    for tool in ("memcached", "chrt", "taskset", "g++"):
        if not shutil.which(tool):
            fail(f"{tool} is not there. Install it")
    for name, how in (
        ("surefoot-loadgen", "-p surefoot-loadgen"),
        ("examples/lend_two_cpus", "-p surefootd --example lend_two_cpus"),
    ):
        if not (args.binaries / name).is_file():
            fail(f"{args.binaries / name} is not there: cargo build --release --locked {how}")
    return ",".join(map(str, cpus))


@contextlib.contextmanager
def alone_here() -> Iterator[None]:
    """One at a time; and whatever ends this process, a second one cleans up after it."""
    with LOCK.open("w", encoding="ascii") as lock:
        end = time.monotonic() + 15
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    fail("another one runs on this machine. Wait for its end")
                time.sleep(0.2)
        sweep()
        # It holds the lock as long as it lives, so that the next one does not begin before.
        watch = [sys.executable, __file__, "--clean-up-after"]
        guard = subprocess.Popen(watch, stdin=subprocess.PIPE, pass_fds=[lock.fileno()], start_new_session=True)
        try:
            yield
        finally:
            sweep()
            if guard.stdin:
                guard.stdin.close()
            guard.wait()


def measure(args: argparse.Namespace, out: Path, wanted: Setup, cpus: str) -> None:
    bed = Bed(args.binaries.resolve(), out, out / "batch", cpus)
    prepared(bed)
    setup = agreed(out, wanted, args.rps is not None)
    if setup is None:
        setup = wanted
        if args.rps is None:
            rps, used = calibrate(bed, wanted, wanted.rps)
            setup = Setup(**(asdict(wanted) | {"rps": rps, "calibrated_cpu": round(used, 4)}))
        (out / "setup.json").write_text(json.dumps(asdict(setup), indent=2) + "\n", "utf-8")
    rows = out / "rows.csv"
    done = {(int(r["round"]), r["policy"]) for r in read_rows(rows)}
    todo = [(n, place, p) for n in range(1, args.rounds + 1) for place, p in enumerate(order(setup.policies, n), 1)]
    todo = [t for t in todo if (t[0], t[2]) not in done]
    begun = time.monotonic()
    for ran, (n, place, policy) in enumerate(todo, 1):
        row = run(bed, setup, policy, setup.rps, setup.seconds, n, place)
        append(rows, row)
        left_min = (time.monotonic() - begun) / ran * (len(todo) - ran) / 60
        tail = "unknown" if row.p99_ms is None else f"{row.p99_ms:.3f} ms"
        band = "" if row.in_band else " (not in 50..80 %)"
        say(
            f"round {n} of {args.rounds}, {policy}: p99 {tail}, {row.verdict}, memcached {row.primary_cpu:.2f}{band}, "
            f"client {row.client_cpu:.2f}, harvested {row.harvested_cpu:.2f} CPU; {left_min:.0f} min left"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=8.0, help="measured time of a run")
    parser.add_argument("--warm-up", type=float, default=3.0, help="before that; a learner lends nothing in its first second")
    parser.add_argument("--threads", type=int, default=2, help="of memcached")
    parser.add_argument("--rps", type=float, help="instead of a calibration")
    parser.add_argument("--policies", default=",".join(POLICIES), type=lambda text: tuple(text.split(",")))
    parser.add_argument("--poll-us", type=int, default=200, help="between two looks, asleep")
    parser.add_argument("--client-cpu", type=int, default=1)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--spin-us", type=int, default=0, help="of the client, before it sends: takes the CPU that is lent")
    parser.add_argument("--table", action="store_true", help="only the table of the rows that are there")
    args = parser.parse_args()
    checked(args)
    out = args.out.resolve()
    if args.table:
        if not (rows := read_rows(out / "rows.csv")):
            fail(f"{out}/rows.csv has no rows yet")
        print(table(rows, args.policies), end="")
        return
    cpus = host(args)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        fail(f"{out}: {e.strerror}. Give a folder")
    wanted = Setup(
        policies=args.policies,
        threads=args.threads,
        seconds=args.seconds,
        warm_up=args.warm_up,
        poll_us=args.poll_us,
        client_cpu=args.client_cpu,
        connections=args.connections,
        value_bytes=args.value_bytes,
        spin_us=args.spin_us,
        rps=args.rps or 16_000.0,
    )
    agreed(out, wanted, args.rps is not None)
    read_rows(out / "rows.csv")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Else the two looks at CPU time would come late beside spinning threads. What it starts is ordinary again.
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(3))
    with alone_here():
        if serves():
            fail(f"port {PORT} is taken. End what answers there")
        measure(args, out, wanted, cpus)
    text = table(read_rows(out / "rows.csv"), args.policies)
    (out / "table.md").write_text(text, "utf-8")
    print(text, end="")


if __name__ == "__main__":
    if sys.argv[1:] == ["--clean-up-after"]:
        # Its end of the pipe closes whatever ends the process at the other.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.stdin.read()
        sweep()
        sys.exit(0)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
