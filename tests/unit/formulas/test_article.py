"""Each formula of the article with the article's own worked number."""

from __future__ import annotations

import pytest

from nooom.benchmarks.models.zoo import resolve
from nooom.formulas import article
from nooom.formulas.case import Case
from nooom.formulas.constants import ARTICLE, CONSTANTS
from nooom.formulas.errors import UsageError
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
    seventy_two = {name: article.parameter_bytes(72 * 10**9, name) / 1e9 for name in seven}
    assert seventy_two == {"fp32": 288, "bf16": 144, "int8": 72, "int4": 36}
    assert article.simplified_parameter_bytes(10**9) == 2e9  # "2P GB in bf16"
    with pytest.raises(UsageError, match="precision 'fp8' is unknown"):
        article.precision_bytes("fp8")


def test_the_table_does_not_follow_from_its_formula() -> None:
    # The formula beside the table divides by 1024**3, which makes 13.04 of the table's 14 GB.
    assert article.parameter_bytes(7 * 10**9) / GB == pytest.approx(13.04, abs=0.01)
    assert article.simplified_parameter_bytes(7 * 10**9) / 1e9 == 14


def test_adam_is_12_bytes_and_momentum_4_whatever_the_precision() -> None:
    assert article.optimizer_bytes(7 * 10**9, "adamw") == 84e9
    assert article.optimizer_bytes(7 * 10**9, "sgd-momentum") == article.sgd_momentum_bytes(7 * 10**9) == 28e9
    assert article.optimizer_bytes(7, "sgd") == 0
    assert article.optimizer_bytes(7, "adafactor") is None
    assert article.adam_bytes(1) == {"moment": 4, "variance": 4, "master": 4}


def test_gradients_in_bf16_and_the_adapters_share() -> None:
    assert article.gradient_bytes(7 * 10**9) == 14e9
    assert article.lora_parameters(7 * 10**9) == (7_000_000, 70_000_000)


def test_checkpointed_activations_of_the_example() -> None:
    assert article.checkpointed_activation_bytes(shape(), batch=8, seq=2048) == 8 * GB


def test_kv_cache_of_the_examples() -> None:
    assert article.kv_cache_bytes(shape(), batch=8, seq=2048) == 8 * GB
    assert article.kv_cache_bytes(shape(80, 8192), batch=8, seq=2048) == 40 * GB
    assert article.kv_cache_bytes(shape(), batch=16, seq=4096) == 32 * GB


def test_the_qwen_example_is_not_worked_with_qwens_sizes() -> None:
    # "Qwen2.5-7B" is worked with L = 32 and h = 4096; the model has 28 layers of 3584: 24.5 GB by the same formula.
    qwen = ModelShape.from_config(resolve("Qwen/Qwen2.5-7B").config)
    assert (qwen.num_layers, qwen.hidden_size) == (28, 3584)
    assert article.kv_cache_bytes(qwen, batch=16, seq=4096) == 24.5 * GB
    # Four of 28 heads have keys and values: what the model keeps is a seventh of that.
    assert qwen.kv_bytes_per_token() * 16 * 4096 == 3.5 * GB


def test_quantization_reduces_parameters_by_2_to_4_times() -> None:
    bf16 = article.parameter_bytes(7 * 10**9)
    assert bf16 / article.parameter_bytes(7 * 10**9, "int8") == 2
    # Of all weights; embedding and head stay in bf16 where it was measured, and 3.5 to 3.8 times are left of the 4.
    assert bf16 / article.parameter_bytes(7 * 10**9, "int4") == 4


def test_what_is_called_linear() -> None:
    checkpointed, cache = article.checkpointed_activation_bytes, article.kv_cache_bytes
    for formula in (checkpointed, cache):
        assert formula(shape(), 16, 2048) == formula(shape(), 8, 4096) == 2 * formula(shape(), 8, 2048)
        assert formula(shape(64), 8, 2048) == formula(shape(32, 8192), 8, 2048) == 2 * formula(shape(), 8, 2048)
    # "Sequence length: Linear scaling" stands above this formula, which has s squared: 3.4 times.
    megatron = article.megatron_activation_bytes
    assert megatron(shape(), 16, 2048) == 2 * megatron(shape(), 8, 2048)
    assert megatron(shape(), 8, 4096) / megatron(shape(), 8, 2048) == pytest.approx(3.40, abs=0.01)


def test_the_megatron_paper_has_no_second_factor() -> None:
    # Its 34 and 5 count bytes in 16 bits; the article multiplies by the precision's bytes again.
    paper = 2048 * 8 * (34 * 4096 + 5 * 32 * 2048) * 32
    assert article.megatron_activation_bytes(shape(), 8, 2048) == 2 * paper


def test_checkpointing_saves_more_than_5_to_10_times_by_the_articles_own_formulas() -> None:
    plain, saved = article.megatron_activation_bytes(shape(), 8, 2048), 8 * GB
    assert article.checkpointed_activation_bytes(shape(), 8, 2048) == saved
    assert plain / saved == 57


def test_the_quick_reference_does_not_follow_from_its_formulas() -> None:
    # "32B: no, requires 2+ GPUs; 72B: requires 8+": by 2P + activations 32B fits one H100 of 85.0 GB, 72B fits two.
    needs = {}
    for name in ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-14B", "Qwen/Qwen2.5-32B", "Qwen/Qwen2.5-72B"):
        model = ModelShape.from_config(resolve(name).config)
        activations = article.checkpointed_activation_bytes(model, 1, 2048)
        needs[name] = round(article.lora_fine_tuning_bytes(model.parameters, activations) / 1e9)
    assert list(needs.values()) == [16, 32, 68, 151]


