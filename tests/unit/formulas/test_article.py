"""Each formula of the article with the article's own worked number."""

from __future__ import annotations

import pytest

from nooom.formulas import article
from nooom.formulas.case import Case
from nooom.formulas.shape import ModelShape

GB = 1024**3
"""What the article's formulas divide by."""


def shape(layers: int = 32, hidden: int = 4096, parameters_like_7b: bool = True) -> ModelShape:
    """The 7B model of the article's examples: L = 32, h = 4096 (which is Llama-2-7B, not Qwen2.5-7B)."""
    return ModelShape(
        model_type="llama", hidden_size=hidden, num_layers=layers, num_heads=32, num_kv_heads=32, head_dim=hidden // 32,
        intermediate_size=11008, vocab_size=32000, tied_embeddings=False, max_position=4096,
    )  # fmt: skip


def test_precision_table() -> None:
    seven = {
        precision: article.parameter_bytes(7 * 10**9, precision) / 1e9 for precision in ("fp32", "bf16", "int8", "int4")
    }
    assert seven == {"fp32": 28, "bf16": 14, "int8": 7, "int4": 3.5}


def test_adam_is_12_bytes_and_momentum_4_whatever_the_precision() -> None:
    assert article.optimizer_bytes(7 * 10**9, "adamw") == 84e9
    assert article.optimizer_bytes(7 * 10**9, "sgd-momentum") == 28e9
    assert article.optimizer_bytes(7, "sgd") == 0
    assert article.optimizer_bytes(7, "adafactor") is None


def test_checkpointed_activations_of_the_example() -> None:
    assert article.checkpointed_activation_bytes(shape(), batch=8, seq=2048) == 8 * GB


def test_kv_cache_of_the_examples() -> None:
    assert article.kv_cache_bytes(shape(), batch=8, seq=2048) == 8 * GB
    assert article.kv_cache_bytes(shape(80, 8192), batch=8, seq=2048) == 40 * GB
    # The article works Qwen2.5-7B with L = 32 and h = 4096; the model has 28 layers of 3584 and four KV heads.
    assert article.kv_cache_bytes(shape(), batch=16, seq=4096) == 32 * GB


def test_megatron_by_hand() -> None:
    # s b h (34 + 5 a s / h) L x 2 with s = 2, b = 1, h = 4096, a = 32, L = 32
    assert article.megatron_activation_bytes(shape(), 1, 2) == round(2 * 4096 * (34 + 5 * 32 * 2 / 4096) * 32 * 2)


@pytest.mark.parametrize(
    ("flags", "phases"),
    [
        ({"workload": "inference", "new_tokens": 4}, {"load", "prefill", "decode"}),
        ({"workload": "inference"}, {"load", "prefill"}),
        ({"workload": "sft"}, {"load", "peak"}),
        ({"workload": "lora"}, {"load", "peak"}),
        ({"workload": "grpo"}, {"load", "rollout", "update"}),
    ],
)
def test_the_phases_that_the_article_speaks_of(flags: dict[str, object], phases: set[str]) -> None:
    case = Case(model="m", **flags)  # type: ignore[arg-type]
    assert set(article.by_phase(case, shape())) == phases


def test_full_training_is_16_bytes_a_parameter_and_activations() -> None:
    case = Case(model="m", workload="sft", batch=8, checkpointing=True)
    parts = article.components(case, shape())
    assert sum(parts.values()) == 16 * shape().parameters + 8 * GB
    assert set(parts) == {"parameters", "gradients", "optimizer", "activations"}


def test_lora_is_two_bytes_a_parameter_and_activations() -> None:
    case = Case(model="m", workload="lora", batch=8, checkpointing=True)
    assert sum(article.components(case, shape()).values()) == 2 * shape().parameters + 8 * GB


def test_grpo_takes_the_larger_of_its_phases_never_their_sum() -> None:
    case = Case(model="m", workload="grpo", batch=16, seq=1024, new_tokens=1024, checkpointing=True)
    phases = article.by_phase(case, shape())
    assert sum(phases["rollout"].values()) == sum(phases["update"].values()) == 2 * shape().parameters + 16 * GB
    separate = Case(model="m", workload="grpo", batch=16, seq=2048, checkpointing=True, reference="separate")
    assert article.by_phase(separate, shape())["update"]["parameters"] == 4 * shape().parameters


def test_an_optimizer_without_a_figure_adds_none() -> None:
    case = Case(model="m", workload="sft", optimizer="adafactor")
    assert "optimizer" not in article.components(case, shape())
