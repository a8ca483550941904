"""The GPUs that the command knows by name: memory as torch reports it, what kernels ask about, the context's size.

total_bytes is what ``torch.cuda.get_device_properties().total_memory`` says: less than the datasheet's, by what ECC and
the driver keep, and some tens of MiB different between drivers.  Where published reports differ, one under a recent
driver stands here and its source names another.  "deviceQuery" prints the same figure to the byte; torch itself prints
whole MiB, rounded down.  context_bytes is what one plain process takes outside the allocator, the largest of the
published figures: it grows as kernels are loaded.  A figure that nobody published is None, not a guess.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from dataclasses import dataclass

from nooom.formulas.errors import UsageError, nearest
from nooom.formulas.sizes import size_bytes

_MIB = 1 << 20
_PROCESSORS = (
    "multiprocessors as deviceQuery or torch print them; threads by compute capability, CUDA programming guide"
)
_THREADS_PER_SM = {(7, 0): 2048, (7, 5): 1024, (8, 0): 2048, (8, 6): 1536, (8, 9): 1536, (9, 0): 2048, (10, 0): 2048,
                   (12, 0): 1536}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GPU:
    """One GPU by the command's name for it."""

    name: str
    total_bytes: int
    compute_capability: tuple[int, int]
    sms: int
    """Streaming multiprocessors."""
    device_name: str
    """As torch and NVML print it."""
    total_source: str
    """Where total_bytes comes from."""
    context_bytes: int | None = None
    """CUDA context and modules of one process, outside torch's allocator; None when unknown."""
    context_source: str = "no published figure found"
    processor_source: str = _PROCESSORS
    """Where compute_capability, sms and max_threads_per_sm come from."""

    @property
    def max_threads_per_sm(self) -> int:
        return _THREADS_PER_SM[self.compute_capability]

    @property
    def usable_bytes(self) -> int:
        """What torch's allocator can have: the total less the context, which counts as nothing where it is unknown."""
        return self.total_bytes - (self.context_bytes or 0)

    @property
    def caveat(self) -> str | None:
        """What is to be said beside a verdict on it; None where nothing is unknown."""
        if self.context_bytes is not None:
            return None
        return f"the size of the CUDA context on {self.name} is unknown and counted as nothing"

    @property
    def source(self) -> str:
        """Where each figure comes from, in one line."""
        return f"memory: {self.total_source}; context: {self.context_source}; processors: {self.processor_source}"


def _torch_mib(mib: int, where: str) -> dict[str, int | str]:
    """A total of which only whole MiB are published."""
    return {"total_bytes": mib * _MIB, "total_source": f"printed by torch in whole MiB, rounded down: {where}"}


def _query(total_bytes: int, where: str) -> dict[str, int | str]:
    return {"total_bytes": total_bytes, "total_source": f"published deviceQuery output, {where}"}


def _context(mib: int, where: str) -> dict[str, int | str]:
    return {"context_bytes": mib * _MIB, "context_source": f"{mib} MiB: public out-of-memory reports, {where}"}


def _gpu(name: str, device_name: str, capability: tuple[int, int], sms: int, *figures: dict[str, int | str]) -> GPU:
    merged = {key: value for part in figures for key, value in part.items()}
    return GPU(name=name, device_name=device_name, compute_capability=capability, sms=sms, **merged)  # type: ignore[arg-type]


