"""What CUDA's kernels take besides their results: one small rule for each, in one table.

A rule says which blocks a call asks for beside the tensors that it returns, in which order, and whether they live until
the call ends.  The sizes are :mod:`nooom.formulas.hidden`'s, which names the source of each; here stands which
operation takes them, and when.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nooom.formulas import hidden
from nooom.formulas.gpus import GPU
from nooom.profiler.simulator.memory import Memory

_aten: Any = torch.ops.aten


RESULT = 0
"""In a script: the next of the results is allocated."""

Script = tuple[int, ...]
"""What a call does beside computing, in order: a positive number takes so many bytes, :data:`RESULT` allocates the next
result, ``-k`` frees the k-th block that was taken.  At the end the other results are allocated, and then what is still
taken is freed, the last first, as C++ ends its variables."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What one call takes for itself."""

    script: Script = ()
    order: tuple[int, ...] = ()
    """Which of the results are allocated, and in which order, where it is not all as they are returned."""
    workspace_bytes: int = 0
    """Taken after the results and kept, by the first call in each thread."""


Rule = Callable[["Kernels", tuple[Any, ...], Mapping[str, Any], Any], Needs | None]


class KernelTable:
    """The rules for one device, and what is done where one of them holds.

    Args:
        rules: by operation.
    """

    def __init__(self, rules: Mapping[Any, Callable[..., Needs | None]]) -> None:
        self._rules = rules
        self._workspaces: set[bool] = set()
        self.without_results = frozenset(func for func in rules if not func._schema.returns)

    def rule(self, func: Any) -> Callable[..., Needs | None] | None:
        """An operation's; None where it takes nothing."""
        return self._rules.get(func)

    def asks(self, func: Any) -> Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], Needs | None] | None:
        """What says how much an operation takes; None for one that takes nothing."""
        rule = self.rule(func)
        if rule is None:
            return None
        return lambda _func, args, kwargs, out: rule(self, args, kwargs, out)

    def play(self, needs: Needs, results: list[torch.Tensor], memory: Memory) -> None:
        """Allocate what a call takes and returns, and free what it took."""
        waiting = iter([results[index] for index in needs.order] if needs.order else results)
        taken: list[int] = []
        for step in needs.script:
            if step > 0:
                taken.append(memory.take(step))
            elif step < 0:
                memory.give(taken[-step - 1])
                taken[-step - 1] = 0
            elif (result := next(waiting, None)) is not None:
                memory.hold(result)
        for result in waiting:
            memory.hold(result)
        if needs.workspace_bytes:
            self._workspaces.add(in_backward())
            memory.take(needs.workspace_bytes)
        for address in reversed(taken):
            memory.give(address)


class Kernels(KernelTable):
    """The rules for one GPU."""

    def __init__(self, gpu: GPU) -> None:
        super().__init__(RULES)
        self.gpu = gpu
        self.workspace_bytes = hidden.cublas_workspace_bytes(gpu.compute_capability)


def in_backward() -> bool:
    """Whether autograd runs what runs: on a GPU it has a thread of its own, with workspaces of its own."""
    return torch._C._current_autograd_node() is not None


def _product(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], _out: Any) -> Needs | None:
    return None if in_backward() in kernels._workspaces else Needs(workspace_bytes=kernels.workspace_bytes)


def _flash(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], _out: Any) -> Needs | None:
    query, key = args[0], args[1]
    dropout = args[3] if len(args) > 3 else 0.0
    batch, heads, queries, width = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    if dropout:
        return Needs((RESULT, RESULT, RESULT, RESULT, 16, -1))
    if queries == 1 and heads > kv_heads:
        heads, queries = kv_heads, heads // kv_heads
    splits = hidden.flash_splits(batch, heads, queries, keys, width, kernels.gpu.sms)
    sums = hidden.flash_forward_bytes(batch, heads, queries, width, splits)
    return Needs((RESULT, RESULT, *sums, RESULT, RESULT, -1, -2)) if sums else None


def _flash_backward(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], _out: Any) -> Needs | None:
    grad, query, key, _value, out = args[:5]
    batch, heads, queries, width = query.shape
    copies = tuple(
        tensor.numel() * tensor.element_size() for tensor in (grad, out) if not tensor.transpose(1, 2).is_contiguous()
    )
    sizes = hidden.flash_backward_bytes(batch, heads, key.shape[1], queries, key.shape[2], width, query.element_size())
    return Needs((*copies, RESULT, RESULT, RESULT, *sizes))


def _efficient(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], _out: Any) -> Needs | None:
    query, _key, value = args[:3]
    batch, heads, queries, width = query.shape
    sizes = hidden.efficient_forward_bytes(
        batch, heads, queries, value.shape[-1], query.element_size(), max(width, value.shape[-1])
    )
    # The random generator's seed and offset lie on the host.
    return Needs((RESULT, RESULT, *sizes), order=(0, 1))


