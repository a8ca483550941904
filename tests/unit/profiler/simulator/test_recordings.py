"""What programs asked of real allocators, asked of the simulated one: the same segments, blocks and addresses.

Their torch is 2.6 to 2.11, which takes the lowest of equally large blocks: where segments lie is the driver's decision, and
read from the recording.  Where a recording begins in the middle, the memory's map at its beginning is what its events,
undone from the last to the first, leave of the map at its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from nooom.profiler.simulator.allocator import CachingAllocator
from nooom.profiler.simulator.blocks import ALLOCATED, FREE, Block
from nooom.profiler.simulator.settings import MIB, Order
from tests.support import recordings
from tests.support.recordings import recorded

pytestmark = recordings.needed

NAMES = recordings.names()
RESTS = {"rec48": dict.fromkeys((36_335_255_552, 36_905_680_896, 38_106_365_952), 983_040)}
"""What was not split off from blocks that live at the beginning, next to free memory: no event tells of it, but where later
blocks lie does.  It is left when 40,960,000 bytes are taken from 40 MiB."""

Event = tuple[str, int, int]
Live = dict[int, tuple[int, int]]
"""By address: a block's size, and what was asked for."""


@pytest.mark.parametrize("name", [name for name in NAMES if recorded(name)["complete_from_start"]])
@pytest.mark.parametrize("order", [Order.ADDRESS, Order.SEGMENT])
def test_from_the_first_request_on_addresses_play_no_part(name: str, order: Order) -> None:
    """With addresses that rise, as any process could have been given them, every event and the map at the end are the same."""
    found = recorded(name)
    events: list[tuple[str, int]] = []
    made = CachingAllocator(order=order, record=lambda action, _, size: events.append((action, size)))
    ours: dict[int, int] = {}
    for action, size, address, *_ in found["events"]:
        if action == "alloc":
            ours[address] = made.malloc(size)
        elif action == "free_requested":
            made.free(ours.pop(address))
    assert events == [(action, size) for action, size, *_ in found["events"]]
    assert made.reserved_bytes == sum(segment["total_size"] for segment in found["segments"])
    assert sorted(blocks for _, blocks in _map_of(made)) == sorted(blocks for _, blocks in _recorded_map(found))


@pytest.mark.parametrize("name", NAMES)
def test_every_address_is_the_recordings(name: str) -> None:
    found = recorded(name)
    expected = [(action, address, size) for action, size, address, *_ in found["events"] if action != "snapshot"]
    segments, live = _beginning(found)
    for address, rest in RESTS.get(name, {}).items():
        size, requested = live[address]
        live[address] = (size + rest, requested)
    told: list[Event] = []
    made = Begun(segments, live, iter([address for action, address, _ in expected if action == "segment_alloc"]), told)
    for count, (action, address, size) in enumerate(expected):
        if action == "alloc":
            made.malloc(size)
        elif action == "free_requested":
            made.free(address)
        elif action == "segment_free" and len(told) == count:
            made.empty_cache()
        if action != "segment_alloc":  # of that the next request tells
            assert told[count] == (action, address, size), count
    assert told == expected
    assert _map_of(made) == _recorded_map(found)


class Begun(CachingAllocator):
    """An allocator with a past, whose next segments lie where the driver put them.

    Args:
        segments: address and size of each that there is.
        live: the blocks in them that are in use.
        coming: the addresses of the segments to come.
        told: where each event goes.
    """

    def __init__(self, segments: Mapping[int, int], live: Live, coming: Iterator[int], told: list[Event]) -> None:
        super().__init__(order=Order.ADDRESS, record=lambda *event: told.append(event))
        self._coming = coming
        addresses = sorted(live)
        for begin, total in segments.items():
            inside = addresses[bisect_left(addresses, begin) : bisect_left(addresses, begin + total)]
            self._fill(begin, total, {address: live[address] for address in inside})
        self.reserved_bytes = sum(segments.values())
        self.reset_peaks()

    def new_addresses(self, size: int) -> int:
        return next(self._coming)

    def _fill(self, begin: int, total: int, live: Live) -> None:
        pool = self._small if total == 2 * MIB else self._large
        at, last = begin, None
        for address, (size, requested) in [*live.items(), (begin + total, (0, 0))]:
            for length, state in ((address - at, FREE), (size, ALLOCATED)):
                if not length:
                    continue
                block = Block(pool, at, length, 0, begin)
                block.state, block.prev = state, last
                if last is not None:
                    last.next = block
                last = block
                at += length
                if state == FREE:
                    pool.add(block)
                    continue
                block.requested = requested
                self._live[block.address] = block
                self.allocated_bytes += length
                self.requested_bytes += requested


def _beginning(found: Mapping[str, Any]) -> tuple[dict[int, int], Live]:
    """The segments and the live blocks before the first event."""
    segments = {segment["address"]: segment["total_size"] for segment in found["segments"]}
    live: Live = {}
    for segment in found["segments"]:
        at = segment["address"]
        for size, requested, state, *_ in segment["blocks"]:
            if state != "inactive":
                live[at] = (size, requested)
            at += size
    for action, size, address, *_ in reversed(found["events"]):
        if action == "free_completed":
            live[address] = (_size_of(address, size, segments, live), size)
        elif action == "alloc":
            del live[address]
        elif action == "segment_alloc":
            del segments[address]
        elif action == "segment_free":
            segments[address] = size
    return segments, live


def _size_of(address: int, requested: int, segments: Mapping[int, int], live: Live) -> int:
    """Of a block that was freed: up to 1 MiB before its neighbour is its own, for no free block of the large is so small."""
    size = -(-requested // 512) * 512
    begin = max(segment for segment in segments if segment <= address)
    end = begin + segments[begin]
    room = min((other for other in live if address < other < end), default=end) - address
    return room if size > MIB and room - size <= MIB else size


Map = list[tuple[int, list[tuple[int, str]]]]


def _map_of(made: CachingAllocator) -> Map:
    return [(one.address, [(block.size, block.state) for block in one.blocks]) for one in made.segments()]


def _recorded_map(found: Mapping[str, Any]) -> Map:
    return sorted(
        (one["address"], [(size, state) for size, _, state, *_ in one["blocks"]]) for one in found["segments"]
    )
