"""``measurements.jsonl`` read: one record a line, append-only; a run that dies tears at most the line it was writing.

What writes it stands a floor below, in ``profiler/journal.py``, because a block of anyone's code writes it too.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.formulas.errors import UsageError
from nooom.profiler.journal import FILE_NAME, Journal, JournalError
from nooom.profiler.measurement import Measurement, RecordError

__all__ = ["FILE_NAME", "Entry", "Journal", "JournalError", "entries", "entries_of", "journals", "read"]

_A_PATH = re.compile(r"(?<![\w.:/-])/(?:[^\s/'\":]+/)+")
"""An absolute one up to its last part: where a file lay on the machine that measured is nobody's business."""
_MAX_LINES = 100_000
"""More than any suite has; a file of millions of lines is refused before it fills the memory with records."""


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
        return Measurement.from_json(json.loads(line, parse_constant=_no_constants, parse_float=_finite))
    except UsageError as error:
        raise RecordError(f"{file}:{number}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{file}:{number}: not JSON: {error}") from error


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_constants(text)


def _no_constants(name: str) -> Any:
    raise ValueError(f"{name} is not a figure")


def canonical(record: Measurement) -> str:
    """One line, the same for the same record: keys sorted, and no path of the machine that measured."""
    error = _without_paths(record.error) if record.error is not None else None
    return json.dumps(
        dataclasses.replace(record, error=error).to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False
    )


def _without_paths(error: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _A_PATH.sub("", value) if isinstance(value, str) else value for name, value in error.items()}
