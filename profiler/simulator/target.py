"""The device that a dry run plays: what its kernels take, and what it does otherwise than meta tensors' own code."""

from __future__ import annotations

from dataclasses import dataclass

from nooom.formulas.gpus import GPU
from nooom.profiler.simulator.choices import choices
from nooom.profiler.simulator.functions import Choices
from nooom.profiler.simulator.kernels import Kernels


@dataclass(frozen=True, kw_only=True)
class Target:
    """One device."""

    kernels: Kernels
    choices: Choices
    foreach: bool = True
    """Whether optimizers take many tensors at once where nobody says."""
    host_is_device: bool = False
    """Whether what lies on the host lies on the device."""


def cuda(gpu: GPU) -> Target:
    """A GPU."""
    return Target(kernels=Kernels(gpu), choices=choices(gpu))
