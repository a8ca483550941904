"""A recording's requests once more, through the simulated allocator: as it was set, and as it might have been.

The program's part is what it asked for and gave back, in order, and when it emptied the cache.  All else is the
allocator's decision, and decided anew: where a block lies, when a segment is made, what goes when memory runs out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from nooom.formulas.gpus import GPU
from nooom.profiler.simulator.allocator import CachingAllocator, OutOfMemory
from nooom.profiler.simulator.settings import Order, Settings
from nooom.profiler.snapshots.beginning import Beginning, Live, beginning_of
from nooom.profiler.snapshots.device import DEFAULT, Device, Key, Shared
from nooom.profiler.snapshots.recording import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    GROWS,
    OOM,
    SHRINKS,
    Event,
    Recording,
)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What there is for the allocator."""

    capacity_bytes: int | None = None
    total_bytes: int | None = None
    context_bytes: int = 0
    source: str | None = None
    """Where that is from: a GPU's name, or the recording; None: room without end."""

    @classmethod
    def of(cls, gpu: GPU) -> Memory:
        return cls(
            capacity_bytes=gpu.usable_bytes,
            total_bytes=gpu.total_bytes,
            context_bytes=gpu.context_bytes or 0,
            source=gpu.name,
        )


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What the recording itself says was reserved."""

    peak_bytes: int
    final_bytes: int
    begins_with_bytes: int
    ooms: int
    capacity_bytes: int | None
    """What the device had for the allocator, where memory ran out; otherwise nothing tells of it."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A request that found no room."""

    event: int | None
    """Its place among the recording's events; None where what lived before the first finds no room."""
    tried_bytes: int
    message: str
    as_recorded: bool
    """Whether it ran out of memory in the recording too."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What the allocator did, under some settings."""

    conf: str
    order: Order
    memory: Memory
    packed: bool
    """Whether what lived before the first event was allocated anew."""
    peak_reserved_bytes: int
    final_reserved_bytes: int
    peak_allocated_bytes: int
    allocated_at_peak_bytes: int
    """The most that was allocated while most was reserved."""
    retries: int
    failed: Failed | None
    """Where memory ran out: there the replay ends."""
    met: int
    """Requests that ran out of memory in the recording, and here did not."""
    different: int
    """Allocations after which something else was reserved than in the recording."""
    first_different: int | None
    largest_difference_bytes: int

    @property
    def fragmentation_bytes(self) -> int:
        """What was reserved and not allocated, with as much allocated as ever while most was reserved."""
        return self.peak_reserved_bytes - self.allocated_at_peak_bytes


class Replay:
    """Replays one recording, as often as is asked.

    Args:
        recording: one device's.

    Raises:
        UsageError: Its events don't lead to its map of memory.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.beginning: Beginning = beginning_of(recording, CachingAllocator(settings=recording.settings).rounded)
        self.recorded, self._reserved = _recorded(recording, self.beginning.reserved_bytes)
        self.memory = Memory(
            capacity_bytes=self.recorded.capacity_bytes,
            source=None if self.recorded.capacity_bytes is None else "recording",
        )
        """What there was, as far as the recording tells."""
        self._pools = _Pools(recording)

    def as_recorded(self) -> tuple[Replayed, tuple[Order, ...]]:
        """Under the recorded settings, and the orders of free blocks under which the same is reserved.

        No snapshot says which release of torch made it. Where the order matters, the one that follows the recording
        most closely is taken.
        """
        found = [self.same(order, self.memory) for order in Order]
        best = min(reversed(found), key=lambda one: one.different)
        alike = [one.order for one in found if _figures(one) == _figures(best)]
        return best, tuple(alike)

    def same(self, order: Order, memory: Memory, *, packed: bool = False) -> Replayed:
        """Under the recorded settings, on other memory; ``packed`` as :meth:`under` has it."""
        return self._run(self.recording.conf, self.recording.settings, order, memory, packed=packed)

    def under(self, conf: str, order: Order, memory: Memory) -> Replayed:
        """Under other settings.

        What lived before the first event is allocated first, block after block, packed: where other settings would
        have left it, and what would have been cached beside it, nobody can tell.

        Raises:
            UsageError: The settings are none that torch has.
        """
        return self._run(conf, Settings.parse(conf), order, memory, packed=True)

    def _run(self, conf: str, settings: Settings, order: Order, memory: Memory, *, packed: bool) -> Replayed:
        device = Device(settings, order, memory.capacity_bytes, memory.total_bytes, memory.context_bytes)
        run = _Run(device, self._pools)
        try:
            run.begin(self.beginning, packed=packed)
        except OutOfMemory as error:
            run.fail(None, error, as_recorded=False)
        else:
            run.follow(self.recording.events, self._reserved)
        return run.result(conf, order, memory, packed=packed and not self.beginning.is_empty)


def _figures(one: Replayed) -> tuple[int, int, int]:
    return one.different, one.peak_reserved_bytes, one.final_reserved_bytes


class _Pools:
    """Which stream and pool an address belongs to: of graphs' pools only the map tells."""

    def __init__(self, recording: Recording) -> None:
        own = [one for one in recording.segments if one.pool != DEFAULT]
        self._starts = [one.address for one in own]
        self._own = own

    def key(self, event: Event) -> Key:
        if self._own:
            at = bisect_right(self._starts, event.address) - 1
            if at >= 0 and event.address < self._own[at].address + self._own[at].total_size:
                return event.stream, self._own[at].pool
        return event.stream, DEFAULT


