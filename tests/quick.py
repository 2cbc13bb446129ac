"""params.yaml with trainings of seconds, for tests that run whole pipelines on data of a sweep.

python tests/quick.py FILE [NAME FOLDER]    changes the file; NAME: the only data set, in FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

# of Models A and B of a training, and of one that goes on with them; all else is as the repository has it
FEW = {"epochs": 2, "min_steps": 20, "batch": 256}


def make_quick(file: Path, datasets: dict[str, Any] | None = None) -> None:
    """Change a params.yaml in place."""
    values = yaml.safe_load(file.read_text("utf-8"))
    for section in ("train", "transfer"):
        for model in ("a", "b"):
            values[section][model] |= FEW
    values["train"]["c"] |= {"transitions": 500, "updates": 20, "batch": 64}
    values["compare"] |= {"rounds": 5, "rows": 2000, "nearest_rows": 2000}
    if datasets is not None:
        values["datasets"], values["osml_datasets"] = datasets, []
    file.write_text(yaml.safe_dump(values, sort_keys=False, indent=2), "utf-8")


if __name__ == "__main__":
    path, *named = sys.argv[1:]
    make_quick(Path(path), {named[0]: {"folder": named[1]}} if named else None)
