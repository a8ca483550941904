"""Starts programs on a phantom: the accounts' file, and the environment that puts the library before CUDA's own."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from nooom.formulas.errors import CannotMeasureError, UsageError
from nooom.formulas.gpus import GPU
from nooom.profiler.phantom import accounts, builder

BESIDE_A_DRIVER = "NOOOM_PHANTOM_BESIDE_DRIVER"
ACCOUNTS = "NOOOM_PHANTOM"
"""The environment's name for the accounts' file, by which the library finds it, and a program learns where it runs."""


class Phantom:
    """GPUs that aren't there, for the programs started in its environment.

    Args:
        gpu: which one it plays.
        count: how many of them.
    """

    def __init__(self, gpu: GPU, count: int = 1) -> None:
        """Build the library if need be, and write the accounts.

        Raises:
            CannotMeasureError: as :func:`builder.build`, or a machine that has an NVIDIA driver.
            UsageError: more GPUs than the accounts have room for.
        """
        if not 1 <= count <= accounts.MAX_GPUS:
            raise UsageError(f"--gpus must lie between 1 and {accounts.MAX_GPUS}, not {count}")
        refuse_a_real_driver()
        self.gpu = gpu
        self.folder = builder.build()
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - memory, by its system-wide name
        fd, name = tempfile.mkstemp(prefix="nooom-phantom-", dir=shared)
        self.path = Path(name)
        with open(fd, "wb") as file:
            file.write(accounts.written([gpu] * count))

    def __enter__(self) -> Phantom:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the accounts; what still runs keeps its own."""
        self.path.unlink(missing_ok=True)

    def accounts(self) -> list[accounts.Account]:
        """Who used it, and how much at most."""
        return accounts.read(self.path)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with what makes a program see the phantom."""
        return {
            **base,
            ACCOUNTS: str(self.path),
            "LD_PRELOAD": " ".join([str(self.folder / builder.LIBRARY), *base.get("LD_PRELOAD", "").split()]),
            "LD_LIBRARY_PATH": ":".join([str(self.folder), *filter(None, [base.get("LD_LIBRARY_PATH")])]),
            "TRITON_LIBCUDA_PATH": str(self.folder),  # Triton links its launchers against the driver
        }


def refuse_a_real_driver() -> None:
    """A phantom hides the GPU that is there from whatever runs in it: asked for once may be a mistake.

    Raises:
        CannotMeasureError: there is a driver, and nobody has asked twice.
    """
    found = [*glob.glob("/dev/nvidiactl"), *glob.glob("/proc/driver/nvidia/version")]
    if found and os.environ.get(BESIDE_A_DRIVER) != "1":
        raise CannotMeasureError(
            f"this machine has an NVIDIA driver ({found[0]}), and --device cuda measures on it; "
            f"to play a phantom GPU beside it all the same, set {BESIDE_A_DRIVER}=1"
        )


def is_played_here() -> bool:
    """Whether this process's GPU is a phantom: what it takes is emulated, and never called measured on cuda."""
    if ACCOUNTS in os.environ:
        return True
    # A program may have cleaned its environment since; what was loaded stays.
    with contextlib.suppress(OSError):
        return builder.LIBRARY in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return False


def playing(gpu: GPU) -> dict[str, str | int | None]:
    """How the GPU that is played stands in records: with where each of its figures comes from."""
    return {**dataclasses.asdict(gpu), "source": gpu.source}
