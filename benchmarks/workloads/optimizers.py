"""The case's optimizers, as PyTorch and transformers build them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

_LEARNING_RATE = 1e-5
"""Small: values don't matter to memory, but a diverging model would sample from NaN."""


def build_optimizer(name: str, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer over the parameters that train.

    ``adamw`` is what the installed transformers' Trainer would take by default; the others say exactly what they are.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(trained, lr=_LEARNING_RATE, scale_parameter=False, relative_step=False)
    if name in ("sgd", "sgd-momentum"):
        return torch.optim.SGD(trained, lr=_LEARNING_RATE, momentum=0.9 if name == "sgd-momentum" else 0.0)
    options: dict[str, Any] = {
        "adamw": {"fused": True} if trainer_default() == "adamw_torch_fused" else {},
        "adamw-fused": {"fused": True},
        "adamw-foreach": {"foreach": True},
    }[name]
    return torch.optim.AdamW(trained, lr=_LEARNING_RATE, weight_decay=0.0, **options)


def trainer_default() -> str:
    """The name of the installed Trainer's default optimizer, e.g. adamw_torch_fused."""
    from transformers import TrainingArguments

    defaults = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    return str(getattr(defaults["optim"], "value", defaults["optim"]))
