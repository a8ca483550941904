"""A replayed snapshot on a terminal: a row for each simulation, then what grew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nooom.benchmarks.reports.console import console as new_console
from nooom.benchmarks.reports.figures import gib

_FIRST = 26
"""Columns, for the settings: what is longer is folded."""
_SHOWN = 15
"""Groups that grew or shrank most."""


def show(document: Mapping[str, Any]) -> None:
    """Print what ``nooom replay --json`` holds."""
    console = new_console()
    head = f"{document['events']:,} events of device {document['device_index']}"
    console.print(Text.assemble((document["snapshot"], "bold"), f": {head}{_on(document)}"), soft_wrap=True)
    console.print(_table(document))
    for line in _failures(document):
        console.print(line, soft_wrap=True)
    if document["growth"] is not None:
        _show_growth(document["growth"], console)
    for note in document["notes"]:
        console.print(f"{note}.", style="dim", soft_wrap=True)


def _on(document: Mapping[str, Any]) -> str:
    gpu, recorded = document["gpu"], document["recorded"]
    if gpu is not None:
        return f", on {gpu['name']} with {gib(gpu['usable_bytes'])} GiB usable"
    if recorded["capacity_bytes"] is not None:
        return f"; memory ran out, at {gib(recorded['capacity_bytes'])} GiB"
    return ""


def _table(document: Mapping[str, Any]) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("peaks in GiB", overflow="fold", min_width=_FIRST)
    for name in ("reserved", "end", "allocated", "unused", "retries"):
        table.add_column(name, justify="right", no_wrap=True)
    recorded = document["recorded"]
    table.add_row("recorded", gib(recorded["peak_reserved_bytes"]), gib(recorded["final_reserved_bytes"]), "", "", "")
    for index, row in enumerate(document["replays"]):
        if index == 1:
            table.add_section()
        table.add_row(
            Text(_label(row, document)),
            gib(row["peak_reserved_bytes"]),
            gib(row["final_reserved_bytes"]),
            gib(row["peak_allocated_bytes"]),
            gib(row["fragmentation_bytes"]),
            f"{row['retries']}" if row["oom"] is None else "OOM",
            style="bold" if index == 0 else None,
        )
    return table


def _label(row: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    if row is document["replays"][0]:
        return "simulated"
    is_same = row["settings"] == document["recorded"]["settings"]
    on = f" on {row['capacity_source']}" if is_same and document["gpu"] is not None else ""
    start = ", start packed" if is_same and row["start"] == "packed" else ""
    return f"{'the same' if is_same else row['settings'] or 'no settings'}{on}{start}"


def _failures(document: Mapping[str, Any]) -> Iterator[str]:
    for row in document["replays"]:
        oom = row["oom"]
        if oom is not None:
            when = "before the first event" if oom["event"] is None else f"at event {oom['event']:,}"
            also = ", as in the recording" if oom["as_recorded"] else ""
            yield (
                f"{_label(row, document)}: out of memory {when}{also}: tried to allocate {gib(oom['tried_bytes'])} "
                "GiB; the figures are those until then."
            )
        elif row["met_ooms"]:
            yield f"{_label(row, document)}: the request that ran out of memory in the recording finds room."


def _show_growth(growth: Mapping[str, Any], console: Console) -> None:
    before, now = (growth["peak_requested_bytes"][name] for name in ("before", "now"))
    figures = f"{gib(before)} GiB, now {gib(now)} GiB ({_signed(now - before)})"
    console.print(f"\nrequested at the peak, {growth['against']}: {figures}", style="bold", soft_wrap=True)
    rows = growth["rows"]
    shown = sorted(rows, key=lambda row: abs(row["change_bytes"]), reverse=True)[:_SHOWN]
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("by the program's line" if growth["by"] == "site" else "by size", overflow="fold")
    for name in ("GiB", "before", "now", "blocks", "now"):
        table.add_column(name, justify="right", overflow="fold")
    for row in sorted(shown, key=lambda row: row["change_bytes"], reverse=True):
        size, count = row["bytes"], row["count"]
        cells = (_signed(row["change_bytes"]), gib(size["before"]), gib(size["now"]))
        table.add_row(Text(row["what"]), *cells, str(count["before"]), str(count["now"]))
    console.print(table)
    if len(rows) > len(shown):
        console.print(f"and {len(rows) - len(shown)} smaller changes; --json lists them all.", soft_wrap=True)
    if not rows:
        console.print("the same at both peaks.", soft_wrap=True)


def _signed(size: int) -> str:
    return f"{size / 2**30:+.3f}"
