"""``nooom.measure()``: the peaks of a block of anyone's code, in the process that is there.

with nooom.measure(attribute=True) as measured:
    loss = model(**batch).loss
    measured.phase("backward")
    loss.backward()
print(measured.peak_allocated_bytes, measured.phases[-1].tensors)

@nooom.measure(name="train step", out="nooom-results")
def step(batch):
    loss = model(**batch).loss
    nooom.phase("backward")
    loss.backward()
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import itertools
import os
import threading
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from nooom.formulas.errors import NooomError, UsageError
from nooom.profiler.fingerprint import allocator_settings, checkout_around, fingerprint
from nooom.profiler.instruments import Instrument
from nooom.profiler.instruments.running import running_instrument
from nooom.profiler.journal import append, refuse_what_takes_no_record
from nooom.profiler.measurement import EXPLANATION, Measurement, Phase, own_code
from nooom.profiler.out_of_memory import classify_oom
from nooom.profiler.phantom.launcher import is_played_here
from nooom.profiler.recorder import Recorder

P = ParamSpec("P")
R = TypeVar("R")

FIRST_PHASE = "block"
_LONGEST_PHASE = 100
_LONGEST_MESSAGE = 2000


def measure(
    device: str = "auto", *, attribute: bool = False, name: str | None = None, out: str | os.PathLike[str] | None = None
) -> Measured:
    """A context that measures what runs inside it, by phases; as a decorator, every call of a function.

    Args:
        device: ``cuda`` reads the caching allocator of the current GPU, a phantom's too; ``cpu`` sums the CPU
            allocator's events, of which it sees those since the block began; ``auto`` is cuda where torch has one.
        attribute: also say what each peak is made of.  What was alive before is named as far as a module called in
            the block, or an optimizer stepped in it, holds it.
        name: of the record; a decorated function's is its own unless another is given.
        out: the folder to whose ``measurements.jsonl`` the record is appended when the block ends.

    Raises:
        UsageError: another device, a name that can't be one, ``out`` without a name, or one that takes no record.
        CannotMeasureError: when the block begins: cuda, and no GPU that torch can use, or another allocator than
            PyTorch's own; cpu, and a profiler that runs already.
    """
    if callable(device):
        raise UsageError("write @nooom.measure(), with parentheses")
    return Measured(device, attribute, name, None if out is None else Path(out))


def phase(name: str) -> None:
    """A phase of the innermost measurement that runs begins here, and the one before it ends.

    Raises:
        UsageError: nothing is being measured here.
    """
    found = _innermost()
    if found is None:
        raise UsageError(f"nooom.phase({name!r}): nothing is being measured here; call it inside nooom.measure()")
    found.phase(name)


class Measured:
    """A measured block.  ``phases`` is filled as they end; until one is named, the block is the phase ``block``."""

    def __init__(self, device: str, attribute: bool, name: str | None = None, out: Path | None = None) -> None:
        if device not in ("auto", "cuda", "cpu"):
            raise UsageError(f"measure() takes auto, cuda or cpu, not {device!r}")
        if name is not None:
            own_code(name)
        self.thread = threading.get_ident()
        self._device = device
        self._attribute = attribute
        self._name = name
        self._out = out
        self._recorder: Recorder | None = None
        self._running = False
        self._status = "ok"
        self._error: dict[str, Any] | None = None
        self._notes: dict[str, Any] = {}

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function, each call of it a measurement of its own, of which the last is the function's ``measured``.

        A call from inside a measured one, as a recursive function's, belongs to that one.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(
                f"{function.__qualname__} is a generator, which runs in pieces: measure what goes through it, "
                "with nooom.measure() as a context"
            )
        name = self._name or getattr(function, "__qualname__", type(function).__name__)
        inside: ContextVar[bool] = ContextVar("inside", default=False)
        calls = itertools.count(1)

        @contextlib.contextmanager
        def call() -> Any:
            if inside.get():
                yield
                return
            token = inside.set(True)
            number = next(calls)
            # Records are told apart by their names: each call's is one of its own.
            called = name if number == 1 or self._out is None else f"{name} ({number})"
            fresh = Measured(self._device, self._attribute, called, self._out)
            try:
                with fresh:
                    yield
            finally:
                inside.reset(token)
                measured.measured = fresh

        @functools.wraps(function)
        def at_once(*args: P.args, **kwargs: P.kwargs) -> R:
            with call():
                result = function(*args, **kwargs)
                if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
                    getattr(result, "close", lambda: None)()  # it will never run: Python would say so
                    raise UsageError(
                        f"{name} returns a {type(result).__name__}, which runs later: measure what goes through it, "
                        "with nooom.measure() as a context"
                    )
                return result

        @functools.wraps(function)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            with call():
                return await cast("Any", function(*args, **kwargs))

        measured = cast("Any", awaited if inspect.iscoroutinefunction(function) else at_once)
        measured.measured = None
        return cast("Callable[P, R]", measured)

    def __enter__(self) -> Measured:
        if self._recorder is not None:
            raise UsageError("a measurement is of one block: call nooom.measure() for each")
        if self._out is not None:
            if self._name is None:
                raise UsageError("out= keeps a record, and a record needs a name: nooom.measure(name=..., out=...)")
            refuse_what_takes_no_record(self._out)
        _refuse_two_tracers(self._attribute)
        instrument = running_instrument(self._device, attribute=self._attribute)
        if self._name is not None:
            checkout_around(Path.cwd())  # now: what is committed meanwhile is not what ran
        gc.collect()
        try:
            instrument.open()
        except BaseException:
            _closed(instrument)
            raise
        self._recorder = Recorder(instrument)
        self._recorder.enter(FIRST_PHASE)
        self._running, self.thread = True, threading.get_ident()
        _running.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        recorder = self._begun()
        _running.remove(self)
        self._running = False
        failed_in = recorder.current
        # After a failure nothing of ours may hide it: a GPU that has crashed answers no more questions.
        with contextlib.suppress(*(() if error is None else (Exception,))):
            try:
                recorder.leave()
            finally:
                self._notes = recorder.instrument.describe()
                recorder.instrument.close()
        if error is not None:
            _closed(recorder.instrument)
        # Words alone: the error holds its frames, and they hold tensors.
        self._status, self._error = ended(error, failed_in)
        if self._status == "oom":
            self._error = {**(self._error or {}), **self._alive(failed_in)}
        if self._out is not None:
            kept(self._out, self.record())

    def phase(self, name: str) -> None:
        """A phase begins here, and the one before it ends.  A phase that comes again keeps its worst."""
        if not self._running:
            raise UsageError(f"phase({name!r}) outside of the measured block")
        text: Any = name  # whatever the program gave
        if not isinstance(text, str) or not text.isprintable() or not 0 < len(text) <= _LONGEST_PHASE:
            raise UsageError(f"phase({ascii(name)[:60]}): a name is 1 to {_LONGEST_PHASE} characters that print")
        self._begun().enter(name)

    @property
    def phases(self) -> list[Phase]:
        """Those that have ended, in their order; figures in bytes, what the device does not tell is None."""
        return [] if self._recorder is None else self._recorder.phases()

    @property
    def peak_allocated_bytes(self) -> int | None:
        """The largest of the phases' peaks."""
        return max((p.peak_allocated_bytes for p in self.phases if p.peak_allocated_bytes is not None), default=None)

    def record(self, name: str | None = None) -> Measurement:
        """The record of the block, once it has ended: of anyone's own code, told from others by its name.

        ``status`` is ``oom`` where the block was left because memory ran out, ``crashed`` where another error left it,
        and ``ok`` otherwise, a ``SystemExit`` that reports no failure included.

        Args:
            name: instead of the one that ``measure`` was given.

        Raises:
            UsageError: no name, one that can't be one, or a block that has not ended.
        """
        name = name or self._name
        if name is None:
            raise UsageError("a record needs a name: nooom.measure(name=...) or record(name)")
        recorder = self._begun()
        if self._running:
            raise UsageError("the measured block has not ended: its record is complete when it has")
        return Measurement(
            **own_code(name),
            **facts(recorder, self._notes),
            status=self._status,
            phases=recorder.phases(),
            error=self._error,
        )

    def _begun(self) -> Recorder:
        if self._recorder is None:
            raise UsageError("nothing has been measured yet: with nooom.measure() as measured: ...")
        return self._recorder

    def _alive(self, name: str | None) -> dict[str, Any]:
        """What stood in memory's way, where the block was attributed."""
        last = next((found for found in self.phases if found.name == name), None)
        return {key: getattr(last, key) for key in EXPLANATION if getattr(last, key, None) is not None}


