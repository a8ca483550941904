"""The simulated caching allocator against figures worked out by hand from PyTorch's rules, and what always holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from nooom.profiler.out_of_memory import classify_oom
from nooom.profiler.simulator.allocator import CachingAllocator, OutOfMemory
from nooom.profiler.simulator.out_of_memory import format_size
from nooom.profiler.simulator.settings import Order, Settings

KIB, MIB, GIB = 2**10, 2**20, 2**30
Event = tuple[str, int, int]


def allocator(text: str = "", capacity_bytes: int | None = None, order: Order = Order.SEGMENT) -> CachingAllocator:
    return CachingAllocator(capacity_bytes, Settings.parse(text), order)


def watched(text: str = "", capacity_bytes: int | None = None) -> tuple[CachingAllocator, list[Event]]:
    events: list[Event] = []
    made = CachingAllocator(
        capacity_bytes,
        Settings.parse(text),
        record=lambda action, address, size: events.append((action, address, size)),
    )
    return made, events


def figures(made: CachingAllocator) -> tuple[int, int, int]:
    return made.allocated_bytes, made.reserved_bytes, made.requested_bytes


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # what is left is 1 MiB at most, and not split off
        (19 * MIB + 512 * KIB, 20 * MIB, 20 * MIB),
        (33 * MIB, 34 * MIB, 34 * MIB),
    ],
)
def test_one_request_by_itself(requested: int, allocated: int, reserved: int) -> None:
    made = allocator()
    address = made.malloc(requested)
    assert figures(made) == (allocated, reserved, requested)
    assert made.size_of(address) == allocated
    made.free(address)
    assert figures(made) == (0, reserved, 0)
    made.empty_cache()
    assert figures(made) == (0, 0, 0)
    assert (made.peak_allocated_bytes, made.peak_reserved_bytes, made.peak_requested_bytes) == (
        allocated,
        reserved,
        requested,
    )


def test_no_bytes_take_no_block() -> None:
    made, events = watched()
    assert made.malloc(0) == 0
    made.free(0)
    assert figures(made) == (0, 0, 0)
    assert not events


@pytest.mark.parametrize(
    ("divisions", "requested", "rounded"),
    [
        ("8", 1, 512),
        ("8", 4 * KIB, 4 * KIB),  # up to 512 times the divisions: as without
        ("8", 4 * KIB + 1, 4 * KIB + 512),
        ("8", 5 * KIB + 1, 5 * KIB + 512),
        ("4", 1200 * KIB, 1280 * KIB),
        ("4", 1536 * KIB, 1536 * KIB),
        ("4", 2 * MIB, 2 * MIB),
        ("2", 5 * MIB, 6 * MIB),
        ("2", 7 * MIB, 8 * MIB),
        ("1", 5 * MIB + 1, 5 * MIB + 512),
        ("[256:1,512:2,>:4]", 300 * MIB + 1, 300 * MIB + 512),
        ("[256:1,512:2,>:4]", 700 * MIB, 768 * MIB),
        ("[256:1,512:2,>:4]", 1100 * MIB, 1280 * MIB),
    ],
)
def test_sizes_are_rounded_by_divisions_of_powers_of_two(divisions: str, requested: int, rounded: int) -> None:
    assert allocator(f"roundup_power2_divisions:{divisions}").rounded(requested) == rounded


def test_what_is_left_serves_the_next_and_neighbours_merge() -> None:
    made, events = watched()
    first, second, third = (made.malloc(4 * MIB) for _ in range(3))
    assert (second - first, third - second) == (4 * MIB, 4 * MIB)
    assert made.reserved_bytes == 20 * MIB
    made.free(first)
    made.free(third)
    made.free(second)
    (segment,) = made.segments()
    assert [(block.size, block.state) for block in segment.blocks] == [(20 * MIB, "inactive")]
    assert made.malloc(15 * MIB) == first
    assert [action for action, _, _ in events].count("segment_alloc") == 1


def test_events_are_pytorchs_in_order_and_size() -> None:
    made, events = watched()
    address = made.malloc(1000)
    made.free(address)
    made.empty_cache()
    assert events == [
        ("segment_alloc", address, 2 * MIB),
        ("alloc", address, 1000),
        ("free_requested", address, 1000),
        ("free_completed", address, 1000),
        ("segment_free", address, 2 * MIB),
    ]


def test_the_smallest_that_fits_is_taken() -> None:
    made = allocator()
    large, small, _ = (made.malloc(size * MIB) for size in (40, 30, 50))
    made.free(large)
    made.free(small)
    assert made.malloc(25 * MIB) == small
    assert made.malloc(25 * MIB) == large


def _equally_large(order: Order) -> tuple[CachingAllocator, list[int]]:
    """Two segments full of blocks of 2 MiB."""
    made = allocator(order=order)
    return made, [made.malloc(2 * MIB) for _ in range(20)]


@pytest.mark.parametrize("order", [Order.ADDRESS, Order.SEGMENT])
def test_of_equally_large_blocks_the_lowest_is_taken(order: Order) -> None:
    made, blocks = _equally_large(order)
    for index in (7, 3, 12):
        made.free(blocks[index])
    assert [made.malloc(2 * MIB) for _ in range(3)] == [blocks[3], blocks[7], blocks[12]]


def test_in_2_12_the_one_created_first_is_taken() -> None:
    """The rest of a segment keeps its number, of all the lowest; what was cut off before it counts on."""
    made, blocks = _equally_large(Order.REGISTRATION)
    for index in (7, 3, 9):
        made.free(blocks[index])
    assert [made.malloc(2 * MIB) for _ in range(3)] == [blocks[9], blocks[3], blocks[7]]


def test_large_blocks_are_kept_whole_and_from_small_requests() -> None:
    made = allocator("max_split_size_mb:64")
    made.free(made.malloc(100 * MIB))
    made.malloc(40 * MIB)
    assert made.reserved_bytes == 140 * MIB
    made.malloc(70 * MIB)  # 30 MiB more than asked for are too many
    assert made.reserved_bytes == 210 * MIB
    made.malloc(90 * MIB)  # 10 MiB more are not, and stay with the block
    assert (made.reserved_bytes, made.allocated_bytes) == (210 * MIB, 210 * MIB)


def test_one_large_block_is_given_back_for_another() -> None:
    made, events = watched("max_split_size_mb:64", capacity_bytes=300 * MIB)
    kept = [made.malloc(size * MIB) for size in (150, 70, 20)]
    for address in kept:
        made.free(address)
    made.malloc(100 * MIB)
    assert [event for event in events if event[0] == "segment_free"] == [("segment_free", kept[0], 150 * MIB)]
    assert made.retries == 0


def test_everything_free_is_given_back_before_memory_runs_out() -> None:
    made, events = watched(capacity_bytes=100 * MIB)
    small, large, larger = made.malloc(1), made.malloc(20 * MIB), made.malloc(60 * MIB)
    for address in (small, large, larger):
        made.free(address)
    made.malloc(90 * MIB)
    assert [size for action, _, size in events if action == "segment_free"] == [20 * MIB, 60 * MIB, 2 * MIB]
    assert (made.retries, made.ooms, made.reserved_bytes) == (1, 0, 90 * MIB)
    assert made.peak_reserved_bytes == 90 * MIB


def test_when_memory_runs_out_it_is_said_in_pytorchs_words() -> None:
    events: list[Event] = []
    made = CachingAllocator(
        1000 * MIB, total_bytes=1500 * MIB, context_bytes=400 * MIB, record=lambda *event: events.append(event)
    )
    made.malloc(300 * MIB)
    with pytest.raises(OutOfMemory) as ran_out:
        made.malloc(701 * MIB - 5)
    assert ran_out.value.tried_bytes == 702 * MIB
    assert events[-1] == ("oom", 700 * MIB, 701 * MIB)
    assert (made.retries, made.ooms, made.allocated_bytes) == (1, 1, 300 * MIB)
    assert ran_out.value.message == (
        "CUDA out of memory. Tried to allocate 702.00 MiB. GPU 0 has a total capacity of 1.46 GiB of which 700.00 MiB "
        "is free. Including non-PyTorch memory, this process has 700.00 MiB memory in use. Of the allocated memory "
        "300.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  "
        "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
    found = classify_oom(RuntimeError(ran_out.value.message))
    assert found is not None
    assert (found["tried_bytes"], found["free_bytes"], found["allocated_bytes"]) == (702 * MIB, 700 * MIB, 300 * MIB)


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (MIB, "1024.00 KiB"),
        (20 * MIB, "20.00 MiB"),
        (GIB, "1024.00 MiB"),
        (GIB + GIB // 2, "1.50 GiB"),
    ],
)
def test_sizes_are_written_as_pytorch_writes_them(size: int, says: str) -> None:
    assert format_size(size) == says


def test_a_fraction_of_the_total_is_the_most() -> None:
    made = CachingAllocator(900 * MIB, Settings.parse("per_process_memory_fraction:0.5"), total_bytes=1000 * MIB)
    made.malloc(480 * MIB)
    with pytest.raises(OutOfMemory, match=r"480.00 MiB memory in use. 500.00 MiB allowed; Of the allocated") as ran_out:
        made.malloc(30 * MIB)
    assert ran_out.value.tried_bytes == 30 * MIB


def test_old_free_segments_are_collected_above_the_threshold() -> None:
    made, events = watched(
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9", capacity_bytes=1000 * MIB
    )
    old, young = made.malloc(200 * MIB), made.malloc(250 * MIB)
    made.free(old)
    made.malloc(300 * MIB)  # 450 MiB of 900 are reserved before: no more than the half
    made.free(young)
    made.malloc(400 * MIB)
    assert [event for event in events if event[0] == "segment_free"] == [
        ("segment_free", old, 200 * MIB),
        ("segment_free", young, 250 * MIB),
    ]
    assert made.retries == 0


def test_without_a_fraction_nothing_is_collected() -> None:
    made = allocator("garbage_collection_threshold:0.1", capacity_bytes=1000 * MIB)
    made.free(made.malloc(400 * MIB))
    made.malloc(500 * MIB)
    assert made.reserved_bytes == 900 * MIB


def test_expandable_segments_grow_by_pages() -> None:
    made, events = watched("expandable_segments:True")
    first = made.malloc(33 * MIB)
    assert figures(made) == (33 * MIB, 40 * MIB, 33 * MIB)
    second = made.malloc(10 * MIB)  # 7 MiB are there
    assert (second - first, made.reserved_bytes) == (33 * MIB, 60 * MIB)
    small = made.malloc(5)
    assert made.reserved_bytes == 62 * MIB
    assert [event for event in events if event[0] != "alloc"] == [
        ("segment_map", first, 40 * MIB),
        ("segment_map", first + 40 * MIB, 20 * MIB),
        ("segment_map", small, 2 * MIB),
    ]


def test_whole_pages_of_expandable_segments_are_given_back() -> None:
    made, events = watched("expandable_segments:True")
    first = made.malloc(30 * MIB)
    second = made.malloc(50 * MIB)
    made.free(second)
    made.empty_cache()
    assert events[-1] == ("segment_unmap", first + 40 * MIB, 40 * MIB)
    (segment,) = made.segments()
    assert segment.is_expandable
    assert [(block.size, block.requested) for block in segment.blocks] == [(30 * MIB, 30 * MIB), (10 * MIB, 0)]
    made.free(first)
    made.empty_cache()
    assert made.reserved_bytes == 0
    assert made.malloc(2 * MIB) > second  # in a new range


def test_what_was_mapped_before_memory_ran_out_stays() -> None:
    made, _ = watched("expandable_segments:True", capacity_bytes=100 * MIB)
    blocks = [made.malloc(20 * MIB) for _ in range(4)]
    made.free(blocks[1])
    with pytest.raises(OutOfMemory) as ran_out:
        made.malloc(50 * MIB)
    assert ran_out.value.tried_bytes == 50 * MIB
    assert made.retries == 1
    assert made.reserved_bytes == 60 * MIB


def test_peaks_begin_anew() -> None:
    made = allocator()
    made.free(made.malloc(30 * MIB))
    kept = made.malloc(5 * MIB)
    made.reset_peaks()
    assert made.peak_allocated_bytes == made.peak_active_bytes == made.size_of(kept) == 5 * MIB
    assert (made.peak_requested_bytes, made.peak_reserved_bytes) == (5 * MIB, 30 * MIB)


SETTINGS = (
    "",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "max_split_size_mb:24",
    "garbage_collection_threshold:0.4,per_process_memory_fraction:0.8",
    "expandable_segments:True,max_split_size_mb:24,roundup_power2_divisions:[4:2,>:8]",
)
SIZES = st.one_of(st.integers(0, 3 * KIB), st.integers(0, 2 * MIB), st.integers(0, 60 * MIB))
STEPS = st.lists(st.tuples(SIZES, st.integers(0, 10), st.booleans()), max_size=60)


@hypothesis_settings(max_examples=60, deadline=None)
@given(steps=STEPS, text=st.sampled_from(SETTINGS), order=st.sampled_from(Order), empties=st.booleans())
def test_what_always_holds(steps: list[tuple[int, int, bool]], text: str, order: Order, empties: bool) -> None:
    """Whatever is asked for and freed: nothing overlaps, free neighbours are one, and every sum is right."""
    made = allocator(text, 300 * MIB, order)
    live: dict[int, int] = {}
    for size, which, frees in steps:
        if frees and live:
            made.free(address := sorted(live)[which % len(live)])
            del live[address]
        else:
            try:
                address = made.malloc(size)
            except OutOfMemory:
                continue
            if size:
                assert address not in live
                assert made.size_of(address) >= size
                live[address] = size
        if empties and which == 0:
            made.empty_cache()
        _check(made, live)


def _check(made: CachingAllocator, live: dict[int, int]) -> None:
    assert made.requested_bytes == sum(live.values())
    assert made.allocated_bytes == made.active_bytes == sum(map(made.size_of, live))
    assert made.allocated_bytes <= made.peak_allocated_bytes <= made.peak_reserved_bytes <= 300 * MIB
    segments = made.segments()
    assert made.reserved_bytes == sum(segment.total_size for segment in segments)
    end = 0
    for segment in segments:
        assert segment.address >= end
        end = segment.address
        before = "active_allocated"
        for block in segment.blocks:
            assert block.address == end
            end += block.size
            assert not before == block.state == "inactive"
            assert (block.address in live) == (block.state == "active_allocated")
            before = block.state
