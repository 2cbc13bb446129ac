"""How a campaign stands: what `surefoot campaign status` shows, and the little of its files that this takes.

`status` is asked again and again, by people and by scripts, so this module and what it imports are the standard library's
cheapest parts: the command answers in the time that Python takes to start. Everything else is imported where a folder needs it.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
from collections import Counter, namedtuple
from pathlib import Path

from pipelines import inputs
from pipelines.inputs import Unreadable, shown
from pipelines.manifest import MANIFEST, MARKS, SCHEMA_VERSION, STATES, Facts, facts, is_count

from .errors import DataSetError, of_a_data_set
from .layout import (
    COPY,
    HOSTS,
    HOSTS_FILE,
    JOURNAL,
    PROGRESS,
    SHARDS,
    Counts,
    a_folder,
    common_number,
    failures,
    first_again,
    is_host_name,
    read_json,
    shard_file,
    shard_number,
    whole_blocks,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs as much as reading the manifests
    from collections.abc import Iterator
    from typing import Any, TextIO

# of the rows that are not overloaded, on a quiet machine
_GOOD_SHARE = 0.8
# a line that stands for several cases, which were not measured (docs/sweep-output.md)
_TALLY = re.compile(rb'"state":"([a-z-]+)"[^\n]*"cases":(\d{1,18})(?!\d)')


def count(folder: Path, planned: int, told: tuple[int, dict[str, int]] | None = None) -> Counts:
    """Cases by state, from the journal.

    Args:
        told: how much of the journal the manifest has counted, and what it found; only what came since is read. Without it
            everything is (bytes are scanned: a fraction of a second for a million lines).
    """
    by_state, lines = dict.fromkeys(STATES, 0), 0
    more: Counter[str] = Counter()
    start = 0
    if told is not None and 0 < told[0] <= _size(folder / JOURNAL):
        start = told[0]
        more.update(told[1])
    for block in whole_blocks(folder, start):
        lines += block.count(b"\n")
        for s in STATES:
            by_state[s] += block.count(b'"state":"%s"' % s.encode())
        for state, cases in _TALLY.findall(block) if b'"cases":' in block else ():
            more[state.decode()] += int(cases) - 1
    if sum(by_state.values()) != lines:
        # spelt otherwise than `surefootd` does, or damaged: read it properly
        from .dataset import read_journal

        by_state, more = read_journal(folder).by_state(), Counter()
    by_state = {s: n + more[s] for s, n in by_state.items()}
    return Counts(planned, **{s.replace("-", "_"): n for s, n in by_state.items()})


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class Worth(namedtuple("Worth", ["rows_by_worth", "of"])):
    """What the rows of a target are worth (worth.py). rows_by_worth: they add up to its rows. of: digest of what was counted."""

    __slots__ = ()

    def as_json(self) -> dict[str, Any]:
        """As DIR/manifest.json and DIR/progress.json keep it."""
        return {"usable_rows": self.rows_by_worth["usable"], "rows_by_worth": self.rows_by_worth, "counted_of": self.of}


def digest(folder: Path) -> str:
    """Of a target's manifest, which names every shard's and says how much of the journal it has counted; "" if there is none."""
    try:
        data = inputs.read_bytes(folder / MANIFEST, inputs.SUMMARY_BYTES)
    except (OSError, Unreadable):
        return ""
    from hashlib import sha256

    return sha256(data).hexdigest()


def kept_worth(value: Any) -> Worth | None:
    """What `Worth.as_json` made; None if it is nothing of the kind."""
    found = value.get("rows_by_worth") if isinstance(value, dict) else None
    if not isinstance(found, dict) or "usable" not in found or not isinstance(value.get("counted_of"), str):
        return None
    numbers = list(found.values())
    if not all(map(is_count, numbers)) or value.get("usable_rows") != found["usable"]:
        return None
    return Worth({str(name): n for name, n in found.items()}, value["counted_of"])


def _worth(folder: Path, kept: list[Worth | None], running: bool) -> dict[str, int]:
    """What the rows of a target are worth: as kept, else counted anew. While a run works here the last count is good enough."""
    known = [k for k in kept if k is not None]
    if not (folder / MANIFEST).exists():
        return {"usable": 0}
    now = digest(folder)
    for k in known:
        if k.of == now:
            return k.rows_by_worth
    if running and known:
        return known[0].rows_by_worth
    from . import dataset, worth

    return worth.of(folder, dataset.read_manifest(folder))


def usable_in_words(rows_by_worth: dict[str, int]) -> str:
    """How many rows are usable, and what the others are: "600 of 800 rows usable (75 %); 150 disturbed, 50 server-overloaded"."""
    usable, rows = rows_by_worth["usable"], sum(rows_by_worth.values())
    if not rows:
        return "no rows"
    # 999 of 1,000 are not all of them
    share = 100 * usable // rows if usable else 0
    others = ", ".join(f"{n:,} {name}" for name, n in rows_by_worth.items() if n and name != "usable")
    return f"{usable:,} of {counted(rows, 'row')} usable ({share} %)" + (f"; {others}" if others else "")


def usable_colour(rows_by_worth: dict[str, int]) -> str:
    """red where no row is usable, yellow where the measuring lost too many, green else. What is overloaded was measured well."""
    rows, overloaded = sum(rows_by_worth.values()), rows_by_worth.get("server-overloaded", 0)
    if not rows:
        return ""
    if not rows_by_worth["usable"]:
        return "red"
    return "green" if rows_by_worth["usable"] >= _GOOD_SHARE * (rows - overloaded) else "yellow"


def _facts(folder: Path) -> Facts:
    """Of a manifest.

    Raises:
        DataSetError: it cannot be used.
    """
    if found := facts(folder):
        return found
    from pipelines import manifest_fields

    with of_a_data_set():
        return manifest_fields.facts(folder)


def read_split(folder: Path) -> tuple[str, str, list[str]] | None:
    """DIR/hosts/hosts.json: the job's name, the group, and its hosts by their parts; None if there is none.

    Raises:
        DataSetError: it is damaged.
    """
    path, remedy = folder / HOSTS / HOSTS_FILE, "restore it from a copy, or start with another --out"
    if not path.exists():
        return None
    value = read_json(path, remedy)
    try:
        if value["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version {value['schema_version']!r} is not {SCHEMA_VERSION}")
        hosts = [str(h) for h in value["hosts"]]
        if bad := [h for h in hosts if not is_host_name(h)]:
            raise ValueError(f"{shown(bad[0])[:100]!r} cannot be the name of a host")
        if again := first_again(hosts):
            raise ValueError(f"hosts names {again} twice")
        return str(value["job"]), a_folder(str(value["group"]), "group"), hosts
    except (KeyError, TypeError, ValueError) as e:
        raise DataSetError(f"{path}: corrupt: {e}; {remedy}") from e


def _hosts(folder: Path, target: str) -> list[dict[str, Any]]:
    """What is here of each host of a group: its part, its cases by its own manifest as last fetched, its shards here."""
    split = read_split(folder)
    if split is None or split[1] != target:
        return []
    hosts, told = split[2], []
    data = folder / target / SHARDS
    here = set(os.listdir(data)) if data.is_dir() else set()
    for number, host in enumerate(hosts, start=1):
        own = folder / HOSTS / host
        facts = _facts(own) if (own / MANIFEST).exists() else None
        numbers = [n for n in map(shard_number, facts.files) if n is not None] if facts else []
        held = sum(os.path.basename(shard_file(common_number(n, number, len(hosts)))) in here for n in numbers)
        told.append(
            {
                "host": host,
                "part": f"{number}/{len(hosts)}",
                "done": sum(facts.cases.values()) if facts else 0,
                "planned": facts.planned if facts else None,
                "complete": facts is not None and facts.complete and held == len(facts.files),
                "shards": held,
                "shards_there": len(facts.files) if facts else 0,
            }
        )
    return told


def read_note(path: Path) -> dict[str, dict[str, Any]]:
    """Rate, time left and worth of each target. A hint only: what is missing or no number is unknown."""
    try:
        value = inputs.read_json(path)
    except (OSError, Unreadable):
        return {}
    notes = value if isinstance(value, dict) else {}
    return {target: _numbers(note) for target, note in notes.items() if isinstance(note, dict)}


def _numbers(note: dict[str, Any]) -> dict[str, Any]:
    found = {name: note.get(name) for name in ("rate_per_s", "eta_s")}
    known = {name: n for name, n in found.items() if isinstance(n, int | float) and 0 <= n < 1e12}
    return {**{name: known.get(name) for name in found}, "worth": kept_worth(note.get("worth"))}


def _rebuild(folder: Path) -> str:
    """The remedy for a damaged DIR/manifest.json. A run that was killed in its first instant left no copy of the campaign."""
    what, file = ("rebuild it", quoted(folder / COPY)) if (folder / COPY).exists() else ("start one", "CAMPAIGN.toml")
    return f"{what}: surefoot campaign run {file} --out {quoted(folder)}"


def read_summary(folder: Path) -> dict[str, Any]:
    """DIR/manifest.json of a campaign's folder.

    Raises:
        DataSetError: there is none, or it is damaged.
    """
    if not folder.is_dir():
        raise DataSetError(f"{folder}: no such folder. Start one: surefoot campaign run CAMPAIGN.toml --out {quoted(folder)}")
    rebuild = _rebuild(folder)
    summary = read_json(folder / MANIFEST, rebuild)
    if summary.get("schema_version") == SCHEMA_VERSION and "targets" not in summary and "shards" in summary:
        raise DataSetError(
            f"{folder}: is the data set of one target, not a campaign's folder. Name the folder above it; for one that "
            f"`surefootd sweep` made alone: surefoot campaign verify {quoted(folder)}"
        )
    targets = summary.get("targets")
    if summary.get("schema_version") != SCHEMA_VERSION or not isinstance(targets, list):
        wrong = (
            "targets is no list"
            if summary.get("schema_version") == SCHEMA_VERSION
            else f"schema_version is {summary.get('schema_version')!r} (this version reads {SCHEMA_VERSION})"
        )
        raise DataSetError(f"{folder / MANIFEST}: {wrong}; {rebuild}")
    if not isinstance(summary.get("campaign"), str):
        raise DataSetError(f"{folder / MANIFEST}: campaign is missing or no text; {rebuild}")
    return summary


def summed_up(summary: dict[str, Any]) -> dict[str, Worth | None]:
    """What DIR/manifest.json says of each target's rows; None where it says nothing that can be used."""
    entries = [t for t in summary["targets"] if isinstance(t, dict)]
    return {str(t.get("name")): kept_worth(t.get("worth")) for t in entries}


