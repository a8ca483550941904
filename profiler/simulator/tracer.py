"""The tracer on meta tensors: each operation's results and scratch are allocated as its CUDA kernel would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nooom.profiler.simulator.kernels import KernelTable
from nooom.profiler.simulator.memory import Memory
from nooom.profiler.simulator.results import Results
from nooom.profiler.tracer.accumulation import in_place
from nooom.profiler.tracer.journal import Journal
from nooom.profiler.tracer.mode import Tracer

_C: Any = torch._C
_aten: Any = torch.ops.aten
_READ = _aten._local_scalar_dense.default
_COPY, _COPY_INTO = _aten._to_copy.default, _aten.copy_.default
_CASTS = (_COPY,)


class MetaTracer(Tracer):
    """Runs operations on meta tensors, and writes down what a GPU's allocator would have been asked.

    Args:
        journal: to write to.
        memory: where results and scratch are allocated.
        kernels: what each operation's kernel takes besides its results.
        after: called between two operations, now and then.
    """

    def __init__(self, journal: Journal, memory: Memory, kernels: KernelTable, after: Callable[[], None]) -> None:
        super().__init__(journal, "meta", lambda number: None, after, address=memory.address_of)
        self._memory = memory
        self._kernels = kernels
        self._results = Results()
        self._since = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view:
            with _C.DisableTorchFunction():
                return func(*args, **kwargs)
        func, args = in_place(func, args)
        # In a backward pass calls of torch are still watched: not those that are a part of an operation.
        with _C.DisableTorchFunction():
            if func in _FROM_DEVICE and _is_read(func, args, kwargs):
                return _FROM_DEVICE[func](*args, **kwargs)
            out = self._results.of(func, args, kwargs)
            made = [tensor for tensor in _tensors(out) if tensor.is_meta]
            if made or func in self._kernels.without_results:
                self._allocate(func, args, kwargs, out, made)
        return out

    def _allocate(self, func: Any, args: tuple[Any, ...], kwargs: Any, out: Any, made: list[torch.Tensor]) -> None:
        memory = self._memory
        new = [tensor for tensor in made if not memory.holds(tensor)]
        asks = self._kernels.asks(func)
        if not new and asks is None:
            return
        number = self._journal.number()
        operation = self._noted(number, func, args)
        self._journal.entries.append(operation)
        memory.operation = number
        needs = asks(func, args, kwargs, out) if asks is not None else None
        if needs is not None:
            self._kernels.play(needs, made, memory)
        else:
            for tensor in new:
                memory.hold(tensor)
        memory.operation = None
        operation.outputs = tuple(self._outputs(out))
        if func in _CASTS:
            operation.casts = self._address(args[0])
        self._since += 1
        if self._since >= self._every:
            self._since = 0
            self._after()


def _tensors(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, (tuple, list)):
        found: list[torch.Tensor] = []
        for item in out:
            found += _tensors(item)
        return found
    return []


def _is_read(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it copies from the device to the host."""
    if func is _COPY_INTO:
        return bool(args[1].device.type == "meta" and args[0].device.type == "cpu")
    if args[0].device.type != "meta":
        return False
    return func is _READ or torch.device(kwargs.get("device") or "meta").type == "cpu"


def _read(tensor: torch.Tensor) -> Any:
    """What nobody computed reads as zero, as on a phantom; what is known was answered before it came here."""
    return torch.zeros((), dtype=tensor.dtype, device="cpu").item()


def _copied(tensor: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return torch.zeros(tensor.shape, dtype=dtype or tensor.dtype, device="cpu")


def _copied_into(target: torch.Tensor, *_: Any) -> torch.Tensor:
    return target


_FROM_DEVICE: dict[Any, Callable[..., Any]] = {_READ: _read, _COPY: _copied, _COPY_INTO: _copied_into}
