"""What peaks are made of, for a terminal: bytes by category in every phase, and the tensors of the highest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nooom.benchmarks.reports.figures import gib
from nooom.profiler.measurement import Measurement, Phase


def there(record: Measurement) -> bool:
    """Whether a record says what its memory was, or why it does not."""
    explained = any(phase.components is not None for phase in record.phases) or "components" in (record.error or {})
    return explained or "attribution" in record.fingerprint


def show(record: Measurement, console: Console) -> None:
    """Print a record's attribution; what it lacks is said."""
    phases = [phase for phase in record.phases if phase.components is not None]
    console.print(Text.assemble("\n", (record.label, "bold"), ": what the peaks are made of, GiB"), soft_wrap=True)
    if failed := record.fingerprint.get("attribution"):
        console.print(f"  the pass that names them did not end as the case did: {failed}", soft_wrap=True)
    if phases:
        console.print(_components(phases, one_pass=record.source == "dryrun"))
        highest = max(phases, key=lambda phase: phase.peak_allocated_bytes or 0)
        _show_largest(f"at the peak of {highest.name}", highest.tensors or (), highest.hidden or (), console)
    error = record.error or {}
    if error.get("components"):
        console.print(f"Alive when memory ran out in {error['phase']}, GiB:", soft_wrap=True)
        for name, size in error["components"].items():
            if size:
                console.print(f"  {name:<12} {gib(size):>9}")
        _show_largest("then", error["tensors"], error["hidden"], console)


def _show_largest(
    when: str, tensors: Iterable[Mapping[str, Any]], hidden: Sequence[Mapping[str, Any]], console: Console
) -> None:
    console.print(f"The largest tensors {when}:", soft_wrap=True)
    for tensor in tensors:
        console.print(f"  {tensor_line(tensor)}", soft_wrap=True)
    if hidden:
        console.print("What no tensor owns, by the operation that asked for it:", soft_wrap=True)
    for block in hidden:
        console.print(f"  {hidden_line(block)}", soft_wrap=True)


def _components(phases: list[Phase], *, one_pass: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("")
    for phase in phases:
        table.add_column(phase.name, justify="right", overflow="fold")
    found = [phase.components or {} for phase in phases]
    for name in found[0]:
        if any(components[name] for components in found):
            table.add_row(name, *(gib(components[name]) for components in found))
    table.add_section()
    total = "peak" if one_pass else "peak, attributed"
    table.add_row(total, *(gib(sum(components.values())) for components in found), style="bold")
    if not one_pass:
        table.add_row("against measured", *map(_difference, phases))
    return table


def _difference(phase: Phase) -> str:
    """How much the tracer itself moved the peak."""
    measured, attributed = phase.peak_allocated_bytes, sum((phase.components or {}).values())
    return "-" if not measured else f"{attributed / measured - 1:+.3%}"


def tensor_line(tensor: Mapping[str, Any]) -> str:
    """``2.318 GiB  logits  float32 [4096, 151936]  by aten._log_softmax.default at loss/loss_utils.py:42``."""
    count = "" if tensor["count"] == 1 else f" ({tensor['count']} of {gib(tensor['bytes'])})"
    parts = [f"{gib(tensor['bytes'] * tensor['count'])}{count}", tensor["category"]]
    if tensor["what"] is not None:
        parts.append(tensor["what"])
    if tensor["dtype"] is not None:
        parts.append(f"{tensor['dtype']} {tensor['shape']}")
    if tensor["op"] is not None:
        origin = f"by {tensor['op']}"
        origin += f" of {tensor['module']}" if tensor["module"] else ""
        parts.append(origin + (f" at {tensor['site']}" if tensor["site"] else ""))
    return "  ".join(parts)


def hidden_line(block: Mapping[str, Any]) -> str:
    """``0.008 GiB  cuBLAS workspace  by aten.mm.default, backward of lm_head``."""
    count = "" if block["count"] == 1 else f" ({block['count']} of {gib(block['bytes'])})"
    parts = [f"{gib(block['bytes'] * block['count'])}{count}", block["what"] or "unknown"]
    if block["op"] is None:
        parts.append("before the case, or between operations")
    else:
        backward = ", backward" if block["backward"] else ""
        parts.append(f"by {block['op']}{backward}" + (f" of {block['module']}" if block["module"] else ""))
    return "  ".join(parts)