def each(folder: Path) -> Iterator[tuple[str, Path, int]]:
    """Name, folder and planned cases of each target of a data set.

    Raises:
        DataSetError: it is damaged: also where a target or a folder is named twice, or the folder is not within the data set.
    """
    found = []
    for target in read_summary(folder)["targets"]:
        try:
            name, of_it = a_folder(str(target["name"]), "name"), a_folder(str(target["folder"]), "folder")
            planned = target["cases"]["planned"]
            if type(planned) is not int or planned < 0:
                raise ValueError("cases.planned is no number of cases")
            found.append((name, of_it, planned))
        except (KeyError, TypeError, ValueError) as e:
            wrong = (
                f"{e} is missing" if isinstance(e, KeyError) else "an entry is no table" if isinstance(e, TypeError) else str(e)
            )
            raise DataSetError(f"{folder / MANIFEST}: targets: {wrong}; {_rebuild(folder)}") from e
    for field, names in (("name", [f[0] for f in found]), ("folder", [f[1] for f in found])):
        if again := first_again(names):
            raise DataSetError(f'{folder / MANIFEST}: targets: {field} "{shown(again)[:100]}" is there twice; {_rebuild(folder)}')
    yield from ((name, folder / of_it, planned) for name, of_it, planned in found)


def status(folder: Path) -> dict[str, Any]:
    """Cases by state, usable rows, rate and ETA of each target, and the failed cases with their reasons.

    Raises:
        DataSetError: `folder` is not a campaign's.
    """
    summary = read_summary(folder)
    running = is_running(folder)
    told, kept = read_note(folder / PROGRESS), summed_up(summary)
    targets, counts = [], []
    for name, path, planned in each(folder):
        started = (path / MANIFEST).exists()
        manifest = _facts(path) if started else None
        hosts = _hosts(folder, name)
        known = manifest and (manifest.journal_bytes, manifest.cases)
        if manifest and hosts and manifest.journal_bytes != _size(path / JOURNAL):
            known = None  # a merge writes another journal, which does not begin as the one that this manifest counted
        found = count(path, planned, known)
        note = told.get(name, {})
        rows = _worth(path, [note.get("worth"), kept.get(name)], running)
        counts.append(found)
        targets.append(
            {
                "target": name,
                "folder": str(path),
                "cases": found.as_json(),
                "rows": sum(rows.values()),
                "usable_rows": rows["usable"],
                "rows_by_worth": rows,
                "shards": len(manifest.files) if manifest else 0,
                # as of the last checkpoint, which is seconds ago
                "marks": manifest.marks if manifest else dict.fromkeys(MARKS, 0),
                "feature_set": manifest.feature_set if manifest else None,
                "rate_per_s": note.get("rate_per_s"),
                "eta_s": note.get("eta_s") if running and found.pending else None,
                "failed": failures(path) if found.failed else [],
                "hosts": hosts,
            }
        )
    total = Counts.total(counts)
    return {
        "campaign": summary["campaign"],
        "folder": str(folder),
        "state": "running" if running else "done" if total.pending == 0 else "stopped",
        "cases": total.as_json(),
        "rows": sum(t["rows"] for t in targets),
        "usable_rows": sum(t["usable_rows"] for t in targets),
        "targets": targets,
    }


