"""Entry point of the command line `surefoot`; the commands are in commands.py.

`campaign status`, in its plain spelling, is answered without them: importing what draws tables takes ten times as long as
looking.
"""

from __future__ import annotations

import sys

from pipelines import stdio
from pipelines.inputs import message

from .errors import SurefootError, told

FAULT = "a fault of surefoot"


def main(args: list[str] | None = None) -> None:
    """Entry point. Turns errors into one line on stderr and an exit code."""
    stdio.guard()
    given = sys.argv[1:] if args is None else args
    debug = "--debug" in given
    try:
        if not _quick(given):
            _commands(args)
        if why := stdio.failure():
            _fail(f"error: {why}", 1)
    except KeyboardInterrupt:
        _fail("stopped; the same command goes on where this one was", 130)
    except (SurefootError, OSError) as e:
        if debug:
            raise
        if isinstance(e, SurefootError):
            _fail(f"error: {e}", e.exit_code)
        else:
            _fail(f"error: {told(e)}", 1)
    except Exception as e:  # a fault of ours: one line for people, the rest for who asks
        if debug:
            raise
        _fail(f"error: {FAULT}: {type(e).__name__}: {e}. Please report it, with what --debug shows", 1)


def _fail(text: str, code: int) -> None:
    print(message(text), file=sys.stderr)
    sys.exit(code)


def _quick(args: list[str]) -> bool:
    """Answer `campaign status DIR [--json]`; whether it was that."""
    rest = [a for a in args[2:] if a != "--json"]
    if args[:2] != ["campaign", "status"] or len(rest) != 1 or rest[0].startswith("-") or len(args) > 4:
        return False
    from . import standing

    standing.main(rest[0], "--json" in args)
    return True


def _commands(args: list[str] | None) -> None:
    import click

    from pipelines.errors import PipelineError

    from .commands import surefoot

    try:
        surefoot.main(args=args, prog_name="surefoot", standalone_mode=False)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as e:
        e.show()
        sys.exit(e.exit_code)
    except click.ClickException as e:
        help_of = e.ctx.command_path if isinstance(e, click.UsageError) and e.ctx else "surefoot"
        _fail(f"error: {e.format_message()} See {help_of} --help", e.exit_code)
    except PipelineError as e:
        if "--debug" in (sys.argv[1:] if args is None else args):
            raise
        _fail(f"error: {e}", e.exit_code)


if __name__ == "__main__":
    main()
