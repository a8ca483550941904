"""What is here, without importing torch: GPUs by way of NVML, the CPU, and how much memory may be used."""

from __future__ import annotations

import contextlib
import glob
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CGROUP_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


@dataclass(frozen=True, kw_only=True)
class FoundGPU:
    """A GPU that the driver shows."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    driver: str


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    """The NVML binding, initialised; raises its own error, or ImportError, where there is none."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def find_gpus() -> list[FoundGPU]:
    """The GPUs that torch may use here: those that NVML shows, unless CUDA_VISIBLE_DEVICES hides them all."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return []
    try:
        with nvml() as library:
            return [_found(library, index) for index in range(library.nvmlDeviceGetCount())]
    except Exception:  # no library, no driver, no permission: looked_for() says which
        return []


def _found(library: Any, index: int) -> FoundGPU:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    return FoundGPU(
        index=index,
        name=_text(library.nvmlDeviceGetName(handle)),
        uuid=_text(library.nvmlDeviceGetUUID(handle)),
        total_bytes=int(library.nvmlDeviceGetMemoryInfo(handle).total),
        driver=_text(library.nvmlSystemGetDriverVersion()),
    )


def looked_for() -> str:
    """One line: what was looked for and not found."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    try:
        with nvml() as library:
            library_says = f"NVML shows {library.nvmlDeviceGetCount()} GPUs"
    except Exception as error:
        library_says = f"NVML: {error}"
    devices = "present" if glob.glob("/dev/nvidia[0-9]*") else "no /dev/nvidia*"
    return f"{library_says}; {devices}; torch {version('torch')}"


def version(distribution: str) -> str | None:
    """The installed version of a distribution; None when it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """The processor's name, as Linux or the platform gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cgroup_limit_bytes() -> int | None:
    """What a container may use; None where nothing limits it."""
    limit = _first_integer(_CGROUP_LIMITS)
    return limit if limit is not None and limit < 1 << 60 else None


def available_bytes() -> int:
    """What a new process may take without pushing anything out: the kernel's figure, within the container's limit."""
    import psutil

    available = int(psutil.virtual_memory().available)
    limit, used = cgroup_limit_bytes(), _first_integer(_CGROUP_USED)
    if limit is not None and used is not None:
        available = min(available, max(limit - used, 0))
    return available


def _first_integer(paths: tuple[str, ...]) -> int | None:
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            return int(Path(path).read_text().strip())
    return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
