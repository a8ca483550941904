"""How large a block really is: the caching allocator's splitting and merging, followed along its own events.

The allocator's trace says what was asked for; what a block takes is more by its rounding and by what was not worth
splitting off.  Addresses are the recording's own, so nothing is guessed: each request is met by the free block that
starts where the trace says it was met.  The rules are ``CUDACachingAllocator.cpp``'s (torch 2.6 to 2.14).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_SMALL_SEGMENT_BYTES = 2 << 20
"""Segments of the pool of small blocks have this size, and no other segment has."""
_SMALLEST_BYTES = 512
_UNSPLIT_BYTES = 1 << 20
"""A rest of so much or less stays in a large block."""


@dataclass(eq=False, slots=True)
class _Free:
    size_bytes: int
    segment: int | None
    """Address of the segment; None for mapped pages, which merge wherever they touch."""
    small: bool


class Blocks:
    """Follows one device's blocks.

    Args:
        settings: the snapshot's ``allocator_settings``.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        settings = settings or {}
        self._divisions = {int(k): int(v) for k, v in (settings.get("roundup_power2_divisions") or {}).items()}
        limit = int(settings.get("max_split_size", -1))
        self._max_split_bytes = limit if limit > 0 else None
        self._free: dict[int, _Free] = {}
        self._ends: dict[int, int] = {}
        self._used: dict[int, _Free] = {}

    def begin(self, segments: Iterable[Mapping[str, Any]]) -> Iterable[tuple[int, int, int]]:
        """Start from a snapshot's segments; gives address, size and requested bytes of each block that is in use."""
        for segment in segments:
            expandable = bool(segment.get("is_expandable"))
            key = None if expandable else segment["address"]
            small = segment["segment_type"] == "small"
            for block in segment["blocks"]:
                found = _Free(block["size"], key, small)
                if block["state"] == "inactive":
                    self._add(block["address"], found)
                    continue
                self._used[block["address"]] = found
                if block["state"] == "active_allocated":
                    yield block["address"], block["size"], block["requested_size"]

    def follow(self, action: str, address: int, size_bytes: int) -> int:
        """The trace's next event; returns what it adds to ``allocated_bytes``, negative for a free.

        Raises:
            KeyError: no block starts where one must: the events do not belong together.
        """
        if action == "alloc":
            return self._alloc(address, size_bytes)
        if action == "free_requested":
            return -self._used[address].size_bytes
        if action == "free_completed":
            self._add_merged(address, self._used.pop(address))
        elif action == "segment_alloc":
            self._add(address, _Free(size_bytes, address, size_bytes == _SMALL_SEGMENT_BYTES))
        elif action == "segment_free":
            self._take(address)
        elif action == "segment_map":
            self._add_merged(address, _Free(size_bytes, None, small=False))
        elif action == "segment_unmap":
            self._unmap(address, size_bytes)
        return 0

    def _alloc(self, address: int, requested_bytes: int) -> int:
        """A request is met at an address; returns the size of its block."""
        block = self._take(address)
        size = self.rounded(requested_bytes)
        rest = block.size_bytes - size
        if self._splits(block, size, rest):
            self._add(address + size, _Free(rest, block.segment, block.small))
            block.size_bytes = size
        self._used[address] = block
        return block.size_bytes

    def _unmap(self, address: int, size_bytes: int) -> None:
        """Whole pages inside a free block go; what lies before and after them stays."""
        start = next(start for start, block in self._free.items() if start <= address < start + block.size_bytes)
        block = self._take(start)
        before, after = address - start, start + block.size_bytes - address - size_bytes
        if before:
            self._add(start, _Free(before, None, small=False))
        if after:
            self._add(address + size_bytes, _Free(after, None, small=False))

    def rounded(self, requested_bytes: int) -> int:
        """A request as the allocator rounds it: to 512 bytes, or to parts of a power of two where it is told to."""
        if requested_bytes < _SMALLEST_BYTES:
            return _SMALLEST_BYTES
        divisions = self._divisions_for(requested_bytes)
        if divisions > 1 and requested_bytes > _SMALLEST_BYTES * divisions:
            return _rounded_to_divisions(requested_bytes, divisions)
        return -(-requested_bytes // _SMALLEST_BYTES) * _SMALLEST_BYTES

    def _divisions_for(self, size_bytes: int) -> int:
        if not self._divisions:
            return 0
        mebibytes = size_bytes >> 20
        steps = sorted(self._divisions)
        return self._divisions[max((step for step in steps if step <= mebibytes), default=steps[0])]

    def _splits(self, block: _Free, size: int, rest: int) -> bool:
        if block.small or block.segment is None:
            return rest >= _SMALLEST_BYTES
        return (self._max_split_bytes is None or size < self._max_split_bytes) and rest > _UNSPLIT_BYTES

    def _add_merged(self, address: int, block: _Free) -> None:
        before = self._ends.get(address)
        if before is not None and self._free[before].segment == block.segment:
            block.size_bytes += self._take(before).size_bytes
            address = before
        after = self._free.get(address + block.size_bytes)
        if after is not None and after.segment == block.segment:
            block.size_bytes += self._take(address + block.size_bytes).size_bytes
        self._add(address, block)

    def _add(self, address: int, block: _Free) -> None:
        self._free[address] = block
        self._ends[address + block.size_bytes] = address

    def _take(self, address: int) -> _Free:
        block = self._free.pop(address)
        del self._ends[address + block.size_bytes]
        return block


def _rounded_to_divisions(size_bytes: int, divisions: int) -> int:
    """Up to the next of so many equal steps between two powers of two."""
    floor = 1 << (size_bytes.bit_length() - 1)
    if floor == size_bytes:
        return size_bytes
    step = floor >> (divisions.bit_length() - 1)
    return -(-size_bytes // step) * step if step else floor << 1
