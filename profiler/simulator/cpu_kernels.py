"""What the CPU's kernels take besides their results, as :mod:`nooom.profiler.simulator.kernels` says it of CUDA's.

Two things are general: a number that meets a tensor becomes a tensor of its own, and operands of different types are
copied to the one that they have in common (``ATen/TensorIterator.cpp``, ``compute_types``).  The others are named here
with the file that they are from, in ``ATen/native``.  Products of half precision are not: oneDNN's scratch depends on
the processor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from nooom.profiler.simulator.kernels import RESULT, KernelTable, Needs

_aten: Any = torch.ops.aten
_HALF = (torch.bfloat16, torch.float16)
_NUMBER_BYTES = 8
"""A number that becomes a tensor: a double, or a long integer."""

Args: TypeAlias = tuple[Any, ...]
Rule: TypeAlias = Callable[["CpuKernels", Args, Mapping[str, Any], Any], Needs | None]


class CpuKernels(KernelTable):
    """The rules for a CPU.

    Args:
        threads: that work on one operation.
    """

    def __init__(self, threads: int) -> None:
        super().__init__(CPU_RULES)
        self.threads = threads

    def rule(self, func: Any) -> Callable[..., Needs | None] | None:
        found = super().rule(func)
        if found is None and torch.Tag.pointwise in func.tags:
            return _numbers if func._overloadpacket in _WITH_NUMBERS else _pointwise
        return found


def _bytes(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> int:
    return tensor.numel() * (dtype or tensor.dtype).itemsize


def _pointwise(kernels: CpuKernels, args: Args, _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    """Operands in another type than the common one are copied to it; booleans choose, where they are not alone."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dtype != torch.bool]
    dtype = tensors[0].dtype if tensors else None
    if all(tensor.dtype == dtype for tensor in tensors):
        return None
    return _needs(_copies(tensors, out))


