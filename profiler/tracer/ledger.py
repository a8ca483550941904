"""The allocator's events and the tracer's journal, joined: what was alive at the peak, and what each block is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nooom.profiler.tracer.journal import Operation, Output, Owner


@dataclass(frozen=True, slots=True)
class Change:
    """A block was allocated, or freed."""

    address: int
    size_bytes: int
    """What it adds to the allocator's count; negative where it was freed."""
    requested_bytes: int
    operation: int | None
    """Number of the operation it happened in; None between operations."""


@dataclass(eq=False, slots=True)
class Block:
    """A live block, and what is known of it."""

    address: int
    size_bytes: int
    requested_bytes: int
    born: int | None
    operation: Operation | None = None
    output: Output | None = None
    owner: Owner | None = None
    copy_of: Block | None = None
    """The block of which it is a copy in another type."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """What one call of an operation took for itself."""

    operation: Operation
    sizes: tuple[int, ...]
    """Requested bytes of its blocks, in the order in which they were asked for; they need not have lived together."""

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes)


@dataclass(eq=False)
class Ledger:
    """Follows one device.  Changes and entries may come in pieces; each piece is whole operations."""

    live: dict[int, Block] = field(default_factory=dict)
    allocated_bytes: int = 0
    peak_bytes: int = 0
    peak_operation: Operation | None = None
    """In which the peak was made; None where what was alive before it is the peak, or between operations."""
    at_peak: tuple[Block, ...] = ()
    """The blocks that were alive at the peak; what is learnt of them later, they say too."""
    scratch: dict[tuple[str, bool], Scratch] = field(default_factory=dict)
    """What operations took and returned no tensor of: of each, forward and backward, the call that took most."""

    def begin_phase(self) -> None:
        """The peak is what is alive now, until there is more."""
        self.peak_bytes, self.at_peak = self.allocated_bytes, tuple(self.live.values())
        self.peak_operation = None

    def follow(self, changes: Sequence[Change], entries: Iterable[Operation | Owner]) -> None:
        """Take the next piece."""
        entries = list(entries)
        operations = {entry.number: entry for entry in entries if isinstance(entry, Operation)}
        at = _Addresses(self.live)
        highest, latest = self._highest(changes), 0
        for index, change in enumerate(changes):
            latest = max(latest, change.operation or 0)
            self._change(change, operations, at, latest)
            if index == highest:
                self.peak_bytes, self.at_peak = self.allocated_bytes, tuple(self.live.values())
                self.peak_operation = operations.get(change.operation or 0)
        for entry in entries:
            _learn(entry, at)
        self._note_scratch(changes, operations)

    def _note_scratch(self, changes: Iterable[Change], operations: dict[int, Operation]) -> None:
        taken: dict[int, list[int]] = defaultdict(list)
        for change in changes:
            operation = operations.get(change.operation or 0)
            if operation is None or change.size_bytes < 0:
                continue
            if all(output.address != change.address for output in operation.outputs):
                taken[operation.number].append(change.requested_bytes)
        for number, sizes in taken.items():
            found = Scratch(operations[number], tuple(sizes))
            key = (found.operation.name, found.operation.backward)
            if key not in self.scratch or self.scratch[key].total_bytes < found.total_bytes:
                self.scratch[key] = found

    def _highest(self, changes: Sequence[Change]) -> int | None:
        """Which change makes a new peak, the last of them; None if none does."""
        total, best, found = self.allocated_bytes, self.peak_bytes, None
        for index, change in enumerate(changes):
            total += change.size_bytes
            if total > best:
                best, found = total, index
        return found

    def _change(self, change: Change, operations: dict[int, Operation], at: _Addresses, latest: int) -> None:
        self.allocated_bytes += change.size_bytes
        if change.size_bytes < 0:
            self.live.pop(change.address, None)
            return
        block = Block(change.address, change.size_bytes, change.requested_bytes, change.operation)
        self.live[change.address] = block
        at.born(block, latest)
        block.operation = operations.get(change.operation or 0)
        if block.operation is not None:
            for output in block.operation.outputs:
                if output.address == change.address:
                    _is_output(block, output, block.operation, at)


class _Addresses:
    """Which block lay at an address when: blocks of before, and those that are born in one piece."""

    def __init__(self, live: Mapping[int, Block]) -> None:
        self._before = dict(live)
        self._born: dict[int, list[tuple[int, Block]]] = defaultdict(list)

    def born(self, block: Block, number: int) -> None:
        """In the operation of that number, or after it."""
        self._born[block.address].append((number, block))

    def block(self, address: int, number: int) -> Block | None:
        """The one that lay there when the entry of that number was written, which was about something alive."""
        for born, block in reversed(self._born.get(address, ())):
            if born < number:
                return block
        return self._before.get(address)


def _learn(entry: Operation | Owner, at: _Addresses) -> None:
    """What an entry says of blocks that were there before it."""
    if isinstance(entry, Owner):
        block = at.block(entry.address, entry.number)
        if block is not None:
            block.owner = entry
        return
    for output in entry.outputs:
        block = at.block(output.address, entry.number)
        # A block of another operation is one that this operation returned a part of, or wrote to.
        if block is not None and block.born is None and block.output is None:
            _is_output(block, output, entry, at)


def _is_output(block: Block, output: Output, operation: Operation, at: _Addresses) -> None:
    block.output, block.operation = output, operation
    if operation.casts is not None:
        block.copy_of = at.block(operation.casts, operation.number)
