"""A checkpoint with random weights, as ``save_pretrained`` writes it: sharded safetensors beside a config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nooom.benchmarks.workloads.settings import dtype_option, torch_dtype

_SPREAD = 0.02
"""As wide as the usual initialisation: sampling from such a model never meets infinity."""
_SHARD = "2GB"
_BLOCK = 1 << 22
"""Values that are drawn, and then repeated: drawing a billion takes a minute on a CPU."""


def main(job: str) -> None:
    """What the writing process runs, of ``{"config": ..., "dtype": ..., "folder": ...}``."""
    told = json.loads(job)
    write(told["config"], told["dtype"], Path(told["folder"]))


@torch.no_grad()
def write(config: dict[str, Any], dtype: str, folder: Path) -> None:
    """Write it; the same bytes each time."""
    rest = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config["model_type"], **rest), **dtype_option(dtype)
        )
    model.to_empty(device="cpu")  # built on meta first: the usual initialisation takes minutes on a CPU
    model.tie_weights()
    torch.manual_seed(0)
    block = torch.empty(_BLOCK, dtype=torch_dtype(dtype)).uniform_(-_SPREAD, _SPREAD)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            _fill(parameter.view(-1), block)
        else:
            parameter.fill_(1.0)  # norms
    model.save_pretrained(folder, max_shard_size=_SHARD)


def _fill(values: torch.Tensor, block: torch.Tensor) -> None:
    for piece in values.split(len(block)):
        piece.copy_(block[: len(piece)])
