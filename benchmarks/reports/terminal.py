"""The table at the end of a run, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from nooom.benchmarks.compare import PEAK, Row
from nooom.benchmarks.reports.figures import gib, percent


def show(rows: Sequence[Row], console: Console, sources: Sequence[str] = ("article",)) -> None:
    """Measured beside each source and its error, per case and phase; the case is named once."""
    table = Table(title="peak allocated, GiB (1 GiB = 2^30 bytes)", title_justify="left", header_style="bold")
    table.add_column("case", overflow="fold")
    table.add_column("evidence")
    table.add_column("phase")
    table.add_column("measured", justify="right")
    for source in sources:
        table.add_column(source, justify="right")
        table.add_column("error", justify="right")
    before = None
    for row in rows:
        if before is not None and row.case_id != before:
            table.add_section()
        first, before = row.case_id != before, row.case_id
        style = "bold" if row.phase == PEAK else None
        table.add_row(*cells(row, sources, first), style=style)
    console.print(table)


def cells(row: Row, sources: Sequence[str], first: bool = True) -> list[str]:
    """One row's texts; a case that did not finish shows its status where the figure would stand."""
    measured = gib(row.measured_bytes) if row.status == "ok" else row.status
    shown = [row.label if first else "", f"{row.source} {row.device}" if first else "", row.phase, measured]
    for source in sources:
        shown += [gib(row.predicted_bytes.get(source)), percent(row.error(source))]
    return shown
