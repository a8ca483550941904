"""Resident set size per phase on the CPU: the second pass of the CPU instrument.

A pass of its own, because the profiler that counts the allocator's events takes memory itself.  Linux keeps the peak of
the resident set (VmHWM) and resets it on request, so the figure is a true peak and not a sample.  Elsewhere only the
peak since the process began is known: a phase then has a figure where it raised that peak, and null where it did not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nooom.profiler.instruments import Reading

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_PEAK_RSS = "5"


class RssInstrument:
    """Peak resident set size; allocates nothing and watches no events."""

    name = "rss"
    torch_device = "cpu"

    def __init__(self) -> None:
        self._resets = False
        self._before = 0

    def open(self) -> None:
        self._resets = reset_peak_rss()

    def phase_begins(self, name: str) -> None:
        if self._resets:
            reset_peak_rss()
        else:
            self._before = peak_rss_bytes()

    def breathe(self) -> None:
        pass

    def settle(self) -> None:
        """CPU kernels are done when they return."""

    def read(self) -> Reading:
        peak = peak_rss_bytes()
        return Reading(rss_peak_bytes=peak if self._resets or peak > self._before else None)

    def describe(self) -> dict[str, Any]:
        return {"gpu": None, "sampling": None, "rss_peak": "per phase" if self._resets else "since the process began"}

    def close(self) -> None:
        pass


def reset_peak_rss() -> bool:
    """Ask the kernel to forget this process's peak RSS; False where it can't."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK_RSS)
    except OSError:
        return False
    return True


def peak_rss_bytes() -> int:
    """The peak resident set size since the last reset, or since the process began."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return lifetime_peak_rss_bytes()


def lifetime_peak_rss_bytes() -> int:
    """The peak resident set size since the process began, whatever was reset meanwhile."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
