"""What the case's words mean to the libraries: dtypes, attention implementations and kernels, checkpointing.

Where releases of transformers have different names for one thing, its adapter stands here: ``nooom check --env`` runs a
case in releases older than those that nooom is installed with, and the oldest that was tried is 4.44.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

from nooom.formulas.errors import UsageError

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_KERNELS = {
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-math": SDPBackend.MATH,
}


def torch_dtype(name: str) -> torch.dtype:
    return _DTYPES[name]


def dtype_option(name: str) -> dict[str, torch.dtype]:
    """The argument that builds a model in a dtype: ``dtype``, or ``torch_dtype`` to transformers before 4.56."""
    release = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    return {"dtype" if release >= (4, 56) else "torch_dtype": torch_dtype(name)}


def vocab_size(model: Any) -> int:
    """Of the language model; transformers before 4.45 has no ``get_text_config``, nor configs with parts."""
    config = model.config
    return int((config.get_text_config() if hasattr(config, "get_text_config") else config).vocab_size)


def kept_logits(model: Any, count: int) -> dict[str, int]:
    """The argument that makes a forward pass compute the last ``count`` logits only; 0 computes all.

    transformers before 4.49 calls it ``num_logits_to_keep``, and what it doesn't know by name it may silently ignore.

    Raises:
        UsageError: it has neither name, and not all are wanted.
    """
    target = model.get_base_model() if hasattr(model, "get_base_model") else model
    known = inspect.signature(type(target).forward).parameters
    for name in ("logits_to_keep", "num_logits_to_keep"):
        if name in known:
            return {name: count}
    if count:
        raise UsageError(f"{type(target).__name__} of transformers {transformers.__version__} computes all logits")
    return {}


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
