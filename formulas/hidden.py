"""What CUDA kernels allocate for themselves, and no tensor shows: one function a kind, in bytes as they are requested.

Each holds for torch 2.11 to 2.14 unless it says otherwise; the source is the file of PyTorch's that allocates.  Where
the recordings that ship were taken apart (``results/hidden-allocations.md``) each was met exactly, or the table says
where not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_FLOAT32, _INT64 = 4, 8
_CHUNK = 65_536
"""Elements that a block of a foreach kernel works on (``native/cuda/MultiTensorApply.cuh``)."""


def cublas_workspace_bytes(compute_capability: tuple[int, int]) -> int:
    """One for each thread and stream that multiplies: the forward pass's and autograd's are two.

    8320 KiB (2 of 4096 KiB and 8 of 16 KiB), 32 MiB on Hopper and, since torch 2.12, on Blackwell
    (``cuda/CublasHandlePool.cpp``).
    """
    return 33_554_432 if compute_capability[0] in (9, 10) else 8_519_680


def flash_splits(batch: int, heads: int, queries: int, keys: int, head_dim: int, sms: int) -> int:
    """How many parts flash attention divides the keys in where there are few queries: 1 is none.

    ``heads`` are the query's, unless one query attends to grouped keys: then the groups take the queries' place
    (``flash_attn/flash_api.cpp``, ``num_splits_heuristic``).
    """
    block = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    blocks, places = math.ceil(keys / block), 2 * sms
    work = batch * heads * math.ceil(queries / 64)
    if work >= 0.8 * places:
        return 1
    most = min(128, places, blocks)
    eligible = [n for n in range(1, most + 1) if n == 1 or math.ceil(blocks / n) != math.ceil(blocks / (n - 1))]
    efficiency = {n: (work * n / places) / math.ceil(work * n / places) for n in eligible}
    best = max(efficiency.values())
    return next(n for n in eligible if efficiency[n] >= 0.85 * best)


def flash_forward_bytes(batch: int, heads: int, queries: int, head_dim: int, splits: int) -> tuple[int, ...]:
    """Sums and outputs of each part, in fp32, where the keys are divided; none otherwise."""
    if splits == 1:
        return ()
    rows = splits * batch * heads * queries
    return rows * _FLOAT32, rows * _rounded_head(head_dim) * _FLOAT32


def flash_backward_bytes(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, head_dim: int, element_bytes: int
) -> tuple[int, ...]:
    """Softmax's sums and the query's gradient, both fp32 and rounded up to 128 queries; grouped keys expanded.

    ``flash_attn/flash_api.cpp``, ``mha_bwd``: with fewer heads of keys than of queries, the gradients of keys and
    values have every query head's place before they are summed.
    """
    rows = batch * heads * _rounded(queries, 128)
    sizes = [rows * _FLOAT32, rows * _rounded_head(head_dim) * _FLOAT32]
    if kv_heads != heads:
        sizes += 2 * [batch * keys * heads * head_dim * element_bytes]
    return tuple(sizes)


def efficient_forward_bytes(
    batch: int, heads: int, queries: int, value_dim: int, element_bytes: int, widest: int
) -> tuple[int, ...]:
    """An fp32 output to add to, where a kernel can't hold a whole row: wider than 128, or keys wider than values.

    ``transformers/cuda/attention.cu``.  ``widest`` is the larger of the query's and the value's width.
    """
    if element_bytes == _FLOAT32 or widest <= 128:
        return ()
    return (batch * heads * queries * value_dim * _FLOAT32,)


def efficient_backward_bytes(
    batch: int, heads: int, queries: int, head_dim: int, element_bytes: int, *, keys: int = 0, value_dim: int = 0
) -> tuple[int, ...]:
    """Row sums, and the query's gradient in fp32 with counters for each 64 or 128 rows, as heads are wide.

    ``transformers/cuda/attention_backward.cu``.  An fp32 input takes product and sums in two steps.  Heads wider
    than 128 don't fit in registers: the gradients of keys and values get places to be added up in as well, one for
    each part that the keys are divided in.  ``keys`` and ``value_dim`` are the queries' where they are not given.
    """
    rows = batch * heads * queries
    keys, value_dim = keys or queries, value_dim or head_dim
    width = 64 if head_dim <= 64 else 128
    counters = 16 * math.ceil(queries / width)
    workspace = batch * heads * (_rounded(queries, 64) * width * _FLOAT32 + counters)
    sums = (rows * _FLOAT32,)
    if element_bytes == _FLOAT32:
        sums = (rows * head_dim * _FLOAT32, rows * _FLOAT32, *(sums if batch * heads > 1 else ()))
    elif max(head_dim, value_dim) > 128:
        parts = math.ceil(keys / 64)
        if batch * heads >= 256 and keys <= 128:
            parts = 1
        parts = max(min(parts, 200 // (batch * heads)), 1)
        tiles = math.ceil(queries / 128) * math.ceil(head_dim / 64)
        added = parts * 64 * (_rounded(head_dim, 128) + _rounded(value_dim, 128)) * _FLOAT32
        workspace = batch * heads * (tiles * (128 * 64 * _FLOAT32 + 16) + added)
    return (*sums, workspace)


def row_sum_bytes(rows: int, columns: int, sms: int, max_threads_per_sm: int) -> tuple[int, ...]:
    """Partial sums of a column-wise reduction, such as a bias's gradient (``native/cuda/Reduce.cuh``); fp32 sums.

    So many blocks share a column that every place on the GPU is taken: up to 132 MiB on an H100, from 1021 rows on.
    """
    vector = next(size for size in (4, 2, 1) if columns % size == 0)
    grid, places = math.ceil(columns / vector / 32), sms * (max_threads_per_sm // 128)
    steps = math.ceil(rows / 4)
    if steps < 256 or grid > places:
        return ()
    shared = max(min(math.ceil(places / grid), math.ceil(steps / 16)), math.ceil(steps / 256))
    return _FLOAT32 * columns * shared * 32 * vector, _FLOAT32 * grid


def reduction_bytes(
    outputs: int, inputs: int, *, value_bytes: int, sms: int, max_threads_per_sm: int
) -> tuple[int, ...]:
    """Partial results where so few rows are reduced that several blocks share one (``native/cuda/Reduce.cuh``).

    For neighbours in memory, ``inputs`` of them to each of ``outputs`` results, that are reduced to one value of
    ``value_bytes``: 4 for a sum in fp32, 16 for argmax, which keeps an index, and for a variance, which keeps a count.
    """
    along = inputs // 4 if outputs == 1 and inputs > 128 else inputs  # four at a time where there is one row
    wide, high = _power_of_two(min(along, 512)), _power_of_two(min(outputs, 512))
    width = min(wide, 32)
    height = min(high, 512 // width)
    width = min(wide, 512 // height)
    values = math.ceil(inputs / width)
    shares = values >= height * 16 or values >= 256
    if not shares:
        return ()
    values = math.ceil(values / height)
    places = sms * (max_threads_per_sm // (width * height))
    if values < 256 or outputs > places:
        return ()
    blocks = max(min(math.ceil(places / outputs), math.ceil(values / 16)), math.ceil(values / 256))
    return (value_bytes * outputs * blocks, 4 * outputs) if blocks > 1 else ()


def radix_sort_bytes(elements: int, largest: int) -> int:
    """CUB's scratch to sort 64-bit keys up to ``largest`` with 64-bit values (``cub``, ``dispatch_radix_sort``).

    A second copy of keys and values, and for each 8 bits a histogram and each block's part of it.
    """
    passes = math.ceil(largest.bit_length() / 8)
    blocks = math.ceil(elements / 3840)
    return 2 * _rounded(elements * _INT64, 256) + passes * 256 * _INT64 + blocks * 256 * 4 + 256 + 255


def scan_bytes(elements: int, element_bytes: int) -> int:
    """CUB's scratch for a running sum along one row: a state for each tile of 7 KiB, and 32 more (``cub``, scan)."""
    tiles = math.ceil(elements * element_bytes / 7168)
    return 256 + _rounded((tiles + 32) * 2 * element_bytes, 256) + 255


