"""The entry that a measured process calls: builds the case's model and runs its workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from nooom.benchmarks.workloads import grpo, inference, lora, sft
from nooom.benchmarks.workloads.load import load_model
from nooom.benchmarks.workloads.settings import attention_kernel
from nooom.formulas.case import Case
from nooom.profiler.recorder import Recorder

_WORKLOADS = {"inference": inference.run, "sft": sft.run, "lora": lora.run, "grpo": grpo.run}
_SEED = 0


def run(arguments: Mapping[str, Any], recorder: Recorder) -> dict[str, Any]:
    """Run one case.

    Args:
        arguments: ``case`` (its flags), ``config`` (the model's Hugging Face config), ``directory`` (of a checkpoint,
            or None), ``trust_remote_code``.
        recorder: told of every phase; its instrument says on which device tensors are put.

    Returns:
        What the run found out about the model: parameters, and how many of them were trained.
    """
    case = Case.from_dict(arguments["case"])
    device = torch.device(recorder.instrument.torch_device)
    torch.manual_seed(_SEED)
    recorder.enter("load")
    with attention_kernel(case.attention):
        model = load_model(case, arguments, device)
        found = {"parameters": sum(p.numel() for p in model.parameters())}
        _WORKLOADS[case.workload](case, model, device, recorder)
    found["trained_parameters"] = sum(p.numel() for p in model.parameters() if p.requires_grad) if case.trains else 0
    return found
