"""The devices a case can run on: which instrument measures there, and what can't be asked of it."""

from __future__ import annotations

import dataclasses
import importlib.util
from dataclasses import dataclass

from nooom.formulas.case import Case, check_built
from nooom.formulas.errors import CannotMeasureError, UsageError, nearest
from nooom.formulas.gpus import GPU
from nooom.profiler import hardware
from nooom.profiler.phantom.accounts import MAX_GPUS

CPU_THREADS = 2
"""Fixed, whatever the machine has: CPU attention's scratch grows with threads, and figures must be comparable."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where cases run.  ``passes`` are the instruments that measure one case, each in a process of its own."""

    name: str
    source: str
    passes: tuple[str, ...]
    attributing: str | None
    """The instrument that says what the peaks are made of, in a pass of its own after the others; None where the one
    pass says it anyway."""
    threads: int | None = None
    gpu: GPU | None = None
    """The GPU that is played; None where cases run on what is there."""
    index: int | None = None
    """Of several GPUs in use at a time, which one this is, from 0; None where there is one."""
    visible: str | None = None
    """What CUDA_VISIBLE_DEVICES is to say to its processes; None leaves it as it is."""
    capped: bool = True
    """Whether a dry run's memory ends where the GPU's does; otherwise there is room for anything."""
    snapshot: str | None = None
    """Where a dry run leaves a memory snapshot."""


CPU = Device(
    name="cpu",
    source="measured",
    passes=("nooom.profiler.instruments.cpu:CpuInstrument", "nooom.profiler.instruments.rss:RssInstrument"),
    attributing="nooom.profiler.tracer.cpu:AttributedCpu",
    threads=CPU_THREADS,
)
CUDA = Device(
    name="cuda",
    source="measured",
    passes=("nooom.profiler.instruments.cuda:CudaInstrument",),
    attributing="nooom.profiler.tracer.cuda:AttributedCuda",
)
PHANTOM = Device(
    name="phantom",
    source="emulated",
    passes=("nooom.profiler.phantom.instrument:PhantomInstrument",),
    attributing="nooom.profiler.tracer.cuda:AttributedPhantom",
)
DRYRUN = Device(
    name="dryrun",
    source="dryrun",
    passes=("nooom.profiler.simulator.instrument:DryRunInstrument",),
    attributing=None,
    visible="",  # what is there must not change what is said of another
)

_DEVICES = {"cpu": CPU, "cuda": CUDA, "phantom": PHANTOM, "dryrun": DRYRUN}
NAMES = tuple(_DEVICES)
"""The devices that a case can be for."""
PLAYED = ("phantom", "dryrun")
"""Those that take the place of a GPU that is named."""


def choose(name: str, gpu: GPU | None = None) -> Device:
    """The device of that name; ``auto`` is the GPU when there is one.

    Args:
        name: as ``--device`` takes it.
        gpu: the one to play, on a phantom or in a dry run.

    Raises:
        UsageError: an unknown device, or a GPU to play where none is played.
        CannotMeasureError: cuda without a GPU, saying what was looked for.
    """
    if name in PLAYED:
        if gpu is None:
            raise UsageError(f"--device {name} plays a GPU: add --gpu NAME, e.g. --gpu a100-80gb")
        return dataclasses.replace(_DEVICES[name], gpu=gpu)
    if gpu is not None:
        raise UsageError("--gpu names the GPU that phantom and dryrun play; cpu and cuda measure on what is there")
    if name == "auto":
        return CUDA if hardware.find_gpus() and not hardware.torch_build().without_cuda else CPU
    if name not in _DEVICES:
        raise UsageError(f"--device {name!r} is unknown; {nearest(name, ['auto', *_DEVICES])}")
    if name == "cuda" and not hardware.visible_gpus():
        raise CannotMeasureError(f"--device cuda: no GPU to measure on: {hardware.looked_for()}")
    if name == "cuda" and hardware.torch_build().without_cuda:
        raise CannotMeasureError(f"--device cuda: there is a GPU, but torch can't use it: {hardware.looked_for()}")
    return _DEVICES[name]


def spread(device: Device, gpus: str | None) -> list[Device]:
    """The devices that cases run on at the same time, one GPU each.

    Args:
        device: the one that was chosen.
        gpus: as ``--gpus`` takes it: a number, ``all``, or None for one.

    Raises:
        UsageError: no such number, more than there are, all of a phantom's, or several where there is no GPU.
    """
    if gpus is None:
        return [device]
    if device.name in ("cpu", "dryrun"):
        raise UsageError("--gpus is for cuda and phantom")
    if device.gpu is not None and gpus == "all":
        raise UsageError("--gpus all: a phantom has as many as it is told; e.g. --gpus 2")
    names = hardware.visible_gpus() if device.gpu is None else [str(number) for number in range(MAX_GPUS)]
    wanted = len(names) if gpus == "all" else int(gpus) if gpus.isdecimal() and len(gpus) < 4 else 0
    if not 1 <= wanted <= len(names):
        raise UsageError(f"--gpus must be all or a number from 1 to {len(names)}, not {gpus!r}")
    return [dataclasses.replace(device, index=index, visible=names[index]) for index in range(wanted)]


def check(case: Case, device: Device) -> None:
    """Refuse, before anything starts, what this device can't run."""
    check_built(case)
    if device.name == "dryrun":
        _check_dry(case)
        return
    if case.attention == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        raise UsageError("--attention flash_attention_2 needs the package flash-attn, which is not installed here")
    if device is not CPU:
        return
    if case.attention in ("sdpa-efficient", "sdpa-cudnn", "flash_attention_2"):
        raise UsageError(
            f"--attention {case.attention} has no CPU kernel; on the CPU: sdpa, sdpa-flash, sdpa-math, eager"
        )
    if case.autocast == "fp16":
        raise UsageError("--autocast fp16 needs a GPU: its gradients are scaled there; on the CPU: none, bf16")
    if case.allocator:
        raise UsageError("--allocator sets PyTorch's CUDA allocator and means nothing on the CPU")


def _check_dry(case: Case) -> None:
    if case.attention == "flash_attention_2":
        raise UsageError(
            "--attention flash_attention_2 is not built yet for the dry run; --attention sdpa-flash takes flash kernels"
        )
    if case.attention == "sdpa-cudnn":
        raise UsageError(
            "--attention sdpa-cudnn takes a workspace that only the hardware's library knows; in a dry run: sdpa, "
            "sdpa-flash, sdpa-efficient, sdpa-math, eager"
        )
    if case.pretrained:
        raise UsageError(
            "--pretrained is not built yet for the dry run: what loading a checkpoint takes for a moment is unknown; "
            "without it the case is the same from then on"
        )
