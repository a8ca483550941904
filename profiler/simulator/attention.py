"""``scaled_dot_product_attention`` as CUDA runs it: which kernel is chosen, and the operation that it then is.

On meta tensors PyTorch always takes the path that multiplies step by step.  Here the choice is CUDA's
(``transformers/cuda/sdp_utils.cpp``, ``select_sdp_backend``) and what is called is the operation that CUDA would call,
whose meta kernel and derivative PyTorch has.  cuDNN's attention, which PyTorch prefers on Hopper and Blackwell since
2.11, takes a workspace that only the hardware's library knows: flash stands in its place, and whoever shows a figure
says so.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

FLASH, EFFICIENT, MATH = "flash", "efficient", "math"
_HALF = (torch.float16, torch.bfloat16)
_MASK_ALIGNMENT = 8
_HEAD_ALIGNMENT = 8

_aten: Any = torch.ops.aten
_sdpa: Any = functional.scaled_dot_product_attention


def attend(
    compute_capability: tuple[int, int],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The call, as a GPU of that compute capability makes it.

    Raises:
        RuntimeError: one kernel is pinned, and it can't do this: as PyTorch would.
    """
    kernel = choose(compute_capability, query, key, value, attn_mask, is_causal=is_causal, enable_gqa=enable_gqa)
    if kernel == MATH:
        options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return _sdpa(query, key, value, attn_mask, **options)  # type: ignore[no-any-return]
    if kernel == FLASH:
        return _flash(query, key, value, dropout_p, is_causal, scale)
    return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)


def choose(
    compute_capability: tuple[int, int],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    *,
    is_causal: bool,
    enable_gqa: bool,
) -> str:
    """The first of flash, efficient and math that is not switched off and can do it.

    Raises:
        RuntimeError: none of them.
    """
    backends = torch.backends.cuda
    tensors = (query, key, value)
    if backends.flash_sdp_enabled() and _flash_can(compute_capability, tensors, attn_mask, is_causal, enable_gqa):
        return FLASH
    if backends.mem_efficient_sdp_enabled() and _efficient_can(compute_capability, tensors):
        return EFFICIENT
    if backends.math_sdp_enabled():
        return MATH
    raise RuntimeError("No available kernel. Aborting execution.")


def _flash_can(
    capability: tuple[int, int], tensors: tuple[torch.Tensor, ...], mask: Any, is_causal: bool, gqa: bool
) -> bool:
    query, key, value = tensors
    if mask is not None or capability < (8, 0) or not _plain(tensors) or query.dtype not in _HALF:
        return False
    width = query.shape[-1]
    if not width == key.shape[-1] == value.shape[-1] or width > 256:
        return False
    # Consumer cards have too little shared memory to differentiate the widest heads.
    trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if trains and width > 192 and (capability in ((8, 6), (8, 9)) or capability[0] == 12):
        return False
    if is_causal and query.shape[2] != key.shape[2]:
        return False
    return _same_heads(tensors) or (gqa and key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0)


def _efficient_can(capability: tuple[int, int], tensors: tuple[torch.Tensor, ...]) -> bool:
    query, key, value = tensors
    known = (torch.float32, *_HALF) if capability >= (8, 0) else (torch.float32, torch.float16)
    alignment = 4 if query.dtype == torch.float32 else 8
    wide = query.shape[-1] == key.shape[-1] and query.shape[-1] % alignment == 0 and value.shape[-1] % alignment == 0
    return query.dtype in known and _plain(tensors) and wide and _same_heads(tensors)


def _plain(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Four dimensions, one type, something in each, and rows without gaps."""
    dtype = tensors[0].dtype
    return all(
        tensor.dim() == 4
        and tensor.dtype == dtype
        and tensor.shape[2] > 0
        and (tensor.stride(-1) == 1 or tensor.shape[-1] == 1)
        for tensor in tensors
    )


def _same_heads(tensors: tuple[torch.Tensor, ...]) -> bool:
    query, key, value = tensors
    return query.shape[:2] == key.shape[:2] == value.shape[:2]


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float, is_causal: bool, scale: float | None
) -> torch.Tensor:
    width = query.shape[-1]
    scale = 1.0 / math.sqrt(width) if scale is None else scale
    padded = [_padded(tensor) for tensor in (query, key, value)]
    out = _first(_aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale))
    return out if out.shape[-1] == width else out[..., :width]


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    lacking = -tensor.shape[-1] % _HEAD_ALIGNMENT
    return functional.pad(tensor, (0, lacking)) if lacking else tensor


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    if mask is not None:
        mask = _mask(mask, query, key)
    return _first(
        _aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, trains, dropout_p, is_causal, scale=scale
        )
    )


def _first(results: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The others are let go as C++ does it: from the first on, which a tuple does from the last on."""
    others = list(results[:0:-1])
    first = results[0]
    del results
    while others:
        others.pop()
    return first


def _mask(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """As numbers of the query's type, with rows that begin at multiples of eight, for every head."""
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=query.dtype, device=query.device))
    aligned = all(stride % _MASK_ALIGNMENT == 0 for stride in mask.stride()[:-1]) and mask.stride(-1) == 1
    if not aligned:
        width = mask.shape[-1]
        mask = functional.pad(mask, (0, _MASK_ALIGNMENT - width % _MASK_ALIGNMENT))[..., :width]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
