"""A device of which several streams' allocators share the memory, and which can begin in the middle of a program.

The simulated allocator knows one stream. What is free on one is not given to another, as in PyTorch; the same holds of
the pools of captured graphs. All that they have in common is the device's memory, and that they empty their caches
together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace

from nooom.profiler.simulator.allocator import FIRST_ADDRESS, CachingAllocator, OutOfMemory, in_steps
from nooom.profiler.simulator.blocks import ALLOCATED, UNMAPPED, Block, Pool
from nooom.profiler.simulator.expandable import WITHOUT_END
from nooom.profiler.simulator.out_of_memory import message
from nooom.profiler.simulator.settings import Order, Settings
from nooom.profiler.snapshots.beginning import Beginning, Live, Piece

Key = tuple[int, tuple[int, int]]
"""A stream, and a pool of its own or zeros."""
DEFAULT = (0, 0)


class Device:
    """Memory, and an allocator for each stream and pool.

    Args:
        settings: every allocator's.
        order: which of equally large free blocks they take.
        capacity_bytes: what there is for all of them; None: room without end.
        total_bytes: what CUDA calls the device's memory; the memory fraction is of it.
        context_bytes: what else the process takes.
    """

    def __init__(
        self,
        settings: Settings,
        order: Order,
        capacity_bytes: int | None = None,
        total_bytes: int | None = None,
        context_bytes: int = 0,
    ) -> None:
        self.settings = settings
        self.order = order
        self.capacity_bytes = capacity_bytes
        self.total_bytes = total_bytes
        self.context_bytes = context_bytes
        self.reserved_bytes = 0
        self.taken_bytes = 0
        """Of the device's memory, which the driver gives in steps."""
        self._allocators: dict[Key, Shared] = {}
        self._next_address = FIRST_ADDRESS

    @property
    def allocated_bytes(self) -> int:
        return sum(one.allocated_bytes for one in self._allocators.values())

    @property
    def retries(self) -> int:
        return sum(one.retries for one in self._allocators.values())

    def allocator(self, key: Key) -> Shared:
        """The one of a stream and pool."""
        found = self._allocators.get(key)
        if found is None:
            found = self._allocators[key] = Shared(self)
        return found

    def empty_cache(self, pools: Iterable[tuple[int, int]] = (DEFAULT,)) -> None:
        """Every stream gives back what is free; graphs' pools only where they are named."""
        wanted = set(pools)
        for (_, pool), one in list(self._allocators.items()):
            if pool in wanted:
                one.release()

    def reserve(self, size: int, *, more: bool) -> None:
        self.reserved_bytes += size if more else -size
        self.taken_bytes += in_steps(size) if more else -in_steps(size)

    def new_addresses(self, size: int) -> int:
        """Behind everything that any stream has."""
        address = self._next_address
        self._next_address += in_steps(size)
        return address

    def restore(self, beginning: Beginning) -> dict[int, tuple[Shared, int]]:
        """Begin with what was there; gives each live block's allocator and address, by its address in the recording.

        All is moved by the same number of bytes, as there is no address 0 here.  What comes lies behind all of it:
        addresses rise by the order in which segments are made.
        """
        owners: dict[int, tuple[Shared, int]] = {}
        pieces = [replace(piece, address=piece.address + FIRST_ADDRESS) for piece in beginning.pieces]
        live = sorted((address + FIRST_ADDRESS, one) for address, one in beginning.live.items())
        addresses = [address for address, _ in live]
        before: Block | None = None
        for index, piece in enumerate(pieces):
            allocator = self.allocator((piece.stream, piece.pool))
            inside = live[bisect_left(addresses, piece.address) : bisect_left(addresses, piece.end)]
            last = allocator.restore(piece, inside, before)
            owners.update((address - FIRST_ADDRESS, (allocator, address)) for address, _ in inside)
            following = pieces[index + 1] if index + 1 < len(pieces) else None
            before = allocator.grow_from(piece, last, following)
            self._next_address = in_steps(piece.end)
        self._next_address += WITHOUT_END if any(piece.is_expandable for piece in pieces) else 0
        return owners


