"""GitHub Actions' annotations: lines that the runner reads from a step's output.

Import it under another name: ``annotations`` is taken in every module that begins with ``from __future__``.
"""

from collections.abc import Iterator, Sequence

from nooom.benchmarks import gate
from nooom.benchmarks.reports.gate.words import (
    STATES,
    by_kind,
    change,
    counted,
    moved,
    named,
    plain,
    suspects,
    worst_of_each,
)

_MOST = 10
"""Annotations of one kind that GitHub shows of a step; it drops the others without a word, the last one too."""
_GREW = 3


def annotations(report: gate.Report, *, strict: bool = False) -> list[str]:
    """An error for each case that failed, a warning for each that is undecided, one notice of improvements.

    Args:
        report: what was found.
        strict: what is undecided is an error.
    """
    failed = (*gate.FAILED, *gate.UNDECIDED) if strict else gate.FAILED
    undecided = () if strict else gate.UNDECIDED
    lines = [
        *_kind("error", worst_of_each(report.rows, failed)),
        *_kind("warning", worst_of_each(report.rows, undecided)),
    ]
    if improved := counted(report, ["improvement"]):
        lines.append(_command("notice", "nooom check", f"{improved}: update the baseline to keep them"))
    return lines


def _kind(kind: str, rows: Sequence[gate.Row]) -> Iterator[str]:
    shown = rows if len(rows) <= _MOST else rows[: _MOST - 1]
    for row in shown:
        yield _command(kind, f"nooom check: {STATES[row.state]}", _said(row))
    if left := len(rows) - len(shown):
        yield _command(kind, "nooom check", f"{left} more cases; the check's summary.md and report.csv have them all")


def _said(row: gate.Row) -> str:
    """One line of the case, and below it what it is put down to."""
    figures = moved(row)
    said = [named(row) + (f": {figures}" if figures else "")]
    if row.note is not None:
        said.append(plain(row.note))
    said += [f"{change(one.change_bytes)} {plain(one.name)}" for one in by_kind(row.grew)[:_GREW]]
    if row.suspects:
        said.append(f"suspects: {', '.join(suspects(row))}")
    return "\n".join(said)


def _command(kind: str, title: str, message: str) -> str:
    return f"::{kind} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
