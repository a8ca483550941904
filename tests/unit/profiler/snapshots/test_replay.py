"""Recordings replayed: what was reserved comes out again, from their first event or midway, and other settings change it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nooom.formulas.errors import UsageError
from nooom.formulas.gpus import find
from nooom.profiler.simulator.settings import MIB, Order
from nooom.profiler.snapshots.recording import load
from nooom.profiler.snapshots.replay import Memory, Replay, Replayed
from tests.support import recordings
from tests.support.programs import written

GIB = 2**30


def replayed(path: Path) -> tuple[Replay, Replayed]:
    found = Replay(load(path))
    return found, found.as_recorded()[0]


@pytest.mark.parametrize("conf", ["", "roundup_power2_divisions:4", "expandable_segments:True"])
@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("cut", [0, 1, 150, 400])
def test_what_was_reserved_comes_out_again(tmp_path: Path, conf: str, order: Order, cut: int) -> None:
    for seed in range(4):
        path = tmp_path / f"{seed}.pickle"
        made = written(path, seed=seed, conf=conf, order=order, cut=cut)
        found, same = replayed(path)
        assert found.beginning.is_empty == (cut == 0)
        assert found.recorded.final_bytes == made.reserved_bytes == same.final_reserved_bytes
        # From midway on nobody knows in which order the segments were made.
        if cut == 0:
            assert (same.different, same.peak_reserved_bytes) == (0, made.peak_reserved_bytes)
            assert (same.peak_allocated_bytes, same.failed) == (made.peak_allocated_bytes, None)
        assert same.peak_reserved_bytes == found.recorded.peak_bytes


def test_the_beginning_is_what_the_end_leaves(tmp_path: Path) -> None:
    """Cut ever later, a recording begins with what its beginning had reserved at that event."""
    written(tmp_path / "whole.pickle", steps=120)
    whole = load(tmp_path / "whole.pickle")
    reserved = 0
    for index, event in enumerate(whole.events):
        if index % 7 == 0:
            written(tmp_path / "cut.pickle", steps=120, cut=index)
            assert Replay(load(tmp_path / "cut.pickle")).beginning.reserved_bytes == reserved
        reserved += event.size * ((event.action == "segment_alloc") - (event.action == "segment_free"))


def test_a_block_keeps_what_was_not_split_off(tmp_path: Path) -> None:
    """19.5 MiB in a segment of 20 take all of it, which the events alone don't say."""
    snapshot(
        tmp_path / "s.json",
        [["free_requested", 19 * MIB + MIB // 2, 0, 0], ["free_completed", 19 * MIB + MIB // 2, 0, 0]],
        [segment(0, 20 * MIB)],
    )
    found, same = replayed(tmp_path / "s.json")
    assert found.beginning.live[0].size == same.peak_allocated_bytes == 20 * MIB


def segment(address: int, size: int, blocks: Any = None, **rest: Any) -> dict[str, Any]:
    return {
        "address": address,
        "total_size": size,
        "stream": 0,
        "segment_type": "small" if size == 2 * MIB else "large",
        "blocks": blocks or [[size, size, "inactive"]],
        **rest,
    }


def snapshot(path: Path, events: Any, segments: Any, **rest: Any) -> Path:
    path.write_text(json.dumps({"events": events, "segments": segments, **rest}))
    return path


def alloc(address: int, size: int, stream: int = 0) -> list[list[Any]]:
    return [["alloc", size, address, stream]]


def free(address: int, size: int, stream: int = 0) -> list[list[Any]]:
    return [["free_requested", size, address, stream], ["free_completed", size, address, stream]]


def made(address: int, size: int, stream: int = 0) -> list[list[Any]]:
    return [["segment_alloc", size, address, stream], *alloc(address, size, stream)]


def test_streams_share_no_blocks_and_one_memory(tmp_path: Path) -> None:
    size, other = 20 * MIB, 1 << 30
    events = [
        *made(0, size),
        *free(0, size),
        *made(other, size, 7),
        *free(other, size, 7),
        *alloc(0, size),
        *free(0, size),
    ]
    path = snapshot(tmp_path / "s.json", events, [segment(0, size), segment(other, size, stream=7)])
    found, same = replayed(path)
    assert (same.different, same.peak_reserved_bytes) == (0, 2 * size)
    small = found.same(Order.SEGMENT, Memory(capacity_bytes=30 * MIB, source="test"))
    assert (small.retries, small.failed, small.peak_reserved_bytes) == (2, None, size)


def test_a_block_that_waits_for_another_stream_is_free_when_it_is_completed(tmp_path: Path) -> None:
    size, other = 20 * MIB, 1 << 30
    events = [
        *made(0, size),
        ["free_requested", size, 0, 0],
        *made(other, size),
        ["free_completed", size, 0, 0],
        *alloc(0, size),
        *free(other, size),
    ]
    live = [[size, size, "active_allocated"]]
    path = snapshot(tmp_path / "s.json", events, [segment(0, size, live), segment(other, size)])
    _, same = replayed(path)
    assert (same.different, same.peak_reserved_bytes, same.peak_allocated_bytes) == (0, 2 * size, 2 * size)
    path = snapshot(tmp_path / "t.json", events[3:], [segment(0, size, live), segment(other, size)])
    found, same = replayed(path)
    assert found.beginning.live[0].is_pending
    assert (same.different, same.peak_allocated_bytes) == (0, 2 * size)


def test_graphs_pools_are_apart(tmp_path: Path) -> None:
    size, other = 20 * MIB, 1 << 30
    events = [*made(0, size), *free(0, size), *made(other, size), ["segment_free", size, 0, 0]]
    live = [[size, size, "active_allocated"]]
    path = snapshot(tmp_path / "s.json", events, [segment(other, size, live, segment_pool_id=[0, 1])])
    _, same = replayed(path)
    assert (same.different, same.peak_reserved_bytes, same.final_reserved_bytes) == (0, 2 * size, size)


def test_memory_that_ran_out_is_the_recordings_capacity(tmp_path: Path) -> None:
    """Two blocks of 30 MiB are free, none of 60; pages would have done."""
    size = 30 * MIB
    places = [index << 30 for index in range(4)]
    events = [event for place in places for event in made(place, size)]
    events += [*free(places[0], size), *free(places[2], size)]
    events += [["segment_free", size, places[0], 0], ["segment_free", size, places[2], 0]]
    live = [[size, size, "active_allocated"]]
    oom = ["oom", 80 * MIB, 70 * MIB, 0]
    segments = [segment(places[1], size, live), segment(places[3], size, live)]
    found, same = replayed(snapshot(tmp_path / "s.json", [*events, oom], segments))
    assert found.recorded.capacity_bytes == 130 * MIB
    assert found.recorded.ooms == 1
    assert same.failed is not None
    assert (same.failed.event, same.failed.as_recorded, same.failed.tried_bytes) == (len(events), True, 80 * MIB)
    enough = found.same(Order.SEGMENT, Memory(capacity_bytes=GIB, source="test"))
    assert (enough.failed, enough.met) == (None, 1)
    assert enough.peak_reserved_bytes == 140 * MIB


def test_a_gpu_ends_where_its_memory_does(tmp_path: Path) -> None:
    size = 10 * GIB
    events = [event for index in range(3) for event in made(index << 36, size)]
    live = [[size, size, "active_allocated"]]
    path = snapshot(tmp_path / "s.json", events, [segment(index << 36, size, live) for index in range(3)])
    found, same = replayed(path)
    assert same.failed is None
    on_t4 = found.same(same.order, Memory.of(find("t4-16gb")))
    assert on_t4.failed is not None
    assert (on_t4.failed.event, on_t4.failed.tried_bytes, on_t4.failed.as_recorded) == (3, size, False)
    assert "14.57 GiB" in on_t4.failed.message
    assert on_t4.peak_reserved_bytes == size


def test_a_beginning_may_find_no_room(tmp_path: Path) -> None:
    size = 30 * MIB
    live = [[size, size, "active_allocated"]]
    segments = [segment(index << 30, size, live if index < 2 else None) for index in range(3)]
    found = Replay(load(snapshot(tmp_path / "s.json", free(2 << 30, size), segments)))
    small = found.same(Order.SEGMENT, Memory(capacity_bytes=70 * MIB, source="test"), packed=True)
    assert small.failed is not None
    assert (small.failed.event, small.peak_allocated_bytes, small.peak_reserved_bytes) == (None, 2 * size, 2 * size)


def test_expandable_segments_waste_less(tmp_path: Path) -> None:
    """Half of the blocks are freed, and what comes is larger than each: segments of their own are of no use, pages are."""
    size, larger = 21 * MIB, 42 * MIB
    events, segments = [], []
    live = [[22 * MIB, size, "active_allocated"]]
    for index in range(20):
        events += [["segment_alloc", 22 * MIB, index << 30, 0], *alloc(index << 30, size)]
    for index in range(10):
        events += free(index << 30, size)
    for index in range(20, 25):
        events += made(index << 30, larger)
    segments += [segment(index << 30, 22 * MIB, live if index >= 10 else None) for index in range(20)]
    segments += [segment(index << 30, larger, [[larger, larger, "active_allocated"]]) for index in range(20, 25)]
    found, same = replayed(snapshot(tmp_path / "s.json", events, segments))
    assert same.different == 0
    assert same.fragmentation_bytes == 220 * MIB
    grown = found.under("expandable_segments:True", same.order, found.memory)
    assert (grown.packed, same.peak_reserved_bytes, grown.peak_reserved_bytes) == (False, 650 * MIB, 420 * MIB)
    with pytest.raises(UsageError, match="no option"):
        found.under("expandable_segmnts:True", same.order, found.memory)


@pytest.mark.parametrize(
    ("events", "segments"),
    [
        (alloc(0, 512), []),
        (free(0, 512), []),
        (free(5, 512), [segment(0, 2 * MIB, [[2 * MIB, 512, "active_allocated"]])]),
        (free(0, 3 * MIB), [segment(0, 2 * MIB)]),
        (free(0, 512), [segment(0, 2 * MIB, [[512, 512, "active_allocated"], [2 * MIB - 512, 0, "inactive"]])]),
        ([["free_requested", 512, 0, 0]], [segment(0, 2 * MIB)]),
        ([["segment_alloc", 512, 0, 0]], []),
        ([["segment_alloc", 512, 0, 0]], [segment(0, 2 * MIB)]),
        ([["segment_free", 2 * MIB, 512, 0]], [segment(0, 2 * MIB), segment(2 * MIB, 2 * MIB)]),
        ([["segment_free", 0, 512, 0]], []),
        ([["segment_map", 2 * MIB, 512, 0]], [segment(0, 2 * MIB, is_expandable=True)]),
    ],
)
def test_events_that_lead_elsewhere_are_refused(tmp_path: Path, events: Any, segments: Any) -> None:
    with pytest.raises(UsageError, match=r"event \d+ \(\w+\) does not lead to the map of memory") as refused:
        Replay(load(snapshot(tmp_path / "s.json", events, segments)))
    assert "\n" not in str(refused.value)


@recordings.needed
@pytest.mark.parametrize("name", recordings.names())
def test_real_recordings_reserve_the_same_after_every_allocation(name: str) -> None:
    found = Replay(load(recordings.RECORDINGS / f"{name}.json.gz"))
    same, orders = found.as_recorded()
    assert same.different == 0
    assert same.peak_reserved_bytes == found.recorded.peak_bytes
    assert same.final_reserved_bytes == found.recorded.final_bytes
    assert Order.ADDRESS in orders
    assert Order.SEGMENT in orders
