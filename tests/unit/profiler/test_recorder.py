"""Phases follow one another without a gap, keep their worst reading, and the warm-up stands apart."""

from __future__ import annotations

from typing import Any

import pytest

from nooom.profiler.instruments import Reading
from nooom.profiler.recorder import Recorder


class Scripted:
    """Gives the readings it was given, in order, and remembers what it was told."""

    name = "scripted"
    torch_device = "cpu"

    def __init__(self, *peaks: int) -> None:
        self.readings = [
            Reading(peak_allocated_bytes=p, end_allocated_bytes=p // 2, retries=i) for i, p in enumerate(peaks)
        ]
        self.told: list[str] = []

    def open(self) -> None: ...
    def settle(self) -> None: ...
    def close(self) -> None: ...
    def describe(self) -> dict[str, Any]:
        return {}

    def phase_begins(self, name: str) -> None:
        self.told.append(name)

    def breathe(self) -> None:
        self.told.append("breath")

    def read(self) -> Reading:
        return self.readings.pop(0)


class Clock:
    """One second later every time it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def figures(phases: list[Any]) -> list[tuple[str, int | None, int | None, float | None]]:
    return [(p.name, p.peak_allocated_bytes, p.end_allocated_bytes, p.seconds) for p in phases]


def test_the_worst_of_the_measured_steps_and_the_first_apart() -> None:
    recorder = Recorder(Scripted(10, 900, 20, 30, 50, 40), clock=Clock())
    recorder.enter("load")
    for _ in range(3):
        with recorder.step():
            recorder.enter("forward")
            if len(recorder._steps) != 1:
                recorder.enter("backward")
    assert figures(recorder.first()) == [("forward", 900, 450, 1.0)]
    # forward: 20 then 50; backward: 30 then 40; what ends a phase is the last step's.
    assert figures(recorder.phases()) == [
        ("load", 10, 5, 1.0),
        ("forward", 50, 25, 1.0),
        ("backward", 40, 20, 1.0),
    ]
    assert recorder.retries == 5


def test_a_phase_entered_twice_in_a_step_keeps_its_worst_and_adds_its_time() -> None:
    recorder = Recorder(Scripted(1, 7, 3, 5, 2, 9), clock=Clock())
    for _ in range(2):
        with recorder.step():
            recorder.enter("forward")
            recorder.enter("backward")
            recorder.enter("forward")
    assert figures(recorder.phases()) == [("forward", 9, 4, 2.0), ("backward", 2, 1, 1.0)]
    assert figures(recorder.first()) == [("forward", 3, 1, 2.0), ("backward", 7, 3, 1.0)]


def test_with_a_single_step_the_warm_up_is_all_there_is() -> None:
    recorder = Recorder(Scripted(4))
    with recorder.step():
        recorder.enter("prefill")
    assert [p.name for p in recorder.phases()] == ["prefill"]


def test_a_failure_leaves_its_phase_current() -> None:
    recorder = Recorder(Scripted(1, 2))
    recorder.enter("load")

    def fails() -> None:
        with recorder.step():
            recorder.enter("forward")
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fails()
    assert recorder.current == "forward"
    assert [p.name for p in recorder.phases()] == ["load"]


def test_breaths_reach_the_instrument() -> None:
    instrument = Scripted(1)
    recorder = Recorder(instrument)
    recorder.enter("decode")
    recorder.breathe()
    assert instrument.told == ["decode", "breath"]


def test_unknown_stays_unknown() -> None:
    merged = Reading(peak_allocated_bytes=5).worst(Reading(peak_reserved_bytes=7, peak_allocated_bytes=3))
    assert merged == Reading(peak_allocated_bytes=5, peak_reserved_bytes=7)
