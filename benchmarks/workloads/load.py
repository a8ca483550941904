"""Load: random weights of a real architecture, or a checkpoint through ``from_pretrained``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from nooom.benchmarks.workloads.settings import dtype_option, implementation
from nooom.formulas.case import Case


def load_model(case: Case, arguments: Mapping[str, Any], device: torch.device) -> PreTrainedModel:
    """The case's model on ``device`` in the case's dtype.

    Random weights are drawn by the model's own initialisation: memory does not depend on their values.
    """
    options: dict[str, Any] = {
        **dtype_option(case.dtype),
        "attn_implementation": implementation(case.attention),
        "trust_remote_code": bool(arguments.get("trust_remote_code")),
    }
    model: PreTrainedModel
    if case.pretrained:
        model = AutoModelForCausalLM.from_pretrained(
            arguments["directory"], device_map={"": device}, local_files_only=True, use_safetensors=True, **options
        )
        return model
    # A fresh config for each model: building one writes the attention implementation and the dtype into it.
    config = _config(arguments, options["trust_remote_code"])
    with device:
        model = AutoModelForCausalLM.from_config(config, **options)
    return model


def _config(arguments: Mapping[str, Any], trust_remote_code: bool) -> Any:
    if trust_remote_code and arguments.get("directory"):
        return AutoConfig.from_pretrained(arguments["directory"], trust_remote_code=True, local_files_only=True)
    rest = {key: value for key, value in arguments["config"].items() if key != "model_type"}
    return AutoConfig.for_model(arguments["config"]["model_type"], **rest)
