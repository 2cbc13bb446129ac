"""What the commands print: tables and the progress bar."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape as _escape
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from pipelines.inputs import shown

from . import standing
from .standing import about, counted, duration, rate

if TYPE_CHECKING:
    from .verify import Result

__all__ = ["Progress", "Teller", "bundle", "counted", "duration", "plain_table", "plan", "rate", "size", "status", "verification"]


def escape(text: str) -> str:
    """Text of others: no markup, and nothing that acts on a terminal."""
    return _escape(shown(text))


def size(count: float | None) -> str:
    """A number of bytes as people say it."""
    if count is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def plain_table(columns: Iterable[tuple[str, bool]]) -> Table:
    """A table without a frame; columns are (name, numeric)."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, numeric in columns:
        table.add_column(name, justify="right" if numeric else "left", no_wrap=numeric)
    return table


class Teller:
    """Says which step runs; to people on a terminal with a clock that moves."""

    def __init__(self, out: Console, steps: int) -> None:
        self.out = out
        self.steps = steps
        self.at = 0

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        self.at += 1
        start = time.monotonic()
        head = f"[dim]{self.at}/{self.steps}[/] {title}"
        if self.out.is_terminal:
            with self.out.status(head):
                yield
        else:
            self.out.print(head, highlight=False)
            yield
        self.out.print(f"{head} [green]done[/] [dim]{duration(time.monotonic() - start)}[/]", highlight=False)

    def reused(self, title: str) -> None:
        self.at += 1
        self.out.print(f"[dim]{self.at}/{self.steps}[/] {title} [dim]was done before[/]", highlight=False)

    def skipped(self, title: str, why: str) -> None:
        self.at += 1
        self.out.print(f"[dim]{self.at}/{self.steps}[/] {title} [yellow]left out:[/] {escape(why)}", highlight=False)


class Progress:
    """Cases done of those planned, usable rows, rate and time left of each target, from `surefootd`'s progress lines.

    On a terminal a bar for each target. Elsewhere (a log, a pipe) a line now and then: the first and the last of a target, and
    between them one in EVERY_S. What is wrong with a host is told at once, once, in both.
    """

    EVERY_S = 10.0

    def __init__(self, console: Console, now_s: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now_s = now_s
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[usable]}"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[left]}"),
            TextColumn("[yellow]{task.fields[trouble]}", markup=True),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._planned: dict[str, int] = {}
        # of each target the newest line, and when one was last written
        self._newest: dict[str, str] = {}
        self._written: dict[str, tuple[float, str]] = {}
        self._troubles: dict[str, str] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        for target, line in self._newest.items():
            if self._written.get(target, (0.0, ""))[1] != line:
                self._write(target, line)
        if self._tasks:
            self._bar.stop()

    def start(self, target: str, planned: int) -> None:
        """A target starts, or goes on. Hosts of a group have a line each."""
        first = target not in self._planned
        self._planned[target] = planned
        if self._console.is_terminal:
            self._bar.start()
            if first:
                self._tasks[target] = self._bar.add_task(target, total=planned, usable="", rate="", left="", trouble="")
        elif first:
            self._write(target, f"{target}: {counted(planned, 'case')} planned")

    def update(self, target: str, line: dict[str, Any]) -> None:
        """A progress line."""
        done, eta, usable = line.get("done"), line.get("eta_s"), line.get("usable_rows")
        if not isinstance(done, int):
            return
        trouble = str(line.get("trouble") or "")
        if trouble:
            self.trouble(target, trouble)
        else:
            self._troubles.pop(target, None)
        # what is done before there are cases
        what = str(line.get("what") or "")
        parts = {
            "usable": f"{usable:,} of {line.get('rows', 0):,} rows usable" if isinstance(usable, int) else "",
            "rate": rate(line.get("rate_per_s")) if line.get("rate_per_s") else "",
            "left": f"{duration(eta)} left" if eta else "",
        }
        if self._console.is_terminal:
            self._bar.update(
                self._tasks[target],
                completed=done,
                trouble=escape(trouble or what),
                usable=parts["usable"],
                rate=parts["rate"],
                left=parts["left"],
            )
            return
        told = [f"{done:,} of {self._planned[target]:,} cases", *(text for text in parts.values() if text)]
        self._newest[target] = f"{target}: {what or ', '.join(told)}"
        at_s, before = self._written.get(target, (-math.inf, ""))
        # hundreds of hosts do not fill a log either
        every_s = max(self.EVERY_S, float(len(self._planned)))
        if self._now_s() - at_s >= every_s and before != self._newest[target]:
            self._write(target, self._newest[target])

    def trouble(self, target: str, what: str) -> None:
        """What is wrong with a target; said once until it changes."""
        if self._troubles.get(target) == what:
            return
        self._troubles[target] = what
        self._console.print(f"[yellow]{escape(target)}: {escape(what)}[/]", highlight=False, soft_wrap=True)

    def _write(self, target: str, line: str) -> None:
        self._written[target] = (self._now_s(), line)
        if not self._console.is_terminal:
            self._console.print(escape(line), highlight=False, soft_wrap=True)


