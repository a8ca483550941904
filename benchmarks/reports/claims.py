"""The article's claims on a terminal: a line each, and how many of each verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from nooom.benchmarks.verdicts import Verdict


def show(found: Sequence[Verdict]) -> None:
    """Print the table and the counts."""
    console = Console(markup=False, highlight=False)
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in ("line", "claim", "verdict", "why"):
        table.add_column(name, overflow="fold", justify="right" if name == "line" else "left")
    for verdict in found:
        claim = verdict.claim
        table.add_row(str(claim.line), f"{claim.says}\n({claim.id})", verdict.word, verdict.why)
    console.print(table)
    counts = Counter(verdict.word for verdict in found)
    console.print(f"{len(found)} claims: " + ", ".join(f"{n} {word}" for word, n in counts.most_common()))
