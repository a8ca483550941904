"""What a Python program on a phantom needs besides the library: answers, and no kernel whose memory can't be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nooom.profiler.known_values import KnownValues


def prepare() -> KnownValues:
    """The known values, to be entered once torch is imported.

    cuDNN's attention, which PyTorch prefers on Hopper and Blackwell, takes a workspace that only the hardware's library
    knows: flash attention is played there instead, and whoever shows a figure says so.
    """
    import torch

    from nooom.profiler.known_values import KnownValues

    torch.backends.cuda.enable_cudnn_sdp(False)
    return KnownValues()


def prefers_cudnn(compute_capability: tuple[int, int]) -> bool:
    """Whether PyTorch would take cuDNN's attention there: since 2.11 on Hopper (9.x) and Blackwell (10.x)."""
    return compute_capability[0] in (9, 10)
