"""The formulas of the article "No Out Of Memory!", verbatim, right or wrong: one function each, in bytes.

Each docstring quotes its formula.  The article writes GB for two things and mixes them: bytes / 1024**3 where a formula
divides by 1024**3 (KV cache, activations), and 10**9 bytes where it shortens parameters to "2P GB with P in billions",
although the long form of that formula divides by 1024**3 too; its totals add the one to the other.  Here everything is
bytes, which is what both mean before the division, so that nothing is mixed.

hidden_dim stands where grouped-query attention would need the KV heads' width; that is the article's choice.  Where a
formula of the article ends in "...", what it leaves open is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from nooom.formulas.case import Case
from nooom.formulas.constants import ARTICLE, value
from nooom.formulas.errors import UsageError, nearest
from nooom.formulas.shape import ModelShape

PRECISIONS = ("fp32", "bf16", "fp16", "int8", "int4")
ZERO_SHARDS = {1: ("optimizer",), 2: ("optimizer", "gradients"), 3: ("optimizer", "gradients", "parameters")}
"""What each ZeRO stage divides by the number of GPUs."""


# --- 1. Model Parameters -----------------------------------------------------------------------------------------


def precision_bytes(precision: str, constants: Mapping[str, float] = ARTICLE) -> float:
    """Bytes of one value: "fp32 4, bf16/fp16 2, int8 1, int4 0.5" (1. Model Parameters).

    Raises:
        UsageError: a precision that is not in the article's table.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"precision {precision!r} is unknown; {nearest(precision, PRECISIONS)}")
    return value(f"{precision}_bytes", constants)


def parameter_bytes(parameters: int, precision: str = "bf16", constants: Mapping[str, float] = ARTICLE) -> int:
    """As written: "Parameter Memory (GB) = bytes_per_param x num_params / 1024^3" (1. Model Parameters), in bytes.

    The article's table beside it (7B in bf16: 14 GB) divides by 10^9 instead; by the formula it would be 13.04.
    """
    return round(precision_bytes(precision, constants) * parameters)


def simplified_parameter_bytes(parameters: int, constants: Mapping[str, float] = ARTICLE) -> int:
    """As written: "For bf16, this simplifies to approximately 2P GB where P is in billions"
    (1. Model Parameters), in bytes.

    Exact when GB is 10^9 bytes, 7.4 % too many when it is 1024^3.
    """
    return round(value("simplified_parameters", constants) * parameters)


# --- 2. Optimizer States, 3. Gradients ---------------------------------------------------------------------------


def adam_bytes(parameters: int, constants: Mapping[str, float] = ARTICLE) -> dict[str, int]:
    """Adam's three parts, "12 bytes per parameter, regardless of model precision" (2. Optimizer States), in bytes.

    "First moment (momentum): 4 bytes per parameter (fp32); Second moment (variance): 4 (fp32); Master weights copy: 4
    (fp32, when using mixed precision)".  The total counts the master copy always, mixed precision or not.
    """
    parts = {"moment": "adam_moment_bytes", "variance": "adam_variance_bytes", "master": "adam_master_bytes"}
    return {part: round(value(name, constants) * parameters) for part, name in parts.items()}


def sgd_momentum_bytes(parameters: int, constants: Mapping[str, float] = ARTICLE) -> int:
    """As written: "SGD with Momentum: 4 bytes per parameter (just momentum)" (2. Optimizer States), in bytes."""
    return round(value("sgd_momentum_bytes", constants) * parameters)


def optimizer_bytes(parameters: int, optimizer: str, constants: Mapping[str, float] = ARTICLE) -> int | None:
    """States of an optimizer by its case flag, in bytes (2. Optimizer States).

    None for Adafactor, of which the article only says that it "can be more memory-efficient with factored second
    moments", and for 8-bit AdamW, of which it says nothing.  Plain SGD, which it leaves out too, keeps none.
    """
    if optimizer in ("adamw", "adamw-fused", "adamw-foreach"):
        return sum(adam_bytes(parameters, constants).values())
    if optimizer == "sgd-momentum":
        return sgd_momentum_bytes(parameters, constants)
    return 0 if optimizer == "sgd" else None


def gradient_bytes(trained_parameters: int, precision: str = "bf16", constants: Mapping[str, float] = ARTICLE) -> int:
    """As written: "Gradient Memory (GB) = bytes_per_param x num_trainable_params / 1024^3" (3. Gradients), in bytes.

    "Gradient memory matches the training precision".
    """
    return parameter_bytes(trained_parameters, precision, constants)


def lora_parameters(parameters: int, constants: Mapping[str, float] = ARTICLE) -> tuple[int, int]:
    """The adapter's size, "typically 0.1%-1% of total" (3. Gradients): smallest and largest, in parameters."""
    low, high = (value(f"lora_share_{end}", constants) for end in ("low", "high"))
    return round(low * parameters), round(high * parameters)


