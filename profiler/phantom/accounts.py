"""The file in which a phantom's processes keep their accounts: who has how much of which GPU.

Its layout is ``struct phantom_accounts`` of ``source/phantom.h``.  The launcher writes the GPUs into it, the preloaded
library in every process the rest.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nooom.formulas.gpus import GPU

MAX_GPUS = 16
_PROCESSES = 256
_HEAD = struct.Struct("<8sII")
_GPU = struct.Struct("<64s16sQQiiii")
_PROCESS = struct.Struct(f"<iiQQQ{MAX_GPUS}Q{MAX_GPUS}Q")
_SIZE = _HEAD.size + MAX_GPUS * _GPU.size + _PROCESSES * _PROCESS.size
_MAGIC = b"nooomPH\0"


@dataclass(frozen=True, kw_only=True)
class Account:
    """One process's account."""

    pid: int
    peak_bytes: tuple[int, ...]
    """The most that it had of each GPU at once, as NVML would have shown it: its context included."""
    reads: int
    """Copies to the host of what no kernel computed."""
    refusals: int
    """Requests for memory that found no room: the allocator frees its cache and tries again, or is out of memory."""


def written(gpus: Sequence[GPU]) -> bytes:
    """A fresh file: these GPUs, and no process yet."""
    assert 1 <= len(gpus) <= MAX_GPUS
    table = b"".join(_packed(gpu, number) for number, gpu in enumerate(gpus))
    return (_HEAD.pack(_MAGIC, _SIZE, len(gpus)) + table).ljust(_SIZE, b"\0")


def uuid_of(gpu: GPU, number: int) -> uuid.UUID:
    """By which programs know the number-th of these GPUs, the same in every run."""
    return uuid.UUID(bytes=hashlib.sha256(f"{gpu.name} {number}".encode()).digest()[:16])


def _packed(gpu: GPU, number: int) -> bytes:
    major, minor = gpu.compute_capability
    return _GPU.pack(
        gpu.device_name.encode()[:63], uuid_of(gpu, number).bytes, gpu.total_bytes, gpu.context_bytes or 0,
        major, minor, gpu.sms, gpu.max_threads_per_sm,
    )  # fmt: skip


def read(path: Path) -> list[Account]:
    """Every process that used a GPU of these, in the order in which they came."""
    content = path.read_bytes()
    _, _, gpus = _HEAD.unpack_from(content)
    found = []
    for number in range(_PROCESSES):
        values = _PROCESS.unpack_from(content, _HEAD.size + MAX_GPUS * _GPU.size + number * _PROCESS.size)
        pid, _ended, _started, reads, refusals = values[:5]
        if pid:
            peaks = values[5 + MAX_GPUS : 5 + MAX_GPUS + gpus]
            found.append(Account(pid=pid, peak_bytes=tuple(peaks), reads=reads, refusals=refusals))
    return found
