"""Anyone's command, unmodified, and what each of its processes took of the GPU that is there or of a phantom.

A start-up hook (``hook/sitecustomize.py``) is put first on the Python search path of the command's processes; each that
uses CUDA leaves a report of PyTorch's own statistics (``inside.py``).  What a process had of the device as a whole, its
context included, comes from outside: exact from a phantom's accounts, sampled by NVML on a real GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import nooom
from nooom.formulas.errors import NooomError
from nooom.formulas.gpus import GPU
from nooom.profiler.inside import PEAKS
from nooom.profiler.outside import ProcessPeaks
from nooom.profiler.phantom import builder
from nooom.profiler.phantom.accounts import MAX_GPUS, Account, uuid_of
from nooom.profiler.phantom.launcher import Phantom

_HOOK = Path(__file__).resolve().parent / "hook"
_SETTINGS = "NOOOM_MEASURE"
"""Its name in hook/sitecustomize.py too, which can import nothing of ours before torch."""
_INTERRUPTED = 130


class CommandNotFoundError(NooomError):
    """There is no such program; the exit code is the shell's."""

    exit_code = 127


class CommandNotRunnableError(NooomError):
    """It is there and can't be run, as a script without the permission; the exit code is the shell's."""

    exit_code = 126


@dataclass(frozen=True, kw_only=True)
class OnGpu:
    """One process on one GPU, at its peaks.  Unknown is None, never 0."""

    index: int | None
    """Of the GPU on the machine, whatever CUDA_VISIBLE_DEVICES makes of it; None when it can't be told."""
    max_allocated_bytes: int | None
    max_reserved_bytes: int | None
    max_active_bytes: int | None
    device_bytes: int | None
    """With its context: exact on a phantom, a lower bound on a real GPU."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that used CUDA."""

    pid: int
    command: tuple[str, ...] | None
    """Its command line; None where it left no report, as a program without Python does."""
    gpus: tuple[OnGpu, ...]
    oom: Mapping[str, Any] | None = None
    """``tried_bytes``; ``times`` that the allocator ran out; ``message`` of the error, None when it was caught."""
    invented: tuple[tuple[str, int], ...] | None = None
    """What a phantom answered with what nobody computed: who asked, and how often.  None without a phantom."""

    def largest(self, figure: str) -> int | None:
        """On the GPU where this figure is the largest; None where it is known of none."""
        return max((size for gpu in self.gpus if (size := getattr(gpu, figure)) is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A command that has ended."""

    exit_code: int
    """The command's own; 128 and the signal's number where a signal ended it, 130 after ^C."""
    processes: tuple[Process, ...] = ()
    snapshots: tuple[Path, ...] = ()


def run(
    words: Sequence[str], phantom: Phantom | None = None, *, snapshot: Path | None = None, stdout: IO[Any] | None = None
) -> Ended:
    """Run a command to its end.

    Args:
        words: program and arguments.
        phantom: what it runs on; None for the GPU that is there.
        snapshot: where PyTorch's memory snapshot goes; with several processes, their pids are appended.
        stdout: where what the command prints goes; None for where ours goes.

    Raises:
        CommandNotFoundError, CommandNotRunnableError: it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="nooom-measure-") as name:
        reports = Path(name)
        settings = {
            "nooom": os.path.dirname(os.path.abspath(nooom.__file__)),
            "reports": name,
            "phantom": phantom is not None,
            "torch_libraries": str(builder.installed_torch().folder) if phantom is not None else None,
            "snapshot": None if snapshot is None else os.path.abspath(snapshot),
        }
        environment = _environment(os.environ, settings)
        if phantom is not None:
            exit_code = _run(words, phantom.environment(environment), stdout)
            processes = _on_phantom(_read(reports), phantom.accounts(), phantom.gpu)
        else:
            with ProcessPeaks() as peaks:
                exit_code = _run(words, environment, stdout)
            processes = _on_cuda(_read(reports), peaks)
        return Ended(exit_code=exit_code, processes=processes, snapshots=_snapshots(snapshot, processes))


def _environment(base: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, str]:
    """``base`` with the hook first on Python's search path, which is otherwise as it was."""
    before = base.get("PYTHONPATH")  # an empty one is none: a separator behind the hook would add the current folder
    path = os.pathsep.join([str(_HOOK), before]) if before else str(_HOOK)
    return {**base, "PYTHONPATH": path, _SETTINGS: json.dumps(settings)}


def _run(words: Sequence[str], environment: Mapping[str, str], stdout: IO[Any] | None) -> int:
    try:
        process = subprocess.Popen(words, env=environment, stdout=stdout)
    except FileNotFoundError as error:
        raise CommandNotFoundError(f"command not found: {words[0]}") from error
    except OSError as error:
        raise CommandNotRunnableError(f"can't run {words[0]}: {error.strerror}") from error
    with _passing_signals(process) as interrupted:
        code = process.wait()
    if interrupted:
        return _INTERRUPTED
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _passing_signals(process: subprocess.Popen[Any]) -> Iterator[list[int]]:
    """Signals to us are the command's, and we outlive it; what is yielded holds each ^C that came."""
    interrupts: list[int] = []

    def passed(number: int, _frame: object) -> None:
        if number == signal.SIGINT:
            interrupts.append(number)
            if _in_the_terminal():
                return  # a terminal sends ^C to the whole group, and the command has it already
        with contextlib.suppress(OSError):
            process.send_signal(number)

    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, passed) for number in numbers}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _in_the_terminal() -> bool:
    """Whether our group is the one that a terminal's keys reach."""
    with contextlib.suppress(OSError), open("/dev/tty") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


