"""What a process under ``nooom measure`` keeps of itself, with a torch that is played."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nooom.profiler import inside


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


class Torch:
    """As much of torch as the recorder touches: one allocator with two GPUs."""

    def __init__(self) -> None:
        self.peaks = [dict.fromkeys(inside.PEAKS.values(), 0), dict.fromkeys(inside.PEAKS.values(), 0)]
        self.queued: list[Callable[[], None]] = []
        self.dumped: list[str] = []
        self.observe: Callable[..., None] = lambda *_: None
        self._C = SimpleNamespace(
            _cuda_resetPeakMemoryStats=self.reset,
            _cuda_attach_out_of_memory_observer=lambda observer: setattr(self, "observe", observer),
        )
        self.cuda = SimpleNamespace(
            _lazy_call=self.queued.append,
            device_count=lambda: 2,
            current_device=lambda: 0,
            memory_stats=lambda index: self.peaks[index],
            get_device_properties=lambda index: SimpleNamespace(uuid=f"uuid-{index}"),
            memory=SimpleNamespace(_record_memory_history=lambda **_: None, _dump_snapshot=self.dumped.append),
        )

    def allocate(self, index: int, size_bytes: int) -> None:
        for key in self.peaks[index]:
            self.peaks[index][key] = max(self.peaks[index][key], size_bytes)

    def reset(self, index: int) -> None:
        self.peaks[index] = dict.fromkeys(self.peaks[index], 0)

    def use(self) -> None:
        for call in self.queued:
            call()


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Begun, with everything that it hangs on the process taken down again."""
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", ends.append)
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    monkeypatch.setattr(os, "_exit", lambda code: None)
    monkeypatch.setattr(inside._Recorder, "_catch_sigterm", lambda self: None)
    played: Any = Torch()
    settings = {"reports": str(tmp_path), "phantom": False, "torch_libraries": None, "snapshot": str(tmp_path / "s")}
    inside.begin(played, settings)
    (played.end,) = ends
    return played


def written(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())


def test_a_process_that_never_uses_cuda_leaves_nothing(torch: Any, tmp_path: Path) -> None:
    torch.end()
    assert list(tmp_path.iterdir()) == []


def test_the_first_use_leaves_a_report_with_unknown_figures(torch: Any, tmp_path: Path) -> None:
    torch.use()
    report = written(tmp_path)
    assert (report["pid"], report["gpus"], report["oom"], report["invented"]) == (os.getpid(), [], None, None)
    assert report["command"] == sys.orig_argv


def test_the_end_writes_the_largest_peaks_across_resets(torch: Any, tmp_path: Path) -> None:
    torch.use()
    torch.allocate(1, 700)
    torch._C._cuda_resetPeakMemoryStats(1)
    torch.allocate(1, 300)
    torch.end()
    idle, used = written(tmp_path)["gpus"]
    assert idle == {"uuid": "uuid-0", **dict.fromkeys(inside.PEAKS, 0)}
    assert used == {"uuid": "uuid-1", **dict.fromkeys(inside.PEAKS, 700)}
    assert torch.dumped == [str(tmp_path / f"s.{os.getpid()}")]


def test_it_ends_once(torch: Any, tmp_path: Path) -> None:
    torch.use()
    os._exit(0)  # played above: the recorder comes first
    torch.allocate(0, 9)
    torch.end()
    assert written(tmp_path)["gpus"][0]["max_allocated_bytes"] == 0


def test_an_error_of_statistics_leaves_the_earlier_report(torch: Any, tmp_path: Path) -> None:
    torch.use()
    torch.cuda.memory_stats = None
    torch.end()
    assert written(tmp_path)["gpus"] == []


@pytest.mark.parametrize(
    ("error", "observed", "oom"),
    [
        (None, [], None),
        (ValueError("mine"), [], None),
        (None, [5, 6], {"tried_bytes": 6, "times": 2, "message": None}),
        (OutOfMemoryError("CUDA out of memory"), [6], {"tried_bytes": 6, "times": 1, "message": "CUDA out of memory"}),
        (
            OutOfMemoryError("Tried to allocate 2.00 MiB"),
            [],
            {"tried_bytes": 2 << 20, "times": None, "message": "Tried to allocate 2.00 MiB"},
        ),
        (MemoryError("of the host"), [], None),
    ],
)
def test_running_out_is_told_by_the_allocator_and_by_the_error_that_ends_the_program(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None, observed: list[int], oom: Any
) -> None:
    torch.use()
    for tried in observed:
        torch.observe(0, tried, 0, 0)
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    torch.end()
    assert written(tmp_path)["oom"] == oom


def test_a_call_is_made_whatever_comes_before_it() -> None:
    owner = SimpleNamespace(call=lambda *words: words)

    def fails() -> None:
        raise ValueError

    inside._before(owner, "call", fails)
    inside._before(owner, "missing", fails)
    assert owner.call(1, 2) == (1, 2)
    assert not hasattr(owner, "missing")