def status(console: Console, state: dict[str, Any]) -> None:
    """Print what `campaign.status` found."""
    for line in standing.lines(state):
        console.print(Text.assemble(*((shown(text), style) for text, style in line)), soft_wrap=True)


def verification(console: Console, result: Result) -> None:
    """Print what `verify.verify` found."""
    for finding in result.findings:
        mark = "[red]bad[/]" if finding.severity == "error" else "[yellow]warning[/]"
        console.print(f"{mark} {escape(finding.file)}: {escape(finding.what)}", highlight=False, soft_wrap=True)
        console.print(f"    {escape(finding.remedy)}", style="dim", highlight=False, soft_wrap=True)
    if result.ok:
        worth = result.rows_by_worth
        console.print(
            f"[green]ok[/] {escape(str(result.folder))}: {counted(result.shards, 'shard')}, {counted(result.rows, 'row')}, "
            f"{counted(result.cases, 'case')}, all add up",
            highlight=False,
        )
        if result.rows:
            colour = standing.usable_colour(worth)
            console.print(f"    [{colour}]{escape(standing.usable_in_words(worth))}[/]", highlight=False, soft_wrap=True)
        return
    console.print(f"{counted(len(result.findings), 'finding')} in {escape(str(result.folder))}", highlight=False)


def plan(console: Console, found: dict[str, Any]) -> None:
    """Print what `campaign.plan` found."""
    console.print(f"[bold]{escape(found['campaign'])}[/]: {found['cases']:,} cases; nothing was changed", highlight=False)
    for target in found["targets"]:
        for refusal in target["refusals"]:
            console.print(f"[red]run will refuse:[/] {escape(refusal)}", highlight=False, soft_wrap=True)
        if target.get("hosts"):
            console.print(f"{escape(target['target'])}: shared by {escape(', '.join(target['hosts']))}", highlight=False)
        elif "hosts" in target:
            console.print(f"{escape(target['target'])}: its hosts are looked for with --inventory INV", highlight=False)
        if target["cases"] is None:
            console.print(
                f"[bold]{escape(target['target'])}[/]: how many cases, only its hosts know", highlight=False, soft_wrap=True
            )
            for warning in target.get("warnings", []):
                console.print(f"[yellow]warning:[/] {escape(warning)}", highlight=False, soft_wrap=True)
            continue
        infeasible = target["infeasible"]
        console.print(
            f"\n[bold]{escape(target['target'])}[/] (platform {escape(target['platform'])}, {target['strategy']})",
            highlight=False,
        )
        table = plain_table([("service", False), ("cases", True)])
        for service, cases in target["by_service"].items():
            table.add_row(escape(service), f"{cases:,}")
        console.print(table)
        for rule in infeasible["rules"]:
            console.print(f"infeasible: {rule['cases']:,} × {escape(rule['rule'])}", style="dim", highlight=False)
        console.print(
            f"to measure: {target['to_measure']:,} cases, {target['rows']:,} rows, "
            f"{about(target['estimated_duration_s'])} and {size(target['estimated_disk_bytes'])}",
            highlight=False,
        )
        if loads := target.get("loads_to_find"):
            told = ", ".join(f"{load['service']} ({load['threads']} threads)" for load in loads)
            console.print(f"max loads to be measured first: {escape(told)}", highlight=False, soft_wrap=True)
        if clients := target.get("loadgen"):
            said = [f"on CPUs {clients['cpus']}"] if "cpus" in clients else []
            said += [f"with {clients['threads']} sending threads each"] if "threads" in clients else []
            console.print(f"load generators {escape(' '.join(said))}", highlight=False)
        for warning in target.get("warnings", []):
            console.print(f"[yellow]warning:[/] {escape(warning)}", highlight=False, soft_wrap=True)
        limited = any(case.get("mem_limit_bytes") is not None for case in target["preview"])
        preview = plain_table(
            [
                ("first cases", False),
                ("service", False),
                ("RPS", True),
                ("threads", True),
                ("cores", True),
                ("ways", True),
                *([("memory, pool", False)] if limited else []),
                ("beside", False),
            ]
        )
        for case in target["preview"]:
            beside = ", ".join(f"{n['service']} at {_rps(n)}" for n in case["neighbours"]) or "alone"
            load = f"{case['load_pct']:g} % of max" if case.get("load_pct") else f"{case['rps']:g}"
            numbers = [load, *(f"{case[k]:g}" for k in ("threads", "cores", "ways"))]
            preview.add_row(
                escape(case["case_id"]),
                escape(case["service"]),
                *numbers,
                *([_memory(case)] if limited else []),
                escape(beside) if not case["infeasible"] else escape(f"infeasible: {case['infeasible']}"),
            )
        console.print(preview)


def _memory(case: Mapping[str, Any]) -> str:
    """Limit and pool of a case, in GiB."""
    limit, pool = (case.get(name) for name in ("mem_limit_bytes", "zswap_max_bytes"))
    if limit is None:
        return "no limit"
    return f"{limit / 2**30:.4g} GiB" + ("" if pool is None else f", {pool / 2**30:.4g} GiB")


