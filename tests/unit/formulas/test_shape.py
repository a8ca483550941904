"""ModelShape: exact counts for every architecture of the zoo, and what is refused."""

from __future__ import annotations

import pytest

from nooom.benchmarks.models.zoo import names, resolve
from nooom.formulas.shape import ModelShape, ShapeError


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


def test_a_multimodal_configs_text_part_is_taken(tiny_config: dict[str, object]) -> None:
    assert ModelShape.from_config({"model_type": "x", "text_config": tiny_config}).hidden_size == 64


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": 1 << 30}, "hidden_size is '1073741824'; an integer between 1 and"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
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
