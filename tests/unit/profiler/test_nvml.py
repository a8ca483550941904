"""NVML's traps, with a stand-in for the library: what is unknown is None, and gaps are kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nooom.profiler import nvml
from nooom.profiler.nvml import DeviceMemory, Sampler, Seen, Watch, device_memory, process_memory, processes

# A pynvml of one GPU: 10 bytes in use, and the process with the pid that NOOOM_TEST_SHOWS names is shown with 8.
FAKE_PYNVML = """
import os, types
nvmlMemory_v2 = 2
def nvmlInit(): pass
def nvmlDeviceGetHandleByUUID(uuid): return uuid
def nvmlDeviceGetMemoryInfo(handle, version=None): return types.SimpleNamespace(total=100, used=10, reserved=1)
def nvmlDeviceGetComputeRunningProcesses(handle):
    pid = os.environ.get("NOOOM_TEST_SHOWS")
    return [types.SimpleNamespace(pid=int(pid), usedGpuMemory=8)] if pid else []
"""


@pytest.fixture
def fake_pynvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sampler's own process finds this library: its search path is its parent's."""
    module = tmp_path / "pynvml.py"
    module.write_text(FAKE_PYNVML)
    monkeypatch.syspath_prepend(str(tmp_path))
    return module


@pytest.fixture
def start() -> Iterator[Callable[..., Sampler]]:
    started: list[Sampler] = []

    def make(idle_used_bytes: int | None = 4) -> Sampler:
        started.append(Sampler("GPU-1", os.getpid(), idle_used_bytes))
        return started[-1]

    yield make
    for sampler in started:
        sampler.close()


def listing(*found: tuple[int, int | None]) -> Any:
    return SimpleNamespace(
        nvmlDeviceGetComputeRunningProcesses=lambda h: [SimpleNamespace(pid=p, usedGpuMemory=u) for p, u in found]
    )


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":  # dead, and its new parent has not looked yet
            return True
        time.sleep(0.02)
    return False


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
    library = listing((1, 500), (2, None), (3, (1 << 64) - 1), (4, 0))
    assert processes(library, None) == {1: 500, 2: None, 3: None, 4: None}
    assert [process_memory(library, None, pid) for pid in (1, 2, 3, 4, 5)] == [500, None, None, None, None]


def test_a_driver_that_lists_no_processes_leaves_them_unknown() -> None:
    def not_supported(handle: Any) -> Any:
        raise RuntimeError("Not Supported")

    assert process_memory(SimpleNamespace(nvmlDeviceGetComputeRunningProcesses=not_supported), None, 1) is None


@pytest.mark.parametrize(("asked", "known"), [("1", "GPU-1"), ("1", "MIG-1"), ("GPU-1", "GPU-1"), ("MIG-1", "MIG-1")])
def test_a_uuid_finds_its_device_with_or_without_prefix(asked: str, known: str) -> None:
    def by_uuid(uuid: str) -> str:
        if uuid != known:
            raise RuntimeError("Not Found")
        return uuid

    assert nvml.handle_for_uuid(SimpleNamespace(nvmlDeviceGetHandleByUUID=by_uuid), asked) == known


def test_peaks_start_anew_at_each_mark_and_the_widest_gap_is_kept() -> None:
    watch = Watch(idle_used_bytes=100)
    for at, device, process in ((0.0, 300, 150), (0.01, 900, 700), (0.5, 200, 80)):
        watch.add(at, device, process)
    assert watch.figures() == Seen(
        process_peak_bytes=700, device_peak_bytes=900, peak_bytes=700, scope="process", widest_gap_s=0.49
    )
    watch.mark()
    watch.add(0.51, 250, 60)
    assert (watch.figures().peak_bytes, watch.figures().widest_gap_s) == (60, 0.49)


def test_one_run_has_one_scope() -> None:
    """A process that is hidden for one phase leaves that phase unknown: a device's figure is another quantity."""
    watch = Watch(idle_used_bytes=100)
    watch.add(0.0, 300, 150)
    assert watch.figures().scope == "process"
    watch.mark()
    watch.add(0.1, 300, None)
    assert (watch.figures().peak_bytes, watch.figures().scope) == (None, "process")


def test_an_idle_device_stands_in_for_a_process_that_is_not_shown() -> None:
    watch = Watch(idle_used_bytes=100)
    watch.add(0.0, 300, None)
    assert (watch.figures().peak_bytes, watch.figures().scope) == (200, "device-difference")


@pytest.mark.parametrize("idle", [None, 300, 400])
def test_a_device_that_was_not_idle_or_gained_nothing_says_nothing(idle: int | None) -> None:
    watch = Watch(idle_used_bytes=idle)
    watch.add(0.0, 300, None)
    assert (watch.figures().peak_bytes, watch.figures().device_peak_bytes) == (None, 300)


def test_without_one_sample_everything_is_unknown() -> None:
    assert Watch(idle_used_bytes=0).figures() == Seen(widest_gap_s=0.0)