def is_running(folder: Path) -> bool:
    """Whether a `campaign run` holds the folder's lock."""
    try:
        # a link is not followed, a FIFO not waited for
        fd = os.open(folder / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def duration(seconds: float | None) -> str:
    """A length of time as people say it."""
    if seconds is None:
        return "unknown"
    if seconds < 1:
        return "under 1 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, s = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {s:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def about(seconds: float | None) -> str:
    """An estimate of a length of time as people say it: "about 3 s", "under 1 s"."""
    text = duration(seconds)
    return "an unknown time" if seconds is None else text if seconds < 1 else f"about {text}"


def quoted(path: Path) -> str:
    """A path in a command that people are told to run: a shell takes it as one word, whatever is in it."""
    import shlex

    return shlex.quote(str(path))


def counted(number: int, noun: str) -> str:
    """How many of what: "1 shard", "2,022 rows"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def rate(per_s: float | None) -> str:
    """Cases per second; per minute where a second is too short."""
    if per_s is None:
        return "unknown"
    return f"{per_s:,.0f} cases/s" if per_s >= 10 else f"{per_s:.1f} cases/s" if per_s >= 1 else f"{per_s * 60:.1f} cases/min"


_COLOURS = {
    "measured": "",  # what it is worth, its rows say
    "infeasible": "dim",
    "client-limited": "yellow",
    "overloaded": "yellow",
    "failed": "red",
    "skipped": "dim",
    "pending": "cyan",
}
_ANSI = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def lines(state: dict[str, Any]) -> Iterator[list[tuple[str, str]]]:
    """What `status` found, for people: lines of (text, style). Styles: "", bold, dim, red, green, yellow, cyan."""
    yield [(str(state["campaign"]), "bold"), (f" in {state['folder']}: {state['state']}", "")]
    for target in state["targets"]:
        cases = target["cases"]
        line = [(target["target"], "bold"), (f": {cases['planned']:,} cases planned", "")]
        for name, colour in _COLOURS.items():
            if cases[name] or name in ("measured", "failed"):
                word = "to do" if name == "pending" else name
                line.append((f", {cases[name]:,} {word}", colour if cases[name] else ""))
        yield line
        worth = target["rows_by_worth"]
        yield [("    ", ""), (usable_in_words(worth), usable_colour(worth))]
        facts = [counted(target["shards"], "shard")]
        if target["rate_per_s"]:
            facts.append(rate(target["rate_per_s"]))
        if target["eta_s"] is not None:
            facts.append(f"{duration(target['eta_s'])} left")
        yield [(f"    {', '.join(facts)}", "dim")]
        marks = [f"{counted(n, 'case')} {mark}" for mark, n in target["marks"].items() if n]
        if marks:
            yield [("    marked in journal.jsonl: ", "yellow"), (", ".join(marks), "")]
        for host in target["hosts"]:
            planned = "nothing was fetched yet" if host["planned"] is None else f"{host['done']:,} of {host['planned']:,} cases"
            yield [(f"    {host['host']} (part {host['part']}): {planned}, {counted(host['shards'], 'shard')} here", "dim")]
        for reason in target["failed"]:
            yield [("    ", ""), ("failed", "red"), (f" {reason['cases']:,} × {reason['reason']}", "")]
            yield [(f"        cases {', '.join(reason['examples'])}", "dim")]


def show(state: dict[str, Any], out: TextIO) -> None:
    """Print what `status` found; with colours on a terminal."""
    coloured = out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    for line in lines(state):
        parts = (f"\x1b[{_ANSI[style]}m{shown(text)}\x1b[0m" if coloured and style else shown(text) for text, style in line)
        out.write("".join(parts) + "\n")


def main(folder: str, as_json: bool) -> None:
    """`surefoot campaign status`."""
    state = status(Path(folder))
    if as_json:
        sys.stdout.write(inputs.json_text(state) + "\n")
    else:
        show(state, sys.stdout)
