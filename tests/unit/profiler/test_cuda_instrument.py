"""The CUDA instrument without CUDA: a torch that records what it was asked, and statistics as PyTorch words them."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nooom.formulas.errors import CannotMeasureError
from nooom.profiler.instruments import Reading
from nooom.profiler.instruments.cuda import CudaInstrument, reading_from
from nooom.profiler.nvml import Seen

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
        self.available = True
        self.backend = "native"
        self.uuid = "1234"

    def is_available(self) -> bool:
        return self.available

    def get_allocator_backend(self) -> str:
        return self.backend

    def __getattr__(self, name: str) -> Any:
        def called(*_: Any, **__: Any) -> Any:
            self.calls.append(name)
            return {"memory_stats": STATISTICS, "memory_allocated": 0}.get(name)

        return called

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(name="Fake GPU", total_memory=80 << 30, uuid=self.uuid, major=9, minor=0)


class FakeTensor:
    def __matmul__(self, other: object) -> FakeTensor:
        return self

    def sum(self) -> FakeTensor:
        return self

    def item(self) -> float:
        return 64.0


def fake_nvml(used: int, pids: tuple[int, ...], reserved: int | None = 9) -> Any:
    def info(handle: str, version: int = 1) -> Any:
        if version == 2 and reserved is None:
            raise RuntimeError("unknown error")
        return SimpleNamespace(total=80 << 30, used=used, reserved=reserved)

    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlMemory_v2=2,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMemoryInfo=info,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=p, usedGpuMemory=5) for p in pids],
        nvmlSystemGetDriverVersion=lambda: "580.1",
    )


@pytest.fixture
def samplers(monkeypatch: pytest.MonkeyPatch) -> list[FakeSampler]:
    """Those that were started."""
    started: list[FakeSampler] = []

    def start(uuid: str, pid: int, idle_used_bytes: int | None) -> FakeSampler:
        started.append(FakeSampler(idle_used_bytes))
        return started[-1]

    monkeypatch.setattr("nooom.profiler.nvml.Sampler", start)
    return started


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, samplers: list[FakeSampler]) -> FakeCuda:
    fake = FakeCuda()
    torch = SimpleNamespace(
        cuda=fake, ones=lambda *_, **__: FakeTensor(), version=SimpleNamespace(cuda="13.0"), __version__="2.13.0"
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(used=1 << 20, pids=()))
    monkeypatch.delenv("NOOOM_ALLOW_BUSY", raising=False)
    monkeypatch.setattr("nooom.profiler.instruments.cuda._PATIENCE_S", 0.0)
    return fake


class FakeSampler:
    def __init__(self, idle_used_bytes: int | None) -> None:
        self.idle_used_bytes = idle_used_bytes
        self.note: str | None = None

    def mark(self) -> None: ...
    def close(self) -> None: ...

    def read(self) -> Seen:
        return Seen(peak_bytes=77)

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


def test_the_idle_gpu_is_looked_at_before_our_context_exists(cuda: FakeCuda, samplers: list[FakeSampler]) -> None:
    CudaInstrument().open()
    assert [sampler.idle_used_bytes for sampler in samplers] == [1 << 20]


def test_a_busy_gpu_is_refused_by_pid(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(used=3 << 30, pids=(4242,)))
    with pytest.raises(CannotMeasureError, match=r"busy: 3.00 GiB in use, processes 4242 \(0.00 GiB\)"):
        CudaInstrument().open()


def test_a_gpu_that_is_still_given_back_is_waited_for(
    cuda: FakeCuda, samplers: list[FakeSampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case before us has ended, and the driver takes a moment to say so."""
    seen = iter([3 << 30, 3 << 30, 1 << 20])
    library = fake_nvml(used=0, pids=())
    library.nvmlDeviceGetMemoryInfo = lambda handle, version: SimpleNamespace(total=1, used=next(seen), reserved=9)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr("nooom.profiler.instruments.cuda._PATIENCE_S", 60.0)
    monkeypatch.setattr("nooom.profiler.instruments.cuda._LOOK_AGAIN_S", 0.0)
    CudaInstrument().open()
    assert [sampler.idle_used_bytes for sampler in samplers] == [1 << 20]


@pytest.mark.parametrize(
    ("used", "reserved", "refused"),
    [(200 << 20, 500 << 20, False), (414 << 20, 500 << 20, True), (912 << 20, None, False), (2 << 30, None, True)],
)
def test_processes_that_are_not_listed_show_in_what_is_used(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, used: int, reserved: int | None, refused: bool
) -> None:
    """Containers list none.  Without the v2 struct the driver's own memory counts as used: more may be in use."""
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(used=used, pids=(), reserved=reserved))
    if refused:
        with pytest.raises(CannotMeasureError, match="processes unknown"):
            CudaInstrument().open()
    else:
        CudaInstrument().open()


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_busy_gpu_may_be_allowed_and_then_no_difference_is_taken(
    cuda: FakeCuda, samplers: list[FakeSampler], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(used=3 << 30, pids=(4242,)))
    if how == "environment":
        monkeypatch.setenv("NOOOM_ALLOW_BUSY", "1")
    instrument = CudaInstrument(allow_busy=True if how == "argument" else None)
    instrument.open()
    assert [sampler.idle_used_bytes for sampler in samplers] == [None]
    assert instrument.describe()["busy_at_start_bytes"] == 3 << 30


def test_a_context_of_our_own_that_exists_already_makes_the_difference_unknown(
    cuda: FakeCuda, samplers: list[FakeSampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(used=100 << 20, pids=(os.getpid(),)))
    CudaInstrument().open()
    assert [sampler.idle_used_bytes for sampler in samplers] == [None]


def test_without_a_gpu_or_with_another_allocator_nothing_is_measured(cuda: FakeCuda) -> None:
    cuda.backend = "cudaMallocAsync"
    with pytest.raises(CannotMeasureError, match="cudaMallocAsync"):
        CudaInstrument().open()
    cuda.available = False
    with pytest.raises(CannotMeasureError, match="no GPU"):
        CudaInstrument().open()


def test_without_nvml_the_allocators_figures_remain(
    cuda: FakeCuda, samplers: list[FakeSampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    instrument = CudaInstrument()
    instrument.open()
    instrument.phase_begins("load")
    assert instrument.read() == reading_from(STATISTICS, None)
    assert "not available" in instrument.describe()["nvml"]
    assert samplers == []


def test_a_torch_that_does_not_say_the_uuid_is_not_guessed_at(cuda: FakeCuda, samplers: list[FakeSampler]) -> None:
    """By index it could be another GPU."""
    cuda.uuid = ""
    instrument = CudaInstrument()
    instrument.open()
    assert samplers == []
    assert "UUID" in instrument.describe()["nvml"]


def test_a_sampler_that_was_lost_says_why(cuda: FakeCuda, samplers: list[FakeSampler]) -> None:
    instrument = CudaInstrument()
    instrument.open()
    assert "nvml" not in instrument.describe()
    samplers[0].note = "the sampler ended early"
    assert instrument.describe()["nvml"] == "the sampler ended early"
