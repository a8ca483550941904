"""The NVML sampler: a process beside the measured one that reads what the driver shows.

Another process, because a thread in the measured one waits for the interpreter's lock and dies with it.  The allocator
can't see the CUDA context, cuBLAS's own memory or other processes; NVML can.  A sampled peak is a lower bound, so the
interval that was asked for and the widest gap that happened are kept, and one more read is taken at each phase's end.

The wire: the sampler says ``ready`` (or its error), the parent writes one line (``mark`` begins a phase, ``read`` asks
for its figures), the sampler answers each ``read`` with one JSON line and ends when the parent does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import IO, Any

INTERVAL_S = 0.01
_START_LIMIT_S = 10.0
_ANSWER_LIMIT_S = 5.0
_SHORTEST_WAIT_S = 0.001
"""Where NVML takes longer than the interval, the sampler still leaves its core alone in between."""
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from nooom.profiler.nvml import main; main()"


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """NVML's figures for a whole GPU."""

    total_bytes: int
    used_bytes: int
    """By all processes; with the v2 struct without what the driver keeps for itself."""
    reserved_bytes: int | None
    """The driver's own; None where only the v1 struct works, whose ``used`` holds it."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the sampler saw of one phase.  Unknown is None, never 0."""

    process_peak_bytes: int | None = None
    """The measured process's own, where the driver shows it."""
    device_peak_bytes: int | None = None
    """Used by everybody on the GPU."""
    peak_bytes: int | None = None
    """The phase's figure, in the run's one scope."""
    scope: str | None = None
    """``process``, or ``device-difference``: what the GPU has more in use than when it was idle."""
    widest_gap_s: float | None = None
    """Longest time between two samples since the sampler began."""


def device_memory(nvml: Any, handle: Any) -> DeviceMemory:
    """By the v2 struct, whose ``used`` is what nvidia-smi shows; by v1 where v2 fails (WSL with old drivers)."""
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return DeviceMemory(total_bytes=int(info.total), used_bytes=int(info.used), reserved_bytes=int(info.reserved))
    except Exception:
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return DeviceMemory(total_bytes=int(info.total), used_bytes=int(info.used), reserved_bytes=None)


def processes(nvml: Any, handle: Any) -> dict[int, int | None]:
    """Bytes of each process with a context on the GPU; None where the driver does not say (containers, WSL, MIG)."""
    found = {}
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
        used = process.usedGpuMemory
        # NVML_VALUE_NOT_AVAILABLE is all ones; a process that is listed with 0 bytes has a context and is not shown it.
        found[int(process.pid)] = int(used) if used not in (None, 0) and used < (1 << 63) else None
    return found


def process_memory(nvml: Any, handle: Any, pid: int) -> int | None:
    """Bytes of one process; None where it is not listed (another pid namespace) or the driver does not say."""
    try:
        return processes(nvml, handle).get(pid)
    except Exception:  # not supported here: the device's figure remains
        return None


def handle_for_uuid(nvml: Any, uuid: str) -> Any:
    """The device that torch knows by this UUID: indexes differ under CUDA_VISIBLE_DEVICES.

    torch leaves out the prefix, which is MIG- for a slice of a GPU.
    """
    if uuid.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except Exception:
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


class Watch:
    """Peaks since the last mark; pure, so that a test can feed it.

    Args:
        idle_used_bytes: used on the GPU before the measured process came; None when it was not idle.
    """

    def __init__(self, idle_used_bytes: int | None) -> None:
        self._idle_used_bytes = idle_used_bytes
        self._process_peak: int | None = None
        self._device_peak: int | None = None
        self._scope: str | None = None
        self._last_at: float | None = None
        self.widest_gap_s = 0.0

    def mark(self) -> None:
        self._process_peak = self._device_peak = None

    def add(self, at: float, device_used_bytes: int, process_bytes: int | None) -> None:
        if self._last_at is not None:
            self.widest_gap_s = max(self.widest_gap_s, at - self._last_at)
        self._last_at = at
        self._device_peak = max(self._device_peak or 0, device_used_bytes)
        if process_bytes is not None:
            self._process_peak = max(self._process_peak or 0, process_bytes)

    def figures(self) -> Seen:
        """One scope for the whole run, chosen at the first figure: two scopes in one record could not be compared."""
        difference = self._difference()
        if self._scope is None and self._process_peak is not None:
            self._scope = "process"
        elif self._scope is None and difference is not None:
            self._scope = "device-difference"
        return Seen(
            process_peak_bytes=self._process_peak,
            device_peak_bytes=self._device_peak,
            peak_bytes=self._process_peak if self._scope == "process" else difference,
            scope=self._scope,
            widest_gap_s=round(self.widest_gap_s, 4),
        )

    def _difference(self) -> int | None:
        if self._device_peak is None or self._idle_used_bytes is None:
            return None
        more = self._device_peak - self._idle_used_bytes
        return more if more > 0 else None  # a run takes something: less than when idle says nothing about it


