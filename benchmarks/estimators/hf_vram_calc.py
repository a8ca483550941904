"""hf-vram-calc 1.0.9: ``VRAMCalculator``, the columns *Inference*, *Training (Adam)* and *LoRA* of its table.

Its recommendations are made of these three; the columns *Activations* and *KV cache* stand beside them and are added to
none.  Of GRPO and of other optimizers it says nothing.  It counts a model's parameters by building it empty, which is
the number that ModelShape has.
"""

from __future__ import annotations

from nooom.formulas.case import Case
from nooom.formulas.shape import ModelShape

SAYS = (
    "Factors on the weights, the same for every batch and length: inference × 1.2, training × 4 × 1.3, LoRA (weights "
    "and four copies in fp16 of rank / 8192 of the parameters) × 1.2. So too high where prompts are short and too low "
    "where they are long; in training the 1.3 stands for all activations and logits. Gradient checkpointing and "
    "autocast are not asked about: fp32 weights under autocast count as fp32."
)

_GIB = 2**30
_QUANTIZED = {"int8": "int8", "nf4": "int4"}


def estimate(case: Case, shape: ModelShape) -> dict[str, int] | None:
    """The column for the case's workload, its overhead under ``other``, in bytes."""
    if case.workload == "grpo":
        return None
    if case.trains and case.optimizer not in ("adamw", "adamw-fused", "adamw-foreach"):
        return None
    from hf_vram_calc import ConfigManager, VRAMCalculator

    calculator = VRAMCalculator(ConfigManager())
    weights = calculator.calculate_model_memory(shape.parameters, _QUANTIZED.get(case.quantization, case.dtype))
    if case.workload == "inference":
        return _rest_is_overhead({"parameters": weights}, calculator.calculate_inference_memory(weights))
    if case.workload == "lora":
        total = calculator.calculate_lora_memory(weights, shape.parameters, case.lora_rank)
        return _rest_is_overhead({"parameters": weights}, total)
    parts = {
        "parameters": weights,
        "gradients": calculator.calculate_gradient_memory(weights),
        "optimizer": calculator.calculate_optimizer_memory(weights, "adamw"),
    }
    return _rest_is_overhead(parts, calculator.calculate_training_memory(weights))


def _rest_is_overhead(parts: dict[str, float], total: float) -> dict[str, int]:
    """GiB to bytes; what the total has beyond its parts is a factor."""
    found = {name: round(size * _GIB) for name, size in parts.items()}
    return found | {"other": round(total * _GIB) - sum(found.values())}
