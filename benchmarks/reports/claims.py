"""The article's claims on a terminal: a line each under its section, then how many got each verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from nooom.benchmarks.reports.console import console as new_console
from nooom.benchmarks.verdicts import Verdict, counts


def show(found: Sequence[Verdict]) -> None:
    """Print the table and the counts; what is broken stands out."""
    console = new_console()
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("line", justify="right", no_wrap=True)
    table.add_column("claim", overflow="fold", ratio=3)
    table.add_column("verdict", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=5)
    section = None
    for verdict in found:
        claim = verdict.claim
        if claim.section != section:
            if section is not None:
                table.add_section()
            table.add_row("", claim.section, style="bold")
        section = claim.section
        word = Text(verdict.word, style="bold red" if verdict.broken else "")
        table.add_row(str(claim.line), claim.says, word, verdict.why)
    console.print(table)
    console.print(summary(found), soft_wrap=True)


def summary(found: Sequence[Verdict]) -> str:
    """``129 claims, 20 broken: 48 holds, 13 roughly, ...``"""
    listed = ", ".join(f"{number} {word}" for word, number in counts(found).items())
    return f"{len(found)} claims, {sum(verdict.broken for verdict in found)} broken: {listed}"
