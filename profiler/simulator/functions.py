"""What calls of torch from Python are on a GPU that is not there: CUDA's attention, CUDA's autocast, known answers."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from nooom.formulas.gpus import GPU
from nooom.profiler.known_values import KnownValues
from nooom.profiler.simulator.attention import attend

_sdpa: Any = functional.scaled_dot_product_attention
_DRAWN = frozenset(("uniform_", "normal_", "bernoulli_", "exponential_", "kaiming_uniform_", "trunc_normal_"))


class Functions(KnownValues):
    """Watches calls of torch while a dry run lasts, in the backward pass too.

    Args:
        gpu: whose choices are made.
        casted: ``casted(func, args, kwargs)`` gives the arguments as autocast would make them.
    """

    def __init__(self, gpu: GPU, casted: Any = None) -> None:
        super().__init__("meta")
        self._capability = gpu.compute_capability
        self._casted = casted

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._casted is not None:
            args, kwargs = self._casted(func, args, kwargs or {})
        if func is _sdpa and args and args[0].device.type == "meta":
            return attend(self._capability, *args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _DRAWN and args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            return args[0]  # nobody reads the values: an adapter that is drawn on the host takes a second otherwise
        return super().__torch_function__(func, types, args, kwargs)
