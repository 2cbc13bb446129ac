"""Parquet of others, read or named.

Polars answers a damaged file with an error, with a panic of its own (no `Exception`), or with pages on standard error besides.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from pipelines import stdio
from pipelines.errors import BadInput

DAMAGED = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""What polars raises on a file that is none of its format, or is damaged."""
_MARK = b"PAR1"


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Errors of reading a Parquet file, or the first of many, say which, what is wrong with it, and the remedy."""
    try:
        with stdio.Quiet():
            yield
    except OSError as e:
        raise BadInput(f"{path}: cannot be read ({e.strerror or e}). {remedy}") from None
    except DAMAGED as e:
        wrong = _not_parquet(path) or f"is damaged ({str(e).partition(chr(10))[0]})"
        raise BadInput(f"{path}: {wrong}. {remedy}") from None


def read(path: Path, remedy: str, **how: Any) -> pl.DataFrame:
    """A whole Parquet file.

    Args:
        how: as `polars.read_parquet`.
    Raises:
        BadInput: it is missing, damaged, or has no such column.
    """
    with reading(path, remedy):
        return pl.read_parquet(path, **how)


def of_stage(path: Path, **how: Any) -> pl.DataFrame:
    """As `read`, of what a stage of the pipeline wrote."""
    return read(path, "Make it again with `dvc repro`", **how)


def _not_parquet(path: Path) -> str | None:
    """What is wrong with a file's beginning or end; no more of it is read."""
    try:
        with path.open("rb") as file:
            if file.read(len(_MARK)) != _MARK:
                return "is not Parquet"
            file.seek(-len(_MARK), os.SEEK_END)
            return None if file.read(len(_MARK)) == _MARK else "is cut off"
    except OSError as e:
        return f"cannot be read ({e.strerror or e})"