def _rps(neighbour: Mapping[str, Any]) -> str:
    return "a share of its max load" if neighbour["rps"] is None else f"{neighbour['rps']:g} RPS"


def bundle(console: Console, facts: dict[str, Any]) -> None:
    """Print what `pipelines.artefact.bundle.inspect` found."""
    platform = facts["platform"]
    console.print(f"[bold]{escape(str(facts['path']))}[/]: verified", highlight=False, soft_wrap=True)
    rows = [
        (
            "platform",
            f"{platform['name']}: {platform['cores']:g} cores, {platform['ways']} ways, steps of {platform['core_step']:g} cores",
        ),
        ("feature set", facts["feature_set"]),
        ("built", f"{facts['built']} (serial {facts['serial']})" if facts["serial"] is not None else "unknown (no serial)"),
        ("services", ", ".join(f"{n} ({s['qos_target_ms']:g} ms)" for n, s in facts["services"].items())),
        *((f"model {m.upper()}", f"{f['parameters']:,} parameters, {f['bytes']:,} bytes") for m, f in facts["models"].items()),
        ("model card", f"{facts['files']['card.md']:,} bytes" if facts["card"] is not None else "none"),
        ("files", f"{len(facts['files'])}"),
        ("git commit", facts["provenance"]["git_commit"] or "unknown"),
        ("manifest", facts["manifest_sha256"]),
        ("signer", facts["signer"]),
    ]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name, text in rows:
        table.add_row(name, escape(text))
    console.print(table)


def onboarding_plan(out: Console, found: dict[str, Any]) -> None:
    """Print what an onboarding would collect."""
    plan = found["plan"]
    out.print(f"campaign: {escape(found['campaign_file'])}", highlight=False, soft_wrap=True)
    if plan:
        cost = f"{about(plan['estimated_duration_s'])}, {size(plan['estimated_disk_bytes'])}"
        out.print(f"{plan['cases']:,} cases, {plan['rows']:,} samples, {cost}", highlight=False)
    else:
        out.print("what it comes to is known on the hosts only", highlight=False)
    out.print("Edit it, or start: the same command without --plan", highlight=False)


def _measuring(curve: list[dict[str, float]]) -> list[str]:
    """Errors on held-out planes after each ten minutes of measuring, and what ten more would bring."""
    said = []
    for line in curve:
        errors = [
            f"{title} {line[name]:.3g}" for name, title in (("a_mae", "Model-A"), ("b_error_pct", "Model-B %")) if name in line
        ]
        more = [f"{letter.upper()} {line[f'{letter}_next_pct']:.2g} %" for letter in "ab" if f"{letter}_next_pct" in line]
        told = f"; ten more are expected to take off {', '.join(more)}" if more else ""
        said.append(f"after {line['minutes']:.0f} min ({line['cells']:.0f} cells): off by {', '.join(errors)}{told}")
    return said


def onboarded(out: Console, result: dict[str, Any]) -> None:
    """Print what `onboard.run` found: what was collected, the errors, the bundle and how it is deployed."""
    from pipelines.pages.metric_words import ERRORS, NOTHING

    for warning in result["warnings"]:
        out.print(f"[yellow]warning:[/] {escape(warning)}", highlight=False, soft_wrap=True)
    planes, cases = result["planes"], result["collected"]["cases"]
    begun = result["begun_from"]["name"] if result["begun_from"] else NOTHING
    samples = standing.usable_in_words(result["collected"]["rows_by_worth"])
    rows = (
        ("collected", f"{counted(cases['planned'], 'case')} ({cases['overloaded']:,} overloaded), {samples}"),
        ("planes", f"{planes['all']} ({planes['no_feasible_cell']} never meet QoS; {planes['test']} held out)"),
    )
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    for step in result["steps"]:
        table.add_row(step["name"], duration(step["seconds"]) + (", before" if step["state"] == "reused" else ""))
    out.print(table)
    others = result["metrics_from_nothing"]
    errors = plain_table([("held-out planes", False), (f"from {begun}", True), *([(f"from {NOTHING}", True)] if others else [])])
    for name, title in ERRORS.items():
        cells = [f"{m[name]:.3g}" if name in m else "" for m in (result["metrics"], others) if m is not None]
        if any(cells):
            errors.add_row(title, *cells)
    out.print(errors)
    for line in _measuring(result.get("curve") or []):
        out.print(line, highlight=False, soft_wrap=True)
    out.print(f"bundle: {escape(result['bundle']['folder'])} and .tar, verified", highlight=False, soft_wrap=True)
    gate = result["gate"]
    said = "holds: the models are champion now" if gate["promoted"] else f"does not hold: {'; '.join(gate['reasons'])}"
    out.print(f"gate (params.yaml): {escape(said)}", highlight=False, soft_wrap=True)
    out.print(f"deploy: {escape(result['deploy'])}", highlight=False, soft_wrap=True)
