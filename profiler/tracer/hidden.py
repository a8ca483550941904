"""What kernels allocate for themselves: names for the blocks that no tensor owns, by the operation that asked."""

from __future__ import annotations

CUBLAS_BYTES = (8_519_680, 33_554_432)
"""cuBLAS's workspace, one for each thread and stream that multiplies: 8320 KiB, and 32 MiB on Hopper and, since
torch 2.12, on Blackwell (``ATen/cuda/CublasHandlePool.cpp``)."""
_CUBLASLT_BYTES = 1 << 20
_GENERATOR_BYTES = 5056
"""The CPU generator's state, which checkpointing keeps for each layer; on a GPU it lies on the host."""

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul")
_BY_OPERATION = {
    "cuBLAS's arrays or a copy of an operand": _PRODUCTS,
    "attention's temporaries": (
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_attention_math", "_flash_attention_forward", "_flash_attention_backward",
        "_efficient_attention_forward", "_efficient_attention_backward",
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    "the embedding's gradient: sorted indices and partial sums": ("embedding_dense_backward",),
    "index_put's sorted indices": ("index_put", "index_put_", "_index_put_impl_"),
    "partial sums of a reduction": (
        "sum", "mean", "amax", "amin", "max", "min", "any", "all", "norm", "linalg_vector_norm", "std", "var", "argmax",
        "_softmax", "_log_softmax",
    ),
    "which rows see nothing, for each score": ("_safe_softmax",),
    "gradient times output, in fp32": ("_softmax_backward_data",),
    "indices, spread out": ("index",),
    "where each expert's rows begin": ("_grouped_mm",),
    "an operand in the other's type, on the CPU": ("add", "add_", "sub", "mul", "div", "pow", "where", "copy_"),
    "one norm for each chunk": ("_foreach_norm", "_foreach_max"),
    "sorting's keys, indices and scratch": ("sort", "topk", "multinomial", "unique", "_unique2", "argsort"),
    "a scan's scratch": ("cumsum", "cumprod", "logcumsumexp", "nonzero"),
    "intermediate tensors of the step": ("_fused_adamw_", "_fused_adam_", "_fused_sgd_"),
}  # fmt: skip
_NAMES = {operation: what for what, operations in _BY_OPERATION.items() for operation in operations}


def name_of(operation: str | None, size_bytes: int) -> str | None:
    """What a block is that an operation asked for and returned no tensor of; None where that is not known.

    Args:
        operation: as ATen has it, e.g. ``aten.mm.default``; None for what was there before the tracer.
        size_bytes: as it was requested.
    """
    base = operation.split(".")[1] if operation is not None else None
    if size_bytes in CUBLAS_BYTES and (base is None or base in _PRODUCTS):
        return "cuBLAS workspace"
    if size_bytes == _GENERATOR_BYTES and base is None:
        return "a random generator's state"
    if size_bytes == _CUBLASLT_BYTES and base in _PRODUCTS:
        return "cuBLASLt workspace"
    return _NAMES.get(base) if base is not None else None
