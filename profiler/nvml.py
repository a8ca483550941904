"""The NVML sampler: a process beside the measured one that reads what the driver shows.

Another process, because a thread in the measured one waits for the interpreter's lock and dies with it.  The allocator
can't see the CUDA context, cuBLAS's own memory or other processes; NVML can.  A sampled peak is a lower bound, so the
interval that was asked for and the widest gap that happened are kept, and one more read is taken at each phase's end.

The wire: the parent writes one line (``mark`` begins a phase, ``read`` asks for its figures), the sampler answers each
``read`` with one JSON line and ends when the parent's end closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import IO, Any

INTERVAL_S = 0.01
_ANSWER_LIMIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """NVML's figures for a whole GPU."""

    total_bytes: int
    used_bytes: int
    """By all processes; with the v2 struct without what the driver keeps for itself."""
    reserved_bytes: int | None
    """The driver's own; None where only the v1 struct works, whose ``used`` holds it."""


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


def handle_for(nvml: Any, uuid: str) -> Any:
    """The device that torch knows by this UUID: indexes differ under CUDA_VISIBLE_DEVICES."""
    text = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return nvml.nvmlDeviceGetHandleByUUID(text)


class Watch:
    """Peaks since the last mark; pure, so that a test can feed it."""

    def __init__(self, pid: int, idle_used_bytes: int) -> None:
        self._pid = pid
        self._idle_used_bytes = idle_used_bytes
        self._process_peak: int | None = None
        self._device_peak = 0
        self._last_at: float | None = None
        self.widest_gap_s = 0.0

    def mark(self) -> None:
        self._process_peak, self._device_peak = None, 0

    def add(self, at: float, device_used_bytes: int, process_bytes: int | None) -> None:
        if self._last_at is not None:
            self.widest_gap_s = max(self.widest_gap_s, at - self._last_at)
        self._last_at = at
        self._device_peak = max(self._device_peak, device_used_bytes)
        if process_bytes is not None:
            self._process_peak = max(self._process_peak or 0, process_bytes)

    def figures(self) -> dict[str, Any]:
        """The process's own peak where the driver shows it; else what the device has more than when it was idle."""
        if self._process_peak is not None:
            peak, scope = self._process_peak, "process"
        else:
            peak, scope = max(self._device_peak - self._idle_used_bytes, 0), "device-difference"
        return {"peak_bytes": peak, "scope": scope, "widest_gap_s": round(self.widest_gap_s, 4)}


class Sampler:
    """The measured process's end.  A sampler that dies takes its figures with it, never the measurement."""

    def __init__(self, uuid: str, pid: int, idle_used_bytes: int, interval_s: float = INTERVAL_S) -> None:
        self.interval_s = interval_s
        self.scope: str | None = None
        self.widest_gap_s: float | None = None
        program = (
            "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from nooom.profiler.nvml import main; main()"
        )
        arguments = [json.dumps([entry for entry in sys.path if entry]), uuid, str(pid), str(idle_used_bytes)]
        self._process: subprocess.Popen[str] | None = subprocess.Popen(
            [sys.executable, "-P", "-c", program, *arguments, str(interval_s)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def mark(self) -> None:
        self._say("mark")

    def read(self) -> int | None:
        """The phase's peak in bytes; None once the sampler is gone."""
        self._say("read")
        line = self._answer()
        if line is None:
            return None
        told = json.loads(line)
        self.scope, self.widest_gap_s = told["scope"], told["widest_gap_s"]
        return int(told["peak_bytes"])

    def describe(self) -> dict[str, Any]:
        return {"interval_s": self.interval_s, "widest_gap_s": self.widest_gap_s, "scope": self.scope}

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

    def _say(self, word: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()
        except OSError:
            self.close()

    def _answer(self) -> str | None:
        if self._process is None or self._process.stdout is None:
            return None
        ready, _, _ = select.select([self._process.stdout], [], [], _ANSWER_LIMIT_S)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self.close()
            return None
        return line


def sample(nvml: Any, handle: Any, watch: Watch, pid: int, words: IO[str], answers: IO[str], interval_s: float) -> None:
    """Read until the parent's end closes."""

    def look() -> None:
        watch.add(time.monotonic(), device_memory(nvml, handle).used_bytes, processes(nvml, handle).get(pid))

    while True:
        ready, _, _ = select.select([words], [], [], interval_s)
        look()
        if not ready:
            continue
        word = words.readline().strip()
        if not word:
            return
        if word == "mark":
            watch.mark()
        else:
            answers.write(json.dumps(watch.figures()) + "\n")
            answers.flush()
            watch.mark()


def main() -> None:
    """The sampler's process: ``PATHS UUID PID IDLE_USED_BYTES INTERVAL``."""
    import pynvml

    uuid, pid, idle, interval = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    pynvml.nvmlInit()
    # Line by line and unbuffered: select must not wait for what already lies in Python's own buffer.
    words = os.fdopen(os.dup(0), "r", buffering=1)
    sample(pynvml, handle_for(pynvml, uuid), Watch(pid, idle), pid, words, sys.stdout, interval)
