"""What CUDA's kernels take besides their results: one small rule for each, in one table.

A rule says which blocks a call asks for beside the tensors that it returns, in which order, and whether they live until
the call ends.  The sizes are :mod:`nooom.formulas.hidden`'s, which names the source of each; here stands which
operation takes them, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nooom.formulas import hidden
from nooom.formulas.gpus import GPU
from nooom.profiler.simulator.memory import Memory

_aten: Any = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that one call takes for itself."""

    first: tuple[int, ...] = ()
    """Each taken and freed, one after the other, before anything else is."""
    before: tuple[int, ...] = ()
    """Taken before the results are, and freed at the end."""
    during: tuple[int, ...] = ()
    """Taken after the results, and freed at the end."""
    workspace: int | None = None
    """Taken after the results and kept: one for each thread."""


Rule = Callable[["Kernels", tuple[Any, ...], Mapping[str, Any], Any], Needs | None]


class Kernels:
    """The rules for one GPU."""

    def __init__(self, gpu: GPU) -> None:
        self.gpu = gpu
        self.workspace_bytes = hidden.cublas_workspace_bytes(gpu.compute_capability)
        self._workspaces: set[bool] = set()
        self._rules: dict[Any, Callable[..., Needs | None] | None] = {}
        self.without_results = frozenset(func for func in RULES if not func._schema.returns)

    def asks(self, func: Any) -> Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], Needs | None] | None:
        """What says how much an operation takes; None for one that takes nothing."""
        rule = RULES.get(func)
        if rule is None:
            return None
        return lambda _func, args, kwargs, out: rule(self, args, kwargs, out)

    def keep(self, needs: Needs, memory: Memory) -> None:
        """Allocate a workspace that this thread does not have yet."""
        if needs.workspace is None:
            return
        thread = torch._C._current_autograd_node() is not None
        if thread not in self._workspaces:
            self._workspaces.add(thread)
            memory.take(needs.workspace)


def _product(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], _out: Any) -> Needs | None:
    thread = torch._C._current_autograd_node() is not None
    return None if thread in kernels._workspaces else Needs(workspace=kernels.workspace_bytes)


def _flash(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], _out: Any) -> Needs | None:
    query, key = args[0], args[1]
    dropout = args[3] if len(args) > 3 else 0.0
    batch, heads, queries, width = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    if dropout:
        return None
    if queries == 1 and heads > kv_heads:
        heads, queries = kv_heads, heads // kv_heads
    splits = hidden.flash_splits(batch, heads, queries, keys, width, kernels.gpu.sms)
    return Needs(during=hidden.flash_forward_bytes(batch, heads, queries, width, splits)) if splits > 1 else None


def _flash_backward(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], _out: Any) -> Needs | None:
    grad, query, key, _value, out = args[:5]
    batch, heads, queries, width = query.shape
    copies = tuple(
        tensor.numel() * tensor.element_size() for tensor in (grad, out) if not tensor.transpose(1, 2).is_contiguous()
    )
    sizes = hidden.flash_backward_bytes(batch, heads, key.shape[1], queries, key.shape[2], width, query.element_size())
    return Needs(before=copies, during=sizes)


def _efficient(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], _out: Any) -> Needs | None:
    query, _key, value = args[:3]
    batch, heads, queries, width = query.shape
    sizes = hidden.efficient_forward_bytes(
        batch, heads, queries, value.shape[-1], query.element_size(), max(width, value.shape[-1])
    )
    return Needs(during=sizes) if sizes else None


def _efficient_backward(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], _out: Any) -> Needs | None:
    query = args[1]
    batch, heads, queries, width = query.shape
    return Needs(during=hidden.efficient_backward_bytes(batch, heads, queries, width, query.element_size()))


def _embedding_backward(
    kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: torch.Tensor
) -> Needs | None:
    grad, indices, vocabulary = args[:3]
    tokens = indices.numel()
    copy = () if grad.is_contiguous() else (grad.numel() * grad.element_size(),)
    if tokens <= 3072:
        return Needs(before=copy) if copy else None
    return Needs(before=copy, during=(hidden.embedding_backward_bytes(tokens, vocabulary, grad.shape[-1]),))


def _column_sum(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    source = args[0]
    columns = out.numel() if isinstance(out, torch.Tensor) else 0
    if not columns or source.device.type != "meta" or source.numel() == columns or out.shape[-1:] != source.shape[-1:]:
        return None
    sizes = hidden.row_sum_bytes(source.numel() // columns, columns, kernels.gpu.sms, kernels.gpu.max_threads_per_sm)
    return Needs(during=sizes) if sizes else None


def _softmax_backward(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    return Needs(during=(hidden.softmax_backward_bytes(args[0].numel()),))


def _multinomial(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    probabilities = args[0]
    return Needs(during=(hidden.multinomial_bytes(probabilities.numel() // probabilities.shape[-1],
                                                  probabilities.shape[-1]),))  # fmt: skip


def _foreach_norm(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    return Needs(before=(hidden.foreach_norm_bytes([tensor.numel() for tensor in args[0]]),))


RULES: dict[Any, Rule] = {
    **dict.fromkeys((_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default), _product),
    _aten._scaled_dot_product_flash_attention.default: _flash,
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    _aten._scaled_dot_product_efficient_attention.default: _efficient,
    _aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    _aten.embedding_dense_backward.default: _embedding_backward,
    _aten.sum.dim_IntList: _column_sum,
    _aten._softmax_backward_data.default: _softmax_backward,
    _aten.multinomial.default: _multinomial,
    _aten._foreach_norm.Scalar: _foreach_norm,
}
"""By operation; what stands here not, takes nothing besides its results."""
