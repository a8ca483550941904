"""Architectures outside the zoo: tiny configs of each, built by transformers on meta, have the parameters counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nooom.formulas.config import ShapeError
from nooom.formulas.shape import ModelShape

SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 96, "vocab_size": 1000, "max_position_embeddings": 128, "pad_token_id": 0}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
LATENT = {**SMALL, "num_key_value_heads": 4, "moe_intermediate_size": 24, "n_routed_experts": 4, "n_shared_experts": 2,
          "num_experts_per_tok": 2, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
          "topk_group": 1, "n_group": 1}  # fmt: skip
NEOX = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
BIGCODE = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 1000}
CONFIGS: list[dict[str, Any]] = [
    {"model_type": "granite", **SMALL, "attention_bias": True, "mlp_bias": True},
    {"model_type": "smollm3", **SMALL, "attention_bias": True},
    {"model_type": "gemma", **SMALL, "head_dim": 24},
    {"model_type": "qwen2_moe", **SMALL, **EXPERTS, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
     "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    {"model_type": "qwen2_moe", **SMALL, **EXPERTS, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
     "qkv_bias": False},
    {"model_type": "qwen2", **SMALL, "qkv_bias": False},  # not heeded
    {"model_type": "phi", **SMALL},
    {"model_type": "phi", **SMALL, "num_key_value_heads": None, "qk_layernorm": True},
    {"model_type": "olmo", **SMALL, "attention_bias": True},
    {"model_type": "olmo2", **SMALL},
    {"model_type": "olmo3", **SMALL, "attention_bias": True},
    {"model_type": "olmoe", **SMALL, **EXPERTS},
    {"model_type": "cohere", **SMALL},
    {"model_type": "cohere", **SMALL, "use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False},
    {"model_type": "glm", **SMALL, "head_dim": 24},
    {"model_type": "glm4", **SMALL, "head_dim": 16, "attention_bias": False},
    {"model_type": "stablelm", **SMALL, "use_qkv_bias": True},
    {"model_type": "stablelm", **SMALL, "qk_layernorm": True, "use_parallel_residual": True},
    {"model_type": "starcoder2", **SMALL},
    {"model_type": "starcoder2", **SMALL, "use_bias": False, "tie_word_embeddings": False},
    {"model_type": "gpt_neox", **NEOX},
    {"model_type": "gpt_neox", **NEOX, "attention_bias": False, "tie_word_embeddings": True},
    {"model_type": "gpt_bigcode", **BIGCODE, "n_inner": 96},
    {"model_type": "gpt_bigcode", **BIGCODE, "multi_query": False},
    {"model_type": "deepseek_v3", **LATENT, "q_lora_rank": 20, "first_k_dense_replace": 1, "attention_bias": True},
    {"model_type": "deepseek_v3", **LATENT, "q_lora_rank": None},  # without the key three layers are dense
]  # fmt: skip


def built(config: dict[str, Any], **options: Any) -> Any:
    rest = {key: value for key, value in config.items() if key != "model_type"}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **rest), **options)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
def test_transformers_builds_the_same_number(config: dict[str, Any]) -> None:
    with torch.device("meta"):
        model = built(config)
    assert ModelShape.from_config(config).parameters == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    "config",
    [config for config in CONFIGS if config["model_type"] != "qwen2_moe"],  # its experts take a while on the CPU
    ids=lambda config: config["model_type"],
)
def test_the_cache_holds_what_a_token_takes(config: dict[str, Any]) -> None:
    model = built(config, dtype=torch.float32).eval()
    with torch.no_grad():
        cache = model(torch.ones(1, 5, dtype=torch.long), use_cache=True).past_key_values
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert kept == 5 * ModelShape.from_config(config).kv_bytes_per_token(4)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "olmo3", **SMALL, "sliding_window": 16},
        {"model_type": "qwen2_moe", **SMALL, **EXPERTS, "moe_intermediate_size": 24, "sliding_window": 16,
         "shared_expert_intermediate_size": 40, "use_sliding_window": True, "max_window_layers": 2},
        {"model_type": "smollm3", **SMALL, "sliding_window": 16, "use_sliding_window": True,
         "layer_types": ["full_attention", "sliding_attention"] * 2},
        {"model_type": "smollm3", **SMALL, "sliding_window": 16},
    ],
    ids=lambda config: config["model_type"],
)  # fmt: skip
def test_which_layers_see_only_a_window(config: dict[str, Any]) -> None:
    rest = {key: value for key, value in config.items() if key != "model_type"}
    kinds = AutoConfig.for_model(config["model_type"], **rest).layer_types
    windows = tuple(16 if kind == "sliding_attention" else None for kind in kinds)
    assert ModelShape.from_config(config).layer_windows == windows


def test_a_window_whose_layers_nobody_names_is_refused() -> None:
    config = {"model_type": "smollm3", **SMALL, "sliding_window": 16, "use_sliding_window": True}
    with pytest.raises(ShapeError, match="layer_types is missing"):
        ModelShape.from_config(config)


def test_santacoder_has_one_head_of_keys_and_values() -> None:
    shape = ModelShape.from_config({"model_type": "gpt_bigcode", **BIGCODE})
    assert (shape.num_kv_heads, shape.head_dim, shape.intermediate_size) == (1, 16, 256)
    assert shape.learned_positions
    assert shape.max_position == 128
