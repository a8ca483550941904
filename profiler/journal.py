"""``measurements.jsonl`` written: one record a line, append-only; a run that dies tears at most the line it writes."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
from pathlib import Path

from nooom.formulas.errors import NooomError, UsageError
from nooom.profiler.measurement import Measurement

FILE_NAME = "measurements.jsonl"
_PATIENCE_S = 10.0
"""How long one record waits for whoever else appends to its file."""
_LOOK_AGAIN_S = 0.02


class JournalError(NooomError):
    """A finished measurement could not be written where it was asked for."""


def append(folder: Path, measurement: Measurement) -> None:
    """Append one record from within anyone's program, after whoever else is appending: a thread, a process, a run.

    Raises:
        JournalError: it can't be written there; the record is kept elsewhere, and the message says where.
    """
    try:
        with Journal(folder, asked="out=", patience_s=_PATIENCE_S) as journal:
            journal.append(measurement)
    except UsageError as error:
        raise JournalError(f"{error}; the record is {_rescued(_line(measurement))}") from error


def refuse_what_takes_no_record(folder: Path) -> None:
    """Make the folder and its journal, so that a wrong one is named before anything is measured and not after.

    Raises:
        UsageError: nothing can be written there.
    """
    os.close(_opened(folder, "out="))


class Journal:
    """Appends finished measurements to a folder's journal.

    Each record is one ``write`` of one whole line, flushed to the disk before the next case begins.  One run at a time
    may write; a torn last line that a killed run left behind is put aside when the journal is opened.

    Args:
        folder: where the journal lies; made where it is not there.
        asked: how the folder was asked for, for messages.
        patience_s: how long another writer is waited for.
    """

    def __init__(self, folder: Path, *, asked: str = "--out ", patience_s: float = 0.0) -> None:
        self.path = folder / FILE_NAME
        self._advice = "make room and run again with --resume" if asked == "--out " else "make room"
        self._elsewhere = f"use another {asked.rstrip(' =')}"
        self._fd = _opened(folder, asked)
        try:
            self._lock(time.monotonic() + patience_s)
            self.torn = self._put_torn_line_aside()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def append(self, measurement: Measurement) -> None:
        """Write one record; raises JournalError, with the record kept elsewhere, when the disk takes no more."""
        line = _line(measurement)
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
                f"{self._advice}"
            ) from error

    def _lock(self, deadline: float) -> None:
        try:
            import fcntl
        except ImportError:  # Windows: nobody is kept out
            return
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise UsageError(
                        f"another run is writing {self.path}; wait for it, or {self._elsewhere}"
                    ) from error
            except OSError:
                return  # a file system without locks
            else:
                return
            time.sleep(_LOOK_AGAIN_S)

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


def _opened(folder: Path, asked: str) -> int:
    """A descriptor of the folder's journal, at whose end is written; raises UsageError where there can't be one."""
    path = folder / FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(f"{asked}{folder}: can't write {path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UsageError(f"{asked}{folder}: {path} is not a regular file")
    return fd


def _line(measurement: Measurement) -> bytes:
    return (json.dumps(measurement.to_json(), allow_nan=False) + "\n").encode()


def _rescued(line: bytes) -> str:
    """Where a record went that its own disk had no room for."""
    try:
        with tempfile.NamedTemporaryFile(prefix="nooom-", suffix=".jsonl", delete=False) as file:
            file.write(line)
        return f"in {file.name}"
    except OSError:
        return "lost: the folder for temporary files is full too"
