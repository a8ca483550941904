"""Each config of the zoo, built by transformers itself on meta, has exactly the parameters that it says."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nooom.benchmarks.models.zoo import names, resolve


@pytest.mark.parametrize("name", names())
def test_transformers_builds_the_same_number(name: str) -> None:
    model = resolve(name)
    rest = {key: value for key, value in model.config.items() if key != "model_type"}
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(AutoConfig.for_model(model.config["model_type"], **rest))
    assert sum(parameter.numel() for parameter in built.parameters()) == model.parameters
