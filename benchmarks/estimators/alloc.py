"""alloc 0.0.16: ``alloc.ghost``, its scan without running anything.

It speaks of full training; of inference, adapters and GRPO nothing.  It is given the number of parameters, the dtype,
the batch, the length, the width and the optimizer, and rounds each part to 0.01 GiB.  AdamW over fp32 weights is what
it takes where no optimizer is named: named, it would have a master copy of weights that are fp32 already.
"""

from __future__ import annotations

from nooom.formulas.case import Case
from nooom.formulas.shape import ModelShape

SAYS = (
    "Training: half-precision weights always have fp32 gradients, an fp32 master copy and fp32 moments, so 18 bytes a "
    "parameter where pure bf16 has 8; fp32 weights have 16. Activations are one hidden state a layer, the layers being "
    "guessed as parameters / 12 hidden²: what lies between them and the logits is missing, so it is too low where "
    "batches and lengths are large. Then 10 % for fragmentation. Checkpointing changes nothing."
)

_GIB = 2**30
_OPTIMIZERS = {
    "adamw": "AdamW",
    "adamw-fused": "AdamW",
    "adamw-foreach": "AdamW",
    "adamw-8bit": "AdamW8bit",
    "adafactor": "Adafactor",
    "sgd": "SGD",
    "sgd-momentum": "SGD",
}


def estimate(case: Case, shape: ModelShape) -> dict[str, int] | None:
    """Its parts, in bytes: multiples of 0.01 GiB."""
    if case.workload != "sft":
        return None
    from alloc import ghost

    # Its half precision stands for mixed precision over an fp32 master copy, which autocast over fp32 weights is.
    dtype = case.dtype if case.autocast == "none" else case.autocast
    optimizer = _OPTIMIZERS[case.optimizer]
    report = ghost(
        param_count=shape.parameters,
        dtype=dtype,
        batch_size=case.batch,
        seq_length=case.seq,
        hidden_dim=shape.hidden_size,
        optimizer_type=None if (dtype, optimizer) == ("fp32", "AdamW") else optimizer,
    )
    parts = {
        "parameters": report.weights_gb,
        "gradients": report.gradients_gb,
        "optimizer": report.optimizer_gb,
        "activations": report.activations_gb,
        "other": report.buffer_gb,
    }
    return {name: round(size * _GIB) for name, size in parts.items()}
