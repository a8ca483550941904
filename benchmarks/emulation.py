"""``predict --by phantom``: a case run on a phantom GPU, as a prediction.

It runs twice at most: with room enough for anything, which gives the figures; and, where these are more than the GPU
has, with what it really has, which tells whether the allocator gets by with its retries or runs out, and where.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from nooom.benchmarks import runner
from nooom.benchmarks.devices import choose
from nooom.formulas.case import Case
from nooom.formulas.errors import CannotMeasureError
from nooom.formulas.gpus import GPU
from nooom.profiler.measurement import Measurement
from nooom.profiler.phantom.program import prefers_cudnn

ROOM_BYTES = 1 << 40
"""More than any job takes on one GPU, and half of the phantom's addresses."""
SOURCE = "phantom"


@dataclass(frozen=True, kw_only=True)
class Emulated:
    """A case on a GPU that is played."""

    unbounded: Measurement
    """With room enough."""
    bounded: Measurement
    """With what the GPU has: the same record where that is enough for it."""

    @property
    def fits(self) -> bool:
        return self.bounded.status == "ok"


def emulate(case: Case, gpu: GPU) -> Emulated:
    """Run a case on a phantom of a GPU.

    Raises:
        UsageError: a case that can't run there.
        CannotMeasureError: no CUDA build of torch, no compiler, or a case that did not finish although it had room.
    """
    unbounded = _run(case, dataclasses.replace(gpu, total_bytes=ROOM_BYTES))
    if unbounded.status != "ok":
        error = unbounded.error or {}
        raise CannotMeasureError(f"{case.label()} {unbounded.status} on the phantom: {error.get('message')}")
    device_bytes = largest(unbounded, "nvml_peak_bytes")
    enough = device_bytes is not None and device_bytes <= gpu.total_bytes
    return Emulated(unbounded=unbounded, bounded=unbounded if enough else _run(case, gpu))


def _run(case: Case, gpu: GPU) -> Measurement:
    device = choose("phantom", gpu)
    (record,) = runner.run(runner.plan([case], device), device, runner.Options())
    return record


def largest(record: Measurement, figure: str) -> int | None:
    """The largest of a figure over the phases; they do not overlap."""
    return max((value for phase in record.phases if (value := getattr(phase, figure)) is not None), default=None)


def as_prediction(emulated: Emulated, gpu: GPU) -> dict[str, Any]:
    """The part of ``predict --json`` that a formula can't fill."""
    record, error = emulated.unbounded, emulated.bounded.error or {}
    peak = max(record.phases, key=lambda phase: phase.peak_allocated_bytes or 0)
    allocated = peak.peak_allocated_bytes or 0
    return {
        "allocated_bytes": allocated,
        "reserved_bytes": largest(record, "peak_reserved_bytes"),
        "device_bytes": largest(record, "nvml_peak_bytes"),
        "peak_phase": peak.name,
        "phases": [
            {
                "name": phase.name,
                "peak_allocated_bytes": phase.peak_allocated_bytes,
                "end_allocated_bytes": phase.end_allocated_bytes,
            }
            for phase in record.phases
        ],
        "fits": emulated.fits,
        "headroom_bytes": gpu.usable_bytes - allocated,
        "oom": None if emulated.fits else {"phase": error.get("phase"), "op": None, "tried_bytes": _tried(error)},
        "uncertainties": uncertainties(record, gpu),
    }


def _tried(error: dict[str, Any]) -> int | None:
    tried = error.get("tried_bytes")
    return tried if isinstance(tried, int) else None


def uncertainties(record: Measurement, gpu: GPU) -> list[str]:
    """What a phantom can't know of such a run."""
    found = []
    if prefers_cudnn(gpu.compute_capability) and record.case["attention"] == "sdpa":
        found.append(
            f"PyTorch takes cuDNN's attention on {gpu.name}, whose workspace only the hardware knows: flash was "
            "played; --attention sdpa-flash pins it on the hardware too"
        )
    if gpu.caveat is not None:
        found.append(gpu.caveat)
    invented = record.fingerprint.get("invented_answers") or []
    return found + [
        f"an answer that no kernel computed was invented {line['times']} times: {line['asked_by']}" for line in invented
    ]