def _numbers(kernels: CpuKernels, args: Args, _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    """Of operations to whose kernel a number comes as a tensor."""
    operands = args[:2]
    numbers = [arg for arg in operands if not isinstance(arg, torch.Tensor)]
    tensors = [arg for arg in operands if isinstance(arg, torch.Tensor)]
    if not numbers and all(tensor.dtype == tensors[0].dtype for tensor in tensors):
        return None
    made = [1 if isinstance(number, bool) else _NUMBER_BYTES for number in numbers]
    common = functools.reduce(torch.result_type, operands) if len(operands) > 1 else tensors[0].dtype
    cast = [common.itemsize for number in numbers if _type_of(number) != common]
    return _needs((*made, *_copies(tensors, out, common), *cast))


def _type_of(number: Any) -> torch.dtype:
    return torch.bool if isinstance(number, bool) else torch.int64 if isinstance(number, int) else torch.float64


def _copies(tensors: list[torch.Tensor], out: Any, common: torch.dtype | None = None) -> tuple[int, ...]:
    if common is None:
        common = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    found = [_bytes(tensor, common) for tensor in tensors if tensor.dtype != common]
    in_place = isinstance(out, torch.Tensor) and bool(tensors) and out is tensors[0] and out.dtype != common
    return (*([_bytes(out, common)] if in_place else []), *found)


def _needs(sizes: tuple[int, ...]) -> Needs | None:
    return Needs(sizes) if sizes else None


def _foreach_number(kernels: CpuKernels, args: Args, _kwargs: Mapping[str, Any], _out: Any) -> Needs | None:
    """One tensor after another (``ForeachOpsKernels.cpp``)."""
    return Needs((_NUMBER_BYTES, args[0][0].element_size()))


def _number_first(kernels: CpuKernels, args: Args, _kwargs: Mapping[str, Any], out: torch.Tensor) -> Needs:
    """``Pow.cpp``."""
    return Needs((RESULT, _NUMBER_BYTES, out.element_size()))


def _mean(kernels: CpuKernels, args: Args, _kwargs: Mapping[str, Any], out: torch.Tensor) -> Needs:
    """A sum that is divided by a number; in single precision where the source is in half (``ReduceOps.cpp``)."""
    source = args[0]
    if source.dtype in _HALF:
        return Needs((out.numel() * 4, source.numel() * 4, -2, _NUMBER_BYTES, 4, -4, -3, RESULT))
    return Needs((RESULT, _NUMBER_BYTES, out.element_size()))


def _sum(kernels: CpuKernels, args: Args, _kwargs: Mapping[str, Any], out: torch.Tensor) -> Needs | None:
    """A source in another type than the result is copied to it (``ReduceOps.cpp``)."""
    return None if args[0].dtype == out.dtype else Needs((RESULT, _bytes(args[0], out.dtype)))


def _safe_softmax(kernels: CpuKernels, args: Args, _kwargs: Mapping[str, Any], out: torch.Tensor) -> Needs:
    """Which rows see nothing: a boolean a score, one a row, and the zero that such a row gets (``SoftMax.cpp``)."""
    return Needs((RESULT, out.numel(), out.numel() // out.shape[args[1]], out.element_size()))


def _layer_norm_backward(kernels: CpuKernels, args: Args, _kwargs: Mapping[str, Any], out: Any) -> Needs | None:
    """Each thread's sums for the weight and the bias (``cpu/layer_norm_kernel.cpp``)."""
    source, shape, weight = args[1], args[2], args[5]
    if out[1] is None and out[2] is None:
        return None
    element = (source if weight is None else weight).element_size()
    results = sum(isinstance(result, torch.Tensor) for result in out)
    return Needs((*(RESULT,) * results, 2 * kernels.threads * math.prod(shape) * element))


def _embedding_backward(kernels: CpuKernels, args: Args, _kwargs: Mapping[str, Any], _out: Any) -> Needs | None:
    """``Embedding.cpp``: the gradient and the indices without gaps."""
    return _needs(tuple(_bytes(tensor) for tensor in args[:2] if not tensor.is_contiguous()))


def _bernoulli(kernels: CpuKernels, args: Args, _kwargs: Mapping[str, Any], _out: Any) -> Needs | None:
    """MKL draws integers (``cpu/DistributionKernels.cpp``), which is asked on Intel's processors only."""
    return Needs((4 * args[0].numel(),)) if _is_intels() else None


@functools.cache
def _is_intels() -> bool:
    try:
        return torch.backends.mkl.is_available() and "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # no Linux
        return False


def _flash_parts(queries: int, keys: int) -> tuple[int, int]:
    """How many queries and keys a thread takes at once (``cpu/FlashAttentionKernel.cpp``)."""
    return min(queries, 256 if queries >= 768 else 64 if queries >= 192 else 32), min(keys, 512)


def _flash(kernels: CpuKernels, args: Args, _kwargs: Mapping[str, Any], _out: Any) -> Needs:
    """Scores, maxima, sums and results of each thread's part (``cpu/FlashAttentionKernel.cpp``).

    In half precision the scores once more as the product takes them.
    """
    query, key = args[:2]
    rows, columns = _flash_parts(query.shape[2], key.shape[2])
    sizes = [kernels.threads * rows * (columns + 2 + query.shape[3]) * 4]
    if query.dtype in _HALF:
        sizes.append(kernels.threads * rows * columns * query.element_size())
    return Needs((RESULT, RESULT, *sizes))


def _flash_backward(kernels: CpuKernels, args: Args, _kwargs: Mapping[str, Any], _out: Any) -> Needs:
    """The gradient without gaps, scores and their gradients of each thread's part, and sums of its rows."""
    grad, query, key = args[:3]
    rows, columns = _flash_parts(query.shape[2], key.shape[2])
    pairs = 2 * kernels.threads * rows * columns
    copy = () if grad.transpose(1, 2).is_contiguous() else (_bytes(grad),)
    half = (pairs * query.element_size(),) if query.dtype in _HALF else ()
    return Needs((RESULT, RESULT, RESULT, *copy, pairs * 4, *half, rows * 4))


_WITH_NUMBERS = frozenset(
    (
        _aten.add, _aten.add_, _aten.sub, _aten.sub_, _aten.rsub, _aten.mul, _aten.mul_, _aten.div, _aten.div_,
        _aten.floor_divide, _aten.remainder, _aten.eq, _aten.ne, _aten.lt, _aten.le, _aten.gt, _aten.ge,
        _aten.bitwise_and, _aten.bitwise_or,
    )
)  # fmt: skip
"""Operations that are written for two tensors."""

CPU_RULES: dict[Any, Rule] = {
    **dict.fromkeys(
        (_aten._foreach_add_.Scalar, _aten._foreach_mul_.Scalar, _aten._foreach_div_.Scalar), _foreach_number
    ),
    _aten.pow.Scalar: _number_first,
    _aten.mean.dim: _mean,
    _aten.mean.default: _mean,
    _aten.sum.default: _sum,
    _aten.sum.dim_IntList: _sum,
    _aten._safe_softmax.default: _safe_softmax,
    _aten.native_layer_norm_backward.default: _layer_norm_backward,
    _aten.embedding_dense_backward.default: _embedding_backward,
    _aten.bernoulli_.float: _bernoulli,
    _aten._scaled_dot_product_flash_attention_for_cpu.default: _flash,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _flash_backward,
}
"""By operation; what stands here not, and is no arithmetic of elements, takes nothing besides its results."""
