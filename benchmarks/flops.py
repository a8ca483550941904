"""``python -m nooom.benchmarks.flops results/claims/flops.json``: what gradient checkpointing costs, in operations.

A forward and a backward pass of real models, by the workloads' own code, on ``meta`` tensors under torch's FLOP
counter: no arithmetic happens, so a 7B model takes seconds and no memory.  The counter knows matrix products and
attention; what is elementwise is not counted, and time is not measured.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from nooom.benchmarks.claim_checks import recorded
from nooom.benchmarks.models.zoo import resolve_case
from nooom.formulas.case import Case
from nooom.formulas.errors import NooomError

MODELS = ("Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-8B", "HuggingFaceTB/SmolLM2-135M")
LORA: dict[str, Any] = {"lora_rank": 16, "lora_targets": "all-linear"}
ATTENTION = "eager"
"""The same products as any other; sdpa looks into the mask for values, which meta tensors have none of."""
WAYS = {"non-reentrant": False, "reentrant": True}
"""torch's two ways of checkpointing.  The newer stops recomputing at the last value that is needed; the older one runs
the whole layer again."""
SCHEMA_VERSION = 1


def count(case: Case, reentrant: bool = False) -> int:
    """Floating point operations of one forward and one backward pass; a multiplication and an addition are two.

    Args:
        case: a fine-tuning one.
        reentrant: checkpointing by the older of torch's two ways, which transformers took by default before version 5.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from nooom.benchmarks.workloads.batches import training_batch
    from nooom.benchmarks.workloads.load import load_model
    from nooom.benchmarks.workloads.lora import with_adapter
    from nooom.benchmarks.workloads.settings import enable_checkpointing

    known, shape = resolve_case(case)
    meta = torch.device("meta")
    model: Any = load_model(case, {"config": known.config}, meta)
    if case.workload == "lora":
        model = with_adapter(case, model)
    model.train()
    if case.checkpointing:
        enable_checkpointing(model)
        if reentrant:
            _make_reentrant(model)
    inputs = training_batch(case, shape.vocab_size, meta)
    with FlopCounterMode(display=False) as counter:
        model(**inputs, use_cache=False).loss.backward()
    return int(counter.get_total_flops())


def _make_reentrant(model: Any) -> None:
    """Every layer that checkpoints does so the other way."""
    from torch.utils.checkpoint import checkpoint

    other = functools.partial(checkpoint, use_reentrant=True)
    layers = [module for module in model.modules() if hasattr(module, "_gradient_checkpointing_func")]
    assert layers, "transformers names the function that a layer checkpoints with otherwise"
    for layer in layers:
        layer._gradient_checkpointing_func = other


def rows() -> Iterator[dict[str, Any]]:
    """Each model's fine-tuning, full and LoRA, without checkpointing and with either way, and what it adds."""
    for model in MODELS:
        for workload in ("sft", "lora"):
            flags: dict[str, Any] = {
                "model": model,
                "workload": workload,
                "batch": 1,
                "seq": 2048,
                "attention": ATTENTION,
                **(LORA if workload == "lora" else {}),
            }
            plain = count(Case.from_dict(flags))
            for way, reentrant in WAYS.items():
                recomputed = count(Case.from_dict({**flags, "checkpointing": True}), reentrant)
                yield {
                    **flags,
                    "checkpointing": way,
                    "flops": plain,
                    "flops_with_checkpointing": recomputed,
                    "extra": round(recomputed / plain - 1, 4),
                }


def document() -> dict[str, Any]:
    """The file's content, with the versions whose code was counted."""
    versions = {name: version(name) for name in ("torch", "transformers", "peft")}
    return {"schema_version": SCHEMA_VERSION, "fingerprint": versions, "rows": list(rows())}


def main(arguments: list[str]) -> None:
    """Raises UsageError unless given one path."""
    recorded.write(document, arguments)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except NooomError as problem:
        sys.exit(f"flops: {problem}")
