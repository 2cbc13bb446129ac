"""The commands of `surefoot`: campaigns, bundles, workload sets, the demo."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pipelines.inputs import json_text

from . import console as show
from . import standing, tools


def _print_json(value: Any) -> None:
    click.echo(json_text(value))


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the version, with the commit where this is a checkout, as `surefootd --version` does."""
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import version

    from pipelines.tracking import git_state

    commit, changed = git_state(tools.repo_root())
    told = f" (commit {commit}{'+changes' if changed else ''})" if commit else ""
    click.echo(f"surefoot {version('surefoot')}{told}")
    context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show version and commit.")
@click.pass_context
def surefoot(context: click.Context, debug: bool) -> None:
    """Collect samples, build bundles, show the whole story.

    Exit codes: 0 done, 1 failed, 2 bad input.
    """
    context.obj = {"debug": debug}


_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
_overwrite = click.option("--overwrite", is_flag=True, help="Replace what an earlier call wrote there.")
_data_set = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@surefoot.group()
def campaign() -> None:
    """Plan, run, watch and verify campaigns."""


_inventory = click.option("--inventory", type=click.Path(path_type=Path), help="Ansible inventory, for targets.hosts.")
_catalogue = click.option(
    "--catalogue",
    type=click.Path(path_type=Path),
    help="Folder of workloads, for targets.local and hosts (default: that of this repository).",
)


