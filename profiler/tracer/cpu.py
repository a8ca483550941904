"""The CPU instrument with the tracer: the same running sum, and what each phase's peak is made of.

The profiler's event tree says of every allocation at which address it lies and inside which recorded function it was
made; the tracer records one around each operation, named by its number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nooom.profiler.instruments import Reading
from nooom.profiler.instruments.cpu import CpuInstrument
from nooom.profiler.tracer.journal import Journal
from nooom.profiler.tracer.ledger import Change, Ledger
from nooom.profiler.tracer.reading import explained, scratch


class AttributedCpu(CpuInstrument):
    """Allocated bytes on the CPU, and what they are."""

    def __init__(self) -> None:
        super().__init__()
        self._journal = Journal()
        self._ledger = Ledger()
        self._tracer: Any = None

    def open(self) -> None:
        from torch._C._profiler import _RecordFunctionFast

        from nooom.profiler.tracer.mode import Tracer

        super().open()
        # Nothing is taken between operations: a session is not closed in the middle of a backward pass.
        self._tracer = Tracer(self._journal, "cpu", lambda number: _RecordFunctionFast(str(number)), lambda: None)
        self._tracer.__enter__()

    def phase_begins(self, name: str) -> None:
        super().phase_begins(name)
        self._ledger.begin_phase()

    def read(self) -> Reading:
        self._tracer.owners.write_down()
        self._fold()
        reading = Reading(
            peak_allocated_bytes=self._ledger.peak_bytes, end_allocated_bytes=self._ledger.allocated_bytes
        )
        return explained(reading, self._ledger, self._tracer.owners)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "scratch": scratch(self._ledger)}

    def close(self) -> None:
        if self._tracer is not None:
            self._tracer.__exit__(None, None, None)
        super().close()

    def _count(self, results: Any) -> None:
        self._ledger.follow(list(_changes(results.experimental_event_tree())), self._journal.take())


def _changes(tree: list[Any]) -> Iterator[Change]:
    """Allocations and frees of every thread in the order of time."""
    found = sorted(_allocations(tree), key=lambda item: item[0])
    for _, address, size, number in found:
        yield Change(address, size, size, number)


def _allocations(tree: list[Any]) -> Iterator[tuple[int, int, int, int | None]]:
    """Time, address, bytes (negative for a free) and the operation's number of each."""
    waiting: list[tuple[Any, int | None]] = [(event, None) for event in tree]
    while waiting:
        event, number = waiting.pop()
        if event.name == "[memory]":
            facts = event.extra_fields
            if facts.device.type == "cpu":
                yield event.start_time_ns, facts.ptr, facts.alloc_size, number
            continue
        if event.name.isdigit():
            number = int(event.name)
        waiting.extend((child, number) for child in event.children)
