"""What the case's words mean to the libraries: dtypes, attention implementations and kernels, checkpointing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_KERNELS = {
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-math": SDPBackend.MATH,
}


def torch_dtype(name: str) -> torch.dtype:
    return _DTYPES[name]


def implementation(attention: str) -> str:
    """The name transformers knows it by."""
    return "sdpa" if attention in _KERNELS else attention


def attention_kernel(attention: str) -> AbstractContextManager[Any]:
    """Pins one SDPA kernel for as long as the context is open, where the case asks for one."""
    return sdpa_kernel(_KERNELS[attention]) if attention in _KERNELS else nullcontext()


def enable_checkpointing(model: Any) -> None:
    """Non-reentrant gradient checkpointing, by the name that the installed transformers gives it.

    ``gradient_checkpointing_enable`` is deprecated in transformers 5.24 for a name that 5.17 does not have.  Models
    whose base is frozen also need inputs that require gradients, or nothing would be recomputed with a graph.
    """
    options = {"use_reentrant": False}
    target = model.get_base_model() if hasattr(model, "get_base_model") else model
    if hasattr(target, "activation_checkpointing_enable"):
        target.activation_checkpointing_enable(options)
    else:
        target.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    if hasattr(model, "peft_config"):
        target.enable_input_require_grads()
