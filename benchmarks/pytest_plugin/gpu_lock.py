"""One process a GPU: two that measure on the same one would each see the other's memory run out, or their own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from nooom.formulas.errors import CannotMeasureError, UsageError
from nooom.profiler.phantom.launcher import ACCOUNTS

FOLDER = "NOOOM_LOCKS"
"""The environment's name for the folder of locks, where the one for temporary files is not shared."""


class GpuLocks:
    """The GPUs that this process has to itself until it ends.

    Args:
        who: what the next one is told of us.
        share: measure all the same on a GPU that somebody else has.
    """

    def __init__(self, who: str, *, share: bool) -> None:
        self._who = who
        self._share = share
        self._held: dict[str, int | None] = {}
        self.shared: str | None = None
        """Who else has the GPU; None where nobody does."""

    def take(self, torch: Any) -> None:
        """The current GPU, for the rest of the session.

        Raises:
            CannotMeasureError: another process has it.
            UsageError: a lock can't be made where it should lie.
        """
        index = torch.cuda.current_device()
        uuid = str(getattr(torch.cuda.get_device_properties(index), "uuid", "")) or f"number-{index}"
        if uuid in self._held:
            return
        path = folder() / f"nooom-gpu-{uuid}{_phantom()}.lock"
        descriptor = _opened(path)
        if _locked(descriptor):
            _note(descriptor, self._who)
            self._held[uuid] = descriptor
            return
        holder = _read(descriptor)
        os.close(descriptor)
        if not self._share:
            raise CannotMeasureError(
                f"GPU {uuid} is measured on by {holder} already (lock {path}): run with -n 0, give each worker a GPU "
                "of its own by CUDA_VISIBLE_DEVICES, or measure all the same with --gpu-memory-share"
            )
        self._held[uuid] = None
        self.shared = holder

    def release(self) -> None:
        """Give all of them back."""
        held, self._held = self._held, {}
        for descriptor in held.values():
            if descriptor is not None:
                _unlock(descriptor)
                os.close(descriptor)


def folder() -> Path:
    """Where locks lie: one place for all processes of a machine that share its GPUs."""
    return Path(os.environ.get(FOLDER) or tempfile.gettempdir())


def _phantom() -> str:
    """Every command's phantom is a GPU of its own, and all of one model have the same UUID."""
    accounts = os.environ.get(ACCOUNTS)
    return f"-phantom-{hashlib.sha256(accounts.encode()).hexdigest()[:8]}" if accounts else ""


def _opened(path: Path) -> int:
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):
            return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)
        # Another user's, in a folder where the system lets nobody open such files for writing: locking needs no more.
        return os.open(path, os.O_RDONLY | flags)
    except OSError as error:
        raise UsageError(f"{path}: can't be locked: {error.strerror}; {FOLDER} names another folder") from error


def _locked(descriptor: int) -> bool:
    if sys.platform == "win32":  # nobody is kept out
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def _unlock(descriptor: int) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    with contextlib.suppress(OSError):  # also where a forked child still has the file open
        os.ftruncate(descriptor, 0)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _note(descriptor: int, who: str) -> None:
    with contextlib.suppress(OSError):  # another user's file: held all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, who.encode(), 0)


def _read(descriptor: int) -> str:
    with contextlib.suppress(OSError):
        said = os.pread(descriptor, 200, 0).decode("utf-8", "replace")
        if said and said.isprintable():
            return said
    return "another process"