class Shared(CachingAllocator):
    """One stream's allocator on a device that it shares."""

    def __init__(self, device: Device) -> None:
        super().__init__(
            device.capacity_bytes,
            device.settings,
            device.order,
            total_bytes=device.total_bytes,
            context_bytes=device.context_bytes,
        )
        self._device = device

    def has_room(self, size: int) -> bool:
        most = self._device.capacity_bytes
        return most is None or self._device.taken_bytes + in_steps(size) <= most

    def new_addresses(self, size: int) -> int:
        return self._device.new_addresses(size)

    def reserve(self, action: str, address: int, size: int) -> None:
        super().reserve(action, address, size)
        self._device.reserve(size, more=action in ("segment_alloc", "segment_map"))

    def empty_cache(self) -> None:
        """When memory runs out, every stream's."""
        self._device.empty_cache()

    def release(self) -> None:
        """This one's own."""
        super().empty_cache()

    def _out_of_memory(self, size: int) -> OutOfMemory:
        """The message counts what all streams have."""
        error, device = super()._out_of_memory(size), self._device
        error.message = message(
            tried_bytes=error.tried_bytes,
            total_bytes=self.total_bytes or 0,
            free_bytes=(device.capacity_bytes or 0) - device.taken_bytes,
            used_bytes=device.context_bytes + device.taken_bytes,
            allowed_bytes=self._allowed,
            allocated_bytes=device.allocated_bytes,
            reserved_bytes=device.reserved_bytes,
        )
        return error

    def restore(self, piece: Piece, live: Iterable[tuple[int, Live]], before: Block | None) -> Block:
        """Make a piece of reserved memory as it was.

        Args:
            piece: to be made.
            live: what is in use of it, by address.
            before: the addresses without memory before it, where it is the next part of an expandable range.

        Returns:
            Its last block.
        """
        pool = self._pool_of(piece)
        at, last = piece.address, before
        for address, one in [*live, (piece.end, Live(0, 0))]:
            if address > at:
                last = self._put(Block(pool, at, address - at, 0, piece.address), last)
                pool.add(last)
            if one.size:
                last = self._put(Block(pool, address, one.size, 0, piece.address), last)
                last.state, last.requested = ALLOCATED, one.requested
                self._live[address] = last
                self.allocated_bytes += one.size
                self.requested_bytes += one.requested
            at = address + one.size
        self.reserve("segment_map" if piece.is_expandable else "segment_alloc", piece.address, piece.size)
        self.reset_peaks()
        assert last is not None
        return last

    def grow_from(self, piece: Piece, last: Block, following: Piece | None) -> Block | None:
        """Of an expandable range, the addresses without memory between a piece and what follows it.

        Returns:
            They, where the following piece is one of the same range; otherwise None.
        """
        if not piece.is_expandable:
            return None
        size = WITHOUT_END if following is None else following.address - piece.end
        goes_on = following is not None and _range(following) == _range(piece)
        pool = self._pool_of(piece)
        if not goes_on:
            size -= (piece.end + size - last.segment) % pool.page
        if size <= 0:
            return last if goes_on else None
        block = self._put(Block(pool, piece.end, size, 0, piece.end), last)
        block.state = UNMAPPED
        pool.add_unmapped(block)
        return block if goes_on else None

    def _pool_of(self, piece: Piece) -> Pool:
        return self._small if piece.is_small else self._large

    def _put(self, block: Block, before: Block | None) -> Block:
        """Behind another of the same segment, or as the first of its own."""
        if before is None:
            block.tie = self.new_tie()
        else:
            block.tie, block.segment = self.tie_of_piece(before), before.segment
            before.next, block.prev = block, before
        return block


def _range(piece: Piece) -> tuple[int, tuple[int, int], bool, bool]:
    return piece.stream, piece.pool, piece.is_small, piece.is_expandable
