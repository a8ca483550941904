"""What PyTorch's CUDA allocator says when memory runs out, word for word as torch 2.13 says it."""

from __future__ import annotations


def format_size(size: int) -> str:
    """A size as PyTorch's messages have it: 512 bytes, 2.00 KiB, 20.00 MiB, 1.50 GiB."""
    if size <= 1024:
        return f"{size} bytes"
    for unit, name in ((2**10, "KiB"), (2**20, "MiB")):
        if size <= unit * 1024:
            return f"{size / unit:.2f} {name}"
    return f"{size / 2**30:.2f} GiB"


def message(
    *,
    tried_bytes: int,
    total_bytes: int,
    free_bytes: int,
    used_bytes: int,
    allowed_bytes: int | None,
    allocated_bytes: int,
    reserved_bytes: int,
) -> str:
    """The text of ``torch.OutOfMemoryError``, where this process is the only one on the GPU."""
    allowed = "" if allowed_bytes is None else f"{format_size(allowed_bytes)} allowed; "
    return (
        f"CUDA out of memory. Tried to allocate {format_size(tried_bytes)}. GPU 0 has a total capacity of "
        f"{format_size(total_bytes)} of which {format_size(free_bytes)} is free. Including non-PyTorch memory, this "
        f"process has {format_size(used_bytes)} memory in use. {allowed}Of the allocated memory "
        f"{format_size(allocated_bytes)} is allocated by PyTorch, and {format_size(reserved_bytes - allocated_bytes)} "
        "is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
        "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