def _read(folder: Path) -> list[dict[str, Any]]:
    """The processes' reports, in the order in which they began."""
    reports = []
    for path in sorted(folder.glob("*.json"), key=lambda path: int(path.stem.partition("-")[2])):
        with contextlib.suppress(ValueError, OSError):
            reports.append(json.loads(path.read_text(encoding="utf-8")))
    return reports


def _on_phantom(reports: Sequence[Mapping[str, Any]], accounts: Sequence[Account], gpu: GPU) -> tuple[Process, ...]:
    """Reports beside accounts.  A process with an account alone ran no Python, or one that ignores its environment."""
    indexes = {str(uuid_of(gpu, number)): number for number in range(MAX_GPUS)}
    peaks: dict[int, dict[int, int]] = {}
    for account in accounts:  # a process that became another program has two
        of_process = peaks.setdefault(account.pid, {})
        for number, peak in enumerate(account.peak_bytes):
            if peak:
                of_process[number] = max(peak, of_process.get(number, 0))
    found = []
    for report in reports:
        figures = {indexes[one["uuid"]]: one for one in report["gpus"] if one["uuid"] in indexes}
        taken = peaks.pop(report["pid"], {})
        numbers = sorted({*taken, *figures})
        gpus = [_on_gpu(number, figures.get(number, {}), taken.get(number)) for number in numbers]
        found.append(_process(report, gpus))
    for pid, taken in peaks.items():
        gpus = [_on_gpu(number, {}, peak) for number, peak in taken.items()]
        if gpus:
            found.append(Process(pid=pid, command=None, gpus=tuple(gpus)))
    return tuple(found)


def _on_cuda(reports: Sequence[Mapping[str, Any]], peaks: ProcessPeaks) -> tuple[Process, ...]:
    """Reports beside NVML's samples, which also know what a killed process had."""
    found = []
    for report in reports:
        # An old torch says no UUID: its figures stand without a number.
        figures = {one["uuid"] or f"torch's {number}": one for number, one in enumerate(report["gpus"])}
        taken = peaks.of(report["pid"])
        gpus = [_on_gpu(peaks.index_of(uuid), figures.get(uuid, {}), taken.get(uuid)) for uuid in {**figures, **taken}]
        found.append(_process(report, gpus))
    return tuple(found)


def _on_gpu(index: int | None, figures: Mapping[str, Any], device_bytes: int | None) -> OnGpu:
    return OnGpu(index=index, device_bytes=device_bytes, **{key: figures.get(key) for key in PEAKS})


def _process(report: Mapping[str, Any], gpus: Sequence[OnGpu]) -> Process:
    invented = report["invented"]
    return Process(
        pid=report["pid"],
        command=tuple(report["command"]),
        gpus=tuple(gpus),
        oom=report["oom"],
        invented=None if invented is None else tuple((place, times) for place, times in invented),
    )


def _snapshots(wanted: Path | None, processes: Sequence[Process]) -> tuple[Path, ...]:
    """Each process wrote its own; one alone gets the name that was asked for."""
    if wanted is None:
        return ()
    places = [wanted.with_name(f"{wanted.name}.{process.pid}") for process in processes]
    written = [path for path in places if path.is_file()]
    if len(written) == 1:
        written[0].replace(wanted)
        return (wanted,)
    return tuple(written)
