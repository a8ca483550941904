"""The CUDA instrument without CUDA: a torch that records what it was asked, and statistics as PyTorch words them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nooom.formulas.errors import CannotMeasureError
from nooom.profiler.instruments import Reading
from nooom.profiler.instruments.cuda import CudaInstrument, reading_from

STATISTICS = {
    "allocated_bytes.all.current": 1_024,
    "allocated_bytes.all.peak": 20_971_520,
    "reserved_bytes.all.current": 23_068_672,
    "reserved_bytes.all.peak": 23_068_672,
    "active_bytes.all.peak": 20_972_032,
    "requested_bytes.all.peak": 20_447_232,
    "allocated_bytes.small_pool.peak": 512,
    "num_alloc_retries": 1,
    "num_ooms": 0,
}


def test_a_reading_takes_each_figure_from_its_own_statistic() -> None:
    assert reading_from(STATISTICS, 500) == Reading(
        peak_allocated_bytes=20_971_520,
        peak_reserved_bytes=23_068_672,
        peak_active_bytes=20_972_032,
        peak_requested_bytes=20_447_232,
        end_allocated_bytes=1_024,
        nvml_peak_bytes=500,
        retries=1,
    )


def test_statistics_that_are_missing_are_unknown() -> None:
    assert reading_from({"allocated_bytes.all.peak": 7}) == Reading(peak_allocated_bytes=7)


class FakeCuda:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def called(*_: Any, **__: Any) -> Any:
            self.calls.append(name)
            return {"is_available": True, "memory_stats": STATISTICS, "memory_allocated": 0}.get(name)

        return called

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(name="Fake GPU", total_memory=80 << 30, uuid="1234", major=9, minor=0)


class FakeTensor:
    def __matmul__(self, other: object) -> FakeTensor:
        return self

    def sum(self) -> FakeTensor:
        return self

    def item(self) -> float:
        return 64.0


def fake_nvml(used: int, pids: tuple[int, ...]) -> Any:
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlMemory_v2=2,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMemoryInfo=lambda handle, version=1: SimpleNamespace(total=80 << 30, used=used, reserved=9),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=p, usedGpuMemory=5) for p in pids],
        nvmlSystemGetDriverVersion=lambda: "580.1",
    )


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    torch = SimpleNamespace(
        cuda=fake, ones=lambda *_, **__: FakeTensor(), version=SimpleNamespace(cuda="13.0"), __version__="2.13.0"
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(used=1 << 20, pids=()))
    monkeypatch.setattr("nooom.profiler.nvml.Sampler", lambda *_: _Silent())
    return fake


class _Silent:
    def mark(self) -> None: ...
    def close(self) -> None: ...

    def read(self) -> int:
        return 77

    def describe(self) -> dict[str, Any]:
        return {"interval_s": 0.01, "widest_gap_s": 0.02, "scope": "process"}


def test_the_cache_is_emptied_once_before_the_run_and_never_between_phases(cuda: FakeCuda) -> None:
    instrument = CudaInstrument()
    instrument.open()
    assert cuda.calls.count("empty_cache") == 1
    cuda.calls.clear()
    for phase in ("forward", "backward"):
        instrument.phase_begins(phase)
        instrument.breathe()
        assert instrument.read() == reading_from(STATISTICS, 77)
    assert cuda.calls == ["synchronize", "reset_peak_memory_stats", "synchronize", "memory_stats"] * 2
    described = instrument.describe()
    assert described["gpu"] == {"name": "Fake GPU", "total_bytes": 80 << 30}
    assert described["sampling"]["widest_gap_s"] == 0.02
    assert described["driver"] == "580.1"


def test_a_busy_gpu_is_refused_by_pid(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(used=3 << 30, pids=(4242,)))
    with pytest.raises(CannotMeasureError, match=r"busy: 3.00 GiB in use, processes 4242"):
        CudaInstrument().open()
    CudaInstrument(allow_busy=True).open()


def test_without_nvml_the_allocators_figures_remain(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    instrument = CudaInstrument()
    instrument.open()
    instrument.phase_begins("load")
    assert instrument.read().nvml_peak_bytes is None
    assert "not available" in instrument.describe()["nvml"]
