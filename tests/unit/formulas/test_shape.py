"""ModelShape: exact counts for every architecture of the zoo, and what is refused."""

from __future__ import annotations

import pytest

from nooom.benchmarks.models.zoo import names, resolve
from nooom.formulas.config import ShapeError
from nooom.formulas.shape import ModelShape


@pytest.mark.parametrize("name", names())
def test_the_parameter_count_is_exact(name: str) -> None:
    model = resolve(name)
    assert ModelShape.from_config(model.config, name).parameters == model.parameters


def test_grouped_heads_and_an_explicit_head_dim() -> None:
    qwen = ModelShape.from_config(resolve("Qwen/Qwen2.5-7B").config)
    assert (qwen.num_heads, qwen.num_kv_heads, qwen.head_dim) == (28, 4, 128)
    assert qwen.kv_bytes_per_token() == 2 * 28 * 4 * 128 * 2
    qwen3 = ModelShape.from_config(resolve("Qwen/Qwen3-0.6B").config)
    assert qwen3.num_heads * qwen3.head_dim == 2048 != qwen3.hidden_size


def test_windows_of_each_layer() -> None:
    gemma3 = ModelShape.from_config(resolve("google/gemma-3-1b-pt").config)
    assert gemma3.layer_windows[:6] == (512, 512, 512, 512, 512, None)
    assert ModelShape.from_config(resolve("Qwen/Qwen2.5-7B").config).layer_windows[0] is None


def test_a_window_counts_only_where_transformers_would_heed_it(tiny_config: dict[str, object]) -> None:
    qwen = {**tiny_config, "model_type": "qwen2", "sliding_window": 128, "max_window_layers": 1}
    assert ModelShape.from_config(qwen).layer_windows == (None, None)
    assert ModelShape.from_config({**qwen, "use_sliding_window": True}).layer_windows == (None, 128)
    mistral = {**tiny_config, "model_type": "mistral"}
    assert ModelShape.from_config(mistral).sliding_window == 4096  # a missing key takes transformers' default
    assert ModelShape.from_config({**mistral, "sliding_window": None}).sliding_window is None
    named = {**tiny_config, "model_type": "gemma2", "head_dim": 16, "sliding_window": 8}
    kinds = ["full_attention", "sliding_attention"]
    assert ModelShape.from_config(named).layer_windows == (8, None)
    assert ModelShape.from_config({**named, "layer_types": kinds}).layer_windows == (None, 8)


def test_which_layers_are_mixtures() -> None:
    assert ModelShape.from_config(resolve("deepseek-ai/DeepSeek-V2-Lite").config).moe_layers == tuple(range(1, 27))
    qwen = resolve("Qwen/Qwen3-30B-A3B").config
    assert ModelShape.from_config({**qwen, "decoder_sparse_step": 2, "mlp_only_layers": [1]}).moe_layers == tuple(
        range(3, 48, 2)
    )


def test_latent_attention_caches_the_latent_and_the_rotated_key() -> None:
    shape = ModelShape.from_config(resolve("deepseek-ai/DeepSeek-V2-Lite").config)
    assert shape.kv_bytes_per_token() == 27 * (512 + 64) * 2
    assert shape.head_dim == 128 + 64


def test_an_integer_that_takes_minutes_to_print_is_refused_at_once(tiny_config: dict[str, object]) -> None:
    with pytest.raises(ShapeError, match="an integer of 100001 bits"):
        ModelShape.from_config({**tiny_config, "hidden_size": 1 << 100_000})


def test_a_multimodal_configs_text_part_is_taken(tiny_config: dict[str, object]) -> None:
    assert ModelShape.from_config({"model_type": "x", "text_config": tiny_config}).hidden_size == 64
    inner = {key: value for key, value in tiny_config.items() if key != "tie_word_embeddings"}
    assert ModelShape.from_config({"tie_word_embeddings": True, "text_config": inner}).tied_embeddings
    with pytest.raises(ShapeError, match="x: text_config: vocab_size is missing"):
        ModelShape.from_config({"text_config": {**tiny_config, "vocab_size": None}}, where="x")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": 1 << 30}, "hidden_size is '1073741824'; an integer between 1 and"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        *(
            ({"hidden_size": odd}, "hidden_size is ")
            for odd in (0, -64, "64", True, 64.0, float("nan"), [64], {"a": 1})
        ),
        ({"hidden_size": None}, "hidden_size is missing"),
        (
            {"num_attention_heads": 7, "num_key_value_heads": 7},
            "hidden_size 64 is no multiple of num_attention_heads 7",
        ),
        ({"num_hidden_layers": 4097}, "num_hidden_layers is '4097'; an integer between 1 and 4096 is right"),
        ({"vocab_size": (1 << 24) + 1}, "an integer between 2 and 16777216 is right"),
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": ["llama"]}, "model_type "),
        ({"model_type": "qwen3"}, "head_dim is missing"),
        ({"model_type": "gpt2", "num_key_value_heads": 4, "max_position_embeddings": None}, "n_positions is missing"),
        ({"model_type": "gpt2", "num_key_value_heads": 4, "add_cross_attention": True}, "add_cross_attention is true"),
        ({"model_type": "gemma2", "head_dim": 16, "layer_types": ["full_attention"]}, "layer_types is "),
        ({"model_type": "gemma2", "head_dim": 16, "layer_types": ["full_attention", []]}, "layer_types has "),
        ({"model_type": "mixtral"}, "num_local_experts is missing"),
        (
            {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
            "num_experts_per_tok is 3; at most",
        ),
        (
            {
                "model_type": "qwen3_moe",
                "num_experts": 2,
                "num_experts_per_tok": 1,
                "moe_intermediate_size": 8,
                "mlp_only_layers": 5,
            },
            "mlp_only_layers is '5'",
        ),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; true or false"),
        ({"model_type": "lama"}, "did you mean llama"),
        ({"hidden_size": 1 << 20, "num_hidden_layers": 4096, "intermediate_size": 1 << 24}, "parameters; at most"),
    ],
)
def test_absurd_sizes_are_refused_with_their_place(
    tiny_config: dict[str, object], change: dict[str, object], says: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        ModelShape.from_config({**tiny_config, **change}, where="x/config.json")
    assert str(caught.value).startswith("x/config.json: ")
    assert says in str(caught.value)
