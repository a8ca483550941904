"""What NVML shows of every process on every GPU while a command runs, sampled from outside."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from nooom.profiler import hardware, nvml

INTERVAL_S = 0.05


class ProcessPeaks:
    """The most that each process had of each GPU; a lower bound, since what lies between two samples is not seen.

    Without NVML, or where it names processes by other numbers (in a container), it has no figures.
    """

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._peaks: dict[tuple[int, str], int] = {}
        self._indexes: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ProcessPeaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def of(self, pid: int) -> dict[str, int]:
        """One process's peaks in bytes, by the GPU's UUID as torch writes it; none when it was never seen."""
        return {uuid: peak for (of, uuid), peak in self._peaks.items() if of == pid}

    def index_of(self, uuid: str) -> int | None:
        """NVML's number of that GPU; None where NVML doesn't know it."""
        return self._indexes.get(uuid)

    def add(self, uuid: str, used: Mapping[int, int | None]) -> None:
        """One sample of one GPU: bytes by process, None where the driver does not say."""
        for pid, size_bytes in used.items():
            if size_bytes is not None:
                self._peaks[pid, uuid] = max(self._peaks.get((pid, uuid), 0), size_bytes)

    def _run(self) -> None:
        try:
            with hardware.nvml() as library:
                count = library.nvmlDeviceGetCount()
                handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
                gpus = [(_as_torch(library.nvmlDeviceGetUUID(handle)), handle) for handle in handles]
                self._indexes = {uuid: index for index, (uuid, _) in enumerate(gpus)}
                while not self._stop.wait(self._interval_s):
                    for uuid, handle in gpus:
                        self.add(uuid, _listed(library, handle))
        except Exception:  # no NVML: a figure less, not a measurement less
            return


def _listed(library: Any, handle: Any) -> dict[int, int | None]:
    try:
        return nvml.processes(library, handle)
    except Exception:  # a sample that did not happen
        return {}


def _as_torch(uuid: str | bytes) -> str:
    """Without the prefix that NVML writes and torch leaves out."""
    text = uuid.decode() if isinstance(uuid, bytes) else uuid
    return text.removeprefix("GPU-").removeprefix("MIG-")
