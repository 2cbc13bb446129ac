"""Policies in Python for `surefootd eval` and `surefootd run` (docs/python-policies.md).

A policy is a class with one method: what is seen goes in, a plan comes out.

    class Mine(Policy):
        def decide(self, seen: Observation) -> Plan | None: ...

    if __name__ == "__main__":
        run(Mine)

`python mine.py --socket DIR/mine.sock` listens, and `surefootd ... --policy socket:DIR/mine.sock` asks it. Nothing here is needed
beyond the standard library.
"""

from __future__ import annotations

import argparse
import json
import logging
import operator
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

__all__ = [
    "PROTOCOL",
    "Allocation",
    "Books",
    "Count",
    "Features",
    "Hello",
    "Hold",
    "Latency",
    "Observation",
    "Plan",
    "Policy",
    "Report",
    "Service",
    "WrongProtocol",
    "answer",
    "run",
    "serve",
]

PROTOCOL: Final = 1
"""Of the lines; both ends must speak the same."""

MOST_QUESTION_BYTES: Final = 16 << 20
"""Longest line that is read."""

Json = Mapping[str, Any]
T = TypeVar("T")

log = logging.getLogger("surefoot.policy")


class WrongProtocol(Exception):
    """What is at the other end of the socket is no surefootd, or one of another protocol."""


@dataclass(frozen=True, slots=True)
class Count:
    """Core units and LLC ways. A core unit is `Hello.core_unit_cores` cores: 1, or 0.1 on small hosts."""

    core_units: int
    ways: int


