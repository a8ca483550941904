"""Storages of meta tensors as blocks of a simulated allocator: born when an operation returns them, freed at death.

A meta tensor has no memory, but it has a storage, which lives exactly as long as it would with memory: autograd and
Python hold and let go of the same objects.  The death of one is told by a weak reference, in the moment it happens.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from nooom.profiler.tracer.ledger import Change

_storage_id: Callable[[torch.Tensor], int] = torch._C._storage_id  # type: ignore[attr-defined]


class Allocator(Protocol):
    """What is asked of an allocator here."""

    def malloc(self, requested_bytes: int) -> int: ...

    def free(self, address: int) -> None: ...

    def size_of(self, address: int) -> int: ...


class Memory:
    """Follows the storages of meta tensors.

    Args:
        allocator: that takes and gives back their bytes.
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._held: dict[int, tuple[int, int, Any]] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        self.changes: list[Change] = []
        self._watched = True
        self.operation: int | None = None
        """The number of the operation that runs."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether its storage is known, and is as large as it was."""
        held = self._held.get(_storage_id(tensor))
        return held is not None and held[1] == tensor.untyped_storage().nbytes()

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """What is made meanwhile, and does not outlast it, takes nothing."""
        watched, self._watched = self._watched, False
        try:
            yield
        finally:
            self._watched = watched

    def hold(self, tensor: torch.Tensor) -> None:
        """A tensor that an operation returned: a new storage is allocated, one of before is what it was."""
        if not self._watched:
            return
        key = _storage_id(tensor)
        held = self._held.get(key)
        if held is not None:
            if held[1] != (size := tensor.untyped_storage().nbytes()):
                self._resized(key, held, size)
            return
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        address = self.take(size)

        def died(_: Any, key: int = key) -> None:
            self.give(self._held.pop(key)[0])

        self._held[key] = (address, size, weakref.ref(storage, died))

    def _resized(self, key: int, held: tuple[int, int, Any], size: int) -> None:
        """As ``resize_`` does: what is new is allocated before what was there is freed."""
        address = self.take(size)
        self.give(held[0])
        self._held[key] = (address, size, held[2])

    def address_of(self, tensor: torch.Tensor) -> int:
        """Of a tensor's storage; 0 where it holds nothing, or was not made while it was watched."""
        held = self._held.get(_storage_id(tensor))
        return 0 if held is None else held[0]

    def take(self, size_bytes: int) -> int:
        """Allocate a block; returns its address, 0 for no bytes."""
        if not size_bytes:
            return 0
        address = self._allocator.malloc(size_bytes)
        block_bytes = self._allocator.size_of(address)
        self._sizes[address] = (block_bytes, size_bytes)
        self.changes.append(Change(address, block_bytes, size_bytes, self.operation))
        return address

    def give(self, address: int) -> None:
        """Free it."""
        if not address:
            return
        self._allocator.free(address)
        block_bytes, size_bytes = self._sizes.pop(address)
        self.changes.append(Change(address, -block_bytes, size_bytes, None))

    def took(self) -> list[Change]:
        """What changed since the last time."""
        changes, self.changes = self.changes, []
        return changes
