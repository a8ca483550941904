"""A stand-in for the package flash-attn 2.7: what its functions allocate, and no attention.

flash-attn is compiled for hours and would compute nothing on a phantom GPU.  :func:`install` puts a module of its name
in its place whose ``flash_attn_func`` allocates, keeps and frees what the real one does, in the same order, as its
``flash_api.cpp`` and ``flash_attn_interface.py`` say.  What comes out is undefined.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import sys
import types
from typing import Any

import torch

VERSION = "2.7.3"
_ROUNDED_LENGTH = 128
"""Rows of the softmax's sums are rounded up to whole blocks of this many."""


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Query of shape (batch, length, heads, size); key and value may have fewer heads."""
        query, key, value = (part if part.stride(-1) == 1 else part.contiguous() for part in (query, key, value))
        batch, length, heads, _ = query.shape
        out = torch.empty_like(query)
        sums = torch.empty((batch, heads, length), dtype=torch.float32, device=query.device)
        generator = torch.empty(2, dtype=torch.int64, device=query.device)
        ctx.save_for_backward(query, key, value, out, sums, generator)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value, _, _, _ = ctx.saved_tensors
        gradient = gradients[0] if gradients[0].stride(-1) == 1 else gradients[0].contiguous()
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        batch, length, heads, size = query.shape
        rounded = -(-length // _ROUNDED_LENGTH) * _ROUNDED_LENGTH
        size_rounded = -(-size // 32) * 32
        single = {"dtype": torch.float32, "device": query.device}
        sums = torch.empty((batch, heads, rounded), **single)
        accumulated = torch.empty((batch, rounded, heads, size_rounded), **single)
        if key.shape[2] != heads:  # each query head has gradients of its own, which are summed over the group
            wide = (*key.shape[:2], heads, size)
            wide_key, wide_value = (torch.empty(wide, dtype=key.dtype, device=key.device) for _ in range(2))
            grouped = (*key.shape[:2], key.shape[2], -1, size)
            torch.sum(wide_key.view(grouped), dim=3, out=d_key)
            torch.sum(wide_value.view(grouped), dim=3, out=d_value)
        del gradient, sums, accumulated
        return d_query, d_key, d_value


def flash_attn_func(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """As flash-attn's, for lengths at which it does not split the keys."""
    return _Attention.apply(query, key, value)  # type: ignore[no-any-return, no-untyped-call]


def _refuse(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("the stand-in for flash-attn knows rows of one length, without padding")


def install() -> None:
    """Make ``import flash_attn`` find this, and transformers think that it is the package; before it is imported."""
    package, padding = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.bert_padding")
    package.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None, is_package=True)
    vars(package).update(flash_attn_func=flash_attn_func, flash_attn_varlen_func=_refuse, __version__=VERSION)
    vars(padding).update(index_first_axis=_refuse, pad_input=_refuse, unpad_input=_refuse)
    sys.modules |= {"flash_attn": package, "flash_attn.bert_padding": padding}
    known = importlib.metadata.version

    def version(distribution_name: str) -> str:
        return VERSION if distribution_name in ("flash_attn", "flash-attn") else known(distribution_name)

    importlib.metadata.version = version
