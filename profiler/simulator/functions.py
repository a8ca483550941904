"""What calls of torch from Python are on a device that is not there: its own choices, its autocast, known answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodWrapperType
from typing import Any, TypeAlias

import torch

from nooom.profiler.known_values import KnownValues
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
        if type(func) is MethodWrapperType:  # an attribute, as most calls are
            return func(*args, **(kwargs or {}))
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
