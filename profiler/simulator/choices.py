"""What CUDA does otherwise than meta tensors' own code, by the function that is called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from nooom.formulas.gpus import GPU
from nooom.profiler.simulator.attention import attend
from nooom.profiler.simulator.functions import Choices


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
    """One kernel, that keeps a number a row; meta tensors' own falls apart into five."""
    out: torch.Tensor = _FusedRmsNorm.apply(input, len(normalized_shape), weight)  # type: ignore[no-untyped-call]
    return out


class _FusedRmsNorm(torch.autograd.Function):
    """``_fused_rms_norm`` and its derivative, as ``native/cuda/layer_norm_kernel.cu`` allocates them."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dimensions: int, weight: torch.Tensor | None) -> torch.Tensor:
        out = torch.empty_like(input)
        rows = (*input.shape[:-dimensions], *(1,) * dimensions)
        ctx.save_for_backward(input, torch.empty(rows, dtype=torch.float32, device=input.device), weight)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor | None]:
        source, _, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        return torch.empty_like(source), None, None if weight is None else torch.empty_like(weight)


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