def test_the_totals_of_the_inference_and_fine_tuning_examples() -> None:
    seven = 7 * 10**9
    # 14 + 32 = 46 adds GB of 10**9 bytes to GB of 1024**3: in one unit it is 45.0 or 48.4.
    inference = article.inference_bytes(seven, 32 * GB)
    assert (inference / GB, inference / 1e9) == (pytest.approx(45.04, abs=0.01), pytest.approx(48.36, abs=0.01))
    assert article.full_fine_tuning_bytes(seven, 0) == 112e9
    assert article.full_fine_tuning_bytes(72 * 10**9, 0) == 1.152e12  # "1.15 TB"
    assert article.lora_fine_tuning_bytes(seven, 8 * GB) == 14e9 + 8 * GB  # "~22 GB"
    assert article.lora_fine_tuning_bytes(72 * 10**9, 0) == 144e9


def test_lora_with_activations_of_the_72b_row_is_too_low_by_the_articles_own_formula() -> None:
    # The table says ~160 GB: 16 GB of activations.  L = 80 and h = 8192 at batch 8 and 2048 tokens make 40.
    assert article.checkpointed_activation_bytes(shape(80, 8192), batch=8, seq=2048) == 40 * GB
    assert article.lora_fine_tuning_bytes(72 * 10**9, 40 * GB) == 144e9 + 40 * GB  # 184, in one unit 187


def test_the_grpo_example() -> None:
    parameters, cache, activations = article.simplified_parameter_bytes(7 * 10**9), 16 * GB, 16 * GB
    assert article.kv_cache_bytes(shape(), batch=16, seq=2048) == cache
    assert article.checkpointed_activation_bytes(shape(), batch=16, seq=2048) == activations
    generation = article.grpo_generation_bytes(parameters, cache)
    training = article.grpo_training_bytes(parameters, activations)
    assert generation == training == article.grpo_peak_bytes(generation, training) == 14e9 + 16 * GB  # "~30 GB"
    assert article.grpo_training_bytes(parameters, activations, reference=parameters) == 28e9 + activations
    assert article.grpo_training_bytes(1, 10, reference=100, gradients=1000, optimizer=10_000) == 11_111


def test_a_reward_model_of_the_same_size_doubles_generation() -> None:
    parameters, cache = 7 * 10**9, 16 * GB
    assert article.same_sized_reward_bytes(parameters, cache) == 28e9 + 2 * cache
    assert article.same_sized_reward_bytes(parameters, cache) == 2 * article.inference_bytes(parameters, cache)
    assert article.grpo_generation_bytes(14, 2, reward=14) == 30


def test_what_each_parallelism_divides() -> None:
    assert article.tensor_parallel_bytes(144, 40, tp=2) == 92  # "TP=2 halves per-GPU memory"
    assert article.tensor_parallel_bytes(144, 40, tp=4) == 46
    assert article.pipeline_parallel_bytes(144, pp=4) == 36
    assert article.data_parallel_bytes(144, dp=8) == 144
    with pytest.raises(UsageError, match="number of GPUs is 0"):
        article.data_parallel_bytes(144, dp=0)


@pytest.mark.parametrize(("stage", "left"), [(1, (14, 14, 21)), (2, (14, 4, 21)), (3, (4, 4, 21))])
def test_what_each_zero_stage_divides(stage: int, left: tuple[int, int, int]) -> None:
    parts = {"parameters": 14, "gradients": 14, "optimizer": 84, "activations": 5}
    expected = {"parameters": left[0], "gradients": left[1], "optimizer": left[2], "activations": 5}
    assert article.zero_bytes(parts, stage, gpus=4) == expected


def test_there_is_no_fourth_zero_stage() -> None:
    with pytest.raises(UsageError, match="valid: 1, 2, 3"):
        article.zero_bytes({}, 4, gpus=2)


def test_constants_can_be_given_and_a_typo_is_no_constant() -> None:
    assert article.kv_cache_bytes(shape(), 8, 2048, constants={"kv_values": 1}) == 4 * GB
    assert article.adam_bytes(10, {"adam_master_bytes": 0})["master"] == 0
    assert article.adam_bytes(10, {**ARTICLE}) == article.adam_bytes(10)
    case = Case(model="m", workload="sft", checkpointing=True)
    assert article.components(case, shape(), {"bf16_bytes": 4})["parameters"] == 4 * shape().parameters
    with pytest.raises(UsageError, match="did you mean kv_values"):
        article.kv_cache_bytes(shape(), 8, 2048, constants={"kv_value": 1})


def test_every_constant_says_what_it_is_and_where() -> None:
    for name, constant in CONSTANTS.items():
        assert name == constant.name
        assert constant.unit
        assert constant.what
        assert constant.section


@pytest.mark.parametrize(("dtype", "width"), [("bf16", 2), ("fp16", 2), ("fp32", 4)])
def test_the_dtype_counts_but_never_in_adams_states(dtype: str, width: int) -> None:
    parts = article.components(Case(model="m", workload="sft", batch=8, dtype=dtype, checkpointing=True), shape())
    assert parts["parameters"] == parts["gradients"] == width * shape().parameters
    assert parts["optimizer"] == 12 * shape().parameters
    assert parts["activations"] == width * 4 * GB


def test_padding_changes_nothing() -> None:
    padded, plain = (Case(model="m", workload="sft", batch=2, padding=padding) for padding in (0.5, 0))
    assert article.by_phase(padded, shape()) == article.by_phase(plain, shape())


def test_full_grpo_counts_states_and_the_reference() -> None:
    case = Case(model="m", workload="grpo", full=True, checkpointing=True)
    update = article.by_phase(case, shape())["update"]
    assert update["parameters"] == 4 * shape().parameters
    assert update["optimizer"] == 12 * shape().parameters
    assert update["gradients"] == 2 * shape().parameters


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
