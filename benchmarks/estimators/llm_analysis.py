"""llm-analysis 0.2.2: ``LLMAnalysis.inference`` and ``LLMAnalysis.training``, over its own reading of the config.

It speaks of inference and of full training in half precision (its dtypes have 4, 8 or 16 bits); of fp32, of adapters
and of GRPO nothing.  Its reader takes a folder, so it gets one with the case's config.  Inference is the larger of what
it demands room for: prefill's activations, or KV cache and decode's activations, each beside the weights.  The GPU has
no bound here, since it refuses what does not fit; and it divides by the number of completion tokens, so that a case
without any is asked with one.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from nooom.benchmarks.models.zoo import resolve
from nooom.formulas.case import Case
from nooom.formulas.shape import ModelShape

SAYS = (
    "Megatron's formulas: an MLP of two matrices of width 4 × hidden whatever the config says (right by chance for "
    "Llama 2, half of what Qwen2.5-0.5B and 7B have), embeddings counted once even where they are not tied, heads of "
    "hidden / heads values, no experts. Inference: weights beside the larger of prefill's activations, with the logits "
    "of all positions where `generate` keeps the last, and KV cache with decode's; there is no cache in its prefill. "
    "Training: an fp32 master copy, fp32 moments and fp32 gradients always, so 18 bytes a parameter where pure bf16 "
    "has 8; activations are those of an ungated MLP; logits are in 16 bits, without the loss's fp32 copies."
)

_OPTIMIZER_BYTES = {"adamw": 8, "adamw-fused": 8, "adamw-foreach": 8, "sgd-momentum": 4, "sgd": 0}
"""Of state for each parameter, beside the master copy; its words for them are other_op_bytes."""


def estimate(case: Case, shape: ModelShape) -> dict[str, int] | None:
    """Its components, in bytes."""
    del shape  # it reads the config its own way
    if case.quantization != "none" or case.workload not in ("inference", "sft"):
        return None
    if case.dtype == "fp32" and case.autocast in (None, "none"):
        return None
    if case.workload == "inference":
        return _inference(case)
    return _training(case) if case.optimizer in _OPTIMIZER_BYTES else None


def _inference(case: Case) -> dict[str, int]:
    said = _analysis(case).inference(case.batch, case.seq, num_tokens_to_generate=max(case.new_tokens, 1))
    weights = round(said["weight_memory_per_gpu"])
    prefill = round(said["prefill_activation_memory_per_gpu"])
    cache, decode = round(said["kv_cache_memory_per_gpu"]), round(said["decode_activation_memory_per_gpu"])
    if prefill > cache + decode:
        return {"parameters": weights, "activations": prefill}
    return {"parameters": weights, "kv_cache": cache, "activations": decode}


def _training(case: Case) -> dict[str, int]:
    from llm_analysis.analysis import ActivationRecomputation

    said = _analysis(case).training(
        batch_size_per_gpu=case.batch,
        gradient_accumulation_steps=case.grad_accumulation,
        seq_len=case.seq,
        activation_recomputation=ActivationRecomputation.FULL if case.checkpointing else ActivationRecomputation.NONE,
        other_op_bytes=_OPTIMIZER_BYTES[case.optimizer],
        flash_attn=case.attention not in ("eager", "sdpa-math"),
        mlp_gated_linear_units=True,  # asked only where GELU is recomputed
    )
    logits = round(said["activation_memory_embedding_output_per_gpu"])
    return {
        "parameters": round(said["weight_memory_per_gpu"]),
        "gradients": round(said["gradient_memory_per_gpu"]),
        "optimizer": round(said["optimizer_state_memory_per_gpu"]),
        "activations": round(said["activation_memory_per_gpu"]) - logits,
        "logits": logits,
    }


def _analysis(case: Case) -> Any:
    import dataclasses
    import logging

    from llm_analysis.analysis import LLMAnalysis
    from llm_analysis.config import DtypeConfig, GPUConfig
    from llm_analysis.logger import logger

    logger.setLevel(logging.ERROR)  # it advises on ZeRO and on pivots
    longest = case.seq + (case.new_tokens or 0)
    model = _model(json.dumps(resolve(case.model).config, sort_keys=True))
    unbounded = GPUConfig("unbounded", 1e9, 1e3, 1e3, 1e-6, 1e3)
    return LLMAnalysis(
        dataclasses.replace(model, max_seq_len=max(model.max_seq_len or 0, longest)),
        unbounded,
        DtypeConfig(weight_bits=16, activation_bits=16, embedding_bits=16),
    )


@functools.cache
def _model(config: str) -> Any:
    """What it makes of a config.  It trusts what a config names as code, so that is left out."""
    from llm_analysis.config import get_model_config_from_hf

    facts = {key: value for key, value in json.loads(config).items() if key != "auto_map"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(facts), encoding="utf-8")
        return get_model_config_from_hf(folder)
