"""What ``nooom measure`` keeps of a process from inside: PyTorch's own statistics, written when the process ends.

It lives in somebody else's program, in any Python from 3.9 on, and changes nothing that the program could notice: no
CUDA before the program's first use of it, no synchronization, no memory on the GPU.  What a process leaves is one JSON
file, first when it begins to use CUDA (a process that is killed leaves no other) and again when it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from nooom.profiler.out_of_memory import classify_oom

PEAKS = {
    "max_allocated_bytes": "allocated_bytes.all.peak",
    "max_reserved_bytes": "reserved_bytes.all.peak",
    "max_active_bytes": "active_bytes.all.peak",
}
"""A report's figures, and the allocator's statistics that they are."""

_HISTORY_ENTRIES = 200_000
"""Of the memory history: a few KB each on the host, and the last ones are kept."""


def begin(torch: Any, settings: Mapping[str, Any]) -> None:
    """Watch this process; torch has just been imported.

    Args:
        torch: the module.
        settings: ``reports``: the folder for the reports.  ``phantom``: whether a phantom GPU is played, and
            ``torch_libraries``: for which torch.  ``snapshot``: where PyTorch's memory snapshot goes, or None.
    """
    recorder = _Recorder(torch, settings)
    if settings["phantom"]:
        recorder.known = _answers(torch, settings["torch_libraries"])
    recorder.watch()


def _answers(torch: Any, libraries: str) -> Any:
    """Known values, entered for the rest of the process; None where nothing can be played."""
    if torch.version.cuda is None:
        _say(f"torch {torch.__version__} of {sys.executable} is a build without CUDA: it finds no phantom GPU")
        return None
    found = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib")
    if os.path.realpath(found) != os.path.realpath(libraries):
        _say(
            f"the phantom GPU was built for the torch in {libraries}, and {sys.executable} has another "
            f"({torch.__version__}): run nooom with that Python"
        )
    if threading.current_thread() is not threading.main_thread():
        _say("torch was first imported outside the main thread: questions to the phantom GPU read as zeros")
        return None
    from nooom.profiler.phantom.program import prepare

    known: Any = prepare()
    known.__enter__()
    return known


class _Recorder:
    """One process's figures."""

    def __init__(self, torch: Any, settings: Mapping[str, Any]) -> None:
        self.known: Any = None
        self._torch = torch
        self._folder = settings["reports"]
        self._snapshot: str | None = settings["snapshot"]
        self._forget()

    def _forget(self) -> None:
        """A process begins, by its start or by a fork."""
        self._name = f"{os.getpid()}-{time.time_ns()}"
        self._used = self._ended = False
        self._before_resets: dict[int, dict[str, int]] = {}
        self._ran_out: list[int] = []
        if self.known is not None:
            self.known.invented.clear()

    def watch(self) -> None:
        """Be told of the first use of CUDA, of resets of the peaks, and of the process's end."""
        self._torch.cuda._lazy_call(self._first_use)
        for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):
            _before(self._torch._C, name, self._keep_peaks)
        atexit.register(self.end)
        _before(os, "_exit", self.end)  # how a forked worker of multiprocessing ends
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _first_use(self) -> None:
        """Runs inside torch's initialization of CUDA, which an error would end."""
        self._used = True
        for step in (self._write_what_is_known, self._observe_oom, self._record_history, self._catch_sigterm):
            with contextlib.suppress(Exception):  # a figure less
                step()

    def _write_what_is_known(self) -> None:
        self._write(self._figures(peaks_known=False))

    def _observe_oom(self) -> None:
        """The allocator says what it could not get, whether the program goes on afterwards or not."""
        self._torch._C._cuda_attach_out_of_memory_observer(lambda _device, tried, *_: self._ran_out.append(int(tried)))

    def _record_history(self) -> None:
        if self._snapshot is not None:
            self._torch.cuda.memory._record_memory_history(stacks="python", max_entries=_HISTORY_ENTRIES)

    def _catch_sigterm(self) -> None:
        """Where the program has no handler: report, then die of it all the same.

        As with every handler in Python, a call into C that does not return delays it.
        """
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, number: int, _frame: Any) -> None:
        self.end()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _keep_peaks(self) -> None:
        """A program that resets its peaks loses them; the process's highest is asked for here."""
        if self._used:
            for index, peaks in self._peaks().items():
                self._before_resets[index] = peaks

    def _peaks(self) -> dict[int, dict[str, int]]:
        """By torch's index of the GPU, since the process began.  A GPU that nothing was put on has none."""
        found = {}
        for index in range(self._torch.cuda.device_count()):
            stats = self._torch.cuda.memory_stats(index)
            before = self._before_resets.get(index, {})
            peaks = {name: max(int(stats.get(key, 0)), before.get(name, 0)) for name, key in PEAKS.items()}
            if any(peaks.values()) or index == self._torch.cuda.current_device():
                found[index] = peaks
        return found

    def end(self) -> None:
        """Write the report; once a process, and only where CUDA was used."""
        if not self._used or self._ended:
            return
        self._ended = True
        with contextlib.suppress(Exception):  # the report from the first use remains, with unknown figures
            self._write(self._figures(peaks_known=True))
        if self._snapshot is not None:
            try:
                self._torch.cuda.memory._dump_snapshot(f"{self._snapshot}.{os.getpid()}")
            except Exception as error:
                _say(f"process {os.getpid()} wrote no snapshot: {error}")

    def _figures(self, *, peaks_known: bool) -> dict[str, Any]:
        gpus = []
        for index, peaks in (self._peaks() if peaks_known else {}).items():
            properties = self._torch.cuda.get_device_properties(index)
            gpus.append({"uuid": str(getattr(properties, "uuid", "")) or None, **peaks})
        return {
            "pid": os.getpid(),
            "command": list(getattr(sys, "orig_argv", sys.argv)),
            "gpus": gpus,
            "oom": self._oom(),
            "invented": None if self.known is None else self.known.invented.most_common(),
        }

    def _oom(self) -> dict[str, Any] | None:
        """The error that ends the program, or else the last time that the allocator ran out; None where neither was."""
        error = getattr(sys, "last_value", None)  # set before the traceback is printed, and so before atexit
        said = classify_oom(error) if isinstance(error, BaseException) else None
        fatal = said is not None and said["kind"] == "cuda"
        if not fatal and not self._ran_out:
            return None
        tried = self._ran_out[-1] if self._ran_out else said["tried_bytes"] if said is not None else None
        return {"tried_bytes": tried, "times": len(self._ran_out) or None, "message": str(error) if fatal else None}

    def _write(self, report: Mapping[str, Any]) -> None:
        """In one piece: a reader finds the earlier report or this one."""
        place = os.path.join(self._folder, self._name)
        with open(f"{place}.new", "w", encoding="utf-8") as file:
            json.dump(report, file)
        os.replace(f"{place}.new", f"{place}.json")


def _before(owner: Any, name: str, first: Callable[[], None]) -> None:
    """Have ``owner.name`` do something else first; whatever that does, the call is made."""
    original = getattr(owner, name, None)
    if original is None:
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            first()
        return original(*args, **kwargs)

    call.__name__ = name
    setattr(owner, name, call)


def _say(what: str) -> None:
    with contextlib.suppress(Exception):
        print(f"nooom: {what}", file=sys.stderr, flush=True)
