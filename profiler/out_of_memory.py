"""Which errors mean that memory ran out, and what they say about it.

The CUDA allocator raises its own type with a long text; the CPU allocator raises a plain RuntimeError.
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
_CPU = re.compile(
    r"DefaultCPUAllocator: (?:not enough memory|can't allocate memory).*?tried to allocate (\d+) bytes", re.S
)
_CPU_KERNEL = re.compile(r"could not (?:create a memory object|create a primitive)|std::bad_alloc|out of memory", re.I)


def classify_oom(error: BaseException) -> dict[str, Any] | None:
    """What an error says about memory that ran out; None when it is another error.

    Returns:
        ``kind`` (cuda or cpu) and ``tried_bytes`` (None where the text does not say); for CUDA also the other figures
        of its text, rounded as the text rounds them.
    """
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError" or text.startswith("CUDA out of memory"):
        return {"kind": "cuda", **{name: _figure(pattern, text) for name, pattern in _CUDA.items()}}
    if (found := _CPU.search(text)) is not None:
        return {"kind": "cpu", "tried_bytes": int(found[1])}
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _CPU_KERNEL.search(text)):
        return {"kind": "cpu", "tried_bytes": None}
    return None


def _figure(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return None if found is None else round(float(found[1]) * _UNITS[found[2]])