def test_the_sampler_answers_in_the_scope_that_the_driver_allows(
    fake_pynvml: Path, start: Callable[..., Sampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = start()
    hidden.mark()
    assert (hidden.read().peak_bytes, hidden.describe()["scope"]) == (6, "device-difference")
    monkeypatch.setenv("NOOOM_TEST_SHOWS", str(os.getpid()))
    shown = start()
    shown.mark()
    assert (shown.read().peak_bytes, shown.describe()["scope"]) == (8, "process")
    assert shown.describe()["interval_s"] == 0.01
    assert 0 <= shown.describe()["widest_gap_s"] < 5
    monkeypatch.delenv("NOOOM_TEST_SHOWS")
    busy = start(idle_used_bytes=None)
    assert (busy.read().peak_bytes, busy.describe()["scope"]) == (None, None)
    assert (hidden.note, shown.note, busy.note) == (None, None, None)


def test_a_phase_shorter_than_the_interval_is_answered_at_once(
    fake_pynvml: Path, start: Callable[..., Sampler]
) -> None:
    """``mark`` and ``read`` arrive in one piece: no word may wait in a buffer that select can't see."""
    sampler = start()
    began = time.monotonic()
    for _ in range(50):
        sampler._say(b"mark\nread\n")
        told = sampler._answer(nvml._ANSWER_LIMIT_S)
        assert told is not None
        assert told["peak_bytes"] == 6
    assert time.monotonic() - began < nvml._ANSWER_LIMIT_S


def test_a_read_that_fails_is_a_gap_not_an_end(fake_pynvml: Path, start: Callable[..., Sampler]) -> None:
    fake_pynvml.write_text(
        FAKE_PYNVML.replace("used=10", "used=next(used)") + "used = iter([10, 12])  # then StopIteration, for ever\n"
    )
    sampler = start()
    time.sleep(0.2)
    assert sampler.read().peak_bytes == 8
    sampler.mark()
    assert sampler.read().peak_bytes is None
    assert sampler.note is None


def test_a_sampler_that_cannot_start_takes_its_figures_with_it_not_the_run() -> None:
    """Without an NVML library it ends at once; on a machine with one, the UUID is unknown: the same end."""
    began = time.monotonic()
    sampler = Sampler("GPU-00000000-0000-0000-0000-000000000000", os.getpid(), 0)
    sampler.mark()
    assert (sampler.read(), sampler.read()) == (Seen(), Seen())
    assert time.monotonic() - began < nvml._START_LIMIT_S
    assert sampler.note is not None
    assert "can't use NVML" in sampler.note
    assert sampler.describe() == {"interval_s": 0.01, "widest_gap_s": None, "scope": None}
    sampler.close()


@pytest.mark.parametrize(
    ("library", "note"),
    [
        ("import time; time.sleep(60)", "no answer within"),
        ("print('a banner')", "something else"),
        ("print(7)", "something else"),
        ("import os; os._exit(3)", "ended early"),
    ],
)
def test_a_library_that_misbehaves_at_the_start_costs_only_its_figures(
    fake_pynvml: Path, start: Callable[..., Sampler], monkeypatch: pytest.MonkeyPatch, library: str, note: str
) -> None:
    monkeypatch.setattr(nvml, "_START_LIMIT_S", 2.0)
    fake_pynvml.write_text(library)
    sampler = start()
    assert note in (sampler.note or "")
    sampler.mark()
    assert sampler.read() == Seen()


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_sampler_that_is_killed_or_hangs_midway_is_given_up(
    fake_pynvml: Path, start: Callable[..., Sampler], monkeypatch: pytest.MonkeyPatch, blow: signal.Signals
) -> None:
    monkeypatch.setattr(nvml, "_ANSWER_LIMIT_S", 0.3)
    sampler = start()
    assert sampler._process is not None
    pid = sampler._process.pid
    os.kill(pid, blow)
    sampler.mark()
    assert sampler.read() == Seen()
    assert sampler.note is not None
    assert gone_within(pid, 2)


def test_closing_ends_the_samplers_process(fake_pynvml: Path, start: Callable[..., Sampler]) -> None:
    sampler = start()
    assert sampler._process is not None
    process = sampler._process
    sampler.close()
    sampler.close()
    assert process.returncode == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("forks", ["", "os.fork() or time.sleep(60)"])
def test_it_dies_with_its_parent_even_by_kill_9(fake_pynvml: Path, forks: str) -> None:
    """Also when a process that the measured one forked still holds the pipe's end open."""
    program = (
        "import json, os, sys, time; sys.path[:] = json.loads(sys.argv[1]); from nooom.profiler.nvml import Sampler\n"
        f"sampler = Sampler('GPU-1', os.getpid(), 0); {forks or 'pass'}\n"
        "print(sampler._process.pid, flush=True); time.sleep(60)"
    )
    arguments = [sys.executable, "-c", program, json.dumps(sys.path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        sampler = int(parent.stdout.readline())
        assert not gone_within(sampler, 0.2)
        os.kill(parent.pid, signal.SIGKILL)
        try:
            assert gone_within(sampler, 3)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)  # what it forked


def test_the_samplers_process_imports_no_torch() -> None:
    program = "import sys; sys.path[:] = sys.argv[1:]; import nooom.profiler.nvml; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program, *sys.path], check=False).returncode == 0
