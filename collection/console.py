"""What the commands print: tables and the progress bar."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from .verify import Result

_COLOURS = {
    "measured": "green",
    "infeasible": "dim",
    "client-limited": "yellow",
    "overloaded": "yellow",
    "failed": "red",
    "skipped": "dim",
    "pending": "cyan",
}


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


def counted(number: int, noun: str) -> str:
    """How many of what: "1 shard", "2,022 rows"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def size(count: float | None) -> str:
    """A number of bytes as people say it."""
    if count is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def rate(per_s: float | None) -> str:
    """Cases per second; per minute where a second is too short."""
    if per_s is None:
        return "unknown"
    return f"{per_s:,.0f} cases/s" if per_s >= 10 else f"{per_s:.1f} cases/s" if per_s >= 1 else f"{per_s * 60:.1f} cases/min"


def plain_table(columns: Iterable[tuple[str, bool]]) -> Table:
    """A table without a frame; columns are (name, numeric)."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, numeric in columns:
        table.add_column(name, justify="right" if numeric else "left", no_wrap=numeric)
    return table


class Progress:
    """A bar for each target: cases done of those planned, rate and time left, from `surefootd`'s progress lines."""

    def __init__(self, console: Console) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[left]}"),
            TextColumn("[yellow]{task.fields[trouble]}", markup=True),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        if self._tasks:
            self._bar.stop()

    def start(self, target: str, planned: int) -> None:
        """A target starts, or goes on. Hosts of a group have a line each."""
        self._bar.start()
        if target not in self._tasks:
            self._tasks[target] = self._bar.add_task(target, total=planned, rate="", left="", trouble="")

    def update(self, target: str, line: dict[str, Any]) -> None:
        """A progress line."""
        done, eta = line.get("done"), line.get("eta_s")
        if not isinstance(done, int):
            return
        self._bar.update(
            self._tasks[target],
            completed=done,
            rate=rate(line.get("rate_per_s")) if line.get("rate_per_s") else "",
            left=f"{duration(eta)} left" if eta else "",
            trouble=escape(str(line.get("trouble") or "")),
        )


def status(console: Console, state: dict[str, Any]) -> None:
    """Print what `campaign.status` found."""
    console.print(
        f"[bold]{state['campaign']}[/] in {escape(str(state['folder']))}: {state['state']}", highlight=False, soft_wrap=True
    )
    for target in state["targets"]:
        cases = target["cases"]
        line = Text.assemble((target["target"], "bold"), f": {cases['planned']:,} cases planned")
        for name, colour in _COLOURS.items():
            if cases[name] or name in ("measured", "failed"):
                word = "to do" if name == "pending" else name
                line.append(f", {cases[name]:,} {word}", style=colour if cases[name] else "")
        console.print(line, soft_wrap=True)
        facts = [f"{counted(target['rows'], 'row')} in {counted(target['shards'], 'shard')}"]
        if target["rate_per_s"]:
            facts.append(rate(target["rate_per_s"]))
        if target["eta_s"] is not None:
            facts.append(f"{duration(target['eta_s'])} left")
        console.print(f"    {', '.join(facts)}", style="dim", highlight=False, soft_wrap=True)
        for host in target["hosts"]:
            planned = "nothing was fetched yet" if host["planned"] is None else f"{host['done']:,} of {host['planned']:,} cases"
            text = f"    {escape(host['host'])} (part {host['part']}): {planned}, {counted(host['shards'], 'shard')} here"
            console.print(text, style="dim", highlight=False, soft_wrap=True)
        for reason in target["failed"]:
            console.print(f"    [red]failed[/] {reason['cases']:,} × {escape(reason['reason'])}", highlight=False, soft_wrap=True)
            console.print(f"        cases {escape(', '.join(reason['examples']))}", style="dim", highlight=False, soft_wrap=True)


def verification(console: Console, result: Result) -> None:
    """Print what `verify.verify` found."""
    for finding in result.findings:
        mark = "[red]bad[/]" if finding.severity == "error" else "[yellow]warning[/]"
        console.print(f"{mark} {escape(finding.file)}: {escape(finding.what)}", highlight=False, soft_wrap=True)
        console.print(f"    {escape(finding.remedy)}", style="dim", highlight=False, soft_wrap=True)
    if result.ok:
        console.print(
            f"[green]ok[/] {escape(str(result.folder))}: {counted(result.shards, 'shard')}, {counted(result.rows, 'row')}, "
            f"{counted(result.cases, 'case')}, all add up",
            highlight=False,
        )
        return
    console.print(f"{counted(len(result.findings), 'finding')} in {escape(str(result.folder))}", highlight=False)


def plan(console: Console, found: dict[str, Any]) -> None:
    """Print what `campaign.plan` found."""
    console.print(f"[bold]{found['campaign']}[/]: {found['cases']:,} cases; nothing was changed", highlight=False)
    for target in found["targets"]:
        infeasible = target["infeasible"]
        console.print(f"\n[bold]{target['target']}[/] (platform {target['platform']}, {target['strategy']})", highlight=False)
        table = plain_table([("service", False), ("cases", True)])
        for service, cases in target["by_service"].items():
            table.add_row(service, f"{cases:,}")
        console.print(table)
        for rule in infeasible["rules"]:
            console.print(f"infeasible: {rule['cases']:,} × {escape(rule['rule'])}", style="dim", highlight=False)
        console.print(
            f"to measure: {target['to_measure']:,} cases, {target['rows']:,} rows, about "
            f"{duration(target['estimated_duration_s'])} and {size(target['estimated_disk_bytes'])}",
            highlight=False,
        )
        preview = plain_table(
            [
                ("first cases", False),
                ("service", False),
                ("RPS", True),
                ("threads", True),
                ("cores", True),
                ("ways", True),
                ("beside", False),
            ]
        )
        for case in target["preview"]:
            beside = ", ".join(f"{n['service']} at {n['rps']:g} RPS" for n in case["neighbours"]) or "alone"
            numbers = [f"{case[k]:g}" for k in ("rps", "threads", "cores", "ways")]
            preview.add_row(
                case["case_id"],
                case["service"],
                *numbers,
                beside if not case["infeasible"] else escape(f"infeasible: {case['infeasible']}"),
            )
        console.print(preview)


def bundle(console: Console, facts: dict[str, Any]) -> None:
    """Print what `pipelines.bundle.inspect` found."""
    platform = facts["platform"]
    console.print(f"[bold]{escape(str(facts['path']))}[/]: verified", highlight=False, soft_wrap=True)
    rows = [
        (
            "platform",
            f"{platform['name']}: {platform['cores']:g} cores, {platform['ways']} ways, steps of {platform['core_step']:g} cores",
        ),
        ("feature set", facts["feature_set"]),
        ("services", ", ".join(f"{n} ({s['qos_target_ms']:g} ms)" for n, s in facts["services"].items())),
        *((f"model {m.upper()}", f"{f['parameters']:,} parameters, {f['bytes']:,} bytes") for m, f in facts["models"].items()),
        ("files", f"{len(facts['files'])}"),
        ("git commit", facts["provenance"]["git_commit"] or "unknown"),
        ("manifest", facts["manifest_sha256"]),
        ("signer", facts["signer"]),
    ]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    console.print(table)
