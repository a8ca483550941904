"""How good a source is over many cases: errors of its peaks, and what trusting it would have cost.

Each measured case counts once, with its peak.  Two figures are the field's, after xMem (Middleware 2025), as nooom
computes them from ``max_memory_allocated``:

* PEF, the probability of estimation failure: the share of cases in which the estimate's verdict on the GPU they ran on
  (fits, or out of memory) is wrong, or in which the run would fail if its allocator were capped at the estimate.
* MCP, the memory conservation potential, in bytes per run: the GPU's usable memory less the estimate where a run capped
  at the estimate succeeds; less than nothing, namely minus the estimate, where it fails, since what had been set aside
  for it was held by a run that has to be done again; 0 where nothing is launched because the estimate says that it
  doesn't fit.

Both need a GPU whose memory is known; where it isn't (on the CPU), PEF judges the cap alone and MCP is unknown.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nooom.benchmarks.compare import Row
from nooom.benchmarks.sources import PEAK
from nooom.formulas.gpus import by_device_name


@dataclass(frozen=True, kw_only=True)
class Score:
    """One source over some cases.  None where no case says it."""

    n: int
    """Cases that finished and of which the source says something."""
    median_abs_error: float | None
    p95_abs_error: float | None
    """Interpolated linearly between the cases."""
    worst_error: float | None
    """Signed: the error that is largest, whichever way."""
    under_predicted: float | None
    """Share of the cases whose estimate lies below what was measured."""
    pef: float | None
    mcp: int | None

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def score(rows: Iterable[Row], source: str) -> Score:
    """The score of one source over comparison rows, of which only the peaks count."""
    peaks = [row for row in rows if row.phase == PEAK and row.predicted_bytes.get(source) is not None]
    errors = [error for row in peaks if (error := row.error(source)) is not None]
    failures = [failed for row in peaks if (failed := _fails(row, source)) is not None]
    conserved = [saved for row in peaks if (saved := _conserved(row, source)) is not None]
    return Score(
        n=len(errors),
        median_abs_error=statistics.median(map(abs, errors)) if errors else None,
        p95_abs_error=_p95([abs(error) for error in errors]),
        worst_error=max(errors, key=abs, default=None),
        under_predicted=sum(error < 0 for error in errors) / len(errors) if errors else None,
        pef=sum(failures) / len(failures) if failures else None,
        mcp=round(statistics.fmean(conserved)) if conserved else None,
    )


def _p95(values: Sequence[float]) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    place = 0.95 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def usable_bytes(row: Row) -> int | None:
    """What the allocator could have on the GPU that a case ran on; None where that can't be told."""
    gpu = by_device_name(row.gpu, row.gpu_total_bytes) if row.gpu is not None else None
    if gpu is not None:
        return (row.gpu_total_bytes or gpu.total_bytes) - (gpu.context_bytes or 0)
    return row.gpu_total_bytes


def _fails(row: Row, source: str) -> bool | None:
    """Whether the estimate fails its case; None where nothing can be said."""
    estimate, usable = row.predicted_bytes[source], usable_bytes(row)
    if row.status == "oom":
        return None if usable is None else estimate <= usable
    if row.measured_bytes is None:
        return None
    return estimate < row.measured_bytes or (usable is not None and estimate > usable)


def _conserved(row: Row, source: str) -> int | None:
    estimate, usable = row.predicted_bytes[source], usable_bytes(row)
    failed = _fails(row, source)
    if usable is None or failed is None:
        return None
    if estimate > usable:
        return 0  # nothing is launched
    return -estimate if failed else usable - estimate
