"""deepspeed 0.19.8: ``estimate_zero2_model_states_mem_needs`` for one GPU and nothing offloaded.

It speaks of the model's states in full training in half precision with Adam, and of them alone; of inference, adapters,
GRPO and fp32 nothing.  One GPU has nobody to share with, so that ZeRO's stages are all alike.
"""

from __future__ import annotations

from nooom.formulas.case import Case
from nooom.formulas.shape import ModelShape

SAYS = (
    "Training: 20 bytes a parameter, which are weights and gradients in 16 bits, a master copy and gradients in fp32 "
    "and two fp32 moments; pure bf16 has 8 and autocast over fp32 weights 16. No activations or logits, which hides "
    "some of that where batches and lengths are large."
)


def estimate(case: Case, shape: ModelShape) -> dict[str, int] | None:
    """All states as one figure, in bytes: it gives their sum."""
    if case.workload != "sft" or case.optimizer not in ("adamw", "adamw-fused", "adamw-foreach"):
        return None
    if case.dtype == "fp32" and case.autocast == "none":
        return None
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    _, gpu_bytes = estimate_zero2_model_states_mem_needs(shape.parameters, cpu_offload=False)
    return {"training": int(gpu_bytes)}
