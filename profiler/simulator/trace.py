"""Everything that watches a dry run, entered and left together: calls, operations, and the memory they would take."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from nooom.profiler.instruments import Reading
from nooom.profiler.simulator.autocast import CudaAutocast
from nooom.profiler.simulator.functions import Functions
from nooom.profiler.simulator.memory import Allocator, Memory
from nooom.profiler.simulator.patches import decoding_as_on_a_cpu, generator_states, patched
from nooom.profiler.simulator.target import Target
from nooom.profiler.simulator.tracer import MetaTracer
from nooom.profiler.tracer.attribution import Vocabulary
from nooom.profiler.tracer.journal import Journal, Operation
from nooom.profiler.tracer.ledger import Ledger
from nooom.profiler.tracer.reading import explained, scratch


class Trace:
    """Watches one program on meta tensors.

    Args:
        target: the device that is played.
        allocator: that takes what they would take.
        ledger: that follows it.
    """

    def __init__(self, target: Target, allocator: Allocator, ledger: Ledger | None = None) -> None:
        self._target = target
        self._journal = Journal()
        self._memory = Memory(allocator)
        self._ledger = Ledger() if ledger is None else ledger
        self._autocast = CudaAutocast()
        self._functions = Functions(target.choices, self._memory, self._autocast.casted)
        self._tracer = MetaTracer(self._journal, self._memory, target.kernels, self.take)
        self._stack = ExitStack()

    def __enter__(self) -> Trace:
        self._stack.enter_context(self._autocast)
        self._stack.enter_context(patched(foreach=self._target.foreach))
        if self._target.host_is_device:
            self._stack.enter_context(generator_states(self._memory.hold))
            self._stack.enter_context(decoding_as_on_a_cpu())
        self._stack.enter_context(self._tracer)
        self._stack.enter_context(self._functions)
        warm = torch.ones((8, 8), device="meta")
        (warm @ warm).sum()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def invented(self) -> list[tuple[str, int]]:
        return self._functions.invented.most_common()

    @property
    def running(self) -> str | None:
        """The operation that runs, or that memory ran out in; None between operations."""
        number = self._memory.operation
        found = (one.name for one in reversed(self._journal.entries) if isinstance(one, Operation))
        return None if number is None else next(found, None)

    def take(self) -> None:
        """What happened since the last time goes into the ledger."""
        self._ledger.follow(self._memory.took(), self._journal.take())

    def begin_phase(self) -> None:
        self.take()
        self._ledger.begin_phase()

    def explain(self, reading: Reading) -> Reading:
        """The reading, with what its peak is made of."""
        self._tracer.owners.write_down()
        self.take()
        return explained(reading, self._ledger, self._tracer.owners)

    def known(self) -> Vocabulary:
        """What categories are told apart by, with everything that was written down taken into the ledger."""
        owners = self._tracer.owners
        owners.write_down()
        self.take()
        return Vocabulary(sizes=owners.vocabularies(), shapes=owners.shapes())

    def describe(self) -> dict[str, Any]:
        return {"scratch": scratch(self._ledger)}
