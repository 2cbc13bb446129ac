"""Small file helpers: whole files or none, canonical JSON, hashes."""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pipelines import inputs
from pipelines.errors import BadInput, TooLarge

if TYPE_CHECKING:
    import polars as pl
    from pydantic import BaseModel

M = TypeVar("M", bound="BaseModel")


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))


def _in_the_way(path: Path) -> str | None:
    """Why no file can be written there, whatever the caller wants; None where it is free or a plain file."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # why it cannot be looked at is told when it is made
        return None
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISLNK(mode):
        return "is a link. Give the path that it leads to"
    kind = next((name for test, name in _KINDS if test(mode)), "a device")
    return f"is {kind} and no plain file. Give a path where nothing is"


def check_output(option: str, path: Path, inputs: Iterable[tuple[str, Path]] = (), overwrite: bool = False) -> None:
    """That a command may write `path` for its caller: the rule and the words of surefootd (docs/exit-codes.md).

    Args:
        option: by which the caller named it, or its folder.
        inputs: what the command reads: by which option, and where; a folder stands for all files under it.
        overwrite: whether a plain file that is there gives way.
    Raises:
        BadInput: what is in the way; it stays as it is.
    """
    if why := _in_the_way(path):
        raise BadInput(f"{option} {path}: {why}")
    try:
        there = path.lstat()
    except OSError:
        return
    for name, source in inputs:
        files = [source, *source.rglob("*")] if source.is_dir() else [source]
        if any(_same(file, there) for file in files):
            raise BadInput(f"{option} {path}: is what this command reads ({name} {source}). Give another path")
    if not overwrite:
        raise BadInput(f"{option} {path}: is there already. Give --overwrite to replace it, or another path")


def _same(path: Path, other: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), other)
    except OSError:
        return False


def open_anew(path: Path) -> IO[str]:
    """A new text file in place of an older one of ours (a log): what is there is taken away, not followed, and not emptied.

    Raises:
        BadInput: no plain file has that name.
    """
    if why := _in_the_way(path):
        raise BadInput(f"{path}: {why}")
    path.unlink(missing_ok=True)
    return path.open("x+", encoding="utf-8")


def write_bytes(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file whole or not at all: temporary name, fsync, rename. What is no plain file stays."""
    if why := _in_the_way(path):
        raise BadInput(f"{path}: {why}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        fsync_folder(path.parent)


def read_plain(path: Path, most: int, *, links: bool = True) -> bytes:
    """Read a plain file of at most `most` bytes. A pipe or a device is refused, and never waited for.

    Args:
        links: whether a symbolic link at the end of the path is followed.

    Raises:
        BadInput: it is not there, no plain file, or larger.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadInput(f"{path}: is not a plain file; give the file itself")
        data = file.read(most + 1)
    if len(data) > most:
        raise TooLarge(f"{path}: is larger than {most} bytes; check the path")
    return data


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the operating system name `path`: a write names nothing, and a temporary file's name helps nobody."""
    try:
        yield
    except OSError as e:
        e.filename, e.filename2 = str(path), None
        raise


def leftovers(path: Path) -> list[Path]:
    """Temporary files of `write_bytes` beside `path`: a write in progress, or what a killed process left behind."""
    return sorted(path.parent.glob(f".{glob.escape(path.name)}.*.tmp"))


def canonical_json(value: Any) -> bytes:
    """One byte form for one value: sorted keys, two spaces, ASCII, no NaN, a final newline."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=True, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, canonical_json(value))


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """Numbers to six digits; NaN as an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([("" if v != v else f"{v:.6g}") if isinstance(v, float) else v for v in row])
    return text.getvalue().encode()


def write_parquet(path: Path, frame: pl.DataFrame) -> None:
    """Parquet, zstd, whole or not at all."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    write_bytes(path, buffer.getvalue())


def read_model(path: Path, kind: type[M], what: str, remedy: str) -> M:
    """Read a JSON file that a stage wrote.

    Args:
        remedy: what to do where it is not as it should be, for the message.

    Raises:
        BadInput: it is missing or damaged; names file and field.
    """
    from pydantic import ValidationError  # only by those who have a model imported already

    try:
        return kind.model_validate(read_json(path, what, remedy))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise BadInput(f"{path}: field {where}: {first['msg']}; {remedy}") from None


def read_json(path: Path, what: str, remedy: str = "make it with `dvc repro`") -> Any:
    """Read a JSON file; the error names the file and the position.

    Args:
        remedy: what to do where it is missing or damaged, for the message.
    """
    try:
        return inputs.read_json(path)
    except FileNotFoundError:
        raise BadInput(f"{path}: {what} is missing; {remedy}") from None
    except inputs.Unreadable as error:
        raise BadInput(f"{path}: {what} is not valid JSON ({error}); {remedy}") from None
