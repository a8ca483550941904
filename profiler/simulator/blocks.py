"""The pieces that the caching allocator hands out, and the sets in which it keeps those that are free."""

from __future__ import annotations

from bisect import bisect_left, insort

FREE, ALLOCATED, UNMAPPED = range(3)
"""A block's state: memory that waits, memory that is in use, addresses without memory."""

Key = tuple[int, int, int, "Block"]
"""Size, tie, address: no two blocks have the same, so that the blocks themselves are never compared."""


class Block:
    """A piece of a segment, between its neighbours. Sizes are bytes."""

    __slots__ = ("address", "born", "next", "pool", "prev", "requested", "segment", "size", "state", "tie")

    def __init__(self, pool: Pool, address: int, size: int, tie: int, segment: int) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.tie = tie
        """Among free blocks of one size the lower goes first."""
        self.segment = segment
        """The address at which its segment, or its expandable range, begins."""
        self.requested = 0
        self.state = FREE
        self.born = 0
        """How many searches its pool had seen when it became free; garbage collection goes by it."""
        self.prev: Block | None = None
        self.next: Block | None = None


class Pool:
    """The free blocks of small or of large requests, in the order in which they are looked for."""

    __slots__ = ("free", "is_small", "least_rest", "page", "searches", "unmapped")

    def __init__(self, *, is_small: bool, page: int, least_rest: int) -> None:
        self.is_small = is_small
        self.page = page
        """By how many bytes an expandable range grows."""
        self.least_rest = least_rest
        """How large what is left of a block must be to become a block of its own."""
        self.free: list[Key] = []
        self.unmapped: list[tuple[int, Block]] = []
        """By address."""
        self.searches = 0

    def add(self, block: Block) -> None:
        block.born = self.searches
        insort(self.free, (block.size, block.tie, block.address, block))

    def remove(self, block: Block) -> None:
        # A tuple's beginning sorts before the whole.
        del self.free[bisect_left(self.free, (block.size, block.tie, block.address))]

    def first_of(self, size: int) -> int:
        """Where the free blocks of this size or above begin."""
        return bisect_left(self.free, (size,))

    def add_unmapped(self, block: Block) -> None:
        insort(self.unmapped, (block.address, block))

    def remove_unmapped(self, block: Block) -> None:
        del self.unmapped[bisect_left(self.unmapped, (block.address,))]