def embedding_backward_bytes(tokens: int, vocabulary: int, width: int) -> int:
    """The fp32 partial sums of an embedding's gradient, above 3072 tokens; sorting the indices takes some more.

    ``native/cuda/EmbeddingBackwardKernel.cu``: one part for each ten equal tokens, and one for each that differs.
    """
    if tokens <= 3072:
        return 0
    parts = math.ceil(tokens / 10) + min(tokens, vocabulary) - 1
    return parts * width * _FLOAT32


def foreach_norm_bytes(elements: Sequence[int]) -> int:
    """One partial norm for each chunk of the largest tensor, for every tensor (``native/cuda/ForeachReduceOp.cu``).

    It is what clipping gradients takes.
    """
    return len(elements) * math.ceil(max(elements) / _CHUNK) * _FLOAT32


def softmax_backward_bytes(elements: int) -> int:
    """The product of gradient and output, in fp32 for half precision too, where a softmax is differentiated."""
    return elements * _FLOAT32


def safe_softmax_bytes(elements: int) -> int:
    """A boolean for each score, where a softmax looks for rows that are masked as a whole."""
    return elements


def multinomial_bytes(rows: int, vocabulary: int) -> int:
    """One exponential draw for each probability, in fp32, to draw one token a row."""
    return rows * vocabulary * _FLOAT32


def _power_of_two(size: int) -> int:
    """The largest that is not above it."""
    return 1 << (size.bit_length() - 1)


def _rounded(size: int, to: int) -> int:
    return math.ceil(size / to) * to


def _rounded_head(head_dim: int) -> int:
    return _rounded(head_dim, 32 if head_dim <= 128 else 64)
