"""What is known of one measured test or block when it has ended, and the lines that say so.

A row crosses from a pytest-xdist worker to the controller as JSON; nothing here imports more than the words for it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OVER, UNKNOWN, NEW, NOT_COMPARABLE, FAILED = "over", "unknown", "new", "not_comparable", "failed"
"""States besides those of ``profiler.regression`` and a record's status."""
BASELINES = "gpu-memory-baselines"
"""The folder in which baselines lie unless a mark or the ini file names another."""
_TENSORS = 5
_CRUMB = 0.01
"""Of the largest: less than this explains nothing."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the summary, and its record."""

    name: str
    evidence: str
    peak_bytes: int | None
    states: tuple[str, ...]
    """Empty: measured, and held against nothing."""
    against: tuple[str, ...] = ()
    """``limit 16.00 MiB``, ``baseline 12.00 MiB``."""
    notes: tuple[str, ...] = ()
    record: dict[str, Any] | None = None

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Row:
        found = json.loads(text)
        return cls(**{**found, **{name: tuple(found[name]) for name in ("states", "against", "notes")}})


def size(size_bytes: int | None) -> str:
    """``24.00 MiB``, in the largest unit that it has one of; tests' tensors are small."""
    if size_bytes is None:
        return "unknown"
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(size_bytes) >= factor:
            return f"{size_bytes / factor:.2f} {unit}"
    return f"{size_bytes} bytes"


def change(change_bytes: int, base_bytes: int | None) -> str:
    """``+8.00 MiB (+50.0 %)``."""
    share = f" ({change_bytes / base_bytes:+.1%})" if base_bytes else ""
    return f"{'+' if change_bytes > 0 else ''}{size(change_bytes)}{share}"


def tensor_lines(tensors: Sequence[Mapping[str, Any]], hidden: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The largest blocks, tensors and what no tensor owns, each with what made it; crumbs are left out."""
    from nooom.profiler.regression import tensor_name

    blocks = [*tensors, *({"category": "workspace", "dtype": None, "site": None, **block} for block in hidden)]
    largest = sorted(blocks, key=lambda item: -item["bytes"] * item["count"])[:_TENSORS]
    for block in (one for one in largest if one["bytes"] * one["count"] >= _CRUMB * largest[0]["bytes"]):
        count = "" if block["count"] == 1 else f" ({block['count']} of {size(block['bytes'])})"
        site = f" at {block['site']}" if block["site"] else ""
        yield f"  {size(block['bytes'] * block['count'])}{count}  {tensor_name(block)}{site}"


def summary(rows: Iterable[Row]) -> list[str]:
    """The section at the end of a session, one line a row and its notes below."""
    known = list(rows)
    table = [(size(row.peak_bytes), ", ".join((*row.against, *row.states)), row.evidence, row.name) for row in known]
    widths = [max((len(line[column]) for line in table), default=0) for column in range(3)]
    lines = []
    for row, (peak, said, evidence, name) in zip(known, table, strict=True):
        cells = (peak.rjust(widths[0]), evidence.ljust(widths[2]), said.ljust(widths[1]), name)
        lines.append("  ".join(cell for cell in cells if cell.strip()))
        lines += [f"    {note}" for note in row.notes]
    return lines
