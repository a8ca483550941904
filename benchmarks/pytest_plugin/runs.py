"""A marked test measured: its body from a clean start, what its marks make of that, and the run that names tensors."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nooom.benchmarks import gate
from nooom.benchmarks.pytest_plugin import rows, verdicts
from nooom.benchmarks.pytest_plugin.gpu_lock import GpuLocks
from nooom.benchmarks.pytest_plugin.marks import Asked, Baseline
from nooom.benchmarks.pytest_plugin.rows import Row
from nooom.formulas.errors import CannotMeasureError, NooomError, UsageError
from nooom.profiler.measurement import Measurement, Phase
from nooom.profiler.regression import explained_phase

if TYPE_CHECKING:
    from nooom.profiler.block import Measured

_LONGEST_NAME = 400
"""Of a test, in a record's name: a block's name stands behind it."""
SKIPPED = (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception)
"""How a test ends that says nothing of its memory."""


class Machine:
    """What all measured tests of this process share: the devices, the GPU's lock, the baselines that were read."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.locks = GpuLocks(_who(config), share=bool(config.getoption("gpu_memory_share")))
        self._baselines: dict[Path, list[Measurement]] = {}

    def device(self, asked: str) -> str:
        """``cuda``, locked, or ``cpu``.

        Raises:
            CannotMeasureError: no GPU, or somebody else measures on it.
            UsageError: it can't be locked.
        """
        torch = _torch()
        there = torch.cuda.is_available()
        if asked == "cuda" and not there:
            raise CannotMeasureError(
                f'torch {torch.__version__} finds no GPU that it can use; device="auto" takes the cpu'
            )
        if asked == "cpu" or not there:
            # Read when torch's profiler begins for the first time: it would write lines into what tests print.
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            return "cpu"
        self.locks.take(torch)
        return "cuda"

    def baseline(self, mark: Baseline) -> tuple[Path, list[Measurement]]:
        """Where a mark's baseline lies, and its lines; none where nothing is there yet.

        Raises:
            UsageError: a line that is torn, is no measurement or stands there twice, with its file and number.
        """
        path = self.config.rootpath / (mark.path or self.config.getini("gpu_memory_baselines") or rows.BASELINES)
        if path not in self._baselines:
            there = path.is_file() or (path.is_dir() and next(path.rglob("*.jsonl"), None) is not None)
            self._baselines[path] = [entry.measurement for entry in gate.read_set(path)] if there else []
        return path, self._baselines[path]

    def shown(self, path: Path) -> Path:
        """A path as messages name it: from the root of the tests where it lies below."""
        return path.relative_to(self.config.rootpath) if path.is_relative_to(self.config.rootpath) else path

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of any figure of this process has to know."""
        shared = self.locks.shared
        return (f"the GPU was shared with {shared} (--gpu-memory-share): peaks may differ",) if shared else ()


class Run:
    """One marked test."""

    def __init__(self, item: pytest.Item, asked: Asked, machine: Machine) -> None:
        """Everything that can be wrong before the test begins is found here.

        Raises:
            NooomError: what a mark asks can't be measured here, or a baseline can't be read.
        """
        self._item, self._asked, self._machine = item, asked, machine
        self._baseline = None if asked.baseline is None else machine.baseline(asked.baseline)
        self.device = machine.device(asked.device)
        if self.device == "cpu" and any(limit.metric == "reserved" for limit in asked.limits):
            raise UsageError(
                'limit_gpu_memory: metric="reserved" on the cpu, whose allocator reserves nothing (there is no GPU '
                'here); use metric="allocated"'
            )
        self.running = False
        self.rerunning = False
        self.row: Row | None = None

    @contextmanager
    def measured(self) -> Iterator[None]:
        """The body runs inside; afterwards its marks are judged.

        Raises:
            pytest.fail.Exception: above a limit, grown, or (strict) nothing to compare with.
        """
        block, ended = clean_block(self.device), ExitStack()
        with one_line(self._item.nodeid):
            ended.enter_context(block)
        self.running = True
        try:
            with ended:
                yield
                self._raise_what_unittest_kept()
        except SKIPPED:
            raise
        except BaseException:
            self.row = self._row(block.record(name_of(self._item.nodeid)), ())
            raise
        finally:
            self.running = False
        self._judge(block.record(name_of(self._item.nodeid)))

    def _raise_what_unittest_kept(self) -> None:
        """Its tests' errors are not raised but kept, and shown by pytest from there: the block has to see them, too."""
        kept = getattr(self._item, "_excinfo", None)
        if kept:
            raise kept[-1].value

    def _judge(self, record: Measurement) -> None:
        found = self._verdicts(record)
        alive: list[str] = []
        trouble: list[str] = []
        wanted = self._item.config.getoption("gpu_memory_attribute") or any(one.failure for one in found)
        if wanted and self._asked.rerun and record.peak_allocated_bytes is not None:
            about = next((one.phase for one in found if one.failure), None)
            record, alive, trouble = self._attributed(record, about)
            found = self._verdicts(record)  # with both sides taken apart, a baseline says what grew
        failures = [line for one in found for line in one.failure]
        self.row = self._row(record, tuple(found), trouble if not failures else ())
        if failures:
            text = [f"gpu memory: {failures[0]}", *failures[1:], *alive, *trouble]
            pytest.fail("\n".join(text), pytrace=False)

    def _verdicts(self, record: Measurement) -> list[verdicts.Verdict]:
        found = [verdicts.of_limit(limit, record) for limit in self._asked.limits]
        if self._asked.baseline is not None and self._baseline is not None:
            path, known = self._baseline
            strict = bool(self._item.config.getoption("gpu_memory_strict"))
            shown = self._machine.shown(path)
            found.append(verdicts.of_baseline(self._asked.baseline, record, known, shown, strict=strict))
        return found

    def _row(self, record: Measurement, found: Sequence[verdicts.Verdict], notes: Sequence[str] = ()) -> Row:
        row = row_of(record, self._machine)
        return dataclasses.replace(
            row,
            states=row.states or tuple(dict.fromkeys(one.state for one in found)),
            against=tuple(one.against for one in found if one.against),
            notes=(*row.notes, *(note for one in found for note in one.notes), *notes),
        )

    def _attributed(self, record: Measurement, about: str | None) -> tuple[Measurement, list[str], list[str]]:
        """The body once more with the tracer.

        Args:
            record: of the first run.
            about: the phase whose tensors are of interest; None is the one with the highest peak.

        Returns:
            The record with what its peaks are made of, the lines that say so, and what went wrong.
        """
        again = clean_block(self.device, attribute=True)
        before = list(getattr(self._item, "_excinfo", None) or ())
        self.rerunning = True
        try:
            with again:
                trouble = _swallowed(self._item.runtest)
        except NooomError as error:  # the tracer's own, when the block ends: the figures stand without it
            return record, [], [f"what was alive can't be said: {error}"]
        finally:
            self.running = False
        self.rerunning = False
        # unittest's failures are not raised but kept, and would be taken for the first run's.
        if hasattr(self._item, "_excinfo"):
            extra = list(self._item._excinfo or ())[len(before) :]
            self._item._excinfo = before or None
            trouble = trouble or (_said(extra[0].value) if extra else None)
        lost = [f"the second run of the body did not end as the first: {trouble}"] if trouble is not None else []
        return *_joined(record, again.phases, about), lost


