"""What calls of torch from Python are on a GPU that is not there: CUDA's attention, CUDA's autocast, known answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from nooom.formulas.gpus import GPU
from nooom.profiler.known_values import KnownValues
from nooom.profiler.simulator.attention import attend
from nooom.profiler.simulator.memory import Memory

_DRAWN = frozenset(("uniform_", "normal_", "bernoulli_", "exponential_", "kaiming_uniform_", "trunc_normal_"))
_MAKES = frozenset(("tensor", "as_tensor", "asarray"))
"""Calls that make a tensor of what lies on the host, which no operation is."""


Choices: TypeAlias = Mapping[Any, Callable[..., torch.Tensor]]
"""What a device does otherwise than meta tensors' own code, by the function that is called."""


class Functions(KnownValues):
    """Watches calls of torch while a dry run lasts, in the backward pass too.

    Args:
        choices: of the device.
        memory: where a tensor is allocated that no operation makes.
        casted: ``casted(func, args, kwargs)`` gives the arguments as autocast would make them.
    """

    def __init__(self, choices: Choices, memory: Memory, casted: Any = None) -> None:
        super().__init__("meta")
        self._memory = memory
        self._choices = choices
        self._casted = casted

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._casted is not None:
            args, kwargs = self._casted(func, args, kwargs or {})
        on_gpu = bool(args) and isinstance(args[0], torch.Tensor) and args[0].device.type == "meta"
        if on_gpu and func in self._choices:
            return self._choices[func](*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _DRAWN and args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            return args[0]  # nobody reads the values: an adapter that is drawn on the host takes a second otherwise
        if name == "__setitem__" and on_gpu and not isinstance(args[2], torch.Tensor):
            with self._memory.unwatched():  # the number stays on the host
                return super().__torch_function__(func, types, args, kwargs)
        out = super().__torch_function__(func, types, args, kwargs)
        if name in _MAKES and isinstance(out, torch.Tensor) and out.device.type == "meta":
            self._memory.hold(out)
        return out


def _dropout(
    _capability: Any, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """One kernel, that keeps a mask of booleans."""
    if training and 0 < p < 1 and input.numel() and not inplace:
        out: torch.Tensor = torch.ops.aten.native_dropout(input, p, True)[0]
        return out
    return functional.dropout(input, p, training, inplace)


def _rms_norm(
    _capability: Any, input: torch.Tensor, normalized_shape: list[int], weight: Any = None, eps: float | None = None
) -> torch.Tensor:
    """One kernel, that keeps a number a row."""
    out: torch.Tensor = torch.ops.aten._fused_rms_norm(input, normalized_shape, weight, eps)[0]
    return out


def _softmax(
    _capability: Any, input: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> torch.Tensor:
    """From half precision to single without a copy in between."""
    if input.dtype == torch.float16 and dtype == torch.float32 and dim is not None:
        out: torch.Tensor = torch.ops.aten._softmax(input, dim, True)
        return out
    return functional.softmax(input, dim, _stacklevel, dtype)


_CHOICES: dict[Any, Callable[..., torch.Tensor]] = {
    functional.scaled_dot_product_attention: attend,
    functional.dropout: _dropout,
    functional.softmax: _softmax,
    functional.rms_norm: _rms_norm,
}
"""What CUDA does otherwise than meta tensors' own code, by the function that is called."""


def choices(gpu: GPU) -> Choices:
    """The GPU's."""
    return {func: functools.partial(choice, gpu.compute_capability) for func, choice in _CHOICES.items()}