def facts(recorder: Recorder, notes: dict[str, Any]) -> dict[str, Any]:
    """What any record of a part of this process says besides its case, its status and its phases."""
    cuda = recorder.instrument.torch_device.startswith("cuda")
    phantom = cuda and is_played_here()
    threads = None
    if not cuda:
        import torch

        threads = torch.get_num_threads()
    return {
        "source": "emulated" if phantom else "measured",
        "device": "phantom" if phantom else "cuda" if cuda else "cpu",
        "gpu": notes.get("gpu"),
        "retries": recorder.retries,
        "fingerprint": fingerprint(
            notes, allocator=allocator_settings(), cpu_threads=threads, checkout=checkout_around(Path.cwd())
        ),
    }


def ended(error: BaseException | None, failed_in: str | None) -> tuple[str, dict[str, Any] | None]:
    """The status of a block that an error has left, and what the record says of it."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "ok", None
    text = " ".join(str(error).split())
    name = type(error).__name__
    said = {"message": (f"{name}: {text}" if text else name)[:_LONGEST_MESSAGE], "phase": failed_in}
    oom = classify_oom(error)
    return ("oom", {**oom, **said}) if oom is not None else ("crashed", {"kind": name, **said})


def kept(folder: Path, record: Measurement) -> None:
    """Append a record; where it can't be, say so and go on: that is no reason to lose the program's own result."""
    try:
        append(folder, record)
    except NooomError as lost:
        warnings.warn(f"nooom: {lost}", stacklevel=3)


_running: list[Measured] = []
"""In the order in which they began; those of several threads among one another."""


def _innermost() -> Measured | None:
    """Of this thread; else, as in a thread of autograd's, of the one thread that measures."""
    here = [found for found in _running if found.thread == threading.get_ident()]
    if here:
        return here[-1]
    return _running[-1] if len({found.thread for found in _running}) == 1 else None


def _refuse_two_tracers(attribute: bool) -> None:
    """A tracer takes the allocator's events for itself."""
    if _running and (attribute or any(found._attribute for found in _running)):
        raise UsageError("with attribute=True a measurement stands alone: not inside another, nor around one")


def _closed(instrument: Instrument) -> None:
    with contextlib.suppress(Exception):
        instrument.close()