def _efficient_backward(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], _out: Any) -> Needs | None:
    query = args[1]
    batch, heads, queries, width = query.shape
    sizes = hidden.efficient_backward_bytes(
        batch, heads, queries, width, query.element_size(), keys=args[2].shape[2], value_dim=args[3].shape[-1]
    )
    return Needs((RESULT, RESULT, RESULT, *sizes, *range(-1, -len(sizes) - 1, -1)))


def _embedding_backward(
    kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: torch.Tensor
) -> Needs | None:
    grad, indices, vocabulary = args[:3]
    tokens = indices.numel()
    copy = () if grad.is_contiguous() else (grad.numel() * grad.element_size(),)
    if tokens <= 3072:
        return Needs(copy) if copy else None
    parts = hidden.embedding_backward_bytes(tokens, vocabulary, grad.shape[-1])
    rows = parts // (4 * grad.shape[-1])
    each, sort = 8 * tokens, hidden.radix_sort_bytes(tokens, vocabulary)
    # Sorted: tokens, and where each was; then where each run of one token begins, cut into parts; scans take a KiB or
    # two for a moment, which is left out.
    steps = (each, each, each, sort, -4, -3, RESULT, each, 8, each, -7, each, each, 8, 8 * rows, parts)
    script = (*steps, -12, -11, -10, -9, -8, -6, -5, -2, -1)
    if not copy:
        return Needs(script)
    return Needs((*copy, *(step - 1 if step < 0 else step for step in script)))


