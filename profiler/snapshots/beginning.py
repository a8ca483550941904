"""The memory's map before the first event: what the events, undone from the last to the first, leave of its end.

PyTorch keeps the last so many events, and a program may begin to record at any time: most recordings begin midway.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from nooom.formulas.errors import UsageError
from nooom.profiler.simulator.allocator import MOST_SMALL, SMALL_SEGMENT
from nooom.profiler.snapshots.recording import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    GROWS,
    SHRINKS,
    Event,
    Recording,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Reserved memory: a segment, or mapped pages."""

    address: int
    size: int
    stream: int
    is_small: bool
    is_expandable: bool
    pool: tuple[int, int]

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(slots=True)
class Live:
    """A block that is in use."""

    size: int
    requested: int
    is_pending: bool = False
    """Whether it has been freed already, and only waits for another stream."""


@dataclass(frozen=True)
class Beginning:
    """What there was before the first event."""

    pieces: tuple[Piece, ...]
    """By address."""
    live: dict[int, Live] = field(default_factory=dict)
    """By address."""

    @property
    def reserved_bytes(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def is_empty(self) -> bool:
        return not self.pieces


def beginning_of(recording: Recording, rounded: Callable[[int], int]) -> Beginning:
    """Undo the events.

    Args:
        recording: one device's.
        rounded: a block's size for a request, under the recorded settings.

    Raises:
        UsageError: They don't lead to the map: it was taken at another time, or the file is damaged.
    """
    undone = _Undone(recording, rounded)
    count = len(recording.events)
    for event in reversed(recording.events):
        count -= 1
        try:
            undone.undo(event)
        except (KeyError, IndexError):
            raise UsageError(
                f"{recording.path}: event {count:,} ({event.action}) does not lead to the map of memory at the end; "
                "take the snapshot while events are still recorded"
            ) from None
    return Beginning(tuple(undone.pieces()), undone.live)


class _Undone:
    """The map, as it was before the events that have been undone."""

    def __init__(self, recording: Recording, rounded: Callable[[int], int]) -> None:
        self.live: dict[int, Live] = {}
        self._rounded = rounded
        self._pieces: dict[int, Piece] = {}
        self._addresses: list[int] = []
        self._starts: list[int] = []
        for one in recording.segments:
            self._add(Piece(one.address, one.total_size, one.stream, one.is_small, one.is_expandable, one.pool))
            for block in one.blocks:
                if block.state != "inactive":
                    pending = block.state != "active_allocated"
                    self.live[block.address] = Live(block.size, block.requested, pending)
                    self._addresses.append(block.address)

    def pieces(self) -> list[Piece]:
        return [self._pieces[start] for start in self._starts]

    def undo(self, event: Event) -> None:
        action, address = event.action, event.address
        if action == FREE_COMPLETED:
            self._revive(event)
        elif action == FREE_REQUESTED:
            self.live[address].is_pending = False
        elif action == ALLOC:
            if self.live.pop(address).is_pending:
                raise KeyError(address)
            del self._addresses[bisect_left(self._addresses, address)]
        elif action in GROWS:
            self._cut(address, event.size)
        elif action in SHRINKS:
            self._give_back(event)

    def _revive(self, event: Event) -> None:
        """A block that was freed: what lay before its neighbour was its own where no free block is so small."""
        address = event.address
        if address in self.live:
            raise KeyError(address)
        piece = self._at(address)
        size = self._rounded(event.size)
        at = bisect_left(self._addresses, address)
        if at and (before := self._addresses[at - 1]) + self.live[before].size > address:
            raise KeyError(address)
        room = min(piece.end, self._addresses[at] if at < len(self._addresses) else piece.end) - address
        if room < size:
            if not piece.is_expandable:
                raise KeyError(address)
            room = size  # it lies on pages that stand apart in the map
        if not piece.is_small and not piece.is_expandable and room - size <= MOST_SMALL:
            size = room
        self.live[address] = Live(size, event.size, is_pending=True)
        insort(self._addresses, address)

    def _at(self, address: int) -> Piece:
        """Of what is reserved, that in which the address lies."""
        piece = self._pieces[self._starts[bisect_right(self._starts, address) - 1]]
        if not piece.address <= address < piece.end:
            raise KeyError(address)
        return piece

    def _cut(self, address: int, size: int) -> None:
        """Undo that it was reserved: a whole segment, or some of the pages that lie together."""
        piece = self._at(address)
        if address + size > piece.end or not size:
            raise KeyError(address)
        self._remove(piece)
        if not piece.is_expandable and piece.size != size:
            raise KeyError(address)
        for begin, end in ((piece.address, address), (address + size, piece.end)):
            if end > begin:
                self._add(_part(piece, begin, end - begin))

    def _give_back(self, event: Event) -> None:
        """Undo that it was given back: a segment, or pages, which join those that they touch."""
        grows = event.action == "segment_unmap"
        begin, end = event.address, event.address + event.size
        near = [self._touching(begin), self._touching(end)] if grows else []
        is_small = event.size == SMALL_SEGMENT if not grows else event.size < 10 * SMALL_SEGMENT
        piece = Piece(begin, event.size, event.stream, is_small, grows, (0, 0))
        for other in near:
            if other is not None and other.is_expandable and other.stream == event.stream:
                self._remove(other)
                start = min(piece.address, other.address)
                piece = _part(other, start, max(piece.end, other.end) - start)
        at = bisect_right(self._starts, piece.address)
        if not event.size or (at < len(self._starts) and self._starts[at] < piece.end):
            raise KeyError(begin)
        self._add(piece)

    def _touching(self, address: int) -> Piece | None:
        """What ends, or begins, at an address."""
        at = bisect_right(self._starts, address) - 1
        if at >= 0 and self._starts[at] == address:
            return self._pieces[address]
        found = self._pieces[self._starts[at]] if at >= 0 else None
        return found if found is not None and found.end == address else None

    def _add(self, piece: Piece) -> None:
        self._pieces[piece.address] = piece
        insort(self._starts, piece.address)

    def _remove(self, piece: Piece) -> None:
        del self._pieces[piece.address]
        del self._starts[bisect_left(self._starts, piece.address)]


def _part(piece: Piece, address: int, size: int) -> Piece:
    return Piece(address, size, piece.stream, piece.is_small, piece.is_expandable, piece.pool)
