"""What the CPU does otherwise than meta tensors' own code, by the function that is called."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from nooom.profiler.simulator.cpu_attention import attend
from nooom.profiler.simulator.functions import Choices


def _grouped_mm(mat_a: torch.Tensor, mat_b: torch.Tensor, *, offs: torch.Tensor, **rest: Any) -> torch.Tensor:
    """In every type (``native/GroupedMMUtils.h``); meta tensors have it for bfloat16 alone."""
    if mat_a.dtype == torch.bfloat16:
        return torch._grouped_mm(mat_a, mat_b, offs=offs, **rest)
    out: torch.Tensor = _GroupedProduct.apply(mat_a, mat_b, offs)  # type: ignore[no-untyped-call]
    return out


class _GroupedProduct(torch.autograd.Function):
    """Rows by their expert's matrix, and the derivative."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, matrices, ends)
        return rows.new_empty((rows.shape[0], matrices.shape[-1]))

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        rows, matrices, _ = ctx.saved_tensors
        for_matrices = torch.empty_like(matrices) if ctx.needs_input_grad[1] else None
        return torch.empty_like(rows) if ctx.needs_input_grad[0] else None, for_matrices, None


CPU_CHOICES: Choices = {functional.scaled_dot_product_attention: attend, torch._grouped_mm: _grouped_mm}
