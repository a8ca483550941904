"""One small interface, one file per instrument.

An instrument is opened before anything of the case exists, then read at the end of each phase.  Between phases it only
synchronizes, reads and resets its peaks: the allocator's cache is never emptied, because users' loops don't empty it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

from nooom.profiler.measurement import EXPLANATION


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an instrument saw since its peaks were last reset.  Fields as in ``measurement.Phase``; unknown is None."""

    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_active_bytes: int | None = None
    peak_requested_bytes: int | None = None
    end_allocated_bytes: int | None = None
    nvml_peak_bytes: int | None = None
    rss_peak_bytes: int | None = None
    retries: int | None = None
    """Allocator retries since the process began (a running count, not reset)."""
    peak_op: str | None = None
    components: dict[str, int] | None = None
    tensors: list[dict[str, Any]] | None = None
    hidden: list[dict[str, Any]] | None = None

    def worst(self, other: Reading) -> Reading:
        """The larger of each figure; what ends a phase (``end_allocated_bytes``) is the later reading's.

        What a peak is made of comes from the reading that has the larger one.
        """
        merged: dict[str, Any] = {
            field.name: _larger(getattr(self, field.name), getattr(other, field.name))
            for field in dataclasses.fields(self)
            if field.name not in EXPLANATION
        }
        merged["end_allocated_bytes"] = other.end_allocated_bytes
        higher = other if (other.peak_allocated_bytes or 0) > (self.peak_allocated_bytes or 0) else self
        return Reading(**merged, **{name: getattr(higher, name) for name in EXPLANATION})


class Instrument(Protocol):
    """Measures one process's memory while one case runs in it."""

    name: str
    """The word in records: cuda, cpu."""
    torch_device: str
    """Where the workload puts its tensors, as ``torch.device`` takes it."""

    def open(self) -> None:
        """Start, before the model is built: contexts are created, the baseline taken, the peaks reset."""

    def phase_begins(self, name: str) -> None:
        """A phase begins now: peaks are reset.  ``name`` is for instruments with a second process to tell."""

    def settle(self) -> None:
        """Wait until everything that was queued is done, so that a phase's time holds its own work."""

    def read(self) -> Reading:
        """The phase ends now: synchronize and read.  Called once per phase, before the next one begins."""

    def breathe(self) -> None:
        """Called by a workload inside long phases (each generated token): a moment to fold what was recorded."""

    def describe(self) -> dict[str, Any]:
        """What the record should keep of how it was measured: ``gpu``, ``sampling``, ``notes``."""

    def close(self) -> None:
        """Stop; also called after a failure, at most once."""


def _larger(a: int | None, b: int | None) -> int | None:
    known = [x for x in (a, b) if x is not None]
    return max(known, default=None)