# --- 4. Activations, 5. KV Cache ---------------------------------------------------------------------------------


def megatron_activation_bytes(
    shape: ModelShape, batch: int, seq: int, precision_bytes: float = 2, constants: Mapping[str, float] = ARTICLE
) -> int:
    """As written: "Activation Memory = s x b x h x (34 + 5 x a x s / h) x L x precision_bytes"
    (4. Activations), in bytes.

    Quoted from the Megatron-LM paper, whose 34 and 5 count bytes in fp16 already; the article multiplies by the
    precision's bytes once more.  (h is multiplied into the parentheses here, which keeps integers exact.)
    """
    hidden = value("megatron_linear", constants) * shape.hidden_size
    scores = value("megatron_attention", constants) * shape.num_heads * seq
    return round(seq * batch * (hidden + scores) * shape.num_layers * precision_bytes)


def checkpointed_activation_bytes(
    shape: ModelShape, batch: int, seq: int, precision_bytes: float = 2, constants: Mapping[str, float] = ARTICLE
) -> int:
    """As written: "Activation Memory (with checkpointing) ~ 2 x L x h x s x b x precision_bytes / 1024^3"
    (4. Activations), in bytes.
    """
    values = shape.num_layers * shape.hidden_size * seq * batch
    return round(value("checkpointed_values", constants) * values * precision_bytes)


def kv_cache_bytes(
    shape: ModelShape, batch: int, seq: int, precision_bytes: float = 2, constants: Mapping[str, float] = ARTICLE
) -> int:
    """As written: "KV Cache (GB) = 2 x 2 x num_layers x hidden_dim x seq_len x batch_size / 1024^3
    = 4 x L x h x s x b / 1024^3" (5. KV Cache), in bytes: two values, a key and a value, "2 bytes in bf16" each.
    """
    values = shape.num_layers * shape.hidden_size * seq * batch
    return round(value("kv_values", constants) * values * precision_bytes)


# --- Inference, Supervised Fine-Tuning, GRPO ---------------------------------------------------------------------


def inference_bytes(parameters: int, kv_cache: int, constants: Mapping[str, float] = ARTICLE) -> int:
    """As written: "Inference Memory (GB) = 2P + KV_Cache" (Inference Memory Estimation), in bytes."""
    return simplified_parameter_bytes(parameters, constants) + kv_cache


def full_fine_tuning_bytes(parameters: int, activations: int, constants: Mapping[str, float] = ARTICLE) -> int:
    """As written: "SFT Full Memory = 2P + 2P + 12P + Activations = 16P + Activations" (Full Fine-Tuning), in bytes."""
    return round(value("full_fine_tuning", constants) * parameters) + activations


def lora_fine_tuning_bytes(parameters: int, activations: int, constants: Mapping[str, float] = ARTICLE) -> int:
    """As written: "SFT LoRA Memory ~ 2P + negligible + negligible + Activations ~ 2P + Activations"
    (LoRA Fine-Tuning), in bytes.
    """
    return simplified_parameter_bytes(parameters, constants) + activations


def grpo_generation_bytes(actor: int, kv_caches: int, reward: int = 0) -> int:
    """As written: "Generation Memory = Actor_Params + Reward_Params + KV_Caches" (Memory Analysis for GRPO)."""
    return actor + reward + kv_caches


def same_sized_reward_bytes(parameters: int, kv_cache: int, constants: Mapping[str, float] = ARTICLE) -> int:
    """As written: "For same-sized Actor and Reward models: Generation Peak ~ 4P + 2 x KV_Cache"
    (When You Need a Reward Model), in bytes.
    """
    return round(value("reward_generation", constants) * parameters + value("reward_caches", constants) * kv_cache)


def grpo_training_bytes(
    actor: int, activations: int, reference: int = 0, gradients: int = 0, optimizer: int = 0
) -> int:
    """As written: "Training Memory = Actor_Params + Gradients + Optimizer_States + Activations + Reference_Params"
    (Memory Analysis for GRPO); all in bytes.

    With LoRA "2P + Activations + 2P (if separate reference)", "2P + Activations (if sharing weights)".
    """
    return actor + gradients + optimizer + activations + reference


def grpo_peak_bytes(generation: int, training: int) -> int:
    """As written: "Peak Memory = max(Generation_Peak, Training_Peak)" (GRPO with Weight Sharing), in bytes.

    "Since these phases don't overlap, we take the maximum rather than summing."
    """
    return max(generation, training)


# --- Parallelism Strategies --------------------------------------------------------------------------------------


def tensor_parallel_bytes(parameters: int, activations: int, tp: int) -> int:
    """As written: "Per-GPU Memory = Parameters / TP + Activations / TP + ..." (Tensor Parallelism), in bytes."""
    return _shared(parameters, tp) + _shared(activations, tp)


