"""The command line."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pipelines import stdio
from pipelines.inputs import json_text, message, shown

from ..errors import SurefootError
from .measured import Known
from .reading import ANY, TOOLS, read

_POSITIVE = click.FloatRange(min=0, max=1e12, min_open=True)


@click.command()
@click.argument("tool", type=click.Choice((*TOOLS, ANY)))
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
@click.option("--duration-s", type=_POSITIVE, help="Length of each run, where the file does not tell it.")
@click.option("--offered-rps", type=_POSITIVE, help="Rate that the tool was asked for, where the file does not tell it.")
@click.option("--update-frac", type=click.FloatRange(0, 1), help="Share of updates (mutilate's --update).")
def main(
    tool: str, file: Path, as_json: bool, duration_s: float | None, offered_rps: float | None, update_frac: float | None
) -> None:
    """Read what another load generator or suite wrote: rate, latencies and what they are worth, in our units. TOOL `any`: find
    out whose it is."""
    stdio.guard()
    try:
        rows = [row.as_json() for row in read(tool, file, Known(duration_s, offered_rps, update_frac))]
    except SurefootError as e:
        click.echo(f"Error: {message(e)}", err=True)
        sys.exit(e.exit_code)
    if as_json:
        click.echo(json_text(rows))
    else:
        for row in rows:
            click.echo(" ".join(f"{name}={shown(value)}" for name, value in row.items() if value is not None))
