"""LoRA fine-tuning: the same loop over a peft model."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from nooom.benchmarks.workloads.settings import torch_dtype
from nooom.benchmarks.workloads.training import train
from nooom.formulas.case import Case
from nooom.profiler.recorder import Recorder


def run(case: Case, model: Any, device: torch.device, recorder: Recorder) -> None:
    """Phases: forward, backward, optimizer."""
    train(case, with_adapter(case, model), device, recorder)


def with_adapter(case: Case, model: Any) -> Any:
    """The model with the case's LoRA adapter, its base frozen.

    peft keeps adapters in fp32 unless told otherwise; ``--lora-dtype bf16`` casts them whatever the base is in.
    """
    targets = case.lora_targets
    config = LoraConfig(
        r=case.lora_rank,
        lora_alpha=2 * case.lora_rank,
        lora_dropout=case.lora_dropout,
        target_modules=targets if targets == "all-linear" else targets.split(","),
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad and "lora_" in name:
            parameter.data = parameter.data.to(torch_dtype(case.lora_dtype))
    return adapted
