"""The table at the end of a run, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nooom.benchmarks.compare import Row
from nooom.benchmarks.reports.figures import gib, percent
from nooom.benchmarks.sources import PEAK


def show(rows: Sequence[Row], console: Console, sources: Sequence[str] = ("article",)) -> None:
    """Measured beside each source and its error: a line that names the case, then one for each phase."""
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("peak allocated, GiB", overflow="fold")
    for name in ("measured", *(name for source in sources for name in (source, "error"))):
        table.add_column(name, justify="right", no_wrap=True)
    before = None
    for row in rows:
        if row.case_id != before:
            if before is not None:
                table.add_section()
            table.add_row(f"[bold]{escape(row.label)}[/] ({row.source} on {row.device})")
        before = row.case_id
        table.add_row(f"  {row.phase}", *cells(row, sources), style="bold" if row.phase == PEAK else None)
    console.print(table)


def cells(row: Row, sources: Sequence[str]) -> list[str]:
    """The figures of one row; a case that did not finish shows its status where the figure would stand."""
    shown = [gib(row.measured_bytes) if row.status == "ok" else row.status]
    for source in sources:
        shown += [gib(row.predicted_bytes.get(source)), percent(row.error(source))]
    return shown
