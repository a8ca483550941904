"""``nooom.measure()`` on a phantom: records that say so, and peaks that no reset loses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nooom.benchmarks.journal import read

MIB = 1 << 20
PROGRAM = """
import os
import nooom, torch

def take(mib):
    torch.empty(mib << 20, dtype=torch.uint8, device="cuda")

@nooom.measure(name="inner", out="results")
def inner():
    take(8)
    nooom.phase("less")
    take(4)

with nooom.measure(name="outer", out="results") as outer:
    take(64)
    torch.cuda.reset_peak_memory_stats()
    take(16)
    inner()
    outer.phase("second")
    take(32)
    torch.accelerator.reset_peak_memory_stats()
reset = torch._C._cuda_resetPeakMemoryStats
assert not hasattr(reset, "__wrapped__") or reset.__module__ != "nooom.profiler.instruments.running"
del os.environ["NOOOM_PHANTOM"]
try:
    with nooom.measure(name="too much", out="results"):
        nooom.phase("all of it")
        take(200 << 10)
except torch.OutOfMemoryError:
    pass
"""


def test_blocks_inside_one_another_keep_their_peaks_and_a_phantoms_are_emulated(measure: Any, work: Path) -> None:
    measured = measure(PROGRAM)
    assert measured.code == 0, measured.said
    inner, outer, too_much = read(work / "results")
    assert [(phase.name, phase.peak_allocated_bytes) for phase in inner.phases] == [
        ("block", 8 * MIB),
        ("less", 4 * MIB),
    ]
    assert [(phase.name, phase.peak_allocated_bytes) for phase in outer.phases] == [
        ("block", 64 * MIB), ("second", 32 * MIB),
    ]  # fmt: skip
    for record in (inner, outer, too_much):
        assert (record.source, record.device) == ("emulated", "phantom")
    assert too_much.status == "oom"
    assert too_much.error is not None
    assert (too_much.error["tried_bytes"], too_much.error["phase"]) == (200 << 30, "all of it")