def pipeline_parallel_bytes(parameters: int, pp: int) -> int:
    """As written: "Per-GPU Memory = Parameters / PP + ..." (Pipeline Parallelism), in bytes."""
    return _shared(parameters, pp)


def data_parallel_bytes(per_gpu: int, dp: int) -> int:
    """As written: "DP does not reduce per-GPU memory. Each GPU holds the full model" (Data Parallelism), in bytes."""
    _shared(per_gpu, dp)  # refuses what is no number of GPUs
    return per_gpu


def zero_bytes(parts: Mapping[str, int], stage: int, gpus: int) -> dict[str, int]:
    """ZeRO's per-GPU components in bytes (ZeRO (DeepSpeed)).

    "ZeRO-1: Reduces optimizer state memory by N (number of GPUs); ZeRO-2: Also shards gradients; ZeRO-3: Also shards
    parameters".  Other components stay whole.

    Raises:
        UsageError: a stage other than 1, 2 or 3, or fewer GPUs than one.
    """
    if stage not in ZERO_SHARDS:
        raise UsageError(f"ZeRO stage {stage!r} is unknown; valid: 1, 2, 3")
    return {name: _shared(size, gpus) if name in ZERO_SHARDS[stage] else size for name, size in parts.items()}


def _shared(size: int, gpus: int) -> int:
    """What the GPU with the largest share holds."""
    if gpus < 1:
        raise UsageError(f"the number of GPUs is {gpus}; at least 1 is right")
    return -(-size // gpus)


# --- A case's components -----------------------------------------------------------------------------------------

_BASE_PRECISION = {"int8": "int8", "nf4": "int4"}
"""The row of the article's precision table for quantized base weights."""


def weight_bytes(case: Case, shape: ModelShape, constants: Mapping[str, float] = ARTICLE) -> int:
    """The weights in the precision they are held in: the case's dtype, or what they are quantized to."""
    return parameter_bytes(shape.parameters, _BASE_PRECISION.get(case.quantization, case.dtype), constants)


def _value_bytes(case: Case) -> float:
    """Bytes of one activation or cached value: how wide a dtype is, is a fact and no constant to be fitted."""
    return precision_bytes(case.dtype)


def activation_bytes(case: Case, shape: ModelShape, seq: int, constants: Mapping[str, float] = ARTICLE) -> int:
    """The checkpointed formula under gradient checkpointing, Megatron's otherwise; padding changes nothing."""
    formula = checkpointed_activation_bytes if case.checkpointing else megatron_activation_bytes
    return formula(shape, case.batch, seq, _value_bytes(case), constants)


def inference(case: Case, shape: ModelShape, seq: int, constants: Mapping[str, float] = ARTICLE) -> dict[str, int]:
    """2P + KV_Cache, the cache as long as ``seq`` (Inference Memory Estimation; GRPO's Generation_Peak)."""
    cache = kv_cache_bytes(shape, case.batch, seq, _value_bytes(case), constants)
    return {"parameters": weight_bytes(case, shape, constants), "kv_cache": cache}


def full_training(case: Case, shape: ModelShape, seq: int, constants: Mapping[str, float] = ARTICLE) -> dict[str, int]:
    """Parameters + Gradients + Optimizer_States + Activations (Full Fine-Tuning)."""
    parts = {
        "parameters": weight_bytes(case, shape, constants),
        "gradients": gradient_bytes(shape.parameters, case.dtype, constants),
    }
    states = optimizer_bytes(shape.parameters, case.optimizer, constants)
    if states is not None:
        parts["optimizer"] = states
    return parts | {"activations": activation_bytes(case, shape, seq, constants)}


def lora_training(case: Case, shape: ModelShape, seq: int, constants: Mapping[str, float] = ARTICLE) -> dict[str, int]:
    """2P + negligible + negligible + Activations (LoRA Fine-Tuning): what is negligible is left out."""
    return {
        "parameters": weight_bytes(case, shape, constants),
        "activations": activation_bytes(case, shape, seq, constants),
    }


def grpo_training(case: Case, shape: ModelShape, seq: int, constants: Mapping[str, float] = ARTICLE) -> dict[str, int]:
    """The Training_Peak of ``batch`` completions: the article knows one batch size and no micro-batches.

    A separate reference adds 2P; ``--full`` adds gradients and optimizer states (Memory Analysis for GRPO).
    """
    parts = (full_training if case.full else lora_training)(case, shape, seq, constants)
    if case.reference == "separate":
        parts["parameters"] += weight_bytes(case, shape, constants)
    return parts


def by_phase(case: Case, shape: ModelShape, constants: Mapping[str, float] = ARTICLE) -> dict[str, dict[str, int]]:
    """Components in bytes of each phase that the article speaks of.

    It splits inference by how long the cache is, and GRPO into generation and training; of fine-tuning it gives one
    figure, which stands under ``peak``.
    """
    phases = {"load": {"parameters": weight_bytes(case, shape, constants)}}
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
