"""The CUDA instrument with the tracer: the same readings, and what each phase's peak is made of.

PyTorch's allocator records its own events, each with what stands as the thread's *metadata* at that moment, which is
the number of the operation that runs.  Nothing is asked of the GPU and no stack is kept, so the peaks stay what they
were; the run without the tracer stays the measurement all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nooom.profiler.instruments import Reading
from nooom.profiler.instruments.cuda import CudaInstrument, reading_from
from nooom.profiler.measurement import EXPLANATION
from nooom.profiler.phantom.instrument import PhantomInstrument
from nooom.profiler.tracer.blocks import Blocks
from nooom.profiler.tracer.journal import Journal
from nooom.profiler.tracer.ledger import Change, Ledger
from nooom.profiler.tracer.reading import explained, scratch

_HISTORY_ENTRIES = 1 << 21
"""Far more than happens between two moments at which the events are taken."""


class CudaTrace:
    """The tracer and the allocator's events of one GPU, joined."""

    def __init__(self) -> None:
        import torch

        from nooom.profiler.tracer.mode import Tracer

        self._torch = torch
        self._journal = Journal()
        self.ledger = Ledger()
        self._record()
        snapshot = torch.cuda.memory._snapshot()
        self._blocks = Blocks(snapshot["allocator_settings"])
        here = [segment for segment in snapshot["segments"] if segment["device"] == torch.cuda.current_device()]
        before = [Change(*found, None) for found in self._blocks.begin(here)]
        self.ledger.follow(before, ())
        self._tracer = Tracer(self._journal, "cuda", _Running, self.take)
        self._tracer.__enter__()

    def close(self) -> None:
        self._tracer.__exit__(None, None, None)
        self._torch.cuda.memory._record_memory_history(enabled=None)

    def take(self) -> None:
        """What happened since the last time goes into the ledger."""
        snapshot = self._torch.cuda.memory._snapshot()
        self._record()
        events = snapshot["device_traces"][self._torch.cuda.current_device()]
        self.ledger.follow(list(self._changes(events)), self._journal.take())

    def begin_phase(self) -> None:
        self.take()
        self.ledger.begin_phase()

    def explain(self, reading: Reading) -> Reading:
        """The reading, with what its peak is made of."""
        self._tracer.owners.write_down()
        self.take()
        return explained(reading, self.ledger, self._tracer.owners)

    def statistics(self) -> dict[str, int]:
        """The allocator's, as they are."""
        found: dict[str, int] = self._torch.cuda.memory_stats()
        return found

    def _record(self) -> None:
        self._torch.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=_HISTORY_ENTRIES, clear_history=True
        )

    def _changes(self, events: list[dict[str, Any]]) -> Iterator[Change]:
        for event in events:
            if "addr" not in event:  # of an "oom", which changes nothing
                continue
            size = self._blocks.follow(event["action"], event["addr"], event["size"])
            if size:
                number = int(event["user_metadata"]) if event["user_metadata"] else None
                yield Change(event["addr"], size, event["size"], number)


class _Running:
    """While it is open, what the thread allocates carries the operation's number."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = str(number)

    def __enter__(self) -> None:
        _set_metadata(self._number)

    def __exit__(self, *_: object) -> None:
        _set_metadata("")


def _set_metadata(text: str) -> None:
    import torch

    torch._C._cuda_setMemoryMetadata(text)


def attributed(instrument: type[Any]) -> type[Any]:
    """The instrument's class, with the tracer beside it."""

    class Attributed(instrument):  # type: ignore[misc]
        _trace: CudaTrace | None = None

        def open(self) -> None:
            super().open()
            self._trace = CudaTrace()

        def phase_begins(self, name: str) -> None:
            super().phase_begins(name)
            if self._trace is not None:
                self._trace.begin_phase()

        def read(self) -> Reading:
            reading: Reading = super().read()
            return self._trace.explain(reading) if self._trace is not None else reading

        def explain_failure(self) -> dict[str, Any]:
            """What was alive at the highest point of the phase in which memory ran out, which is when it did."""
            if self._trace is None:
                return {}
            found = self._trace.explain(reading_from(self._trace.statistics()))
            return {name: getattr(found, name) for name in EXPLANATION}

        def describe(self) -> dict[str, Any]:
            found: dict[str, Any] = super().describe()
            return found if self._trace is None else {**found, "scratch": scratch(self._trace.ledger)}

        def close(self) -> None:
            if self._trace is not None:
                self._trace.close()
            super().close()

    return Attributed


AttributedCuda = attributed(CudaInstrument)
AttributedPhantom = attributed(PhantomInstrument)
