"""A dry run's events with what each block is, for whoever wants to look at them: a memory snapshot of what never ran.

It stands in the ledger's place, and remembers every block; without it nothing does, and a run is as fast as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nooom.profiler.simulator.allocator import CachingAllocator
from nooom.profiler.snapshots.writing import Told, frame, write_snapshot
from nooom.profiler.tracer.attribution import Vocabulary, categorize
from nooom.profiler.tracer.journal import Operation
from nooom.profiler.tracer.ledger import Block, Change, Ledger

_NOBODY = "between operations"


class History(Ledger):
    """The ledger of a run that is remembered.

    An allocator that is given :meth:`record` tells its events; each block that the ledger learns of is the next of them
    that allocates.
    """

    def __init__(self) -> None:
        super().__init__()
        self._events: list[tuple[str, int, int]] = []
        self._born: list[Block] = []

    def record(self, action: str, address: int, size: int) -> None:
        """Is told each event."""
        self._events.append((action, address, size))

    def _change(self, change: Change, *rest: Any) -> None:
        super()._change(change, *rest)
        if change.size_bytes > 0:
            self._born.append(self.live[change.address])

    def told(self, known: Vocabulary) -> Iterator[Told]:
        """The events, each allocation with what its block turned out to be.

        Args:
            known: of the models that ran.
        """
        stacks: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        born = iter(self._born)
        for action, address, size in self._events:
            block = next(born, None) if action == "alloc" else None
            if block is None:
                yield Told(action=action, address=address, size=size)
                continue
            category = categorize(block, known)
            key = _key(block, category)
            if key not in stacks:
                stacks[key] = _frames(block, category)
            yield Told(action=action, address=address, size=size, frames=stacks[key], category=category)

    def write(self, path: Path, allocator: CachingAllocator, known: Vocabulary, conf: str = "") -> None:
        """Write all of it as PyTorch does.

        Raises:
            UsageError: It can't be written there.
        """
        write_snapshot(path, allocator.segments(), self.told(known), allocator.settings, conf)


def _key(block: Block, category: str) -> tuple[Any, ...]:
    operation, output, owner = block.operation, block.output, block.owner
    return (
        category,
        operation and (operation.name, operation.module, operation.site, operation.backward),
        output and (output.shape, output.dtype),
        owner and owner.name,
    )


def _frames(block: Block, category: str) -> list[dict[str, Any]]:
    """The operation with the module it ran for; what the block is; the program's line, where Python asked."""
    operation = block.operation
    where = "" if operation is None else operation.module or ("(backward)" if operation.backward else "(no module)")
    frames = [
        frame(_NOBODY if operation is None else operation.name, where),
        frame(_what(block), category),
    ]
    if operation is not None and operation.site is not None:
        filename, _, line = operation.site.rpartition(":")
        frames.append(frame(_phase(operation), filename, int(line) if line.isdigit() else 0))
    return frames


def _phase(operation: Operation) -> str:
    return "backward" if operation.backward else "optimizer" if operation.optimizer else "forward"


def _what(block: Block) -> str:
    """Its tensor by name, or by shape and type; what no tensor owns is scratch."""
    output = block.output
    shape = "scratch" if output is None else f"{output.dtype}[{', '.join(map(str, output.shape))}]"
    return shape if block.owner is None else f"{block.owner.name} {shape}"
