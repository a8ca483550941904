"""``measurements.jsonl``: one record a line, append-only; a run that dies tears at most the line it was writing."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.formulas.errors import NooomError, UsageError
from nooom.profiler.measurement import Measurement, RecordError

FILE_NAME = "measurements.jsonl"
_MAX_LINES = 100_000
"""More than any suite has; a file of millions of lines is refused before it fills the memory with records."""


class JournalError(NooomError):
    """A finished measurement could not be written where it was asked for."""


class Journal:
    """Appends finished measurements to a folder's journal.

    Each record is one ``write`` of one whole line, flushed to the disk before the next case begins.  One run at a time
    may write; a torn last line that a killed run left behind is put aside when the journal is opened.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise UsageError(f"--out {folder}: can't write {self.path}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise UsageError(f"--out {folder}: {self.path} is not a regular file")
        self._lock()
        self.torn = self._put_torn_line_aside()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def append(self, measurement: Measurement) -> None:
        """Write one record; raises JournalError, with the record kept elsewhere, when the disk takes no more."""
        line = (json.dumps(measurement.to_json(), allow_nan=False) + "\n").encode()
        size = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(28, "no space left for the whole line")
            os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, size)
            kept = _rescued(line)
            raise JournalError(
                f"{self.path}: {error.strerror}; what was finished before is kept, the last record is {kept}; "
                "make room and run again with --resume"
            ) from error

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows: nobody is kept out
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another run is writing {self.path}; wait for it, or use another --out") from error
        except OSError:
            return  # a file system without locks

    def _put_torn_line_aside(self) -> Path | None:
        """Move what follows the last newline to a file beside the journal; None when the last line is whole."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole == len(content):
            return None
        aside = self.path.with_suffix(".torn")
        aside.write_bytes(content[whole:])
        os.ftruncate(self._fd, whole)
        return aside


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a journal, and where it stands: an error about it can say so."""

    file: Path
    line: int
    measurement: Measurement

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def read(path: Path) -> Iterator[Measurement]:
    """The measurements of a journal, or of every journal under a folder; raises as :func:`entries` does."""
    for entry in entries(path):
        yield entry.measurement


def entries(path: Path, *, torn: bool = True) -> Iterator[Entry]:
    """The lines of a journal, or of every journal under a folder, in file order.

    Args:
        path: the file or folder.
        torn: pass over a last line that has no newline at its end, as a killed run leaves it.

    Raises:
        UsageError: nothing there, unreadable, too many lines, or a line that is no measurement, with its file and
            number; without ``torn``, a torn line too.
    """
    for file in journals(path):
        yield from entries_of(file, torn=torn)


def entries_of(file: Path, *, torn: bool = True) -> Iterator[Entry]:
    """The lines of one file, whatever its name; raises as :func:`entries` does."""
    try:
        text = file.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8 text (byte {error.start})") from error
    whole, _, rest = text.rpartition("\n")
    count = text.count("\n")
    if rest.strip() and not torn:
        raise RecordError(f"{file}:{count + 1}: the line is torn, no newline ends it: the file was cut short")
    if count > _MAX_LINES:
        raise RecordError(f"{file}:{_MAX_LINES + 1}: {count} lines; a file of measurements has at most {_MAX_LINES}")
    for number, line in enumerate(whole.split("\n"), 1):
        if line.strip():
            yield Entry(file=file, line=number, measurement=_parsed(line, file, number))


def journals(path: Path) -> list[Path]:
    """The journals that a path names: a file itself, or every ``measurements.jsonl`` under a folder."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path}: no such file or folder")
    found = sorted(file for file in path.rglob(FILE_NAME) if file.is_file())  # no pipe, on which a read would wait
    if not found:
        raise UsageError(f"{path}: no {FILE_NAME} in it or under it")
    return found


def _parsed(line: str, file: Path, number: int) -> Measurement:
    try:
        return Measurement.from_json(json.loads(line, parse_constant=_no_constants))
    except UsageError as error:
        raise RecordError(f"{file}:{number}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{file}:{number}: not JSON: {error}") from error


def _no_constants(name: str) -> Any:
    raise ValueError(f"{name} is not a figure")


def _rescued(line: bytes) -> str:
    """Where a record went that its own disk had no room for."""
    try:
        with tempfile.NamedTemporaryFile(prefix="nooom-", suffix=".jsonl", delete=False) as file:
            file.write(line)
        return f"in {file.name}"
    except OSError:
        return "lost: the folder for temporary files is full too"
