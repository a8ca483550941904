"""Errors that mean that memory ran out, on both allocators, and those that don't."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nooom.profiler.out_of_memory import classify_oom

ROOT = Path(__file__).resolve().parents[3]
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


def test_a_file_that_cannot_be_mapped() -> None:
    """Provoked in a process of its own: the limit would stay."""
    program = (
        "import os, resource, tempfile, torch\n"
        "from nooom.profiler.out_of_memory import classify_oom\n"
        "file = tempfile.NamedTemporaryFile(); os.truncate(file.name, 64 << 30)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (32 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))\n"
        "try:\n"
        "    torch.UntypedStorage.from_file(file.name, False, 64 << 30)\n"
        "except RuntimeError as error:\n"
        "    print(classify_oom(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == str({"kind": "cpu", "tried_bytes": 64 << 30})


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("std::bad_alloc")])
def test_pythons_own_and_cpluspluss_have_no_figure(error: BaseException) -> None:
    assert classify_oom(error) == {"kind": "cpu", "tried_bytes": None}


@pytest.mark.parametrize("text", ["could not create a primitive", "could not create a memory object"])
def test_onednn_says_no_more_than_that(text: str) -> None:
    assert classify_oom(RuntimeError(text)) == {"kind": "cpu", "tried_bytes": None}


@pytest.mark.parametrize(
    "text",
    ["CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"],
)
def test_cuda_outside_the_allocator_is_cuda_without_figures(text: str) -> None:
    told = classify_oom(RuntimeError(text))
    assert told is not None
    assert told.pop("kind") == "cuda"
    assert set(told.values()) == {None}
    assert set(told) == set(classify_oom(torch.cuda.OutOfMemoryError(CUDA_TEXT)) or ()) - {"kind"}


def test_small_sizes_and_a_text_that_lacks_figures() -> None:
    told = classify_oom(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 512 bytes."))
    assert told is not None
    assert (told["tried_bytes"], told["capacity_bytes"]) == (512, None)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        RuntimeError("shape mismatch"),
        RuntimeError("could not create a primitive descriptor for a matmul primitive"),
        KeyboardInterrupt(),
        OSError(12, "x"),
    ],
)
def test_other_errors_are_other_errors(error: BaseException) -> None:
    assert classify_oom(error) is None