@dataclass(frozen=True, slots=True)
class Hold:
    """What one LC service is to hold.

    Attributes:
        core_units: count of core units.
        ways: count of LLC ways.
        mba_pct: memory bandwidth, % of full; None leaves it as it is.
        why: for people, at most 300 characters: `surefootd explain` shows it.
    """

    core_units: int
    ways: int
    mba_pct: int | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Word to the upper scheduler (docs/upper-scheduler.md): `kind` is "cannot-place" or "migrate"."""

    kind: str
    service: str
    why: str


@dataclass(frozen=True, slots=True)
class Latency:
    """Response times of one window, ms; None where a bound cannot be told. `verdict` is "valid" where p99 can be believed."""

    count: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p99_low_ms: float | None
    p99_high_ms: float | None
    achieved_rps: float
    errors: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Features:
    """What models are asked with; None where it is not measured, never 0. Units are in the names; MB is 2^20 bytes, MB/s 10^6."""

    ipc: float | None
    llc_misses_per_s: float | None
    mbl_mbps: float | None
    cpu_usage_cores: float | None
    virt_mem_mb: float | None
    res_mem_mb: float | None
    alloc_cores: float | None
    alloc_ways: float | None
    alloc_cache_mb: float | None
    core_freq_mhz: float | None
    nb_cores: float | None
    nb_cache_mb: float | None
    nb_mbl_mbps: float | None


@dataclass(frozen=True, slots=True)
class Allocation:
    """What is in force of one service.

    Attributes:
        cpus: a CPU list such as "0-3,8".
        shared_cpus: those of them that others may use, too.
        quota_cores: CPU quota; None: none.
        ways: a mask of ways for each L3 domain.
        shared_ways: the ways of them that others may use, too.
        mba_pct: memory bandwidth, % of full.
        mem_limit_bytes: limit on memory; None: none.
        zswap_max_bytes: limit on compressed memory; None: none.
    """

    cpus: str
    shared_cpus: str
    quota_cores: float | None
    ways: tuple[int, ...]
    shared_ways: tuple[int, ...]
    mba_pct: int
    mem_limit_bytes: int | None
    zswap_max_bytes: int | None

    @property
    def cores(self) -> float:
        """Cores that it may use: the quota, else its CPUs."""
        return float(_cpus(self.cpus)) if self.quota_cores is None else self.quota_cores

    @property
    def n_ways(self) -> float:
        """LLC ways, the mean of the L3 domains."""
        return sum(mask.bit_count() for mask in self.ways) / max(len(self.ways), 1)


@dataclass(frozen=True, slots=True)
class Service:
    """One LC service or BE job that is here.

    Attributes:
        id: its name on this node.
        service: its name in the catalogue; several ids may share it.
        qos_target_ms: bound on p99; None for a BE job.
        threads: that it was started with.
        allocation: in force now.
        placed: False until a plan gives it something: until then it runs on everything, shared.
        features: of the last interval.
        feed: "fresh", "idle", "coarse", "unknown", "doubtful", or "not-needed" (a job).
        interval: latency of the last interval; None without completions.
        window: latency by which QoS is judged, of the last second or longer; None where `feed` says why.
        instr_per_s: instructions/s; the throughput of a BE job.
        memory: what it does with memory, by the names of docs/record-and-top.md; empty where nothing is known.
    """

    id: str
    service: str
    qos_target_ms: float | None
    threads: int
    allocation: Allocation
    placed: bool
    features: Features
    feed: str
    interval: Latency | None
    window: Latency | None
    instr_per_s: float | None
    memory: Json = field(default_factory=dict)

    @property
    def is_lc(self) -> bool:
        return self.qos_target_ms is not None

    @property
    def latency_unknown(self) -> bool:
        """Whether it is unknown if the target is met: the node takes nothing from such a service, whatever a plan says."""
        return self.is_lc and self.feed in ("unknown", "doubtful", "coarse")

    @property
    def qos(self) -> float | None:
        """Target / p99, 1 and more is met; None for a job and while it is unknown."""
        if self.latency_unknown or self.window is None or self.qos_target_ms is None:
            return None
        return self.qos_target_ms / max(self.window.p99_ms, 1e-9)


@dataclass(frozen=True, slots=True)
class Observation:
    """What is seen at one tick, and what the node holds the answers so far to mean.

    Attributes:
        seq: number of the question.
        t_ms: time, on a clock that starts with the run.
        services: all LC services and BE jobs that are here.
        held: what each LC service is to hold by the answers so far. A newcomer is not in it.
        crowd: LC services without anything of their own.
        be_mba_pct: memory bandwidth of the BE jobs, %.
        free: what can be handed out: idle, or with the BE jobs beyond the least that they keep.
        be_lacks: what the BE jobs lack of the least that they keep: they get it first of what is given up.
        refused: why the last answer was left out, whole; None: it was not.
        raw: the question as it came, for what has no attribute here.
    """

    seq: int
    t_ms: int
    services: tuple[Service, ...]
    held: Mapping[str, Hold]
    crowd: tuple[str, ...]
    be_mba_pct: int
    free: Count
    be_lacks: Count
    refused: str | None
    raw: Json

    @property
    def lc(self) -> tuple[Service, ...]:
        return tuple(s for s in self.services if s.is_lc)

    @property
    def be(self) -> tuple[Service, ...]:
        return tuple(s for s in self.services if not s.is_lc)

    def get(self, service_id: str) -> Service | None:
        return next((s for s in self.services if s.id == service_id), None)

    @classmethod
    def parse(cls, question: Json) -> Observation:
        """From a question of surefootd, such as `surefootd run` sends; fields that are not known here are passed over."""
        seen = question["seen"]
        return cls(
            seq=question["seq"],
            t_ms=seen["t_ms"],
            services=tuple(_service(s) for s in seen["services"]),
            held={sid: _known(Hold, h) for sid, h in question["held"].items()},
            crowd=tuple(question["crowd"]),
            be_mba_pct=question["be_mba_pct"],
            free=_known(Count, question["free"]),
            be_lacks=_known(Count, question["be_lacks"]),
            refused=question["refused"],
            raw=question,
        )


@dataclass(frozen=True, slots=True)
class Hello:
    """Who asks, and about what server.

    Attributes:
        protocol: `PROTOCOL`.
        version: of surefootd.
        role: "actor": what is decided is done; "shadow": it is compared; "eval": a trial.
        interval_ms: between two questions.
        limit_ms: time that an answer may take.
        seed: of the run, for whatever is drawn.
        core_unit_cores: cores in a core unit.
        total: core units and ways of the server.
        least: what an LC service holds at least.
        mba: `{"min_pct": ..., "step_pct": ...}`; None: the platform hands out no memory bandwidth.
        platform: its profile, as in docs/virtual-server-data.md.
        units: unit of each number in a question, by its path.
    """

    protocol: int
    version: str
    role: str
    interval_ms: int
    limit_ms: float
    seed: int
    core_unit_cores: float
    total: Count
    least: Count
    mba: Mapping[str, int] | None
    platform: Json
    units: Mapping[str, str]

    @classmethod
    def parse(cls, line: Json) -> Hello:
        """From the first line of a connection.

        Raises:
            WrongProtocol: it is another protocol's, or no greeting.
        """
        if line.get("surefoot") != "hello":
            raise WrongProtocol("what has connected does not greet as surefootd does")
        if line.get("protocol") != PROTOCOL:
            other = line.get("protocol")
            raise WrongProtocol(f"surefootd speaks protocol {other}, and this package {PROTOCOL}. Take both of one release")
        return _known(cls, {**line, "total": _known(Count, line["total"]), "least": _known(Count, line["least"])})


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be held from now on. A service that is not named keeps what it holds, and a newcomer stays unplaced.

    Attributes:
        hold: by id, for LC services; BE jobs hold together what is left.
        crowd: ids of newcomers that are to use what the BE jobs use, or else the largest holding.
        be_mba_pct: memory bandwidth of the BE jobs, %; None leaves it as it is.
        reports: word to the upper scheduler.
    """

    hold: Mapping[str, Hold] = field(default_factory=dict)
    crowd: Iterable[str] = ()
    be_mba_pct: int | None = None
    reports: Iterable[Report] = ()


