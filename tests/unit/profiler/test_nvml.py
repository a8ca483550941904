"""NVML's traps, with a stand-in for the library: what is unknown is None, and gaps are kept."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from nooom.profiler import nvml
from nooom.profiler.nvml import DeviceMemory, Sampler, Watch, device_memory, processes


def test_the_v2_struct_tells_the_drivers_own_memory_apart() -> None:
    def info(handle: Any, version: int | None = None) -> Any:
        assert version == 33
        return SimpleNamespace(total=100, used=7, reserved=5)

    library = SimpleNamespace(nvmlMemory_v2=33, nvmlDeviceGetMemoryInfo=info)
    assert device_memory(library, None) == DeviceMemory(total_bytes=100, used_bytes=7, reserved_bytes=5)


def test_where_v2_fails_v1_is_taken_and_reserved_is_unknown() -> None:
    def info(handle: Any, version: int | None = None) -> Any:
        if version is not None:
            raise RuntimeError("unknown error")
        return SimpleNamespace(total=100, used=12)

    library = SimpleNamespace(nvmlMemory_v2=33, nvmlDeviceGetMemoryInfo=info)
    assert device_memory(library, None) == DeviceMemory(total_bytes=100, used_bytes=12, reserved_bytes=None)


def test_a_process_whose_memory_the_driver_hides_is_unknown_not_zero() -> None:
    listed = [(1, 500), (2, None), (3, (1 << 64) - 1), (4, 0)]
    library = SimpleNamespace(
        nvmlDeviceGetComputeRunningProcesses=lambda h: [SimpleNamespace(pid=p, usedGpuMemory=u) for p, u in listed]
    )
    assert processes(library, None) == {1: 500, 2: None, 3: None, 4: None}


def test_peaks_start_anew_at_each_mark_and_the_widest_gap_is_kept() -> None:
    watch = Watch(pid=1, idle_used_bytes=100)
    for at, device, process in ((0.0, 300, 150), (0.01, 900, 700), (0.5, 200, 80)):
        watch.add(at, device, process)
    assert watch.figures() == {"peak_bytes": 700, "scope": "process", "widest_gap_s": 0.49}
    watch.mark()
    watch.add(0.51, 250, None)
    assert watch.figures() == {"peak_bytes": 150, "scope": "device-difference", "widest_gap_s": 0.49}


def test_a_sampler_that_cannot_start_takes_its_figures_with_it_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an NVML library its process ends at once; on a machine with one, the UUID is unknown: the same end."""
    sampler = Sampler("GPU-00000000-0000-0000-0000-000000000000", os.getpid(), 0)
    began = time.monotonic()
    sampler.mark()
    assert sampler.read() is None
    assert sampler.read() is None
    assert time.monotonic() - began < nvml._ANSWER_LIMIT_S + 1
    assert sampler.describe() == {"interval_s": 0.01, "widest_gap_s": None, "scope": None}
    sampler.close()


def test_the_samplers_loop_answers_reads_and_ends_with_its_parent() -> None:
    """The real loop in a real process, over a pynvml that plays a GPU."""
    fake = (
        "import types, sys\n"
        "used = [10, 50, 20]\n"
        "def info(handle, version=None):\n"
        "    return types.SimpleNamespace(total=100, used=used[0] if len(used) == 1 else used.pop(0), reserved=1)\n"
        "sys.modules['pynvml'] = types.SimpleNamespace(nvmlInit=lambda: None, nvmlMemory_v2=2,\n"
        "    nvmlDeviceGetMemoryInfo=info, nvmlDeviceGetHandleByUUID=lambda u: u,\n"
        "    nvmlDeviceGetComputeRunningProcesses=lambda h: [])\n"
        "sys.argv = ['x', '', 'GPU-1', '7', '5', '0.01']\n"
        "from nooom.profiler.nvml import main; main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    process = subprocess.Popen(
        [sys.executable, "-c", fake], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    time.sleep(0.5)
    process.stdin.write("read\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert '"peak_bytes": 45' in answer
    assert '"scope": "device-difference"' in answer
    process.stdin.close()
    assert process.wait(timeout=5) == 0


def test_the_loop_reads_once_more_when_asked() -> None:
    """One last read at a phase's end, even if the interval has not passed."""
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"read\n")
    os.close(write_fd)
    figures = iter([5, 9, 9, 9])
    library = SimpleNamespace(
        nvmlMemory_v2=2,
        nvmlDeviceGetMemoryInfo=lambda h, version=1: SimpleNamespace(total=100, used=next(figures), reserved=0),
        nvmlDeviceGetComputeRunningProcesses=lambda h: [],
    )
    answers = io.StringIO()
    with os.fdopen(read_fd) as words:
        nvml.sample(library, None, Watch(1, 0), 1, words, answers, interval_s=60)
    assert '"peak_bytes": 5' in answers.getvalue()
