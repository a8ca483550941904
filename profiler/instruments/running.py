"""Instruments for a program that was there before and goes on: a block of it, a trainer inside it.

Several may be open at once, one inside the other: each keeps its own peaks.  On a GPU that takes care, because the
allocator has one peak for all: whoever resets it, the program itself too, has the others read it first.  On the CPU
they share one profiler, because there can be no second; what a block inside another reads therefore counts what the
outermost one allocated since it began, as a GPU's figures count all that is there.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

from nooom.formulas.errors import CannotMeasureError, UsageError
from nooom.profiler.instruments import Instrument, Reading
from nooom.profiler.instruments.cpu import CpuInstrument
from nooom.profiler.instruments.cuda import reading_from, refuse_what_cannot_be_measured

_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
"""What every reset of the allocator's peaks goes through, in ``torch._C``."""


class RunningCuda:
    """The allocator's statistics of the current GPU; nothing is emptied, nothing is put on it."""

    name = "cuda"
    torch_device = "cuda"

    def __init__(self) -> None:
        self._device = 0
        self._before: Reading | None = None
        self._retries_before = 0
        self._gpu: dict[str, Any] | None = None
        self._notes: dict[str, Any] = {}

    def open(self) -> None:
        import torch

        refuse_what_cannot_be_measured(torch)
        self._device = torch.cuda.current_device()
        torch.cuda.synchronize(self._device)
        properties = torch.cuda.get_device_properties(self._device)
        self._gpu = {"name": properties.name, "total_bytes": int(properties.total_memory)}
        self._notes = {
            "cuda": torch.version.cuda,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "start_allocated_bytes": int(torch.cuda.memory_allocated(self._device)),
        }
        self._retries_before = int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))
        _resets.listen(self)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = None

    def phase_begins(self, name: str) -> None:
        import torch

        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = None

    def settle(self) -> None:
        import torch

        torch.cuda.synchronize(self._device)

    def read(self) -> Reading:
        import torch

        torch.cuda.synchronize(self._device)
        reading = self._read()
        if reading.retries is not None:
            reading = dataclasses.replace(reading, retries=reading.retries - self._retries_before)
        return reading

    def keep(self) -> None:
        """The allocator's peaks are about to be reset: what they are goes into the next reading."""
        self._before = self._read()

    def _read(self) -> Reading:
        import torch

        reading = reading_from(torch.cuda.memory_stats(self._device))
        return reading if self._before is None else self._before.worst(reading)

    def breathe(self) -> None:
        """Nothing to fold."""

    def describe(self) -> dict[str, Any]:
        return {"gpu": self._gpu, "sampling": None, **self._notes}

    def close(self) -> None:
        _resets.forget(self)


class _Resets:
    """Tells the open instruments of every reset of the allocator's peaks, while there are any."""

    def __init__(self) -> None:
        self._listeners: list[RunningCuda] = []
        self._originals: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self._lock = threading.RLock()

    def listen(self, instrument: RunningCuda) -> None:
        import torch

        with self._lock:
            self._listeners.append(instrument)
            for name in _RESETS if not self._originals else ():
                original = getattr(torch._C, name, None)
                if original is not None:
                    self._originals[name] = (original, self._telling(original))
                    setattr(torch._C, name, self._originals[name][1])

    def forget(self, instrument: RunningCuda) -> None:
        import torch

        with self._lock:
            if instrument in self._listeners:
                self._listeners.remove(instrument)
            if self._listeners:
                return
            for name, (original, ours) in self._originals.items():
                if getattr(torch._C, name) is ours:  # somebody may have wrapped it since
                    setattr(torch._C, name, original)
            self._originals.clear()

    def _telling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def reset(*arguments: Any) -> Any:
            with self._lock:
                for listener in self._listeners:
                    listener.keep()
                return original(*arguments)

        return reset


_resets = _Resets()


