"""Block sizes are followed along the allocator's own events: rounding, tails that stay, splitting and merging."""

from __future__ import annotations

import pytest

from nooom.profiler.tracer.blocks import Blocks

MIB = 1 << 20


def test_a_request_is_rounded_and_a_small_rest_stays_in_a_large_block() -> None:
    blocks = Blocks()
    blocks.follow("segment_alloc", 0, 20 * MIB)
    assert blocks.follow("alloc", 0, 19 * MIB + 1) == 20 * MIB  # a rest below 1 MiB is not split off
    assert blocks.follow("free_requested", 0, 19 * MIB + 1) == -20 * MIB
    blocks.follow("free_completed", 0, 19 * MIB + 1)
    assert blocks.follow("alloc", 0, 5 * MIB + 1) == 5 * MIB + 512
    assert blocks.follow("alloc", 5 * MIB + 512, 100 * 1024 * 20) == 100 * 1024 * 20


def test_in_the_small_pool_every_rest_of_512_bytes_is_split_off() -> None:
    blocks = Blocks()
    blocks.follow("segment_alloc", 0, 2 * MIB)
    assert blocks.follow("alloc", 0, 1) == 512
    assert blocks.follow("alloc", 512, MIB) == MIB


def test_neighbours_merge_when_they_are_free_but_not_across_segments() -> None:
    blocks = Blocks()
    for start in (0, 20 * MIB):
        blocks.follow("segment_alloc", start, 20 * MIB)
    blocks.follow("alloc", 0, 10 * MIB)
    blocks.follow("alloc", 10 * MIB, 10 * MIB)
    for start in (0, 10 * MIB):
        blocks.follow("free_completed", start, 10 * MIB)
    assert blocks.follow("alloc", 0, 20 * MIB) == 20 * MIB
    blocks.follow("free_completed", 0, 20 * MIB)
    blocks.follow("segment_free", 0, 20 * MIB)
    with pytest.raises(KeyError):
        blocks.follow("alloc", 0, 512)


def test_mapped_pages_grow_and_shrink_a_free_block() -> None:
    blocks = Blocks()
    blocks.follow("segment_map", 0, 20 * MIB)
    blocks.follow("segment_map", 20 * MIB, 20 * MIB)
    assert blocks.follow("alloc", 0, 33 * MIB) == 33 * MIB  # with pages, no rest stays in a block
    assert blocks.follow("alloc", 33 * MIB, 512) == 512
    blocks.follow("free_completed", 0, 33 * MIB)
    blocks.follow("segment_unmap", 0, 20 * MIB)
    assert blocks.follow("alloc", 20 * MIB, 13 * MIB) == 13 * MIB
    with pytest.raises(KeyError):
        blocks.follow("alloc", 0, 512)


def test_a_snapshot_of_before_gives_the_blocks_that_are_in_use() -> None:
    used = {"address": 0, "size": 1024, "requested_size": 700, "state": "active_allocated"}
    waiting = {"address": 1024, "size": 512, "requested_size": 512, "state": "active_awaiting_free"}
    free = {"address": 1536, "size": 2 * MIB - 1536, "requested_size": 0, "state": "inactive"}
    segment = {
        "address": 0, "total_size": 2 * MIB, "segment_type": "small", "is_expandable": False,
        "blocks": [used, waiting, free],
    }  # fmt: skip
    blocks = Blocks()
    assert list(blocks.begin([segment])) == [(0, 1024, 700)]
    blocks.follow("free_completed", 1024, 512)
    assert blocks.follow("alloc", 1024, 5000) == 5120


@pytest.mark.parametrize(
    ("requested", "rounded"), [(1, 512), (513, 1024), (5 * MIB, 5 * MIB), (5 * MIB + 1, 6 * MIB), (8 * MIB, 8 * MIB)]
)
def test_powers_of_two_are_divided_where_the_setting_says_so(requested: int, rounded: int) -> None:
    divisions = {str(1 << power): 4 for power in range(16)}
    assert Blocks({"roundup_power2_divisions": divisions}).rounded(requested) == rounded


def test_above_the_largest_split_nothing_is_split() -> None:
    blocks = Blocks({"max_split_size": 100 * MIB})
    blocks.follow("segment_alloc", 0, 200 * MIB)
    assert blocks.follow("alloc", 0, 150 * MIB) == 200 * MIB
