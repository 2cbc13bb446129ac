"""Small file helpers: whole files or none, canonical JSON, hashes."""

from __future__ import annotations

import csv
import errno
import glob
import hashlib
import io
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
    # what is no folder by now is refused, and never waited for
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))


_CACHED = (
    "is a link into DVC's cache, where every version of it would be changed. Run: dvc unprotect PATH, as `dvc add` was given it"
)


def _is_cached(link: Path) -> bool:
    """Whether a link leads to an object of a cache of DVC (files/md5/ab/cdef...)."""
    try:
        leads_to = link.readlink().parts
    except OSError:
        return False
    return leads_to[-4:-2] == ("files", "md5")


def linked(folder: Path, deepest: int = 6) -> Iterator[Path]:
    """Files below a folder that are others' too: links, and files of several names. Folders are looked into, behind links too."""
    for path in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):  # a run's temporary file
            about = path.lstat()
            if path.is_dir():
                yield from linked(path, deepest - 1) if deepest else ()
            elif stat.S_ISLNK(about.st_mode) or about.st_nlink > 1:
                yield path


def _in_the_way(path: Path) -> str | None:
    """Why no file can be written there, whatever the caller wants; None where it is free or a plain file."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # why it cannot be looked at is told when it is made
        return None
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISLNK(mode):
        return _CACHED if _is_cached(path) else "is a link. Give the path that it leads to"
    kind = next((name for test, name in _KINDS if test(mode)), "a device")
    return f"is {kind} and no plain file. Give a path where nothing is"


_LINK_REMEDY = "Give the path that it leads to"
_MOST_LINKS = 40  # on one way, as the kernel counts


@contextmanager
def _way(path: Path) -> Iterator[tuple[int, bool]]:
    """Walk to `path`, name by name, each in the folder that was opened before: what is found is what was looked at.

    Yields:
        what it leads to (O_PATH), where it ends early the last folder there is; and whether all of it is there.
    Raises:
        OSError: something on the way cannot be looked at.
        BadInput: a link of somebody else than this user and root is on the way; its text is surefootd's.
    """
    todo = list(reversed(path.absolute().parts))
    links, at = 0, Path("/")
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while todo:
            name = todo.pop()
            try:
                # the root, the folder above and a name are opened in the same way; a link is opened itself
                next_fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            except FileNotFoundError:
                yield fd, False
                return
            about = os.fstat(next_fd)
            if not stat.S_ISLNK(about.st_mode):
                os.close(fd)
                fd, at = next_fd, (at.parent if name == ".." else at / name)
                continue
            try:
                leads_to = os.readlink("", dir_fd=next_fd)
            finally:
                os.close(next_fd)
            if about.st_uid not in (0, os.geteuid()):
                raise BadInput(f"{at / name}: the link belongs to user {about.st_uid}. {_LINK_REMEDY}")
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(at / name))
            todo += reversed(Path(leads_to).parts)
        yield fd, True
    finally:
        os.close(fd)


def _led_elsewhere(folder: Path) -> str | None:
    """Why nothing is written in a folder: a link of another user's leads there. Else None, also where it cannot be looked at."""
    try:
        with _way(folder):
            return None
    except BadInput as e:
        return str(e)
    except OSError:  # why not is told when something is made there
        return None


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """A folder for what a command writes, with all above it; no link of another user's is followed.

    Raises:
        BadInput: such a link is on the way.
    """
    if why := _led_elsewhere(folder):
        raise BadInput(f"{folder}: {why}")
    folder.mkdir(parents=True, exist_ok=True, mode=mode)


@contextmanager
def _pinned(folder: Path) -> Iterator[Path]:
    """A path to the folder that is found now, whatever becomes of the way to it meanwhile.

    Raises:
        BadInput: a link of another user's leads there.
    """
    with _way(folder) as (fd, whole):
        by_number = Path(f"/proc/self/fd/{fd}")
        yield by_number if whole and by_number.is_dir() else folder


def check_output(option: str, path: Path, inputs: Iterable[tuple[str, Path]] = (), overwrite: bool = False) -> None:
    """That a command may write `path` for its caller: the rule and the words of surefootd (docs/exit-codes.md).

    Args:
        option: by which the caller named it, or its folder.
        inputs: what the command reads: by which option, and where; a folder stands for all files under it.
        overwrite: whether a plain file that is there gives way.
    Raises:
        BadInput: what is in the way; it stays as it is.
    """
    if why := _led_elsewhere(path.parent) or _in_the_way(path):
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
    if why := _led_elsewhere(path.parent) or _in_the_way(path):
        raise BadInput(f"{path}: {why}")
    with naming(path), _pinned(path.parent) as folder:
        at = folder / path.name
        at.unlink(missing_ok=True)
        return at.open("x+", encoding="utf-8")


def write_bytes(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file whole or not at all: temporary name, fsync, rename. What is no plain file stays."""
    if why := _led_elsewhere(path.parent) or _in_the_way(path):
        raise BadInput(f"{path}: {why}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path), _pinned(path.parent) as folder:
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, folder / path.name)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        fsync_folder(folder)


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


HEADLINE = "headline.json"


def write_headline(folder: Path, values: Mapping[str, float | None]) -> None:
    """The few numbers of a stage that `dvc metrics` and `dvc exp show` put side by side; what is no number is left out."""
    write_json(folder / HEADLINE, {name: value for name, value in values.items() if value is not None and math.isfinite(value)})


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
