"""What libraries must believe of meta tensors while a dry run lasts, and no longer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.optim.optimizer as optimizers
import torch.utils._foreach_utils as foreach_utils


@contextmanager
def patched(*, foreach: bool = True) -> Iterator[None]:
    """Optimizers have fused and foreach steps for meta tensors, as for CUDA's; models are initialised there as well.

    Args:
        foreach: whether optimizers take many tensors at once where nobody says, which they don't on CPUs.
    """

    def with_meta(devices: Any) -> Any:
        return lambda: [*devices(), "meta"]

    fused = foreach_utils._get_fused_kernels_supported_devices
    several = foreach_utils._get_foreach_kernels_supported_devices
    # transformers leaves out the initialisation of models on meta, which it loads later.
    modeling = sys.modules.get("transformers.modeling_utils")
    where = "get_torch_context_manager_or_global_device"
    with (
        patch.object(modeling, where, lambda: torch.device("cuda")) if hasattr(modeling, where) else nullcontext(),
        patch.object(foreach_utils, "_get_fused_kernels_supported_devices", with_meta(fused)),
        patch.object(foreach_utils, "_get_foreach_kernels_supported_devices", with_meta(several)),
        patch.object(optimizers, "_get_fused_kernels_supported_devices", with_meta(fused)),
        patch.object(optimizers, "_get_foreach_kernels_supported_devices", with_meta(several) if foreach else several),
    ):
        yield


@contextmanager
def generator_states(made: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Tell of every copy of the host's random generator's state, which checkpointing keeps for each layer.

    Args:
        made: called with each.
    """
    get = torch.random.get_rng_state

    def told() -> torch.Tensor:
        state = get()
        made(state)
        return state

    with patch.object(torch, "get_rng_state", told), patch.object(torch.random, "get_rng_state", told):
        yield


@contextmanager
def decoding_as_on_a_cpu() -> Iterator[None]:
    """Experts are multiplied in another way by transformers while it decodes, unless the model is on the CPU."""
    generation = getattr(sys.modules.get("transformers.generation.utils"), "GenerationMixin", None)
    where = "_optimize_model_for_decode"
    with patch.object(generation, where, lambda self: nullcontext()) if hasattr(generation, where) else nullcontext():
        yield