class _Run:
    """One replay."""

    def __init__(self, device: Device, pools: _Pools) -> None:
        self._device = device
        self._pools = pools
        self._where: dict[int, tuple[Shared, int]] = {}
        self._pending: dict[int, int] = {}
        self._allocated = self._peak_allocated = 0
        self._peak_reserved = self._allocated_at_peak = 0
        self._failed: Failed | None = None
        self._met = self._different = self._largest = 0
        self._first: int | None = None

    def begin(self, beginning: Beginning, *, packed: bool) -> None:
        if packed:
            for key, address, requested in _in_order(beginning):
                allocator = self._device.allocator(key)
                self._begin_with(address, beginning.live[address], allocator, allocator.malloc(requested))
        else:
            for address, (allocator, ours) in self._device.restore(beginning).items():
                self._begin_with(address, beginning.live[address], allocator, ours)

    def _begin_with(self, address: int, one: Live, allocator: Shared, ours: int) -> None:
        if not ours:
            return
        self._where[address] = (allocator, ours)
        size = allocator.size_of(ours)
        if one.is_pending:
            self._pending[address] = size
        else:
            self._allocated += size
        self._note_peaks()

    def follow(self, events: Sequence[Event], reserved: Sequence[int]) -> None:
        is_emptying = False
        for index, event in enumerate(events):
            action = event.action
            if action == ALLOC:
                if not self._alloc(index, event):
                    return
                if (difference := abs(self._device.reserved_bytes - reserved[index])) != 0:
                    self._different += 1
                    self._largest = max(self._largest, difference)
                    self._first = index if self._first is None else self._first
            elif action == FREE_REQUESTED:
                self._free_requested(event.address)
            elif action == FREE_COMPLETED:
                self._free_completed(event.address)
            elif action == OOM and not self._retry(index, event):
                return
            # What is given back in one go was one decision: the program's, or the allocator's when memory ran out.
            if action in SHRINKS:
                if not is_emptying:
                    self._device.empty_cache({DEFAULT, self._pools.key(event)[1]})
                is_emptying = True
            else:
                is_emptying = False

    def _alloc(self, index: int, event: Event) -> bool:
        allocator = self._device.allocator(self._pools.key(event))
        try:
            ours = allocator.malloc(event.size)
        except OutOfMemory as error:
            self.fail(index, error, as_recorded=False)
            return False
        if ours:
            self._where[event.address] = (allocator, ours)
            self._allocated += allocator.size_of(ours)
            self._note_peaks()
        return True

    def _retry(self, index: int, event: Event) -> bool:
        """Ask for what there was no room for in the recording; what the program did then came after it."""
        allocator = self._device.allocator(self._pools.key(Event(OOM, 0, event.size, event.stream)))
        try:
            ours = allocator.malloc(event.size)
        except OutOfMemory as error:
            self.fail(index, error, as_recorded=True)
            return False
        self._met += 1
        if not ours:
            return True
        self._allocated += allocator.size_of(ours)
        self._note_peaks()
        self._allocated -= allocator.size_of(ours)
        allocator.free(ours)
        return True

    def _free_requested(self, address: int) -> None:
        if (found := self._where.get(address)) is not None:
            allocator, ours = found
            self._pending[address] = size = allocator.size_of(ours)
            self._allocated -= size

    def _free_completed(self, address: int) -> None:
        if (found := self._where.pop(address, None)) is not None:
            allocator, ours = found
            if self._pending.pop(address, None) is None:
                self._allocated -= allocator.size_of(ours)
            allocator.free(ours)

    def _note_peaks(self) -> None:
        self._peak_allocated = max(self._peak_allocated, self._allocated)
        now = (self._device.reserved_bytes, self._allocated)
        self._peak_reserved, self._allocated_at_peak = max(now, (self._peak_reserved, self._allocated_at_peak))

    def fail(self, index: int | None, error: OutOfMemory, *, as_recorded: bool) -> None:
        self._note_peaks()
        self._failed = Failed(
            event=index, tried_bytes=error.tried_bytes, message=error.message, as_recorded=as_recorded
        )

    def result(self, conf: str, order: Order, memory: Memory, *, packed: bool) -> Replayed:
        return Replayed(
            conf=conf,
            order=order,
            memory=memory,
            packed=packed,
            peak_reserved_bytes=self._peak_reserved,
            final_reserved_bytes=self._device.reserved_bytes,
            peak_allocated_bytes=self._peak_allocated,
            allocated_at_peak_bytes=self._allocated_at_peak,
            retries=self._device.retries,
            failed=self._failed,
            met=self._met,
            different=self._different,
            first_different=self._first,
            largest_difference_bytes=self._largest,
        )


def _in_order(beginning: Beginning) -> list[tuple[Key, int, int]]:
    """What lived at the beginning, by address: stream and pool, address, requested bytes."""
    starts = [piece.address for piece in beginning.pieces]
    found = []
    for address, one in sorted(beginning.live.items()):
        piece = beginning.pieces[bisect_right(starts, address) - 1]
        found.append(((piece.stream, piece.pool), address, one.requested))
    return found


def _recorded(recording: Recording, begins_with: int) -> tuple[Recorded, list[int]]:
    """The recording's own figures, and what was reserved after each event."""
    reserved = peak = begins_with
    after, ooms, capacity = [], 0, None
    for event in recording.events:
        if event.action in GROWS:
            reserved += event.size
            peak = max(peak, reserved)
        elif event.action in SHRINKS:
            reserved -= event.size
        elif event.action == OOM:
            ooms += 1
            capacity = max(capacity or 0, reserved + event.address)
        after.append(reserved)
    if capacity is not None:
        capacity = max(capacity, peak)
    return (
        Recorded(
            peak_bytes=peak,
            final_bytes=reserved,
            begins_with_bytes=begins_with,
            ooms=ooms,
            capacity_bytes=capacity,
        ),
        after,
    )
