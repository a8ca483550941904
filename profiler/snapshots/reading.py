"""A file from anywhere as plain data: a pickle or JSON, compressed or not, and no larger than what is said here."""

from __future__ import annotations

import gzip
import json
import stat
import zlib
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from nooom.formulas.errors import UsageError
from nooom.profiler.snapshots import plain_pickle

MOST_PICKLE_BYTES = 512 << 20
"""Of a pickle, decompressed; what it makes in memory is counted too (``plain_pickle.MOST_BYTES``)."""
MOST_JSON_BYTES = 64 << 20
"""The same of JSON, of which a byte may take 30 in memory."""

_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_BEGINNING = 4096


def read(path: Path) -> Any:
    """What the file holds: dictionaries, lists, strings and numbers.

    Raises:
        UsageError: There is no such file, or it is not what it should be, or it is too large.  One line, with its name.
    """
    try:
        data, is_json = _bytes(path)
    except (OSError, EOFError, zlib.error) as error:  # a damaged archive is one of these
        raise UsageError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        return _json(data) if is_json else plain_pickle.load(data)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _bytes(path: Path) -> tuple[bytes, bool]:
    """All of the file, decompressed, and whether it is JSON."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path}: not a file")
    if status.st_size > MOST_PICKLE_BYTES:
        _too_large(path, status.st_size, MOST_PICKLE_BYTES)
    with open(path, "rb") as file:
        head = file.read(len(_ZIP))
        file.seek(0)
        if head == _ZIP:
            raise UsageError(f"{path}: a zip archive; a snapshot is a pickle or JSON, as it is or in gzip")
        if not head.startswith(_GZIP):
            return _at_most(path, file)
        with gzip.open(file) as inside:
            return _at_most(path, inside)


def _at_most(path: Path, file: BinaryIO | gzip.GzipFile) -> tuple[bytes, bool]:
    """All of it; of what is too large no more than that is decompressed."""
    is_json = file.read(_BEGINNING).lstrip()[:1] in (b"{", b"[")
    file.seek(0)
    most = MOST_JSON_BYTES if is_json else MOST_PICKLE_BYTES
    data = file.read(most + 1)
    if len(data) > most:
        _too_large(path, None, most)
    if not data:
        raise UsageError(f"{path}: empty")
    return data, is_json


def _too_large(path: Path, size: int | None, most: int) -> NoReturn:
    has = f"more than {most >> 20}" if size is None else f"{size >> 20}"
    raise UsageError(
        f"{path}: {has} MiB, and {most >> 20} MiB are read at most: record fewer events, or shorter stacks "
        "(torch.cuda.memory._record_memory_history has max_entries and context)"
    )


def _json(data: bytes) -> Any:
    try:
        return json.loads(data, parse_constant=_no_number, parse_int=_integer)
    except RecursionError:
        raise UsageError("the JSON is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"the JSON is not UTF-8, at byte {error.start:,}") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"the JSON is damaged or cut off: {error.msg} at line {error.lineno:,}") from None


def _no_number(word: str) -> NoReturn:
    raise UsageError(f"the JSON has {word}, which is no number")


def _integer(digits: str) -> int:
    if len(digits) > 20:
        raise UsageError(f"the JSON has a number of {len(digits):,} digits")
    return int(digits)