def _joined(record: Measurement, phases: list[Phase], about: str | None) -> tuple[Measurement, list[str]]:
    found = {phase.name: phase for phase in phases}
    # A second run begins with what the first left behind: only the parts of the same peak go into a record.
    joined = dataclasses.replace(record, phases=[explained_phase(phase, phases) for phase in record.phases])
    first = next((phase for phase in record.phases if phase.name == about), None) or verdicts.highest(record)
    same = found.get(first.name) if first is not None else None
    if first is None or same is None or not same.tensors:
        return joined, []
    peak = rows.size(same.peak_allocated_bytes)
    differs = "" if peak == rows.size(first.peak_allocated_bytes) else f", whose peak was {peak}"
    where = "" if len(record.phases) == 1 else f" of {same.name}"
    heading = f"alive at the peak{where}, by a second run of the body{differs}:"
    return joined, [heading, *rows.tensor_lines(same.tensors, same.hidden or ())]


def row_of(record: Measurement, machine: Machine) -> Row:
    """A record's row, held against nothing."""
    ended = () if record.status == "ok" else (record.status if record.status == "oom" else rows.FAILED,)
    retries = record.retries or 0
    unclean = (f"the allocator freed its cache {retries} times for room: no clean peak",) if retries else ()
    return Row(
        name=record.label, evidence=verdicts.evidence(record), peak_bytes=record.peak_allocated_bytes, states=ended,
        notes=(*machine.notes, *unclean), record=record.to_json(),
    )  # fmt: skip


@contextmanager
def one_line(nodeid: str) -> Iterator[None]:
    """What the user got wrong, or what can't be measured here, fails the test in one line and without a traceback."""
    try:
        yield
    except NooomError as error:
        raise pytest.fail.Exception(f"{error} ({nodeid})", pytrace=False) from None


def clean_block(device: str, *, attribute: bool = False, empty: bool = True) -> Measured:
    """A block to be measured, with nothing left to collect and (``empty``) nothing cached from what ran before."""
    from nooom.profiler.block import measure

    if device == "cuda" and empty:
        gc.collect()  # before the cache is emptied; whatever the device, the block itself collects as it begins
        torch = _torch()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return measure(device, attribute=attribute)


def name_of(nodeid: str) -> str:
    """What a test's record is called: its id, shortened where parameters have made it longer than a name may be."""
    printable = nodeid if nodeid.isprintable() else ascii(nodeid)[1:-1]
    if len(printable) <= _LONGEST_NAME:
        return printable
    return f"{printable[:_LONGEST_NAME]}...{hashlib.sha256(printable.encode()).hexdigest()[:12]}"


def _swallowed(body: Callable[[], object]) -> str | None:
    """Run it; what it raised, in words.  Only what ends the session is raised on."""
    try:
        body()
    except pytest.exit.Exception:
        raise
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
        return _said(error)
    return None


def _said(error: BaseException) -> str:
    first = next(iter(str(error).splitlines()), "")[:200]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _torch() -> Any:
    with warnings.catch_warnings():  # under -W error a warning of its own import would be the test's failure
        warnings.simplefilter("ignore")
        import torch
    return torch


def _who(config: pytest.Config) -> str:
    worker = getattr(config, "workerinput", {}).get("workerid")
    return f"pytest process {os.getpid()}" + (f" (xdist worker {worker})" if worker else "")
