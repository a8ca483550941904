"""``nooom.measure()``: the peaks of a block of anyone's code, in the process that is there.

with nooom.measure(attribute=True) as measured:
    loss = model(**batch).loss
    measured.phase("backward")
    loss.backward()
print(measured.peak_allocated_bytes, measured.phases[-1].tensors)
"""

from __future__ import annotations

import gc
from types import TracebackType
from typing import Any

from nooom.formulas.errors import UsageError
from nooom.profiler.instruments import Instrument, Reading
from nooom.profiler.instruments.cpu import CpuInstrument
from nooom.profiler.instruments.cuda import reading_from, refuse_what_cannot_be_measured
from nooom.profiler.measurement import Phase
from nooom.profiler.recorder import Recorder

FIRST_PHASE = "block"


def measure(device: str = "auto", *, attribute: bool = False) -> Measured:
    """A context that measures what runs inside it, by phases.

    Args:
        device: ``cuda`` reads the caching allocator of the current GPU, a phantom's too; ``cpu`` sums the CPU
            allocator's events, of which it sees those since the block began; ``auto`` is cuda where torch has one.
        attribute: also say what each peak is made of.  What was alive before is named as far as a module called in
            the block, or an optimizer stepped in it, holds it.

    Raises:
        UsageError: another device.
        CannotMeasureError: cuda, and no GPU that torch can use, or another allocator than PyTorch's own.
    """
    return Measured(device, attribute)


class Measured:
    """A measured block.  ``phases`` is filled as they end; until one is named, the block is the phase ``block``."""

    def __init__(self, device: str, attribute: bool) -> None:
        self._recorder = Recorder(_instrument(device, attribute))

    def __enter__(self) -> Measured:
        gc.collect()
        self._recorder.instrument.open()
        self._recorder.enter(FIRST_PHASE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._recorder.leave()
        finally:
            self._recorder.instrument.close()

    def phase(self, name: str) -> None:
        """A phase begins here, and the one before it ends.  A phase that comes again keeps its worst."""
        self._recorder.enter(name)

    @property
    def phases(self) -> list[Phase]:
        """Those that have ended, in their order; figures in bytes, what the device does not tell is None."""
        return self._recorder.phases()

    @property
    def peak_allocated_bytes(self) -> int | None:
        """The largest of the phases' peaks."""
        return max((p.peak_allocated_bytes for p in self.phases if p.peak_allocated_bytes is not None), default=None)


class BlockCuda:
    """The allocator's statistics of the current GPU, in a process that has used it before: nothing is emptied."""

    name = "cuda"
    torch_device = "cuda"

    def open(self) -> None:
        import torch

        refuse_what_cannot_be_measured(torch)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def phase_begins(self, name: str) -> None:
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    def settle(self) -> None:
        import torch

        torch.cuda.synchronize()

    def read(self) -> Reading:
        import torch

        torch.cuda.synchronize()
        return reading_from(torch.cuda.memory_stats())

    def breathe(self) -> None:
        """Nothing to fold."""

    def describe(self) -> dict[str, Any]:
        return {"gpu": None, "sampling": None}

    def close(self) -> None:
        """Nothing was opened."""


def _instrument(device: str, attribute: bool) -> Instrument:
    if device not in ("auto", "cuda", "cpu"):
        raise UsageError(f"measure() takes auto, cuda or cpu, not {device!r}")
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not attribute:
        return BlockCuda() if device == "cuda" else CpuInstrument()
    from nooom.profiler.tracer.cpu import AttributedCpu
    from nooom.profiler.tracer.cuda import attributed

    return attributed(BlockCuda)() if device == "cuda" else AttributedCpu()
