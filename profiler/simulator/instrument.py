"""The dry run: the case's real code on meta tensors, for a GPU that is named, on any machine."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from nooom.formulas.gpus import GPU, find
from nooom.profiler.instruments import Reading
from nooom.profiler.measurement import EXPLANATION
from nooom.profiler.simulator.allocator import CachingAllocator
from nooom.profiler.simulator.settings import Settings, order_for

_WARM_ELEMENTS = 64


class DryRunInstrument:
    """Reads a simulated allocator that was asked for what the case's operations would have asked CUDA's for.

    Args:
        gpu: its name in ``formulas/gpus.py``.
        total_bytes: its capacity, where that is another than the table's.
        allocator: what would stand in PYTORCH_ALLOC_CONF.
        capped: whether memory ends where the GPU's does; otherwise there is room for anything.
        snapshot: a file to write a memory snapshot to at the end, as PyTorch's own are.
    """

    name = "dryrun"
    torch_device = "meta"

    def __init__(
        self,
        gpu: str,
        total_bytes: int | None = None,
        allocator: str = "",
        capped: bool = True,
        snapshot: str | None = None,
    ) -> None:
        import dataclasses

        found = find(gpu)
        self._gpu: GPU = found if total_bytes is None else dataclasses.replace(found, total_bytes=total_bytes)
        self._conf = allocator
        self._settings = Settings.parse(allocator)
        self._capped = capped
        self._snapshot = snapshot
        self._history: Any = None
        self._stack = ExitStack()
        self._trace: Any = None

    def open(self) -> None:
        """Begin to watch: what lies on the GPU before the case, and every operation from here on."""
        import torch

        # accelerate asks for its device here; what runs in this process afterwards must not find it.
        self._stack.enter_context(patch.dict(os.environ, ACCELERATE_TORCH_DEVICE=self.torch_device))
        from nooom.profiler.simulator.target import cuda
        from nooom.profiler.simulator.trace import Trace

        if self._snapshot is not None:
            from nooom.profiler.simulator.history import History

            self._history = History()
        self.allocator = CachingAllocator(
            self._gpu.usable_bytes if self._capped else None,
            self._settings,
            order_for(torch.__version__),
            total_bytes=self._gpu.total_bytes,
            context_bytes=self._gpu.context_bytes or 0,
            record=None if self._history is None else self._history.record,
        )
        self._trace = self._stack.enter_context(Trace(cuda(self._gpu), self.allocator, self._history))
        self.allocator.empty_cache()
        self._start_bytes = self.allocator.allocated_bytes
        self.allocator.reset_peaks()

    def phase_begins(self, name: str) -> None:
        self.allocator.reset_peaks()
        self._trace.begin_phase()

    def settle(self) -> None:
        """Nothing is queued."""

    def read(self) -> Reading:
        return self._trace.explain(self._reading())  # type: ignore[no-any-return]

    def _reading(self) -> Reading:
        allocator = self.allocator
        return Reading(
            peak_allocated_bytes=allocator.peak_allocated_bytes,
            peak_reserved_bytes=allocator.peak_reserved_bytes,
            peak_active_bytes=allocator.peak_active_bytes,
            peak_requested_bytes=allocator.peak_requested_bytes,
            end_allocated_bytes=allocator.allocated_bytes,
            retries=allocator.retries,
        )

    def breathe(self) -> None:
        """Nothing to fold: deaths are told when they happen."""

    def explain_failure(self) -> dict[str, Any]:
        """What was alive when memory ran out, and ``op``: the operation that asked for more."""
        if self._trace is None:
            return {}
        op = self._trace.running
        found = self._trace.explain(self._reading())
        return {**{name: getattr(found, name) for name in EXPLANATION}, "op": op}

    def describe(self) -> dict[str, Any]:
        """``gpu``, and what was invented where the program asked for what nobody computed."""
        from nooom.profiler.known_values import summary

        major, minor = self._gpu.compute_capability
        notes: dict[str, Any] = {} if self._trace is None else self._trace.describe()
        return {
            "gpu": {"name": self._gpu.device_name, "total_bytes": self._gpu.total_bytes},
            "sampling": None,
            "compute_capability": f"{major}.{minor}",
            "start_allocated_bytes": self._start_bytes,
            "invented_answers": summary(self._trace.invented) if self._trace is not None else [],
            **notes,
        }

    def close(self) -> None:
        if self._snapshot is not None and self._trace is not None:
            self._history.write(Path(self._snapshot), self.allocator, self._trace.known(), self._conf)
        self._stack.close()
