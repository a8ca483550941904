"""hf-mem 0.5.6: ``parse_safetensors_metadata`` and ``compute_safetensors_kv_cache_size``.

It speaks of inference alone.  Its command fetches the headers of a checkpoint's files from the hub and adds up what
they list; here that is one tensor with as many values as the model has, in the case's dtype.  The KV cache is its
``--experimental`` part, for a config with the keys that it needs: without them (gpt2) it gives the weights alone, as
the command does with a warning.
"""

from __future__ import annotations

from nooom.benchmarks.models.zoo import resolve
from nooom.formulas.case import Case
from nooom.formulas.shape import ModelShape

SAYS = (
    "Inference: weights and the KV cache of prompt and completion. No activations, logits or workspace, so it is too "
    "low by those, which grow with the prompt. Layers with a window are charged for the whole length where others have "
    "none, as serving engines reserve them."
)

_DTYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
_NEEDS = ("hidden_size", "num_hidden_layers", "num_attention_heads")


def estimate(case: Case, shape: ModelShape) -> dict[str, int] | None:
    """Weights, and the KV cache where its formula can be asked, in bytes."""
    if case.workload != "inference" or case.quantization != "none":
        return None
    from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size
    from hf_mem.safetensors.metadata import parse_safetensors_metadata

    dtype = _DTYPES[case.dtype]
    header = {"weights": {"dtype": dtype, "shape": [shape.parameters]}}
    found = {"parameters": parse_safetensors_metadata({"Transformer": header}).bytes_count}
    config = resolve(case.model).config
    config = config.get("text_config", config)
    if all(key in config for key in _NEEDS):
        length = case.seq + case.new_tokens
        found["kv_cache"] = compute_safetensors_kv_cache_size(config, dtype, length, case.batch)
    return found
