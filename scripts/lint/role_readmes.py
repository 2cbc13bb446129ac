#!/usr/bin/env python3
"""The tables of arguments in the READMEs of the roles, made from meta/argument_specs.yml.

scripts/lint/role_readmes.py            write them
scripts/lint/role_readmes.py --check    say which are not current; exit code 1 then
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[2] / "playbooks/roles"
HEADING = "\n## Arguments\n"


def main(check: bool) -> int:
    old = [readme for readme in sorted(ROLES.glob("*/README.md")) if current(readme) != readme.read_text("utf-8")]
    for readme in old:
        if check:
            print(
                f"{readme.relative_to(ROLES.parents[1])}: its arguments are not current. Run scripts/lint/role_readmes.py",
                file=sys.stderr,
            )
        else:
            readme.write_text(current(readme), "utf-8")
    return int(check and bool(old))


def current(readme: Path) -> str:
    """The README with the table that its role's arguments come to; all before the heading is written by hand."""
    specs = yaml.safe_load((readme.parent / "meta/argument_specs.yml").read_text("utf-8"))
    options: dict[str, dict[str, Any]] = specs["argument_specs"]["main"]["options"]
    before = readme.read_text("utf-8").partition(HEADING)[0].rstrip("\n")
    rows = "".join(row(name, option) for name, option in options.items())
    return f"{before}\n{HEADING}\n| argument | type | default | meaning |\n| --- | --- | --- | --- |\n{rows}"


def row(name: str, option: dict[str, Any]) -> str:
    kind = f"{option['type']} of {option['elements']}" if "elements" in option else option["type"]
    default = "required" if option.get("required") else f"`{shown(option.get('default'))}`"
    meaning = " ".join(str(option["description"]).split()).replace("|", "\\|")
    choices = f" One of {', '.join(f'`{c}`' for c in option['choices'])}." if "choices" in option else ""
    return f"| `{name}` | {kind} | {default} | {meaning}{choices} |\n"


def shown(default: object) -> str:
    """As it would be written in YAML; in a table a bar has to be escaped."""
    text = yaml.safe_dump(default, default_flow_style=True, width=1000).removesuffix("...\n").strip() if default != "" else '""'
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