class Policy:
    """Base class: one object for each connection, so that runs share nothing."""

    name: str = "policy"
    version: str | None = None

    def __init__(self, hello: Hello) -> None:
        self.hello = hello

    def decide(self, seen: Observation) -> Plan | None:
        """Called every interval; None changes nothing."""
        raise NotImplementedError


class Books:
    """Counts of one observation, to make a plan with: they refuse what does not fit, as the node would.

    books = Books(hello, seen)
    books.hold("web", core_units=4, ways=3)   # False, and nothing is changed, where that is not free
    return books.plan()
    """

    def __init__(self, hello: Hello, seen: Observation) -> None:
        self.least = hello.least
        self.held: dict[str, Count] = {sid: Count(h.core_units, h.ways) for sid, h in seen.held.items()}
        lacks = seen.be_lacks
        self._left = Count(seen.free.core_units - lacks.core_units, seen.free.ways - lacks.ways)
        self._hold: dict[str, Hold] = {}
        self._crowd: list[str] = []
        self._reports: list[Report] = []
        self._lc = {s.id for s in seen.lc}

    @property
    def free(self) -> Count:
        """What can still be handed out. BE jobs that have just come get the least that they keep first."""
        return Count(max(self._left.core_units, 0), max(self._left.ways, 0))

    def hold(self, sid: str, core_units: int, ways: int, *, mba_pct: int | None = None, why: str | None = None) -> bool:
        """Let an LC service hold so much. False, and nothing is changed, if it is not here, or too much or too little."""
        now = self.held.get(sid, Count(0, 0))
        left = Count(self._left.core_units + now.core_units - core_units, self._left.ways + now.ways - ways)
        small = core_units < self.least.core_units or ways < self.least.ways
        # What is only given up needs nothing free.
        lacks = (left.core_units < 0 and core_units > now.core_units) or (left.ways < 0 and ways > now.ways)
        if sid not in self._lc or small or lacks:
            return False
        self._left, self.held[sid] = left, Count(core_units, ways)
        self._hold[sid] = Hold(core_units, ways, mba_pct, why)
        return True

    def crowd(self, sid: str) -> None:
        """Let a newcomer use what the BE jobs use: there is nothing for it alone."""
        if sid in self._lc and sid not in self.held and sid not in self._crowd:
            self._crowd.append(sid)

    def report(self, kind: str, sid: str, why: str) -> None:
        self._reports.append(Report(kind, sid, why))

    def plan(self) -> Plan:
        return Plan(self._hold, self._crowd, reports=self._reports)


def answer(policy: Policy, question: Json) -> dict[str, Any]:
    """The answer of a policy to a question, as it goes over the socket. What a policy raises is an answer, too."""
    try:
        plan = policy.decide(Observation.parse(question))
        said = {} if plan is None else _said(plan)
        json.dumps(said, allow_nan=False)
    except Exception as e:
        log.exception("%s could not decide", policy.name)
        return {"seq": question["seq"], "error": f"{type(e).__name__}: {e}"[:300]}
    return {"seq": question["seq"], **said}


def serve(policy: Callable[[Hello], Policy], path: str | os.PathLike[str], *, stop: threading.Event | None = None) -> None:
    """Listen at `path` and answer every connection by a policy of its own, until `stop` is set.

    The folder of the socket is made, open to this user alone, where it is not there. A socket of a dead process is replaced.

    Args:
        policy: makes a policy, for instance its class. It is called with the greeting of each connection.
        path: of the socket; what `surefootd` is given behind "socket:".
        stop: ends it; None: it goes on until the process ends.

    Raises:
        OSError: the path is in use, or others can write to its folder.
    """
    at = Path(path).absolute()
    stop = stop or threading.Event()
    with _listen(at) as listener:
        listener.settimeout(0.2)
        log.info("listening at %s", at)
        inode = at.stat().st_ino
        try:
            while not stop.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                connection.settimeout(None)
                threading.Thread(target=_connection, args=(policy, connection), daemon=True).start()
        finally:
            # Whoever has taken the path over meanwhile keeps it.
            if at.exists() and at.stat().st_ino == inode:
                at.unlink()


