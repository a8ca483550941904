"""How each claim is tested: a check takes the claim and the evidence, and finds a word, a why and a figure."""

from __future__ import annotations

from collections.abc import Callable

from nooom.benchmarks.claim_checks import grpo, numbers, quantized, quotes, scaling, training
from nooom.benchmarks.claim_checks.evidence import Evidence
from nooom.benchmarks.claim_checks.words import Finding
from nooom.formulas.claims import Claim

Check = Callable[[Claim, Evidence], Finding]

_ALL: tuple[Check, ...] = (
    numbers.width, numbers.parameters, numbers.simplification, numbers.optimizer, numbers.static, numbers.from_shape,
    numbers.total, numbers.comfortable, numbers.cache_width, numbers.grouped_query, numbers.window_limits_cache,
    training.training_bytes, training.full_static, training.full_fits, training.checkpointed_slope,
    training.measured_activations, training.measured_total, training.formula_against_measurements, training.lora_share,
    training.lora_overhead, training.adafactor,
    scaling.scaling, scaling.linear_growth, scaling.tensor_parallel, scaling.pipeline_parallel, scaling.data_parallel,
    scaling.zero,
    grpo.grpo_fits, grpo.grpo_batch, grpo.grpo_gpus, grpo.grpo_peak, grpo.phases_apart, grpo.peak_is_the_largest_phase,
    grpo.shared_reference, grpo.separate_reference, grpo.without_critic, grpo.reward_caches, grpo.reward_doubles,
    quantized.nf4_bytes_per_parameter, quantized.quantization,
    quotes.untested, quotes.context_takes_memory, quotes.megatron_quote, quotes.verl_quote, quotes.verl_maximum,
    quotes.checkpointing_default, quotes.recompute, quotes.checkpointing_saves,
)  # fmt: skip

CHECKS: dict[str, Check] = {check.__name__: check for check in _ALL}
"""Every check by the name that claims.toml gives it."""