class RunningCpu:
    """The CPU allocator's events, of which it sees those since it was opened, or since the one around it was."""

    name = "cpu"
    torch_device = "cpu"

    def __init__(self, before_bytes: int = 0) -> None:
        """``before_bytes`` were allocated before anything was seen, and stay: a model's weights."""
        self.alone = True
        """Whether nothing else was being measured when it was opened."""
        self._before_bytes = before_bytes
        self._shared: _SharedProfiler | None = None
        self._peak_bytes = 0

    def open(self) -> None:
        """Raises CannotMeasureError: a profiler of the program's own runs, or a measurement in another thread."""
        self.alone = _SharedProfiler._open is None
        if not self.alone:  # whoever was there before may have seen them
            self._before_bytes = 0
        self._shared = _SharedProfiler.joined(self)
        self._peak_bytes = self._shared.balance_bytes

    def phase_begins(self, name: str) -> None:
        self._peak_bytes = self._folded().balance_bytes

    def breathe(self) -> None:
        self._folded()

    def settle(self) -> None:
        """CPU kernels are done when they return."""

    def read(self) -> Reading:
        shared = self._folded()
        if shared.lost:
            return Reading()
        return Reading(
            peak_allocated_bytes=self._before_bytes + self._peak_bytes,
            end_allocated_bytes=self._before_bytes + shared.balance_bytes,
        )

    def saw(self, balance_bytes: int) -> None:
        """The shared profiler has folded events in which this was the largest balance."""
        self._peak_bytes = max(self._peak_bytes, balance_bytes)

    def describe(self) -> dict[str, Any]:
        if self._shared is None:
            return {"gpu": None, "sampling": None}
        lost = {"lost": "the program ran a profiler of its own"} if self._shared.lost else {}
        return {**self._shared.describe(), **lost}

    def close(self) -> None:
        if self._shared is not None:
            self._shared.leave(self)

    def _folded(self) -> _SharedProfiler:
        assert self._shared is not None
        self._shared.refuse_another_thread()
        self._shared.breathe()
        return self._shared


class _SharedProfiler(CpuInstrument):
    """The one profiler behind every open :class:`RunningCpu`."""

    _open: _SharedProfiler | None = None

    def __init__(self) -> None:
        super().__init__()
        self.lost = False
        """Whether events are missing, because another profiler took this one's place."""
        self._users: list[RunningCpu] = []
        self._thread = threading.get_ident()

    @classmethod
    def joined(cls, user: RunningCpu) -> _SharedProfiler:
        import torch

        shared = cls._open
        if shared is None:
            if torch._C._autograd._profiler_enabled():
                raise CannotMeasureError(
                    "a torch.profiler runs already, and there can be only one: on the CPU, measure outside of it"
                )
            shared = cls()
            shared.open()
            cls._open = shared
        else:
            shared.refuse_another_thread()
            shared.breathe()
        shared._users.append(user)
        return shared

    @property
    def balance_bytes(self) -> int:
        return self._balance_bytes

    def refuse_another_thread(self) -> None:
        """Raises CannotMeasureError: a profiler's session is its thread's, and sees nothing of another."""
        if self._thread != threading.get_ident():
            raise CannotMeasureError("another thread is being measured, and on the CPU there can be only one at a time")

    def leave(self, user: RunningCpu) -> None:
        if user not in self._users:
            return
        self._users.remove(user)
        if not self._users:
            _SharedProfiler._open = None
            self.close()

    def _close_session(self) -> None:
        import torch

        if not torch._C._autograd._profiler_enabled() and not self.lost:
            self.lost = True
            warnings.warn(
                "nooom: the program ran a torch.profiler of its own inside a measured block: on the CPU there can be "
                "only one, and the block's figures are unknown",
                stacklevel=2,
            )
        super()._close_session()

    def _count(self, results: Any) -> None:
        self._peak_bytes = self._balance_bytes
        super()._count(results)
        for user in self._users:
            user.saw(self._peak_bytes)


def running_instrument(device: str, *, attribute: bool = False) -> Instrument:
    """The instrument for a part of this process.

    Args:
        device: ``cuda``, ``cpu``, or ``auto``, which is cuda where torch has one.
        attribute: with the tracer.

    Raises:
        UsageError: another device.
    """
    if device not in ("auto", "cuda", "cpu"):
        raise UsageError(f"measure() takes auto, cuda or cpu, not {device!r}")
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not attribute:
        return RunningCuda() if device == "cuda" else RunningCpu()
    from nooom.profiler.tracer.cpu import AttributedCpu
    from nooom.profiler.tracer.cuda import attributed

    return attributed(RunningCuda)() if device == "cuda" else AttributedCpu()
