"""Errors that mean that memory ran out, on both allocators, and those that don't."""

from __future__ import annotations

import pytest
import torch

from nooom.profiler.out_of_memory import classify_oom

CUDA_TEXT = (
    "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 79.19 GiB of which 1.50 GiB is free. "
    "Including non-PyTorch memory, this process has 77.68 GiB memory in use. Of the allocated memory 75.11 GiB is "
    "allocated by PyTorch, and 1.95 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
    "large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


def test_the_cuda_allocators_text_is_read_figure_by_figure() -> None:
    assert classify_oom(torch.cuda.OutOfMemoryError(CUDA_TEXT)) == {
        "kind": "cuda",
        "tried_bytes": round(2.32 * 2**30),
        "capacity_bytes": round(79.19 * 2**30),
        "free_bytes": round(1.5 * 2**30),
        "allocated_bytes": round(75.11 * 2**30),
        "reserved_unallocated_bytes": round(1.95 * 2**30),
    }


def test_the_cpu_allocators_own_error() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert classify_oom(caught.value) == {"kind": "cpu", "tried_bytes": 1 << 50}


def test_pythons_own_has_no_figure() -> None:
    assert classify_oom(MemoryError()) == {"kind": "cpu", "tried_bytes": None}


@pytest.mark.parametrize(
    "error", [ValueError("x"), RuntimeError("shape mismatch"), KeyboardInterrupt(), OSError(12, "x")]
)
def test_other_errors_are_other_errors(error: BaseException) -> None:
    assert classify_oom(error) is None
