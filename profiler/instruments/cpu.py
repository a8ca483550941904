"""The CPU instrument: the c10 CPU allocator's own events, summed as they happen.

``torch.profiler`` with ``profile_memory=True`` reports every allocation and free of the CPU allocator in bytes asked
for.  Their running sum is exact, but a profiler session keeps every event in memory until it is closed, and generating
32 tokens makes hundreds of thousands.  So sessions are short and follow one another: each is folded into a running
balance when a phase ends and whenever the workload breathes (each generated token).  Opening and closing one takes less
than a millisecond.

What is not seen: blocks born before the first session (there are none: it opens before the model is built), frees
between two sessions (nothing runs there; Python's own cycle collector is held back meanwhile), and allocations of plain
Python threads.
"""

from __future__ import annotations

import gc
import itertools
import logging
from typing import Any

from nooom.profiler.instruments import Reading
from nooom.profiler.instruments.rss import lifetime_peak_rss_bytes

_MEMORY_EVENT = "[memory]"


class CpuInstrument:
    """Allocated bytes on the CPU, exact.  RSS comes from a pass of its own (see ``rss.py``)."""

    name = "cpu"
    torch_device = "cpu"

    def __init__(self) -> None:
        self._session: Any = None
        self._balance_bytes = 0
        self._peak_bytes = 0
        self._sessions = 0
        self._events = 0

    def open(self) -> None:
        # A warm-up session: the first one loads the tracing library (0.4 s), which is nobody's phase.
        self._open_session()
        self._close_session()
        self._open_session()

    def phase_begins(self, name: str) -> None:
        self._fold()
        self._peak_bytes = self._balance_bytes

    def breathe(self) -> None:
        self._fold()

    def settle(self) -> None:
        """CPU kernels are done when they return."""

    def read(self) -> Reading:
        self._fold()
        return Reading(peak_allocated_bytes=self._peak_bytes, end_allocated_bytes=self._balance_bytes)

    def describe(self) -> dict[str, Any]:
        cost = {"sessions": self._sessions, "events": self._events, "rss_peak_bytes": lifetime_peak_rss_bytes()}
        return {"gpu": None, "sampling": None, "profiler": cost}

    def close(self) -> None:
        if self._session is not None:
            self._close_session()

    def _fold(self) -> None:
        """Close the session, add its events to the balance, and open the next one, with nothing freed in between."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._close_session()
            self._open_session()
        finally:
            if collecting:
                gc.enable()

    def _open_session(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        logging.getLogger("torch.profiler").setLevel(logging.ERROR)
        session = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False)
        session.__enter__()
        self._session = session
        self._sessions += 1

    def _close_session(self) -> None:
        session, self._session = self._session, None
        session.__exit__(None, None, None)
        self._count(session.profiler.kineto_results)

    def _count(self, results: Any) -> None:
        """A session's events go into the balance."""
        # The raw C++ events: the public .events() turns them into Python objects, which is 50 times slower.
        events = results.events()
        changes = [event.nbytes() for event in events if event.name() == _MEMORY_EVENT]
        balances = list(itertools.accumulate(changes, initial=self._balance_bytes))
        self._events += len(changes)
        self._balance_bytes = balances[-1]
        self._peak_bytes = max(self._peak_bytes, *balances)
