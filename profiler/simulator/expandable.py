"""Expandable segments: one range of addresses for each pool, to which memory is mapped page by page as it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nooom.profiler.simulator.blocks import FREE, UNMAPPED, Block, Pool

if TYPE_CHECKING:
    from nooom.profiler.simulator.allocator import CachingAllocator

WITHOUT_END = 1 << 50
"""How large a range is where the device's memory is not known."""


def best_from(pool: Pool, at: int) -> int:
    """Which free block is taken when the one at this place is the smallest that fits.

    A block counts as large as it could grow: later ones win as long as each could grow less than the one before.
    """
    free = pool.free
    size = _could_grow_to(free[at][3])
    while at + 1 < len(free) and (following := _could_grow_to(free[at + 1][3])) < size:
        at, size = at + 1, following
    return at


def _could_grow_to(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and after.state == UNMAPPED else 0)


def take(allocator: CachingAllocator, pool: Pool, size: int) -> Block | None:
    """A block of at least this size, out of its pool; None where no memory is left.

    What was mapped before memory ran out stays mapped, and free.
    """
    block = _candidate(allocator, pool, size)
    if block.state == UNMAPPED and not _map(allocator, block, min(block.size, size)):
        return None
    while block.size < size:
        # It is free, and what follows is unmapped: mapping merges the two.
        following = block.next
        if following is None or not _map(allocator, following, min(size - block.size, following.size)):
            return None
        block = following
    pool.remove(block)
    return block


def release(allocator: CachingAllocator, pool: Pool) -> None:
    """Unmap the whole pages of every free block; a range without memory is given up."""
    for *_, block in list(pool.free):
        _unmap(allocator, block)
        if block.state == UNMAPPED and block.prev is None and block.next is None:
            pool.remove_unmapped(block)


def _candidate(allocator: CachingAllocator, pool: Pool, size: int) -> Block:
    """The first place in which so much can be had: a free block before unmapped addresses, or those."""
    for _, unmapped in pool.unmapped:
        before = unmapped.prev
        block = before if before is not None and before.state == FREE else unmapped
        if _has_addresses(block, size):
            return block
    total = allocator.total_bytes
    # An eighth more than there is memory, so that pages can move from a range's beginning to its end.
    addresses = WITHOUT_END if total is None else total + total // 8
    addresses += -addresses % pool.page
    address = allocator.new_addresses(addresses)
    block = Block(pool, address, addresses, allocator.new_tie(), address)
    block.state = UNMAPPED
    pool.add_unmapped(block)
    return block


def _has_addresses(block: Block | None, size: int) -> bool:
    found = 0
    while found < size and block is not None and block.state in (FREE, UNMAPPED):
        found += block.size
        block = block.next
    return found >= size


def _map(allocator: CachingAllocator, block: Block, size: int) -> bool:
    """Memory for the beginning of an unmapped block, in whole pages: free, and merged with its neighbours."""
    pool = block.pool
    size += -size % pool.page
    if not allocator.has_room(size):
        return False
    pool.remove_unmapped(block)
    address = block.address
    block.state = FREE
    if size < block.size:
        rest = Block(pool, address + size, block.size - size, allocator.tie_of_piece(block), block.segment)
        rest.state = UNMAPPED
        _put_between(rest, block, block.next)
        block.size = size
        pool.add_unmapped(rest)
    _merge_neighbours(pool, block)
    pool.add(block)
    allocator.reserve("segment_map", address, size)
    return True


def _unmap(allocator: CachingAllocator, block: Block) -> None:
    """Take the whole pages out of a free block; what is left at its ends stays free."""
    pool = block.pool
    begin = block.address + -(block.address - block.segment) % pool.page
    end = block.address + block.size
    end -= (end - block.segment) % pool.page
    if begin >= end:
        return
    pool.remove(block)
    if begin > block.address:
        front = Block(pool, block.address, begin - block.address, allocator.tie_of_piece(block), block.segment)
        _put_between(front, block.prev, block)
        pool.add(front)
    if (left := block.address + block.size - end) > 0:
        back = Block(pool, end, left, allocator.tie_of_piece(block), block.segment)
        _put_between(back, block, block.next)
        pool.add(back)
    block.address, block.size, block.state = begin, end - begin, UNMAPPED
    _merge_neighbours(pool, block)
    pool.add_unmapped(block)
    allocator.reserve("segment_unmap", begin, end - begin)


def _put_between(block: Block, before: Block | None, after: Block | None) -> None:
    block.prev, block.next = before, after
    if before is not None:
        before.next = block
    if after is not None:
        after.prev = block


def _merge_neighbours(pool: Pool, block: Block) -> None:
    """Neighbours of the same state become part of it."""
    remove = pool.remove_unmapped if block.state == UNMAPPED else pool.remove
    if (other := block.prev) is not None and other.state == block.state:
        remove(other)
        block.address = other.address
        block.size += other.size
        _put_between(block, other.prev, block.next)
    if (other := block.next) is not None and other.state == block.state:
        remove(other)
        block.size += other.size
        _put_between(block, block.prev, other.next)
