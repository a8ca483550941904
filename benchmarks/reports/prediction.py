"""Predictions on a terminal: a column for each source, a row for each component, then whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nooom.benchmarks.reports.attribution import tensor_line
from nooom.benchmarks.reports.console import console as new_console
from nooom.benchmarks.reports.figures import gib


def show(label: str, document: Mapping[str, Any]) -> None:
    """Print what ``nooom predict --json`` holds."""
    console = new_console()
    predictions, gpu = document["predictions"], document["gpu"]
    console.print(Text.assemble((label, "bold"), _on(gpu)), soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("GiB", overflow="fold")
    for prediction in predictions:
        table.add_column(prediction["source"], justify="right", overflow="fold")
    for name in dict.fromkeys(name for prediction in predictions for name in prediction["components"]):
        sizes = [prediction["components"].get(name) for prediction in predictions]
        if any(size is not None for size in sizes):
            table.add_row(name, *map(gib, sizes))
    table.add_section()
    table.add_row("max_memory_allocated", *(gib(p["allocated_bytes"]) for p in predictions), style="bold")
    table.add_row("in phase", *(p["peak_phase"] or "-" for p in predictions))
    for figure, head in (("reserved_bytes", "max_memory_reserved"), ("device_bytes", "device, with context")):
        if any(p[figure] is not None for p in predictions):
            table.add_row(head, *(gib(p[figure]) for p in predictions))
    if gpu is not None:
        table.add_row("fits", *map(_fits, predictions), style="bold")
    console.print(table)
    for prediction in predictions:
        _show_out_of_memory(prediction, console)
        _show_tensors(prediction, console)
    for note in dict.fromkeys(note for prediction in predictions for note in prediction["uncertainties"]):
        console.print(f"{note}.", style="dim", soft_wrap=True)


def _on(gpu: Mapping[str, Any] | None) -> str:
    if gpu is None:
        return "; --gpu NAME says whether it fits"
    context = "unknown" if gpu["context_bytes"] is None else f"{gib(gpu['context_bytes'])} GiB"
    return f" on {gpu['name']}: {gib(gpu['usable_bytes'])} of {gib(gpu['total_bytes'])} GiB usable, context {context}"


def _fits(prediction: Mapping[str, Any]) -> str:
    if prediction["fits"] is None:
        return "-"
    word = "to spare" if prediction["fits"] else "too much"
    return f"{'yes' if prediction['fits'] else 'no'}, {gib(abs(prediction['headroom_bytes']))} {word}"


def _show_out_of_memory(prediction: Mapping[str, Any], console: Console) -> None:
    """Where a run with what the GPU has ended; arithmetic does not know."""
    oom = prediction["oom"]
    if oom is None or oom["tried_bytes"] is None:
        return
    op = f" by {oom['op']}" if oom["op"] else ""
    where = f" in {oom['phase']}" if oom["phase"] else ""
    tried = gib(oom["tried_bytes"])
    console.print(f"{prediction['source']}: runs out of memory{where}, asked for {tried} GiB{op}.", soft_wrap=True)


def _show_tensors(prediction: Mapping[str, Any], console: Console) -> None:
    if not prediction["tensors"]:
        return
    op = f", made by {prediction['peak_op']}" if prediction["peak_op"] else ""
    head = f"{prediction['source']}: the largest tensors at the peak of {prediction['peak_phase']}{op}, GiB:"
    console.print(head, soft_wrap=True)
    for tensor in prediction["tensors"]:
        console.print(f"  {tensor_line(tensor)}", soft_wrap=True)