class Sampler:
    """The measured process's end.  A sampler that dies or hangs takes its figures with it, never the measurement.

    Args:
        uuid: the GPU's, as torch or NVML write it.
        pid: of the measured process.
        idle_used_bytes: see :class:`Watch`.
        interval_s: time from one sample to the next.
    """

    def __init__(self, uuid: str, pid: int, idle_used_bytes: int | None, interval_s: float = INTERVAL_S) -> None:
        self.interval_s = interval_s
        self.note: str | None = None
        """Why there are no figures, once there are none."""
        self._seen = Seen()
        self._buffered = b""
        self._process: subprocess.Popen[bytes] | None = None
        paths = json.dumps([entry for entry in sys.path if entry])
        idle = "" if idle_used_bytes is None else str(idle_used_bytes)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, paths, uuid, str(pid), idle, str(interval_s)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            self._lost(f"did not start: {error}")
        # The first phase would go unseen, and no gap would say so, if it began while the sampler still starts.
        told = self._answer(_START_LIMIT_S)
        if told is not None and "error" in told:
            self._lost(str(told["error"]))

    def mark(self) -> None:
        """A phase begins: its peak starts anew."""
        self._say(b"mark\n")

    def read(self) -> Seen:
        """Sample once more and give the phase's figures; all unknown once the sampler is gone."""
        self._say(b"read\n")
        told = self._answer(_ANSWER_LIMIT_S)
        if told is None:
            return Seen()
        try:
            self._seen = Seen(**told)
        except TypeError:
            self._lost("answered something else")
            return Seen()
        return self._seen

    def describe(self) -> dict[str, Any]:
        """What the record keeps of the sampling: interval asked for, widest gap that happened, scope."""
        seen = self._seen
        return {"interval_s": self.interval_s, "widest_gap_s": seen.widest_gap_s, "scope": seen.scope}

    def close(self) -> None:
        """End the sampler; harmless when it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]

    def _lost(self, why: str) -> None:
        self.note = f"the sampler {why}" if self.note is None else self.note
        self.close()

    def _say(self, word: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(word)
        except OSError:
            self._lost("ended early")

    def _answer(self, limit_s: float) -> dict[str, Any] | None:
        """One line from the sampler, as JSON; None, and no sampler any more, when it does not come in time."""
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffered:
            if self._process is None or self._process.stdout is None:
                return None
            if not _readable(self._process.stdout, deadline - time.monotonic()):
                self._lost(f"gave no answer within {limit_s:g} s")
                return None
            received = os.read(self._process.stdout.fileno(), 65_536)
            if not received:
                self._lost("ended early")
                return None
            self._buffered += received
        line, _, self._buffered = self._buffered.partition(b"\n")
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict):
                return told
        self._lost("answered something else")
        return None


def _readable(stream: IO[bytes], limit_s: float) -> bool:
    with selectors.DefaultSelector() as selector:  # select itself fails in a process with a thousand files open
        selector.register(stream, selectors.EVENT_READ)
        return bool(selector.select(max(limit_s, 0)))


def sample(nvml: Any, handle: Any, watch: Watch, pid: int, words: IO[Any], answers: IO[str], interval_s: float) -> None:
    """Read until the parent's end closes, or the parent is gone while something it forked holds that end open."""
    parent, pending, next_at = os.getppid(), b"", time.monotonic()

    def look() -> None:
        # A failed read is a sample that did not happen: the gap grows, and the next one may succeed.
        with contextlib.suppress(Exception):
            used_bytes = device_memory(nvml, handle).used_bytes
            watch.add(time.monotonic(), used_bytes, process_memory(nvml, handle, pid))

    while True:
        # Not through Python's buffer: what lay in it would be invisible to select, and a word would wait for the next.
        ready, _, _ = select.select([words], [], [], max(next_at - time.monotonic(), _SHORTEST_WAIT_S))
        next_at = time.monotonic() + interval_s
        look()
        received = os.read(words.fileno(), 65_536) if ready else b""
        if (ready and not received) or os.getppid() != parent:
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            if line == b"mark":
                watch.mark()
                look()
            elif line == b"read":
                answers.write(json.dumps(vars(watch.figures())) + "\n")
                answers.flush()


def main() -> None:
    """The sampler's process: ``PATHS UUID PID IDLE_USED_BYTES INTERVAL``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C reaches the whole terminal group; the parent decides
    uuid, pid, idle, interval_s = sys.argv[2], int(sys.argv[3]), sys.argv[4], float(sys.argv[5])
    with contextlib.suppress(BrokenPipeError):
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = handle_for_uuid(pynvml, uuid)
        except Exception as error:
            print(json.dumps({"error": f"can't use NVML: {error}"}), flush=True)
            return
        print(json.dumps({"ready": True}), flush=True)
        sample(pynvml, handle, Watch(int(idle) if idle else None), pid, sys.stdin, sys.stdout, interval_s)
