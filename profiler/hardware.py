"""What is here, without importing torch: GPUs by way of NVML, the CPU, and how much memory may be used."""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib.metadata
import importlib.util
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.profiler.nvml import device_memory, processes

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_UNLIMITED_BYTES = 1 << 60
"""Cgroups of version 1 write "no limit" as a number near 2**63."""


@dataclass(frozen=True, kw_only=True)
class FoundGPU:
    """A GPU that the driver shows."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    driver: str
    used_bytes: int | None = None
    """By all processes; see ``nvml.DeviceMemory``."""
    reserved_bytes: int | None = None
    """The driver's own; None where it is not told apart from ``used_bytes``."""
    processes: Mapping[int, int | None] | None = None
    """Bytes by process, None where the driver does not say; None as a whole where it lists none of them."""


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """The torch that is installed, by its own ``version.py``: wheels of one release differ in their CUDA."""

    version: str | None
    """As ``torch.__version__``, e.g. 2.13.0+cpu; None when torch is not installed."""
    cuda: str | None
    """The CUDA that it was built for; None for a CPU build."""

    @property
    def without_cuda(self) -> bool:
        return self.version is not None and self.cuda is None


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


def visible_gpus() -> list[str]:
    """The GPUs that torch may use here, one at a time, each as CUDA_VISIBLE_DEVICES names it.

    Where NVML isn't there (a container that was given the compute driver alone), device files still tell.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",")]
        return names if names[0] not in ("", "-1") and (find_gpus() or _device_files()) else []
    return [gpu.uuid for gpu in find_gpus()] or [str(index) for index in range(len(_device_files()))]


def _device_files() -> list[str]:
    return glob.glob("/dev/nvidia[0-9]*")


def _found(library: Any, index: int) -> FoundGPU:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    memory = device_memory(library, handle)
    listed = None
    with contextlib.suppress(Exception):  # not supported on this GPU, or not allowed to this user
        listed = processes(library, handle)
    return FoundGPU(
        index=index,
        name=_text(library.nvmlDeviceGetName(handle)),
        uuid=_text(library.nvmlDeviceGetUUID(handle)),
        total_bytes=memory.total_bytes,
        driver=_text(library.nvmlSystemGetDriverVersion()),
        used_bytes=memory.used_bytes,
        reserved_bytes=memory.reserved_bytes,
        processes=listed,
    )


def looked_for() -> str:
    """One line: what was looked for, and what of it is missing."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    try:
        with nvml() as library:
            library_says = f"NVML shows {library.nvmlDeviceGetCount()} GPUs"
    except Exception as error:
        library_says = f"NVML: {error}"
    devices = "/dev/nvidia* is there" if _device_files() else "no /dev/nvidia*"
    return f"{library_says}; {devices}; {_torch_says(torch_build())}"


def _torch_says(build: TorchBuild) -> str:
    if build.version is None:
        return "torch is not installed"
    return f"torch {build.version} is built {f'for CUDA {build.cuda}' if build.cuda else 'without CUDA'}"


@functools.cache
def torch_build() -> TorchBuild:
    """Which torch is installed, read from its ``version.py`` without importing torch, which takes seconds."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        with contextlib.suppress(OSError):
            text = (Path(folder) / "version.py").read_text(encoding="utf-8")
            return TorchBuild(version=_assigned("__version__", text) or version("torch"), cuda=_assigned("cuda", text))
    return TorchBuild(version=version("torch"), cuda=None)


def _assigned(name: str, text: str) -> str | None:
    found = re.search(rf"^{name}(?:: [^=]+)? = '([^']*)'", text, re.M)
    return None if found is None else found[1]


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


def cpu_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """The machine's memory, whatever a container may use of it."""
    import psutil

    return int(psutil.virtual_memory().total)


def cgroup_limit_bytes() -> int | None:
    """What a container, or any group around this process, may use; None where nothing limits it."""
    limits = [limit for folder in _cgroup_folders() if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def available_bytes() -> int:
    """What a new process may take without pushing anything out: the kernel's figure, within each group's limit."""
    import psutil

    available = int(psutil.virtual_memory().available)
    for folder in _cgroup_folders():
        limit, used = _limit(folder), _used(folder)
        if limit is not None and used is not None:
            available = min(available, max(limit - used, 0))
    return available


def _cgroup_folders() -> Iterator[Path]:
    """The memory groups around this process, innermost first: a limit stands on any of them.

    Where a container does not show its group's own path, the root is its group.
    """
    text = ""
    with contextlib.suppress(OSError):
        text = _OWN_CGROUP.read_text(encoding="utf-8")
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _CGROUPS / "memory" if controllers else _CGROUPS
        parts = [part for part in path.split("/") if part not in ("", "..")]
        yield from (root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1))


def _limit(folder: Path) -> int | None:
    limit = _integer(folder / "memory.max", folder / "memory.limit_in_bytes")
    return limit if limit is not None and limit < _UNLIMITED_BYTES else None


def _used(folder: Path) -> int | None:
    """Without the cache of files that nobody reads any more, which the kernel drops before it refuses anything."""
    used = _integer(folder / "memory.current", folder / "memory.usage_in_bytes")
    if used is None:
        return None
    with contextlib.suppress(OSError):
        figures = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        # Version 1 counts the groups below only in figures named total_.
        used -= int(figures.get("total_inactive_file", figures.get("inactive_file", 0)))
    return max(used, 0)


def _integer(*paths: Path) -> int | None:
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            return int(path.read_text().strip())
    return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
