"""The CUDA instrument: the caching allocator's own statistics per phase, and what NVML shows from outside."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Mapping
from typing import Any

from nooom.formulas.errors import CannotMeasureError
from nooom.profiler import hardware, nvml
from nooom.profiler.instruments import Reading

_IDLE_LIMIT_BYTES = 256 << 20
"""More than this in use before we begin means that somebody else is on the GPU: one idle context takes 400 MiB."""
_IDLE_LIMIT_WITH_RESERVED_BYTES = 1 << 30
"""The same where NVML counts the driver's own memory as used: up to 912 MB on an idle A100."""
_ALLOW_BUSY = "NOOOM_ALLOW_BUSY"
_PATIENCE_S = 10.0
"""How long a busy GPU is waited for: a driver may take seconds to give back what the case before us had."""
_LOOK_AGAIN_S = 0.25

_FIGURES = {
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "peak_active_bytes": "active_bytes.all.peak",
    "peak_requested_bytes": "requested_bytes.all.peak",
    "end_allocated_bytes": "allocated_bytes.all.current",
    "retries": "num_alloc_retries",
}


def reading_from(statistics: Mapping[str, int], nvml_peak_bytes: int | None = None) -> Reading:
    """A reading from ``torch.cuda.memory_stats()``; what it lacks is None, never 0."""
    figures: dict[str, Any] = {
        name: int(statistics[key]) if key in statistics else None for name, key in _FIGURES.items()
    }
    return Reading(nvml_peak_bytes=nvml_peak_bytes, **figures)


class ForkedError(CannotMeasureError):
    """Something that was imported before the fork has used CUDA, which a forked process then can't: a new one can."""


class CudaInstrument:
    """Allocated, reserved, active and requested of one GPU, and NVML's figure for the process.

    Between phases it synchronizes, reads and resets the peaks.  The cache is emptied once, before the run, and never
    again: users' loops keep theirs, and emptying it between phases hides fragmentation.
    """

    name = "cuda"
    torch_device = "cuda:0"

    def __init__(self, allow_busy: bool | None = None) -> None:
        """``allow_busy`` measures beside other processes; None asks the environment (NOOOM_ALLOW_BUSY=1)."""
        self._allow_busy = os.environ.get(_ALLOW_BUSY) == "1" if allow_busy is None else allow_busy
        self._sampler: nvml.Sampler | None = None
        self._idle_used_bytes: int | None = None
        self._gpu: dict[str, Any] | None = None
        self._notes: dict[str, Any] = {}

    def open(self) -> None:
        """Look at the idle GPU, create the context, take the baseline.

        Raises:
            CannotMeasureError: no GPU that torch can use, another allocator than PyTorch's own, or a busy GPU.
        """
        import torch

        refuse_what_cannot_be_measured(torch)
        properties = torch.cuda.get_device_properties(0)  # no context yet: the GPU is still as we found it
        uuid = str(getattr(properties, "uuid", "")) or None
        nvml_works = self._wait_for_an_idle_gpu(uuid)
        warm = torch.ones((8, 8), device=self.torch_device)
        (warm @ warm).sum().item()
        del warm
        if nvml_works and uuid is not None:
            self._sampler = nvml.Sampler(uuid, os.getpid(), self._idle_used_bytes)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self._gpu = {"name": properties.name, "total_bytes": int(properties.total_memory)}
        self._notes |= {
            "cuda": torch.version.cuda,
            "gpu_uuid": uuid,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "start_allocated_bytes": int(torch.cuda.memory_allocated()),
        }

    def phase_begins(self, name: str) -> None:
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        if self._sampler is not None:
            self._sampler.mark()

    def settle(self) -> None:
        import torch

        torch.cuda.synchronize()

    def read(self) -> Reading:
        import torch

        torch.cuda.synchronize()
        seen = self._sampler.read().peak_bytes if self._sampler is not None else None
        return reading_from(torch.cuda.memory_stats(), seen)

    def breathe(self) -> None:
        """Nothing to fold: the allocator keeps peaks itself, and a synchronization here would cost every token one."""

    def describe(self) -> dict[str, Any]:
        """``gpu``, ``sampling``, driver and CUDA, and ``nvml``: why it gave no figures, where it gave none."""
        if self._sampler is None:
            return {"gpu": self._gpu, "sampling": None, **self._notes}
        lost = {"nvml": self._sampler.note} if self._sampler.note is not None else {}
        return {"gpu": self._gpu, "sampling": self._sampler.describe(), **self._notes, **lost}

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()

    def _wait_for_an_idle_gpu(self, uuid: str | None) -> bool:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._look_at_the_idle_gpu(uuid)
            except CannotMeasureError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_LOOK_AGAIN_S)

    def _look_at_the_idle_gpu(self, uuid: str | None) -> bool:
        """Before our context exists: refuses a GPU that somebody else is using.  False without NVML."""
        if uuid is None:
            self._notes["nvml"] = "torch does not say the GPU's UUID"
            return False
        try:
            with hardware.nvml() as library:
                handle = nvml.handle_for_uuid(library, uuid)
                found, others = nvml.device_memory(library, handle), _processes(library, handle)
                driver = library.nvmlSystemGetDriverVersion()
        except Exception as error:  # a figure less, not a measurement less
            self._notes["nvml"] = f"not available: {error}"
            return False
        self._notes |= {"driver": driver, "driver_reserved_bytes": found.reserved_bytes}
        ours = os.getpid() in others
        others.pop(os.getpid(), None)
        limit = _IDLE_LIMIT_WITH_RESERVED_BYTES if found.reserved_bytes is None else _IDLE_LIMIT_BYTES
        busy = bool(others) or found.used_bytes > limit
        if busy and not self._allow_busy:
            raise CannotMeasureError(_busy(others, found.used_bytes))
        if busy:
            self._notes["busy_at_start_bytes"] = found.used_bytes
        # What a busy GPU gains, or one that holds our context already, is not what the case takes.
        self._idle_used_bytes = None if busy or ours else found.used_bytes
        return True


def refuse_what_cannot_be_measured(torch: Any) -> None:
    """Raises ForkedError, or CannotMeasureError: no GPU that torch can use, or another allocator than PyTorch's own."""
    if torch.cuda._is_in_bad_fork():
        raise ForkedError("a library that is imported before the cases are forked uses CUDA already")
    if not torch.cuda.is_available():
        raise CannotMeasureError(f"torch {torch.__version__} finds no GPU that it can use")
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        raise CannotMeasureError(f"PyTorch's allocator is {backend!r}, whose statistics mean something else")


def _processes(library: Any, handle: Any) -> dict[int, int | None]:
    """Who is on the GPU, as far as the driver lists them; where it lists nobody, what is in use still tells."""
    try:
        return nvml.processes(library, handle)
    except Exception:
        return {}


def _busy(others: Mapping[int, int | None], used_bytes: int) -> str:
    named = [f"{pid} ({'unknown' if size is None else f'{size / 2**30:.2f} GiB'})" for pid, size in others.items()]
    who = ", ".join(named) or "unknown"
    return (
        f"the GPU is busy: {used_bytes / 2**30:.2f} GiB in use, processes {who}; "
        f"measure on an idle one, or set {_ALLOW_BUSY}=1"
    )
