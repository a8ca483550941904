"""``accelerate estimate-memory`` (accelerate 1.15): ``calculate_maximum_sizes`` and ``estimate_training_usage``.

Of inference it says the size of the weights, of full training the column *Training using Adam*; of adapters, of GRPO
and of other optimizers nothing.  As the command does it, the model is ``AutoModel`` (the one without the head over the
vocabulary, which is missing where it isn't tied to the embeddings), built empty in fp32 and divided by 2, 4 or 8 for
the other dtypes.  The command fetches the config from the hub; here it is the case's own.
"""

from __future__ import annotations

import functools
import json

from nooom.benchmarks.models.zoo import resolve
from nooom.formulas.case import Case
from nooom.formulas.shape import ModelShape

SAYS = (
    "Inference: the weights of `AutoModel`, so without an untied output head; no KV cache, activations or logits, and "
    "the same for every batch and length. Training: weights × 16 bytes a parameter in fp32, × 8 in half precision, "
    "which holds for fp32 (weights, gradients, two moments) and by coincidence for pure bf16 (four copies of 2 bytes), "
    "and half of what autocast over fp32 weights takes; nothing of activations, so ever lower with batch and length."
)

_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "float16"}
"""The command's words; it has none for bfloat16, which is as large as float16."""
_QUANTIZED = {"int8": "int8", "nf4": "int4"}
_SHARES = {"float32": 1, "float16": 2, "int8": 4, "int4": 8}
"""By which the command divides the size in fp32."""


def estimate(case: Case, shape: ModelShape) -> dict[str, int] | None:
    """The figure that the command's table shows for the case, in bytes."""
    del shape  # it builds the model and counts
    if case.workload == "inference":
        dtype = _QUANTIZED.get(case.quantization, _DTYPES[case.dtype])
        return {"parameters": round(_fp32_bytes(_config(case)) / _SHARES[dtype])}
    if case.workload != "sft" or case.optimizer not in ("adamw", "adamw-fused", "adamw-foreach"):
        return None
    from accelerate.commands.estimate import estimate_training_usage

    precision = _DTYPES[case.dtype if case.autocast == "none" else case.autocast]
    stages = estimate_training_usage(_fp32_bytes(_config(case)), precision)
    return {"training": max(stages.values())}


def _config(case: Case) -> str:
    return json.dumps(resolve(case.model).config, sort_keys=True)


@functools.cache
def _fp32_bytes(config: str) -> int:
    """The whole model with its buffers, each tensor once."""
    import torch
    from accelerate import init_empty_weights
    from accelerate.utils import calculate_maximum_sizes
    from transformers import AutoConfig, AutoModel

    facts = json.loads(config)
    with init_empty_weights():
        model = AutoModel.from_config(AutoConfig.for_model(facts.pop("model_type"), **facts), dtype=torch.float32)
    total, _ = calculate_maximum_sizes(model)
    return int(total)