def run(policy: Callable[[Hello], Policy]) -> None:
    """`serve`, as a program: `--socket PATH`, until SIGTERM or Ctrl-C."""
    about = policy.__doc__ or "A policy for surefootd."
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--socket", required=True, help="where to listen; surefootd is given socket:PATH")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    stop = threading.Event()
    for ends in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ends, lambda *_: stop.set())
    try:
        serve(policy, given.socket, stop=stop)
    except OSError as e:
        raise SystemExit(f"--socket {given.socket}: {e}") from e


def _listen(at: Path) -> socket.socket:
    at.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = at.parent.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        what = f"others can write to {at.parent}, and could answer in this policy's place"
        raise PermissionError(f"{what}. Run: chmod go-w {at.parent}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if at.is_socket():
            probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                probe.connect(str(at))
            except ConnectionRefusedError:
                at.unlink()
            else:
                raise OSError("another process listens there. Stop it, or give another path")
            finally:
                probe.close()
        elif at.exists():
            raise FileExistsError("is there and no socket. Remove it, or give another path")
        # What has its name listens already.
        made = at.with_name(f".{at.name}.{os.getpid()}")
        before = os.umask(0o177)
        try:
            listener.bind(str(made))
        finally:
            os.umask(before)
        listener.listen(64)
        made.rename(at)
    except BaseException:
        listener.close()
        raise
    return listener


def _connection(policy: Callable[[Hello], Policy], connection: socket.socket) -> None:
    """One connection, to its end."""
    mine: Policy | None = None
    try:
        with connection, connection.makefile("rb") as lines:
            while line := lines.readline(MOST_QUESTION_BYTES + 1):
                if not line.endswith(b"\n"):
                    return
                said = json.loads(line)
                if mine is None:
                    mine = policy(Hello.parse(said))
                    version = {} if mine.version is None else {"version": mine.version}
                    reply: dict[str, Any] = {"surefoot": "policy", "protocol": PROTOCOL, "name": mine.name, **version}
                else:
                    reply = answer(mine, said)
                connection.sendall(json.dumps(reply, allow_nan=False).encode() + b"\n")
    except (BrokenPipeError, ConnectionResetError):
        pass
    except WrongProtocol as e:
        log.error("%s", e)
    except Exception:
        log.exception("a connection has ended")


def _said(plan: Plan) -> dict[str, Any]:
    """A plan as it is sent: counts are whole numbers, of whatever type."""
    hold = {}
    for sid, h in plan.hold.items():
        one: dict[str, Any] = {"core_units": operator.index(h.core_units), "ways": operator.index(h.ways)}
        if h.mba_pct is not None:
            one["mba_pct"] = operator.index(h.mba_pct)
        if h.why is not None:
            one["why"] = h.why
        hold[sid] = one
    said: dict[str, Any] = {"hold": hold, "crowd": list(plan.crowd)}
    if plan.be_mba_pct is not None:
        said["be_mba_pct"] = operator.index(plan.be_mba_pct)
    reports = [{"report": r.kind, "service": r.service, "why": r.why} for r in plan.reports]
    return {**said, "reports": reports} if reports else said


def _service(raw: Json) -> Service:
    latency = {key: None if raw[key] is None else _known(Latency, raw[key]) for key in ("interval", "window")}
    a = raw["allocation"]
    allocation = _known(Allocation, {**a, "ways": tuple(a["ways"]), "shared_ways": tuple(a["shared_ways"])})
    target = raw["kind"].get("qos_target_ms")
    features = _known(Features, raw["features"])
    of = {"qos_target_ms": target, "allocation": allocation, "features": features, "feed": raw["feed"]["state"]}
    return _known(Service, {**raw, **latency, **of})


def _known(cls: Callable[..., T], raw: Json) -> T:
    """Of the fields that a class has; another version of surefootd may say more."""
    fields: Iterable[str] = cls.__dataclass_fields__  # type: ignore[attr-defined]
    return cls(**{key: raw[key] for key in fields if key in raw})


def _cpus(text: str) -> int:
    """CPUs in a list such as "0-3,8"."""
    ends = (part.partition("-") for part in text.split(",") if part)
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)
