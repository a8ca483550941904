"""The tracer itself: notes what every operation on a device returned, and tells the allocator which one is running."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nooom.profiler.tracer.accumulation import in_place, learn
from nooom.profiler.tracer.addresses import address_of
from nooom.profiler.tracer.journal import Journal, Operation, Output
from nooom.profiler.tracer.owners import Owners
from nooom.profiler.tracer.places import Places

_CASTS = frozenset(("aten._to_copy.default", "aten.to.dtype"))


class Tracer(TorchDispatchMode):
    """Watches below autograd, so that the backward pass and the optimizer are seen as the forward pass is.

    Args:
        journal: to write to.
        device_type: whose tensors: cuda, cpu.
        running: ``running(number)`` gives a context in which the allocator knows that operation's number.
        after: called between two operations, now and then: a moment to take what was written.
        every: how many operations lie between two such moments.
        address: where a tensor's storage lies.
    """

    def __init__(
        self,
        journal: Journal,
        device_type: str,
        running: Callable[[int], Any],
        after: Callable[[], None],
        every: int = 10_000,
        address: Callable[[torch.Tensor], int] = address_of,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners = Owners(journal, device_type, address)
        self._address_of = address
        self._journal = journal
        self._device_type = device_type
        self._running = running
        self._after = after
        self._every = every
        self._places = Places()

    def __enter__(self) -> Tracer:
        learn()
        self._places.open()
        self.owners.open()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)  # type: ignore[no-untyped-call]
        self.owners.close()
        self._places.close()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.is_view:
            return func(*args, **(kwargs or {}))
        func, args = in_place(func, args)
        number = self._journal.number()
        operation = self._noted(number, func, args)
        self._journal.entries.append(operation)
        with self._running(number):
            out = func(*args, **(kwargs or {}))
        operation.outputs = tuple(self._outputs(out))
        if operation.name in _CASTS:
            operation.casts = self._address(args[0])
        if number % self._every == 0:
            del args, kwargs  # nothing more of the program's stays alive for the ledger's sake
            self._after()
        return out

    def _noted(self, number: int, func: Any, args: tuple[Any, ...]) -> Operation:
        place = self._places.now()
        return Operation(
            number=number,
            name=_named(func),
            module=place.module,
            site=place.site,
            backward=place.backward,
            differentiable=torch.is_grad_enabled(),
            optimizer=self.owners.stepping,
            inputs=tuple(_shapes(args)),
        )

    def _outputs(self, out: Any) -> Iterator[Output]:
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, (tuple, list)):
                yield from self._outputs(tensor)
            elif isinstance(tensor, torch.Tensor) and tensor.device.type == self._device_type:
                yield Output(self._address_of(tensor), tuple(tensor.shape), _dtype_named(tensor.dtype))

    def _address(self, value: Any) -> int | None:
        ours = isinstance(value, torch.Tensor) and value.device.type == self._device_type
        return self._address_of(value) if ours else None


@functools.cache
def _named(func: Any) -> str:
    return str(func)


@functools.cache
def _dtype_named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shapes(values: Iterable[Any]) -> Iterator[tuple[int, ...]]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield tuple(value.shape)
        elif isinstance(value, (list, tuple)):
            yield from _shapes(value)
