"""What the tracer writes down while a program runs: operations with what they returned, and whose memory is whose.

Both are numbered by one counter, so that they stand in order beside the allocator's events, which carry the number of
the operation they happened in.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that an operation returned."""

    address: int
    """Of its storage."""
    shape: tuple[int, ...]
    dtype: str


@dataclass(eq=False, slots=True)
class Operation:
    """One call of an ATen operator, and where it was made."""

    number: int
    name: str
    """As ATen has it, e.g. ``aten.mm.default``."""
    module: str | None
    """Path of the module it ran for; in the backward pass, of the module whose forward pass it differentiates."""
    site: str | None
    """The line of the program that asked, ``file.py:123``; None where C++ did, as in the backward pass."""
    backward: bool
    """Run by autograd, in a backward pass."""
    differentiable: bool
    """Run while gradients were being recorded."""
    optimizer: bool
    """Run inside an optimizer's step."""
    inputs: tuple[tuple[int, ...], ...] = ()
    """Shapes of the tensors that it was given."""
    casts: int | None = None
    """Address of the one storage it copied into another type, where it did nothing else."""
    outputs: tuple[Output, ...] = ()


@dataclass(frozen=True, slots=True)
class Owner:
    """From here on the block at an address is known to be this."""

    number: int
    address: int
    category: str
    name: str


@dataclass(eq=False)
class Journal:
    """Operations and owners in the order of their numbers, until the ledger takes them."""

    entries: list[Operation | Owner] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def number(self) -> int:
        return next(self._numbers)

    def owns(self, address: int, category: str, name: str) -> None:
        self.entries.append(Owner(self.number(), address, category, name))

    def take(self) -> list[Operation | Owner]:
        """What was written since the last time, in order.

        The autograd thread's entries come between the main thread's as they happened: one thread runs at a time.
        """
        taken, self.entries = self.entries, []
        return sorted(taken, key=lambda entry: entry.number)
