"""Several cases one after another in one process, each under an instrument of its own: imported by the children."""

from __future__ import annotations

import gc
from importlib import import_module
from typing import Any

from nooom.profiler.recorder import Recorder


def run(arguments: dict[str, Any], _recorder: Recorder) -> dict[str, Any]:
    """Of each of ``jobs``, as ``benchmarks.workloads.run`` takes them: the peaks of its phases, in order.

    ``instrument`` is the module and the class of what measures them.
    """
    module, _, name = arguments["instrument"].partition(":")
    return {"peaks": [_peaks(getattr(import_module(module), name)(), job) for job in arguments["jobs"]]}


def _peaks(instrument: Any, job: dict[str, Any]) -> list[tuple[str, int]]:
    from accelerate.state import AcceleratorState

    from nooom.benchmarks.workloads.run import run as workload

    recorder = Recorder(instrument)
    instrument.open()
    try:
        workload(job, recorder)
        recorder.leave()
    finally:
        instrument.close()
    AcceleratorState._reset_state(reset_partial_state=True)
    gc.collect()  # nothing of this one dies in the next one's books
    phases = [("first " + phase.name, phase) for phase in recorder.first()]
    phases += [(phase.name, phase) for phase in recorder.phases()]
    return [(name, phase.peak_allocated_bytes or 0) for name, phase in phases]
