"""``scaled_dot_product_attention`` as the CPU runs it (``transformers/sdp_utils_cpp.cpp``)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

_aten: Any = torch.ops.aten
_sdpa: Any = functional.scaled_dot_product_attention


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The call, as a CPU makes it.

    Raises:
        RuntimeError: flash is pinned, and it can't do this: as PyTorch would.
    """
    backends = torch.backends.cuda  # whose switches are the CPU's too
    if backends.flash_sdp_enabled() and _flash_can(query, key, value, attn_mask, dropout_p, enable_gqa):
        mask = attn_mask
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=query.dtype, device=query.device))
        flash = _aten._scaled_dot_product_flash_attention_for_cpu
        out: torch.Tensor = flash(query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale)[0]
        return out
    if not backends.math_sdp_enabled():
        raise RuntimeError("No available kernel. Aborting execution.")
    options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    return _sdpa(query, key, value, attn_mask, **options)  # type: ignore[no-any-return]


def _flash_can(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, dropout_p: float, gqa: bool
) -> bool:
    tensors = (query, key, value)
    if dropout_p > 0 or any(tensor.dim() != 4 or tensor.dtype != query.dtype for tensor in tensors):
        return False
    if query.dtype not in _TYPES or not query.shape[-1] == key.shape[-1] == value.shape[-1]:
        return False
    if any(tensor.shape[2] == 0 or tensor.stride(-1) != 1 for tensor in tensors):
        return False
    heads, kv_heads = query.shape[1], key.shape[1]
    grouped = gqa and kv_heads == value.shape[1] and heads % kv_heads == 0
    same = query.shape[0] == key.shape[0] == value.shape[0] and (heads == kv_heads == value.shape[1] or grouped)
    return same and (mask is None or _mask_fits(mask, query, key))


def _mask_fits(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> bool:
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    wanted = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])[-mask.dim() :]
    return all(size in (1, one) for size, one in zip(mask.shape, wanted, strict=True))
