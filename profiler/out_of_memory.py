"""Which errors mean that memory ran out, and what they say about it.

The CUDA allocator raises its own type with a long text; CUDA itself and the CPU's libraries raise a plain RuntimeError.
"""

from __future__ import annotations

import re
from typing import Any

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB)"
_CUDA = {
    "tried_bytes": rf"Tried to allocate {_SIZE}",
    "capacity_bytes": rf"total capacity of {_SIZE}",
    "free_bytes": rf"of which {_SIZE} is free",
    "allocated_bytes": rf"Of the allocated memory {_SIZE} is allocated by PyTorch",
    "reserved_unallocated_bytes": rf"{_SIZE} is reserved by PyTorch but unallocated",
}
# Outside the caching allocator: a context, a kernel's module, a cuBLAS handle that found no room.
_CUDA_ITSELF = re.compile(r"CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED")
_CPU = re.compile(
    r"DefaultCPUAllocator: (?:not enough memory|can't allocate memory).*?tried to allocate (\d+) bytes", re.S
)
_MMAP = re.compile(r"unable to mmap (\d+) bytes from file .*Cannot allocate memory", re.S)
# oneDNN says no more than this when its scratch space finds no room; "... a primitive descriptor" is another matter:
# an operation that it does not have.
_CPU_KERNEL = re.compile(r"could not create a (?:memory object|primitive(?! descriptor))|std::bad_alloc")


def classify_oom(error: BaseException) -> dict[str, Any] | None:
    """What an error says about memory that ran out; None when it is another error.

    Returns:
        ``kind`` (cuda or cpu) and ``tried_bytes`` (None where the text does not say); for CUDA also
        ``capacity_bytes``, ``free_bytes``, ``allocated_bytes`` and ``reserved_unallocated_bytes``, all rounded as the
        text rounds them.
    """
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError" or text.startswith("CUDA out of memory"):
        said = {name: _figure(pattern, text) for name, pattern in _CUDA.items()}
        exact = getattr(error, "tried_bytes", None)  # a simulated allocator's error has it beside the text
        return {"kind": "cuda", **said, **({"tried_bytes": exact} if isinstance(exact, int) else {})}
    if isinstance(error, MemoryError):
        return {"kind": "cpu", "tried_bytes": None}
    return _from_text(text) if isinstance(error, RuntimeError) else None


def _from_text(text: str) -> dict[str, Any] | None:
    if _CUDA_ITSELF.search(text):
        return {"kind": "cuda", **dict.fromkeys(_CUDA)}
    if (found := _CPU.search(text) or _MMAP.search(text)) is not None:
        return {"kind": "cpu", "tried_bytes": int(found[1])}
    return {"kind": "cpu", "tried_bytes": None} if _CPU_KERNEL.search(text) else None


def _figure(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return None if found is None else round(float(found[1]) * _UNITS[found[2]])
