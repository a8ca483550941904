"""``nooom validate`` on a terminal and as Markdown: the comparison, then each source's scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from nooom.benchmarks import scores
from nooom.benchmarks.compare import Row
from nooom.benchmarks.reports import terminal
from nooom.benchmarks.reports.console import console as new_console
from nooom.benchmarks.reports.figures import gib, percent

HEAD = ("n", "median", "p95", "worst", "under", "PEF", "MCP, GiB")


def show(rows: Sequence[Row], names: Sequence[str]) -> None:
    """Print both tables."""
    console = new_console()
    terminal.show(rows, console, names)
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, title="peaks", title_justify="left")
    table.add_column("source and cases", overflow="fold")
    for name in HEAD:
        table.add_column(name, justify="right", no_wrap=True)
    for cells in lines(rows, names):
        table.add_row(*cells, style="bold" if not cells[0].startswith(" ") else None)
    console.print(table)
    console.print(
        "median, p95 and worst are relative errors of the peaks; under is the share predicted too low; PEF the share "
        "of cases in which trusting the estimate fails; MCP the memory that it conserves a run.",
        style="dim",
        soft_wrap=True,
    )


def lines(rows: Sequence[Row], names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The cells of the scores' table: a line for each source and evidence, then one for each workload."""
    for name in names:
        for evidence in dict.fromkeys(row.evidence for row in rows):
            part = [row for row in rows if row.evidence == evidence]
            yield (f"{name}, {evidence}", *_cells(scores.score(part, name)))
            for workload in dict.fromkeys(row.workload for row in part):
                yield (f"  {workload}", *_cells(scores.score([r for r in part if r.workload == workload], name)))


def _cells(found: scores.Score) -> tuple[str, ...]:
    shares = (found.under_predicted, found.pef)
    return (
        str(found.n),
        *(_plain(error) for error in (found.median_abs_error, found.p95_abs_error)),
        percent(found.worst_error),
        *("-" if share is None else f"{share:.0%}" for share in shares),
        gib(found.mcp),
    )


def _plain(error: float | None) -> str:
    return percent(error).removeprefix("+")


def as_markdown(rows: Sequence[Row], names: Sequence[str]) -> str:
    """The scores' table."""
    table = ["| source and cases | " + " | ".join(HEAD) + " |", "|---|" + "--:|" * len(HEAD)]
    for first, *rest in lines(rows, names):
        label = f"**{first}**" if not first.startswith(" ") else first.strip()
        table.append(f"| {label} | " + " | ".join(rest) + " |")
    return "\n".join(table) + "\n"
