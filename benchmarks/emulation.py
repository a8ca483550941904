"""``predict --by phantom``: a case run on a phantom GPU, as a prediction.

It runs twice at most: with room enough for anything, which gives the figures; and, where these are more than the GPU
has, with what it really has, which tells whether the allocator gets by with its retries or runs out, and where.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
class Played:
    """A case on a GPU that is played: by a phantom, or in a dry run."""

    unbounded: Measurement
    """With room enough."""
    bounded: Measurement
    """With what the GPU has: the same record where that is enough for it."""

    @property
    def fits(self) -> bool:
        return self.bounded.status == "ok"


def predict(case: Case, gpu: GPU, on_phase: Callable[[str], None] = lambda phase: None) -> dict[str, Any]:
    """The part of ``predict --json`` that a formula can't fill; raises as :func:`emulate` does."""
    return as_prediction(emulate(case, gpu, on_phase), gpu)


def emulate(case: Case, gpu: GPU, on_phase: Callable[[str], None] = lambda phase: None) -> Played:
    """Run a case on a phantom of a GPU.

    Args:
        case: what is run.
        gpu: which.
        on_phase: told of every phase that begins.

    Raises:
        UsageError: a case that can't run there.
        CannotMeasureError: no CUDA build of torch, no compiler, or a case that did not finish although it had room.
    """
    unbounded = finished(_run(case, dataclasses.replace(gpu, total_bytes=ROOM_BYTES), on_phase), "on the phantom")
    device_bytes = largest(unbounded, "nvml_peak_bytes")
    enough = device_bytes is not None and device_bytes <= gpu.total_bytes
    bounded = unbounded if enough else finished(_run(case, gpu, on_phase), "on the phantom", "ok", "oom")
    return Played(unbounded=unbounded, bounded=bounded)


def finished(record: Measurement, where: str, *answers: str) -> Measurement:
    """The record itself.

    Args:
        record: of a run.
        where: it was run, for the message.
        answers: statuses that answer the question; by default ``ok``.

    Raises:
        CannotMeasureError: it ended otherwise.
    """
    if record.status in (answers or ("ok",)):
        return record
    raise CannotMeasureError(f"{record.label} {record.status} {where}: {(record.error or {}).get('message')}")


def _run(case: Case, gpu: GPU, on_phase: Callable[[str], None]) -> Measurement:
    device = choose("phantom", gpu)
    (record,) = runner.run(runner.plan([case], device), device, runner.Options(on_phase=on_phase))
    return record


def largest(record: Measurement, figure: str) -> int | None:
    """The largest of a figure over the phases; they do not overlap."""
    return max((value for phase in record.phases if (value := getattr(phase, figure)) is not None), default=None)


def as_prediction(played: Played, gpu: GPU) -> dict[str, Any]:
    """What the two runs say of the case: figures, and whether it fits."""
    record, error = played.unbounded, played.bounded.error or {}
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
        "fits": played.fits,
        "headroom_bytes": gpu.usable_bytes - allocated,
        "oom": None
        if played.fits
        else {"phase": error.get("phase"), "op": error.get("op"), "tried_bytes": _tried(error)},
        "uncertainties": uncertainties(record, gpu),
    }


def _tried(error: dict[str, Any]) -> int | None:
    tried = error.get("tried_bytes")
    return tried if isinstance(tried, int) else None


def uncertainties(record: Measurement, gpu: GPU) -> list[str]:
    """What neither a phantom nor a dry run can know of such a run."""
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
