"""What a check found, on a terminal: the verdict, then the worst rows with what stands behind them."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from nooom.benchmarks import gate
from nooom.benchmarks.reports.gate.about import About
from nooom.benchmarks.reports.gate.words import STATES, details, headline, moved, named, others, plain

_MOST = 40
"""Rows that are shown; nobody reads more on a terminal."""
_STYLES = {**dict.fromkeys(gate.FAILED, "red"), **dict.fromkeys(gate.UNDECIDED, "yellow")}


def show(report: gate.Report, console: Console, about: About) -> None:
    """Print it.  Lines are wrapped by the terminal, never cut; no line begins with text from outside."""
    rest = others(report)
    good = "bold green" if about.exit_code == 0 else "bold red"
    console.print(_text((headline(report, about), good), f" ({rest})" if rest else ""), soft_wrap=True)
    console.print(
        _text(f"baseline {plain(about.baseline)}, current {plain(about.current)}"), style="dim", soft_wrap=True
    )
    rows = [row for row in report.rows if row.state != "pass"]
    for row in rows[:_MOST]:
        state = (f"{STATES[row.state]}: ", _STYLES.get(row.state, "green"))
        console.print(_text("\n", state, (named(row), "bold")), soft_wrap=True)
        if (figures := moved(row)) is not None:
            console.print(_text(f"  {figures}"), soft_wrap=True)
        for line in details(row):
            console.print(_text(f"  {line}"), soft_wrap=True)
    if len(rows) > _MOST:
        console.print(f"\nand {len(rows) - _MOST} more; report.csv has every row", soft_wrap=True)
    console.print()


def _text(*parts: str | tuple[str, str]) -> Text:
    """Text in which ``##[`` is broken up: a GitHub runner takes it for a command wherever it stands in a line."""
    broken = [
        part.replace("##[", "# #[") if isinstance(part, str) else (part[0].replace("##[", "# #["), part[1])
        for part in parts
    ]
    return Text.assemble(*broken)
