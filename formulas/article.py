"""The formulas of the article "No Out Of Memory!", verbatim, right or wrong: one function each, in bytes.

The article writes GB for two things: bytes / 1024**3 where a formula divides by 1024**3, and 10**9 bytes where it
shortens parameters to "2P with P in billions".  Here everything is bytes, which is what both mean before the division.
hidden_dim stands where grouped-query attention would need the KV heads' width; that is the article's choice.
"""

from __future__ import annotations

from collections.abc import Mapping

from nooom.formulas.case import Case
from nooom.formulas.constants import ARTICLE
from nooom.formulas.shape import ModelShape

BYTES_PER_PARAMETER: Mapping[str, float] = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "int4": 0.5}
"""Section 1's precision table."""


def parameter_bytes(parameters: int, precision: str = "bf16") -> int:
    """bytes_per_param x num_params (section 1)."""
    return round(BYTES_PER_PARAMETER[precision] * parameters)


def gradient_bytes(trained_parameters: int, precision: str = "bf16") -> int:
    """bytes_per_param x num_trainable_params, in the training precision (section 3)."""
    return parameter_bytes(trained_parameters, precision)


def optimizer_bytes(parameters: int, optimizer: str, constants: Mapping[str, float] = ARTICLE) -> int | None:
    """Adam: 4 + 4 + 4 bytes per parameter "regardless of model precision"; SGD with momentum: 4 (section 2).

    None for Adafactor, of which the article only says that it "can be more memory-efficient".
    """
    if optimizer.startswith("adamw"):
        names = ("adam_moment_bytes", "adam_variance_bytes", "adam_master_bytes")
        return round(sum(constants[name] for name in names) * parameters)
    if optimizer == "sgd-momentum":
        return round(constants["sgd_momentum_bytes"] * parameters)
    return 0 if optimizer == "sgd" else None


def megatron_activation_bytes(
    shape: ModelShape, batch: int, seq: int, precision_bytes: float = 2, constants: Mapping[str, float] = ARTICLE
) -> int:
    """S x b x h x (34 + 5 x a x s / h) x L x precision_bytes (section 4, quoting Megatron-LM)."""
    inner = constants["megatron_linear"] + constants["megatron_attention"] * shape.num_heads * seq / shape.hidden_size
    return round(seq * batch * shape.hidden_size * inner * shape.num_layers * precision_bytes)


def checkpointed_activation_bytes(
    shape: ModelShape, batch: int, seq: int, precision_bytes: float = 2, constants: Mapping[str, float] = ARTICLE
) -> int:
    """2 x L x h x s x b x precision_bytes (section 4)."""
    values = shape.num_layers * shape.hidden_size * seq * batch
    return round(constants["checkpointed_values"] * values * precision_bytes)


def kv_cache_bytes(
    shape: ModelShape, batch: int, seq: int, precision_bytes: float = 2, constants: Mapping[str, float] = ARTICLE
) -> int:
    """4 x L x h x s x b: two values of two bytes each (section 5)."""
    values = shape.num_layers * shape.hidden_size * seq * batch
    return round(constants["kv_values"] * values * precision_bytes)


def activation_bytes(case: Case, shape: ModelShape, seq: int, constants: Mapping[str, float] = ARTICLE) -> int:
    """The checkpointed formula under gradient checkpointing, Megatron's otherwise."""
    formula = checkpointed_activation_bytes if case.checkpointing else megatron_activation_bytes
    return formula(shape, case.batch, seq, BYTES_PER_PARAMETER[case.dtype], constants)


def inference(case: Case, shape: ModelShape, seq: int, constants: Mapping[str, float] = ARTICLE) -> dict[str, int]:
    """2P + KV_Cache, the cache as long as ``seq`` (Inference Memory Estimation)."""
    cache = kv_cache_bytes(shape, case.batch, seq, BYTES_PER_PARAMETER[case.dtype], constants)
    return {"parameters": parameter_bytes(shape.parameters, case.dtype), "kv_cache": cache}


def full_training(case: Case, shape: ModelShape, seq: int, constants: Mapping[str, float] = ARTICLE) -> dict[str, int]:
    """2P + 2P + 12P + Activations (Full Fine-Tuning)."""
    parts = {
        "parameters": parameter_bytes(shape.parameters, case.dtype),
        "gradients": gradient_bytes(shape.parameters, case.dtype),
    }
    states = optimizer_bytes(shape.parameters, case.optimizer, constants)
    if states is not None:
        parts["optimizer"] = states
    return parts | {"activations": activation_bytes(case, shape, seq, constants)}


def lora_training(case: Case, shape: ModelShape, seq: int, constants: Mapping[str, float] = ARTICLE) -> dict[str, int]:
    """2P + negligible + negligible + Activations (LoRA Fine-Tuning): what is negligible is left out."""
    return {
        "parameters": parameter_bytes(shape.parameters, case.dtype),
        "activations": activation_bytes(case, shape, seq, constants),
    }


def grpo_training(case: Case, shape: ModelShape, seq: int, constants: Mapping[str, float] = ARTICLE) -> dict[str, int]:
    """2P + Activations sharing weights, 2P more with a separate reference; --full adds its states (Memory Analysis)."""
    parts = (full_training if case.full else lora_training)(case, shape, seq, constants)
    if case.reference == "separate":
        parts["parameters"] += parameter_bytes(shape.parameters, case.dtype)
    return parts


def by_phase(case: Case, shape: ModelShape, constants: Mapping[str, float] = ARTICLE) -> dict[str, dict[str, int]]:
    """Components in bytes of each phase that the article speaks of.

    It splits inference by how long the cache is, and GRPO into generation and training; of fine-tuning it gives one
    figure, which stands under ``peak``.
    """
    phases = {"load": {"parameters": parameter_bytes(shape.parameters, case.dtype)}}
    length = case.seq + (case.new_tokens or 0)
    if case.workload == "inference":
        phases["prefill"] = inference(case, shape, case.seq, constants)
        if case.new_tokens:
            phases["decode"] = inference(case, shape, length, constants)
    elif case.workload == "grpo":
        phases["rollout"] = inference(case, shape, length, constants)
        phases["update"] = grpo_training(case, shape, length, constants)
    else:
        formula = full_training if case.workload == "sft" else lora_training
        phases["peak"] = formula(case, shape, case.seq, constants)
    return phases


def components(case: Case, shape: ModelShape, constants: Mapping[str, float] = ARTICLE) -> dict[str, int]:
    """The components of the largest phase: phases that do not overlap are never added."""
    return max(by_phase(case, shape, constants).values(), key=lambda parts: sum(parts.values()))
