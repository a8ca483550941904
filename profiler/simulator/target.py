"""The device that a dry run plays: what its kernels take, and what it does otherwise than meta tensors' own code."""

from __future__ import annotations

from dataclasses import dataclass

from nooom.formulas.gpus import GPU
from nooom.profiler.simulator.choices import choices
from nooom.profiler.simulator.cpu_choices import CPU_CHOICES
from nooom.profiler.simulator.cpu_kernels import CpuKernels
from nooom.profiler.simulator.functions import Choices
from nooom.profiler.simulator.kernels import Kernels, KernelTable


@dataclass(frozen=True, kw_only=True)
class Target:
    """One device."""

    kernels: KernelTable
    choices: Choices
    foreach: bool = True
    """Whether optimizers take many tensors at once where nobody says."""
    host_is_device: bool = False
    """Whether what the host keeps lies on the device as well."""


def cuda(gpu: GPU) -> Target:
    """A GPU."""
    return Target(kernels=Kernels(gpu), choices=choices(gpu))


def cpu(threads: int) -> Target:
    """A CPU, of which so many threads work on one operation."""
    return Target(kernels=CpuKernels(threads), choices=CPU_CHOICES, foreach=False, host_is_device=True)
