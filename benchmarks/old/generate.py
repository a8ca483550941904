"""A generation as Qwen2.5's benchmark of speed ran it, on the GPU that torch sees; says what it took.

Run by ``benchmarks/old/speed.py`` as a process of its own: the checkpoint by ``from_pretrained``, one prompt without
padding, ``generate`` with the checkpoint's own sampling.  On a phantom its tokens mean nothing.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from nooom.benchmarks.old import flash_attention
from nooom.profiler.phantom.program import prepare

_TOKEN = 35946
"""The prompt is this one token, again and again; any would do."""


def generate(checkpoint: str, length: int, new_tokens: int) -> dict[str, int]:
    """Load the checkpoint and generate exactly that many tokens.

    Returns:
        Of the time after loading, the ``peak_bytes`` that the allocator handed out, and the ``requested_bytes`` that
        it was asked for at most.
    """
    flash_attention.install()
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    torch.multinomial = _multinomial  # type: ignore[assignment]
    with prepare():
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint, torch_dtype="auto", device_map="auto", attn_implementation="flash_attention_2"
        ).eval()
        settings = GenerationConfig.from_pretrained(checkpoint)
        settings.min_length, settings.max_new_tokens = length + new_tokens, new_tokens
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        row = torch.full((1, length), _TOKEN)
        inputs = {"input_ids": row.to("cuda"), "attention_mask": torch.ones_like(row).to("cuda")}
        made = model.generate(**inputs, generation_config=settings).shape[1] - length
        if made != new_tokens:
            raise RuntimeError(f"{made} tokens came instead of {new_tokens}")
        return {
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "requested_bytes": torch.cuda.memory_stats()["requested_bytes.all.peak"],
        }


def _multinomial(probabilities: Any, num_samples: int = 1, **_: Any) -> Any:
    """What ``torch.multinomial`` allocates for one sample, in its order.

    The real one reads on the host, from C++, whether the probabilities are valid, and refuses a phantom's zeros.
    """
    import torch

    if num_samples != 1:
        raise NotImplementedError("one sample a row")
    valid = (probabilities.max() < float("inf")) & (probabilities.min() >= 0)
    del valid
    empty_rows = (probabilities.sum(1) == 0).sum()
    del empty_rows
    drawn = torch.empty_like(probabilities).exponential_(1)
    torch.div(probabilities, drawn, out=drawn)
    return drawn.argmax(dim=-1, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate as was published, and print what it took.")
    parser.add_argument("checkpoint")
    parser.add_argument("length", type=int, help="tokens of the prompt")
    parser.add_argument("new_tokens", type=int)
    given = parser.parse_args()
    print(json.dumps(generate(given.checkpoint, given.length, given.new_tokens)))


if __name__ == "__main__":
    main()