_ALL = (
    _gpu("t4-16gb", "Tesla T4", (7, 5), 40, _query(15_642_329_088, "driver for CUDA 12.5; up to 15,843,721,216 before"),
         _context(135, "four, 99 to 135 MiB")),
    _gpu("v100-16gb", "Tesla V100-SXM2-16GB", (7, 0), 80,
         _query(16_928_342_016, "V100-SXM2-16GB, driver for CUDA 12.4")),
    _gpu("v100-32gb", "Tesla V100-SXM2-32GB", (7, 0), 80,
         _query(34_072_559_616, "V100-SXM2-32GB, driver for CUDA 12.9")),
    _gpu("a10-24gb", "NVIDIA A10", (8, 6), 72,
         _query(23_696_375_808, "driver for CUDA 12.8; 23,609,475,072 under 12.2")),
    _gpu("a100-40gb", "NVIDIA A100-PCIE-40GB", (8, 0), 108,
         _query(42_298_834_944, "A100-PCIE-40GB, CUDA 12.2; 42,505,273,344 before"),
         _context(501, "one; 414 MiB for an idle sibling rank")),
    _gpu("a100-80gb", "NVIDIA A100-SXM4-80GB", (8, 0), 108,
         _query(85_100_068_864, "A100-SXM4-80GB, CUDA 12.5; 84,987,740,160 under 12.2"),
         _context(512, "503 MiB, and 512 on a card of 79.33 GiB that was this or an H100")),
    _gpu("l4-24gb", "NVIDIA L4", (8, 9), 58, _query(23_612_293_120, "driver for CUDA 12.0")),
    _gpu("l40s-48gb", "NVIDIA L40S", (8, 9), 142, _query(47_576_711_168, "driver for CUDA 12.4")),
    _gpu("rtx3090-24gb", "NVIDIA GeForce RTX 3090", (8, 6), 82,
         _query(25_414_860_800, "driver for CUDA 12.2; 25,447,170,048 under 11.8"),
         {"context_bytes": 287_047_680, "context_source": "total less free after lazy loading, torch 1.13"}),
    _gpu("rtx4090-24gb", "NVIDIA GeForce RTX 4090", (8, 9), 128,
         _query(25_386_352_640, "CUDA 12.4; 25,250,627,584 in one report under 13.0")),
    _gpu("rtx5090-32gb", "NVIDIA GeForce RTX 5090", (12, 0), 170, _query(33_660_534_784, "CUDA 13.0"),
         _context(590, "300 to 590 MiB")),
    _gpu("h100-80gb", "NVIDIA H100 80GB HBM3", (9, 0), 132,
         {"total_bytes": 85_029_158_912, "total_source": "H100 SXM, published; 85,028,896,768 under CUDA 12.8"},
         _context(512, "one, on a card of 79.33 GiB that was this or an A100")),
    _gpu("h100-pcie-80gb", "NVIDIA H100 PCIe", (9, 0), 114, _torch_mib(81_008, "NVIDIA H100 PCIe")),
    _gpu("h200-141gb", "NVIDIA H200", (9, 0), 132, _torch_mib(143_156, "NVIDIA H200 (nvidia-smi: 143,771 MiB)")),
    _gpu("b200-180gb", "NVIDIA B200", (10, 0), 148,
         _torch_mib(182_631, "NVIDIA B200, torch 2.8; 182,642 in one other report")),
)  # fmt: skip

GPUS: dict[str, GPU] = {gpu.name: gpu for gpu in _ALL}
"""Every GPU by its name."""

NAMES = tuple(GPUS)


def find(name: str, memory: str | None = None) -> GPU:
    """The GPU of that name, in any case.

    Args:
        name: one of the table's.
        memory: ``200GiB``, ``96 GB``: the same GPU with another capacity; None keeps its own.

    Raises:
        UsageError: an unknown name (the message has the nearest ones), or a memory that is no size.
    """
    if name.lower() not in GPUS:
        raise UsageError(f"--gpu {name!r} is unknown; {nearest(name, NAMES)}")
    gpu = GPUS[name.lower()]
    if memory is None:
        return gpu
    return dataclasses.replace(
        gpu, total_bytes=size_bytes(memory, "--gpu-memory"), total_source=f"--gpu-memory {memory}"
    )


def by_device_name(device: str, total_bytes: int | None = None) -> GPU | None:
    """The table's GPU that calls itself by this name (``NVIDIA A100-SXM4-80GB``), or None where it can't be told.

    Args:
        device: as torch or a publication names the device.
        total_bytes: as torch reports it; tells cards of one model and two sizes apart where their names don't.
    """
    words = re.findall(r"[a-z]+\d+[a-z]?|\d+gb|pcie|[a-z]+|\d+", device.lower().replace(" gb", "gb"))
    spelt = "".join(words)
    of_model = [gpu for gpu in _ALL if gpu.name.split("-")[0] in (*words, *_pairs(words))]
    of_model = [gpu for gpu in of_model if ("pcie" in gpu.name) == ("pcie" in spelt)] or of_model
    sized = [gpu for gpu in of_model if gpu.name.split("-")[-1] in words] or of_model
    if total_bytes is not None:
        sized = [gpu for gpu in sized if abs(gpu.total_bytes - total_bytes) < 0.03 * gpu.total_bytes]
    return sized[0] if len(sized) == 1 else None


def file_name(device: str, total_bytes: int | None = None) -> str:
    """What files and folders of a GPU's results are called: the table's name for it, or its own in plain letters."""
    gpu = by_device_name(device, total_bytes)
    return gpu.name if gpu is not None else re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def _pairs(words: list[str]) -> list[str]:
    """Neighbours written as one: RTX 4090 is rtx4090 in the table."""
    return [left + right for left, right in itertools.pairwise(words)]