def _column_sum(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    source = args[0]
    columns = out.numel()
    if source.numel() == columns or out.shape[-1:] != source.shape[-1:]:
        return None
    sizes = hidden.row_sum_bytes(source.numel() // columns, columns, kernels.gpu.sms, kernels.gpu.max_threads_per_sm)
    return Needs((RESULT, *sizes)) if sizes else None


def _reduced(kernels: Kernels, source: torch.Tensor, out: torch.Tensor, value_bytes: int) -> tuple[int, ...]:
    """Partial results, where neighbours are reduced."""
    if not source.is_contiguous() or not out.numel() or not source.numel() or source.numel() == out.numel():
        return ()
    return hidden.reduction_bytes(
        out.numel(), source.numel() // out.numel(), value_bytes=value_bytes, sms=kernels.gpu.sms,
        max_threads_per_sm=kernels.gpu.max_threads_per_sm,
    )  # fmt: skip


def _reduction(value_bytes: int | None) -> Rule:
    """Of the last dimension, or of all; ``value_bytes`` None is that of the source's type."""

    def rule(kernels: Kernels, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Needs | None:
        source, result = args[0], out[0] if isinstance(out, tuple) else out
        if source.device.type != "meta":
            return None
        if result.dim() and result.shape[-1:] == source.shape[-1:]:
            return _column_sum(kernels, args, kwargs, out) if value_bytes == 4 else None
        sizes = _reduced(kernels, source, result, value_bytes or source.element_size())
        results = (RESULT,) * (len(out) if isinstance(out, tuple) else 1)
        return Needs((*results, *sizes)) if sizes else None

    return rule


def _softmax_backward(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    product = hidden.softmax_backward_bytes(args[0].numel())
    return Needs((product,) if out.dtype == args[0].dtype else (RESULT, product))


def _multinomial(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    probabilities = args[0]
    rows = probabilities.numel() // probabilities.shape[-1]
    draws = hidden.multinomial_bytes(rows, probabilities.shape[-1])
    checked = torch.empty(probabilities.shape, device="meta")
    one, row = torch.empty((), device="meta"), torch.empty((rows,), device="meta")
    # Checks of the probabilities: are they finite, not negative, and not all zero?  Then the draws, and the largest.
    return _script(
        [
            RESULT,
            "smallest",
            4,
            "largest",
            4,
            *_passing(_reduced(kernels, checked, one, 8)),
            "a",
            1,
            "b",
            1,
            "valid",
            1,
            "-b",
            "-a",
            "sums",
            4 * rows,
            *_passing(_reduced(kernels, checked, row, 4)),
            "zero",
            rows,
            "any",
            1,
            "-zero",
            "-sums",
            "c",
            1,
            "-c",
            "draws",
            draws,
            *_passing(_reduced(kernels, checked, row, 16)),
            "-draws",
            "-any",
            "-valid",
            "-smallest",
            "-largest",
        ]
    )


def _passing(sizes: tuple[int, ...]) -> list[str | int]:
    """Blocks that live for a moment."""
    names = [f"passing {index}" for index in range(len(sizes))]
    taken: list[str | int] = [item for pair in zip(names, sizes, strict=True) for item in pair]
    return [*taken, *(f"-{name}" for name in reversed(names))]


def _script(steps: list[str | int]) -> Needs:
    """A script of named blocks: a name and its size take one, its name with a minus frees it."""
    script: list[int] = []
    numbers: dict[str, int] = {}
    waiting: str | None = None
    for step in steps:
        if isinstance(step, int):
            script.append(step)
            if waiting is not None:
                numbers[waiting] = len(script_takes(script))
                waiting = None
        elif step.startswith("-"):
            script.append(-numbers[step[1:]])
        else:
            waiting = step
    return Needs(tuple(script))


def script_takes(script: list[int]) -> list[int]:
    return [step for step in script if step > 0]


def _foreach_norm(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    return Needs((hidden.foreach_norm_bytes([tensor.numel() for tensor in args[0]]),))


def _scalar_operand(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    """A number becomes a tensor of its own on the GPU."""
    return Needs((RESULT, 8))


def _safe_softmax(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    """Which rows see nothing: a boolean a score, one a row, and the zero that such a row gets."""
    scores = out.numel()
    rows = scores // out.shape[args[1]]
    return Needs((RESULT, hidden.safe_softmax_bytes(scores), rows, 4, -3, -2, -1))


def _dropout(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    return Needs(order=(1, 0))


def _sum(kernels: Kernels, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    """Booleans and short integers are counted as the long ones that they are copied to."""
    source = args[0]
    if source.device.type != "meta" or out.dtype == source.dtype or source.dtype.is_floating_point:
        if source.device.type != "meta" or not source.dim():
            return None
        if out.dim() and out.shape[-1:] == source.shape[-1:]:
            return _column_sum(kernels, args, kwargs, out)
        return _reduction(max(4, out.element_size()))(kernels, args, kwargs, out)
    return Needs((RESULT, source.numel() * out.element_size()))


def _index(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    """Several indices are copied to one layout, where they come in different ones (``TensorAdvancedIndexing.cpp``)."""
    indices = [index for index in args[1] if index is not None]
    if len(indices) < 2 or any(index.dtype == torch.bool for index in indices):
        return None
    spread = torch.broadcast_tensors(*indices)
    if all(index.stride() == spread[0].stride() for index in spread):
        return None
    return Needs(tuple(index.numel() * 8 for index in spread if not index.is_contiguous()))


def _index_put(kernels: Kernels, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    """Where values are added up, places are sorted first, so that equal ones meet (``native/cuda/Indexing.cu``)."""
    indices = [index for index in args[1] if index is not None]
    adds = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if not adds or any(index.dtype == torch.bool for index in indices):
        return None
    places, each = math.prod(out.shape[: len(args[1])]), 8 * torch.broadcast_tensors(*indices)[0].numel()
    sort = hidden.radix_sort_bytes(each // 8, places)
    # First the smallest and the largest index are looked at.
    checks = (8, 8, 1, -3, 1, -4, -1, -2)
    return Needs((RESULT, *checks, each, each, -5, each, each, each, sort, -10))


def _sort(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    keys = args[0]
    if keys.dim() != 1 or keys.element_size() != 8 or keys.dtype.is_floating_point:
        return None
    count = keys.numel()
    places = (RESULT, RESULT, 8 * count)
    # A row that fits into one block is sorted there.
    return Needs(places if count <= 4096 else (*places, hidden.radix_sort_bytes(count, (1 << 64) - 1)))


def _scan(kernels: Kernels, args: tuple[Any, ...], _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    return Needs((RESULT, hidden.scan_bytes(out.numel(), out.element_size()))) if out.dim() == 1 else None


RULES: dict[Any, Rule] = {
    _aten.index_put.default: _index_put,
    _aten.sort.default: _sort,
    _aten.sort.stable: _sort,
    _aten.cumsum.default: _scan,
    _aten.index.Tensor: _index,
    **dict.fromkeys((_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default), _product),
    _aten._scaled_dot_product_flash_attention.default: _flash,
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    _aten._scaled_dot_product_efficient_attention.default: _efficient,
    _aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    _aten.embedding_dense_backward.default: _embedding_backward,
    _aten.sum.dim_IntList: _sum,
    _aten.sum.default: _sum,
    **dict.fromkeys((_aten.mean.default, _aten.mean.dim, _aten.linalg_vector_norm.default), _reduction(4)),
    **dict.fromkeys((_aten.std.correction, _aten.var.correction, _aten.argmax.default, _aten.max.dim), _reduction(16)),
    **dict.fromkeys((_aten.any.default, _aten.all.default, _aten.any.dim, _aten.all.dim), _reduction(1)),
    **dict.fromkeys((_aten.max.default, _aten.min.default, _aten.amax.default, _aten.amin.default), _reduction(None)),
    _aten._safe_softmax.default: _safe_softmax,
    _aten.native_dropout.default: _dropout,
    _aten._softmax_backward_data.default: _softmax_backward,
    _aten.pow.Scalar: _scalar_operand,
    _aten.multinomial.default: _multinomial,
    _aten._foreach_norm.Scalar: _foreach_norm,
}
"""By operation; what stands here not, takes nothing besides its results."""
