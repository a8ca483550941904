"""``predict --by dryrun``: a case's real code run on meta tensors, as a prediction for a GPU that is named.

As on a phantom, the figures come from a run with room enough for anything.  Where it reserves more than the GPU has,
another run with what there is tells whether the allocator gets by with its retries or runs out, and where.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nooom.benchmarks import runner
from nooom.benchmarks.devices import choose
from nooom.benchmarks.emulation import Played, as_prediction, finished, largest
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.formulas.gpus import GPU
from nooom.profiler.measurement import Measurement

OnPhase = Callable[[str], None]


def predict(
    case: Case, gpu: GPU, on_phase: OnPhase = lambda phase: None, snapshot: Path | None = None
) -> dict[str, Any]:
    """The part of ``predict --json`` that a formula can't fill.

    Args:
        case: what is run.
        gpu: whose memory and kernels it would get.
        on_phase: told of every phase that begins.
        snapshot: a file for the memory snapshot of the run that has room enough.

    Raises:
        UsageError: a case that can't run so, or a file that can't be written.
        CannotMeasureError: one that did not finish although it had room.
    """
    uncapped = finished(_snapped(case, gpu, on_phase, snapshot), "in the dry run")
    return _as_prediction(Played(unbounded=uncapped, bounded=_bounded(uncapped, case, gpu, on_phase)), gpu)


def _bounded(uncapped: Measurement, case: Case, gpu: GPU, on_phase: OnPhase) -> Measurement:
    """How it ends with what the GPU has: the same where that is enough for all that is reserved."""
    reserved = largest(uncapped, "peak_reserved_bytes")
    if reserved is not None and reserved <= gpu.usable_bytes:
        return uncapped
    return finished(_run(case, gpu, capped=True, on_phase=on_phase), "in the dry run", "ok", "oom")


def _snapped(case: Case, gpu: GPU, on_phase: OnPhase, snapshot: Path | None) -> Measurement:
    """With room enough; the snapshot is where it should be when it is whole, and not before."""
    if snapshot is None:
        return _run(case, gpu, capped=False, on_phase=on_phase)
    with tempfile.TemporaryDirectory(dir=snapshot.absolute().parent, prefix=".nooom-") as folder:
        written = Path(folder) / "snapshot.pickle"
        record = _run(case, gpu, capped=False, on_phase=on_phase, snapshot=str(written))
        if written.exists():
            written.replace(snapshot)
        elif record.status == "ok":
            raise UsageError(f"--snapshot {snapshot}: can't be written")
    return record


def _run(case: Case, gpu: GPU, *, capped: bool, on_phase: OnPhase, snapshot: str | None = None) -> Measurement:
    device = dataclasses.replace(choose("dryrun", gpu), capped=capped, snapshot=snapshot)
    (record,) = runner.run(runner.plan([case], device), device, runner.Options(on_phase=on_phase))
    return record


def _as_prediction(played: Played, gpu: GPU) -> dict[str, Any]:
    record = played.unbounded
    peak = max(record.phases, key=lambda phase: phase.peak_allocated_bytes or 0)
    reserved = largest(record, "peak_reserved_bytes")
    context = gpu.context_bytes
    return {
        **as_prediction(played, gpu),
        "device_bytes": None if reserved is None or context is None else reserved + context,
        "peak_op": peak.peak_op,
        "components": peak.components,
        "tensors": peak.tensors,
    }
