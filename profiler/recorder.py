"""What a workload tells its instrument: which phase it is in, and where one step ends and the next begins."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nooom.profiler.instruments import Instrument, Reading
from nooom.profiler.measurement import Phase


class Recorder:
    """Turns one instrument's readings into phases.

    Phases follow one another without a gap: entering one ends the one before, so no byte falls between two.  A phase
    entered several times (micro-batches, measured steps) keeps its worst reading.  The first step is the warm-up and is
    kept apart, because optimizer state, workspaces and tuning scratch come lazily.
    """

    def __init__(
        self,
        instrument: Instrument,
        *,
        tell: Callable[[str], None] = lambda phase: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.instrument = instrument
        self.retries: int | None = None
        self.current: str | None = None
        self._tell = tell
        self._clock = clock
        self._began = 0.0
        self._outside: dict[str, tuple[Reading, float]] = {}
        self._steps: list[dict[str, tuple[Reading, float]]] = []
        self._in_step = False

    def enter(self, phase: str) -> None:
        """``phase`` begins; the one before it ends."""
        self.leave()
        self.current = phase
        self._tell(phase)
        self.instrument.phase_begins(phase)
        self._began = self._clock()

    def leave(self) -> None:
        """The current phase, if any, ends and is read."""
        if self.current is None:
            return
        self.instrument.settle()
        seconds = self._clock() - self._began
        reading = self.instrument.read()
        self.retries = reading.retries
        step = self._steps[-1] if self._in_step else self._outside
        if self.current in step:
            before, sofar = step[self.current]
            reading, seconds = before.worst(reading), sofar + seconds
        step[self.current] = (reading, seconds)
        self.current = None

    def breathe(self) -> None:
        """A moment inside a long phase at which the instrument may fold what it has recorded."""
        self.instrument.breathe()

    @contextmanager
    def step(self) -> Iterator[None]:
        """One repetition of the whole workload; the first is the warm-up."""
        self.leave()
        self._steps.append({})
        self._in_step = True
        yield
        # Not in a finally: after a failure the phase that failed must stay current, so that the record names it.
        self.leave()
        self._in_step = False

    def phases(self) -> list[Phase]:
        """Phases outside steps (load), then the worst of the measured steps; of the warm-up when nothing else ran."""
        measured = self._steps[1:] or self._steps[:1]
        worst: dict[str, tuple[Reading, float]] = {}
        for step in measured:
            for name, (reading, seconds) in step.items():
                if name in worst:
                    before, slowest = worst[name]
                    worst[name] = (before.worst(reading), max(slowest, seconds))
                else:
                    worst[name] = (reading, seconds)
        return _as_phases(self._outside) + _as_phases(worst)

    def first(self) -> list[Phase]:
        """The warm-up step's phases."""
        return _as_phases(self._steps[0]) if self._steps else []


def _as_phases(readings: dict[str, tuple[Reading, float]]) -> list[Phase]:
    phases = []
    for name, (reading, seconds) in readings.items():
        figures = dataclasses.asdict(reading)
        del figures["retries"]
        phases.append(Phase(name=name, seconds=round(seconds, 6), **figures))
    return phases
