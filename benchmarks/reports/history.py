"""The history of a case's baseline, for a terminal: a line for each version, and a bar that draws it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from nooom.benchmarks.history import Version, phases
from nooom.benchmarks.reports.console import console as report_console
from nooom.benchmarks.reports.figures import gib

_BAR = 16
_SUBJECT = 40


def show(label: str, file: Path, versions: Sequence[Version]) -> None:
    """Each phase's peak in GiB in every commit, how the highest moved, and its size as a bar from nothing."""
    console = report_console()
    console.print(Text.assemble((label, "bold"), f"  {file}"), soft_wrap=True)
    names = list(phases(versions))
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in ("commit", "date"):
        table.add_column(name, no_wrap=True)
    for name in [*names, "change"]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("peak, GiB", no_wrap=True)
    highest = max((one.record.peak_allocated_bytes or 0 for one in versions if one.record is not None), default=0)
    before: int | None = None
    for one in versions:
        peak = one.record.peak_allocated_bytes if one.record is not None else None
        figures = {} if one.record is None else {phase.name: phase.peak_allocated_bytes for phase in one.record.phases}
        change = "" if before is None or peak is None else f"{(peak - before) / 2**20:+.1f} MiB"
        bar = "#" * round(_BAR * peak / highest) if peak and highest else "taken out" if one.record is None else ""
        shown = [gib(figures.get(name)) for name in names]
        table.add_row(one.commit[:10], one.date[:10], *shown, change, bar)
        before = peak if peak is not None else before
    console.width = max(console.width, console.measure(table).maximum)  # a cut figure is a wrong one
    console.print(table)
    for one in versions:
        subject = one.subject if len(one.subject) <= _SUBJECT * 2 else one.subject[: _SUBJECT * 2] + "..."
        console.print(f"  {one.commit[:10]}  {_printable(subject)}", soft_wrap=True)


def _printable(text: str) -> str:
    """A commit's subject is anyone's text: nothing in it may move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
