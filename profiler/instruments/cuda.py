"""The CUDA instrument: the caching allocator's own statistics per phase, and what NVML shows from outside."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from typing import Any

from nooom.formulas.errors import CannotMeasureError
from nooom.profiler import nvml
from nooom.profiler.instruments import Reading

_IDLE_LIMIT_BYTES = 1 << 30
"""More than this in use before we begin means that somebody else is on the GPU."""

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
    return Reading(
        nvml_peak_bytes=nvml_peak_bytes,
        **{name: int(statistics[key]) if key in statistics else None for name, key in _FIGURES.items()},
    )


class CudaInstrument:
    """Allocated, reserved, active and requested of one GPU, and NVML's figure for the process.

    Between phases it synchronizes, reads and resets the peaks.  The cache is emptied once, before the run, and never
    again: users' loops keep theirs, and emptying it between phases hides fragmentation.
    """

    name = "cuda"
    torch_device = "cuda:0"

    def __init__(self, allow_busy: bool = False) -> None:
        self._allow_busy = allow_busy
        self._sampler: nvml.Sampler | None = None
        self._gpu: dict[str, Any] | None = None
        self._notes: dict[str, Any] = {}

    def open(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise CannotMeasureError(f"torch {torch.__version__} finds no GPU that it can use")
        properties = torch.cuda.get_device_properties(0)  # no context yet: the GPU is still as we found it
        uuid = str(getattr(properties, "uuid", "")) or None
        idle = self._look_at_the_idle_gpu(uuid)
        warm = torch.ones((8, 8), device=self.torch_device)
        (warm @ warm).sum().item()
        del warm
        if uuid is not None and idle is not None:
            self._sampler = nvml.Sampler(uuid, os.getpid(), idle)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self._gpu = {"name": properties.name, "total_bytes": int(properties.total_memory)}
        self._notes |= {
            "cuda": torch.version.cuda,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "start_allocated_bytes": int(torch.cuda.memory_allocated()),
        }

    def phase_begins(self, name: str) -> None:
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        if self._sampler is not None:
            self._sampler.mark()

    def read(self) -> Reading:
        import torch

        torch.cuda.synchronize()
        seen = self._sampler.read() if self._sampler is not None else None
        return reading_from(torch.cuda.memory_stats(), seen)

    def breathe(self) -> None:
        """Nothing to fold: the allocator keeps peaks itself, and a synchronization here would cost every token one."""

    def describe(self) -> dict[str, Any]:
        sampling = self._sampler.describe() if self._sampler is not None else None
        return {"gpu": self._gpu, "sampling": sampling, **self._notes}

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()

    def _look_at_the_idle_gpu(self, uuid: str | None) -> int | None:
        """Bytes in use before our context exists; None without NVML.  Refuses a GPU that somebody else is using."""
        if uuid is None:
            self._notes["nvml"] = "torch does not say the GPU's UUID"
            return None
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = nvml.handle_for(pynvml, uuid)
            found, others = nvml.device_memory(pynvml, handle), nvml.processes(pynvml, handle)
            driver = pynvml.nvmlSystemGetDriverVersion()
        except Exception as error:  # a figure less, not a measurement less
            self._notes["nvml"] = f"not available: {error}"
            return None
        self._notes |= {"driver": driver, "driver_reserved_bytes": found.reserved_bytes}
        others.pop(os.getpid(), None)
        if not self._allow_busy and (others or found.used_bytes > _IDLE_LIMIT_BYTES):
            raise CannotMeasureError(_busy(others, found.used_bytes))
        return found.used_bytes


def _busy(others: Mapping[int, int | None], used_bytes: int) -> str:
    pids = ", ".join(str(pid) for pid in others) or "unknown"
    return f"the GPU is busy: {used_bytes / 2**30:.2f} GiB in use, processes {pids}; measure on an idle one"
