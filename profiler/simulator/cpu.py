"""The dry run of a CPU: what :class:`~nooom.profiler.instruments.cpu.CpuInstrument` would count, from meta tensors.

Nobody needs its figures, since any machine can measure them.  It is there because they can be measured: the same code
that plays a GPU is held against a device that is there.
"""

from __future__ import annotations

import itertools
import os
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from nooom.profiler.instruments import Reading


class DryCpuInstrument:
    """Reads a running sum of what the case's operations would have asked the CPU's allocator for.

    Args:
        threads: that work on one operation; torch's own number where it is not given.
    """

    name = "dryrun"
    torch_device = "meta"

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads
        self._stack = ExitStack()
        self._trace: Any = None
        self._sum = RunningSum()

    def open(self) -> None:
        """Begin to watch every operation from here on."""
        import torch

        # accelerate asks for its device here; what runs in this process afterwards must not find it.
        self._stack.enter_context(patch.dict(os.environ, ACCELERATE_TORCH_DEVICE=self.torch_device))
        from nooom.profiler.simulator.target import cpu
        from nooom.profiler.simulator.trace import Trace

        self._trace = self._stack.enter_context(Trace(cpu(self._threads or torch.get_num_threads()), self._sum))

    def phase_begins(self, name: str) -> None:
        self._sum.peak_bytes = self._sum.allocated_bytes
        self._trace.begin_phase()

    def settle(self) -> None:
        """Nothing is queued."""

    def read(self) -> Reading:
        reading = Reading(peak_allocated_bytes=self._sum.peak_bytes, end_allocated_bytes=self._sum.allocated_bytes)
        return self._trace.explain(reading)  # type: ignore[no-any-return]

    def breathe(self) -> None:
        """Nothing to fold: deaths are told when they happen."""

    def describe(self) -> dict[str, Any]:
        notes: dict[str, Any] = {} if self._trace is None else self._trace.describe()
        return {"gpu": None, "sampling": None, **notes}

    def close(self) -> None:
        self._stack.close()


class RunningSum:
    """The CPU's allocator, as the instrument sees it: every block as large as it was asked for."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._addresses = itertools.count(1)

    def malloc(self, requested_bytes: int) -> int:
        address = next(self._addresses)
        self._sizes[address] = requested_bytes
        self.allocated_bytes += requested_bytes
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return address

    def free(self, address: int) -> None:
        self.allocated_bytes -= self._sizes.pop(address)

    def size_of(self, address: int) -> int:
        return self._sizes[address]
