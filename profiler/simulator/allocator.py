"""PyTorch's CUDA caching allocator, simulated: the same requests give the same segments, blocks and peaks, to the byte.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.11 to 2.13) for one stream and no graph capture.
Addresses are synthetic: they rise by the order in which segments are made.  All sizes are bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass

from nooom.profiler.simulator import expandable, out_of_memory
from nooom.profiler.simulator.blocks import ALLOCATED, FREE, UNMAPPED, Block, Pool
from nooom.profiler.simulator.settings import MIB, Order, Settings

LEAST_BLOCK = 512
"""Every size is rounded up to a multiple of it."""
MOST_SMALL = MIB
"""The largest size that lies in the small segments."""
SMALL_SEGMENT = 2 * MIB
LEAST_OWN_SEGMENT = 10 * MIB
"""From this size on a request gets a segment of its own, of whole ``SEGMENT_STEP``s."""
SEGMENT_STEP = 2 * MIB
FIRST_ADDRESS = 1 << 46

Record = Callable[[str, int, int], None]
"""Is told each event of PyTorch's trace: action, address, size.

``alloc``, ``free_requested`` and ``free_completed`` have the size that was asked for, ``segment_alloc``,
``segment_free``, ``segment_map`` and ``segment_unmap`` the real one; ``oom`` has what is free as its address, and the
rounded size.
"""


class OutOfMemory(Exception):  # noqa: N818  # as PyTorch's own is an OutOfMemoryError, and this is a finding of a simulation
    """A request found no room, with everything given back that could be."""

    def __init__(self, tried_bytes: int, message: str) -> None:
        super().__init__(message)
        self.tried_bytes = tried_bytes
        """What the allocator asked the device for: the size of the segment."""
        self.message = message
        """In PyTorch's words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockState:
    """One block of a snapshot."""

    address: int
    size: int
    requested: int
    """What was asked for; 0 where it is free."""
    state: str
    """``active_allocated`` or ``inactive``, as PyTorch's snapshots have it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentState:
    """One segment of a snapshot: of an expandable range, what is mapped without a gap."""

    address: int
    total_size: int
    is_small: bool
    is_expandable: bool
    blocks: tuple[BlockState, ...]


def in_steps(size: int) -> int:
    """Rounded up to what PyTorch makes its own segments of, which is also what the driver gives memory in."""
    return size + -size % SEGMENT_STEP


class CachingAllocator:
    """One device's allocator.

    Args:
        capacity_bytes: what the device has for the allocator, the context not counted; None: room without end.
        settings: its options.
        order: which of equally large free blocks is taken.
        total_bytes: what CUDA calls the device's total memory: the message has it, and the memory fraction is of it;
            by default the capacity and the context.
        context_bytes: what else this process takes of the device: the message counts it as in use.
        record: is told every event.
    """

    def __init__(
        self,
        capacity_bytes: int | None = None,
        settings: Settings = Settings(),  # noqa: B008  # frozen
        order: Order = Order.SEGMENT,
        *,
        total_bytes: int | None = None,
        context_bytes: int = 0,
        record: Record | None = None,
    ) -> None:
        self.settings = settings
        self.order = order
        if total_bytes is None and capacity_bytes is not None:
            total_bytes = capacity_bytes + context_bytes
        self.total_bytes = total_bytes
        self.context_bytes = context_bytes
        self.allocated_bytes = self.requested_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_requested_bytes = self.peak_reserved_bytes = 0
        self.retries = self.ooms = 0
        self._capacity = capacity_bytes
        self._taken = 0
        """Of the device: what is reserved, in the driver's steps."""
        self._record = record
        self._by_registration = order is Order.REGISTRATION
        self._allowed = self._allowed_bytes()
        self._live: dict[int, Block] = {}
        self._next_address = FIRST_ADDRESS
        self._made = 0
        grows = settings.expandable_segments
        least = LEAST_BLOCK if grows else MOST_SMALL + 1
        self._small = Pool(is_small=True, page=SMALL_SEGMENT, least_rest=LEAST_BLOCK)
        self._large = Pool(is_small=False, page=settings.large_segment_size_bytes, least_rest=least)
        self._divides = any(divisions > 1 for divisions in settings.roundup_power2_divisions)
        self._collects = settings.garbage_collection_threshold > 0 and self._allowed is not None
        self._is_plain = not (grows or self._collects or settings.max_split_size_bytes is not None)

    @property
    def active_bytes(self) -> int:
        """What is allocated, and what waits for another stream: with one stream there is none of that."""
        return self.allocated_bytes

    @property
    def peak_active_bytes(self) -> int:
        return self.peak_allocated_bytes

    def reset_peaks(self) -> None:
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_requested_bytes = self.requested_bytes
        self.peak_reserved_bytes = self.reserved_bytes

    def size_of(self, address: int) -> int:
        """What a live block takes of ``allocated_bytes``."""
        return self._live[address].size

    def malloc(self, requested_bytes: int) -> int:
        """Allocate a block.

        Returns:
            Its address; 0 for no bytes, which take no block.

        Raises:
            OutOfMemory: There is no room, even with everything given back that is free.
        """
        if requested_bytes <= 0:
            return 0
        size = self.rounded(requested_bytes) if self._divides else (requested_bytes + 511) & -512
        pool = self._small if size <= MOST_SMALL else self._large
        free = pool.free
        if self._is_plain:
            at = bisect_left(free, (size,))  # a tuple's beginning sorts before the whole
            block = free.pop(at)[3] if at < len(free) else self._grow(pool, size)
        else:
            block = self._search(pool, size) or self._grow(pool, size)
        rest = block.size - size
        if rest >= pool.least_rest and (self._is_plain or self._may_split(pool, size)):
            block = self._split(block, size, rest)
        address = block.address
        block.state = ALLOCATED
        block.requested = requested_bytes
        self._live[address] = block
        if self._record is not None:
            self._record("alloc", address, requested_bytes)
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:  # noqa: PLR1730  # max() takes longer than the rest
            self.peak_allocated_bytes = self.allocated_bytes
        self.requested_bytes += requested_bytes
        if self.requested_bytes > self.peak_requested_bytes:  # noqa: PLR1730
            self.peak_requested_bytes = self.requested_bytes
        return address

    def free(self, address: int) -> None:
        """Free a block; of the address 0 there is nothing to free."""
        if not address:
            return
        block = self._live.pop(address)
        size = block.size
        self.allocated_bytes -= size
        self.requested_bytes -= block.requested
        if self._record is not None:
            self._record("free_requested", address, block.requested)
            self._record("free_completed", address, block.requested)
        block.requested = 0
        block.state = FREE
        pool = block.pool
        free = pool.free
        other = block.prev
        if other is not None and other.state == FREE:
            del free[bisect_left(free, (other.size, other.tie, other.address))]
            block.address = address = other.address
            size += other.size
            before = block.prev = other.prev
            if before is not None:
                before.next = block
        other = block.next
        if other is not None and other.state == FREE:
            del free[bisect_left(free, (other.size, other.tie, other.address))]
            size += other.size
            after = block.next = other.next
            if after is not None:
                after.prev = block
        block.size = size
        block.born = pool.searches
        insort(free, (size, block.tie, address, block))

    def empty_cache(self) -> None:
        """Give back every segment, and every whole page, in which nothing lives."""
        for pool in (self._large, self._small):
            if self.settings.expandable_segments:
                expandable.release(self, pool)
                continue
            for *_, block in list(pool.free):
                if block.prev is None and block.next is None:
                    self._release(block)

    def segments(self) -> list[SegmentState]:
        """Everything that is reserved, by address."""
        blocks = [*self._live.values(), *(key[3] for pool in (self._small, self._large) for key in pool.free)]
        blocks.sort(key=lambda block: block.address)
        runs: list[list[Block]] = []
        for block in blocks:
            if block.prev is None or block.prev.state == UNMAPPED:
                runs.append([])
            runs[-1].append(block)
        return [self._as_segment(run) for run in runs]

    def rounded(self, requested_bytes: int) -> int:
        """A block's size for a request: multiples of 512 bytes, or of a part of the power of two below."""
        size = requested_bytes
        if size < LEAST_BLOCK:
            return LEAST_BLOCK
        table = self.settings.roundup_power2_divisions
        divisions = table[min(max(size.bit_length() - 21, 0), len(table) - 1)]
        if divisions > 1 and size > LEAST_BLOCK * divisions:
            step = (1 << (size.bit_length() - 1)) // divisions
            return -(-size // step) * step
        return (size + LEAST_BLOCK - 1) & -LEAST_BLOCK

    def segment_size(self, size: int) -> int:
        """What is asked of the device for a block of this size."""
        if size <= MOST_SMALL:
            return SMALL_SEGMENT
        if size < LEAST_OWN_SEGMENT:
            return self.settings.large_segment_size_bytes
        return in_steps(size)

    # The rest is the allocator's own business, and that of expandable.py.

    def new_tie(self) -> int:
        """The place among equally large free blocks of what is created now."""
        if self.order is Order.ADDRESS:
            return 0
        self._made += 1
        return self._made

    def tie_of_piece(self, block: Block) -> int:
        """The same for a new block that is cut from another."""
        return self.new_tie() if self._by_registration else block.tie

    def new_addresses(self, size: int) -> int:
        address = self._next_address
        self._next_address += in_steps(size)
        return address

    def has_room(self, size: int) -> bool:
        """Whether the device has so much left."""
        return self._capacity is None or self._taken + in_steps(size) <= self._capacity

    def reserve(self, action: str, address: int, size: int) -> None:
        """More is reserved, or less, by the action's name."""
        if action in ("segment_alloc", "segment_map"):
            self.reserved_bytes += size
            self._taken += in_steps(size)
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        else:
            self.reserved_bytes -= size
            self._taken -= in_steps(size)
        if self._record is not None:
            self._record(action, address, size)

    def _allowed_bytes(self) -> int | None:
        fraction = self.settings.per_process_memory_fraction
        return None if self.total_bytes is None or fraction >= 1 else int(fraction * self.total_bytes)

    def _split(self, block: Block, size: int, rest: int) -> Block:
        """The lower end of a block that has left its pool; what is left goes back there."""
        pool, address = block.pool, block.address
        front = Block(pool, address, size, self.tie_of_piece(block), block.segment)
        before = front.prev = block.prev
        if before is not None:
            before.next = front
        front.next = block
        block.prev = front
        block.address = address = address + size
        block.size = rest
        block.born = pool.searches
        insort(pool.free, (rest, block.tie, address, block))
        return front

    def _may_split(self, pool: Pool, size: int) -> bool:
        most = self.settings.max_split_size_bytes
        return pool.is_small or most is None or size < most or self.settings.expandable_segments

    def _search(self, pool: Pool, size: int) -> Block | None:
        """The best fit, out of its pool; it is refused, not searched on, where one may not be so large."""
        if self._collects:
            pool.searches += 1
        at = pool.first_of(size)
        if at == len(pool.free):
            return None
        if self.settings.expandable_segments:
            at = expandable.best_from(pool, at)
        block = pool.free[at][3]
        most = self.settings.max_split_size_bytes
        if most is not None:
            if size < most <= block.size:
                return None
            if size >= most and block.size >= size + self.settings.max_non_split_rounding_bytes:
                return None
        del pool.free[at]
        return block

    def _grow(self, pool: Pool, size: int) -> Block:
        """A block of at least this size from the device, in no pool; gives cached ones back where that helps."""
        if self._collects:
            self._collect_garbage()
        if (block := self._take(pool, size)) is not None:
            return block
        if self._release_available(pool, size) and (block := self._take(pool, size)) is not None:
            return block
        self.empty_cache()
        self.retries += 1
        if (block := self._take(pool, size)) is not None:
            return block
        raise self._out_of_memory(size)

    def _take(self, pool: Pool, size: int) -> Block | None:
        segment_size = self.segment_size(size)
        if self._allowed is not None and self.reserved_bytes + segment_size > self._allowed:
            return None
        if self.settings.expandable_segments:
            return expandable.take(self, pool, size)
        if not self.has_room(segment_size):
            return None
        address = self.new_addresses(segment_size)
        self.reserve("segment_alloc", address, segment_size)
        return Block(pool, address, segment_size, self.new_tie(), address)

    def _release(self, block: Block) -> None:
        block.pool.remove(block)
        self.reserve("segment_free", block.address, block.size)

    def _release_available(self, pool: Pool, size: int) -> bool:
        """Give back blocks that are too large to be split: one that would do, or the largest ones."""
        most = self.settings.max_split_size_bytes
        if most is None:
            return False
        wanted = max(size, most)
        at = pool.first_of(wanted)
        if at < len(pool.free) and not self.settings.expandable_segments:
            self._release(pool.free[at][3])
            return True
        if self.settings.expandable_segments:
            return False
        released = 0
        while released < wanted and pool.free and pool.free[-1][0] >= most:
            block = pool.free[-1][3]
            released += block.size
            self._release(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Give back segments that are free and older than the mean, until enough is given back."""
        assert self._allowed is not None
        threshold = int(self.settings.garbage_collection_threshold * self._allowed)
        wanted = self.reserved_bytes - threshold
        pool = self._large
        whole = [block for *_, block in pool.free if block.prev is None and block.next is None]
        age = sum(pool.searches - block.born for block in whole)
        while wanted > 0 and whole:
            limit = age / len(whole)
            old = [block for block in whole if pool.searches - block.born >= limit]
            whole = [block for block in whole if pool.searches - block.born < limit]
            for block in old:
                wanted -= block.size
                age -= pool.searches - block.born
                self._release(block)

    def _out_of_memory(self, size: int) -> OutOfMemory:
        free = 0 if self._capacity is None else self._capacity - self._taken
        if self._record is not None:
            self._record("oom", free, size)
        self.ooms += 1
        tried = self.segment_size(size)
        return OutOfMemory(
            tried,
            out_of_memory.message(
                tried_bytes=tried,
                total_bytes=self.total_bytes or 0,
                free_bytes=free,
                used_bytes=self.context_bytes + self._taken,
                allowed_bytes=self._allowed,
                allocated_bytes=self.allocated_bytes,
                reserved_bytes=self.reserved_bytes,
            ),
        )

    def _as_segment(self, run: list[Block]) -> SegmentState:
        blocks = tuple(
            BlockState(
                address=block.address,
                size=block.size,
                requested=block.requested,
                state="active_allocated" if block.state == ALLOCATED else "inactive",
            )
            for block in run
        )
        return SegmentState(
            address=run[0].address,
            total_size=sum(block.size for block in run),
            is_small=run[0].pool.is_small,
            is_expandable=self.settings.expandable_segments,
            blocks=blocks,
        )
