"""What one fresh child process does: read a job, run its workload under its instrument, tell the runner.

A job is one JSON line on the pipe that the runner holds open for as long as it lives; the answers are JSON lines on the
pipe back.  Everything that the workload prints goes to the child's log instead.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import threading
import traceback
from typing import Any, TextIO

from nooom.formulas.errors import NooomError
from nooom.profiler.instruments import Instrument
from nooom.profiler.measurement import phase_to_json
from nooom.profiler.out_of_memory import classify_oom
from nooom.profiler.recorder import Recorder


def run(jobs: TextIO, answers: TextIO) -> int:
    """Run the one job that stands on ``jobs``; returns the process's exit code (0 also when memory ran out)."""

    def tell(event: str, **what: Any) -> None:
        answers.write(json.dumps({"event": event, **what}) + "\n")
        answers.flush()

    line = jobs.readline()
    if not line:
        return 1
    job = json.loads(line)
    _die_with_the_runner(jobs)
    tell("started", pid=os.getpid())
    instrument = _instrument(job)
    recorder = Recorder(instrument, tell=lambda phase: tell("phase", name=phase))
    try:
        _limit_memory(job.get("memory_limit_bytes"))
        _fix_threads(job.get("threads"))
        instrument.open()
        entry = _entry(job["workload"])
        facts = entry(job["arguments"], recorder) or {}
        recorder.leave()
        tell("done", **_seen(recorder), notes=instrument.describe(), facts=facts)
        return 0
    except BaseException as error:  # the runner decides what it means; nothing may be lost on the way
        oom = classify_oom(error)
        tell(
            "failed",
            kind="oom" if oom else "error",
            error={**oom, **_alive(instrument)} if oom else {"kind": type(error).__name__},
            message=str(error) if isinstance(error, NooomError) else _one_line(error),
            phase=recorder.current,
            **_seen(recorder),
            notes=_described(instrument),
        )
        if not oom:
            traceback.print_exc()
        return 0 if oom else 1
    finally:
        with contextlib.suppress(Exception):
            instrument.close()


def _instrument(job: dict[str, Any]) -> Instrument:
    return _entry(job["instrument"])(**job.get("instrument_options", {}))  # type: ignore[no-any-return]


def _entry(path: str) -> Any:
    """``package.module:name`` as an object."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _seen(recorder: Recorder) -> dict[str, Any]:
    return {
        "phases": [phase_to_json(phase) for phase in recorder.phases()],
        "first": [phase_to_json(phase) for phase in recorder.first()],
        "retries": recorder.retries,
    }


def _alive(instrument: Instrument) -> dict[str, Any]:
    """What stood in memory's way, from an instrument that knows what each block is."""
    explain = getattr(instrument, "explain_failure", None)
    if explain is None:
        return {}
    try:
        return dict(explain())
    except Exception:  # memory is what failed: nothing else may
        traceback.print_exc()
        return {}


def _described(instrument: Instrument) -> dict[str, Any]:
    try:
        return instrument.describe()
    except Exception:  # the instrument may be what failed
        return {}


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:2000] if text else type(error).__name__


def _die_with_the_runner(jobs: TextIO) -> None:
    """End this process, and what it started, when the runner's end of the pipe closes: the runner is gone."""

    def watch() -> None:
        with contextlib.suppress(ValueError, OSError):
            while jobs.readline():
                pass
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="runner-watch", daemon=True).start()


def _limit_memory(limit_bytes: int | None) -> None:
    """Turn running out of the machine's memory into a failed allocation, before the kernel kills someone."""
    if limit_bytes is None:
        return
    try:
        import resource
    except ImportError:  # no such limits on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    known = [x for x in (limit_bytes, soft, hard) if x != resource.RLIM_INFINITY]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))


def _fix_threads(threads: int | None) -> None:
    """CPU kernels' scratch grows with their threads: the number is fixed, and recorded with the measurement."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
