"""The pytest plugin's parts that need neither torch nor pytest's help: marks, locks, lines, verdicts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nooom.benchmarks.pytest_plugin import gpu_lock, marks, rows, verdicts
from nooom.benchmarks.pytest_plugin.gpu_lock import GpuLocks
from nooom.benchmarks.pytest_plugin.marks import Asked, Baseline
from nooom.benchmarks.pytest_plugin.rows import Row
from nooom.formulas.errors import CannotMeasureError, UsageError
from nooom.profiler.measurement import Measurement, Phase, own_code

MIB = 1 << 20


class Item:
    """As much of a pytest item as marks need: the nearest first."""

    def __init__(self, *found: pytest.MarkDecorator) -> None:
        self._marks = [one.mark for one in found]

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [mark for mark in self._marks if mark.name == name]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next(iter(self.iter_markers(name)), None)


def asked(*found: pytest.MarkDecorator) -> Asked | None:
    item: Any = Item(*found)
    return marks.asked(item)


limit, baseline = pytest.mark.limit_gpu_memory, pytest.mark.gpu_memory_baseline


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [("12 GiB", 12 << 30), ("800MiB", 800 * MIB), ("1.5 gib", 3 << 29), ("96 GB", 96 * 10**9), (5, 5), (0, 0)],
)
def test_a_limit_is_a_size_or_bytes(written: str | int, size_bytes: int) -> None:
    found = asked(limit(written))
    assert found is not None
    assert found.limits[0].limit_bytes == size_bytes


@pytest.mark.parametrize("written", [-1, True, 1.5, None, "", "12", "12 apples", "GiB"])
def test_anything_else_is_refused(written: object) -> None:
    with pytest.raises(UsageError, match="limit_gpu_memory: limit must be a size such as"):
        asked(limit(written))


def test_the_nearest_mark_of_a_metric_counts() -> None:
    found = asked(limit("1 MiB", rerun=False), limit("2 MiB", metric="reserved"), limit("9 MiB", device="cuda"))
    assert found is not None
    assert [(one.metric, one.limit_bytes) for one in found.limits] == [("allocated", MIB), ("reserved", 2 * MIB)]
    assert (found.device, found.rerun) == ("auto", False)


def test_a_test_is_measured_on_one_device() -> None:
    with pytest.raises(UsageError, match="not on cpu and cuda"):
        asked(limit("1 MiB", device="cpu"), limit("1 MiB", metric="reserved", device="cuda"))


@pytest.mark.parametrize(
    ("mark", "wanted"),
    [
        (limit("1 MiB", metric="active"), "metric='active'"),
        (limit("1 MiB", rerun="no"), "rerun='no' is neither True nor False"),
        (limit("1 MiB", "reserved"), "takes 1 positional argument but 2"),
        (baseline(path=3), "gpu_memory_baseline: path=3 is no path"),
        (baseline(bandwidth=3), "gpu_memory_baseline: got an unexpected keyword"),
    ],
)
def test_what_a_mark_does_not_take_is_named(mark: pytest.MarkDecorator, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        asked(mark)


def test_a_test_without_a_mark_asks_for_nothing() -> None:
    assert asked(pytest.mark.slow) is None


def torch_with(uuid: str) -> Any:
    cuda = SimpleNamespace(current_device=lambda: 0, get_device_properties=lambda _: SimpleNamespace(uuid=uuid))
    return SimpleNamespace(cuda=cuda)


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(gpu_lock.FOLDER, str(tmp_path / "locks"))
    return tmp_path / "locks"


def test_a_gpu_is_one_process_s_until_it_gives_it_back(locks: Path) -> None:
    first, second = GpuLocks("the first", share=False), GpuLocks("the second", share=False)
    first.take(torch_with("1234"))
    first.take(torch_with("1234"))
    second.take(torch_with("5678"))
    with pytest.raises(CannotMeasureError, match=r"GPU 1234 is measured on by the first already \(lock .*1234\.lock\)"):
        second.take(torch_with("1234"))
    first.release()
    second.take(torch_with("1234"))
    second.release()
    assert sorted(path.name for path in locks.iterdir()) == ["nooom-gpu-1234.lock", "nooom-gpu-5678.lock"]


def test_a_shared_gpu_is_measured_on_and_said(locks: Path) -> None:
    first, second = GpuLocks("the first", share=False), GpuLocks("the second", share=True)
    first.take(torch_with("1234"))
    second.take(torch_with("1234"))
    assert (first.shared, second.shared) == (None, "the first")
    first.release()


@pytest.mark.usefixtures("locks")
def test_each_command_s_phantom_is_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = GpuLocks("the first", share=False), GpuLocks("the second", share=False)
    monkeypatch.setenv("NOOOM_PHANTOM", "one")
    first.take(torch_with("1234"))
    monkeypatch.setenv("NOOOM_PHANTOM", "another")
    second.take(torch_with("1234"))
    first.release()
    second.release()


def test_a_lock_that_can_t_be_made_is_one_line(locks: Path) -> None:
    locks.write_text("a file")
    with pytest.raises(UsageError, match=r"can't be locked: .*; NOOOM_LOCKS names another folder"):
        GpuLocks("me", share=False).take(torch_with("1234"))


def test_a_link_in_the_lock_s_place_is_not_followed(locks: Path, tmp_path: Path) -> None:
    locks.mkdir()
    (tmp_path / "precious").write_text("precious")
    (locks / "nooom-gpu-1234.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match="can't be locked"):
        GpuLocks("me", share=False).take(torch_with("1234"))
    assert (tmp_path / "precious").read_text() == "precious"


def record(**peaks: int | None) -> Measurement:
    return Measurement(
        **own_code("test_a.py::test_one"), source="measured", device="cpu", status="ok",
        phases=[Phase(name=name, peak_allocated_bytes=peak) for name, peak in peaks.items()],
        fingerprint={"torch": "2.13.0"},
    )  # fmt: skip


def compared(before: Measurement, after: Measurement, *, strict: bool = False, band: int | None = None) -> Any:
    mark = Baseline(path=None, band_bytes=band, rerun=True)
    return verdicts.of_baseline(mark, after, [before], Path("there"), strict=strict)


def test_states_are_those_of_the_gate() -> None:
    before = record(forward=1000 * MIB, backward=2000 * MIB)
    assert compared(before, before).state == "pass"
    assert compared(before, record(forward=1000 * MIB, backward=2010 * MIB)).state == "regression"
    assert compared(before, record(forward=1000 * MIB, backward=2010 * MIB), band=10 * MIB).state == "pass"
    assert compared(before, record(forward=900 * MIB, backward=2000 * MIB)).state == "improvement"
    assert compared(before, record(forward=900 * MIB, backward=2010 * MIB)).state == "regression"
    missing = compared(before, record(forward=1000 * MIB))
    assert (missing.state, bool(missing.failure)) == ("missing", True)
    more = compared(before, record(forward=1000 * MIB, backward=2000 * MIB, optimizer=1))
    assert (more.state, more.failure) == ("new", ())


@pytest.mark.parametrize("strict", [False, True])
def test_what_can_t_be_compared_fails_where_that_is_strict(strict: bool) -> None:
    before, after = record(forward=MIB), record(forward=None)
    other = dataclasses.replace(before, fingerprint={"torch": "2.12.0"})
    failed = dataclasses.replace(before, status="oom")
    for found, state in (
        (compared(before, after, strict=strict), "skipped"),
        (compared(other, before, strict=strict), "not_comparable"),
        (compared(failed, before, strict=strict), "not_comparable"),
        (compared(dataclasses.replace(before, case_id="other"), before, strict=strict), "new"),
    ):
        assert (found.state, bool(found.failure)) == (state, strict)


def test_a_row_survives_its_way_to_the_controller() -> None:
    row = Row(name="a", evidence="measured on cpu", peak_bytes=1, states=("pass",), notes=("b",), record={"c": [None]})
    assert Row.from_json(row.to_json()) == row


@pytest.mark.parametrize(
    ("size_bytes", "said"),
    [(None, "unknown"), (0, "0 bytes"), (1023, "1023 bytes"), (3 << 29, "1.50 GiB"), (-MIB, "-1.00 MiB")],
)
def test_sizes_are_said_in_the_largest_unit(size_bytes: int | None, said: str) -> None:
    assert rows.size(size_bytes) == said
