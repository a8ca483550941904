"""The fixture ``gpu_memory``: blocks of a test measured by phase, and functions that must give back what they take."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import pytest

from nooom.benchmarks.pytest_plugin import rows
from nooom.benchmarks.pytest_plugin.marks import DEVICES
from nooom.benchmarks.pytest_plugin.rows import Row
from nooom.benchmarks.pytest_plugin.runs import SKIPPED, Machine, Run, clean_block, name_of, one_line, row_of
from nooom.formulas.errors import CannotMeasureError, UsageError, nearest
from nooom.profiler import block
from nooom.profiler.block import Measured
from nooom.profiler.measurement import own_code

_WARM_UP, _LEFT = "warm-up", "left"


class GpuMemory:
    """What a test gets by the name ``gpu_memory``.

    with gpu_memory("step") as measured:
        loss = model(**batch).loss
        measured.phase("backward")
        loss.backward()
    assert measured.peak_allocated_bytes < 2 << 30
    """

    def __init__(self, nodeid: str, machine: Machine, run: Run | None) -> None:
        self._nodeid, self._machine, self._run = nodeid, machine, run
        self._blocks: dict[str, Measured] = {}
        self._replayed = 0
        self.rows: dict[str, Row] = {}

    @contextmanager
    def __call__(self, name: str, *, attribute: bool = False, device: str = "auto") -> Iterator[Measured]:
        """A block, measured from a clean start; its record is named ``<test>::name``.

        Args:
            name: tells this block from the test's others.
            attribute: also say what each peak is made of.
            device: auto, cuda or cpu.
        """
        if self._run is not None and self._run.rerunning and name in self._blocks:
            with self._again(self._blocks[name]) as measured:
                yield measured
            return
        ended = ExitStack()
        with one_line(self._nodeid):
            if name in self._blocks:
                raise UsageError(f"gpu_memory({name!r}) was measured in this test already; a name tells records apart")
            record_name = name_of(f"{self._nodeid}::{name}")
            own_code(record_name)
            measured = ended.enter_context(self._block(f"gpu_memory({name!r})", device, attribute=attribute))
        self._blocks[name] = measured
        try:
            with ended:
                yield measured
        except SKIPPED:  # which says nothing of what the test takes
            raise
        except BaseException:
            self.rows[name] = row_of(measured.record(record_name), self._machine)
            raise
        self.rows[name] = row_of(measured.record(record_name), self._machine)

    def phase(self, name: str) -> None:
        """A phase of the innermost measurement, a marked test's too, begins here; the one before it ends."""
        if self._replayed:
            return
        with one_line(self._nodeid):
            block.phase(name)

    def no_leak(
        self, function: Callable[[], object], repeats: int = 5, slack_bytes: int = 0, *, device: str = "auto"
    ) -> None:
        """Fail when each call of a function leaves more allocated than the one before it.

        Args:
            function: called once to warm up and then ``repeats`` times; what it returns is dropped at once.
            repeats: at least 2.
            slack_bytes: growth from call to call that is no leak.
            device: auto, cuda or cpu.
        """
        if self._run is not None and self._run.rerunning:
            for _ in range(repeats + 1):
                function()
            return
        with one_line(self._nodeid):
            counts: tuple[Any, ...] = (repeats, slack_bytes)  # whatever the test gave
            if not all(type(count) is int for count in counts) or repeats < 2 or slack_bytes < 0:
                raise UsageError("no_leak() wants repeats, an integer of 2 or more, and slack_bytes of 0 or more")
            if not callable(function):
                raise UsageError(f"no_leak() wants a function to call, not {type(function).__name__}")
            ends = _ends(self._block("gpu_memory.no_leak()", device, attribute=False), function, repeats)
        grown = [after - before for before, after in itertools.pairwise(ends)]
        if not all(step > slack_bytes for step in grown):
            return
        per_call = (ends[-1] - ends[0]) // repeats
        what = getattr(function, "__qualname__", repr(function))
        text = [
            f"gpu memory: {what} leaks {rows.size(per_call)} ({per_call:,} bytes) a call",
            f"allocated after a warm-up and each of {repeats} calls: {', '.join(map(rows.size, ends))}",
            *self._left(function, repeats, device),
        ]
        pytest.fail("\n".join(text), pytrace=False)

    def _left(self, function: Callable[[], object], repeats: int, device: str) -> list[str]:
        """What as many calls more leave behind, by tensor."""
        try:
            block = self._block("gpu_memory.no_leak()", device, attribute=True)
            _ends(block, function, repeats)
        except Exception as error:
            return [f"what they left can't be said: {type(error).__name__}: {error}"]
        left = block.phases[-1]
        # What was there before these calls has no operation that made it.
        made = [tensor for tensor in left.tensors or () if tensor["op"] is not None]
        lines = list(rows.tensor_lines(made, ()))
        return [f"alive after {repeats + 1} calls more:", *lines] if lines else []

    def _block(self, what: str, device: str, *, attribute: bool) -> Measured:
        if device not in DEVICES:
            raise UsageError(f"{what}: device={device!r}; {nearest(str(device), DEVICES)}")
        # Emptying the cache inside a marked test would lower what that one reserved.
        alone = self._run is None or not self._run.running
        return clean_block(self._machine.device(device), attribute=attribute, empty=alone)

    @contextmanager
    def _again(self, first: Measured) -> Iterator[Measured]:
        """A block when the body runs once more, under a tracer that must stand alone: what the first run measured."""
        self._replayed += 1
        try:
            yield cast("Measured", _Replayed(first))
        finally:
            self._replayed -= 1


class _Replayed:
    """The figures of a block that has ended; its phases are not begun again."""

    def __init__(self, first: Measured) -> None:
        self._first = first

    def phase(self, name: str) -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._first, name)


def _ends(block: Measured, function: Callable[[], object], repeats: int) -> list[int]:
    """Allocated bytes after the warm-up and after each call, cycles collected."""
    names = [_WARM_UP, *(f"call {number}" for number in range(1, repeats + 1))]
    with block:
        for name in names:
            block.phase(name)
            function()
            gc.collect()
        block.phase(_LEFT)  # its peak is what is alive now
    found = {phase.name: phase.end_allocated_bytes for phase in block.phases}
    ends = [end for name in names if (end := found.get(name)) is not None]
    if len(ends) != len(names):
        raise CannotMeasureError("no_leak(): what was allocated is unknown: the function ran a profiler of its own")
    return ends