@campaign.command("plan")
@click.argument("file", metavar="CAMPAIGN.toml", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder that `run` will be given: checked too.")
@_inventory
@_catalogue
@_json
def campaign_plan(file: Path, out: Path | None, inventory: Path | None, catalogue: Path | None, as_json: bool) -> None:
    """Count and preview the cases of each target; estimate duration and disk; say what `run` will refuse. Changes nothing.

    Exit code 1 if a run could not start as things stand.
    """
    from . import campaign as campaigns

    plan = campaigns.plan(file, out=out, inventory=inventory, catalogue=catalogue)
    if as_json:
        _print_json(plan)
    else:
        show.plan(Console(), plan)
    if any(target["refusals"] for target in plan["targets"]):
        sys.exit(1)


@campaign.command("run")
@click.argument("file", metavar="CAMPAIGN.toml", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the data set.")
@_inventory
@_catalogue
@_json
def campaign_run(file: Path, out: Path, inventory: Path | None, catalogue: Path | None, as_json: bool) -> None:
    """Run a campaign on its targets; goes on where it was if DIR holds a started one."""
    from . import campaign as campaigns

    with show.Progress(Console(stderr=True)) as progress:
        summary = campaigns.run(file, out, inventory=inventory, catalogue=catalogue, report=progress)
    if as_json:
        _print_json(summary)
    else:
        show.status(Console(), summary)


@campaign.command("status")
@_data_set
@_json
def campaign_status(folder: Path, as_json: bool) -> None:
    """Cases by state, rate, ETA, and the failed cases with their reasons."""
    standing.main(str(folder), as_json)


@campaign.command("verify")
@_data_set
@click.option("--strict", is_flag=True, help="Warnings fail, too.")
@_json
def campaign_verify(folder: Path, strict: bool, as_json: bool) -> None:
    """Check that a data set is whole, and that its rows can be true.

    Exit code 1 if not; warnings (cases that something disturbed) fail only with --strict.
    """
    from . import verify

    result = verify.verify(folder)
    if as_json:
        _print_json(result.as_json())
    else:
        show.verification(Console(), result)
    if not result.ok or (strict and result.findings):
        sys.exit(1)


@campaign.command("worlds")
@click.option("--worlds", "which", required=True, metavar="RANGE:FIRST..LAST", help="e.g. train:1..120 (docs/worlds.md).")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the data sets, one a world.")
def campaign_worlds(which: str, out: Path) -> None:
    """Sweep drawn worlds, each alone and beside neighbours: what models learn from for servers that no campaign has seen.

    A world that is whole is not measured again.
    """
    from . import worlds

    wanted = worlds.Worlds.parse(which)
    worlds.collect(wanted, out, click.echo)
    click.echo(f"{out}: {len(wanted.names())} worlds are there. Learn from them: python -m pipelines.worlds --help")


@campaign.command("card")
@_data_set
def campaign_card(folder: Path) -> None:
    """Write DIR/data-card.md and its figures: what the data set holds, where it comes from, what is missing."""
    from . import campaign as campaigns
    from . import card

    campaigns.read_summary(folder)  # no lock file in what is no campaign's folder
    # a run removes half-written files when it starts
    with campaigns.locked(folder):
        path = card.write(folder)
    told = standing.quoted(folder)
    click.echo(f"{path}: verify with `surefoot campaign verify {told}`; version with `dvc add {told}`")


@surefoot.group()
def bundle() -> None:
    """Build, verify and describe bundles: the signed artefacts that nodes run."""


_bundle = click.argument("path", metavar="BUNDLE", type=click.Path(path_type=Path))


@bundle.command("build")
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Data set: the folder of one target of a campaign.")
@click.option("--models", required=True, type=click.Path(path_type=Path), help="Output of the stage `train`.")
@click.option("--metrics", type=click.Path(path_type=Path), help="metrics.json of the stage `evaluate`.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder to write; the tar gets the same name with .tar."
)
@click.option(
    "--key", type=click.Path(path_type=Path), help="PEM file of the signing key (default: this user's, made when missing)."
)
@_overwrite
@_json
def bundle_build(
    data: Path, models: Path, metrics: Path | None, out: Path, key: Path | None, overwrite: bool, as_json: bool
) -> None:
    """Make and sign a bundle from what the pipeline trained (`dvc repro` does this for every data set)."""
    from pipelines.artefact import bundle as bundles

    facts = bundles.run(data, models, metrics, out, key, overwrite)
    if as_json:
        _print_json(facts)
    else:
        show.bundle(Console(), facts)


@bundle.command("worlds")
@click.option("--models", required=True, type=click.Path(path_type=Path), help="Output of `python -m pipelines.worlds`.")
@click.option(
    "--platform",
    "platforms",
    required=True,
    multiple=True,
    metavar="P",
    help="A platform file, a shipped platform's name, drawn worlds (test:1..20), or `local`. Several times for several.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the bundles: DIR/NAME and DIR/NAME.tar.")
@click.option(
    "--key", type=click.Path(path_type=Path), help="PEM file of the signing key (default: this user's, made when missing)."
)
@_overwrite
@_json
def bundle_worlds(models: Path, platforms: tuple[str, ...], out: Path, key: Path | None, overwrite: bool, as_json: bool) -> None:
    """Make and sign bundles of servers that no campaign has seen, from models of many drawn worlds (docs/worlds.md)."""
    from pipelines.artefact import worlds_bundle

    from . import servers

    built = worlds_bundle.run(models, servers.facts(platforms), out, key, overwrite)
    if as_json:
        _print_json(built)
    else:
        for one in built:
            click.echo(f"ok {one['path']}: for {one['platform']}, manifest {one['manifest_sha256'][:16]}")


@surefoot.command("learn-c")
@click.option("--models", required=True, type=click.Path(path_type=Path), help="Output of `python -m pipelines.worlds`.")
@click.option("--worlds", required=True, metavar="RANGE:FIRST..LAST", help="Where it acts, e.g. train:1..40 (docs/worlds.md).")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the models with the new Model-C.")
@click.option("--params", type=click.Path(path_type=Path), help="Default: params.yaml here (train.c, worlds.rounds).")
@click.option(
    "--key", type=click.Path(path_type=Path), help="PEM file of the signing key (default: this user's, made when missing)."
)
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Of which worlds are random, and of the learning."
)
@_json
def learn_c(models: Path, worlds: str, out: Path, params: Path | None, key: Path | None, seed: int, as_json: bool) -> None:
    """Train Model-C in closed loop: many virtual servers side by side, then learning, in turn (docs/worlds.md)."""
    from . import practice

    found = practice.run(practice.Options(models, worlds, out, params, key, seed), lambda line: click.echo(line, err=as_json))
    if as_json:
        _print_json(found)
    else:
        click.echo(f"{out}: models with this Model-C. Bundle them: surefoot bundle worlds --models {out} --help")


@surefoot.command("tune")
@click.option("--worlds", default="tune:1..40", show_default=True, metavar="tune:FIRST..LAST", help="The first half chooses.")
@click.option("--bundles", type=click.Path(path_type=Path), help="Bundles of the worlds' servers; without, no model answers.")
@click.option("--settings", type=click.Path(path_type=Path), help="TOML: NAME = [LOW, HIGH]; default: all, from half to twice.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder of tune.json; a call that was killed goes on."
)
@click.option("--trials", type=click.IntRange(1), default=30, show_default=True, help="Settings that are tried.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each workload.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of what is tried.")
@click.option("--threads", type=click.IntRange(1), help="Of each evaluation; default: all CPUs.")
@click.option("--sensitivity", is_flag=True, help="Choose nothing: each setting halved and doubled, as a table.")
@_json
def tune(
    worlds: str,
    bundles: Path | None,
    settings: Path | None,
    out: Path,
    trials: int,
    seeds: int,
    seed: int,
    threads: int | None,
    sensitivity: bool,
    as_json: bool,
) -> None:
    """Choose settings of the policy surefoot on drawn worlds: violation first, then BE throughput (docs/tune.md)."""
    from . import tune as tuning

    given = tuning.Options(worlds, out, bundles, settings, seeds, seed, trials, threads)
    do = tuning.sensitivity if sensitivity else tuning.run
    found = do(given, lambda line: click.echo(line, err=as_json))
    if as_json:
        _print_json(found)
    elif sensitivity:
        worst = f"worst {100 * (found['worst'] - 1):+.1f} % of violation"
        click.echo(f"{out / tuning.SENSITIVITY_PAGE}: {len(found['settings'])} settings, {worst}")
    else:
        click.echo(f"{out / tuning.PAGE}: {found['verdict']}")
        if found["verdict"] == "take":
            click.echo("\n".join(tuning.node_lines(found["trials"][found["best"] - 1]["settings"])))


@bundle.command("verify")
@_bundle
@click.option(
    "--trust", type=click.Path(path_type=Path), help="Public key (PEM) that must have signed it (default: the keys trusted here)."
)
@_json
def bundle_verify(path: Path, trust: Path | None, as_json: bool) -> None:
    """Check a bundle, folder or tar: signature, digests, sizes, shapes, bounds, nothing missing, nothing extra."""
    from pipelines.artefact import bundle as bundles

    checked = bundles.verify(path, trusted=None if trust is None else [bundles.load_public_key(trust)])
    if as_json:
        _print_json({"path": str(path), "ok": True, "manifest_sha256": checked.manifest_sha256, "files": sorted(checked.files)})
    else:
        click.echo(f"ok {path}: {len(checked.files)} files, manifest {checked.manifest_sha256[:16]}")


@bundle.command("inspect")
@_bundle
@_json
def bundle_inspect(path: Path, as_json: bool) -> None:
    """Describe a bundle, which is verified first."""
    from pipelines.artefact import bundle as bundles

    facts = bundles.inspect(path)
    if as_json:
        _print_json(facts)
    else:
        show.bundle(Console(), facts)


@surefoot.group()
def workloads() -> None:
    """Workload files for `surefootd eval`: which services and jobs run together, at which loads."""


def _given(command: click.Context, but: tuple[str, ...]) -> list[str]:
    """Options of a command that stand on the command line, but for some."""
    source = click.core.ParameterSource.COMMANDLINE
    found = [p for p in command.command.params if p.name and command.get_parameter_source(p.name) == source]
    return [p.opts[0] for p in found if p.name not in but]


def _names(text: str | None) -> tuple[str, ...] | None:
    """Names as they stand there, empty ones too: who uses them says what is wrong."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


@workloads.command("generate")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="New folder for the files.")
@click.option("--set", "set_name", help="A set of workloads/sets, made again, whole: goes with --out alone.")
@click.option("--platform", help="Platform the loads are meant for.")
@click.option("--lc", type=int, default=3, show_default=True, help="LC services in a workload.")
@click.option("--be", type=int, default=0, show_default=True, help="BE jobs in a workload.")
@click.option("--count", type=int, default=40, show_default=True, help="Files.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--low", type=int, default=10, show_default=True, help="Lowest load, per cent of max load, in tens.")
@click.option("--high", type=int, default=100, show_default=True, help="Highest load, per cent of max load, in tens.")
@click.option("--services", metavar="A,B,...", help="LC services to draw from (default: the eleven of the OSML+ paper).")
@click.option("--jobs", metavar="A,B,...", help="BE jobs to draw from (default: blackscholes,streamcluster,bodytrack).")
@click.option("--grid", metavar="A,B,...", help="These services in every workload, no combination of loads twice.")
@click.option("--gap-s", type=float, default=1.0, show_default=True, help="Between one service's arrival and the next.")
@click.option("--duration-s", type=float, default=120.0, show_default=True)
@click.option("--events", type=int, default=0, show_default=True, help="Churn: changes of load, and leaves.")
@click.option("--name", help="Files are NAME-01.toml ... (default: from --lc and --be).")
@click.option("--schedulable", is_flag=True, help="Only workloads for which ORACLE can meet every QoS target, in every phase.")
@_json
@click.pass_context
def workloads_generate(
    command: click.Context,
    out: Path,
    set_name: str | None,
    platform: str | None,
    lc: int,
    be: int,
    count: int,
    seed: int,
    low: int,
    high: int,
    services: str | None,
    jobs: str | None,
    grid: str | None,
    gap_s: float,
    duration_s: float,
    events: int,
    name: str | None,
    schedulable: bool,
    as_json: bool,
) -> None:
    """Draw workload files with a seed: the same files on every machine.

    The committed sets are described in workloads/sets/README.md.
    """
    from . import workload_sets
    from .errors import InputError

    if set_name is not None:
        known = {s.folder: s for s in workload_sets.SETS}
        if set_name not in known:
            raise InputError(f"--set {set_name}: no such set. Generated sets: {', '.join(known)}")
        chosen = known[set_name]
        if other := _given(command, but=("out", "set_name", "schedulable", "as_json")):
            raise InputError(
                f"--set {set_name}: is made again as it is, so {', '.join(other)} cannot change it. Leave that out, or draw files"
                f" of your own: surefoot workloads generate {chosen.recipe.command()} --count {chosen.count} --schedulable"
            )
        recipe, count, name, schedulable = chosen.recipe, chosen.count, chosen.name, True
    else:
        if platform is None:
            raise InputError("--platform: is missing. Give the platform that the loads are meant for, e.g. server-2")
        whole = _names(grid)
        if whole and (other := [o for o in _given(command, but=()) if o in ("--lc", "--services")]):
            raise InputError(f"--grid {grid}: says which services there are, so {', '.join(other)} cannot. Leave that out")
        recipe = workload_sets.Recipe(
            platform=platform,
            lc=len(whole) if whole else lc,
            be=be,
            seed=seed,
            low_pct=low,
            high_pct=high,
            services=whole or _names(services) or workload_sets.SERVICES,
            jobs=_names(jobs) or workload_sets.JOBS,
            gap_s=gap_s,
            duration_s=duration_s,
            grid=whole is not None,
            events=events,
        )
    on_screen = Console(stderr=True)
    with on_screen.status("drawing") as status:

        def told(files: int, draws: int) -> None:
            line = f"{files} of {count} files from {draws} draws"
            if refused := draws - files:
                line += f"; of {refused} {workload_sets.REFUSED}"
            status.update(line)
            # A log has no line that moves.
            if not on_screen.is_terminal:
                click.echo(line, err=True)

        by_recipe = f"lc{recipe.lc}" + (f"-be{recipe.be}" if recipe.be else "") + ("-churn" if recipe.events else "")
        made = workload_sets.generate(
            recipe,
            count,
            by_recipe if name is None else name,
            out,
            workload_sets.schedulable if schedulable else None,
            told,
        )
    if as_json:
        _print_json(made)
    else:
        click.echo(f"{out}: {len(made['files'])} workloads from {made['draws']} draws")


@surefoot.command("eval-report")
@click.argument("outs", metavar="OUT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the page and of its numbers.")
@_overwrite
@_json
def eval_report_command(outs: tuple[Path, ...], out: Path, overwrite: bool, as_json: bool) -> None:
    """One page from the folders that `surefootd eval --out` wrote: tables beside the published numbers, the papers' figures."""
    from pipelines import eval_report

    made = eval_report.run(outs, out, show.Teller(Console(stderr=True), eval_report.STEPS).step, overwrite)
    for warning in made["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        _print_json(made)
    else:
        said = ", ".join(f"{count} {verdict}" for verdict, count in sorted(made["verdicts"].items()))
        click.echo(f"{made['page']}: published figures and aims: {said}")


@surefoot.command("harvest-report")
@click.argument("outs", metavar="OUT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the page and of its numbers.")
@_overwrite
@_json
def harvest_report_command(outs: tuple[Path, ...], out: Path, overwrite: bool, as_json: bool) -> None:
    """One page from the folders that `surefootd harvest-eval --out` wrote: SmartHarvest's figures, and the published numbers."""
    from pipelines import harvest_report

    made = harvest_report.run(outs, out, show.Teller(Console(stderr=True), harvest_report.STEPS).step, overwrite)
    if as_json:
        _print_json(made)
    else:
        kept = [f"{p} {s['kept']} of {s['cases']}" for p, s in made["policies"].items() if p in ("smartharvest", "wait-budget")]
        click.echo(f"{made['page']}{': cases with P99 kept: ' if kept else ''}{', '.join(kept)}")


@surefoot.command("demo")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder of the report and of what it is made from (default: out/demo).",
)
@click.option(
    "--again",
    multiple=True,
    type=click.Choice(["virtual", "local", "models", "eval", "loop"]),
    help="Do this part anew, and what builds on it; the data that are there stay until the new ones are whole. Repeatable.",
)
@_json
def demo_command(out: Path | None, again: tuple[str, ...], as_json: bool) -> None:
    """The whole story on this machine, unattended; ends with the path of a report.

    Stopped half-way, it goes on where it was. Parts that this machine was too busy for are left out with a warning.
    """
    from . import demo

    result = demo.run(out, Console(stderr=True), again)
    if as_json:
        _print_json(result)
    else:
        for warning in result["warnings"]:
            click.echo(f"warning: {warning}", err=True)
        click.echo(f"report: {result['report']}")
    if result["failed"]:
        click.echo(f"incomplete: {'; '.join(result['failed'])}", err=True)
        sys.exit(1)


@surefoot.command("onboard")
@click.argument("platform", metavar="PLATFORM.toml", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "begin",
    required=True,
    metavar="BUNDLE|TRAIN_DIR|WORLDS_DIR|nothing",
    help="Models to begin from: a bundle (folder or tar), the output of the stage `train` or of pipelines.worlds; `nothing`: "
    "random weights.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of everything that is made (default: out/onboard/NAME).")
@click.option(
    "--inventory", type=click.Path(path_type=Path), help="Ansible inventory: collect on its hosts, not on a virtual server."
)
@click.option("--group", help="Group of the inventory (default: the platform's name).")
@click.option(
    "--campaign", "campaign_file", type=click.Path(path_type=Path), help="Campaign of your own (default: DIR/campaign.toml)."
)
@click.option(
    "--params", type=click.Path(path_type=Path), help="Parameters of the stages (default: the repository's params.yaml)."
)
@click.option("--key", type=click.Path(path_type=Path), help="PEM file of the signing key, as for `bundle build`.")
@click.option("--compare", is_flag=True, help="Train from nothing on the same samples, too, and show both.")
@click.option("--plan", "only_plan", is_flag=True, help="Write DIR/campaign.toml, say what it comes to, and stop: edit it then.")
@_json
def onboard_command(
    platform: Path,
    begin: str,
    out: Path | None,
    inventory: Path | None,
    group: str | None,
    campaign_file: Path | None,
    params: Path | None,
    key: Path | None,
    compare: bool,
    only_plan: bool,
    as_json: bool,
) -> None:
    """From a new platform's file to a verified bundle: collect, label, transfer the models, evaluate, bundle.

    Stopped half-way, the same command goes on; what is finished is kept while its inputs are the same.
    """
    from . import onboard

    given = onboard.Options(platform, begin, out, inventory, group, campaign_file, params, key, compare)
    voice = Console(stderr=True)
    if only_plan:
        planned = onboard.plan(given, voice)
        if as_json:
            _print_json(planned)
        else:
            show.onboarding_plan(Console(), planned)
        return
    result = onboard.run(given, voice)
    if as_json:
        _print_json(result)
    else:
        show.onboarded(Console(), result)
