"""The table at the end of a run, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from nooom.benchmarks.compare import Row
from nooom.benchmarks.reports.figures import gib, percent
from nooom.benchmarks.sources import DRYRUN, PEAK


def show(rows: Sequence[Row], console: Console, sources: Sequence[str] = ("article",)) -> None:
    """Measured beside each source and its error: a line that names the case, then one for each phase.

    More sources than have room beside one another show their errors alone.
    """
    many = len(sources) > _BESIDE
    names = [_evidence(rows), *(sources if many else (name for source in sources for name in (source, "error")))]
    first, width = 20, max(9, *map(len, names[:1] if many else names))
    console.print(_line("peak allocated, GiB", names, first, width), style="bold", soft_wrap=True)
    before = None
    for row in rows:
        if row.record != before:
            console.print(Text.assemble("\n", (row.label, "bold"), f" ({row.evidence})"), soft_wrap=True)
        before = row.record
        style = "bold" if row.phase == PEAK else None
        shown = cells(row, sources, errors_alone=many)
        console.print(_line(f"  {row.phase}", shown, first, width), style=style, soft_wrap=True)
    console.print()


def _evidence(rows: Sequence[Row]) -> str:
    """What the first column holds; the words behind each case say what ran."""
    dry = {row.source == DRYRUN for row in rows}
    return "measured" if True not in dry else "dry run" if dry == {True} else "peak"


def _line(head: str, cells: Sequence[str], first: int, width: int) -> Text:
    return Text(head.ljust(first) + "".join(f"  {cell:>{width}}" for cell in cells))


_BESIDE = 2
"""Sources whose figure and error have room on a terminal of eighty columns."""


def cells(row: Row, sources: Sequence[str], *, errors_alone: bool = False) -> list[str]:
    """The figures of one row; a case that did not finish shows its status where the figure would stand."""
    shown = [gib(row.measured_bytes) if row.status == "ok" else row.status]
    for source in sources:
        shown += (
            [percent(row.error(source))]
            if errors_alone
            else [gib(row.predicted_bytes.get(source)), percent(row.error(source))]
        )
    return shown
