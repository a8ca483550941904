"""Each config of the zoo, built by transformers itself on meta, has exactly the parameters that it says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nooom.benchmarks.models.zoo import names, resolve
from nooom.formulas.shape import ModelShape

SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 96, "vocab_size": 1000, "max_position_embeddings": 128}  # fmt: skip
MIXTURE = {**SMALL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {**SMALL, "num_key_value_heads": 4, "moe_intermediate_size": 24, "n_routed_experts": 4, "n_shared_experts": 1,
          "num_experts_per_tok": 2, "first_k_dense_replace": 2, "kv_lora_rank": 24, "qk_nope_head_dim": 16,
          "qk_rope_head_dim": 8, "v_head_dim": 12, "topk_group": 1, "n_group": 1}  # fmt: skip
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000, "n_positions": 128}
OPT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 96, "vocab_size": 1000,
       "max_position_embeddings": 128}  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_transformers_builds_the_same_number(name: str) -> None:
    model = resolve(name)
    assert built(model.config) == model.parameters


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", **SMALL, "attention_bias": True, "mlp_bias": True, "head_dim": 24},
        {"model_type": "mistral", **SMALL, "attention_bias": True},  # not heeded
        {"model_type": "qwen2", **SMALL, "tie_word_embeddings": True},
        {"model_type": "qwen3", **SMALL, "head_dim": 24, "attention_bias": True},
        {"model_type": "qwen3_moe", **MIXTURE, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
        {"model_type": "gemma2", **SMALL, "head_dim": 24, "attention_bias": True},
        {"model_type": "gemma3_text", **SMALL, "head_dim": 24, "tie_word_embeddings": False},
        {"model_type": "phi3", **SMALL, "pad_token_id": 0},
        {"model_type": "mixtral", **SMALL, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 24},
        {"model_type": "gpt_oss", **SMALL, "head_dim": 24, "num_local_experts": 4, "num_experts_per_tok": 2,
         "attention_bias": False},
        {"model_type": "deepseek_v2", **LATENT, "q_lora_rank": 20, "attention_bias": True, "mlp_bias": True},
        {"model_type": "deepseek_v2", **LATENT, "q_lora_rank": None, "n_shared_experts": 2},
        {"model_type": "gpt2", **GPT2, "n_inner": 100, "tie_word_embeddings": False},
        {"model_type": "opt", **OPT, "word_embed_proj_dim": 32, "do_layer_norm_before": False},  # as opt-350m
        {"model_type": "opt", **OPT, "enable_bias": False, "layer_norm_elementwise_affine": False,
         "tie_word_embeddings": False},
    ],
    ids=lambda config: config["model_type"],
)  # fmt: skip
def test_what_a_config_can_switch_is_counted_too(config: dict[str, Any]) -> None:
    assert ModelShape.from_config(config).parameters == built(config)


def built(config: dict[str, Any]) -> int:
    """Parameters of the model that transformers makes of a config; a tied weight is one parameter."""
    rest = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **rest))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v2"])
def test_the_cache_holds_what_a_token_takes(model_type: str) -> None:
    config = {"model_type": model_type, **(SMALL if model_type == "llama" else LATENT), "q_lora_rank": None}
    rest = {key: value for key, value in config.items() if key != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **rest), dtype=torch.float32).eval()
    with torch.no_grad():
        cache = model(torch.zeros(1, 5, dtype=torch.long), use_cache=True).past_key_values
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert kept == 5 * ModelShape.from_config(config).kv_bytes_per_token(4)
